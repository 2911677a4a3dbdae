/* update_on_device.c - the device updates hosted state, which passes through it: low halves, m, v and gradients come
 * in, AdamW writes the shard in the window, low halves, m and v go back. The bus works both ways at once, and most of
 * it under the next forward pass, whose units wait for their own alone.
 *
 * A shard passes in pieces, through places (state_staging.h). Three streams, ordered by events of a place:
 *
 *     in_stream      fetches into a place when it is idle, and what was in it has been stored
 *     update_stream  updates what was fetched, when the step is decided: beside compute and before it where both want
 *                    the device, for it is short and the next unit's gather hangs on it
 *     out_stream     stores what was updated, behind the gradients that left under backward
 *
 * What must hold: host memory has the state whole whenever the streams are empty, so others may read and write it
 * between steps. So the first pieces are fetched no earlier than the step's last backward pass, when nobody may; until
 * the step is decided their places are full, and their update then begins at once. A skipped step stores what it
 * fetched.
 *
 * Large models have thousands of pieces, and a stream takes about a thousand calls before the host must wait: so pieces
 * are queued some way ahead of the unit that is asked for, not all at once.
 *
 * Events are chained by what the next step does anyway: its backward pass follows its forward pass, which follows every
 * unit's update, so sums and scalars are not overwritten before AdamW has read them.
 */
#include "base/log.h"
#include "zero/offload/state_staging.h"

/* Pieces queued ahead: two gigabytes on their way, where pieces are of the largest. */
#define N_AHEAD 32

