/* api_random.c - random calls of zero.h, checked against a model of what zero.h allows.
 *
 *     api_random [calls=20000] [seed=1] [verbose=0|1]
 *
 * Runs alone, or under mpirun, where all ranks make the same calls. Sessions follow one another: a declaration, a
 * device, an engine of a random configuration, saves and checkpoints, all destroyed in a random order. Two calls of
 * three are what a training loop would do next; the others are any call with any arguments, right or wrong.
 *
 * The model (session_t and the expected_* of each call) was written from zero.h alone: for each call it gives the
 * statuses that may be returned, and the state afterwards. Checked after each call: the status; that a call that
 * succeeds logs no error, and one that fails logs why; that pointers are there exactly while they should be; steps,
 * AdamW's t, skipped steps, notices and memory as counted here. The sanitizers find memory errors.
 *
 * Exit code 0 if every check held and, given enough calls, every kind of call has succeeded. Otherwise prints the last
 * calls, and the seed that repeats them.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/mpi/expect.h"
#include "tests/mpi/settings.h"
#include "tests/support/elements.h"
#include "tests/support/support.h"
#include "zero.h"

#define MAX_UNITS 4
#define MAX_TENSORS 8
#define MAX_PLANNED_RANKS 9
#define MAX_SAVES 6 /* per session: saves take most of the time */

/* Sets of statuses. */
typedef unsigned statuses_t;
#define MAY(name) (1u << ZERO_##name)

/* ---- what happened ---- */

#define CALL_MAP(X)                                                                                                    \
    X(comm_sum)                                                                                                        \
    X(comm_broadcast)                                                                                                  \
    X(comm_barrier)                                                                                                    \
    X(comm_agree)                                                                                                      \
    X(device_synchronize)                                                                                              \
    X(device_copy)                                                                                                     \
    X(host_alloc)                                                                                                      \
    X(stream_create)                                                                                                   \
    X(model_add_unit)                                                                                                  \
    X(model_add_tensor)                                                                                                \
    X(model_share_tensor)                                                                                              \
    X(model_set_unshard_in_backward)                                                                                   \
    X(plan)                                                                                                            \
    X(plan_traffic)                                                                                                    \
    X(engine_create)                                                                                                   \
    X(init_parameters)                                                                                                 \
    X(set_state)                                                                                                       \
    X(get_state)                                                                                                       \
    X(get_tensor)                                                                                                      \
    X(set_tensor)                                                                                                      \
    X(load_weights)                                                                                                    \
    X(begin)                                                                                                           \
    X(acquire)                                                                                                         \
    X(release)                                                                                                         \
    X(grad_ready)                                                                                                      \
    X(step)                                                                                                            \
    X(step_wait)                                                                                                       \
    X(set_group)                                                                                                       \
    X(get_group)                                                                                                       \
    X(set_micro_steps)                                                                                                 \
    X(cancel)                                                                                                          \
    X(set_adam_step)                                                                                                   \
    X(alloc)                                                                                                           \
    X(alloc_activations)                                                                                               \
    X(engine_trace) X(save_prepare) X(save_begin) X(save_poll) X(save_end) X(checkpoint_open) X(load)

typedef enum call {
#define CALL_ENUM(name) CALL_##name,
    CALL_MAP(CALL_ENUM)
#undef CALL_ENUM
        N_CALLS
} call_t;

static const char *const call_names[] = {
#define CALL_NAME(name) "zero_" #name,
    CALL_MAP(CALL_NAME)
#undef CALL_NAME
};

#define N_STATUSES 15
#define N_LAST 12

static struct {
    unsigned long n_calls, n_sessions;
    unsigned long of[N_CALLS][N_STATUSES];
    char last[N_LAST][160]; /* calls, in a ring */
    int n_error_lines;      /* of the call at hand */
    char line[256];         /* the last of them */
    int rank, n_ranks, seed, verbose;
    const char *broken; /* the condition that did not hold */
} record = {.broken = "the status"};

static void take_line(void *user, zero_log_level_t level, int rank, const char *line)
{
    (void)user, (void)rank;
    if (level != ZERO_LOG_ERROR)
        return;
    record.n_error_lines++;
    snprintf(record.line, sizeof record.line, "%s", line);
}

static void give_up(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
static void give_up(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "rank %d, seed %d: not so: %s: ", record.rank, record.seed, record.broken);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\nthe last line was: %s\nthe last calls were:\n", record.line);
    for (unsigned long i = record.n_calls < N_LAST ? 0 : record.n_calls - N_LAST; i < record.n_calls; i++)
        fprintf(stderr, "    %lu %s\n", i, record.last[i % N_LAST]);
    exit(1);
}

#define EXPECT(condition, ...)                                                                                         \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            record.broken = #condition;                                                                                \
            give_up(__VA_ARGS__);                                                                                      \
        }                                                                                                              \
    } while (0)

