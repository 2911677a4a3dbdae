/* frozen_fp8.h - frozen matrices that are held in fp8: how their numbers become bytes, and back.
 *
 * A matrix has one scale, which is known only when all of its numbers are: so while weights are written, what this rank
 * owns of one matrix waits in host memory, 2 bytes a number, rounded to bf16 as if it were held so. Behind a matrix's
 * last tensor the ranks agree on its largest magnitude, and each casts and stores its part. The bytes are those of a
 * cast of the whole matrix, whoever owns how much of it. The device rounds and casts: on one core of the host, 70
 * billion numbers would take minutes. The numbers that wait are beside the plan's memory, and go with the call.
 */
#ifndef ZERO_FROZEN_FP8_H
#define ZERO_FROZEN_FP8_H

#include "zero/engine/run_buffers.h"
#include "zero/runtime/context.h"

typedef struct zero_frozen_fp8 zero_frozen_fp8_t;

/* Leaves *frozen NULL if the model has no such matrices. */
zero_status_t zero_frozen_fp8_create(zero_context_t *context, zero_frozen_fp8_t **frozen);
void zero_frozen_fp8_destroy(zero_frozen_fp8_t *frozen); /* NULL is allowed */

/* Takes the next n_elems of a tensor that this rank owns, which are in buffers->weights. Their bytes go to `place`, on
 * the device or, of offloaded parameters, on the host. Waits for the device. */
zero_status_t zero_frozen_fp8_take(zero_frozen_fp8_t *frozen, const zero_run_buffers_t *buffers, size_t n_elems,
                                   void *place, bool is_on_host);
/* Returns whether a tensor is the last of a matrix. */
bool zero_frozen_fp8_ends(const zero_frozen_fp8_t *frozen, zero_tensor_t tensor);
/* Stores the matrix that ends with the tensor; does nothing if none of it was taken. status: of what this rank has
 * taken of it; returned, if the ranks agree. [collective] */
zero_status_t zero_frozen_fp8_store(zero_frozen_fp8_t *frozen, zero_tensor_t tensor, const zero_run_buffers_t *buffers,
                                    zero_status_t status);
/* Gives back the host memory in which numbers wait: behind the last matrix, or a failure. NULL is allowed. */
void zero_frozen_fp8_end(zero_frozen_fp8_t *frozen);

/* Reads n_elems of a tensor, whose bytes are at `place`, into buffers->host. Waits for the device. */
zero_status_t zero_frozen_fp8_read(const zero_frozen_fp8_t *frozen, zero_tensor_t tensor, const void *place,
                                   const zero_run_buffers_t *buffers, size_t n_elems);

#endif
