/* tokenizer_file.c - reads tokenizer.json, as Hugging Face's `tokenizers` writes it: the vocabulary.
 *
 * A byte-level vocabulary writes a token's bytes as characters: printable ones of Latin-1 as they are, the others, in
 * their order, as U+0100 and up (GPT-2's bytes_to_unicode). Others write text, "<0x0A>" for a byte, and a mark for a
 * space.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/status.h"
#include "base/system.h"
#include "train/report/report.h"
#include "train/report/utf8.h"
#include "train/text/tokenizer_parts.h"

/* ---- bytes and characters ---- */

static bool is_itself(int byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
}

static void set_byte_characters(file_t *file)
{
    int next = 256;
    memset(file->byte_of, 0xff, sizeof file->byte_of);
    for (int byte = 0; byte < 256; byte++)
        file->byte_of[is_itself(byte) ? byte : next++] = byte;
}

/* Turns characters into the bytes that they stand for, in place. Returns how many; -1 if one stands for none. */
static int64_t to_bytes(const file_t *file, char *text, size_t n_bytes)
{
    size_t n = 0;
    if (!file->is_of_bytes)
        return (int64_t)n_bytes;
    for (size_t i = 0; i < n_bytes;) {
        uint32_t code;
        i += utf8_read((const unsigned char *)text + i, n_bytes - i, &code);
        if (code >= 512 || file->byte_of[code] < 0)
            return -1;
        text[n++] = (char)file->byte_of[code];
    }
    return (int64_t)n;
}

/* Returns a copy of a text as bytes, for free(); NULL: it stands for none, or there is no memory. */
static char *bytes_of(const file_t *file, const char *text, size_t n_chars, size_t *n_bytes)
{
    char *bytes = malloc(n_chars + 1);
    if (!bytes)
        return NULL;
    memcpy(bytes, text, n_chars);
    int64_t n = to_bytes(file, bytes, n_chars);
    *n_bytes = n < 0 ? 0 : (size_t)n;
    if (n >= 0)
        return bytes;
    free(bytes);
    return NULL;
}

/* ---- the vocabulary ---- */

static zero_status_t take_token(file_t *file, const char *name, const json_t *number)
{
    size_t n_bytes;
    const json_int_t id = json_integer_value(number);
    if (!json_is_integer(number) || id < 0 || id >= file->vocab_size)
        return report_error(ZERO_ERROR_FORMAT,
                            "'%s': token '%.40s' has number %lld, but the model has tokens 0 to %lld", file->path, name,
                            (long long)id, (long long)file->vocab_size - 1);
    char *bytes = bytes_of(file, name, strlen(name), &n_bytes);
    bool added = bytes && n_bytes > 0 && bpe_add_token(&file->tokenizer->bpe, (int32_t)id, bytes, n_bytes);
    free(bytes);
    if (!added)
        return report_error(ZERO_ERROR_FORMAT, "'%s': token %lld, '%.40s', is %s", file->path, (long long)id, name,
                            file->is_of_bytes ? "there twice or not made of byte characters: this is no byte-level "
                                                "vocabulary"
                                              : "there twice or empty");
    return ZERO_OK;
}

static int32_t find_token(const file_t *file, const char *left, size_t n_left, const char *right, size_t n_right)
{
    char *both = malloc(n_left + n_right + 1);
    int32_t token = -1;
    if (both) {
        memcpy(both, left, n_left);
        memcpy(both + n_left, right, n_right);
        int64_t n = to_bytes(file, both, n_left + n_right);
        token = n > 0 ? bpe_find(&file->tokenizer->bpe, both, (size_t)n) : -1;
    }
    free(both);
    return token;
}

/* A merge is "left right" or ["left", "right"]. */
static zero_status_t take_merge(file_t *file, const json_t *merge)
{
    const char *left = json_string_value(merge), *right = NULL, *space = left ? strchr(left, ' ') : NULL;
    size_t n_left = space ? (size_t)(space - left) : 0;
    if (space)
        right = space + 1;
    if (json_is_array(merge) && json_array_size(merge) == 2) {
        left = json_string_value(json_array_get(merge, 0));
        right = json_string_value(json_array_get(merge, 1));
        n_left = left ? strlen(left) : 0;
    }
    if (!left || !right)
        return tokenizer_malformed(file, "one of model.merges");
    int32_t first = find_token(file, left, n_left, "", 0), second = find_token(file, right, strlen(right), "", 0);
    int32_t merged = find_token(file, left, n_left, right, strlen(right));
    if (first < 0 || second < 0 || merged < 0 || !bpe_add_merge(&file->tokenizer->bpe, first, second, merged))
        return report_error(ZERO_ERROR_FORMAT, "'%s': the merge of '%.*s' and '%.40s' is there twice or of no tokens",
                            file->path, (int)(n_left < 40 ? n_left : 40), left, right);
    return ZERO_OK;
}

