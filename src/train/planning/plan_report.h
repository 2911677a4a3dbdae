/* plan_report.h - what --plan shows. show_plan.c makes it; plan_report.c and plan_print.c show it. */
#ifndef ZEROTRAIN_PLAN_REPORT_H
#define ZEROTRAIN_PLAN_REPORT_H

#include "train/planning/solve.h"

#define PLAN_N_STAGES 4

/* The ranks that a plan is for. */
typedef struct plan_ranks {
    int n, n_hosts, per_host; /* per_host: of rank 0's host */
    int *hosts;               /* [n] by rank */
    zero_comm_kind_t memory_kind, traffic_kind;
} plan_ranks_t;

/* Of each stage: the most that a rank receives in a step, and what each host receives and sends. */
typedef struct plan_traffic {
    zero_traffic_t *ranks; /* [n] */
    uint64_t most_local[PLAN_N_STAGES], most_received[PLAN_N_STAGES];
    uint64_t to_gpu[PLAN_N_STAGES], to_host[PLAN_N_STAGES]; /* that each rank copies between host memory and its GPU */
    uint64_t (*received)[PLAN_N_STAGES], (*sent)[PLAN_N_STAGES]; /* [n_hosts] */
} plan_traffic_t;

#define PLAN_ROOM_UNKNOWN UINT64_MAX

/* What was chosen for settings that are auto. */
typedef struct plan_choice {
    bool is_made; /* false: nothing is auto, or no memory is known */
    fit_point_t point;
    uint64_t budget; /* that the plan may take */
} plan_choice_t;

typedef struct plan_report {
    const options_t *options; /* with the choice */
    const options_t *asked;   /* as given */
    plan_choice_t choice;
    plan_ranks_t ranks;
    uint64_t n_saved; /* parameters that checkpoints have: of adapters theirs */
    uint64_t n_params;
    /* The plans of all stages: at the least that the device can hold, with nothing offloaded, with all blocks kept. */
    zero_memory_t least[PLAN_N_STAGES], without[PLAN_N_STAGES], kept[PLAN_N_STAGES];
    uint64_t stash_bytes; /* of pinned host memory, for activations: in all of these plans */
    plan_traffic_t traffic;
    uint64_t room;             /* what a plan may take of a rank's device, or PLAN_ROOM_UNKNOWN */
    uint64_t checkpoint_bytes; /* of one checkpoint's arrays */
} plan_report_t;

/* Adds the stash's bytes, which leave and come back in each micro-step, to what each rank copies. */
void plan_add_stash(plan_report_t *report);
/* Adds what ranks that share sequences exchange in a step. */
void plan_add_exchanges(const model_t *model, plan_report_t *report);
/* What a rank copies to host memory while a checkpoint is written: 12 bytes for each element that it owns. 0: nothing.
 */
uint64_t plan_save_copy_bytes(const plan_report_t *report);
/* Returns whether every host receives and sends as much as host 0. */
bool plan_hosts_are_equal(const plan_report_t *report);

/* ---- plan print ---- */
/* The three forms in which --plan shows its report: plan_report.c, plan_print.c. */

void plan_print_bytes(const plan_report_t *report);    /* exact, a row each */
void plan_print_readable(const plan_report_t *report); /* GiB, and whether it fits */
zero_status_t plan_print_json(const plan_report_t *report);

#endif
