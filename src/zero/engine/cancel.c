/* cancel.c - ends a pass that the caller cannot finish, and the step that it belongs to: zero_cancel.
 *
 * What must hold afterwards is what holds after zero_step: no stream works, no peer reads what this rank will write, no
 * gradient of the cancelled step is in a sum or in the norm. Weights have not changed, so full parameters that have
 * been gathered stay valid; they are given up all the same, for one state to go on from. The exception is a step whose
 * update has failed halfway: its weights cannot be had back, and the engine refuses to use them until others are set.
 */
#include "base/log.h"
#include "zero/engine/compare.h"
#include "zero/engine/engine.h"

/* Ranks that have come to different places have other work under way: to wait for it could take for ever. */
static zero_status_t compare_places(const zero_context_t *context, bool acquired)
{
    const zero_progress_t *progress = &context->progress;
    const int64_t calls_of_pass = progress->in_pass ? 1 + 2 * (int64_t)progress->position + acquired : 0;
    const int64_t calls_before = (int64_t)progress->micro_step * (1 + 4 * (int64_t)context->model->n_units);
    ZERO_TRY(zero_compare_number(context->host_comm, "the pass under way (-1: none; zero_pass_t)",
                                 progress->in_pass ? (int64_t)progress->pass : -1));
    return zero_compare_number(context->host_comm, "the number of calls in this step so far",
                               calls_before + calls_of_pass);
}

static zero_status_t cancel(zero_engine_t *engine)
{
    zero_context_t *context = &engine->context;
    zero_progress_t *progress = &context->progress;
    const bool has_begun = progress->in_pass || progress->micro_step > 0;
    ZERO_TRY(compare_places(context, engine->acquired));
    ZERO_TRY(zero_engine_quiesce(engine));
    zero_parameters_cancel(engine->parameters);
    ZERO_TRY(zero_gradients_cancel(engine->gradients));
    zero_offload_cancel(engine->offload);
    zero_timeline_set_in_step(context->streams.timeline, false);
    context->streams.compute_end = 0;
    engine->acquired = false;
    progress->in_pass = false;
    progress->micro_step = 0;
    progress->hook_failure = ZERO_OK;
    return has_begun ? zero_engine_check_weights(engine, "zero_cancel") : ZERO_OK;
}

zero_status_t zero_cancel(zero_engine_t *engine)
{
    ZERO_REQUIRE(engine);
    zero_context_enter(&engine->context, "zero_cancel");
    return zero_comm_leave(engine->context.host_comm, cancel(engine));
}
