/* advice.h - which changes of the settings would make a plan fit, and what they cost. */
#ifndef ZEROTRAIN_FIT_ADVICE_H
#define ZEROTRAIN_FIT_ADVICE_H

#include "train/planning/solve.h"

#define FIT_MOST_ADVICE 3

typedef struct fit_advice {
    fit_point_t points[FIT_MOST_ADVICE]; /* by time, each with other changes */
    bool offloads[FIT_MOST_ADVICE];      /* it offloads, and the given settings do not */
    int n_points;
    /* Twice as many ranks, or four times, ... with which the given settings fit or, if they do on no number, those that
     * take the least memory; each rank has as much work as before. 0: none was found. */
    int n_ranks;
    fit_point_t on_ranks;
} fit_advice_t;

/* given: what the options of fit ask for, which does not fit. */
zero_status_t fit_advise(const fit_t *fit, const fit_point_t *given, fit_advice_t *advice);

/* Reports what holds how much of a plan, a line each: as rank 0's, or as this rank's own, with its number. */
void fit_report_memory(const zero_memory_t *memory, bool is_own);

/* Reports what holds how much of a plan that does not fit, and the advice. Returns ZERO_ERROR_MEMORY, or why there is
 * no advice. */
zero_status_t fit_refuse(const fit_t *fit, const fit_point_t *given);

#endif
