/* parameters.c - parameters on their way to compute: which unit is in which unsharded buffer, and which gather compute
 * has yet to wait for.
 *
 * Stage 3 gathers a unit into an unsharded buffer ahead of its use. With two buffers:
 *
 *     gather stream   | gather A | gather B  | gather C  | gather D  |
 *     caller's stream            | forward A | forward B | forward C | forward D |
 *     buffer 0        | A .................. | C ................... |
 *     buffer 1                   | B ................... | D ................... |
 *
 * If config.shard_group makes groups, a rank gathers within its group. It holds a part of the group's copy and updates
 * one shard of that; the other groups send the rest before the unit's first gather after an update. Only zero_step
 * rewrites shards, after a fence that every rank reaches when its gathers are done. Offloaded parameters are fetched
 * from the host for every gather (gather_offloaded). Stages 1-2 gather every unit once, in place, after the update,
 * under the next forward pass; offloaded units, which are updated later, some way ahead of their use.
 *
 * The units that the next pass begins with are updated first. Each is published by a fence of its own and gathered
 * while the others are updated:
 *
 *     caller's stream    update 0 | update 1 | update the rest ................. | fence | forward 0 ...
 *     gather stream               | fence, gather 0 ... | fence, gather 1 ... |         | gather 2 ...
 */
#include "zero/step/parameters.h"

#include <stdlib.h>

#include "base/log.h"
#include "zero/plan/order.h"
#include "zero/runtime/addresses.h"
#include "zero/runtime/gather.h"
#include "zero/step/fp8_params.h"

/* ---- param address ---- */

static bool has_buffer(const zero_context_t *context, zero_unit_t flat)
{
    return flat >= zero_plan_first_unsharded(&context->plan, &context->layout);
}

/* Finds the unit's unsharded buffer. */
static zero_status_t buffer_of(const zero_context_t *context, const zero_unsharded_t *unsharded, zero_unit_t flat,
                               unsigned char **address)
{
    const zero_unsharded_buffer_t *buffer = zero_unsharded_find(unsharded, flat);
    ZERO_ASSERT(buffer);
    *address = zero_context_private(context, buffer->offset);
    return ZERO_OK;
}

zero_status_t zero_param_address(const zero_context_t *context, const zero_unsharded_t *unsharded, zero_unit_t flat,
                                 unsigned char **address)
{
    const zero_layout_t *layout = &context->layout;
    bool is_fp8 = zero_plan_gathers_fp8(&context->plan, layout, flat);
    if (has_buffer(context, flat)) {
        ZERO_TRY(buffer_of(context, unsharded, flat, address));
        if (is_fp8) /* the others are behind the matrices */
            *address += zero_layout_buffer_elems(layout, layout->units[flat].buffer_class);
    } else {
        bool is_sharded = is_fp8 && context->plan.stage.shard_state && context->comm->size > 1;
        *address = is_sharded ? zero_context_fp8_others(context, flat) : zero_context_params_of(context, flat);
    }
    return ZERO_OK;
}

zero_status_t zero_param_frozen_address(const zero_context_t *context, const zero_unsharded_t *unsharded,
                                        zero_unit_t flat, unsigned char **address)
{
    if (has_buffer(context, flat)) {
        ZERO_TRY(buffer_of(context, unsharded, flat, address));
        *address += context->plan.unsharded_frozen[context->layout.units[flat].buffer_class];
    } else {
        *address = zero_context_frozen_of(context, flat);
    }
    return ZERO_OK;
}

zero_status_t zero_param_fp8_address(const zero_context_t *context, const zero_unsharded_t *unsharded, zero_unit_t flat,
                                     uint8_t **address)
{
    if (has_buffer(context, flat))
        return buffer_of(context, unsharded, flat, address);
    *address = zero_context_window(context, zero_context_fp8_offset(context, flat));
    return ZERO_OK;
}

/* ---- parameters ---- */

/* A unit's full parameters. */
typedef enum gather_state {
    ACQUIRED,  /* not gathered yet, or acquired since their last gather */
    UNDER_WAY, /* compute has yet to wait for gathered[unit] */
    WAITED_FOR /* compute need not wait, and no acquire has come to them yet */
} gather_state_t;

