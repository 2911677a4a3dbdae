/* fit_command.h - zerotrain fit. */
#ifndef ZEROTRAIN_FIT_FIT_COMMAND_H
#define ZEROTRAIN_FIT_FIT_COMMAND_H

#include "train/options/options.h"

/* Prints the settings with which a step is predicted to be fastest, on rank 0. Opens no GPU. Returns ZERO_ERROR_MEMORY
 * if none fits. */
zero_status_t fit_command(options_t *options, const zero_comm_t *comm);

#endif
