/* test_check.c - config.check finds every gradient that was not written and names it, and reports nothing else: at
 * every stage and dtype, with accumulation, with a tensor that two units use. One rank, in this process; tests/run-all
 * turns the check on for all other tests, on several ranks. Also tests the kernels that the check uses. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/elements.h"
#include "tests/support/shard_support.h"
#include "tests/support/stderr_capture.h"
#include "tests/support/support.h"
#include "zero.h"

/* ---- a program that leaves something out ---- */

enum { N_UNITS = 3, N_TENSORS = 4, HEAD = N_UNITS - 1 };
static const char *const unit_names[N_UNITS] = {"embed", "layer.0", "head"};
/* The head uses the embedding's table, too. */
static const struct {
    const char *name;
    int owner;
    size_t n_elems;
} tensors[N_TENSORS] = {{"table", 0, 700}, {"layer.0.w", 1, 129}, {"layer.0.b", 1, 3}, {"head.w", 2, 65}};

typedef enum leave_out { NOTHING, ALL, LAST_ELEMENT, NUMBERS } leave_out_t; /* NUMBERS: NaN is written instead */

typedef struct mistake {
    int unit, tensor, micro_step;
    leave_out_t left_out;
} mistake_t;

typedef struct program {
    zero_comm_t *comm;
    zero_device_t *device;
    zero_engine_t *engine;
    zero_config_t config;
    uint64_t random;
} program_t;

/* accumulate: stages 0-1 add micro-steps up in the gradient, and reduce it once. */
static program_t program_create(int stage, zero_dtype_t dtype, int micro_steps, bool accumulate, bool check)
{
    program_t p = {.config = zero_config_default(), .random = 5};
    zero_model_t *model;
    p.config.stage = stage;
    p.config.dtype = dtype;
    p.config.micro_steps = micro_steps;
    p.config.reduce_every_micro_step = !accumulate;
    p.config.check = check;
    ck_assert_int_eq(zero_comm_create(ZERO_COMM_AUTO, &p.comm), ZERO_OK);
    ck_assert_int_eq(zero_device_create(ZERO_DEVICE_CPU, p.comm, &p.device), ZERO_OK);
    ck_assert_int_eq(zero_model_create(&model), ZERO_OK);
    for (int u = 0; u < N_UNITS; u++) {
        zero_unit_t unit;
        ck_assert_int_eq(zero_model_add_unit(model, unit_names[u], &unit), ZERO_OK);
    }
    for (int t = 0; t < N_TENSORS; t++) {
        zero_tensor_t tensor;
        zero_tensor_desc_t desc = {.name = tensors[t].name,
                                   .n_dims = 1,
                                   .shape = {(int64_t)tensors[t].n_elems},
                                   .init = ZERO_INIT_NORMAL,
                                   .init_std = 0.1f};
        ck_assert_int_eq(zero_model_add_tensor(model, tensors[t].owner, &desc, &tensor), ZERO_OK);
    }
    ck_assert_int_eq(zero_model_share_tensor(model, HEAD, 0), ZERO_OK);
    ck_assert_int_eq(zero_engine_create(p.comm, p.device, model, &p.config, &p.engine), ZERO_OK);
    ck_assert_int_eq(zero_init_parameters(p.engine), ZERO_OK);
    zero_model_destroy(model);
    return p;
}

static void program_destroy(program_t *p)
{
    zero_engine_destroy(p->engine);
    zero_device_destroy(p->device);
    zero_comm_destroy(p->comm);
}

static bool uses(int unit, int tensor)
{
    return tensors[tensor].owner == unit || (unit == HEAD && tensor == 0);
}

static void write_grad(program_t *p, int tensor, leave_out_t left_out)
{
    zero_grad_t grad = zero_grad(p->engine, tensor);
    size_t n = tensors[tensor].n_elems - (left_out == LAST_ELEMENT);
    ck_assert_ptr_nonnull(grad.data);
    for (size_t i = 0; i < n && left_out != ALL; i++) {
        float value = (float)support_normal(&p->random);
        if (grad.accumulate)
            value += element_load(grad.data, grad.dtype, i);
        element_store(grad.data, grad.dtype, i, left_out == NUMBERS ? NAN : value);
    }
}

/* The first status of zero_grad_ready that is not ZERO_OK, at which it stops. */
static zero_status_t micro_step(program_t *p, int k, const mistake_t *mistake)
{
    ck_assert_int_eq(zero_begin(p->engine, ZERO_PASS_TRAIN, NULL), ZERO_OK);
    for (int u = 0; u < N_UNITS; u++) {
        ck_assert_int_eq(zero_acquire(p->engine, u, NULL), ZERO_OK);
        ck_assert_int_eq(zero_release(p->engine, u, NULL), ZERO_OK);
    }
    for (int u = N_UNITS - 1; u >= 0; u--) {
        ck_assert_int_eq(zero_acquire(p->engine, u, NULL), ZERO_OK);
        for (int t = 0; t < N_TENSORS; t++)
            if (uses(u, t))
                write_grad(p, t,
                           mistake->unit == u && mistake->tensor == t && mistake->micro_step == k ? mistake->left_out
                                                                                                  : NOTHING);
        zero_status_t status = zero_grad_ready(p->engine, u, NULL);
        if (status != ZERO_OK)
            return status;
    }
    return ZERO_OK;
}

