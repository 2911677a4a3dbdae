/* threads.h - starts threads of the library's and the trainer's own. Signals are the program's: its own threads get
 * them, whichever it has chosen.
 */
#ifndef ZERO_THREADS_H
#define ZERO_THREADS_H

#include <pthread.h>
#include <signal.h>

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
