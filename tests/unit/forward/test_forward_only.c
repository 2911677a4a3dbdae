/* test_forward_only.c - an engine that is forward_only: it takes what the plan says, which is parameters alone, gives
 * back the weights it was given, and refuses what needs gradients or moments.
 */
#include <stdio.h>
#include <string.h>

#include "tests/support/gpu_like_cpu.h"
#include "tests/support/session.h"
#include "tests/support/support.h"

#define N_ELEMS 24

static zero_status_t fill(void *user, const zero_chunk_t *chunk)
{
    (void)user;
    ck_assert_ptr_null(chunk->m);
    for (size_t i = 0; i < chunk->n_elems; i++)
        chunk->master[i] = 0.5f * (float)(chunk->first + i) - 3.0f; /* exact in bf16 and fp16 */
    return ZERO_OK;
}

static zero_status_t visit(void *user, const zero_chunk_t *chunk)
{
    (void)user;
    (void)chunk;
    return ZERO_OK;
}

static zero_model_t *declare(zero_tensor_t *tensor)
{
    zero_model_t *model;
    zero_unit_t unit;
    must(zero_model_create(&model));
    must(zero_model_add_unit(model, "unit", &unit));
    must(zero_model_add_tensor(model, unit, &(zero_tensor_desc_t){.name = "weight", .n_dims = 1, .shape = {N_ELEMS}},
                               tensor));
    return model;
}

static float element(const void *data, zero_dtype_t dtype, int i)
{
    if (dtype == ZERO_FP32)
        return ((const float *)data)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)data)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void expect_refusals(zero_engine_t *engine, zero_tensor_t tensor)
{
    float whole[N_ELEMS];
    zero_save_t *save = NULL;
    char *directory = support_scratch();
    ck_assert_int_eq(zero_begin(engine, ZERO_PASS_TRAIN, NULL), ZERO_ERROR_ORDER);
    ck_assert_int_eq(zero_get_state(engine, visit, NULL), ZERO_ERROR_ORDER);
    ck_assert_int_eq(zero_set_state(engine, true, fill, NULL), ZERO_ERROR_ORDER);
    ck_assert_int_eq(zero_get_tensor(engine, tensor, ZERO_ARRAY_WEIGHT, 0, whole), ZERO_ERROR_ORDER);
    ck_assert_int_eq(zero_set_tensor(engine, tensor, ZERO_ARRAY_WEIGHT, 0, whole), ZERO_ERROR_ORDER);
    ck_assert_int_eq(zero_save_begin(engine, directory, &(zero_save_options_t){0}, &save), ZERO_ERROR_ORDER);
    ck_assert_ptr_null(save);
    free(directory);
}

/* Loop test: stages 0 to 3, in fp32 and in bf16. */
START_TEST(it_has_parameters_alone)
{
    zero_config_t config = zero_config_default();
    zero_comm_t *comm;
    zero_device_t *device;
    zero_engine_t *engine;
    zero_tensor_t tensor;
    zero_memory_t plan;
    zero_model_t *model = declare(&tensor);
    config.stage = _i / 2;
    config.dtype = _i % 2 ? ZERO_BF16 : ZERO_FP32;
    config.forward_only = true;
    must(zero_comm_create(ZERO_COMM_AUTO, &comm));
    must(zero_device_create(ZERO_DEVICE_CPU, comm, &device));
    must(zero_plan(model, &config, ZERO_DEVICE_CPU, ZERO_COMM_AUTO, 1, &plan));
    must(zero_engine_create(comm, device, model, &config, &engine));
    zero_memory_t held = zero_engine_memory(engine);
    ck_assert_mem_eq(&held, &plan, sizeof held);
    ck_assert_uint_eq(held.bytes[ZERO_MEMORY_GRADIENTS], 0);
    ck_assert_uint_eq(held.bytes[ZERO_MEMORY_UNSHARDED_GRADIENTS], 0);
    ck_assert_uint_eq(held.bytes[ZERO_MEMORY_OPTIMIZER], 0);

    must(zero_set_state(engine, false, fill, NULL));
    must(zero_begin(engine, ZERO_PASS_EVAL, NULL));
    must(zero_acquire(engine, 0, NULL));
    for (int i = 0; i < N_ELEMS; i++)
        ck_assert_double_eq((double)element(zero_param(engine, tensor), config.dtype, i), 0.5 * i - 3.0);
    must(zero_release(engine, 0, NULL));
    expect_refusals(engine, tensor);
    zero_engine_destroy(engine);
    zero_device_destroy(device);
    zero_comm_destroy(comm);
    zero_model_destroy(model);
}
END_TEST

