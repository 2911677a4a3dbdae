/* model_fixture.h - what the tests of the model kernels share: the kernels of every instruction set in turn, arrays of
 * any dtype with guards around them, exact fp64 copies, error measures, central differences.
 *
 * Casts here are written with double arithmetic and frexp, independently of the kernels' bit operations. Each test runs
 * once per instruction set (Check's loop index) and returns at once if the machine lacks it.
 */
#ifndef ZERO_TEST_MODEL_FIXTURE_H
#define ZERO_TEST_MODEL_FIXTURE_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/support.h"
#include "train/kernels/kernels_cpu.h"

static const char *const fixture_isas[] = {"scalar", "avx2", "avx512"};
#define FIXTURE_N_ISAS 3

static const zero_dtype_t fixture_dtypes[] = {ZERO_FP32, ZERO_BF16, ZERO_FP16};
#define FIXTURE_N_DTYPES 3

/* Half a unit in the last place, relative: how far one rounding to the dtype can be off. */
static inline double fixture_unit(zero_dtype_t dtype)
{
    return dtype == ZERO_FP32 ? 0x1p-24 : dtype == ZERO_BF16 ? 0x1p-8 : 0x1p-11;
}

/* ---- Kernels with a workspace of exactly the promised size ---- */

#define FIXTURE_GUARD 64 /* bytes behind the workspace, elements around arrays */

typedef struct fixture {
    const zero_model_kernels_t *kernels; /* NULL: not on this machine */
    zero_model_context_t ctx;
    unsigned char *workspace; /* owned */
} fixture_t;

static inline bool fixture_open(fixture_t *f, int isa, const zero_model_limits_t *limits)
{
    *f = (fixture_t){.kernels = zero_model_kernels_cpu_named(fixture_isas[isa])};
    if (f->kernels == NULL)
        return false;
    size_t n_bytes = f->kernels->workspace_bytes(limits);
    ck_assert_int_eq(posix_memalign((void **)&f->workspace, 256, n_bytes + FIXTURE_GUARD), 0);
    memset(f->workspace, 0xff, n_bytes + FIXTURE_GUARD); /* NaN wherever it is read before it is written */
    ck_assert_int_eq(f->kernels->context_create(&f->ctx, NULL, f->workspace, limits), ZERO_OK);
    ck_assert_uint_eq(f->ctx.workspace_bytes, n_bytes);
    return true;
}

static inline void fixture_close(fixture_t *f)
{
    for (size_t i = 0; i < FIXTURE_GUARD; ++i)
        ck_assert_msg(f->workspace[f->ctx.workspace_bytes + i] == 0xff, "written behind the workspace");
    f->kernels->context_destroy(&f->ctx);
    free(f->workspace);
}

/* ---- Arrays ---- */

typedef struct array {
    zero_dtype_t dtype;
    size_t n;
    unsigned char *block; /* owned: guard, data, guard */
    void *data;           /* element-aligned only */
    double *values;       /* owned: what data held when it was filled, exactly */
} array_t;

static inline double fixture_round(double x, zero_dtype_t dtype)
{
    if (x == 0.0 || !isfinite(x))
        return x;
    int exponent, bits = dtype == ZERO_FP32 ? 24 : dtype == ZERO_BF16 ? 8 : 11;
    int least = dtype == ZERO_FP16 ? -13 : -125; /* of normal numbers, as frexp counts */
    double mantissa = frexp(x, &exponent);
    int scale = bits - (exponent < least ? least - exponent : 0);
    return ldexp(nearbyint(ldexp(mantissa, scale)), exponent - scale);
}

static inline void array_set(array_t *a, size_t i, double value)
{
    double rounded = fixture_round(value, a->dtype);
    float x = (float)rounded;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    a->values[i] = rounded;
    if (a->dtype == ZERO_FP32) {
        ((float *)a->data)[i] = x;
    } else if (a->dtype == ZERO_BF16) {
        ((uint16_t *)a->data)[i] = (uint16_t)(bits >> 16);
    } else {
        int exponent;
        double mantissa = frexp(fabs(rounded), &exponent); /* in [0.5, 1) */
        unsigned half = exponent < -13 ? (unsigned)ldexp(mantissa, exponent + 24)
                                       : (unsigned)(exponent + 14) * 1024 + (unsigned)(ldexp(mantissa, 11) - 1024.0);
        ((uint16_t *)a->data)[i] = (uint16_t)((rounded < 0.0 ? 0x8000u : 0u) | (rounded == 0.0 ? 0u : half));
    }
}

static inline double array_get(const array_t *a, size_t i)
{
    if (a->dtype == ZERO_FP32)
        return (double)((const float *)a->data)[i];
    unsigned half = ((const uint16_t *)a->data)[i];
    int exponent_bits = a->dtype == ZERO_BF16 ? 8 : 5, mantissa_bits = 15 - exponent_bits;
    int exponent = (int)(half >> mantissa_bits) & ((1 << exponent_bits) - 1);
    double mantissa = (double)(half & ((1u << mantissa_bits) - 1u));
    double sign = half & 0x8000u ? -1.0 : 1.0;
    int bias = (1 << (exponent_bits - 1)) - 1;
    if (exponent == (1 << exponent_bits) - 1)
        return mantissa != 0.0 ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0)
        return sign * ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * ldexp(mantissa + (double)(1u << mantissa_bits), exponent - bias - mantissa_bits);
}

