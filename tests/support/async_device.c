/* async_device.c - see async_device.h. */
#include "tests/support/async_device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/system.h"
#include "comm/gpu/transports.h"
#include "comm/host/shared_block.h"
#include "tests/mpi/expect.h"
#include "tests/support/async/messages.h"
#include "tests/support/elements.h"
#include "tests/support/support.h"

#define QUEUE_LENGTH 4096
#define MAX_STREAMS 8
#define MAX_RANKS 16
#define PATIENCE_S 30 /* of a wait in a stream: a deadlock ends the program */

/* ---- streams ---- */

typedef struct task {
    void (*run)(void *args);
    _Alignas(16) unsigned char args[ASYNC_ARGS_BYTES];
} task_t;

/* The order in which the engine and the test make streams tells what they are for. Those of the transport have numbers
 * from FIRST_ASIDE on. */
enum { DEFAULT_STREAM, GATHER_STREAM, REDUCE_STREAM, OUT_STREAM, UPDATE_STREAM, IN_STREAM, FIRST_ASIDE = 100 };

typedef struct stream {
    int number;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint64_t n_queued, n_done;
    bool ends_in_sum, ends_in_inner_fence; /* what was queued last; inner: of a gather over rails */
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
    bool joins, gathers; /* in the transport's creation, or its gather */
    int compute;         /* the number of the stream that async_compute_in named */
    uint64_t n_calls[ASYNC_N_CALLS];
    const struct async_event *grads_home; /* the first one of OUT_STREAM that IN_STREAM waited for */
} the;

/* ---- what is counted ---- */

static void count(async_call_t call, unsigned n)
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
    s->ends_in_sum = s->ends_in_inner_fence = false;
    s->n_queued++;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
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

static zero_status_t synchronize(zero_device_t *device)
{
    (void)device;
    for (int i = 0; i < the.n_streams; i++)
        drain(the.streams[i]);
    for (int i = 0; i < the.n_asides; i++)
        drain(the.asides[i]);
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
    uint64_t n_recorded;                   /* by the host */
    int recorded_in;                       /* the last record's stream */
    bool follows_sum, follows_inner_fence; /* that record, in its stream */
    _Atomic uint64_t n_reached;            /* of those records */
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
    deadline.tv_sec += PATIENCE_S;
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
    t.event->follows_sum = stream_of(stream)->ends_in_sum;
    t.event->follows_inner_fence = stream_of(stream)->ends_in_inner_fence;
    count(t.event->timed ? ASYNC_TIMED : ASYNC_RECORD, 1);
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
        return waiting == REDUCE_STREAM && computed && event->follows_sum;
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
    case ASYNC_SEND_AHEAD_OF_WRITE:
        return waiting >= FIRST_ASIDE && !event->follows_inner_fence;
    case ASYNC_SUM_AHEAD_OF_RECEIVE:
        return !the.gathers && recorded_in >= FIRST_ASIDE;
    case ASYNC_COPY_AHEAD_OF_RECEIVE:
        return the.gathers && recorded_in >= FIRST_ASIDE;
    case ASYNC_RECEIVE_AHEAD_OF_COPY:
        return waiting >= FIRST_ASIDE && event->follows_inner_fence;
    default:
        return false;
    }
}

void async_compute_in(zero_stream_t stream)
{
    the.compute = stream_of(stream)->number;
}

