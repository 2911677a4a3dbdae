/* copy_engine.c - the transport between the GPUs of one host that leaves the SMs to compute: copy engines read what
 * peers have published, and fences are stream memory operations. Compute loses memory bandwidth at most.
 *
 * A window is device memory that every peer maps (CUDA IPC). Data is always read from peers, never written to them. A
 * fence alone writes to peers, one word: each rank has a block of epochs [lane][peer], which says how far every peer
 * has come in every lane. A fence writes this rank's new epoch to all peers' blocks, and waits until all peers' epochs
 * in its own block are as high. The stream's front end does both, without a kernel and without the host. Each lane has
 * its own epochs, so its fences do not depend on other lanes. A peer is at most one epoch ahead and the comparison is
 * cyclic, so the 32 bits may wrap around. They start at the last value, so that every run wraps at its first fence.
 *
 * Why a copy after a fence reads what was written before it:
 *     - The writer's kernels and copies are done when its stream comes to the fence, and cuStreamWriteValue issues a
 *       system-scope fence before its write. So the data is in the owner's L2, through which all GPUs read that memory,
 *       before any peer can see the epoch.
 *     - The reader's copies start when its stream has passed all waits. They read from the owner's L2 through NVLink.
 *       No cache of the reader holds peers' memory, so it cannot read old data.
 *     - CU_STREAM_WAIT_VALUE_FLUSH is for data that peers wrote to this GPU's memory before the word that it waits for.
 *       There is none: only epochs are written to peers.
 * Why memory may be overwritten after a fence: a reader's epoch follows its copies in its stream, so it is written only
 * when they are done.
 *
 * A fence that waits for a stuck peer shows as an event that does not complete. Whichever call detects that
 * (zero_step_wait has a deadline) sets comm->failed. `release` then writes the awaited epochs itself, so that the
 * streams drain.
 *
 * A gather that is not in place must copy the rank's own slice locally. CUDA always runs such a copy as a kernel (seen
 * with CUDA 13 on an H200), which has to wait if a GEMM fills the SMs. So it has a stream of its own, and overlaps the
 * copies from peers.
 *
 * CUDA maps streams to few hardware queues (CUDA_DEVICE_MAX_CONNECTIONS, 8 by default), so a waiting fence can hold up
 * what another stream has queued behind it. Therefore every rank must issue the calls of all lanes in the same order.
 * Then each rank comes to the earliest fence that has not completed, even with a single queue, and it completes.
 *
 * Calls cannot be captured into a CUDA graph: epochs are arguments, and a replay would write old ones.
 *
 * Peers are the ranks of one host. If the communicator has those of several, each host has fences of its own, and a
 * rank reaches the peers of its host alone (`pull`); all ranks create and destroy together, and agree on failures.
 */
#include <cuda.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/cuda_status.h"
#include "base/system.h"
#include "comm/gpu/peer_window.h"
#include "comm/gpu/transports.h"

#define MAX_RANKS 64 /* of a host: a fence is two operations per peer; a batch takes fewer than 256 */
#define CHECK_BYTES 40961
#define CHECK_TIMEOUT_NS 10000000000
#define RELEASE_TIMEOUT_NS 2000000000

typedef CUresult (*mem_ops_fn_t)(CUstream stream, unsigned n_ops, CUstreamBatchMemOpParams *ops, unsigned flags);

typedef struct lane {
    uint32_t epoch;          /* of the last fence that was issued */
    cudaEvent_t passed;      /* recorded after that fence */
    cudaStream_t own_copies; /* copies of the own slice, which overlap the lane's stream */
    cudaEvent_t fork, join;  /* order own_copies after and before the lane's stream */
} lane_t;

typedef struct copy_engine {
    mem_ops_fn_t mem_ops;  /* the driver's cuStreamBatchMemOp */
    zero_window_t control; /* the epochs: uint32_t [ZERO_N_LANES][MAX_RANKS], by place among the peers */
    int peers[MAX_RANKS];  /* the ranks of this host, this one included */
    int n_peers;
    zero_pull_t *pulls; /* [size] of the call at hand */
    lane_t lanes[ZERO_N_LANES];
    cudaStream_t stream; /* for the check at creation and for release */
} copy_engine_t;

