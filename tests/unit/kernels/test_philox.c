/* test_philox.c - tests initial values: Philox4x32-10 gives the published answers; log, sin and cos agree with fp64;
 * the numbers are normal; and an element depends only on seed, key and index. */
#include <math.h>
#include <omp.h>

#include "kernels/shard_math.h"
#include "tests/support/shard_support.h"

static const double pi = 3.14159265358979323846;

/* ---- Parts ---- */

START_TEST(philox_gives_the_published_answers)
{
    /* kat_vectors of Random123, philox4x32 with 10 rounds */
    static const uint32_t vectors[][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d, 0x41c83b0e, 0xa20bc7c6,
         0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09, 0x94fdcceb, 0x5001e420,
         0x24126ea1},
    };
    for (size_t i = 0; i < 3; ++i) {
        const uint32_t *v = vectors[i];
        uint32_t c0 = v[0], c1 = v[1], c2 = v[2], c3 = v[3];
        zero_philox(&c0, &c1, &c2, &c3, v[4], v[5]);
        ck_assert_uint_eq(c0, v[6]);
        ck_assert_uint_eq(c1, v[7]);
        ck_assert_uint_eq(c2, v[8]);
        ck_assert_uint_eq(c3, v[9]);
    }
}
END_TEST

/* |got - want| in units of want's last place as a float */
static double ulps(float got, double want)
{
    return fabs((double)got - want) / ldexp(1.0, (want == 0.0 ? -126 : ilogb(want)) - 23);
}

START_TEST(log_is_within_an_ulp)
{
    uint64_t seed = 1;
    double worst = 0.0;
    for (uint32_t bits = 0x2f000000u; bits <= 0x3f800000u; bits += 37) /* 2^-33 to 1: the arguments of Box-Muller */
        worst = fmax(worst, ulps(zero_math_log(shard_float(bits)), log((double)shard_float(bits))));
    for (int i = 0; i < 1000000; ++i) {
        const float x = fabsf(shard_ordinary_float(&seed, -126, 127));
        worst = fmax(worst, ulps(zero_math_log(x), log((double)x)));
    }
    ck_assert_uint_eq(shard_bits(zero_math_log(1.0f)), 0);
    ck_assert_double_le(worst, 1.0);
}
END_TEST

/* In units of u = 2^-24. The angle x, at most pi/4, has three roundings (the integer, the constant, the product), 3
 * pi/4, which move sin and cos of it by at most sqrt(1/2) of that: 1.67. Its square's rounding moves cos by x^2 / 2:
 * 0.31; the last two steps of the polynomial round by 0.15 and 0.5. */
#define TRIG_BOUND (2.65 * 0x1p-24)

START_TEST(sin_and_cos_are_close_to_fp64)
{
    double worst = 0.0;
    for (uint64_t turn = 0; turn < (uint64_t)1 << 32; turn += 1021) {
        float sine, cosine;
        zero_math_sin_cos((uint32_t)turn, &sine, &cosine);
        const double angle = (double)turn * (2.0 * pi / 4294967296.0);
        worst = fmax(worst, fabs((double)sine - sin(angle)));
        worst = fmax(worst, fabs((double)cosine - cos(angle)));
    }
    ck_assert_double_le(worst, TRIG_BOUND);
}
END_TEST

START_TEST(sin_and_cos_are_exact_at_quarter_turns)
{
    static const float sines[] = {0.0f, 1.0f, 0.0f, -1.0f};
    for (uint32_t quarter = 0; quarter < 4; ++quarter) {
        float sine, cosine;
        zero_math_sin_cos(quarter << 30, &sine, &cosine);
        ck_assert_float_eq(sine, sines[quarter]);
        ck_assert_float_eq(cosine, sines[(quarter + 1) % 4]);
    }
}
END_TEST

/* ---- one element of fill_normal ---- */

static double normal_fp64(uint64_t seed, uint64_t key, uint64_t e)
{
    uint64_t block = e / 4;
    uint32_t c[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)key, (uint32_t)(key >> 32)};
    zero_philox(&c[0], &c[1], &c[2], &c[3], (uint32_t)seed, (uint32_t)(seed >> 32));
    const int k = (int)(e % 4) & ~1;
    /* fp32 holds u to within 2^-25, which counts where u is near 1: use what it holds. */
    const double u = (double)(float)(((double)c[k] + 0.5) / 4294967296.0);
    const double angle = 2.0 * pi * (double)c[k + 1] / 4294967296.0;
    return sqrt(-2.0 * log(u)) * (e % 2 == 0 ? cos(angle) : sin(angle));
}

