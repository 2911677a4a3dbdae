/* mpi.c - the transport of messages: MPI collectives over a communicator of our own, whatever the topology.
 *
 * Windows are private memory and fence does nothing: a collective is what orders its reads after its peers' writes.
 *
 * Every collective is started nonblocking and then polled, so that a rank that never comes is an error with a name and
 * not a hang. Nothing in MPI tells who is missing; so a rank that has waited for TELL_AFTER_NS tells each peer which
 * collective it has come to (collectives are numbered alike on all ranks), and at the deadline those who were not heard
 * of are named. Nothing is sent while all goes well.
 *
 * Closing is a collective too, on a communicator of its own: its messages could not be told from those of a gather that
 * other ranks are in. MPI_Finalize comes only after it, for while one rank waits there and others end in failure, the
 * mpirun of Open MPI 4.1 with PMIx 4.2 has been seen to hang or crash instead of ending the job.
 */
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/comm.h"
#include "comm/deadline.h"
#include "comm/mpi_status.h"
#include "comm/private_window.h"
#include "zero/log.h"

/* Polls without sleeps for so long, and then between sleeps. MPI moves large messages only inside its calls, a fragment
 * or two in each where it cannot read a peer's memory (in containers, mostly): slept through, they took 6 to 15
 * times as long. So polling goes on for as long as a slow network takes, 50 MB/s. */
#define POLL_NS 200000
#define POLL_NS_PER_BYTE 20
#define MAX_SLEEP_NS 500000
#define TELL_AFTER_NS 1000000000
#define LAST_WORDS_NS 200000000 /* mpirun reads its pipes within milliseconds, when it gets a core */
#define ARRIVED_TAG 1
#define CLOSING UINT64_MAX    /* the number of the last collective */
#define BLOCK_BYTES (1 << 20) /* of which counts beyond int are made */

typedef struct arrival {
    uint64_t told; /* the collective we told this peer of; MPI may read it while `request` is active */
    MPI_Request request;
    uint64_t heard; /* the latest collective this peer told us of */
} arrival_t;

typedef struct mpi_transport {
    MPI_Comm mpi, closing;
    uint64_t n_collectives; /* started so far: the number of the current one */
    arrival_t *arrivals;    /* [size] */
} mpi_transport_t;

zero_status_t zero_mpi_fail(int error, const char *call)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(error, text, &length);
    return zero_fail(ZERO_ERROR_COMM, "%.*s: %s", (int)strcspn(call, "("), call, text);
}

/* ---- Waiting ---- */

static zero_status_t tell_arrival(zero_comm_t *comm)
{
    mpi_transport_t *transport = comm->transport;
    for (int rank = 0; rank < comm->size; rank++) {
        arrival_t *arrival = &transport->arrivals[rank];
        int sent = 1;
        ZERO_TRY_MPI(MPI_Test(&arrival->request, &sent, MPI_STATUS_IGNORE));
        if (rank == comm->rank || !sent)
            continue;
        arrival->told = transport->n_collectives;
        ZERO_TRY_MPI(MPI_Isend(&arrival->told, 1, MPI_UINT64_T, rank, ARRIVED_TAG, transport->mpi, &arrival->request));
    }
    return ZERO_OK;
}

static zero_status_t hear_arrivals(mpi_transport_t *transport)
{
    for (;;) {
        int pending = 0;
        MPI_Status from;
        uint64_t number;
        ZERO_TRY_MPI(MPI_Iprobe(MPI_ANY_SOURCE, ARRIVED_TAG, transport->mpi, &pending, &from));
        if (!pending)
            return ZERO_OK;
        ZERO_TRY_MPI(MPI_Recv(&number, 1, MPI_UINT64_T, from.MPI_SOURCE, ARRIVED_TAG, transport->mpi, &from));
        transport->arrivals[from.MPI_SOURCE].heard = number;
    }
}

/* A rank that closes comes to nothing else anymore. */
static zero_status_t check_closing(const zero_comm_t *comm, const char *what)
{
    const mpi_transport_t *transport = comm->transport;
    for (int rank = 0; rank < comm->size && transport->n_collectives != CLOSING; rank++)
        if (transport->arrivals[rank].heard == CLOSING)
            return zero_fail(ZERO_ERROR_MISMATCH, "ranks call different things: rank %d %s, rank %d close", comm->rank,
                             what, rank);
    return ZERO_OK;
}

static zero_status_t timed_out(const zero_comm_t *comm, const char *what)
{
    const mpi_transport_t *transport = comm->transport;
    char missing[256] = "";
    size_t length = 0;
    for (int rank = 0; rank < comm->size; rank++)
        if (rank != comm->rank && transport->arrivals[rank].heard < transport->n_collectives &&
            length < sizeof(missing) - 16)
            length += (size_t)snprintf(missing + length, sizeof(missing) - length, "%s%d", length ? ", " : "", rank);
    return zero_fail(ZERO_ERROR_TIMEOUT, "%s did not end within %g s (ZERO_TIMEOUT_S): %s%s", what,
                     (double)comm->timeout_ns * 1e-9, length ? "not heard of: rank " : "all ranks have come to it",
                     missing);
}

