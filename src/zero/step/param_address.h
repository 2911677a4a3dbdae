/* param_address.h - where an acquired unit's full parameters are: in an unsharded buffer at stage 3, else in the
 * window.
 */
#ifndef ZERO_PARAM_ADDRESS_H
#define ZERO_PARAM_ADDRESS_H

#include "zero/plan/unsharded.h"
#include "zero/runtime/context.h"

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

#endif
