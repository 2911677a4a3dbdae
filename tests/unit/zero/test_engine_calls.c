/* test_engine_calls.c - the engine's calls on one rank, in this process: their order, what they do to the weights, and
 * what they refuse. Several ranks: test_engine.c. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/stderr_capture.h"
#include "tests/support/support.h"
#include "zero.h"

#define LIMIT_S 60.0

typedef struct fixture {
    zero_comm_t *comm;
    zero_device_t *device;
    zero_model_t *model;
    zero_engine_t *engine;
    zero_tensor_t tensors[2];
} fixture_t;

static fixture_t fixture_create(int micro_steps)
{
    fixture_t f = {0};
    zero_config_t config = zero_config_default();
    config.micro_steps = micro_steps;
    config.max_skipped_steps = 3;
    ck_assert_int_eq(zero_comm_create(ZERO_COMM_AUTO, &f.comm), ZERO_OK);
    ck_assert_int_eq(zero_device_create(ZERO_DEVICE_AUTO, f.comm, &f.device), ZERO_OK);
    ck_assert_int_eq(zero_model_create(&f.model), ZERO_OK);
    for (int u = 0; u < 2; u++) {
        zero_unit_t unit;
        zero_tensor_desc_t desc = {.name = u ? "b" : "a", .n_dims = 1, .shape = {5}, .init = ZERO_INIT_ONES};
        ck_assert_int_eq(zero_model_add_unit(f.model, desc.name, &unit), ZERO_OK);
        ck_assert_int_eq(zero_model_add_tensor(f.model, unit, &desc, &f.tensors[u]), ZERO_OK);
    }
    ck_assert_int_eq(zero_engine_create(f.comm, f.device, f.model, &config, &f.engine), ZERO_OK);
    ck_assert_int_eq(zero_init_parameters(f.engine), ZERO_OK);
    return f;
}

static void fixture_destroy(fixture_t *f)
{
    zero_engine_destroy(f->engine);
    zero_model_destroy(f->model);
    zero_device_destroy(f->device);
    zero_comm_destroy(f->comm);
}

static void write_grad(fixture_t *f, int u, uint16_t bits)
{
    uint16_t *grad = zero_grad(f->engine, f->tensors[u]).data;
    for (int i = 0; i < 5; i++)
        grad[i] = bits;
}

static void micro_step(fixture_t *f, uint16_t bits)
{
    ck_assert_int_eq(zero_begin(f->engine, ZERO_PASS_TRAIN, NULL), ZERO_OK);
    for (int u = 0; u < 2; u++) {
        ck_assert_int_eq(zero_acquire(f->engine, u, NULL), ZERO_OK);
        ck_assert_int_eq(zero_release(f->engine, u, NULL), ZERO_OK);
    }
    for (int u = 1; u >= 0; u--) {
        ck_assert_int_eq(zero_acquire(f->engine, u, NULL), ZERO_OK);
        write_grad(f, u, bits);
        ck_assert_int_eq(zero_grad_ready(f->engine, u, NULL), ZERO_OK);
    }
}

START_TEST(calls_out_of_order_are_errors_on_the_spot)
{
    fixture_t f = fixture_create(2);
    zero_step_result_t result;
    void *data;
    ck_assert_int_eq(zero_acquire(f.engine, 0, NULL), ZERO_ERROR_ORDER); /* no pass */
    ck_assert_int_eq(zero_step(f.engine, 0.1f, NULL, NULL), ZERO_ERROR_ORDER);
    ck_assert_int_eq(zero_step_wait(f.engine, &result), ZERO_ERROR_ORDER);
    ck_assert_int_eq(zero_begin(f.engine, (zero_pass_t)3, NULL), ZERO_ERROR_ARGUMENT); /* there are three kinds */
    ck_assert_int_eq(zero_engine_trace(f.engine, ZERO_ALL_WORKS, NULL, NULL), ZERO_ERROR_ARGUMENT); /* no function */
    for (int i = 0; i < 2; i++) /* the second leaks nothing of the first */
        ck_assert_int_eq(zero_engine_trace(f.engine, 0, NULL, NULL), ZERO_OK);
    ck_assert_int_eq(zero_alloc(f.engine, ZERO_MEMORY_DATA, 10, &data), ZERO_OK);
    ck_assert_int_eq(zero_alloc_activations(f.engine, 1, 0, 10, &data), ZERO_OK);
    ck_assert_int_eq(zero_alloc_activations(f.engine, 0, 2, 10, &data), ZERO_ERROR_ARGUMENT); /* there are two units */
    ck_assert_int_eq(zero_alloc_activations(f.engine, -1, 0, 10, &data), ZERO_ERROR_ARGUMENT);
    ck_assert_int_eq(zero_begin(f.engine, ZERO_PASS_TRAIN, NULL), ZERO_OK);
    ck_assert_int_eq(zero_alloc(f.engine, ZERO_MEMORY_DATA, 10, &data), ZERO_ERROR_ORDER); /* too late */
    ck_assert_int_eq(zero_alloc_activations(f.engine, 0, 0, 10, &data), ZERO_ERROR_ORDER); /* too late */
    ck_assert_int_eq(zero_begin(f.engine, ZERO_PASS_TRAIN, NULL), ZERO_ERROR_ORDER);       /* in a pass */
    ck_assert_int_eq(zero_acquire(f.engine, 1, NULL), ZERO_ERROR_ORDER);                   /* 0 is the first */
    ck_assert_int_eq(zero_acquire(f.engine, 2, NULL), ZERO_ERROR_ARGUMENT);
    ck_assert_int_eq(zero_acquire(f.engine, -1, NULL), ZERO_ERROR_ARGUMENT);
    ck_assert_int_eq(zero_release(f.engine, 0, NULL), ZERO_ERROR_ORDER); /* not acquired */
    ck_assert_ptr_null(zero_param(f.engine, f.tensors[0]));
    ck_assert_int_eq(zero_acquire(f.engine, 0, NULL), ZERO_OK);
    ck_assert_ptr_nonnull(zero_param(f.engine, f.tensors[0]));
    ck_assert_ptr_null(zero_param(f.engine, f.tensors[1])); /* another unit's */
    ck_assert_ptr_null(zero_param(f.engine, 99));
    ck_assert_ptr_null(zero_grad(f.engine, f.tensors[0]).data);             /* forward */
    ck_assert_int_eq(zero_acquire(f.engine, 0, NULL), ZERO_ERROR_ORDER);    /* twice */
    ck_assert_int_eq(zero_grad_ready(f.engine, 0, NULL), ZERO_ERROR_ORDER); /* forward */
    ck_assert_int_eq(zero_release(f.engine, 0, NULL), ZERO_OK);
    ck_assert_int_eq(zero_acquire(f.engine, 1, NULL), ZERO_OK);
    ck_assert_int_eq(zero_release(f.engine, 1, NULL), ZERO_OK);
    ck_assert_int_eq(zero_acquire(f.engine, 0, NULL), ZERO_ERROR_ORDER); /* backward begins with 1 */
    ck_assert_int_eq(zero_acquire(f.engine, 1, NULL), ZERO_OK);
    ck_assert_ptr_nonnull(zero_grad(f.engine, f.tensors[1]).data);
    ck_assert_int_eq(zero_release(f.engine, 1, NULL), ZERO_ERROR_ORDER); /* backward */
    ck_assert_int_eq(zero_step(f.engine, 0.1f, NULL, NULL), ZERO_ERROR_ORDER);
    ck_assert_int_eq(zero_get_state(f.engine, NULL, NULL), ZERO_ERROR_ORDER);
    write_grad(&f, 1, 0x3c00);
    ck_assert_int_eq(zero_grad_ready(f.engine, 1, NULL), ZERO_OK);
    ck_assert_int_eq(zero_acquire(f.engine, 0, NULL), ZERO_OK);
    write_grad(&f, 0, 0x3c00);
    ck_assert_int_eq(zero_grad_ready(f.engine, 0, NULL), ZERO_OK);
    ck_assert_int_eq(zero_begin(f.engine, ZERO_PASS_EVAL, NULL), ZERO_ERROR_ORDER); /* in the middle of a step */
    ck_assert_int_eq(zero_step(f.engine, 0.1f, NULL, NULL), ZERO_ERROR_ORDER);      /* one micro-step is missing */
    micro_step(&f, 0x3c00);
    ck_assert_int_eq(zero_begin(f.engine, ZERO_PASS_TRAIN, NULL), ZERO_ERROR_ORDER); /* zero_step is next */
    ck_assert_int_eq(zero_step(f.engine, 0.1f, NULL, NULL), ZERO_OK);
    ck_assert_int_eq(zero_step_wait(f.engine, &result), ZERO_OK);
    ck_assert(result.step == 1 && !result.skipped);
    ck_assert_int_eq(zero_step_wait(f.engine, &result), ZERO_ERROR_ORDER);
    fixture_destroy(&f);
}
END_TEST

