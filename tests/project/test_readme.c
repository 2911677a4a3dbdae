/* test_readme.c - README.md and docs/ say what the sources say: the example is the program, every file, heading and
 * function that is named exists, README's figures are those of docs/performance.md. (test_docs.sh checks what is
 * generated.) DOCS_UPDATE=1 in the environment writes the example anew instead. Run from the repository's root.
 */
#include <ctype.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/support.h"
#include "zero.h"

#define MAX_PATH_BYTES 512

/* ---- blocks that repeat a source ---- */

/* Finds the text between the lines "<!-- begin NAME -->" and "<!-- end NAME -->", of which there must be one pair. */
static void find_block(const char *path, const char *text, const char *name, const char **begin, const char **end)
{
    char mark[64];
    snprintf(mark, sizeof mark, "<!-- begin %s -->\n", name);
    ck_assert_msg(support_count(text, mark) == 1, "%s has no line %s", path, mark);
    *begin = strstr(text, mark) + strlen(mark);
    snprintf(mark, sizeof mark, "<!-- end %s -->\n", name);
    *end = strstr(*begin, mark);
    ck_assert_msg(*end != NULL, "%s has no line %s", path, mark);
}

static void expect_block(const char *path, const char *name, const char *want)
{
    const char *begin, *end;
    char *text = support_read_file(path, NULL);
    find_block(path, text, name, &begin, &end);
    bool same = strlen(want) == (size_t)(end - begin) && strncmp(want, begin, strlen(want)) == 0;
    if (!same && getenv("DOCS_UPDATE")) {
        FILE *file = fopen(path, "w");
        ck_assert_ptr_nonnull(file);
        fprintf(file, "%.*s%s%s", (int)(begin - text), text, want, end);
        fclose(file);
        same = true;
    }
    ck_assert_msg(same, "%s: %s is out of date; DOCS_UPDATE=1 build/tests/project/test_readme mends it", path, name);
    free(text);
}

START_TEST(the_example_is_examples_linear)
{
    char *source = support_read_file("examples/linear.c", NULL), *text;
    size_t n_bytes = strlen(source) + 16;
    text = malloc(n_bytes);
    snprintf(text, n_bytes, "```c\n%s```\n", source);
    expect_block("docs/using-libzero.md", "example", text);
    free(text);
    free(source);
}
END_TEST

/* ---- what the pages name ---- */

typedef struct page {
    const char *path;
    char *text;
} page_t;

/* Calls `visit` with the pages at the top of the repository and in docs/; returns the sum of what it counted. */
static int visit_pages(int (*visit)(const page_t *page))
{
    glob_t pages;
    int n = 0;
    ck_assert_int_eq(glob("docs/*.md", 0, NULL, &pages), 0);
    ck_assert_int_eq(glob("README.md", GLOB_APPEND, NULL, &pages), 0);
    ck_assert_int_eq(glob("CONTRIBUTING.md", GLOB_APPEND, NULL, &pages), 0);
    ck_assert_int_eq(glob("SECURITY.md", GLOB_APPEND, NULL, &pages), 0);
    for (size_t i = 0; i < pages.gl_pathc; i++) {
        page_t page = {.path = pages.gl_pathv[i], .text = support_read_file(pages.gl_pathv[i], NULL)};
        n += visit(&page);
        free(page.text);
    }
    globfree(&pages);
    return n;
}

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

/* Where the text begins with a folder at the top of the repository that `make` does not fill. */
static bool names_a_source(const char *text)
{
    static const char *const FOLDERS[] = {"src/",      "include/", "comm/",   "kernels/", "tests/",
                                          "examples/", "configs/", "launch/", "docs/"};
    for (size_t i = 0; i < sizeof FOLDERS / sizeof FOLDERS[0]; i++)
        if (strncmp(text, FOLDERS[i], strlen(FOLDERS[i])) == 0)
            return true;
    return false;
}

/* In prose, a path begins behind a backtick and ends at the next one or at a space, when arguments follow. */
static int expect_files(const page_t *page)
{
    int n = 0;
    for (const char *at = strchr(page->text, '`'); at; at = strchr(at + 1, '`')) {
        char path[MAX_PATH_BYTES];
        if (!names_a_source(at + 1))
            continue;
        snprintf(path, sizeof path, "%.*s", (int)strcspn(at + 1, "` \n"), at + 1);
        ck_assert_msg(exists(path), "%s names %s, which does not exist", page->path, path);
        n++;
    }
    return n;
}

