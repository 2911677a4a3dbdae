/* test_collectives.c - comm.h's promises, kept by the transports between GPUs, one case per promise; for mpirun.
 *
 *     test_collectives nccl|copy-engine|rails|through-host|chosen-nccl [CASE]
 *                                      every case that leaves the communicator usable, or one by name
 *
 * chosen-nccl: NCCL must be what comm auto comes to. Rails need several hosts (tests/gpu/hosts/on).
 *
 * Bytes in windows follow from (rank, round, position) by a formula, so every rank knows what it must find. Kernels
 * fill and check them in the stream, so that the host is never between a write, a fence and a read. Random delays in
 * the streams vary the order of ranks and lanes. Copy engines and host memory also serve several ranks on one GPU: four
 * ranks can be tested on two GPUs, slowly. Needs no Check.
 */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/system.h"
#include "comm/comm.h"
#include "tests/gpu/programs/collectives.h"
#include "tests/support/clock.h"
#include "tests/support/elements.h"
#include "zero/device/device.h"

static const size_t sizes[] = {0, 1, 17, 4095, 65537, 300007, (4 << 20) + 3};
#define N_SIZES (sizeof sizes / sizeof sizes[0])
#define OFFSET 5 /* windows are used from an odd offset */
#define DEADLINE_S 60

static const char *current_case = "start";
static zero_comm_t *host, *comm;
static bool is_copy_engine, adds, crowded; /* crowded: ranks share GPUs, which take turns of milliseconds */
static unsigned long long *n_wrong;        /* device memory */
static uint64_t seed;

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            broken(#condition, __LINE__);                                                                              \
    } while (0)
#define EXPECT_OK(call) EXPECT((call) == ZERO_OK)
#define CUDA(call) EXPECT((call) == cudaSuccess)

static _Noreturn void broken(const char *condition, int line)
{
    fprintf(stderr, "%s, rank %d, line %d: not so: %s (CUDA: %s)\n", current_case, host ? host->rank : -1, line,
            condition, cudaGetErrorString(cudaPeekAtLastError()));
    if (host)
        zero_comm_abort(host, EXIT_FAILURE);
    exit(EXIT_FAILURE);
}

