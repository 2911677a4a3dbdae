/* test_tensorboard.c - the event file, read back by the format's description (event_file.h). */
#include "tests/support/allocations.h"
#include "tests/support/stderr_capture.h"
#include "train/report/tensorboard.h"

#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

#include "tests/unit/report/event_file.h"

static char scratch[1000], directory[1100];
static event_t events[64];

static void set_up(void)
{
    char *made = support_scratch();
    snprintf(scratch, sizeof scratch, "%s", made);
    snprintf(directory, sizeof directory, "%s/events", made);
    free(made);
}

static metrics_row_t plain_row(int64_t step)
{
    return (metrics_row_t){.step = step,
                           .loss = 3.1f,
                           .grad_norm = 0.1f,
                           .lr = 3e-4,
                           .step_ms = 12.5,
                           .tokens_per_s = 81920,
                           .mfu = 0.25,
                           .exposed_comm_ms = 0.75,
                           .tokens = (INT64_C(1) << 40) + 1, /* fp32 rounds it */
                           .skipped = true,
                           .device_bytes = UINT64_C(3) << 33,
                           .host_bytes = 4096,
                           .has_val_loss = true,
                           .val_loss = 2.7f,
                           .has_fp8_scales = true,
                           .fp8_min_scale = 0.25f,
                           .fp8_max_scale = 4096.0f};
}

/* The only file in the directory. */
static const char *event_file(void)
{
    static char path[2200];
    int n_files = 0;
    DIR *listing = opendir(directory);
    ck_assert_ptr_nonnull(listing);
    for (const struct dirent *entry; (entry = readdir(listing));)
        if (entry->d_name[0] != '.') {
            snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
            n_files++;
        }
    closedir(listing);
    ck_assert_int_eq(n_files, 1);
    return path;
}

static int read_events(void)
{
    return event_file_read(event_file(), events, (int)(sizeof events / sizeof events[0]));
}

static tensorboard_t *must_open(void)
{
    tensorboard_t *tensorboard;
    ck_assert_int_eq(tensorboard_open(directory, 0, &tensorboard), ZERO_OK);
    return tensorboard;
}

static double unix_time_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* RFC 3720 (iSCSI), appendix B.4, and the check value of CRC catalogues. */
START_TEST(the_readers_checksum_is_the_published_one)
{
    unsigned char bytes[32] = {0};
    ck_assert_uint_eq(event_crc32c((const unsigned char *)"123456789", 9), 0xe3069283u);
    ck_assert_uint_eq(event_crc32c(bytes, 32), 0x8a9136aau);
    memset(bytes, 0xff, 32);
    ck_assert_uint_eq(event_crc32c(bytes, 32), 0x62a8ab43u);
}
END_TEST

START_TEST(an_event_has_every_scalar_of_the_row_and_its_step)
{
    double before = unix_time_s();
    tensorboard_t *tensorboard = must_open();
    const int64_t steps[] = {1, 127, 128, INT64_C(1) << 40, INT64_MAX};
    for (int i = 0; i < 5; i++) {
        metrics_row_t row = plain_row(steps[i]);
        ck_assert_int_eq(tensorboard_write(tensorboard, &row), ZERO_OK);
    }
    tensorboard_close(tensorboard);
    ck_assert_int_eq(read_events(), 6);
    ck_assert_str_eq(events[0].file_version, "brain.Event:2");
    ck_assert_int_eq(events[0].n_scalars, 0);
    const struct {
        const char *tag;
        float want;
    } scalars[] = {{"loss", 3.1f},
                   {"grad_norm", 0.1f},
                   {"lr", 3e-4f},
                   {"tokens_per_s", 81920},
                   {"step_ms", 12.5f},
                   {"mfu", 0.25f},
                   {"exposed_comm_ms", 0.75f},
                   {"tokens", 0x1p40f},
                   {"skipped", 1},
                   {"device_bytes", 0x3p33f},
                   {"host_bytes", 4096},
                   {"val_loss", 2.7f},
                   {"fp8_min_scale", 0.25f},
                   {"fp8_max_scale", 4096.0f}};
    for (int i = 0; i <= 5; i++) {
        ck_assert_double_ge(events[i].wall_time, i == 0 ? before : events[i - 1].wall_time);
        ck_assert_double_le(events[i].wall_time, unix_time_s());
    }
    for (int i = 1; i <= 5; i++) {
        ck_assert_int_eq(events[i].step, steps[i - 1]);
        ck_assert_str_eq(events[i].file_version, "");
        ck_assert_int_eq(events[i].n_scalars, 14);
        for (int s = 0; s < 14; s++) {
            const float *value = event_scalar(&events[i], scalars[s].tag);
            ck_assert_msg(value != NULL, "%s", scalars[s].tag);
            ck_assert_mem_eq(value, &scalars[s].want, 4);
        }
    }
}
END_TEST