/* The owner's backward would overwrite what such a unit adds. */
START_TEST(a_unit_has_no_gradient_of_a_tensor_that_it_does_not_share)
{
    fixture_t f = fixture_create(1);
    const char *const names[] = {"shared", "not shared"};
    zero_unit_t owner, user;
    zero_tensor_t tensors[2];
    zero_config_t config = zero_config_default();
    config.stage = _i;
    zero_engine_destroy(f.engine);
    ck_assert_int_eq(zero_model_add_unit(f.model, "owner", &owner), ZERO_OK);
    for (int t = 0; t < 2; t++)
        ck_assert_int_eq(zero_model_add_tensor(f.model, owner,
                                               &(zero_tensor_desc_t){.name = names[t], .n_dims = 1, .shape = {5}},
                                               &tensors[t]),
                         ZERO_OK);
    ck_assert_int_eq(zero_model_add_unit(f.model, "user", &user), ZERO_OK);
    ck_assert_int_eq(zero_model_share_tensor(f.model, user, tensors[0]), ZERO_OK);
    ck_assert_int_eq(zero_engine_create(f.comm, f.device, f.model, &config, &f.engine), ZERO_OK);
    ck_assert_int_eq(zero_init_parameters(f.engine), ZERO_OK);
    ck_assert_int_eq(zero_begin(f.engine, ZERO_PASS_TRAIN, NULL), ZERO_OK);
    for (zero_unit_t u = 0; u <= user; u++) {
        ck_assert_int_eq(zero_acquire(f.engine, u, NULL), ZERO_OK);
        ck_assert_int_eq(zero_release(f.engine, u, NULL), ZERO_OK);
    }
    ck_assert_int_eq(zero_acquire(f.engine, user, NULL), ZERO_OK);
    ck_assert_ptr_nonnull(zero_grad(f.engine, tensors[0]).data);
    ck_assert_ptr_null(zero_grad(f.engine, tensors[1]).data);
    memset(zero_grad(f.engine, tensors[0]).data, 0, 5 * sizeof(uint16_t));
    ck_assert_int_eq(zero_grad_ready(f.engine, user, NULL), ZERO_OK);
    ck_assert_int_eq(zero_acquire(f.engine, owner, NULL), ZERO_OK);
    ck_assert(zero_grad(f.engine, tensors[0]).accumulate && !zero_grad(f.engine, tensors[1]).accumulate);
    ck_assert_ptr_nonnull(zero_grad(f.engine, tensors[1]).data);
    fixture_destroy(&f);
}
END_TEST

