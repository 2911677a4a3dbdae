/* attention_cudnn.c - causal self-attention by cuDNN's fused kernels.
 *
 * We describe attention to cuDNN as a graph of operations on tensors; cuDNN recognizes it and returns a plan.
 * Forward:   S = scale Q K^T, masked;  P = softmax S, with logsumexp;  O = P V
 * Backward:  P = e^(scale Q K^T - logsumexp), masked;  dV = P^T dO;  dS = scale P (dO V^T - rowsum(dO O));
 *            dK = dS^T Q;  dQ = dS K                            (as in FlashAttention-2, Dao 2023, arXiv:2307.08691)
 * Shared key/value heads: K and V have fewer heads, dK and dV are reduced over the query heads of each.
 *
 * cuDNN's deterministic backward writes dS to memory, 16 bits for each pair of query and key. To bound that, backward
 * runs on a slice of the sequences and heads at a time, each with its own dQ, dK and dV. The last blocks of a slice's
 * kernels leave most of the GPU idle; so slices run side by side in several streams, each with its own workspace.
 *
 * Sequences whose length does not suit cuDNN are padded: copied into the workspace, with zeros behind them. Queries do
 * not see later keys, and a gradient of zero contributes nothing, so what is behind a sequence changes no result.
 *
 * Plans are kept per shape. If a shape has no plan for one of the passes, our own kernels compute both, and the reason
 * is kept.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/model/cuda/attention/attention_cudnn.h"
#include "kernels/model/cuda/cudnn/plan.h"

/* Ids of the tensors in memory. */
enum { ID_Q = 1, ID_K, ID_V, ID_OUT, ID_LSE, ID_DOUT, ID_DQ, ID_DK, ID_DV, ID_DELTA, ID_SCALE, ID_MINUS_INF, ID_ONE };

/* ---- The graphs ---- */

/* The sequences and heads that run at a time, out of a shape's; strides are those of the whole shape. */
typedef struct slice {
    size_t n_batch, n_heads, n_kv_heads;
} slice_t;

/* Extents and strides of a slice's tensors, which are laid out as in model.h. */
typedef struct layouts {
    zero_extents_t q, k, v, out, scores, row; /* row: one number per query */
} layouts_t;

static layouts_t layouts_of(const zero_attention_shape_t *s, slice_t slice)
{
    int64_t b = (int64_t)slice.n_batch, h = (int64_t)slice.n_heads, kv = (int64_t)slice.n_kv_heads;
    int64_t t = (int64_t)s->seq_len, d = (int64_t)s->head_dim, every_head = (int64_t)s->n_heads;
    int64_t width = (every_head + 2 * (int64_t)s->n_kv_heads) * d;
    zero_extents_t q = {{b, h, t, d}, {t * width, d, width, 1}}, k = {{b, kv, t, d}, {t * width, d, width, 1}};
    return (layouts_t){.q = q,
                       .k = k,
                       .v = k,
                       .out = {{b, h, t, d}, {t * every_head * d, d, every_head * d, 1}},
                       .scores = zero_extents_dense(b, h, t, t),
                       .row = {{b, h, t, 1}, {every_head * t, t, 1, 1}}};
}

/* Returns scale q k^T, minus `row` if it is not NULL, with -infinity for keys that come after the query. */
static zero_descriptor_t masked_scores(zero_cudnn_graph_t *g, const layouts_t *l, zero_descriptor_t q,
                                       zero_descriptor_t k, zero_descriptor_t row)
{
    zero_descriptor_t products = zero_graph_between(g, CUDNN_DATA_FLOAT, l->scores);
    zero_graph_matmul(g, q, k, products);
    zero_descriptor_t scores =
        zero_graph_computed(g, CUDNN_POINTWISE_MUL, l->scores, products, zero_graph_scalar(g, ID_SCALE));
    if (row != NULL)
        scores = zero_graph_computed(g, CUDNN_POINTWISE_SUB, l->scores, scores, row);
    zero_descriptor_t query = zero_graph_between(g, CUDNN_DATA_INT32, l->scores),
                      key = zero_graph_between(g, CUDNN_DATA_INT32, l->scores);
    zero_descriptor_t seen = zero_graph_between(g, CUDNN_DATA_BOOLEAN, l->scores),
                      masked = zero_graph_between(g, CUDNN_DATA_FLOAT, l->scores);
    zero_graph_pointwise(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, 2, query, scores, NULL, NULL);
    zero_graph_pointwise(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, 3, key, scores, NULL, NULL);
    zero_graph_pointwise(g, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, -1, seen, query, key, NULL);
    zero_graph_pointwise(g, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, -1, masked, scores,
                         zero_graph_scalar(g, ID_MINUS_INF), seen);
    return masked;
}

