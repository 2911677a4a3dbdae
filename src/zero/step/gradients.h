/* gradients.h - gradients on their way to their owners: gradient buffers, all-to-all in chunks, sums in the order of
 * micro-batches. */
#ifndef ZERO_GRADIENTS_H
#define ZERO_GRADIENTS_H

#include "zero/offload/offload.h"
#include "zero/runtime/context.h"

/* ---- hooks ---- */
/* Within gradients: the caller's function over what this rank has reduced (zero_hooks_t). */

/* Returns whether the caller wants to see reduced gradients. The norm is then taken of what its function leaves. */
static inline bool zero_hooks_see_reduced(const zero_context_t *context)
{
    return context->config.hooks && context->config.hooks->reduced;
}

/* Calls the function for all tensors of the unit, whose reduction for this step is complete in `stream`, and adds the
 * squares of what it leaves to the norm. If the function fails, the progress keeps its status, and it is not called
 * again in this step: other ranks do not know of it, so this one goes on to where they meet. */
zero_status_t zero_hooks_reduced(zero_context_t *context, zero_unit_t unit, zero_stream_t stream);

/* ---- gradients ---- */

typedef struct zero_gradients zero_gradients_t;

/* offload: NULL without offload. Both must outlive the gradients. */
zero_status_t zero_gradients_create(zero_context_t *context, zero_offload_t *offload, zero_gradients_t **gradients);
void zero_gradients_destroy(zero_gradients_t *gradients); /* NULL is allowed */

/* What is called about each unit's reduction in the step's last micro-step (backward_update.h). */
typedef struct zero_sum_calls {
    zero_status_t (*fenced)(void *user, zero_stream_t transfer_stream); /* the fence before its transfer has passed */
    zero_status_t (*before_sum)(void *user, zero_stream_t stream);      /* its transfer is over in `stream` */
    zero_status_t (*after_sum)(void *user, zero_unit_t unit, zero_stream_t stream);
    void (*cancel)(void *user); /* the step is forgotten */
    void *user;
} zero_sum_calls_t;
void zero_gradients_call(zero_gradients_t *gradients, zero_sum_calls_t calls);

/* Makes room for every gradient that the unit will write, in `stream`, where no peer reads any more. */
zero_status_t zero_gradients_prepare(zero_gradients_t *gradients, zero_unit_t unit, zero_stream_t stream);
/* Finds a unit's full gradients, for which there is room. */
zero_status_t zero_gradients_address(const zero_gradients_t *gradients, zero_unit_t flat, unsigned char **address);
/* Reduces a unit's gradients, which are complete, if that is due in this micro-step. The last sums may be queued later.
 */
zero_status_t zero_gradients_reduce(zero_gradients_t *gradients, zero_unit_t unit, zero_stream_t stream);
/* Ends a step's reductions: what `stream` does next finds all reduced gradients that this rank updates with. */
zero_status_t zero_gradients_finish(zero_gradients_t *gradients, zero_stream_t stream);
/* Discards all gradients of the step so far, once no stream works and no peer reads. */
zero_status_t zero_gradients_cancel(zero_gradients_t *gradients);

#endif
