/* mpi.c - the transport of messages: our own collectives, made of point-to-point messages over our own MPI
 * communicator, for any topology.
 *
 * Windows are private memory and fence does nothing: each collective orders its reads after its peers' writes.
 *
 * A collective sends a message from every rank to every other (in a broadcast, from the root). The message's tag is a
 * hash of the call that the sender is in (call.h), sizes included, and of the number of collectives before it. So only
 * ranks in the same call receive each other's messages, no message is truncated or mistaken for another, and the check
 * costs nothing. Ranks in different calls wait.
 *
 * All messages are nonblocking and polled, so that different calls, or a rank that never comes, give an error that
 * names the ranks instead of a hang. MPI cannot tell which rank is missing. So a rank that has waited for
 * ANNOUNCE_AFTER_NS announces to each peer which collective it has come to, and in which call. A rank that learns of
 * another call than its own reports both. At the deadline, the ranks that announced nothing are reported. While all
 * goes well, nothing is announced.
 *
 * Closing is a collective too. MPI_Finalize comes only after it: if one rank waits in MPI_Finalize while others end in
 * failure, the mpirun of Open MPI 4.1 with PMIx 4.2 has been seen to hang or crash instead of ending the job.
 */
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/deadline.h"
#include "base/log.h"
#include "comm/comm.h"
#include "comm/host/mpi_status.h"
#include "comm/private_window.h"

/* How long to poll before sleeping between polls. MPI moves large messages only inside its calls, and if it cannot read
 * a peer's memory (mostly in containers) only a fragment or two in each: with sleeps they took 6 to 15 times as long.
 * So polling lasts as long as the transfer would on a slow network, 50 MB/s. */
#define POLL_NS 200000
#define POLL_NS_PER_BYTE 20
#define MAX_SLEEP_NS 500000
#define ANNOUNCE_AFTER_NS 1000000000
#define LAST_LINES_NS 200000000 /* mpirun reads its pipes within milliseconds, if it gets a core */
#define PROGRESS_TAG 0          /* collectives have the tags above */
#define MIN_TAG_BOUND 32767     /* guaranteed by MPI */
#define N_RECENT 4              /* the root may be further on when its broadcast is compared */
#define BLOCK_BYTES (1 << 20)   /* messages longer than INT_MAX are counted in blocks */

/* Which collective a rank has come to, and its calls in the last ones. */
typedef struct progress {
    uint64_t n_collectives;       /* started so far: the number of the current one */
    zero_call_t recent[N_RECENT]; /* collective n at n % N_RECENT */
} progress_t;

typedef struct peer {
    progress_t sent; /* our last announcement to this peer; MPI may read it while `request` is active */
    MPI_Request request;
    progress_t received; /* this peer's last announcement to us */
    bool is_heard;       /* it has announced something since this rank began to wait for its device */
} peer_t;

typedef struct mpi_transport {
    MPI_Comm mpi;
    int tag_bound; /* the largest tag */
    progress_t own;
    peer_t *peers;                       /* [size] */
    int64_t wait_began_ns, announced_ns; /* the current wait for the device, and the last announcement in it */
    /* The messages of the current collective. */
    int tag, n_requests;
    MPI_Request *requests; /* [2 * size] */
    MPI_Status *statuses;  /* [2 * size] */
} mpi_transport_t;

zero_status_t zero_mpi_fail(int error, const char *call)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(error, text, &length);
    return zero_fail(ZERO_ERROR_COMM, "%.*s: %s", (int)strcspn(call, "("), call, text);
}

zero_status_t zero_mpi_await(MPI_Request *request, int64_t timeout_ns)
{
    const int64_t end = zero_now_ns() + timeout_ns;
    for (int done = 0;;) {
        ZERO_TRY_MPI(MPI_Test(request, &done, MPI_STATUS_IGNORE));
        if (done)
            return ZERO_OK;
        if (zero_now_ns() > end)
            return ZERO_ERROR_TIMEOUT;
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    }
}

/* ---- Waiting ---- */

static zero_status_t announce_progress(const zero_comm_t *comm)
{
    mpi_transport_t *transport = comm->transport;
    for (int rank = 0; rank < comm->size; rank++) {
        peer_t *peer = &transport->peers[rank];
        int is_free = 1;
        ZERO_TRY_MPI(MPI_Test(&peer->request, &is_free, MPI_STATUS_IGNORE));
        if (rank == comm->rank || !is_free)
            continue;
        peer->sent = transport->own;
        ZERO_TRY_MPI(MPI_Isend(&peer->sent, (int)sizeof peer->sent, MPI_BYTE, rank, PROGRESS_TAG, transport->mpi,
                               &peer->request));
    }
    return ZERO_OK;
}

