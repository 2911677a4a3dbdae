/* through_host.c - the transport between devices by way of host memory: what a rank sends is copied there, the host
 * communicator carries it, and what has come is copied back. It needs nothing of the devices but copies, so it serves
 * where they reach neither each other nor NCCL, and shows whether a fault lies with those that do; it is slow.
 *
 * Every call among several ranks returns when all of it is done: it waits for its stream, and peers wait for it. That
 * holds nothing up for ever, since ranks make their calls in one order and a stream waits only for what was queued
 * before. The bytes are taken from the window within the call that moves them, so a fence has nothing to do.
 *
 * They pass in pieces, through two blocks of host memory: one that is sent from, a window of the host's, and one that
 * is received into. Between two fences of the host's the former is read, by whoever it is for.
 */
#include <stdlib.h>

#include "comm/gpu/beside_host.h"
#include "comm/private_window.h"
#include "comm/gpu/through_host.h"
#include "base/log.h"

#define PAGE_BYTES ((size_t)4096)

typedef struct through_host {
    zero_device_memory_t memory;
    size_t chunk_bytes;   /* of one rank's data that pass at once, at most */
    zero_window_t sent;   /* the host's: a piece for each rank */
    void *received;       /* a piece of each rank */
    const void **arrived; /* [rank]: where the host brought what came from it */
} through_host_t;

/* ---- windows ---- */

static zero_status_t window_create(zero_comm_t *comm, size_t n_bytes, zero_window_t *window)
{
    const zero_device_memory_t *memory = &((through_host_t *)comm->transport)->memory;
    void *data = NULL;
    zero_status_t mine = memory->alloc(memory->device, zero_comm_beside_host_window_bytes(n_bytes), &data);
    zero_status_t status = zero_comm_agree(comm, mine);
    if (status == ZERO_OK)
        *window = (zero_window_t){.local = data, .n_bytes = n_bytes};
    else if (mine == ZERO_OK)
        memory->free(memory->device, data, zero_comm_beside_host_window_bytes(n_bytes));
    return status;
}

static void window_destroy(zero_comm_t *comm, zero_window_t *window)
{
    const zero_device_memory_t *memory = &((through_host_t *)comm->transport)->memory;
    memory->free(memory->device, window->local, zero_comm_beside_host_window_bytes(window->n_bytes));
    *window = (zero_window_t){0};
}

/* ---- bulk data ---- */

static zero_status_t copy(const through_host_t *way, void *dst, const void *src, size_t n_bytes, zero_stream_t stream)
{
    return dst == src || n_bytes == 0 ? ZERO_OK : way->memory.copy(way->memory.device, dst, src, n_bytes, stream);
}

static zero_status_t finish_copies(const through_host_t *way, zero_stream_t stream)
{
    return way->memory.synchronize_stream(way->memory.device, stream);
}

