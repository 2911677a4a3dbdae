/* merge.h - zerotrain merge: makes one model of a model and its adapter; zerotrain export: of a checkpoint. */
#ifndef ZEROTRAIN_MERGE_H
#define ZEROTRAIN_MERGE_H

#include "train/options/options.h"

/* Writes the directory options->merge_out: the files of model.init, with W + scale B A in place of every matrix W that
 * the adapter in lora.init, if there is one, has an A and a B for, rounded once to W's dtype. The options are as
 * adapter_config_apply leaves them. Needs no device; one tensor at a time is in memory. The directory gets its name
 * when all is on the disk. */
zero_status_t merge_write(const options_t *options);

#endif
