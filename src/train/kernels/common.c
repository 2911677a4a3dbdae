/* common.c - see common.h. */
#include "train/kernels/common.h"

#include <stdio.h>

#include "base/log.h"

/* Head sizes that cuDNN's fused kernels take, forward and backward: up to 128 in every version since 9.0, up to 256 on
 * Hopper in later ones. */
#define CUDNN_MAX_HEAD_DIM ((size_t)256)
/* Elements of 16 bytes, which both kernels move at once. */
#define HEAD_DIM_STEP ((size_t)8)

/* Returns whether `who` takes heads of up to `most` elements in this dtype. */
static bool may_serve(const char *who, zero_dtype_t dtype, size_t head_dim, size_t most, char why[ZERO_MODEL_WHY])
{
    char unread[ZERO_MODEL_WHY];
    if (why == NULL)
        why = unread;
    if (dtype == ZERO_FP32)
        snprintf(why, ZERO_MODEL_WHY, "%s it in bf16 and fp16, not in fp32: use precision bf16", who);
    else if (head_dim % HEAD_DIM_STEP != 0 || head_dim > most)
        snprintf(
            why, ZERO_MODEL_WHY,
            "heads of %zu elements are %s %zu: choose a number of heads that makes them a multiple of %zu, at most %zu",
            head_dim, head_dim > most ? "more than" : "not a multiple of", head_dim > most ? most : HEAD_DIM_STEP,
            HEAD_DIM_STEP, most);
    else
        return true;
    return false;
}

bool zero_cudnn_may_serve(zero_dtype_t dtype, const zero_attention_shape_t *s, char why[ZERO_MODEL_WHY])
{
    return may_serve("cuDNN computes", dtype, s->head_dim, CUDNN_MAX_HEAD_DIM, why);
}

bool zero_attention_mma_may_serve(zero_dtype_t dtype, const zero_attention_shape_t *s, char why[ZERO_MODEL_WHY])
{
    return may_serve("tensor cores compute", dtype, s->head_dim, ZERO_ATTENTION_MMA_MAX_HEAD_DIM, why);
}

bool zero_attention_hopper_heads(zero_dtype_t dtype, size_t head_dim)
{
    return dtype != ZERO_FP32 && (head_dim == 64 || head_dim == 128);
}

static bool has_hopper_heads(const zero_attention_call_t *call)
{
    return call->is_hopper && zero_attention_hopper_heads(call->dtype, call->shape.head_dim);
}

bool zero_attention_takes(zero_attention_kind_t kind, const zero_attention_call_t *call, char why[ZERO_MODEL_WHY])
{
    const size_t most = UINT16_MAX; /* of a grid: sequences; tiles of 64 queries */
    switch (kind) {
    case ZERO_ATTENTION_HOPPER:
        return !call->hides && call->all_aligned && has_hopper_heads(call) && call->shape.n_batch <= most &&
               call->shape.seq_len <= most * 64;
    case ZERO_ATTENTION_CUDNN:
        return !call->hides && call->qkv_aligned && !has_hopper_heads(call) &&
               zero_cudnn_may_serve(call->dtype, &call->shape, why);
    case ZERO_ATTENTION_MMA:
        return call->all_aligned && zero_attention_mma_may_serve(call->dtype, &call->shape, why);
    default:
        return true;
    }
}

/* ---- fp8 product ---- */
/* The three products of a linear layer in fp8 as c = a b^T, and what is refused. */

#define EXTENT_UNIT 16 /* cuBLASLt's, for extents and row lengths of fp8 */

zero_status_t zero_fp8_check_matrix(size_t n_rows, size_t n_columns)
{
    if (n_rows % EXTENT_UNIT == 0 && n_columns % EXTENT_UNIT == 0)
        return ZERO_OK;
    return zero_fail(ZERO_ERROR_UNSUPPORTED, "a %zu x %zu matrix in fp8: both extents must be multiples of %d", n_rows,
                     n_columns, EXTENT_UNIT);
}

static zero_fp8_operand_t rows_of(const zero_fp8_t *x8)
{
    return (zero_fp8_operand_t){x8->format, x8->rows, x8->scales};
}

static zero_fp8_operand_t columns_of(const zero_fp8_t *x8)
{
    return (zero_fp8_operand_t){x8->format, x8->columns, x8->scales};
}

static zero_status_t check(const zero_fp8_product_t *product, const char *name)
{
    ZERO_TRY(zero_fp8_check_matrix(product->m, product->k));
    ZERO_TRY(zero_fp8_check_matrix(product->n, product->k));
    if (product->a.bytes == NULL || product->b.bytes == NULL)
        return zero_fail(ZERO_ERROR_ARGUMENT, "%s: the %s operand was not cast as this product reads it", name,
                         product->a.bytes == NULL ? "first" : "second");
    return ZERO_OK;
}

