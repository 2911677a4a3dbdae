/* search.h - all choices of one stage and micro-batch: how each block recomputes, what is offloaded and what is kept
 * are solved together, since each takes memory that another could use. For solve.c.
 *
 * Memory is a sum: what a mix of blocks takes, what an offload_ratio leaves, and what kept blocks add. So each of them
 * is planned once, and every combination is only added up and timed. For a mix and a ratio the most blocks that fit are
 * kept, since more of them never take longer.
 */
#ifndef ZEROTRAIN_FIT_SEARCH_H
#define ZEROTRAIN_FIT_SEARCH_H

#include "train/planning/choice.h"

/* The kinds of recomputation: of all blocks in the same way; or last blocks with none after light ones, after full
 * ones. */
typedef enum fit_kind {
    FIT_ALL_NONE,
    FIT_ALL_LIGHT,
    FIT_ALL_FULL,
    FIT_MIX_LIGHT,
    FIT_MIX_FULL,
    FIT_N_KINDS
} fit_kind_t;

/* The fastest choice of a kind with one offload_ratio. */
typedef struct fit_candidate {
    double ms; /* INFINITY: nothing fits, or nothing that is as fast as others of this stage and micro-batch */
    int64_t none, light, keep;
} fit_candidate_t;

typedef struct fit_group {
    fit_choice_t choice; /* what its candidates share; what they do not is as it was given */
    bool is_mix;
    int n; /* of the ratios of fit_nth_ratio, or of the one that is given; 0: the host has no room for that */
    double most_ratio; /* NAN: it is given */
    fit_candidate_t candidates[FIT_RATIOS + 1];
} fit_group_t;

/* Finds the candidates of choice->stage and choice->micro_batch; n_groups: FIT_N_KINDS, or one if recomputation is
 * given. Those slower than the fastest by more than FIT_TIE may be left out of mixes. */
zero_status_t fit_search(fit_t *fit, const fit_choice_t *choice, fit_group_t groups[FIT_N_KINDS], int *n_groups);

/* Returns the choice that a candidate is. */
fit_choice_t fit_candidate_choice(const fit_group_t *group, int i);

#endif
