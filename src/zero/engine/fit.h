/* fit.h - makes the plan, so that it fits. */
#ifndef ZERO_FIT_H
#define ZERO_FIT_H

#include "zero/offload/offload.h"
#include "zero/runtime/context.h"

/* Makes the context's plan, settles what its configuration leaves to the machine (offload_ratio, offload_update), and
 * takes offload's host memory. Returns ZERO_ERROR_MEMORY, with the numbers, if the device has too little free memory.
 * [collective] */
zero_status_t zero_fit_plan(zero_context_t *context, zero_offload_t **offload);

#endif
