/* pass_cases.c - passes that do without something: units that a rank does not use (zero_unused), and passes without
 * gradients (ZERO_PASS_INPUT_GRAD).
 *
 *     mpirun -np N pass_cases [stage=0] [dtype=fp32] [comm=auto] [device=cpu] [once=0] [check=0]
 *
 * N divides 12, the micro-batches of a step. Which micro-batch uses which unit is drawn, in forward and in backward, so
 * ranks differ in it. Checks every reduced gradient against additions in plain C, in the order of micro-batches; once:
 * of micro-steps that are added up first, whose sums of few bits are exact in any order. Between steps, input-grad
 * passes must change nothing. Rank 0 prints norms: equal text is equal bits. Exit code 0 if every check held.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "zero.h"

#include "tests/mpi/device_elements.h"
#include "tests/mpi/hash.h"
#include "tests/mpi/settings.h"

/* The last unit shares tensor 0 of the first. */
enum { N_UNITS = 4, N_TENSORS = 5, N_STEPS = 3, N_MICRO_BATCHES = 12, MOST = 3001 };
static const int UNIT_OF[N_TENSORS] = {0, 1, 1, 2, 3};
static const int N_ELEMS[N_TENSORS] = {77, 3001, 5, 700, 64};

typedef struct settings {
    int stage, dtype, comm, device, once, check;
} settings_t;

typedef struct run {
    settings_t s;
    zero_comm_t *comm;
    zero_device_t *device;
    zero_config_t config;
    zero_engine_t *engine;
    int rank, n_ranks;
    float got[MOST];
} run_t;

static bool is_used(int step, int v, zero_unit_t unit, bool backward)
{
    return hash(((uint64_t)step * 16 + (uint64_t)v) * 16 + (uint64_t)unit * 2 + backward + 1) % 3 != 0;
}

/* What micro-batch v adds in a unit: whole numbers, few bits, so that every dtype has them and their sums. */
static float gradient(int step, int v, zero_unit_t unit, int tensor, int i)
{
    uint64_t key = (((uint64_t)step * 16 + (uint64_t)v) * 8 + (uint64_t)unit) * 8 + (uint64_t)tensor;
    return (float)((int)(hash(key + ((uint64_t)i << 20)) >> 61) - 3);
}

static bool writes(zero_unit_t unit, int tensor)
{
    return UNIT_OF[tensor] == unit || (unit == N_UNITS - 1 && tensor == 0);
}

/* ---- the run ---- */

static run_t open_run(const settings_t *s)
{
    run_t run = {.s = *s, .config = zero_config_default()};
    zero_model_t *model;
    zero_tensor_t tensor;
    OK(zero_comm_create((zero_comm_kind_t)s->comm, &run.comm));
    OK(zero_device_create((zero_device_type_t)s->device, run.comm, &run.device));
    OK(zero_model_create(&model));
    run.rank = zero_comm_rank(run.comm);
    run.n_ranks = zero_comm_size(run.comm);
    CHECK(N_MICRO_BATCHES % run.n_ranks == 0, "%d ranks", run.n_ranks);
    for (int t = 0; t < N_TENSORS; t++) {
        char name[16];
        zero_unit_t unit = UNIT_OF[t];
        snprintf(name, sizeof name, "tensor %d", t);
        if (t == 0 || unit != UNIT_OF[t - 1])
            OK(zero_model_add_unit(model, name, &unit));
        OK(zero_model_add_tensor(
            model, unit,
            &(zero_tensor_desc_t){
                .name = name, .n_dims = 1, .shape = {N_ELEMS[t]}, .init = ZERO_INIT_NORMAL, .init_std = 1.0f},
            &tensor));
    }
    OK(zero_model_share_tensor(model, N_UNITS - 1, 0));
    run.config.stage = s->stage;
    run.config.dtype = (zero_dtype_t)s->dtype;
    run.config.micro_steps = N_MICRO_BATCHES / run.n_ranks;
    run.config.reduce_every_micro_step = !s->once;
    run.config.check = s->check;
    run.config.initial_loss_scale = 1.0f;
    OK(zero_engine_create(run.comm, run.device, model, &run.config, &run.engine));
    zero_model_destroy(model);
    OK(zero_init_parameters(run.engine));
    return run;
}

static void write_grads(const run_t *run, zero_unit_t unit, int step, int v)
{
    static float values[MOST];
    for (int t = 0; t < N_TENSORS; t++) {
        if (!writes(unit, t))
            continue;
        for (int i = 0; i < N_ELEMS[t]; i++)
            values[i] = gradient(step, v, unit, t, i);
        device_write_grad(run->device, zero_grad(run->engine, t), values, (size_t)N_ELEMS[t]);
    }
}

static void make_pass(const run_t *run, int step, int v)
{
    OK(zero_begin(run->engine, ZERO_PASS_TRAIN, NULL));
    for (int position = 0; position < 2 * N_UNITS; position++) {
        const bool backward = position >= N_UNITS;
        zero_unit_t unit = backward ? 2 * N_UNITS - 1 - position : position;
        if (!is_used(step, v, unit, backward)) {
            OK(zero_unused(run->engine, unit, NULL));
            continue;
        }
        OK(zero_acquire(run->engine, unit, NULL));
        if (backward)
            write_grads(run, unit, step, v);
        OK((backward ? zero_grad_ready : zero_release)(run->engine, unit, NULL));
    }
}

