/* process.h - this process: the clock by which it times itself, the phases of its start, signals that stop it. */
#ifndef ZEROTRAIN_PROCESS_H
#define ZEROTRAIN_PROCESS_H

#include <stddef.h>

#include "base/system.h"

static inline double clock_now_ms(void)
{
    return (double)zero_now_ns() * 1e-6;
}

static inline double clock_now_s(void)
{
    return (double)zero_now_ns() * 1e-9;
}

/* ---- phases ---- */
/* How long each phase of a program's start takes: main.c begins, whoever has ended a phase says so, and a
 * run that resumes reports them. */

/* Begins the first phase. */
void phases_begin(void);
/* Ends a phase, which began when the one before ended. name: stays where it is. */
void phases_end(const char *name);
/* Writes "7.1 s: ranks 1.2, device 0.9, ..." */
void phases_text(char *text, size_t n_bytes);

/* ---- stop ---- */
/* Lets a signal stop the run after a step: SIGTERM, SIGINT, SIGHUP or SIGUSR1. (Slurm's --signal sends one
 * ahead of a time limit, mpirun forwards SIGUSR1 to every rank, and SIGHUP comes when a terminal is closed.)
 *
 * This only records the process's own signal; run.c makes all ranks stop after the same step. A second SIGTERM or
 * SIGINT ends the process at once, unless it comes within a second of the first: launcher and batch system often both
 * deliver the same one. */

/* The exit code of a run that a signal has stopped, and that has lost nothing. */
#define STOP_EXIT_CODE 3

/* Lets a signal end the process at once, with a line and STOP_EXIT_CODE, until stop_listen: there is nothing to save.
 */
void stop_at_start(void);
/* Installs the handlers. A signal that the process was started to ignore (by nohup, or in a shell's background) stays
 * ignored. */
void stop_listen(void);
/* Makes the end of the launcher's daemon on this host (after a kill -9 of mpirun, say) a SIGTERM: nothing else would
 * end its ranks. Does nothing in a process that no launcher started. */
void stop_with_launcher(void);
#define STOP_FOR_LOG 1000 /* no signal: a log cannot be written */
/* Asks for a stop as a signal does: for a signal's number, or the one above. */
void stop_request(int number);
/* Returns the number that came first; 0: none. */
int stop_requested(void);
/* Returns "SIGTERM", say, or the reason in words; "a signal" for another number. */
const char *stop_signal_name(int signal_number);

#endif
