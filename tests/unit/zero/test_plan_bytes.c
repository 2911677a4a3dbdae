/* test_plan_bytes.c - claims about the plan of memory: bytes a rank at each stage, staging, offload, and what `auto`
 * chooses. Pure arithmetic, so checked over many random models. */
#include <stdio.h>

#include "tests/support/random_model.h"
#include "tests/support/support.h"
#include "zero/plan/layout.h"
#include "zero/plan/plan.h"

static const zero_plan_target_t GPU = {.on_gpu = true, .needs_staging = true};

/* Units of one matrix each. */
#define EVEN_ROWS 8192
#define EVEN_COLUMNS 512

static zero_model_t *even_model(int n_units)
{
    zero_model_t *model;
    zero_unit_t unit;
    zero_tensor_t tensor;
    ck_assert_int_eq(zero_model_create(&model), ZERO_OK);
    for (int u = 0; u < n_units; u++) {
        char name[32];
        snprintf(name, sizeof name, "u%d", u);
        ck_assert_int_eq(zero_model_add_unit(model, name, &unit), ZERO_OK);
        zero_tensor_desc_t desc = {.name = name, .n_dims = 2, .shape = {EVEN_ROWS, EVEN_COLUMNS}};
        ck_assert_int_eq(zero_model_add_tensor(model, unit, &desc, &tensor), ZERO_OK);
    }
    return model;
}

/* Bytes per parameter of the design's table, on a model so large that padding does not show. */
START_TEST(the_plan_is_the_table_of_stages)
{
    const int n_ranks = 8, n_units = 16;
    const double P = 16.0 * EVEN_ROWS * EVEN_COLUMNS;
    zero_model_t *model = even_model(n_units);
    /* parameters, gradients (fp32 sums and full), optimizer, in bytes a parameter; N = 8 */
    const double want[4][2][3] = {
        /* bf16                               fp32 */
        {{2, 2 + 4, 10}, {4, 4, 8}},
        {{2, 2 + 4 / 8.0, 10 / 8.0}, {4, 4, 8 / 8.0}},
        {{2, 4 / 8.0, 10 / 8.0}, {4, 4 / 8.0, 8 / 8.0}},
        {{2 / 8.0, 4 / 8.0, 10 / 8.0}, {4 / 8.0, 4 / 8.0, 8 / 8.0}},
    };
    for (int stage = 0; stage < 4; stage++)
        for (int fp32 = 0; fp32 < 2; fp32++) {
            zero_config_t config = zero_config_default();
            zero_memory_t plan;
            config.stage = stage;
            config.dtype = fp32 ? ZERO_FP32 : ZERO_BF16;
            ck_assert_int_eq(zero_plan(model, &config, ZERO_DEVICE_CPU, ZERO_COMM_AUTO, n_ranks, &plan), ZERO_OK);
            ck_assert_double_eq_tol((double)plan.bytes[ZERO_MEMORY_PARAMETERS] / P, want[stage][fp32][0], 1e-3);
            ck_assert_double_eq_tol((double)plan.bytes[ZERO_MEMORY_GRADIENTS] / P, want[stage][fp32][1], 1e-3);
            ck_assert_double_eq_tol((double)plan.bytes[ZERO_MEMORY_OPTIMIZER] / P, want[stage][fp32][2], 1e-3);
            /* Two buffers of one unit each, this one and the next, of 16 units. */
            double buffer = (fp32 ? 4.0 : 2.0) * P / n_units;
            ck_assert_double_eq_tol((double)plan.bytes[ZERO_MEMORY_UNSHARDED_PARAMETERS], stage == 3 ? 2 * buffer : 0,
                                    8192);
            ck_assert_double_eq_tol((double)plan.bytes[ZERO_MEMORY_UNSHARDED_GRADIENTS], stage >= 2 ? 2 * buffer : 0,
                                    8192);
        }
    zero_model_destroy(model);
}
END_TEST

