/* test_groups.c - communicators of the program's own: models that groups of ranks train at once come out as if each
 * group had been alone, to the bit. The cases are those of mpi/group_cases.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/support.h"

#define LIMIT_S 60.0
#define N_RANKS 4
#define N_AT_ONCE 4 /* mpirun mostly waits */

/* Returns what the program printed, or why it failed. */
static char *run_case(int n_ranks, const char *name, const char *kind, const char *model)
{
    support_output_t output;
    int code = support_mpirun(&output, LIMIT_S, n_ranks, "%s/tests/mpi/group_cases %s %s %s", support_build(), name,
                              kind, model);
    char **text = code == 0 ? &output.out : &output.err, *taken = *text;
    *text = NULL;
    support_output_free(&output);
    return taken;
}

/* Returns the lines of `text` that begin with the model's name. */
static char *lines_of(const char *text, char model)
{
    char *lines = calloc(1, strlen(text) + 1), *end = lines;
    for (const char *at = text; *at != '\0'; at += strcspn(at, "\n") + (at[strcspn(at, "\n")] == '\n')) {
        size_t n = strcspn(at, "\n");
        if (*at != model)
            continue;
        memcpy(end, at, n);
        end[n] = '\n';
        end += n + 1;
    }
    return lines;
}

/* Each model and the ranks that train it, one character a model: "A2 B2". */
static const struct {
    const char *name;
    int n_ranks;
    const char *models;
} rows[] = {
    {"split", 4, "A2 B2"},
    {"uneven", 4, "A1 B3"},
    {"overlap", 4, "A3 B3 S1"},
    {"two", 2, "A2 B2"},
};
#define N_ROWS ((int)(sizeof rows / sizeof rows[0]))

static const char *const alone[] = {"A1", "A2", "A3", "B2", "B3", "S1"};
#define N_ALONE ((int)(sizeof alone / sizeof alone[0]))

static const char *const kinds[] = {"auto", "mpi"};

static void expect_as_alone(const char *text, const char *models, char *const *texts_alone, const char *name)
{
    for (const char *model = models; *model != '\0'; model += model[2] == ' ' ? 3 : 2) {
        int i = 0;
        while (strncmp(alone[i], model, 2) != 0)
            i++;
        char *lines = lines_of(text, *model);
        ck_assert_msg(support_count(texts_alone[i], "weights") == 4, "alone:\n%s", texts_alone[i]);
        ck_assert_msg(strcmp(lines, texts_alone[i]) == 0, "%s, model %.2s:\n%s\nalone:\n%s", name, model, lines,
                      texts_alone[i]);
        free(lines);
    }
}

START_TEST(groups_train_models_at_once_as_if_each_were_alone)
{
    char *texts_alone[N_ALONE], *texts[N_ROWS][2];
    if (support_leaves_out(4))
        return;
    (void)support_build(); /* found once, before the threads */
#pragma omp parallel for schedule(dynamic) num_threads(N_AT_ONCE)
    for (int i = 0; i < N_ALONE + 2 * N_ROWS; i++) {
        const int k = i - N_ALONE;
        if (k < 0)
            texts_alone[i] = run_case(alone[i][1] - '0', "alone", "auto", alone[i]);
        else
            texts[k / 2][k % 2] = run_case(rows[k / 2].n_ranks, rows[k / 2].name, kinds[k % 2], "");
    }
    for (int i = 0; i < N_ROWS; i++)
        for (int kind = 0; kind < 2; kind++) {
            expect_as_alone(texts[i][kind], rows[i].models, texts_alone, rows[i].name);
            free(texts[i][kind]);
        }
    for (int i = 0; i < N_ALONE; i++)
        free(texts_alone[i]);
}
END_TEST

START_TEST(misuse_is_refused_with_a_line)
{
    char *text = run_case(2, "misuse", kinds[_i], "");
    ck_assert_msg(support_count(text, "refused") == 2, "%s", support_tail(text));
    free(text);
}
END_TEST

START_TEST(an_abort_of_a_group_ends_the_job_at_once)
{
    support_output_t output;
    if (support_leaves_out(N_RANKS))
        return;
    int code =
        support_mpirun(&output, LIMIT_S, N_RANKS, "%s/tests/mpi/group_cases aborts %s", support_build(), kinds[_i]);
    ck_assert_msg(code == 7, "exit code %d\n%s", code, support_tail(output.err));
    ck_assert_msg(output.seconds < 20.0, "took %g s", output.seconds); /* ZERO_TIMEOUT_S is 600 */
    support_output_free(&output);
}
END_TEST

static Suite *suite(void)
{
    Suite *suite = suite_create("groups");
    TCase *ranks = tcase_create("ranks");
    tcase_set_timeout(ranks, 4 * LIMIT_S);
    tcase_add_test(ranks, groups_train_models_at_once_as_if_each_were_alone);
    tcase_add_loop_test(ranks, misuse_is_refused_with_a_line, 0, 2);
    tcase_add_loop_test(ranks, an_abort_of_a_group_ends_the_job_at_once, 0, 2);
    suite_add_tcase(suite, ranks);
    return suite;
}

int main(void)
{
    return support_main(suite());
}
