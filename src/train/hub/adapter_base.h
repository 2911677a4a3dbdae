/* adapter_base.h - which model an adapter belongs to, as its state.json says: the weights in a directory, or the random
 * model of a seed. An adapter changes what one model computes, and over another it is noise.
 */
#ifndef ZEROTRAIN_ADAPTER_BASE_H
#define ZEROTRAIN_ADAPTER_BASE_H

#include <jansson.h>

#include "train/options/options.h"

/* Returns a number that tells models apart, of names, shapes and some of the bytes of all tensors in a directory. */
zero_status_t adapter_base_sample(const char *directory, uint64_t *sample);
/* Returns what an adapter's state.json says of this run's model, which is `sample` unless that is random. NULL: no
 * memory. */
json_t *adapter_base_json(const options_t *options, uint64_t sample);
/* Refuses an adapter of a run of zerotrain's that was trained on another model than this run's, by name: a checkpoint's
 * state.json says which. Other adapters do not say it. */
zero_status_t adapter_check_base(const char *adapter, const options_t *options);

#endif
