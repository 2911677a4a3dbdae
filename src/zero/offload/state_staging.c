/* state_staging.c - see state_staging.h. */
#include "zero/offload/state_staging.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "zero/runtime/addresses.h"

static const zero_state_staging_plan_t *plan_of(const zero_offload_t *offload)
{
    return &offload->context->plan.state_staging;
}

/* ---- buffers ---- */

/* Gradients, parameters and master_lo come first: their sizes keep what follows aligned as the kernels want it, those
 * of blocks would not. */

void *zero_state_buffer_grads(const zero_state_buffer_t *buffer)
{
    return buffer->memory;
}

static unsigned char *behind_grads(const zero_offload_t *offload, const zero_state_buffer_t *buffer)
{
    const zero_state_staging_plan_t *plan = plan_of(offload);
    return buffer->memory +
           (plan->has_grads ? plan->chunk_elems * zero_dtype_size(offload->context->plan.reduced_dtype) : 0);
}

void *zero_state_buffer_param(const zero_offload_t *offload, const zero_state_buffer_t *buffer)
{
    return behind_grads(offload, buffer);
}

static unsigned char *behind_params(const zero_offload_t *offload, const zero_state_buffer_t *buffer)
{
    const zero_state_staging_plan_t *plan = plan_of(offload);
    const size_t size = zero_dtype_size(offload->context->config.dtype);
    return behind_grads(offload, buffer) + (plan->has_params ? plan->chunk_elems * size : 0);
}

void *zero_state_buffer_master_lo(const zero_offload_t *offload, const zero_state_buffer_t *buffer)
{
    return offload->context->config.dtype == ZERO_FP32 ? NULL : behind_params(offload, buffer);
}

float *zero_state_buffer_m(const zero_offload_t *offload, const zero_state_buffer_t *buffer)
{
    size_t size = zero_master_lo_size(offload->context->config.dtype);
    return (float *)(void *)(behind_params(offload, buffer) + plan_of(offload)->chunk_elems * size);
}

float *zero_state_buffer_v(const zero_offload_t *offload, const zero_state_buffer_t *buffer)
{
    const zero_arena_plan_t *plan = &offload->context->plan;
    if (plan->n_arrays < 2)
        return NULL;
    return (float *)(void *)((unsigned char *)zero_state_buffer_m(offload, buffer) +
                             zero_array_bytes(plan->array_format, plan->state_staging.chunk_elems));
}

static int by_unit(const void *a, const void *b)
{
    const zero_state_buffer_t *of_a = a, *of_b = b;
    if (of_a->first != of_b->first)
        return of_a->first < of_b->first ? -1 : 1;
    return (of_a->last > of_b->last) - (of_a->last < of_b->last);
}

/* Finds all buffers that fit into idle activations; with NULL only counts them. */
static int find_idle_buffers(const zero_offload_t *offload, const zero_user_block_t *blocks,
                             zero_state_buffer_t *buffers)
{
    size_t buffer_bytes = plan_of(offload)->buffer_bytes;
    int n = 0;
    for (const zero_user_block_t *block = blocks; block; block = block->next)
        for (size_t at = 0; !block->always_in_use && at + buffer_bytes <= block->n_bytes; at += buffer_bytes, n++)
            if (buffers)
                buffers[n] = (zero_state_buffer_t){
                    .memory = (unsigned char *)block->data + at, .first = block->first, .last = block->last};
    return n;
}

static zero_status_t create_events(zero_offload_t *offload)
{
    zero_state_staging_t *staging = zero_state_staging_of(offload);
    zero_device_t *device = offload->context->device;
    ZERO_TRY(device->ops->event_create(device, false, &staging->idle));
    for (int i = 0; i < staging->n_buffers; i++) {
        ZERO_TRY(device->ops->event_create(device, false, &staging->buffers[i].fetched));
        ZERO_TRY(device->ops->event_create(device, false, &staging->buffers[i].updated));
        ZERO_TRY(device->ops->event_create(device, false, &staging->buffers[i].stored));
    }
    return ZERO_OK;
}

