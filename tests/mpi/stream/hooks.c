/* hooks.c - the hooks of stream_cases: each reads and changes what it is given in the stream, by formula. */
#include <string.h>
#include <unistd.h>

#include "tests/mpi/settings.h"
#include "tests/mpi/stream/cases.h"

typedef struct hooked {
    float *values;
    size_t n_elems;
    uint64_t key; /* of the first */
    const uint32_t *skip;
    const float *scale;
} hooked_t;

/* Reads what is there twice, with a pause between: whoever writes or reads it without waiting is found. */
static void do_hooked(void *args)
{
    const hooked_t *h = args;
    const float scale = h->scale ? *h->scale : 1.0f, first = h->values[0];
    if (h->skip && *h->skip)
        return;
    usleep(100);
    CHECK(memcmp(&h->values[0], &first, sizeof first) == 0, "written while a hook reads");
    for (size_t i = 0; i < h->n_elems; i++)
        h->values[i] += scale * ((float)((h->key + i) * 2654435761u % 63) - 31.0f) / 1024.0f;
}

static uint64_t hook_key(zero_tensor_t tensor, uint64_t first, uint64_t step)
{
    return first + 7 * (uint64_t)tensor + 1009 * step;
}

static zero_status_t hook_reduced(void *user, const zero_reduced_t *r, zero_stream_t stream)
{
    const hooked_t h = {.values = r->grad,
                        .n_elems = r->n_elems,
                        .key = hook_key(r->tensor, r->first, r->step),
                        .scale = r->loss_scale};
    (void)stream; /* the run's, but for a gradient that is asked for */
    queue(*(run_t **)user, do_hooked, &h, sizeof h);
    return ZERO_OK;
}

static zero_status_t hook_updated(void *user, const zero_own_update_t *u, zero_stream_t stream)
{
    const hooked_t h = {
        .values = u->weight, .n_elems = u->n_elems, .key = hook_key(u->tensor, u->first, 0), .skip = u->skip};
    (void)stream;
    queue(*(run_t **)user, do_hooked, &h, sizeof h);
    return ZERO_OK;
}

run_t *hooked_run;

const zero_hooks_t gradient_hooks = {.reduced = hook_reduced, .user = &hooked_run};

const zero_hooks_t all_hooks = {.reduced = hook_reduced, .updated = hook_updated, .user = &hooked_run};
