/* test_adam.c - tests AdamW on the CPU: its bits are those that shard.h promises with any instruction set, threads and
 * slicing; its numbers are close to an fp64 AdamW; each form of master weights holds what it should.
 */
#include <math.h>
#include <omp.h>

#include "kernels/step_math.h"
#include "tests/support/shard_support.h"

/* ---- A shard and its copies ---- */

static size_t low_bytes(const shard_t *s)
{
    static const size_t bytes_of_elem[] = {[ZERO_FP32] = 0, [ZERO_BF16] = 2, [ZERO_FP16] = 4};
    return s->n_elems * bytes_of_elem[s->dtype];
}

static shard_t shard_of_any_bits(zero_dtype_t dtype, size_t n_elems, uint64_t seed)
{
    shard_t s = {.dtype = dtype, .n_elems = n_elems, .state_bytes = n_elems * sizeof(float)};
    s.param = shard_any_floats(&seed, n_elems);
    s.low = shard_any_floats(&seed, n_elems);
    s.m = shard_any_floats(&seed, n_elems);
    s.v = shard_any_floats(&seed, n_elems);
    s.grad = shard_any_floats(&seed, n_elems);
    return s;
}

static void update_by_tensor(const zero_shard_kernels_t *kernels, const shard_t *s, const zero_adam_segment_t *segments,
                             size_t n_segments, const zero_adam_scalars_t *scalars,
                             const zero_tensor_scalars_t *by_tensor)
{
    zero_adam_t args = {.param_dtype = s->dtype,
                        .param = s->param,
                        .master_lo = s->dtype == ZERO_FP32 ? NULL : s->low,
                        .m = s->m,
                        .v = s->v,
                        .grad = s->grad,
                        .segments = segments,
                        .n_segments = n_segments,
                        .scalars = scalars,
                        .by_tensor = by_tensor};
    ck_assert_int_eq(kernels->adam(&args, NULL), ZERO_OK);
}

static void update(const zero_shard_kernels_t *kernels, const shard_t *s, const zero_adam_segment_t *segments,
                   size_t n_segments, const zero_adam_scalars_t *scalars)
{
    update_by_tensor(kernels, s, segments, n_segments, scalars, NULL);
}

static zero_adam_scalars_t usual_scalars(void)
{
    zero_adam_scalars_t s;
    zero_adam_scalars_decide(&s, 3e-4f, 0.9f, 0.95f, 1e-8f, 2.0f, 1.0f, 1.0f, 7);
    return s;
}

static float get_master(const shard_t *s, size_t i)
{
    if (s->dtype == ZERO_FP32)
        return ((const float *)s->param)[i];
    if (s->dtype == ZERO_FP16)
        return ((const float *)s->low)[i];
    return shard_float(((uint32_t)((const uint16_t *)s->param)[i] << 16) + (uint32_t)((const int16_t *)s->low)[i]);
}

/* ---- The bits ---- */

/* Computes the lines of zero_adam_t's comment, one rounding at a time. */
static void written_out_adam(const zero_adam_scalars_t *s, float decay, float grad, float *w, float *m, float *v)
{
    volatile float g = grad * s->grad_scale;
    volatile float share_of_m = s->one_minus_beta1 * g;
    volatile float square = g * g;
    volatile float share_of_v = s->one_minus_beta2 * square;
    *m = fmaf(s->beta1, *m, share_of_m);
    *v = fmaf(s->beta2, *v, share_of_v);
    volatile float root = sqrtf(*v);
    volatile float d = fmaf(root, s->inv_sqrt_bias2, s->eps);
    volatile float rate = s->lr * decay;
    *w = fmaf(-rate, *w, *w);
    volatile float unbiased = *m * s->inv_bias1;
    volatile float quotient = unbiased / d;
    *w = fmaf(-s->lr, quotient, *w);
}

static void assert_bits_or_nan(float got, float want, const char *what, size_t i)
{
    uint32_t expected = isnan(want) ? 0x7fc00000u : shard_bits(want);
    if (shard_bits(got) != expected)
        ck_abort_msg("%s[%zu] is %08x, not %08x", what, i, shard_bits(got), expected);
}

