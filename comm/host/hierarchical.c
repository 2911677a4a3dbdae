/* hierarchical.c - the transport of several hosts with several ranks each: shared memory inside a host, messages
 * between hosts, so that what is gathered crosses between two hosts once.
 *
 * Windows are blocks that the ranks of a host share, and fence is a barrier among these. Ranks of one host read each
 * other's windows. Of a slice from another host, each of the l ranks of this host that gather it receives one l-th,
 * into a staging buffer behind its window, from where all l copy it. Large slices come in rounds, and the messages of
 * the next round are under way while a round's bytes are copied. Two sides of the staging buffer are used in turn: a
 * rank that has passed the barrier of a round has copied what the round before brought.
 *
 * In an all-to-all every slice is for one rank alone, so nothing can be saved: slices of other hosts are messages,
 * those of this host are read where they are.
 *
 * The barrier is made of messages too. So a rank that waits in it still hears of the calls that ranks elsewhere are in,
 * and names those that do not come (messages.h).
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "comm/host/messages.h"
#include "comm/host/mpi.h"
#include "comm/host/progress.h"
#include "comm/host/shared_block.h"

#define SIDE_BYTES ((size_t)2 << 20) /* of the staging buffer, at least: with many ranks */
#define SIDE_BYTES_PER_RANK ((size_t)8 << 10)
#define PART_ALIGN ((size_t)64)
#define PAGE ((size_t)4096)

/* Of the ranks that gather together: which of them share a host. Kept from call to call, as long as they are the same.
 */
typedef struct members {
    zero_ranks_t ranks;
    int *n_local;    /* [size] by place among `ranks`: how many of them are on that rank's host */
    int *among_them; /* [size] the rank's own place among those */
} members_t;

typedef struct hierarchical_window {
    zero_shared_block_t *block;
    size_t staging, side_bytes; /* where the two sides begin, behind the window */
    uint32_t n_rounds;          /* so far: the lowest bit is the side */
    members_t members;
} hierarchical_window_t;

/* How one all-gather goes on in rounds, the same on every rank. */
typedef struct rounds {
    size_t n_bytes;     /* of a slice */
    size_t chunk_bytes; /* of every slice, in a round */
    size_t slot_bytes;  /* of the staging buffer, for a rank's part of a slice's chunk */
    size_t n;           /* 0: no slice crosses between hosts */
} rounds_t;

/* ---- Which ranks share a host ---- */

/* Returns the ranks that gather with `rank` in the call in which this rank gathers with `ranks`: a run of neighbours,
 * or one of every run (comm.h). */
static zero_ranks_t ranks_with(zero_ranks_t ranks, int rank)
{
    ranks.first = ranks.stride == 1 ? rank - rank % ranks.n : rank % ranks.stride;
    return ranks;
}

/* Returns whether some rank gathers from another host. */
static bool any_crosses(const zero_comm_t *comm, zero_ranks_t ranks)
{
    for (int rank = 0; rank < comm->size; rank++)
        if (!zero_hosts_are_one(comm, rank, ranks_with(ranks, rank).first))
            return true;
    return false;
}

static void find_members(const zero_comm_t *comm, zero_ranks_t ranks, members_t *members)
{
    if (memcmp(&members->ranks, &ranks, sizeof ranks) == 0)
        return;
    members->ranks = ranks;
    for (int i = 0; i < ranks.n; i++) {
        members->n_local[i] = members->among_them[i] = 0;
        for (int j = 0; j < ranks.n; j++) {
            const bool is_local = zero_hosts_are_one(comm, zero_ranks_at(ranks, i), zero_ranks_at(ranks, j));
            members->n_local[i] += is_local;
            members->among_them[i] += is_local && j < i;
        }
    }
}

/* ---- Windows ---- */

static void window_free(hierarchical_window_t *made)
{
    if (!made)
        return;
    zero_shared_block_destroy(made->block);
    free(made->members.n_local);
    free(made->members.among_them);
    free(made);
}

