/* nccl.c - the NCCL transport between GPUs: NCCL's all-gather, and an all-to-all made of sends and receives, or NCCL's
 * reduce-scatter if the configuration asks for it.
 *
 * It has a host communicator (node, mpi, hierarchical or self), which brings the ranks together and carries small host
 * data. Windows are device memory. NCCL's calls are ordered by their streams on both sides, so a fence does nothing.
 * NCCL's communicators are non-blocking: a call that is still in progress is polled until the host communicator's
 * deadline, so that a peer that never comes is an error and not a hang.
 *
 * A single rank does not use NCCL.
 */
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <sched.h>
#include <stdlib.h>

#include "base/cuda_status.h"
#include "base/system.h"
#include "comm/collectives.h"
#include "comm/gpu/transports.h"

enum { COMM_GATHER, COMM_REDUCE, N_COMMS };

typedef struct nccl_transport {
    /* One for gathers, and one for reductions and the end of a step, which never overlap. NULL with one rank. */
    ncclComm_t comms[N_COMMS];
    zero_exchange_t *exchanges; /* [size] */
} nccl_transport_t;

static nccl_transport_t *transport_of(const zero_comm_t *comm)
{
    return comm->transport;
}

static ncclComm_t comm_of(const zero_comm_t *comm, zero_lane_t lane)
{
    return transport_of(comm)->comms[lane == ZERO_LANE_GATHER ? COMM_GATHER : COMM_REDUCE];
}

static zero_status_t nccl_fail(zero_comm_t *comm, ncclComm_t nccl, ncclResult_t result, const char *call)
{
    comm->failed = true;
    return zero_fail(ZERO_ERROR_COMM, "NCCL: %s from %s (%s)", ncclGetErrorString(result), call,
                     ncclGetLastError(nccl));
}

/* Waits until NCCL has accepted a call. It does so at once, except when a connection is used for the first time. */
static zero_status_t await_call(zero_comm_t *comm, ncclComm_t nccl, ncclResult_t result, const char *call)
{
    int64_t deadline = zero_now_ns() + comm->timeout_ns;
    while (result == ncclInProgress) {
        ncclResult_t polled = ncclCommGetAsyncError(nccl, &result);
        if (polled != ncclSuccess)
            return nccl_fail(comm, nccl, polled, "ncclCommGetAsyncError");
        if (result == ncclInProgress && zero_now_ns() > deadline) {
            comm->failed = true;
            return zero_fail(ZERO_ERROR_TIMEOUT, "%s did not end within %g s (ZERO_TIMEOUT_S)", call,
                             (double)comm->timeout_ns * 1e-9);
        }
        sched_yield();
    }
    return result == ncclSuccess ? ZERO_OK : nccl_fail(comm, nccl, result, call);
}

#define ZERO_TRY_NCCL(comm, nccl, call) ZERO_TRY(await_call((comm), (nccl), (call), #call))

/* ---- Windows ---- */

static zero_status_t nccl_window_create(zero_comm_t *comm, size_t n_bytes, zero_window_t *window)
{
    void *data = NULL;
    zero_status_t status = ZERO_CUDA_STATUS(cudaMalloc(&data, zero_comm_gpu_window_bytes(n_bytes)));
    if (status == ZERO_OK)
        status = ZERO_CUDA_STATUS(cudaMemset(data, 0, n_bytes));
    if (status == ZERO_OK)
        status = ZERO_CUDA_STATUS(cudaDeviceSynchronize());
    status = zero_comm_agree(comm, status);
    if (status != ZERO_OK) {
        cudaFree(data);
        return status;
    }
    *window = (zero_window_t){.local = data, .n_bytes = n_bytes};
    return ZERO_OK;
}

static void nccl_window_destroy(zero_comm_t *comm, zero_window_t *window)
{
    (void)comm;
    cudaFree(window->local);
    *window = (zero_window_t){0};
}

/* ---- Bulk data ---- */

/* Queues n exchanges of n_bytes each way as one operation. */
static zero_status_t exchange_all(zero_comm_t *comm, ncclComm_t nccl, const zero_exchange_t *exchanges, int n,
                                  size_t n_bytes, zero_stream_t stream)
{
    ZERO_TRY_NCCL(comm, nccl, ncclGroupStart());
    for (const zero_exchange_t *e = exchanges; e < exchanges + n; e++) {
        ncclResult_t result = ncclSend(e->src, n_bytes, ncclInt8, e->rank, nccl, (cudaStream_t)stream);
        if (result == ncclSuccess || result == ncclInProgress)
            result = ncclRecv(e->dst, n_bytes, ncclInt8, e->rank, nccl, (cudaStream_t)stream);
        if (result != ncclSuccess && result != ncclInProgress) {
            ncclGroupEnd();
            return nccl_fail(comm, nccl, result, "ncclSend or ncclRecv");
        }
    }
    ZERO_TRY_NCCL(comm, nccl, ncclGroupEnd());
    return ZERO_OK;
}