/* Copies of one collective. */
typedef struct copies {
    void *dst[MAX_RANKS];
    const void *src[MAX_RANKS];
    size_t n_bytes[MAX_RANKS];
    size_t n;
} copies_t;

static mem_ops_fn_t find_mem_ops(void)
{
    void *function = NULL;
    enum cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
    cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuStreamBatchMemOp", &function, 12000, cudaEnableDefault, &found);
#else
    cudaError_t error = cudaGetDriverEntryPoint("cuStreamBatchMemOp", &function, cudaEnableDefault, &found);
#endif
    return zero_cuda_succeeds(error) && found == cudaDriverEntryPointSuccess ? (mem_ops_fn_t)function : NULL;
}

/* ---- Copies ---- */

static void add_copy(copies_t *copies, void *dst, const void *src, size_t n_bytes)
{
    copies->dst[copies->n] = dst;
    copies->src[copies->n] = src;
    copies->n_bytes[copies->n++] = n_bytes;
}

static cudaError_t copy_all(copies_t *copies, cudaStream_t stream)
{
    if (copies->n == 0)
        return cudaSuccess;
#if CUDART_VERSION >= 13000
    if (stream) { /* uses several engines at once and no SMs; CUDA does not batch in the legacy null stream */
        struct cudaMemcpyAttributes overlap = {.srcAccessOrder = cudaMemcpySrcAccessOrderStream,
                                               .flags = cudaMemcpyFlagPreferOverlapWithCompute};
        size_t first = 0;
        return cudaMemcpyBatchAsync(copies->dst, copies->src, copies->n_bytes, copies->n, &overlap, &first, 1, stream);
    }
#endif
    cudaError_t error = cudaSuccess;
    for (size_t i = 0; i < copies->n && error == cudaSuccess; i++)
        error = cudaMemcpyAsync(copies->dst[i], copies->src[i], copies->n_bytes[i], cudaMemcpyDeviceToDevice, stream);
    return error;
}

/* ---- Windows ---- */

static zero_status_t window_create(zero_comm_t *comm, size_t n_bytes, zero_window_t *window)
{
    return zero_peer_window_create(comm, n_bytes, 0, ZERO_LOG_ERROR, window);
}

static void copy_engine_release(zero_comm_t *comm);
static bool any_fence_waits(const copy_engine_t *engine);

/* If a fence still waits after the release, the memory is not freed: the process's end does that. */
static void window_destroy(zero_comm_t *comm, zero_window_t *window)
{
    if (zero_comm_gpu_failed(comm)) {
        copy_engine_release(comm);
        if (any_fence_waits(comm->transport))
            return;
    }
    cudaDeviceSynchronize();
    zero_peer_window_destroy(comm, window);
}

/* ---- Fences ---- */

/* Returns the address of a peer's epoch in a lane, in the block of `owner`; both by their places. */
static CUdeviceptr epoch_at(const copy_engine_t *engine, int owner, int lane, int peer)
{
    return (CUdeviceptr)(zero_peer_window_part(&engine->control, engine->peers[owner]) +
                         (size_t)(lane * MAX_RANKS + peer) * sizeof(uint32_t));
}

static CUstreamBatchMemOpParams write_epoch(CUdeviceptr address, uint32_t epoch)
{
    return (CUstreamBatchMemOpParams){
        .writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32, .address = address, .value = epoch}};
}

static CUstreamBatchMemOpParams wait_for_epoch(CUdeviceptr address, uint32_t epoch)
{
    return (CUstreamBatchMemOpParams){.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32,
                                                    .address = address,
                                                    .value = epoch,
                                                    .flags = CU_STREAM_WAIT_VALUE_GEQ}};
}