static void forward_graph(zero_cudnn_graph_t *g, const zero_attention_shape_t *s, slice_t slice)
{
    layouts_t l = layouts_of(s, slice);
    zero_descriptor_t q = zero_graph_stored(g, ID_Q, l.q), k = zero_graph_stored(g, ID_K, zero_extents_transposed(l.k)),
                      v = zero_graph_stored(g, ID_V, l.v);
    zero_descriptor_t scores = masked_scores(g, &l, q, k, NULL);
    zero_descriptor_t max = zero_graph_between(g, CUDNN_DATA_FLOAT, l.row),
                      sum = zero_graph_between(g, CUDNN_DATA_FLOAT, l.row),
                      probs = zero_graph_between(g, g->dtype, l.scores);
    zero_descriptor_t lse = zero_graph_stored_fp32(g, ID_LSE, l.row);
    zero_graph_reduce(g, CUDNN_REDUCE_TENSOR_MAX, max, scores);
    zero_descriptor_t shifted = zero_graph_computed(g, CUDNN_POINTWISE_SUB, l.scores, scores, max);
    zero_descriptor_t exponentials = zero_graph_computed(g, CUDNN_POINTWISE_EXP, l.scores, shifted, NULL);
    zero_graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, sum, exponentials);
    zero_descriptor_t log_sum = zero_graph_computed(g, CUDNN_POINTWISE_LOG, l.row, sum, NULL);
    zero_graph_pointwise(g, CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, -1, lse, max, log_sum, NULL);
    zero_graph_pointwise(g, CUDNN_POINTWISE_DIV, CUDNN_DATA_FLOAT, -1, probs, exponentials, sum, NULL);
    zero_graph_matmul(g, probs, v, zero_graph_stored(g, ID_OUT, l.out));
}

/* Adds gradient = weights^T x, summed over the query heads that share a key/value head. */
static void key_gradient(zero_cudnn_graph_t *g, const layouts_t *l, slice_t slice, zero_descriptor_t weights,
                         zero_descriptor_t x, zero_descriptor_t gradient)
{
    zero_descriptor_t flipped = zero_graph_reshaped(g, weights, zero_extents_transposed(l->scores));
    if (slice.n_heads == slice.n_kv_heads) {
        zero_graph_matmul(g, flipped, x, gradient);
        return;
    }
    const int64_t *dims = l->q.dims;
    zero_descriptor_t every_head =
        zero_graph_between(g, g->dtype, zero_extents_dense(dims[0], dims[1], dims[2], dims[3]));
    zero_graph_matmul(g, flipped, x, every_head);
    zero_graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, gradient, every_head);
}

static void backward_graph(zero_cudnn_graph_t *g, const zero_attention_shape_t *s, slice_t slice)
{
    layouts_t l = layouts_of(s, slice);
    zero_descriptor_t q = zero_graph_stored(g, ID_Q, l.q), k = zero_graph_stored(g, ID_K, zero_extents_transposed(l.k));
    zero_descriptor_t v = zero_graph_stored(g, ID_V, zero_extents_transposed(l.v)),
                      out = zero_graph_stored(g, ID_OUT, l.out);
    zero_descriptor_t dout = zero_graph_stored(g, ID_DOUT, l.out), lse = zero_graph_stored_fp32(g, ID_LSE, l.row);

    /* delta = rowsum(dO O). cuDNN wants it in memory, and multiplied by something. */
    zero_descriptor_t products = zero_graph_between(
        g, CUDNN_DATA_FLOAT, zero_extents_dense(l.out.dims[0], l.out.dims[1], l.out.dims[2], l.out.dims[3]));
    zero_descriptor_t sums = zero_graph_between(g, CUDNN_DATA_FLOAT, l.row),
                      delta = zero_graph_stored_fp32(g, ID_DELTA, l.row);
    zero_graph_pointwise(g, CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, -1, products, dout, out, NULL);
    zero_graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, sums, products);
    zero_graph_pointwise(g, CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, -1, delta, sums, zero_graph_scalar(g, ID_ONE), NULL);

    zero_descriptor_t probs =
        zero_graph_computed(g, CUDNN_POINTWISE_EXP, l.scores, masked_scores(g, &l, q, k, lse), NULL);
    key_gradient(g, &l, slice, probs, dout, zero_graph_stored(g, ID_DV, l.v));

    zero_descriptor_t dprobs = zero_graph_between(g, CUDNN_DATA_FLOAT, l.scores);
    zero_graph_matmul(g, dout, v, dprobs);
    zero_descriptor_t centered = zero_graph_computed(g, CUDNN_POINTWISE_SUB, l.scores, dprobs, delta);
    zero_descriptor_t unscaled = zero_graph_computed(g, CUDNN_POINTWISE_MUL, l.scores, centered, probs);
    zero_descriptor_t dscores =
        zero_graph_computed(g, CUDNN_POINTWISE_MUL, l.scores, unscaled, zero_graph_scalar(g, ID_SCALE));
    key_gradient(g, &l, slice, dscores, q, zero_graph_stored(g, ID_DK, l.k));
    zero_graph_matmul(g, dscores, zero_graph_reshaped(g, k, l.k), zero_graph_stored(g, ID_DQ, l.q));
}
/* ---- Plans ---- */

