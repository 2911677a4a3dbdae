/* gradients.c - gradients on their way to their owners: each rank's slices come together and are added up, in fp32 and
 * in rank order, into the shard of the rank that owns them.
 *
 * A reduction has two halves. The journey (fence, all_to_all) starts at grad_ready, in reduce_stream where it is
 * overlapped; the sum is queued in the caller's stream when the next unit's backward is, so that it need not wait long
 * for the journey, nor the journey for compute. A unit travels in pieces, which take turns in staging. One with more
 * pieces than staging has places cannot wait for compute with all of them: the oldest are summed on the way, in
 * reduce_stream.
 *
 * What must hold: full gradients lie in the window, and peers read them until a fence that follows the all_to_all. So a
 * slot (stages 2-3) or a unit (stages 0-1) remembers in which fence it was published, and compute writes its place
 * again only after a later one. One fence per unit serves both ends: it publishes this unit and frees the one before.
 */
#include "zero/engine/engine.h"
#include "base/log.h"
#include "zero/plan/order.h"

/* ---- places ---- */

zero_status_t zero_engine_prepare_grads(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream)
{
    /* What the micro-step before left under way reads a slot of its own. */
    if (engine->position == engine->model->n_units)
        ZERO_TRY(zero_engine_finish_reductions(engine, stream));
    for (int i = 0; i < zero_model_n_flats(engine->model, unit); i++) {
        zero_unit_t flat = zero_model_flat(engine->model, unit, i);
        if (!engine->plan.stage.shard_grads) {
            ZERO_TRY(zero_engine_await_readers(engine, flat, engine->grads_read_in_fence[flat], stream));
            continue;
        }
        if (zero_unsharded_find(&engine->unsharded_grads, flat))
            continue; /* begun by a unit that shares a tensor of it */
        zero_unsharded_buffer_t *slot =
            zero_unsharded_empty(&engine->unsharded_grads, engine->layout.units[flat].buffer_class);
        ZERO_TRY(zero_engine_await_readers(engine, flat, slot->read_in_fence, stream));
        zero_unsharded_put(&engine->unsharded_grads, slot, flat);
    }
    return ZERO_OK;
}

/* ---- the journey and the sum ---- */

/* The newest but `back` of the pieces that have left. */
static zero_grad_chunk_t *chunk_at(zero_engine_t *engine, int back)
{
    return &engine->pieces[(engine->n_chunks - 1 - (uint64_t)back) % (uint64_t)engine->plan.n_staging];
}

/* Brings the ranks' slices of a piece here, or their sum: where the transport adds, that takes the place of this rank's
 * own slice, which nobody else reads. */
static zero_status_t transfer(zero_engine_t *engine, zero_unit_t unit, zero_grad_chunk_t *piece, zero_stream_t stream)
{
    zero_comm_t *comm = engine->comm;
    zero_dtype_t dtype = engine->plan.stage.grad_dtype;
    size_t size = zero_dtype_size(dtype), slice_bytes = engine->layout.units[unit].shard_elems * size;
    uint64_t offset = zero_engine_grad_offset(engine, unit) + piece->first * size;
    piece->n_slices = engine->plan.transport_reduces ? 1 : comm->size;
    if (!engine->plan.transport_reduces)
        return comm->ops->all_to_all(comm, ZERO_LANE_REDUCE, &engine->window, offset, slice_bytes,
                                     piece->n_elems * size, zero_engine_private(engine, piece->staging), piece->slices,
                                     stream);
    piece->slices[0] = (unsigned char *)engine->window.local + offset + (size_t)comm->rank * slice_bytes;
    return comm->ops->reduce_scatter(comm, ZERO_LANE_REDUCE, &engine->window, offset, piece->n_elems, dtype, stream);
}

static zero_status_t sum(zero_engine_t *engine, const zero_grad_chunk_t *piece, zero_stream_t stream)
{
    const zero_reduction_t *reduction = &engine->reduction;
    zero_unit_t unit = reduction->unit;
    engine->arrived = 0;
    double *partials = zero_engine_private(engine, engine->plan.partials);
    partials += engine->partials_of[unit] + piece->first / ZERO_NORM_CHUNK; /* pieces begin at chunks */
    if (engine->offload && zero_offload_has(engine, unit))
        ZERO_TRY(zero_offload_await_grads(engine, unit, stream));
    return engine->device->kernels->sum_slices(zero_engine_reduced_grads_of(engine, unit) + piece->first, piece->slices,
                                               piece->n_slices, engine->plan.stage.grad_dtype, piece->n_elems,
                                               reduction->add, reduction->last ? partials : NULL, stream);
}

/* What comes next in `beside` comes after all sums that are queued in `stream`. */
static zero_status_t await_reductions(zero_engine_t *engine, zero_stream_t beside, zero_stream_t stream)
{
    ZERO_TRY(zero_engine_record(engine, engine->reductions_done, stream));
    return zero_engine_stream_wait(engine, beside, engine->reductions_done);
}

