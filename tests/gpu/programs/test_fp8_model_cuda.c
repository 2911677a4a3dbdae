/* test_fp8_model_cuda.c - fp8 on a GPU: casts against the CPU's to the byte, products against fp64.
 *
 * The CPU's casts are compared with the formats' definition by tests/unit/kernels/test_fp8.c. Outputs lie between
 * guards. Does not use Check, which machines with GPUs may lack.
 *
 *     test_fp8_model_cuda [small [casts]]
 *
 * prints a line for each claim; exits with 1 if one failed. small: fewer and smaller cases, for
 * compute-sanitizer; casts: those alone, without cuBLASLt's kernels.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "kernels/float_bits.h"
#include "train/kernels/kernels.h"

#define PROGRAM "test_fp8_model_cuda"
#include "tests/gpu/programs/guarded.h"

static bool small;

/* ---- The GPU's and the CPU's tables ---- */

typedef struct session {
    const zero_model_kernels_t *kernels;
    zero_model_context_t ctx;
    void *workspace;
    cudaStream_t stream;
} session_t;

static session_t gpu, cpu;

static const zero_model_limits_t limits = {.n_rows = 4096,
                                           .seq_len = 16,
                                           .max_linear = 4096,
                                           .max_width = 4096,
                                           .n_heads = 1,
                                           .head_dim = 16,
                                           .vocab_size = 16,
                                           .dtype = ZERO_BF16,
                                           .fp8 = true};

static void open_sessions(void)
{
    gpu.kernels = zero_model_kernels_cuda();
    cpu.kernels = zero_model_kernels_cpu();
    NEED(cudaStreamCreateWithFlags(&gpu.stream, cudaStreamNonBlocking) == cudaSuccess);
    NEED(cudaMalloc(&gpu.workspace, gpu.kernels->workspace_bytes(&limits)) == cudaSuccess);
    NEED(gpu.kernels->context_create(&gpu.ctx, (zero_stream_t)gpu.stream, gpu.workspace, &limits) == ZERO_OK);
    cpu.workspace = host_new(cpu.kernels->workspace_bytes(&limits));
    NEED(cpu.kernels->context_create(&cpu.ctx, NULL, cpu.workspace, &limits) == ZERO_OK);
}

static void close_sessions(void)
{
    gpu.kernels->context_destroy(&gpu.ctx);
    NEED(cudaFree(gpu.workspace) == cudaSuccess);
    NEED(cudaStreamDestroy(gpu.stream) == cudaSuccess);
    cpu.kernels->context_destroy(&cpu.ctx);
    free(cpu.workspace);
}

/* ---- Casts ---- */

enum { BOTH, ROWS, COLUMNS, N_ORIENTATIONS };

/* Casts x on both devices and compares bytes and scales. absmax 0: measured. */
static bool cast_agrees(const uint16_t *x, zero_fp8_format_t format, uint32_t absmax, int orientation, size_t n_rows,
                        size_t n_columns)
{
    size_t n = n_rows * n_columns;
    float *values = host_new(n * sizeof *values);
    uint8_t *want[2] = {host_new(n), host_new(n)}, *is = host_new(n);
    zero_fp8_scales_t want_scales = {.absmax = absmax}, is_scales = want_scales;
    for (size_t i = 0; i < n; ++i)
        values[i] = float_of_bf16(x[i]);
    zero_fp8_t of_cpu = {format, want[0], want[1], &want_scales};
    NEED(cpu.kernels->fp8_cast(&cpu.ctx, &of_cpu, values, absmax != 0, n_rows, n_columns) == ZERO_OK);
    unsigned char *from = device_of(x, n * sizeof *x), *scales = device_of(&is_scales, sizeof is_scales);
    unsigned char *rows = orientation == COLUMNS ? NULL : device_new(n);
    unsigned char *columns = orientation == ROWS ? NULL : device_new(n);
    zero_fp8_t of_gpu = {format, rows, columns, (zero_fp8_scales_t *)(void *)scales};
    NEED(gpu.kernels->fp8_cast(&gpu.ctx, &of_gpu, from, absmax != 0, n_rows, n_columns) == ZERO_OK);
    bool agrees = device_get(&is_scales, scales, sizeof is_scales);
    agrees = agrees && is_scales.scale == want_scales.scale && is_scales.absmax == want_scales.absmax &&
             (is_scales.inverse == want_scales.inverse || (isnan(is_scales.inverse) && isnan(want_scales.inverse)));
    if (rows != NULL)
        agrees = device_get(is, rows, n) && memcmp(is, want[0], n) == 0 && agrees;
    if (columns != NULL)
        agrees = device_get(is, columns, n) && memcmp(is, want[1], n) == 0 && agrees;
    device_free(from), device_free(scales), device_free(rows), device_free(columns);
    free(values), free(want[0]), free(want[1]), free(is);
    return agrees;
}

