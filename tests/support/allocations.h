/* allocations.h - counts heap allocations of the whole process between two points, by replacing malloc, calloc, realloc
 * and the aligned variants. Link allocations.c into the program that counts. Under AddressSanitizer, which replaces
 * malloc itself, nothing is counted and allocations_stop returns 0. */
#ifndef ZERO_TEST_ALLOCATIONS_H
#define ZERO_TEST_ALLOCATIONS_H

void allocations_start(void);
unsigned long allocations_stop(void); /* since allocations_start, by any thread that is not left out */

/* Excludes the other threads that run now: MPI's, which allocate when a message from mpirun arrives. Call it once,
 * after MPI has started and before the program starts threads of its own. */
void allocations_leave_out_other_threads(void);

#endif
