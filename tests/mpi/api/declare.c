/* declare.c - calls of api_random that need no engine: declaring a model, configurations, plans. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/mpi/api/calls.h"
#include "tests/mpi/settings.h"

/* ---- declaring ---- */

static void add_unit(declared_t *d)
{
    char long_name[ZERO_MAX_NAME + 1], name[32];
    int n = any(MAX_UNITS + 2), how = any(12);
    zero_unit_t unit = -7;
    memset(long_name, 'u', ZERO_MAX_NAME);
    long_name[ZERO_MAX_NAME] = 0;
    snprintf(name, sizeof name, "unit %d", n);
    const char *given = how == 0 ? NULL : how == 1 ? "" : how == 2 ? long_name : name;
    zero_model_t *model = how == 3 ? NULL : d->model;
    zero_unit_t *out = how == 4 ? NULL : &unit;
    if (d->n_units == MAX_UNITS && how > 4 && !d->has_unit_name[n])
        return; /* it would succeed, and there is no room in this table */
    note(CALL_model_add_unit, "%s, way %d", name, how);
    zero_status_t status = judge(CALL_model_add_unit, zero_model_add_unit(model, given, out),
                                 expected(how <= 4 || d->has_unit_name[n], false));
    if (status != ZERO_OK) {
        EXPECT(unit == -7, "an output was set");
        return;
    }
    EXPECT(unit == d->n_units, "unit %d", unit);
    d->has_unit_name[n] = true;
    d->uses[unit][unit] = true;
    d->n_units++;
}

/* A tensor of `unit`; n_dims, shape, init and packed now and then as they must not be. */
static void add_tensor(declared_t *d)
{
    char name[32];
    int n = any(MAX_TENSORS + 2), how = any(24);
    zero_unit_t unit = any(MAX_UNITS + 2) - 1;
    zero_tensor_t tensor = -7;
    zero_tensor_desc_t desc = {.name = name,
                               .n_dims = 1 + any(ZERO_MAX_DIMS),
                               .init = (zero_init_t)any(3),
                               .init_std = 0.5f,
                               .decay = one_in(2),
                               .packed = one_in(3),
                               .fp8 = one_in(3)};
    uint64_t n_elems = 1;
    for (int i = 0; i < desc.n_dims; i++) {
        desc.shape[i] = 1 + any(5);
        n_elems *= (uint64_t)desc.shape[i];
    }
    snprintf(name, sizeof name, "tensor %d", n);
    bool wrong = unit < 0 || unit >= d->n_units || d->has_tensor_name[n] ||
                 (desc.packed &&
                  (d->n_tensors == 0 || d->owner[d->n_tensors - 1] != unit || d->in_fp8[d->n_tensors - 1] != desc.fp8)),
         too_large = false;
    if (how <= 5)
        wrong = true;
    if (how == 0)
        desc.name = NULL;
    else if (how == 1)
        desc.shape[any(desc.n_dims)] = -any(2);
    else if (how == 2)
        desc.n_dims = one_in(2) ? 0 : ZERO_MAX_DIMS + 1;
    else if (how == 3)
        desc.init = (zero_init_t)(3 + any(9));
    else if (how == 6 && !wrong) {
        desc.shape[0] = (int64_t)1 << 57;
        too_large = true;
    }
    if (d->n_tensors == MAX_TENSORS && !wrong && !too_large)
        return;
    note(CALL_model_add_tensor, "%s to %d, way %d", name, unit, how);
    zero_status_t status = zero_model_add_tensor(how == 4 ? NULL : d->model, unit, &desc, how == 5 ? NULL : &tensor);
    judge(CALL_model_add_tensor, status, too_large ? MAY(ERROR_OVERFLOW) : expected(wrong, false));
    if (status != ZERO_OK) {
        EXPECT(tensor == -7, "an output was set");
        return;
    }
    EXPECT(tensor == d->n_tensors, "tensor %d", tensor);
    d->has_tensor_name[n] = true;
    d->owner[tensor] = d->last_user[tensor] = unit;
    d->n_elems[tensor] = n_elems;
    d->in_fp8[tensor] = desc.fp8;
    d->n_tensors++;
}

