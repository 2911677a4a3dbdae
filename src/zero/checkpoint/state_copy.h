/* state_copy.h - a copy of the weights and moments that this rank owns, in host memory. A save in the background writes
 * the copy while training goes on, and other hosts receive it. Used by checkpoint_save.c. */
#ifndef ZERO_STATE_COPY_H
#define ZERO_STATE_COPY_H

#include "zero/checkpoint/new_files.h"

typedef struct zero_state_copy {
    zero_chunk_t *chunks; /* into `values` */
    size_t n_chunks, capacity;
    float *values, *end; /* NULL: there is no copy */
} zero_state_copy_t;

/* Returns whether this host has memory for its ranks' copies: to take more would not fail, but end in a kill. */
bool zero_state_copy_has_room(zero_engine_t *engine);
/* Makes a copy in *copy, which is empty. What it has if it fails is freed by zero_state_copy_destroy, too. */
zero_status_t zero_state_copy_create(zero_engine_t *engine, zero_state_copy_t *copy);
/* Writes all of it: by a thread for each kind of array if `in_parallel`. */
zero_status_t zero_state_copy_write(const zero_state_copy_t *copy, bool in_parallel, zero_array_writer_t *writer);
void zero_state_copy_destroy(zero_state_copy_t *copy); /* all zeros is allowed */

#endif
