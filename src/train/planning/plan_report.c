/* plan_report.c - what follows from a plan's numbers, in all forms in which it is shown. See plan_report.h. */
#include "train/planning/plan_report.h"

#include <stdio.h>
#include <string.h>

bool plan_hosts_are_equal(const plan_report_t *report)
{
    const plan_ranks_t *ranks = &report->ranks;
    const plan_traffic_t *traffic = &report->traffic;
    bool equal = true;
    for (int host = 1; host < ranks->n_hosts; host++)
        equal = equal && memcmp(traffic->received[host], traffic->received[0], sizeof traffic->received[0]) == 0 &&
                memcmp(traffic->sent[host], traffic->sent[0], sizeof traffic->sent[0]) == 0;
    return equal;
}

void plan_add_stash(plan_report_t *report)
{
    const options_t *o = report->options;
    const uint64_t n = options_are_forward_only(o) ? 0 : (uint64_t)options_micro_steps(&o->train, report->ranks.n);
    for (int stage = 0; stage < PLAN_N_STAGES; stage++) {
        report->traffic.to_gpu[stage] += report->stash_bytes * n;
        report->traffic.to_host[stage] += report->stash_bytes * n;
    }
}

void plan_add_exchanges(const model_t *model, plan_report_t *report)
{
    const options_t *o = report->options;
    const uint64_t n = (uint64_t)options_micro_steps(&o->train, report->ranks.n);
    for (int stage = 0; stage < PLAN_N_STAGES; stage++)
        report->traffic.most_local[stage] += n * sequence_exchanged_bytes(model);
}

uint64_t plan_save_copy_bytes(const plan_report_t *report)
{
    const options_t *o = report->options;
    bool copies = o->checkpoint.async && (o->checkpoint.dir[0] || o->checkpoint.memory_every > 0);
    uint64_t n = (uint64_t)report->ranks.n;
    return copies ? 3 * sizeof(float) * ((report->n_saved + n - 1) / n) : 0;
}

/* ---- plan bytes ---- */
/* --plan's exact table: a name and a number of bytes for each stage. Scripts read these rows. */

static void print_bytes(const char *name, const uint64_t bytes[PLAN_N_STAGES])
{
    printf("%-20s", name);
    for (int stage = 0; stage < PLAN_N_STAGES; stage++)
        printf(" %15llu", (unsigned long long)bytes[stage]);
    printf("\n");
}

static void print_row(const char *name, const zero_memory_t plans[PLAN_N_STAGES],
                      uint64_t (*value)(const zero_memory_t *))
{
    uint64_t bytes[PLAN_N_STAGES];
    for (int stage = 0; stage < PLAN_N_STAGES; stage++)
        bytes[stage] = value(&plans[stage]);
    print_bytes(name, bytes);
}

static uint64_t pinned_bytes(const zero_memory_t *plan)
{
    return plan->pinned_bytes;
}

static void print_memory(const plan_report_t *report)
{
    const options_t *options = report->options;
    const zero_memory_t *plans = report->least;
    char set[24] = "auto";
    if (options->zero.stage != STAGE_AUTO)
        snprintf(set, sizeof set, "%lld", (long long)options->zero.stage);
    bool on_gpus = options->device.type != ZERO_DEVICE_CPU, hosts = plans[1].pinned_bytes > report->stash_bytes;
    char shared[64] = "";
    if (options_sequence_ranks(&options->train) > 1)
        snprintf(shared, sizeof shared, "; %lld ranks share each sequence", (long long)options->train.sequence_ranks);
    printf("bytes held by each of %d rank%s, %.2fM parameters, %s, on %s; [zero] stage is %s%s%s\n", report->ranks.n,
           report->ranks.n == 1 ? "" : "s", (double)report->n_params * 1e-6,
           zero_dtype_name((zero_dtype_t)options->train.precision), on_gpus ? "GPUs" : "the CPU", set, shared,
           options_are_forward_only(options) ? "; forward only" : "");
    printf("%-20s %15s %15s %15s %15s\n", "", "stage 0", "stage 1", "stage 2", "stage 3");
    for (int c = 0; c < ZERO_MEMORY_N_CATEGORIES; c++) {
        uint64_t bytes[PLAN_N_STAGES];
        for (int stage = 0; stage < PLAN_N_STAGES; stage++)
            bytes[stage] = plans[stage].bytes[c];
        print_bytes(zero_memory_name((zero_memory_category_t)c), bytes);
    }
    print_row("total", plans, zero_memory_total);
    if (on_gpus)
        printf("plus CUDA, its libraries and graphs: about 590000000 (seen on H200s)\n");
    if (plans[1].pinned_bytes > 0)
        print_row("pinned host memory", plans, pinned_bytes);
    if (options->zero.offload_ratio == (double)ZERO_OFFLOAD_AUTO && hosts) {
        print_row("total, no offload", report->without, zero_memory_total);
        printf("with offload_ratio = auto, the total is between these two: as little is offloaded as the GPUs' free "
               "memory allows\n");
    }
    if (options->zero.keep == ZERO_KEEP_AUTO && on_gpus) {
        print_row("total, all kept", report->kept, zero_memory_total);
        printf("with keep = auto, stage 3 keeps as many of the last blocks as the GPUs' free memory allows\n");
    }
}

static void print_traffic(const plan_report_t *report)
{
    const plan_ranks_t *ranks = &report->ranks;
    const plan_traffic_t *traffic = &report->traffic;
    if (ranks->n == 1)
        return;
    printf("bytes received in a step, %d ranks on %d host%s\n", ranks->n, ranks->n_hosts,
           ranks->n_hosts == 1 ? "" : "s");
    print_bytes("rank, from its host", traffic->most_local);
    if (ranks->n_hosts == 1)
        return;
    print_bytes("rank, from others", traffic->most_received);
    const bool equal = plan_hosts_are_equal(report);
    for (int host = 0; host < (equal ? 1 : ranks->n_hosts); host++) {
        char received[32] = "host, received", sent[32] = "host, sent";
        if (!equal) {
            snprintf(received, sizeof received, "host %d, received", host);
            snprintf(sent, sizeof sent, "host %d, sent", host);
        }
        print_bytes(received, traffic->received[host]);
        print_bytes(sent, traffic->sent[host]);
    }
}

void plan_print_bytes(const plan_report_t *report)
{
    print_memory(report);
    if (!options_are_forward_only(report->options))
        print_traffic(report);
    if (report->options->checkpoint.memory_every > 0)
        printf("memory checkpoint    %15llu bytes in each host's memory, and as many again while the next is written\n",
               (unsigned long long)report->checkpoint_bytes);
}
