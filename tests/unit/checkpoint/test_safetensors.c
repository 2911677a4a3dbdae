/* Tests of src/zero/format/safetensors.c: good files give the numbers that are in them, bad ones a status and one
 * line. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/log_lines.h"
#include "tests/support/support.h"
#include "zero/format/safetensors.h"

static char *path;

static void set_up(void)
{
    char *directory = support_scratch();
    ck_assert_int_gt(asprintf(&path, "%s/test.safetensors", directory), 0);
    free(directory);
    listen_to_log();
}

static void tear_down(void)
{
    free(path);
}

static void expect_failure(zero_status_t wanted, const char *text)
{
    zero_safetensors_t file = {0};
    n_lines = 0;
    zero_status_t status = zero_safetensors_open(path, &file);
    ck_assert_msg(status == wanted, "%s instead of %s for: %s", zero_status_name(status), zero_status_name(wanted),
                  text);
    ck_assert_int_eq(n_lines, 1);
    ck_assert_msg(strstr(last_line, text) != NULL, "'%s' is not in: %s", text, last_line);
    ck_assert_msg(strstr(last_line, path) != NULL, "the file is not named in: %s", last_line);
    ck_assert_ptr_null(file.path);
}

/* ---- good files ---- */

/* IEEE binary16 by its definition. */
static float half_value(uint16_t bits)
{
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double magnitude = exponent == 0    ? ldexp(fraction, -24)
                       : exponent == 31 ? (fraction ? NAN : INFINITY)
                                        : ldexp(1024 + fraction, exponent - 25);
    return (float)(bits >> 15 ? -magnitude : magnitude);
}

