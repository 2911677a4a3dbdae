/* model.h - the arithmetic of a transformer: one table of functions per device.
 *
 * What the trainer computes with: linear layers, attention, norms, activations, embedding, the loss. Activations are
 * of the device's own dtype (`activation_dtype`: fp32 on the CPU; the configured dtype on CUDA); weights and their
 * gradients are of the dtype in each zero_weight_t / zero_grad_t. All sums are taken in fp32 or wider and in a fixed
 * order: the same inputs give the same bits, run to run.
 *
 * Shapes are in row-major order. n_rows = B * T (sequences times positions). No function allocates; scratch comes from
 * the workspace that zero_model_workspace_bytes sized. Ordered in ctx->stream; on the CPU done on return.
 * Called by src/train/ only; libzero does not link these.
 */
#ifndef ZERO_MODEL_H
#define ZERO_MODEL_H

#include "zero.h"

typedef struct zero_model_context {
    zero_stream_t stream;
    void *workspace; /* device memory, 256-byte aligned */
    size_t workspace_bytes;
    void *backend; /* the device's own handles; NULL on the CPU */
} zero_model_context_t;

/* A linear layer's matrix. HF's GPT-2 keeps Conv1D weights as [n_in, n_out]; nn.Linear keeps [n_out, n_in]. */
typedef struct zero_weight {
    const void *data; /* NULL: no such weight (a missing bias) */
    zero_dtype_t dtype;
} zero_weight_t;

typedef enum zero_linear_layout { ZERO_LINEAR_IN_OUT, ZERO_LINEAR_OUT_IN } zero_linear_layout_t;

/* The largest sizes a run will use; workspace is sized by them. */
typedef struct zero_model_limits {
    size_t n_rows;     /* B * T */
    size_t seq_len;    /* T */
    size_t max_linear; /* largest n_in * n_out of any linear layer, the output head included */
    size_t max_width;  /* largest n_in or n_out, the vocabulary not included */
    size_t n_heads, head_dim;
    size_t vocab_size;
    zero_dtype_t dtype; /* of weights */
} zero_model_limits_t;

#define ZERO_MODEL_WHY 768 /* bytes of a reason, one clause without a newline */

/* Work that was recorded, to be replayed. */
typedef struct zero_cuda_graph zero_cuda_graph_t;

