/* rails.c - the transport between GPUs of several hosts: copy engines inside each host, messages (NCCL) between hosts,
 * so that what is gathered crosses between two hosts once. It is made of two transports of the same ranks: `local`
 * reads the memory of this host's ranks, `between` sends messages. It calls nothing of CUDA itself.
 *
 * A rail is the ranks with the same place in their hosts. To gather, each rank receives the slices of its rail into
 * staging memory that its neighbours read, and each copies from all neighbours: their own slices from their windows,
 * those of other hosts from their staging. What does not leave a host is copied inside it. If the ranks that gather
 * together are one on each host, or unequally many, they exchange messages (comm/routes.h).
 *
 * Large slices come in rounds. Each lane has two sides of staging memory, used in turn, and a second stream in which it
 * receives:
 *
 *     receive stream | receive round 0  |         | receive 1    |         | receive 2    |         | ...
 *     lane's stream  | copy own host's  | fence 0 | copy 0       | fence 1 | copy 1       | fence 2 | copy 2 ...
 *
 * The lane waits for round r (`received`) and passes fence r among the ranks of the host: then all of them have
 * received it, and copy. Meanwhile round r + 1 is received into the other side, behind fence r (`passed`): a neighbour
 * comes to that only behind its copies of round r - 1, which read this side. A call begins behind the last fence of the
 * one before (`forked`). So a side is overwritten only when all have read it.
 *
 * In an all-to-all every slice is for one rank alone, so nothing can be saved: slices of this host's ranks are copied
 * from their windows, those of others are messages.
 *
 * Why the contract of comm.h holds although a fence joins the ranks of one host alone: ranks of other hosts never read
 * this rank's memory. What they get is sent in this rank's own streams, between its fences: behind what wrote it, and
 * before whatever may overwrite it, since the lane waits for the receive stream. What they sent has arrived when the
 * lane goes on. Ranks of this host are ordered as by `local` alone.
 *
 * Within a call, the streams wait only for what was queued before, here or by the same call of a peer, so no order of
 * streams can end in a deadlock if all ranks make their calls in one order, as copy_engine.c wants it anyway.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "comm/gpu/transports.h"
#include "comm/routes.h"

#define SLOT_ALIGN ((size_t)512)

typedef struct rail_lane {
    zero_stream_t receives; /* the receive stream */
    struct zero_event *forked, *received, *passed;
    size_t at, side_bytes; /* its two sides, in the staging window */
    uint32_t n_rounds;     /* so far: the lowest bit is the side */
} rail_lane_t;

typedef struct rails {
    zero_comm_ops_t ops;
    zero_comm_t *local, *between;
    zero_device_t *device; /* its streams and events */
    const zero_device_ops_t *device_ops;
    zero_window_t staging; /* of `local`; made with the first window */
    size_t staging_bytes;
    int *hosts;                 /* [size] numbers of the ranks' hosts */
    zero_pull_t *pulls;         /* [size] of the call at hand */
    zero_exchange_t *exchanges; /* [size] */
    rail_lane_t lanes[ZERO_N_LANES];
} rails_t;

/* One gather over rails. The i-th of the ranks is the i % n_local-th of host i / n_local. */
typedef struct rail_gather {
    const zero_window_t *window;
    zero_ranks_t ranks;
    size_t src_offset, src_stride;
    char *dst;
    size_t n_bytes;
    zero_lane_t lane;
    zero_stream_t stream;
    int n_local, n_hosts, me;
    size_t slot_bytes; /* of a side, for a round's part of a slice */
} rail_gather_t;

static rails_t *rails_of(const zero_comm_t *comm)
{
    return comm->transport;
}

/* Notes a failure here, if peers may wait for what this rank has not queued. Returns `status`. */
static zero_status_t note(zero_comm_t *comm, zero_status_t status)
{
    const rails_t *rails = comm->transport;
    comm->failed |= status != ZERO_OK || rails->local->failed || rails->between->failed;
    return status;
}

/* ---- Failure ---- */

/* Lets the streams drain. NCCL's abort waits for kernels that may be queued behind a fence, so fences end first; and
 * those behind NCCL's kernels afterwards. */
static void rails_release(zero_comm_t *comm)
{
    const rails_t *rails = comm->transport;
    comm->failed = rails->local->failed = rails->between->failed = true;
    for (int i = 0; i < 2; i++) {
        if (rails->local->ops->release)
            rails->local->ops->release(rails->local);
        if (i == 0 && rails->between->ops->release)
            rails->between->ops->release(rails->between);
    }
}

static zero_status_t rails_check_peers(zero_comm_t *comm, const char *waiting_in, int64_t waited_ns)
{
    zero_comm_t *between = rails_of(comm)->between;
    return note(comm, between->ops->check_peers ? between->ops->check_peers(between, waiting_in, waited_ns) : ZERO_OK);
}