static cudaError_t issue_fence(zero_comm_t *comm, zero_lane_t lane, cudaStream_t stream)
{
    copy_engine_t *engine = comm->transport;
    CUstreamBatchMemOpParams ops[2 * MAX_RANKS];
    unsigned n_ops = 0;
    const int n = engine->n_peers, me = comm->local_rank;
    if (n == 1)
        return cudaSuccess;
    const uint32_t epoch = ++engine->lanes[lane].epoch;
    for (int i = 1; i < n; i++)
        ops[n_ops++] = write_epoch(epoch_at(engine, (me + i) % n, lane, me), epoch);
    for (int i = 1; i < n; i++)
        ops[n_ops++] = wait_for_epoch(epoch_at(engine, me, lane, (me + i) % n), epoch);
    CUresult result = engine->mem_ops((CUstream)stream, n_ops, ops, 0);
    if (result != CUDA_SUCCESS)
        return (cudaError_t)result; /* runtime and driver have the same error numbers */
    return cudaEventRecord(engine->lanes[lane].passed, stream);
}

static zero_status_t fence(zero_comm_t *comm, zero_lane_t lane, zero_stream_t stream)
{
    zero_comm_pair(comm, "fence", 0);
    zero_status_t status = ZERO_CUDA_STATUS(issue_fence(comm, lane, (cudaStream_t)stream));
    comm->failed |= status != ZERO_OK; /* peers wait for it */
    return status;
}

static bool any_fence_waits(const copy_engine_t *engine)
{
    for (int lane = 0; lane < ZERO_N_LANES; lane++)
        if (engine->lanes[lane].passed && cudaEventQuery(engine->lanes[lane].passed) == cudaErrorNotReady)
            return true;
    return false;
}

/* Writes the awaited epochs until no fence waits. Repeats it, since a live peer may overwrite them with older ones. */
static void copy_engine_release(zero_comm_t *comm)
{
    copy_engine_t *engine = comm->transport;
    CUstreamBatchMemOpParams ops[ZERO_N_LANES * MAX_RANKS];
    unsigned n_ops = 0;
    comm->failed = true;
    for (int lane = 0; lane < ZERO_N_LANES && engine->control.local; lane++)
        for (int peer = 0; peer < engine->n_peers; peer++)
            ops[n_ops++] = write_epoch(epoch_at(engine, comm->local_rank, lane, peer), engine->lanes[lane].epoch);
    for (int64_t end = zero_now_ns() + RELEASE_TIMEOUT_NS; any_fence_waits(engine) && zero_now_ns() < end;) {
        if (engine->mem_ops(engine->stream, n_ops, ops, 0) != CUDA_SUCCESS)
            return;
        usleep(1000);
    }
}

/* ---- Bulk data ---- */

/* Queues the copies from this rank's own window in a stream that overlaps `stream`. If there are any, the caller must
 * wait for lane->join. */
static zero_status_t pull_own(const zero_comm_t *comm, lane_t *lane, const zero_window_t *window,
                              const zero_pull_t *pulls, int n, cudaStream_t stream, bool *has_own)
{
    for (const zero_pull_t *p = pulls; p < pulls + n; p++) {
        if (p->rank != comm->rank)
            continue;
        if (!*has_own) {
            ZERO_TRY_CUDA(cudaEventRecord(lane->fork, stream));
            ZERO_TRY_CUDA(cudaStreamWaitEvent(lane->own_copies, lane->fork, 0));
        }
        *has_own = true;
        ZERO_TRY_CUDA(cudaMemcpyAsync(p->dst, (const char *)window->local + p->src_offset, p->n_bytes,
                                      cudaMemcpyDeviceToDevice, lane->own_copies));
    }
    if (*has_own)
        ZERO_TRY_CUDA(cudaEventRecord(lane->join, lane->own_copies));
    return ZERO_OK;
}

static zero_status_t pull_from_peers(const zero_comm_t *comm, const zero_window_t *window, const zero_pull_t *pulls,
                                     int n, cudaStream_t stream)
{
    copies_t copies = {.n = 0};
    for (const zero_pull_t *p = pulls; p < pulls + n; p++) {
        if (p->rank == comm->rank)
            continue;
        if (copies.n == MAX_RANKS) {
            ZERO_TRY_CUDA(copy_all(&copies, stream));
            copies.n = 0;
        }
        add_copy(&copies, p->dst, zero_peer_window_part(window, p->rank) + p->src_offset, p->n_bytes);
    }
    ZERO_TRY_CUDA(copy_all(&copies, stream));
    return ZERO_OK;
}

