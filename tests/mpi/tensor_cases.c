/* tensor_cases.c - whole tensors in and out, steps whose numbers of micro-steps change, and steps that are cancelled,
 * also because a hook fails on one rank.
 *
 *     mpirun -np N tensor_cases [stage=0] [dtype=fp32] [comm=auto] [device=cpu] [optimizer=adamw|adamw8bit]
 *
 * N divides 60, the fewest micro-batches of a step. Checks every reduced gradient against additions in plain C, in the
 * order of micro-batches; every array against zero_get_state; and what is set against what is read, here and in
 * zero_param: 8-bit AdamW's moments as the nearest values of adam8_fp64.h. Rank 0 prints the norms of the steps and
 * hashes of all arrays: equal text is equal bits, on any number of ranks at any stage. Exit code 0 if every check held.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zero.h"

#include "tests/mpi/device_elements.h"
#include "tests/mpi/hash.h"
#include "tests/mpi/settings.h"
#include "tests/unit/optimizer/adam8_fp64.h"

enum { N_UNITS = 3, N_TENSORS = 5, N_STEPS = 4 };
static const int64_t N_ELEMS[N_TENSORS] = {1, 66001, 77, 4099, 3};
static const int UNIT_OF[N_TENSORS] = {0, 1, 1, 2, 2};
static const int N_MICRO_BATCHES[N_STEPS] = {60, 120, 60, 60};

typedef struct settings {
    int stage, dtype, comm, device, optimizer;
} settings_t;

typedef struct run {
    settings_t s;
    zero_comm_t *comm;
    zero_device_t *device;
    zero_engine_t *engine;
    int rank, n_ranks;
    float *want, *got; /* room for any tensor */
} run_t;

/* The tensor for whose gradient the hook fails on the rank that has its first element; -1: it does not. */
static int failing = -1;

static zero_status_t fail_at(void *user, const zero_reduced_t *reduced, zero_stream_t stream)
{
    (void)user, (void)stream;
    return reduced->tensor == failing && reduced->first == 0 ? ZERO_ERROR_IO : ZERO_OK;
}

/* Returns an element of micro-batch v's gradient: of any sign, few bits, so that every dtype has it, and of sizes so
 * different that sums in fp32 are rounded. */
static float gradient(int step, int v, int tensor, uint64_t element)
{
    uint64_t bits = hash(((uint64_t)step * 256 + (uint64_t)v) * 8 + (uint64_t)tensor + (element << 20));
    return ldexpf((float)(int)(bits >> 58) - 31.5f, -6 - (int)(bits % 17));
}

/* ---- the run ---- */

static run_t open_run(const settings_t *s)
{
    run_t run = {.s = *s, .want = malloc(66001 * sizeof(float)), .got = malloc(66001 * sizeof(float))};
    static const zero_hooks_t hooks = {.reduced = fail_at};
    zero_config_t config = zero_config_default();
    zero_model_t *model;
    OK(zero_comm_create((zero_comm_kind_t)s->comm, &run.comm));
    OK(zero_device_create((zero_device_type_t)s->device, run.comm, &run.device));
    OK(zero_model_create(&model));
    CHECK(run.want && run.got, "no memory");
    run.rank = zero_comm_rank(run.comm);
    run.n_ranks = zero_comm_size(run.comm);
    CHECK(60 % run.n_ranks == 0, "%d ranks", run.n_ranks);
    for (int t = 0; t < N_TENSORS; t++) {
        char name[16];
        zero_unit_t unit = UNIT_OF[t];
        zero_tensor_t tensor;
        snprintf(name, sizeof name, "tensor %d", t);
        if (t == 0 || unit != UNIT_OF[t - 1])
            OK(zero_model_add_unit(model, name, &unit));
        OK(zero_model_add_tensor(
            model, unit,
            &(zero_tensor_desc_t){
                .name = name, .n_dims = 1, .shape = {N_ELEMS[t]}, .init = ZERO_INIT_NORMAL, .init_std = 1.0f},
            &tensor));
    }
    config.stage = s->stage;
    config.dtype = (zero_dtype_t)s->dtype;
    config.optimizer = (zero_optimizer_t)s->optimizer;
    config.micro_steps = 2;
    config.initial_loss_scale = 4.0f;
    config.hooks = &hooks;
    OK(zero_engine_create(run.comm, run.device, model, &config, &run.engine));
    zero_model_destroy(model);
    OK(zero_init_parameters(run.engine));
    return run;
}

