/* settle.h - decides what the settings of a run leave auto, and whether the run fits, before step 0. */
#ifndef ZEROTRAIN_FIT_SETTLE_H
#define ZEROTRAIN_FIT_SETTLE_H

#include "train/options/options.h"

/* Sets the settings that are auto to those with which a step is predicted to be fastest in the memory that is free on
 * every rank, and says which. Does nothing if none is. Opens the device and closes it again. [collective] */
zero_status_t fit_settle(options_t *options, zero_comm_t *comm);

/* Returns ZERO_ERROR_MEMORY if the run does not fit into what is free on every rank, after lines that say what holds
 * how much and what would fit. *planned: what each rank will hold. [collective] */
zero_status_t fit_check(const options_t *options, zero_comm_t *comm, const zero_device_t *device,
                        zero_memory_t *planned);

/* If memory ran out although the plan fits (status: ZERO_ERROR_MEMORY), says on this rank what the plan is and who
 * holds the device's memory. Returns status. */
zero_status_t fit_explain(zero_status_t status, const zero_memory_t *planned, const zero_device_t *device);

/* Finds the least of what is free on the ranks' devices. [collective] */
zero_status_t fit_find_available(zero_comm_t *comm, const zero_device_t *device, uint64_t *available);

#endif
