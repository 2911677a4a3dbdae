/* kernels.h - the arithmetic of a transformer: one table of functions per device.
 *
 * The table has linear layers, attention, norms, activations, embedding and the loss. Activations have the device's own
 * dtype (`activation_dtype`: fp32 on the CPU, the configured dtype on CUDA). Weights and gradients have the dtype in
 * their zero_weight_t or zero_grad_t. Sums are taken in fp32 or wider and in a fixed order, so the same inputs give the
 * same bits in every run. A gradient without data is of a weight that is not trained, and is not computed.
 *
 * Tensors are dense and row-major: the last extent of a shape is contiguous. n_rows = B * T (sequences times
 * positions). Work is queued in ctx->stream; on the CPU it is done when the call returns. No function allocates:
 * scratch comes from the context's workspace, whose size is `workspace_bytes`. Only src/train/ calls these functions;
 * libzero does not link them.
 */
#ifndef ZERO_KERNELS_H
#define ZERO_KERNELS_H

#include "kernels/float_bits.h"
#include "zero.h"

typedef struct zero_model_context {
    zero_stream_t stream;
    void *workspace; /* device memory, 256-byte aligned */
    size_t workspace_bytes;
    void *backend;         /* the device's own handles; NULL on the CPU */
    bool may_skip_targets; /* as in the limits */
    /* Device memory, or NULL. A function whose comment says "absmax: t" raises *absmax to the bits of the largest
     * |t| as fp32, NaN's above infinity's, so that fp8_cast need not look for it. Needs limits.fp8. To ask for the
     * maximum of one call, give it a copy of the context. */
    uint32_t *absmax;
} zero_model_context_t;

/* In place of a target: the loss leaves this row out. Only if limits.may_skip_targets. */
#define ZERO_NO_TARGET (-1)

/* A tensor of weights: a linear layer's matrix, a bias, a norm's scale, an embedding table. */
typedef struct zero_weight {
    const void *data; /* NULL: no such weight (a missing bias) */
    zero_dtype_t dtype;
    float offset; /* of RMSNorm's scale: added to each element in fp32, as Gemma's 1 + weight */
} zero_weight_t;

/* How a linear layer's matrix is stored: [n_in, n_out] as in Hugging Face's GPT-2 (Conv1D), or [n_out, n_in] as in
 * nn.Linear. */
typedef enum zero_linear_layout { ZERO_LINEAR_IN_OUT, ZERO_LINEAR_OUT_IN } zero_linear_layout_t;

/* c[m, n] = scale op(a)[m, k] op(b)[k, n], row-major with rows of stride ld; op may transpose. c is added to or
 * overwritten as it says, and rounded once. An operand or c that is narrower than fp32 on the CPU has rows without
 * gaps.
 */
typedef struct zero_product {
    bool transpose_a, transpose_b;
    size_t m, n, k;
    zero_weight_t a, b; /* weights, activations or their gradients */
    size_t lda, ldb;
    zero_grad_t c;
    size_t ldc;
    float scale;
} zero_product_t;

/* An fp8 copy of a matrix x[n_rows, n_columns]. Products take both of their operands with the summed extent contiguous,
 * which is all that Hopper multiplies, so a matrix is wanted as it is, transposed, or both. */
typedef struct zero_fp8 {
    zero_fp8_format_t format;
    uint8_t *rows;             /* [n_rows, n_columns]; NULL: none */
    uint8_t *columns;          /* the transpose, [n_columns, n_rows]; NULL: none */
    zero_fp8_scales_t *scales; /* device memory, aligned to 16 bytes */
} zero_fp8_t;

/* A part of the columns of narrow_product's x, and its matrix. */
typedef struct zero_narrow_part {
    size_t first, width; /* columns */
    zero_weight_t b;     /* [width, rank], or [rank, width] if transposed */
    zero_grad_t db;      /* [width, rank], also if b is transposed; written if there is a u */
} zero_narrow_part_t;

#define ZERO_MAX_NARROW 3