static void close_run(run_t *run)
{
    zero_engine_destroy(run->engine);
    zero_device_destroy(run->device);
    zero_comm_destroy(run->comm);
    free(run->want);
    free(run->got);
}

static void write_grads(const run_t *run, zero_unit_t unit, int step, int v)
{
    float scale;
    device_read(run->device, &scale, zero_loss_scale(run->engine), ZERO_FP32, 1);
    for (int t = 0; t < N_TENSORS; t++) {
        if (UNIT_OF[t] != unit)
            continue;
        for (int64_t i = 0; i < N_ELEMS[t]; i++)
            run->got[i] = scale * gradient(step, v, t, (uint64_t)i);
        device_write_grad(run->device, zero_grad(run->engine, t), run->got, (size_t)N_ELEMS[t]);
    }
}

/* n_calls: of the pass's 4 N_UNITS that are made. Returns the first failure of the hook. */
static zero_status_t make_pass(const run_t *run, int step, int v, int n_calls)
{
    zero_status_t failure = ZERO_OK;
    OK(zero_begin(run->engine, ZERO_PASS_TRAIN, NULL));
    for (int call = 0; call < n_calls; call++) {
        const bool is_backward = call >= 2 * N_UNITS;
        zero_unit_t unit = is_backward ? 2 * N_UNITS - 1 - call / 2 : call / 2;
        if (call % 2 == 0)
            OK(zero_acquire(run->engine, unit, NULL));
        else if (!is_backward)
            OK(zero_release(run->engine, unit, NULL));
        else {
            zero_status_t status = zero_grad_ready(run->engine, unit, NULL);
            CHECK(status == ZERO_OK || (status == ZERO_ERROR_IO && failing >= 0 && failure == ZERO_OK), "%s",
                  zero_last_error());
            failure = failure == ZERO_OK ? status : failure;
        }
        if (call % 2 == 0 && is_backward)
            write_grads(run, unit, step, v);
    }
    return failure;
}

/* ---- checks ---- */

/* In the order of micro-batches, from 0. Each rank checks some. */
static void check_grads(const run_t *run, int step)
{
    for (int t = 0; t < N_TENSORS; t++) {
        OK(zero_get_tensor(run->engine, t, ZERO_ARRAY_GRAD, ZERO_ALL_RANKS, run->got));
        for (int64_t i = run->rank; i < N_ELEMS[t]; i += run->n_ranks) {
            float sum = 0.0f;
            for (int v = 0; v < N_MICRO_BATCHES[step]; v++)
                sum += gradient(step, v, t, (uint64_t)i);
            CHECK(run->got[i] == sum, "step %d, tensor %d, element %d: %a, not %a", step, t, (int)i,
                  (double)run->got[i], (double)sum);
        }
    }
}

typedef struct comparison {
    const run_t *run;
    zero_tensor_t tensor;
    zero_array_t array;
} comparison_t;

static zero_status_t compare_chunk(void *user, const zero_chunk_t *chunk)
{
    const comparison_t *c = user;
    const float *want = c->array == ZERO_ARRAY_WEIGHT ? chunk->master : c->array == ZERO_ARRAY_M ? chunk->m : chunk->v;
    for (size_t i = 0; i < chunk->n_elems && chunk->tensor == c->tensor; i++)
        CHECK(c->run->got[chunk->first + i] == want[i], "tensor %d, array %d", c->tensor, (int)c->array);
    return ZERO_OK;
}

