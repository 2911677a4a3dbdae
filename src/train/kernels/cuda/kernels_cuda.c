/* kernels_cuda.c - the CUDA table of model kernels: the context, the workspace's size, and the functions that only
 * launch kernels.
 */
#include "train/kernels/cuda/context.h"

#include <stdlib.h>

#include "train/kernels/common.h"

static zero_dtype_t activation_dtype(zero_dtype_t weight_dtype)
{
    return weight_dtype;
}

/* By the data sheets of the A100 (312 TFLOP/s bf16, 19.5 fp32, 108 SMs) and the H100 and H200 (989 and 67, 132 SMs). */
static double peak_flops(zero_dtype_t weight_dtype)
{
    static const struct {
        int major, minor;
        double half, single; /* per SM */
    } chips[] = {{8, 0, 312e12 / 108, 19.5e12 / 108}, {9, 0, 989.4e12 / 132, 66.9e12 / 132}};
    int gpu, major, minor, n_sms;
    if (cudaGetDevice(&gpu) != cudaSuccess ||
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, gpu) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, gpu) != cudaSuccess ||
        cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, gpu) != cudaSuccess)
        return 0.0;
    for (size_t i = 0; i < sizeof chips / sizeof *chips; ++i)
        if (chips[i].major == major && chips[i].minor == minor)
            return n_sms * (weight_dtype == ZERO_FP32 ? chips[i].single : chips[i].half);
    return 0.0;
}

/* ---- Workspace: cuBLASLt's part, then scratch for one call at a time ---- */

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t embed_workspace(const zero_model_limits_t *limits)
{
    return zero_scratch_bytes(zero_embed_entries_bytes(limits->n_rows)) +
           zero_scratch_bytes(zero_embed_partials_bytes(limits->n_rows, limits->max_width)) +
           zero_scratch_bytes(zero_embed_sort_bytes(limits->n_rows, limits->vocab_size));
}

static size_t workspace_bytes(const zero_model_limits_t *limits)
{
    size_t bytes = zero_cuda_linear_workspace(limits);
    bytes = larger(bytes, zero_cuda_attention_workspace(limits));
    bytes = larger(bytes, zero_cuda_cached_workspace(limits));
    bytes = larger(bytes, zero_scratch_bytes(3 * zero_norm_most_partials(limits->max_width) * sizeof(float)));
    bytes =
        larger(bytes, zero_scratch_bytes(zero_head_norm_parts(limits->n_rows) * 2 * limits->head_dim * sizeof(float)));
    if (limits->normalizes_projections) /* q's partial sums and k's */
        bytes = larger(
            bytes, zero_scratch_bytes(zero_projection_norm_parts(limits->n_rows) * limits->max_width * sizeof(float)) +
                       ZERO_SCRATCH_ALIGN);
    bytes = larger(bytes, zero_cuda_loss_workspace(limits));
    return ZERO_GEMM_WORKSPACE_BYTES + larger(bytes, embed_workspace(limits));
}

/* ---- Context ---- */

static void context_destroy(zero_model_context_t *ctx)
{
    zero_model_cuda_t *cuda = zero_model_cuda(ctx);
    if (cuda != NULL) {
        zero_gemm_plans_destroy(cuda->gemms);
        zero_cuda_attention_destroy(ctx);
        free(cuda);
    }
    *ctx = (zero_model_context_t){0};
}

static zero_status_t context_create(zero_model_context_t *ctx, zero_stream_t stream, void *workspace,
                                    const zero_model_limits_t *limits)
{
    zero_model_cuda_t *cuda = calloc(1, sizeof *cuda);
    if (cuda == NULL)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for the CUDA kernels' context");
    cuda->dtype = limits->dtype;
    cuda->n_rows = limits->n_rows;
    cuda->seq_len = limits->seq_len;
    *ctx = (zero_model_context_t){stream, workspace, workspace_bytes(limits), cuda, limits->may_skip_targets, NULL};
    zero_status_t status = zero_gemm_plans_create(&cuda->gemms);
    if (status == ZERO_OK)
        status = zero_cuda_attention_create(ctx);
    if (status != ZERO_OK)
        context_destroy(ctx);
    return status;
}