static zero_status_t wait_for_peers(zero_comm_t *comm, MPI_Request *request, size_t n_bytes, const char *what)
{
    const int64_t start = zero_now_ns(), poll_ns = POLL_NS + POLL_NS_PER_BYTE * (int64_t)n_bytes;
    const int64_t tell_after_ns = TELL_AFTER_NS < comm->timeout_ns / 2 ? TELL_AFTER_NS : comm->timeout_ns / 2;
    int64_t sleep_ns = 20000;
    bool told = false;
    for (;;) {
        int done = 0;
        ZERO_TRY_MPI(MPI_Test(request, &done, MPI_STATUS_IGNORE));
        if (done)
            return ZERO_OK;
        int64_t waited = zero_now_ns() - start;
        if (waited < poll_ns && waited < tell_after_ns) {
            sched_yield();
            continue;
        }
        if (waited > tell_after_ns) {
            if (!told)
                ZERO_TRY(tell_arrival(comm));
            told = true;
            ZERO_TRY(hear_arrivals(comm->transport));
            ZERO_TRY(check_closing(comm, what));
        }
        if (waited > comm->timeout_ns)
            return timed_out(comm, what);
        nanosleep(&(struct timespec){.tv_nsec = sleep_ns}, NULL);
        sleep_ns = sleep_ns < MAX_SLEEP_NS / 2 ? 2 * sleep_ns : MAX_SLEEP_NS;
    }
}

/* The second half of every collective; the first has given `error` and, if that is MPI_SUCCESS, started `request`.
 * n_bytes: that come from each rank. */
static zero_status_t finish(zero_comm_t *comm, int error, MPI_Request *request, size_t n_bytes, const char *what)
{
    zero_status_t status =
        error == MPI_SUCCESS ? wait_for_peers(comm, request, n_bytes, what) : zero_mpi_fail(error, what);
    comm->failed |= status != ZERO_OK;
    return status;
}

static zero_status_t begin(zero_comm_t *comm, const char *what)
{
    if (comm->failed)
        return zero_fail(ZERO_ERROR_COMM, "%s: an earlier operation of this communicator has failed", what);
    ((mpi_transport_t *)comm->transport)->n_collectives++;
    return ZERO_OK;
}

/* ---- Counts beyond int ---- */

/* Bytes as MPI counts them: `count` elements of `type`. */
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

/* The same bytes; but where MPI takes several such messages they are `stride` bytes apart. */
static zero_status_t strided_create(const message_t *message, size_t stride, message_t *strided)
{
    MPI_Datatype whole, type;
    ZERO_TRY_MPI(MPI_Type_contiguous(message->count, message->type, &whole));
    ZERO_TRY_MPI(MPI_Type_create_resized(whole, 0, (MPI_Aint)stride, &type));
    ZERO_TRY_MPI(MPI_Type_commit(&type));
    ZERO_TRY_MPI(MPI_Type_free(&whole));
    *strided = (message_t){.count = 1, .type = type, .owns_type = true};
    return ZERO_OK;
}

static void message_destroy(message_t *message)
{
    if (message->owns_type)
        MPI_Type_free(&message->type);
}

/* ---- Operations ---- */

static zero_status_t gather(zero_comm_t *comm, const void *mine, size_t n_bytes, void *all, const char *what)
{
    mpi_transport_t *transport = comm->transport;
    message_t message;
    MPI_Request request;
    const bool in_place = mine == (char *)all + (size_t)comm->rank * n_bytes;
    ZERO_TRY(begin(comm, what));
    ZERO_TRY(message_create(n_bytes, &message));
    int error = MPI_Iallgather(in_place ? MPI_IN_PLACE : mine, message.count, message.type, all, message.count,
                               message.type, transport->mpi, &request);
    zero_status_t status = finish(comm, error, &request, n_bytes, what);
    message_destroy(&message);
    return status;
}

static zero_status_t mpi_all_gather(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window, size_t src_offset,
                                    size_t src_stride, void *dst, size_t n_bytes, zero_stream_t stream)
{
    (void)lane, (void)stream;
    const char *mine = (const char *)window->local + src_offset + (size_t)comm->rank * src_stride;
    return gather(comm, mine, n_bytes, dst, "all-gather");
}

