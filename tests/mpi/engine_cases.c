/* engine_cases.c - the engine among several ranks, on a toy model whose gradients are a formula.
 *
 *     engine_cases train [key=value ...]
 *         Keys: stage=3 dtype=bf16|fp32|fp16 prefetch=1 micro_steps=1 every=0|1 steps=6 nan_at=0 poison=0|1
 *               comm=auto|mpi nccl=0|1 (nccl_reduction) device=cpu|cuda|cuda-shared rows=101 (of the largest tensor)
 *               staging=0 (staging_bytes; 0: its default) offload=0 (percent of the state) update=auto|device|host
 *               fill=0|1 (weights and moments come from zero_set_state, and differ between ranks)
 *               optimizer=adamw|sgd|nesterov|lion|own|muon|adamw8bit (own: Nesterov's, as a function of the caller's)
 *               hooks=none|idle|noise|clamp|both (zero_hooks_t: functions that change nothing; noise on reduced
 *               gradients; weights that are clamped behind each update; both)
 *               schedule=0|1 (tensors have settings of their own, which change from step to step)
 *               fp8=none|bf16|fp8 (tables and weights are declared with fp8, and gathered so) traffic=0|1
 *         Trains and prints, from rank 0, a line per step: loss, grad norm (%.9g) and a hash of every full parameter as
 *         an eval pass sees it. Checks on every rank: parameters are equal on all ranks; weights agree with an
 *         fp64 optimizer on the exact global gradient; held memory equals the plan; no allocation after step 2; notices
 * are the largest of all ranks'. With fp8 the hash is that of the bytes and scales: those that were gathered, or those
 * that tests/support/fp8_reference.h makes of the bf16 parameters. traffic: also prints the bytes gathered.
 *     engine_cases mismatch
 *         Rank 1 declares another shape: MISMATCH on all ranks.
 *     engine_cases odd_setting
 *         Rank 1 has a setting that is out of range: MISMATCH on all ranks.
 *     engine_cases odd_threads
 *         The same with a setting that may differ between ranks: USAGE there, PEER on the others.
 *     engine_cases too_large
 *         Rank 1 asks for more memory than any machine has: MEMORY there, PEER on the others.
 *     engine_cases failed_fill [key=value ...]
 *         Rank 1 fails in the middle of zero_set_state: IO there, PEER on the others, and no rank can compute with what
 *         was written until all of it is written again.
 *     engine_cases null_on_one_rank
 *         Rank 1 passes NULL to every collective call: ARGUMENT there, PEER on the others.
 *     engine_cases destroy_order
 *         Communicator, device and engine are destroyed while a save and a checkpoint use them.
 *     engine_cases lost_rank
 *         Rank 1 exits in the middle of a pass: the others get a status.
 *
 * Exit code 0 if every check held.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/mpi/device_elements.h"
#include "tests/mpi/expect.h"
#include "tests/mpi/notices.h"
#include "tests/mpi/schedule.h"
#include "tests/mpi/settings.h"
#include "tests/support/allocations.h"
#include "tests/support/fp8_reference.h"
#include "tests/unit/optimizer/adam8_fp64.h"
#include "tests/unit/optimizer/muon_fp64.h"
#include "zero.h"

#define N_TENSORS 15
#define N_UNITS 5
#define ROWS 101 /* of the first unit's table, unless given */
#define MAX_ROWS 4096
#define SEQ_STEPS 32

typedef struct settings {
    int stage, prefetch, micro_steps, every, steps, nan_at, poison, nccl, rows, staging, offload, fill, traffic, group,
        schedule;
    enum { NO_FP8, FP8_AS_BF16, FP8 } fp8;
    enum { NO_HOOKS, IDLE, NOISE, CLAMP, BOTH } hooks;
    zero_offload_update_t update;
    zero_optimizer_t optimizer;
    zero_dtype_t dtype;
    zero_comm_kind_t kind;
    zero_device_type_t device;
} settings_t;

typedef struct toy {
    zero_model_t *model;
    zero_tensor_t tensors[N_TENSORS];
    zero_unit_t owner[N_TENSORS];
    uint64_t n_elems[N_TENSORS];
    bool decay[N_TENSORS];
    int64_t rows[N_TENSORS];         /* of a hidden matrix, else 0 */
    uint64_t n_fp8_elems[N_TENSORS]; /* of the matrix in fp8 that begins with it: packed tensors are one */
    int n_tensors;
    zero_tensor_t shared; /* of the first unit, used by the last too */
} toy_t;

/* ---- the toy: odd sizes, one-element tensors, three twins, a shared table ---- */

typedef enum kind { PLAIN, IN_FP8, IN_FP8_PACKED } kind_t;

/* Blocks' weights are hidden matrices. */
static void add(toy_t *toy, zero_unit_t unit, const char *name, int64_t rows, int64_t columns, bool decay, kind_t kind)
{
    zero_tensor_desc_t desc = {.name = name,
                               .fp8 = kind != PLAIN,
                               .packed = kind == IN_FP8_PACKED,
                               .n_dims = 2,
                               .shape = {rows, columns},
                               .init = decay ? ZERO_INIT_NORMAL : ZERO_INIT_ONES,
                               .init_std = 0.5f,
                               .decay = decay,
                               .hidden_matrix = unit > 0 && decay};
    int t = toy->n_tensors++;
    toy->rows[t] = desc.hidden_matrix ? rows : 0;
    OK(zero_model_add_tensor(toy->model, unit, &desc, &toy->tensors[t]));
    toy->owner[t] = unit;
    toy->n_elems[t] = (uint64_t)(rows * columns);
    toy->decay[t] = decay;
    if (kind != PLAIN)
        toy->n_fp8_elems[kind == IN_FP8 ? t : t - 1] += toy->n_elems[t];
}

/* has_fp8: the table is declared with fp8, and a block's weight with another packed behind it, between tensors that are
 * not. */
static toy_t toy_create_of(int64_t width, int64_t rows, bool has_fp8)
{
    toy_t toy = {0};
    zero_unit_t unit;
    OK(zero_model_create(&toy.model));
    OK(zero_model_add_unit(toy.model, "embed", &unit));
    add(&toy, unit, "table", rows, width, true, has_fp8 ? IN_FP8 : PLAIN);
    add(&toy, unit, "positions", 3, width, true, PLAIN);
    toy.shared = toy.tensors[0];
    for (int b = 0; b < 3; b++) {
        char name[32];
        snprintf(name, sizeof name, "block %d", b);
        OK(zero_model_add_unit(toy.model, name, &unit));
        snprintf(name, sizeof name, "weight %d", b);
        add(&toy, unit, name, width, 67, true, has_fp8 ? IN_FP8 : PLAIN);
        snprintf(name, sizeof name, "packed %d", b);
        if (has_fp8)
            add(&toy, unit, name, 5, 67, true, IN_FP8_PACKED);
        snprintf(name, sizeof name, "bias %d", b);
        add(&toy, unit, name, 67, 1, false, PLAIN);
        snprintf(name, sizeof name, "scalar %d", b);
        add(&toy, unit, name, 1, 1, false, PLAIN);
    }
    OK(zero_model_add_unit(toy.model, "head", &unit));
    add(&toy, unit, "norm", width, 1, false, PLAIN);
    OK(zero_model_share_tensor(toy.model, unit, toy.shared));
    return toy;
}

