/* step.c - the end of a step: global norm, clipping, AdamW on what this rank holds, new weights to everyone.
 *
 * What must hold: every rank computes the same norm from the same numbers in the same order, so every rank clips, skips
 * and scales alike; weights change only when the norm is finite; nobody's shard is rewritten while a peer may still
 * read it (the fence before the update) and nobody reads it before it is whole (the fence in
 * zero_engine_publish_params).
 */
#include <math.h>
#include <stdlib.h>

#include "zero/engine.h"
#include "zero/log.h"

/* fp16: the scale doubles after this many good steps in a row (PyTorch's GradScaler takes 2000, Megatron 1000). */
#define LOSS_SCALE_WINDOW 1000
#define LOSS_SCALE_MAX 16777216.0f

/* ---- what AdamW walks over ---- */

void zero_engine_held(const zero_engine_t *engine, zero_unit_t unit, uint64_t *begin, uint64_t *end)
{
    const zero_unit_layout_t *layout = &engine->layout.units[unit];
    *begin = engine->plan.stage.shard_state ? (uint64_t)engine->comm->rank * layout->shard_elems : 0;
    *end = engine->plan.stage.shard_state ? *begin + layout->shard_elems : layout->flat_elems;
}

zero_adam_segment_t zero_engine_place(const zero_engine_t *engine, zero_unit_t unit, uint64_t at)
{
    const zero_unit_layout_t *layout = &engine->layout.units[unit];
    const zero_stage_t *stage = &engine->plan.stage;
    uint64_t in_full = layout->flat_offset + at;
    uint64_t in_shard = layout->shard_offset + (at - (uint64_t)engine->comm->rank * layout->shard_elems);
    return (zero_adam_segment_t){
        .param = stage->shard_params ? in_shard : in_full,
        .state = stage->shard_state ? in_shard : in_full,
        .grad = stage->sums_are_full ? in_full : in_shard,
        .unit = (uint32_t)unit,
    };
}

static int by_state(const void *a, const void *b)
{
    uint64_t at_a = ((const zero_adam_segment_t *)a)->state, at_b = ((const zero_adam_segment_t *)b)->state;
    return (at_a > at_b) - (at_a < at_b);
}

/* One segment a tensor; padding between tensors belongs to none and stays zero. Returns how many. */
static size_t build_segments(const zero_engine_t *engine, zero_adam_segment_t *segments)
{
    size_t n = 0;
    for (zero_tensor_t t = 0; t < engine->model->n_tensors; t++) {
        const zero_tensor_decl_t *tensor = &engine->model->tensors[t];
        uint64_t begin, end;
        zero_engine_held(engine, tensor->owner, &begin, &end);
        zero_span_t span = zero_layout_span(&engine->layout, engine->model, t, begin, end);
        if (span.n_elems == 0)
            continue;
        segments[n] = zero_engine_place(engine, tensor->owner, span.flat_offset);
        segments[n].n_elems = span.n_elems;
        segments[n].decay = tensor->decay ? engine->config.weight_decay : 0.0f;
        n++;
    }
    qsort(segments, n, sizeof *segments, by_state);
    return n;
}

static zero_step_scratch_t *device_scratch(const zero_engine_t *engine)
{
    return zero_engine_private(engine, engine->plan.step_scratch);
}

const float *zero_loss_scale(const zero_engine_t *engine)
{
    return &device_scratch(engine)->loss_scale;
}

static zero_status_t upload_loss_scale(zero_engine_t *engine, zero_stream_t stream)
{
    engine->scratch->loss_scale = engine->loss_scale;
    return zero_device_copy(engine->device, &device_scratch(engine)->loss_scale, &engine->scratch->loss_scale,
                            sizeof(float), stream);
}

zero_status_t zero_engine_prepare_steps(zero_engine_t *engine)
{
    zero_adam_segment_t *segments = calloc((size_t)engine->model->n_tensors, sizeof *segments);
    if (!segments)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for %d segments", engine->model->n_tensors);
    engine->n_segments = build_segments(engine, segments);
    zero_status_t status = zero_device_copy(engine->device, zero_engine_private(engine, engine->plan.segments),
                                            segments, engine->n_segments * sizeof *segments, NULL);
    if (status == ZERO_OK)
        status = upload_loss_scale(engine, NULL);
    if (status == ZERO_OK)
        status = zero_device_synchronize(engine->device);
    free(segments);
    return status;
}

/* ---- the step ---- */

/* This rank's sum of squares and loss from the device, then all ranks' added in rank order: one small collective brings
 * all of them to everyone. The one place in a step where the host waits. */
static zero_status_t combine(zero_engine_t *engine, const double *local_loss, zero_stream_t stream, double total[2])
{
    zero_device_t *device = engine->device;
    zero_step_scratch_t *on_device = device_scratch(engine), *on_host = engine->scratch;
    ZERO_TRY(device->kernels->sum_partials(zero_engine_private(engine, engine->plan.partials), engine->n_partials,
                                           &on_device->contribution.sum_of_squares, stream));
    ZERO_TRY(zero_device_copy(device, &on_host->contribution.sum_of_squares, &on_device->contribution.sum_of_squares,
                              sizeof(double), stream));
    on_host->contribution.loss = 0.0;
    if (local_loss)
        ZERO_TRY(zero_device_copy(device, &on_host->contribution.loss, local_loss, sizeof(double), stream));
    ZERO_TRY(device->ops->stream_synchronize(device, stream));

    double mine[2] = {on_host->contribution.sum_of_squares, on_host->contribution.loss};
    ZERO_TRY(engine->comm->ops->host_all_gather(engine->comm, mine, sizeof mine, engine->contributions));
    total[0] = engine->contributions[0][0];
    total[1] = engine->contributions[0][1];
    for (int r = 1; r < engine->comm->size; r++) {
        total[0] += engine->contributions[r][0];
        total[1] += engine->contributions[r][1];
    }
    return ZERO_OK;
}

