/* muon_cases.c - Muon over matrices of every kind, in units of different sizes, against fp64.
 *
 *     muon_cases [key=value ...]
 *         Keys: stage=3 dtype=fp32|bf16|fp16 group=0 comm=auto|mpi steps=3 micro_batches=60 frozen=0|1 muon_steps=5
 *         own=0|1: by own_muon.h, an optimizer of the caller's that sees matrices whole; fails_at=0 fails_in=prepare|
 *         whole|update: in that step this function of the last rank's fails (whole: of the rank that has
 *         "large"). Each rank prints the status that it gets
 *         skip_at=0: a step with a gradient that is not finite, which must change nothing
 *         dir=PATH save_at=0: saves a checkpoint behind that step; resume=1: goes on from it
 *         Trains with gradients that are a formula of the micro-batch, and compares all weights and state arrays with
 *         muon_fp64.h (and AdamW's formula for what is no hidden matrix) after every step. Prints, from rank 0, a hash
 *         of weights and state for each step: the same at every stage and on any number of ranks that divides
 *         micro_batches. Checks that memory is as planned and that no step allocates.
 *
 * Exit code 0 if every check held; 3 behind a function that failed as it should.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/mpi/expect.h"
#include "tests/mpi/own_muon.h"
#include "tests/mpi/settings.h"
#include "tests/support/allocations.h"
#include "tests/support/elements.h"
#include "tests/unit/optimizer/muon_fp64.h"
#include "zero.h"

typedef struct settings {
    int stage, group, steps, micro_batches, frozen, muon_steps, own, fails_at, skip_at, save_at, resume;
    enum { PREPARE, WHOLE, UPDATE } fails_in;
    const char *dir;
    zero_dtype_t dtype;
    zero_comm_kind_t kind;
} settings_t;

/* Tall, wide, square, of one row, column and element, packed, larger than a shard of many ranks; a unit without
 * matrices; a matrix whose gradient is always zero; tensors that AdamW updates between and in front of matrices. */
typedef enum kind { ADAMW, MATRIX, PACKED, NO_GRADIENT } kind_t;
static const struct {
    const char *name;
    int unit, rows, cols;
    kind_t kind;
} TENSORS[] = {
    {"table", 0, 23, 16, ADAMW},   {"tall", 1, 50, 20, MATRIX},  {"packed", 1, 31, 20, PACKED},
    {"bias", 1, 33, 1, ADAMW},     {"norm", 2, 1, 45, ADAMW},    {"gain", 3, 7, 1, ADAMW},
    {"square", 3, 31, 31, MATRIX}, {"row", 3, 1, 40, MATRIX},    {"column", 3, 40, 1, MATRIX},
    {"large", 4, 90, 70, MATRIX},  {"element", 4, 1, 1, MATRIX}, {"unmoved", 4, 3, 5, NO_GRADIENT},
    {"small", 5, 4, 6, MATRIX},    {"last", 6, 12, 19, MATRIX},  {"head", 7, 23, 16, ADAMW},
};
#define N_TENSORS ((int)(sizeof TENSORS / sizeof TENSORS[0]))
#define N_UNITS 8
#define MAX_ELEMS (90 * 70)
#define LR 0.02f

static bool is_frozen(const settings_t *s, int t)
{
    return s->frozen && strcmp(TENSORS[t].name, "square") == 0;
}

static size_t n_elems_of(int t)
{
    return (size_t)TENSORS[t].rows * (size_t)TENSORS[t].cols;
}

static zero_model_t *declare(const settings_t *s)
{
    zero_model_t *model;
    zero_unit_t unit;
    zero_tensor_t tensor;
    OK(zero_model_create(&model));
    for (int t = 0; t < N_TENSORS; t++) {
        if (t == 0 || TENSORS[t].unit != TENSORS[t - 1].unit) {
            char name[32];
            snprintf(name, sizeof name, "unit %d", TENSORS[t].unit);
            OK(zero_model_add_unit(model, name, &unit));
        }
        const zero_tensor_desc_t desc = {.name = TENSORS[t].name,
                                         .n_dims = 2,
                                         .shape = {TENSORS[t].rows, TENSORS[t].cols},
                                         .init = ZERO_INIT_NORMAL,
                                         .init_std = 0.5f,
                                         .decay = TENSORS[t].kind != ADAMW,
                                         .packed = TENSORS[t].kind == PACKED,
                                         .frozen = is_frozen(s, t),
                                         .hidden_matrix = TENSORS[t].kind != ADAMW};
        OK(zero_model_add_tensor(model, unit, &desc, &tensor));
        CHECK(tensor == t, "tensor %d", tensor);
    }
    return model;
}

