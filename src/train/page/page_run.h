/* page_run.h - reads what a report shows of one run. */
#ifndef ZEROTRAIN_PAGE_RUN_H
#define ZEROTRAIN_PAGE_RUN_H

#include "zero.h"

struct json_t;

/* Appends to `runs` an object: name, rows (a list for each key, and hours), and as far as they are known config, run
 * (what the run says of itself, run_info.h) and timeline (page_timeline.h). path: a file of metrics, a checkpoint, or a
 * directory of checkpoints. */
zero_status_t page_read_run(const char *path, struct json_t *runs);

#endif