static const size_t extents[][2] = {{16, 16}, {16, 1040}, {144, 272}, {128, 128}, {2064, 16}, {1552, 2064}};

static void casts_of_random_matrices_equal_the_cpus(void)
{
    static const float stds[] = {1.0f, 3e-7f, 2e4f, 1e-38f};
    bool agrees = true;
    for (size_t e = 0; e < (small ? 4 : sizeof extents / sizeof *extents); ++e)
        for (size_t i = 0; i < 4; ++i) {
            size_t n = extents[e][0] * extents[e][1];
            uint16_t *x = host_new(n * sizeof *x);
            for (size_t j = 0; j < n; ++j)
                x[j] = truncated_bf16(stds[i] * random_normal());
            for (int o = 0; o < N_ORIENTATIONS; ++o)
                for (int format = 0; format < 2; ++format)
                    if (!cast_agrees(x, (zero_fp8_format_t)format, 0, o, extents[e][0], extents[e][1])) {
                        printf("        %zu x %zu, std %g, format %d, orientation %d\n", extents[e][0], extents[e][1],
                               (double)stds[i], format, o);
                        agrees = false;
                    }
            free(x);
        }
    report(agrees, "casts of random matrices equal the CPU's", "");
}

/* All 65536 numbers, with the scale 1: denormals, saturation, Inf, NaN. */
static void casts_of_every_bf16_number_equal_the_cpus(void)
{
    uint16_t *x = host_new(65536 * sizeof *x);
    for (size_t i = 0; i < 65536; ++i)
        x[i] = (uint16_t)i;
    bool agrees = cast_agrees(x, ZERO_E4M3, zero_bits_of_float(448.0f), BOTH, 256, 256) &&
                  cast_agrees(x, ZERO_E5M2, zero_bits_of_float(57344.0f), BOTH, 256, 256);
    report(agrees, "casts of every bf16 number equal the CPU's", "");
    free(x);
}

static void scales_of_zeros_and_of_what_is_not_finite_equal_the_cpus(void)
{
    static const uint16_t worst[] = {0, 0x8000, 0x7f80, 0xff80, 0x7fc0, 0xffc1};
    bool agrees = true;
    for (size_t i = 0; i < sizeof worst / sizeof *worst; ++i) {
        uint16_t x[48 * 32] = {[777] = worst[i]};
        for (size_t j = 0; i > 1 && j < 777; ++j)
            x[j] = truncated_bf16(random_normal());
        uint32_t quiet = zero_fp8_magnitude(float_of_bf16(worst[i]));
        agrees = cast_agrees(x, ZERO_E5M2, i < 2 ? 0 : quiet, BOTH, 48, 32) && agrees;
        agrees = cast_agrees(x, ZERO_E4M3, 0, BOTH, 48, 32) && agrees;
    }
    report(agrees, "scales of zeros and of what is not finite equal the CPU's", "");
}