START_TEST(every_file_that_is_named_exists)
{
    ck_assert_int_gt(visit_pages(expect_files), 100);
}
END_TEST

/* Whether the page has a heading whose anchor on GitHub is `anchor`: lower case, '-' for spaces, no punctuation. */
static bool has_heading(const char *text, const char *anchor, size_t n_bytes)
{
    for (const char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        char made[MAX_PATH_BYTES];
        size_t n = 0;
        if (*line != '#')
            continue;
        for (const char *c = line + strspn(line, "# "); *c && *c != '\n' && n + 1 < sizeof made; c++)
            if (isalnum((unsigned char)*c) || *c == '-' || *c == '_' || *c == ' ')
                made[n++] = *c == ' ' ? '-' : (char)tolower((unsigned char)*c);
        if (n == n_bytes && strncmp(made, anchor, n) == 0)
            return true;
    }
    return false;
}

/* Links are relative to the page's folder; one that begins with '#' is within the page. */
static int expect_links(const page_t *page)
{
    int n = 0;
    for (const char *at = strstr(page->text, "]("); at; at = strstr(at + 1, "](")) {
        const char *link = at + 2, *folder_end = strrchr(page->path, '/');
        int n_path = (int)strcspn(link, "#)"), n_anchor = (int)strcspn(link, ")") - n_path - 1;
        char path[2 * MAX_PATH_BYTES];
        if (strncmp(link, "http", 4) == 0)
            continue;
        snprintf(path, sizeof path, "%.*s%.*s", folder_end ? (int)(folder_end - page->path) + 1 : 0, page->path, n_path,
                 link);
        if (n_path == 0)
            snprintf(path, sizeof path, "%s", page->path);
        ck_assert_msg(exists(path), "%s links to %s, which does not exist", page->path, path);
        n++;
        if (n_anchor <= 0)
            continue;
        char *target = support_read_file(path, NULL);
        ck_assert_msg(has_heading(target, link + n_path + 1, (size_t)n_anchor), "%s: %s has no heading #%.*s",
                      page->path, path, n_anchor, link + n_path + 1);
        free(target);
    }
    return n;
}

START_TEST(every_link_leads_somewhere)
{
    ck_assert_int_gt(visit_pages(expect_links), 50);
}
END_TEST

static char *sources; /* all of them, one after another */

static void read_sources(void)
{
    static const char *const PATTERNS[] = {"include/*.h",       "comm/*.[ch]",     "comm/*/*.[ch]",  "kernels/*.h",
                                           "kernels/*/*.[ch]",  "src/*/*.[ch]",    "src/*/*/*.[ch]", "examples/*.c",
                                           "tests/support/*.h", "python/*/*/*.py", "launch/*/*.py"};
    size_t n_bytes;
    FILE *file = open_memstream(&sources, &n_bytes);
    for (size_t i = 0; i < sizeof PATTERNS / sizeof PATTERNS[0]; i++) {
        glob_t files;
        ck_assert_msg(glob(PATTERNS[i], 0, NULL, &files) == 0, "no file is named %s", PATTERNS[i]);
        for (size_t f = 0; f < files.gl_pathc; f++) {
            char *text = support_read_file(files.gl_pathv[f], NULL);
            fputs(text, file);
            free(text);
        }
        globfree(&files);
    }
    fclose(file);
}

