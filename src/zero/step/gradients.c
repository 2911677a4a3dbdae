/* gradients.c - gradients on their way to their owners: each rank's slices are brought together and added up, in fp32
 * and in rank order, into the shard of the rank that owns them.
 *
 * The order of sums belongs to the batch, not to the ranks. On N ranks, rank r's micro-step j computes micro-batch
 * v = j N + r, and its slices are added to what earlier micro-steps have left: one running sum in the order of v. So
 * every number of ranks that divides the micro-batches gets the same bits.
 *
 * A reduction has two halves. The transfer (fence, all-to-all) starts at grad_ready, in the reduce stream if it is
 * overlapped. The sum is queued in the caller's stream together with the next unit's backward, so that it need not wait
 * long for the transfer, nor the transfer for compute. A unit is transferred in chunks, which take turns in staging
 * buffers. If a unit has more chunks than there are staging buffers, not all of them can wait for compute: the oldest
 * are summed early, in the reduce stream.
 *
 * A gradient buffer (stages 2-3) has one owner, the unit whose gradients it holds, from prepare until its sum is
 * queued:
 *
 *     caller's stream | backward C | backward B .............. | sum C | backward A .............. | sum B |
 *     reduce stream                | fence, all-to-all C   |   | fence, all-to-all B |
 *     buffer of C     | acquired   | published ....................... | free; overwritten only behind B's fence
 *
 * Units without gradients have no buffer and no place in this order, however many come between B and C. The planner
 * goes through the same order (zero_order_unsharded_grads), so there is always a free buffer.
 *
 * What must hold: full gradients are in the window, and peers read them until a fence that follows the all-to-all. So
 * each buffer (stages 2-3) or unit (stages 0-1) keeps the number of the fence that published it, and compute overwrites
 * it only behind a later fence. One fence per unit serves both ends: it publishes this unit and frees the one before.
 */
#include "zero/step/gradients.h"

#include <stdlib.h>

#include "base/log.h"
#include "zero/plan/order.h"
#include "zero/runtime/addresses.h"
#include "zero/runtime/gather.h"

/* ---- hooks ---- */

static zero_status_t call(const zero_context_t *context, zero_tensor_t tensor, zero_stream_t stream)
{
    const zero_hooks_t *hooks = context->config.hooks;
    const zero_tensor_decl_t *decl = &context->model->tensors[tensor];
    const zero_span_t owned = zero_context_owned_span(context, tensor, context->comm->rank);
    if (decl->frozen || owned.n_elems == 0)
        return ZERO_OK;
    const zero_reduced_t reduced = {
        .tensor = tensor,
        .first = owned.first,
        .n_elems = owned.n_elems,
        .grad = (float *)zero_context_reduced_grads_of(context, decl->owner) +
                (owned.flat_offset - zero_context_shard_begin(context, decl->owner)),
        .loss_scale = &zero_context_step_scratch(context)->state.loss_scale,
        .step = context->progress.step + 1,
    };
    zero_status_t status = hooks->reduced(hooks->user, &reduced, stream);
    if (status != ZERO_OK)
        return zero_fail(status, "zero_hooks_t: reduced failed for tensor %s in step %llu", decl->name,
                         (unsigned long long)reduced.step);
    return ZERO_OK;
}

zero_status_t zero_hooks_reduced(zero_context_t *context, zero_unit_t unit, zero_stream_t stream)
{
    const zero_layout_t *layout = &context->layout;
    void *grads = zero_context_reduced_grads_of(context, unit);
    const void *slices[] = {grads};
    for (int i = 0; i < layout->n_tensors; i++)
        if (context->model->tensors[layout->order[i]].owner == unit && context->progress.hook_failure == ZERO_OK)
            context->progress.hook_failure = call(context, layout->order[i], stream);
    /* One slice, of itself: nothing is added, and its squares are. */
    const zero_sum_t sum = {.out = grads,
                            .out_dtype = ZERO_FP32,
                            .slices = slices,
                            .n_slices = 1,
                            .dtype = ZERO_FP32,
                            .n_elems = layout->units[unit].shard_elems,
                            .norm = &zero_context_step_scratch(context)->norm};
    return context->device->kernels->sum_slices(&sum, stream);
}

/* ---- gradients ---- */

