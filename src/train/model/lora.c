/* lora.c - see lora.h. With u = scale x A^T [R, n rank] of a layer's n parts side by side:
 *
 *     forward             u;  y_i = u_i B_i^T                     for each part i, in its columns of y;  y += x W
 *                         (with a bias, or parts of some columns:  y = x W + bias;  y_i += u_i B_i^T)
 *     backward, input     du_i = scale dy_i B_i and dB_i = dy_i^T u_i;  dx = du A;  dx += dy W^T
 *     backward, weights   dA = du^T x
 *
 * Where these additions are fused with a gated MLP's activation function (lora_is_fused), the layer before it writes x
 * W alone in forward, and the layer behind it dy W^T alone in backward.
 *
 * u is kept for every layer unless its recompute is full, which computes it again with the rest of the block; the last
 * matrix of a block is not recomputed, so its u is always kept.
 */
#include "train/model/lora.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/model/fp8.h"
#include "train/model/preference.h"
#include "train/options/families.h"
#include "train/options/lora_targets.h"
#include "train/report/report.h"

#define MAX_PARTS 3     /* q, k and v */
#define BLOCK8_ELEMS 64 /* that have one scale in adamw8bit's moments */

/* A matrix with an adapter: columns first .. first + width of what its layer computes. */
typedef struct part {
    int target; /* row of lora_targets */
    size_t first, width;
} part_t;

/* A layer's adapters, in every block. */
typedef struct group {
    int n_parts;
    part_t parts[MAX_PARTS];
} group_t;

/* Of one block's layer. */
typedef struct adapters {
    zero_tensor_t a[MAX_PARTS]; /* [rank, n_in], packed from a[0] on */
    zero_tensor_t b[MAX_PARTS]; /* [width, rank] */
    void *u;                    /* [R, n_parts * rank] */
} adapters_t;

struct lora {
    size_t rank;
    float scale;
    group_t groups[ARCH_N_MATRICES];
    void *wide; /* [the largest matrix], of a base in fp8; NULL: products are in fp8, or the base is not */
    void *du;   /* [R, lora_width] */
    void *shared[ARCH_N_MATRICES]; /* u of layers that recompute everything */
    bool has_multiplied[ARCH_N_MATRICES][LORA_N_PASSES];
    adapters_t layers[][ARCH_N_MATRICES]; /* [layers] */
};

/* ---- which matrices ---- */

/* Where a target is: in which product, and in which of its columns. */
typedef struct place {
    arch_matrix_t matrix;
    size_t first, width;
} place_t;

static void find_places(const model_t *model, place_t places[LORA_MAX_TARGETS])
{
    const arch_sizes_t s = arch_largest_sizes(model);
    const size_t kv = s.kv_heads * s.head_dim;
    const family_t *family = family_of(&model->options->model);
    const bool is_gpt2 = model->options->model.arch == ARCH_GPT2;
    place_t *place = places;
    if (is_gpt2 || family->fuses_qkv) {
        *place++ = (place_t){ARCH_QKV, 0, s.qkv};
    } else {
        *place++ = (place_t){ARCH_QKV, 0, s.A};
        *place++ = (place_t){ARCH_QKV, s.A, kv};
        *place++ = (place_t){ARCH_QKV, s.A + kv, kv};
    }
    *place++ = (place_t){ARCH_ATTENTION, 0, s.C};
    if (is_gpt2 || family->gate_up) {
        *place++ = (place_t){ARCH_MLP_IN, 0, s.mlp};
    } else {
        *place++ = (place_t){ARCH_MLP_IN, 0, s.F};
        *place++ = (place_t){ARCH_MLP_IN, s.F, s.F};
    }
    *place = (place_t){ARCH_MLP_OUT, 0, s.C};
}

static void find_groups(const model_t *model, group_t groups[ARCH_N_MATRICES])
{
    int n;
    place_t places[LORA_MAX_TARGETS];
    lora_targets(model->options->model.arch, &n);
    find_places(model, places);
    for (int i = 0; i < n; i++)
        if (model->options->lora.target_set >> i & 1) {
            group_t *group = &groups[places[i].matrix];
            group->parts[group->n_parts++] = (part_t){i, places[i].first, places[i].width};
        }
}

