/* ends_of_text.c - see ends_of_text.h. */
#include "train/hub/ends_of_text.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* Returns a file as JSON; NULL: it is not there, or no JSON. */
static json_t *load(const model_files_t *files, const char *name, size_t flags)
{
    for (int i = 0; i < files->n_files; i++)
        if (strcmp(files->files[i].name, name) == 0)
            return json_loadb(files->files[i].data, files->files[i].n_bytes, JSON_ALLOW_NUL | flags, NULL);
    return NULL;
}

/* Returns the number of a token; NULL: the tokenizer has none of this text. */
static json_t *number_of(const json_t *tokenizer, const char *text)
{
    const json_t *added = json_object_get(tokenizer, "added_tokens");
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *token = json_array_get(added, i);
        const char *content = json_string_value(json_object_get(token, "content"));
        if (content && strcmp(content, text) == 0)
            return json_object_get(token, "id");
    }
    return json_object_get(json_object_get(json_object_get(tokenizer, "model"), "vocab"), text);
}

/* Returns the number of the token that a file names by its text, which may be in an object. */
static json_t *named_by_text(const json_t *names, const char *key, const json_t *tokenizer)
{
    const json_t *name = json_object_get(names, key);
    const char *text = json_string_value(json_is_object(name) ? json_object_get(name, "content") : name);
    return text && text[0] ? number_of(tokenizer, text) : NULL;
}

void ends_of_text_name(const model_files_t *files, char **config)
{
    static const struct {
        const char *id, *token;
    } ENDS[] = {{"bos_token_id", "bos_token"}, {"eos_token_id", "eos_token"}};
    json_t *generation = load(files, "generation_config.json", 0), *tokenizer = load(files, "tokenizer.json", 0);
    /* Of these only texts are used. transformers writes a model_max_length that fits no integer: 10^30. */
    json_t *settings = load(files, "tokenizer_config.json", JSON_DECODE_INT_AS_REAL);
    json_t *map = load(files, "special_tokens_map.json", JSON_DECODE_INT_AS_REAL);
    json_t *json = json_loads(*config, 0, NULL);
    for (size_t i = 0; i < sizeof ENDS / sizeof ENDS[0]; i++) {
        json_t *id = json_object_get(generation, ENDS[i].id);
        if (!json_is_integer(id) && !json_is_array(id))
            id = named_by_text(settings, ENDS[i].token, tokenizer);
        if (!id)
            id = named_by_text(map, ENDS[i].token, tokenizer);
        if (json_is_integer(id) || json_is_array(id))
            json_object_set(json, ENDS[i].id, id);
    }
    char *text = json ? json_dumps(json, JSON_SORT_KEYS | JSON_INDENT(2)) : NULL;
    if (text) {
        free(*config);
        *config = text;
    }
    json_decref(generation);
    json_decref(tokenizer);
    json_decref(settings);
    json_decref(map);
    json_decref(json);
}
