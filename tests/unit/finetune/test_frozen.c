/* test_frozen.c - frozen tensors: what they cost by formula, that everything else stays as it is without them, and that
 * training beside them has the same bits at every stage and on any number of ranks. The runs are
 * tests/mpi/frozen_cases, which checks weights against fp64 in plain C, and tests/mpi/frozen_fp8_cases; here their text
 * is compared. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/log_lines.h"
#include "tests/support/scratch.h"
#include "tests/support/support.h"
#include "zero/plan/layout.h"

/* ---- what they cost ---- */

#define N_UNITS 6
#define N_RANKS 4
#define TRAINED ((int64_t)1 << 14) /* elements of each unit: multiples of pages in every dtype, also when cut in 4 */
#define FROZEN ((int64_t)1 << 16)

static zero_model_t *declare(bool has_frozen)
{
    zero_model_t *model;
    zero_unit_t unit;
    zero_tensor_t tensor;
    ck_assert_int_eq(zero_model_create(&model), ZERO_OK);
    for (int u = 0; u < N_UNITS; u++) {
        char name[32];
        snprintf(name, sizeof name, "unit %d", u);
        ck_assert_int_eq(zero_model_add_unit(model, name, &unit), ZERO_OK);
        zero_tensor_desc_t desc = {.name = name, .n_dims = 1, .shape = {FROZEN}, .frozen = true, .fp8 = u % 2 == 0};
        if (has_frozen)
            ck_assert_int_eq(zero_model_add_tensor(model, unit, &desc, &tensor), ZERO_OK);
        snprintf(name, sizeof name, "trained %d", u);
        desc = (zero_tensor_desc_t){.name = name, .n_dims = 1, .shape = {TRAINED}, .fp8 = true};
        ck_assert_int_eq(zero_model_add_tensor(model, unit, &desc, &tensor), ZERO_OK);
    }
    return model;
}

typedef struct setting {
    int stage, group;
    bool on_gpu, offload, gather_fp8;
} setting_t;

static zero_config_t config_of(const setting_t *setting)
{
    zero_config_t config = zero_config_default();
    config.stage = setting->stage;
    config.shard_group = setting->group;
    config.offload = setting->offload;
    config.gather_fp8 = setting->gather_fp8;
    config.micro_steps = 2;
    return config;
}

static zero_memory_t plan_of(const setting_t *setting, bool has_frozen)
{
    zero_memory_t plan;
    zero_model_t *model = declare(has_frozen);
    const zero_config_t config = config_of(setting);
    ck_assert_int_eq(
        zero_plan(model, &config, setting->on_gpu ? ZERO_DEVICE_CUDA : ZERO_DEVICE_CPU, ZERO_COMM_AUTO, N_RANKS, &plan),
        ZERO_OK);
    zero_model_destroy(model);
    return plan;
}

static const setting_t SETTINGS[] = {
    {.stage = 0},
    {.stage = 1},
    {.stage = 2},
    {.stage = 3},
    {.stage = 3, .group = 2},
    {.stage = 1, .on_gpu = true, .offload = true},
    {.stage = 3, .on_gpu = true, .offload = true},
    {.stage = 3, .on_gpu = true, .gather_fp8 = true},
};
#define N_SETTINGS ((int)(sizeof SETTINGS / sizeof SETTINGS[0]))

/* In bf16 a frozen element takes 2 bytes, at stage 3 over the ranks of a group; and there it is in each of the two
 * unsharded buffers. Every other byte is that of the model without them, but for the table of segments, which has room
 * for every declared tensor. */
START_TEST(frozen_tensors_cost_their_weights_and_nothing_else)
{
    const setting_t *setting = &SETTINGS[_i];
    const zero_memory_t with = plan_of(setting, true), without = plan_of(setting, false);
    const uint64_t n = N_UNITS * (uint64_t)FROZEN;
    const uint64_t n_sharing = setting->stage < 3 ? 1 : setting->group ? (uint64_t)setting->group : N_RANKS;
    for (int c = 0; c < ZERO_MEMORY_N_CATEGORIES; c++) {
        uint64_t more = c == ZERO_MEMORY_PARAMETERS                                    ? 2 * n / n_sharing
                        : c == ZERO_MEMORY_UNSHARDED_PARAMETERS && setting->stage == 3 ? 2 * 2 * (uint64_t)FROZEN
                                                                                       : 0;
        ck_assert_msg(with.bytes[c] == without.bytes[c] + more, "%s: %llu bytes, not %llu + %llu",
                      zero_memory_name((zero_memory_category_t)c), (unsigned long long)with.bytes[c],
                      (unsigned long long)without.bytes[c], (unsigned long long)more);
    }
    ck_assert_uint_eq(with.pinned_bytes, without.pinned_bytes);
}
END_TEST

