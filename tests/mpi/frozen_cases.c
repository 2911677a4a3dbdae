/* frozen_cases.c - trains a model some of whose tensors are frozen, and one all of whose are.
 *
 *     mpirun -np N frozen_cases [stage=0] [dtype=fp32] [comm=auto] [device=cpu] [group=0] [check=0] [dir=DIRECTORY]
 *                            [optimizer=adamw]
 *
 * N divides 60, the micro-batches of a step. The model y = f(x) is a chain of element-wise products whose gradients are
 * written by hand, from what zero_param gives. Checks against the same training in fp64, in plain C, without the
 * library: weights within a bound, frozen ones to the bit. Checks the engine's memory against zero_plan, and the bytes
 * that a step exchanges against zero_plan_traffic. With a directory it saves, and loads with other tensors frozen. Rank
 * 0 prints norms and hashes: equal text is equal bits, on any number of ranks at any stage. Exit code 0 if every check
 * held.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zero.h"

#include "tests/mpi/device_elements.h"
#include "tests/mpi/hash.h"
#include "tests/mpi/settings.h"
#include "tests/unit/optimizer/adam8_fp64.h"

enum { N_UNITS = 5, N_TENSORS = 8, N_STEPS = 3, N_MICRO_BATCHES = 60, MOST = 4099 };
/* Units: both kinds; both, with packed ones; all frozen; all trained; all frozen, and it shares tensor 0. */
static const int UNIT_OF[N_TENSORS] = {0, 0, 1, 1, 1, 2, 3, 4};
static const int N_ELEMS[N_TENSORS] = {77, 300, 4099, 33, 65, 1025, 129, 3};
static const bool FROZEN[N_TENSORS] = {false, true, true, true, false, true, false, true};

typedef struct settings {
    int stage, dtype, comm, device, group, check, optimizer;
    const char *dir;
} settings_t;

typedef struct run {
    settings_t s;
    zero_comm_t *comm;
    zero_device_t *device;
    zero_model_t *model;
    zero_config_t config;
    zero_engine_t *engine;
    int rank, n_ranks;
    float *data;
    double *w[N_TENSORS], *m[N_TENSORS], *v[N_TENSORS], *g[N_TENSORS]; /* the reference */
    bool *unsure[N_TENSORS]; /* adamw8bit: fp32 may have other codes (adam8_fp64.h) */
} run_t;

static float initial(int tensor, uint64_t element)
{
    return (float)(int)(hash((uint64_t)tensor + 16 + (element << 8)) >> 41) * 0x1p-22f - 1.0f;
}

/* The gradient of micro-batch v: what a tensor is multiplied with, times the element of the frozen tensor `by`. */
static double slope(int step, int v, int tensor, uint64_t element)
{
    uint64_t bits = hash(((uint64_t)step * 64 + (uint64_t)v) * 16 + (uint64_t)tensor + (element << 20));
    return (double)((int)(bits >> 59) - 16) / 1024.0;
}

static int partner(int tensor)
{
    return tensor < 2 ? 1 : tensor < 5 ? 3 : 5;
}

/* ---- the run ---- */

/* adamw8bit refuses the odd size that is packed. */
static zero_model_t *declare(int all_frozen, int optimizer)
{
    zero_model_t *model;
    zero_tensor_t tensor;
    OK(zero_model_create(&model));
    for (int t = 0; t < N_TENSORS; t++) {
        char name[16];
        zero_unit_t unit = UNIT_OF[t];
        snprintf(name, sizeof name, "tensor %d", t);
        if (t == 0 || unit != UNIT_OF[t - 1])
            OK(zero_model_add_unit(model, name, &unit));
        zero_tensor_desc_t desc = {.name = name,
                                   .n_dims = 1,
                                   .shape = {N_ELEMS[t]},
                                   .init = ZERO_INIT_NORMAL,
                                   .init_std = 1.0f,
                                   .packed = t == 3 && optimizer != ZERO_OPTIMIZER_ADAMW8BIT,
                                   .decay = t == 6,
                                   .frozen = all_frozen < 0 ? !FROZEN[t] && t != 2 && t != 3 : all_frozen || FROZEN[t]};
        OK(zero_model_add_tensor(model, unit, &desc, &tensor));
    }
    OK(zero_model_share_tensor(model, N_UNITS - 1, 0));
    return model;
}

