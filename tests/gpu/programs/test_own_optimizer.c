/* test_own_optimizer.c - a caller's own optimizer in CUDA, on one or more ranks.
 *
 *     test_own_optimizer [key=value ...]
 *         Keys: optimizer=adamw|momentum|rows own=1 stage=3 dtype=fp32|bf16|fp16 device=cuda|cuda-shared|cpu
 *               comm=auto|mpi steps=5 micro_batches=4 skip_at=0 (a step with a gradient that is not finite)
 *               fails_at=0 (a step in which the last rank's function fails)
 *         Trains with gradients that are a formula of the micro-batch, and compares all weights and state arrays with
 *         fp64 after every step. Checks what the functions are given. Prints, from rank 0, norm and a hash of weights
 *         and state for each step: the same at every stage, on any number of ranks that divides micro_batches, on CPUs
 *         and GPUs; and with own=0, libzero's own AdamW and SGD.
 *
 * Exit code 0 if every check held.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/programs/own_optimizer.h"
#include "tests/mpi/device_elements.h"
#include "tests/mpi/expect.h"
#include "tests/mpi/hash.h"
#include "tests/mpi/settings.h"
#include "zero.h"

#define LR 0.01f
#define GRAD_CLIP 300.0f /* of a norm of about 600 */

typedef struct settings {
    own_kind_t optimizer;
    int own, stage, steps, micro_batches, skip_at, fails_at;
    zero_dtype_t dtype;
    zero_device_type_t device;
    zero_comm_kind_t kind;
} settings_t;

/* "long" takes several runs where one rank holds it (own_update.c), and its rows are on several ranks elsewhere. */
static const struct {
    const char *name;
    int unit, rows, cols;
    bool hidden;
} TENSORS[] = {
    {"table", 0, 23, 16, false}, {"long", 1, 1101, 1001, true}, {"bias", 1, 33, 1, false}, {"square", 2, 31, 31, true},
    {"one", 2, 1, 1, false},     {"tall", 3, 257, 3, true},     {"row", 3, 1, 45, true},   {"head", 3, 19, 16, false},
};
enum { N_TENSORS = sizeof TENSORS / sizeof TENSORS[0], N_UNITS = 4, MAX_ELEMS = 1101 * 1001 };

typedef struct run {
    settings_t s;
    zero_comm_t *comm;
    zero_device_t *device;
    zero_engine_t *engine;
    zero_config_t config;
    own_rates_t rates;
    zero_own_optimizer_t own;
    int rank, n_ranks;
    bool fails;
    uint64_t n_prepared, n_updated, n_whole;            /* elements that the functions saw in this step */
    double *w[N_TENSORS], *m[N_TENSORS], *v[N_TENSORS]; /* the reference */
    int t;                                              /* its updates so far */
    float *buffer;                                      /* room for any tensor */
} run_t;

static size_t n_elems_of(int t)
{
    return (size_t)TENSORS[t].rows * (size_t)TENSORS[t].cols;
}

static bool is_whole(const settings_t *s, int t)
{
    return s->optimizer == OWN_ROWS && TENSORS[t].hidden;
}

/* ---- the optimizer's functions ---- */

/* All that a function gets must be memory of the device; the CPU's is not asked. */
static void check_memory(const run_t *run, const void *address)
{
    CHECK(address != NULL, "no address");
    CHECK(run->s.device == ZERO_DEVICE_CPU || own_cuda_is_on_device(address), "%p is no device memory", address);
}