START_TEST(two_steps_may_be_unwaited_and_results_come_in_order)
{
    fixture_t f = fixture_create(1);
    zero_step_result_t result;
    for (int i = 0; i < 2; i++) {
        micro_step(&f, 0x3c00);
        ck_assert_int_eq(zero_step(f.engine, 0.1f, NULL, NULL), ZERO_OK);
    }
    micro_step(&f, 0x3c00);
    ck_assert_int_eq(zero_step(f.engine, 0.1f, NULL, NULL), ZERO_ERROR_ORDER);
    for (uint64_t i = 1; i <= 2; i++) {
        ck_assert_int_eq(zero_step_wait(f.engine, &result), ZERO_OK);
        ck_assert_uint_eq(result.step, i);
    }
    ck_assert_int_eq(zero_step(f.engine, 0.1f, NULL, NULL), ZERO_OK);
    fixture_destroy(&f);
}
END_TEST

static zero_status_t count_other_than_one(void *n_others, const zero_chunk_t *chunk)
{
    for (size_t i = 0; i < chunk->n_elems; i++)
        *(size_t *)n_others += chunk->master[i] != 1.0f;
    return ZERO_OK;
}

START_TEST(a_learning_rate_that_is_not_finite_reaches_no_weight)
{
    fixture_t f = fixture_create(1);
    zero_step_result_t result;
    size_t n_others = 0;
    micro_step(&f, 0x3c00);
    ck_assert_int_eq(zero_step(f.engine, NAN, NULL, NULL), ZERO_ERROR_ARGUMENT);
    ck_assert_int_eq(zero_step(f.engine, INFINITY, NULL, NULL), ZERO_ERROR_ARGUMENT);
    ck_assert_int_eq(zero_get_state(f.engine, count_other_than_one, &n_others), ZERO_ERROR_ORDER); /* still in it */
    ck_assert_int_eq(zero_step(f.engine, 0.0f, NULL, NULL), ZERO_OK);
    ck_assert_int_eq(zero_step_wait(f.engine, &result), ZERO_OK);
    ck_assert_int_eq(zero_get_state(f.engine, count_other_than_one, &n_others), ZERO_OK);
    ck_assert_uint_eq(n_others, 0);
    fixture_destroy(&f);
}
END_TEST

