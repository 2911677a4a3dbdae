/* test_model.c - every architecture: the real forward and backward against plain fp64 and its central differences; and
 * sampling.
 *
 * The model runs as zerotrain runs it, through libzero at stage 3 with one rank. Gradients are read through the public
 * API alone: with beta1 = 0, no clipping and a rate of zero, AdamW's first moment after a step is the gradient itself,
 * as it was communicated. The references, gpt2_fp64.c and llama_fp64.c, are tested in test_golden.c.
 */
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/fp64_model.h"
#include "tests/support/stderr_capture.h"
#include "tests/support/support.h"
#include "tests/support/trainer.h"
#include "train/model/arch.h"
#include "train/text/draw.h"
#include "zero/engine/engine.h"

#define DIFFERENCE_STEP 1e-5
/* Of a central difference in fp64, as fp64_model.h says. */
#define DIFFERENCE_ERROR 1e-9
/* Of an fp32 gradient, relative to the largest of its tensor: sums of some hundred products, over two layers, each
 * rounded at 6e-8. We measured 2e-6. */
#define FP32_TOLERANCE 5e-6
/* Of the loss, a mean over 34 tokens that is reported in fp32. We measured 2e-8. */
#define LOSS_TOLERANCE 2e-7
/* Of the largest logit: sums of 36 products. We measured 6e-7. */
#define LOGIT_TOLERANCE 5e-6
#define N_SAMPLED 64 /* elements of each tensor */
#define N_DIRECTIONS 3

