/* adapters_cuda.c - what adapters need on CUDA: which products this folder's kernels compute, and which cuBLASLt.
 */
#include "train/kernels/adapters/adapters.h"
#include "train/kernels/common.h"
#include "train/kernels/cuda/context.h"

/* ---- products ---- */

zero_status_t zero_cuda_product(zero_model_context_t *ctx, const zero_product_t *p)
{
    ZERO_TRY(zero_check_weight(ctx, p->a));
    ZERO_TRY(zero_check_weight(ctx, p->b));
    if (zero_low_rank_takes(p)) {
        ZERO_TRY_CUDA(zero_launch_low_rank(zero_model_stream(ctx), p));
        return ZERO_OK;
    }
    zero_cuda_gemm_t gemm = {.transpose_a = p->transpose_a,
                             .transpose_b = p->transpose_b,
                             .m = p->m,
                             .n = p->n,
                             .k = p->k,
                             .a = p->a.data,
                             .lda = p->lda,
                             .b = p->b.data,
                             .ldb = p->ldb,
                             .c = p->c.data,
                             .ldc = p->ldc,
                             .c_dtype = p->c.dtype,
                             .scale = p->scale,
                             .accumulate = p->c.accumulate};
    return zero_cuda_gemm(ctx, &gemm);
}

size_t zero_cuda_narrow_workspace(const zero_model_limits_t *limits)
{
    if (limits->narrow_width == 0 || limits->dtype != ZERO_BF16)
        return 0;
    const size_t widest = limits->max_width;
    const size_t rank = limits->narrow_width < ZERO_NARROW_RANK ? limits->narrow_width : ZERO_NARROW_RANK;
    /* A narrower call may have more slices, but these take less than widest * rank floats more. */
    const size_t floats = zero_narrow_scratch(limits->n_rows, widest, rank, ZERO_MAX_NARROW, true) + widest * rank;
    return zero_scratch_bytes(floats * sizeof(float));
}

/* Computes a product of bf16 that zero_narrow_takes. */
static zero_status_t multiply_narrow(zero_model_context_t *ctx, const zero_narrow_product_t *p)
{
    zero_scratch_t scratch = zero_cuda_scratch(ctx);
    const size_t floats = zero_narrow_scratch(p->n_rows, p->n_columns, p->rank, (size_t)p->n_parts, p->u != NULL);
    float *sums;
    ZERO_TRY(zero_scratch_alloc(&scratch, floats * sizeof *sums, &sums));
    if (p->x8 != NULL)
        ZERO_TRY(zero_cuda_fp8_begin_cast(ctx, p->x8, p->x, p->absmax_is_known, p->n_rows, p->n_columns));
    ZERO_TRY_CUDA(zero_launch_narrow(zero_model_stream(ctx), p, sums));
    return ZERO_OK;
}

zero_status_t zero_cuda_narrow_product(zero_model_context_t *ctx, const zero_narrow_product_t *p)
{
    const zero_dtype_t dtype = zero_model_cuda(ctx)->dtype;
    zero_narrow_product_t alone = *p;
    for (int i = 0; i < p->n_parts; ++i)
        ZERO_TRY(zero_check_weight(ctx, p->parts[i].b));
    if (dtype == ZERO_BF16 && zero_narrow_takes(p))
        return multiply_narrow(ctx, p);
    if (p->x8 != NULL)
        ZERO_TRY(zero_cuda_fp8_cast(ctx, p->x8, p->x, p->absmax_is_known, p->n_rows, p->n_columns));
    alone.x8 = NULL;
    if (dtype == ZERO_BF16 && p->x8 != NULL && zero_narrow_takes(&alone))
        return multiply_narrow(ctx, &alone);
    return zero_narrow_by_parts(zero_model_kernels_cuda(), ctx, &alone, dtype);
}

/* ---- gated MLPs ---- */

bool zero_cuda_fuses_adapters(const zero_model_context_t *ctx, size_t rank, size_t width)
{
    return zero_model_cuda(ctx)->dtype == ZERO_BF16 && zero_gated_takes(rank, width);
}

/* Refuses what zero_cuda_fuses_adapters has not promised. */
static zero_status_t check_gated(const zero_model_context_t *ctx, const zero_gated_adapters_t *adapters, size_t width)
{
    const zero_low_rank_t *const all[] = {&adapters->gate, &adapters->up, &adapters->dy};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i)
        if (all[i]->u != NULL)
            ZERO_TRY(zero_check_weight(ctx, all[i]->b));
    if (zero_cuda_fuses_adapters(ctx, adapters->rank, width))
        return ZERO_OK;
    return zero_fail(ZERO_ERROR_UNSUPPORTED, "a gated MLP of width %zu with adapters of rank %zu in a %s context",
                     width, adapters->rank, zero_dtype_name(zero_model_cuda(ctx)->dtype));
}

zero_status_t zero_cuda_gated_adapters(zero_model_context_t *ctx, bool is_gelu, const zero_gated_adapters_t *adapters,
                                       void *y, const void *gate_up, size_t n_rows, size_t width)
{
    ZERO_TRY(check_gated(ctx, adapters, width));
    ZERO_TRY_CUDA(zero_launch_gated(zero_model_stream(ctx), is_gelu, adapters, y, gate_up, n_rows, width, ctx->absmax));
    return ZERO_OK;
}

zero_status_t zero_cuda_gated_adapters_backward(zero_model_context_t *ctx, bool is_gelu,
                                                const zero_gated_adapters_t *adapters, void *dgate_up, void *y,
                                                const void *dy, const void *gate_up, size_t n_rows, size_t width)
{
    ZERO_TRY(check_gated(ctx, adapters, width));
    ZERO_TRY_CUDA(zero_launch_gated_backward(zero_model_stream(ctx), is_gelu, adapters, dgate_up, y, dy, gate_up,
                                             n_rows, width, ctx->absmax));
    return ZERO_OK;
}