static zero_status_t receive_progress(mpi_transport_t *transport)
{
    for (;;) {
        int pending = 0;
        MPI_Status from;
        progress_t received;
        ZERO_TRY_MPI(MPI_Iprobe(MPI_ANY_SOURCE, PROGRESS_TAG, transport->mpi, &pending, &from));
        if (!pending)
            return ZERO_OK;
        ZERO_TRY_MPI(
            MPI_Recv(&received, (int)sizeof received, MPI_BYTE, from.MPI_SOURCE, PROGRESS_TAG, transport->mpi, &from));
        transport->peers[from.MPI_SOURCE].received = received;
        transport->peers[from.MPI_SOURCE].is_heard = true;
    }
}

/* Returns the call that a rank was in in collective n; NULL if that is not known yet, or no longer. */
static const zero_call_t *call_in(const progress_t *progress, uint64_t n)
{
    return n <= progress->n_collectives && progress->n_collectives - n < N_RECENT ? &progress->recent[n % N_RECENT]
                                                                                  : NULL;
}

/* Compares with each peer the calls in the latest collective to which both are known to have come. */
static zero_status_t compare_calls(const zero_comm_t *comm)
{
    const mpi_transport_t *transport = comm->transport;
    const progress_t *own = &transport->own;
    for (int rank = 0; rank < comm->size; rank++) {
        const progress_t *received = &transport->peers[rank].received;
        uint64_t n = received->n_collectives < own->n_collectives ? received->n_collectives : own->n_collectives;
        const zero_call_t *mine = call_in(own, n), *others = call_in(received, n);
        if (n > 0 && mine && others && memcmp(mine, others, sizeof *mine) != 0)
            return zero_call_mismatch(comm->rank, mine, rank, others);
    }
    return ZERO_OK;
}

static zero_status_t timed_out(const zero_comm_t *comm)
{
    const mpi_transport_t *transport = comm->transport;
    const uint64_t current = transport->own.n_collectives;
    char missing[512] = "", call[ZERO_CALL_TEXT_BYTES];
    for (int rank = 0; rank < comm->size; rank++)
        if (rank != comm->rank && transport->peers[rank].received.n_collectives < current)
            zero_hosts_list_rank(comm, rank, missing, sizeof missing);
    return zero_fail(ZERO_ERROR_TIMEOUT, "%s did not end within %g s (ZERO_TIMEOUT_S): %s%s",
                     zero_call_text(&transport->own.recent[current % N_RECENT], call), (double)comm->timeout_ns * 1e-9,
                     missing[0] ? "not heard from: rank " : "all ranks have come to it", missing);
}

static zero_status_t name_silent_peers(const zero_comm_t *comm, const char *waiting_in)
{
    const mpi_transport_t *transport = comm->transport;
    char silent[512] = "";
    for (int rank = 0; rank < comm->size; rank++)
        if (rank != comm->rank && !transport->peers[rank].is_heard)
            zero_hosts_list_rank(comm, rank, silent, sizeof silent);
    if (!silent[0])
        return ZERO_OK;
    return zero_fail(ZERO_ERROR_TIMEOUT, "%s did not end within %g s (ZERO_TIMEOUT_S): not heard from: rank %s",
                     waiting_in, (double)comm->timeout_ns * 1e-9, silent);
}

/* Ranks that wait for their devices tell each other so once in a second. One that has said nothing by the deadline has
 * ended, or stands still, or the network between has gone. */
static zero_status_t mpi_check_peers(zero_comm_t *comm, const char *waiting_in, int64_t waited_ns)
{
    mpi_transport_t *transport = comm->transport;
    const int64_t now_ns = zero_now_ns();
    if (now_ns - waited_ns > transport->wait_began_ns + ANNOUNCE_AFTER_NS / 2) { /* a new wait */
        transport->wait_began_ns = now_ns - waited_ns;
        transport->announced_ns = 0;
        for (int rank = 0; rank < comm->size; rank++)
            transport->peers[rank].is_heard = false;
    }
    if (now_ns - transport->announced_ns >= ANNOUNCE_AFTER_NS) {
        transport->announced_ns = now_ns;
        ZERO_TRY(announce_progress(comm));
    }
    ZERO_TRY(receive_progress(transport));
    return waited_ns > comm->timeout_ns ? name_silent_peers(comm, waiting_in) : ZERO_OK;
}

