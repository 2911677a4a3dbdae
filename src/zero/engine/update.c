/* update.c - the end of a step: global norm, clipping, AdamW on what this rank holds, new weights to everyone.
 *
 * What must hold: every rank computes the same norm from the same numbers in the same order, so every rank clips, skips
 * and scales alike; weights change only when the norm is finite; nobody's shard is rewritten while a peer may still
 * read it (the fence before the update) and nobody reads it before it is whole (the fence in
 * zero_engine_publish_params). All of it is decided on the device: the host learns the outcome in zero_step_wait, when
 * the next step may long be queued.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "zero/engine/engine.h"
#include "base/log.h"

/* ---- what AdamW walks over ---- */

static int by_state(const void *a, const void *b)
{
    uint64_t at_a = ((const zero_adam_segment_t *)a)->state, at_b = ((const zero_adam_segment_t *)b)->state;
    return (at_a > at_b) - (at_a < at_b);
}

/* One segment a tensor whose state is on the device; padding between tensors belongs to none and stays zero. Returns
 * how many. */
static size_t build_segments(const zero_engine_t *engine, zero_adam_segment_t *segments)
{
    size_t n = 0;
    for (zero_tensor_t t = 0; t < engine->model->n_tensors; t++)
        if (!zero_offload_has(engine, engine->model->tensors[t].owner))
            n += zero_engine_segment(engine, t, &segments[n]);
    qsort(segments, n, sizeof *segments, by_state);
    return n;
}

/* The units that the next pass asks for at once: where others transfer meanwhile, they are updated first. */
static zero_unit_t count_early_units(const zero_engine_t *engine)
{
    zero_unit_t n_on_device = engine->plan.host.first;
    if (!engine->overlapped || !engine->plan.stage.shard_state)
        return 0;
    /* Any int from 0 is a prefetch, so prefetch + 1 may overflow. */
    return engine->config.prefetch < n_on_device ? engine->config.prefetch + 1 : n_on_device;
}

/* Where their state ends. */
static uint64_t early_end(const zero_engine_t *engine)
{
    zero_unit_t n_units = engine->n_early_units;
    return n_units < engine->layout.n_units ? engine->layout.units[n_units].shard_offset : engine->plan.state_elems;
}

static zero_step_scratch_t *scratch(const zero_engine_t *engine)
{
    return zero_engine_private(engine, engine->plan.step_scratch);
}

const float *zero_loss_scale(const zero_engine_t *engine)
{
    return engine ? &scratch(engine)->state.loss_scale : NULL;
}

/* From the host, outside steps. */
static zero_status_t set_step_state(zero_engine_t *engine, const zero_step_state_t *state)
{
    ZERO_TRY(zero_device_synchronize(engine->device));
    ZERO_TRY(zero_device_copy(engine->device, &scratch(engine)->state, state, sizeof *state, engine->gather_stream));
    return zero_device_synchronize(engine->device);
}

zero_status_t zero_engine_prepare_steps(zero_engine_t *engine)
{
    zero_adam_segment_t *segments = calloc((size_t)engine->model->n_tensors, sizeof *segments);
    if (!segments)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for %d segments", engine->model->n_tensors);
    engine->n_segments = build_segments(engine, segments);
    engine->n_early_units = count_early_units(engine);
    while (engine->n_early_segments < engine->n_segments &&
           segments[engine->n_early_segments].state < early_end(engine))
        engine->n_early_segments++;
    zero_status_t status = zero_device_copy(engine->device, zero_engine_private(engine, engine->plan.segments),
                                            segments, engine->n_segments * sizeof *segments, NULL);
    if (status == ZERO_OK)
        status = zero_device_synchronize(engine->device);
    free(segments);
    ZERO_TRY(status);
    const zero_config_t *config = &engine->config;
    bool is_fp16 = config->dtype == ZERO_FP16;
    engine->rules = (zero_step_rules_t){
        .beta1 = config->beta1,
        .beta2 = config->beta2,
        .eps = config->eps,
        .grad_clip = config->grad_clip,
        .dynamic_loss_scale = is_fp16,
        .loss_scale_window = (uint32_t)config->loss_scale_window,
        .loss_scale_hysteresis = (uint32_t)config->loss_scale_hysteresis,
    };
    return set_step_state(engine, &(zero_step_state_t){.loss_scale = is_fp16 ? config->initial_loss_scale : 1.0f});
}

