/* bench_collectives.c - how fast the transports between GPUs move 96 MiB, alone and beside matrix products, and how
 * much they slow those down; for mpirun, one rank per GPU.
 *
 * A row is: busbw alone; busbw beside bf16 products of about 0.18 ms each; GEMM time lost per ms of communication.
 * busbw is what each rank receives over time, (N-1)/N of 96 MiB, as NCCL counts. Each gather and scatter runs between
 * the fences that its use needs. Communication is in a stream of high priority and lies wholly within the products'
 * time (else a row is marked *). Medians, of the slowest rank. The rows "pull" are single ways of copying a slice from
 * the next rank, without fences: the transport's choice is based on them.
 *
 *     bench_collectives [nccl|copy-engine|pull|fence]...      all of them by default
 */
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "tests/gpu/programs/collectives.h"

enum { N_ALONE = 21, N_BESIDE = 9, N_GEMMS = 60, N_AHEAD = 5, M = 8192, N = 4096, K = 2048, N_EVENTS = 4 };
#define TOTAL_BYTES ((size_t)96 << 20)
#define WORKSPACE_BYTES ((size_t)32 << 20)

static zero_comm_t *host, *comm;
static cudaStream_t compute, high, high2;
static size_t slice_bytes;

#define REQUIRE(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "bench_collectives: line %d: %s does not hold (CUDA: %s)\n", __LINE__, #condition,         \
                    cudaGetErrorString(cudaPeekAtLastError()));                                                        \
            if (host)                                                                                                  \
                zero_comm_abort(host, 1);                                                                              \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define CUDA(call) REQUIRE((call) == cudaSuccess)
#define OK(call) REQUIRE((call) == ZERO_OK)

static int compare_floats(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static float median(float *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, compare_floats);
    return values[n / 2];
}

static float slowest(float mine)
{
    float all[64];
    OK(host->ops->host_all_gather(host, &mine, sizeof mine, all));
    for (int rank = 0; rank < host->size; rank++)
        mine = all[rank] > mine ? all[rank] : mine;
    return mine;
}

static void *device_alloc(size_t n_bytes)
{
    void *data;
    CUDA(cudaMalloc(&data, n_bytes));
    CUDA(launch_fill(data, host->rank, 0, 0, n_bytes, NULL));
    CUDA(cudaDeviceSynchronize());
    return data;
}

/* ---- Matrix products ---- */

static struct {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
    void *a_data, *b_data, *c_data, *workspace;
} gemm;

static void *random_bf16(size_t n)
{
    uint16_t *values = malloc(n * sizeof *values);
    void *data;
    uint64_t state = 1;
    REQUIRE(values);
    for (size_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        values[i] = (uint16_t)((state >> 63) << 15 | (120 + ((state >> 50) & 7)) << 7 | ((state >> 40) & 127));
    }
    CUDA(cudaMalloc(&data, n * sizeof *values));
    CUDA(cudaMemcpy(data, values, n * sizeof *values, cudaMemcpyHostToDevice));
    free(values);
    return data;
}

static void gemm_create(void)
{
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found;
    const size_t workspace_bytes = WORKSPACE_BYTES;
    int n_found = 0;
    gemm.a_data = random_bf16((size_t)M * K);
    gemm.b_data = random_bf16((size_t)K * N);
    CUDA(cudaMalloc(&gemm.c_data, (size_t)M * N * 2));
    CUDA(cudaMalloc(&gemm.workspace, WORKSPACE_BYTES));
    REQUIRE(cublasLtCreate(&gemm.handle) == CUBLAS_STATUS_SUCCESS);
    cublasLtMatmulDescCreate(&gemm.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatrixLayoutCreate(&gemm.a, CUDA_R_16BF, M, K, M);
    cublasLtMatrixLayoutCreate(&gemm.b, CUDA_R_16BF, K, N, K);
    cublasLtMatrixLayoutCreate(&gemm.c, CUDA_R_16BF, M, N, M);
    cublasLtMatmulPreferenceCreate(&preference);
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                                         sizeof workspace_bytes);
    cublasLtMatmulAlgoGetHeuristic(gemm.handle, gemm.operation, gemm.a, gemm.b, gemm.c, gemm.c, preference, 1, &found,
                                   &n_found);
    REQUIRE(n_found == 1);
    gemm.algo = found.algo;
    cublasLtMatmulPreferenceDestroy(preference);
}

