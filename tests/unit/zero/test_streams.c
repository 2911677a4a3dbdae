/* test_streams.c - the engine's streams and fences, without a GPU: on a device whose streams are threads of random
 * speed (async_device.h), every run gives the text of the plain CPU, where everything happens in one order. A missing
 * wait would be found: with each kind of wait left out, a run fails or gives another text. The runs are
 * tests/mpi/stream_cases, whose header lists what they check on every rank. */
#define SUPPORT_SANITIZE_SOME
#include "tests/support/stream_runs.h"

START_TEST(streams_of_any_speed_give_the_bits_of_one_order)
{
    static const char *const variants[] = {"stage=3 seed=2 prefetch=3 delay_us=800",
                                           "stage=3 seed=3",
                                           "stage=3 seed=7 slow_gathers=20 delay_us=200",
                                           "stage=2 seed=4",
                                           "stage=1 seed=5",
                                           "stage=0 seed=6",
                                           "stage=3 overlap=0",
                                           NULL};
    expect_plain_text(_i == 1 ? 2 : 3, settings_of[_i], variants);
}
END_TEST

/* Noise on reduced gradients, and what changes weights behind their update, are work in the stream like any other. */
START_TEST(work_that_hooks_queue_gives_the_bits_of_one_order)
{
    static const char *const variants[] = {"stage=3 seed=2 delay_us=800", "stage=2 seed=3 prefetch=3",
                                           "stage=1 seed=4 overlap=0", "stage=0 seed=5 delay_us=800", NULL};
    expect_plain_text(
        2 + _i, _i == 0 ? "hooks=2 steps=8 cancels=1 nan_at=3" : "hooks=2 steps=6 micro_steps=2 every=1 dtype=fp16",
        variants);
}
END_TEST

/* Sizes that need no padding, so that embedding and head are one buffer class (test_layout.c): what one left in the
 * buffer would show in the other's norm. */
START_TEST(an_embedding_and_a_head_in_one_buffer_give_the_same_bits)
{
    static const char *const variants[] = {"stage=3 seed=2 delay_us=800",
                                           "stage=3 prefetch=3 seed=3",
                                           "stage=3 prefetch=2147483647",
                                           "stage=2 seed=4",
                                           "stage=3 overlap=0",
                                           "stage=0",
                                           NULL};
    expect_plain_text(3, "rows=480 untied=1 steps=6 micro_steps=2 every=1", variants);
}
END_TEST

/* Five blocks, two buffers: forward gathers all seven units, backward three blocks and the embedding, whose buffer the
 * head has taken. It is not gathered there if its backward does without; each block that is kept beyond two is not. */
START_TEST(kept_and_unread_units_are_not_gathered_again_and_the_bits_are_the_same)
{
    static const char *const variants[] = {"unshard=1 gathers=11",
                                           "unshard=0 gathers=10 seed=2 delay_us=800",
                                           "unshard=0 gathers=10 keep=3",
                                           "unshard=0 gathers=9 keep=4 seed=3",
                                           "unshard=0 gathers=7 keep=6 seed=4 delay_us=800",
                                           "unshard=1 gathers=7 keep=7 seed=5 prefetch=3",
                                           "unshard=0 gathers=7 keep=1000 prefetch=0",
                                           "unshard=0 keep=4 overlap=0 gathers=9",
                                           "unshard=0 stage=2 keep=4",
                                           "unshard=0 stage=0",
                                           NULL};
    expect_plain_text(3, "rows=480 untied=1 lookup=1 steps=6 micro_steps=2 every=1", variants);
    static const char *const tied[] = {"unshard=0 seed=2 delay_us=800", "unshard=0 keep=4 prefetch=3",
                                       "unshard=0 stage=1", NULL};
    expect_plain_text(2, "lookup=1 steps=6", tied);
}
END_TEST

