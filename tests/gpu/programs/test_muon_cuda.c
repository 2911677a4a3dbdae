/* test_muon_cuda.c - Muon's kernels on a GPU: momentum and step give the CPU's bits, and matrices of every shape are
 * orthogonalized as in fp64, to bf16's precision, with the same bits each time.
 *
 * Prints a line "ok: claim" or "FAILED: claim" each. Needs a GPU and cuBLASLt: no Check, no MPI.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "kernels/shard/shard.h"
#include "kernels/shard/shard_math.h"
#include "kernels/shard/step_math.h"
#include "tests/unit/optimizer/muon_fp64.h"

#define N_STEPS 5

static int n_failed;

static void claim(bool holds, const char *what, double number)
{
    printf("%s: %s (%g)\n", holds ? "ok" : "FAILED", what, number);
    n_failed += !holds;
}

#define REQUIRE(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "test_muon_cuda: line %d: %s does not hold (CUDA: %s)\n", __LINE__, #condition,            \
                    cudaGetErrorString(cudaPeekAtLastError()));                                                        \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static void *on_device(const void *data, size_t n_bytes)
{
    void *copy;
    REQUIRE(cudaMalloc(&copy, n_bytes) == cudaSuccess);
    REQUIRE(cudaMemcpy(copy, data, n_bytes, cudaMemcpyHostToDevice) == cudaSuccess);
    return copy;
}

static float random_number(void)
{
    return (float)rand() / (float)RAND_MAX * 2.0f - 1.0f;
}

/* ---- whole matrices ---- */

