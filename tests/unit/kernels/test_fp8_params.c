/* test_fp8_params.c - parameters in fp8 (kernels/fp8.c): scales and bytes are those of the format's definition
 * (tests/support/fp64/fp8_reference.h), in every build, and do not depend on how matrices are cut into shards. */
#include <math.h>
#include <omp.h>
#include <stdio.h>

#include "tests/support/elements.h"
#include "tests/support/fp64/fp8_reference.h"
#include "tests/support/shard_support.h"

#define MARGIN 8 /* bytes around the matrices that must stay as they are */
#define UNTOUCHED 0xa5
#define MAX_RANKS 5

/* Matrices one after another, cut into shards of one size. */
typedef struct matrices {
    uint64_t begins[8]; /* and where the last one ends */
    int n;
    uint16_t *param;
} matrices_t;

static uint64_t n_elems_of(const matrices_t *m)
{
    return m->begins[m->n];
}

/* One of large numbers, one of small ones, zeros, one of every bit pattern, one with an infinity, one element. */
static matrices_t make_matrices(uint64_t *random)
{
    static const uint64_t sizes[] = {70001, 333, 64, 65536, 1000, 1};
    matrices_t m = {.n = 6};
    for (int i = 0; i < m.n; i++)
        m.begins[i + 1] = m.begins[i] + sizes[i];
    m.param = shard_alloc(n_elems_of(&m) * sizeof *m.param);
    for (uint64_t e = 0; e < n_elems_of(&m); e++) {
        float x = e < m.begins[1]   ? shard_ordinary_float(random, -20, 12)
                  : e < m.begins[2] ? shard_ordinary_float(random, -126, -115)
                  : e < m.begins[3] ? 0.0f
                  : e < m.begins[4] ? shard_any_float(random)
                                    : shard_ordinary_float(random, -8, 8);
        m.param[e] = zero_bf16_of_float(x);
    }
    m.param[m.begins[4] + 7] = zero_bf16_of_float(INFINITY);
    return m;
}

/* Writes what rank `rank` holds of the matrices, and returns how many parts. */
static size_t cut(const matrices_t *m, int rank, int n_ranks, zero_fp8_segment_t *segments)
{
    uint64_t shard = (n_elems_of(m) + (uint64_t)n_ranks - 1) / (uint64_t)n_ranks;
    uint64_t from = (uint64_t)rank * shard, to = from + shard;
    size_t n = 0;
    for (int i = 0; i < m->n; i++) {
        uint64_t begin = m->begins[i] > from ? m->begins[i] : from;
        uint64_t end = m->begins[i + 1] < to ? m->begins[i + 1] : to;
        if (begin < end)
            segments[n++] = (zero_fp8_segment_t){begin, begin + MARGIN, end - begin, (uint32_t)i};
    }
    return n;
}

/* Casts all shards as n_ranks ranks would. */
static void cast_all(const zero_shard_kernels_t *kernels, const matrices_t *m, int n_ranks, uint8_t *bytes,
                     zero_fp8_scales_t *scales)
{
    uint32_t absmaxes[MAX_RANKS * 8];
    zero_fp8_segment_t segments[8];
    zero_fp8_parts_t parts = {
        .segments = segments, .largest = 70001, .n_matrices = (uint32_t)m->n, .param = m->param, .bytes = bytes};
    memset(absmaxes, 0xff, sizeof absmaxes);
    for (int rank = 0; rank < n_ranks; rank++) {
        parts.n_segments = cut(m, rank, n_ranks, segments);
        ck_assert_int_eq(kernels->fp8_absmax(&parts, absmaxes + rank * m->n, NULL), ZERO_OK);
    }
    ck_assert_int_eq(kernels->fp8_scale(scales, absmaxes, n_ranks, (uint32_t)m->n, NULL), ZERO_OK);
    for (int rank = 0; rank < n_ranks; rank++) {
        parts.n_segments = cut(m, rank, n_ranks, segments);
        ck_assert_int_eq(kernels->fp8_cast(&parts, scales, NULL), ZERO_OK);
    }
}

