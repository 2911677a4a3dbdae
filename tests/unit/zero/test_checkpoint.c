/* test_checkpoint.c - libzero's checkpoints: every number is in the files under its name, whichever rank wrote it; any
 * number of ranks at any stage reads it back to the bit; damaged, foreign or half-written checkpoints are refused with
 * one line; and a save that fails leaves the one before it unchanged.
 *
 * Weights and moments are a formula of tensor and element, so any rank can check what it holds. With arguments this
 * program is one rank of a test: see run_rank.
 */
#include <dirent.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "tests/support/log_lines.h"
#include "tests/support/scratch.h"
#include "tests/support/session.h"
#include "zero.h"

/* ---- the model ---- */

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
static session_model_t model_of(foreign_t foreign, session_tensor_t *tensors)
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

static session_t session_open(int stage, zero_dtype_t dtype, foreign_t foreign)
{
    session_tensor_t tensors[N_TENSORS];
    session_model_t model = model_of(foreign, tensors);
    return session_create(ranks_comm, stage, dtype, &model);
}

static bool holds_the_formula(const session_t *session)
{
    return session_holds_the_formula(
        session, &(session_model_t){.tensors = TENSORS, .n_tensors = N_TENSORS, .n_units = N_UNITS});
}

/* In fp32 the parameters that a pass sees are the master weights, on every rank. */
static size_t n_wrong_parameters(zero_engine_t *engine)
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

/* ---- one rank ---- */

/* Runs one rank of a test:
 *     save DIRECTORY DTYPE STAGE BACKGROUND     saves the formula
 *     spoil DIRECTORY DTYPE STAGE               saves while a byte of each file is changed; 0 if all ranks got an error
 *     load DIRECTORY DTYPE                      at every stage; exit code 1 unless it is the formula
 *     fail DIRECTORY RANK                       saves while that rank may write little; exit code 0 if every rank got
 * an error, and nothing but what was there before is left
 */
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

/* Changes the last byte of every file of optimizer state after all ranks have written and before any reads: the rank
 * that checks a file is not the rank that wrote that byte. 0 if every rank got an error. */
static int run_spoil(const char *directory, zero_dtype_t dtype, int stage)
{
    zero_save_t *save = NULL;
    session_t session = session_open(stage, dtype, OUR_MODEL);
    must(zero_set_state(session.engine, true, session_fill_chunk, NULL));
    must(zero_save_begin(session.engine, directory, &PLAIN, &save));
    if (zero_comm_rank(session.comm) == 1) {
        char command[1024];
        snprintf(command, sizeof command,
                 "for f in %s/tmp.step-*/optimizer-*; do truncate -s -1 $f && printf 4 >> $f; done", directory);
        if (system(command) != 0)
            return 2;
    }
    must(zero_comm_barrier(session.comm));
    zero_status_t status = zero_save_end(save);
    session_close(&session);
    return status == ZERO_OK;
}

/* odd_rank: the rank that may write little; -1: none. */
static int run_save(const char *directory, zero_dtype_t dtype, int stage, bool background, int odd_rank)
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

static int run_rank(char **argv)
{
    must(zero_comm_create(ZERO_COMM_AUTO, &ranks_comm));
    int exit_code = strcmp(argv[1], "load") == 0 ? run_load(argv[2], (zero_dtype_t)atoi(argv[3]))
                    : strcmp(argv[1], "spoil") == 0
                        ? run_spoil(argv[2], (zero_dtype_t)atoi(argv[3]), atoi(argv[4]))
                        : run_save(argv[2], (zero_dtype_t)atoi(argv[3]), atoi(argv[4]), atoi(argv[5]), atoi(argv[6]));
    zero_comm_destroy(ranks_comm);
    return exit_code;
}

/* ---- files ---- */

static void set_up(void)
{
    scratch_open();
    listen_to_log();
}

static const char STEP[] = "ck/step-00000000";

static void save_formula(const char *directory, zero_dtype_t dtype)
{
    session_t session = session_open(3, dtype, OUR_MODEL);
    ck_assert_int_eq(zero_set_state(session.engine, true, session_fill_chunk, NULL), ZERO_OK);
    ck_assert_int_eq(zero_set_adam_step(session.engine, SESSION_ADAM_STEP), ZERO_OK);
    ck_assert_msg(session_save(&session, path_of(directory), &PLAIN) == ZERO_OK, "%s", last_line);
    session_close(&session);
}

