/* roll_call.h - checks that all ranks have come, before the first MPI call that would wait for them forever, and finds
 * out which of them are on one host. */
#ifndef ZERO_ROLL_CALL_H
#define ZERO_ROLL_CALL_H

#include <mpi.h>

#include "comm/comm.h"

/* Returns when every rank of `mpi` has come here with the same kind of communicator in mind. Fails with
 * ZERO_ERROR_TIMEOUT after comm->timeout_ns and logs which ranks are missing, or with ZERO_ERROR_MISMATCH if the kinds
 * differ. MPI must be running, and comm's rank, size and kind be known. Sets comm's hosts, local rank and local size.
 */
zero_status_t zero_roll_call(zero_comm_t *comm, MPI_Comm mpi);

#endif