static void check_update(const run_t *run, const zero_own_update_t *update)
{
    const zero_own_update_t *u = update;
    CHECK(u->n_elems > 0 && u->first + u->n_elems <= n_elems_of(u->tensor), "%zu elements from %llu on", u->n_elems,
          (unsigned long long)u->first);
    CHECK((u->direction != NULL) == is_whole(&run->s, u->tensor), "direction of %s", TENSORS[u->tensor].name);
    CHECK((u->v != NULL) == (run->s.optimizer == OWN_ADAMW), "v of %s", TENSORS[u->tensor].name);
    const void *const addresses[] = {u->weight, u->m, u->grad, u->grad_scale, u->step, u->skip};
    for (size_t i = 0; i < sizeof addresses / sizeof addresses[0]; i++)
        check_memory(run, addresses[i]);
    if (u->v)
        check_memory(run, u->v);
    if (u->direction)
        check_memory(run, u->direction);
}

static zero_status_t over_run(run_t *run, const zero_own_update_t *update, bool prepares, zero_stream_t stream)
{
    check_update(run, update);
    if (run->s.device != ZERO_DEVICE_CPU)
        return own_cuda_update(&run->rates, update, prepares, stream);
    const own_run_t common = own_run_of(&run->rates, update);
    for (size_t i = 0; i < update->n_elems && !*update->skip; i++) {
        if (prepares)
            own_prepare_element(&run->rates, &common, update, i);
        else
            own_update_element(&run->rates, &common, update, i);
    }
    return ZERO_OK;
}

static zero_status_t update(void *user, const zero_own_update_t *update, zero_stream_t stream)
{
    run_t *run = user;
    run->n_updated += update->n_elems;
    return run->fails ? ZERO_ERROR_IO : over_run(run, update, false, stream);
}

static zero_status_t prepare(void *user, const zero_own_update_t *update, zero_stream_t stream)
{
    run_t *run = user;
    run->n_prepared += update->n_elems;
    return over_run(run, update, true, stream);
}

static zero_status_t whole(void *user, const zero_own_whole_t *whole, zero_stream_t stream)
{
    run_t *run = user;
    const int t = whole->tensor;
    run->n_whole += whole->rows * whole->cols;
    CHECK(whole->rows == (uint64_t)TENSORS[t].rows && whole->cols == (uint64_t)TENSORS[t].cols, "%s", TENSORS[t].name);
    check_memory(run, whole->direction);
    if (run->s.device != ZERO_DEVICE_CPU)
        return own_cuda_whole(whole, stream);
    for (uint64_t row = 0; row < whole->rows && !*whole->skip; row++)
        own_normalize_row(whole->direction + row * whole->cols, whole->cols);
    return ZERO_OK;
}

/* What was seen: each element by those who hold its state, each whole matrix by one rank. */
static void check_seen(run_t *run)
{
    double want[3] = {0}, seen[3] = {(double)run->n_updated, (double)run->n_prepared, (double)run->n_whole};
    const double n_holders = run->s.stage == 0 ? run->n_ranks : 1;
    for (int t = 0; t < N_TENSORS; t++) {
        const double n = (double)n_elems_of(t), n_whole = is_whole(&run->s, t) ? n : 0.0;
        want[0] += n * n_holders;
        want[1] += n_whole * n_holders;
        want[2] += n_whole;
    }
    OK(zero_comm_sum(run->comm, seen, 3));
    for (int i = 0; i < 3 && run->s.own; i++)
        CHECK(seen[i] == want[i], "function %d saw %.0f elements, not %.0f", i, seen[i], want[i]);
    run->n_updated = run->n_prepared = run->n_whole = 0;
}

/* ---- the reference: the formulas of zero.h in fp64 ---- */

/* Returns micro-batch v's gradient: multiples of 1/64 that are exact in bf16 and fp16, as are their sums in fp32. */
static double gradient(int step, int v, int t, size_t e)
{
    return (double)((int)(hash((uint64_t)((step * 64 + v) * N_TENSORS + t) << 32 | e) % 63) - 31) / 64.0;
}

static double global_gradient(const run_t *run, int step, int t, size_t e)
{
    double sum = 0.0;
    for (int v = 0; v < run->s.micro_batches; v++)
        sum += gradient(step, v, t, e);
    return sum;
}

