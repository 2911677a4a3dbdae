/* test_update_in_backward.c - ZERO_UPDATE_IN_BACKWARD and gradients in bf16. Units that are updated while backward goes
 * on have the text of the plain CPU, where they are updated in the step without clipping: on streams of random speed,
 * at every stage, wherever state and parameters are. A gradient that is not finite ends the run, and what cannot be is
 * refused by name.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/session.h"
#include "tests/support/stderr_capture.h"
#include "tests/support/stream_runs.h"

/* staging: units larger than the staging buffers, whose first chunks are summed early. */
static const char *const variants[] = {
    "backward=1 stage=1 trace=1",
    "backward=1 stage=2 staging=512 delay_us=800 seed=2",
    "backward=1 stage=3 prefetch=2 keep=1 seed=3",
    "backward=1 stage=3 offload=100 params=60 update=device seed=4",
    "backward=1 stage=2 offload=50 staging=4096 slow_gathers=8",
    "backward=1 stage=3 overlap=0 device=cpu",
    NULL,
};

START_TEST(updates_in_backward_change_no_bit)
{
    static const char *const settings[] = {"clip=0 dtype=bf16 steps=6",
                                           "clip=0 dtype=fp32 steps=4 micro_steps=3 every=1",
                                           "clip=0 dtype=bf16 gradients=bf16 steps=6 whole=36 asks=1",
                                           "clip=0 dtype=bf16 optimizer=adamw8bit steps=4 blocks=1"};
    if (_i > 0 && support_is_left_to_plain_build())
        return;
    expect_plain_text(1 + _i, settings[_i], variants);
}
END_TEST

/* Settings of single tensors are those of the step that the unit is updated in. */
START_TEST(tensors_have_their_own_settings)
{
    expect_plain_text(3 - 2 * _i, "clip=0 schedule=1 steps=8", variants);
}
END_TEST

/* What is set between steps is what the next one updates, though backward goes on to units on the device behind the
 * last one that is offloaded. */
START_TEST(state_that_is_set_is_updated)
{
    static const char *const partly[] = {"backward=1 stage=3 offload=30 buffer=0",
                                         "backward=1 stage=2 offload=50 buffer=4096 seed=2",
                                         "backward=1 stage=3 offload=70 params=20 buffer=65536 seed=3", NULL};
    expect_plain_text(1 + _i, "clip=0 dtype=bf16 asks=1 steps=11", partly);
}
END_TEST

/* Rounded once, wherever they are summed, whatever is clipped. */
START_TEST(gradients_in_bf16_have_the_same_bits_everywhere)
{
    static const char *const others[] = {"stage=1", "stage=2 staging=512 seed=2", "stage=3 offload=100 update=device",
                                         "stage=3 offload=70 params=40 update=host prefetch=2", NULL};
    static const char *const settings[] = {"gradients=bf16 steps=6", "gradients=bf16 steps=4 micro_steps=3 every=1",
                                           "gradients=bf16 optimizer=lion steps=5 frozen=1"};
    if (_i > 0 && support_is_left_to_plain_build())
        return;
    expect_plain_text(2 + _i, settings[_i], others);
}
END_TEST

/* Every rank ends with the same line, and no later step changes anything: nobody saves such weights. */
START_TEST(a_gradient_that_is_not_finite_ends_training)
{
    static const char *const settings[] = {"stage=3", "stage=2 offload=60 late=0", "stage=1 device=cpu"};
    support_output_t output;
    int code =
        support_mpirun(&output, LIMIT_S, 1 + _i, "%s/tests/mpi/stream_cases clip=0 backward=1 nan_at=3 steps=9 %s",
                       support_build(), settings[_i]);
    ck_assert_int_ne(code, 0);
    ck_assert_msg(strstr(output.err, "step 3: the gradient of unit unit ") != NULL, "%s", output.err);
    ck_assert_msg(strstr(output.err, "go on from the last checkpoint") != NULL, "%s", output.err);
    ck_assert_msg(strncmp(output.out, "1 ", 2) == 0 && strstr(output.out, "\n3 ") == NULL, "%s", output.out);
    support_output_free(&output);
}
END_TEST