static toy_t toy_create(int64_t width, int64_t rows)
{
    return toy_create_of(width, rows, false);
}

/* Returns rank r's gradient of element e in one use of tensor t: a multiple of 1/64 with few bits, exact in bf16, so
 * that the sum over ranks and micro-steps is known exactly. The sum over up to four ranks, with two uses each, is exact
 * in bf16 too, in any order: NCCL's equals ours. */
static float gradient(int rank, int64_t step, int micro_step, int tensor, uint64_t e, int use)
{
    uint64_t x = e * 2654435761u + (uint64_t)rank * 40503u + (uint64_t)step * 97u + (uint64_t)micro_step * 31u +
                 (uint64_t)tensor * 7u + (uint64_t)use * 3u;
    x ^= x >> 13;
    return (float)((int)(x % 63) - 31) / 64.0f;
}

/* ---- fp64 reference: the optimizer on the exact global gradient, over the whole model, on every rank ---- */

/* What a hook adds to a reduced gradient: few bits, as gradients have, so that sums stay exact. */
static float noise(int tensor, uint64_t e, int64_t step)
{
    return gradient(3, step, 5, tensor, e, 1);
}

#define LARGEST_WEIGHT 0.625

typedef struct reference {
    double *w[N_TENSORS], *m[N_TENSORS], *v[N_TENSORS];
    bool *unsure[N_TENSORS]; /* adamw8bit: fp32 may have other codes (adam8_fp64.h) */
    int t;
} reference_t;

static double global_gradient(const toy_t *toy, int n_ranks, const settings_t *s, int64_t step, int tensor, uint64_t e)
{
    double sum = 0.0;
    for (int r = 0; r < n_ranks; r++)
        for (int k = 0; k < s->micro_steps; k++)
            for (int use = 0; use < (toy->tensors[tensor] == toy->shared ? 2 : 1); use++)
                sum += (double)gradient(r, step, k, tensor, e, use);
    if (s->hooks == NOISE || s->hooks == BOTH)
        sum += (double)noise(toy->tensors[tensor], e, step);
    return sum;
}

/* The following update one element, of decay `decay`, by the clipped gradient g: the formulas of zero.h. */

static void adamw_fp64(const zero_config_t *c, double lr, double decay, int t, double g, double *w, double *m,
                       double *v)
{
    double b1 = (double)c->beta1, b2 = (double)c->beta2;
    *m = b1 * *m + (1 - b1) * g;
    *v = b2 * *v + (1 - b2) * g * g;
    *w -= lr * decay * *w;
    *w -= lr * (*m / (1 - pow(b1, t))) / (sqrt(*v / (1 - pow(b2, t))) + (double)c->eps);
}

static void sgd_fp64(const zero_config_t *c, double lr, double decay, int t, double g, double *w, double *m, double *v)
{
    (void)t, (void)v;
    g += decay * *w;
    *m = (double)c->momentum * *m + g;
    *w -= lr * (c->optimizer != ZERO_OPTIMIZER_SGD ? g + (double)c->momentum * *m : *m);
}

/* A zero of the average may be a little more or less in fp32, and its sign then anything: gradients have few bits, so
 * that this needs exact cancellation, which v counts. */
static void lion_fp64(const zero_config_t *c, double lr, double decay, int t, double g, double *w, double *m, double *v)
{
    double b1 = (double)c->beta1, b2 = (double)c->beta2, average = b1 * *m + (1 - b1) * g;
    (void)t;
    *w -= lr * decay * *w;
    *w -= lr * (average > 0 ? 1 : average < 0 ? -1 : 0);
    *m = b2 * *m + (1 - b2) * g;
    *v = *v != 0.0 || fabs(average) < 1e-6 * fabs(g);
}

static void (*const OPTIMIZERS_FP64[])(const zero_config_t *c, double lr, double decay, int t, double g, double *w,
                                       double *m, double *v) = {
    [ZERO_OPTIMIZER_ADAMW] = adamw_fp64,     [ZERO_OPTIMIZER_SGD] = sgd_fp64, [ZERO_OPTIMIZER_NESTEROV] = sgd_fp64,
    [ZERO_OPTIMIZER_LION] = lion_fp64,       [ZERO_OPTIMIZER_OWN] = sgd_fp64, [ZERO_OPTIMIZER_MUON] = adamw_fp64,
    [ZERO_OPTIMIZER_ADAMW8BIT] = adamw_fp64,
};

static void muon_step_fp64(reference_t *ref, const toy_t *toy, int n_ranks, const settings_t *s,
                           const zero_group_t *group, const zero_config_t *c, int64_t step, double lr, double clip,
                           int t)
{
    double *g = malloc(toy->n_elems[t] * sizeof *g);
    for (uint64_t e = 0; e < toy->n_elems[t]; e++)
        g[e] = clip * global_gradient(toy, n_ranks, s, step, t, e);
    const uint64_t rows = (uint64_t)toy->rows[t];
    muon_fp64_update(ref->w[t], ref->m[t], g, rows, toy->n_elems[t] / rows, lr * (double)group->lr_scale,
                     (double)group->weight_decay, (double)c->muon_momentum, c->muon_steps);
    free(g);
}

/* Returns the norm that the engine must report. */
static double reference_step(reference_t *ref, const toy_t *toy, int n_ranks, const settings_t *s,
                             const zero_config_t *c, int64_t step, double lr)
{
    double squares = 0.0;
    for (int t = 0; t < toy->n_tensors; t++)
        for (uint64_t e = 0; e < toy->n_elems[t]; e++) {
            double g = global_gradient(toy, n_ranks, s, step, t, e);
            squares += g * g;
        }
    double norm = sqrt(squares);
    double clip = norm > (double)c->grad_clip ? (double)c->grad_clip / (norm + 1e-6) : 1.0;
    ref->t++;
    for (int t = 0; t < toy->n_tensors; t++) {
        const zero_group_t group = scheduled_group(c, toy->decay[t], toy->tensors[t], s->schedule ? step : 1);
        zero_config_t of_tensor = *c;
        of_tensor.beta1 = group.beta1;
        of_tensor.beta2 = group.beta2;
        of_tensor.eps = group.eps;
        of_tensor.momentum = group.momentum;
        if (c->optimizer == ZERO_OPTIMIZER_MUON && toy->rows[t] > 0) {
            muon_step_fp64(ref, toy, n_ranks, s, &group, c, step, lr, clip, t);
            continue;
        }
        for (uint64_t e = 0; e < toy->n_elems[t]; e++)
            OPTIMIZERS_FP64[c->optimizer](&of_tensor, lr * (double)group.lr_scale, (double)group.weight_decay, ref->t,
                                          global_gradient(toy, n_ranks, s, step, t, e) * clip, &ref->w[t][e],
                                          &ref->m[t][e], &ref->v[t][e]);
        if (c->optimizer == ZERO_OPTIMIZER_ADAMW8BIT) {
            adam8_fp64_round(ref->m[t], toy->n_elems[t], true, ref->unsure[t]);
            adam8_fp64_round(ref->v[t], toy->n_elems[t], false, ref->unsure[t]);
        }
    }
    for (int t = 0; t < toy->n_tensors && s->hooks >= CLAMP; t++)
        for (uint64_t e = 0; e < toy->n_elems[t]; e++)
            ref->w[t][e] = fmin(fmax(ref->w[t][e], -LARGEST_WEIGHT), LARGEST_WEIGHT);
    return norm;
}

