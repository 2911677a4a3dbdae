/* transports.c - see transports.h. */
#include <stdlib.h>

#include "base/log.h"
#include "comm/gpu/transports.h"

zero_status_t zero_comm_gpu_create(zero_comm_t *host, const zero_comm_ops_t *ops, size_t transport_bytes,
                                   zero_comm_t **comm)
{
    zero_comm_t *made = calloc(1, sizeof *made);
    void *transport = calloc(1, transport_bytes);
    void *scratch = calloc((size_t)host->size, ZERO_COMM_SCRATCH_BYTES);
    if (!made || !transport || !scratch) {
        free(made);
        free(transport);
        free(scratch);
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for a communicator of %d GPUs", host->size);
    }
    *made = *host;
    made->ops = ops;
    made->host = host;
    made->transport = transport;
    made->scratch = scratch;
    *comm = made;
    return ZERO_OK;
}

void zero_comm_gpu_destroy(zero_comm_t *comm)
{
    free(comm->transport);
    free(comm->scratch);
    free(comm);
}

bool zero_comm_gpu_failed(const zero_comm_t *comm)
{
    return comm->failed || comm->host->failed;
}

size_t zero_comm_gpu_window_bytes(size_t n_bytes)
{
    const size_t page = (size_t)2 << 20;
    return n_bytes == 0 ? page : (n_bytes + page - 1) / page * page;
}

size_t zero_comm_gpu_staging_bytes(int size, size_t n_bytes)
{
    return zero_comm_staging_bytes(size, n_bytes);
}

zero_status_t zero_comm_gpu_all_gather(zero_comm_t *comm, const void *mine, size_t n_bytes, void *all)
{
    return comm->host->ops->host_all_gather(comm->host, mine, n_bytes, all);
}

zero_status_t zero_comm_gpu_broadcast(zero_comm_t *comm, void *data, size_t n_bytes, int root)
{
    return comm->host->ops->host_broadcast(comm->host, data, n_bytes, root);
}

zero_status_t zero_comm_gpu_check_peers(zero_comm_t *comm, const char *waiting_in, int64_t waited_ns)
{
    zero_comm_t *host = comm->host;
    return host->ops->check_peers ? host->ops->check_peers(host, waiting_in, waited_ns) : ZERO_OK;
}

void zero_comm_gpu_abort(zero_comm_t *comm, int exit_code)
{
    if (comm->ops->release)
        comm->ops->release(comm);
    comm->host->ops->abort(comm->host, exit_code);
}

int zero_comm_gpu_exchanges(const zero_comm_t *comm, const zero_window_t *window, int group, size_t src_offset,
                            size_t src_stride, size_t n_bytes, void *staging, const void **slices,
                            zero_exchange_t *exchanges)
{
    const char *src = (const char *)window->local + src_offset;
    int n = 0;
    for (int rank = 0; rank < comm->size; rank++) {
        const char *slice = src + (size_t)zero_comm_slice_of(rank, comm->size, group) * src_stride;
        char *received = (char *)staging + (size_t)rank * n_bytes;
        slices[rank] = rank == comm->rank ? slice : received;
        if (rank != comm->rank)
            exchanges[n++] = (zero_exchange_t){rank, slice, received};
    }
    return n;
}