static void orthogonalize(zero_orthogonalizer_t *orthogonalizer, uint16_t *x, size_t rows, size_t cols)
{
    const zero_shard_kernels_t *cuda = zero_shard_kernels_cuda();
    const size_t n_bytes = rows * cols * sizeof *x;
    zero_orthogonalize_t args = {
        .x = on_device(x, n_bytes), .orthogonalizer = orthogonalizer, .rows = rows, .cols = cols, .n_steps = N_STEPS};
    REQUIRE(cudaMalloc(&args.scratch, zero_orthogonalize_scratch(rows, cols) * sizeof *x) == cudaSuccess);
    REQUIRE(cudaMalloc(&args.workspace, ZERO_ORTHOGONALIZE_WORKSPACE_BYTES) == cudaSuccess);
    REQUIRE(cuda->orthogonalizer_prepare(orthogonalizer, rows, cols) == ZERO_OK);
    REQUIRE(cuda->orthogonalize(&args, NULL) == ZERO_OK);
    REQUIRE(cudaMemcpy(x, args.x, n_bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
    cudaFree(args.x);
    cudaFree(args.scratch);
    cudaFree(args.workspace);
}

/* Rounding to bf16 in every product leaves 1 to 2% (a CPU that rounded there gave 0.012 to 0.021 for such shapes). */
static void test_shape(zero_orthogonalizer_t *orthogonalizer, size_t rows, size_t cols)
{
    const size_t n = rows * cols;
    uint16_t *x = malloc(n * sizeof *x), *again = malloc(n * sizeof *again);
    double *want = malloc(n * sizeof *want), errors = 0.0, squares = 0.0;
    char what[80];
    REQUIRE(x && again && want);
    for (size_t i = 0; i < n; i++) {
        x[i] = again[i] = zero_bf16_of_float(3.0f * random_number());
        want[i] = (double)zero_float_of_bf16(x[i]);
    }
    muon_fp64_orthogonalize(want, rows, cols, N_STEPS);
    orthogonalize(orthogonalizer, x, rows, cols);
    orthogonalize(orthogonalizer, again, rows, cols);
    for (size_t i = 0; i < n; i++) {
        const double error = (double)zero_float_of_bf16(x[i]) - want[i];
        errors += error * error;
        squares += want[i] * want[i];
    }
    snprintf(what, sizeof what, "%zu x %zu is orthogonalized as in fp64", rows, cols);
    claim(sqrt(errors / squares) < 0.05, what, sqrt(errors / squares));
    snprintf(what, sizeof what, "%zu x %zu gives the same bits again", rows, cols);
    claim(memcmp(x, again, n * sizeof *x) == 0, what, 0.0);
    free(x);
    free(again);
    free(want);
}

static void test_shapes(void)
{
    static const size_t shapes[][2] = {{1, 1},   {1, 7},    {9, 1},     {5, 67},    {67, 5},     {97, 33},
                                       {64, 64}, {300, 65}, {128, 512}, {768, 256}, {1024, 1024}};
    zero_orthogonalizer_t *orthogonalizer;
    REQUIRE(zero_shard_kernels_cuda()->orthogonalizer_create(&orthogonalizer) == ZERO_OK);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        test_shape(orthogonalizer, shapes[i][0], shapes[i][1]);
    zero_shard_kernels_cuda()->orthogonalizer_destroy(orthogonalizer);
}

/* ---- the two ends ---- */

#define N_ELEMS ((size_t)300000)
enum { PARAM, LOW, M, GRAD, UPDATE, N_ARRAYS };

static const zero_muon_segment_t SEGMENTS[] = {
    {.n_elems = 250001, .param = 3, .state = 1, .grad = 5, .at = 7, .decay = 0.1f, .scale = 1.75f, .tensor = 1},
    {.n_elems = 17, .param = 269980, .state = 269300, .grad = 269100, .at = 269500, .scale = 0.5f},
    {.n_elems = 1, .param = 299999, .state = 299999, .grad = 299999, .at = 299999, .scale = 2.0f, .tensor = 1},
};

/* Runs momentum and step on arrays and scalars of one kind of memory. */
static void run_both_ends(const zero_shard_kernels_t *kernels, void *const arrays[N_ARRAYS], zero_dtype_t dtype,
                          zero_dtype_t update_dtype, bool writes_update, const zero_muon_segment_t *segments,
                          const zero_adam_scalars_t *scalars, const zero_tensor_scalars_t *by_tensor)
{
    zero_muon_t args = {.param_dtype = dtype,
                        .param = arrays[PARAM],
                        .master_lo = dtype == ZERO_FP32 ? NULL : arrays[LOW],
                        .m = arrays[M],
                        .grad = arrays[GRAD],
                        .update = writes_update ? arrays[UPDATE] : NULL,
                        .update_dtype = update_dtype,
                        .segments = segments,
                        .n_segments = sizeof SEGMENTS / sizeof SEGMENTS[0],
                        .longest = SEGMENTS[0].n_elems,
                        .momentum = 0.95f,
                        .one_minus_momentum = 1.0f - 0.95f,
                        .scalars = scalars,
                        .by_tensor = by_tensor};
    REQUIRE(kernels->muon_momentum(&args, NULL) == ZERO_OK);
    args.update = arrays[UPDATE];
    REQUIRE(kernels->muon_apply(&args, NULL) == ZERO_OK);
}

enum { PLAIN, OWN_SCALARS, NO_UPDATE, SKIPPED, N_MODES }; /* modes */

static void test_both_ends(zero_dtype_t dtype, zero_dtype_t update_dtype, int mode)
{
    static const char *const names[] = {"", ", tensors with their own scalars", ", momentum alone", ", a skipped step"};
    void *host[N_ARRAYS], *device[N_ARRAYS], *back = malloc(N_ELEMS * sizeof(float));
    zero_adam_scalars_t scalars;
    zero_tensor_scalars_t own[2];
    bool same = true;
    char what[120];
    zero_adam_scalars_decide(&scalars, 3e-2f, 0.9f, 0.99f, 1e-8f, mode == SKIPPED ? INFINITY : 2.0f, 1.0f, 4.0f, 7);
    own[0] = own[1] = (zero_tensor_scalars_t){.scalars = scalars, .decay = 0.3f};
    own[1].scalars.lr = 0.7f;
    for (int a = 0; a < N_ARRAYS; a++) {
        float *numbers = malloc(N_ELEMS * sizeof *numbers);
        REQUIRE(numbers && back);
        for (size_t i = 0; i < N_ELEMS; i++)
            numbers[i] = random_number();
        host[a] = numbers;
        device[a] = on_device(numbers, N_ELEMS * sizeof *numbers);
    }
    void *segments = on_device(SEGMENTS, sizeof SEGMENTS), *own_there = on_device(own, sizeof own);
    void *scalars_there = on_device(&scalars, sizeof scalars);
    run_both_ends(zero_shard_kernels_cpu(), host, dtype, update_dtype, mode != NO_UPDATE, SEGMENTS, &scalars,
                  mode == OWN_SCALARS ? own : NULL);
    run_both_ends(zero_shard_kernels_cuda(), device, dtype, update_dtype, mode != NO_UPDATE, segments, scalars_there,
                  mode == OWN_SCALARS ? own_there : NULL);
    for (int a = 0; a < N_ARRAYS; a++) {
        REQUIRE(cudaMemcpy(back, device[a], N_ELEMS * sizeof(float), cudaMemcpyDeviceToHost) == cudaSuccess);
        same = same && memcmp(back, host[a], N_ELEMS * sizeof(float)) == 0;
        cudaFree(device[a]);
        free(host[a]);
    }
    snprintf(what, sizeof what, "%s, updates in %s%s: the CPU's bits", zero_dtype_name(dtype),
             zero_dtype_name(update_dtype), names[mode]);
    claim(same, what, 0.0);
    cudaFree(segments);
    cudaFree(own_there);
    cudaFree(scalars_there);
    free(back);
}

int main(void)
{
    for (int dtype = 0; dtype < 3; dtype++)
        for (int mode = 0; mode < N_MODES; mode++) {
            test_both_ends((zero_dtype_t)dtype, ZERO_BF16, mode);
            test_both_ends((zero_dtype_t)dtype, ZERO_FP32, mode);
        }
    test_shapes();
    return n_failed > 0;
}