typedef struct visit {
    const toy_t *toy;
    reference_t *ref;
    bool is_lion;     /* leave out elements whose average was all but 0 */
    bool copy;        /* copy the engine's state to the reference, else compare its weights */
    double worst;     /* largest |difference| */
    uint64_t n_elems; /* seen */
    uint64_t n_unsure;
} visit_t;

static zero_status_t visit_chunk(void *user, const zero_chunk_t *chunk)
{
    visit_t *visit = user;
    double *w = visit->ref->w[chunk->tensor] + chunk->first;
    for (size_t i = 0; i < chunk->n_elems; i++) {
        if (visit->copy) {
            w[i] = (double)chunk->master[i];
            visit->ref->m[chunk->tensor][chunk->first + i] = (double)chunk->m[i];
            visit->ref->v[chunk->tensor][chunk->first + i] = chunk->v ? (double)chunk->v[i] : 0.0;
        }
        if (visit->is_lion && visit->ref->v[chunk->tensor][chunk->first + i] != 0.0)
            continue;
        if (visit->ref->unsure[chunk->tensor][chunk->first + i]) {
            visit->n_unsure++;
            continue;
        }
        visit->worst = fmax(visit->worst, fabs((double)chunk->master[i] - w[i]));
    }
    visit->n_elems += chunk->n_elems;
    return ZERO_OK;
}

/* Every rank owns a part; with the parts of all it must be the model, each element once. */
static double visit_all(zero_engine_t *engine, zero_comm_t *comm, const toy_t *toy, reference_t *ref, bool copy,
                        bool is_lion)
{
    visit_t visit = {.toy = toy, .ref = ref, .copy = copy, .is_lion = is_lion};
    OK(zero_get_state(engine, visit_chunk, &visit));
    double n = (double)visit.n_elems;
    OK(zero_comm_sum(comm, &n, 1));
    CHECK((uint64_t)n == zero_model_n_params(toy->model), "all ranks together own %.0f elements", n);
    /* Gradients with few bits often make two opposite numbers the largest of a block. */
    CHECK(4 * visit.n_unsure <= visit.n_elems, "%llu of %llu elements are left out", (unsigned long long)visit.n_unsure,
          (unsigned long long)visit.n_elems);
    return visit.worst;
}

/* Completes the reference by what other ranks own, which is 0 here: matrices are updated whole. */
static void complete_reference(zero_comm_t *comm, const toy_t *toy, reference_t *ref)
{
    for (int t = 0; t < toy->n_tensors; t++) {
        OK(zero_comm_sum(comm, ref->w[t], toy->n_elems[t]));
        OK(zero_comm_sum(comm, ref->m[t], toy->n_elems[t]));
        OK(zero_comm_sum(comm, ref->v[t], toy->n_elems[t]));
    }
}

/* ---- weights and moments that a rank makes up: different on every rank, with every bit of fp32 in use ---- */

static float made_up(int rank, zero_tensor_t tensor, uint64_t element, int array)
{
    uint64_t x = (element + 1) * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)(1000 * rank + 10 * tensor + array);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (float)((x ^ (x >> 31)) >> 40) / 16777216.0f; /* in [0, 1) */
}

typedef struct filler {
    int rank;
    int n_chunks; /* seen */
    int fails_at; /* at this chunk, from 1; 0: never */
    bool with_moments;
    bool in_8_bits; /* moments are read as the nearest values: steps of 0.9 / 64 of m's largest, 0.9 / 128 of v's */
    const int64_t *without_v; /* by tensor: not 0 if it has no v; NULL: all have */
} filler_t;

static zero_status_t fill_chunk(void *user, const zero_chunk_t *chunk)
{
    filler_t *filler = user;
    if (++filler->n_chunks == filler->fails_at)
        return ZERO_ERROR_IO;
    CHECK((chunk->m != NULL) == filler->with_moments && (!chunk->v || filler->with_moments), "moments");
    for (size_t i = 0; i < chunk->n_elems; i++) {
        chunk->master[i] = made_up(filler->rank, chunk->tensor, chunk->first + i, 0) - 0.5f;
        if (filler->with_moments) {
            chunk->m[i] = made_up(filler->rank, chunk->tensor, chunk->first + i, 1) - 0.5f;
            if (chunk->v)
                chunk->v[i] = made_up(filler->rank, chunk->tensor, chunk->first + i, 2);
        }
    }
    return ZERO_OK;
}

/* What a rank reads back is what it wrote itself. */
static zero_status_t expect_made_up(void *user, const zero_chunk_t *chunk)
{
    const filler_t *filler = user;
    for (size_t i = 0; i < chunk->n_elems; i++) {
        uint64_t e = chunk->first + i;
        CHECK(chunk->master[i] == made_up(filler->rank, chunk->tensor, e, 0) - 0.5f, "w of %d, %llu: %a", chunk->tensor,
              (unsigned long long)e, (double)chunk->master[i]);
        float m = filler->with_moments ? made_up(filler->rank, chunk->tensor, e, 1) - 0.5f : 0.0f;
        bool has_v = filler->with_moments && !(filler->without_v && filler->without_v[chunk->tensor]);
        float v = has_v ? made_up(filler->rank, chunk->tensor, e, 2) : 0.0f;
        CHECK(fabsf(chunk->m[i] - m) <= (filler->in_8_bits ? 0.0036f : 0.0f), "m: %g", (double)chunk->m[i]);
        CHECK(!chunk->v || fabsf(chunk->v[i] - v) <= (filler->in_8_bits ? 0.0036f : 0.0f), "v: %g",
              (double)chunk->v[i]);
    }
    return ZERO_OK;
}

