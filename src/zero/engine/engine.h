/* engine.h - the engine's state, shared by pass.c (a pass), update.c (the update), gradients.c (gradients on their way
 * to their owners), parameters.c (parameters on their way to compute), offload.c (state on the host), each of which
 * calls those after it, and below them addresses.c and streams.c; by state.c (reading and writing it) and create.c
 * (building it).
 *
 * Streams. The caller's stream computes. Where communication is overlapped (`overlapped`: on GPUs, with several ranks,
 * by a transport that does not block), gathers run in gather_stream and reductions in reduce_stream, and events order
 * the three; else everything is in the caller's stream and the events change nothing. */
#ifndef ZERO_ENGINE_H
#define ZERO_ENGINE_H

#include "comm/comm.h"
#include "zero/device/device.h"
#include "zero/offload/offload.h"
#include "zero/plan/plan.h"
#include "zero/plan/unsharded.h"
#include "zero/engine/timeline.h"

#define ZERO_MAX_STEPS_IN_FLIGHT 2
/* Those, and the one before the oldest: its end is the oldest's beginning. */
#define ZERO_N_STEPS_TIMED (ZERO_MAX_STEPS_IN_FLIGHT + 1)

typedef struct zero_user_block {
    void *data;
    size_t n_bytes;
    bool always_in_use;
    zero_unit_t first, last; /* else: in use from first's acquire in forward to last's grad_ready in backward */
    struct zero_user_block *next;
} zero_user_block_t;

/* A place in staging, and what is on its way there: the ranks' slices of a piece of a unit's shard. */
typedef struct zero_grad_chunk {
    uint64_t first, n_elems; /* of the shard */
    const void **slices;     /* n_slices: where each rank's can be read; or the sum, where the transport adds */
    int n_slices;
    uint64_t staging;          /* in private_data */
    zero_timed_event_t staged; /* in reduce_stream: the slices are here */
    uint64_t sum;              /* which of compute's sums read it last: as in n_reductions */
} zero_grad_chunk_t;

/* A unit's gradients between grad_ready and the sum. */
typedef struct zero_reduction {
    zero_unit_t unit; /* -1: none under way */
    bool last;        /* the step's last reduction of this unit: norm partials are taken */
    bool add;         /* to the sums of earlier micro-steps */
    uint64_t fence;   /* behind which it travels */
    int n_held;       /* pieces that are not summed yet: the newest */
} zero_reduction_t;

/* A unit's full parameters, where they are gathered. */
typedef enum zero_params_are {
    ZERO_PARAMS_SEEN,      /* by an acquire since their last gather, if there was one */
    ZERO_PARAMS_UNDER_WAY, /* compute has yet to wait for params_ready */
    ZERO_PARAMS_FRESH,     /* it need not wait, and no acquire has come to them */
} zero_params_are_t;

struct zero_engine {
    zero_users_t users;
    zero_comm_t *host_comm; /* the caller's */
    uint32_t number;        /* of the engines over it, in the order of their creation, from 0 */
    zero_comm_t *comm;      /* how bulk data travels with this device: host_comm itself, or what joins GPUs */
    zero_device_t *device;
    zero_model_t *model; /* own copy */
    zero_config_t config;
    zero_layout_t layout;
    zero_arena_plan_t plan;
    zero_memory_t memory; /* held now */
    zero_stats_t stats;

    zero_window_t window;        /* plan.window_bytes; peers read here */
    unsigned char *private_data; /* plan.private_bytes */
    zero_user_block_t *user_blocks;

    bool overlapped;
    zero_stream_t gather_stream, reduce_stream;
    zero_timeline_t *timeline;
    int compute_span;         /* the acquired unit's, in the timeline */
    zero_timed_event_t *used; /* by unit, in the caller's stream: what its last release or grad_ready ended is over */
    zero_timed_event_t
        arrived; /* where compute is, since nothing has been queued in its stream since; 0: it has gone on */

    zero_offload_t *offload; /* NULL: the device updates everything */

    /* Parameters: parameters.c. */
    zero_unsharded_t unsharded_params; /* in private_data */
    zero_timed_event_t *buffer_freed;  /* by slot: of the unit that used it last, as in `used`; 0: none did */
    zero_timed_event_t *params_ready;  /* by unit, in gather_stream: its full parameters are here */
    zero_unit_t n_gathered;            /* stages 1-2: the gathers of so many units are queued since weights changed */
    zero_params_are_t *params_are;     /* by unit */
    zero_unit_t n_early_units;         /* updated and published before the others */
    zero_event_t early_updated;        /* in the caller's stream: these are */
    zero_event_t published;            /* in the caller's stream: new weights stand in every rank's window */
    bool published_awaited;            /* the gather stream has yet to wait for it */