/* Reports the error of the first message that failed. */
static zero_status_t message_failed(const mpi_transport_t *transport, int error)
{
    for (int i = 0; error == MPI_ERR_IN_STATUS && i < transport->n_requests; i++)
        if (transport->statuses[i].MPI_ERROR != MPI_SUCCESS && transport->statuses[i].MPI_ERROR != MPI_ERR_PENDING)
            error = transport->statuses[i].MPI_ERROR;
    return zero_mpi_fail(error, "MPI_Testall");
}

static zero_status_t wait_for_peers(zero_comm_t *comm, size_t n_bytes)
{
    mpi_transport_t *transport = comm->transport;
    const int64_t start = zero_now_ns(), poll_ns = POLL_NS + POLL_NS_PER_BYTE * (int64_t)n_bytes;
    const int64_t announce_after_ns =
        ANNOUNCE_AFTER_NS < comm->timeout_ns / 2 ? ANNOUNCE_AFTER_NS : comm->timeout_ns / 2;
    int64_t sleep_ns = 20000;
    bool announced = false;
    for (;;) {
        int done = 0;
        int error = MPI_Testall(transport->n_requests, transport->requests, &done, transport->statuses);
        if (error != MPI_SUCCESS)
            return message_failed(transport, error);
        if (done)
            return ZERO_OK;
        int64_t waited = zero_now_ns() - start;
        if (waited < poll_ns && waited < announce_after_ns) {
            sched_yield();
            continue;
        }
        if (waited > announce_after_ns) {
            if (!announced)
                ZERO_TRY(announce_progress(comm));
            announced = true;
            ZERO_TRY(receive_progress(transport));
            ZERO_TRY(compare_calls(comm));
        }
        if (waited > comm->timeout_ns)
            return timed_out(comm);
        nanosleep(&(struct timespec){.tv_nsec = sleep_ns}, NULL);
        sleep_ns = sleep_ns < MAX_SLEEP_NS / 2 ? 2 * sleep_ns : MAX_SLEEP_NS;
    }
}

/* ---- Counts beyond int ---- */

/* A number of bytes as MPI counts them: `count` elements of `type`. */
typedef struct message {
    int count;
    MPI_Datatype type;
    bool owns_type;
} message_t;

static zero_status_t message_create(size_t n_bytes, message_t *message)
{
    if (n_bytes <= INT_MAX) {
        *message = (message_t){.count = (int)n_bytes, .type = MPI_BYTE};
        return ZERO_OK;
    }
    size_t n_blocks = n_bytes / BLOCK_BYTES, n_rest = n_bytes % BLOCK_BYTES;
    if (n_blocks > INT_MAX)
        return zero_fail(ZERO_ERROR_OVERFLOW, "a message of %zu bytes", n_bytes);
    MPI_Datatype block, blocks, type;
    ZERO_TRY_MPI(MPI_Type_contiguous(BLOCK_BYTES, MPI_BYTE, &block));
    ZERO_TRY_MPI(MPI_Type_contiguous((int)n_blocks, block, &blocks));
    ZERO_TRY_MPI(MPI_Type_create_struct(2, (int[]){1, (int)n_rest}, (MPI_Aint[]){0, (MPI_Aint)(n_blocks * BLOCK_BYTES)},
                                        (MPI_Datatype[]){blocks, MPI_BYTE}, &type));
    ZERO_TRY_MPI(MPI_Type_commit(&type));
    ZERO_TRY_MPI(MPI_Type_free(&blocks));
    ZERO_TRY_MPI(MPI_Type_free(&block));
    *message = (message_t){.count = 1, .type = type, .owns_type = true};
    return ZERO_OK;
}

static void message_destroy(message_t *message)
{
    if (message->owns_type)
        MPI_Type_free(&message->type);
}

/* ---- A collective's messages ---- */

/* Returns the tag of the current collective; see the top of this file. */

static int tag_of(const zero_comm_t *comm)
{
    const mpi_transport_t *transport = comm->transport;
    const progress_t *own = &transport->own;
    uint64_t hash = zero_call_hash(&own->recent[own->n_collectives % N_RECENT]) ^ own->n_collectives;
    return PROGRESS_TAG + 1 + (int)(hash % (uint64_t)(transport->tag_bound - PROGRESS_TAG));
}

/* Begins a collective in which n_bytes come from each rank. */
static zero_status_t begin(zero_comm_t *comm, const char *what, size_t n_bytes, int root)
{
    mpi_transport_t *transport = comm->transport;
    progress_t *own = &transport->own;
    if (comm->failed)
        return zero_fail(ZERO_ERROR_COMM, "%s: an earlier operation of this communicator has failed", what);
    own->n_collectives++;
    own->recent[own->n_collectives % N_RECENT] = zero_comm_call(comm, what, n_bytes, root);
    transport->tag = tag_of(comm);
    transport->n_requests = 0;
    return ZERO_OK;
}

