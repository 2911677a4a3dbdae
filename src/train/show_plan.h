/* show_plan.h - --plan: what a run would hold, without a run. */
#ifndef ZEROTRAIN_SHOW_PLAN_H
#define ZEROTRAIN_SHOW_PLAN_H

#include "train/options/options.h"

/* Prints to stdout (rank 0) what each rank will hold at every stage, by category; allocates nothing of it. */
zero_status_t show_plan(const options_t *options, const zero_comm_t *comm);

#endif