/* At stage 3 they are gathered with their unit: with prefetch 1 that is twice in each of the two micro-steps, less what
 * is resident, as in test_traffic.c. */
START_TEST(frozen_tensors_travel_only_when_their_unit_is_gathered)
{
    const setting_t *setting = &SETTINGS[_i];
    const zero_config_t config = config_of(setting);
    const int hosts[N_RANKS] = {0};
    zero_traffic_t traffic[2][N_RANKS];
    for (int has_frozen = 0; has_frozen < 2; has_frozen++) {
        zero_model_t *model = declare(has_frozen);
        ck_assert_int_eq(zero_plan_traffic(model, &config, setting->on_gpu ? ZERO_DEVICE_CUDA : ZERO_DEVICE_CPU,
                                           ZERO_COMM_AUTO, N_RANKS, hosts, traffic[has_frozen]),
                         ZERO_OK);
        zero_model_destroy(model);
    }
    const uint64_t n_gathers = setting->stage < 3 ? 0 : (2 * N_UNITS - 2) + (2 * N_UNITS - 4);
    const uint64_t n_sharing = setting->group ? (uint64_t)setting->group : N_RANKS;
    const uint64_t more = n_gathers * 2 * (uint64_t)FROZEN * (n_sharing - 1) / n_sharing;
    for (int rank = 0; rank < N_RANKS; rank++)
        ck_assert_uint_eq(traffic[1][rank].local_bytes, traffic[0][rank].local_bytes + more);
}
END_TEST

/* ---- layout ---- */

/* Marks the elements of a tensor, by owner; each must be free. */
static void mark(const zero_layout_t *layout, const zero_model_t *model, zero_tensor_t t, uint64_t shard_elems,
                 unsigned char *taken)
{
    uint64_t n_seen = 0;
    for (int rank = 0; rank < layout->world_size; rank++) {
        const uint64_t begin = (uint64_t)rank * shard_elems;
        const zero_span_t span = zero_layout_span(layout, model, t, begin, begin + shard_elems);
        for (uint64_t e = 0; e < span.n_elems; e++)
            ck_assert_int_eq(taken[span.flat_offset + e]++, 0);
        n_seen += span.n_elems;
    }
    ck_assert_uint_eq(n_seen, model->tensors[t].n_elems);
}

static zero_model_t *random_model(uint64_t *seed)
{
    zero_model_t *model;
    int n_tensors = 0;
    ck_assert_int_eq(zero_model_create(&model), ZERO_OK);
    for (int u = 0; u < 6; u++) {
        char name[32];
        zero_unit_t unit;
        zero_tensor_t tensor;
        snprintf(name, sizeof name, "unit %d", u);
        ck_assert_int_eq(zero_model_add_unit(model, name, &unit), ZERO_OK);
        bool frozen = false;
        for (int t = (int)(support_random(seed) % 5) + (u == 0); t > 0; t--) {
            zero_tensor_desc_t desc = {.name = name, .n_dims = 1, .shape = {1 + (int64_t)(support_random(seed) % 999)}};
            frozen = support_random(seed) % 2 == 0;
            desc.frozen = frozen;
            desc.fp8 = support_random(seed) % 3 == 0;
            snprintf(name, sizeof name, "tensor %d", n_tensors++);
            ck_assert_int_eq(zero_model_add_tensor(model, unit, &desc, &tensor), ZERO_OK);
        }
    }
    return model;
}