static zero_engine_t *create_engine(run_t *run, int all_frozen)
{
    zero_engine_t *engine;
    if (run->model)
        zero_model_destroy(run->model);
    run->model = declare(all_frozen, run->s.optimizer);
    OK(zero_engine_create(run->comm, run->device, run->model, &run->config, &engine));
    return engine;
}

static bool has_v(const run_t *run)
{
    return run->s.optimizer == ZERO_OPTIMIZER_ADAMW || run->s.optimizer == ZERO_OPTIMIZER_ADAMW8BIT;
}

static zero_status_t fill(void *user, const zero_chunk_t *chunk)
{
    const run_t *run = user;
    CHECK((chunk->m == NULL) == FROZEN[chunk->tensor], "tensor %d", chunk->tensor);
    CHECK((chunk->v == NULL) == (FROZEN[chunk->tensor] || !has_v(run)), "tensor %d", chunk->tensor);
    for (size_t i = 0; i < chunk->n_elems; i++)
        chunk->master[i] = (float)run->w[chunk->tensor][chunk->first + i];
    if (chunk->m)
        memset(chunk->m, 0, chunk->n_elems * sizeof *chunk->m);
    if (chunk->v)
        memset(chunk->v, 0, chunk->n_elems * sizeof *chunk->v);
    return ZERO_OK;
}

static run_t open_run(const settings_t *s)
{
    run_t run = {.s = *s, .config = zero_config_default(), .data = malloc(MOST * sizeof(float))};
    OK(zero_comm_create((zero_comm_kind_t)s->comm, &run.comm));
    OK(zero_device_create((zero_device_type_t)s->device, run.comm, &run.device));
    run.rank = zero_comm_rank(run.comm);
    run.n_ranks = zero_comm_size(run.comm);
    CHECK(N_MICRO_BATCHES % run.n_ranks == 0, "%d ranks", run.n_ranks);
    run.config.stage = s->stage;
    run.config.dtype = (zero_dtype_t)s->dtype;
    run.config.optimizer = (zero_optimizer_t)s->optimizer;
    run.config.micro_steps = N_MICRO_BATCHES / run.n_ranks;
    run.config.shard_group = s->group;
    run.config.check = s->check;
    run.config.initial_loss_scale = 4.0f;
    run.config.grad_clip = 0.0f;
    run.config.weight_decay = 0.5f;
    for (int t = 0; t < N_TENSORS; t++) {
        run.w[t] = calloc(MOST, sizeof(double));
        run.m[t] = calloc(MOST, sizeof(double));
        run.v[t] = calloc(MOST, sizeof(double));
        run.unsure[t] = calloc(MOST, sizeof(bool));
        run.g[t] = calloc(MOST, sizeof(double));
        for (int i = 0; i < N_ELEMS[t]; i++) {
            uint16_t half;
            run.w[t][i] = (double)initial(t, (uint64_t)i);
            /* Frozen tensors get what every dtype has, so that nothing is rounded; half: bf16's. */
            if (FROZEN[t]) {
                element_store(&half, ZERO_BF16, 0, initial(t, (uint64_t)i) * 0.5f + 0.75f);
                run.w[t][i] = (double)element_load(&half, ZERO_BF16, 0);
            }
        }
    }
    run.engine = create_engine(&run, 0);
    OK(zero_set_state(run.engine, true, fill, &run));
    return run;
}

static void close_run(run_t *run)
{
    zero_engine_destroy(run->engine);
    zero_model_destroy(run->model);
    zero_device_destroy(run->device);
    zero_comm_destroy(run->comm);
    for (int t = 0; t < N_TENSORS; t++) {
        free(run->w[t]);
        free(run->m[t]);
        free(run->v[t]);
        free(run->unsure[t]);
        free(run->g[t]);
    }
    free(run->data);
}

/* ---- a pass ---- */

