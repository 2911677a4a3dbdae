/* test_stash.c - buffers that wait in host memory from forward to backward, without a GPU: on a device whose streams
 * are threads of random speed (async_device.h) every run gives the text of the plain CPU, and finds in backward each
 * byte that forward wrote. A missing wait would be found. The runs are tests/mpi/stream_cases. What cannot be done is
 * refused by name.
 */
#include <stdio.h>
#include <string.h>

#include "tests/support/session.h"
#include "tests/support/stderr_capture.h"
#include "tests/support/stream_runs.h"

/* Fewer slots than units, one, and more; with accumulation, skipped steps and memory that is not pinned. */
START_TEST(stashed_buffers_change_no_bit)
{
    static const char *const variants[] = {"activations=3000 slots=3 seed=2 trace=1",
                                           "activations=700 slots=2 delay_us=800 seed=3 pins=0",
                                           "activations=3000 slots=1 stage=2", "activations=100 slots=50", NULL};
    if (_i == 3 && support_is_left_to_plain_build())
        return;
    expect_plain_text(1 + _i, settings_of[_i % N_SETTINGS], variants);
}
END_TEST

/* Beside the state's offload, which has streams and activations of its own; passes that are cancelled anywhere. */
START_TEST(a_stash_goes_with_offload_and_cancelled_passes)
{
    static const char *const variants[] = {"activations=3000 slots=3 offload=100 update=device",
                                           "activations=3000 slots=2 offload=100 params=100 update=host seed=4", NULL};
    expect_plain_text(2, _i == 0 ? "steps=8 micro_steps=2 every=1" : "steps=8 cancels=1 asks=1 micro_steps=2 every=1",
                      variants);
}
END_TEST

static const async_fault_t FAULTS[] = {ASYNC_STASH_AHEAD_OF_COMPUTE, ASYNC_COMPUTE_AHEAD_OF_STASH,
                                       ASYNC_REFILL_AHEAD_OF_COMPUTE, ASYNC_COMPUTE_AHEAD_OF_REFILL};
#define N_FAULTS (int)(sizeof FAULTS / sizeof FAULTS[0])

/* With one slot, so that compute is always close behind a copy, and delays that a busy machine does not hide. */
START_TEST(a_missing_wait_is_found)
{
    if (support_is_left_to_plain_build())
        return;
    expect_fault_shows_among("", 1, FAULTS[_i], "activations=9000 slots=1 delay_us=1500", "blocks=8");
}
END_TEST

/* ---- one buffer after another ---- */

#define N_BUFFERS 5
#define BUFFER_BYTES 1000
#define ROUNDED UINT64_C(1024)

static zero_model_t *declare(void)
{
    zero_model_t *model;
    zero_unit_t unit;
    zero_tensor_t tensor;
    must(zero_model_create(&model));
    must(zero_model_add_unit(model, "unit", &unit));
    must(zero_model_add_tensor(model, unit, &(zero_tensor_desc_t){.name = "weight", .n_dims = 1, .shape = {64}},
                               &tensor));
    return model;
}

typedef struct parts {
    zero_comm_t *comm;
    zero_device_t *device;
    zero_model_t *model;
    zero_engine_t *engine;
} parts_t;

static parts_t open_parts(bool is_async, size_t user_pinned_bytes)
{
    parts_t p = {.model = declare()};
    zero_config_t config = zero_config_default();
    config.user_pinned_bytes = user_pinned_bytes;
    must(zero_comm_create_from(ZERO_COMM_AUTO, NULL, &p.comm));
    if (is_async)
        must(async_device_create(p.comm, &(async_options_t){.seed = 1, .pins = true}, &p.device));
    else
        must(zero_device_create(ZERO_DEVICE_CPU, p.comm, &p.device));
    must(zero_engine_create(p.comm, p.device, p.model, &config, &p.engine));
    return p;
}

static void close_parts(parts_t *p)
{
    zero_engine_destroy(p->engine);
    zero_device_destroy(p->device);
    zero_model_destroy(p->model);
    zero_comm_destroy(p->comm);
}