typedef struct zero_model_kernels {
    const char *name;
    zero_dtype_t (*activation_dtype)(zero_dtype_t weight_dtype);
    /* Floating-point operations per second that the device's data sheet gives for products of matrices of this dtype
     * (dense, fp32 sums); 0 where it is not known. NULL: never known. */
    double (*peak_flops)(zero_dtype_t weight_dtype);

    size_t (*workspace_bytes)(const zero_model_limits_t *limits);
    zero_status_t (*context_create)(zero_model_context_t *ctx, zero_stream_t stream, void *workspace,
                                    const zero_model_limits_t *limits);
    void (*context_destroy)(zero_model_context_t *ctx);

    /* What ctx is asked for between record_begin and record_end is kept instead of done; replay queues it, any number
     * of times, with the addresses and numbers it was recorded with. Every function of this table can be recorded once
     * it has run with the same sizes. After a failure in between record_end is still due, and fails. NULL where a
     * recording would save nothing. */
    zero_status_t (*record_begin)(zero_model_context_t *ctx);
    zero_status_t (*record_end)(zero_model_context_t *ctx, zero_cuda_graph_t **recording);
    zero_status_t (*replay)(zero_model_context_t *ctx, zero_cuda_graph_t *recording);
    void (*cuda_graph_destroy)(zero_cuda_graph_t *recording); /* when it is not under way; NULL is allowed */

    /* y[n_rows, n_out] = x[n_rows, n_in] W + bias[n_out] */
    zero_status_t (*linear)(zero_model_context_t *ctx, void *y, const void *x, zero_weight_t weight,
                            zero_linear_layout_t layout, zero_weight_t bias, size_t n_rows, size_t n_in, size_t n_out);
    /* dx[n_rows, n_in] = dy[n_rows, n_out] W^T, added to dx where accumulate */
    zero_status_t (*linear_backward_input)(zero_model_context_t *ctx, void *dx, bool accumulate, const void *dy,
                                           zero_weight_t weight, zero_linear_layout_t layout, size_t n_rows,
                                           size_t n_in, size_t n_out);
    /* dW = x^T dy in the weight's layout, dbias[n_out] = column sums of dy (dbias.data NULL: none); each is added or
     * overwritten as its zero_grad_t says, and rounded to its dtype. */
    zero_status_t (*linear_backward_weight)(zero_model_context_t *ctx, zero_grad_t dweight, zero_linear_layout_t layout,
                                            zero_grad_t dbias, const void *x, const void *dy, size_t n_rows,
                                            size_t n_in, size_t n_out);

    /* residual += addend (skipped when addend is NULL); y = LayerNorm(residual) * weight + bias. [n_rows, dim];
     * mean, rstd: fp32 [n_rows]. The sum is written back to residual_out, which may be residual. */
    zero_status_t (*layernorm)(zero_model_context_t *ctx, void *y, float *mean, float *rstd, void *residual_out,
                               const void *residual, const void *addend, zero_weight_t weight, zero_weight_t bias,
                               float eps, size_t n_rows, size_t dim);
    /* dresidual += gradient through the norm of dy. dweight, dbias [dim]. dcolumns [dim] = column sums of what
     * dresidual then holds: the bias gradient of the linear layer that the residual ends (data NULL: none). y, unless
     * NULL, is made again, with layernorm's bits. */
    zero_status_t (*layernorm_backward)(zero_model_context_t *ctx, void *dresidual, zero_grad_t dweight,
                                        zero_grad_t dbias, zero_grad_t dcolumns, void *y, const void *dy,
                                        const void *residual, const float *mean, const float *rstd,
                                        zero_weight_t weight, zero_weight_t bias, size_t n_rows, size_t dim);

    /* RMSNorm (Zhang & Sennrich 2019, arXiv:1910.07467), otherwise as layernorm: residual += addend (skipped when
     * addend is NULL); y = residual * rstd * weight, rstd = 1 / sqrt(mean(residual^2) + eps). [n_rows, dim]; rstd: fp32
     * [n_rows]. The sum is written back to residual_out, which may be residual. */
    zero_status_t (*rmsnorm)(zero_model_context_t *ctx, void *y, float *rstd, void *residual_out, const void *residual,
                             const void *addend, zero_weight_t weight, float eps, size_t n_rows, size_t dim);
    /* dresidual += gradient through the norm of dy. dweight [dim]. y, unless NULL, is made again, with
     * rmsnorm's bits. */
    zero_status_t (*rmsnorm_backward)(zero_model_context_t *ctx, void *dresidual, zero_grad_t dweight, void *y,
                                      const void *dy, const void *residual, const float *rstd, zero_weight_t weight,
                                      size_t n_rows, size_t dim);

    /* Rotary positions (Su et al. 2021, arXiv:2104.09864) as in Hugging Face's Llama: in every q and k head of qkv[B,
     * T, (n_heads + 2 n_kv_heads) * head_dim], elements i and i + head_dim / 2 are turned as a pair by the angle
     * position * theta^(-2 i / head_dim), in place; v stays. inverse turns back, which is rope's own gradient. head_dim
     * is even. */
    zero_status_t (*rope)(zero_model_context_t *ctx, void *qkv, bool inverse, float theta, size_t n_batch,
                          size_t seq_len, size_t n_heads, size_t n_kv_heads, size_t head_dim);

    /* y[n_rows, width] = silu(gate) * up; gate_up[n_rows, 2 width] holds a row's gates, then its ups. */
    zero_status_t (*swiglu)(zero_model_context_t *ctx, void *y, const void *gate_up, size_t n_rows, size_t width);
    /* dgate_up from dy and gate_up, which it may be. y, unless NULL, is made again, with swiglu's bits. */
    zero_status_t (*swiglu_backward)(zero_model_context_t *ctx, void *dgate_up, void *y, const void *dy,
                                     const void *gate_up, size_t n_rows, size_t width);

    /* y = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), HF's gelu_new */
    zero_status_t (*gelu)(zero_model_context_t *ctx, void *y, const void *x, size_t n_elems);
    /* dx[n_rows, width] = dy * gelu'(x); dx may be dy. dcolumns [width] = column sums of dx: the bias gradient of the
     * linear layer that made x (data NULL: none). y, unless NULL, is made again, with gelu's bits. */
    zero_status_t (*gelu_backward)(zero_model_context_t *ctx, void *dx, zero_grad_t dcolumns, void *y, const void *dy,
                                   const void *x, size_t n_rows, size_t width);

    /* Causal self-attention. qkv[B, T, (n_heads + 2 n_kv_heads) * head_dim] holds q, then k, then v heads; out[B, T,
     * n_heads * head_dim]; logsumexp fp32 [B, n_heads, T] of the scaled scores; scale = 1/sqrt(head_dim). */
    zero_status_t (*attention)(zero_model_context_t *ctx, void *out, float *logsumexp, const void *qkv, size_t n_batch,
                               size_t seq_len, size_t n_heads, size_t n_kv_heads, size_t head_dim);
    zero_status_t (*attention_backward)(zero_model_context_t *ctx, void *dqkv, const void *dout, const void *qkv,
                                        const void *out, const float *logsumexp, size_t n_batch, size_t seq_len,
                                        size_t n_heads, size_t n_kv_heads, size_t head_dim);

    /* Whether this device has a faster way to compute attention, and takes the slower for these sizes, forward and
     * backward alike. `why` then says what stands in the way, and what would do. Before or after the first call; it may
     * take a while. NULL: there is one way. */
    bool (*attention_is_slow)(zero_model_context_t *ctx, size_t n_batch, size_t seq_len, size_t n_heads,
                              size_t n_kv_heads, size_t head_dim, char why[ZERO_MODEL_WHY]);

    /* out[B*T, dim] = token_table[token] + position_table[position] (none where its data is NULL).
     * tokens int32 [B, T], device memory; token_table[vocab_size, dim]. */
    zero_status_t (*embed)(zero_model_context_t *ctx, void *out, const int32_t *tokens, zero_weight_t token_table,
                           zero_weight_t position_table, size_t n_batch, size_t seq_len, size_t dim, size_t vocab_size);
    /* Rows of dtokens[vocab_size, dim] that no token names are zeroed unless dtokens.accumulate. Sums in position
     * order, no float atomics. */
    zero_status_t (*embed_backward)(zero_model_context_t *ctx, zero_grad_t dtokens, zero_grad_t dpositions,
                                    const void *dout, const int32_t *tokens, size_t n_batch, size_t seq_len, size_t dim,
                                    size_t vocab_size);

    /* Output head and softmax cross-entropy, fused and chunked over rows: the logits of a chunk alone exist at a time.
     * x[n_rows, dim], weight[vocab_size, dim] (ZERO_LINEAR_OUT_IN), targets int32 [n_rows].
     * *loss_sum += loss_weight * sum of the rows' losses, in nats (double, device memory, fixed order).
     * With dx: dx[n_rows, dim] and dweight receive the gradient of grad_scale[0] * loss_weight * (sum of losses);
     * grad_scale is device memory. dx NULL: loss only, dweight not touched. dx may be x. n_rows: as many as the limits
     * say, by which chunks and their scratch are cut. */
    zero_status_t (*head_loss)(zero_model_context_t *ctx, double *loss_sum, void *dx, zero_grad_t dweight,
                               const void *x, zero_weight_t weight, const int32_t *targets, double loss_weight,
                               const float *grad_scale, size_t n_rows, size_t dim, size_t vocab_size);
    /* logits fp32 [n_rows, vocab_size] = x weight^T, for sampling. */
    zero_status_t (*head_logits)(zero_model_context_t *ctx, float *logits, const void *x, zero_weight_t weight,
                                 size_t n_rows, size_t dim, size_t vocab_size);

    /* grad[n_elems] = fp32 sums, added or overwritten, one rounding */
    zero_status_t (*put_grad)(zero_model_context_t *ctx, zero_grad_t grad, const float *sums, size_t n_elems);
    zero_status_t (*zero_fill)(zero_model_context_t *ctx, void *y, size_t n_bytes);
} zero_model_kernels_t;

/* The CPU's table (OpenBLAS, OpenMP), of the best instruction set this machine has (ZERO_CPU_ISA as in shard.h). */
const zero_model_kernels_t *zero_model_kernels_cpu(void);

/* The GPU's table (cuBLASLt, cuDNN), in builds with CUDA. Tokens and targets cannot be refused here without waiting for
 * the device: one outside the vocabulary gives NaN, which no step lets into the weights. */
const zero_model_kernels_t *zero_model_kernels_cuda(void);

/* The table of a device; ZERO_DEVICE_AUTO is the CPU. NULL where it is not in this build. */
const zero_model_kernels_t *zero_model_kernels(zero_device_type_t type);

#endif
