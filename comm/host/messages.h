/* messages.h - messages between the ranks of an MPI communicator, of which the transports mpi and hierarchical make
 * their collectives.
 *
 * A collective begins, queues its sends and receives, and waits for them. All ranks make the same collectives in the
 * same order, also those in which a rank sends and receives nothing. A message's tag is a hash of the call that the
 * sender is in (call.h), sizes included, and of the number of collectives before it. So only ranks in the same call
 * receive each other's messages, no message is truncated or mistaken for another, and the check costs nothing. Ranks in
 * different calls wait.
 *
 * All messages are nonblocking and polled, so that different calls, or a rank that never comes, give an error that
 * names the ranks instead of a hang (progress.h).
 */
#ifndef ZERO_MESSAGES_H
#define ZERO_MESSAGES_H

#include "comm/comm.h"

typedef struct zero_messages zero_messages_t;

/* Opens a duplicate of *mpi_comm, an MPI_Comm, as comm->transport. */
zero_status_t zero_messages_open(zero_comm_t *comm, const void *mpi_comm);
/* Frees it. No message may be under way. */
void zero_messages_close(zero_comm_t *comm);

/* Begins a collective in which n_bytes come from each rank. */
zero_status_t zero_messages_begin(zero_comm_t *comm, const char *what, size_t n_bytes, int root);
/* Queue a message. Data must stay as they are, and be left alone, until the wait is over. */
zero_status_t zero_messages_send(zero_comm_t *comm, int rank, const void *data, size_t n_bytes);
zero_status_t zero_messages_receive(zero_comm_t *comm, int rank, void *data, size_t n_bytes);
/* Waits until all of the collective's messages have been sent and received. n_bytes: the largest of them. A failure, or
 * `queued`, one of the calls above, sets comm->failed. */
zero_status_t zero_messages_wait(zero_comm_t *comm, zero_status_t queued, size_t n_bytes);

zero_status_t zero_messages_check_peers(zero_comm_t *comm, const char *waiting_in, int64_t waited_ns);
void zero_messages_abort(zero_comm_t *comm, int exit_code);

#endif
