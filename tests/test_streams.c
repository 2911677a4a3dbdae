/* test_streams.c - the engine's streams and fences, without a GPU: on a device whose streams are threads of random
 * speed (async_device.h), every run gives the text of the plain CPU, where everything happens in one order. And it
 * would show if a wait were missing: with each kind of wait taken out, a run fails or gives another text. The runs are
 * tests/mpi/stream_cases, whose header says what they check on every rank. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/async_device.h"
#include "tests/support.h"

#define LIMIT_S 120.0

/* What `settings` prints; NULL where the run fails. Free it. */
static char *text_of(int n_ranks, const char *settings)
{
    support_output_t output;
    int code = support_mpirun(&output, LIMIT_S, n_ranks, "%s/tests/mpi/stream_cases %s", support_build(), settings);
    char *text = code == 0 ? strdup(output.out) : NULL;
    if (code != 0)
        fprintf(stderr, "%d ranks, %s: exit code %d\n%.600s", n_ranks, settings, code, output.err);
    support_output_free(&output);
    return text;
}

static void expect_plain_text(int n_ranks, const char *settings, const char *streams)
{
    char plain[160], async[224];
    snprintf(plain, sizeof plain, "device=cpu %s", settings);
    snprintf(async, sizeof async, "device=async %s %s", settings, streams);
    char *want = text_of(n_ranks, plain), *got = text_of(n_ranks, async);
    ck_assert_msg(want && strlen(want) > 100, "%d ranks, %s", n_ranks, plain);
    ck_assert_msg(got && strcmp(got, want) == 0, "%d ranks: %s gives\n%s%s gives\n%s", n_ranks, plain, want, async,
                  got ? got : "nothing");
    free(want);
    free(got);
}

/* _i: stage and dtype. */
START_TEST(streams_of_any_speed_give_the_bits_of_one_order)
{
    static const char *const settings[] = {"dtype=bf16", "dtype=fp32 micro_steps=3 every=1", "dtype=fp16 nan_at=5"};
    int stage = _i % 4;
    char all[96];
    snprintf(all, sizeof all, "stage=%d steps=24 %s", stage, settings[_i / 4]);
    expect_plain_text(2, all, "seed=1");
    expect_plain_text(3, all, "seed=2 prefetch=3 delay_us=800");
}
END_TEST

START_TEST(without_overlap_too)
{
    expect_plain_text(2, "stage=3", "overlap=0");
    expect_plain_text(3, "stage=0 micro_steps=2", "overlap=0");
}
END_TEST

START_TEST(two_hundred_steps_at_random_speeds)
{
    expect_plain_text(3, "stage=3 steps=200", "seed=3 prefetch=2");
    expect_plain_text(2, "stage=1 steps=200", "seed=4");
}
END_TEST

START_TEST(a_missing_wait_shows)
{
    static const int stages[] = {3, 1};
    async_fault_t fault = (async_fault_t)(ASYNC_NO_FAULT + 1 + _i / 2);
    char settings[96];
    snprintf(settings, sizeof settings, "stage=%d steps=40 fault=%d", stages[_i % 2], (int)fault);
    char *want = text_of(3, "device=cpu steps=40"), *got = text_of(3, settings);
    ck_assert(want != NULL);
    ck_assert_msg(!got || strcmp(got, want) != 0, "%s shows nothing", settings);
    free(want);
    free(got);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("streams");
    TCase *tcase = tcase_create("at random speeds");
    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(tcase, streams_of_any_speed_give_the_bits_of_one_order, 0, 12);
    tcase_add_test(tcase, without_overlap_too);
    tcase_add_test(tcase, two_hundred_steps_at_random_speeds);
    tcase_add_loop_test(tcase, a_missing_wait_shows, 0, 2 * (ASYNC_N_FAULTS - 1));
    suite_add_tcase(s, tcase);
    return s;
}

int main(void)
{
    return support_main(suite());
}