typedef void (*graph_fn)(zero_cudnn_graph_t *g, const zero_attention_shape_t *s, slice_t slice);

/* One of the two passes, for which plans are made. */
typedef struct pass {
    const char *name;
    graph_fn build;
} pass_t;
static const pass_t FORWARD = {"forward", forward_graph}, BACKWARD = {"backward", backward_graph};

#define MAX_SHAPES 16
/* Streams in which slices run side by side. */
#define N_LANES 4

/* How backward is cut. */
typedef struct slices {
    slice_t slice;
    size_t n_lanes, bytes; /* bytes: of one lane's workspace */
} slices_t;

typedef struct shape_plans {
    zero_attention_shape_t shape; /* padded */
    size_t n_copied;              /* bytes of the padded copies; 0: calls have this shape */
    bool served;
    char why[ZERO_MODEL_WHY]; /* if it is not served */
    slices_t slices;          /* of backward; forward runs on the whole shape */
    zero_cudnn_plan_t forward, backward;
} shape_plans_t;

/* A stream for slices, and the event behind the last of them. */
typedef struct lane {
    cudaStream_t stream;
    cudaEvent_t done;
} lane_t;

struct zero_cudnn {
    cudnnHandle_t handle;
    cudaEvent_t ready; /* in the context's stream: what slices read is there */
    lane_t lanes[N_LANES];
    size_t n_shapes;
    shape_plans_t shapes[MAX_SHAPES];
};

/* Lanes have the priority of the context's stream. */
static zero_status_t create_lanes(zero_cudnn_t *cudnn, cudaStream_t stream)
{
    int priority;
    ZERO_TRY_CUDA(cudaStreamGetPriority(stream, &priority));
    ZERO_TRY_CUDA(cudaEventCreateWithFlags(&cudnn->ready, cudaEventDisableTiming));
    for (size_t i = 0; i < N_LANES; ++i) {
        ZERO_TRY_CUDA(cudaStreamCreateWithPriority(&cudnn->lanes[i].stream, cudaStreamNonBlocking, priority));
        ZERO_TRY_CUDA(cudaEventCreateWithFlags(&cudnn->lanes[i].done, cudaEventDisableTiming));
    }
    return ZERO_OK;
}

zero_status_t zero_cudnn_create(zero_model_context_t *ctx, zero_cudnn_t **cudnn)
{
    zero_cudnn_t *created = calloc(1, sizeof *created);
    if (created == NULL)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for cuDNN's plans");
    zero_status_t status = zero_cudnn_check(cudnnCreate(&created->handle), "cudnnCreate");
    if (status == ZERO_OK)
        status = zero_cudnn_check(cudnnSetStream(created->handle, zero_model_stream(ctx)), "cudnnSetStream");
    if (status == ZERO_OK)
        status = create_lanes(created, zero_model_stream(ctx));
    if (status != ZERO_OK) {
        zero_cudnn_destroy(created);
        return status;
    }
    *cudnn = created;
    return ZERO_OK;
}