static void multiply(int n)
{
    const float one = 1.0f, zero = 0.0f;
    for (int i = 0; i < n; i++)
        REQUIRE(cublasLtMatmul(gemm.handle, gemm.operation, &one, gemm.a_data, gemm.a, gemm.b_data, gemm.b, &zero,
                               gemm.c_data, gemm.c, gemm.c_data, gemm.c, &gemm.algo, gemm.workspace, WORKSPACE_BYTES,
                               compute) == CUBLAS_STATUS_SUCCESS);
}

/* ---- Timing ---- */

static cudaEvent_t events[N_EVENTS];

static float elapsed_ms(cudaEvent_t from, cudaEvent_t to)
{
    float ms;
    CUDA(cudaEventElapsedTime(&ms, from, to));
    return ms;
}

/* Per call, of several in a row. */
static float alone_ms(void (*issue)(void), int n_calls)
{
    float ms[N_ALONE];
    for (int run = -2; run < N_ALONE; run++) {
        OK(zero_comm_barrier(host));
        CUDA(cudaEventRecord(events[0], high));
        for (int i = 0; i < n_calls; i++)
            issue();
        CUDA(cudaEventRecord(events[1], high));
        CUDA(cudaDeviceSynchronize());
        if (run >= 0)
            ms[run] = elapsed_ms(events[0], events[1]) / (float)n_calls;
    }
    return slowest(median(ms, N_ALONE));
}

/* Returns the products' time with n_calls of communication among them, or none; *comm_ms: the time of one call. */
static float gemms_ms(void (*issue)(void), int n_calls, float *comm_ms, bool *inside)
{
    OK(zero_comm_barrier(host));
    CUDA(cudaEventRecord(events[0], compute));
    multiply(N_AHEAD);
    if (n_calls > 0) {
        CUDA(cudaEventRecord(events[1], compute));
        CUDA(cudaStreamWaitEvent(high, events[1], 0));
        for (int i = 0; i < n_calls; i++)
            issue();
        CUDA(cudaEventRecord(events[2], high));
    }
    multiply(N_GEMMS - N_AHEAD);
    CUDA(cudaEventRecord(events[3], compute));
    CUDA(cudaDeviceSynchronize());
    if (n_calls > 0) {
        *comm_ms = elapsed_ms(events[1], events[2]) / (float)n_calls;
        *inside &= elapsed_ms(events[2], events[3]) > 0.0f;
    }
    return elapsed_ms(events[0], events[3]);
}

static void report(const char *name, size_t n_bytes, void (*issue)(void))
{
    const float one_ms = alone_ms(issue, 8);
    const int n_calls = one_ms < 0.15f ? 24 : one_ms < 3.0f ? (int)(3.5f / one_ms) + 1 : 1;
    float comm_ms[N_BESIDE], lost[N_BESIDE], gemm_ms[N_BESIDE];
    bool inside = true;
    for (int run = -1; run < N_BESIDE; run++) {
        float ms = 0.0f, without = gemms_ms(issue, 0, NULL, NULL), with = gemms_ms(issue, n_calls, &ms, &inside);
        if (run < 0)
            continue;
        comm_ms[run] = ms;
        gemm_ms[run] = without / N_GEMMS;
        lost[run] = (with - without) / (ms * (float)n_calls);
    }
    const float beside_ms = slowest(median(comm_ms, N_BESIDE)), lost_ms = slowest(median(lost, N_BESIDE));
    if (host->rank == 0)
        printf("%-42s %7.1f %7.1f %8.3f%s   (%.3f ms alone, %.3f beside; GEMM %.4f ms)\n", name,
               (double)n_bytes / one_ms * 1e-6, (double)n_bytes / beside_ms * 1e-6, lost_ms, inside ? " " : "*", one_ms,
               beside_ms, median(gemm_ms, N_BESIDE));
}

/* ---- The transports ---- */

static zero_window_t window;
static void *elsewhere;
static const void *slices[64];