static void make_up_state(zero_engine_t *engine, const toy_t *toy, int rank, bool with_moments,
                          zero_optimizer_t optimizer)
{
    filler_t filler = {.rank = rank,
                       .with_moments = with_moments,
                       .in_8_bits = optimizer == ZERO_OPTIMIZER_ADAMW8BIT,
                       .without_v = optimizer == ZERO_OPTIMIZER_MUON ? toy->rows : NULL};
    OK(zero_set_state(engine, with_moments, fill_chunk, &filler));
    OK(zero_get_state(engine, expect_made_up, &filler));
}

/* ---- passes ---- */

static void put_float(void *data, zero_dtype_t dtype, uint64_t i, float value, bool accumulate)
{
    if (accumulate)
        value += element_load(data, dtype, i);
    element_store(data, dtype, i, value);
}

/* A tensor's bytes between the device and a host buffer that is large enough for any tensor of the toy. */
static unsigned char host_buffer[MAX_ROWS * 64 * 4];

static void download(zero_device_t *device, const void *data, size_t n_bytes)
{
    CHECK(n_bytes <= sizeof host_buffer, "%zu bytes", n_bytes);
    device_download(device, host_buffer, data, n_bytes);
}

static void upload(zero_device_t *device, void *data, size_t n_bytes)
{
    device_upload(device, data, host_buffer, n_bytes);
}

static uint64_t fold(uint64_t hash, const void *data, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++)
        hash = (hash ^ ((const unsigned char *)data)[i]) * UINT64_C(1099511628211);
    return hash;
}

/* Casts the n_elems bf16 numbers in host_buffer to bytes, in place. */
static zero_fp8_scales_t cast_in_buffer(uint64_t n_elems)
{
    double absmax = 0.0;
    for (uint64_t e = 0; e < n_elems; e++)
        absmax = fmax(absmax, fabs((double)element_load(host_buffer, ZERO_BF16, e)));
    double scale = fp8_scale(absmax);
    for (uint64_t e = 0; e < n_elems; e++)
        host_buffer[e] = fp8_byte((double)element_load(host_buffer, ZERO_BF16, e) * scale);
    return (zero_fp8_scales_t){
        .scale = (float)scale, .inverse = (float)(1.0 / scale), .absmax = zero_bits_of_float((float)absmax)};
}

/* Folds bytes and scales of the matrix in fp8 that begins with tensor t: as gathered, or made of what was. */
static uint64_t fold_fp8(uint64_t hash, zero_engine_t *engine, zero_device_t *device, const toy_t *toy, int t,
                         bool is_gathered)
{
    uint64_t n = toy->n_fp8_elems[t];
    zero_fp8_param_t param = zero_param_fp8(engine, toy->tensors[t]);
    zero_fp8_scales_t scales;
    CHECK((param.data != NULL) == is_gathered && (param.scales != NULL) == is_gathered, "fp8 of tensor %d", t);
    if (is_gathered) {
        zero_fp8_param_t packed = zero_param_fp8(engine, toy->tensors[n > toy->n_elems[t] ? t + 1 : t]);
        CHECK(packed.scales == param.scales && (uintptr_t)param.data % 128 == 0, "a matrix has one scale");
        CHECK(n == toy->n_elems[t] || packed.data == param.data + toy->n_elems[t], "what is packed is one matrix");
        download(device, param.scales, sizeof scales);
        memcpy(&scales, host_buffer, sizeof scales);
        download(device, param.data, n);
    } else {
        download(device, zero_param(engine, toy->tensors[t]), n * sizeof(uint16_t));
        scales = cast_in_buffer(n);
    }
    return fold(fold(hash, &scales, sizeof scales), host_buffer, n);
}

/* Runs an eval pass that hashes every full parameter (FNV-1a). The hash must be equal on all ranks. */
static uint64_t hash_params_of(zero_engine_t *engine, zero_device_t *device, const toy_t *toy, zero_dtype_t dtype,
                               bool gathers_fp8)
{
    uint64_t hash = UINT64_C(1469598103934665603);
    OK(zero_begin(engine, ZERO_PASS_EVAL, NULL));
    for (zero_unit_t u = 0; u < N_UNITS; u++) {
        OK(zero_acquire(engine, u, NULL));
        for (int t = 0; t < toy->n_tensors; t++) {
            if (toy->owner[t] != u || (t > 0 && toy->n_fp8_elems[t - 1] > toy->n_elems[t - 1]))
                continue;
            if (toy->n_fp8_elems[t] > 0) {
                hash = fold_fp8(hash, engine, device, toy, t, gathers_fp8);
                continue;
            }
            size_t n_bytes = toy->n_elems[t] * zero_dtype_size(dtype);
            const void *param = zero_param(engine, toy->tensors[t]);
            CHECK(param && (uintptr_t)param % 128 == 0, "tensor %d is not resident", t);
            CHECK(!zero_param_fp8(engine, toy->tensors[t]).data, "tensor %d in fp8", t);
            download(device, param, n_bytes);
            hash = fold(hash, host_buffer, n_bytes);
        }
        CHECK(u != N_UNITS - 1 || zero_param_fp8(engine, toy->shared).data || zero_param(engine, toy->shared),
              "the shared table is not resident in the head");
        OK(zero_release(engine, u, NULL));
    }
    return hash;
}

static uint64_t hash_params(zero_engine_t *engine, zero_device_t *device, const toy_t *toy, zero_dtype_t dtype)
{
    return hash_params_of(engine, device, toy, dtype, false);
}

/* Writes a unit's gradients. With `poison` it first writes NaN wherever it may overwrite, which shows a wrong address
 * or a reader that comes too early. */
static void write_grads(zero_engine_t *engine, zero_device_t *device, const toy_t *toy, zero_unit_t unit, int rank,
                        int64_t step, int micro_step, const settings_t *s)
{
    float loss_scale;
    OK(zero_device_copy(device, &loss_scale, zero_loss_scale(engine), sizeof loss_scale, NULL));
    OK(zero_device_synchronize(device));
    for (int t = 0; t < toy->n_tensors; t++) {
        bool head_use = unit == N_UNITS - 1 && toy->tensors[t] == toy->shared;
        if (toy->owner[t] != unit && !head_use)
            continue;
        zero_grad_t grad = zero_grad(engine, toy->tensors[t]);
        size_t n_bytes = toy->n_elems[t] * zero_dtype_size(grad.dtype);
        CHECK(grad.data, "tensor %d has no gradient in unit %d", t, unit);
        if (grad.accumulate) {
            download(device, grad.data, n_bytes);
        } else if (s->poison) {
            for (uint64_t e = 0; e < toy->n_elems[t]; e++)
                put_float(host_buffer, grad.dtype, e, NAN, false);
            upload(device, grad.data, n_bytes);
        }
        for (uint64_t e = 0; e < toy->n_elems[t]; e++)
            put_float(host_buffer, grad.dtype, e, gradient(rank, step, micro_step, t, e, head_use) * loss_scale,
                      grad.accumulate);
        if (s->nan_at == step && rank == 0 && unit == 2 && micro_step == 0)
            put_float(host_buffer, grad.dtype, 0, NAN, false);
        upload(device, grad.data, n_bytes);
    }
}