void zero_cudnn_destroy(zero_cudnn_t *cudnn)
{
    if (cudnn == NULL)
        return;
    for (size_t i = 0; i < cudnn->n_shapes; ++i) {
        zero_graph_release(&cudnn->shapes[i].forward.graph);
        zero_graph_release(&cudnn->shapes[i].backward.graph);
    }
    if (cudnn->handle != NULL)
        cudnnDestroy(cudnn->handle);
    for (size_t i = 0; i < N_LANES; ++i) {
        if (cudnn->lanes[i].done != NULL)
            cudaEventDestroy(cudnn->lanes[i].done);
        if (cudnn->lanes[i].stream != NULL)
            cudaStreamDestroy(cudnn->lanes[i].stream);
    }
    if (cudnn->ready != NULL)
        cudaEventDestroy(cudnn->ready);
    free(cudnn);
}

/* ---- Slices and workspace ---- */

/* The most that slices side by side take together, unless one key/value head with its query heads takes more.
 *
 * Measured on an H200, deterministic backward in ms (2026-11-23, cuDNN 9.14); GB: what the slices at work take.
 *
 *                                          one after another           side by side
 *     2 x 4096, 32/8 heads of 128    2.08 (0.6 GB), 1.60 (2.3)   1.73 (2 of 0.3 GB), 1.57 (2 of 0.6)
 *     1 x 8192, 32/8 heads of 128    4.58 (0.6 GB), 2.97 (4.4)   3.12 (2 of 0.6 GB), 2.96 (3 of 0.6)
 *     4 x 4096, 32/8 heads of 64     3.14 (0.6 GB), 2.28 (4.4)   2.34 (2 of 0.6 GB)
 *     16 x 1024, 25 heads of 64      0.66 (0.4 GB), 0.62 (0.8)   0.61 (2 of 0.4 GB), 0.65 (4 of 0.1)
 *
 * With the same memory two slices at a time are as fast as four smaller ones, or faster. */
#define SLICES_MAX_BYTES ((size_t)1600 << 20)
/* For each lane, more than cuDNN needs beside what slice_bytes counts. */
#define OWN_BYTES ((size_t)4 << 20)

static size_t delta_bytes(const zero_attention_shape_t *s)
{
    return zero_scratch_bytes(s->n_batch * s->n_heads * s->seq_len * sizeof(float));
}

/* Returns what a slice stores: dS and, for key/value heads that are shared, dK and dV of every query head. */
static size_t slice_bytes(const zero_attention_shape_t *s, slice_t slice)
{
    size_t columns = s->seq_len + (s->n_heads > s->n_kv_heads ? 2 * s->head_dim : 0);
    return slice.n_batch * slice.n_heads * s->seq_len * columns * sizeof(uint16_t);
}

/* Returns the largest divisor of n that is at most `most`, and at least 1. */
static size_t divisor_up_to(size_t n, size_t most)
{
    size_t divisor = most < n ? most : n;
    while (divisor > 1 && n % divisor != 0)
        --divisor;
    return divisor > 0 ? divisor : 1;
}

/* Returns the largest slice within `most` bytes, or the smallest: whole sequences, or else some key/value heads of one,
 * each with its query heads. All slices are equal, so that one plan serves them all. */
static slice_t slice_within(const zero_attention_shape_t *s, size_t most)
{
    slice_t slice = {1, s->n_heads, s->n_kv_heads};
    size_t sequence = slice_bytes(s, slice);
    if (sequence <= most) {
        slice.n_batch = divisor_up_to(s->n_batch, most / sequence);
        return slice;
    }
    slice.n_kv_heads = divisor_up_to(s->n_kv_heads, most / (sequence / s->n_kv_heads));
    slice.n_heads = s->n_heads / s->n_kv_heads * slice.n_kv_heads;
    return slice;
}

/* Returns how `bytes` are used best. What fits at once is one slice, which stays in the context's stream. Else several
 * lanes, as many sequences and heads at a time as fit, in few slices. */
static slices_t slices_within(const zero_attention_shape_t *s, size_t bytes)
{
    size_t whole = slice_bytes(s, (slice_t){s->n_batch, s->n_heads, s->n_kv_heads}), most_used = 0;
    size_t most = bytes > N_LANES * OWN_BYTES ? bytes - N_LANES * OWN_BYTES : 0;
    most = most < whole ? most : whole;
    slices_t best = {slice_within(s, most), 1, 0};
    for (size_t n_lanes = 2; n_lanes <= N_LANES && most < whole; ++n_lanes) {
        slice_t slice = slice_within(s, most / n_lanes);
        size_t n_slices = s->n_batch / slice.n_batch * (s->n_heads / slice.n_heads);
        size_t used = n_lanes * slice_bytes(s, slice);
        if (used > most || used <= most_used || n_slices < n_lanes)
            continue;
        best = (slices_t){slice, n_lanes, 0};
        most_used = used;
    }
    best.bytes = zero_scratch_bytes(slice_bytes(s, best.slice)) + OWN_BYTES;
    return best;
}

