/* muon_update.c - see muon_update.h.
 *
 * In each round of the schedule (muon_schedule.h)
 *
 *     every rank      advances its momentum of the round's units, and writes each owner's part to a slot of its window
 *     fence, all-to-all
 *     the owner       orthogonalizes its matrices and writes the results to slots again
 *     fence, all-to-all
 *     every rank      steps its weights by the owners' results
 *
 * A caller's optimizer takes the place of Muon's arithmetic (zero_matrix_fns_t): what it calls direction travels as the
 * momentum does.
 *
 * Where every rank has all state (stage 0) nothing is sent to the owners, and all ranks gather all of the results, a
 * shard's length at a time.
 *
 * What must hold: a matrix is orthogonalized by one rank, in the same steps whatever the stage and the number of ranks,
 * so bits do not depend on these. Two fences a round are enough for two buffers: updates are read behind the first and
 * rewritten behind the second, results are read behind the second and rewritten behind the next round's first.
 */
#include "zero/step/muon_update.h"

#include <math.h>
#include <stdlib.h>

#include "base/log.h"
#include "zero/runtime/addresses.h"

/* A factor of the update, in addition to the learning rate. Makes its root mean square about AdamW's: an orthogonal
 * matrix's is 1 / sqrt(longer side). */
#define UPDATE_RMS 0.2

/* ---- creating ---- */

/* Returns which shard of its unit a chunk is. */
static uint64_t shard_of(const zero_muon_update_t *update, int chunk)
{
    const zero_arena_plan_t *plan = &update->context->plan;
    return plan->muon.is_full ? (uint64_t)chunk
                              : (uint64_t)zero_comm_slice_of(update->rank, update->n_ranks, plan->group);
}

/* Writes the segment of a tensor in one shard of its unit, if it has one. */
static bool make_segment(const zero_context_t *context, zero_tensor_t t, uint64_t shard, zero_muon_segment_t *segment)
{
    const zero_tensor_decl_t *tensor = &context->model->tensors[t];
    const uint64_t shard_elems = context->layout.units[tensor->owner].shard_elems, begin = shard * shard_elems;
    const zero_span_t span = zero_layout_span(&context->layout, context->model, t, begin, begin + shard_elems);
    const int64_t rows = tensor->shape[0], cols = tensor->shape[1];
    if (span.n_elems == 0)
        return false;
    const zero_adam_segment_t at = zero_context_segment_at(context, tensor->owner, span.flat_offset);
    *segment = (zero_muon_segment_t){
        .n_elems = span.n_elems,
        .param = at.param,
        .state = at.state,
        .grad = at.grad,
        .at = span.flat_offset - begin,
        .decay = tensor->decay ? context->config.weight_decay : 0.0f,
        .tensor = (uint32_t)t,
        .scale = (float)(UPDATE_RMS * sqrt((double)(rows > cols ? rows : cols))),
    };
    return true;
}

/* Returns the number of (round, owner, chunk). */
static size_t index_of(const zero_muon_update_t *update, int round, int owner, int chunk)
{
    return ((size_t)round * (size_t)update->n_ranks + (size_t)owner) * (size_t)update->n_chunks + (size_t)chunk;
}

/* Appends the segments of an owner's matrices in one chunk. */
static size_t append_segments(zero_muon_update_t *update, int round, int owner, int chunk, size_t n,
                              zero_muon_segment_t *segments)
{
    const zero_muon_schedule_t *schedule = update->schedule;
    const size_t index = index_of(update, round, owner, chunk);
    for (zero_tensor_t t = 0; t < update->context->model->n_tensors; t++) {
        if (schedule->round_of[t] != round || schedule->owner_of[t] != owner ||
            !make_segment(update->context, t, shard_of(update, chunk), &segments[n]))
            continue;
        if (segments[n].n_elems > update->longest[index])
            update->longest[index] = segments[n].n_elems;
        n++;
    }
    update->first_segment[index + 1] = n;
    return n;
}