/* All ranks' slices of a part of a unit's shard, and the staging buffer that they are copied into. */
typedef struct chunk {
    uint64_t first, n_elems;   /* of the shard */
    const void **slices;       /* where each rank's slice can be read; one, the sum, if the transport reduces */
    int n_slices;              /* of the world size for which `slices` has room */
    uint64_t staging;          /* in private memory */
    zero_timed_event_t staged; /* in the reduce stream: the slices are here */
    uint64_t summed_in;        /* the reduction in the caller's stream that last read the buffer: as n_reductions */
} chunk_t;

/* A unit's gradients between grad_ready and the sum. */
typedef struct reduction {
    zero_unit_t unit; /* -1: none is under way */
    bool is_last;     /* the step's last of this unit: it also sums squares, for the norm */
    bool adds;        /* to what earlier micro-steps reduced */
    uint64_t fence;   /* that published the gradients */
    int n_held;       /* chunks that are not summed yet: the newest */
} reduction_t;

struct zero_gradients {
    zero_context_t *context;
    zero_offload_t *offload;
    zero_sum_calls_t calls;     /* NULL: units are updated in the step */
    zero_unsharded_t unsharded; /* in the window; stages 2-3 */
    uint64_t *published_in;     /* by unit, for full gradients: the fence (zero_unsharded_buffer_t's, too) */
    reduction_t reduction;
    chunk_t chunks[ZERO_MAX_STAGING]; /* plan.n_staging, used in turn */
    uint64_t n_chunks;                /* transferred so far */
    zero_event_t all_gathered;        /* stage 0, in the gather stream: all reduced gradients gathered so far */
    uint64_t n_reductions;            /* sums queued in the caller's stream */
    uint64_t n_reductions_awaited;    /* that the reduce stream is known to come after */
    zero_event_t reductions_done;     /* in the caller's stream: all sums so far */
};

/* Returns whether the unit whose reduction is under way is updated when it has been summed. */
static bool is_updated(const zero_gradients_t *gradients)
{
    return gradients->calls.user && gradients->reduction.is_last;
}

/* ---- creating ---- */

static zero_status_t create_chunks(zero_gradients_t *gradients)
{
    const zero_context_t *context = gradients->context;
    const zero_arena_plan_t *plan = &context->plan;
    for (int i = 0; i < plan->n_staging; i++) {
        chunk_t *chunk = &gradients->chunks[i];
        chunk->slices = calloc((size_t)context->comm->size, sizeof *chunk->slices);
        chunk->staging = plan->staging + (uint64_t)i * plan->staging_bytes;
        if (!chunk->slices)
            return zero_fail(ZERO_ERROR_MEMORY, "no memory for the tables of %d ranks", context->comm->size);
    }
    return ZERO_OK;
}

static zero_status_t create_tables(zero_gradients_t *gradients)
{
    const zero_context_t *context = gradients->context;
    const zero_layout_t *layout = &context->layout;
    gradients->published_in = calloc((size_t)layout->n_units, sizeof *gradients->published_in);
    if (!gradients->published_in)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for the tables of %d units", layout->n_units);
    return zero_unsharded_create(layout, context->plan.unsharded_grad_counts, context->plan.unsharded_grad_bytes,
                                 context->plan.unsharded_grads, &gradients->unsharded);
}

zero_status_t zero_gradients_create(zero_context_t *context, zero_offload_t *offload, zero_gradients_t **gradients)
{
    zero_device_t *device = context->device;
    zero_status_t status;
    zero_gradients_t *made = calloc(1, sizeof *made);
    if (!made)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for an engine");
    made->context = context;
    made->offload = offload;
    made->reduction.unit = -1;
    ZERO_TRY_GOTO(create_tables(made), fail);
    ZERO_TRY_GOTO(create_chunks(made), fail);
    ZERO_TRY_GOTO(device->ops->event_create(device, false, &made->all_gathered), fail);
    ZERO_TRY_GOTO(device->ops->event_create(device, false, &made->reductions_done), fail);
    *gradients = made;
    return ZERO_OK;
fail:
    zero_gradients_destroy(made);
    return status;
}

void zero_gradients_destroy(zero_gradients_t *gradients)
{
    if (!gradients)
        return;
    zero_device_t *device = gradients->context->device;
    device->ops->event_destroy(device, gradients->reductions_done);
    device->ops->event_destroy(device, gradients->all_gathered);
    for (int i = 0; i < ZERO_MAX_STAGING; i++)
        free(gradients->chunks[i].slices);
    zero_unsharded_destroy(&gradients->unsharded);
    free(gradients->published_in);
    free(gradients);
}

