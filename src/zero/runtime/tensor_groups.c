/* tensor_groups.c - see tensor_groups.h. */
#include "zero/runtime/tensor_groups.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "zero/plan/optimizer.h"
#include "zero/runtime/addresses.h"

struct zero_tensor_groups {
    zero_context_t *context;
    zero_group_t *by_tensor;
    bool are_new; /* set since the last step */
    uint64_t hash;
    int n_copies;
    zero_tensor_rules_t *copies; /* pinned: [n_copies][n_tensors], step n's at n % n_copies */
};

/* ---- settings ---- */

/* Returns what a tensor has as declared and configured. */
static zero_group_t group_of(const zero_context_t *context, zero_tensor_t tensor)
{
    const zero_config_t *config = &context->config;
    return (zero_group_t){
        .lr_scale = 1.0f,
        .weight_decay = context->model->tensors[tensor].decay ? config->weight_decay : 0.0f,
        .beta1 = config->beta1,
        .beta2 = config->beta2,
        .eps = config->eps,
        .momentum = config->momentum,
    };
}

static bool is_fraction(float x)
{
    return x >= 0.0f && x < 1.0f;
}

static bool is_amount(float x)
{
    return isfinite(x) && x >= 0.0f;
}

/* The ranges are those of the configuration. */
static zero_status_t check_group(const char *tensor, const zero_group_t *group)
{
    const struct {
        const char *name, *range;
        float value;
        bool is_good;
    } settings[] = {
        {"lr_scale", "at least 0 and finite", group->lr_scale, is_amount(group->lr_scale)},
        {"weight_decay", "at least 0 and finite", group->weight_decay, is_amount(group->weight_decay)},
        {"beta1", "in [0, 1)", group->beta1, is_fraction(group->beta1)},
        {"beta2", "in [0, 1)", group->beta2, is_fraction(group->beta2)},
        {"eps", "above 0 and finite", group->eps, is_amount(group->eps) && group->eps > 0.0f},
        {"momentum", "in [0, 1)", group->momentum, is_fraction(group->momentum)},
    };
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        if (!settings[i].is_good)
            return zero_fail(ZERO_ERROR_ARGUMENT, "zero_set_group(%s): %s %g: it must be %s", tensor, settings[i].name,
                             (double)settings[i].value, settings[i].range);
    return ZERO_OK;
}

zero_status_t zero_tensor_groups_set(zero_tensor_groups_t *groups, zero_tensor_t tensor, const zero_group_t *group)
{
    const zero_group_t new = group ? *group : group_of(groups->context, tensor);
    ZERO_TRY(check_group(groups->context->model->tensors[tensor].name, &new));
    groups->by_tensor[tensor] = new;
    groups->are_new = true;
    return ZERO_OK;
}

zero_group_t zero_tensor_groups_get(const zero_tensor_groups_t *groups, zero_tensor_t tensor)
{
    return groups->by_tensor[tensor];
}

/* ---- creating ---- */

zero_status_t zero_tensor_groups_create(zero_context_t *context, int max_steps_in_flight, zero_tensor_groups_t **groups)
{
    const size_t n_tensors = (size_t)context->model->n_tensors;
    zero_device_t *device = context->device;
    void *copies;
    zero_tensor_groups_t *made = calloc(1, sizeof *made);
    if (!made)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for the settings of tensors");
    *made = (zero_tensor_groups_t){
        .context = context,
        .by_tensor = calloc(n_tensors + 1, sizeof *made->by_tensor),
        .n_copies = max_steps_in_flight,
    };
    zero_status_t status =
        made->by_tensor ? ZERO_OK : zero_fail(ZERO_ERROR_MEMORY, "no memory for %zu tensors", n_tensors);
    for (zero_tensor_t t = 0; status == ZERO_OK && t < context->model->n_tensors; t++)
        made->by_tensor[t] = group_of(context, t);
    if (status == ZERO_OK)
        status =
            device->ops->host_alloc(device, ((size_t)made->n_copies * n_tensors + 1) * sizeof *made->copies, &copies);
    if (status != ZERO_OK) {
        zero_tensor_groups_destroy(made);
        return status;
    }
    made->copies = copies;
    *groups = made;
    return ZERO_OK;
}

