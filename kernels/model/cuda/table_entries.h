/* table_entries.h - the functions of the CUDA table that have a C file of their own; model_cuda.c puts them into the
 * table. Contracts are in model.h.
 */
#ifndef ZERO_TABLE_ENTRIES_H
#define ZERO_TABLE_ENTRIES_H

#include "kernels/model/attention_shape.h"
#include "kernels/model/model.h"

/* ---- linear_cuda.c ---- */

size_t zero_cuda_linear_workspace(const zero_model_limits_t *limits);
zero_status_t zero_cuda_linear(zero_model_context_t *ctx, void *y, const void *x, zero_weight_t weight,
                               zero_linear_layout_t layout, zero_weight_t bias, size_t n_rows, size_t n_in,
                               size_t n_out);
zero_status_t zero_cuda_linear_backward_input(zero_model_context_t *ctx, void *dx, bool accumulate, const void *dy,
                                              zero_weight_t weight, zero_linear_layout_t layout, size_t n_rows,
                                              size_t n_in, size_t n_out);
zero_status_t zero_cuda_linear_backward_weight(zero_model_context_t *ctx, zero_grad_t dweight,
                                               zero_linear_layout_t layout, zero_grad_t dbias, const void *x,
                                               const void *dy, size_t n_rows, size_t n_in, size_t n_out);
zero_status_t zero_cuda_sum_columns(zero_model_context_t *ctx, zero_grad_t sums, const void *x, size_t n_rows,
                                    size_t n_columns);

/* ---- fp8/fp8_cuda.c ---- */

bool zero_cuda_fp8_is_available(zero_model_context_t *ctx, char why[ZERO_MODEL_WHY]);
zero_status_t zero_cuda_fp8_cast(zero_model_context_t *ctx, const zero_fp8_t *x8, const void *x, bool absmax_is_known,
                                 size_t n_rows, size_t n_columns);
zero_status_t zero_cuda_fp8_cast_weight(zero_model_context_t *ctx, const zero_fp8_t *w8, zero_weight_t weight,
                                        bool absmax_is_known, size_t n_rows, size_t n_columns);
zero_status_t zero_cuda_fp8_transpose(zero_model_context_t *ctx, uint8_t *columns, const uint8_t *rows, size_t n_rows,
                                      size_t n_columns);
zero_status_t zero_cuda_linear_fp8(zero_model_context_t *ctx, void *y, const zero_fp8_t *x8, const zero_fp8_t *w8,
                                   zero_linear_layout_t layout, zero_weight_t bias, size_t n_rows, size_t n_in,
                                   size_t n_out);
zero_status_t zero_cuda_linear_fp8_backward_input(zero_model_context_t *ctx, void *dx, const zero_fp8_t *dy8,
                                                  const zero_fp8_t *w8, zero_linear_layout_t layout, size_t n_rows,
                                                  size_t n_in, size_t n_out);
zero_status_t zero_cuda_linear_fp8_backward_weight(zero_model_context_t *ctx, zero_grad_t dweight,
                                                   zero_linear_layout_t layout, const zero_fp8_t *x8,
                                                   const zero_fp8_t *dy8, size_t n_rows, size_t n_in, size_t n_out);

/* ---- loss_cuda.c ---- */

size_t zero_cuda_loss_workspace(const zero_model_limits_t *limits);
zero_status_t zero_cuda_head_loss(zero_model_context_t *ctx, double *loss_sum, void *dx, zero_grad_t dweight,
                                  const void *x, zero_weight_t weight, const int32_t *targets, double loss_weight,
                                  const float *grad_scale, size_t n_rows, size_t dim, size_t vocab_size);
zero_status_t zero_cuda_head_logits(zero_model_context_t *ctx, float *logits, const void *x, zero_weight_t weight,
                                    size_t n_rows, size_t dim, size_t vocab_size);

/* ---- attention/attention_cuda.c ---- */

zero_status_t zero_cuda_attention_create(zero_model_context_t *ctx); /* what the context keeps for attention */
void zero_cuda_attention_destroy(zero_model_context_t *ctx);
size_t zero_cuda_attention_workspace(const zero_model_limits_t *limits);
bool zero_cuda_attention_is_slow(zero_model_context_t *ctx, const zero_mask_t *mask, size_t n_batch, size_t seq_len,
                                 size_t n_heads, size_t n_kv_heads, size_t head_dim, char why[ZERO_MODEL_WHY]);
zero_status_t zero_cuda_attention(zero_model_context_t *ctx, void *out, float *logsumexp, const void *qkv,
                                  const zero_mask_t *mask, size_t n_batch, size_t seq_len, size_t n_heads,
                                  size_t n_kv_heads, size_t head_dim);
zero_status_t zero_cuda_attention_backward(zero_model_context_t *ctx, void *dqkv, const void *dout, const void *qkv,
                                           const void *out, const float *logsumexp, const zero_mask_t *mask,
                                           size_t n_batch, size_t seq_len, size_t n_heads, size_t n_kv_heads,
                                           size_t head_dim);
/* Refuses shapes that no kernel of attention takes. */
zero_status_t zero_cuda_check_attention(const zero_attention_shape_t *shape);

/* ---- decode/attention_cached_cuda.c ---- */

size_t zero_cuda_cached_workspace(const zero_model_limits_t *limits);
zero_status_t zero_cuda_attention_cached(zero_model_context_t *ctx, void *out, float *logsumexp, void *cache,
                                         const void *qkv, const zero_mask_t *mask, size_t n_new, size_t n_heads,
                                         size_t n_kv_heads, size_t head_dim);

/* ---- graph_cuda.c ---- */

zero_status_t zero_cuda_record_begin(zero_model_context_t *ctx);
zero_status_t zero_cuda_record_end(zero_model_context_t *ctx, zero_cuda_graph_t **graph);
zero_status_t zero_cuda_replay(zero_model_context_t *ctx, zero_cuda_graph_t *graph);
void zero_cuda_graph_destroy(zero_cuda_graph_t *graph);

#endif