/* fp16's dynamic loss scale: halved when a step overflowed, doubled after a window of good ones. */
static zero_status_t update_loss_scale(zero_engine_t *engine, bool skipped, zero_stream_t stream)
{
    if (engine->config.dtype != ZERO_FP16)
        return ZERO_OK;
    if (!skipped && ++engine->good_steps < LOSS_SCALE_WINDOW)
        return ZERO_OK;
    engine->loss_scale =
        skipped ? fmaxf(engine->loss_scale * 0.5f, 1.0f) : fminf(engine->loss_scale * 2.0f, LOSS_SCALE_MAX);
    engine->good_steps = 0;
    return upload_loss_scale(engine, stream);
}

static zero_status_t update(zero_engine_t *engine, float lr, float grad_norm, zero_stream_t stream)
{
    const zero_config_t *config = &engine->config;
    zero_adam_scalars_t *scalars = &engine->scratch->scalars;
    zero_adam_scalars_t *on_device = &device_scratch(engine)->scalars;
    zero_adam_scalars_compute(scalars, lr, config->beta1, config->beta2, config->eps, grad_norm, config->grad_clip,
                              engine->loss_scale, engine->adam_step + 1);
    ZERO_TRY(zero_device_copy(engine->device, on_device, scalars, sizeof *scalars, stream));
    zero_adam_t adam = {
        .param_dtype = config->dtype,
        .param = zero_engine_params(engine),
        .low = config->dtype == ZERO_FP32 ? NULL : zero_engine_private(engine, engine->plan.low),
        .m = zero_engine_private(engine, engine->plan.m),
        .v = zero_engine_private(engine, engine->plan.v),
        .grad = zero_engine_sums(engine),
        .segments = zero_engine_private(engine, engine->plan.segments),
        .n_segments = engine->n_segments,
        .state_begin = 0,
        .state_end = engine->plan.state_elems,
        .scalars = on_device,
    };
    ZERO_TRY(zero_engine_fence(engine, stream));
    ZERO_TRY(engine->device->kernels->adam(&adam, stream));
    engine->adam_step++;
    return zero_engine_publish_params(engine, stream);
}

static zero_status_t check_step_order(const zero_engine_t *engine)
{
    if (engine->in_pass || engine->micro_step != engine->config.micro_steps)
        return zero_fail(ZERO_ERROR_ORDER, "zero_step after %d of %d micro-steps%s", engine->micro_step,
                         engine->config.micro_steps, engine->in_pass ? ", inside a pass" : "");
    if (engine->n_results == ZERO_MAX_STEPS_IN_FLIGHT)
        return zero_fail(ZERO_ERROR_ORDER, "zero_step with %d results unread: call zero_step_wait",
                         ZERO_MAX_STEPS_IN_FLIGHT);
    return ZERO_OK;
}

zero_status_t zero_step(zero_engine_t *engine, float lr, const double *local_loss, zero_stream_t stream)
{
    ZERO_TRY(check_step_order(engine));
    double total[2] = {0}; /* sum of squares, loss */

    ZERO_TRY(combine(engine, local_loss, stream, total));
    float grad_norm = (float)(sqrt(total[0]) / (double)engine->loss_scale);
    bool skipped = !isfinite(grad_norm);
    zero_step_result_t result = {
        .step = ++engine->step,
        .loss = (float)total[1],
        .grad_norm = grad_norm,
        .loss_scale = engine->loss_scale,
        .skipped = skipped,
    };
    if (!skipped) {
        /* Stage 0 updates everything everywhere, so every rank needs every sum. */
        if (!engine->plan.stage.shard_state && engine->comm->size > 1) {
            ZERO_TRY(zero_engine_fence(engine, stream));
            ZERO_TRY(zero_engine_gather_full(engine, engine->plan.sums, sizeof(float), stream));
        }
        ZERO_TRY(update(engine, lr, grad_norm, stream));
    }
    engine->skipped_in_row = skipped ? engine->skipped_in_row + 1 : 0;
    ZERO_TRY(update_loss_scale(engine, skipped, stream));
    engine->results[(engine->first_result + engine->n_results++) % ZERO_MAX_STEPS_IN_FLIGHT] = result;
    engine->micro_step = 0;
    return ZERO_OK;
}

zero_status_t zero_step_wait(zero_engine_t *engine, zero_step_result_t *result)
{
    if (engine->n_results == 0)
        return zero_fail(ZERO_ERROR_ORDER, "zero_step_wait without an unread step");
    *result = engine->results[engine->first_result];
    engine->first_result = (engine->first_result + 1) % ZERO_MAX_STEPS_IN_FLIGHT;
    engine->n_results--;
    if (engine->skipped_in_row >= engine->config.max_skipped_steps)
        return zero_fail_alike(
            ZERO_ERROR_NONFINITE,
            "step %llu: gradients were not finite %d steps in a row; lower the learning rate or look "
            "at the data",
            (unsigned long long)result->step, engine->skipped_in_row);
    return ZERO_OK;
}

uint64_t zero_get_adam_step(const zero_engine_t *engine)
{
    return engine->adam_step;
}

void zero_set_adam_step(zero_engine_t *engine, uint64_t adam_step)
{
    engine->adam_step = adam_step;
}
