/* tokenizer_parts.c - reads what tokenizer.json does to text around the model: normalizer, pre-tokenizer,
 * post-processor, decoder. Each is one part or a Sequence of them; a part that is not implemented is refused by its
 * name. A decoder tells what kind of vocabulary it is: bytes written as characters, or text. */
#include "train/text/tokenizer_parts.h"

#include <stdlib.h>
#include <string.h>

#include "train/report/report.h"
#include "train/text/normalize.h"

/* ---- tokenizer json ---- */

zero_status_t tokenizer_malformed(const file_t *file, const char *what)
{
    return report_error(ZERO_ERROR_FORMAT,
                        "'%s': %s is missing or of the wrong kind: copy the model's tokenizer.json anew", file->path,
                        what);
}

zero_status_t tokenizer_refuse(const file_t *file, const char *what, const char *name, const char *wanted)
{
    return report_error(ZERO_ERROR_USAGE, "'%s': %s is %.60s, which zerotrain does not implement; it reads %s",
                        file->path, what, name ? name : "malformed", wanted);
}

const char *tokenizer_text_of(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

bool tokenizer_is_set(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return value && !json_is_null(value) && !json_is_false(value) &&
           !(json_is_string(value) && !json_string_length(value));
}

/* ---- tokenizer parts ---- */

typedef zero_status_t (*part_fn)(file_t *file, const json_t *part, const char *type, bool is_alone);

/* Calls fn on a part of the file, or on each of those that a Sequence lists under `list`. */
static zero_status_t for_each_part(file_t *file, const char *name, const char *list, part_fn fn)
{
    const json_t *part = json_object_get(file->root, name);
    if (!part || json_is_null(part))
        return ZERO_OK;
    const char *type = tokenizer_text_of(part, "type");
    if (!type)
        return tokenizer_malformed(file, name);
    if (strcmp(type, "Sequence") != 0)
        return fn(file, part, type, true);
    const json_t *parts = json_object_get(part, list);
    if (!json_is_array(parts))
        return tokenizer_malformed(file, name);
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const char *inner = tokenizer_text_of(json_array_get(parts, i), "type");
        if (!inner)
            return tokenizer_malformed(file, name);
        ZERO_TRY(fn(file, json_array_get(parts, i), inner, json_array_size(parts) == 1));
    }
    return ZERO_OK;
}

static zero_status_t take_normalizer(file_t *file, const json_t *part, const char *type, bool is_alone)
{
    const char *from = tokenizer_text_of(json_object_get(part, "pattern"), "String");
    const char *to = tokenizer_text_of(part, strcmp(type, "Prepend") == 0 ? "prepend" : "content");
    normalizer_t *normalizer = &file->tokenizer->normalizer;
    (void)is_alone;
    if (strcmp(type, "NFC") == 0 && !normal_form_is_there())
        return report_error(ZERO_ERROR_USAGE,
                            "'%s': this build cannot compose characters for the normalizer NFC: install "
                            "libutf8proc-dev and build zerotrain again",
                            file->path);
    if (strcmp(type, "NFC") == 0)
        return normalizer_add(normalizer, file->path, NULL, NULL);
    if (strcmp(type, "Prepend") == 0 && to)
        return normalizer_add(normalizer, file->path, NULL, to);
    if (strcmp(type, "Replace") != 0)
        return tokenizer_refuse(file, "normalizer", type, "NFC, Prepend and Replace");
    if (!from || !from[0] || !to)
        return tokenizer_refuse(file, "normalizer", "a Replace of a pattern", "that of a String");
    return normalizer_add(normalizer, file->path, from, to);
}

/* Returns whether a normalizer leaves none of this text. */
static bool is_replaced(const file_t *file, const char *text)
{
    const normalizer_t *normalizer = &file->tokenizer->normalizer;
    const normalize_step_t *last = normalizer->n_steps > 0 ? &normalizer->steps[normalizer->n_steps - 1] : NULL;
    return last && last->from && strcmp(last->from, text) == 0 && !strstr(last->to, text);
}