void zero_gradients_call(zero_gradients_t *gradients, zero_sum_calls_t calls)
{
    gradients->calls = calls;
}

/* ---- full gradients ---- */

/* Finds where a unit's full gradients are in the window. */
static zero_status_t find_offset(const zero_gradients_t *gradients, zero_unit_t flat, uint64_t *offset)
{
    const zero_context_t *context = gradients->context;
    const zero_arena_plan_t *plan = &context->plan;
    if (plan->stage.shard_grads) {
        const zero_unsharded_buffer_t *buffer = zero_unsharded_find(&gradients->unsharded, flat);
        ZERO_ASSERT(buffer);
        *offset = buffer->offset;
    } else {
        *offset = plan->grads + context->layout.units[flat].flat_offset * zero_dtype_size(plan->stage.grad_dtype);
    }
    return ZERO_OK;
}

zero_status_t zero_gradients_address(const zero_gradients_t *gradients, zero_unit_t flat, unsigned char **address)
{
    uint64_t offset;
    ZERO_TRY(find_offset(gradients, flat, &offset));
    *address = zero_context_window(gradients->context, offset);
    return ZERO_OK;
}

/* Acquires a buffer for a unit's gradients. No sum of this rank reads it any more. Peers may: the caller waits for
 * them. */
static zero_status_t acquire_buffer(zero_gradients_t *gradients, zero_unit_t unit)
{
    zero_unsharded_t *unsharded = &gradients->unsharded;
    zero_unsharded_buffer_t *buffer =
        zero_unsharded_empty(unsharded, gradients->context->layout.units[unit].buffer_class);
    ZERO_ASSERT(buffer);
    gradients->published_in[unit] = buffer->published_in;
    zero_unsharded_assign(unsharded, buffer, unit);
    return ZERO_OK;
}

/* Notes that from the newest fence on peers may read the unit's full gradients. */
static zero_status_t publish_buffer(zero_gradients_t *gradients, zero_unit_t unit)
{
    gradients->published_in[unit] = gradients->reduction.fence;
    if (!gradients->context->plan.stage.shard_grads)
        return ZERO_OK;
    zero_unsharded_buffer_t *buffer = zero_unsharded_find(&gradients->unsharded, unit);
    ZERO_ASSERT(buffer);
    buffer->published_in = gradients->reduction.fence;
    return ZERO_OK;
}

/* Releases the buffer for the next unit: this rank's own slice has been summed. */
static zero_status_t release_buffer(zero_gradients_t *gradients, zero_unit_t unit)
{
    if (!gradients->context->plan.stage.shard_grads)
        return ZERO_OK;
    zero_unsharded_buffer_t *buffer = zero_unsharded_find(&gradients->unsharded, unit);
    ZERO_ASSERT(buffer && buffer->published_in == gradients->reduction.fence);
    zero_unsharded_assign(&gradients->unsharded, buffer, -1);
    return ZERO_OK;
}

/* ---- the transfer ---- */

/* Returns the newest chunk but `back` of those that have been transferred. */
static chunk_t *chunk_at(zero_gradients_t *gradients, int back)
{
    uint64_t n_staging = (uint64_t)gradients->context->plan.n_staging;
    return &gradients->chunks[(gradients->n_chunks - 1 - (uint64_t)back) % n_staging];
}

/* Brings the ranks' slices of a chunk here. If the transport reduces, it brings their sum, which replaces this rank's
 * own slice: no peer reads that. */
static zero_status_t transfer(zero_gradients_t *gradients, zero_unit_t unit, chunk_t *chunk, zero_stream_t stream)
{
    zero_context_t *context = gradients->context;
    zero_comm_t *comm = context->comm;
    zero_dtype_t dtype = context->plan.stage.grad_dtype;
    size_t size = zero_dtype_size(dtype), slice_bytes = context->layout.units[unit].shard_elems * size;
    uint64_t offset;
    ZERO_TRY(find_offset(gradients, unit, &offset));
    offset += chunk->first * size;
    chunk->n_slices = context->plan.transport_reduces ? 1 : comm->size;
    if (!context->plan.transport_reduces)
        return comm->ops->all_to_all(comm, ZERO_LANE_REDUCE, &context->window, context->plan.group, offset, slice_bytes,
                                     chunk->n_elems * size, zero_context_private(context, chunk->staging),
                                     chunk->slices, stream);
    chunk->slices[0] = zero_context_window(context, offset + (size_t)comm->rank * slice_bytes);
    return comm->ops->reduce_scatter(comm, ZERO_LANE_REDUCE, &context->window, offset, chunk->n_elems, dtype, stream);
}

