/* stash.c - buffers that wait in host memory from a forward pass to its backward pass: zero_stash_create and the calls
 * around a buffer's use.
 *
 * n buffers take turns in S slots of device memory, buffer i in slot i % S. With 5 buffers and 2 slots:
 *
 *     caller's stream   write 0  write 1  write 2  write 3  write 4 | read 4  read 3  read 2  read 1  read 0
 *     out                        0        1        2                |
 *     in                                                            |         2       1       0
 *
 * The last S stay in their slots. What must hold: a copy comes behind the use of its slot before it (`used`), and the
 * slot's next use behind the copy (`copied`). That orders the copies of one buffer, too: in backward, buffer i comes
 * back behind a use of buffer i + S, which was written behind i's copy to the host.
 *
 * On a device whose work is done when a call returns, all memory is the host's: then each buffer has its own slot.
 */
#include <stdlib.h>

#include "base/log.h"
#include "zero/device/device.h"
#include "zero/engine/engine.h"
#include "zero/offload/host_pool.h"
#include "zero/plan/plan.h"

#define ALIGNMENT 256

typedef struct slot {
    unsigned char *data;
    zero_event_t used;   /* in the caller's stream: written, or read for the last time */
    zero_event_t copied; /* behind its last copy */
    bool is_copying;     /* nobody has waited for that copy */
} slot_t;

struct zero_stash {
    zero_stash_t *next; /* in the engine's list */
    zero_engine_t *engine;
    int n_buffers, n_slots;
    size_t buffer_bytes; /* rounded */
    unsigned char *host; /* buffers 0..n_buffers - n_slots - 1; NULL: there are none */
    uint64_t host_bytes;
    bool is_pinned;
    zero_stream_t out, in;
    int position; /* calls of this pass, of 2 for each write and each read */
    slot_t slots[];
};

/* ---- plan ---- */

