/* bench_fp8_model_cuda.c - times fp8's casts and products at the sizes of Llama-3-8B, 8192 tokens, and what it costs
 * the kernels that write activations to record their absolute maximum.
 *
 * Casts are compared with a copy of the same number of bytes: x read once, each orientation written once. A row is the
 * median of several runs over several sets of tensors. The products of a layer run one after another for seconds, since
 * the GPU's clock sinks under load, and then each alone, back to back.
 *
 *     bench_fp8_model_cuda
 */
#include <stdio.h>
#include <stdlib.h>

#include <cuda_runtime_api.h>

#include "train/kernels/kernels.h"
#define PROGRAM "bench_fp8_model_cuda"
#include "tests/gpu/support/need.h"

#define N_SETS 3
#define N_RUNS 21
#define N_ROWS ((size_t)8192)
#define WIDEST ((size_t)28672)
#define LAYERS 32
#define LOAD_MS 2500.0
#define EACH_RUNS 60

typedef struct bench {
    const zero_model_kernels_t *k;
    zero_model_context_t ctx;
    cudaStream_t stream;
    cudaEvent_t start, end;
    void *x[N_SETS]; /* bf16 [N_ROWS, WIDEST] */
    uint8_t *rows[N_SETS], *columns[N_SETS];
    zero_fp8_scales_t *scales;
    void *weight, *sums; /* bf16 [4096], fp32 [WIDEST] */
    float *rstd;         /* [N_ROWS] */
    int set;
} bench_t;

static void *device_new(size_t n_bytes)
{
    void *data;
    NEED(cudaMalloc(&data, n_bytes) == cudaSuccess);
    return data;
}

/* Fills n bf16 numbers by copying random ones, between 2^-3 and 2^2 in size, again and again. */
static void fill_random(void *data, size_t n)
{
    enum { BLOCK = 1 << 20 };
    uint16_t *block = malloc(BLOCK * sizeof *block);
    NEED(block != NULL);
    uint64_t z = 7;
    for (size_t i = 0; i < BLOCK; ++i) {
        z = z * 6364136223846793005u + 1442695040888963407u;
        uint32_t bits = (uint32_t)(z >> 33);
        block[i] = (uint16_t)((bits & 0x807f) | (124 + (bits >> 16) % 5) << 7);
    }
    for (size_t at = 0; at < n; at += BLOCK)
        NEED(cudaMemcpy((uint16_t *)data + at, block, (n - at < BLOCK ? n - at : BLOCK) * 2, cudaMemcpyHostToDevice) ==
             cudaSuccess);
    free(block);
}

static void bench_open(bench_t *b)
{
    zero_model_limits_t limits = {.n_rows = N_ROWS,
                                  .seq_len = 4096,
                                  .max_linear = 4096 * WIDEST,
                                  .max_width = WIDEST,
                                  .n_heads = 32,
                                  .head_dim = 128,
                                  .vocab_size = 128256,
                                  .dtype = ZERO_BF16,
                                  .fp8 = true};
    *b = (bench_t){.k = zero_model_kernels_cuda(), .scales = device_new(sizeof *b->scales)};
    b->weight = device_new(4096 * 2), b->sums = device_new(WIDEST * sizeof(float));
    b->rstd = device_new(N_ROWS * sizeof *b->rstd);
    NEED(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking) == cudaSuccess);
    NEED(cudaEventCreate(&b->start) == cudaSuccess && cudaEventCreate(&b->end) == cudaSuccess);
    NEED(b->k->context_create(&b->ctx, (zero_stream_t)b->stream, device_new(b->k->workspace_bytes(&limits)), &limits) ==
         ZERO_OK);
    for (int i = 0; i < N_SETS; ++i) {
        b->x[i] = device_new(N_ROWS * WIDEST * 2);
        b->rows[i] = device_new(N_ROWS * WIDEST), b->columns[i] = device_new(N_ROWS * WIDEST);
        fill_random(b->x[i], N_ROWS * WIDEST);
    }
}

static float elapsed_ms(bench_t *b)
{
    float ms;
    NEED(cudaEventRecord(b->end, b->stream) == cudaSuccess && cudaEventSynchronize(b->end) == cudaSuccess);
    NEED(cudaEventElapsedTime(&ms, b->start, b->end) == cudaSuccess);
    return ms;
}

/* ---- Casts ---- */

typedef zero_status_t run_t(bench_t *b, size_t n_columns);