typedef struct sizes {
    options_arch_t arch;
    int64_t layers, dim, heads, kv_heads, ffn_dim, vocab_size, seq_len, n_batch; /* kv_heads, ffn_dim 0: the default */
    int recompute, fp8;
    int64_t head_dim; /* 0: dim / heads */
    bool tied, scaled;
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
/* Odd everywhere: head_dim 12 and 6, rows 34, nothing a multiple of a vector. */
static const sizes_t odd[] = {
    [GPT2] = {ARCH_GPT2, .layers = 2, .dim = 36, .heads = 3, .vocab_size = 259, .seq_len = 17, .n_batch = 2},
    [LLAMA] = {ARCH_LLAMA, 2, 36, 6, .kv_heads = 2, .ffn_dim = 77, .vocab_size = 259, .seq_len = 17, .n_batch = 2},
    [QWEN2] = {ARCH_QWEN2, 2, 35, 6, 2, 77, 259, 17, .n_batch = 2, .head_dim = 10, .tied = true, .scaled = true},
    [QWEN3] = {ARCH_QWEN3, 2, 35, 6, 3, 77, 259, 17, .n_batch = 2, .head_dim = 18, .tied = true},
    [MISTRAL] = {ARCH_MISTRAL, 2, 36, 6, 2, 77, 259, 17, .n_batch = 2, .window = 7},
    [CROPPED] = {ARCH_GPT2, 1, 36, 3, .vocab_size = 259, .seq_len = 17, .n_batch = 2, .positions = 40},
};
/* Multiples of 16, for fp8. */
static const sizes_t even[] = {
    [GPT2] = {ARCH_GPT2, .layers = 2, .dim = 48, .heads = 3, .vocab_size = 259, .seq_len = 16, .n_batch = 2},
    [LLAMA] = {ARCH_LLAMA, 2, 48, 3, .kv_heads = 1, .ffn_dim = 80, .vocab_size = 259, .seq_len = 16, .n_batch = 2},
    [QWEN2] = {ARCH_QWEN2, 2, 48, 4, 2, 80, 259, 16, .n_batch = 2, .head_dim = 8, .tied = true, .scaled = true},
    [QWEN3] = {ARCH_QWEN3, 2, 48, 4, 2, 80, 259, 16, .n_batch = 2, .head_dim = 32},
    [MISTRAL] = {ARCH_MISTRAL, 2, 48, 3, 1, 80, 259, 16, .n_batch = 2, .window = 5},
    [CROPPED] = {ARCH_GPT2, 1, 48, 3, .vocab_size = 259, .seq_len = 16, .n_batch = 2, .positions = 32},
};
/* What loop tests run over. */
static const struct {
    int arch;
    zero_dtype_t precision;
} cases[] = {{GPT2, ZERO_FP32},  {GPT2, ZERO_BF16},  {LLAMA, ZERO_FP32},   {LLAMA, ZERO_BF16},   {QWEN2, ZERO_FP32},
             {QWEN3, ZERO_FP32}, {QWEN3, ZERO_BF16}, {MISTRAL, ZERO_FP32}, {CROPPED, ZERO_FP32}, {CROPPED, ZERO_BF16}};
#define N_CASES ((int)(sizeof cases / sizeof cases[0]))

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

/* ---- The same weights on both sides ---- */

/* Round to nearest, ties to even, 8 bits of significand: by double arithmetic, not by the kernels' bits. */
static double round_to_bf16(double x)
{
    int exponent;
    double significand = frexp(x, &exponent);
    return ldexp(nearbyint(significand * 256.0), exponent - 8);
}

/* Sets matrices as large as training makes them, and biases and norms off their initial values, so that a missing part
 * shows. */
static void fill_reference(fixture_t *f)
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
static zero_status_t fill_chunk(void *user, const zero_chunk_t *chunk)
{
    fp64_tensor_t *tensor = &((fixture_t *)user)->reference->tensors[chunk->tensor];
    ck_assert_uint_le(chunk->first + chunk->n_elems, tensor->n_elems);
    for (size_t i = 0; i < chunk->n_elems; i++)
        chunk->master[i] = (float)tensor->values[chunk->first + i];
    return ZERO_OK;
}

static void round_reference(fixture_t *f)
{
    for (size_t t = 0; t < f->reference->n_tensors; t++) {
        fp64_tensor_t *tensor = &f->reference->tensors[t];
        for (size_t i = 0; i < tensor->n_elems; i++)
            tensor->values[i] = round_to_bf16(tensor->values[i]);
    }
}

static void open_reference(fixture_t *f)
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
static void cut_into_documents(fixture_t *f)
{
    size_t seq_len = (size_t)f->sizes.seq_len;
    f->starts = calloc((size_t)f->sizes.n_batch * seq_len, sizeof *f->starts);
    for (size_t t = 2; t < seq_len; t++)
        f->starts[t] = t == 2 ? 2 : 3;
    for (size_t t = 3; t < seq_len; t++)
        f->starts[seq_len + t] = 3;
    f->trainer.starts = f->starts;
}

static fixture_t *fixture_open(sizes_t sizes, zero_dtype_t precision)
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

static void fixture_close(fixture_t *f)
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

static fp64_batch_t batch_of(const fixture_t *f)
{
    return (fp64_batch_t){.tokens = f->tokens,
                          .targets = f->targets,
                          .n_sequences = (size_t)f->sizes.n_batch,
                          .seq_len = (size_t)f->sizes.seq_len,
                          .starts = f->starts};
}

static zero_status_t take_moment(void *user, const zero_chunk_t *chunk)
{
    memcpy(((fixture_t *)user)->grads[chunk->tensor] + chunk->first, chunk->m, chunk->n_elems * sizeof(float));
    return ZERO_OK;
}

/* One step that changes no weight; returns its loss and leaves the gradients in f->grads. */
static double train(fixture_t *f)
{
    zero_step_result_t result;
    ck_assert_int_eq(trainer_step(&f->trainer, f->tokens, f->targets, 0.0, &result), ZERO_OK);
    ck_assert(!result.skipped);
    ck_assert_int_eq(zero_get_state(f->trainer.engine, take_moment, f), ZERO_OK);
    return (double)result.loss;
}

/* ---- Forward ---- */

/* In bf16 too: weights are rounded, on both sides, and the CPU computes in fp32. */
static void check_loss(sizes_t sizes, zero_dtype_t precision)
{
    fixture_t *f = fixture_open(sizes, precision);
    fp64_batch_t batch = batch_of(f);
    double want = fp64_model_loss(f->reference, &batch, NULL), evaluated;
    double trained = train(f);
    ck_assert_double_eq_tol(trained, want, LOSS_TOLERANCE * want);

    double loss_weight = 1.0 / (double)(f->sizes.n_batch * f->sizes.seq_len);
    ck_assert_int_eq(model_clear_loss(&f->trainer.model), ZERO_OK);
    ck_assert_int_eq(model_loss(&f->trainer.model,
                                (model_batch_t){.inputs = f->tokens, .targets = f->targets, .starts = f->starts},
                                loss_weight),
                     ZERO_OK);
    ck_assert_int_eq(model_take_loss(&f->trainer.model, &evaluated), ZERO_OK);
    ck_assert_double_eq_tol(evaluated, want, LOSS_TOLERANCE * want);
    printf("%s, %s: loss off by %.2g in training, %.2g in evaluation\n", f->trainer.model.ops->name,
           zero_dtype_name(precision), support_relative_error(trained, want), support_relative_error(evaluated, want));
    fixture_close(f);
}

START_TEST(loss_is_that_of_plain_fp64)
{
    check_loss(odd[cases[_i].arch], cases[_i].precision);
}
END_TEST

/* Every document has the loss that it has alone. */
START_TEST(loss_within_documents_is_that_of_plain_fp64)
{
    sizes_t sizes = odd[cases[_i].arch];
    sizes.documents = true;
    check_loss(sizes, cases[_i].precision);
}
END_TEST

/* What follows a context of any length, as fp64 has it for the last position. */
START_TEST(logits_are_those_of_plain_fp64)
{
    fixture_t *f = fixture_open(odd[cases[_i].arch], cases[_i].precision);
    size_t vocab_size = (size_t)f->sizes.vocab_size;
    float *logits = malloc(vocab_size * sizeof *logits);
    double *want = malloc((size_t)f->sizes.seq_len * vocab_size * sizeof *want), worst = 0.0;
    for (size_t n = 1; n <= (size_t)f->sizes.seq_len; n += 4) { /* 1, 5 .. 17 */
        fp64_batch_t batch = batch_of(f);
        batch.n_sequences = 1;
        batch.seq_len = n;
        fp64_model_loss(f->reference, &batch, want);
        ck_assert_int_eq(model_logits(&f->trainer.model, f->tokens, n, logits), ZERO_OK);
        double error = support_max_error(logits, want + (n - 1) * vocab_size, vocab_size);
        ck_assert_msg(error < LOGIT_TOLERANCE, "%zu tokens: %.3g of the largest logit", n, error);
        worst = fmax(worst, error);
    }
    printf("%s, %s: logits off by at most %.2g of the largest\n", f->trainer.model.ops->name,
           zero_dtype_name(cases[_i].precision), worst);
    free(logits);
    free(want);
    fixture_close(f);
}
END_TEST

/* ---- Backward ---- */

typedef struct tensor_check {
    double largest;   /* |gradient| in the tensor */
    double length;    /* Euclidean */
    double worst;     /* error, as a part of `largest` */
    double tolerance; /* of it */
} tensor_check_t;

static tensor_check_t begin_check(const fixture_t *f, size_t t, double tolerance)
{
    tensor_check_t check = {.tolerance = tolerance};
    for (size_t i = 0; i < f->reference->tensors[t].n_elems; i++) {
        check.largest = fmax(check.largest, fabs((double)f->grads[t][i]));
        check.length = hypot(check.length, (double)f->grads[t][i]);
    }
    ck_assert_double_gt(check.largest, 0.0);
    return check;
}

static void check_element(fixture_t *f, size_t t, size_t i, tensor_check_t *check)
{
    fp64_tensor_t *tensor = &f->reference->tensors[t];
    fp64_batch_t batch = batch_of(f);
    double want = fp64_model_numeric_grad(f->reference, &batch, tensor, i, DIFFERENCE_STEP);
    double error = fabs((double)f->grads[t][i] - want);
    check->worst = fmax(check->worst, error / check->largest);
    ck_assert_msg(error <= check->tolerance * check->largest + DIFFERENCE_ERROR,
                  "%s[%zu]: %.9g, by difference %.9g; the tensor's largest is %.3g", tensor->name, i,
                  (double)f->grads[t][i], want, check->largest);
}

/* The derivative along a random unit vector of signs, to which every element of the tensor contributes: one that is off
 * by more than the tolerance times the gradient's length shows. */
static void check_direction(fixture_t *f, size_t t, const tensor_check_t *check)
{
    fp64_tensor_t *tensor = &f->reference->tensors[t];
    fp64_batch_t batch = batch_of(f);
    size_t n = tensor->n_elems;
    double unit = 1.0 / sqrt((double)n), got = 0.0, loss[2];
    double *saved = malloc(n * sizeof *saved), *direction = malloc(n * sizeof *direction);
    memcpy(saved, tensor->values, n * sizeof *saved);
    for (size_t i = 0; i < n; i++) {
        direction[i] = support_random(&f->random) & 1 ? unit : -unit;
        got += (double)f->grads[t][i] * direction[i];
    }
    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; i < n; i++)
            tensor->values[i] = saved[i] + (side ? -DIFFERENCE_STEP : DIFFERENCE_STEP) * direction[i];
        loss[side] = fp64_model_loss(f->reference, &batch, NULL);
    }
    double want = (loss[0] - loss[1]) / (2 * DIFFERENCE_STEP);
    memcpy(tensor->values, saved, n * sizeof *saved);
    ck_assert_msg(fabs(got - want) <= check->tolerance * check->length * unit + DIFFERENCE_ERROR,
                  "%s: along a direction %.9g, by difference %.9g; typical is %.3g", tensor->name, got, want,
                  check->length * unit);
    free(saved);
    free(direction);
}

