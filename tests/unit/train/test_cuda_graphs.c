/* test_cuda_graphs.c - a unit's captured work is replayed while it still means the same, and captured again if not.
 *
 * The kernels here do their own capturing: one operation (put_grad), kept in a list instead of being done, so that the
 * effect of a replay can be seen on the CPU. A toy's backward writes each gradient as its weight; after every call the
 * gradient that the engine has now must be the weight that it has now, whatever was replayed.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/support/support.h"
#include "tests/support/trainer.h"
#include "train/model/arch.h"
#include "train/model/cuda_graphs.h"

#define N_UNITS 2
#define N_ELEMS 24
#define MAX_OPS 2

/* ---- kernels that record ---- */

typedef struct operation {
    zero_grad_t grad;
    const float *sums;
    size_t n_elems;
} operation_t;

struct zero_cuda_graph {
    operation_t ops[MAX_OPS];
    int n_ops;
};

static struct {
    zero_cuda_graph_t *being_made;
    int n_made, n_replayed, n_alive;
    bool fails; /* record_end does */
} the;

static zero_status_t put_grad(zero_model_context_t *ctx, zero_grad_t grad, const float *sums, size_t n_elems)
{
    zero_cuda_graph_t *recording = the.being_made;
    if (!recording)
        return zero_model_kernels_cpu()->put_grad(ctx, grad, sums, n_elems);
    ck_assert_int_lt(recording->n_ops, MAX_OPS);
    recording->ops[recording->n_ops++] = (operation_t){grad, sums, n_elems};
    return ZERO_OK;
}

static zero_status_t record_begin(zero_model_context_t *ctx)
{
    (void)ctx;
    ck_assert_ptr_null(the.being_made);
    the.being_made = calloc(1, sizeof *the.being_made);
    return ZERO_OK;
}

static zero_status_t record_end(zero_model_context_t *ctx, zero_cuda_graph_t **recording)
{
    (void)ctx;
    if (the.fails) {
        free(the.being_made);
        the.being_made = NULL;
        return ZERO_ERROR_DEVICE;
    }
    *recording = the.being_made;
    the.being_made = NULL;
    the.n_made++;
    the.n_alive++;
    return ZERO_OK;
}

static zero_status_t replay(zero_model_context_t *ctx, zero_cuda_graph_t *recording)
{
    ck_assert_ptr_null(the.being_made);
    for (int i = 0; i < recording->n_ops; i++)
        ZERO_TRY(put_grad(ctx, recording->ops[i].grad, recording->ops[i].sums, recording->ops[i].n_elems));
    the.n_replayed++;
    return ZERO_OK;
}

static void cuda_graph_destroy(zero_cuda_graph_t *recording)
{
    the.n_alive -= recording != NULL;
    free(recording);
}

static zero_model_kernels_t recording_kernels(void)
{
    zero_model_kernels_t kernels = *zero_model_kernels_cpu();
    kernels.record_begin = record_begin;
    kernels.record_end = record_end;
    kernels.replay = replay;
    kernels.cuda_graph_destroy = cuda_graph_destroy;
    kernels.put_grad = put_grad;
    return kernels;
}

/* ---- a toy ---- */

typedef struct toy {
    options_t options;
    zero_comm_t *comm;
    zero_device_t *device;
    zero_model_t *declaration;
    zero_tensor_t tensors[N_UNITS];
    zero_model_kernels_t kernels;
    model_t model;
    int n_asked;  /* times that a compute function asks for its weight */
    int n_others; /* weights for which it asks as well */
    int n_computed;
} toy_t;

static toy_t toy;

static zero_status_t gradient_is_weight(model_t *model, zero_unit_t unit)
{
    zero_weight_t weight = {0};
    for (int i = 0; i < toy.n_asked; i++)
        weight = model_weight(model, toy.tensors[unit]);
    for (int i = 0; i < toy.n_others; i++)
        cuda_graphs_note_weight(model->graphs, N_UNITS + i, weight);
    toy.n_computed++;
    return model->kernels->put_grad(&model->ctx, model_grad(model, toy.tensors[unit]), weight.data, N_ELEMS);
}

