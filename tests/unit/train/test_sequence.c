/* test_sequence.c - ranks that share sequences ([train] sequence_ranks = K): gradients are those of plain fp64, losses
 * those of one rank, and for a given K every stage, transport and number of groups gives the same text. The runs beside
 * fp64 are mpi/sequence_cases.c. */
#include <math.h>

#include "tests/unit/train/zerotrain_runs.h"

/* ---- beside fp64 ---- */

static const struct {
    int n_ranks, n_sharing;
} groups[] = {{1, 1}, {2, 2}, {3, 3}, {4, 4}, {6, 6}, {4, 2}, {6, 2}, {6, 3}};
#define N_GROUPS (int)(sizeof groups / sizeof groups[0])
#define N_SEEDS 3

START_TEST(gradients_are_those_of_plain_fp64)
{
    const int n_ranks = groups[_i % N_GROUPS].n_ranks, n_sharing = groups[_i % N_GROUPS].n_sharing;
    support_output_t output;
    if (support_leaves_out(n_ranks))
        return;
    int code = support_mpirun(&output, RUN_LIMIT_S, n_ranks, "%s/tests/mpi/sequence_cases %d %d", support_build(),
                              n_sharing, _i);
    ck_assert_msg(code == 0 && strstr(output.out, "\nok"), "K %d of %d, seed %d\n%s%s", n_sharing, n_ranks, _i,
                  output.out, output.err);
    printf("K %d of %d: %s", n_sharing, n_ranks, output.out);
    support_output_free(&output);
}
END_TEST

/* ---- runs ---- */

#define SHARED                                                                                                         \
    "[model]\narch = llama\nlayers = 2\ndim = 36\nheads = 6\nkv_heads = 2\nvocab_size = 259\nseq_len = 23\n"           \
    "[data]\ntrain = text.txt\nval = val.txt\n"                                                                        \
    "[train]\nsteps = 6\nglobal_batch = 12\nmicro_batch = 2\nlr = 3e-3\neval_every = 3\neval_batches = 2\n"            \
    "[log]\nmetrics = metrics.jsonl\n"
#define N_SHARED_STEPS 6

/* Returns "step loss grad_norm val_loss" of every row, as they are in the file. */
static char *rows_of_run(int n_ranks, const char *arguments)
{
    outcome_t outcome = run_arguments(n_ranks, arguments);
    ck_assert_msg(outcome.exit_code == 0, "%d ranks, %s: exit code %d\n%s", n_ranks, arguments, outcome.exit_code,
                  outcome.output.err);
    forget(&outcome);
    char *text = support_read_file(path_of("metrics.jsonl"), NULL), *rows = calloc(1, strlen(text) + 1);
    static const char *const names[] = {"\"step\": ", "\"loss\": ", "\"grad_norm\": ", "\"val_loss\": "};
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1) {
        const char *end = line + strcspn(line, "\n");
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
            const char *at = strstr(line, names[i]);
            if (at && at < end && strncmp(line, "{\"step\"", 7) == 0)
                strncat(rows, at, strcspn(at, ",}") + 1);
        }
        strcat(rows, "\n");
    }
    free(text);
    return rows;
}

/* Stages, transports, groups, prefetch, recomputation: all that must not change a bit. */
static const struct {
    int n_ranks;
    const char *settings;
} variants[] = {
    {2, "--set zero.stage=0 --set train.sequence_ranks=2"},
    {2, "--set zero.stage=1 --set train.sequence_ranks=2 --set model.recompute=light"},
    {4, "--set zero.stage=2 --set train.sequence_ranks=2 --set zero.comm=mpi"},
    {6, "--set zero.stage=3 --set train.sequence_ranks=2 --set model.recompute=full --set zero.shard_group=2"},
    {4, "--set zero.stage=3 --set train.sequence_ranks=2 --set zero.prefetch=0 --set zero.keep=1"},
    {4, "--set zero.stage=1 --set train.sequence_ranks=2 --set model.recompute=full --set model.keep_attention=true"},
};
#define N_VARIANTS (int)(sizeof variants / sizeof variants[0])