/* Units of both kinds of tensors, and one that is frozen as a whole, also when all weights are set under way. */
START_TEST(frozen_tensors_give_the_same_bits)
{
    static const char *const variants[] = {"seed=2 delay_us=800", "prefetch=3 seed=3 slow_gathers=20",
                                           "offload=100 seed=4",  "stage=2 seed=5",
                                           "stage=1 offload=60",  "stage=0 seed=6",
                                           "keep=4 overlap=0",    NULL};
    expect_plain_text(2 + _i, _i == 0 ? "frozen=1 steps=8 asks=1" : "frozen=1 steps=6 fp8=fp8 micro_steps=2 every=1",
                      variants);
}
END_TEST

/* Two and more units without gradients between two that have some: the first one's sum is queued behind the backward of
 * the second, so its buffer may not be taken in between. */
START_TEST(frozen_units_between_trained_ones_give_the_same_bits)
{
    static const char *const settings[] = {"whole=44 steps=4", "whole=59 untied=1 steps=4 micro_steps=2 every=1"};
    static const char *const variants[] = {"seed=2 delay_us=800", "stage=2 seed=3", "stage=1 seed=4", "overlap=0",
                                           NULL};
    expect_plain_text(2 + _i, settings[_i], variants);
}
END_TEST

/* Blocks of 1700 elements: what is free is enough for some of them (stream_cases checks that). */
START_TEST(keep_auto_fits_into_free_memory_and_the_bits_are_the_same)
{
    static const char *const variants[] = {"keep=-1 available=1000000", "keep=-1 available=1000000 seed=2 prefetch=0",
                                           NULL};
    expect_plain_text(3, "steps=6 blocks=20", variants);
}
END_TEST

/* A shard of 25,600 elements is sent in four chunks of 8192, two of which are summed before the last arrives; or in two
 * of 16,384; or, without overlap, one after the other. */
#define CHUNKS "rows=1920 untied=1 steps=6"
START_TEST(chunked_reductions_have_the_same_bits)
{
    if (_i == 0 && support_is_left_to_plain_build())
        return;
    static const char *const settings[] = {CHUNKS " dtype=fp32 micro_steps=2 every=1", CHUNKS " dtype=fp16 nan_at=5"};
    static const char *const variants[] = {"staging=1 stage=3 seed=2 delay_us=800",
                                           "staging=200000 stage=2 seed=3",
                                           "staging=1 stage=1 seed=4",
                                           "staging=1 stage=0 seed=5",
                                           "staging=1 stage=3 overlap=0",
                                           NULL};
    expect_plain_text(3, settings[_i], variants);
}
END_TEST

START_TEST(chunked_reductions_by_messages_have_the_same_bits)
{
    char *whole = text_of(3, CHUNKS " device=cpu");
    char *chunks = text_of(3, "comm=mpi " CHUNKS " device=cpu staging=1 stage=3");
    ck_assert(whole && chunks);
    ck_assert_str_eq(whole, chunks);
    free(whole);
    free(chunks);
}
END_TEST

/* Parts are brought up to date behind the update on all ranks, and before their groups gather them. */
START_TEST(shard_groups_give_the_bits_of_one_order)
{
    static const char *const variants[] = {"stage=3 group=2 seed=2 prefetch=3 delay_us=800",
                                           "stage=3 group=1 seed=3",
                                           "stage=3 group=2 seed=7 slow_gathers=20 delay_us=200",
                                           "stage=3 group=2 seed=4 staging=1",
                                           "stage=3 group=2 overlap=0",
                                           "stage=3 group=2 seed=5 offload=100 update=device",
                                           "stage=3 group=2 seed=6 offload=50 update=host",
                                           NULL};
    if (support_leaves_out(4))
        return;
    expect_plain_text(4, settings_of[_i], variants);
}
END_TEST

/* What crosses hosts comes in rounds through little staging memory, whole hosts' groups stay inside, uneven hosts send
 * messages. */