static size_t rounded(size_t n_bytes)
{
    return (n_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static zero_status_t check_sizes(const char *call, int n_buffers, size_t buffer_bytes, int n_slots)
{
    const size_t most = SIZE_MAX / 4;
    if (n_buffers < 1 || n_slots < 1 || buffer_bytes < 1)
        return zero_fail(ZERO_ERROR_ARGUMENT, "%s: %d buffers of %zu bytes, %d slots: each must be at least 1", call,
                         n_buffers, buffer_bytes, n_slots);
    if (buffer_bytes > most / (size_t)n_buffers - ALIGNMENT)
        return zero_fail(ZERO_ERROR_OVERFLOW, "%s: %d buffers of %zu bytes are more than can be counted", call,
                         n_buffers, buffer_bytes);
    return ZERO_OK;
}

/* Returns how many slots are allocated. on_gpu: buffers are copied to the host and back. */
static int count_slots(bool on_gpu, int n_buffers, int n_slots)
{
    return on_gpu && n_slots < n_buffers ? n_slots : n_buffers;
}

zero_status_t zero_stash_plan(zero_device_type_t device, int n_buffers, size_t buffer_bytes, int n_slots,
                              zero_memory_t *memory)
{
    ZERO_REQUIRE(memory);
    ZERO_TRY(zero_plan_check_device("zero_stash_plan", device));
    ZERO_TRY(check_sizes("zero_stash_plan", n_buffers, buffer_bytes, n_slots));
    const int n = count_slots(device != ZERO_DEVICE_CPU, n_buffers, n_slots);
    memory->bytes[ZERO_MEMORY_ACTIVATIONS] += (uint64_t)n * rounded(buffer_bytes);
    memory->pinned_bytes += (uint64_t)(n_buffers - n) * rounded(buffer_bytes);
    return ZERO_OK;
}

/* ---- create ---- */

/* The plan must have counted the host's memory: all ranks of a host were compared with its room then. */
static zero_status_t check_planned(const zero_stash_t *stash)
{
    const zero_context_t *context = &stash->engine->context;
    const double mib = 1024.0 * 1024.0;
    const uint64_t planned = context->plan.memory.pinned_bytes + context->config.user_pinned_bytes;
    const uint64_t left = planned - context->memory.pinned_bytes;
    if (stash->host_bytes <= left)
        return ZERO_OK;
    return zero_fail(
        ZERO_ERROR_MEMORY,
        "zero_stash_create takes %.1f MiB of host memory, and %.1f are left of the %.1f of zero_config_t's "
        "user_pinned_bytes: set that to what zero_stash_plan counts",
        (double)stash->host_bytes / mib, (double)left / mib, (double)context->config.user_pinned_bytes / mib);
}

/* Touches this thread's part first, so that its pages are near it and the device. */
static void touch_part(void *args, int item, int part, int n_parts)
{
    const zero_stash_t *stash = args;
    const uint64_t n_pieces = stash->host_bytes / ALIGNMENT;
    const uint64_t from = n_pieces * (uint64_t)part / (uint64_t)n_parts * ALIGNMENT;
    const uint64_t to = n_pieces * ((uint64_t)part + 1) / (uint64_t)n_parts * ALIGNMENT;
    (void)item;
    zero_host_touch(stash->host + from, to - from);
}

static zero_status_t allocate_host_memory(zero_stash_t *stash, const cpu_set_t *cores)
{
    zero_context_t *context = &stash->engine->context;
    zero_device_t *device = context->device;
    zero_host_pool_t *pool;
    void *host;
    if (stash->host_bytes == 0)
        return ZERO_OK;
    ZERO_TRY(check_planned(stash));
    ZERO_TRY(zero_host_map(stash->host_bytes, &host));
    stash->host = host;
    const int n_threads =
        zero_host_cores_n_threads(cores, context->config.offload_threads, context->host_comm->job_local_size);
    ZERO_TRY(zero_host_pool_create(cores, n_threads, 1, &pool));
    zero_host_pool_start(pool, 1, touch_part, stash);
    zero_host_pool_await(pool, 0);
    zero_host_pool_destroy(pool);
    stash->is_pinned = device->ops->host_pin && device->ops->host_pin(device, host, stash->host_bytes) == ZERO_OK;
    if (!stash->is_pinned)
        zero_log(ZERO_LOG_WARNING,
                 "zero_stash_create goes on with memory that is not pinned, whose copies are slow and block the host: "
                 "%.2f GiB could not be pinned. Raise the limit of locked memory (ulimit -l unlimited; in containers "
                 "--ulimit memlock=-1) or the container's memory",
                 (double)stash->host_bytes / (1024.0 * 1024.0 * 1024.0));
    return ZERO_OK;
}

static zero_status_t create_streams(zero_stash_t *stash)
{
    zero_device_t *device = stash->engine->context.device;
    if (stash->host_bytes == 0)
        return ZERO_OK;
    ZERO_TRY(device->ops->stream_create(device, true, &stash->out));
    ZERO_TRY(device->ops->stream_create(device, true, &stash->in));
    for (int i = 0; i < stash->n_slots; i++) {
        ZERO_TRY(device->ops->event_create(device, false, &stash->slots[i].used));
        ZERO_TRY(device->ops->event_create(device, false, &stash->slots[i].copied));
    }
    return ZERO_OK;
}

/* Allocates device memory last: the engine owns it from then on. */
static zero_status_t create(zero_stash_t *stash, const cpu_set_t *cores)
{
    void *data;
    ZERO_TRY(allocate_host_memory(stash, cores));
    ZERO_TRY(create_streams(stash));
    ZERO_TRY(zero_alloc(stash->engine, ZERO_MEMORY_ACTIVATIONS, (size_t)stash->n_slots * stash->buffer_bytes, &data));
    for (int i = 0; i < stash->n_slots; i++)
        stash->slots[i].data = (unsigned char *)data + (size_t)i * stash->buffer_bytes;
    return ZERO_OK;
}

static void destroy(zero_stash_t *stash)
{
    zero_device_t *device = stash->engine->context.device;
    for (int i = 0; i < stash->n_slots; i++) {
        device->ops->event_destroy(device, stash->slots[i].used);
        device->ops->event_destroy(device, stash->slots[i].copied);
    }
    if (stash->out)
        device->ops->stream_destroy(device, stash->out);
    if (stash->in)
        device->ops->stream_destroy(device, stash->in);
    if (stash->is_pinned)
        device->ops->host_unpin(device, stash->host);
    zero_host_unmap(stash->host, stash->host_bytes);
    free(stash);
}

void zero_engine_free_stashes(zero_engine_t *engine)
{
    for (zero_stash_t *stash = engine->stashes, *next; stash; stash = next) {
        next = stash->next;
        destroy(stash);
    }
    engine->stashes = NULL;
}

static zero_status_t create_together(zero_stash_t *stash, zero_comm_t *comm)
{
    cpu_set_t cores;
    CPU_ZERO(&cores);
    if (stash->host_bytes > 0)
        ZERO_TRY(zero_offload_find_cores(&stash->engine->context, &cores));
    return zero_comm_agree(comm, create(stash, &cores));
}

zero_status_t zero_stash_create(zero_engine_t *engine, int n_buffers, size_t buffer_bytes, int n_slots,
                                zero_stash_t **stash)
{
    ZERO_REQUIRE(engine);
    ZERO_REQUIRE(stash);
    ZERO_TRY(check_sizes("zero_stash_create", n_buffers, buffer_bytes, n_slots));
    if (engine->started)
        return zero_fail(ZERO_ERROR_ORDER,
                         "zero_stash_create after the first zero_begin: memory is planned before step 0");
    zero_context_t *context = &engine->context;
    const int n = count_slots(context->device->ops->join != NULL, n_buffers, n_slots);
    zero_stash_t *made = calloc(1, sizeof *made + (size_t)n * sizeof made->slots[0]);
    if (!made)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for the tables of %d buffers", n_buffers);
    made->engine = engine;
    made->n_buffers = n_buffers;
    made->n_slots = n;
    made->buffer_bytes = rounded(buffer_bytes);
    made->host_bytes = (uint64_t)(n_buffers - n) * made->buffer_bytes;
    zero_context_enter(context, "zero_stash_create");
    zero_status_t status = create_together(made, context->host_comm);
    if (status != ZERO_OK) {
        destroy(made);
        return zero_comm_leave(context->host_comm, status);
    }
    context->memory.pinned_bytes += made->host_bytes;
    made->next = engine->stashes;
    engine->stashes = made;
    *stash = made;
    return zero_comm_leave(context->host_comm, ZERO_OK);
}

void *zero_stash_buffer(const zero_stash_t *stash, int buffer)
{
    return stash && buffer >= 0 && buffer < stash->n_buffers ? stash->slots[buffer % stash->n_slots].data : NULL;
}

/* ---- the order ---- */

typedef enum use { BEGIN_WRITE, END_WRITE, BEGIN_READ, END_READ } use_t;

static const char *const CALLS[] = {"zero_stash_begin_write", "zero_stash_end_write", "zero_stash_begin_read",
                                    "zero_stash_end_read"};

/* Returns the place of a call in a pass: writes in ascending order, then reads in descending order. */
static int position_of(const zero_stash_t *stash, use_t use, int buffer)
{
    const bool reads = use == BEGIN_READ || use == END_READ;
    return 2 * (reads ? 2 * stash->n_buffers - 1 - buffer : buffer) + (use == END_WRITE || use == END_READ);
}

/* A pass may begin at any time: the one before may have been cancelled. */
static zero_status_t advance(zero_stash_t *stash, use_t use, int buffer)
{
    if (buffer < 0 || buffer >= stash->n_buffers)
        return zero_fail(ZERO_ERROR_ARGUMENT, "%s(%d): there are %d buffers", CALLS[use], buffer, stash->n_buffers);
    const int position = position_of(stash, use, buffer), n = stash->n_buffers;
    if (position != stash->position && position != 0) {
        const int turn = stash->position / 2, expected = turn < n ? turn : 2 * n - 1 - turn;
        return zero_fail(ZERO_ERROR_ORDER, "%s(%d): %s(%d) comes now", CALLS[use], buffer,
                         CALLS[(turn < n ? BEGIN_WRITE : BEGIN_READ) + stash->position % 2], expected);
    }
    stash->position = (position + 1) % (4 * n);
    return ZERO_OK;
}

/* ---- a buffer's use ---- */

static slot_t *slot_of(zero_stash_t *stash, int buffer)
{
    return &stash->slots[buffer % stash->n_slots];
}

/* Makes `stream`, which is about to use the buffer's slot, wait for its last copy. */
static zero_status_t await_copy(zero_stash_t *stash, int buffer, zero_stream_t stream)
{
    slot_t *slot = slot_of(stash, buffer);
    if (!slot->is_copying)
        return ZERO_OK;
    slot->is_copying = false;
    return zero_streams_compute_wait(&stash->engine->context, ZERO_WAIT_OFFLOAD, -1, slot->copied, stream);
}

/* Copies a buffer between its slot, which has been used in `stream`, and the host. */
static zero_status_t copy(zero_stash_t *stash, int buffer, bool is_out, zero_stream_t stream)
{
    zero_context_t *context = &stash->engine->context;
    zero_device_t *device = context->device;
    slot_t *slot = slot_of(stash, buffer);
    unsigned char *host = stash->host + (size_t)buffer * stash->buffer_bytes;
    const zero_stream_t copies = is_out ? stash->out : stash->in;
    ZERO_TRY(device->ops->event_record(device, slot->used, stream));
    ZERO_TRY(device->ops->stream_wait(device, copies, slot->used));
    ZERO_TRY(
        zero_device_copy(device, is_out ? host : slot->data, is_out ? slot->data : host, stash->buffer_bytes, copies));
    ZERO_TRY(device->ops->event_record(device, slot->copied, copies));
    slot->is_copying = true;
    *(is_out ? &context->stats.to_host_bytes : &context->stats.to_gpu_bytes) += stash->buffer_bytes;
    return ZERO_OK;
}

zero_status_t zero_stash_begin_write(zero_stash_t *stash, int buffer, zero_stream_t stream)
{
    ZERO_REQUIRE(stash);
    ZERO_TRY(advance(stash, BEGIN_WRITE, buffer));
    return await_copy(stash, buffer, stream);
}

zero_status_t zero_stash_end_write(zero_stash_t *stash, int buffer, zero_stream_t stream)
{
    ZERO_REQUIRE(stash);
    ZERO_TRY(advance(stash, END_WRITE, buffer));
    return buffer + stash->n_slots < stash->n_buffers ? copy(stash, buffer, true, stream) : ZERO_OK;
}

zero_status_t zero_stash_begin_read(zero_stash_t *stash, int buffer, zero_stream_t stream)
{
    ZERO_REQUIRE(stash);
    ZERO_TRY(advance(stash, BEGIN_READ, buffer));
    return await_copy(stash, buffer, stream);
}

zero_status_t zero_stash_end_read(zero_stash_t *stash, int buffer, zero_stream_t stream)
{
    ZERO_REQUIRE(stash);
    ZERO_TRY(advance(stash, END_READ, buffer));
    return buffer >= stash->n_slots ? copy(stash, buffer - stash->n_slots, false, stream) : ZERO_OK;
}