START_TEST(a_missing_wait_is_found)
{
    static const async_fault_t faults[] = {ASYNC_PARAMS_AHEAD_OF_STORE, ASYNC_UPDATE_AHEAD_OF_FETCH,
                                           ASYNC_STORE_AHEAD_OF_UPDATE, ASYNC_FETCH_AHEAD_OF_STORE};
    if (!support_is_left_to_plain_build())
        expect_fault_shows(faults[_i], "backward=1 offload=100 params=100", "clip=0");
}
END_TEST

/* ---- the order of calls ---- */

static const session_tensor_t tensors[] = {
    {"a", 0, 1, {512}, false}, {"b", 1, 1, {512}, false}, {"c", 2, 1, {512}, false}};
static const session_model_t toy = {.tensors = tensors, .n_tensors = 3, .n_units = 3, .init = ZERO_INIT_ONES};

/* Makes a training pass with all gradients 1, of which the first n_units are made ready. */
static void pass(zero_engine_t *engine, int n_units)
{
    for (zero_unit_t u = 0; u < 3; u++) {
        must(zero_acquire(engine, u, NULL));
        must(zero_release(engine, u, NULL));
    }
    for (zero_unit_t u = 2; u > 2 - n_units; u--) {
        must(zero_acquire(engine, u, NULL));
        float *grad = zero_grad(engine, u).data;
        for (int i = 0; i < 512; i++)
            grad[i] = 1.0f;
        must(zero_grad_ready(engine, u, NULL));
    }
}

static void expect_refusal(zero_status_t status, zero_status_t want, const char *says)
{
    const char *line = capture_end();
    ck_assert_int_eq(status, want);
    ck_assert_msg(strstr(line, says) != NULL, "%s instead of %s", line, says);
}

#define REFUSES(call, want, says)                                                                                      \
    do {                                                                                                               \
        capture_begin();                                                                                               \
        zero_status_t status_ = call;                                                                                  \
        expect_refusal(status_, want, says);                                                                           \
    } while (0)

static session_t session_of(zero_update_time_t update)
{
    zero_config_t config = zero_config_default();
    session_t s = {.owns_comm = true};
    zero_model_t *declaration = session_declare(&toy);
    config.dtype = ZERO_FP32;
    config.grad_clip = 0.0f;
    config.update = update;
    must(zero_comm_create(ZERO_COMM_AUTO, &s.comm));
    must(zero_device_create(ZERO_DEVICE_CPU, s.comm, &s.device));
    must(zero_engine_create(s.comm, s.device, declaration, &config, &s.engine));
    zero_model_destroy(declaration);
    return s;
}

START_TEST(the_learning_rate_comes_before_the_pass)
{
    session_t s = session_of(ZERO_UPDATE_IN_BACKWARD);
    zero_step_result_t result;
    float weight[512];
    must(zero_init_parameters(s.engine));
    REFUSES(zero_begin(s.engine, ZERO_PASS_TRAIN, NULL), ZERO_ERROR_ORDER, "call zero_set_lr before it");
    REFUSES(zero_set_lr(s.engine, NAN), ZERO_ERROR_ARGUMENT, "it must be finite");
    must(zero_set_lr(s.engine, 0.25f));
    must(zero_begin(s.engine, ZERO_PASS_TRAIN, NULL));
    pass(s.engine, 3);
    REFUSES(zero_set_lr(s.engine, 0.5f), ZERO_ERROR_ORDER, "zero_set_lr after the backward pass");
    REFUSES(zero_step(s.engine, 0.5f, NULL, NULL), ZERO_ERROR_ARGUMENT, "units were updated with 0.25");
    REFUSES(zero_get_tensor(s.engine, 0, ZERO_ARRAY_GRAD, 0, weight), ZERO_ERROR_UNSUPPORTED,
            "update backward has used it");
    must(zero_step(s.engine, 0.25f, NULL, NULL));
    must(zero_step_wait(s.engine, &result));
    /* AdamW's first step is lr, and its decay of one-dimensional tensors none, by hand. */
    must(zero_get_tensor(s.engine, 1, ZERO_ARRAY_WEIGHT, 0, weight));
    ck_assert_float_eq_tol(weight[511], 0.75f, 1e-6f);
    ck_assert_float_eq_tol(result.grad_norm, sqrtf(3.0f * 512.0f), 1e-4f);
    session_close(&s);
}
END_TEST