static void reference_element(run_t *run, int t, size_t e, double g)
{
    const own_rates_t *r = &run->rates;
    const double b1 = (double)r->beta1, b2 = (double)r->beta2, lr = (double)LR;
    const double decay = TENSORS[t].hidden ? (double)run->config.weight_decay : 0.0;
    double *w = &run->w[t][e], *m = &run->m[t][e], *v = &run->v[t][e];
    if (is_whole(&run->s, t)) {
        *m = (double)r->momentum * *m + g;
    } else if (r->kind == OWN_ADAMW) {
        *m = b1 * *m + (1.0 - b1) * g;
        *v = b2 * *v + (1.0 - b2) * g * g;
        *w -= lr * decay * *w +
              lr * (*m / (1.0 - pow(b1, run->t))) / (sqrt(*v / (1.0 - pow(b2, run->t))) + (double)r->eps);
    } else {
        *m = (double)r->momentum * *m + g + decay * *w;
        *w -= lr * *m;
    }
}

static void reference_rows(run_t *run, int t)
{
    const size_t cols = (size_t)TENSORS[t].cols;
    for (size_t row = 0; row < (size_t)TENSORS[t].rows; row++) {
        double *w = run->w[t] + row * cols, *m = run->m[t] + row * cols, squares = 0.0;
        for (size_t i = 0; i < cols; i++)
            squares += m[i] * m[i];
        for (size_t i = 0; i < cols && squares > 0.0; i++)
            w[i] -= (double)LR * ((double)run->config.weight_decay * w[i] + m[i] / sqrt(squares));
    }
}

static void reference_step(run_t *run, int step)
{
    double squares = 0.0;
    for (int t = 0; t < N_TENSORS; t++)
        for (size_t e = 0; e < n_elems_of(t); e++)
            squares += pow(global_gradient(run, step, t, e), 2.0);
    const double clip = fmin(1.0, (double)GRAD_CLIP / (sqrt(squares) + 1e-6));
    CHECK(clip < 0.8, "nothing is clipped: %g", clip);
    run->t++;
    for (int t = 0; t < N_TENSORS; t++) {
        for (size_t e = 0; e < n_elems_of(t); e++)
            reference_element(run, t, e, clip * global_gradient(run, step, t, e));
        if (is_whole(&run->s, t))
            reference_rows(run, t);
    }
}

/* Compares one array of a tensor with the reference, or takes it at step 0. fp32 has some roundings a step of numbers
 * up to the array's largest. */
static uint64_t check_array(run_t *run, int step, int t, zero_array_t array, double *want, uint64_t hash_so_far)
{
    const size_t n = n_elems_of(t);
    double largest = 0.0;
    OK(zero_get_tensor(run->engine, t, array, ZERO_ALL_RANKS, run->buffer));
    for (size_t e = 0; e < n; e++) {
        want[e] = step == 0 ? (double)run->buffer[e] : want[e];
        largest = fmax(largest, fabs(want[e]));
    }
    for (size_t e = 0; e < n; e++)
        CHECK(fabs((double)run->buffer[e] - want[e]) <= 1e-6 * step * largest,
              "%s, array %d, element %zu: %.9g, not %.9g", TENSORS[t].name, (int)array, e, (double)run->buffer[e],
              want[e]);
    const unsigned char *bytes = (const unsigned char *)run->buffer;
    for (size_t i = 0; i < n * sizeof(float); i++)
        hash_so_far = (hash_so_far ^ bytes[i]) * UINT64_C(1099511628211);
    return hash_so_far;
}

static uint64_t check_all(run_t *run, int step)
{
    uint64_t sum = UINT64_C(1469598103934665603);
    for (int t = 0; t < N_TENSORS; t++) {
        sum = check_array(run, step, t, ZERO_ARRAY_WEIGHT, run->w[t], sum);
        sum = check_array(run, step, t, ZERO_ARRAY_M, run->m[t], sum);
        if (run->s.optimizer == OWN_ADAMW)
            sum = check_array(run, step, t, ZERO_ARRAY_V, run->v[t], sum);
    }
    return sum;
}