static bool is_word_char(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* Returns whether `text` has the whole word. memmem, since AddressSanitizer measures the whole text at each strstr. */
static bool has_word(const char *text, const char *word)
{
    const size_t n = strlen(word);
    const char *const end = text + strlen(text);
    for (const char *at = memmem(text, (size_t)(end - text), word, n); at;
         at = memmem(at + 1, (size_t)(end - at - 1), word, n))
        if ((at == text || !is_word_char(at[-1])) && !is_word_char(at[n]))
            return true;
    return false;
}

static void expect_in_sources(const page_t *page, const char *at, size_t n_bytes)
{
    char name[MAX_PATH_BYTES];
    snprintf(name, sizeof name, "%.*s", (int)n_bytes, at);
    ck_assert_msg(has_word(sources, name), "%s names %s, which no source has", page->path, name);
}

/* libzero's names stand out by their prefix. */
static int expect_names(const page_t *page)
{
    int n = 0;
    for (const char *at = strstr(page->text, "zero_"); at; at = strstr(at + 1, "zero_")) {
        size_t n_bytes = 0;
        if (at > page->text && is_word_char(at[-1]))
            continue;
        while (is_word_char(at[n_bytes]))
            n_bytes++;
        expect_in_sources(page, at, n_bytes);
        n++;
    }
    return n;
}

/* Other names: a word between backticks that has an underscore and no capital, such as a function or a setting. */
static int expect_code_words(const page_t *page)
{
    int n = 0;
    for (const char *at = strchr(page->text, '`'); at; at = strchr(at + 1, '`')) {
        size_t n_bytes = strspn(at + 1, "abcdefghijklmnopqrstuvwxyz0123456789_");
        if (at[1 + n_bytes] != '`' || !memchr(at + 1, '_', n_bytes))
            continue;
        expect_in_sources(page, at + 1, n_bytes);
        n++;
    }
    return n;
}

/* Checks the names at `at`, which follow a path: name`, `name` ... Returns how many there are. */
static int expect_in_file(const page_t *page, const char *path, const char *at)
{
    char *text = support_read_file(path, NULL);
    int n = 0;
    for (bool more = true; more; n++) {
        char name[MAX_PATH_BYTES];
        size_t n_bytes = strcspn(at, "`");
        snprintf(name, sizeof name, "%.*s", (int)n_bytes, at);
        ck_assert_msg(has_word(text, name), "%s: %s has no %s", page->path, path, name);
        at += n_bytes;
        more = strncmp(at, "`, `", 4) == 0;
        at += 4;
    }
    free(text);
    return n;
}

/* Functions named in parentheses behind a file are in that file, as in: `file.c` (`function`, `function`). */
static int expect_functions(const page_t *page)
{
    int n = 0;
    for (const char *at = strstr(page->text, "` (`"); at; at = strstr(at + 1, "` (`")) {
        char path[MAX_PATH_BYTES];
        const char *begin = at;
        while (begin > page->text && begin[-1] != '`')
            begin--;
        snprintf(path, sizeof path, "%.*s", (int)(at - begin), begin);
        if (names_a_source(path) && !names_a_source(at + 4))
            n += expect_in_file(page, path, at + 4);
    }
    return n;
}

START_TEST(every_function_is_in_the_file_that_is_named_with_it)
{
    ck_assert_int_gt(visit_pages(expect_functions), 20);
}
END_TEST

START_TEST(every_name_in_code_exists)
{
    read_sources();
    ck_assert_int_gt(visit_pages(expect_names), 50);
    ck_assert_int_gt(visit_pages(expect_code_words), 50);
    free(sources);
}
END_TEST

/* ---- README ---- */

START_TEST(the_readme_is_short)
{
    char *readme = support_read_file("README.md", NULL);
    ck_assert_msg(support_count(readme, "\n") <= 200,
                  "README.md has %d lines, and 200 are allowed: the rest is for docs/",
                  (int)support_count(readme, "\n"));
    free(readme);
}
END_TEST

START_TEST(every_speed_in_the_readme_is_in_docs_performance)
{
    char *readme = support_read_file("README.md", NULL), *performance = support_read_file("docs/performance.md", NULL);
    const char *begin, *end;
    int n = 0;
    find_block("README.md", readme, "speed", &begin, &end);
    for (const char *at = begin; at < end; at++) {
        char figure[32];
        size_t n_bytes = strspn(at, "0123456789.");
        if (n_bytes == 0 || is_word_char(at[-1]))
            continue;
        snprintf(figure, sizeof figure, "%.*s", (int)n_bytes, at);
        at += n_bytes;
        if (!strchr(figure, '.') || is_word_char(*at)) /* sizes of the work */
            continue;
        ck_assert_msg(has_word(performance, figure), "README.md has %s, docs/performance.md has not", figure);
        n++;
    }
    ck_assert_int_gt(n, 10);
    free(performance);
    free(readme);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("README and docs");
    TCase *tc = tcase_create("blocks");
    tcase_add_test(tc, the_example_is_examples_linear);
    suite_add_tcase(s, tc);
    tc = tcase_create("names");
    tcase_add_test(tc, every_file_that_is_named_exists);
    tcase_add_test(tc, every_link_leads_somewhere);
    tcase_add_test(tc, every_name_in_code_exists);
    tcase_add_test(tc, every_function_is_in_the_file_that_is_named_with_it);
    suite_add_tcase(s, tc);
    tc = tcase_create("README");
    tcase_add_test(tc, the_readme_is_short);
    tcase_add_test(tc, every_speed_in_the_readme_is_in_docs_performance);
    suite_add_tcase(s, tc);
    return s;
}

int main(void)
{
    return support_main(suite());
}