/* Finds the tokens of bytes and the one for what the vocabulary does not have. */
static zero_status_t take_unknown(file_t *file)
{
    bpe_t *bpe = &file->tokenizer->bpe;
    const char *unknown = tokenizer_text_of(file->model, "unk_token");
    bool has_all = tokenizer_is_set(file->model, "byte_fallback");
    for (int byte = 0; byte < 256 && has_all; byte++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", byte);
        bpe->of_byte[byte] = bpe_find(bpe, name, strlen(name));
        has_all = bpe->of_byte[byte] >= 0;
    }
    if (tokenizer_is_set(file->model, "byte_fallback") && !has_all)
        return tokenizer_malformed(file, "a token of a byte, <0x00> to <0xFF>, which byte_fallback needs,");
    bpe->fuses_unknown = tokenizer_is_set(file->model, "fuse_unk");
    bpe->unknown = unknown ? bpe_find(bpe, unknown, strlen(unknown)) : -1;
    return !unknown || bpe->unknown >= 0 ? ZERO_OK : tokenizer_malformed(file, "the token that unk_token names");
}

/* A dropout of 0.0 drops nothing. */
static bool is_zero(const json_t *value)
{
    return json_is_number(value) && json_number_value(value) == 0.0;
}

static zero_status_t take_model(file_t *file)
{
    /* What may not be set. byte_fallback: a byte-level vocabulary needs none. */
    static const char *const absent[] = {"byte_fallback", "dropout", "continuing_subword_prefix", "end_of_word_suffix"};
    bpe_t *bpe = &file->tokenizer->bpe;
    const char *type = tokenizer_text_of(file->model, "type");
    json_t *vocab = json_object_get(file->model, "vocab"), *merges = json_object_get(file->model, "merges"), *value;
    const char *name;
    size_t i;
    if (!type || strcmp(type, "BPE") != 0)
        return tokenizer_refuse(file, "model.type", type, "BPE");
    for (size_t k = file->is_of_bytes ? 0 : 1; k < sizeof absent / sizeof absent[0]; k++)
        if (tokenizer_is_set(file->model, absent[k]) && !is_zero(json_object_get(file->model, absent[k])))
            return tokenizer_refuse(file, "model", absent[k], "BPE without it, here");
    if (!json_is_object(vocab) || !json_is_array(merges))
        return tokenizer_malformed(file, "model.vocab or model.merges");
    ZERO_TRY(bpe_create((size_t)file->vocab_size, json_array_size(merges), bpe));
    bpe->takes_whole_words = json_is_true(json_object_get(file->model, "ignore_merges"));
    bpe->is_of_chars = !file->is_of_bytes;
    json_object_foreach(vocab, name, value) ZERO_TRY(take_token(file, name, value));
    json_array_foreach(merges, i, value) ZERO_TRY(take_merge(file, value));
    return file->is_of_bytes ? ZERO_OK : take_unknown(file);
}

/* ---- added tokens ---- */

static int by_length(const void *a, const void *b)
{
    size_t length_a = ((const added_token_t *)a)->n_bytes, length_b = ((const added_token_t *)b)->n_bytes;
    return (length_a < length_b) - (length_a > length_b);
}

/* Returns whether an added token that was taken before has this content. */
static bool is_added(const tokenizer_t *tokenizer, const char *content)
{
    for (size_t i = 0; i < tokenizer->n_added; i++) {
        const bpe_token_t *token = &tokenizer->bpe.tokens[tokenizer->added[i].id];
        if (token->n_bytes == strlen(content) && memcmp(token->bytes, content, token->n_bytes) == 0)
            return true;
    }
    return false;
}

/* Adds a token whose number the vocabulary does not have. It may stand for the same bytes as a token that is written
 * otherwise there: "  " beside the vocabulary's "\u0120\u0120". Text becomes the added one. */
static bool add_content(const file_t *file, int32_t id, const char *content)
{
    bpe_t *bpe = &file->tokenizer->bpe;
    const size_t n_bytes = strlen(content);
    if (bpe_find(bpe, content, n_bytes) < 0)
        return bpe_add_token(bpe, id, content, n_bytes);
    return find_token(file, content, n_bytes, "", 0) < 0 && !is_added(file->tokenizer, content) &&
           bpe_add_unfindable(bpe, id, content, n_bytes);
}

static zero_status_t take_added(file_t *file, const json_t *entry)
{
    static const char *const flags[] = {"single_word", "lstrip", "rstrip"};
    tokenizer_t *tokenizer = file->tokenizer;
    const json_t *number = json_object_get(entry, "id");
    const char *content = tokenizer_text_of(entry, "content");
    const json_int_t id = json_integer_value(number);
    if (!content || !content[0] || !json_is_integer(number) || id < 0 || id >= file->vocab_size)
        return tokenizer_malformed(file, "one of added_tokens, or its number is none of the model's,");
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if (tokenizer_is_set(entry, flags[i]))
            return tokenizer_refuse(file, "an added token", flags[i], "tokens without it");
    if (!tokenizer->bpe.tokens[id].bytes && !add_content(file, (int32_t)id, content))
        return tokenizer_malformed(file, "one of added_tokens, which is there twice or");
    const normalizer_t as_it_is = {0};
    added_token_t *added = &tokenizer->added[tokenizer->n_added];
    *added = (added_token_t){.id = (int32_t)id,
                             .is_special = json_is_true(json_object_get(entry, "special")),
                             .is_normalized = json_is_true(json_object_get(entry, "normalized"))};
    ZERO_TRY(normalizer_run(added->is_normalized ? &tokenizer->normalizer : &as_it_is, content, strlen(content),
                            &added->content, &added->n_bytes));
    tokenizer->n_added++;
    return added->n_bytes > 0 ? ZERO_OK : tokenizer_malformed(file, "one of added_tokens");
}