/* Between GPUs slices are staged, one from each rank; none if the transport reduces them. */
START_TEST(slices_are_staged_unless_the_transport_reduces_them)
{
    uint64_t seed = 5;
    for (int i = 0; i < 100; i++) {
        zero_model_t *model = random_model(&seed);
        zero_config_t config = zero_config_default();
        zero_memory_t plans[2][2]; /* device, transport reduces */
        int n_ranks = 1 + (int)(support_random(&seed) % 5);
        const zero_device_type_t devices[] = {ZERO_DEVICE_CPU, ZERO_DEVICE_CUDA};
        config.stage = (int)(support_random(&seed) % 4);
        for (int d = 0; d < 2; d++)
            for (int adds = 0; adds < 2; adds++) {
                config.nccl_reduction = adds;
                ck_assert_int_eq(zero_plan(model, &config, devices[d], ZERO_COMM_AUTO, n_ranks, &plans[d][adds]),
                                 ZERO_OK);
            }
        ck_assert_mem_eq(&plans[0][0], &plans[0][1], sizeof plans[0][0]);
        uint64_t staged = plans[1][0].bytes[ZERO_MEMORY_COMMUNICATION];
        uint64_t added = plans[1][1].bytes[ZERO_MEMORY_COMMUNICATION];
        ck_assert_uint_eq(added, plans[0][0].bytes[ZERO_MEMORY_COMMUNICATION]);
        ck_assert(n_ranks == 1 ? staged == added : staged > added);
        zero_model_destroy(model);
    }
}
END_TEST

/* What must be held for an even model in bf16 with n_offloaded units' state on the host: bytes of state and buffers on
 * the device, units whose sums stay there, and pinned bytes. */
typedef struct offloaded {
    uint64_t optimizer, n_reductions, pinned;
} offloaded_t;

/* Sums that accumulate over micro-steps need buffers of their own (stage 1 reduces once per step, from fp32 gradients
 * whose slices are the sums); others take turns in two. */
static offloaded_t offloaded_by_hand(uint64_t n_units, uint64_t n_offloaded, bool take_turns,
                                     zero_offload_update_t update, uint64_t shard)
{
    uint64_t n_staged = n_offloaded < 4 ? n_offloaded : 4;
    uint64_t n_sent =
        take_turns && n_offloaded > 2 ? n_offloaded - 2 : 0; /* the last two sums of backward are still there */
    offloaded_t want = {.optimizer = 10 * shard * (n_units - n_offloaded),
                        .n_reductions =
                            take_turns ? n_units - n_offloaded + (n_offloaded < 2 ? n_offloaded : 2) : n_units};
    if (update == ZERO_OFFLOAD_UPDATE_HOST) { /* parameter, low half, m, v, gradient, and a page of scalars */
        want.pinned = n_offloaded ? 16 * shard * n_offloaded + 4096 : 0;
        return want;
    }
    want.pinned = 10 * shard * n_offloaded + 4 * shard * n_sent;
    want.optimizer += (n_sent > 0 ? 14 : 10) * shard * n_staged;
    return want;
}

/* For each offloaded parameter the device holds, over N, 10 bytes of state and, if a unit is reduced once or its sums
 * wait on the host, 4 of sums less. */