static zero_status_t pull(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window, const zero_pull_t *pulls,
                          int n, zero_stream_t stream)
{
    lane_t *own_lane = &((copy_engine_t *)comm->transport)->lanes[lane];
    bool has_own = false;
    ZERO_TRY(pull_own(comm, own_lane, window, pulls, n, (cudaStream_t)stream, &has_own));
    ZERO_TRY(pull_from_peers(comm, window, pulls, n, (cudaStream_t)stream));
    if (has_own)
        ZERO_TRY_CUDA(cudaStreamWaitEvent((cudaStream_t)stream, own_lane->join, 0));
    return ZERO_OK;
}

static zero_status_t all_gather(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window, zero_ranks_t ranks,
                                size_t src_offset, size_t src_stride, void *dst, size_t n_bytes, zero_stream_t stream)
{
    zero_pull_t *pulls = ((copy_engine_t *)comm->transport)->pulls;
    const int me = zero_ranks_index(ranks, comm->rank);
    int n = 0;
    if (n_bytes == 0)
        return ZERO_OK;
    for (int i = 0; i < ranks.n; i++) {
        const int at = (me + i) % ranks.n; /* each starts elsewhere, so that not all read from one */
        const size_t offset = src_offset + (size_t)at * src_stride;
        char *slice = (char *)dst + (size_t)at * n_bytes;
        if (at != me || slice != (char *)window->local + offset)
            pulls[n++] = (zero_pull_t){zero_ranks_at(ranks, at), offset, slice, n_bytes};
    }
    return pull(comm, lane, window, pulls, n, stream);
}

static zero_status_t all_to_all(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window, int group,
                                size_t src_offset, size_t src_stride, size_t n_bytes, void *staging,
                                const void **slices, zero_stream_t stream)
{
    zero_pull_t *pulls = ((copy_engine_t *)comm->transport)->pulls;
    const size_t offset = src_offset + (size_t)zero_comm_slice_of(comm->rank, comm->size, group) * src_stride;
    int n = 0;
    slices[comm->rank] = (const char *)window->local + offset; /* the own slice stays in the window */
    for (int i = 1; i < comm->size; i++) {
        const int rank = (comm->rank + i) % comm->size;
        char *staged = (char *)staging + (size_t)rank * n_bytes;
        slices[rank] = staged;
        pulls[n++] = (zero_pull_t){rank, offset, staged, n_bytes};
    }
    return n_bytes > 0 ? pull(comm, lane, window, pulls, n, stream) : ZERO_OK;
}

/* ---- Beginning and end ---- */

/* For calls at creation, whose failure is only a warning: another transport is used instead. */
#define TRIED(call) ZERO_CUDA_STATUS_AT(ZERO_LOG_WARNING, call)

static zero_status_t prepare_lane(lane_t *lane, int priority)
{
    cudaEvent_t *const events[] = {&lane->passed, &lane->fork, &lane->join};
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++)
        ZERO_TRY(TRIED(cudaEventCreateWithFlags(events[i], cudaEventDisableTiming)));
    return TRIED(cudaStreamCreateWithPriority(&lane->own_copies, cudaStreamNonBlocking, priority));
}

static void destroy_lane(lane_t *lane)
{
    cudaEvent_t const events[] = {lane->passed, lane->fork, lane->join};
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++)
        if (events[i])
            cudaEventDestroy(events[i]);
    if (lane->own_copies)
        cudaStreamDestroy(lane->own_copies);
}

static void copy_engine_destroy(zero_comm_t *comm)
{
    copy_engine_t *engine = comm->transport;
    if (engine->control.local)
        window_destroy(comm, &engine->control);
    for (int i = 0; i < ZERO_N_LANES; i++)
        destroy_lane(&engine->lanes[i]);
    if (engine->stream)
        cudaStreamDestroy(engine->stream);
    free(engine->pulls);
    zero_comm_gpu_destroy(comm);
}