static void fence(zero_lane_t lane)
{
    OK(comm->ops->fence(comm, lane, (zero_stream_t)high));
}

static void gather_in_place(void)
{
    fence(ZERO_LANE_GATHER);
    OK(comm->ops->all_gather(comm, ZERO_LANE_GATHER, &window, zero_comm_all(comm), 0, slice_bytes, window.local,
                             slice_bytes, (zero_stream_t)high));
    fence(ZERO_LANE_GATHER);
}

static void gather_into_buffer(void)
{
    fence(ZERO_LANE_GATHER);
    OK(comm->ops->all_gather(comm, ZERO_LANE_GATHER, &window, zero_comm_all(comm), 0, 0, elsewhere, slice_bytes,
                             (zero_stream_t)high));
    fence(ZERO_LANE_GATHER);
}

static void scatter(void)
{
    fence(ZERO_LANE_REDUCE);
    OK(comm->ops->all_to_all(comm, ZERO_LANE_REDUCE, &window, comm->size, 0, slice_bytes, slice_bytes, elsewhere,
                             slices, (zero_stream_t)high));
    fence(ZERO_LANE_REDUCE);
}

static void only_fence(void)
{
    fence(ZERO_LANE_STEP);
}

static void bench_transport(zero_status_t (*create)(zero_comm_t *, zero_comm_t **))
{
    char name[64];
    OK(create(host, &comm));
    OK(comm->ops->window_create(comm, TOTAL_BYTES, &window));
    CUDA(launch_fill(window.local, host->rank, 0, 0, TOTAL_BYTES, high));
    const struct {
        const char *name;
        void (*issue)(void);
    } rows[] = {
        {"gather in place", gather_in_place}, {"gather into a buffer", gather_into_buffer}, {"scatter", scatter}};
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s, %s", comm->ops->name, rows[i].name);
        report(name, slice_bytes * (size_t)(host->size - 1), rows[i].issue);
    }
    float fence_ms = alone_ms(only_fence, 200);
    if (host->rank == 0)
        printf("%s, fence: %.2f us\n", comm->ops->name, 1e3 * (double)fence_ms);
    comm->ops->window_destroy(comm, &window);
    comm->ops->destroy(comm);
}

/* ---- single ways of copying ---- */

static unsigned char *peers[64]; /* a block of TOTAL_BYTES on every rank, as mapped here */

static const unsigned char *next_rank(void)
{
    return peers[(host->rank + 1) % host->size];
}

static void pull_async(void)
{
    CUDA(cudaMemcpyAsync(elsewhere, next_rank(), slice_bytes, cudaMemcpyDeviceToDevice, high));
}

static void batch(const unsigned char *src, size_t n_parts)
{
    struct cudaMemcpyAttributes overlap = {.srcAccessOrder = cudaMemcpySrcAccessOrderStream,
                                           .flags = cudaMemcpyFlagPreferOverlapWithCompute};
    void *dsts[16];
    const void *srcs[16];
    size_t n_bytes[16], first = 0, chunk = slice_bytes / n_parts;
    for (size_t i = 0; i < n_parts; i++) {
        dsts[i] = (unsigned char *)elsewhere + i * chunk;
        srcs[i] = src + i * chunk;
        n_bytes[i] = chunk;
    }
    CUDA(cudaMemcpyBatchAsync(dsts, srcs, n_bytes, n_parts, &overlap, &first, 1, high));
}

static void pull_batch(void)
{
    batch(next_rank(), 1);
}

static void pull_batch_of_2(void)
{
    batch(next_rank(), 2);
}

static void pull_batch_of_4(void)
{
    batch(next_rank(), 4);
}

