/* test_load_weights.c - src/zero/checkpoint/weights_directory.c: every number arrives where it belongs, at every stage,
 * dtype and number of ranks; whatever is wrong with a directory is one line, and one status on all ranks.
 *
 * The numbers are a formula of tensor and element, so any rank can check what it holds. With arguments this program is
 * one rank of a test: test_load_weights DIRECTORY STAGE.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/log_lines.h"
#include "tests/support/session.h"
#include "zero.h"

/* ---- the model ---- */

static const session_tensor_t TENSORS[] = {
    {"wte.weight", 0, 2, {257, 300}, false}, /* larger than the runs in which weights pass */
    {"wpe.weight", 0, 2, {7, 5}, true},
    {"h.0.w", 1, 2, {3, 41}, false},
    {"h.0.attn.bias", 1, 1, {3}, true}, /* declared, though it looks like a mask of Hugging Face's */
    {"h.1.w", 2, 1, {1}, false},
    {"ln_f.weight", 3, 1, {100}, false},
};
#define N_TENSORS ((int)(sizeof TENSORS / sizeof TENSORS[0]))
#define N_UNITS 4

/* Not 0 only in tests of fp32. */
static float fineness;

/* k / 64, |k| <= 128: exact in every dtype, including BF16 with its 8 bits; plus what only fp32 can hold. */
static float value(int tensor, size_t i)
{
    uint32_t mixed = ((uint32_t)i + 1) * 2654435761u + (uint32_t)tensor * 40503u;
    return (float)((int)(mixed >> 13 & 255) - 128) / 64.0f + (float)(mixed >> 21 & 255) * fineness;
}

/* Opens a session with all weights 1. declared_prefix precedes the names that the model declares. */
static session_t session_open(int stage, zero_dtype_t dtype, const char *declared_prefix)
{
    session_tensor_t tensors[N_TENSORS];
    char names[N_TENSORS][ZERO_MAX_NAME];
    for (int t = 0; t < N_TENSORS; t++) {
        tensors[t] = TENSORS[t];
        snprintf(names[t], sizeof names[t], "%s%s", declared_prefix, TENSORS[t].name);
        tensors[t].name = names[t];
    }
    return session_create(NULL, stage, dtype,
                          &(session_model_t){tensors, N_TENSORS, N_UNITS, .init = ZERO_INIT_ONES, .init_std = 0});
}

typedef struct tally {
    size_t n_elems, n_wrong;
    bool initial; /* weights are wanted as zero_init_parameters left them */
} tally_t;

static zero_status_t visit(void *user, const zero_chunk_t *chunk)
{
    tally_t *tally = user;
    tally->n_elems += chunk->n_elems;
    for (size_t i = 0; i < chunk->n_elems; i++) {
        float want = tally->initial ? 1.0f : value(chunk->tensor, chunk->first + i);
        tally->n_wrong += chunk->master[i] != want || chunk->m[i] != 0.0f || chunk->v[i] != 0.0f;
    }
    return ZERO_OK;
}

static tally_t tally(zero_engine_t *engine, bool initial)
{
    tally_t tally = {.initial = initial};
    must(zero_get_state(engine, visit, &tally));
    return tally;
}

static size_t total_elems(void)
{
    size_t n = 0;
    for (int t = 0; t < N_TENSORS; t++)
        n += session_n_elems(&TENSORS[t]);
    return n;
}

/* ---- writing files, from the format's description alone ---- */

typedef struct writer {
    json_t *header;
    unsigned char *data;
    size_t n_bytes;
} writer_t;