static zero_status_t mpi_exchange(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window, size_t src_offset,
                                  size_t src_stride, size_t n_bytes, void *staging, const void **slices,
                                  zero_stream_t stream)
{
    (void)lane, (void)stream;
    mpi_transport_t *transport = comm->transport;
    const char *mine = (const char *)window->local + src_offset;
    if (comm->size == 1) { /* no staging is planned for it */
        slices[0] = mine;
        return ZERO_OK;
    }
    message_t sent, received;
    MPI_Request request;
    ZERO_TRY(begin(comm, "gradient exchange"));
    ZERO_TRY(message_create(n_bytes, &received));
    zero_status_t status = strided_create(&received, src_stride, &sent);
    if (status == ZERO_OK) {
        int error = MPI_Ialltoall(mine, sent.count, sent.type, staging, received.count, received.type, transport->mpi,
                                  &request);
        status = finish(comm, error, &request, n_bytes, "gradient exchange");
        message_destroy(&sent);
    }
    message_destroy(&received);
    if (status == ZERO_OK)
        for (int rank = 0; rank < comm->size; rank++)
            slices[rank] = (const char *)staging + (size_t)rank * n_bytes;
    return status;
}

static size_t mpi_staging_bytes(int size, size_t n_bytes)
{
    return zero_comm_staging_bytes(ZERO_COMM_MPI, size, n_bytes);
}

static zero_status_t mpi_host_all_gather(zero_comm_t *comm, const void *mine, size_t n_bytes, void *all)
{
    return gather(comm, mine, n_bytes, all, "host all-gather");
}

static zero_status_t mpi_host_broadcast(zero_comm_t *comm, void *data, size_t n_bytes, int root)
{
    mpi_transport_t *transport = comm->transport;
    message_t message;
    MPI_Request request;
    ZERO_TRY(begin(comm, "broadcast"));
    ZERO_TRY(message_create(n_bytes, &message));
    int error = MPI_Ibcast(data, message.count, message.type, root, transport->mpi, &request);
    zero_status_t status = finish(comm, error, &request, n_bytes, "broadcast");
    message_destroy(&message);
    return status;
}

/* Lines on their way through mpirun's pipes are lost when Open MPI 5 ends the job: the reason of this very end among
 * them, which another rank may have just written. */
static void mpi_abort(zero_comm_t *comm, int exit_code)
{
    mpi_transport_t *transport = comm->transport;
    nanosleep(&(struct timespec){.tv_nsec = LAST_WORDS_NS}, NULL);
    MPI_Abort(transport->mpi, exit_code != 0 ? exit_code : 1);
}

static void close_with_peers(zero_comm_t *comm)
{
    mpi_transport_t *transport = comm->transport;
    MPI_Request request;
    transport->n_collectives = CLOSING;
    int error = MPI_Ibarrier(transport->closing, &request);
    finish(comm, error, &request, 0, "close");
}

static void mpi_destroy(zero_comm_t *comm)
{
    mpi_transport_t *transport = comm->transport;
    if (!comm->failed)
        close_with_peers(comm);
    if (comm->failed)
        return; /* requests that never ended may still use the communicator and the arrivals */
    for (int rank = 0; rank < comm->size; rank++)
        MPI_Wait(&transport->arrivals[rank].request, MPI_STATUS_IGNORE); /* 8 bytes leave without a receiver's help */
    MPI_Comm_free(&transport->closing);
    MPI_Comm_free(&transport->mpi);
    free(transport->arrivals);
    free(transport);
    comm->transport = NULL;
}

static const zero_comm_ops_t mpi_ops = {
    .name = "mpi",
    .blocks = true,
    .window_create = zero_private_window_create,
    .window_destroy = zero_private_window_destroy,
    .fence = zero_private_window_fence,
    .all_gather = mpi_all_gather,
    .exchange = mpi_exchange,
    .staging_bytes = mpi_staging_bytes,
    .host_all_gather = mpi_host_all_gather,
    .host_broadcast = mpi_host_broadcast,
    .abort = mpi_abort,
    .destroy = mpi_destroy,
};

static zero_status_t open_communicator(mpi_transport_t *transport)
{
    ZERO_TRY_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &transport->mpi));
    ZERO_TRY_MPI(MPI_Comm_set_errhandler(transport->mpi, MPI_ERRORS_RETURN));
    ZERO_TRY_MPI(MPI_Comm_dup(transport->mpi, &transport->closing));
    return ZERO_OK;
}

zero_status_t zero_comm_mpi_create(zero_comm_t *comm)
{
    zero_status_t status;
    mpi_transport_t *transport = calloc(1, sizeof(*transport));
    arrival_t *arrivals = calloc((size_t)comm->size, sizeof(*arrivals));
    if (!transport || !arrivals) {
        status = zero_fail(ZERO_ERROR_MEMORY, "no memory for a communicator of %d ranks", comm->size);
        goto fail;
    }
    for (int rank = 0; rank < comm->size; rank++)
        arrivals[rank].request = MPI_REQUEST_NULL;
    transport->arrivals = arrivals;
    ZERO_TRY_GOTO(open_communicator(transport), fail);
    comm->ops = &mpi_ops;
    comm->transport = transport;
    return ZERO_OK;

fail:
    free(arrivals);
    free(transport);
    return status;
}