static void expect_formula(const char *directory, zero_dtype_t dtype)
{
    session_t session = session_open(2, dtype, OUR_MODEL);
    ck_assert_msg(session_load(&session, path_of(directory)) == ZERO_OK, "%s", last_line);
    ck_assert(holds_the_formula(&session));
    session_close(&session);
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

/* The text that the logged line must contain, or NULL. */
static void run_ranks_that_say(int n_ranks, const char *arguments, const char *says)
{
    support_output_t output;
    int exit_code = support_mpirun(&output, SCRATCH_LIMIT_S, n_ranks, "%s/tests/unit/zero/test_checkpoint %s",
                                   support_build(), arguments);
    ck_assert_msg(exit_code == 0, "%d ranks, %s: exit code %d\n%s", n_ranks, arguments, exit_code, output.err);
    ck_assert_msg(!says || strstr(output.err, says), "'%s' is not in: %s", says, output.err);
    support_output_free(&output);
}

static void run_ranks(int n_ranks, const char *arguments)
{
    run_ranks_that_say(n_ranks, arguments, NULL);
}

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
}
END_TEST

/* ---- saves that fail ---- */

static const struct {
    const char *text, *says; /* for config_json and for state_json */
} TEXTS[] = {
    {"", "is not a JSON object"},
    {"not JSON", "is not a JSON object"},
    {"[1]", "is not a JSON object: it is another value"},
    {"{\"a\": 1, \"a\": 2}", "is not a JSON object: duplicate"},
    {"{\"a\": 1} {}", "is not a JSON object: end of file expected"},
    {"{\"a\": NaN}", "is not a JSON object"},
    {"{\"a\": \"\xff\"}", "is not a JSON object"},
};
enum { N_TEXTS = sizeof TEXTS / sizeof TEXTS[0] };

START_TEST(a_text_of_the_callers_that_is_no_object_is_refused_before_anything_is_made)
{
    bool is_config = _i < N_TEXTS;
    zero_save_options_t options = PLAIN;
    *(is_config ? &options.config_json : &options.state_json) = TEXTS[_i % N_TEXTS].text;
    session_t session = session_open(3, ZERO_BF16, OUR_MODEL);
    ck_assert_int_eq(session_save(&session, path_of("ck"), &options), ZERO_ERROR_ARGUMENT);
    ck_assert_int_eq(n_lines, 1);
    ck_assert_msg(strstr(last_line, TEXTS[_i % N_TEXTS].says), "%s", last_line);
    ck_assert_msg(strstr(last_line, is_config ? "config_json" : "state_json"), "%s", last_line);
    ck_assert_int_ne(access(path_of("ck"), F_OK), 0);
    session_close(&session);
}
END_TEST

static const zero_save_file_t BAD_FILES[] = {
    {"config.json", "x", 1}, {"manifest.json", "x", 1},
    {"state.json", "x", 1},  {"model-00001-of-00001.safetensors", "x", 1},
    {"../escaped", "x", 1},  {"a/b", "x", 1},
    {".hidden", "x", 1},     {"", "x", 1},
    {NULL, "x", 1},          {"a", NULL, 1},
    {"a", "x", 0},           {"twice", "x", 1},
};

START_TEST(a_file_of_the_callers_that_is_in_the_way_is_refused_before_anything_is_made)
{
    zero_save_file_t files[2] = {{"twice", "y", 1}, BAD_FILES[_i]};
    zero_save_options_t options = PLAIN;
    options.files = files;
    options.n_files = 2;
    options.max_file_bytes = 0;
    session_t session = session_open(3, ZERO_BF16, OUR_MODEL);
    ck_assert_int_eq(session_save(&session, path_of("ck"), &options), ZERO_ERROR_ARGUMENT);
    ck_assert_int_eq(n_lines, 1);
    ck_assert_msg(strstr(last_line, "cannot be saved") != NULL, "%s", last_line);
    ck_assert_int_ne(access(path_of("ck"), F_OK), 0);
    session_close(&session);
}
END_TEST

