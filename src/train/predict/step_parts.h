/* step_parts.h - the parts of a step's time beside the model's compute, in seconds. For step_time.c. */
#ifndef ZEROTRAIN_PREDICT_STEP_PARTS_H
#define ZEROTRAIN_PREDICT_STEP_PARTS_H

#include "train/predict/step_work.h"

/* Seconds of one micro-step's forward and backward. */
typedef struct fit_passes {
    double forward, backward;
} fit_passes_t;

/* What communication costs a step: in all, and what compute waits for in the micro-step's passes beside which offload
 * copies. */
typedef struct fit_wire {
    double in_forward, in_backward, all;
} fit_wire_t;

/* Returns what communication costs beside this compute. */
fit_wire_t fit_wire_s(const fit_work_t *work, const fit_variant_t *variant, fit_passes_t compute);

/* Returns what offload costs a step. The GPU's update: state comes in under backward and goes out under the next
 * forward, as far as there are idle activations to stage it and its gradients in. The rest is copied in behind that,
 * with its gradients, which were sent to the host meanwhile, and out. The host's: one pass over the state once the norm
 * is known, under the next forward. beside: what the passes take, waits for other ranks included, since PCIe is idle
 * then. */
double fit_offload_s(const fit_work_t *work, const fit_variant_t *variant, fit_passes_t beside);

/* Returns what the update of this rank's share takes. */
double fit_optimizer_s(const fit_work_t *work, const fit_variant_t *variant);

#endif
