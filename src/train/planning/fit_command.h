/* fit_command.h - zerotrain fit. */
#ifndef ZEROTRAIN_FIT_FIT_COMMAND_H
#define ZEROTRAIN_FIT_FIT_COMMAND_H

#include "train/options/options.h"
#include "train/rates/rates.h"

/* Prints the settings with which a step is predicted to be fastest, on rank 0. Opens no GPU. Returns ZERO_ERROR_MEMORY
 * if none fits. */
zero_status_t fit_command(options_t *options, zero_comm_t *comm);

/* Finds the rates and the memory, less CUDA's, of the GPU that --gpu and --gpu-memory describe; without --gpu of the
 * one that calibrate measured last, or of an H200. [collective] */
zero_status_t fit_describe_gpu(const fit_options_t *options, bool in_fp8, zero_comm_t *comm, fit_rates_t *rates,
                               uint64_t *available);

/* Returns what a host that --host-memory describes lets its ranks take for offload together, or FIT_HOST_UNKNOWN. */
uint64_t fit_described_host_bytes(const fit_options_t *options, double offload_ram);

#endif