START_TEST(unknown_values_are_left_out_and_infinite_ones_kept)
{
    tensorboard_t *tensorboard = must_open();
    metrics_row_t row = plain_row(1);
    row.mfu = -1;
    row.has_val_loss = false;
    row.skipped = false;
    row.has_fp8_scales = false;
    row.loss = NAN;
    row.grad_norm = INFINITY;
    ck_assert_int_eq(tensorboard_write(tensorboard, &row), ZERO_OK);
    tensorboard_close(tensorboard);
    ck_assert_int_eq(read_events(), 2);
    ck_assert_int_eq(events[1].n_scalars, 10);
    ck_assert_ptr_null(event_scalar(&events[1], "mfu"));
    ck_assert(*event_scalar(&events[1], "skipped") == 0);
    ck_assert_ptr_null(event_scalar(&events[1], "val_loss"));
    ck_assert(isnan(*event_scalar(&events[1], "loss")));
    ck_assert(isinf(*event_scalar(&events[1], "grad_norm")));
}
END_TEST

/* As many as there may be, of the longest name. */
START_TEST(every_validation_set_has_a_scalar)
{
    char names[METRICS_MOST_VAL_SETS][33], tag[50];
    val_loss_t sets[METRICS_MOST_VAL_SETS];
    for (int i = 0; i < METRICS_MOST_VAL_SETS; i++) {
        snprintf(names[i], sizeof names[i], "%032d", i);
        sets[i] = (val_loss_t){names[i], (float)i + 0.5f};
    }
    tensorboard_t *tensorboard = must_open();
    metrics_row_t row = plain_row(1);
    row.n_val_sets = METRICS_MOST_VAL_SETS;
    row.val_sets = sets;
    ck_assert_int_eq(tensorboard_write(tensorboard, &row), ZERO_OK);
    tensorboard_close(tensorboard);
    ck_assert_int_eq(read_events(), 2);
    ck_assert_int_eq(events[1].n_scalars, 14 + METRICS_MOST_VAL_SETS);
    for (int i = 0; i < METRICS_MOST_VAL_SETS; i++) {
        snprintf(tag, sizeof tag, "val_loss.%.32s", names[i]);
        const float *value = event_scalar(&events[1], tag);
        ck_assert_msg(value != NULL, "%s", tag);
        ck_assert_mem_eq(value, &sets[i].loss, 4);
    }
}
END_TEST

START_TEST(each_event_is_in_the_file_when_write_returns)
{
    tensorboard_t *tensorboard = must_open();
    ck_assert_int_eq(read_events(), 1);
    for (int i = 1; i <= 3; i++) {
        metrics_row_t row = plain_row(i);
        ck_assert_int_eq(tensorboard_write(tensorboard, &row), ZERO_OK);
        ck_assert_int_eq(read_events(), i + 1);
        ck_assert_int_eq(events[i].step, i);
    }
    tensorboard_close(tensorboard);
}
END_TEST

START_TEST(a_file_is_named_by_time_host_and_process)
{
    char host[256], rest[512];
    long long seconds;
    int n_digits;
    double before = unix_time_s();
    tensorboard_close(must_open());
    const char *name = strrchr(event_file(), '/') + 1;
    ck_assert_int_eq(sscanf(name, "events.out.tfevents.%lld%n", &seconds, &n_digits), 1);
    ck_assert_double_ge((double)seconds, floor(before));
    ck_assert_double_le((double)seconds, unix_time_s());
    ck_assert_int_eq(gethostname(host, sizeof host), 0);
    snprintf(rest, sizeof rest, ".%s.%d", host, (int)getpid());
    ck_assert_str_eq(name + n_digits, rest);
}
END_TEST

START_TEST(directories_are_made_and_existing_files_kept)
{
    snprintf(directory, sizeof directory, "%s/a//b/c/", scratch);
    tensorboard_close(must_open());
    ck_assert_int_eq(read_events(), 1);
    char path[2300], *kept;
    size_t n_bytes, n_after;
    snprintf(path, sizeof path, "%s", event_file());
    free(support_read_file(path, &n_bytes));
    tensorboard_close(must_open()); /* in the same second, or in a file of its own */
    kept = support_read_file(path, &n_after);
    ck_assert(n_after == n_bytes || n_after == 2 * n_bytes);
    free(kept);
}
END_TEST

START_TEST(no_directory_means_no_events)
{
    metrics_row_t row = plain_row(1);
    tensorboard_t *tensorboard = (tensorboard_t *)&row;
    ck_assert_int_eq(tensorboard_open("", 0, &tensorboard), ZERO_OK);
    ck_assert_ptr_null(tensorboard);
    ck_assert_int_eq(tensorboard_write(tensorboard, &row), ZERO_OK);
    tensorboard_close(tensorboard);
}
END_TEST