struct zero_parameters {
    zero_context_t *context;
    zero_offload_t *offload;
    zero_fp8_params_t *fp8;           /* NULL: nothing is gathered in fp8 */
    zero_unsharded_t unsharded;       /* in private memory; stage 3 */
    zero_timed_event_t *buffer_freed; /* by buffer: the last use of the unit that had it; 0: there was none */
    zero_timed_event_t *gathered;     /* by unit, in the gather stream: its full parameters are here */
    gather_state_t *states;           /* by unit */
    bool *part_is_old;                /* by unit; stage 3 with several groups: other groups' ranks have updated it */
    bool *frozen_is_old;              /* the same: they have set its frozen tensors */
    zero_unit_t n_gathered;           /* stages 1-2: units whose gathers have been queued since weights changed */
    zero_unit_t n_early_units;
    zero_event_t staged;        /* in the stream that fetches: an offloaded unit's shard is in the window */
    zero_event_t may_stage;     /* in the gather stream: no peer reads the staging buffer that is filled next */
    uint64_t n_staged;          /* offloaded shards that were gathered through the window */
    zero_event_t early_updated; /* in the caller's stream: the early units that are published next are */
    zero_event_t published;     /* in the caller's stream: every rank's window has the new weights */
    bool published_is_pending;  /* the gather stream has yet to wait for it */
};

/* ---- creating ---- */

/* If parameters are gathered while others are updated, the units that the next pass acquires at once come first. */
static zero_unit_t count_early_units(const zero_context_t *context)
{
    zero_unit_t n_on_device = context->plan.host.first;
    if (!context->streams.overlapped || !context->plan.stage.shard_state || context->comm->size == 1)
        return 0;
    /* prefetch may be INT_MAX, so prefetch + 1 may overflow. */
    return context->config.prefetch < n_on_device ? context->config.prefetch + 1 : n_on_device;
}

static zero_status_t create_tables(zero_parameters_t *parameters)
{
    const zero_context_t *context = parameters->context;
    const zero_arena_plan_t *plan = &context->plan;
    size_t n_units = (size_t)context->layout.n_units;
    parameters->buffer_freed = calloc((size_t)plan->n_unsharded_params + 1, sizeof *parameters->buffer_freed);
    parameters->gathered = calloc(n_units, sizeof *parameters->gathered);
    parameters->states = calloc(n_units, sizeof *parameters->states);
    parameters->part_is_old = calloc(n_units, sizeof *parameters->part_is_old);
    parameters->frozen_is_old = calloc(n_units, sizeof *parameters->frozen_is_old);
    if (!parameters->buffer_freed || !parameters->gathered || !parameters->states || !parameters->part_is_old ||
        !parameters->frozen_is_old)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for the tables of %zu units", n_units);
    return zero_unsharded_create(&context->layout, plan->unsharded_param_counts, plan->unsharded_param_bytes,
                                 plan->unsharded_params, &parameters->unsharded);
}

zero_status_t zero_parameters_create(zero_context_t *context, zero_offload_t *offload, zero_parameters_t **parameters)
{
    zero_device_t *device = context->device;
    zero_status_t status;
    zero_parameters_t *made = calloc(1, sizeof *made);
    if (!made)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for an engine");
    made->context = context;
    made->offload = offload;
    made->n_gathered = context->layout.n_units;
    made->n_early_units = count_early_units(context);
    ZERO_TRY_GOTO(create_tables(made), fail);
    ZERO_TRY_GOTO(zero_fp8_params_create(context, &made->fp8), fail);
    ZERO_TRY_GOTO(device->ops->event_create(device, false, &made->staged), fail);
    ZERO_TRY_GOTO(device->ops->event_create(device, false, &made->may_stage), fail);
    ZERO_TRY_GOTO(device->ops->event_create(device, false, &made->early_updated), fail);
    ZERO_TRY_GOTO(device->ops->event_create(device, false, &made->published), fail);
    *parameters = made;
    return ZERO_OK;
fail:
    zero_parameters_destroy(made);
    return status;
}

void zero_parameters_destroy(zero_parameters_t *parameters)
{
    if (!parameters)
        return;
    zero_device_t *device = parameters->context->device;
    device->ops->event_destroy(device, parameters->published);
    device->ops->event_destroy(device, parameters->early_updated);
    device->ops->event_destroy(device, parameters->may_stage);
    device->ops->event_destroy(device, parameters->staged);
    zero_unsharded_destroy(&parameters->unsharded);
    free(parameters->frozen_is_old);
    free(parameters->part_is_old);
    zero_fp8_params_destroy(parameters->fp8);
    free(parameters->states);
    free(parameters->gathered);
    free(parameters->buffer_freed);
    free(parameters);
}