/* NCCL's own all-gather is of all ranks; among some of them it is made of messages. */
static zero_status_t gather_some(zero_comm_t *comm, ncclComm_t nccl, zero_ranks_t ranks, const char *src, char *dst,
                                 size_t n_bytes, zero_stream_t stream)
{
    const int me = zero_ranks_index(ranks, comm->rank);
    zero_exchange_t *exchanges = transport_of(comm)->exchanges;
    int n = 0;
    char *own = dst + (size_t)me * n_bytes;
    if (own != src)
        ZERO_TRY_CUDA(cudaMemcpyAsync(own, src, n_bytes, cudaMemcpyDeviceToDevice, (cudaStream_t)stream));
    for (int i = 0; i < ranks.n; i++)
        if (i != me)
            exchanges[n++] = (zero_exchange_t){zero_ranks_at(ranks, i), src, dst + (size_t)i * n_bytes};
    return n > 0 ? exchange_all(comm, nccl, exchanges, n, n_bytes, stream) : ZERO_OK;
}

static zero_status_t nccl_all_gather(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window,
                                     zero_ranks_t ranks, size_t src_offset, size_t src_stride, void *dst,
                                     size_t n_bytes, zero_stream_t stream)
{
    const size_t me = (size_t)zero_ranks_index(ranks, comm->rank);
    const char *src = (const char *)window->local + src_offset + me * src_stride;
    ncclComm_t nccl = comm_of(comm, lane);
    if (n_bytes == 0)
        return ZERO_OK;
    zero_comm_pair(comm, "all-gather", n_bytes);
    if (ranks.n < comm->size || comm->size == 1)
        return gather_some(comm, nccl, ranks, src, dst, n_bytes, stream);
    ZERO_TRY_NCCL(comm, nccl, ncclAllGather(src, dst, n_bytes, ncclInt8, nccl, (cudaStream_t)stream));
    return ZERO_OK;
}

static zero_status_t nccl_all_to_all(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window, int group,
                                     size_t src_offset, size_t src_stride, size_t n_bytes, void *staging,
                                     const void **slices, zero_stream_t stream)
{
    zero_exchange_t *exchanges = transport_of(comm)->exchanges;
    const int n =
        zero_comm_gpu_exchanges(comm, window, group, src_offset, src_stride, n_bytes, staging, slices, exchanges);
    if (n == 0)
        return ZERO_OK;
    zero_comm_pair(comm, "gradient all-to-all", n_bytes);
    return exchange_all(comm, comm_of(comm, lane), exchanges, n, n_bytes, stream);
}

static zero_status_t nccl_exchange(zero_comm_t *comm, zero_lane_t lane, const zero_exchange_t *exchanges, int n,
                                   size_t n_bytes, zero_stream_t stream)
{
    if (n_bytes == 0)
        return ZERO_OK;
    zero_comm_pair(comm, "exchange", n_bytes);
    return n > 0 ? exchange_all(comm, comm_of(comm, lane), exchanges, n, n_bytes, stream) : ZERO_OK;
}

static ncclDataType_t nccl_type(zero_dtype_t dtype)
{
    static const ncclDataType_t types[] = {
        [ZERO_FP32] = ncclFloat32, [ZERO_BF16] = ncclBfloat16, [ZERO_FP16] = ncclFloat16};
    return types[dtype];
}

/* Uses NCCL's in-place form: the result replaces the rank's own slice. */
static zero_status_t nccl_reduce_scatter(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window,
                                         size_t src_offset, size_t n_elems, zero_dtype_t dtype, zero_stream_t stream)
{
    char *src = (char *)window->local + src_offset;
    char *own = src + (size_t)comm->rank * n_elems * zero_dtype_size(dtype);
    ncclComm_t nccl = comm_of(comm, lane);
    zero_comm_pair(comm, "reduce-scatter", n_elems);
    if (comm->size > 1 && n_elems > 0)
        ZERO_TRY_NCCL(comm, nccl,
                      ncclReduceScatter(src, own, n_elems, nccl_type(dtype), ncclSum, nccl, (cudaStream_t)stream));
    return ZERO_OK;
}

