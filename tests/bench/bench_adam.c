/* bench_adam.c - measures bytes per second of AdamW on the CPU, and of a plain triad loop, a[i] = b[i] + s * c[i], in
 * one run with the same threads and arrays far larger than the caches.
 *
 * The bytes are those that the code names. Triad: 12 per element (two reads, one write; the CPU's read of a before the
 * write does not count). AdamW: 28 (parameter, master_lo, m and v are read and written, the gradient is read; fp32 has
 * no master_lo, but a parameter of twice the size). The best of several rounds counts, since other work on the machine
 * only slows a round down. The ratio printed is the lower one of fp32 and bf16.
 *
 *     bench_adam [MIB]        size of one fp32 array, 256 by default
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <omp.h>

#include "kernels/shard.h"
#include "kernels/step_math.h"
#include "tests/support/clock.h"

enum { N_ROUNDS = 9, TRIAD_BYTES = 12, ADAM_BYTES = 28 };

typedef struct arrays {
    size_t n_elems;
    float *master, *m, *v, *grad, *out; /* out: the triad's a */
    uint16_t *param;                    /* bf16: master is param and low */
    int16_t *low;
} arrays_t;

/* Writes each page first by the thread that uses it in the timed loops, so that it is in that thread's memory. */
static bool arrays_create(arrays_t *x, size_t n_elems)
{
    x->n_elems = n_elems;
    float **const floats[] = {&x->master, &x->m, &x->v, &x->grad, &x->out};
    for (size_t i = 0; i < 5; ++i) {
        float *p = *floats[i] = malloc(n_elems * sizeof(float));
        if (p == NULL)
            return false;
#pragma omp parallel for schedule(static)
        for (size_t e = 0; e < n_elems; ++e)
            p[e] = 1e-3f * (float)(1 + e % 1009);
    }
    x->param = malloc(n_elems * sizeof(uint16_t));
    x->low = malloc(n_elems * sizeof(int16_t));
    return x->param != NULL && x->low != NULL &&
           zero_shard_kernels_cpu()->split_master(x->param, x->low, ZERO_BF16, x->master, n_elems, NULL) == ZERO_OK;
}

static void arrays_destroy(arrays_t *x)
{
    free(x->master);
    free(x->m);
    free(x->v);
    free(x->grad);
    free(x->out);
    free(x->param);
    free(x->low);
}

static double triad_seconds(const arrays_t *x, float scale)
{
    float *restrict a = x->out;
    const float *restrict b = x->m, *restrict c = x->grad;
    double start = now_s();
#pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < x->n_elems; ++i)
        a[i] = b[i] + scale * c[i];
    return now_s() - start;
}

static double adam_seconds(const arrays_t *x, zero_dtype_t dtype, uint64_t step)
{
    zero_adam_scalars_t scalars;
    zero_adam_scalars_decide(&scalars, 1e-4f, 0.9f, 0.95f, 1e-8f, 1.0f, 1.0f, 1.0f, step);
    const zero_adam_segment_t segment = {.n_elems = x->n_elems, .decay = 0.1f};
    const zero_adam_t args = {.param_dtype = dtype,
                              .param = dtype == ZERO_FP32 ? (void *)x->master : (void *)x->param,
                              .master_lo = dtype == ZERO_FP32 ? NULL : x->low,
                              .m = x->m,
                              .v = x->v,
                              .grad = x->grad,
                              .segments = &segment,
                              .n_segments = 1,
                              .scalars = &scalars};
    double start = now_s();
    zero_shard_kernels_cpu()->adam(&args, NULL);
    return now_s() - start;
}

static void keep_least(double *least, double seconds)
{
    if (seconds < *least)
        *least = seconds;
}

int main(int argc, char **argv)
{
    long mib = argc > 1 ? strtol(argv[1], NULL, 10) : 256;
    if (argc > 2 || mib < 1 || mib > 1 << 20) {
        fprintf(stderr, "usage: bench_adam [MIB]\n");
        return 2;
    }
    arrays_t x = {0};
    if (!arrays_create(&x, (size_t)mib << 18)) {
        fprintf(stderr, "bench_adam: no memory for 6 arrays of %ld MiB\n", mib);
        arrays_destroy(&x);
        return 1;
    }
    double triad = 1e30, fp32 = 1e30, bf16 = 1e30;
    for (int round = 0; round < N_ROUNDS; ++round) {
        keep_least(&triad, triad_seconds(&x, 0.5f + (float)round));
        keep_least(&fp32, adam_seconds(&x, ZERO_FP32, (uint64_t)round + 1));
        keep_least(&bf16, adam_seconds(&x, ZERO_BF16, (uint64_t)round + 1));
    }
    const double n_giga = (double)x.n_elems * 1e-9;
    const double triad_rate = n_giga * TRIAD_BYTES / triad;
    const double fp32_rate = n_giga * ADAM_BYTES / fp32, bf16_rate = n_giga * ADAM_BYTES / bf16;
    printf("%d threads, %s, arrays of %ld MiB, GB/s: triad %.2f, adamw fp32 %.2f, adamw bf16 %.2f\n",
           omp_get_max_threads(), zero_shard_kernels_cpu()->name, mib, triad_rate, fp32_rate, bf16_rate);
    printf("adamw_vs_triad %.3f\n", (fp32_rate < bf16_rate ? fp32_rate : bf16_rate) / triad_rate);
    arrays_destroy(&x);
    return 0;
}
