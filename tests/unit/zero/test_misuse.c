/* test_misuse.c - what the library does with wrong calls: NULL, arguments out of range, objects destroyed while others
 * use them. Nothing crashes, the status gives the kind of error, and one line names the function and the argument.
 * Several ranks: runs tests/mpi/engine_cases. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/stderr_capture.h"
#include "tests/support/support.h"
#include "zero.h"

#define LIMIT_S 60.0

typedef struct fixture {
    zero_comm_t *comm;
    zero_device_t *device;
    zero_model_t *model;
    zero_engine_t *engine;
    zero_unit_t unit;
    zero_tensor_t tensor;
    zero_config_t config;
} fixture_t;

#define MUST(call) ck_assert_int_eq(call, ZERO_OK)

static fixture_t fixture_create(void)
{
    fixture_t f = {.config = zero_config_default()};
    zero_tensor_desc_t desc = {.name = "w", .n_dims = 1, .shape = {5}, .init = ZERO_INIT_ONES};
    f.config.dtype = ZERO_FP32;
    MUST(zero_comm_create(ZERO_COMM_AUTO, &f.comm));
    MUST(zero_device_create(ZERO_DEVICE_CPU, f.comm, &f.device));
    MUST(zero_model_create(&f.model));
    MUST(zero_model_add_unit(f.model, "a", &f.unit));
    MUST(zero_model_add_tensor(f.model, f.unit, &desc, &f.tensor));
    MUST(zero_engine_create(f.comm, f.device, f.model, &f.config, &f.engine));
    MUST(zero_init_parameters(f.engine));
    return f;
}

static void fixture_destroy(fixture_t *f)
{
    zero_engine_destroy(f->engine);
    zero_model_destroy(f->model);
    zero_device_destroy(f->device);
    zero_comm_destroy(f->comm);
}

/* Up to zero_step. */
static void make_pass(fixture_t *f)
{
    MUST(zero_begin(f->engine, ZERO_PASS_TRAIN, NULL));
    MUST(zero_acquire(f->engine, f->unit, NULL));
    MUST(zero_release(f->engine, f->unit, NULL));
    MUST(zero_acquire(f->engine, f->unit, NULL));
    float *grad = zero_grad(f->engine, f->tensor).data;
    for (int i = 0; i < 5; i++)
        grad[i] = 0.25f * (float)(i + 1);
    MUST(zero_grad_ready(f->engine, f->unit, NULL));
}

static void train(fixture_t *f)
{
    zero_step_result_t result;
    make_pass(f);
    MUST(zero_step(f->engine, 0.1f, NULL, NULL));
    MUST(zero_step_wait(f->engine, &result));
}

/* ---- arguments ---- */

static void expect_refused(const char *call, zero_status_t status, const char *said, const char *names)
{
    ck_assert_msg(status == ZERO_ERROR_ARGUMENT, "%s: %s", call, zero_status_name(status));
    ck_assert_msg(strstr(said, names) && support_count(said, "\n") == 1, "%s: '%s' is not the one line of\n%s", call,
                  names, said);
}