/* Behind the first update of a step its weights cannot be had back. Before it they can. */
START_TEST(a_step_that_has_updated_units_cannot_be_cancelled)
{
    session_t s = session_of(ZERO_UPDATE_IN_BACKWARD);
    must(zero_init_parameters(s.engine));
    must(zero_set_lr(s.engine, 0.25f));
    must(zero_begin(s.engine, ZERO_PASS_TRAIN, NULL));
    pass(s.engine, 0);
    must(zero_cancel(s.engine));
    must(zero_set_lr(s.engine, 0.25f));
    must(zero_begin(s.engine, ZERO_PASS_TRAIN, NULL));
    pass(s.engine, 1);
    REFUSES(zero_cancel(s.engine), ZERO_ERROR_ORDER, "the weights are incomplete");
    must(zero_init_parameters(s.engine));
    must(zero_set_lr(s.engine, 0.25f));
    must(zero_begin(s.engine, ZERO_PASS_TRAIN, NULL));
    session_close(&s);
}
END_TEST

static zero_status_t fill_ones(void *user, const zero_chunk_t *chunk)
{
    (void)user;
    for (size_t i = 0; i < chunk->n_elems; i++) {
        chunk->master[i] = 1.0f;
        if (chunk->m)
            chunk->m[i] = chunk->v[i] = 0.0f;
    }
    return ZERO_OK;
}

/* A gradient that is not finite ends training until all weights are set again; then it begins anew. */
START_TEST(weights_that_are_set_behind_a_stopped_step_are_trained)
{
    for (int way = 0; way < 3; way++) {
        session_t s = session_of(ZERO_UPDATE_IN_BACKWARD);
        zero_step_result_t result;
        float weight[512];
        must(zero_init_parameters(s.engine));
        must(zero_set_lr(s.engine, 0.25f));
        must(zero_begin(s.engine, ZERO_PASS_TRAIN, NULL));
        pass(s.engine, 2);
        must(zero_acquire(s.engine, 0, NULL));
        for (int i = 0; i < 512; i++)
            ((float *)zero_grad(s.engine, 0).data)[i] = i == 300 ? NAN : 1.0f;
        must(zero_grad_ready(s.engine, 0, NULL));
        must(zero_step(s.engine, 0.25f, NULL, NULL));
        REFUSES(zero_step_wait(s.engine, &result), ZERO_ERROR_NONFINITE, "is not finite");
        REFUSES(zero_begin(s.engine, ZERO_PASS_TRAIN, NULL), ZERO_ERROR_ORDER, "the weights are incomplete");
        must(way == 0 ? zero_init_parameters(s.engine) : zero_set_state(s.engine, way == 1, fill_ones, NULL));
        must(zero_set_adam_step(s.engine, 0));
        must(zero_set_lr(s.engine, 0.25f));
        must(zero_begin(s.engine, ZERO_PASS_TRAIN, NULL));
        pass(s.engine, 3);
        must(zero_step(s.engine, 0.25f, NULL, NULL));
        must(zero_step_wait(s.engine, &result));
        ck_assert(!result.skipped);
        must(zero_get_tensor(s.engine, 0, ZERO_ARRAY_WEIGHT, 0, weight));
        ck_assert_float_eq_tol(weight[300], 0.75f, 1e-6f);
        session_close(&s);
    }
}
END_TEST

START_TEST(the_step_alone_sets_the_rate_otherwise)
{
    session_t s = session_of(ZERO_UPDATE_IN_STEP);
    REFUSES(zero_set_lr(s.engine, 0.25f), ZERO_ERROR_USAGE, "zero_set_lr with update step");
    session_close(&s);
}
END_TEST

