/* reference.c - the toy model of engine_cases, its gradients by formula, and the optimizers in fp64 on the exact global
 * gradient, over the whole model, on every rank. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/mpi/engine/cases.h"
#include "tests/mpi/schedule.h"
#include "tests/unit/optimizer/adam8_fp64.h"
#include "tests/unit/optimizer/muon_fp64.h"

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
toy_t toy_create_of(int64_t width, int64_t rows, bool has_fp8)
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

toy_t toy_create(int64_t width, int64_t rows)
{
    return toy_create_of(width, rows, false);
}

/* Returns rank r's gradient of element e in one use of tensor t: a multiple of 1/64 with few bits, exact in bf16, so
 * that the sum over ranks and micro-steps is known exactly. The sum over up to four ranks, with two uses each, is exact
 * in bf16 too, in any order: NCCL's equals ours. */
float gradient(int rank, int64_t step, int micro_step, int tensor, uint64_t e, int use)
{
    uint64_t x = e * 2654435761u + (uint64_t)rank * 40503u + (uint64_t)step * 97u + (uint64_t)micro_step * 31u +
                 (uint64_t)tensor * 7u + (uint64_t)use * 3u;
    x ^= x >> 13;
    return (float)((int)(x % 63) - 31) / 64.0f;
}

/* ---- fp64 reference: the optimizer on the exact global gradient, over the whole model, on every rank ---- */

/* What a hook adds to a reduced gradient: few bits, as gradients have, so that sums stay exact. */
float noise(int tensor, uint64_t e, int64_t step)
{
    return gradient(3, step, 5, tensor, e, 1);
}

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
double reference_step(reference_t *ref, const toy_t *toy, int n_ranks, const settings_t *s, const zero_config_t *c,
                      int64_t step, double lr)
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
double visit_all(zero_engine_t *engine, zero_comm_t *comm, const toy_t *toy, reference_t *ref, bool copy, bool is_lion)
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
void complete_reference(zero_comm_t *comm, const toy_t *toy, reference_t *ref)
{
    for (int t = 0; t < toy->n_tensors; t++) {
        OK(zero_comm_sum(comm, ref->w[t], toy->n_elems[t]));
        OK(zero_comm_sum(comm, ref->m[t], toy->n_elems[t]));
        OK(zero_comm_sum(comm, ref->v[t], toy->n_elems[t]));
    }
}