/* Returns micro-batch v's gradient: multiples of 1/64 that are exact in bf16 and fp16, as are their sums in fp32. */
static double gradient(int step, int v, int t, size_t e)
{
    uint64_t x = e * 2654435761u + (uint64_t)v * 40503u + (uint64_t)step * 97u + (uint64_t)t * 7u;
    x ^= x >> 13;
    return TENSORS[t].kind == NO_GRADIENT ? 0.0 : (double)((int)(x % 63) - 31) / 64.0;
}

/* ---- the reference ---- */

typedef struct reference {
    double w[N_TENSORS][MAX_ELEMS], m[N_TENSORS][MAX_ELEMS], v[N_TENSORS][MAX_ELEMS], g[N_TENSORS][MAX_ELEMS];
    int t; /* updates so far */
} reference_t;

static void adamw_fp64(const zero_config_t *c, int t, double g, double *w, double *m, double *v)
{
    const double b1 = (double)c->beta1, b2 = (double)c->beta2;
    *m = b1 * *m + (1 - b1) * g;
    *v = b2 * *v + (1 - b2) * g * g;
    *w -= (double)LR * (*m / (1 - pow(b1, t))) / (sqrt(*v / (1 - pow(b2, t))) + (double)c->eps);
}

static void reference_step(reference_t *ref, const settings_t *s, const zero_config_t *c, int step)
{
    double squares = 0.0;
    for (int t = 0; t < N_TENSORS; t++)
        for (size_t e = 0; e < n_elems_of(t) && !is_frozen(s, t); e++) {
            ref->g[t][e] = 0.0;
            for (int v = 0; v < s->micro_batches; v++)
                ref->g[t][e] += gradient(step, v, t, e);
            squares += ref->g[t][e] * ref->g[t][e];
        }
    ref->t++;
    const double clip = fmin(1.0, (double)c->grad_clip / (sqrt(squares) + 1e-6));
    for (int t = 0; t < N_TENSORS; t++) {
        for (size_t e = 0; e < n_elems_of(t); e++)
            ref->g[t][e] *= clip;
        if (is_frozen(s, t))
            continue;
        if (TENSORS[t].kind != ADAMW)
            muon_fp64_update(ref->w[t], ref->m[t], ref->g[t], (size_t)TENSORS[t].rows, (size_t)TENSORS[t].cols,
                             (double)LR, (double)c->weight_decay, (double)c->muon_momentum, c->muon_steps);
        else
            for (size_t e = 0; e < n_elems_of(t); e++)
                adamw_fp64(c, ref->t, ref->g[t][e], &ref->w[t][e], &ref->m[t][e], &ref->v[t][e]);
    }
}

/* ---- the engine ---- */

static void write_grads(zero_engine_t *engine, const settings_t *s, zero_unit_t unit, int step, int v)
{
    const float loss_scale = *zero_loss_scale(engine);
    const bool is_spoilt = step == s->skip_at && v == s->micro_batches / 2;
    for (int t = 0; t < N_TENSORS; t++) {
        const zero_grad_t grad = zero_grad(engine, t);
        if (TENSORS[t].unit != unit)
            continue;
        CHECK((grad.data == NULL) == is_frozen(s, t), "gradient of %s", TENSORS[t].name);
        for (size_t e = 0; e < n_elems_of(t) && grad.data; e++)
            element_store(grad.data, grad.dtype, e,
                          (float)gradient(step, v, t, e) * loss_scale +
                              (grad.accumulate ? element_load(grad.data, grad.dtype, e) : 0.0f));
        if (is_spoilt && grad.data)
            element_store(grad.data, grad.dtype, n_elems_of(t) - 1, INFINITY);
    }
}

