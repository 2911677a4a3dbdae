/* all_to_all.c - exchanges of the caller's own data among groups of consecutive ranks: zero_all_to_all_create and the
 * calls of an exchange.
 *
 * Each group has a communicator of its own, between its ranks' devices the same transports as an engine has. So its
 * fences wait for its own ranks alone, and share no lane with gathers and reductions, whatever streams those are in.
 *
 * The window holds two sets of slices, used in turn. What must hold: a set is overwritten only behind the fence of the
 * exchange after the one that published it. A rank comes to that fence behind its reads of the set, so one fence for
 * each exchange is enough. The same fence lets `staging` be used again, since only this rank reads it.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "zero/device/device.h"
#include "zero/engine/compare.h"
#include "zero/engine/engine.h"
#include "zero/plan/plan.h"

#define ALIGNMENT 256
#define N_SETS 2

struct zero_all_to_all_exchange {
    zero_all_to_all_t *next; /* in the engine's list */
    zero_engine_t *engine;
    int group;
    size_t most_bytes;    /* from rank to rank, as asked for */
    size_t slice_bytes;   /* the same, rounded */
    zero_comm_t *ranks;   /* of the group, between host memories */
    zero_comm_t *comm;    /* and between devices: `ranks` on the CPU */
    zero_window_t window; /* [N_SETS][group][slice_bytes] */
    void *staging;        /* staging_bytes; NULL: slices are read where they are */
    size_t staging_bytes;
    uint64_t n_bytes; /* of all, as planned */
    uint64_t n_exchanges;
};

/* ---- plan ---- */

