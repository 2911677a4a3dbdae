/* transport.c - the transport of the asynchronous device. It reads peers' windows, which are shared memory, with fences
 * by epochs in each lane, as copy_engine.c does with copy engines and stream memory operations. Among several hosts it
 * is the inner one of comm/gpu/rails.c, with little staging memory, so that gathers take many rounds. */
#include <stdatomic.h>
#include <unistd.h>

#include "base/status.h"
#include "base/system.h"
#include "comm/gpu/transports.h"
#include "comm/host/shared_block.h"
#include "tests/mpi/expect.h"
#include "tests/support/async/async.h"
#include "tests/support/async/messages.h"
#include "tests/support/elements.h"

static bool gathers; /* in a gather over rails */

typedef struct transport {
    zero_shared_block_t *control; /* _Atomic uint32_t [ZERO_N_LANES][size] on every rank: how far each has come */
    uint32_t epochs[ZERO_N_LANES];
} transport_t;

static _Atomic uint32_t *epoch_at(const zero_comm_t *comm, int owner, zero_lane_t lane, int rank)
{
    const transport_t *transport = comm->transport;
    return (_Atomic uint32_t *)transport->control->parts[owner] + lane * comm->size + rank;
}

static zero_status_t window_create(zero_comm_t *comm, size_t n_bytes, zero_window_t *window)
{
    zero_shared_block_t *block;
    if (comm->size == 1)
        return comm->host->ops->window_create(comm->host, n_bytes, window);
    ZERO_TRY(zero_shared_block_create(comm->host, n_bytes, false, ZERO_LOG_ERROR, &block));
    *window = (zero_window_t){.local = block->parts[comm->rank], .n_bytes = n_bytes, .transport = block};
    return ZERO_OK;
}

static void meet_at_end(zero_comm_t *comm)
{
    if (!zero_comm_gpu_failed(comm))
        OK(zero_comm_barrier(comm->host));
}

static void window_destroy(zero_comm_t *comm, zero_window_t *window)
{
    async_finish();
    meet_at_end(comm);
    if (comm->size == 1) {
        comm->host->ops->window_destroy(comm->host, window);
        return;
    }
    zero_shared_block_destroy(window->transport);
    *window = (zero_window_t){0};
}

typedef struct fence_task {
    zero_comm_t *comm;
    zero_lane_t lane;
    uint32_t epoch;
    bool waits;
} fence_task_t;

static void do_fence(void *args)
{
    fence_task_t *t = args;
    int64_t deadline = zero_now_ns() + ASYNC_PATIENCE_S * INT64_C(1000000000);
    for (int peer = 0; peer < t->comm->size; peer++)
        if (zero_hosts_are_one(t->comm, peer, t->comm->rank))
            atomic_store(epoch_at(t->comm, peer, t->lane, t->comm->rank), t->epoch);
    for (int peer = 0; peer < t->comm->size && t->waits; peer++)
        while (zero_hosts_are_one(t->comm, peer, t->comm->rank) &&
               atomic_load(epoch_at(t->comm, t->comm->rank, t->lane, peer)) < t->epoch) {
            CHECK(zero_now_ns() < deadline, "rank %d did not come to fence %u of lane %d: deadlock", peer, t->epoch,
                  (int)t->lane);
            usleep(50);
        }
}

static zero_status_t fence(zero_comm_t *comm, zero_lane_t lane, zero_stream_t stream)
{
    if (comm->size == 1)
        return ZERO_OK;
    const bool is_left_out =
        async_options()->fault == ASYNC_NO_FENCE || (async_options()->fault == ASYNC_COPY_AHEAD_OF_FENCE && gathers);
    fence_task_t t = {comm, lane, ++((transport_t *)comm->transport)->epochs[lane], !is_left_out};
    zero_comm_pair(comm, "fence", 0);
    async_count(ASYNC_FENCE, 1);
    async_count(ASYNC_RECORD, 1); /* what says that it has passed */
    async_queue(stream, do_fence, &t, sizeof t);
    if (gathers)
        async_mark_end(stream, ASYNC_ENDS_IN_INNER_FENCE);
    return ZERO_OK;
}

static const char *part_of(const zero_comm_t *comm, const zero_window_t *window, int rank)
{
    const char *part = rank == comm->rank ? window->local : ((zero_shared_block_t *)window->transport)->parts[rank];
    CHECK(part, "rank %d is on another host", rank);
    return part;
}

/* Pulls from peers are one call; the own slice is another, in a stream aside, with an event each way. */
static void count_pulls(int n_ranks, size_t n_bytes, bool own_is_copied)
{
    bool pulls = n_bytes > 0 && n_ranks > 1;
    async_count(ASYNC_BATCH, pulls ? 1 : 0);
    async_count(ASYNC_COPY, own_is_copied ? 1 : 0);
    async_count(ASYNC_RECORD, own_is_copied ? 2 : 0);
    async_count(ASYNC_WAIT, own_is_copied ? 2 : 0);
}

static zero_status_t all_gather(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window, zero_ranks_t ranks,
                                size_t src_offset, size_t src_stride, void *dst, size_t n_bytes, zero_stream_t stream)
{
    (void)lane;
    bool own_is_copied = false;
    const int me = zero_ranks_index(ranks, comm->rank);
    for (int i = 0; i < ranks.n && n_bytes > 0; i++) {
        int at = (me + i) % ranks.n;
        const char *src = part_of(comm, window, zero_ranks_at(ranks, at)) + src_offset + (size_t)at * src_stride;
        char *slice = (char *)dst + (size_t)at * n_bytes;
        own_is_copied |= i == 0 && slice != src;
        if (slice != src)
            async_queue_copy(slice, src, n_bytes, stream);
    }
    count_pulls(ranks.n, n_bytes, own_is_copied);
    return ZERO_OK;
}