START_TEST(elements_are_box_muller_of_their_own_words)
{
    static const uint64_t firsts[] = {0, 1, 5, 511, 4294967296u * 4 - 7, 0x123456789abcdefu};
    const float std = 0.02f;
    float x[2000];
    for (size_t f = 0; f < sizeof firsts / sizeof firsts[0]; ++f) {
        const uint64_t seed = 0x1122334455667788u + f, key = 0xfedcba9876543210u - f;
        zero_shard_kernels_cpu()->fill_normal(x, 2000, seed, key, firsts[f], std, NULL);
        for (size_t i = 0; i < 2000; ++i) {
            const double want = (double)std * normal_fp64(seed, key, firsts[f] + i);
            /* The radius, at most 6.7, has half the log's ulp, which is up to 2u, and its own rounding: 2u; the product
             * and std add one each. */
            if (!(fabs((double)x[i] - want) <= (double)std * 6.7 * (TRIG_BOUND + 4 * 0x1p-24)))
                ck_abort_msg("element %zu: %.9g, not %.9g", i, (double)x[i], want);
        }
    }
}
END_TEST

START_TEST(seed_key_and_index_all_matter)
{
    float a[64], b[64];
    const zero_shard_kernels_t *kernels = zero_shard_kernels_cpu();
    kernels->fill_normal(a, 64, 1, 2, 0, 1.0f, NULL);
    static const uint64_t others[][3] = {{2, 2, 0},  {1 + (1ull << 32), 2, 0}, {1, 3, 0}, {1, 2 + (1ull << 32), 0},
                                         {1, 2, 64}, {1, 2, 1ull << 34}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; ++i) {
        kernels->fill_normal(b, 64, others[i][0], others[i][1], others[i][2], 1.0f, NULL);
        int same = 0;
        for (int e = 0; e < 64; ++e)
            same += a[e] == b[e];
        ck_assert_int_eq(same, 0);
    }
}
END_TEST

START_TEST(instruction_sets_threads_and_cuts_give_the_same_bits)
{
    enum { N = 1000003, FIRST = 12345 };
    float *want = shard_alloc(N * sizeof(float)), *got = shard_alloc((N + 1) * sizeof(float));
    omp_set_num_threads(1);
    zero_shard_kernels_cpu_named("scalar")->fill_normal(want, N, 42, 7, FIRST, 0.02f, NULL);
    for (size_t b = 0; b < SHARD_N_BUILDS; ++b) {
        const zero_shard_kernels_t *kernels = zero_shard_kernels_cpu_named(shard_build_names[b]);
        for (size_t t = 0; kernels != NULL && t < SHARD_N_THREAD_COUNTS; ++t) {
            omp_set_num_threads(shard_thread_counts[t]);
            memset(got, 0, (N + 1) * sizeof(float));
            kernels->fill_normal(got + 1, N, 42, 7, FIRST, 0.02f, NULL);
            shard_assert_same_bits(got + 1, want, N * sizeof(float), "whole", kernels->name);
            for (size_t at = 0, n; at < N; at += n) {
                n = at % 7 == 0 ? 1 : 1 + at % 40009;
                n = n < N - at ? n : N - at;
                kernels->fill_normal(got + at, n, 42, 7, FIRST + at, 0.02f, NULL);
            }
            shard_assert_same_bits(got, want, N * sizeof(float), "cut", kernels->name);
        }
    }
    free(got);
    free(want);
}
END_TEST

/* ---- The distribution ---- */

/* The seed is fixed, so these cannot fail by chance. The limits are 4 to 5 standard deviations of each statistic. */
enum { N_NORMALS = 1 << 21 };

static float *standard_normals(void)
{
    float *x = shard_alloc(N_NORMALS * sizeof(float));
    zero_shard_kernels_cpu()->fill_normal(x, N_NORMALS, 2024, 3, 0, 1.0f, NULL);
    return x;
}

