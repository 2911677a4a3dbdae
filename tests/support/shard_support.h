/* shard_support.h - what the tests of the shard kernels share: the builds to compare, numbers of every kind, and
 * comparisons of bits that name the first difference.
 */
#ifndef ZERO_TEST_SHARD_SUPPORT_H
#define ZERO_TEST_SHARD_SUPPORT_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/shard.h"
#include "tests/support/support.h"

static const char *const shard_build_names[] = {"scalar", "avx2", "avx512"};
#define SHARD_N_BUILDS (sizeof shard_build_names / sizeof shard_build_names[0])

/* Thread counts that results must not depend on, more than most machines that run the tests have. */
static const int shard_thread_counts[] = {1, 2, 3, 7};
#define SHARD_N_THREAD_COUNTS (sizeof shard_thread_counts / sizeof shard_thread_counts[0])

static inline uint32_t shard_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float shard_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* A float of any kind: every bit pattern is possible, and a quarter are zeros, denormals, infinities, NaNs of both
 * signs and both sorts, the largest and smallest normals, ones. */
static inline float shard_any_float(uint64_t *random)
{
    static const uint32_t special[] = {0x00000000, 0x00000001, 0x007fffff, 0x00800000, 0x7f7fffff, 0x7f800000,
                                       0x7f800001, 0x7fc00000, 0x7fffffff, 0x7fc12345, 0x3f800000, 0x00012345};
    uint64_t draw = support_random(random);
    if (draw % 4 != 0)
        return shard_float((uint32_t)(draw >> 32));
    return shard_float(special[(draw >> 8) % (sizeof special / sizeof special[0])] | ((uint32_t)(draw >> 32) & 1u)
                                                                                         << 31);
}

/* An ordinary float: random sign, magnitude from 2^low to 2^high, all exponents equally likely. */
static inline float shard_ordinary_float(uint64_t *random, int low, int high)
{
    uint64_t draw = support_random(random);
    uint32_t exponent = (uint32_t)(127 + low) + (uint32_t)((draw >> 40) % (uint64_t)(high - low));
    return shard_float(((uint32_t)draw & 0x807fffffu) | exponent << 23);
}

static inline void *shard_alloc(size_t n_bytes)
{
    void *memory = malloc(n_bytes != 0 ? n_bytes : 1);
    ck_assert_ptr_nonnull(memory);
    return memory;
}

static inline void *shard_copy(const void *from, size_t n_bytes)
{
    return memcpy(shard_alloc(n_bytes), from, n_bytes);
}

/* Random bit patterns, which read as floats are numbers of every kind. */
/* Sums to fp32. */
static inline zero_status_t shard_sum(const zero_shard_kernels_t *kernels, float *out, const void *const *slices,
                                      int n_slices, zero_dtype_t dtype, size_t n_elems, bool accumulates,
                                      zero_norm_t *norm)
{
    const zero_sum_t sum = {.out = out,
                            .accumulates = accumulates,
                            .slices = slices,
                            .n_slices = n_slices,
                            .dtype = dtype,
                            .n_elems = n_elems,
                            .norm = norm};
    return kernels->sum_slices(&sum, NULL);
}

static inline float *shard_any_floats(uint64_t *random, size_t n_elems)
{
    float *x = shard_alloc(n_elems * sizeof *x);
    for (size_t i = 0; i < n_elems; ++i)
        x[i] = shard_any_float(random);
    return x;
}

/* `what` and `where` name what was compared. */
static inline void shard_assert_same_bits(const void *got, const void *want, size_t n_bytes, const char *what,
                                          const char *where)
{
    if (memcmp(got, want, n_bytes) == 0)
        return;
    size_t at = 0;
    while (((const unsigned char *)got)[at] == ((const unsigned char *)want)[at])
        ++at;
    ck_abort_msg("%s, %s: first difference in byte %zu of %zu", what, where, at, n_bytes);
}

/* What an optimizer updates. */
typedef struct shard {
    zero_dtype_t dtype;
    size_t n_elems; /* of every array, gaps included; param and low have room for fp32 */
    size_t state_bytes;
    void *param, *low;
    float *m, *v; /* state_bytes each; v: NULL without a second array */
    float *grad;
} shard_t;

static inline shard_t shard_clone(const shard_t *s)
{
    const size_t n_bytes = s->n_elems * sizeof(float);
    shard_t copy = *s;
    copy.param = shard_copy(s->param, n_bytes);
    copy.low = shard_copy(s->low, n_bytes);
    copy.m = shard_copy(s->m, s->state_bytes);
    copy.v = s->v ? shard_copy(s->v, s->state_bytes) : NULL;
    copy.grad = shard_copy(s->grad, n_bytes);
    return copy;
}

static inline void shard_free(shard_t *s)
{
    free(s->param);
    free(s->low);
    free(s->m);
    free(s->v);
    free(s->grad);
}

/* Compares what an update may change. Halves of param and low that no dtype uses are equal, too. */
static inline void shard_assert_same(const shard_t *got, const shard_t *want, const char *where)
{
    const size_t n_bytes = want->n_elems * sizeof(float);
    shard_assert_same_bits(got->param, want->param, n_bytes, "param", where);
    shard_assert_same_bits(got->low, want->low, n_bytes, "low", where);
    shard_assert_same_bits(got->m, want->m, want->state_bytes, "m", where);
    if (want->v)
        shard_assert_same_bits(got->v, want->v, want->state_bytes, "v", where);
}

#endif