static zero_status_t stream_wait(zero_device_t *device, zero_stream_t stream, zero_event_t event)
{
    (void)device;
    event_task_t t = {event_of(event), event_of(event)->n_recorded};
    int waiting = stream_of(stream)->number;
    count(ASYNC_WAIT, 1);
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
    count(ASYNC_HOST_CALL, 1);
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

/* ---- copies and kernels ---- */

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
    count(ASYNC_COPY, 1);
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

static void queue_kernel(zero_stream_t stream, void (*run)(void *args), const void *args, size_t n_bytes)
{
    count(ASYNC_KERNEL, 1);
    async_queue(stream, run, args, n_bytes);
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

static const zero_shard_kernels_t *cpu_kernels(void)
{
    return the.cpu->kernels;
}

static void do_adam(void *args)
{
    OK(cpu_kernels()->adam(args, NULL));
}

static zero_status_t adam(const zero_adam_t *args, zero_stream_t stream)
{
    queue_kernel(stream, do_adam, args, sizeof *args);
    return ZERO_OK;
}

static void do_sgd(void *args)
{
    OK(cpu_kernels()->sgd(args, NULL));
}

static zero_status_t sgd(const zero_adam_t *args, zero_stream_t stream)
{
    queue_kernel(stream, do_sgd, args, sizeof *args);
    return ZERO_OK;
}

static void do_nesterov(void *args)
{
    OK(cpu_kernels()->nesterov(args, NULL));
}

static zero_status_t nesterov(const zero_adam_t *args, zero_stream_t stream)
{
    queue_kernel(stream, do_nesterov, args, sizeof *args);
    return ZERO_OK;
}

static void do_lion(void *args)
{
    OK(cpu_kernels()->lion(args, NULL));
}

static zero_status_t lion(const zero_adam_t *args, zero_stream_t stream)
{
    queue_kernel(stream, do_lion, args, sizeof *args);
    return ZERO_OK;
}

static void do_adam8(void *args)
{
    OK(cpu_kernels()->adam8(args, NULL));
}

static zero_status_t adam8(const zero_adam_t *args, zero_stream_t stream)
{
    queue_kernel(stream, do_adam8, args, sizeof *args);
    return ZERO_OK;
}

typedef struct sum_task {
    float *out;
    const void *slices[MAX_RANKS];
    int n_slices;
    zero_dtype_t dtype;
    size_t n_elems;
    bool accumulate;
    zero_norm_t *norm;
} sum_task_t;

static void do_sum_slices(void *args)
{
    sum_task_t *t = args;
    if (the.options.fault == ASYNC_STAGING_BEFORE_SUM)
        usleep(3000); /* work that does not wait for it comes first */
    OK(cpu_kernels()->sum_slices(t->out, t->slices, t->n_slices, t->dtype, t->n_elems, t->accumulate, t->norm, NULL));
}

static zero_status_t sum_slices(float *out, const void *const *slices, int n_slices, zero_dtype_t dtype, size_t n_elems,
                                bool accumulate, zero_norm_t *norm, zero_stream_t stream)
{
    sum_task_t t = {
        .out = out, .n_slices = n_slices, .dtype = dtype, .n_elems = n_elems, .accumulate = accumulate, .norm = norm};
    CHECK(n_slices <= MAX_RANKS, "%d ranks", n_slices);
    memcpy(t.slices, slices, (size_t)n_slices * sizeof *slices);
    queue_kernel(stream, do_sum_slices, &t, sizeof t);
    stream_of(stream)->ends_in_sum = true;
    return ZERO_OK;
}

typedef struct contribute_task {
    zero_norm_t *norm;
    zero_agreed_t agreed;
    zero_contribution_t *mine;
} contribute_task_t;

static void do_contribute(void *args)
{
    contribute_task_t *t = args;
    OK(cpu_kernels()->contribute(t->norm, &t->agreed, t->mine, NULL));
}

static zero_status_t contribute(zero_norm_t *norm, const zero_agreed_t *agreed, zero_contribution_t *mine,
                                zero_stream_t stream)
{
    contribute_task_t t = {norm, *agreed, mine};
    queue_kernel(stream, do_contribute, &t, sizeof t);
    return ZERO_OK;
}

typedef struct poison_task {
    void *data;
    zero_dtype_t dtype;
    size_t n_elems;
    uint64_t *n_found; /* NULL: it is to be written */
} poison_task_t;

static void do_poison(void *args)
{
    poison_task_t *t = args;
    if (t->n_found)
        OK(cpu_kernels()->count_poison(t->data, t->dtype, t->n_elems, t->n_found, NULL));
    else
        OK(cpu_kernels()->poison(t->data, t->dtype, t->n_elems, NULL));
}

static zero_status_t poison(void *data, zero_dtype_t dtype, size_t n_elems, zero_stream_t stream)
{
    queue_kernel(stream, do_poison, &(poison_task_t){data, dtype, n_elems, NULL}, sizeof(poison_task_t));
    return ZERO_OK;
}

static zero_status_t count_poison(const void *data, zero_dtype_t dtype, size_t n_elems, uint64_t *n_found,
                                  zero_stream_t stream)
{
    queue_kernel(stream, do_poison, &(poison_task_t){(void *)data, dtype, n_elems, n_found}, sizeof(poison_task_t));
    return ZERO_OK;
}

typedef struct fp8_task {
    zero_fp8_parts_t parts;
    uint32_t *maxima;
    const uint32_t *absmaxes;
    zero_fp8_scales_t *scales;
    int n_ranks;
    uint32_t n_matrices;
} fp8_task_t;

static void do_fp8_absmax(void *args)
{
    fp8_task_t *t = args;
    OK(cpu_kernels()->fp8_absmax(&t->parts, t->maxima, NULL));
}

static zero_status_t fp8_absmax(const zero_fp8_parts_t *parts, uint32_t *absmaxes, zero_stream_t stream)
{
    queue_kernel(stream, do_fp8_absmax, &(fp8_task_t){.parts = *parts, .maxima = absmaxes}, sizeof(fp8_task_t));
    return ZERO_OK;
}

static void do_fp8_scale(void *args)
{
    fp8_task_t *t = args;
    OK(cpu_kernels()->fp8_scale(t->scales, t->absmaxes, t->n_ranks, t->n_matrices, NULL));
}

static zero_status_t fp8_scale(zero_fp8_scales_t *scales, const uint32_t *absmaxes, int n_ranks, uint32_t n_matrices,
                               zero_stream_t stream)
{
    fp8_task_t t = {.scales = scales, .absmaxes = absmaxes, .n_ranks = n_ranks, .n_matrices = n_matrices};
    queue_kernel(stream, do_fp8_scale, &t, sizeof t);
    return ZERO_OK;
}

static void do_fp8_cast(void *args)
{
    fp8_task_t *t = args;
    OK(cpu_kernels()->fp8_cast(&t->parts, t->scales, NULL));
}

static zero_status_t fp8_cast(const zero_fp8_parts_t *parts, const zero_fp8_scales_t *scales, zero_stream_t stream)
{
    fp8_task_t t = {.parts = *parts, .scales = (zero_fp8_scales_t *)scales};
    queue_kernel(stream, do_fp8_cast, &t, sizeof t);
    return ZERO_OK;
}

typedef struct decide_task {
    zero_step_rules_t rules;
    float lr;
    const zero_contribution_t *contributions;
    int n_ranks;
    zero_step_state_t *state;
    zero_adam_scalars_t *scalars;
    zero_step_outcome_t *outcome;
} decide_task_t;

static void do_decide_step(void *args)
{
    decide_task_t *t = args;
    OK(cpu_kernels()->decide_step(&t->rules, t->lr, t->contributions, t->n_ranks, t->state, t->scalars, t->outcome,
                                  NULL));
}

static zero_status_t decide_step(const zero_step_rules_t *rules, float lr, const zero_contribution_t *contributions,
                                 int n_ranks, zero_step_state_t *state, zero_adam_scalars_t *scalars,
                                 zero_step_outcome_t *outcome, zero_stream_t stream)
{
    decide_task_t t = {*rules, lr, contributions, n_ranks, state, scalars, outcome};
    queue_kernel(stream, do_decide_step, &t, sizeof t);
    return ZERO_OK;
}

typedef struct tensor_scalars_task {
    const zero_tensor_rules_t *rules;
    size_t n_tensors;
    const zero_step_state_t *state;
    const zero_adam_scalars_t *scalars;
    zero_tensor_scalars_t *by_tensor;
} tensor_scalars_task_t;

static void do_tensor_scalars(void *args)
{
    tensor_scalars_task_t *t = args;
    OK(cpu_kernels()->tensor_scalars(t->rules, t->n_tensors, t->state, t->scalars, t->by_tensor, NULL));
}

static zero_status_t tensor_scalars(const zero_tensor_rules_t *rules, size_t n_tensors, const zero_step_state_t *state,
                                    const zero_adam_scalars_t *scalars, zero_tensor_scalars_t *by_tensor,
                                    zero_stream_t stream)
{
    tensor_scalars_task_t t = {rules, n_tensors, state, scalars, by_tensor};
    queue_kernel(stream, do_tensor_scalars, &t, sizeof t);
    return ZERO_OK;
}

/* What libzero calls outside steps alone, between synchronizations, is done at once: cast, split_master, join_master,
 * fill_normal. It may read what was queued before. */
static zero_status_t split_master(void *param, void *low, zero_dtype_t param_dtype, const float *master, size_t n_elems,
                                  zero_stream_t stream)
{
    (void)stream;
    OK(synchronize(&the.device));
    return cpu_kernels()->split_master(param, low, param_dtype, master, n_elems, NULL);
}

static zero_status_t join_master(float *master, const void *param, const void *low, zero_dtype_t param_dtype,
                                 size_t n_elems, zero_stream_t stream)
{
    (void)stream;
    OK(synchronize(&the.device));
    return cpu_kernels()->join_master(master, param, low, param_dtype, n_elems, NULL);
}

static zero_status_t fill_normal(float *dst, size_t n_elems, uint64_t seed, uint64_t key, uint64_t first, float std,
                                 zero_stream_t stream)
{
    (void)stream;
    OK(synchronize(&the.device));
    return cpu_kernels()->fill_normal(dst, n_elems, seed, key, first, std, NULL);
}

/* ---- the transport ---- */

typedef struct transport {
    zero_shared_block_t *control; /* _Atomic uint32_t [ZERO_N_LANES][size] on every rank: how far each has come */
    uint32_t epochs[ZERO_N_LANES];
} transport_t;

static _Atomic uint32_t *epoch_at(const zero_comm_t *comm, int owner, zero_lane_t lane, int rank)
{
    const transport_t *transport = comm->transport;
    return (_Atomic uint32_t *)transport->control->parts[owner] + lane * comm->size + rank;
}

static zero_status_t window_create(zero_comm_t *comm, size_t n_bytes, zero_window_t *window)
{
    zero_shared_block_t *block;
    if (comm->size == 1)
        return comm->host->ops->window_create(comm->host, n_bytes, window);
    ZERO_TRY(zero_shared_block_create(comm->host, n_bytes, false, ZERO_LOG_ERROR, &block));
    *window = (zero_window_t){.local = block->parts[comm->rank], .n_bytes = n_bytes, .transport = block};
    return ZERO_OK;
}

static void meet_at_end(zero_comm_t *comm)
{
    if (!zero_comm_gpu_failed(comm))
        OK(zero_comm_barrier(comm->host));
}

static void window_destroy(zero_comm_t *comm, zero_window_t *window)
{
    OK(synchronize(&the.device));
    meet_at_end(comm);
    if (comm->size == 1) {
        comm->host->ops->window_destroy(comm->host, window);
        return;
    }
    zero_shared_block_destroy(window->transport);
    *window = (zero_window_t){0};
}

typedef struct fence_task {
    zero_comm_t *comm;
    zero_lane_t lane;
    uint32_t epoch;
    bool waits;
} fence_task_t;

static void do_fence(void *args)
{
    fence_task_t *t = args;
    int64_t deadline = zero_now_ns() + PATIENCE_S * INT64_C(1000000000);
    for (int peer = 0; peer < t->comm->size; peer++)
        if (zero_hosts_are_one(t->comm, peer, t->comm->rank))
            atomic_store(epoch_at(t->comm, peer, t->lane, t->comm->rank), t->epoch);
    for (int peer = 0; peer < t->comm->size && t->waits; peer++)
        while (zero_hosts_are_one(t->comm, peer, t->comm->rank) &&
               atomic_load(epoch_at(t->comm, t->comm->rank, t->lane, peer)) < t->epoch) {
            CHECK(zero_now_ns() < deadline, "rank %d did not come to fence %u of lane %d: deadlock", peer, t->epoch,
                  (int)t->lane);
            usleep(50);
        }
}

static zero_status_t fence(zero_comm_t *comm, zero_lane_t lane, zero_stream_t stream)
{
    if (comm->size == 1)
        return ZERO_OK;
    const bool is_left_out =
        the.options.fault == ASYNC_NO_FENCE || (the.options.fault == ASYNC_COPY_AHEAD_OF_FENCE && the.gathers);
    fence_task_t t = {comm, lane, ++((transport_t *)comm->transport)->epochs[lane], !is_left_out};
    zero_comm_pair(comm, "fence", 0);
    count(ASYNC_FENCE, 1);
    count(ASYNC_RECORD, 1); /* what says that it has passed */
    async_queue(stream, do_fence, &t, sizeof t);
    stream_of(stream)->ends_in_inner_fence = the.gathers;
    return ZERO_OK;
}

static const char *part_of(const zero_comm_t *comm, const zero_window_t *window, int rank)
{
    const char *part = rank == comm->rank ? window->local : ((zero_shared_block_t *)window->transport)->parts[rank];
    CHECK(part, "rank %d is on another host", rank);
    return part;
}

/* Pulls from peers are one call; the own slice is another, in a stream aside, with an event each way. */
static void count_pulls(int n_ranks, size_t n_bytes, bool own_is_copied)
{
    bool pulls = n_bytes > 0 && n_ranks > 1;
    count(ASYNC_BATCH, pulls ? 1 : 0);
    count(ASYNC_COPY, own_is_copied ? 1 : 0);
    count(ASYNC_RECORD, own_is_copied ? 2 : 0);
    count(ASYNC_WAIT, own_is_copied ? 2 : 0);
}

static zero_status_t all_gather(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window, zero_ranks_t ranks,
                                size_t src_offset, size_t src_stride, void *dst, size_t n_bytes, zero_stream_t stream)
{
    (void)lane;
    bool own_is_copied = false;
    const int me = zero_ranks_index(ranks, comm->rank);
    for (int i = 0; i < ranks.n && n_bytes > 0; i++) {
        int at = (me + i) % ranks.n;
        const char *src = part_of(comm, window, zero_ranks_at(ranks, at)) + src_offset + (size_t)at * src_stride;
        char *slice = (char *)dst + (size_t)at * n_bytes;
        own_is_copied |= i == 0 && slice != src;
        if (slice != src)
            async_queue_copy(slice, src, n_bytes, stream);
    }
    count_pulls(ranks.n, n_bytes, own_is_copied);
    return ZERO_OK;
}

static zero_status_t all_to_all(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window, int group,
                                size_t src_offset, size_t src_stride, size_t n_bytes, void *staging,
                                const void **slices, zero_stream_t stream)
{
    (void)lane;
    const size_t offset = src_offset + (size_t)zero_comm_slice_of(comm->rank, comm->size, group) * src_stride;
    for (int i = 0; i < comm->size; i++) {
        int rank = (comm->rank + i) % comm->size;
        const char *src = part_of(comm, window, rank) + offset;
        char *staged = (char *)staging + (size_t)rank * n_bytes;
        slices[rank] = rank == comm->rank ? src : staged;
        if (rank != comm->rank && n_bytes > 0)
            async_queue_copy(staged, src, n_bytes, stream);
    }
    count_pulls(comm->size, n_bytes, false);
    return ZERO_OK;
}

static zero_status_t pull(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window, const zero_pull_t *pulls,
                          int n, zero_stream_t stream)
{
    (void)lane;
    for (int i = 0; i < n; i++)
        async_queue_copy(pulls[i].dst, part_of(comm, window, pulls[i].rank) + pulls[i].src_offset, pulls[i].n_bytes,
                         stream);
    return ZERO_OK;
}

typedef struct reduce_task {
    const zero_comm_t *comm;
    const zero_window_t *window;
    size_t offset; /* of this rank's slice, in every window */
    size_t n_elems;
    zero_dtype_t dtype;
} reduce_task_t;

/* Adds one rank after another in dtype, as a network would, in two halves: see do_copy. */
static void do_reduce_scatter(void *args)
{
    const reduce_task_t *t = args;
    void *own = (char *)t->window->local + t->offset;
    for (size_t e = 0; e < t->n_elems; e++) {
        float sum; /* an element of dtype */
        element_store(&sum, t->dtype, 0, element_load(part_of(t->comm, t->window, 0) + t->offset, t->dtype, e));
        for (int rank = 1; rank < t->comm->size; rank++)
            element_store(&sum, t->dtype, 0,
                          element_load(&sum, t->dtype, 0) +
                              element_load(part_of(t->comm, t->window, rank) + t->offset, t->dtype, e));
        element_store(own, t->dtype, e, element_load(&sum, t->dtype, 0));
        if (e == t->n_elems / 2)
            usleep(20);
    }
}

static zero_status_t reduce_scatter(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window, size_t src_offset,
                                    size_t n_elems, zero_dtype_t dtype, zero_stream_t stream)
{
    (void)lane;
    reduce_task_t t = {.comm = comm,
                       .window = window,
                       .offset = src_offset + (size_t)comm->rank * n_elems * zero_dtype_size(dtype),
                       .n_elems = n_elems,
                       .dtype = dtype};
    async_queue(stream, do_reduce_scatter, &t, sizeof t);
    return ZERO_OK;
}

static void transport_destroy(zero_comm_t *comm)
{
    OK(synchronize(&the.device));
    meet_at_end(comm);
    if (comm->size > 1)
        zero_shared_block_destroy(((transport_t *)comm->transport)->control);
    zero_comm_gpu_destroy(comm);
}

static const zero_comm_ops_t transport_ops = {
    .name = "async",
    .window_create = window_create,
    .window_destroy = window_destroy,
    .fence = fence,
    .all_gather = all_gather,
    .all_to_all = all_to_all,
    .pull = pull,
    .staging_bytes = zero_comm_gpu_staging_bytes,
    .host_all_gather = zero_comm_gpu_all_gather,
    .host_broadcast = zero_comm_gpu_broadcast,
    .check_peers = zero_comm_gpu_check_peers,
    .abort = zero_comm_gpu_abort,
    .destroy = transport_destroy,
};

/* Sides of 14 KiB, and 1 KiB in other lanes. */
#define RAILS_STAGING_BYTES ((size_t)32 << 10)

static zero_status_t (*gather_over_rails)(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window,
                                          zero_ranks_t ranks, size_t src_offset, size_t src_stride, void *dst,
                                          size_t n_bytes, zero_stream_t stream);

/* Notes what is queued by a gather, which faults are about. */
static zero_status_t watched_gather(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window,
                                    zero_ranks_t ranks, size_t src_offset, size_t src_stride, void *dst, size_t n_bytes,
                                    zero_stream_t stream)
{
    the.gathers = true;
    zero_status_t status = gather_over_rails(comm, lane, window, ranks, src_offset, src_stride, dst, n_bytes, stream);
    the.gathers = false;
    return status;
}

static zero_status_t join_hosts(zero_device_t *device, zero_comm_t *host, zero_comm_t *local, zero_comm_t **bulk)
{
    static zero_comm_ops_t watched_ops;
    the.joins = true;
    OK(zero_device_join_rails(device, host, local, async_messages_create(host), RAILS_STAGING_BYTES, bulk));
    the.joins = false;
    watched_ops = *(*bulk)->ops;
    gather_over_rails = watched_ops.all_gather;
    watched_ops.all_gather = watched_gather;
    (*bulk)->ops = &watched_ops;
    return ZERO_OK;
}

/* One that adds is asked for nothing else. */
static zero_status_t join(zero_device_t *device, zero_comm_t *host, bool adds, zero_comm_t **bulk)
{
    zero_comm_t *made;
    static zero_comm_ops_t adding_ops;
    adding_ops = transport_ops;
    adding_ops.all_to_all = NULL;
    adding_ops.reduce_scatter = reduce_scatter;
    OK(zero_comm_gpu_create(host, adds && host->size > 1 ? &adding_ops : &transport_ops, sizeof(transport_t), &made));
    if (host->size > 1)
        OK(zero_shared_block_create(host, sizeof(uint32_t) * ZERO_N_LANES * (size_t)host->size, true, ZERO_LOG_ERROR,
                                    &((transport_t *)made->transport)->control));
    if (zero_hosts_are_several(host))
        return join_hosts(device, host, made, bulk);
    *bulk = made;
    return ZERO_OK;
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
    OK(synchronize(device));
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
    the.ops.join = join;
    the.ops.destroy = destroy;
    the.kernels = *the.cpu->kernels;
    the.kernels.adam = adam;
    the.kernels.sgd = sgd;
    the.kernels.nesterov = nesterov;
    the.kernels.lion = lion;
    the.kernels.adam8 = adam8;
    the.kernels.sum_slices = sum_slices;
    the.kernels.contribute = contribute;
    the.kernels.decide_step = decide_step;
    the.kernels.tensor_scalars = tensor_scalars;
    the.kernels.fp8_absmax = fp8_absmax;
    the.kernels.fp8_scale = fp8_scale;
    the.kernels.fp8_cast = fp8_cast;
    the.kernels.poison = poison;
    the.kernels.count_poison = count_poison;
    the.kernels.split_master = split_master;
    the.kernels.join_master = join_master;
    the.kernels.fill_normal = fill_normal;
    the.device = *the.cpu;
    the.device.ops = &the.ops;
    the.device.kernels = &the.kernels;
    OK(stream_create(&the.device, false, &stream)); /* DEFAULT_STREAM */
    *device = &the.device;
    return ZERO_OK;
}
