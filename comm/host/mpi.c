/* mpi.c - the transport of messages: each rank sends to every other, on this host or elsewhere.
 *
 * Windows are private memory and fence does nothing: each collective orders its reads after its peers' writes.
 *
 * Closing is a collective too. MPI_Finalize comes only after it: if one rank waits in MPI_Finalize while others end in
 * failure, the mpirun of Open MPI 4.1 with PMIx 4.2 has been seen to hang or crash instead of ending the job.
 */
#include "comm/host/mpi.h"

#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/system.h"
#include "comm/collectives.h"
#include "comm/host/messages.h"

/* Sends n_bytes at src + s * src_stride to every other of `ranks`, where s is that rank's slice, and receives as many
 * from the i-th of them at dst + i * n_bytes. Each rank begins with another peer, so that they do not all send to the
 * same one. */
static zero_status_t exchange(zero_comm_t *comm, zero_ranks_t ranks, int group, const char *src, size_t src_stride,
                              char *dst, size_t n_bytes)
{
    const int me = zero_ranks_index(ranks, comm->rank);
    for (int i = 1; i < ranks.n; i++) {
        int from = (me + ranks.n - i) % ranks.n;
        ZERO_TRY(zero_messages_receive(comm, zero_ranks_at(ranks, from), dst + (size_t)from * n_bytes, n_bytes));
    }
    for (int i = 1; i < ranks.n; i++) {
        int rank = zero_ranks_at(ranks, (me + i) % ranks.n);
        size_t slice = (size_t)zero_comm_slice_of(rank, comm->size, group);
        ZERO_TRY(zero_messages_send(comm, rank, src + slice * src_stride, n_bytes));
    }
    return ZERO_OK;
}

static zero_status_t broadcast(zero_comm_t *comm, void *data, size_t n_bytes, int root)
{
    if (comm->rank != root)
        ZERO_TRY(zero_messages_receive(comm, root, data, n_bytes));
    for (int i = 1; i < comm->size && comm->rank == root; i++)
        ZERO_TRY(zero_messages_send(comm, (root + i) % comm->size, data, n_bytes));
    return ZERO_OK;
}

/* ---- Operations ---- */

static zero_status_t gather(zero_comm_t *comm, zero_ranks_t ranks, const void *mine, size_t n_bytes, void *all,
                            const char *what)
{
    char *own_slice = (char *)all + (size_t)zero_ranks_index(ranks, comm->rank) * n_bytes;
    ZERO_TRY(zero_messages_begin(comm, what, n_bytes, 0));
    if (mine != own_slice && n_bytes > 0)
        memcpy(own_slice, mine, n_bytes);
    return zero_messages_wait(comm, exchange(comm, ranks, comm->size, own_slice, 0, all, n_bytes), n_bytes);
}

static zero_status_t mpi_all_gather(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window,
                                    zero_ranks_t ranks, size_t src_offset, size_t src_stride, void *dst, size_t n_bytes,
                                    zero_stream_t stream)
{
    (void)lane, (void)stream;
    const size_t me = (size_t)zero_ranks_index(ranks, comm->rank);
    return gather(comm, ranks, (const char *)window->local + src_offset + me * src_stride, n_bytes, dst, "all-gather");
}

static zero_status_t mpi_all_to_all(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window, int group,
                                    size_t src_offset, size_t src_stride, size_t n_bytes, void *staging,
                                    const void **slices, zero_stream_t stream)
{
    (void)lane, (void)stream;
    const char *src = (const char *)window->local + src_offset;
    for (int rank = 0; rank < comm->size; rank++)
        slices[rank] = (char *)staging + (size_t)rank * n_bytes;
    /* The rank's own slice stays in the window. */
    slices[comm->rank] = src + (size_t)zero_comm_slice_of(comm->rank, comm->size, group) * src_stride;
    if (comm->size == 1) /* no staging is planned for it */
        return ZERO_OK;
    ZERO_TRY(zero_messages_begin(comm, "gradient all-to-all", n_bytes, 0));
    return zero_messages_wait(comm, exchange(comm, zero_comm_all(comm), group, src, src_stride, staging, n_bytes),
                              n_bytes);
}

size_t zero_mpi_staging_bytes(int size, size_t n_bytes)
{
    return zero_comm_staging_bytes(size, n_bytes);
}

zero_status_t zero_mpi_host_all_gather(zero_comm_t *comm, const void *mine, size_t n_bytes, void *all)
{
    return gather(comm, zero_comm_all(comm), mine, n_bytes, all, "host all-gather");
}

zero_status_t zero_mpi_host_broadcast(zero_comm_t *comm, void *data, size_t n_bytes, int root)
{
    ZERO_TRY(zero_messages_begin(comm, "broadcast", n_bytes, root));
    return zero_messages_wait(comm, broadcast(comm, data, n_bytes, root), n_bytes);
}

/* After a failure unfinished requests may still use the messages, which stay. */
void zero_mpi_destroy(zero_comm_t *comm)
{
    char nothing;
    if (!comm->failed)
        gather(comm, zero_comm_all(comm), &nothing, 0, &nothing, "close");
    if (!comm->failed)
        zero_messages_close(comm);
}

static const zero_comm_ops_t mpi_ops = {
    .name = "mpi",
    .blocks = true,
    .window_create = zero_private_window_create,
    .window_destroy = zero_private_window_destroy,
    .fence = zero_private_window_fence,
    .all_gather = mpi_all_gather,
    .all_to_all = mpi_all_to_all,
    .staging_bytes = zero_mpi_staging_bytes,
    .host_all_gather = zero_mpi_host_all_gather,
    .host_broadcast = zero_mpi_host_broadcast,
    .check_peers = zero_messages_check_peers,
    .abort = zero_messages_abort,
    .destroy = zero_mpi_destroy,
};

zero_status_t zero_comm_mpi_create(zero_comm_t *comm, const void *mpi_comm)
{
    ZERO_TRY(zero_messages_open(comm, mpi_comm));
    comm->ops = &mpi_ops;
    return ZERO_OK;
}
