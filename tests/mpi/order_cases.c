/* order_cases.c - the order of sums belongs to the batch: reduced gradients against additions in plain C, one
 * micro-batch after another, whatever the number of ranks.
 *
 *     mpirun -np N order_cases [stage=0] [dtype=fp32] [comm=auto] [prefetch=1] [overlap=1] [staging=0]
 *
 * N divides the step's 12 micro-batches. The second of three steps has an infinite gradient and must be skipped. With
 * beta1 = 0 and no clipping, AdamW's first moment is the reduced gradient itself, which this program reads back. Rank 0
 * prints loss and norm of every step: the same text on any number of ranks. Exit code 0 if every check held.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zero.h"

#include "tests/mpi/hash.h"
#include "tests/mpi/settings.h"
#include "tests/support/elements.h"

enum { N_MICRO_BATCHES = 12, N_UNITS = 3, N_STEPS = 3, BAD_STEP = 2, BAD_MICRO_BATCH = 7 };
static const int64_t N_ELEMS[N_UNITS] = {1, 30011, 4099};

typedef struct settings {
    int stage, dtype, comm, prefetch, overlap, staging;
} settings_t;

typedef struct run {
    settings_t s;
    zero_comm_t *comm;
    zero_device_t *device;
    zero_model_t *model;
    zero_engine_t *engine;
    int rank, n_ranks;
    zero_tensor_t tensors[N_UNITS];
    float *sums[N_UNITS]; /* in the order of micro-batches: the reference */
    int64_t step;
    uint64_t n_visited;
} run_t;

/* Returns an element of micro-batch v's gradient: of any sign, from 2^-11 to 1, so that sums are rounded. */
static float gradient(int64_t step, int v, int unit, uint64_t element)
{
    uint64_t bits = hash(hash((uint64_t)step * 64 + (uint64_t)v) + (uint64_t)unit * 1000003 + element);
    if (step == BAD_STEP && v == BAD_MICRO_BATCH && unit == 1 && element == 20000)
        return INFINITY;
    return ldexpf((float)(bits >> 40) - 0x1p23f, -23 - (int)(bits % 11));
}

/* Returns micro-batch v's share of the loss: a multiple of 2^-42, with more bits than a float has. */
static double loss_of(int64_t step, int v)
{
    return ldexp((double)(hash((uint64_t)step * 977 + (uint64_t)v) >> 22), -42);
}

/* ---- the run ---- */

static void open_run(run_t *run)
{
    OK(zero_comm_create((zero_comm_kind_t)run->s.comm, &run->comm));
    OK(zero_device_create(ZERO_DEVICE_CPU, run->comm, &run->device));
    OK(zero_model_create(&run->model));
    run->rank = zero_comm_rank(run->comm);
    run->n_ranks = zero_comm_size(run->comm);
    CHECK(N_MICRO_BATCHES % run->n_ranks == 0, "%d ranks", run->n_ranks);
    for (int u = 0; u < N_UNITS; u++) {
        char name[16];
        zero_unit_t unit;
        snprintf(name, sizeof name, "unit %d", u);
        OK(zero_model_add_unit(run->model, name, &unit));
        OK(zero_model_add_tensor(
            run->model, unit,
            &(zero_tensor_desc_t){.name = name, .n_dims = 1, .shape = {N_ELEMS[u]}, .init = ZERO_INIT_ONES},
            &run->tensors[u]));
        run->sums[u] = calloc((size_t)N_ELEMS[u], sizeof(float));
        CHECK(run->sums[u], "no memory");
    }
    zero_config_t config = zero_config_default();
    config.stage = run->s.stage;
    config.dtype = (zero_dtype_t)run->s.dtype;
    config.micro_steps = N_MICRO_BATCHES / run->n_ranks;
    config.prefetch = run->s.prefetch;
    config.overlap = run->s.overlap;
    config.beta1 = 0.0f;
    config.grad_clip = 0.0f;
    config.initial_loss_scale = 1.0f;
    if (run->s.staging > 0)
        config.staging_bytes = (uint64_t)run->s.staging;
    OK(zero_engine_create(run->comm, run->device, run->model, &config, &run->engine));
    OK(zero_init_parameters(run->engine));
}

static void close_run(run_t *run)
{
    zero_engine_destroy(run->engine);
    zero_model_destroy(run->model);
    zero_device_destroy(run->device);
    zero_comm_destroy(run->comm);
    for (int u = 0; u < N_UNITS; u++)
        free(run->sums[u]);
}

