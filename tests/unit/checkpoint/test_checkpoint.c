/* test_checkpoint.c - libzero's checkpoints: every number is in the files under its name, whichever rank wrote it; any
 * number of ranks at any stage reads it back to the bit; damaged and foreign checkpoints are refused with one line.
 * Saves that fail: test_checkpoint_saves.c. */
#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/formula_checkpoint.h"
#include "tests/support/log_lines.h"
#include "tests/support/scratch.h"
#include "tests/support/session.h"
#include "zero.h"

/* ---- one rank ---- */

static int run_load(const char *directory, zero_dtype_t dtype)
{
    for (int stage = 0; stage < 4; stage++) {
        session_t session = session_open(stage, dtype, OUR_MODEL);
        must(session_load(&session, directory));
        if (!holds_the_formula(&session) || (dtype == ZERO_FP32 && n_wrong_parameters(session.engine) != 0)) {
            fprintf(stderr, "stage %d: not the formula\n", stage);
            return 1;
        }
        session_close(&session);
    }
    return 0;
}

/* As on hosts that have directories of their own under one name. */
static int run_mix(const char *directory, const char *other)
{
    session_t session = session_open(3, ZERO_BF16, OUR_MODEL);
    if (chdir(zero_comm_rank(session.comm) == 1 ? other : directory) != 0)
        return 2;
    zero_status_t status = session_load(&session, "ck");
    session_close(&session);
    return status != ZERO_ERROR_MISMATCH;
}

/* Runs one rank of a test:
 *     save DIRECTORY DTYPE STAGE BACKGROUND RANK     saves the formula; RANK: -1
 *     load DIRECTORY DTYPE                           at every stage; exit code 1 unless it is the formula
 *     mix DIRECTORY OTHER                            loads "ck" where rank 1 finds another by that name: 0 if refused
 */
static int run_rank(char **argv)
{
    must(zero_comm_create(ZERO_COMM_AUTO, &ranks_comm));
    int exit_code = strcmp(argv[1], "mix") == 0 ? run_mix(argv[2], argv[3])
                    : strcmp(argv[1], "load") == 0
                        ? run_load(argv[2], (zero_dtype_t)atoi(argv[3]))
                        : run_save(argv[2], (zero_dtype_t)atoi(argv[3]), atoi(argv[4]), atoi(argv[5]), atoi(argv[6]));
    zero_comm_destroy(ranks_comm);
    return exit_code;
}

/* ---- what is in the files ---- */

typedef struct found {
    unsigned char *file; /* to free */
    const unsigned char *data;
    const char *dtype;
    json_t *header; /* to decref */
} found_t;

/* Reads a tensor from the step's safetensors files whose names begin with `prefix`, from the format's description
 * alone. */
