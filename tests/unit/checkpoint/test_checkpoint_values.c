/* test_checkpoint_values.c - numbers that a run must not go on from, in files that are otherwise good and that the
 * manifest vouches for: weights and moments that are not finite, second moments below 0, a loss scale that no float
 * holds. Each is refused with one line that names the file, the tensor and the element.
 *
 * With arguments this program is one rank of a test: test_checkpoint_values DIRECTORY STAGE. */
#include <math.h>

#include "tests/support/checkpoint_session.h"

static void set_up(void)
{
    scratch_open();
    session_t session = session_open_filled(3, ZERO_BF16);
    ck_assert_int_eq(session_save(&session, path_of("ck"), &session_plain), ZERO_OK);
    session_close(&session);
    listen_to_log();
}

#define STEP "ck/step-00000000"
#define OPTIMIZER STEP "/optimizer-00001-of-00001.safetensors"

/* Writes one number of an array of the optimizer's file. */
static void put_number(const char *array, size_t element, float number)
{
    size_t n_bytes;
    uint64_t n_header;
    char *bytes = support_read_file(path_of(OPTIMIZER), &n_bytes);
    memcpy(&n_header, bytes, sizeof n_header);
    json_t *header = json_loadb(bytes + 8, n_header, 0, NULL);
    json_t *offsets = json_object_get(json_object_get(header, array), "data_offsets");
    ck_assert_msg(json_is_array(offsets), "there is no %s", array);
    size_t begin = 8 + n_header + (size_t)json_integer_value(json_array_get(offsets, 0));
    memcpy(bytes + begin + element * sizeof number, &number, sizeof number);
    support_write_file(path_of(OPTIMIZER), bytes, n_bytes);
    json_decref(header);
    free(bytes);
    session_reseal(path_of(STEP));
}

/* Elements in the first run in which weights pass, at its end, in the next, and at a tensor's end. */
static const struct {
    const char *array;
    size_t element;
    float number;
    const char *says; /* NULL: it is a number like others */
} NUMBERS[] = {
    {"wte.weight.master", 0, NAN, "wte.weight.master holds nan at element 0, where a finite number should be"},
    {"wte.weight.m", 65535, INFINITY, "wte.weight.m holds inf at element 65535, where a finite"},
    {"wte.weight.v", 65536, INFINITY, "wte.weight.v holds inf at element 65536, where a finite"},
    {"wte.weight.v", 77099, NAN, "wte.weight.v holds nan at element 77099, where a finite"},
    {"h.0.w.m", 122, -INFINITY, "h.0.w.m holds -inf at element 122, where a finite"},
    {"ln_f.weight.v", 99, -1e-30f, "ln_f.weight.v holds -1e-30 at element 99, where no negative number can be"},
    {"wte.weight.v", 40000, -1.0f, "wte.weight.v holds -1 at element 40000, where no negative number can be"},
    {"ln_f.weight.v", 99, -0.0f, NULL},
    {"ln_f.weight.v", 99, 1e-45f, NULL},
    {"h.0.w.master", 5, 3.4028234e38f, NULL},
};
enum { N_NUMBERS = sizeof NUMBERS / sizeof NUMBERS[0] };

START_TEST(a_number_that_no_training_goes_on_from_is_named)
{
    const char *says = NUMBERS[_i % N_NUMBERS].says;
    put_number(NUMBERS[_i % N_NUMBERS].array, NUMBERS[_i % N_NUMBERS].element, NUMBERS[_i % N_NUMBERS].number);
    session_t session = session_open(_i / N_NUMBERS ? 0 : 3, ZERO_FP32);
    zero_status_t status = session_load(&session, path_of("ck"));
    session_close(&session);
    ck_assert_msg(status == (says ? ZERO_ERROR_FORMAT : ZERO_OK), "%s: %s", zero_status_name(status), last_line);
    ck_assert_msg(n_lines == (says ? 1 : 0), "%d lines: %s", n_lines, last_line);
    ck_assert_msg(!says || (strstr(last_line, says) && strstr(last_line, path_of(OPTIMIZER))), "%s", last_line);
}
END_TEST

/* ---- several ranks ---- */

static int run_rank(const char *directory, int stage)
{
    session_t session = session_open(stage, ZERO_BF16);
    zero_status_t status = session_load(&session, directory);
    printf("%s\n", zero_status_name(status));
    fflush(stdout);
    session_close(&session);
    return 0;
}

/* The rank of three that owns the element logs it, at every stage: ranks read only what they own. */
START_TEST(every_rank_stops_and_one_says_why)
{
    support_output_t output;
    put_number("wte.weight.m", 77099, NAN);
    int code = support_mpirun(&output, SCRATCH_LIMIT_S, 3, "%s/tests/unit/checkpoint/test_checkpoint_values %s %d",
                              support_build(), path_of("ck"), _i ? 3 : 0);
    ck_assert_msg(code == 0, "exit code %d: %s", code, output.err);
    ck_assert_msg(support_count(output.out, "ZERO_ERROR_FORMAT") == 1, "%s", output.out);
    ck_assert_msg(support_count(output.out, "ZERO_ERROR_PEER") == 2, "%s", output.out);
    ck_assert_msg(support_count(output.err, "zero: rank ") == 1, "%s", output.err);
    ck_assert_msg(strstr(output.err, "wte.weight.m holds nan at element 77099"), "%s", output.err);
    support_output_free(&output);
}
END_TEST

/* ---- the loss scale ---- */

static const struct {
    const char *scale;
    bool good;
} SCALES[] = {
    {"65536.0", true}, {"1", true},      {"1.2e-38", true}, {"3.4e38", true}, {"3.5e38", false},   {"1e300", false},
    {"1e-39", false},  {"1e-46", false}, {"1e-300", false}, {"0.0", false},   {"-65536.0", false}, {"\"1\"", false},
};

START_TEST(a_loss_scale_beyond_float_is_refused)
{
    int edited = support_run(NULL, 10, "sed -i 's/\"loss_scale\": [0-9.e+-]*/\"loss_scale\": %s/' %s", SCALES[_i].scale,
                             path_of(STEP "/state.json"));
    ck_assert_int_eq(edited, 0);
    ck_assert_int_eq(
        support_run(NULL, 10, "grep -q '\"loss_scale\": %s,' %s", SCALES[_i].scale, path_of(STEP "/state.json")), 0);
    session_reseal(path_of(STEP));
    session_t session = session_open(2, ZERO_FP16);
    zero_status_t status = session_load(&session, path_of("ck"));
    session_close(&session);
    ck_assert_msg(status == (SCALES[_i].good ? ZERO_OK : ZERO_ERROR_FORMAT), "%s: %s", SCALES[_i].scale, last_line);
    ck_assert_msg(SCALES[_i].good || (n_lines == 1 && strstr(last_line, "loss_scale is missing or invalid")), "%s",
                  last_line);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("checkpoint values");
    TCase *tc = tcase_create("values");
    tcase_add_checked_fixture(tc, set_up, scratch_close);
    tcase_set_timeout(tc, 90);
    tcase_add_loop_test(tc, a_number_that_no_training_goes_on_from_is_named, 0, 2 * N_NUMBERS);
    tcase_add_loop_test(tc, every_rank_stops_and_one_says_why, 0, 2);
    tcase_add_loop_test(tc, a_loss_scale_beyond_float_is_refused, 0, sizeof SCALES / sizeof SCALES[0]);
    suite_add_tcase(s, tc);
    return s;
}

int main(int argc, char **argv)
{
    if (argc == 3)
        return run_rank(argv[1], atoi(argv[2]));
    return support_main(suite());
}