/* ---- gathers ---- */

/* Records the end of the gather that was just queued. Compute has yet to wait for it, unless both are in one stream. */
static zero_status_t note_gather(zero_parameters_t *parameters, zero_unit_t flat)
{
    zero_context_t *context = parameters->context;
    parameters->states[flat] = context->streams.overlapped ? UNDER_WAY : WAITED_FOR;
    return zero_streams_record_timed(context, &parameters->gathered[flat], context->streams.gather);
}

/* Makes the gather stream wait for the weights that the step's own fence published. */
static zero_status_t await_published(zero_parameters_t *parameters, zero_unit_t flat)
{
    zero_context_t *context = parameters->context;
    if (!parameters->published_is_pending || flat < parameters->n_early_units)
        return ZERO_OK;
    parameters->published_is_pending = false;
    return zero_streams_wait(context, context->streams.gather, parameters->published);
}

/* Publishes an offloaded unit before its first gather of the step. It is updated later than the step's own fence, so it
 * has one of its own, which every rank reaches when its shard has arrived. */
static zero_status_t publish_offloaded(zero_parameters_t *parameters, zero_unit_t flat, zero_stream_t gather_stream)
{
    zero_comm_t *comm = parameters->context->comm;
    bool is_new;
    if (!zero_plan_is_offloaded(&parameters->context->plan, flat))
        return ZERO_OK;
    ZERO_TRY(zero_offload_await_params(parameters->offload, flat, gather_stream, &is_new));
    if (!is_new)
        return ZERO_OK;
    ZERO_TRY(zero_fp8_params_refresh(parameters->fp8, flat, flat + 1, ZERO_LANE_GATHER, gather_stream));
    return comm->ops->fence(comm, ZERO_LANE_GATHER, gather_stream);
}

zero_status_t zero_parameters_await(zero_parameters_t *parameters, zero_unit_t flat, zero_stream_t stream)
{
    zero_context_t *context = parameters->context;
    if (context->comm->size == 1 && !has_buffer(context, flat)) /* nothing is gathered */
        return publish_offloaded(parameters, flat, stream);
    const bool waits = parameters->states[flat] == UNDER_WAY;
    const zero_wait_t wait = zero_plan_offloads_params(&context->plan, flat) ? ZERO_WAIT_OFFLOAD : ZERO_WAIT_GATHER;
    parameters->states[flat] = ACQUIRED;
    return !waits ? ZERO_OK : zero_streams_compute_wait_timed(context, wait, flat, parameters->gathered[flat], stream);
}

/* Once a unit's backward is queued, sums follow that wait for slices. The next unit's parameters, if they are under way
 * by then, are waited for at the same point: a GPU loses time at every wait, even for what is there. */
zero_status_t zero_parameters_await_next(zero_parameters_t *parameters, zero_stream_t stream)
{
    const zero_context_t *context = parameters->context;
    int n_units = context->model->n_units, next = context->progress.position + 1;
    if (next == zero_order_n_positions(context->progress.pass, n_units))
        return ZERO_OK;
    zero_unit_t unit = zero_order_unit(next, n_units);
    for (int i = zero_order_first_flat(context->model, next); i < zero_model_n_flats(context->model, unit); i++) {
        zero_unit_t flat = zero_model_flat(context->model, unit, i);
        if (parameters->states[flat] != UNDER_WAY)
            continue;
        ZERO_TRY(zero_parameters_await(parameters, flat, stream));
        parameters->states[flat] = WAITED_FOR;
    }
    return ZERO_OK;
}

/* ---- stage 3: unsharded buffers ---- */

static zero_timed_event_t *buffer_freed(const zero_parameters_t *parameters, const zero_unsharded_buffer_t *buffer)
{
    return &parameters->buffer_freed[buffer - parameters->unsharded.buffers];
}

/* Brings this rank's part of the unit up to date before its group gathers it. Each rank updates only its own shard of
 * the part; the fence tells the group that the rest has come from the other groups. */