/* The piece that begins at `first`; where staging is full of this unit's, the oldest is summed to make room. */
static zero_status_t start_chunk(zero_engine_t *engine, uint64_t first, zero_stream_t transfer_stream,
                                 zero_stream_t stream)
{
    zero_reduction_t *reduction = &engine->reduction;
    uint64_t n_left = engine->layout.units[reduction->unit].shard_elems - first;
    if (reduction->n_held == engine->plan.n_staging)
        ZERO_TRY(sum(engine, chunk_at(engine, --reduction->n_held), transfer_stream));
    engine->n_chunks++;
    reduction->n_held++;
    zero_grad_chunk_t *piece = chunk_at(engine, 0);
    piece->first = first;
    piece->n_elems = n_left < engine->plan.chunk_elems ? n_left : engine->plan.chunk_elems;
    if (piece->sum > engine->n_reductions_done) { /* of what was in its place */
        ZERO_TRY(await_reductions(engine, transfer_stream, stream));
        engine->n_reductions_done = engine->n_reductions;
    }
    ZERO_TRY(transfer(engine, reduction->unit, piece, transfer_stream));
    if (n_left > (uint64_t)engine->plan.n_staging * engine->plan.chunk_elems)
        return ZERO_OK; /* it is summed on the way: nobody waits for it */
    return zero_engine_record_timed(engine, &piece->staged, transfer_stream);
}

/* The unit was used behind n_reductions_before of the sums in `stream`: the journey, which waits for that, is too. */
static zero_status_t start(zero_engine_t *engine, zero_unit_t unit, uint64_t n_reductions_before, zero_stream_t stream)
{
    zero_stream_t transfer_stream = zero_engine_stream(engine, engine->reduce_stream, stream);
    uint64_t shard_elems = engine->layout.units[unit].shard_elems;
    int span = -1;
    engine->reduction = (zero_reduction_t){
        .unit = unit,
        .last = engine->micro_step == engine->config.micro_steps - 1,
        .add = engine->micro_step > 0 && !engine->plan.stage.accumulate_locally,
    };
    ZERO_TRY(zero_engine_stream_wait_timed(engine, transfer_stream, engine->used[unit]));
    engine->n_reductions_done = n_reductions_before;
    if (engine->comm->size > 1) /* else nothing travels */
        ZERO_TRY(
            zero_engine_begin_span(engine, zero_engine_work(engine, ZERO_WORK_REDUCE), unit, transfer_stream, &span));
    ZERO_TRY(zero_engine_fence_in(engine, ZERO_LANE_REDUCE, transfer_stream));
    engine->reduction.fence = engine->n_fences;
    for (uint64_t first = 0; first < shard_elems; first += engine->plan.chunk_elems)
        ZERO_TRY(start_chunk(engine, first, transfer_stream, stream));
    ZERO_TRY(zero_timeline_end(engine->timeline, span, transfer_stream));
    engine->stats.n_reduces++;
    engine->stats.reduced_bytes +=
        shard_elems * zero_dtype_size(engine->plan.stage.grad_dtype) * (uint64_t)(engine->comm->size - 1);
    return ZERO_OK;
}

/* Stage 0 updates everything everywhere, so every rank needs every sum. */
static zero_status_t gather_reduced_grads(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream)
{
    zero_stream_t gather_stream = zero_engine_stream(engine, engine->gather_stream, stream);
    if (engine->plan.stage.shard_state || engine->comm->size == 1)
        return ZERO_OK;
    ZERO_TRY(await_reductions(engine, gather_stream, stream));
    ZERO_TRY(engine->comm->ops->fence(engine->comm, ZERO_LANE_GATHER, gather_stream));
    return zero_engine_gather_in_place(engine, unit, engine->plan.sums, sizeof(float), gather_stream);
}

zero_status_t zero_engine_finish_reductions(zero_engine_t *engine, zero_stream_t stream)
{
    zero_reduction_t *reduction = &engine->reduction;
    zero_unit_t unit = reduction->unit;
    if (unit < 0)
        return ZERO_OK;
    for (; reduction->n_held > 0; reduction->n_held--) {
        zero_grad_chunk_t *oldest = chunk_at(engine, reduction->n_held - 1);
        if (engine->overlapped)
            ZERO_TRY(zero_engine_compute_wait_timed(engine, unit, oldest->staged, stream));
        ZERO_TRY(sum(engine, oldest, stream));
        oldest->sum = ++engine->n_reductions;
    }
    if (engine->n_fences_passed < reduction->fence)
        engine->n_fences_passed = reduction->fence; /* what travelled behind it is here */
    if (reduction->last)
        ZERO_TRY(gather_reduced_grads(engine, unit, stream));
    if (reduction->last && engine->offload && zero_offload_has(engine, unit))
        ZERO_TRY(zero_offload_send_grads(engine, unit, stream));
    reduction->unit = -1;
    return ZERO_OK;
}

/* Nobody writes the unit's full gradient until peers have read it. */
static void release_buffer(zero_engine_t *engine, zero_unit_t unit)
{
    engine->grads_read_in_fence[unit] = engine->n_fences;
    if (!engine->plan.stage.shard_grads)
        return;
    zero_unsharded_buffer_t *slot = zero_unsharded_find(&engine->unsharded_grads, unit);
    slot->read_in_fence = engine->n_fences;
    zero_unsharded_put(&engine->unsharded_grads, slot, -1);
}

zero_status_t zero_engine_reduce(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream)
{
    bool is_due = engine->micro_step == engine->config.micro_steps - 1 || !engine->plan.stage.accumulate_locally;
    if (is_due && engine->layout.units[unit].shard_elems > 0) {
        /* The journey waits for this unit's gradients, not for the sum of the unit before. */
        uint64_t n_reductions_before = engine->n_reductions;
        ZERO_TRY(zero_engine_finish_reductions(engine, stream));
        ZERO_TRY(start(engine, unit, n_reductions_before, stream));
        if (!engine->overlapped)
            ZERO_TRY(zero_engine_finish_reductions(engine, stream));
    }
    if (is_due)
        release_buffer(engine, unit);
    return ZERO_OK;
}
