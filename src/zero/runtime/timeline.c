/* timeline.c - see timeline.h. */
#include "zero/runtime/timeline.h"

#include <stdlib.h>

#include "base/deadline.h"
#include "base/log.h"

typedef struct place {
    zero_event_t event; /* timed */
    uint64_t step;      /* with whose harvest the mark here is over */
} place_t;

typedef struct span {
    zero_work_t work;
    zero_unit_t unit;
    uint64_t step;
    zero_timed_event_t begin, end; /* end 0: it has not come yet */
    bool is_over_with_step;        /* both marks are, for sure */
    bool is_of_step;               /* else it lies before it: an evaluation's, say */
} span_t;

struct zero_timeline {
    zero_device_t *device;
    const zero_comm_t *host;
    double exposed_ms; /* harvested and not yet told */
    bool in_step;

    uint64_t n_buffers, n_timed_events; /* mark n lies in place (n - 1) % n_buffers */
    uint64_t n_over;                    /* marks 1, 2 ... n_over are over, and their places free */
    place_t *places;

    int capacity, first, n_spans;
    span_t *ring;

    /* Of the last wait that was told: where its row of waits begins, and how long they took together. */
    zero_timed_event_t waits_begin;
    double waits_ms;

    /* Tracing: events are timed against `base`, which was reached at base_ms by the host's clock. CUDA tells times as
     * floats: after 100 s they are good to 8 us. */
    unsigned works; /* 0: nobody traces */
    zero_trace_fn fn;
    void *user;
    zero_event_t base;
    double base_ms;
};

const char *zero_work_name(zero_work_t work)
{
    static const char *const names[] = {
#define NAME(name, text, what) text,
        ZERO_WORK_MAP(NAME)
#undef NAME
    };
    return (unsigned)work < ZERO_N_WORKS ? names[work] : "unknown";
}

zero_status_t zero_timeline_create(zero_device_t *device, const zero_comm_t *host, int capacity,
                                   zero_timeline_t **timeline)
{
    zero_timeline_t *made = calloc(1, sizeof *made);
    span_t *ring = calloc((size_t)capacity, sizeof *ring);
    place_t *places = calloc(2 * (size_t)capacity, sizeof *places);
    zero_status_t status = ZERO_OK;
    if (!made || !ring || !places) {
        free(made);
        free(ring);
        free(places);
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for a timeline of %d spans", capacity);
    }
    made->device = device;
    made->host = host;
    made->capacity = capacity;
    made->ring = ring;
    made->n_buffers = 2 * (uint64_t)capacity;
    made->places = places;
    for (uint64_t i = 0; i < made->n_buffers && status == ZERO_OK; i++)
        status = device->ops->event_create(device, true, &places[i].event);
    if (status != ZERO_OK) {
        zero_timeline_destroy(made);
        return status;
    }
    *timeline = made;
    return ZERO_OK;
}

void zero_timeline_destroy(zero_timeline_t *timeline)
{
    if (!timeline)
        return;
    for (uint64_t i = 0; i < timeline->n_buffers; i++)
        timeline->device->ops->event_destroy(timeline->device, timeline->places[i].event);
    timeline->device->ops->event_destroy(timeline->device, timeline->base);
    free(timeline->places);
    free(timeline->ring);
    free(timeline);
}

zero_status_t zero_timeline_trace(zero_timeline_t *timeline, unsigned works, zero_trace_fn fn, void *user)
{
    zero_device_t *device = timeline->device;
    zero_stream_t stream;
    if (!timeline->base)
        ZERO_TRY(device->ops->event_create(device, true, &timeline->base));
    ZERO_TRY(device->ops->stream_create(device, false, &stream));
    ZERO_TRY(device->ops->synchronize(device));
    zero_status_t status = device->ops->event_record(device, timeline->base, stream);
    if (status == ZERO_OK)
        status = zero_device_await(device, timeline->host, timeline->base, "tracing's first event");
    timeline->base_ms = (double)zero_now_ns() * 1e-6;
    device->ops->stream_destroy(device, stream);
    timeline->works = works;
    timeline->fn = fn;
    timeline->user = user;
    return status;
}

static bool is_traced(const zero_timeline_t *timeline, zero_work_t work)
{
    return (timeline->works >> work & 1u) != 0;
}

static place_t *place_of(const zero_timeline_t *timeline, zero_timed_event_t mark)
{
    return &timeline->places[(mark - 1) % timeline->n_buffers];
}

void zero_timeline_set_in_step(zero_timeline_t *timeline, bool in_step)
{
    timeline->in_step = in_step;
}

zero_event_t zero_timeline_event(const zero_timeline_t *timeline, zero_timed_event_t mark)
{
    return mark > timeline->n_over ? place_of(timeline, mark)->event : NULL;
}

/* ---- telling ---- */

static zero_status_t await_timed_event(zero_timeline_t *timeline, zero_timed_event_t mark)
{
    return zero_device_await(timeline->device, timeline->host, place_of(timeline, mark)->event, "what a span times");
}

