/* test_offload_params.c - parameters on the host, without a GPU: on a device whose streams are threads of random speed
 * (async_device.h) every run gives the text of the plain CPU, where nothing is offloaded. A missing wait would be
 * found. The runs are tests/mpi/stream_cases, whose header lists what they check on every rank. What cannot be done is
 * refused by name.
 */
#include <stdio.h>
#include <string.h>

#include "tests/support/session.h"
#include "tests/support/stderr_capture.h"
#include "tests/support/stream_runs.h"

/* All parameters or some, one rank and several, with either update; one unit ahead, more, or none; not overlapped. */
START_TEST(offloaded_parameters_change_no_bit)
{
    static const char *const variants[] = {"offload=100 params=100 update=device seed=2 trace=1",
                                           "offload=100 params=40 update=device prefetch=3 delay_us=800 seed=3",
                                           "offload=100 params=100 update=host prefetch=0 threads=3",
                                           "offload=60 params=60 update=host keep=2",
                                           "offload=100 params=100 update=device overlap=0",
                                           "offload=100 params=70 pins=0 buffer=0 slow_gathers=8",
                                           NULL};
    if (_i % 2 == 1 && support_is_left_to_plain_build())
        return;
    expect_plain_text(1 + _i, settings_of[_i % N_SETTINGS], variants);
}
END_TEST

/* Frozen tensors and whole frozen units are fetched, too, and never stored. */
START_TEST(offloaded_frozen_parameters_change_no_bit)
{
    static const char *const variants[] = {"offload=100 params=100 update=device seed=2",
                                           "offload=50 params=30 update=host prefetch=2",
                                           "offload=100 params=100 update=device prefetch=0", NULL};
    static const char *const models[] = {"frozen=1 steps=8", "whole=52 steps=8 asks=1",
                                         "whole=64 untied=1 unshard=0 lookup=1 steps=8"};
    if (_i > 0 && support_is_left_to_plain_build())
        return;
    expect_plain_text(1 + _i, models[_i], variants);
}
END_TEST

/* Optimizers with one array or blocks; state that is read and set while steps are under way, and passes that end
 * anywhere: the next step starts from the host's parameters. */
START_TEST(offloaded_parameters_change_no_bit_of_other_steps)
{
    static const char *const variants[] = {"offload=100 params=100 update=device activations=9000",
                                           "offload=100 params=50 update=host", NULL};
    static const char *const steps[] = {"optimizer=adamw8bit dtype=bf16",
                                        "optimizer=lion dtype=fp16 nan_at=3",
                                        "optimizer=sgd dtype=fp32 micro_steps=2 every=1",
                                        "asks=1 cancels=1 every=1",
                                        "hooks=1 micro_steps=2 every=1",
                                        "schedule=1 steps=14"};
    if (_i % 3 != 0 && support_is_left_to_plain_build())
        return;
    expect_plain_text(1 + _i % 3, steps[_i], variants);
}
END_TEST

/* stream_cases checks that some parameters are offloaded and not all, and that the rest fits. */
START_TEST(auto_offloads_parameters_only_as_far_as_needed)
{
    static const char *const variants[] = {"offload=100 params=-1 available=1500000", NULL};
    expect_plain_text(3, "rows=1920 untied=1 steps=6", variants);
}
END_TEST

/* Several hosts: shards go over rails, or through host memory. */
START_TEST(offloaded_parameters_reach_other_hosts)
{
    static const char *const variants[] = {"offload=100 params=100", "offload=100 params=50 update=host prefetch=2",
                                           NULL};
    expect_text_among(_i == 0 ? "hosts=pairs" : "comm=mpi", 4, "steps=6", variants);
}
END_TEST

/* A checkpoint saved with parameters on the host is continued with fewer of them there, and that one with none: the
 * text of the plain CPU. Optimizer state and frozen tensors come along. */