static const char *const models[] = {"", "--set model.arch=qwen3 --set train.mlp_tile=7",
                                     "--set model.arch=gpt2 --set model.kv_heads=6", "--set train.precision=bf16"};
#define N_MODELS (int)(sizeof models / sizeof models[0])

START_TEST(bits_do_not_depend_on_stage_transport_or_number_of_groups)
{
    char arguments[512], *first = NULL;
    if (support_leaves_out(6))
        return;
    write_file("shared.ini", SHARED, sizeof SHARED - 1);
    for (int i = 0; i < N_VARIANTS; i++) {
        snprintf(arguments, sizeof arguments, "%s %s %s shared.ini", _i < 3 ? "--set train.precision=fp32" : "",
                 models[_i], variants[i].settings);
        char *rows = rows_of_run(variants[i].n_ranks, arguments);
        if (!first)
            first = rows;
        ck_assert_msg(strcmp(rows, first) == 0, "%s:\n%s\nthe first:\n%s", arguments, rows, first);
        if (rows != first)
            free(rows);
    }
    free(first);
}
END_TEST

static const int sharings[] = {2, 3, 4, 6};

/* In fp32 K changes the order of sums alone. */
START_TEST(losses_are_those_of_one_rank)
{
    char arguments[512];
    if (support_leaves_out(6))
        return;
    write_file("shared.ini", SHARED, sizeof SHARED - 1);
    const char *const model = models[_i % 3];
    snprintf(arguments, sizeof arguments, "%s --set train.precision=fp32 shared.ini", model);
    expect_success(ALONE, arguments);
    json_t *want = read_metrics("metrics.jsonl");
    const int n = sharings[_i / 3];
    snprintf(arguments, sizeof arguments, "%s --set train.precision=fp32 --set train.sequence_ranks=%d shared.ini",
             model, n);
    expect_success(n, arguments);
    json_t *got = read_metrics("metrics.jsonl");
    for (size_t step = 1; step <= N_SHARED_STEPS; step++) {
        static const char *const names[] = {"loss", "grad_norm", "val_loss"};
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
            const double a = number(got, step, names[i]), b = number(want, step, names[i]);
            ck_assert_msg(fabs(a - b) <= 2e-6 * fabs(b), "K %d, step %zu: %s %.9g, one rank has %.9g", n, step,
                          names[i], a, b);
        }
    }
    json_decref(want);
    json_decref(got);
}
END_TEST

#define UNEVALUATED "--set train.sequence_ranks=2 --set data.val= --set train.eval_every=0"

/* A checkpoint names K; other numbers of groups go on with it, to the bit; another K is said. */
START_TEST(a_run_goes_on_with_other_groups)
{
    if (support_leaves_out(6))
        return;
    write_file("shared.ini", SHARED, sizeof SHARED - 1);
    char *want = rows_of_run(6, UNEVALUATED " shared.ini");
    free(rows_of_run(4, UNEVALUATED " --set checkpoint.dir=groups --steps 4 shared.ini"));
    char *got = rows_of_run(2, UNEVALUATED " --set checkpoint.dir=groups --resume --stage 1 shared.ini");
    ck_assert_msg(strcmp(got, want) == 0, "resumed:\n%s\nnot:\n%s", got, want);
    char *state = support_read_file(path_of("groups/latest/state.json"), NULL);
    ck_assert_msg(strstr(state, "\"sequence_ranks\": \"2\""), "%s", state);
    outcome_t outcome = run(3, "--set train.sequence_ranks=3 --set train.steps=8 --set checkpoint.dir=groups --resume "
                               "shared.ini");
    expect_exit(&outcome, 0);
    ck_assert_msg(strstr(outcome.output.err, "train.sequence_ranks was 2, is 3"), "%s", outcome.output.err);
    ck_assert_msg(strstr(outcome.output.err, "(2 per 3 ranks, which share each, "), "%s", outcome.output.err);
    forget(&outcome);
    free(want);
    free(got);
    free(state);
}
END_TEST