static zero_status_t renew_part(zero_parameters_t *parameters, zero_unit_t flat, zero_stream_t gather_stream)
{
    zero_context_t *context = parameters->context;
    if (!parameters->part_is_old[flat] && !parameters->frozen_is_old[flat])
        return ZERO_OK;
    if (parameters->part_is_old[flat])
        ZERO_TRY(zero_gather_part(context, flat, gather_stream));
    if (parameters->frozen_is_old[flat])
        ZERO_TRY(zero_gather_frozen_part(context, flat, gather_stream));
    parameters->part_is_old[flat] = parameters->frozen_is_old[flat] = false;
    return context->comm->ops->fence(context->comm, ZERO_LANE_GATHER, gather_stream);
}

/* Gathers an offloaded unit. One rank copies it from the host into the unsharded buffer. Several copy their shards into
 * one of two staging buffers in the window, publish them with a fence, and gather from there:
 *
 *     stream that fetches   | shard of A -> 0 | shard of B -> 1 |        | shard of C -> 0 |
 *     gather stream                           | fence, gather A | fence, gather B | fence, gather C
 *
 * C's shard may replace A's once all ranks have gathered A, which is before B's fence. */
static zero_status_t gather_offloaded(zero_parameters_t *parameters, zero_unit_t flat,
                                      const zero_unsharded_buffer_t *buffer, zero_stream_t gather_stream)
{
    zero_context_t *context = parameters->context;
    zero_comm_t *comm = context->comm;
    const zero_arena_plan_t *plan = &context->plan;
    const zero_unit_layout_t *layout = &context->layout.units[flat];
    unsigned char *full = zero_context_private(context, buffer->offset);
    if (comm->size == 1) {
        ZERO_TRY(zero_streams_wait_timed(context, gather_stream, *buffer_freed(parameters, buffer)));
        return zero_offload_fetch_params(parameters->offload, flat, full,
                                         full + plan->unsharded_frozen[layout->buffer_class], gather_stream);
    }
    const uint64_t offset =
        plan->param_staging + parameters->n_staged++ % ZERO_N_PARAM_STAGING * plan->param_staging_bytes;
    unsigned char *shard = zero_context_window(context, offset);
    zero_stream_t stream = context->streams.overlapped ? zero_offload_param_stream(parameters->offload) : gather_stream;
    ZERO_TRY(zero_streams_wait(context, stream, parameters->may_stage));
    ZERO_TRY(zero_offload_fetch_params(parameters->offload, flat, shard,
                                       shard + layout->shard_elems * zero_dtype_size(context->config.dtype), stream));
    ZERO_TRY(zero_streams_record(context, parameters->staged, stream));
    ZERO_TRY(zero_streams_wait(context, gather_stream, parameters->staged));
    ZERO_TRY(comm->ops->fence(comm, ZERO_LANE_GATHER, gather_stream));
    ZERO_TRY(zero_streams_record(context, parameters->may_stage, gather_stream));
    ZERO_TRY(zero_streams_wait_timed(context, gather_stream, *buffer_freed(parameters, buffer)));
    return zero_gather_shards_at(context, flat, offset, full, gather_stream);
}

static zero_status_t gather_into(zero_parameters_t *parameters, zero_unit_t flat, const zero_unsharded_buffer_t *buffer,
                                 zero_stream_t stream)
{
    zero_context_t *context = parameters->context;
    const zero_unit_layout_t *layout = &context->layout.units[flat];
    zero_stream_t gather_stream = zero_streams_gather(context, stream);
    if (layout->shard_elems == 0 && layout->frozen_shard_elems == 0)
        return ZERO_OK;
    if (zero_plan_offloads_params(&context->plan, flat)) {
        ZERO_TRY(gather_offloaded(parameters, flat, buffer, gather_stream));
        return note_gather(parameters, flat);
    }
    ZERO_TRY(zero_streams_wait_timed(context, gather_stream, *buffer_freed(parameters, buffer)));
    ZERO_TRY(await_published(parameters, flat));
    ZERO_TRY(publish_offloaded(parameters, flat, gather_stream));
    ZERO_TRY(renew_part(parameters, flat, gather_stream));
    ZERO_TRY(zero_gather_shards(context, flat, zero_context_private(context, buffer->offset), gather_stream));
    return note_gather(parameters, flat);
}

