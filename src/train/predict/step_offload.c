/* step_offload.c - what offload costs a step: copies of state, parameters, sums of gradients and activations between
 * GPU and host memory, as far as compute does not hide them. */
#include "train/predict/step_work.h"

#include <math.h>

/* Bytes of a rank from host memory to its GPU, and back. */
typedef struct copies {
    double in, out;
} copies_t;

/* Returns the seconds of copies that run at once. Each direction has a link of its own, of which the GPUs of a host
 * share what its root complexes carry. The host's memory carries both directions of all of them. */
static double copy_s(const fit_machine_t *machine, copies_t c)
{
    const fit_rates_t *rates = &machine->rates;
    const double in_host = fmin((double)machine->ranks_per_host, (double)machine->n_ranks);
    const double one_way = fmin(rates->pcie, rates->host_pcie / in_host);
    const double both = rates->host_memory / in_host;
    return fmax(fmax(c.in, c.out) / one_way, (c.in + c.out) / both);
}

/* What the GPU's update copies, in elements of a rank. Chunks of state are in forward order; idle activations take the
 * first of them, `staged`, and the planned buffers the rest, in turn. */
typedef struct streamed {
    double state, grad;  /* bytes of an element: of its state, of its gradient if that leaves the GPU */
    double share;        /* that is offloaded, of the units in backward's order the first */
    double params;       /* bytes of offloaded parameters, which every pass fetches */
    double sum;          /* bytes of an element's sum that comes back from host memory in backward */
    double staged, rest; /* elements */
    double returning;    /* staged, but with gradients that were sent before their buffer was idle */
} streamed_t;

double fit_params_ratio(const options_t *o, double state_ratio)
{
    const double most = options_are_forward_only(o) || state_ratio < 0.0 ? 1.0 : state_ratio;
    const double ratio = o->zero.offload_params_ratio < 0.0 ? 1.0 : o->zero.offload_params_ratio;
    return o->zero.offload == OFFLOAD_ALL && o->zero.stage == 3 ? fmin(ratio, most) : 0.0;
}

/* Returns the share of the parameters that is in host memory. */
static double params_share(const fit_work_t *work, const fit_variant_t *variant)
{
    return work->shape.on_gpu ? fit_params_ratio(work->options, variant->offload_ratio) : 0.0;
}

/* Returns the bytes of a rank's offloaded parameters, frozen ones included. */
static double params_bytes(const fit_work_t *work, const fit_variant_t *variant)
{
    const fit_shape_t *s = &work->shape;
    const bool in_fp8 = s->is_frozen && work->options->lora.base == BASE_FP8;
    const double less = in_fp8 ? s->L * s->matrices * (s->param_bytes - 1.0) : 0.0;
    return params_share(work, variant) * (fit_n_params(s) * s->param_bytes - less) / (double)work->machine->n_ranks;
}

/* Returns the bytes of a reduced gradient, as plan.c decides if a step reduces once. */
static double reduced_bytes(const fit_work_t *work)
{
    const options_t *o = work->options;
    const bool alone = work->machine->n_ranks == 1;
    const bool is_passed_on = alone && o->train.precision == ZERO_BF16 && !work->shape.adds_locally;
    return is_passed_on || o->zero.gradients == ZERO_BF16 ? 2.0 : 4.0;
}

static bool is_reduced_once(const fit_work_t *work)
{
    return work->shape.micro_steps == 1.0 || work->shape.adds_locally;
}

/* Returns the bytes of an element's sum that waits in host memory between micro-steps. */
static double sum_bytes(const fit_work_t *work)
{
    const bool waits = work->options->zero.offload_grads == ZERO_OFFLOAD_GRADS_HOST && !is_reduced_once(work);
    return waits ? sizeof(float) : 0.0;
}

/* Gradients leave at once if a unit is reduced once a step. Buffers fall idle from the last unit down. So the gradients
 * of a unit find their chunk's buffer idle if that is in the activations of no earlier unit (state_staging.c,
 * find_grads). Both lie evenly over the units: chunk x of 0..1 belongs to unit (1 - share) + x staged_share, and has a
 * buffer of unit (1 - used) + x used. */
static streamed_t stream_of(const fit_work_t *work, const fit_variant_t *variant, double n)
{
    const options_t *o = work->options;
    const double master_lo = o->train.precision == ZERO_FP32 ? 0.0 : o->train.precision == ZERO_BF16 ? 2.0 : 4.0;
    /* Where trained parameters are offloaded, the GPU updates them, too. Frozen ones only passes fetch. */
    const double with_param = params_share(work, variant) / fit_offloaded_share(work, variant);
    streamed_t s = {.state = fit_array_bytes(o) + master_lo + with_param * work->shape.param_bytes,
                    .params = params_bytes(work, variant),
                    .sum = sum_bytes(work),
                    .grad = is_reduced_once(work) ? reduced_bytes(work) : sum_bytes(work),
                    .share = fit_offloaded_share(work, variant)};
    const double room = variant->activation_bytes / (s.state + s.grad);
    s.staged = fmin(n, room);
    s.rest = n - s.staged;
    const double used = s.staged > 0.0 ? s.staged / room : 0.0, staged_share = s.share * s.staged / n;
    const double late = used - s.share - 1.0 / (work->shape.L + 2.0); /* for the first chunk, beyond a unit */
    if (late > 0.0)
        s.returning = s.staged * fmin(late / (used - staged_share), 1.0);
    return s;
}

/* Returns what backward waits for: fetching what is staged, and sending gradients. Those of the rest leave first, in
 * the backward of their own units, which two buffers hold up if that is too short. */
