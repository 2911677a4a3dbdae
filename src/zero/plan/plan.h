/* plan.h - every buffer of an engine, laid out before anything is allocated. Pure arithmetic.
 *
 * Two arenas: `window`, which peers may read (comm.h), and `private`. zero_arena_plan_t says where each buffer starts
 * in its arena and how large the arenas are; create.c allocates two blocks and follows; --plan prints the same numbers.
 */
#ifndef ZERO_PLAN_H
#define ZERO_PLAN_H

#include "kernels/shard/shard.h"
#include "zero/plan/layout.h"
#include "zero/plan/stage.h"

/* Places in staging: what is in one waits for its sum while the other is filled. */
#define ZERO_MAX_STAGING 2

/* Bytes of zero_adam_t's master_lo for an element. */
static inline size_t zero_master_lo_size(zero_dtype_t dtype)
{
    return dtype == ZERO_FP32 ? 0 : dtype == ZERO_BF16 ? sizeof(int16_t) : sizeof(float);
}

/* Sums of hosted units on the device: units take turns in so many places, if each unit's sum is final when it is
 * written, for it leaves at once. With several reductions a step every unit has a place of its own, as on the device.
 */
#define ZERO_N_OFFLOADED_GRADS 2

/* The pinned block of offload: what belongs to units first, first + 1 ..., their shards end to end. */
typedef struct zero_host_plan {
    zero_unit_t first;                              /* n_units: nothing is offloaded */
    zero_offload_update_t update;                   /* DEVICE or HOST */
    bool grads_take_turns;                          /* in: */
    uint64_t reduced_grads[ZERO_N_OFFLOADED_GRADS]; /* elements from private_reduced_grads */
    zero_unit_t first_sent; /* from here on sums leave for the host. The device's update finds those of units before it
                             * where they are: nobody else takes their places in the step */
    uint64_t n_elems;
    uint64_t params, master_lo, m, v, grads,
        scalars; /* offsets in bytes. params, scalars: HOST; grads: of first_sent ... */
} zero_host_plan_t;

/* Places on the device that hosted state passes through, with DEVICE: pieces of all hosted units, in forward order,
 * take turns in them, but for the first ones where idle activations have places for these (state_staging.h). Enough of
 * them that one is on its way in and one on its way out while others change. */
#define ZERO_N_STATE_STAGING 4
typedef struct zero_state_staging_plan {
    int n_chunks, n_buffers;
    uint64_t chunk_elems; /* of a unit's shard that pass at once, at most */
    bool has_grads;       /* some were sent, and come back with the state */
    uint64_t buffers;     /* in the private arena: n_buffers of buffer_bytes each */
    uint64_t buffer_bytes;
    uint64_t segments; /* what AdamW walks over in all pieces */
    size_t max_segments;
} zero_state_staging_plan_t;

typedef struct zero_arena_plan {
    zero_stage_t stage;
    bool overlapped;        /* room for communication in streams of its own: asked for, on GPUs, with several ranks */
    bool transport_reduces; /* slices are summed on their way (nccl_reduction), and none is staged */
    uint64_t state_elems; /* elements of optimizer state on the device: all flats at stage 0, else all shards but for */
    zero_host_plan_t host; /* those that are offloaded */
    zero_state_staging_plan_t state_staging;

    /* window arena, offsets in bytes */
    uint64_t params;          /* all flats, or all shards where params are sharded */
    uint64_t grads;           /* all flats (stages 0-1) */
    uint64_t unsharded_grads; /* stages 2-3 */
    uint64_t reduced_grads;   /* fp32, only where they are gathered (state not sharded) and not in place */
    uint64_t contribution;    /* zero_contribution_t, this rank's */
    uint64_t window_bytes;

    /* private arena */
    uint64_t unsharded_params;
    uint64_t private_reduced_grads; /* fp32, this rank's shards, where the sums are neither gathered nor in place */
    uint64_t master_lo, m, v;       /* low: bf16's low halves or fp16's fp32 master; none for fp32 */
    uint64_t chunk_elems;           /* of a shard, that transfer at once: some ZERO_NORM_CHUNK, or the largest shard */
    uint64_t staging;               /* for transports that bring slices here: n_staging pieces of staging_bytes each */
    uint64_t staging_bytes;
    int n_staging;
    uint64_t partials;      /* doubles, sums of squares by chunk of every unit's shard */
    uint64_t segments;      /* what AdamW walks over */
    uint64_t contributions; /* zero_contribution_t of every rank */
    uint64_t step_scratch;  /* zero_step_scratch_t */
    uint64_t private_bytes;

    int n_unsharded_params, n_unsharded_grads;
    int *unsharded_param_counts, *unsharded_grad_counts; /* per slot class */
    zero_memory_t memory;                                /* bytes by category, the arenas' padding included */
} zero_arena_plan_t;

/* Returns whether a unit's optimizer state is in host memory. */
static inline bool zero_plan_is_offloaded(const zero_arena_plan_t *plan, zero_unit_t unit)
{
    return unit >= plan->host.first;
}

/* Which of the places a hosted unit's sum takes; units next to each other take different ones. */
static inline int zero_plan_offloaded_grads(const zero_arena_plan_t *plan, zero_unit_t unit)
{
    return (unit - plan->host.first) % ZERO_N_OFFLOADED_GRADS;
}

/* What a plan must know of the machine. */
typedef struct zero_plan_target {
    bool on_gpu;        /* else on the CPU: nothing is overlapped or offloaded */
    bool needs_staging; /* the transport copies slices to this rank instead of reading them in the peers' windows */
} zero_plan_target_t;

/* What a step decides, on the device. */
typedef struct zero_step_scratch {
    zero_step_state_t state;
    zero_adam_scalars_t scalars;
    double no_loss;       /* 0 */
    uint64_t n_unwritten; /* check.c's: elements of a gradient */
} zero_step_scratch_t;

zero_status_t zero_arena_plan_create(const zero_model_t *model, const zero_layout_t *layout,
                                     const zero_config_t *config, zero_plan_target_t target, zero_arena_plan_t *plan);
void zero_arena_plan_destroy(zero_arena_plan_t *plan);

/* The smallest offload_ratio with which a plan takes no more of the device than `available` bytes, the caller's
 * user_bytes included, whatever config's own is; 1 where even that takes more, which then is refused with the numbers.
 */
zero_status_t zero_plan_smallest_offload(const zero_model_t *model, const zero_layout_t *layout,
                                         const zero_config_t *config, zero_plan_target_t target, uint64_t available,
                                         float *ratio);

/* ZERO_ERROR_USAGE, with a line, where a setting is out of range. */
zero_status_t zero_config_check(const zero_config_t *config);

#endif
