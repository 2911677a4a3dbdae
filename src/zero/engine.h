/* engine.h - the engine's state, shared by engine.c (a pass), step.c (the update), state.c (reading and writing it) and
 * create.c (building it). */
#ifndef ZERO_ENGINE_H
#define ZERO_ENGINE_H

#include "comm/comm.h"
#include "zero/device.h"
#include "zero/plan.h"
#include "zero/slots.h"

#define ZERO_MAX_STEPS_IN_FLIGHT 2

typedef struct zero_user_block {
    void *data;
    size_t n_bytes;
    struct zero_user_block *next;
} zero_user_block_t;

struct zero_engine {
    zero_comm_t *host_comm; /* the caller's */
    zero_comm_t *comm;      /* how bulk data travels with this device: host_comm itself, or NCCL */
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

    zero_slots_t param_slots;      /* in private_data */
    zero_slots_t grad_slots;       /* in window */
    uint64_t *grads_read_in_fence; /* by unit, for full gradients: as zero_slot_t's */
    uint64_t n_fences;
    const void **slices; /* world_size pointers, for exchange */

    /* Where in the declared order the caller is. */
    bool in_pass;
    zero_pass_t pass;
    int position;   /* of the unit that is acquired, or comes next */
    bool acquired;  /* between acquire and release / grad_ready */
    int micro_step; /* of the current step, from 0; micro_steps: only zero_step may come */
    bool started;   /* zero_begin was called: no more zero_alloc */

    /* The update. */
    size_t n_segments;     /* of this rank's share of the state: in private_data, at plan.segments */
    uint64_t *partials_of; /* by unit: where its norm partials start */
    uint64_t n_partials;
    zero_step_scratch_t *scratch; /* host, pinned */
    double (*contributions)[2];   /* world_size of them: sum of squares, loss */
    uint64_t step;                /* zero_step calls so far */
    uint64_t adam_step;           /* updates so far */
    float loss_scale;             /* of the step at hand; zero_loss_scale gives the device's copy */
    int good_steps;               /* since loss_scale last changed */
    int skipped_in_row;
    zero_step_result_t results[ZERO_MAX_STEPS_IN_FLIGHT]; /* ring of unwaited steps */
    int first_result, n_results;
};

/* ---- places: what the plan's offsets mean, engine.c ---- */
/* This unit's full gradient: offset in the window. The unit has a slot, or gradients are not sharded. */
uint64_t zero_engine_grad_offset(const zero_engine_t *engine, zero_unit_t unit);
/* fp32 sums of this rank's shard of a unit. */
float *zero_engine_sum(const zero_engine_t *engine, zero_unit_t unit);
/* Where all parameters, all fp32 sums and the state lie: the base pointers of zero_adam_t. */
void *zero_engine_params(const zero_engine_t *engine);
float *zero_engine_sums(const zero_engine_t *engine);
void *zero_engine_private(const zero_engine_t *engine, uint64_t offset);

/* ---- moving bytes, engine.c ---- */
zero_status_t zero_engine_fence(zero_engine_t *engine, zero_stream_t stream);
/* Every rank's slices of a full buffer in the window (one flat a unit, elements of element_bytes) to every rank. */
zero_status_t zero_engine_gather_full(zero_engine_t *engine, uint64_t offset, size_t element_bytes,
                                      zero_stream_t stream);
/* After weights changed: publishes them, so that every rank's next acquire sees them. */
zero_status_t zero_engine_publish_params(zero_engine_t *engine, zero_stream_t stream);

/* The part of a unit's flat whose state this rank holds: its shard, or all of it at stage 0. */
void zero_engine_held(const zero_engine_t *engine, zero_unit_t unit, uint64_t *begin, uint64_t *end);
/* Where flat element `at` of a unit lies for AdamW: a segment without its length and decay. */
zero_adam_segment_t zero_engine_place(const zero_engine_t *engine, zero_unit_t unit, uint64_t at);
/* Writes the segments that AdamW walks over, and the loss scale, to the device; create.c calls it. */
zero_status_t zero_engine_prepare_steps(zero_engine_t *engine);

#endif