/* ---- Windows ---- */

/* Divides staging memory among the lanes: only gathers of units are large. */
static void divide_staging(rails_t *rails)
{
    const size_t small = rails->staging_bytes / 32 / SLOT_ALIGN * SLOT_ALIGN;
    size_t at = 0;
    for (int lane = 0; lane < ZERO_N_LANES; lane++) {
        rail_lane_t *of = &rails->lanes[lane];
        of->side_bytes = lane == ZERO_LANE_GATHER
                             ? (rails->staging_bytes / 2 - (ZERO_N_LANES - 1) * small) / SLOT_ALIGN * SLOT_ALIGN
                             : small;
        of->at = at;
        at += 2 * of->side_bytes;
    }
}

static zero_status_t window_create(zero_comm_t *comm, size_t n_bytes, zero_window_t *window)
{
    rails_t *rails = comm->transport;
    zero_comm_t *local = rails->local;
    zero_status_t status = ZERO_OK;
    if (!rails->staging.local)
        status = local->ops->window_create(local, rails->staging_bytes, &rails->staging);
    if (status == ZERO_OK)
        status = local->ops->window_create(local, n_bytes, window);
    comm->failed |= local->failed; /* all know of a lack of memory, and may go on */
    return status;
}

static void window_destroy(zero_comm_t *comm, zero_window_t *window)
{
    const rails_t *rails = comm->transport;
    if (zero_comm_gpu_failed(comm))
        rails_release(comm);
    rails->local->ops->window_destroy(rails->local, window);
}

static zero_status_t fence(zero_comm_t *comm, zero_lane_t lane, zero_stream_t stream)
{
    zero_comm_t *local = rails_of(comm)->local;
    zero_comm_pair(comm, "fence", 0);
    return note(comm, local->ops->fence(local, lane, stream));
}

/* ---- The receive stream ---- */

static zero_status_t record(const rails_t *rails, struct zero_event *event, zero_stream_t stream)
{
    return rails->device_ops->event_record(rails->device, event, stream);
}

static zero_status_t wait_for(const rails_t *rails, zero_stream_t stream, struct zero_event *event)
{
    return rails->device_ops->stream_wait(rails->device, stream, event);
}

/* Makes what is received from now on wait for what the lane's stream has done. */
static zero_status_t receive_behind(const rails_t *rails, zero_lane_t lane, struct zero_event *event,
                                    zero_stream_t stream)
{
    ZERO_TRY(record(rails, event, stream));
    return wait_for(rails, rails->lanes[lane].receives, event);
}

/* Exchanges the first n of rails->exchanges in the receive stream. */
static zero_status_t exchange_overlapped(const rails_t *rails, zero_lane_t lane, int n, size_t n_bytes)
{
    const rail_lane_t *of = &rails->lanes[lane];
    ZERO_TRY(rails->between->ops->exchange(rails->between, lane, rails->exchanges, n, n_bytes, of->receives));
    return record(rails, of->received, of->receives);
}

/* ---- All-gather ---- */

/* Returns the slot of another host's slice in a side. */
static size_t slot_of(const rail_gather_t *g, int host)
{
    return (size_t)(host - (host > g->me / g->n_local)) * g->slot_bytes;
}

static size_t round_bytes(const rail_gather_t *g, size_t round)
{
    const size_t left = g->n_bytes - round * g->slot_bytes;
    return left < g->slot_bytes ? left : g->slot_bytes;
}

/* Returns where the side that the last round has used, or uses, begins in the staging window. */
static size_t side_at(const rail_lane_t *lane)
{
    return lane->at + (lane->n_rounds & 1) * lane->side_bytes;
}

/* Receives a round from this rank's rail into the other side. */
static zero_status_t receive_round(rails_t *rails, const rail_gather_t *g, size_t round)
{
    rail_lane_t *lane = &rails->lanes[g->lane];
    const char *own =
        (const char *)g->window->local + g->src_offset + (size_t)g->me * g->src_stride + round * g->slot_bytes;
    int n = 0;
    lane->n_rounds++;
    for (int host = 0; host < g->n_hosts; host++)
        if (host != g->me / g->n_local)
            rails->exchanges[n++] =
                (zero_exchange_t){.rank = zero_ranks_at(g->ranks, host * g->n_local + g->me % g->n_local),
                                  .src = own,
                                  .dst = (char *)rails->staging.local + side_at(lane) + slot_of(g, host)};
    return exchange_overlapped(rails, g->lane, n, round_bytes(g, round));
}

/* Copies the slices of this host's ranks from their windows. Each rank begins with itself, so that not all read from
 * one. */