/* Records a call before it is made. */
static void note(call_t call, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void note(call_t call, const char *format, ...)
{
    char *text = record.last[record.n_calls++ % N_LAST];
    int n = snprintf(text, sizeof record.last[0], "%s ", call_names[call]);
    va_list args;
    va_start(args, format);
    vsnprintf(text + n, sizeof record.last[0] - (size_t)n, format, args);
    va_end(args);
    if (record.verbose && record.rank == 0)
        printf("%lu %s\n", record.n_calls - 1, text);
    record.n_error_lines = 0;
    record.line[0] = 0;
}

/* Checks the status of a call. quiet: a failure need not be logged here: a callback of ours failed, or it was logged
 * before. */
static zero_status_t judge_as(call_t call, zero_status_t status, statuses_t allowed, bool quiet)
{
    if ((unsigned)status >= N_STATUSES || !(allowed & (1u << status)))
        give_up("%s returned %s, of 0x%x", call_names[call], zero_status_name(status), allowed);
    if (status == ZERO_OK && record.n_error_lines > 0)
        give_up("%s succeeded with an error line", call_names[call]);
    if (status != ZERO_OK && status != ZERO_ERROR_PEER && !quiet && record.rank == 0 && record.n_error_lines == 0)
        give_up("%s returned %s and did not say why", call_names[call], zero_status_name(status));
    if (status == ZERO_ERROR_ARGUMENT && record.n_error_lines != 1)
        give_up("%s refused an argument with %d lines", call_names[call], record.n_error_lines);
    record.of[call][status]++;
    return status;
}

static zero_status_t judge(call_t call, zero_status_t status, statuses_t allowed)
{
    return judge_as(call, status, allowed, false);
}

/* ---- chance ---- */

static uint64_t chance; /* the same on all ranks */

static int any(int n) /* of 0 .. n - 1 */
{
    return (int)(support_random(&chance) % (uint64_t)n);
}

static bool one_in(int n)
{
    return any(n) == 0;
}

/* ---- the model ---- */

/* A declaration, by zero.h's rules for names, shapes and sharing. */
typedef struct declared {
    zero_model_t *model;
    int n_units, n_tensors;
    zero_unit_t owner[MAX_TENSORS];
    uint64_t n_elems[MAX_TENSORS];
    bool in_fp8[MAX_TENSORS];
    bool uses[MAX_UNITS][MAX_UNITS]; /* the second's tensors, all of them: its own, or since it shares one */
    bool has_unit_name[MAX_UNITS + 2], has_tensor_name[MAX_TENSORS + 2], is_sharded_in_backward[MAX_UNITS];
} declared_t;

/* What a checkpoint has of the run, beside weights and moments. */
typedef struct kept {
    uint64_t step, adam_step;
    int n_skipped_in_row;
} kept_t;

typedef struct session {
    zero_comm_t *comm;
    zero_device_t *device;
    declared_t declared;
    char directory[64];
    int n_saves;

    zero_engine_t *engine;
    zero_config_t config;
    bool in_pass, is_eval, acquired, started, is_partial, partial_was_told, traces;
    int position, micro_step, created_with; /* micro_steps */
    bool step_has_nan;                      /* in a gradient of the step at hand */
    uint64_t n_steps, n_waited, adam_step;
    struct { /* of step n, at n % 4 */
        bool skipped;
        uint32_t notice;
    } steps[4];
    int n_skipped_in_row;
    uint32_t notice;
    uint64_t held_bytes;

    zero_save_t *save;
    bool saves_another;                  /* than `engine`: one that was destroyed, and that `save` keeps */
    kept_t saving, saved, in_checkpoint; /* what `save`, the latest and `checkpoint` hold */
    bool has_saved;
    zero_checkpoint_t *checkpoint;
} session_t;

static uint64_t n_unwaited(const session_t *s)
{
    return s->n_steps - s->n_waited;
}

static bool between_steps(const session_t *s)
{
    return !s->in_pass && s->micro_step == 0;
}

static bool is_backward(const session_t *s)
{
    return s->position >= s->declared.n_units;
}

static zero_unit_t unit_now(const session_t *s)
{
    int n = s->declared.n_units;
    return s->position < n ? s->position : 2 * n - 1 - s->position;
}

/* The statuses that a call may return which is wrong in one way, in two, or in none. */
static statuses_t expected(bool wrong_argument, bool wrong_order)
{
    if (!wrong_argument && !wrong_order)
        return MAY(OK);
    return (wrong_argument ? MAY(ERROR_ARGUMENT) : 0) | (wrong_order ? MAY(ERROR_ORDER) : 0);
}

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
    d->owner[tensor] = unit;
    d->n_elems[tensor] = n_elems;
    d->in_fp8[tensor] = desc.fp8;
    d->n_tensors++;
}

