/* test_momentum.c - tests SGD, Nesterov's SGD and Lion on the CPU: their bits are those that shard.h promises with any
 * instruction set, threads and slicing; their numbers are close to the papers' formulas in fp64, as torch.optim has
 * them.
 */
#include <math.h>
#include <omp.h>

#include "kernels/step_math.h"
#include "tests/support/shard_support.h"

#define N_ELEMS ((size_t)200003)

typedef enum rule { SGD, NESTEROV, LION, N_RULES } rule_t;

static zero_status_t run_rule(rule_t rule, const zero_shard_kernels_t *kernels, const zero_adam_t *args)
{
    return rule == SGD        ? kernels->sgd(args, NULL)
           : rule == NESTEROV ? kernels->nesterov(args, NULL)
                              : kernels->lion(args, NULL);
}

/* Loops go over all rules and dtypes. */
static rule_t rule_of(int i)
{
    return (rule_t)(i % N_RULES);
}

static zero_dtype_t dtype_of(int i)
{
    return (zero_dtype_t)(i / N_RULES);
}

/* ---- A shard ---- */

static float *ordinary(uint64_t *seed, size_t n, int low, int high)
{
    float *x = shard_alloc(n * sizeof *x);
    for (size_t i = 0; i < n; ++i)
        x[i] = shard_ordinary_float(seed, low, high);
    return x;
}

/* Ordinary numbers, as in training. */
static shard_t shard_of(zero_dtype_t dtype, size_t n_elems, uint64_t seed)
{
    shard_t s = {.dtype = dtype, .n_elems = n_elems, .state_bytes = n_elems * sizeof(float)};
    float *master = ordinary(&seed, n_elems, -12, 2);
    s.param = memset(shard_alloc(n_elems * sizeof(float)), 0, n_elems * sizeof(float));
    s.low = memset(shard_alloc(n_elems * sizeof(float)), 0, n_elems * sizeof(float));
    zero_shard_kernels_cpu()->split_master(s.param, dtype == ZERO_FP32 ? NULL : s.low, dtype, master, n_elems, NULL);
    s.m = ordinary(&seed, n_elems, -14, 2);
    s.grad = ordinary(&seed, n_elems, -14, 2);
    free(master);
    return s;
}

static float *masters_of(const shard_t *s)
{
    float *master = shard_alloc(s->n_elems * sizeof *master);
    zero_shard_kernels_cpu()->join_master(master, s->param, s->dtype == ZERO_FP32 ? NULL : s->low, s->dtype, s->n_elems,
                                          NULL);
    return master;
}

static void update_by_tensor(rule_t rule, const zero_shard_kernels_t *kernels, const shard_t *s,
                             const zero_adam_segment_t *segments, size_t n_segments, const zero_adam_scalars_t *scalars,
                             const zero_tensor_scalars_t *by_tensor)
{
    zero_adam_t args = {.param_dtype = s->dtype,
                        .param = s->param,
                        .master_lo = s->dtype == ZERO_FP32 ? NULL : s->low,
                        .m = s->m,
                        .grad = s->grad,
                        .segments = segments,
                        .n_segments = n_segments,
                        .scalars = scalars,
                        .by_tensor = by_tensor};
    ck_assert_int_eq(run_rule(rule, kernels, &args), ZERO_OK);
}

static void update(rule_t rule, const zero_shard_kernels_t *kernels, const shard_t *s,
                   const zero_adam_segment_t *segments, size_t n_segments, const zero_adam_scalars_t *scalars)
{
    update_by_tensor(rule, kernels, s, segments, n_segments, scalars, NULL);
}

static zero_adam_scalars_t usual_scalars(float grad_norm)
{
    zero_adam_scalars_t s;
    zero_adam_scalars_decide(&s, 3e-2f, 0.9f, 0.99f, 1e-8f, grad_norm, 1.0f, 4.0f, 7);
    return s;
}

/* ---- The bits ---- */

/* Computes the lines of zero_shard_kernels_t's comment, one rounding at a time. */
static void written_out(rule_t rule, const zero_adam_scalars_t *s, float decay, float grad, float *w, float *m)
{
    volatile float scaled = grad * s->grad_scale;
    if (rule == LION) {
        volatile float share = s->one_minus_beta1 * scaled, share_of_m = s->one_minus_beta2 * scaled;
        volatile float c = fmaf(s->beta1, *m, share), rate = s->lr * decay;
        float sign = (float)(c > 0.0f) - (float)(c < 0.0f);
        *m = fmaf(s->beta2, *m, share_of_m);
        *w = fmaf(-rate, *w, *w);
        *w = fmaf(-s->lr, sign, *w);
        return;
    }
    volatile float g = fmaf(decay, *w, scaled);
    *m = fmaf(s->beta1, *m, g);
    volatile float direction = rule == SGD ? *m : fmaf(s->beta1, *m, g);
    *w = fmaf(-s->lr, direction, *w);
}