    /* Gradients: gradients.c. */
    zero_unsharded_t unsharded_grads; /* in window */
    uint64_t *grads_read_in_fence;    /* by unit, for full gradients: as zero_unsharded_buffer_t's */
    zero_reduction_t reduction;
    zero_grad_chunk_t pieces[ZERO_MAX_STAGING]; /* plan.n_staging, taken in turn */
    uint64_t n_chunks;                          /* that have left, so far */
    zero_event_t reduced_grads_ready;           /* stage 0, in gather_stream: all sums gathered so far are here */
    uint64_t n_reductions;                      /* queued in the caller's stream */
    uint64_t n_reductions_done;                 /* that reduce_stream is known to come after */
    zero_event_t reductions_done;               /* in the caller's stream: all are, so far */
    uint64_t n_fences;                          /* issued */
    uint64_t n_fences_passed;                   /* that compute is known to come after */
    zero_event_t fences_passed;                 /* in reduce_stream: all are, so far */

    /* Where in the declared order the caller is. */
    bool in_pass;
    zero_pass_t pass;
    int position;   /* of the unit that is acquired, or comes next */
    bool acquired;  /* between acquire and release / grad_ready */
    int micro_step; /* of the current step, from 0; micro_steps: only zero_step may come */
    bool started;   /* zero_begin was called: no more zero_alloc */
    /* Weights that a call which failed has left half written, on some rank: nobody computes with them (state.c). */
    bool weights_are_partial, partial_weights_told;

    /* The update. */
    size_t n_segments;       /* of this rank's share of the state: in private_data, at plan.segments */
    size_t n_early_segments; /* the first of them: of the early units */
    uint64_t *partials_of;   /* by unit: where its norm partials start */
    uint64_t n_partials;
    zero_step_rules_t rules;
    zero_step_outcome_t *outcomes; /* ZERO_MAX_STEPS_IN_FLIGHT, in pinned host memory. The device writes them, without
                                    * a copy, which would queue behind offload's */
    uint32_t notice;               /* zero_set_notice's */
    uint32_t notices[ZERO_MAX_STEPS_IN_FLIGHT]; /* on their way to the window */
    uint32_t notice_in_window;
    struct { /* of step n at n % ZERO_N_STEPS_TIMED */
        zero_event_t began, ended;
        bool follows; /* queued while the step before was under way: it began when that ended */
    } timed[ZERO_N_STEPS_TIMED];
    uint64_t step;           /* zero_step calls so far */
    uint64_t n_steps_waited; /* zero_step_wait calls so far */
    uint64_t adam_step;      /* updates so far, as of the last step waited for */
};

/* Where communication runs: in `beside`, a stream of its own, or in the caller's. */
static inline zero_stream_t zero_engine_stream(const zero_engine_t *engine, zero_stream_t beside, zero_stream_t stream)
{
    return engine->overlapped ? beside : stream;
}

/* ---- create.c ---- */
/* A save of the engine's state has ended. [collective] where it is the last after zero_engine_destroy */
void zero_engine_leave(zero_engine_t *engine, zero_user_t user);

/* ---- addresses.c: what the plan's offsets mean ---- */
/* This unit's full gradient: offset in the window. The unit has a slot, or gradients are not sharded. */
uint64_t zero_engine_grad_offset(const zero_engine_t *engine, zero_unit_t unit);
/* fp32 sums of this rank's shard of a unit. */
float *zero_engine_reduced_grads_of(const zero_engine_t *engine, zero_unit_t unit);
/* Where all parameters, all fp32 sums and the state lie: the base pointers of zero_adam_t. */
void *zero_engine_params(const zero_engine_t *engine);
float *zero_engine_reduced_grads(const zero_engine_t *engine);
void *zero_engine_private(const zero_engine_t *engine, uint64_t offset);
unsigned char *zero_engine_window(const zero_engine_t *engine, uint64_t offset); /* this rank's part of it */
/* The part of a unit's flat whose state this rank holds: its shard, or all of it at stage 0. */
void zero_engine_held(const zero_engine_t *engine, zero_unit_t unit, uint64_t *begin, uint64_t *end);
/* Where flat element `at` of a unit lies for AdamW: a segment without its length and decay. */
zero_adam_segment_t zero_engine_segment_at(const zero_engine_t *engine, zero_unit_t unit, uint64_t at);
/* What AdamW walks over of a tensor: the part whose state this rank holds. False where it holds none. */
bool zero_engine_segment(const zero_engine_t *engine, zero_tensor_t tensor, zero_adam_segment_t *segment);

/* ---- streams.c: how they wait ---- */
/* Tells the communicator what this rank is in, for it to be compared with the others: a call about a unit, zero_step,
 * or a call that covers small collectives (comm.h) and ends in zero_comm_leave. */
void zero_engine_enter_unit(zero_engine_t *engine, const char *call, zero_unit_t unit);
void zero_engine_enter_step(zero_engine_t *engine, float lr);
void zero_engine_enter(zero_engine_t *engine, const char *call);
/* An event's place in `stream`, and that what comes next in `stream` comes after it. Where communication is not beside
 * compute all is in one stream, and both do nothing. */
