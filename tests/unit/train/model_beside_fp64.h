/* model_beside_fp64.h - a small model of each architecture as zerotrain runs it, through libzero at stage 3 with one
 * rank, and the same weights in plain fp64 (gpt2_fp64.c, llama_fp64.c, which test_golden.c tests). */
#ifndef ZERO_TEST_MODEL_BESIDE_FP64_H
#define ZERO_TEST_MODEL_BESIDE_FP64_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/fp64/fp64_model.h"
#include "tests/support/support.h"
#include "tests/support/trainer.h"

typedef struct sizes {
    options_arch_t arch;
    int64_t layers, dim, heads, kv_heads, ffn_dim, vocab_size, seq_len, n_batch; /* kv_heads, ffn_dim 0: the default */
    int recompute, fp8;
    int64_t head_dim; /* 0: dim / heads */
    bool tied, scaled, keep_attention;
    bool documents;            /* sequences of several, which are apart */
    int64_t window, positions; /* positions 0: seq_len */
} sizes_t;

/* QWEN2 has all that a Llama may have and LLAMA does not. */
/* CROPPED has more positions than it is trained with. */
enum { GPT2, LLAMA, QWEN2, QWEN3, MISTRAL, CROPPED, N_ARCHS };
/* Small enough for a difference of every element. */
static const sizes_t tiny[] = {
    [GPT2] = {ARCH_GPT2, .layers = 2, .dim = 12, .heads = 3, .vocab_size = 37, .seq_len = 5, .n_batch = 2},
    [LLAMA] = {ARCH_LLAMA, 2, 12, 3, .kv_heads = 1, .ffn_dim = 20, .vocab_size = 37, .seq_len = 5, .n_batch = 2},
    [QWEN2] = {ARCH_QWEN2, 2, 10, 3, 1, 20, 37, 5, .n_batch = 2, .head_dim = 6, .tied = true, .scaled = true},
    [QWEN3] = {ARCH_QWEN3, 2, 10, 4, 2, 20, 37, 5, .n_batch = 2, .head_dim = 6},
    [MISTRAL] = {ARCH_MISTRAL, 2, 12, 3, 1, 20, 37, 5, .n_batch = 2, .window = 2},
    [CROPPED] = {ARCH_GPT2, 1, 12, 3, .vocab_size = 37, .seq_len = 5, .n_batch = 2, .positions = 7},
};

typedef struct fixture {
    sizes_t sizes;
    options_t options;
    uint64_t random;
    zero_comm_t *comm;
    trainer_t trainer;
    fp64_model_t *reference;            /* has the values that the forward pass sees: rounded to the precision */
    int32_t *tokens, *targets, *starts; /* starts NULL: no documents */
    float **grads;                      /* by tensor, after train() */
} fixture_t;

/* Round to nearest, ties to even, 8 bits of significand: by double arithmetic, not by the kernels' bits. */
static inline double round_to_bf16(double x)
{
    int exponent;
    double significand = frexp(x, &exponent);
    return ldexp(nearbyint(significand * 256.0), exponent - 8);
}

/* Sets matrices as large as training makes them, and biases and norms off their initial values, so that a missing part
 * shows. */
static inline void fill_reference(fixture_t *f)
{
    for (size_t t = 0; t < f->reference->n_tensors; t++) {
        fp64_tensor_t *tensor = &f->reference->tensors[t];
        bool is_norm_weight = tensor->n_dims == 1 && strstr(tensor->name, ".weight");
        for (size_t i = 0; i < tensor->n_elems; i++) {
            double value =
                support_normal(&f->random) * (tensor->n_dims == 2 ? 0.2 : 0.1) + (is_norm_weight ? 1.0 : 0.0);
            tensor->values[i] = (double)(float)value;
        }
    }
}

/* zerotrain declares its tensors in the reference's order; test_golden.c loads by name. */
static inline zero_status_t fill_chunk(void *user, const zero_chunk_t *chunk)
{
    fp64_tensor_t *tensor = &((fixture_t *)user)->reference->tensors[chunk->tensor];
    ck_assert_uint_le(chunk->first + chunk->n_elems, tensor->n_elems);
    for (size_t i = 0; i < chunk->n_elems; i++)
        chunk->master[i] = (float)tensor->values[chunk->first + i];
    return ZERO_OK;
}

static inline void round_reference(fixture_t *f)
{
    for (size_t t = 0; t < f->reference->n_tensors; t++) {
        fp64_tensor_t *tensor = &f->reference->tensors[t];
        for (size_t i = 0; i < tensor->n_elems; i++)
            tensor->values[i] = round_to_bf16(tensor->values[i]);
    }
}