static zero_status_t take_split(file_t *file, const json_t *part)
{
    const char *pattern = tokenizer_text_of(json_object_get(part, "pattern"), "Regex");
    const char *string = tokenizer_text_of(json_object_get(part, "pattern"), "String");
    const char *behavior = tokenizer_text_of(part, "behavior");
    if (string && is_replaced(file, string)) /* Gemma splits at spaces when there are none */
        return ZERO_OK;
    if (!behavior || strcmp(behavior, "Isolated") != 0)
        return tokenizer_refuse(file, "the behavior of a Split", behavior, "Isolated");
    if (tokenizer_is_set(part, "invert") || !pattern)
        return tokenizer_refuse(file, "a Split", pattern ? "invert" : "without a Regex", "patterns as they are");
    return splitter_add(&file->tokenizer->splitter, file->path, pattern);
}

static bool get_prefix(const json_t *part, metaspace_prefix_t *prefix)
{
    static const char *const names[] = {
        [METASPACE_NEVER] = "never", [METASPACE_FIRST] = "first", [METASPACE_ALWAYS] = "always"};
    const char *name = tokenizer_text_of(part, "prepend_scheme");
    const json_t *old = json_object_get(part, "add_prefix_space"); /* of older files */
    *prefix = json_is_false(old) ? METASPACE_NEVER : METASPACE_ALWAYS;
    for (int i = 0; name && i <= METASPACE_ALWAYS; i++) {
        *prefix = (metaspace_prefix_t)i;
        if (strcmp(name, names[i]) == 0)
            return true;
    }
    return !name;
}

static zero_status_t take_metaspace(file_t *file, const json_t *part)
{
    metaspace_t *metaspace = &file->tokenizer->metaspace;
    const char *mark = tokenizer_text_of(part, "replacement");
    if (!mark || !mark[0] || !get_prefix(part, &metaspace->prefix))
        return tokenizer_malformed(file, "replacement or prepend_scheme of Metaspace");
    metaspace->splits = !json_is_false(json_object_get(part, "split"));
    metaspace->mark = strdup(mark);
    return metaspace->mark ? ZERO_OK : report_rank_error(ZERO_ERROR_MEMORY, "tokenizer: no memory");
}

static zero_status_t take_pre_tokenizer(file_t *file, const json_t *part, const char *type, bool is_alone)
{
    splitter_t *splitter = &file->tokenizer->splitter;
    const json_t *use_regex = json_object_get(part, "use_regex");
    if (file->splits_into_bytes)
        return tokenizer_refuse(file, "pre_tokenizer", "a step behind ByteLevel, which sees its characters for bytes,",
                                "ByteLevel as the last step");
    if (strcmp(type, "Split") == 0)
        return take_split(file, part);
    if (strcmp(type, "Metaspace") == 0 && is_alone && !file->is_of_bytes)
        return take_metaspace(file, part);
    if (strcmp(type, "Digits") == 0)
        return splitter_add(splitter, file->path, tokenizer_is_set(part, "individual_digits") ? "\\p{N}" : "\\p{N}+");
    if (strcmp(type, "ByteLevel") != 0 || !file->is_of_bytes)
        return tokenizer_refuse(file, "pre_tokenizer", type,
                                file->is_of_bytes ? "ByteLevel, Split and Digits"
                                                  : "Metaspace alone, Split and Digits with such a decoder");
    file->splits_into_bytes = true;
    splitter->adds_space = tokenizer_is_set(part, "add_prefix_space");
    if (splitter->adds_space && !is_alone)
        return tokenizer_refuse(file, "pre_tokenizer", "add_prefix_space behind another step",
                                "it in a ByteLevel alone");
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
            return tokenizer_malformed(file, "a number of post_processor.special_tokens");
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
        return tokenizer_refuse(file, "post_processor", type, "TemplateProcessing and ByteLevel");
    for (size_t i = 0; i < json_array_size(template); i++) {
        const json_t *piece = json_array_get(template, i);
        const char *special = tokenizer_text_of(json_object_get(piece, "SpecialToken"), "id");
        if (special && is_behind)
            return tokenizer_refuse(file, "post_processor", "a special token behind the text", "tokens before it");
        if (special)
            ZERO_TRY(take_special(file, part, special));
        else
            is_behind = true;
    }
    return ZERO_OK;
}

