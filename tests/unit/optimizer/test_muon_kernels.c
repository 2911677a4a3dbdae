/* test_muon_kernels.c - tests Muon's arithmetic on the CPU: matrices of every shape are orthogonalized as in fp64, with
 * the same bits by any instruction set and number of threads; momentum and the step of the weights are the written
 * expressions.
 */
#define SUPPORT_SANITIZE_SOME
#include <math.h>
#include <omp.h>

#include "kernels/shard_math.h"
#include "kernels/step_math.h"
#include "tests/support/shard_support.h"
#include "tests/unit/optimizer/muon_fp64.h"

/* ---- Orthogonalizing ---- */

/* Tall and wide, of one row, column and element, whole tiles of muon.c and parts of them, several tiles and depths.
 */
static const struct {
    size_t rows, cols;
} SHAPES[] = {{1, 1},   {1, 7},    {9, 1},    {2, 2},     {5, 67},    {67, 5},    {16, 32},  {32, 32},
              {97, 33}, {33, 129}, {96, 128}, {130, 130}, {257, 100}, {100, 257}, {64, 700}, {300, 290}};
#define N_SHAPES ((int)(sizeof SHAPES / sizeof SHAPES[0]))
#define N_STEPS 5

static float *random_matrix(size_t n_elems, uint64_t seed)
{
    float *x = shard_alloc(n_elems * sizeof *x);
    for (size_t i = 0; i < n_elems; i++)
        x[i] = (float)(support_random(&seed) >> 40) * 0x1p-23f - 1.0f;
    return x;
}

static void orthogonalize(const zero_shard_kernels_t *kernels, float *x, size_t rows, size_t cols, int n_steps)
{
    const uint32_t skip = 0;
    float *scratch = shard_alloc(zero_orthogonalize_scratch(rows, cols, false) * sizeof *scratch);
    const zero_orthogonalize_t args = {
        .x = x, .scratch = scratch, .rows = rows, .cols = cols, .n_steps = n_steps, .skip = &skip};
    ck_assert_int_eq(kernels->orthogonalize(&args, 1, NULL), ZERO_OK);
    free(scratch);
}

/* fp32 loses most where a singular value is small: the first steps multiply it by 3.44, and its error, too. So the
 * error is N_STEPS' growth of one rounding of elements that are about 1 / sqrt(longer side), with room for sums
 * (measured: up to 1.3 times that). */
START_TEST(every_shape_is_orthogonalized_as_in_fp64)
{
    if (_i == N_SHAPES - 1 && support_is_left_to_plain_build()) /* the test of instruction sets has it */
        return;
    const size_t rows = SHAPES[_i].rows, cols = SHAPES[_i].cols, n = rows * cols;
    for (int n_steps = N_STEPS - 1; n_steps <= N_STEPS; n_steps++) { /* even and odd: the result is in either buffer */
        float *x = random_matrix(n, 5);
        double *want = shard_alloc(n * sizeof *want), worst = 0.0;
        for (size_t i = 0; i < n; i++)
            want[i] = (double)x[i];
        muon_fp64_orthogonalize(want, rows, cols, n_steps);
        orthogonalize(zero_shard_kernels_cpu(), x, rows, cols, n_steps);
        for (size_t i = 0; i < n; i++)
            worst = fmax(worst, fabs((double)x[i] - want[i]));
        const double bound = 4 * 0x1p-24 * pow(3.4445, n_steps) / sqrt((double)(rows > cols ? rows : cols));
        ck_assert_msg(worst <= bound, "%zu x %zu, %d steps: off by %g, more than %g", rows, cols, n_steps, worst,
                      bound);
        free(x);
        free(want);
    }
}
END_TEST

/* Returns the largest |x x^T - 1| (of columns, if there are more rows). */
static double distance_from_orthogonal(const float *x, size_t rows, size_t cols)
{
    const size_t n = rows < cols ? rows : cols, k = rows < cols ? cols : rows;
    const size_t along = rows < cols ? cols : 1, across = rows < cols ? 1 : cols;
    double worst = 0.0;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            double sum = i == j ? -1.0 : 0.0;
            for (size_t l = 0; l < k; l++)
                sum += (double)x[i * along + l * across] * (double)x[j * along + l * across];
            worst = fmax(worst, fabs(sum));
        }
    return worst;
}