START_TEST(checkpoints_do_not_depend_on_where_parameters_are)
{
    static const char *const runs[][3] = {
        {"device=cpu", "device=cpu", "device=cpu"},
        {"offload=100 params=100 update=device", "offload=60 params=40 update=host", "stage=1"}};
    char *scratch = support_scratch(), *texts[2];
    for (int i = 0; i < 2; i++) {
        char settings[1024] = "";
        for (int link = 0; link < 3; link++) {
            size_t at = strlen(settings);
            at += (size_t)snprintf(settings + at, sizeof settings - at, "%s%s frozen=1 dtype=%s steps=5 save=%s/%d",
                                   link ? " / " : "", runs[i][link], _i == 0 ? "bf16" : "fp16", scratch, i);
            if (link > 0)
                snprintf(settings + at, sizeof settings - at, " load=%s/%d", scratch, i);
        }
        texts[i] = text_of(1 + 2 * _i, settings);
        ck_assert_msg(texts[i] != NULL, "%s", settings);
    }
    ck_assert_str_eq(texts[1], texts[0]);
    free(texts[0]);
    free(texts[1]);
    free(scratch);
}
END_TEST

static const struct {
    async_fault_t fault;
    const char *settings;
} FAULTS[] = {{ASYNC_PARAMS_AHEAD_OF_STORE, "offload=100 params=100 update=device"},
              {ASYNC_FETCH_AHEAD_OF_PEERS, "offload=100 params=100 update=device prefetch=3"},
              {ASYNC_GATHER_AHEAD_OF_FETCH, "offload=100 params=100 update=host"},
              {ASYNC_COMPUTE_AHEAD_OF_GATHER, "offload=100 params=100 update=device"}};
#define N_FAULTS (int)(sizeof FAULTS / sizeof FAULTS[0])

START_TEST(a_missing_wait_is_found)
{
    if (support_is_left_to_plain_build())
        return;
    expect_fault_shows(FAULTS[_i].fault, FAULTS[_i].settings, "");
}
END_TEST

/* ---- plans and refusals ---- */

#define N_UNITS 6

static zero_model_t *declare(void)
{
    zero_model_t *model;
    must(zero_model_create(&model));
    for (int u = 0; u < N_UNITS; u++) {
        char name[32];
        zero_unit_t unit;
        zero_tensor_t tensor;
        snprintf(name, sizeof name, "unit %d", u);
        must(zero_model_add_unit(model, name, &unit));
        must(zero_model_add_tensor(model, unit, &(zero_tensor_desc_t){.name = name, .n_dims = 2, .shape = {1024, 512}},
                                   &tensor));
    }
    return model;
}

/* By hand: 6 units of 2^19 elements, 2 bytes each, on n ranks. The window keeps what is not offloaded, and of several
 * ranks two shards on their way to the gather. */
START_TEST(the_plan_counts_parameters_where_they_are)
{
    const int n_ranks = 1 << _i;
    const uint64_t shard = (1 << 20) / (uint64_t)n_ranks, n_elems = shard / 2;
    /* Low halves, m and v of all units; reduced gradients of all but the first two, which stay on the device. One rank
     * passes them on in bf16. */
    const uint64_t all_state = N_UNITS * n_elems * 10 + (N_UNITS - 2) * n_elems * (n_ranks == 1 ? 2 : 4);
    zero_model_t *model = declare();
    zero_config_t config = zero_config_default();
    zero_memory_t plan;
    config.offload = true;
    config.offload_params = 0.5f;
    must(zero_plan(model, &config, ZERO_DEVICE_CUDA, ZERO_COMM_AUTO, n_ranks, &plan));
    ck_assert_uint_eq(plan.bytes[ZERO_MEMORY_PARAMETERS], 3 * shard + (n_ranks > 1 ? 2 * shard : 0));
    ck_assert_uint_eq(plan.bytes[ZERO_MEMORY_UNSHARDED_PARAMETERS], UINT64_C(2) << 20);
    ck_assert_uint_eq(plan.pinned_bytes, all_state + 3 * shard);

    config.offload_params = 1.0f;
    must(zero_plan(model, &config, ZERO_DEVICE_CUDA, ZERO_COMM_AUTO, n_ranks, &plan));
    ck_assert_uint_eq(plan.bytes[ZERO_MEMORY_PARAMETERS], n_ranks > 1 ? 2 * shard : 0);
    ck_assert_uint_eq(plan.pinned_bytes, all_state + 6 * shard);

    config.forward_only = true;
    config.offload = false;
    must(zero_plan(model, &config, ZERO_DEVICE_CUDA, ZERO_COMM_AUTO, n_ranks, &plan));
    ck_assert_uint_eq(plan.pinned_bytes, 6 * shard);
    ck_assert_uint_eq(plan.bytes[ZERO_MEMORY_OPTIMIZER], 0);

    must(zero_plan(model, &config, ZERO_DEVICE_CPU, ZERO_COMM_AUTO, n_ranks, &plan)); /* all is in host memory anyway */
    ck_assert_uint_eq(plan.pinned_bytes, 0);
    zero_model_destroy(model);
}
END_TEST

