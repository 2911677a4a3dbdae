/* show_plan.h - --plan: the memory and the traffic of a run, without a run. */
#ifndef ZEROTRAIN_PLAN_SHOW_PLAN_H
#define ZEROTRAIN_PLAN_SHOW_PLAN_H

#include "train/options/options.h"

/* Prints to stdout (rank 0) what each rank would hold at every stage, by category; what it and its host would receive
 * in a step, for the hosts that the ranks are on or as many as --hosts says; whether it fits, and what disk and host
 * memory it needs. With --json as JSON. Allocates none of it. [collective] */
zero_status_t show_plan(const options_t *options, zero_comm_t *comm);

#endif
