/* model_cpus.c - whether the ranks' CPUs compute the same bits. */
#include "train/model/model.h"

#include <string.h>

#include "train/report/report.h"

zero_status_t model_compare_cpus(zero_device_t *device, zero_comm_t *comm)
{
    char mine[64], first[64];
    if (zero_device_get_type(device) != ZERO_DEVICE_CPU)
        return ZERO_OK;
    zero_model_cpu_kind(mine, sizeof mine);
    memcpy(first, mine, sizeof first);
    TRY(zero_comm_broadcast(comm, first, sizeof first, 0));
    double n_others = strncmp(mine, first, sizeof first) != 0;
    TRY(zero_comm_sum(comm, &n_others, 1));
    if (n_others > 0.0)
        report("the CPUs are of different kinds (rank 0: %s; %g ranks: others), so bits depend on which host computes "
               "what: set OPENBLAS_CORETYPE and ZERO_CPU_ISA alike on all hosts",
               first, n_others);
    return ZERO_OK;
}

bool model_bits_depend_on_threads(void)
{
    return zero_model_cpu_bits_depend_on_threads();
}