static size_t rounded(size_t n_bytes)
{
    return (n_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static zero_status_t check_sizes(const char *call, int group, size_t slice_bytes)
{
    const size_t most = SIZE_MAX / 8;
    if (group < 1 || slice_bytes < 1)
        return zero_fail(ZERO_ERROR_ARGUMENT, "%s: a group of %d ranks, slices of %zu bytes: each must be at least 1",
                         call, group, slice_bytes);
    if (slice_bytes > most / (size_t)group - ALIGNMENT)
        return zero_fail(ZERO_ERROR_OVERFLOW, "%s: slices of %zu bytes for %d ranks are more than can be counted", call,
                         slice_bytes, group);
    return ZERO_OK;
}

/* needs_staging: the transport copies slices to the rank that reads them. */
static uint64_t count_bytes(int group, size_t slice_bytes, bool needs_staging)
{
    const size_t set = (size_t)group * rounded(slice_bytes);
    return N_SETS * set + (needs_staging ? zero_comm_staging_bytes(group, rounded(slice_bytes)) : 0);
}

zero_status_t zero_all_to_all_plan(zero_device_type_t device, zero_comm_kind_t kind, int group, size_t slice_bytes,
                                   zero_memory_t *memory)
{
    ZERO_REQUIRE(memory);
    ZERO_TRY(zero_plan_check_device("zero_all_to_all_plan", device));
    ZERO_TRY(check_sizes("zero_all_to_all_plan", group, slice_bytes));
    memory->bytes[ZERO_MEMORY_COMMUNICATION] +=
        count_bytes(group, slice_bytes, device != ZERO_DEVICE_CPU || kind == ZERO_COMM_MPI);
    return ZERO_OK;
}

/* ---- create ---- */

/* Ranks that ask for something else would wait for each other forever. */
static zero_status_t compare(zero_comm_t *comm, int group, size_t slice_bytes)
{
    ZERO_TRY(zero_compare_number(comm, "the number of ranks in a group", group));
    return zero_compare_number(comm, "the number of bytes in a slice", (int64_t)slice_bytes);
}

static zero_status_t create(zero_all_to_all_t *made)
{
    const zero_context_t *context = &made->engine->context;
    zero_device_t *device = context->device;
    ZERO_TRY(zero_comm_split(context->host_comm, made->group, "zero_all_to_all_create", &made->ranks));
    zero_context_enter_group(context, made->ranks, "zero_all_to_all_create");
    ZERO_TRY(zero_device_comm_create(device, made->ranks, false, &made->comm));
    made->staging_bytes = made->comm->ops->staging_bytes(made->group, made->slice_bytes);
    ZERO_TRY(
        made->comm->ops->window_create(made->comm, N_SETS * (size_t)made->group * made->slice_bytes, &made->window));
    made->n_bytes = count_bytes(made->group, made->slice_bytes, made->staging_bytes > 0);
    return made->staging_bytes > 0 ? device->ops->alloc(device, made->staging_bytes, &made->staging) : ZERO_OK;
}

static bool has_failed(const zero_all_to_all_t *all_to_all)
{
    const zero_context_t *context = &all_to_all->engine->context;
    return context->host_comm->failed || (context->comm && context->comm->failed) ||
           (all_to_all->comm && all_to_all->comm->failed);
}

static void destroy(zero_all_to_all_t *all_to_all)
{
    zero_device_t *device = all_to_all->engine->context.device;
    if (all_to_all->ranks) {
        all_to_all->ranks->failed |= has_failed(all_to_all);
        zero_context_enter_group(&all_to_all->engine->context, all_to_all->ranks, "zero_engine_destroy");
    }
    if (all_to_all->staging)
        device->ops->free(device, all_to_all->staging, all_to_all->staging_bytes);
    if (all_to_all->window.n_bytes)
        all_to_all->comm->ops->window_destroy(all_to_all->comm, &all_to_all->window);
    zero_device_comm_destroy(all_to_all->ranks, all_to_all->comm);
    zero_comm_destroy(all_to_all->ranks);
    free(all_to_all);
}

void zero_engine_release_all_to_alls(zero_engine_t *engine)
{
    for (zero_all_to_all_t *a = engine->all_to_alls; a; a = a->next)
        if (a->comm->ops->release)
            a->comm->ops->release(a->comm);
}

void zero_engine_free_all_to_alls(zero_engine_t *engine)
{
    for (zero_all_to_all_t *a = engine->all_to_alls, *next; a; a = next) {
        next = a->next;
        destroy(a);
    }
    engine->all_to_alls = NULL;
}

static zero_status_t create_together(zero_all_to_all_t *made, size_t slice_bytes)
{
    zero_comm_t *comm = made->engine->context.host_comm;
    ZERO_TRY(compare(comm, made->group, slice_bytes));
    const zero_status_t status = create(made);
    return zero_comm_agree(comm, status);
}

zero_status_t zero_all_to_all_create(zero_engine_t *engine, int group, size_t slice_bytes,
                                     zero_all_to_all_t **all_to_all)
{
    ZERO_REQUIRE(engine);
    ZERO_REQUIRE(all_to_all);
    zero_context_t *context = &engine->context;
    ZERO_TRY(check_sizes("zero_all_to_all_create", group, slice_bytes));
    if (context->host_comm->size % group != 0)
        return zero_fail(ZERO_ERROR_ARGUMENT, "zero_all_to_all_create: groups of %d ranks do not divide the %d ranks",
                         group, context->host_comm->size);
    if (engine->started)
        return zero_fail(ZERO_ERROR_ORDER,
                         "zero_all_to_all_create after the first zero_begin: memory is planned before step 0");
    zero_all_to_all_t *made = calloc(1, sizeof *made);
    if (!made)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for an all-to-all");
    *made = (zero_all_to_all_t){
        .engine = engine, .group = group, .most_bytes = slice_bytes, .slice_bytes = rounded(slice_bytes)};
    zero_context_enter(context, "zero_all_to_all_create");
    zero_status_t status = create_together(made, slice_bytes);
    if (status != ZERO_OK) {
        destroy(made);
        return zero_comm_leave(context->host_comm, status);
    }
    context->memory.bytes[ZERO_MEMORY_COMMUNICATION] += made->n_bytes;
    made->next = engine->all_to_alls;
    engine->all_to_alls = made;
    *all_to_all = made;
    return zero_comm_leave(context->host_comm, ZERO_OK);
}

/* ---- an exchange ---- */

/* Returns where the set of slices begins, in the window, that the next exchange publishes. */
static size_t set_offset(const zero_all_to_all_t *all_to_all)
{
    return (size_t)(all_to_all->n_exchanges % N_SETS) * (size_t)all_to_all->group * all_to_all->slice_bytes;
}

zero_status_t zero_all_to_all_slices(const zero_all_to_all_t *all_to_all, void **slices)
{
    ZERO_REQUIRE(all_to_all);
    ZERO_REQUIRE(slices);
    for (int i = 0; i < all_to_all->group; i++)
        slices[i] =
            (unsigned char *)all_to_all->window.local + set_offset(all_to_all) + (size_t)i * all_to_all->slice_bytes;
    return ZERO_OK;
}

static zero_status_t exchange(zero_all_to_all_t *all_to_all, size_t n_bytes, const void **received,
                              zero_stream_t stream)
{
    zero_comm_t *comm = all_to_all->comm;
    if (all_to_all->group > 1)
        ZERO_TRY(comm->ops->fence(comm, ZERO_LANE_GATHER, stream));
    return comm->ops->all_to_all(comm, ZERO_LANE_GATHER, &all_to_all->window, all_to_all->group, set_offset(all_to_all),
                                 all_to_all->slice_bytes, rounded(n_bytes), all_to_all->staging, received, stream);
}

zero_status_t zero_all_to_all(zero_all_to_all_t *all_to_all, size_t n_bytes, const void **received,
                              zero_stream_t stream)
{
    ZERO_REQUIRE(all_to_all);
    ZERO_REQUIRE(received);
    zero_context_t *context = &all_to_all->engine->context;
    char call[64];
    int span;
    if (n_bytes < 1 || n_bytes > all_to_all->most_bytes)
        return zero_fail(ZERO_ERROR_ARGUMENT, "zero_all_to_all: %zu bytes from rank to rank, of 1 to %zu", n_bytes,
                         all_to_all->most_bytes);
    zero_comm_pair(context->comm, "zero_all_to_all", n_bytes);            /* which zero_step compares over all ranks */
    snprintf(call, sizeof call, "zero_all_to_all of %zu bytes", n_bytes); /* fences compare names alone */
    zero_context_enter_group(context, all_to_all->ranks, call);
    context->progress.n_exchanges++;
    context->streams.compute_end = 0;
    ZERO_TRY(zero_streams_begin_wait(context, ZERO_WAIT_EXCHANGE, -1, stream, &span));
    zero_status_t status = exchange(all_to_all, n_bytes, received, stream);
    all_to_all->n_exchanges++;
    if (status == ZERO_OK)
        return zero_streams_end_span(context, span, stream);
    context->host_comm->failed |= all_to_all->comm->failed || all_to_all->ranks->failed;
    return status;
}
