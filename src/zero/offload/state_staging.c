/* state_staging.c - see state_staging.h. */
#include "zero/offload/state_staging.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"

/* ---- places ---- */

float *zero_state_buffer_m(const zero_state_buffer_t *place)
{
    return (float *)place->memory;
}

float *zero_state_buffer_v(const zero_engine_t *engine, const zero_state_buffer_t *place)
{
    return zero_state_buffer_m(place) + engine->plan.passing.chunk_elems;
}

float *zero_state_buffer_grads(const zero_engine_t *engine, const zero_state_buffer_t *place)
{
    return zero_state_buffer_m(place) + 2 * engine->plan.passing.chunk_elems;
}

void *zero_state_buffer_master_lo(const zero_engine_t *engine, const zero_state_buffer_t *place)
{
    int n_floats = engine->plan.passing.grads_pass ? 3 : 2;
    return engine->config.dtype == ZERO_FP32 ? NULL
                                             : zero_state_buffer_m(place) + n_floats * engine->plan.passing.chunk_elems;
}

static int by_unit(const void *a, const void *b)
{
    const zero_state_buffer_t *of_a = a, *of_b = b;
    if (of_a->first != of_b->first)
        return of_a->first < of_b->first ? -1 : 1;
    return (of_a->last > of_b->last) - (of_a->last < of_b->last);
}

/* All that fit into idle activations, or with NULL only how many. */
static int find_idle_buffers(const zero_engine_t *engine, zero_state_buffer_t *places)
{
    size_t buffer_bytes = engine->plan.passing.buffer_bytes;
    int n = 0;
    for (const zero_user_block_t *block = engine->user_blocks; block; block = block->next)
        for (size_t at = 0; !block->always_in_use && at + buffer_bytes <= block->n_bytes; at += buffer_bytes, n++)
            if (places)
                places[n] = (zero_state_buffer_t){
                    .memory = (unsigned char *)block->data + at, .first = block->first, .last = block->last};
    return n;
}

static zero_status_t create_events(zero_engine_t *engine)
{
    zero_state_staging_t *way = zero_state_staging_of(engine);
    zero_device_t *device = engine->device;
    ZERO_TRY(device->ops->event_create(device, false, &way->idle));
    for (int i = 0; i < way->n_buffers; i++) {
        ZERO_TRY(device->ops->event_create(device, false, &way->places[i].fetched));
        ZERO_TRY(device->ops->event_create(device, false, &way->places[i].updated));
        ZERO_TRY(device->ops->event_create(device, false, &way->places[i].stored));
    }
    return ZERO_OK;
}

static zero_status_t create_buffers(zero_engine_t *engine)
{
    const zero_state_staging_plan_t *passing = &engine->plan.passing;
    zero_state_staging_t *way = zero_state_staging_of(engine);
    int n_idle = find_idle_buffers(engine, NULL);
    way->places = calloc((size_t)(n_idle + passing->n_buffers) + 1, sizeof *way->places);
    if (!way->places)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for offload's tables");
    find_idle_buffers(engine, way->places);
    qsort(way->places, (size_t)n_idle, sizeof *way->places, by_unit);
    way->n_lent = n_idle < passing->n_chunks ? n_idle : passing->n_chunks;
    memmove(way->places, way->places + (n_idle - way->n_lent), (size_t)way->n_lent * sizeof *way->places);
    way->n_buffers = way->n_lent + passing->n_buffers;
    for (int i = 0; i < passing->n_buffers; i++)
        way->places[way->n_lent + i] = (zero_state_buffer_t){
            .memory = zero_engine_private(engine, passing->places + (uint64_t)i * passing->buffer_bytes)};
    return create_events(engine);
}

/* ---- pieces ---- */

/* Sums of the first units stay. Those of a unit leave before the pass goes on to the unit before it: what was lent when
 * it was done with can take them. */
static zero_grads_at_t find_grads(const zero_engine_t *engine, int p)
{
    const zero_state_staging_t *way = zero_state_staging_of(engine);
    const zero_state_chunk_t *piece = &way->pieces[p];
    if (piece->unit < engine->plan.host.first_sent)
        return ZERO_GRADS_REDUCED;
    return p < way->n_lent && piece->place->last >= piece->unit ? ZERO_GRADS_STAGED : ZERO_GRADS_ON_HOST;
}

/* What AdamW walks over, at `segments` on the device and in `copy`, counted from the piece's beginning, or its unit's
 * where gradients are in its sum. */