static zero_status_t hierarchical_window_create(zero_comm_t *comm, size_t n_bytes, zero_window_t *window)
{
    const size_t size = (size_t)comm->size;
    zero_status_t status = ZERO_OK;
    hierarchical_window_t *made = calloc(1, sizeof *made);
    int *n_local = calloc(size, sizeof *n_local), *among_them = calloc(size, sizeof *among_them);
    if (!made || !n_local || !among_them || n_bytes > SIZE_MAX / 2)
        status = zero_fail(ZERO_ERROR_MEMORY, "no memory for a window of %zu bytes", n_bytes);
    if (made)
        made->members = (members_t){.n_local = n_local, .among_them = among_them};
    ZERO_TRY_GOTO(zero_comm_agree(comm, status), fail);
    made->staging = (n_bytes + PAGE - 1) / PAGE * PAGE;
    made->side_bytes = size * SIDE_BYTES_PER_RANK > SIDE_BYTES ? size * SIDE_BYTES_PER_RANK : SIDE_BYTES;
    ZERO_TRY_GOTO(
        zero_shared_block_create(comm, made->staging + 2 * made->side_bytes, false, ZERO_LOG_ERROR, &made->block),
        fail);
    *window = (zero_window_t){.local = made->block->parts[comm->rank], .n_bytes = n_bytes, .transport = made};
    return ZERO_OK;
fail:
    if (!made) {
        free(n_local);
        free(among_them);
    }
    window_free(made);
    return status;
}

static void hierarchical_window_destroy(zero_comm_t *comm, zero_window_t *window)
{
    (void)comm; /* the kernel frees the memory when the last rank has unmapped it */
    window_free(window->transport);
    *window = (zero_window_t){0};
}

/* ---- The barrier of a host ---- */

static zero_status_t greet_host(zero_comm_t *comm)
{
    static char nothing;
    for (int rank = 0; rank < comm->size; rank++) {
        if (rank == comm->rank || !zero_hosts_are_one(comm, rank, comm->rank))
            continue;
        ZERO_TRY(zero_messages_receive(comm, rank, &nothing, 0));
        ZERO_TRY(zero_messages_send(comm, rank, &nothing, 0));
    }
    return ZERO_OK;
}

/* Returns when all ranks of this host have come. What they wrote before can then be read. */
static zero_status_t meet_host(zero_comm_t *comm, const char *what)
{
    atomic_thread_fence(memory_order_seq_cst);
    ZERO_TRY(zero_messages_begin(comm, what, 0, 0));
    ZERO_TRY(zero_messages_wait(comm, greet_host(comm), 0));
    atomic_thread_fence(memory_order_seq_cst);
    return ZERO_OK;
}

static zero_status_t hierarchical_fence(zero_comm_t *comm, zero_lane_t lane, zero_stream_t stream)
{
    (void)lane, (void)stream;
    return meet_host(comm, "fence");
}

/* ---- All-gather ---- */

/* Returns where the k-th of n parts of a chunk begins. */
static size_t part_begin(size_t chunk_bytes, int k, int n)
{
    return k == n ? chunk_bytes : chunk_bytes * (size_t)k / (size_t)n / PART_ALIGN * PART_ALIGN;
}

/* A side has room for every other rank's part, however few ranks share the parts: with one rank a host they are whole
 * chunks. */
static rounds_t plan_rounds(const zero_comm_t *comm, const hierarchical_window_t *shared, zero_ranks_t ranks,
                            size_t n_bytes)
{
    rounds_t rounds = {.n_bytes = n_bytes};
    rounds.slot_bytes = shared->side_bytes / (size_t)ranks.n / PART_ALIGN * PART_ALIGN;
    rounds.chunk_bytes = rounds.slot_bytes;
    rounds.n = any_crosses(comm, ranks) ? (n_bytes + rounds.chunk_bytes - 1) / rounds.chunk_bytes : 0;
    return rounds;
}

static size_t chunk_bytes_of(const rounds_t *rounds, size_t round)
{
    const size_t left = rounds->n_bytes - round * rounds->chunk_bytes;
    return left < rounds->chunk_bytes ? left : rounds->chunk_bytes;
}