/* Sequences that are no multiple of this are padded: some versions of cuDNN mask them wrongly (9.15 and before,
 * backward). */
#define POSITIONS ((size_t)128)

static zero_attention_shape_t padded(zero_attention_shape_t s)
{
    s.seq_len = (s.seq_len + POSITIONS - 1) / POSITIONS * POSITIONS;
    return s;
}

static size_t width(const zero_attention_shape_t *s)
{
    return (s->n_heads + 2 * s->n_kv_heads) * s->head_dim;
}

/* The padded copies of a call's tensors, in the workspace. */
typedef struct copies {
    void *qkv, *out, *dout, *dqkv;
    float *lse;
} copies_t;

/* Returns the workspace of all copies; p is s padded. */
static size_t copies_bytes(const zero_attention_shape_t *s, const zero_attention_shape_t *p)
{
    if (s->seq_len == p->seq_len)
        return 0;
    size_t rows = p->n_batch * p->seq_len;
    return 2 * zero_scratch_bytes(rows * width(p) * sizeof(uint16_t)) +
           2 * zero_scratch_bytes(rows * p->n_heads * p->head_dim * sizeof(uint16_t)) +
           zero_scratch_bytes(rows * p->n_heads * sizeof(float));
}

/* The largest shape takes all of it. Smaller ones are cut into slices for which it is enough. */
size_t zero_cudnn_workspace(const zero_model_limits_t *limits)
{
    size_t n_kv_heads = limits->n_kv_heads > 0 ? limits->n_kv_heads : limits->n_heads;
    zero_attention_shape_t s = {limits->n_rows / limits->seq_len, limits->seq_len, limits->n_heads, n_kv_heads,
                                limits->head_dim};
    zero_attention_shape_t p = padded(s);
    if (!zero_cudnn_may_serve(limits->dtype, &s, NULL))
        return 0;
    slices_t slices = slices_within(&p, SLICES_MAX_BYTES);
    return copies_bytes(&s, &p) + delta_bytes(&p) + slices.n_lanes * slices.bytes + N_LANES * OWN_BYTES;
}

/* ---- Plans of a shape ---- */

static bool plan_create(zero_cudnn_plan_t *plan, const zero_model_context_t *ctx, pass_t pass,
                        const zero_attention_shape_t *shape, slice_t slice, size_t most_bytes, char why[ZERO_MODEL_WHY])
{
    const zero_model_cuda_t *cuda = zero_model_cuda(ctx);
    plan->graph =
        zero_graph_begin(cuda->cudnn->handle, cuda->dtype == ZERO_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF);
    pass.build(&plan->graph, shape, slice);
    if (zero_cudnn_plan_create(plan, pass.name, most_bytes, why))
        return true;
    zero_log(ZERO_LOG_DEBUG, "no plan for attention of %zu heads of %zu at %zu positions: %s", shape->n_heads,
             shape->head_dim, shape->seq_len, why);
    return false;
}

/* beside: what else the workspace is for. */
static void build_plans(zero_model_context_t *ctx, shape_plans_t *plans, size_t beside)
{
    const zero_attention_shape_t *s = &plans->shape;
    slice_t whole = {s->n_batch, s->n_heads, s->n_kv_heads};
    size_t bytes = zero_cuda_scratch(ctx).bytes_left;
    if (beside > bytes) {
        snprintf(plans->why, sizeof plans->why, "the workspace of %zu bytes is for smaller sizes", bytes);
        return;
    }
    bytes -= beside;
    plans->slices = slices_within(s, bytes < SLICES_MAX_BYTES ? bytes : SLICES_MAX_BYTES);
    if (!plan_create(&plans->forward, ctx, FORWARD, s, whole, bytes, plans->why))
        return;
    plans->served =
        plan_create(&plans->backward, ctx, BACKWARD, s, plans->slices.slice, bytes / plans->slices.n_lanes, plans->why);
    if (!plans->served)
        zero_graph_release(&plans->forward.graph);
    zero_log(ZERO_LOG_DEBUG, "cuDNN attention: %s, workspace %zu and %zu x %zu bytes for slices of %zu x %zu",
             plans->served ? "served" : "not served", plans->forward.workspace_bytes, plans->slices.n_lanes,
             plans->backward.workspace_bytes, plans->slices.slice.n_batch, plans->slices.slice.n_heads);
}

