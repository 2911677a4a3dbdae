/* through_host.c - the transport between devices that stages everything in host memory. Data is copied to the host,
 * sent by the host communicator, and copied to the receiving device. It needs nothing of the devices but copies, so it
 * works if they can reach neither each other nor NCCL, and helps to find out whether a fault lies with those. It is
 * slow.
 *
 * With several ranks, every call returns when all of it is done: it waits for its stream, and peers wait for it. This
 * cannot deadlock, since all ranks make their calls in the same order and a stream waits only for what was queued
 * before. The bytes are read from the window within the call that moves them, so a fence does nothing.
 *
 * Data moves in chunks, through two buffers of host memory: `outgoing`, a window of the host communicator, and
 * `incoming`. Peers read `outgoing` between two fences of the host communicator.
 */
#include <stdlib.h>

#include "base/log.h"
#include "comm/collectives.h"
#include "comm/gpu/transports.h"

#define PAGE_BYTES ((size_t)4096)

typedef struct through_host {
    zero_device_t *device; /* its memory */
    const zero_device_ops_t *device_ops;
    size_t chunk_bytes;         /* the most of one rank's data that moves at once */
    zero_window_t outgoing;     /* a window of the host communicator: a chunk for each rank */
    void *incoming;             /* a chunk from each rank */
    const void **slices;        /* [rank]: where the host communicator left that rank's chunk */
    zero_exchange_t *exchanges; /* [size] of an all-to-all */
} through_host_t;

/* ---- Windows ---- */

static zero_status_t window_create(zero_comm_t *comm, size_t n_bytes, zero_window_t *window)
{
    const through_host_t *transport = comm->transport;
    void *data = NULL;
    zero_status_t mine = transport->device_ops->alloc(transport->device, zero_comm_gpu_window_bytes(n_bytes), &data);
    zero_status_t status = zero_comm_agree(comm, mine);
    if (status == ZERO_OK)
        *window = (zero_window_t){.local = data, .n_bytes = n_bytes};
    else if (mine == ZERO_OK)
        transport->device_ops->free(transport->device, data, zero_comm_gpu_window_bytes(n_bytes));
    return status;
}

static void window_destroy(zero_comm_t *comm, zero_window_t *window)
{
    const through_host_t *transport = comm->transport;
    transport->device_ops->free(transport->device, window->local, zero_comm_gpu_window_bytes(window->n_bytes));
    *window = (zero_window_t){0};
}

/* ---- Bulk data ---- */

static zero_status_t copy(const through_host_t *transport, void *dst, const void *src, size_t n_bytes,
                          zero_stream_t stream)
{
    return dst == src || n_bytes == 0 ? ZERO_OK
                                      : transport->device_ops->copy(transport->device, dst, src, n_bytes, stream);
}

static zero_status_t finish_copies(const through_host_t *transport, zero_stream_t stream)
{
    return transport->device_ops->synchronize_stream(transport->device, stream);
}

