/* calibrate_command.h - zerotrain calibrate. */
#ifndef ZEROTRAIN_CALIBRATE_COMMAND_H
#define ZEROTRAIN_CALIBRATE_COMMAND_H

#include "train/options/options.h"

/* Measures the rates of this machine with all ranks at work, prints them, and keeps them for fit, for settings that are
 * auto, and for advice (rates_cache.h). [collective] */
zero_status_t calibrate_command(zero_device_type_t type, zero_comm_t *comm);

/* ---- core waits ---- */
/* How long threads waited for a core: a sign that other processes took it. For calibrate. */

/* Returns the seconds that this process's threads, added up, could have run and had no core; 0 if the system does not
 * say. */
double core_waits_s(void);

#endif
