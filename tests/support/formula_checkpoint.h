/* formula_checkpoint.h - checkpoints whose weights and moments are a formula of tensor and element, so any rank can
 * check what it holds. For tests that start themselves as ranks: with arguments, such a program is one rank of a test.
 */
#ifndef ZERO_TEST_FORMULA_CHECKPOINT_H
#define ZERO_TEST_FORMULA_CHECKPOINT_H

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "tests/support/log_lines.h"
#include "tests/support/scratch.h"
#include "tests/support/session.h"
#include "zero.h"

static const session_tensor_t TENSORS[] = {
    {"wte.weight", 0, 2, {257, 300}, false}, /* larger than the runs in which weights pass */
    {"wpe.weight", 0, 2, {7, 5}, true},
    {"h.0.w", 1, 3, {3, 2, 41}, false},
    {"h.0.w.m", 1, 1, {3}, true}, /* looks like a moment of the one before it */
    {"h.1.w", 2, 1, {1}, false},
    {"ln_f.weight", 3, 1, {100}, false},
};
#define N_TENSORS ((int)(sizeof TENSORS / sizeof TENSORS[0]))
#define N_UNITS 4

static zero_comm_t *ranks_comm; /* of a program under mpirun, which can have but one; NULL in the tests themselves */

typedef enum foreign { OUR_MODEL, OTHER_NAME, OTHER_SHAPE, ONE_MISSING } foreign_t;

/* Returns the model, or another one of nearly the same tensors, in `tensors` [N_TENSORS]. */
static inline session_model_t model_of(foreign_t foreign, session_tensor_t *tensors)
{
    enum { CHANGED = 2 };
    session_model_t model = {.tensors = tensors, .n_units = N_UNITS};
    for (int t = 0; t < N_TENSORS; t++) {
        if (t == CHANGED && foreign == ONE_MISSING)
            continue;
        session_tensor_t *tensor = &tensors[model.n_tensors++];
        *tensor = TENSORS[t];
        tensor->packed &= foreign != ONE_MISSING;
        if (t == CHANGED && foreign == OTHER_NAME)
            tensor->name = "h.0.W";
        if (t == CHANGED && foreign == OTHER_SHAPE)
            tensor->shape[0] = 2, tensor->shape[1] = 3;
    }
    return model;
}

static inline session_t session_open(int stage, zero_dtype_t dtype, foreign_t foreign)
{
    session_tensor_t tensors[N_TENSORS];
    session_model_t model = model_of(foreign, tensors);
    return session_create(ranks_comm, stage, dtype, &model);
}

static inline bool holds_the_formula(const session_t *session)
{
    return session_holds_the_formula(
        session, &(session_model_t){.tensors = TENSORS, .n_tensors = N_TENSORS, .n_units = N_UNITS});
}

/* In fp32 the parameters that a pass sees are the master weights, on every rank. */
static inline size_t n_wrong_parameters(zero_engine_t *engine)
{
    size_t n_wrong = 0;
    must(zero_begin(engine, ZERO_PASS_EVAL, NULL));
    for (int unit = 0; unit < N_UNITS; unit++) {
        must(zero_acquire(engine, unit, NULL));
        for (int t = 0; t < N_TENSORS; t++)
            for (size_t i = 0; TENSORS[t].unit == unit && i < session_n_elems(&TENSORS[t]); i++)
                n_wrong += ((const float *)zero_param(engine, t))[i] != session_value(0, t, i);
        must(zero_release(engine, unit, NULL));
    }
    return n_wrong;
}

static const char CALLERS[] = "{\"mine\": {\"place\": 12}}";
static const zero_save_options_t PLAIN = {.config_json = "{}\n", .state_json = CALLERS, .max_file_bytes = 200000};

/* ---- files ---- */

static inline void set_up(void)
{
    scratch_open();
    listen_to_log();
}

static const char STEP[] = "ck/step-00000000";

static inline void save_formula(const char *directory, zero_dtype_t dtype)
{
    session_t session = session_open(3, dtype, OUR_MODEL);
    ck_assert_int_eq(zero_set_state(session.engine, true, session_fill_chunk, NULL), ZERO_OK);
    ck_assert_int_eq(zero_set_adam_step(session.engine, SESSION_ADAM_STEP), ZERO_OK);
    ck_assert_msg(session_save(&session, path_of(directory), &PLAIN) == ZERO_OK, "%s", last_line);
    session_close(&session);
}

static inline void expect_formula(const char *directory, zero_dtype_t dtype)
{
    session_t session = session_open(2, dtype, OUR_MODEL);
    ck_assert_msg(session_load(&session, path_of(directory)) == ZERO_OK, "%s", last_line);
    ck_assert(holds_the_formula(&session));
    session_close(&session);
}

/* ---- ranks ---- */

/* odd_rank: the rank that may write little; -1: none. */
static inline int run_save(const char *directory, zero_dtype_t dtype, int stage, bool background, int odd_rank)
{
    session_t session = session_open(stage, dtype, OUR_MODEL);
    zero_save_options_t options = PLAIN;
    options.background = background;
    must(zero_set_state(session.engine, true, session_fill_chunk, NULL));
    must(zero_set_adam_step(session.engine, SESSION_ADAM_STEP));
    if (zero_comm_rank(session.comm) == odd_rank) {
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){.rlim_cur = 50000, .rlim_max = 50000});
    }
    zero_status_t status = session_save(&session, directory, &options);
    session_close(&session);
    return (status == ZERO_OK) != (odd_rank < 0);
}

/* Runs this program as ranks. says: the text that the logged line must contain, or NULL. */
static inline void run_ranks_that_say(int n_ranks, const char *arguments, const char *says)
{
    support_output_t output;
    int exit_code = support_mpirun(&output, SCRATCH_LIMIT_S, n_ranks, "%s/tests/unit/checkpoint/%s %s", support_build(),
                                   program_invocation_short_name, arguments);
    ck_assert_msg(exit_code == 0, "%d ranks, %s: exit code %d\n%s", n_ranks, arguments, exit_code, output.err);
    ck_assert_msg(!says || strstr(output.err, says), "'%s' is not in: %s", says, output.err);
    support_output_free(&output);
}

static inline void run_ranks(int n_ranks, const char *arguments)
{
    run_ranks_that_say(n_ranks, arguments, NULL);
}

#endif
