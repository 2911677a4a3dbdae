/* fp64_model.h - a transformer's loss in plain fp64 loops: the reference that models and their kernels are tested
 * against.
 *
 * Written from Hugging Face's definitions (gpt2_fp64.c, llama_fp64.c) and sharing no code with kernels/ or src/train/.
 * There is no backward pass: gradients are central differences of the loss, so a mistake in a derivative cannot hide
 * here. Tensors go by HF's names, "transformer.h.0.ln_1.weight"; "transformer." may be left out, as in HF's older
 * checkpoints. Serves any test; not thread-safe per model.
 */
#ifndef FP64_MODEL_H
#define FP64_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* GPT-2 has ffn_dim = 4 dim, and nothing of the Llama family's. */
typedef struct fp64_sizes {
    size_t layers, dim, heads, kv_heads, ffn_dim, vocab_size, max_seq_len;
    double norm_eps;
    size_t window; /* a position looks back at so many, its own among them; 0: at all */
    /* The Llama family. */
    size_t head_dim; /* 0: dim / heads, of which dim is then a multiple */
    bool qkv_bias;   /* of q, k and v */
    bool head_norms; /* RMSNorm of every q and k head, before it is rotated */
    bool tied;       /* the head is the embedding */
    double rope_theta, rope_factor, rope_low_freq, rope_high_freq,
        rope_original; /* rope_factor at most 1: no scaling */
} fp64_sizes_t;

typedef struct fp64_tensor {
    char name[64]; /* in full */
    size_t n_dims, shape[2], n_elems;
    double *values; /* row-major; owned by the model, free to be written */
} fp64_tensor_t;

/* n_sequences rows of seq_len tokens each, and the token that follows each of them. */
typedef struct fp64_batch {
    const int32_t *tokens, *targets; /* [n_sequences, seq_len] */
    size_t n_sequences, seq_len;     /* seq_len <= max_seq_len */
    const int32_t *starts;           /* [n_sequences, seq_len]: positions at which tokens' documents begin; or NULL */
} fp64_batch_t;

typedef struct fp64_model fp64_model_t;

struct fp64_model {
    fp64_sizes_t sizes;
    size_t n_tensors;
    fp64_tensor_t *tensors; /* in forward order */
    size_t head;            /* index of the output head, [vocab_size, dim] */
    /* Runs one sequence up to the last norm; returns its output [seq_len, dim]. */
    const double *(*run)(fp64_model_t *model, const int32_t *tokens, size_t seq_len);
    /* Activations of one sequence; rows are positions. Each architecture says how it uses them. */
    double *x, *normed, *qkv, *attended, *hidden, *update, *scores, *logits;
};

/* All tensors zero. Abort when out of memory: this is test code. */
fp64_model_t *gpt2_fp64_create(const fp64_sizes_t *sizes);
fp64_model_t *llama_fp64_create(const fp64_sizes_t *sizes);
void fp64_model_destroy(fp64_model_t *model);

fp64_tensor_t *fp64_model_tensor(fp64_model_t *model, const char *name); /* NULL if there is none */

/* Mean cross-entropy over all tokens, in nats. Every document is computed on its own. logits: NULL or [n_sequences,
 * seq_len, vocab_size], written. */
double fp64_model_loss(fp64_model_t *model, const fp64_batch_t *batch, double *logits);

/* (loss(w + h) - loss(w - h)) / 2h for element `index` of `tensor`, which keeps its value. h = 1e-5 balances truncation
 * and rounding for weights and derivatives of order one or less: the error is then below 1e-9 absolute. */
double fp64_model_numeric_grad(fp64_model_t *model, const fp64_batch_t *batch, fp64_tensor_t *tensor, size_t index,
                               double h);

/* ---- For the architectures ---- */

/* A model with room for n_tensors, and activations for qkv and hidden rows of these widths. */
fp64_model_t *fp64_model_create(const fp64_sizes_t *sizes, size_t n_tensors, size_t qkv_width, size_t hidden_width);
/* The next tensor: a matrix, or with columns 0 a vector. The name is built as printf does. */
void fp64_model_add(fp64_model_t *model, size_t rows, size_t columns, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* values[i] = exp(values[i]) / sum exp, n >= 1; returns log(sum exp). */
double fp64_softmax(double *values, size_t n);
/* Every head of every position t looks back at positions 0..t, or the last `window` of them:
 * attended_t = sum_u softmax_u(q_t . k_u / sqrt(head_dim)) v_u, where heads / kv_heads query heads share k and v. */
void fp64_causal_attention(fp64_model_t *model, size_t kv_heads, size_t seq_len);
/* head_dim, or what it is if it is not given */
size_t fp64_head_dim(const fp64_sizes_t *sizes);
/* x += update */
void fp64_add_update(fp64_model_t *model, size_t seq_len);

#endif
