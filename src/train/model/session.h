/* session.h - a model on its device: what training, evaluating and generating have in common. */
#ifndef ZEROTRAIN_SESSION_H
#define ZEROTRAIN_SESSION_H

#include "train/model/model.h"

typedef struct session {
    const options_t *options; /* the caller's, which outlive it */
    zero_comm_t *comm;        /* also */
    zero_device_t *device;
    model_t model;
    zero_engine_t *engine;
} session_t;

/* Declares the model and opens the device, before anything is read or written: a missing device is a mistake in the
 * configuration. The caller closes the session, whatever is returned. [collective] */
zero_status_t session_open(const options_t *options, zero_comm_t *comm, session_t *session);
/* Takes the memory that is planned, of which the weights are to be filled next. n_in_flight: as in model_attach.
 * [collective] */
zero_status_t session_create_engine(session_t *session, int64_t n_in_flight);

/* Opens a session that only computes forward, without gradients and optimizer state, and loads the weights of
 * model.init. The caller closes it, whatever is returned. [collective] */
zero_status_t session_open_forward(const options_t *options, zero_comm_t *comm, session_t *session);

/* failed: peers may be gone. Then one of several ranks must not wait for them here, nor its device for theirs: it keeps
 * its engine and what that uses until main aborts the job. */
void session_close(session_t *session, bool failed);

#endif
