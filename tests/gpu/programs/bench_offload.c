/* bench_offload.c - what bounds offload: the host's AdamW beside a triad loop on the same threads and memory, and
 * copies between host and GPU of the sizes that units have, beside bare copies of memory that CUDA pinned.
 *
 *     mpirun -np GPUS bench_offload [MILLIONS]     parameters of a rank, 128 million unless given
 *
 * Threads, cores and memory are those of offload itself: host_pool.h, host_pool.h, device.h. Counted are the
 * bytes that the code names: 12 an element for the triad, 28 for AdamW in bf16 (with the low halves of the master
 * weights) and in fp32, which is what torch and DeepSpeed update. Medians; with all ranks at work each rank's own rate,
 * added up. Prints one line a figure, from rank 0.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "comm/comm.h"
#include "kernels/step_math.h"
#include "tests/support/clock.h"
#include "zero/device/device.h"
#include "zero/offload/host_pool.h"

enum { N_ROUNDS = 7, TRIAD_BYTES = 12, ADAM_BYTES = 28, N_COPIES = 16 };
#define UNIT_PARAMS 30720000 /* a block of GPT-2 1558M */

#define REQUIRE(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "bench_offload: %s does not hold (CUDA: %s)\n", #condition,                                \
                    cudaGetErrorString(cudaPeekAtLastError()));                                                        \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

typedef struct bench {
    zero_comm_t *comm;
    zero_device_t *device;
    size_t n_elems;
    unsigned char *host;
    size_t n_bytes;
    float *m, *v, *grad, *master; /* in host, with param and low; master: the parameters in fp32 */
    uint16_t *param;
    int16_t *low;
    zero_adam_scalars_t scalars;
} bench_t;

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, compare);
    return values[n / 2];
}

/* ---- the host's work, by parts ---- */

static size_t cut(const bench_t *b, int part, int n_parts)
{
    return b->n_elems / 64 * (size_t)part / (size_t)n_parts * 64;
}

static void touch(void *args, int item, int part, int n_parts)
{
    const bench_t *b = args;
    (void)item;
    uint64_t seed = (uint64_t)part + 1;
    for (size_t i = cut(b, part, n_parts); i < cut(b, part + 1, n_parts); i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        float random = (float)(seed >> 40) * 0x1p-24f;
        b->m[i] = 1e-3f * random;
        b->v[i] = 1e-6f * random;
        b->grad[i] = 1e-3f * (random - 0.5f);
        b->master[i] = 0.04f * (random - 0.5f);
        b->param[i] = (uint16_t)(0x3c00 + (seed >> 58));
        b->low[i] = (int16_t)(seed >> 48);
    }
}

/* v = m^2 + s * grad^2: what is read and written in AdamW too, and leaves v positive for it. */
static void triad(void *args, int item, int part, int n_parts)
{
    const bench_t *b = args;
    (void)item;
    float *restrict to = b->v;
    const float *restrict x = b->m, *restrict y = b->grad;
    size_t end = cut(b, part + 1, n_parts);
    for (size_t i = cut(b, part, n_parts); i < end; i++)
        to[i] = x[i] * x[i] + 0.5f * y[i] * y[i];
}

static void adam(bench_t *b, zero_dtype_t dtype, int part, int n_parts)
{
    size_t begin = cut(b, part, n_parts);
    zero_adam_segment_t segment = {
        .n_elems = cut(b, part + 1, n_parts) - begin, .param = begin, .state = begin, .grad = begin, .decay = 0.1f};
    zero_adam_t update = {.param_dtype = dtype,
                          .param = dtype == ZERO_FP32 ? (void *)b->master : (void *)b->param,
                          .master_lo = dtype == ZERO_FP32 ? NULL : b->low,
                          .m = b->m,
                          .v = b->v,
                          .grad = b->grad,
                          .segments = &segment,
                          .n_segments = 1,
                          .scalars = &b->scalars};
    (void)zero_shard_kernels_cpu()->adam(&update, NULL);
}

static void adam_bf16(void *args, int item, int part, int n_parts)
{
    (void)item;
    adam(args, ZERO_BF16, part, n_parts);
}

static void adam_fp32(void *args, int item, int part, int n_parts)
{
    (void)item;
    adam(args, ZERO_FP32, part, n_parts);
}

static double seconds_of(bench_t *b, zero_host_pool_t *pool, zero_host_part_fn fn)
{
    double begin = now_s();
    zero_host_pool_start(pool, 1, fn, b);
    zero_host_pool_await(pool, 0);
    return now_s() - begin;
}