/* evaluate and samples of a run with K; masks are in test_documents. */
START_TEST(evaluation_and_samples_work)
{
    if (support_leaves_out(4))
        return;
    write_file("shared.ini", SHARED, sizeof SHARED - 1);
    outcome_t outcome = run(4, "--set train.sequence_ranks=2 --set checkpoint.dir=evaluated --set train.sample_every=3 "
                               "shared.ini");
    expect_exit(&outcome, 0);
    ck_assert_msg(support_count(outcome.output.out, "--- the model goes on") == 2, "%s", outcome.output.out);
    forget(&outcome);
    outcome_t alone = run(ALONE, "evaluate --set checkpoint.dir=evaluated --set train.precision=fp32 shared.ini");
    outcome = run(4, "evaluate --set checkpoint.dir=evaluated --set train.precision=fp32 --set train.sequence_ranks=4 "
                     "shared.ini");
    expect_exit(&alone, 0);
    expect_exit(&outcome, 0);
    ck_assert_str_eq(outcome.output.out, alone.output.out); /* six digits of the loss */
    forget(&outcome);
    forget(&alone);
}
END_TEST

static const struct {
    int n_ranks;
    const char *settings, *text;
} refusals[] = {
    {4, "train.sequence_ranks=3", "3 ranks to a sequence do not divide the 4 ranks"},
    {7, "train.sequence_ranks=7", "and attention has 6 heads"},
    {4, "train.sequence_ranks=4 --set model.seq_len=3", "4 ranks share a sequence of 3 tokens"},
    {4, "train.sequence_ranks=2 --set train.global_batch=5",
     "is not divisible by the number of groups of ranks that share a sequence, 2"},
    {4, "train.global_batch=1", "are fewer than the 4 ranks: [train] sequence_ranks lets ranks share one"},
    {2,
     "train.sequence_ranks=2 --set train.fp8=linear --set train.precision=bf16 --set model.dim=48 --set "
     "model.ffn_dim=64 --set model.head_dim=16 --set model.seq_len=33 --set train.micro_batch=16 --set "
     "train.global_batch=16",
     "2 ranks have unequal parts of seq_len = 33"},
    {4, "model.seq_len=1073741824 --set train.micro_batch=1 --set train.sequence_ranks=4 --set train.global_batch=1",
     "too few for one sequence of [model] seq_len = 1073741824"},
    {1, "train.sequence_ranks=65", "65"},
    {1, "train.mlp_tile=9 --set model.arch=gpt2 --set model.kv_heads=6",
     "with arch = gpt2 the MLP is computed at once"},
};
#define N_REFUSALS (int)(sizeof refusals / sizeof refusals[0])

START_TEST(what_cannot_be_shared_is_refused_by_name)
{
    if (support_leaves_out(refusals[_i].n_ranks))
        return;
    write_file("shared.ini", SHARED, sizeof SHARED - 1);
    outcome_t outcome = run(refusals[_i].n_ranks, "--set %s shared.ini", refusals[_i].settings);
    ck_assert_msg(outcome.exit_code != 0 && strstr(outcome.output.err, refusals[_i].text), "exit code %d\n%s",
                  outcome.exit_code, outcome.output.err);
    forget(&outcome);
}
END_TEST

/* Exchange, parts and tiles are planned to the byte; a plan with twice the ranks to a sequence takes less. */
START_TEST(a_run_holds_what_its_plan_says)
{
    static const char *const settings[] = {"--set train.sequence_ranks=2",
                                           "--set train.sequence_ranks=4 --set model.keep_attention=true"};
    const char *const more =
        "--set train.mlp_tile=5 --set model.recompute=full --set data.val= --set train.eval_every=0";
    int64_t planned[2];
    if (support_leaves_out(4))
        return;
    write_file("shared.ini", SHARED, sizeof SHARED - 1);
    for (int i = 0; i < 2; i++) {
        outcome_t outcome = run(4, "--plan --json %s %s shared.ini", settings[i], more);
        expect_exit(&outcome, 0);
        json_t *plan = json_loads(outcome.output.out, 0, NULL);
        ck_assert_int_eq((int)json_integer_value(json_object_get(plan, "sequence_ranks")), 2 << i);
        planned[i] = json_integer_value(json_object_get(json_array_get(json_object_get(plan, "stages"), 3), "total"));
        json_decref(plan);
        forget(&outcome);
        outcome = run(4, "%s %s --steps 1 shared.ini", settings[i], more);
        expect_exit(&outcome, 0);
        json_t *rows = read_metrics("metrics.jsonl");
        ck_assert_int_eq(integer(rows, 1, "device_bytes"), planned[i]);
        json_decref(rows);
        forget(&outcome);
    }
    ck_assert_int_lt(planned[1], planned[0]);
}
END_TEST