START_TEST(offload_frees_device_memory_to_the_byte)
{
    const int n_ranks = 8, n_units = 16;
    const uint64_t shard = EVEN_ROWS * EVEN_COLUMNS / 8;
    zero_model_t *model = even_model(n_units);
    for (int update = ZERO_OFFLOAD_UPDATE_AUTO; update <= ZERO_OFFLOAD_UPDATE_HOST; update++)
        for (int stage = 1; stage <= 3; stage++)
            for (int n_offloaded = 0; n_offloaded <= n_units; n_offloaded++)
                for (int micro_steps = 1; micro_steps <= 2; micro_steps++) {
                    zero_config_t config = zero_config_default();
                    zero_memory_t plan, whole;
                    config.stage = stage;
                    config.micro_steps = micro_steps;
                    ck_assert_int_eq(zero_plan(model, &config, ZERO_DEVICE_CUDA, ZERO_COMM_AUTO, n_ranks, &whole),
                                     ZERO_OK);
                    config.offload = true;
                    config.offload_ratio = (float)n_offloaded / (float)n_units;
                    config.offload_update = (zero_offload_update_t)update;
                    ck_assert_int_eq(zero_plan(model, &config, ZERO_DEVICE_CUDA, ZERO_COMM_AUTO, n_ranks, &plan),
                                     ZERO_OK);
                    offloaded_t want = offloaded_by_hand((uint64_t)n_units, (uint64_t)n_offloaded, micro_steps == 1,
                                                         config.offload_update, shard);
                    ck_assert_uint_eq(plan.bytes[ZERO_MEMORY_OPTIMIZER], want.optimizer);
                    ck_assert_uint_eq(whole.bytes[ZERO_MEMORY_GRADIENTS] - plan.bytes[ZERO_MEMORY_GRADIENTS],
                                      4 * shard * ((uint64_t)n_units - want.n_reductions));
                    ck_assert_uint_eq(plan.pinned_bytes, want.pinned);
                    /* Sums on the host: the device holds what it holds with one micro-step, the host all of them. */
                    config.offload_grads = ZERO_OFFLOAD_GRADS_HOST;
                    ck_assert_int_eq(zero_plan(model, &config, ZERO_DEVICE_CUDA, ZERO_COMM_AUTO, n_ranks, &plan),
                                     ZERO_OK);
                    want =
                        offloaded_by_hand((uint64_t)n_units, (uint64_t)n_offloaded, true, config.offload_update, shard);
                    if (micro_steps > 1 && config.offload_update != ZERO_OFFLOAD_UPDATE_HOST)
                        want.pinned = 14 * shard * (uint64_t)n_offloaded;
                    ck_assert_uint_eq(plan.bytes[ZERO_MEMORY_OPTIMIZER], want.optimizer);
                    ck_assert_uint_eq(whole.bytes[ZERO_MEMORY_GRADIENTS] - plan.bytes[ZERO_MEMORY_GRADIENTS],
                                      4 * shard * ((uint64_t)n_units - want.n_reductions));
                    ck_assert_uint_eq(plan.pinned_bytes, want.pinned);
                }
    zero_model_destroy(model);
}
END_TEST

/* Every offloaded element is staged once, in whole chunks, through buffers that together take no more than was allowed.
 */
START_TEST(offloaded_state_is_staged_in_chunks_that_fit_into_the_buffers)
{
    uint64_t seed = 13;
    for (int i = 0; i < 200; i++) {
        zero_model_t *model = random_model(&seed);
        zero_layout_t layout;
        zero_arena_plan_t plan;
        zero_config_t config = zero_config_default();
        uint64_t n_chunks = 0;
        config.offload = true;
        config.offload_ratio = (float)support_uniform(&seed);
        config.stage = 1 + i % 3;
        config.micro_steps = 1 + i % 2;
        config.dtype = (zero_dtype_t)(i / 2 % 3);
        config.offload_buffer_bytes = support_random(&seed) % (1 << (4 + i % 20));
        ck_assert_int_eq(zero_layout_create(model, 1 + i % 5, &layout), ZERO_OK);
        ck_assert_int_eq(zero_arena_plan_create(model, &layout, &config, GPU, &plan), ZERO_OK);
        const zero_state_staging_plan_t *staging = &plan.state_staging;
        for (zero_unit_t u = plan.host.first; u < layout.n_units; u++)
            for (uint64_t at = 0; at < layout.units[u].shard_elems; at += staging->chunk_elems)
                n_chunks++;
        ck_assert_uint_eq((uint64_t)staging->n_chunks, n_chunks);
        ck_assert_int_le(staging->n_buffers, staging->n_chunks);
        ck_assert(staging->chunk_elems % 4 == 0); /* vectors of four in every buffer */
        uint64_t n_elems = (uint64_t)staging->n_buffers * staging->chunk_elems;
        uint64_t least = 128 * 4 * 16; /* one chunk in four buffers: there is nothing smaller */
        ck_assert_uint_le(n_elems * (8 + zero_master_lo_size(config.dtype)),
                          config.offload_buffer_bytes > least ? config.offload_buffer_bytes : least);
        zero_arena_plan_destroy(&plan);
        zero_layout_destroy(&layout);
        zero_model_destroy(model);
    }
}
END_TEST