zero_status_t zero_engine_record(zero_engine_t *engine, zero_event_t event, zero_stream_t stream);
zero_status_t zero_engine_stream_wait(zero_engine_t *engine, zero_stream_t stream, zero_event_t event);
/* The same with a mark, by which time is told, too. */
zero_status_t zero_engine_record_timed(zero_engine_t *engine, zero_timed_event_t *mark, zero_stream_t stream);
zero_status_t zero_engine_stream_wait_timed(zero_engine_t *engine, zero_stream_t stream, zero_timed_event_t mark);
/* Communication that compute in `stream` waits for, since both are in one stream; another kind where it is beside. */
zero_work_t zero_engine_work(const zero_engine_t *engine, zero_work_t beside);
zero_status_t zero_engine_begin_span(zero_engine_t *engine, zero_work_t work, zero_unit_t unit, zero_stream_t stream,
                                     int *span);
/* Makes `stream`, which computes, wait for an event or a mark of a communication stream, and notes how long. */
zero_status_t zero_engine_compute_wait(zero_engine_t *engine, zero_unit_t unit, zero_event_t event,
                                       zero_stream_t stream);
zero_status_t zero_engine_compute_wait_timed(zero_engine_t *engine, zero_unit_t unit, zero_timed_event_t mark,
                                             zero_stream_t stream);
/* A fence after everything: what `stream` does next finds all that other ranks did, and may overwrite what they read.
 */
zero_status_t zero_engine_fence(zero_engine_t *engine, zero_stream_t stream);
/* A fence in one lane, counted in n_fences: what this rank has written before it is there for peers behind it, and what
 * peers read before it has been read. */
zero_status_t zero_engine_fence_in(zero_engine_t *engine, zero_lane_t lane, zero_stream_t stream);
/* Peers may still read what was published in fence `read_in` (0: none): `stream`, which computes, goes on behind a
 * later one. */
zero_status_t zero_engine_await_readers(zero_engine_t *engine, zero_unit_t flat, uint64_t read_in,
                                        zero_stream_t stream);

/* ---- parameters.c: parameters ---- */
/* Brings in what the unit at the current position needs and what the next ones will need: at stage 3 everything, at
 * stages 1-2 hosted units. */
zero_status_t zero_engine_gather_ahead(zero_engine_t *engine, zero_stream_t stream);
/* What comes next in `stream` finds the flat's full parameters in place. */
zero_status_t zero_engine_await_params(zero_engine_t *engine, zero_unit_t flat, zero_stream_t stream);
/* The same for the unit at the next position, of those of its flats that are on their way. */
zero_status_t zero_engine_await_next_params(zero_engine_t *engine, zero_stream_t stream);
/* The unit has been used: its slots may be taken behind that. */
void zero_engine_free_params(zero_engine_t *engine, zero_unit_t unit);
/* Every rank's slices of a unit's full buffer in the window, at `offset`, to every rank. */
zero_status_t zero_engine_gather_in_place(zero_engine_t *engine, zero_unit_t unit, uint64_t offset,
                                          size_t element_bytes, zero_stream_t stream);
/* After the early units changed in `stream`: their gathers may begin. */
zero_status_t zero_engine_publish_early(zero_engine_t *engine, zero_stream_t stream);
/* After weights changed in `stream`: every rank's next acquire sees them. */
zero_status_t zero_engine_publish_params(zero_engine_t *engine, zero_stream_t stream);

/* ---- gradients.c: gradients ---- */
/* A place for every gradient the unit will write, where nobody reads any more. */
zero_status_t zero_engine_prepare_grads(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream);
/* The unit's gradients are whole: they leave for their owners, whose sums are queued now or soon. */
zero_status_t zero_engine_reduce(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream);
/* Queues the sums that are still due. */
zero_status_t zero_engine_finish_reductions(zero_engine_t *engine, zero_stream_t stream);

/* ---- check.c: gradients that nobody wrote, where config.check asks ---- */
/* Fills the places of the gradients that the unit, which is acquired, is to overwrite. */
zero_status_t zero_engine_poison_grads(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream);
/* ZERO_ERROR_ARGUMENT, with a line, where one still holds what it was filled with. */
zero_status_t zero_engine_check_grads(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream);

/* ---- state.c ---- */
/* ZERO_ERROR_ORDER where weights were written in part; the reason is logged once. call: who asks. */
zero_status_t zero_engine_check_weights(zero_engine_t *engine, const char *call);

/* ---- update.c: the update ---- */
/* ZERO_ERROR_ORDER inside a pass or between the micro-steps of a step; the second also where a step's result is unread.
 * call: who asks, for the error line. */
zero_status_t zero_engine_check_between_steps(const zero_engine_t *engine, const char *call);
zero_status_t zero_engine_check_no_step(const zero_engine_t *engine, const char *call);
/* Notes when the first micro-step of a step begins. */
zero_status_t zero_engine_begin_step(zero_engine_t *engine, zero_stream_t stream);
/* What a step hands to the next, for checkpoints: with no step under way; call: as above. `step`: steps so far. */
zero_status_t zero_engine_get_step_state(zero_engine_t *engine, const char *call, zero_step_state_t *state);
zero_status_t zero_engine_set_step_state(zero_engine_t *engine, uint64_t step, const zero_step_state_t *state);
/* Writes the segments that AdamW walks over and the step's state to the device; create.c calls it. */
zero_status_t zero_engine_prepare_steps(zero_engine_t *engine);

#endif
