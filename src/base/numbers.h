/* numbers.h - reads numbers with a decimal point, whatever the host program's locale. */
#ifndef ZERO_NUMBERS_H
#define ZERO_NUMBERS_H

/* As strtod and strtof in the locale "C". */
double zero_strtod(const char *text, char **end);
float zero_strtof(const char *text, char **end);

#endif