static writer_t writer_begin(void)
{
    return (writer_t){.header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt")};
}

/* BF16 is the upper half of fp32; F16 is written for numbers that are 0 or of exponent -6 to 1. */
static uint16_t narrow(float number, const char *dtype)
{
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    if (strcmp(dtype, "BF16") == 0 || number == 0.0f)
        return (uint16_t)(bits >> 16);
    uint32_t exponent = (bits >> 23 & 255) - 127 + 15;
    return (uint16_t)(bits >> 31 << 15 | exponent << 10 | (bits >> 13 & 1023));
}

/* A tensor with the numbers of `like`, as `name`. */
static void writer_add_as(writer_t *writer, const char *name, const char *dtype, int like, json_t *shape)
{
    size_t n = session_n_elems(&TENSORS[like]), element_bytes = strcmp(dtype, "F32") == 0 ? 4 : 2,
           begin = writer->n_bytes;
    writer->n_bytes += n * element_bytes;
    writer->data = realloc(writer->data, writer->n_bytes);
    for (size_t i = 0; i < n; i++) {
        float number = value(like, i);
        uint16_t half = narrow(number, dtype);
        memcpy(writer->data + begin + i * element_bytes, element_bytes == 4 ? (void *)&number : &half, element_bytes);
    }
    json_object_set_new(writer->header, name,
                        json_pack("{s:s, s:o, s:[I,I]}", "dtype", dtype, "shape", shape, "data_offsets",
                                  (json_int_t)begin, (json_int_t)writer->n_bytes));
}

static void writer_add(writer_t *writer, const char *prefix, const char *dtype, int t)
{
    char name[ZERO_MAX_NAME];
    json_t *shape = json_array();
    snprintf(name, sizeof name, "%s%s", prefix, TENSORS[t].name);
    for (int d = 0; d < TENSORS[t].n_dims; d++)
        json_array_append_new(shape, json_integer(TENSORS[t].shape[d]));
    writer_add_as(writer, name, dtype, t, shape);
}

static char *directory; /* of the test at hand */

static void write_in_directory(const char *name, const void *data, size_t n_bytes)
{
    char *path;
    ck_assert_int_gt(asprintf(&path, "%s/%s", directory, name), 0);
    support_write_file(path, data, n_bytes);
    free(path);
}

static void writer_end(writer_t *writer, const char *name)
{
    char *header = json_dumps(writer->header, 0);
    char *path;
    ck_assert_int_gt(asprintf(&path, "%s/%s", directory, name), 0);
    support_write_safetensors(path, header, strlen(header), writer->data, writer->n_bytes);
    json_decref(writer->header);
    free(writer->data);
    free(header);
    free(path);
}

/* All tensors but one (-1: all) in one file. */
static void write_model(const char *prefix, const char *dtype, int without)
{
    writer_t writer = writer_begin();
    for (int t = 0; t < N_TENSORS; t++)
        if (t != without)
            writer_add(&writer, prefix, dtype, t);
    writer_end(&writer, "model.safetensors");
}

/* Even tensors in part 1, odd ones in part 2; the index names them. */
static void write_parts(void)
{
    static const char *const NAMES[] = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"};
    writer_t parts[2] = {writer_begin(), writer_begin()};
    json_t *map = json_object();
    for (int t = 0; t < N_TENSORS; t++) {
        writer_add(&parts[t % 2], "", "F32", t);
        json_object_set_new(map, TENSORS[t].name, json_string(NAMES[t % 2]));
    }
    for (int k = 0; k < 2; k++)
        writer_end(&parts[k], NAMES[k]);
    json_t *index = json_pack("{s:{s:i}, s:o}", "metadata", "total_size", 1, "weight_map", map);
    char *text = json_dumps(index, 0);
    write_in_directory("model.safetensors.index.json", text, strlen(text));
    free(text);
    json_decref(index);
}

static void set_up(void)
{
    directory = support_scratch();
    listen_to_log();
}

static void tear_down(void)
{
    free(directory);
}

static zero_status_t fill_with_sevens(void *user, const zero_chunk_t *chunk)
{
    (void)user;
    for (size_t i = 0; i < chunk->n_elems; i++)
        chunk->master[i] = chunk->m[i] = chunk->v[i] = 7.0f;
    return ZERO_OK;
}

/* Over whatever was there before, moments too. */
static void expect_loaded(zero_dtype_t dtype, const char *declared_prefix, int n_lines_wanted)
{
    session_t session = session_open(1, dtype, declared_prefix);
    must(zero_set_state(session.engine, true, fill_with_sevens, NULL));
    zero_set_adam_step(session.engine, 17);
    zero_status_t status = zero_load_weights(session.engine, directory);
    ck_assert_msg(status == ZERO_OK, "%s", last_line);
    ck_assert_msg(n_lines == n_lines_wanted, "%s", last_line);
    tally_t found = tally(session.engine, false);
    ck_assert_uint_eq(found.n_elems, total_elems());
    ck_assert_uint_eq(found.n_wrong, 0);
    ck_assert_uint_eq(zero_get_adam_step(session.engine), 0);
    session_close(&session);
}

/* One line with the text, that status, and weights as they were. */
static void expect_failure(zero_status_t wanted, const char *text)
{
    session_t session = session_open(3, ZERO_FP32, "");
    zero_status_t status = zero_load_weights(session.engine, directory);
    ck_assert_msg(status == wanted, "%s instead of %s: %s", zero_status_name(status), zero_status_name(wanted),
                  last_line);
    ck_assert_msg(n_lines == 1 && strstr(last_line, text), "%d lines, the last: %s", n_lines, last_line);
    ck_assert_msg(strstr(last_line, directory) != NULL, "no file is named: %s", last_line);
    ck_assert_uint_eq(tally(session.engine, true).n_wrong, 0);
    session_close(&session);
}

/* ---- loading ---- */

START_TEST(every_file_dtype_loads_exactly_into_every_engine_dtype)
{
    static const char *const DTYPES[] = {"F32", "BF16", "F16"};
    fineness = _i % 3 == 0 ? 0x1p-17f : 0.0f;
    write_model("", DTYPES[_i % 3], -1);
    expect_loaded((zero_dtype_t)(_i / 3), "", 0);
}
END_TEST

START_TEST(prefixes_are_tolerated_on_either_side)
{
    static const char *const PREFIXES[] = {"", "transformer.", "model."};
    write_model(PREFIXES[_i % 3], "F32", -1);
    expect_loaded(ZERO_FP32, PREFIXES[_i / 3], 0);
}
END_TEST

START_TEST(parts_load_by_their_index)
{
    write_parts();
    expect_loaded(ZERO_BF16, "transformer.", 0);
}
END_TEST

START_TEST(other_tensors_are_named_in_one_warning_and_known_buffers_in_none)
{
    writer_t writer = writer_begin();
    for (int t = 0; t < N_TENSORS; t++)
        writer_add(&writer, "", "F32", t);
    writer_add_as(&writer, "h.7.attn.bias", "F32", 4, json_pack("[i]", 1));
    writer_add_as(&writer, "h.7.attn.masked_bias", "F32", 4, json_pack("[i]", 1));
    writer_add_as(&writer, "lm_head.weight", "F32", 0, json_pack("[i, i]", 257, 300)); /* equals wte.weight */
    if (_i > 0)
        writer_add_as(&writer, "surprise.weight", "F32", 4, json_pack("[i]", 1));
    for (int k = 1; k < _i; k++) {
        char name[32];
        snprintf(name, sizeof name, "another.%d.weight", k);
        writer_add_as(&writer, name, "F32", 4, json_pack("[i]", 1));
    }
    writer_end(&writer, "model.safetensors");
    expect_loaded(ZERO_FP32, "", _i > 0 ? 1 : 0);
    if (_i == 0)
        return;
    char count[64];
    snprintf(count, sizeof count, "holds %d tensors that the model does not declare", _i);
    ck_assert_ptr_nonnull(strstr(last_line, count));
    ck_assert_ptr_nonnull(strstr(last_line, "surprise.weight"));
    ck_assert_int_eq(strstr(last_line, ", ...") != NULL, _i == 40);
}
END_TEST

/* A head of its own would be lost without a word: of other numbers, or of another shape. */
START_TEST(a_head_that_is_not_the_embedding_is_refused)
{
    writer_t writer = writer_begin();
    for (int t = 0; t < N_TENSORS; t++)
        writer_add(&writer, "", "F32", t);
    writer_add_as(&writer, "lm_head.weight", "F32", _i, json_pack("[i, i]", _i ? 7 : 257, _i ? 5 : 300));
    if (_i == 0)
        ((float *)(void *)writer.data)[writer.n_bytes / sizeof(float) - 1] += 1.0f;
    writer_end(&writer, "model.safetensors");
    expect_failure(ZERO_ERROR_FORMAT, "lm_head.weight differs from wte.weight");
}
END_TEST

/* 60,000 took 8.8 s of a processor when each was looked for among all others, and 0.3 s since. */
START_TEST(an_index_of_many_tensors_is_read_in_no_time)
{
    enum { N_MORE = 60000, LIMIT_S = 4 };
    writer_t writer = writer_begin();
    json_t *map = json_object();
    for (int t = 0; t < N_TENSORS; t++) {
        writer_add(&writer, "", "F32", t);
        json_object_set_new(map, TENSORS[t].name, json_string("all.safetensors"));
    }
    for (int k = 0; k < N_MORE; k++) {
        char name[64];
        snprintf(name, sizeof name, "layers.%d.experts.%d.down_proj.weight", k / 128, k % 128);
        json_object_set_new(writer.header, name,
                            json_pack("{s:s, s:[i], s:[I,I]}", "dtype", "F32", "shape", 0, "data_offsets",
                                      (json_int_t)writer.n_bytes, (json_int_t)writer.n_bytes));
        json_object_set_new(map, name, json_string("all.safetensors"));
    }
    writer_end(&writer, "all.safetensors");
    json_t *index = json_pack("{s:o}", "weight_map", map);
    char *text = json_dumps(index, 0);
    write_in_directory("model.safetensors.index.json", text, strlen(text));
    clock_t begin = clock();
    expect_loaded(ZERO_FP32, "", 1);
    double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    ck_assert_msg(strstr(last_line, "holds 60000 tensors that the model does not declare"), "%s", last_line);
    ck_assert_msg(seconds < LIMIT_S, "%.1f s of a processor", seconds);
    free(text);
    json_decref(index);
}
END_TEST

/* ---- what can be wrong ---- */

START_TEST(a_missing_tensor_is_named)
{
    write_model("transformer.", "F32", 2);
    expect_failure(ZERO_ERROR_FORMAT, "lacks 1 of the model's 6 tensors; the first is h.0.w");
}
END_TEST

START_TEST(a_wrong_shape_is_named_with_both)
{
    writer_t writer = writer_begin();
    for (int t = 0; t < N_TENSORS; t++)
        if (t != 2)
            writer_add(&writer, "", "F32", t);
    if (_i == 0)
        writer_add_as(&writer, "h.0.w", "F32", 2, json_pack("[i,i]", 41, 3));
    else
        writer_add_as(&writer, "h.0.w", "F32", 2, json_pack("[i]", 123));
    writer_end(&writer, "model.safetensors");
    expect_failure(ZERO_ERROR_FORMAT, _i == 0 ? "tensor h.0.w has the shape [41, 3] and the model wants [3, 41]"
                                              : "tensor h.0.w has the shape [123] and the model wants [3, 41]");
}
END_TEST

START_TEST(a_dtype_that_weights_cannot_have_is_named)
{
    writer_t writer = writer_begin();
    for (int t = 0; t < N_TENSORS; t++)
        writer_add(&writer, "", t == 5 ? "I16" : "F32", t);
    writer_end(&writer, "model.safetensors");
    expect_failure(ZERO_ERROR_UNSUPPORTED, "tensor ln_f.weight is of dtype I16");
}
END_TEST

START_TEST(a_tensor_that_is_there_under_two_names_is_an_error)
{
    writer_t writer = writer_begin();
    for (int t = 0; t < N_TENSORS; t++)
        writer_add(&writer, "", "F32", t);
    writer_add(&writer, "transformer.", "F32", 3);
    writer_end(&writer, "model.safetensors");
    expect_failure(ZERO_ERROR_FORMAT, "is there twice");
}
END_TEST

START_TEST(a_directory_without_weights_is_an_io_error)
{
    static const char *const others[] = {"pytorch_model.bin", "pytorch_model.bin.index.json", "adapter_model.bin"};
    expect_failure(ZERO_ERROR_IO, "neither model.safetensors nor model.safetensors.index.json");
    for (int i = 0; i < 3; i++) { /* torch's own files */
        char path[1100], text[100];
        snprintf(path, sizeof path, "%s/%s", directory, others[i]);
        snprintf(text, sizeof text, "it has %s, and only safetensors are read: load it in Python and save it",
                 others[i]);
        support_write_file(path, "", 0);
        n_lines = 0;
        expect_failure(ZERO_ERROR_IO, text);
        ck_assert_int_eq(unlink(path), 0);
    }
    ck_assert_int_eq(rmdir(directory), 0);
    n_lines = 0;
    expect_failure(ZERO_ERROR_IO, "No such file");
}
END_TEST

START_TEST(a_truncated_file_is_named)
{
    char *path;
    size_t n_bytes;
    write_model("", "BF16", -1);
    ck_assert_int_gt(asprintf(&path, "%s/model.safetensors", directory), 0);
    char *whole = support_read_file(path, &n_bytes);
    support_write_file(path, whole, n_bytes - 1);
    expect_failure(ZERO_ERROR_FORMAT, "model.safetensors' is truncated");
    free(whole);
    free(path);
}
END_TEST

/* Contents of an index beside good parts, and what the line must contain. */
static const struct {
    const char *index;
    zero_status_t status;
    const char *text;
} BAD_INDEXES[] = {
    {"", ZERO_ERROR_FORMAT, "is empty"},
    {"{\"weight_map\": {", ZERO_ERROR_FORMAT, "not valid JSON"},
    {"[]", ZERO_ERROR_FORMAT, "no weight_map"},
    {"{\"weight_map\": 3}", ZERO_ERROR_FORMAT, "no weight_map"},
    {"{\"weight_map\": {\"a\": \"x\", \"a\": \"x\"}}", ZERO_ERROR_FORMAT, "duplicate object key"},
    {"{\"weight_map\": {\"h.0.w\": 3}}", ZERO_ERROR_FORMAT, "the file of tensor h.0.w"},
    {"{\"weight_map\": {\"h.0.w\": \"../evil\"}}", ZERO_ERROR_FORMAT, "the file of tensor h.0.w"},
    {"{\"weight_map\": {\"h.0.w\": \"/etc/passwd\"}}", ZERO_ERROR_FORMAT, "the file of tensor h.0.w"},
    {"{\"weight_map\": {\"h.0.w\": \"..\"}}", ZERO_ERROR_FORMAT, "the file of tensor h.0.w"},
    {"{\"weight_map\": {\"h.0.w\": \"\"}}", ZERO_ERROR_FORMAT, "the file of tensor h.0.w"},
    {"{\"weight_map\": {\"h.0.w\": \"absent.safetensors\"}}", ZERO_ERROR_IO, "absent.safetensors': No such file"},
    {"{\"weight_map\": {\"h.0.w\": \"model-00002-of-00002.safetensors\"}}", ZERO_ERROR_FORMAT,
     "tensor h.0.w is not there"},
    {"{\"weight_map\": {\"h.0.w\": \"model-00001-of-00002.safetensors\"}}", ZERO_ERROR_FORMAT, "lacks 5 of"},
    {"{\"weight_map\": {}}", ZERO_ERROR_FORMAT, "lacks 6 of"},
    {"{\"weight_map\": {\"\\u001b[31m\\nx\": \"absent.safetensors\"}}", ZERO_ERROR_FORMAT,
     "a tensor's name, '\\x1b[31m\\x0ax', is empty or has"},
    {"{\"weight_map\": {\"a/b\": \"absent.safetensors\"}}", ZERO_ERROR_FORMAT,
     "a tensor's name, 'a/b', is empty or has"},
};

START_TEST(a_bad_index_is_refused_with_the_reason)
{
    write_parts();
    write_in_directory("model.safetensors.index.json", BAD_INDEXES[_i].index, strlen(BAD_INDEXES[_i].index));
    expect_failure(BAD_INDEXES[_i].status, BAD_INDEXES[_i].text);
}
END_TEST

/* What replaces a file, and what the line must contain. The error comes at once, although no process writes to those
 * pipes. */
static const struct {
    const char *name, *make;
    const char *text;
} NO_FILES[] = {
    {"model.safetensors.index.json", "mkdir", "is not a regular file: it is a directory"},
    {"model.safetensors.index.json", "mkfifo", "is not a regular file: it is a named pipe"},
    {"model.safetensors.index.json", "ln -s /dev/zero", "is not a regular file: it is a device"},
    {"model-00002-of-00002.safetensors", "mkdir", "is not a regular file: it is a directory"},
    {"model-00002-of-00002.safetensors", "mkfifo", "is not a regular file: it is a named pipe"},
    {"model.safetensors", "mkfifo", "is not a regular file: it is a named pipe"},
};

START_TEST(fifos_and_directories_are_named_and_not_waited_for)
{
    write_parts();
    ck_assert_int_eq(support_run(NULL, 10, "cd '%s' && rm -f %s && %s %s", directory, NO_FILES[_i].name,
                                 NO_FILES[_i].make, NO_FILES[_i].name),
                     0);
    expect_failure(ZERO_ERROR_IO, NO_FILES[_i].text);
    ck_assert_msg(strstr(last_line, NO_FILES[_i].name) != NULL, "%s", last_line);
}
END_TEST

/* A value, by its bits in each dtype, that replaces one of a tensor's; and what the line must contain. */
static const struct {
    const char *dtype;
    uint32_t bits;
    int tensor;
    size_t element;
    const char *text;
} NOT_FINITE[] = {
    {"F32", 0x7fc00000, 0, 0, "wte.weight holds nan at element 0, where"},
    {"F32", 0xff800000, 0, 65536, "wte.weight holds -inf at element 65536, where"},
    {"BF16", 0x7f80, 0, 77099, "wte.weight holds inf at element 77099, where"},
    {"BF16", 0x7fff, 5, 99, "ln_f.weight holds nan at element 99, where"},
    {"F16", 0x7c00, 4, 0, "h.1.w holds inf at element 0, where"},
    {"F16", 0xfc01, 2, 41, "h.0.w holds nan at element 41, where"},
};

START_TEST(a_weight_that_is_not_finite_is_named)
{
    const int tensor = NOT_FINITE[_i].tensor;
    writer_t writer = writer_begin();
    for (int t = 0; t < N_TENSORS; t++) {
        size_t begin = writer.n_bytes, element_bytes = strcmp(NOT_FINITE[_i].dtype, "F32") == 0 ? 4 : 2;
        writer_add(&writer, "", NOT_FINITE[_i].dtype, t);
        if (t == tensor)
            memcpy(writer.data + begin + NOT_FINITE[_i].element * element_bytes, &NOT_FINITE[_i].bits, element_bytes);
    }
    writer_end(&writer, "model.safetensors");
    session_t session = session_open(_i % 2 ? 0 : 3, ZERO_BF16, "");
    zero_status_t status = zero_load_weights(session.engine, directory);
    session_close(&session);
    ck_assert_msg(status == ZERO_ERROR_FORMAT, "%s: %s", zero_status_name(status), last_line);
    ck_assert_msg(n_lines == 1 && strstr(last_line, NOT_FINITE[_i].text), "%d lines: %s", n_lines, last_line);
    ck_assert_msg(strstr(last_line, directory) && strstr(last_line, "model.safetensors"), "%s", last_line);
}
END_TEST

/* ---- several ranks ---- */

/* One rank: loads, checks what it owns, and prints one line. */
static int run_rank(const char *from, int stage)
{
    session_t session = session_open(stage, ZERO_BF16, "");
    zero_status_t status = zero_load_weights(session.engine, from);
    tally_t found = tally(session.engine, status != ZERO_OK);
    double sums[2] = {(double)found.n_elems, (double)found.n_wrong};
    must(zero_comm_sum(session.comm, sums, 2));
    printf("%s elems %.0f wrong %.0f\n", zero_status_name(status), sums[0], sums[1]);
    fflush(stdout);
    session_close(&session);
    return 0;
}

START_TEST(every_rank_loads_its_share_at_every_stage)
{
    support_output_t output;
    char wanted[80];
    write_parts();
    int code = support_mpirun(&output, 60, 3, "%s/tests/unit/checkpoint/test_load_weights %s %d", support_build(),
                              directory, _i);
    ck_assert_msg(code == 0, "exit code %d: %s", code, output.err);
    snprintf(wanted, sizeof wanted, "ZERO_OK elems %zu wrong 0\n", total_elems());
    ck_assert_msg(support_count(output.out, wanted) == 3, "%s", output.out);
    support_output_free(&output);
}
END_TEST

START_TEST(every_rank_returns_the_same_error_and_one_says_it)
{
    support_output_t output;
    char wanted[80];
    write_model("", "F32", 5);
    int code =
        support_mpirun(&output, 60, 3, "%s/tests/unit/checkpoint/test_load_weights %s 3", support_build(), directory);
    ck_assert_msg(code == 0, "exit code %d: %s", code, output.err);
    snprintf(wanted, sizeof wanted, "ZERO_ERROR_FORMAT elems %zu wrong 0\n", total_elems());
    ck_assert_msg(support_count(output.out, wanted) == 3, "%s", output.out);
    ck_assert_msg(support_count(output.err, "zero: rank ") == 1, "%s", output.err);
    ck_assert_ptr_nonnull(strstr(output.err, "rank 0: '"));
    ck_assert_ptr_nonnull(strstr(output.err, "lacks 1 of"));
    support_output_free(&output);
}
END_TEST

START_TEST(a_rank_that_alone_lacks_the_directory_says_so_and_all_ranks_stop)
{
    support_output_t output;
    write_model("", "F32", -1);
    int code = support_mpirun(&output, 60, 3,
                              "sh -c '[ " SUPPORT_RANK
                              " != 2 ] || set -- absent; exec %s/tests/unit/checkpoint/test_load_weights %s/$1 3'",
                              support_build(), directory);
    ck_assert_msg(code == 0, "exit code %d: %s", code, output.err);
    ck_assert_msg(support_count(output.out, "ZERO_ERROR_PEER") == 2, "%s", output.out);
    ck_assert_msg(support_count(output.out, "ZERO_ERROR_IO") == 1, "%s", output.out);
    ck_assert_msg(support_count(output.err, "zero: rank ") == 1, "%s", output.err);
    ck_assert_ptr_nonnull(strstr(output.err, "zero: rank 2: cannot find weights in '"));
    support_output_free(&output);
}
END_TEST

/* As hosts have them that keep models on disks of their own. */
START_TEST(ranks_that_find_different_weights_by_one_name_load_none)
{
    support_output_t output;
    write_model("", "F32", -1);
    int made = support_run(NULL, 10,
                           "cd %s && mkdir other && head -c -1 model.safetensors >other/model.safetensors && "
                           "printf A >>other/model.safetensors && ! cmp -s model.safetensors other/model.safetensors",
                           directory);
    ck_assert_int_eq(made, 0);
    int code = support_mpirun(&output, 60, 3,
                              "sh -c '[ " SUPPORT_RANK
                              " != 2 ] || set -- other; exec %s/tests/unit/checkpoint/test_load_weights %s/$1 %d'",
                              support_build(), directory, _i);
    ck_assert_msg(code == 0, "exit code %d: %s", code, output.err);
    ck_assert_msg(support_count(output.out, "ZERO_ERROR_MISMATCH") == 3, "%s", output.out);
    ck_assert_msg(strstr(output.err, "do hosts have other files under one path?") != NULL, "%s", output.err);
    support_output_free(&output);
}
END_TEST

/* ---- a model that transformers wrote ---- */

typedef struct reference {
    const unsigned char *data;
    json_t *tensors[200]; /* by declared tensor: its entry in the header */
    size_t n_wrong;
} reference_t;

static zero_status_t compare_with_file(void *user, const zero_chunk_t *chunk)
{
    reference_t *reference = user;
    json_int_t begin =
        json_integer_value(json_array_get(json_object_get(reference->tensors[chunk->tensor], "data_offsets"), 0));
    for (size_t i = 0; i < chunk->n_elems; i++)
        reference->n_wrong +=
            memcmp(&chunk->master[i], reference->data + begin + 4 * (chunk->first + i), sizeof(float)) != 0;
    return ZERO_OK;
}

/* The declaration is made from the file's own header, read here by other means, without HF's "transformer.". */
START_TEST(a_model_saved_by_transformers_loads)
{
    static const char from[] = "tests/reference/gpt2_tiny";
    if (access("tests/reference/gpt2_tiny/model.safetensors", R_OK) != 0) {
        printf("SKIP: %s is not there\n", from);
        return;
    }
    char *file = support_read_file("tests/reference/gpt2_tiny/model.safetensors", NULL);
    uint64_t header_bytes;
    memcpy(&header_bytes, file, 8);
    json_t *header = json_loadb(file + 8, header_bytes, 0, NULL);
    reference_t reference = {.data = (unsigned char *)file + 8 + header_bytes};

    zero_comm_t *comm;
    zero_device_t *device;
    zero_model_t *model;
    zero_engine_t *engine;
    zero_unit_t unit;
    zero_tensor_t tensor;
    const char *name;
    json_t *entry;
    zero_config_t config = zero_config_default();
    ck_assert_int_eq(zero_comm_create(ZERO_COMM_AUTO, &comm), ZERO_OK);
    ck_assert_int_eq(zero_device_create(ZERO_DEVICE_CPU, comm, &device), ZERO_OK);
    ck_assert_int_eq(zero_model_create(&model), ZERO_OK);
    ck_assert_int_eq(zero_model_add_unit(model, "all", &unit), ZERO_OK);
    json_object_foreach(header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        json_t *shape = json_object_get(entry, "shape");
        zero_tensor_desc_t desc = {.name = name + strlen("transformer."), .n_dims = (int)json_array_size(shape)};
        for (int d = 0; d < desc.n_dims; d++)
            desc.shape[d] = json_integer_value(json_array_get(shape, (size_t)d));
        ck_assert_int_eq(zero_model_add_tensor(model, unit, &desc, &tensor), ZERO_OK);
        ck_assert_int_lt(tensor, 200);
        reference.tensors[tensor] = entry;
    }
    ck_assert_int_eq(zero_model_n_tensors(model), 2 + 4 * 12 + 2); /* 4 layers */
    ck_assert_int_eq(zero_engine_create(comm, device, model, &config, &engine), ZERO_OK);
    ck_assert_msg(zero_load_weights(engine, from) == ZERO_OK, "%s", last_line);
    ck_assert_int_eq(n_lines, 0);
    ck_assert_int_eq(zero_get_state(engine, compare_with_file, &reference), ZERO_OK);
    ck_assert_uint_eq(reference.n_wrong, 0);
    zero_engine_destroy(engine);
    zero_model_destroy(model);
    zero_device_destroy(device);
    zero_comm_destroy(comm);
    json_decref(header);
    free(file);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("load");
    TCase *tc = tcase_create("one rank");
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, every_file_dtype_loads_exactly_into_every_engine_dtype, 0, 9);
    tcase_add_loop_test(tc, prefixes_are_tolerated_on_either_side, 0, 9);
    tcase_add_test(tc, parts_load_by_their_index);
    tcase_add_loop_test(tc, other_tensors_are_named_in_one_warning_and_known_buffers_in_none, 0, 3);
    tcase_add_loop_test(tc, a_head_that_is_not_the_embedding_is_refused, 0, 2);
    tcase_add_loop_test(tc, other_tensors_are_named_in_one_warning_and_known_buffers_in_none, 40, 41);
    tcase_add_test(tc, an_index_of_many_tensors_is_read_in_no_time);
    tcase_add_test(tc, a_missing_tensor_is_named);
    tcase_add_loop_test(tc, a_wrong_shape_is_named_with_both, 0, 2);
    tcase_add_test(tc, a_dtype_that_weights_cannot_have_is_named);
    tcase_add_test(tc, a_tensor_that_is_there_under_two_names_is_an_error);
    tcase_add_test(tc, a_directory_without_weights_is_an_io_error);
    tcase_add_test(tc, a_truncated_file_is_named);
    tcase_add_loop_test(tc, a_bad_index_is_refused_with_the_reason, 0, sizeof BAD_INDEXES / sizeof BAD_INDEXES[0]);
    tcase_add_loop_test(tc, fifos_and_directories_are_named_and_not_waited_for, 0,
                        sizeof NO_FILES / sizeof NO_FILES[0]);
    tcase_add_loop_test(tc, a_weight_that_is_not_finite_is_named, 0, sizeof NOT_FINITE / sizeof NOT_FINITE[0]);
    tcase_add_test(tc, a_model_saved_by_transformers_loads);
    suite_add_tcase(s, tc);

    TCase *ranks = tcase_create("several ranks");
    tcase_add_checked_fixture(ranks, set_up, tear_down);
    tcase_set_timeout(ranks, 90);
    tcase_add_loop_test(ranks, every_rank_loads_its_share_at_every_stage, 0, 4);
    tcase_add_test(ranks, every_rank_returns_the_same_error_and_one_says_it);
    tcase_add_test(ranks, a_rank_that_alone_lacks_the_directory_says_so_and_all_ranks_stop);
    tcase_add_loop_test(ranks, ranks_that_find_different_weights_by_one_name_load_none, 0, 4);
    suite_add_tcase(s, ranks);
    return s;
}

int main(int argc, char **argv)
{
    if (argc == 3)
        return run_rank(argv[1], atoi(argv[2]));
    return support_main(suite());
}
