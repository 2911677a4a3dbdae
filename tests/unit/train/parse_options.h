/* parse_options.h - parses a text as the configuration file, with arguments, as tests of settings need it. */
#ifndef ZERO_TEST_PARSE_OPTIONS_H
#define ZERO_TEST_PARSE_OPTIONS_H

#include <stdlib.h>

#include "tests/support/stderr_capture.h"
#include "tests/support/support.h"
#include "train/options/options_table.h"
#include "train/report/report.h"

#define MINIMAL "[model]\nlayers = 2\ndim = 36\nheads = 3\n[data]\ntrain = a.txt\n"

static char scratch[1000], config[1100];

static inline void set_up(void)
{
    char *directory = support_scratch();
    snprintf(scratch, sizeof scratch, "%s", directory);
    free(directory);
    snprintf(config, sizeof config, "%s/cfg.ini", scratch);
}

/* Parses `text` as the file, with these arguments (ending at NULL) before it. */
static inline zero_status_t parse_bytes(const char *text, size_t n_bytes, const char *const *arguments,
                                        options_t *options)
{
    support_write_file(config, text, n_bytes);
    char *argv[16] = {(char *)"zerotrain"};
    int argc = 1;
    for (; arguments && *arguments; arguments++)
        argv[argc++] = (char *)*arguments;
    argv[argc++] = config;
    options_action_t action;
    zero_status_t status = options_parse(argc, argv, options, &action);
    ck_assert(status != ZERO_OK || action == OPTIONS_RUN);
    return status;
}

static inline zero_status_t parse(const char *text, const char *const *arguments, options_t *options)
{
    return parse_bytes(text, strlen(text), arguments, options);
}

#define ARGUMENTS(...) ((const char *[]){__VA_ARGS__, NULL})

static inline options_t must_parse(const char *text, const char *const *arguments)
{
    static options_t options;
    ck_assert_int_eq(parse(text, arguments, &options), ZERO_OK);
    return options;
}

static inline void expect_refusal(const char *text, const char *const *arguments, const char *const *fragments)
{
    static options_t options;
    options.stop_after = -7;
    capture_begin();
    zero_status_t status = parse(text, arguments, &options);
    expect_line(capture_end(), fragments);
    ck_assert_msg(status == ZERO_ERROR_USAGE, "%s", text);
    ck_assert_int_eq(report_exit_code(status), 2);
    ck_assert_int_eq(options.stop_after, -7); /* outputs are set only on success */
}

#endif
