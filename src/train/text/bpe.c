/* bpe.c - see bpe.h.
 *
 * Neighbours that can be merged wait in a heap, by rank and place. An entry is out of date if a merge has changed
 * either token; then it is dropped when it comes up. So a word of n bytes takes n log n steps, however long it is.
 *
 * SentencePiece's models see a whole text as one word. Where no token has BPE_MARK behind another character, no merge
 * crosses that place, so the word is cut there: the same tokens, from words that fit the processor's cache.
 */
#include "train/text/bpe.h"

#include <stdlib.h>
#include <string.h>

#include "train/report/report.h"
#include "train/report/utf8.h"

#define N_MARK (sizeof BPE_MARK - 1)

/* ---- tables ---- */

static size_t power_of_two_above(size_t n)
{
    size_t power = 16;
    while (power < n)
        power *= 2;
    return power;
}

static uint64_t hash_bytes(const char *bytes, size_t n_bytes)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (size_t i = 0; i < n_bytes; i++)
        hash = (hash ^ (unsigned char)bytes[i]) * UINT64_C(0x100000001b3);
    return hash ^ hash >> 32;
}

static uint64_t hash_pair(int32_t left, int32_t right)
{
    uint64_t z = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * UINT64_C(0x9e3779b97f4a7c15);
    return z ^ z >> 29;
}

zero_status_t bpe_create(size_t n_tokens, size_t n_merges, bpe_t *bpe)
{
    *bpe = (bpe_t){.n_tokens = n_tokens,
                   .n_slots = power_of_two_above(2 * n_tokens),
                   .n_merge_slots = power_of_two_above(2 * n_merges),
                   .unknown = -1};
    bpe->tokens = calloc(n_tokens + 1, sizeof *bpe->tokens);
    bpe->slots = malloc(bpe->n_slots * sizeof *bpe->slots);
    bpe->merges = malloc(bpe->n_merge_slots * sizeof *bpe->merges);
    if (!bpe->tokens || !bpe->slots || !bpe->merges)
        return report_rank_error(ZERO_ERROR_MEMORY, "tokenizer: no memory for %zu tokens and %zu merges", n_tokens,
                                 n_merges);
    memset(bpe->of_byte, 0xff, sizeof bpe->of_byte);
    memset(bpe->slots, 0xff, bpe->n_slots * sizeof *bpe->slots);
    memset(bpe->merges, 0xff, bpe->n_merge_slots * sizeof *bpe->merges);
    return ZERO_OK;
}

void bpe_destroy(bpe_t *bpe)
{
    for (size_t i = 0; bpe->tokens && i < bpe->n_tokens; i++)
        free(bpe->tokens[i].bytes);
    free(bpe->tokens);
    free(bpe->slots);
    free(bpe->merges);
    *bpe = (bpe_t){0};
}

/* Returns the slot of these bytes, or the free one where they would be. */
static size_t find_slot(const bpe_t *bpe, const char *bytes, size_t n_bytes)
{
    size_t slot = hash_bytes(bytes, n_bytes) & (bpe->n_slots - 1);
    for (; bpe->slots[slot] >= 0; slot = (slot + 1) & (bpe->n_slots - 1)) {
        const bpe_token_t *token = &bpe->tokens[bpe->slots[slot]];
        if (token->n_bytes == n_bytes && memcmp(token->bytes, bytes, n_bytes) == 0)
            break;
    }
    return slot;
}

int32_t bpe_find(const bpe_t *bpe, const char *bytes, size_t n_bytes)
{
    return bpe->slots[find_slot(bpe, bytes, n_bytes)];
}

bool bpe_add_unfindable(bpe_t *bpe, int32_t token, const char *bytes, size_t n_bytes)
{
    bpe_token_t *at = &bpe->tokens[token];
    char *copy = at->bytes ? NULL : malloc(n_bytes + 1);
    if (!copy)
        return false;
    memcpy(copy, bytes, n_bytes);
    copy[n_bytes] = 0;
    *at = (bpe_token_t){.bytes = copy, .n_bytes = n_bytes};
    return true;
}

bool bpe_add_token(bpe_t *bpe, int32_t token, const char *bytes, size_t n_bytes)
{
    size_t slot = find_slot(bpe, bytes, n_bytes);
    if (bpe->slots[slot] >= 0 || !bpe_add_unfindable(bpe, token, bytes, n_bytes))
        return false;
    bpe->slots[slot] = token;
    if (n_bytes == 1 && !bpe->is_of_chars)
        bpe->of_byte[(unsigned char)bytes[0]] = token;
    return true;
}