/* A unit that shares a tensor has all that its owner has resident, but no gradients of what it does not use. */
static void share_tensor(declared_t *d)
{
    zero_unit_t unit = any(MAX_UNITS + 2) - 1;
    zero_tensor_t tensor = any(MAX_TENSORS + 2) - 1;
    bool is_null = one_in(20), exists = unit >= 0 && unit < d->n_units && tensor >= 0 && tensor < d->n_tensors;
    bool wrong = is_null || !exists || d->owner[tensor] >= unit;
    note(CALL_model_share_tensor, "%d by %d", tensor, unit);
    zero_status_t status = zero_model_share_tensor(is_null ? NULL : d->model, unit, tensor);
    judge(CALL_model_share_tensor, status, expected(wrong, false));
    if (status != ZERO_OK)
        return;
    d->uses[unit][d->owner[tensor]] = true;
    d->last_user[tensor] = unit > d->last_user[tensor] ? unit : d->last_user[tensor];
}

/* A unit that is sharded in backward has its gradients there and not its parameters. */
static void set_unshard_in_backward(declared_t *d)
{
    zero_unit_t unit = any(MAX_UNITS + 2) - 1;
    bool is_null = one_in(20), unshard = one_in(2), wrong = is_null || unit < 0 || unit >= d->n_units;
    note(CALL_model_set_unshard_in_backward, "%d, %d", unit, unshard);
    zero_status_t status = zero_model_set_unshard_in_backward(is_null ? NULL : d->model, unit, unshard);
    judge(CALL_model_set_unshard_in_backward, status, expected(wrong, false));
    if (status == ZERO_OK)
        d->is_sharded_in_backward[unit] = !unshard;
}

static void check_declared(const declared_t *d)
{
    uint64_t n_params = 0;
    for (int t = 0; t < d->n_tensors; t++)
        n_params += d->n_elems[t];
    EXPECT(zero_model_n_units(d->model) == d->n_units && zero_model_n_tensors(d->model) == d->n_tensors, "counts");
    EXPECT(zero_model_n_params(d->model) == n_params, "%llu", (unsigned long long)zero_model_n_params(d->model));
    for (int unit = -1; unit <= d->n_units; unit++)
        EXPECT(!zero_model_unit_name(d->model, unit) == (unit < 0 || unit == d->n_units), "name of %d", unit);
}

void declare(declared_t *d)
{
    *d = (declared_t){0};
    OK(zero_model_create(&d->model));
    while (d->n_units == 0 || d->n_tensors == 0 || !one_in(20)) {
        int what = any(10);
        if (what < 3)
            add_unit(d);
        else if (what < 6)
            add_tensor(d);
        else if (what < 9)
            share_tensor(d);
        else
            set_unshard_in_backward(d);
        check_declared(d);
    }
}

/* ---- configurations and plans ---- */

zero_config_t any_config(void)
{
    zero_config_t c = zero_config_default();
    c.stage = any(4);
    c.dtype = (zero_dtype_t)any(3);
    c.micro_steps = 1 + any(3);
    c.prefetch = one_in(4) ? 100 : any(4);
    c.keep = one_in(4) ? ZERO_KEEP_AUTO : any(4);
    c.overlap = one_in(2);
    c.reduce_every_micro_step = one_in(2);
    c.grad_clip = one_in(2) ? 0.0f : 1.0f;
    c.max_skipped_steps = 1 + any(4);
    c.initial_loss_scale = 1024.0f;
    c.loss_scale_window = 1 + any(3);
    c.staging_bytes = one_in(2) ? 1 : c.staging_bytes;
    c.offload = one_in(4); /* on the CPU it means nothing */
    c.gather_fp8 = c.dtype == ZERO_BF16 && one_in(2);
    return c;
}

