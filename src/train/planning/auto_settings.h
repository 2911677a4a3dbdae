/* auto_settings.h - decides what the settings of a run leave auto, and whether the run fits, before step 0. */
#ifndef ZEROTRAIN_AUTO_SETTINGS_H
#define ZEROTRAIN_AUTO_SETTINGS_H

#include "train/planning/solve.h"

/* Sets the settings that are auto to those with which a step is predicted to be fastest in the memory that is free on
 * every rank, and says which. Does nothing if none is. Opens the device and closes it again. [collective] */
zero_status_t fit_choose_auto(options_t *options, zero_comm_t *comm);

/* Returns whether the settings leave anything open that depends on memory. */
bool fit_leaves_open(const options_t *options);

/* Sets what the options leave auto to the fastest that a plan of `budget` bytes allows. *chosen: what that takes. If
 * nothing fits, reports what would, and returns ZERO_ERROR_MEMORY. */
zero_status_t fit_choose(options_t *options, const fit_machine_t *machine, uint64_t budget, fit_point_t *chosen);

/* If [train] sequence_ranks is auto, sets it to the fewest ranks, from its present value on, with which a plan of
 * `budget` bytes is possible, and the batch with it; if none is, to the most. options: resolved. */
zero_status_t fit_choose_sequence_ranks(options_t *options, const fit_machine_t *machine, uint64_t budget);

/* Writes what was chosen: "stage 3, recompute none, micro_batch 8; 1.00 of 2.00 GiB, predicted 500 ms a step". asked:
 * the options before. */
void fit_describe_point(const options_t *asked, const fit_point_t *point, uint64_t budget, char *text, size_t n_bytes);

/* Returns the available bytes, or [device] memory if that is less. */
uint64_t fit_limited(const device_options_t *options, uint64_t available);

/* Sets offload_grads to host if it is auto and a plan of `budget` bytes has no room for the sums of gradients. options:
 * with nothing else auto but offload_ratio and keep. */
zero_status_t fit_settle_grads(options_t *options, const fit_machine_t *machine, uint64_t budget);

/* Returns ZERO_ERROR_MEMORY if the run does not fit into what is free on every rank, after lines that say what holds
 * how much and what would fit. *planned: what each rank will hold. Sets offload_grads, if it is auto, to host where
 * sums of gradients must leave. [collective] */
zero_status_t fit_check(options_t *options, zero_comm_t *comm, const zero_device_t *device, zero_memory_t *planned);

/* As fit_check, for a run that only computes forward. Sets offload_params_ratio, if it is auto, to the least that fits
 * into [device] memory. Opens the device and closes it again. [collective] */
zero_status_t fit_check_forward(options_t *options, zero_comm_t *comm);

/* If memory ran out although the plan fits (status: ZERO_ERROR_MEMORY), says on this rank what the plan is and who
 * holds the device's memory. Returns status. */
zero_status_t fit_explain(zero_status_t status, const zero_memory_t *planned, const zero_device_t *device);

/* Finds the least of what is free on the ranks' devices. [collective] */
zero_status_t fit_find_available(zero_comm_t *comm, const zero_device_t *device, uint64_t *available);

/* Finds what the ranks of a host may take of its memory for offload, of the host where each may take least.
 * [collective] */
zero_status_t fit_find_host_bytes(const zero_options_t *options, zero_comm_t *comm, int ranks_per_host,
                                  uint64_t *host_bytes);

#endif