static void transposes_are_transposes(void)
{
    bool agrees = true;
    for (size_t e = 0; e < (small ? 4 : sizeof extents / sizeof *extents); ++e) {
        size_t n_rows = extents[e][0], n_columns = extents[e][1], n = n_rows * n_columns;
        uint8_t *rows = host_new(n), *is = host_new(n);
        for (size_t i = 0; i < n; ++i)
            rows[i] = (uint8_t)random_bits();
        unsigned char *from = device_of(rows, n), *to = device_new(n);
        NEED(gpu.kernels->fp8_transpose(&gpu.ctx, to, from, n_rows, n_columns) == ZERO_OK);
        agrees = device_get(is, to, n) && agrees;
        for (size_t i = 0; i < n; ++i)
            agrees = agrees && is[i % n_columns * n_rows + i / n_columns] == rows[i];
        device_free(from), device_free(to);
        free(rows), free(is);
    }
    report(agrees, "transposes are transposes", "");
}

/* ---- Products ---- */

/* A random matrix, in both orientations on the device. */
typedef struct matrix {
    zero_fp8_t x8;
    unsigned char *rows, *columns, *scales;
    double *values; /* [n_rows, n_columns], what the bytes stand for */
} matrix_t;

static matrix_t matrix_new(zero_fp8_format_t format, size_t n_rows, size_t n_columns, float std)
{
    matrix_t m = {.values = host_new(n_rows * n_columns * sizeof(double))};
    size_t n = n_rows * n_columns;
    float *x = host_new(n * sizeof *x);
    uint8_t *rows = host_new(n), *columns = host_new(n);
    zero_fp8_scales_t scales;
    zero_fp8_t of_cpu = {format, rows, columns, &scales};
    for (size_t i = 0; i < n; ++i)
        x[i] = std * random_normal();
    NEED(cpu.kernels->fp8_cast(&cpu.ctx, &of_cpu, x, false, n_rows, n_columns) == ZERO_OK);
    for (size_t i = 0; i < n; ++i)
        m.values[i] = (double)zero_float_of_fp8(format, rows[i]) * (double)scales.inverse;
    m.rows = device_of(rows, n), m.columns = device_of(columns, n), m.scales = device_of(&scales, sizeof scales);
    m.x8 = (zero_fp8_t){format, m.rows, m.columns, (zero_fp8_scales_t *)(void *)m.scales};
    free(x), free(rows), free(columns);
    return m;
}

static void matrix_free(matrix_t *m)
{
    device_free(m->rows), device_free(m->columns), device_free(m->scales);
    free(m->values);
}

/* A matrix of fp64 and how to read it: element (i, j) is at i * row + j * column. */
typedef struct view {
    const double *values;
    size_t row, column;
} view_t;

static double dot(view_t a, size_t i, view_t b, size_t j, size_t k)
{
    double sum = 0.0;
    for (size_t l = 0; l < k; ++l)
        sum += a.values[i * a.row + l * a.column] * b.values[l * b.row + j * b.column];
    return sum;
}

static double element(const void *data, zero_dtype_t dtype, size_t i)
{
    return dtype == ZERO_FP32 ? (double)((const float *)data)[i] : (double)float_of_bf16(((const uint16_t *)data)[i]);
}

static zero_status_t launch_forward(void *y, bool accumulate, const matrix_t *x, const matrix_t *w,
                                    zero_linear_layout_t layout, const void *bias, const size_t *s)
{
    return gpu.kernels->linear_fp8(&gpu.ctx, y, accumulate, &x->x8, &w->x8, layout,
                                   (zero_weight_t){.data = bias, .dtype = ZERO_BF16}, s[0], s[1], s[2]);
}

static double unit(zero_dtype_t dtype) /* the largest relative error of one rounding */
{
    return dtype == ZERO_FP32 ? 0x1p-24 : 0x1p-8;
}

/* Compares c[m, n], already computed twice, with a b + before + bias. Prints the relative error in the Euclidean norm.
 */
typedef struct product {
    const char *name;
    view_t a, b;
    size_t m, n, k;
    const float *before, *bias; /* NULL: none */
    zero_dtype_t dtype;
    double sum_bound;
} product_t;