static zero_status_t pull_own_host(const rails_t *rails, const rail_gather_t *g)
{
    const int first = g->me - g->me % g->n_local;
    int n = 0;
    for (int i = 0; i < g->n_local; i++) {
        const int at = first + (g->me + i) % g->n_local;
        const size_t offset = g->src_offset + (size_t)at * g->src_stride;
        char *slice = g->dst + (size_t)at * g->n_bytes;
        if (at != g->me || slice != (char *)g->window->local + offset)
            rails->pulls[n++] = (zero_pull_t){zero_ranks_at(g->ranks, at), offset, slice, g->n_bytes};
    }
    return rails->local->ops->pull(rails->local, g->lane, g->window, rails->pulls, n, g->stream);
}

/* Copies what a round brought to this host's ranks. side: where. */
static zero_status_t pull_round(const rails_t *rails, const rail_gather_t *g, size_t round, size_t side)
{
    const int own_host = g->me / g->n_local;
    int n = 0;
    for (int i = 0; i < g->n_local; i++) {
        const int place = (g->me + i) % g->n_local, rank = zero_ranks_at(g->ranks, own_host * g->n_local + place);
        for (int host = 0; host < g->n_hosts; host++)
            if (host != own_host)
                rails->pulls[n++] =
                    (zero_pull_t){rank, side + slot_of(g, host),
                                  g->dst + (size_t)(host * g->n_local + place) * g->n_bytes + round * g->slot_bytes,
                                  round_bytes(g, round)};
    }
    return rails->local->ops->pull(rails->local, g->lane, &rails->staging, rails->pulls, n, g->stream);
}

static zero_status_t gather_over_rails(rails_t *rails, const rail_gather_t *g)
{
    const rail_lane_t *lane = &rails->lanes[g->lane];
    const size_t n_rounds = (g->n_bytes + g->slot_bytes - 1) / g->slot_bytes;
    ZERO_TRY(receive_behind(rails, g->lane, lane->forked, g->stream));
    ZERO_TRY(receive_round(rails, g, 0));
    ZERO_TRY(pull_own_host(rails, g));
    for (size_t round = 0; round < n_rounds; round++) {
        const size_t side = side_at(lane);
        ZERO_TRY(wait_for(rails, g->stream, lane->received));
        ZERO_TRY(rails->local->ops->fence(rails->local, g->lane, g->stream));
        if (round + 1 < n_rounds) {
            ZERO_TRY(receive_behind(rails, g->lane, lane->passed, g->stream));
            ZERO_TRY(receive_round(rails, g, round + 1));
        }
        ZERO_TRY(pull_round(rails, g, round, side));
    }
    return ZERO_OK;
}

static zero_status_t all_gather(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window, zero_ranks_t ranks,
                                size_t src_offset, size_t src_stride, void *dst, size_t n_bytes, zero_stream_t stream)
{
    rails_t *rails = comm->transport;
    const zero_route_t route = zero_route_find(rails->hosts, comm->size, ranks);
    rail_gather_t g = {.window = window,
                       .ranks = ranks,
                       .src_offset = src_offset,
                       .src_stride = src_stride,
                       .dst = dst,
                       .n_bytes = n_bytes,
                       .lane = lane,
                       .stream = stream,
                       .n_local = route.n_local,
                       .me = zero_ranks_index(ranks, comm->rank)};
    if (n_bytes == 0)
        return ZERO_OK;
    zero_comm_pair(comm, "all-gather", n_bytes);
    if (route.kind == ZERO_ROUTE_LOCAL)
        return note(comm, pull_own_host(rails, &g));
    if (route.kind == ZERO_ROUTE_RAILS) {
        g.n_hosts = ranks.n / route.n_local;
        g.slot_bytes = rails->lanes[lane].side_bytes / (size_t)(g.n_hosts - 1) / SLOT_ALIGN * SLOT_ALIGN;
    }
    if (g.slot_bytes == 0) /* messages, or more hosts than a side has slots for */
        return note(comm, rails->between->ops->all_gather(rails->between, lane, window, ranks, src_offset, src_stride,
                                                          dst, n_bytes, stream));
    return note(comm, gather_over_rails(rails, &g));
}

/* ---- All-to-all ---- */