typedef struct work {
    zero_host_part_fn fn;
    int n_bytes; /* of an element */
} work_t;

enum { TRIAD, BF16, FP32, N_WORKS };
static const work_t works[N_WORKS] = {{triad, TRIAD_BYTES}, {adam_bf16, ADAM_BYTES}, {adam_fp32, ADAM_BYTES}};

/* Bytes per second of each, by turns; with `together`, of all ranks, which begin each round together. */
static void compare_on(bench_t *b, const cpu_set_t *cores, int n_threads, bool together, const char *where)
{
    double rates[N_WORKS][N_ROUNDS], of[N_WORKS];
    zero_host_pool_t *pool;
    if (!together && zero_comm_rank(b->comm) > 0)
        return;
    size_t all = b->n_elems;
    b->n_elems = n_threads == 1 ? all / 8 : all; /* as far from the caches, and not as long */
    REQUIRE(zero_host_pool_create(cores, n_threads, 1, &pool) == ZERO_OK);
    for (int round = -1; round < N_ROUNDS; round++)
        for (int k = 0; k < N_WORKS; k++) {
            if (together)
                REQUIRE(zero_comm_barrier(b->comm) == ZERO_OK);
            double rate = works[k].n_bytes * (double)b->n_elems * 1e-9 / seconds_of(b, pool, works[k].fn);
            if (together)
                REQUIRE(zero_comm_sum(b->comm, &rate, 1) == ZERO_OK);
            if (round >= 0)
                rates[k][round] = rate;
        }
    zero_host_pool_destroy(pool);
    b->n_elems = all;
    for (int k = 0; k < N_WORKS; k++)
        of[k] = median(rates[k], N_ROUNDS);
    double ns = ADAM_BYTES * (together ? zero_comm_size(b->comm) : 1); /* of a parameter, times the rate */
    if (zero_comm_rank(b->comm) == 0)
        printf("ADAMW %s, %d threads%s: triad %.1f GB/s, AdamW %.1f GB/s, %.2f of it; %.3f ns a parameter; fp32 %.1f "
               "GB/s, %.3f ns\n",
               where, n_threads, together ? " a rank" : "", of[TRIAD], of[BF16], of[BF16] / of[TRIAD], ns / of[BF16],
               of[FP32], ns / of[FP32]);
}

/* ---- copies ---- */

typedef struct copies {
    bool out, in; /* fp32 sums are sent, bf16 parameters return */
    const char *what;
} copies_t;

/* GB/s of this rank while all copy, of memory at `host`. */
static double copy_rate(const copies_t *copies, const bench_t *b, unsigned char *host, unsigned char *on_gpu,
                        size_t unit, cudaStream_t streams[2])
{
    double rates[N_ROUNDS];
    for (int round = -1; round < N_ROUNDS; round++) {
        REQUIRE(zero_comm_barrier(b->comm) == ZERO_OK);
        double begin = now_s(), n_bytes = 0.0;
        for (int i = 0; i < N_COPIES; i++) {
            size_t at = (size_t)(i % 4) * unit * 6;
            if (copies->out)
                REQUIRE(cudaMemcpyAsync(host + at, on_gpu + at, unit * 4, cudaMemcpyDeviceToHost, streams[0]) ==
                        cudaSuccess);
            if (copies->in)
                REQUIRE(cudaMemcpyAsync(on_gpu + at + unit * 4, host + at + unit * 4, unit * 2, cudaMemcpyHostToDevice,
                                        streams[1]) == cudaSuccess);
            n_bytes += (double)unit * ((copies->out ? 4 : 0) + (copies->in ? 2 : 0));
        }
        REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
        if (round >= 0)
            rates[round] = n_bytes * 1e-9 / (now_s() - begin);
    }
    double rate = median(rates, N_ROUNDS);
    REQUIRE(zero_comm_sum(b->comm, &rate, 1) == ZERO_OK);
    return rate / zero_comm_size(b->comm);
}

