/* normal_form.c - see normal_form.h. */
#include "train/tokenizer/normal_form.h"

#if defined(ZERO_HAVE_UTF8PROC)
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

bool normal_form_is_there(void)
{
    return true;
}

/* Composes text and appends it. Returns false if there is no memory. */
static bool append_composed(const char *text, size_t n_bytes, char **out, size_t *n_out)
{
    utf8proc_uint8_t *composed = NULL;
    const utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n_bytes, &composed,
                                            UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    char *longer = n < 0 ? NULL : realloc(*out, *n_out + (size_t)n + 1);
    if (longer) {
        memcpy(longer + *n_out, composed, (size_t)n + 1);
        *n_out += (size_t)n;
        *out = longer;
    }
    free(composed);
    return longer;
}

/* utf8proc 2.8 drops U+11A7 behind a syllable of Hangul. That character composes with none, so text is cut before it.
 */
char *normal_form_c(const char *text, size_t n_bytes, size_t *n_out)
{
    static const char alone[] = "\u11a7";
    const char *end = text + n_bytes, *next;
    char *out = NULL;
    *n_out = 0;
    do {
        const char *from = text < end ? text + 1 : end;
        next = memmem(from, (size_t)(end - from), alone, sizeof alone - 1);
        const size_t n = (size_t)((next ? next : end) - text);
        if (!append_composed(text, n, &out, n_out)) {
            free(out);
            return NULL;
        }
        text += n;
    } while (next);
    return out;
}

#else /* without utf8proc */

bool normal_form_is_there(void)
{
    return false;
}

char *normal_form_c(const char *text, size_t n_bytes, size_t *n_out)
{
    (void)text;
    (void)n_bytes;
    *n_out = 0;
    return NULL;
}

#endif
