/* fit_svg.h - what fit found as a picture: a step's time over memory. */
#ifndef ZEROTRAIN_FIT_FIT_SVG_H
#define ZEROTRAIN_FIT_FIT_SVG_H

#include "train/fit/show_fit.h"

/* Writes an SVG: a dot for each choice, a line through those of the frontier, a ring around the chosen one, the memory
 * that there is, and the chosen row's memory by category. An existing file is overwritten if it is an SVG. */
zero_status_t fit_write_svg(const char *path, const fit_report_t *report);

#endif
