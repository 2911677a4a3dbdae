/* test_muon_cuda.c - Muon's kernels on a GPU: momentum and step give the CPU's bits, and matrices of every shape are
 * orthogonalized as in fp64, to bf16's precision, with the same bits each time, alone and beside others.
 *
 * Prints a line "ok: claim" or "FAILED: claim" each. Needs a GPU and cuBLASLt: no Check, no MPI.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "kernels/shard.h"
#include "kernels/shard_math.h"
#include "kernels/step_math.h"
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

typedef struct matrix {
    size_t rows, cols;
    uint16_t *x;
} matrix_t;

static size_t n_bytes_of(const matrix_t *matrix)
{
    return matrix->rows * matrix->cols * sizeof *matrix->x;
}

enum { MOST_MATRICES = 9 };

/* Orthogonalizes so many matrices by one call, in memory that has held other numbers. */
static void orthogonalize(zero_orthogonalizer_t *orthogonalizer, matrix_t *matrices, int n, int n_steps)
{
    const zero_shard_kernels_t *cuda = zero_shard_kernels_cuda();
    zero_orthogonalize_t args[MOST_MATRICES];
    for (int i = 0; i < n; i++) {
        const size_t rows = matrices[i].rows, cols = matrices[i].cols;
        const size_t n_scratch = zero_orthogonalize_scratch(rows, cols, true) * sizeof(uint16_t);
        args[i] = (zero_orthogonalize_t){.x = on_device(matrices[i].x, n_bytes_of(&matrices[i])),
                                         .orthogonalizer = orthogonalizer,
                                         .rows = rows,
                                         .cols = cols,
                                         .n_steps = n_steps};
        REQUIRE(cudaMalloc(&args[i].scratch, n_scratch) == cudaSuccess);
        REQUIRE(cudaMemset(args[i].scratch, 0x7e, n_scratch) == cudaSuccess); /* NaN in fp16 */
        REQUIRE(cudaMalloc(&args[i].workspace, ZERO_ORTHOGONALIZE_WORKSPACE_BYTES) == cudaSuccess);
        REQUIRE(cuda->orthogonalizer_prepare(orthogonalizer, rows, cols) == ZERO_OK);
    }
    REQUIRE(cuda->orthogonalize(args, n, NULL) == ZERO_OK);
    for (int i = 0; i < n; i++)
        REQUIRE(cudaMemcpy(matrices[i].x, args[i].x, n_bytes_of(&matrices[i]), cudaMemcpyDeviceToHost) == cudaSuccess);
    for (int i = 0; i < n; i++) {
        cudaFree(args[i].x);
        cudaFree(args[i].scratch);
        cudaFree(args[i].workspace);
    }
}

/* Makes a random matrix. decay: 0, or it is the product of two, between which the i-th of r numbers is i^-decay, so
 * that singular values fall as fast. */
static matrix_t random_matrix(size_t rows, size_t cols, double decay)
{
    const size_t r = rows < cols ? rows : cols;
    matrix_t made = {.rows = rows, .cols = cols, .x = malloc(rows * cols * sizeof(uint16_t))};
    float *left = malloc(rows * r * sizeof *left), *right = malloc(r * cols * sizeof *right);
    float *row = malloc(cols * sizeof *row);
    REQUIRE(made.x && left && right && row);
    for (size_t i = 0; i < rows * r; i++)
        left[i] = random_number() * (float)pow((double)(i % r) + 1.0, -decay);
    for (size_t i = 0; i < r * cols; i++)
        right[i] = random_number();
    for (size_t i = 0; i < rows; i++) {
        memset(row, 0, cols * sizeof *row);
        for (size_t k = 0; k < r && decay > 0.0; k++)
            for (size_t j = 0; j < cols; j++)
                row[j] += left[i * r + k] * right[k * cols + j];
        for (size_t j = 0; j < cols; j++)
            made.x[i * cols + j] = zero_bf16_of_float(decay > 0.0 ? row[j] : 3.0f * random_number());
    }
    free(left);
    free(right);
    free(row);
    return made;
}

static matrix_t copy_of(const matrix_t *matrix)
{
    matrix_t copy = *matrix;
    copy.x = malloc(n_bytes_of(matrix));
    REQUIRE(copy.x);
    memcpy(copy.x, matrix->x, n_bytes_of(matrix));
    return copy;
}

/* Rounding every product to fp16, and the result to bf16, leaves 0.005 or less; 0.007 if singular values fall as 1 / i,
 * and 0.022 if as 1 / i^2, where many are as small as rounding errors (measured with products of a CPU). */
