/* test_host_copies.c - checkpoints in the memory of each host: every host has all of it, whichever rank of whichever
 * host owned a number; the newest that a host has counts, and hosts that lack it get it; what does not fit is refused
 * with the numbers; nothing stays behind.
 *
 * Hosts are made by ZERO_HOST_ID, and each has a directory of its own. With arguments this program is one rank of a
 * test: see run_rank.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files.h"
#include "tests/mpi/expect.h"
#include "tests/support/checkpoint_session.h"
#include "zero/checkpoint/state_copy.h"
#include "zero/plan/declaration.h"

#define LIMIT_S 60.0
#define STEP "step-00000005"

static char directory[600]; /* of this rank's host */

static int run_in_directory(const char *command)
{
    return support_run(NULL, LIMIT_S, "cd %s && %s", directory, command);
}

static void meet(zero_comm_t *comm)
{
    double nothing = 0.0;
    OK(zero_comm_sum(comm, &nothing, 1));
}

/* Runs a command on each host, or on rank 0's alone. */
static void on_hosts(zero_comm_t *comm, bool only_first, const char *command)
{
    meet(comm);
    if (only_first ? zero_comm_rank(comm) == 0 : zero_comm_local_rank(comm) == 0)
        CHECK(run_in_directory(command) == 0, "%s", command);
    meet(comm);
}

static void expect_found(zero_comm_t *comm, uint64_t want, const char *when)
{
    uint64_t step = 77;
    OK(zero_host_copies_find(comm, directory, &step));
    CHECK(step == want, "%s: found step %d", when, (int)step);
}

/* Loads what all hosts have into new weights, and expects every number. */
static void expect_loads(zero_comm_t *comm)
{
    session_t session = session_create(comm, 1, ZERO_BF16, &small_model);
    session_tally_t tally = {0};
    zero_checkpoint_t *checkpoint;
    OK(zero_host_copies_open(comm, directory, 5, &checkpoint));
    OK(zero_load(session.engine, checkpoint));
    zero_checkpoint_close(checkpoint);
    OK(zero_get_state(session.engine, session_count_chunk, &tally));
    double n_elems = (double)tally.n_elems;
    OK(zero_comm_sum(comm, &n_elems, 1));
    CHECK(tally.n_wrong == 0 && (int)n_elems == 257 * 300 + 3 * 41 + 100, "%zu of %g are wrong", tally.n_wrong,
          n_elems);
    session_close(&session);
}

/* The first host loses its memory, then the others do: what is loaded is complete, and all hosts have the same again. A
 * file that has changed is not taken, and leaves no copy behind that counts. */
static void expect_spreads(zero_comm_t *comm)
{
    const bool has_others = zero_comm_local_size(comm) < zero_comm_size(comm);
    const char *const same = "for host in ../*; do diff -r " STEP " $host/" STEP " || exit 1; done";
    zero_checkpoint_t *checkpoint;
    on_hosts(comm, true, "cp -r " STEP " ../../kept");
    if (has_others) {
        on_hosts(comm, true, "rm -r *");
        expect_found(comm, 5, "with none on the first host");
        expect_loads(comm);
        on_hosts(comm, true, same);
        on_hosts(comm, false, "test \"$(ls -A)\" = \"$(printf 'latest\\n" STEP "')\"");
        on_hosts(comm, true, "for host in ../*; do test $host -ef . || rm -r $host; done");
        expect_found(comm, 5, "on the first host alone");
        expect_loads(comm);
        on_hosts(comm, true, same);
        on_hosts(comm, true,
                 "for host in ../*; do test $host -ef . || rm -r $host; done; cd " STEP " && f=$(ls | grep "
                 "optimizer | head -n 1) && printf x | dd of=$f bs=1 seek=1000 conv=notrunc status=none");
        CHECK(zero_host_copies_open(comm, directory, 5, &checkpoint) != ZERO_OK, "a damaged copy is opened");
    }
    on_hosts(comm, true,
             "for host in ../*; do rm -rf $host/" STEP "; cp -r ../../kept $host/" STEP "; done; rm -r ../../kept");
    expect_found(comm, 5, "on all hosts again");
}

