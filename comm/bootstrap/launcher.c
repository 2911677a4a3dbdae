/* launcher.c - see launcher.h. */
#include "comm/bootstrap/launcher.h"

#include <stdlib.h>

#include "zero.h"

/* Returns the number in the first of these variables that is set, or `missing` if none is. */
static int from_environment(const char *const *names, int missing)
{
    for (; *names; names++)
        if (getenv(*names))
            return atoi(getenv(*names));
    return missing;
}

int zero_launcher_rank(void)
{
    return from_environment((const char *const[]){"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", NULL}, -1);
}

int zero_comm_launch_rank(void)
{
    const int rank = zero_launcher_rank();
    return rank >= 0 ? rank : from_environment((const char *const[]){"SLURM_PROCID", NULL}, 0);
}

static const char *const size_variables[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", NULL};

int zero_launcher_size(void)
{
    return from_environment(size_variables, 1);
}

const char *zero_launcher_size_variable(void)
{
    const char *const *name = size_variables;
    while (*name && !getenv(*name))
        name++;
    return *name ? *name : "";
}

void zero_launcher_local(int *local_rank, int *local_size)
{
    const int rank = from_environment(
        (const char *const[]){"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID", NULL}, -1);
    const int size = from_environment(
        (const char *const[]){"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE", NULL}, 0);
    *local_rank = rank >= 0 && rank < size ? rank : 0;
    *local_size = rank >= 0 && rank < size ? size : 1;
}