/* The second step, so that every buffer has held another unit's or step's gradients. */
static zero_status_t second_step(program_t *p, const mistake_t *mistake, zero_step_result_t *result)
{
    static const mistake_t none = {.unit = -1};
    for (int step = 1; step <= 2; step++) {
        for (int k = 0; k < p->config.micro_steps; k++) {
            zero_status_t status = micro_step(p, k, step == 2 ? mistake : &none);
            if (status != ZERO_OK)
                return status;
        }
        ck_assert_int_eq(zero_step(p->engine, 0.01f, NULL, NULL), ZERO_OK);
        ck_assert_int_eq(zero_step_wait(p->engine, result), ZERO_OK);
    }
    return ZERO_OK;
}

/* What a row does in the second step's micro-step, and the line that must be logged; NULL: all is well, and none is. */
static const struct {
    mistake_t mistake;
    const char *says;
    bool skipped;
} rows[] = {
    {{.unit = -1}, NULL, false},
    {{1, 1, 0, ALL}, "zero_grad_ready(layer.0): 129 of 129 elements of layer.0.w's gradient were not written", false},
    {{1, 1, 0, LAST_ELEMENT}, "zero_grad_ready(layer.0): 1 of 129 elements of layer.0.w's gradient were not", false},
    {{1, 2, 0, ALL}, "zero_grad_ready(layer.0): 3 of 3 elements of layer.0.b's gradient were not written", false},
    {{2, 3, 0, LAST_ELEMENT}, "zero_grad_ready(head): 1 of 65 elements of head.w's gradient were not written", false},
    {{2, 0, 0, ALL}, "zero_grad_ready(head): 700 of 700 elements of table's gradient were not written", false},
    {{0, 0, 0, ALL}, NULL, false},    /* the head wrote it, and this unit adds nothing */
    {{1, 1, 0, NUMBERS}, NULL, true}, /* a NaN of the caller's is the step's business */
};
#define N_ROWS (sizeof rows / sizeof rows[0])

static void expect_row(size_t row, int stage, zero_dtype_t dtype, int micro_steps)
{
    zero_step_result_t result;
    program_t p = program_create(stage, dtype, micro_steps, micro_steps == 2, true);
    capture_begin();
    zero_status_t status = second_step(&p, &rows[row].mistake, &result);
    const char *lines = capture_end();
    ck_assert_msg(status == (rows[row].says ? ZERO_ERROR_ARGUMENT : ZERO_OK), "row %zu, stage %d, %s: %s\n%s", row,
                  stage, zero_dtype_name(dtype), zero_status_name(status), lines);
    if (rows[row].says)
        ck_assert_msg(support_count(lines, rows[row].says) == 1, "row %zu, stage %d: %s", row, stage, lines);
    else
        ck_assert_msg(result.skipped == rows[row].skipped && lines[0] == '\0', "row %zu, stage %d: %s", row, stage,
                      lines);
    program_destroy(&p);
}

START_TEST(a_gradient_not_written_is_named_at_every_stage_and_dtype)
{
    for (size_t row = 0; row < N_ROWS; row++)
        for (zero_dtype_t dtype = ZERO_FP32; dtype <= ZERO_FP16; dtype++)
            for (int micro_steps = 1; micro_steps <= 2; micro_steps++)
                expect_row(row, _i, dtype, micro_steps);
}
END_TEST

/* If stages 0-1 add micro-steps up in the gradient, later ones may leave it as it is. Elsewhere each begins anew. */
START_TEST(later_micro_steps_overwrite_gradients_that_they_do_not_add_to)
{
    for (int i = 0; i < 8; i++) {
        int stage = i % 4;
        bool accumulate = i < 4;
        zero_step_result_t result;
        program_t p = program_create(stage, ZERO_BF16, 2, accumulate, true);
        capture_begin();
        zero_status_t status = second_step(&p, &(mistake_t){1, 1, 1, ALL}, &result);
        const char *lines = capture_end();
        ck_assert_msg(status == (accumulate && stage < 2 ? ZERO_OK : ZERO_ERROR_ARGUMENT), "stage %d: %s", stage,
                      lines);
        program_destroy(&p);
    }
}
END_TEST