#define REFUSED(call, names)                                                                                           \
    do {                                                                                                               \
        capture_begin();                                                                                               \
        zero_status_t refused_status = (call);                                                                         \
        const char *refused_said = capture_end();                                                                      \
        expect_refused(#call, refused_status, refused_said, names);                                                    \
    } while (0)

static zero_status_t visit(void *user, const zero_chunk_t *chunk)
{
    (void)user, (void)chunk;
    return ZERO_OK;
}

START_TEST(communicators_and_devices_refuse_null)
{
    fixture_t f = fixture_create();
    zero_comm_t *comm = NULL;
    zero_device_t *device = NULL;
    zero_stream_t stream;
    void *data;
    double number = 1.0;
    REFUSED(zero_comm_create(ZERO_COMM_AUTO, NULL), "zero_comm_create: comm is NULL");
    REFUSED(zero_comm_create((zero_comm_kind_t)9, &comm), "zero_comm_create: there is no kind 9");
    REFUSED(zero_comm_sum(NULL, &number, 1), "zero_comm_sum: comm is NULL");
    REFUSED(zero_comm_sum(f.comm, NULL, 1), "zero_comm_sum: values is NULL");
    MUST(zero_comm_sum(f.comm, NULL, 0));
    REFUSED(zero_comm_broadcast(NULL, &number, 8, 0), "zero_comm_broadcast: comm is NULL");
    REFUSED(zero_comm_broadcast(f.comm, NULL, 8, 0), "zero_comm_broadcast: data is NULL");
    REFUSED(zero_comm_broadcast(f.comm, &number, 8, 1), "zero_comm_broadcast: there is no rank 1");
    REFUSED(zero_comm_broadcast(f.comm, &number, 8, -1), "zero_comm_broadcast: there is no rank -1");
    REFUSED(zero_comm_barrier(NULL), "zero_comm_barrier: comm is NULL");
    REFUSED(zero_comm_agree(NULL, ZERO_OK), "zero_comm_agree: comm is NULL");
    REFUSED(zero_device_create(ZERO_DEVICE_CPU, NULL, &device), "zero_device_create: comm is NULL");
    REFUSED(zero_device_create(ZERO_DEVICE_CPU, f.comm, NULL), "zero_device_create: device is NULL");
    REFUSED(zero_device_create((zero_device_type_t)7, f.comm, &device), "zero_device_create: there is no type 7");
    REFUSED(zero_device_synchronize(NULL), "zero_device_synchronize: device is NULL");
    REFUSED(zero_stream_create(NULL, &stream), "zero_stream_create: device is NULL");
    REFUSED(zero_stream_create(f.device, NULL), "zero_stream_create: stream is NULL");
    REFUSED(zero_device_copy(NULL, &number, &number, 8, NULL), "zero_device_copy: device is NULL");
    REFUSED(zero_device_copy(f.device, NULL, &number, 8, NULL), "zero_device_copy: dst is NULL");
    REFUSED(zero_device_copy(f.device, &number, NULL, 8, NULL), "zero_device_copy: src is NULL");
    MUST(zero_device_copy(f.device, NULL, NULL, 0, NULL));
    REFUSED(zero_host_alloc(NULL, 8, &data), "zero_host_alloc: device is NULL");
    REFUSED(zero_host_alloc(f.device, 8, NULL), "zero_host_alloc: data is NULL");
    fixture_destroy(&f);
}
END_TEST

START_TEST(declarations_and_plans_refuse_null)
{
    fixture_t f = fixture_create();
    zero_unit_t unit;
    zero_tensor_t tensor;
    zero_memory_t plan;
    zero_tensor_desc_t desc = {.name = "q", .n_dims = 1, .shape = {5}}, nameless = {.n_dims = 1, .shape = {5}};
    REFUSED(zero_model_create(NULL), "zero_model_create: model is NULL");
    REFUSED(zero_model_add_unit(NULL, "z", &unit), "zero_model_add_unit: model is NULL");
    REFUSED(zero_model_add_unit(f.model, NULL, &unit), "zero_model_add_unit: name is NULL");
    REFUSED(zero_model_add_unit(f.model, "z", NULL), "zero_model_add_unit: unit is NULL");
    REFUSED(zero_model_add_tensor(NULL, 0, &desc, &tensor), "zero_model_add_tensor: model is NULL");
    REFUSED(zero_model_add_tensor(f.model, 0, NULL, &tensor), "zero_model_add_tensor: desc is NULL");
    REFUSED(zero_model_add_tensor(f.model, 0, &nameless, &tensor), "zero_model_add_tensor: desc->name is NULL");
    REFUSED(zero_model_add_tensor(f.model, 0, &desc, NULL), "zero_model_add_tensor: tensor is NULL");
    REFUSED(zero_model_share_tensor(NULL, 0, 0), "zero_model_share_tensor: model is NULL");
    REFUSED(zero_model_set_unshard_in_backward(NULL, 0, true), "zero_model_set_unshard_in_backward: model is NULL");
    ck_assert_int_eq(zero_model_n_units(f.model), 1); /* what is refused has added nothing */
    ck_assert_int_eq(zero_model_n_tensors(f.model), 1);
    REFUSED(zero_plan(NULL, &f.config, ZERO_DEVICE_CPU, ZERO_COMM_AUTO, 1, &plan), "zero_plan: model is NULL");
    REFUSED(zero_plan(f.model, NULL, ZERO_DEVICE_CPU, ZERO_COMM_AUTO, 1, &plan), "zero_plan: config is NULL");
    REFUSED(zero_plan(f.model, &f.config, ZERO_DEVICE_CPU, ZERO_COMM_AUTO, 1, NULL), "zero_plan: plan is NULL");
    REFUSED(zero_plan(f.model, &f.config, ZERO_DEVICE_CPU, (zero_comm_kind_t)3, 1, &plan),
            "zero_plan: there is no kind 3");
    REFUSED(zero_plan(f.model, &f.config, ZERO_DEVICE_AUTO, ZERO_COMM_AUTO, 1, &plan), "no plan for device type 0");
    REFUSED(zero_plan(f.model, &f.config, (zero_device_type_t)9, ZERO_COMM_AUTO, 1, &plan),
            "no plan for device type 9");
    REFUSED(zero_plan(f.model, &f.config, ZERO_DEVICE_CPU, ZERO_COMM_AUTO, 0, &plan), "world size 0");
    fixture_destroy(&f);
}
END_TEST

START_TEST(an_array_that_the_optimizer_lacks_is_refused)
{
    fixture_t f = fixture_create();
    zero_engine_t *engine;
    float value[5] = {0.5f};
    f.config.optimizer = ZERO_OPTIMIZER_LION;
    ck_assert_int_eq(zero_engine_create(f.comm, f.device, f.model, &f.config, &engine), ZERO_OK);
    ck_assert_int_eq(zero_init_parameters(engine), ZERO_OK);
    ck_assert_int_eq(zero_set_tensor(engine, 0, ZERO_ARRAY_M, 0, value), ZERO_OK);
    REFUSED(zero_get_tensor(engine, 0, ZERO_ARRAY_V, 0, value), "zero_get_tensor: optimizer lion has no array v");
    REFUSED(zero_set_tensor(engine, 0, ZERO_ARRAY_V, 0, value), "zero_set_tensor: optimizer lion has no array v");
    ck_assert_str_eq(zero_optimizer_name(ZERO_OPTIMIZER_ADAMW), "adamw");
    ck_assert_str_eq(zero_optimizer_name((zero_optimizer_t)9), "unknown");
    zero_engine_destroy(engine);
    fixture_destroy(&f);
}
END_TEST

static zero_status_t fail_once(void *user, const zero_reduced_t *reduced, zero_stream_t stream)
{
    int *n_calls = user;
    (void)stream;
    ck_assert(reduced->n_elems == 5 && reduced->grad[4] == 1.25f && *reduced->loss_scale == 1.0f);
    return ++*n_calls == 1 ? ZERO_ERROR_IO : ZERO_OK;
}

/* The call that called it ends with its status and one line, and zero_cancel goes on. */
START_TEST(a_hook_that_fails_ends_the_call)
{
    fixture_t f = fixture_create();
    int n_calls = 0;
    const zero_hooks_t hooks = {.reduced = fail_once, .user = &n_calls};
    zero_engine_destroy(f.engine);
    f.config.hooks = &hooks;
    MUST(zero_engine_create(f.comm, f.device, f.model, &f.config, &f.engine));
    MUST(zero_init_parameters(f.engine));
    MUST(zero_begin(f.engine, ZERO_PASS_TRAIN, NULL));
    MUST(zero_acquire(f.engine, f.unit, NULL));
    MUST(zero_release(f.engine, f.unit, NULL));
    MUST(zero_acquire(f.engine, f.unit, NULL));
    float *grad = zero_grad(f.engine, f.tensor).data;
    for (int i = 0; i < 5; i++)
        grad[i] = 0.25f * (float)(i + 1);
    capture_begin();
    zero_status_t status = zero_grad_ready(f.engine, f.unit, NULL);
    const char *said = capture_end();
    ck_assert_int_eq(status, ZERO_ERROR_IO);
    ck_assert_msg(support_count(said, "\n") == 1 && strstr(said, "reduced failed for tensor w in step 1"), "%s", said);
    MUST(zero_cancel(f.engine));
    train(&f);
    ck_assert_int_eq(n_calls, 2);
    fixture_destroy(&f);
}
END_TEST

static zero_status_t fail_once_updated(void *user, const zero_own_update_t *update, zero_stream_t stream)
{
    int *n_calls = user;
    (void)update, (void)stream;
    return ++*n_calls == 1 ? ZERO_ERROR_IO : ZERO_OK;
}

/* By then some weights are updated: whoever uses them is refused until others are set, and zero_cancel says so, too. */
START_TEST(a_failed_update_leaves_weights_that_nothing_uses)
{
    const zero_own_optimizer_t optimizer = {
        .name = "failing", .n_arrays = 1, .update = fail_once_updated, .user = &(int){0}};
    const zero_hooks_t hooks = {.updated = fail_once_updated, .user = &(int){0}};
    fixture_t f = fixture_create();
    float weights[5];
    zero_engine_destroy(f.engine);
    if (_i == 0) {
        f.config.optimizer = ZERO_OPTIMIZER_OWN;
        f.config.own_optimizer = &optimizer;
    } else
        f.config.hooks = &hooks;
    MUST(zero_engine_create(f.comm, f.device, f.model, &f.config, &f.engine));
    MUST(zero_init_parameters(f.engine));
    make_pass(&f);
    ck_assert_int_eq(zero_step(f.engine, 0.1f, NULL, NULL), ZERO_ERROR_IO);
    capture_begin();
    ck_assert_int_eq(zero_step(f.engine, 0.1f, NULL, NULL), ZERO_ERROR_ORDER);
    const char *said = capture_end();
    ck_assert_msg(strstr(said, "zero_step: the weights are incomplete"), "%s", said);
    ck_assert_int_eq(zero_cancel(f.engine), ZERO_ERROR_ORDER);
    ck_assert_int_eq(zero_begin(f.engine, ZERO_PASS_TRAIN, NULL), ZERO_ERROR_ORDER);
    ck_assert_int_eq(zero_get_tensor(f.engine, f.tensor, ZERO_ARRAY_WEIGHT, 0, weights), ZERO_ERROR_ORDER);
    MUST(zero_init_parameters(f.engine));
    MUST(zero_cancel(f.engine));
    train(&f);
    fixture_destroy(&f);
}
END_TEST

/* Which array of a chunk gets which number. */
typedef struct spoilt {
    int array;
    float number;
} spoilt_t;

static zero_status_t fill_spoilt(void *user, const zero_chunk_t *chunk)
{
    const spoilt_t *spoilt = user;
    float *const arrays[] = {chunk->master, chunk->m, chunk->v};
    for (int a = 0; a < 3; a++)
        for (size_t i = 0; i < chunk->n_elems; i++)
            arrays[a][i] = a == spoilt->array && i == 1 ? spoilt->number : 1.0f;
    return ZERO_OK;
}

/* Training could not go on with them, and what is saved of them could not be loaded. */
START_TEST(numbers_that_are_not_sound_are_not_set)
{
    static const struct {
        spoilt_t spoilt;
        const char *says;
    } cases[] = {{{0, NAN}, "the weight of w: element 1 is"},
                 {{1, INFINITY}, "m of w: element 1 is inf, which must be finite"},
                 {{2, -1.0f}, "v of w: element 1 is -1, which must be finite and not negative"},
                 {{1, -1.0f}, NULL}};
    fixture_t f = fixture_create();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        capture_begin();
        zero_status_t status = zero_set_state(f.engine, true, fill_spoilt, (void *)(uintptr_t)&cases[i].spoilt);
        const char *said = capture_end();
        ck_assert_int_eq(status, cases[i].says ? ZERO_ERROR_ARGUMENT : ZERO_OK);
        ck_assert_msg(!cases[i].says || strstr(said, cases[i].says), "%zu: %s", i, said);
    }
    train(&f);
    fixture_destroy(&f);
}
END_TEST

