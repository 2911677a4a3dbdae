/* timeline.c - see timeline.h. */
#include "zero/runtime/timeline.h"

#include <stdlib.h>

#include "base/log.h"
#include "base/system.h"

/* An entry of the ring of timed events. */
typedef struct entry {
    zero_event_t event;
    uint64_t step; /* once it has been harvested, the event is over */
} entry_t;

typedef struct span {
    zero_span_of_t of;
    zero_timed_event_t begin, end; /* end 0: not recorded yet */
    bool is_over_with_step;        /* both events are sure to be over when the step is */
    bool is_of_step;               /* else it came before it, in an evaluation, say */
} span_t;

struct zero_timeline {
    zero_device_t *device;
    zero_comm_t *comm;
    zero_exposed_t exposed; /* of spans that were read since the last harvest */
    bool in_step;

    entry_t *entries; /* timed event n is in entry (n - 1) % n_entries */
    uint64_t n_entries, n_timed_events;
    uint64_t n_over; /* timed events 1, 2 ... n_over are over, and their entries free */

    int capacity, first, n_spans;
    span_t *spans; /* a ring: n_spans from `first` on */

    /* Of the last wait that was read: where the series of waits with one `begin` begins, and how long they took. */
    zero_timed_event_t waits_begin;
    double waits_ms;

    /* Tracing: events are timed against `base`, which was reached at base_ms by the host's clock. CUDA returns times as
     * floats: after 100 s they are precise to 8 us. */
    unsigned works; /* 0: no trace */
    zero_trace_fn fn;
    void *user;
    zero_event_t base;
    double base_ms;
};

#define NAME(name, text, what) text,

const char *zero_work_name(zero_work_t work)
{
    static const char *const names[] = {ZERO_WORK_MAP(NAME)};
    return (unsigned)work < ZERO_N_WORKS ? names[work] : "unknown";
}

const char *zero_phase_name(zero_phase_t phase)
{
    static const char *const names[] = {ZERO_PHASE_MAP(NAME)};
    return (unsigned)phase < ZERO_N_PHASES ? names[phase] : "unknown";
}

const char *zero_wait_name(zero_wait_t wait)
{
    static const char *const names[] = {ZERO_WAIT_MAP(NAME)};
    return (unsigned)wait < ZERO_N_WAITS ? names[wait] : "unknown";
}