/* One rank: run_rank ROOT HOSTS BACKGROUND. HOSTS has a letter for each rank. */
static int run_rank(char **argv)
{
    const char host[2] = {argv[2][zero_comm_launch_rank()], 0};
    const zero_save_file_t in_folder = {"folder/file", "text", 4};
    const zero_save_options_t options = {
        .per_host = true, .keep = 1, .background = argv[3][0] == '1', .files = &in_folder, .n_files = 1};
    zero_comm_t *comm;
    uint64_t n_bytes;
    char command[200];
    setenv("ZERO_HOST_ID", host, 1);
    snprintf(directory, sizeof directory, "%s/%s", argv[1], host);
    OK(zero_comm_create(ZERO_COMM_AUTO, &comm));
    session_t session = session_create(comm, 3, ZERO_BF16, &small_model);
    zero_model_t *declaration = session_declare(&small_model);
    const zero_config_t config = zero_config_default();
    OK(zero_checkpoint_bytes(declaration, &config, &n_bytes));
    expect_found(comm, 0, "without a directory");
    if (zero_comm_local_size(comm) < zero_comm_size(comm)) { /* a directory that hosts share */
        snprintf(command, sizeof command, "%s/../shared", argv[1]);
        CHECK(zero_host_copies_prepare(comm, command, n_bytes, 0) ==
                  (zero_comm_local_rank(comm) == 0 ? ZERO_ERROR_USAGE : ZERO_ERROR_PEER),
              "hosts share a directory");
        meet(comm);
        CHECK(zero_comm_rank(comm) != 0 || rmdir(command) == 0, "marks are left");
    }
    CHECK(zero_host_copies_prepare(comm, directory, (uint64_t)1 << 50, 0) ==
              (zero_comm_local_rank(comm) == 0 ? ZERO_ERROR_MEMORY : ZERO_ERROR_PEER),
          "a copy of 2^50 bytes fits");
    OK(zero_host_copies_prepare(comm, directory, n_bytes, 0));
    session_fill(&session);
    OK(session_save(&session, directory, &options));
    session_close(&session);

    /* The session has made no step, and no step is not to be found. */
    expect_found(comm, 0, "step 0");
    on_hosts(comm, false, "mv step-00000000 " STEP);
    snprintf(command, sizeof command, "test $(cat " STEP "/*.safetensors | wc -c) = %llu", (unsigned long long)n_bytes);
    on_hosts(comm, false, command);
    on_hosts(comm, true, "for host in ../*; do diff -r " STEP " $host/" STEP " || exit 1; done");
    expect_found(comm, 5, "on all hosts");
    expect_loads(comm);

    on_hosts(comm, true, "cp -r " STEP " step-00000006");
    expect_found(comm, 6, "with a newer one on one host");
    on_hosts(comm, true, "rm -r step-00000006; cp -r " STEP " ../../kept; echo >>" STEP "/manifest.json");
    expect_found(comm, strchr(argv[2], '1') ? 0 : 5, "with another manifest on one host");
    on_hosts(comm, true, "rm -r " STEP "; mv ../../kept " STEP);
    expect_spreads(comm);
    on_hosts(comm, true, "mkdir mine");
    OK(zero_host_copies_prepare(comm, directory, n_bytes, 5));
    expect_found(comm, 5, "after a preparation that keeps it");
    OK(zero_host_copies_prepare(comm, directory, n_bytes, 0));
    expect_found(comm, 0, "after a preparation that keeps none");
    OK(zero_host_copies_remove(comm, directory));
    CHECK((access(directory, F_OK) == 0) == (host[0] == argv[2][0]), "a directory with something else in it goes");
    zero_model_destroy(declaration);
    zero_comm_destroy(comm);
    return 0;
}

static const struct {
    const char *hosts;
    bool background;
} rows[] = {{"00", false}, {"0011", true}, {"0111", false}, {"010", true}};

START_TEST(every_host_has_all_of_it_or_gets_it_from_another)
{
    support_output_t output;
    const int n_ranks = (int)strlen(rows[_i].hosts);
    if (support_leaves_out(n_ranks))
        return;
    char *top = support_scratch();
    int code = support_run(NULL, LIMIT_S, "mkdir %s/hosts", top);
    ck_assert_int_eq(code, 0);
    code = support_mpirun(&output, LIMIT_S, n_ranks, "%s/tests/unit/checkpoint/test_host_copies %s/hosts %s %d",
                          support_build(), top, rows[_i].hosts, rows[_i].background);
    ck_assert_msg(code == 0, "%s: exit code %d\n%s", rows[_i].hosts, code, output.err);
    ck_assert_msg(strstr(output.err, "need 2251799815782400 bytes more (a copy has 1125899906842624,"), "%s",
                  output.err);
    support_output_free(&output);
    free(top);
}
END_TEST

/* ---- a copy of the state is written by a thread for each kind of array ---- */

enum { CHUNK_ELEMS = 1000 };

static float number_of(int tensor, int kept, uint64_t element)
{
    return (float)(tensor * 4 + kept) + (float)element * 0x1p-20f;
}

