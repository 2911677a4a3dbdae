/* offload_device.c - the device updates hosted state, which passes through it: low halves, m, v and gradients come in,
 * AdamW writes the shard in the window, low halves, m and v go back. The bus works both ways at once, and most of it
 * under the next forward pass, whose units wait for their own alone.
 *
 * A shard passes in pieces that take turns in a few places of the device's memory (plan.h). Three streams, ordered by
 * events of a place:
 *
 *     in_stream      fetches into a place when what was in it has been stored
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
#include <stdlib.h>

#include "zero/log.h"
#include "zero/offload_way.h"

/* Pieces queued ahead: two gigabytes on their way, where pieces are of the largest. */
#define N_AHEAD 32

typedef struct piece {
    zero_unit_t unit;
    uint64_t begin, n_elems; /* among hosted elements */
    bool is_last;            /* of its unit */
    bool grads_were_sent;
    zero_adam_t adam; /* over its place */
} piece_t;

typedef struct place {
    zero_event_t fetched, updated, stored; /* what is in it */
} place_t;

typedef struct device_way {
    piece_t *pieces;
    place_t places[ZERO_N_PASSING];
    bool fetched_ahead; /* the step's first pieces are in their places, or on the way */
    int n_queued;       /* pieces of the newest step; all of them before the first */
} device_way_t;

static device_way_t *way_of(const zero_engine_t *engine)
{
    return engine->offload->way_state;
}

static place_t *place_of(const zero_engine_t *engine, int p)
{
    return &way_of(engine)->places[p % engine->plan.passing.n_places];
}

/* ---- building: the pieces ---- */

/* What AdamW walks over, at `segments` on the device and in `copy`; its state lies in the piece's place, its gradients
 * there too or, where they were not sent, in the unit's sum. */
static void prepare_piece(const zero_engine_t *engine, int p, const zero_adam_segment_t *segments,
                          zero_adam_segment_t *copy)
{
    const zero_passing_plan_t *passing = &engine->plan.passing;
    const zero_step_scratch_t *decision = zero_engine_private(engine, engine->plan.step_scratch);
    zero_dtype_t dtype = engine->config.dtype;
    piece_t *piece = &way_of(engine)->pieces[p];
    uint64_t place = (uint64_t)(p % passing->n_places) * passing->piece_elems;
    uint64_t unit_begin = engine->offload->units[piece->unit].begin;
    size_t n_segments = zero_offload_segments(engine, piece->unit, piece->begin, piece->begin + piece->n_elems, copy);
    for (size_t i = 0; i < n_segments; i++) {
        copy[i].state += place - piece->begin;
        copy[i].grad = piece->grads_were_sent ? copy[i].state : copy[i].grad - unit_begin;
    }
    piece->adam = (zero_adam_t){
        .param_dtype = dtype,
        .param = zero_engine_params(engine),
        .low = dtype == ZERO_FP32 ? NULL : zero_engine_private(engine, passing->low),
        .m = zero_engine_private(engine, passing->m),
        .v = zero_engine_private(engine, passing->v),
        .grad =
            piece->grads_were_sent ? zero_engine_private(engine, passing->grads) : zero_engine_sum(engine, piece->unit),
        .segments = segments,
        .n_segments = n_segments,
        .state_begin = place,
        .state_end = place + piece->n_elems,
        .scalars = &decision->scalars,
    };
}

/* All pieces; writes what AdamW walks over to `segments`. Returns how many. */
static size_t prepare_pieces(const zero_engine_t *engine, zero_adam_segment_t *segments)
{
    const zero_host_plan_t *host = &engine->plan.host;
    const zero_passing_plan_t *passing = &engine->plan.passing;
    const zero_adam_segment_t *on_device = zero_engine_private(engine, passing->segments);
    size_t n_segments = 0;
    int p = 0;
    for (zero_unit_t unit = host->first; unit < engine->layout.n_units; unit++) {
        const zero_hosted_unit_t *hosted = &engine->offload->units[unit];
        for (uint64_t begin = hosted->begin; begin < hosted->end; begin += passing->piece_elems, p++) {
            uint64_t n_left = hosted->end - begin;
            piece_t *piece = &way_of(engine)->pieces[p];
            piece->unit = unit;
            piece->begin = begin;
            piece->is_last = n_left <= passing->piece_elems;
            piece->n_elems = piece->is_last ? n_left : passing->piece_elems;
            piece->grads_were_sent = unit >= host->first_sent;
            prepare_piece(engine, p, on_device + n_segments, segments + n_segments);
            n_segments += piece->adam.n_segments;
        }
    }
    return n_segments;
}

