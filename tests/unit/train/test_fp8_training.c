/* test_fp8_training.c - [train] fp8 in a whole model: its gradients against products in fp64 of operands that are
 * rounded here, without the code under test; what is not finite; memory; the range of scales.
 *
 * The reference is the same model without fp8, in whose table of kernels the linear layers are replaced. On the CPU all
 * else is equal to the bit. The kernels themselves are tested in test_fp8.c, stages and ranks in test_stages.c.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/float_bits.h"
#include "tests/support/support.h"
#include "tests/support/trainer.h"
#include "train/model/fp8.h"

/* Of a gradient, in the Euclidean norm. Sums in fp32 are off by 1e-6; then an operand may lie on the other side of a
 * rounding boundary of fp8, which changes it by up to an eighth: we measured 8e-5, of one element of one operand.
 * Without rounding to fp8 the error is 0.02 or more. */
#define GRADIENT_TOLERANCE 2e-3
#define LOSS_TOLERANCE 1e-6

enum { N_ARCHS = 2, N_RECOMPUTES = 3, N_MIXES = 3 };

/* recompute: from N_RECOMPUTES on a mix of the two blocks'. */
static options_t options_of(int arch, options_fp8_t fp8, int recompute)
{
    static const int mixes[N_MIXES][3] = {{RECOMPUTE_FULL, 1, 0}, {RECOMPUTE_FULL, 0, 1}, {RECOMPUTE_LIGHT, 1, 0}};
    options_t o = trainer_options(2, 48, 3, 67, 16);
    o.model.arch = arch;
    o.model.kv_heads = arch == ARCH_LLAMA ? 1 : 0;
    o.model.ffn_dim = arch == ARCH_LLAMA ? 80 : 0;
    o.model.recompute = recompute < N_RECOMPUTES ? recompute : mixes[recompute - N_RECOMPUTES][0];
    o.model.recompute_none = recompute < N_RECOMPUTES ? 0 : mixes[recompute - N_RECOMPUTES][1];
    o.model.recompute_light = recompute < N_RECOMPUTES ? 0 : mixes[recompute - N_RECOMPUTES][2];
    o.train.precision = ZERO_BF16;
    o.train.fp8 = (int)fp8;
    o.train.micro_batch = o.train.global_batch = 2;
    o.train.beta1 = 0.0; /* AdamW's first moment is the gradient */
    o.train.grad_clip = 0.0;
    ck_assert_int_eq(options_resolve(&o, 1), ZERO_OK);
    return o;
}

/* ---- The reference ---- */

typedef struct format {
    int significant_bits, least_exponent; /* of a normal number, as frexp counts */
    double largest;
} format_t;

static const format_t E4M3 = {4, -5, 448.0}, E5M2 = {3, -13, 57344.0};

static struct {
    bool rounds, exact_dw;
    double min_scale, max_scale; /* so far */
} reference;

static double round_to(format_t format, double x)
{
    int exponent;
    if (x == 0.0)
        return x;
    double mantissa = frexp(x, &exponent);
    int least = exponent < format.least_exponent ? format.least_exponent - exponent : 0;
    int bits = format.significant_bits - least;
    return ldexp(nearbyint(ldexp(mantissa, bits)), exponent - bits);
}

/* Rounds x as one matrix, with the largest power of two that keeps it in the format's range. */
static void round_matrix(format_t format, double *x, size_t n)
{
    double largest = 0.0, scale = 0x1p126;
    if (!reference.rounds)
        return;
    for (size_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(x[i]));
    while (largest * scale > format.largest)
        scale /= 2.0;
    scale = largest == 0.0 ? 1.0 : scale;
    reference.min_scale = fmin(reference.min_scale, scale);
    reference.max_scale = fmax(reference.max_scale, scale);
    for (size_t i = 0; i < n; i++)
        x[i] = round_to(format, x[i] * scale) / scale;
}

static double *doubles_of(const float *x, size_t n)
{
    double *values = malloc(n * sizeof *values);
    for (size_t i = 0; i < n; i++)
        values[i] = (double)x[i];
    return values;
}

