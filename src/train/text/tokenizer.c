/* tokenizer.c - see tokenizer.h. Text is repaired to UTF-8, cut at added tokens, normalized, cut at those that are
 * looked for in normalized text, split into words, and each word is merged. */
#include "train/text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/report/report.h"
#include "train/report/utf8.h"
#include "train/text/tokenizer_parts.h"

#define N_BYTES 256

/* ---- opening ---- */

/* Every token is its own byte. */
static zero_status_t make_bytes(tokenizer_t *tokenizer)
{
    tokenizer->tokens_are_bytes = true;
    ZERO_TRY(bpe_create(N_BYTES, 0, &tokenizer->bpe));
    for (int byte = 0; byte < N_BYTES; byte++)
        if (!bpe_add_token(&tokenizer->bpe, byte, &(char){(char)byte}, 1))
            return report_rank_error(ZERO_ERROR_MEMORY, "tokenizer: no memory");
    return ZERO_OK;
}

static zero_status_t read_directory(const char *directory, int64_t vocab_size, tokenizer_t *tokenizer)
{
    char path[4096 + 32];
    snprintf(path, sizeof path, "%s/tokenizer.json", directory);
    if (access(path, F_OK) == 0)
        return tokenizer_read_file(path, vocab_size, tokenizer);
    if (vocab_size == N_BYTES)
        return make_bytes(tokenizer);
    snprintf(path, sizeof path, "%s/tokenizer.model", directory);
    if (access(path, F_OK) == 0)
        return report_error(
            ZERO_ERROR_USAGE,
            "'%s' has tokenizer.model and no tokenizer.json: write one by python3 -c \"from transformers "
            "import AutoTokenizer as t; t.from_pretrained('%s').save_pretrained('%s')\"",
            directory, directory, directory);
    return report_error(ZERO_ERROR_USAGE,
                        "'%s' has no tokenizer.json: copy it from the model that the tokens were made for", directory);
}

zero_status_t tokenizer_open(const char *directory, int64_t vocab_size, tokenizer_t **tokenizer)
{
    tokenizer_t *opened = calloc(1, sizeof *opened);
    if (!opened)
        return report_rank_error(ZERO_ERROR_MEMORY, "tokenizer: no memory");
    zero_status_t status = read_directory(directory, vocab_size, opened);
    if (status != ZERO_OK) {
        tokenizer_close(opened);
        return status;
    }
    *tokenizer = opened;
    return ZERO_OK;
}

void tokenizer_close(tokenizer_t *tokenizer)
{
    if (!tokenizer)
        return;
    for (size_t i = 0; i < tokenizer->n_added; i++)
        free(tokenizer->added[i].content);
    free(tokenizer->added);
    free(tokenizer->before);
    for (size_t i = 0; tokenizer->texts && i < tokenizer->bpe.n_tokens; i++)
        free(tokenizer->texts[i].bytes);
    free(tokenizer->texts);
    free(tokenizer->metaspace.mark);
    normalizer_destroy(&tokenizer->normalizer);
    splitter_destroy(&tokenizer->splitter);
    bpe_destroy(&tokenizer->bpe);
    free(tokenizer);
}

/* ---- encoding ---- */

typedef struct encoding {
    const tokenizer_t *tokenizer;
    tokens_t *tokens;
} encoding_t;

static zero_status_t encode_word(void *user, const char *word, size_t n_bytes)
{
    encoding_t *encoding = user;
    return bpe_encode(&encoding->tokenizer->bpe, word, n_bytes, encoding->tokens);
}

/* Encodes normalized text between added tokens. is_first: it is where the text begins. */
static zero_status_t encode_part(encoding_t *encoding, bool is_first, const char *text, size_t n_bytes)
{
    const tokenizer_t *tokenizer = encoding->tokenizer;
    const splitter_t *splitter = &tokenizer->splitter;
    if (tokenizer->metaspace.mark)
        return metaspace_run(&tokenizer->metaspace, is_first, text, n_bytes, encode_word, encoding);
    if (n_bytes == 0 || !splitter->adds_space || text[0] == ' ')
        return splitter_run(splitter, 0, text, n_bytes, encode_word, encoding);
    char *spaced = malloc(n_bytes + 1);
    if (!spaced)
        return report_rank_error(ZERO_ERROR_MEMORY, "tokenizer: no memory for %zu bytes", n_bytes);
    spaced[0] = ' ';
    memcpy(spaced + 1, text, n_bytes);
    zero_status_t status = splitter_run(splitter, 0, spaced, n_bytes + 1, encode_word, encoding);
    free(spaced);
    return status;
}