static found_t find(const char *prefix, const char *name)
{
    DIR *directory = opendir(path_of(STEP));
    found_t found = {0};
    for (struct dirent *item; !found.file && (item = readdir(directory));) {
        char path[800];
        if (strncmp(item->d_name, prefix, strlen(prefix)) != 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", path_of(STEP), item->d_name);
        unsigned char *file = (unsigned char *)support_read_file(path, NULL);
        uint64_t n_header = 0;
        for (int i = 7; i >= 0; i--)
            n_header = n_header << 8 | file[i];
        json_t *header = json_loadb((char *)file + 8, n_header, JSON_REJECT_DUPLICATES, NULL);
        json_t *entry = json_object_get(header, name);
        if (entry) {
            json_int_t begin = json_integer_value(json_array_get(json_object_get(entry, "data_offsets"), 0));
            found = (found_t){.file = file,
                              .data = file + 8 + n_header + begin,
                              .dtype = json_string_value(json_object_get(entry, "dtype")),
                              .header = header};
        } else {
            json_decref(header);
            free(file);
        }
    }
    closedir(directory);
    ck_assert_msg(found.file != NULL, "%s is in no file", name);
    return found;
}

/* The number as fp32, from its bytes. */
static double number_at(const found_t *found, size_t i)
{
    uint32_t bits = 0;
    float number;
    if (strcmp(found->dtype, "F16") == 0) {
        uint16_t half;
        memcpy(&half, found->data + 2 * i, 2);
        double fraction = (double)(half & 0x3ff) / 1024.0;
        int exponent = half >> 10 & 31;
        ck_assert_int_gt(exponent, 0); /* the formula's are not so small */
        double magnitude =
            (1.0 + fraction) * (exponent >= 15 ? (double)(1 << (exponent - 15)) : 1.0 / (1 << (15 - exponent)));
        return half >> 15 ? -magnitude : magnitude;
    }
    if (strcmp(found->dtype, "BF16") == 0)
        memcpy((char *)&bits + 2, found->data + 2 * i, 2);
    else
        memcpy(&bits, found->data + 4 * i, 4);
    memcpy(&number, &bits, sizeof number);
    return (double)number;
}

/* tolerance: relative; half a unit in the last place of the dtype. */
static void expect_numbers(const char *prefix, const char *name, int which, int tensor, const char *dtype,
                           double tolerance)
{
    found_t found = find(prefix, name);
    ck_assert_str_eq(found.dtype, dtype);
    for (size_t i = 0; i < session_n_elems(&TENSORS[tensor]); i++) {
        double want = (double)session_value(which, tensor, i), got = number_at(&found, i);
        double error = got > want ? got - want : want - got, bound = tolerance * (want < 0 ? -want : want);
        ck_assert_msg(error <= bound, "%s[%zu] is %.9g and should be %.9g", name, i, got, want);
    }
    json_decref(found.header);
    free(found.file);
}

START_TEST(the_files_have_every_number_under_its_name)
{
    /* Half a unit in the last place: 2^-8 of the number or less for bf16's 8 bits, 2^-11 for fp16's. */
    static const struct {
        zero_dtype_t dtype;
        const char *name;
        double tolerance;
    } DTYPES[] = {{ZERO_FP32, "F32", 0.0}, {ZERO_BF16, "BF16", 1.0 / 256}, {ZERO_FP16, "F16", 1.0 / 2048}};
    save_formula("ck", DTYPES[_i].dtype);
    for (int t = 0; t < N_TENSORS; t++) {
        static const char *const suffixes[] = {".master", ".m", ".v"};
        expect_numbers("model-", TENSORS[t].name, 0, t, DTYPES[_i].name, DTYPES[_i].tolerance);
        for (int which = 0; which < 3; which++) {
            char name[64];
            snprintf(name, sizeof name, "%s%s", TENSORS[t].name, suffixes[which]);
            expect_numbers("optimizer-", name, which, t, "F32", 0.0);
        }
    }
}
END_TEST

START_TEST(state_and_index_have_the_documented_values)
{
    json_error_t error;
    save_formula("ck", ZERO_BF16);
    json_t *state = json_load_file(path_of("ck/latest/state.json"), JSON_REJECT_DUPLICATES, &error);
    ck_assert_int_eq(json_integer_value(json_object_get(state, "step")), 0);
    ck_assert_int_eq(json_integer_value(json_object_get(state, "adam_step")), SESSION_ADAM_STEP);
    ck_assert_str_eq(json_string_value(json_object_get(state, "library")), zero_version());
    ck_assert_int_eq(json_integer_value(json_object_get(json_object_get(state, "mine"), "place")), 12);
    json_decref(state);
    json_t *index = json_load_file(path_of("ck/latest/model.safetensors.index.json"), JSON_REJECT_DUPLICATES, &error);
    json_t *map = json_object_get(index, "weight_map");
    size_t n_bytes = 0;
    for (int t = 0; t < N_TENSORS; t++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s", STEP, json_string_value(json_object_get(map, TENSORS[t].name)));
        ck_assert_msg(access(path_of(path), R_OK) == 0, "%s: no file %s", TENSORS[t].name, path);
        n_bytes += 2 * session_n_elems(&TENSORS[t]);
    }
    ck_assert_uint_eq(json_object_size(map), N_TENSORS);
    ck_assert_int_eq(json_integer_value(json_object_get(json_object_get(index, "metadata"), "total_size")),
                     (json_int_t)n_bytes);
    json_decref(index);
}
END_TEST

/* ---- any number of ranks ---- */

START_TEST(files_are_the_same_bytes_for_any_number_of_ranks)
{
    static const int SAVERS[][3] = {{2, 3, 0}, {3, 1, 0}, {3, 2, 1}, {2, 0, 1}}; /* ranks, stage, in the background */
    save_formula("ck", (zero_dtype_t)_i);
    for (size_t s = 0; s < sizeof SAVERS / sizeof SAVERS[0]; s++) {
        char arguments[600];
        snprintf(arguments, sizeof arguments, "save %s %d %d %d -1", path_of("other"), _i, SAVERS[s][1], SAVERS[s][2]);
        run_ranks(SAVERS[s][0], arguments);
        ck_assert_int_eq(shell("diff -r ck other"), 0);
        ck_assert_int_eq(shell("rm -rf other"), 0);
    }
}
END_TEST

START_TEST(any_number_of_ranks_at_any_stage_loads_the_same_bits)
{
    for (int n_ranks = 1; n_ranks <= 3; n_ranks += 2) {
        char arguments[600];
        save_formula("ck", (zero_dtype_t)_i);
        snprintf(arguments, sizeof arguments, "load %s %d", path_of("ck"), _i);
        run_ranks(n_ranks, arguments);
    }
}
END_TEST

START_TEST(ranks_that_find_different_checkpoints_by_one_name_load_none)
{
    char arguments[1200];
    save_formula("ck", ZERO_BF16);
    ck_assert_int_eq(shell("mkdir other"), 0);
    session_t session = session_open(3, ZERO_BF16, OUR_MODEL);
    ck_assert_int_eq(zero_init_parameters(session.engine), ZERO_OK);
    ck_assert_int_eq(session_save(&session, path_of("other/ck"), &PLAIN), ZERO_OK);
    session_close(&session);
    snprintf(arguments, sizeof arguments, "mix %s", path_of("."));
    snprintf(arguments + strlen(arguments), sizeof arguments - strlen(arguments), " %s", path_of("other"));
    run_ranks_that_say(3, arguments, "zero_load: the hash of the checkpoint that it has opened");
}
END_TEST

/* The master weights are fp32 whatever was trained with. */
START_TEST(another_dtype_loads_the_same_masters)
{
    save_formula("ck", ZERO_BF16);
    expect_formula("ck", ZERO_FP32);
    expect_formula("ck", ZERO_FP16);
}
END_TEST

/* ---- damage ---- */

static void expect_refusal(const char *what, const char *directory, const char *says)
{
    session_t session = session_open(3, ZERO_BF16, OUR_MODEL);
    n_lines = 0;
    zero_status_t status = session_load(&session, path_of(directory));
    ck_assert_msg(status != ZERO_OK, "%s: it was loaded", what);
    ck_assert_msg(n_lines == 1, "%s: %d lines, the last is: %s", what, n_lines, last_line);
    ck_assert_msg(strstr(last_line, says) != NULL, "%s: '%s' is not in: %s", what, says, last_line);
    session_close(&session);
}

static void flip(const char *path, size_t at, unsigned char mask)
{
    size_t n_bytes;
    char *bytes = support_read_file(path, &n_bytes);
    bytes[at] = (char)(bytes[at] ^ mask);
    support_write_file(path, bytes, n_bytes);
    free(bytes);
}

START_TEST(any_damage_to_any_file_is_refused_and_the_file_named)
{
    char names[32][128], path[512];
    int n_names = 0;
    save_formula("ck", ZERO_BF16);
    ck_assert_int_eq(shell("cp -r ck/step-00000000 good"), 0);
    DIR *directory = opendir(path_of("good"));
    for (struct dirent *item; (item = readdir(directory));)
        if (item->d_name[0] != '.')
            snprintf(names[n_names++], sizeof names[0], "%.100s", item->d_name);
    closedir(directory);
    ck_assert_int_ge(n_names, 8); /* more than one file of weights and of moments, and the four of text */
    for (int f = 0; f < n_names; f++) {
        size_t n_bytes;
        snprintf(path, sizeof path, "%s/%.100s", STEP, names[f]);
        char *bytes = support_read_file(path_of(path), &n_bytes);
        free(bytes);
        /* The manifest has no checksum of its own, and blanks in JSON mean nothing: in it, a byte inside quotes is
         * changed. */
        bool is_manifest = strcmp(names[f], "manifest.json") == 0;
        size_t places[] = {is_manifest ? 5 : 0, is_manifest ? 16 : n_bytes / 3, is_manifest ? 24 : n_bytes - 1};
        for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
            flip(path_of(path), places[p], 1);
            expect_refusal("a flipped bit", "ck", is_manifest ? "ck/step-00000000/" : names[f]);
            flip(path_of(path), places[p], 1);
        }
        ck_assert_int_eq(shell("truncate -s -1 %s && truncate -s -1 %s", path, path), 0);
        expect_refusal("two bytes less", "ck", names[f]);
        ck_assert_int_eq(truncate(path_of(path), 0), 0);
        expect_refusal("an empty file", "ck", names[f]);
        ck_assert_int_eq(unlink(path_of(path)), 0);
        expect_refusal("no file", STEP, names[f]);
        ck_assert_int_eq(shell("mkdir %s", path), 0);
        expect_refusal("a directory", "ck", names[f]);
        ck_assert_msg(strstr(last_line, "it is a directory"), "%s", last_line);
        ck_assert_int_eq(shell("rmdir %s && mkfifo %s", path, path), 0);
        expect_refusal("a named pipe", "ck", names[f]);
        ck_assert_msg(strstr(last_line, "it is a named pipe"), "%s", last_line);
        ck_assert_int_eq(shell("rm %s && cp good/%s %s", path, names[f], path), 0);
    }
    expect_formula("ck", ZERO_BF16); /* it was the damage, each time */
}
END_TEST

