/* run_buffers.h - the buffers through which weights and moments pass, run by run (state_runs.h). */
#ifndef ZERO_RUN_BUFFERS_H
#define ZERO_RUN_BUFFERS_H

#include <stddef.h>

/* The most elements of a run. A GPU needs some microseconds to start each copy and kernel: a million elements hide
 * them.
 */
#define ZERO_MAX_RUN_ELEMS ((size_t)1 << 20)
#define ZERO_RUN_PARTS_BYTES ((size_t)64)

typedef struct zero_run_buffers {
    size_t capacity; /* elements: as many as the longest run has */
    float *host;     /* `capacity` of master weights, m, v; behind them, of m and v, as they are in memory */
    float *weights;  /* on the device: `capacity` of master weights */
    void *master_lo; /* behind them: an offloaded unit's, on their way to or from the host */
    void *param;     /* behind these: the same of offloaded parameters */
    void *parts;     /* behind these: ZERO_RUN_PARTS_BYTES (frozen_fp8.c) */
} zero_run_buffers_t;

#endif
