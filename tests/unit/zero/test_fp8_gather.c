/* test_fp8_gather.c - parameters that are gathered in fp8: where bytes are and when they move changes, and no bit of
 * the result. The programs (tests/mpi/engine_cases, tests/mpi/stream_cases) compute with the bytes that were gathered
 * (fp8=fp8) or with those that tests/support/fp64/fp8_reference.h makes of gathered bf16 parameters (fp8=bf16). */
#include "tests/support/stderr_capture.h"
#include "tests/support/stream_runs.h"
#include "zero.h"
#include "zero/plan/layout.h"

/* ---- training ---- */

static char *train(int n_ranks, const char *settings)
{
    support_output_t output;
    int code =
        support_mpirun(&output, LIMIT_S, n_ranks, "%s/tests/mpi/engine_cases train %s", support_build(), settings);
    ck_assert_msg(code == 0, "%d ranks, %s: exit code %d\n%s", n_ranks, settings, code, output.err);
    char *text = strdup(output.out);
    support_output_free(&output);
    return text;
}

/* Every variant gives the text of `settings` with bf16 gathers. NULL ends them. */
static void expect_text_of_bf16(int n_ranks, const char *settings, const char *const *variants)
{
    char all[256];
    snprintf(all, sizeof all, "%s fp8=bf16", settings);
    char *want = train(n_ranks, all);
    ck_assert(strlen(want) > 100);
    for (; *variants; variants++) {
        snprintf(all, sizeof all, "%s fp8=fp8 %s", settings, *variants);
        char *got = train(n_ranks, all);
        ck_assert_msg(strcmp(got, want) == 0, "%d ranks, %s gives\n%sinstead of\n%s", n_ranks, all, got, want);
        free(got);
    }
    free(want);
}

static const int rank_counts[] = {1, 2, 3, 5};

START_TEST(gathers_in_fp8_have_the_bits_of_bf16_at_every_stage)
{
    if (support_leaves_out(rank_counts[_i]))
        return;
    expect_text_of_bf16(rank_counts[_i], "steps=4 nan_at=2",
                        (const char *const[]){"stage=3 poison=1", "stage=2", "stage=1", "stage=0", NULL});
}
END_TEST

START_TEST(gathers_in_fp8_have_the_bits_of_bf16_however_they_travel)
{
    expect_text_of_bf16(
        3, "steps=3 fill=1 micro_steps=2 every=1",
        (const char *const[]){"prefetch=0", "prefetch=1000", "comm=mpi", "comm=mpi stage=1", "comm=mpi stage=0", NULL});
}
END_TEST

/* Each group gathers within itself, from parts that came in fp8 from the other groups. */
START_TEST(groups_that_gather_in_fp8_have_the_bits_of_bf16)
{
    static const int n_ranks[] = {4, 6};
    static const char *const variants[][6] = {{"group=2 poison=1", "group=1", "group=2 prefetch=1000", NULL},
                                              {"group=2 comm=mpi", "group=3", "group=1 comm=mpi", "group=6", NULL}};
    if (support_leaves_out(n_ranks[_i]))
        return;
    expect_text_of_bf16(n_ranks[_i], _i == 0 ? "steps=4 nan_at=2" : "steps=3 micro_steps=2 every=1", variants[_i]);
}
END_TEST

static uint64_t gathered_bytes(const char *settings)
{
    char *text = train(3, settings);
    const char *at = strstr(text, "gathered ");
    ck_assert(at);
    uint64_t n_bytes = strtoull(at + strlen("gathered "), NULL, 10);
    free(text);
    return n_bytes;
}

/* Beside the matrices there are tensors in bf16, which are no small part of the toy's blocks. */
START_TEST(gathers_in_fp8_carry_half_the_bytes)
{
    for (int stage = 1; stage <= 3; stage += 2) {
        char settings[2][64];
        for (int fp8 = 0; fp8 < 2; fp8++)
            snprintf(settings[fp8], sizeof settings[fp8], "steps=1 rows=4000 traffic=1 stage=%d fp8=%s", stage,
                     fp8 ? "fp8" : "bf16");
        double share = (double)gathered_bytes(settings[1]) / (double)gathered_bytes(settings[0]);
        ck_assert_msg(share > 0.49 && share < 0.53, "stage %d: %g", stage, share);
    }
}
END_TEST

/* ---- streams ---- */

