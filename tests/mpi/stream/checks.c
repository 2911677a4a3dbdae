/* checks.c - what every run of stream_cases holds beside its bits: spans one after another, bytes as planned, equal
 * parameters on all ranks. */
#include <string.h>

#include "tests/mpi/settings.h"
#include "tests/mpi/stream/cases.h"
#include "tests/support/async/async_device.h"

static bool sends_messages(const run_t *run)
{
    return strcmp(zero_comm_name(run->comm), "mpi") == 0;
}

/* Checks a span. Each kind of work belongs to one stream, so its spans follow each other. One rank waits only for its
 * host, and for a unit's new parameters only when it reaches the unit. */
void on_span(void *user, const zero_trace_span_t *span)
{
    run_t *run = user;
    CHECK(span->end_ms >= span->begin_ms && span->begin_ms >= run->ended_ms[span->work] - 1e-6,
          "step %d: %s of unit %d begins %g ms before the one before it ends", (int)span->step,
          zero_work_name(span->work), span->unit, run->ended_ms[span->work] - span->begin_ms);
    CHECK((span->wait == ZERO_WAIT_NONE) == (span->work != ZERO_WORK_WAIT) && (unsigned)span->wait < ZERO_N_WAITS,
          "step %d: %s of unit %d waits for %d", (int)span->step, zero_work_name(span->work), span->unit,
          (int)span->wait);
    const bool may_be_early = run->s->backward && span->phase == ZERO_PHASE_BACKWARD;
    CHECK((span->work != ZERO_WORK_UPDATE || span->phase == ZERO_PHASE_UPDATE || may_be_early) &&
              (span->work != ZERO_WORK_COMPUTE || span->phase != ZERO_PHASE_UPDATE),
          "step %d: %s of unit %d is of phase %d", (int)span->step, zero_work_name(span->work), span->unit,
          (int)span->phase);
    run->ended_ms[span->work] = span->end_ms;
    run->n_spans[span->work]++;
    if (span->work == ZERO_WORK_WAIT && span->step != 0)
        run->waited_ms[span->wait == ZERO_WAIT_OFFLOAD] += span->end_ms - span->begin_ms;
    if (span->work == ZERO_WORK_WAIT && span->unit > 0 && zero_comm_size(run->comm) == 1)
        CHECK(run->computed == span->unit - 1, "step %d: waits for unit %d behind the compute of unit %d",
              (int)span->step, span->unit, run->computed);
    if (span->work == ZERO_WORK_COMPUTE)
        run->computed = span->unit;
}

/* Settles what an engine decides by itself: the host updates if memory is not pinned and the device's update was not
 * requested, and sums leave if the plan does not fit with them. */
static zero_config_t settle(const run_t *run, zero_config_t config)
{
    const settings_t *s = run->s;
    zero_memory_t plan;
    if (!s->pins && config.offload_update == ZERO_OFFLOAD_UPDATE_AUTO)
        config.offload_update = ZERO_OFFLOAD_UPDATE_HOST;
    if (!s->is_async || config.offload_grads != ZERO_OFFLOAD_GRADS_AUTO || s->available == 0)
        return config;
    OK(zero_plan(run->toy.model, &config, ZERO_DEVICE_CUDA, zero_comm_get_kind(run->comm), zero_comm_size(run->comm),
                 &plan));
    if (zero_memory_total(&plan) > (uint64_t)s->available)
        config.offload_grads = ZERO_OFFLOAD_GRADS_HOST;
    return config;
}

/* Compares what was copied in a step with what is planned, unless other passes were between the steps, or gradients may
 * have been staged in idle activations. */
void check_pcie_bytes(const run_t *run, const zero_step_result_t *result)
{
    const settings_t *s = run->s;
    const int n_ranks = zero_comm_size(run->comm);
    int hosts[64] = {0};
    zero_traffic_t traffic[64] = {0};
    if (!s->is_async || s->offload < 0 || s->params < 0 || s->keep < 0 || s->activations > 0 || s->asks || s->cancels ||
        s->created > 0 || s->load || result->step % 4 != 1 || result->step == 1)
        return;
    const zero_config_t config = settle(run, make_config(s));
    OK(zero_plan_traffic(run->toy.model, &config, ZERO_DEVICE_CUDA, ZERO_COMM_AUTO, n_ranks, hosts, traffic));
    const uint64_t planned = traffic[0].to_gpu_bytes + traffic[0].to_host_bytes;
    CHECK(planned == result->pcie_bytes && (planned > 0) == (s->offload > 0),
          "step %llu copied %llu bytes over PCIe, planned are %llu", (unsigned long long)result->step,
          (unsigned long long)result->pcie_bytes, (unsigned long long)planned);
}

