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
        fprintf(stderr, "%d ranks, %s: exit code %d\n%.600s\n", n_ranks, settings, code, output.err);
    support_output_free(&output);
    return text;
}

/* The runs of all `variants` of `settings` give the text that the plain CPU gives, which the same ranks run first. NULL
 * ends the variants. */
static void expect_plain_text(int n_ranks, const char *settings, const char *const *variants)
{
    char runs[1024];
    size_t n_runs = 1;
    snprintf(runs, sizeof runs, "device=cpu %s", settings);
    for (; variants[n_runs - 1]; n_runs++)
        snprintf(runs + strlen(runs), sizeof runs - strlen(runs), " / %s %s", settings, variants[n_runs - 1]);
    char *got = text_of(n_ranks, runs);
    ck_assert_msg(got != NULL, "%d ranks, %s", n_ranks, runs);
    size_t length = strlen(got) / n_runs;
    ck_assert_msg(length > 100 && strlen(got) == n_runs * length, "%d ranks, %s: %s", n_ranks, runs, got);
    for (size_t i = 1; i < n_runs; i++)
        ck_assert_msg(strncmp(got + i * length, got, length) == 0, "%d ranks, %s: %s gives\n%sinstead of\n%s", n_ranks,
                      settings, variants[i - 1], got + i * length, got);
    free(got);
}

static const char *const settings_of[] = {"steps=12 dtype=bf16", "steps=6 dtype=fp32 micro_steps=3 every=1",
                                          "steps=12 dtype=fp16 nan_at=5"};
#define N_SETTINGS 3

START_TEST(streams_of_any_speed_give_the_bits_of_one_order)
{
    static const char *const variants[] = {"stage=3 seed=2 prefetch=3 delay_us=800",
                                           "stage=3 seed=3",
                                           "stage=2 seed=4",
                                           "stage=1 seed=5",
                                           "stage=0 seed=6",
                                           "stage=3 overlap=0",
                                           NULL};
    expect_plain_text(_i == 1 ? 2 : 3, settings_of[_i], variants);
}
END_TEST

/* Sizes that need no padding, so that embedding and head are one class (test_layout.c): what one left in a slot would
 * show in the other's norm. */
START_TEST(an_embedding_and_a_head_in_one_slot_give_the_same_bits)
{
    static const char *const variants[] = {"stage=3 seed=2 delay_us=800",
                                           "stage=3 prefetch=3 seed=3",
                                           "stage=2 seed=4",
                                           "stage=3 overlap=0",
                                           "stage=0",
                                           NULL};
    expect_plain_text(3, "rows=480 untied=1 steps=6 micro_steps=2 every=1", variants);
}
END_TEST

/* A shard of 25,600 elements travels in four pieces of 8192, two of which are summed on the way; in two of 16,384;
 * where nothing is beside anything, one after the other. */
#define PIECES "rows=1920 untied=1 steps=6"
START_TEST(pieces_give_the_bits_of_the_whole)
{
    static const char *const settings[] = {PIECES " dtype=fp32 micro_steps=2 every=1", PIECES " dtype=fp16 nan_at=5"};
    static const char *const variants[] = {"staging=1 stage=3 seed=2 delay_us=800",
                                           "staging=200000 stage=2 seed=3",
                                           "staging=1 stage=1 seed=4",
                                           "staging=1 stage=0 seed=5",
                                           "staging=1 stage=3 overlap=0",
                                           "staging=1 stage=1 offload=40",
                                           NULL};
    expect_plain_text(3, settings[_i], variants);
}
END_TEST

START_TEST(pieces_travel_as_messages_too)
{
    char *whole = text_of(3, PIECES " device=cpu");
    char *pieces = text_of(3, "comm=mpi " PIECES " device=cpu staging=1 stage=3");
    ck_assert(whole && pieces);
    ck_assert_str_eq(whole, pieces);
    free(whole);
    free(pieces);
}
END_TEST

/* All of the state, some of it, by any number of threads; one rank has nobody to gather from. Memory that cannot be
 * pinned is slower and no different. */
START_TEST(offload_gives_the_same_bits)
{
    static const char *const variants[] = {
        "offload=100 stage=3 seed=2 threads=3", "offload=100 stage=1 seed=3",
        "offload=100 stage=2 pins=0",           "offload=30 stage=1 threads=2",
        "offload=30 stage=2 seed=4 threads=7",  "offload=30 stage=3 prefetch=3 delay_us=800",
        "offload=30 stage=3 overlap=0",         NULL};
    expect_plain_text(1 + _i, settings_of[_i], variants);
}
END_TEST

/* Sums that grow over the micro-steps stay on the device until the last; those of one reduction take turns. Stages 0
 * and 1 add up the micro-steps before they reduce, so theirs are other bits. */
START_TEST(offload_gives_the_same_bits_with_accumulation)
{
    static const char *const each[] = {"offload=100 stage=3 threads=2", "offload=30 stage=2", NULL};
    static const char *const once[] = {"offload=100 stage=1 threads=2", "offload=30 stage=1", NULL};
    expect_plain_text(3, "micro_steps=4 steps=8", each);
    expect_plain_text(2, "micro_steps=4 steps=8 stage=1", once);
    expect_plain_text(2, "micro_steps=4 steps=8 stage=1 dtype=fp32", once);
}
END_TEST

/* stream_cases checks that it hosts some of the state and not all, and fits. */
START_TEST(offload_as_much_as_must_be_gives_the_same_bits)
{
    static const char *const variants[] = {"offload=-1 stage=1 available=123000", "offload=-1 stage=2 available=123000",
                                           "offload=-1 stage=3 available=123000", NULL};
    expect_plain_text(3, "steps=6", variants);
}
END_TEST

