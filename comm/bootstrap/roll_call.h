/* roll_call.h - whether all ranks have come, before the first call of MPI that waits for them without an end. */
#ifndef ZERO_ROLL_CALL_H
#define ZERO_ROLL_CALL_H

#include "comm/comm.h"

/* Returns when every rank has come here, with the same kind of communicator in mind. ZERO_ERROR_TIMEOUT after
 * comm->timeout_ns, with a line that names those who have not; ZERO_ERROR_MISMATCH. MPI runs; rank, size and kind are
 * known. */
zero_status_t zero_roll_call(const zero_comm_t *comm);

#endif