static void check_matrix(const matrices_t *m, int i, const uint8_t *bytes, const zero_fp8_scales_t *scales)
{
    double absmax = 0.0;
    for (uint64_t e = m->begins[i]; e < m->begins[i + 1]; e++) {
        double magnitude = fabs((double)zero_float_of_bf16(m->param[e]));
        absmax = isnan(absmax) || isnan(magnitude) ? (double)NAN : fmax(absmax, magnitude);
    }
    double scale = fp8_scale(absmax);
    ck_assert_msg((double)scales->scale == scale, "matrix %d: scale %g, not %g", i, (double)scales->scale, scale);
    ck_assert_msg(isfinite(absmax) ? (double)scales->inverse == 1.0 / scale : isnan(scales->inverse), "inverse %g",
                  (double)scales->inverse);
    ck_assert(isnan(absmax) ? isnan(shard_float(scales->absmax)) : (double)shard_float(scales->absmax) == absmax);
    for (uint64_t e = m->begins[i]; e < m->begins[i + 1]; e++) {
        uint8_t want = fp8_byte((double)zero_float_of_bf16(m->param[e]) * scale);
        ck_assert_msg(bytes[e + MARGIN] == want, "matrix %d, element %llu (%a): %02x, not %02x", i,
                      (unsigned long long)(e - m->begins[i]), (double)zero_float_of_bf16(m->param[e]),
                      bytes[e + MARGIN], want);
    }
}

START_TEST(bytes_and_scales_are_those_of_the_definition_however_matrices_are_cut)
{
    const zero_shard_kernels_t *kernels = zero_shard_kernels_cpu_named(shard_build_names[_i]);
    uint64_t random = 7;
    if (!kernels) {
        printf("SKIP: no %s here\n", shard_build_names[_i]);
        return;
    }
    matrices_t m = make_matrices(&random);
    size_t n_bytes = n_elems_of(&m) + (size_t)2 * MARGIN;
    uint8_t *bytes = shard_alloc(n_bytes);
    for (int n_ranks = 1; n_ranks <= MAX_RANKS; n_ranks++) {
        zero_fp8_scales_t scales[8];
        omp_set_num_threads(shard_thread_counts[(size_t)n_ranks % SHARD_N_THREAD_COUNTS]);
        memset(bytes, UNTOUCHED, n_bytes);
        cast_all(kernels, &m, n_ranks, bytes, scales);
        for (int i = 0; i < m.n; i++)
            check_matrix(&m, i, bytes, &scales[i]);
        for (size_t i = 0; i < MARGIN; i++)
            ck_assert(bytes[i] == UNTOUCHED && bytes[n_bytes - 1 - i] == UNTOUCHED);
    }
    free(bytes);
    free(m.param);
}
END_TEST

/* All bf16 numbers at every scale that a matrix of them could have. */
START_TEST(every_number_has_the_byte_of_the_definition_at_every_scale)
{
    const zero_shard_kernels_t *kernels = zero_shard_kernels_cpu();
    enum { N = 1 << 16 };
    static uint16_t param[N];
    static uint8_t bytes[N];
    zero_fp8_segment_t segment = {.n_elems = N};
    zero_fp8_parts_t parts = {
        .segments = &segment, .n_segments = 1, .largest = N, .n_matrices = 1, .param = param, .bytes = bytes};
    for (int i = 0; i < N; i++)
        param[i] = (uint16_t)i;
    for (int exponent = -119; exponent <= 126; exponent += 7) {
        zero_fp8_scales_t scales = {.scale = ldexpf(1.0f, exponent)};
        ck_assert_int_eq(kernels->fp8_cast(&parts, &scales, NULL), ZERO_OK);
        for (int i = 0; i < N; i++) {
            double x = (double)zero_float_of_bf16(param[i]), product = x * (double)scales.scale;
            ck_assert_msg(bytes[i] == fp8_byte(product), "%a * 2^%d: %02x, not %02x", x, exponent, bytes[i],
                          fp8_byte(product));
        }
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("fp8_params");
    TCase *t = tcase_create("fp8_params");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, bytes_and_scales_are_those_of_the_definition_however_matrices_are_cut, 0, SHARD_N_BUILDS);
    tcase_add_test(t, every_number_has_the_byte_of_the_definition_at_every_scale);
    suite_add_tcase(s, t);
    return s;
}

int main(void)
{
    return support_main(suite());
}