START_TEST(a_rank_that_cannot_write_fails_all_ranks_and_changes_nothing)
{
    char arguments[600];
    save_formula("ck", ZERO_BF16);
    ck_assert_int_eq(shell("cp -r ck before"), 0);
    /* With three ranks: rank 0 creates the files in full size, ranks 1 and 2 write into them. */
    snprintf(arguments, sizeof arguments, "save %s %d 3 %d %d", path_of("ck"), ZERO_BF16, _i / 3, _i % 3);
    run_ranks(3, arguments);
    ck_assert_int_eq(shell("diff -r ck before"), 0);
}
END_TEST

START_TEST(a_hashing_rank_finds_bytes_that_the_writer_did_not_write)
{
    char arguments[600];
    save_formula("ck", ZERO_BF16);
    ck_assert_int_eq(shell("cp -r ck before"), 0);
    snprintf(arguments, sizeof arguments, "spoil %s %d %d", path_of("ck"), ZERO_BF16, _i);
    run_ranks_that_say(3, arguments, "what was written there: something else writes into it");
    ck_assert_int_eq(shell("diff -r ck before"), 0);
}
END_TEST

/* What else may happen to a file (T is the directory that is written) between its writing and its hashing. */
static const struct {
    const char *file, *spoil;
} SPOILT[] = {
    {"model-00001", "printf 'zero: a line' | dd conv=notrunc of=$(ls T/model-00001*)"},
    {"model-00001", "printf 'four' | dd bs=1 seek=1000 conv=notrunc of=$(ls T/model-00001*)"},
    {"optimizer-00001", "printf 'four' | dd bs=1 seek=150000 conv=notrunc of=$(ls T/optimizer-00001*)"},
    {"optimizer-00003",
     "f=$(ls T/optimizer-00003*); printf 4 | dd bs=1 seek=$(($(stat -c %s $f) - 1)) conv=notrunc of=$f"},
    {"optimizer-00002", "truncate -s -1 T/optimizer-00002*"},
    {"optimizer-00001", "truncate -s 0 T/optimizer-00001*"},
    {"model-00001", "printf x >> $(ls T/model-00001*)"},
    {"model.safetensors.index.json", "sed -i s/h.0.w/h.0.x/ T/model.safetensors.index.json"},
    {"config.json", "echo '[]' > T/config.json"},
    {"config.json", "printf '{ ' | dd conv=notrunc of=T/config.json"},
    {"state.json", "sed -i s/12/21/ T/state.json"},
    {"state.json", "rm T/state.json"},
    {"state.json", "rm T/state.json; mkfifo T/state.json"},
};

START_TEST(foreign_bytes_in_a_file_fail_the_save)
{
    zero_save_t *save = NULL;
    save_formula("ck", ZERO_BF16);
    ck_assert_int_eq(shell("cp -r ck before"), 0);
    session_t session = session_open(3, ZERO_BF16, OUR_MODEL);
    must(zero_set_state(session.engine, true, session_fill_chunk, NULL));
    ck_assert_int_eq(zero_save_begin(session.engine, path_of("ck"), &PLAIN, &save), ZERO_OK);
    ck_assert_int_eq(shell("ln -s ck/tmp.step-00000000 T; { %s; } 2>dd.log; rm T", SPOILT[_i].spoil), 0);
    n_lines = 0;
    zero_status_t status = zero_save_end(save);
    session_close(&session);
    ck_assert_msg(status == ZERO_ERROR_IO, "%s: %s", SPOILT[_i].spoil, zero_status_name(status));
    ck_assert_msg(n_lines == 1 && strstr(last_line, SPOILT[_i].file), "%s: %d lines: %s", SPOILT[_i].spoil, n_lines,
                  last_line);
    ck_assert_int_eq(shell("diff -r ck before"), 0);
}
END_TEST

