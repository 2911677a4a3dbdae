/* tokenizer_file.c - reads tokenizer.json, as Hugging Face's `tokenizers` writes it.
 *
 * The vocabulary writes a token's bytes as characters: printable ones of Latin-1 as they are, the others, in their
 * order, as U+0100 and up (GPT-2's bytes_to_unicode).
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "train/report/report.h"
#include "train/tokenizer/tokenizer_state.h"
#include "train/tokenizer/utf8.h"

typedef struct file {
    const char *path;
    int64_t vocab_size;
    const json_t *root, *model;
    tokenizer_t *tokenizer;
    int32_t byte_of[512]; /* of the characters that stand for bytes; -1: none */
} file_t;

static zero_status_t malformed(const file_t *file, const char *what)
{
    return report_error(ZERO_ERROR_FORMAT, "'%s': %s is missing or not what it should be", file->path, what);
}

/* Refuses what is not implemented, by its name. */
static zero_status_t refuse(const file_t *file, const char *what, const char *name, const char *wanted)
{
    return report_error(ZERO_ERROR_USAGE, "'%s': %s is %.60s, which zerotrain does not implement; it reads %s",
                        file->path, what, name ? name : "malformed", wanted);
}

static const char *text_of(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

static bool is_set(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return value && !json_is_null(value) && !json_is_false(value) &&
           !(json_is_string(value) && !json_string_length(value));
}

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
        return report_error(ZERO_ERROR_FORMAT,
                            "'%s': token %lld, '%.40s', is there twice or not made of byte characters: this is no "
                            "byte-level vocabulary",
                            file->path, (long long)id, name);
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
        return malformed(file, "one of model.merges");
    int32_t first = find_token(file, left, n_left, "", 0), second = find_token(file, right, strlen(right), "", 0);
    int32_t merged = find_token(file, left, n_left, right, strlen(right));
    if (first < 0 || second < 0 || merged < 0 || !bpe_add_merge(&file->tokenizer->bpe, first, second, merged))
        return report_error(ZERO_ERROR_FORMAT, "'%s': the merge of '%.*s' and '%.40s' is there twice or of no tokens",
                            file->path, (int)(n_left < 40 ? n_left : 40), left, right);
    return ZERO_OK;
}

/* What model may ask for beside vocabulary and merges: nothing that is set. */
static const char *const UNKNOWN_IN_MODEL[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix",
                                               "byte_fallback"};

static zero_status_t take_model(file_t *file)
{
    const char *type = text_of(file->model, "type");
    json_t *vocab = json_object_get(file->model, "vocab"), *merges = json_object_get(file->model, "merges"), *value;
    const char *name;
    size_t i;
    if (!type || strcmp(type, "BPE") != 0)
        return refuse(file, "model.type", type, "BPE");
    for (size_t k = 0; k < sizeof UNKNOWN_IN_MODEL / sizeof UNKNOWN_IN_MODEL[0]; k++)
        if (is_set(file->model, UNKNOWN_IN_MODEL[k]))
            return refuse(file, "model", UNKNOWN_IN_MODEL[k], "byte-level BPE alone");
    if (!json_is_object(vocab) || !json_is_array(merges))
        return malformed(file, "model.vocab or model.merges");
    TRY(bpe_create((size_t)file->vocab_size, json_array_size(merges), &file->tokenizer->bpe));
    file->tokenizer->bpe.takes_whole_words = json_is_true(json_object_get(file->model, "ignore_merges"));
    json_object_foreach(vocab, name, value) TRY(take_token(file, name, value));
    json_array_foreach(merges, i, value) TRY(take_merge(file, value));
    return ZERO_OK;
}

/* ---- added tokens ---- */

static int by_length(const void *a, const void *b)
{
    size_t length_a = ((const added_token_t *)a)->n_bytes, length_b = ((const added_token_t *)b)->n_bytes;
    return (length_a < length_b) - (length_a > length_b);
}

