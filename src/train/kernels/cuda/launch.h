/* launch.h - the launchers of the CUDA model kernels, for the C files that decide what runs.
 *
 * A launcher queues its kernels in `stream` and returns the launch's error. It neither allocates nor waits. `dtype` is
 * that of activations and weights. Pointers need only be aligned to an element; they are read 16 bytes at a time if
 * they and the sizes allow it. absmax: the context's. Contracts are those of kernels.h unless stated here. Valid as C17
 * and CUDA C++.
 */
#ifndef ZERO_MODEL_LAUNCH_H
#define ZERO_MODEL_LAUNCH_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "train/kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ZERO_SMS 132 /* of an H200 */

/* ---- mlp.cu ---- */
cudaError_t zero_launch_gelu(cudaStream_t stream, zero_dtype_t dtype, void *y, const void *x, size_t n_elems,
                             uint32_t *absmax);
/* Writes partials, fp32 [zero_column_sum_parts(n_rows, width), width]: sums of dx's columns. */
cudaError_t zero_launch_gelu_backward(cudaStream_t stream, zero_dtype_t dtype, void *dx, float *partials, void *y,
                                      const void *dy, const void *x, size_t n_rows, size_t width, uint32_t *absmax);

/* ---- gemm.cu ---- */

/* Copies row[n_columns] to every row of y[n_rows, n_columns]. */
cudaError_t zero_launch_fill_rows(cudaStream_t stream, zero_dtype_t dtype, void *y, const void *row, size_t n_rows,
                                  size_t n_columns);
/* Distinguishes two tensors: equal bits have equal hashes, in whatever order the threads run. */
typedef struct zero_fingerprint {
    unsigned long long hash, n_unlike_first; /* elements whose bits are not the first one's */
} zero_fingerprint_t;
/* Sets *fingerprint, in device memory, to that of x[n_rows, n_columns], whose rows have stride ld. */
cudaError_t zero_launch_fingerprint(cudaStream_t stream, zero_dtype_t dtype, zero_fingerprint_t *fingerprint,
                                    const void *x, size_t n_rows, size_t n_columns, size_t ld);

/* ---- column_sum.cu ---- */

/* Returns how many rows of partial sums zero_launch_column_sum makes. */
size_t zero_column_sum_parts(size_t n_rows, size_t n_columns);
/* Returns the most bytes that the partial sums of up to max_columns columns take. */
size_t zero_column_sum_bytes(size_t max_columns);
/* Writes the column sums of x[n_rows, n_columns] to grad[n_columns]; partials: fp32 [parts, n_columns], scratch. */
cudaError_t zero_launch_column_sum(cudaStream_t stream, zero_dtype_t dtype, zero_grad_t grad, const void *x,
                                   float *partials, size_t n_rows, size_t n_columns);
#define ZERO_MAX_PUT 3
/* Sums partials, fp32 [n_parts, n_grads, n_columns], over the parts in a fixed tree and writes the sums to
 * grads[n_grads], at most ZERO_MAX_PUT; those without data are skipped. */
cudaError_t zero_launch_put_partials(cudaStream_t stream, const zero_grad_t *grads, size_t n_grads,
                                     const float *partials, size_t n_parts, size_t n_columns);
cudaError_t zero_launch_put_grad(cudaStream_t stream, zero_grad_t grad, const float *sums, size_t n_elems);

/* ---- norms.cu ---- */
cudaError_t zero_launch_layernorm(cudaStream_t stream, zero_dtype_t dtype, void *y, float *mean, float *rstd,
                                  void *residual_out, const void *residual, const void *addend, const void *weight,
                                  const void *bias, float eps, size_t n_rows, size_t dim, uint32_t *absmax);
cudaError_t zero_launch_rmsnorm(cudaStream_t stream, zero_dtype_t dtype, void *y, float *rstd, void *residual_out,
                                const void *residual, const void *addend, const void *weight, float offset, float eps,
                                size_t n_rows, size_t dim, uint32_t *absmax);
/* Returns how many warps take a row in backward: two packs of 16 bytes per lane, or one warp if three are enough. */
static inline size_t zero_norm_row_warps(size_t dim, size_t element_bytes)
{
    size_t n_packs = (dim * element_bytes + 15) / 16;
    return n_packs <= 3 * 32 ? 1 : (n_packs + 63) / 64;
}
#define ZERO_NORM_WARPS 16 /* per SM */
/* Returns how many rows of partial sums the blocks of backward make, one per block. Rows of one warp share one block on
 * each SM. Longer rows have a block of their own, as many on each SM as its warps allow. */
