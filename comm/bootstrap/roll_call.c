/* roll_call.c - see roll_call.h.
 *
 * Every rank sends a byte to every other in a collective that is polled. The byte of a rank that has not come stays 0.
 * The collective is on MPI_COMM_WORLD: collectives never match the program's own messages, not even wildcard receives.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/deadline.h"
#include "comm/host/mpi_status.h"
#include "comm/bootstrap/roll_call.h"
#include "base/log.h"

#define POLL_NS 200000

typedef struct roll_call {
    unsigned char mine;
    unsigned char of[]; /* [size] each rank's kind + 1; 0 if it has not come */
} roll_call_t;

static zero_status_t name_missing(const zero_comm_t *comm, const roll_call_t *calls)
{
    char missing[256] = "";
    size_t length = 0;
    for (int rank = 0; rank < comm->size; rank++)
        if (rank != comm->rank && calls->of[rank] == 0 && length < sizeof missing - 16)
            length += (size_t)snprintf(missing + length, sizeof missing - length, "%s%d", length ? ", " : "", rank);
    return zero_fail(ZERO_ERROR_TIMEOUT, "rank %s did not come to zero_comm_create within %g s (ZERO_TIMEOUT_S)",
                     missing, (double)comm->timeout_ns * 1e-9);
}

static zero_status_t compare_kinds(const zero_comm_t *comm, const roll_call_t *calls)
{
    static const char *const names[] = {[ZERO_COMM_AUTO] = "AUTO", [ZERO_COMM_MPI] = "MPI", [ZERO_COMM_NCCL] = "NCCL"};
    for (int rank = 1; rank < comm->size; rank++)
        if (calls->of[rank] != calls->of[0])
            return zero_fail_alike(ZERO_ERROR_MISMATCH,
                                   "ranks call different things: rank %d is in zero_comm_create(ZERO_COMM_%s), rank 0 "
                                   "is in zero_comm_create(ZERO_COMM_%s)",
                                   rank, names[calls->of[rank] - 1], names[calls->of[0] - 1]);
    return ZERO_OK;
}

static zero_status_t wait_for_all(const zero_comm_t *comm, const roll_call_t *calls, MPI_Request *request)
{
    const int64_t end = zero_now_ns() + comm->timeout_ns;
    for (int done = 0;;) {
        ZERO_TRY_MPI(MPI_Test(request, &done, MPI_STATUS_IGNORE));
        if (done)
            return compare_kinds(comm, calls);
        if (zero_now_ns() > end)
            return name_missing(comm, calls);
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    }
}

/* On failure `calls` is not freed, because MPI may still write to it. */
zero_status_t zero_roll_call(const zero_comm_t *comm)
{
    MPI_Request request;
    roll_call_t *calls = calloc(1, sizeof *calls + (size_t)comm->size);
    if (!calls)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for a communicator of %d ranks", comm->size);
    calls->mine = (unsigned char)(comm->kind + 1);
    calls->of[comm->rank] = calls->mine;
    ZERO_TRY_MPI(MPI_Iallgather(&calls->mine, 1, MPI_BYTE, calls->of, 1, MPI_BYTE, MPI_COMM_WORLD, &request));
    ZERO_TRY(wait_for_all(comm, calls, &request));
    free(calls);
    return ZERO_OK;
}