/* Refuses matrices A that lie one behind the other and would share a block of adamw8bit's moments. */
static zero_status_t check_blocks(const model_t *model)
{
    const options_t *o = model->options;
    if (o->train.optimizer != ZERO_OPTIMIZER_ADAMW8BIT || options_are_forward_only(o))
        return ZERO_OK;
    for (arch_matrix_t m = 0; m < ARCH_N_MATRICES; m++) {
        const size_t n_in = arch_extents(model, m).n_in;
        size_t multiple = 1; /* the least rank whose matrix A is whole blocks */
        while (n_in * multiple % BLOCK8_ELEMS != 0)
            multiple *= 2;
        if (model->lora->groups[m].n_parts > 1 && model->lora->rank % multiple != 0)
            return report_error(ZERO_ERROR_USAGE,
                                "[train] optimizer = adamw8bit: [lora] rank = %zu: a matrix A of rank * %zu elements "
                                "would share a scale with the next one, since that is no multiple of %d: take a rank "
                                "that is a multiple of %zu, or optimizer = adamw",
                                model->lora->rank, n_in, BLOCK8_ELEMS, multiple);
    }
    return ZERO_OK;
}

zero_status_t lora_create(model_t *model)
{
    const lora_options_t *o = &model->options->lora;
    const size_t n_layers = (size_t)model->options->model.layers;
    if (o->rank == 0)
        return ZERO_OK;
    model->lora = calloc(1, sizeof *model->lora + n_layers * sizeof model->lora->layers[0]);
    if (!model->lora)
        return report_rank_error(ZERO_ERROR_MEMORY, "no memory for the adapters of %zu layers", n_layers);
    model->lora->rank = (size_t)o->rank;
    model->lora->scale = (float)options_lora_scale(o);
    find_groups(model, model->lora->groups);
    return check_blocks(model);
}

void lora_destroy(model_t *model)
{
    free(model->lora);
}

/* Declares A or B of a part. */
static zero_status_t declare(model_t *model, int layer, zero_unit_t unit, const part_t *part, bool is_a, bool packed,
                             arch_extents_t e, zero_tensor_t *tensor)
{
    int n;
    const int arch = model->options->model.arch;
    char name[ZERO_MAX_NAME], block[64];
    const int64_t rank = (int64_t)model->lora->rank;
    lora_block_prefix(arch, layer, block, sizeof block);
    snprintf(name, sizeof name, "base_model.model.%s%s.lora_%s.weight", block,
             lora_targets(arch, &n)[part->target].module, is_a ? "A" : "B");
    zero_tensor_desc_t desc = {.name = name,
                               .n_dims = 2,
                               .shape = {is_a ? rank : (int64_t)part->width, is_a ? (int64_t)e.n_in : rank},
                               .init = ZERO_INIT_ZEROS,
                               .decay = true,
                               .packed = packed,
                               .hidden_matrix = true};
    return zero_model_add_tensor(model->declaration, unit, &desc, tensor);
}

zero_status_t lora_declare(model_t *model, int layer, zero_unit_t unit)
{
    if (!model->lora)
        return ZERO_OK;
    for (arch_matrix_t m = 0; m < ARCH_N_MATRICES; m++) {
        const group_t *group = &model->lora->groups[m];
        adapters_t *adapters = &model->lora->layers[layer][m];
        const arch_extents_t e = arch_extents(model, m);
        for (int i = 0; i < group->n_parts; i++)
            ZERO_TRY(declare(model, layer, unit, &group->parts[i], true, i > 0, e, &adapters->a[i]));
        for (int i = 0; i < group->n_parts; i++)
            ZERO_TRY(declare(model, layer, unit, &group->parts[i], false, false, e, &adapters->b[i]));
    }
    return ZERO_OK;
}

int lora_n_tensors(const model_t *model)
{
    int n = 0;
    for (arch_matrix_t m = 0; model->lora && m < ARCH_N_MATRICES; m++)
        n += 2 * model->lora->groups[m].n_parts;
    return n * (int)model->options->model.layers;
}

int64_t lora_n_params(const model_t *model)
{
    size_t n = 0;
    for (arch_matrix_t m = 0; model->lora && m < ARCH_N_MATRICES; m++)
        for (int i = 0; i < model->lora->groups[m].n_parts; i++)
            n += arch_extents(model, m).n_in + model->lora->groups[m].parts[i].width;
    return model->lora ? (int64_t)(n * model->lora->rank) * model->options->model.layers : 0;
}

/* ---- memory ---- */

/* Returns the columns of a layer's u. */
static size_t width_of(const model_t *model, arch_matrix_t matrix)
{
    return (size_t)model->lora->groups[matrix].n_parts * model->lora->rank;
}

size_t lora_width(const model_t *model)
{
    size_t widest = 0;
    for (arch_matrix_t m = 0; model->lora && m < ARCH_N_MATRICES; m++)
        widest = width_of(model, m) > widest ? width_of(model, m) : widest;
    return widest;
}