static zero_status_t create_segments(zero_muon_update_t *update)
{
    const zero_context_t *context = update->context;
    const zero_muon_plan_t *plan = &context->plan.muon;
    size_t n = 0;
    zero_muon_segment_t *segments = calloc(plan->max_segments + 1, sizeof *segments);
    if (!segments)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for %zu segments", plan->max_segments);
    for (int round = 0; round < update->schedule->n_rounds; round++)
        for (int owner = 0; owner < update->n_ranks; owner++)
            for (int chunk = 0; chunk < update->n_chunks; chunk++)
                n = append_segments(update, round, owner, chunk, n, segments);
    zero_status_t status = zero_device_copy(context->device, zero_context_private(context, plan->segments), segments,
                                            n * sizeof *segments, NULL);
    if (status == ZERO_OK)
        status = zero_device_synchronize(context->device);
    free(segments);
    return status;
}

static zero_status_t create(zero_muon_update_t *update)
{
    const size_t n_groups = index_of(update, update->schedule->n_rounds, 0, 0);
    update->first_segment = calloc(n_groups + 1, sizeof *update->first_segment);
    update->longest = calloc(n_groups, sizeof *update->longest);
    update->slices = calloc((size_t)update->n_ranks, sizeof *update->slices);
    if (!update->first_segment || !update->longest || !update->slices)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for Muon's tables of %d ranks", update->n_ranks);
    if (update->fns)
        return ZERO_OK;
    ZERO_TRY(zero_muon_owner_create(update));
    return create_segments(update);
}

zero_status_t zero_muon_update_create(zero_context_t *context, const zero_matrix_fns_t *fns, void *user,
                                      zero_muon_update_t **update)
{
    *update = NULL;
    if (context->plan.muon.schedule.n_rounds == 0)
        return ZERO_OK;
    if (context->plan.muon.dtype == ZERO_BF16 && !context->device->kernels->orthogonalizer_create)
        return zero_fail_collective(ZERO_ERROR_UNSUPPORTED, "optimizer muon: this device has no products in 16 bits");
    zero_muon_update_t *made = calloc(1, sizeof *made);
    if (!made)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for an engine");
    made->context = context;
    made->schedule = &context->plan.muon.schedule;
    made->fns = fns;
    made->user = user;
    made->rank = context->comm->rank;
    made->n_ranks = context->comm->size;
    made->n_chunks = context->plan.muon.is_full ? made->n_ranks : 1;
    zero_status_t status = create(made);
    if (status != ZERO_OK) {
        zero_muon_update_destroy(made);
        return status;
    }
    *update = made;
    return ZERO_OK;
}

void zero_muon_update_destroy(zero_muon_update_t *update)
{
    if (!update)
        return;
    if (update->orthogonalizer)
        update->context->device->kernels->orthogonalizer_destroy(update->orthogonalizer);
    free(update->first_segment);
    free(update->longest);
    free(update->slices);
    free(update);
}

/* ---- a round ---- */

/* Fills a kernel's arguments for an owner's matrices in one chunk. vector: their momentum or results in it. */
static zero_muon_t arguments_of(const zero_muon_update_t *update, int round, int owner, int chunk, const void *vector)
{
    const zero_context_t *context = update->context;
    const zero_arena_plan_t *plan = &context->plan;
    const zero_dtype_t dtype = context->config.dtype;
    const size_t index = index_of(update, round, owner, chunk), first = update->first_segment[index];
    return (zero_muon_t){
        .param_dtype = dtype,
        .param = zero_context_params(context),
        .master_lo = dtype == ZERO_FP32 ? NULL : zero_context_private(context, plan->master_lo),
        .m = zero_context_private(context, plan->m),
        .grad = zero_context_reduced_grads(context),
        .update = (void *)(uintptr_t)vector,
        .update_dtype = plan->muon.dtype,
        .segments = (const zero_muon_segment_t *)zero_context_private(context, plan->muon.segments) + first,
        .n_segments = update->first_segment[index + 1] - first,
        .longest = update->longest[index],
        .momentum = context->config.muon_momentum,
        .one_minus_momentum = 1.0f - context->config.muon_momentum,
        .scalars = &zero_context_step_scratch(context)->scalars,
        .by_tensor = context->by_tensor,
    };
}

