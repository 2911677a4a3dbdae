/* plan_arenas.h - every buffer of an engine, and where it is in its arena. Pure arithmetic.
 *
 * There are two arenas: `window`, which peers may read (comm.h), and `private`. zero_arena_plan_t says where each
 * buffer begins in its arena and how large the arenas are. plan.h makes one. */
#ifndef ZERO_PLAN_ARENAS_H
#define ZERO_PLAN_ARENAS_H

#include "kernels/shard.h"
#include "zero/plan/layout.h"
#include "zero/plan/muon_schedule.h"
#include "zero/plan/optimizer.h"

/* Staging buffers for gradient slices: what is in one waits for its sum while the other is filled. */
#define ZERO_MAX_STAGING 2

/* Returns the bytes per element that master weights need in addition to the parameter (zero_adam_t). */
static inline size_t zero_master_lo_size(zero_dtype_t dtype)
{
    return dtype == ZERO_FP32 ? 0 : dtype == ZERO_BF16 ? sizeof(int16_t) : sizeof(float);
}

/* The most elements that a caller's own optimizer updates at once. */
#define ZERO_OWN_RUN_ELEMS ((uint64_t)1 << 20)

/* Buffers on the device in which units' reduced gradients take turns, if each unit is reduced once a step: those of
 * offloaded units, which leave at once, take two. If units are updated in backward, all take turns: in one if compute
 * alone uses it, in two if offloaded units are updated at the same time as others compute, and in three with several
 * ranks, where a unit waits for all ranks' word that its gradient is finite. With several reductions a step every unit
 * has a buffer of its own, but for offloaded ones whose sums wait in host memory: these take turns. */
#define ZERO_MAX_GRAD_TURNS 3
typedef struct zero_grad_turns {
    zero_unit_t first; /* units first, first + 1 ... take turns; n_units: none do */
    int n;             /* buffers */
    int *of_unit;      /* by unit: its buffer, another than its neighbours'. Units without gradients have one, too */
    uint64_t offsets[ZERO_MAX_GRAD_TURNS]; /* in elements after private_reduced_grads */
} zero_grad_turns_t;

/* The pinned host memory of offload: optimizer state of units first, first + 1 ..., their shards end to end, and
 * parameters of units first_params, first_params + 1 ... */
typedef struct zero_host_plan {
    zero_unit_t first;            /* n_units: no state is offloaded */
    zero_unit_t first_params;     /* n_units: no parameters are. If there is state, not before `first` */
    zero_offload_update_t update; /* DEVICE or HOST */
    /* From this unit on reduced gradients are sent to the host. The device's update finds those of the units before it
     * on the device: no unit overwrites them in the step. */
    zero_unit_t first_sent;
    /* The sums of units first, first + 1 ... wait for the next micro-step in host memory. */
    bool holds_sums;
    uint64_t n_elems;
    uint64_t master_lo, m, v; /* offsets in bytes, as are those below; v: with two state arrays */
    uint64_t grads;           /* of units zero_plan_first_grads_on_host ... */
    uint64_t params;          /* of units first_params ...; the host's update has those of units first ... */
    uint64_t params_begin;    /* where these begin among the shards of all units, in elements; UINT64_MAX: none */
    uint64_t frozen;          /* frozen tensors of units first_params ... */
    uint64_t scalars;         /* HOST only; of the step, and behind them zero_tensor_scalars_t of every tensor */
} zero_host_plan_t;

/* Buffers in the window through which offloaded shards are gathered by several ranks: one is filled from the host while
 * peers read the other. */
#define ZERO_N_PARAM_STAGING 2

/* Staging buffers on the device for offloaded state, if the device updates it. The chunks of all offloaded units take
 * turns in them, in forward order, except for the first, which are staged in idle activations (state_staging.h). They
 * are enough for one chunk to be fetched and another stored while others are updated. */