static zero_fp8_t fp8_of(bench_t *b, bool rows, bool columns)
{
    return (zero_fp8_t){ZERO_E4M3, rows ? b->rows[b->set] : NULL, columns ? b->columns[b->set] : NULL, b->scales};
}
static zero_status_t copy(bench_t *b, size_t n_columns)
{
    return cudaMemcpyAsync(b->rows[b->set], b->x[b->set], N_ROWS * n_columns, cudaMemcpyDeviceToDevice, b->stream) ==
                   cudaSuccess
               ? ZERO_OK
               : ZERO_ERROR_DEVICE;
}
static zero_status_t measure_and_cast(bench_t *b, size_t n_columns)
{
    zero_fp8_t x8 = fp8_of(b, true, true);
    return b->k->fp8_cast(&b->ctx, &x8, b->x[b->set], false, N_ROWS, n_columns);
}
static zero_status_t cast_both(bench_t *b, size_t n_columns)
{
    zero_fp8_t x8 = fp8_of(b, true, true);
    return b->k->fp8_cast(&b->ctx, &x8, b->x[b->set], true, N_ROWS, n_columns);
}
static zero_status_t cast_rows(bench_t *b, size_t n_columns)
{
    zero_fp8_t x8 = fp8_of(b, true, false);
    return b->k->fp8_cast(&b->ctx, &x8, b->x[b->set], true, N_ROWS, n_columns);
}
static zero_status_t cast_columns(bench_t *b, size_t n_columns)
{
    zero_fp8_t x8 = fp8_of(b, false, true);
    return b->k->fp8_cast(&b->ctx, &x8, b->x[b->set], true, N_ROWS, n_columns);
}
static zero_status_t transpose(bench_t *b, size_t n_columns)
{
    return b->k->fp8_transpose(&b->ctx, b->columns[b->set], b->rows[b->set], N_ROWS, n_columns);
}

static const struct {
    const char *name;
    run_t *run;
    double bytes; /* per element */
} casts[] = {{"copy", copy, 2},
             {"absmax, cast both ways", measure_and_cast, 6},
             {"cast both ways", cast_both, 4},
             {"cast rows", cast_rows, 3},
             {"cast columns", cast_columns, 3},
             {"transpose", transpose, 2}};

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static float median_of(float ms[N_RUNS])
{
    qsort(ms, N_RUNS, sizeof *ms, by_value);
    return ms[N_RUNS / 2];
}

static float time_cast(bench_t *b, run_t *cast, size_t n_columns)
{
    float ms[N_RUNS];
    for (int run = -2; run < N_RUNS; ++run) {
        b->set = (run + 2) % N_SETS;
        NEED(cudaEventRecord(b->start, b->stream) == cudaSuccess);
        NEED(cast(b, n_columns) == ZERO_OK);
        float taken = elapsed_ms(b);
        if (run >= 0)
            ms[run] = taken;
    }
    return median_of(ms);
}

static void time_casts(bench_t *b, size_t n_columns)
{
    for (size_t i = 0; i < sizeof casts / sizeof *casts; ++i) {
        float median = time_cast(b, casts[i].run, n_columns);
        printf("%-24s %5zu x %5zu  %7.3f ms  %5.2f TB/s\n", casts[i].name, N_ROWS, n_columns, (double)median,
               casts[i].bytes * (double)(N_ROWS * n_columns) / (double)median * 1e-9);
    }
}

/* ---- Kernels that record a maximum, in the sizes of Llama-3-8B ---- */

typedef zero_status_t record_t(bench_t *b, zero_model_context_t *ctx);

