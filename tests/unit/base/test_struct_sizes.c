/* test_struct_sizes.c - programs compiled with another zero.h. Their zero_config_t is shorter or longer than the
 * library's: nothing is read or written beyond it, what it lacks has its default, and what the library does not know in
 * it must be 0. The other structs have room, which must be 0 on the way in and is 0 on the way out. Each struct lies in
 * memory of its own size, so that valgrind and sanitizers find a byte too many, as the bytes behind it do here.
 * tests/project/test_abi.sh does it with programs.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/stderr_capture.h"
#include "tests/support/support.h"
#include "zero.h"

#define MUST(call) ck_assert_int_eq(call, ZERO_OK)

enum {
    FIRST = offsetof(zero_config_t, staging_bytes), /* the shortest that is read */
    KNOWN = offsetof(zero_config_t, reserved),
    FULL = sizeof(zero_config_t),
    MOST = 4096,
    SEAL = 64, /* bytes behind a struct that must stay as they were */
    N_PARAMS = 3 << 20
};

/* Memory whose size the compiler does not know: it would warn of structs that are longer. */
static void *allocate(size_t n_bytes)
{
    volatile size_t size = n_bytes;
    void *memory = malloc(size);
    ck_assert_ptr_nonnull(memory);
    return memory;
}

/* Memory of n_bytes, all 0xA5, and a seal behind them. */
static void *sealed(size_t n_bytes)
{
    return memset(allocate(n_bytes + SEAL), 0xA5, n_bytes + SEAL);
}

static void expect_seal(const void *memory, size_t n_bytes)
{
    for (int i = 0; i < SEAL; i++)
        ck_assert_msg(((const unsigned char *)memory)[n_bytes + (size_t)i] == 0xA5, "byte %d behind %zu is written", i,
                      n_bytes);
}

static bool are_all(const void *bytes, size_t n_bytes, unsigned char value)
{
    for (size_t i = 0; i < n_bytes; i++)
        if (((const unsigned char *)bytes)[i] != value)
            return false;
    return true;
}