#define ZERO_N_STATE_STAGING 4
typedef struct zero_state_staging_plan {
    int n_chunks, n_buffers;
    uint64_t chunk_elems; /* of a unit's shard, at most */
    bool has_grads;       /* some were sent to the host, and are staged with the state */
    bool has_params;      /* some are offloaded, and are staged with the state */
    uint64_t buffers;     /* in the private arena: n_buffers of buffer_bytes each */
    uint64_t buffer_bytes;
    uint64_t segments; /* what AdamW updates, of all chunks */
    size_t max_segments;
} zero_state_staging_plan_t;

/* Parameters that are gathered in fp8. For units that have them, the window holds this rank's shard twice: in bf16,
 * whose bits master weights need, and in fp8. The units' other tensors are gathered from rank 0's shard, with the same
 * range of the other ranks', which nobody uses. With several groups each gathers them from its first rank, which has
 * got them from rank 0; the same range of the other ranks' shards goes with them. */
typedef struct zero_fp8_plan {
    bool is_gathered;     /* config.gather_fp8, and there are such parameters */
    uint64_t bytes;       /* window: one for each element of the units' flat buffers, or of this rank's part of
                           * its group's copy (stage 3) */
    uint64_t part_others; /* window, several groups: others_elems of each rank that holds the part, unit by unit */
    uint64_t absmaxes;    /* window: uint32_t, of this rank's part of each matrix */
    uint64_t gathered_absmaxes; /* private: of every rank */
    uint64_t scales;            /* private: zero_fp8_scales_t of each matrix */
    uint64_t segments;          /* private: zero_fp8_segment_t, at most one for each matrix */
    uint64_t others;            /* private, stages 1-2: others_elems of every rank, unit by unit */
} zero_fp8_plan_t;

/* Muon's buffers. Momentum and results are exchanged in `dtype`, a unit at a time for each rank. Slot k of a buffer has
 * slot_elems of the round's elements, of which those of a unit's shard come first. */
typedef struct zero_muon_plan {
    zero_muon_schedule_t schedule;
    zero_dtype_t dtype; /* fp32 on the CPU and for a caller's optimizer, bf16 on GPUs */
    bool is_callers;    /* the caller's optimizer computes: it needs no scratch, workspace and segments */
    bool is_full;       /* every rank has all state: it sends nothing to the owners, and needs all of every result */
    uint64_t updates; /* window: this rank's shards, slot k for owner k. If is_full, its own unit's shard k in slot k */
    uint64_t results; /* window: this rank's unit, shard k in slot k */
    uint64_t received; /* private: what came from the others, unless it can be read in their windows */
    int n_lanes;       /* matrices that are orthogonalized at a time */
    uint64_t matrix_bytes, scratch_bytes; /* of one lane */
    uint64_t matrix, scratch;             /* private: zero_orthogonalize_t's, of each lane */
    uint64_t workspace;                   /* private, GPUs: likewise */
    uint64_t segments;                    /* private: zero_muon_segment_t of what this rank holds */
    size_t max_segments;
} zero_muon_plan_t;

