/* async_device.c - streams, events and memory of the asynchronous device: see async_device.h. Its kernels are in
 * async/kernels.c, its transport in async/transport.c. */
#include "tests/support/async/async_device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "base/system.h"
#include "comm/comm.h"
#include "tests/mpi/expect.h"
#include "tests/support/async/async.h"
#include "tests/support/support.h"

#define QUEUE_LENGTH 4096
#define MAX_STREAMS 11

/* ---- streams ---- */

typedef struct task {
    void (*run)(void *args);
    _Alignas(16) unsigned char args[ASYNC_ARGS_BYTES];
} task_t;

/* The order in which the engine and the test make streams tells what they are for. Those of the transport have numbers
 * from FIRST_ASIDE on. */
enum {
    DEFAULT_STREAM,
    GATHER_STREAM,
    REDUCE_STREAM,
    OUT_STREAM,
    UPDATE_STREAM,
    IN_STREAM,
    PARAM_STREAM,
    FIRST_ASIDE = 100
};

typedef struct stream {
    int number;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint64_t n_queued, n_done;
    async_end_t end; /* of what was queued last */
    bool ends;
    uint64_t seed;
    task_t queue[QUEUE_LENGTH];
} stream_t;

static struct {
    zero_device_t device;
    zero_device_ops_t ops;
    zero_shard_kernels_t kernels;
    zero_device_t *cpu;
    async_options_t options;
    stream_t *streams[MAX_STREAMS], *asides[ZERO_N_LANES];
    int n_streams, n_asides;
    bool joins, gathers;     /* in the transport's creation, or its gather */
    int compute;             /* the number of the stream that async_compute_in named */
    int stash_out, stash_in; /* of those that async_expect_stash announced; 0: none */
    uint64_t n_calls[ASYNC_N_CALLS];
    const struct async_event *grads_home; /* the first one of OUT_STREAM that IN_STREAM waited for */
} the;

/* ---- what other parts ask ---- */

const async_options_t *async_options(void)
{
    return &the.options;
}

const zero_shard_kernels_t *async_cpu_kernels(void)
{
    return the.cpu->kernels;
}

void async_set_joining(bool joins)
{
    the.joins = joins;
}

void async_set_gathering(bool gathers)
{
    the.gathers = gathers;
}

/* ---- what is counted ---- */

void async_count(async_call_t call, unsigned n)
{
    the.n_calls[call] += n;
}

uint64_t async_n_calls(async_call_t call)
{
    return the.n_calls[call];
}

const char *async_call_name(async_call_t call)
{
    static const char *const names[] = {
#define NAME(kind, name) name,
        ASYNC_CALL_MAP(NAME)
#undef NAME
    };
    return names[call];
}

/* ---- work ---- */

/* What leaves for the host is slow, as beside other GPUs' copies, so that sums pile up. */
#define OUT_IS_SLOWER 6

static void delay(const stream_t *s, uint64_t *seed)
{
    unsigned slower = s->number == OUT_STREAM      ? OUT_IS_SLOWER
                      : s->number == GATHER_STREAM ? the.options.slow_gathers
                                                   : 0;
    double u = support_uniform(seed), most = (double)the.options.max_delay_us * (slower > 0 ? slower : 1);
    unsigned us = (unsigned)(u * u * u * u * most); /* seldom long */
    if (us > 0)
        usleep(us);
}

