/* loss_cuda.c - the output head and softmax cross-entropy on CUDA, fused, a chunk of rows at a time.
 *
 * Only one chunk's logits exist, in the activations' dtype. A product computes them, loss.cu turns them into losses
 * and, in place, into their gradient, and two products take that to dweight and dx. With several chunks, a gradient
 * narrower than fp32 is summed in fp32 scratch and rounded once. With few rows (fewer than about 2 dim) that scratch
 * would be larger than all the logits, so there is one chunk. The number of chunks depends on sizes alone.
 */
#include "train/kernels/cuda/context.h"

/* Bytes of a chunk's logits: 16 x 1024 rows of GPT-2's vocabulary take three chunks. Larger chunks read and write
 * dweight less often; smaller ones leave memory for activations. */
#define LOGITS_MAX_BYTES ((size_t)544 << 20)
#define CHUNK_ALIGN ((size_t)128) /* rows: whole tiles of the products */
#define LOGITS_ALIGN ((size_t)64) /* elements: rows start aligned for every size of vocabulary */

static size_t round_up(size_t n, size_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

static size_t logits_stride(size_t vocab_size)
{
    return round_up(vocab_size, LOGITS_ALIGN);
}

/* Returns the bytes of dweight's fp32 sums: none if it is fp32 or there is one chunk. */
static size_t sums_bytes(size_t chunk, size_t n_rows, size_t dim, size_t vocab_size, zero_dtype_t dtype)
{
    return dtype != ZERO_FP32 && chunk < n_rows ? zero_scratch_bytes(vocab_size * dim * sizeof(float)) : 0;
}

static size_t logits_bytes(size_t chunk, size_t vocab_size, zero_dtype_t dtype)
{
    return zero_scratch_bytes(chunk * logits_stride(vocab_size) * zero_dtype_size(dtype));
}

/* Returns the rows of a chunk of the largest call: as few chunks as fit, of equal size, or one chunk if that takes no
 * more memory than several with their sums. */
static size_t chunk_rows(size_t n_rows, size_t dim, size_t vocab_size, zero_dtype_t dtype)
{
    size_t most = LOGITS_MAX_BYTES / (logits_stride(vocab_size) * zero_dtype_size(dtype));
    most = most < CHUNK_ALIGN ? CHUNK_ALIGN : most / CHUNK_ALIGN * CHUNK_ALIGN;
    size_t n_chunks = (n_rows + most - 1) / most;
    size_t rows = round_up((n_rows + n_chunks - 1) / n_chunks, CHUNK_ALIGN);
    if (rows >= n_rows || logits_bytes(n_rows, vocab_size, dtype) <=
                              logits_bytes(rows, vocab_size, dtype) + sums_bytes(rows, n_rows, dim, vocab_size, dtype))
        return n_rows;
    return rows;
}

size_t zero_cuda_loss_workspace(const zero_model_limits_t *limits)
{
    /* At least the head's: another layer may be larger. */
    size_t dim = (limits->max_linear + limits->vocab_size - 1) / limits->vocab_size;
    size_t chunk = chunk_rows(limits->n_rows, dim, limits->vocab_size, limits->dtype);
    return logits_bytes(chunk, limits->vocab_size, limits->dtype) +
           zero_scratch_bytes(limits->n_rows * sizeof(double)) +
           sums_bytes(chunk, limits->n_rows, dim, limits->vocab_size, limits->dtype);
}

/* What all chunks of head_loss share. */
typedef struct head {
    const void *weight;  /* [vocab_size, dim] */
    zero_grad_t dweight; /* the gradient, or its fp32 sums */
    void *logits;        /* [chunk, stride] */
    size_t dim, vocab_size, stride;
    zero_dtype_t dtype;
} head_t;

static zero_status_t chunk_logits(zero_model_context_t *ctx, const head_t *h, const void *x, size_t rows)
{
    zero_cuda_gemm_t gemm = {.transpose_b = true,
                             .m = rows,
                             .n = h->vocab_size,
                             .k = h->dim,
                             .a = x,
                             .lda = h->dim,
                             .b = h->weight,
                             .ldb = h->dim,
                             .c = h->logits,
                             .ldc = h->stride,
                             .c_dtype = h->dtype};
    return zero_cuda_gemm(ctx, &gemm);
}

/* Computes dweight (+)= dlogits^T x, unless it is not trained, then dx = dlogits weight: in this order, since dx may
 * be x. */
static zero_status_t chunk_backward(zero_model_context_t *ctx, const head_t *h, void *dx, const void *x, size_t rows,
                                    bool accumulate)
{
    zero_cuda_gemm_t for_weight = {.transpose_a = true,
                                   .m = h->vocab_size,
                                   .n = h->dim,
                                   .k = rows,
                                   .a = h->logits,
                                   .lda = h->stride,
                                   .b = x,
                                   .ldb = h->dim,
                                   .c = h->dweight.data,
                                   .ldc = h->dim,
                                   .c_dtype = h->dweight.dtype,
                                   .accumulate = accumulate};
    zero_cuda_gemm_t for_input = {.m = rows,
                                  .n = h->dim,
                                  .k = h->vocab_size,
                                  .a = h->logits,
                                  .lda = h->stride,
                                  .b = h->weight,
                                  .ldb = h->dim,
                                  .c = dx,
                                  .ldc = h->dim,
                                  .c_dtype = h->dtype};
    if (h->dweight.data != NULL)
        ZERO_TRY(zero_cuda_gemm(ctx, &for_weight));
    return zero_cuda_gemm(ctx, &for_input);
}

/* Computes the rows' losses, into *losses, or scratch if that is NULL, and gradients unless dx is NULL. */
static zero_status_t compute(zero_model_context_t *ctx, const zero_head_call_t *call, double **losses)
{
    zero_scratch_t scratch = zero_cuda_scratch(ctx);
    cudaStream_t stream = zero_model_stream(ctx);
    const size_t dim = call->dim, vocab_size = call->vocab_size, n_rows = call->n_rows;
    ZERO_TRY(zero_check_weight(ctx, call->weight));
    head_t head = {.weight = call->weight.data,
                   .dweight = call->dweight,
                   .dim = dim,
                   .vocab_size = vocab_size,
                   .stride = logits_stride(vocab_size),
                   .dtype = call->weight.dtype};
    size_t size = zero_dtype_size(head.dtype);
    /* Of fewer rows than the limits', which the workspace is for, chunks are no larger. */
    size_t most = chunk_rows(zero_model_cuda(ctx)->n_rows, dim, vocab_size, head.dtype);
    size_t chunk = most < n_rows ? most : n_rows;
    bool narrow = call->dx != NULL && call->dweight.data != NULL && call->dweight.dtype != ZERO_FP32 && chunk < n_rows;
    ZERO_TRY(zero_scratch_alloc(&scratch, chunk * head.stride * size, &head.logits));
    if (*losses == NULL)
        ZERO_TRY(zero_scratch_alloc(&scratch, n_rows * sizeof **losses, losses));
    if (narrow) {
        void *sums;
        ZERO_TRY(zero_scratch_alloc(&scratch, vocab_size * dim * sizeof(float), &sums));
        head.dweight = (zero_grad_t){.data = sums, .dtype = ZERO_FP32};
    }

    for (size_t first = 0; first < n_rows; first += chunk) {
        size_t rows = n_rows - first < chunk ? n_rows - first : chunk;
        const char *chunk_x = (const char *)call->x + first * dim * size;
        const int32_t *targets = call->targets + first;
        ZERO_TRY(chunk_logits(ctx, &head, chunk_x, rows));
        ZERO_TRY_CUDA(zero_launch_cross_entropy(stream, head.dtype, head.logits, *losses + first, targets,
                                                call->dx != NULL ? call->grad_scale : NULL, call->loss_weight, rows,
                                                vocab_size, head.stride));
        if (ctx->may_skip_targets)
            ZERO_TRY_CUDA(zero_launch_skip_rows(stream, head.dtype, head.logits, *losses + first, targets,
                                                call->dx != NULL, rows, vocab_size, head.stride));
        if (call->dx != NULL)
            ZERO_TRY(chunk_backward(ctx, &head, (char *)call->dx + first * dim * size, chunk_x, rows,
                                    first > 0 || head.dweight.accumulate));
    }
    if (narrow)
        ZERO_TRY_CUDA(zero_launch_put_grad(stream, call->dweight, head.dweight.data, vocab_size * dim));
    return ZERO_OK;
}

zero_status_t zero_cuda_head_loss(zero_model_context_t *ctx, double *loss_sum, void *dx, zero_grad_t dweight,
                                  const void *x, zero_weight_t weight, const int32_t *targets, double loss_weight,
                                  const float *grad_scale, size_t n_rows, size_t dim, size_t vocab_size)
{
    const zero_head_call_t call = {dx, dweight, x, weight, targets, loss_weight, grad_scale, n_rows, dim, vocab_size};
    double *losses = NULL;
    ZERO_TRY(compute(ctx, &call, &losses));
    ZERO_TRY_CUDA(zero_launch_add_losses(zero_model_stream(ctx), loss_sum, losses, loss_weight, n_rows));
    return ZERO_OK;
}

zero_status_t zero_cuda_head_losses(zero_model_context_t *ctx, double *losses, void *dx, const void *x,
                                    zero_weight_t weight, const int32_t *targets, double loss_weight,
                                    const float *grad_scale, size_t n_rows, size_t dim, size_t vocab_size)
{
    const zero_head_call_t call = {dx,          (zero_grad_t){0}, x,      weight, targets,
                                   loss_weight, grad_scale,       n_rows, dim,    vocab_size};
    return compute(ctx, &call, &losses);
}

zero_status_t zero_cuda_pair_loss(zero_model_context_t *ctx, const zero_pair_loss_t *pairs)
{
    ZERO_TRY_CUDA(zero_launch_pair_loss(zero_model_stream(ctx), zero_model_cuda(ctx)->dtype, pairs));
    return ZERO_OK;
}

zero_status_t zero_cuda_head_logits(zero_model_context_t *ctx, float *logits, const void *x, zero_weight_t weight,
                                    size_t n_rows, size_t dim, size_t vocab_size)
{
    ZERO_TRY(zero_check_weight(ctx, weight));
    head_t head = {.weight = weight.data,
                   .logits = logits,
                   .dim = dim,
                   .vocab_size = vocab_size,
                   .stride = vocab_size,
                   .dtype = ZERO_FP32};
    return chunk_logits(ctx, &head, x, n_rows);
}