/* Returns the plans of a shape, built on its first use. NULL if the table is full or cuDNN does not take the shape. */
static shape_plans_t *find_plans(zero_model_context_t *ctx, const zero_attention_shape_t *shape)
{
    zero_cudnn_t *cudnn = zero_model_cuda(ctx)->cudnn;
    const zero_attention_shape_t p = padded(*shape);
    const size_t n_copied = copies_bytes(shape, &p);
    for (size_t i = 0; i < cudnn->n_shapes; ++i) {
        const zero_attention_shape_t *s = &cudnn->shapes[i].shape;
        if (s->n_batch == p.n_batch && s->seq_len == p.seq_len && s->n_heads == p.n_heads &&
            s->n_kv_heads == p.n_kv_heads && s->head_dim == p.head_dim && cudnn->shapes[i].n_copied == n_copied)
            return &cudnn->shapes[i];
    }
    if (cudnn->n_shapes == MAX_SHAPES || !zero_cudnn_may_serve(zero_model_cuda(ctx)->dtype, shape, NULL))
        return NULL;
    shape_plans_t *plans = &cudnn->shapes[cudnn->n_shapes++];
    plans->shape = p;
    plans->n_copied = n_copied;
    build_plans(ctx, plans, delta_bytes(&p) + n_copied);
    return plans;
}

bool zero_cudnn_serves(zero_model_context_t *ctx, const zero_attention_shape_t *shape, char why[ZERO_MODEL_WHY])
{
    const shape_plans_t *plans = find_plans(ctx, shape);
    if (plans != NULL && plans->served)
        return true;
    if (why != NULL && plans != NULL)
        snprintf(why, ZERO_MODEL_WHY, "%s", plans->why);
    else if (why != NULL && zero_cudnn_may_serve(zero_model_cuda(ctx)->dtype, shape, why))
        snprintf(why, ZERO_MODEL_WHY, "cuDNN's plans are kept for %d shapes, and this run has had as many", MAX_SHAPES);
    return false;
}

/* ---- Padding ---- */

/* `n` sequences of `length` bytes each, `padded` bytes apart in the copy. */
typedef struct sequences {
    size_t n, length, padded;
} sequences_t;

static sequences_t sequences_of(const zero_attention_shape_t *s, const zero_attention_shape_t *p, size_t row_bytes)
{
    return (sequences_t){s->n_batch, s->seq_len * row_bytes, p->seq_len * row_bytes};
}

/* One number per query and head. */
static sequences_t rows_of(const zero_attention_shape_t *s, const zero_attention_shape_t *p)
{
    return (sequences_t){s->n_batch * s->n_heads, s->seq_len * sizeof(float), p->seq_len * sizeof(float)};
}

/* Takes the copy's memory and copies, with zeros behind each sequence. */
static zero_status_t pad(cudaStream_t stream, zero_scratch_t *scratch, sequences_t q, const void *data, void *copy)
{
    char *at;
    ZERO_TRY(zero_scratch_take(scratch, q.n * q.padded, &at));
    memcpy(copy, &at, sizeof at);
    ZERO_TRY_CUDA(cudaMemcpy2DAsync(at, q.padded, data, q.length, q.length, q.n, cudaMemcpyDeviceToDevice, stream));
    ZERO_TRY_CUDA(cudaMemset2DAsync(at + q.length, q.padded, 0, q.padded - q.length, q.n, stream));
    return ZERO_OK;
}

static zero_status_t unpad(cudaStream_t stream, sequences_t q, void *data, const void *copy)
{
    ZERO_TRY_CUDA(cudaMemcpy2DAsync(data, q.length, copy, q.padded, q.length, q.n, cudaMemcpyDeviceToDevice, stream));
    return ZERO_OK;
}

/* ---- Forward ---- */

/* Returns the address of element `index` of a tensor of the context's dtype. */
static void *element(const zero_model_context_t *ctx, const void *data, size_t index)
{
    return (char *)data + index * zero_dtype_size(zero_model_cuda(ctx)->dtype);
}

