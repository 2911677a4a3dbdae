/* choice.c - see choice.h. */
#include "train/planning/choice.h"

#include <math.h>
#include <stdlib.h>

#include "train/report/report.h"

#define FINE_RATIOS 4096 /* a power of two: a unit of 405B has 1/128 of all state */

int fit_ranks_of_host(const fit_machine_t *machine)
{
    return machine->ranks_per_host < machine->n_ranks ? machine->ranks_per_host : machine->n_ranks;
}

bool fit_is_mixed(const fit_choice_t *choice)
{
    return choice->none > 0 || choice->light > 0;
}

void fit_apply(const fit_choice_t *choice, options_t *options)
{
    options->zero.stage = choice->stage;
    options->model.recompute = choice->recompute;
    options->model.recompute_none = choice->none;
    options->model.recompute_light = choice->light;
    options->train.micro_batch = choice->micro_batch;
    options->zero.offload_ratio = choice->offload_ratio;
    options->zero.offload_params_ratio = choice->params_ratio;
    options->model.offload_activations = choice->activations;
    options->zero.keep = choice->keep;
    options->model.keep_attention = choice->keep_attention;
    options->zero.offload_grads = choice->offload_grads;
}

fit_choice_t fit_choice_of(const options_t *options)
{
    return (fit_choice_t){.stage = (int)options->zero.stage,
                          .recompute = options->model.recompute,
                          .none = options->model.recompute_none,
                          .light = options->model.recompute_light,
                          .micro_batch = options->train.micro_batch,
                          .offload_ratio = options->zero.offload_ratio,
                          .params_ratio = options->zero.offload_params_ratio,
                          .activations = options->model.offload_activations,
                          .keep = options->zero.keep,
                          .keep_attention = options->model.keep_attention,
                          .offload_grads = options->zero.offload_grads};
}

zero_status_t fit_create(const options_t *options, const fit_machine_t *machine, uint64_t budget, fit_t **fit)
{
    fit_t *made = calloc(1, sizeof *made);
    if (!made)
        return report_rank_error(ZERO_ERROR_MEMORY, "no memory to search for settings");
    made->options = made->asked = *options;
    made->machine = *machine;
    made->budget = budget;
    made->host_budget = machine->host_bytes;
    if (machine->host_bytes != FIT_HOST_UNKNOWN)
        made->host_budget /= (uint64_t)fit_ranks_of_host(machine);
    if (made->asked.train.micro_batch == MICRO_BATCH_AUTO)
        made->options.train.micro_batch = 1;
    zero_status_t status = model_create(&made->options, &made->model);
    if (status != ZERO_OK) {
        free(made);
        return status;
    }
    *fit = made;
    return ZERO_OK;
}

void fit_destroy(fit_t *fit)
{
    if (!fit)
        return;
    model_destroy(&fit->model);
    free(fit->plans);
    free(fit);
}

/* ---- memory ---- */

static zero_status_t make_plan(fit_t *fit, fit_plan_t *plan)
{
    const options_t *o = &fit->options;
    const fit_machine_t *machine = &fit->machine;
    zero_config_t config = options_config(o, machine->n_ranks);
    config.offload &= plan->offload_ratio > 0.0;
    config.offload_params = (float)plan->params_ratio;
    if (config.shard_group == ZERO_SHARD_GROUP_HOST)
        config.shard_group = fit_ranks_of_host(machine);
    return zero_plan(fit->model.declaration, &config, (zero_device_type_t)o->device.type, machine->kind,
                     machine->n_ranks, &plan->memory);
}

/* At one stage, a plan depends only on whether micro-steps are accumulated, on offload, where sums wait, and keep. */
zero_status_t fit_plan_of(fit_t *fit, const zero_memory_t **memory)
{
    const options_t *o = &fit->options;
    fit_plan_t plan = {.stage = (int)o->zero.stage,
                       .accumulates = options_micro_steps(&o->train, fit->machine.n_ranks) > 1,
                       .offload_grads = o->zero.offload_grads,
                       .offload_ratio = o->zero.offload != OFFLOAD_NONE ? o->zero.offload_ratio : 0.0,
                       .params_ratio = fit_params_ratio(o, o->zero.offload_ratio),
                       .keep = o->zero.keep};
    for (int i = 0; i < fit->n_plans; i++) {
        const fit_plan_t *p = &fit->plans[i];
        if (p->stage == plan.stage && p->accumulates == plan.accumulates && p->keep == plan.keep &&
            p->offload_grads == plan.offload_grads && p->offload_ratio == plan.offload_ratio &&
            p->params_ratio == plan.params_ratio) {
            *memory = &p->memory;
            return ZERO_OK;
        }
    }
    ZERO_TRY(make_plan(fit, &plan));
    if (fit->n_plans == fit->max_plans) {
        int more = fit->max_plans > 0 ? 2 * fit->max_plans : 64;
        fit_plan_t *grown = realloc(fit->plans, (size_t)more * sizeof *grown);
        if (!grown)
            return report_rank_error(ZERO_ERROR_MEMORY, "no memory for %d plans", more);
        fit->plans = grown;
        fit->max_plans = more;
    }
    fit->plans[fit->n_plans] = plan;
    *memory = &fit->plans[fit->n_plans++].memory;
    return ZERO_OK;
}

/* Sets memory, bytes and fits for fit->options. user: what the model needs in addition to libzero's plan. */
static zero_status_t add_plan(fit_t *fit, const zero_memory_t *user, fit_point_t *point)
{
    const zero_memory_t *plan = NULL;
    ZERO_TRY(fit_plan_of(fit, &plan));
    point->memory = *plan;
    for (int c = 0; c < ZERO_MEMORY_N_CATEGORIES; c++)
        point->memory.bytes[c] += user->bytes[c];
    point->memory.pinned_bytes += user->pinned_bytes;
    point->bytes = zero_memory_total(&point->memory);
    point->fits = point->bytes <= fit->budget && point->memory.pinned_bytes <= fit->host_budget;
    return ZERO_OK;
}