/* Makes the stream `waiting` wait for all sums that have been queued in `stream`. */
static zero_status_t await_reductions(zero_gradients_t *gradients, zero_stream_t waiting, zero_stream_t stream)
{
    ZERO_TRY(zero_streams_record(gradients->context, gradients->reductions_done, stream));
    return zero_streams_wait(gradients->context, waiting, gradients->reductions_done);
}

static zero_status_t sum_chunk(zero_gradients_t *gradients, const chunk_t *chunk, zero_stream_t stream)
{
    zero_context_t *context = gradients->context;
    const reduction_t *reduction = &gradients->reduction;
    zero_unit_t unit = reduction->unit;
    zero_norm_t *norm = &zero_context_step_scratch(context)->norm;
    context->streams.compute_end = 0;
    /* Another unit's gradients may be in the buffer, and its update in a stream of offload's; and this unit's own sums
     * may be on their way there. */
    if (gradients->offload && zero_plan_grads_take_turns(&context->plan, unit))
        ZERO_TRY(zero_offload_await_grads(gradients->offload, unit, stream));
    const zero_dtype_t dtype = context->plan.reduced_dtype;
    const zero_sum_t sum = {
        .out = (unsigned char *)zero_context_reduced_grads_of(context, unit) + chunk->first * zero_dtype_size(dtype),
        .out_dtype = dtype,
        .is_rounded = reduction->is_last && context->config.gradients == ZERO_BF16,
        .accumulates = reduction->adds,
        .slices = chunk->slices,
        .n_slices = chunk->n_slices,
        .dtype = context->plan.stage.grad_dtype,
        .n_elems = chunk->n_elems,
        .norm = reduction->is_last && !zero_hooks_see_reduced(context) ? norm : NULL,
    };
    return context->device->kernels->sum_slices(&sum, stream);
}

/* Transfers the chunk that begins at `first`. If the staging buffers are full of this unit's chunks, sums the oldest to
 * make room. */
static zero_status_t start_chunk(zero_gradients_t *gradients, uint64_t first, zero_stream_t transfer_stream,
                                 zero_stream_t stream)
{
    const zero_arena_plan_t *plan = &gradients->context->plan;
    reduction_t *reduction = &gradients->reduction;
    uint64_t n_left = gradients->context->layout.units[reduction->unit].shard_elems - first;
    const bool is_first_sum = first == (uint64_t)plan->n_staging * plan->chunk_elems;
    if (reduction->n_held == plan->n_staging && is_first_sum && gradients->calls.user)
        ZERO_TRY(await_reductions(gradients, transfer_stream, stream)); /* the update that read the same buffer */
    if (reduction->n_held == plan->n_staging)
        ZERO_TRY(sum_chunk(gradients, chunk_at(gradients, --reduction->n_held), transfer_stream));
    gradients->n_chunks++;
    reduction->n_held++;
    chunk_t *chunk = chunk_at(gradients, 0);
    chunk->first = first;
    chunk->n_elems = n_left < plan->chunk_elems ? n_left : plan->chunk_elems;
    if (chunk->summed_in > gradients->n_reductions_awaited) { /* the sum that reads the buffer may be under way */
        ZERO_TRY(await_reductions(gradients, transfer_stream, stream));
        gradients->n_reductions_awaited = gradients->n_reductions;
    }
    ZERO_TRY(transfer(gradients, reduction->unit, chunk, transfer_stream));
    if (n_left > (uint64_t)plan->n_staging * plan->chunk_elems)
        return ZERO_OK; /* the transfer stream will sum it itself: nothing waits for it */
    return zero_streams_record_timed(gradients->context, &chunk->staged, transfer_stream);
}