static zero_status_t take_added(file_t *file, const json_t *entry)
{
    static const char *const flags[] = {"single_word", "lstrip", "rstrip"};
    tokenizer_t *tokenizer = file->tokenizer;
    const json_t *number = json_object_get(entry, "id");
    const char *content = text_of(entry, "content");
    const json_int_t id = json_integer_value(number);
    if (!content || !content[0] || !json_is_integer(number) || id < 0 || id >= file->vocab_size)
        return malformed(file, "one of added_tokens, or its number is none of the model's,");
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if (is_set(entry, flags[i]))
            return refuse(file, "an added token", flags[i], "tokens without it");
    bpe_token_t *token = &tokenizer->bpe.tokens[id];
    if (!token->bytes && !bpe_add_token(&tokenizer->bpe, (int32_t)id, content, strlen(content)))
        return malformed(file, "one of added_tokens, which is there twice or");
    added_token_t *added = &tokenizer->added[tokenizer->n_added];
    *added = (added_token_t){.content = strdup(content),
                             .n_bytes = strlen(content),
                             .id = (int32_t)id,
                             .is_special = json_is_true(json_object_get(entry, "special"))};
    if (!added->content)
        return report_rank_error(ZERO_ERROR_MEMORY, "tokenizer: no memory");
    tokenizer->n_added++;
    return ZERO_OK;
}

static zero_status_t take_all_added(file_t *file)
{
    const json_t *list = json_object_get(file->root, "added_tokens");
    tokenizer_t *tokenizer = file->tokenizer;
    tokenizer->added = calloc(json_array_size(list) + 1, sizeof *tokenizer->added);
    if (!tokenizer->added)
        return report_rank_error(ZERO_ERROR_MEMORY, "tokenizer: no memory");
    for (size_t i = 0; i < json_array_size(list); i++)
        TRY(take_added(file, json_array_get(list, i)));
    qsort(tokenizer->added, tokenizer->n_added, sizeof *tokenizer->added, by_length);
    return ZERO_OK;
}

/* ---- what is done to text ---- */

typedef zero_status_t (*part_fn)(file_t *file, const json_t *part, const char *type, bool is_alone);

/* Calls fn on a part of the file, or on each of those that a Sequence lists under `list`. */
static zero_status_t for_each_part(file_t *file, const char *name, const char *list, part_fn fn)
{
    const json_t *part = json_object_get(file->root, name);
    if (!part || json_is_null(part))
        return ZERO_OK;
    const char *type = text_of(part, "type");
    if (!type)
        return malformed(file, name);
    if (strcmp(type, "Sequence") != 0)
        return fn(file, part, type, true);
    const json_t *parts = json_object_get(part, list);
    if (!json_is_array(parts))
        return malformed(file, name);
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const char *inner = text_of(json_array_get(parts, i), "type");
        if (!inner)
            return malformed(file, name);
        TRY(fn(file, json_array_get(parts, i), inner, json_array_size(parts) == 1));
    }
    return ZERO_OK;
}

static zero_status_t take_normalizer(file_t *file, const json_t *part, const char *type, bool is_alone)
{
    (void)part;
    (void)is_alone;
    if (strcmp(type, "NFC") != 0)
        return refuse(file, "normalizer", type, "NFC or none");
    file->tokenizer->needs_nfc = true;
    return ZERO_OK;
}

static zero_status_t take_split(file_t *file, const json_t *part)
{
    const char *pattern = text_of(json_object_get(part, "pattern"), "Regex"), *behavior = text_of(part, "behavior");
    if (!behavior || strcmp(behavior, "Isolated") != 0)
        return refuse(file, "the behavior of a Split", behavior, "Isolated");
    if (is_set(part, "invert") || !pattern)
        return refuse(file, "a Split", pattern ? "invert" : "without a Regex", "patterns as they are");
    return splitter_add(&file->tokenizer->splitter, file->path, pattern);
}