static float bfloat_value(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static void expect_same(float got, float want, size_t i)
{
    bool same = (isnan(got) && isnan(want)) || memcmp(&got, &want, sizeof got) == 0;
    ck_assert_msg(same, "element %zu is %a instead of %a", i, (double)got, (double)want);
}

/* All 65536 numbers of each 16-bit dtype, at odd addresses of the file, whole and in random runs. */
START_TEST(sixteen_bit_numbers_are_read_exactly_at_any_alignment)
{
    static const char header[] = "{\"byte\": {\"dtype\": \"U8\", \"shape\": [1], \"data_offsets\": [0, 1]},"
                                 "\"f16\": {\"dtype\": \"F16\", \"shape\": [256, 256], \"data_offsets\": [1, 131073]},"
                                 "\"bf16\": {\"dtype\": \"BF16\", \"shape\": [65536], \"data_offsets\": [131073, "
                                 "262145]}}";
    unsigned char *data = calloc(1, 1 + 2 * 131072);
    float *elems = malloc(65536 * sizeof *elems);
    for (uint32_t i = 0; i < 65536; i++)
        for (size_t base = 1; base <= 131073; base += 131072) {
            data[base + 2 * i] = (unsigned char)i;
            data[base + 2 * i + 1] = (unsigned char)(i >> 8);
        }
    support_write_safetensors(path, header, strlen(header), data, 1 + 2 * 131072);

    zero_safetensors_t file;
    uint64_t random = 1;
    ck_assert_int_eq(zero_safetensors_open(path, &file), ZERO_OK);
    ck_assert_uint_eq(file.n_tensors, 3);
    for (int k = 0; k < 2; k++) {
        const zero_safetensors_tensor_t *tensor = zero_safetensors_find(&file, k ? "bf16" : "f16");
        for (int run = 0; run < 100; run++) {
            size_t first = run == 0 ? 0 : support_random(&random) % 65536;
            size_t n = run == 0 ? 65536 : support_random(&random) % (65536 - first + 1);
            ck_assert_int_eq(zero_safetensors_read(&file, tensor, first, n, elems), ZERO_OK);
            for (size_t i = 0; i < n; i++) {
                uint16_t bits = (uint16_t)(first + i);
                expect_same(elems[i], k ? bfloat_value(bits) : half_value(bits), first + i);
            }
        }
    }
    zero_safetensors_close(&file);
    free(data);
    free(elems);
}
END_TEST

START_TEST(scalars_empty_tensors_metadata_and_padding_are_part_of_the_format)
{
    static const char header[] = "{\"__metadata__\": {\"format\": \"pt\"},"
                                 "\"after\": {\"dtype\": \"F32\", \"shape\": [2, 1], \"data_offsets\": [4, 12]},"
                                 "\"empty\": {\"dtype\": \"F32\", \"shape\": [3, 0], \"data_offsets\": [4, 4]},"
                                 "\"scalar\": {\"dtype\": \"F32\", \"shape\": [], \"data_offsets\": [0, 4]}}   ";
    const float data[] = {1.5f, -2.25f, 3.0f};
    zero_safetensors_t file;
    float elems[2];
    support_write_safetensors(path, header, strlen(header), data, sizeof data);
    ck_assert_int_eq(zero_safetensors_open(path, &file), ZERO_OK);
    ck_assert_uint_eq(file.n_tensors, 3);
    const zero_safetensors_tensor_t *scalar = zero_safetensors_find(&file, "scalar");
    const zero_safetensors_tensor_t *after = zero_safetensors_find(&file, "after");
    const zero_safetensors_tensor_t *empty = zero_safetensors_find(&file, "empty");
    ck_assert_ptr_null(zero_safetensors_find(&file, "__metadata__"));
    ck_assert_int_eq(scalar->n_dims, 0);
    ck_assert_int_eq(zero_safetensors_read(&file, scalar, 0, 1, elems), ZERO_OK);
    ck_assert_float_eq(elems[0], 1.5f);
    ck_assert_int_eq(zero_safetensors_read(&file, after, 1, 1, elems), ZERO_OK);
    ck_assert_float_eq(elems[0], 3.0f);
    ck_assert_uint_eq(empty->n_elems, 0);
    ck_assert_int_eq(zero_safetensors_read(&file, empty, 0, 0, elems), ZERO_OK);

    /* Beyond a tensor's end there is another's data. */
    ck_assert_int_eq(zero_safetensors_read(&file, scalar, 0, 2, elems), ZERO_ERROR_ARGUMENT);
    ck_assert_int_eq(zero_safetensors_read(&file, after, 3, 0, elems), ZERO_ERROR_ARGUMENT);
    ck_assert_int_eq(zero_safetensors_read(&file, after, UINT64_MAX, 2, elems), ZERO_ERROR_ARGUMENT);
    zero_safetensors_close(&file);
}
END_TEST

START_TEST(a_file_that_shrinks_while_it_is_read_is_a_status)
{
    static const char header[] = "{\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8]}}";
    const float data[] = {1.0f, 2.0f};
    zero_safetensors_t file;
    float elems[2];
    support_write_safetensors(path, header, strlen(header), data, sizeof data);
    ck_assert_int_eq(zero_safetensors_open(path, &file), ZERO_OK);
    ck_assert_int_eq(truncate(path, (off_t)(8 + strlen(header) + 4)), 0);
    ck_assert_int_eq(zero_safetensors_read(&file, &file.tensors[0], 0, 2, elems), ZERO_ERROR_IO);
    ck_assert_ptr_nonnull(strstr(last_line, "became shorter"));
    zero_safetensors_close(&file);
}
END_TEST

/* ---- bad files ---- */

/* Headers, each followed by 8 bytes of data, and what the line must contain. */
static const struct {
    const char *header, *text;
} BAD_HEADERS[] = {
    {"", "does not begin with '{'"},
    {"not JSON", "does not begin with '{'"},
    {" {}", "does not begin with '{'"},
    {"{\"a\"", "not valid JSON"},
    {"{} {}", "not valid JSON"},
    {"{\"a\\u0000b\": 1}", "not valid JSON"},
    {"{\"\xff\xfe\": 1}", "not valid JSON"},
    {"{\"\xc0\xaf\": 1}", "not valid JSON"}, /* an overlong '/' */
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
     "\"a\": {\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
     "duplicate object key"},
    {"{\"a\": {\"dtype\":\"F32\",\"dtype\":\"I32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "duplicate object key"},
    {"{}", "take 0 bytes and 8 are there"},
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", "take 4 bytes and 8 are there"},
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}", "take 12 bytes and 8 are there"},
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
     "\"b\": {\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[6,8]}}",
     "tensor b begins at byte 6 of the data and the one before it ends at 4"},
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
     "\"b\": {\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
     "tensor b begins at byte 0 of the data and the one before it ends at 4"},
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", "neither gap nor overlap"},
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", "but 3 elements of F32 differ in size"},
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", "data_offsets of tensor a"},
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", "data_offsets of tensor a"},
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8.0]}}", "data_offsets of tensor a"},
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]}}", "data_offsets of tensor a"},
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":8}}", "data_offsets of tensor a"},
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":[2]}}", "data_offsets of tensor a"},
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,18446744073709551616]}}", "too big integer"},
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,4],\"data_offsets\":[0,8]}}", "more than 2^64"},
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}",
     "elements of F32 differ in size"},
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", "shape of tensor a"},
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", "shape of tensor a"},
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", "no shape of at most"},
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":[2,1,1,1,1,1,1,1,1],\"data_offsets\":[0,8]}}", "no shape of at most"},
    {"{\"a\": {\"dtype\":\"F31\",\"shape\":[2],\"data_offsets\":[0,8]}}", "tensor a is of dtype F31"},
    {"{\"a\": {\"dtype\":4,\"shape\":[2],\"data_offsets\":[0,8]}}", "tensor a has no dtype"},
    {"{\"a\": [1, 2]}", "tensor a has no dtype"},
    {"{\"\": {\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "name is empty"},
    {"{\"a/b\": {\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "name is empty or has a '/'"},
    {"{\"..\": {\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "a '..'"},
    {"{\"a\\nb\": {\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "a control character"},
    {"{\"__metadata__\": {\"epoch\": 3}}", "__metadata__"},
    {"{\"__metadata__\": [\"pt\"]}", "__metadata__"},
};

START_TEST(a_bad_header_is_a_format_error_with_the_reason)
{
    const char *header = BAD_HEADERS[_i].header;
    support_write_safetensors(path, header, strlen(header), "01234567", 8);
    expect_failure(ZERO_ERROR_FORMAT, BAD_HEADERS[_i].text);
}
END_TEST

START_TEST(every_truncation_of_a_good_file_is_an_error)
{
    static const char header[] = "{\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8]}}";
    zero_safetensors_t file;
    size_t n_bytes;
    support_write_safetensors(path, header, strlen(header), "01234567", 8);
    ck_assert_int_eq(zero_safetensors_open(path, &file), ZERO_OK);
    zero_safetensors_close(&file);
    char *whole = support_read_file(path, &n_bytes);
    for (size_t n = 0; n < n_bytes; n++) {
        support_write_file(path, whole, n);
        expect_failure(ZERO_ERROR_FORMAT, "is truncated");
    }
    free(whole);
}
END_TEST

START_TEST(a_header_length_beyond_the_file_or_the_format_is_an_error)
{
    static const uint64_t LENGTHS[] = {9, 1000, 100000000};
    static const uint64_t HUGE_LENGTHS[] = {100000001, INT64_MAX, UINT64_MAX - 7, UINT64_MAX};
    for (size_t i = 0; i < 3; i++) {
        unsigned char bytes[16] = {0};
        memcpy(bytes, &LENGTHS[i], 8);
        support_write_file(path, bytes, sizeof bytes);
        expect_failure(ZERO_ERROR_FORMAT, "is truncated");
    }
    for (size_t i = 0; i < 4; i++) {
        unsigned char bytes[16] = {0};
        memcpy(bytes, &HUGE_LENGTHS[i], 8);
        support_write_file(path, bytes, sizeof bytes);
        expect_failure(ZERO_ERROR_FORMAT, "at most 100000000 are allowed");
    }
}
END_TEST

START_TEST(deep_nesting_is_an_error_and_not_a_stack_overflow)
{
    size_t n = 1000000;
    char *header = malloc(n + 5);
    memcpy(header, "{\"a\":", 5);
    memset(header + 5, '[', n);
    support_write_safetensors(path, header, n + 5, NULL, 0);
    expect_failure(ZERO_ERROR_FORMAT, "not valid JSON");
    free(header);
}
END_TEST

START_TEST(an_unreadable_file_is_an_io_error)
{
    expect_failure(ZERO_ERROR_IO, "No such file");
    char *command;
    ck_assert_int_gt(asprintf(&command, "mkfifo '%s'", path), 0);
    ck_assert_int_eq(support_run(NULL, 10, "%s", command), 0);
    expect_failure(ZERO_ERROR_IO, "not a regular file"); /* at once, although no process writes to that pipe */
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(support_run(NULL, 10, "mkdir '%s'", path), 0);
    expect_failure(ZERO_ERROR_IO, "not a regular file");
    free(command);
}
END_TEST

/* ---- fuzz ---- */

/* Makes one to four edits: changes a byte, deletes or doubles a run, changes a digit. */
static size_t mutate(unsigned char *bytes, size_t n_bytes, uint64_t *random)
{
    for (uint64_t edits = 1 + support_random(random) % 4; edits > 0; edits--) {
        size_t at = support_random(random) % n_bytes, n = 1 + support_random(random) % 16;
        if (n > n_bytes - at)
            n = n_bytes - at;
        switch (support_random(random) % 4) {
        case 0:
            bytes[at] = (unsigned char)support_random(random);
            break;
        case 1:
            memmove(bytes + at, bytes + at + n, n_bytes - at - n);
            n_bytes -= n_bytes > n + 8 ? n : 0;
            break;
        case 2:
            memmove(bytes + at + n, bytes + at, n_bytes - at);
            n_bytes += n;
            break;
        default:
            while (at < n_bytes - 1 && (bytes[at] < '0' || bytes[at] > '9'))
                at++;
            bytes[at] = (unsigned char)('0' + support_random(random) % 10);
        }
    }
    return n_bytes;
}

/* A file that opens is safe to read completely; one that does not is refused in one line. In half of the cases the
 * length is corrected, so that the header's checks are reached. */
START_TEST(no_mutation_of_a_file_crashes_the_reader)
{
    static const char header[] = "{\"__metadata__\": {\"format\": \"pt\"},"
                                 "\"a\": {\"dtype\": \"F32\", \"shape\": [2, 3], \"data_offsets\": [0, 24]},"
                                 "\"b\": {\"dtype\": \"BF16\", \"shape\": [5], \"data_offsets\": [24, 34]},"
                                 "\"c\": {\"dtype\": \"F16\", \"shape\": [], \"data_offsets\": [34, 36]}}";
    unsigned char data[36] = {0};
    uint64_t random = 20240607;
    size_t n_bytes, n_opened = 0;
    support_write_safetensors(path, header, strlen(header), data, sizeof data);
    char *good = support_read_file(path, &n_bytes);
    unsigned char *bytes = malloc(n_bytes + 4 * 16);
    float *elems = malloc(1024 * sizeof *elems);
    for (int round = 0; round < 2000; round++) {
        zero_safetensors_t file = {0};
        memcpy(bytes, good, n_bytes);
        size_t n = mutate(bytes, n_bytes, &random);
        if (round % 2 && n > 8 + sizeof data) {
            uint64_t header_bytes = n - 8 - sizeof data;
            memcpy(bytes, &header_bytes, 8);
        }
        support_write_file(path, bytes, n);
        n_lines = 0;
        zero_status_t status = zero_safetensors_open(path, &file);
        ck_assert_int_eq(n_lines, status == ZERO_OK ? 0 : 1);
        n_opened += status == ZERO_OK;
        for (size_t t = 0; t < file.n_tensors; t++)
            if (file.tensors[t].dtype->loadable) {
                ck_assert_uint_le(file.tensors[t].n_elems, 1024);
                ck_assert_int_eq(zero_safetensors_read(&file, &file.tensors[t], 0, file.tensors[t].n_elems, elems),
                                 ZERO_OK);
            }
        zero_safetensors_close(&file);
    }
    ck_assert_uint_gt(n_opened, 20); /* both outcomes occurred */
    ck_assert_uint_lt(n_opened, 1600);
    free(elems);
    free(bytes);
    free(good);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("safetensors");
    TCase *tc = tcase_create("reader");
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, sixteen_bit_numbers_are_read_exactly_at_any_alignment);
    tcase_add_test(tc, scalars_empty_tensors_metadata_and_padding_are_part_of_the_format);
    tcase_add_test(tc, a_file_that_shrinks_while_it_is_read_is_a_status);
    tcase_add_loop_test(tc, a_bad_header_is_a_format_error_with_the_reason, 0,
                        sizeof BAD_HEADERS / sizeof BAD_HEADERS[0]);
    tcase_add_test(tc, every_truncation_of_a_good_file_is_an_error);
    tcase_add_test(tc, a_header_length_beyond_the_file_or_the_format_is_an_error);
    tcase_add_test(tc, deep_nesting_is_an_error_and_not_a_stack_overflow);
    tcase_add_test(tc, an_unreadable_file_is_an_io_error);
    tcase_add_test(tc, no_mutation_of_a_file_crashes_the_reader);
    suite_add_tcase(s, tc);
    return s;
}

int main(void)
{
    return support_main(suite());
}