/* Has a unit's sums of earlier micro-steps come back, if they wait in host memory and have not come yet. */
static zero_status_t fetch_sums(zero_gradients_t *gradients, zero_unit_t unit)
{
    const zero_context_t *context = gradients->context;
    const bool waits = zero_plan_sums_wait_on_host(&context->plan, unit) && context->layout.units[unit].shard_elems > 0;
    return waits && context->progress.micro_step > 0 ? zero_offload_fetch_sums(gradients->offload, unit) : ZERO_OK;
}

/* Starts a unit's transfer, which waits for the unit's use. That came behind n_reductions_before of the sums in
 * `stream`, and so does the transfer. */
static zero_status_t start(zero_gradients_t *gradients, zero_unit_t unit, uint64_t n_reductions_before,
                           zero_stream_t stream)
{
    zero_context_t *context = gradients->context;
    const zero_stage_t *stage = &context->plan.stage;
    int micro_step = context->progress.micro_step, span = -1;
    zero_stream_t transfer_stream = zero_streams_reduce(context, stream);
    uint64_t shard_elems = context->layout.units[unit].shard_elems;
    gradients->reduction = (reduction_t){
        .unit = unit,
        .is_last = micro_step == context->config.micro_steps - 1,
        .adds = micro_step > 0 && !stage->accumulate_locally,
    };
    ZERO_TRY(fetch_sums(gradients, unit));
    ZERO_TRY(zero_streams_wait_timed(context, transfer_stream, context->streams.used[unit]));
    gradients->n_reductions_awaited = n_reductions_before;
    if (context->comm->size > 1) /* else nothing is transferred */
        ZERO_TRY(zero_streams_begin_comm_span(context, ZERO_WORK_REDUCE, unit, zero_comm_all(context->comm),
                                              transfer_stream, &span));
    ZERO_TRY(zero_streams_fence_in(context, ZERO_LANE_REDUCE, transfer_stream));
    gradients->reduction.fence = context->streams.n_fences;
    ZERO_TRY(publish_buffer(gradients, unit));
    if (is_updated(gradients))
        ZERO_TRY(gradients->calls.fenced(gradients->calls.user, transfer_stream));
    for (uint64_t first = 0; first < shard_elems; first += context->plan.chunk_elems)
        ZERO_TRY(start_chunk(gradients, first, transfer_stream, stream));
    ZERO_TRY(zero_streams_end_span(context, span, transfer_stream));
    context->stats.n_reduces++;
    context->stats.reduced_bytes +=
        shard_elems * zero_dtype_size(stage->grad_dtype) * (uint64_t)(context->comm->size - 1);
    return ZERO_OK;
}

/* ---- the sum ---- */

/* Stage 0 updates everything on every rank, so every rank needs all reduced gradients. */
static zero_status_t gather_reduced(zero_gradients_t *gradients, zero_unit_t unit, zero_stream_t stream)
{
    zero_context_t *context = gradients->context;
    zero_comm_t *comm = context->comm;
    zero_stream_t gather_stream = zero_streams_gather(context, stream);
    if (context->plan.stage.shard_state || comm->size == 1)
        return ZERO_OK;
    ZERO_TRY(await_reductions(gradients, gather_stream, stream));
    ZERO_TRY(comm->ops->fence(comm, ZERO_LANE_GATHER, gather_stream));
    return zero_gather_in_place(context, unit, context->plan.reduced_grads, sizeof(float), gather_stream);
}

/* Queues the sums of the reduction that is under way, if one is. */
static zero_status_t finish_reduction(zero_gradients_t *gradients, zero_stream_t stream)
{
    zero_context_t *context = gradients->context;
    zero_streams_t *streams = &context->streams;
    reduction_t *reduction = &gradients->reduction;
    zero_unit_t unit = reduction->unit;
    if (unit < 0)
        return ZERO_OK;
    for (bool is_first = true; reduction->n_held > 0; reduction->n_held--, is_first = false) {
        chunk_t *oldest = chunk_at(gradients, reduction->n_held - 1);
        if (streams->overlapped)
            ZERO_TRY(zero_streams_compute_wait_timed(context, ZERO_WAIT_REDUCE, unit, oldest->staged, stream));
        if (is_first && is_updated(gradients))
            ZERO_TRY(gradients->calls.before_sum(gradients->calls.user, stream));
        ZERO_TRY(sum_chunk(gradients, oldest, stream));
        oldest->summed_in = ++gradients->n_reductions;
    }
    ZERO_TRY(release_buffer(gradients, unit));
    if (streams->n_fences_passed < reduction->fence)
        streams->n_fences_passed = reduction->fence; /* the slices came behind it */
    if (reduction->is_last && zero_hooks_see_reduced(context))
        ZERO_TRY(zero_hooks_reduced(context, unit, stream));
    if (reduction->is_last)
        ZERO_TRY(gather_reduced(gradients, unit, stream));
    if (is_updated(gradients))
        ZERO_TRY(gradients->calls.after_sum(gradients->calls.user, unit, stream));
    else if (reduction->is_last && zero_plan_is_offloaded(&context->plan, unit))
        ZERO_TRY(zero_offload_send_grads(gradients->offload, unit, stream));
    else if (zero_plan_sums_wait_on_host(&context->plan, unit))
        ZERO_TRY(zero_offload_send_sums(gradients->offload, unit, stream));
    reduction->unit = -1;
    return ZERO_OK;
}

