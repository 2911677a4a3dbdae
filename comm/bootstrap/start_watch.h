/* start_watch.h - warns if MPI's start takes long. MPI_Init_thread returns only when every rank has called it and
 * cannot be interrupted, so the watch can do no more than log a line with the ranks of this host that are missing, and
 * call the program's function (zero_comm_on_late_start).
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

/* Starts a thread that does so unless zero_start_watch_end is called within timeout_ns. If no thread can be
 * started, nothing is done. */
void zero_start_watch_begin(zero_start_watch_t *watch, int64_t timeout_ns);
void zero_start_watch_end(zero_start_watch_t *watch);

#endif