static uint64_t bytes_with(const zero_model_t *model, zero_config_t config, float ratio, int n_ranks,
                           zero_unit_t *first)
{
    zero_layout_t layout;
    zero_arena_plan_t plan;
    config.offload_ratio = ratio;
    ck_assert_int_eq(zero_layout_create(model, n_ranks, &layout), ZERO_OK);
    ck_assert_int_eq(zero_arena_plan_create(model, &layout, &config, GPU, &plan), ZERO_OK);
    uint64_t total = zero_memory_total(&plan.memory);
    *first = plan.host.first;
    zero_arena_plan_destroy(&plan);
    zero_layout_destroy(&layout);
    return total;
}

/* Beside every ratio in steps of 1/64: what fits with the ratio found hosts no more than any of those that fit. */
START_TEST(auto_offloads_the_least_that_fits)
{
    uint64_t seed = 11;
    for (int i = 0; i < 60; i++) {
        zero_model_t *model = random_model(&seed);
        zero_layout_t layout;
        zero_unit_t most, found;
        zero_config_t config = zero_config_default();
        int n_ranks = 1 + i % 5;
        float ratio;
        config.offload = true;
        config.stage = 1 + i % 3;
        config.offload_update = i % 2 ? ZERO_OFFLOAD_UPDATE_DEVICE : ZERO_OFFLOAD_UPDATE_HOST;
        config.offload_buffer_bytes = (size_t)1 << (12 + i % 10);
        config.user_bytes = 1000;
        uint64_t least = bytes_with(model, config, 1.0f, n_ranks, &most);
        uint64_t all = bytes_with(model, config, 0.0f, n_ranks, &most);
        uint64_t available =
            config.user_bytes + least + (uint64_t)((double)(all - least) * (1.1 * support_uniform(&seed)));
        ck_assert_int_eq(zero_layout_create(model, n_ranks, &layout), ZERO_OK);
        ck_assert_int_eq(zero_plan_smallest_offload(model, &layout, &config, GPU, available, &ratio), ZERO_OK);
        ck_assert_uint_le(bytes_with(model, config, ratio, n_ranks, &found) + config.user_bytes, available);
        for (int step = 0; step <= 64; step++)
            if (bytes_with(model, config, (float)step / 64.0f, n_ranks, &most) + config.user_bytes <= available)
                ck_assert_msg(found >= most, "units from %d on with %g, but %d/64 fits from %d on", found,
                              (double)ratio, step, most);
        ck_assert_int_eq(zero_plan_smallest_offload(model, &layout, &config, GPU, 0, &ratio), ZERO_OK);
        ck_assert_uint_eq(bytes_with(model, config, ratio, n_ranks, &found), least);
        zero_layout_destroy(&layout);
        zero_model_destroy(model);
    }
}
END_TEST

/* Small enough for staging, but never less than a chunk of the norm, to whose bounds all chunks are aligned. */
/* Every keep is tried: what is found fits, and one more does not. */
START_TEST(auto_keeps_the_most_that_fits)
{
    uint64_t seed = 13;
    for (int i = 0; i < 100; i++) {
        zero_model_t *model = random_model(&seed);
        zero_config_t config = zero_config_default();
        uint64_t totals[12] = {0};
        const int n_units = model->n_units, n_ranks = 1 + i % 4;
        config.stage = i % 5 == 0 ? 2 : 3;
        config.user_bytes = 1000;
        for (config.keep = 0; config.keep <= n_units; config.keep++) {
            zero_memory_t plan;
            ck_assert_int_eq(zero_plan(model, &config, ZERO_DEVICE_CUDA, ZERO_COMM_AUTO, n_ranks, &plan), ZERO_OK);
            totals[config.keep] = zero_memory_total(&plan) + config.user_bytes;
        }
        uint64_t available = totals[support_random(&seed) % (uint64_t)(n_units + 1)] - i % 2;
        zero_layout_t layout;
        int keep, want = 0;
        config.keep = ZERO_KEEP_AUTO;
        ck_assert_int_eq(zero_layout_create(model, n_ranks, &layout), ZERO_OK);
        ck_assert_int_eq(zero_plan_largest_keep(model, &layout, &config, GPU, available, &keep), ZERO_OK);
        for (int tried = 1; tried <= n_units && config.stage == 3 && n_ranks > 1; tried++)
            want = totals[tried] <= available ? tried : want;
        ck_assert_int_eq(keep, want);
        zero_memory_t plan;
        ck_assert_int_eq(zero_plan(model, &config, ZERO_DEVICE_CUDA, ZERO_COMM_AUTO, n_ranks, &plan), ZERO_OK);
        ck_assert_uint_eq(zero_memory_total(&plan) + config.user_bytes, totals[0]);
        zero_layout_destroy(&layout);
        zero_model_destroy(model);
    }
}
END_TEST