/* Binds q, k and v in qkv, or their gradients in dqkv, from query head `head` of sequence `batch` on. */
static void bind_qkv(const zero_model_context_t *ctx, zero_bindings_t *b, const zero_attention_shape_t *s,
                     int64_t first_id, const void *qkv, size_t batch, size_t head)
{
    size_t start = batch * s->seq_len * width(s), kv = head / (s->n_heads / s->n_kv_heads);
    zero_bind(b, first_id, element(ctx, qkv, start + head * s->head_dim));
    zero_bind(b, first_id + 1, element(ctx, qkv, start + (s->n_heads + kv) * s->head_dim));
    zero_bind(b, first_id + 2, element(ctx, qkv, start + (s->n_heads + s->n_kv_heads + kv) * s->head_dim));
}

/* Of a padded shape. */
static zero_status_t forward(zero_model_context_t *ctx, const shape_plans_t *plans, void *out, float *logsumexp,
                             const void *qkv, void *workspace)
{
    float scale = 1.0f / sqrtf((float)plans->shape.head_dim), minus_inf = -INFINITY;
    zero_bindings_t b = {.n = 0};
    bind_qkv(ctx, &b, &plans->shape, ID_Q, qkv, 0, 0);
    zero_bind(&b, ID_OUT, out);
    zero_bind(&b, ID_LSE, logsumexp);
    zero_bind(&b, ID_SCALE, &scale);
    zero_bind(&b, ID_MINUS_INF, &minus_inf);
    return zero_cudnn_plan_execute(&plans->forward, &b, workspace);
}

zero_status_t zero_cudnn_attention(zero_model_context_t *ctx, const zero_attention_shape_t *s, void *out,
                                   float *logsumexp, const void *qkv)
{
    const shape_plans_t *plans = find_plans(ctx, s);
    const zero_attention_shape_t *p = &plans->shape;
    zero_scratch_t scratch = zero_cuda_scratch(ctx);
    cudaStream_t stream = zero_model_stream(ctx);
    size_t size = zero_dtype_size(zero_model_cuda(ctx)->dtype);
    copies_t c;
    if (p->seq_len == s->seq_len)
        return forward(ctx, plans, out, logsumexp, qkv, scratch.next);
    sequences_t outs = sequences_of(s, p, s->n_heads * s->head_dim * size), rows = rows_of(s, p);
    ZERO_TRY(pad(stream, &scratch, sequences_of(s, p, width(s) * size), qkv, &c.qkv));
    ZERO_TRY(zero_scratch_take(&scratch, outs.n * outs.padded, &c.out));
    ZERO_TRY(zero_scratch_take(&scratch, rows.n * rows.padded, &c.lse));
    ZERO_TRY(forward(ctx, plans, c.out, c.lse, c.qkv, scratch.next));
    ZERO_TRY(unpad(stream, outs, out, c.out));
    return unpad(stream, rows, logsumexp, c.lse);
}

/* ---- Backward ---- */

/* The tensors of backward. */
typedef struct backward {
    void *dqkv;
    const void *dout, *qkv, *out;
    const float *logsumexp;
    float *delta;
} backward_t;

static zero_status_t backward_slice(zero_model_context_t *ctx, const shape_plans_t *plans, const backward_t *t,
                                    size_t batch, size_t head, void *workspace)
{
    const zero_attention_shape_t *s = &plans->shape;
    float scale = 1.0f / sqrtf((float)s->head_dim), minus_inf = -INFINITY, one = 1.0f;
    size_t out_at = (batch * s->seq_len * s->n_heads + head) * s->head_dim;
    size_t row_at = (batch * s->n_heads + head) * s->seq_len;
    zero_bindings_t b = {.n = 0};
    bind_qkv(ctx, &b, s, ID_Q, t->qkv, batch, head);
    bind_qkv(ctx, &b, s, ID_DQ, t->dqkv, batch, head);
    zero_bind(&b, ID_OUT, element(ctx, t->out, out_at));
    zero_bind(&b, ID_DOUT, element(ctx, t->dout, out_at));
    zero_bind(&b, ID_LSE, t->logsumexp + row_at);
    zero_bind(&b, ID_DELTA, t->delta + row_at);
    zero_bind(&b, ID_SCALE, &scale);
    zero_bind(&b, ID_MINUS_INF, &minus_inf);
    zero_bind(&b, ID_ONE, &one);
    return zero_cudnn_plan_execute(&plans->backward, &b, workspace);
}

