/* offload.h - optimizer state in pinned host memory: what a step does with it, in streams of its own.
 *
 *     gradients out    as soon as a unit's sums are whole, under the rest of backward
 *     update           when the device has decided the step, unit by unit in forward order, under the forward pass of
 *                      the units before; in one of two ways (offload_backend.h), which give the same bits:
 *                      by the device   gradients and state come in, pass AdamW, and the state goes home again
 *                      by the host     the CPU's AdamW updates them where they lie, and new parameters come in
 *
 * Nothing is stale: a unit's next use waits for its new parameters. A hosted unit's shard in the window is published by
 * a fence of its own, before its first gather of the step (parameters.c).
 */
#ifndef ZERO_OFFLOAD_H
#define ZERO_OFFLOAD_H

#include "zero/device/device.h"

typedef struct zero_engine zero_engine_t;
typedef struct zero_offload zero_offload_t;

/* Takes host memory and sets engine->offload, NULL where the plan hosts nothing. After a failure zero_offload_destroy
 * frees what there is. [collective] */
zero_status_t zero_offload_reserve(zero_engine_t *engine);
/* Memory of this rank's could not be pinned: copies are slow, and hold up the host. */
bool zero_offload_is_held_up(const zero_engine_t *engine);
/* The rest, once the device's memory stands. */
zero_status_t zero_offload_create(zero_engine_t *engine);
/* Before the first pass: the caller has all its memory. [collective] */
zero_status_t zero_offload_start(zero_engine_t *engine);
void zero_offload_destroy(zero_engine_t *engine); /* when the device is idle; NULL is allowed */

bool zero_offload_has(const zero_engine_t *engine, zero_unit_t unit);
/* Where element `state` (of zero_adam_segment_t) of a hosted unit lies on the host. low is NULL for fp32, param where
 * the device updates. */
typedef struct zero_host_address {
    void *param, *low;
    float *m, *v;
} zero_host_address_t;
zero_host_address_t zero_offload_address(const zero_engine_t *engine, uint64_t state);

/* The sums of a hosted unit are whole in `stream`: they leave, or stay until the update. */
zero_status_t zero_offload_send_grads(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream);
/* A hosted unit's sums are about to be written in `stream`: nobody needs what stood in their place. */
zero_status_t zero_offload_await_grads(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream);
/* The step is decided in `stream`, and every rank is done with its weights: updates the hosted units. */
zero_status_t zero_offload_update(zero_engine_t *engine, zero_stream_t stream);
/* All of an update that is under way is queued: when the device is synchronized, the host's memory has all state. */
zero_status_t zero_offload_finish_update(zero_engine_t *engine);
/* What comes next in `stream` finds this rank's shard of a hosted unit updated. *is_new: for the first time since. */
zero_status_t zero_offload_await_params(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream, bool *is_new);

/* Activations that matter up to `unit`'s backward are idle behind what is in `stream`, in the step's last pass; and
 * those that matter from its forward on are wanted by what comes next in it. Where there is no offload, no difference.
 */
zero_status_t zero_offload_lend_activations(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream);
zero_status_t zero_offload_reclaim_activations(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream);

#endif