static void expect_product(const product_t *p, unsigned char *const c[2])
{
    size_t n = p->m * p->n, n_bytes = n * zero_dtype_size(p->dtype);
    unsigned char *is = host_new(n_bytes), *again = host_new(n_bytes);
    double difference = 0.0, norm = 0.0;
    char claim[160], measured[80];
    bool whole = device_get(is, c[0], n_bytes) & device_get(again, c[1], n_bytes);
    for (size_t i = 0; i < n; ++i) {
        double want = dot(p->a, i / p->n, p->b, i % p->n, p->k);
        want += (p->before != NULL ? (double)p->before[i] : 0.0) + (p->bias != NULL ? (double)p->bias[i % p->n] : 0.0);
        double off = element(is, p->dtype, i) - want;
        difference += off * off;
        norm += want * want;
    }
    double error = sqrt(difference / norm), bound = p->sum_bound + unit(p->dtype);
    if (p->before != NULL || p->bias != NULL)
        bound += unit(p->dtype); /* cuBLASLt rounds before it adds c, too */
    snprintf(claim, sizeof claim, "%-12s %4zu x %4zu x %4zu%s%s %s equals fp64, and itself", p->name, p->m, p->n, p->k,
             p->bias != NULL ? " + bias" : "", p->before != NULL ? " + before" : "",
             p->dtype == ZERO_FP32 ? "fp32" : "bf16");
    snprintf(measured, sizeof measured, ": error %.2e, bound %.2e", error, bound);
    report(whole && error <= bound && memcmp(is, again, n_bytes) == 0, claim, measured);
    free(is), free(again);
}

/* A sum of k products in the tensor cores keeps 13 bits behind the point and drops what is below, once every 32
 * products, on average half a unit. Without fast accumulation such sums end after 128 products. */
static double sum_bound(size_t k, bool fast)
{
    double steps = fast ? (double)k / 32.0 : 4.0;
    return 0x1p-13 * (steps > 4.0 ? steps / 2.0 : 2.0);
}

/* Returns what a product is added to, of about its size; in bf16 on the device, two times. */
static float *values_before(size_t n, double size, unsigned char *bytes[2])
{
    float *before = host_new(n * sizeof *before);
    uint16_t *halves = host_new(n * sizeof *halves);
    for (size_t i = 0; i < n; ++i)
        before[i] = float_of_bf16(halves[i] = truncated_bf16((float)(size * random_normal())));
    for (int i = 0; i < 2; ++i)
        bytes[i] = device_of(halves, n * sizeof *halves);
    free(halves);
    return before;
}

static void check_forward(const size_t *s, zero_linear_layout_t layout, size_t bias_shift, bool with_bias,
                          bool accumulate)
{
    bool in_out = layout == ZERO_LINEAR_IN_OUT;
    matrix_t x = matrix_new(ZERO_E4M3, s[0], s[1], 1.0f);
    matrix_t w = matrix_new(ZERO_E4M3, in_out ? s[1] : s[2], in_out ? s[2] : s[1], 0.02f);
    uint16_t *bias = host_new((s[2] + bias_shift) * sizeof *bias);
    float *bias_values = host_new(s[2] * sizeof *bias_values);
    for (size_t i = 0; i < s[2]; ++i)
        bias_values[i] = float_of_bf16(bias[i + bias_shift] = truncated_bf16(random_normal()));
    unsigned char *of_bias = device_of(bias, (s[2] + bias_shift) * sizeof *bias);
    unsigned char *y[2];
    float *before = values_before(s[0] * s[2], 0.02 * sqrt((double)s[1]), y);
    for (int i = 0; i < 2; ++i)
        NEED(launch_forward(y[i], accumulate, &x, &w, layout, with_bias ? of_bias + bias_shift * 2 : NULL, s) ==
             ZERO_OK);
    expect_product(&(product_t){"forward",
                                {x.values, s[1], 1},
                                {w.values, in_out ? s[2] : 1, in_out ? 1 : s[1]},
                                s[0],
                                s[2],
                                s[1],
                                accumulate ? before : NULL,
                                with_bias ? bias_values : NULL,
                                ZERO_BF16,
                                sum_bound(s[1], true)},
                   y);
    matrix_free(&x), matrix_free(&w);
    device_free(of_bias), device_free(y[0]), device_free(y[1]);
    free(bias), free(bias_values), free(before);
}