/* Every rank reads, then one alone: the others' memory stays. */
static void tell_arrays(const run_t *run)
{
    for (int t = 0; t < N_TENSORS; t++)
        for (int a = 0; a < 3; a++) {
            comparison_t c = {run, t, (zero_array_t)a};
            const int root = (t + a) % run->n_ranks;
            OK(zero_get_tensor(run->engine, t, c.array, ZERO_ALL_RANKS, run->got));
            const uint64_t sum = hash_floats(run->got, (uint64_t)N_ELEMS[t]);
            OK(zero_get_state(run->engine, compare_chunk, &c));
            memset(run->want, 0x5a, (size_t)N_ELEMS[t] * sizeof *run->want);
            const float untouched = run->want[0];
            OK(zero_get_tensor(run->engine, t, c.array, root, run->rank == root || t == 1 ? run->want : NULL));
            for (int64_t i = 0; i < N_ELEMS[t]; i++)
                CHECK(run->want[i] == (run->rank == root ? run->got[i] : untouched), "tensor %d, array %d", t, a);
            if (run->rank == 0)
                printf("%d %d %016llx\n", t, a, (unsigned long long)sum);
        }
}

static float value_to_set(int tensor, int array, int64_t i)
{
    float value = ldexpf((float)(hash((uint64_t)(tensor * 3 + array) + ((uint64_t)i << 8)) >> 40) + 1.0f, -24);
    return array < 2 && i % 2 == 1 ? -value : value;
}

/* Checks what is read of an array that was set: the same numbers, or those that 8 bits keep of them. */
static void check_set(const run_t *run, int tensor, int array)
{
    const size_t n = (size_t)N_ELEMS[tensor];
    const bool is_in_8_bits = run->s.optimizer == ZERO_OPTIMIZER_ADAMW8BIT && array != ZERO_ARRAY_WEIGHT;
    double *want = calloc(n, sizeof *want);
    bool *unsure = calloc(n, sizeof *unsure);
    size_t n_unsure = 0;
    CHECK(want && unsure, "no memory");
    for (size_t i = 0; i < n; i++)
        want[i] = (double)value_to_set(tensor, array, (int64_t)i);
    if (is_in_8_bits)
        adam8_fp64_round(want, n, array == ZERO_ARRAY_M, unsure);
    for (size_t i = 0; i < n; i++) {
        n_unsure += unsure[i];
        CHECK(unsure[i] || fabs((double)run->got[i] - want[i]) <= (is_in_8_bits ? 2e-7 * fabs(want[i]) : 0.0),
              "tensor %d, array %d, element %zu is %a, not %a", tensor, array, i, (double)run->got[i], want[i]);
    }
    CHECK(4 * n_unsure <= n, "%zu of %zu elements are left out", n_unsure, n);
    free(want);
    free(unsure);
}

/* Sets one array of one tensor; all others stay. */
static void set_one(const run_t *run, int tensor, int array, int root)
{
    const bool has_data = root == ZERO_ALL_RANKS || run->rank == root;
    for (int64_t i = 0; i < N_ELEMS[tensor]; i++)
        run->want[i] = has_data ? value_to_set(tensor, array, i) : 7.0f;
    OK(zero_set_tensor(run->engine, tensor, (zero_array_t)array, root, has_data ? run->want : NULL));
    OK(zero_get_tensor(run->engine, tensor, (zero_array_t)array, ZERO_ALL_RANKS, run->got));
    check_set(run, tensor, array);
}

/* What was set as a weight is what the next pass computes with. */
static void check_param(const run_t *run, int tensor)
{
    OK(zero_begin(run->engine, ZERO_PASS_EVAL, NULL));
    for (zero_unit_t unit = 0; unit < N_UNITS; unit++) {
        OK(zero_acquire(run->engine, unit, NULL));
        const void *param = unit == UNIT_OF[tensor] ? zero_param(run->engine, tensor) : NULL;
        if (param)
            device_read(run->device, run->got, param, (zero_dtype_t)run->s.dtype, (size_t)N_ELEMS[tensor]);
        for (int64_t i = 0; i < N_ELEMS[tensor] && param; i++) {
            const float value = run->got[i];
            CHECK(fabsf(value - value_to_set(tensor, 0, i)) <=
                      fabsf(value) / (run->s.dtype == ZERO_FP32 ? INFINITY : 200),
                  "element %d of tensor %d is %a", (int)i, tensor, (double)value);
        }
        OK(zero_release(run->engine, unit, NULL));
    }
}

