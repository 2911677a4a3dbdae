/* test_examples.c - examples/lora.c and recurrence.c against the same training in fp64, written here without the
 * library, at several stages and numbers of ranks. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/shard.h"
#include "tests/support/support.h"

#define LIMIT_S 60.0

/* AdamW as zero.h has it, without weight decay, over all parameters of a model at once. */
typedef struct adam {
    double *w, *g, *m, *v;
    int n, t;
} adam_t;

static adam_t adam_create(int n)
{
    adam_t adam = {.n = n};
    adam.w = calloc((size_t)n, sizeof *adam.w);
    adam.g = calloc((size_t)n, sizeof *adam.g);
    adam.m = calloc((size_t)n, sizeof *adam.m);
    adam.v = calloc((size_t)n, sizeof *adam.v);
    ck_assert(adam.w && adam.g && adam.m && adam.v);
    return adam;
}

static void adam_destroy(adam_t *adam)
{
    free(adam->w);
    free(adam->g);
    free(adam->m);
    free(adam->v);
}

/* Clips at norm 1. */
static void adam_step(adam_t *adam, double lr)
{
    double squares = 0.0;
    adam->t++;
    for (int i = 0; i < adam->n; i++)
        squares += adam->g[i] * adam->g[i];
    const double scale = fmin(1.0, 1.0 / (sqrt(squares) + 1e-6));
    for (int i = 0; i < adam->n; i++) {
        const double g = adam->g[i] * scale;
        adam->m[i] = 0.9 * adam->m[i] + 0.1 * g;
        adam->v[i] = 0.95 * adam->v[i] + 0.05 * g * g;
        const double m = adam->m[i] / (1 - pow(0.9, adam->t)), v = adam->v[i] / (1 - pow(0.95, adam->t));
        adam->w[i] -= lr * m / (sqrt(v) + 1e-8);
        adam->g[i] = 0.0;
    }
}

/* ---- lora.c ---- */

enum { DIM = 16, RANK = 2, N_LAYERS = 3, N_SAMPLES = 48, N_STEPS = 100, N_ADAPTER = 2 * RANK * DIM };

static double number(int which, int i)
{
    return (double)((float)((which * 7919 + i * 104729 + i * i % 8191 * 31) % 2003) / 1001.0f - 1.0f);
}

/* y = tanh((W + B A) x) of all layers, the matrices multiplied out: another order of operations than the example's. */
static void merge(int l, const double *adapter, double merged[DIM][DIM])
{
    const double *a = adapter, *b = adapter + RANK * DIM;
    for (int i = 0; i < DIM; i++)
        for (int k = 0; k < DIM; k++) {
            merged[i][k] = 0.3 * number(l, i * DIM + k);
            for (int r = 0; r < RANK; r++)
                merged[i][k] += b[i * RANK + r] * a[r * DIM + k];
        }
}

static void apply(double w[DIM][DIM], const double *x, double *y)
{
    for (int i = 0; i < DIM; i++) {
        double sum = 0.0;
        for (int k = 0; k < DIM; k++)
            sum += w[i][k] * x[k];
        y[i] = tanh(sum);
    }
}

static void make_target(int s, double x[DIM], double y[DIM])
{
    double w[DIM][DIM], in[DIM];
    for (int i = 0; i < DIM; i++)
        in[i] = x[i] = number(30, s * DIM + i);
    for (int l = 0; l < N_LAYERS; l++) {
        for (int i = 0; i < DIM; i++)
            for (int k = 0; k < DIM; k++)
                w[i][k] = 0.3 * number(l, i * DIM + k) + 0.2 * number(10 + l, i) * number(20 + l, k);
        apply(w, in, y);
        memcpy(in, y, sizeof in);
    }
}