size_t lora_largest(const model_t *model)
{
    size_t most = 0;
    for (arch_matrix_t m = 0; model->lora && m < ARCH_N_MATRICES; m++) {
        const arch_extents_t e = arch_extents(model, m);
        const bool has_adapters = model->lora->groups[m].n_parts > 0;
        const size_t n_a = e.n_in * width_of(model, m), n_b = has_adapters ? e.n_out * model->lora->rank : 0;
        most = n_a > most ? n_a : most;
        most = n_b > most ? n_b : most;
    }
    return most;
}

static bool shares_u(const model_t *model, int layer, arch_matrix_t matrix)
{
    return matrix != ARCH_MLP_OUT && options_block_recompute(&model->options->model, layer) == RECOMPUTE_FULL;
}

static void *allocate_u(const model_t *model, activations_t *a, arch_matrix_t matrix)
{
    const arch_sizes_t s = arch_largest_sizes(model);
    const size_t width = width_of(model, matrix);
    return width > 0 ? activations_alloc(a, s.R * width, s.element_bytes) : NULL;
}

static size_t largest_matrix(const model_t *model)
{
    size_t most = 0;
    for (arch_matrix_t m = 0; m < ARCH_N_MATRICES; m++) {
        const arch_extents_t e = arch_extents(model, m);
        most = e.n_in * e.n_out > most ? e.n_in * e.n_out : most;
    }
    return most;
}

void lora_allocate(const model_t *model, activations_t *a)
{
    const arch_sizes_t s = arch_largest_sizes(model);
    bool any_shares = false;
    if (!model->lora)
        return;
    if (model->options->lora.base == BASE_FP8 && !model->fp8)
        model->lora->wide = activations_alloc(a, largest_matrix(model), zero_dtype_size(ZERO_BF16));
    model->lora->du = activations_alloc(a, s.R * lora_width(model), s.element_bytes);
    for (int l = 0; l < model->options->model.layers; l++)
        any_shares |= shares_u(model, l, ARCH_QKV);
    for (arch_matrix_t m = 0; any_shares && m < ARCH_MLP_OUT; m++)
        model->lora->shared[m] = allocate_u(model, a, m);
}

void lora_allocate_layer(const model_t *model, activations_t *a, int layer)
{
    for (arch_matrix_t m = 0; model->lora && m < ARCH_N_MATRICES; m++)
        model->lora->layers[layer][m].u = shares_u(model, layer, m) ? model->lora->shared[m] : allocate_u(model, a, m);
}

/* ---- initial values ---- */

/* SplitMix64 (Steele, Lea, Flood 2014): mixes a counter. */
static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* values[n] uniform in [-bound, bound), by seed, tensor and element alone. */
static void fill_uniform(float *values, size_t n, double bound, uint64_t seed, zero_tensor_t tensor)
{
    const uint64_t golden = UINT64_C(0x9e3779b97f4a7c15), key = mix(mix(seed + golden) + (uint64_t)tensor * golden);
    for (size_t i = 0; i < n; i++)
        values[i] = (float)(((double)(mix(key + (i + 1) * golden) >> 11) * 0x1p-52 - 1.0) * bound);
}

static zero_status_t init_part(const model_t *model, zero_engine_t *engine, arch_matrix_t m, const adapters_t *at,
                               int i, float *values)
{
    const size_t n_in = arch_extents(model, m).n_in, rank = model->lora->rank;
    const size_t width = model->lora->groups[m].parts[i].width;
    fill_uniform(values, rank * n_in, 1.0 / sqrt((double)n_in), (uint64_t)model->options->lora.seed, at->a[i]);
    ZERO_TRY(zero_set_tensor(engine, at->a[i], ZERO_ARRAY_WEIGHT, ZERO_ALL_RANKS, values));
    memset(values, 0, width * rank * sizeof *values);
    return zero_set_tensor(engine, at->b[i], ZERO_ARRAY_WEIGHT, ZERO_ALL_RANKS, values);
}

zero_status_t lora_init(const model_t *model, zero_engine_t *engine)
{
    float *values = malloc(lora_largest(model) * sizeof *values);
    zero_status_t status =
        values ? ZERO_OK : report_rank_error(ZERO_ERROR_MEMORY, "no memory for an adapter's initial values");
    for (int l = 0; l < model->options->model.layers; l++)
        for (arch_matrix_t m = 0; m < ARCH_N_MATRICES; m++)
            for (int i = 0; i < model->lora->groups[m].n_parts && status == ZERO_OK; i++)
                status = init_part(model, engine, m, &model->lora->layers[l][m], i, values);
    free(values);
    return status;
}