static void test_shape(zero_orthogonalizer_t *orthogonalizer, size_t rows, size_t cols, double decay, int n_steps)
{
    const size_t n = rows * cols;
    matrix_t x = random_matrix(rows, cols, decay), again = copy_of(&x);
    double *want = malloc(n * sizeof *want), errors = 0.0, squares = 0.0;
    char what[120];
    REQUIRE(want);
    for (size_t i = 0; i < n; i++)
        want[i] = (double)zero_float_of_bf16(x.x[i]);
    muon_fp64_orthogonalize(want, rows, cols, n_steps);
    orthogonalize(orthogonalizer, &x, 1, n_steps);
    orthogonalize(orthogonalizer, &again, 1, n_steps);
    for (size_t i = 0; i < n; i++) {
        const double error = (double)zero_float_of_bf16(x.x[i]) - want[i];
        errors += error * error;
        squares += want[i] * want[i];
    }
    snprintf(what, sizeof what, "%zu x %zu, i^-%g, %d steps: as in fp64", rows, cols, decay, n_steps);
    claim(sqrt(errors / squares) < (decay > 0.0 ? 0.03 : 0.01), what, sqrt(errors / squares));
    snprintf(what, sizeof what, "%zu x %zu, i^-%g, %d steps: the same bits again", rows, cols, decay, n_steps);
    claim(memcmp(x.x, again.x, n_bytes_of(&x)) == 0, what, 0.0);
    free(x.x);
    free(again.x);
    free(want);
}

static void test_shapes(zero_orthogonalizer_t *orthogonalizer)
{
    static const size_t shapes[][2] = {{1, 1},   {1, 7},    {9, 1},     {5, 67},    {67, 5},     {97, 33},
                                       {64, 64}, {300, 65}, {128, 512}, {768, 256}, {1024, 1024}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        test_shape(orthogonalizer, shapes[i][0], shapes[i][1], 0.0, N_STEPS);
    for (int n_steps = 1; n_steps <= 9; n_steps++) { /* joined in every way, and alone */
        test_shape(orthogonalizer, 33, 97, 0.0, n_steps);
        test_shape(orthogonalizer, 97, 33, 0.0, n_steps);
        test_shape(orthogonalizer, 65, 97, 0.0, n_steps);
    }
    for (int decay = 1; decay <= 2; decay++) {
        test_shape(orthogonalizer, 128, 512, decay, N_STEPS);
        test_shape(orthogonalizer, 256, 1024, decay, N_STEPS);
        test_shape(orthogonalizer, 512, 128, decay, N_STEPS);
    }
}

static void test_zeros(zero_orthogonalizer_t *orthogonalizer)
{
    matrix_t x = {.rows = 40, .cols = 100, .x = calloc(40 * 100, sizeof(uint16_t))};
    bool all_zero = true;
    REQUIRE(x.x);
    orthogonalize(orthogonalizer, &x, 1, N_STEPS);
    for (size_t i = 0; i < 40 * 100; i++)
        all_zero = all_zero && (x.x[i] & 0x7fff) == 0;
    claim(all_zero, "zeros stay zeros", 0.0);
    free(x.x);
}

/* Numbers of matrices from 1 to more than two rounds of the streams: each has the bits that it has alone. */
static void test_company(zero_orthogonalizer_t *orthogonalizer)
{
    static const size_t shapes[MOST_MATRICES][2] = {{256, 768}, {256, 256},  {256, 1024}, {1024, 256}, {33, 97},
                                                    {97, 33},   {640, 1600}, {1, 5},      {256, 256}};
    matrix_t alone[MOST_MATRICES], first[MOST_MATRICES];
    for (int i = 0; i < MOST_MATRICES; i++) {
        first[i] = random_matrix(shapes[i][0], shapes[i][1], i % 2);
        alone[i] = copy_of(&first[i]);
        orthogonalize(orthogonalizer, &alone[i], 1, N_STEPS);
    }
    for (int n = 1; n <= MOST_MATRICES; n++)
        for (int times = 0; times < 2; times++) {
            matrix_t together[MOST_MATRICES];
            char what[80];
            int n_same = 0;
            for (int i = 0; i < n; i++)
                together[i] = copy_of(&first[i]);
            orthogonalize(orthogonalizer, together, n, N_STEPS);
            for (int i = 0; i < n; i++) {
                n_same += memcmp(together[i].x, alone[i].x, n_bytes_of(&alone[i])) == 0;
                free(together[i].x);
            }
            snprintf(what, sizeof what, "%d matrices at a time: each has the bits that it has alone", n);
            claim(n_same == n, what, n_same);
        }
    for (int i = 0; i < MOST_MATRICES; i++) {
        free(alone[i].x);
        free(first[i].x);
    }
}

static void test_matrices(void)
{
    zero_orthogonalizer_t *orthogonalizer;
    REQUIRE(zero_shard_kernels_cuda()->orthogonalizer_create(&orthogonalizer) == ZERO_OK);
    test_zeros(orthogonalizer);
    test_company(orthogonalizer);
    test_shapes(orthogonalizer);
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
    test_matrices();
    return n_failed > 0;
}