static void micro_step_pass(zero_engine_t *engine, zero_device_t *device, const toy_t *toy, int rank, int64_t step,
                            int k, const settings_t *s)
{
    OK(zero_begin(engine, ZERO_PASS_TRAIN, NULL));
    for (zero_unit_t u = 0; u < N_UNITS; u++) {
        OK(zero_acquire(engine, u, NULL));
        OK(zero_release(engine, u, NULL));
    }
    for (zero_unit_t u = N_UNITS - 1; u >= 0; u--) {
        OK(zero_acquire(engine, u, NULL));
        write_grads(engine, device, toy, u, rank, step, k, s);
        OK(zero_grad_ready(engine, u, NULL));
    }
}

static void check_same_on_all_ranks(zero_comm_t *comm, uint64_t hash)
{
    /* Halves are exact in double: the sum over ranks is N times mine exactly when all are mine (up to a conspiracy). */
    double halves[4] = {(double)(hash >> 32), (double)(hash & 0xffffffffu), 0, 0};
    halves[2] = halves[0] * halves[0] / 4294967296.0;
    halves[3] = halves[1] * halves[1] / 4294967296.0;
    double sums[4];
    memcpy(sums, halves, sizeof sums);
    OK(zero_comm_sum(comm, sums, 4));
    for (int i = 0; i < 4; i++)
        CHECK(fabs(sums[i] - halves[i] * zero_comm_size(comm)) <= 1e-9 * fabs(sums[i]), "parameters differ by rank");
}

/* ---- cases ---- */

/* The fp32 expressions of zero_shard_kernels_t's nesterov, on host memory. */
static zero_status_t own_nesterov(void *user, const zero_own_update_t *u, zero_stream_t stream)
{
    const float momentum = *(const float *)user;
    (void)stream;
    CHECK(!u->v && u->n_elems > 0 && (*u->skip || *u->step > 0), "update of %d", u->tensor);
    for (size_t i = 0; i < u->n_elems && !*u->skip; i++) {
        float g = fmaf(u->decay, u->weight[i], u->grad[i] * *u->grad_scale);
        u->m[i] = fmaf(momentum, u->m[i], g);
        u->weight[i] = fmaf(-u->lr, fmaf(momentum, u->m[i], g), u->weight[i]);
    }
    return ZERO_OK;
}

/* ---- hooks ---- */

static struct {
    zero_device_t *device;
    int64_t step;                  /* under way */
    uint64_t n_reduced, n_updated; /* elements seen in it */
    bool adds, clamps;
} hooked;

/* They work on the host, in a buffer of their own: they are called between a program's own downloads and uploads. */
static float hook_buffer[MAX_ROWS * 64];

static void fetch(const void *data, size_t n_elems, zero_stream_t stream)
{
    CHECK(n_elems * sizeof(float) <= sizeof hook_buffer, "%zu elements", n_elems);
    OK(zero_device_copy(hooked.device, hook_buffer, data, n_elems * sizeof(float), stream));
    OK(zero_device_synchronize(hooked.device));
}

static void store(void *data, size_t n_elems, zero_stream_t stream)
{
    OK(zero_device_copy(hooked.device, data, hook_buffer, n_elems * sizeof(float), stream));
    OK(zero_device_synchronize(hooked.device));
}

static zero_status_t see_reduced(void *user, const zero_reduced_t *reduced, zero_stream_t stream)
{
    float scale;
    CHECK(user == &hooked && reduced->step == (uint64_t)hooked.step && reduced->n_elems > 0, "reduced");
    hooked.n_reduced += reduced->n_elems;
    if (!hooked.adds)
        return ZERO_OK;
    OK(zero_device_copy(hooked.device, &scale, reduced->loss_scale, sizeof scale, stream));
    fetch(reduced->grad, reduced->n_elems, stream);
    for (size_t i = 0; i < reduced->n_elems; i++)
        hook_buffer[i] += noise(reduced->tensor, reduced->first + i, hooked.step) * scale;
    store(reduced->grad, reduced->n_elems, stream);
    return ZERO_OK;
}

static zero_status_t see_updated(void *user, const zero_own_update_t *update, zero_stream_t stream)
{
    uint32_t skip;
    CHECK(user == &hooked && update->n_elems > 0, "updated");
    hooked.n_updated += update->n_elems;
    if (!hooked.clamps)
        return ZERO_OK;
    OK(zero_device_copy(hooked.device, &skip, update->skip, sizeof skip, stream));
    fetch(update->weight, update->n_elems, stream);
    for (size_t i = 0; i < update->n_elems && !skip; i++)
        hook_buffer[i] = fminf(fmaxf(hook_buffer[i], (float)-LARGEST_WEIGHT), (float)LARGEST_WEIGHT);
    store(update->weight, update->n_elems, stream);
    return ZERO_OK;
}

static const zero_hooks_t see_both = {.reduced = see_reduced, .updated = see_updated, .user = &hooked},
                          see_gradients = {.reduced = see_reduced, .user = &hooked};

/* Each element of a reduced gradient was seen once, and each weight by those who hold its state. */
static void check_hooks(zero_comm_t *comm, const toy_t *toy, const settings_t *s)
{
    const uint64_t n = zero_model_n_params(toy->model), n_holders = s->stage == 0 ? (uint64_t)zero_comm_size(comm) : 1;
    double seen[2] = {(double)hooked.n_reduced, (double)hooked.n_updated};
    if (s->hooks == NO_HOOKS)
        return;
    OK(zero_comm_sum(comm, seen, 2));
    CHECK((uint64_t)seen[0] == n, "%.0f elements of reduced gradients were seen", seen[0]);
    CHECK((uint64_t)seen[1] == (s->hooks == NOISE ? 0 : n * n_holders), "%.0f updated elements were seen", seen[1]);
}

static float own_momentum = 0.9f;
static const zero_own_optimizer_t own_optimizer = {
    .name = "own nesterov", .n_arrays = 1, .update = own_nesterov, .user = &own_momentum};

static zero_config_t make_config(const settings_t *s)
{
    zero_config_t config = zero_config_default();
    config.stage = s->stage;
    config.dtype = s->dtype;
    config.optimizer = s->optimizer;
    config.own_optimizer = &own_optimizer;
    config.hooks = s->hooks == NO_HOOKS ? NULL : s->hooks == NOISE ? &see_gradients : &see_both;
    config.prefetch = s->prefetch;
    config.micro_steps = s->micro_steps;
    config.reduce_every_micro_step = s->every;
    config.nccl_reduction = s->nccl;
    config.shard_group = s->group;
    config.gather_fp8 = s->fp8 == FP8;
    config.offload = s->offload > 0;
    config.offload_ratio = (float)s->offload / 100.0f;
    config.offload_update = s->update;
    if (s->staging > 0)
        config.staging_bytes = (size_t)s->staging;
    config.initial_loss_scale = 1024.0f;
    return config;
}

