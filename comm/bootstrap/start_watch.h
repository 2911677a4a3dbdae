/* start_watch.h - says whom MPI's start waits for. MPI_Init_thread returns when every rank has called it, and cannot be
 * left before: that it takes long is all that can be said, with the ranks of this host that have not come.
 */
#ifndef ZERO_START_WATCH_H
#define ZERO_START_WATCH_H

#include <pthread.h>

#include "zero.h"

typedef struct zero_start_watch {
    int64_t timeout_ns;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool runs, is_over;
} zero_start_watch_t;

/* A thread that logs one line unless zero_start_watch_end comes within timeout_ns. Where none can be made, nobody
 * watches. */
void zero_start_watch_begin(zero_start_watch_t *watch, int64_t timeout_ns);
void zero_start_watch_end(zero_start_watch_t *watch);

#endif