static size_t at_most(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* A piece of each slice: this rank's begins at src, rank r's will at dst + r * dst_stride. */
static zero_status_t gather_chunk(zero_comm_t *comm, zero_lane_t lane, const char *src, size_t n_bytes, char *dst,
                                  size_t dst_stride, zero_stream_t stream)
{
    const through_host_t *way = comm->transport;
    zero_comm_t *host = comm->host;
    ZERO_TRY(copy(way, way->sent.local, src, n_bytes, stream));
    ZERO_TRY(finish_copies(way, stream));
    ZERO_TRY(host->ops->fence(host, lane, NULL));
    ZERO_TRY(host->ops->all_gather(host, lane, &way->sent, 0, 0, way->received, n_bytes, NULL));
    ZERO_TRY(host->ops->fence(host, lane, NULL));
    for (int rank = 0; rank < comm->size; rank++)
        if (rank != comm->rank)
            ZERO_TRY(copy(way, dst + (size_t)rank * dst_stride, (const char *)way->received + (size_t)rank * n_bytes,
                          n_bytes, stream));
    return finish_copies(way, stream);
}

static zero_status_t all_gather(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window, size_t src_offset,
                                size_t src_stride, void *dst, size_t n_bytes, zero_stream_t stream)
{
    const through_host_t *way = comm->transport;
    const char *own = (const char *)window->local + src_offset + (size_t)comm->rank * src_stride;
    zero_status_t status = copy(way, (char *)dst + (size_t)comm->rank * n_bytes, own, n_bytes, stream);
    for (size_t at = 0; at < n_bytes && comm->size > 1 && status == ZERO_OK; at += way->chunk_bytes)
        status = gather_chunk(comm, lane, own + at, at_most(way->chunk_bytes, n_bytes - at), (char *)dst + at, n_bytes,
                              stream);
    comm->failed |= status != ZERO_OK; /* peers wait for it */
    return status;
}

/* A piece of each slice: what goes to rank r begins at src + r * src_stride, what comes from it will at
 * dst + r * dst_stride. */
static zero_status_t all_to_all_chunk(zero_comm_t *comm, zero_lane_t lane, const char *src, size_t src_stride,
                                      size_t n_bytes, char *dst, size_t dst_stride, zero_stream_t stream)
{
    const through_host_t *way = comm->transport;
    zero_comm_t *host = comm->host;
    for (int rank = 0; rank < comm->size; rank++)
        if (rank != comm->rank)
            ZERO_TRY(copy(way, (char *)way->sent.local + (size_t)rank * n_bytes, src + (size_t)rank * src_stride,
                          n_bytes, stream));
    ZERO_TRY(finish_copies(way, stream));
    ZERO_TRY(host->ops->fence(host, lane, NULL));
    ZERO_TRY(host->ops->all_to_all(host, lane, &way->sent, 0, n_bytes, n_bytes, way->received, way->arrived, NULL));
    for (int rank = 0; rank < comm->size; rank++)
        if (rank != comm->rank)
            ZERO_TRY(copy(way, dst + (size_t)rank * dst_stride, way->arrived[rank], n_bytes, stream));
    ZERO_TRY(finish_copies(way, stream));
    return host->ops->fence(host, lane, NULL);
}

static zero_status_t all_to_all(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window, size_t src_offset,
                                size_t src_stride, size_t n_bytes, void *staging, const void **slices,
                                zero_stream_t stream)
{
    const through_host_t *way = comm->transport;
    const char *src = (const char *)window->local + src_offset;
    zero_status_t status = ZERO_OK;
    for (int rank = 0; rank < comm->size; rank++)
        slices[rank] = rank == comm->rank ? src + (size_t)rank * src_stride : (char *)staging + (size_t)rank * n_bytes;
    for (size_t at = 0; at < n_bytes && comm->size > 1 && status == ZERO_OK; at += way->chunk_bytes)
        status = all_to_all_chunk(comm, lane, src + at, src_stride, at_most(way->chunk_bytes, n_bytes - at),
                                  (char *)staging + at, n_bytes, stream);
    comm->failed |= status != ZERO_OK; /* peers wait for it */
    return status;
}

/* ---- beginning and end ---- */

static void destroy(zero_comm_t *comm)
{
    through_host_t *way = comm->transport;
    if (way->sent.local)
        comm->host->ops->window_destroy(comm->host, &way->sent);
    way->memory.host_free(way->memory.device, way->received);
    free(way->arrived);
    zero_comm_beside_host_destroy(comm);
}

static const zero_comm_ops_t through_host_ops = {
    .name = "through-host",
    .blocks = true,
    .window_create = window_create,
    .window_destroy = window_destroy,
    .fence = zero_private_window_fence,
    .all_gather = all_gather,
    .all_to_all = all_to_all,
    .staging_bytes = zero_comm_beside_host_staging_bytes,
    .host_all_gather = zero_comm_beside_host_all_gather,
    .host_broadcast = zero_comm_beside_host_broadcast,
    .abort = zero_comm_beside_host_abort,
    .destroy = destroy,
};

static zero_status_t prepare(zero_comm_t *comm, size_t passage_bytes)
{
    through_host_t *way = comm->transport;
    size_t n_ranks = (size_t)comm->size;
    way->arrived = calloc(n_ranks, sizeof *way->arrived);
    if (!way->arrived)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for a communicator of %d devices", comm->size);
    way->chunk_bytes = passage_bytes / n_ranks / PAGE_BYTES * PAGE_BYTES;
    if (way->chunk_bytes == 0)
        way->chunk_bytes = PAGE_BYTES;
    return way->memory.host_alloc(way->memory.device, n_ranks * way->chunk_bytes, &way->received);
}

zero_status_t zero_comm_through_host_create(zero_comm_t *host, const zero_device_memory_t *memory, size_t passage_bytes,
                                            zero_comm_t **comm)
{
    zero_comm_t *made;
    ZERO_TRY(zero_comm_beside_host_create(host, &through_host_ops, sizeof(through_host_t), &made));
    through_host_t *way = made->transport;
    way->memory = *memory;
    zero_status_t status = zero_comm_agree(made, prepare(made, passage_bytes));
    if (status == ZERO_OK)
        status = host->ops->window_create(host, (size_t)host->size * way->chunk_bytes, &way->sent);
    if (status != ZERO_OK) {
        destroy(made);
        return status;
    }
    *comm = made;
    return ZERO_OK;
}