/* own_muon.h's functions, one of which fails when it is told to. */
static struct {
    own_muon_t muon;
    bool fails[UPDATE + 1];
} own_fns;

static zero_status_t own_prepare(void *user, const zero_own_update_t *update, zero_stream_t stream)
{
    return own_fns.fails[PREPARE] ? ZERO_ERROR_IO : own_muon_prepare(user, update, stream);
}

static zero_status_t own_whole(void *user, const zero_own_whole_t *whole, zero_stream_t stream)
{
    const bool is_large = strcmp(TENSORS[whole->tensor].name, "large") == 0;
    return is_large && own_fns.fails[WHOLE] ? ZERO_ERROR_IO : own_muon_whole(user, whole, stream);
}

static zero_status_t own_update(void *user, const zero_own_update_t *update, zero_stream_t stream)
{
    return own_fns.fails[UPDATE] ? ZERO_ERROR_IO : own_muon_update(user, update, stream);
}

/* zero_step returns what the function returned, with a line that names it. That rank then gives up the step, of which
 * the others learn: they cannot complete it. Prints each rank's status. No rank leaves before all have printed: mpirun
 * ends the others with the first. */
static void expect_failure(zero_comm_t *comm, zero_engine_t *engine, const settings_t *s)
{
    zero_step_result_t result;
    own_fns.fails[s->fails_in] = s->fails_in == WHOLE || zero_comm_rank(comm) == zero_comm_size(comm) - 1;
    zero_status_t status = zero_step(engine, LR, NULL, NULL);
    if (status == ZERO_OK)
        status = zero_step_wait(engine, &result);
    printf("%s\n", zero_status_name(status));
    fflush(stdout);
    if (status == ZERO_ERROR_IO) {
        CHECK(strstr(zero_last_error(), "optimizer own muon: its update of tensor large failed"), "%s",
              zero_last_error());
        zero_cancel(engine);
    }
    sleep(1);
    exit(3);
}

/* Makes the passes of a step. */
static void make_passes(zero_comm_t *comm, zero_engine_t *engine, const settings_t *s, int step)
{
    const int n_ranks = zero_comm_size(comm);
    for (int j = 0; j < s->micro_batches / n_ranks; j++) {
        OK(zero_begin(engine, ZERO_PASS_TRAIN, NULL));
        for (zero_unit_t unit = 0; unit < N_UNITS; unit++) {
            OK(zero_acquire(engine, unit, NULL));
            OK(zero_release(engine, unit, NULL));
        }
        for (zero_unit_t unit = N_UNITS - 1; unit >= 0; unit--) {
            OK(zero_acquire(engine, unit, NULL));
            write_grads(engine, s, unit, step, j * n_ranks + zero_comm_rank(comm));
            OK(zero_grad_ready(engine, unit, NULL));
        }
    }
}

/* Returns whether the step was skipped. */
static bool train_step(zero_comm_t *comm, zero_engine_t *engine, const settings_t *s, int step)
{
    zero_step_result_t result;
    allocations_start();
    make_passes(comm, engine, s, step);
    OK(zero_step(engine, LR, NULL, NULL));
    OK(zero_step_wait(engine, &result));
    const unsigned long allocations = allocations_stop();
    CHECK(result.skipped == (step == s->skip_at), "step %d was%s skipped", step, result.skipped ? "" : " not");
    CHECK(step < 3 || allocations == 0 || s->own /* allocates */ || strcmp(zero_comm_name(comm), "mpi") == 0,
          "%lu allocations", allocations);
    return result.skipped;
}

static void save(zero_comm_t *comm, zero_engine_t *engine, const char *directory)
{
    zero_save_t *save;
    OK(zero_save_prepare(comm, directory));
    OK(zero_save_begin(engine, directory, &(zero_save_options_t){0}, &save));
    OK(zero_save_end(save));
}

static void load(zero_comm_t *comm, zero_engine_t *engine, const char *directory)
{
    zero_checkpoint_t *checkpoint;
    OK(zero_checkpoint_open(comm, directory, &checkpoint));
    OK(zero_load(engine, checkpoint));
    zero_checkpoint_close(checkpoint);
}

