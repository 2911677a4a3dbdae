/* step_time.h - predicts how long a training step takes: pure arithmetic on settings and rates.
 *
 * Matrix products and attention take FLOPs at the device's rates; everything else of a layer passes over memory. What
 * travels between ranks, and between GPU and host, runs beside compute, so that only what does not fit under it counts.
 */
#ifndef ZEROTRAIN_FIT_STEP_TIME_H
#define ZEROTRAIN_FIT_STEP_TIME_H

#include "train/fit/rates.h"
#include "train/options/options.h"

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

#define FIT_N_PRODUCTS 4
#define FIT_N_RECOMPUTES 3 /* none, light, full */

/* What settings mean for the model, in the letters of step_time.c. Doubles, since all of it is multiplied. */
typedef struct fit_shape {
    bool is_llama, has_bias, has_head_norms, on_gpu, adds_locally, fp8, exact_dw, light, full;
    double L, R, C, A, F, V, T, keys, heads, head_dim, rotated, qkv;
    double products[FIT_N_PRODUCTS]; /* elements of a block's matrices; full does not recompute the last */
    double inner[FIT_N_PRODUCTS];    /* and their inputs' widths */
    double matrices, last_matrix;    /* their sum, and the last */
    double inputs, outputs;          /* widths of a block's four products, summed */
    double block, embed, head;       /* parameters of a unit */
    double param_bytes, grad_bytes;  /* of an element, where it travels */
    double act_bytes;                /* of an activation's element */
    double micro_steps;
} fit_shape_t;

/* Seconds of compute, by part. */
typedef struct fit_compute {
    double products, attention, passes;
} fit_compute_t;

/* What many choices of recomputation, offload and keep have in common: the same stage and micro-batch. */
typedef struct fit_work {
    const options_t *options;
    const fit_machine_t *machine;
    fit_shape_t shape;
    fit_compute_t head;                                                  /* of one micro-step */
    fit_compute_t forward[FIT_N_RECOMPUTES], backward[FIT_N_RECOMPUTES]; /* of one block */
} fit_work_t;

/* Such a choice. */
typedef struct fit_variant {
    int64_t blocks[FIT_N_RECOMPUTES]; /* that recompute nothing, cheap operations, everything */
    double offload_ratio;
    int64_t keep;
    double activation_bytes; /* what offloaded state can be staged in */
} fit_variant_t;

/* Prepares predictions. options and machine are kept, and their stage and batch must not change. */
void fit_work_of(const options_t *options, const fit_machine_t *machine, fit_work_t *work);
/* Predicts a step; costs no more than arithmetic on a few dozen numbers. */
fit_time_t fit_work_time(const fit_work_t *work, const fit_variant_t *variant);

/* Predicts a step with settings that are resolved (options_resolve), none of them auto. activation_bytes: what
 * offloaded state can be staged in. */
fit_time_t fit_step_time(const options_t *options, const fit_machine_t *machine, double activation_bytes);

#endif