/* One sequence a step: all ranks share it. */
START_TEST(auto_takes_the_fewest_ranks_that_the_batch_allows)
{
    if (support_leaves_out(4))
        return;
    write_file("shared.ini", SHARED, sizeof SHARED - 1);
    for (int64_t global = 1; global <= 4; global *= 2) {
        char text[64];
        outcome_t outcome = run(4,
                                "--set train.sequence_ranks=auto --set train.micro_batch=1 --set "
                                "train.global_batch=%d --steps 1 shared.ini",
                                (int)global);
        expect_exit(&outcome, 0);
        snprintf(text, sizeof text, "auto: sequence_ranks %d", (int)(4 / global));
        ck_assert_msg(strstr(outcome.output.err, text), "no '%s' in\n%s", text, outcome.output.err);
        forget(&outcome);
    }
}
END_TEST

/* Memory for half a sequence a rank, so that the 5 sequences take 3 steps of 2 instead of 2 of 4. */
START_TEST(epochs_are_passes_in_steps_of_the_batch_that_auto_gives)
{
    static const char config[] = "[model]\narch = llama\nlayers = 2\ndim = 24\nheads = 12\nkv_heads = 12\n"
                                 "vocab_size = 259\nseq_len = 1000\nrecompute = full\n[data]\ntrain = text.txt\n"
                                 "[train]\nepochs = 1\nmicro_batch = 1\nsequence_ranks = auto\n[zero]\nstage = 3\n"
                                 "[device]\nmemory = 0.0055\n";
    if (support_leaves_out(4))
        return;
    write_file("epochs.ini", config, sizeof config - 1);
    outcome_t outcome = run(4, "epochs.ini");
    expect_exit(&outcome, 0);
    ck_assert_msg(strstr(outcome.output.err, "auto: sequence_ranks 2") && strstr(outcome.output.err, "step 3/3 "), "%s",
                  outcome.output.err);
    forget(&outcome);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("sequence");
    TCase *tc = tcase_create("all");
    tcase_add_unchecked_fixture(tc, set_up, NULL);
    tcase_set_timeout(tc, 10 * RUN_LIMIT_S);
    tcase_add_loop_test(tc, gradients_are_those_of_plain_fp64, 0, N_GROUPS);
    tcase_add_loop_test(support_long_case(s, 10 * RUN_LIMIT_S), gradients_are_those_of_plain_fp64, N_GROUPS,
                        N_SEEDS * N_GROUPS);
    tcase_add_loop_test(tc, bits_do_not_depend_on_stage_transport_or_number_of_groups, 0, N_MODELS);
    tcase_add_loop_test(tc, losses_are_those_of_one_rank, 0, 3 * (int)(sizeof sharings / sizeof sharings[0]));
    tcase_add_test(tc, a_run_goes_on_with_other_groups);
    tcase_add_test(tc, evaluation_and_samples_work);
    tcase_add_loop_test(tc, what_cannot_be_shared_is_refused_by_name, 0, N_REFUSALS);
    tcase_add_test(tc, a_run_holds_what_its_plan_says);
    tcase_add_test(tc, auto_takes_the_fewest_ranks_that_the_batch_allows);
    tcase_add_test(tc, epochs_are_passes_in_steps_of_the_batch_that_auto_gives);
    suite_add_tcase(s, tc);
    return s;
}

int main(void)
{
    return support_main(suite());
}
