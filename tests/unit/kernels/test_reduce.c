/* test_reduce.c - sums whose order is promised: gradient slices in rank order, the norm's tree, the partials' lanes;
 * the same bits from every instruction set, thread count and slicing.
 */
#include <math.h>
#include <omp.h>

#include "tests/support/shard_support.h"

enum { MAX_SLICES = 9 };

/* ---- References, written from shard.h's words ---- */

static float decode(const void *slice, zero_dtype_t dtype, size_t i)
{
    if (dtype == ZERO_FP32)
        return ((const float *)slice)[i];
    const uint16_t half = ((const uint16_t *)slice)[i];
    if (dtype == ZERO_BF16)
        return shard_float((uint32_t)half << 16);
    const int exponent = (half >> 10) & 31, mantissa = half & 1023;
    double magnitude = exponent == 31  ? (mantissa != 0 ? (double)NAN : (double)INFINITY)
                       : exponent == 0 ? ldexp(mantissa, -24)
                                       : ldexp(1024 + mantissa, exponent - 25);
    return (float)(half & 0x8000 ? -magnitude : magnitude);
}

static float one_nan(float x)
{
    return isnan(x) ? shard_float(0x7fc00000u) : x;
}

static void reference_sum(float *out, const void *const *slices, int n_slices, zero_dtype_t dtype, size_t n_elems,
                          bool accumulate)
{
    for (size_t i = 0; i < n_elems; ++i) {
        volatile float t = decode(slices[0], dtype, i);
        for (int r = 1; r < n_slices; ++r)
            t += decode(slices[r], dtype, i);
        out[i] = one_nan(accumulate ? out[i] + t : t);
    }
}

/* The tree as a recursion on the definition: what lane l holds after folding down to `width` lanes. */
static float folded_lane(const float *x, size_t n, size_t lane, size_t width)
{
    if (width == ZERO_NORM_LANES) {
        volatile float acc = 0.0f;
        for (size_t i = lane; i < n; i += ZERO_NORM_LANES)
            acc = fmaf(x[i], x[i], acc);
        return acc;
    }
    return folded_lane(x, n, lane, width * 2) + folded_lane(x, n, lane + width, width * 2);
}

static void assert_partials(const double *got, const float *x, size_t n_elems, const char *where)
{
    for (size_t chunk = 0; chunk * ZERO_NORM_CHUNK < n_elems; ++chunk) {
        const size_t begin = chunk * ZERO_NORM_CHUNK;
        const size_t n = n_elems - begin < ZERO_NORM_CHUNK ? n_elems - begin : ZERO_NORM_CHUNK;
        const double want = one_nan(folded_lane(x + begin, n, 0, 1));
        shard_assert_same_bits(&got[chunk], &want, sizeof want, "partial", where);
    }
}

/* ---- Slices ---- */

static void fill_slices(void **slices, size_t n_elems, bool any, uint64_t seed)
{
    for (int r = 0; r < MAX_SLICES; ++r) {
        float *x = shard_any_floats(&seed, n_elems);
        for (size_t i = 0; !any && i < n_elems; ++i)
            x[i] = shard_ordinary_float(&seed, -20, 8);
        slices[r] = x;
    }
}

/* Half the slices as they are; a 16-bit dtype reads the same bits as other numbers, of all kinds too. */
static void check_sum(zero_dtype_t dtype, size_t n_elems, size_t offset, int n_slices, bool accumulate, bool any)
{
    void *memory[MAX_SLICES];
    const void *slices[MAX_SLICES];
    uint64_t seed = 1000 + n_elems + (uint64_t)n_slices;
    fill_slices(memory, n_elems + offset, any, seed);
    for (int r = 0; r < MAX_SLICES; ++r)
        slices[r] = (const char *)memory[r] + offset * zero_dtype_size(dtype);
    float *start = shard_any_floats(&seed, n_elems);
    float *want = shard_copy(start, n_elems * sizeof(float));
    reference_sum(want, slices, n_slices, dtype, n_elems, accumulate);
    double *partials = shard_alloc((zero_norm_n_partials(n_elems) + 1) * sizeof(double));

    for (size_t b = 0; b < SHARD_N_BUILDS; ++b) {
        const zero_shard_kernels_t *kernels = zero_shard_kernels_cpu_named(shard_build_names[b]);
        for (size_t t = 0; kernels != NULL && t < SHARD_N_THREAD_COUNTS; ++t) {
            omp_set_num_threads(shard_thread_counts[t]);
            float *out = shard_alloc((n_elems + 1) * sizeof(float));
            memcpy(out + 1, start, n_elems * sizeof(float)); /* one element off any alignment */
            const bool with_norm = t % 2 == 0;
            partials[zero_norm_n_partials(n_elems)] = 42.0;
            ck_assert_int_eq(kernels->sum_slices(out + 1, slices, n_slices, dtype, n_elems, accumulate,
                                                 with_norm ? partials : NULL, NULL),
                             ZERO_OK);
            shard_assert_same_bits(out + 1, want, n_elems * sizeof(float), "sum", kernels->name);
            if (with_norm)
                assert_partials(partials, want, n_elems, kernels->name);
            ck_assert_double_eq(partials[zero_norm_n_partials(n_elems)], 42.0);
            free(out);
        }
    }
    free(partials);
    free(want);
    free(start);
    for (int r = 0; r < MAX_SLICES; ++r)
        free(memory[r]);
}