START_TEST(the_unit_stays_acquired_and_can_be_written)
{
    zero_step_result_t result;
    program_t p = program_create(3, ZERO_BF16, 1, false, true);
    capture_begin();
    ck_assert_int_eq(second_step(&p, &(mistake_t){0, 0, 0, NOTHING}, &result), ZERO_OK);
    ck_assert_int_eq(micro_step(&p, 0, &(mistake_t){1, 2, 0, ALL}), ZERO_ERROR_ARGUMENT);
    ck_assert_int_eq(zero_grad_ready(p.engine, 1, NULL), ZERO_ERROR_ARGUMENT); /* still */
    write_grad(&p, 2, NOTHING);
    ck_assert_int_eq(zero_grad_ready(p.engine, 1, NULL), ZERO_OK);
    capture_end();
    program_destroy(&p);
}
END_TEST

/* The environment is for programs that cannot be changed. */
START_TEST(the_environment_turns_the_check_on)
{
    static const struct {
        const char *value; /* NULL: not set */
        bool config, checks;
    } settings[] = {{NULL, false, false}, {"", false, false}, {"0", false, false},
                    {"1", false, true},   {"0", true, true},  {NULL, true, true}};
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        zero_step_result_t result;
        if (settings[i].value)
            setenv("ZERO_CHECK", settings[i].value, 1);
        else
            unsetenv("ZERO_CHECK");
        program_t p = program_create(2, ZERO_FP32, 1, false, settings[i].config);
        capture_begin();
        zero_status_t status = second_step(&p, &(mistake_t){1, 1, 0, ALL}, &result);
        capture_end();
        ck_assert_int_eq(status, settings[i].checks ? ZERO_ERROR_ARGUMENT : ZERO_OK);
        program_destroy(&p);
    }
}
END_TEST

/* ---- the kernels ---- */

/* Any bits beside it, NaNs with other payloads among them. */
START_TEST(poison_is_written_and_counted_to_the_element)
{
    static const size_t sizes[] = {0, 1, 2, 63, 1000, 70001};
    enum { MARGIN = 3, MAX = 70001 + 2 * MARGIN };
    uint32_t *data = malloc(MAX * sizeof *data), *before = malloc(MAX * sizeof *before);
    uint64_t random = 11;
    for (size_t b = 0; b < SHARD_N_BUILDS; b++) {
        const zero_shard_kernels_t *kernels = zero_shard_kernels_cpu_named(shard_build_names[b]);
        for (size_t s = 0; kernels && s < sizeof sizes / sizeof sizes[0]; s++) {
            size_t size = zero_dtype_size((zero_dtype_t)_i), n = sizes[s];
            unsigned char *at = (unsigned char *)data + MARGIN * size;
            uint64_t found = 77;
            for (size_t i = 0; i < MAX; i++)
                data[i] = (uint32_t)support_random(&random) | (i % 3 == 0 ? 0x7f800000u : 0); /* NaNs */
            for (size_t i = 0; i < MAX; i++)
                if ((data[i] & 0xffff) == ZERO_POISON || data[i] >> 16 == ZERO_POISON)
                    data[i] = 0xffd4ffd4u; /* near it */
            if (_i == ZERO_FP32 && n > 1)
                ((uint32_t *)(void *)at)[n / 2] = 0x1234ffd5u; /* half of it */
            memcpy(before, data, MAX * sizeof *data);
            kernels->count_poison(at, (zero_dtype_t)_i, n, &found, NULL);
            ck_assert_uint_eq(found, 0);
            kernels->poison(at, (zero_dtype_t)_i, n, NULL);
            kernels->count_poison(at, (zero_dtype_t)_i, n, &found, NULL);
            ck_assert_uint_eq(found, n);
            for (size_t i = 0; i < n; i++)
                ck_assert(isnan(element_load(at, (zero_dtype_t)_i, i)));
            for (size_t i = 0; i < n; i += 2)
                element_store(at, (zero_dtype_t)_i, i, (float)i);
            kernels->count_poison(at, (zero_dtype_t)_i, n, &found, NULL);
            ck_assert_uint_eq(found, n / 2);
            ck_assert(memcmp(data, before, MARGIN * size) == 0);
            ck_assert(memcmp(at + n * size, (unsigned char *)before + (MARGIN + n) * size,
                             MAX * sizeof *data - (MARGIN + n) * size) == 0);
        }
    }
    free(data);
    free(before);
}
END_TEST

static Suite *suite(void)
{
    Suite *suite = suite_create("check");
    TCase *engine = tcase_create("engine");
    tcase_set_timeout(engine, 60);
    tcase_add_loop_test(engine, a_gradient_not_written_is_named_at_every_stage_and_dtype, 0, 4);
    tcase_add_test(engine, later_micro_steps_overwrite_gradients_that_they_do_not_add_to);
    tcase_add_test(engine, the_unit_stays_acquired_and_can_be_written);
    tcase_add_test(engine, the_environment_turns_the_check_on);
    suite_add_tcase(suite, engine);
    TCase *kernels = tcase_create("kernels");
    tcase_set_timeout(kernels, 60);
    tcase_add_loop_test(kernels, poison_is_written_and_counted_to_the_element, ZERO_FP32, ZERO_FP16 + 1);
    suite_add_tcase(suite, kernels);
    return suite;
}

int main(void)
{
    return support_main(suite());
}
