/* offload_device.c - the device updates hosted state, which passes through it: low halves, m, v and gradients come in,
 * AdamW writes the shard in the window, low halves, m and v go back. The bus works both ways at once, and most of it
 * under the next forward pass, whose units wait for their own alone.
 *
 * A shard passes in pieces, through places of the device's memory. A few are planned (plan.h), and pieces take turns in
 * them. More lie in activations that are idle (zero_alloc_activations), one for a piece: whoever has them can fetch
 * most of the state, or all, under the backward pass, and store it under the next forward pass, so that hardly anybody
 * waits. Memory falls idle from the last unit down, and is wanted back from the first unit up; so the first pieces,
 * stored first, have the places that are wanted first, and the last units' memory is taken before any other.
 *
 * Three streams, ordered by events of a place:
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
#include <stdlib.h>
#include <string.h>

#include "zero/log.h"
#include "zero/offload_way.h"

/* Pieces queued ahead: two gigabytes on their way, where pieces are of the largest. */
#define N_AHEAD 32

typedef struct place {
    unsigned char *memory; /* plan.passing.place_bytes */
    bool is_planned;
    zero_unit_t first, last;               /* else: the activations' */
    bool is_lent;                          /* not wanted back since something was fetched into it */
    zero_event_t fetched, updated, stored; /* what is in it */
} place_t;

typedef enum grads_at {
    GRADS_IN_SUM,  /* where they were added up: nobody else takes that place in the step */
    GRADS_HOME,    /* on the host: there was no place for them yet */
    GRADS_IN_PLACE /* copied there */
} grads_at_t;

typedef struct piece {
    zero_unit_t unit;
    uint64_t begin, n_elems; /* among hosted elements */
    bool is_last;            /* of its unit */
    place_t *place;
    grads_at_t grads_at;
    zero_adam_t adam; /* over its place */
} piece_t;

typedef struct device_way {
    piece_t *pieces;
    place_t *places;      /* the first n_lent of activations, in the order of units, then the planned ones */
    int n_places, n_lent; /* piece p < n_lent has place p; the others take turns in the planned ones */
    bool fetched_ahead;   /* the step's first pieces of the planned places are there, or on the way */
    int n_queued;         /* pieces of the newest step; all of them before the first */
    zero_event_t idle;    /* in the caller's stream: activations are */
} device_way_t;

static device_way_t *way_of(const zero_engine_t *engine)
{
    return engine->offload->way_state;
}

/* ---- building: places ---- */

/* A place holds m, v and gradients, if any pass, and the low halves. */
static float *place_m(const place_t *place)
{
    return (float *)place->memory;
}

static float *place_v(const zero_engine_t *engine, const place_t *place)
{
    return place_m(place) + engine->plan.passing.piece_elems;
}

static float *place_grads(const zero_engine_t *engine, const place_t *place)
{
    return place_m(place) + 2 * engine->plan.passing.piece_elems;
}

static void *place_low(const zero_engine_t *engine, const place_t *place)
{
    int n_floats = engine->plan.passing.grads_pass ? 3 : 2;
    return engine->config.dtype == ZERO_FP32 ? NULL : place_m(place) + n_floats * engine->plan.passing.piece_elems;
}

static int by_unit(const void *a, const void *b)
{
    const place_t *of_a = a, *of_b = b;
    if (of_a->first != of_b->first)
        return of_a->first < of_b->first ? -1 : 1;
    return (of_a->last > of_b->last) - (of_a->last < of_b->last);
}

/* All that fit into idle activations, or with NULL only how many. */
static int find_idle_places(const zero_engine_t *engine, place_t *places)
{
    size_t place_bytes = engine->plan.passing.place_bytes;
    int n = 0;
    for (const zero_user_block_t *block = engine->user_blocks; block; block = block->next)
        for (size_t at = 0; !block->always_in_use && at + place_bytes <= block->n_bytes; at += place_bytes, n++)
            if (places)
                places[n] =
                    (place_t){.memory = (unsigned char *)block->data + at, .first = block->first, .last = block->last};
    return n;
}

static zero_status_t create_events(zero_engine_t *engine)
{
    device_way_t *way = way_of(engine);
    zero_device_t *device = engine->device;
    ZERO_TRY(device->ops->event_create(device, false, &way->idle));
    for (int i = 0; i < way->n_places; i++) {
        ZERO_TRY(device->ops->event_create(device, false, &way->places[i].fetched));
        ZERO_TRY(device->ops->event_create(device, false, &way->places[i].updated));
        ZERO_TRY(device->ops->event_create(device, false, &way->places[i].stored));
    }
    return ZERO_OK;
}

