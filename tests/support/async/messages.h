/* messages.h - messages between ranks in the streams of the asynchronous device, as NCCL's: the transport between
 * hosts that its rails are tested with. */
#ifndef ZERO_ASYNC_MESSAGES_H
#define ZERO_ASYNC_MESSAGES_H

#include "comm/comm.h"

/* Joins the ranks of `host`, which ZERO_HOST_ID has made several hosts out of one. */
zero_comm_t *async_messages_create(zero_comm_t *host);

#endif