/* ---- LayerNorm ---- */

static zero_status_t layernorm(zero_model_context_t *ctx, void *y, float *mean, float *rstd, void *residual_out,
                               const void *residual, const void *addend, zero_weight_t weight, zero_weight_t bias,
                               float eps, size_t n_rows, size_t dim)
{
    ZERO_TRY(zero_check_weight(ctx, weight));
    ZERO_TRY(zero_check_weight(ctx, bias));
    ZERO_TRY_CUDA(zero_launch_layernorm(zero_model_stream(ctx), weight.dtype, y, mean, rstd, residual_out, residual,
                                        addend, weight.data, bias.data, eps, n_rows, dim, ctx->absmax));
    return ZERO_OK;
}

static zero_status_t layernorm_backward(zero_model_context_t *ctx, void *dresidual, zero_grad_t dweight,
                                        zero_grad_t dbias, zero_grad_t dcolumns, void *y, const void *dy,
                                        const void *residual, const float *mean, const float *rstd,
                                        zero_weight_t weight, zero_weight_t bias, size_t n_rows, size_t dim)
{
    const zero_grad_t grads[] = {dweight, dbias, dcolumns};
    cudaStream_t stream = zero_model_stream(ctx);
    zero_scratch_t scratch = zero_cuda_scratch(ctx);
    ZERO_TRY(zero_check_weight(ctx, weight));
    ZERO_TRY(zero_check_weight(ctx, bias));
    size_t n_parts = zero_norm_parts(n_rows, dim, zero_dtype_size(weight.dtype));
    float *partials;
    ZERO_TRY(zero_scratch_alloc(&scratch, n_parts * 3 * dim * sizeof *partials, &partials)); /* [n_parts, 3, dim] */
    ZERO_TRY_CUDA(zero_launch_layernorm_backward(stream, weight.dtype, dresidual, partials, y, dy, residual, mean, rstd,
                                                 weight.data, bias.data, n_rows, dim, ctx->absmax));
    ZERO_TRY_CUDA(zero_launch_put_partials(stream, grads, 3, partials, n_parts, dim));
    return ZERO_OK;
}

/* ---- RMSNorm ---- */

static zero_status_t rmsnorm(zero_model_context_t *ctx, void *y, float *rstd, void *residual_out, const void *residual,
                             const void *addend, zero_weight_t weight, float eps, size_t n_rows, size_t dim)
{
    ZERO_TRY(zero_check_weight(ctx, weight));
    ZERO_TRY_CUDA(zero_launch_rmsnorm(zero_model_stream(ctx), weight.dtype, y, rstd, residual_out, residual, addend,
                                      weight.data, weight.offset, eps, n_rows, dim, ctx->absmax));
    return ZERO_OK;
}

static zero_status_t rmsnorm_backward(zero_model_context_t *ctx, void *dresidual, zero_grad_t dweight, void *y,
                                      const void *dy, const void *residual, const float *rstd, zero_weight_t weight,
                                      size_t n_rows, size_t dim)
{
    cudaStream_t stream = zero_model_stream(ctx);
    zero_scratch_t scratch = zero_cuda_scratch(ctx);
    ZERO_TRY(zero_check_weight(ctx, weight));
    size_t n_parts = zero_norm_parts(n_rows, dim, zero_dtype_size(weight.dtype));
    float *partials;
    ZERO_TRY(zero_scratch_alloc(&scratch, n_parts * dim * sizeof *partials, &partials)); /* [n_parts, dim] */
    ZERO_TRY_CUDA(zero_launch_rmsnorm_backward(stream, weight.dtype, dresidual, partials, y, dy, residual, rstd,
                                               weight.data, weight.offset, n_rows, dim, ctx->absmax));
    ZERO_TRY_CUDA(zero_launch_put_partials(stream, &dweight, 1, partials, n_parts, dim));
    return ZERO_OK;
}