START_TEST(a_manifest_that_lies_is_refused)
{
    static const struct {
        const char *what, *edit, *says;
    } LIES[] = {
        {"a file elsewhere", "s|\"state.json\"|\"../state.json\"|", "manifest.json"},
        {"an absolute path", "s|\"config.json\"|\"/etc/passwd\"|", "manifest.json"},
        {"a key twice", "s|\"bytes\": \\([0-9]*\\),|\"bytes\": \\1, \"bytes\": \\1,|", "duplicate"},
        {"a file that is not there", "s|\"config.json\"|\"nosuch.json\"|", "nosuch.json"},
        {"a negative size", "s|\"bytes\": |\"bytes\": -|", "manifest.json"},
        {"another format", "s|libzero checkpoint|something else|", "manifest.json"},
        {"a later version", "s|\"version\": 1|\"version\": 2|", "version"},
        {"no state", "s|state.json|State.json|", "state.json"},
    };
    save_formula("ck", ZERO_BF16);
    ck_assert_int_eq(shell("cp %s/manifest.json good && sed -i '%s' %s/manifest.json", STEP, LIES[_i].edit, STEP), 0);
    ck_assert_int_ne(shell("cmp -s good %s/manifest.json", STEP), 0);
    expect_refusal(LIES[_i].what, "ck", LIES[_i].says);
}
END_TEST
#define N_LIES 8

