/* tokenizer_json.c - see tokenizer_json.h. */
#include "train/tokenizer/tokenizer_json.h"

#include "train/report/report.h"

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
