/* mpi_status.h - MPI's error codes become a status here and nowhere else. */
#ifndef ZERO_MPI_STATUS_H
#define ZERO_MPI_STATUS_H

#include <mpi.h>

#include "zero.h"

/* Logs MPI's own text for `error` and the call it came from. Returns ZERO_ERROR_COMM. */
zero_status_t zero_mpi_fail(int error, const char *call);

#define ZERO_TRY_MPI(call)                                                                                             \
    do {                                                                                                               \
        int zero_try_error = (call);                                                                                   \
        if (zero_try_error != MPI_SUCCESS)                                                                             \
            return zero_mpi_fail(zero_try_error, #call);                                                               \
    } while (0)

#endif