typedef struct training {
    const settings_t *s;
    zero_config_t config;
    zero_comm_t *comm;
    zero_device_t *device;
    zero_engine_t *engine;
    toy_t toy;
    reference_t ref;
    double *device_loss;
    int rank, n_ranks;
    uint64_t hash; /* of the parameters after the last step */
} training_t;

/* Checks that the engine holds what zero_plan said. */
static void check_held(const training_t *t)
{
    zero_memory_t plan, held = zero_engine_memory(t->engine);
    OK(zero_plan(t->toy.model, &t->config, zero_device_get_type(t->device), zero_comm_get_kind(t->comm), t->n_ranks,
                 &plan));
    CHECK(memcmp(&plan, &held, sizeof plan) == 0, "plan %llu bytes, held %llu",
          (unsigned long long)zero_memory_total(&plan), (unsigned long long)zero_memory_total(&held));
}

static void open_training(training_t *t, const settings_t *s)
{
    void *block;
    *t = (training_t){.s = s, .config = make_config(s), .toy = toy_create_of(37, s->rows, s->fp8 != NO_FP8)};
    OK(zero_comm_create(s->kind, &t->comm));
    allocations_leave_out_other_threads();
    t->rank = zero_comm_rank(t->comm);
    t->n_ranks = zero_comm_size(t->comm);
    OK(zero_device_create(s->device, t->comm, &t->device));
    hooked.device = t->device;
    hooked.adds = s->hooks == NOISE || s->hooks == BOTH;
    hooked.clamps = s->hooks >= CLAMP;
    OK(zero_engine_create(t->comm, t->device, t->toy.model, &t->config, &t->engine));
    check_held(t);
    for (int i = 0; i < t->toy.n_tensors; i++) {
        t->ref.w[i] = calloc(t->toy.n_elems[i], sizeof(double));
        t->ref.m[i] = calloc(t->toy.n_elems[i], sizeof(double));
        t->ref.v[i] = calloc(t->toy.n_elems[i], sizeof(double));
        t->ref.unsure[i] = calloc(t->toy.n_elems[i], sizeof(bool));
    }
    OK(zero_alloc(t->engine, ZERO_MEMORY_DATA, sizeof *t->device_loss, &block));
    t->device_loss = block;
    OK(zero_init_parameters(t->engine));
    if (s->fill) {
        make_up_state(t->engine, &t->toy, t->rank, false, s->optimizer);
        make_up_state(t->engine, &t->toy, t->rank, true, s->optimizer);
    }
    visit_all(t->engine, t->comm, &t->toy, &t->ref, true, false);
    complete_reference(t->comm, &t->toy, &t->ref);
    t->hash = hash_params_of(t->engine, t->device, &t->toy, s->dtype, s->fp8 == FP8);
    check_same_on_all_ranks(t->comm, t->hash);
}

static void close_training(training_t *t)
{
    for (int i = 0; i < t->toy.n_tensors; i++) {
        free(t->ref.w[i]);
        free(t->ref.m[i]);
        free(t->ref.v[i]);
        free(t->ref.unsure[i]);
    }
    zero_engine_destroy(t->engine);
    zero_device_destroy(t->device);
    zero_model_destroy(t->toy.model);
    zero_comm_destroy(t->comm);
}

static zero_step_result_t make_step(training_t *t, int64_t step)
{
    zero_step_result_t result;
    hooked.step = step;
    hooked.n_reduced = hooked.n_updated = 0;
    allocations_start();
    double loss = (t->rank + 1) * 0.125 * (double)step;
    OK(zero_device_copy(t->device, t->device_loss, &loss, sizeof loss, NULL));
    for (int i = 0; t->s->schedule && i < t->toy.n_tensors; i++)
        set_scheduled_groups(t->engine, &t->config, t->toy.tensors[i], t->toy.decay[i], step);
    for (int k = 0; k < t->s->micro_steps; k++)
        micro_step_pass(t->engine, t->device, &t->toy, t->rank, step, k, t->s);
    set_notice(t->engine, t->rank, (uint64_t)step);
    OK(zero_step(t->engine, 0.01f, t->device_loss, NULL));
    OK(zero_step_wait(t->engine, &result));
    unsigned long allocations = allocations_stop();
    /* MPI may allocate for its messages, CUDA and NCCL in their calls. */
    CHECK(step < 3 || allocations == 0 || zero_comm_get_kind(t->comm) == ZERO_COMM_MPI ||
              t->s->device >= ZERO_DEVICE_CUDA,
          "%lu allocations in step %lld", allocations, (long long)step);
    return result;
}

/* Compares the step's result and the new weights with the reference, which it moves on by a step. */
static void check_step(training_t *t, int64_t step, const zero_step_result_t *result)
{
    const int n = t->n_ranks;
    uint64_t hash = hash_params_of(t->engine, t->device, &t->toy, t->s->dtype, t->s->fp8 == FP8);
    check_same_on_all_ranks(t->comm, hash);
    CHECK(result->step == (uint64_t)step, "step %llu", (unsigned long long)result->step);
    CHECK((double)result->loss == 0.125 * (double)step * n * (n + 1) / 2, "loss %g", (double)result->loss);
    check_notice(result, n);
    check_hooks(t->comm, &t->toy, t->s);
    if (t->s->nan_at == step) {
        CHECK(result->skipped && hash == t->hash, "a step with NaN was not skipped");
    } else {
        double norm = reference_step(&t->ref, &t->toy, n, t->s, &t->config, step, (double)0.01f);
        /* Sums of exact gradients are exact; squares and their cells are rounded: 8 * 2^-24 at most. */
        CHECK(!result->skipped && fabs((double)result->grad_norm - norm) <= 1e-6 * norm, "norm %.9g, not %.9g",
              (double)result->grad_norm, norm);
        CHECK(hash != t->hash, "the weights did not change");
        /* The optimizer in fp32 against fp64: a few roundings of |w| ~ 1 per step. */
        double worst = visit_all(t->engine, t->comm, &t->toy, &t->ref, false, t->s->optimizer == ZERO_OPTIMIZER_LION);
        /* On GPUs Muon orthogonalizes in 16 bits: elements of about 0.15 are off by 0.02 at most, times lr 0.01 and
         * scale 1.64. */
        const bool in_bf16 = t->s->optimizer == ZERO_OPTIMIZER_MUON && t->s->device >= ZERO_DEVICE_CUDA;
        CHECK(worst < (in_bf16 ? 4e-4 : 1e-6) * (double)step, "weights are off by %g", worst);
    }
    t->hash = hash;
}

/* Once after each time that weights have changed, every unit's parts cross between groups; gathers do not: a group of
 * one rank gathers nothing from another. */