static zero_weight_t bench_weight(bench_t *b)
{
    return (zero_weight_t){.data = b->weight, .dtype = ZERO_BF16};
}
static zero_grad_t bench_sums(bench_t *b)
{
    return (zero_grad_t){b->sums, ZERO_FP32, false};
}
static zero_status_t bench_rmsnorm(bench_t *b, zero_model_context_t *ctx)
{
    return b->k->rmsnorm(ctx, b->rows[b->set], b->rstd, b->x[b->set], b->x[b->set], b->columns[b->set], bench_weight(b),
                         1e-5f, N_ROWS, 4096);
}
static zero_status_t bench_rmsnorm_backward(bench_t *b, zero_model_context_t *ctx)
{
    return b->k->rmsnorm_backward(ctx, b->rows[b->set], bench_sums(b), NULL, b->x[b->set], b->columns[b->set], b->rstd,
                                  bench_weight(b), N_ROWS, 4096);
}
static zero_status_t bench_layernorm(bench_t *b, zero_model_context_t *ctx)
{
    return b->k->layernorm(ctx, b->rows[b->set], b->sums, b->rstd, b->x[b->set], b->x[b->set], b->columns[b->set],
                           bench_weight(b), bench_weight(b), 1e-5f, N_ROWS, 4096);
}
static zero_status_t bench_layernorm_backward(bench_t *b, zero_model_context_t *ctx)
{
    return b->k->layernorm_backward(ctx, b->rows[b->set], bench_sums(b), (zero_grad_t){0}, (zero_grad_t){0}, NULL,
                                    b->x[b->set], b->columns[b->set], b->rstd, b->rstd, bench_weight(b),
                                    bench_weight(b), N_ROWS, 4096);
}
static zero_status_t bench_swiglu(bench_t *b, zero_model_context_t *ctx)
{
    return b->k->swiglu(ctx, b->rows[b->set], b->x[b->set], N_ROWS, 14336);
}
static zero_status_t bench_swiglu_backward(bench_t *b, zero_model_context_t *ctx)
{
    return b->k->swiglu_backward(ctx, b->x[b->set], NULL, b->rows[b->set], b->x[b->set], N_ROWS, 14336);
}
static zero_status_t bench_gelu(bench_t *b, zero_model_context_t *ctx)
{
    return b->k->gelu(ctx, b->rows[b->set], b->x[b->set], N_ROWS * 14336);
}
static zero_status_t bench_gelu_backward(bench_t *b, zero_model_context_t *ctx)
{
    return b->k->gelu_backward(ctx, b->rows[b->set], bench_sums(b), NULL, b->rows[b->set], b->x[b->set], N_ROWS, 14336);
}
static zero_status_t bench_rope(bench_t *b, zero_model_context_t *ctx)
{
    const zero_rope_t rope = {.theta = 500000.0f, .factor = 1.0f};
    return b->k->rope(ctx, b->x[b->set], true, &rope, &(zero_attention_shape_t){2, N_ROWS / 2, 32, 8, 128});
}
static const struct {
    const char *name;
    record_t *run;
    size_t n_columns; /* of what is written */
} recorders[] = {{"rmsnorm", bench_rmsnorm, 4096},
                 {"rmsnorm_backward", bench_rmsnorm_backward, 4096},
                 {"layernorm", bench_layernorm, 4096},
                 {"layernorm_backward", bench_layernorm_backward, 4096},
                 {"swiglu", bench_swiglu, 14336},
                 {"swiglu_backward", bench_swiglu_backward, 28672},
                 {"gelu", bench_gelu, 14336},
                 {"gelu_backward", bench_gelu_backward, 14336},
                 {"rope", bench_rope, 6144}};

/* Returns the median of a kernel's runs, with or without its maximum. */
static float time_recorder(bench_t *b, size_t i, bool records)
{
    float ms[N_RUNS];
    zero_model_context_t ctx = b->ctx;
    ctx.absmax = records ? &b->scales->absmax : NULL;
    for (int run = -2; run < N_RUNS; ++run) {
        b->set = (run + 2) % N_SETS;
        NEED(cudaMemsetAsync(b->scales, 0, sizeof *b->scales, b->stream) == cudaSuccess);
        NEED(cudaEventRecord(b->start, b->stream) == cudaSuccess);
        NEED(recorders[i].run(b, &ctx) == ZERO_OK);
        float taken = elapsed_ms(b);
        if (run >= 0)
            ms[run] = taken;
    }
    return median_of(ms);
}

/* A row: the kernel alone, the kernel with its maximum, twice and in turns, and the pass over memory that this saves,
 * in front of a cast. */
static void time_recorders(bench_t *b)
{
    for (int i = 0; i < N_SETS; ++i) { /* bf16 numbers of normal size where bytes were */
        fill_random(b->x[i], N_ROWS * WIDEST);
        fill_random(b->rows[i], N_ROWS * WIDEST / 2);
        fill_random(b->columns[i], N_ROWS * WIDEST / 2);
    }
    fill_random(b->weight, 4096);
    for (size_t i = 0; i < sizeof recorders / sizeof *recorders; ++i) {
        float plain = time_recorder(b, i, false), records = time_recorder(b, i, true);
        float plain2 = time_recorder(b, i, false), records2 = time_recorder(b, i, true);
        printf("%-20s writes %5zu x %5zu  %.3f %.3f ms, with its maximum %.3f %.3f ms; ", recorders[i].name, N_ROWS,
               recorders[i].n_columns, (double)plain, (double)plain2, (double)records, (double)records2);
        float pass = time_cast(b, measure_and_cast, recorders[i].n_columns);
        printf("a pass takes %.3f ms\n", (double)(pass - time_cast(b, cast_both, recorders[i].n_columns)));
    }
}