/* Every field has a text that changes it and nothing else; what is no value of its type changes nothing. */
START_TEST(settings_are_set_by_name_and_text)
{
    static const struct {
        const char *name, *value, *bad;
    } settings[] = {
        {"stage", "1", "1.5"},
        {"dtype", "fp16", "fp64"},
        {"micro_steps", "7", ""},
        {"prefetch", "12", "12 "},
        {"keep", "auto", "automatic"},
        {"overlap", "false", "0"},
        {"reduce_every_micro_step", "false", "no"},
        {"nccl_reduction", "true", "yes"},
        {"shard_group", "host", "hosts"},
        {"gather_fp8", "true", "True"},
        {"seed", "18446744073709551615", "18446744073709551616"},
        {"optimizer", "lion", "own"},
        {"beta1", "0.5", "0,5"},
        {"beta2", "5e-1", "x"},
        {"eps", "1e-6", "nan"},
        {"weight_decay", "0.25", "inf"},
        {"momentum", "0.5", "0x1p-1"},
        {"muon_momentum", "0.5", "0.5f"},
        {"muon_steps", "3", "+3"},
        {"grad_clip", "2", "2%"},
        {"max_skipped_steps", "3", "99999999999"},
        {"initial_loss_scale", "2048", "--1"},
        {"loss_scale_window", "3", "1e3"},
        {"loss_scale_hysteresis", "2", "two"},
        {"offload", "true", "optimizer"},
        {"offload_ratio", "auto", "half"},
        {"offload_update", "host", "cpu"},
        {"offload_buffer_bytes", "4096", "4 KiB"},
        {"offload_threads", "2", "-"},
        {"offload_ram", "0.75", "75e"},
        {"staging_bytes", "1048576", "-1"},
        {"user_bytes", "123", "0x10"},
        {"check", "true", "1"},
        {"forward_only", "true", ""},
        {"offload_params", "auto", "all"},
        {"user_pinned_bytes", "7", "-7"},
        {"update", "backward", "both"},
        {"gradients", "bf16", "fp8"},
    };
    const zero_config_t start = zero_config_default();
    zero_config_t all = start;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        zero_config_t config = all;
        char line[128];
        snprintf(line, sizeof line, "zero_config_set: %s is to be %s: it must be ", settings[i].name, settings[i].bad);
        REFUSED(zero_config_set(&config, settings[i].name, settings[i].bad), line);
        ck_assert_int_eq(memcmp(&config, &all, sizeof config), 0);
        MUST(zero_config_set(&all, settings[i].name, settings[i].value));
        ck_assert_msg(memcmp(&config, &all, sizeof config) != 0, "%s", settings[i].name);
    }
    ck_assert(all.stage == 1 && all.dtype == ZERO_FP16 && all.micro_steps == 7 && all.prefetch == 12);
    ck_assert(all.keep == ZERO_KEEP_AUTO && !all.overlap && !all.reduce_every_micro_step && all.nccl_reduction);
    ck_assert(all.shard_group == ZERO_SHARD_GROUP_HOST && all.gather_fp8 && all.seed == UINT64_MAX);
    ck_assert(all.optimizer == ZERO_OPTIMIZER_LION && all.beta1 == 0.5f && all.beta2 == 0.5f && all.eps == 1e-6f);
    ck_assert(all.weight_decay == 0.25f && all.momentum == 0.5f && all.muon_momentum == 0.5f && all.muon_steps == 3);
    ck_assert(all.grad_clip == 2.0f && all.max_skipped_steps == 3 && all.initial_loss_scale == 2048.0f);
    ck_assert(all.loss_scale_window == 3 && all.loss_scale_hysteresis == 2 && all.offload);
    ck_assert(all.offload_ratio == ZERO_OFFLOAD_AUTO && all.offload_update == ZERO_OFFLOAD_UPDATE_HOST);
    ck_assert(all.offload_buffer_bytes == 4096 && all.offload_threads == 2 && all.offload_ram == 0.75f);
    ck_assert(all.staging_bytes == 1048576 && all.user_bytes == 123 && all.check && all.forward_only);
    ck_assert(all.offload_params == ZERO_OFFLOAD_AUTO && all.user_pinned_bytes == 7);
    ck_assert(all.update == ZERO_UPDATE_IN_BACKWARD && all.gradients == ZERO_BF16);
    ck_assert(!all.own_optimizer && !all.hooks);
    MUST(zero_config_set(&all, "zero.stage", "2"));
    ck_assert_int_eq(all.stage, 2);
    REFUSED(zero_config_set(&all, "zero.zero.stage", "1"), "zero_config_set: there is no setting zero.zero.stage");
    REFUSED(zero_config_set(&all, "zero", "1"), "zero_config_set: there is no setting zero");
    REFUSED(zero_config_set(&all, "hooks", "1"), "zero_config_set: there is no setting hooks");
    REFUSED(zero_config_set(NULL, "stage", "1"), "zero_config_set: config is NULL");
    REFUSED(zero_config_set(&all, NULL, "1"), "zero_config_set: name is NULL");
    REFUSED(zero_config_set(&all, "stage", NULL), "zero_config_set: value is NULL");
}
END_TEST