static void pull_two_streams(void)
{
    static cudaEvent_t fork, join;
    const size_t half = slice_bytes / 2;
    if (!fork) {
        CUDA(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
        CUDA(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    }
    CUDA(cudaEventRecord(fork, high));
    CUDA(cudaStreamWaitEvent(high2, fork, 0));
    CUDA(cudaMemcpyAsync(elsewhere, next_rank(), half, cudaMemcpyDeviceToDevice, high));
    CUDA(cudaMemcpyAsync((char *)elsewhere + half, next_rank() + half, half, cudaMemcpyDeviceToDevice, high2));
    CUDA(cudaEventRecord(join, high2));
    CUDA(cudaStreamWaitEvent(high, join, 0));
}

static void own_async(void)
{
    CUDA(cudaMemcpyAsync(elsewhere, peers[host->rank], slice_bytes, cudaMemcpyDeviceToDevice, high));
}

static void own_batch(void)
{
    batch(peers[host->rank], 1);
}

static void kernel_fence(void)
{
    static uint32_t *words[64], epoch;
    for (int rank = 0; rank < host->size; rank++)
        words[rank] = (uint32_t *)(void *)peers[rank];
    CUDA(launch_fence(words, words[host->rank], host->rank, host->size, ++epoch, high));
}

static void map_peers(void)
{
    cudaIpcMemHandle_t mine, all[64];
    CUDA(cudaMalloc((void **)&peers[host->rank], TOTAL_BYTES));
    CUDA(launch_fill(peers[host->rank], host->rank, 0, 0, TOTAL_BYTES, high));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaIpcGetMemHandle(&mine, peers[host->rank]));
    OK(host->ops->host_all_gather(host, &mine, sizeof mine, all));
    for (int rank = 0; rank < host->size; rank++)
        if (rank != host->rank)
            CUDA(cudaIpcOpenMemHandle((void **)&peers[rank], all[rank], cudaIpcMemLazyEnablePeerAccess));
}

static void bench_pulls(void)
{
    report("pull, cudaMemcpyAsync", slice_bytes, pull_async);
    report("pull, batch of 1", slice_bytes, pull_batch);
    report("pull, batch of 2", slice_bytes, pull_batch_of_2);
    report("pull, batch of 4", slice_bytes, pull_batch_of_4);
    report("pull, halves in two streams", slice_bytes, pull_two_streams);
    report("own slice, cudaMemcpyAsync", slice_bytes, own_async);
    report("own slice, batch of 1", slice_bytes, own_batch);
}

static void bench_kernel_fence(void)
{
    CUDA(cudaMemset(peers[host->rank], 0, 4096));
    CUDA(cudaDeviceSynchronize());
    float fence_ms = alone_ms(kernel_fence, 200);
    if (host->rank == 0)
        printf("a kernel's fence: %.2f us\n", 1e3 * (double)fence_ms);
}

int main(int argc, char **argv)
{
    int lowest, highest;
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    OK(zero_comm_create(ZERO_COMM_AUTO, &host));
    CUDA(cudaSetDevice(host->local_rank));
    CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    CUDA(cudaStreamCreateWithPriority(&compute, cudaStreamNonBlocking, lowest));
    CUDA(cudaStreamCreateWithPriority(&high, cudaStreamNonBlocking, highest));
    CUDA(cudaStreamCreateWithPriority(&high2, cudaStreamNonBlocking, highest));
    for (int i = 0; i < N_EVENTS; i++)
        CUDA(cudaEventCreate(&events[i]));
    slice_bytes = TOTAL_BYTES / (size_t)host->size;
    elsewhere = device_alloc(TOTAL_BYTES);
    gemm_create();
    multiply(200); /* clocks settle */
    CUDA(cudaDeviceSynchronize());
    if (host->rank == 0)
        printf("%d GPUs, 96 MiB%35s %7s %7s %8s\n", host->size, "", "alone", "beside", "lost");
    for (int i = 1; i < (argc > 1 ? argc : 5); i++) {
        const char *what = argc > 1 ? argv[i] : (const char *[]){"nccl", "copy-engine", "pull", "fence"}[i - 1];
        if (strcmp(what, "nccl") == 0)
            bench_transport(zero_comm_nccl_create);
        else if (strcmp(what, "copy-engine") == 0)
            bench_transport(zero_comm_copy_engine_create);
        else if (!peers[host->rank])
            map_peers();
        if (strcmp(what, "pull") == 0)
            bench_pulls();
        else if (strcmp(what, "fence") == 0)
            bench_kernel_fence();
    }
    CUDA(cudaDeviceSynchronize());
    OK(zero_comm_barrier(host));
    zero_comm_destroy(host);
    return 0;
}