static bool uses(zero_unit_t unit, int tensor)
{
    return UNIT_OF[tensor] == unit || (unit == N_UNITS - 1 && tensor == 0);
}

/* Checks the frozen tensors that the unit uses. */
static void check_params(const run_t *run, zero_engine_t *engine, zero_unit_t unit)
{
    for (int t = 0; t < N_TENSORS; t++) {
        const void *param = zero_param(engine, t);
        CHECK((param != NULL) == (UNIT_OF[t] == unit || (unit == N_UNITS - 1 && UNIT_OF[t] == 0)), "unit %d, tensor %d",
              unit, t); /* acquiring a unit that shares makes all of its owner resident */
        if (!param || !FROZEN[t])
            continue;
        device_read(run->device, run->data, param, run->config.dtype, (size_t)N_ELEMS[t]);
        for (int i = 0; i < N_ELEMS[t]; i++)
            CHECK((double)run->data[i] == run->w[t][i], "tensor %d, element %d", t, i);
    }
}

/* Writes the gradients of the unit: half of tensor 0's in each of the units that use it. */
static void write_grads(const run_t *run, zero_unit_t unit, int step, int v)
{
    float scale;
    device_read(run->device, &scale, zero_loss_scale(run->engine), ZERO_FP32, 1);
    for (int t = 0; t < N_TENSORS; t++) {
        const zero_grad_t grad = zero_grad(run->engine, t);
        CHECK((grad.data != NULL) == (uses(unit, t) && !FROZEN[t]), "unit %d, tensor %d", unit, t);
        if (!grad.data)
            continue;
        CHECK(grad.accumulate == (t == 0 && unit == 0), "unit %d, tensor %d", unit, t);
        const double share = t == 0 ? 0.5 : 1.0;
        const double *by = run->w[partner(t)];
        for (int i = 0; i < N_ELEMS[t]; i++) {
            float g = (float)(share * slope(step, v, t, (uint64_t)i) * by[i % N_ELEMS[partner(t)]]);
            run->data[i] = scale * g;
        }
        device_write_grad(run->device, grad, run->data, (size_t)N_ELEMS[t]);
    }
}

static void make_pass(const run_t *run, int step, int v)
{
    OK(zero_begin(run->engine, ZERO_PASS_TRAIN, NULL));
    for (zero_unit_t unit = 0; unit < N_UNITS; unit++) {
        OK(zero_acquire(run->engine, unit, NULL));
        check_params(run, run->engine, unit);
        OK(zero_release(run->engine, unit, NULL));
    }
    for (zero_unit_t unit = N_UNITS - 1; unit >= 0; unit--) {
        OK(zero_acquire(run->engine, unit, NULL));
        check_params(run, run->engine, unit);
        write_grads(run, unit, step, v);
        OK(zero_grad_ready(run->engine, unit, NULL));
    }
}

/* ---- the reference ---- */

/* One element's update by zero_step's formulas. */
static void update(const zero_config_t *c, double t, double lr, double decay, double g, double *w, double *m, double *v)
{
    const double b1 = c->beta1, b2 = c->beta2;
    if (c->optimizer == ZERO_OPTIMIZER_LION) {
        const double mean = b1 * *m + (1 - b1) * g;
        *w -= lr * decay * *w + lr * ((mean > 0) - (mean < 0));
        *m = b2 * *m + (1 - b2) * g;
    } else if (c->optimizer == ZERO_OPTIMIZER_SGD || c->optimizer == ZERO_OPTIMIZER_NESTEROV) {
        const double h = g + decay * *w;
        *m = c->momentum * *m + h;
        *w -= lr * (c->optimizer == ZERO_OPTIMIZER_SGD ? *m : h + c->momentum * *m);
    } else {
        *m = b1 * *m + (1 - b1) * g;
        *v = b2 * *v + (1 - b2) * g * g;
        *w -= lr * decay * *w;
        *w -= lr * (*m / (1 - pow(b1, t))) / (sqrt(*v / (1 - pow(b2, t))) + c->eps);
    }
}