/* On all six streams: some units' state is on the device, some on the host. */
START_TEST(two_hundred_steps_at_random_speeds)
{
    expect_plain_text(3, "steps=200", (const char *const[]){"stage=3 seed=3 prefetch=2 offload=40", NULL});
}
END_TEST

/* The device's transport adds slices in rank order, so in fp32 the text is that of sums in our order; in narrower
 * types, where it rounds after every rank, no stage gives another text than the others. */
START_TEST(a_transport_that_adds_gives_its_own_sums_at_every_stage)
{
    expect_plain_text(3, "steps=6 dtype=fp32 micro_steps=2 every=1",
                      (const char *const[]){"nccl=1 stage=3 seed=2 prefetch=3 delay_us=800", "nccl=1 stage=1 seed=4",
                                            "nccl=1 stage=0 seed=5", "nccl=1 stage=3 overlap=0",
                                            "nccl=1 stage=1 offload=40", NULL});
    char *all = text_of(3, "dtype=bf16 nccl=1 stage=3 / dtype=bf16 nccl=1 stage=2 seed=2 / "
                           "dtype=bf16 nccl=1 stage=1 seed=3 delay_us=800 / dtype=bf16 nccl=1 stage=0 seed=4");
    char *ordered = text_of(3, "dtype=bf16 stage=3");
    ck_assert(all && ordered && strlen(all) % 4 == 0);
    size_t length = strlen(all) / 4;
    for (int stage = 1; stage < 4; stage++)
        ck_assert_msg(strncmp(all, all + (size_t)stage * length, length) == 0, "%s", all);
    ck_assert_msg(strncmp(all, ordered, length) != 0, "sums rounded after every rank are those rounded never");
    free(all);
    free(ordered);
}
END_TEST

START_TEST(one_rank_and_the_cpu_have_no_use_for_a_transport_that_adds)
{
    expect_plain_text(1, "steps=12", (const char *const[]){"nccl=1 stage=3", "nccl=1 stage=0", NULL});
    expect_plain_text(2, "steps=12", (const char *const[]){"device=cpu nccl=1", NULL});
}
END_TEST

/* stream_cases checks what it is told: every kind of work, one after another, waits that are exposed_comm_ms. */
START_TEST(a_trace_has_every_kind_of_work_and_changes_no_bit)
{
    static const char *const variants[] = {"trace=1 stage=3", "trace=1 stage=2", "trace=1 stage=1", "trace=1 stage=0",
                                           NULL};
    expect_plain_text(3, "steps=4 micro_steps=2 every=1", variants);
}
END_TEST

/* The engine's settings, and the toy's, which the plain CPU trains too. */
static const struct {
    async_fault_t fault;
    const char *settings, *toy;
} FAULTS[] = {
    {ASYNC_COMPUTE_AHEAD_OF_GATHER, "stage=3", ""},          {ASYNC_GATHER_AHEAD_OF_COMPUTE, "stage=1", ""},
    {ASYNC_REDUCE_AHEAD_OF_COMPUTE, "stage=3", ""},          {ASYNC_REDUCE_AHEAD_OF_COMPUTE, "stage=1 nccl=1", ""},
    {ASYNC_COMPUTE_AHEAD_OF_REDUCE, "stage=1", ""},          {ASYNC_COMPUTE_AHEAD_OF_REDUCE, "stage=3 nccl=1", ""},
    {ASYNC_STAGING_BEFORE_SUM, "stage=3 staging=1", PIECES}, {ASYNC_NO_FENCE, "stage=3", ""},
    {ASYNC_HOST_AHEAD_OF_DEVICE, "stage=1 offload=100", ""}, {ASYNC_DEVICE_AHEAD_OF_HOST, "stage=3 offload=100", ""}};
#define N_FAULTS (int)(sizeof FAULTS / sizeof FAULTS[0])

START_TEST(a_missing_wait_shows)
{
    char plain[96], faulty[160];
    snprintf(plain, sizeof plain, "device=cpu dtype=fp32 steps=20 %s", FAULTS[_i].toy);
    snprintf(faulty, sizeof faulty, "dtype=fp32 steps=20 %s %s fault=%d", FAULTS[_i].toy, FAULTS[_i].settings,
             (int)FAULTS[_i].fault);
    char *want = text_of(3, plain), *got = text_of(3, faulty);
    ck_assert(want != NULL);
    ck_assert_msg(!got || strcmp(got, want) != 0, "%s shows nothing", faulty);
    free(want);
    free(got);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("streams");
    TCase *tcase = tcase_create("at random speeds");
    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(tcase, streams_of_any_speed_give_the_bits_of_one_order, 0, N_SETTINGS);
    tcase_add_test(tcase, an_embedding_and_a_head_in_one_slot_give_the_same_bits);
    tcase_add_loop_test(tcase, pieces_give_the_bits_of_the_whole, 0, 2);
    tcase_add_test(tcase, pieces_travel_as_messages_too);
    tcase_add_loop_test(tcase, offload_gives_the_same_bits, 0, N_SETTINGS);
    tcase_add_test(tcase, offload_gives_the_same_bits_with_accumulation);
    tcase_add_test(tcase, offload_as_much_as_must_be_gives_the_same_bits);
    tcase_add_test(tcase, two_hundred_steps_at_random_speeds);
    tcase_add_test(tcase, a_transport_that_adds_gives_its_own_sums_at_every_stage);
    tcase_add_test(tcase, one_rank_and_the_cpu_have_no_use_for_a_transport_that_adds);
    tcase_add_test(tcase, a_trace_has_every_kind_of_work_and_changes_no_bit);
    tcase_add_loop_test(tcase, a_missing_wait_shows, 0, N_FAULTS);
    suite_add_tcase(s, tcase);
    return s;
}

int main(void)
{
    return support_main(suite());
}