/* ---- the engine ---- */

static void write_grads(run_t *run, zero_unit_t unit, int step, int v)
{
    float loss_scale;
    device_read(run->device, &loss_scale, zero_loss_scale(run->engine), ZERO_FP32, 1);
    for (int t = 0; t < N_TENSORS; t++) {
        if (TENSORS[t].unit != unit)
            continue;
        for (size_t e = 0; e < n_elems_of(t); e++)
            run->buffer[e] = (float)gradient(step, v, t, e) * loss_scale;
        if (step == run->s.skip_at && v == run->s.micro_batches - 1 && unit == 2)
            run->buffer[0] = INFINITY;
        device_write_grad(run->device, zero_grad(run->engine, t), run->buffer, n_elems_of(t));
    }
}

static void pass(run_t *run, int step, int v)
{
    OK(zero_begin(run->engine, ZERO_PASS_TRAIN, NULL));
    for (zero_unit_t unit = 0; unit < N_UNITS; unit++) {
        OK(zero_acquire(run->engine, unit, NULL));
        OK(zero_release(run->engine, unit, NULL));
    }
    for (zero_unit_t unit = N_UNITS - 1; unit >= 0; unit--) {
        OK(zero_acquire(run->engine, unit, NULL));
        write_grads(run, unit, step, v);
        OK(zero_grad_ready(run->engine, unit, NULL));
    }
}

static zero_model_t *declare(void)
{
    zero_model_t *model;
    zero_unit_t unit;
    zero_tensor_t tensor;
    OK(zero_model_create(&model));
    for (int t = 0; t < N_TENSORS; t++) {
        const zero_tensor_desc_t desc = {.name = TENSORS[t].name,
                                         .n_dims = 2,
                                         .shape = {TENSORS[t].rows, TENSORS[t].cols},
                                         .init = ZERO_INIT_NORMAL,
                                         .init_std = 0.5f,
                                         .decay = TENSORS[t].hidden,
                                         .hidden_matrix = TENSORS[t].hidden};
        if (t == 0 || TENSORS[t].unit != TENSORS[t - 1].unit)
            OK(zero_model_add_unit(model, TENSORS[t].name, &unit));
        OK(zero_model_add_tensor(model, unit, &desc, &tensor));
    }
    return model;
}

static void open_run(run_t *run, zero_model_t *model)
{
    zero_config_t *c = &run->config;
    OK(zero_comm_create(run->s.kind, &run->comm));
    OK(zero_device_create(run->s.device, run->comm, &run->device));
    run->rank = zero_comm_rank(run->comm);
    run->n_ranks = zero_comm_size(run->comm);
    CHECK(run->s.micro_batches % run->n_ranks == 0, "%d ranks", run->n_ranks);
    *c = zero_config_default();
    c->stage = run->s.stage;
    c->dtype = run->s.dtype;
    c->micro_steps = run->s.micro_batches / run->n_ranks;
    c->grad_clip = GRAD_CLIP;
    c->initial_loss_scale = 16.0f;
    c->loss_scale_hysteresis = 1;
    run->rates = (own_rates_t){run->s.optimizer, c->beta1, c->beta2, c->eps, c->momentum};
    run->own = (zero_own_optimizer_t){
        .name = "own", .n_arrays = run->s.optimizer == OWN_ADAMW ? 2 : 1, .update = update, .user = run};
    if (run->s.optimizer == OWN_ROWS) {
        run->own.prepare = prepare;
        run->own.whole = whole;
    }
    CHECK(run->s.own || run->s.optimizer != OWN_ROWS, "libzero has no such optimizer");
    c->optimizer = run->s.own                         ? ZERO_OPTIMIZER_OWN
                   : run->s.optimizer == OWN_MOMENTUM ? ZERO_OPTIMIZER_SGD
                                                      : ZERO_OPTIMIZER_ADAMW;
    c->own_optimizer = run->s.own ? &run->own : NULL;
    OK(zero_engine_create(run->comm, run->device, model, c, &run->engine));
    OK(zero_init_parameters(run->engine));
    zero_model_destroy(model);
}

