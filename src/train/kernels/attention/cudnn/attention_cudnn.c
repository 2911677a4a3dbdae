/* attention_cudnn.c - causal self-attention by cuDNN's fused kernels: plans of graphs, and their execution.
 *
 * We describe attention to cuDNN as a graph of operations on tensors (attention_cudnn.h); cuDNN recognizes it and
 * returns a plan. Backward runs in slices, and sequences of some lengths are padded (attention_cudnn.h).
 *
 * Plans are kept per shape. If a shape has no plan for one of the passes, our own kernels compute both, and the reason
 * is kept.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "train/kernels/attention/backend.h"
#include "train/kernels/attention/cudnn/attention_cudnn.h"
#include "train/kernels/attention/cudnn/cudnn_graph.h"

/* ---- Plans ---- */

typedef void (*graph_fn)(zero_cudnn_graph_t *g, const zero_attention_shape_t *s, zero_attention_slice_t slice);

/* One of the two passes, for which plans are made. */
typedef struct pass {
    const char *name;
    graph_fn build;
} pass_t;
static const pass_t FORWARD = {"forward", zero_attention_forward_graph},
                    BACKWARD = {"backward", zero_attention_backward_graph};

#define MAX_SHAPES 16

typedef struct shape_plans {
    zero_attention_shape_t shape; /* padded */
    size_t n_copied;              /* bytes of the padded copies; 0: calls have this shape */
    bool served;
    char why[ZERO_MODEL_WHY];       /* if it is not served */
    zero_attention_slices_t slices; /* of backward; forward runs on the whole shape */
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
    lane_t lanes[ZERO_ATTENTION_LANES];
    size_t n_shapes;
    shape_plans_t shapes[MAX_SHAPES];
};

/* Lanes have the priority of the context's stream. */
static zero_status_t create_lanes(zero_cudnn_t *cudnn, cudaStream_t stream)
{
    int priority;
    ZERO_TRY_CUDA(cudaStreamGetPriority(stream, &priority));
    ZERO_TRY_CUDA(cudaEventCreateWithFlags(&cudnn->ready, cudaEventDisableTiming));
    for (size_t i = 0; i < ZERO_ATTENTION_LANES; ++i) {
        ZERO_TRY_CUDA(cudaStreamCreateWithPriority(&cudnn->lanes[i].stream, cudaStreamNonBlocking, priority));
        ZERO_TRY_CUDA(cudaEventCreateWithFlags(&cudnn->lanes[i].done, cudaEventDisableTiming));
    }
    return ZERO_OK;
}

static void destroy_cudnn(zero_cudnn_t *cudnn)
{
    if (cudnn == NULL)
        return;
    for (size_t i = 0; i < cudnn->n_shapes; ++i) {
        zero_graph_release(&cudnn->shapes[i].forward.graph);
        zero_graph_release(&cudnn->shapes[i].backward.graph);
    }
    if (cudnn->handle != NULL)
        cudnnDestroy(cudnn->handle);
    for (size_t i = 0; i < ZERO_ATTENTION_LANES; ++i) {
        if (cudnn->lanes[i].done != NULL)
            cudaEventDestroy(cudnn->lanes[i].done);
        if (cudnn->lanes[i].stream != NULL)
            cudaStreamDestroy(cudnn->lanes[i].stream);
    }
    if (cudnn->ready != NULL)
        cudaEventDestroy(cudnn->ready);
    free(cudnn);
}

static zero_status_t create(zero_model_context_t *ctx)
{
    if (zero_model_cuda(ctx)->dtype == ZERO_FP32)
        return ZERO_OK;
    zero_cudnn_t *created = calloc(1, sizeof *created);
    if (created == NULL)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for cuDNN's plans");
    zero_status_t status = zero_cudnn_check(cudnnCreate(&created->handle), "cudnnCreate");
    if (status == ZERO_OK)
        status = zero_cudnn_check(cudnnSetStream(created->handle, zero_model_stream(ctx)), "cudnnSetStream");
    if (status == ZERO_OK)
        status = create_lanes(created, zero_model_stream(ctx));
    if (status != ZERO_OK) {
        destroy_cudnn(created);
        return status;
    }
    zero_model_cuda(ctx)->cudnn = created;
    return ZERO_OK;
}

static void destroy(zero_model_context_t *ctx)
{
    destroy_cudnn(zero_model_cuda(ctx)->cudnn);
}

/* ---- Plans of a shape ---- */

static bool plan_create(zero_cudnn_plan_t *plan, const zero_model_context_t *ctx, pass_t pass,
                        const zero_attention_shape_t *shape, zero_attention_slice_t slice, size_t most_bytes,
                        char why[ZERO_MODEL_WHY])
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

/* reserved: the bytes of the workspace that others use. */
static void build_plans(zero_model_context_t *ctx, shape_plans_t *plans, size_t reserved)
{
    const zero_attention_shape_t *s = &plans->shape;
    zero_attention_slice_t whole = {s->n_batch, s->n_heads, s->n_kv_heads};
    size_t bytes = zero_cuda_scratch(ctx).bytes_left;
    if (reserved > bytes) {
        snprintf(plans->why, sizeof plans->why, "the workspace of %zu bytes is for smaller sizes", bytes);
        return;
    }
    bytes -= reserved;
    if (!plan_create(&plans->forward, ctx, FORWARD, s, whole, bytes, plans->why))
        return;
    plans->slices = zero_attention_slices_within(
        s, bytes < ZERO_ATTENTION_SLICES_MAX_BYTES ? bytes : ZERO_ATTENTION_SLICES_MAX_BYTES);
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
    const zero_attention_shape_t p = zero_attention_padded(*shape);
    const size_t n_copied = zero_attention_copies_bytes(shape, &p);
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
    build_plans(ctx, plans, zero_attention_delta_bytes(&p) + n_copied);
    return plans;
}

