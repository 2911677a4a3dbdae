/* json_build.h - builds JSON so that no failed allocation is lost. Objects and arrays that could not be completed
 * become NULL, and stay so whatever is added; whoever takes them for complete checks that alone.
 */
#ifndef ZERO_JSON_BUILD_H
#define ZERO_JSON_BUILD_H

#include <jansson.h>
#include <stdbool.h>

/* Returns whether a text can be in JSON: it must be UTF-8. */
static inline bool zero_json_takes(const char *text)
{
    json_t *value = json_string(text);
    json_decref(value);
    return value != NULL;
}

/* Both take over `value`, which may be NULL for want of memory. */
static inline void zero_json_set(json_t **object, const char *key, json_t *value)
{
    if (json_object_set_new(*object, key, value) == 0)
        return;
    json_decref(*object);
    *object = NULL;
}

static inline void zero_json_append(json_t **array, json_t *value)
{
    if (json_array_append_new(*array, value) == 0)
        return;
    json_decref(*array);
    *array = NULL;
}

#endif