/* ---- RMSNorm of heads ---- */

static zero_status_t check_head_norm(const zero_model_context_t *ctx, zero_weight_t q_weight, zero_weight_t k_weight,
                                     size_t head_dim)
{
    ZERO_TRY(zero_check_weight(ctx, q_weight));
    ZERO_TRY(zero_check_weight(ctx, k_weight));
    if (head_dim > ZERO_HEAD_NORM_MAX_DIM)
        return zero_fail(ZERO_ERROR_UNSUPPORTED, "head_norm: heads of %zu elements; GPUs normalize up to %d", head_dim,
                         ZERO_HEAD_NORM_MAX_DIM);
    return ZERO_OK;
}

static zero_status_t head_norm(zero_model_context_t *ctx, void *y, const void *qkv, zero_weight_t q_weight,
                               zero_weight_t k_weight, float eps, size_t n_rows, size_t n_heads, size_t n_kv_heads,
                               size_t head_dim)
{
    const zero_head_norm_t norm = {qkv,    q_weight.data, k_weight.data, q_weight.offset, eps,
                                   n_rows, n_heads,       n_kv_heads,    head_dim};
    ZERO_TRY(check_head_norm(ctx, q_weight, k_weight, head_dim));
    ZERO_TRY_CUDA(zero_launch_head_norm(zero_model_stream(ctx), zero_model_cuda(ctx)->dtype, y, &norm));
    return ZERO_OK;
}

static zero_status_t head_norm_backward(zero_model_context_t *ctx, void *dqkv, zero_grad_t dq_weight,
                                        zero_grad_t dk_weight, const void *qkv, zero_weight_t q_weight,
                                        zero_weight_t k_weight, float eps, size_t n_rows, size_t n_heads,
                                        size_t n_kv_heads, size_t head_dim)
{
    const zero_head_norm_t norm = {qkv,    q_weight.data, k_weight.data, q_weight.offset, eps,
                                   n_rows, n_heads,       n_kv_heads,    head_dim};
    const zero_grad_t grads[] = {dq_weight, dk_weight};
    cudaStream_t stream = zero_model_stream(ctx);
    zero_scratch_t scratch = zero_cuda_scratch(ctx);
    size_t n_parts = zero_head_norm_parts(n_rows);
    float *partials; /* [n_parts, 2, head_dim] */
    ZERO_TRY(check_head_norm(ctx, q_weight, k_weight, head_dim));
    ZERO_TRY(zero_scratch_alloc(&scratch, n_parts * 2 * head_dim * sizeof *partials, &partials));
    ZERO_TRY_CUDA(zero_launch_head_norm_backward(stream, zero_model_cuda(ctx)->dtype, dqkv, partials, &norm));
    ZERO_TRY_CUDA(zero_launch_put_partials(stream, grads, 2, partials, n_parts, head_dim));
    return ZERO_OK;
}

/* ---- RMSNorm of all of q and of k ---- */

static zero_status_t projection_norm(zero_model_context_t *ctx, void *y, const void *qkv, zero_weight_t q_weight,
                                     zero_weight_t k_weight, float eps, size_t n_rows, size_t q_width, size_t k_width)
{
    const zero_projection_norm_t norm = {qkv, q_weight.data, k_weight.data, q_weight.offset,
                                         eps, n_rows,        q_width,       k_width};
    ZERO_TRY(zero_check_weight(ctx, q_weight));
    ZERO_TRY(zero_check_weight(ctx, k_weight));
    ZERO_TRY_CUDA(zero_launch_projection_norm(zero_model_stream(ctx), zero_model_cuda(ctx)->dtype, y, &norm));
    return ZERO_OK;
}