static zero_status_t create_places(zero_engine_t *engine)
{
    const zero_passing_plan_t *passing = &engine->plan.passing;
    device_way_t *way = way_of(engine);
    int n_idle = find_idle_places(engine, NULL);
    way->places = calloc((size_t)(n_idle + passing->n_places) + 1, sizeof *way->places);
    if (!way->places)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for offload's tables");
    find_idle_places(engine, way->places);
    qsort(way->places, (size_t)n_idle, sizeof *way->places, by_unit);
    way->n_lent = n_idle < passing->n_pieces ? n_idle : passing->n_pieces;
    memmove(way->places, way->places + (n_idle - way->n_lent), (size_t)way->n_lent * sizeof *way->places);
    way->n_places = way->n_lent + passing->n_places;
    for (int i = 0; i < passing->n_places; i++)
        way->places[way->n_lent + i] =
            (place_t){.memory = zero_engine_private(engine, passing->places + (uint64_t)i * passing->place_bytes),
                      .is_planned = true};
    return create_events(engine);
}

/* ---- building: pieces ---- */

/* Sums of the first units stay. Those of a unit leave before the pass goes on to the unit before it: what was lent when
 * it was done with can take them. */
static grads_at_t find_grads(const zero_engine_t *engine, const piece_t *piece)
{
    if (piece->unit < engine->plan.host.first_sent)
        return GRADS_IN_SUM;
    return piece->place->is_planned || piece->place->last < piece->unit ? GRADS_HOME : GRADS_IN_PLACE;
}

/* What AdamW walks over, at `segments` on the device and in `copy`, counted from the piece's beginning, or its unit's
 * where gradients are in its sum. */
static void prepare_piece(const zero_engine_t *engine, piece_t *piece, const zero_adam_segment_t *segments,
                          zero_adam_segment_t *copy)
{
    const zero_step_scratch_t *decision = zero_engine_private(engine, engine->plan.step_scratch);
    const place_t *place = piece->place;
    bool in_sum = piece->grads_at == GRADS_IN_SUM;
    uint64_t grads_begin = in_sum ? engine->offload->units[piece->unit].begin : piece->begin;
    size_t n_segments = zero_offload_segments(engine, piece->unit, piece->begin, piece->begin + piece->n_elems, copy);
    for (size_t i = 0; i < n_segments; i++) {
        copy[i].state -= piece->begin;
        copy[i].grad -= grads_begin;
    }
    piece->adam = (zero_adam_t){
        .param_dtype = engine->config.dtype,
        .param = zero_engine_params(engine),
        .low = place_low(engine, place),
        .m = place_m(place),
        .v = place_v(engine, place),
        .grad = in_sum ? zero_engine_sum(engine, piece->unit) : place_grads(engine, place),
        .segments = segments,
        .n_segments = n_segments,
        .state_begin = 0,
        .state_end = piece->n_elems,
        .scalars = &decision->scalars,
    };
}

/* All pieces; writes what AdamW walks over to `segments`. Returns how many. */
static size_t prepare_pieces(const zero_engine_t *engine, zero_adam_segment_t *segments)
{
    const zero_passing_plan_t *passing = &engine->plan.passing;
    const zero_adam_segment_t *on_device = zero_engine_private(engine, passing->segments);
    device_way_t *way = way_of(engine);
    size_t n_segments = 0;
    int p = 0;
    for (zero_unit_t unit = engine->plan.host.first; unit < engine->layout.n_units; unit++) {
        const zero_hosted_unit_t *hosted = &engine->offload->units[unit];
        for (uint64_t begin = hosted->begin; begin < hosted->end; begin += passing->piece_elems, p++) {
            uint64_t n_left = hosted->end - begin;
            piece_t *piece = &way->pieces[p];
            piece->unit = unit;
            piece->begin = begin;
            piece->is_last = n_left <= passing->piece_elems;
            piece->n_elems = piece->is_last ? n_left : passing->piece_elems;
            piece->place = &way->places[p < way->n_lent ? p : way->n_lent + (p - way->n_lent) % passing->n_places];
            piece->grads_at = find_grads(engine, piece);
            prepare_piece(engine, piece, on_device + n_segments, segments + n_segments);
            n_segments += piece->adam.n_segments;
        }
    }
    return n_segments;
}