/* A step that was queued behind the stopped one is skipped, and says nothing about weights that were set since. */
START_TEST(a_step_queued_before_weights_are_set_leaves_them_good)
{
    session_t s = session_of(ZERO_UPDATE_IN_BACKWARD);
    zero_step_result_t result;
    float weight[512];
    must(zero_init_parameters(s.engine));
    for (int step = 0; step < 2; step++) {
        must(zero_set_lr(s.engine, 0.25f));
        must(zero_begin(s.engine, ZERO_PASS_TRAIN, NULL));
        pass(s.engine, 2);
        must(zero_acquire(s.engine, 0, NULL));
        for (int i = 0; i < 512; i++)
            ((float *)zero_grad(s.engine, 0).data)[i] = step == 0 ? NAN : 1.0f;
        must(zero_grad_ready(s.engine, 0, NULL));
        must(zero_step(s.engine, 0.25f, NULL, NULL));
    }
    REFUSES(zero_step_wait(s.engine, &result), ZERO_ERROR_NONFINITE, "is not finite");
    must(zero_set_state(s.engine, true, fill_ones, NULL));
    must(zero_step_wait(s.engine, &result));
    ck_assert(result.step == 2 && result.skipped);
    must(zero_set_lr(s.engine, 0.25f));
    must(zero_begin(s.engine, ZERO_PASS_TRAIN, NULL));
    pass(s.engine, 3);
    must(zero_step(s.engine, 0.25f, NULL, NULL));
    must(zero_step_wait(s.engine, &result));
    ck_assert(result.step == 3 && !result.skipped);
    must(zero_get_tensor(s.engine, 2, ZERO_ARRAY_WEIGHT, 0, weight));
    ck_assert_float_eq_tol(weight[300], 0.75f, 1e-6f);
    session_close(&s);
}
END_TEST

/* ---- plans and refusals ---- */

enum { N_UNITS = 6, N_ELEMS = 1 << 19 };

static const session_tensor_t large_tensors[N_UNITS] = {{"0", 0, 1, {N_ELEMS}, false}, {"1", 1, 1, {N_ELEMS}, false},
                                                        {"2", 2, 1, {N_ELEMS}, false}, {"3", 3, 1, {N_ELEMS}, false},
                                                        {"4", 4, 1, {N_ELEMS}, false}, {"5", 5, 1, {N_ELEMS}, false}};
static const session_model_t large = {
    .tensors = large_tensors, .n_tensors = N_UNITS, .n_units = N_UNITS, .init = ZERO_INIT_ONES};

/* By hand: stage 3 has two buffers of full gradients in bf16 on several ranks, one on one, and what is named here. */
START_TEST(the_plan_counts_what_is_held)
{
    static const struct {
        int n_ranks, micro_steps;
        zero_update_time_t update;
        zero_dtype_t gradients;
        bool offload;
        uint64_t reduced; /* elements of all units that are held, and their bytes */
        int size;
    } cases[] = {
        {1, 1, ZERO_UPDATE_IN_STEP, ZERO_FP32, false, N_UNITS * N_ELEMS, 2}, /* passed on */
        {1, 2, ZERO_UPDATE_IN_STEP, ZERO_FP32, false, N_UNITS * N_ELEMS, 4},
        {1, 2, ZERO_UPDATE_IN_STEP, ZERO_BF16, false, N_UNITS * N_ELEMS, 4}, /* a running sum */
        {4, 1, ZERO_UPDATE_IN_STEP, ZERO_FP32, false, N_UNITS * N_ELEMS / 4, 4},
        {4, 1, ZERO_UPDATE_IN_STEP, ZERO_BF16, false, N_UNITS * N_ELEMS / 4, 2},
        {1, 1, ZERO_UPDATE_IN_BACKWARD, ZERO_FP32, false, N_ELEMS, 2},
        {1, 1, ZERO_UPDATE_IN_BACKWARD, ZERO_FP32, true, 2 * N_ELEMS, 2},
        {4, 1, ZERO_UPDATE_IN_BACKWARD, ZERO_FP32, true, 3 * N_ELEMS / 4, 4},
        {4, 1, ZERO_UPDATE_IN_BACKWARD, ZERO_BF16, false, 3 * N_ELEMS / 4, 2},
        {4, 2, ZERO_UPDATE_IN_BACKWARD, ZERO_FP32, false, N_UNITS * N_ELEMS / 4, 4},
        {4, 1, ZERO_UPDATE_IN_STEP, ZERO_BF16, true, 2 * N_ELEMS / 4, 2},
    };
    zero_model_t *model = session_declare(&large);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        zero_config_t config = zero_config_default();
        zero_memory_t plan;
        config.grad_clip = 0.0f;
        config.micro_steps = cases[i].micro_steps;
        config.update = cases[i].update;
        config.gradients = cases[i].gradients;
        config.offload = cases[i].offload;
        must(zero_plan(model, &config, ZERO_DEVICE_CUDA, ZERO_COMM_AUTO, cases[i].n_ranks, &plan));
        ck_assert_msg(plan.bytes[ZERO_MEMORY_GRADIENTS] == cases[i].reduced * (uint64_t)cases[i].size,
                      "case %zu: %llu bytes of gradients", i, (unsigned long long)plan.bytes[ZERO_MEMORY_GRADIENTS]);
    }
    zero_model_destroy(model);
}
END_TEST