/* Documents or not, and every recompute. */
START_TEST(every_gradient_is_that_of_central_differences)
{
    sizes_t sizes = tiny[_i % N_ARCHS];
    sizes.documents = _i / N_ARCHS % 2;
    sizes.recompute = _i / N_ARCHS / 2;
    fixture_t *f = fixture_open(sizes, ZERO_FP32);
    double worst = 0.0;
    train(f);
    for (size_t t = 0; t < f->reference->n_tensors; t++) {
        tensor_check_t check = begin_check(f, t, FP32_TOLERANCE);
        for (size_t i = 0; i < f->reference->tensors[t].n_elems; i++)
            check_element(f, t, i, &check);
        worst = fmax(worst, check.worst);
    }
    printf("%s, fp32, every element: at most %.2g of the tensor's largest\n", f->trainer.model.ops->name, worst);
    fixture_close(f);
}
END_TEST

/* A rounding to bf16 is off by 2^-9 of the element; the token table's gradient is rounded twice, as the head writes it
 * and as the embedding adds to it, and then of a sum that may be larger than what is left. */
#define BF16_TOLERANCE (3.0 / 512.0)

START_TEST(gradients_of_odd_sizes_are_those_of_central_differences)
{
    double tolerance = cases[_i].precision == ZERO_FP32 ? FP32_TOLERANCE : BF16_TOLERANCE, worst = 0.0;
    fixture_t *f = fixture_open(odd[cases[_i].arch], cases[_i].precision);
    train(f);
    for (size_t t = 0; t < f->reference->n_tensors; t++) {
        size_t n_elems = f->reference->tensors[t].n_elems;
        tensor_check_t check = begin_check(f, t, tolerance);
        for (size_t i = 0; i < N_SAMPLED; i++)
            check_element(f, t, n_elems <= N_SAMPLED ? i % n_elems : support_random(&f->random) % n_elems, &check);
        for (int i = 0; i < N_DIRECTIONS; i++)
            check_direction(f, t, &check);
        worst = fmax(worst, check.worst);
    }
    printf("%s, %s, sampled: at most %.2g of the tensor's largest\n", f->trainer.model.ops->name,
           zero_dtype_name(cases[_i].precision), worst);
    fixture_close(f);
}
END_TEST

