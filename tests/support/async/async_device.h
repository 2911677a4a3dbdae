/* async_device.h - a device with the CPU's memory and kernels whose streams are threads. Work is queued, done later,
 * and ordered only by streams, events and the transport's fences, as on a GPU. Random delays before each work item make
 * each rank and stream run at its own speed.
 *
 * It finds what a GPU would hide most of the time: a missing wait between two streams, or a buffer that is overwritten
 * before its readers are done. To prove that it would, single kinds of waits can be left out (`fault`).
 *
 * Its transport reads peers' windows, which are shared memory, with fences by epochs in each lane, as copy_engine.c
 * does with copy engines and stream memory operations. Among several hosts (ZERO_HOST_ID) that is the inner one of
 * comm/gpu/rails.c, with little staging memory, so that gathers take many rounds; messages are async/messages.c's. One
 * device per process.
 */
#ifndef ZERO_ASYNC_DEVICE_H
#define ZERO_ASYNC_DEVICE_H

#include "zero/device/device.h"

typedef enum async_fault {
    ASYNC_NO_FAULT,
    ASYNC_COMPUTE_AHEAD_OF_GATHER, /* compute does not wait for gathers */
    ASYNC_GATHER_AHEAD_OF_COMPUTE, /* gathers do not wait for compute: buffers are overwritten in use, weights are read
                                      too early */
    ASYNC_REDUCE_AHEAD_OF_COMPUTE, /* slices are copied before they are written, staging is reused before it is read */
    ASYNC_COMPUTE_AHEAD_OF_REDUCE, /* sums start before the slices have arrived */
    ASYNC_STAGING_BEFORE_SUM,      /* slices are copied into staging that has not been read yet */
    ASYNC_NO_FENCE,                /* fences do not wait for peers */
    ASYNC_HOST_AHEAD_OF_DEVICE,    /* offload: gradients are sent before they are complete, updates start before the
                                      decision */
    ASYNC_DEVICE_AHEAD_OF_HOST,    /* offload: parameters are gathered before they are updated */
    ASYNC_COMPUTE_AHEAD_OF_COPY,   /* offload: sums and activations are overwritten before they are copied out */
    /* offload with the update on the device: */
    ASYNC_UPDATE_AHEAD_OF_DECISION, /* state is updated before the step is decided */
    ASYNC_UPDATE_AHEAD_OF_FETCH,    /* ... before it is there */
    ASYNC_STORE_AHEAD_OF_UPDATE,    /* it is copied back before it is updated */
    ASYNC_FETCH_AHEAD_OF_STORE,     /* other state is fetched over state that has not been copied back */
    ASYNC_FETCH_AHEAD_OF_GRADS,     /* gradients are fetched back before they have been sent */
    ASYNC_GATHER_AHEAD_OF_UPDATE,   /* parameters are gathered before they are updated */
    ASYNC_FETCH_AHEAD_OF_COMPUTE,   /* state is fetched into activations that are in use */
    /* offloaded parameters or, if there are none, sums of gradients: */
    ASYNC_PARAMS_AHEAD_OF_STORE, /* they are fetched before they have been stored */
    ASYNC_FETCH_AHEAD_OF_PEERS,  /* a shard is fetched over one that peers still gather */
    ASYNC_GATHER_AHEAD_OF_FETCH, /* it is gathered before it has been fetched */
    ASYNC_COMPUTE_AHEAD_OF_SUMS, /* sums are added to before they have come back */
    /* stashed buffers: */
    ASYNC_STASH_AHEAD_OF_COMPUTE,  /* a buffer is copied to the host before it is written */
    ASYNC_COMPUTE_AHEAD_OF_STASH,  /* its slot is overwritten before it has been copied */
    ASYNC_REFILL_AHEAD_OF_COMPUTE, /* a slot is filled again before it has been read */
    ASYNC_COMPUTE_AHEAD_OF_REFILL, /* it is read before it is filled */
    /* rails between hosts: */
    ASYNC_SEND_AHEAD_OF_WRITE,   /* bytes are sent before they are written */
    ASYNC_SUM_AHEAD_OF_RECEIVE,  /* sums start before other hosts' slices have arrived */
    ASYNC_COPY_AHEAD_OF_RECEIVE, /* a round is copied before it has been received */
    ASYNC_COPY_AHEAD_OF_FENCE,   /* ... before the other ranks of the host have received theirs */
    ASYNC_RECEIVE_AHEAD_OF_COPY, /* a round is received into a side that others still copy from */
    ASYNC_N_FAULTS
} async_fault_t;

typedef struct async_options {
    uint64_t seed;         /* of this rank's delays */
    unsigned max_delay_us; /* before each work item; most are much shorter */
    unsigned slow_gathers; /* so many times as long in the stream that gathers; 0: once */
    uint64_t available;    /* free bytes that the device reports; 0: the machine's */
    bool pins;             /* host memory can be pinned; no other difference here */
    async_fault_t fault;
} async_options_t;

zero_status_t async_device_create(const zero_comm_t *comm, const async_options_t *options, zero_device_t **device);

/* Driver calls that the engine would have made so far on copy engines, by kind: for each call of the transport those of
 * comm/gpu/copy_engine.c, whatever the number of ranks. */
#define ASYNC_CALL_MAP(X)                                                                                              \
    X(RECORD, "record")      /* of an event that orders */                                                             \
    X(TIMED, "timed record") /* of a timed event */                                                                    \
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

/* Makes `stream` the one that the test computes in. Call it after the engine has created its own. */
void async_compute_in(zero_stream_t stream);

/* Says that the next two streams that are made copy stashed buffers, out and in. */
void async_expect_stash(void);

/* Queues work of the caller's own: run(args), args copied (n_bytes at most ASYNC_ARGS_BYTES). stream NULL is a stream
 * too. */
#define ASYNC_ARGS_BYTES 448
void async_queue(zero_stream_t stream, void (*run)(void *args), const void *args, size_t n_bytes);
/* Queues a copy, which takes a while. */
void async_queue_copy(void *dst, const void *src, size_t n_bytes, zero_stream_t stream);

#endif