START_TEST(a_full_disk_leaves_the_previous_checkpoint)
{
    if (shell("mkdir disk && mount -t tmpfs -o size=1800k none disk 2>/dev/null") != 0) {
        printf("SKIP: a full disk: no tmpfs can be mounted here\n");
        return;
    }
    save_formula("disk/ck", ZERO_BF16);
    session_t session = session_open(3, ZERO_BF16, OUR_MODEL);
    n_lines = 0;
    zero_status_t status = session_save(&session, path_of("disk/ck"), &PLAIN);
    int n_said = n_lines;
    session_close(&session);
    bool names_it = strstr(last_line, "No space left") && strstr(last_line, "disk/ck/tmp.");
    int n_left = support_run(NULL, SCRATCH_LIMIT_S, "test $(ls -A %s | wc -l) = 2", path_of("disk/ck"));
    session_t again = session_open(2, ZERO_BF16, OUR_MODEL);
    zero_status_t loaded = session_load(&again, path_of("disk/ck"));
    bool is_formula = loaded == ZERO_OK && holds_the_formula(&again);
    session_close(&again);
    ck_assert_int_eq(shell("umount disk"), 0); /* before anything is asserted */
    ck_assert_int_eq(status, ZERO_ERROR_IO);
    ck_assert_msg(n_said == 1 && names_it, "%d lines: %s", n_said, last_line);
    ck_assert_int_eq(n_left, 0); /* the step and latest */
    ck_assert(is_formula);
}
END_TEST

START_TEST(a_directory_that_cannot_be_written_is_found_out_before_it_matters)
{
    session_t session = session_open(3, ZERO_BF16, OUR_MODEL);
    ck_assert_int_eq(zero_save_prepare(session.comm, "/proc/checkpoints"), ZERO_ERROR_IO);
    ck_assert_msg(n_lines == 1 && strstr(last_line, "/proc/checkpoints"), "%s", last_line);
    ck_assert_int_eq(zero_save_prepare(session.comm, ""), ZERO_ERROR_IO);
    support_write_file(path_of("file"), "", 0);
    ck_assert_int_eq(zero_save_prepare(session.comm, path_of("file")), ZERO_ERROR_IO);
    ck_assert_int_eq(zero_save_prepare(session.comm, path_of("a/b/c")), ZERO_OK);
    ck_assert_int_eq(shell("test -d a/b/c && test -z \"$(ls -A a/b/c)\""), 0);
    session_close(&session);
}
END_TEST

/* Of this step or, as after another step, of another name; and what a run does before its first step. */
START_TEST(a_running_save_is_not_mistaken_for_a_killed_one)
{
    zero_save_t *first = NULL, *second = NULL;
    zero_save_options_t options = PLAIN;
    session_t session = session_open(3, ZERO_BF16, OUR_MODEL);
    options.background = true;
    ck_assert_int_eq(zero_set_state(session.engine, true, session_fill_chunk, NULL), ZERO_OK);
    ck_assert_int_eq(zero_set_adam_step(session.engine, SESSION_ADAM_STEP), ZERO_OK);
    ck_assert_int_eq(shell("mkdir -p ck/tmp.step-00000008"), 0); /* killed */
    ck_assert_int_eq(zero_save_begin(session.engine, path_of("ck"), &options, &first), ZERO_OK);
    ck_assert_int_eq(shell("test ! -e ck/tmp.step-00000008"), 0);
    n_lines = 0;
    ck_assert_int_eq(zero_save_begin(session.engine, path_of("ck"), &options, &second), ZERO_ERROR_IO);
    ck_assert_msg(n_lines == 1 && strstr(last_line, "ck/tmp.step-00000000' is being written"), "%s", last_line);
    ck_assert_int_eq(zero_save_prepare(session.comm, path_of("ck")), ZERO_ERROR_IO);
    ck_assert_msg(zero_save_end(first) == ZERO_OK, "%s", last_line);
    ck_assert_int_eq(zero_save_prepare(session.comm, path_of("ck")), ZERO_OK);
    session_close(&session);
    expect_formula("ck", ZERO_BF16);
}
END_TEST

