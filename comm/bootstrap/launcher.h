/* launcher.h - what a launcher (mpirun, another PMI launcher, Slurm) says in the environment about this process, known
 * before MPI runs and without asking MPI. */
#ifndef ZERO_LAUNCHER_H
#define ZERO_LAUNCHER_H

#include <stdbool.h>

/* Returns the rank that a launcher gave this process; -1 without a launcher. */
int zero_launcher_rank(void);
/* Returns how many processes the launcher says it has started; 1 if it does not say. */
int zero_launcher_size(void);
/* Returns the variable that says so; "" if none does. */
const char *zero_launcher_size_variable(void);
/* The same among the launcher's processes on this host. Sets 0 and 1 if it does not say both. */
void zero_launcher_local(int *local_rank, int *local_size);

/* ---- one host ---- */
/* Keeps a job whose ranks are all on one host off the network.
 *
 * Open MPI and NCCL open sockets on the host's network interfaces for any job, because a peer could be elsewhere. If
 * none is, loopback is enough. Both libraries read their settings from the environment, so these functions set them
 * there, unless the user has chosen otherwise. */

/* Returns true if mpirun says that all ranks are on this host. Slurm's srun does not say, so its jobs are left alone.
 */
bool zero_one_host_is_launched(void);

/* Restricts Open MPI to shared memory if mpirun says that all ranks are on this host. Call it before MPI_Init. */
void zero_one_host_restrict_mpi(void);

/* Makes NCCL bootstrap over loopback. Call it only if all ranks are on this host, and before the process's first call
 * of NCCL. */
void zero_one_host_restrict_nccl(void);

#endif