/* ---- backward ---- */

zero_status_t zero_gradients_prepare(zero_gradients_t *gradients, zero_unit_t unit, zero_stream_t stream)
{
    zero_context_t *context = gradients->context;
    const bool updates = gradients->calls.user && context->progress.micro_step == context->config.micro_steps - 1;
    if (updates)
        ZERO_TRY(zero_offload_fetch_ahead(gradients->offload));
    /* What the micro-step before left under way has a buffer of its own. */
    if (context->progress.position == context->model->n_units)
        ZERO_TRY(finish_reduction(gradients, stream));
    /* The buffer's last unit has been summed, and is on its way out. Only an update in backward of several ranks may
     * have yet to be queued. */
    if (!updates || context->comm->size == 1)
        ZERO_TRY(fetch_sums(gradients, unit));
    for (int i = 0; i < zero_model_n_flats(context->model, unit); i++) {
        zero_unit_t flat = zero_model_flat(context->model, unit, i);
        if (context->layout.units[flat].shard_elems == 0)
            continue;
        if (context->plan.stage.shard_grads) {
            if (zero_unsharded_find(&gradients->unsharded, flat))
                continue; /* begun by a unit that shares a tensor of it */
            ZERO_TRY(acquire_buffer(gradients, flat));
        }
        ZERO_TRY(zero_streams_await_readers(context, flat, gradients->published_in[flat], stream));
    }
    return ZERO_OK;
}

zero_status_t zero_gradients_reduce(zero_gradients_t *gradients, zero_unit_t unit, zero_stream_t stream)
{
    const zero_context_t *context = gradients->context;
    if (context->progress.micro_step < context->config.micro_steps - 1 && context->plan.stage.accumulate_locally)
        return ZERO_OK;
    if (context->layout.units[unit].shard_elems == 0)
        return ZERO_OK;
    /* The transfer waits for this unit's gradients, not for the sums of the unit before. */
    uint64_t n_reductions_before = gradients->n_reductions;
    ZERO_TRY(finish_reduction(gradients, stream));
    ZERO_TRY(start(gradients, unit, n_reductions_before, stream));
    return context->streams.overlapped ? ZERO_OK : finish_reduction(gradients, stream);
}

zero_status_t zero_gradients_finish(zero_gradients_t *gradients, zero_stream_t stream)
{
    zero_context_t *context = gradients->context;
    ZERO_TRY(finish_reduction(gradients, stream));
    if (!context->streams.overlapped || context->plan.stage.shard_state)
        return ZERO_OK;
    ZERO_TRY(zero_streams_record(context, gradients->all_gathered, context->streams.gather));
    return zero_streams_compute_wait(context, ZERO_WAIT_GATHER, -1, gradients->all_gathered, stream);
}

/* What has been summed is overwritten by the next step's first micro-step, but for the norm. */
zero_status_t zero_gradients_cancel(zero_gradients_t *gradients)
{
    static const zero_norm_t none = {0};
    const zero_context_t *context = gradients->context;
    gradients->reduction = (reduction_t){.unit = -1};
    if (gradients->calls.user)
        gradients->calls.cancel(gradients->calls.user);
    zero_unsharded_clear(&gradients->unsharded);
    ZERO_TRY(zero_device_copy(context->device, &zero_context_step_scratch(context)->norm, &none, sizeof none,
                              context->streams.gather));
    return zero_device_synchronize(context->device);
}
