/* communicator.c - what every communicator knows and does without moving bytes, whatever its transport: its ranks, the
 * call of zero.h that this rank is in, and how much staging memory an all-to-all takes.
 *
 * A transport between GPUs has a host communicator, which keeps the call for both.
 */

#include "base/bytes.h"
#include "base/log.h"
#include "comm/comm.h"

int zero_comm_rank(const zero_comm_t *comm)
{
    return comm ? comm->rank : -1;
}

int zero_comm_size(const zero_comm_t *comm)
{
    return comm ? comm->size : 0;
}

int zero_comm_local_rank(const zero_comm_t *comm)
{
    return comm ? comm->local_rank : -1;
}

int zero_comm_local_size(const zero_comm_t *comm)
{
    return comm ? comm->local_size : 0;
}

int zero_comm_hosts(const zero_comm_t *comm, int *hosts)
{
    int n_hosts = 0;
    for (int rank = 0; comm && hosts && rank < comm->size; rank++) {
        int first = 0; /* rank of the same host */
        while (comm->hosts && first < rank && comm->hosts[first].id != comm->hosts[rank].id)
            first++;
        hosts[rank] = first < rank ? hosts[first] : n_hosts++;
    }
    return n_hosts;
}

const char *zero_comm_name(const zero_comm_t *comm)
{
    return comm ? comm->ops->name : "";
}

zero_comm_kind_t zero_comm_get_kind(const zero_comm_t *comm)
{
    return comm && comm->ops->staging_bytes(2, 1) > 0 ? ZERO_COMM_MPI : ZERO_COMM_AUTO;
}

/* ---- Which call a rank is in ---- */

void zero_comm_enter(zero_comm_t *comm, const zero_call_t *call, bool covers)
{
    zero_comm_t *host = comm->host ? comm->host : comm;
    host->call = *call;
    host->call_covers = covers;
    zero_log_set_rank(host->first_rank + host->rank);
}

zero_status_t zero_comm_leave(zero_comm_t *comm, zero_status_t status)
{
    zero_comm_enter(comm, &(zero_call_t){.name = ""}, false);
    return status;
}

zero_call_t zero_comm_call(const zero_comm_t *comm, const char *what, size_t n_bytes, int root)
{
    zero_call_t call = comm->host ? comm->host->call : comm->call;
    zero_call_set_text(call.what, sizeof call.what, what);
    call.n_bytes = n_bytes;
    call.root = root;
    return call;
}

void zero_comm_pair(zero_comm_t *comm, const char *what, size_t n_bytes)
{
    const zero_call_t call = zero_comm_call(comm, what, n_bytes, 0);
    comm->paired = zero_hash_fold(comm->paired, &call, sizeof call);
}

/* ---- Staging ---- */

size_t zero_comm_staging_bytes(int size, size_t n_bytes)
{
    return size > 1 ? (size_t)size * n_bytes : 0;
}
