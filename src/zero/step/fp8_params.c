/* fp8_params.c - see fp8_params.h.
 *
 * Every rank takes the absolute maxima of its parts of the matrices, the ranks exchange them, and each casts its own
 * parts with the scales of the whole matrices. So there is no state from step to step, and a step that was skipped
 * makes the bytes that there were.
 *
 * What must hold: what peers read (maxima, bytes) is overwritten only behind a fence that they reach when they have
 * read it. The step's own fence is that for both: a step's gathers are over by then, and exchanges come before gathers.
 */
#include "zero/step/fp8_params.h"

#include <stdlib.h>

#include "base/log.h"
#include "zero/runtime/addresses.h"

struct zero_fp8_params {
    zero_context_t *context;
    zero_fp8_segment_t *segments; /* this rank's parts of all matrices; a copy is in private memory, at fp8.segments */
    size_t *first_segment;        /* by matrix, and behind the last: how many segments are of matrices before it */
};

/* Writes this rank's part of a matrix, if it has one. */
static bool make_segment(const zero_context_t *context, int matrix, zero_fp8_segment_t *segment)
{
    const zero_fp8_matrix_t *whole = &context->layout.matrices[matrix];
    uint64_t begin, end,
        fp8_begin = context->plan.stage.shard_params ? zero_context_part_begin(context, whole->unit) : 0;
    zero_context_held(context, whole->unit, &begin, &end);
    begin = begin > whole->begin ? begin : whole->begin;
    end = end < whole->end ? end : whole->end;
    if (begin >= end)
        return false;
    *segment = (zero_fp8_segment_t){
        .param = zero_context_segment_at(context, whole->unit, begin).param,
        .byte = zero_context_fp8_offset(context, whole->unit) - context->plan.fp8.bytes + (begin - fp8_begin),
        .n_elems = end - begin,
        .matrix = (uint32_t)matrix,
    };
    return true;
}

static zero_status_t create_segments(zero_fp8_params_t *params)
{
    const zero_context_t *context = params->context;
    int n_matrices = context->layout.n_matrices;
    size_t n = 0;
    params->segments = calloc((size_t)n_matrices, sizeof *params->segments);
    params->first_segment = calloc((size_t)n_matrices + 1, sizeof *params->first_segment);
    if (!params->segments || !params->first_segment)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for %d matrices in fp8", n_matrices);
    for (int m = 0; m < n_matrices; m++) {
        n += make_segment(context, m, &params->segments[n]);
        params->first_segment[m + 1] = n;
    }
    ZERO_TRY(zero_device_copy(context->device, zero_context_private(context, context->plan.fp8.segments),
                              params->segments, n * sizeof *params->segments, NULL));
    return zero_device_synchronize(context->device);
}

zero_status_t zero_fp8_params_create(zero_context_t *context, zero_fp8_params_t **params)
{
    *params = NULL;
    if (!context->plan.fp8.is_gathered)
        return ZERO_OK;
    zero_fp8_params_t *made = calloc(1, sizeof *made);
    if (!made)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for an engine");
    made->context = context;
    zero_status_t status = create_segments(made);
    if (status != ZERO_OK) {
        zero_fp8_params_destroy(made);
        return status;
    }
    *params = made;
    return ZERO_OK;
}

void zero_fp8_params_destroy(zero_fp8_params_t *params)
{
    if (!params)
        return;
    free(params->segments);
    free(params->first_segment);
    free(params);
}

/* Finds this rank's parts of the units' matrices. */
static zero_fp8_parts_t parts_of(const zero_fp8_params_t *params, zero_unit_t first, zero_unit_t end)
{
    const zero_context_t *context = params->context;
    const zero_layout_t *layout = &context->layout;
    int first_matrix = first < layout->n_units ? layout->units[first].first_matrix : layout->n_matrices;
    int end_matrix = end < layout->n_units ? layout->units[end].first_matrix : layout->n_matrices;
    size_t at = params->first_segment[first_matrix], n = params->first_segment[end_matrix] - at;
    const zero_fp8_segment_t *on_device = zero_context_private(context, context->plan.fp8.segments);
    zero_fp8_parts_t parts = {
        .segments = on_device + at,
        .n_segments = n,
        .first_matrix = (uint32_t)first_matrix,
        .n_matrices = (uint32_t)(end_matrix - first_matrix),
        .param = zero_context_params(context),
        .bytes = zero_context_window(context, context->plan.fp8.bytes),
    };
    for (size_t s = at; s < at + n; s++)
        if (params->segments[s].n_elems > parts.largest)
            parts.largest = params->segments[s].n_elems;
    return parts;
}

static zero_status_t fence(zero_context_t *context, zero_lane_t lane, zero_stream_t stream)
{
    return lane == ZERO_LANE_STEP ? zero_streams_fence(context, stream)
                                  : context->comm->ops->fence(context->comm, lane, stream);
}

/* Finds the maxima of all ranks that hold a part each: [ranks][matrices of `parts`]. */
static zero_status_t exchange(zero_context_t *context, const zero_fp8_parts_t *parts, zero_lane_t lane,
                              zero_stream_t stream, const uint32_t **absmaxes)
{
    zero_comm_t *comm = context->comm;
    uint64_t mine = context->plan.fp8.absmaxes + parts->first_matrix * sizeof **absmaxes;
    uint32_t *all = zero_context_private(context, context->plan.fp8.gathered_absmaxes);
    *absmaxes = (const uint32_t *)(const void *)zero_context_window(context, mine);
    if (comm->size == 1 || !context->plan.stage.shard_state) /* it holds everything */
        return ZERO_OK;
    all += (size_t)parts->first_matrix * (size_t)comm->size;
    *absmaxes = all;
    ZERO_TRY(fence(context, lane, stream));
    return comm->ops->all_gather(comm, lane, &context->window, zero_comm_all(comm), mine, 0, all,
                                 parts->n_matrices * sizeof *all, stream);
}

zero_status_t zero_fp8_params_refresh(zero_fp8_params_t *params, zero_unit_t first, zero_unit_t end, zero_lane_t lane,
                                      zero_stream_t stream)
{
    if (!params)
        return ZERO_OK;
    zero_context_t *context = params->context;
    const zero_shard_kernels_t *kernels = context->device->kernels;
    const zero_fp8_parts_t parts = parts_of(params, first, end);
    uint32_t *mine = (uint32_t *)(void *)zero_context_window(context, context->plan.fp8.absmaxes);
    zero_fp8_scales_t *scales = zero_context_private(context, context->plan.fp8.scales);
    int n_ranks = context->plan.stage.shard_state ? context->comm->size : 1;
    const uint32_t *absmaxes;
    if (parts.n_matrices == 0)
        return ZERO_OK;
    ZERO_TRY(kernels->fp8_absmax(&parts, mine, stream));
    ZERO_TRY(exchange(context, &parts, lane, stream, &absmaxes));
    ZERO_TRY(kernels->fp8_scale(scales + parts.first_matrix, absmaxes, n_ranks, parts.n_matrices, stream));
    return kernels->fp8_cast(&parts, scales, stream);
}
