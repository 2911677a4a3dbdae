/* utf8.h - decodes UTF-8 and says what is none. */
#ifndef ZEROTRAIN_UTF8_H
#define ZEROTRAIN_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_t;

#define UTF8_REPLACEMENT 0xfffdu

/* Decodes the character at text, n_bytes > 0 long. Returns its bytes and sets *code; for what is not UTF-8, sets
 * UTF8_REPLACEMENT and returns the bytes that it stands for: the longest start of a character, or 1 (Unicode 15,
 * section 3.9, as Python and browsers do). */
size_t utf8_read(const unsigned char *text, size_t n_bytes, uint32_t *code);
/* Copies text with UTF8_REPLACEMENT for what is not UTF-8. Returns it for free(), with a zero behind it; NULL: no
 * memory. */
char *utf8_repaired(const char *text, size_t n_bytes, size_t *n_repaired);
/* Returns a JSON string of the text, repaired likewise: for what comes from outside, such as a path, and may not be
 * UTF-8. NULL: no memory. */
struct json_t *utf8_json(const char *text);

#endif
