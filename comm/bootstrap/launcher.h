/* launcher.h - what a launcher (mpirun, another PMI launcher, Slurm) says in the environment about this process, known
 * before MPI runs and without asking MPI. */
#ifndef ZERO_LAUNCHER_H
#define ZERO_LAUNCHER_H

/* Returns the rank that a launcher gave this process; -1 without a launcher. */
int zero_launcher_rank(void);
/* Returns how many processes the launcher says it has started; 1 if it does not say. */
int zero_launcher_size(void);
/* Returns the variable that says so; "" if none does. */
const char *zero_launcher_size_variable(void);
/* The same among the launcher's processes on this host. Sets 0 and 1 if it does not say both. */
void zero_launcher_local(int *local_rank, int *local_size);

#endif