START_TEST(parameters_of_another_type_are_no_floats)
{
    fixture_t f = fixture_create();
    zero_engine_t *engine;
    MUST(zero_begin(f.engine, ZERO_PASS_EVAL, NULL));
    ck_assert_ptr_null(zero_param_fp32(f.engine, f.tensor)); /* not acquired */
    MUST(zero_acquire(f.engine, f.unit, NULL));
    ck_assert(zero_param_fp32(f.engine, f.tensor) == zero_param(f.engine, f.tensor));
    ck_assert_float_eq(zero_param_fp32(f.engine, f.tensor)[4], 1.0f);
    MUST(zero_release(f.engine, f.unit, NULL));
    f.config.dtype = ZERO_BF16;
    MUST(zero_engine_create(f.comm, f.device, f.model, &f.config, &engine));
    MUST(zero_init_parameters(engine));
    MUST(zero_begin(engine, ZERO_PASS_EVAL, NULL));
    MUST(zero_acquire(engine, f.unit, NULL));
    ck_assert_ptr_nonnull(zero_param(engine, f.tensor));
    capture_begin();
    const float *floats = zero_param_fp32(engine, f.tensor);
    const char *said = capture_end();
    ck_assert_ptr_null(floats);
    ck_assert_msg(support_count(said, "\n") == 1 && strstr(said, "zero_param_fp32(tensor 0): parameters are bf16"),
                  "%s", said);
    ck_assert_ptr_null(zero_param_fp32(NULL, 0));
    zero_engine_destroy(engine);
    fixture_destroy(&f);
}
END_TEST

