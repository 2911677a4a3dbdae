/* test_adam8_cuda.c - AdamW with 8-bit moments on a GPU: the CPU's bits, in every dtype, with segments of any size and
 * arrays of any alignment.
 *
 * Prints a line "ok: claim" or "FAILED: claim" each. Needs a GPU: no Check, no MPI.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "kernels/step_math.h"

enum { PARAM, MASTER_LO, M, V, GRAD, SEGMENTS, SCALARS, BY_TENSOR, N_ARRAYS };
enum { N_TENSORS = 4, MARGIN = 128 }; /* MARGIN: twice the largest shift of `check` */

static int n_failed;
static uint64_t random_state = 88172645463325252u;

#define REQUIRE(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "test_adam8_cuda: line %d: %s does not hold (CUDA: %s)\n", __LINE__, #condition,           \
                    cudaGetErrorString(cudaPeekAtLastError()));                                                        \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static uint64_t random_bits(void) /* xorshift64 */
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* Returns n words that are mostly ordinary floats, else any bits. As blocks they have every code and scale. */
static uint32_t *any_words(size_t n)
{
    uint32_t *words = malloc(n * sizeof *words);
    REQUIRE(words != NULL);
    for (size_t i = 0; i < n; i++) {
        const uint64_t draw = random_bits();
        const uint32_t bits = (uint32_t)(draw >> 32);
        words[i] = draw % 16 ? (bits & 0x807fffffu) | (uint32_t)(87 + (draw >> 8) % 48) << 23 : bits;
    }
    return words;
}

/* The same arrays in host and device memory. */
typedef struct shard {
    void *host[N_ARRAYS], *device[N_ARRAYS];
    size_t n_bytes[N_ARRAYS];
    size_t n_elems, n_segments;
} shard_t;

static size_t fill_segments(zero_adam_segment_t *segments, size_t n_elems, uint64_t largest, uint64_t shift)
{
    size_t n = 0;
    for (uint64_t at = ZERO_BLOCK8_ELEMS; at < n_elems; n++) {
        uint64_t length = random_bits() % largest; /* 0 among them */
        length = length < n_elems - at ? length : n_elems - at;
        segments[n] = (zero_adam_segment_t){.n_elems = length,
                                            .param = at + shift,
                                            .state = at,
                                            .grad = at + 2 * shift,
                                            .decay = n % 3 ? 0.1f : 0.0f,
                                            .tensor = (uint32_t)(n % N_TENSORS)};
        at = (at + length + n % 2 * ZERO_BLOCK8_ELEMS + ZERO_BLOCK8_ELEMS) / ZERO_BLOCK8_ELEMS * ZERO_BLOCK8_ELEMS;
    }
    return n;
}

static shard_t shard_create(size_t n_elems, uint64_t largest, uint64_t shift, bool skip)
{
    shard_t s = {.n_elems = n_elems};
    zero_adam_scalars_t *scalars = calloc(1, sizeof *scalars);
    zero_tensor_scalars_t *by_tensor = calloc(N_TENSORS, sizeof *by_tensor);
    zero_adam_segment_t *segments = calloc(n_elems / ZERO_BLOCK8_ELEMS + 2, sizeof *segments);
    REQUIRE(scalars && by_tensor && segments);
    zero_adam_scalars_decide(scalars, 3e-4f, 0.9f, 0.95f, 1e-8f, 2.0f, 1.0f, 1.0f, 7);
    scalars->skip = skip;
    for (int t = 0; t < N_TENSORS; t++) {
        by_tensor[t].scalars = *scalars;
        by_tensor[t].scalars.lr = 0.01f * (float)t;
        by_tensor[t].decay = 0.2f * (float)t;
    }
    s.n_segments = fill_segments(segments, n_elems, largest, shift);
    for (int a = PARAM; a <= GRAD; a++) {
        s.n_bytes[a] = (n_elems + MARGIN) * sizeof(float);
        s.host[a] = any_words(n_elems + MARGIN);
    }
    s.host[SEGMENTS] = segments;
    s.host[SCALARS] = scalars;
    s.host[BY_TENSOR] = by_tensor;
    s.n_bytes[SEGMENTS] = (s.n_segments + 1) * sizeof *segments;
    s.n_bytes[SCALARS] = sizeof *scalars;
    s.n_bytes[BY_TENSOR] = N_TENSORS * sizeof *by_tensor;
    for (int a = 0; a < N_ARRAYS; a++) {
        REQUIRE(cudaMalloc(&s.device[a], s.n_bytes[a]) == cudaSuccess);
        REQUIRE(cudaMemcpy(s.device[a], s.host[a], s.n_bytes[a], cudaMemcpyHostToDevice) == cudaSuccess);
    }
    return s;
}