static zero_status_t another_function(model_t *model, zero_unit_t unit)
{
    return gradient_is_weight(model, unit);
}

static zero_status_t failing(model_t *model, zero_unit_t unit)
{
    (void)model_weight(model, toy.tensors[unit]);
    return ZERO_ERROR_ARGUMENT;
}

static zero_engine_t *engine_create(int stage, int micro_steps, uint64_t seed)
{
    zero_engine_t *engine;
    zero_config_t config = zero_config_default();
    config.stage = stage;
    config.dtype = ZERO_FP32;
    config.micro_steps = micro_steps;
    config.reduce_every_micro_step = false; /* stage 0 adds micro-steps up in the gradient */
    config.seed = seed;
    ck_assert_int_eq(zero_engine_create(toy.comm, toy.device, toy.declaration, &config, &engine), ZERO_OK);
    ck_assert_int_eq(zero_init_parameters(engine), ZERO_OK);
    return engine;
}

static void setup(void)
{
    memset(&the, 0, sizeof the);
    toy = (toy_t){.n_asked = 1};
    toy.options.train.precision = ZERO_FP32;
    toy.kernels = recording_kernels();
    ck_assert_int_eq(zero_comm_create(ZERO_COMM_AUTO, &toy.comm), ZERO_OK);
    ck_assert_int_eq(zero_device_create(ZERO_DEVICE_CPU, toy.comm, &toy.device), ZERO_OK);
    ck_assert_int_eq(zero_model_create(&toy.declaration), ZERO_OK);
    for (int u = 0; u < N_UNITS; u++) {
        zero_unit_t unit;
        const char *names[N_UNITS] = {"first", "second"};
        zero_tensor_desc_t desc = {
            .name = names[u], .n_dims = 1, .shape = {N_ELEMS}, .init = ZERO_INIT_NORMAL, .init_std = 1.0f};
        ck_assert_int_eq(zero_model_add_unit(toy.declaration, names[u], &unit), ZERO_OK);
        ck_assert_int_eq(zero_model_add_tensor(toy.declaration, unit, &desc, &toy.tensors[u]), ZERO_OK);
    }
    toy.model = (model_t){.options = &toy.options, .kernels = &toy.kernels, .loss_weight = 1.0};
    ck_assert_int_eq(cuda_graphs_create(&toy.kernels, N_UNITS, &toy.model.graphs), ZERO_OK);
    ck_assert_ptr_nonnull(toy.model.graphs);
}

static void teardown(void)
{
    cuda_graphs_destroy(toy.model.graphs);
    ck_assert_int_eq(the.n_alive, 0);
    zero_model_destroy(toy.declaration);
    zero_device_destroy(toy.device);
    zero_comm_destroy(toy.comm);
}

/* Forward without work, backward by recordings; each gradient must be `times` its weight. */
static void micro_step(zero_engine_t *engine, zero_status_t (*compute)(model_t *model, zero_unit_t unit), float times)
{
    toy.model.engine = engine;
    ck_assert_int_eq(zero_begin(engine, ZERO_PASS_TRAIN, NULL), ZERO_OK);
    for (zero_unit_t u = 0; u < N_UNITS; u++) {
        ck_assert_int_eq(zero_acquire(engine, u, NULL), ZERO_OK);
        ck_assert_int_eq(zero_release(engine, u, NULL), ZERO_OK);
    }
    for (zero_unit_t u = N_UNITS - 1; u >= 0; u--) {
        ck_assert_int_eq(zero_acquire(engine, u, NULL), ZERO_OK);
        ck_assert_int_eq(cuda_graphs_run(toy.model.graphs, &toy.model, u, compute), ZERO_OK);
        const float *weight = zero_param(engine, toy.tensors[u]), *grad = zero_grad(engine, toy.tensors[u]).data;
        for (int i = 0; i < N_ELEMS; i++)
            ck_assert_float_eq(grad[i], times * weight[i]);
        ck_assert_int_eq(zero_grad_ready(engine, u, NULL), ZERO_OK);
    }
}

static void end_step(zero_engine_t *engine)
{
    zero_step_result_t result;
    ck_assert_int_eq(zero_step(engine, 0.0f, NULL, NULL), ZERO_OK);
    ck_assert_int_eq(zero_step_wait(engine, &result), ZERO_OK);
}

