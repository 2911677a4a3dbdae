/* roll_call.h - checks that all ranks have come, before the first MPI call that would wait for them forever, and finds
 * out which of them are on one host. */
#ifndef ZERO_ROLL_CALL_H
#define ZERO_ROLL_CALL_H

#include <mpi.h>
#include <pthread.h>

#include "comm/comm.h"
#include "zero.h"

/* Returns when every rank of `mpi` has come here with the same kind of communicator in mind. Fails with
 * ZERO_ERROR_TIMEOUT after comm->timeout_ns and logs which ranks are missing, or with ZERO_ERROR_MISMATCH if the kinds
 * differ. MPI must be running, and comm's rank, size and kind be known. Sets comm's hosts, local rank and local size.
 */
zero_status_t zero_roll_call(zero_comm_t *comm, MPI_Comm mpi);

/* ---- start watch ---- */
/* Warns if MPI's start takes long. MPI_Init_thread returns only when every rank has called it and
 * cannot be interrupted, so the watch can do no more than log a line with the ranks of this host that are missing, and
 * call the program's function (zero_comm_on_late_start). */

typedef struct zero_start_watch {
    int64_t timeout_ns;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool runs, is_over;
} zero_start_watch_t;

/* Starts a thread that does so unless zero_start_watch_end is called within timeout_ns. If no thread can be
 * started, nothing is done. */
void zero_start_watch_begin(zero_start_watch_t *watch, int64_t timeout_ns);
void zero_start_watch_end(zero_start_watch_t *watch);

#endif