static zero_status_t take_all_added(file_t *file)
{
    const json_t *list = json_object_get(file->root, "added_tokens");
    tokenizer_t *tokenizer = file->tokenizer;
    tokenizer->added = calloc(json_array_size(list) + 1, sizeof *tokenizer->added);
    if (!tokenizer->added)
        return report_rank_error(ZERO_ERROR_MEMORY, "tokenizer: no memory");
    for (size_t i = 0; i < json_array_size(list); i++)
        ZERO_TRY(take_added(file, json_array_get(list, i)));
    qsort(tokenizer->added, tokenizer->n_added, sizeof *tokenizer->added, by_length);
    return ZERO_OK;
}

/* ---- what tokens stand for ---- */

/* Returns the byte that "<0x0A>" stands for; -1: it stands for itself. */
static int byte_of_name(const bpe_token_t *token)
{
    static const char digits[] = "0123456789ABCDEFabcdef";
    const char *name = token->bytes;
    const bool is_byte =
        token->n_bytes == 6 && memcmp(name, "<0x", 3) == 0 && name[5] == '>' && strspn(name + 3, digits) == 2;
    return is_byte ? (int)strtol(name + 3, NULL, 16) : -1;
}

static zero_status_t decode_token(const file_t *file, const bpe_token_t *token, bpe_token_t *text)
{
    const int byte = file->joins_bytes ? byte_of_name(token) : -1;
    const char one = (char)byte;
    text->bytes = byte < 0 ? normalize_replaced(token->bytes, token->n_bytes, file->mark, file->space, &text->n_bytes)
                           : normalize_replaced(&one, 1, NULL, NULL, &text->n_bytes);
    return text->bytes ? ZERO_OK : report_rank_error(ZERO_ERROR_MEMORY, "tokenizer: no memory for a token");
}

/* Decodes every token once, since what is printed and counted is text. */
static zero_status_t decode_all(file_t *file)
{
    tokenizer_t *tokenizer = file->tokenizer;
    const bpe_t *bpe = &tokenizer->bpe;
    tokenizer->texts = calloc(bpe->n_tokens + 1, sizeof *tokenizer->texts);
    if (!tokenizer->texts)
        return report_rank_error(ZERO_ERROR_MEMORY, "tokenizer: no memory for %zu tokens", bpe->n_tokens);
    for (size_t i = 0; i < bpe->n_tokens; i++)
        if (bpe->tokens[i].bytes)
            ZERO_TRY(decode_token(file, &bpe->tokens[i], &tokenizer->texts[i]));
    return ZERO_OK;
}

/* `truncation` and `padding`, which training scripts leave in a file, are for batches: no text here is cut or filled.
 */
static zero_status_t take_all(file_t *file)
{
    ZERO_TRY(tokenizer_read_forms(file));
    ZERO_TRY(take_model(file));
    ZERO_TRY(take_all_added(file));
    ZERO_TRY(tokenizer_read_splits(file));
    return file->is_of_bytes ? ZERO_OK : decode_all(file);
}

/* Reads the JSON of a regular file: a pipe might be waited for. */
static zero_status_t load(const char *path, json_t **root)
{
    json_error_t error;
    struct stat info;
    int fd = ZERO_RETRY(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    if (fd < 0)
        return report_error(ZERO_ERROR_FORMAT, "cannot read '%s': %s", path, strerror(errno));
    bool is_file = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
    *root = is_file ? json_loadfd(fd, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error) : NULL;
    close(fd);
    if (!is_file)
        return report_error(ZERO_ERROR_USAGE, "cannot read '%s': it is not a regular file", path);
    return *root ? ZERO_OK : report_error(ZERO_ERROR_FORMAT, "'%s': %s in line %d", path, error.text, error.line);
}

zero_status_t tokenizer_read_file(const char *path, int64_t vocab_size, tokenizer_t *tokenizer)
{
    json_t *root = NULL;
    ZERO_TRY(load(path, &root));
    file_t file = {.path = path,
                   .vocab_size = vocab_size,
                   .root = root,
                   .model = json_object_get(root, "model"),
                   .tokenizer = tokenizer,
                   .is_of_bytes = true};
    set_byte_characters(&file);
    zero_status_t status = json_is_object(file.model) ? take_all(&file) : tokenizer_malformed(&file, "model");
    json_decref(root);
    return status;
}
