/* test_cast.c - tests casts and split master weights: all 65536 16-bit numbers to fp32, rounding to nearest even from
 * fp32 against fp64, exact splitting of every kind of bit pattern; the same bits from every instruction set and thread
 * count.
 */
#include <math.h>
#include <omp.h>

#include "tests/support/shard_support.h"

/* ---- The two small formats by their definition, in fp64 ---- */

typedef struct format {
    const char *name;
    zero_dtype_t dtype;
    int mantissa_bits, bias, top_exponent; /* top_exponent: the field of infinities and NaNs */
} format_t;

static const format_t formats[] = {{"bf16", ZERO_BF16, 7, 127, 255}, {"fp16", ZERO_FP16, 10, 15, 31}};

static double decode(const format_t *f, uint16_t half)
{
    const int exponent = (half & 0x7fff) >> f->mantissa_bits, mantissa = half & ((1 << f->mantissa_bits) - 1);
    double magnitude;
    if (exponent == f->top_exponent)
        magnitude = mantissa != 0 ? (double)NAN : (double)INFINITY;
    else if (exponent == 0)
        magnitude = ldexp(mantissa, 1 - f->bias - f->mantissa_bits);
    else
        magnitude = ldexp((1 << f->mantissa_bits) + mantissa, exponent - f->bias - f->mantissa_bits);
    return half & 0x8000 ? -magnitude : magnitude;
}

/* Rounds x, which is not NaN: scales it so that the format's last place is 1, rounds to even, and encodes it. */
static uint16_t encode(const format_t *f, float x)
{
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    const double magnitude = fabs((double)x);
    const uint16_t infinity = (uint16_t)(f->top_exponent << f->mantissa_bits);
    if (isinf(magnitude))
        return sign | infinity;
    int exponent = magnitude == 0.0 ? 1 - f->bias : ilogb(magnitude);
    if (exponent < 1 - f->bias)
        exponent = 1 - f->bias;
    double last_places = nearbyint(ldexp(magnitude, f->mantissa_bits - exponent));
    /* The bits of a number count last places from the smallest denormal up. */
    double bits = last_places + ldexp(exponent - (1 - f->bias), f->mantissa_bits);
    return sign | (bits >= infinity ? infinity : (uint16_t)bits);
}

/* ---- Inputs ---- */

/* Every upper half with lower halves around all ties of rounding; then random bits. */
static float *floats_of_all_kinds(size_t *n_elems)
{
    static const uint16_t lower[] = {0x0000, 0x0001, 0x0fff, 0x1000, 0x1001, 0x1fff, 0x2000, 0x2fff, 0x3000, 0x3001,
                                     0x5000, 0x7000, 0x7fff, 0x8000, 0x8001, 0x9000, 0xb000, 0xefff, 0xf000, 0xffff};
    const size_t n_lower = sizeof lower / sizeof lower[0], n_random = 2000003;
    uint64_t seed = 5;
    *n_elems = 65536 * n_lower + n_random;
    float *x = shard_alloc(*n_elems * sizeof *x);
    size_t i = 0;
    for (uint32_t upper = 0; upper < 65536; ++upper) {
        for (size_t l = 0; l < n_lower; ++l)
            x[i++] = shard_float(upper << 16 | lower[l]);
    }
    while (i < *n_elems)
        x[i++] = shard_float((uint32_t)support_random(&seed));
    return x;
}

static const zero_shard_kernels_t *build(int i)
{
    return zero_shard_kernels_cpu_named(shard_build_names[i]);
}

/* ---- Casts ---- */

START_TEST(all_16_bit_numbers_cast_to_fp32_exactly)
{
    const zero_shard_kernels_t *kernels = build(_i);
    static uint16_t half[65536];
    static float whole[65536];
    for (uint32_t h = 0; kernels != NULL && h < 65536; ++h)
        half[h] = (uint16_t)h;
    for (size_t f = 0; kernels != NULL && f < 2; ++f) {
        kernels->cast(whole, ZERO_FP32, half, formats[f].dtype, 65536, NULL);
        for (uint32_t h = 0; h < 65536; ++h) {
            const float want = (float)decode(&formats[f], (uint16_t)h);
            const bool is_right = isnan(want) ? isnan(whole[h]) && (shard_bits(whole[h]) & 0x00400000u) != 0
                                              : shard_bits(whole[h]) == shard_bits(want);
            if (!is_right)
                ck_abort_msg("%s %04x: %a, not %a", formats[f].name, h, (double)whole[h], (double)want);
        }
    }
}
END_TEST