static double fetch_s(const fit_machine_t *machine, const streamed_t *s, double backward)
{
    const double of_rest = s->share * s->rest / (s->staged + s->rest);
    const double sums = (s->staged + s->rest) * s->sum;
    const copies_t first = {.in = of_rest * s->staged * s->state + s->rest * s->sum, .out = s->rest * s->grad};
    const copies_t all = {.in = s->staged * s->state + s->params + sums, .out = (s->rest + s->returning) * s->grad};
    return fmax(fit_excess(copy_s(machine, first), of_rest * backward), fit_excess(copy_s(machine, all), backward));
}

/* Returns what the next forward waits for. The stream that stores takes chunks in order, and the rest is fetched into
 * buffers that have been stored: so first what is staged leaves, and then the rest comes in and leaves at once. A unit
 * waits only for its own chunks, so all of it overlaps forward. */
static double store_s(const fit_machine_t *machine, const streamed_t *s, double forward)
{
    const copies_t staged = {.in = s->returning * s->grad + s->params, .out = s->staged * s->state};
    const copies_t rest = {.in = s->rest * (s->state + s->grad), .out = s->rest * s->state};
    return fit_excess(copy_s(machine, staged) + copy_s(machine, rest), forward);
}

/* Returns what backward waits for if it updates: a unit's state comes and leaves while the units behind it compute, of
 * all offloaded units, which backward comes to first. */
static double in_backward_s(const fit_machine_t *machine, const streamed_t *s, double backward)
{
    const double n = s->staged + s->rest, bytes = n * s->state;
    return fit_excess(copy_s(machine, (copies_t){.in = bytes + s->params + n * s->sum, .out = bytes}), backward);
}

/* Returns what the micro-steps before the last wait for: parameters in both passes, and in backward sums that leave
 * and, but in the first one, come back before. */
static double earlier_s(const fit_work_t *work, double params, double sums, fit_passes_t link)
{
    const fit_machine_t *machine = work->machine;
    const double n = work->shape.micro_steps - 1.0;
    const double forward = fit_excess(copy_s(machine, (copies_t){.in = params}), link.forward);
    const double first = fit_excess(copy_s(machine, (copies_t){.in = params, .out = sums}), link.backward);
    const double later = fit_excess(copy_s(machine, (copies_t){.in = params + sums, .out = sums}), link.backward);
    return n * forward + fmin(n, 1.0) * first + fmax(n - 1.0, 0.0) * later;
}

/* Returns the bytes that the host's AdamW moves in the time of one element's update. Other optimizers are limited by
 * memory, too; adamw8bit by the arithmetic of its codes: 3.6 times AdamW's time, measured for 8B with 16 cores of a
 * Xeon. */
static double host_update_bytes(const options_t *o)
{
    return o->train.optimizer == ZERO_OPTIMIZER_ADAMW8BIT ? 3.6 * FIT_ADAMW_HOST_BYTES
                                                          : FIT_ADAMW_HOST_BYTES - 16.0 + 2.0 * fit_array_bytes(o);
}

/* Returns what offloaded state and parameters cost a step. link: the passes' time in which the link is free for them.
 */
static double offloaded_state_s(const fit_work_t *work, const fit_variant_t *variant, fit_passes_t passes,
                                fit_passes_t link)
{
    const options_t *o = work->options;
    const fit_machine_t *machine = work->machine;
    const double in_host = fmin((double)machine->ranks_per_host, (double)machine->n_ranks);
    const double n = fit_offloaded_share(work, variant) * fit_n_trained(&work->shape) / (double)machine->n_ranks;
    if (n == 0.0)
        return 0.0;
    const double fetch = copy_s(machine, (copies_t){.in = params_bytes(work, variant)}); /* of one pass */
    const double others = earlier_s(work, params_bytes(work, variant), n * sum_bytes(work), link);
    if (o->zero.offload_update == ZERO_OFFLOAD_UPDATE_HOST) {
        const double update = n * host_update_bytes(o) / (machine->rates.host_adam / in_host);
        const double copies = copy_s(machine, (copies_t){.in = params_bytes(work, variant), .out = n * sizeof(float)});
        const copies_t back = {.in = params_bytes(work, variant) + n * sum_bytes(work)};
        return others + fit_excess(copy_s(machine, back), link.backward) +
               fmax(fit_excess(update, passes.forward), fit_excess(copies, link.forward));
    }
    const streamed_t s = stream_of(work, variant, n);
    if (o->zero.update == ZERO_UPDATE_IN_BACKWARD)
        return others + fit_excess(fetch, link.forward) + in_backward_s(machine, &s, link.backward);
    return others + fetch_s(machine, &s, link.backward) + store_s(machine, &s, link.forward);
}

/* Returns how long a micro-step's passes copy activations that wait in host memory: they leave behind forward and come
 * back in backward. */
static fit_passes_t stash_copies(const fit_work_t *work)
{
    const fit_shape_t *s = &work->shape;
    const double n =
        s->on_gpu ? fmax((double)options_offloaded_blocks(&work->options->model) - OPTIONS_STASH_SLOTS, 0.0) : 0.0;
    const double bytes = n * s->R * s->C * s->act_bytes;
    return (fit_passes_t){.forward = copy_s(work->machine, (copies_t){.out = bytes}),
                          .backward = copy_s(work->machine, (copies_t){.in = bytes})};
}

/* Activations come first: they take the link in every micro-step. */
double fit_offload_s(const fit_work_t *work, const fit_variant_t *variant, fit_passes_t passes)
{
    const fit_passes_t stash = stash_copies(work);
    const fit_passes_t link = {.forward = fit_excess(passes.forward, stash.forward),
                               .backward = fit_excess(passes.backward, stash.backward)};
    return offloaded_state_s(work, variant, passes, link) +
           work->shape.micro_steps *
               (fit_excess(stash.forward, passes.forward) + fit_excess(stash.backward, passes.backward));
}
