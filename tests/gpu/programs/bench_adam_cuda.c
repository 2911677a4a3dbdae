/* bench_adam_cuda.c - bytes per second of the shard kernels on CUDA beside those of cudaMemcpy from device to device,
 * in one run: rounds in which they take turns, the median of each.
 *
 * The bytes that must move are counted: a copy reads and writes each byte; AdamW reads the gradient, m, v and what
 * holds the master weights, and writes all but the gradient: 28 bytes per parameter in fp32 and bf16 (whose parameter
 * is half of the master weight), 30 in fp16. With 8-bit moments, m and v have 68 bytes for 64 parameters, not 256.
 *
 *     bench_adam_cuda [N_PARAMS]        10^9 by default; takes 29 bytes of device memory each
 */
#include <stdio.h>
#include <stdlib.h>

#include <cuda_runtime_api.h>

#include "kernels/shard.h"
#include "kernels/step_math.h"

enum { N_WARMUP = 3, N_ROUNDS = 21, N_SEGMENTS = 580 }; /* GPT-2 1558M has 580 tensors */

#define REQUIRE(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "bench_adam_cuda: %s does not hold (CUDA: %s)\n", #condition,                              \
                    cudaGetErrorString(cudaPeekAtLastError()));                                                        \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static const zero_shard_kernels_t *cuda;
static size_t n_params;

/* Device memory. Each form of AdamW has parameters of its own; m, v and grad are shared. */
static struct {
    float *param32, *low16f, *m, *v, *grad;
    uint16_t *param_bf16, *param_fp16;
    int16_t *low_bf16;
    zero_block8_t *m8, *v8;
    zero_norm_t *norm;
    zero_contribution_t *contribution;
    zero_adam_scalars_t *scalars;
    zero_adam_segment_t *one_segment, *segments;
} d;

static void *device_alloc(size_t n_bytes)
{
    void *memory;
    REQUIRE(cudaMalloc(&memory, n_bytes) == cudaSuccess && cudaMemset(memory, 0, n_bytes) == cudaSuccess);
    return memory;
}

static void upload(void *to, const void *from, size_t n_bytes)
{
    REQUIRE(cudaMemcpy(to, from, n_bytes, cudaMemcpyHostToDevice) == cudaSuccess);
}

static void set_scalars(float beta2)
{
    zero_adam_scalars_t scalars;
    zero_adam_scalars_decide(&scalars, 1e-4f, 0.9f, beta2, 1e-8f, 1.0f, 1.0f, 1.0f, 10);
    upload(d.scalars, &scalars, sizeof scalars);
}

static zero_adam_t adam_args(zero_dtype_t dtype, bool many_segments)
{
    return (zero_adam_t){
        .param_dtype = dtype,
        .param = dtype == ZERO_FP32   ? (void *)d.param32
                 : dtype == ZERO_BF16 ? d.param_bf16
                                      : d.param_fp16,
        .master_lo = dtype == ZERO_FP32   ? NULL
                     : dtype == ZERO_BF16 ? (void *)d.low_bf16
                                          : (void *)d.low16f,
        .m = d.m,
        .v = d.v,
        .grad = d.grad,
        .segments = many_segments ? d.segments : d.one_segment,
        .n_segments = many_segments ? N_SEGMENTS : 1,
        .state_begin = 0,
        .state_end = n_params,
        .scalars = d.scalars,
    };
}

