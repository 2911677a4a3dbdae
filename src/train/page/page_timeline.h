/* page_timeline.h - one step of a run's trace, for a report. */
#ifndef ZEROTRAIN_PAGE_TIMELINE_H
#define ZEROTRAIN_PAGE_TIMELINE_H

struct json_t;

/* Adds to a run (page_run.h) that says where its trace is, if that can be read:
 *
 *     "timeline": {"file": ..., "step": 7, "spans": [{what a trace has of a span}, ...]}
 *
 * Of the steps that are in both files it takes the one whose step_ms is the median. A trace of other ranks, or one that
 * is older than the run, is of another run: a line says that it is left out. */
void page_read_timeline(struct json_t *run);

#endif