/* Rows that are far from orthogonal, 30 times longer than others and multiplied by 1e-6 all together, become so as far
 * as these coefficients go: singular values between 0.68 and 1.2, which a product of rows shows as 0.54 at most. */
START_TEST(what_comes_out_is_all_but_orthogonal_at_any_scale)
{
    for (int tall = 0; tall < 2; tall++) {
        const size_t rows = tall ? 200 : 40, cols = tall ? 40 : 200;
        float *x = random_matrix(rows * cols, 6);
        for (size_t i = 0; i < rows * cols; i++)
            x[i] = (x[i] + 0.2f) * ((tall ? i % cols : i / cols) % 3 ? 1e-6f : 3e-5f);
        orthogonalize(zero_shard_kernels_cpu(), x, rows, cols, N_STEPS);
        ck_assert_double_lt(distance_from_orthogonal(x, rows, cols), 0.6);
        free(x);
    }
}
END_TEST

START_TEST(a_matrix_of_zeros_stays_one_and_a_skipped_step_does_nothing)
{
    float x[7 * 5] = {0}, scratch[7 * 5 + 2 * 25];
    orthogonalize(zero_shard_kernels_cpu(), x, 7, 5, N_STEPS);
    for (int i = 0; i < 7 * 5; i++)
        ck_assert(x[i] == 0.0f);
    const uint32_t skip = 1;
    for (int i = 0; i < 7 * 5; i++)
        x[i] = NAN;
    const zero_orthogonalize_t args = {
        .x = x, .scratch = scratch, .rows = 7, .cols = 5, .n_steps = N_STEPS, .skip = &skip};
    ck_assert_int_eq(zero_shard_kernels_cpu()->orthogonalize(&args, 1, NULL), ZERO_OK);
}
END_TEST

START_TEST(instruction_sets_and_threads_orthogonalize_to_the_same_bits)
{
    const size_t rows = SHAPES[_i].rows, cols = SHAPES[_i].cols, n_bytes = rows * cols * sizeof(float);
    float *from = random_matrix(rows * cols, 7), *want = shard_copy(from, n_bytes);
    omp_set_num_threads(1);
    orthogonalize(zero_shard_kernels_cpu_named("scalar"), want, rows, cols, N_STEPS);
    for (size_t b = 0; b < SHARD_N_BUILDS; ++b) {
        const zero_shard_kernels_t *kernels = zero_shard_kernels_cpu_named(shard_build_names[b]);
        for (size_t t = 0; kernels != NULL && t < SHARD_N_THREAD_COUNTS; ++t) {
            float *got = shard_copy(from, n_bytes);
            omp_set_num_threads(shard_thread_counts[t]);
            orthogonalize(kernels, got, rows, cols, N_STEPS);
            shard_assert_same_bits(got, want, n_bytes, "x", kernels->name);
            free(got);
        }
    }
    free(from);
    free(want);
}
END_TEST

/* ---- The two ends ---- */

#define N_ELEMS ((size_t)70001) /* with several threads */

/* What the two ends read and write. */
typedef struct ends {
    void *param, *low;
    float *m, *grad, *update;
} ends_t;

static ends_t ends_of(zero_dtype_t dtype)
{
    float *master = random_matrix(N_ELEMS, 11);
    ends_t s = {.param = memset(shard_alloc(N_ELEMS * sizeof(float)), 0, N_ELEMS * sizeof(float)),
                .low = memset(shard_alloc(N_ELEMS * sizeof(float)), 0, N_ELEMS * sizeof(float)),
                .m = random_matrix(N_ELEMS, 12),
                .grad = random_matrix(N_ELEMS, 13),
                .update = random_matrix(N_ELEMS, 14)};
    zero_shard_kernels_cpu()->split_master(s.param, dtype == ZERO_FP32 ? NULL : s.low, dtype, master, N_ELEMS, NULL);
    free(master);
    return s;
}

static ends_t ends_clone(const ends_t *s)
{
    const size_t n_bytes = N_ELEMS * sizeof(float);
    return (ends_t){.param = shard_copy(s->param, n_bytes),
                    .low = shard_copy(s->low, n_bytes),
                    .m = shard_copy(s->m, n_bytes),
                    .grad = shard_copy(s->grad, n_bytes),
                    .update = shard_copy(s->update, n_bytes)};
}