/* m, v and low (none with fp32) of a piece: from home to its place, or back. */
static zero_status_t copy_state(zero_engine_t *engine, const zero_state_chunk_t *piece, bool fetches,
                                zero_stream_t stream)
{
    const zero_host_address_t home = zero_offload_address(engine, engine->plan.state_elems + piece->begin);
    const zero_state_buffer_t *place = piece->place;
    const struct {
        void *home, *place;
        size_t n_bytes;
    } parts[] = {
        {home.m, zero_state_buffer_m(place), piece->n_elems * sizeof(float)},
        {home.v, zero_state_buffer_v(engine, place), piece->n_elems * sizeof(float)},
        {home.low, zero_state_buffer_master_lo(engine, place),
         piece->n_elems * zero_master_lo_size(engine->config.dtype)},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (parts[i].n_bytes > 0)
            ZERO_TRY(zero_device_copy(engine->device, fetches ? parts[i].place : parts[i].home,
                                      fetches ? parts[i].home : parts[i].place, parts[i].n_bytes, stream));
    return ZERO_OK;
}

/* The piece's state into its place, which may still be on its way out. */
static zero_status_t fetch_state(zero_engine_t *engine, int p)
{
    zero_stream_t in_stream = engine->offload->in_stream;
    const zero_state_chunk_t *piece = &zero_state_staging_of(engine)->pieces[p];
    ZERO_TRY(engine->device->ops->stream_wait(engine->device, in_stream, piece->place->stored));
    return copy_state(engine, piece, true, in_stream);
}

static zero_status_t fetch_grads(zero_engine_t *engine, int p)
{
    const zero_state_chunk_t *piece = &zero_state_staging_of(engine)->pieces[p];
    if (piece->grads_at != ZERO_GRADS_ON_HOST)
        return ZERO_OK;
    return zero_device_copy(engine->device, zero_state_buffer_grads(engine, piece->place),
                            zero_offload_host_grads(engine, piece->begin), piece->n_elems * sizeof(float),
                            engine->offload->in_stream);
}

static zero_status_t update_chunk(zero_engine_t *engine, int p)
{
    zero_offload_t *offload = engine->offload;
    zero_device_t *device = engine->device;
    const zero_state_chunk_t *piece = &zero_state_staging_of(engine)->pieces[p];
    const zero_state_buffer_t *place = piece->place;
    ZERO_TRY(device->ops->event_record(device, place->fetched, offload->in_stream));
    ZERO_TRY(device->ops->stream_wait(device, offload->update_stream, place->fetched));
    if (piece->adam.n_segments > 0)
        ZERO_TRY(device->kernels->adam(&piece->adam, offload->update_stream));
    ZERO_TRY(device->ops->event_record(device, place->updated, offload->update_stream));
    if (!piece->is_last)
        return ZERO_OK;
    if (piece->grads_at == ZERO_GRADS_REDUCED)
        ZERO_TRY(
            device->ops->event_record(device, zero_offload_grads_left(engine, piece->unit), offload->update_stream));
    return device->ops->event_record(device, offload->units[piece->unit].arrived, offload->update_stream);
}

static zero_status_t store_state(zero_engine_t *engine, int p)
{
    zero_device_t *device = engine->device;
    zero_stream_t out_stream = engine->offload->out_stream;
    const zero_state_chunk_t *piece = &zero_state_staging_of(engine)->pieces[p];
    ZERO_TRY(device->ops->stream_wait(device, out_stream, piece->place->updated));
    ZERO_TRY(copy_state(engine, piece, false, out_stream));
    return device->ops->event_record(device, piece->place->stored, out_stream);
}

/* Activations whose last reader was this unit's backward, in the step's last pass: the last pieces come first, since
 * the first are still to fall idle. */
static zero_status_t lend(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream)
{
    zero_device_t *device = engine->device;
    zero_state_staging_t *way = zero_state_staging_of(engine);
    bool is_idle = false;
    for (int p = way->n_lent - 1; p >= 0; p--) {
        if (way->places[p].last != unit)
            continue;
        if (!is_idle) {
            ZERO_TRY(device->ops->event_record(device, way->idle, stream));
            ZERO_TRY(device->ops->stream_wait(device, engine->offload->in_stream, way->idle));
        }
        is_idle = way->places[p].is_lent = true;
        ZERO_TRY(fetch_state(engine, p));
    }
    return ZERO_OK;
}

/* As much as there are planned places for; no gradients, which are not there yet. */
static zero_status_t fetch_ahead(zero_engine_t *engine)
{
    const zero_state_staging_plan_t *passing = &engine->plan.passing;
    zero_state_staging_t *way = zero_state_staging_of(engine);
    if (way->fetched_ahead)
        return ZERO_OK;
    way->fetched_ahead = true;
    for (int p = way->n_lent; p < way->n_buffers && p < passing->n_chunks; p++)
        ZERO_TRY(fetch_state(engine, p));
    return ZERO_OK;
}

/* To the place where AdamW will look for them, or home; none of them is still in its sum. */
static zero_status_t send_grads(zero_engine_t *engine, zero_unit_t unit)
{
    zero_offload_t *offload = engine->offload;
    const zero_offloaded_unit_t *hosted = &offload->units[unit];
    const float *sum = zero_engine_reduced_grads_of(engine, unit);
    const zero_state_chunk_t *piece = zero_state_staging_of(engine)->pieces;
    for (; piece->unit != unit; piece++)
        ;
    for (uint64_t at = hosted->begin; at < hosted->end; at += piece->n_elems, piece++)
        ZERO_TRY(zero_device_copy(engine->device,
                                  piece->grads_at == ZERO_GRADS_ON_HOST ? zero_offload_host_grads(engine, piece->begin)
                                                                        : zero_state_buffer_grads(engine, piece->place),
                                  sum + (at - hosted->begin), piece->n_elems * sizeof(float), offload->out_stream));
    return ZERO_OK;
}

static zero_status_t queue_chunk(zero_engine_t *engine, int p)
{
    if (p >= zero_state_staging_of(engine)->n_buffers)
        ZERO_TRY(fetch_state(engine, p));
    ZERO_TRY(fetch_grads(engine, p));
    ZERO_TRY(update_chunk(engine, p));
    return store_state(engine, p);
}

/* The unit's pieces, and N_AHEAD more. */
static zero_status_t reach(zero_engine_t *engine, zero_unit_t unit)
{
    zero_state_staging_t *way = zero_state_staging_of(engine);
    while (way->n_queued < engine->plan.passing.n_chunks &&
           (way->n_queued < N_AHEAD || way->pieces[way->n_queued - N_AHEAD].unit <= unit))
        ZERO_TRY(queue_chunk(engine, way->n_queued++));
    return ZERO_OK;
}

/* They are stored in the order of pieces: the last of those that this unit wants is the last to go. */
static zero_status_t take_back(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream)
{
    zero_state_staging_t *way = zero_state_staging_of(engine);
    int last = -1;
    for (int p = 0; p < way->n_lent; p++)
        if (way->places[p].first == unit && way->places[p].is_lent) {
            last = p;
            way->places[p].is_lent = false;
        }
    if (last < 0)
        return ZERO_OK;
    ZERO_TRY(reach(engine, way->pieces[last].unit));
    return zero_engine_compute_wait(engine, unit, way->places[last].stored, stream);
}

static zero_status_t update(zero_engine_t *engine)
{
    zero_offload_t *offload = engine->offload;
    zero_device_t *device = engine->device;
    zero_state_staging_t *way = zero_state_staging_of(engine);
    ZERO_TRY(fetch_ahead(engine));
    way->fetched_ahead = false;
    way->n_queued = 0;
    ZERO_TRY(device->ops->stream_wait(device, offload->update_stream, offload->decided));
    ZERO_TRY(device->ops->stream_wait(device, offload->in_stream, offload->grads_home));
    return reach(engine, engine->plan.host.first);
}

const zero_offload_backend_t zero_offload_by_device = {
    .create = zero_state_staging_create,
    .start = zero_state_staging_start,
    .destroy = zero_state_staging_destroy,
    .begin = fetch_ahead,
    .send_grads = send_grads,
    .update = update,
    .reach = reach,
    .lend = lend,
    .take_back = take_back,
};
