/* host_pool.c - see host_pool.h. */
#include "zero/offload/host_pool.h"

#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/system.h"

/* ---- host cores ---- */

#ifdef ZERO_HAVE_HWLOC
#include <hwloc.h>
#include <hwloc/glibc-sched.h>
#include <hwloc/linux.h>

static bool get_usable(hwloc_topology_t topology, hwloc_bitmap_t set)
{
    return set && hwloc_topology_load(topology) == 0 && hwloc_get_cpubind(topology, set, HWLOC_CPUBIND_THREAD) == 0 &&
           hwloc_bitmap_and(set, set, hwloc_topology_get_allowed_cpuset(topology)) == 0;
}

/* Finds the cores of the calling thread's binding that are nearest to the device; all of its binding if those are
 * unknown or none is in it. */
static void find_near(const char *pci_address, cpu_set_t *near)
{
    hwloc_topology_t topology;
    char path[96];
    CPU_ZERO(near);
    if (hwloc_topology_init(&topology) != 0)
        return;
    hwloc_bitmap_t set = hwloc_bitmap_alloc(), local = hwloc_bitmap_alloc();
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/local_cpus", pci_address ? pci_address : "none");
    if (local && get_usable(topology, set)) {
        if (pci_address && hwloc_linux_read_path_as_cpumask(path, local) == 0 && hwloc_bitmap_intersects(set, local))
            hwloc_bitmap_and(set, set, local);
        hwloc_bitmap_singlify_per_core(topology, set, 0);
        hwloc_cpuset_to_glibc_sched_affinity(topology, set, near, sizeof *near);
    }
    hwloc_bitmap_free(local);
    hwloc_bitmap_free(set);
    hwloc_topology_destroy(topology);
}

void zero_host_cores_add_siblings(cpu_set_t *cores)
{
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology) != 0)
        return;
    hwloc_bitmap_t set = hwloc_bitmap_alloc(), usable = hwloc_bitmap_alloc();
    if (set && get_usable(topology, usable)) {
        for (hwloc_obj_t core = NULL; (core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core));) {
            hwloc_cpuset_from_glibc_sched_affinity(topology, set, cores, sizeof *cores);
            if (!hwloc_bitmap_intersects(set, core->cpuset))
                continue;
            hwloc_bitmap_and(set, core->cpuset, usable);
            cpu_set_t siblings;
            hwloc_cpuset_to_glibc_sched_affinity(topology, set, &siblings, sizeof siblings);
            CPU_OR(cores, cores, &siblings);
        }
    }
    hwloc_bitmap_free(usable);
    hwloc_bitmap_free(set);
    hwloc_topology_destroy(topology);
}
#else
void zero_host_cores_add_siblings(cpu_set_t *cores)
{
    (void)cores;
}

/* Finds all that the calling thread may use. */
static void find_near(const char *pci_address, cpu_set_t *near)
{
    (void)pci_address;
    if (sched_getaffinity(0, sizeof *near, near) != 0)
        CPU_ZERO(near);
}
#endif

/* Returns whether exactly the same ranks could use both cores. */
static bool are_alike(const cpu_set_t *sets, int n_ranks, int core, int other)
{
    for (int r = 0; r < n_ranks; r++)
        if (!CPU_ISSET(core, &sets[r]) != !CPU_ISSET(other, &sets[r]))
            return false;
    return true;
}

void zero_host_cores_share(const cpu_set_t *sets, int n_ranks, int rank, cpu_set_t *share)
{
    CPU_ZERO(share);
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &sets[rank]))
            continue;
        /* The ranks that could use this core, and which of them this rank is; the cores that the same ranks could use,
         * and which of them this one is. */
        int n_takers = 0, taker = 0, n_equal = 0, at = 0;
        for (int r = 0; r < n_ranks; r++)
            if (CPU_ISSET(core, &sets[r])) {
                taker += r < rank;
                n_takers++;
            }
        for (int other = 0; other < CPU_SETSIZE; other++)
            if (CPU_ISSET(other, &sets[rank]) && are_alike(sets, n_ranks, core, other)) {
                at += other < core;
                n_equal++;
            }
        if (at * n_takers / n_equal == taker && n_equal >= n_takers)
            CPU_SET(core, share);
    }
}

typedef struct rank_cores {
    uint64_t host; /* the same for all processes of one kernel, in containers or not */
    cpu_set_t near;
} rank_cores_t;

zero_status_t zero_host_cores_find(zero_comm_t *comm, const char *pci_address, cpu_set_t *cores)
{
    rank_cores_t mine = {.host = zero_host_fold_boot(0)};
    int n_here = 0, me = 0;
    find_near(pci_address, &mine.near);
    rank_cores_t *all = malloc((size_t)comm->size * sizeof *all);
    cpu_set_t *sets = malloc((size_t)comm->size * sizeof *sets);
    zero_status_t status =
        zero_comm_agree(comm, all && sets ? ZERO_OK : zero_fail(ZERO_ERROR_MEMORY, "no memory for sets of cores"));
    if (status == ZERO_OK)
        status = comm->ops->host_all_gather(comm, &mine, sizeof mine, all);
    for (int r = 0; r < comm->size && status == ZERO_OK; r++) {
        if (r == comm->rank)
            me = n_here;
        if (all[r].host == mine.host)
            sets[n_here++] = all[r].near;
    }
    if (status == ZERO_OK)
        zero_host_cores_share(sets, n_here, me, cores);
    free(sets);
    free(all);
    return status;
}

int zero_host_cores_n_threads(const cpu_set_t *cores, int wanted, int n_sharers)
{
    cpu_set_t allowed;
    int n = CPU_COUNT(cores);
    if (wanted > 0)
        return wanted;
    if (n == 0 && sched_getaffinity(0, sizeof allowed, &allowed) == 0)
        n = CPU_COUNT(&allowed) / n_sharers;
    return n >= 4 ? n - 1 : n > 0 ? n : 1;
}