START_TEST(streams_of_any_speed_give_the_bits_of_one_order)
{
    static const char *const settings[] = {"steps=8 fp8=bf16", "steps=4 fp8=bf16 micro_steps=2 every=1 nan_at=3"};
    static const char *const variants[] = {"fp8=fp8 stage=3 seed=2 prefetch=3 delay_us=800",
                                           "fp8=fp8 stage=3 seed=7 slow_gathers=20 delay_us=200 trace=1",
                                           "fp8=fp8 stage=2 seed=4",
                                           "fp8=fp8 stage=1 seed=5",
                                           "fp8=fp8 stage=0 seed=6",
                                           "fp8=fp8 stage=3 overlap=0",
                                           "fp8=bf16 stage=3",
                                           NULL};
    expect_plain_text(_i == 0 ? 3 : 2, settings[_i], variants);
}
END_TEST

START_TEST(groups_with_streams_of_any_speed_give_the_bits_of_one_order)
{
    static const char *const variants[] = {"fp8=fp8 stage=3 group=2 seed=2 prefetch=3 delay_us=800",
                                           "fp8=fp8 stage=3 group=1 seed=3",
                                           "fp8=fp8 stage=3 group=2 seed=7 slow_gathers=20 delay_us=200",
                                           "fp8=fp8 stage=3 group=2 seed=5 offload=100 update=device",
                                           "fp8=fp8 stage=3 group=2 seed=6 offload=50 update=host",
                                           NULL};
    if (support_leaves_out(4))
        return;
    expect_plain_text(4, "steps=6 fp8=bf16", variants);
}
END_TEST

START_TEST(state_that_is_set_while_steps_are_under_way_gets_bytes_of_its_own)
{
    expect_plain_text(3, "asks=1 steps=6 fp8=bf16",
                      (const char *const[]){"fp8=fp8 stage=3 seed=2", "fp8=fp8 stage=0 seed=3", NULL});
}
END_TEST

START_TEST(offloaded_units_are_cast_when_they_arrive)
{
    static const char *const variants[] = {"fp8=fp8 offload=100 stage=3 update=device seed=2 delay_us=800",
                                           "fp8=fp8 offload=60 stage=2 update=device seed=3",
                                           "fp8=fp8 offload=100 stage=3 update=host threads=2",
                                           "fp8=fp8 offload=60 stage=1 update=host seed=4", NULL};
    expect_plain_text(3, "steps=6 fp8=bf16", variants);
    expect_plain_text(1, "steps=4 fp8=bf16",
                      (const char *const[]){"fp8=fp8 offload=60 stage=3", "fp8=fp8 stage=1", NULL});
}
END_TEST

/* A checkpoint has the weights alone: a run continues with other gathers, and at another stage. */
START_TEST(checkpoints_do_not_depend_on_gathers)
{
    static const char *const runs[][2] = {{"fp8=bf16 device=cpu", "fp8=bf16 device=cpu"},
                                          {"fp8=fp8 stage=3", "fp8=bf16 stage=1"},
                                          {"fp8=bf16 stage=0", "fp8=fp8 stage=2 offload=60"}};
    char *scratch = support_scratch(), *want = NULL;
    for (int i = 0; i < 3; i++) {
        char settings[1024];
        snprintf(settings, sizeof settings, "%s steps=3 save=%s/%d / %s steps=3 load=%s/%d", runs[i][0], scratch, i,
                 runs[i][1], scratch, i);
        char *text = text_of(3, settings);
        ck_assert_msg(text && (!want || strcmp(text, want) == 0), "%s gives\n%sinstead of\n%s", settings, text, want);
        if (want)
            free(text);
        else
            want = text;
    }
    free(scratch);
    free(want);
}
END_TEST

static const struct {
    async_fault_t fault;
    const char *settings;
} FAULTS[] = {{ASYNC_COMPUTE_AHEAD_OF_GATHER, "dtype=bf16 fp8=fp8 stage=3"},
              {ASYNC_GATHER_AHEAD_OF_COMPUTE, "dtype=bf16 fp8=fp8 stage=1"},
              {ASYNC_NO_FENCE, "dtype=bf16 fp8=fp8 stage=3"}};
#define N_FAULTS (int)(sizeof FAULTS / sizeof FAULTS[0])

START_TEST(a_missing_wait_is_found)
{
    if (support_is_left_to_plain_build())
        return;
    expect_fault_shows(FAULTS[_i].fault, FAULTS[_i].settings, "dtype=bf16 fp8=bf16");
}
END_TEST

/* ---- declarations, plans, wrong use ---- */

typedef struct session {
    zero_comm_t *comm;
    zero_device_t *device;
    zero_model_t *model;
    zero_engine_t *engine;
    zero_unit_t unit;
    zero_tensor_t bias, q, k, scale;
} session_t;