START_TEST(every_element_is_the_written_expression)
{
    const zero_dtype_t dtype = (zero_dtype_t)_i;
    const zero_adam_scalars_t scalars = usual_scalars();
    shard_t before = shard_of_any_bits(dtype, 400003, 11);
    /* AdamW's v is never negative. Half of the numbers are ordinary, so that few results are NaN. */
    uint64_t seed = 12;
    for (size_t i = 0; i < before.n_elems; ++i) {
        before.v[i] = fabsf(before.v[i]);
        if (i % 2 == 0) {
            before.m[i] = shard_ordinary_float(&seed, -30, 0);
            before.v[i] = fabsf(shard_ordinary_float(&seed, -60, 0));
            before.grad[i] = shard_ordinary_float(&seed, -30, 5);
        }
    }
    shard_t after = shard_clone(&before);
    zero_adam_segment_t segment = {.n_elems = before.n_elems, .decay = 0.1f};
    update(zero_shard_kernels_cpu(), &after, &segment, 1, &scalars);
    for (size_t i = 0; i < before.n_elems; ++i) {
        float w = get_master(&before, i), m = before.m[i], v = before.v[i];
        written_out_adam(&scalars, 0.1f, before.grad[i], &w, &m, &v);
        assert_bits_or_nan(get_master(&after, i), w, "w", i);
        assert_bits_or_nan(after.m[i], m, "m", i);
        assert_bits_or_nan(after.v[i], v, "v", i);
    }
    shard_free(&before);
    shard_free(&after);
}
END_TEST

START_TEST(instruction_sets_and_threads_give_the_same_bits)
{
    const zero_dtype_t dtype = (zero_dtype_t)_i;
    const zero_adam_scalars_t scalars = usual_scalars();
    shard_t before = shard_of_any_bits(dtype, 1000003, 21);
    /* Odd offsets that differ by array: no array starts at a vector's boundary. */
    const zero_adam_segment_t segments[] = {
        {.n_elems = 999001, .param = 3, .state = 1, .grad = 5, .decay = 0.1f},
        {.n_elems = 17, .param = 999980, .state = 999300, .grad = 999100},
    };
    shard_t want = shard_clone(&before);
    omp_set_num_threads(1);
    update(zero_shard_kernels_cpu_named("scalar"), &want, segments, 2, &scalars);
    ck_assert_int_ne(memcmp(want.m, before.m, before.n_elems * sizeof(float)), 0);
    for (size_t b = 0; b < SHARD_N_BUILDS; ++b) {
        const zero_shard_kernels_t *kernels = zero_shard_kernels_cpu_named(shard_build_names[b]);
        for (size_t t = 0; kernels != NULL && t < SHARD_N_THREAD_COUNTS; ++t) {
            shard_t got = shard_clone(&before);
            omp_set_num_threads(shard_thread_counts[t]);
            update(kernels, &got, segments, 2, &scalars);
            shard_assert_same(&got, &want, kernels->name);
            shard_free(&got);
        }
    }
    shard_free(&want);
    shard_free(&before);
}
END_TEST

START_TEST(slicing_changes_no_bits)
{
    enum { MAX_SEGMENTS = 4096 };
    const zero_dtype_t dtype = (zero_dtype_t)_i;
    const zero_adam_scalars_t scalars = usual_scalars();
    const zero_shard_kernels_t *kernels = zero_shard_kernels_cpu();
    shard_t want = shard_of_any_bits(dtype, 300007, 31);
    shard_t got = shard_clone(&want);
    zero_adam_segment_t whole = {.n_elems = want.n_elems, .decay = 0.1f};
    update(kernels, &want, &whole, 1, &scalars);

    static zero_adam_segment_t cuts[MAX_SEGMENTS];
    size_t n_cuts = 0;
    uint64_t seed = 32;
    for (size_t at = 0; at < got.n_elems; ++n_cuts) {
        size_t n = n_cuts % 5 == 4 ? 0 : (size_t)(support_random(&seed) % 400) + 1;
        if (n > got.n_elems - at || n_cuts + 1 == MAX_SEGMENTS)
            n = got.n_elems - at;
        cuts[n_cuts] = (zero_adam_segment_t){.n_elems = n, .param = at, .state = at, .grad = at, .decay = 0.1f};
        at += n;
    }
    ck_assert_uint_gt(n_cuts, 1000);
    update(kernels, &got, cuts, n_cuts, &scalars);
    shard_assert_same(&got, &want, "cut into segments");
    shard_free(&got);
    shard_free(&want);
}
END_TEST

