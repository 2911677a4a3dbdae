/* node.c - the transport of one host: ranks read each other's memory.
 *
 * Windows are shared blocks. fence is a barrier, all_gather copies from the peers' windows, and all_to_all only returns
 * addresses in them. Small host data goes through a mailbox that each rank has next to its entry in the barrier. A
 * mailbox has two sides that are used in turn, so one barrier per chunk is enough: before a side is written again there
 * is another barrier, to which its readers come only when they have read it.
 *
 * MPI is used only to set this up and to end the job. All waiting is done in the barrier, so that dead and stopped
 * ranks are found and named in one place.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "comm/comm.h"
#include "comm/host/shared_barrier.h"
#include "comm/host/shared_block.h"

#define MAILBOX_BYTES (32 << 10)

/* What a rank shares with its peers in addition to windows. */
typedef struct node_control {
    zero_barrier_entry_t entry;
    unsigned char mailbox[2][MAILBOX_BYTES];
} node_control_t;

typedef struct node_transport {
    zero_comm_t mpi; /* the communicator that this one took over */
    zero_shared_block_t *controls;
    zero_barrier_t *barrier;
    uint32_t n_chunks; /* sent through mailboxes so far: the lowest bit is the side */
} node_transport_t;

static zero_status_t meet(zero_comm_t *comm, const char *what, size_t n_bytes, int root)
{
    node_transport_t *transport = comm->transport;
    const zero_call_t call = zero_comm_call(comm, what, n_bytes, root);
    zero_status_t status = zero_barrier_wait(transport->barrier, &call);
    comm->failed |= status != ZERO_OK;
    return status;
}

/* ---- Windows ---- */

static zero_status_t node_window_create(zero_comm_t *comm, size_t n_bytes, zero_window_t *window)
{
    zero_shared_block_t *block;
    ZERO_TRY(zero_shared_block_create(comm, n_bytes, false, ZERO_LOG_ERROR, &block));
    *window = (zero_window_t){.local = block->parts[comm->rank], .n_bytes = n_bytes, .transport = block};
    return ZERO_OK;
}

static void node_window_destroy(zero_comm_t *comm, zero_window_t *window)
{
    (void)comm; /* the kernel frees the memory when the last rank has unmapped it */
    zero_shared_block_destroy(window->transport);
    *window = (zero_window_t){0};
}

static zero_status_t node_fence(zero_comm_t *comm, zero_lane_t lane, zero_stream_t stream)
{
    (void)lane, (void)stream;
    return meet(comm, "fence", 0, 0);
}

static zero_status_t node_all_gather(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window,
                                     zero_ranks_t ranks, size_t src_offset, size_t src_stride, void *dst,
                                     size_t n_bytes, zero_stream_t stream)
{
    (void)lane, (void)stream;
    const zero_shared_block_t *block = window->transport;
    const int me = zero_ranks_index(ranks, comm->rank);
    for (int i = 0; i < ranks.n && n_bytes > 0; i++) {
        int at = (me + i) % ranks.n; /* each starts elsewhere, so that not all read from one */
        const char *part = block->parts[zero_ranks_at(ranks, at)], *src = part + src_offset + (size_t)at * src_stride;
        char *slice = (char *)dst + (size_t)at * n_bytes;
        if (slice != src)
            zero_shared_block_copy(slice, src, n_bytes);
    }
    return ZERO_OK;
}

static zero_status_t node_all_to_all(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window, int group,
                                     size_t src_offset, size_t src_stride, size_t n_bytes, void *staging,
                                     const void **slices, zero_stream_t stream)
{
    (void)lane, (void)n_bytes, (void)staging, (void)stream;
    const zero_shared_block_t *block = window->transport;
    const size_t offset = src_offset + (size_t)zero_comm_slice_of(comm->rank, comm->size, group) * src_stride;
    for (int rank = 0; rank < comm->size; rank++)
        slices[rank] = (const char *)block->parts[rank] + offset;
    return ZERO_OK;
}

static size_t node_staging_bytes(int size, size_t n_bytes)
{
    (void)size, (void)n_bytes;
    return 0;
}

/* ---- Small host data ---- */

static unsigned char *mailbox(const node_transport_t *transport, int rank)
{
    node_control_t *control = transport->controls->parts[rank];
    return control->mailbox[transport->n_chunks & 1];
}

