/* plan_report.c - what follows from a plan's numbers, in all forms in which it is shown. See plan_report.h. */
#include "train/plan/plan_report.h"

#include <string.h>

bool plan_hosts_are_alike(const plan_report_t *report)
{
    const plan_ranks_t *ranks = &report->ranks;
    const plan_traffic_t *traffic = &report->traffic;
    bool alike = true;
    for (int host = 1; host < ranks->n_hosts; host++)
        alike = alike && memcmp(traffic->received[host], traffic->received[0], sizeof traffic->received[0]) == 0 &&
                memcmp(traffic->sent[host], traffic->sent[0], sizeof traffic->sent[0]) == 0;
    return alike;
}

plan_pcie_t plan_pcie(const plan_report_t *report, int stage)
{
    const options_t *o = report->options;
    uint64_t pinned = report->least[stage].pinned_bytes;
    if (pinned == 0)
        return (plan_pcie_t){0};
    if (o->zero.offload_update != ZERO_OFFLOAD_UPDATE_HOST) /* all of the state, there and back */
        return (plan_pcie_t){.to_gpu = pinned, .to_host = pinned};
    double ratio = o->zero.offload_ratio == (double)ZERO_OFFLOAD_AUTO ? 1.0 : o->zero.offload_ratio;
    uint64_t n_elems = (uint64_t)(ratio * (double)report->n_params / (double)report->ranks.n);
    return (plan_pcie_t){.to_gpu = n_elems * zero_dtype_size((zero_dtype_t)o->train.precision),
                         .to_host = n_elems * sizeof(float)};
}

uint64_t plan_save_copy_bytes(const plan_report_t *report)
{
    const options_t *o = report->options;
    bool copies = o->checkpoint.async && (o->checkpoint.dir[0] || o->checkpoint.memory_every > 0);
    uint64_t n = (uint64_t)report->ranks.n;
    return copies ? 3 * sizeof(float) * ((report->n_params + n - 1) / n) : 0;
}
