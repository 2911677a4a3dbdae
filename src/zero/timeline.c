/* timeline.c - see timeline.h. */
#include "zero/timeline.h"

#include <stdlib.h>

#include "comm/deadline.h"
#include "zero/log.h"

typedef struct span {
    zero_work_t work;
    zero_unit_t unit;
    uint64_t step;
    bool ended;
    zero_event_t begin, end;
} span_t;

struct zero_timeline {
    zero_device_t *device;
    const zero_comm_t *host;
    int capacity, first, n_spans;
    span_t *ring;
    double exposed_ms; /* harvested and not yet told */

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
    zero_status_t status = ZERO_OK;
    if (!made || !ring) {
        free(made);
        free(ring);
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for a timeline of %d spans", capacity);
    }
    made->device = device;
    made->host = host;
    made->capacity = capacity;
    made->ring = ring;
    for (int i = 0; i < capacity && status == ZERO_OK; i++) {
        status = device->ops->event_create(device, true, &ring[i].begin);
        if (status == ZERO_OK)
            status = device->ops->event_create(device, true, &ring[i].end);
    }
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
    for (int i = 0; i < timeline->capacity; i++) {
        timeline->device->ops->event_destroy(timeline->device, timeline->ring[i].begin);
        timeline->device->ops->event_destroy(timeline->device, timeline->ring[i].end);
    }
    timeline->device->ops->event_destroy(timeline->device, timeline->base);
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

/* ---- telling ---- */

static zero_status_t tell(zero_timeline_t *timeline, const span_t *span)
{
    zero_device_t *device = timeline->device;
    double begin_ms, length_ms;
    ZERO_TRY(device->ops->event_elapsed_ms(device, span->begin, span->end, &length_ms));
    if (span->work == ZERO_WORK_WAIT)
        timeline->exposed_ms += length_ms;
    if (!is_traced(timeline, span->work))
        return ZERO_OK;
    ZERO_TRY(device->ops->event_elapsed_ms(device, timeline->base, span->begin, &begin_ms));
    zero_trace_span_t told = {.work = span->work,
                              .unit = span->unit,
                              .step = span->step,
                              .begin_ms = timeline->base_ms + begin_ms,
                              .end_ms = timeline->base_ms + begin_ms + length_ms};
    timeline->fn(timeline->user, &told);
    return ZERO_OK;
}

static zero_status_t take_oldest(zero_timeline_t *timeline)
{
    span_t *oldest = &timeline->ring[timeline->first];
    if (oldest->ended) {
        ZERO_TRY(zero_device_await(timeline->device, timeline->host, oldest->end, "what a span times"));
        ZERO_TRY(tell(timeline, oldest));
    }
    timeline->first = (timeline->first + 1) % timeline->capacity;
    timeline->n_spans--;
    return ZERO_OK;
}

zero_status_t zero_timeline_harvest(zero_timeline_t *timeline, uint64_t step, double *exposed_ms)
{
    while (timeline->n_spans > 0 && timeline->ring[timeline->first].step <= step)
        ZERO_TRY(take_oldest(timeline));
    *exposed_ms = timeline->exposed_ms;
    timeline->exposed_ms = 0.0;
    return ZERO_OK;
}

/* ---- recording ---- */

zero_status_t zero_timeline_begin(zero_timeline_t *timeline, zero_work_t work, uint64_t step, zero_unit_t unit,
                                  zero_stream_t stream, int *span)
{
    *span = -1;
    if (work != ZERO_WORK_WAIT && !is_traced(timeline, work))
        return ZERO_OK;
    if (timeline->n_spans == timeline->capacity)
        ZERO_TRY(take_oldest(timeline));
    int at = (timeline->first + timeline->n_spans) % timeline->capacity;
    span_t *begun = &timeline->ring[at];
    begun->work = work;
    begun->unit = unit;
    begun->step = step;
    begun->ended = false;
    ZERO_TRY(timeline->device->ops->event_record(timeline->device, begun->begin, stream));
    timeline->n_spans++;
    *span = at;
    return ZERO_OK;
}

zero_status_t zero_timeline_end(zero_timeline_t *timeline, int span, zero_stream_t stream)
{
    if (span < 0)
        return ZERO_OK;
    timeline->ring[span].ended = true;
    return timeline->device->ops->event_record(timeline->device, timeline->ring[span].end, stream);
}