static zero_status_t create_events(zero_engine_t *engine)
{
    zero_device_t *device = engine->device;
    for (int i = 0; i < engine->plan.passing.n_places; i++) {
        place_t *place = &way_of(engine)->places[i];
        ZERO_TRY(device->ops->event_create(device, false, &place->fetched));
        ZERO_TRY(device->ops->event_create(device, false, &place->updated));
        ZERO_TRY(device->ops->event_create(device, false, &place->stored));
    }
    return ZERO_OK;
}

static void say_how(const zero_engine_t *engine)
{
    const zero_passing_plan_t *passing = &engine->plan.passing;
    if (engine->host_comm->rank == 0)
        zero_log(ZERO_LOG_INFO,
                 "offload: each device updates its hosted state, which passes through it in %d pieces of at most %llu "
                 "elements",
                 passing->n_pieces, (unsigned long long)passing->piece_elems);
}

static zero_status_t create(zero_engine_t *engine)
{
    const zero_passing_plan_t *passing = &engine->plan.passing;
    zero_adam_segment_t *segments = calloc(passing->max_segments, sizeof *segments);
    device_way_t *way = calloc(1, sizeof *way);
    engine->offload->way_state = way;
    if (way)
        way->pieces = calloc((size_t)passing->n_pieces + 1, sizeof *way->pieces);
    zero_status_t status = segments && way && way->pieces
                               ? create_events(engine)
                               : zero_fail(ZERO_ERROR_MEMORY, "no memory for offload's tables");
    if (status == ZERO_OK)
        status = zero_device_copy(engine->device, zero_engine_private(engine, passing->segments), segments,
                                  prepare_pieces(engine, segments) * sizeof *segments, NULL);
    if (status == ZERO_OK)
        status = zero_device_synchronize(engine->device);
    free(segments);
    if (status == ZERO_OK) {
        way->n_queued = passing->n_pieces;
        say_how(engine);
    }
    return status;
}

static void destroy(zero_engine_t *engine)
{
    device_way_t *way = way_of(engine);
    if (!way)
        return;
    for (int i = 0; i < ZERO_N_PASSING; i++) {
        engine->device->ops->event_destroy(engine->device, way->places[i].fetched);
        engine->device->ops->event_destroy(engine->device, way->places[i].updated);
        engine->device->ops->event_destroy(engine->device, way->places[i].stored);
    }
    free(way->pieces);
    free(way);
}

/* ---- a step ---- */

/* low, m and v of a piece: their home and their place. */
typedef struct passage {
    void *home, *place;
    size_t n_bytes;
} passage_t;
#define N_PASSAGES 3

static void find_passages(const zero_engine_t *engine, const piece_t *piece, passage_t passages[N_PASSAGES])
{
    zero_host_place_t home = zero_offload_place(engine, engine->plan.state_elems + piece->begin);
    const zero_adam_t *adam = &piece->adam;
    size_t low_size = zero_low_size(engine->config.dtype), at = adam->state_begin, n = piece->n_elems;
    unsigned char *low = adam->low;
    passages[0] = (passage_t){home.m, adam->m + at, n * sizeof(float)};
    passages[1] = (passage_t){home.v, adam->v + at, n * sizeof(float)};
    passages[2] = (passage_t){home.low, low ? low + at * low_size : NULL, n * low_size};
}

/* The piece's state into its place, which may still be on its way out. */
static zero_status_t fetch_state(zero_engine_t *engine, int p)
{
    zero_device_t *device = engine->device;
    zero_stream_t in_stream = engine->offload->in_stream;
    passage_t passages[N_PASSAGES];
    find_passages(engine, &way_of(engine)->pieces[p], passages);
    ZERO_TRY(device->ops->stream_wait(device, in_stream, place_of(engine, p)->stored));
    for (int i = 0; i < N_PASSAGES; i++)
        if (passages[i].n_bytes > 0)
            ZERO_TRY(zero_device_copy(device, passages[i].place, passages[i].home, passages[i].n_bytes, in_stream));
    return ZERO_OK;
}

