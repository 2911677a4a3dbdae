/* test_offload.c - optimizer state on the host, without a GPU, with both updates: on a device whose streams are threads
 * of random speed (async_device.h) every run gives the text of the plain CPU, which has no offload. A missing wait
 * would be found. The runs are tests/mpi/stream_cases, whose header lists what they check on every rank. */
#define SUPPORT_SANITIZE_SOME
#include "tests/support/stream_runs.h"

static const char *const updates[] = {"update=device", "update=host"};
#define N_UPDATES 2

/* As expect_plain_text, with every variant of offload updated by `update`. */
static void expect_plain_text_of(const char *update, int n_ranks, const char *settings, const char *const *variants)
{
    char text[8][128];
    const char *with_update[9] = {NULL};
    for (int i = 0; variants[i]; i++) {
        snprintf(text[i], sizeof text[i], "%s %s", variants[i], update);
        with_update[i] = text[i];
    }
    expect_plain_text(n_ranks, settings, with_update);
}

/* Half of the runs under sanitizers: each of the two updates, in turn. */
static bool is_left_out(int i)
{
    return (i % N_UPDATES + i / N_UPDATES) % 2 == 1 && support_is_left_to_plain_build();
}

/* All of the state or some of it, in one chunk per unit or in many (buffer), with any number of threads; one rank
 * gathers from no other. Memory that cannot be pinned is slower and gives the same bits. */
START_TEST(offload_changes_no_bit)
{
    static const char *const variants[] = {"offload=100 stage=3 seed=2 threads=3 trace=1",
                                           "offload=100 stage=1 seed=3 buffer=0",
                                           "offload=100 stage=2 pins=0",
                                           "offload=30 stage=1 threads=2 buffer=20000",
                                           "offload=30 stage=2 seed=4 threads=7",
                                           "offload=30 stage=3 prefetch=3 delay_us=800",
                                           "offload=30 stage=3 overlap=0",
                                           NULL};
    if (is_left_out(_i))
        return;
    expect_plain_text_of(updates[_i % N_UPDATES], 1 + _i / N_UPDATES, settings_of[_i / N_UPDATES], variants);
}
END_TEST

/* Optimizers with one state array, or with blocks: buffers, chunks and the host's memory have room for that alone. */
START_TEST(offload_changes_no_bit_of_other_optimizers)
{
    static const char *const variants[] = {"offload=100 stage=3 seed=2 threads=3",
                                           "offload=100 stage=1 seed=3 buffer=0",
                                           "offload=30 stage=2 threads=2 buffer=20000", NULL};
    static const char *const optimizers[] = {"optimizer=lion dtype=bf16", "optimizer=sgd dtype=fp16",
                                             "optimizer=adamw8bit dtype=fp32", "optimizer=adamw8bit dtype=bf16"};
    if (is_left_out(_i))
        return;
    expect_plain_text_of(updates[_i % N_UPDATES], 2, optimizers[_i / N_UPDATES], variants);
}
END_TEST

/* Settings of single tensors change while steps are under way: the scalars that are copied to the host, or found by
 * chunks that are queued later, are those of the step. */
START_TEST(offload_changes_no_bit_of_tensors_with_settings_of_their_own)
{
    static const char *const variants[] = {"offload=100 stage=3 seed=2 threads=3",
                                           "offload=100 stage=1 seed=3 buffer=600",
                                           "offload=30 stage=2 threads=2 activations=9000", NULL};
    if (is_left_out(_i))
        return;
    expect_plain_text_of(updates[_i % N_UPDATES], 1 + _i,
                         _i < N_UPDATES ? "schedule=1 steps=14" : "schedule=1 optimizer=nesterov dtype=fp16 nan_at=4",
                         variants);
}
END_TEST

/* What a hook does to reduced gradients in the stream is done before they leave. */
START_TEST(offload_changes_no_bit_of_gradients_that_hooks_change)
{
    static const char *const variants[] = {"offload=100 stage=3 seed=2", "offload=100 stage=1 buffer=600",
                                           "offload=30 stage=2 activations=9000", NULL};
    expect_plain_text_of(updates[_i], 2 + _i, "hooks=1 micro_steps=2 every=1", variants);
}
END_TEST

#define TABLES "rows=1920 untied=1 steps=6"

/* Sums that accumulate over micro-steps stay on the device until the last one, or wait on the host; those of a single
 * reduction take turns. Stages 0 and 1 add up the micro-steps before they reduce here (every=0), so their bits differ.
 */