static void ends_free(ends_t *s)
{
    free(s->param);
    free(s->low);
    free(s->m);
    free(s->grad);
    free(s->update);
}

/* Offsets that differ by array. */
static const zero_muon_segment_t SEGMENTS[] = {
    {.n_elems = 69001, .param = 3, .state = 1, .grad = 5, .at = 7, .decay = 0.1f, .scale = 1.75f},
    {.n_elems = 17, .param = 69980, .state = 69300, .grad = 69100, .at = 69500, .scale = 0.5f},
};
#define N_SEGMENTS ((size_t)2)

static zero_muon_t arguments(const ends_t *s, zero_dtype_t dtype, const zero_adam_scalars_t *scalars)
{
    return (zero_muon_t){.param_dtype = dtype,
                         .param = s->param,
                         .master_lo = dtype == ZERO_FP32 ? NULL : s->low,
                         .m = s->m,
                         .grad = s->grad,
                         .update = s->update,
                         .update_dtype = ZERO_FP32,
                         .segments = SEGMENTS,
                         .n_segments = N_SEGMENTS,
                         .longest = SEGMENTS[0].n_elems,
                         .momentum = 0.95f,
                         .one_minus_momentum = 1.0f - 0.95f,
                         .scalars = scalars};
}

static zero_adam_scalars_t usual_scalars(float grad_norm)
{
    zero_adam_scalars_t s;
    zero_adam_scalars_decide(&s, 3e-2f, 0.9f, 0.99f, 1e-8f, grad_norm, 1.0f, 4.0f, 7);
    return s;
}

/* Every element within the segments is the expression of shard.h, one rounding at a time, and no other changes. */
START_TEST(momentum_and_step_are_the_written_expressions)
{
    const zero_dtype_t dtype = (zero_dtype_t)_i;
    const zero_adam_scalars_t scalars = usual_scalars(2.0f);
    ends_t s = ends_of(dtype), want = ends_clone(&s);
    float *masters = shard_alloc(N_ELEMS * sizeof *masters);
    const zero_muon_t args = arguments(&s, dtype, &scalars);
    ck_assert(scalars.grad_scale != 1.0f);
    ck_assert_int_eq(zero_shard_kernels_cpu()->muon_momentum(&args, NULL), ZERO_OK);
    ck_assert_int_eq(zero_shard_kernels_cpu()->muon_apply(&args, NULL), ZERO_OK);
    zero_shard_kernels_cpu()->join_master(masters, want.param, dtype == ZERO_FP32 ? NULL : want.low, dtype, N_ELEMS,
                                          NULL);
    for (size_t k = 0; k < N_SEGMENTS; k++)
        for (size_t i = 0; i < SEGMENTS[k].n_elems; i++) {
            float *m = &want.m[SEGMENTS[k].state + i], *u = &want.update[SEGMENTS[k].at + i];
            float *w = &masters[SEGMENTS[k].param + i];
            size_t low = SEGMENTS[k].state + i;
            if (dtype == ZERO_BF16)
                *w = zero_join_master(((uint16_t *)want.param)[SEGMENTS[k].param + i], ((int16_t *)want.low)[low]);
            if (dtype == ZERO_FP16)
                *w = ((float *)want.low)[low];
            volatile float g = want.grad[SEGMENTS[k].grad + i] * scalars.grad_scale;
            volatile float share = (1.0f - 0.95f) * g, rate = scalars.lr * SEGMENTS[k].decay;
            volatile float step = scalars.lr * SEGMENTS[k].scale;
            *m = fmaf(0.95f, *m, share);
            *u = fmaf(0.95f, *m, share);
            *w = fmaf(-rate, *w, *w);
            *w = fmaf(-step, *u, *w);
            zero_shard_kernels_cpu()->split_master(
                (char *)want.param + (SEGMENTS[k].param + i) * zero_dtype_size(dtype),
                dtype == ZERO_FP32 ? NULL : (char *)want.low + low * (dtype == ZERO_BF16 ? 2 : 4), dtype, w, 1, NULL);
        }
    shard_assert_same_bits(s.m, want.m, N_ELEMS * sizeof(float), "m", "muon");
    shard_assert_same_bits(s.update, want.update, N_ELEMS * sizeof(float), "update", "muon");
    shard_assert_same_bits(s.param, want.param, N_ELEMS * sizeof(float), "param", "muon");
    shard_assert_same_bits(s.low, want.low, N_ELEMS * sizeof(float), "low", "muon");
    free(masters);
    ends_free(&s);
    ends_free(&want);
}
END_TEST

