/* state_share.h - stage 0: the state that was set, from its owners to all ranks. */
#ifndef ZERO_STATE_SHARE_H
#define ZERO_STATE_SHARE_H

#include "zero/runtime/context.h"

/* Sends weights and moments from each owner to the others, where every rank holds all of them. [collective] */
zero_status_t zero_state_share(zero_context_t *context);

#endif