/* ---- products ---- */

/* An activation as an operand, from a column on. */
static zero_weight_t columns(const model_t *model, const void *data, size_t first)
{
    const zero_dtype_t dtype = model->kernels->activation_dtype((zero_dtype_t)model->options->train.precision);
    return (zero_weight_t){.data = (const unsigned char *)data + first * zero_dtype_size(dtype), .dtype = dtype};
}

/* The same as a result. */
static zero_grad_t result(const model_t *model, void *data, size_t first, bool accumulate)
{
    const zero_weight_t at = columns(model, data, first);
    return (zero_grad_t){.data = (void *)at.data, .dtype = at.dtype, .accumulate = accumulate};
}

/* Returns the layer's group, or NULL if it has no adapters. */
static const group_t *group_of(const model_t *model, arch_linear_t at)
{
    return model->lora && model->lora->groups[at.matrix].n_parts > 0 ? &model->lora->groups[at.matrix] : NULL;
}

zero_status_t lora_widen(model_t *model, arch_linear_t at, zero_weight_t *weight)
{
    const arch_extents_t e = arch_extents(model, at.matrix);
    *weight = (zero_weight_t){.data = model->lora->wide, .dtype = ZERO_BF16};
    return model->kernels->fp8_widen(&model->ctx, model->lora->wide, model_fp8_weight(model, at.weight),
                                     e.n_in * e.n_out);
}

bool lora_is_on(const model_t *model, arch_linear_t at)
{
    return group_of(model, at) && !preference_is_reference(model);
}

bool lora_writes_output(const model_t *model, arch_linear_t at)
{
    size_t n_left = arch_extents(model, at.matrix).n_out;
    for (int i = 0; lora_is_on(model, at) && i < model->lora->groups[at.matrix].n_parts; i++)
        n_left -= model->lora->groups[at.matrix].parts[i].width;
    return n_left == 0;
}

bool lora_is_fused(const model_t *model, arch_matrix_t matrix, lora_pass_t pass)
{
    const zero_model_kernels_t *k = model->kernels;
    return matrix == (pass == LORA_FORWARD ? ARCH_MLP_IN : ARCH_MLP_OUT) && model->ops->mlp_inputs == 2 &&
           k->fuses_adapters &&
           k->fuses_adapters(&model->ctx, model->lora->rank, arch_extents(model, ARCH_MLP_OUT).n_in);
}

/* Returns what the adapters of the MLP's first matrix add to its columns first .. first + width. */
static zero_low_rank_t added_to(const model_t *model, const adapters_t *adapters, size_t first)
{
    const group_t *group = &model->lora->groups[ARCH_MLP_IN];
    for (int i = 0; i < group->n_parts; i++) {
        const part_t *part = &group->parts[i];
        zero_weight_t b = model_weight(model, adapters->b[i]);
        if (first < part->first || first >= part->first + part->width)
            continue;
        b.data = columns(model, b.data, (first - part->first) * model->lora->rank).data;
        return (zero_low_rank_t){.u = columns(model, adapters->u, (size_t)i * model->lora->rank).data,
                                 .ld = width_of(model, ARCH_MLP_IN),
                                 .b = b};
    }
    return (zero_low_rank_t){.u = NULL};
}

bool lora_gated_adapters(const model_t *model, int layer, lora_pass_t pass, zero_gated_adapters_t *adapters)
{
    const arch_linear_t in = {.layer = layer, .matrix = ARCH_MLP_IN}, out = {.layer = layer, .matrix = ARCH_MLP_OUT};
    *adapters = (zero_gated_adapters_t){0};
    if (lora_is_on(model, in) && lora_is_fused(model, ARCH_MLP_IN, LORA_FORWARD)) {
        const adapters_t *of_in = &model->lora->layers[layer][ARCH_MLP_IN];
        adapters->gate = added_to(model, of_in, 0);
        adapters->up = added_to(model, of_in, arch_extents(model, ARCH_MLP_OUT).n_in);
    }
    if (pass == LORA_BACKWARD && lora_is_on(model, out) && lora_is_fused(model, ARCH_MLP_OUT, LORA_BACKWARD))
        adapters->dy = (zero_low_rank_t){.u = model->lora->du,
                                         .ld = width_of(model, ARCH_MLP_OUT),
                                         .b = model_weight(model, model->lora->layers[layer][ARCH_MLP_OUT].a[0])};
    adapters->rank = model->lora ? model->lora->rank : 0;
    return adapters->gate.u || adapters->up.u || adapters->dy.u;
}