/* Queues a round's messages: this rank's part of the others' slices, and their parts of its own. */
static zero_status_t queue_round(zero_comm_t *comm, const members_t *members, const rounds_t *rounds, size_t round,
                                 const char *src, char *side)
{
    const zero_ranks_t ranks = members->ranks;
    const int me = zero_ranks_index(ranks, comm->rank), n_local = members->n_local[me], k = members->among_them[me];
    const size_t chunk = chunk_bytes_of(rounds, round);
    const size_t n_mine = part_begin(chunk, k + 1, n_local) - part_begin(chunk, k, n_local);
    for (int step = 1; step < ranks.n; step++) {
        const int from = (me + ranks.n - step) % ranks.n, to = (me + step) % ranks.n;
        if (!zero_hosts_are_one(comm, zero_ranks_at(ranks, from), comm->rank))
            ZERO_TRY(zero_messages_receive(comm, zero_ranks_at(ranks, from), side + (size_t)from * rounds->slot_bytes,
                                           n_mine));
        if (zero_hosts_are_one(comm, zero_ranks_at(ranks, to), comm->rank))
            continue;
        const size_t begin = part_begin(chunk, members->among_them[to], members->n_local[to]);
        const size_t end = part_begin(chunk, members->among_them[to] + 1, members->n_local[to]);
        ZERO_TRY(
            zero_messages_send(comm, zero_ranks_at(ranks, to), src + round * rounds->chunk_bytes + begin, end - begin));
    }
    return ZERO_OK;
}

/* Copies what a round brought to the ranks of this host. */
static void copy_round(const zero_comm_t *comm, const hierarchical_window_t *shared, const rounds_t *rounds,
                       size_t round, size_t side, char *dst)
{
    const members_t *members = &shared->members;
    const zero_ranks_t ranks = members->ranks;
    const size_t chunk = chunk_bytes_of(rounds, round);
    for (int i = 0; i < ranks.n; i++) {
        if (!zero_hosts_are_one(comm, zero_ranks_at(ranks, i), comm->rank))
            continue;
        const char *parts = (const char *)shared->block->parts[zero_ranks_at(ranks, i)] + side;
        const size_t begin = part_begin(chunk, members->among_them[i], members->n_local[i]);
        const size_t end = part_begin(chunk, members->among_them[i] + 1, members->n_local[i]);
        for (int of = 0; of < ranks.n; of++)
            if (!zero_hosts_are_one(comm, zero_ranks_at(ranks, of), comm->rank))
                memcpy(dst + (size_t)of * rounds->n_bytes + round * rounds->chunk_bytes + begin,
                       parts + (size_t)of * rounds->slot_bytes, end - begin);
    }
}

/* Copies the slices of this host's ranks from their windows. */
static void copy_local(const zero_comm_t *comm, const zero_shared_block_t *block, zero_ranks_t ranks, size_t src_offset,
                       size_t src_stride, char *dst, size_t n_bytes)
{
    const int me = zero_ranks_index(ranks, comm->rank);
    for (int i = 0; i < ranks.n && n_bytes > 0; i++) {
        const int at = (me + i) % ranks.n, rank = zero_ranks_at(ranks, at);
        if (!zero_hosts_are_one(comm, rank, comm->rank))
            continue;
        const char *src = (const char *)block->parts[rank] + src_offset + (size_t)at * src_stride;
        if (dst + (size_t)at * n_bytes != src)
            zero_shared_block_copy(dst + (size_t)at * n_bytes, src, n_bytes);
    }
}

static zero_status_t begin_round(zero_comm_t *comm, const hierarchical_window_t *shared, const rounds_t *rounds,
                                 size_t round, const char *src, size_t side, zero_status_t *queued)
{
    ZERO_TRY(zero_messages_begin(comm, "all-gather", rounds->n_bytes, (int)(round % INT32_MAX)));
    *queued = queue_round(comm, &shared->members, rounds, round, src, (char *)shared->block->parts[comm->rank] + side);
    return ZERO_OK;
}