START_TEST(ranks_of_several_hosts_give_the_bits_of_one_order)
{
    static const struct {
        int n_ranks;
        const char *hosts, *settings;
        const char *variants[9];
    } rows[] = {
        {4,
         "hosts=pairs",
         "steps=12 dtype=bf16",
         {"stage=3 seed=2 prefetch=3 delay_us=800", "stage=3 seed=3 slow_gathers=20 delay_us=200", "stage=2 seed=4",
          "stage=1 seed=5", "stage=0 seed=6", "stage=3 overlap=0", "stage=3 group=2 seed=7", "stage=3 group=1 seed=8"}},
        {6,
         "hosts=threes",
         CHUNKS " dtype=fp32 micro_steps=2 every=1",
         {"staging=1 stage=3 seed=2", "stage=3 group=3 seed=3", "stage=3 group=2 seed=4", "stage=1 seed=5",
          "stage=0 seed=6"}},
        {6,
         "hosts=pairs",
         "steps=6 fp8=fp8 frozen=1",
         {"stage=3 seed=2", "stage=3 group=2 seed=3", "stage=3 group=3 seed=4", "stage=1 seed=5"}},
        {3, "hosts=one", "steps=6 dtype=fp16 nan_at=5", {"stage=3", "stage=1 seed=2", "stage=0 seed=3"}},
        {4, "hosts=turns", "steps=6", {"stage=3 trace=1", "stage=3 group=2 seed=2"}}};
    if (support_leaves_out(rows[_i].n_ranks))
        return;
    expect_text_among(rows[_i].hosts, rows[_i].n_ranks, rows[_i].settings, rows[_i].variants);
}
END_TEST

/* Passes that are cancelled anywhere, with all kinds of work under way, leave no trace in what follows. */
START_TEST(cancelled_passes_change_no_bit)
{
    static const char *const plain[] = {"cancels=1 stage=3 seed=7 slow_gathers=20 delay_us=200 trace=1",
                                        "cancels=1 stage=1 seed=5", NULL};
    static const char *const accumulating[] = {"cancels=1 stage=3 seed=2 prefetch=3", "cancels=1 stage=2 seed=4",
                                               "cancels=1 stage=0 seed=6 created=2", NULL};
    expect_plain_text(3, settings_of[_i], _i == 0 ? plain : accumulating);
}
END_TEST

/* What is poisoned is poisoned in time, and nothing else is. */
START_TEST(checks_change_no_bit)
{
    if (_i > 0 && support_is_left_to_plain_build())
        return;
    static const char *const variants[] = {"check=1 stage=3 seed=2 prefetch=3 delay_us=800",
                                           "check=1 stage=2 seed=4",
                                           "check=1 stage=1 seed=5",
                                           "check=1 stage=0 seed=6",
                                           "check=1 stage=3 overlap=0",
                                           NULL};
    expect_plain_text(3, settings_of[_i], variants);
}
END_TEST

/* At stage 0 state that is set is sent from its owners to all ranks, after steps under way have read the old. */
START_TEST(state_can_be_set_at_stage_0_while_the_device_is_busy)
{
    static const char *const variants[] = {"stage=0 seed=2", "stage=0 seed=3 delay_us=800", NULL};
    expect_plain_text(3, "asks=1 steps=6", variants);
}
END_TEST

START_TEST(two_hundred_steps_at_random_speeds)
{
    if (support_is_left_to_plain_build())
        return;
    expect_plain_text(3, "steps=200", (const char *const[]){"stage=3 seed=3 prefetch=2", NULL});
}
END_TEST

/* The four runs of `settings`, at all stages, give the same text, and another than `settings` without the transport. */
static void expect_sums_of_its_own(const char *settings)
{
    char runs[512];
    snprintf(runs, sizeof runs,
             "%s nccl=1 stage=3 / %s nccl=1 stage=2 seed=2 / %s nccl=1 stage=1 seed=3 delay_us=800 / "
             "%s nccl=1 stage=0 seed=4",
             settings, settings, settings, settings);
    char *all = text_of(3, runs), *ordered = text_of(3, settings);
    ck_assert(all && ordered && strlen(all) % 4 == 0);
    size_t length = strlen(all) / 4;
    for (int stage = 1; stage < 4; stage++)
        ck_assert_msg(strncmp(all, all + (size_t)stage * length, length) == 0, "%s", all);
    ck_assert_msg(strncmp(all, ordered, length) != 0, "the sums are ours: %s", settings);
    free(all);
    free(ordered);
}

