/* async.h - what the parts of the asynchronous device share: streams and events (async_device.c), kernels.c,
 * transport.c. */
#ifndef ZERO_ASYNC_H
#define ZERO_ASYNC_H

#include "kernels/shard.h"
#include "tests/support/async/async_device.h"

#define ASYNC_PATIENCE_S 30 /* of a wait in a stream: a deadlock ends the program */

const async_options_t *async_options(void);
const zero_shard_kernels_t *async_cpu_kernels(void);
void async_count(async_call_t call, unsigned n);
/* Waits for all streams. */
void async_finish(void);

/* Notes what kind of work was queued in the stream last: some faults are about the events recorded behind it. */
typedef enum async_end {
    ASYNC_ENDS_OTHERWISE,
    ASYNC_ENDS_IN_SUM,
    ASYNC_ENDS_IN_INNER_FENCE /* of a gather over rails */
} async_end_t;
void async_mark_end(zero_stream_t stream, async_end_t end);

/* While the transport over several hosts is created: streams made meanwhile are its own. */
void async_set_joining(bool joins);
/* In a gather over rails. */
void async_set_gathering(bool gathers);

/* Puts the kernels that are queued in place of the CPU's. */
void async_kernels_fill(zero_shard_kernels_t *kernels);

/* The device's `join`: makes its transport. One that adds is asked for nothing else. */
zero_status_t async_join(zero_device_t *device, zero_comm_t *host, bool adds, zero_comm_t **bulk);

#endif
