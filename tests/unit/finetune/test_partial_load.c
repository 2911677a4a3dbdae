/* test_partial_load.c - models that have something else than what they are loaded from: what is there is loaded, what
 * is not stays, at every stage and on several ranks, from checkpoints and from directories of weights. With arguments
 * this program is one rank of a test: test_partial_load DIRECTORY STAGE DTYPE. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/log_lines.h"
#include "tests/support/scratch.h"
#include "tests/support/session.h"

/* The base, and what is trained from it: without its head, with adapters. */
static const session_tensor_t BASE[] = {{"wte", 0, 2, {257, 300}, false},
                                        {"h.0.w", 1, 2, {30, 41}, false},
                                        {"h.0.b", 1, 1, {30}, false},
                                        {"head", 2, 1, {77}, false}};
static const session_tensor_t TUNED[] = {{"wte", 0, 2, {257, 300}, false},
                                         {"h.0.w", 1, 2, {30, 41}, false},
                                         {"h.0.lora.a", 1, 2, {2, 41}, false},
                                         {"transformer.h.0.b", 1, 1, {30}, false},
                                         {"score", 2, 1, {5}, false}};
static const int BASE_OF[] = {0, 1, -1, 2, -1}; /* by tensor of TUNED */
#define N_BASE 4
#define N_TUNED 5

static const session_model_t base = {.tensors = BASE, .n_tensors = N_BASE, .n_units = 3, .init = ZERO_INIT_ONES};
static const session_model_t tuned = {.tensors = TUNED, .n_tensors = N_TUNED, .n_units = 3, .init = ZERO_INIT_ONES};

/* Of fp32: other dtypes' master weights are fp32, too. */
static zero_status_t fill(void *user, const zero_chunk_t *chunk)
{
    const int first = *(const int *)user;
    for (size_t i = 0; i < chunk->n_elems; i++) {
        chunk->master[i] = session_value(0, first + chunk->tensor, chunk->first + i);
        if (!chunk->m)
            continue;
        chunk->m[i] = session_value(1, first + chunk->tensor, chunk->first + i);
        chunk->v[i] = session_value(2, first + chunk->tensor, chunk->first + i);
    }
    return ZERO_OK;
}

typedef struct tally {
    size_t n_elems, n_wrong;
    bool has_moments; /* else all are zero, and weights are those of fp32 in the saved dtype */
    zero_dtype_t dtype;
} tally_t;

/* What was not found has the values of tensors 10, 11 ... with which the model was filled. */
static zero_status_t visit(void *user, const zero_chunk_t *chunk)
{
    tally_t *tally = user;
    const int from = BASE_OF[chunk->tensor], t = from < 0 ? 10 + chunk->tensor : from;
    const bool rounded = from >= 0 && !tally->has_moments && tally->dtype != ZERO_FP32;
    tally->n_elems += chunk->n_elems;
    for (size_t i = 0; i < chunk->n_elems; i++) {
        const float w = session_value(0, t, chunk->first + i), error = chunk->master[i] - w;
        const float m = tally->has_moments ? session_value(1, t, chunk->first + i) : 0.0f;
        const float v = tally->has_moments ? session_value(2, t, chunk->first + i) : 0.0f;
        const float most = rounded ? 0x1p-8f * (w < 0 ? -w : w) : 0.0f;
        tally->n_wrong += error > most || -error > most || chunk->m[i] != m || chunk->v[i] != v;
    }
    return ZERO_OK;
}

static void check(const session_t *session, bool has_moments, zero_dtype_t dtype, const zero_partial_t *partial)
{
    tally_t tally = {.has_moments = has_moments, .dtype = dtype};
    must(zero_get_state(session->engine, visit, &tally));
    if (tally.n_wrong == 0 && partial->n_loaded == 3 && partial->n_kept == 2 && partial->n_ignored == 1)
        return;
    fprintf(stderr, "%zu of %zu elements are wrong; loaded %d, kept %d, ignored %d\n", tally.n_wrong, tally.n_elems,
            partial->n_loaded, partial->n_kept, partial->n_ignored);
    exit(4);
}

