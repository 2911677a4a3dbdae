/* peer_window.c - see peer_window.h. Uses CUDA's handles for other processes (CUDA IPC).
 *
 * A handle names a whole allocation of cudaMalloc, so each window is an allocation of its own, of whole pages.
 * Memory must be unmapped everywhere before it is freed: all ranks unmap, pass a barrier, and then free. Handles are
 * exchanged among all ranks, of whatever host, so that all learn of it if one rank fails.
 */
#include <cuda_runtime_api.h>
#include <stdlib.h>

#include "base/cuda_status.h"
#include "comm/gpu/peer_window.h"
#include "comm/gpu/transports.h"

/* Every rank's part, as mapped in this process; NULL for ranks of other hosts. The own part is the window's memory. */
typedef struct mapped_parts {
    cudaIpcMemHandle_t *handles; /* [size] until they are mapped */
    void *of[];                  /* [size] */
} mapped_parts_t;

char *zero_peer_window_part(const zero_window_t *window, int rank)
{
    const mapped_parts_t *parts = window->transport;
    return parts->of[rank];
}

void zero_peer_window_destroy(zero_comm_t *comm, zero_window_t *window)
{
    mapped_parts_t *parts = window->transport;
    for (int rank = 0; rank < comm->size && parts; rank++)
        if (rank != comm->rank && parts->of[rank])
            cudaIpcCloseMemHandle(parts->of[rank]);
    if (!zero_comm_gpu_failed(comm))
        zero_comm_barrier(comm);
    cudaFree(window->local);
    if (parts)
        free(parts->handles);
    free(parts);
    *window = (zero_window_t){0};
}

static zero_status_t allocate(size_t n_bytes, int fill, zero_log_level_t level, void **data, cudaIpcMemHandle_t *handle)
{
    ZERO_TRY(ZERO_CUDA_STATUS_AT(level, cudaMalloc(data, zero_comm_gpu_window_bytes(n_bytes))));
    ZERO_TRY(ZERO_CUDA_STATUS_AT(level, cudaMemset(*data, fill, n_bytes)));
    ZERO_TRY(ZERO_CUDA_STATUS_AT(level, cudaDeviceSynchronize()));
    return ZERO_CUDA_STATUS_AT(level, cudaIpcGetMemHandle(handle, *data));
}

static zero_status_t map_peers(const zero_comm_t *comm, zero_log_level_t level, mapped_parts_t *parts)
{
    for (int rank = 0; rank < comm->size; rank++)
        if (rank != comm->rank && zero_hosts_are_one(comm, rank, comm->rank))
            ZERO_TRY(ZERO_CUDA_STATUS_AT(
                level, cudaIpcOpenMemHandle(&parts->of[rank], parts->handles[rank], cudaIpcMemLazyEnablePeerAccess)));
    return ZERO_OK;
}

static mapped_parts_t *allocate_parts(const zero_comm_t *comm)
{
    const size_t size = (size_t)comm->size;
    mapped_parts_t *parts = calloc(1, sizeof *parts + size * sizeof parts->of[0]);
    cudaIpcMemHandle_t *handles = calloc(size, sizeof *handles);
    if (parts && handles) {
        parts->handles = handles;
        return parts;
    }
    free(parts);
    free(handles);
    return NULL;
}

zero_status_t zero_peer_window_create(zero_comm_t *comm, size_t n_bytes, int fill, zero_log_level_t level,
                                      zero_window_t *window)
{
    zero_window_t made = {.n_bytes = n_bytes};
    mapped_parts_t *parts = made.transport = allocate_parts(comm);
    cudaIpcMemHandle_t mine;
    zero_status_t status = parts ? allocate(n_bytes, fill, level, &made.local, &mine) : ZERO_ERROR_MEMORY;
    ZERO_TRY_GOTO(zero_comm_agree(comm, status), fail);
    parts->of[comm->rank] = made.local;
    ZERO_TRY_GOTO(zero_comm_gpu_all_gather(comm, &mine, sizeof mine, parts->handles), fail);
    ZERO_TRY_GOTO(zero_comm_agree(comm, map_peers(comm, level, parts)), fail);
    free(parts->handles);
    parts->handles = NULL;
    *window = made;
    return ZERO_OK;
fail:
    zero_peer_window_destroy(comm, &made);
    return status;
}
