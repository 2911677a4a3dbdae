/* test_reduce.c - tests sums whose order shard.h promises: gradient slices one after another; and the norm's, which has
 * none. The same bits from every instruction set, thread count and slicing.
 */
#include <math.h>
#include <omp.h>

#include "kernels/shard_math.h"
#include "tests/support/shard_support.h"

enum { MAX_SLICES = 9 };

/* ---- References, written from the comments of shard.h ---- */

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
        volatile float t = accumulate ? out[i] : decode(slices[0], dtype, i);
        for (int r = accumulate ? 0 : 1; r < n_slices; ++r)
            t += decode(slices[r], dtype, i);
        out[i] = one_nan(t);
    }
}

/* Returns what group g of a cell holds after folding down to `width` groups, by recursion on the definition. */
static float folded_group(const float *x, size_t n, size_t g, size_t width)
{
    if (width == ZERO_NORM_CELL / 4) {
        volatile float acc = 0.0f;
        for (size_t i = 4 * g; i < 4 * g + 4 && i < n; ++i)
            acc = fmaf(x[i], x[i], acc);
        return acc;
    }
    return folded_group(x, n, g, width * 2) + folded_group(x, n, g + width, width * 2);
}

/* A natural number of up to 12 x 32 bits, in units of 2^-149; and how many cells are not finite. */
typedef struct exact {
    uint32_t limbs[12];
    uint64_t n_bad;
} exact_t;

/* Adds n 2^at, one bit after another. */
static void exact_add(exact_t *sum, uint64_t n, int at)
{
    for (; n != 0; n >>= 1, ++at) {
        uint64_t carry = (n & 1) << at % 32;
        for (int i = at / 32; carry != 0; ++i, carry >>= 32) {
            ck_assert_int_lt(i, 12);
            carry += sum->limbs[i];
            sum->limbs[i] = (uint32_t)carry;
        }
    }
}

static void exact_add_cells(exact_t *sum, const float *x, size_t n_elems)
{
    for (size_t begin = 0; begin < n_elems; begin += ZERO_NORM_CELL) {
        const size_t n = n_elems - begin < ZERO_NORM_CELL ? n_elems - begin : ZERO_NORM_CELL;
        const float cell = folded_group(x + begin, n, 0, 1);
        int exponent;
        if (!isfinite(cell)) {
            sum->n_bad++;
            continue;
        }
        const double fraction = frexp((double)cell, &exponent);
        if (cell == 0.0f)
            continue;
        const int unit = exponent - 24 < -149 ? -149 : exponent - 24; /* of the cell's last bit */
        exact_add(sum, (uint64_t)ldexp(fraction, exponent - unit), unit + 149);
    }
}

static void assert_norm(const zero_norm_t *got, const exact_t *want, const char *where)
{
    exact_t sum = {.n_bad = got->words[ZERO_NORM_DIGITS]};
    for (int i = 0; i < ZERO_NORM_DIGITS; ++i)
        exact_add(&sum, got->words[i], i * ZERO_NORM_DIGIT_BITS);
    shard_assert_same_bits(sum.limbs, want->limbs, sizeof sum.limbs, "norm", where);
    ck_assert_uint_eq(sum.n_bad, want->n_bad);
}

static void assert_norm_of(const zero_norm_t *got, const float *x, size_t n_elems, const char *where)
{
    exact_t want = {.n_bad = 0};
    exact_add_cells(&want, x, n_elems);
    assert_norm(got, &want, where);
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

/* any: slices of random bits, else of ordinary numbers. A 16-bit dtype reads the same bits as other numbers. */
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

    for (size_t b = 0; b < SHARD_N_BUILDS; ++b) {
        const zero_shard_kernels_t *kernels = zero_shard_kernels_cpu_named(shard_build_names[b]);
        for (size_t t = 0; kernels != NULL && t < SHARD_N_THREAD_COUNTS; ++t) {
            omp_set_num_threads(shard_thread_counts[t]);
            float *out = shard_alloc((n_elems + 1) * sizeof(float));
            memcpy(out + 1, start, n_elems * sizeof(float)); /* one element off any alignment */
            const bool with_norm = t % 2 == 0;
            zero_norm_t norm = {{0}};
            ck_assert_int_eq(
                shard_sum(kernels, out + 1, slices, n_slices, dtype, n_elems, accumulate, with_norm ? &norm : NULL),
                ZERO_OK);
            shard_assert_same_bits(out + 1, want, n_elems * sizeof(float), "sum", kernels->name);
            if (with_norm)
                assert_norm_of(&norm, want, n_elems, kernels->name);
            free(out);
        }
    }
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
    /* 2^25 + 1 rounds to 2^25, so each order has its own sum. */
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
        shard_sum(kernels, &out, slices, 4, ZERO_FP32, 1, false, NULL);
        ck_assert_float_eq(out, cases[c].sum);
    }
    /* The running sum comes first: 2^25 swallows each of four ones, but not their sum. */
    const void *four_ones[] = {&one, &one, &one, &one};
    float out = big;
    shard_sum(kernels, &out, four_ones, 4, ZERO_FP32, 1, true, NULL);
    ck_assert_float_eq(out, big);
}
END_TEST