START_TEST(elements_outside_the_segments_are_untouched)
{
    const zero_dtype_t dtype = (zero_dtype_t)_i;
    const zero_adam_scalars_t scalars = usual_scalars();
    shard_t before = shard_of_any_bits(dtype, 1000, 41);
    shard_t after = shard_clone(&before);
    const zero_adam_segment_t segment = {.n_elems = 501, .param = 33, .state = 33, .grad = 33};
    update(zero_shard_kernels_cpu(), &after, &segment, 1, &scalars);
    const size_t elem = zero_dtype_size(dtype), low = low_bytes(&before) / before.n_elems, end = 33 + 501;
    shard_assert_same_bits(after.param, before.param, 33 * elem, "param", "before the segment");
    shard_assert_same_bits((char *)after.param + end * elem, (char *)before.param + end * elem, (1000 - end) * elem,
                           "param", "behind the segment");
    shard_assert_same_bits((char *)after.low + end * low, (char *)before.low + end * low, (1000 - end) * low, "low",
                           "behind the segment");
    shard_assert_same_bits(after.m, before.m, 33 * sizeof(float), "m", "before the segment");
    shard_assert_same_bits(after.v + end, before.v + end, (1000 - end) * sizeof(float), "v", "behind the segment");
    shard_free(&after);
    shard_free(&before);
}
END_TEST

/* Each segment by itself with the scalars of its tensor as the step's must give what one call with all of them does. */
START_TEST(segments_have_the_scalars_of_their_tensor)
{
    shard_t before = shard_of_any_bits((zero_dtype_t)_i, 200003, 41), want = shard_clone(&before);
    const zero_adam_scalars_t unused = usual_scalars();
    zero_adam_segment_t segments[] = {
        {.n_elems = 99001, .param = 3, .state = 1, .grad = 5, .decay = 0.7f, .tensor = 2},
        {.n_elems = 17, .param = 99080, .state = 99100, .grad = 99090, .decay = 0.7f, .tensor = 0},
        {.n_elems = 100001, .param = 99190, .state = 99200, .grad = 99180, .decay = 0.7f, .tensor = 2},
        {.n_elems = 70, .param = 199400, .state = 199500, .grad = 199600, .decay = 0.7f, .tensor = 3},
    };
    zero_tensor_scalars_t by_tensor[4];
    for (int t = 0; t < 4; ++t) {
        zero_adam_scalars_decide(&by_tensor[t].scalars, 0.01f * (float)t, 0.2f * (float)t, 0.8f, 1e-4f, 2.0f, 1.0f,
                                 1.0f, 7);
        by_tensor[t].decay = 0.1f * (float)t;
    }
    for (int i = 0; i < 4; ++i) {
        zero_adam_segment_t alone = segments[i];
        alone.decay = by_tensor[alone.tensor].decay;
        update(zero_shard_kernels_cpu_named("scalar"), &want, &alone, 1, &by_tensor[alone.tensor].scalars);
    }
    for (size_t b = 0; b < SHARD_N_BUILDS; ++b) {
        const zero_shard_kernels_t *kernels = zero_shard_kernels_cpu_named(shard_build_names[b]);
        for (size_t t = 0; kernels != NULL && t < SHARD_N_THREAD_COUNTS; ++t) {
            shard_t got = shard_clone(&before);
            omp_set_num_threads(shard_thread_counts[t]);
            update_by_tensor(kernels, &got, segments, 4, &unused, by_tensor);
            shard_assert_same(&got, &want, kernels->name);
            shard_free(&got);
        }
    }
    shard_free(&want);
    shard_free(&before);
}
END_TEST

static zero_status_t update_by(const zero_shard_kernels_t *kernels, size_t optimizer, const zero_adam_t *args)
{
    switch (optimizer) {
    case 0:
        return kernels->adam(args, NULL);
    case 1:
        return kernels->adam8(args, NULL);
    case 2:
        return kernels->sgd(args, NULL);
    case 3:
        return kernels->nesterov(args, NULL);
    default:
        return kernels->lion(args, NULL);
    }
}