static zero_tensor_t add(session_t *s, const char *name, int64_t rows, int64_t columns, bool fp8, bool packed)
{
    zero_tensor_t tensor;
    zero_tensor_desc_t desc = {
        .name = name, .n_dims = 2, .shape = {rows, columns}, .init = ZERO_INIT_ONES, .packed = packed, .fp8 = fp8};
    ck_assert_int_eq(zero_model_add_tensor(s->model, s->unit, &desc, &tensor), ZERO_OK);
    return tensor;
}

static session_t declare(int64_t width)
{
    session_t s = {0};
    ck_assert_int_eq(zero_model_create(&s.model), ZERO_OK);
    ck_assert_int_eq(zero_model_add_unit(s.model, "block", &s.unit), ZERO_OK);
    s.q = add(&s, "q", width, width, true, false);
    s.k = add(&s, "k", width, width, true, true);
    s.bias = add(&s, "bias", 1, width, false, false);
    s.scale = add(&s, "scale", 1, 1, false, true);
    return s;
}

/* So that they are in one rank's shard, and a tensor's place does not depend on the number of ranks. */
START_TEST(other_tensors_come_first_and_in_the_shard_of_rank_0)
{
    for (int n_ranks = 1; n_ranks <= 40; n_ranks += 3)
        for (int64_t width = 1; width < 400; width += 37) {
            session_t s = declare(width);
            zero_layout_t layout;
            ck_assert_int_eq(zero_layout_create(s.model, n_ranks, &layout), ZERO_OK);
            const zero_unit_layout_t *unit = &layout.units[s.unit];
            uint64_t n = (uint64_t)width, others = (n + 1 + 127) / 128 * 128;
            ck_assert_uint_eq(layout.tensor_offsets[s.bias], 0);
            ck_assert_uint_eq(layout.tensor_offsets[s.scale], n);
            ck_assert_uint_eq(layout.tensor_offsets[s.q], others);
            ck_assert_uint_eq(layout.tensor_offsets[s.k], others + n * n);
            ck_assert(unit->others_elems == others && unit->shard_elems >= others && unit->shard_elems % 128 == 0);
            ck_assert_uint_ge(unit->flat_elems, others + 2 * n * n);
            ck_assert_int_eq(layout.n_matrices, 1);
            ck_assert(layout.matrices[0].begin == others && layout.matrices[0].end == others + 2 * n * n);
            zero_layout_destroy(&layout);
            zero_model_destroy(s.model);
        }
}
END_TEST

/* Bytes an element, on N = 8 ranks: bf16 parameters where master weights need them, and a byte. */
START_TEST(the_plan_has_a_byte_for_what_is_gathered)
{
    const double want[] = {2 + 1, 2 / 8.0 + 1, 2 / 8.0 + 1, (2 + 1) / 8.0};
    session_t s = declare(2048);
    const double n = 2.0 * 2048 * 2048;
    for (int stage = 0; stage < 4; stage++) {
        zero_config_t config = zero_config_default();
        zero_memory_t in_fp8, in_bf16;
        config.stage = stage;
        ck_assert_int_eq(zero_plan(s.model, &config, ZERO_DEVICE_CPU, ZERO_COMM_AUTO, 8, &in_bf16), ZERO_OK);
        config.gather_fp8 = true;
        ck_assert_int_eq(zero_plan(s.model, &config, ZERO_DEVICE_CPU, ZERO_COMM_AUTO, 8, &in_fp8), ZERO_OK);
        ck_assert_double_eq_tol((double)in_fp8.bytes[ZERO_MEMORY_PARAMETERS] / n, want[stage], 1e-2);
        double buffers = (double)in_fp8.bytes[ZERO_MEMORY_UNSHARDED_PARAMETERS] / n;
        ck_assert_double_eq_tol(buffers, stage == 3 ? 1.0 : 0.0, 1e-2);
        for (int c = ZERO_MEMORY_GRADIENTS; c <= ZERO_MEMORY_OPTIMIZER; c++)
            ck_assert_uint_eq(in_fp8.bytes[c], in_bf16.bytes[c]);
    }
    zero_model_destroy(s.model);
}
END_TEST

/* In groups of K = 2 a rank has its own N-th in bf16, and a byte of its group's half. The other tensors, a 4,096th, are
 * not seen here. */
