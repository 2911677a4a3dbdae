/* messages.c - see messages.h. */
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/deadline.h"
#include "base/log.h"
#include "comm/host/messages.h"
#include "comm/host/mpi_status.h"

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
    int64_t heard_ns;    /* when it last announced something */
} peer_t;

struct zero_messages {
    MPI_Comm mpi;
    int tag_bound; /* the largest tag */
    progress_t own;
    peer_t *peers;                       /* [size] */
    int64_t wait_began_ns, announced_ns; /* the current wait for the device, and the last announcement in it */
    /* The messages of the current collective. */
    int tag, n_requests;
    MPI_Request *requests; /* [2 * size] */
    MPI_Status *statuses;  /* [2 * size] */
};

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

/* Returns how long a rank waits before it announces what it waits in, and then again and again. */
static int64_t announce_after(const zero_comm_t *comm)
{
    return ANNOUNCE_AFTER_NS < comm->timeout_ns / 2 ? ANNOUNCE_AFTER_NS : comm->timeout_ns / 2;
}

static zero_status_t announce_progress(const zero_comm_t *comm)
{
    zero_messages_t *transport = comm->transport;
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

static zero_status_t receive_progress(zero_messages_t *transport)
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
        transport->peers[from.MPI_SOURCE].heard_ns = zero_now_ns();
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
    const zero_messages_t *transport = comm->transport;
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

/* Lists the ranks that have not come to the current collective: of all, or of those that have been silent. */
static void list_missing(const zero_comm_t *comm, bool only_silent, char *missing, size_t n_bytes)
{
    const zero_messages_t *transport = comm->transport;
    const int64_t since_ns = zero_now_ns() - 2 * announce_after(comm);
    for (int rank = 0; rank < comm->size; rank++) {
        const peer_t *peer = &transport->peers[rank];
        if (rank != comm->rank && peer->received.n_collectives < transport->own.n_collectives &&
            !(only_silent && peer->heard_ns > since_ns))
            zero_hosts_list_rank(comm, rank, missing, n_bytes);
    }
}

static zero_status_t timed_out(const zero_comm_t *comm)
{
    const zero_messages_t *transport = comm->transport;
    const uint64_t current = transport->own.n_collectives;
    char missing[512] = "", call[ZERO_CALL_TEXT_BYTES];
    list_missing(comm, true, missing, sizeof missing);
    if (!missing[0])
        list_missing(comm, false, missing, sizeof missing);
    return zero_fail(ZERO_ERROR_TIMEOUT, "%s did not end within %g s (ZERO_TIMEOUT_S): %s%s",
                     zero_call_text(&transport->own.recent[current % N_RECENT], call), (double)comm->timeout_ns * 1e-9,
                     missing[0] ? "not heard from: rank " : "all ranks have come to it", missing);
}

static zero_status_t name_silent_peers(const zero_comm_t *comm, const char *waiting_in)
{
    const zero_messages_t *transport = comm->transport;
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
zero_status_t zero_messages_check_peers(zero_comm_t *comm, const char *waiting_in, int64_t waited_ns)
{
    zero_messages_t *transport = comm->transport;
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
static zero_status_t message_failed(const zero_messages_t *transport, int error)
{
    for (int i = 0; error == MPI_ERR_IN_STATUS && i < transport->n_requests; i++)
        if (transport->statuses[i].MPI_ERROR != MPI_SUCCESS && transport->statuses[i].MPI_ERROR != MPI_ERR_PENDING)
            error = transport->statuses[i].MPI_ERROR;
    return zero_mpi_fail(error, "MPI_Testall");
}

static zero_status_t wait_for_peers(zero_comm_t *comm, size_t n_bytes)
{
    zero_messages_t *transport = comm->transport;
    const int64_t start = zero_now_ns(), poll_ns = POLL_NS + POLL_NS_PER_BYTE * (int64_t)n_bytes;
    const int64_t announce_after_ns = announce_after(comm);
    int64_t sleep_ns = 20000, announced_at = 0;
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
            if (waited - announced_at > announce_after_ns) {
                ZERO_TRY(announce_progress(comm));
                announced_at = waited;
            }
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
    const zero_messages_t *transport = comm->transport;
    const progress_t *own = &transport->own;
    uint64_t hash = zero_call_hash(&own->recent[own->n_collectives % N_RECENT]) ^ own->n_collectives;
    return PROGRESS_TAG + 1 + (int)(hash % (uint64_t)(transport->tag_bound - PROGRESS_TAG));
}

zero_status_t zero_messages_begin(zero_comm_t *comm, const char *what, size_t n_bytes, int root)
{
    zero_messages_t *transport = comm->transport;
    progress_t *own = &transport->own;
    if (comm->failed)
        return zero_fail(ZERO_ERROR_COMM, "%s: an earlier operation of this communicator has failed", what);
    own->n_collectives++;
    own->recent[own->n_collectives % N_RECENT] = zero_comm_call(comm, what, n_bytes, root);
    transport->tag = tag_of(comm);
    transport->n_requests = 0;
    return ZERO_OK;
}

zero_status_t zero_messages_send(zero_comm_t *comm, int rank, const void *data, size_t n_bytes)
{
    zero_messages_t *transport = comm->transport;
    message_t message;
    ZERO_TRY(message_create(n_bytes, &message));
    int error = MPI_Isend(data, message.count, message.type, rank, transport->tag, transport->mpi,
                          &transport->requests[transport->n_requests]);
    message_destroy(&message); /* MPI keeps it while it is in use */
    transport->n_requests += error == MPI_SUCCESS;
    return error == MPI_SUCCESS ? ZERO_OK : zero_mpi_fail(error, "MPI_Isend");
}

zero_status_t zero_messages_receive(zero_comm_t *comm, int rank, void *data, size_t n_bytes)
{
    zero_messages_t *transport = comm->transport;
    message_t message;
    ZERO_TRY(message_create(n_bytes, &message));
    int error = MPI_Irecv(data, message.count, message.type, rank, transport->tag, transport->mpi,
                          &transport->requests[transport->n_requests]);
    message_destroy(&message);
    transport->n_requests += error == MPI_SUCCESS;
    return error == MPI_SUCCESS ? ZERO_OK : zero_mpi_fail(error, "MPI_Irecv");
}

zero_status_t zero_messages_wait(zero_comm_t *comm, zero_status_t queued, size_t n_bytes)
{
    zero_status_t status = queued == ZERO_OK ? wait_for_peers(comm, n_bytes) : queued;
    comm->failed |= status != ZERO_OK;
    return status;
}

/* Waits before it ends the job, because Open MPI 5 then loses lines that are still in mpirun's pipes. Another rank may
 * have just written there why the job ends. */
void zero_messages_abort(zero_comm_t *comm, int exit_code)
{
    zero_messages_t *transport = comm->transport;
    nanosleep(&(struct timespec){.tv_nsec = LAST_LINES_NS}, NULL);
    MPI_Abort(transport->mpi, exit_code != 0 ? exit_code : 1);
}

/* ---- Beginning and end ---- */

static void messages_free(zero_messages_t *transport)
{
    free(transport->peers);
    free(transport->requests);
    free(transport->statuses);
    free(transport);
}

void zero_messages_close(zero_comm_t *comm)
{
    zero_messages_t *transport = comm->transport;
    for (int rank = 0; rank < comm->size; rank++) /* messages this small are sent without the receiver's help */
        MPI_Wait(&transport->peers[rank].request, MPI_STATUS_IGNORE);
    MPI_Comm_free(&transport->mpi);
    messages_free(transport);
    comm->transport = NULL;
}

static zero_status_t open_communicator(zero_messages_t *transport, MPI_Comm mpi, int64_t timeout_ns)
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

zero_status_t zero_messages_open(zero_comm_t *comm, const void *mpi_comm)
{
    zero_status_t status = ZERO_OK;
    const size_t size = (size_t)comm->size;
    zero_messages_t *transport = calloc(1, sizeof *transport);
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
        messages_free(transport);
        return status;
    }
    comm->transport = transport;
    return ZERO_OK;
}
