/* test_readme.c - what README.md repeats from the sources is what the sources say: the configuration reference (from
 * the option table) and the example program. README_UPDATE=1 in the environment writes them into README.md instead. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/support.h"
#include "train/options/options.h"

/* The text between the lines "<!-- begin NAME -->" and "<!-- end NAME -->", which must stand in README.md once. */
static void find_block(const char *readme, const char *name, const char **begin, const char **end)
{
    char mark[64];
    snprintf(mark, sizeof mark, "<!-- begin %s -->\n", name);
    ck_assert_msg(support_count(readme, mark) == 1, "README.md has no line %s", mark);
    *begin = strstr(readme, mark) + strlen(mark);
    snprintf(mark, sizeof mark, "<!-- end %s -->\n", name);
    *end = strstr(*begin, mark);
    ck_assert_msg(*end != NULL, "README.md has no line %s", mark);
}

static void expect_block(const char *name, const char *want)
{
    const char *begin, *end;
    char *readme = support_read_file("README.md", NULL);
    find_block(readme, name, &begin, &end);
    bool same = strlen(want) == (size_t)(end - begin) && strncmp(want, begin, strlen(want)) == 0;
    if (!same && getenv("README_UPDATE")) {
        FILE *file = fopen("README.md", "w");
        ck_assert_ptr_nonnull(file);
        fprintf(file, "%.*s%s%s", (int)(begin - readme), readme, want, end);
        fclose(file);
        same = true;
    }
    ck_assert_msg(same, "README.md: %s is out of date; README_UPDATE=1 build/tests/project/test_readme mends it", name);
    free(readme);
}

START_TEST(the_configuration_reference_is_the_option_table)
{
    char *text = NULL;
    size_t n_bytes;
    FILE *file = open_memstream(&text, &n_bytes);
    options_print_reference(file);
    fclose(file);
    expect_block("reference", text);
    free(text);
}
END_TEST

START_TEST(the_example_is_examples_linear)
{
    char *source = support_read_file("examples/linear.c", NULL), *text;
    size_t n_bytes = strlen(source) + 16;
    text = malloc(n_bytes);
    snprintf(text, n_bytes, "```c\n%s```\n", source);
    expect_block("example", text);
    free(text);
    free(source);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("README");
    TCase *tc = tcase_create("blocks");
    tcase_add_test(tc, the_configuration_reference_is_the_option_table);
    tcase_add_test(tc, the_example_is_examples_linear);
    suite_add_tcase(s, tc);
    return s;
}

int main(void)
{
    return support_main(suite());
}
