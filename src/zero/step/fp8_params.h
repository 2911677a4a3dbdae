/* fp8_params.h - parameters that are gathered in fp8: their scales and bytes, made anew from the bf16 parameters
 * whenever these have changed. */
#ifndef ZERO_FP8_PARAMS_H
#define ZERO_FP8_PARAMS_H

#include "zero/runtime/context.h"

typedef struct zero_fp8_params zero_fp8_params_t;

/* *params is NULL if nothing is gathered in fp8; the other functions then do nothing. */
zero_status_t zero_fp8_params_create(zero_context_t *context, zero_fp8_params_t **params);
void zero_fp8_params_destroy(zero_fp8_params_t *params);

/* Makes scales and bytes of units first ... end - 1, whose bf16 parameters have changed in `stream`. Ranks meet in
 * `lane`. A fence must follow before peers gather the bytes. */
zero_status_t zero_fp8_params_refresh(zero_fp8_params_t *params, zero_unit_t first, zero_unit_t end, zero_lane_t lane,
                                      zero_stream_t stream);

#endif