static zero_status_t make_resident(zero_parameters_t *parameters, zero_unit_t flat, zero_stream_t stream)
{
    const zero_context_t *context = parameters->context;
    const zero_progress_t *progress = &context->progress;
    zero_unsharded_t *unsharded = &parameters->unsharded;
    int buffer_class = context->layout.units[flat].buffer_class;
    if (!has_buffer(context, flat) || zero_unsharded_find(unsharded, flat))
        return ZERO_OK;
    const zero_unsharded_buffer_t *buffer =
        zero_unsharded_acquire(unsharded, context->model, progress->pass, progress->position, buffer_class, flat);
    ZERO_ASSERT(buffer);
    return gather_into(parameters, flat, buffer, stream);
}

static zero_status_t fill_buffers_ahead(zero_parameters_t *parameters, zero_stream_t stream)
{
    zero_context_t *context = parameters->context;
    int n_units = context->model->n_units, position = context->progress.position;
    int n_positions = zero_order_n_positions(context->progress.pass, n_units);
    for (int ahead = 0; ahead <= context->config.prefetch && ahead < n_positions - position; ahead++) {
        zero_unit_t unit = zero_order_unit(position + ahead, n_units);
        int first = zero_order_first_flat(context->model, position + ahead);
        for (int i = first; i < zero_model_n_flats(context->model, unit); i++) {
            zero_unit_t flat = zero_model_flat(context->model, unit, i);
            if (ahead == 0 && parameters->states[flat] == ACQUIRED && zero_unsharded_find(&parameters->unsharded, flat))
                context->stats.n_gathers_avoided++;
            ZERO_TRY(make_resident(parameters, flat, stream));
        }
    }
    return ZERO_OK;
}

zero_status_t zero_parameters_release(zero_parameters_t *parameters, zero_unit_t unit)
{
    const zero_context_t *context = parameters->context;
    int first = zero_order_first_flat(context->model, context->progress.position);
    for (int i = first; i < zero_model_n_flats(context->model, unit); i++) {
        const zero_unit_t flat = zero_model_flat(context->model, unit, i);
        if (!has_buffer(context, flat))
            continue;
        const zero_unsharded_buffer_t *buffer = zero_unsharded_find(&parameters->unsharded, flat);
        ZERO_ASSERT(buffer);
        *buffer_freed(parameters, buffer) = context->streams.used[unit];
    }
    return ZERO_OK;
}

/* ---- stages 1-2: full parameters in the window ---- */

/* Queues the gathers of units 0, 1 ... end - 1 that have not been queued yet. */
static zero_status_t gather_full_up_to(zero_parameters_t *parameters, zero_unit_t end, zero_stream_t gather_stream)
{
    zero_context_t *context = parameters->context;
    for (; parameters->n_gathered < end; parameters->n_gathered++) {
        zero_unit_t unit = parameters->n_gathered;
        ZERO_TRY(await_published(parameters, unit));
        ZERO_TRY(publish_offloaded(parameters, unit, gather_stream));
        ZERO_TRY(zero_gather_full(context, unit, gather_stream));
        ZERO_TRY(note_gather(parameters, unit));
    }
    return ZERO_OK;
}

/* So many units ahead of their use offloaded ones are gathered in the next pass: before a unit can be gathered all of
 * its update must be queued, and to queue all updates at once would fill the streams (update_on_device.c) and block the
 * host before that pass. */
#define OFFLOADED_AHEAD 4

static zero_status_t gather_offloaded_ahead(zero_parameters_t *parameters, zero_stream_t stream)
{
    const zero_context_t *context = parameters->context;
    int n_units = context->model->n_units;
    zero_unit_t end = zero_order_unit(context->progress.position, n_units) + 1 + OFFLOADED_AHEAD;
    return gather_full_up_to(parameters, end < n_units ? end : n_units, zero_streams_gather(context, stream));
}

zero_status_t zero_parameters_gather_ahead(zero_parameters_t *parameters, zero_stream_t stream)
{
    return parameters->context->plan.stage.shard_params ? fill_buffers_ahead(parameters, stream)
                                                        : gather_offloaded_ahead(parameters, stream);
}

/* ---- after the update ---- */

zero_unit_t zero_parameters_n_early_units(const zero_parameters_t *parameters)
{
    return parameters->n_early_units;
}

