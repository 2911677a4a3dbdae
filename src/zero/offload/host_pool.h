/* host_pool.h - threads of the library's own, bound to cores, that go through a series of items: each thread does its
 * part of an item, then goes on to the next without waiting for the others. A thread has the same part of an item every
 * time, so memory that it wrote first stays near it.
 *
 * Why not OpenMP: its threads belong to the calling thread, and every loop ends with a barrier. Here one call wakes all
 * threads for all items, no thread waits between items, and items are waited for one by one.
 */
#ifndef ZERO_HOST_POOL_H
#define ZERO_HOST_POOL_H

#include <sched.h>

#include "comm/comm.h"
#include "zero.h"

/* ---- host cores ---- */
/* Which cores a rank's host threads are bound to: those that the process may use and that are nearest to
 * its device, one hardware thread of each, divided among the ranks of the host so that no two have the same core.
 *
 * hwloc finds the cores of each rank; dividing them is arithmetic on the sets of all ranks. A build without hwloc takes
 * all hardware threads that the process may use as near cores. */

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

/* ---- host pool ---- */

typedef struct zero_host_pool zero_host_pool_t;

/* Does one part of an item. part: 0..n_parts - 1, the thread's number. OpenMP has one thread within it. */
typedef void (*zero_host_part_fn)(void *args, int item, int part, int n_parts);

/* Creates n_threads threads. Each is bound to a core of its own, of the last of *cores if there are more cores than
 * threads; with more threads than cores, to all of *cores; with no cores, to none. max_items: of one series. */
zero_status_t zero_host_pool_create(const cpu_set_t *cores, int n_threads, int max_items, zero_host_pool_t **pool);
void zero_host_pool_destroy(zero_host_pool_t *pool); /* when its series is over; NULL is allowed */

int zero_host_pool_n_threads(const zero_host_pool_t *pool);

/* Starts a series of items 0..n_items - 1 and returns. The one before must be over: its last item has been waited for.
 */
void zero_host_pool_start(zero_host_pool_t *pool, int n_items, zero_host_part_fn fn, void *args);
/* Waits until all parts of an item are done, and what they wrote can be seen. */
void zero_host_pool_await(zero_host_pool_t *pool, int item);

#endif
