/* mpi_status.h - the one way in which an MPI error code becomes a status, and how MPI's own collectives are waited for.
 */
#ifndef ZERO_MPI_STATUS_H
#define ZERO_MPI_STATUS_H

#include <mpi.h>

#include "zero.h"

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

#endif
