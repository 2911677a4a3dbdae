/* bench_muon_cuda.c - how long orthogonalizing the matrices of GPT-2 124M and 1558M takes: by the library, one to four
 * in a call (of which ZERO_ORTHOGONALIZE_LANES run side by side), beside Newton-Schulz as torch.optim.Muon has it,
 * whose 15 products in bf16 follow one another.
 *
 * Each row is a set of matrices that is orthogonalized as often as a model has layers; rounds in which the columns take
 * turns, the median of each. TFLOP/s are those of torch's products, whatever the library multiplies.
 *
 *     bench_muon_cuda
 */
#include <stdio.h>
#include <stdlib.h>

#include <cuda_runtime_api.h>

#include "kernels/cublaslt.h"
#include "kernels/shard.h"

enum { N_WARMUP = 2, N_ROUNDS = 7, N_STEPS = 5, MOST = 4, MOST_LAYERS = 48, N_WAYS = 1 + MOST };
#define TORCH_WORKSPACE_BYTES ((size_t)32 << 20)

#define REQUIRE(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "bench_muon_cuda: line %d: %s does not hold (CUDA: %s)\n", __LINE__, #condition,           \
                    cudaGetErrorString(cudaPeekAtLastError()));                                                        \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

typedef struct shape {
    uint64_t rows, cols;
} shape_t;