static void prepare_chunk(const zero_engine_t *engine, zero_state_chunk_t *piece, const zero_adam_segment_t *segments,
                          zero_adam_segment_t *copy)
{
    const zero_step_scratch_t *decision = zero_engine_private(engine, engine->plan.step_scratch);
    const zero_state_buffer_t *place = piece->place;
    bool in_sum = piece->grads_at == ZERO_GRADS_REDUCED;
    uint64_t grads_begin = in_sum ? engine->offload->units[piece->unit].begin : piece->begin;
    size_t n_segments = zero_offload_segments(engine, piece->unit, piece->begin, piece->begin + piece->n_elems, copy);
    for (size_t i = 0; i < n_segments; i++) {
        copy[i].state -= piece->begin;
        copy[i].grad -= grads_begin;
    }
    piece->adam = (zero_adam_t){
        .param_dtype = engine->config.dtype,
        .param = zero_engine_params(engine),
        .master_lo = zero_state_buffer_master_lo(engine, place),
        .m = zero_state_buffer_m(place),
        .v = zero_state_buffer_v(engine, place),
        .grad = in_sum ? zero_engine_reduced_grads_of(engine, piece->unit) : zero_state_buffer_grads(engine, place),
        .segments = segments,
        .n_segments = n_segments,
        .state_begin = 0,
        .state_end = piece->n_elems,
        .scalars = &decision->scalars,
    };
}

/* All pieces; writes what AdamW walks over to `segments`. Returns how many. */
static size_t prepare_chunks(const zero_engine_t *engine, zero_adam_segment_t *segments)
{
    const zero_state_staging_plan_t *passing = &engine->plan.passing;
    const zero_adam_segment_t *on_device = zero_engine_private(engine, passing->segments);
    zero_state_staging_t *way = zero_state_staging_of(engine);
    size_t n_segments = 0;
    int p = 0;
    for (zero_unit_t unit = engine->plan.host.first; unit < engine->layout.n_units; unit++) {
        const zero_offloaded_unit_t *hosted = &engine->offload->units[unit];
        for (uint64_t begin = hosted->begin; begin < hosted->end; begin += passing->chunk_elems, p++) {
            uint64_t n_left = hosted->end - begin;
            zero_state_chunk_t *piece = &way->pieces[p];
            piece->unit = unit;
            piece->begin = begin;
            piece->is_last = n_left <= passing->chunk_elems;
            piece->n_elems = piece->is_last ? n_left : passing->chunk_elems;
            piece->place = &way->places[p < way->n_lent ? p : way->n_lent + (p - way->n_lent) % passing->n_buffers];
            piece->grads_at = find_grads(engine, p);
            prepare_chunk(engine, piece, on_device + n_segments, segments + n_segments);
            n_segments += piece->adam.n_segments;
        }
    }
    return n_segments;
}

/* ---- all of it ---- */

static void say_how(const zero_engine_t *engine)
{
    const zero_state_staging_plan_t *passing = &engine->plan.passing;
    if (engine->host_comm->rank == 0)
        zero_log(ZERO_LOG_INFO,
                 "offload: each device updates its hosted state, which passes through it in %d pieces of at most %llu "
                 "elements, %d of them in idle activations",
                 passing->n_chunks, (unsigned long long)passing->chunk_elems, zero_state_staging_of(engine)->n_lent);
}

zero_status_t zero_state_staging_create(zero_engine_t *engine)
{
    zero_state_staging_t *way = calloc(1, sizeof *way);
    engine->offload->backend_state = way;
    if (way) {
        way->pieces = calloc((size_t)engine->plan.passing.n_chunks + 1, sizeof *way->pieces);
        way->n_queued = engine->plan.passing.n_chunks;
    }
    return way && way->pieces ? ZERO_OK : zero_fail(ZERO_ERROR_MEMORY, "no memory for offload's tables");
}

zero_status_t zero_state_staging_start(zero_engine_t *engine)
{
    const zero_state_staging_plan_t *passing = &engine->plan.passing;
    zero_adam_segment_t *segments = calloc(passing->max_segments, sizeof *segments);
    zero_status_t status =
        segments ? create_buffers(engine) : zero_fail(ZERO_ERROR_MEMORY, "no memory for offload's tables");
    if (status == ZERO_OK)
        status = zero_device_copy(engine->device, zero_engine_private(engine, passing->segments), segments,
                                  prepare_chunks(engine, segments) * sizeof *segments, NULL);
    if (status == ZERO_OK)
        status = zero_device_synchronize(engine->device);
    free(segments);
    if (status == ZERO_OK)
        say_how(engine);
    return status;
}

void zero_state_staging_destroy(zero_engine_t *engine)
{
    zero_state_staging_t *way = zero_state_staging_of(engine);
    zero_device_t *device = engine->device;
    if (!way)
        return;
    for (int i = 0; i < way->n_buffers; i++) {
        device->ops->event_destroy(device, way->places[i].fetched);
        device->ops->event_destroy(device, way->places[i].updated);
        device->ops->event_destroy(device, way->places[i].stored);
    }
    device->ops->event_destroy(device, way->idle);
    free(way->places);
    free(way->pieces);
    free(way);
}
