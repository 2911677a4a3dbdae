/* offload.h - optimizer state in pinned host memory: what a step does with it, in streams of its own.
 *
 *     caller's stream | backward C | backward B | backward A | decide | wait | forward A | forward B | forward C
 *     gradients out                | of C       | of B       | of A   |
 *     update                                                          | A    | B ....... | C ....... |
 *
 * The update goes through units in forward order, under the forward passes of the units before. Two backends
 * (offload_backend.h) give the same bits. With `device`, gradients and state are copied in, AdamW runs on the device,
 * and the state is copied back. With `host`, the CPU's AdamW updates the state in place, and new parameters are copied
 * in.
 *
 * Nothing is stale: a unit's next use waits for its new parameters. An offloaded unit's shard in the window is
 * published by a fence of its own, before its first gather of the step (parameters.c).
 *
 * Sums of gradients may wait in host memory between micro-steps (zero_plan_sums_wait_on_host). Then units take turns in
 * a few buffers (zero_grad_turns_t): while one is summed, another's sums leave, and the next one's come back. With two
 * buffers, 0 and 1, and overlapped communication:
 *
 *     caller's stream | backward D .. | backward C .. | sum D | backward B ...... | sum C | backward A ...... | sum B |
 *     sums back       | of D into 0   | of C into 1   |               | of B into 0 |             | of A into 1 |
 *     gradients out                                           | of D, 0 |                 | of C, 1 | ...
 *
 * Parameters may be in host memory, too (zero_plan_offloads_params). Then an update ends in host memory, and
 * parameters.c fetches them for every use.
 *
 * Functions about a unit need one whose state is offloaded (zero_plan_is_offloaded), unless they are about parameters.
 * With NULL, which means no offload, the others do nothing.
 */
#ifndef ZERO_OFFLOAD_H
#define ZERO_OFFLOAD_H

#include <sched.h>

#include "zero/runtime/context.h"

typedef struct zero_offload zero_offload_t;

/* Allocates host memory as planned. *offload is NULL if the plan offloads nothing. [collective] */
zero_status_t zero_offload_create(zero_context_t *context, zero_offload_t **offload);
/* Finds the cores near this rank's device, whose threads write pinned memory first. [collective] */
zero_status_t zero_offload_find_cores(const zero_context_t *context, cpu_set_t *cores);
/* Returns whether this rank's memory could not be pinned: then copies are slow and block the host. */
bool zero_offload_blocks_host(const zero_offload_t *offload);
/* Creates the rest, once the device's memory has been allocated. */
zero_status_t zero_offload_prepare(zero_offload_t *offload);
/* Finds out which of the caller's blocks can be borrowed: before the first pass, when the caller has allocated all its
 * memory. [collective] */
zero_status_t zero_offload_start(zero_offload_t *offload, const zero_user_block_t *blocks);
void zero_offload_destroy(zero_offload_t *offload); /* when the device is idle */

/* Where element `state` (zero_adam_segment_t's) of an offloaded unit is on the host. */
typedef struct zero_host_address {
    void *master_lo; /* NULL for fp32 */
    float *m, *v;    /* as in zero_adam_t */
} zero_host_address_t;
zero_host_address_t zero_offload_address(const zero_offload_t *offload, uint64_t state);
/* Returns where its parameter is on the host; NULL: it is on the device alone. The host's update has a copy of
 * parameters that are on the device. */
void *zero_offload_param(const zero_offload_t *offload, uint64_t state);

/* Returns where the frozen tensors of a unit whose parameters are offloaded begin on the host: this rank's shard. */
void *zero_offload_frozen(const zero_offload_t *offload, zero_unit_t unit);
/* Copies this rank's shard of a unit whose parameters are offloaded to the device, frozen tensors to `frozen`. The
 * copies run in `stream`, behind the unit's newest update. */
zero_status_t zero_offload_fetch_params(zero_offload_t *offload, zero_unit_t unit, void *trained, void *frozen,
                                        zero_stream_t stream);
/* Returns the stream in which parameters may be fetched without waiting for gathers. */
zero_stream_t zero_offload_param_stream(const zero_offload_t *offload);

/* The unit's gradients have been reduced in `stream`: copies them out, or leaves them where the update finds them. */
zero_status_t zero_offload_send_grads(zero_offload_t *offload, zero_unit_t unit, zero_stream_t stream);
/* Copies the unit's sums of earlier micro-steps back to its buffer, unless that has been done in this micro-step. The
 * sum or the update of the unit that had the buffer before has been queued. For units whose sums wait in host memory
 * (zero_plan_sums_wait_on_host). */
zero_status_t zero_offload_fetch_sums(zero_offload_t *offload, zero_unit_t unit);
/* The unit's gradients have been added to its sums in `stream`: copies these out, until the next micro-step. */
zero_status_t zero_offload_send_sums(zero_offload_t *offload, zero_unit_t unit, zero_stream_t stream);
/* Makes `stream`, which is about to write the unit's reduced gradients or to add to them, wait until those before them
 * in the buffer are not needed any more, and the unit's own sums are there. */
zero_status_t zero_offload_await_grads(zero_offload_t *offload, zero_unit_t unit, zero_stream_t stream);
/* Updates the offloaded units: the step has been decided in `stream`, and every rank is done with its weights. */
zero_status_t zero_offload_update(zero_offload_t *offload, zero_stream_t stream);
/* Copies the state of the units that are updated first to the device, as far as there are buffers, if that has not been
 * done in this step. In the last micro-step's backward pass. */
zero_status_t zero_offload_fetch_ahead(zero_offload_t *offload);
/* Updates an offloaded unit, whose gradients have been summed and found finite in `stream`; units come in the order of
 * backward. */
zero_status_t zero_offload_update_unit(zero_offload_t *offload, zero_unit_t unit, zero_stream_t stream);
/* Queues the rest of an update that is under way: once the device is synchronized, host memory holds all state. */
zero_status_t zero_offload_finish_update(zero_offload_t *offload);
/* Makes `stream` wait until this rank's shard of the unit is updated. *is_new: this is the first wait since the
 * update. */
zero_status_t zero_offload_await_params(zero_offload_t *offload, zero_unit_t unit, zero_stream_t stream, bool *is_new);

/* Borrows the activations that are not needed after `unit`'s backward, in the step's last pass: they are idle behind
 * what is in `stream`. */
zero_status_t zero_offload_borrow_activations(zero_offload_t *offload, zero_unit_t unit, zero_stream_t stream);
/* Gives back the activations that are needed from `unit`'s forward on: what `stream` does next may write them. */
zero_status_t zero_offload_return_activations(zero_offload_t *offload, zero_unit_t unit, zero_stream_t stream);
/* Forgets what has been fetched ahead: at the end of a step that updated units in backward, or that was cancelled, once
 * no stream works. Host memory holds all state, or will. */
void zero_offload_forget(zero_offload_t *offload);

#endif
