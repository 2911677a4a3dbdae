/* page.h - zerotrain report: one HTML file that shows runs over each other. It needs no network and no other file. */
#ifndef ZEROTRAIN_PAGE_H
#define ZEROTRAIN_PAGE_H

#include "train/options/options.h"
#include "zero.h"

/* ---- page run ---- */
/* Reads what a report shows of one run. */

struct json_t;

/* Appends to `runs` an object: name, rows (a list for each key, and hours), and as far as they are known config, run
 * (what the run says of itself, run.h) and timeline (below). path: a file of metrics, a checkpoint, or a
 * directory of checkpoints. */
zero_status_t page_read_run(const char *path, struct json_t *runs);

/* ---- page timeline ---- */
/* One step of a run's trace, for a report. */

struct json_t;

/* Adds to a run (page_read_run) that says where its trace is, if that can be read:
 *
 *     "timeline": {"file": ..., "step": 7, "spans": [{what a trace has of a span}, ...]}
 *
 * Of the steps that are in both files it takes the one whose step_ms is the median. A trace of other ranks, or one that
 * is older than the run, is of another run: a line says that it is left out. */
void page_read_timeline(struct json_t *run);

/* ---- page ---- */

/* Writes options->output. A run is a file of metrics, or a checkpoint or a directory of them, whose state.json
 * says what the configuration was and where the metrics are. The trace that the run's metrics name is read, too, if it
 * is there. Called on rank 0. */
zero_status_t page_write(const report_options_t *options);

/* page.html: styles, an empty script of type application/json, which the runs are written to, and the script that draws
 * them. Plain SVG, no library. */
extern const char page_html[];

#endif