START_TEST(the_plan_of_a_group_has_a_byte_for_its_part)
{
    session_t s = declare(2048);
    const double n = 2.0 * 2048 * 2048;
    zero_config_t config = zero_config_default();
    zero_memory_t plan;
    config.stage = 3;
    config.gather_fp8 = true;
    for (int group = 1; group <= 8; group *= 2) {
        config.shard_group = group;
        ck_assert_int_eq(zero_plan(s.model, &config, ZERO_DEVICE_CPU, ZERO_COMM_AUTO, 8, &plan), ZERO_OK);
        ck_assert_double_eq_tol((double)plan.bytes[ZERO_MEMORY_PARAMETERS] / n, 2 / 8.0 + 1.0 / group, 1e-2);
        ck_assert_double_eq_tol((double)plan.bytes[ZERO_MEMORY_UNSHARDED_PARAMETERS] / n, 1.0, 1e-2);
    }
    zero_model_destroy(s.model);
}
END_TEST

/* Between hosts parts in fp8 take half of the bytes, and so do gathers within the host. */
START_TEST(groups_exchange_half_the_bytes)
{
    const int hosts[] = {0, 0, 1, 1};
    session_t s = declare(2048);
    const double n = 2.0 * 2048 * 2048;
    zero_config_t config = zero_config_default();
    zero_traffic_t bf16[4], fp8[4];
    config.stage = 3;
    config.shard_group = 2;
    ck_assert_int_eq(zero_plan_traffic(s.model, &config, ZERO_DEVICE_CPU, ZERO_COMM_AUTO, 4, hosts, bf16), ZERO_OK);
    config.gather_fp8 = true;
    ck_assert_int_eq(zero_plan_traffic(s.model, &config, ZERO_DEVICE_CPU, ZERO_COMM_AUTO, 4, hosts, fp8), ZERO_OK);
    for (int rank = 0; rank < 4; rank++) { /* the unit is gathered once, and stays for backward */
        ck_assert_double_eq_tol((double)(bf16[rank].received_bytes - fp8[rank].received_bytes) / n, 1.0 / 4, 1e-2);
        ck_assert_double_eq_tol((double)(bf16[rank].local_bytes - fp8[rank].local_bytes) / n, 1.0 / 2, 1e-2);
    }
    zero_model_destroy(s.model);
}
END_TEST

static session_t open_session(bool gather_fp8)
{
    session_t s = declare(16);
    zero_config_t config = zero_config_default();
    config.gather_fp8 = gather_fp8;
    ck_assert_int_eq(zero_comm_create(ZERO_COMM_AUTO, &s.comm), ZERO_OK);
    ck_assert_int_eq(zero_device_create(ZERO_DEVICE_CPU, s.comm, &s.device), ZERO_OK);
    ck_assert_int_eq(zero_engine_create(s.comm, s.device, s.model, &config, &s.engine), ZERO_OK);
    ck_assert_int_eq(zero_init_parameters(s.engine), ZERO_OK);
    return s;
}

static void close_session(session_t *s)
{
    zero_engine_destroy(s->engine);
    zero_device_destroy(s->device);
    zero_comm_destroy(s->comm);
    zero_model_destroy(s->model);
}

START_TEST(each_tensor_is_found_in_the_type_in_which_it_is_gathered)
{
    bool gather_fp8 = _i == 1;
    session_t s = open_session(gather_fp8);
    ck_assert_int_eq(zero_begin(s.engine, ZERO_PASS_EVAL, NULL), ZERO_OK);
    ck_assert_ptr_null(zero_param_fp8(s.engine, s.q).data); /* not acquired */
    ck_assert_int_eq(zero_acquire(s.engine, s.unit, NULL), ZERO_OK);
    zero_fp8_param_t q = zero_param_fp8(s.engine, s.q), k = zero_param_fp8(s.engine, s.k);
    ck_assert_ptr_null(zero_param_fp8(s.engine, s.bias).data);
    ck_assert_ptr_null(zero_param_fp8(s.engine, -1).data);
    ck_assert_ptr_null(zero_param_fp8(s.engine, 99).data);
    ck_assert_ptr_nonnull(zero_param(s.engine, s.bias));
    capture_begin();
    bool is_in_bf16 = zero_param(s.engine, s.k) != NULL;
    const char *said = capture_end();
    ck_assert(is_in_bf16 == !gather_fp8);
    if (gather_fp8) {
        ck_assert_msg(strstr(said, "zero_param(k): it is gathered in fp8: zero_param_fp8 has it"), "%s", said);
        /* A matrix of ones has scale 256, and 256 is 1.0 * 2^8: exponent 15, mantissa 0. */
        ck_assert(q.scales == k.scales && q.scales->scale == 256.0f && q.scales->inverse == 1.0f / 256.0f);
        ck_assert(k.data == q.data + 256 && q.data[0] == 15 << 3 && k.data[255] == 15 << 3);
    } else {
        ck_assert_str_eq(said, "");
        ck_assert(!q.data && !k.data && !q.scales);
    }
    ck_assert_int_eq(zero_release(s.engine, s.unit, NULL), ZERO_OK);
    ck_assert_ptr_null(zero_param_fp8(s.engine, s.q).data);
    close_session(&s);
}
END_TEST