/* ---- host pool ---- */

typedef struct pool_thread {
    zero_host_pool_t *pool;
    int part;
    pthread_t thread;
} pool_thread_t;

struct zero_host_pool {
    int n_threads, n_running; /* n_running: have been started */
    pool_thread_t *threads;
    pthread_mutex_t mutex; /* for what follows */
    pthread_cond_t started, item_done;
    uint64_t n_series; /* started so far */
    bool ends;
    zero_host_part_fn fn;
    void *args;
    int n_items;
    int *n_parts_done; /* by item */
};

static void go_through(zero_host_pool_t *pool, int part, zero_host_part_fn fn, void *args, int n_items)
{
    for (int item = 0; item < n_items; item++) {
        fn(args, item, part, pool->n_threads);
        pthread_mutex_lock(&pool->mutex);
        if (++pool->n_parts_done[item] == pool->n_threads)
            pthread_cond_broadcast(&pool->item_done);
        pthread_mutex_unlock(&pool->mutex);
    }
}

static void *work(void *user)
{
    const pool_thread_t *self = user;
    zero_host_pool_t *pool = self->pool;
    omp_set_num_threads(1);
    pthread_mutex_lock(&pool->mutex);
    for (uint64_t n_finished = 0;; n_finished++) {
        while (pool->n_series == n_finished && !pool->ends)
            pthread_cond_wait(&pool->started, &pool->mutex);
        if (pool->n_series == n_finished)
            break;
        zero_host_part_fn fn = pool->fn;
        void *args = pool->args;
        int n_items = pool->n_items;
        pthread_mutex_unlock(&pool->mutex);
        go_through(pool, self->part, fn, args, n_items);
        pthread_mutex_lock(&pool->mutex);
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

/* Returns the n-th core of a set, from 0. */
static int nth_core(const cpu_set_t *cores, int n)
{
    int core = 0;
    for (int n_before = 0; !CPU_ISSET(core, cores) || n_before++ < n;)
        core++;
    return core;
}

static void bind_thread(const pool_thread_t *thread, const cpu_set_t *cores)
{
    int n_cores = CPU_COUNT(cores), n_threads = thread->pool->n_threads;
    cpu_set_t set = *cores;
    if (n_cores == 0)
        return;
    if (n_threads <= n_cores) {
        CPU_ZERO(&set);
        CPU_SET(nth_core(cores, n_cores - n_threads + thread->part), &set);
    }
    int error = pthread_setaffinity_np(thread->thread, sizeof set, &set);
    if (error)
        zero_log(ZERO_LOG_WARNING, "thread %d of the host's update is not bound to its core: %s", thread->part,
                 strerror(error));
}

zero_status_t zero_host_pool_create(const cpu_set_t *cores, int n_threads, int max_items, zero_host_pool_t **pool)
{
    zero_host_pool_t *made = calloc(1, sizeof *made);
    if (!made)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for a pool of threads");
    made->n_threads = n_threads;
    pthread_mutex_init(&made->mutex, NULL);
    pthread_cond_init(&made->started, NULL);
    pthread_cond_init(&made->item_done, NULL);
    made->threads = calloc((size_t)n_threads, sizeof *made->threads);
    made->n_parts_done = calloc((size_t)max_items, sizeof *made->n_parts_done);
    zero_status_t status = made->threads && made->n_parts_done
                               ? ZERO_OK
                               : zero_fail(ZERO_ERROR_MEMORY, "no memory for a pool of %d threads", n_threads);
    while (status == ZERO_OK && made->n_running < n_threads) {
        pool_thread_t *thread = &made->threads[made->n_running];
        *thread = (pool_thread_t){.pool = made, .part = made->n_running};
        int error = zero_thread_create(&thread->thread, work, thread);
        if (error) {
            status = zero_fail(ZERO_ERROR_MEMORY, "cannot start thread %d of %d: %s", made->n_running, n_threads,
                               strerror(error));
            break;
        }
        made->n_running++;
        bind_thread(thread, cores);
    }
    if (status != ZERO_OK) {
        zero_host_pool_destroy(made);
        return status;
    }
    *pool = made;
    return ZERO_OK;
}

void zero_host_pool_destroy(zero_host_pool_t *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->mutex);
    pool->ends = true;
    pthread_cond_broadcast(&pool->started);
    pthread_mutex_unlock(&pool->mutex);
    for (int i = 0; i < pool->n_running; i++)
        pthread_join(pool->threads[i].thread, NULL);
    pthread_cond_destroy(&pool->item_done);
    pthread_cond_destroy(&pool->started);
    pthread_mutex_destroy(&pool->mutex);
    free(pool->n_parts_done);
    free(pool->threads);
    free(pool);
}

int zero_host_pool_n_threads(const zero_host_pool_t *pool)
{
    return pool->n_threads;
}

void zero_host_pool_start(zero_host_pool_t *pool, int n_items, zero_host_part_fn fn, void *args)
{
    pthread_mutex_lock(&pool->mutex);
    pool->fn = fn;
    pool->args = args;
    pool->n_items = n_items;
    memset(pool->n_parts_done, 0, (size_t)n_items * sizeof *pool->n_parts_done);
    pool->n_series++;
    pthread_cond_broadcast(&pool->started);
    pthread_mutex_unlock(&pool->mutex);
}

void zero_host_pool_await(zero_host_pool_t *pool, int item)
{
    pthread_mutex_lock(&pool->mutex);
    while (pool->n_parts_done[item] < pool->n_threads)
        pthread_cond_wait(&pool->item_done, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
}