/* Calls a function of the caller's for all parts of an owner's matrices in one chunk, whose slot is given. */
static zero_status_t for_parts(const zero_muon_update_t *update, int round, int owner, int chunk,
                               zero_status_t (*fn)(void *, zero_tensor_t, const zero_span_t *, float *, zero_stream_t),
                               const void *slot, zero_stream_t stream)
{
    const zero_context_t *context = update->context;
    const zero_muon_schedule_t *schedule = update->schedule;
    for (zero_tensor_t t = 0; t < context->model->n_tensors; t++) {
        if (schedule->round_of[t] != round || schedule->owner_of[t] != owner)
            continue;
        const uint64_t shard_elems = context->layout.units[context->model->tensors[t].owner].shard_elems;
        const uint64_t begin = shard_of(update, chunk) * shard_elems;
        const zero_span_t part = zero_layout_span(&context->layout, context->model, t, begin, begin + shard_elems);
        if (part.n_elems > 0)
            ZERO_TRY(fn(update->user, t, &part, (float *)(uintptr_t)slot + (part.flat_offset - begin), stream));
    }
    return ZERO_OK;
}

/* Advances the momentum of an owner's matrices in one chunk, or what the caller's function keeps, and writes it to
 * `vector`; NULL if nobody needs it. The caller's function always writes a direction: then to memory in which nothing
 * is kept between rounds. */
static zero_status_t advance_part(const zero_muon_update_t *update, int round, int owner, int chunk, void *vector,
                                  zero_stream_t stream)
{
    const zero_context_t *context = update->context;
    if (update->fns)
        return for_parts(update, round, owner, chunk, update->fns->advance,
                         vector ? vector : zero_context_private(context, context->plan.muon.received), stream);
    const zero_muon_t args = arguments_of(update, round, owner, chunk, vector);
    return args.n_segments > 0 ? context->device->kernels->muon_momentum(&args, stream) : ZERO_OK;
}

/* Advances all of this rank's momentum, and writes what the owners need of it to the slots. */
static zero_status_t advance(const zero_muon_update_t *update, int round, zero_stream_t stream)
{
    const zero_context_t *context = update->context;
    const zero_muon_plan_t *plan = &context->plan.muon;
    for (int owner = 0; owner < update->n_ranks; owner++)
        for (int chunk = 0; chunk < update->n_chunks; chunk++) {
            const uint64_t slot = (uint64_t)(plan->is_full ? chunk : owner) * zero_muon_slot_bytes(update, round);
            const bool is_needed = !plan->is_full || owner == update->rank;
            ZERO_TRY(advance_part(update, round, owner, chunk,
                                  is_needed ? zero_context_window(context, plan->updates + slot) : NULL, stream));
        }
    return ZERO_OK;
}

/* Brings all ranks' parts of this rank's unit together: slices[r] is what rank r holds. */
static zero_status_t collect_updates(zero_muon_update_t *update, int round, zero_stream_t stream)
{
    zero_context_t *context = update->context;
    zero_comm_t *comm = context->comm;
    const zero_muon_plan_t *plan = &context->plan.muon;
    const uint64_t n_bytes = zero_muon_slot_bytes(update, round);
    ZERO_TRY(zero_streams_fence(context, stream));
    if (!plan->is_full)
        return comm->ops->all_to_all(comm, ZERO_LANE_STEP, &context->window, comm->size, plan->updates, n_bytes,
                                     n_bytes, zero_context_private(context, plan->received), update->slices, stream);
    for (int shard = 0; shard < update->n_ranks; shard++)
        update->slices[shard] = zero_context_window(context, plan->updates + (uint64_t)shard * n_bytes);
    return ZERO_OK;
}

/* Steps this rank's weights in one chunk by the results, of which slices[r] has those of owner r. */
static zero_status_t apply(const zero_muon_update_t *update, int round, int chunk, zero_stream_t stream)
{
    for (int owner = 0; owner < update->n_ranks; owner++) {
        if (update->fns) {
            ZERO_TRY(for_parts(update, round, owner, chunk, update->fns->apply, update->slices[owner], stream));
            continue;
        }
        const zero_muon_t args = arguments_of(update, round, owner, chunk, update->slices[owner]);
        if (args.n_segments > 0)
            ZERO_TRY(update->context->device->kernels->muon_apply(&args, stream));
    }
    return ZERO_OK;
}