static void compare_copies(bench_t *b)
{
    static const copies_t kinds[] = {
        {true, false, "sums to the host"}, {false, true, "parameters to the GPU"}, {true, true, "both at once"}};
    size_t unit = (size_t)UNIT_PARAMS / (size_t)zero_comm_size(b->comm), n_bytes = unit * 6 * 4;
    unsigned char *bare, *on_gpu;
    cudaStream_t streams[2];
    REQUIRE(n_bytes <= b->n_bytes);
    REQUIRE(cudaMallocHost((void **)&bare, n_bytes) == cudaSuccess);
    memset(bare, 1, n_bytes);
    REQUIRE(cudaMalloc((void **)&on_gpu, n_bytes) == cudaSuccess);
    for (int i = 0; i < 2; i++)
        REQUIRE(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking) == cudaSuccess);
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        double of_bare = copy_rate(&kinds[k], b, bare, on_gpu, unit, streams);
        double ours = copy_rate(&kinds[k], b, b->host, on_gpu, unit, streams);
        if (zero_comm_rank(b->comm) == 0)
            printf("COPY %s, %d GPUs at once, units of %.1fM: CUDA's pinned memory %.1f GB/s each, ours %.1f, %.2f of "
                   "it\n",
                   kinds[k].what, zero_comm_size(b->comm), (double)unit * 1e-6, of_bare, ours, ours / of_bare);
    }
    for (int i = 0; i < 2; i++)
        cudaStreamDestroy(streams[i]);
    cudaFree(on_gpu);
    cudaFreeHost(bare);
}

int main(int argc, char **argv)
{
    bench_t b = {.n_elems = (argc > 1 ? strtoull(argv[1], NULL, 10) : 128) * 1000000 / 64 * 64};
    cpu_set_t cores;
    char address[32];
    zero_host_pool_t *pool;
    void *host;
    REQUIRE(argc <= 2 && b.n_elems > 0);
    REQUIRE(zero_comm_create(ZERO_COMM_AUTO, &b.comm) == ZERO_OK);
    REQUIRE(zero_device_create(ZERO_DEVICE_CUDA, b.comm, &b.device) == ZERO_OK);
    REQUIRE(b.device->ops->pci_address(b.device, address, sizeof address));
    REQUIRE(zero_host_cores_find(b.comm, address, &cores) == ZERO_OK);
    int n_threads = zero_host_cores_n_threads(&cores, 0, zero_comm_local_size(b.comm));
    b.n_bytes = b.n_elems * 20;
    REQUIRE(zero_host_map(b.n_bytes, &host) == ZERO_OK);
    b.host = host;
    b.m = host;
    b.v = b.m + b.n_elems;
    b.grad = b.v + b.n_elems;
    b.master = b.grad + b.n_elems;
    b.param = (uint16_t *)(void *)(b.master + b.n_elems);
    b.low = (int16_t *)(void *)(b.param + b.n_elems);
    zero_adam_scalars_decide(&b.scalars, 1e-4f, 0.9f, 0.95f, 1e-8f, 1.0f, 1.0f, 1.0f, 10);
    REQUIRE(zero_host_pool_create(&cores, n_threads, 1, &pool) == ZERO_OK);
    seconds_of(&b, pool, touch);
    zero_host_pool_destroy(pool);
    bool is_pinned = b.device->ops->host_pin(b.device, host, b.n_bytes) == ZERO_OK;
    printf("CORES rank %d: GPU at %s, %d cores of its own, %d threads, memory %spinned\n", zero_comm_rank(b.comm),
           address, CPU_COUNT(&cores), n_threads, is_pinned ? "" : "NOT ");
    fflush(stdout);
    REQUIRE(zero_comm_barrier(b.comm) == ZERO_OK);
    compare_on(&b, &cores, 1, false, "alone");
    compare_on(&b, &cores, n_threads, false, "alone");
    REQUIRE(zero_comm_barrier(b.comm) == ZERO_OK);
    compare_on(&b, &cores, n_threads, true, "all ranks");
    compare_on(&b, &cores, CPU_COUNT(&cores) > 0 ? CPU_COUNT(&cores) : n_threads, true, "all ranks, every core");
    cpu_set_t allowed, none, all = cores;
    zero_host_cores_add_siblings(&all);
    compare_on(&b, &all, CPU_COUNT(&all) > 0 ? CPU_COUNT(&all) : n_threads, true, "all ranks, every hardware thread");
    CPU_ZERO(&none);
    REQUIRE(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
    compare_on(&b, &none, CPU_COUNT(&allowed) / zero_comm_local_size(b.comm), true,
               "all ranks, not bound, every hardware thread");
    compare_copies(&b);
    if (is_pinned)
        b.device->ops->host_unpin(b.device, host);
    zero_host_unmap(host, b.n_bytes);
    zero_device_destroy(b.device);
    zero_comm_destroy(b.comm);
    return 0;
}