static zero_status_t projection_norm_backward(zero_model_context_t *ctx, void *dqkv, zero_grad_t dq_weight,
                                              zero_grad_t dk_weight, const void *qkv, zero_weight_t q_weight,
                                              zero_weight_t k_weight, float eps, size_t n_rows, size_t q_width,
                                              size_t k_width)
{
    const zero_projection_norm_t norm = {qkv, q_weight.data, k_weight.data, q_weight.offset,
                                         eps, n_rows,        q_width,       k_width};
    cudaStream_t stream = zero_model_stream(ctx);
    zero_scratch_t scratch = zero_cuda_scratch(ctx);
    size_t n_parts = zero_projection_norm_parts(n_rows);
    float *q_partials, *k_partials; /* [n_parts, q_width], [n_parts, k_width] */
    ZERO_TRY(zero_check_weight(ctx, q_weight));
    ZERO_TRY(zero_check_weight(ctx, k_weight));
    ZERO_TRY(zero_scratch_alloc(&scratch, n_parts * q_width * sizeof *q_partials, &q_partials));
    ZERO_TRY(zero_scratch_alloc(&scratch, n_parts * k_width * sizeof *k_partials, &k_partials));
    ZERO_TRY_CUDA(
        zero_launch_projection_norm_backward(stream, zero_model_cuda(ctx)->dtype, dqkv, q_partials, k_partials, &norm));
    ZERO_TRY_CUDA(zero_launch_put_partials(stream, &dq_weight, 1, q_partials, n_parts, q_width));
    ZERO_TRY_CUDA(zero_launch_put_partials(stream, &dk_weight, 1, k_partials, n_parts, k_width));
    return ZERO_OK;
}

/* ---- Rotary positions ---- */

static zero_status_t rope(zero_model_context_t *ctx, void *qkv, bool inverse, const zero_rope_t *rotation,
                          const zero_attention_shape_t *shape)
{
    const size_t n_rotated = zero_rope_n_rotated(rotation, shape), half = n_rotated / 2;
    ZERO_TRY(zero_rope_check(rotation, shape));
    for (size_t first = 0; first < half; first += ZERO_ROPE_FREQUENCIES) {
        zero_rope_frequencies_t frequencies = {.head_dim = (uint32_t)shape->head_dim,
                                               .half = (uint32_t)half,
                                               .first = (uint32_t)first,
                                               .n_q_heads = (uint32_t)shape->n_heads,
                                               .scale = rotation->scale != 0.0f ? rotation->scale : 1.0f,
                                               .q_scale = rotation->q_scale != 0.0f ? rotation->q_scale : 1.0f};
        for (; frequencies.n < ZERO_ROPE_FREQUENCIES && first + frequencies.n < half; ++frequencies.n)
            frequencies.of[frequencies.n] = zero_rope_frequency(rotation, first + frequencies.n, n_rotated);
        ZERO_TRY_CUDA(zero_launch_rope(zero_model_stream(ctx), zero_model_cuda(ctx)->dtype, qkv, &frequencies, inverse,
                                       rotation->starts, shape->n_batch * shape->seq_len, shape->seq_len,
                                       shape->n_heads + shape->n_kv_heads,
                                       (shape->n_heads + 2 * shape->n_kv_heads) * shape->head_dim, ctx->absmax));
    }
    return ZERO_OK;
}

/* ---- SwiGLU, GELU, gradients ---- */

static zero_status_t swiglu(zero_model_context_t *ctx, void *y, const void *gate_up, size_t n_rows, size_t width)
{
    ZERO_TRY_CUDA(zero_launch_swiglu(zero_model_stream(ctx), zero_model_cuda(ctx)->dtype, y, gate_up, n_rows, width,
                                     ctx->absmax));
    return ZERO_OK;
}

static zero_status_t swiglu_backward(zero_model_context_t *ctx, void *dgate_up, void *y, const void *dy,
                                     const void *gate_up, size_t n_rows, size_t width)
{
    ZERO_TRY_CUDA(zero_launch_swiglu_backward(zero_model_stream(ctx), zero_model_cuda(ctx)->dtype, dgate_up, y, dy,
                                              gate_up, n_rows, width, ctx->absmax));
    return ZERO_OK;
}