START_TEST(offload_with_accumulation_changes_no_bit)
{
    static const char *const each[] = {"offload=100 stage=3 threads=2 sums=device", "offload=30 stage=2",
                                       "offload=100 stage=3 sums=host trace=1",
                                       "offload=60 stage=2 sums=host prefetch=3 seed=2 activations=9000", NULL};
    static const char *const once[] = {"offload=100 stage=1 threads=2", "offload=30 stage=1", NULL};
    expect_plain_text_of(updates[_i], 3, "micro_steps=4 steps=8", each);
    expect_plain_text_of(updates[_i], 5, "micro_steps=4 steps=8 stage=1", once);
    expect_plain_text_of(updates[_i], 2, "micro_steps=4 steps=8 stage=1 dtype=fp32", once);
}
END_TEST

/* One rank and several, in chunks that are summed early, units without gradients among the others, parameters on the
 * host as well, passes that end anywhere, state that is read and set, hooks, updates in backward. */
START_TEST(sums_on_the_host_change_no_bit)
{
    static const char *const variants[] = {"sums=host offload=100 stage=3 params=60 update=device",
                                           "sums=host offload=100 stage=1 staging=512 update=host delay_us=800",
                                           "sums=host offload=50 stage=2 overlap=0 update=device pins=0", NULL};
    static const char *const in_backward[] = {"sums=host backward=1 offload=100 stage=3 params=100 update=device",
                                              "sums=host backward=1 offload=60 stage=2 staging=512 slow_gathers=8",
                                              "sums=host backward=1 offload=100 stage=1 blocks=5 buffer=0", NULL};
    static const char *const steps[] = {"every=1 micro_steps=3 asks=1 steps=6",
                                        "every=1 micro_steps=2 whole=52 frozen=1",
                                        "every=1 micro_steps=3 cancels=1 dtype=fp32", "every=1 micro_steps=2 hooks=1"};
    static const char *const steps_in_backward[] = {
        "clip=0 every=1 micro_steps=2 steps=6", "clip=0 every=1 micro_steps=3 whole=52",
        "clip=0 every=1 micro_steps=2 steps=6 frozen=1", "clip=0 every=1 micro_steps=2 created=4 steps=6"};
    if (_i > 0 && support_is_left_to_plain_build())
        return;
    expect_plain_text(1 + _i % 3, steps[_i], variants);
    expect_plain_text(1 + _i % 3, steps_in_backward[_i], in_backward);
}
END_TEST

#define SHORT_OF_MEMORY "offload=100 stage=3 params=100 available=1100000"

/* What does not fit with the sums on the device does with those on the host, where auto puts them. */
START_TEST(sums_leave_where_the_plan_does_not_fit_with_them)
{
    static const char *const variants[] = {SHORT_OF_MEMORY, SHORT_OF_MEMORY " sums=host", NULL};
    support_output_t output;
    expect_plain_text(2, "micro_steps=3 every=1 " TABLES, variants);
    int code = support_mpirun(
        &output, LIMIT_S, 2,
        "%s/tests/mpi/stream_cases micro_steps=3 every=1 " TABLES " " SHORT_OF_MEMORY " sums=device", support_build());
    ck_assert_msg(code != 0 && strstr(output.err, ", offload_grads host"), "exit code %d\n%s", code, output.err);
    support_output_free(&output);
}
END_TEST

/* stream_cases checks that it hosts some of the state and not all, and fits; the toy's tables are so large that buffers
 * and the rounding to pages are little beside them. */
START_TEST(offload_auto_changes_no_bit)
{
    if (support_is_left_to_plain_build())
        return;
    static const char *const variants[] = {"offload=-1 stage=1 available=1900000",
                                           "offload=-1 stage=2 available=1700000",
                                           "offload=-1 stage=3 available=1700000", NULL};
    expect_plain_text_of(updates[_i], 3, TABLES, variants);
}
END_TEST

/* All or some of the state is staged in idle activations; in chunks that fit none of them; in activations that several
 * units use. Micro-steps before the last need them. */
START_TEST(offload_through_lent_activations_changes_no_bit)
{
    if (_i > 0 && support_is_left_to_plain_build())
        return;
    static const char *const variants[] = {"offload=100 stage=3 activations=30000 seed=2",
                                           "offload=100 stage=1 activations=3000 buffer=2000 seed=3",
                                           "offload=100 stage=2 activations=9000 buffer=30000 spans=3",
                                           "offload=40 stage=3 activations=5000 prefetch=2 delay_us=800 spans=2",
                                           "offload=100 stage=3 activations=30000 overlap=0",
                                           NULL};
    static const char *const each[] = {"offload=100 stage=3 activations=20000",
                                       "offload=60 stage=2 activations=4000 buffer=2000", NULL};
    expect_plain_text_of("update=device", 1 + _i, settings_of[_i], variants);
    if (_i == 0)
        expect_plain_text_of("update=device", 3, "micro_steps=3 steps=8", each);
}
END_TEST

