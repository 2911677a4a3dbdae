/* numbers.c - see numbers.h. */
#include "base/numbers.h"

#include <locale.h>
#include <stdlib.h>

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