/* ---- Activations ---- */

/* Fills memory that is idle before a unit's forward, or after its backward, with NaN. */
static void poison(const model_t *model, zero_unit_t unit, bool forward)
{
    for (zero_user_block_t *block = model->engine->user_blocks; block; block = block->next)
        if (!block->always_in_use && (forward ? block->first : block->last) == unit)
            memset(block->data, 0xff, block->n_bytes);
}

static zero_status_t poison_and_forward(model_t *model, zero_unit_t unit)
{
    poison(model, unit, true);
    return arch_forward(model, unit);
}

static zero_status_t backward_and_poison(model_t *model, zero_unit_t unit)
{
    ZERO_TRY(arch_backward(model, unit));
    poison(model, unit, false);
    return ZERO_OK;
}

static size_t idle_bytes(const zero_engine_t *engine)
{
    size_t n = 0;
    for (const zero_user_block_t *block = engine->user_blocks; block; block = block->next)
        n += block->always_in_use ? 0 : block->n_bytes;
    return n;
}

/* With each kind of recomputation, without fp8 and with it: only activations that are not in use may be lent. */
START_TEST(activations_matter_in_their_span_alone)
{
    bool fp8 = _i / N_ARCHS >= 3;
    sizes_t sizes = fp8 ? even[_i % N_ARCHS] : odd[_i % N_ARCHS];
    sizes.recompute = _i / N_ARCHS % 3;
    sizes.fp8 = fp8 ? FP8_LINEAR : FP8_NONE;
    zero_dtype_t precision = fp8 ? ZERO_BF16 : ZERO_FP32;
    fixture_t *f = fixture_open(sizes, precision), *poisoned = fixture_open(sizes, precision);
    model_ops_t ops = *f->trainer.model.ops;
    ops.forward = poison_and_forward;
    ops.backward = backward_and_poison;
    poisoned->trainer.model.ops = &ops;
    ck_assert_double_eq(train(poisoned), train(f));
    for (size_t t = 0; t < f->reference->n_tensors; t++)
        ck_assert_mem_eq(poisoned->grads[t], f->grads[t], f->reference->tensors[t].n_elems * sizeof(float));
    /* Most of a layer's activations, each layer's. */
    size_t layer_bytes = (size_t)(sizes.n_batch * sizes.seq_len * sizes.dim) * sizeof(float) *
                         (sizes.recompute == RECOMPUTE_FULL ? 1 : 6);
    ck_assert_uint_ge(idle_bytes(f->trainer.engine), (size_t)sizes.layers * layer_bytes);
    fixture_close(f);
    fixture_close(poisoned);
}
END_TEST

/* ---- Sizes ---- */

/* Parameters as published, GPT-2's vocabulary padded by 47 and Llama 3.2 given a head of its own. */
static const struct {
    const char *name;
    uint64_t n_params;
} READY[] = {
    {"gpt2-124m", 124439808 + 47 * 768},
    {"gpt2-350m", 354823168 + 47 * 1024},
    {"gpt2-774m", 774030080 + 47 * 1280},
    {"gpt2-1558m", 1557611200 + 47 * 1600},
    {"llama-1b", UINT64_C(1235814400) + 128256 * 2048},
    {"llama-3b", UINT64_C(3212749824) + 128256 * 3072},
    {"llama-8b", UINT64_C(8030261248)},
    {"llama-3.2-1b", UINT64_C(1235814400)},
    {"qwen3-1.7b", UINT64_C(1720574976)},
    {"mistral-7b", UINT64_C(7248023552)},
};
#define N_READY ((int)(sizeof READY / sizeof READY[0]))

