/* run_info.h - what a run says of itself in the first row of metrics that it writes, for those who read them later. */
#ifndef ZEROTRAIN_RUN_INFO_H
#define ZEROTRAIN_RUN_INFO_H

#include "train/options/options.h"

/* Returns in *text, for free(), a JSON object of one line: program, ranks, hosts and their machines, memory by
 * category, parameters and configuration. Only rank 0 gets it, the others NULL. If metrics are not written it is NULL
 * everywhere. [collective] */
zero_status_t run_info_text(const options_t *options, zero_comm_t *comm, const zero_device_t *device,
                            const zero_engine_t *engine, uint64_t n_params, char **text);

#endif