START_TEST(every_element_has_one_owner_in_the_flat_buffer_of_its_kind)
{
    uint64_t seed = 7;
    for (int i = 0; i < 200; i++) {
        zero_model_t *model = random_model(&seed);
        zero_layout_t layout;
        ck_assert_int_eq(zero_layout_create(model, 1 + i % 6, &layout), ZERO_OK);
        uint64_t flats = 0, shards = 0;
        for (int u = 0; u < model->n_units; u++) {
            const zero_unit_layout_t *unit = &layout.units[u];
            unsigned char *taken[2] = {calloc(unit->flat_elems + 1, 1), calloc(unit->frozen_flat_elems + 1, 1)};
            ck_assert_uint_eq(unit->frozen_flat_elems, unit->frozen_shard_elems * (uint64_t)layout.world_size);
            ck_assert_uint_eq(unit->frozen_shard_elems % ZERO_ALIGN_ELEMS, 0);
            ck_assert_uint_eq(unit->frozen_flat_offset, flats);
            ck_assert_uint_eq(unit->frozen_shard_offset, shards);
            ck_assert_uint_ge(layout.buffer_frozen_elems[unit->buffer_class], unit->frozen_flat_elems);
            ck_assert_uint_le(layout.buffer_frozen_elems[unit->buffer_class],
                              unit->frozen_flat_elems + unit->frozen_flat_elems / 16);
            flats += unit->frozen_flat_elems;
            shards += unit->frozen_shard_elems;
            for (int t = 0; t < model->n_tensors; t++) {
                const bool frozen = model->tensors[t].frozen;
                if (model->tensors[t].owner == u)
                    mark(&layout, model, t, frozen ? unit->frozen_shard_elems : unit->shard_elems, taken[frozen]);
                ck_assert(!frozen || layout.matrix_of[t] < 0);
            }
            free(taken[0]);
            free(taken[1]);
        }
        ck_assert_uint_eq(layout.total_frozen_flat_elems, flats);
        ck_assert_uint_eq(layout.total_frozen_shard_elems, shards);
        zero_layout_destroy(&layout);
        zero_model_destroy(model);
    }
}
END_TEST

START_TEST(packed_tensors_are_frozen_together)
{
    zero_model_t *model;
    zero_unit_t unit;
    zero_tensor_t tensor;
    zero_tensor_desc_t desc = {.name = "q", .n_dims = 1, .shape = {8}};
    listen_to_log();
    ck_assert_int_eq(zero_model_create(&model), ZERO_OK);
    ck_assert_int_eq(zero_model_add_unit(model, "unit", &unit), ZERO_OK);
    ck_assert_int_eq(zero_model_add_tensor(model, unit, &desc, &tensor), ZERO_OK);
    desc = (zero_tensor_desc_t){.name = "k", .n_dims = 1, .shape = {8}, .packed = true, .frozen = true};
    ck_assert_int_eq(zero_model_add_tensor(model, unit, &desc, &tensor), ZERO_ERROR_ARGUMENT);
    ck_assert_int_eq(n_lines, 1);
    ck_assert_str_eq(last_line, "tensor k is packed with q, but only one of them is frozen");
    zero_model_destroy(model);
}
END_TEST

/* ---- runs ---- */

#define LIMIT_S 60.0
#define N_AT_ONCE 2
#define N_CASES 12

static const struct {
    int n_ranks;
    const char *settings;
} CASES[N_CASES] = {{1, "stage=0"},         {1, "stage=3 check=1"},  {2, "stage=3"},          {2, "stage=1 comm=mpi"},
                    {3, "stage=0"},         {3, "stage=2"},          {3, "stage=3 comm=mpi"}, {4, "stage=3 group=2"},
                    {4, "stage=1 check=1"}, {4, "stage=2 comm=mpi"}, {5, "stage=0 comm=mpi"}, {5, "stage=3"}};

typedef struct run {
    int exit_code;
    support_output_t output;
} run_t;

START_TEST(training_beside_frozen_tensors_has_the_same_bits_at_every_stage_and_on_any_number_of_ranks)
{
    static const char *const dtypes[] = {"fp32", "bf16", "fp16"};
    run_t runs[N_CASES] = {0};
    scratch_open();
    (void)support_build(); /* found once, before the threads */
#pragma omp parallel for schedule(dynamic) num_threads(N_AT_ONCE)
    for (int i = 0; i < N_CASES; i++)
        if (!support_leaves_out(CASES[i].n_ranks) && (_i == 0 || i % 2 == 0))
            runs[i].exit_code = support_mpirun(&runs[i].output, LIMIT_S, CASES[i].n_ranks,
                                               "%s/tests/mpi/frozen_cases dtype=%s dir=%s/%d %s", support_build(),
                                               dtypes[_i], root, i, CASES[i].settings);
    ck_assert_msg(support_count(runs[0].output.out, "\n") == 3 + 8, "%s%s", runs[0].output.out, runs[0].output.err);
    for (int i = 0; i < N_CASES; i++) {
        if (runs[i].output.out)
            ck_assert_msg(runs[i].exit_code == 0 && strcmp(runs[i].output.out, runs[0].output.out) == 0,
                          "%s, %d ranks, %s: exit code %d\n%s%s instead of\n%s", dtypes[_i], CASES[i].n_ranks,
                          CASES[i].settings, runs[i].exit_code, runs[i].output.err, runs[i].output.out,
                          runs[0].output.out);
    }
    for (int i = 0; i < N_CASES; i++)
        support_output_free(&runs[i].output);
    scratch_close();
}
END_TEST

