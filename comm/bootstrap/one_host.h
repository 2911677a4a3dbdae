/* one_host.h - keeps a job whose ranks are all on one host off the network.
 *
 * Open MPI and NCCL open sockets on the host's network interfaces for any job, because a peer could be elsewhere. When
 * none is, nothing beyond loopback needs to listen. Both libraries read their settings from the process's environment,
 * so they are set there, and only if the user has not chosen otherwise.
 */
#ifndef ZERO_ONE_HOST_H
#define ZERO_ONE_HOST_H

/* Restricts Open MPI to shared memory if mpirun says that all ranks are on this host. Takes effect before MPI_Init. */
void zero_one_host_restrict_mpi(void);

/* Lets NCCL bootstrap over loopback. For callers that know that all ranks are on this host; takes effect before the
 * process's first call of NCCL. */
void zero_one_host_restrict_nccl(void);

#endif
