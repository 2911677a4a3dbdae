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

/* ---- one host ---- */

static bool is_set_any(const char *const *names)
{
    for (; *names; names++)
        if (getenv(*names))
            return true;
    return false;
}

bool zero_one_host_is_launched(void)
{
    const char *all = getenv("OMPI_COMM_WORLD_SIZE"), *local = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    return all && local && atoi(all) > 0 && atoi(all) == atoi(local);
}

void zero_one_host_restrict_mpi(void)
{
    /* `mpirun --mca btl tcp,self` arrives as a variable too. The three depend on each other, so if any is set, all are
     * left alone. */
    static const char *const chosen[] = {"OMPI_MCA_pml", "OMPI_MCA_btl", "OMPI_MCA_mtl", NULL};
    if (!zero_one_host_is_launched() || is_set_any(chosen))
        return;
    /* Lists what to exclude, because shared memory is "vader" in Open MPI 4 and "sm" in 5. */
    setenv("OMPI_MCA_btl", "^tcp,ofi,openib,usnic,uct", 0);
    setenv("OMPI_MCA_pml", "ob1", 0);
}

void zero_one_host_restrict_nccl(void)
{
    static const char *const chosen[] = {"NCCL_SOCKET_IFNAME", "NCCL_COMM_ID", NULL};
    if (!is_set_any(chosen))
        setenv("NCCL_SOCKET_IFNAME", "=lo", 0);
}