/* All bits set is NaN in every dtype: what is not written, or is added to, is seen. */
static inline array_t array_poison(size_t n, zero_dtype_t dtype)
{
    array_t a = {.dtype = dtype, .n = n};
    size_t n_bytes = zero_dtype_size(dtype) * (n + 2 * FIXTURE_GUARD + 1);
    a.block = malloc(n_bytes);
    a.values = calloc(n, sizeof *a.values);
    ck_assert(a.block != NULL && a.values != NULL);
    memset(a.block, 0xff, n_bytes);
    a.data = a.block + zero_dtype_size(dtype) * (FIXTURE_GUARD + 1); /* off every vector's alignment */
    return a;
}

static inline array_t array_normal(size_t n, zero_dtype_t dtype, double mean, double std, uint64_t seed)
{
    array_t a = array_poison(n, dtype);
    for (size_t i = 0; i < n; ++i)
        array_set(&a, i, mean + std * support_normal(&seed));
    return a;
}

static inline array_t array_copy(const array_t *from)
{
    array_t a = array_poison(from->n, from->dtype);
    memcpy(a.data, from->data, from->n * zero_dtype_size(from->dtype));
    memcpy(a.values, from->values, from->n * sizeof *a.values);
    return a;
}

static inline void array_free(array_t *a)
{
    if (a->block == NULL)
        return;
    size_t size = zero_dtype_size(a->dtype), before = size * (FIXTURE_GUARD + 1);
    for (size_t i = 0; i < before; ++i)
        ck_assert_msg(a->block[i] == 0xff, "written before an array");
    for (size_t i = 0; i < size * FIXTURE_GUARD; ++i)
        ck_assert_msg(a->block[before + size * a->n + i] == 0xff, "written behind an array");
    free(a->block);
    free(a->values);
    *a = (array_t){0};
}

static inline zero_weight_t array_weight(const array_t *a)
{
    return (zero_weight_t){.data = a->data, .dtype = a->dtype};
}

static inline zero_grad_t array_grad(const array_t *a, bool accumulate)
{
    return (zero_grad_t){a->data, a->dtype, accumulate};
}

/* A gradient to be written: NaN if it is overwritten, numbers if it is added to. */
static inline array_t array_grad_target(size_t n, zero_dtype_t dtype, bool accumulate, uint64_t seed)
{
    return accumulate ? array_normal(n, dtype, 0.0, 1.0, seed) : array_poison(n, dtype);
}

/* ---- Error ---- */

/* |a - want| / |want| in the Euclidean norm; NaN, which fails every bound, if an element is NaN. The old `values` of a
 * gradient that was added to are part of want. */
static inline double array_error(const array_t *a, const double *want)
{
    double difference = 0.0, norm = 0.0;
    for (size_t i = 0; i < a->n; ++i) {
        double d = array_get(a, i) - want[i];
        difference += d * d;
        norm += want[i] * want[i];
    }
    return norm == 0.0 ? sqrt(difference) : sqrt(difference / norm);
}

static inline void array_expect(const array_t *a, const double *want, double bound, const char *what)
{
    double error = array_error(a, want);
    ck_assert_msg(error <= bound, "%s: relative error %.3g, bound %.3g", what, error, bound);
}

static inline void array_expect_same_bits(const array_t *a, const array_t *b, const char *what)
{
    size_t n_bytes = a->n * zero_dtype_size(a->dtype);
    ck_assert_msg(n_bytes == 0 || memcmp(a->data, b->data, n_bytes) == 0, "%s: bits differ", what);
}

static inline double *fixture_doubles(size_t n)
{
    double *x = calloc(n, sizeof *x);
    ck_assert(x != NULL);
    return x;
}

/* ---- Central differences of an fp64 function ---- */

typedef double (*fixture_fn)(void *arg);

/* d f / d *x. The step balances truncation h^2 against cancellation 1e-16 / h: about 1e-10 off. */
static inline double fixture_slope(fixture_fn f, void *arg, double *x)
{
    const double step = 1e-5;
    double kept = *x;
    *x = kept + step;
    double above = f(arg);
    *x = kept - step;
    double below = f(arg);
    *x = kept;
    return (above - below) / (2.0 * step);
}

static inline double *fixture_slopes(fixture_fn f, void *arg, double *x, size_t n)
{
    double *slopes = fixture_doubles(n);
    for (size_t i = 0; i < n; ++i)
        slopes[i] = fixture_slope(f, arg, &x[i]);
    return slopes;
}

static inline int fixture_main(const char *name, void (*add_tests)(TCase *))
{
    Suite *suite = suite_create(name);
    TCase *tests = tcase_create(name);
    tcase_set_timeout(tests, 120);
    add_tests(tests);
    suite_add_tcase(suite, tests);
    return support_main(suite);
}

#endif