/* A whole pass for the gradient of the input, of which some units are unused. */
static void make_input_grad_pass(const run_t *run, int step)
{
    const zero_stats_t before = zero_engine_stats(run->engine);
    OK(zero_begin(run->engine, ZERO_PASS_INPUT_GRAD, NULL));
    for (int position = 0; position < 2 * N_UNITS; position++) {
        const bool backward = position >= N_UNITS;
        zero_unit_t unit = backward ? 2 * N_UNITS - 1 - position : position;
        if (!is_used(step, run->rank, unit, backward)) {
            OK(zero_unused(run->engine, unit, NULL));
            continue;
        }
        OK(zero_acquire(run->engine, unit, NULL));
        for (int t = 0; t < N_TENSORS; t++) {
            CHECK(!zero_grad(run->engine, t).data, "tensor %d has a gradient", t);
            CHECK((zero_param(run->engine, t) != NULL) == writes(unit, t), "unit %d, tensor %d", unit, t);
        }
        OK((backward ? zero_grad_ready : zero_release)(run->engine, unit, NULL));
    }
    const zero_stats_t after = zero_engine_stats(run->engine);
    CHECK(after.n_reduces == before.n_reduces && after.reduced_bytes == before.reduced_bytes, "gradients were reduced");
}

static void check_grads(run_t *run, int step)
{
    for (int t = 0; t < N_TENSORS; t++) {
        OK(zero_get_tensor(run->engine, t, ZERO_ARRAY_GRAD, ZERO_ALL_RANKS, run->got));
        for (int i = 0; i < N_ELEMS[t]; i++) {
            float sum = 0.0f;
            for (int v = 0; v < N_MICRO_BATCHES; v++)
                for (zero_unit_t unit = 0; unit < N_UNITS; unit++)
                    if (writes(unit, t) && is_used(step, v, unit, true))
                        sum += gradient(step, v, unit, t, i);
            CHECK(run->got[i] == sum, "step %d, tensor %d, element %d: %g, not %g", step, t, i, (double)run->got[i],
                  (double)sum);
        }
    }
}

/* ---- misuse ---- */

static void expect(zero_status_t status, zero_status_t wanted, const char *what)
{
    CHECK(status == wanted, "%s: %s", what, zero_status_name(status));
}

static int n_lines;

static void count_line(void *user, zero_log_level_t level, int rank, const char *line)
{
    (void)user, (void)level, (void)rank;
    CHECK(line[0], "an empty line");
    n_lines++;
}

/* Every refused call is one line, and changes nothing: the steps after it have the bits that they had. */
static void misuse(const run_t *run)
{
    zero_log_set(ZERO_LOG_WARNING, count_line, NULL);
    expect(zero_unused(NULL, 0, NULL), ZERO_ERROR_ARGUMENT, "NULL");
    expect(zero_unused(run->engine, 0, NULL), ZERO_ERROR_ORDER, "outside a pass");
    expect(zero_begin(run->engine, (zero_pass_t)3, NULL), ZERO_ERROR_ARGUMENT, "pass 3");
    OK(zero_begin(run->engine, ZERO_PASS_INPUT_GRAD, NULL));
    expect(zero_unused(run->engine, 1, NULL), ZERO_ERROR_ORDER, "another unit");
    expect(zero_unused(run->engine, N_UNITS, NULL), ZERO_ERROR_ARGUMENT, "no unit");
    OK(zero_acquire(run->engine, 0, NULL));
    expect(zero_unused(run->engine, 0, NULL), ZERO_ERROR_ORDER, "acquired");
    expect(zero_begin(run->engine, ZERO_PASS_EVAL, NULL), ZERO_ERROR_ORDER, "inside a pass");
    OK(zero_cancel(run->engine));
    make_pass(run, 0, run->rank);
    if (run->config.micro_steps > 1)
        expect(zero_begin(run->engine, ZERO_PASS_INPUT_GRAD, NULL), ZERO_ERROR_ORDER, "inside a step");
    OK(zero_cancel(run->engine));
    CHECK(n_lines == (run->config.micro_steps > 1 ? 8 : 7), "%d lines", n_lines);
    zero_log_set(ZERO_LOG_WARNING, NULL, NULL);
}

int main(int argc, char **argv)
{
    static const setting_row_t rows[] = {
        {"stage", offsetof(settings_t, stage), NULL},     {"dtype", offsetof(settings_t, dtype), SETTING_DTYPES},
        {"comm", offsetof(settings_t, comm), "auto mpi"}, {"device", offsetof(settings_t, device), SETTING_DEVICES},
        {"once", offsetof(settings_t, once), NULL},       {"check", offsetof(settings_t, check), NULL}};
    settings_t s = {.device = ZERO_DEVICE_CPU};
    for (int i = 1; i < argc; i++)
        setting_take(argv[i], rows, sizeof rows / sizeof rows[0], &s);
    static run_t run;
    run = open_run(&s);
    misuse(&run);
    for (int step = 0; step < N_STEPS; step++) {
        zero_step_result_t result;
        make_input_grad_pass(&run, step);
        for (int j = 0; j < run.config.micro_steps; j++)
            make_pass(&run, step, j * run.n_ranks + run.rank);
        check_grads(&run, step);
        OK(zero_step(run.engine, 0.01f, NULL, NULL));
        OK(zero_step_wait(run.engine, &result));
        CHECK(!result.skipped, "step %d", step);
        if (run.rank == 0)
            printf("step %d %a\n", step, (double)result.grad_norm);
    }
    zero_engine_destroy(run.engine);
    zero_device_destroy(run.device);
    zero_comm_destroy(run.comm);
    return 0;
}