static zero_status_t fetch_grads(zero_engine_t *engine, int p)
{
    zero_offload_t *offload = engine->offload;
    const piece_t *piece = &way_of(engine)->pieces[p];
    float *place = (float *)zero_engine_private(engine, engine->plan.passing.grads) + piece->adam.state_begin;
    if (!piece->grads_were_sent)
        return ZERO_OK;
    return zero_device_copy(engine->device, place, zero_offload_grads_home(engine, piece->begin),
                            piece->n_elems * sizeof(float), offload->in_stream);
}

static zero_status_t update_piece(zero_engine_t *engine, int p)
{
    zero_offload_t *offload = engine->offload;
    zero_device_t *device = engine->device;
    const piece_t *piece = &way_of(engine)->pieces[p];
    place_t *place = place_of(engine, p);
    ZERO_TRY(device->ops->event_record(device, place->fetched, offload->in_stream));
    ZERO_TRY(device->ops->stream_wait(device, offload->update_stream, place->fetched));
    if (piece->adam.n_segments > 0)
        ZERO_TRY(device->kernels->adam(&piece->adam, offload->update_stream));
    ZERO_TRY(device->ops->event_record(device, place->updated, offload->update_stream));
    if (!piece->is_last)
        return ZERO_OK;
    if (!piece->grads_were_sent)
        ZERO_TRY(
            device->ops->event_record(device, zero_offload_sums_left(engine, piece->unit), offload->update_stream));
    return device->ops->event_record(device, offload->units[piece->unit].arrived, offload->update_stream);
}

static zero_status_t store_state(zero_engine_t *engine, int p)
{
    zero_device_t *device = engine->device;
    zero_stream_t out_stream = engine->offload->out_stream;
    place_t *place = place_of(engine, p);
    passage_t passages[N_PASSAGES];
    find_passages(engine, &way_of(engine)->pieces[p], passages);
    ZERO_TRY(device->ops->stream_wait(device, out_stream, place->updated));
    for (int i = 0; i < N_PASSAGES; i++)
        if (passages[i].n_bytes > 0)
            ZERO_TRY(zero_device_copy(device, passages[i].home, passages[i].place, passages[i].n_bytes, out_stream));
    return device->ops->event_record(device, place->stored, out_stream);
}

/* As much as there are places for; no gradients, which are not there yet. */
static zero_status_t begin(zero_engine_t *engine)
{
    device_way_t *way = way_of(engine);
    if (way->fetched_ahead)
        return ZERO_OK;
    way->fetched_ahead = true;
    for (int p = 0; p < engine->plan.passing.n_places; p++)
        ZERO_TRY(fetch_state(engine, p));
    return ZERO_OK;
}

static zero_status_t queue_piece(zero_engine_t *engine, int p)
{
    if (p >= engine->plan.passing.n_places)
        ZERO_TRY(fetch_state(engine, p));
    ZERO_TRY(fetch_grads(engine, p));
    ZERO_TRY(update_piece(engine, p));
    return store_state(engine, p);
}

/* The unit's pieces, and N_AHEAD more. */
static zero_status_t reach(zero_engine_t *engine, zero_unit_t unit)
{
    device_way_t *way = way_of(engine);
    while (way->n_queued < engine->plan.passing.n_pieces &&
           (way->n_queued < N_AHEAD || way->pieces[way->n_queued - N_AHEAD].unit <= unit))
        ZERO_TRY(queue_piece(engine, way->n_queued++));
    return ZERO_OK;
}

static zero_status_t update(zero_engine_t *engine)
{
    zero_offload_t *offload = engine->offload;
    zero_device_t *device = engine->device;
    ZERO_TRY(begin(engine));
    way_of(engine)->fetched_ahead = false;
    way_of(engine)->n_queued = 0;
    ZERO_TRY(device->ops->stream_wait(device, offload->update_stream, offload->decided));
    ZERO_TRY(device->ops->stream_wait(device, offload->in_stream, offload->grads_home));
    return reach(engine, engine->plan.host.first);
}

const zero_offload_way_t zero_offload_by_device = {
    .create = create, .destroy = destroy, .begin = begin, .update = update, .reach = reach};