static void check_traffic(const training_t *t)
{
    const zero_stats_t stats = zero_engine_stats(t->engine);
    const bool has_groups = t->s->stage == 3 && t->s->group > 0 && t->s->group < t->n_ranks;
    const uint64_t n_changes = (uint64_t)t->s->steps + 1;
    CHECK(t->s->fill || stats.n_part_gathers == (has_groups ? N_UNITS * n_changes : 0), "%llu gathers of parts",
          (unsigned long long)stats.n_part_gathers);
    CHECK((stats.gathered_bytes == 0) == (t->n_ranks == 1 || (has_groups && t->s->group == 1)), "%llu bytes gathered",
          (unsigned long long)stats.gathered_bytes);
}

static int train(const settings_t *s)
{
    training_t t;
    CHECK(s->rows <= MAX_ROWS, "%d rows", s->rows);
    open_training(&t, s);
    for (int64_t step = 1; step <= s->steps; step++) {
        zero_step_result_t result = make_step(&t, step);
        check_step(&t, step, &result);
        if (t.rank == 0)
            printf("%lld %.9g %.9g %d %016llx\n", (long long)step, (double)result.loss, (double)result.grad_norm,
                   result.skipped, (unsigned long long)t.hash);
    }
    check_traffic(&t);
    if (s->traffic && t.rank == 0)
        printf("gathered %llu\n", (unsigned long long)zero_engine_stats(t.engine).gathered_bytes);
    close_training(&t);
    return 0;
}

/* Rank 1 has another width, or another configuration: a mismatch is one on all ranks, the rest is its own. */
static int expect_create(int64_t width_of_rank_1, const zero_config_t *config_of_rank_1, zero_status_t expected)
{
    zero_comm_t *comm;
    zero_device_t *device;
    zero_engine_t *engine;
    OK(zero_comm_create(ZERO_COMM_AUTO, &comm));
    toy_t toy = toy_create(zero_comm_rank(comm) == 1 ? width_of_rank_1 : 37, ROWS);
    zero_config_t config = zero_comm_rank(comm) == 1 ? *config_of_rank_1 : zero_config_default();
    OK(zero_device_create(ZERO_DEVICE_CPU, comm, &device));
    zero_status_t status = zero_engine_create(comm, device, toy.model, &config, &engine);
    bool peer = expected != ZERO_ERROR_MISMATCH && zero_comm_rank(comm) != 1;
    CHECK(status == (peer ? ZERO_ERROR_PEER : expected), "%s", zero_status_name(status));
    zero_model_destroy(toy.model);
    zero_device_destroy(device);
    zero_comm_destroy(comm);
    return 0;
}

static zero_status_t count_calls(void *user, const zero_chunk_t *chunk)
{
    (void)chunk;
    ++*(int *)user;
    return ZERO_OK;
}

/* Rank 1's weights are half written: no rank can train, evaluate, read or save until they are complete again. */
static int failed_fill(const settings_t *s)
{
    zero_comm_t *comm;
    zero_device_t *device;
    zero_engine_t *engine;
    zero_save_t *save;
    int n_calls = 0;
    zero_config_t config = make_config(s);
    toy_t toy = toy_create(37, s->rows);
    OK(zero_comm_create(s->kind, &comm));
    OK(zero_device_create(s->device, comm, &device));
    OK(zero_engine_create(comm, device, toy.model, &config, &engine));
    OK(zero_init_parameters(engine));
    int rank = zero_comm_rank(comm);
    uint64_t initial = hash_params(engine, device, &toy, s->dtype);

    filler_t filler = {.rank = rank, .fails_at = rank == 1 ? 3 : 0};
    zero_status_t status = zero_set_state(engine, false, fill_chunk, &filler);
    CHECK(status == (rank == 1 ? ZERO_ERROR_IO : ZERO_ERROR_PEER), "%s", zero_status_name(status));
    for (int again = 0; again < 2; again++) {
        CHECK(zero_begin(engine, ZERO_PASS_TRAIN, NULL) == ZERO_ERROR_ORDER, "trains with half-written weights");
        CHECK(zero_begin(engine, ZERO_PASS_EVAL, NULL) == ZERO_ERROR_ORDER, "evaluates half-written weights");
        CHECK(zero_get_state(engine, count_calls, &n_calls) == ZERO_ERROR_ORDER, "reads half-written weights");
        CHECK(zero_save_begin(engine, "nowhere", &(zero_save_options_t){0}, &save) == ZERO_ERROR_ORDER,
              "saves half-written weights");
    }
    CHECK(n_calls == 0 && access("nowhere", F_OK) != 0, "something was read or made");
    OK(zero_init_parameters(engine));
    CHECK(hash_params(engine, device, &toy, s->dtype) == initial, "initial weights are others than before");
    make_up_state(engine, &toy, rank, false, s->optimizer);
    check_same_on_all_ranks(comm, hash_params(engine, device, &toy, s->dtype));
    zero_engine_destroy(engine);
    zero_device_destroy(device);
    zero_model_destroy(toy.model);
    zero_comm_destroy(comm);
    return 0;
}

/* Every call with one NULL argument on rank 1, and correct arguments on the others. */
static int null_on_one_rank(void)
{
    zero_comm_t *comm;
    zero_device_t *device;
    zero_engine_t *engine, *other;
    zero_save_t *save;
    zero_checkpoint_t *checkpoint;
    zero_config_t config = zero_config_default();
    toy_t toy = toy_create(37, ROWS);
    OK(zero_comm_create(ZERO_COMM_AUTO, &comm));
    OK(zero_device_create(ZERO_DEVICE_CPU, comm, &device));
    OK(zero_engine_create(comm, device, toy.model, &config, &engine));
    OK(zero_init_parameters(engine));
    bool odd = zero_comm_rank(comm) == 1;
    uint64_t hash = hash_params(engine, device, &toy, ZERO_BF16);
    zero_save_options_t options = {0};
    filler_t filler = {.rank = zero_comm_rank(comm)};
#define TOLD(call) CHECK((call) == (odd ? ZERO_ERROR_ARGUMENT : ZERO_ERROR_PEER), "not told to all ranks")
    TOLD(zero_engine_create(comm, odd ? NULL : device, toy.model, &config, &other));
    TOLD(zero_engine_create(comm, device, toy.model, odd ? NULL : &config, &other));
    TOLD(zero_set_state(engine, false, odd ? NULL : fill_chunk, &filler));
    TOLD(zero_load_weights(engine, odd ? NULL : "nowhere"));
    TOLD(zero_save_prepare(comm, odd ? NULL : "nowhere"));
    TOLD(zero_save_begin(engine, odd ? NULL : "nowhere", &options, &save));
    TOLD(zero_save_begin(engine, "nowhere", odd ? NULL : &options, &save));
    TOLD(zero_checkpoint_open(comm, odd ? NULL : "nowhere", &checkpoint));
    TOLD(zero_checkpoint_open(comm, "nowhere", odd ? NULL : &checkpoint));
#undef TOLD
    CHECK(filler.n_chunks == 0 && hash_params(engine, device, &toy, ZERO_BF16) == hash, "something was written");
    zero_engine_destroy(engine);
    zero_device_destroy(device);
    zero_model_destroy(toy.model);
    zero_comm_destroy(comm);
    rmdir("nowhere"); /* rank 0 created it */
    return 0;
}

