/* test_model_cuda.c - compares every CUDA model kernel on a GPU with a reference: random shapes, odd sizes, misaligned
 * addresses, every dtype, gradients added and overwritten, and the same bits when run again.
 *
 * The reference is fp64 (kernels_fp64.h) or the CPU table in fp32 (which tests/unit/kernels compares with fp64), on the
 * same values that the GPU reads. So a bound consists of what the GPU rounds: outputs once to their dtype,
 * probabilities and logits once in between. Outputs start as NaN and have guards around them, which shows elements that
 * are not written and writes out of bounds. Does not use Check, which machines with GPUs may lack.
 *
 *     test_model_cuda [small] [fp32] [SEED] [NAME]
 *
 * prints a line for each kernel, or for NAME alone; exits with 1 if one failed. small: fewer and smaller cases, for
 * compute-sanitizer. fp32: in this dtype alone.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "tests/gpu/programs/kernels_fp64.h"
#include "train/kernels/kernels.h"
#define PROGRAM "test_model_cuda"
#include "tests/gpu/support/need.h"

static int n_checks, n_failed;
static uint64_t seed = 1;
static bool small; /* a tenth of the work */
static int n_dtypes = 3;

/* ---- Random numbers ---- */

static uint64_t random_bits(void) /* SplitMix64 */
{
    uint64_t z = seed += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static size_t random_below(size_t n)
{
    return (size_t)(random_bits() % n);
}

/* Returns a sum of twelve uniform numbers, which is normal enough. */
static double random_normal(void)
{
    double sum = -6.0;
    for (int i = 0; i < 12; ++i)
        sum += (double)(random_bits() >> 11) * 0x1p-53;
    return sum;
}

/* ---- Arrays: values on the host, and the same on the device in any dtype ---- */

#define GUARD 64 /* elements on either side */

typedef struct array {
    zero_dtype_t dtype;
    size_t n, shift;      /* shift: elements from an aligned address to the data */
    float *values;        /* owned, host: what was uploaded; NaN for outputs */
    unsigned char *block; /* owned, device: guard, data, guard */
    void *data;
} array_t;

static double unit(zero_dtype_t dtype) /* the largest relative error of one rounding */
{
    return dtype == ZERO_FP32 ? 0x1p-24 : dtype == ZERO_BF16 ? 0x1p-8 : 0x1p-11;
}

static uint16_t bits16(float x, zero_dtype_t dtype)
{
    int exponent, bits = dtype == ZERO_BF16 ? 8 : 11, least = dtype == ZERO_BF16 ? -125 : -13;
    int bias = dtype == ZERO_BF16 ? 126 : 14;
    if (isnan(x))
        return 0xffff;
    double mantissa = frexp(fabs((double)x), &exponent); /* in [0.5, 1) */
    int scale = bits - (exponent < least ? least - exponent : 0);
    unsigned whole = (unsigned)nearbyint(ldexp(mantissa, scale));
    unsigned magnitude = whole; /* of a denormal; else exponent and mantissa, a carry moving into the exponent */
    if (exponent >= least)
        magnitude = ((unsigned)(exponent + bias) << (bits - 1)) + whole - (1u << (bits - 1));
    return (uint16_t)((x < 0.0f ? 0x8000u : 0u) | (x == 0.0f ? 0u : magnitude));
}

static float value16(uint16_t half, zero_dtype_t dtype)
{
    int mantissa_bits = dtype == ZERO_BF16 ? 7 : 10, bias = dtype == ZERO_BF16 ? 127 : 15;
    int exponent = (half & 0x7fff) >> mantissa_bits, top = dtype == ZERO_BF16 ? 255 : 31;
    int mantissa = half & ((1 << mantissa_bits) - 1);
    float sign = half & 0x8000 ? -1.0f : 1.0f;
    if (exponent == top)
        return mantissa ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * (float)ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * (float)ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

static float rounded(float x, zero_dtype_t dtype)
{
    return dtype == ZERO_FP32 ? x : value16(bits16(x, dtype), dtype);
}

static void upload(array_t *a)
{
    size_t size = zero_dtype_size(a->dtype);
    unsigned char *bytes = malloc(a->n * size + 1);
    NEED(bytes != NULL);
    for (size_t i = 0; i < a->n; ++i) {
        uint16_t half = a->dtype == ZERO_FP32 ? 0 : bits16(a->values[i], a->dtype);
        memcpy(bytes + i * size, a->dtype == ZERO_FP32 ? (void *)&a->values[i] : (void *)&half, size);
    }
    NEED(cudaMemset(a->block, 0xff, (a->n + a->shift + 2 * GUARD) * size) == cudaSuccess);
    NEED(cudaMemcpy(a->data, bytes, a->n * size, cudaMemcpyHostToDevice) == cudaSuccess);
    NEED(cudaDeviceSynchronize() ==
         cudaSuccess); /* a small copy may still be running, and the kernels use another stream */
    free(bytes);
}

/* Makes an array of normal values, or with std 0 an output, all NaN. */
static array_t array_make(size_t n, zero_dtype_t dtype, size_t shift, double mean, double std)
{
    array_t a = {.dtype = dtype, .n = n, .shift = shift, .values = malloc((n + 1) * sizeof(float))};
    size_t size = zero_dtype_size(dtype);
    NEED(a.values != NULL);
    NEED(cudaMalloc((void **)&a.block, (n + shift + 2 * GUARD) * size) == cudaSuccess);
    a.data = a.block + (GUARD + shift) * size;
    for (size_t i = 0; i < n; ++i)
        a.values[i] = std == 0.0 ? NAN : rounded((float)(mean + std * random_normal()), dtype);
    upload(&a);
    return a;
}

/* Makes a gradient to be written: NaN if it is overwritten, numbers if it is added to. */
static array_t array_grad_target(size_t n, zero_dtype_t dtype, size_t shift, bool accumulate)
{
    return array_make(n, dtype, shift, 0.0, accumulate ? 1.0 : 0.0);
}

static void array_free(array_t *a)
{
    free(a->values);
    cudaFree(a->block);
    *a = (array_t){0};
}

static zero_weight_t weight_of(const array_t *a)
{
    return (zero_weight_t){.data = a->data, .dtype = a->dtype};
}
static zero_grad_t grad_of(const array_t *a, bool accumulate)
{
    return (zero_grad_t){a->data, a->dtype, accumulate};
}
static zero_weight_t host_weight(const array_t *a)
{
    return (zero_weight_t){.data = a->values, .dtype = ZERO_FP32};
}

/* ---- What a check compares ---- */

/* An output of the GPU and its reference, which is owned and starts with the output's initial values. */
typedef struct output {
    const char *name;
    array_t *array;
    float *reference;
    double bound;
    unsigned char *first_run; /* owned: the whole block's bytes */
} output_t;

#define MAX_OUTPUTS 8

typedef struct check {
    char what[200];
    size_t n;
    output_t outputs[MAX_OUTPUTS];
} check_t;

static float *check_output(check_t *c, const char *name, array_t *array, double bound)
{
    output_t *o = &c->outputs[c->n++];
    *o = (output_t){name, array, malloc((array->n + 1) * sizeof(float)), bound, NULL};
    NEED(o->reference != NULL);
    memcpy(o->reference, array->values, array->n * sizeof(float));
    return o->reference;
}

static unsigned char *download(const array_t *a)
{
    size_t n_bytes = (a->n + a->shift + 2 * GUARD) * zero_dtype_size(a->dtype);
    unsigned char *bytes = malloc(n_bytes);
    NEED(bytes != NULL);
    NEED(cudaMemcpy(bytes, a->block, n_bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
    return bytes;
}

static void fail(const check_t *c, const output_t *o, const char *why, double got, double bound)
{
    ++n_failed;
    printf("FAILED %s: %s: %s (%.3g, bound %.3g)\n", c->what, o->name, why, got, bound);
}

static double relative_error(const output_t *o, const unsigned char *bytes)
{
    size_t size = zero_dtype_size(o->array->dtype);
    double difference = 0.0, norm = 0.0;
    for (size_t i = 0; i < o->array->n; ++i) {
        const unsigned char *at = bytes + (GUARD + o->array->shift + i) * size;
        float x;
        uint16_t half;
        if (size == 4) {
            memcpy(&x, at, 4);
        } else {
            memcpy(&half, at, 2);
            x = value16(half, o->array->dtype);
        }
        double d = (double)x - (double)o->reference[i];
        difference += d * d;
        norm += (double)o->reference[i] * (double)o->reference[i];
    }
    return norm == 0.0 ? sqrt(difference) : sqrt(difference / norm);
}

static bool guards_hold(const output_t *o, const unsigned char *bytes)
{
    size_t size = zero_dtype_size(o->array->dtype), before = (GUARD + o->array->shift) * size;
    size_t behind = before + o->array->n * size;
    for (size_t i = 0; i < before; ++i)
        if (bytes[i] != 0xff)
            return false;
    for (size_t i = 0; i < GUARD * size; ++i)
        if (bytes[behind + i] != 0xff)
            return false;
    return true;
}

/* Compares the outputs of a run. To be called after each of two runs; the second starts with the same outputs. */
static void check_run_done(check_t *c, zero_status_t status)
{
    if (status != ZERO_OK) {
        ++n_failed;
        printf("FAILED %s: %s\n", c->what, zero_status_text(status));
    }
    NEED(cudaDeviceSynchronize() == cudaSuccess);
    for (size_t i = 0; i < c->n; ++i) {
        output_t *o = &c->outputs[i];
        unsigned char *bytes = download(o->array);
        size_t n_bytes = (o->array->n + o->array->shift + 2 * GUARD) * zero_dtype_size(o->array->dtype);
        if (o->first_run == NULL) {
            o->first_run = bytes;
            upload(o->array);
            continue;
        }
        ++n_checks;
        double error = relative_error(o, bytes);
        if (!(error <= o->bound))
            fail(c, o, "too far from the reference", error, o->bound);
        if (memcmp(bytes, o->first_run, n_bytes) != 0)
            fail(c, o, "other bits when run again", 0, 0);
        if (!guards_hold(o, bytes))
            fail(c, o, "written beside the array", 0, 0);
        free(bytes);
    }
}

static void check_free(check_t *c)
{
    for (size_t i = 0; i < c->n; ++i) {
        free(c->outputs[i].reference);
        free(c->outputs[i].first_run);
    }
}

/* ---- The two tables ---- */

typedef struct tables {
    const zero_model_kernels_t *cpu, *gpu;
    zero_model_context_t cpu_ctx, gpu_ctx;
    void *cpu_workspace, *gpu_workspace;
    cudaStream_t stream;
} tables_t;

static tables_t tables_open(zero_model_limits_t limits)
{
    tables_t t = {.cpu = zero_model_kernels_cpu(), .gpu = zero_model_kernels_cuda()};
    size_t gpu_bytes = t.gpu->workspace_bytes(&limits);
    NEED(cudaStreamCreateWithFlags(&t.stream, cudaStreamNonBlocking) == cudaSuccess);
    NEED(cudaMalloc(&t.gpu_workspace, gpu_bytes) == cudaSuccess);
    NEED(cudaMemset(t.gpu_workspace, 0xff, gpu_bytes) == cudaSuccess);
    NEED(t.gpu->context_create(&t.gpu_ctx, (zero_stream_t)t.stream, t.gpu_workspace, &limits) == ZERO_OK);
    limits.dtype = ZERO_FP32;
    t.cpu_workspace = aligned_alloc(256, (t.cpu->workspace_bytes(&limits) + 511) / 256 * 256);
    NEED(t.cpu_workspace != NULL);
    NEED(t.cpu->context_create(&t.cpu_ctx, NULL, t.cpu_workspace, &limits) == ZERO_OK);
    NEED(cudaDeviceSynchronize() == cudaSuccess);
    return t;
}

static void tables_close(tables_t *t)
{
    t->gpu->context_destroy(&t->gpu_ctx);
    t->cpu->context_destroy(&t->cpu_ctx);
    cudaFree(t->gpu_workspace);
    free(t->cpu_workspace);
    cudaStreamDestroy(t->stream);
}

/* Limits for a kernel that works on rows alone. */
static zero_model_limits_t limits_of_rows(size_t rows, size_t width, zero_dtype_t dtype)
{
    return (zero_model_limits_t){.n_rows = rows,
                                 .seq_len = 1,
                                 .max_linear = 1,
                                 .max_width = width,
                                 .n_heads = 1,
                                 .head_dim = 1,
                                 .vocab_size = 1,
                                 .dtype = dtype};
}

/* Limits for attention of s, over so many rows at most. */
static zero_model_limits_t limits_of_attention(attention_shape_t s, size_t rows, size_t seq_len, zero_dtype_t dtype)
{
    zero_model_limits_t limits = limits_of_rows(rows, 1, dtype);
    limits.seq_len = seq_len;
    limits.n_heads = s.n_heads, limits.n_kv_heads = s.n_kv_heads, limits.head_dim = s.head_dim;
    return limits;
}

/* Returns a size up to about `most`. Half of the sizes are multiples of 8, so that both paths of a kernel run. */
static size_t random_size(size_t most)
{
    size_t n = 1 + random_below(most);
    return random_below(2) ? n : (n + 7) / 8 * 8;
}

/* Bounds the error of fp32 sums of k products of random signs, with a margin for both sides. */
static double sum_bound(size_t k)
{
    return 8.0 * sqrt((double)k + 4.0) * 0x1p-24;
}

static double norm_of(const float *values, size_t n)
{
    double squares = 0.0;
    for (size_t i = 0; i < n; ++i)
        squares += (double)values[i] * (double)values[i];
    return sqrt(squares);
}

/* Widens the bound of `sums`, for which the GPU added rounded values and the CPU did not. Sums of n values of random
 * signs, each off by `relative`, are off by that fraction of the root of all squares, which exceeds that fraction of
 * the sums themselves if values cancel. */
static void allow_for_summands(check_t *c, const float *sums, double relative, const float *values, size_t n)
{
    output_t *o = c->outputs;
    while (o->reference != sums)
        ++o;
    double norm = norm_of(sums, o->array->n), of_values = norm_of(values, n);
    o->bound += relative * (of_values > norm && norm > 0.0 ? of_values / norm : 1.0);
}

static const zero_dtype_t dtypes[] = {ZERO_FP32, ZERO_BF16, ZERO_FP16};

/* ---- Linear ---- */

static zero_model_limits_t limits_of_linear(zero_dtype_t dtype, size_t rows, size_t n_in, size_t n_out)
{
    zero_model_limits_t limits = limits_of_rows(rows, n_in > n_out ? n_in : n_out, dtype);
    limits.max_linear = n_in * n_out;
    return limits;
}

static void check_linear(zero_dtype_t dtype, size_t rows, size_t n_in, size_t n_out, int flags)
{
    bool accumulate = flags & 1, with_bias = flags & 2, wide_grad = flags & 8;
    zero_linear_layout_t layout = flags & 4 ? ZERO_LINEAR_OUT_IN : ZERO_LINEAR_IN_OUT;
    zero_dtype_t grad_dtype = wide_grad ? ZERO_FP32 : dtype;
    size_t shift = flags & 16 ? 1 + random_below(7) : 0;
    tables_t t = tables_open(limits_of_linear(dtype, rows, n_in, n_out));
    check_t c = {.n = 0};
    snprintf(c.what, sizeof c.what, "linear %s %zux%zux%zu flags %d shift %zu", zero_dtype_name(dtype), rows, n_in,
             n_out, flags, shift);
    array_t x = array_make(rows * n_in, dtype, shift, 0.0, 1.0), dy = array_make(rows * n_out, dtype, shift, 0.0, 1.0);
    array_t w = array_make(n_in * n_out, dtype, shift, 0.0, 0.2), b = array_make(n_out, dtype, shift, 0.0, 1.0);
    const bool adds = accumulate && !with_bias;
    array_t y = array_grad_target(rows * n_out, dtype, shift, adds);
    array_t dx = array_grad_target(rows * n_in, dtype, shift, accumulate);
    array_t dw = array_grad_target(n_in * n_out, grad_dtype, shift, accumulate);
    array_t db = array_grad_target(n_out, grad_dtype, shift, accumulate);
    float *ry = check_output(&c, "y", &y, sum_bound(n_in) + unit(dtype));
    float *rdx = check_output(&c, "dx", &dx, sum_bound(n_out) + unit(dtype));
    float *rdw = check_output(&c, "dweight", &dw, sum_bound(rows) + unit(grad_dtype));
    float *rdb = with_bias ? check_output(&c, "dbias", &db, sum_bound(rows) + unit(grad_dtype)) : NULL;
    zero_weight_t none = {.dtype = dtype};
    NEED(t.cpu->linear(&t.cpu_ctx, ry, adds, x.values, host_weight(&w), layout, with_bias ? host_weight(&b) : none,
                       rows, n_in, n_out) == ZERO_OK);
    NEED(t.cpu->linear_backward_input(&t.cpu_ctx, rdx, accumulate, dy.values, host_weight(&w), layout, rows, n_in,
                                      n_out) == ZERO_OK);
    NEED(t.cpu->linear_backward_weight(&t.cpu_ctx, (zero_grad_t){rdw, ZERO_FP32, accumulate}, layout,
                                       (zero_grad_t){rdb, ZERO_FP32, accumulate}, x.values, dy.values, rows, n_in,
                                       n_out) == ZERO_OK);
    for (int run = 0; run < 2; ++run) {
        zero_status_t status = t.gpu->linear(&t.gpu_ctx, y.data, adds, x.data, weight_of(&w), layout,
                                             with_bias ? weight_of(&b) : none, rows, n_in, n_out);
        if (status == ZERO_OK)
            status = t.gpu->linear_backward_input(&t.gpu_ctx, dx.data, accumulate, dy.data, weight_of(&w), layout, rows,
                                                  n_in, n_out);
        zero_grad_t dbias = with_bias ? grad_of(&db, accumulate) : (zero_grad_t){NULL, dtype, false};
        if (status == ZERO_OK)
            status = t.gpu->linear_backward_weight(&t.gpu_ctx, grad_of(&dw, accumulate), layout, dbias, x.data, dy.data,
                                                   rows, n_in, n_out);
        check_run_done(&c, status);
    }
    check_free(&c);
    array_free(&x), array_free(&dy), array_free(&w), array_free(&b);
    array_free(&y), array_free(&dx), array_free(&dw), array_free(&db);
    tables_close(&t);
}

/* What adapters multiply: columns of wider matrices. flags: both transpositions, accumulation, fp32 results, and rows
 * that begin at multiples of 8 elements. */
static void check_product(zero_dtype_t dtype, size_t m, size_t n, size_t k, int flags)
{
    const bool transpose_a = flags & 1, transpose_b = flags & 2, accumulate = flags & 4;
    const zero_dtype_t c_dtype = flags & 8 ? ZERO_FP32 : dtype;
    const size_t unit_of = flags & 16 ? 8 : 1, most = flags & 16 ? 2 : 9;
    const size_t lda = (transpose_a ? m : k) + unit_of * random_below(most);
    const size_t ldb = (transpose_b ? k : n) + unit_of * random_below(most), ldc = n + unit_of * random_below(most);
    tables_t t = tables_open(limits_of_linear(dtype, m > k ? m : k, n > k ? n : k, m > n ? m : n));
    check_t c = {.n = 0};
    snprintf(c.what, sizeof c.what, "product %s %zux%zux%zu flags %d", zero_dtype_name(dtype), m, n, k, flags);
    array_t a = array_make((transpose_a ? k : m) * lda, dtype, 0, 0.0, 1.0);
    array_t b = array_make((transpose_b ? n : k) * ldb, dtype, 0, 0.0, 1.0);
    array_t y = array_grad_target(m * ldc, c_dtype, 0, true);
    float *ry = check_output(&c, "c", &y, sum_bound(k) + unit(c_dtype));
    zero_product_t product = {.transpose_a = transpose_a,
                              .transpose_b = transpose_b,
                              .m = m,
                              .n = n,
                              .k = k,
                              .a = {a.values, ZERO_FP32},
                              .lda = lda,
                              .b = {b.values, ZERO_FP32},
                              .ldb = ldb,
                              .c = {ry, ZERO_FP32, accumulate},
                              .ldc = ldc,
                              .scale = 0.75f};
    NEED(t.cpu->product(&t.cpu_ctx, &product) == ZERO_OK);
    product.a = weight_of(&a);
    product.b = weight_of(&b);
    product.c = grad_of(&y, accumulate);
    for (int run = 0; run < 2; ++run)
        check_run_done(&c, t.gpu->product(&t.gpu_ctx, &product));
    check_free(&c);
    array_free(&a), array_free(&b), array_free(&y);
    tables_close(&t);
}

static void test_product(void)
{
    static const size_t ranks[] = {1, 3, 8, 16, 48, 112}, low[] = {8, 16, 24, 32, 40, 48};
    for (int i = 0; i < (small ? 24 : 96); ++i) /* few k */
        check_product(ZERO_BF16, random_size(700), 8 * random_size(200), low[i % 6],
                      16 | (random_below(2) ? 2 : 0) | (random_below(3) ? 0 : 4));
    for (int i = 0; i < 60; ++i) {
        const size_t rank = ranks[random_below(6)], wide = random_size(600), rows = random_size(700);
        const zero_dtype_t dtype = dtypes[i % 3];
        check_product(dtype, rows, rank, wide, i % 16);
        check_product(dtype, rows, wide, rank, i % 16);
        check_product(dtype, wide, rank, rows, i % 16);
    }
}

/* Returns whether the rows of x8 are those that fp8_cast writes. */
static bool is_cast_of(tables_t *t, const zero_fp8_t *x8, const array_t *x, size_t n_rows, size_t n_columns)
{
    unsigned char *bytes[2] = {malloc(x->n), malloc(x->n)};
    zero_fp8_scales_t scales[2];
    zero_fp8_t other = *x8;
    NEED(bytes[0] != NULL && bytes[1] != NULL);
    NEED(cudaMalloc((void **)&other.rows, x->n) == cudaSuccess);
    NEED(cudaMalloc((void **)&other.scales, sizeof *other.scales) == cudaSuccess);
    NEED(t->gpu->fp8_cast(&t->gpu_ctx, &other, x->data, false, n_rows, n_columns) == ZERO_OK);
    NEED(cudaDeviceSynchronize() == cudaSuccess);
    const zero_fp8_t *both[2] = {x8, &other};
    for (int i = 0; i < 2; ++i) {
        NEED(cudaMemcpy(bytes[i], both[i]->rows, x->n, cudaMemcpyDeviceToHost) == cudaSuccess);
        NEED(cudaMemcpy(&scales[i], both[i]->scales, sizeof scales[i], cudaMemcpyDeviceToHost) == cudaSuccess);
    }
    const bool same = memcmp(bytes[0], bytes[1], x->n) == 0 && scales[0].absmax == scales[1].absmax &&
                      scales[0].scale == scales[1].scale && scales[0].inverse == scales[1].inverse;
    cudaFree(other.rows), cudaFree(other.scales);
    free(bytes[0]), free(bytes[1]);
    return same;
}

/* What adapters take from a wide activation. flags: gradients of B; they are added, and fp32; B is transposed (then
 * there is one part, and no gradient); x is cast, too; parts begin and end at multiples of 8. */
static void check_narrow(zero_dtype_t dtype, size_t rows, size_t columns, size_t rank, int flags)
{
    const bool accumulate = flags & 2, transposed = flags & 8, casts = flags & 16 && dtype == ZERO_BF16;
    const bool has_u = flags & 1 && !transposed;
    const zero_dtype_t grad_dtype = flags & 4 ? ZERO_FP32 : dtype;
    const size_t unit_of = casts ? 16 : flags & 32 ? 8 : 1; /* of columns */
    columns = (columns + unit_of - 1) / unit_of * unit_of;
    const int most_parts = columns / unit_of < ZERO_MAX_NARROW ? (int)(columns / unit_of) : ZERO_MAX_NARROW;
    const int n_parts = transposed ? 1 : 1 + (int)random_below((size_t)most_parts);
    rows = casts ? (rows + 15) / 16 * 16 : rows;
    zero_model_limits_t limits = limits_of_linear(dtype, rows, columns, columns);
    limits.narrow_width = (size_t)n_parts * rank;
    limits.fp8 = casts;
    tables_t t = tables_open(limits);
    check_t c = {.n = 0};
    snprintf(c.what, sizeof c.what, "narrow_product %s %zux%zu rank %zu, %d parts, flags %d", zero_dtype_name(dtype),
             rows, columns, rank, n_parts, flags);
    array_t x = array_make(rows * columns, dtype, 0, 0.0, 1.0);
    array_t u = array_make(rows * rank * (size_t)n_parts, dtype, 0, 0.0, 1.0);
    array_t out = array_grad_target(u.n, dtype, 0, false), b[ZERO_MAX_NARROW], db[ZERO_MAX_NARROW];
    zero_narrow_product_t p = {.n_rows = rows,
                               .n_columns = columns,
                               .rank = rank,
                               .x = x.values,
                               .n_parts = n_parts,
                               .transposed = transposed,
                               .scale = 0.75f,
                               .u = has_u ? u.values : NULL};
    float *rout = check_output(&c, "out", &out, sum_bound(columns) + unit(dtype));
    p.out = rout;
    zero_narrow_part_t of_gpu[ZERO_MAX_NARROW];
    for (size_t i = 0, first = 0; i < (size_t)n_parts; ++i) {
        const size_t n_left = (size_t)n_parts - i, most = (columns - first) / unit_of - (n_left - 1);
        const size_t units = transposed || random_below(2) == 0 ? most : 1 + random_below(most);
        const size_t width = units * unit_of; /* the last part may end before x does, and gaps may be between them */
        b[i] = array_make(width * rank, dtype, 0, 0.0, 0.2);
        db[i] = array_grad_target(width * rank, grad_dtype, random_below(3), accumulate);
        float *rdb = check_output(&c, "db", &db[i], sum_bound(rows) + unit(grad_dtype));
        p.parts[i] = (zero_narrow_part_t){first, width, host_weight(&b[i]), {rdb, ZERO_FP32, accumulate}};
        of_gpu[i] = (zero_narrow_part_t){first, width, weight_of(&b[i]), grad_of(&db[i], accumulate)};
        first += width;
        if (n_left > 1 && columns - first > (n_left - 1) * unit_of && random_below(4) == 0)
            first += unit_of;
        if (!has_u)
            --c.n, free(rdb);
    }
    NEED(t.cpu->narrow_product(&t.cpu_ctx, &p) == ZERO_OK);
    zero_fp8_t x8 = {.format = has_u ? ZERO_E5M2 : ZERO_E4M3};
    if (casts) {
        NEED(cudaMalloc((void **)&x8.rows, x.n) == cudaSuccess);
        NEED(cudaMalloc((void **)&x8.scales, sizeof *x8.scales) == cudaSuccess);
    }
    memcpy(p.parts, of_gpu, sizeof of_gpu);
    p.x = x.data, p.out = out.data, p.u = has_u ? u.data : NULL, p.x8 = casts ? &x8 : NULL;
    for (int run = 0; run < 2; ++run)
        check_run_done(&c, t.gpu->narrow_product(&t.gpu_ctx, &p));
    if (casts && !is_cast_of(&t, &x8, &x, rows, columns)) {
        ++n_failed;
        printf("FAILED %s: other bytes than fp8_cast's\n", c.what);
    }
    check_free(&c);
    for (int i = 0; i < n_parts; ++i)
        array_free(&b[i]), array_free(&db[i]);
    cudaFree(x8.rows), cudaFree(x8.scales);
    array_free(&x), array_free(&u), array_free(&out);
    tables_close(&t);
}

/* small: only what our own kernel computes, since racecheck fails in cuBLASLt's. */
static void test_narrow(void)
{
    static const size_t ranks[] = {8, 16, 32, 24, 48, 3, 16, 64};
    for (int i = 0; i < (small ? 32 : 256); ++i) {
        const bool is_long = i % 64 == 7 && !small; /* more rows than one launch takes */
        const size_t rows = is_long ? 16000 + random_below(2000) : random_size(700);
        const size_t columns = is_long ? 256 : 24 + random_size(i % 4 == 0 ? 5000 : 1100);
        const int flags = (int)random_below(32) | (i % 8 == 3 ? 0 : 32);
        if (small)
            check_narrow(ZERO_BF16, rows, columns, ranks[i % (i % 2 == 0 ? 5 : 3)],
                         i % 2 == 0 ? flags | 56 : (flags & ~8) | 33);
        else
            check_narrow(dtypes[i % 5 == 0 ? i / 5 % 3 : 1], rows, columns, ranks[random_below(8)], flags);
    }
    for (int i = 0; i < (small ? 0 : 16); ++i) { /* every rank, over two launches and three */
        check_narrow(ZERO_BF16, i % 2 == 0 ? 16385 : 32769, 64, ranks[i % 3],
                     33 | (i & 1 ? 2 : 0) | (i & 2 ? 4 : 0) | (i & 4 ? 16 : 0));
        check_narrow(ZERO_BF16, 300, 2100, ranks[i % 5], 56);
    }
}

/* A context in which algorithms for one size of products have been chosen, by random values. */
typedef struct chooser {
    tables_t tables;
    zero_linear_layout_t layout;
    size_t rows, n_in, n_out;
    array_t x, w, b, dy; /* what they were chosen by */
    array_t y, dx, dw;   /* the newest products */
} chooser_t;

/* Multiplies what `values` was given. */
static void chooser_run(chooser_t *c, const chooser_t *values)
{
    const zero_dtype_t dtype = c->y.dtype;
    NEED(c->tables.gpu->linear(&c->tables.gpu_ctx, c->y.data, false, values->x.data, weight_of(&values->w), c->layout,
                               weight_of(&values->b), c->rows, c->n_in, c->n_out) == ZERO_OK);
    NEED(c->tables.gpu->linear_backward_input(&c->tables.gpu_ctx, c->dx.data, false, values->dy.data,
                                              weight_of(&values->w), c->layout, c->rows, c->n_in, c->n_out) == ZERO_OK);
    NEED(c->tables.gpu->linear_backward_weight(&c->tables.gpu_ctx, grad_of(&c->dw, false), c->layout,
                                               (zero_grad_t){NULL, dtype, false}, values->x.data, values->dy.data,
                                               c->rows, c->n_in, c->n_out) == ZERO_OK);
    NEED(cudaDeviceSynchronize() == cudaSuccess);
}

static chooser_t chooser_open(zero_dtype_t dtype, zero_linear_layout_t layout, size_t rows, size_t n_in, size_t n_out)
{
    chooser_t c = {.tables = tables_open(limits_of_linear(dtype, rows, n_in, n_out)),
                   .layout = layout,
                   .rows = rows,
                   .n_in = n_in,
                   .n_out = n_out};
    c.x = array_make(rows * n_in, dtype, 0, 0.0, 1.0), c.w = array_make(n_in * n_out, dtype, 0, 0.0, 0.2);
    c.b = array_make(n_out, dtype, 0, 0.0, 1.0), c.dy = array_make(rows * n_out, dtype, 0, 0.0, 1.0);
    c.y = array_make(rows * n_out, dtype, 0, 0.0, 0.0), c.dx = array_make(rows * n_in, dtype, 0, 0.0, 0.0);
    c.dw = array_make(n_in * n_out, dtype, 0, 0.0, 0.0);
    chooser_run(&c, &c);
    return c;
}

static void chooser_close(chooser_t *c)
{
    array_free(&c->x), array_free(&c->w), array_free(&c->b), array_free(&c->dy);
    array_free(&c->y), array_free(&c->dx), array_free(&c->dw);
    tables_close(&c->tables);
}

static bool same_bytes(const array_t *a, const array_t *b)
{
    size_t n_bytes = a->n * zero_dtype_size(a->dtype);
    unsigned char *of_a = malloc(n_bytes), *of_b = malloc(n_bytes);
    NEED(of_a != NULL && of_b != NULL);
    NEED(cudaMemcpy(of_a, a->data, n_bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
    NEED(cudaMemcpy(of_b, b->data, n_bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
    bool same = memcmp(of_a, of_b, n_bytes) == 0;
    free(of_a), free(of_b);
    return same;
}

/* Products are the same in all contexts, whatever values and times each has chosen its algorithms by. Sums of many
 * products with few results are those for which cuBLASLt has algorithms that add in other orders. */
static void test_choice(void)
{
    static const size_t sizes[] = {64, 100, 128, 256, 259, 512, 768, 1024};
    for (int i = 0; i < (small ? 6 : 90); ++i) {
        size_t rows = 64 << random_below(6), n_in = sizes[random_below(8)], n_out = sizes[random_below(8)];
        zero_dtype_t dtype = dtypes[i % 3];
        zero_linear_layout_t layout = i % 2 ? ZERO_LINEAR_IN_OUT : ZERO_LINEAR_OUT_IN;
        chooser_t first = chooser_open(dtype, layout, rows, n_in, n_out);
        bool same = true;
        for (int other = 0; other < 4 && same; ++other) {
            chooser_t second = chooser_open(dtype, layout, rows, n_in, n_out);
            chooser_run(&first, &second);
            chooser_run(&second, &second);
            same = same_bytes(&first.y, &second.y) && same_bytes(&first.dx, &second.dx) &&
                   same_bytes(&first.dw, &second.dw);
            chooser_close(&second);
        }
        ++n_checks;
        n_failed += !same;
        if (!same)
            printf("FAILED choice: %s %zux%zux%zu, layout %d: other bits in another context\n", zero_dtype_name(dtype),
                   rows, n_in, n_out, (int)layout);
        chooser_close(&first);
    }
}

static void test_linear(void)
{
    for (int d = 0; d < n_dtypes; ++d) {
        check_linear(dtypes[d], 1, 1, 1, 2);
        check_linear(dtypes[d], 512, 768, 2304, 2);
        for (int i = 0; i < (small ? 8 : 48); ++i)
            check_linear(dtypes[d], random_size(400), random_size(300), random_size(500), i % 32);
    }
}

/* ---- LayerNorm ---- */

static void expect_same_bits(const check_t *c, const char *name, const array_t *a, const array_t *b)
{
    output_t o = {.name = name};
    unsigned char *first = download(a), *second = download(b);
    ++n_checks;
    if (memcmp(first, second, (a->n + a->shift + 2 * GUARD) * zero_dtype_size(a->dtype)) != 0)
        fail(c, &o, "other bits than forward's", 0, 0);
    free(first), free(second);
}

typedef struct layernorm_case {
    tables_t t;
    zero_dtype_t dtype;
    size_t rows, dim, n; /* n: of both */
    bool accumulate, with_addend, in_place;
    zero_weight_t none, gpu_bias, cpu_bias; /* biases are `none` in cases without one */
    array_t residual, addend, w, b, dy, dx, out, y, recomputed, mean, rstd, dw, db, dc;
    float *sum; /* owned: residual and addend, rounded as they are stored */
} layernorm_case_t;

static layernorm_case_t layernorm_open(zero_dtype_t dtype, size_t rows, size_t dim, int flags, size_t shift)
{
    zero_dtype_t grad_dtype = flags & 16 ? ZERO_FP32 : dtype;
    bool accumulate = flags & 1;
    size_t n = rows * dim;
    layernorm_case_t l = {.t = tables_open(limits_of_rows(rows, dim, dtype)),
                          .dtype = dtype,
                          .rows = rows,
                          .dim = dim,
                          .n = n,
                          .accumulate = accumulate,
                          .with_addend = flags & 2,
                          .in_place = flags & 8,
                          .none = {NULL, dtype},
                          .sum = malloc(n * sizeof(float))};
    NEED(l.sum != NULL);
    l.residual = array_make(n, dtype, shift, 0.5, 1.0), l.addend = array_make(n, dtype, shift, 0.0, 1.0);
    l.w = array_make(dim, dtype, shift, 1.0, 0.5), l.b = array_make(dim, dtype, shift, 0.0, 1.0);
    l.dy = array_make(n, dtype, shift, 0.0, 1.0), l.dx = array_make(n, dtype, shift, 0.0, 0.1);
    l.out = array_make(n, dtype, shift, 0.0, 0.0), l.y = array_make(n, dtype, shift, 0.0, 0.0);
    l.recomputed = array_make(n, dtype, shift, 0.0, 0.0);
    l.mean = array_make(rows, ZERO_FP32, 0, 0.0, 0.0), l.rstd = array_make(rows, ZERO_FP32, 0, 0.0, 0.0);
    l.dw = array_grad_target(dim, grad_dtype, shift, accumulate);
    l.db = array_grad_target(dim, grad_dtype, shift, accumulate);
    l.dc = array_grad_target(dim, grad_dtype, shift, accumulate);
    l.gpu_bias = flags & 4 ? weight_of(&l.b) : l.none;
    l.cpu_bias = flags & 4 ? host_weight(&l.b) : l.none;
    /* The sum is rounded when it is stored, and the statistics are of what is stored. */
    for (size_t i = 0; i < n; ++i)
        l.sum[i] = rounded(l.residual.values[i] + (l.with_addend ? l.addend.values[i] : 0.0f), dtype);
    if (l.in_place)
        memcpy(l.out.values, l.residual.values, n * sizeof(float)), upload(&l.out);
    return l;
}

static void layernorm_close(layernorm_case_t *l)
{
    array_t *arrays[] = {&l->residual, &l->addend,     &l->w,    &l->b,    &l->dy, &l->dx, &l->out,
                         &l->y,        &l->recomputed, &l->mean, &l->rstd, &l->dw, &l->db, &l->dc};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; ++i)
        array_free(arrays[i]);
    free(l->sum);
    tables_close(&l->t);
}

/* The references of forward, which backward reads too. */
typedef struct layernorm_references {
    float *y, *mean, *rstd;
} layernorm_references_t;

static layernorm_references_t check_layernorm_forward(layernorm_case_t *l, check_t *c)
{
    float *rout = check_output(c, "residual_out", &l->out, 0.0);
    layernorm_references_t r = {.y = check_output(c, "y", &l->y, 64 * 0x1p-24 + unit(l->dtype)),
                                .mean = check_output(c, "mean", &l->mean, 64 * 0x1p-24),
                                .rstd = check_output(c, "rstd", &l->rstd, 64 * 0x1p-24)};
    NEED(l->t.cpu->layernorm(&l->t.cpu_ctx, r.y, r.mean, r.rstd, rout, l->sum, NULL, host_weight(&l->w), l->cpu_bias,
                             1e-5f, l->rows, l->dim) == ZERO_OK);
    for (int run = 0; run < 2; ++run)
        check_run_done(c, l->t.gpu->layernorm(&l->t.gpu_ctx, l->y.data, l->mean.data, l->rstd.data, l->out.data,
                                              l->in_place ? l->out.data : l->residual.data,
                                              l->with_addend ? l->addend.data : NULL, weight_of(&l->w), l->gpu_bias,
                                              1e-5f, l->rows, l->dim));
    return r;
}

static void check_layernorm_backward(layernorm_case_t *l, check_t *c, layernorm_references_t forward)
{
    bool with_bias = l->gpu_bias.data != NULL;
    float *ry = check_output(c, "y", &l->recomputed, 64 * 0x1p-24 + unit(l->dtype));
    float *rdx = check_output(c, "dresidual", &l->dx, 256 * 0x1p-24 + unit(l->dtype));
    float *rdw = check_output(c, "dweight", &l->dw, 4 * sum_bound(l->rows) + unit(l->dw.dtype));
    float *rdb = with_bias ? check_output(c, "dbias", &l->db, sum_bound(l->rows) + unit(l->db.dtype)) : NULL;
    float *rdc = check_output(c, "dcolumns", &l->dc, unit(l->dc.dtype));
    memcpy(ry, forward.y, l->n * sizeof *ry);
    NEED(l->t.cpu->layernorm_backward(&l->t.cpu_ctx, rdx, (zero_grad_t){rdw, ZERO_FP32, l->accumulate},
                                      (zero_grad_t){rdb, ZERO_FP32, l->accumulate},
                                      (zero_grad_t){rdc, ZERO_FP32, l->accumulate}, NULL, l->dy.values, l->sum,
                                      forward.mean, forward.rstd, host_weight(&l->w), l->none, l->rows,
                                      l->dim) == ZERO_OK);
    allow_for_summands(c, rdc, 256 * 0x1p-24 + sum_bound(l->rows) + unit(l->dtype), rdx, l->n);
    zero_grad_t dbias = with_bias ? grad_of(&l->db, l->accumulate) : (zero_grad_t){NULL, l->dtype, false};
    for (int run = 0; run < 2; ++run)
        check_run_done(c, l->t.gpu->layernorm_backward(&l->t.gpu_ctx, l->dx.data, grad_of(&l->dw, l->accumulate), dbias,
                                                       grad_of(&l->dc, l->accumulate), l->recomputed.data, l->dy.data,
                                                       l->out.data, l->mean.data, l->rstd.data, weight_of(&l->w),
                                                       l->gpu_bias, l->rows, l->dim));
}

/* Expects the same bits of dresidual if y is not recomputed and no columns are summed. */
static void check_layernorm_backward_alone(layernorm_case_t *l, const check_t *c)
{
    zero_grad_t nowhere = {NULL, l->dtype, false};
    unsigned char *with = download(&l->dx);
    upload(&l->dx), upload(&l->dw);
    NEED(l->t.gpu->layernorm_backward(&l->t.gpu_ctx, l->dx.data, grad_of(&l->dw, l->accumulate), nowhere, nowhere, NULL,
                                      l->dy.data, l->out.data, l->mean.data, l->rstd.data, weight_of(&l->w), l->none,
                                      l->rows, l->dim) == ZERO_OK);
    NEED(cudaDeviceSynchronize() == cudaSuccess);
    unsigned char *without = download(&l->dx);
    ++n_checks;
    if (memcmp(with, without, l->n * zero_dtype_size(l->dtype)) != 0)
        fail(c, &c->outputs[1], "other bits without y and dcolumns", 0, 0);
    free(with), free(without);
}

static void check_layernorm(zero_dtype_t dtype, size_t rows, size_t dim, int flags)
{
    size_t shift = flags & 32 ? 1 + random_below(7) : 0;
    layernorm_case_t l = layernorm_open(dtype, rows, dim, flags, shift);
    check_t c = {.n = 0}, again = {.n = 0};
    snprintf(c.what, sizeof c.what, "layernorm %s %zux%zu flags %d shift %zu", zero_dtype_name(dtype), rows, dim, flags,
             shift);
    memcpy(again.what, c.what, sizeof again.what);
    layernorm_references_t forward = check_layernorm_forward(&l, &c);
    check_layernorm_backward(&l, &again, forward);
    expect_same_bits(&again, "y recomputed", &l.y, &l.recomputed);
    check_layernorm_backward_alone(&l, &again);
    check_free(&c), check_free(&again);
    layernorm_close(&l);
}

static void test_layernorm(void)
{
    static const size_t dims[] = {1, 5, 36, 256, 768, 1600, 2048, 4096, 5120, 8192};
    for (int d = 0; d < n_dtypes; ++d) {
        for (size_t i = 0; i < sizeof dims / sizeof dims[0]; ++i)
            check_layernorm(dtypes[d], 131, dims[i], (int)random_below(64));
        check_layernorm(dtypes[d], small ? 901 : 9001, 64, 7);
        for (int i = 0; i < (small ? 12 : 64); ++i)
            check_layernorm(dtypes[d], random_size(200), random_size(2500), i);
    }
}

/* ---- RMSNorm ---- */

/* A norm's weight to which the kernel adds an offset, and what it then is: owned. */
static zero_weight_t offset_weight(const array_t *weight, float offset, float **sum)
{
    zero_weight_t made = weight_of(weight);
    made.offset = offset;
    *sum = malloc((weight->n + 1) * sizeof(float));
    NEED(*sum != NULL);
    for (size_t i = 0; i < weight->n; ++i)
        (*sum)[i] = weight->values[i] + offset;
    return made;
}

static void check_rmsnorm(zero_dtype_t dtype, size_t rows, size_t dim, int flags)
{
    bool accumulate = flags & 1, with_addend = flags & 2, remake_y = flags & 4, in_place = flags & 8;
    zero_dtype_t grad_dtype = flags & 16 ? ZERO_FP32 : dtype;
    size_t n = rows * dim, shift = flags & 32 ? 1 + random_below(7) : 0;
    const float eps = 1e-5f;
    tables_t t = tables_open(limits_of_rows(rows, dim, dtype));
    check_t c = {.n = 0}, again = {.n = 0};
    snprintf(c.what, sizeof c.what, "rmsnorm %s %zux%zu flags %d shift %zu", zero_dtype_name(dtype), rows, dim, flags,
             shift);
    memcpy(again.what, c.what, sizeof again.what);
    array_t residual = array_make(n, dtype, shift, 0.5, 1.0), addend = array_make(n, dtype, shift, 0.0, 1.0);
    array_t w = array_make(dim, dtype, shift, 1.0, 0.5), dy = array_make(n, dtype, shift, 0.0, 1.0);
    array_t out = array_make(n, dtype, shift, 0.0, 0.0), y = array_make(n, dtype, shift, 0.0, 0.0);
    array_t recomputed = array_make(n, dtype, shift, 0.0, 0.0);
    array_t rstd = array_make(rows, ZERO_FP32, 0, 0.0, 0.0), dx = array_make(n, dtype, shift, 0.0, 0.1);
    array_t dw = array_grad_target(dim, grad_dtype, shift, accumulate);
    float *rw;
    const zero_weight_t weight = offset_weight(&w, flags & 64 ? 1.0f : 0.0f, &rw);

    /* The sum is rounded when it is stored, and rstd is of what is stored. */
    float *rout = check_output(&c, "residual_out", &out, 0.0);
    float *ry = check_output(&c, "y", &y, 64 * 0x1p-24 + unit(dtype));
    float *rrstd = check_output(&c, "rstd", &rstd, 64 * 0x1p-24);
    for (size_t i = 0; i < n; ++i)
        rout[i] = rounded(residual.values[i] + (with_addend ? addend.values[i] : 0.0f), dtype);
    if (in_place)
        memcpy(out.values, residual.values, n * sizeof(float)), upload(&out);
    rmsnorm_fp64(ry, rrstd, rout, rw, (double)eps, rows, dim);
    for (int run = 0; run < 2; ++run)
        check_run_done(&c, t.gpu->rmsnorm(&t.gpu_ctx, y.data, rstd.data, out.data, in_place ? out.data : residual.data,
                                          with_addend ? addend.data : NULL, weight, eps, rows, dim));

    double *sums = calloc(dim, sizeof *sums);
    NEED(sums != NULL);
    float *rrecomputed =
        remake_y ? check_output(&again, "y recomputed", &recomputed, 64 * 0x1p-24 + unit(dtype)) : NULL;
    float *rdx = check_output(&again, "dresidual", &dx, 0.0);
    output_t *dx_output = &again.outputs[again.n - 1];
    float *rdw = check_output(&again, "dweight", &dw, 4 * sum_bound(rows) + unit(grad_dtype));
    if (remake_y)
        memcpy(rrecomputed, ry, n * sizeof *ry);
    double condition = rmsnorm_backward_fp64(rdx, sums, dy.values, rout, rw, (double)eps, rows, dim);
    dx_output->bound = 64 * 0x1p-24 * condition + unit(dtype);
    for (size_t i = 0; i < dim; ++i)
        rdw[i] = (float)(sums[i] + (accumulate ? (double)rdw[i] : 0.0));
    for (int run = 0; run < 2; ++run)
        check_run_done(&again, t.gpu->rmsnorm_backward(&t.gpu_ctx, dx.data, grad_of(&dw, accumulate),
                                                       remake_y ? recomputed.data : NULL, dy.data, out.data, rstd.data,
                                                       weight, rows, dim));
    if (remake_y)
        expect_same_bits(&again, "y recomputed", &y, &recomputed);
    free(sums), free(rw);
    check_free(&c), check_free(&again);
    array_free(&residual), array_free(&addend), array_free(&w), array_free(&dy), array_free(&dx), array_free(&out);
    array_free(&y), array_free(&recomputed), array_free(&rstd), array_free(&dw);
    tables_close(&t);
}

static void test_rmsnorm(void)
{
    /* Rows of one warp with one and with three packs per lane, of several warps and of a block, from shared memory and
     * not; the last is the longest there may be. */
    static const size_t dims[] = {1, 5, 36, 256, 768, 2048, 4096, 5120, 8192, 16384};
    for (int d = 0; d < n_dtypes; ++d) {
        for (size_t i = 0; i < sizeof dims / sizeof dims[0]; ++i)
            for (int shifted = 0; shifted <= 32; shifted += 32)
                check_rmsnorm(dtypes[d], small || dims[i] > 1000 ? 37 : 331, dims[i],
                              (int)random_below(32) + shifted + (i % 2 ? 64 : 0));
        check_rmsnorm(dtypes[d], small ? 901 : 9001, 64, 7);
        for (int i = 0; i < (small ? 12 : 64); ++i)
            check_rmsnorm(dtypes[d], random_size(200), random_size(2500), i + (i % 3 ? 0 : 64));
    }
    if (!small)
        check_rmsnorm(ZERO_FP32, 4300, 4096, 6); /* the largest number of parts */
}

/* ---- RMSNorm of q and of k ---- */

/* The weights of both norms, and their gradients. */
typedef struct norm_pair {
    size_t widths[2];
    bool accumulate;
    array_t weights[2], dw[2];
    zero_weight_t weight[2];
    float *sum[2];   /* weight + offset */
    double *sums[2]; /* the gradients, from nothing */
} norm_pair_t;

static norm_pair_t norm_pair_make(zero_dtype_t dtype, const size_t widths[2], float offset, bool accumulate,
                                  size_t shift)
{
    norm_pair_t pair = {.accumulate = accumulate};
    for (int w = 0; w < 2; ++w) {
        pair.widths[w] = widths[w];
        pair.weights[w] = array_make(widths[w], dtype, shift, 1.0, 0.5);
        pair.dw[w] = array_grad_target(widths[w], dtype, shift, accumulate);
        pair.weight[w] = offset_weight(&pair.weights[w], offset, &pair.sum[w]);
        pair.sums[w] = calloc(widths[w], sizeof *pair.sums[w]);
        NEED(pair.sums[w] != NULL);
    }
    return pair;
}

/* Expects the gradients that are in `sums` now. */
static void check_norm_pair(check_t *c, norm_pair_t *pair, double bound)
{
    for (int w = 0; w < 2; ++w) {
        float *rdw = check_output(c, w == 0 ? "dq_weight" : "dk_weight", &pair->dw[w], bound);
        for (size_t i = 0; i < pair->widths[w]; ++i)
            rdw[i] = (float)(pair->sums[w][i] + (pair->accumulate ? (double)rdw[i] : 0.0));
    }
}

static void norm_pair_free(norm_pair_t *pair)
{
    for (int w = 0; w < 2; ++w)
        free(pair->sums[w]), free(pair->sum[w]), array_free(&pair->weights[w]), array_free(&pair->dw[w]);
}

/* ---- RMSNorm of heads ---- */

/* Turns dqkv, which holds dy, into the gradient of qkv; y: NULL, or the norm's output. Each head is a row of the norm's
 * reference. Returns the largest condition of a head. */
static double head_norm_fp64(float *y, float *dqkv, double *sums[2], const array_t *qkv, float *weights[2], float eps,
                             attention_shape_t s)
{
    size_t of_row = s.n_heads + 2 * s.n_kv_heads, dim = s.head_dim;
    double condition = 0.0;
    float *dy = malloc(dim * sizeof *dy);
    NEED(dy != NULL);
    for (size_t i = 0; i < s.n_batch * s.seq_len * of_row; ++i) {
        float rstd, *d = dqkv + i * dim;
        const float *x = qkv->values + i * dim;
        int is_k = i % of_row >= s.n_heads;
        if (i % of_row >= s.n_heads + s.n_kv_heads) {
            memcpy(y + i * dim, x, dim * sizeof *x);
            continue;
        }
        rmsnorm_fp64(y + i * dim, &rstd, x, weights[is_k], (double)eps, 1, dim);
        memcpy(dy, d, dim * sizeof *d), memset(d, 0, dim * sizeof *d);
        double of_head = rmsnorm_backward_fp64(d, sums[is_k], dy, x, weights[is_k], (double)eps, 1, dim);
        condition = of_head > condition ? of_head : condition;
    }
    free(dy);
    return condition;
}

static void check_head_norm(zero_dtype_t dtype, attention_shape_t s, float offset, bool accumulate, size_t shift)
{
    size_t rows = s.n_batch * s.seq_len, n = rows * (s.n_heads + 2 * s.n_kv_heads) * s.head_dim;
    const float eps = 1e-5f;
    tables_t t = tables_open(limits_of_attention(s, rows, 1, dtype));
    check_t c = {.n = 0};
    snprintf(c.what, sizeof c.what, "head_norm %s rows %zu heads %zu/%zu of %zu offset %g%s shift %zu",
             zero_dtype_name(dtype), rows, s.n_heads, s.n_kv_heads, s.head_dim, (double)offset,
             accumulate ? " added" : "", shift);
    array_t qkv = array_make(n, dtype, shift, 0.5, 1.0), y = array_make(n, dtype, shift, 0.0, 0.0);
    array_t dqkv = array_make(n, dtype, shift, 0.0, 1.0);
    norm_pair_t pair = norm_pair_make(dtype, (size_t[]){s.head_dim, s.head_dim}, offset, accumulate, shift);
    float *ry = check_output(&c, "y", &y, 64 * 0x1p-24 + unit(dtype)), *rd = check_output(&c, "dqkv", &dqkv, 0.0);
    output_t *d_output = &c.outputs[c.n - 1];
    double condition = head_norm_fp64(ry, rd, pair.sums, &qkv, pair.sum, eps, s);
    d_output->bound = 64 * 0x1p-24 * condition + unit(dtype);
    check_norm_pair(&c, &pair, 4 * sum_bound(rows * s.n_heads) + unit(dtype));
    for (int run = 0; run < 2; ++run) {
        zero_status_t status = t.gpu->head_norm(&t.gpu_ctx, y.data, qkv.data, pair.weight[0], pair.weight[1], eps, rows,
                                                s.n_heads, s.n_kv_heads, s.head_dim);
        if (status == ZERO_OK)
            status = t.gpu->head_norm_backward(&t.gpu_ctx, dqkv.data, grad_of(&pair.dw[0], accumulate),
                                               grad_of(&pair.dw[1], accumulate), qkv.data, pair.weight[0],
                                               pair.weight[1], eps, rows, s.n_heads, s.n_kv_heads, s.head_dim);
        check_run_done(&c, status);
    }
    check_free(&c);
    norm_pair_free(&pair);
    array_free(&qkv), array_free(&y), array_free(&dqkv);
    tables_close(&t);
}

static void test_head_norm(void)
{
    /* Heads of a lane, of several to a warp, of a warp with one and with two packs a lane, and of odd lengths. */
    static const attention_shape_t shapes[] = {{1, 1, 1, 1, 1},      {1, 37, 3, 1, 8},   {2, 33, 6, 2, 10},
                                               {1, 301, 16, 8, 128}, {1, 65, 9, 3, 64},  {3, 17, 2, 2, 256},
                                               {1, 9001, 2, 1, 32},  {1, 40, 5, 1, 200}, {1, 5, 71, 71, 96}};
    for (int d = 0; d < n_dtypes; ++d) {
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; ++i) {
            if (small && shapes[i].seq_len > 1000)
                continue;
            check_head_norm(dtypes[d], shapes[i], 0.0f, i % 2 == 1, 0);
            check_head_norm(dtypes[d], shapes[i], 1.0f, i % 2 == 0, 1 + random_below(7));
        }
        for (int i = 0; i < (small ? 4 : 24); ++i) {
            size_t kv = 1 + random_below(3);
            attention_shape_t s = {1, 1 + random_below(300), kv * (1 + random_below(4)), kv, 1 + random_below(256)};
            check_head_norm(dtypes[d], s, i % 3 ? 0.0f : 1.0f, i % 4 < 2, i % 2 ? random_below(8) : 0);
        }
    }
}

/* ---- RMSNorm of all of q and of all of k ---- */

/* Each of q and k is a row of the norm's reference; v stays. Returns the larger condition. */
static double projection_norm_fp64(float *y, float *dqkv, double *sums[2], const array_t *qkv, float *weights[2],
                                   float eps, size_t n_rows, const size_t widths[2])
{
    size_t longest = widths[0] > widths[1] ? widths[0] : widths[1], at = 0;
    float *dy = malloc(longest * sizeof *dy), rstd;
    double condition = 0.0;
    NEED(dy != NULL);
    for (size_t row = 0; row < n_rows; ++row, at += widths[1]) {
        for (int w = 0; w < 2; at += widths[w++]) {
            float *d = dqkv + at;
            rmsnorm_fp64(y + at, &rstd, qkv->values + at, weights[w], (double)eps, 1, widths[w]);
            memcpy(dy, d, widths[w] * sizeof *d), memset(d, 0, widths[w] * sizeof *d);
            double of_row =
                rmsnorm_backward_fp64(d, sums[w], dy, qkv->values + at, weights[w], (double)eps, 1, widths[w]);
            condition = of_row > condition ? of_row : condition;
        }
        memcpy(y + at, qkv->values + at, widths[1] * sizeof *y);
    }
    free(dy);
    return condition;
}

static void check_projection_norm(zero_dtype_t dtype, size_t rows, size_t q_width, size_t k_width, float offset,
                                  bool accumulate, size_t shift)
{
    const size_t widths[] = {q_width, k_width}, n = rows * (q_width + 2 * k_width);
    const float eps = 1e-5f;
    zero_model_limits_t limits = limits_of_rows(rows, q_width + 2 * k_width, dtype);
    limits.normalizes_projections = true;
    tables_t t = tables_open(limits);
    check_t c = {.n = 0};
    snprintf(c.what, sizeof c.what, "projection_norm %s rows %zu widths %zu/%zu offset %g%s shift %zu",
             zero_dtype_name(dtype), rows, q_width, k_width, (double)offset, accumulate ? " added" : "", shift);
    array_t qkv = array_make(n, dtype, shift, 0.5, 1.0), y = array_make(n, dtype, shift, 0.0, 0.0);
    array_t dqkv = array_make(n, dtype, shift, 0.0, 1.0);
    norm_pair_t pair = norm_pair_make(dtype, widths, offset, accumulate, shift);
    float *ry = check_output(&c, "y", &y, 64 * 0x1p-24 + unit(dtype)), *rd = check_output(&c, "dqkv", &dqkv, 0.0);
    output_t *d_output = &c.outputs[c.n - 1];
    double condition = projection_norm_fp64(ry, rd, pair.sums, &qkv, pair.sum, eps, rows, widths);
    d_output->bound = 64 * 0x1p-24 * condition + unit(dtype);
    check_norm_pair(&c, &pair, 4 * sum_bound(rows) + unit(dtype));
    for (int run = 0; run < 2; ++run) {
        zero_status_t status = t.gpu->projection_norm(&t.gpu_ctx, y.data, qkv.data, pair.weight[0], pair.weight[1], eps,
                                                      rows, q_width, k_width);
        if (status == ZERO_OK)
            status = t.gpu->projection_norm_backward(&t.gpu_ctx, dqkv.data, grad_of(&pair.dw[0], accumulate),
                                                     grad_of(&pair.dw[1], accumulate), qkv.data, pair.weight[0],
                                                     pair.weight[1], eps, rows, q_width, k_width);
        check_run_done(&c, status);
    }
    check_free(&c);
    norm_pair_free(&pair);
    array_free(&qkv), array_free(&y), array_free(&dqkv);
    tables_close(&t);
}

static void test_projection_norm(void)
{
    for (int d = 0; d < n_dtypes; ++d) {
        check_projection_norm(dtypes[d], 1, 1, 1, 0.0f, false, 0);
        check_projection_norm(dtypes[d], small ? 37 : 301, 4096, 1024, 0.0f, true, 0);
        if (!small)
            check_projection_norm(dtypes[d], 2500, 520, 136, 1.0f, false, 0); /* the largest number of parts */
        for (int i = 0; i < (small ? 4 : 24); ++i)
            check_projection_norm(dtypes[d], 1 + random_below(300), random_size(1500), random_size(700),
                                  i % 3 ? 0.0f : 1.0f, i % 4 < 2, i % 2 ? random_below(8) : 0);
    }
}

/* ---- Documents ---- */

/* Where documents begin, as in zero_mask_t. NULL: there are none. */
typedef struct documents {
    int32_t *host, *device;
} documents_t;

/* Makes documents of 1 to `longest` positions; 0: none. */
static documents_t documents_make(size_t n_batch, size_t seq_len, size_t longest)
{
    documents_t d = {0};
    size_t n = n_batch * seq_len, left = 0;
    if (longest == 0)
        return d;
    d.host = malloc(n * sizeof *d.host);
    NEED(d.host != NULL && cudaMalloc((void **)&d.device, n * sizeof *d.host) == cudaSuccess);
    for (size_t row = 0; row < n; ++row, --left) {
        bool begins = left == 0 || row % seq_len == 0;
        left = left == 0 ? 1 + random_below(longest) : left;
        d.host[row] = begins ? (int32_t)(row % seq_len) : d.host[row - 1];
    }
    NEED(cudaMemcpy(d.device, d.host, n * sizeof *d.host, cudaMemcpyHostToDevice) == cudaSuccess);
    return d;
}

static void documents_free(documents_t *d)
{
    free(d->host);
    cudaFree(d->device);
}

/* ---- Rotary positions ---- */

/* as_rounded: the reference's angle is rounded as Hugging Face does, at any position. Else it is the formula's, from
 * which rounding the frequency and the angle deviates by at most position * 2^-22. */
static void check_rope(zero_dtype_t dtype, attention_shape_t s, zero_rope_t rope, size_t shift, bool as_rounded,
                       size_t longest)
{
    documents_t documents = documents_make(s.n_batch, s.seq_len, longest);
    size_t n = s.n_batch * s.seq_len * (s.n_heads + 2 * s.n_kv_heads) * s.head_dim;
    tables_t t = tables_open((zero_model_limits_t){.n_rows = s.n_batch * s.seq_len,
                                                   .seq_len = s.seq_len,
                                                   .max_linear = 1,
                                                   .max_width = 1,
                                                   .n_heads = s.n_heads,
                                                   .head_dim = s.head_dim,
                                                   .vocab_size = 1,
                                                   .dtype = dtype});
    check_t c = {.n = 0};
    snprintf(c.what, sizeof c.what, "rope %s B %zu T %zu heads %zu/%zu of %zu kind %d shift %zu documents %zu%s",
             zero_dtype_name(dtype), s.n_batch, s.seq_len, s.n_heads, s.n_kv_heads, s.head_dim, (int)rope.kind, shift,
             longest, as_rounded ? "" : " exact angles");
    array_t turned = array_make(n, dtype, shift, 0.0, 1.0), back = array_make(n, dtype, shift, 0.0, 1.0);
    double bound = 8.0 * 0x1p-24 + unit(dtype) + (as_rounded ? 0.0 : (double)s.seq_len * 0x1p-22);
    float *rturned = check_output(&c, "rope", &turned, bound), *rback = check_output(&c, "inverse", &back, bound);
    rope.starts = documents.host;
    rope_fp64(rturned, false, &rope, as_rounded, s.n_batch, s.seq_len, s.n_heads, s.n_kv_heads, s.head_dim);
    rope_fp64(rback, true, &rope, as_rounded, s.n_batch, s.seq_len, s.n_heads, s.n_kv_heads, s.head_dim);
    rope.starts = documents.device;
    for (int run = 0; run < 2; ++run) {
        zero_status_t status = t.gpu->rope(&t.gpu_ctx, turned.data, false, &rope, &s);
        if (status == ZERO_OK)
            status = t.gpu->rope(&t.gpu_ctx, back.data, true, &rope, &s);
        check_run_done(&c, status);
    }
    check_free(&c);
    array_free(&turned), array_free(&back);
    documents_free(&documents);
    tables_close(&t);
}

/* What members of the Llama family do beside that: other ways to scale frequencies, heads that are rotated in part,
 * factors, and layers whose heads are only multiplied: by an angle of 0. */
static void check_rope_variants(zero_dtype_t dtype, attention_shape_t s, size_t shift)
{
    float *divisors = malloc((s.head_dim / 2 + 1) * sizeof *divisors);
    NEED(divisors != NULL);
    for (size_t i = 0; i <= s.head_dim / 2; ++i)
        divisors[i] = 1.0f + (float)i / 3.0f;
    const zero_rope_t variants[] = {
        {.theta = 10000.0f, .factor = 4.0f, .kind = ZERO_ROPE_LINEAR, .scale = 0.75f},
        {.theta = 10000.0f, .factor = INFINITY, .kind = ZERO_ROPE_LINEAR, .q_scale = 1.5f},
        {.theta = 1e6f,
         .factor = 8.0f,
         .kind = ZERO_ROPE_YARN,
         .last_kept = 0.5f,
         .first_scaled = 3.25f,
         .scale = 1.1f},
        {.theta = 10000.0f, .kind = ZERO_ROPE_LONGROPE, .divisors = divisors, .scale = 1.2f, .q_scale = 0.5f},
        {.theta = 10000.0f, .n_rotated = s.head_dim / 4 * 2}};
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; ++i)
        if (i < 4 || variants[i].n_rotated > 0)
            check_rope(dtype, s, variants[i], shift, false, i % 2 ? 7 : 0);
    free(divisors);
}

static void test_rope(void)
{
    const zero_rope_t plain = {.theta = 10000.0f}, llama3 = {.theta = 500000.0f};
    const zero_rope_t scaled = {500000.0f, .factor = 8.0f, .low_freq = 1.0f, .high_freq = 4.0f, .original = 64.0f};
    static const attention_shape_t shapes[] = {{1, 1, 1, 1, 2},     {3, 17, 3, 3, 12},  {2, 33, 6, 2, 10},
                                               {2, 65, 32, 8, 128}, {2, 129, 9, 3, 64}, {1, 40, 71, 1, 64},
                                               {1, 9, 2, 1, 512},   {1, 9, 2, 2, 1040}, {1, 5, 1, 1, 522}};
    for (int d = 0; d < n_dtypes; ++d) {
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; ++i) {
            check_rope(dtypes[d], shapes[i], llama3, 0, true, 0);
            check_rope(dtypes[d], shapes[i], plain, 1 + random_below(7), false, 0);
            check_rope(dtypes[d], shapes[i], scaled, 0, false, 0);
            check_rope(dtypes[d], shapes[i], llama3, 0, true, 7);
            check_rope_variants(dtypes[d], shapes[i], i % 2 ? 0 : 1 + random_below(7));
        }
        for (int i = 0; i < (small ? 4 : 24); ++i) {
            size_t kv = 1 + random_below(3);
            attention_shape_t s = {1 + random_below(3), 1 + random_below(300), kv * (1 + random_below(4)), kv,
                                   2 * (1 + random_below(80))};
            check_rope(dtypes[d], s, plain, i % 2 ? random_below(8) : 0, i % 4 < 2, i % 3 ? 0 : 40);
        }
    }
    if (!small)
        check_rope(ZERO_FP32, (attention_shape_t){1, ((size_t)1 << 20) + 1, 1, 1, 4}, llama3, 0, true, 0);
}

/* ---- SwiGLU, GeGLU ---- */

/* gate 0: random gates; else every gate has this value. */
static void check_gated(bool gelu, zero_dtype_t dtype, size_t rows, size_t width, size_t shift, float gate)
{
    size_t n = rows * width;
    tables_t t = tables_open(limits_of_rows(rows, 1, dtype));
    check_t c = {.n = 0};
    snprintf(c.what, sizeof c.what, "%s %s %zux%zu shift %zu gate %g", gelu ? "geglu" : "swiglu",
             zero_dtype_name(dtype), rows, width, shift, (double)gate);
    zero_status_t (*forward)(zero_model_context_t *, void *, const void *, size_t, size_t) =
        gelu ? t.gpu->geglu : t.gpu->swiglu;
    zero_status_t (*backward)(zero_model_context_t *, void *, void *, const void *, const void *, size_t, size_t) =
        gelu ? t.gpu->geglu_backward : t.gpu->swiglu_backward;
    array_t gate_up = array_make(2 * n, dtype, shift, 0.0, gate != 0.0f ? fabs((double)gate) : 2.0);
    array_t dy = array_make(n, dtype, shift, 0.0, 1.0), y = array_make(n, dtype, shift, 0.0, 0.0);
    array_t recomputed = array_make(n, dtype, shift, 0.0, 0.0), d = array_make(2 * n, dtype, shift, 0.0, 0.0);
    array_t in_place = array_make(2 * n, dtype, shift, 0.0, 1.0);
    for (size_t i = 0; gate != 0.0f && i < 2 * n; ++i)
        gate_up.values[i] = i / width % 2 == 0 ? rounded(gate, dtype) : gate_up.values[i];
    memcpy(in_place.values, gate_up.values, 2 * n * sizeof(float));
    upload(&gate_up), upload(&in_place);
    /* The exponential and the quotient are a few units off, which 16 bits do not show; GELU's exponential, of a gate of
     * -9 that of -66, by as many as its exponent has. */
    double bound = (dtype != ZERO_FP32 ? 1.0 : gelu ? 80.0 : 16.0) * unit(dtype);
    float *ry = check_output(&c, "y", &y, bound), *rd = check_output(&c, "dgate_up", &d, bound);
    float *rrecomputed = check_output(&c, "y recomputed", &recomputed, bound);
    float *rin = check_output(&c, "dgate_up in place", &in_place, bound);
    gated_fp64(gelu, ry, rd, dy.values, gate_up.values, rows, width);
    memcpy(rrecomputed, ry, n * sizeof *ry), memcpy(rin, rd, 2 * n * sizeof *rd);
    for (int run = 0; run < 2; ++run) {
        zero_status_t status = forward(&t.gpu_ctx, y.data, gate_up.data, rows, width);
        if (status == ZERO_OK)
            status = backward(&t.gpu_ctx, d.data, NULL, dy.data, gate_up.data, rows, width);
        if (status == ZERO_OK)
            status = backward(&t.gpu_ctx, in_place.data, recomputed.data, dy.data, in_place.data, rows, width);
        check_run_done(&c, status);
    }
    expect_same_bits(&c, "y recomputed", &y, &recomputed);
    expect_same_bits(&c, "dgate_up in place", &d, &in_place);
    check_free(&c);
    array_free(&gate_up), array_free(&dy), array_free(&y), array_free(&recomputed), array_free(&d),
        array_free(&in_place);
    tables_close(&t);
}

/* sums[row, first + i] += (u B^T)[row, i], from columns first_u on of u[rows, n_u]; B [width, rank], or transposed. */
static void add_low_rank(float *sums, size_t n_columns, size_t first, const array_t *u, size_t n_u, size_t first_u,
                         const float *b, bool transposed, size_t rows, size_t width, size_t rank)
{
    for (size_t row = 0; row < rows; ++row)
        for (size_t i = 0; i < width; ++i) {
            double sum = (double)sums[row * n_columns + first + i];
            for (size_t k = 0; k < rank; ++k)
                sum += (double)u->values[row * n_u + first_u + k] *
                       (double)(transposed ? b[k * width + i] : b[i * rank + k]);
            sums[row * n_columns + first + i] = (float)sum;
        }
}

/* Checks that absmax is the bits of the largest magnitude of what is in a, as bf16. */
static void expect_absmax(const check_t *c, const char *name, const array_t *a, const uint32_t *absmax)
{
    const output_t o = {.name = name};
    unsigned char *bytes = download(a);
    uint32_t largest = 0, is;
    NEED(cudaMemcpy(&is, absmax, sizeof is, cudaMemcpyDeviceToHost) == cudaSuccess);
    for (size_t i = 0; i < a->n; ++i) {
        uint16_t half;
        memcpy(&half, bytes + (GUARD + a->shift + i) * 2, 2);
        const uint32_t magnitude = (uint32_t)(half & 0x7fff) << 16;
        largest = magnitude > largest ? magnitude : largest;
    }
    ++n_checks;
    if (is != largest)
        fail(c, &o, "another maximum than that of what was written", (double)is, (double)largest);
    free(bytes);
}

/* flags: adapters of gate, of up, of dy; one u for both. Each adds to what others read. */
static void check_gated_adapters(bool gelu, size_t rows, size_t width, size_t rank, int flags)
{
    const size_t n = rows * width, n_u = flags & 8 ? rank : 2 * rank, first_up = flags & 8 ? 0 : rank;
    tables_t t = tables_open(limits_of_rows(rows, 1, ZERO_BF16));
    check_t c = {.n = 0};
    snprintf(c.what, sizeof c.what, "%s %zux%zu with adapters of rank %zu, flags %d", gelu ? "geglu" : "swiglu", rows,
             width, rank, flags);
    array_t gate_up = array_make(2 * n, ZERO_BF16, 0, 0.0, 1.0), dy = array_make(n, ZERO_BF16, 0, 0.0, 1.0);
    array_t u = array_make(rows * n_u, ZERO_BF16, 0, 0.0, 1.0), du = array_make(rows * rank, ZERO_BF16, 0, 0.0, 1.0);
    array_t b = array_make(2 * width * rank, ZERO_BF16, 0, 0.0, 0.4),
            a = array_make(width * rank, ZERO_BF16, 0, 0.0, 0.4);
    array_t y = array_make(n, ZERO_BF16, 0, 0.0, 0.0), d = array_make(2 * n, ZERO_BF16, 0, 0.0, 0.0);
    array_t again = array_make(n, ZERO_BF16, 0, 0.0, 0.0), in_place = array_make(2 * n, ZERO_BF16, 0, 0.0, 1.0);
    memcpy(in_place.values, gate_up.values, 2 * n * sizeof(float));
    upload(&in_place);
    const double bound = unit(ZERO_BF16);
    float *ry = check_output(&c, "y", &y, bound), *rd = check_output(&c, "dgate_up", &d, bound);
    float *ragain = check_output(&c, "y recomputed", &again, bound);
    float *rin = check_output(&c, "dgate_up in place", &in_place, bound);
    float *both = malloc(2 * n * sizeof *both), *all_dy = malloc(n * sizeof *all_dy);
    NEED(both != NULL && all_dy != NULL);
    memcpy(both, gate_up.values, 2 * n * sizeof *both), memcpy(all_dy, dy.values, n * sizeof *all_dy);
    if (flags & 1)
        add_low_rank(both, 2 * width, 0, &u, n_u, 0, b.values, false, rows, width, rank);
    if (flags & 2)
        add_low_rank(both, 2 * width, width, &u, n_u, first_up, b.values + width * rank, false, rows, width, rank);
    if (flags & 4)
        add_low_rank(all_dy, width, 0, &du, rank, 0, a.values, true, rows, width, rank);
    gated_fp64(gelu, ry, rd, all_dy, both, rows, width);
    memcpy(ragain, ry, n * sizeof *ry), memcpy(rin, rd, 2 * n * sizeof *rd);
    const void *of_up = (const unsigned char *)u.data + first_up * zero_dtype_size(ZERO_BF16);
    zero_weight_t b_up = weight_of(&b);
    b_up.data = (const unsigned char *)b_up.data + width * rank * zero_dtype_size(ZERO_BF16);
    const zero_gated_adapters_t adapters = {.rank = rank,
                                            .gate = {flags & 1 ? u.data : NULL, n_u, weight_of(&b)},
                                            .up = {flags & 2 ? of_up : NULL, n_u, b_up},
                                            .dy = {flags & 4 ? du.data : NULL, rank, weight_of(&a)}};
    uint32_t *absmax;
    NEED(cudaMalloc((void **)&absmax, 2 * sizeof *absmax) == cudaSuccess);
    zero_model_context_t forward = t.gpu_ctx, backward = t.gpu_ctx;
    forward.absmax = absmax, backward.absmax = absmax + 1;
    for (int run = 0; run < 2; ++run) {
        NEED(cudaMemset(absmax, 0, 2 * sizeof *absmax) == cudaSuccess);
        zero_status_t status = t.gpu->gated_adapters(&forward, gelu, &adapters, y.data, gate_up.data, rows, width);
        if (status == ZERO_OK)
            status = t.gpu->gated_adapters_backward(&backward, gelu, &adapters, d.data, NULL, dy.data, gate_up.data,
                                                    rows, width);
        if (status == ZERO_OK)
            status = t.gpu->gated_adapters_backward(&t.gpu_ctx, gelu, &adapters, in_place.data, again.data, dy.data,
                                                    in_place.data, rows, width);
        check_run_done(&c, status);
    }
    expect_same_bits(&c, "y recomputed", &y, &again);
    expect_same_bits(&c, "dgate_up in place", &d, &in_place);
    if ((flags & 3) == 0) {
        NEED((gelu ? t.gpu->geglu : t.gpu->swiglu)(&t.gpu_ctx, again.data, gate_up.data, rows, width) == ZERO_OK);
        NEED(cudaDeviceSynchronize() == cudaSuccess);
        expect_same_bits(&c, "y without adapters", &y, &again);
    }
    expect_absmax(&c, "y", &y, absmax), expect_absmax(&c, "dgate_up", &d, absmax + 1);
    check_free(&c);
    free(both), free(all_dy), cudaFree(absmax);
    array_free(&gate_up), array_free(&dy), array_free(&u), array_free(&du), array_free(&b), array_free(&a);
    array_free(&y), array_free(&d), array_free(&again), array_free(&in_place);
    tables_close(&t);
}

static void test_gated_adapters(void)
{
    static const size_t ranks[] = {8, 16, 24, 32};
    tables_t t = tables_open(limits_of_rows(1, 1, ZERO_BF16));
    ++n_checks;
    if (!t.gpu->fuses_adapters(&t.gpu_ctx, 16, 64) || t.gpu->fuses_adapters(&t.gpu_ctx, 12, 64) ||
        t.gpu->fuses_adapters(&t.gpu_ctx, 64, 64) || t.gpu->fuses_adapters(&t.gpu_ctx, 16, 60)) {
        ++n_failed;
        printf("FAILED: other adapters are added than those of ranks 8 to 32\n");
    }
    tables_close(&t);
    for (int i = 0; i < (small ? 8 : 40); ++i)
        check_gated_adapters(i % 2, random_size(300), 8 * random_size(i % 5 == 0 ? 800 : 100), ranks[i % 4],
                             1 + (int)random_below(15));
    check_gated_adapters(false, 130, 14336, 16, 7);
}

static void test_gated(bool gelu)
{
    static const float tails[] = {-3e4f, -80.0f, -9.0f, 9.0f, 80.0f, 3e4f}; /* nothing overflows in between */
    for (int d = 0; d < n_dtypes; ++d) {
        check_gated(gelu, dtypes[d], 1, 1, 0, 0.0f);
        check_gated(gelu, dtypes[d], small ? 3 : 70, 14336, 0, 0.0f);
        for (size_t i = 0; i < sizeof tails / sizeof tails[0]; ++i)
            if (dtypes[d] != ZERO_FP16 || (tails[i] > 0.0f && tails[i] < 100.0f)) /* the others leave fp16's range */
                check_gated(gelu, dtypes[d], 3, 40, i % 2, tails[i]);
        for (int i = 0; i < (small ? 6 : 24); ++i)
            check_gated(gelu, dtypes[d], random_size(100), random_size(3000), i % 3 == 0 ? 0 : random_below(8), 0.0f);
    }
}

static void test_swiglu(void)
{
    test_gated(false);
}

static void test_geglu(void)
{
    test_gated(true);
}

/* ---- GELU, put_grad ---- */

static void check_elementwise(zero_dtype_t dtype, size_t rows, size_t width, size_t shift, bool accumulate)
{
    size_t n = rows * width;
    zero_dtype_t grad_dtype = rows % 2 ? dtype : ZERO_FP32;
    tables_t t = tables_open(limits_of_rows(rows, width, dtype));
    check_t c = {.n = 0};
    snprintf(c.what, sizeof c.what, "elementwise %s %zux%zu shift %zu", zero_dtype_name(dtype), rows, width, shift);
    array_t x = array_make(n, dtype, shift, 0.0, 2.0), dy = array_make(n, dtype, shift, 0.0, 1.0);
    array_t y = array_make(n, dtype, shift, 0.0, 0.0), dx = array_make(n, dtype, shift, 0.0, 0.0);
    array_t in_place = array_make(n, dtype, shift, 0.0, 1.0);
    array_t recomputed = array_make(n, dtype, shift, 0.0, 0.0), sums = array_make(width, ZERO_FP32, 0, 0.0, 1.0);
    array_t dc = array_grad_target(width, grad_dtype, shift, accumulate);
    array_t put = array_grad_target(width, grad_dtype, shift, accumulate);
    zero_grad_t nowhere = {NULL, dtype, false};
    for (size_t i = 0; i < n && i < 6; ++i) /* the tails: nothing overflows in between */
        x.values[i] = rounded((i % 2 ? -1.0f : 1.0f) * (i < 2 ? 9.0f : i < 4 ? 90.0f : 3e4f), dtype);
    upload(&x);
    double bound = (dtype == ZERO_FP32 ? 16.0 : 1.0) * unit(dtype);
    float *ry = check_output(&c, "gelu", &y, bound), *rdx = check_output(&c, "gelu backward", &dx, bound);
    float *rin = check_output(&c, "gelu backward in place", &in_place, bound);
    float *rrecomputed = check_output(&c, "y recomputed", &recomputed, bound);
    float *rdc = check_output(&c, "gelu backward's columns", &dc, unit(grad_dtype));
    float *rput = check_output(&c, "put_grad", &put, unit(grad_dtype));
    NEED(t.cpu->gelu(&t.cpu_ctx, ry, x.values, n) == ZERO_OK);
    NEED(t.cpu->gelu_backward(&t.cpu_ctx, rdx, (zero_grad_t){rdc, ZERO_FP32, accumulate}, rrecomputed, dy.values,
                              x.values, rows, width) == ZERO_OK);
    allow_for_summands(&c, rdc, bound + sum_bound(rows), rdx, n);
    NEED(t.cpu->gelu_backward(&t.cpu_ctx, rin, nowhere, NULL, rin, x.values, rows, width) == ZERO_OK);
    NEED(t.cpu->put_grad(&t.cpu_ctx, (zero_grad_t){rput, ZERO_FP32, accumulate}, sums.values, width) == ZERO_OK);
    for (int run = 0; run < 2; ++run) {
        zero_status_t status = t.gpu->gelu(&t.gpu_ctx, y.data, x.data, n);
        if (status == ZERO_OK)
            status = t.gpu->gelu_backward(&t.gpu_ctx, dx.data, grad_of(&dc, accumulate), recomputed.data, dy.data,
                                          x.data, rows, width);
        if (status == ZERO_OK)
            status = t.gpu->gelu_backward(&t.gpu_ctx, in_place.data, nowhere, NULL, in_place.data, x.data, rows, width);
        if (status == ZERO_OK)
            status = t.gpu->put_grad(&t.gpu_ctx, grad_of(&put, accumulate), sums.data, width);
        check_run_done(&c, status);
    }
    ++n_checks;
    unsigned char *first = download(&y), *second = download(&recomputed);
    if (memcmp(first, second, n * zero_dtype_size(dtype)) != 0)
        fail(&c, &c.outputs[3], "other bits than gelu's", 0, 0);
    free(first), free(second);
    check_free(&c);
    array_free(&x), array_free(&dy), array_free(&y), array_free(&dx), array_free(&in_place);
    array_free(&recomputed), array_free(&sums), array_free(&dc), array_free(&put);
    tables_close(&t);
}

/* where: 0: the result is elsewhere; 1: it is the residual; 2: it is x. */
static void check_add_scaled(zero_dtype_t dtype, size_t n, size_t shift, bool with_residual, int where, float factor)
{
    tables_t t = tables_open(limits_of_rows(n, 1, dtype));
    check_t c = {.n = 0};
    snprintf(c.what, sizeof c.what, "add_scaled %s %zu shift %zu%s in place %d", zero_dtype_name(dtype), n, shift,
             with_residual ? " with residual" : "", where);
    array_t x = array_make(n, dtype, shift, 0.0, 1.0), residual = array_make(n, dtype, shift, 0.0, 1.0);
    array_t elsewhere = array_make(n, dtype, shift, 0.0, 0.0);
    array_t *y = where == 1 ? &residual : where == 2 ? &x : &elsewhere;
    float *ry = check_output(&c, "y", y, unit(dtype) + 4.0 * 0x1p-24);
    for (size_t i = 0; i < n; ++i)
        ry[i] = (float)((double)factor * (double)x.values[i] + (with_residual ? (double)residual.values[i] : 0.0));
    for (int run = 0; run < 2; ++run)
        check_run_done(&c,
                       t.gpu->add_scaled(&t.gpu_ctx, y->data, with_residual ? residual.data : NULL, x.data, factor, n));
    check_free(&c);
    array_free(&x), array_free(&residual), array_free(&elsewhere);
    tables_close(&t);
}

static void test_elementwise(void)
{
    for (int d = 0; d < n_dtypes; ++d)
        for (int i = 0; i < 12; ++i)
            check_elementwise(dtypes[d], i == 0 ? 1 : 1 + random_below(400), i == 0 ? 1 : random_size(600),
                              i % 3 == 0 ? 0 : random_below(8), i % 2 == 0);
    for (int d = 0; d < n_dtypes; ++d)
        for (int i = 0; i < 12; ++i)
            check_add_scaled(dtypes[d], i == 0 ? 1 : random_size(20000), i % 4 == 3 ? 1 + random_below(7) : 0, i % 2,
                             i % 2 ? i / 2 % 3 : i / 2 % 2 * 2, i % 3 ? 0.22f : 1.0f);
}

/* ---- Attention ---- */

/* Expects that attention_is_slow names the backend that runs: our own kernel for tensor cores serves every mask, and
 * cuDNN, where there is one, every shape without a mask that it may serve. */
static void check_backend(tables_t *t, zero_dtype_t dtype, const zero_mask_t *mask, attention_shape_t s,
                          const char *what)
{
    char why[ZERO_MODEL_WHY] = "";
    bool is_slow = t->gpu->attention_is_slow(&t->gpu_ctx, mask, &s, why);
    int device, major;
    NEED(cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess);
    bool hides = mask->starts || (mask->window > 0 && mask->window < s.seq_len);
    size_t most = 128;
#ifdef ZERO_HAVE_CUDNN
    most = !hides && major == 9 ? 256 : most;
#else
    (void)hides, (void)major;
#endif
    bool may_serve = dtype != ZERO_FP32 && s.head_dim % 8 == 0 && s.head_dim <= most;
    ++n_checks;
    if (is_slow == may_serve || (why[0] != 0) != is_slow) {
        ++n_failed;
        printf("FAILED %s: %s: '%s'\n", what, is_slow ? "slow" : "fast", why);
    }
}

/* longest: of documents; 0: there are none. */
static void check_masked_attention(zero_dtype_t dtype, attention_shape_t s, double std, size_t longest, size_t window)
{
    documents_t documents = documents_make(s.n_batch, s.seq_len, longest);
    const zero_mask_t host_mask = {documents.host, window}, mask = {documents.device, window};
    size_t n_out = s.n_batch * s.seq_len * s.n_heads * s.head_dim;
    size_t n_qkv = s.n_batch * s.seq_len * (s.n_heads + 2 * s.n_kv_heads) * s.head_dim;
    tables_t t = tables_open(limits_of_attention(s, s.n_batch * s.seq_len, s.seq_len, dtype));
    check_t c = {.n = 0};
    snprintf(c.what, sizeof c.what, "attention %s B %zu T %zu heads %zu/%zu of %zu std %g documents %zu window %zu",
             zero_dtype_name(dtype), s.n_batch, s.seq_len, s.n_heads, s.n_kv_heads, s.head_dim, std, longest, window);
    array_t qkv = array_make(n_qkv, dtype, 0, 0.0, std), dout = array_make(n_out, dtype, 0, 0.0, 1.0);
    array_t out = array_make(n_out, dtype, 0, 0.0, 0.0), dqkv = array_make(n_qkv, dtype, 0, 0.0, 0.0);
    array_t lse = array_make(s.n_batch * s.n_heads * s.seq_len, ZERO_FP32, 0, 0.0, 0.0);
    /* A score of size S is off by S u, which is the relative error of its exponential. Probabilities and score
     * gradients are rounded to 16 bits before a product, and backward reads the rounded out. */
    double bound = (32.0 + 32.0 * std * std) * 0x1p-24;
    float *rout = check_output(&c, "out", &out, bound + (dtype == ZERO_FP32 ? 0.0 : 2.0 * unit(dtype)));
    float *rlse = check_output(&c, "logsumexp", &lse, bound + 0x1p-20);
    float *rdqkv = check_output(&c, "dqkv", &dqkv, 2.0 * bound + (dtype == ZERO_FP32 ? 0.0 : 3.0 * unit(dtype)));
    attention_fp64(rout, rlse, rdqkv, dout.values, qkv.values, &host_mask, s);
    check_backend(&t, dtype, &mask, s, c.what);
    for (int run = 0; run < 2; ++run) {
        zero_status_t status = t.gpu->attention(&t.gpu_ctx, out.data, lse.data, qkv.data, &mask, &s);
        if (status == ZERO_OK)
            status =
                t.gpu->attention_backward(&t.gpu_ctx, dqkv.data, dout.data, qkv.data, out.data, lse.data, &mask, &s);
        check_run_done(&c, status);
    }
    check_free(&c);
    array_free(&qkv), array_free(&dout), array_free(&out), array_free(&dqkv), array_free(&lse);
    documents_free(&documents);
    tables_close(&t);
}

static void check_attention(zero_dtype_t dtype, attention_shape_t s, double std)
{
    check_masked_attention(dtype, s, std, 0, 0);
}

/* Documents of one position, shorter than a tile of any kernel, of several, and longer than the sequence; windows of
 * one key, less than a tile, across tiles, one less than the sequence, and longer than it; both. Head sizes of each
 * instance of the kernel for tensor cores, full and padded, and those that it does not take. */
static void test_masks(void)
{
    static const attention_shape_t shapes[] = {
        {1, 1, 1, 1, 8},      {3, 17, 3, 3, 12},   {2, 31, 6, 2, 16},   {2, 201, 4, 2, 40},  {2, 256, 6, 2, 64},
        {1, 129, 6, 2, 80},   {2, 384, 8, 2, 128}, {1, 1000, 4, 1, 64}, {1, 130, 4, 1, 256}, {2, 1024, 4, 4, 64},
        {1, 1000, 2, 1, 128}, {2, 129, 32, 8, 96}, {1, 257, 2, 2, 104}};
    for (int d = 0; d < n_dtypes; ++d) {
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; ++i) {
            const attention_shape_t s = shapes[i];
            const size_t masks[][2] = {{1, 0},   {5, 0},    {100, 0}, {2 * s.seq_len, 0}, {0, 1},
                                       {0, 17},  {0, 100},  {0, 128}, {0, s.seq_len - 1}, {0, s.seq_len + 1},
                                       {70, 50}, {400, 150}};
            for (size_t m = 0; m < sizeof masks / sizeof masks[0]; ++m)
                if (!small || (s.n_batch * s.seq_len * s.n_heads < 1000 && m % 3 == 0))
                    check_masked_attention(dtypes[d], s, 1.0, masks[m][0], masks[m][1]);
        }
        if (small || dtypes[d] == ZERO_FP32)
            continue;
        check_masked_attention(dtypes[d], (attention_shape_t){1, 5000, 4, 1, 128}, 1.0, 0, 4096);
        check_masked_attention(dtypes[d], (attention_shape_t){1, 5000, 4, 2, 64}, 1.0, 900, 512);
        check_masked_attention(dtypes[d], (attention_shape_t){2, 128, 2, 2, 64}, 3.0, 0, 100);
        for (int i = 0; i < 24; ++i) {
            size_t kv = 1 + random_below(3);
            attention_shape_t s = {1 + random_below(3), 1 + random_below(600), kv * (1 + random_below(3)), kv,
                                   8 * (1 + random_below(16))};
            check_masked_attention(dtypes[d], s, 1.0, i % 3 == 0 ? 0 : 1 + random_below(300),
                                   i % 3 == 1 ? 0 : 1 + random_below(300));
        }
    }
}

/* In 16 bits cuDNN computes heads of a multiple of 8, sequences of other lengths than multiples of 128 with padding;
 * our own kernels compute the rest, and heads of 64 and 128 on Hopper. For those: a first tile of queries that is not
 * full, a last block with one tile, one step, steps that some queries do not see, more blocks than a GPU runs at a
 * time, and more than a section of heads. */
static void test_attention(void)
{
    static const attention_shape_t shapes[] = {
        {1, 1, 1, 1, 1},      {3, 17, 3, 3, 12},    {2, 33, 6, 2, 5},     {1, 64, 2, 1, 8},    {2, 201, 4, 4, 40},
        {1, 130, 4, 1, 256},  {2, 128, 3, 3, 64},   {2, 256, 12, 12, 64}, {1, 1024, 5, 5, 64}, {2, 384, 8, 2, 128},
        {3, 1601, 5, 1, 64},  {1, 128, 4, 4, 80},   {3, 256, 6, 1, 8},    {2, 256, 32, 8, 64}, {1, 2048, 4, 2, 64},
        {1, 4096, 2, 1, 128}, {2, 257, 4, 2, 256},  {3, 1000, 4, 2, 64},  {2, 384, 2, 2, 192}, {1, 5, 2, 1, 136},
        {1, 1, 2, 1, 64},     {1, 1, 1, 1, 128},    {2, 65, 4, 2, 128},   {1, 193, 4, 4, 64},  {1, 200, 3, 1, 64},
        {1, 200, 2, 1, 128},  {2, 300, 96, 96, 64}, {2, 700, 48, 24, 128}};
    for (int d = 0; d < n_dtypes; ++d) {
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; ++i)
            if (!small || shapes[i].n_batch * shapes[i].seq_len * shapes[i].n_heads < 1000)
                check_attention(dtypes[d], shapes[i], 1.0);
        check_attention(dtypes[d], (attention_shape_t){2, 128, 2, 2, 64}, 3.0);
        if (!small && dtypes[d] != ZERO_FP32) { /* slices of backward side by side: by heads, by sequences */
            check_attention(dtypes[d], (attention_shape_t){1, 4096, 12, 3, 8}, 1.0);
            check_attention(dtypes[d], (attention_shape_t){12, 2000, 3, 3, 8}, 1.0);
        }
        for (int i = 0; i < (small ? 2 : 12); ++i) {
            size_t kv = 1 + random_below(3);
            check_attention(dtypes[d],
                            (attention_shape_t){1 + random_below(3), 1 + random_below(300), kv * (1 + random_below(3)),
                                                kv, 1 + random_below(130)},
                            1.0);
        }
    }
}

/* ---- Attention of a text that grows ---- */

/* Puts the rows first .. first + n_new of a text into the cache and computes them; `earlier` holds -first. */
static zero_status_t grow(tables_t *t, array_t *out, array_t *cache, const array_t *qkv, int32_t *earlier,
                          float *unread, size_t window, attention_shape_t s, size_t first, size_t n_new)
{
    size_t size = zero_dtype_size(qkv->dtype), width = (s.n_heads + 2 * s.n_kv_heads) * s.head_dim;
    const int32_t before = -(int32_t)first;
    const zero_mask_t mask = {first > 0 ? earlier : NULL, window};
    for (size_t i = 0; first > 0 && i < n_new; ++i)
        NEED(cudaMemcpyAsync(earlier + i, &before, sizeof before, cudaMemcpyHostToDevice, t->stream) == cudaSuccess);
    return t->gpu->attention_cached(&t->gpu_ctx, (char *)out->data + first * s.n_heads * s.head_dim * size, unread,
                                    cache->data, (const char *)qkv->data + first * width * size, &mask,
                                    &(attention_shape_t){1, n_new, s.n_heads, s.n_kv_heads, s.head_dim});
}

/* Captures the last position as a CUDA graph while the text is said to have `first` positions before it, and launches
 * it with all of them. */
static zero_status_t grow_by_graph(tables_t *t, array_t *out, array_t *cache, const array_t *qkv, int32_t *earlier,
                                   float *unread, size_t window, attention_shape_t s)
{
    size_t size = zero_dtype_size(qkv->dtype), width = (s.n_heads + 2 * s.n_kv_heads) * s.head_dim;
    size_t last = s.seq_len - 1;
    const int32_t before = -(int32_t)last;
    const zero_mask_t mask = {earlier, window};
    zero_cuda_graph_t *graph = NULL;
    NEED(cudaMemsetAsync(earlier, 0xff, sizeof before, t->stream) == cudaSuccess); /* -1 */
    NEED(t->gpu->record_begin(&t->gpu_ctx) == ZERO_OK);
    zero_status_t status =
        t->gpu->attention_cached(&t->gpu_ctx, (char *)out->data + last * s.n_heads * s.head_dim * size, unread,
                                 cache->data, (const char *)qkv->data + last * width * size, &mask,
                                 &(attention_shape_t){1, 1, s.n_heads, s.n_kv_heads, s.head_dim});
    NEED(t->gpu->record_end(&t->gpu_ctx, &graph) == ZERO_OK);
    NEED(cudaMemcpyAsync(earlier, &before, sizeof before, cudaMemcpyHostToDevice, t->stream) == cudaSuccess);
    if (status == ZERO_OK)
        status = t->gpu->replay(&t->gpu_ctx, graph);
    NEED(cudaStreamSynchronize(t->stream) == cudaSuccess);
    t->gpu->cuda_graph_destroy(graph);
    return status;
}

/* A text of s.seq_len positions: `first` at once, one alone, the rest. The whole is attention's by the formula, and the
 * cache holds its keys and values. Then the rest one by one, the last as a CUDA graph: the same bits, where every row
 * is aligned alike. */
static void check_cached(zero_dtype_t dtype, attention_shape_t s, size_t first, size_t window)
{
    size_t T = s.seq_len, n_out = T * s.n_heads * s.head_dim, kept = 2 * s.n_kv_heads * s.head_dim;
    size_t width = s.n_heads * s.head_dim + kept;
    tables_t t = tables_open(limits_of_attention(s, T + 5, T + 5, dtype));
    check_t c = {.n = 0};
    snprintf(c.what, sizeof c.what, "cached %s T %zu first %zu heads %zu/%zu of %zu window %zu", zero_dtype_name(dtype),
             T, first, s.n_heads, s.n_kv_heads, s.head_dim, window);
    array_t qkv = array_make(T * width, dtype, 0, 0.0, 1.0), out = array_make(n_out, dtype, 0, 0.0, 0.0);
    array_t alone = array_make(n_out, dtype, 0, 0.0, 0.0), cache = array_make(T * kept, dtype, 0, 0.0, 0.0);
    array_t unread = array_make(s.n_heads * T, ZERO_FP32, 0, 0.0, 0.0);
    float *rout = check_output(&c, "out", &out, 64.0 * 0x1p-24 + (dtype == ZERO_FP32 ? 0.0 : 2.0 * unit(dtype)));
    float *rcache = check_output(&c, "cache", &cache, 0.0), *lse = malloc(s.n_heads * T * sizeof *lse);
    float *dqkv = malloc(T * width * sizeof *dqkv), *dout = calloc(n_out, sizeof *dout);
    int32_t *earlier;
    const zero_mask_t host_mask = {NULL, window};
    NEED(lse != NULL && dqkv != NULL && dout != NULL);
    NEED(cudaMalloc((void **)&earlier, T * sizeof *earlier) == cudaSuccess);
    attention_fp64(rout, lse, dqkv, dout, qkv.values, &host_mask, s);
    for (size_t i = 0; i < T; ++i)
        memcpy(rcache + i * kept, qkv.values + (i + 1) * width - kept, kept * sizeof *rcache);
    for (int run = 0; run < 2; ++run) {
        const size_t ends[] = {0, first, first + 1 < T ? first + 1 : T, T};
        zero_status_t status = ZERO_OK;
        for (int i = 0; i < 3 && status == ZERO_OK; ++i)
            if (ends[i] < ends[i + 1])
                status = grow(&t, &out, &cache, &qkv, earlier, unread.data, window, s, ends[i], ends[i + 1] - ends[i]);
        check_run_done(&c, status);
    }
    if (first > 0 && first + 1 < T && width * zero_dtype_size(dtype) % 16 == 0) {
        zero_status_t status = grow(&t, &alone, &cache, &qkv, earlier, unread.data, window, s, 0, first);
        for (size_t i = first; i + 1 < T && status == ZERO_OK; ++i)
            status = grow(&t, &alone, &cache, &qkv, earlier, unread.data, window, s, i, 1);
        if (status == ZERO_OK)
            status = grow_by_graph(&t, &alone, &cache, &qkv, earlier, unread.data, window, s);
        NEED(status == ZERO_OK && cudaStreamSynchronize(t.stream) == cudaSuccess);
        expect_same_bits(&c, "rows one by one, the last by a graph", &alone, &out);
    }
    check_free(&c);
    free(lse), free(dqkv), free(dout);
    cudaFree(earlier);
    array_free(&qkv), array_free(&out), array_free(&alone), array_free(&cache), array_free(&unread);
    tables_close(&t);
}

/* Heads alone and sharing, sizes with and without packs of 16 bytes; chunks of 256 keys not begun, begun and passed;
 * windows of one key, within a chunk and over several. */
static void test_cached(void)
{
    static const size_t firsts[] = {0, 1, 17, 255, 256, 1000}, windows[] = {0, 1, 20, 300};
    static const attention_shape_t shapes[] = {{1, 0, 4, 4, 64}, {1, 0, 8, 2, 128}, {1, 0, 3, 3, 12},
                                               {1, 0, 6, 2, 5},  {1, 0, 4, 1, 256}, {1, 0, 2, 2, 80},
                                               {1, 0, 1, 1, 1},  {1, 0, 2, 1, 130}};
    for (int d = 0; d < n_dtypes; ++d) {
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; ++i)
            for (size_t f = 0; f < sizeof firsts / sizeof firsts[0]; ++f)
                for (size_t w = 0; w < sizeof windows / sizeof windows[0]; ++w) {
                    attention_shape_t s = shapes[i];
                    s.seq_len = firsts[f] + 1 + random_below(9);
                    if ((!small || (f < 3 && w % 2 == 0)) && (i < 2 || w % 3 == f % 3))
                        check_cached(dtypes[d], s, firsts[f], windows[w]);
                }
        if (!small) /* many splits, each of several chunks */
            check_cached(dtypes[d], (attention_shape_t){1, 9003, 8, 2, 16}, 9000, 0);
    }
}

/* ---- Embedding ---- */

static int32_t *random_tokens(size_t n, size_t vocab_size, int32_t **device)
{
    int32_t *tokens = malloc(n * sizeof *tokens);
    NEED(tokens != NULL);
    for (size_t i = 0; i < n; ++i) /* a third is one token, as spaces are in text */
        tokens[i] = (int32_t)(random_below(3) ? random_below(vocab_size) : vocab_size / 2);
    NEED(cudaMalloc((void **)device, n * sizeof *tokens) == cudaSuccess);
    NEED(cudaMemcpy(*device, tokens, n * sizeof *tokens, cudaMemcpyHostToDevice) == cudaSuccess);
    return tokens;
}

static void check_embed(zero_dtype_t dtype, size_t n_batch, size_t seq_len, size_t dim, size_t vocab_size, int flags)
{
    bool accumulate = flags & 1, with_positions = flags & 2;
    documents_t documents = documents_make(n_batch, seq_len, flags & 16 ? 30 : 0);
    zero_dtype_t grad_dtype = flags & 4 ? ZERO_FP32 : dtype;
    size_t rows = n_batch * seq_len, shift = flags & 8 ? 1 + random_below(7) : 0;
    tables_t t = tables_open((zero_model_limits_t){.n_rows = rows,
                                                   .seq_len = seq_len,
                                                   .max_linear = vocab_size * dim,
                                                   .max_width = dim,
                                                   .n_heads = 1,
                                                   .head_dim = dim,
                                                   .vocab_size = vocab_size,
                                                   .dtype = dtype});
    check_t c = {.n = 0};
    snprintf(c.what, sizeof c.what, "embed %s %zux%zux%zu vocabulary %zu flags %d", zero_dtype_name(dtype), n_batch,
             seq_len, dim, vocab_size, flags);
    int32_t *device_tokens, *tokens = random_tokens(rows, vocab_size, &device_tokens);
    array_t table = array_make(vocab_size * dim, dtype, shift, 0.0, 1.0);
    array_t positions = array_make(seq_len * dim, dtype, shift, 0.0, 1.0);
    array_t dout = array_make(rows * dim, dtype, shift, 0.0, 1.0), out = array_make(rows * dim, dtype, shift, 0.0, 0.0);
    array_t dtable = array_grad_target(vocab_size * dim, grad_dtype, shift, accumulate);
    array_t dpositions = array_grad_target(seq_len * dim, grad_dtype, shift, accumulate);
    zero_weight_t none = {.dtype = dtype};
    float *rout = check_output(&c, "out", &out, unit(dtype));
    float *rdt = check_output(&c, "dtokens", &dtable, sum_bound(rows) + unit(grad_dtype));
    float *rdp = with_positions ? check_output(&c, "dpositions", &dpositions,
                                               sum_bound(documents.host ? rows : n_batch) + unit(grad_dtype))
                                : NULL;
    NEED(t.cpu->embed(&t.cpu_ctx, rout, tokens, documents.host, host_weight(&table),
                      with_positions ? host_weight(&positions) : none, n_batch, seq_len, dim, vocab_size) == ZERO_OK);
    NEED(t.cpu->embed_backward(&t.cpu_ctx, (zero_grad_t){rdt, ZERO_FP32, accumulate},
                               (zero_grad_t){rdp, ZERO_FP32, accumulate}, dout.values, tokens, documents.host, n_batch,
                               seq_len, seq_len, dim, vocab_size) == ZERO_OK);
    for (int run = 0; run < 2; ++run) {
        zero_status_t status =
            t.gpu->embed(&t.gpu_ctx, out.data, device_tokens, documents.device, weight_of(&table),
                         with_positions ? weight_of(&positions) : none, n_batch, seq_len, dim, vocab_size);
        zero_grad_t dp = with_positions ? grad_of(&dpositions, accumulate) : (zero_grad_t){NULL, dtype, false};
        if (status == ZERO_OK)
            status = t.gpu->embed_backward(&t.gpu_ctx, grad_of(&dtable, accumulate), dp, dout.data, device_tokens,
                                           documents.device, n_batch, seq_len, seq_len, dim, vocab_size);
        check_run_done(&c, status);
    }
    check_free(&c);
    free(tokens), cudaFree(device_tokens);
    documents_free(&documents);
    array_free(&table), array_free(&positions), array_free(&dout), array_free(&out), array_free(&dtable);
    array_free(&dpositions);
    tables_close(&t);
}

static void test_embed(void)
{
    for (int d = 0; d < n_dtypes; ++d) {
        check_embed(dtypes[d], 1, 1, 1, 1, 0);
        check_embed(dtypes[d], 8, 1024, 64, 50304, 2);
        check_embed(dtypes[d], 8, 1024, 64, 50304, 2 | 16);
        for (int i = 0; i < (small ? 4 : 16); ++i)
            check_embed(dtypes[d], 1 + random_below(4), 1 + random_below(300), random_size(400), 1 + random_below(1000),
                        16 | i);
        for (int i = 0; i < (small ? 4 : 16); ++i)
            check_embed(dtypes[d], 1 + random_below(4), 1 + random_below(300), random_size(400), 1 + random_below(1000),
                        i);
    }
}

/* ---- Blocks ---- */

/* What is between the rows of the result stays as it was. */
static void check_blocks(zero_dtype_t dtype, size_t rows, size_t columns, size_t gap, int n_blocks, size_t shift)
{
    tables_t t = tables_open(limits_of_rows(rows, 1, dtype));
    check_t c = {.n = 0};
    array_t blocks[ZERO_MAX_BLOCKS], dst = array_make(rows * (columns + gap), dtype, shift, 0.0, 1.0);
    zero_block_t list[ZERO_MAX_BLOCKS];
    snprintf(c.what, sizeof c.what, "blocks %s %zux%zu gap %zu of %d, shift %zu", zero_dtype_name(dtype), rows, columns,
             gap, n_blocks, shift);
    float *want = check_output(&c, "dst", &dst, n_blocks == 1 ? 0.0 : 2.0 * unit(dtype));
    for (int b = 0; b < n_blocks; ++b) {
        size_t stride = columns + 8 * (size_t)(b % 3);
        blocks[b] = array_make(rows * stride, dtype, shift, 0.0, 1.0);
        list[b] = (zero_block_t){blocks[b].data, stride};
        for (size_t i = 0; i < rows * columns; ++i) {
            float *sum = &want[i / columns * (columns + gap) + i % columns];
            *sum = blocks[b].values[i / columns * stride + i % columns] + (b > 0 ? *sum : 0.0f);
        }
    }
    for (int run = 0; run < 2; ++run)
        check_run_done(&c, t.gpu->sum_blocks(&t.gpu_ctx, dst.data, columns + gap, list, n_blocks, rows, columns));
    check_free(&c);
    for (int b = 0; b < n_blocks; ++b)
        array_free(&blocks[b]);
    array_free(&dst);
    tables_close(&t);
}

static void test_blocks(void)
{
    for (int d = 0; d < n_dtypes; ++d)
        for (int n_blocks = 1; n_blocks <= ZERO_MAX_BLOCKS; n_blocks *= 4) {
            check_blocks(dtypes[d], 1, 1, 0, n_blocks, 0);
            check_blocks(dtypes[d], 300, 128, 64, n_blocks, 0); /* packs */
            check_blocks(dtypes[d], 33, 130, 3, n_blocks, 1);
        }
}

/* ---- Output head and loss ---- */

#define LOSS_WEIGHT 0.3

/* losses: of both runs; gpu_loss: of the second, with gradients and without. */
static void check_loss_value(const check_t *c, zero_dtype_t dtype, const double losses[2], const double gpu_loss[2],
                             double reference)
{
    output_t o = {.name = "loss"};
    double error = fabs(gpu_loss[0] - reference) / reference, bound = 1e-6 + 2.0 * unit(dtype);
    n_checks += 2;
    if (!(error <= bound))
        fail(c, &o, "too far from the reference", error, bound);
    if (memcmp(&losses[0], &losses[1], sizeof(double)) != 0 || memcmp(&gpu_loss[0], &gpu_loss[1], sizeof(double)) != 0)
        fail(c, &o, "other bits when run again, or without gradients", gpu_loss[0], gpu_loss[1]);
}

static void check_loss(zero_dtype_t dtype, size_t rows, size_t dim, size_t vocab_size, int flags)
{
    bool accumulate = flags & 1, in_place = flags & 2;
    zero_dtype_t grad_dtype = flags & 4 ? ZERO_FP32 : dtype;
    zero_model_limits_t limits = limits_of_rows(rows, dim, dtype);
    limits.max_linear = vocab_size * dim, limits.head_dim = dim, limits.vocab_size = vocab_size;
    limits.may_skip_targets = flags & 8;
    tables_t t = tables_open(limits);
    check_t c = {.n = 0};
    snprintf(c.what, sizeof c.what, "loss %s %zux%zu vocabulary %zu flags %d", zero_dtype_name(dtype), rows, dim,
             vocab_size, flags);
    const float scale = 8.0f;
    int32_t *device_targets, *targets = random_tokens(rows, vocab_size, &device_targets);
    for (size_t r = 0; r < rows && limits.may_skip_targets; ++r)
        targets[r] = r % 3 == 0 ? targets[r] : ZERO_NO_TARGET;
    NEED(cudaMemcpy(device_targets, targets, rows * sizeof *targets, cudaMemcpyHostToDevice) == cudaSuccess);
    array_t x = array_make(rows * dim, dtype, 0, 0.0, 1.0);
    array_t w = array_make(vocab_size * dim, dtype, 0, 0.0, 1.5 / sqrt((double)dim)); /* logits of a few units */
    array_t dx = array_make(rows * dim, dtype, 0, 0.0, 0.0);
    array_t dw = array_grad_target(vocab_size * dim, grad_dtype, 0, accumulate);
    array_t logits = array_make(rows * vocab_size, ZERO_FP32, 0, 0.0, 0.0);
    if (in_place)
        memcpy(dx.values, x.values, x.n * sizeof(float)), upload(&dx);
    array_t device_scale = array_make(1, ZERO_FP32, 0, 0.0, 0.0);
    device_scale.values[0] = scale;
    upload(&device_scale);
    double *device_loss, cpu_loss[2] = {1.5, 1.5}, gpu_loss[2];
    NEED(cudaMalloc((void **)&device_loss, 2 * sizeof *device_loss) == cudaSuccess);
    /* Logits of about 2 are rounded to the dtype, and the relative error of a probability is its logit's error; then
     * their gradient is rounded. */
    double logit_bound = 4.0 * sum_bound(dim) + (dtype == ZERO_FP32 ? 0.0 : 3.0 * unit(dtype));
    float *rdx = check_output(&c, "dx", &dx, logit_bound + sum_bound(vocab_size) + unit(dtype));
    float *rdw = check_output(&c, "dweight", &dw, logit_bound + sum_bound(rows) + unit(grad_dtype));
    float *rl = check_output(&c, "logits", &logits, sum_bound(dim));
    NEED(t.cpu->head_loss(&t.cpu_ctx, &cpu_loss[0], rdx, (zero_grad_t){rdw, ZERO_FP32, accumulate}, x.values,
                          host_weight(&w), targets, LOSS_WEIGHT, &scale, rows, dim, vocab_size) == ZERO_OK);
    NEED(t.cpu->head_logits(&t.cpu_ctx, rl, x.values, host_weight(&w), rows, dim, vocab_size) == ZERO_OK);
    double losses[2];
    for (int run = 0; run < 2; ++run) {
        NEED(cudaMemcpy(device_loss, cpu_loss + 1, sizeof(double), cudaMemcpyHostToDevice) == cudaSuccess);
        NEED(cudaMemcpy(device_loss + 1, cpu_loss + 1, sizeof(double), cudaMemcpyHostToDevice) == cudaSuccess);
        zero_status_t status =
            t.gpu->head_loss(&t.gpu_ctx, device_loss + 1, NULL, (zero_grad_t){0}, x.data, weight_of(&w), device_targets,
                             LOSS_WEIGHT, NULL, rows, dim, vocab_size);
        if (status == ZERO_OK)
            status = t.gpu->head_loss(&t.gpu_ctx, device_loss, dx.data, grad_of(&dw, accumulate),
                                      in_place ? dx.data : x.data, weight_of(&w), device_targets, LOSS_WEIGHT,
                                      device_scale.data, rows, dim, vocab_size);
        if (status == ZERO_OK)
            status = t.gpu->head_logits(&t.gpu_ctx, logits.data, x.data, weight_of(&w), rows, dim, vocab_size);
        check_run_done(&c, status);
        NEED(cudaMemcpy(gpu_loss, device_loss, sizeof gpu_loss, cudaMemcpyDeviceToHost) == cudaSuccess);
        losses[run] = gpu_loss[0];
    }
    check_loss_value(&c, dtype, losses, gpu_loss, cpu_loss[0]);
    check_free(&c);
    free(targets), cudaFree(device_targets), cudaFree(device_loss);
    array_free(&x), array_free(&w), array_free(&dx), array_free(&dw), array_free(&logits), array_free(&device_scale);
    tables_close(&t);
}

static void test_loss(void)
{
    for (int d = 0; d < n_dtypes; ++d) {
        check_loss(dtypes[d], 1, 3, 1, 0);
        check_loss(dtypes[d], 40, 8, 60001, 3); /* rows shared by 2, 4 and 8 blocks, if elements take 16 bits */
        check_loss(dtypes[d], 40, 64, 128256, 2);
        check_loss(dtypes[d], 30, 8, 300011, 8);
        if (!small) {
            check_loss(dtypes[d], 300, 8, 1050000, 0); /* several chunks of logits: 128, 128 and 44 rows */
            check_loss(dtypes[d], 300, 8, 1050000, 1);
            check_loss(dtypes[d], 512, 768, 50257, 2);
        }
        for (int i = 0; i < (small ? 4 : 32); ++i)
            check_loss(dtypes[d], 1 + random_below(300), random_size(200), 1 + random_below(3000), i % 16);
    }
}

/* The loss of fewer rows than the workspace is for: the last batch of an evaluation. 500 rows are two chunks of 256,
 * whose logits and sums take less memory than those of 384 rows, of which a chunk would have room. */
static void test_fewer_rows(void)
{
    const size_t most = 500, rows = 384, dim = 3, vocab_size = 740000;
    zero_model_limits_t limits = limits_of_rows(most, dim, ZERO_BF16);
    limits.max_linear = vocab_size * dim, limits.vocab_size = vocab_size;
    tables_t t = tables_open(limits);
    check_t c = {.what = "loss of 384 rows, of 500 at most"};
    int32_t *device_targets, *targets = random_tokens(rows, vocab_size, &device_targets);
    NEED(cudaMemcpy(device_targets, targets, rows * sizeof *targets, cudaMemcpyHostToDevice) == cudaSuccess);
    array_t x = array_make(rows * dim, ZERO_BF16, 0, 0.0, 1.0),
            w = array_make(vocab_size * dim, ZERO_BF16, 0, 0.0, 1.0);
    const zero_grad_t none = {0};
    double *device_loss, cpu_loss = 0.0, gpu_loss = 0.0;
    NEED(cudaMalloc((void **)&device_loss, sizeof *device_loss) == cudaSuccess);
    NEED(cudaMemset(device_loss, 0, sizeof *device_loss) == cudaSuccess);
    NEED(t.cpu->head_loss(&t.cpu_ctx, &cpu_loss, NULL, none, x.values, host_weight(&w), targets, LOSS_WEIGHT, NULL,
                          rows, dim, vocab_size) == ZERO_OK);
    check_run_done(&c, t.gpu->head_loss(&t.gpu_ctx, device_loss, NULL, none, x.data, weight_of(&w), device_targets,
                                        LOSS_WEIGHT, NULL, rows, dim, vocab_size));
    NEED(cudaMemcpy(&gpu_loss, device_loss, sizeof gpu_loss, cudaMemcpyDeviceToHost) == cudaSuccess);
    check_loss_value(&c, ZERO_BF16, (double[2]){0}, (double[2]){gpu_loss, gpu_loss}, cpu_loss);
    free(targets);
    cudaFree(device_targets), cudaFree(device_loss);
    array_free(&x), array_free(&w);
    tables_close(&t);
}

/* ---- Pairs of documents ---- */

#define BETA 0.4

/* Sets where documents begin, of pairs of 2 to 61 rows: [rows + 1]. */
static void random_documents(size_t rows, int32_t *documents)
{
    size_t n = 0, begin = 0;
    while (begin + 2 <= rows) {
        const size_t left = rows - begin, wanted = 2 + random_below(60), length = wanted < left ? wanted : left;
        documents[n++] = (int32_t)begin;
        documents[n++] = (int32_t)(begin + 1 + random_below(length - 1));
        begin += length;
    }
    while (n <= rows)
        documents[n++] = (int32_t)rows;
}

/* What pair_loss adds to. */
typedef struct pair_sums {
    double loss, of[ZERO_N_PAIR_SUMS];
} pair_sums_t;

static void check_pair_sums(const check_t *c, const pair_sums_t *gpu, const pair_sums_t *again, const pair_sums_t *cpu,
                            double bound)
{
    output_t o = {.name = "sums of pairs"};
    const double *got = &gpu->loss, *want = &cpu->loss;
    n_checks += 2;
    for (int i = 0; i <= ZERO_N_PAIR_SUMS; ++i)
        if (!(fabs(got[i] - want[i]) <= bound * (1.0 + fabs(want[i]))) && i != 1 + ZERO_PAIR_ACCURACY)
            fail(c, &o, "too far from the reference", got[i], want[i]);
    if (memcmp(gpu, again, sizeof *gpu) != 0)
        fail(c, &o, "other bits when run again", gpu->loss, again->loss);
}

/* head_losses of the model and of a reference (other x), then pair_loss, on the GPU and on the CPU. */
static void check_pairs(zero_dtype_t dtype, size_t rows, size_t dim, size_t vocab_size)
{
    zero_model_limits_t limits = limits_of_rows(rows, dim, dtype);
    limits.max_linear = vocab_size * dim, limits.head_dim = dim, limits.vocab_size = vocab_size;
    limits.may_skip_targets = true;
    tables_t t = tables_open(limits);
    check_t c = {.n = 0};
    snprintf(c.what, sizeof c.what, "pairs %s %zux%zu vocabulary %zu", zero_dtype_name(dtype), rows, dim, vocab_size);
    int32_t *device_targets, *targets = random_tokens(rows, vocab_size, &device_targets), *device_documents;
    int32_t *documents = malloc((rows + 1) * sizeof *documents);
    NEED(documents);
    random_documents(rows, documents);
    for (size_t r = 0; r < rows; ++r)
        targets[r] = r % 3 == 0 ? ZERO_NO_TARGET : targets[r];
    NEED(cudaMemcpy(device_targets, targets, rows * sizeof *targets, cudaMemcpyHostToDevice) == cudaSuccess);
    NEED(cudaMalloc((void **)&device_documents, (rows + 1) * sizeof *documents) == cudaSuccess);
    NEED(cudaMemcpy(device_documents, documents, (rows + 1) * sizeof *documents, cudaMemcpyHostToDevice) ==
         cudaSuccess);
    array_t x = array_make(rows * dim, dtype, 0, 0.0, 1.0), x0 = array_make(rows * dim, dtype, 0, 0.0, 1.0);
    array_t w = array_make(vocab_size * dim, dtype, 0, 0.0, 1.5 / sqrt((double)dim));
    array_t dx = array_make(rows * dim, dtype, 0, 0.0, 0.0), device_scale = array_make(1, ZERO_FP32, 0, 0.0, 0.0);
    const float scale = device_scale.values[0] = 8.0f;
    upload(&device_scale);

    /* Host: losses, reference, pairs, factors. Device: the same, behind the sums. */
    const size_t n_doubles = 2 * rows + (ZERO_N_PAIR_SUMS + 1) * (rows / 2 + 1);
    double *host = calloc(n_doubles + rows, sizeof *host), *device;
    pair_sums_t cpu = {0}, gpu[2] = {{0}};
    NEED(host && cudaMalloc((void **)&device, sizeof cpu + (n_doubles + rows) * sizeof *device) == cudaSuccess);
    double *device_arrays = device + 1 + ZERO_N_PAIR_SUMS;
    zero_pair_loss_t pairs = {.loss_sum = &cpu.loss,
                              .sums = cpu.of,
                              .losses = host,
                              .reference = host + rows,
                              .documents = documents,
                              .pairs = host + 2 * rows,
                              .factors = (float *)(host + n_doubles),
                              .beta = BETA,
                              .loss_weight = LOSS_WEIGHT,
                              .n_rows = rows,
                              .dim = dim};
    /* A document's log-probability has the errors of up to 60 rows' logits. */
    const double logit_bound = 4.0 * sum_bound(dim) + (dtype == ZERO_FP32 ? 0.0 : 3.0 * unit(dtype));
    pairs.dx = check_output(&c, "dx", &dx, 20.0 * logit_bound + sum_bound(vocab_size) + 2.0 * unit(dtype));
    NEED(t.cpu->head_losses(&t.cpu_ctx, host + rows, NULL, x0.values, host_weight(&w), targets, 0.0, NULL, rows, dim,
                            vocab_size) == ZERO_OK);
    NEED(t.cpu->head_losses(&t.cpu_ctx, host, pairs.dx, x.values, host_weight(&w), targets, BETA * LOSS_WEIGHT, &scale,
                            rows, dim, vocab_size) == ZERO_OK);
    NEED(t.cpu->pair_loss(&t.cpu_ctx, &pairs) == ZERO_OK);
    pairs.loss_sum = device, pairs.sums = device + 1, pairs.dx = dx.data, pairs.documents = device_documents;
    pairs.losses = device_arrays, pairs.reference = device_arrays + rows, pairs.pairs = device_arrays + 2 * rows;
    pairs.factors = (float *)(device_arrays + n_doubles);
    for (int run = 0; run < 2; ++run) {
        NEED(cudaMemset(device, 0, sizeof cpu) == cudaSuccess);
        zero_status_t status = t.gpu->head_losses(&t.gpu_ctx, device_arrays + rows, NULL, x0.data, weight_of(&w),
                                                  device_targets, 0.0, NULL, rows, dim, vocab_size);
        if (status == ZERO_OK)
            status = t.gpu->head_losses(&t.gpu_ctx, device_arrays, dx.data, x.data, weight_of(&w), device_targets,
                                        BETA * LOSS_WEIGHT, device_scale.data, rows, dim, vocab_size);
        if (status == ZERO_OK)
            status = t.gpu->pair_loss(&t.gpu_ctx, &pairs);
        check_run_done(&c, status);
        NEED(cudaMemcpy(&gpu[run], device, sizeof cpu, cudaMemcpyDeviceToHost) == cudaSuccess);
    }
    check_pair_sums(&c, &gpu[0], &gpu[1], &cpu, 60.0 * (1e-6 + unit(dtype)));
    check_free(&c);
    free(targets), free(documents), free(host);
    cudaFree(device_targets), cudaFree(device_documents), cudaFree(device);
    array_free(&x), array_free(&x0), array_free(&w), array_free(&dx), array_free(&device_scale);
    tables_close(&t);
}

static void test_pairs(void)
{
    for (int d = 0; d < n_dtypes; ++d) {
        check_pairs(dtypes[d], 2, 3, 5);
        check_pairs(dtypes[d], 513, 64, 1000); /* rows in packs */
        if (!small)
            check_pairs(dtypes[d], 2048, 768, 50257);
        for (int i = 0; i < (small ? 2 : 12); ++i)
            check_pairs(dtypes[d], 2 + random_below(600), random_size(200), 1 + random_below(3000));
    }
}

/* Expects NaN in the rows of bad tokens and in no others, from both kernels (by packs and element by element). The
 * table ends near its allocation's end, so compute-sanitizer sees a read beyond it. */
static void check_bad_embed(tables_t *t, const int32_t *device_tokens, const int32_t tokens[3], size_t dim,
                            size_t vocab_size)
{
    array_t table = array_make(vocab_size * dim, ZERO_BF16, 0, 0.0, 1.0);
    array_t out = array_make(3 * dim, ZERO_BF16, 0, 0.0, 1.0);
    NEED(t->gpu->embed(&t->gpu_ctx, out.data, device_tokens, NULL, weight_of(&table),
                       (zero_weight_t){.data = NULL, .dtype = ZERO_BF16}, 1, 3, dim, vocab_size) == ZERO_OK);
    NEED(cudaDeviceSynchronize() == cudaSuccess);
    uint16_t *got = malloc(3 * dim * sizeof *got);
    NEED(got != NULL && cudaMemcpy(got, out.data, 3 * dim * sizeof *got, cudaMemcpyDeviceToHost) == cudaSuccess);
    for (size_t i = 0; i < 3 * dim; ++i) {
        int32_t token = tokens[i / dim];
        float x = value16(got[i], ZERO_BF16);
        bool is_token = token >= 0 && (size_t)token < vocab_size;
        ++n_checks;
        if (is_token ? x != table.values[(size_t)token * dim + i % dim] : !isnan(x)) {
            ++n_failed;
            printf("FAILED bad tokens: token %d of %zu gives %g\n", token, vocab_size, (double)x);
        }
    }
    free(got);
    array_free(&table), array_free(&out);
}

/* A target or token outside the vocabulary cannot be refused on the GPU, so it must give NaN. */
static void test_bad_tokens(void)
{
    tables_t t = tables_open((zero_model_limits_t){.n_rows = 3,
                                                   .seq_len = 3,
                                                   .max_linear = 40,
                                                   .max_width = 8,
                                                   .n_heads = 1,
                                                   .head_dim = 8,
                                                   .vocab_size = 5,
                                                   .dtype = ZERO_BF16});
    static const int32_t bad[] = {-1, 5, INT32_MIN, INT32_MAX};
    array_t x = array_make(24, ZERO_BF16, 0, 0.0, 1.0), w = array_make(40, ZERO_BF16, 0, 0.0, 1.0);
    int32_t *targets;
    double *device_loss, loss;
    NEED(cudaMalloc((void **)&targets, 3 * sizeof *targets) == cudaSuccess);
    NEED(cudaMalloc((void **)&device_loss, sizeof loss) == cudaSuccess);
    for (size_t i = 0; i < 4; ++i) {
        int32_t some[3] = {0, 4, bad[i]};
        NEED(cudaMemcpy(targets, some, sizeof some, cudaMemcpyHostToDevice) == cudaSuccess);
        NEED(cudaMemset(device_loss, 0, sizeof loss) == cudaSuccess);
        NEED(t.gpu->head_loss(&t.gpu_ctx, device_loss, NULL, (zero_grad_t){0}, x.data, weight_of(&w), targets, 1.0,
                              NULL, 3, 8, 5) == ZERO_OK);
        NEED(cudaDeviceSynchronize() == cudaSuccess);
        NEED(cudaMemcpy(&loss, device_loss, sizeof loss, cudaMemcpyDeviceToHost) == cudaSuccess);
        ++n_checks;
        if (!isnan(loss)) {
            ++n_failed;
            printf("FAILED bad tokens: target %d gives a loss of %g\n", bad[i], loss);
        }
        check_bad_embed(&t, targets, some, 8, 5); /* a pack is a row */
        check_bad_embed(&t, targets, some, 7, 5);
    }
    cudaFree(targets), cudaFree(device_loss);
    array_free(&x), array_free(&w);
    tables_close(&t);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } tests[] = {{"linear", test_linear},
                 {"product", test_product},
                 {"narrow", test_narrow},
                 {"choice", test_choice},
                 {"layernorm", test_layernorm},
                 {"rmsnorm", test_rmsnorm},
                 {"head_norm", test_head_norm},
                 {"projection_norm", test_projection_norm},
                 {"masks", test_masks},
                 {"rope", test_rope},
                 {"swiglu", test_swiglu},
                 {"geglu", test_geglu},
                 {"gated adapters", test_gated_adapters},
                 {"elementwise", test_elementwise},
                 {"attention", test_attention},
                 {"cached", test_cached},
                 {"embed", test_embed},
                 {"blocks", test_blocks},
                 {"loss", test_loss},
                 {"fewer rows", test_fewer_rows},
                 {"pairs", test_pairs},
                 {"bad tokens", test_bad_tokens}};
    const char *only = NULL;
    for (int i = 1; i < argc; ++i) {
        if (strcmp(argv[i], "small") == 0)
            small = true;
        else if (strcmp(argv[i], "fp32") == 0)
            n_dtypes = 1;
        else if (argv[i][0] >= '0' && argv[i][0] <= '9')
            seed = strtoull(argv[i], NULL, 10);
        else
            only = argv[i];
    }
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; ++i) {
        int checks_before = n_checks, failed_before = n_failed;
        if (only != NULL && strcmp(only, tests[i].name) != 0)
            continue;
        tests[i].run();
        printf("%-12s %5d checks, %d failed\n", tests[i].name, n_checks - checks_before, n_failed - failed_before);
        fflush(stdout);
    }
    return n_failed == 0 ? 0 : 1;
}