/* A unit that shares a tensor has all that its owner has resident. */
static void share_tensor(declared_t *d)
{
    zero_unit_t unit = any(MAX_UNITS + 2) - 1;
    zero_tensor_t tensor = any(MAX_TENSORS + 2) - 1;
    bool is_null = one_in(20), exists = unit >= 0 && unit < d->n_units && tensor >= 0 && tensor < d->n_tensors;
    bool wrong = is_null || !exists || d->owner[tensor] >= unit;
    note(CALL_model_share_tensor, "%d by %d", tensor, unit);
    zero_status_t status = zero_model_share_tensor(is_null ? NULL : d->model, unit, tensor);
    judge(CALL_model_share_tensor, status, expected(wrong, false));
    if (status == ZERO_OK)
        d->uses[unit][d->owner[tensor]] = true;
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

static void declare(declared_t *d)
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

static zero_config_t any_config(void)
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
static void spoil(zero_config_t *c)
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

static void plan(session_t *s)
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
static void plan_traffic(session_t *s)
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

/* ---- the engine's life ---- */

static void create_engine(session_t *s)
{
    zero_config_t config = any_config();
    zero_engine_t *engine = NULL;
    bool is_bad = one_in(6);
    int how = s->device ? any(12) : 1;
    if (is_bad)
        spoil(&config);
    note(CALL_engine_create, "stage %d, dtype %d, micro_steps %d, way %d, bad %d", config.stage, (int)config.dtype,
         config.micro_steps, how, is_bad);
    zero_status_t status =
        zero_engine_create(how == 0 ? NULL : s->comm, how == 1 ? NULL : s->device, how == 2 ? NULL : s->declared.model,
                           how == 3 ? NULL : &config, how == 4 ? NULL : &engine);
    judge(CALL_engine_create, status,
          (how <= 4 ? MAY(ERROR_ARGUMENT) : 0) | (is_bad ? MAY(ERROR_USAGE) : 0) | (how > 4 && !is_bad ? MAY(OK) : 0));
    EXPECT((status == ZERO_OK) == (engine != NULL), "an output is set only on ZERO_OK");
    if (status != ZERO_OK)
        return;
    if (s->engine) { /* a second one, for a moment */
        zero_engine_destroy(engine);
        return;
    }
    s->engine = engine;
    s->config = config;
    s->created_with = config.micro_steps;
    s->in_pass = s->acquired = s->started = s->is_partial = s->traces = s->step_has_nan = false;
    s->micro_step = s->n_skipped_in_row = 0;
    s->n_steps = s->n_waited = s->adam_step = 0;
    s->notice = 0;
    zero_memory_t held = zero_engine_memory(engine);
    s->held_bytes = zero_memory_total(&held);
}

/* Allowed in any state. While a save is under way it logs a line, and takes effect when the save ends. */
static void destroy_engine(session_t *s)
{
    record.n_error_lines = 0;
    zero_engine_destroy(s->engine);
    bool is_kept = s->engine && s->save && !s->saves_another;
    EXPECT(record.n_error_lines == (is_kept ? 1 : 0), "%d lines", record.n_error_lines);
    s->engine = NULL;
    s->saves_another |= is_kept;
}

/* ---- state ---- */

typedef struct visitor {
    const session_t *s;
    zero_status_t returns;
    bool with_moments;
    uint64_t n_calls, n_elems;
} visitor_t;

static zero_status_t visit(void *user, const zero_chunk_t *chunk)
{
    visitor_t *v = user;
    EXPECT(chunk->tensor >= 0 && chunk->tensor < v->s->declared.n_tensors, "tensor %d", chunk->tensor);
    EXPECT(chunk->n_elems > 0 && chunk->first + chunk->n_elems <= v->s->declared.n_elems[chunk->tensor], "elements");
    EXPECT((chunk->m != NULL) == v->with_moments && (chunk->v != NULL) == v->with_moments, "moments");
    v->n_calls++;
    v->n_elems += chunk->n_elems;
    return v->returns;
}

static zero_status_t fill(void *user, const zero_chunk_t *chunk)
{
    for (size_t i = 0; i < chunk->n_elems; i++) {
        chunk->master[i] = 0.25f + (float)(chunk->first + i) / 64.0f;
        if (chunk->m) {
            chunk->m[i] = 0.5f;
            chunk->v[i] = 0.125f;
        }
    }
    return visit(user, chunk);
}

/* All ranks together own every element once. */
static void expect_all_elements(const session_t *s, const visitor_t *v)
{
    double n = (double)v->n_elems;
    OK(zero_comm_sum(s->comm, &n, 1));
    EXPECT((uint64_t)n == zero_model_n_params(s->declared.model), "%.0f elements", n);
}

static void set_state(session_t *s)
{
    bool is_null = one_in(10), has_no_fill = one_in(10), moments = one_in(2);
    visitor_t v = {.s = s, .returns = one_in(5) ? ZERO_ERROR_IO : ZERO_OK, .with_moments = moments};
    bool wrong_order = s->engine && (!between_steps(s) || (!moments && n_unwaited(s) > 0));
    statuses_t allowed = expected(is_null || !s->engine || has_no_fill, wrong_order);
    if (allowed == MAY(OK) && v.returns != ZERO_OK)
        allowed = MAY(ERROR_IO) | (record.n_ranks > 1 ? MAY(ERROR_PEER) : 0); /* a rank may own nothing */
    note(CALL_set_state, "moments %d, fill %d returns %d", moments, !has_no_fill, (int)v.returns);
    zero_status_t status = zero_set_state(is_null ? NULL : s->engine, moments, has_no_fill ? NULL : fill, &v);
    judge_as(CALL_set_state, status, allowed, v.returns != ZERO_OK);
    if (status == ZERO_ERROR_ARGUMENT || status == ZERO_ERROR_ORDER) {
        EXPECT(v.n_calls == 0, "fill was called");
        return;
    }
    s->is_partial = status != ZERO_OK;
    s->partial_was_told = false;
    if (status != ZERO_OK) {
        EXPECT((status == ZERO_ERROR_IO) == (v.n_calls > 0), "%llu calls", (unsigned long long)v.n_calls);
        return;
    }
    expect_all_elements(s, &v);
    if (!moments)
        s->adam_step = 0;
}

static void get_state(session_t *s)
{
    bool is_null = one_in(10), has_no_visit = one_in(10);
    visitor_t v = {.s = s, .returns = one_in(5) ? ZERO_ERROR_USAGE : ZERO_OK, .with_moments = true};
    bool wrong_order = s->engine && (!between_steps(s) || s->is_partial);
    statuses_t allowed = expected(is_null || !s->engine || has_no_visit, wrong_order);
    if (allowed == MAY(OK) && v.returns != ZERO_OK)
        allowed = MAY(OK) | MAY(ERROR_USAGE);
    note(CALL_get_state, "visit %d returns %d", !has_no_visit, (int)v.returns);
    zero_status_t status = zero_get_state(is_null ? NULL : s->engine, has_no_visit ? NULL : visit, &v);
    judge_as(CALL_get_state, status, allowed, v.returns != ZERO_OK || s->is_partial);
    EXPECT((status != ZERO_ERROR_USAGE && v.returns != ZERO_OK) ? v.n_calls == 0 : true, "a failure went unnoticed");
    if (status == ZERO_OK && v.returns == ZERO_OK)
        expect_all_elements(s, &v);
}

#define MAX_ELEMS 1024 /* of a tensor: 5 to the power of ZERO_MAX_DIMS */

/* Whether a gradient may be read. */
static bool has_gradients(const session_t *s)
{
    return !s->in_pass && s->micro_step == s->config.micro_steps;
}

static void get_tensor(session_t *s)
{
    static float data[MAX_ELEMS];
    int tensor = any(s->declared.n_tensors + 2) - 1, array = any(6) - 1, root = any(record.n_ranks + 3) - 2;
    bool is_null = !s->engine || one_in(20), has_no_data = one_in(10);
    bool is_mine = root == ZERO_ALL_RANKS || root == record.rank;
    bool wrong = is_null || tensor < 0 || tensor >= s->declared.n_tensors || array < 0 || array > ZERO_ARRAY_GRAD ||
                 root < ZERO_ALL_RANKS || root >= record.n_ranks;
    bool wrong_order =
        !is_null && (s->is_partial || (array == ZERO_ARRAY_GRAD ? !has_gradients(s) : !between_steps(s)));
    statuses_t allowed = expected(wrong || (has_no_data && is_mine), wrong_order);
    if (!wrong && !wrong_order && has_no_data && !is_mine)
        allowed = MAY(ERROR_PEER);
    note(CALL_get_tensor, "%s tensor %d, array %d, root %d, data %d", is_null ? "NULL" : "", tensor, array, root,
         !has_no_data);
    zero_status_t status =
        zero_get_tensor(is_null ? NULL : s->engine, tensor, (zero_array_t)array, root, has_no_data ? NULL : data);
    judge_as(CALL_get_tensor, status, allowed, s->is_partial);
    for (uint64_t i = 0; status == ZERO_OK && is_mine && array == ZERO_ARRAY_V && i < s->declared.n_elems[tensor]; i++)
        EXPECT(data[i] >= 0.0f, "a second moment of %g", (double)data[i]);
}

static void set_tensor(session_t *s)
{
    static float data[MAX_ELEMS];
    int tensor = any(s->declared.n_tensors + 2) - 1, array = any(5) - 1, root = any(record.n_ranks + 3) - 2;
    bool is_null = !s->engine || one_in(20), has_no_data = one_in(10), is_nan = one_in(10);
    bool is_mine = root == ZERO_ALL_RANKS || root == record.rank;
    bool wrong = is_null || tensor < 0 || tensor >= s->declared.n_tensors || array < 0 || array > ZERO_ARRAY_V ||
                 root < ZERO_ALL_RANKS || root >= record.n_ranks;
    bool wrong_order = !is_null && (s->is_partial || !between_steps(s)), wrong_data = has_no_data || is_nan;
    statuses_t allowed = expected(wrong || (wrong_data && is_mine), wrong_order);
    if (!wrong && !wrong_order && wrong_data && !is_mine)
        allowed = MAY(ERROR_PEER);
    for (int i = 0; i < MAX_ELEMS; i++)
        data[i] = is_nan ? NAN : 0.25f + (float)i / 64.0f;
    note(CALL_set_tensor, "%s tensor %d, array %d, root %d, data %d, nan %d", is_null ? "NULL" : "", tensor, array,
         root, !has_no_data, is_nan);
    zero_status_t status =
        zero_set_tensor(is_null ? NULL : s->engine, tensor, (zero_array_t)array, root, has_no_data ? NULL : data);
    judge_as(CALL_set_tensor, status, allowed, s->is_partial);
}

static void init_parameters(session_t *s)
{
    bool is_null = one_in(10), wrong_order = s->engine && (!between_steps(s) || n_unwaited(s) > 0);
    note(CALL_init_parameters, "%s", is_null ? "NULL" : "");
    if (judge(CALL_init_parameters, zero_init_parameters(is_null ? NULL : s->engine),
              expected(is_null || !s->engine, wrong_order)) != ZERO_OK)
        return;
    s->is_partial = false;
    s->adam_step = 0;
}

static void set_adam_step(session_t *s)
{
    bool is_null = one_in(10), wrong_order = s->engine && (!between_steps(s) || n_unwaited(s) > 0);
    uint64_t t = (uint64_t)any(1000);
    note(CALL_set_adam_step, "%llu", (unsigned long long)t);
    if (judge(CALL_set_adam_step, zero_set_adam_step(is_null ? NULL : s->engine, t),
              expected(is_null || !s->engine, wrong_order)) == ZERO_OK)
        s->adam_step = t;
}

/* Loads weights from the session's latest checkpoint, whose files are in Hugging Face's layout. */
static void load_weights(session_t *s)
{
    char path[128];
    int how = any(4);
    bool is_null = one_in(10), wrong_order = s->engine && (!between_steps(s) || n_unwaited(s) > 0);
    bool is_there = s->has_saved && how >= 2;
    snprintf(path, sizeof path, "%s/latest", is_there ? s->directory : "/nowhere");
    statuses_t allowed = expected(is_null || !s->engine || how == 0, wrong_order);
    if (!is_null && s->engine && how > 0 && !is_there)
        allowed = MAY(ERROR_IO) | (wrong_order ? MAY(ERROR_ORDER) : 0);
    note(CALL_load_weights, "%s, way %d", path, how);
    zero_status_t status = zero_load_weights(is_null ? NULL : s->engine, how == 0 ? NULL : path);
    if (judge(CALL_load_weights, status, allowed) != ZERO_OK)
        return;
    s->is_partial = false;
    s->adam_step = 0;
}

/* ---- passes ---- */

static void begin(session_t *s, int pass)
{
    bool is_null = !s->engine || one_in(50), wrong_pass = pass > 1;
    bool wrong_order =
        s->engine && (s->in_pass || s->is_partial || (pass == 0 && s->micro_step == s->config.micro_steps) ||
                      (pass == 1 && s->micro_step != 0));
    bool quiet = s->is_partial && s->partial_was_told;
    note(CALL_begin, "%s pass %d", is_null ? "NULL" : "", pass);
    zero_status_t status = zero_begin(is_null ? NULL : s->engine, (zero_pass_t)pass, NULL);
    if (is_null)
        wrong_order = false;
    judge_as(CALL_begin, status, expected(is_null || wrong_pass, wrong_order), quiet || s->is_partial);
    if (status != ZERO_OK)
        return;
    s->in_pass = s->started = true;
    s->is_eval = pass == 1;
    s->position = 0;
    s->acquired = false;
}

/* Checks that exactly the tensors that the unit may use are there. */
static void check_pointers(const session_t *s)
{
    const declared_t *d = &s->declared;
    for (int t = -1; t <= d->n_tensors; t++) {
        bool exists = t >= 0 && t < d->n_tensors, in_use = exists && s->acquired && d->uses[unit_now(s)][d->owner[t]];
        bool is_read =
            in_use && !(is_backward(s) && d->owner[t] == unit_now(s) && d->is_sharded_in_backward[unit_now(s)]);
        bool is_gathered_in_fp8 = exists && d->in_fp8[t] && s->config.gather_fp8;
        EXPECT((zero_param(s->engine, t) != NULL) == (is_read && !is_gathered_in_fp8), "parameter of tensor %d", t);
        EXPECT((zero_param_fp8(s->engine, t).data != NULL) == (is_read && is_gathered_in_fp8),
               "parameter of tensor %d in fp8", t);
        EXPECT((zero_grad(s->engine, t).data != NULL) == (in_use && is_backward(s)), "gradient of tensor %d", t);
    }
}

/* Small finite numbers, or one NaN, into every gradient of the unit. */
static void write_grads(session_t *s)
{
    const declared_t *d = &s->declared;
    bool has_nan = one_in(30);
    for (int t = 0; t < d->n_tensors; t++) {
        zero_grad_t grad = zero_grad(s->engine, t);
        for (uint64_t i = 0; grad.data && i < d->n_elems[t]; i++) {
            float x = (float)((i + (uint64_t)t) % 7) / 64.0f - 0.03125f;
            if (grad.accumulate)
                x += element_load(grad.data, grad.dtype, i);
            element_store(grad.data, grad.dtype, i, has_nan && i == 0 ? NAN : x);
            s->step_has_nan |= has_nan && i == 0;
        }
    }
}

static void acquire(session_t *s, zero_unit_t unit)
{
    bool is_null = !s->engine || one_in(50), wrong_unit = unit < 0 || unit >= s->declared.n_units;
    bool wrong_order = !is_null && (!s->in_pass || s->acquired || unit != unit_now(s));
    note(CALL_acquire, "%s unit %d", is_null ? "NULL" : "", unit);
    zero_status_t status = zero_acquire(is_null ? NULL : s->engine, unit, NULL);
    if (judge(CALL_acquire, status, expected(is_null || wrong_unit, wrong_order)) != ZERO_OK)
        return;
    s->acquired = true;
    check_pointers(s);
    if (is_backward(s))
        write_grads(s);
}

static void leave(session_t *s, zero_unit_t unit, bool grad_ready)
{
    call_t call = grad_ready ? CALL_grad_ready : CALL_release;
    bool is_null = !s->engine || one_in(50), wrong_unit = unit < 0 || unit >= s->declared.n_units;
    bool wrong_order = !is_null && (!s->in_pass || !s->acquired || unit != unit_now(s) || is_backward(s) != grad_ready);
    note(call, "%s unit %d", is_null ? "NULL" : "", unit);
    zero_engine_t *engine = is_null ? NULL : s->engine;
    zero_status_t status = grad_ready ? zero_grad_ready(engine, unit, NULL) : zero_release(engine, unit, NULL);
    if (judge(call, status, expected(is_null || wrong_unit, wrong_order)) != ZERO_OK)
        return;
    s->acquired = false;
    s->position++;
    s->in_pass = s->position < (s->is_eval ? 1 : 2) * s->declared.n_units;
    if (!s->in_pass && !s->is_eval)
        s->micro_step++;
    if (s->in_pass)
        check_pointers(s);
}

/* ---- steps ---- */

static void step(session_t *s)
{
    bool is_null = !s->engine || one_in(50), wrong_lr = one_in(10);
    bool wrong_order = !is_null && (s->in_pass || s->micro_step != s->config.micro_steps || n_unwaited(s) == 2);
    double loss = 0.5;
    float lr = !wrong_lr ? 0.001f : one_in(2) ? NAN : -INFINITY;
    note(CALL_step, "%s lr %g", is_null ? "NULL" : "", (double)lr);
    zero_status_t status = zero_step(is_null ? NULL : s->engine, lr, one_in(2) ? &loss : NULL, NULL);
    if (judge(CALL_step, status, expected(is_null || wrong_lr, wrong_order)) != ZERO_OK)
        return;
    s->n_steps++;
    s->steps[s->n_steps % 4].skipped = s->step_has_nan;
    s->steps[s->n_steps % 4].notice = s->notice;
    s->step_has_nan = false;
    s->micro_step = 0;
}

static void step_wait(session_t *s)
{
    zero_step_result_t result = {.step = UINT64_MAX};
    bool is_null = !s->engine || one_in(50), has_no_result = one_in(20);
    bool wrong_order = !is_null && n_unwaited(s) == 0, skipped = false;
    statuses_t allowed = expected(is_null || has_no_result, wrong_order);
    if (allowed == MAY(OK)) {
        skipped = s->steps[(s->n_waited + 1) % 4].skipped;
        if (skipped && s->n_skipped_in_row + 1 >= s->config.max_skipped_steps)
            allowed = MAY(ERROR_NONFINITE);
    }
    note(CALL_step_wait, "%s result %d", is_null ? "NULL" : "", !has_no_result);
    zero_status_t status = zero_step_wait(is_null ? NULL : s->engine, has_no_result ? NULL : &result);
    judge(CALL_step_wait, status, allowed);
    if (status != ZERO_OK && status != ZERO_ERROR_NONFINITE) {
        EXPECT(result.step == UINT64_MAX, "an output was set");
        return;
    }
    s->n_waited++;
    s->n_skipped_in_row = skipped ? s->n_skipped_in_row + 1 : 0;
    s->adam_step += !skipped;
    EXPECT(result.step == s->n_waited && result.skipped == skipped, "step %llu, skipped %d",
           (unsigned long long)result.step, result.skipped);
    EXPECT(result.notice == s->steps[s->n_waited % 4].notice, "notice %u", result.notice);
    EXPECT(skipped ? !isfinite(result.grad_norm) : isfinite(result.grad_norm), "norm %g", (double)result.grad_norm);
}

static void set_micro_steps(session_t *s)
{
    int n = any(6) - 1;
    bool is_null = !s->engine || one_in(20), wrong_order = !is_null && !between_steps(s);
    statuses_t allowed = expected(is_null || n < 1, wrong_order);
    if (allowed == MAY(OK) && n > 1 && s->created_with == 1)
        allowed = MAY(ERROR_USAGE);
    note(CALL_set_micro_steps, "%s %d", is_null ? "NULL" : "", n);
    zero_status_t status = zero_set_micro_steps(is_null ? NULL : s->engine, n);
    if (judge(CALL_set_micro_steps, status, allowed) == ZERO_OK)
        s->config.micro_steps = n;
}

/* Sets a tensor's learning rate, good or bad, or takes its settings back, and reads them. */
static void set_group(session_t *s)
{
    zero_tensor_t tensor = any(s->declared.n_tensors + 2) - 1;
    zero_group_t group = {.beta1 = 0.5f, .beta2 = 0.75f, .eps = 1e-6f, .momentum = 0.5f}, got = {0};
    bool is_null = !s->engine || one_in(20), resets = one_in(3), wrong_order = !is_null && !between_steps(s);
    bool wrong = is_null || tensor < 0 || tensor >= s->declared.n_tensors;
    group.lr_scale = one_in(6) ? -0.5f : 0.25f * (float)any(5);
    bool is_bad = !resets && group.lr_scale < 0.0f;
    note(CALL_set_group, "%s %d %g", is_null ? "NULL" : "", tensor, (double)group.lr_scale);
    zero_status_t status = zero_set_group(is_null ? NULL : s->engine, tensor, resets ? NULL : &group);
    judge(CALL_set_group, status, expected(wrong || is_bad, wrong_order));
    note(CALL_get_group, "%s %d", is_null ? "NULL" : "", tensor);
    zero_status_t read = zero_get_group(is_null ? NULL : s->engine, tensor, &got);
    if (judge(CALL_get_group, read, expected(wrong, false)) == ZERO_OK && status == ZERO_OK)
        EXPECT(resets ? got.lr_scale == 1.0f : memcmp(&got, &group, sizeof got) == 0, "lr_scale %g",
               (double)got.lr_scale);
}

/* Allowed in any state. */
static void cancel(session_t *s)
{
    bool is_null = !s->engine || one_in(10);
    note(CALL_cancel, "%s", is_null ? "NULL" : "");
    if (judge(CALL_cancel, zero_cancel(is_null ? NULL : s->engine), expected(is_null, false)) != ZERO_OK)
        return;
    s->in_pass = s->acquired = s->step_has_nan = false;
    s->micro_step = 0;
}

/* ---- memory, traces, values ---- */

static void alloc(session_t *s)
{
    void *data = &data;
    int category = any(ZERO_MEMORY_N_CATEGORIES + 2) - 1, how = any(12), n_units = s->declared.n_units;
    bool activations = one_in(2), is_null = !s->engine || how == 0, too_much = how == 2;
    zero_unit_t first = any(n_units + 1) - one_in(8), last = any(n_units + 1);
    size_t n_bytes = too_much ? (size_t)1 << 60 : (size_t)any(5000);
    bool wrong = is_null || how == 1 ||
                 (activations ? first < 0 || first >= n_units || last >= n_units
                              : category < 0 || category >= ZERO_MEMORY_N_CATEGORIES);
    bool wrong_order = !is_null && s->started;
    statuses_t allowed = expected(wrong, wrong_order);
    if (too_much && allowed == MAY(OK))
        allowed = MAY(ERROR_MEMORY);
    call_t call = activations ? CALL_alloc_activations : CALL_alloc;
    zero_engine_t *engine = is_null ? NULL : s->engine;
    void **out = how == 1 ? NULL : &data;
    note(call, "%d, %d to %d, %zu bytes, way %d", category, first, last, n_bytes, how);
    zero_status_t status = activations ? zero_alloc_activations(engine, first, last, n_bytes, out)
                                       : zero_alloc(engine, (zero_memory_category_t)category, n_bytes, out);
    if (judge(call, status, allowed) != ZERO_OK) {
        EXPECT(data == (void *)&data, "an output was set");
        return;
    }
    s->held_bytes += n_bytes;
    for (size_t i = 0; i < n_bytes; i++)
        EXPECT(((unsigned char *)data)[i] == 0, "byte %zu", i);
    if (n_bytes > 0)
        memset(data, 0xff, n_bytes);
}

static void take_span(void *user, const zero_trace_span_t *span)
{
    const session_t *s = user;
    EXPECT((unsigned)span->work < ZERO_N_WORKS && span->unit >= -1 && span->unit < s->declared.n_units, "a span");
    EXPECT(span->end_ms >= span->begin_ms && span->step <= s->n_steps + 1, "a span's time");
}

static void trace(session_t *s)
{
    bool is_null = !s->engine || one_in(10), has_fn = !one_in(3), odd_works = one_in(10);
    unsigned works = (unsigned)any(ZERO_ALL_WORKS + 1) | (odd_works ? 1u << ZERO_N_WORKS : 0);
    bool wrong_order = !is_null && s->started;
    note(CALL_engine_trace, "works 0x%x, fn %d", works, has_fn);
    zero_status_t status = zero_engine_trace(is_null ? NULL : s->engine, works, has_fn ? take_span : NULL, s);
    judge(CALL_engine_trace, status, expected(is_null || odd_works || (works != 0 && !has_fn), wrong_order));
}

static void check_values(session_t *s)
{
    EXPECT(zero_comm_rank(s->comm) == record.rank && zero_comm_size(s->comm) == record.n_ranks, "rank or size");
    if (!s->engine)
        return;
    if (one_in(3)) {
        s->notice = (uint32_t)any(100);
        zero_set_notice(s->engine, s->notice);
    }
    zero_memory_t held = zero_engine_memory(s->engine);
    EXPECT(zero_memory_total(&held) == s->held_bytes, "%llu bytes are held",
           (unsigned long long)zero_memory_total(&held));
    EXPECT(zero_get_adam_step(s->engine) == s->adam_step, "AdamW's t is %llu",
           (unsigned long long)zero_get_adam_step(s->engine));
    EXPECT(zero_engine_transport(s->engine)[0], "no transport");
    EXPECT(zero_loss_scale(s->engine), "no loss scale");
    EXPECT(s->config.dtype == ZERO_FP16 || *zero_loss_scale(s->engine) == 1.0f, "a loss scale");
    check_pointers(s);
}

/* ---- saves and checkpoints ---- */

/* A failure on rank 0 alone is ERROR_PEER on the others. */
static statuses_t on_rank_0(statuses_t status)
{
    return record.rank == 0 ? status : MAY(ERROR_PEER);
}

static void save_prepare(session_t *s)
{
    int how = any(6);
    bool wrong = how <= 1;
    statuses_t allowed = expected(wrong, false);
    if (!wrong && s->save)
        allowed = on_rank_0(MAY(ERROR_IO));
    if (how == 2)
        allowed = on_rank_0(MAY(ERROR_IO));
    note(CALL_save_prepare, "way %d", how);
    judge(CALL_save_prepare,
          zero_save_prepare(how == 0 ? NULL : s->comm, how == 1   ? NULL
                                                       : how == 2 ? "/proc/nowhere"
                                                                  : s->directory),
          allowed);
}

static void save_begin(session_t *s)
{
    zero_save_t *save = NULL;
    int how = s->n_saves < MAX_SAVES ? any(12) : any(5);
    zero_save_options_t options = {.keep = how == 4 ? -1 : 0,
                                   .background = one_in(2),
                                   .config_json = "{}",
                                   .state_json = one_in(2) ? NULL : "{\"mine\": 1}",
                                   .max_file_bytes = one_in(2) ? 0 : 100};
    bool is_null = !s->engine || how == 0;
    bool wrong_order = !is_null && (!between_steps(s) || n_unwaited(s) > 0 || s->is_partial);
    statuses_t allowed = expected(is_null || how <= 4, wrong_order);
    if (allowed == MAY(OK) && (s->save || how == 5))
        allowed = on_rank_0(MAY(ERROR_IO));
    note(CALL_save_begin, "way %d, background %d", how, options.background);
    zero_status_t status = zero_save_begin(is_null ? NULL : s->engine,
                                           how == 1   ? NULL
                                           : how == 5 ? "/proc/nowhere"
                                                      : s->directory,
                                           how == 2 ? NULL : &options, how == 3 ? NULL : &save);
    judge_as(CALL_save_begin, status, allowed, s->is_partial);
    EXPECT((status == ZERO_OK) == (save != NULL), "an output is set only on ZERO_OK");
    if (status != ZERO_OK)
        return;
    s->save = save;
    s->n_saves++;
    s->saving = (kept_t){s->n_waited, s->adam_step, s->n_skipped_in_row};
}

static void save_poll(session_t *s)
{
    bool done = false, is_null = !s->save || one_in(10), has_no_done = one_in(10);
    note(CALL_save_poll, "%d %d", is_null, has_no_done);
    judge(CALL_save_poll, zero_save_poll(is_null ? NULL : s->save, has_no_done ? NULL : &done),
          expected(is_null || has_no_done, false));
}

/* Also ends the engine, if that was destroyed before. */
static void save_end(session_t *s)
{
    note(CALL_save_end, "%s", s->save ? "" : "NULL");
    judge(CALL_save_end, zero_save_end(s->save), MAY(OK));
    if (!s->save)
        return;
    s->save = NULL;
    s->saves_another = false;
    s->has_saved = true;
    s->saved = s->saving;
}

static void checkpoint_close(session_t *s)
{
    zero_checkpoint_close(s->checkpoint);
    s->checkpoint = NULL;
}

static void checkpoint_open(session_t *s)
{
    zero_checkpoint_t *checkpoint = NULL;
    int how = any(8);
    if (s->checkpoint)
        checkpoint_close(s);
    statuses_t allowed = expected(how <= 2, false);
    if (how > 2 && (how == 3 || !s->has_saved))
        allowed = MAY(ERROR_USAGE);
    note(CALL_checkpoint_open, "way %d", how);
    zero_status_t status = zero_checkpoint_open(how == 0 ? NULL : s->comm,
                                                how == 1   ? NULL
                                                : how == 3 ? "/nowhere"
                                                           : s->directory,
                                                how == 2 ? NULL : &checkpoint);
    judge(CALL_checkpoint_open, status, allowed);
    EXPECT((status == ZERO_OK) == (checkpoint != NULL), "an output is set only on ZERO_OK");
    if (status != ZERO_OK)
        return;
    s->checkpoint = checkpoint;
    s->in_checkpoint = s->saved;
    EXPECT(zero_checkpoint_step(checkpoint) == s->saved.step, "step %llu",
           (unsigned long long)zero_checkpoint_step(checkpoint));
    EXPECT(strstr(zero_checkpoint_path(checkpoint), s->directory) && zero_checkpoint_state(checkpoint)[0] == '{',
           "text");
}

static void load(session_t *s)
{
    bool is_null = !s->engine || one_in(10), wrong_order = !is_null && s->started;
    note(CALL_load, "%d %d", is_null, s->checkpoint != NULL);
    zero_status_t status = zero_load(is_null ? NULL : s->engine, s->checkpoint);
    if (judge(CALL_load, status, expected(is_null || !s->checkpoint, wrong_order)) != ZERO_OK)
        return;
    s->is_partial = false;
    s->n_steps = s->n_waited = s->in_checkpoint.step;
    s->adam_step = s->in_checkpoint.adam_step;
    s->n_skipped_in_row = s->in_checkpoint.n_skipped_in_row;
}

/* ---- communicator and device ---- */

static void communicate(session_t *s)
{
    double values[3] = {1.0, 2.0, (double)record.rank};
    int how = any(8), n = record.n_ranks;
    switch (any(4)) {
    case 0:
        note(CALL_comm_sum, "way %d", how);
        if (judge(CALL_comm_sum, zero_comm_sum(how == 0 ? NULL : s->comm, how == 1 ? NULL : values, 3),
                  expected(how <= 1, false)) == ZERO_OK)
            EXPECT(values[0] == n && values[1] == 2.0 * n && values[2] == 0.5 * n * (n - 1), "a sum");
        break;
    case 1:
        note(CALL_comm_broadcast, "way %d", how);
        if (judge(CALL_comm_broadcast,
                  zero_comm_broadcast(how == 0 ? NULL : s->comm, how == 1 ? NULL : values, sizeof values,
                                      how == 2   ? -1
                                      : how == 3 ? n
                                                 : n - 1),
                  expected(how <= 3, false)) == ZERO_OK)
            EXPECT(values[2] == n - 1, "a broadcast");
        break;
    case 2:
        note(CALL_comm_barrier, "way %d", how);
        judge(CALL_comm_barrier, zero_comm_barrier(how == 0 ? NULL : s->comm), expected(how == 0, false));
        break;
    default:
        note(CALL_comm_agree, "way %d", how);
        if (how == 0)
            judge(CALL_comm_agree, zero_comm_agree(NULL, ZERO_OK), MAY(ERROR_ARGUMENT));
        else
            judge_as(CALL_comm_agree, zero_comm_agree(s->comm, how == 1 ? ZERO_ERROR_IO : ZERO_OK),
                     how == 1 ? MAY(ERROR_IO) : MAY(OK), true);
    }
}

static void use_device(session_t *s)
{
    zero_stream_t stream = NULL;
    void *data = NULL;
    char bytes[2][16] = {"from here", "to there"};
    int how = s->device ? any(8) : 0;
    zero_device_t *device = how == 0 ? NULL : s->device;
    switch (any(4)) {
    case 0:
        note(CALL_device_synchronize, "way %d", how);
        judge(CALL_device_synchronize, zero_device_synchronize(device), expected(how == 0, false));
        break;
    case 1:
        note(CALL_device_copy, "way %d", how);
        judge(CALL_device_copy,
              zero_device_copy(device, how == 1 ? NULL : bytes[1], how == 2 ? NULL : bytes[0], 16, NULL),
              expected(how <= 2, false));
        EXPECT((strcmp(bytes[1], bytes[0]) == 0) == (how > 2), "a copy");
        break;
    case 2:
        note(CALL_host_alloc, "way %d", how);
        judge(CALL_host_alloc, zero_host_alloc(device, 100, how == 1 ? NULL : &data), expected(how <= 1, false));
        zero_host_free(s->device, data);
        break;
    default:
        note(CALL_stream_create, "way %d", how);
        judge(CALL_stream_create, zero_stream_create(device, how == 1 ? NULL : &stream), expected(how <= 1, false));
        zero_stream_destroy(s->device, stream);
    }
}

/* ---- sessions ---- */

/* What only an engine between two steps does. */
static void use_pause(session_t *s)
{
    static void (*const uses[])(session_t *) = {set_state,       get_state,  load_weights, set_adam_step, save_begin,
                                                checkpoint_open, load,       alloc,        trace,         save_prepare,
                                                set_micro_steps, get_tensor, set_tensor,   set_group};
    if (n_unwaited(s) > 0)
        step_wait(s);
    else
        uses[any((int)(sizeof uses / sizeof uses[0]))](s);
}

/* What a training loop would do now. */
static void go_on(session_t *s)
{
    if (!s->engine && !s->saves_another)
        create_engine(s);
    else if (!s->engine)
        save_end(s);
    else if (s->is_partial)
        one_in(3) ? begin(s, any(2)) : init_parameters(s);
    else if (between_steps(s) && one_in(s->started ? 4 : 2))
        use_pause(s);
    else if (s->in_pass && !s->acquired)
        acquire(s, unit_now(s));
    else if (s->in_pass)
        leave(s, unit_now(s), is_backward(s));
    else if (n_unwaited(s) > 0 && one_in(4)) /* or too late */
        step_wait(s);
    else if (s->micro_step == s->config.micro_steps)
        step(s);
    else
        begin(s, s->micro_step == 0 && one_in(5));
}

static void create_or_plan(session_t *s)
{
    one_in(3) ? create_engine(s) : plan(s);
}

static void begin_anything(session_t *s)
{
    begin(s, any(3) == 2 ? 7 : any(2));
}

static void prepare_or_poll(session_t *s)
{
    one_in(4) ? save_prepare(s) : save_poll(s);
}

static void release_unit(session_t *s, zero_unit_t unit)
{
    leave(s, unit, false);
}

static void end_unit(session_t *s, zero_unit_t unit)
{
    leave(s, unit, true);
}

/* Any call, as likely as it has rows. */
static void do_anything(session_t *s)
{
    static const struct {
        void (*call)(session_t *s);
        void (*call_of_unit)(session_t *s, zero_unit_t unit); /* instead */
    } calls[] = {{communicate, NULL},
                 {use_device, NULL},
                 {plan, NULL},
                 {plan_traffic, NULL},
                 {create_or_plan, NULL},
                 {init_parameters, NULL},
                 {set_state, NULL},
                 {get_state, NULL},
                 {get_tensor, NULL},
                 {set_tensor, NULL},
                 {load_weights, NULL},
                 {begin_anything, NULL},
                 {NULL, acquire},
                 {NULL, acquire},
                 {NULL, release_unit},
                 {NULL, end_unit},
                 {step, NULL},
                 {step_wait, NULL},
                 {set_adam_step, NULL},
                 {set_micro_steps, NULL},
                 {set_group, NULL},
                 {cancel, NULL},
                 {alloc, NULL},
                 {alloc, NULL},
                 {trace, NULL},
                 {prepare_or_poll, NULL},
                 {save_begin, NULL},
                 {save_end, NULL},
                 {checkpoint_open, NULL},
                 {load, NULL}};
    zero_unit_t unit = any(s->declared.n_units + 2) - 1;
    int i = any((int)(sizeof calls / sizeof calls[0]));
    if (calls[i].call)
        calls[i].call(s);
    else
        calls[i].call_of_unit(s, unit);
}

/* Destroys the objects in a random order: one that is destroyed too early is kept for its users. */
static void end_session(session_t *s)
{
    bool gone[6] = {false};
    for (int n_gone = 0; n_gone < 6;) {
        int what = any(6);
        if (gone[what])
            continue;
        gone[what] = true;
        n_gone++;
        switch (what) {
        case 0:
            zero_comm_destroy(s->comm);
            break;
        case 1:
            zero_device_destroy(s->device);
            break;
        case 2:
            zero_model_destroy(s->declared.model);
            break;
        case 3:
            zero_engine_destroy(s->engine);
            break;
        case 4:
            EXPECT(zero_save_end(s->save) == ZERO_OK, "a save failed");
            break;
        default:
            zero_checkpoint_close(s->checkpoint);
        }
    }
    if (record.rank == 0) {
        char command[128];
        snprintf(command, sizeof command, "rm -rf %s", s->directory);
        if (s->n_saves > 0 || access(s->directory, F_OK) == 0)
            EXPECT(system(command) == 0, "%s", command);
    }
}

static void run_session(const char *directory, unsigned long n_calls)
{
    session_t s = {0};
    unsigned long last = record.n_calls + (unsigned long)(50 + any(700));
    snprintf(s.directory, sizeof s.directory, "%s/%lu", directory, record.n_sessions++);
    OK(zero_comm_create(one_in(4) ? ZERO_COMM_MPI : ZERO_COMM_AUTO, &s.comm));
    OK(zero_device_create(ZERO_DEVICE_CPU, s.comm, &s.device));
    declare(&s.declared);
    while (record.n_calls < last && record.n_calls < n_calls) {
        if (one_in(150))
            destroy_engine(&s);
        else if (any(3) > 0)
            go_on(&s);
        else
            do_anything(&s);
        check_values(&s);
    }
    end_session(&s);
}

static void report(unsigned long n_calls)
{
    unsigned long n_ok = 0, n_of[N_STATUSES] = {0};
    for (int call = 0; call < N_CALLS; call++) {
        for (int status = 0; status < N_STATUSES; status++)
            n_of[status] += record.of[call][status];
        n_ok += record.of[call][ZERO_OK];
        EXPECT(n_calls < 50000 || record.of[call][ZERO_OK] > 0, "%s never succeeded", call_names[call]);
    }
    if (record.rank != 0)
        return;
    printf("%lu calls in %lu sessions:", record.n_calls, record.n_sessions);
    for (int status = 0; status < N_STATUSES; status++)
        if (n_of[status] > 0)
            printf(" %lu %s", n_of[status], zero_status_name((zero_status_t)status));
    printf("\n");
    EXPECT(n_ok > 0, "nothing succeeded");
}

typedef struct settings {
    int calls, seed, verbose;
} settings_t;

static const setting_row_t setting_rows[] = {{"calls", offsetof(settings_t, calls), NULL},
                                             {"seed", offsetof(settings_t, seed), NULL},
                                             {"verbose", offsetof(settings_t, verbose), NULL}};

int main(int argc, char **argv)
{
    zero_comm_t *comm; /* stays for all sessions: MPI starts once */
    settings_t settings = {.calls = 20000, .seed = 1};
    char directory[] = "/tmp/api_random.XXXXXX";
    for (int i = 1; i < argc; i++)
        setting_take(argv[i], setting_rows, sizeof setting_rows / sizeof setting_rows[0], &settings);
    OK(zero_comm_create(ZERO_COMM_AUTO, &comm));
    record.rank = zero_comm_rank(comm);
    record.n_ranks = zero_comm_size(comm);
    record.seed = settings.seed;
    record.verbose = settings.verbose;
    chance = (uint64_t)settings.seed;
    OK(zero_comm_agree(comm, record.rank > 0 || mkdtemp(directory) ? ZERO_OK : ZERO_ERROR_IO));
    OK(zero_comm_broadcast(comm, directory, sizeof directory, 0));
    zero_log_set(ZERO_LOG_ERROR, take_line, NULL);
    while (record.n_calls < (unsigned long)settings.calls)
        run_session(directory, (unsigned long)settings.calls);
    report((unsigned long)settings.calls);
    zero_log_set(ZERO_LOG_WARNING, NULL, NULL);
    OK(zero_comm_barrier(comm));
    if (record.rank == 0)
        CHECK(rmdir(directory) == 0, "%s", directory);
    zero_comm_destroy(comm);
    return 0;
}