static zero_status_t take_pre_tokenizer(file_t *file, const json_t *part, const char *type, bool is_alone)
{
    splitter_t *splitter = &file->tokenizer->splitter;
    const json_t *use_regex = json_object_get(part, "use_regex");
    if (strcmp(type, "Split") == 0)
        return take_split(file, part);
    if (strcmp(type, "Digits") == 0)
        return splitter_add(splitter, file->path, is_set(part, "individual_digits") ? "\\p{N}" : "\\p{N}+");
    if (strcmp(type, "ByteLevel") != 0)
        return refuse(file, "pre_tokenizer", type, "ByteLevel, Split and Digits");
    splitter->adds_space = is_set(part, "add_prefix_space");
    if (splitter->adds_space && !is_alone)
        return refuse(file, "pre_tokenizer", "add_prefix_space behind another step", "it in a ByteLevel alone");
    return use_regex && json_is_false(use_regex) ? ZERO_OK : splitter_add(splitter, file->path, SPLIT_GPT2);
}

/* Adds the numbers of a special token that a template puts before the text. */
static zero_status_t take_special(file_t *file, const json_t *processor, const char *name)
{
    tokenizer_t *tokenizer = file->tokenizer;
    const json_t *ids = json_object_get(json_object_get(json_object_get(processor, "special_tokens"), name), "ids");
    size_t n = json_array_size(ids);
    int32_t *before = realloc(tokenizer->before, (tokenizer->n_before + n + 1) * sizeof *before);
    if (!before)
        return report_rank_error(ZERO_ERROR_MEMORY, "tokenizer: no memory");
    tokenizer->before = before;
    for (size_t i = 0; i < n; i++) {
        json_int_t id = json_integer_value(json_array_get(ids, i));
        if (id < 0 || id >= file->vocab_size)
            return malformed(file, "a number of post_processor.special_tokens");
        before[tokenizer->n_before++] = (int32_t)id;
    }
    return ZERO_OK;
}

static zero_status_t take_post_processor(file_t *file, const json_t *part, const char *type, bool is_alone)
{
    const json_t *template = json_object_get(part, "single");
    bool is_behind = false;
    (void)is_alone;
    if (strcmp(type, "ByteLevel") == 0) /* it changes offsets alone */
        return ZERO_OK;
    if (strcmp(type, "TemplateProcessing") != 0)
        return refuse(file, "post_processor", type, "TemplateProcessing and ByteLevel");
    for (size_t i = 0; i < json_array_size(template); i++) {
        const json_t *piece = json_array_get(template, i);
        const char *special = text_of(json_object_get(piece, "SpecialToken"), "id");
        if (special && is_behind)
            return refuse(file, "post_processor", "a special token behind the text", "tokens before it");
        if (special)
            TRY(take_special(file, part, special));
        else
            is_behind = true;
    }
    return ZERO_OK;
}

static zero_status_t take_decoder(file_t *file, const json_t *part, const char *type, bool is_alone)
{
    (void)part;
    if (strcmp(type, "ByteLevel") != 0 || !is_alone)
        return refuse(file, "decoder", type, "ByteLevel");
    return ZERO_OK;
}

static zero_status_t take_all(file_t *file)
{
    static const char *const absent[] = {"truncation", "padding"};
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++)
        if (is_set(file->root, absent[i]))
            return refuse(file, "the file", absent[i], "files without it");
    TRY(for_each_part(file, "normalizer", "normalizers", take_normalizer));
    TRY(take_model(file));
    TRY(take_all_added(file));
    TRY(for_each_part(file, "decoder", "decoders", take_decoder));
    TRY(for_each_part(file, "pre_tokenizer", "pretokenizers", take_pre_tokenizer));
    return for_each_part(file, "post_processor", "processors", take_post_processor);
}

zero_status_t tokenizer_read_file(const char *path, int64_t vocab_size, tokenizer_t *tokenizer)
{
    json_error_t error;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (!root)
        return report_error(ZERO_ERROR_FORMAT, "'%s': %s in line %d", path, error.text, error.line);
    file_t file = {.path = path,
                   .vocab_size = vocab_size,
                   .root = root,
                   .model = json_object_get(root, "model"),
                   .tokenizer = tokenizer};
    set_byte_characters(&file);
    zero_status_t status = json_is_object(file.model) ? take_all(&file) : malformed(&file, "model");
    json_decref(root);
    return status;
}
