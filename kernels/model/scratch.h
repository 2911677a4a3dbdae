/* scratch.h - temporary memory of one call of a model kernel, taken from the context's workspace.
 *
 * Each call takes what it needs from the start; nothing is given back, since the next call starts anew.
 */
#ifndef ZERO_MODEL_SCRATCH_H
#define ZERO_MODEL_SCRATCH_H

#include <string.h>

#include "base/log.h"
#include "kernels/model/model.h"

#define ZERO_SCRATCH_ALIGN 256

/* What is left of the workspace. */
typedef struct zero_scratch {
    char *next;
    size_t bytes_left;
} zero_scratch_t;

/* Returns what a take of n_bytes uses up, for sizing a workspace. */
static inline size_t zero_scratch_bytes(size_t n_bytes)
{
    return (n_bytes + ZERO_SCRATCH_ALIGN - 1) / ZERO_SCRATCH_ALIGN * ZERO_SCRATCH_ALIGN;
}

/* Takes n_bytes and sets the pointer at `out`. Fails if the call is larger than the limits that the workspace was sized
 * for, which is the trainer's mistake. */
static inline zero_status_t zero_scratch_take(zero_scratch_t *scratch, size_t n_bytes, void *out)
{
    size_t taken = zero_scratch_bytes(n_bytes);
    if (taken > scratch->bytes_left) {
        zero_fail(ZERO_ERROR_ARGUMENT, "workspace too small: %zu bytes wanted, %zu left", taken, scratch->bytes_left);
        return ZERO_ERROR_ARGUMENT; /* a constant, so that the compiler sees *out set in every other case */
    }
    memcpy(out, &scratch->next, sizeof scratch->next);
    scratch->next += taken;
    scratch->bytes_left -= taken;
    return ZERO_OK;
}

#endif
