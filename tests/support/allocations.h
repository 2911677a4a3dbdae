/* allocations.h - counts heap allocations of the whole process between two points, by standing before malloc, calloc,
 * realloc and the aligned ones. Link allocations.c into the program that counts. Under AddressSanitizer, whose own
 * malloc stands there, nothing is counted and allocations_stop returns 0. */
#ifndef ZERO_TEST_ALLOCATIONS_H
#define ZERO_TEST_ALLOCATIONS_H

void allocations_start(void);
unsigned long allocations_stop(void); /* since allocations_start, by any thread that is not left out */

/* Leaves out the other threads that run now: those of MPI, which allocate when a message comes from mpirun. Call it
 * once, when MPI has started and the program has no threads of its own. */
void allocations_leave_out_other_threads(void);

#endif