static zero_status_t create_buffers(zero_offload_t *offload, const zero_user_block_t *blocks)
{
    const zero_state_staging_plan_t *plan = plan_of(offload);
    zero_state_staging_t *staging = zero_state_staging_of(offload);
    if (offload->context->plan.updates_in_backward)
        blocks = NULL; /* a chunk is stored soon after it is fetched: the planned buffers are enough */
    int n_idle = find_idle_buffers(offload, blocks, NULL),
        n_borrowed = n_idle < plan->n_chunks ? n_idle : plan->n_chunks;
    zero_state_buffer_t *buffers = calloc((size_t)(n_idle + plan->n_buffers) + 1, sizeof *buffers);
    staging->buffers = buffers;
    if (!buffers)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for offload's tables");
    find_idle_buffers(offload, blocks, buffers);
    qsort(buffers, (size_t)n_idle, sizeof *buffers, by_unit);
    memmove(buffers, buffers + (n_idle - n_borrowed), (size_t)n_borrowed * sizeof *buffers);
    for (int i = 0; i < plan->n_buffers; i++) {
        uint64_t offset = plan->buffers + (uint64_t)i * plan->buffer_bytes;
        buffers[n_borrowed + i] = (zero_state_buffer_t){.memory = zero_context_private(offload->context, offset)};
    }
    staging->n_borrowed = n_borrowed;
    staging->n_buffers = n_borrowed + plan->n_buffers;
    return create_events(offload);
}

/* ---- chunks ---- */

/* Returns where the gradients of chunk `c` will be. Those of the first units stay. Those of a unit are sent before the
 * pass goes on to the unit before it: a buffer that was borrowed at its backward, or earlier, has room for them. */
static zero_grads_at_t find_grads(const zero_offload_t *offload, int c)
{
    const zero_state_staging_t *staging = zero_state_staging_of(offload);
    const zero_state_chunk_t *chunk = &staging->chunks[c];
    if (chunk->unit < offload->context->plan.host.first_sent)
        return ZERO_GRADS_REDUCED;
    return c < staging->n_borrowed && chunk->buffer->last >= chunk->unit ? ZERO_GRADS_STAGED : ZERO_GRADS_ON_HOST;
}

/* Prepares the chunk's AdamW. Its segments will be at `segments` on the device and are written to `copy`. They count
 * from the chunk's beginning; gradients that stay where they were reduced count from their unit's. */
static void prepare_adam(const zero_offload_t *offload, zero_state_chunk_t *chunk, const zero_adam_segment_t *segments,
                         zero_adam_segment_t *copy)
{
    const zero_context_t *context = offload->context;
    const zero_state_buffer_t *buffer = chunk->buffer;
    bool stay = chunk->grads_at == ZERO_GRADS_REDUCED;
    bool is_staged = zero_plan_offloads_params(&context->plan, chunk->unit);
    uint64_t grads_begin = stay ? offload->units[chunk->unit].begin : chunk->begin;
    size_t n_segments = zero_offload_segments(offload, chunk->unit, chunk->begin, chunk->begin + chunk->n_elems, copy);
    for (size_t i = 0; i < n_segments; i++) {
        copy[i].state -= chunk->begin;
        copy[i].grad -= grads_begin;
        if (is_staged)
            copy[i].param = copy[i].state;
    }
    chunk->adam = (zero_adam_t){
        .param_dtype = context->config.dtype,
        .param = is_staged ? zero_state_buffer_param(offload, buffer) : zero_context_params(context),
        .master_lo = zero_state_buffer_master_lo(offload, buffer),
        .m = zero_state_buffer_m(offload, buffer),
        .v = zero_state_buffer_v(offload, buffer),
        .grad_dtype = context->plan.reduced_dtype,
        .grad = stay ? zero_context_reduced_grads_of(context, chunk->unit) : zero_state_buffer_grads(buffer),
        .segments = segments,
        .n_segments = n_segments,
        .state_begin = 0,
        .state_end = chunk->n_elems,
        .scalars = zero_context_unit_scalars(context, chunk->unit),
    };
}

