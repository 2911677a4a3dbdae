/* phases.h - how long each phase of a program's start takes: main.c begins, whoever has ended a phase says so, and a
 * run that resumes reports them. */
#ifndef ZEROTRAIN_PHASES_H
#define ZEROTRAIN_PHASES_H

#include <stddef.h>

/* Begins the first phase. */
void phases_begin(void);
/* Ends a phase, which began when the one before ended. name: stays where it is. */
void phases_end(const char *name);
/* Writes "7.1 s: ranks 1.2, device 0.9, ..." */
void phases_text(char *text, size_t n_bytes);

#endif