static void step(zero_engine_t *engine, zero_status_t (*compute)(model_t *model, zero_unit_t unit))
{
    micro_step(engine, compute, 1.0f);
    end_step(engine);
}

static void expect(int n_computed, int n_made, int n_replayed)
{
    ck_assert_int_eq(toy.n_computed, n_computed);
    ck_assert_int_eq(the.n_made, n_made);
    ck_assert_int_eq(the.n_replayed, n_replayed);
}

/* ---- claims ---- */

START_TEST(kernels_with_the_same_arguments_are_captured_once)
{
    zero_engine_t *engine = engine_create(3, 1, 1);
    for (int i = 0; i < 5; i++)
        step(engine, gradient_is_weight);
    expect(N_UNITS, N_UNITS, 5 * N_UNITS);
    zero_engine_destroy(engine);
}
END_TEST

START_TEST(another_address_is_another_graph_and_the_first_is_kept)
{
    zero_engine_t *a = engine_create(3, 1, 1), *b = engine_create(3, 1, 2);
    for (int i = 0; i < 3; i++) {
        step(a, gradient_is_weight);
        step(b, gradient_is_weight);
    }
    expect(2 * N_UNITS, 2 * N_UNITS, 6 * N_UNITS);
    zero_engine_destroy(a);
    zero_engine_destroy(b);
}
END_TEST

/* Stage 0 adds the second micro-step's gradients to the first's. */
START_TEST(adding_to_a_gradient_is_another_graph)
{
    zero_engine_t *engine = engine_create(0, 2, 1);
    for (int i = 0; i < 3; i++) {
        micro_step(engine, gradient_is_weight, 1.0f);
        micro_step(engine, gradient_is_weight, 2.0f);
        end_step(engine);
    }
    expect(2 * N_UNITS, 2 * N_UNITS, 6 * N_UNITS);
    zero_engine_destroy(engine);
}
END_TEST

START_TEST(another_function_or_loss_weight_is_another_graph)
{
    zero_engine_t *engine = engine_create(3, 1, 1);
    step(engine, gradient_is_weight);
    step(engine, another_function);
    toy.model.loss_weight = 0.5;
    step(engine, gradient_is_weight);
    expect(3 * N_UNITS, 3 * N_UNITS, 3 * N_UNITS);
    step(engine, gradient_is_weight);
    expect(3 * N_UNITS, 3 * N_UNITS, 4 * N_UNITS);
    zero_engine_destroy(engine);
}
END_TEST

/* The head, which alone uses such a weight, is not captured (model.c). */
START_TEST(a_loss_weight_that_varies_makes_no_other_graphs)
{
    zero_engine_t *engine = engine_create(3, 1, 1);
    toy.model.may_skip_targets = true;
    step(engine, gradient_is_weight);
    toy.model.loss_weight = 0.5;
    step(engine, gradient_is_weight);
    expect(N_UNITS, N_UNITS, 2 * N_UNITS);
    zero_engine_destroy(engine);
}
END_TEST

/* As tiles of tokens do. */
START_TEST(asking_again_and_again_for_a_tensor_makes_one_graph)
{
    zero_engine_t *engine = engine_create(3, 1, 1);
    toy.n_asked = 1000;
    step(engine, gradient_is_weight);
    step(engine, gradient_is_weight);
    expect(N_UNITS, N_UNITS, 2 * N_UNITS);
    zero_engine_destroy(engine);
}
END_TEST

/* More tensors than are noted: whether they are still where they were could not be checked. */
START_TEST(a_function_with_too_many_tensors_is_computed_every_time)
{
    zero_engine_t *engine = engine_create(3, 1, 1);
    toy.n_others = 1000;
    for (int i = 0; i < 3; i++)
        step(engine, gradient_is_weight);
    ck_assert_int_ge(toy.n_computed, 3 * N_UNITS);
    ck_assert_int_eq(the.n_replayed, 0);
    ck_assert_int_eq(the.n_alive, 0);
    zero_engine_destroy(engine);
}
END_TEST

