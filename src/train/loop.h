/* loop.h - a training run: from a resolved configuration to the last step. */
#ifndef ZEROTRAIN_LOOP_H
#define ZEROTRAIN_LOOP_H

#include "train/options.h"

/* Trains, evaluates, samples, logs. [collective] */
zero_status_t loop_run(const options_t *options, zero_comm_t *comm);

/* Prints to stdout (rank 0) what each rank will hold at every stage, by category; allocates nothing. */
zero_status_t loop_print_plan(const options_t *options, const zero_comm_t *comm);

/* libzero's configuration from the options. */
zero_config_t loop_config(const options_t *options, int world_size);

#endif