/* A wide activation times narrow matrices: what adapters need of x and dy. For each part i
 *
 *     out_i = scale x_i B_i        [n_rows, rank]
 *     dB_i  = x_i^T u_i            if there is a u
 *
 * x_i are the part's columns of x; out_i and u_i are columns i rank .. (i + 1) rank of out and u [n_rows, n_parts
 * rank].
 */
typedef struct zero_narrow_product {
    size_t n_rows, n_columns, rank;
    const void *x; /* [n_rows, n_columns] */
    int n_parts;   /* 1..ZERO_MAX_NARROW */
    zero_narrow_part_t parts[ZERO_MAX_NARROW];
    bool transposed; /* the parts' b are [rank, width] */
    float scale;
    void *out;
    const void *u;        /* NULL: none */
    const zero_fp8_t *x8; /* x is cast, too, as fp8_cast does; NULL: it is not */
    bool absmax_is_known; /* of x8 */
} zero_narrow_product_t;

/* The product of few columns u and a matrix of adapters, for a kernel that adds it to an activation that it reads. */
typedef struct zero_low_rank {
    const void *u;   /* [n_rows, rank], aligned to 16 bytes; NULL: nothing is added */
    size_t ld;       /* elements from row to row, a multiple of 8 */
    zero_weight_t b; /* aligned to 4 bytes */
} zero_low_rank_t;

/* What adapters add to the activations that a gated MLP's activation function reads. */
typedef struct zero_gated_adapters {
    size_t rank;
    zero_low_rank_t gate, up; /* u B^T, B [width, rank] */
    zero_low_rank_t dy;       /* u B, B [rank, width]; read in backward */
} zero_gated_adapters_t;

/* What is added up over pairs of documents, of which the first is preferred (DPO: Rafailov et al. 2023,
 * arXiv:2305.18290). A document's reward is beta (log p - log p_reference) of its targets, a pair's margin the first
 * one's reward less the other's, and its loss -log sigmoid(margin). */
typedef enum zero_pair_sum {
    ZERO_PAIR_CHOSEN, /* rewards */
    ZERO_PAIR_REJECTED,
    ZERO_PAIR_ACCURACY, /* pairs of which the first has the larger reward */
    ZERO_N_PAIR_SUMS
} zero_pair_sum_t;

/* Documents 2 p and 2 p + 1 are pair p, if the latter begins before n_rows. All memory is the device's. */
typedef struct zero_pair_loss {
    double *loss_sum; /* += loss_weight * the sum of the pairs' losses: a multiple of ZERO_LOSS_UNIT, as the next */
    double *sums;     /* [ZERO_N_PAIR_SUMS] += loss_weight * the sums of these */
    /* [n_rows, dim], or NULL. On entry the gradient of beta * loss_weight * (sum of losses), of head_losses; multiplied
     * by the sigmoid of -margin, and -1 in second documents, it is that of loss_weight * (sum of the pairs' losses). */
    void *dx;
    const double *losses, *reference; /* [n_rows]: of the model, and of that by which it is measured */
    const int32_t *documents;         /* [n_rows + 1], ascending: the rows where they begin; behind the last n_rows */
    double *pairs;                    /* scratch: [n_rows / 2, ZERO_N_PAIR_SUMS + 1] */
    float *factors;                   /* scratch: [n_rows], of the rows of dx */
    double beta, loss_weight;
    size_t n_rows, dim;
} zero_pair_loss_t;

/* The largest sizes of a run. The workspace is sized for them. */
typedef struct zero_model_limits {
    size_t n_rows;     /* B * T */
    size_t seq_len;    /* T */
    size_t n_batch;    /* sequences of seq_len that attention takes, if ranks share them; 0: n_rows / seq_len */
    size_t max_linear; /* largest n_in * n_out of any linear layer, the output head and adapters included */
    size_t max_width;  /* largest n_in or n_out, the vocabulary not included */
    size_t n_heads, head_dim;
    size_t n_kv_heads; /* 0: n_heads */
    size_t vocab_size;
    zero_dtype_t dtype;          /* of weights */
    bool fp8;                    /* linear layers may be computed in fp8 */
    bool may_skip_targets;       /* a target may be ZERO_NO_TARGET */
    bool normalizes_projections; /* projection_norm may be called */
    size_t narrow_width;         /* narrow_product's largest n_parts * rank; 0: it is not called */
} zero_model_limits_t;