/* ---- decoders ---- */

static zero_status_t take_byte_level(file_t *file, const json_t *part)
{
    (void)part;
    file->is_of_bytes = true;
    return ZERO_OK;
}

static zero_status_t take_replacement(file_t *file, const json_t *part)
{
    file->mark = tokenizer_text_of(json_object_get(part, "pattern"), "String");
    file->space = tokenizer_text_of(part, "content");
    if (!file->mark || !file->mark[0] || !file->space || !file->space[0])
        return tokenizer_refuse(file, "decoder", "a Replace of a pattern or by nothing", "that of a String");
    return ZERO_OK;
}

static zero_status_t take_byte_fallback(file_t *file, const json_t *part)
{
    (void)part;
    file->joins_bytes = true;
    return ZERO_OK;
}

static zero_status_t take_fuse(file_t *file, const json_t *part)
{
    (void)file;
    (void)part;
    return ZERO_OK;
}

static zero_status_t take_strip(file_t *file, const json_t *part)
{
    const char *content = tokenizer_text_of(part, "content");
    const json_int_t start = json_integer_value(json_object_get(part, "start"));
    if (!content || strcmp(content, " ") != 0 || start > 1 || json_integer_value(json_object_get(part, "stop")) != 0)
        return tokenizer_refuse(file, "decoder", "a Strip of more", "that of one space at the start");
    file->tokenizer->strips_first = start == 1;
    return ZERO_OK;
}

static zero_status_t take_decoder(file_t *file, const json_t *part, const char *type, bool is_alone)
{
    static const struct {
        const char *type;
        zero_status_t (*take)(file_t *file, const json_t *part);
    } steps[] = {[DECODER_NONE] = {"ByteLevel", take_byte_level},
                 [DECODER_REPLACE] = {"Replace", take_replacement},
                 [DECODER_BYTE_FALLBACK] = {"ByteFallback", take_byte_fallback},
                 [DECODER_FUSE] = {"Fuse", take_fuse},
                 [DECODER_STRIP] = {"Strip", take_strip}};
    int step = is_alone && strcmp(type, "ByteLevel") == 0 ? DECODER_NONE : DECODER_REPLACE;
    while (step <= DECODER_STRIP && strcmp(type, steps[step].type) != 0)
        step++;
    if (step > DECODER_STRIP || (step > 0 && step <= (int)file->decoder_step))
        return tokenizer_refuse(file, "decoder", type,
                                "ByteLevel; or Replace, ByteFallback, Fuse, Strip in this order");
    file->decoder_step = (decoder_step_t)step;
    file->is_of_bytes = false;
    return steps[step].take(file, part);
}

zero_status_t tokenizer_read_forms(file_t *file)
{
    ZERO_TRY(for_each_part(file, "normalizer", "normalizers", take_normalizer));
    return for_each_part(file, "decoder", "decoders", take_decoder);
}

zero_status_t tokenizer_read_splits(file_t *file)
{
    ZERO_TRY(for_each_part(file, "pre_tokenizer", "pretokenizers", take_pre_tokenizer));
    if (file->is_of_bytes && !file->splits_into_bytes)
        return tokenizer_refuse(file, "pre_tokenizer", "without ByteLevel, though the decoder has it",
                                "both or none of them");
    return for_each_part(file, "post_processor", "processors", take_post_processor);
}