/* Operations of one token by the products it meets: 2 for each element of a matrix forward and 4 backward, and in
 * attention the same for T / 2 keys and as many values, on average. */
static double count_flops(const options_t *o)
{
    double C = (double)o->model.dim, F = (double)o->model.ffn_dim, T = (double)o->model.seq_len;
    double kv = C / (double)o->model.heads * (double)o->model.kv_heads;
    double mlp = (o->model.arch == ARCH_GPT2 ? 2.0 : 3.0) * C * F;
    double layer = C * (C + 2.0 * kv) + C * C + mlp + 2.0 * C * T / 2.0;
    return 6.0 * ((double)o->model.layers * layer + C * (double)o->model.vocab_size);
}

START_TEST(ready_configurations_have_the_published_sizes)
{
    static options_t options;
    char path[256], *argv[] = {(char *)"zerotrain", path};
    options_action_t action;
    model_t model;
    zero_memory_t memory = {0};
    snprintf(path, sizeof path, "configs/%s.ini", READY[_i].name);
    ck_assert_int_eq(options_parse(2, argv, &options, &action), ZERO_OK);
    ck_assert_int_eq(options_resolve(&options, 8), ZERO_OK);
    ck_assert_int_eq(model_create(&options, &model), ZERO_OK);
    ck_assert_uint_eq(zero_model_n_params(model.declaration), READY[_i].n_params);
    /* Biases and norms, which are no products, are 3 in 10,000 at most. */
    ck_assert_double_eq_tol(model_flops_per_token(&model) / count_flops(&options), 1.0, 1e-3);
    model_plan(&model, &memory);
    ck_assert_uint_gt(memory.bytes[ZERO_MEMORY_ACTIVATIONS], 0);
    model_destroy(&model);
}
END_TEST

/* A size from `low` to `high`, each power of two as likely as any other. */
static int64_t random_size(uint64_t *seed, int64_t low, int64_t high)
{
    double size = (double)low * pow((double)high / (double)low, support_uniform(seed));
    return size < (double)high ? (int64_t)size : high;
}

static void randomize(uint64_t *seed, options_t *o)
{
    o->model.heads = random_size(seed, 1, 1 << 16);
    o->model.dim = o->model.heads * random_size(seed, 1, (1 << 20) / o->model.heads);
    o->model.ffn_dim = random_size(seed, 1, 1 << 24);
    o->model.layers = random_size(seed, 1, 8);
    o->model.vocab_size = random_size(seed, 1, INT32_MAX);
    o->model.seq_len = random_size(seed, 1, 1 << 24);
    o->model.kv_heads = 0;
    o->train.micro_batch = random_size(seed, 1, 1 << 20);
    o->train.global_batch = 0;
    o->train.steps = random_size(seed, 1, INT64_C(1000000000000));
}

/* Activations of GPT-2 on the CPU, by the list at the top of gpt2.c. */
static double gpt2_activations(const options_t *o)
{
    double C = (double)o->model.dim, F = (double)o->model.ffn_dim, heads = (double)o->model.heads;
    double R = (double)o->train.micro_batch * (double)o->model.seq_len, L = (double)o->model.layers;
    double layer = 8 * C + 2 * F + 4 + heads, shared = 2 + 2 * C + (F > 3 * C ? F : 3 * C);
    return 4 * (R * (L * layer + shared) + C);
}

/* Whatever the sizes, they are refused in a line, or the plan is what it is in fp64: no product wraps. */
START_TEST(sizes_are_planned_without_overflow_or_refused)
{
    static options_t base, options;
    char path[256], *argv[] = {(char *)"zerotrain", path};
    options_action_t action;
    uint64_t seed = 5;
    int n_planned = 0, n_large = 0;
    snprintf(path, sizeof path, "configs/%s.ini", READY[0].name);
    ck_assert_int_eq(options_parse(2, argv, &base, &action), ZERO_OK);
    base.model.arch = ARCH_GPT2;
    base.model.recompute = RECOMPUTE_NONE;
    for (int round = 0; round < 3000; round++) {
        model_t model;
        zero_memory_t memory = {0};
        options = base;
        randomize(&seed, &options);
        capture_begin();
        bool is_planned = options_resolve(&options, 1) == ZERO_OK && model_create(&options, &model) == ZERO_OK;
        bool is_silent = capture_end()[0] == 0;
        ck_assert(is_silent == is_planned);
        if (!is_planned)
            continue;
        model_plan(&model, &memory);
        double want = gpt2_activations(&options), got = (double)memory.bytes[ZERO_MEMORY_ACTIVATIONS];
        double table = 4.0 * (double)options.model.dim * (double)options.model.vocab_size; /* cast to fp32 */
        ck_assert_msg(fabs(got - want) <= 1e-9 * want + 256.0 * (double)(13 * options.model.layers + 7),
                      "%.0f bytes planned, %.0f needed", got, want);
        ck_assert_double_ge((double)memory.bytes[ZERO_MEMORY_WORKSPACE], table * (1 - 1e-9));
        ck_assert_double_lt((double)zero_memory_total(&memory), 0x1p62);
        n_planned++;
        n_large += got > 0x1p50;
        model_destroy(&model);
    }
    ck_assert_msg(n_planned > 500 && n_planned < 2500 && n_large > 50, "%d, %d", n_planned, n_large);
}
END_TEST