static void say_how(const zero_engine_t *engine)
{
    const zero_passing_plan_t *passing = &engine->plan.passing;
    if (engine->host_comm->rank == 0)
        zero_log(ZERO_LOG_INFO,
                 "offload: each device updates its hosted state, which passes through it in %d pieces of at most %llu "
                 "elements, %d of them in idle activations",
                 passing->n_pieces, (unsigned long long)passing->piece_elems, way_of(engine)->n_lent);
}

static zero_status_t create(zero_engine_t *engine)
{
    device_way_t *way = calloc(1, sizeof *way);
    engine->offload->way_state = way;
    if (way) {
        way->pieces = calloc((size_t)engine->plan.passing.n_pieces + 1, sizeof *way->pieces);
        way->n_queued = engine->plan.passing.n_pieces;
    }
    return way && way->pieces ? ZERO_OK : zero_fail(ZERO_ERROR_MEMORY, "no memory for offload's tables");
}

/* Once all activations are there. */
static zero_status_t start(zero_engine_t *engine)
{
    const zero_passing_plan_t *passing = &engine->plan.passing;
    zero_adam_segment_t *segments = calloc(passing->max_segments, sizeof *segments);
    zero_status_t status =
        segments ? create_places(engine) : zero_fail(ZERO_ERROR_MEMORY, "no memory for offload's tables");
    if (status == ZERO_OK)
        status = zero_device_copy(engine->device, zero_engine_private(engine, passing->segments), segments,
                                  prepare_pieces(engine, segments) * sizeof *segments, NULL);
    if (status == ZERO_OK)
        status = zero_device_synchronize(engine->device);
    free(segments);
    if (status == ZERO_OK)
        say_how(engine);
    return status;
}

static void destroy(zero_engine_t *engine)
{
    device_way_t *way = way_of(engine);
    zero_device_t *device = engine->device;
    if (!way)
        return;
    for (int i = 0; i < way->n_places; i++) {
        device->ops->event_destroy(device, way->places[i].fetched);
        device->ops->event_destroy(device, way->places[i].updated);
        device->ops->event_destroy(device, way->places[i].stored);
    }
    device->ops->event_destroy(device, way->idle);
    free(way->places);
    free(way->pieces);
    free(way);
}

/* ---- a step ---- */

/* m, v and low (none with fp32) of a piece: their home and their place. */
typedef struct passage {
    void *home, *place;
    size_t n_bytes;
} passage_t;
#define N_PASSAGES 3

static void find_passages(const zero_engine_t *engine, const piece_t *piece, passage_t passages[N_PASSAGES])
{
    zero_host_place_t home = zero_offload_place(engine, engine->plan.state_elems + piece->begin);
    const place_t *place = piece->place;
    size_t n = piece->n_elems;
    passages[0] = (passage_t){home.m, place_m(place), n * sizeof(float)};
    passages[1] = (passage_t){home.v, place_v(engine, place), n * sizeof(float)};
    passages[2] = (passage_t){home.low, place_low(engine, place), n * zero_low_size(engine->config.dtype)};
}

/* The piece's state into its place, which may still be on its way out. */
static zero_status_t fetch_state(zero_engine_t *engine, int p)
{
    zero_device_t *device = engine->device;
    zero_stream_t in_stream = engine->offload->in_stream;
    const piece_t *piece = &way_of(engine)->pieces[p];
    passage_t passages[N_PASSAGES];
    find_passages(engine, piece, passages);
    ZERO_TRY(device->ops->stream_wait(device, in_stream, piece->place->stored));
    for (int i = 0; i < N_PASSAGES; i++)
        if (passages[i].n_bytes > 0)
            ZERO_TRY(zero_device_copy(device, passages[i].place, passages[i].home, passages[i].n_bytes, in_stream));
    return ZERO_OK;
}

static zero_status_t fetch_grads(zero_engine_t *engine, int p)
{
    const piece_t *piece = &way_of(engine)->pieces[p];
    if (piece->grads_at != GRADS_HOME)
        return ZERO_OK;
    return zero_device_copy(engine->device, place_grads(engine, piece->place),
                            zero_offload_grads_home(engine, piece->begin), piece->n_elems * sizeof(float),
                            engine->offload->in_stream);
}

