/* muon_owner.c - what a rank does in a round with the matrices that it owns: it joins each of the ranks' parts,
 * orthogonalizes them, as many at a time as there are lanes, and cuts the results into the slots.
 */
#include "zero/muon/muon_owner.h"

#include "base/log.h"
#include "zero/runtime/addresses.h"

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
