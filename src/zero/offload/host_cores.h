/* host_cores.h - which cores a rank's host threads are bound to: those that the process may use and that are nearest to
 * its device, one hardware thread of each, shared out among the ranks of the host so that no two have the same.
 *
 * The sharing is arithmetic on sets that all ranks all_to_all; finding the sets is hwloc's work. A build without hwloc
 * takes all that the process may use for near, and each hardware thread for a core.
 */
#ifndef ZERO_HOST_CORES_H
#define ZERO_HOST_CORES_H

#include <sched.h>

#include "comm/comm.h"

/* This rank's part of sets[n_ranks], the cores that each rank of a host could use: cores that several ranks could use
 * are cut among those ranks in runs of neighbours as even as can be. Empty where there are fewer cores than ranks. */
void zero_host_cores_share(const cpu_set_t *sets, int n_ranks, int rank, cpu_set_t *share);

/* pci_address: of the device, "0000:1b:00.0", or NULL: near to all cores. *cores may come out empty. [collective] */
zero_status_t zero_host_cores_find(zero_comm_t *comm, const char *pci_address, cpu_set_t *cores);

/* Adds the other hardware threads of the same cores, as far as the process may use them: for more threads than cores.
 */
void zero_host_cores_add_siblings(cpu_set_t *cores);

/* How many threads work on *cores, `wanted` of them or, where that is 0, one a core but one, which is left to the
 * thread that queues the device's work (where there are 4 and more). At least 1. */
int zero_host_cores_n_threads(const cpu_set_t *cores, int wanted, int n_sharers);

#endif