static void expect_refused(const zero_model_t *model, const zero_config_t *config, const char *says)
{
    zero_memory_t plan;
    capture_begin();
    expect_refusal(zero_plan(model, config, ZERO_DEVICE_CUDA, ZERO_COMM_AUTO, 4, &plan), ZERO_ERROR_USAGE, says);
}

START_TEST(what_cannot_be_is_refused_by_name)
{
    zero_model_t *model = session_declare(&large);
    const struct {
        const char *name, *value, *says;
    } updates[] =
        {
            {"grad_clip", "1", "update backward with grad_clip 1: units are updated before the norm"},
            {"stage", "0", "update backward at stage 0"},
            {"dtype", "fp16", "update backward with fp16"},
            {"optimizer", "muon", "update backward with optimizer muon"},
        },
      gradients[] = {
          {"dtype", "fp32", "gradients bf16 with dtype fp32"},
          {"stage", "0", "gradients bf16 at stage 0"},
          {"optimizer", "muon", "gradients bf16 with muon"},
      };
    for (size_t i = 0; i < sizeof updates / sizeof updates[0]; i++) {
        zero_config_t config = zero_config_default();
        config.grad_clip = 0.0f;
        config.update = ZERO_UPDATE_IN_BACKWARD;
        must(zero_config_set(&config, updates[i].name, updates[i].value));
        expect_refused(model, &config, updates[i].says);
    }
    for (size_t i = 0; i < sizeof gradients / sizeof gradients[0]; i++) {
        zero_config_t config = zero_config_default();
        config.gradients = ZERO_BF16;
        must(zero_config_set(&config, gradients[i].name, gradients[i].value));
        expect_refused(model, &config, gradients[i].says);
    }
    zero_config_t config = zero_config_default();
    config.grad_clip = 0.0f;
    config.update = ZERO_UPDATE_IN_BACKWARD;
    config.offload = true;
    config.offload_update = ZERO_OFFLOAD_UPDATE_HOST;
    expect_refused(model, &config, "update backward with offload_update host");
    zero_model_destroy(model);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("update_in_backward");
    TCase *tcase = tcase_create("update_in_backward");
    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(tcase, updates_in_backward_change_no_bit, 0, 4);
    tcase_add_loop_test(tcase, tensors_have_their_own_settings, 0, 2);
    tcase_add_loop_test(tcase, state_that_is_set_is_updated, 0, 3);
    tcase_add_loop_test(tcase, gradients_in_bf16_have_the_same_bits_everywhere, 0, 3);
    tcase_add_loop_test(tcase, a_gradient_that_is_not_finite_ends_training, 0, 3);
    tcase_add_loop_test(tcase, a_missing_wait_is_found, 0, 1);
    tcase_add_loop_test(support_long_case(s, 300), a_missing_wait_is_found, 1, 4);
    tcase_add_test(tcase, the_learning_rate_comes_before_the_pass);
    tcase_add_test(tcase, a_step_that_has_updated_units_cannot_be_cancelled);
    tcase_add_test(tcase, weights_that_are_set_behind_a_stopped_step_are_trained);
    tcase_add_test(tcase, a_step_queued_before_weights_are_set_leaves_them_good);
    tcase_add_test(tcase, the_step_alone_sets_the_rate_otherwise);
    tcase_add_test(tcase, the_plan_counts_what_is_held);
    tcase_add_test(tcase, what_cannot_be_is_refused_by_name);
    suite_add_tcase(s, tcase);
    return s;
}

int main(void)
{
    leave_out_checks();
    return support_main(suite());
}