/* ---- Attention that is slow ---- */

static zero_attention_shape_t asked_for;
static zero_mask_t asked_mask;

static bool says_slow(zero_model_context_t *ctx, const zero_mask_t *mask, const zero_attention_shape_t *shape,
                      char why[ZERO_MODEL_WHY])
{
    asked_mask = *mask;
    ck_assert_ptr_nonnull(ctx->workspace); /* which plans are made for */
    asked_for = *shape;
    snprintf(why, ZERO_MODEL_WHY, "the reason");
    return true;
}

static bool says_fast(zero_model_context_t *ctx, const zero_mask_t *mask, const zero_attention_shape_t *shape,
                      char why[ZERO_MODEL_WHY])
{
    (void)says_slow(ctx, mask, shape, why);
    return false;
}

/* Returns what is logged when the trainer is opened with this table. */
static const char *attach_with(bool (*attention_is_slow)(zero_model_context_t *, const zero_mask_t *,
                                                         const zero_attention_shape_t *, char *))
{
    zero_comm_t *comm;
    trainer_t t = {0};
    options_t options = trainer_options(2, 48, 6, 259, 17);
    zero_model_kernels_t kernels;
    options.model.arch = ARCH_LLAMA;
    options.model.kv_heads = 2;
    options.train.micro_batch = 5;
    ck_assert_int_eq(options_resolve(&options, 1), ZERO_OK);
    ck_assert_int_eq(zero_comm_create(ZERO_COMM_AUTO, &comm), ZERO_OK);
    ck_assert_int_eq(trainer_prepare(&t, &options, comm), ZERO_OK);
    kernels = *t.model.kernels;
    kernels.attention_is_slow = attention_is_slow;
    t.model.kernels = &kernels;
    capture_begin();
    zero_status_t status = model_attach(&t.model, t.device, t.engine, 1);
    const char *said = capture_end();
    ck_assert_int_eq(status, ZERO_OK);
    trainer_close(&t);
    zero_comm_destroy(comm);
    return said;
}

START_TEST(attention_that_is_slow_is_one_warning_before_the_first_step)
{
    const zero_attention_shape_t want = {5, 17, 6, 2, 8};
    expect_line(attach_with(says_slow),
                (const char *[]){"warning: attention", "without tensor cores", ": the reason\n", NULL});
    ck_assert_mem_eq(&asked_for, &want, sizeof want);
    ck_assert(asked_mask.starts == NULL && asked_mask.window == 0);
    ck_assert_str_eq(attach_with(says_fast), "");
    ck_assert_str_eq(attach_with(NULL), ""); /* as the CPU's table */
    report_init(1, 2);                       /* one rank logs for all */
    ck_assert_str_eq(attach_with(says_slow), "");
}
END_TEST

/* ---- Sampling ---- */

/* draw_token maps [0, 1) onto tokens: on a regular grid of n numbers each token's share is its probability, give or
 * take one draw at each end of its interval. Random draws could not reach such a bound. */
static void check_shares(const float *logits, int n, const sample_spec_t *spec, const double *want)
{
    enum { N_DRAWS = 100000 };
    draw_scratch_t scratch;
    int counts[16] = {0};
    ck_assert(draw_scratch_create(16, &scratch));
    for (int i = 0; i < N_DRAWS; i++)
        counts[draw_token(logits, n, spec, (i + 0.5) / N_DRAWS, &scratch)]++;
    draw_scratch_free(&scratch);
    for (int token = 0; token < n; token++)
        ck_assert_msg(fabs(counts[token] - N_DRAWS * want[token]) <= 2.0,
                      "temperature %g, top_k %d, top_p %g: token %d %d times, expected %.1f", (double)spec->temperature,
                      spec->top_k, spec->top_p, token, counts[token], N_DRAWS * want[token]);
}

/* Softmax over the `k` largest logits, by sorting nothing: a token is in when fewer than k are above it. */
static void softmax_of_top(const float *logits, int n, double temperature, int k, double *probabilities)
{
    double total = 0.0;
    for (int i = 0; i < n; i++) {
        int n_above = 0;
        for (int j = 0; j < n; j++)
            n_above += logits[j] > logits[i] || (j < i && logits[j] == logits[i]);
        probabilities[i] = n_above < k ? exp((double)logits[i] / temperature) : 0.0;
        total += probabilities[i];
    }
    for (int i = 0; i < n; i++)
        probabilities[i] /= total;
}

