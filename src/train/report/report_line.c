/* report_line.c - see report_line.h. */
#include "train/report/report_line.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "train/report/utf8.h"

report_me_t report_me = {.n_ranks = 1};

/* Returns whether a terminal shows the character, which text begins with: not for a control character (C0, DEL, C1) or
 * for what is not UTF-8. The replacement itself may be shown. */
static bool is_shown(uint32_t code, const char *text, size_t n_bytes)
{
    if (code == UTF8_REPLACEMENT)
        return n_bytes == 3 && memcmp(text, "\xef\xbf\xbd", 3) == 0;
    return code >= 0x20 && (code < 0x7f || code > 0x9f);
}

static void make_printable(char *text)
{
    size_t left = strlen(text), n;
    for (; left > 0; text += n, left -= n) {
        uint32_t code;
        n = utf8_read((const unsigned char *)text, left, &code);
        if (!is_shown(code, text, n))
            memset(text, '?', n);
    }
}

size_t line_compose(const char *prefix, const char *message, char line[REPORT_FULL_LINE_BYTES])
{
    snprintf(line, REPORT_LINE_BYTES + REPORT_PREFIX_BYTES + 64, "zerotrain: %s%s%s", prefix, message,
             strlen(message) == REPORT_LINE_BYTES - 1 ? "..." : "");
    make_printable(line);
    size_t length = strlen(line);
    memcpy(line + length, "\n", 2);
    return length + 1;
}

void line_name_me(char prefix[REPORT_PREFIX_BYTES])
{
    snprintf(prefix, REPORT_PREFIX_BYTES, "rank %d%s" REPORT_SEPARATOR, report_me.rank, report_me.host);
}

void line_write(bool with_rank, const char *message)
{
    char prefix[REPORT_PREFIX_BYTES] = "", line[REPORT_FULL_LINE_BYTES];
    if (with_rank)
        line_name_me(prefix);
    line_compose(prefix, message, line);
    fputs(line, stderr);
    fflush(stderr);
}