/* Makes a pass: buffer i is filled with first + i, and read again. */
static void make_pass(zero_stash_t *stash, zero_device_t *device, zero_stream_t stream, int first)
{
    for (int i = 0; i < N_BUFFERS; i++) {
        must(zero_stash_begin_write(stash, i, stream));
        must(zero_device_synchronize(device));
        memset(zero_stash_buffer(stash, i), first + i, BUFFER_BYTES);
        must(zero_stash_end_write(stash, i, stream));
    }
    for (int i = N_BUFFERS - 1; i >= 0; i--) {
        const unsigned char *data = zero_stash_buffer(stash, i);
        must(zero_stash_begin_read(stash, i, stream));
        must(zero_device_synchronize(device));
        ck_assert(data[0] == first + i && memcmp(data, data + 1, BUFFER_BYTES - 1) == 0);
        must(zero_stash_end_read(stash, i, stream));
    }
}

/* By hand: of 5 buffers 3 leave and come back where there are 2 slots. The CPU has room for 5, and copies none. */
START_TEST(memory_and_copies_are_what_was_planned)
{
    const bool is_async = _i == 1;
    const uint64_t on_device = is_async ? 2 : N_BUFFERS, on_host = N_BUFFERS - on_device;
    zero_memory_t plan = {0};
    zero_stash_t *stash;
    must(zero_stash_plan(is_async ? ZERO_DEVICE_CUDA : ZERO_DEVICE_CPU, N_BUFFERS, BUFFER_BYTES, 2, &plan));
    ck_assert_uint_eq(zero_memory_total(&plan), on_device * ROUNDED);
    ck_assert_uint_eq(plan.bytes[ZERO_MEMORY_ACTIVATIONS], on_device * ROUNDED);
    ck_assert_uint_eq(plan.pinned_bytes, on_host * ROUNDED);

    parts_t p = open_parts(is_async, (size_t)plan.pinned_bytes);
    const zero_memory_t before = zero_engine_memory(p.engine);
    must(zero_stash_create(p.engine, N_BUFFERS, BUFFER_BYTES, 2, &stash));
    const zero_memory_t held = zero_engine_memory(p.engine);
    ck_assert_uint_eq(zero_memory_total(&held) - zero_memory_total(&before), on_device * ROUNDED);
    ck_assert_uint_eq(held.pinned_bytes, on_host * ROUNDED);
    ck_assert(!zero_stash_buffer(stash, N_BUFFERS) && !zero_stash_buffer(stash, -1) && !zero_stash_buffer(NULL, 0));
    for (int i = 0; i < N_BUFFERS; i++)
        ck_assert_uint_eq((uintptr_t)zero_stash_buffer(stash, i) % 256, 0);

    zero_stream_t stream = NULL;
    must(zero_stream_create(p.device, &stream));
    make_pass(stash, p.device, stream, 1);
    make_pass(stash, p.device, stream, 101);
    const zero_stats_t stats = zero_engine_stats(p.engine);
    ck_assert_uint_eq(stats.to_host_bytes, 2 * on_host * ROUNDED);
    ck_assert_uint_eq(stats.to_gpu_bytes, 2 * on_host * ROUNDED);
    close_parts(&p);
}
END_TEST

/* ---- refusals ---- */

static void expect_status(zero_status_t status, zero_status_t want, const char *says)
{
    const char *line = capture_end();
    ck_assert_int_eq(status, want);
    ck_assert_msg(strstr(line, says) != NULL, "%s instead of %s", line, says);
}
#define REFUSED(call, want, says) (capture_begin(), expect_status(call, want, says))

START_TEST(what_cannot_be_is_refused_by_name)
{
    zero_memory_t plan = {0};
    zero_stash_t *stash, *other;
    parts_t p = open_parts(true, 3 * ROUNDED);
    REFUSED(zero_stash_create(p.engine, 0, 8, 2, &stash), ZERO_ERROR_ARGUMENT, "0 buffers of 8 bytes, 2 slots");
    REFUSED(zero_stash_create(p.engine, 4, 0, 2, &stash), ZERO_ERROR_ARGUMENT, "4 buffers of 0 bytes");
    REFUSED(zero_stash_create(p.engine, 4, 8, 0, &stash), ZERO_ERROR_ARGUMENT, "0 slots");
    REFUSED(zero_stash_create(p.engine, 1000, SIZE_MAX / 1000, 2, &stash), ZERO_ERROR_OVERFLOW, "1000 buffers");
    REFUSED(zero_stash_plan(ZERO_DEVICE_AUTO, 4, 8, 2, &plan), ZERO_ERROR_ARGUMENT, "resolve it first");
    ck_assert(plan.pinned_bytes == 0 && zero_memory_total(&plan) == 0);

    const zero_memory_t before = zero_engine_memory(p.engine);
    REFUSED(zero_stash_create(p.engine, 6, 1000, 2, &stash), ZERO_ERROR_MEMORY, "user_pinned_bytes");
    const zero_memory_t after = zero_engine_memory(p.engine);
    ck_assert(memcmp(&before, &after, sizeof after) == 0);
    must(zero_stash_create(p.engine, 5, 1000, 2, &stash));
    REFUSED(zero_stash_create(p.engine, 3, 1, 2, &other), ZERO_ERROR_MEMORY, "0.0 are left");
    must(zero_begin(p.engine, ZERO_PASS_EVAL, NULL));
    REFUSED(zero_stash_create(p.engine, 3, 1, 3, &other), ZERO_ERROR_ORDER, "after the first zero_begin");
    close_parts(&p);
}
END_TEST