typedef struct zero_arena_plan {
    zero_stage_t stage;
    bool overlapped; /* there is room for overlapped communication: asked for, on GPUs, with several ranks */
    int n_arrays;    /* of the optimizer's state */
    zero_array_format_t array_format;
    int group; /* ranks that hold one copy of the parameters between them, if these are sharded; else the world size */
    bool transport_reduces; /* nccl_reduction: slices are summed while they are transferred, and none is staged */
    uint64_t v_elems;       /* of v, if there are two arrays: as many, but for matrices of Muon's, which have none */
    uint64_t state_elems;   /* optimizer state on the device: all flat buffers at stage 0, else all shards that are not
                             * offloaded */
    bool updates_in_backward;
    zero_dtype_t reduced_dtype; /* reduced gradients are held in: fp32 or bf16 */
    zero_grad_turns_t turns;
    zero_host_plan_t host;
    zero_state_staging_plan_t state_staging;
    zero_fp8_plan_t fp8;
    zero_muon_plan_t muon; /* without rounds: the optimizer is another */

    /* window arena, offsets in bytes */
    uint64_t params;          /* all flat buffers; if parameters are sharded, this rank's part of its group's copy */
    uint64_t frozen;          /* the same of frozen tensors; below stage 3 all of them */
    uint64_t grads;           /* all flat buffers (stages 0-1) */
    uint64_t unsharded_grads; /* stages 2-3 */
    uint64_t reduced_grads;   /* fp32, if every rank holds all of them (stage.reduced_grads_are_full) */
    uint64_t param_staging;   /* ZERO_N_PARAM_STAGING of param_staging_bytes: this rank's shards of offloaded units */
    uint64_t param_staging_bytes;
    uint64_t contribution; /* zero_contribution_t, this rank's */
    uint64_t nonfinite;    /* updates in backward, several ranks: ZERO_MAX_GRAD_TURNS of uint64_t, this rank's */
    uint64_t window_bytes;

    /* private arena, offsets in bytes */
    uint64_t unsharded_params;
    uint64_t private_reduced_grads; /* in reduced_dtype, this rank's shards, if it holds no more */
    /* master_lo: bf16's low halves or fp16's fp32 master weights; fp32 has none. v: with two state arrays. */
    uint64_t master_lo, m, v;
    uint64_t own_weights; /* a caller's own optimizer or hook, not fp32: master weights of a run */
    uint64_t chunk_elems; /* of a shard, transferred at once: a multiple of ZERO_SUM_CHUNK, or all of it */
    uint64_t staging;     /* for transports that copy slices to this rank: n_staging of staging_bytes each */
    uint64_t staging_bytes;
    int n_staging;
    uint64_t segments;       /* what AdamW updates */
    uint64_t contributions;  /* zero_contribution_t of every rank */
    uint64_t nonfinites;     /* ZERO_MAX_GRAD_TURNS of uint64_t of every rank, as in the window */
    uint64_t step_scratch;   /* zero_step_scratch_t */
    uint64_t unit_scalars;   /* updates in backward: zero_adam_scalars_t of every unit */
    uint64_t frozen_scales;  /* zero_fp8_scales_t of each frozen matrix in fp8 */
    uint64_t tensor_scalars; /* zero_tensor_scalars_t of every tensor, and behind them zero_tensor_rules_t */
    uint64_t private_bytes;

    int n_unsharded_params, n_unsharded_grads;
    int *unsharded_param_counts, *unsharded_grad_counts;    /* by buffer class */
    uint64_t *unsharded_param_bytes, *unsharded_grad_bytes; /* of one buffer, by buffer class */
    uint64_t *unsharded_frozen; /* where frozen tensors begin in a buffer, in bytes, by buffer class */
    zero_memory_t memory;       /* bytes by category, with the arenas' padding */
} zero_arena_plan_t;

/* Returns how many ranks hold the same part of the parameters: one in each group. */
static inline int zero_plan_n_groups(const zero_arena_plan_t *plan, const zero_layout_t *layout)
{
    return layout->world_size / plan->group;
}

/* Returns whether a unit's optimizer state is in host memory. */
static inline bool zero_plan_is_offloaded(const zero_arena_plan_t *plan, zero_unit_t unit)
{
    return unit >= plan->host.first;
}

/* Returns the first unit whose reduced gradients are in host memory at some time. */
static inline zero_unit_t zero_plan_first_grads_on_host(const zero_arena_plan_t *plan)
{
    return plan->host.holds_sums ? plan->host.first : plan->host.first_sent;
}

/* Returns whether a unit's sums wait for the next micro-step in host memory. */
static inline bool zero_plan_sums_wait_on_host(const zero_arena_plan_t *plan, zero_unit_t unit)
{
    return plan->host.holds_sums && unit >= plan->host.first;
}

/* Returns whether a unit's parameters are in host memory. */
static inline bool zero_plan_offloads_params(const zero_arena_plan_t *plan, zero_unit_t unit)
{
    return unit >= plan->host.first_params;
}