START_TEST(every_element_is_the_written_expression)
{
    const rule_t rule = rule_of(_i);
    const zero_adam_scalars_t scalars = usual_scalars(2.0f);
    const zero_adam_segment_t segment = {.n_elems = N_ELEMS, .decay = 0.1f};
    shard_t s = shard_of(dtype_of(_i), N_ELEMS, 11);
    for (size_t i = 0; i < N_ELEMS; i += 97)
        s.grad[i] = s.m[i] = 0.0f; /* a sign of nothing is 0 */
    shard_t before = shard_clone(&s);
    float *old = masters_of(&before);
    update(rule, zero_shard_kernels_cpu(), &s, &segment, 1, &scalars);
    float *new = masters_of(&s);
    for (size_t i = 0; i < N_ELEMS; ++i) {
        float w = old[i], m = before.m[i];
        written_out(rule, &scalars, 0.1f, before.grad[i], &w, &m);
        if (shard_bits(new[i]) != shard_bits(w) || shard_bits(s.m[i]) != shard_bits(m))
            ck_abort_msg("element %zu: w %a, m %a; expected %a, %a", i, (double)new[i], (double)s.m[i], (double)w,
                         (double)m);
    }
    free(old);
    free(new);
    shard_free(&before);
    shard_free(&s);
}
END_TEST

/* Odd offsets that differ by array, a gap, any number of threads, and cuts at every other place. */
START_TEST(instruction_sets_threads_and_slicing_give_the_same_bits)
{
    const rule_t rule = rule_of(_i);
    const zero_adam_scalars_t scalars = usual_scalars(2.0f);
    const zero_adam_segment_t whole[] = {
        {.n_elems = 199001, .param = 3, .state = 1, .grad = 5, .decay = 0.1f},
        {.n_elems = 17, .param = 199980, .state = 199300, .grad = 199100},
    };
    const zero_adam_segment_t cut[] = {
        {.n_elems = 1013, .param = 3, .state = 1, .grad = 5, .decay = 0.1f},
        {.n_elems = 0},
        {.n_elems = 199001 - 1013, .param = 1016, .state = 1014, .grad = 1018, .decay = 0.1f},
        {.n_elems = 17, .param = 199980, .state = 199300, .grad = 199100},
    };
    shard_t before = shard_of(dtype_of(_i), N_ELEMS, 21), want = shard_clone(&before);
    omp_set_num_threads(1);
    update(rule, zero_shard_kernels_cpu_named("scalar"), &want, whole, 2, &scalars);
    ck_assert_int_ne(memcmp(want.m, before.m, N_ELEMS * sizeof(float)), 0);
    for (size_t b = 0; b < SHARD_N_BUILDS; ++b) {
        const zero_shard_kernels_t *kernels = zero_shard_kernels_cpu_named(shard_build_names[b]);
        for (size_t t = 0; kernels != NULL && t < 2 * SHARD_N_THREAD_COUNTS; ++t) {
            shard_t got = shard_clone(&before);
            omp_set_num_threads(shard_thread_counts[t / 2]);
            update(rule, kernels, &got, t % 2 ? cut : whole, t % 2 ? 4 : 2, &scalars);
            shard_assert_same(&got, &want, kernels->name);
            shard_free(&got);
        }
    }
    shard_free(&want);
    shard_free(&before);
}
END_TEST

/* Each segment by itself with the scalars of its tensor as the step's must give what one call with all of them does. */
START_TEST(segments_have_the_scalars_of_their_tensor)
{
    const rule_t rule = rule_of(_i);
    shard_t before = shard_of(dtype_of(_i), N_ELEMS, 41), want = shard_clone(&before);
    const zero_adam_scalars_t unused = usual_scalars(2.0f);
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
        update(rule, zero_shard_kernels_cpu_named("scalar"), &want, &alone, 1, &by_tensor[alone.tensor].scalars);
    }
    for (size_t b = 0; b < SHARD_N_BUILDS; ++b) {
        const zero_shard_kernels_t *kernels = zero_shard_kernels_cpu_named(shard_build_names[b]);
        for (size_t t = 0; kernels != NULL && t < SHARD_N_THREAD_COUNTS; ++t) {
            shard_t got = shard_clone(&before);
            omp_set_num_threads(shard_thread_counts[t]);
            update_by_tensor(rule, kernels, &got, segments, 4, &unused, by_tensor);
            shard_assert_same(&got, &want, kernels->name);
            shard_free(&got);
        }
    }
    shard_free(&want);
    shard_free(&before);
}
END_TEST