static void expect_no_opening(const char *path, const char *reason)
{
    tensorboard_t *tensorboard = NULL;
    capture_begin();
    zero_status_t status = tensorboard_open(path, 0, &tensorboard);
    expect_line(capture_end(), (const char *[]){"[log] tensorboard", path, reason, NULL});
    ck_assert_int_eq(status, ZERO_ERROR_IO);
    ck_assert_ptr_null(tensorboard);
}

START_TEST(a_directory_that_cannot_be_written_is_named)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/file", scratch);
    support_write_file(path, "x", 1);
    expect_no_opening(path, "File exists");
    strcat(path, "/events");
    expect_no_opening(path, "exists");
    if (geteuid() == 0)
        return; /* root writes everywhere */
    ck_assert_int_eq(mkdir(directory, 0500), 0);
    expect_no_opening(directory, "Permission denied");
}
END_TEST

/* A limit on file sizes replaces a full disk; the captured line is far below it. */
START_TEST(a_full_disk_is_an_error_of_the_event_that_meets_it)
{
    tensorboard_t *tensorboard = must_open();
    metrics_row_t row = plain_row(1);
    struct rlimit before, small = {0};
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    small.rlim_max = before.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    for (; row.step < 50; row.step++)
        ck_assert_int_eq(tensorboard_write(tensorboard, &row), ZERO_OK);
    struct stat written;
    ck_assert_int_eq(stat(event_file(), &written), 0);
    small.rlim_cur = (rlim_t)written.st_size + 20;
    capture_begin();
    setrlimit(RLIMIT_FSIZE, &small);
    zero_status_t status = tensorboard_write(tensorboard, &row);
    setrlimit(RLIMIT_FSIZE, &before);
    expect_line(capture_end(), (const char *[]){event_file(), "writing", "File too large", NULL});
    ck_assert_int_eq(status, ZERO_ERROR_IO);
    ck_assert_int_eq(read_events(), 50); /* the version and 49, whole */
    tensorboard_close(tensorboard);
    ck_assert_int_eq(read_events(), 51); /* there is room again */
}
END_TEST

/* SessionLog with status START (1): TensorBoard drops steps from this one on that came before (event_file_inspector and
 * event_accumulator do so for files of version 2). */
START_TEST(a_resumed_run_says_from_which_step_on_earlier_events_are_void)
{
    tensorboard_t *tensorboard;
    metrics_row_t row = plain_row(4);
    ck_assert_int_eq(tensorboard_open(directory, 4, &tensorboard), ZERO_OK);
    ck_assert_int_eq(tensorboard_write(tensorboard, &row), ZERO_OK);
    tensorboard_close(tensorboard);
    ck_assert_int_eq(read_events(), 3);
    ck_assert_str_eq(events[0].file_version, "brain.Event:2");
    ck_assert(events[1].is_session_start && events[1].step == 4 && events[1].n_scalars == 0);
    ck_assert(!events[2].is_session_start && events[2].step == 4);
}
END_TEST

START_TEST(a_step_allocates_nothing)
{
    tensorboard_t *tensorboard = must_open();
    metrics_row_t row = plain_row(1);
    zero_status_t status = ZERO_OK;
    allocations_start();
    for (; row.step < 100 && status == ZERO_OK; row.step++) /* a ck_assert would allocate */
        status = tensorboard_write(tensorboard, &row);
    ck_assert_uint_eq(allocations_stop(), 0);
    ck_assert_int_eq(status, ZERO_OK);
    tensorboard_close(tensorboard);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("tensorboard");
    TCase *c = tcase_create("file");
    tcase_add_checked_fixture(c, set_up, NULL);
    tcase_add_test(c, the_readers_checksum_is_the_published_one);
    tcase_add_test(c, an_event_has_every_scalar_of_the_row_and_its_step);
    tcase_add_test(c, unknown_values_are_left_out_and_infinite_ones_kept);
    tcase_add_test(c, every_validation_set_has_a_scalar);
    tcase_add_test(c, each_event_is_in_the_file_when_write_returns);
    tcase_add_test(c, a_file_is_named_by_time_host_and_process);
    tcase_add_test(c, directories_are_made_and_existing_files_kept);
    tcase_add_test(c, no_directory_means_no_events);
    tcase_add_test(c, a_directory_that_cannot_be_written_is_named);
    tcase_add_test(c, a_full_disk_is_an_error_of_the_event_that_meets_it);
    tcase_add_test(c, a_resumed_run_says_from_which_step_on_earlier_events_are_void);
    tcase_add_test(c, a_step_allocates_nothing);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