START_TEST(chunks_are_aligned_to_the_norms_and_fit_into_staging)
{
    uint64_t seed = 7;
    for (int i = 0; i < 200; i++) {
        zero_model_t *model;
        zero_unit_t unit;
        zero_tensor_t tensor;
        zero_layout_t layout;
        zero_arena_plan_t plan;
        const int n_ranks = 2 + (int)(support_random(&seed) % 7);
        const zero_plan_target_t target = {.on_gpu = i % 2 == 0, .needs_staging = true};
        zero_config_t config = zero_config_default();
        config.staging_bytes = (size_t)1 << (support_random(&seed) % 31);
        config.stage = (int)(support_random(&seed) % 4);
        int64_t n_elems = INT64_C(1) << (support_random(&seed) % 31);
        ck_assert_int_eq(zero_model_create(&model), ZERO_OK);
        ck_assert_int_eq(zero_model_add_unit(model, "unit", &unit), ZERO_OK);
        zero_tensor_desc_t desc = {.name = "tensor", .n_dims = 1, .shape = {n_elems}};
        ck_assert_int_eq(zero_model_add_tensor(model, unit, &desc, &tensor), ZERO_OK);
        ck_assert_int_eq(zero_layout_create(model, n_ranks, &layout), ZERO_OK);
        ck_assert_int_eq(zero_arena_plan_create(model, &layout, &config, target, &plan), ZERO_OK);
        ck_assert_int_eq(plan.n_staging, target.on_gpu ? 2 : 1);
        ck_assert_uint_eq(plan.staging_bytes, plan.chunk_elems * (uint64_t)n_ranks * 2);
        uint64_t chunk_bytes = (uint64_t)n_ranks * ZERO_SUM_CHUNK * 2;
        if (plan.chunk_elems < layout.units[0].shard_elems) {
            ck_assert_uint_eq(plan.chunk_elems % ZERO_SUM_CHUNK, 0);
            ck_assert(plan.staging_bytes <= config.staging_bytes / 2 || plan.chunk_elems == ZERO_SUM_CHUNK);
            /* not smaller than it must be: half of staging, or copies of 64 MiB together */
            ck_assert(plan.staging_bytes + chunk_bytes > config.staging_bytes / 2 ||
                      plan.staging_bytes + chunk_bytes > UINT64_C(64) << 20);
        } else {
            ck_assert_uint_eq(plan.chunk_elems, layout.units[0].shard_elems);
        }
        zero_arena_plan_destroy(&plan);
        zero_layout_destroy(&layout);
        zero_model_destroy(model);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("plan");
    TCase *tc = tcase_create("arithmetic");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, the_plan_is_the_table_of_stages);
    tcase_add_test(tc, slices_are_staged_unless_the_transport_reduces_them);
    tcase_add_test(tc, offload_frees_device_memory_to_the_byte);
    tcase_add_test(tc, offloaded_state_is_staged_in_chunks_that_fit_into_the_buffers);
    tcase_add_test(tc, auto_offloads_the_least_that_fits);
    tcase_add_test(tc, auto_keeps_the_most_that_fits);
    tcase_add_test(tc, chunks_are_aligned_to_the_norms_and_fit_into_staging);
    suite_add_tcase(s, tc);
    return s;
}

int main(void)
{
    return support_main(suite());
}