/* The device's transport reduces slices in rank order, so in fp32 the text is that of sums in our order. In narrower
 * types it rounds after every rank; and with several micro-steps it adds the ranks' slices before it adds them to what
 * is there. */
START_TEST(a_transport_that_reduces_gives_its_own_sums_at_every_stage)
{
    expect_plain_text(3, "steps=6 dtype=fp32",
                      (const char *const[]){"nccl=1 stage=3 seed=2 prefetch=3 delay_us=800", "nccl=1 stage=1 seed=4",
                                            "nccl=1 stage=0 seed=5", "nccl=1 stage=3 overlap=0", NULL});
    expect_sums_of_its_own("dtype=bf16");
    expect_sums_of_its_own("steps=6 dtype=fp32 micro_steps=2 every=1");
}
END_TEST

START_TEST(one_rank_and_the_cpu_do_without_a_transport_that_reduces)
{
    expect_plain_text(1, "steps=12", (const char *const[]){"nccl=1 stage=3", "nccl=1 stage=0", NULL});
    expect_plain_text(2, "steps=12", (const char *const[]){"device=cpu nccl=1", NULL});
}
END_TEST

/* Where `auto` would choose copy engines: every stage, with the optimizer's state on the device, updated there or on
 * the host. */
START_TEST(messages_between_devices_give_the_same_bits)
{
    if (_i > 0 && support_is_left_to_plain_build())
        return;
    static const char *const runs[N_SETTINGS][3] = {{"seed=2 delay_us=800", "stage=2 seed=4", "offload=60"},
                                                    {"prefetch=3 seed=3", "stage=1 offload=60", "stage=0"},
                                                    {"trace=1 staging=1", "overlap=0", "offload=60 update=host"}};
    char plain[128], messages[512];
    snprintf(plain, sizeof plain, "device=cpu %s", settings_of[_i]);
    snprintf(messages, sizeof messages, "comm=mpi %s %s / %s %s / %s %s", settings_of[_i], runs[_i][0], settings_of[_i],
             runs[_i][1], settings_of[_i], runs[_i][2]);
    char *want = text_of(3, plain), *got = text_of(3, messages);
    ck_assert(want && got);
    ck_assert_uint_eq(strlen(got), 3 * strlen(want));
    for (size_t i = 0; i < 3; i++)
        ck_assert_msg(strncmp(got + i * strlen(want), want, strlen(want)) == 0, "%s, %s", settings_of[_i], runs[_i][i]);
    free(want);
    free(got);
}
END_TEST

START_TEST(streams_end_before_their_memory_when_a_peer_is_lost)
{
    char *text = text_of(2, "comm=mpi steps=2 loses=1");
    ck_assert(text);
    free(text);
    if (support_leaves_out(4))
        return;
    text = text_of(4, "hosts=pairs steps=2 loses=1");
    ck_assert(text);
    free(text);
}
END_TEST

START_TEST(messages_between_devices_cannot_reduce)
{
    support_output_t output;
    int code = support_mpirun(&output, LIMIT_S, 2, "%s/tests/mpi/stream_cases comm=mpi nccl=1", support_build());
    ck_assert_int_ne(code, 0);
    /* All ranks are refused, and one line says it: what the test's program prints repeats the reason. */
    ck_assert_msg(support_count(output.err, "zero: rank 0: nccl_reduction: MPI messages do not add") == 1, "%s",
                  output.err);
    ck_assert_msg(support_count(output.err, "zero: rank 1") == 0, "%s", output.err);
    support_output_free(&output);
}
END_TEST