static inline size_t zero_norm_parts(size_t n_rows, size_t dim, size_t element_bytes)
{
    size_t row_warps = zero_norm_row_warps(dim, element_bytes), wanted = (n_rows + 15) / 16;
    size_t most = ZERO_SMS * (row_warps > 1 && row_warps < ZERO_NORM_WARPS ? ZERO_NORM_WARPS / row_warps : 1);
    return wanted < most ? wanted : most;
}
/* Returns the most elements that dim times parts can be, for rows of up to max_dim. */
static inline size_t zero_norm_most_partials(size_t max_dim)
{
    size_t of_short_rows = (size_t)ZERO_NORM_WARPS * 64 * 8; /* bf16: 8 to a pack */
    return ZERO_SMS * (max_dim > of_short_rows ? max_dim : of_short_rows);
}
/* Writes partials, fp32 [parts, 3, dim]: sums of dy h, of dy and of the new dresidual. y: the norm's output,
 * recomputed, or NULL. */
cudaError_t zero_launch_layernorm_backward(cudaStream_t stream, zero_dtype_t dtype, void *dresidual, float *partials,
                                           void *y, const void *dy, const void *residual, const float *mean,
                                           const float *rstd, const void *weight, const void *bias, size_t n_rows,
                                           size_t dim, uint32_t *absmax);
/* Writes partials, fp32 [parts, dim]: sums of dy h. */
cudaError_t zero_launch_rmsnorm_backward(cudaStream_t stream, zero_dtype_t dtype, void *dresidual, float *partials,
                                         void *y, const void *dy, const void *residual, const float *rstd,
                                         const void *weight, float offset, size_t n_rows, size_t dim, uint32_t *absmax);

/* ---- head_norm.cu ---- */
/* What the kernels read of qkv [n_rows, (n_heads + 2 n_kv_heads) * head_dim], and the weights [head_dim]. */
typedef struct zero_head_norm {
    const void *qkv, *q_weight, *k_weight;
    float offset, eps; /* offset: added to the weights */
    size_t n_rows, n_heads, n_kv_heads, head_dim;
} zero_head_norm_t;
#define ZERO_HEAD_NORM_MAX_DIM 256
/* Returns how many rows of partial sums backward makes: one per block. */
static inline size_t zero_head_norm_parts(size_t n_rows)
{
    size_t wanted = (n_rows + 7) / 8, most = 4 * ZERO_SMS;
    return wanted < most ? wanted : most;
}
cudaError_t zero_launch_head_norm(cudaStream_t stream, zero_dtype_t dtype, void *y, const zero_head_norm_t *norm);
/* Turns dqkv into the gradient of qkv and writes partials, fp32 [parts, 2, head_dim]: the sums of dy h of q's and k's
 * heads. */
cudaError_t zero_launch_head_norm_backward(cudaStream_t stream, zero_dtype_t dtype, void *dqkv, float *partials,
                                           const zero_head_norm_t *norm);

/* ---- projection_norm.cu ---- */
/* What the kernels read of qkv [n_rows, q_width + 2 k_width], and the weights [q_width] and [k_width]. */
typedef struct zero_projection_norm {
    const void *qkv, *q_weight, *k_weight;
    float offset, eps;
    size_t n_rows, q_width, k_width;
} zero_projection_norm_t;
/* Returns how many rows of partial sums backward makes: one per block. */
static inline size_t zero_projection_norm_parts(size_t n_rows)
{
    size_t wanted = (n_rows + 7) / 8, most = 2 * ZERO_SMS;
    return wanted < most ? wanted : most;
}
cudaError_t zero_launch_projection_norm(cudaStream_t stream, zero_dtype_t dtype, void *y,
                                        const zero_projection_norm_t *norm);
/* Turns dqkv into the gradient of qkv and writes the sums of dy h of q, q_partials, fp32 [parts, q_width], and of k. */
cudaError_t zero_launch_projection_norm_backward(cudaStream_t stream, zero_dtype_t dtype, void *dqkv, float *q_partials,
                                                 float *k_partials, const zero_projection_norm_t *norm);

/* ---- rope.cu ---- */
#define ZERO_ROPE_FREQUENCIES 256 /* the most of one launch: heads of 512 */
/* Frequencies first .. first + n of a head's head_dim / 2, in radians per position. */
typedef struct zero_rope_frequencies {
    uint32_t head_dim, half, first, n; /* half: of the rotated elements of a head */
    uint32_t n_q_heads;
    float scale, q_scale; /* of what is rotated, and of that in the first n_q_heads heads once more */
    float of[ZERO_ROPE_FREQUENCIES];
} zero_rope_frequencies_t;
/* Rotates those pairs in the first n_heads heads of every row; rows have stride row_elems. starts: as in zero_mask_t,
 * or NULL. */
cudaError_t zero_launch_rope(cudaStream_t stream, zero_dtype_t dtype, void *qkv,
                             const zero_rope_frequencies_t *frequencies, bool inverse, const int32_t *starts,
                             size_t n_rows, size_t seq_len, size_t n_heads, size_t row_elems, uint32_t *absmax);

