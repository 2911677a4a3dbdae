/* utf8.c - see utf8.h. */
#include "train/report/utf8.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* First bytes with what may follow them (Unicode 15, table 3-7): the second byte's range, and how many bytes in all. */
static const struct {
    unsigned char first, last, low, high, n_bytes;
} LEADS[] = {{0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3}, {0xe1, 0xec, 0x80, 0xbf, 3},
             {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4},
             {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4}};

size_t utf8_read(const unsigned char *text, size_t n_bytes, uint32_t *code)
{
    size_t row = 0, n = 1, n_rows = sizeof LEADS / sizeof LEADS[0];
    *code = UTF8_REPLACEMENT;
    if (text[0] < 0x80) {
        *code = text[0];
        return 1;
    }
    while (row < n_rows && !(text[0] >= LEADS[row].first && text[0] <= LEADS[row].last))
        row++;
    if (row == n_rows)
        return 1;
    uint32_t bits = text[0] & (0x7fu >> LEADS[row].n_bytes);
    for (; n < LEADS[row].n_bytes; n++) {
        unsigned char low = n == 1 ? LEADS[row].low : 0x80, high = n == 1 ? LEADS[row].high : 0xbf;
        if (n >= n_bytes || text[n] < low || text[n] > high)
            return n;
        bits = bits << 6 | (text[n] & 0x3fu);
    }
    *code = bits;
    return n;
}

/* Writes a character; returns its bytes, 1 to 4. */
static size_t write_character(uint32_t code, char text[4])
{
    size_t n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = n - 1; i > 0; i--) {
        text[i] = (char)(0x80 | (code & 0x3f));
        code >>= 6;
    }
    text[0] = (char)(lead[n] | code);
    return n;
}

char *utf8_repaired(const char *text, size_t n_bytes, size_t *n_repaired)
{
    size_t n = 0;
    char *repaired = n_bytes < SIZE_MAX / 3 ? malloc(3 * n_bytes + 1) : NULL; /* U+FFFD has 3 bytes */
    if (!repaired)
        return NULL;
    for (size_t i = 0; i < n_bytes;) {
        uint32_t code;
        i += utf8_read((const unsigned char *)text + i, n_bytes - i, &code);
        n += write_character(code, repaired + n);
    }
    repaired[n] = 0;
    *n_repaired = n;
    return repaired;
}

json_t *utf8_json(const char *text)
{
    size_t n_bytes;
    char *repaired = utf8_repaired(text, strlen(text), &n_bytes);
    json_t *string = repaired ? json_stringn(repaired, n_bytes) : NULL;
    free(repaired);
    return string;
}