/* Queues the slices in the lanes in turn. */
static zero_status_t run_slices(zero_model_context_t *ctx, const shape_plans_t *plans, const backward_t *t,
                                char *workspace)
{
    zero_cudnn_t *cudnn = zero_model_cuda(ctx)->cudnn;
    const zero_attention_shape_t *s = &plans->shape;
    const slices_t *slices = &plans->slices;
    size_t next = 0;
    for (size_t batch = 0; batch < s->n_batch; batch += slices->slice.n_batch)
        for (size_t head = 0; head < s->n_heads; head += slices->slice.n_heads, next = (next + 1) % slices->n_lanes) {
            ZERO_TRY(zero_cudnn_check(cudnnSetStream(cudnn->handle, cudnn->lanes[next].stream), "cudnnSetStream"));
            ZERO_TRY(backward_slice(ctx, plans, t, batch, head, workspace + next * slices->bytes));
        }
    return ZERO_OK;
}

/* Runs all slices between what is in the context's stream now and what comes later. A slice that is alone is in that
 * stream itself. */
static zero_status_t backward(zero_model_context_t *ctx, const shape_plans_t *plans, const backward_t *t,
                              char *workspace)
{
    zero_cudnn_t *cudnn = zero_model_cuda(ctx)->cudnn;
    cudaStream_t stream = zero_model_stream(ctx);
    const size_t n_lanes = plans->slices.n_lanes;
    if (n_lanes == 1 && plans->slices.slice.n_batch == plans->shape.n_batch &&
        plans->slices.slice.n_heads == plans->shape.n_heads)
        return backward_slice(ctx, plans, t, 0, 0, workspace);
    ZERO_TRY_CUDA(cudaEventRecord(cudnn->ready, stream));
    for (size_t i = 0; i < n_lanes; ++i)
        ZERO_TRY_CUDA(cudaStreamWaitEvent(cudnn->lanes[i].stream, cudnn->ready, 0));
    zero_status_t status = run_slices(ctx, plans, t, workspace);
    for (size_t i = 0; i < n_lanes; ++i) {
        ZERO_TRY_CUDA(cudaEventRecord(cudnn->lanes[i].done, cudnn->lanes[i].stream));
        ZERO_TRY_CUDA(cudaStreamWaitEvent(stream, cudnn->lanes[i].done, 0));
    }
    ZERO_TRY(zero_cudnn_check(cudnnSetStream(cudnn->handle, stream), "cudnnSetStream"));
    return status;
}

zero_status_t zero_cudnn_attention_backward(zero_model_context_t *ctx, const zero_attention_shape_t *s, void *dqkv,
                                            const void *dout, const void *qkv, const void *out, const float *logsumexp)
{
    const shape_plans_t *plans = find_plans(ctx, s);
    const zero_attention_shape_t *p = &plans->shape;
    zero_scratch_t scratch = zero_cuda_scratch(ctx);
    cudaStream_t stream = zero_model_stream(ctx);
    size_t size = zero_dtype_size(zero_model_cuda(ctx)->dtype);
    backward_t t = {.dqkv = dqkv, .dout = dout, .qkv = qkv, .out = out, .logsumexp = logsumexp};
    copies_t c;
    ZERO_TRY(zero_scratch_take(&scratch, delta_bytes(p), &t.delta));
    if (p->seq_len == s->seq_len)
        return backward(ctx, plans, &t, scratch.next);
    sequences_t qkvs = sequences_of(s, p, width(s) * size), rows = rows_of(s, p);
    sequences_t outs = sequences_of(s, p, s->n_heads * s->head_dim * size);
    ZERO_TRY(pad(stream, &scratch, qkvs, qkv, &c.qkv));
    ZERO_TRY(pad(stream, &scratch, outs, out, &c.out));
    ZERO_TRY(pad(stream, &scratch, outs, dout, &c.dout));
    ZERO_TRY(pad(stream, &scratch, rows, logsumexp, &c.lse));
    ZERO_TRY(zero_scratch_take(&scratch, qkvs.n * qkvs.padded, &c.dqkv));
    t = (backward_t){c.dqkv, c.dout, c.qkv, c.out, c.lse, t.delta};
    ZERO_TRY(backward(ctx, plans, &t, scratch.next));
    return unpad(stream, qkvs, dqkv, c.dqkv);
}