/* Adds the gradients of one sample, through the gradient of the merged matrix. */
static double lora_sample(int s, double w[N_LAYERS][DIM][DIM], adam_t *adam)
{
    double x[N_LAYERS + 1][DIM], target[DIM], dx[DIM], loss = 0.0;
    make_target(s, x[0], target);
    for (int l = 0; l < N_LAYERS; l++)
        apply(w[l], x[l], x[l + 1]);
    for (int i = 0; i < DIM; i++) {
        loss += (x[N_LAYERS][i] - target[i]) * (x[N_LAYERS][i] - target[i]) / N_SAMPLES;
        dx[i] = 2.0 * (x[N_LAYERS][i] - target[i]) / N_SAMPLES;
    }
    for (int l = N_LAYERS - 1; l >= 0; l--) {
        const double *a = adam->w + l * N_ADAPTER, *b = a + RANK * DIM;
        double *ga = adam->g + l * N_ADAPTER, *gb = ga + RANK * DIM, next[DIM] = {0};
        for (int i = 0; i < DIM; i++)
            for (int k = 0; k < DIM; k++) {
                const double dz = dx[i] * (1 - x[l + 1][i] * x[l + 1][i]), dw = dz * x[l][k];
                next[k] += w[l][i][k] * dz;
                for (int r = 0; r < RANK; r++) {
                    ga[r * DIM + k] += b[i * RANK + r] * dw;
                    gb[i * RANK + r] += dw * a[r * DIM + k];
                }
            }
        memcpy(dx, next, sizeof dx);
    }
    return loss;
}

/* Sets losses[step - 1]. */
static void lora_reference(double losses[N_STEPS])
{
    static double w[N_LAYERS][DIM][DIM];
    adam_t adam = adam_create(N_LAYERS * N_ADAPTER);
    for (int l = 0; l < N_LAYERS; l++)
        for (int i = 0; i < RANK * DIM; i++)
            adam.w[l * N_ADAPTER + i] = 0.3 * number(40 + l, i);
    for (int step = 0; step < N_STEPS; step++) {
        losses[step] = 0.0;
        for (int l = 0; l < N_LAYERS; l++)
            merge(l, adam.w + l * N_ADAPTER, w[l]);
        for (int s = 0; s < N_SAMPLES; s++)
            losses[step] += lora_sample(s, w, &adam);
        adam_step(&adam, 0.01);
    }
    adam_destroy(&adam);
}

/* ---- recurrence.c ---- */

enum {
    STATE = 8,
    N_TIMES = 6,
    N_SERIES = 40,
    N_RNN_STEPS = 150,
    W = 0,
    U = STATE * STATE,
    B = U + STATE,
    OUT = B + STATE
};

/* One sample, through time and back: its share of the loss. */
static double rnn_sample(int s, adam_t *adam)
{
    const double *p = adam->w;
    double h[N_TIMES + 1][STATE] = {{0}}, dh[STATE], x[N_TIMES], error = 0.0;
    for (int t = 0; t < N_TIMES; t++) {
        x[t] = number(1, s * N_TIMES + t);
        error = 0.7 * error - 0.3 * x[t]; /* minus the target */
        for (int i = 0; i < STATE; i++) {
            double sum = p[B + i] + p[U + i] * x[t];
            for (int k = 0; k < STATE; k++)
                sum += p[W + i * STATE + k] * h[t][k];
            h[t + 1][i] = tanh(sum);
        }
    }
    for (int i = 0; i < STATE; i++)
        error += p[OUT + i] * h[N_TIMES][i];
    for (int i = 0; i < STATE; i++) {
        adam->g[OUT + i] += 2.0 * error / N_SERIES * h[N_TIMES][i];
        dh[i] = 2.0 * error / N_SERIES * p[OUT + i];
    }
    for (int t = N_TIMES - 1; t >= 0; t--) {
        double before[STATE] = {0};
        for (int i = 0; i < STATE; i++) {
            const double dz = dh[i] * (1.0 - h[t + 1][i] * h[t + 1][i]);
            adam->g[U + i] += dz * x[t];
            adam->g[B + i] += dz;
            for (int k = 0; k < STATE; k++) {
                adam->g[W + i * STATE + k] += dz * h[t][k];
                before[k] += dz * p[W + i * STATE + k];
            }
        }
        memcpy(dh, before, sizeof dh);
    }
    return error * error / N_SERIES;
}

