/* plan.h - decides every buffer of an engine before anything is allocated. Pure arithmetic.
 *
 * The engine allocates the two arenas of the plan (plan_arenas.h) and follows; --plan prints the same numbers.
 */
#ifndef ZERO_PLAN_H
#define ZERO_PLAN_H

#include "zero/plan/plan_arenas.h"

/* Refuses a device type that is not resolved. call: the caller's name. */
zero_status_t zero_plan_check_device(const char *call, zero_device_type_t device);

zero_status_t zero_arena_plan_create(const zero_model_t *model, const zero_layout_t *layout,
                                     const zero_config_t *config, zero_plan_target_t target, zero_arena_plan_t *plan);
void zero_arena_plan_destroy(zero_arena_plan_t *plan);

/* Returns the offload_ratio with which all units from `first` on are offloaded, and no more. */
float zero_plan_ratio_from(const zero_layout_t *layout, zero_unit_t first);
/* Finds the smallest offload_ratio with which a plan, with config's user_bytes, needs at most `available` bytes of the
 * device, whatever config's own ratio is; 1 if even that needs more. */
zero_status_t zero_plan_smallest_offload(const zero_model_t *model, const zero_layout_t *layout,
                                         const zero_config_t *config, zero_plan_target_t target, uint64_t available,
                                         float *ratio);
/* Finds the smallest offload_params with which it does, whatever config's own is; 1 if even that needs more. */
zero_status_t zero_plan_smallest_params(const zero_model_t *model, const zero_layout_t *layout,
                                        const zero_config_t *config, zero_plan_target_t target, uint64_t available,
                                        float *share);
/* Finds the largest `keep` with which it does, whatever config's own is; 0 if none does, and where parameters are not
 * sharded. */
zero_status_t zero_plan_largest_keep(const zero_model_t *model, const zero_layout_t *layout,
                                     const zero_config_t *config, zero_plan_target_t target, uint64_t available,
                                     int *keep);

#endif
