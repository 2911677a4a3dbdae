/* test_model.c - every architecture: the real forward and backward against plain fp64 and its central differences.
 *
 * Gradients are read through the public API alone: with beta1 = 0, no clipping and a rate of zero, AdamW's first moment
 * after a step is the gradient itself, as it was communicated.
 */
#define SUPPORT_SANITIZE_SOME
#include "tests/unit/train/model_beside_fp64.h"
#include "train/model/arch.h"
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
#define N_SAMPLED 16 /* elements of each tensor; directions see the others */
#define N_DIRECTIONS 3

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
    ck_assert_int_eq(model_loss(&f->trainer.model, f->sizes.n_batch,
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

/* Sets the kinds of recomputation, of which full comes with attention and without. */
enum { N_KINDS = RECOMPUTE_FULL + 2 };
static void set_kind(sizes_t *sizes, int kind)
{
    sizes->recompute = kind <= RECOMPUTE_FULL ? kind : RECOMPUTE_FULL;
    sizes->keep_attention = kind > RECOMPUTE_FULL;
}

/* Documents or not, and every recompute. */
START_TEST(every_gradient_is_that_of_central_differences)
{
    sizes_t sizes = tiny[_i % N_ARCHS];
    sizes.documents = _i / N_ARCHS % 2;
    set_kind(&sizes, _i / N_ARCHS / 2);
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
    bool fp8 = _i / N_ARCHS >= N_KINDS;
    sizes_t sizes = fp8 ? even[_i % N_ARCHS] : odd[_i % N_ARCHS];
    set_kind(&sizes, _i / N_ARCHS % N_KINDS);
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

static int n_attentions;

static zero_status_t count_attention(zero_model_context_t *ctx, void *out, float *logsumexp, const void *qkv,
                                     const zero_mask_t *mask, const zero_attention_shape_t *shape)
{
    n_attentions++;
    return zero_model_kernels_cpu()->attention(ctx, out, logsumexp, qkv, mask, shape);
}

/* Of each layer once in forward and, if all is computed again, once in backward. */
START_TEST(attention_that_is_kept_is_not_computed_again)
{
    sizes_t sizes = odd[_i / N_KINDS];
    const int kind = _i % N_KINDS;
    set_kind(&sizes, kind);
    fixture_t *f = fixture_open(sizes, ZERO_FP32);
    zero_model_kernels_t kernels = *f->trainer.model.kernels;
    kernels.attention = count_attention;
    f->trainer.model.kernels = &kernels;
    n_attentions = 0;
    train(f);
    ck_assert_int_eq(n_attentions, (kind == RECOMPUTE_FULL ? 2 : 1) * (int)sizes.layers);
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
    tcase_add_loop_test(passes, every_gradient_is_that_of_central_differences, 0, N_KINDS * 2 * N_ARCHS);
    tcase_add_loop_test(passes, gradients_of_odd_sizes_are_those_of_central_differences, 0, N_CASES);
    tcase_add_loop_test(passes, activations_matter_in_their_span_alone, 0, 2 * N_KINDS * N_ARCHS);
    tcase_add_loop_test(passes, attention_that_is_kept_is_not_computed_again, 0, N_KINDS * N_ARCHS);
    suite_add_tcase(s, passes);
    return s;
}

int main(void)
{
    return support_main(suite());
}