static uint64_t random_bits(void) /* SplitMix64 */
{
    uint64_t z = seed += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Whether all work in the stream ends in time. */
static bool ends_within(cudaStream_t stream, double seconds)
{
    const double end_s = now_s() + seconds;
    cudaError_t error;
    while ((error = cudaStreamQuery(stream)) == cudaErrorNotReady && now_s() < end_s)
        usleep(50);
    EXPECT(error == cudaSuccess || error == cudaErrorNotReady);
    return error == cudaSuccess;
}

static void expect_no_wrong_byte(void)
{
    unsigned long long found;
    CUDA(cudaMemcpy(&found, n_wrong, sizeof found, cudaMemcpyDeviceToHost));
    EXPECT(found == 0);
}

static void *device_alloc(size_t n_bytes)
{
    void *data;
    CUDA(cudaMalloc(&data, n_bytes + 1));
    CUDA(cudaMemset(data, 77, n_bytes + 1));
    CUDA(cudaDeviceSynchronize());
    return data;
}

/* ---- A lane at work ---- */

typedef enum move { SHARDS, SLICES_IN_PLACE, SLICES_ELSEWHERE, EXCHANGE, EXCHANGE_PIECE, N_MOVES } move_t;

typedef struct worker {
    zero_lane_t lane;
    cudaStream_t stream;
    zero_window_t window;
    unsigned char *all; /* gathered or staged data */
    const void **slices;
    size_t max_bytes; /* of a slice */
    int round;
    bool delays;
} worker_t;

static worker_t worker_create(zero_lane_t lane, size_t max_bytes, bool delays)
{
    worker_t w = {.lane = lane, .max_bytes = max_bytes, .delays = delays};
    int lowest, highest;
    CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    CUDA(cudaStreamCreateWithPriority(&w.stream, cudaStreamNonBlocking, lane == ZERO_LANE_STEP ? lowest : highest));
    EXPECT_OK(comm->ops->window_create(comm, OFFSET + (size_t)comm->size * max_bytes, &w.window));
    w.all = device_alloc((size_t)comm->size * max_bytes);
    w.slices = calloc((size_t)comm->size, sizeof *w.slices);
    EXPECT(w.slices != NULL);
    return w;
}

static void worker_destroy(worker_t *w)
{
    EXPECT(ends_within(w->stream, DEADLINE_S));
    expect_no_wrong_byte();
    comm->ops->window_destroy(comm, &w->window);
    CUDA(cudaFree(w->all));
    CUDA(cudaStreamDestroy(w->stream));
    free(w->slices);
}

static void fence(worker_t *w)
{
    EXPECT_OK(comm->ops->fence(comm, w->lane, (zero_stream_t)w->stream));
}

static void delay(worker_t *w)
{
    if (w->delays && random_bits() % 3 == 0)
        CUDA(launch_delay(random_bits() % 300000, w->stream));
}

static void check(worker_t *w, const void *data, int rank, size_t first, size_t n)
{
    CUDA(launch_check(data, rank, w->round, first, n, n_wrong, w->stream));
}

/* Writes, fence, read and fence again, all in the stream. */
static void move(worker_t *w, move_t what, size_t n)
{
    unsigned char *published = (unsigned char *)w->window.local + OFFSET;
    const size_t own = (size_t)comm->rank * n;
    EXPECT(n <= w->max_bytes);
    w->round++;
    delay(w);
    if (what == SHARDS)
        CUDA(launch_fill(published, comm->rank, w->round, 0, n, w->stream));
    else if (what == EXCHANGE || what == EXCHANGE_PIECE)
        CUDA(launch_fill(published, comm->rank, w->round, 0, n * (size_t)comm->size, w->stream));
    else
        CUDA(launch_fill(published + own, comm->rank, w->round, own, n, w->stream));
    fence(w);
    delay(w);
    if (what == EXCHANGE || what == EXCHANGE_PIECE) {
        const size_t first = what == EXCHANGE ? 0 : n / 3;
        EXPECT_OK(comm->ops->all_to_all(comm, w->lane, &w->window, comm->size, OFFSET + first, n, n - first, w->all,
                                        w->slices, (zero_stream_t)w->stream));
        EXPECT(w->slices[comm->rank] == published + own + first);
        for (int rank = 0; rank < comm->size; rank++)
            check(w, w->slices[rank], rank, own + first, n - first);
    } else {
        unsigned char *dst = what == SLICES_IN_PLACE ? published : w->all;
        EXPECT_OK(comm->ops->all_gather(comm, w->lane, &w->window, zero_comm_all(comm), OFFSET, what == SHARDS ? 0 : n,
                                        dst, n, (zero_stream_t)w->stream));
        for (int rank = 0; rank < comm->size; rank++)
            check(w, dst + (size_t)rank * n, rank, what == SHARDS ? 0 : (size_t)rank * n, n);
    }
    delay(w);
    fence(w);
}

/* ---- Cases ---- */

static void windows_are_zeroed_and_aligned(void)
{
    for (size_t i = 0; i < N_SIZES; i++) {
        zero_window_t window;
        unsigned char *seen = malloc(sizes[i] + 1);
        EXPECT_OK(comm->ops->window_create(comm, sizes[i], &window));
        EXPECT(window.n_bytes == sizes[i] && (uintptr_t)window.local % 4096 == 0 && seen);
        CUDA(cudaMemcpy(seen, window.local, sizes[i], cudaMemcpyDeviceToHost));
        for (size_t at = 0; at < sizes[i]; at++)
            EXPECT(seen[at] == 0);
        CUDA(cudaMemset(window.local, 99, sizes[i]));
        comm->ops->window_destroy(comm, &window);
        free(seen);
    }
}

static void every_move_of_every_size(void)
{
    for (size_t i = 0; i < N_SIZES; i++) {
        worker_t w = worker_create(ZERO_LANE_GATHER, sizes[i], false);
        unsigned char beyond, before[OFFSET];
        for (int what = 0; what < N_MOVES; what++)
            move(&w, (move_t)what, sizes[i]);
        EXPECT(ends_within(w.stream, DEADLINE_S));
        CUDA(cudaMemcpy(&beyond, w.all + sizes[i] * (size_t)comm->size, 1, cudaMemcpyDeviceToHost));
        CUDA(cudaMemcpy(before, w.window.local, OFFSET, cudaMemcpyDeviceToHost));
        EXPECT(beyond == 77 && memcmp(before, "\0\0\0\0", OFFSET) == 0);
        worker_destroy(&w);
    }
}

/* Ranks of random speed: no round reads another's bytes. */
static void rounds_do_not_mix(void)
{
    worker_t w = worker_create(ZERO_LANE_REDUCE, 300007, true);
    for (int round = 0; round < (crowded ? 40 : 400); round++)
        move(&w, (move_t)(round % N_MOVES), sizes[1 + round % 5]);
    worker_destroy(&w);
}

/* Three lanes in streams of their own. With copy engines ranks issue them in different orders, which is more than is
 * promised: it needs as many hardware queues as CUDA has, unless CUDA_DEVICE_MAX_CONNECTIONS sets fewer. */
static void lanes_run_beside_each_other(void)
{
    worker_t workers[ZERO_N_LANES];
    int left = (crowded ? 20 : 200) * ZERO_N_LANES;
    for (int lane = 0; lane < ZERO_N_LANES; lane++)
        workers[lane] = worker_create((zero_lane_t)lane, 300007, true);
    uint64_t order = is_copy_engine ? (uint64_t)comm->rank : 0;
    while (left > 0) {
        order = order * 6364136223846793005u + 1442695040888963407u;
        worker_t *w = &workers[(order >> 33) % ZERO_N_LANES];
        if (w->round == (crowded ? 20 : 200))
            continue;
        move(w, (move_t)((w->round + (int)w->lane) % N_MOVES), sizes[1 + w->round % 5]);
        left--;
    }
    for (int lane = 0; lane < ZERO_N_LANES; lane++)
        EXPECT(ends_within(workers[lane].stream, DEADLINE_S));
    for (int lane = 0; lane < ZERO_N_LANES; lane++)
        worker_destroy(&workers[lane]);
}

/* More than what a transport stages at once: 7 MiB in the lane that gathers, 0.5 in others. */
static void moves_of_several_rounds(void)
{
    const size_t most = ((size_t)20 << 20) + 3;
    for (int lane = 0; lane < ZERO_N_LANES; lane++) {
        const size_t n = lane == ZERO_LANE_GATHER ? most : most / 8;
        worker_t w = worker_create((zero_lane_t)lane, n, true);
        for (int i = 0; i < 2 * N_MOVES; i++)
            move(&w, (move_t)(i % N_MOVES), i % 3 == 2 ? n - 4097 : n);
        worker_destroy(&w);
    }
}

/* As many as `group` neighbours gather, and those with the same place in every group, all with bytes of their own. */
static void gather_in_groups_of(worker_t *w, int group, size_t n)
{
    const int n_groups = comm->size / group, rank = comm->rank;
    const zero_ranks_t near = {.first = rank - rank % group, .stride = 1, .n = group};
    const zero_ranks_t far = {.first = rank % group, .stride = group, .n = n_groups};
    unsigned char *published = (unsigned char *)w->window.local + OFFSET;
    w->round++;
    CUDA(launch_fill(published, rank, w->round, 0, n * (size_t)comm->size, w->stream));
    fence(w);
    EXPECT_OK(comm->ops->all_gather(comm, w->lane, &w->window, near, OFFSET, 0, w->all, n, (zero_stream_t)w->stream));
    for (int i = 0; i < group; i++)
        check(w, w->all + (size_t)i * n, near.first + i, 0, n);
    delay(w);
    EXPECT_OK(comm->ops->all_gather(comm, w->lane, &w->window, far, OFFSET, n, w->all, n, (zero_stream_t)w->stream));
    for (int i = 0; i < n_groups; i++)
        check(w, w->all + (size_t)i * n, rank % group + i * group, (size_t)i * n, n);
    const int me = zero_comm_slice_of(rank, comm->size, group);
    EXPECT_OK(comm->ops->all_to_all(comm, w->lane, &w->window, group, OFFSET, n, n, w->all, w->slices,
                                    (zero_stream_t)w->stream));
    for (int i = 0; i < comm->size; i++)
        check(w, w->slices[i], i, (size_t)me * n, n);
    fence(w);
}

static void groups_gather_among_themselves(void)
{
    worker_t w = worker_create(ZERO_LANE_GATHER, 300007, true);
    for (int group = 1; group <= comm->size; group++)
        for (int i = 0; i < 6 && comm->size % group == 0; i++)
            gather_in_groups_of(&w, group, sizes[1 + i % 5]);
    worker_destroy(&w);
}

static void ten_thousand_fences(void)
{
    const int n = crowded ? 500 : 10000;
    worker_t w = worker_create(ZERO_LANE_STEP, 4095, false);
    EXPECT_OK(zero_comm_barrier(host));
    const double start_s = now_s();
    for (int i = 0; i < n; i++)
        fence(&w);
    const double issued_s = now_s();
    EXPECT(ends_within(w.stream, DEADLINE_S));
    if (comm->rank == 0)
        printf("   %d fences: %.2f us each, %.2f us to issue\n", n, 1e6 * (now_s() - start_s) / n,
               1e6 * (issued_s - start_s) / n);
    move(&w, SHARDS, 4095);
    worker_destroy(&w);
}

/* Rank 0 is late for a gather's fence; meanwhile the other lanes, and any kind of copy, continue. Also with more
 * streams than an engine has: the number is printed, since CUDA lets streams share queues. */
static void a_fence_that_waits_holds_up_no_other_lane(void)
{
    enum { N_STREAMS = 24, N_NEEDED = 4 };
    worker_t gather = worker_create(ZERO_LANE_GATHER, 65537, false);
    worker_t reduce = worker_create(ZERO_LANE_REDUCE, 65537, false);
    const cudaStream_t own_stream = reduce.stream;
    cudaStream_t streams[N_STREAMS];
    void *pinned;
    int n_held = 0, first_held = N_STREAMS, n_all[64];
    CUDA(cudaMallocHost(&pinned, 4096));
    for (int i = 0; i < N_STREAMS; i++)
        CUDA(cudaStreamCreateWithPriority(&streams[i], cudaStreamNonBlocking, i % 2 ? -5 : 0));
    move(&reduce, EXCHANGE, 65537); /* everything has been used once */
    EXPECT(ends_within(reduce.stream, DEADLINE_S));
    if (comm->rank != 0)
        move(&gather, SLICES_ELSEWHERE, 65537);
    for (int i = 0; i < N_STREAMS && n_held == 0; i++) {
        reduce.stream = i == 0 ? own_stream : streams[i];
        move(&reduce, EXCHANGE, 65537);
        CUDA(cudaMemcpyAsync(reduce.all, pinned, 4096, cudaMemcpyHostToDevice, reduce.stream));
        CUDA(cudaMemcpyAsync(pinned, reduce.all, 4096, cudaMemcpyDeviceToHost, reduce.stream));
        int held = !ends_within(reduce.stream, 1.0);
        EXPECT_OK(comm->ops->host_all_gather(comm, &held, sizeof held, n_all));
        for (int rank = 0; rank < comm->size; rank++)
            n_held += n_all[rank];
        if (n_held > 0)
            first_held = i;
    }
    EXPECT(comm->rank == 0 || cudaStreamQuery(gather.stream) == cudaErrorNotReady); /* else nothing was shown */
    EXPECT_OK(zero_comm_barrier(host));
    if (comm->rank == 0)
        move(&gather, SLICES_ELSEWHERE, 65537);
    for (int i = 0; i < N_STREAMS; i++) {
        EXPECT(ends_within(streams[i], DEADLINE_S));
        CUDA(cudaStreamDestroy(streams[i]));
    }
    CUDA(cudaFreeHost(pinned));
    if (comm->rank == 0)
        printf("   streams that went on: %d of %d\n", first_held, N_STREAMS);
    EXPECT(first_held >= N_NEEDED);
    reduce.stream = own_stream;
    worker_destroy(&gather);
    worker_destroy(&reduce);
}

static void a_window_that_cannot_be_had(void)
{
    zero_window_t window = {.n_bytes = 123};
    zero_status_t status = comm->ops->window_create(comm, (size_t)1 << 60, &window); /* logs an error on every rank */
    EXPECT(status == ZERO_ERROR_MEMORY && window.n_bytes == 123);
    EXPECT_OK(comm->ops->window_create(comm, 5000, &window));
    comm->ops->window_destroy(comm, &window);
}

/* Small whole numbers, which every dtype adds exactly: rank r publishes (r + 1) * (e % 7 + 1) as element e. The other
 * slices stay; so does what lies around the buffer. */
static void a_reduce_scatter_adds_in_place(void)
{
    static const zero_dtype_t dtypes[] = {ZERO_FP32, ZERO_BF16, ZERO_FP16};
    const size_t counts[] = {0, 64, 8192 + 64, 100032};
    const size_t size = (size_t)comm->size, around = 64;
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0] * 4; i++) {
        const zero_dtype_t dtype = dtypes[i / 4];
        const size_t n = counts[i % 4], n_all = around + n * size + around, n_bytes = n_all * zero_dtype_size(dtype);
        const size_t own = around + (size_t)comm->rank * n;
        zero_window_t window;
        unsigned char *data = malloc(n_bytes);
        EXPECT(data != NULL);
        for (size_t e = 0; e < n_all; e++)
            element_store(data, dtype, e, (float)((size_t)(comm->rank + 1) * (e % 7 + 1)));
        EXPECT_OK(comm->ops->window_create(comm, n_bytes, &window));
        CUDA(cudaMemcpy(window.local, data, n_bytes, cudaMemcpyHostToDevice));
        EXPECT_OK(comm->ops->fence(comm, ZERO_LANE_REDUCE, NULL));
        EXPECT_OK(comm->ops->reduce_scatter(comm, ZERO_LANE_REDUCE, &window, around * zero_dtype_size(dtype), n, dtype,
                                            NULL));
        EXPECT(ends_within(NULL, DEADLINE_S));
        CUDA(cudaMemcpy(data, window.local, n_bytes, cudaMemcpyDeviceToHost));
        for (size_t e = 0; e < n_all; e++) {
            bool is_mine = e >= own && e < own + n;
            size_t times = is_mine ? size * (size + 1) / 2 : (size_t)comm->rank + 1;
            EXPECT(element_load(data, dtype, e) == (float)(times * (e % 7 + 1)));
        }
        EXPECT_OK(zero_comm_barrier(host));
        comm->ops->window_destroy(comm, &window);
        free(data);
    }
}