zero_status_t zero_timeline_create(zero_device_t *device, zero_comm_t *comm, int capacity, zero_timeline_t **timeline)
{
    zero_timeline_t *made = calloc(1, sizeof *made);
    span_t *spans = calloc((size_t)capacity, sizeof *spans);
    entry_t *entries = calloc(2 * (size_t)capacity, sizeof *entries);
    zero_status_t status = ZERO_OK;
    if (!made || !spans || !entries) {
        free(made);
        free(spans);
        free(entries);
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for a timeline of %d spans", capacity);
    }
    made->device = device;
    made->comm = comm;
    made->capacity = capacity;
    made->spans = spans;
    made->n_entries = 2 * (uint64_t)capacity;
    made->entries = entries;
    for (uint64_t i = 0; i < made->n_entries && status == ZERO_OK; i++)
        status = device->ops->event_create(device, true, &entries[i].event);
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
    for (uint64_t i = 0; i < timeline->n_entries; i++)
        timeline->device->ops->event_destroy(timeline->device, timeline->entries[i].event);
    timeline->device->ops->event_destroy(timeline->device, timeline->base);
    free(timeline->entries);
    free(timeline->spans);
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
        status = zero_device_await(device, timeline->comm, timeline->base, "tracing's first event");
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

static entry_t *entry_of(const zero_timeline_t *timeline, zero_timed_event_t timed)
{
    return &timeline->entries[(timed - 1) % timeline->n_entries];
}

void zero_timeline_set_in_step(zero_timeline_t *timeline, bool in_step)
{
    timeline->in_step = in_step;
}

zero_event_t zero_timeline_event(const zero_timeline_t *timeline, zero_timed_event_t timed)
{
    return timed > timeline->n_over ? entry_of(timeline, timed)->event : NULL;
}

/* ---- reading ---- */

static zero_status_t await_timed_event(zero_timeline_t *timeline, zero_timed_event_t timed)
{
    return zero_device_await(timeline->device, timeline->comm, entry_of(timeline, timed)->event, "what a span times");
}

/* Measures a span that is over, and reports it if it is traced. A wait of no length, because what it waited for was
 * over, is not reported. */
static zero_status_t read_span(zero_timeline_t *timeline, const span_t *span)
{
    zero_device_t *device = timeline->device;
    zero_event_t begin = entry_of(timeline, span->begin)->event, end = entry_of(timeline, span->end)->event;
    double begin_ms, end_ms, from_ms = 0.0; /* the span, after `begin` */
    ZERO_TRY(device->ops->event_elapsed_ms(device, begin, end, &end_ms));
    if (span->of.work == ZERO_WORK_WAIT) {
        if (span->begin == timeline->waits_begin)
            from_ms = timeline->waits_ms;
        if (end_ms < from_ms)
            end_ms = from_ms;
        timeline->waits_begin = span->begin;
        timeline->waits_ms = end_ms;
        if (span->is_of_step)
            *(span->of.wait == ZERO_WAIT_OFFLOAD ? &timeline->exposed.host_ms : &timeline->exposed.comm_ms) +=
                end_ms - from_ms;
    }
    if (!is_traced(timeline, span->of.work) || (span->of.work == ZERO_WORK_WAIT && end_ms <= from_ms))
        return ZERO_OK;
    ZERO_TRY(device->ops->event_elapsed_ms(device, timeline->base, begin, &begin_ms));
    zero_trace_span_t traced = {.work = span->of.work,
                                .unit = span->of.unit,
                                .step = span->is_of_step ? span->of.step : 0,
                                .phase = span->of.phase,
                                .wait = span->of.wait,
                                .first_rank = span->of.ranks.first,
                                .rank_stride = span->of.ranks.stride,
                                .n_ranks = span->of.ranks.n,
                                .begin_ms = timeline->base_ms + begin_ms + from_ms,
                                .end_ms = timeline->base_ms + begin_ms + end_ms};
    timeline->fn(timeline->user, &traced);
    return ZERO_OK;
}

/* Reads and removes the oldest span. One without an end is not reported: something failed, or more events have been
 * recorded since its begin than the ring holds. */
static zero_status_t take_oldest(zero_timeline_t *timeline, bool step_is_over)
{
    span_t *oldest = &timeline->spans[timeline->first];
    if (oldest->end != 0) {
        if (oldest->is_over_with_step && !step_is_over)
            ZERO_TRY(await_timed_event(timeline, oldest->begin)); /* it may be in another stream than the end */
        if (!oldest->is_over_with_step || !step_is_over)
            ZERO_TRY(await_timed_event(timeline, oldest->end));
        ZERO_TRY(read_span(timeline, oldest));
    }
    timeline->first = (timeline->first + 1) % timeline->capacity;
    timeline->n_spans--;
    return ZERO_OK;
}

/* Returns the last timed event before those that spans still need. */
static zero_timed_event_t last_unneeded(const zero_timeline_t *timeline)
{
    zero_timed_event_t last = timeline->n_timed_events;
    for (int i = 0; i < timeline->n_spans; i++) {
        const span_t *span = &timeline->spans[(timeline->first + i) % timeline->capacity];
        zero_timed_event_t needed = span->end != 0 && span->end < span->begin ? span->end : span->begin;
        last = needed <= last ? needed - 1 : last;
    }
    return last;
}

zero_status_t zero_timeline_harvest(zero_timeline_t *timeline, uint64_t step, zero_exposed_t *exposed)
{
    while (timeline->n_spans > 0 && timeline->spans[timeline->first].of.step <= step)
        ZERO_TRY(take_oldest(timeline, true));
    zero_timed_event_t last = last_unneeded(timeline);
    while (timeline->n_over < last && entry_of(timeline, timeline->n_over + 1)->step <= step)
        timeline->n_over++;
    *exposed = timeline->exposed;
    timeline->exposed = (zero_exposed_t){0};
    return ZERO_OK;
}

/* ---- recording ---- */

/* Frees the older half of the entries once they are over: many micro-steps may come before a harvest. */
static zero_status_t free_entries(zero_timeline_t *timeline)
{
    uint64_t wanted = timeline->n_over + timeline->n_entries / 2, last;
    while ((last = last_unneeded(timeline)) < wanted && timeline->n_spans > 0)
        ZERO_TRY(take_oldest(timeline, false));
    for (wanted = last < wanted ? last : wanted; timeline->n_over < wanted; timeline->n_over++)
        ZERO_TRY(await_timed_event(timeline, timeline->n_over + 1));
    return ZERO_OK;
}

zero_status_t zero_timeline_record(zero_timeline_t *timeline, uint64_t step, zero_stream_t stream,
                                   zero_timed_event_t *timed)
{
    if (timeline->n_timed_events - timeline->n_over == timeline->n_entries)
        ZERO_TRY(free_entries(timeline));
    entry_t *entry = entry_of(timeline, timeline->n_timed_events + 1);
    ZERO_TRY(timeline->device->ops->event_record(timeline->device, entry->event, stream));
    entry->step = step;
    *timed = ++timeline->n_timed_events;
    return ZERO_OK;
}

static zero_status_t add(zero_timeline_t *timeline, span_t span, int *at)
{
    if (timeline->n_spans == timeline->capacity)
        ZERO_TRY(take_oldest(timeline, false));
    *at = (timeline->first + timeline->n_spans++) % timeline->capacity;
    span.is_of_step = timeline->in_step;
    timeline->spans[*at] = span;
    return ZERO_OK;
}

zero_status_t zero_timeline_add_wait(zero_timeline_t *timeline, zero_span_of_t of, zero_timed_event_t begin,
                                     zero_timed_event_t end)
{
    int at;
    if (begin <= timeline->n_over || end <= timeline->n_over)
        return ZERO_OK;
    span_t wait = {.of = of, .begin = begin, .end = end, .is_over_with_step = true};
    return add(timeline, wait, &at);
}

zero_status_t zero_timeline_begin(zero_timeline_t *timeline, zero_span_of_t of, zero_stream_t stream, int *span)
{
    span_t begun = {.of = of};
    *span = -1;
    if (of.work != ZERO_WORK_WAIT && !is_traced(timeline, of.work))
        return ZERO_OK;
    ZERO_TRY(zero_timeline_record(timeline, of.step, stream, &begun.begin));
    return add(timeline, begun, span);
}

zero_status_t zero_timeline_end(zero_timeline_t *timeline, int span, zero_stream_t stream)
{
    if (span < 0)
        return ZERO_OK;
    span_t *ended = &timeline->spans[span];
    return zero_timeline_record(timeline, ended->of.step, stream, &ended->end);
}
