/* device_update.h - within the update: the optimizer over the units whose state is on the device. */
#ifndef ZERO_DEVICE_UPDATE_H
#define ZERO_DEVICE_UPDATE_H

#include "zero/runtime/context.h"

typedef struct zero_device_update zero_device_update_t;

/* Writes to the device what the optimizer updates: a segment for each tensor that it updates by elements. */
zero_status_t zero_device_update_create(zero_context_t *context, zero_device_update_t **update);
void zero_device_update_destroy(zero_device_update_t *update); /* NULL is allowed */

/* Updates units first ... end - 1, as far as their state is on the device, with scalars that are decided in `stream`.
 * Units whose gradients take turns are updated one at a time. */
zero_status_t zero_device_update_units(zero_device_update_t *update, zero_unit_t first, zero_unit_t end,
                                       const zero_adam_scalars_t *scalars, zero_stream_t stream);

#endif
