/* forward.h - a model that is only computed forward: its device, parameters and activations, without gradients and
 * optimizer state. */
#ifndef ZEROTRAIN_FORWARD_H
#define ZEROTRAIN_FORWARD_H

#include "train/model/model.h"

typedef struct forward {
    const options_t *options; /* the caller's, which outlive it */
    zero_comm_t *comm;        /* also */
    zero_device_t *device;
    model_t model;
    zero_engine_t *engine;
} forward_t;

/* Opens the device and loads the weights of model.init. The caller closes it, whatever is returned. [collective] */
zero_status_t forward_open(const options_t *options, zero_comm_t *comm, forward_t *forward);
/* failed: peers may be gone. Then one of several ranks must not wait for them, and keeps what they may read until main
 * aborts the job. */
void forward_close(forward_t *forward, bool failed);

#endif
