/* page.h - zerotrain report: one HTML file that shows runs over each other. It needs no network and no other file. */
#ifndef ZEROTRAIN_PAGE_H
#define ZEROTRAIN_PAGE_H

#include "train/options/options.h"

/* Writes options->report.output. A run is a file of metrics, or a checkpoint or a directory of them, whose state.json
 * says what the configuration was and where the metrics are. The trace that the run's metrics name is read, too, if it
 * is there. Called on rank 0. */
zero_status_t page_write(const options_t *options);

/* What is before the data, and the two parts of the script behind them. */
extern const char page_head[], page_charts[], page_sections[];

#endif