static void write_gradient(run_t *run, int unit, int v)
{
    zero_grad_t grad = zero_grad(run->engine, run->tensors[unit]);
    CHECK(grad.data && !grad.accumulate && (int)grad.dtype == run->s.dtype, "dtype %d", (int)grad.dtype);
    for (uint64_t e = 0; e < (uint64_t)N_ELEMS[unit]; e++)
        element_store(grad.data, grad.dtype, e, gradient(run->step, v, unit, e));
}

static void make_pass(run_t *run, int v)
{
    OK(zero_begin(run->engine, ZERO_PASS_TRAIN, NULL));
    for (int u = 0; u < N_UNITS; u++) {
        OK(zero_acquire(run->engine, u, NULL));
        OK(zero_release(run->engine, u, NULL));
    }
    for (int u = N_UNITS - 1; u >= 0; u--) {
        OK(zero_acquire(run->engine, u, NULL));
        write_gradient(run, u, v);
        OK(zero_grad_ready(run->engine, u, NULL));
    }
}

/* ---- the reference ---- */

/* Adds up the step's gradients, each rounded to the wire's dtype, from micro-batch 0 on. Returns their norm. */
static double add_up(run_t *run)
{
    double squares = 0.0;
    for (int u = 0; u < N_UNITS; u++)
        for (uint64_t e = 0; e < (uint64_t)N_ELEMS[u]; e++) {
            volatile float sum = 0.0f;
            for (int v = 0; v < N_MICRO_BATCHES; v++) {
                float wire[1];
                element_store(wire, (zero_dtype_t)run->s.dtype, 0, gradient(run->step, v, u, e));
                float slice = element_load(wire, (zero_dtype_t)run->s.dtype, 0);
                sum = v == 0 ? slice : sum + slice;
            }
            run->sums[u][e] = sum;
            squares += (double)sum * (double)sum;
        }
    return sqrt(squares);
}

static zero_status_t compare(void *user, const zero_chunk_t *chunk)
{
    run_t *run = user;
    int unit = 0;
    while (run->tensors[unit] != chunk->tensor)
        unit++;
    for (size_t i = 0; i < chunk->n_elems; i++) {
        float want = run->sums[unit][chunk->first + i];
        CHECK(chunk->m[i] == want, "step %lld, unit %d, element %llu: %.9g, not %.9g", (long long)run->step, unit,
              (unsigned long long)(chunk->first + i), (double)chunk->m[i], (double)want);
    }
    run->n_visited += chunk->n_elems;
    return ZERO_OK;
}

static void make_step(run_t *run)
{
    zero_step_result_t result;
    double loss = 0.0, all_loss = 0.0, n_visited;
    for (int j = 0; j < N_MICRO_BATCHES / run->n_ranks; j++) {
        int v = j * run->n_ranks + run->rank;
        make_pass(run, v);
        loss += loss_of(run->step, v);
    }
    for (int v = 0; v < N_MICRO_BATCHES; v++)
        all_loss += loss_of(run->step, v);
    OK(zero_step(run->engine, 0.001f, &loss, NULL));
    OK(zero_step_wait(run->engine, &result));
    CHECK(result.skipped == (run->step == BAD_STEP), "step %lld", (long long)run->step);
    CHECK(result.loss == (float)all_loss, "loss %.9g, not %.9g", (double)result.loss, all_loss);
    if (run->rank == 0)
        printf("%lld %.9g %.9g %d\n", (long long)run->step, (double)result.loss, (double)result.grad_norm,
               result.skipped);
    if (result.skipped)
        return;
    double norm = add_up(run);
    CHECK(fabs((double)result.grad_norm - norm) <= 5e-7 * norm, "norm %.9g, not %.9g", (double)result.grad_norm, norm);
    run->n_visited = 0;
    OK(zero_get_state(run->engine, compare, run));
    n_visited = (double)run->n_visited;
    OK(zero_comm_sum(run->comm, &n_visited, 1));
    CHECK(n_visited == (double)(N_ELEMS[0] + N_ELEMS[1] + N_ELEMS[2]), "%g elements", n_visited);
}

int main(int argc, char **argv)
{
    static const setting_row_t rows[] = {
        {"stage", offsetof(settings_t, stage), NULL},     {"dtype", offsetof(settings_t, dtype), SETTING_DTYPES},
        {"comm", offsetof(settings_t, comm), "auto mpi"}, {"prefetch", offsetof(settings_t, prefetch), NULL},
        {"overlap", offsetof(settings_t, overlap), NULL}, {"staging", offsetof(settings_t, staging), NULL}};
    run_t run = {.s = {.prefetch = 1, .overlap = 1}};
    for (int i = 1; i < argc; i++)
        setting_take(argv[i], rows, sizeof rows / sizeof rows[0], &run.s);
    open_run(&run);
    for (run.step = 1; run.step <= N_STEPS; run.step++)
        make_step(&run);
    close_run(&run);
    return 0;
}