/* Rank 1 never arrives. The others find that by a deadline of their own, and release lets their streams drain. */
static void a_stuck_peer_can_be_left(void)
{
    worker_t w = worker_create(ZERO_LANE_GATHER, 65537, false);
    move(&w, SHARDS, 65537);
    EXPECT(ends_within(w.stream, DEADLINE_S));
    EXPECT_OK(zero_comm_barrier(host));
    if (comm->rank != 1) {
        for (int i = 0; i < 20; i++)
            move(&w, SHARDS, 65537);
        EXPECT(!ends_within(w.stream, 0.5));
        const double start_s = now_s();
        comm->ops->release(comm);
        EXPECT(comm->failed && ends_within(w.stream, 2.0));
        if (comm->rank == 0)
            printf("   released in %.0f ms\n", 1e3 * (now_s() - start_s));
    }
    comm->failed = true;
    EXPECT_OK(zero_comm_barrier(host));
    CUDA(cudaMemset(n_wrong, 0, sizeof *n_wrong)); /* what was read without a peer is not right */
    worker_destroy(&w);
}

/* The transports for which a case is meaningful; and the cases that run alone. */
enum { ONE_RANK = 1, MESSAGES = 2, BY_NAME = 4, ADDS = 8 };

static const struct {
    const char *name;
    void (*run)(void);
    int flags;
} cases[] = {
#define CASE(name, flags)                                                                                              \
    {                                                                                                                  \
#name, name, flags                                                                                             \
    }
    CASE(windows_are_zeroed_and_aligned, ONE_RANK | MESSAGES),
    CASE(every_move_of_every_size, ONE_RANK | MESSAGES),
    CASE(rounds_do_not_mix, ONE_RANK | MESSAGES),
    CASE(lanes_run_beside_each_other, ONE_RANK | MESSAGES),
    CASE(moves_of_several_rounds, MESSAGES),
    CASE(groups_gather_among_themselves, MESSAGES),
    CASE(ten_thousand_fences, 0),
    CASE(a_fence_that_waits_holds_up_no_other_lane, 0),
    CASE(a_reduce_scatter_adds_in_place, ONE_RANK | MESSAGES | ADDS),
    CASE(a_window_that_cannot_be_had, ONE_RANK | MESSAGES),
    CASE(a_stuck_peer_can_be_left, MESSAGES | BY_NAME),
#undef CASE
};

