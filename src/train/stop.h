/* stop.h - a signal asks the run to stop in good order: SIGTERM, SIGINT or SIGUSR1 (what Slurm's --signal sends ahead
 * of a time limit, and mpirun hands on to every rank).
 *
 * Here a process learns of its own signal; that all ranks stop after the same step is the loop's business. A second
 * SIGTERM or SIGINT ends the process at once, as either would have without this; but not within a second of the first,
 * since launchers and batch systems often both deliver the same one.
 */
#ifndef ZEROTRAIN_STOP_H
#define ZEROTRAIN_STOP_H

/* From now on signals are heeded; one that the process was started to ignore (nohup, a shell's background) stays
 * ignored. */
void stop_listen(void);
/* The signal that came first; 0: none has. */
int stop_requested(void);
/* "SIGTERM"; "a signal" for another number. */
const char *stop_signal_name(int signal_number);

#endif