static void reference_step(run_t *run, int step, double lr, double *norm)
{
    const zero_config_t *c = &run->config;
    double squares = 0.0;
    for (int k = 0; k < N_TENSORS; k++) {
        for (int i = 0; i < N_ELEMS[k] && !FROZEN[k]; i++) {
            double g = 0.0;
            for (int v = 0; v < N_MICRO_BATCHES; v++)
                g += slope(step, v, k, (uint64_t)i) * run->w[partner(k)][i % N_ELEMS[partner(k)]];
            squares += g * g;
            run->g[k][i] = g;
            update(c, step + 1, lr, k == 6 ? (double)c->weight_decay : 0.0, g, &run->w[k][i], &run->m[k][i],
                   &run->v[k][i]);
        }
        if (c->optimizer == ZERO_OPTIMIZER_ADAMW8BIT) {
            adam8_fp64_round(run->m[k], (size_t)N_ELEMS[k], true, run->unsure[k]);
            adam8_fp64_round(run->v[k], (size_t)N_ELEMS[k], false, run->unsure[k]);
        }
    }
    *norm = sqrt(squares);
}

/* ---- checks ---- */

/* Gradients in bf16 and fp16 are rounded once or twice to 8 and 11 bits, and the sum of 60 can cancel. AdamW divides by
 * the gradient's size, so a step is at most about lr: a wrong sign would show as 2 lr = 0.02. In fp32 only sums and the
 * update are rounded. */
static double bound(const run_t *run)
{
    return run->config.dtype == ZERO_FP32 ? 2e-5 : 0.02;
}

static void check_weights(const run_t *run, double lr)
{
    for (int t = 0; t < N_TENSORS; t++) {
        double n_off = 0.0;
        OK(zero_get_tensor(run->engine, t, ZERO_ARRAY_WEIGHT, ZERO_ALL_RANKS, run->data));
        const uint64_t sum = hash_floats(run->data, (uint64_t)N_ELEMS[t]);
        for (int i = 0; i < N_ELEMS[t]; i++) {
            const double off = fabs((double)run->data[i] - run->w[t][i]);
            CHECK(FROZEN[t] ? off == 0.0 : off <= N_STEPS * 2.0 * lr, "tensor %d, element %d: off by %g", t, i, off);
            n_off += off > bound(run) * (FROZEN[t] ? 0.0 : 1.0) && !run->unsure[t][i];
        }
        /* A sum that cancels to almost nothing has any sign: rare. */
        CHECK(n_off <= 0.01 * N_ELEMS[t] + (run->config.dtype == ZERO_FP32 ? 0.0 : 1.0),
              "tensor %d: %g elements are off", t, n_off);
        if (run->rank == 0)
            printf("%d %016" PRIx64 "\n", t, sum);
    }
}

/* The engine holds what the plan says, and receives what the plan of the traffic says, but for what zero_set_state and
 * the contributions of a step add. */
static void check_bytes(const run_t *run)
{
    zero_memory_t plan, held = zero_engine_memory(run->engine);
    const zero_comm_kind_t kind = zero_comm_get_kind(run->comm);
    OK(zero_plan(run->model, &run->config, zero_device_get_type(run->device), kind, run->n_ranks, &plan));
    for (int c = 0; c < ZERO_MEMORY_N_CATEGORIES; c++)
        CHECK(held.bytes[c] == plan.bytes[c], "%s: %" PRIu64 " bytes held, %" PRIu64 " planned",
              zero_memory_name((zero_memory_category_t)c), held.bytes[c], plan.bytes[c]);
}

static uint64_t received(const zero_stats_t *stats)
{
    return stats->gathered_bytes + stats->part_gathered_bytes + stats->reduced_bytes;
}

static void check_traffic(const run_t *run, const zero_stats_t *before, const zero_stats_t *after)
{
    enum { MOST_RANKS = 8 };
    int hosts[MOST_RANKS] = {0};
    zero_traffic_t traffic[MOST_RANKS];
    OK(zero_plan_traffic(run->model, &run->config, zero_device_get_type(run->device), zero_comm_get_kind(run->comm),
                         run->n_ranks, hosts, traffic));
    const uint64_t counted = received(after) - received(before), planned = traffic[run->rank].local_bytes;
    CHECK(counted <= planned && planned - counted <= 1024u * (uint64_t)(run->n_ranks - 1) + 1,
          "%" PRIu64 " bytes received in a step, %" PRIu64 " planned", counted, planned);
}