/* ---- mlp.cu ---- */
cudaError_t zero_launch_swiglu(cudaStream_t stream, zero_dtype_t dtype, void *y, const void *gate_up, size_t n_rows,
                               size_t width, uint32_t *absmax);
cudaError_t zero_launch_swiglu_backward(cudaStream_t stream, zero_dtype_t dtype, void *dgate_up, void *y,
                                        const void *dy, const void *gate_up, size_t n_rows, size_t width,
                                        uint32_t *absmax);

cudaError_t zero_launch_geglu(cudaStream_t stream, zero_dtype_t dtype, void *y, const void *gate_up, size_t n_rows,
                              size_t width, uint32_t *absmax);
cudaError_t zero_launch_geglu_backward(cudaStream_t stream, zero_dtype_t dtype, void *dgate_up, void *y, const void *dy,
                                       const void *gate_up, size_t n_rows, size_t width, uint32_t *absmax);
/* residual NULL: none */
cudaError_t zero_launch_add_scaled(cudaStream_t stream, zero_dtype_t dtype, void *y, const void *residual,
                                   const void *x, float factor, size_t n_elems);

/* ---- loss.cu ---- */

/* Sets losses[row] to -log softmax(logits[row])[target]. With grad_scale (device memory; NULL: loss only) the logits
 * become grad_scale[0] * loss_weight * (softmax - onehot(target)) in place. Rows have stride ld. A target outside the
 * vocabulary makes the row's loss and gradient NaN. */
cudaError_t zero_launch_cross_entropy(cudaStream_t stream, zero_dtype_t dtype, void *logits, double *losses,
                                      const int32_t *targets, const float *grad_scale, double loss_weight,
                                      size_t n_rows, size_t vocab_size, size_t ld);
/* Sets to zero the losses of rows whose target is ZERO_NO_TARGET and, with has_gradient, their logits. After
 * zero_launch_cross_entropy, which makes them NaN. */
cudaError_t zero_launch_skip_rows(cudaStream_t stream, zero_dtype_t dtype, void *logits, double *losses,
                                  const int32_t *targets, bool has_gradient, size_t n_rows, size_t vocab_size,
                                  size_t ld);
/* Adds loss_weight * the sum of losses, in a fixed tree, to *loss_sum. */
cudaError_t zero_launch_add_losses(cudaStream_t stream, double *loss_sum, const double *losses, double loss_weight,
                                   size_t n_rows);

/* ---- pair_loss.cu ---- */
/* dtype: of dx. */
cudaError_t zero_launch_pair_loss(cudaStream_t stream, zero_dtype_t dtype, const zero_pair_loss_t *pairs);

/* ---- embed.cu ---- */
cudaError_t zero_launch_embed(cudaStream_t stream, zero_dtype_t dtype, void *out, const int32_t *tokens,
                              const int32_t *starts, const void *token_table, const void *position_table, size_t n_rows,
                              size_t seq_len, size_t dim, size_t vocab_size);
/* A position in the order of tokens: those of one token are next to each other and ascending. See embed.cu. */
typedef struct zero_embed_entry zero_embed_entry_t;
size_t zero_embed_entries_bytes(size_t n_rows);
size_t zero_embed_sort_bytes(size_t n_rows, size_t vocab_size); /* of scratch for zero_launch_embed_sort */
cudaError_t zero_launch_embed_sort(cudaStream_t stream, void *scratch, zero_embed_entry_t *entries,
                                   const int32_t *tokens, size_t n_rows, size_t vocab_size);
/* Adds to or overwrites the rows of tokens that occur, and touches no others. `entries` are those of
 * zero_launch_embed_sort, which must be the call before in the same stream. partials: scratch of
 * zero_embed_partials_bytes. Tokens outside the vocabulary are ignored. */
size_t zero_embed_partials_bytes(size_t n_rows, size_t dim);
cudaError_t zero_launch_embed_tokens_backward(cudaStream_t stream, zero_dtype_t dtype, zero_grad_t dtokens,
                                              float *partials, const void *dout, const zero_embed_entry_t *entries,
                                              size_t n_rows, size_t dim, size_t vocab_size);
cudaError_t zero_launch_embed_positions_backward(cudaStream_t stream, zero_dtype_t dtype, zero_grad_t dpositions,
                                                 const void *dout, const int32_t *starts, size_t n_batch,
                                                 size_t seq_len, size_t n_positions, size_t dim);

/* ---- blocks.cu ---- */
cudaError_t zero_launch_sum_blocks(cudaStream_t stream, zero_dtype_t dtype, void *dst, size_t dst_stride,
                                   const zero_block_t *blocks, int n_blocks, size_t n_rows, size_t n_columns);

