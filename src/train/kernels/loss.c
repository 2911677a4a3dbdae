/* loss.c - the output head and softmax cross-entropy on the CPU, fused, a chunk of rows at a time.
 *
 * Only one chunk's logits exist. They give the rows' losses, become their own gradient in place, and are multiplied
 * into dweight and dx. Losses are summed in double in row order. A chunk's size depends on shapes alone, so the sums
 * have the same order on every machine.
 */
#include "train/kernels/common.h"
#include "train/kernels/kernels_cpu.h"

#include "train/kernels/vector_math.h"

#include <string.h>

/* Elements of a chunk's logits: so many that reading and writing dweight once per chunk costs little compared to the
 * products. */
#define LOGITS_MAX ((size_t)1 << 23)
#define CHUNK_ROWS_MIN ((size_t)64)

static size_t chunk_rows(size_t n_rows, size_t vocab_size)
{
    size_t rows = LOGITS_MAX / vocab_size;
    rows = rows < CHUNK_ROWS_MIN ? CHUNK_ROWS_MIN : rows;
    return rows < n_rows ? rows : n_rows;
}

size_t ZERO_MODEL_FN(loss_workspace)(const zero_model_limits_t *limits)
{
    size_t rows = chunk_rows(limits->n_rows, limits->vocab_size);
    size_t matrix = limits->dtype == ZERO_FP32 ? 0 : zero_scratch_bytes(limits->max_linear * sizeof(float));
    return 2 * matrix + zero_scratch_bytes(rows * limits->vocab_size * sizeof(float)) +
           zero_scratch_bytes(rows * sizeof(double));
}

static zero_status_t check_targets(const int32_t *targets, bool may_skip, size_t n_rows, size_t vocab_size)
{
    for (size_t row = 0; row < n_rows; ++row) {
        if (may_skip && targets[row] == ZERO_NO_TARGET)
            continue;
        if (targets[row] < 0 || (size_t)targets[row] >= vocab_size)
            return zero_fail(ZERO_ERROR_ARGUMENT, "target %zu is token %d, the vocabulary has %zu", row,
                             (int)targets[row], vocab_size);
    }
    return ZERO_OK;
}

/* Returns -log softmax(logits)[target], and turns logits into scale * (softmax(logits) - onehot(target)). Without a
 * target both are zero. */
static double row_loss(float *logits, int32_t target, float scale, size_t vocab_size)
{
    if (target == ZERO_NO_TARGET) {
        memset(logits, 0, vocab_size * sizeof *logits);
        return 0.0;
    }
    float max = zero_row_max(logits, vocab_size);
    double target_logit = logits[target];
    float sum = zero_row_exp(logits, vocab_size, max);
    float factor = scale / sum;
    for (size_t i = 0; i < vocab_size; ++i)
        logits[i] *= factor;
    logits[target] -= scale;
    return log((double)sum) + ((double)max - target_logit);
}

/* What all chunks of head_loss share. */
typedef struct head {
    const float *weight; /* [vocab_size, dim] */
    zero_grad_sum_t dweight;
    float *logits; /* [chunk, vocab_size] */
    double *losses;
    float scale; /* of the gradient */
    size_t dim, vocab_size;
} head_t;

static void chunk_logits(const head_t *h, float *logits, const float *x, size_t rows)
{
    zero_gemm_t product = {CblasNoTrans,  CblasTrans,  .m = rows,           .n = h->vocab_size,
                           .k = h->dim,   .a = x,      .lda = h->dim,       .b = h->weight,
                           .ldb = h->dim, .c = logits, .ldc = h->vocab_size};
    ZERO_ISA(zero_model_gemm)(&product);
}

static double chunk_loss(const head_t *h, const float *x, const int32_t *targets, size_t rows)
{
    chunk_logits(h, h->logits, x, rows);
#pragma omp parallel for schedule(static) if (rows * h->vocab_size >= ZERO_MODEL_PARALLEL_MIN)
    for (size_t row = 0; row < rows; ++row)
        h->losses[row] = row_loss(h->logits + row * h->vocab_size, targets[row], h->scale, h->vocab_size);
    double sum = 0.0;
    for (size_t row = 0; row < rows; ++row)
        sum += h->losses[row];
    return sum;
}

/* Computes dweight (+)= dlogits^T x, unless it is not trained, then dx = dlogits weight: in this order, since dx may
 * be x. */
