/* host_pool.h - threads of the library's own, bound to cores, that walk over a row of items: of each item every thread
 * does its part, then goes on to the next without waiting for the others. A thread has the same part of an item every
 * time, so memory that it wrote first stays near it.
 *
 * Beside OpenMP, whose threads belong to whoever calls, and that ends every loop with a barrier: here one call wakes
 * all threads for a whole walk, nobody stands still between items, and items are awaited one by one.
 */
#ifndef ZERO_HOST_POOL_H
#define ZERO_HOST_POOL_H

#include <sched.h>

#include "zero.h"

typedef struct zero_host_pool zero_host_pool_t;

/* part: 0..n_parts - 1, the thread's number. OpenMP within it has one thread. */
typedef void (*zero_host_part_fn)(void *args, int item, int part, int n_parts);

/* Thread i is bound to one core of *cores, the last where there are enough; with more threads than cores each may run
 * on all of them; with none, anywhere. max_items: of one walk. */
zero_status_t zero_host_pool_create(const cpu_set_t *cores, int n_threads, int max_items, zero_host_pool_t **pool);
void zero_host_pool_destroy(zero_host_pool_t *pool); /* when its walk is over; NULL is allowed */

int zero_host_pool_n_threads(const zero_host_pool_t *pool);

/* Starts a walk over items 0..n_items - 1 and returns. The walk before it is over: its last item was awaited. */
void zero_host_pool_start(zero_host_pool_t *pool, int n_items, zero_host_part_fn fn, void *args);
/* Returns when all parts of an item are done, and what they wrote can be seen. */
void zero_host_pool_await(zero_host_pool_t *pool, int item);

#endif