/* Cancels a step in which the hook fails on one rank: the others learn of it in zero_step. The rank is the first, which
 * reduces the first element of each unit at every stage. */
static void fail_step(const run_t *run, int step, int micro_steps)
{
    const int first_of_units[N_UNITS] = {0, 1, 3};
    zero_status_t failure = ZERO_OK;
    failing = first_of_units[step % N_UNITS];
    for (int j = 0; j < micro_steps && failure == ZERO_OK; j++)
        failure = make_pass(run, step + 8, j, 4 * N_UNITS);
    /* That of the last units in backward is behind their zero_grad_ready, so that only zero_step is left to tell. */
    CHECK(run->rank == 0 || failure == ZERO_OK, "%s", zero_last_error());
    const zero_status_t status = zero_step(run->engine, 0.01f, NULL, NULL);
    CHECK(status == (run->rank == 0 ? ZERO_ERROR_IO : ZERO_ERROR_PEER), "%s", zero_status_name(status));
    CHECK(run->rank == 0 || strstr(zero_last_error(), "rank 0 failed: "), "%s", zero_last_error());
    failing = -1;
    OK(zero_cancel(run->engine));
}

static void make_step(const run_t *run, int step)
{
    zero_step_result_t result;
    const int micro_steps = N_MICRO_BATCHES[step] / run->n_ranks;
    OK(zero_set_micro_steps(run->engine, micro_steps));
    /* Cancelled: after whole passes, and within one. */
    for (int j = 0; j <= step % 3 && j < micro_steps; j++)
        make_pass(run, step + 8, j, j < step % 3 ? 4 * N_UNITS : 5 * step % (4 * N_UNITS));
    OK(zero_cancel(run->engine));
    fail_step(run, step, micro_steps);
    for (int j = 0; j < micro_steps; j++)
        make_pass(run, step, j * run->n_ranks + run->rank, 4 * N_UNITS);
    check_grads(run, step);
    OK(zero_step(run->engine, 0.01f, NULL, NULL));
    OK(zero_step_wait(run->engine, &result));
    CHECK(result.step == (uint64_t)step + 1 && !result.skipped, "step %d", (int)result.step);
    if (run->rank == 0)
        printf("step %d %a\n", step, (double)result.grad_norm);
}

int main(int argc, char **argv)
{
    static const setting_row_t rows[] = {{"stage", offsetof(settings_t, stage), NULL},
                                         {"dtype", offsetof(settings_t, dtype), SETTING_DTYPES},
                                         {"comm", offsetof(settings_t, comm), "auto mpi"},
                                         {"device", offsetof(settings_t, device), SETTING_DEVICES},
                                         {"optimizer", offsetof(settings_t, optimizer), SETTING_OPTIMIZERS}};
    settings_t s = {.device = ZERO_DEVICE_CPU};
    for (int i = 1; i < argc; i++)
        setting_take(argv[i], rows, sizeof rows / sizeof rows[0], &s);
    run_t run = open_run(&s);
    for (int step = 0; step < N_STEPS; step++) {
        make_step(&run, step);
        if (step == 1) { /* in the middle of a training */
            set_one(&run, 1, ZERO_ARRAY_WEIGHT, run.n_ranks - 1);
            check_param(&run, 1);
            set_one(&run, 2, ZERO_ARRAY_M, 0);
            set_one(&run, 3, ZERO_ARRAY_V, ZERO_ALL_RANKS);
            set_one(&run, 0, ZERO_ARRAY_WEIGHT, ZERO_ALL_RANKS);
        }
        if (step != 2)
            tell_arrays(&run);
    }
    close_run(&run);
    return 0;
}