START_TEST(what_cannot_be_gathered_in_fp8_is_refused)
{
    session_t s = declare(16);
    zero_tensor_t tensor;
    zero_memory_t plan;
    zero_config_t config = zero_config_default();
    zero_tensor_desc_t desc = {.name = "v", .n_dims = 1, .shape = {3}, .packed = true, .fp8 = true};
    capture_begin();
    zero_status_t packed = zero_model_add_tensor(s.model, s.unit, &desc, &tensor);
    config.gather_fp8 = true;
    config.dtype = ZERO_FP16;
    zero_status_t in_fp16 = zero_plan(s.model, &config, ZERO_DEVICE_CPU, ZERO_COMM_AUTO, 2, &plan);
    const char *said = capture_end();
    ck_assert_int_eq(packed, ZERO_ERROR_ARGUMENT);
    ck_assert_msg(strstr(said, "tensor v is packed with scale, but only one of them is declared with fp8"), "%s", said);
    ck_assert_int_eq(in_fp16, ZERO_ERROR_USAGE);
    ck_assert_msg(strstr(said, "gather_fp8 with dtype fp16: it needs bf16"), "%s", said);
    zero_model_destroy(s.model);

    /* Room for the others on every rank. */
    desc = (zero_tensor_desc_t){.name = "large", .n_dims = 1, .shape = {INT64_C(1) << 54}};
    s = declare(16);
    ck_assert_int_eq(zero_model_add_tensor(s.model, s.unit, &desc, &tensor), ZERO_OK);
    config.dtype = ZERO_BF16;
    ck_assert_int_eq(zero_plan(s.model, &config, ZERO_DEVICE_CPU, ZERO_COMM_AUTO, 2, &plan), ZERO_OK);
    ck_assert_int_eq(zero_plan(s.model, &config, ZERO_DEVICE_CPU, ZERO_COMM_AUTO, 5, &plan), ZERO_ERROR_OVERFLOW);
    zero_model_destroy(s.model);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("fp8_gather");
    TCase *several = tcase_create("several ranks"), *lengthy = support_long_case(s, 300);
    tcase_set_timeout(several, 300);
    SUPPORT_ADD_LOOP(several, lengthy, gathers_in_fp8_have_the_bits_of_bf16_at_every_stage, 2,
                     (int)(sizeof rank_counts / sizeof rank_counts[0]));
    tcase_add_test(several, gathers_in_fp8_have_the_bits_of_bf16_however_they_travel);
    SUPPORT_ADD_LOOP(several, lengthy, groups_that_gather_in_fp8_have_the_bits_of_bf16, 1, 2);
    tcase_add_test(several, gathers_in_fp8_carry_half_the_bytes);
    SUPPORT_ADD_LOOP(several, lengthy, streams_of_any_speed_give_the_bits_of_one_order, 1, 2);
    tcase_add_test(lengthy, groups_with_streams_of_any_speed_give_the_bits_of_one_order);
    tcase_add_test(several, state_that_is_set_while_steps_are_under_way_gets_bytes_of_its_own);
    tcase_add_test(several, offloaded_units_are_cast_when_they_arrive);
    tcase_add_test(several, checkpoints_do_not_depend_on_gathers);
    tcase_add_loop_test(several, a_missing_wait_is_found, 0, 1);
    tcase_add_loop_test(lengthy, a_missing_wait_is_found, 1, N_FAULTS);
    suite_add_tcase(s, several);
    TCase *one = tcase_create("one rank");
    tcase_set_timeout(one, 60);
    tcase_add_test(one, other_tensors_come_first_and_in_the_shard_of_rank_0);
    tcase_add_test(one, the_plan_has_a_byte_for_what_is_gathered);
    tcase_add_test(one, the_plan_of_a_group_has_a_byte_for_its_part);
    tcase_add_test(one, groups_exchange_half_the_bytes);
    tcase_add_loop_test(one, each_tensor_is_found_in_the_type_in_which_it_is_gathered, 0, 2);
    tcase_add_test(one, what_cannot_be_gathered_in_fp8_is_refused);
    suite_add_tcase(s, one);
    return s;
}

int main(void)
{
    leave_out_checks();
    return support_main(suite());
}