zero_status_t zero_fp8_forward(zero_fp8_product_t *product, const zero_fp8_t *x8, const zero_fp8_t *w8,
                               zero_linear_layout_t layout, size_t n_rows, size_t n_in, size_t n_out)
{
    zero_fp8_operand_t weight = layout == ZERO_LINEAR_OUT_IN ? rows_of(w8) : columns_of(w8);
    *product = (zero_fp8_product_t){n_rows, n_out, n_in, rows_of(x8), weight};
    return check(product, "linear_fp8");
}

zero_status_t zero_fp8_backward_input(zero_fp8_product_t *product, const zero_fp8_t *dy8, const zero_fp8_t *w8,
                                      zero_linear_layout_t layout, size_t n_rows, size_t n_in, size_t n_out)
{
    zero_fp8_operand_t weight = layout == ZERO_LINEAR_OUT_IN ? columns_of(w8) : rows_of(w8);
    *product = (zero_fp8_product_t){n_rows, n_in, n_out, rows_of(dy8), weight};
    return check(product, "linear_fp8_backward_input");
}

zero_status_t zero_fp8_backward_weight(zero_fp8_product_t *product, zero_linear_layout_t layout, const zero_fp8_t *x8,
                                       const zero_fp8_t *dy8, size_t n_rows, size_t n_in, size_t n_out)
{
    if (layout == ZERO_LINEAR_IN_OUT)
        *product = (zero_fp8_product_t){n_in, n_out, n_rows, columns_of(x8), columns_of(dy8)};
    else
        *product = (zero_fp8_product_t){n_out, n_in, n_rows, columns_of(dy8), columns_of(x8)};
    return check(product, "linear_fp8_backward_weight");
}

/* ---- narrow product ---- */

/* An activation from a column on. */
static zero_weight_t columns_from(const void *data, size_t first, zero_dtype_t dtype)
{
    return (zero_weight_t){.data = (const unsigned char *)data + first * zero_dtype_size(dtype), .dtype = dtype};
}

static zero_status_t multiply_part(const zero_model_kernels_t *kernels, zero_model_context_t *ctx,
                                   const zero_narrow_product_t *p, int i, zero_dtype_t dtype)
{
    const zero_narrow_part_t *part = &p->parts[i];
    const size_t first = (size_t)i * p->rank, width = (size_t)p->n_parts * p->rank;
    const zero_weight_t x = columns_from(p->x, part->first, dtype), out = columns_from(p->out, first, dtype);
    const zero_product_t forward = {.transpose_b = p->transposed,
                                    .m = p->n_rows,
                                    .n = p->rank,
                                    .k = part->width,
                                    .a = x,
                                    .lda = p->n_columns,
                                    .b = part->b,
                                    .ldb = p->transposed ? part->width : p->rank,
                                    .c = {.data = (void *)out.data, .dtype = dtype},
                                    .ldc = width,
                                    .scale = p->scale};
    ZERO_TRY(kernels->product(ctx, &forward));
    if (p->u == NULL || part->db.data == NULL)
        return ZERO_OK;
    const zero_product_t gradient = {.transpose_a = true,
                                     .m = part->width,
                                     .n = p->rank,
                                     .k = p->n_rows,
                                     .a = x,
                                     .lda = p->n_columns,
                                     .b = columns_from(p->u, first, dtype),
                                     .ldb = width,
                                     .c = part->db,
                                     .ldc = p->rank,
                                     .scale = 1.0f};
    return kernels->product(ctx, &gradient);
}

zero_status_t zero_narrow_by_parts(const zero_model_kernels_t *kernels, zero_model_context_t *ctx,
                                   const zero_narrow_product_t *product, zero_dtype_t activations)
{
    for (int i = 0; i < product->n_parts; ++i)
        ZERO_TRY(multiply_part(kernels, ctx, product, i, activations));
    return product->x8 == NULL ? ZERO_OK
                               : kernels->fp8_cast(ctx, product->x8, product->x, product->absmax_is_known,
                                                   product->n_rows, product->n_columns);
}

/* ---- rope ---- */

zero_status_t zero_rope_check(const zero_rope_t *rope, const zero_attention_shape_t *shape)
{
    const size_t n_rotated = zero_rope_n_rotated(rope, shape);
    if (n_rotated % 2 != 0 || n_rotated > shape->head_dim || shape->head_dim > UINT32_MAX)
        return zero_fail(ZERO_ERROR_ARGUMENT, "rope: %zu elements of heads of %zu cannot be rotated in pairs",
                         n_rotated, shape->head_dim);
    if (rope->q_scale != 0.0f && n_rotated != shape->head_dim)
        return zero_fail(ZERO_ERROR_UNSUPPORTED,
                         "rope: q is scaled where all of a head is rotated, not %zu of %zu elements", n_rotated,
                         shape->head_dim);
    return ZERO_OK;
}
