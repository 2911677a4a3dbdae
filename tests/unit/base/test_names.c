/* test_names.c - finding a name among many gives what a walk over all of them finds, for lists of random names that
 * repeat and share prefixes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/names.h"
#include "tests/support/support.h"

#define MAX_NAMES 40
#define NAME_BYTES 8

static char names_in[MAX_NAMES][NAME_BYTES];

static const char *name_of(const void *user, size_t i)
{
    const char(*names)[NAME_BYTES] = user;
    return names[i];
}

/* Three letters, one of them beyond ASCII: many names are equal, and many share a prefix. */
static void random_name(char name[NAME_BYTES], uint64_t *random)
{
    static const char letters[] = "a.\xc3";
    size_t n = support_random(random) % 4;
    for (size_t i = 0; i < n; i++)
        name[i] = letters[support_random(random) % 3];
    name[n] = 0;
}

START_TEST(a_name_finds_the_first_entry_with_it)
{
    uint64_t random = 20261101;
    size_t n_found = 0, n_absent = 0;
    for (int round = 0; round < 2000; round++) {
        zero_names_t names;
        size_t n = support_random(&random) % (MAX_NAMES + 1);
        for (size_t i = 0; i < n; i++)
            random_name(names_in[i], &random);
        ck_assert_int_eq(zero_names_create(n, name_of, names_in, &names), ZERO_OK);
        for (int question = 0; question < 20; question++) {
            char name[2 * NAME_BYTES];
            random_name(name, &random);
            size_t n_bytes = strlen(name), first = 0;
            strcat(name, question % 2 ? ".m" : ""); /* what follows it does not count */
            while (first < n && (strlen(names_in[first]) != n_bytes || memcmp(names_in[first], name, n_bytes) != 0))
                first++;
            size_t at = zero_names_find(&names, name, n_bytes);
            ck_assert_uint_eq(at < n ? names.names[at].index : n, first);
            n_found += first < n;
            n_absent += first == n;
        }
        zero_names_destroy(&names);
    }
    ck_assert_uint_gt(n_found, 1000);
    ck_assert_uint_gt(n_absent, 1000);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("names");
    TCase *tc = tcase_create("names");
    tcase_set_timeout(tc, 30);
    tcase_add_test(tc, a_name_finds_the_first_entry_with_it);
    suite_add_tcase(s, tc);
    return s;
}

int main(void)
{
    return support_main(suite());
}