START_TEST(a_checkpoint_of_another_model_is_refused_and_changes_nothing)
{
    static const char *const says[] = {"", "h.0.w", "shape", "h.0.w"};
    save_formula("ck", ZERO_BF16);
    session_t session = session_open(3, ZERO_BF16, (foreign_t)_i);
    ck_assert_int_eq(session_load(&session, path_of("ck")), ZERO_ERROR_FORMAT);
    ck_assert_int_eq(n_lines, 1);
    ck_assert_msg(strstr(last_line, says[_i]) && strstr(last_line, "another model"), "%s", last_line);
    ck_assert_uint_eq(zero_get_adam_step(session.engine), 0);
    session_close(&session);
}
END_TEST

START_TEST(a_directory_without_a_checkpoint_is_named)
{
    ck_assert_int_eq(shell("mkdir empty other; ln -s step-00000003 other/latest; touch file"), 0);
    expect_refusal("nothing", "nosuch", "nosuch");
    expect_refusal("an empty directory", "empty", "empty");
    expect_refusal("a file", "file", "not a directory");
    expect_refusal("a link that leads nowhere", "other", "other/step-00000003/manifest.json");
    ck_assert_int_eq(shell("ln -sfn ../empty other/latest"), 0);
    expect_refusal("a link elsewhere", "other", "other/latest");
    ck_assert_int_eq(
        shell("rm other/latest; ln -s manifest.json empty/manifest.json; ln -s ../empty other/step-00000003"), 0);
    expect_refusal("a manifest that cannot be reached", "other/step-00000003", "Too many levels of symbolic links");
}
END_TEST

START_TEST(a_copy_whose_links_were_followed_loads_without_latest)
{
    save_formula("ck", ZERO_BF16);
    ck_assert_int_eq(shell("cp -rL ck copy"), 0);
    expect_refusal("a directory in place of the link", "copy", "copy/latest' is not a link");
    ck_assert_msg(strstr(last_line, "remove it, and the newest step beside it is found"), "%s", last_line);
    ck_assert_int_eq(shell("rm -r copy/latest"), 0);
    expect_formula("copy", ZERO_BF16);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("checkpoint");
    TCase *tc = tcase_create("files");
    tcase_add_checked_fixture(tc, set_up, scratch_close);
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, the_files_have_every_number_under_its_name, 0, 3);
    tcase_add_test(tc, state_and_index_have_the_documented_values);
    tcase_add_test(tc, another_dtype_loads_the_same_masters);
    tcase_add_test(tc, any_damage_to_any_file_is_refused_and_the_file_named);
    tcase_add_loop_test(tc, a_manifest_that_lies_is_refused, 0, N_LIES);
    tcase_add_loop_test(tc, a_checkpoint_of_another_model_is_refused_and_changes_nothing, 1, 4);
    tcase_add_test(tc, a_directory_without_a_checkpoint_is_named);
    tcase_add_test(tc, a_copy_whose_links_were_followed_loads_without_latest);
    suite_add_tcase(s, tc);

    TCase *ranks = tcase_create("several ranks");
    tcase_add_checked_fixture(ranks, set_up, scratch_close);
    tcase_set_timeout(ranks, 250);
    tcase_add_loop_test(ranks, files_are_the_same_bytes_for_any_number_of_ranks, ZERO_FP32, ZERO_FP16 + 1);
    tcase_add_test(ranks, ranks_that_find_different_checkpoints_by_one_name_load_none);
    tcase_add_loop_test(ranks, any_number_of_ranks_at_any_stage_loads_the_same_bits, ZERO_FP32, ZERO_FP16 + 1);
    suite_add_tcase(s, ranks);
    return s;
}

int main(int argc, char **argv)
{
    if (argc > 3)
        return run_rank(argv);
    return support_main(suite());
}