/* What is announced is compared with the host's memory before any is taken; on the CPU it is not beside it. */
START_TEST(a_host_without_room_is_refused_before_step_0)
{
    parts_t p = open_parts(true, 0);
    zero_engine_t *engine;
    zero_config_t config = zero_config_default();
    config.user_pinned_bytes = (size_t)1 << 50;
    REFUSED(zero_engine_create(p.comm, p.device, p.model, &config, &engine), ZERO_ERROR_MEMORY,
            "needs 1048576.00 GiB of host memory");
    config.user_pinned_bytes = SIZE_MAX;
    REFUSED(zero_engine_create(p.comm, p.device, p.model, &config, &engine), ZERO_ERROR_USAGE, "user_pinned_bytes");
    close_parts(&p);
    p = open_parts(false, (size_t)1 << 50);
    close_parts(&p);
}
END_TEST

START_TEST(calls_come_in_order)
{
    zero_stash_t *s;
    parts_t p = open_parts(_i == 1, 1024);
    must(zero_stash_create(p.engine, 2, 8, 1, &s));
    REFUSED(zero_stash_end_write(s, 0, NULL), ZERO_ERROR_ORDER, "zero_stash_end_write(0): zero_stash_begin_write(0)");
    must(zero_stash_begin_write(s, 0, NULL));
    REFUSED(zero_stash_begin_write(s, 1, NULL), ZERO_ERROR_ORDER, "zero_stash_begin_write(1): zero_stash_end_write(0)");
    must(zero_stash_end_write(s, 0, NULL));
    REFUSED(zero_stash_begin_read(s, 1, NULL), ZERO_ERROR_ORDER, "zero_stash_begin_write(1) comes now");
    must(zero_stash_begin_write(s, 1, NULL));
    must(zero_stash_end_write(s, 1, NULL));
    REFUSED(zero_stash_begin_read(s, 0, NULL), ZERO_ERROR_ORDER, "zero_stash_begin_read(0): zero_stash_begin_read(1)");
    must(zero_stash_begin_read(s, 1, NULL));
    REFUSED(zero_stash_end_read(s, 0, NULL), ZERO_ERROR_ORDER, "zero_stash_end_read(0): zero_stash_end_read(1)");
    REFUSED(zero_stash_begin_write(s, 2, NULL), ZERO_ERROR_ARGUMENT, "zero_stash_begin_write(2): there are 2 buffers");
    REFUSED(zero_stash_begin_read(s, -1, NULL), ZERO_ERROR_ARGUMENT, "there are 2 buffers");
    must(zero_stash_begin_write(s, 0, NULL)); /* the pass has been given up */
    must(zero_stash_end_write(s, 0, NULL));
    close_parts(&p);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("stash");
    TCase *tcase = tcase_create("stash");
    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(tcase, stashed_buffers_change_no_bit, 0, 4);
    tcase_add_loop_test(tcase, a_stash_goes_with_offload_and_cancelled_passes, 0, 2);
    tcase_add_loop_test(tcase, a_missing_wait_is_found, 0, 1);
    tcase_add_loop_test(support_long_case(s, 300), a_missing_wait_is_found, 1, N_FAULTS);
    tcase_add_loop_test(tcase, memory_and_copies_are_what_was_planned, 0, 2);
    tcase_add_test(tcase, what_cannot_be_is_refused_by_name);
    tcase_add_test(tcase, a_host_without_room_is_refused_before_step_0);
    tcase_add_loop_test(tcase, calls_come_in_order, 0, 2);
    suite_add_tcase(s, tcase);
    return s;
}

int main(void)
{
    leave_out_checks();
    return support_main(suite());
}