/* Fills a copy with chunks of every tensor, in order. */
static zero_state_copy_t make_copy(const zero_model_t *model)
{
    zero_state_copy_t copy = {.chunks = calloc(1000, sizeof *copy.chunks)};
    copy.end = copy.values = calloc((size_t)zero_model_n_params(model) * 3, sizeof *copy.values);
    ck_assert(copy.chunks && copy.values);
    for (int t = 0; t < model->n_tensors; t++)
        for (uint64_t first = 0; first < model->tensors[t].n_elems; first += CHUNK_ELEMS) {
            const uint64_t left = model->tensors[t].n_elems - first;
            const size_t n = left < CHUNK_ELEMS ? (size_t)left : CHUNK_ELEMS;
            zero_chunk_t *chunk = &copy.chunks[copy.n_chunks++];
            ck_assert_uint_lt(copy.n_chunks, 1000);
            *chunk = (zero_chunk_t){.tensor = t, .first = first, .n_elems = n, .master = copy.end};
            chunk->m = chunk->master + n;
            chunk->v = chunk->m + n;
            copy.end = chunk->v + n;
            for (size_t i = 0; i < n; i++)
                for (int kept = 1; kept < ZERO_N_KEPT; kept++)
                    chunk->master[(size_t)(kept - 1) * n + i] = number_of(t, kept, first + i);
        }
    return copy;
}

/* Expects every number of every array where the layout says that it is; fp32 weights are the master weights. */
static void expect_numbers(const zero_model_t *model, const zero_checkpoint_layout_t *layout, const char *top)
{
    for (int t = 0; t < model->n_tensors; t++)
        for (int kept = 0; kept < ZERO_N_KEPT; kept++) {
            const zero_checkpoint_array_t *array = &layout->arrays[t][kept];
            char path[700];
            snprintf(path, sizeof path, "%s/%s", top, layout->files[array->file].name);
            FILE *file = fopen(path, "rb");
            ck_assert(file && fseek(file, (long)array->offset, SEEK_SET) == 0);
            for (uint64_t i = 0; i < model->tensors[t].n_elems; i++) {
                float number;
                ck_assert_int_eq((int)fread(&number, sizeof number, 1, file), 1);
                ck_assert_msg(number == number_of(t, kept ? kept : 1, i), "tensor %d, array %d, element %d: %g", t,
                              kept, (int)i, (double)number);
            }
            fclose(file);
        }
}

START_TEST(a_copy_is_written_whole_by_one_thread_and_by_several)
{
    zero_checkpoint_layout_t layout;
    zero_array_writer_t writer;
    char path[700], *top = support_scratch();
    zero_model_t *model = session_declare(&small_model);
    zero_state_copy_t copy = make_copy(model);
    ck_assert_int_eq(zero_checkpoint_layout_create(model, ZERO_FP32, 2, 200000, &layout), ZERO_OK);
    ck_assert_int_gt(layout.n_files, 4);
    for (int f = 0; f < layout.n_files; f++) {
        snprintf(path, sizeof path, "%s/%s", top, layout.files[f].name);
        ck_assert_int_eq(zero_file_create(path, layout.files[f].header_bytes + layout.files[f].n_bytes), ZERO_OK);
    }
    ck_assert_int_eq(zero_array_writer_create(&layout, model, top, ZERO_FP32, &writer), ZERO_OK);
    ck_assert_int_eq(zero_state_copy_write(&copy, _i == 1, &writer), ZERO_OK);
    ck_assert_int_eq(zero_array_writer_close(&writer), ZERO_OK);
    expect_numbers(model, &layout, top);

    snprintf(path, sizeof path, "%s/%s", top, layout.files[layout.n_files - 1].name);
    ck_assert_int_eq(remove(path), 0);
    ck_assert_int_eq(zero_state_copy_write(&copy, _i == 1, &writer), ZERO_ERROR_IO);
    ck_assert_msg(strstr(zero_last_error(), path), "%s", zero_last_error());
    zero_array_writer_destroy(&writer);
    zero_state_copy_destroy(&copy);
    zero_checkpoint_layout_destroy(&layout);
    zero_model_destroy(model);
    free(top);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("host_copies");
    TCase *tc = tcase_create("host_copies");
    tcase_set_timeout(tc, 2 * LIMIT_S);
    tcase_add_loop_test(tc, every_host_has_all_of_it_or_gets_it_from_another, 0, (int)(sizeof rows / sizeof rows[0]));
    tcase_add_loop_test(tc, a_copy_is_written_whole_by_one_thread_and_by_several, 0, 2);
    suite_add_tcase(s, tc);
    return s;
}

int main(int argc, char **argv)
{
    return argc > 1 ? run_rank(argv) : support_main(suite());
}