static zero_status_t geglu(zero_model_context_t *ctx, void *y, const void *gate_up, size_t n_rows, size_t width)
{
    ZERO_TRY_CUDA(
        zero_launch_geglu(zero_model_stream(ctx), zero_model_cuda(ctx)->dtype, y, gate_up, n_rows, width, ctx->absmax));
    return ZERO_OK;
}

static zero_status_t geglu_backward(zero_model_context_t *ctx, void *dgate_up, void *y, const void *dy,
                                    const void *gate_up, size_t n_rows, size_t width)
{
    ZERO_TRY_CUDA(zero_launch_geglu_backward(zero_model_stream(ctx), zero_model_cuda(ctx)->dtype, dgate_up, y, dy,
                                             gate_up, n_rows, width, ctx->absmax));
    return ZERO_OK;
}

static zero_status_t add_scaled(zero_model_context_t *ctx, void *y, const void *residual, const void *x, float factor,
                                size_t n_elems)
{
    ZERO_TRY_CUDA(
        zero_launch_add_scaled(zero_model_stream(ctx), zero_model_cuda(ctx)->dtype, y, residual, x, factor, n_elems));
    return ZERO_OK;
}

static zero_status_t gelu(zero_model_context_t *ctx, void *y, const void *x, size_t n_elems)
{
    ZERO_TRY_CUDA(zero_launch_gelu(zero_model_stream(ctx), zero_model_cuda(ctx)->dtype, y, x, n_elems, ctx->absmax));
    return ZERO_OK;
}

static zero_status_t gelu_backward(zero_model_context_t *ctx, void *dx, zero_grad_t dcolumns, void *y, const void *dy,
                                   const void *x, size_t n_rows, size_t width)
{
    cudaStream_t stream = zero_model_stream(ctx);
    zero_scratch_t scratch = zero_cuda_scratch(ctx);
    size_t n_parts = zero_column_sum_parts(n_rows, width);
    float *partials;
    ZERO_TRY(zero_scratch_alloc(&scratch, n_parts * width * sizeof *partials, &partials));
    ZERO_TRY_CUDA(zero_launch_gelu_backward(stream, zero_model_cuda(ctx)->dtype, dx, partials, y, dy, x, n_rows, width,
                                            ctx->absmax));
    ZERO_TRY_CUDA(zero_launch_put_partials(stream, &dcolumns, 1, partials, n_parts, width));
    return ZERO_OK;
}

static zero_status_t put_grad(zero_model_context_t *ctx, zero_grad_t grad, const float *sums, size_t n_elems)
{
    if (grad.data != NULL)
        ZERO_TRY_CUDA(zero_launch_put_grad(zero_model_stream(ctx), grad, sums, n_elems));
    return ZERO_OK;
}

static zero_status_t zero_fill(zero_model_context_t *ctx, void *y, size_t n_bytes)
{
    ZERO_TRY_CUDA(cudaMemsetAsync(y, 0, n_bytes, zero_model_stream(ctx)));
    return ZERO_OK;
}

/* ---- Embedding ---- */

static zero_status_t embed(zero_model_context_t *ctx, void *out, const int32_t *tokens, const int32_t *starts,
                           zero_weight_t token_table, zero_weight_t position_table, size_t n_batch, size_t seq_len,
                           size_t dim, size_t vocab_size)
{
    ZERO_TRY(zero_check_weight(ctx, token_table));
    ZERO_TRY(zero_check_weight(ctx, position_table));
    ZERO_TRY_CUDA(zero_launch_embed(zero_model_stream(ctx), token_table.dtype, out, tokens, starts, token_table.data,
                                    position_table.data, n_batch * seq_len, seq_len, dim, vocab_size));
    return ZERO_OK;
}

