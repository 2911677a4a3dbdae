/* messages.c - see messages.h. */
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/system.h"
#include "comm/host/messages.h"
#include "comm/host/mpi.h"
#include "comm/host/progress.h"

/* How long to poll before sleeping between polls. MPI moves large messages only inside its calls, and if it cannot read
 * a peer's memory (mostly in containers) only a fragment or two in each: with sleeps they took 6 to 15 times as long.
 * So polling lasts as long as the transfer would on a slow network, 50 MB/s. */
#define POLL_NS 200000
#define POLL_NS_PER_BYTE 20
#define MAX_SLEEP_NS 500000
#define LAST_LINES_NS 200000000 /* mpirun reads its pipes within milliseconds, if it gets a core */
#define CANCEL_NS 200000000
#define MIN_TAG_BOUND 32767   /* guaranteed by MPI */
#define BLOCK_BYTES (1 << 20) /* messages longer than INT_MAX are counted in blocks */

struct zero_messages {
    MPI_Comm mpi;
    int tag_bound; /* the largest tag */
    zero_collective_progress_t progress;
    /* The messages of the current collective. */
    int tag, n_requests;
    MPI_Request *requests; /* [2 * size] */
    MPI_Status *statuses;  /* [2 * size] */
    bool *receives;        /* [2 * size]: whether a request is a receive */
};

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
    const int64_t announce_after_ns = zero_progress_announce_after(comm);
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
                ZERO_TRY(zero_progress_announce(comm, &transport->progress));
                announced_at = waited;
            }
            ZERO_TRY(zero_progress_receive(&transport->progress));
            ZERO_TRY(zero_progress_compare(comm, &transport->progress));
        }
        if (waited > comm->timeout_ns)
            return zero_progress_timed_out(comm, &transport->progress);
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

/* Returns the tag of the current collective; see messages.h. */
static int tag_of(const zero_messages_t *transport)
{
    const zero_collective_progress_t *progress = &transport->progress;
    uint64_t hash = zero_call_hash(zero_progress_call(progress)) ^ progress->own.n_collectives;
    return ZERO_PROGRESS_TAG + 1 + (int)(hash % (uint64_t)(transport->tag_bound - ZERO_PROGRESS_TAG));
}

zero_status_t zero_messages_begin(zero_comm_t *comm, const char *what, size_t n_bytes, int root)
{
    zero_messages_t *transport = comm->transport;
    if (comm->failed)
        return zero_fail(ZERO_ERROR_COMM, "%s: an earlier operation of this communicator has failed", what);
    zero_progress_begin(&transport->progress, zero_comm_call(comm, what, n_bytes, root));
    transport->tag = tag_of(transport);
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
    transport->receives[transport->n_requests] = false;
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
    transport->receives[transport->n_requests] = true;
    message_destroy(&message);
    transport->n_requests += error == MPI_SUCCESS;
    return error == MPI_SUCCESS ? ZERO_OK : zero_mpi_fail(error, "MPI_Irecv");
}

/* After a failure the caller frees what it wanted to receive into, so nothing may arrive there any more. A receive
 * whose message has begun to come cannot be cancelled: it gets a moment to end. */
static void cancel_receives(zero_messages_t *transport)
{
    const int64_t end = zero_now_ns() + CANCEL_NS; /* of all together */
    for (int i = 0; i < transport->n_requests; i++)
        if (transport->receives[i] && transport->requests[i] != MPI_REQUEST_NULL &&
            MPI_Cancel(&transport->requests[i]) == MPI_SUCCESS)
            zero_mpi_await(&transport->requests[i], end - zero_now_ns());
    transport->n_requests = 0;
}

zero_status_t zero_messages_wait(zero_comm_t *comm, zero_status_t queued, size_t n_bytes)
{
    zero_status_t status = queued == ZERO_OK ? wait_for_peers(comm, n_bytes) : queued;
    if (status != ZERO_OK)
        cancel_receives(comm->transport);
    comm->failed |= status != ZERO_OK;
    return status;
}

zero_status_t zero_messages_check_peers(zero_comm_t *comm, const char *waiting_in, int64_t waited_ns)
{
    zero_messages_t *transport = comm->transport;
    return zero_progress_check(comm, &transport->progress, waiting_in, waited_ns);
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
    free(transport->progress.peers);
    free(transport->requests);
    free(transport->statuses);
    free(transport->receives);
    free(transport);
}

void zero_messages_close(zero_comm_t *comm)
{
    zero_messages_t *transport = comm->transport;
    zero_progress_drain(comm, &transport->progress);
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
    const size_t size = (size_t)comm->size;
    zero_messages_t *transport = calloc(1, sizeof *transport);
    if (!transport)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for a communicator of %d ranks", comm->size);
    zero_status_t status = zero_progress_create(comm, &transport->progress);
    transport->requests = calloc(2 * size, sizeof *transport->requests);
    transport->statuses = calloc(2 * size, sizeof *transport->statuses);
    transport->receives = calloc(2 * size, sizeof *transport->receives);
    if (status == ZERO_OK && (!transport->requests || !transport->statuses || !transport->receives))
        status = zero_fail(ZERO_ERROR_MEMORY, "no memory for a communicator of %d ranks", comm->size);
    if (status == ZERO_OK)
        status = open_communicator(transport, *(const MPI_Comm *)mpi_comm, comm->timeout_ns);
    if (status == ZERO_ERROR_TIMEOUT)
        return status; /* MPI may still write to it */
    if (status != ZERO_OK) {
        messages_free(transport);
        return status;
    }
    transport->progress.mpi = transport->mpi;
    comm->mpi = &transport->mpi;
    comm->transport = transport;
    return ZERO_OK;
}