static void check_backward_input(const size_t *s, zero_linear_layout_t layout, bool accumulate)
{
    bool in_out = layout == ZERO_LINEAR_IN_OUT;
    matrix_t dy = matrix_new(ZERO_E5M2, s[0], s[2], 1e-3f);
    matrix_t w = matrix_new(ZERO_E4M3, in_out ? s[1] : s[2], in_out ? s[2] : s[1], 0.02f);
    unsigned char *dx[2];
    float *before = values_before(s[0] * s[1], 2e-5 * sqrt((double)s[2]), dx);
    for (int i = 0; i < 2; ++i)
        NEED(gpu.kernels->linear_fp8_backward_input(&gpu.ctx, dx[i], accumulate, &dy.x8, &w.x8, layout, s[0], s[1],
                                                    s[2]) == ZERO_OK);
    expect_product(&(product_t){"d input",
                                {dy.values, s[2], 1},
                                {w.values, in_out ? 1 : s[1], in_out ? s[2] : 1},
                                s[0],
                                s[1],
                                s[2],
                                accumulate ? before : NULL,
                                NULL,
                                ZERO_BF16,
                                sum_bound(s[2], false)},
                   dx);
    matrix_free(&dy), matrix_free(&w);
    device_free(dx[0]), device_free(dx[1]);
    free(before);
}

static void check_backward_weight(const size_t *s, zero_linear_layout_t layout, zero_dtype_t dtype, bool accumulate)
{
    bool in_out = layout == ZERO_LINEAR_IN_OUT;
    size_t n = s[1] * s[2], size = zero_dtype_size(dtype), m = in_out ? s[1] : s[2];
    matrix_t dy = matrix_new(ZERO_E5M2, s[0], s[2], 1.0f), x = matrix_new(ZERO_E4M3, s[0], s[1], 1.0f);
    float *before = host_new(n * sizeof *before);
    uint16_t *halves = host_new(n * sizeof *halves);
    for (size_t i = 0; i < n; ++i)
        before[i] = float_of_bf16(halves[i] = truncated_bf16(random_normal()));
    const void *start = dtype == ZERO_FP32 ? (void *)before : (void *)halves;
    unsigned char *dw[2] = {device_of(start, n * size), device_of(start, n * size)};
    for (int i = 0; i < 2; ++i)
        NEED(gpu.kernels->linear_fp8_backward_weight(&gpu.ctx, (zero_grad_t){dw[i], dtype, accumulate}, layout, &x.x8,
                                                     &dy.x8, s[0], s[1], s[2]) == ZERO_OK);
    expect_product(&(product_t){"d weight",
                                {in_out ? x.values : dy.values, 1, in_out ? s[1] : s[2]},
                                {in_out ? dy.values : x.values, in_out ? s[2] : s[1], 1},
                                m,
                                n / m,
                                s[0],
                                accumulate ? before : NULL,
                                NULL,
                                dtype,
                                sum_bound(s[0], false)},
                   dw);
    matrix_free(&dy), matrix_free(&x);
    device_free(dw[0]), device_free(dw[1]);
    free(before), free(halves);
}

static void products_equal_fp64(void)
{
    static const size_t shapes[][3] = {
        {16, 16, 16}, {48, 80, 112}, {272, 1040, 144}, {128, 256, 1040}, {1040, 272, 256}};
    for (size_t i = 0; i < (small ? 2 : sizeof shapes / sizeof *shapes); ++i)
        for (int layout = 0; layout < 2; ++layout) {
            check_forward(shapes[i], (zero_linear_layout_t)layout, 0, false, false);
            check_forward(shapes[i], (zero_linear_layout_t)layout, 0, false, true);
            check_forward(shapes[i], (zero_linear_layout_t)layout, 0, true, false);
            check_forward(shapes[i], (zero_linear_layout_t)layout, 1, true, false);
            check_backward_input(shapes[i], (zero_linear_layout_t)layout, false);
            check_backward_input(shapes[i], (zero_linear_layout_t)layout, true);
            for (int flags = 0; flags < 4; ++flags)
                check_backward_weight(shapes[i], (zero_linear_layout_t)layout, flags & 1 ? ZERO_FP32 : ZERO_BF16,
                                      flags & 2);
        }
}