#define N_UNITS 5

/* Units of one trained and, in every second, one frozen tensor. */
static zero_model_t *declare_several(zero_tensor_t tensors[2 * N_UNITS], int *n_tensors)
{
    zero_model_t *model;
    *n_tensors = 0;
    must(zero_model_create(&model));
    for (int u = 0; u < N_UNITS; u++) {
        zero_unit_t unit;
        char name[32];
        snprintf(name, sizeof name, "unit %d", u);
        must(zero_model_add_unit(model, name, &unit));
        for (int frozen = 0; frozen <= u % 2; frozen++) {
            snprintf(name, sizeof name, "%d.%d", u, frozen);
            must(zero_model_add_tensor(
                model, unit,
                &(zero_tensor_desc_t){.name = name, .n_dims = 1, .shape = {N_ELEMS}, .frozen = frozen != 0},
                &tensors[(*n_tensors)++]));
        }
    }
    return model;
}

/* Loop test: all parameters in host memory, half of them, and as few as fit, which is none. The weights come back from
 * there in every pass. */
START_TEST(parameters_in_host_memory_are_those_that_were_set)
{
    static const float shares[] = {1.0f, 0.5f, ZERO_OFFLOAD_AUTO};
    zero_config_t config = zero_config_default();
    zero_comm_t *comm;
    zero_engine_t *engine;
    zero_tensor_t tensors[2 * N_UNITS];
    zero_memory_t plan;
    int n_tensors;
    zero_model_t *model = declare_several(tensors, &n_tensors);
    config.dtype = _i % 2 ? ZERO_BF16 : ZERO_FP32;
    config.forward_only = true;
    config.offload_params = shares[_i / 2];
    must(zero_comm_create(ZERO_COMM_AUTO, &comm));
    zero_device_t *device = open_gpu_like_cpu(comm);
    must(zero_plan(model, &config, ZERO_DEVICE_CUDA, ZERO_COMM_AUTO, 1, &plan));
    must(zero_engine_create(comm, device, model, &config, &engine));
    zero_memory_t held = zero_engine_memory(engine);
    if (config.offload_params >= 0.0f)
        ck_assert_mem_eq(&held, &plan, sizeof held);
    ck_assert_int_eq(held.pinned_bytes > 0, config.offload_params > 0.0f);
    must(zero_set_state(engine, false, fill, NULL));
    for (int pass = 0; pass < 2; pass++) {
        int t = 0;
        must(zero_begin(engine, ZERO_PASS_EVAL, NULL));
        for (zero_unit_t u = 0; u < N_UNITS; u++) {
            must(zero_acquire(engine, u, NULL));
            for (int of_unit = 0; of_unit <= u % 2; of_unit++, t++)
                for (int i = 0; i < N_ELEMS; i++)
                    ck_assert_double_eq((double)element(zero_param(engine, tensors[t]), config.dtype, i),
                                        0.5 * i - 3.0);
            must(zero_release(engine, u, NULL));
        }
    }
    zero_engine_destroy(engine);
    zero_device_destroy(device);
    zero_comm_destroy(comm);
    zero_model_destroy(model);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("forward_only");
    TCase *c = tcase_create("engine");
    tcase_set_timeout(c, 20);
    tcase_add_loop_test(c, it_has_parameters_alone, 0, 8);
    tcase_add_loop_test(c, parameters_in_host_memory_are_those_that_were_set, 0, 6);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
