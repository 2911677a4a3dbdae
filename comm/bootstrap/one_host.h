/* one_host.h - keeps a job whose ranks are all on one host off the network.
 *
 * Open MPI and NCCL open sockets on the host's network interfaces for any job, because a peer could be elsewhere. If
 * none is, loopback is enough. Both libraries read their settings from the environment, so these functions set them
 * there, unless the user has chosen otherwise.
 */
#ifndef ZERO_ONE_HOST_H
#define ZERO_ONE_HOST_H

#include <stdbool.h>

/* Returns true if mpirun says that all ranks are on this host. Slurm's srun does not say, so its jobs are left alone.
 */
bool zero_one_host_is_launched(void);

/* Restricts Open MPI to shared memory if mpirun says that all ranks are on this host. Call it before MPI_Init. */
void zero_one_host_restrict_mpi(void);

/* Makes NCCL bootstrap over loopback. Call it only if all ranks are on this host, and before the process's first call
 * of NCCL. */
void zero_one_host_restrict_nccl(void);

#endif