static int destroy_order(void)
{
    zero_comm_t *comm;
    zero_device_t *device;
    zero_engine_t *engine;
    zero_save_t *save;
    zero_step_result_t result;
    settings_t s = {.stage = 3, .micro_steps = 1};
    zero_config_t config = zero_config_default();
    toy_t toy = toy_create(37, ROWS);
    char directory[] = "/tmp/engine_cases.XXXXXX";
    OK(zero_comm_create(ZERO_COMM_AUTO, &comm));
    int rank = zero_comm_rank(comm);
    OK(zero_comm_agree(comm, rank > 0 || mkdtemp(directory) ? ZERO_OK : ZERO_ERROR_IO));
    OK(zero_comm_broadcast(comm, directory, sizeof directory, 0));
    OK(zero_device_create(ZERO_DEVICE_CPU, comm, &device));
    OK(zero_engine_create(comm, device, toy.model, &config, &engine));
    OK(zero_init_parameters(engine));
    micro_step_pass(engine, device, &toy, rank, 1, 0, &s);
    OK(zero_step(engine, 0.01f, NULL, NULL));
    OK(zero_step_wait(engine, &result));
    OK(zero_save_begin(engine, directory, &(zero_save_options_t){.background = true}, &save));
    zero_comm_destroy(comm);
    zero_device_destroy(device);
    micro_step_pass(engine, device, &toy, rank, 2, 0, &s);
    zero_engine_destroy(engine);
    zero_model_destroy(toy.model);
    OK(zero_save_end(save));
    if (rank == 0) {
        char command[128];
        snprintf(command, sizeof command, "rm -r %s", directory);
        CHECK(system(command) == 0, "%s", command);
    }
    return 0;
}

/* Rank 1 leaves in backward; what the others return is the program's exit code: 3, "a status and no hang". */
static int lost_rank(void)
{
    zero_comm_t *comm;
    zero_device_t *device;
    zero_engine_t *engine;
    settings_t s = {.stage = 3, .micro_steps = 1};
    zero_config_t config = zero_config_default();
    toy_t toy = toy_create(37, ROWS);
    OK(zero_comm_create(ZERO_COMM_AUTO, &comm));
    OK(zero_device_create(ZERO_DEVICE_CPU, comm, &device));
    OK(zero_engine_create(comm, device, toy.model, &config, &engine));
    OK(zero_init_parameters(engine));
    int rank = zero_comm_rank(comm);
    OK(zero_begin(engine, ZERO_PASS_TRAIN, NULL));
    for (zero_unit_t u = 0; u < N_UNITS; u++) {
        OK(zero_acquire(engine, u, NULL));
        OK(zero_release(engine, u, NULL));
    }
    for (zero_unit_t u = N_UNITS - 1; u >= 0; u--) {
        zero_status_t status = zero_acquire(engine, u, NULL);
        if (status == ZERO_OK)
            write_grads(engine, device, &toy, u, rank, 1, 0, &s);
        if (rank == 1 && u == 2)
            _exit(7);
        if (status == ZERO_OK)
            status = zero_grad_ready(engine, u, NULL);
        if (status != ZERO_OK) {
            zero_comm_abort(comm, 3);
            return 3;
        }
    }
    return 0;
}

static const setting_row_t setting_rows[] = {{"stage", offsetof(settings_t, stage), NULL},
                                             {"prefetch", offsetof(settings_t, prefetch), NULL},
                                             {"micro_steps", offsetof(settings_t, micro_steps), NULL},
                                             {"every", offsetof(settings_t, every), NULL},
                                             {"steps", offsetof(settings_t, steps), NULL},
                                             {"nan_at", offsetof(settings_t, nan_at), NULL},
                                             {"poison", offsetof(settings_t, poison), NULL},
                                             {"nccl", offsetof(settings_t, nccl), NULL},
                                             {"rows", offsetof(settings_t, rows), NULL},
                                             {"staging", offsetof(settings_t, staging), NULL},
                                             {"offload", offsetof(settings_t, offload), NULL},
                                             {"fill", offsetof(settings_t, fill), NULL},
                                             {"group", offsetof(settings_t, group), NULL},
                                             {"traffic", offsetof(settings_t, traffic), NULL},
                                             {"schedule", offsetof(settings_t, schedule), NULL},
                                             {"hooks", offsetof(settings_t, hooks), "none idle noise clamp both"},
                                             {"fp8", offsetof(settings_t, fp8), "none bf16 fp8"},
                                             {"update", offsetof(settings_t, update), "auto device host"},
                                             {"optimizer", offsetof(settings_t, optimizer), SETTING_OPTIMIZERS},
                                             {"dtype", offsetof(settings_t, dtype), SETTING_DTYPES},
                                             {"device", offsetof(settings_t, device), SETTING_DEVICES},
                                             {"comm", offsetof(settings_t, kind), "auto mpi nccl"}};

int main(int argc, char **argv)
{
    settings_t s = {.stage = 3,
                    .prefetch = 1,
                    .micro_steps = 1,
                    .steps = 6,
                    .rows = ROWS,
                    .dtype = ZERO_BF16,
                    .device = ZERO_DEVICE_CPU};
    CHECK(argc > 1, "which case?");
    for (int i = 2; i < argc; i++)
        setting_take(argv[i], setting_rows, sizeof setting_rows / sizeof setting_rows[0], &s);
    if (strcmp(argv[1], "train") == 0)
        return train(&s);
    if (strcmp(argv[1], "failed_fill") == 0)
        return failed_fill(&s);
    zero_config_t odd = zero_config_default();
    if (strcmp(argv[1], "mismatch") == 0)
        return expect_create(38, &odd, ZERO_ERROR_MISMATCH);
    odd.eps = -1.0f;
    if (strcmp(argv[1], "odd_setting") == 0)
        return expect_create(37, &odd, ZERO_ERROR_MISMATCH);
    odd = zero_config_default();
    odd.offload_threads = -1;
    if (strcmp(argv[1], "odd_threads") == 0)
        return expect_create(37, &odd, ZERO_ERROR_USAGE);
    odd = zero_config_default();
    odd.user_bytes = (size_t)1 << 50;
    if (strcmp(argv[1], "too_large") == 0)
        return expect_create(37, &odd, ZERO_ERROR_MEMORY);
    if (strcmp(argv[1], "null_on_one_rank") == 0)
        return null_on_one_rank();
    if (strcmp(argv[1], "destroy_order") == 0)
        return destroy_order();
    if (strcmp(argv[1], "lost_rank") == 0)
        return lost_rank();
    CHECK(false, "no case %s", argv[1]);
}
