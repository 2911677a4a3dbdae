/* kernels_table.c - the CPU's table of model kernels, built once for each instruction set, with the functions that have
 * no file of their own: the context, the workspace's size, add_scaled, put_grad, zero_fill.
 */
#include "train/kernels/kernels_cpu.h"
#include "train/kernels/vector_math.h"

extern const zero_model_kernels_t ZERO_ISA(zero_model_kernels);

static zero_dtype_t activation_dtype(zero_dtype_t weight_dtype)
{
    (void)weight_dtype;
    return ZERO_FP32;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* The largest need counts: one call runs at a time and leaves nothing in the workspace. */
static size_t workspace_bytes(const zero_model_limits_t *limits)
{
    size_t bytes = ZERO_MODEL_FN(linear_workspace)(limits);
    bytes = larger(bytes, ZERO_MODEL_FN(fp8_workspace)(limits));
    bytes = larger(bytes, ZERO_MODEL_FN(attention_workspace)(limits));
    bytes = larger(bytes, ZERO_MODEL_FN(layernorm_workspace)(limits));
    bytes = larger(bytes, ZERO_MODEL_FN(rmsnorm_workspace)(limits));
    bytes = larger(bytes, ZERO_MODEL_FN(gelu_workspace)(limits));
    bytes = larger(bytes, ZERO_MODEL_FN(loss_workspace)(limits));
    return larger(bytes, ZERO_MODEL_FN(embed_workspace)(limits));
}

static zero_status_t context_create(zero_model_context_t *ctx, zero_stream_t stream, void *workspace,
                                    const zero_model_limits_t *limits)
{
    openblas_set_num_threads(1); /* each of our threads calls it for a block of its own */
    *ctx = (zero_model_context_t){stream, workspace, workspace_bytes(limits), NULL, limits->may_skip_targets, NULL};
    return ZERO_OK;
}

static void context_destroy(zero_model_context_t *ctx)
{
    *ctx = (zero_model_context_t){0};
}

static zero_status_t put_grad(zero_model_context_t *ctx, zero_grad_t grad, const float *sums, size_t n_elems)
{
    (void)ctx;
    if (grad.data != NULL)
        zero_grad_put(grad, 0, sums, n_elems);
    return ZERO_OK;
}

static zero_status_t add_scaled(zero_model_context_t *ctx, void *y, const void *residual, const void *x, float factor,
                                size_t n_elems)
{
    (void)ctx;
    float *out = y;
    const float *r = residual, *in = x;
#pragma omp parallel for simd schedule(static) if (parallel : n_elems >= ZERO_MODEL_PARALLEL_MIN)
    for (size_t i = 0; i < n_elems; ++i)
        out[i] = r != NULL ? zero_multiply_add(factor, in[i], r[i]) : factor * in[i];
    return ZERO_OK;
}

static zero_status_t narrow_product(zero_model_context_t *ctx, const zero_narrow_product_t *product)
{
    return zero_narrow_by_parts(&ZERO_ISA(zero_model_kernels), ctx, product, ZERO_FP32);
}

static zero_status_t zero_fill(zero_model_context_t *ctx, void *y, size_t n_bytes)
{
    (void)ctx;
    memset(y, 0, n_bytes);
    return ZERO_OK;
}

#define QUOTE_(x) #x
#define QUOTE(x) QUOTE_(x)

const zero_model_kernels_t ZERO_ISA(zero_model_kernels) = {
    .name = QUOTE(ZERO_ISA_NAME),
    .activation_dtype = activation_dtype,
    .workspace_bytes = workspace_bytes,
    .context_create = context_create,
    .context_destroy = context_destroy,
    .linear = ZERO_MODEL_FN(linear),
    .linear_backward_input = ZERO_MODEL_FN(linear_backward_input),
    .linear_backward_weight = ZERO_MODEL_FN(linear_backward_weight),
    .product = ZERO_MODEL_FN(product),
    .narrow_product = narrow_product,
    .sum_columns = ZERO_MODEL_FN(sum_columns),
    .fp8_is_available = ZERO_MODEL_FN(fp8_is_available),
    .fp8_cast = ZERO_MODEL_FN(fp8_cast),
    .fp8_cast_weight = ZERO_MODEL_FN(fp8_cast_weight),
    .fp8_widen = ZERO_MODEL_FN(fp8_widen),
    .fp8_transpose = ZERO_MODEL_FN(fp8_transpose),
    .linear_fp8 = ZERO_MODEL_FN(linear_fp8),
    .linear_fp8_backward_input = ZERO_MODEL_FN(linear_fp8_backward_input),
    .linear_fp8_backward_weight = ZERO_MODEL_FN(linear_fp8_backward_weight),
    .layernorm = ZERO_MODEL_FN(layernorm),
    .layernorm_backward = ZERO_MODEL_FN(layernorm_backward),
    .rmsnorm = ZERO_MODEL_FN(rmsnorm),
    .rmsnorm_backward = ZERO_MODEL_FN(rmsnorm_backward),
    .head_norm = ZERO_MODEL_FN(head_norm),
    .head_norm_backward = ZERO_MODEL_FN(head_norm_backward),
    .projection_norm = ZERO_MODEL_FN(projection_norm),
    .projection_norm_backward = ZERO_MODEL_FN(projection_norm_backward),
    .rope = ZERO_MODEL_FN(rope),
    .swiglu = ZERO_MODEL_FN(swiglu),
    .swiglu_backward = ZERO_MODEL_FN(swiglu_backward),
    .geglu = ZERO_MODEL_FN(geglu),
    .geglu_backward = ZERO_MODEL_FN(geglu_backward),
    .add_scaled = add_scaled,
    .gelu = ZERO_MODEL_FN(gelu),
    .gelu_backward = ZERO_MODEL_FN(gelu_backward),
    .attention = ZERO_MODEL_FN(attention),
    .attention_cached = ZERO_MODEL_FN(attention_cached),
    .attention_backward = ZERO_MODEL_FN(attention_backward),
    .embed = ZERO_MODEL_FN(embed),
    .embed_backward = ZERO_MODEL_FN(embed_backward),
    .sum_blocks = ZERO_MODEL_FN(sum_blocks),
    .head_loss = ZERO_MODEL_FN(head_loss),
    .head_losses = ZERO_MODEL_FN(head_losses),
    .pair_loss = ZERO_MODEL_FN(pair_loss),
    .head_logits = ZERO_MODEL_FN(head_logits),
    .put_grad = put_grad,
    .zero_fill = zero_fill,
};