static inline void open_reference(fixture_t *f)
{
    uint64_t n_params = 0;
    const options_t *o = &f->options;
    fp64_sizes_t sizes = {.layers = (size_t)o->model.layers,
                          .dim = (size_t)o->model.dim,
                          .heads = (size_t)o->model.heads,
                          .kv_heads = (size_t)o->model.kv_heads,
                          .ffn_dim = (size_t)o->model.ffn_dim,
                          .vocab_size = (size_t)o->model.vocab_size,
                          .max_seq_len = (size_t)options_positions(&o->model),
                          .norm_eps = o->model.norm_eps,
                          .window = (size_t)o->model.window,
                          .head_dim = (size_t)o->model.head_dim,
                          .qkv_bias = f->sizes.arch == ARCH_QWEN2,
                          .head_norms = f->sizes.arch == ARCH_QWEN3,
                          .tied = o->model.tied,
                          .rope_theta = o->model.rope_theta,
                          .rope_factor = o->model.rope_factor,
                          .rope_low_freq = o->model.rope_low_freq,
                          .rope_high_freq = o->model.rope_high_freq,
                          .rope_original = (double)o->model.rope_original};
    f->reference = f->sizes.arch == ARCH_GPT2 ? gpt2_fp64_create(&sizes) : llama_fp64_create(&sizes);
    size_t n_tensors = f->reference->n_tensors;
    ck_assert_int_eq(zero_model_n_tensors(f->trainer.model.declaration), (int)n_tensors);
    f->grads = calloc(n_tensors, sizeof *f->grads);
    for (size_t t = 0; t < n_tensors; t++) {
        size_t n_elems = f->reference->tensors[t].n_elems;
        n_params += n_elems;
        f->grads[t] = calloc(n_elems, sizeof *f->grads[t]);
    }
    ck_assert_uint_eq(zero_model_n_params(f->trainer.model.declaration), n_params);
}

/* Cuts the first sequence into 2, 1 and then more positions, the second into 3 and the rest. */
static inline void cut_into_documents(fixture_t *f)
{
    size_t seq_len = (size_t)f->sizes.seq_len;
    f->starts = calloc((size_t)f->sizes.n_batch * seq_len, sizeof *f->starts);
    for (size_t t = 2; t < seq_len; t++)
        f->starts[t] = t == 2 ? 2 : 3;
    for (size_t t = 3; t < seq_len; t++)
        f->starts[seq_len + t] = 3;
    f->trainer.starts = f->starts;
}

static inline fixture_t *fixture_open(sizes_t sizes, zero_dtype_t precision)
{
    fixture_t *f = calloc(1, sizeof *f);
    f->sizes = sizes;
    f->random = 20240521;
    f->options = trainer_options(sizes.layers, sizes.dim, sizes.heads, sizes.vocab_size, sizes.seq_len);
    f->options.model.arch = (int)sizes.arch;
    f->options.model.kv_heads = sizes.kv_heads;
    f->options.model.ffn_dim = sizes.ffn_dim;
    f->options.model.window = sizes.window;
    f->options.model.positions = sizes.positions;
    f->options.model.recompute = sizes.recompute;
    f->options.model.keep_attention = sizes.keep_attention;
    f->options.train.fp8 = sizes.fp8;
    f->options.model.norm_eps = 1e-4; /* neither is the default */
    f->options.model.rope_theta = 100.0;
    f->options.model.head_dim = sizes.head_dim;
    f->options.model.tied = sizes.tied;
    f->options.model.rope_factor = sizes.scaled ? 4.0 : 1.0;
    f->options.model.rope_original = 16; /* with pairs in all three ranges of wavelengths */
    f->options.train.precision = precision;
    f->options.train.micro_batch = f->options.train.global_batch = sizes.n_batch;
    f->options.train.beta1 = 0.0;
    f->options.data.documents = sizes.documents ? DOCUMENTS_SEPARATE : DOCUMENTS_JOIN;
    f->options.train.grad_clip = 0.0;
    ck_assert_int_eq(options_resolve(&f->options, 1), ZERO_OK);
    ck_assert_int_eq(zero_comm_create(ZERO_COMM_AUTO, &f->comm), ZERO_OK);
    ck_assert_int_eq(trainer_open(&f->trainer, &f->options, f->comm), ZERO_OK);
    open_reference(f);
    fill_reference(f);
    ck_assert_int_eq(zero_set_state(f->trainer.engine, false, fill_chunk, f), ZERO_OK);
    if (precision == ZERO_BF16)
        round_reference(f);

    size_t n_tokens = (size_t)(sizes.n_batch * sizes.seq_len);
    f->tokens = malloc(n_tokens * sizeof(int32_t));
    f->targets = malloc(n_tokens * sizeof(int32_t));
    for (size_t i = 0; i < n_tokens; i++) {
        f->tokens[i] = (int32_t)(support_random(&f->random) % (uint64_t)sizes.vocab_size);
        f->targets[i] = (int32_t)(support_random(&f->random) % (uint64_t)sizes.vocab_size);
    }
    f->tokens[3] = f->tokens[1]; /* one token twice in a sequence, and at its end in another */
    f->tokens[n_tokens - 1] = f->tokens[1];
    f->tokens[0] = 0; /* both ends of the vocabulary */
    f->targets[1] = (int32_t)sizes.vocab_size - 1;
    if (sizes.documents)
        cut_into_documents(f);
    return f;
}

static inline void fixture_close(fixture_t *f)
{
    for (size_t t = 0; t < f->reference->n_tensors; t++)
        free(f->grads[t]);
    free(f->grads);
    fp64_model_destroy(f->reference);
    trainer_close(&f->trainer);
    zero_comm_destroy(f->comm);
    free(f->tokens);
    free(f->targets);
    free(f->starts);
    free(f);
}

#endif