/* A wait that has no length, since what it waited for was there, is none. */
static zero_status_t tell(zero_timeline_t *timeline, const span_t *span)
{
    zero_device_t *device = timeline->device;
    zero_event_t begin = place_of(timeline, span->begin)->event, end = place_of(timeline, span->end)->event;
    double begin_ms, end_ms, from_ms = 0.0; /* of the span, behind `begin` */
    ZERO_TRY(device->ops->event_elapsed_ms(device, begin, end, &end_ms));
    if (span->work == ZERO_WORK_WAIT) {
        if (span->begin == timeline->waits_begin)
            from_ms = timeline->waits_ms;
        if (end_ms < from_ms)
            end_ms = from_ms;
        timeline->waits_begin = span->begin;
        timeline->waits_ms = end_ms;
        if (span->is_of_step)
            timeline->exposed_ms += end_ms - from_ms;
    }
    if (!is_traced(timeline, span->work) || (span->work == ZERO_WORK_WAIT && end_ms <= from_ms))
        return ZERO_OK;
    ZERO_TRY(device->ops->event_elapsed_ms(device, timeline->base, begin, &begin_ms));
    zero_trace_span_t told = {.work = span->work,
                              .unit = span->unit,
                              .step = span->is_of_step ? span->step : 0,
                              .begin_ms = timeline->base_ms + begin_ms + from_ms,
                              .end_ms = timeline->base_ms + begin_ms + end_ms};
    timeline->fn(timeline->user, &told);
    return ZERO_OK;
}

/* A span without an end is not told of: something failed, or more marks than there are places lie behind its begin. */
static zero_status_t take_oldest(zero_timeline_t *timeline, bool step_is_over)
{
    span_t *oldest = &timeline->ring[timeline->first];
    if (oldest->end != 0) {
        if (oldest->is_over_with_step && !step_is_over)
            ZERO_TRY(await_timed_event(timeline, oldest->begin)); /* in another stream than its end */
        if (!oldest->is_over_with_step || !step_is_over)
            ZERO_TRY(await_timed_event(timeline, oldest->end));
        ZERO_TRY(tell(timeline, oldest));
    }
    timeline->first = (timeline->first + 1) % timeline->capacity;
    timeline->n_spans--;
    return ZERO_OK;
}

/* The last mark before those that spans still need. */
static zero_timed_event_t last_unneeded(const zero_timeline_t *timeline)
{
    zero_timed_event_t last = timeline->n_timed_events;
    for (int i = 0; i < timeline->n_spans; i++) {
        const span_t *span = &timeline->ring[(timeline->first + i) % timeline->capacity];
        zero_timed_event_t needed = span->end != 0 && span->end < span->begin ? span->end : span->begin;
        last = needed <= last ? needed - 1 : last;
    }
    return last;
}

zero_status_t zero_timeline_harvest(zero_timeline_t *timeline, uint64_t step, double *exposed_ms)
{
    while (timeline->n_spans > 0 && timeline->ring[timeline->first].step <= step)
        ZERO_TRY(take_oldest(timeline, true));
    zero_timed_event_t last = last_unneeded(timeline);
    while (timeline->n_over < last && place_of(timeline, timeline->n_over + 1)->step <= step)
        timeline->n_over++;
    *exposed_ms = timeline->exposed_ms;
    timeline->exposed_ms = 0.0;
    return ZERO_OK;
}

/* ---- recording ---- */

/* Many micro-steps come before a harvest: the older half of the places is made free, when it is over. */
static zero_status_t free_buffers(zero_timeline_t *timeline)
{
    uint64_t wanted = timeline->n_over + timeline->n_buffers / 2, last;
    while ((last = last_unneeded(timeline)) < wanted && timeline->n_spans > 0)
        ZERO_TRY(take_oldest(timeline, false));
    for (wanted = last < wanted ? last : wanted; timeline->n_over < wanted; timeline->n_over++)
        ZERO_TRY(await_timed_event(timeline, timeline->n_over + 1));
    return ZERO_OK;
}

zero_status_t zero_timeline_record(zero_timeline_t *timeline, uint64_t step, zero_stream_t stream,
                                   zero_timed_event_t *mark)
{
    if (timeline->n_timed_events - timeline->n_over == timeline->n_buffers)
        ZERO_TRY(free_buffers(timeline));
    place_t *place = place_of(timeline, timeline->n_timed_events + 1);
    ZERO_TRY(timeline->device->ops->event_record(timeline->device, place->event, stream));
    place->step = step;
    *mark = ++timeline->n_timed_events;
    return ZERO_OK;
}

static zero_status_t add(zero_timeline_t *timeline, span_t span, int *at)
{
    if (timeline->n_spans == timeline->capacity)
        ZERO_TRY(take_oldest(timeline, false));
    *at = (timeline->first + timeline->n_spans++) % timeline->capacity;
    span.is_of_step = timeline->in_step;
    timeline->ring[*at] = span;
    return ZERO_OK;
}

zero_status_t zero_timeline_add_wait(zero_timeline_t *timeline, uint64_t step, zero_unit_t unit,
                                     zero_timed_event_t begin, zero_timed_event_t end)
{
    int at;
    if (begin <= timeline->n_over || end <= timeline->n_over)
        return ZERO_OK;
    span_t wait = {
        .work = ZERO_WORK_WAIT, .unit = unit, .step = step, .begin = begin, .end = end, .is_over_with_step = true};
    return add(timeline, wait, &at);
}

zero_status_t zero_timeline_begin(zero_timeline_t *timeline, zero_work_t work, uint64_t step, zero_unit_t unit,
                                  zero_stream_t stream, int *span)
{
    span_t begun = {.work = work, .unit = unit, .step = step};
    *span = -1;
    if (work != ZERO_WORK_WAIT && !is_traced(timeline, work))
        return ZERO_OK;
    ZERO_TRY(zero_timeline_record(timeline, step, stream, &begun.begin));
    return add(timeline, begun, span);
}

zero_status_t zero_timeline_end(zero_timeline_t *timeline, int span, zero_stream_t stream)
{
    if (span < 0)
        return ZERO_OK;
    span_t *ended = &timeline->ring[span];
    return zero_timeline_record(timeline, ended->step, stream, &ended->end);
}