/* ---- the step ---- */

void zero_set_notice(zero_engine_t *engine, uint32_t notice)
{
    if (engine)
        engine->notice = notice;
}

/* Only when it is another than before: it costs a step nothing. */
static zero_status_t write_notice(zero_engine_t *engine, uint32_t *in_window, zero_stream_t stream)
{
    uint32_t *leaving = &engine->notices[engine->step % ZERO_MAX_STEPS_IN_FLIGHT];
    if (engine->notice == engine->notice_in_window)
        return ZERO_OK;
    *leaving = engine->notice_in_window = engine->notice;
    return zero_device_copy(engine->device, in_window, leaving, sizeof *leaving, stream);
}

/* This rank's sum of squares, what all must agree upon, its loss and notice into the window, for all ranks to read;
 * then all ranks' here, in rank order. The fence between the two also says that every rank has gathered what it wanted
 * of this step's weights. */
static zero_status_t all_gather_contributions(zero_engine_t *engine, float lr, const double *local_loss,
                                              zero_stream_t stream)
{
    zero_device_t *device = engine->device;
    uint64_t offset = engine->plan.contribution;
    zero_contribution_t *mine = (void *)((unsigned char *)engine->window.local + offset);
    const zero_agreed_t agreed = {.calls = engine->comm->paired, .lr = lr};
    ZERO_TRY(device->kernels->contribute(zero_engine_private(engine, engine->plan.partials), engine->n_partials,
                                         &agreed, mine, stream));
    ZERO_TRY(zero_device_copy(device, &mine->loss, local_loss ? local_loss : &scratch(engine)->no_loss,
                              sizeof mine->loss, stream));
    ZERO_TRY(write_notice(engine, &mine->notice, stream));
    ZERO_TRY(zero_engine_fence(engine, stream));
    return engine->comm->ops->all_gather(engine->comm, ZERO_LANE_STEP, &engine->window, offset, 0,
                                         zero_engine_private(engine, engine->plan.contributions), sizeof *mine, stream);
}

/* AdamW over segments first, first + 1 ..., which lie in [begin, end) of the state. */
static zero_status_t update_range(zero_engine_t *engine, size_t first, size_t n_segments, uint64_t begin, uint64_t end,
                                  zero_stream_t stream)
{
    const zero_config_t *config = &engine->config;
    const zero_adam_segment_t *segments = zero_engine_private(engine, engine->plan.segments);
    zero_adam_t adam = {
        .param_dtype = config->dtype,
        .param = zero_engine_params(engine),
        .master_lo = config->dtype == ZERO_FP32 ? NULL : zero_engine_private(engine, engine->plan.low),
        .m = zero_engine_private(engine, engine->plan.m),
        .v = zero_engine_private(engine, engine->plan.v),
        .grad = zero_engine_reduced_grads(engine),
        .segments = segments + first,
        .n_segments = n_segments,
        .state_begin = begin,
        .state_end = end,
        .scalars = &scratch(engine)->scalars,
    };
    return n_segments > 0 ? engine->device->kernels->adam(&adam, stream) : ZERO_OK;
}

static zero_status_t update(zero_engine_t *engine, zero_stream_t stream)
{
    size_t n_early = engine->n_early_segments;
    uint64_t split = early_end(engine);
    ZERO_TRY(update_range(engine, 0, n_early, 0, split, stream));
    if (engine->n_early_units > 0)
        ZERO_TRY(zero_engine_publish_early(engine, stream));
    return update_range(engine, n_early, engine->n_segments - n_early, split, engine->plan.state_elems, stream);
}

zero_status_t zero_engine_begin_step(zero_engine_t *engine, zero_stream_t stream)
{
    int at = (int)(engine->step % ZERO_N_STEPS_TIMED);
    engine->timed[at].follows = engine->step > engine->n_steps_waited;
    zero_timeline_set_in_step(engine->timeline, true);
    return engine->device->ops->event_record(engine->device, engine->timed[at].began, stream);
}

