/* muon_update.h - Muon's update of the hidden layers' matrices. */
#ifndef ZERO_MUON_UPDATE_H
#define ZERO_MUON_UPDATE_H

#include "zero/runtime/context.h"

typedef struct zero_muon_update zero_muon_update_t;

/* Writes to the device what is updated. *update is NULL if no matrix is. The context must outlive it. */
zero_status_t zero_muon_update_create(zero_context_t *context, zero_muon_update_t **update);
void zero_muon_update_destroy(zero_muon_update_t *update); /* NULL is allowed */
/* Queues the update of all matrices in `stream`: the step has been decided there. update: NULL does nothing.
 * [collective] */
zero_status_t zero_muon_update_run(zero_muon_update_t *update, zero_stream_t stream);

#endif