/* Sets one number out of its range. */
void spoil(zero_config_t *c)
{
    switch (any(14)) {
    case 0:
        c->stage = 4 - 5 * any(2);
        break;
    case 1:
        c->dtype = (zero_dtype_t)(3 + any(5));
        break;
    case 2:
        c->micro_steps = -any(2);
        break;
    case 3:
        c->prefetch = -1 - any(2);
        break;
    case 4:
        c->beta1 = one_in(2) ? 1.0f : -0.1f;
        break;
    case 5:
        c->beta2 = NAN;
        break;
    case 6:
        c->eps = -1.0f;
        break;
    case 7:
        c->grad_clip = INFINITY;
        break;
    case 8:
        c->max_skipped_steps = 0;
        break;
    case 9:
        c->initial_loss_scale = 0.5f;
        break;
    case 10:
        c->offload_ram = 0.0f;
        break;
    case 11:
        c->keep = -2 - any(3);
        break;
    case 12:
        c->dtype = ZERO_FP32;
        c->gather_fp8 = true;
        break;
    default:
        c->loss_scale_window = 0;
        break;
    }
}

void plan(session_t *s)
{
    zero_memory_t memory;
    zero_config_t config = any_config();
    bool is_bad = one_in(4);
    int how = any(8);
    if (is_bad)
        spoil(&config);
    note(CALL_plan, "way %d, bad %d", how, is_bad);
    zero_status_t status = zero_plan(how == 0 ? NULL : s->declared.model, how == 1 ? NULL : &config,
                                     how == 5 ? ZERO_DEVICE_AUTO : ZERO_DEVICE_CPU,
                                     how == 2 ? (zero_comm_kind_t)3 : (zero_comm_kind_t)any(2),
                                     how == 3 ? 0 : 1 + any(MAX_PLANNED_RANKS), how == 4 ? NULL : &memory);
    judge(CALL_plan, status,
          (how <= 5 ? MAY(ERROR_ARGUMENT) : 0) | (is_bad ? MAY(ERROR_USAGE) : 0) | (how > 5 && !is_bad ? MAY(OK) : 0));
    EXPECT(status != ZERO_OK || zero_memory_total(&memory) > 0, "nothing is planned");
}

/* What the ranks receive from other hosts is what they send. */
void plan_traffic(session_t *s)
{
    zero_traffic_t traffic[MAX_PLANNED_RANKS];
    int hosts[MAX_PLANNED_RANKS];
    zero_config_t config = any_config();
    uint64_t received = 0, sent = 0;
    bool is_bad = one_in(4);
    int how = any(8), n_ranks = how == 3 ? 0 : 1 + any(MAX_PLANNED_RANKS);
    if (is_bad)
        spoil(&config);
    for (int rank = 0; rank < MAX_PLANNED_RANKS; rank++)
        hosts[rank] = any(3);
    note(CALL_plan_traffic, "way %d, bad %d", how, is_bad);
    zero_status_t status = zero_plan_traffic(how == 0 ? NULL : s->declared.model, how == 1 ? NULL : &config,
                                             how == 5 ? ZERO_DEVICE_AUTO : ZERO_DEVICE_CPU, (zero_comm_kind_t)any(2),
                                             n_ranks, how == 2 ? NULL : hosts, how == 4 ? NULL : traffic);
    judge(CALL_plan_traffic, status,
          (how <= 5 ? MAY(ERROR_ARGUMENT) : 0) | (is_bad ? MAY(ERROR_USAGE) : 0) | (how > 5 && !is_bad ? MAY(OK) : 0));
    for (int rank = 0; rank < n_ranks && status == ZERO_OK; rank++) {
        received += traffic[rank].received_bytes;
        sent += traffic[rank].sent_bytes;
    }
    EXPECT(received == sent, "%llu bytes received, %llu sent", (unsigned long long)received, (unsigned long long)sent);
}