static zero_status_t check_step(const zero_engine_t *engine, float lr)
{
    if (engine->in_pass || engine->micro_step != engine->config.micro_steps)
        return zero_fail(ZERO_ERROR_ORDER, "zero_step after %d of %d micro-steps%s", engine->micro_step,
                         engine->config.micro_steps, engine->in_pass ? ", inside a pass" : "");
    if (engine->step - engine->n_steps_waited == ZERO_MAX_STEPS_IN_FLIGHT)
        return zero_fail(ZERO_ERROR_ORDER, "zero_step with %d results unread: call zero_step_wait",
                         ZERO_MAX_STEPS_IN_FLIGHT);
    if (!isfinite(lr))
        return zero_fail(ZERO_ERROR_ARGUMENT, "zero_step: a learning rate of %g would be in every weight", (double)lr);
    return ZERO_OK;
}

zero_status_t zero_step(zero_engine_t *engine, float lr, const double *local_loss, zero_stream_t stream)
{
    ZERO_REQUIRE(engine);
    zero_device_t *device = engine->device;
    int in_flight = (int)(engine->step % ZERO_MAX_STEPS_IN_FLIGHT), span;
    zero_step_scratch_t *on_device = scratch(engine);
    ZERO_TRY(check_step(engine, lr));
    zero_engine_enter_step(engine, lr);

    ZERO_TRY(zero_engine_finish_reductions(engine, stream));
    if (engine->overlapped && !engine->plan.stage.shard_state) {
        ZERO_TRY(zero_engine_record(engine, engine->reduced_grads_ready, engine->gather_stream));
        ZERO_TRY(zero_engine_compute_wait(engine, -1, engine->reduced_grads_ready, stream));
    }
    ZERO_TRY(all_gather_contributions(engine, lr, local_loss, stream));
    ZERO_TRY(zero_engine_begin_span(engine, ZERO_WORK_UPDATE, -1, stream, &span));
    ZERO_TRY(device->kernels->decide_step(&engine->rules, lr, zero_engine_private(engine, engine->plan.contributions),
                                          engine->comm->size, &on_device->state, &on_device->scalars,
                                          &engine->outcomes[in_flight], stream));
    if (engine->offload)
        ZERO_TRY(zero_offload_update(engine, stream));
    ZERO_TRY(update(engine, stream));
    ZERO_TRY(zero_timeline_end(engine->timeline, span, stream));
    ZERO_TRY(zero_engine_publish_params(engine, stream));
    ZERO_TRY(device->ops->event_record(device, engine->timed[engine->step % ZERO_N_STEPS_TIMED].ended, stream));
    zero_timeline_set_in_step(engine->timeline, false);
    engine->step++;
    engine->micro_step = 0;
    return ZERO_OK;
}

/* What the device compared, since the host did not wait: with the same numbers on every rank. */
static zero_status_t check_agreed(const zero_engine_t *engine, const zero_step_outcome_t *outcome)
{
    unsigned long long step = engine->n_steps_waited;
    if (outcome->odd_rank == 0)
        return ZERO_OK;
    if (outcome->odd_lr)
        return zero_fail_alike(ZERO_ERROR_MISMATCH,
                               "ranks call different things: rank %u is in zero_step(engine %u, step %llu, lr %.9g), "
                               "rank 0 is in zero_step(engine %u, step %llu, lr %.9g); nothing was updated",
                               outcome->odd_rank, engine->number, step, (double)outcome->lr_of_odd, engine->number,
                               step, (double)outcome->lr);
    return zero_fail_alike(
        ZERO_ERROR_MISMATCH,
        "ranks call different things: rank %u came to zero_step(engine %u, step %llu) by other calls "
        "than rank 0 (zero_begin, zero_acquire, zero_grad_ready): another pass, unit or micro-step; "
        "nothing was updated",
        outcome->odd_rank, engine->number, step);
}