bool lora_take_first_product(model_t *model, arch_matrix_t matrix, lora_pass_t pass)
{
    bool *has_multiplied = &model->lora->has_multiplied[matrix][pass];
    const bool is_first = !*has_multiplied;
    *has_multiplied = true;
    return is_first;
}

zero_status_t lora_forward(model_t *model, arch_linear_t at, void *y, bool accumulate, const void *x, bool casts_x)
{
    const group_t *group = group_of(model, at);
    const zero_model_kernels_t *k = model->kernels;
    const arch_extents_t e = arch_extents(model, at.matrix);
    const adapters_t *adapters = &model->lora->layers[at.layer][at.matrix];
    const size_t rank = model->lora->rank, width = width_of(model, at.matrix);
    const zero_fp8_t x8 = fp8_x(model, at);
    const zero_narrow_product_t u = {
        .n_rows = arch_n_rows(model),
        .n_columns = e.n_in,
        .rank = width,
        .x = x,
        .n_parts = 1,
        .parts = {{.first = 0, .width = e.n_in, .b = model_weight(model, adapters->a[0])}},
        .transposed = true,
        .scale = model->lora->scale,
        .out = adapters->u,
        .x8 = casts_x && model->fp8 ? &x8 : NULL,
        .absmax_is_known = at.x_is_recorded,
    };
    ZERO_TRY(k->narrow_product(&model->ctx, &u));
    for (int i = 0; i < group->n_parts && y; i++) {
        const zero_product_t of_part = {.transpose_b = true,
                                        .m = arch_n_rows(model),
                                        .n = group->parts[i].width,
                                        .k = rank,
                                        .a = columns(model, adapters->u, (size_t)i * rank),
                                        .lda = width,
                                        .b = model_weight(model, adapters->b[i]),
                                        .ldb = rank,
                                        .c = result(model, y, group->parts[i].first, accumulate),
                                        .ldc = e.n_out,
                                        .scale = 1.0f};
        ZERO_TRY(k->product(&model->ctx, &of_part));
    }
    return ZERO_OK;
}

zero_status_t lora_backward_input(model_t *model, arch_linear_t at, void *dx, const void *dy)
{
    const group_t *group = group_of(model, at);
    const zero_model_kernels_t *k = model->kernels;
    const arch_extents_t e = arch_extents(model, at.matrix);
    const adapters_t *adapters = &model->lora->layers[at.layer][at.matrix];
    const size_t width = width_of(model, at.matrix);
    const zero_fp8_t dy8 = fp8_dy(model, at);
    zero_narrow_product_t du = {.n_rows = arch_n_rows(model),
                                .n_columns = e.n_out,
                                .rank = model->lora->rank,
                                .x = dy,
                                .n_parts = group->n_parts,
                                .scale = model->lora->scale,
                                .out = model->lora->du,
                                .u = adapters->u,
                                .x8 = model->fp8 ? &dy8 : NULL,
                                .absmax_is_known = at.dy_is_recorded};
    for (int i = 0; i < group->n_parts; i++)
        du.parts[i] = (zero_narrow_part_t){.first = group->parts[i].first,
                                           .width = group->parts[i].width,
                                           .b = model_weight(model, adapters->b[i]),
                                           .db = model_grad(model, adapters->b[i])};
    ZERO_TRY(k->narrow_product(&model->ctx, &du));
    if (!dx)
        return ZERO_OK;
    const zero_product_t to_input = {.m = arch_n_rows(model),
                                     .n = e.n_in,
                                     .k = width,
                                     .a = columns(model, model->lora->du, 0),
                                     .lda = width,
                                     .b = model_weight(model, adapters->a[0]),
                                     .ldb = e.n_in,
                                     .c = result(model, dx, 0, false),
                                     .ldc = e.n_in,
                                     .scale = 1.0f};
    return k->product(&model->ctx, &to_input);
}

zero_status_t lora_backward_weight(model_t *model, arch_linear_t at, const void *x)
{
    if (!group_of(model, at))
        return ZERO_OK;
    const arch_extents_t e = arch_extents(model, at.matrix);
    const adapters_t *adapters = &model->lora->layers[at.layer][at.matrix];
    const size_t width = width_of(model, at.matrix);
    const zero_product_t da = {.transpose_a = true,
                               .m = width,
                               .n = e.n_in,
                               .k = arch_n_rows(model),
                               .a = columns(model, model->lora->du, 0),
                               .lda = width,
                               .b = columns(model, x, 0),
                               .ldb = e.n_in,
                               .c = model_grad(model, adapters->a[0]),
                               .ldc = e.n_in,
                               .scale = 1.0f};
    return model->kernels->product(&model->ctx, &da);
}
