/* async_device.h - a device of the CPU's memory and kernels whose streams are threads: work is queued, done later, and
 * ordered by nothing but streams, events and the transport's fences, as on a GPU. Random delays before every piece of
 * work make each rank and stream run at its own speed.
 *
 * It finds what a GPU would hide most of the time: a wait that is missing between two streams, a slot that is written
 * before its readers are done. To show that it would, single kinds of waits can be taken out (`fault`).
 *
 * Its transport reads peers' windows, which are shared memory, with fences by epochs in each lane: what copy_engine.c
 * does with copy engines and stream memory operations. One device a process.
 */
#ifndef ZERO_ASYNC_DEVICE_H
#define ZERO_ASYNC_DEVICE_H

#include "zero/device/device.h"

typedef enum async_fault {
    ASYNC_NO_FAULT,
    ASYNC_COMPUTE_AHEAD_OF_GATHER, /* compute does not wait for what gather streams recorded */
    ASYNC_GATHER_AHEAD_OF_COMPUTE, /* nor they for compute: slots are overwritten in use, weights read too early */
    ASYNC_REDUCE_AHEAD_OF_COMPUTE, /* slices transfer before they are written, staging is reused before it is read */
    ASYNC_COMPUTE_AHEAD_OF_REDUCE, /* sums before slices have come */
    ASYNC_STAGING_BEFORE_SUM,      /* slices transfer into staging that has not been read yet */
    ASYNC_NO_FENCE,                /* fences do not wait for peers */
    ASYNC_HOST_AHEAD_OF_DEVICE,    /* offload: gradients leave before they are whole, updates before they are decided */
    ASYNC_DEVICE_AHEAD_OF_HOST,    /* offload: parameters are gathered before they are updated */
    ASYNC_COMPUTE_AHEAD_OF_COPY,   /* offload: sums and activations are written where others have yet to leave */
    /* offload, where the device updates what passes through it: */
    ASYNC_UPDATE_AHEAD_OF_DECISION, /* state is updated before the step is decided */
    ASYNC_UPDATE_AHEAD_OF_FETCH,    /* ... before it is there */
    ASYNC_STORE_AHEAD_OF_UPDATE,    /* it goes home before it is updated */
    ASYNC_FETCH_AHEAD_OF_STORE,     /* other state comes where it has yet to go home */
    ASYNC_FETCH_AHEAD_OF_GRADS,     /* gradients come back before they have left */
    ASYNC_GATHER_AHEAD_OF_UPDATE,   /* parameters are gathered before they are updated */
    ASYNC_FETCH_AHEAD_OF_COMPUTE,   /* it comes into activations that are in use */
    ASYNC_N_FAULTS
} async_fault_t;

typedef struct async_options {
    uint64_t seed;         /* of this rank's delays */
    unsigned max_delay_us; /* before a piece of work; most are much shorter */
    unsigned slow_gathers; /* so many times as long in the stream that gathers; 0: once */
    uint64_t available;    /* bytes that are free, as the device tells; 0: the machine's */
    bool pins;             /* host memory can be pinned; it makes no other difference here */
    async_fault_t fault;
} async_options_t;

zero_status_t async_device_create(const zero_comm_t *comm, const async_options_t *options, zero_device_t **device);

/* Calls of the driver that the engine has made so far, by kind, had it worked on copy engines: comm/gpu/copy_engine.c's
 * for each of the transport's, whatever the number of ranks. */
#define ASYNC_CALL_MAP(X)                                                                                              \
    X(RECORD, "record")      /* of an event that orders */                                                             \
    X(TIMED, "timed record") /* of one that tells when */                                                              \
    X(WAIT, "stream wait")   /* of a stream for an event */                                                            \
    X(COPY, "copy")          /* of this rank's own memory */                                                           \
    X(BATCH, "batch of pulls")                                                                                         \
    X(FENCE, "memory ops") /* a fence's */                                                                             \
    X(KERNEL, "kernel")                                                                                                \
    X(HOST_CALL, "host call")

typedef enum async_call {
#define CALL(kind, name) ASYNC_##kind,
    ASYNC_CALL_MAP(CALL)
#undef CALL
        ASYNC_N_CALLS
} async_call_t;

uint64_t async_n_calls(async_call_t call);
const char *async_call_name(async_call_t call);

/* The stream that the test computes in, after the engine has made its own. */
void async_compute_in(zero_stream_t stream);

/* Queues work of the caller's own: run(args), args copied (n_bytes at most ASYNC_ARGS_BYTES). stream NULL is a stream
 * too. */
#define ASYNC_ARGS_BYTES 448
void async_queue(zero_stream_t stream, void (*run)(void *args), const void *args, size_t n_bytes);

#endif