bool fit_host_has_room(const fit_t *fit, const zero_memory_t *plan)
{
    zero_memory_t user = {0};
    model_plan(&fit->model, &user);
    return plan->pinned_bytes + user.pinned_bytes <= fit->host_budget;
}

zero_status_t fit_find_most_ratio(fit_t *fit, double *ratio)
{
    const zero_memory_t *plan;
    int fits = 0, above = FINE_RATIOS; /* what is not offloaded takes nothing */
    fit->options.zero.offload_ratio = *ratio = 1.0;
    ZERO_TRY(fit_plan_of(fit, &plan));
    if (fit_host_has_room(fit, plan))
        return ZERO_OK;
    while (above - fits > 1) {
        int middle = fits + (above - fits) / 2;
        fit->options.zero.offload_ratio = (double)middle / FINE_RATIOS;
        ZERO_TRY(fit_plan_of(fit, &plan));
        if (fit_host_has_room(fit, plan))
            fits = middle;
        else
            above = middle;
    }
    *ratio = (double)fits / FINE_RATIOS;
    return ZERO_OK;
}

double fit_nth_ratio(int i, double most)
{
    return fmin((double)i / FIT_RATIOS, most);
}

/* offload_ratio = auto: the least share that fits; of those that the host has room for the largest, if none does. */
static zero_status_t choose_offload(fit_t *fit, const zero_memory_t *user, fit_point_t *point)
{
    double most;
    ZERO_TRY(fit_find_most_ratio(fit, &most));
    point->fits = false;
    for (int i = 0; !point->fits && (i == 0 || fit_nth_ratio(i - 1, most) < most); i++) {
        fit->options.zero.offload_ratio = fit_nth_ratio(i, most);
        ZERO_TRY(add_plan(fit, user, point));
    }
    return ZERO_OK;
}

/* keep = auto: the most blocks that fit; each takes a buffer more. */
static zero_status_t choose_keep(fit_t *fit, const zero_memory_t *user, fit_point_t *point)
{
    int64_t fits = 0, most = fit->options.model.layers;
    while (fits < most) {
        fit->options.zero.keep = fits + (most - fits + 1) / 2;
        ZERO_TRY(add_plan(fit, user, point));
        if (point->fits)
            fits = fit->options.zero.keep;
        else
            most = fit->options.zero.keep - 1;
    }
    fit->options.zero.keep = fits;
    return add_plan(fit, user, point);
}

bool fit_sums_may_leave(const fit_t *fit, int offload_grads)
{
    const options_t *o = &fit->options;
    return offload_grads == ZERO_OFFLOAD_GRADS_AUTO && fit->machine.rates.is_gpu && o->zero.offload != OFFLOAD_NONE &&
           !options_are_forward_only(o);
}

fit_open_t fit_find_open(const fit_t *fit, const fit_choice_t *choice)
{
    bool on_gpu = fit->machine.rates.is_gpu, sharded = choice->stage == 3 && fit->machine.n_ranks > 1;
    bool offloads = fit->options.zero.offload != OFFLOAD_NONE && on_gpu && choice->stage > 0;
    return (fit_open_t){.offloads = offloads,
                        .ratio = offloads && choice->offload_ratio == (double)ZERO_OFFLOAD_AUTO,
                        .keep = on_gpu && sharded && choice->keep == ZERO_KEEP_AUTO,
                        .grads = offloads && fit_sums_may_leave(fit, choice->offload_grads)};
}

/* Evaluates a choice that says where sums of gradients wait; AUTO counts as on the device. */
static zero_status_t evaluate_with(fit_t *fit, const fit_choice_t *choice, fit_point_t *point)
{
    options_t *o = &fit->options;
    zero_memory_t user = {0};
    fit_open_t open = fit_find_open(fit, choice);
    fit_apply(choice, o);
    o->zero.offload_ratio = open.offloads ? (open.ratio ? 0.0 : choice->offload_ratio) : 0.0;
    o->zero.keep = choice->keep == ZERO_KEEP_AUTO ? 0 : choice->keep;
    model_plan(&fit->model, &user);
    if (open.ratio)
        ZERO_TRY(choose_offload(fit, &user, point));
    if (open.keep)
        ZERO_TRY(choose_keep(fit, &user, point));
    ZERO_TRY(add_plan(fit, &user, point));
    point->choice = fit_choice_of(o);
    point->choice.keep_attention &= o->model.recompute == RECOMPUTE_FULL; /* others keep it in any case */
    point->time = fit_step_time(o, &fit->machine, (double)point->memory.bytes[ZERO_MEMORY_ACTIVATIONS]);
    return ZERO_OK;
}

zero_status_t fit_evaluate(fit_t *fit, const fit_choice_t *choice, fit_point_t *point)
{
    fit_choice_t tried = *choice;
    fit_point_t on_host;
    if (!fit_find_open(fit, choice).grads)
        return evaluate_with(fit, choice, point);
    tried.offload_grads = ZERO_OFFLOAD_GRADS_DEVICE;
    ZERO_TRY(evaluate_with(fit, &tried, point));
    if (point->fits)
        return ZERO_OK;
    tried.offload_grads = ZERO_OFFLOAD_GRADS_HOST;
    ZERO_TRY(evaluate_with(fit, &tried, &on_host));
    if (on_host.fits || on_host.bytes < point->bytes)
        *point = on_host;
    else
        fit_apply(&point->choice, &fit->options);
    return ZERO_OK;
}