/* Gradients in bf16 give the bits of the same numbers in fp32, from any element on: all optimizers. */
START_TEST(gradients_may_be_in_bf16)
{
    enum { N = 70001 };
    static const uint64_t first[] = {0, 5};
    shard_t before = shard_of_any_bits((zero_dtype_t)_i, N, 43);
    const zero_adam_scalars_t scalars = usual_scalars();
    const uint16_t *halves = (const uint16_t *)(const void *)before.grad;
    float *wide = shard_alloc(N * sizeof *wide);
    for (size_t i = 0; i < N; ++i)
        wide[i] = zero_float_of_bf16(halves[i]);
    for (size_t b = 0; b < SHARD_N_BUILDS; ++b) {
        const zero_shard_kernels_t *kernels = zero_shard_kernels_cpu_named(shard_build_names[b]);
        for (size_t k = 0; kernels != NULL && k < 10; ++k) {
            const zero_adam_segment_t segment = {.n_elems = N - 64, .grad = first[k % 2], .decay = 0.1f};
            shard_t got = shard_clone(&before), want = shard_clone(&before);
            zero_adam_t args = {.param_dtype = before.dtype,
                                .param = got.param,
                                .master_lo = before.dtype == ZERO_FP32 ? NULL : got.low,
                                .m = got.m,
                                .v = got.v,
                                .grad = halves,
                                .grad_dtype = ZERO_BF16,
                                .segments = &segment,
                                .n_segments = 1,
                                .scalars = &scalars};
            ck_assert_int_eq(update_by(kernels, k / 2, &args), ZERO_OK);
            args.param = want.param;
            args.master_lo = before.dtype == ZERO_FP32 ? NULL : want.low;
            args.m = want.m;
            args.v = want.v;
            args.grad = wide;
            args.grad_dtype = ZERO_FP32;
            ck_assert_int_eq(update_by(kernels, k / 2, &args), ZERO_OK);
            shard_assert_same(&got, &want, kernels->name);
            shard_free(&got);
            shard_free(&want);
        }
    }
    free(wide);
    shard_free(&before);
}
END_TEST

START_TEST(a_skipped_step_writes_nothing)
{
    const zero_dtype_t dtype = (zero_dtype_t)_i;
    zero_adam_scalars_t scalars;
    zero_adam_scalars_decide(&scalars, 1e-3f, 0.9f, 0.95f, 1e-8f, NAN, 1.0f, 1.0f, 1);
    shard_t before = shard_of_any_bits(dtype, 100001, 51);
    shard_t after = shard_clone(&before);
    const zero_adam_segment_t segment = {.n_elems = before.n_elems, .decay = 0.1f};
    update(zero_shard_kernels_cpu(), &after, &segment, 1, &scalars);
    shard_assert_same(&after, &before, "skipped");
    shard_free(&after);
    shard_free(&before);
}
END_TEST

START_TEST(parameters_are_the_rounded_master_weights)
{
    uint64_t seed = 61;
    zero_adam_scalars_t scalars = usual_scalars();
    const zero_shard_kernels_t *kernels = zero_shard_kernels_cpu();
    const zero_adam_segment_t segment = {.n_elems = 100000, .decay = 0.1f};
    for (zero_dtype_t dtype = ZERO_BF16; dtype <= ZERO_FP16; ++dtype) {
        shard_t s = shard_of_any_bits(dtype, segment.n_elems, 62);
        for (size_t i = 0; i < s.n_elems; ++i) {
            s.m[i] = shard_ordinary_float(&seed, -20, 0);
            s.v[i] = fabsf(shard_ordinary_float(&seed, -20, 0));
            s.grad[i] = shard_ordinary_float(&seed, -20, 0);
        }
        update(kernels, &s, &segment, 1, &scalars);
        for (size_t i = 0; i < s.n_elems; ++i) {
            float w = get_master(&s, i);
            float param;
            kernels->cast(&param, ZERO_FP32, (const uint16_t *)s.param + i, dtype, 1, NULL);
            if (!isfinite(w) || isinf(param))
                continue;
            /* The unit in the last place of param's binade. Rounding errs by at most half of it. */
            double unit = ldexp(1.0, (int)fmax(ilogb((double)w), dtype == ZERO_BF16 ? -126 : -14) -
                                         (dtype == ZERO_BF16 ? 7 : 10));
            if (!(fabs((double)w - (double)param) <= unit / 2))
                ck_abort_msg("%a is not %a rounded", (double)param, (double)w);
        }
        shard_free(&s);
    }
}
END_TEST

/* ---- The numbers ---- */

/* Computes one step of AdamW as in the paper in fp64, and how far fp32 may be from it. With u = 2^-24, each operation
 * being within u of exact, relatively: g 1u. m is a sum that may cancel, so its error is measured against
 * M = |beta1 m| + |(1-beta1) g|: 2u in the second part and 1u for the sum, 3u. v has no cancellation: 1 - beta2 is
 * exact, (1-beta2) g g has 4u, the sum 1u more: 5u. sqrt halves that and adds 1u, 3.5u; the bias factor was rounded,
 * 1u; fma 1u: d has 5.5u. The quotient: 3u + 1u (factor) + 1u (product) + 5.5u + 1u (division) = 11.5u of Q = M
 * inv_bias1 / d. Then decay and the update round w twice and lr * decay once. 1.01 covers products of errors. */