START_TEST(sums_of_any_bits_are_the_written_loop)
{
    static const size_t sizes[] = {0, 1, 15, 1023, 1025, 8191, 8193, 20011};
    const zero_dtype_t dtype = (zero_dtype_t)_i;
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; ++s) {
        for (int n_slices = 1; n_slices <= MAX_SLICES; n_slices += n_slices < 3 ? 1 : 3)
            check_sum(dtype, sizes[s], s % 4, n_slices, n_slices % 2 == 0, s % 2 == 0);
    }
}
END_TEST

START_TEST(large_sums_have_the_same_bits_with_any_threads)
{
    check_sum((zero_dtype_t)_i, 300007, 3, 3, true, true);
    check_sum((zero_dtype_t)_i, 300007, 1, 4, false, false);
}
END_TEST

START_TEST(slices_are_added_in_rank_order)
{
    const zero_shard_kernels_t *kernels = zero_shard_kernels_cpu();
    /* 2^25 swallows a 1 that is added to it: each order has a sum of its own. */
    const float big = 33554432.0f, one = 1.0f, minus = -33554432.0f;
    static const struct {
        int order[4];
        float sum;
    } cases[] = {
        {{0, 2, 1, 1}, 2.0f}, {{0, 1, 2, 1}, 1.0f}, {{0, 1, 1, 2}, 0.0f}, {{1, 1, 0, 2}, 0.0f}, {{1, 0, 2, 1}, 1.0f}};
    const float *const values[] = {&big, &one, &minus};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; ++c) {
        const void *slices[4];
        for (int r = 0; r < 4; ++r)
            slices[r] = values[cases[c].order[r]];
        float out = 0.0f;
        kernels->sum_slices(&out, slices, 4, ZERO_FP32, 1, false, NULL, NULL);
        ck_assert_float_eq(out, cases[c].sum);
    }
    /* The slices are summed first, then added to the old value: (1 + 1) survives where 2^25 + 1 + 1 would not. */
    const void *ones[] = {&one, &one};
    float out = big;
    kernels->sum_slices(&out, ones, 2, ZERO_FP32, 1, true, NULL, NULL);
    ck_assert_float_eq(out, 33554432.0f);
    const void *four_ones[] = {&one, &one, &one, &one};
    out = big;
    kernels->sum_slices(&out, four_ones, 4, ZERO_FP32, 1, true, NULL, NULL);
    ck_assert_float_eq(out, 33554436.0f);
}
END_TEST

START_TEST(the_first_slice_is_taken_as_is)
{
    const float minus_zero = -0.0f;
    const void *slices[] = {&minus_zero};
    float out = 1.0f;
    zero_shard_kernels_cpu()->sum_slices(&out, slices, 1, ZERO_FP32, 1, false, NULL, NULL);
    ck_assert_uint_eq(shard_bits(out), 0x80000000u);
}
END_TEST

START_TEST(out_may_be_one_of_the_slices)
{
    enum { N = 100003, SLICES = 4 };
    for (int own = 0; own < SLICES; ++own) {
        void *memory[MAX_SLICES];
        fill_slices(memory, N, false, 77);
        const void *const *slices = (const void *const *)memory;
        float *want = shard_alloc(N * sizeof(float));
        reference_sum(want, slices, SLICES, ZERO_FP32, N, false);
        zero_shard_kernels_cpu()->sum_slices(memory[own], slices, SLICES, ZERO_FP32, N, false, NULL, NULL);
        shard_assert_same_bits(memory[own], want, N * sizeof(float), "sum", "in place");
        free(want);
        for (int r = 0; r < MAX_SLICES; ++r)
            free(memory[r]);
    }
}
END_TEST

/* ---- Norms ---- */

/* Takes the norm of n floats as the engine does if the network has summed them: as a sum of one slice. */
static void sum_squares(const zero_shard_kernels_t *kernels, float *x, size_t n_elems, double *partials)
{
    const void *slices[] = {x};
    ck_assert_int_eq(kernels->sum_slices(x, slices, 1, ZERO_FP32, n_elems, false, partials, NULL), ZERO_OK);
}

START_TEST(norm_partials_are_the_written_tree)
{
    static const size_t sizes[] = {1, 1023, 1024, 1025, 8192, 8193, 100003, 400001};
    uint64_t seed = 81;
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; ++s) {
        float *x = shard_any_floats(&seed, sizes[s] + 1);
        for (size_t i = 0; s % 2 == 1 && i <= sizes[s]; ++i)
            x[i] = shard_ordinary_float(&seed, -40, 20);
        double *partials = shard_alloc(zero_norm_n_partials(sizes[s]) * sizeof(double));
        for (size_t b = 0; b < SHARD_N_BUILDS; ++b) {
            const zero_shard_kernels_t *kernels = zero_shard_kernels_cpu_named(shard_build_names[b]);
            for (size_t t = 0; kernels != NULL && t < SHARD_N_THREAD_COUNTS; ++t) {
                omp_set_num_threads(shard_thread_counts[t]);
                float *own = shard_copy(x, (sizes[s] + 1) * sizeof(float));
                sum_squares(kernels, own + 1, sizes[s], partials);
                assert_partials(partials, x + 1, sizes[s], kernels->name);
                free(own);
            }
        }
        free(partials);
        free(x);
    }
}
END_TEST

