/* calibrate_command.h - zerotrain calibrate. */
#ifndef ZEROTRAIN_CALIBRATE_CALIBRATE_COMMAND_H
#define ZEROTRAIN_CALIBRATE_CALIBRATE_COMMAND_H

#include "train/options/options.h"

/* Measures the rates of this machine with all ranks at work, prints them, and keeps them for fit, for settings that are
 * auto, and for advice (fit/rates_cache.h). [collective] */
zero_status_t calibrate_command(const options_t *options, zero_comm_t *comm);

#endif