/* Prepares all chunks and writes the segments that AdamW updates to `segments`. Returns how many. */
static size_t prepare_chunks(const zero_offload_t *offload, zero_adam_segment_t *segments)
{
    const zero_context_t *context = offload->context;
    const zero_state_staging_plan_t *plan = plan_of(offload);
    const zero_adam_segment_t *on_device = zero_context_private(context, plan->segments);
    zero_state_staging_t *staging = zero_state_staging_of(offload);
    size_t n_segments = 0;
    int c = 0;
    const zero_unit_t first = context->plan.host.first, n_units = context->layout.n_units;
    for (zero_unit_t i = first; i < n_units; i++) {
        const zero_unit_t unit = context->plan.updates_in_backward ? first + (n_units - 1 - i) : i;
        const zero_offloaded_unit_t *offloaded = &offload->units[unit];
        for (uint64_t begin = offloaded->begin; begin < offloaded->end; begin += plan->chunk_elems, c++) {
            uint64_t n_left = offloaded->end - begin;
            int b = c < staging->n_borrowed ? c : staging->n_borrowed + (c - staging->n_borrowed) % plan->n_buffers;
            zero_state_chunk_t *chunk = &staging->chunks[c];
            chunk->unit = unit;
            chunk->begin = begin;
            chunk->is_last = n_left <= plan->chunk_elems;
            chunk->n_elems = chunk->is_last ? n_left : plan->chunk_elems;
            chunk->buffer = &staging->buffers[b];
            chunk->grads_at = find_grads(offload, c);
            prepare_adam(offload, chunk, on_device + n_segments, segments + n_segments);
            n_segments += chunk->adam.n_segments;
        }
    }
    return n_segments;
}

/* ---- creating ---- */

static void log_chunks(const zero_offload_t *offload)
{
    const zero_state_staging_plan_t *plan = plan_of(offload);
    if (offload->context->host_comm->rank == 0)
        zero_log(ZERO_LOG_INFO,
                 "offload: each device updates its offloaded state in %d chunks of at most %llu elements, %d of them "
                 "in idle activations",
                 plan->n_chunks, (unsigned long long)plan->chunk_elems, zero_state_staging_of(offload)->n_borrowed);
}

zero_status_t zero_state_staging_create(zero_offload_t *offload)
{
    zero_state_staging_t *staging = calloc(1, sizeof *staging);
    offload->backend_state = staging;
    if (staging) {
        staging->chunks = calloc((size_t)plan_of(offload)->n_chunks + 1, sizeof *staging->chunks);
        staging->n_queued = plan_of(offload)->n_chunks;
    }
    return staging && staging->chunks ? ZERO_OK : zero_fail(ZERO_ERROR_MEMORY, "no memory for offload's tables");
}

zero_status_t zero_state_staging_start(zero_offload_t *offload, const zero_user_block_t *blocks)
{
    zero_context_t *context = offload->context;
    const zero_state_staging_plan_t *plan = plan_of(offload);
    zero_adam_segment_t *segments = calloc(plan->max_segments, sizeof *segments);
    zero_status_t status =
        segments ? create_buffers(offload, blocks) : zero_fail(ZERO_ERROR_MEMORY, "no memory for offload's tables");
    if (status == ZERO_OK)
        status = zero_device_copy(context->device, zero_context_private(context, plan->segments), segments,
                                  prepare_chunks(offload, segments) * sizeof *segments, NULL);
    if (status == ZERO_OK)
        status = zero_device_synchronize(context->device);
    free(segments);
    if (status == ZERO_OK)
        log_chunks(offload);
    return status;
}

void zero_state_staging_destroy(zero_offload_t *offload)
{
    zero_state_staging_t *staging = zero_state_staging_of(offload);
    zero_device_t *device = offload->context->device;
    if (!staging)
        return;
    for (int i = 0; i < staging->n_buffers; i++) {
        device->ops->event_destroy(device, staging->buffers[i].fetched);
        device->ops->event_destroy(device, staging->buffers[i].updated);
        device->ops->event_destroy(device, staging->buffers[i].stored);
    }
    device->ops->event_destroy(device, staging->idle);
    free(staging->buffers);
    free(staging->chunks);
    free(staging);
}