static uint64_t fold(uint64_t hash, const void *data, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++)
        hash = (hash ^ ((const unsigned char *)data)[i]) * UINT64_C(1099511628211);
    return hash;
}

/* Compares one array of a tensor with the reference. bound: of the largest difference; negative: takes it instead. */
static uint64_t check_array(zero_engine_t *engine, int t, zero_array_t array, double *want, double bound, uint64_t hash)
{
    static float got[MAX_ELEMS];
    const size_t n = n_elems_of(t);
    OK(zero_get_tensor(engine, t, array, ZERO_ALL_RANKS, got));
    for (size_t e = 0; e < n; e++) {
        if (bound < 0.0)
            want[e] = (double)got[e];
        CHECK(fabs((double)got[e] - want[e]) <= fmax(bound, 0.0), "%s, array %d, element %zu: %.9g, not %.9g",
              TENSORS[t].name, (int)array, e, (double)got[e], want[e]);
    }
    return fold(hash, got, n * sizeof got[0]);
}

/* fp32 against fp64: a few roundings of |w| ~ 1 per step, and of momentum, which is at most 1. */
static uint64_t check_all(zero_engine_t *engine, const settings_t *s, reference_t *ref, int step)
{
    const double bound = step == 0 ? -1.0 : 1e-6 * step;
    uint64_t hash = UINT64_C(1469598103934665603);
    for (int t = 0; t < N_TENSORS; t++) {
        hash = check_array(engine, t, ZERO_ARRAY_WEIGHT, ref->w[t], bound, hash);
        if (is_frozen(s, t))
            continue;
        hash = check_array(engine, t, ZERO_ARRAY_M, ref->m[t], bound, hash);
        hash = check_array(engine, t, ZERO_ARRAY_V, ref->v[t], bound, hash); /* of matrices 0 */
    }
    return hash;
}

/* Sets v of every tensor: those that AdamW updates have what was set, and nothing is next to them; of matrices there
 * is none. Last, since the reference does not know of it. */
static void check_v_is_set(zero_engine_t *engine, const settings_t *s)
{
    static float set[MAX_ELEMS], got[MAX_ELEMS];
    for (int t = 0; t < N_TENSORS; t++) {
        for (size_t e = 0; e < n_elems_of(t); e++)
            set[e] = (float)(t + 1) + (float)e / MAX_ELEMS;
        if (!is_frozen(s, t))
            OK(zero_set_tensor(engine, t, ZERO_ARRAY_V, ZERO_ALL_RANKS, set));
    }
    for (int t = 0; t < N_TENSORS; t++) {
        if (is_frozen(s, t))
            continue;
        OK(zero_get_tensor(engine, t, ZERO_ARRAY_V, ZERO_ALL_RANKS, got));
        for (size_t e = 0; e < n_elems_of(t); e++) {
            const float want = TENSORS[t].kind == ADAMW ? (float)(t + 1) + (float)e / MAX_ELEMS : 0.0f;
            CHECK(got[e] == want, "%s, v, element %zu: %g, not %g", TENSORS[t].name, e, (double)got[e], (double)want);
        }
    }
}

static void check_held(zero_comm_t *comm, zero_engine_t *engine, const zero_model_t *model, const zero_config_t *config)
{
    const zero_memory_t held = zero_engine_memory(engine);
    zero_memory_t plan;
    OK(zero_plan(model, config, ZERO_DEVICE_CPU, zero_comm_get_kind(comm), zero_comm_size(comm), &plan));
    CHECK(memcmp(&plan, &held, sizeof plan) == 0, "plan %llu bytes, held %llu",
          (unsigned long long)zero_memory_total(&plan), (unsigned long long)zero_memory_total(&held));
}

/* Fills the factors of own_muon.h's steps; 0: no matrix. */
static void find_scales(float scales[N_TENSORS])
{
    for (int t = 0; t < N_TENSORS; t++) {
        const int longer = TENSORS[t].rows > TENSORS[t].cols ? TENSORS[t].rows : TENSORS[t].cols;
        scales[t] = TENSORS[t].kind == ADAMW ? 0.0f : (float)(0.2 * sqrt(longer));
    }
}