START_TEST(draws_follow_the_softmax)
{
    static const float logits[] = {0.3f, -1.0f, 2.5f, 2.5f, -7.0f, 1.25f, 0.0f, -0.5f, 1.0f};
    enum { N = sizeof logits / sizeof logits[0] };
    static const int top_ks[] = {0, 1, 2, 3, 5, N, N + 5};
    static const float temperatures[] = {0.5f, 1.0f, 3.0f};
    const sample_spec_t one = {.temperature = 1.0f};
    double want[N];
    for (size_t k = 0; k < sizeof top_ks / sizeof top_ks[0]; k++)
        for (size_t t = 0; t < sizeof temperatures / sizeof temperatures[0]; t++) {
            softmax_of_top(logits, N, (double)temperatures[t], top_ks[k] ? top_ks[k] : N, want);
            check_shares(logits, N, &(sample_spec_t){.temperature = temperatures[t], .top_k = top_ks[k]}, want);
        }
    draw_scratch_t scratch;
    ck_assert(draw_scratch_create(N, &scratch));
    for (double random = 0.0; random < 1.0; random += 0.0625) /* temperature 0: the likeliest, the first of equals */
        ck_assert_int_eq(draw_token(logits, N, &(sample_spec_t){.temperature = 0.0f}, random, &scratch), 2);
    ck_assert_int_eq(draw_token(logits, N, &one, 0x1.fffffffffffffp-1, &scratch), N - 1);
    static const float huge[] = {3e38f, -3e38f, 0.0f};
    ck_assert_int_eq(draw_token(huge, 3, &one, 0.999999, &scratch), 0);
    draw_scratch_free(&scratch);
}
END_TEST

/* Several chunks of weights: the token is where the sum of the weights, here one after another, comes to the share that
 * was asked for, whatever the number of threads. Both sums round; 1e-12 is a thousand times that. */
START_TEST(a_large_vocabulary_is_drawn_from_alike)
{
    enum { N = 5 * DRAW_CHUNK + 77, N_DRAWS = 3000 };
    static float logits[N];
    static double reached[N];
    const sample_spec_t spec = {.temperature = 0.7f};
    const int n_threads = omp_get_max_threads();
    draw_scratch_t scratch;
    uint64_t state = 5;
    double sum = 0.0;
    ck_assert(draw_scratch_create(N, &scratch));
    for (int i = 0; i < N; i++) {
        logits[i] = (float)(support_random(&state) % 1000) * 0.01f;
        reached[i] = sum += exp((double)logits[i] / (double)spec.temperature);
    }
    for (int i = 0; i < N_DRAWS; i++) {
        const double random = (double)support_random(&state) * 0x1p-64, wanted = random * sum;
        omp_set_num_threads(1 + i % 3);
        const int32_t token = draw_token(logits, N, &spec, random, &scratch);
        ck_assert_msg((token == 0 || reached[token - 1] <= wanted + 1e-12 * sum) &&
                          reached[token] > wanted - 1e-12 * sum,
                      "%.17g: token %d", random, (int)token);
    }
    omp_set_num_threads(n_threads);
    draw_scratch_free(&scratch);
}
END_TEST

/* Probabilities 0.4, 0.3, 0.2 and 0.1: top_p takes the fewest likeliest tokens that add up to it, of those that top_k
 * leaves. */
START_TEST(top_p_takes_the_fewest_that_add_up_to_it)
{
    const float logits[] = {logf(0.1f), logf(0.4f), logf(0.2f), logf(0.3f)};
    static const struct {
        double top_p;
        int top_k;
        double want[4];
    } tops[] = {{0.39, 0, {0, 1, 0, 0}},
                {0.41, 0, {0, 4 / 7.0, 0, 3 / 7.0}},
                {0.69, 0, {0, 4 / 7.0, 0, 3 / 7.0}},
                {0.71, 0, {0, 4 / 9.0, 2 / 9.0, 3 / 9.0}},
                {1.0, 0, {0.1, 0.4, 0.2, 0.3}},
                {0.56, 2, {0, 1, 0, 0}}, /* of two, the first has 4/7 */
                {0.58, 2, {0, 4 / 7.0, 0, 3 / 7.0}}};
    for (size_t i = 0; i < sizeof tops / sizeof tops[0]; i++)
        check_shares(logits, 4, &(sample_spec_t){.temperature = 1.0f, .top_p = tops[i].top_p, .top_k = tops[i].top_k},
                     tops[i].want);
}
END_TEST

