/* system.h - the clock and how long a rank waits for its peers; numbers whatever the locale; threads without signals.
 */
#ifndef ZERO_SYSTEM_H
#define ZERO_SYSTEM_H

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <time.h>

#include "zero.h"

/* Returns nanoseconds of the monotonic clock. Signal handlers may call it. */
static inline int64_t zero_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Reads ZERO_TIMEOUT_S, in seconds (fractions allowed), from the environment. The default is 600: more than the longest
 * step or checkpoint takes. */
zero_status_t zero_timeout_ns(int64_t *timeout_ns);

/* ---- numbers ---- */
/* Reads numbers with a decimal point, whatever the host program's locale. */

/* As strtod and strtof in the locale "C". */
double zero_strtod(const char *text, char **end);
float zero_strtof(const char *text, char **end);

/* ---- threads ---- */
/* Starts threads of the library's and the trainer's own. Signals are the program's: its own threads get
 * them, whichever it has chosen. */

/* As pthread_create; the thread has all signals blocked. */
static inline int zero_thread_create(pthread_t *thread, void *(*run)(void *user), void *user)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, NULL, run, user);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

#endif