static zero_config_t make_config(const settings_t *s, int n_ranks)
{
    zero_config_t config = zero_config_default();
    config.stage = s->stage;
    config.dtype = s->dtype;
    config.shard_group = s->group;
    config.micro_steps = s->micro_batches / n_ranks;
    config.optimizer = ZERO_OPTIMIZER_MUON;
    config.muon_steps = s->muon_steps;
    config.initial_loss_scale = 16.0f;
    config.loss_scale_hysteresis = 1; /* a skipped step halves it */
    return config;
}

int main(int argc, char **argv)
{
    static const setting_row_t rows[] = {{"stage", offsetof(settings_t, stage), NULL},
                                         {"group", offsetof(settings_t, group), NULL},
                                         {"steps", offsetof(settings_t, steps), NULL},
                                         {"micro_batches", offsetof(settings_t, micro_batches), NULL},
                                         {"frozen", offsetof(settings_t, frozen), NULL},
                                         {"muon_steps", offsetof(settings_t, muon_steps), NULL},
                                         {"own", offsetof(settings_t, own), NULL},
                                         {"fails_at", offsetof(settings_t, fails_at), NULL},
                                         {"skip_at", offsetof(settings_t, skip_at), NULL},
                                         {"save_at", offsetof(settings_t, save_at), NULL},
                                         {"resume", offsetof(settings_t, resume), NULL},
                                         {"dir", offsetof(settings_t, dir), SETTING_TEXT},
                                         {"fails_in", offsetof(settings_t, fails_in), "prepare whole update"},
                                         {"dtype", offsetof(settings_t, dtype), SETTING_DTYPES},
                                         {"comm", offsetof(settings_t, kind), "auto mpi"}};
    static reference_t ref;
    settings_t s = {.stage = 3, .steps = 3, .micro_batches = 60, .muon_steps = 5, .dtype = ZERO_BF16};
    zero_comm_t *comm;
    zero_device_t *device;
    zero_engine_t *engine;
    for (int i = 1; i < argc; i++)
        setting_take(argv[i], rows, sizeof rows / sizeof rows[0], &s);
    OK(zero_comm_create(s.kind, &comm));
    allocations_leave_out_other_threads();
    OK(zero_device_create(ZERO_DEVICE_CPU, comm, &device));
    zero_model_t *model = declare(&s);
    zero_config_t config = make_config(&s, zero_comm_size(comm));
    float scales[N_TENSORS];
    own_fns.muon = (own_muon_t){.config = &config, .scales = scales};
    const zero_own_optimizer_t own = {.name = "own muon",
                                      .n_arrays = 2,
                                      .prepare = own_prepare,
                                      .whole = own_whole,
                                      .update = own_update,
                                      .user = &own_fns.muon};
    find_scales(scales);
    if (s.own) {
        config.optimizer = ZERO_OPTIMIZER_OWN;
        config.own_optimizer = &own;
    }
    OK(zero_engine_create(comm, device, model, &config, &engine));
    check_held(comm, engine, model, &config);
    if (s.resume)
        load(comm, engine, s.dir);
    else
        OK(zero_init_parameters(engine));
    ref.t = (int)zero_get_adam_step(engine);
    check_all(engine, &s, &ref, 0);
    for (int step = s.resume ? s.save_at + 1 : 1; step <= s.steps; step++) {
        if (step == s.fails_at) {
            make_passes(comm, engine, &s, step);
            expect_failure(comm, engine, &s);
        }
        if (!train_step(comm, engine, &s, step))
            reference_step(&ref, &s, &config, step);
        const uint64_t hash = check_all(engine, &s, &ref, step);
        if (zero_comm_rank(comm) == 0)
            printf("%d %016llx\n", step, (unsigned long long)hash);
        if (step == s.save_at)
            save(comm, engine, s.dir);
    }
    check_held(comm, engine, model, &config);
    if (!s.own)
        check_v_is_set(engine, &s);
    zero_engine_destroy(engine);
    zero_model_destroy(model);
    zero_device_destroy(device);
    zero_comm_destroy(comm);
    return 0;
}
