/* system.c - see system.h. */
#include "base/system.h"

#include <locale.h>
#include <stdlib.h>

#include "base/log.h"

zero_status_t zero_timeout_ns(int64_t *timeout_ns)
{
    const char *text = getenv("ZERO_TIMEOUT_S");
    double seconds = 600.0;
    if (text && text[0] != '\0') {
        char *end;
        seconds = zero_strtod(text, &end);
        if (end == text || *end != '\0' || !(seconds > 0.0 && seconds <= 1e9))
            return zero_fail_collective(
                ZERO_ERROR_USAGE, "ZERO_TIMEOUT_S=%s in the environment is not a number of seconds above 0", text);
    }
    *timeout_ns = (int64_t)(seconds * 1e9);
    return ZERO_OK;
}

/* ---- numbers ---- */

/* Sets *end to text if there is no memory for the locale: then nothing was read. */
double zero_strtod(const char *text, char **end)
{
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    *end = (char *)text;
    double value = c ? strtod_l(text, end, c) : 0.0;
    if (c)
        freelocale(c);
    return value;
}

float zero_strtof(const char *text, char **end)
{
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    *end = (char *)text;
    float value = c ? strtof_l(text, end, c) : 0.0f;
    if (c)
        freelocale(c);
    return value;
}