/* A skipped step writes nothing; without a place for the update momentum alone is written. */
START_TEST(what_is_not_wanted_is_not_written)
{
    for (int skipped = 0; skipped < 2; skipped++) {
        const zero_adam_scalars_t scalars = usual_scalars(skipped ? INFINITY : 2.0f);
        ends_t s = ends_of(ZERO_BF16), before = ends_clone(&s);
        zero_muon_t args = arguments(&s, ZERO_BF16, &scalars);
        if (skipped)
            ck_assert_int_eq(zero_shard_kernels_cpu()->muon_apply(&args, NULL), ZERO_OK);
        else
            args.update = NULL;
        ck_assert_int_eq(zero_shard_kernels_cpu()->muon_momentum(&args, NULL), ZERO_OK);
        ck_assert_int_eq(memcmp(s.m, before.m, N_ELEMS * sizeof(float)) == 0, skipped);
        shard_assert_same_bits(s.update, before.update, N_ELEMS * sizeof(float), "update", "muon");
        shard_assert_same_bits(s.param, before.param, N_ELEMS * sizeof(float), "param", "muon");
        shard_assert_same_bits(s.low, before.low, N_ELEMS * sizeof(float), "low", "muon");
        ends_free(&s);
        ends_free(&before);
    }
}
END_TEST

START_TEST(builds_threads_and_updates_in_bf16_agree)
{
    const zero_dtype_t dtype = (zero_dtype_t)(_i / 2), update_dtype = _i % 2 ? ZERO_BF16 : ZERO_FP32;
    const zero_adam_scalars_t scalars = usual_scalars(2.0f);
    ends_t before = ends_of(dtype), want = {0};
    for (size_t b = 0; b < SHARD_N_BUILDS; ++b) {
        const zero_shard_kernels_t *kernels = zero_shard_kernels_cpu_named(shard_build_names[b]);
        for (size_t t = 0; kernels != NULL && t < SHARD_N_THREAD_COUNTS; ++t) {
            ends_t got = ends_clone(&before);
            zero_muon_t args = arguments(&got, dtype, &scalars);
            args.update_dtype = update_dtype;
            omp_set_num_threads(shard_thread_counts[t]);
            ck_assert_int_eq(kernels->muon_momentum(&args, NULL), ZERO_OK);
            ck_assert_int_eq(kernels->muon_apply(&args, NULL), ZERO_OK);
            if (!want.m) {
                want = got;
                continue;
            }
            shard_assert_same_bits(got.m, want.m, N_ELEMS * sizeof(float), "m", kernels->name);
            shard_assert_same_bits(got.update, want.update, N_ELEMS * sizeof(float), "update", kernels->name);
            shard_assert_same_bits(got.param, want.param, N_ELEMS * sizeof(float), "param", kernels->name);
            shard_assert_same_bits(got.low, want.low, N_ELEMS * sizeof(float), "low", kernels->name);
            ends_free(&got);
        }
    }
    ends_free(&want);
    ends_free(&before);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("muon");
    TCase *tcase = tcase_create("muon");
    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, every_shape_is_orthogonalized_as_in_fp64, 0, N_SHAPES);
    tcase_add_test(tcase, what_comes_out_is_all_but_orthogonal_at_any_scale);
    tcase_add_test(tcase, a_matrix_of_zeros_stays_one_and_a_skipped_step_does_nothing);
    tcase_add_loop_test(tcase, instruction_sets_and_threads_orthogonalize_to_the_same_bits, 0, N_SHAPES);
    tcase_add_loop_test(tcase, momentum_and_step_are_the_written_expressions, 0, 3);
    tcase_add_test(tcase, what_is_not_wanted_is_not_written);
    tcase_add_loop_test(tcase, builds_threads_and_updates_in_bf16_agree, 0, 6);
    suite_add_tcase(s, tcase);
    return s;
}

int main(void)
{
    return support_main(suite());
}