static zero_status_t put_positions(zero_model_context_t *ctx, zero_grad_t dpositions, const void *dout,
                                   const int32_t *starts, size_t n_batch, size_t seq_len, size_t n_positions,
                                   size_t dim)
{
    ZERO_TRY_CUDA(zero_launch_embed_positions_backward(zero_model_stream(ctx), zero_model_cuda(ctx)->dtype, dpositions,
                                                       dout, starts, n_batch, seq_len, n_positions, dim));
    return ZERO_OK;
}

static zero_status_t embed_backward(zero_model_context_t *ctx, zero_grad_t dtokens, zero_grad_t dpositions,
                                    const void *dout, const int32_t *tokens, const int32_t *starts, size_t n_batch,
                                    size_t seq_len, size_t n_positions, size_t dim, size_t vocab_size)
{
    cudaStream_t stream = zero_model_stream(ctx);
    zero_dtype_t dtype = zero_model_cuda(ctx)->dtype;
    zero_scratch_t scratch = zero_cuda_scratch(ctx);
    size_t n_rows = n_batch * seq_len;
    if (n_rows > INT32_MAX)
        return zero_fail(ZERO_ERROR_OVERFLOW, "%zu positions do not fit 31 bits", n_rows);
    if (dtokens.data == NULL)
        return dpositions.data == NULL
                   ? ZERO_OK
                   : put_positions(ctx, dpositions, dout, starts, n_batch, seq_len, n_positions, dim);
    zero_embed_entry_t *entries;
    ZERO_TRY(zero_scratch_alloc(&scratch, zero_embed_entries_bytes(n_rows), &entries));
    float *partials;
    ZERO_TRY(zero_scratch_alloc(&scratch, zero_embed_partials_bytes(n_rows, dim), &partials));
    void *sort;
    ZERO_TRY(zero_scratch_alloc(&scratch, zero_embed_sort_bytes(n_rows, vocab_size), &sort));
    if (!dtokens.accumulate)
        ZERO_TRY_CUDA(cudaMemsetAsync(dtokens.data, 0, vocab_size * dim * zero_dtype_size(dtokens.dtype), stream));
    ZERO_TRY_CUDA(zero_launch_embed_sort(stream, sort, entries, tokens, n_rows, vocab_size));
    ZERO_TRY_CUDA(
        zero_launch_embed_tokens_backward(stream, dtype, dtokens, partials, dout, entries, n_rows, dim, vocab_size));
    return dpositions.data == NULL ? ZERO_OK
                                   : put_positions(ctx, dpositions, dout, starts, n_batch, seq_len, n_positions, dim);
}

/* ---- Blocks ---- */

static zero_status_t sum_blocks(zero_model_context_t *ctx, void *dst, size_t dst_stride, const zero_block_t *blocks,
                                int n_blocks, size_t n_rows, size_t n_columns)
{
    if (n_blocks < 1 || n_blocks > ZERO_MAX_BLOCKS)
        return zero_fail(ZERO_ERROR_ARGUMENT, "sum_blocks: %d blocks, of 1 to %d", n_blocks, ZERO_MAX_BLOCKS);
    if (n_rows > 0 && n_columns > 0)
        ZERO_TRY_CUDA(zero_launch_sum_blocks(zero_model_stream(ctx), zero_model_cuda(ctx)->dtype, dst, dst_stride,
                                             blocks, n_blocks, n_rows, n_columns));
    return ZERO_OK;
}