START_TEST(engines_refuse_null)
{
    fixture_t f = fixture_create();
    zero_engine_t *engine = NULL;
    zero_step_result_t result;
    void *data;
    REFUSED(zero_engine_create(NULL, f.device, f.model, &f.config, &engine), "zero_engine_create: comm is NULL");
    REFUSED(zero_engine_create(f.comm, NULL, f.model, &f.config, &engine), "zero_engine_create: device is NULL");
    REFUSED(zero_engine_create(f.comm, f.device, NULL, &f.config, &engine), "zero_engine_create: model is NULL");
    REFUSED(zero_engine_create(f.comm, f.device, f.model, NULL, &engine), "zero_engine_create: config is NULL");
    REFUSED(zero_engine_create(f.comm, f.device, f.model, &f.config, NULL), "zero_engine_create: engine is NULL");
    ck_assert_ptr_null(engine);
    REFUSED(zero_init_parameters(NULL), "zero_init_parameters: engine is NULL");
    REFUSED(zero_set_state(NULL, false, visit, NULL), "zero_set_state: engine is NULL");
    REFUSED(zero_set_state(f.engine, false, NULL, NULL), "zero_set_state: fill is NULL");
    REFUSED(zero_get_state(NULL, visit, NULL), "zero_get_state: engine is NULL");
    REFUSED(zero_get_state(f.engine, NULL, NULL), "zero_get_state: visit is NULL");
    float value[5] = {0.5f}, nan[5] = {NAN}, negative[5] = {-0.5f};
    REFUSED(zero_get_tensor(NULL, 0, ZERO_ARRAY_WEIGHT, 0, value), "zero_get_tensor: engine is NULL");
    REFUSED(zero_get_tensor(f.engine, 1, ZERO_ARRAY_WEIGHT, 0, value),
            "zero_get_tensor(tensor 1): there are 1 tensors");
    REFUSED(zero_get_tensor(f.engine, 0, (zero_array_t)4, 0, value), "zero_get_tensor: there is no array 4");
    REFUSED(zero_get_tensor(f.engine, 0, ZERO_ARRAY_M, 1, value), "zero_get_tensor: there is no rank 1 among 1");
    REFUSED(zero_get_tensor(f.engine, 0, ZERO_ARRAY_M, 0, NULL), "zero_get_tensor: data is NULL");
    REFUSED(zero_set_tensor(NULL, 0, ZERO_ARRAY_WEIGHT, 0, value), "zero_set_tensor: engine is NULL");
    REFUSED(zero_set_tensor(f.engine, 0, ZERO_ARRAY_GRAD, 0, value), "zero_set_tensor: gradients cannot be set");
    REFUSED(zero_set_tensor(f.engine, 0, ZERO_ARRAY_M, ZERO_ALL_RANKS, NULL), "zero_set_tensor: data is NULL");
    REFUSED(zero_set_tensor(f.engine, 0, ZERO_ARRAY_M, 0, nan), "element 0 is nan, which must be finite");
    REFUSED(zero_set_tensor(f.engine, 0, ZERO_ARRAY_V, 0, negative),
            "element 0 is -0.5, which must be finite and not negative");
    REFUSED(zero_load_weights(NULL, "x"), "zero_load_weights: engine is NULL");
    REFUSED(zero_load_weights(f.engine, NULL), "zero_load_weights: directory is NULL");
    REFUSED(zero_begin(NULL, ZERO_PASS_TRAIN, NULL), "zero_begin: engine is NULL");
    REFUSED(zero_begin(f.engine, (zero_pass_t)7, NULL), "zero_begin: there is no pass 7");
    REFUSED(zero_acquire(NULL, 0, NULL), "zero_acquire: engine is NULL");
    REFUSED(zero_acquire(f.engine, 1, NULL), "zero_acquire(unit 1): there are 1 units");
    REFUSED(zero_release(NULL, 0, NULL), "zero_release: engine is NULL");
    REFUSED(zero_grad_ready(NULL, 0, NULL), "zero_grad_ready: engine is NULL");
    REFUSED(zero_step(NULL, 0.1f, NULL, NULL), "zero_step: engine is NULL");
    REFUSED(zero_step_wait(NULL, &result), "zero_step_wait: engine is NULL");
    REFUSED(zero_step_wait(f.engine, NULL), "zero_step_wait: result is NULL");
    zero_group_t group, odd;
    REFUSED(zero_set_group(NULL, 0, NULL), "zero_set_group: engine is NULL");
    REFUSED(zero_set_group(f.engine, 1, NULL), "zero_set_group(tensor 1): there are 1 tensors");
    REFUSED(zero_set_group(f.engine, -1, NULL), "zero_set_group(tensor -1): there are 1 tensors");
    REFUSED(zero_get_group(NULL, 0, &group), "zero_get_group: engine is NULL");
    REFUSED(zero_get_group(f.engine, 0, NULL), "zero_get_group: group is NULL");
    REFUSED(zero_get_group(f.engine, 1, &group), "zero_get_group(tensor 1): there are 1 tensors");
    MUST(zero_get_group(f.engine, 0, &group));
    ck_assert(group.lr_scale == 1.0f && group.weight_decay == 0.0f && group.beta1 == 0.9f && group.beta2 == 0.95f &&
              group.eps == 1e-8f && group.momentum == 0.9f);
#define ODD_GROUP(setting, value, text)                                                                                \
    odd = group;                                                                                                       \
    odd.setting = value;                                                                                               \
    REFUSED(zero_set_group(f.engine, 0, &odd), "zero_set_group(w): " text)
    ODD_GROUP(lr_scale, NAN, "lr_scale nan: it must be at least 0 and finite");
    ODD_GROUP(lr_scale, -0.5f, "lr_scale -0.5: it must be at least 0 and finite");
    ODD_GROUP(weight_decay, INFINITY, "weight_decay inf: it must be at least 0 and finite");
    ODD_GROUP(beta1, 1.0f, "beta1 1: it must be in [0, 1)");
    ODD_GROUP(beta2, -0.5f, "beta2 -0.5: it must be in [0, 1)");
    ODD_GROUP(eps, 0.0f, "eps 0: it must be above 0 and finite");
    ODD_GROUP(momentum, NAN, "momentum nan: it must be in [0, 1)");
#undef ODD_GROUP
    MUST(zero_get_group(f.engine, 0, &odd));
    ck_assert_int_eq(memcmp(&odd, &group, sizeof odd), 0); /* what is refused has changed nothing */
    REFUSED(zero_set_micro_steps(NULL, 1), "zero_set_micro_steps: engine is NULL");
    REFUSED(zero_set_micro_steps(f.engine, 0), "zero_set_micro_steps: micro_steps 0: it must be at least 1");
    REFUSED(zero_cancel(NULL), "zero_cancel: engine is NULL");
    REFUSED(zero_set_adam_step(NULL, 1), "zero_set_adam_step: engine is NULL");
    REFUSED(zero_alloc(NULL, ZERO_MEMORY_DATA, 8, &data), "zero_alloc: engine is NULL");
    REFUSED(zero_alloc(f.engine, ZERO_MEMORY_DATA, 8, NULL), "zero_alloc: data is NULL");
    REFUSED(zero_alloc(f.engine, (zero_memory_category_t)99, 8, &data), "zero_alloc: there is no memory category 99");
    REFUSED(zero_alloc_activations(NULL, 0, 0, 8, &data), "zero_alloc_activations: engine is NULL");
    REFUSED(zero_alloc_activations(f.engine, 0, 0, 8, NULL), "zero_alloc_activations: data is NULL");
    REFUSED(zero_engine_trace(NULL, 0, NULL, NULL), "zero_engine_trace: engine is NULL");
    REFUSED(zero_engine_trace(f.engine, 1, NULL, NULL), "zero_engine_trace: fn is NULL");
    train(&f); /* none of these calls has changed anything */
    fixture_destroy(&f);
}
END_TEST