/* State that was fetched to the device has been stored again before it is read or overwritten. */
START_TEST(offloaded_state_read_between_steps_has_the_same_bits)
{
    static const char *const variants[] = {"offload=100 stage=3", "offload=100 stage=2 activations=9000 buffer=1000",
                                           "offload=40 stage=3 buffer=600",
                                           "offload=100 stage=3 activations=30000 spans=3", NULL};
    if (is_left_out(_i))
        return;
    expect_plain_text_of(updates[_i % N_UPDATES], 1 + _i / N_UPDATES, "asks=1 dtype=bf16", variants);
}
END_TEST

/* A step that is cancelled with state fetched and activations lent: the next one finds none of it, also if the state
 * was read and set between the two. */
START_TEST(cancelled_passes_with_offload_change_no_bit)
{
    static const char *const variants[] = {"cancels=1 offload=100 stage=3 activations=30000 spans=3",
                                           "cancels=1 offload=40 stage=1 buffer=600", NULL};
    expect_plain_text_of(updates[_i], 2, "asks=1 micro_steps=2 every=1", variants);
}
END_TEST

/* By default the device updates if memory is pinned, else the host. It shows in the plan's bytes, which stream_cases
 * compares with what is held. */
START_TEST(the_host_updates_if_its_memory_is_not_pinned)
{
    expect_plain_text(3, "steps=6", (const char *const[]){"offload=60 stage=3", "offload=60 stage=2 pins=0", NULL});
}
END_TEST

/* A checkpoint written with one update is continued with the other, and that one without offload. */
START_TEST(checkpoints_do_not_depend_on_where_the_update_ran)
{
    static const char *const runs[][3] = {{"device=cpu", "device=cpu", "device=cpu"},
                                          {"offload=100 update=device", "offload=30 update=host", "stage=2"},
                                          {"offload=60 update=host", "offload=100 update=device stage=1", "stage=3"}};
    const char *dtype = _i == 0 ? "bf16" : _i == 1 ? "fp32" : "fp16";
    if (_i > 0 && support_is_left_to_plain_build())
        return;
    char *scratch = support_scratch(), *want = NULL;
    for (int i = 0; i < 3; i++) {
        char settings[1024] = "";
        for (int link = 0; link < 3; link++) {
            char directory[256];
            snprintf(directory, sizeof directory, "%s/checkpoints-%d", scratch, i);
            size_t at = strlen(settings);
            at += (size_t)snprintf(settings + at, sizeof settings - at, "%s%s dtype=%s steps=5 nan_at=3 save=%s",
                                   link ? " / " : "", runs[i][link], dtype, directory);
            if (link > 0)
                snprintf(settings + at, sizeof settings - at, " load=%s", directory);
        }
        char *text = text_of(3, settings);
        ck_assert_msg(text != NULL, "%s", settings);
        if (want)
            ck_assert_msg(strcmp(text, want) == 0, "%s gives\n%sinstead of\n%s", settings, text, want);
        else
            want = strdup(text);
        free(text);
    }
    free(scratch);
    free(want);
}
END_TEST

/* Gradients that are transferred in chunks, or that the transport reduces. */
/* A transport that reduces adds ranks before micro-steps, which the plain CPU does not: so the text is compared with
 * that of the same device without offload. */
static void expect_device_text_of(const char *update)
{
    char runs[256];
    const char *settings = "steps=6 dtype=fp32 micro_steps=3 every=1 nccl=1 stage=1";
    snprintf(runs, sizeof runs, "%s / %s offload=40 buffer=20000 %s", settings, settings, update);
    char *both = text_of(3, runs);
    ck_assert_msg(both && strlen(both) > 200, "%s", runs);
    size_t length = strlen(both) / 2;
    ck_assert_msg(strncmp(both, both + length, length) == 0, "%s: %s", runs, both);
    free(both);
}

START_TEST(offload_changes_no_bit_with_chunks_or_sums_in_transit)
{
    static const char *const chunks[] = {"staging=1 stage=1 offload=40 buffer=100000",
                                         "staging=1 stage=3 offload=100 buffer=60000", NULL};
    static const char *const reduced[] = {"nccl=1 stage=1 offload=40 buffer=20000", NULL};
    expect_plain_text_of(updates[_i], 3, TABLES, chunks);
    if (support_is_left_to_plain_build())
        return;
    expect_plain_text_of(updates[_i], 3, TABLES " dtype=fp16 nan_at=5", chunks);
    expect_plain_text_of(updates[_i], 3, "steps=6 dtype=fp32", reduced);
    expect_device_text_of(updates[_i]);
}
END_TEST

START_TEST(offload_changes_no_bit_in_two_hundred_steps)
{
    if (support_is_left_to_plain_build())
        return;
    expect_plain_text_of(updates[_i], 2, "steps=200",
                         (const char *const[]){"stage=1 seed=4 offload=100 buffer=20000", NULL});
}
END_TEST