START_TEST(casts_from_fp32_round_to_nearest_even)
{
    const zero_shard_kernels_t *kernels = build(_i);
    size_t n;
    float *x = floats_of_all_kinds(&n);
    uint16_t *half = shard_alloc(n * sizeof *half);
    for (size_t f = 0; kernels != NULL && f < 2; ++f) {
        const uint16_t infinity = (uint16_t)(formats[f].top_exponent << formats[f].mantissa_bits);
        const uint16_t quiet = (uint16_t)(1 << (formats[f].mantissa_bits - 1));
        kernels->cast(half, formats[f].dtype, x, ZERO_FP32, n, NULL);
        for (size_t i = 0; i < n; ++i) {
            if (isnan(x[i])) {
                const bool is_quiet_nan = (half[i] & 0x7fff) > infinity && (half[i] & quiet) != 0;
                if (!is_quiet_nan || half[i] >> 15 != shard_bits(x[i]) >> 31)
                    ck_abort_msg("NaN %08x became %04x", shard_bits(x[i]), half[i]);
                continue;
            }
            const uint16_t want = encode(&formats[f], x[i]);
            if (half[i] != want)
                ck_abort_msg("%a became %s %04x, not %04x", (double)x[i], formats[f].name, half[i], want);
        }
    }
    free(half);
    free(x);
}
END_TEST

START_TEST(casts_between_small_formats_round_once)
{
    const zero_shard_kernels_t *kernels = build(_i);
    static uint16_t from[65536], to[65536];
    for (uint32_t h = 0; h < 65536; ++h)
        from[h] = (uint16_t)h;
    for (size_t f = 0; kernels != NULL && f < 2; ++f) {
        const format_t *src = &formats[f], *dst = &formats[1 - f];
        kernels->cast(to, dst->dtype, from, src->dtype, 65536, NULL);
        for (uint32_t h = 0; h < 65536; ++h) {
            const float x = (float)decode(src, (uint16_t)h);
            const bool is_right = isnan(x) ? isnan(decode(dst, to[h])) : to[h] == encode(dst, x);
            if (!is_right)
                ck_abort_msg("%s %04x became %04x", src->name, h, to[h]);
        }
    }
}
END_TEST

START_TEST(same_dtype_copies_bits)
{
    const zero_shard_kernels_t *kernels = build(_i);
    uint64_t seed = 6;
    float *x = shard_any_floats(&seed, 70001), *y = shard_alloc(70001 * sizeof(float));
    for (zero_dtype_t dtype = ZERO_FP32; kernels != NULL && dtype <= ZERO_FP16; ++dtype) {
        kernels->cast(y, dtype, x, dtype, 70001, NULL);
        shard_assert_same_bits(y, x, 70001 * zero_dtype_size(dtype), "copy", kernels->name);
    }
    free(x);
    free(y);
}
END_TEST

/* ---- Master weights ---- */

START_TEST(bf16_masters_split_and_join_exactly)
{
    const zero_shard_kernels_t *kernels = build(_i);
    if (kernels == NULL)
        return;
    size_t n;
    float *x = floats_of_all_kinds(&n), *again = shard_alloc(n * sizeof *again);
    uint16_t *param = shard_alloc(n * sizeof *param);
    int16_t *low = shard_alloc(n * sizeof *low);
    kernels->split_master(param, low, ZERO_BF16, x, n, NULL);
    kernels->join_master(again, param, low, ZERO_BF16, n, NULL);
    shard_assert_same_bits(again, x, n * sizeof *x, "joined", kernels->name);
    for (size_t i = 0; i < n; ++i) {
        /* The contract's equation, and: param is nearest, ties away from zero. */
        if (shard_bits(x[i]) != (uint32_t)param[i] * 65536u + (uint32_t)(int32_t)low[i])
            ck_abort_msg("%08x became %04x and %d", shard_bits(x[i]), param[i], low[i]);
        if (!isfinite(x[i]))
            continue;
        const int exponent = x[i] == 0.0f ? -126 : (int)fmax(ilogb((double)x[i]), -126);
        const double unit = ldexp(1.0, exponent - 7);
        const double want = copysign(round(fabs((double)x[i]) / unit) * unit, (double)x[i]);
        const double got = decode(&formats[0], param[i]);
        if (got != want && !(isinf(got) && fabs(want) >= 0x1p128))
            ck_abort_msg("%a became %a, not %a", (double)x[i], got, want);
    }
    free(low);
    free(param);
    free(again);
    free(x);
}
END_TEST