/* The matrix as [n_in, n_out], rounded. */
static double *matrix_of(zero_weight_t weight, zero_linear_layout_t layout, size_t n_in, size_t n_out)
{
    double *values = malloc(n_in * n_out * sizeof *values);
    ck_assert_int_eq(weight.dtype, ZERO_BF16);
    for (size_t i = 0; i < n_in; i++)
        for (size_t o = 0; o < n_out; o++) {
            size_t at = layout == ZERO_LINEAR_IN_OUT ? i * n_out + o : o * n_in + i;
            uint32_t bits = (uint32_t)((const uint16_t *)weight.data)[at] << 16;
            float value;
            memcpy(&value, &bits, sizeof value);
            values[i * n_out + o] = (double)value;
        }
    round_matrix(E4M3, values, n_in * n_out);
    return values;
}

static double element_of(zero_weight_t vector, size_t i)
{
    uint32_t bits = vector.data ? (uint32_t)((const uint16_t *)vector.data)[i] << 16 : 0;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

static zero_status_t linear(zero_model_context_t *ctx, void *y, bool accumulate, const void *x, zero_weight_t weight,
                            zero_linear_layout_t layout, zero_weight_t bias, size_t n_rows, size_t n_in, size_t n_out)
{
    double *a = doubles_of(x, n_rows * n_in), *w = matrix_of(weight, layout, n_in, n_out);
    (void)ctx;
    ck_assert(!accumulate);
    round_matrix(E4M3, a, n_rows * n_in);
    for (size_t r = 0; r < n_rows; r++)
        for (size_t o = 0; o < n_out; o++) {
            double sum = element_of(bias, o);
            for (size_t i = 0; i < n_in; i++)
                sum += a[r * n_in + i] * w[i * n_out + o];
            ((float *)y)[r * n_out + o] = (float)sum;
        }
    free(a);
    free(w);
    return ZERO_OK;
}

static zero_status_t linear_backward_input(zero_model_context_t *ctx, void *dx, bool accumulate, const void *dy,
                                           zero_weight_t weight, zero_linear_layout_t layout, size_t n_rows,
                                           size_t n_in, size_t n_out)
{
    double *d = doubles_of(dy, n_rows * n_out), *w = matrix_of(weight, layout, n_in, n_out);
    (void)ctx;
    ck_assert(!accumulate);
    round_matrix(E5M2, d, n_rows * n_out);
    for (size_t r = 0; r < n_rows; r++)
        for (size_t i = 0; i < n_in; i++) {
            double sum = 0.0;
            for (size_t o = 0; o < n_out; o++)
                sum += d[r * n_out + o] * w[i * n_out + o];
            ((float *)dx)[r * n_in + i] = (float)sum;
        }
    free(d);
    free(w);
    return ZERO_OK;
}

static zero_status_t linear_backward_weight(zero_model_context_t *ctx, zero_grad_t dweight, zero_linear_layout_t layout,
                                            zero_grad_t dbias, const void *x, const void *dy, size_t n_rows,
                                            size_t n_in, size_t n_out)
{
    const zero_model_kernels_t *k = zero_model_kernels_cpu();
    double *a = doubles_of(x, n_rows * n_in), *d = doubles_of(dy, n_rows * n_out);
    float *sums = calloc(n_in * n_out, sizeof *sums), *columns = calloc(n_out, sizeof *columns);
    for (size_t o = 0; o < n_out; o++) {
        double sum = 0.0;
        for (size_t r = 0; r < n_rows; r++)
            sum += d[r * n_out + o];
        columns[o] = (float)sum;
    }
    if (!reference.exact_dw) {
        round_matrix(E4M3, a, n_rows * n_in);
        round_matrix(E5M2, d, n_rows * n_out);
    }
    for (size_t i = 0; i < n_in; i++)
        for (size_t o = 0; o < n_out; o++) {
            double sum = 0.0;
            for (size_t r = 0; r < n_rows; r++)
                sum += a[r * n_in + i] * d[r * n_out + o];
            sums[layout == ZERO_LINEAR_IN_OUT ? i * n_out + o : o * n_in + i] = (float)sum;
        }
    ZERO_TRY(k->put_grad(ctx, dweight, sums, n_in * n_out));
    if (dbias.data)
        ZERO_TRY(k->put_grad(ctx, dbias, columns, n_out));
    free(a);
    free(d);
    free(sums);
    free(columns);
    return ZERO_OK;
}

/* ---- One step ---- */

typedef struct gradient {
    float *values;
    size_t n_elems;
} gradient_t;

typedef struct run {
    options_t options;
    zero_model_kernels_t kernels; /* the CPU's, some of them replaced */
    zero_comm_t *comm;
    trainer_t trainer;
    int32_t tokens[2 * 16], targets[2 * 16];
    gradient_t *grads; /* by tensor, after train */
} run_t;

static run_t *run_open(options_t options)
{
    run_t *r = calloc(1, sizeof *r);
    uint64_t random = 5;
    r->options = options;
    ck_assert_int_eq(zero_comm_create(ZERO_COMM_AUTO, &r->comm), ZERO_OK);
    ck_assert_int_eq(trainer_open(&r->trainer, &r->options, r->comm), ZERO_OK);
    ck_assert_int_eq(zero_init_parameters(r->trainer.engine), ZERO_OK);
    r->kernels = *r->trainer.model.kernels;
    r->trainer.model.kernels = &r->kernels;
    for (size_t i = 0; i < sizeof r->tokens / sizeof r->tokens[0]; i++) {
        r->tokens[i] = (int32_t)(support_random(&random) % 67);
        r->targets[i] = (int32_t)(support_random(&random) % 67);
    }
    r->grads = calloc((size_t)zero_model_n_tensors(r->trainer.model.declaration), sizeof *r->grads);
    return r;
}

/* exact_dw: gradients of weights are products of what is not rounded. */
static run_t *reference_open(int arch, bool rounds, bool exact_dw)
{
    run_t *r = run_open(options_of(arch, FP8_NONE, RECOMPUTE_NONE));
    reference.rounds = rounds;
    reference.exact_dw = exact_dw;
    reference.min_scale = INFINITY;
    reference.max_scale = 0.0;
    r->kernels.linear = linear;
    r->kernels.linear_backward_input = linear_backward_input;
    r->kernels.linear_backward_weight = linear_backward_weight;
    return r;
}

static void run_close(run_t *r)
{
    for (int t = 0; t < zero_model_n_tensors(r->trainer.model.declaration); t++)
        free(r->grads[t].values);
    free(r->grads);
    trainer_close(&r->trainer);
    zero_comm_destroy(r->comm);
    free(r);
}

static zero_status_t take_gradient(void *user, const zero_chunk_t *chunk)
{
    gradient_t *gradient = &((run_t *)user)->grads[chunk->tensor];
    size_t end = chunk->first + chunk->n_elems;
    if (end > gradient->n_elems) {
        gradient->values = realloc(gradient->values, end * sizeof *gradient->values);
        gradient->n_elems = end;
    }
    memcpy(gradient->values + chunk->first, chunk->m, chunk->n_elems * sizeof(float));
    return ZERO_OK;
}

static zero_step_result_t step(run_t *r)
{
    zero_step_result_t result;
    ck_assert_int_eq(trainer_step(&r->trainer, r->tokens, r->targets, 0.0, &result), ZERO_OK);
    return result;
}

/* Makes a step that changes no weight; returns its loss. */
static double train(run_t *r)
{
    zero_step_result_t result = step(r);
    ck_assert(!result.skipped);
    ck_assert_int_eq(zero_get_state(r->trainer.engine, take_gradient, r), ZERO_OK);
    return (double)result.loss;
}

/* Of the worst tensor, |got - want| / |want|. */
static double gradient_error(const run_t *got, const run_t *want)
{
    double worst = 0.0;
    for (int t = 0; t < zero_model_n_tensors(got->trainer.model.declaration); t++) {
        const gradient_t *a = &got->grads[t], *b = &want->grads[t];
        double *wanted = doubles_of(b->values, b->n_elems);
        ck_assert_uint_eq(a->n_elems, b->n_elems);
        worst = fmax(worst, support_l2_error(a->values, wanted, a->n_elems));
        free(wanted);
    }
    return worst;
}

/* ---- Tests ---- */

START_TEST(gradients_are_those_of_products_of_rounded_operands_in_fp64)
{
    int arch = _i % N_ARCHS, recompute = _i / N_ARCHS;
    run_t *got = run_open(options_of(arch, FP8_LINEAR, recompute)), *want = reference_open(arch, true, false);
    double loss = train(got), loss_error = support_relative_error(loss, train(want)), evaluated;
    double error = gradient_error(got, want);
    printf("%s, recompute %d: loss off by %.1e, gradients by at most %.1e\n", got->trainer.model.ops->name, recompute,
           loss_error, error);
    ck_assert_double_le(loss_error, LOSS_TOLERANCE);
    ck_assert_double_le(error, GRADIENT_TOLERANCE);

    ck_assert_int_eq(model_clear_loss(&got->trainer.model), ZERO_OK);
    ck_assert_int_eq(
        model_loss(&got->trainer.model, 2, (model_batch_t){.inputs = got->tokens, .targets = got->targets}, 1.0 / 32.0),
        ZERO_OK);
    ck_assert_int_eq(model_take_loss(&got->trainer.model, &evaluated), ZERO_OK);
    ck_assert_msg((float)evaluated == (float)loss, "evaluation gives %.9g, training gave %.9g", evaluated, loss);
    run_close(got);
    run_close(want);
}
END_TEST

/* A comparison that cannot fail proves nothing. */
START_TEST(what_is_not_rounded_is_told_apart)
{
    run_t *got = run_open(options_of(_i, FP8_LINEAR, RECOMPUTE_NONE)), *exact = reference_open(_i, false, false);
    train(got);
    train(exact);
    ck_assert_double_ge(gradient_error(got, exact), 10 * GRADIENT_TOLERANCE);
    run_close(exact);
    run_t *exact_dw = reference_open(_i, true, true);
    train(exact_dw);
    ck_assert_double_ge(gradient_error(got, exact_dw), 10 * GRADIENT_TOLERANCE);
    run_close(exact_dw);
    run_close(got);
}
END_TEST

static fp8_range_t range_of(run_t *r)
{
    train(r);
    ck_assert_int_eq(fp8_store_range(&r->trainer.model), ZERO_OK);
    return fp8_read_range(&r->trainer.model);
}

START_TEST(the_range_of_scales_is_that_of_the_reference)
{
    run_t *got = run_open(options_of(_i, FP8_LINEAR, RECOMPUTE_NONE)), *want = reference_open(_i, true, false);
    fp8_range_t range = range_of(got);
    train(want);
    ck_assert(range.is_known && !fp8_read_range(&want->trainer.model).is_known);
    ck_assert_double_eq((double)range.min_scale, reference.min_scale);
    ck_assert_double_eq((double)range.max_scale, reference.max_scale);
    run_close(got);
    run_close(want);
}
END_TEST

static zero_status_t raising_swiglu(zero_model_context_t *ctx, void *y, const void *gate_up, size_t n_rows,
                                    size_t width)
{
    *ctx->absmax = zero_bits_of_float(0x1p40f);
    return zero_model_kernels_cpu()->swiglu(ctx, y, gate_up, n_rows, width);
}

static zero_status_t raising_gelu(zero_model_context_t *ctx, void *y, const void *x, size_t n_elems)
{
    *ctx->absmax = zero_bits_of_float(0x1p40f);
    return zero_model_kernels_cpu()->gelu(ctx, y, x, n_elems);
}

START_TEST(a_pass_does_not_see_the_maxima_of_the_one_before)
{
    run_t *r = run_open(options_of(_i, FP8_LINEAR, RECOMPUTE_NONE));
    r->kernels.swiglu = raising_swiglu;
    r->kernels.gelu = raising_gelu;
    ck_assert_float_eq(range_of(r).min_scale, 0x1p-32f); /* E4M3 ends at 448: 2^8 */
    r->kernels.swiglu = zero_model_kernels_cpu()->swiglu;
    r->kernels.gelu = zero_model_kernels_cpu()->gelu;
    ck_assert_float_ge(range_of(r).min_scale, 1.0f);
    run_close(r);
}
END_TEST

static float poison; /* what the kernels below write into an operand */

static zero_status_t poisoned_attention(zero_model_context_t *ctx, void *out, float *logsumexp, const void *qkv,
                                        const zero_mask_t *mask, const zero_attention_shape_t *shape)
{
    ZERO_TRY(zero_model_kernels_cpu()->attention(ctx, out, logsumexp, qkv, mask, shape));
    ((float *)out)[5] = poison;
    return ZERO_OK;
}

static zero_status_t poisoned_backward(zero_model_context_t *ctx, void *dqkv, const void *dout, const void *qkv,
                                       const void *out, const float *logsumexp, const zero_mask_t *mask,
                                       const zero_attention_shape_t *shape)
{
    ZERO_TRY(zero_model_kernels_cpu()->attention_backward(ctx, dqkv, dout, qkv, out, logsumexp, mask, shape));
    ((float *)dqkv)[5] = poison;
    return ZERO_OK;
}

START_TEST(what_is_not_finite_skips_the_step)
{
    static const float poisons[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 2 * 3; i++) {
        run_t *r = run_open(options_of(_i, FP8_LINEAR, RECOMPUTE_NONE));
        poison = poisons[i / 2];
        if (i % 2 == 0)
            r->kernels.attention = poisoned_attention;
        else
            r->kernels.attention_backward = poisoned_backward;
        ck_assert_msg(step(r).skipped, "%g in %s", (double)poison, i % 2 == 0 ? "an input" : "an output's gradient");
        run_close(r);
    }
}
END_TEST

static uint64_t held_activations(options_t options, int64_t layers)
{
    zero_memory_t planned = {0};
    options.model.layers = layers;
    run_t *r = run_open(options);
    model_plan(&r->trainer.model, &planned);
    uint64_t held = zero_engine_memory(r->trainer.engine).bytes[ZERO_MEMORY_ACTIVATIONS];
    ck_assert_uint_eq(held, planned.bytes[ZERO_MEMORY_ACTIVATIONS]);
    run_close(r);
    return held;
}

static int64_t bytes_per_layer(options_t options)
{
    return (int64_t)held_activations(options, 3) - (int64_t)held_activations(options, 2);
}

/* A layer without recomputation keeps bytes in place of the inputs of its matrices, but for attention's output, which
 * attention's backward reads too. On the CPU an activation has 4 bytes. All are multiples of 256 bytes. */
START_TEST(what_is_kept_is_as_planned_and_less_than_in_bf16)
{
    const int64_t rows = 32, dim = 48, ffn = _i == ARCH_LLAMA ? 80 : 4 * 48;
    int64_t without = bytes_per_layer(options_of(_i, FP8_NONE, RECOMPUTE_NONE));
    int64_t with = bytes_per_layer(options_of(_i, FP8_LINEAR, RECOMPUTE_NONE));
    int64_t replaced = rows * (2 * dim + ffn), kept = rows * (3 * dim + ffn);
    int64_t scales = with - (without - 4 * replaced + kept); /* of a layer, rounded to 256 */
    ck_assert_msg(scales >= 0 && scales <= 256, "%lld bytes a layer, %lld without fp8", (long long)with,
                  (long long)without);
    for (int recompute = RECOMPUTE_LIGHT; recompute < N_RECOMPUTES; recompute++) {
        int64_t more = bytes_per_layer(options_of(_i, FP8_LINEAR, recompute)) -
                       bytes_per_layer(options_of(_i, FP8_NONE, recompute));
        ck_assert_msg(more >= 0 && more <= 256, "recompute %d: %lld bytes more", recompute, (long long)more);
    }
}
END_TEST

/* Lengths that are no multiple of 16 among them: a product then has the rows of a whole batch. */
START_TEST(texts_of_any_length_can_be_continued)
{
    options_t options = options_of(_i, FP8_LINEAR, RECOMPUTE_NONE);
    options.model.seq_len = 24;
    run_t *r = run_open(options);
    float logits[67];
    for (size_t n = 1; n <= 24; n++) {
        ck_assert_int_eq(model_logits(&r->trainer.model, r->tokens, n, logits), ZERO_OK);
        for (int i = 0; i < 67; i++)
            ck_assert(isfinite(logits[i]));
    }
    run_close(r);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("fp8 training");
    TCase *tc = tcase_create("fp8 training");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, gradients_are_those_of_products_of_rounded_operands_in_fp64, 0,
                        N_ARCHS * (N_RECOMPUTES + N_MIXES));
    tcase_add_loop_test(tc, what_is_not_rounded_is_told_apart, 0, N_ARCHS);
    tcase_add_loop_test(tc, the_range_of_scales_is_that_of_the_reference, 0, N_ARCHS);
    tcase_add_loop_test(tc, a_pass_does_not_see_the_maxima_of_the_one_before, 0, N_ARCHS);
    tcase_add_loop_test(tc, what_is_not_finite_skips_the_step, 0, N_ARCHS);
    tcase_add_loop_test(tc, what_is_kept_is_as_planned_and_less_than_in_bf16, 0, N_ARCHS);
    tcase_add_loop_test(tc, texts_of_any_length_can_be_continued, 0, N_ARCHS);
    suite_add_tcase(s, tc);
    return s;
}

int main(void)
{
    return support_main(suite());
}