static const struct {
    async_fault_t fault;
    const char *settings, *toy;
} FAULTS[] = {{ASYNC_HOST_AHEAD_OF_DEVICE, "stage=1 offload=100 update=host", ""},
              {ASYNC_DEVICE_AHEAD_OF_HOST, "stage=3 offload=100 update=host", ""},
              {ASYNC_COMPUTE_AHEAD_OF_COPY, "stage=3 offload=100 update=device", ""},
              {ASYNC_UPDATE_AHEAD_OF_DECISION, "stage=1 offload=100 update=device", ""},
              {ASYNC_UPDATE_AHEAD_OF_FETCH, "stage=1 offload=100 update=device", ""},
              {ASYNC_STORE_AHEAD_OF_UPDATE, "stage=1 offload=100 update=device", ""},
              {ASYNC_FETCH_AHEAD_OF_STORE, "stage=1 offload=100 update=device", ""},
              {ASYNC_FETCH_AHEAD_OF_GRADS, "stage=1 offload=100 update=device", ""},
              {ASYNC_GATHER_AHEAD_OF_UPDATE, "stage=1 offload=100 update=device", ""},
              {ASYNC_FETCH_AHEAD_OF_COMPUTE, "stage=3 offload=100 update=device activations=20000", ""},
              /* Sums that accumulate have buffers of their own: only activations are overwritten too early. */
              {ASYNC_COMPUTE_AHEAD_OF_COPY, "stage=3 offload=100 update=device activations=20000", "micro_steps=2"},
              {ASYNC_COMPUTE_AHEAD_OF_COPY, "stage=3 offload=100 update=host sums=host", "micro_steps=3"},
              {ASYNC_PARAMS_AHEAD_OF_STORE, "stage=3 offload=100 update=device sums=host", "micro_steps=3"},
              {ASYNC_COMPUTE_AHEAD_OF_SUMS, "stage=2 offload=100 update=host sums=host", "micro_steps=3"}};
#define N_FAULTS (int)(sizeof FAULTS / sizeof FAULTS[0])

START_TEST(a_missing_wait_is_found)
{
    if (support_is_left_to_plain_build())
        return;
    expect_fault_shows(FAULTS[_i].fault, FAULTS[_i].settings, FAULTS[_i].toy);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("offload");
    TCase *tcase = tcase_create("offload"), *lengthy = support_long_case(s, 300);
    tcase_set_timeout(tcase, 300);
    SUPPORT_ADD_LOOP(tcase, lengthy, offload_changes_no_bit, N_UPDATES, N_SETTINGS * N_UPDATES);
    SUPPORT_ADD_LOOP(tcase, lengthy, offload_changes_no_bit_of_other_optimizers, N_UPDATES, 4 * N_UPDATES);
    tcase_add_loop_test(tcase, offload_changes_no_bit_of_gradients_that_hooks_change, 0, N_UPDATES);
    SUPPORT_ADD_LOOP(tcase, lengthy, offload_changes_no_bit_of_tensors_with_settings_of_their_own, N_UPDATES,
                     2 * N_UPDATES);
    tcase_add_loop_test(tcase, offload_with_accumulation_changes_no_bit, 0, N_UPDATES);
    SUPPORT_ADD_LOOP(tcase, lengthy, sums_on_the_host_change_no_bit, 2, 4);
    tcase_add_test(tcase, sums_leave_where_the_plan_does_not_fit_with_them);
    tcase_add_loop_test(tcase, offload_auto_changes_no_bit, 0, N_UPDATES);
    tcase_add_loop_test(tcase, offload_changes_no_bit_with_chunks_or_sums_in_transit, 0, N_UPDATES);
    SUPPORT_ADD_LOOP(tcase, lengthy, offload_through_lent_activations_changes_no_bit, 1, N_SETTINGS);
    SUPPORT_ADD_LOOP(tcase, lengthy, offloaded_state_read_between_steps_has_the_same_bits, N_UPDATES, 3 * N_UPDATES);
    tcase_add_loop_test(tcase, cancelled_passes_with_offload_change_no_bit, 0, N_UPDATES);
    tcase_add_test(tcase, the_host_updates_if_its_memory_is_not_pinned);
    tcase_add_loop_test(tcase, checkpoints_do_not_depend_on_where_the_update_ran, 0, 3);
    tcase_add_loop_test(tcase, a_missing_wait_is_found, 0, 1);
    tcase_add_loop_test(lengthy, a_missing_wait_is_found, 1, N_FAULTS);
    tcase_add_loop_test(lengthy, offload_changes_no_bit_in_two_hundred_steps, 0, N_UPDATES);
    suite_add_tcase(s, tcase);
    return s;
}

int main(void)
{
    leave_out_checks();
    return support_main(suite());
}