typedef struct reference {
    double w, m, v;
    double w_bound, m_bound, v_bound;
} reference_t;

static reference_t adamw_fp64(double lr, double beta1, double beta2, double eps, double decay, uint64_t t, double grad,
                              double w, double m, double v)
{
    const double u = 0x1p-24 * 1.01;
    reference_t r;
    r.m = beta1 * m + (1 - beta1) * grad;
    r.v = beta2 * v + (1 - beta2) * grad * grad;
    double bias1 = 1 - pow(beta1, (double)t), bias2 = 1 - pow(beta2, (double)t);
    double d = sqrt(r.v / bias2) + eps;
    double decayed = w - lr * decay * w;
    r.w = decayed - lr * (r.m / bias1) / d;
    double magnitude = fabs(beta1 * m) + fabs((1 - beta1) * grad);
    r.m_bound = 3 * u * magnitude;
    r.v_bound = 5 * u * r.v;
    r.w_bound = u * (lr * decay * fabs(w) + fabs(decayed) + fabs(r.w) + 11.5 * lr * magnitude / bias1 / d);
    return r;
}

START_TEST(numbers_are_those_of_an_fp64_adamw)
{
    const zero_dtype_t dtype = (zero_dtype_t)_i;
    const float lr = 6e-4f, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, decay = 0.1f;
    const size_t n = 50000;
    const float loss_scale = 1024.0f;
    uint64_t seed = 71;
    shard_t s = shard_of_any_bits(dtype, n, 72);
    float *master = shard_alloc(n * sizeof *master);
    for (size_t i = 0; i < n; ++i)
        master[i] = shard_ordinary_float(&seed, -12, 2);
    const zero_shard_kernels_t *kernels = zero_shard_kernels_cpu();
    kernels->split_master(s.param, s.low, dtype, master, n, NULL);
    memset(s.m, 0, n * sizeof(float));
    memset(s.v, 0, n * sizeof(float));
    const zero_adam_segment_t segment = {.n_elems = n, .decay = decay};
    double largest_w = 0.0;
    for (uint64_t t = 1; t <= 12; ++t) {
        for (size_t i = 0; i < n; ++i)
            s.grad[i] = shard_ordinary_float(&seed, -14, 12);
        shard_t before = shard_clone(&s);
        zero_adam_scalars_t scalars;
        zero_adam_scalars_decide(&scalars, lr, beta1, beta2, eps, 0.5f, 0.0f, loss_scale, t);
        update(kernels, &s, &segment, 1, &scalars);
        for (size_t i = 0; i < n; ++i) {
            reference_t r = adamw_fp64(lr, beta1, beta2, eps, decay, t, (double)s.grad[i] / loss_scale,
                                       get_master(&before, i), before.m[i], before.v[i]);
            double w_error = fabs((double)get_master(&s, i) - r.w) / r.w_bound;
            largest_w = fmax(largest_w, w_error);
            double m_error = fabs((double)s.m[i] - r.m) / r.m_bound, v_error = fabs((double)s.v[i] - r.v) / r.v_bound;
            if (!(w_error <= 1.0 && m_error <= 1.0 && v_error <= 1.0))
                ck_abort_msg("step %d, element %zu: w, m, v are %.3g, %.3g, %.3g bounds off", (int)t, i, w_error,
                             m_error, v_error);
        }
        shard_free(&before);
    }
    /* The arithmetic comes close to the bound; a distant bound would test nothing. */
    ck_assert_double_gt(largest_w, 0.25);
    free(master);
    shard_free(&s);
}
END_TEST