/* On a host with 64 KiB: the copy of half a megabyte would not fail there, but end in a kill. */
START_TEST(a_save_whose_copy_does_not_fit_the_host_waits_and_says_so)
{
    zero_save_options_t options = PLAIN;
    session_t session = session_open(3, ZERO_BF16, OUR_MODEL);
    options.background = true;
    ck_assert_int_eq(zero_set_state(session.engine, true, session_fill_chunk, NULL), ZERO_OK);
    ck_assert_int_eq(zero_set_adam_step(session.engine, SESSION_ADAM_STEP), ZERO_OK);
    ck_assert_int_eq(shell("mkdir -p host/proc && echo 'MemAvailable: 64 kB' > host/proc/meminfo"), 0);
    for (int has_room = 0; has_room <= 1; has_room++) {
        n_lines = 0;
        zero_memory_set_root(has_room ? "" : path_of("host"));
        zero_status_t status = session_save(&session, path_of("ck"), &options);
        zero_memory_set_root("");
        ck_assert_int_eq(status, ZERO_OK);
        ck_assert_int_eq(n_lines, !has_room);
        ck_assert_msg(has_room || strstr(last_line, "not saved in the background"), "%s", last_line);
        expect_formula("ck", ZERO_BF16);
    }
    session_close(&session);
}
END_TEST

/* The parent kills a child that does nothing but save, at moments of a random choice; what is there then loads. */
START_TEST(killed_at_any_moment_a_checkpoint_is_complete_or_absent)
{
    uint64_t seed = 1;
    save_formula("ck", ZERO_BF16);
    for (int round = 0; round < 25; round++) {
        pid_t child = fork();
        if (child == 0) {
            session_t session = session_open(3, ZERO_BF16, OUR_MODEL);
            zero_save_options_t options = PLAIN;
            options.background = round % 2;
            must(zero_set_state(session.engine, true, session_fill_chunk, NULL));
            must(zero_set_adam_step(session.engine, SESSION_ADAM_STEP));
            for (;;)
                must(session_save(&session, path_of("ck"), &options));
        }
        long pause_us = 5000 + (long)(support_random(&seed) % 60000);
        nanosleep(&(struct timespec){.tv_nsec = pause_us * 1000}, NULL);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        expect_formula("ck", ZERO_BF16);
    }
    save_formula("ck", ZERO_BF16);
    ck_assert_int_eq(shell("test $(ls -A ck | wc -l) = 2"), 0); /* what was left behind is gone */
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
    tcase_add_loop_test(tc, a_text_of_the_callers_that_is_no_object_is_refused_before_anything_is_made, 0, 2 * N_TEXTS);
    tcase_add_loop_test(tc, a_file_of_the_callers_that_is_in_the_way_is_refused_before_anything_is_made, 0,
                        sizeof BAD_FILES / sizeof BAD_FILES[0]);
    tcase_add_loop_test(tc, foreign_bytes_in_a_file_fail_the_save, 0, sizeof SPOILT / sizeof SPOILT[0]);
    tcase_add_test(tc, a_full_disk_leaves_the_previous_checkpoint);
    tcase_add_test(tc, a_directory_that_cannot_be_written_is_found_out_before_it_matters);
    tcase_add_test(tc, a_running_save_is_not_mistaken_for_a_killed_one);
    tcase_add_test(tc, a_save_whose_copy_does_not_fit_the_host_waits_and_says_so);
    tcase_add_test(tc, killed_at_any_moment_a_checkpoint_is_complete_or_absent);
    suite_add_tcase(s, tc);

    TCase *ranks = tcase_create("several ranks");
    tcase_add_checked_fixture(ranks, set_up, scratch_close);
    tcase_set_timeout(ranks, 250);
    tcase_add_loop_test(ranks, files_are_the_same_bytes_for_any_number_of_ranks, ZERO_FP32, ZERO_FP16 + 1);
    tcase_add_loop_test(ranks, any_number_of_ranks_at_any_stage_loads_the_same_bits, ZERO_FP32, ZERO_FP16 + 1);
    tcase_add_loop_test(ranks, a_hashing_rank_finds_bytes_that_the_writer_did_not_write, 2, 4);
    tcase_add_loop_test(ranks, a_rank_that_cannot_write_fails_all_ranks_and_changes_nothing, 0, 6);
    suite_add_tcase(s, ranks);
    return s;
}

int main(int argc, char **argv)
{
    if (argc > 3)
        return run_rank(argv);
    return support_main(suite());
}
