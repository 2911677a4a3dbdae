/* step_time.h - predicts how long a training step takes: pure arithmetic on settings and rates.
 *
 * Matrix products and attention take FLOPs at the device's rates; everything else of a layer passes over memory. What
 * travels between ranks, and between GPU and host, overlaps compute, so only the part that exceeds compute counts.
 */
#ifndef ZEROTRAIN_STEP_TIME_H
#define ZEROTRAIN_STEP_TIME_H

#include "train/predict/step_work.h"

/* Milliseconds of a step, by part. */
typedef struct fit_time {
    double products; /* matrix products */
    double attention;
    double passes;    /* norms, activation functions, casts to fp8, loss, sums of gradients; kernels' starts */
    double optimizer; /* AdamW */
    double wire;      /* waiting for other ranks, and what communication takes from compute */
    double pcie;      /* waiting for copies from and to host memory, and for the host's AdamW */
    double total;
} fit_time_t;

/* Prepares predictions. options and machine are kept, and their stage and batch must not change. */
void fit_work_of(const options_t *options, const fit_machine_t *machine, fit_work_t *work);
/* Predicts a step; costs no more than arithmetic on a few dozen numbers. */
fit_time_t fit_work_time(const fit_work_t *work, const fit_variant_t *variant);
/* The same in two parts. The first, compute and communication, does not depend on offload_ratio; no step takes less.
 * The second adds the optimizer and copies from and to host memory. with_waits: the passes that copies run beside. */
fit_time_t fit_resident_time(const fit_work_t *work, const fit_variant_t *variant, fit_passes_t *with_waits);
fit_time_t fit_add_offload(const fit_work_t *work, const fit_variant_t *variant, fit_passes_t with_waits,
                           fit_time_t resident);

/* Predicts a step with settings that are resolved (options_resolve), none of them auto. activation_bytes: what
 * offloaded state can be staged in. */
fit_time_t fit_step_time(const options_t *options, const fit_machine_t *machine, double activation_bytes);

#endif