/* What is refused has changed nothing, and is named as the caller knows it. */
START_TEST(weights_cannot_be_initialized_during_a_step)
{
    fixture_t f = fixture_create(2);
    zero_step_result_t result;
    size_t n_before = 0, n_after = 0;
    micro_step(&f, 0x3c00);
    micro_step(&f, 0x3c00);
    ck_assert_int_eq(zero_step(f.engine, 0.5f, NULL, NULL), ZERO_OK);
    ck_assert_int_eq(zero_get_state(f.engine, count_other_than_one, &n_before), ZERO_OK);
    ck_assert_uint_gt(n_before, 0);
    capture_begin();
    zero_status_t status = zero_init_parameters(f.engine);
    const char *said = capture_end();
    ck_assert_int_eq(status, ZERO_ERROR_ORDER);
    ck_assert_msg(strstr(said, "zero_init_parameters with a step under way"), "%s", said);
    ck_assert_int_eq(zero_get_state(f.engine, count_other_than_one, &n_after), ZERO_OK);
    ck_assert_uint_eq(n_after, n_before);
    ck_assert_int_eq(zero_step_wait(f.engine, &result), ZERO_OK);
    ck_assert_int_eq(zero_init_parameters(f.engine), ZERO_OK);
    fixture_destroy(&f);
}
END_TEST

static zero_status_t fill_with_ones(void *n_fails, const zero_chunk_t *chunk)
{
    for (size_t i = 0; i < chunk->n_elems; i++) {
        chunk->master[i] = 1.0f;
        if (chunk->m)
            chunk->m[i] = chunk->v[i] = 0.0f;
    }
    return --*(int *)n_fails == 0 ? ZERO_ERROR_IO : ZERO_OK;
}