zero_status_t zero_step_wait(zero_engine_t *engine, zero_step_result_t *result)
{
    ZERO_REQUIRE(engine);
    ZERO_REQUIRE(result);
    int in_flight = (int)(engine->n_steps_waited % ZERO_MAX_STEPS_IN_FLIGHT);
    int at = (int)(engine->n_steps_waited % ZERO_N_STEPS_TIMED),
        before = (at + ZERO_N_STEPS_TIMED - 1) % ZERO_N_STEPS_TIMED;
    zero_event_t begin = engine->timed[at].follows ? engine->timed[before].ended : engine->timed[at].began;
    zero_event_t end = engine->timed[at].ended;
    double exposed_ms, step_ms;
    char what[32];
    if (engine->step == engine->n_steps_waited)
        return zero_fail(ZERO_ERROR_ORDER, "zero_step_wait without an unread step");
    snprintf(what, sizeof what, "step %llu", (unsigned long long)engine->n_steps_waited + 1);
    ZERO_TRY(zero_device_await(engine->device, engine->host_comm, end, what));
    ZERO_TRY(engine->device->ops->event_elapsed_ms(engine->device, begin, end, &step_ms));
    engine->n_steps_waited++;
    ZERO_TRY(zero_timeline_harvest(engine->timeline, engine->n_steps_waited, &exposed_ms));
    const zero_step_outcome_t *outcome = &engine->outcomes[in_flight];
    engine->adam_step = outcome->adam_step;
    engine->stats.exposed_comm_ms += exposed_ms;
    ZERO_TRY(check_agreed(engine, outcome));
    *result = (zero_step_result_t){
        .step = engine->n_steps_waited,
        .loss = outcome->loss,
        .grad_norm = outcome->grad_norm,
        .loss_scale = outcome->loss_scale,
        .skipped = outcome->skipped != 0,
        .notice = outcome->notice,
        .step_ms = step_ms,
        .exposed_comm_ms = exposed_ms,
    };
    if (outcome->skipped_in_row >= (uint32_t)engine->config.max_skipped_steps)
        return zero_fail_alike(
            ZERO_ERROR_NONFINITE,
            "step %llu: gradients were not finite %u steps in a row; lower the learning rate or look "
            "at the data",
            (unsigned long long)result->step, outcome->skipped_in_row);
    return ZERO_OK;
}

uint64_t zero_get_adam_step(const zero_engine_t *engine)
{
    return engine ? engine->adam_step : 0;
}

zero_status_t zero_engine_check_between_steps(const zero_engine_t *engine, const char *call)
{
    if (engine->in_pass || engine->micro_step != 0)
        return zero_fail(ZERO_ERROR_ORDER, "%s inside a step: finish it first", call);
    return ZERO_OK;
}

zero_status_t zero_engine_check_no_step(const zero_engine_t *engine, const char *call)
{
    ZERO_TRY(zero_engine_check_between_steps(engine, call));
    if (engine->step != engine->n_steps_waited)
        return zero_fail(ZERO_ERROR_ORDER, "%s with a step under way: call zero_step_wait first", call);
    return ZERO_OK;
}

zero_status_t zero_engine_get_step_state(zero_engine_t *engine, const char *call, zero_step_state_t *state)
{
    ZERO_TRY(zero_engine_check_no_step(engine, call));
    ZERO_TRY(zero_device_synchronize(engine->device));
    ZERO_TRY(zero_device_copy(engine->device, state, &scratch(engine)->state, sizeof *state, engine->gather_stream));
    return zero_device_synchronize(engine->device);
}

zero_status_t zero_engine_set_step_state(zero_engine_t *engine, uint64_t step, const zero_step_state_t *state)
{
    ZERO_TRY(zero_engine_check_no_step(engine, "zero_load"));
    engine->step = engine->n_steps_waited = step;
    engine->adam_step = state->adam_step;
    return set_step_state(engine, state);
}

zero_status_t zero_set_adam_step(zero_engine_t *engine, uint64_t adam_step)
{
    zero_step_state_t state;
    ZERO_REQUIRE(engine);
    ZERO_TRY(zero_engine_get_step_state(engine, "zero_set_adam_step", &state));
    state.adam_step = adam_step;
    engine->adam_step = adam_step;
    return set_step_state(engine, &state);
}