/* One rank: saves the base, then loads it into what is tuned, as a checkpoint and as weights. */
static int run(const char *directory, int stage, zero_dtype_t dtype)
{
    int first = 0;
    zero_partial_t partial = {0};
    zero_comm_t *comm;
    zero_checkpoint_t *checkpoint;
    must(zero_comm_create(ZERO_COMM_AUTO, &comm));
    session_t session = session_create(comm, stage, dtype, &base);
    must(zero_set_state(session.engine, true, fill, &first));
    must(zero_set_adam_step(session.engine, SESSION_ADAM_STEP));
    must(session_save(&session, directory, &(zero_save_options_t){0}));
    session_close(&session);

    first = 10;
    must(zero_checkpoint_open(comm, directory, &checkpoint));
    session = session_create(comm, (stage + 1) % 4, dtype, &tuned);
    must(zero_set_state(session.engine, true, fill, &first));
    must(zero_load_partial(session.engine, checkpoint, &partial));
    check(&session, true, dtype, &partial);
    if (zero_get_adam_step(session.engine) != SESSION_ADAM_STEP)
        return 5;
    must(zero_set_state(session.engine, true, fill, &first));
    partial = (zero_partial_t){0};
    must(zero_load_weights_partial(session.engine, zero_checkpoint_path(checkpoint), &partial));
    check(&session, false, dtype, &partial);
    if (zero_get_adam_step(session.engine) != 0)
        return 6;
    zero_checkpoint_close(checkpoint);
    session_close(&session);
    zero_comm_destroy(comm);
    return 0;
}

START_TEST(what_is_there_is_loaded_and_what_is_not_stays)
{
    static const char *const dtypes[] = {"fp32", "bf16", "fp16"};
    support_output_t output;
    const int stage = _i % 4, n_ranks = 1 + _i % 3, dtype = _i % 5 % 3;
    if (support_leaves_out(n_ranks))
        return;
    scratch_open();
    int exit_code = support_mpirun(&output, 60.0, n_ranks, "%s/tests/unit/finetune/test_partial_load %s %d %d",
                                   support_build(), path_of("run"), stage, dtype);
    ck_assert_msg(exit_code == 0, "stage %d, %d ranks, %s: exit code %d\n%s", stage, n_ranks, dtypes[dtype], exit_code,
                  output.err);
    support_output_free(&output);
    scratch_close();
}
END_TEST

/* ---- what is refused ---- */

static void expect(zero_status_t status, zero_status_t wanted, const char *words)
{
    ck_assert_msg(status == wanted && n_lines == 1 && strstr(last_line, words), "%s, %d lines, the last one: %s",
                  zero_status_name(status), n_lines, last_line);
    n_lines = 0;
}