static const zero_comm_ops_t copy_engine_ops = {
    .name = "copy-engine",
    .window_create = window_create,
    .window_destroy = window_destroy,
    .fence = fence,
    .all_gather = all_gather,
    .all_to_all = all_to_all,
    .pull = pull,
    .staging_bytes = zero_comm_gpu_staging_bytes,
    .host_all_gather = zero_comm_gpu_all_gather,
    .host_broadcast = zero_comm_gpu_broadcast,
    .check_peers = zero_comm_gpu_check_peers,
    .release = copy_engine_release,
    .abort = zero_comm_gpu_abort,
    .destroy = copy_engine_destroy,
};

static zero_status_t unsupported(const char *why)
{
    zero_log(ZERO_LOG_INFO, "copy engines cannot be used: %s", why);
    return ZERO_ERROR_UNSUPPORTED;
}

enum { BUS_ID_BYTES = 20 }; /* "00000000:00:00.0" at most */

/* Fails if this rank's GPU cannot access the memory of every peer's. bus_ids: of all ranks. */
static zero_status_t check_access(const zero_comm_t *comm, char (*bus_ids)[BUS_ID_BYTES])
{
    const copy_engine_t *engine = comm->transport;
    int mine, peer, has_access;
    ZERO_TRY(TRIED(cudaGetDevice(&mine)));
    for (int i = 0; i < engine->n_peers; i++) {
        if (!zero_cuda_succeeds(cudaDeviceGetByPCIBusId(&peer, bus_ids[engine->peers[i]])))
            return unsupported("a peer's GPU is not visible to this process");
        if (peer == mine)
            continue;
        ZERO_TRY(TRIED(cudaDeviceCanAccessPeer(&has_access, mine, peer)));
        if (!has_access)
            return unsupported("a GPU has no access to a peer's memory");
    }
    return ZERO_OK;
}

static zero_status_t prepare(const zero_comm_t *comm, char bus_id[BUS_ID_BYTES])
{
    copy_engine_t *engine = comm->transport;
    int mine, lowest, highest;
    for (int rank = 0; rank < comm->size; rank++)
        if (zero_hosts_are_one(comm, rank, comm->rank))
            engine->peers[engine->n_peers++] = rank;
    engine->pulls = calloc((size_t)comm->size, sizeof *engine->pulls);
    if (!engine->pulls)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for a communicator of %d GPUs", comm->size);
    ZERO_TRY(TRIED(cudaGetDevice(&mine)));
    ZERO_TRY(TRIED(cudaDeviceGetPCIBusId(bus_id, BUS_ID_BYTES, mine)));
    ZERO_TRY(TRIED(cudaDeviceGetStreamPriorityRange(&lowest, &highest)));
    ZERO_TRY(TRIED(cudaStreamCreateWithPriority(&engine->stream, cudaStreamNonBlocking, highest)));
    for (int i = 0; i < ZERO_N_LANES; i++)
        ZERO_TRY(prepare_lane(&engine->lanes[i], highest));
    engine->mem_ops = find_mem_ops();
    return engine->mem_ops ? ZERO_OK : unsupported("the driver has no cuStreamBatchMemOp");
}

static unsigned char check_byte(int rank, size_t i)
{
    return (unsigned char)((i * 2654435761u + (unsigned)rank * 40503u) >> 13);
}

/* Fills the own slice, passes a fence in every lane, copies all peers' slices, and checks every byte. */
static zero_status_t run_check(zero_comm_t *comm, const zero_window_t *window, unsigned char *host, void *device)
{
    copy_engine_t *engine = comm->transport;
    const size_t n_all = (size_t)engine->n_peers * CHECK_BYTES;
    for (int i = 0; i < engine->n_peers; i++)
        engine->pulls[i] = (zero_pull_t){engine->peers[i], 0, (char *)device + (size_t)i * CHECK_BYTES, CHECK_BYTES};
    for (size_t i = 0; i < CHECK_BYTES; i++)
        host[i] = check_byte(comm->rank, i);
    ZERO_TRY(TRIED(cudaMemcpyAsync(window->local, host, CHECK_BYTES, cudaMemcpyHostToDevice, engine->stream)));
    for (int lane = 0; lane < ZERO_N_LANES; lane++)
        ZERO_TRY(TRIED(issue_fence(comm, (zero_lane_t)lane, engine->stream)));
    ZERO_TRY(pull(comm, ZERO_LANE_GATHER, window, engine->pulls, engine->n_peers, (zero_stream_t)engine->stream));
    for (int64_t end = zero_now_ns() + CHECK_TIMEOUT_NS; cudaStreamQuery(engine->stream) == cudaErrorNotReady;) {
        if (zero_now_ns() > end)
            return unsupported("the check at creation did not end");
        sched_yield();
    }
    ZERO_TRY(TRIED(cudaMemcpy(host, device, n_all, cudaMemcpyDeviceToHost)));
    for (size_t i = 0; i < n_all; i++)
        if (host[i] != check_byte(engine->peers[i / CHECK_BYTES], i % CHECK_BYTES))
            return unsupported("the check at creation read wrong bytes");
    return ZERO_OK;
}