static size_t find_merge_slot(const bpe_t *bpe, int32_t left, int32_t right)
{
    size_t slot = hash_pair(left, right) & (bpe->n_merge_slots - 1);
    while (bpe->merges[slot].left >= 0 && (bpe->merges[slot].left != left || bpe->merges[slot].right != right))
        slot = (slot + 1) & (bpe->n_merge_slots - 1);
    return slot;
}

static bool is_mark(const char *text)
{
    return memcmp(text, BPE_MARK, N_MARK) == 0;
}

/* Returns where the next BPE_MARK behind another character is, after `at`; n_bytes if there is none. */
static size_t next_mark(const char *text, size_t at, size_t n_bytes)
{
    for (size_t i = at + 1; i + N_MARK <= n_bytes; i++)
        if (is_mark(text + i) && !(i >= at + N_MARK && is_mark(text + i - N_MARK)))
            return i;
    return n_bytes;
}

bool bpe_add_merge(bpe_t *bpe, int32_t left, int32_t right, int32_t merged)
{
    bpe_merge_t *at = &bpe->merges[find_merge_slot(bpe, left, right)];
    if (at->left >= 0)
        return false;
    *at = (bpe_merge_t){.left = left, .right = right, .merged = merged, .rank = (uint32_t)bpe->n_merges++};
    const bpe_token_t *token = &bpe->tokens[merged];
    bpe->has_inner_mark |= next_mark(token->bytes, 0, token->n_bytes) < token->n_bytes;
    return true;
}

/* ---- one word ---- */

typedef struct symbol {
    int32_t token;        /* -1: merged into the one before it */
    int32_t before, next; /* neighbours; -1: none */
} symbol_t;

typedef struct candidate {
    uint32_t rank;
    int32_t at; /* its left symbol */
    int32_t left, right, merged;
} candidate_t;

typedef struct word {
    symbol_t *symbols; /* [n_symbols], at most one for each byte */
    int32_t n_symbols;
    candidate_t *heap; /* the first has the lowest rank; at most 2 candidates for each symbol */
    size_t n_heap;
} word_t;

static bool is_before(const candidate_t *a, const candidate_t *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void push(word_t *word, candidate_t candidate)
{
    size_t i = word->n_heap++;
    for (; i > 0 && is_before(&candidate, &word->heap[(i - 1) / 2]); i = (i - 1) / 2)
        word->heap[i] = word->heap[(i - 1) / 2];
    word->heap[i] = candidate;
}

static candidate_t pop(word_t *word)
{
    candidate_t first = word->heap[0], last = word->heap[--word->n_heap];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child + 1 < word->n_heap && is_before(&word->heap[child + 1], &word->heap[child]))
            child++;
        if (child >= word->n_heap || !is_before(&word->heap[child], &last))
            break;
        word->heap[i] = word->heap[child];
        i = child;
    }
    word->heap[i] = last;
    return first;
}

/* Makes a candidate of a symbol and the next, if they can be merged. */
static void consider(const bpe_t *bpe, word_t *word, int32_t at)
{
    const symbol_t *symbol = &word->symbols[at];
    if (symbol->next < 0)
        return;
    int32_t right = word->symbols[symbol->next].token;
    const bpe_merge_t *merge = &bpe->merges[find_merge_slot(bpe, symbol->token, right)];
    if (merge->left >= 0)
        push(word, (candidate_t){merge->rank, at, symbol->token, right, merge->merged});
}

static void merge_all(const bpe_t *bpe, word_t *word)
{
    symbol_t *symbols = word->symbols;
    while (word->n_heap > 0) {
        const candidate_t c = pop(word);
        symbol_t *left = &symbols[c.at];
        if (left->token != c.left || left->next < 0 || symbols[left->next].token != c.right)
            continue;
        symbol_t *right = &symbols[left->next];
        left->token = c.merged;
        right->token = -1;
        left->next = right->next;
        if (left->next >= 0)
            symbols[left->next].before = c.at;
        if (left->before >= 0)
            consider(bpe, word, left->before);
        consider(bpe, word, c.at);
    }
}

static void add_symbol(word_t *word, int32_t token)
{
    const int32_t i = word->n_symbols++;
    word->symbols[i] = (symbol_t){.token = token, .before = i - 1, .next = -1};
    if (i > 0)
        word->symbols[i - 1].next = i;
}