START_TEST(checkpoints_refuse_null)
{
    fixture_t f = fixture_create();
    zero_save_options_t options = {0}, negative = {.keep = -1};
    zero_save_t *save = NULL;
    zero_checkpoint_t *checkpoint = NULL;
    bool done;
    char *directory = support_scratch();
    train(&f);
    REFUSED(zero_save_prepare(NULL, directory), "zero_save_prepare: comm is NULL");
    REFUSED(zero_save_prepare(f.comm, NULL), "zero_save_prepare: directory is NULL");
    REFUSED(zero_save_begin(NULL, directory, &options, &save), "zero_save_begin: engine is NULL");
    REFUSED(zero_save_begin(f.engine, NULL, &options, &save), "zero_save_begin: directory is NULL");
    REFUSED(zero_save_begin(f.engine, directory, NULL, &save), "zero_save_begin: options is NULL");
    REFUSED(zero_save_begin(f.engine, directory, &options, NULL), "zero_save_begin: save is NULL");
    REFUSED(zero_save_begin(f.engine, directory, &negative, &save), "zero_save_begin: keep -1");
    ck_assert_ptr_null(save);
    REFUSED(zero_save_poll(NULL, &done), "zero_save_poll: save is NULL");
    MUST(zero_save_begin(f.engine, directory, &options, &save));
    REFUSED(zero_save_poll(save, NULL), "zero_save_poll: done is NULL");
    MUST(zero_save_end(save));
    MUST(zero_save_end(NULL));
    REFUSED(zero_checkpoint_open(NULL, directory, &checkpoint), "zero_checkpoint_open: comm is NULL");
    REFUSED(zero_checkpoint_open(f.comm, NULL, &checkpoint), "zero_checkpoint_open: directory is NULL");
    REFUSED(zero_checkpoint_open(f.comm, directory, NULL), "zero_checkpoint_open: checkpoint is NULL");
    uint64_t number;
    REFUSED(zero_checkpoint_bytes(NULL, &f.config, &number), "zero_checkpoint_bytes: model is NULL");
    REFUSED(zero_checkpoint_bytes(f.model, NULL, &number), "zero_checkpoint_bytes: config is NULL");
    REFUSED(zero_checkpoint_bytes(f.model, &f.config, NULL), "zero_checkpoint_bytes: n_bytes is NULL");
    REFUSED(zero_host_copies_prepare(NULL, directory, 1, 0), "zero_host_copies_prepare: comm is NULL");
    REFUSED(zero_host_copies_prepare(f.comm, NULL, 1, 0), "zero_host_copies_prepare: directory is NULL");
    REFUSED(zero_host_copies_find(NULL, directory, &number), "zero_host_copies_find: comm is NULL");
    REFUSED(zero_host_copies_find(f.comm, NULL, &number), "zero_host_copies_find: directory is NULL");
    REFUSED(zero_host_copies_find(f.comm, directory, NULL), "zero_host_copies_find: step is NULL");
    REFUSED(zero_host_copies_open(NULL, directory, 1, &checkpoint), "zero_host_copies_open: comm is NULL");
    REFUSED(zero_host_copies_open(f.comm, NULL, 1, &checkpoint), "zero_host_copies_open: directory is NULL");
    REFUSED(zero_host_copies_open(f.comm, directory, 1, NULL), "zero_host_copies_open: checkpoint is NULL");
    REFUSED(zero_host_copies_remove(NULL, directory), "zero_host_copies_remove: comm is NULL");
    REFUSED(zero_host_copies_remove(f.comm, NULL), "zero_host_copies_remove: directory is NULL");
    zero_engine_destroy(f.engine);
    MUST(zero_engine_create(f.comm, f.device, f.model, &f.config, &f.engine));
    REFUSED(zero_load(f.engine, NULL), "zero_load: checkpoint is NULL");
    MUST(zero_checkpoint_open(f.comm, directory, &checkpoint));
    REFUSED(zero_load(NULL, checkpoint), "zero_load: engine is NULL");
    MUST(zero_load(f.engine, checkpoint));
    zero_checkpoint_close(checkpoint);
    free(directory);
    fixture_destroy(&f);
}
END_TEST