START_TEST(a_refused_load_is_one_line_and_changes_nothing)
{
    static const session_tensor_t other[] = {{"other", 0, 1, {7}, false}}, wider[] = {{"wte", 0, 2, {257, 301}, false}};
    const session_model_t none = {.tensors = other, .n_tensors = 1, .n_units = 1, .init = ZERO_INIT_ONES},
                          shape = {.tensors = wider, .n_tensors = 1, .n_units = 1, .init = ZERO_INIT_ONES};
    zero_partial_t partial = {.n_kept = 9};
    zero_checkpoint_t *checkpoint;
    zero_comm_t *comm;
    int first = 0;
    scratch_open();
    must(zero_comm_create(ZERO_COMM_AUTO, &comm));
    session_t session = session_create(comm, 3, ZERO_BF16, &base);
    must(zero_set_state(session.engine, true, fill, &first));
    must(session_save(&session, path_of("run"), &(zero_save_options_t){0}));
    must(zero_checkpoint_open(comm, path_of("run"), &checkpoint));
    listen_to_log();
    expect(zero_load_partial(NULL, checkpoint, &partial), ZERO_ERROR_ARGUMENT, "zero_load_partial: engine");
    expect(zero_load_partial(session.engine, NULL, &partial), ZERO_ERROR_ARGUMENT, "zero_load_partial: checkpoint");
    expect(zero_load_partial(session.engine, checkpoint, NULL), ZERO_ERROR_ARGUMENT, "zero_load_partial: partial");
    expect(zero_load_weights_partial(NULL, path_of("run"), &partial), ZERO_ERROR_ARGUMENT,
           "zero_load_weights_partial: engine");
    expect(zero_load_weights_partial(session.engine, NULL, &partial), ZERO_ERROR_ARGUMENT,
           "zero_load_weights_partial: directory");
    expect(zero_load_weights_partial(session.engine, path_of("run"), NULL), ZERO_ERROR_ARGUMENT,
           "zero_load_weights_partial: partial");
    expect(zero_load_weights_partial(session.engine, path_of("nowhere"), &partial), ZERO_ERROR_IO, "nowhere");
    session_close(&session);
    const char *weights = zero_checkpoint_path(checkpoint);
    session = session_create(comm, 3, ZERO_BF16, &none);
    expect(zero_load_partial(session.engine, checkpoint, &partial), ZERO_ERROR_FORMAT, "none of the model's 1 tensors");
    expect(zero_load_weights_partial(session.engine, weights, &partial), ZERO_ERROR_FORMAT,
           "none of the model's 1 tensors, such as other");
    session_close(&session);
    session = session_create(comm, 3, ZERO_BF16, &shape);
    expect(zero_load_partial(session.engine, checkpoint, &partial), ZERO_ERROR_FORMAT, "wte");
    expect(zero_load_weights_partial(session.engine, weights, &partial), ZERO_ERROR_FORMAT, "wte has the shape");
    must(zero_begin(session.engine, ZERO_PASS_EVAL, NULL)); /* it may still be used */
    expect(zero_load_partial(session.engine, checkpoint, &partial), ZERO_ERROR_ORDER, "after the first zero_begin");
    ck_assert_int_eq(partial.n_kept, 9);
    zero_checkpoint_close(checkpoint);
    session_close(&session);
    zero_comm_destroy(comm);
    scratch_close();
}
END_TEST

static zero_status_t fill_nothing(void *user, const zero_chunk_t *chunk)
{
    (void)user;
    (void)chunk;
    return ZERO_ERROR_IO;
}

/* A load that keeps weights cannot make incomplete ones whole: the error line says what can. */
START_TEST(incomplete_weights_are_set_before_some_are_loaded)
{
    zero_partial_t partial;
    zero_checkpoint_t *checkpoint;
    zero_comm_t *comm;
    int first = 0;
    scratch_open();
    must(zero_comm_create(ZERO_COMM_AUTO, &comm));
    session_t session = session_create(comm, 3, ZERO_FP32, &base);
    must(zero_set_state(session.engine, true, fill, &first));
    must(session_save(&session, path_of("run"), &(zero_save_options_t){0}));
    must(zero_checkpoint_open(comm, path_of("run"), &checkpoint));
    session_close(&session);
    session = session_create(comm, 3, ZERO_FP32, &tuned);
    ck_assert_int_eq(zero_set_state(session.engine, true, fill_nothing, NULL), ZERO_ERROR_IO);
    listen_to_log();
    expect(zero_load_weights_partial(session.engine, zero_checkpoint_path(checkpoint), &partial), ZERO_ERROR_ORDER,
           "leaves some weights as they are, and these are incomplete: call zero_init_parameters or zero_set_state");
    expect(zero_load_partial(session.engine, checkpoint, &partial), ZERO_ERROR_ORDER,
           "leaves some weights as they are, and these are incomplete: call zero_init_parameters or zero_set_state");
    first = 10;
    must(zero_set_state(session.engine, true, fill, &first));
    must(zero_load_partial(session.engine, checkpoint, &partial));
    check(&session, true, ZERO_FP32, &partial);
    zero_checkpoint_close(checkpoint);
    session_close(&session);
    zero_comm_destroy(comm);
    scratch_close();
}
END_TEST

static Suite *suite(void)
{
    Suite *suite = suite_create("partial loads");
    TCase *tests = tcase_create("partial loads");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, what_is_there_is_loaded_and_what_is_not_stays, 0, 12);
    tcase_add_test(tests, a_refused_load_is_one_line_and_changes_nothing);
    tcase_add_test(tests, incomplete_weights_are_set_before_some_are_loaded);
    suite_add_tcase(suite, tests);
    return suite;
}

int main(int argc, char **argv)
{
    if (argc == 4)
        return run(argv[1], atoi(argv[2]), (zero_dtype_t)atoi(argv[3]));
    return support_main(suite());
}
