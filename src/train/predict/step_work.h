/* step_work.h - what settings mean for the work of a step: the shape of the model, and which choices are timed
 * (step_time.h). */
#ifndef ZEROTRAIN_STEP_WORK_H
#define ZEROTRAIN_STEP_WORK_H

#include "train/options/options.h"
#include "train/rates/rates.h"

#define FIT_N_PRODUCTS 4
#define FIT_N_RECOMPUTES 3 /* none, light, full */

/* What settings mean for the model, in the letters of arch.h: R rows of a micro-step on a rank, C = dim, F = ffn_dim, V
 * = vocab_size, T = seq_len, A = heads * head_dim, K ranks that share a sequence. Doubles, since all of it is
 * multiplied. */
typedef struct fit_shape {
    bool is_llama, fuses_qkv, fuses_mlp, has_bias, has_head_norms, on_gpu, adds_locally, fp8, light, full;
    bool is_frozen; /* only adapters are trained */
    double L, R, C, A, F, V, T, K, keys, heads, head_dim, rotated, qkv;
    double products[FIT_N_PRODUCTS]; /* elements of a block's matrices; full does not recompute the last */
    double inner[FIT_N_PRODUCTS];    /* and their inputs' widths */
    double matrices, last_matrix;    /* their sum, and the last */
    double inputs, outputs;          /* widths of a block's four products, summed */
    double block, embed, head;       /* parameters of a unit, but for adapters */
    double adapters;                 /* of a block, all matrices together */
    double low_inputs;               /* widths of what backward multiplies for adapters' own gradients, summed */
    double low_outputs, low_d_x;     /* and of what they write: outputs, and gradients of inputs */
    double low_x, low_dy;            /* read for them alone: by forward of inputs; by backward of outputs' gradients */
    double low_read; /* outputs that are read first, to add to: of layers with a bias, or not covered whole */
    double param_bytes, grad_bytes; /* of an element, where it travels */
    double act_bytes;               /* of an activation's element */
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

fit_shape_t fit_shape_of(const options_t *options, const fit_machine_t *machine);
/* Returns the share of the parameters that is in host memory: no more than of the optimizer's state. */
double fit_params_ratio(const options_t *options, double state_ratio);
/* Returns the model's parameters, adapters included; those that are trained. */
double fit_n_params(const fit_shape_t *shape);
double fit_n_trained(const fit_shape_t *shape);

/* Returns how much a is more than b. */
static inline double fit_excess(double a, double b)
{
    return a > b ? a - b : 0.0;
}

/* ---- step parts ---- */
/* The parts of a step's time other than the model's compute, in seconds. For step_time.c. */

/* Seconds of one micro-step's forward and backward. */
typedef struct fit_passes {
    double forward, backward;
} fit_passes_t;

/* What communication costs a step: in all, and what compute waits for in the passes of the micro-step in which offload
 * copies. */
typedef struct fit_wire {
    double in_forward, in_backward, all;
} fit_wire_t;

/* Returns what communication costs with this compute to overlap. */
fit_wire_t fit_wire_s(const fit_work_t *work, const fit_variant_t *variant, fit_passes_t compute);

/* Returns what offload costs a step. The GPU's update: state comes in under backward and goes out under the next
 * forward, as far as there are idle activations to stage it and its gradients in. The rest is copied in behind that,
 * with its gradients, which were sent to the host meanwhile, and out. The host's: one pass over the state once the norm
 * is known, under the next forward. passes: their times, waits for other ranks included, since PCIe is idle then. */
double fit_offload_s(const fit_work_t *work, const fit_variant_t *variant, fit_passes_t passes);

/* Returns the share of AdamW's state that is in host memory. */
double fit_offloaded_share(const fit_work_t *work, const fit_variant_t *variant);
/* Returns the bytes of the optimizer's state arrays per parameter. */
double fit_array_bytes(const options_t *options);
/* Returns what the update of this rank's share takes. */
double fit_optimizer_s(const fit_work_t *work, const fit_variant_t *variant);

#endif