/* Calls that return a value return a neutral one, calls that return none do nothing, and neither log anything. */
START_TEST(calls_without_a_status_accept_null)
{
    capture_begin();
    bool neutral = zero_comm_rank(NULL) == -1 && zero_comm_size(NULL) == 0 && zero_comm_local_rank(NULL) == -1 &&
                   zero_comm_local_size(NULL) == 0 && zero_comm_hosts(NULL, NULL) == 0 &&
                   strcmp(zero_comm_name(NULL), "") == 0 && zero_device_get_type(NULL) == ZERO_DEVICE_AUTO &&
                   zero_device_resolve(ZERO_DEVICE_CPU, NULL) == ZERO_DEVICE_CPU && zero_model_n_units(NULL) == 0 &&
                   !zero_model_unit_name(NULL, 0) && zero_model_n_tensors(NULL) == 0 &&
                   zero_model_n_params(NULL) == 0 && zero_memory_total(NULL) == 0 && !zero_param(NULL, 0) &&
                   !zero_param_fp8(NULL, 0).data && !zero_grad(NULL, 0).data && !zero_loss_scale(NULL) &&
                   zero_get_adam_step(NULL) == 0 && zero_engine_memory(NULL).pinned_bytes == 0 &&
                   zero_engine_stats(NULL).n_gathers == 0 && strcmp(zero_engine_transport(NULL), "") == 0 &&
                   strcmp(zero_checkpoint_path(NULL), "") == 0 && zero_checkpoint_step(NULL) == 0 &&
                   strcmp(zero_checkpoint_state(NULL), "") == 0;
    zero_comm_destroy(NULL);
    zero_comm_abort(NULL, 1);
    zero_device_destroy(NULL);
    zero_stream_destroy(NULL, NULL);
    zero_host_free(NULL, NULL);
    zero_model_destroy(NULL);
    zero_engine_destroy(NULL);
    zero_set_notice(NULL, 1);
    zero_checkpoint_close(NULL);
    const char *said = capture_end();
    ck_assert(neutral);
    ck_assert_str_eq(said, "");
}
END_TEST

START_TEST(unknown_ids_have_no_name_and_no_size)
{
    fixture_t f = fixture_create();
    ck_assert_uint_eq(zero_dtype_size((zero_dtype_t)9), 0);
    ck_assert_str_eq(zero_dtype_name((zero_dtype_t)9), "unknown dtype");
    ck_assert_str_eq(zero_memory_name((zero_memory_category_t)99), "unknown category");
    ck_assert_str_eq(zero_work_name((zero_work_t)99), "unknown");
    ck_assert_ptr_null(zero_model_unit_name(f.model, 1));
    ck_assert_ptr_null(zero_model_unit_name(f.model, -1));
    ck_assert_ptr_null(zero_param(f.engine, -1));
    ck_assert_ptr_null(zero_grad(f.engine, -1).data);
    REFUSED(zero_engine_trace(f.engine, 1u << ZERO_N_WORKS, NULL, NULL), "zero_engine_trace: fn is NULL");
    fixture_destroy(&f);
}
END_TEST