/* Brings the owners' results here and steps the weights. */
static zero_status_t spread_results(zero_muon_update_t *update, int round, zero_stream_t stream)
{
    zero_context_t *context = update->context;
    zero_comm_t *comm = context->comm;
    const zero_arena_plan_t *plan = &context->plan;
    const uint64_t n_bytes = zero_muon_slot_bytes(update, round);
    unsigned char *received = zero_context_private(context, plan->muon.received);
    ZERO_TRY(zero_streams_fence(context, stream));
    if (!plan->muon.is_full) {
        ZERO_TRY(comm->ops->all_to_all(comm, ZERO_LANE_STEP, &context->window, plan->group, plan->muon.results, n_bytes,
                                       n_bytes, received, update->slices, stream));
        return apply(update, round, 0, stream);
    }
    for (int owner = 0; owner < update->n_ranks; owner++)
        update->slices[owner] = received + (uint64_t)owner * n_bytes;
    for (int chunk = 0; chunk < update->n_chunks; chunk++) {
        ZERO_TRY(comm->ops->all_gather(comm, ZERO_LANE_STEP, &context->window, zero_comm_all(comm),
                                       plan->muon.results + (uint64_t)chunk * n_bytes, 0, received, n_bytes, stream));
        ZERO_TRY(apply(update, round, chunk, stream));
    }
    return ZERO_OK;
}

zero_status_t zero_muon_update_run(zero_muon_update_t *update, zero_stream_t stream)
{
    if (!update)
        return ZERO_OK;
    const zero_muon_schedule_t *schedule = update->schedule;
    for (int round = 0; round < schedule->n_rounds; round++) {
        ZERO_TRY(advance(update, round, stream));
        ZERO_TRY(collect_updates(update, round, stream));
        ZERO_TRY(zero_muon_owner_run(update, round, stream));
        ZERO_TRY(spread_results(update, round, stream));
    }
    return ZERO_OK;
}

/* ---- muon owner ---- */
/* What a rank does in a round with the matrices that it owns: it joins each of the ranks' parts,
 * orthogonalizes them, as many at a time as there are lanes, and cuts the results into the slots. */

zero_status_t zero_muon_owner_create(zero_muon_update_t *update)
{
    const zero_context_t *context = update->context;
    const zero_shard_kernels_t *kernels = context->device->kernels;
    if (!kernels->orthogonalizer_create)
        return ZERO_OK;
    ZERO_TRY(kernels->orthogonalizer_create(&update->orthogonalizer));
    for (zero_tensor_t t = 0; t < context->model->n_tensors; t++)
        if (update->schedule->owner_of[t] == update->rank)
            ZERO_TRY(kernels->orthogonalizer_prepare(update->orthogonalizer,
                                                     (uint64_t)context->model->tensors[t].shape[0],
                                                     (uint64_t)context->model->tensors[t].shape[1]));
    return ZERO_OK;
}

/* Describes a matrix in the memory of one lane. */
static zero_orthogonalize_t matrix_in(const zero_muon_update_t *update, zero_tensor_t t, int lane)
{
    const zero_context_t *context = update->context;
    const zero_muon_plan_t *plan = &context->plan.muon;
    const zero_tensor_decl_t *tensor = &context->model->tensors[t];
    const uint64_t i = (uint64_t)lane;
    return (zero_orthogonalize_t){
        .x = zero_context_private(context, plan->matrix + i * plan->matrix_bytes),
        .scratch = zero_context_private(context, plan->scratch + i * plan->scratch_bytes),
        .orthogonalizer = update->orthogonalizer,
        .workspace = update->orthogonalizer
                         ? zero_context_private(context, plan->workspace + i * ZERO_ORTHOGONALIZE_WORKSPACE_BYTES)
                         : NULL,
        .rows = (uint64_t)tensor->shape[0],
        .cols = (uint64_t)tensor->shape[1],
        .n_steps = context->config.muon_steps,
        .skip = &zero_context_step_scratch(context)->scalars.skip,
    };
}