static void prepare(void)
{
    d.param32 = device_alloc(n_params * 4);
    d.low16f = device_alloc(n_params * 4);
    d.m = device_alloc(n_params * 4);
    d.v = device_alloc(n_params * 4);
    d.grad = device_alloc(n_params * 4);
    d.param_bf16 = device_alloc(n_params * 2);
    d.param_fp16 = device_alloc(n_params * 2);
    d.low_bf16 = device_alloc(n_params * 2);
    d.m8 = device_alloc((n_params / ZERO_BLOCK8_ELEMS + 1) * sizeof *d.m8);
    d.v8 = device_alloc((n_params / ZERO_BLOCK8_ELEMS + 1) * sizeof *d.v8);
    d.norm = device_alloc(sizeof *d.norm);
    d.contribution = device_alloc(sizeof *d.contribution);
    d.scalars = device_alloc(sizeof *d.scalars);
    d.one_segment = device_alloc(sizeof *d.one_segment);
    d.segments = device_alloc(N_SEGMENTS * sizeof *d.segments);

    static zero_adam_segment_t segments[N_SEGMENTS];
    const size_t length = n_params / N_SEGMENTS / 64 * 64;
    for (size_t s = 0; s < N_SEGMENTS; ++s) {
        const size_t at = s * length;
        segments[s] = (zero_adam_segment_t){.n_elems = s + 1 < N_SEGMENTS ? length : n_params - at,
                                            .param = at,
                                            .state = at,
                                            .grad = at,
                                            .decay = s % 2 ? 0.1f : 0.0f};
    }
    upload(d.segments, segments, sizeof segments);
    const zero_adam_segment_t whole = {.n_elems = n_params, .decay = 0.1f};
    upload(d.one_segment, &whole, sizeof whole);

    REQUIRE(cuda->fill_normal(d.grad, n_params, 1, 1, 0, 1e-3f, NULL) == ZERO_OK);
    REQUIRE(cuda->fill_normal(d.param32, n_params, 1, 2, 0, 0.02f, NULL) == ZERO_OK);
    REQUIRE(cuda->split_master(d.param_bf16, d.low_bf16, ZERO_BF16, d.param32, n_params, NULL) == ZERO_OK);
    REQUIRE(cuda->split_master(d.param_fp16, d.low16f, ZERO_FP16, d.param32, n_params, NULL) == ZERO_OK);
    /* With beta2 = 0 v becomes the squared gradient, a number that AdamW can meet. */
    set_scalars(0.0f);
    const zero_adam_t args = adam_args(ZERO_FP32, false);
    REQUIRE(cuda->adam(&args, NULL) == ZERO_OK);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    set_scalars(0.95f);
}

/* ---- What is measured ----------------------------------------------------------------------------------------------
 */

static void copy(int unused)
{
    (void)unused;
    REQUIRE(cudaMemcpyAsync(d.low16f, d.param32, n_params * 4, cudaMemcpyDeviceToDevice, NULL) == cudaSuccess);
}

static void adam(int dtype)
{
    const zero_adam_t args = adam_args((zero_dtype_t)dtype, false);
    REQUIRE(cuda->adam(&args, NULL) == ZERO_OK);
}

static void adam_segments(int dtype)
{
    const zero_adam_t args = adam_args((zero_dtype_t)dtype, true);
    REQUIRE(cuda->adam(&args, NULL) == ZERO_OK);
}

/* The gradients' bits, as twice as many numbers. */
static void adam_bf16_grads(int dtype)
{
    zero_adam_t args = adam_args((zero_dtype_t)dtype, false);
    args.grad_dtype = ZERO_BF16;
    REQUIRE(cuda->adam(&args, NULL) == ZERO_OK);
}

static void adam8(int dtype)
{
    zero_adam_t args = adam_args((zero_dtype_t)dtype, false);
    args.m = (float *)d.m8;
    args.v = (float *)d.v8;
    REQUIRE(cuda->adam8(&args, NULL) == ZERO_OK);
}

/* Eighths of the bf16 parameters serve as gradient slices; their sum is written where it is not read. */
static void sum_slices(int n_slices, bool accumulate, zero_norm_t *norm)
{
    const void *slices[8];
    for (int r = 0; r < n_slices; ++r)
        slices[r] = d.param_bf16 + n_params / 64 * 8 * (size_t)r;
    const zero_sum_t sum = {.out = d.low16f,
                            .accumulates = accumulate,
                            .slices = slices,
                            .n_slices = n_slices,
                            .dtype = ZERO_BF16,
                            .n_elems = n_params / 64 * 8,
                            .norm = norm};
    REQUIRE(cuda->sum_slices(&sum, NULL) == ZERO_OK);
}

static void sum_overwrite(int n_slices)
{
    sum_slices(n_slices, false, NULL);
}

static void sum_accumulate_norm(int n_slices)
{
    sum_slices(n_slices, true, d.norm);
}

/* What is left to do if the network has summed the gradients. */
static void norm_in_place(int unused)
{
    (void)unused;
    const void *slices[] = {d.grad};
    const zero_sum_t sum = {.out = d.grad, .slices = slices, .n_slices = 1, .n_elems = n_params, .norm = d.norm};
    REQUIRE(cuda->sum_slices(&sum, NULL) == ZERO_OK);
}