/* The text that fp64 finds likeliest, past the model's context: the window slides. */
START_TEST(temperature_zero_continues_with_the_likeliest)
{
    enum { N_PROMPT = 3, N_TOKENS = 12 };
    int n_all;
    fixture_t *f = fixture_open(tiny[_i], ZERO_FP32);
    size_t vocab_size = (size_t)tiny[_i].vocab_size;
    int32_t got[N_PROMPT + N_TOKENS] = {5, 0, 36};
    double *logits = malloc((size_t)tiny[_i].seq_len * vocab_size * sizeof *logits);
    sample_spec_t spec = {.n_tokens = N_TOKENS, .temperature = 0.0f, .seed = 1};
    ck_assert_int_eq(sample_generate(&f->trainer.model, f->trainer.comm, &spec, got, N_PROMPT, &n_all), ZERO_OK);
    for (size_t n = N_PROMPT; n < N_PROMPT + N_TOKENS; n++) {
        size_t context = n < (size_t)tiny[_i].seq_len ? n : (size_t)tiny[_i].seq_len, best = 0;
        fp64_batch_t batch = {
            .tokens = got + n - context, .targets = got, .n_sequences = 1, .seq_len = context}; /* any targets */
        fp64_model_loss(f->reference, &batch, logits);
        const double *row = logits + (context - 1) * vocab_size;
        for (size_t token = 1; token < vocab_size; token++)
            best = row[token] > row[best] ? token : best;
        ck_assert_int_eq(got[n], (int)best);
    }
    free(logits);
    fixture_close(f);
}
END_TEST

/* One token a seed: the generator's own numbers through the model, against fp64's softmax. The bound is the 0.999
 * quantile of chi-square with 36 degrees of freedom; seeds are fixed, so the test passes always or never. */
START_TEST(generated_tokens_follow_the_softmax)
{
    enum { N_DRAWS = 4000, VOCAB = 37 };
    int n_all;
    fixture_t *f = fixture_open(tiny[GPT2], ZERO_FP32);
    int32_t tokens[2] = {7};
    int counts[VOCAB] = {0};
    double logits[VOCAB], total = 0.0, chi_square = 0.0;
    fp64_batch_t batch = {.tokens = tokens, .targets = tokens, .n_sequences = 1, .seq_len = 1};
    fp64_model_loss(f->reference, &batch, logits);
    for (int i = 0; i < VOCAB; i++)
        total += exp(logits[i]);
    for (uint64_t seed = 1; seed <= N_DRAWS; seed++) {
        sample_spec_t spec = {.n_tokens = 1, .temperature = 1.0f, .seed = seed};
        ck_assert_int_eq(sample_generate(&f->trainer.model, f->trainer.comm, &spec, tokens, 1, &n_all), ZERO_OK);
        counts[tokens[1]]++;
    }
    for (int i = 0; i < VOCAB; i++) {
        double want = N_DRAWS * exp(logits[i]) / total;
        chi_square += (counts[i] - want) * (counts[i] - want) / want;
    }
    ck_assert_msg(chi_square < 67.99, "chi-square %.1f", chi_square);
    fixture_close(f);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("model");
    TCase *passes = tcase_create("passes");
    tcase_set_timeout(passes, 120);
    tcase_add_loop_test(passes, loss_is_that_of_plain_fp64, 0, N_CASES);
    tcase_add_loop_test(passes, loss_within_documents_is_that_of_plain_fp64, 0, N_CASES);
    tcase_add_loop_test(passes, logits_are_those_of_plain_fp64, 0, N_CASES);
    tcase_add_loop_test(passes, every_gradient_is_that_of_central_differences, 0, 3 * 2 * N_ARCHS);
    tcase_add_loop_test(passes, gradients_of_odd_sizes_are_those_of_central_differences, 0, N_CASES);
    tcase_add_loop_test(passes, activations_matter_in_their_span_alone, 0, 2 * 3 * N_ARCHS);
    suite_add_tcase(s, passes);
    TCase *configurations = tcase_create("configurations");
    tcase_add_loop_test(configurations, ready_configurations_have_the_published_sizes, 0, N_READY);
    tcase_add_test(configurations, sizes_are_planned_without_overflow_or_refused);
    tcase_add_test(configurations, attention_that_is_slow_is_one_warning_before_the_first_step);
    suite_add_tcase(s, configurations);
    TCase *sampling = tcase_create("sampling");
    tcase_set_timeout(sampling, 60);
    tcase_add_test(sampling, draws_follow_the_softmax);
    tcase_add_test(sampling, a_large_vocabulary_is_drawn_from_alike);
    tcase_add_test(sampling, top_p_takes_the_fewest_that_add_up_to_it);
    tcase_add_loop_test(sampling, temperature_zero_continues_with_the_likeliest, 0, N_ARCHS);
    tcase_add_test(sampling, generated_tokens_follow_the_softmax);
    suite_add_tcase(s, sampling);
    return s;
}

int main(void)
{
    return support_main(suite());
}
