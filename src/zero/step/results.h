/* results.h - the steps that are queued: when they began and ended, what the device decided, and the result that the
 * host waits for. */
#ifndef ZERO_RESULTS_H
#define ZERO_RESULTS_H

#include "zero/runtime/context.h"

/* Steps that may be queued before the result of the first must be waited for. */
#define ZERO_STEPS_IN_FLIGHT 2

typedef struct zero_results zero_results_t;

/* Writes the state that the first step finds to the device. context must outlive the results. */
zero_status_t zero_results_create(zero_context_t *context, zero_results_t **results);
void zero_results_destroy(zero_results_t *results); /* NULL is allowed */

/* Records when the first micro-step of a step begins. */
zero_status_t zero_results_begin_step(zero_results_t *results, zero_stream_t stream);
/* Refuses another step if the results of ZERO_STEPS_IN_FLIGHT have not been waited for. */
zero_status_t zero_results_check_room(const zero_results_t *results);
/* Returns where the device writes the outcome of the step at hand, in pinned host memory. */
zero_step_outcome_t *zero_results_outcome(const zero_results_t *results);
/* Records when the step at hand ends, and goes on to the next one. */
zero_status_t zero_results_end_step(zero_results_t *results, zero_stream_t stream);

/* As zero_step_wait, zero_get_adam_step, zero_set_adam_step. *was_cut_off is set if the step has left weights that none
 * may use, and is unchanged otherwise. */
zero_status_t zero_results_wait(zero_results_t *results, zero_step_result_t *result, bool *was_cut_off);
uint64_t zero_results_adam_step(const zero_results_t *results);
zero_status_t zero_results_set_adam_step(zero_results_t *results, uint64_t adam_step);
/* Lets updates in backward go on that a gradient has stopped: all weights have been set, so what the steps that are
 * queued did to them counts no more. The device is idle. */
zero_status_t zero_results_forget_stop(zero_results_t *results);

/* Returns how many steps have been waited for. */
uint64_t zero_results_n_steps(const zero_results_t *results);
/* Returns ZERO_ERROR_ORDER inside a step, or if a step's result has not been waited for. call: named in the error line.
 */
zero_status_t zero_results_check_no_step(const zero_results_t *results, const char *call);
/* Read and write what a step hands to the next, while no step is under way. n_steps: steps so far. */
zero_status_t zero_results_get_state(zero_results_t *results, const char *call, zero_step_state_t *state);
zero_status_t zero_results_set_state(zero_results_t *results, const char *call, uint64_t n_steps,
                                     const zero_step_state_t *state);

#endif
