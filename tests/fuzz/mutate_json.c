/* mutate_json.c - see mutate_json.h. Strings and keys are changed by libFuzzer's own mutation, which knows the
 * dictionary and what strings were compared with; numbers are set to the limits of arithmetic. */
#include "mutate_json.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define MOST_CHANGES 3
#define STRING_BYTES 64

static const json_int_t WHOLE_NUMBERS[] = {0,
                                           1,
                                           2,
                                           8,
                                           255,
                                           256,
                                           65535,
                                           65536,
                                           INT32_MAX,
                                           UINT32_MAX,
                                           INT64_C(1) << 53,
                                           INT64_C(1) << 60,
                                           INT64_MAX / 4,
                                           INT64_MAX / 2,
                                           INT64_MAX};
static const double REAL_NUMBERS[] = {0.0, 1.0, 0.5, 1e-5, 1e-30, 1e-46, 5e-324, 3.4e38, 3.5e38, 1e308};

/* A linear congruential generator is random enough to pick with (Knuth's constants). */
static uint32_t draw(uint64_t *random, size_t n)
{
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*random >> 33) % n);
}

static json_t *mutate_string(const char *text)
{
    uint8_t bytes[STRING_BYTES];
    size_t n = strlen(text) < sizeof bytes ? strlen(text) : sizeof bytes;
    memcpy(bytes, text, n);
    n = LLVMFuzzerMutate(bytes, n, sizeof bytes);
    json_t *mutated = json_stringn((char *)bytes, n); /* NULL if it is not UTF-8 */
    return mutated ? mutated : json_string(text);
}

static json_t *new_value(uint64_t *random)
{
    switch (draw(random, 7)) {
    case 0:
        return json_null();
    case 1:
        return json_boolean(draw(random, 2));
    case 2:
        return json_object();
    case 3:
        return json_array();
    case 4:
        return json_real(REAL_NUMBERS[draw(random, sizeof REAL_NUMBERS / sizeof REAL_NUMBERS[0])]);
    case 5:
        return mutate_string("");
    default:
        return json_integer(WHOLE_NUMBERS[draw(random, sizeof WHOLE_NUMBERS / sizeof WHOLE_NUMBERS[0])]);
    }
}

static json_t *mutate_integer(json_int_t value, uint64_t *random)
{
    static const int STEPS[] = {1, 2, 4, 8};
    uint64_t bits = (uint64_t)value, step = (uint64_t)STEPS[draw(random, 4)];
    switch (draw(random, 5)) {
    case 0:
        return json_integer((json_int_t)(bits + step));
    case 1:
        return json_integer((json_int_t)(bits - step));
    case 2:
        return json_integer((json_int_t)(bits * 2));
    case 3:
        return json_integer((json_int_t)(0 - bits));
    default:
        return json_integer(WHOLE_NUMBERS[draw(random, sizeof WHOLE_NUMBERS / sizeof WHOLE_NUMBERS[0])]);
    }
}

static json_t *mutate_leaf(const json_t *value, uint64_t *random)
{
    if (draw(random, 4) == 0)
        return new_value(random);
    if (json_is_integer(value))
        return mutate_integer(json_integer_value(value), random);
    if (json_is_string(value))
        return mutate_string(json_string_value(value));
    if (json_is_real(value) && draw(random, 2))
        return json_real(json_real_value(value) * (draw(random, 2) ? 2.0 : -1.0));
    return new_value(random);
}

static void mutate(json_t *value, uint64_t *random);

/* Changes a value inside, or replaces it. */
static json_t *changed(json_t *value, uint64_t *random)
{
    if ((!json_is_object(value) && !json_is_array(value)) || draw(random, 8) == 0)
        return mutate_leaf(value, random);
    mutate(value, random);
    return json_incref(value);
}

static void mutate_object(json_t *object, uint64_t *random)
{
    size_t n = json_object_size(object);
    void *at = json_object_iter(object);
    for (size_t i = n ? draw(random, n) : 0; i > 0; i--)
        at = json_object_iter_next(object, at);
    uint32_t way = at ? draw(random, 8) : 0;
    if (way > 2) {
        json_object_set_new(object, json_object_iter_key(at), changed(json_object_iter_value(at), random));
        return;
    }
    /* Adds a key with this one's value or a new one, removes the key, or both, which renames it. */
    json_t *key = mutate_string(at ? json_object_iter_key(at) : "");
    json_t *value = at && draw(random, 4) ? json_deep_copy(json_object_iter_value(at)) : new_value(random);
    if (at && way > 0)
        json_object_del(object, json_object_iter_key(at));
    if (way != 1)
        json_object_set(object, json_string_value(key), value);
    json_decref(value);
    json_decref(key);
}

static void mutate_array(json_t *array, uint64_t *random)
{
    size_t n = json_array_size(array), i = n ? draw(random, n) : 0;
    uint32_t way = n ? draw(random, 8) : 0;
    if (way == 0)
        json_array_insert_new(array, i, new_value(random));
    else if (way == 1)
        json_array_remove(array, i);
    else
        json_array_set_new(array, i, changed(json_array_get(array, i), random));
}

static void mutate(json_t *value, uint64_t *random)
{
    if (json_is_object(value))
        mutate_object(value, random);
    else if (json_is_array(value))
        mutate_array(value, random);
}

size_t fuzz_mutate_json(uint8_t *text, size_t n_bytes, size_t most_bytes, unsigned seed)
{
    uint64_t random = seed;
    json_t *value = json_loadb((char *)text, n_bytes, 0, NULL);
    if (!value)
        return 0;
    for (uint32_t n_left = 1 + draw(&random, MOST_CHANGES); n_left > 0; n_left--)
        mutate(value, &random);
    char *mutated = json_dumps(value, JSON_COMPACT);
    json_decref(value);
    size_t n_mutated = mutated ? strlen(mutated) : 0;
    if (n_mutated > most_bytes)
        n_mutated = 0;
    memcpy(text, mutated, n_mutated);
    free(mutated);
    return n_mutated;
}