/* How the frequencies of rotary positions are scaled, by the names of transformers' rope_type. */
typedef enum zero_rope_kind {
    ZERO_ROPE_LLAMA3,   /* of Llama 3.1: wavelengths of more than original / low_freq positions become `factor` times
                           longer, those of less than original / high_freq stay, and in between it changes smoothly */
    ZERO_ROPE_LINEAR,   /* all wavelengths become `factor` times longer */
    ZERO_ROPE_YARN,     /* (Peng et al. 2023, arXiv:2309.00071) those of pairs behind last_kept, up to first_scaled more
                           and more, and from there on `factor` times */
    ZERO_ROPE_LONGROPE, /* each divisors[pair] times */
} zero_rope_kind_t;

/* The rotation of a head's elements by positions. */
typedef struct zero_rope {
    float theta;  /* the base */
    float factor; /* at most 1: not scaled; of longrope not read; infinite, linear: an angle of 0 */
    float low_freq, high_freq, original; /* of llama3: low_freq < high_freq; original: positions before scaling */
    const int32_t *starts;               /* as in zero_mask_t: positions are counted from there */
    zero_rope_kind_t kind;
    float last_kept, first_scaled; /* of yarn: last_kept < first_scaled */
    const float *divisors;         /* of longrope, in host memory: [n_rotated / 2] */
    size_t n_rotated;              /* elements of a head, the first ones, an even number; 0: all */
    float scale;                   /* what is rotated is multiplied by it; 0: 1 */
    float q_scale; /* q heads, of which all is rotated, are multiplied by it, also their gradients; 0: 1 */
} zero_rope_t;

/* What a query does not see, in addition to later keys. */
typedef struct zero_mask {
    /* int32 [B, T], device memory: where the document begins that a position is in, 0 <= starts[b, t] <= t, never less
     * than at the position before. Keys before it are not seen. NULL: a sequence is one document. Where rows continue
     * one text (embed, rope, attention_cached), it begins before them: all are -first, with `first` earlier positions.
     * Where rows are a part of a sequence (embed, embed_backward, rope), they are less by the part's first position.
     */
    const int32_t *starts;
    size_t window; /* a query sees its own position's key and the window - 1 before it; 0: all of them */
} zero_mask_t;

/* The sizes of attention: n_batch sequences of seq_len positions, whose rows hold n_heads query heads and n_kv_heads
 * key and as many value heads, of head_dim elements each. */
typedef struct zero_attention_shape {
    size_t n_batch, seq_len, n_heads, n_kv_heads, head_dim;
} zero_attention_shape_t;

/* A matrix within a larger one, of activations. */
typedef struct zero_block {
    const void *data;
    size_t stride; /* elements from row to row */
} zero_block_t;

#define ZERO_MAX_BLOCKS 64

#define ZERO_MODEL_WHY 768 /* bytes of a reason: one clause, without a newline */

/* Captured work that can be launched again. */
typedef struct zero_cuda_graph zero_cuda_graph_t;

