/* plan_print.h - the three forms in which --plan shows its report: plan_bytes.c, plan_people.c, plan_json.c. */
#ifndef ZEROTRAIN_PLAN_PLAN_PRINT_H
#define ZEROTRAIN_PLAN_PLAN_PRINT_H

#include "train/plan/plan_report.h"

void plan_print_bytes(const plan_report_t *report);  /* exact, a row each */
void plan_print_people(const plan_report_t *report); /* GiB, and whether it fits */
zero_status_t plan_print_json(const plan_report_t *report);

#endif