static zero_status_t node_host_all_gather(zero_comm_t *comm, const void *mine, size_t n_bytes, void *all)
{
    node_transport_t *transport = comm->transport;
    if (n_bytes == 0)
        return meet(comm, "host all-gather", 0, 0);
    size_t n = 0;
    for (size_t first = 0; first < n_bytes; first += n) {
        n = n_bytes - first < MAILBOX_BYTES ? n_bytes - first : MAILBOX_BYTES;
        memcpy(mailbox(transport, comm->rank), (const char *)mine + first, n);
        ZERO_TRY(meet(comm, "host all-gather", n_bytes, 0));
        for (int rank = 0; rank < comm->size; rank++)
            memcpy((char *)all + (size_t)rank * n_bytes + first, mailbox(transport, rank), n);
        transport->n_chunks++;
    }
    return ZERO_OK;
}

static zero_status_t node_host_broadcast(zero_comm_t *comm, void *data, size_t n_bytes, int root)
{
    node_transport_t *transport = comm->transport;
    size_t n = 0;
    for (size_t first = 0; first < n_bytes; first += n) {
        n = n_bytes - first < MAILBOX_BYTES ? n_bytes - first : MAILBOX_BYTES;
        if (comm->rank == root)
            memcpy(mailbox(transport, root), (char *)data + first, n);
        ZERO_TRY(meet(comm, "broadcast", n_bytes, root));
        if (comm->rank != root)
            memcpy((char *)data + first, mailbox(transport, root), n);
        transport->n_chunks++;
    }
    return ZERO_OK;
}

/* ---- Beginning and end ---- */

static void node_abort(zero_comm_t *comm, int exit_code)
{
    node_transport_t *transport = comm->transport;
    zero_barrier_abort(transport->barrier);
    transport->mpi.ops->abort(&transport->mpi, exit_code);
}

static zero_status_t node_check_peers(zero_comm_t *comm, const char *waiting_in, int64_t waited_ns)
{
    (void)waited_ns; /* the barrier names who does not come by the deadline */
    const node_transport_t *transport = comm->transport;
    return zero_barrier_check_peers(transport->barrier, waiting_in);
}

static void node_destroy(zero_comm_t *comm)
{
    node_transport_t *transport = comm->transport;
    if (!comm->failed)
        meet(comm, "close", 0, 0);
    free(transport->barrier);
    zero_shared_block_destroy(transport->controls);
    transport->mpi.failed = comm->failed;
    transport->mpi.call = comm->call;
    transport->mpi.ops->destroy(&transport->mpi);
    free(transport);
}

static const zero_comm_ops_t node_ops = {
    .name = "node",
    .blocks = true,
    .window_create = node_window_create,
    .window_destroy = node_window_destroy,
    .fence = node_fence,
    .all_gather = node_all_gather,
    .all_to_all = node_all_to_all,
    .staging_bytes = node_staging_bytes,
    .host_all_gather = node_host_all_gather,
    .host_broadcast = node_host_broadcast,
    .check_peers = node_check_peers,
    .abort = node_abort,
    .destroy = node_destroy,
};

static zero_barrier_t *make_barrier(const zero_comm_t *comm, const zero_shared_block_t *controls)
{
    zero_barrier_t *barrier = calloc(1, sizeof(*barrier) + (size_t)comm->size * sizeof(barrier->entries[0]));
    if (!barrier)
        return NULL;
    barrier->rank = comm->rank;
    barrier->size = comm->size;
    barrier->first_rank = comm->first_rank;
    barrier->timeout_ns = comm->timeout_ns;
    for (int rank = 0; rank < comm->size; rank++)
        barrier->entries[rank] = &((node_control_t *)controls->parts[rank])->entry;
    return barrier;
}

zero_status_t zero_comm_node_create(zero_comm_t *comm)
{
    zero_shared_block_t *controls = NULL;
    zero_barrier_t *barrier = NULL;
    zero_status_t status = ZERO_OK;
    node_transport_t *transport = calloc(1, sizeof(*transport));
    if (!transport)
        status = ZERO_ERROR_MEMORY;
    ZERO_TRY_GOTO(zero_comm_agree(comm, status), fail);
    ZERO_TRY_GOTO(zero_shared_block_create(comm, sizeof(node_control_t), true, ZERO_LOG_DEBUG, &controls), fail);
    barrier = make_barrier(comm, controls);
    status = barrier ? zero_barrier_join(barrier) : ZERO_ERROR_MEMORY;
    ZERO_TRY_GOTO(zero_comm_agree(comm, status), fail);
    zero_barrier_open(barrier);

    *transport = (node_transport_t){.mpi = *comm, .controls = controls, .barrier = barrier};
    comm->ops = &node_ops;
    comm->transport = transport;
    return ZERO_OK;

fail:
    free(barrier);
    zero_shared_block_destroy(controls);
    free(transport);
    if (comm->failed)
        return status;
    zero_log(ZERO_LOG_DEBUG, "no memory can be shared between the ranks of this host: they send messages");
    return ZERO_ERROR_UNSUPPORTED;
}
