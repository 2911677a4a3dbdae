/* collectives.h - windows in memory that no peer reads, for transports that send messages or have one rank. The small
 * collectives themselves are declared in zero.h. */
#ifndef ZERO_COLLECTIVES_H
#define ZERO_COLLECTIVES_H

#include "comm/comm.h"

zero_status_t zero_private_window_create(zero_comm_t *comm, size_t n_bytes, zero_window_t *window);
void zero_private_window_destroy(zero_comm_t *comm, zero_window_t *window);
/* Does nothing: the collectives order themselves. Also used by transports between GPUs whose windows no peer reads. */
zero_status_t zero_private_window_fence(zero_comm_t *comm, zero_lane_t lane, zero_stream_t stream);

#endif
