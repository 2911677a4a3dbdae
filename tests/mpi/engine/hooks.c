/* hooks.c - the caller's functions of engine_cases: hooks on reduced gradients and updated weights, and an optimizer of
 * its own. */
#include <math.h>

#include "tests/mpi/engine/cases.h"
#include "tests/mpi/settings.h"

/* The fp32 expressions of zero_shard_kernels_t's nesterov, on host memory. */
static zero_status_t own_nesterov(void *user, const zero_own_update_t *u, zero_stream_t stream)
{
    const float momentum = *(const float *)user;
    (void)stream;
    CHECK(!u->v && u->n_elems > 0 && (*u->skip || *u->step > 0), "update of %d", u->tensor);
    for (size_t i = 0; i < u->n_elems && !*u->skip; i++) {
        float g = fmaf(u->decay, u->weight[i], u->grad[i] * *u->grad_scale);
        u->m[i] = fmaf(momentum, u->m[i], g);
        u->weight[i] = fmaf(-u->lr, fmaf(momentum, u->m[i], g), u->weight[i]);
    }
    return ZERO_OK;
}

hooked_t hooked;

/* They work on the host, in a buffer of their own: they are called between a program's own downloads and uploads. */
static float hook_buffer[MAX_ROWS * 64];

static void fetch(const void *data, size_t n_elems, zero_stream_t stream)
{
    CHECK(n_elems * sizeof(float) <= sizeof hook_buffer, "%zu elements", n_elems);
    OK(zero_device_copy(hooked.device, hook_buffer, data, n_elems * sizeof(float), stream));
    OK(zero_device_synchronize(hooked.device));
}

static void store(void *data, size_t n_elems, zero_stream_t stream)
{
    OK(zero_device_copy(hooked.device, data, hook_buffer, n_elems * sizeof(float), stream));
    OK(zero_device_synchronize(hooked.device));
}

static zero_status_t see_reduced(void *user, const zero_reduced_t *reduced, zero_stream_t stream)
{
    float scale;
    CHECK(user == &hooked && reduced->step == (uint64_t)hooked.step && reduced->n_elems > 0, "reduced");
    hooked.n_reduced += reduced->n_elems;
    if (!hooked.adds)
        return ZERO_OK;
    OK(zero_device_copy(hooked.device, &scale, reduced->loss_scale, sizeof scale, stream));
    fetch(reduced->grad, reduced->n_elems, stream);
    for (size_t i = 0; i < reduced->n_elems; i++)
        hook_buffer[i] += noise(reduced->tensor, reduced->first + i, hooked.step) * scale;
    store(reduced->grad, reduced->n_elems, stream);
    return ZERO_OK;
}

static zero_status_t see_updated(void *user, const zero_own_update_t *update, zero_stream_t stream)
{
    uint32_t skip;
    CHECK(user == &hooked && update->n_elems > 0, "updated");
    hooked.n_updated += update->n_elems;
    if (!hooked.clamps)
        return ZERO_OK;
    OK(zero_device_copy(hooked.device, &skip, update->skip, sizeof skip, stream));
    fetch(update->weight, update->n_elems, stream);
    for (size_t i = 0; i < update->n_elems && !skip; i++)
        hook_buffer[i] = fminf(fmaxf(hook_buffer[i], (float)-LARGEST_WEIGHT), (float)LARGEST_WEIGHT);
    store(update->weight, update->n_elems, stream);
    return ZERO_OK;
}

const zero_hooks_t see_both = {.reduced = see_reduced, .updated = see_updated, .user = &hooked};

const zero_hooks_t see_gradients = {.reduced = see_reduced, .user = &hooked};

/* Each element of a reduced gradient was seen once, and each weight by those who hold its state. */
void check_hooks(zero_comm_t *comm, const toy_t *toy, const settings_t *s)
{
    const uint64_t n = zero_model_n_params(toy->model), n_holders = s->stage == 0 ? (uint64_t)zero_comm_size(comm) : 1;
    double seen[2] = {(double)hooked.n_reduced, (double)hooked.n_updated};
    if (s->hooks == NO_HOOKS)
        return;
    OK(zero_comm_sum(comm, seen, 2));
    CHECK((uint64_t)seen[0] == n, "%.0f elements of reduced gradients were seen", seen[0]);
    CHECK((uint64_t)seen[1] == (s->hooks == NOISE ? 0 : n * n_holders), "%.0f updated elements were seen", seen[1]);
}

static float own_momentum = 0.9f;

const zero_own_optimizer_t own_optimizer = {
    .name = "own nesterov", .n_arrays = 1, .update = own_nesterov, .user = &own_momentum};