static const zero_model_kernels_t table = {
    .name = "cuda",
    .activation_dtype = activation_dtype,
    .peak_flops = peak_flops,
    .workspace_bytes = workspace_bytes,
    .context_create = context_create,
    .context_destroy = context_destroy,
    .record_begin = zero_cuda_record_begin,
    .record_end = zero_cuda_record_end,
    .replay = zero_cuda_replay,
    .cuda_graph_destroy = zero_cuda_graph_destroy,
    .linear = zero_cuda_linear,
    .linear_backward_input = zero_cuda_linear_backward_input,
    .linear_backward_weight = zero_cuda_linear_backward_weight,
    .product = zero_cuda_product,
    .narrow_product = zero_cuda_narrow_product,
    .sum_columns = zero_cuda_sum_columns,
    .fp8_is_available = zero_cuda_fp8_is_available,
    .fp8_cast = zero_cuda_fp8_cast,
    .fp8_cast_weight = zero_cuda_fp8_cast_weight,
    .fp8_widen = zero_cuda_fp8_widen,
    .fp8_transpose = zero_cuda_fp8_transpose,
    .linear_fp8 = zero_cuda_linear_fp8,
    .linear_fp8_backward_input = zero_cuda_linear_fp8_backward_input,
    .linear_fp8_backward_weight = zero_cuda_linear_fp8_backward_weight,
    .layernorm = layernorm,
    .layernorm_backward = layernorm_backward,
    .rmsnorm = rmsnorm,
    .rmsnorm_backward = rmsnorm_backward,
    .head_norm = head_norm,
    .head_norm_backward = head_norm_backward,
    .projection_norm = projection_norm,
    .projection_norm_backward = projection_norm_backward,
    .rope = rope,
    .swiglu = swiglu,
    .swiglu_backward = swiglu_backward,
    .geglu = geglu,
    .geglu_backward = geglu_backward,
    .fuses_adapters = zero_cuda_fuses_adapters,
    .gated_adapters = zero_cuda_gated_adapters,
    .gated_adapters_backward = zero_cuda_gated_adapters_backward,
    .add_scaled = add_scaled,
    .gelu = gelu,
    .gelu_backward = gelu_backward,
    .attention_is_slow = zero_cuda_attention_is_slow,
    .attention = zero_cuda_attention,
    .attention_cached = zero_cuda_attention_cached,
    .attention_backward = zero_cuda_attention_backward,
    .embed = embed,
    .embed_backward = embed_backward,
    .sum_blocks = sum_blocks,
    .head_loss = zero_cuda_head_loss,
    .head_losses = zero_cuda_head_losses,
    .pair_loss = zero_cuda_pair_loss,
    .head_logits = zero_cuda_head_logits,
    .put_grad = put_grad,
    .zero_fill = zero_fill,
};

const zero_model_kernels_t *zero_model_kernels_cuda(void)
{
    return &table;
}

/* ---- graph cuda ---- */
/* Captures the work of the context's stream as a CUDA graph, and launches it again. */

zero_status_t zero_cuda_record_begin(zero_model_context_t *ctx)
{
    /* Thread-local: other threads, which know nothing of this capture, may go on calling CUDA. */
    ZERO_TRY_CUDA(cudaStreamBeginCapture(zero_model_stream(ctx), cudaStreamCaptureModeThreadLocal));
    return ZERO_OK;
}

zero_status_t zero_cuda_record_end(zero_model_context_t *ctx, zero_cuda_graph_t **graph)
{
    cudaGraph_t captured = NULL;
    cudaGraphExec_t executable = NULL;
    cudaError_t error = cudaStreamEndCapture(zero_model_stream(ctx), &captured);
    if (error == cudaSuccess)
        error = cudaGraphInstantiate(&executable, captured, 0);
    if (captured != NULL)
        cudaGraphDestroy(captured);
    ZERO_TRY(zero_cuda_status(ZERO_LOG_ERROR, error, "capturing a CUDA graph"));
    *graph = (zero_cuda_graph_t *)executable;
    return ZERO_OK;
}

zero_status_t zero_cuda_replay(zero_model_context_t *ctx, zero_cuda_graph_t *graph)
{
    ZERO_TRY_CUDA(cudaGraphLaunch((cudaGraphExec_t)graph, zero_model_stream(ctx)));
    return ZERO_OK;
}

void zero_cuda_graph_destroy(zero_cuda_graph_t *graph)
{
    if (graph != NULL)
        cudaGraphExecDestroy((cudaGraphExec_t)graph);
}
