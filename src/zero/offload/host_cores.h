/* host_cores.h - which cores a rank's host threads are bound to: those that the process may use and that are nearest to
 * its device, one hardware thread of each, divided among the ranks of the host so that no two have the same core.
 *
 * hwloc finds the cores of each rank; dividing them is arithmetic on the sets of all ranks. A build without hwloc takes
 * all hardware threads that the process may use as near cores.
 */
#ifndef ZERO_HOST_CORES_H
#define ZERO_HOST_CORES_H

#include <sched.h>

#include "comm/comm.h"

/* Finds this rank's share, given sets[n_ranks], the cores that each rank of a host could use. Cores that several ranks
 * could use are divided among them as evenly as possible, in runs of neighbours. Empty if there are fewer cores than
 * ranks. */
void zero_host_cores_share(const cpu_set_t *sets, int n_ranks, int rank, cpu_set_t *share);

/* Finds this rank's cores. pci_address: the device's, such as "0000:1b:00.0"; NULL: near to all cores. *cores may come
 * out empty. [collective] */
zero_status_t zero_host_cores_find(zero_comm_t *comm, const char *pci_address, cpu_set_t *cores);

/* Adds the other hardware threads of the same cores that the process may use: for more threads than cores. */
void zero_host_cores_add_siblings(cpu_set_t *cores);

/* Returns how many threads work on *cores: `wanted` or, if that is 0, one per core. From 4 cores on, one core is left
 * to the thread that queues the device's work. At least 1. n_sharers: ranks on this host, which share the processors if
 * *cores is empty. */
int zero_host_cores_n_threads(const cpu_set_t *cores, int wanted, int n_sharers);

#endif
