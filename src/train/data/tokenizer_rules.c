/* tokenizer_rules.c - see tokenizer_rules.h. */
#include "train/data/tokenizer_rules.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

typedef struct hashing {
    XXH3_state_t *state;
    bool failed; /* no memory */
} hashing_t;

static void add_bytes(hashing_t *h, const void *bytes, size_t n)
{
    h->failed |= XXH3_64bits_update(h->state, bytes, n) == XXH_ERROR;
}

static void add_string(hashing_t *h, const char *text, size_t n)
{
    char head[32];
    add_bytes(h, head, (size_t)snprintf(head, sizeof head, "s%zu:", n));
    add_bytes(h, text, n);
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A setting that is as good as absent. */
static bool is_default(const char *key, const json_t *value)
{
    return json_is_null(value) || json_is_false(value) || (json_is_number(value) && json_number_value(value) == 0.0) ||
           (json_is_string(value) && json_string_length(value) == 0) ||
           (strcmp(key, "type") == 0 && json_is_string(value) && strcmp(json_string_value(value), "BPE") == 0);
}

static void add_value(hashing_t *h, const json_t *value);

/* Adds "a b" as ["a", "b"]. */
static void add_merge(hashing_t *h, const json_t *merge)
{
    const char *text = json_string_value(merge), *space = text ? strchr(text, ' ') : NULL;
    if (!space || strchr(space + 1, ' ')) {
        add_value(h, merge);
        return;
    }
    add_bytes(h, "[", 1);
    add_string(h, text, (size_t)(space - text));
    add_string(h, space + 1, json_string_length(merge) - (size_t)(space + 1 - text));
    add_bytes(h, "]", 1);
}

static void add_member(hashing_t *h, const char *key, const json_t *value, bool is_model)
{
    if (is_model && is_default(key, value))
        return;
    add_string(h, key, strlen(key));
    if (!is_model || strcmp(key, "merges") != 0 || !json_is_array(value)) {
        add_value(h, value);
        return;
    }
    add_bytes(h, "[", 1);
    for (size_t i = 0; i < json_array_size(value); i++)
        add_merge(h, json_array_get(value, i));
    add_bytes(h, "]", 1);
}

static void add_object(hashing_t *h, const json_t *object, bool is_model)
{
    const size_t n = json_object_size(object);
    const char **keys = calloc(n + 1, sizeof *keys), *key;
    json_t *value;
    size_t i = 0;
    if (!keys) {
        h->failed = true;
        return;
    }
    json_object_foreach((json_t *)object, key, value) keys[i++] = key;
    qsort(keys, n, sizeof *keys, by_bytes);
    add_bytes(h, "{", 1);
    for (i = 0; i < n; i++)
        add_member(h, keys[i], json_object_get(object, keys[i]), is_model);
    add_bytes(h, "}", 1);
    free(keys);
}

static void add_number(hashing_t *h, const json_t *value)
{
    char digits[40];
    double real = json_real_value(value);
    if (json_is_integer(value)) {
        add_bytes(h, digits,
                  (size_t)snprintf(digits, sizeof digits, "i%" JSON_INTEGER_FORMAT, json_integer_value(value)));
        return;
    }
    add_bytes(h, "r", 1);
    add_bytes(h, &real, sizeof real);
}

static void add_value(hashing_t *h, const json_t *value)
{
    if (json_is_object(value))
        add_object(h, value, false);
    else if (json_is_string(value))
        add_string(h, json_string_value(value), json_string_length(value));
    else if (json_is_number(value))
        add_number(h, value);
    else if (json_is_array(value)) {
        add_bytes(h, "[", 1);
        for (size_t i = 0; i < json_array_size(value); i++)
            add_value(h, json_array_get(value, i));
        add_bytes(h, "]", 1);
    } else
        add_bytes(h, json_is_true(value) ? "t" : json_is_false(value) ? "f" : "n", 1); /* absent as null */
}

static void add_rules(hashing_t *h, const json_t *root)
{
    static const char *const keys[] = {"added_tokens", "normalizer", "pre_tokenizer"};
    const json_t *model = json_object_get(root, "model");
    if (json_is_object(model))
        add_object(h, model, true);
    else
        add_value(h, model);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        add_value(h, json_object_get(root, keys[i]));
}

uint64_t tokenizer_rules_hash(const void *text, size_t n_bytes)
{
    json_t *root = json_loadb(text, n_bytes, JSON_ALLOW_NUL, NULL);
    hashing_t h = {.state = XXH3_createState()};
    uint64_t hash = 0;
    if (json_is_object(root) && h.state && XXH3_64bits_reset(h.state) == XXH_OK) {
        add_rules(&h, root);
        hash = h.failed ? 0 : XXH3_64bits_digest(h.state);
    }
    XXH3_freeState(h.state);
    json_decref(root);
    return hash;
}
