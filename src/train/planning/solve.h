/* solve.h - finds the settings with which a step is predicted to be fastest within a number of bytes. All that the
 * options leave auto is tried together (search.h). No device is needed. */
#ifndef ZEROTRAIN_SOLVE_H
#define ZEROTRAIN_SOLVE_H

#include "train/planning/choice.h"

typedef struct fit_result {
    /* By memory: for every stage, micro-batch and kind of recomputation the fastest choice, or one as fast that is
     * simpler; of blocks that recompute differently, if nothing that is simpler is faster. */
    fit_point_t *points;
    int n_points;
    int best;  /* -1: none fits */
    int least; /* that takes the least memory; -1: there is no choice at all */
} fit_result_t;

/* Tries every choice. The caller frees result->points. */
zero_status_t fit_solve(fit_t *fit, fit_result_t *result);
/* Returns whether fit_solve tries both values of keep_attention, and takes the faster. */
bool fit_may_keep_attention(const fit_t *fit);
/* As fit_solve with one of them, which fit->asked then has. */
zero_status_t fit_solve_with(fit_t *fit, bool keep_attention, fit_result_t *result);

/* Finds whether any choice fits, by those that take the least memory. Much faster than fit_solve. */
zero_status_t fit_find_whether_any_fits(fit_t *fit, bool *fits);

#endif