static const struct {
    const char *name;
    int n_layers, n_matrices;
    shape_t matrices[MOST];
} rows[] = {
    {"GPT-2 1558M", 48, 4, {{1600, 4800}, {1600, 1600}, {1600, 6400}, {6400, 1600}}},
    {"  48 x 4 of 1600 x 4800", 48, 4, {{1600, 4800}, {1600, 4800}, {1600, 4800}, {1600, 4800}}},
    {"  48 x 4 of 1600 x 1600", 48, 4, {{1600, 1600}, {1600, 1600}, {1600, 1600}, {1600, 1600}}},
    {"  48 x 4 of 1600 x 6400", 48, 4, {{1600, 6400}, {1600, 6400}, {1600, 6400}, {1600, 6400}}},
    {"  48 x 4 of 6400 x 1600", 48, 4, {{6400, 1600}, {6400, 1600}, {6400, 1600}, {6400, 1600}}},
    {"GPT-2 124M", 12, 4, {{768, 2304}, {768, 768}, {768, 3072}, {3072, 768}}},
    {"Llama-3-8B, 1 layer", 1, 4, {{4096, 4096}, {4096, 14336}, {4096, 14336}, {14336, 4096}}},
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

static const zero_shard_kernels_t *cuda;
static zero_orthogonalizer_t *orthogonalizer;
static void *matrices[MOST_LAYERS][MOST], *scratch[MOST], *workspaces[MOST];

static void *device_alloc(size_t n_bytes)
{
    void *memory;
    REQUIRE(cudaMalloc(&memory, n_bytes) == cudaSuccess && cudaMemset(memory, 0, n_bytes) == cudaSuccess);
    return memory;
}

static void fill(uint16_t *x, uint64_t n, uint64_t key)
{
    static float *numbers;
    static uint64_t room;
    if (n > room) {
        cudaFree(numbers);
        numbers = device_alloc(n * sizeof *numbers);
        room = n;
    }
    REQUIRE(cuda->fill_normal(numbers, n, 1, key, 0, 0.02f, NULL) == ZERO_OK);
    REQUIRE(cuda->cast(x, ZERO_BF16, numbers, ZERO_FP32, n, NULL) == ZERO_OK);
}

/* ---- as torch.optim.Muon ---- */

typedef struct product {
    zero_cublaslt_product_t blas;
    cublasLtMatmulAlgo_t algorithm;
} product_t;

static zero_cublaslt_t functions, *const lt = &functions;
static cublasLtHandle_t handle;
static product_t products[MOST][3]; /* Gram matrix, its square, by x */
static void *torch_workspace;

/* Describes out[m][n] = a b, of row-major matrices; a is k x m if it is transposed, b is n x k. cuBLASLt's matrices are
 * column-major, so b comes first. */
static product_t describe(uint64_t m, uint64_t n, uint64_t k, bool transpose_a, bool transpose_b)
{
    product_t made = {0};
    const cublasOperation_t op_a = transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t op_b = transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t result;
    int n_results = 0;
    REQUIRE(!lt->MatmulDescCreate(&made.blas.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    REQUIRE(!lt->MatmulDescSetAttribute(made.blas.operation, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a));
    REQUIRE(!lt->MatmulDescSetAttribute(made.blas.operation, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b));
    REQUIRE(!lt->MatrixLayoutCreate(&made.blas.a, CUDA_R_16BF, transpose_b ? k : n, transpose_b ? n : k,
                                    (int64_t)(transpose_b ? k : n)));
    REQUIRE(!lt->MatrixLayoutCreate(&made.blas.b, CUDA_R_16BF, transpose_a ? m : k, transpose_a ? k : m,
                                    (int64_t)(transpose_a ? m : k)));
    REQUIRE(!lt->MatrixLayoutCreate(&made.blas.c, CUDA_R_16BF, n, m, (int64_t)n));
    REQUIRE(!lt->MatmulPreferenceCreate(&preference));
    REQUIRE(!zero_cublaslt_prefer(lt, preference, TORCH_WORKSPACE_BYTES));
    REQUIRE(!lt->MatmulAlgoGetHeuristic(handle, made.blas.operation, made.blas.a, made.blas.b, made.blas.c, made.blas.c,
                                        preference, 1, &result, &n_results));
    REQUIRE(n_results > 0);
    lt->MatmulPreferenceDestroy(preference);
    made.algorithm = result.algo;
    return made;
}

static void multiply(const product_t *product, float alpha, const void *a, const void *b, float beta, const void *in,
                     void *out)
{
    REQUIRE(!lt->Matmul(handle, product->blas.operation, &alpha, b, product->blas.a, a, product->blas.b, &beta, in,
                        product->blas.c, out, product->blas.c, &product->algorithm, torch_workspace,
                        TORCH_WORKSPACE_BYTES, NULL));
}

/* Makes the steps; x is taken as normalized, which one pass over it would do. */
static void torch_orthogonalize(shape_t shape, const product_t of_shape[3], uint16_t *x, uint16_t *other)
{
    const bool is_tall = shape.rows > shape.cols;
    const uint64_t n = shape.rows * shape.cols, r = is_tall ? shape.cols : shape.rows;
    uint16_t *gram = other + zero_orthogonalize_room(n), *poly = gram + zero_orthogonalize_room(r * r);
    for (int step = 0; step < N_STEPS; step++) {
        uint16_t *from = step % 2 ? other : x, *to = step % 2 ? x : other;
        multiply(&of_shape[0], 1.0f, from, from, 0.0f, gram, gram);
        multiply(&of_shape[1], ZERO_MUON_C, gram, gram, ZERO_MUON_B, gram, poly);
        multiply(&of_shape[2], 1.0f, is_tall ? from : poly, is_tall ? poly : from, ZERO_MUON_A, from, to);
    }
    REQUIRE(cudaMemcpyAsync(x, other, n * sizeof *x, cudaMemcpyDeviceToDevice, NULL) == cudaSuccess);
}

/* ---- what is measured ---- */

static void prepare(int row)
{
    uint64_t most = 0;
    for (int i = 0; i < rows[row].n_matrices; i++) {
        const shape_t s = rows[row].matrices[i];
        const bool is_tall = s.rows > s.cols;
        const uint64_t r = is_tall ? s.cols : s.rows, k = is_tall ? s.rows : s.cols;
        const uint64_t n_bytes = zero_orthogonalize_scratch(s.rows, s.cols, true) * sizeof(uint16_t);
        most = n_bytes > most ? n_bytes : most;
        products[i][0] = describe(r, r, k, is_tall, !is_tall);
        products[i][1] = describe(r, r, r, false, false);
        products[i][2] = describe(s.rows, s.cols, r, false, false);
        REQUIRE(cuda->orthogonalizer_prepare(orthogonalizer, s.rows, s.cols) == ZERO_OK);
        for (int layer = 0; layer < rows[row].n_layers; layer++) {
            matrices[layer][i] = device_alloc(s.rows * s.cols * sizeof(uint16_t));
            fill(matrices[layer][i], s.rows * s.cols, (uint64_t)(layer * MOST + i));
        }
    }
    for (int i = 0; i < MOST; i++)
        scratch[i] = device_alloc(most);
}

static void release(int row)
{
    for (int i = 0; i < rows[row].n_matrices; i++) {
        for (int layer = 0; layer < rows[row].n_layers; layer++)
            cudaFree(matrices[layer][i]);
        for (int which = 0; which < 3; which++)
            zero_cublaslt_product_destroy(lt, &products[i][which].blas);
    }
    for (int i = 0; i < MOST; i++)
        cudaFree(scratch[i]);
}

/* Orthogonalizes all matrices of a row. at_once: 0 for torch's way. */
static void run(int row, int at_once)
{
    for (int layer = 0; layer < rows[row].n_layers; layer++) {
        zero_orthogonalize_t args[MOST];
        const int n = rows[row].n_matrices;
        for (int i = 0; i < n; i++)
            args[i] = (zero_orthogonalize_t){.x = matrices[layer][i],
                                             .scratch = scratch[at_once > 0 ? i % at_once : 0],
                                             .orthogonalizer = orthogonalizer,
                                             .workspace = workspaces[at_once > 0 ? i % at_once : 0],
                                             .rows = rows[row].matrices[i].rows,
                                             .cols = rows[row].matrices[i].cols,
                                             .n_steps = N_STEPS};
        if (at_once == 0)
            for (int i = 0; i < n; i++)
                torch_orthogonalize(rows[row].matrices[i], products[i], args[i].x, args[i].scratch);
        for (int i = 0; at_once > 0 && i < n; i += at_once)
            REQUIRE(cuda->orthogonalize(args + i, n - i < at_once ? n - i : at_once, NULL) == ZERO_OK);
    }
}

static double tera_flops(int row)
{
    double flops = 0.0;
    for (int i = 0; i < rows[row].n_matrices; i++) {
        const double m = (double)rows[row].matrices[i].rows, n = (double)rows[row].matrices[i].cols;
        const double r = m < n ? m : n;
        flops += N_STEPS * (4.0 * m * n * r + 2.0 * r * r * r);
    }
    return 1e-12 * flops * rows[row].n_layers;
}

static int compare_floats(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void measure(int row, cudaEvent_t start, cudaEvent_t end)
{
    static float ms[N_WAYS][N_ROUNDS];
    prepare(row);
    for (int round = -N_WARMUP; round < N_ROUNDS; round++)
        for (int way = 0; way < N_WAYS; way++) {
            float took;
            REQUIRE(cudaEventRecord(start, NULL) == cudaSuccess);
            run(row, way);
            REQUIRE(cudaEventRecord(end, NULL) == cudaSuccess && cudaEventSynchronize(end) == cudaSuccess);
            REQUIRE(cudaEventElapsedTime(&took, start, end) == cudaSuccess);
            if (round >= 0)
                ms[way][round] = took;
        }
    printf("%-26s", rows[row].name);
    for (int way = 0; way < N_WAYS; way++) {
        qsort(ms[way], N_ROUNDS, sizeof ms[way][0], compare_floats);
        const double median = (double)ms[way][N_ROUNDS / 2];
        printf(" %8.2f (%4.0f)", median, tera_flops(row) / median * 1e3);
    }
    printf("\n");
    fflush(stdout);
    release(row);
}

int main(void)
{
    cudaEvent_t start, end;
    cuda = zero_shard_kernels_cuda();
    REQUIRE(zero_cublaslt_load(&functions) == ZERO_OK && !lt->Create(&handle));
    REQUIRE(cuda->orthogonalizer_create(&orthogonalizer) == ZERO_OK);
    REQUIRE(cudaEventCreate(&start) == cudaSuccess && cudaEventCreate(&end) == cudaSuccess);
    torch_workspace = device_alloc(TORCH_WORKSPACE_BYTES);
    for (int i = 0; i < MOST; i++)
        workspaces[i] = device_alloc(ZERO_ORTHOGONALIZE_WORKSPACE_BYTES);
    printf("ms (and TFLOP/s of torch's products), median of %d\n%-26s %15s %15s %15s %15s %15s\n", N_ROUNDS, "",
           "torch's, bf16", "1 in a call", "2", "3", "4");
    for (int row = 0; row < N_ROWS; row++)
        measure(row, start, end);
    cuda->orthogonalizer_destroy(orthogonalizer);
    lt->Destroy(handle);
    return 0;
}