/* Makes a small gather through the whole path, so as not to rely on what the driver claims. */
static zero_status_t check_path(zero_comm_t *comm)
{
    zero_window_t window;
    const size_t n_all = (size_t)((copy_engine_t *)comm->transport)->n_peers * CHECK_BYTES;
    void *device = NULL;
    ZERO_TRY(zero_peer_window_create(comm, CHECK_BYTES, 0, ZERO_LOG_DEBUG, &window));
    unsigned char *host = malloc(n_all);
    zero_status_t status = host ? TRIED(cudaMalloc(&device, n_all)) : ZERO_ERROR_MEMORY;
    status = zero_comm_agree(comm, status);
    if (status == ZERO_OK) {
        status = run_check(comm, &window, host, device);
        if (status != ZERO_OK)
            copy_engine_release(comm);
        comm->failed = false; /* all ranks are still here and can close it together */
        status = zero_comm_agree(comm, status);
    }
    window_destroy(comm, &window);
    cudaFree(device);
    free(host);
    return status;
}

/* Prepares this rank, and agrees with all that their GPUs can reach those of their hosts. */
static zero_status_t reach_peers(zero_comm_t *comm)
{
    char bus_id[BUS_ID_BYTES] = "", (*bus_ids)[BUS_ID_BYTES] = calloc((size_t)comm->size, sizeof *bus_ids);
    zero_status_t status = zero_comm_agree(comm, bus_ids ? prepare(comm, bus_id) : ZERO_ERROR_MEMORY);
    if (status == ZERO_OK)
        status = zero_comm_gpu_all_gather(comm, bus_id, sizeof bus_id, bus_ids);
    if (status == ZERO_OK)
        status = zero_comm_agree(comm, check_access(comm, bus_ids));
    free(bus_ids);
    return status;
}

static zero_status_t connect(zero_comm_t *comm)
{
    copy_engine_t *engine = comm->transport;
    ZERO_TRY(reach_peers(comm));
    ZERO_TRY(zero_peer_window_create(comm, sizeof(uint32_t) * ZERO_N_LANES * MAX_RANKS, 0xff, ZERO_LOG_DEBUG,
                                     &engine->control));
    for (int lane = 0; lane < ZERO_N_LANES; lane++)
        engine->lanes[lane].epoch = UINT32_MAX; /* the block is filled with it */
    return check_path(comm);
}

/* Returns how many ranks the host with most of them has. */
static int most_on_a_host(const zero_comm_t *host)
{
    int most = 1;
    for (int rank = 0; rank < host->size; rank++) {
        int n = 0;
        for (int other = 0; other < host->size; other++)
            n += zero_hosts_are_one(host, rank, other);
        most = n > most ? n : most;
    }
    return most;
}

zero_status_t zero_comm_copy_engine_create(zero_comm_t *host, zero_comm_t **comm)
{
    zero_comm_t *made;
    if (most_on_a_host(host) > MAX_RANKS)
        return unsupported("a host has too many ranks");
    ZERO_TRY(zero_comm_gpu_create(host, &copy_engine_ops, sizeof(copy_engine_t), &made));
    zero_status_t status = connect(made);
    if (status == ZERO_OK) {
        *comm = made;
        return ZERO_OK;
    }
    copy_engine_destroy(made);
    return host->failed ? status : ZERO_ERROR_UNSUPPORTED;
}