/* ---- everything frozen ---- */

static zero_status_t fill_all(void *user, const zero_chunk_t *chunk)
{
    const run_t *run = user;
    CHECK(!chunk->m && !chunk->v, "tensor %d", chunk->tensor);
    for (size_t i = 0; i < chunk->n_elems; i++)
        chunk->master[i] = (float)run->w[chunk->tensor][chunk->first + i];
    return ZERO_OK;
}

/* An engine that only computes: no gradients, no state, and steps are not needed. */
static void infer(run_t *run)
{
    zero_engine_t *engine = create_engine(run, 1);
    const zero_memory_t held = zero_engine_memory(engine);
    CHECK(held.bytes[ZERO_MEMORY_OPTIMIZER] == 0 && held.bytes[ZERO_MEMORY_GRADIENTS] == 0 &&
              held.bytes[ZERO_MEMORY_UNSHARDED_GRADIENTS] == 0,
          "state of frozen tensors");
    OK(zero_init_parameters(engine));
    OK(zero_set_state(engine, false, fill_all, run));
    for (int pass = 0; pass < 2; pass++) {
        OK(zero_begin(engine, ZERO_PASS_EVAL, NULL));
        for (zero_unit_t unit = 0; unit < N_UNITS; unit++) {
            OK(zero_acquire(engine, unit, NULL));
            check_params(run, engine, unit);
            OK(zero_release(engine, unit, NULL));
        }
    }
    /* One tensor set whole: from one rank to all. */
    for (int i = 0; i < N_ELEMS[5]; i++)
        run->data[i] = (float)(i % 100) + 0.5f;
    OK(zero_set_tensor(engine, 5, ZERO_ARRAY_WEIGHT, run->n_ranks - 1, run->data));
    memset(run->data, 0, sizeof(float) * MOST);
    OK(zero_get_tensor(engine, 5, ZERO_ARRAY_WEIGHT, ZERO_ALL_RANKS, run->data));
    for (int i = 0; i < N_ELEMS[5]; i++)
        CHECK(run->data[i] == (float)(i % 100) + 0.5f, "element %d", i);
    OK(zero_begin(engine, ZERO_PASS_EVAL, NULL));
    for (zero_unit_t unit = 0; unit < N_UNITS; unit++) {
        OK(zero_acquire(engine, unit, NULL));
        if (unit == 2)
            device_read(run->device, run->data, zero_param(engine, 5), run->config.dtype, (size_t)N_ELEMS[5]);
        for (int i = 0; i < N_ELEMS[5] && unit == 2; i++)
            CHECK(run->data[i] == (float)(i % 100) + 0.5f, "element %d", i);
        OK(zero_release(engine, unit, NULL));
    }
    zero_engine_destroy(engine);
}

/* ---- saving and loading ---- */

static void save(const run_t *run)
{
    zero_save_t *saving;
    OK(zero_save_begin(run->engine, run->s.dir, &(zero_save_options_t){.background = run->s.stage % 2 == 0}, &saving));
    OK(zero_save_end(saving));
}