static zero_status_t all_to_all(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window, int group,
                                size_t src_offset, size_t src_stride, size_t n_bytes, void *staging,
                                const void **slices, zero_stream_t stream)
{
    (void)lane;
    const size_t offset = src_offset + (size_t)zero_comm_slice_of(comm->rank, comm->size, group) * src_stride;
    for (int i = 0; i < comm->size; i++) {
        int rank = (comm->rank + i) % comm->size;
        const char *src = part_of(comm, window, rank) + offset;
        char *staged = (char *)staging + (size_t)rank * n_bytes;
        slices[rank] = rank == comm->rank ? src : staged;
        if (rank != comm->rank && n_bytes > 0)
            async_queue_copy(staged, src, n_bytes, stream);
    }
    count_pulls(comm->size, n_bytes, false);
    return ZERO_OK;
}

static zero_status_t pull(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window, const zero_pull_t *pulls,
                          int n, zero_stream_t stream)
{
    (void)lane;
    for (int i = 0; i < n; i++)
        async_queue_copy(pulls[i].dst, part_of(comm, window, pulls[i].rank) + pulls[i].src_offset, pulls[i].n_bytes,
                         stream);
    return ZERO_OK;
}

typedef struct reduce_task {
    const zero_comm_t *comm;
    const zero_window_t *window;
    size_t offset; /* of this rank's slice, in every window */
    size_t n_elems;
    zero_dtype_t dtype;
} reduce_task_t;

/* Adds one rank after another in dtype, as a network would, in two halves: see do_copy. */
static void do_reduce_scatter(void *args)
{
    const reduce_task_t *t = args;
    void *own = (char *)t->window->local + t->offset;
    for (size_t e = 0; e < t->n_elems; e++) {
        float sum; /* an element of dtype */
        element_store(&sum, t->dtype, 0, element_load(part_of(t->comm, t->window, 0) + t->offset, t->dtype, e));
        for (int rank = 1; rank < t->comm->size; rank++)
            element_store(&sum, t->dtype, 0,
                          element_load(&sum, t->dtype, 0) +
                              element_load(part_of(t->comm, t->window, rank) + t->offset, t->dtype, e));
        element_store(own, t->dtype, e, element_load(&sum, t->dtype, 0));
        if (e == t->n_elems / 2)
            usleep(20);
    }
}

static zero_status_t reduce_scatter(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window, size_t src_offset,
                                    size_t n_elems, zero_dtype_t dtype, zero_stream_t stream)
{
    (void)lane;
    reduce_task_t t = {.comm = comm,
                       .window = window,
                       .offset = src_offset + (size_t)comm->rank * n_elems * zero_dtype_size(dtype),
                       .n_elems = n_elems,
                       .dtype = dtype};
    async_queue(stream, do_reduce_scatter, &t, sizeof t);
    return ZERO_OK;
}

static void transport_destroy(zero_comm_t *comm)
{
    async_finish();
    meet_at_end(comm);
    if (comm->size > 1)
        zero_shared_block_destroy(((transport_t *)comm->transport)->control);
    zero_comm_gpu_destroy(comm);
}

static const zero_comm_ops_t transport_ops = {
    .name = "async",
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
    .abort = zero_comm_gpu_abort,
    .destroy = transport_destroy,
};

/* Sides of 14 KiB, and 1 KiB in other lanes. */
#define RAILS_STAGING_BYTES ((size_t)32 << 10)

static zero_status_t (*gather_over_rails)(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window,
                                          zero_ranks_t ranks, size_t src_offset, size_t src_stride, void *dst,
                                          size_t n_bytes, zero_stream_t stream);

/* Notes what is queued by a gather, which faults are about. */
static zero_status_t watched_gather(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window,
                                    zero_ranks_t ranks, size_t src_offset, size_t src_stride, void *dst, size_t n_bytes,
                                    zero_stream_t stream)
{
    gathers = true;
    async_set_gathering(true);
    zero_status_t status = gather_over_rails(comm, lane, window, ranks, src_offset, src_stride, dst, n_bytes, stream);
    gathers = false;
    async_set_gathering(false);
    return status;
}

static zero_status_t join_hosts(zero_device_t *device, zero_comm_t *host, zero_comm_t *local, zero_comm_t **bulk)
{
    static zero_comm_ops_t watched_ops;
    async_set_joining(true);
    OK(zero_device_join_rails(device, host, local, async_messages_create(host), RAILS_STAGING_BYTES, bulk));
    async_set_joining(false);
    watched_ops = *(*bulk)->ops;
    gather_over_rails = watched_ops.all_gather;
    watched_ops.all_gather = watched_gather;
    (*bulk)->ops = &watched_ops;
    return ZERO_OK;
}

/* One that adds is asked for nothing else. */
zero_status_t async_join(zero_device_t *device, zero_comm_t *host, bool adds, zero_comm_t **bulk)
{
    zero_comm_t *made;
    static zero_comm_ops_t adding_ops;
    adding_ops = transport_ops;
    adding_ops.all_to_all = NULL;
    adding_ops.reduce_scatter = reduce_scatter;
    OK(zero_comm_gpu_create(host, adds && host->size > 1 ? &adding_ops : &transport_ops, sizeof(transport_t), &made));
    if (host->size > 1)
        OK(zero_shared_block_create(host, sizeof(uint32_t) * ZERO_N_LANES * (size_t)host->size, true, ZERO_LOG_ERROR,
                                    &((transport_t *)made->transport)->control));
    if (zero_hosts_are_several(host))
        return join_hosts(device, host, made, bulk);
    *bulk = made;
    return ZERO_OK;
}