static double sum_of_partials(const zero_shard_kernels_t *kernels, const double *partials, size_t n_partials)
{
    const zero_agreed_t agreed = {.calls = 77, .lr = 0.5f};
    zero_contribution_t mine = {.loss = 3.0, .notice = 9};
    kernels->contribute(partials, n_partials, &agreed, &mine, NULL);
    ck_assert(mine.calls == 77 && mine.lr == 0.5f);
    ck_assert(mine.loss == 3.0 && mine.notice == 9); /* these stay */
    return mine.sum_of_squares;
}

START_TEST(norms_are_close_to_fp64)
{
    enum { N = 1000003 };
    uint64_t seed = 82;
    float *x = shard_alloc(N * sizeof(float));
    double want = 0.0;
    for (size_t i = 0; i < N; ++i) {
        x[i] = (float)support_normal(&seed);
        want += (double)x[i] * (double)x[i];
    }
    double *partials = shard_alloc(zero_norm_n_partials(N) * sizeof(double));
    const zero_shard_kernels_t *kernels = zero_shard_kernels_cpu();
    sum_squares(kernels, x, N, partials);
    const double got = sum_of_partials(kernels, partials, zero_norm_n_partials(N));
    /* An element passes through 8 fma and 10 additions of positive numbers, each within 2^-24; double's share is nil.
     */
    ck_assert_double_le(support_relative_error(got, want), 18 * 0x1p-24);
    free(partials);
    free(x);
}
END_TEST

START_TEST(one_bad_element_makes_the_norm_bad)
{
    enum { N = 50000 };
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    static const size_t places[] = {0, 8191, 8192, 30000, N - 1};
    const zero_shard_kernels_t *kernels = zero_shard_kernels_cpu();
    double partials[N / ZERO_NORM_CHUNK + 1];
    float *x = shard_alloc(N * sizeof(float));
    for (size_t c = 0; c < 15; ++c) {
        for (size_t i = 0; i < N; ++i)
            x[i] = 1e-3f;
        x[places[c % 5]] = bad[c / 5];
        sum_squares(kernels, x, N, partials);
        ck_assert(!isfinite(sum_of_partials(kernels, partials, zero_norm_n_partials(N))));
    }
    free(x);
}
END_TEST

static double folded_partial(const double *x, size_t n, size_t lane, size_t width)
{
    if (width == 256) {
        double acc = 0.0;
        for (size_t i = lane; i < n; i += 256)
            acc += x[i];
        return acc;
    }
    return folded_partial(x, n, lane, width * 2) + folded_partial(x, n, lane + width, width * 2);
}

START_TEST(partials_are_added_in_lanes)
{
    static const size_t sizes[] = {0, 1, 255, 256, 257, 5003};
    uint64_t seed = 91;
    double x[5003];
    for (size_t i = 0; i < 5003; ++i)
        x[i] = support_uniform(&seed) * ldexp(1.0, (int)(support_random(&seed) % 40));
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; ++s) {
        const double want = folded_partial(x, sizes[s], 0, 1);
        for (size_t b = 0; b < SHARD_N_BUILDS; ++b) {
            const zero_shard_kernels_t *kernels = zero_shard_kernels_cpu_named(shard_build_names[b]);
            if (kernels == NULL)
                continue;
            const double got = sum_of_partials(kernels, x, sizes[s]);
            shard_assert_same_bits(&got, &want, sizeof got, "sum of partials", kernels->name);
        }
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("reduce");
    TCase *slices = tcase_create("slices");
    tcase_set_timeout(slices, 120);
    tcase_add_loop_test(slices, sums_of_any_bits_are_the_written_loop, ZERO_FP32, ZERO_FP16 + 1);
    tcase_add_loop_test(slices, large_sums_have_the_same_bits_with_any_threads, ZERO_FP32, ZERO_FP16 + 1);
    tcase_add_test(slices, slices_are_added_in_rank_order);
    tcase_add_test(slices, the_first_slice_is_taken_as_is);
    tcase_add_test(slices, out_may_be_one_of_the_slices);
    suite_add_tcase(s, slices);
    TCase *norms = tcase_create("norms");
    tcase_set_timeout(norms, 120);
    tcase_add_test(norms, norm_partials_are_the_written_tree);
    tcase_add_test(norms, norms_are_close_to_fp64);
    tcase_add_test(norms, one_bad_element_makes_the_norm_bad);
    tcase_add_test(norms, partials_are_added_in_lanes);
    suite_add_tcase(s, norms);
    return s;
}

int main(void)
{
    return support_main(suite());
}