/* Returns the longest added token that the text begins with; NULL: none. */
static const added_token_t *added_at(const tokenizer_t *tokenizer, bool is_normalized, const char *text, size_t n_bytes)
{
    for (size_t i = 0; i < tokenizer->n_added; i++) {
        const added_token_t *added = &tokenizer->added[i];
        if (added->is_normalized == is_normalized && added->content[0] == text[0] && added->n_bytes <= n_bytes &&
            memcmp(added->content, text, added->n_bytes) == 0)
            return added;
    }
    return NULL;
}

typedef zero_status_t (*part_fn)(encoding_t *encoding, bool is_first, const char *text, size_t n_bytes);

/* Cuts text at added tokens, and calls fn on what is between them. */
static zero_status_t cut_at_added(encoding_t *encoding, bool is_normalized, bool is_first, const char *text,
                                  size_t n_bytes, part_fn fn)
{
    const tokenizer_t *tokenizer = encoding->tokenizer;
    bool begins[N_BYTES] = {false};
    size_t done = 0;
    for (size_t i = 0; i < tokenizer->n_added; i++)
        begins[(unsigned char)tokenizer->added[i].content[0]] |= tokenizer->added[i].is_normalized == is_normalized;
    for (size_t i = 0; i < n_bytes;) {
        const bool may_begin = begins[(unsigned char)text[i]];
        const added_token_t *added = may_begin ? added_at(tokenizer, is_normalized, text + i, n_bytes - i) : NULL;
        if (!added) {
            i++;
            continue;
        }
        ZERO_TRY(fn(encoding, is_first && done == 0, text + done, i - done));
        ZERO_TRY(tokens_add(encoding->tokens, added->id));
        i += added->n_bytes;
        done = i;
    }
    return fn(encoding, is_first && done == 0, text + done, n_bytes - done);
}

static zero_status_t normalize_part(encoding_t *encoding, bool is_first, const char *text, size_t n_bytes)
{
    char *normalized;
    size_t n_normalized;
    ZERO_TRY(normalizer_run(&encoding->tokenizer->normalizer, text, n_bytes, &normalized, &n_normalized));
    zero_status_t status = cut_at_added(encoding, true, is_first, normalized, n_normalized, encode_part);
    free(normalized);
    return status;
}

zero_status_t tokenizer_encode(const tokenizer_t *tokenizer, const char *text, size_t n_bytes, bool with_special,
                               tokens_t *tokens)
{
    encoding_t encoding = {.tokenizer = tokenizer, .tokens = tokens};
    for (size_t i = 0; with_special && i < tokenizer->n_before; i++)
        ZERO_TRY(tokens_add(tokens, tokenizer->before[i]));
    if (tokenizer->tokens_are_bytes) {
        for (size_t i = 0; i < n_bytes; i++)
            ZERO_TRY(tokens_add(tokens, (unsigned char)text[i]));
        return ZERO_OK;
    }
    size_t n_repaired;
    char *repaired = utf8_repaired(text, n_bytes, &n_repaired);
    if (!repaired)
        return report_rank_error(ZERO_ERROR_MEMORY, "tokenizer: no memory for %zu bytes", n_bytes);
    zero_status_t status = cut_at_added(&encoding, false, true, repaired, n_repaired, normalize_part);
    free(repaired);
    return status;
}

/* ---- decoding ---- */

const char *tokenizer_bytes(const tokenizer_t *tokenizer, int32_t token, size_t *n_bytes)
{
    const bpe_t *bpe = &tokenizer->bpe;
    const bpe_token_t *texts = tokenizer->texts ? tokenizer->texts : bpe->tokens;
    bool exists = token >= 0 && (size_t)token < bpe->n_tokens && texts[token].bytes;
    *n_bytes = exists ? texts[token].n_bytes : 0;
    return exists ? texts[token].bytes : "";
}

size_t tokenizer_text_bytes(const tokenizer_t *tokenizer, int32_t token, bool begins)
{
    size_t n_bytes;
    for (size_t i = 0; i < tokenizer->n_added; i++)
        if (tokenizer->added[i].id == token && tokenizer->added[i].is_special)
            return 0;
    const char *text = tokenizer_bytes(tokenizer, token, &n_bytes);
    return n_bytes - (begins && tokenizer->strips_first && n_bytes > 0 && text[0] == ' ');
}