/* The promise on which equal bits on any number of ranks rest: 12 slices, brought by 1, 2, 3 ... at a time. */
START_TEST(sums_do_not_depend_on_how_many_slices_a_call_brings)
{
    enum { V = 12, N = 10007 };
    const zero_dtype_t dtype = (zero_dtype_t)_i;
    uint64_t seed = 55;
    void *slices[V];
    for (int v = 0; v < V; ++v)
        slices[v] = shard_any_floats(&seed, N);
    float *want = shard_alloc(N * sizeof(float)), *out = shard_alloc(N * sizeof(float));
    reference_sum(want, (const void *const *)slices, V, dtype, N, false);
    for (int at_once = 1; at_once <= V; ++at_once) {
        for (int v = 0; v < V; v += at_once) {
            const int n_slices = V - v < at_once ? V - v : at_once;
            shard_sum(zero_shard_kernels_cpu(), out, (const void *const *)slices + v, n_slices, dtype, N, v > 0, NULL);
        }
        shard_assert_same_bits(out, want, N * sizeof(float), "sum", "in several calls");
    }
    free(want);
    free(out);
    for (int v = 0; v < V; ++v)
        free(slices[v]);
}
END_TEST

START_TEST(the_first_slice_is_taken_as_is)
{
    const float minus_zero = -0.0f;
    const void *slices[] = {&minus_zero};
    float out = 1.0f;
    shard_sum(zero_shard_kernels_cpu(), &out, slices, 1, ZERO_FP32, 1, false, NULL);
    ck_assert_uint_eq(shard_bits(out), 0x80000000u);
}
END_TEST

/* To bf16, and to fp32 that bf16 could hold: the written loop, rounded, and the norm of that. */
START_TEST(sums_are_rounded_once)
{
    enum { N = 20011, SLICES = 3 };
    const zero_dtype_t dtype = (zero_dtype_t)_i;
    void *slices[MAX_SLICES];
    fill_slices(slices, N, true, 91);
    float *start = shard_copy(slices[3], N * sizeof(float)), *want = shard_copy(start, N * sizeof(float));
    uint16_t *halves = shard_alloc(N * sizeof *halves), *got = shard_alloc((N + 1) * sizeof *got);
    for (int accumulates = 0; accumulates < 2; ++accumulates) {
        memcpy(want, start, N * sizeof(float));
        reference_sum(want, (const void *const *)slices, SLICES, dtype, N, accumulates);
        for (size_t i = 0; i < N; ++i) {
            halves[i] = zero_bf16_of_float(want[i]);
            want[i] = zero_float_of_bf16(halves[i]);
        }
        for (size_t b = 0; b < SHARD_N_BUILDS; ++b) {
            const zero_shard_kernels_t *kernels = zero_shard_kernels_cpu_named(shard_build_names[b]);
            float *out = shard_copy(start, N * sizeof(float));
            zero_norm_t norm = {{0}}, of_halves = {{0}};
            zero_sum_t sum = {.out = out,
                              .is_rounded = true,
                              .accumulates = accumulates,
                              .slices = (const void *const *)slices,
                              .n_slices = SLICES,
                              .dtype = dtype,
                              .n_elems = N,
                              .norm = &norm};
            if (kernels != NULL) {
                ck_assert_int_eq(kernels->sum_slices(&sum, NULL), ZERO_OK);
                shard_assert_same_bits(out, want, N * sizeof(float), "rounded sum", kernels->name);
                assert_norm_of(&norm, want, N, kernels->name);
            }
            if (kernels != NULL && !accumulates) {
                sum.out = got + 1;
                sum.out_dtype = ZERO_BF16;
                sum.is_rounded = false;
                sum.norm = &of_halves;
                ck_assert_int_eq(kernels->sum_slices(&sum, NULL), ZERO_OK);
                shard_assert_same_bits(got + 1, halves, N * sizeof *halves, "sum to bf16", kernels->name);
                assert_norm_of(&of_halves, want, N, kernels->name);
            }
            free(out);
        }
    }
    free(start);
    free(want);
    free(halves);
    free(got);
    for (int r = 0; r < MAX_SLICES; ++r)
        free(slices[r]);
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
        shard_sum(zero_shard_kernels_cpu(), memory[own], slices, SLICES, ZERO_FP32, N, false, NULL);
        shard_assert_same_bits(memory[own], want, N * sizeof(float), "sum", "in place");
        free(want);
        for (int r = 0; r < MAX_SLICES; ++r)
            free(memory[r]);
    }
}
END_TEST