static zero_status_t hierarchical_all_gather(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window,
                                             zero_ranks_t ranks, size_t src_offset, size_t src_stride, void *dst,
                                             size_t n_bytes, zero_stream_t stream)
{
    (void)lane, (void)stream;
    hierarchical_window_t *shared = window->transport;
    const char *src =
        (const char *)window->local + src_offset + (size_t)zero_ranks_index(ranks, comm->rank) * src_stride;
    const rounds_t rounds = plan_rounds(comm, shared, ranks, n_bytes);
    zero_status_t queued = ZERO_OK;
    find_members(comm, ranks, &shared->members);
    for (size_t round = 0; round <= rounds.n; round++) {
        const size_t last_side = shared->staging + (shared->n_rounds & 1) * shared->side_bytes;
        if (round > 0) {
            ZERO_TRY(zero_messages_wait(comm, queued, rounds.chunk_bytes));
            ZERO_TRY(meet_host(comm, "all-gather"));
        }
        if (round < rounds.n) {
            const size_t side = shared->staging + (++shared->n_rounds & 1) * shared->side_bytes;
            ZERO_TRY(begin_round(comm, shared, &rounds, round, src, side, &queued));
        }
        if (round > 0)
            copy_round(comm, shared, &rounds, round - 1, last_side, dst);
        else
            copy_local(comm, shared->block, ranks, src_offset, src_stride, dst, n_bytes);
    }
    return ZERO_OK;
}

/* ---- All-to-all ---- */

static zero_status_t queue_slices(zero_comm_t *comm, int group, const char *src, size_t src_stride, size_t n_bytes,
                                  char *staging)
{
    for (int step = 1; step < comm->size; step++) {
        const int from = (comm->rank + comm->size - step) % comm->size, to = (comm->rank + step) % comm->size;
        if (!zero_hosts_are_one(comm, from, comm->rank))
            ZERO_TRY(zero_messages_receive(comm, from, staging + (size_t)from * n_bytes, n_bytes));
        if (!zero_hosts_are_one(comm, to, comm->rank))
            ZERO_TRY(zero_messages_send(comm, to, src + (size_t)zero_comm_slice_of(to, comm->size, group) * src_stride,
                                        n_bytes));
    }
    return ZERO_OK;
}

static zero_status_t hierarchical_all_to_all(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window,
                                             int group, size_t src_offset, size_t src_stride, size_t n_bytes,
                                             void *staging, const void **slices, zero_stream_t stream)
{
    (void)lane, (void)stream;
    const hierarchical_window_t *shared = window->transport;
    const size_t own_slice = src_offset + (size_t)zero_comm_slice_of(comm->rank, comm->size, group) * src_stride;
    for (int rank = 0; rank < comm->size; rank++)
        slices[rank] = zero_hosts_are_one(comm, rank, comm->rank) ? (const char *)shared->block->parts[rank] + own_slice
                                                                  : (char *)staging + (size_t)rank * n_bytes;
    ZERO_TRY(zero_messages_begin(comm, "gradient all-to-all", n_bytes, 0));
    return zero_messages_wait(
        comm, queue_slices(comm, group, (const char *)window->local + src_offset, src_stride, n_bytes, staging),
        n_bytes);
}

/* ---- Beginning ---- */

static const zero_comm_ops_t hierarchical_ops = {
    .name = "hierarchical",
    .blocks = true,
    .window_create = hierarchical_window_create,
    .window_destroy = hierarchical_window_destroy,
    .fence = hierarchical_fence,
    .all_gather = hierarchical_all_gather,
    .all_to_all = hierarchical_all_to_all,
    .staging_bytes = zero_mpi_staging_bytes,
    .host_all_gather = zero_mpi_host_all_gather,
    .host_broadcast = zero_mpi_host_broadcast,
    .check_peers = zero_messages_check_peers,
    .abort = zero_messages_abort,
    .destroy = zero_mpi_destroy,
};

zero_status_t zero_comm_hierarchical_create(zero_comm_t *comm)
{
    zero_shared_block_t *block;
    zero_status_t status = zero_shared_block_create(comm, PAGE, false, ZERO_LOG_DEBUG, &block);
    if (status == ZERO_OK) {
        zero_shared_block_destroy(block);
        comm->ops = &hierarchical_ops;
        return ZERO_OK;
    }
    if (comm->failed)
        return status;
    zero_log(ZERO_LOG_DEBUG, "no memory can be shared between the ranks of a host: they send messages");
    return ZERO_ERROR_UNSUPPORTED;
}