/* Expects a status, and one line with all of the fragments; NULL ends them. */
#define REFUSED(call, status, ...)                                                                                     \
    do {                                                                                                               \
        capture_begin();                                                                                               \
        zero_status_t refused_status = (call);                                                                         \
        const char *refused_said = capture_end();                                                                      \
        const char *const refused_says[] = {__VA_ARGS__, NULL};                                                        \
        ck_assert_msg(refused_status == (status), "%s: %s", #call, zero_status_name(refused_status));                  \
        for (int says_at = 0; refused_says[says_at]; says_at++)                                                        \
            ck_assert_msg(strstr(refused_said, refused_says[says_at]) != NULL, "%s said %s", #call, refused_said);     \
        ck_assert_msg(strchr(refused_said, '\n') == refused_said + strlen(refused_said) - 1, "%s", refused_said);      \
    } while (0)

/* ---- a model, and all calls that read a configuration ---- */

typedef struct fixture {
    zero_comm_t *comm;
    zero_device_t *device;
    zero_model_t *model;
    zero_unit_t unit;
    zero_tensor_t tensor;
} fixture_t;

static fixture_t fixture_create(int64_t n_params)
{
    fixture_t f;
    const zero_tensor_desc_t desc = {.name = "w", .n_dims = 1, .shape = {n_params}, .init = ZERO_INIT_ONES};
    MUST(zero_comm_create(ZERO_COMM_AUTO, &f.comm));
    MUST(zero_device_create(ZERO_DEVICE_CPU, f.comm, &f.device));
    MUST(zero_model_create(&f.model));
    MUST(zero_model_add_unit(f.model, "a", &f.unit));
    MUST(zero_model_add_tensor(f.model, f.unit, &desc, &f.tensor));
    return f;
}

static void fixture_destroy(fixture_t *f)
{
    zero_model_destroy(f->model);
    zero_device_destroy(f->device);
    zero_comm_destroy(f->comm);
}

static const zero_solve_t LIMITS = {.stage = true,
                                    .device_bytes = UINT64_MAX,
                                    .pinned_bytes = UINT64_MAX,
                                    .local_rate = 1e9,
                                    .network_rate = 1e9,
                                    .pcie_rate = 1e9};

static zero_status_t plan_for_gpus(const fixture_t *f, const zero_config_t *config, zero_memory_t *plan)
{
    return zero_plan(f->model, config, ZERO_DEVICE_CUDA, ZERO_COMM_AUTO, 4, plan);
}

/* Expects every call that reads a configuration to refuse it alike, and to change nothing. */
static void expect_all_refuse(const fixture_t *f, zero_config_t *config, zero_status_t status, const char *says,
                              const char *says_too)
{
    static const int hosts[4] = {0};
    zero_memory_t plan;
    zero_traffic_t traffic[4];
    zero_solution_t solution;
    uint64_t n_bytes = 5;
    zero_engine_t *engine = NULL;
    memset(&plan, 0xA5, sizeof plan);
    memset(traffic, 0xA5, sizeof traffic);
    memset(&solution, 0xA5, sizeof solution);
    REFUSED(plan_for_gpus(f, config, &plan), status, "zero_plan:", says, says_too);
    REFUSED(zero_plan_traffic(f->model, config, ZERO_DEVICE_CUDA, ZERO_COMM_AUTO, 4, hosts, traffic), status,
            "zero_plan_traffic:", says, says_too);
    REFUSED(zero_solve(f->model, config, ZERO_DEVICE_CUDA, ZERO_COMM_AUTO, 4, &LIMITS, &solution), status,
            "zero_solve:", says, says_too);
    REFUSED(zero_checkpoint_bytes(f->model, config, &n_bytes), status, "zero_checkpoint_bytes:", says, says_too);
    REFUSED(zero_engine_create(f->comm, f->device, f->model, config, &engine), status, "zero_engine_create:", says,
            says_too);
    REFUSED(zero_config_set(config, "stage", "1"), status, "zero_config_set:", says, says_too);
    ck_assert(are_all(&plan, sizeof plan, 0xA5) && are_all(traffic, sizeof traffic, 0xA5));
    ck_assert(are_all(&solution, sizeof solution, 0xA5) && n_bytes == 5 && !engine);
}

/* ---- zero_config_t ---- */

START_TEST(defaults_fill_the_callers_struct_and_no_more)
{
    const zero_config_t all = zero_config_default();
    ck_assert_uint_eq(all.struct_size, FULL);
    ck_assert(are_all(all.reserved, sizeof all.reserved, 0));
    for (size_t size = FIRST; size <= MOST; size += 8) {
        zero_config_t *config = sealed(size);
        const size_t n_known = size < FULL ? size : FULL;
        MUST(zero_config_init(config, size));
        expect_seal(config, size);
        ck_assert_uint_eq(config->struct_size, size);
        ck_assert_int_eq(config->stage, 3);
        ck_assert(config->offload_ram == 0.5f);
        ck_assert(memcmp((const char *)config + 8, (const char *)&all + 8, n_known - 8) == 0);
        ck_assert(are_all((const char *)config + n_known, size - n_known, 0));
        free(config);
    }
}
END_TEST

START_TEST(a_size_that_never_was_is_refused_everywhere)
{
    /* 0x100000003: what stood there before struct_size did, stage 3 and bf16 */
    static const size_t sizes[] = {0,        1,        8,        FIRST - 8, FIRST + 4,  FULL - 1,
                                   FULL + 1, FULL + 4, MOST + 8, SIZE_MAX,  0x100000003};
    fixture_t f = fixture_create(N_PARAMS);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char says[64], has[64];
        zero_config_t config = zero_config_default(), before;
        snprintf(says, sizeof says, "struct_size is %zu, and no zero.h has such a zero_config_t", sizes[i]);
        snprintf(has, sizeof has, "has %zu bytes): begin with zero_config_default()", (size_t)FULL);
        config.struct_size = sizes[i];
        expect_all_refuse(&f, &config, ZERO_ERROR_ARGUMENT, says, has);
        memcpy(&before, &config, sizeof config);
        REFUSED(zero_config_init(&config, sizes[i]), ZERO_ERROR_ARGUMENT, "zero_config_init:", says, has);
        ck_assert(memcmp(&before, &config, sizeof config) == 0);
    }
    fixture_destroy(&f);
}
END_TEST

START_TEST(an_older_struct_has_the_defaults_of_what_it_lacks)
{
    fixture_t f = fixture_create(N_PARAMS);
    zero_config_t full = zero_config_default();
    zero_memory_t plan, of_older, less_staging;
    uint64_t n_bytes, of_all;
    full.stage = 1;
    full.dtype = ZERO_FP32;
    MUST(plan_for_gpus(&f, &full, &plan));
    MUST(zero_checkpoint_bytes(f.model, &full, &of_all));
    zero_config_t other = full;
    other.staging_bytes = 4096;
    MUST(plan_for_gpus(&f, &other, &less_staging));
    ck_assert(memcmp(&plan, &less_staging, sizeof plan) != 0); /* so that the default can be told */

    for (size_t size = FIRST; size < FULL; size += 8) {
        zero_config_t *older = allocate(size); /* nothing is behind */
        MUST(zero_config_init(older, size));
        older->stage = 1;
        older->dtype = ZERO_FP32;
        MUST(plan_for_gpus(&f, older, &of_older));
        ck_assert(memcmp(&plan, &of_older, sizeof plan) == 0);
        MUST(zero_checkpoint_bytes(f.model, older, &n_bytes));
        ck_assert_uint_eq(n_bytes, of_all);
        zero_engine_t *engine;
        MUST(zero_engine_create(f.comm, f.device, f.model, older, &engine));
        zero_engine_destroy(engine);
        free(older);
    }
    fixture_destroy(&f);
}
END_TEST

START_TEST(a_solution_is_as_large_as_its_configuration)
{
    fixture_t f = fixture_create(N_PARAMS);
    const zero_config_t full = zero_config_default();
    zero_solution_t best;
    MUST(zero_solve(f.model, &full, ZERO_DEVICE_CUDA, ZERO_COMM_AUTO, 4, &LIMITS, &best));
    ck_assert(best.fits && best.config.struct_size == FULL && best.config.stage < 3);
    for (size_t size = FIRST; size <= FULL + 64; size += 8) {
        const size_t before = offsetof(zero_solution_t, config), n_known = size < FULL ? size : FULL;
        zero_config_t *config = sealed(size);
        zero_solution_t *found = sealed(before + size);
        MUST(zero_config_init(config, size));
        MUST(zero_solve(f.model, config, ZERO_DEVICE_CUDA, ZERO_COMM_AUTO, 4, &LIMITS, found));
        expect_seal(found, before + size);
        ck_assert(found->fits && found->transfer_s == best.transfer_s);
        ck_assert(memcmp(&found->memory, &best.memory, sizeof best.memory) == 0);
        ck_assert(are_all(found->reserved, sizeof best.reserved, 0) && found->config.struct_size == size);
        ck_assert(memcmp((const char *)&found->config + 8, (const char *)&best.config + 8, n_known - 8) == 0);
        ck_assert(are_all((const char *)&found->config + n_known, size - n_known, 0));
        free(found);
        free(config);
    }
    fixture_destroy(&f);
}
END_TEST

START_TEST(a_newer_struct_may_set_what_this_library_knows)
{
    fixture_t f = fixture_create(N_PARAMS);
    const size_t size = FULL + 24;
    const zero_config_t full = zero_config_default();
    zero_config_t *newer = sealed(size);
    zero_memory_t plan, of_newer;
    char both[128];
    MUST(plan_for_gpus(&f, &full, &plan));
    MUST(zero_config_init(newer, size));
    MUST(plan_for_gpus(&f, newer, &of_newer));
    ck_assert(memcmp(&plan, &of_newer, sizeof plan) == 0);
    snprintf(both, sizeof both, "the program's zero_config_t has %zu bytes, that of libzero %s has %zu,", size,
             zero_version(), (size_t)FULL);
    for (size_t i = KNOWN; i < size; i++) { /* the room in it as well */
        ((unsigned char *)newer)[i] = 1;
        expect_all_refuse(&f, newer, ZERO_ERROR_UNSUPPORTED, both, "is not 0");
        ((unsigned char *)newer)[i] = 0;
    }
    MUST(plan_for_gpus(&f, newer, &of_newer));
    free(newer);
    fixture_destroy(&f);
}
END_TEST

START_TEST(a_setting_that_the_callers_struct_lacks_is_refused)
{
    const size_t size = offsetof(zero_config_t, user_bytes);
    zero_config_t *older = sealed(size);
    MUST(zero_config_init(older, size));
    MUST(zero_config_set(older, "staging_bytes", "4096"));
    ck_assert_uint_eq(older->staging_bytes, 4096);
    REFUSED(zero_config_set(older, "user_bytes", "5"), ZERO_ERROR_ARGUMENT,
            "zero_config_set: the program was compiled with a zero.h that has no user_bytes: compile it again");
    REFUSED(zero_config_set(older, "check", "true"), ZERO_ERROR_ARGUMENT, "has no check");
    expect_seal(older, size);
    free(older);
}
END_TEST

/* ---- room in other structs ---- */

static zero_status_t update_nothing(void *user, const zero_own_update_t *update, zero_stream_t stream)
{
    (void)user, (void)update, (void)stream;
    return ZERO_OK;
}

START_TEST(room_that_is_not_0_is_refused)
{
    fixture_t f = fixture_create(5);
    zero_config_t config = zero_config_default();
    zero_engine_t *engine, *other;
    zero_tensor_desc_t desc = {.name = "v", .n_dims = 1, .shape = {5}};
    zero_tensor_t tensor;
    for (size_t i = 0; i < sizeof desc.reserved; i++) {
        desc.reserved[i] = 1;
        REFUSED(zero_model_add_tensor(f.model, f.unit, &desc, &tensor), ZERO_ERROR_UNSUPPORTED,
                "zero_model_add_tensor: desc->reserved is not 0: begin with a struct of zeros");
        desc.reserved[i] = 0;
    }
    ck_assert_int_eq(zero_model_n_tensors(f.model), 1);
    zero_hooks_t hooks = {.updated = update_nothing, .reserved = {[31] = 1}};
    config.hooks = &hooks;
    REFUSED(zero_engine_create(f.comm, f.device, f.model, &config, &other), ZERO_ERROR_UNSUPPORTED,
            "hooks->reserved is not 0");
    config.hooks = NULL;
    zero_own_optimizer_t own = {.name = "mine", .n_arrays = 1, .update = update_nothing, .reserved = {1}};
    config.optimizer = ZERO_OPTIMIZER_OWN;
    config.own_optimizer = &own;
    REFUSED(zero_engine_create(f.comm, f.device, f.model, &config, &other), ZERO_ERROR_UNSUPPORTED,
            "own_optimizer->reserved is not 0");
    config = zero_config_default();
    zero_solve_t limits = LIMITS;
    zero_solution_t solution;
    limits.reserved[31] = 1;
    REFUSED(zero_solve(f.model, &config, ZERO_DEVICE_CUDA, ZERO_COMM_AUTO, 4, &limits, &solution),
            ZERO_ERROR_UNSUPPORTED, "zero_solve: limits->reserved is not 0");

    MUST(zero_engine_create(f.comm, f.device, f.model, &config, &engine));
    MUST(zero_init_parameters(engine));
    zero_group_t group;
    MUST(zero_get_group(engine, f.tensor, &group));
    group.reserved[39] = 1;
    group.lr_scale = 0.5f;
    REFUSED(zero_set_group(engine, f.tensor, &group), ZERO_ERROR_UNSUPPORTED,
            "zero_set_group: group->reserved is not 0");
    MUST(zero_get_group(engine, f.tensor, &group));
    ck_assert(group.lr_scale == 1.0f);
    char *directory = support_scratch();
    zero_save_options_t options = {.reserved = {[35] = 1}};
    zero_save_t *save;
    REFUSED(zero_save_begin(engine, directory, &options, &save), ZERO_ERROR_UNSUPPORTED,
            "zero_save_begin: options->reserved is not 0");
    free(directory);
    zero_engine_destroy(engine);
    fixture_destroy(&f);
}
END_TEST

static void train(zero_engine_t *engine, const fixture_t *f)
{
    MUST(zero_begin(engine, ZERO_PASS_TRAIN, NULL));
    MUST(zero_acquire(engine, f->unit, NULL));
    MUST(zero_release(engine, f->unit, NULL));
    MUST(zero_acquire(engine, f->unit, NULL));
    memset(zero_grad(engine, f->tensor).data, 0, 5 * sizeof(float));
    MUST(zero_grad_ready(engine, f->unit, NULL));
    MUST(zero_step(engine, 0.1f, NULL, NULL));
}

/* Sets a struct to other bytes, and expects its room to be 0 after the call. */
#define ROOM_IS_0(of, call)                                                                                            \
    do {                                                                                                               \
        memset(&(of), 0xA5, sizeof(of));                                                                               \
        MUST(call);                                                                                                    \
        ck_assert_msg(are_all((of).reserved, sizeof(of).reserved, 0), "%s", #call);                                    \
    } while (0)

START_TEST(room_in_what_the_library_returns_is_0)
{
    static const int hosts[1] = {0};
    fixture_t f = fixture_create(5);
    zero_config_t config = zero_config_default();
    zero_engine_t *engine;
    zero_memory_t memory;
    zero_traffic_t traffic;
    zero_device_usage_t usage;
    zero_group_t group;
    zero_step_result_t result;
    zero_partial_t partial;
    zero_save_t *save;
    zero_checkpoint_t *checkpoint;
    config.dtype = ZERO_FP32;
    ROOM_IS_0(memory, zero_plan(f.model, &config, ZERO_DEVICE_CPU, ZERO_COMM_AUTO, 1, &memory));
    ck_assert(are_all(memory.bytes + ZERO_MEMORY_N_CATEGORIES,
                      sizeof memory.bytes - ZERO_MEMORY_N_CATEGORIES * sizeof memory.bytes[0], 0));
    ROOM_IS_0(traffic, zero_plan_traffic(f.model, &config, ZERO_DEVICE_CPU, ZERO_COMM_AUTO, 1, hosts, &traffic));
    ROOM_IS_0(usage, zero_device_find_usage(f.device, &usage));
    MUST(zero_engine_create(f.comm, f.device, f.model, &config, &engine));
    MUST(zero_init_parameters(engine));
    ROOM_IS_0(group, zero_get_group(engine, f.tensor, &group));
    train(engine, &f);
    ROOM_IS_0(result, zero_step_wait(engine, &result));
    const zero_stats_t stats = zero_engine_stats(engine);
    ck_assert(are_all(stats.reserved, sizeof stats.reserved, 0));
    memory = zero_engine_memory(engine);
    ck_assert(are_all(memory.reserved, sizeof memory.reserved, 0));

    char *directory = support_scratch();
    const zero_save_options_t options = {0};
    MUST(zero_save_begin(engine, directory, &options, &save));
    MUST(zero_save_end(save));
    zero_engine_destroy(engine);
    MUST(zero_engine_create(f.comm, f.device, f.model, &config, &engine));
    MUST(zero_init_parameters(engine));
    MUST(zero_checkpoint_open(f.comm, directory, &checkpoint));
    ROOM_IS_0(partial, zero_load_partial(engine, checkpoint, &partial));
    ROOM_IS_0(partial, zero_load_weights_partial(engine, zero_checkpoint_path(checkpoint), &partial));
    zero_checkpoint_close(checkpoint);
    zero_engine_destroy(engine);
    free(directory);
    fixture_destroy(&f);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("struct sizes");
    TCase *config = tcase_create("zero_config_t");
    tcase_set_timeout(config, 60);
    tcase_add_test(config, defaults_fill_the_callers_struct_and_no_more);
    tcase_add_test(config, a_size_that_never_was_is_refused_everywhere);
    tcase_add_test(config, an_older_struct_has_the_defaults_of_what_it_lacks);
    tcase_add_test(config, a_solution_is_as_large_as_its_configuration);
    tcase_add_test(config, a_newer_struct_may_set_what_this_library_knows);
    tcase_add_test(config, a_setting_that_the_callers_struct_lacks_is_refused);
    suite_add_tcase(s, config);
    TCase *room = tcase_create("room");
    tcase_set_timeout(room, 60);
    tcase_add_test(room, room_that_is_not_0_is_refused);
    tcase_add_test(room, room_in_what_the_library_returns_is_0);
    suite_add_tcase(s, room);
    return s;
}

int main(void)
{
    return support_main(suite());
}