/* Returns whether cuDNN can compute this shape here, both passes, deterministically and within the workspace. The
 * answer for a shape never changes. May build the shape's plans. */
static bool serves(zero_model_context_t *ctx, const zero_attention_shape_t *shape, char why[ZERO_MODEL_WHY])
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

/* The padded copies of a call's tensors, in the workspace. */
typedef struct copies {
    void *qkv, *out, *dout, *dqkv;
    float *lse;
} copies_t;

/* `n` sequences of `length` bytes each; in the copy, one begins every `padded` bytes. */
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

/* Allocates a copy and fills it, with zeros behind each sequence. */
static zero_status_t pad(cudaStream_t stream, zero_scratch_t *scratch, sequences_t q, const void *data, void *copy)
{
    char *at;
    ZERO_TRY(zero_scratch_alloc(scratch, q.n * q.padded, &at));
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
    size_t start = batch * s->seq_len * zero_attention_width(s), kv = head / (s->n_heads / s->n_kv_heads);
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

static zero_status_t attention(zero_model_context_t *ctx, const zero_attention_shape_t *s, const zero_mask_t *mask,
                               void *out, float *logsumexp, const void *qkv)
{
    const shape_plans_t *plans = find_plans(ctx, s);
    const zero_attention_shape_t *p = &plans->shape;
    zero_scratch_t scratch = zero_cuda_scratch(ctx);
    cudaStream_t stream = zero_model_stream(ctx);
    size_t size = zero_dtype_size(zero_model_cuda(ctx)->dtype);
    copies_t c;
    (void)mask; /* it hides nothing */
    if (p->seq_len == s->seq_len)
        return forward(ctx, plans, out, logsumexp, qkv, scratch.next);
    sequences_t outs = sequences_of(s, p, s->n_heads * s->head_dim * size), rows = rows_of(s, p);
    ZERO_TRY(pad(stream, &scratch, sequences_of(s, p, zero_attention_width(s) * size), qkv, &c.qkv));
    ZERO_TRY(zero_scratch_alloc(&scratch, outs.n * outs.padded, &c.out));
    ZERO_TRY(zero_scratch_alloc(&scratch, rows.n * rows.padded, &c.lse));
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
    const zero_attention_slices_t *slices = &plans->slices;
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

static zero_status_t attention_backward(zero_model_context_t *ctx, const zero_attention_shape_t *s,
                                        const zero_mask_t *mask, void *dqkv, const void *dout, const void *qkv,
                                        const void *out, const float *logsumexp)
{
    const shape_plans_t *plans = find_plans(ctx, s);
    const zero_attention_shape_t *p = &plans->shape;
    zero_scratch_t scratch = zero_cuda_scratch(ctx);
    cudaStream_t stream = zero_model_stream(ctx);
    size_t size = zero_dtype_size(zero_model_cuda(ctx)->dtype);
    backward_t t = {.dqkv = dqkv, .dout = dout, .qkv = qkv, .out = out, .logsumexp = logsumexp};
    copies_t c;
    (void)mask; /* it hides nothing */
    ZERO_TRY(zero_scratch_alloc(&scratch, zero_attention_delta_bytes(p), &t.delta));
    if (p->seq_len == s->seq_len)
        return backward(ctx, plans, &t, scratch.next);
    sequences_t qkvs = sequences_of(s, p, zero_attention_width(s) * size), rows = rows_of(s, p);
    sequences_t outs = sequences_of(s, p, s->n_heads * s->head_dim * size);
    ZERO_TRY(pad(stream, &scratch, qkvs, qkv, &c.qkv));
    ZERO_TRY(pad(stream, &scratch, outs, out, &c.out));
    ZERO_TRY(pad(stream, &scratch, outs, dout, &c.dout));
    ZERO_TRY(pad(stream, &scratch, rows, logsumexp, &c.lse));
    ZERO_TRY(zero_scratch_alloc(&scratch, qkvs.n * qkvs.padded, &c.dqkv));
    t = (backward_t){c.dqkv, c.dout, c.qkv, c.out, c.lse, t.delta};
    ZERO_TRY(backward(ctx, plans, &t, scratch.next));
    return unpad(stream, qkvs, dqkv, c.dqkv);
}

static size_t workspace(const zero_model_limits_t *limits)
{
    bool is_hoppers = zero_attention_hopper_heads(limits->dtype, limits->head_dim) && zero_attention_is_hopper();
    return is_hoppers || limits->dtype == ZERO_FP32 ? 0 : zero_cudnn_workspace(limits);
}

const zero_attention_backend_t zero_attention_cudnn = {
    .name = "cuDNN",
    .create = create,
    .destroy = destroy,
    .serves = serves,
    .workspace = workspace,
    .forward = attention,
    .backward = attention_backward,
};