/* Asks NCCL too: its threads learn when a peer closes its connections. */
static zero_status_t nccl_check_peers(zero_comm_t *comm, const char *waiting_in, int64_t waited_ns)
{
    ZERO_TRY(zero_comm_gpu_check_peers(comm, waiting_in, waited_ns));
    for (int i = 0; i < N_COMMS; i++) {
        ncclComm_t nccl = transport_of(comm)->comms[i];
        ncclResult_t result = ncclSuccess;
        if (nccl && (ncclCommGetAsyncError(nccl, &result) != ncclSuccess ||
                     (result != ncclSuccess && result != ncclInProgress)))
            return nccl_fail(comm, nccl, result, waiting_in);
    }
    return ZERO_OK;
}

/* ---- Beginning and end ---- */

/* Aborts NCCL's communicators. This ends NCCL's kernels that wait for a peer, so the work queued behind them runs. */
static void nccl_release(zero_comm_t *comm)
{
    nccl_transport_t *transport = comm->transport;
    comm->failed = true;
    for (int i = 0; i < N_COMMS; i++) {
        if (transport->comms[i])
            ncclCommAbort(transport->comms[i]);
        transport->comms[i] = NULL;
    }
}

static void nccl_destroy(zero_comm_t *comm)
{
    nccl_transport_t *transport = comm->transport;
    if (zero_comm_gpu_failed(comm))
        nccl_release(comm);
    for (int i = 0; i < N_COMMS; i++) {
        ncclComm_t nccl = transport->comms[i];
        if (nccl && await_call(comm, nccl, ncclCommFinalize(nccl), "ncclCommFinalize") == ZERO_OK)
            ncclCommDestroy(nccl);
        else if (nccl)
            ncclCommAbort(nccl);
    }
    free(transport->exchanges);
    zero_comm_gpu_destroy(comm);
}

static const zero_comm_ops_t nccl_ops = {
    .name = "nccl",
    .window_create = nccl_window_create,
    .window_destroy = nccl_window_destroy,
    .fence = zero_private_window_fence,
    .all_gather = nccl_all_gather,
    .all_to_all = nccl_all_to_all,
    .staging_bytes = zero_comm_gpu_staging_bytes,
    .reduce_scatter = nccl_reduce_scatter,
    .exchange = nccl_exchange,
    .host_all_gather = zero_comm_gpu_all_gather,
    .host_broadcast = zero_comm_gpu_broadcast,
    .check_peers = nccl_check_peers,
    .release = nccl_release,
    .abort = zero_comm_gpu_abort,
    .destroy = nccl_destroy,
};

/* Joins the ranks' GPUs: rank 0 creates an id and broadcasts it through the host communicator. */
static zero_status_t connect(zero_comm_t *comm, ncclComm_t *nccl)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id = {{0}};
    zero_status_t status = ZERO_OK;
    config.blocking = 0;
    if (comm->rank == 0) {
        ncclResult_t result = ncclGetUniqueId(&id);
        if (result != ncclSuccess)
            status = nccl_fail(comm, NULL, result, "ncclGetUniqueId");
    }
    ZERO_TRY(zero_comm_agree(comm, status));
    ZERO_TRY(zero_comm_gpu_broadcast(comm, &id, sizeof id, 0));
    ncclResult_t result = ncclCommInitRankConfig(nccl, comm->size, id, comm->rank, &config);
    return zero_comm_agree(comm, await_call(comm, *nccl, result, "ncclCommInitRankConfig"));
}

zero_status_t zero_comm_nccl_create(zero_comm_t *host, zero_comm_t **comm)
{
    zero_comm_t *made;
    ZERO_TRY(zero_comm_gpu_create(host, &nccl_ops, sizeof(nccl_transport_t), &made));
    nccl_transport_t *transport = made->transport;
    transport->exchanges = calloc((size_t)host->size, sizeof *transport->exchanges);
    zero_status_t status = transport->exchanges ? ZERO_OK : zero_fail(ZERO_ERROR_MEMORY, "no memory for NCCL's tables");
    status = zero_comm_agree(host, status);
    for (int i = 0; i < N_COMMS && host->size > 1 && status == ZERO_OK; i++)
        status = connect(made, &transport->comms[i]);
    if (status != ZERO_OK) {
        nccl_destroy(made);
        return status;
    }
    *comm = made;
    return ZERO_OK;
}
