/* gpt2_fp64.h - GPT-2's loss in plain fp64 loops: the reference that the model and its kernels are tested against.
 *
 * Written from Hugging Face's definition (pre-LN, learned positions, gelu_new, tied head, Conv1D weights [in, out]) and
 * sharing no code with kernels/ or src/train/. It has no backward pass of its own: gradients are central differences of
 * the loss, so a mistake in a derivative cannot hide here. Tensors go by HF's names, "transformer.h.0.ln_1.weight";
 * "transformer." may be left out, as in HF's older checkpoints. Serves any test; not thread-safe per model.
 */
#ifndef GPT2_FP64_H
#define GPT2_FP64_H

#include <stddef.h>
#include <stdint.h>

typedef struct gpt2_fp64_sizes {
    size_t layers, dim, heads, vocab_size, max_seq_len; /* dim is a multiple of heads */
} gpt2_fp64_sizes_t;

typedef struct gpt2_fp64_tensor {
    char name[64]; /* with "transformer." */
    size_t n_dims, shape[2], n_elems;
    double *values; /* row-major; owned by the model, free to be written */
} gpt2_fp64_tensor_t;

/* n_sequences rows of seq_len tokens each, and the token that follows each of them. */
typedef struct gpt2_fp64_batch {
    const int32_t *tokens, *targets; /* [n_sequences, seq_len] */
    size_t n_sequences, seq_len;     /* seq_len <= max_seq_len */
} gpt2_fp64_batch_t;

typedef struct gpt2_fp64 gpt2_fp64_t;

/* All tensors zero. Aborts when out of memory: this is test code. */
gpt2_fp64_t *gpt2_fp64_create(const gpt2_fp64_sizes_t *sizes);
void gpt2_fp64_destroy(gpt2_fp64_t *model);

/* The tensors in forward order: wte, wpe, 12 a layer, ln_f.weight, ln_f.bias. */
size_t gpt2_fp64_n_tensors(const gpt2_fp64_t *model);
gpt2_fp64_tensor_t *gpt2_fp64_tensor_at(gpt2_fp64_t *model, size_t index);
gpt2_fp64_tensor_t *gpt2_fp64_tensor(gpt2_fp64_t *model, const char *name); /* NULL where there is none */

/* Mean cross-entropy over all tokens, in nats. logits: NULL or [n_sequences, seq_len, vocab_size], written. */
double gpt2_fp64_loss(gpt2_fp64_t *model, const gpt2_fp64_batch_t *batch, double *logits);

/* (loss(w + h) - loss(w - h)) / 2h for element `index` of `tensor`, which keeps its value. h = 1e-5 balances truncation
 * and rounding for weights and derivatives of order one or less: the error is then below 1e-9 absolute. */
double gpt2_fp64_numeric_grad(gpt2_fp64_t *model, const gpt2_fp64_batch_t *batch, gpt2_fp64_tensor_t *tensor,
                              size_t index, double h);

#endif