static zero_config_t config_with(float params)
{
    zero_config_t config = zero_config_default();
    config.offload = true;
    config.offload_params = params;
    return config;
}

static void expect_refused(const zero_model_t *model, const zero_config_t *config, const char *says)
{
    zero_memory_t plan;
    capture_begin();
    zero_status_t status = zero_plan(model, config, ZERO_DEVICE_CUDA, ZERO_COMM_AUTO, 4, &plan);
    const char *line = capture_end();
    ck_assert_int_eq(status, ZERO_ERROR_USAGE);
    ck_assert_msg(strstr(line, says) != NULL, "%s instead of %s", line, says);
}

START_TEST(what_cannot_be_is_refused_by_name)
{
    zero_model_t *model = declare();
    zero_config_t config = config_with(1.5f);
    expect_refused(model, &config, "offload_params 1.5: it must be in [0, 1]");
    config = config_with(0.5f);
    config.stage = 2;
    expect_refused(model, &config, "offload_params at stage 2");
    config = config_with(0.5f);
    config.offload = false;
    expect_refused(model, &config, "offload_params without offload");
    config = config_with(0.5f);
    config.offload_ratio = 0.25f;
    expect_refused(model, &config, "offload_params 0.5 with offload_ratio 0.25");
    config = config_with(0.5f);
    config.gather_fp8 = true;
    expect_refused(model, &config, "offload_params with gather_fp8");
    config = config_with(0.5f);
    config.shard_group = 2;
    expect_refused(model, &config, "shard_group 2 with offload_params");
    zero_model_destroy(model);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("offload_params");
    TCase *tcase = tcase_create("offload_params"), *lengthy = support_long_case(s, 300);
    tcase_set_timeout(tcase, 300);
    SUPPORT_ADD_LOOP(tcase, lengthy, offloaded_parameters_change_no_bit, 2, 4);
    SUPPORT_ADD_LOOP(tcase, lengthy, offloaded_frozen_parameters_change_no_bit, 1, 3);
    SUPPORT_ADD_LOOP(tcase, lengthy, offloaded_parameters_change_no_bit_of_other_steps, 2, 6);
    tcase_add_test(tcase, auto_offloads_parameters_only_as_far_as_needed);
    SUPPORT_ADD_LOOP(tcase, lengthy, offloaded_parameters_reach_other_hosts, 1, 2);
    tcase_add_loop_test(tcase, checkpoints_do_not_depend_on_where_parameters_are, 0, 2);
    tcase_add_loop_test(tcase, a_missing_wait_is_found, 0, 1);
    tcase_add_loop_test(lengthy, a_missing_wait_is_found, 1, N_FAULTS);
    tcase_add_loop_test(tcase, the_plan_counts_parameters_where_they_are, 0, 3);
    tcase_add_test(tcase, what_cannot_be_is_refused_by_name);
    suite_add_tcase(s, tcase);
    return s;
}

int main(void)
{
    leave_out_checks();
    return support_main(suite());
}