/* ---- objects that are destroyed too early ---- */

/* The first destroy logs an error, the last does not; what is kept works until then, and all is freed: LeakSanitizer
 * checks that in sanitized builds. */
START_TEST(an_object_destroyed_before_its_users_is_kept_and_named)
{
    fixture_t f = fixture_create();
    zero_save_t *save = NULL;
    zero_checkpoint_t *checkpoint;
    zero_save_options_t options = {.background = true};
    char *directory = support_scratch();
    train(&f);
    MUST(zero_save_begin(f.engine, directory, &options, &save));
    MUST(zero_save_end(save));
    MUST(zero_checkpoint_open(f.comm, directory, &checkpoint));
    train(&f);
    MUST(zero_save_begin(f.engine, directory, &options, &save));

    capture_begin();
    zero_comm_destroy(f.comm);
    zero_device_destroy(f.device);
    zero_device_destroy(f.device);
    train(&f);
    zero_engine_destroy(f.engine);
    zero_status_t ended = zero_save_end(save); /* the engine, and with it the device */
    const char *said = capture_end();
    ck_assert_int_eq(ended, ZERO_OK);
    ck_assert_msg(support_count(said, "\n") == 4, "%s", said);
    ck_assert_msg(strstr(said, "zero_comm_destroy while something still uses it (1 engine, 1 save, 1 checkpoint)"),
                  "%s", said);
    ck_assert_msg(strstr(said, "zero_device_destroy while something still uses it (1 engine)"), "%s", said);
    ck_assert_msg(strstr(said, "zero_device_destroy, once more, while"), "%s", said);
    ck_assert_msg(strstr(said, "zero_engine_destroy while something still uses it (1 save)"), "%s", said);
    ck_assert_uint_eq(zero_checkpoint_step(checkpoint), 1);
    zero_checkpoint_close(checkpoint); /* and now the communicator */
    zero_model_destroy(f.model);
    free(directory);
}
END_TEST

START_TEST(engines_may_be_destroyed_in_any_order)
{
    fixture_t f = fixture_create();
    zero_engine_t *second;
    MUST(zero_engine_create(f.comm, f.device, f.model, &f.config, &second));
    zero_engine_destroy(f.engine);
    MUST(zero_init_parameters(second));
    f.engine = second;
    train(&f);
    capture_begin();
    fixture_destroy(&f);
    ck_assert_str_eq(capture_end(), "");
}
END_TEST

/* ---- several ranks ---- */

static void run_case(int n_ranks, const char *name, support_output_t *output)
{
    int code = support_mpirun(output, LIMIT_S, n_ranks, "%s/tests/mpi/engine_cases %s", support_build(), name);
    ck_assert_msg(code == 0, "%s: exit code %d\n%s", name, code, output->err);
}

/* The innocent ranks return at once: the case takes no longer than one without an error. */
START_TEST(null_on_one_rank_is_an_error_on_the_others)
{
    support_output_t output;
    run_case(3, "null_on_one_rank", &output);
    ck_assert_msg(support_count(output.err, " is NULL\n") == 9, "%s", output.err);
    ck_assert_msg(support_count(output.err, "zero: rank 1: ") == 9, "%s", output.err);
    support_output_free(&output);
}
END_TEST

/* MPI is finalized with its last user: mpirun takes anything else for a failure. */
START_TEST(ranks_that_destroy_in_the_wrong_order_end_well)
{
    support_output_t output;
    run_case(2, "destroy_order", &output);
    for (int rank = 0; rank < 2; rank++) {
        char line[64];
        snprintf(line, sizeof line, "zero: rank %d: zero_comm_destroy while", rank);
        ck_assert_msg(support_count(output.err, line) == 1, "%s", output.err);
    }
    support_output_free(&output);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("misuse");
    TCase *one = tcase_create("one rank");
    tcase_set_timeout(one, 60);
    tcase_add_test(one, communicators_and_devices_refuse_null);
    tcase_add_test(one, declarations_and_plans_refuse_null);
    tcase_add_test(one, engines_refuse_null);
    tcase_add_test(one, a_hook_that_fails_ends_the_call);
    tcase_add_loop_test(one, a_failed_update_leaves_weights_that_nothing_uses, 0, 2);
    tcase_add_test(one, numbers_that_are_not_sound_are_not_set);
    tcase_add_test(one, settings_are_set_by_name_and_text);
    tcase_add_test(one, parameters_of_another_type_are_no_floats);
    tcase_add_test(one, an_array_that_the_optimizer_lacks_is_refused);
    tcase_add_test(one, checkpoints_refuse_null);
    tcase_add_test(one, calls_without_a_status_accept_null);
    tcase_add_test(one, unknown_ids_have_no_name_and_no_size);
    tcase_add_test(one, an_object_destroyed_before_its_users_is_kept_and_named);
    tcase_add_test(one, engines_may_be_destroyed_in_any_order);
    suite_add_tcase(s, one);
    TCase *several = tcase_create("several ranks");
    tcase_set_timeout(several, 130);
    tcase_add_test(several, null_on_one_rank_is_an_error_on_the_others);
    tcase_add_test(several, ranks_that_destroy_in_the_wrong_order_end_well);
    suite_add_tcase(s, several);
    return s;
}

int main(void)
{
    return support_main(suite());
}