START_TEST(moments_are_those_of_a_normal)
{
    float *x = standard_normals();
    double sums[5] = {0.0};
    for (size_t i = 0; i < N_NORMALS; ++i) {
        double power = 1.0;
        for (int k = 0; k < 5; ++k, power *= (double)x[i])
            sums[k] += power;
    }
    const double n = N_NORMALS;
    /* Variances of the k-th power's mean: 1/n, 2/n, 15/n, 96/n. */
    ck_assert_double_le(fabs(sums[1] / n), 4.5 * sqrt(1 / n));
    ck_assert_double_le(fabs(sums[2] / n - 1), 4.5 * sqrt(2 / n));
    ck_assert_double_le(fabs(sums[3] / n), 4.5 * sqrt(15 / n));
    ck_assert_double_le(fabs(sums[4] / n - 3), 4.5 * sqrt(96 / n));
    free(x);
}
END_TEST

static int compare_floats(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

START_TEST(the_distribution_is_normal)
{
    float *x = standard_normals();
    qsort(x, N_NORMALS, sizeof(float), compare_floats);
    double distance = 0.0; /* Kolmogorov-Smirnov */
    for (size_t i = 0; i < N_NORMALS; ++i) {
        const double cdf = 0.5 * erfc(-(double)x[i] / sqrt(2.0));
        distance = fmax(distance, fmax(cdf - (double)i / N_NORMALS, (double)(i + 1) / N_NORMALS - cdf));
    }
    /* P(sqrt(n) D > 1.95) = 0.001 */
    ck_assert_double_le(distance * sqrt((double)N_NORMALS), 1.95);
    /* The tails beyond 4 sigma have 6.33e-5 of all, 133 of 2^21, within 4.5 * sqrt(133). */
    int tail = 0;
    for (size_t i = 0; i < N_NORMALS; ++i)
        tail += fabsf(x[i]) > 4.0f;
    ck_assert_int_ge(tail, 133 - 52);
    ck_assert_int_le(tail, 133 + 52);
    free(x);
}
END_TEST

START_TEST(neighbours_are_uncorrelated)
{
    float *x = standard_normals();
    float *other_key = shard_alloc(N_NORMALS * sizeof(float));
    zero_shard_kernels_cpu()->fill_normal(other_key, N_NORMALS, 2024, 4, 0, 1.0f, NULL);
    const double limit = 4.5 / sqrt((double)N_NORMALS);
    for (size_t lag = 1; lag <= 8; ++lag) {
        double product = 0.0, squares = 0.0;
        for (size_t i = 0; i + lag < N_NORMALS; ++i) {
            product += (double)x[i] * (double)x[i + lag];
            /* sin and cos of one pair share their radius: uncorrelated squares show that they are independent. */
            squares += ((double)x[i] * (double)x[i] - 1) * ((double)x[i + lag] * (double)x[i + lag] - 1) / 2;
        }
        ck_assert_double_le(fabs(product / N_NORMALS), limit);
        ck_assert_double_le(fabs(squares / N_NORMALS), limit);
    }
    double product = 0.0;
    for (size_t i = 0; i < N_NORMALS; ++i)
        product += (double)x[i] * (double)other_key[i];
    ck_assert_double_le(fabs(product / N_NORMALS), limit);
    free(other_key);
    free(x);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("philox");
    TCase *parts = tcase_create("parts");
    tcase_set_timeout(parts, 120);
    tcase_add_test(parts, philox_gives_the_published_answers);
    tcase_add_test(parts, log_is_within_an_ulp);
    tcase_add_test(parts, sin_and_cos_are_close_to_fp64);
    tcase_add_test(parts, sin_and_cos_are_exact_at_quarter_turns);
    suite_add_tcase(s, parts);
    TCase *elements = tcase_create("elements");
    tcase_set_timeout(elements, 120);
    tcase_add_test(elements, elements_are_box_muller_of_their_own_words);
    tcase_add_test(elements, seed_key_and_index_all_matter);
    tcase_add_test(elements, instruction_sets_threads_and_cuts_give_the_same_bits);
    suite_add_tcase(s, elements);
    TCase *distribution = tcase_create("distribution");
    tcase_set_timeout(distribution, 120);
    tcase_add_test(distribution, moments_are_those_of_a_normal);
    tcase_add_test(distribution, the_distribution_is_normal);
    tcase_add_test(distribution, neighbours_are_uncorrelated);
    suite_add_tcase(s, distribution);
    return s;
}

int main(void)
{
    return support_main(suite());
}