static zero_status_t take_first(void *weight, const zero_chunk_t *chunk)
{
    if (chunk->tensor == 0 && chunk->first == 0)
        *(float *)weight = chunk->master[0];
    return ZERO_OK;
}

/* AdamW's t is reset with the moments: the first step after them is as large as the very first. */
START_TEST(state_without_moments_starts_adamw_anew)
{
    fixture_t f = fixture_create(1);
    zero_step_result_t result;
    float stepped[2];
    for (int i = 0; i < 2; i++) {
        int never = 0;
        ck_assert_int_eq(zero_set_state(f.engine, false, fill_with_ones, &never), ZERO_OK);
        ck_assert_uint_eq(zero_get_adam_step(f.engine), 0);
        for (int step = 0; step < 5; step++) {
            micro_step(&f, 0x3c00);
            ck_assert_int_eq(zero_step(f.engine, 0.1f, NULL, NULL), ZERO_OK);
            if (step == 4) { /* before its t is set */
                ck_assert_int_eq(zero_set_state(f.engine, false, fill_with_ones, &never), ZERO_ERROR_ORDER);
                ck_assert_int_eq(never, -2); /* not called but for the two tensors before */
            }
            ck_assert_int_eq(zero_step_wait(f.engine, &result), ZERO_OK);
            if (step == 0)
                ck_assert_int_eq(zero_get_state(f.engine, take_first, &stepped[i]), ZERO_OK);
        }
        ck_assert_uint_eq(zero_get_adam_step(f.engine), 5);
    }
    ck_assert(stepped[0] < 1.0f);
    ck_assert(memcmp(&stepped[0], &stepped[1], sizeof stepped[0]) == 0);
    fixture_destroy(&f);
}
END_TEST

/* t + 1 is an exponent in a divisor that would be 0: weights would not be finite. */
START_TEST(a_step_count_that_would_overflow_is_refused)
{
    fixture_t f = fixture_create(1);
    zero_step_result_t result;
    int never = 0;
    ck_assert_int_eq(zero_set_state(f.engine, false, fill_with_ones, &never), ZERO_OK);
    ck_assert_int_eq(zero_set_adam_step(f.engine, UINT64_MAX), ZERO_ERROR_ARGUMENT);
    ck_assert_int_eq(zero_set_adam_step(f.engine, INT64_MAX / 2 + 1), ZERO_ERROR_ARGUMENT);
    ck_assert_uint_eq(zero_get_adam_step(f.engine), 0);
    ck_assert_int_eq(zero_set_adam_step(f.engine, INT64_MAX / 2), ZERO_OK);
    micro_step(&f, 0x3c00);
    ck_assert_int_eq(zero_step(f.engine, 0.1f, NULL, NULL), ZERO_OK);
    ck_assert_int_eq(zero_step_wait(f.engine, &result), ZERO_OK);
    float stepped;
    ck_assert_int_eq(zero_get_state(f.engine, take_first, &stepped), ZERO_OK);
    ck_assert(isfinite(stepped) && stepped < 1.0f);
    fixture_destroy(&f);
}
END_TEST

/* A load that is refused before it writes anything leaves the state as it was. */
START_TEST(weights_stay_if_nothing_was_written)
{
    fixture_t f = fixture_create(1);
    int second = 2, never = 0;
    size_t n_others = 0;
    ck_assert_int_eq(zero_load_weights(f.engine, "/nowhere"), ZERO_ERROR_IO);
    ck_assert_int_eq(zero_get_state(f.engine, count_other_than_one, &n_others), ZERO_OK);
    ck_assert_uint_eq(n_others, 0);
    ck_assert_int_eq(zero_set_state(f.engine, true, fill_with_ones, &second), ZERO_ERROR_IO);
    ck_assert_int_eq(zero_load_weights(f.engine, "/nowhere"), ZERO_ERROR_IO); /* it repairs nothing either */
    ck_assert_int_eq(zero_begin(f.engine, ZERO_PASS_TRAIN, NULL), ZERO_ERROR_ORDER);
    ck_assert_int_eq(zero_set_state(f.engine, false, fill_with_ones, &never), ZERO_OK);
    micro_step(&f, 0x3c00);
    fixture_destroy(&f);
}
END_TEST

