/* stderr_capture.h - captures what a call under test writes to stderr. Nothing else may fail between capture_begin and
 * capture_end. */
#ifndef ZERO_TEST_STDERR_CAPTURE_H
#define ZERO_TEST_STDERR_CAPTURE_H

#include <check.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static FILE *capture_file;
static int capture_saved = -1;
static char capture_text[1 << 16];

static void capture_begin(void)
{
    fflush(stderr);
    capture_saved = dup(STDERR_FILENO);
    capture_file = tmpfile();
    if (!capture_file || dup2(fileno(capture_file), STDERR_FILENO) < 0)
        ck_abort_msg("cannot capture stderr");
}

/* All of it, until the next call. */
static const char *capture_end(void)
{
    fflush(stderr);
    dup2(capture_saved, STDERR_FILENO);
    close(capture_saved);
    rewind(capture_file);
    size_t n = fread(capture_text, 1, sizeof capture_text - 1, capture_file);
    capture_text[n] = 0;
    fclose(capture_file);
    return capture_text;
}

/* Expects one whole line that begins "zerotrain: " and contains every fragment; NULL ends the fragments. */
static inline void expect_line(const char *said, const char *const *fragments)
{
    size_t length = strlen(said);
    ck_assert_msg(strncmp(said, "zerotrain: ", 11) == 0, "said: '%s'", said);
    ck_assert_msg(length > 0 && strchr(said, '\n') == said + length - 1, "not one line: '%s'", said);
    for (; *fragments; fragments++)
        ck_assert_msg(strstr(said, *fragments) != NULL, "'%s' is not in: %s", *fragments, said);
}

#endif