START_TEST(scalars_are_the_formulas)
{
    static const uint64_t steps[] = {1, 2, 3, 10, 1000, 65537, 10000000};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; ++i) {
        zero_adam_scalars_t s;
        zero_adam_scalars_decide(&s, 1e-3f, 0.9f, 0.999f, 1e-8f, 3.0f, 1.5f, 2.0f, steps[i]);
        double bias1 = 1 - pow((double)0.9f, (double)steps[i]), bias2 = 1 - pow((double)0.999f, (double)steps[i]);
        ck_assert_double_le(support_relative_error(s.inv_bias1, 1 / bias1), 0x1p-24 * 1.0001);
        ck_assert_double_le(support_relative_error(s.inv_sqrt_bias2, 1 / sqrt(bias2)), 0x1p-24 * 1.0001);
        ck_assert_float_eq(s.one_minus_beta1, 1.0f - 0.9f);
        ck_assert_float_eq(s.one_minus_beta2, 1.0f - 0.999f);
        ck_assert_double_le(support_relative_error(s.grad_scale, 1.5 / (3.0 + 1e-6) / 2.0), 3 * 0x1p-24);
        ck_assert_uint_eq(s.skip, 0);
    }
}
END_TEST

START_TEST(clipping_scales_only_norms_above_the_limit)
{
    static const struct {
        float norm, clip, loss_scale, scale;
        uint32_t skip;
    } cases[] = {
        {0.5f, 1.0f, 1.0f, 1.0f, 0},      {0.0f, 1.0f, 8.0f, 0.125f, 0},  {1e30f, 0.0f, 1.0f, 1.0f, 0},
        {4.0f, 1.0f, 1.0f, 0.25f, 0},     {3e38f, 3.0f, 1.0f, 1e-38f, 0}, {INFINITY, 1.0f, 1.0f, 0.0f, 1},
        {-INFINITY, 0.0f, 1.0f, 1.0f, 1}, {NAN, 1.0f, 4.0f, 0.25f, 1},    {NAN, 0.0f, 1.0f, 1.0f, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        zero_adam_scalars_t s;
        zero_adam_scalars_decide(&s, 1e-3f, 0.9f, 0.95f, 1e-8f, cases[i].norm, cases[i].clip, cases[i].loss_scale, 1);
        ck_assert_uint_eq(s.skip, cases[i].skip);
        ck_assert_float_le(fabsf(s.grad_scale - cases[i].scale), 1e-6f * cases[i].scale);
    }
}
END_TEST

START_TEST(instruction_sets_are_found_by_name)
{
    ck_assert_str_eq(zero_shard_kernels_cpu_named("scalar")->name, "scalar");
    ck_assert_ptr_null(zero_shard_kernels_cpu_named("sse9"));
    ck_assert_ptr_eq(zero_shard_kernels_cpu(), zero_shard_kernels_cpu_named(zero_shard_kernels_cpu()->name));
}
END_TEST

START_TEST(the_environment_selects_a_lower_instruction_set)
{
    /* Check runs each test in its own process, so no instruction set has been chosen yet. */
    setenv("ZERO_CPU_ISA", "scalar", 1);
    ck_assert_str_eq(zero_shard_kernels_cpu()->name, "scalar");
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("adam");
    TCase *bits = tcase_create("bits");
    tcase_set_timeout(bits, 120);
    tcase_add_loop_test(bits, every_element_is_the_written_expression, ZERO_FP32, ZERO_FP16 + 1);
    tcase_add_loop_test(bits, instruction_sets_and_threads_give_the_same_bits, ZERO_FP32, ZERO_FP16 + 1);
    tcase_add_loop_test(bits, slicing_changes_no_bits, ZERO_FP32, ZERO_FP16 + 1);
    tcase_add_loop_test(bits, elements_outside_the_segments_are_untouched, ZERO_FP32, ZERO_FP16 + 1);
    tcase_add_loop_test(bits, segments_have_the_scalars_of_their_tensor, ZERO_FP32, ZERO_FP16 + 1);
    tcase_add_loop_test(bits, gradients_may_be_in_bf16, ZERO_FP32, ZERO_FP16 + 1);
    tcase_add_loop_test(bits, a_skipped_step_writes_nothing, ZERO_FP32, ZERO_FP16 + 1);
    tcase_add_test(bits, parameters_are_the_rounded_master_weights);
    tcase_add_test(bits, instruction_sets_are_found_by_name);
    tcase_add_test(bits, the_environment_selects_a_lower_instruction_set);
    suite_add_tcase(s, bits);
    TCase *numbers = tcase_create("numbers");
    tcase_set_timeout(numbers, 120);
    tcase_add_loop_test(numbers, numbers_are_those_of_an_fp64_adamw, ZERO_FP32, ZERO_FP16 + 1);
    tcase_add_test(numbers, scalars_are_the_formulas);
    tcase_add_test(numbers, clipping_scales_only_norms_above_the_limit);
    suite_add_tcase(s, numbers);
    return s;
}

int main(void)
{
    return support_main(suite());
}
