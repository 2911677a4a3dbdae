/* calls.h - what the parts of api_random share: how calls are recorded and judged, chance, the session with its oracle,
 * and the calls themselves. */
#ifndef ZERO_TEST_API_CALLS_H
#define ZERO_TEST_API_CALLS_H

#include <stdio.h>

#include "zero.h"

#define MAX_UNITS 4
#define MAX_TENSORS 8
#define MAX_PLANNED_RANKS 9
#define MAX_SAVES 6 /* per session: saves take most of the time */

/* Sets of statuses. */
typedef unsigned statuses_t;

#define MAY(name) (1u << ZERO_##name)

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

#define N_STATUSES 15
#define N_LAST 12

typedef struct record {
    unsigned long n_calls, n_sessions;
    unsigned long of[N_CALLS][N_STATUSES];
    char last[N_LAST][160]; /* calls, in a ring */
    int n_error_lines;      /* of the call at hand */
    char line[256];         /* the last of them */
    int rank, n_ranks, seed, verbose;
    const char *broken; /* the condition that did not hold */
} record_t;

#define EXPECT(condition, ...)                                                                                         \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            record.broken = #condition;                                                                                \
            give_up(__VA_ARGS__);                                                                                      \
        }                                                                                                              \
    } while (0)

/* A declaration, by zero.h's rules for names, shapes and sharing. */
typedef struct declared {
    zero_model_t *model;
    int n_units, n_tensors;
    zero_unit_t owner[MAX_TENSORS], last_user[MAX_TENSORS];
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

extern record_t record;

/* api_random.c */
void give_up(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
void note(call_t call, const char *format, ...) __attribute__((format(printf, 2, 3)));
zero_status_t judge_as(call_t call, zero_status_t status, statuses_t allowed, bool quiet);
zero_status_t judge(call_t call, zero_status_t status, statuses_t allowed);
int any(int n); /* of 0 .. n - 1 */
bool one_in(int n);
uint64_t n_unwaited(const session_t *s);
bool between_steps(const session_t *s);
bool is_backward(const session_t *s);
zero_unit_t unit_now(const session_t *s);
statuses_t expected(bool wrong_argument, bool wrong_order);

/* api/declare.c */
void declare(declared_t *d);
zero_config_t any_config(void);
void spoil(zero_config_t *c);
void plan(session_t *s);
void plan_traffic(session_t *s);

/* api/state.c */
void create_engine(session_t *s);
void destroy_engine(session_t *s);
void set_state(session_t *s);
void get_state(session_t *s);
void get_tensor(session_t *s);
void set_tensor(session_t *s);
void init_parameters(session_t *s);
void set_adam_step(session_t *s);
void load_weights(session_t *s);
void alloc(session_t *s);
void trace(session_t *s);
void check_values(session_t *s);

/* api/passes.c */
void begin(session_t *s, int pass);
void check_pointers(const session_t *s);
void acquire(session_t *s, zero_unit_t unit);
void leave(session_t *s, zero_unit_t unit, bool grad_ready);
void step(session_t *s);
void step_wait(session_t *s);
void set_micro_steps(session_t *s);
void set_group(session_t *s);
void cancel(session_t *s);

/* api/saves.c */
void save_prepare(session_t *s);
void save_begin(session_t *s);
void save_poll(session_t *s);
void save_end(session_t *s);
void checkpoint_open(session_t *s);
void load(session_t *s);
void communicate(session_t *s);
void use_device(session_t *s);

#endif
