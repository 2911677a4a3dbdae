/* choice.h - one choice of what the options leave auto (stage, micro-batch, how each block recomputes, what is
 * offloaded and what is kept), its memory and its time. Memory is libzero's plan and the model's, exact to the byte;
 * time is step_time.h's. */
#ifndef ZEROTRAIN_FIT_CHOICE_H
#define ZEROTRAIN_FIT_CHOICE_H

#include "train/model/model.h"
#include "train/predict/step_time.h"

/* Times closer than this share of the least count as equal. Then the simpler choice wins: less offloaded, less
 * recomputed (all blocks in the same way before a mix), a lower stage, fewer micro-steps; of those that differ in no
 * more than the mix and what is kept, the fastest. */
#define FIT_TIE 0.005
/* offload_ratio = auto is tried in steps of 1 / this, up to the most that the host's memory allows. */
#define FIT_RATIOS 32
#define FIT_PARAMS_RATIOS 8 /* offload_params_ratio = auto is tried in steps of 1 / this */

#define FIT_MOST_ORDERED_GPUS 256 /* libzero's limit, unless NCCL sums */

typedef struct fit_choice {
    int stage, recompute;
    int64_t none, light; /* recompute_none and recompute_light of options_t.model */
    int64_t micro_batch;
    double offload_ratio; /* 0: nothing, or the options don't offload */
    double params_ratio;  /* [zero] offload_params_ratio; 0: none, or offload is not all */
    double activations;   /* [model] offload_activations */
    int64_t keep;
    bool keep_attention; /* of [model] */
    int offload_grads;   /* zero_offload_grads_t */
} fit_choice_t;

/* What a choice takes. */
typedef struct fit_point {
    fit_choice_t choice;
    zero_memory_t memory;
    uint64_t bytes; /* of the device: zero_memory_total */
    fit_time_t time;
    bool fits;           /* the device and, with what is offloaded, the host */
    bool is_on_frontier; /* nothing else takes as little memory and as little time */
} fit_point_t;

/* The engine's plan for a choice, kept since many choices share it. */
typedef struct fit_plan {
    int stage;
    bool accumulates;
    int offload_grads;
    double offload_ratio, params_ratio;
    int64_t keep;
    zero_memory_t memory;
} fit_plan_t;

typedef struct fit {
    options_t options; /* the choice that is looked at is set here */
    options_t asked;   /* as they were given */
    fit_machine_t machine;
    uint64_t budget;      /* bytes that a plan may take of a device */
    uint64_t host_budget; /* and of the host's memory, for what is offloaded */
    model_t model;
    fit_plan_t *plans;
    int n_plans, max_plans;
} fit_t;

/* options: resolved for machine's ranks (options_resolve), with what is auto left so, and device.type the device that
 * the plan is for. */
zero_status_t fit_create(const options_t *options, const fit_machine_t *machine, uint64_t budget, fit_t **fit);
void fit_destroy(fit_t *fit); /* NULL is allowed */

/* Finds memory and time of a choice, and its offload_ratio and keep if those are auto: the least ratio and then the
 * most blocks that fit; the most that the host can take and 0 if nothing does. If offload_grads is auto, sums of
 * gradients leave where the choice fits only so. */
zero_status_t fit_evaluate(fit_t *fit, const fit_choice_t *choice, fit_point_t *point);

/* What a choice leaves open of what libzero plans, and whether it offloads at all. */
typedef struct fit_open {
    bool offloads, ratio, keep, grads;
} fit_open_t;
fit_open_t fit_find_open(const fit_t *fit, const fit_choice_t *choice);
/* Returns whether sums of gradients may leave the device with this offload_grads, if nothing fits with them there. */
bool fit_sums_may_leave(const fit_t *fit, int offload_grads);
/* Finds libzero's plan for what fit->options say. */
zero_status_t fit_plan_of(fit_t *fit, const zero_memory_t **memory);
/* Finds the largest offload_ratio that the host has room for, of what fit->options say; 0: none. Changes their ratio.
 */
zero_status_t fit_find_most_ratio(fit_t *fit, double *ratio);
/* Returns whether the host has room for what a plan and the model's activations, as fit->options say, take of it. */
bool fit_host_has_room(const fit_t *fit, const zero_memory_t *plan);
/* Returns the ratios that are tried, in order: 0, 1 / FIT_RATIOS ... and, last, `most`. */
double fit_nth_ratio(int i, double most);
/* Returns how many ranks share a host's memory. */
int fit_ranks_of_host(const fit_machine_t *machine);

/* Returns whether blocks recompute differently. */
bool fit_is_mixed(const fit_choice_t *choice);

/* Sets the options to a choice. */
void fit_apply(const fit_choice_t *choice, options_t *options);
/* Returns the choice that options without auto settings are. */
fit_choice_t fit_choice_of(const options_t *options);

#endif