void zero_tensor_groups_destroy(zero_tensor_groups_t *groups)
{
    if (!groups)
        return;
    zero_device_t *device = groups->context->device;
    if (groups->copies)
        device->ops->host_free(device, groups->copies);
    free(groups->by_tensor);
    free(groups);
}

/* ---- a step ---- */

static uint64_t hash_of(const zero_tensor_groups_t *groups)
{
    const zero_context_t *context = groups->context;
    for (zero_tensor_t t = 0; t < context->model->n_tensors; t++) {
        const zero_group_t declared = group_of(context, t);
        if (memcmp(&declared, &groups->by_tensor[t], sizeof declared) != 0)
            return zero_hash_fold(0, groups->by_tensor, (size_t)context->model->n_tensors * sizeof declared);
    }
    return 0;
}

uint64_t zero_tensor_groups_take(zero_tensor_groups_t *groups)
{
    if (groups->are_new)
        groups->hash = hash_of(groups);
    return groups->hash;
}

static zero_tensor_rules_t rules_of(const zero_context_t *context, const zero_group_t *group)
{
    zero_config_t config = context->config;
    config.beta1 = group->beta1;
    config.beta2 = group->beta2;
    config.momentum = group->momentum;
    return (zero_tensor_rules_t){
        .lr_scale = group->lr_scale,
        .beta1 = zero_optimizer_of(&config)->beta1(&config),
        .beta2 = zero_optimizer_of(&config)->beta2(&config),
        .eps = group->eps,
        .decay = group->weight_decay,
    };
}

/* Copies the rules to the device, from memory that the device is done with. */
static zero_status_t send_rules(zero_tensor_groups_t *groups, zero_tensor_rules_t *on_device, zero_stream_t stream)
{
    const zero_context_t *context = groups->context;
    const size_t n_tensors = (size_t)context->model->n_tensors;
    zero_tensor_rules_t *copy =
        groups->copies + (size_t)(context->progress.step % (uint64_t)groups->n_copies) * n_tensors;
    for (size_t t = 0; t < n_tensors; t++)
        copy[t] = rules_of(context, &groups->by_tensor[t]);
    return zero_device_copy(context->device, on_device, copy, n_tensors * sizeof *copy, stream);
}

/* Returns the end of the run of tensors from `first` on that belong to the unit; `first` if that one does not. */
static size_t run_end(const zero_model_t *model, size_t first, zero_unit_t unit)
{
    size_t end = first;
    while (end < (size_t)model->n_tensors && (unit == ZERO_ALL_UNITS || model->tensors[end].owner == unit))
        end++;
    return end;
}

zero_status_t zero_tensor_groups_decide(zero_tensor_groups_t *groups, zero_unit_t unit,
                                        const zero_adam_scalars_t *scalars, zero_stream_t stream)
{
    zero_context_t *context = groups->context;
    const size_t n_tensors = (size_t)context->model->n_tensors;
    zero_tensor_scalars_t *by_tensor = zero_context_private(context, context->plan.tensor_scalars);
    zero_tensor_rules_t *rules = (zero_tensor_rules_t *)(void *)(by_tensor + n_tensors);
    context->by_tensor = groups->hash != 0 ? by_tensor : NULL;
    if (groups->are_new && groups->hash != 0)
        ZERO_TRY(send_rules(groups, rules, stream));
    groups->are_new = false;
    if (groups->hash == 0)
        return ZERO_OK;
    for (size_t t = 0, end; t < n_tensors; t = end + (end == t)) {
        end = run_end(context->model, t, unit);
        if (end > t)
            ZERO_TRY(context->device->kernels->tensor_scalars(rules + t, end - t, scalars, by_tensor + t, stream));
    }
    return ZERO_OK;
}
