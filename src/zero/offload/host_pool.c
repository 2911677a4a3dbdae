/* host_pool.c - see host_pool.h. */
#include "zero/offload/host_pool.h"

#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/threads.h"
#include "base/log.h"

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
