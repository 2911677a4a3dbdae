/* show_fit.h - prints what fit found: as text for people, as JSON for programs. */
#ifndef ZEROTRAIN_SHOW_FIT_H
#define ZEROTRAIN_SHOW_FIT_H

#include <jansson.h>
#include <stdio.h>

#include "train/planning/largest.h"
#include "train/planning/solve.h"

typedef struct fit_report {
    const fit_t *fit;
    const fit_result_t *result;
    fit_largest_t largest;
    uint64_t available; /* bytes of a device */
} fit_report_t;

/* Names of [model] recompute's values. */
const char *fit_recompute_name(int recompute);
/* Returns the value of [model] recompute with which a run chooses so. */
const char *fit_recompute_setting(const fit_choice_t *choice);
#define FIT_MIX_BYTES 64
/* Writes "light", or "20+8+4": so many of the blocks full, then light, then none. */
void fit_describe_recompute(const fit_choice_t *choice, int64_t layers, char text[FIT_MIX_BYTES]);
/* What amounts of memory are printed in: GiB, or MiB where the largest is less than one GiB. */
typedef struct fit_unit {
    const char *name;
    double bytes;
} fit_unit_t;
fit_unit_t fit_unit_of(uint64_t largest);
double fit_tokens_per_s(const fit_t *fit, const fit_point_t *point);

void fit_print_text(FILE *file, const fit_report_t *report);
zero_status_t fit_print_json(FILE *file, const fit_report_t *report);
/* Returns bytes by category as an object, for json_decref; NULL: no memory. */
json_t *fit_memory_json(const zero_memory_t *memory);

/* ---- fit svg ---- */
/* What fit found as a picture: a step's time over memory. */

/* Writes an SVG: a dot for each choice, a line through those of the frontier, a ring around the chosen one, the memory
 * that there is, and the chosen row's memory by category. An existing file is overwritten if it is an SVG. */
zero_status_t fit_write_svg(const char *path, const fit_report_t *report);

#endif
