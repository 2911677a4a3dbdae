/* progress.c - see progress.h. */
#include "comm/host/progress.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/system.h"

#define ANNOUNCE_AFTER_NS 1000000000

/* ---- calls of MPI ---- */

#define POLL_NS 200000

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

/* ---- progress ---- */

zero_status_t zero_progress_create(const zero_comm_t *comm, zero_collective_progress_t *progress)
{
    zero_progress_peer_t *peers = calloc((size_t)comm->size, sizeof *peers);
    if (!peers)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for a communicator of %d ranks", comm->size);
    for (int rank = 0; rank < comm->size; rank++)
        peers[rank].request = MPI_REQUEST_NULL;
    *progress = (zero_collective_progress_t){.peers = peers};
    return ZERO_OK;
}

void zero_progress_drain(const zero_comm_t *comm, zero_collective_progress_t *progress)
{
    for (int rank = 0; rank < comm->size; rank++) /* messages this small are sent without the receiver's help */
        MPI_Wait(&progress->peers[rank].request, MPI_STATUS_IGNORE);
}

void zero_progress_begin(zero_collective_progress_t *progress, zero_call_t call)
{
    progress->own.n_collectives++;
    progress->own.recent[progress->own.n_collectives % ZERO_N_RECENT] = call;
}

const zero_call_t *zero_progress_call(const zero_collective_progress_t *progress)
{
    return &progress->own.recent[progress->own.n_collectives % ZERO_N_RECENT];
}

int64_t zero_progress_announce_after(const zero_comm_t *comm)
{
    return ANNOUNCE_AFTER_NS < comm->timeout_ns / 2 ? ANNOUNCE_AFTER_NS : comm->timeout_ns / 2;
}

zero_status_t zero_progress_announce(const zero_comm_t *comm, zero_collective_progress_t *progress)
{
    for (int rank = 0; rank < comm->size; rank++) {
        zero_progress_peer_t *peer = &progress->peers[rank];
        int is_free = 1;
        ZERO_TRY_MPI(MPI_Test(&peer->request, &is_free, MPI_STATUS_IGNORE));
        if (rank == comm->rank || !is_free)
            continue;
        peer->sent = progress->own;
        ZERO_TRY_MPI(MPI_Isend(&peer->sent, (int)sizeof peer->sent, MPI_BYTE, rank, ZERO_PROGRESS_TAG, progress->mpi,
                               &peer->request));
    }
    return ZERO_OK;
}

zero_status_t zero_progress_receive(zero_collective_progress_t *progress)
{
    for (;;) {
        int pending = 0;
        MPI_Status from;
        zero_announcement_t received;
        ZERO_TRY_MPI(MPI_Iprobe(MPI_ANY_SOURCE, ZERO_PROGRESS_TAG, progress->mpi, &pending, &from));
        if (!pending)
            return ZERO_OK;
        ZERO_TRY_MPI(MPI_Recv(&received, (int)sizeof received, MPI_BYTE, from.MPI_SOURCE, ZERO_PROGRESS_TAG,
                              progress->mpi, &from));
        progress->peers[from.MPI_SOURCE].received = received;
        progress->peers[from.MPI_SOURCE].is_heard = true;
        progress->peers[from.MPI_SOURCE].heard_ns = zero_now_ns();
    }
}

/* Returns the call that a rank was in in collective n; NULL if that is not known yet, or no longer. */
static const zero_call_t *call_in(const zero_announcement_t *from, uint64_t n)
{
    return n <= from->n_collectives && from->n_collectives - n < ZERO_N_RECENT ? &from->recent[n % ZERO_N_RECENT]
                                                                               : NULL;
}

/* Compares with each peer the calls in the latest collective to which both are known to have come. */
zero_status_t zero_progress_compare(const zero_comm_t *comm, const zero_collective_progress_t *progress)
{
    const zero_announcement_t *own = &progress->own;
    for (int rank = 0; rank < comm->size; rank++) {
        const zero_announcement_t *received = &progress->peers[rank].received;
        uint64_t n = received->n_collectives < own->n_collectives ? received->n_collectives : own->n_collectives;
        const zero_call_t *mine = call_in(own, n), *others = call_in(received, n);
        if (n > 0 && mine && others && memcmp(mine, others, sizeof *mine) != 0)
            return zero_call_mismatch(comm->first_rank + comm->rank, mine, comm->first_rank + rank, others);
    }
    return ZERO_OK;
}

/* Lists the ranks that have not come to the current collective: of all, or of those that have been silent. */
static void list_missing(const zero_comm_t *comm, const zero_collective_progress_t *progress, bool only_silent,
                         char *missing, size_t n_bytes)
{
    const int64_t since_ns = zero_now_ns() - 2 * zero_progress_announce_after(comm);
    for (int rank = 0; rank < comm->size; rank++) {
        const zero_progress_peer_t *peer = &progress->peers[rank];
        if (rank != comm->rank && peer->received.n_collectives < progress->own.n_collectives &&
            !(only_silent && peer->heard_ns > since_ns))
            zero_hosts_list_rank(comm, rank, missing, n_bytes);
    }
}

zero_status_t zero_progress_timed_out(const zero_comm_t *comm, const zero_collective_progress_t *progress)
{
    char missing[512] = "", call[ZERO_CALL_TEXT_BYTES];
    list_missing(comm, progress, true, missing, sizeof missing);
    if (!missing[0])
        list_missing(comm, progress, false, missing, sizeof missing);
    return zero_fail(ZERO_ERROR_TIMEOUT, "%s did not end within %g s (ZERO_TIMEOUT_S): %s%s",
                     zero_call_text(zero_progress_call(progress), call), (double)comm->timeout_ns * 1e-9,
                     missing[0] ? "not heard from: rank " : "all ranks have come to it", missing);
}

static zero_status_t name_silent_peers(const zero_comm_t *comm, const zero_collective_progress_t *progress,
                                       const char *waiting_in)
{
    char silent[512] = "";
    for (int rank = 0; rank < comm->size; rank++)
        if (rank != comm->rank && !progress->peers[rank].is_heard)
            zero_hosts_list_rank(comm, rank, silent, sizeof silent);
    if (!silent[0])
        return ZERO_OK;
    return zero_fail(ZERO_ERROR_TIMEOUT, "%s did not end within %g s (ZERO_TIMEOUT_S): not heard from: rank %s",
                     waiting_in, (double)comm->timeout_ns * 1e-9, silent);
}

zero_status_t zero_progress_check(const zero_comm_t *comm, zero_collective_progress_t *progress, const char *waiting_in,
                                  int64_t waited_ns)
{
    const int64_t now_ns = zero_now_ns();
    if (now_ns - waited_ns > progress->wait_began_ns + ANNOUNCE_AFTER_NS / 2) { /* a new wait */
        progress->wait_began_ns = now_ns - waited_ns;
        progress->announced_ns = 0;
        for (int rank = 0; rank < comm->size; rank++)
            progress->peers[rank].is_heard = false;
    }
    if (now_ns - progress->announced_ns >= ANNOUNCE_AFTER_NS) {
        progress->announced_ns = now_ns;
        ZERO_TRY(zero_progress_announce(comm, progress));
    }
    ZERO_TRY(zero_progress_receive(progress));
    return waited_ns > comm->timeout_ns ? name_silent_peers(comm, progress, waiting_in) : ZERO_OK;
}