/* stream_cases checks the spans: every kind of work, one after another, and waits that add up to exposed_comm_ms. */
START_TEST(a_trace_has_every_kind_of_work_and_changes_no_bit)
{
    static const char *const variants[] = {"trace=1 stage=3", "trace=1 stage=2",   "trace=1 stage=1",
                                           "trace=1 stage=0", "trace=1 overlap=0", NULL};
    expect_plain_text(3, "steps=4 micro_steps=2 every=1", variants);
}
END_TEST

/* A step that has ended may have started gathers for the next, which is not queued yet when the result is read. */
START_TEST(waiting_for_each_step_changes_no_bit)
{
    if (support_is_left_to_plain_build())
        return;
    static const char *const variants[] = {"stage=1 delay_us=4000", "stage=2 seed=2 delay_us=4000",
                                           "stage=3 seed=3 prefetch=2", NULL};
    expect_plain_text(3, "late=0 dtype=fp32", variants);
}
END_TEST

/* 269 chunks per unit, and a ring of 256 timed events: chunks that are summed while others arrive need none. */
START_TEST(a_unit_of_many_chunks_is_in_the_trace)
{
    expect_plain_text(2, "rows=110000 untied=1 blocks=0 steps=1", (const char *const[]){"staging=1 trace=1", NULL});
}
END_TEST

/* Embedding and head take turns in one buffer, so the pass after the pause begins with a gather. Compute had nothing to
 * do until the host returned, so it did not wait for that gather. */
START_TEST(a_pause_after_an_evaluation_is_no_wait)
{
    expect_plain_text(3, "rows=480 untied=1 steps=11 delay_us=20 idle_ms=200",
                      (const char *const[]){"stage=3", "stage=3 prefetch=0 trace=1", "stage=1", NULL});
}
END_TEST

/* A slice of the embedding comes in six rounds. */
#define ROUNDS "rows=1920 untied=1"

/* The engine's settings, and the toy's, which the plain CPU trains too. */
static const struct {
    async_fault_t fault;
    const char *settings, *toy;
} FAULTS[] = {
    {ASYNC_COMPUTE_AHEAD_OF_GATHER, "stage=3", ""},          {ASYNC_GATHER_AHEAD_OF_COMPUTE, "stage=1", ""},
    {ASYNC_REDUCE_AHEAD_OF_COMPUTE, "stage=3", ""},          {ASYNC_REDUCE_AHEAD_OF_COMPUTE, "stage=1 nccl=1", ""},
    {ASYNC_COMPUTE_AHEAD_OF_REDUCE, "stage=1", ""},          {ASYNC_COMPUTE_AHEAD_OF_REDUCE, "stage=3 nccl=1", ""},
    {ASYNC_STAGING_BEFORE_SUM, "stage=3 staging=1", CHUNKS}, {ASYNC_NO_FENCE, "stage=3", ""},
    {ASYNC_SEND_AHEAD_OF_WRITE, "stage=3", ROUNDS},          {ASYNC_SUM_AHEAD_OF_RECEIVE, "stage=3", ROUNDS},
    {ASYNC_COPY_AHEAD_OF_RECEIVE, "stage=3", ROUNDS},        {ASYNC_COPY_AHEAD_OF_FENCE, "stage=3", ROUNDS},
    {ASYNC_RECEIVE_AHEAD_OF_COPY, "stage=3", ROUNDS}};
#define N_FAULTS (int)(sizeof FAULTS / sizeof FAULTS[0])

START_TEST(a_missing_wait_is_found)
{
    if (support_is_left_to_plain_build())
        return;
    const bool are_rails = FAULTS[_i].fault >= ASYNC_SEND_AHEAD_OF_WRITE;
    if (are_rails && support_leaves_out(4))
        return;
    expect_fault_shows_among(are_rails ? "hosts=pairs" : "", are_rails ? 4 : 3, FAULTS[_i].fault, FAULTS[_i].settings,
                             FAULTS[_i].toy);
}
END_TEST