/* Checks that the engine holds what zero_plan says. What auto chose fits, and is not nothing in our cases. */
void check_memory(const run_t *run, const zero_config_t *of_run)
{
    zero_memory_t plan, held = zero_engine_memory(run->engine);
    const settings_t *s = run->s;
    const zero_config_t settled = settle(run, *of_run), *config = &settled;
    OK(zero_plan(run->toy.model, config, s->is_async ? ZERO_DEVICE_CUDA : ZERO_DEVICE_CPU,
                 zero_comm_get_kind(run->comm), zero_comm_size(run->comm), &plan));
    if (config->keep == ZERO_KEEP_AUTO && s->is_async)
        CHECK(zero_memory_total(&held) <= (uint64_t)s->available &&
                  held.bytes[ZERO_MEMORY_UNSHARDED_PARAMETERS] > plan.bytes[ZERO_MEMORY_UNSHARDED_PARAMETERS],
              "keep auto: %llu bytes held", (unsigned long long)zero_memory_total(&held));
    else if (config->offload_params == ZERO_OFFLOAD_AUTO)
        CHECK(zero_memory_total(&held) <= (uint64_t)s->available && held.pinned_bytes > 0 &&
                  held.bytes[ZERO_MEMORY_PARAMETERS] > plan.bytes[ZERO_MEMORY_PARAMETERS],
              "auto: %llu bytes held, %llu on the host", (unsigned long long)zero_memory_total(&held),
              (unsigned long long)held.pinned_bytes);
    else if (config->offload_ratio == ZERO_OFFLOAD_AUTO)
        CHECK(zero_memory_total(&held) <= (uint64_t)s->available && held.pinned_bytes > 0 &&
                  held.pinned_bytes < plan.pinned_bytes,
              "auto: %llu bytes held, %llu on the host", (unsigned long long)zero_memory_total(&held),
              (unsigned long long)held.pinned_bytes);
    else
        CHECK(memcmp(&plan, &held, sizeof plan) == 0, "plan %llu bytes, held %llu",
              (unsigned long long)zero_memory_total(&plan), (unsigned long long)zero_memory_total(&held));
}

void check_transport(const run_t *run)
{
    const char *name = zero_engine_transport(run->engine);
    const char *between = sends_messages(run)                                           ? "through-host"
                          : zero_comm_local_size(run->comm) < zero_comm_size(run->comm) ? "rails"
                                                                                        : "async";
    const char *want = zero_comm_size(run->comm) == 1 ? "self" : run->s->is_async ? between : zero_comm_name(run->comm);
    CHECK(strcmp(name, want) == 0, "what carries is %s, not %s", name, want);
}

/* Checks that every kind of work was reported; communication that compute waits for, such as messages between devices,
 * is reported as waits. */
void check_spans(const run_t *run, zero_work_t work)
{
    bool waits = (sends_messages(run) || !run->s->overlap) && (work == ZERO_WORK_GATHER || work == ZERO_WORK_REDUCE);
    CHECK(waits ? run->n_spans[work] == 0 : run->n_spans[work] >= run->s->steps, "%d spans of %s", run->n_spans[work],
          zero_work_name(work));
}

void check_same_hash_on_all_ranks(const run_t *run)
{
    double hashes[2] = {(double)(run->hash >> 32), (double)(run->hash & 0xffffffffu)}, sums[2];
    memcpy(sums, hashes, sizeof sums);
    OK(zero_comm_sum(run->comm, sums, 2));
    for (int i = 0; i < 2; i++)
        CHECK(sums[i] == hashes[i] * zero_comm_size(run->comm), "parameters differ by rank");
}