static void shard_free(shard_t *s)
{
    for (int a = 0; a < N_ARRAYS; a++) {
        free(s->host[a]);
        cudaFree(s->device[a]);
    }
}

static void update(const zero_shard_kernels_t *kernels, const shard_t *s, void *const *arrays, zero_dtype_t dtype,
                   bool by_tensor)
{
    zero_adam_t args = {.param_dtype = dtype,
                        .param = arrays[PARAM],
                        .master_lo = dtype == ZERO_FP32 ? NULL : arrays[MASTER_LO],
                        .m = arrays[M],
                        .v = arrays[V],
                        .grad = arrays[GRAD],
                        .segments = arrays[SEGMENTS],
                        .n_segments = s->n_segments,
                        .state_begin = ZERO_BLOCK8_ELEMS,
                        .state_end = s->n_elems,
                        .scalars = arrays[SCALARS],
                        .by_tensor = by_tensor ? arrays[BY_TENSOR] : NULL};
    REQUIRE(kernels->adam8(&args, NULL) == ZERO_OK);
    args.grad_dtype = ZERO_BF16; /* the same bits, as twice as many numbers */
    REQUIRE(kernels->adam8(&args, NULL) == ZERO_OK);
}

static bool is_same(const shard_t *s)
{
    static const char *const names[] = {"param", "master_lo", "m", "v", "grad"};
    bool same = true;
    for (int a = PARAM; a <= GRAD; a++) {
        void *copy = malloc(s->n_bytes[a]);
        REQUIRE(copy && cudaMemcpy(copy, s->device[a], s->n_bytes[a], cudaMemcpyDeviceToHost) == cudaSuccess);
        if (memcmp(copy, s->host[a], s->n_bytes[a]) != 0) {
            printf("%s differs\n", names[a]);
            same = false;
        }
        free(copy);
    }
    return same;
}

static void check(const char *claim, size_t n_elems, uint64_t largest, uint64_t shift, bool by_tensor)
{
    bool holds = true;
    for (zero_dtype_t dtype = ZERO_FP32; dtype <= ZERO_FP16; dtype++) {
        shard_t s = shard_create(n_elems, largest, shift, false);
        uint32_t *before = malloc(s.n_bytes[M]);
        REQUIRE(before != NULL);
        memcpy(before, s.host[M], s.n_bytes[M]);
        update(zero_shard_kernels_cpu(), &s, s.host, dtype, by_tensor);
        update(zero_shard_kernels_cuda(), &s, s.device, dtype, by_tensor);
        holds = is_same(&s) && memcmp(before, s.host[M], s.n_bytes[M]) != 0 && holds;
        free(before);
        shard_free(&s);
    }
    printf("%s: %s\n", holds ? "ok" : "FAILED", claim);
    n_failed += !holds;
}

static void check_skip(void)
{
    shard_t s = shard_create(10007, 1000, 0, true);
    update(zero_shard_kernels_cuda(), &s, s.device, ZERO_BF16, false);
    const bool holds = is_same(&s);
    printf("%s: 8-bit AdamW: a skipped step writes nothing\n", holds ? "ok" : "FAILED");
    n_failed += !holds;
    shard_free(&s);
}

int main(void)
{
    int n_devices = 0;
    if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices == 0) {
        printf("SKIP: no GPU here\n");
        return 0;
    }
    check("8-bit AdamW: the CPU's bits, aligned", 300007, 5000, 0, false);
    check("8-bit AdamW: the CPU's bits over small segments", 100003, 100, 64, false);
    check("8-bit AdamW: the CPU's bits where nothing is aligned", 100003, 3000, 3, false);
    check("8-bit AdamW: the CPU's bits with scalars of single tensors", 100003, 700, 1, true);
    check("8-bit AdamW over 10^7 elements: the CPU's bits", 10000000, 400000, 0, false);
    check_skip();
    return n_failed != 0;
}