/* Copies a tensor's part of one shard between the matrix and a slot, which it enters or leaves. */
static zero_status_t copy_part(const zero_muon_update_t *update, const zero_orthogonalize_t *matrix, zero_tensor_t t,
                               int shard, void *slot, bool enters, zero_stream_t stream)
{
    const zero_context_t *context = update->context;
    const uint64_t size = zero_dtype_size(context->plan.muon.dtype);
    const uint64_t shard_elems = context->layout.units[context->model->tensors[t].owner].shard_elems;
    const uint64_t begin = (uint64_t)shard * shard_elems;
    const zero_span_t span = zero_layout_span(&context->layout, context->model, t, begin, begin + shard_elems);
    if (span.n_elems == 0)
        return ZERO_OK;
    unsigned char *in_matrix = (unsigned char *)matrix->x + span.first * size;
    unsigned char *in_slot = (unsigned char *)slot + (span.flat_offset - begin) * size;
    return zero_device_copy(context->device, enters ? in_slot : in_matrix, enters ? in_matrix : in_slot,
                            span.n_elems * size, stream);
}

/* Joins a matrix of the ranks' parts. */
static zero_status_t join(const zero_muon_update_t *update, const zero_orthogonalize_t *matrix, zero_tensor_t t,
                          zero_stream_t stream)
{
    const zero_arena_plan_t *plan = &update->context->plan;
    for (int r = 0; r < update->n_ranks; r++) {
        const int shard = plan->muon.is_full ? r : zero_comm_slice_of(r, update->n_ranks, plan->group);
        ZERO_TRY(copy_part(update, matrix, t, shard, (void *)(uintptr_t)update->slices[r], false, stream));
    }
    return ZERO_OK;
}

/* Cuts a matrix into the slots of the results. */
static zero_status_t cut(const zero_muon_update_t *update, int round, const zero_orthogonalize_t *matrix,
                         zero_tensor_t t, zero_stream_t stream)
{
    const zero_context_t *context = update->context;
    for (int shard = 0; shard < update->n_ranks; shard++) {
        const uint64_t at = context->plan.muon.results + (uint64_t)shard * zero_muon_slot_bytes(update, round);
        ZERO_TRY(copy_part(update, matrix, t, shard, zero_context_window(context, at), true, stream));
    }
    return ZERO_OK;
}

/* Orthogonalizes as many matrices as there are lanes, or fewer. */
static zero_status_t orthogonalize(const zero_muon_update_t *update, int round, const zero_tensor_t *tensors, int n,
                                   zero_stream_t stream)
{
    zero_orthogonalize_t matrices[ZERO_ORTHOGONALIZE_LANES];
    for (int i = 0; i < n; i++) {
        matrices[i] = matrix_in(update, tensors[i], i);
        ZERO_TRY(join(update, &matrices[i], tensors[i], stream));
    }
    ZERO_TRY(update->fns ? update->fns->transform(update->user, tensors[0], matrices[0].x, stream)
                         : update->context->device->kernels->orthogonalize(matrices, n, stream));
    for (int i = 0; i < n; i++)
        ZERO_TRY(cut(update, round, &matrices[i], tensors[i], stream));
    return ZERO_OK;
}

zero_status_t zero_muon_owner_run(const zero_muon_update_t *update, int round, zero_stream_t stream)
{
    const zero_muon_schedule_t *schedule = update->schedule;
    zero_tensor_t tensors[ZERO_ORTHOGONALIZE_LANES];
    int n = 0;
    for (zero_tensor_t t = 0; t < update->context->model->n_tensors; t++) {
        if (schedule->round_of[t] != round || schedule->owner_of[t] != update->rank)
            continue;
        tensors[n++] = t;
        if (n == update->context->plan.muon.n_lanes) { /* a caller's have one lane */
            ZERO_TRY(orthogonalize(update, round, tensors, n, stream));
            n = 0;
        }
    }
    return n > 0 ? orthogonalize(update, round, tensors, n, stream) : ZERO_OK;
}