START_TEST(a_save_during_a_step_is_refused)
{
    fixture_t f = fixture_create(2);
    zero_save_t *save = NULL;
    char *directory = support_scratch(), listing[512];
    micro_step(&f, 0x3c00);
    capture_begin();
    zero_status_t status = zero_save_begin(f.engine, directory, &(zero_save_options_t){0}, &save);
    const char *said = capture_end();
    ck_assert_int_eq(status, ZERO_ERROR_ORDER);
    ck_assert_msg(strstr(said, "zero_save_begin inside a step"), "%s", said);
    ck_assert_int_eq(zero_set_adam_step(f.engine, 3), ZERO_ERROR_ORDER);
    snprintf(listing, sizeof listing, "test -z \"$(ls -A %s)\"", directory);
    ck_assert_int_eq(support_run(NULL, LIMIT_S, "%s", listing), 0);
    free(directory);
    fixture_destroy(&f);
}
END_TEST

START_TEST(many_steps_without_finite_gradients_end_the_run)
{
    fixture_t f = fixture_create(1);
    zero_step_result_t result;
    for (int i = 1; i <= 3; i++) {
        micro_step(&f, 0x7f80); /* infinity in bf16 */
        ck_assert_int_eq(zero_step(f.engine, 0.1f, NULL, NULL), ZERO_OK);
        ck_assert_int_eq(zero_step_wait(f.engine, &result), i < 3 ? ZERO_OK : ZERO_ERROR_NONFINITE);
        ck_assert(result.skipped);
    }
    ck_assert_uint_eq(zero_get_adam_step(f.engine), 0);
    fixture_destroy(&f);
}
END_TEST

static zero_status_t own_update(void *user, const zero_own_update_t *update, zero_stream_t stream)
{
    (void)user, (void)update, (void)stream;
    return ZERO_OK;
}

START_TEST(bad_configurations_are_refused)
{
    fixture_t f = fixture_create(1);
    zero_engine_t *engine;
    zero_model_t *empty;
    zero_memory_t plan;
    zero_config_t bad[21], good = zero_config_default();
    for (int i = 0; i < 21; i++)
        bad[i] = zero_config_default();
    bad[0].stage = 4;
    bad[1].stage = -1;
    bad[2].micro_steps = 0;
    bad[3].beta1 = 1.0f;
    bad[4].eps = -1.0f;
    bad[5].dtype = (zero_dtype_t)7;
    bad[6].grad_clip = NAN;
    bad[7].eps = 0.0f; /* 0 / 0 for a weight that has had no gradient */
    bad[8].eps = NAN;
    bad[9].eps = INFINITY;
    bad[10].user_bytes = SIZE_MAX - 4096; /* added to the plan it would overflow to a small number */
    bad[11].optimizer = ZERO_N_OPTIMIZERS;
    bad[12].momentum = 1.0f;
    bad[13].momentum = NAN;
    zero_own_optimizer_t own = {.name = "own", .n_arrays = 1};
    for (int i = 14; i < 17; i++)
        bad[i].optimizer = ZERO_OPTIMIZER_OWN; /* 14: and no own_optimizer; 15: one without a function */
    bad[15].own_optimizer = &own;
    zero_own_optimizer_t unwritable = {.name = "\xff", .n_arrays = 1, .update = own_update};
    zero_own_optimizer_t many = {.name = "many", .n_arrays = 3, .update = own_update};
    bad[16].own_optimizer = &many;
    const zero_hooks_t no_hooks = {0}, behind = {.updated = own_update};
    bad[17].hooks = &no_hooks;
    bad[18].hooks = &behind;
    bad[18].offload = true;
    zero_own_optimizer_t unused = {.name = "unused", .n_arrays = 1, .update = own_update};
    bad[19].own_optimizer = &unused; /* and optimizer is AdamW */
    bad[20].optimizer = ZERO_OPTIMIZER_OWN;
    bad[20].own_optimizer = &unwritable;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ck_assert_int_eq(zero_engine_create(f.comm, f.device, f.model, &bad[i], &engine), ZERO_ERROR_USAGE);
        ck_assert_int_eq(zero_plan(f.model, &bad[i], ZERO_DEVICE_CPU, ZERO_COMM_AUTO, 2, &plan), ZERO_ERROR_USAGE);
    }
    ck_assert_int_eq(zero_model_create(&empty), ZERO_OK); /* it declares nothing */
    ck_assert_int_eq(zero_engine_create(f.comm, f.device, empty, &good, &engine), ZERO_ERROR_ARGUMENT);
    ck_assert_int_eq(zero_plan(empty, &good, ZERO_DEVICE_CPU, ZERO_COMM_AUTO, 2, &plan), ZERO_ERROR_ARGUMENT);
    zero_model_destroy(empty);
    fixture_destroy(&f);
}
END_TEST