static void what_is_not_finite_makes_a_product_nan(void)
{
    static const size_t s[] = {32, 48, 64};
    matrix_t x = matrix_new(ZERO_E4M3, s[0], s[1], INFINITY), w = matrix_new(ZERO_E4M3, s[2], s[1], 1.0f);
    unsigned char *y = device_new(s[0] * s[2] * 2);
    uint16_t is[32 * 64];
    NEED(launch_forward(y, false, &x, &w, ZERO_LINEAR_OUT_IN, NULL, s) == ZERO_OK);
    bool all = device_get(is, y, sizeof is);
    for (size_t i = 0; i < sizeof is / sizeof *is; ++i)
        all = all && isnan(float_of_bf16(is[i]));
    report(all, "what is not finite makes a product NaN", "");
    matrix_free(&x), matrix_free(&w), device_free(y);
}

/* Every byte with several scales, in whole packs and in what is left of them. A NaN may have other bits. */
static void widened_bytes_equal_the_cpus(void)
{
    static const size_t sizes[] = {1, 15, 16, 255, 4096, 4113, 65536 + 7};
    static const float inverses[] = {1.0f, 0x1p-9f, 0.0078125f * 3.0f, 1e-38f};
    bool agrees = true;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
        const size_t n = sizes[i];
        uint8_t *bytes = host_new(n);
        uint16_t *want = host_new(n * sizeof *want), *is = host_new(n * sizeof *is);
        zero_fp8_scales_t own = {.scale = 1.0f, .inverse = inverses[i % 4]};
        for (size_t j = 0; j < n; ++j)
            bytes[j] = (uint8_t)(j * 97 + i);
        NEED(cpu.kernels->fp8_widen(&cpu.ctx, want, (zero_fp8_param_t){bytes, &own}, n) == ZERO_OK);
        unsigned char *from = device_of(bytes, n), *scales = device_of(&own, sizeof own), *to = device_new(2 * n);
        const zero_fp8_param_t param = {from, (const zero_fp8_scales_t *)(const void *)scales};
        NEED(gpu.kernels->fp8_widen(&gpu.ctx, to, param, n) == ZERO_OK);
        agrees = device_get(is, to, 2 * n) && agrees;
        for (size_t j = 0; j < n; ++j)
            agrees = agrees && (is[j] == want[j] || (isnan(float_of_bf16(is[j])) && isnan(float_of_bf16(want[j]))));
        device_free(from), device_free(scales), device_free(to);
        free(bytes), free(want), free(is);
    }
    report(agrees, "widened bytes equal the CPU's", "");
}

static void contexts_of_other_dtypes_are_refused(void)
{
    zero_model_limits_t fp32 = limits;
    zero_model_context_t ctx;
    char why[ZERO_MODEL_WHY];
    fp32.dtype = ZERO_FP32;
    bool available = gpu.kernels->fp8_is_available(&gpu.ctx, why);
    report(available, "fp8 is available to a bf16 context", available ? "" : why);
    NEED(gpu.kernels->context_create(&ctx, (zero_stream_t)gpu.stream, gpu.workspace, &fp32) == ZERO_OK);
    bool refused = !gpu.kernels->fp8_is_available(&ctx, why) && strstr(why, "fp32") != NULL;
    report(refused, "fp8 is not available to an fp32 context: ", why);
    gpu.kernels->context_destroy(&ctx);
}

int main(int argc, char **argv)
{
    small = argc > 1 && strcmp(argv[1], "small") == 0;
    open_sessions();
    contexts_of_other_dtypes_are_refused();
    casts_of_every_bf16_number_equal_the_cpus();
    casts_of_random_matrices_equal_the_cpus();
    scales_of_zeros_and_of_what_is_not_finite_equal_the_cpus();
    transposes_are_transposes();
    widened_bytes_equal_the_cpus();
    if (argc < 3 || strcmp(argv[2], "casts") != 0) {
        products_equal_fp64();
        what_is_not_finite_makes_a_product_nan();
    }
    close_sessions();
    printf("fp8: %d failed\n", n_failed);
    return n_failed != 0;
}