static size_t at_most(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Gathers a chunk of each slice: this rank's is read at src, that of the i-th is written to dst + i * dst_stride. */
static zero_status_t gather_chunk(zero_comm_t *comm, zero_lane_t lane, zero_ranks_t ranks, const char *src,
                                  size_t n_bytes, char *dst, size_t dst_stride, zero_stream_t stream)
{
    const through_host_t *transport = comm->transport;
    zero_comm_t *host = comm->host;
    ZERO_TRY(copy(transport, transport->outgoing.local, src, n_bytes, stream));
    ZERO_TRY(finish_copies(transport, stream));
    ZERO_TRY(host->ops->fence(host, lane, NULL));
    ZERO_TRY(host->ops->all_gather(host, lane, &transport->outgoing, ranks, 0, 0, transport->incoming, n_bytes, NULL));
    ZERO_TRY(host->ops->fence(host, lane, NULL));
    for (int i = 0; i < ranks.n; i++)
        if (zero_ranks_at(ranks, i) != comm->rank)
            ZERO_TRY(copy(transport, dst + (size_t)i * dst_stride,
                          (const char *)transport->incoming + (size_t)i * n_bytes, n_bytes, stream));
    return finish_copies(transport, stream);
}

static zero_status_t all_gather(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window, zero_ranks_t ranks,
                                size_t src_offset, size_t src_stride, void *dst, size_t n_bytes, zero_stream_t stream)
{
    const through_host_t *transport = comm->transport;
    const size_t me = (size_t)zero_ranks_index(ranks, comm->rank);
    const char *own = (const char *)window->local + src_offset + me * src_stride;
    zero_status_t status = copy(transport, (char *)dst + me * n_bytes, own, n_bytes, stream);
    for (size_t at = 0; at < n_bytes && ranks.n > 1 && status == ZERO_OK; at += transport->chunk_bytes)
        status = gather_chunk(comm, lane, ranks, own + at, at_most(transport->chunk_bytes, n_bytes - at),
                              (char *)dst + at, n_bytes, stream);
    comm->failed |= status != ZERO_OK; /* peers wait for it */
    return status;
}

/* Exchanges n_bytes of each exchange, from `at` on. What the host communicator moves between ranks that exchange
 * nothing is of no use. */
static zero_status_t exchange_chunk(zero_comm_t *comm, zero_lane_t lane, const zero_exchange_t *exchanges, int n,
                                    size_t at, size_t n_bytes, zero_stream_t stream)
{
    const through_host_t *transport = comm->transport;
    zero_comm_t *host = comm->host;
    for (const zero_exchange_t *e = exchanges; e < exchanges + n; e++)
        ZERO_TRY(copy(transport, (char *)transport->outgoing.local + (size_t)e->rank * n_bytes,
                      (const char *)e->src + at, n_bytes, stream));
    ZERO_TRY(finish_copies(transport, stream));
    ZERO_TRY(host->ops->fence(host, lane, NULL));
    ZERO_TRY(host->ops->all_to_all(host, lane, &transport->outgoing, comm->size, 0, n_bytes, n_bytes,
                                   transport->incoming, transport->slices, NULL));
    for (const zero_exchange_t *e = exchanges; e < exchanges + n; e++)
        ZERO_TRY(copy(transport, (char *)e->dst + at, transport->slices[e->rank], n_bytes, stream));
    ZERO_TRY(finish_copies(transport, stream));
    return host->ops->fence(host, lane, NULL);
}

static zero_status_t exchange(zero_comm_t *comm, zero_lane_t lane, const zero_exchange_t *exchanges, int n,
                              size_t n_bytes, zero_stream_t stream)
{
    const size_t chunk_bytes = ((through_host_t *)comm->transport)->chunk_bytes;
    zero_status_t status = ZERO_OK;
    for (size_t at = 0; at < n_bytes && comm->size > 1 && status == ZERO_OK; at += chunk_bytes)
        status = exchange_chunk(comm, lane, exchanges, n, at, at_most(chunk_bytes, n_bytes - at), stream);
    comm->failed |= status != ZERO_OK; /* peers wait for it */
    return status;
}

static zero_status_t all_to_all(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window, int group,
                                size_t src_offset, size_t src_stride, size_t n_bytes, void *staging,
                                const void **slices, zero_stream_t stream)
{
    zero_exchange_t *exchanges = ((through_host_t *)comm->transport)->exchanges;
    const int n =
        zero_comm_gpu_exchanges(comm, window, group, src_offset, src_stride, n_bytes, staging, slices, exchanges);
    return exchange(comm, lane, exchanges, n, n_bytes, stream);
}

/* ---- Beginning and end ---- */

static void destroy(zero_comm_t *comm)
{
    through_host_t *transport = comm->transport;
    if (transport->outgoing.local)
        comm->host->ops->window_destroy(comm->host, &transport->outgoing);
    transport->device_ops->host_free(transport->device, transport->incoming);
    free(transport->slices);
    free(transport->exchanges);
    zero_comm_gpu_destroy(comm);
}

static const zero_comm_ops_t through_host_ops = {
    .name = "through-host",
    .blocks = true,
    .window_create = window_create,
    .window_destroy = window_destroy,
    .fence = zero_private_window_fence,
    .all_gather = all_gather,
    .all_to_all = all_to_all,
    .exchange = exchange,
    .staging_bytes = zero_comm_gpu_staging_bytes,
    .host_all_gather = zero_comm_gpu_all_gather,
    .host_broadcast = zero_comm_gpu_broadcast,
    .check_peers = zero_comm_gpu_check_peers,
    .abort = zero_comm_gpu_abort,
    .destroy = destroy,
};

static zero_status_t prepare(zero_comm_t *comm, size_t staging_bytes)
{
    through_host_t *transport = comm->transport;
    size_t n_ranks = (size_t)comm->size;
    transport->slices = calloc(n_ranks, sizeof *transport->slices);
    transport->exchanges = calloc(n_ranks, sizeof *transport->exchanges);
    if (!transport->slices || !transport->exchanges)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for a communicator of %d devices", comm->size);
    transport->chunk_bytes = staging_bytes / n_ranks / PAGE_BYTES * PAGE_BYTES;
    if (transport->chunk_bytes == 0)
        transport->chunk_bytes = PAGE_BYTES;
    return transport->device_ops->host_alloc(transport->device, n_ranks * transport->chunk_bytes, &transport->incoming);
}

zero_status_t zero_comm_through_host_create(zero_comm_t *host, zero_device_t *device, const zero_device_ops_t *ops,
                                            size_t staging_bytes, zero_comm_t **comm)
{
    zero_comm_t *made;
    ZERO_TRY(zero_comm_gpu_create(host, &through_host_ops, sizeof(through_host_t), &made));
    through_host_t *transport = made->transport;
    transport->device = device;
    transport->device_ops = ops;
    zero_status_t status = zero_comm_agree(made, prepare(made, staging_bytes));
    if (status == ZERO_OK)
        status = host->ops->window_create(host, (size_t)host->size * transport->chunk_bytes, &transport->outgoing);
    if (status != ZERO_OK) {
        destroy(made);
        return status;
    }
    *comm = made;
    return ZERO_OK;
}