static zero_status_t send_to(mpi_transport_t *transport, int rank, const void *data, const message_t *message)
{
    ZERO_TRY_MPI(MPI_Isend(data, message->count, message->type, rank, transport->tag, transport->mpi,
                           &transport->requests[transport->n_requests]));
    transport->n_requests++;
    return ZERO_OK;
}

static zero_status_t receive_from(mpi_transport_t *transport, int rank, void *data, const message_t *message)
{
    ZERO_TRY_MPI(MPI_Irecv(data, message->count, message->type, rank, transport->tag, transport->mpi,
                           &transport->requests[transport->n_requests]));
    transport->n_requests++;
    return ZERO_OK;
}

/* Sends n_bytes at src + s * src_stride to every other of `ranks`, where s is that rank's slice, and receives as many
 * from the i-th of them at dst + i * n_bytes. Each rank begins with another peer, so that they do not all send to the
 * same one. */
static zero_status_t exchange_messages(zero_comm_t *comm, zero_ranks_t ranks, int group, const char *src,
                                       size_t src_stride, char *dst, size_t n_bytes, const message_t *message)
{
    mpi_transport_t *transport = comm->transport;
    const int me = zero_ranks_index(ranks, comm->rank);
    for (int i = 1; i < ranks.n; i++) {
        int from = (me + ranks.n - i) % ranks.n;
        ZERO_TRY(receive_from(transport, zero_ranks_at(ranks, from), dst + (size_t)from * n_bytes, message));
    }
    for (int i = 1; i < ranks.n; i++) {
        int rank = zero_ranks_at(ranks, (me + i) % ranks.n);
        size_t slice = (size_t)zero_comm_slice_of(rank, comm->size, group);
        ZERO_TRY(send_to(transport, rank, src + slice * src_stride, message));
    }
    return wait_for_peers(comm, n_bytes);
}

static zero_status_t broadcast_messages(zero_comm_t *comm, void *data, size_t n_bytes, int root,
                                        const message_t *message)
{
    mpi_transport_t *transport = comm->transport;
    if (comm->rank != root)
        ZERO_TRY(receive_from(transport, root, data, message));
    for (int i = 1; i < comm->size && comm->rank == root; i++)
        ZERO_TRY(send_to(transport, (root + i) % comm->size, data, message));
    return wait_for_peers(comm, n_bytes);
}

/* ---- Operations ---- */

static zero_status_t finish(zero_comm_t *comm, message_t *message, zero_status_t status)
{
    message_destroy(message);
    comm->failed |= status != ZERO_OK;
    return status;
}

static zero_status_t gather(zero_comm_t *comm, zero_ranks_t ranks, const void *mine, size_t n_bytes, void *all,
                            const char *what)
{
    message_t message;
    char *own_slice = (char *)all + (size_t)zero_ranks_index(ranks, comm->rank) * n_bytes;
    ZERO_TRY(begin(comm, what, n_bytes, 0));
    ZERO_TRY(message_create(n_bytes, &message));
    if (mine != own_slice && n_bytes > 0)
        memcpy(own_slice, mine, n_bytes);
    return finish(comm, &message, exchange_messages(comm, ranks, comm->size, own_slice, 0, all, n_bytes, &message));
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
    message_t message;
    for (int rank = 0; rank < comm->size; rank++)
        slices[rank] = (char *)staging + (size_t)rank * n_bytes;
    /* The rank's own slice stays in the window. */
    slices[comm->rank] = src + (size_t)zero_comm_slice_of(comm->rank, comm->size, group) * src_stride;
    if (comm->size == 1) /* no staging is planned for it */
        return ZERO_OK;
    ZERO_TRY(begin(comm, "gradient all-to-all", n_bytes, 0));
    ZERO_TRY(message_create(n_bytes, &message));
    return finish(comm, &message,
                  exchange_messages(comm, zero_comm_all(comm), group, src, src_stride, staging, n_bytes, &message));
}

static size_t mpi_staging_bytes(int size, size_t n_bytes)
{
    return zero_comm_staging_bytes(size, n_bytes);
}

static zero_status_t mpi_host_all_gather(zero_comm_t *comm, const void *mine, size_t n_bytes, void *all)
{
    return gather(comm, zero_comm_all(comm), mine, n_bytes, all, "host all-gather");
}