static zero_status_t begin_with_bytes(const bpe_t *bpe, const char *bytes, size_t n_bytes, word_t *word)
{
    for (size_t i = 0; i < n_bytes; i++) {
        int32_t token = bpe->of_byte[(unsigned char)bytes[i]];
        if (token < 0)
            return report_rank_error(ZERO_ERROR_FORMAT, "tokenizer: the vocabulary has no token for byte 0x%02x",
                                     (unsigned char)bytes[i]);
        add_symbol(word, token);
    }
    return ZERO_OK;
}

static void begin_with_chars(const bpe_t *bpe, const char *text, size_t n_bytes, word_t *word)
{
    bool behind_unknown = false;
    for (size_t i = 0, n; i < n_bytes; i += n) {
        uint32_t code;
        n = utf8_read((const unsigned char *)text + i, n_bytes - i, &code);
        const int32_t token = bpe_find(bpe, text + i, n);
        const bool is_unknown = token < 0 && bpe->of_byte[0] < 0;
        if (token >= 0)
            add_symbol(word, token);
        for (size_t k = 0; token < 0 && !is_unknown && k < n; k++)
            add_symbol(word, bpe->of_byte[(unsigned char)text[i + k]]);
        if (is_unknown && bpe->unknown >= 0 && !(behind_unknown && bpe->fuses_unknown))
            add_symbol(word, bpe->unknown);
        behind_unknown = is_unknown;
    }
}

static zero_status_t merge_word(const bpe_t *bpe, const char *bytes, size_t n_bytes, word_t *word, tokens_t *tokens)
{
    if (bpe->is_of_chars)
        begin_with_chars(bpe, bytes, n_bytes, word);
    else
        ZERO_TRY(begin_with_bytes(bpe, bytes, n_bytes, word));
    for (int32_t i = 0; i + 1 < word->n_symbols; i++)
        consider(bpe, word, i);
    merge_all(bpe, word);
    for (int32_t i = word->n_symbols > 0 ? 0 : -1; i >= 0; i = word->symbols[i].next)
        ZERO_TRY(tokens_add(tokens, word->symbols[i].token));
    return ZERO_OK;
}

static zero_status_t encode_word(const bpe_t *bpe, const char *word, size_t n_bytes, tokens_t *tokens)
{
    enum { SHORT = 64 };
    symbol_t symbols[SHORT];
    candidate_t heap[3 * SHORT]; /* one for each pair at first, and two for each merge, of which there are fewer */
    word_t made = {.symbols = symbols, .heap = heap};
    if (n_bytes <= SHORT)
        return merge_word(bpe, word, n_bytes, &made, tokens);
    if (n_bytes > INT32_MAX / 4)
        return report_rank_error(ZERO_ERROR_OVERFLOW, "tokenizer: a word of %zu bytes is too long", n_bytes);
    made.symbols = malloc(n_bytes * sizeof *made.symbols);
    made.heap = malloc(3 * n_bytes * sizeof *made.heap);
    zero_status_t status = ZERO_OK;
    if (made.symbols && made.heap)
        status = merge_word(bpe, word, n_bytes, &made, tokens);
    else
        status = report_rank_error(ZERO_ERROR_MEMORY, "tokenizer: no memory for a word of %zu bytes", n_bytes);
    free(made.symbols);
    free(made.heap);
    return status;
}

zero_status_t bpe_encode(const bpe_t *bpe, const char *word, size_t n_bytes, tokens_t *tokens)
{
    const int32_t whole = bpe->takes_whole_words ? bpe_find(bpe, word, n_bytes) : -1;
    if (whole >= 0)
        return tokens_add(tokens, whole);
    const bool is_cut = bpe->is_of_chars && !bpe->has_inner_mark && bpe_find(bpe, BPE_MARK, N_MARK) >= 0;
    for (size_t begin = 0, end; begin < n_bytes; begin = end) {
        end = is_cut ? next_mark(word, begin, n_bytes) : n_bytes;
        ZERO_TRY(encode_word(bpe, word + begin, end - begin, tokens));
    }
    return ZERO_OK;
}

/* ---- tokens ---- */

zero_status_t tokens_add(tokens_t *tokens, int32_t token)
{
    if (tokens->n == tokens->capacity) {
        size_t capacity = tokens->capacity > 0 ? 2 * tokens->capacity : 64;
        int32_t *at = realloc(tokens->at, capacity * sizeof *at);
        if (!at)
            return report_rank_error(ZERO_ERROR_MEMORY, "tokenizer: no memory for %zu tokens", capacity);
        tokens->at = at;
        tokens->capacity = capacity;
    }
    tokens->at[tokens->n++] = token;
    return ZERO_OK;
}

void tokens_free(tokens_t *tokens)
{
    free(tokens->at);
    *tokens = (tokens_t){0};
}