/* Loads with the same tensors frozen (0), all (1), or others than were (-1). */
static void load(run_t *run, int all_frozen, const float *saved)
{
    zero_checkpoint_t *checkpoint;
    zero_engine_t *engine = create_engine(run, all_frozen);
    OK(zero_checkpoint_open(run->comm, run->s.dir, &checkpoint));
    OK(zero_load(engine, checkpoint));
    zero_checkpoint_close(checkpoint);
    CHECK(zero_get_adam_step(engine) == N_STEPS, "t");
    for (int t = 0; t < N_TENSORS; t++) {
        OK(zero_get_tensor(engine, t, ZERO_ARRAY_WEIGHT, ZERO_ALL_RANKS, run->data));
        for (int i = 0; i < N_ELEMS[t]; i++) {
            const float whole = saved[t * MOST + i], tolerance = run->config.dtype == ZERO_FP32 ? 0.0f : 0x1p-8f;
            const bool is_rounded = all_frozen != 0 && !FROZEN[t];
            CHECK(fabsf(run->data[i] - whole) <= (is_rounded ? fabsf(whole) * tolerance : 0.0f),
                  "tensor %d, element %d: %a, not %a", t, i, (double)run->data[i], (double)whole);
        }
        if (all_frozen != 0 && (all_frozen > 0 || !FROZEN[t]))
            continue;
        const zero_array_t last = has_v(run) ? ZERO_ARRAY_V : ZERO_ARRAY_M;
        for (zero_array_t array = ZERO_ARRAY_M; array <= last && (!FROZEN[t] || all_frozen < 0); array++) {
            if (all_frozen < 0 && t != 2 && t != 3)
                continue;
            OK(zero_get_tensor(engine, t, array, ZERO_ALL_RANKS, run->data));
            for (int i = 0; i < N_ELEMS[t]; i++)
                CHECK((run->data[i] != 0.0f) == !FROZEN[t] || !FROZEN[t], "moment %d of tensor %d", (int)array, t);
        }
    }
    zero_engine_destroy(engine);
}

static void save_and_load(run_t *run)
{
    float *saved = malloc(N_TENSORS * MOST * sizeof *saved);
    CHECK(saved, "no memory");
    for (int t = 0; t < N_TENSORS; t++)
        OK(zero_get_tensor(run->engine, t, ZERO_ARRAY_WEIGHT, ZERO_ALL_RANKS, saved + t * MOST));
    save(run);
    for (int all_frozen = -1; all_frozen <= 1; all_frozen++)
        load(run, all_frozen, saved);
    free(saved);
}

int main(int argc, char **argv)
{
    static const setting_row_t rows[] = {{"stage", offsetof(settings_t, stage), NULL},
                                         {"dtype", offsetof(settings_t, dtype), SETTING_DTYPES},
                                         {"comm", offsetof(settings_t, comm), "auto mpi"},
                                         {"device", offsetof(settings_t, device), SETTING_DEVICES},
                                         {"group", offsetof(settings_t, group), NULL},
                                         {"check", offsetof(settings_t, check), NULL},
                                         {"dir", offsetof(settings_t, dir), SETTING_TEXT},
                                         {"optimizer", offsetof(settings_t, optimizer), SETTING_OPTIMIZERS}};
    const double lr = 0.01;
    settings_t s = {.device = ZERO_DEVICE_CPU};
    for (int i = 1; i < argc; i++)
        setting_take(argv[i], rows, sizeof rows / sizeof rows[0], &s);
    run_t run = open_run(&s);
    check_bytes(&run);
    for (int step = 0; step < N_STEPS; step++) {
        zero_step_result_t result;
        const zero_stats_t before = zero_engine_stats(run.engine);
        double norm;
        for (int j = 0; j < run.config.micro_steps; j++)
            make_pass(&run, step, j * run.n_ranks + run.rank);
        OK(zero_step(run.engine, (float)lr, NULL, NULL));
        OK(zero_step_wait(run.engine, &result));
        const zero_stats_t after = zero_engine_stats(run.engine);
        if (step == 1 && s.group == 0) /* the first step gathers more, what was not resident */
            check_traffic(&run, &before, &after);
        reference_step(&run, step, lr, &norm);
        CHECK(!result.skipped && fabs((double)result.grad_norm - norm) <= 0.01 * norm, "step %d: norm %g, not %g", step,
              (double)result.grad_norm, norm);
        if (run.rank == 0)
            printf("step %d %a\n", step, (double)result.grad_norm);
    }
    check_weights(&run, lr);
    CHECK(zero_get_tensor(run.engine, 1, ZERO_ARRAY_M, ZERO_ALL_RANKS, run.data) == ZERO_ERROR_ARGUMENT, "m of frozen");
    if (s.dir)
        save_and_load(&run);
    zero_engine_destroy(run.engine);
    run.engine = NULL;
    infer(&run);
    close_run(&run);
    return 0;
}