START_TEST(other_masters_keep_all_bits)
{
    enum { N = 70001 };
    const zero_shard_kernels_t *kernels = build(_i);
    if (kernels == NULL)
        return;
    uint64_t seed = 7;
    float *x = shard_any_floats(&seed, N), *again = shard_alloc(N * sizeof(float));
    float *param = shard_alloc(N * sizeof(float)), *low = shard_alloc(N * sizeof(float));
    uint16_t *rounded = shard_alloc(N * sizeof(uint16_t));
    kernels->split_master(param, NULL, ZERO_FP32, x, N, NULL);
    kernels->join_master(again, param, NULL, ZERO_FP32, N, NULL);
    shard_assert_same_bits(again, x, N * sizeof(float), "fp32", kernels->name);
    memset(again, 0, N * sizeof(float));
    kernels->split_master(param, low, ZERO_FP16, x, N, NULL);
    kernels->join_master(again, param, low, ZERO_FP16, N, NULL);
    shard_assert_same_bits(again, x, N * sizeof(float), "fp16", kernels->name);
    kernels->cast(rounded, ZERO_FP16, x, ZERO_FP32, N, NULL);
    shard_assert_same_bits(param, rounded, N * sizeof(uint16_t), "fp16 parameter", kernels->name);
    free(rounded);
    free(low);
    free(param);
    free(again);
    free(x);
}
END_TEST

/* ---- Builds, threads, slices ---- */

/* Does everything in cast.c with `x`, cut at `cut`. Output k begins at out + k * (n + 1), each at another alignment. */
enum { N_OUTPUTS = 12 };

static void convert_all(const zero_shard_kernels_t *k, const float *x, size_t n, size_t cut, float *out)
{
    const size_t from[] = {0, cut}, count[] = {cut, n - cut};
    for (int part = 0; part < 2; ++part) {
        float *to = out;
        for (zero_dtype_t dst = ZERO_FP32; dst <= ZERO_FP16; ++dst) {
            for (zero_dtype_t src = ZERO_FP32; src <= ZERO_FP16; ++src, to += n + 1)
                k->cast((char *)to + from[part] * zero_dtype_size(dst), dst,
                        (const char *)x + from[part] * zero_dtype_size(src), src, count[part], NULL);
        }
        uint16_t *param = (uint16_t *)to + from[part];
        int16_t *low = (int16_t *)(to + n + 1) + from[part];
        k->split_master(param, low, ZERO_BF16, x + from[part], count[part], NULL);
        k->join_master(to + 2 * (n + 1) + from[part], param, low, ZERO_BF16, count[part], NULL);
    }
}

START_TEST(instruction_sets_threads_and_cuts_give_the_same_bits)
{
    static const size_t sizes[] = {1, 33, 16385, 500009};
    uint64_t seed = 8;
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; ++s) {
        const size_t n = sizes[s], n_bytes = N_OUTPUTS * (n + 1) * sizeof(float);
        float *x = shard_any_floats(&seed, n + 1);
        float *want = shard_alloc(n_bytes), *got = shard_alloc(n_bytes);
        memset(want, 0, n_bytes);
        omp_set_num_threads(1);
        convert_all(build(0), x + 1, n, n, want);
        for (int b = 0; b < (int)SHARD_N_BUILDS; ++b) {
            for (size_t t = 0; build(b) != NULL && t < SHARD_N_THREAD_COUNTS; ++t) {
                memset(got, 0, n_bytes);
                omp_set_num_threads(shard_thread_counts[t]);
                convert_all(build(b), x + 1, n, t * n / 5, got);
                shard_assert_same_bits(got, want, n_bytes, "conversions", build(b)->name);
            }
        }
        free(got);
        free(want);
        free(x);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("cast");
    TCase *t = tcase_create("cast");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, all_16_bit_numbers_cast_to_fp32_exactly, 0, SHARD_N_BUILDS);
    tcase_add_loop_test(t, casts_from_fp32_round_to_nearest_even, 0, SHARD_N_BUILDS);
    tcase_add_loop_test(t, casts_between_small_formats_round_once, 0, SHARD_N_BUILDS);
    tcase_add_loop_test(t, same_dtype_copies_bits, 0, SHARD_N_BUILDS);
    tcase_add_loop_test(t, bf16_masters_split_and_join_exactly, 0, SHARD_N_BUILDS);
    tcase_add_loop_test(t, other_masters_keep_all_bits, 0, SHARD_N_BUILDS);
    tcase_add_test(t, instruction_sets_threads_and_cuts_give_the_same_bits);
    suite_add_tcase(s, t);
    return s;
}

int main(void)
{
    return support_main(suite());
}