/* A run that fails for another reason would pass for a fault that is found. */
START_TEST(only_wrong_values_count_as_a_fault_that_shows)
{
    ck_assert(fault_shows(0, "other", "", "text"));
    ck_assert(!fault_shows(0, "text", "", "text"));
    ck_assert(fault_shows(1, "", "stream_cases.c:9: not so: x: parameters differ by rank\n", "text"));
    ck_assert(!fault_shows(139, "", "not so: x: parameters differ by rank\n", "text"));
    ck_assert(!fault_shows(SUPPORT_TIMED_OUT, "", "", "text"));

    support_output_t output;
    int code = support_mpirun(&output, LIMIT_S, 1, "%s/tests/mpi/stream_cases steps=20 nonsense=1", support_build());
    ck_assert_int_ne(code, 0);
    ck_assert(!fault_shows(code, output.out, output.err, "text"));
    support_output_free(&output);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("streams");
    TCase *tcase = tcase_create("at random speeds"), *lengthy = support_long_case(s, 300);
    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(tcase, streams_of_any_speed_give_the_bits_of_one_order, 0, N_SETTINGS);
    SUPPORT_ADD_LOOP(tcase, lengthy, shard_groups_give_the_bits_of_one_order, 1, N_SETTINGS);
    SUPPORT_ADD_LOOP(tcase, lengthy, ranks_of_several_hosts_give_the_bits_of_one_order, 2, 5);
    SUPPORT_ADD_LOOP(tcase, lengthy, work_that_hooks_queue_gives_the_bits_of_one_order, 1, 2);
    tcase_add_test(tcase, an_embedding_and_a_head_in_one_buffer_give_the_same_bits);
    tcase_add_test(tcase, kept_and_unread_units_are_not_gathered_again_and_the_bits_are_the_same);
    SUPPORT_ADD_LOOP(tcase, lengthy, frozen_tensors_give_the_same_bits, 1, 2);
    SUPPORT_ADD_LOOP(tcase, lengthy, frozen_units_between_trained_ones_give_the_same_bits, 1, 2);
    tcase_add_test(tcase, keep_auto_fits_into_free_memory_and_the_bits_are_the_same);
    SUPPORT_ADD_LOOP(tcase, lengthy, chunked_reductions_have_the_same_bits, 1, 2);
    tcase_add_test(tcase, chunked_reductions_by_messages_have_the_same_bits);
    SUPPORT_ADD_LOOP(tcase, lengthy, checks_change_no_bit, 1, N_SETTINGS);
    SUPPORT_ADD_LOOP(tcase, lengthy, cancelled_passes_change_no_bit, 1, 2);
    tcase_add_test(tcase, state_can_be_set_at_stage_0_while_the_device_is_busy);
    SUPPORT_ADD_LOOP(tcase, lengthy, messages_between_devices_give_the_same_bits, 1, N_SETTINGS);
    tcase_add_test(tcase, streams_end_before_their_memory_when_a_peer_is_lost);
    tcase_add_test(tcase, messages_between_devices_cannot_reduce);
    tcase_add_test(tcase, a_transport_that_reduces_gives_its_own_sums_at_every_stage);
    tcase_add_test(tcase, one_rank_and_the_cpu_do_without_a_transport_that_reduces);
    tcase_add_test(tcase, a_trace_has_every_kind_of_work_and_changes_no_bit);
    tcase_add_test(lengthy, waiting_for_each_step_changes_no_bit);
    tcase_add_test(tcase, a_unit_of_many_chunks_is_in_the_trace);
    tcase_add_test(tcase, a_pause_after_an_evaluation_is_no_wait);
    tcase_add_loop_test(tcase, a_missing_wait_is_found, 0, 1);
    tcase_add_loop_test(lengthy, a_missing_wait_is_found, 1, N_FAULTS);
    tcase_add_test(lengthy, two_hundred_steps_at_random_speeds);
    tcase_add_test(tcase, only_wrong_values_count_as_a_fault_that_shows);
    suite_add_tcase(s, tcase);
    return s;
}

int main(void)
{
    leave_out_checks();
    return support_main(suite());
}