static bool is_to_run(size_t i, const char *name)
{
    if (name ? strcmp(name, cases[i].name) != 0 : (cases[i].flags & BY_NAME) != 0)
        return false;
    bool serves = is_copy_engine || (cases[i].flags & MESSAGES) != 0;
    return serves && (adds || !(cases[i].flags & ADDS)) && (comm->size > 1 || (cases[i].flags & ONE_RANK));
}

static const struct {
    const char *argument;
    zero_comm_kind_t kind;
    const char *name;
} transports[] = {{"nccl", ZERO_COMM_NCCL, "nccl"},
                  {"copy-engine", ZERO_COMM_AUTO, "copy-engine"},
                  {"rails", ZERO_COMM_AUTO, "rails"},
                  {"through-host", ZERO_COMM_MPI, "through-host"},
                  {"chosen-nccl", ZERO_COMM_AUTO, "nccl"}};
#define N_TRANSPORTS (sizeof transports / sizeof transports[0])

int main(int argc, char **argv)
{
    int n_gpus, n_run = 0;
    zero_device_t *device;
    size_t transport = 0;
    while (transport < N_TRANSPORTS && (argc < 2 || strcmp(argv[1], transports[transport].argument) != 0))
        transport++;
    if (transport == N_TRANSPORTS) {
        fprintf(stderr, "usage: test_collectives nccl|copy-engine|rails|through-host|chosen-nccl [CASE]\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    is_copy_engine = strcmp(argv[1], "copy-engine") == 0;
    zero_log_set(ZERO_LOG_DEBUG, NULL, NULL); /* why copy engines cannot be used */
    EXPECT_OK(zero_comm_create(transports[transport].kind, &host));
    CUDA(cudaGetDeviceCount(&n_gpus));
    EXPECT_OK(zero_device_create(ZERO_DEVICE_CUDA_SHARED, host, &device)); /* selects its GPU */
    crowded = host->size > n_gpus;
    const double start_s = now_s();
    EXPECT_OK(zero_device_comm_create(device, host, false, &comm));
    adds = comm->ops->reduce_scatter != NULL;
    EXPECT(strcmp(comm->ops->name, transports[transport].name) == 0);
    if (comm->rank == 0)
        printf("%s, %d ranks on %d GPUs, created in %.0f ms\n", argv[1], comm->size, n_gpus, 1e3 * (now_s() - start_s));
    CUDA(cudaMalloc((void **)&n_wrong, sizeof *n_wrong));
    CUDA(cudaMemset(n_wrong, 0, sizeof *n_wrong));
    CUDA(cudaDeviceSynchronize());
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (!is_to_run(i, argc > 2 ? argv[2] : NULL))
            continue;
        current_case = cases[i].name;
        seed = 1000u * (uint64_t)comm->rank + i;
        const double begin_s = now_s();
        cases[i].run();
        EXPECT_OK(zero_comm_barrier(host));
        if (comm->rank == 0)
            printf("ok: %s (%.1f s)\n", cases[i].name, now_s() - begin_s);
        n_run++;
    }
    EXPECT(n_run > 0);
    CUDA(cudaFree(n_wrong));
    zero_device_comm_destroy(host, comm);
    zero_device_destroy(device);
    zero_comm_destroy(host);
    host = NULL;
    return EXIT_SUCCESS;
}
