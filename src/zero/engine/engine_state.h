/* engine_state.h - what saving and loading need of an engine: its context, its users, and what a step hands to the
 * next. */
#ifndef ZERO_ENGINE_STATE_H
#define ZERO_ENGINE_STATE_H

#include "comm/users.h"
#include "zero/runtime/context.h"

zero_context_t *zero_engine_context(zero_engine_t *engine);
/* Returns whether zero_begin has been called. */
bool zero_engine_has_started(const zero_engine_t *engine);

/* Keep the engine until its user leaves. The last to leave an engine that the caller has destroyed frees it, and is
 * then [collective]. */
void zero_engine_join(zero_engine_t *engine, zero_user_t user);
void zero_engine_leave(zero_engine_t *engine, zero_user_t user);

/* Returns ZERO_ERROR_ORDER if the weights were written only in part; logs it once. call: named in the error line. */
zero_status_t zero_engine_check_weights(zero_engine_t *engine, const char *call);

/* zero_set_state of some tensors. wanted: by tensor; NULL: all. The others keep their weights; their moments become
 * zero without with_moments. [collective] */
zero_status_t zero_engine_set_some(zero_engine_t *engine, bool with_moments, const bool *wanted, zero_chunk_fn fill,
                                   void *user);

/* zero_get_state of the tensors that checkpoints have. */
zero_status_t zero_engine_get_saved(zero_engine_t *engine, zero_chunk_fn visit, void *user);

/* Returns how many steps have been waited for. */
uint64_t zero_engine_n_steps(const zero_engine_t *engine);
/* Read and write what a step hands to the next, while no step is under way: ZERO_ERROR_ORDER otherwise, with a line
 * that names `call`. n_steps: steps so far. */
zero_status_t zero_engine_get_step_state(zero_engine_t *engine, const char *call, zero_step_state_t *state);
zero_status_t zero_engine_set_step_state(zero_engine_t *engine, const char *call, uint64_t n_steps,
                                         const zero_step_state_t *state);

#endif
