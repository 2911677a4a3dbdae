/* roll_call.c - see roll_call.h.
 *
 * Every rank sends a few words to every other in a collective that is polled. Those of a rank that has not come stay 0.
 * The collective is on the caller's communicator: collectives never match the program's own messages, not even wildcard
 * receives.
 */
#include <stdlib.h>

#include "comm/host/mpi_status.h"
#include "comm/bootstrap/roll_call.h"
#include "base/log.h"

typedef struct entry {
    uint64_t kind; /* of the rank's communicator, + 1; 0 if the rank has not come */
    zero_host_t host;
} entry_t;

typedef struct roll_call {
    entry_t mine;
    entry_t of[]; /* [size] */
} roll_call_t;

/* Between hosts a rank may well be there and only be out of reach. */
static zero_status_t name_missing(const zero_comm_t *comm, const roll_call_t *calls)
{
    char missing[256] = "";
    const char *all = getenv("OMPI_COMM_WORLD_SIZE"), *local = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    const bool one_host = all && local && atoi(all) == atoi(local);
    for (int rank = 0; rank < comm->size; rank++)
        if (rank != comm->rank && calls->of[rank].kind == 0)
            zero_hosts_list_rank(comm, rank, missing, sizeof missing);
    return zero_fail(ZERO_ERROR_TIMEOUT, "rank %s did not come to %s within %g s (ZERO_TIMEOUT_S)%s", missing,
                     comm->call.name, (double)comm->timeout_ns * 1e-9,
                     one_host ? ""
                              : "; if they run, MPI cannot reach them: name the network between the hosts with mpirun "
                                "--mca btl_tcp_if_include eth0, say");
}

static zero_status_t compare_kinds(const zero_comm_t *comm, const roll_call_t *calls)
{
    static const char *const names[] = {[ZERO_COMM_AUTO] = "AUTO", [ZERO_COMM_MPI] = "MPI", [ZERO_COMM_NCCL] = "NCCL"};
    for (int rank = 1; rank < comm->size; rank++)
        if (calls->of[rank].kind != calls->of[0].kind)
            return zero_fail_alike(ZERO_ERROR_MISMATCH,
                                   "ranks call different things: rank %d is in %s(ZERO_COMM_%s), rank 0 is in "
                                   "%s(ZERO_COMM_%s)",
                                   rank, comm->call.name, names[calls->of[rank].kind - 1], comm->call.name,
                                   names[calls->of[0].kind - 1]);
    return ZERO_OK;
}

static zero_status_t take_hosts(zero_comm_t *comm, const roll_call_t *calls)
{
    comm->hosts = calloc((size_t)comm->size, sizeof *comm->hosts);
    if (!comm->hosts)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for a communicator of %d ranks", comm->size);
    comm->local_rank = comm->local_size = 0;
    for (int rank = 0; rank < comm->size; rank++) {
        bool is_local = calls->of[rank].host.id == calls->mine.host.id;
        comm->hosts[rank] = calls->of[rank].host;
        comm->local_rank += is_local && rank < comm->rank;
        comm->local_size += is_local;
    }
    return ZERO_OK;
}

/* On failure `calls` is not freed, because MPI may still write to it. */
zero_status_t zero_roll_call(zero_comm_t *comm, MPI_Comm mpi)
{
    MPI_Request request;
    roll_call_t *calls = calloc(1, sizeof *calls + (size_t)comm->size * sizeof calls->of[0]);
    if (!calls)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for a communicator of %d ranks", comm->size);
    calls->mine.kind = (uint64_t)comm->kind + 1;
    zero_host_find(&calls->mine.host);
    calls->of[comm->rank] = calls->mine;
    ZERO_TRY_MPI(MPI_Iallgather(&calls->mine, (int)sizeof calls->mine, MPI_BYTE, calls->of, (int)sizeof calls->mine,
                                MPI_BYTE, mpi, &request));
    zero_status_t status = zero_mpi_await(&request, comm->timeout_ns);
    if (status == ZERO_ERROR_TIMEOUT)
        return name_missing(comm, calls);
    ZERO_TRY(status);
    ZERO_TRY(compare_kinds(comm, calls));
    status = take_hosts(comm, calls);
    free(calls);
    return status;
}
