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
 * Here are the record of calls, the model's questions and the sessions; the calls are in api/.
 *
 * Exit code 0 if every check held and, given enough calls, every kind of call has succeeded. Otherwise prints the last
 * calls, and the seed that repeats them.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/mpi/api/calls.h"
#include "tests/mpi/expect.h"
#include "tests/mpi/settings.h"
#include "tests/support/elements.h"
#include "tests/support/support.h"
#include "zero.h"

/* ---- what happened ---- */

static const char *const call_names[] = {
#define CALL_NAME(name) "zero_" #name,
    CALL_MAP(CALL_NAME)
#undef CALL_NAME
};

record_t record = {.broken = "the status"};

static void take_line(void *user, zero_log_level_t level, int rank, const char *line)
{
    (void)user, (void)rank;
    if (level != ZERO_LOG_ERROR)
        return;
    record.n_error_lines++;
    snprintf(record.line, sizeof record.line, "%s", line);
}

void give_up(const char *format, ...)
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

/* Records a call before it is made. */
void note(call_t call, const char *format, ...)
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
zero_status_t judge_as(call_t call, zero_status_t status, statuses_t allowed, bool quiet)
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

zero_status_t judge(call_t call, zero_status_t status, statuses_t allowed)
{
    return judge_as(call, status, allowed, false);
}

/* ---- chance ---- */

static uint64_t chance; /* the same on all ranks */

int any(int n) /* of 0 .. n - 1 */
{
    return (int)(support_random(&chance) % (uint64_t)n);
}

bool one_in(int n)
{
    return any(n) == 0;
}

/* ---- the model ---- */

uint64_t n_unwaited(const session_t *s)
{
    return s->n_steps - s->n_waited;
}

bool between_steps(const session_t *s)
{
    return !s->in_pass && s->micro_step == 0;
}

bool is_backward(const session_t *s)
{
    return s->position >= s->declared.n_units;
}

zero_unit_t unit_now(const session_t *s)
{
    int n = s->declared.n_units;
    return s->position < n ? s->position : 2 * n - 1 - s->position;
}

/* The statuses that a call may return which is wrong in one way, in two, or in none. */
statuses_t expected(bool wrong_argument, bool wrong_order)
{
    if (!wrong_argument && !wrong_order)
        return MAY(OK);
    return (wrong_argument ? MAY(ERROR_ARGUMENT) : 0) | (wrong_order ? MAY(ERROR_ORDER) : 0);
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