typedef struct zero_model_kernels {
    const char *name;
    zero_dtype_t (*activation_dtype)(zero_dtype_t weight_dtype);
    /* Returns the floating-point operations per second that the device's data sheet gives for matrix products of this
     * dtype (dense, fp32 sums), or 0 if it is not known. NULL: never known. */
    double (*peak_flops)(zero_dtype_t weight_dtype);

    size_t (*workspace_bytes)(const zero_model_limits_t *limits);
    zero_status_t (*context_create)(zero_model_context_t *ctx, zero_stream_t stream, void *workspace,
                                    const zero_model_limits_t *limits);
    void (*context_destroy)(zero_model_context_t *ctx);

    /* Capture what is called between record_begin and record_end instead of running it. replay queues it any number of
     * times, with the addresses and numbers of the capture. Every function of this table can be captured once it has
     * run with the same sizes. After a failure in between, record_end must still be called, and fails. NULL if the
     * device gains nothing from CUDA graphs. */
    zero_status_t (*record_begin)(zero_model_context_t *ctx);
    zero_status_t (*record_end)(zero_model_context_t *ctx, zero_cuda_graph_t **graph);
    zero_status_t (*replay)(zero_model_context_t *ctx, zero_cuda_graph_t *graph);
    void (*cuda_graph_destroy)(zero_cuda_graph_t *graph); /* not while it runs; NULL is allowed */

    /* y[n_rows, n_out] = x[n_rows, n_in] W + bias[n_out]; with `accumulate` x W is added to y, and there is no bias. A
     * GPU finds the fastest algorithm for a shape in the first call that overwrites y; all of them give the same bits.
     */
    zero_status_t (*linear)(zero_model_context_t *ctx, void *y, bool accumulate, const void *x, zero_weight_t weight,
                            zero_linear_layout_t layout, zero_weight_t bias, size_t n_rows, size_t n_in, size_t n_out);
    /* dx[n_rows, n_in] = dy[n_rows, n_out] W^T; with `accumulate` it is added to dx */
    zero_status_t (*linear_backward_input)(zero_model_context_t *ctx, void *dx, bool accumulate, const void *dy,
                                           zero_weight_t weight, zero_linear_layout_t layout, size_t n_rows,
                                           size_t n_in, size_t n_out);
    /* dW = x^T dy in the weight's layout; dbias[n_out] = column sums of dy (dbias.data NULL: no bias). Each is added or
     * overwritten as its zero_grad_t says, and rounded once to its dtype. */
    zero_status_t (*linear_backward_weight)(zero_model_context_t *ctx, zero_grad_t dweight, zero_linear_layout_t layout,
                                            zero_grad_t dbias, const void *x, const void *dy, size_t n_rows,
                                            size_t n_in, size_t n_out);

    zero_status_t (*product)(zero_model_context_t *ctx, const zero_product_t *product);
    /* Needs limits.narrow_width. */
    zero_status_t (*narrow_product)(zero_model_context_t *ctx, const zero_narrow_product_t *product);

    /* sums[n_columns] = column sums of x[n_rows, n_columns]: a bias gradient whose weight gradient is computed in fp8
     */
    zero_status_t (*sum_columns)(zero_model_context_t *ctx, zero_grad_t sums, const void *x, size_t n_rows,
                                 size_t n_columns);

    /* Linear layers in fp8 (limits.fp8). Every extent is a multiple of 16 and bytes are aligned to 16, which cuBLASLt
     * needs; others are refused on every device. Products are summed in fp32 and multiplied by both inverse scales. x
     * and weights are E4M3; dy is E5M2, or E4M3.
     *
     * Returns whether this device and context can do that. If not, `why` says why. */
    bool (*fp8_is_available)(zero_model_context_t *ctx, char why[ZERO_MODEL_WHY]);
    /* Casts x[n_rows, n_columns], activations or their gradients, to those of x8->rows and x8->columns that are not
     * NULL: to nearest even, saturating, NaN stays NaN. Sets the scales: absmax first, unless absmax_is_known. */
    zero_status_t (*fp8_cast)(zero_model_context_t *ctx, const zero_fp8_t *x8, const void *x, bool absmax_is_known,
                              size_t n_rows, size_t n_columns);
    /* Casts a weight likewise; n_rows and n_columns are those of its layout. */
    zero_status_t (*fp8_cast_weight)(zero_model_context_t *ctx, const zero_fp8_t *w8, zero_weight_t weight,
                                     bool absmax_is_known, size_t n_rows, size_t n_columns);
    /* weight[n_elems] = the values of bytes in E4M3, by their scale, in the weights' dtype: bf16. Needs no limits.fp8.
     */
    zero_status_t (*fp8_widen)(zero_model_context_t *ctx, void *weight, zero_fp8_param_t bytes, size_t n_elems);
    /* columns[n_columns, n_rows] = the transpose of rows[n_rows, n_columns] */
    zero_status_t (*fp8_transpose)(zero_model_context_t *ctx, uint8_t *columns, const uint8_t *rows, size_t n_rows,
                                   size_t n_columns);
    /* y[n_rows, n_out] = x W + bias[n_out]; with `accumulate` x W is added to y, and there is no bias. Reads x8->rows;
     * w8->rows of ZERO_LINEAR_OUT_IN, w8->columns of IN_OUT. */
    zero_status_t (*linear_fp8)(zero_model_context_t *ctx, void *y, bool accumulate, const zero_fp8_t *x8,
                                const zero_fp8_t *w8, zero_linear_layout_t layout, zero_weight_t bias, size_t n_rows,
                                size_t n_in, size_t n_out);
    /* dx[n_rows, n_in] = dy W^T; with `accumulate` it is added to dx. Reads dy8->rows; w8->columns of
     * ZERO_LINEAR_OUT_IN, w8->rows of IN_OUT. */
    zero_status_t (*linear_fp8_backward_input)(zero_model_context_t *ctx, void *dx, bool accumulate,
                                               const zero_fp8_t *dy8, const zero_fp8_t *w8, zero_linear_layout_t layout,
                                               size_t n_rows, size_t n_in, size_t n_out);
    /* dW = x^T dy in the weight's layout, overwritten or, after a rounding, added. Reads x8->columns, dy8->columns. */
    zero_status_t (*linear_fp8_backward_weight)(zero_model_context_t *ctx, zero_grad_t dweight,
                                                zero_linear_layout_t layout, const zero_fp8_t *x8,
                                                const zero_fp8_t *dy8, size_t n_rows, size_t n_in, size_t n_out);

    /* residual_out = residual + addend (addend NULL: residual); y = LayerNorm(residual_out) * weight + bias. All are
     * [n_rows, dim]; mean, rstd: fp32 [n_rows]. residual_out may be residual. absmax: y. */
    zero_status_t (*layernorm)(zero_model_context_t *ctx, void *y, float *mean, float *rstd, void *residual_out,
                               const void *residual, const void *addend, zero_weight_t weight, zero_weight_t bias,
                               float eps, size_t n_rows, size_t dim);
    /* dresidual += the norm's input gradient for dy. dweight, dbias [dim]. dcolumns [dim] = column sums of the new
     * dresidual: the bias gradient of the linear layer whose output was added to the residual (data NULL: none). If y
     * is not NULL, it is recomputed, with layernorm's bits. absmax: the new dresidual. */
    zero_status_t (*layernorm_backward)(zero_model_context_t *ctx, void *dresidual, zero_grad_t dweight,
                                        zero_grad_t dbias, zero_grad_t dcolumns, void *y, const void *dy,
                                        const void *residual, const float *mean, const float *rstd,
                                        zero_weight_t weight, zero_weight_t bias, size_t n_rows, size_t dim);

    /* RMSNorm (Zhang & Sennrich 2019, arXiv:1910.07467), otherwise as layernorm: residual_out = residual + addend
     * (addend NULL: residual); y = residual_out * rstd * weight, rstd = 1 / sqrt(mean(residual_out^2) + eps). All are
     * [n_rows, dim]; rstd: fp32 [n_rows]. residual_out may be residual. absmax: y. */
    zero_status_t (*rmsnorm)(zero_model_context_t *ctx, void *y, float *rstd, void *residual_out, const void *residual,
                             const void *addend, zero_weight_t weight, float eps, size_t n_rows, size_t dim);
    /* dresidual += the norm's input gradient for dy. dweight [dim]. If y is not NULL, it is recomputed, with rmsnorm's
     * bits. absmax: the new dresidual. */
    zero_status_t (*rmsnorm_backward)(zero_model_context_t *ctx, void *dresidual, zero_grad_t dweight, void *y,
                                      const void *dy, const void *residual, const float *rstd, zero_weight_t weight,
                                      size_t n_rows, size_t dim);

    /* Normalizes every q and k head of qkv[n_rows, (n_heads + 2 n_kv_heads) * head_dim] on its own, as Qwen3 does: y =
     * x * rstd * weight over the head_dim elements of a head, with q_weight[head_dim] or k_weight[head_dim]. v is
     * copied. */
    zero_status_t (*head_norm)(zero_model_context_t *ctx, void *y, const void *qkv, zero_weight_t q_weight,
                               zero_weight_t k_weight, float eps, size_t n_rows, size_t n_heads, size_t n_kv_heads,
                               size_t head_dim);
    /* dqkv, the gradient of y, becomes that of qkv, in place. dq_weight, dk_weight [head_dim]. */
    zero_status_t (*head_norm_backward)(zero_model_context_t *ctx, void *dqkv, zero_grad_t dq_weight,
                                        zero_grad_t dk_weight, const void *qkv, zero_weight_t q_weight,
                                        zero_weight_t k_weight, float eps, size_t n_rows, size_t n_heads,
                                        size_t n_kv_heads, size_t head_dim);

    /* Normalizes all of q in a row of qkv[n_rows, q_width + 2 k_width] as one, and all of k, as OLMo 2 does: y = x *
     * rstd * weight, with q_weight[q_width] and k_weight[k_width]. v is copied. Needs limits.normalizes_projections. */
    zero_status_t (*projection_norm)(zero_model_context_t *ctx, void *y, const void *qkv, zero_weight_t q_weight,
                                     zero_weight_t k_weight, float eps, size_t n_rows, size_t q_width, size_t k_width);
    /* dqkv, the gradient of y, becomes that of qkv, in place. dq_weight[q_width], dk_weight[k_width]. */
    zero_status_t (*projection_norm_backward)(zero_model_context_t *ctx, void *dqkv, zero_grad_t dq_weight,
                                              zero_grad_t dk_weight, const void *qkv, zero_weight_t q_weight,
                                              zero_weight_t k_weight, float eps, size_t n_rows, size_t q_width,
                                              size_t k_width);

    /* Rotary position embedding (Su et al. 2021, arXiv:2104.09864) as in Hugging Face's Llama, in place: in every q and
     * k head of qkv[B, T, (n_heads + 2 n_kv_heads) * head_dim], elements i and i + D / 2 of the first D = n_rotated are
     * rotated as a pair by the angle position * theta^(-2 i / D), or scaled as `rope` says. v stays. `inverse` rotates
     * back and scales likewise, which is the gradient. absmax: all of qkv. */
    zero_status_t (*rope)(zero_model_context_t *ctx, void *qkv, bool inverse, const zero_rope_t *rope,
                          const zero_attention_shape_t *shape);

    /* y[n_rows, width] = silu(gate) * up. A row of gate_up[n_rows, 2 width] holds all gates, then all ups. absmax: y.
     */
    zero_status_t (*swiglu)(zero_model_context_t *ctx, void *y, const void *gate_up, size_t n_rows, size_t width);
    /* dgate_up may be gate_up. If y is not NULL, it is recomputed, with swiglu's bits. absmax: dgate_up. */
    zero_status_t (*swiglu_backward)(zero_model_context_t *ctx, void *dgate_up, void *y, const void *dy,
                                     const void *gate_up, size_t n_rows, size_t width);

    /* The same with GELU's tanh form in place of silu, as Gemma has it. */
    zero_status_t (*geglu)(zero_model_context_t *ctx, void *y, const void *gate_up, size_t n_rows, size_t width);
    zero_status_t (*geglu_backward)(zero_model_context_t *ctx, void *dgate_up, void *y, const void *dy,
                                    const void *gate_up, size_t n_rows, size_t width);

    /* Returns whether the next two take adapters of this rank in a context. NULL: they are NULL, too. */
    bool (*fuses_adapters)(const zero_model_context_t *ctx, size_t rank, size_t width);
    /* swiglu, or geglu if is_gelu, and its backward, of gate_up and dy with what adapters add to them, which is not
     * rounded in between. Adapters so need no pass over gate_up and dy of their own. Only if fuses_adapters;
     * activations are aligned to 16 bytes. */
    zero_status_t (*gated_adapters)(zero_model_context_t *ctx, bool is_gelu, const zero_gated_adapters_t *adapters,
                                    void *y, const void *gate_up, size_t n_rows, size_t width);
    zero_status_t (*gated_adapters_backward)(zero_model_context_t *ctx, bool is_gelu,
                                             const zero_gated_adapters_t *adapters, void *dgate_up, void *y,
                                             const void *dy, const void *gate_up, size_t n_rows, size_t width);

    /* y = residual + factor x (residual NULL: factor x), rounded once. y may be either. */
    zero_status_t (*add_scaled)(zero_model_context_t *ctx, void *y, const void *residual, const void *x, float factor,
                                size_t n_elems);

    /* y = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), Hugging Face's gelu_new. absmax: y. */
    zero_status_t (*gelu)(zero_model_context_t *ctx, void *y, const void *x, size_t n_elems);
    /* dx[n_rows, width] = dy * gelu'(x); dx may be dy. dcolumns [width] = column sums of dx: the bias gradient of the
     * linear layer whose output is x (data NULL: none). If y is not NULL, it is recomputed, with gelu's bits. absmax:
     * dx. */
    zero_status_t (*gelu_backward)(zero_model_context_t *ctx, void *dx, zero_grad_t dcolumns, void *y, const void *dy,
                                   const void *x, size_t n_rows, size_t width);

    /* Causal self-attention. A row of qkv[B, T, (n_heads + 2 n_kv_heads) * head_dim] holds the q, then the k, then the
     * v heads; out[B, T, n_heads * head_dim]; logsumexp: fp32 [B, n_heads, T], of the scores times 1/sqrt(head_dim).
     * mask NULL: queries see all keys that are not later. */
    zero_status_t (*attention)(zero_model_context_t *ctx, void *out, float *logsumexp, const void *qkv,
                               const zero_mask_t *mask, const zero_attention_shape_t *shape);
    /* Attention of positions that continue one text (n_batch is 1): qkv, out and logsumexp are theirs. Keys and values
     * of all its positions are in cache[limits.seq_len][2 * n_kv_heads * head_dim], of the activations' dtype, where
     * the new ones are put. mask->starts[n_new] says how many came before; NULL: none, and this is attention. logsumexp
     * may not be written. */
    zero_status_t (*attention_cached)(zero_model_context_t *ctx, void *out, float *logsumexp, void *cache,
                                      const void *qkv, const zero_mask_t *mask, const zero_attention_shape_t *shape);
    zero_status_t (*attention_backward)(zero_model_context_t *ctx, void *dqkv, const void *dout, const void *qkv,
                                        const void *out, const float *logsumexp, const zero_mask_t *mask,
                                        const zero_attention_shape_t *shape);

    /* Returns whether attention of these sizes, forward and backward, runs on the slower of the device's two backends.
     * `why` then says what prevents the faster one and how to get it. Of the mask's starts only whether there are any
     * is read. May be called before or after the first attention; may take a while. NULL: there is one backend. */
    bool (*attention_is_slow)(zero_model_context_t *ctx, const zero_mask_t *mask, const zero_attention_shape_t *shape,
                              char why[ZERO_MODEL_WHY]);

    /* out[B*T, dim] = token_table[token] + position_table[position] (position_table.data NULL: no positions).
     * tokens: int32 [B, T], device memory; token_table[vocab_size, dim]; position_table[at least T, dim]. starts: as in
     * zero_mask_t, positions are counted from there; NULL: from 0. */
    zero_status_t (*embed)(zero_model_context_t *ctx, void *out, const int32_t *tokens, const int32_t *starts,
                           zero_weight_t token_table, zero_weight_t position_table, size_t n_batch, size_t seq_len,
                           size_t dim, size_t vocab_size);
    /* A row of dtokens[vocab_size, dim] whose token does not occur becomes zero, or stays if dtokens.accumulate; so do
     * rows of dpositions[n_positions, dim]. starts NULL: n_positions is T. Sums are taken in the order of positions,
     * without float atomics. */
    zero_status_t (*embed_backward)(zero_model_context_t *ctx, zero_grad_t dtokens, zero_grad_t dpositions,
                                    const void *dout, const int32_t *tokens, const int32_t *starts, size_t n_batch,
                                    size_t seq_len, size_t n_positions, size_t dim, size_t vocab_size);

    /* dst[n_rows, n_columns] = the sum of n_blocks blocks of that size, in fp32 and in order, rounded once; of one
     * block a copy. Rows are dst_stride elements apart. dst is not one of them. n_blocks: 1..ZERO_MAX_BLOCKS. */
    zero_status_t (*sum_blocks)(zero_model_context_t *ctx, void *dst, size_t dst_stride, const zero_block_t *blocks,
                                int n_blocks, size_t n_rows, size_t n_columns);

    /* Output head and softmax cross-entropy, fused, a chunk of rows at a time, so that only one chunk's logits exist.
     * x[n_rows, dim], weight[vocab_size, dim] (ZERO_LINEAR_OUT_IN), targets: int32 [n_rows].
     * *loss_sum += loss_weight * the sum of all rows' losses, in nats: a double, a multiple of ZERO_LOSS_UNIT.
     * A row whose target is ZERO_NO_TARGET has no loss, and its logits no gradient.
     * dx[n_rows, dim] and dweight receive the gradient of grad_scale[0] * loss_weight * (sum of losses); grad_scale is
     * in device memory. dx may be x. dx NULL: loss only, and dweight is not touched. n_rows: at most the limits', for
     * which chunks and scratch are sized. */
    zero_status_t (*head_loss)(zero_model_context_t *ctx, double *loss_sum, void *dx, zero_grad_t dweight,
                               const void *x, zero_weight_t weight, const int32_t *targets, double loss_weight,
                               const float *grad_scale, size_t n_rows, size_t dim, size_t vocab_size);
    /* losses[row] = the row's loss: doubles in device memory, 0 without a target. dx as head_loss's, or NULL; the
     * weight's gradient is not computed. */
    zero_status_t (*head_losses)(zero_model_context_t *ctx, double *losses, void *dx, const void *x,
                                 zero_weight_t weight, const int32_t *targets, double loss_weight,
                                 const float *grad_scale, size_t n_rows, size_t dim, size_t vocab_size);
    /* The loss of pairs of documents, from what head_losses computes of their rows. */
    zero_status_t (*pair_loss)(zero_model_context_t *ctx, const zero_pair_loss_t *pairs);
    /* logits: fp32 [n_rows, vocab_size] = x weight^T, for sampling */
    zero_status_t (*head_logits)(zero_model_context_t *ctx, float *logits, const void *x, zero_weight_t weight,
                                 size_t n_rows, size_t dim, size_t vocab_size);

    /* grad[n_elems] = sums (fp32), added or overwritten as `grad` says, rounded once to its dtype */
    zero_status_t (*put_grad)(zero_model_context_t *ctx, zero_grad_t grad, const float *sums, size_t n_elems);
    /* n_bytes from y on = 0 */
    zero_status_t (*zero_fill)(zero_model_context_t *ctx, void *y, size_t n_bytes);
} zero_model_kernels_t;

/* Returns the CPU's table (OpenBLAS, OpenMP), built for the best instruction set of this machine (ZERO_CPU_ISA limits
 * it, as in shard.h). */
const zero_model_kernels_t *zero_model_kernels_cpu(void);
/* Writes what the CPU computes with, "avx512, OpenBLAS SkylakeX": where this differs, so do the last bits. */
void zero_model_cpu_kind(char *text, size_t n_bytes);
/* Returns whether the last bits of what the CPU's table computes depend on the number of threads: not with OpenBLAS's
 * AVX-512 kernels (linear.c). */
bool zero_model_cpu_bits_depend_on_threads(void);

/* Returns the GPU's table (cuBLASLt, cuDNN), in builds with CUDA. A token or target outside the vocabulary gives NaN,
 * which no step lets into the weights: refusing it would mean waiting for the device. */
const zero_model_kernels_t *zero_model_kernels_cuda(void);

/* Returns the table of a device, or NULL if this build does not have it. ZERO_DEVICE_AUTO is the CPU. */
const zero_model_kernels_t *zero_model_kernels(zero_device_type_t type);

#endif