static void *work(void *user)
{
    stream_t *s = user;
    prctl(PR_SET_TIMERSLACK, 1); /* a sleep is as long as it says: Linux may else make it 50 us longer */
    pthread_mutex_lock(&s->mutex);
    for (;;) {
        while (s->n_done == s->n_queued && !s->ends)
            pthread_cond_wait(&s->changed, &s->mutex);
        if (s->n_done == s->n_queued)
            break;
        task_t *task = &s->queue[s->n_done % QUEUE_LENGTH];
        pthread_mutex_unlock(&s->mutex);
        delay(s, &s->seed);
        task->run(task->args);
        pthread_mutex_lock(&s->mutex);
        s->n_done++;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

static stream_t *stream_of(zero_stream_t stream)
{
    return stream ? (stream_t *)(void *)stream : the.streams[DEFAULT_STREAM];
}

void async_queue(zero_stream_t stream, void (*run)(void *args), const void *args, size_t n_bytes)
{
    stream_t *s = stream_of(stream);
    CHECK(n_bytes <= ASYNC_ARGS_BYTES, "%zu bytes of arguments", n_bytes);
    pthread_mutex_lock(&s->mutex);
    while (s->n_queued - s->n_done == QUEUE_LENGTH)
        pthread_cond_wait(&s->changed, &s->mutex);
    task_t *task = &s->queue[s->n_queued % QUEUE_LENGTH];
    task->run = run;
    memcpy(task->args, args, n_bytes);
    s->end = ASYNC_ENDS_OTHERWISE;
    s->n_queued++;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
}

void async_mark_end(zero_stream_t stream, async_end_t end)
{
    stream_of(stream)->end = end;
}

static zero_status_t stream_create(zero_device_t *device, bool urgent, zero_stream_t *stream)
{
    (void)device, (void)urgent;
    CHECK(the.joins ? the.n_asides < ZERO_N_LANES : the.n_streams < MAX_STREAMS, "too many streams");
    stream_t *s = calloc(1, sizeof *s);
    CHECK(s, "no memory");
    s->number = the.joins ? FIRST_ASIDE + the.n_asides : the.n_streams;
    s->seed = the.options.seed * 1000 + (uint64_t)s->number;
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->changed, NULL);
    CHECK(pthread_create(&s->thread, NULL, work, s) == 0, "no thread");
    *(the.joins ? &the.asides[the.n_asides++] : &the.streams[the.n_streams++]) = s;
    *stream = (zero_stream_t)(void *)s;
    return ZERO_OK;
}

/* All streams end with the device: numbers stay what they were. */
static void stream_destroy(zero_device_t *device, zero_stream_t stream)
{
    (void)device, (void)stream;
}

static void drain(stream_t *s)
{
    pthread_mutex_lock(&s->mutex);
    while (s->n_done < s->n_queued)
        pthread_cond_wait(&s->changed, &s->mutex);
    pthread_mutex_unlock(&s->mutex);
}

void async_finish(void)
{
    for (int i = 0; i < the.n_streams; i++)
        drain(the.streams[i]);
    for (int i = 0; i < the.n_asides; i++)
        drain(the.asides[i]);
}

static zero_status_t synchronize(zero_device_t *device)
{
    (void)device;
    async_finish();
    return ZERO_OK;
}

static zero_status_t synchronize_stream(zero_device_t *device, zero_stream_t stream)
{
    (void)device;
    drain(stream_of(stream));
    return ZERO_OK;
}

/* ---- events ---- */

struct async_event {
    bool timed;
    uint64_t n_recorded;        /* by the host */
    int recorded_in;            /* the last record's stream */
    async_end_t follows;        /* what that record follows in its stream */
    _Atomic uint64_t n_reached; /* of those records */
    _Atomic int64_t reached_ns;
};
typedef struct async_event async_event_t;

static async_event_t *event_of(zero_event_t event)
{
    return (async_event_t *)(void *)event;
}

static zero_status_t event_create(zero_device_t *device, bool timed, zero_event_t *event)
{
    (void)device;
    async_event_t *created = calloc(1, sizeof *created);
    CHECK(created, "no memory");
    created->timed = timed;
    *event = (zero_event_t)(void *)created;
    return ZERO_OK;
}

static void event_destroy(zero_device_t *device, zero_event_t event)
{
    (void)device;
    free(event);
}

typedef struct event_task {
    async_event_t *event;
    uint64_t record;
} event_task_t;

static pthread_mutex_t reached_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t one_was_reached = PTHREAD_COND_INITIALIZER;

static void reach(void *args)
{
    event_task_t *t = args;
    pthread_mutex_lock(&reached_mutex);
    atomic_store(&t->event->reached_ns, zero_now_ns());
    atomic_store(&t->event->n_reached, t->record);
    pthread_cond_broadcast(&one_was_reached);
    pthread_mutex_unlock(&reached_mutex);
}

static void await(void *args)
{
    event_task_t *t = args;
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += ASYNC_PATIENCE_S;
    pthread_mutex_lock(&reached_mutex);
    while (atomic_load(&t->event->n_reached) < t->record)
        CHECK(pthread_cond_timedwait(&one_was_reached, &reached_mutex, &deadline) == 0,
              "an event was not reached: deadlock");
    pthread_mutex_unlock(&reached_mutex);
}

static zero_status_t event_record(zero_device_t *device, zero_event_t event, zero_stream_t stream)
{
    (void)device;
    event_task_t t = {event_of(event), ++event_of(event)->n_recorded};
    t.event->recorded_in = stream_of(stream)->number;
    t.event->follows = stream_of(stream)->end;
    async_count(t.event->timed ? ASYNC_TIMED : ASYNC_RECORD, 1);
    async_queue(stream, reach, &t, sizeof t);
    return ZERO_OK;
}

static bool is_left_out(int waiting, const async_event_t *event)
{
    int recorded_in = event->recorded_in;
    bool computes = waiting == the.compute, computed = recorded_in == the.compute;
    switch (the.options.fault) {
    case ASYNC_COMPUTE_AHEAD_OF_GATHER:
        return computes && recorded_in == GATHER_STREAM;
    case ASYNC_GATHER_AHEAD_OF_COMPUTE:
        return waiting == GATHER_STREAM && computed;
    case ASYNC_REDUCE_AHEAD_OF_COMPUTE:
        return waiting == REDUCE_STREAM && computed;
    case ASYNC_COMPUTE_AHEAD_OF_REDUCE:
        return computes && recorded_in == REDUCE_STREAM;
    case ASYNC_STAGING_BEFORE_SUM:
        return waiting == REDUCE_STREAM && computed && event->follows == ASYNC_ENDS_IN_SUM;
    case ASYNC_HOST_AHEAD_OF_DEVICE:
        return waiting == OUT_STREAM || waiting == UPDATE_STREAM;
    case ASYNC_DEVICE_AHEAD_OF_HOST:
        return recorded_in == IN_STREAM || waiting == IN_STREAM;
    case ASYNC_COMPUTE_AHEAD_OF_COPY:
        return computes && recorded_in == OUT_STREAM;
    case ASYNC_UPDATE_AHEAD_OF_DECISION:
        return waiting == UPDATE_STREAM && computed;
    case ASYNC_UPDATE_AHEAD_OF_FETCH:
        return waiting == UPDATE_STREAM && recorded_in == IN_STREAM;
    case ASYNC_STORE_AHEAD_OF_UPDATE:
        return waiting == OUT_STREAM && recorded_in == UPDATE_STREAM;
    case ASYNC_FETCH_AHEAD_OF_STORE:
        return waiting == IN_STREAM && recorded_in == OUT_STREAM && event != the.grads_home;
    case ASYNC_FETCH_AHEAD_OF_GRADS:
        return waiting == IN_STREAM && event == the.grads_home;
    case ASYNC_FETCH_AHEAD_OF_COMPUTE:
        return waiting == IN_STREAM && computed;
    case ASYNC_GATHER_AHEAD_OF_UPDATE:
        return waiting == GATHER_STREAM && recorded_in == UPDATE_STREAM;
    case ASYNC_PARAMS_AHEAD_OF_STORE:
        return (waiting == PARAM_STREAM || waiting == GATHER_STREAM) && recorded_in == OUT_STREAM;
    case ASYNC_FETCH_AHEAD_OF_PEERS:
        return waiting == PARAM_STREAM && recorded_in == GATHER_STREAM;
    case ASYNC_GATHER_AHEAD_OF_FETCH:
        return waiting == GATHER_STREAM && recorded_in == PARAM_STREAM;
    case ASYNC_COMPUTE_AHEAD_OF_SUMS:
        return computes && recorded_in == PARAM_STREAM;
    case ASYNC_STASH_AHEAD_OF_COMPUTE:
        return waiting == the.stash_out;
    case ASYNC_COMPUTE_AHEAD_OF_STASH:
        return computes && recorded_in == the.stash_out;
    case ASYNC_REFILL_AHEAD_OF_COMPUTE:
        return waiting == the.stash_in;
    case ASYNC_COMPUTE_AHEAD_OF_REFILL:
        return computes && recorded_in == the.stash_in;
    case ASYNC_SEND_AHEAD_OF_WRITE:
        return waiting >= FIRST_ASIDE && event->follows != ASYNC_ENDS_IN_INNER_FENCE;
    case ASYNC_SUM_AHEAD_OF_RECEIVE:
        return !the.gathers && recorded_in >= FIRST_ASIDE;
    case ASYNC_COPY_AHEAD_OF_RECEIVE:
        return the.gathers && recorded_in >= FIRST_ASIDE;
    case ASYNC_RECEIVE_AHEAD_OF_COPY:
        return waiting >= FIRST_ASIDE && event->follows == ASYNC_ENDS_IN_INNER_FENCE;
    default:
        return false;
    }
}

void async_compute_in(zero_stream_t stream)
{
    the.compute = stream_of(stream)->number;
}

void async_expect_stash(void)
{
    the.stash_out = the.n_streams;
    the.stash_in = the.n_streams + 1;
}

static zero_status_t stream_wait(zero_device_t *device, zero_stream_t stream, zero_event_t event)
{
    (void)device;
    event_task_t t = {event_of(event), event_of(event)->n_recorded};
    int waiting = stream_of(stream)->number;
    async_count(ASYNC_WAIT, 1);
    if (waiting == IN_STREAM && !the.grads_home && t.event->n_recorded > 0 && t.event->recorded_in == OUT_STREAM)
        the.grads_home = t.event;
    if (!is_left_out(waiting, t.event))
        async_queue(stream, await, &t, sizeof t);
    return ZERO_OK;
}

typedef struct host_task {
    void (*fn)(void *args);
    void *args;
} host_task_t;

static void do_host_call(void *args)
{
    host_task_t *t = args;
    t->fn(t->args);
}

static zero_status_t host_call(zero_device_t *device, zero_stream_t stream, void (*fn)(void *args), void *args)
{
    (void)device;
    async_count(ASYNC_HOST_CALL, 1);
    async_queue(stream, do_host_call, &(host_task_t){fn, args}, sizeof(host_task_t));
    return ZERO_OK;
}

static zero_status_t event_query(zero_device_t *device, zero_event_t event, bool *reached)
{
    (void)device;
    *reached = atomic_load(&event_of(event)->n_reached) == event_of(event)->n_recorded;
    return ZERO_OK;
}

static zero_status_t event_elapsed_ms(zero_device_t *device, zero_event_t begin, zero_event_t end, double *ms)
{
    (void)device;
    zero_event_t const both[] = {begin, end};
    for (int i = 0; i < 2; i++) /* CUDA tells no time of an event that was recorded again and is not reached */
        CHECK(atomic_load(&event_of(both[i])->n_reached) == event_of(both[i])->n_recorded, "a time of what is to come");
    *ms = (double)(atomic_load(&event_of(end)->reached_ns) - atomic_load(&event_of(begin)->reached_ns)) * 1e-6;
    return ZERO_OK;
}

/* ---- copies and memory ---- */

typedef struct copy_task {
    void *dst;
    const void *src;
    size_t n_bytes;
} copy_task_t;

/* In two halves: a reader that comes too early may see one without the other. */
static void do_copy(void *args)
{
    copy_task_t *t = args;
    size_t half = t->n_bytes / 2;
    memcpy(t->dst, t->src, half);
    if (t->n_bytes > 64)
        usleep(20);
    memcpy((char *)t->dst + half, (const char *)t->src + half, t->n_bytes - half);
}

void async_queue_copy(void *dst, const void *src, size_t n_bytes, zero_stream_t stream)
{
    async_queue(stream, do_copy, &(copy_task_t){dst, src, n_bytes}, sizeof(copy_task_t));
}

static zero_status_t copy(zero_device_t *device, void *dst, const void *src, size_t n_bytes, zero_stream_t stream)
{
    (void)device;
    async_count(ASYNC_COPY, 1);
    async_queue_copy(dst, src, n_bytes, stream);
    return ZERO_OK;
}

static void do_clear(void *args)
{
    const copy_task_t *t = args;
    memset(t->dst, 0, t->n_bytes);
}

static zero_status_t clear(zero_device_t *device, void *data, size_t n_bytes, zero_stream_t stream)
{
    (void)device;
    async_queue(stream, do_clear, &(copy_task_t){.dst = data, .n_bytes = n_bytes}, sizeof(copy_task_t));
    return ZERO_OK;
}

static uint64_t available_bytes(const zero_device_t *device)
{
    return the.options.available ? the.options.available : the.cpu->ops->available_bytes(device);
}

static zero_status_t host_pin(zero_device_t *device, void *data, size_t n_bytes)
{
    (void)device, (void)data, (void)n_bytes;
    return the.options.pins ? ZERO_OK : ZERO_ERROR_UNSUPPORTED;
}

static void host_unpin(zero_device_t *device, void *data)
{
    (void)device;
    CHECK(the.options.pins && data, "unpinned what was not pinned");
}

/* ---- the device ---- */

static void end_stream(stream_t *s)
{
    pthread_mutex_lock(&s->mutex);
    s->ends = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
    pthread_join(s->thread, NULL);
    free(s);
}

static void destroy(zero_device_t *device)
{
    (void)device;
    async_finish();
    while (the.n_streams > 0)
        end_stream(the.streams[--the.n_streams]);
    while (the.n_asides > 0)
        end_stream(the.asides[--the.n_asides]);
    zero_device_destroy(the.cpu);
}

zero_status_t async_device_create(const zero_comm_t *comm, const async_options_t *options, zero_device_t **device)
{
    zero_stream_t stream;
    the.options = *options;
    memset(the.n_calls, 0, sizeof the.n_calls);
    the.grads_home = NULL;
    the.stash_out = the.stash_in = 0;
    OK(zero_device_cpu_create(comm, &the.cpu));
    the.ops = *the.cpu->ops; /* memory */
    the.ops.name = "async";
    the.ops.available_bytes = available_bytes;
    the.ops.host_pin = host_pin;
    the.ops.host_unpin = host_unpin;
    the.ops.copy = copy;
    the.ops.clear = clear;
    the.ops.synchronize = synchronize;
    the.ops.synchronize_stream = synchronize_stream;
    the.ops.stream_create = stream_create;
    the.ops.stream_destroy = stream_destroy;
    the.ops.event_create = event_create;
    the.ops.event_destroy = event_destroy;
    the.ops.event_record = event_record;
    the.ops.stream_wait = stream_wait;
    the.ops.host_call = host_call;
    the.ops.event_query = event_query;
    the.ops.event_elapsed_ms = event_elapsed_ms;
    the.ops.join = async_join;
    the.ops.destroy = destroy;
    the.kernels = *the.cpu->kernels;
    async_kernels_fill(&the.kernels);
    the.device = *the.cpu;
    the.device.ops = &the.ops;
    the.device.kernels = &the.kernels;
    OK(stream_create(&the.device, false, &stream)); /* DEFAULT_STREAM */
    *device = &the.device;
    return ZERO_OK;
}
