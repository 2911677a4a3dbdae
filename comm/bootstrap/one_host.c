/* one_host.c - see one_host.h. */
#include "comm/bootstrap/one_host.h"

#include <stdlib.h>

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
