/* mpi.h - what the transports of messages have in common: small host data and the end. They are entries of
 * zero_comm_ops_t (comm.h), for a communicator whose transport is messages.h's. */
#ifndef ZERO_MPI_H
#define ZERO_MPI_H

#include <mpi.h>

#include "comm/comm.h"
#include "zero.h"

/* ---- mpi status ---- */
/* The one way in which an MPI error code becomes a status, and how MPI's own collectives are waited for. */

/* Logs the MPI call that failed with the text that MPI has for `error`. Returns ZERO_ERROR_COMM. */
zero_status_t zero_mpi_fail(int error, const char *call);

/* Waits for a nonblocking call of MPI to complete. Returns ZERO_ERROR_TIMEOUT, without a line, if it has not after
 * timeout_ns: MPI may then still use what was given to it. */
zero_status_t zero_mpi_await(MPI_Request *request, int64_t timeout_ns);

#define ZERO_TRY_MPI(call)                                                                                             \
    do {                                                                                                               \
        int zero_try_error = (call);                                                                                   \
        if (zero_try_error != MPI_SUCCESS)                                                                             \
            return zero_mpi_fail(zero_try_error, #call);                                                               \
    } while (0)

/* ---- mpi ---- */

size_t zero_mpi_staging_bytes(int size, size_t n_bytes);
zero_status_t zero_mpi_host_all_gather(zero_comm_t *comm, const void *mine, size_t n_bytes, void *all);
zero_status_t zero_mpi_host_broadcast(zero_comm_t *comm, void *data, size_t n_bytes, int root);
void zero_mpi_destroy(zero_comm_t *comm);

#endif