static zero_status_t mpi_host_broadcast(zero_comm_t *comm, void *data, size_t n_bytes, int root)
{
    message_t message;
    ZERO_TRY(begin(comm, "broadcast", n_bytes, root));
    ZERO_TRY(message_create(n_bytes, &message));
    return finish(comm, &message, broadcast_messages(comm, data, n_bytes, root, &message));
}

/* Waits before it ends the job, because Open MPI 5 then loses lines that are still in mpirun's pipes. Another rank may
 * have just written there why the job ends. */
static void mpi_abort(zero_comm_t *comm, int exit_code)
{
    mpi_transport_t *transport = comm->transport;
    nanosleep(&(struct timespec){.tv_nsec = LAST_LINES_NS}, NULL);
    MPI_Abort(transport->mpi, exit_code != 0 ? exit_code : 1);
}

static void transport_free(mpi_transport_t *transport)
{
    free(transport->peers);
    free(transport->requests);
    free(transport->statuses);
    free(transport);
}

static void mpi_destroy(zero_comm_t *comm)
{
    mpi_transport_t *transport = comm->transport;
    char nothing;
    if (!comm->failed)
        gather(comm, zero_comm_all(comm), &nothing, 0, &nothing, "close");
    if (comm->failed)
        return;                                   /* unfinished requests may still use the communicator and `peers` */
    for (int rank = 0; rank < comm->size; rank++) /* messages this small are sent without the receiver's help */
        MPI_Wait(&transport->peers[rank].request, MPI_STATUS_IGNORE);
    MPI_Comm_free(&transport->mpi);
    transport_free(transport);
    comm->transport = NULL;
}

static const zero_comm_ops_t mpi_ops = {
    .name = "mpi",
    .blocks = true,
    .window_create = zero_private_window_create,
    .window_destroy = zero_private_window_destroy,
    .fence = zero_private_window_fence,
    .all_gather = mpi_all_gather,
    .all_to_all = mpi_all_to_all,
    .staging_bytes = mpi_staging_bytes,
    .host_all_gather = mpi_host_all_gather,
    .host_broadcast = mpi_host_broadcast,
    .check_peers = mpi_check_peers,
    .abort = mpi_abort,
    .destroy = mpi_destroy,
};

static zero_status_t open_communicator(mpi_transport_t *transport, MPI_Comm mpi, int64_t timeout_ns)
{
    int *bound = NULL, found = 0;
    MPI_Request request;
    ZERO_TRY_MPI(MPI_Comm_idup(mpi, &transport->mpi, &request));
    zero_status_t status = zero_mpi_await(&request, timeout_ns);
    if (status == ZERO_ERROR_TIMEOUT)
        return zero_fail(status,
                         "MPI_Comm_idup did not end within %g s (ZERO_TIMEOUT_S): a rank stands still, or the "
                         "network between hosts",
                         (double)timeout_ns * 1e-9);
    ZERO_TRY(status);
    ZERO_TRY_MPI(MPI_Comm_set_errhandler(transport->mpi, MPI_ERRORS_RETURN));
    ZERO_TRY_MPI(MPI_Comm_get_attr(transport->mpi, MPI_TAG_UB, &bound, &found));
    transport->tag_bound = found ? *bound : MIN_TAG_BOUND;
    return ZERO_OK;
}

zero_status_t zero_comm_mpi_create(zero_comm_t *comm, const void *mpi_comm)
{
    zero_status_t status = ZERO_OK;
    const size_t size = (size_t)comm->size;
    mpi_transport_t *transport = calloc(1, sizeof *transport);
    if (!transport)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for a communicator of %d ranks", comm->size);
    transport->peers = calloc(size, sizeof *transport->peers);
    transport->requests = calloc(2 * size, sizeof *transport->requests);
    transport->statuses = calloc(2 * size, sizeof *transport->statuses);
    if (!transport->peers || !transport->requests || !transport->statuses)
        status = zero_fail(ZERO_ERROR_MEMORY, "no memory for a communicator of %d ranks", comm->size);
    for (int rank = 0; rank < comm->size && status == ZERO_OK; rank++)
        transport->peers[rank].request = MPI_REQUEST_NULL;
    if (status == ZERO_OK)
        status = open_communicator(transport, *(const MPI_Comm *)mpi_comm, comm->timeout_ns);
    if (status == ZERO_ERROR_TIMEOUT)
        return status; /* MPI may still write to it */
    if (status != ZERO_OK) {
        transport_free(transport);
        return status;
    }
    comm->ops = &mpi_ops;
    comm->transport = transport;
    return ZERO_OK;
}
