/* test_fuzz_corpus.c - every input that fuzzing began with or found something by, once, without a fuzzer: the targets
 * of tests/fuzz over the files of tests/fuzz/corpus. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/fuzz/input.h"
#include "tests/support/support.h"

static const struct {
    const char *name;
    int (*run)(const uint8_t *data, size_t n_bytes);
} TARGETS[] = {
#define ROW(name) {#name, fuzz_##name},
    FUZZ_TARGETS(ROW)
#undef ROW
};
enum { N_TARGETS = sizeof TARGETS / sizeof TARGETS[0] };

static bool begins(const char *name, const char *with)
{
    return strncmp(name, with, strlen(with)) == 0;
}

/* Inputs named good-... are accepted, so that fuzzing gets past the first checks; those named bad-... are not. */
static void run_file(int target, const char *directory, const char *name)
{
    char path[512];
    size_t n_bytes;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    dprintf(STDOUT_FILENO, "%s\n", path); /* what crashes is the last that is named */
    char *data = support_read_file(path, &n_bytes);
    TARGETS[target].run((const uint8_t *)data, n_bytes);
    ck_assert_msg(!begins(name, "good-") || fuzz_accepted, "%s is refused", path);
    ck_assert_msg(!begins(name, "bad-") || !fuzz_accepted, "%s is accepted", path);
    free(data);
}

START_TEST(every_file_of_the_corpus_keeps_the_promises)
{
    char directory[256];
    int n_good = 0;
    char *scratch = support_scratch();
    setenv("TMPDIR", scratch, 1);
    free(scratch);
    snprintf(directory, sizeof directory, "tests/fuzz/corpus/%s", TARGETS[_i].name);
    DIR *corpus = opendir(directory);
    ck_assert_msg(corpus != NULL, "%s: cannot be opened", directory);
    for (struct dirent *entry; (entry = readdir(corpus));)
        if (entry->d_name[0] != '.') {
            run_file(_i, directory, entry->d_name);
            n_good += begins(entry->d_name, "good-");
        }
    closedir(corpus);
    ck_assert_msg(n_good > 0, "%s: no good input", directory);
}
END_TEST

static Suite *suite(void)
{
    Suite *suite = suite_create("fuzz_corpus");
    TCase *corpus = tcase_create("corpus");
    tcase_set_timeout(corpus, 60);
    tcase_add_loop_test(corpus, every_file_of_the_corpus_keeps_the_promises, 0, N_TARGETS);
    suite_add_tcase(suite, corpus);
    return suite;
}

int main(void)
{
    return support_main(suite());
}