static zero_status_t all_to_all(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window, int group,
                                size_t src_offset, size_t src_stride, size_t n_bytes, void *staging,
                                const void **slices, zero_stream_t stream)
{
    rails_t *rails = comm->transport;
    const char *src = (const char *)window->local + src_offset;
    const size_t own = (size_t)zero_comm_slice_of(comm->rank, comm->size, group) * src_stride;
    int n_pulls = 0, n_exchanges = 0;
    for (int i = 1; i < comm->size; i++) {
        const int rank = (comm->rank + i) % comm->size;
        char *received = (char *)staging + (size_t)rank * n_bytes;
        slices[rank] = received;
        if (zero_hosts_are_one(comm, rank, comm->rank))
            rails->pulls[n_pulls++] = (zero_pull_t){rank, src_offset + own, received, n_bytes};
        else
            rails->exchanges[n_exchanges++] = (zero_exchange_t){
                rank, src + (size_t)zero_comm_slice_of(rank, comm->size, group) * src_stride, received};
    }
    slices[comm->rank] = src + own; /* stays in the window */
    if (n_bytes == 0)
        return ZERO_OK;
    zero_comm_pair(comm, "gradient all-to-all", n_bytes);
    ZERO_TRY(note(comm, receive_behind(rails, lane, rails->lanes[lane].forked, stream)));
    ZERO_TRY(note(comm, exchange_overlapped(rails, lane, n_exchanges, n_bytes)));
    ZERO_TRY(note(comm, rails->local->ops->pull(rails->local, lane, window, rails->pulls, n_pulls, stream)));
    return note(comm, wait_for(rails, stream, rails->lanes[lane].received));
}

/* ---- Beginning and end ---- */

static zero_status_t prepare_lane(const rails_t *rails, rail_lane_t *lane)
{
    ZERO_TRY(rails->device_ops->stream_create(rails->device, true, &lane->receives));
    ZERO_TRY(rails->device_ops->event_create(rails->device, false, &lane->forked));
    ZERO_TRY(rails->device_ops->event_create(rails->device, false, &lane->received));
    return rails->device_ops->event_create(rails->device, false, &lane->passed);
}

static void destroy_lane(const rails_t *rails, rail_lane_t *lane)
{
    rails->device_ops->event_destroy(rails->device, lane->forked);
    rails->device_ops->event_destroy(rails->device, lane->received);
    rails->device_ops->event_destroy(rails->device, lane->passed);
    rails->device_ops->stream_destroy(rails->device, lane->receives);
}

/* Frees what is its own. */
static void discard(zero_comm_t *comm)
{
    rails_t *rails = comm->transport;
    for (int i = 0; i < ZERO_N_LANES; i++)
        destroy_lane(rails, &rails->lanes[i]);
    free(rails->hosts);
    free(rails->pulls);
    free(rails->exchanges);
    zero_comm_gpu_destroy(comm);
}

static void destroy(zero_comm_t *comm)
{
    rails_t *rails = comm->transport;
    zero_comm_t *local = rails->local, *between = rails->between;
    if (zero_comm_gpu_failed(comm))
        rails_release(comm);
    if (rails->staging.local)
        local->ops->window_destroy(local, &rails->staging);
    discard(comm);
    between->ops->destroy(between);
    local->ops->destroy(local);
}

static const zero_comm_ops_t rails_ops = {
    .name = "rails",
    .window_create = window_create,
    .window_destroy = window_destroy,
    .fence = fence,
    .all_gather = all_gather,
    .all_to_all = all_to_all,
    .staging_bytes = zero_comm_gpu_staging_bytes,
    .host_all_gather = zero_comm_gpu_all_gather,
    .host_broadcast = zero_comm_gpu_broadcast,
    .check_peers = rails_check_peers,
    .release = rails_release,
    .abort = zero_comm_gpu_abort,
    .destroy = destroy,
};

static zero_status_t prepare(zero_comm_t *comm)
{
    rails_t *rails = comm->transport;
    const size_t size = (size_t)comm->size;
    rails->hosts = calloc(size, sizeof *rails->hosts);
    rails->pulls = calloc(size, sizeof *rails->pulls);
    rails->exchanges = calloc(size, sizeof *rails->exchanges);
    if (!rails->hosts || !rails->pulls || !rails->exchanges)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for a communicator of %d GPUs", comm->size);
    zero_comm_hosts(comm, rails->hosts);
    for (int i = 0; i < ZERO_N_LANES; i++)
        ZERO_TRY(prepare_lane(rails, &rails->lanes[i]));
    return ZERO_OK;
}

zero_status_t zero_comm_rails_create(zero_comm_t *host, zero_comm_t *local, zero_comm_t *between, zero_device_t *device,
                                     const zero_device_ops_t *ops, size_t staging_bytes, zero_comm_t **comm)
{
    zero_comm_t *made;
    ZERO_TRY(zero_comm_gpu_create(host, &rails_ops, sizeof(rails_t), &made));
    rails_t *rails = made->transport;
    rails->ops = rails_ops;
    rails->ops.blocks = between->ops->blocks;
    rails->local = local;
    rails->between = between;
    rails->device = device;
    rails->device_ops = ops;
    rails->staging_bytes = staging_bytes;
    divide_staging(rails);
    made->ops = &rails->ops;
    zero_status_t status = zero_comm_agree(made, prepare(made));
    if (status != ZERO_OK) {
        discard(made);
        return status;
    }
    *comm = made;
    if (made->rank == 0)
        zero_log(ZERO_LOG_INFO, "rails: %s inside hosts, %s between them", local->ops->name, between->ops->name);
    return ZERO_OK;
}