void zero_parameters_begin_update(zero_parameters_t *parameters)
{
    const zero_context_t *context = parameters->context;
    const zero_layout_t *layout = &context->layout;
    if (!context->plan.stage.shard_params) {
        if (context->plan.stage.shard_state && context->comm->size > 1)
            parameters->n_gathered = 0;
        return;
    }
    zero_unsharded_clear(&parameters->unsharded);
    for (zero_unit_t unit = 0; unit < layout->n_units; unit++)
        parameters->part_is_old[unit] =
            zero_plan_n_groups(&context->plan, layout) > 1 && layout->units[unit].shard_elems > 0;
}

/* Exchange, fence and gather are in the gather stream, which has nothing else to do: compute goes on with the update.
 */
zero_status_t zero_parameters_publish_early(zero_parameters_t *parameters, zero_unit_t first, zero_unit_t end,
                                            zero_stream_t stream)
{
    zero_context_t *context = parameters->context;
    zero_stream_t gather_stream = context->streams.gather;
    ZERO_TRY(zero_streams_record(context, parameters->early_updated, stream));
    ZERO_TRY(zero_streams_wait(context, gather_stream, parameters->early_updated));
    ZERO_TRY(zero_fp8_params_refresh(parameters->fp8, first, end, ZERO_LANE_GATHER, gather_stream));
    ZERO_TRY(context->comm->ops->fence(context->comm, ZERO_LANE_GATHER, gather_stream));
    if (!context->plan.stage.shard_params)
        return gather_full_up_to(parameters, end, gather_stream);
    for (zero_unit_t unit = first; unit < end; unit++)
        ZERO_TRY(make_resident(parameters, unit, stream));
    return ZERO_OK;
}

/* Publishes all weights, of which those of units first ... end - 1 have no bytes in fp8 yet. */
static zero_status_t publish(zero_parameters_t *parameters, zero_unit_t first, zero_unit_t end, zero_stream_t stream)
{
    zero_context_t *context = parameters->context;
    const zero_stage_t *stage = &context->plan.stage;
    ZERO_TRY(zero_fp8_params_refresh(parameters->fp8, first, end, ZERO_LANE_STEP, stream));
    ZERO_TRY(zero_streams_fence(context, stream));
    ZERO_TRY(zero_streams_record(context, parameters->published, stream));
    parameters->published_is_pending = true;
    if (stage->shard_params || !stage->shard_state || context->comm->size == 1)
        return ZERO_OK;
    return gather_full_up_to(parameters, context->plan.host.first, zero_streams_gather(context, stream));
}

zero_status_t zero_parameters_publish(zero_parameters_t *parameters, zero_stream_t stream)
{
    return publish(parameters, parameters->n_early_units, parameters->context->plan.host.first, stream);
}

/* Below stage 3 every rank holds all frozen tensors, and no update changes them: they are gathered now. */
static zero_status_t publish_frozen(zero_parameters_t *parameters, zero_stream_t stream)
{
    zero_context_t *context = parameters->context;
    const zero_layout_t *layout = &context->layout;
    for (zero_unit_t unit = 0; unit < layout->n_units; unit++) {
        if (context->plan.stage.shard_params)
            parameters->frozen_is_old[unit] =
                zero_plan_n_groups(&context->plan, layout) > 1 && layout->units[unit].frozen_shard_elems > 0;
        else
            ZERO_TRY(zero_gather_frozen(context, unit, stream));
    }
    return ZERO_OK;
}

zero_status_t zero_parameters_publish_set(zero_parameters_t *parameters, zero_stream_t stream)
{
    zero_parameters_begin_update(parameters);
    ZERO_TRY(publish(parameters, 0, parameters->context->layout.n_units, stream));
    return publish_frozen(parameters, stream);
}

const zero_unsharded_t *zero_parameters_unsharded(const zero_parameters_t *parameters)
{
    return &parameters->unsharded;
}

/* ---- after a pass that was cancelled ---- */

void zero_parameters_cancel(zero_parameters_t *parameters)
{
    const zero_context_t *context = parameters->context;
    if (context->plan.stage.shard_params)
        zero_unsharded_clear(&parameters->unsharded);
    parameters->n_staged = 0; /* ranks may have come to different units */
    for (zero_unit_t unit = 0; unit < context->layout.n_units; unit++)
        parameters->states[unit] = ACQUIRED;
}