static void close_run(run_t *run)
{
    zero_engine_destroy(run->engine);
    zero_device_destroy(run->device);
    zero_comm_destroy(run->comm);
}

/* The last rank's function fails: a status and its line there, and the job ends. */
static void expect_failure(run_t *run)
{
    run->fails = run->rank == run->n_ranks - 1;
    const zero_status_t status = zero_step(run->engine, LR, NULL, NULL);
    if (run->fails) {
        CHECK(status == ZERO_ERROR_IO, "%s", zero_status_name(status));
        CHECK(strstr(zero_last_error(), "optimizer own: its update of tensor"), "%s", zero_last_error());
        printf("failed as it should\n");
        fflush(stdout);
        zero_comm_abort(run->comm, 3);
        exit(3);
    }
    zero_step_result_t result;
    CHECK(zero_step_wait(run->engine, &result) != ZERO_OK, "a step without the last rank's update");
    exit(3);
}

static int train(run_t *run)
{
    zero_step_result_t result;
    run->buffer = malloc(MAX_ELEMS * sizeof(float));
    CHECK(run->buffer, "no memory");
    for (int t = 0; t < N_TENSORS; t++) {
        run->w[t] = calloc(n_elems_of(t), sizeof(double));
        run->m[t] = calloc(n_elems_of(t), sizeof(double));
        run->v[t] = calloc(n_elems_of(t), sizeof(double));
        CHECK(run->w[t] && run->m[t] && run->v[t], "no memory");
    }
    open_run(run, declare());
    check_all(run, 0);
    for (int step = 1; step <= run->s.steps; step++) {
        for (int v = run->rank; v < run->s.micro_batches; v += run->n_ranks)
            pass(run, step, v);
        if (step == run->s.fails_at)
            expect_failure(run);
        OK(zero_step(run->engine, LR, NULL, NULL));
        OK(zero_step_wait(run->engine, &result));
        CHECK(result.skipped == (step == run->s.skip_at), "step %d was%s skipped", step, result.skipped ? "" : " not");
        if (!result.skipped)
            reference_step(run, step);
        check_seen(run);
        const uint64_t sum = check_all(run, step);
        if (run->rank == 0)
            printf("%d %.9g %d %016llx\n", step, (double)result.grad_norm, result.skipped, (unsigned long long)sum);
    }
    for (int t = 0; t < N_TENSORS; t++) {
        free(run->w[t]);
        free(run->m[t]);
        free(run->v[t]);
    }
    free(run->buffer);
    close_run(run);
    return 0;
}

int main(int argc, char **argv)
{
    static const setting_row_t rows[] = {{"optimizer", offsetof(settings_t, optimizer), OWN_KINDS},
                                         {"own", offsetof(settings_t, own), NULL},
                                         {"stage", offsetof(settings_t, stage), NULL},
                                         {"steps", offsetof(settings_t, steps), NULL},
                                         {"micro_batches", offsetof(settings_t, micro_batches), NULL},
                                         {"skip_at", offsetof(settings_t, skip_at), NULL},
                                         {"fails_at", offsetof(settings_t, fails_at), NULL},
                                         {"dtype", offsetof(settings_t, dtype), SETTING_DTYPES},
                                         {"device", offsetof(settings_t, device), SETTING_DEVICES},
                                         {"comm", offsetof(settings_t, kind), "auto mpi"}};
    static run_t run = {
        .s = {.own = 1, .stage = 3, .steps = 5, .micro_batches = 4, .dtype = ZERO_BF16, .device = ZERO_DEVICE_CUDA}};
    for (int i = 1; i < argc; i++)
        setting_take(argv[i], rows, sizeof rows / sizeof rows[0], &run.s);
    return train(&run);
}