/* From the library's initial values: tensor t has the key t. */
static void rnn_reference(double losses[N_RNN_STEPS])
{
    static const int begins[] = {W, U, B, OUT, OUT + STATE};
    adam_t adam = adam_create(OUT + STATE);
    for (int t = 0; t < 4; t++) {
        float initial[STATE * STATE];
        const int n = begins[t + 1] - begins[t];
        zero_shard_kernels_cpu()->fill_normal(initial, (size_t)n, 1, (uint64_t)t, 0, 0.3f, NULL);
        for (int i = 0; i < n; i++)
            adam.w[begins[t] + i] = (double)initial[i];
    }
    for (int step = 0; step < N_RNN_STEPS; step++) {
        losses[step] = 0.0;
        for (int s = 0; s < N_SERIES; s++)
            losses[step] += rnn_sample(s, &adam);
        adam_step(&adam, 0.01);
    }
    adam_destroy(&adam);
}

/* ---- what the examples print ---- */

/* fp32 against fp64: the printed losses have six decimals, so they are up to 5e-7 off, and 100 steps add up roundings
 * of 6e-8. Measured: 4.7e-7 at most. */
static void expect_losses(const char *out, const double *losses, const char *what)
{
    int step, n_bytes, n_lines = 0;
    double loss;
    for (const char *at = out; sscanf(at, "step %d loss %lf\n%n", &step, &loss, &n_bytes) == 2; at += n_bytes) {
        ck_assert_msg(fabs(loss - losses[step - 1]) <= 2e-6, "%s: step %d: loss %.6f, in fp64 %.6f", what, step, loss,
                      losses[step - 1]);
        n_lines++;
    }
    ck_assert_msg(n_lines == 6, "%s: %d lines:\n%s", what, n_lines, out);
}

static const struct {
    int n_ranks, stage;
} CASES[] = {{1, 3}, {2, 0}, {2, 3}, {3, 1}, {3, 2}};
#define N_CASES ((int)(sizeof CASES / sizeof CASES[0]))

START_TEST(adapters_on_a_frozen_base_learn_as_in_fp64)
{
    support_output_t output;
    double losses[N_STEPS];
    if (support_leaves_out(CASES[_i].n_ranks))
        return;
    lora_reference(losses);
    ck_assert_double_lt(losses[N_STEPS - 1], 0.01 * losses[0]);
    ck_assert_int_eq(
        support_mpirun(&output, LIMIT_S, CASES[_i].n_ranks, "%s/examples/lora %d", support_build(), CASES[_i].stage),
        0);
    expect_losses(output.out, losses, "lora");
    support_output_free(&output);
}
END_TEST

/* A unit for each time, and one unit in a loop. */
START_TEST(parameters_that_are_used_several_times_learn_as_in_fp64)
{
    double losses[N_RNN_STEPS];
    if (support_leaves_out(CASES[_i].n_ranks))
        return;
    rnn_reference(losses);
    ck_assert_double_lt(losses[N_RNN_STEPS - 1], 0.01 * losses[0]);
    for (int loop = 0; loop < 2; loop++) {
        support_output_t output;
        int exit_code = support_mpirun(&output, LIMIT_S, CASES[_i].n_ranks, "%s/examples/recurrence %d %s",
                                       support_build(), CASES[_i].stage, loop ? "loop" : "");
        ck_assert_msg(exit_code == 0, "%s", output.err);
        expect_losses(output.out, losses, loop ? "in a loop" : "a unit for each time");
        support_output_free(&output);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *suite = suite_create("examples");
    TCase *tests = tcase_create("examples");
    tcase_set_timeout(tests, 2 * LIMIT_S);
    tcase_add_loop_test(tests, adapters_on_a_frozen_base_learn_as_in_fp64, 0, N_CASES);
    tcase_add_loop_test(tests, parameters_that_are_used_several_times_learn_as_in_fp64, 0, N_CASES);
    suite_add_tcase(suite, tests);
    return suite;
}

int main(void)
{
    return support_main(suite());
}