/* ---- attention/simt/simt.cu ---- */
/* mask: never NULL, and its window below seq_len. */
#define ZERO_ATTENTION_MAX_HEAD_DIM 256
cudaError_t zero_launch_attention(cudaStream_t stream, zero_dtype_t dtype, void *out, float *logsumexp, const void *qkv,
                                  const zero_mask_t *mask, const zero_attention_shape_t *shape);
/* Writes delta, fp32 [n_batch, n_heads, seq_len]. */
cudaError_t zero_launch_attention_backward(cudaStream_t stream, zero_dtype_t dtype, void *dqkv, float *delta,
                                           const void *dout, const void *qkv, const void *out, const float *logsumexp,
                                           const zero_mask_t *mask, const zero_attention_shape_t *shape);

/* ---- attention/mma/forward_mma.cu and backward_mma.cu ---- */
/* Like those above, by tensor cores, for what zero_attention_mma_may_serve accepts. Tensors of dtype are aligned to 16
 * bytes. */
cudaError_t zero_launch_attention_mma(cudaStream_t stream, zero_dtype_t dtype, void *out, float *logsumexp,
                                      const void *qkv, const zero_mask_t *mask, const zero_attention_shape_t *shape);
cudaError_t zero_launch_attention_mma_backward(cudaStream_t stream, zero_dtype_t dtype, void *dqkv, float *delta,
                                               const void *dout, const void *qkv, const void *out,
                                               const float *logsumexp, const zero_mask_t *mask,
                                               const zero_attention_shape_t *shape);

/* ---- attention/hopper/causal.cu, forward_causal_mma.cu and backward_causal.cu ---- */
/* Returns whether the current GPU is a Hopper. If no GPU is found, assumes one. */
bool zero_attention_is_hopper(void);
/* Like the others. The workspace and tensors of dtype are aligned to 16 bytes. At most 65535 sequences, of at most
 * 65535 tiles of 64 positions. */
#define ZERO_ATTENTION_CAUSAL_FORWARD_BYTES sizeof(int) /* of workspace */
cudaError_t zero_launch_attention_causal(cudaStream_t stream, zero_dtype_t dtype, void *out, float *logsumexp,
                                         void *workspace, const void *qkv, const zero_attention_shape_t *shape);
size_t zero_attention_causal_backward_bytes(const zero_attention_shape_t *shape);
cudaError_t zero_launch_attention_causal_backward(cudaStream_t stream, zero_dtype_t dtype, void *dqkv, void *workspace,
                                                  const void *dout, const void *qkv, const void *out,
                                                  const float *logsumexp, const zero_attention_shape_t *shape);

/* ---- attention/decode/attention_cached.cu ---- */
#define ZERO_CACHED_CHUNK 256 /* keys that a block takes at a time */
#define ZERO_CACHED_STATS 2   /* numbers before a split's sums: their maximum and sum */
/* Rows first_row .. of qkv, and what they see. */
typedef struct zero_cached {
    const int32_t *starts; /* device memory: *starts is -first */
    int first_row, n_heads, n_kv_heads, head_dim, window, n_splits;
    int lanes; /* the launcher's own */
} zero_cached_t;
/* Attention of n_rows rows, at most 65535. partials: fp32 [n_rows, n_heads, n_splits, head_dim + ZERO_CACHED_STATS]. */
cudaError_t zero_launch_attention_cached(cudaStream_t stream, zero_dtype_t dtype, void *out, float *partials,
                                         void *cache, const void *qkv, const zero_cached_t *shape, int n_rows);

#ifdef __cplusplus
}
#endif

/* ---- fp8 launch ---- */
/* The launchers of fp8.cu, by the same rules. x is bf16 [n_rows, n_columns]; extents are
 * multiples of 16 and addresses aligned to 16 bytes. Valid as C17 and CUDA C++. */

#ifdef __cplusplus
extern "C" {
#endif

/* Sets *absmax, in device memory, to the bits of the largest |x| as fp32. */
cudaError_t zero_launch_fp8_absmax(cudaStream_t stream, uint32_t *absmax, const void *x, size_t n_elems);
/* Sets the scales from x8->scales->absmax and casts. */
cudaError_t zero_launch_fp8_cast(cudaStream_t stream, const zero_fp8_t *x8, const void *x, size_t n_rows,
                                 size_t n_columns);
/* weight, bf16 [n_elems], is aligned to 16 bytes, as bytes.data is. */
cudaError_t zero_launch_fp8_widen(cudaStream_t stream, void *weight, zero_fp8_param_t bytes, size_t n_elems);
cudaError_t zero_launch_fp8_transpose(cudaStream_t stream, uint8_t *columns, const uint8_t *rows, size_t n_rows,
                                      size_t n_columns);

#ifdef __cplusplus
}
#endif

#endif
