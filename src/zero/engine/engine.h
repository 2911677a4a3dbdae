/* engine.h - the engine: what joins its parts. Only the files that implement the public functions on an engine see it:
 * create.c, allocate.c, stash.c, all_to_all.c, pass.c, tensors.c, step.c, state.c, whole_tensor.c. The parts know the
 * context and the parts below them: runtime < offload < parameters < gradients < results < update. */
#ifndef ZERO_ENGINE_H
#define ZERO_ENGINE_H

#include "zero/engine/engine_state.h"
#include "zero/engine/frozen_fp8.h"
#include "zero/offload/offload.h"
#include "zero/runtime/context.h"
#include "zero/step/gradients.h"
#include "zero/step/parameters.h"
#include "zero/step/update.h"

struct zero_engine {
    zero_users_t users;
    zero_context_t context;
    zero_offload_t *offload; /* NULL: the device updates everything */
    zero_parameters_t *parameters;
    zero_gradients_t *gradients;
    zero_results_t *results;
    zero_update_t *update;
    zero_user_block_t *user_blocks;
    zero_frozen_fp8_t *frozen_fp8;  /* NULL: no frozen tensor is held in fp8 */
    zero_stash_t *stashes;          /* of zero_stash_create, the newest first */
    zero_all_to_all_t *all_to_alls; /* of zero_all_to_all_create, the newest first */

    bool reduces_once; /* a step, whatever else is set: it was planned with one micro-step */
    bool started;      /* zero_begin has been called: no more zero_alloc */
    bool acquired;     /* between acquire and release / grad_ready */
    int compute_span;  /* the acquired unit's, in the timeline */

    /* A call that failed has left weights half written, on some rank: none may compute with them (state.c). */
    bool weights_are_partial, partial_weights_were_logged;
};

/* ---- allocate.c, stash.c ---- */
/* Frees what zero_alloc and zero_alloc_activations gave out. */
void zero_engine_free_blocks(zero_engine_t *engine);
/* Frees what zero_stash_create made, but for its device memory, which is zero_alloc's. */
void zero_engine_free_stashes(zero_engine_t *engine);

/* ---- all_to_all.c ---- */
/* Ends the waits for peers in this rank's streams, after a failure: the counterpart of zero_comm_ops_t's release. */
void zero_engine_release_all_to_alls(zero_engine_t *engine);
/* Frees what zero_all_to_all_create made. No stream may still use it. [collective] */
void zero_engine_free_all_to_alls(zero_engine_t *engine);

/* ---- state.c ---- */
/* Waits until no stream of this rank works, and no rank reads its memory. [collective] */
zero_status_t zero_engine_quiesce(zero_engine_t *engine);
/* Reads the part that this rank owns of one of a tensor's arrays. */
zero_status_t zero_engine_read_array(zero_engine_t *engine, zero_tensor_t tensor, zero_array_t array, float *elems);
/* Writes one of a tensor's arrays, elems: all of it, and publishes weights. [collective] */
zero_status_t zero_engine_write_array(zero_engine_t *engine, zero_tensor_t tensor, zero_array_t array,
                                      const float *elems);

/* ---- tensors.c: gradients that were not written, if config.check asks for it ---- */
/* Fills the gradients that the unit, which has been acquired, must overwrite. */
zero_status_t zero_engine_poison_grads(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream);
/* Returns ZERO_ERROR_ARGUMENT if an element still holds what it was filled with. */
zero_status_t zero_engine_check_grads(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream);

/* ---- fit ---- */
/* Makes the plan, so that it fits. */

/* Makes the context's plan, decides what its configuration leaves open (offload_ratio, offload_update), and allocates
 * offload's host memory. Returns ZERO_ERROR_MEMORY, with the numbers, if the device has too little free memory.
 * [collective] */
zero_status_t zero_fit_plan(zero_context_t *context, zero_offload_t **offload);

#endif