/* Takes the output over as the first, or expects the first one's text of it. */
static void expect_first_text(support_output_t *first, support_output_t *output, int n_ranks, const char *settings)
{
    if (!first->out) {
        *first = *output;
        return;
    }
    ck_assert_msg(strcmp(output->out, first->out) == 0, "%d ranks, %s:\n%s instead of\n%s", n_ranks, settings,
                  output->out, first->out);
    support_output_free(output);
}

/* Optimizers with one state array, or with blocks: what AdamW's cases check, saving and loading with other tensors
 * frozen included. */
START_TEST(other_optimizers_train_beside_frozen_tensors_too)
{
    static const char *const optimizers[] = {"sgd", "nesterov", "lion", "adamw8bit"}, *const dtypes[] = {"fp32",
                                                                                                         "bf16"};
    static const int cases[] = {0, 5, 7, 11};
    const char *optimizer = optimizers[_i / 2], *dtype = dtypes[_i % 2];
    support_output_t first = {0};
    scratch_open();
    for (int i = 0; i < 4; i++) {
        const int c = cases[i];
        support_output_t output;
        if (support_leaves_out(CASES[c].n_ranks))
            continue;
        const int exit_code = support_mpirun(&output, LIMIT_S, CASES[c].n_ranks,
                                             "%s/tests/mpi/frozen_cases optimizer=%s dtype=%s dir=%s/%d %s",
                                             support_build(), optimizer, dtype, root, c, CASES[c].settings);
        ck_assert_msg(exit_code == 0 && support_count(output.out, "\n") == 3 + 8, "%s, %s, %s: exit code %d\n%s%s",
                      optimizer, dtype, CASES[c].settings, exit_code, output.out, output.err);
        expect_first_text(&first, &output, CASES[c].n_ranks, CASES[c].settings);
    }
    support_output_free(&first);
    scratch_close();
}
END_TEST

/* Matrices held in fp8: checks of their own (tests/mpi/frozen_fp8_cases.c), one text. */
START_TEST(matrices_in_fp8_have_the_same_bits_at_every_stage_and_on_any_number_of_ranks)
{
    support_output_t first = {0};
    for (int n_ranks = 1; n_ranks <= 4; n_ranks++)
        for (int stage = n_ranks % 2; stage <= 3; stage += 2) {
            support_output_t output;
            char settings[32];
            if (support_leaves_out(n_ranks))
                continue;
            const int exit_code = support_mpirun(&output, LIMIT_S, n_ranks, "%s/tests/mpi/frozen_fp8_cases stage=%d",
                                                 support_build(), stage);
            ck_assert_msg(exit_code == 0 && support_count(output.out, "\n") == 3, "%d ranks, stage %d: %d\n%s%s",
                          n_ranks, stage, exit_code, output.out, output.err);
            snprintf(settings, sizeof settings, "stage=%d", stage);
            expect_first_text(&first, &output, n_ranks, settings);
        }
    support_output_free(&first);
}
END_TEST

static Suite *suite(void)
{
    Suite *suite = suite_create("frozen tensors");
    TCase *tests = tcase_create("frozen tensors");
    tcase_set_timeout(tests, 5 * LIMIT_S);
    tcase_add_loop_test(tests, frozen_tensors_cost_their_weights_and_nothing_else, 0, N_SETTINGS);
    tcase_add_loop_test(tests, frozen_tensors_travel_only_when_their_unit_is_gathered, 0, N_SETTINGS);
    tcase_add_test(tests, every_element_has_one_owner_in_the_flat_buffer_of_its_kind);
    tcase_add_test(tests, packed_tensors_are_frozen_together);
    tcase_add_loop_test(
        tests, training_beside_frozen_tensors_has_the_same_bits_at_every_stage_and_on_any_number_of_ranks, 0, 3);
    tcase_add_test(tests, matrices_in_fp8_have_the_same_bits_at_every_stage_and_on_any_number_of_ranks);
    tcase_add_loop_test(tests, other_optimizers_train_beside_frozen_tensors_too, 0, 8);
    suite_add_tcase(suite, tests);
    return suite;
}

int main(void)
{
    return support_main(suite());
}