START_TEST(nccl_is_refused_on_the_cpu)
{
    fixture_t f = fixture_create(1);
    zero_comm_t *comm;
    zero_device_t *cpu;
    zero_engine_t *engine;
    zero_config_t config = zero_config_default();
    ck_assert_int_eq(zero_comm_create(ZERO_COMM_NCCL, &comm), ZERO_OK);
    ck_assert_int_eq(zero_device_create(ZERO_DEVICE_CPU, comm, &cpu), ZERO_OK);
    ck_assert_int_eq(zero_engine_create(comm, cpu, f.model, &config, &engine), ZERO_ERROR_USAGE);
    zero_device_destroy(cpu);
    zero_comm_destroy(comm);
    fixture_destroy(&f);
}
END_TEST

START_TEST(every_status_has_a_name_and_a_text)
{
#define HAS_NAME(name, number, text)                                                                                   \
    ck_assert_str_eq(zero_status_name((zero_status_t)(number)), "ZERO_" #name);                                        \
    ck_assert_str_eq(zero_status_text(ZERO_##name), text);
    ZERO_STATUS_MAP(HAS_NAME)
    ck_assert_str_eq(zero_status_name((zero_status_t)12345), "ZERO_UNKNOWN");
    ck_assert_str_eq(zero_version(), "0.1.0");
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("calls of the engine");
    TCase *one = tcase_create("one rank");
    tcase_set_timeout(one, 60);
    tcase_add_test(one, calls_out_of_order_are_errors_on_the_spot);
    tcase_add_loop_test(one, a_unit_has_no_gradient_of_a_tensor_that_it_does_not_share, 0, 4);
    tcase_add_test(one, two_steps_may_be_unwaited_and_results_come_in_order);
    tcase_add_test(one, a_learning_rate_that_is_not_finite_reaches_no_weight);
    tcase_add_test(one, weights_cannot_be_initialized_during_a_step);
    tcase_add_test(one, state_without_moments_starts_adamw_anew);
    tcase_add_test(one, a_step_count_that_would_overflow_is_refused);
    tcase_add_test(one, weights_stay_if_nothing_was_written);
    tcase_add_test(one, a_save_during_a_step_is_refused);
    tcase_add_test(one, many_steps_without_finite_gradients_end_the_run);
    tcase_add_test(one, bad_configurations_are_refused);
    tcase_add_test(one, nccl_is_refused_on_the_cpu);
    tcase_add_test(one, every_status_has_a_name_and_a_text);
    suite_add_tcase(s, one);
    return s;
}

int main(void)
{
    return support_main(suite());
}