/* ---- Norms ---- */

/* Adds the norm of n floats as the engine does if NCCL has summed them: as a sum of one slice. */
static void add_squares(const zero_shard_kernels_t *kernels, float *x, size_t n_elems, zero_norm_t *norm)
{
    const void *slices[] = {x};
    ck_assert_int_eq(shard_sum(kernels, x, slices, 1, ZERO_FP32, n_elems, false, norm), ZERO_OK);
}

/* Returns `n` numbers: of all kinds, ordinary ones, or such that their squares are denormal or close to it. */
static float *make_numbers(int kind, size_t n, uint64_t *seed)
{
    float *x = shard_any_floats(seed, n);
    for (size_t i = 0; kind > 0 && i < n; ++i)
        x[i] = kind == 1 ? shard_ordinary_float(seed, -40, 20) : shard_ordinary_float(seed, -76, -60);
    return x;
}

START_TEST(norms_are_the_exact_sum_of_cells)
{
    static const size_t sizes[] = {1, 63, 64, 65, 1023, 1024, 1025, 8192, 8193, 100003, 400001};
    uint64_t seed = 81;
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; ++s) {
        const size_t n = sizes[s];
        float *x = make_numbers((int)s % 3, n + 1, &seed), *own = shard_alloc((n + 1) * sizeof(float));
        exact_t want = {.n_bad = 0};
        exact_add_cells(&want, x + 1, n);
        for (size_t b = 0; b < SHARD_N_BUILDS; ++b) {
            const zero_shard_kernels_t *kernels = zero_shard_kernels_cpu_named(shard_build_names[b]);
            for (size_t t = 0; kernels != NULL && t < SHARD_N_THREAD_COUNTS; ++t) {
                zero_norm_t norm = {{0}};
                omp_set_num_threads(shard_thread_counts[t]);
                memcpy(own, x, (n + 1) * sizeof(float));
                add_squares(kernels, own + 1, n, &norm);
                assert_norm(&norm, &want, kernels->name);
            }
        }
        free(own);
        free(x);
    }
}
END_TEST

static zero_step_outcome_t decide(const zero_contribution_t *contributions, int n_ranks)
{
    const zero_step_rules_t rules = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .grad_clip = 1.0f};
    zero_step_state_t state = {.loss_scale = 1.0f};
    zero_adam_scalars_t scalars;
    zero_step_outcome_t outcome;
    zero_shard_kernels_cpu()->decide_step(&rules, 0.5f, contributions, n_ranks, &state, &scalars, &outcome, NULL);
    ck_assert_uint_eq(scalars.skip != 0, outcome.skipped);
    return outcome;
}

/* The same numbers as shards of 1, 2, 3 ... ranks, each in one call or in two, have one norm to the bit. */
START_TEST(norms_do_not_depend_on_shards_or_calls)
{
    enum { N_CELLS = 1260, MAX_RANKS = 12 };
    uint64_t seed = 83;
    const size_t n = (size_t)N_CELLS * ZERO_NORM_CELL;
    float *x = make_numbers(1, n, &seed);
    float want = 0.0f;
    for (int n_ranks = 1; n_ranks <= MAX_RANKS; ++n_ranks) {
        zero_contribution_t contributions[MAX_RANKS] = {0};
        const size_t shard = (size_t)(N_CELLS + n_ranks - 1) / (size_t)n_ranks * ZERO_NORM_CELL;
        for (size_t r = 0, begin = 0; begin < n; ++r, begin += shard) {
            const size_t own = n - begin < shard ? n - begin : shard, first = n_ranks % 2 * (own / 128 * 64);
            add_squares(zero_shard_kernels_cpu(), x + begin, first, &contributions[r].norm);
            add_squares(zero_shard_kernels_cpu(), x + begin + first, own - first, &contributions[r].norm);
        }
        const float norm = decide(contributions, n_ranks).grad_norm;
        want = n_ranks == 1 ? norm : want;
        ck_assert(isfinite(norm) && norm > 0.0f);
        shard_assert_same_bits(&norm, &want, sizeof norm, "norm", "of several ranks");
    }
    free(x);
}
END_TEST