/* Returns the first unit of which something is in host memory. */
static inline zero_unit_t zero_plan_first_on_host(const zero_arena_plan_t *plan)
{
    return plan->host.first < plan->host.first_params ? plan->host.first : plan->host.first_params;
}

/* Returns the first unit whose full parameters are in unsharded buffers. One rank's shard is the whole unit, and is
 * used where it is unless that is host memory. */
static inline zero_unit_t zero_plan_first_unsharded(const zero_arena_plan_t *plan, const zero_layout_t *layout)
{
    return !plan->stage.shard_params ? layout->n_units : layout->world_size == 1 ? plan->host.first_params : 0;
}

/* Returns whether a unit's matrices are gathered in fp8. */
static inline bool zero_plan_gathers_fp8(const zero_arena_plan_t *plan, const zero_layout_t *layout, zero_unit_t unit)
{
    return plan->fp8.is_gathered && zero_layout_has_fp8(layout, unit);
}

/* Returns whether this rank holds no more than its part of a unit's parameters in the configured dtype. */
static inline bool zero_plan_shards_params(const zero_arena_plan_t *plan, const zero_layout_t *layout, zero_unit_t unit)
{
    return plan->stage.shard_params || (plan->stage.shard_state && zero_plan_gathers_fp8(plan, layout, unit));
}

/* Returns where those begin among all parameters, in elements. */
static inline uint64_t zero_plan_params_of(const zero_arena_plan_t *plan, const zero_layout_t *layout, zero_unit_t unit)
{
    const zero_unit_layout_t *at = &layout->units[unit];
    const uint64_t in_fp8 = plan->fp8.is_gathered ? at->fp8_shard_offset : 0; /* one shard of each, in parts, too */
    if (plan->stage.shard_params)
        return (at->shard_offset - in_fp8) * (uint64_t)zero_plan_n_groups(plan, layout) + in_fp8;
    if (plan->stage.shard_state && plan->fp8.is_gathered) /* shards of those in fp8, full flat buffers of the others */
        return at->flat_offset - at->fp8_flat_offset + at->fp8_shard_offset;
    return at->flat_offset;
}

/* Returns where what this rank holds of a unit's frozen tensors begins among all of them, in elements: its part of its
 * group's copy if parameters are sharded, else the flat buffer. */
static inline uint64_t zero_plan_frozen_of(const zero_arena_plan_t *plan, const zero_layout_t *layout, zero_unit_t unit)
{
    const zero_unit_layout_t *at = &layout->units[unit];
    return plan->stage.shard_params ? at->frozen_shard_offset * (uint64_t)zero_plan_n_groups(plan, layout)
                                    : at->frozen_flat_offset;
}

/* Returns whether a unit's reduced gradients have a buffer in turn with others'. */
static inline bool zero_plan_grads_take_turns(const zero_arena_plan_t *plan, zero_unit_t unit)
{
    return unit >= plan->turns.first;
}

/* What a step decides, on the device. */
typedef struct zero_step_scratch {
    zero_step_state_t state;
    zero_adam_scalars_t scalars;
    zero_norm_t norm;     /* of the gradients reduced so far; 0 between steps */
    double no_loss;       /* 0 */
    uint64_t n_unwritten; /* elements of a gradient (tensors.c) */
} zero_step_scratch_t;

/* What a plan must know of the machine. */
typedef struct zero_plan_target {
    bool on_gpu;        /* else on the CPU: nothing is overlapped or offloaded */
    bool needs_staging; /* the transport copies slices to this rank, which cannot read them in the peers' windows */
    bool has_rails;     /* gathers between hosts are staged, or may be (comm/gpu/rails.c) */
} zero_plan_target_t;

/* Sets the size of every buffer, where it begins in its arena, and the arenas' sizes. What the plan has and how many
 * buffers units take turns in is decided before. */
void zero_plan_lay_out(zero_arena_plan_t *plan, const zero_layout_t *layout, const zero_config_t *config,
                       zero_plan_target_t target);

#endif