static void chunk_backward(const head_t *h, float *dx, const float *x, size_t rows, float beta)
{
    zero_gemm_t for_weight = {CblasTrans,    CblasNoTrans,   .m = h->vocab_size,   .n = h->dim,
                              .k = rows,     .a = h->logits, .lda = h->vocab_size, .b = x,
                              .ldb = h->dim, .beta = beta,   .c = h->dweight.data, .ldc = h->dim};
    zero_gemm_t for_input = {CblasNoTrans,   CblasNoTrans,         .m = rows,      .n = h->dim,   .k = h->vocab_size,
                             .a = h->logits, .lda = h->vocab_size, .b = h->weight, .ldb = h->dim, .c = dx,
                             .ldc = h->dim};
    if (h->dweight.data != NULL)
        ZERO_ISA(zero_model_gemm)(&for_weight);
    ZERO_ISA(zero_model_gemm)(&for_input);
}

static zero_status_t check_sizes(size_t dim, size_t vocab_size)
{
    return zero_check_blas_size(dim > vocab_size ? dim : vocab_size);
}

/* Computes the rows' losses, into `losses` unless it is NULL, and their sum; and gradients unless dx is NULL. */
static zero_status_t compute(zero_model_context_t *ctx, const zero_head_call_t *call, double *losses, double *sum)
{
    zero_scratch_t scratch = zero_scratch_begin(ctx);
    const size_t dim = call->dim, vocab_size = call->vocab_size, n_rows = call->n_rows;
    const bool trains = call->dx != NULL && call->dweight.data != NULL;
    head_t head = {.dim = dim, .vocab_size = vocab_size};
    size_t chunk = chunk_rows(n_rows, vocab_size);
    double *of_chunk;
    ZERO_TRY(check_sizes(dim, vocab_size));
    ZERO_TRY(check_targets(call->targets, ctx->may_skip_targets, n_rows, vocab_size));
    ZERO_TRY(zero_scratch_alloc(&scratch, chunk * vocab_size * sizeof(float), &head.logits));
    ZERO_TRY(zero_scratch_alloc(&scratch, chunk * sizeof(double), &of_chunk));
    ZERO_TRY(zero_weight_fp32(&scratch, call->weight, vocab_size * dim, &head.weight));
    if (trains)
        ZERO_TRY(zero_grad_sum_begin(&scratch, call->dweight, vocab_size * dim, &head.dweight));
    if (call->dx != NULL)
        head.scale = (float)((double)call->grad_scale[0] * call->loss_weight);

    *sum = 0.0;
    for (size_t first = 0; first < n_rows; first += chunk) {
        size_t rows = n_rows - first < chunk ? n_rows - first : chunk;
        const float *chunk_x = (const float *)call->x + first * dim;
        head.losses = losses != NULL ? losses + first : of_chunk;
        *sum += chunk_loss(&head, chunk_x, call->targets + first, rows);
        if (call->dx != NULL)
            chunk_backward(&head, (float *)call->dx + first * dim, chunk_x, rows,
                           first == 0 ? head.dweight.beta : 1.0f);
    }
    if (trains)
        zero_grad_sum_end(&head.dweight, call->dweight, vocab_size * dim);
    return ZERO_OK;
}

zero_status_t ZERO_MODEL_FN(head_loss)(zero_model_context_t *ctx, double *loss_sum, void *dx, zero_grad_t dweight,
                                       const void *x, zero_weight_t weight, const int32_t *targets, double loss_weight,
                                       const float *grad_scale, size_t n_rows, size_t dim, size_t vocab_size)
{
    const zero_head_call_t call = {dx, dweight, x, weight, targets, loss_weight, grad_scale, n_rows, dim, vocab_size};
    double sum;
    ZERO_TRY(compute(ctx, &call, NULL, &sum));
    *loss_sum += zero_loss_rounded(loss_weight * sum);
    return ZERO_OK;
}

zero_status_t ZERO_MODEL_FN(head_losses)(zero_model_context_t *ctx, double *losses, void *dx, const void *x,
                                         zero_weight_t weight, const int32_t *targets, double loss_weight,
                                         const float *grad_scale, size_t n_rows, size_t dim, size_t vocab_size)
{
    const zero_head_call_t call = {dx,          (zero_grad_t){0}, x,      weight, targets,
                                   loss_weight, grad_scale,       n_rows, dim,    vocab_size};
    double sum;
    return compute(ctx, &call, losses, &sum);
}

zero_status_t ZERO_MODEL_FN(head_logits)(zero_model_context_t *ctx, float *logits, const void *x, zero_weight_t weight,
                                         size_t n_rows, size_t dim, size_t vocab_size)
{
    zero_scratch_t scratch = zero_scratch_begin(ctx);
    head_t head = {.dim = dim, .vocab_size = vocab_size};
    ZERO_TRY(check_sizes(dim, vocab_size));
    ZERO_TRY(zero_weight_fp32(&scratch, weight, vocab_size * dim, &head.weight));
    chunk_logits(&head, logits, x, n_rows);
    return ZERO_OK;
}