START_TEST(norms_are_close_to_fp64)
{
    enum { N = 1000003 };
    for (int at = -70; at <= 50; at += 30) { /* 2^at times normal numbers */
        uint64_t seed = 82;
        float *x = shard_alloc(N * sizeof(float));
        double want = 0.0;
        for (size_t i = 0; i < N; ++i) {
            x[i] = ldexpf((float)support_normal(&seed), at);
            want += (double)x[i] * (double)x[i];
        }
        zero_contribution_t mine = {.loss = 0.0};
        add_squares(zero_shard_kernels_cpu(), x, N, &mine.norm);
        const double got = (double)decide(&mine, 1).grad_norm;
        /* A square passes through 4 fma and 4 additions of positive numbers, each within 2^-24; the root halves that.
         * At 2^-70 squares are near 2^-140, where a rounding is up to 2^-150 / 2^-140. */
        ck_assert_double_le(support_relative_error(got, sqrt(want)), at == -70 ? 0x1p-9 : 5 * 0x1p-24);
        free(x);
    }
}
END_TEST

START_TEST(one_bad_element_makes_the_norm_bad)
{
    enum { N = 50000 };
    static const float bad[] = {NAN, INFINITY, -INFINITY, 2e19f}; /* the square of the last is infinite */
    static const size_t places[] = {0, 8191, 8192, 30000, N - 1};
    float *x = shard_alloc(N * sizeof(float));
    for (size_t c = 0; c < 20; ++c) {
        for (size_t i = 0; i < N; ++i)
            x[i] = 1e-3f;
        x[places[c % 5]] = bad[c / 5];
        zero_contribution_t contributions[3] = {0};
        add_squares(zero_shard_kernels_cpu(), x, N, &contributions[c % 3].norm);
        const zero_step_outcome_t outcome = decide(contributions, 3);
        ck_assert(outcome.skipped && isinf(outcome.grad_norm));
    }
    free(x);
}
END_TEST

/* Sums beyond what one float holds are none of infinity: many cells just below it. */
START_TEST(a_sum_of_large_squares_is_finite)
{
    enum { N = 1 << 16 };
    float *x = shard_alloc(N * sizeof(float));
    for (size_t i = 0; i < N; ++i)
        x[i] = 2e18f;
    zero_contribution_t mine = {.loss = 0.0};
    add_squares(zero_shard_kernels_cpu(), x, N, &mine.norm);
    const double got = (double)decide(&mine, 1).grad_norm;
    ck_assert_double_le(support_relative_error(got, 2e18 * 256), 5 * 0x1p-24);
    free(x);
}
END_TEST

START_TEST(contributing_takes_the_norm)
{
    const zero_agreed_t agreed = {.calls = 77, .lr = 0.5f};
    zero_contribution_t mine = {.loss = 3.0, .notice = 9};
    zero_norm_t norm, before;
    for (int i = 0; i < ZERO_NORM_WORDS; ++i)
        norm.words[i] = (uint64_t)i + 11;
    before = norm;
    zero_shard_kernels_cpu()->contribute(&norm, &agreed, &mine, NULL);
    ck_assert(mine.calls == 77 && mine.lr == 0.5f);
    ck_assert(mine.loss == 3.0 && mine.notice == 9); /* these stay */
    shard_assert_same_bits(&mine.norm, &before, sizeof norm, "norm", "contribution");
    for (int i = 0; i < ZERO_NORM_WORDS; ++i)
        ck_assert_uint_eq(norm.words[i], 0);
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
    tcase_add_loop_test(slices, sums_do_not_depend_on_how_many_slices_a_call_brings, ZERO_FP32, ZERO_FP16 + 1);
    tcase_add_loop_test(slices, sums_are_rounded_once, ZERO_FP32, ZERO_FP16 + 1);
    tcase_add_test(slices, the_first_slice_is_taken_as_is);
    tcase_add_test(slices, out_may_be_one_of_the_slices);
    suite_add_tcase(s, slices);
    TCase *norms = tcase_create("norms");
    tcase_set_timeout(norms, 120);
    tcase_add_test(norms, norms_are_the_exact_sum_of_cells);
    tcase_add_test(norms, norms_do_not_depend_on_shards_or_calls);
    tcase_add_test(norms, norms_are_close_to_fp64);
    tcase_add_test(norms, one_bad_element_makes_the_norm_bad);
    tcase_add_test(norms, a_sum_of_large_squares_is_finite);
    tcase_add_test(norms, contributing_takes_the_norm);
    suite_add_tcase(s, norms);
    return s;
}

int main(void)
{
    return support_main(suite());
}