/* ---- Products ---- */

static const size_t layers[][2] = {{4096, 6144}, {4096, 4096}, {4096, 28672}, {14336, 4096}};
#define N_LAYERS (sizeof layers / sizeof *layers)
#define N_PRODUCTS (3 * N_LAYERS)

/* Product i of a layer: y, dx or dW. Operands are whatever bytes are in the sets. */
static void multiply(bench_t *b, size_t i)
{
    size_t n_in = layers[i / 3][0], n_out = layers[i / 3][1];
    zero_fp8_t x8 = {ZERO_E4M3, b->rows[0], b->columns[0], b->scales};
    zero_fp8_t w8 = {ZERO_E4M3, b->rows[1], b->columns[1], b->scales};
    zero_fp8_t dy8 = {ZERO_E5M2, b->rows[2], b->columns[2], b->scales};
    zero_linear_layout_t layout = ZERO_LINEAR_OUT_IN;
    zero_status_t status =
        i % 3 == 0   ? b->k->linear_fp8(&b->ctx, b->x[0], false, &x8, &w8, layout,
                                        (zero_weight_t){.data = NULL, .dtype = ZERO_BF16}, N_ROWS, n_in, n_out)
        : i % 3 == 1 ? b->k->linear_fp8_backward_input(&b->ctx, b->x[1], false, &dy8, &w8, layout, N_ROWS, n_in, n_out)
                     : b->k->linear_fp8_backward_weight(&b->ctx, (zero_grad_t){b->x[2], ZERO_BF16, false}, layout, &x8,
                                                        &dy8, N_ROWS, n_in, n_out);
    NEED(status == ZERO_OK);
}

/* Makes bytes of normal size in all sets: E4M3 in the first two, E5M2 in the third. */
static void fill_operands(bench_t *b)
{
    for (int i = 0; i < N_SETS; ++i) {
        zero_fp8_t x8 = {i < 2 ? ZERO_E4M3 : ZERO_E5M2, b->rows[i], b->columns[i], b->scales};
        NEED(b->k->fp8_cast(&b->ctx, &x8, b->x[i], false, N_ROWS, WIDEST) == ZERO_OK);
    }
}

static void time_products(bench_t *b)
{
    double flops = 0.0, taken = 0.0;
    fill_operands(b);
    for (size_t i = 0; i < N_PRODUCTS; ++i) {
        multiply(b, i);
        flops += 2.0 * (double)N_ROWS * (double)layers[i / 3][0] * (double)layers[i / 3][1];
    }
    for (int repeat = 0; repeat < 2; ++repeat) {
        int n = 0;
        for (taken = 0.0; taken < LOAD_MS; n += 8) {
            NEED(cudaEventRecord(b->start, b->stream) == cudaSuccess);
            for (size_t i = 0; i < 8 * N_PRODUCTS; ++i)
                multiply(b, i % N_PRODUCTS);
            taken += (double)elapsed_ms(b);
        }
        printf("products of %d layers: %.1f ms, %.0f TFLOP/s sustained\n", LAYERS, taken / n * LAYERS,
               flops * n / taken * 1e-9);
    }
    printf("each ms");
    for (size_t i = 0; i < N_PRODUCTS; ++i) {
        NEED(cudaEventRecord(b->start, b->stream) == cudaSuccess);
        for (int run = 0; run < EACH_RUNS; ++run)
            multiply(b, i);
        printf(" %.3f", (double)elapsed_ms(b) / EACH_RUNS);
    }
    printf("\n");
}

int main(void)
{
    bench_t b;
    char why[ZERO_MODEL_WHY];
    bench_open(&b);
    if (!b.k->fp8_is_available(&b.ctx, why)) {
        printf("SKIP: %s\n", why);
        return 0;
    }
    time_casts(&b, 4096);
    time_casts(&b, 14336);
    time_casts(&b, WIDEST);
    time_products(&b);
    time_recorders(&b);
    return 0;
}