/* For example a GPU without memory for a graph. Nothing that was queued during the capture has been done. */
START_TEST(passes_that_cannot_be_captured_are_computed)
{
    zero_engine_t *engine = engine_create(3, 1, 1);
    the.fails = true;
    for (int i = 0; i < 3; i++)
        step(engine, gradient_is_weight);
    expect(4 * N_UNITS, 0, 0);
    zero_engine_destroy(engine);
}
END_TEST

START_TEST(a_failure_during_capture_is_returned_and_leaves_no_graph)
{
    zero_engine_t *engine = engine_create(3, 1, 1);
    toy.model.engine = engine;
    ck_assert_int_eq(zero_begin(engine, ZERO_PASS_TRAIN, NULL), ZERO_OK);
    ck_assert_int_eq(zero_acquire(engine, 0, NULL), ZERO_OK);
    ck_assert_int_eq(cuda_graphs_run(toy.model.graphs, &toy.model, 0, failing), ZERO_ERROR_ARGUMENT);
    ck_assert_ptr_null(the.being_made);
    ck_assert_int_eq(the.n_alive, 0);
    zero_engine_destroy(engine);
}
END_TEST

/* Libraries choose in the first passes, and evaluation has another loss weight each time. */
START_TEST(training_is_captured_once_it_repeats_and_evaluation_never)
{
    enum { ROWS = 2 * 5 };
    const int32_t inputs[ROWS] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, targets[ROWS] = {2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    options_t options = trainer_options(2, 12, 3, 37, 5);
    trainer_t trainer;
    zero_step_result_t result;
    options.train.micro_batch = options.train.global_batch = 2;
    ck_assert_int_eq(options_resolve(&options, 1), ZERO_OK);
    ck_assert_int_eq(trainer_open(&trainer, &options, toy.comm), ZERO_OK);
    ck_assert_int_eq(zero_init_parameters(trainer.engine), ZERO_OK);
    ck_assert_int_eq(
        cuda_graphs_create(&toy.kernels, zero_model_n_units(trainer.model.declaration), &trainer.model.graphs),
        ZERO_OK);
    for (int i = 0; i < CUDA_GRAPHS_WARM_UP; i++) {
        ck_assert_int_eq(trainer_step(&trainer, inputs, targets, 1e-3, &result), ZERO_OK);
        ck_assert_int_eq(the.n_made, 0);
    }
    ck_assert_int_eq(model_loss(&trainer.model, 2, (model_batch_t){.inputs = inputs, .targets = targets}, 1.0),
                     ZERO_OK);
    ck_assert_int_eq(the.n_made, 0);
    ck_assert_int_eq(trainer_step(&trainer, inputs, targets, 1e-3, &result), ZERO_OK);
    ck_assert_int_eq(the.n_made, 2 * zero_model_n_units(trainer.model.declaration));
    ck_assert_int_eq(model_loss(&trainer.model, 2, (model_batch_t){.inputs = inputs, .targets = targets}, 1.0),
                     ZERO_OK);
    ck_assert_int_eq(the.n_made, 2 * zero_model_n_units(trainer.model.declaration));
    trainer_close(&trainer);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("cuda_graphs");
    TCase *tcase = tcase_create("cuda_graphs");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, kernels_with_the_same_arguments_are_captured_once);
    tcase_add_test(tcase, another_address_is_another_graph_and_the_first_is_kept);
    tcase_add_test(tcase, adding_to_a_gradient_is_another_graph);
    tcase_add_test(tcase, another_function_or_loss_weight_is_another_graph);
    tcase_add_test(tcase, a_loss_weight_that_varies_makes_no_other_graphs);
    tcase_add_test(tcase, asking_again_and_again_for_a_tensor_makes_one_graph);
    tcase_add_test(tcase, a_function_with_too_many_tensors_is_computed_every_time);
    tcase_add_test(tcase, passes_that_cannot_be_captured_are_computed);
    tcase_add_test(tcase, a_failure_during_capture_is_returned_and_leaves_no_graph);
    tcase_add_test(tcase, training_is_captured_once_it_repeats_and_evaluation_never);
    suite_add_tcase(s, tcase);
    return s;
}

int main(void)
{
    return support_main(suite());
}