static void contribute(int unused)
{
    (void)unused;
    const zero_agreed_t agreed = {.lr = 1e-3f};
    REQUIRE(cuda->contribute(d.norm, &agreed, d.contribution, NULL) == ZERO_OK);
}

static void cast(int unused)
{
    (void)unused;
    REQUIRE(cuda->cast(d.param_fp16, ZERO_BF16, d.grad, ZERO_FP32, n_params, NULL) == ZERO_OK);
}

static void fill(int unused)
{
    (void)unused;
    REQUIRE(cuda->fill_normal(d.low16f, n_params, 1, 2, 0, 0.02f, NULL) == ZERO_OK);
}

static const struct {
    const char *name;
    void (*run)(int argument);
    int argument;
    double bytes_per_param;
} rows[] = {
    {"cudaMemcpy", copy, 0, 8},
    {"AdamW fp32", adam, ZERO_FP32, 28},
    {"AdamW bf16", adam, ZERO_BF16, 28},
    {"AdamW bf16, gradients too", adam_bf16_grads, ZERO_BF16, 26},
    {"AdamW fp16", adam, ZERO_FP16, 30},
    {"AdamW bf16, 580 segments", adam_segments, ZERO_BF16, 28},
    {"8-bit AdamW fp32", adam8, ZERO_FP32, 12 + 4 * 68.0 / 64},
    {"8-bit AdamW bf16", adam8, ZERO_BF16, 12 + 4 * 68.0 / 64},
    {"8-bit AdamW fp16", adam8, ZERO_FP16, 14 + 4 * 68.0 / 64},
    {"sum of 4 bf16 slices", sum_overwrite, 4, 12.0 / 8},
    {"sum of 8 bf16 slices", sum_overwrite, 8, 20.0 / 8},
    {"sum of 4, accumulated, norm", sum_accumulate_norm, 4, 16.0 / 8},
    {"sum of 8, accumulated, norm", sum_accumulate_norm, 8, 24.0 / 8},
    {"sum of 1 in place, norm", norm_in_place, 0, 8},
    {"contribution", contribute, 0, 0},
    {"cast fp32 to bf16", cast, 0, 6},
    {"normal numbers", fill, 0, 4},
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

static int compare_floats(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    n_params = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000000000;
    if (argc > 2 || n_params < (size_t)1 << 20) {
        fprintf(stderr, "usage: bench_adam_cuda [N_PARAMS], at least 2^20\n");
        return 2;
    }
    cuda = zero_shard_kernels_cuda();
    prepare();
    cudaEvent_t start, end;
    REQUIRE(cudaEventCreate(&start) == cudaSuccess && cudaEventCreate(&end) == cudaSuccess);
    static float ms[N_ROWS][N_ROUNDS];
    for (int round = -N_WARMUP; round < N_ROUNDS; ++round) {
        for (size_t i = 0; i < N_ROWS; ++i) {
            float took;
            REQUIRE(cudaEventRecord(start, NULL) == cudaSuccess);
            rows[i].run(rows[i].argument);
            REQUIRE(cudaEventRecord(end, NULL) == cudaSuccess && cudaEventSynchronize(end) == cudaSuccess);
            REQUIRE(cudaEventElapsedTime(&took, start, end) == cudaSuccess);
            if (round >= 0)
                ms[i][round] = took;
        }
    }
    double copy_rate = 0.0;
    printf("%zu parameters, median of %d\n%-30s %9s %8s %12s\n", n_params, N_ROUNDS, "", "ms", "TB/s", "of memcpy");
    for (size_t i = 0; i < N_ROWS; ++i) {
        qsort(ms[i], N_ROUNDS, sizeof ms[i][0], compare_floats);
        const double median = (double)ms[i][N_ROUNDS / 2];
        const double rate = rows[i].bytes_per_param * (double)n_params / median * 1e-9;
        copy_rate = i == 0 ? rate : copy_rate;
        printf("%-30s %9.4f %8.3f %11.1f%%\n", rows[i].name, median, rate, 100.0 * rate / copy_rate);
    }
    return 0;
}