static zero_status_t update_piece(zero_engine_t *engine, int p)
{
    zero_offload_t *offload = engine->offload;
    zero_device_t *device = engine->device;
    const piece_t *piece = &way_of(engine)->pieces[p];
    const place_t *place = piece->place;
    ZERO_TRY(device->ops->event_record(device, place->fetched, offload->in_stream));
    ZERO_TRY(device->ops->stream_wait(device, offload->update_stream, place->fetched));
    if (piece->adam.n_segments > 0)
        ZERO_TRY(device->kernels->adam(&piece->adam, offload->update_stream));
    ZERO_TRY(device->ops->event_record(device, place->updated, offload->update_stream));
    if (!piece->is_last)
        return ZERO_OK;
    if (piece->grads_at == GRADS_IN_SUM)
        ZERO_TRY(
            device->ops->event_record(device, zero_offload_sums_left(engine, piece->unit), offload->update_stream));
    return device->ops->event_record(device, offload->units[piece->unit].arrived, offload->update_stream);
}

static zero_status_t store_state(zero_engine_t *engine, int p)
{
    zero_device_t *device = engine->device;
    zero_stream_t out_stream = engine->offload->out_stream;
    const piece_t *piece = &way_of(engine)->pieces[p];
    passage_t passages[N_PASSAGES];
    find_passages(engine, piece, passages);
    ZERO_TRY(device->ops->stream_wait(device, out_stream, piece->place->updated));
    for (int i = 0; i < N_PASSAGES; i++)
        if (passages[i].n_bytes > 0)
            ZERO_TRY(zero_device_copy(device, passages[i].home, passages[i].place, passages[i].n_bytes, out_stream));
    return device->ops->event_record(device, piece->place->stored, out_stream);
}

/* Activations whose last reader was this unit's backward, in the step's last pass: the last pieces come first, since
 * the first are still to fall idle. */
static zero_status_t lend(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream)
{
    zero_device_t *device = engine->device;
    device_way_t *way = way_of(engine);
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
    const zero_passing_plan_t *passing = &engine->plan.passing;
    device_way_t *way = way_of(engine);
    if (way->fetched_ahead)
        return ZERO_OK;
    way->fetched_ahead = true;
    for (int p = way->n_lent; p < way->n_places && p < passing->n_pieces; p++)
        ZERO_TRY(fetch_state(engine, p));
    return ZERO_OK;
}

/* To the place where AdamW will look for them, or home; none of them is still in its sum. */
static zero_status_t send_grads(zero_engine_t *engine, zero_unit_t unit)
{
    zero_offload_t *offload = engine->offload;
    const zero_hosted_unit_t *hosted = &offload->units[unit];
    const float *sum = zero_engine_sum(engine, unit);
    const piece_t *piece = way_of(engine)->pieces;
    for (; piece->unit != unit; piece++)
        ;
    for (uint64_t at = hosted->begin; at < hosted->end; at += piece->n_elems, piece++)
        ZERO_TRY(zero_device_copy(engine->device,
                                  piece->grads_at == GRADS_HOME ? zero_offload_grads_home(engine, piece->begin)
                                                                : place_grads(engine, piece->place),
                                  sum + (at - hosted->begin), piece->n_elems * sizeof(float), offload->out_stream));
    return ZERO_OK;
}

static zero_status_t queue_piece(zero_engine_t *engine, int p)
{
    if (p >= way_of(engine)->n_places)
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

/* They are stored in the order of pieces: the last of those that this unit wants is the last to go. */
static zero_status_t take_back(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream)
{
    device_way_t *way = way_of(engine);
    int last = -1;
    for (int p = 0; p < way->n_lent; p++)
        if (way->places[p].first == unit && way->places[p].is_lent) {
            last = p;
            way->places[p].is_lent = false;
        }
    if (last < 0)
        return ZERO_OK;
    ZERO_TRY(reach(engine, way->pieces[last].unit));
    return zero_engine_wait(engine, unit, way->places[last].stored, stream);
}

static zero_status_t update(zero_engine_t *engine)
{
    zero_offload_t *offload = engine->offload;
    zero_device_t *device = engine->device;
    device_way_t *way = way_of(engine);
    ZERO_TRY(fetch_ahead(engine));
    way->fetched_ahead = false;
    way->n_queued = 0;
    ZERO_TRY(device->ops->stream_wait(device, offload->update_stream, offload->decided));
    ZERO_TRY(device->ops->stream_wait(device, offload->in_stream, offload->grads_home));
    return reach(engine, engine->plan.host.first);
}

const zero_offload_way_t zero_offload_by_device = {
    .create = create,
    .start = start,
    .destroy = destroy,
    .begin = fetch_ahead,
    .send_grads = send_grads,
    .update = update,
    .reach = reach,
    .lend = lend,
    .take_back = take_back,
};