START_TEST(a_skipped_step_writes_nothing)
{
    const zero_adam_scalars_t scalars = usual_scalars(INFINITY);
    const zero_adam_segment_t segment = {.n_elems = 1001, .decay = 0.1f};
    shard_t before = shard_of(dtype_of(_i), 1001, 31), after = shard_clone(&before);
    update(rule_of(_i), zero_shard_kernels_cpu(), &after, &segment, 1, &scalars);
    shard_assert_same(&after, &before, "skipped");
    shard_free(&after);
    shard_free(&before);
}
END_TEST

/* ---- The numbers ---- */

/* Computes one step in fp64. Returns how far fp32's w may be from it: with u = 2^-24, g has at most 2u of its parts'
 * sum of magnitudes, m 2u more, Nesterov's direction 2u more, and w is rounded at most twice. */
static double step_fp64(rule_t rule, double lr, double beta1, double beta2, double decay, double grad, double *w,
                        double *m)
{
    const double u = 0x1p-24 * 1.01, old = fabs(*w);
    if (rule == LION) { /* Chen et al., algorithm 2 */
        double c = beta1 * *m + (1 - beta1) * grad;
        *w -= lr * ((c > 0) - (c < 0) + decay * *w);
        *m = beta2 * *m + (1 - beta2) * grad;
        /* Of a sum that is all but 0, fp32 may have the other sign. */
        return fabs(c) < 4 * u * (fabs(*m) + fabs(grad)) ? INFINITY : u * (2 * old + 2 * fabs(*w) + 2 * lr);
    }
    double g = grad + decay * *w, magnitude = fabs(grad) + decay * old + beta1 * fabs(*m);
    *m = beta1 * *m + g; /* torch.optim.SGD with dampening 0 */
    *w -= lr * (rule == NESTEROV ? g + beta1 * *m : *m);
    return u * (fabs(*w) + 12 * lr * magnitude);
}

START_TEST(numbers_are_those_of_the_formulas_in_fp64)
{
    enum { N = 20000 };
    const rule_t rule = rule_of(_i);
    const float lr = 6e-3f, beta1 = 0.9f, beta2 = 0.98f, decay = 0.1f, loss_scale = 1024.0f;
    const zero_adam_segment_t segment = {.n_elems = N, .decay = decay};
    shard_t s = shard_of(dtype_of(_i), N, 71);
    size_t n_left_out = 0;
    for (uint64_t t = 1; t <= 8; ++t) {
        uint64_t seed = 72 + t;
        free(s.grad);
        s.grad = ordinary(&seed, N, -4, 12);
        shard_t before = shard_clone(&s);
        float *old = masters_of(&before);
        zero_adam_scalars_t scalars;
        zero_adam_scalars_decide(&scalars, lr, beta1, beta2, 1e-8f, 0.5f, 0.0f, loss_scale, t);
        update(rule, zero_shard_kernels_cpu(), &s, &segment, 1, &scalars);
        float *new = masters_of(&s);
        for (size_t i = 0; i < N; ++i) {
            double w = (double)old[i], m = (double)before.m[i];
            double bound = step_fp64(rule, (double)lr, (double)beta1, (double)beta2, (double)decay,
                                     (double)(s.grad[i] / loss_scale), &w, &m);
            n_left_out += isinf(bound);
            if (!(fabs((double)new[i] - w) <= bound))
                ck_abort_msg("step %d, element %zu: w is %.9g, not %.9g, bound %.2g", (int)t, i, (double)new[i], w,
                             bound);
            double m_bound = 4 * 0x1p-24 *
                             (fabs((double)before.m[i]) + fabs((double)(s.grad[i] / loss_scale)) +
                              (double)decay * fabs((double)old[i]));
            ck_assert_double_le(fabs((double)s.m[i] - m), m_bound);
        }
        free(old);
        free(new);
        shard_free(&before);
    }
    ck_assert_uint_lt(n_left_out, 8 * N / 1000);
    shard_free(&s);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("momentum");
    TCase *tcase = tcase_create("momentum");
    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, every_element_is_the_written_expression, 0, 3 * N_RULES);
    tcase_add_loop_test(tcase, instruction_sets_threads_and_slicing_give_the_same_bits, 0, 3 * N_RULES);
    tcase_add_loop_test(tcase, segments_have_the_scalars_of_their_tensor, 0, 3 * N_RULES);
    tcase_add_loop_test(tcase, a_skipped_step_writes_nothing, 0, 3 * N_RULES);
    tcase_add_loop_test(tcase, numbers_are_those_of_the_formulas_in_fp64, 0, 3 * N_RULES);
    suite_add_tcase(s, tcase);
    return s;
}

int main(void)
{
    return support_main(suite());
}
