/* parameters.h - parameters on their way to compute: prefetch, gathers, which unit is in which unsharded buffer, and
 * publishing new weights. */
#ifndef ZERO_PARAMETERS_H
#define ZERO_PARAMETERS_H

#include "zero/offload/offload.h"
#include "zero/plan/order.h"
#include "zero/runtime/context.h"

/* ---- param address ---- */
/* Where an acquired unit's full parameters are: in an unsharded buffer at stage 3, else in the
 * window. */

/* Finds a unit's full parameters in the configured dtype, which have been acquired. If its matrices are gathered in
 * fp8, only its other tensors are there. */
zero_status_t zero_param_address(const zero_context_t *context, const zero_unsharded_t *unsharded, zero_unit_t flat,
                                 unsigned char **address);
/* Finds a unit's frozen parameters, which have been acquired. */
zero_status_t zero_param_frozen_address(const zero_context_t *context, const zero_unsharded_t *unsharded,
                                        zero_unit_t flat, unsigned char **address);
/* Finds the bytes of a unit whose matrices are gathered in fp8. */
zero_status_t zero_param_fp8_address(const zero_context_t *context, const zero_unsharded_t *unsharded, zero_unit_t flat,
                                     uint8_t **address);

/* ---- parameters ---- */

typedef struct zero_parameters zero_parameters_t;

/* offload: NULL without offload. Both must outlive the parameters. */
zero_status_t zero_parameters_create(zero_context_t *context, zero_offload_t *offload, zero_parameters_t **parameters);
void zero_parameters_destroy(zero_parameters_t *parameters); /* NULL is allowed */

/* Queues the gathers of what the unit at the current position needs and of what the next ones will need: at stage 3 of
 * everything, at stages 1-2 of offloaded units. */
zero_status_t zero_parameters_gather_ahead(zero_parameters_t *parameters, zero_stream_t stream);
/* Makes `stream` wait for a unit's full parameters. */
zero_status_t zero_parameters_await(zero_parameters_t *parameters, zero_unit_t flat, zero_stream_t stream);
/* The same for the unit at the next position, as far as its gathers are under way. */
zero_status_t zero_parameters_await_next(zero_parameters_t *parameters, zero_stream_t stream);
/* Returns which unit is in which unsharded buffer. */
const zero_unsharded_t *zero_parameters_unsharded(const zero_parameters_t *parameters);
/* Releases the buffers of a unit's parameters behind its use, whose end has been recorded. */
zero_status_t zero_parameters_release(zero_parameters_t *parameters, zero_unit_t unit);

/* Returns how many units are updated and published before the others, because the next pass begins with them. */
zero_unit_t zero_parameters_n_early_units(const zero_parameters_t *parameters);
/* Forgets the full parameters that have been gathered: all weights are about to change. */
void zero_parameters_begin_update(zero_parameters_t *parameters);
/* Publishes early units first ... end - 1, which have been updated in `stream`, and queues their gathers. */
zero_status_t zero_parameters_publish_early(zero_parameters_t *parameters, zero_unit_t first, zero_unit_t end,
                                            zero_stream_t stream);
/* Makes every rank's next acquire see all weights: those on the device that are not published yet have been updated in
 * `stream`. */
zero_status_t zero_parameters_publish(zero_parameters_t *parameters, zero_stream_t stream);
/* The same after all weights have been set outside a step, those of offloaded units and frozen tensors, too. `stream`
 * is the gather stream, in which frozen tensors may still be on their way. */
zero_status_t zero_parameters_publish_set(zero_parameters_t *parameters, zero_stream_t stream);
/* Forgets what has been gathered ahead of its use, once no stream works: the next acquire gathers anew. */
void zero_parameters_cancel(zero_parameters_t *parameters);

#endif
