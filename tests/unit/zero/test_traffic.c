/* test_traffic.c - zero_plan_traffic against formulas: what ranks receive from their own host and from others at every
 * stage, with groups, micro-steps, and hosts of different sizes. That engines exchange as much is shown by
 * test_memory.c (their counters) and tests/hosts/run (the network's). */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "comm/routes.h"
#include "tests/support/support.h"
#include "zero.h"

#define N_UNITS 8
#define N_RANKS 4
#define UNIT_ELEMS ((uint64_t)1 << 18) /* no padding for 4 ranks */
#define P ((double)(N_UNITS * UNIT_ELEMS))
/* All ranks' contributions to a step (norm, loss): a few dozen bytes each. */
#define CONTRIBUTIONS 1024.0 /* and thirds are rounded down */

static zero_model_t *model;

static void declare_units(int n_units)
{
    zero_unit_t unit;
    zero_tensor_t tensor;
    ck_assert_int_eq(zero_model_create(&model), ZERO_OK);
    for (int u = 0; u < n_units; u++) {
        char name[32];
        snprintf(name, sizeof name, "u%d", u);
        zero_tensor_desc_t desc = {.name = name, .n_dims = 1, .shape = {(int64_t)UNIT_ELEMS}};
        ck_assert_int_eq(zero_model_add_unit(model, name, &unit), ZERO_OK);
        ck_assert_int_eq(zero_model_add_tensor(model, unit, &desc, &tensor), ZERO_OK);
    }
}

static void declare(void)
{
    declare_units(N_UNITS);
}

static void destroy(void)
{
    zero_model_destroy(model);
}

static zero_config_t config_of(int stage, int micro_steps)
{
    zero_config_t config = zero_config_default();
    config.stage = stage;
    config.micro_steps = micro_steps;
    config.dtype = ZERO_BF16;
    return config;
}

static void plan(const zero_config_t *config, zero_device_type_t device, const int hosts[N_RANKS],
                 zero_traffic_t traffic[N_RANKS])
{
    ck_assert_int_eq(zero_plan_traffic(model, config, device, ZERO_COMM_AUTO, N_RANKS, hosts, traffic), ZERO_OK);
}

static void expect(const char *what, uint64_t bytes, double expected)
{
    ck_assert_msg((double)bytes >= expected - 4.0 && (double)bytes <= expected + CONTRIBUTIONS,
                  "%s: %llu bytes, not %.0f to %.0f", what, (unsigned long long)bytes, expected,
                  expected + CONTRIBUTIONS);
}

/* What a rank receives of parameters and gradients, together, in bytes; m micro-steps.
 * Gathers: stage 0 once, of fp32 gradients; stages 1-2 once; stage 3 two in a micro-step for each unit, less those that
 * find it resident. There are two buffers: at the turn to backward the last two units are in them, and in the next
 * micro-step the first two. */
static double gathers(int stage, double m)
{
    const double n_gathers = (2 * N_UNITS - 2) + (m - 1) * (2 * N_UNITS - 4);
    return stage == 0 ? 4 * P : stage < 3 ? 2 * P : 2 * (double)UNIT_ELEMS * n_gathers;
}

static double received(int stage, double m)
{
    return (gathers(stage, m) + 2 * m * P) * (N_RANKS - 1) / N_RANKS;
}

START_TEST(one_host_exchanges_what_the_formula_says)
{
    const int hosts[N_RANKS] = {7, 7, 7, 7};
    zero_traffic_t traffic[N_RANKS];
    for (int stage = 0; stage < 4; stage++)
        for (int m = 1; m <= 3; m++) {
            zero_config_t config = config_of(stage, m);
            for (int rank = 0; rank < N_RANKS; rank++) {
                plan(&config, ZERO_DEVICE_CPU, hosts, traffic);
                expect("local", traffic[rank].local_bytes, received(stage, m));
                ck_assert_uint_eq(traffic[rank].received_bytes + traffic[rank].sent_bytes, 0);
            }
        }
}
END_TEST

/* Counting each would take minutes. */
START_TEST(any_number_of_micro_steps_is_planned_at_once)
{
    const int hosts[N_RANKS] = {0};
    zero_traffic_t traffic[N_RANKS];
    zero_config_t config = config_of(3, INT_MAX);
    plan(&config, ZERO_DEVICE_CPU, hosts, traffic);
    expect("2^31 - 1 micro-steps", traffic[0].local_bytes, received(3, INT_MAX));
}
END_TEST

/* Other settings than the formula's: each further micro-step adds the same. */
START_TEST(micro_steps_behind_the_second_are_alike)
{
    const int hosts[N_RANKS] = {0};
    for (int prefetch = 0; prefetch < N_UNITS + 2; prefetch++)
        for (int keep = 0; keep < N_UNITS + 2; keep++) {
            uint64_t bytes[5];
            for (int m = 0; m < 5; m++) {
                zero_traffic_t traffic[N_RANKS];
                zero_config_t config = config_of(3, m < 4 ? 2 + m : 1000);
                config.prefetch = prefetch;
                config.keep = keep;
                plan(&config, ZERO_DEVICE_CPU, hosts, traffic);
                bytes[m] = traffic[0].local_bytes;
            }
            ck_assert_uint_eq(bytes[2] - bytes[1], bytes[1] - bytes[0]);
            ck_assert_uint_eq(bytes[3] - bytes[2], bytes[1] - bytes[0]);
            ck_assert_uint_eq(bytes[4], bytes[0] + 998 * (bytes[1] - bytes[0]));
        }
}
END_TEST

/* A unit that backward does not need: of equal buffers it takes others from micro-step to micro-step, and the pattern
 * comes again after two or three of them. The number for 1000 micro-steps is counted by going through more and more. */
START_TEST(patterns_of_several_micro_steps_are_counted_as_often_as_they_come)
{
    static const struct {
        int n_units, prefetch, keep;
    } cases[] = {{7, 1, 3}, {9, 2, 4}, {7, 2, 3}, {8, 1, 4}};
    const int hosts[N_RANKS] = {0};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        uint64_t bytes[26], last;
        zero_traffic_t traffic[N_RANKS];
        zero_model_destroy(model);
        declare_units(cases[c].n_units);
        ck_assert_int_eq(zero_model_set_unshard_in_backward(model, 0, false), ZERO_OK);
        zero_config_t config = config_of(3, 1);
        config.prefetch = cases[c].prefetch;
        config.keep = cases[c].keep;
        for (int m = 1; m <= 25; m++) {
            config.micro_steps = m;
            plan(&config, ZERO_DEVICE_CPU, hosts, traffic);
            bytes[m] = traffic[0].local_bytes;
        }
        /* From the 13th on twelve more add what twelve have added: 12 is a multiple of every period up to 4. */
        ck_assert_uint_eq(bytes[25] - bytes[13], bytes[24] - bytes[12]);
        config.micro_steps = 13 + 12 * 1000;
        plan(&config, ZERO_DEVICE_CPU, hosts, traffic);
        last = traffic[0].local_bytes;
        ck_assert_uint_eq(last, bytes[13] + 1000 * (bytes[25] - bytes[13]));
        config.micro_steps = INT_MAX;
        plan(&config, ZERO_DEVICE_CPU, hosts, traffic);
        ck_assert_uint_gt(traffic[0].local_bytes, last);
    }
}
END_TEST

START_TEST(gradients_that_are_added_up_first_are_exchanged_once_in_fp32)
{
    const int hosts[N_RANKS] = {0};
    zero_traffic_t traffic[N_RANKS];
    zero_config_t config = config_of(1, 3);
    config.reduce_every_micro_step = false;
    plan(&config, ZERO_DEVICE_CPU, hosts, traffic);
    expect("local", traffic[0].local_bytes, (2 * P + 4 * P) * (N_RANKS - 1) / N_RANKS);
}
END_TEST

/* As messages, each slice crosses for each rank that receives it. Between hosts and in shared memory, what is gathered
 * crosses once for each host, a part to each of its ranks; gradients have one receiver each. */
START_TEST(hosts_exchange_what_their_ranks_have_not)
{
    static const int hosts[][N_RANKS] = {{0, 0, 1, 1}, {0, 1, 0, 1}, {5, 3, 3, 3}, {2, 1, 1, 0}};
    zero_traffic_t traffic[N_RANKS];
    for (int i = 0; i < 4 * 4 * 2 * N_RANKS; i++) {
        const int rank = i % N_RANKS, stage = i / N_RANKS % 4, h = i / N_RANKS / 4 % 4, once = i / N_RANKS / 16;
        const double g = gathers(stage, 2) / N_RANKS, r = 4 * P / N_RANKS; /* slices */
        double n_local = 0, n_hosts = h < 3 ? 2 : 3;
        zero_config_t config = config_of(stage, 2);
        for (int other = 0; other < N_RANKS; other++)
            n_local += hosts[h][other] == hosts[h][rank];
        const double n_remote = N_RANKS - n_local, from_others = g * n_remote / (once ? n_local : 1) + r * n_remote;
        ck_assert_int_eq(zero_plan_traffic(model, &config, ZERO_DEVICE_CPU, once ? ZERO_COMM_AUTO : ZERO_COMM_MPI,
                                           N_RANKS, hosts[h], traffic),
                         ZERO_OK);
        expect("from others", traffic[rank].received_bytes, from_others);
        expect("sent", traffic[rank].sent_bytes, g * (once ? n_hosts - 1 : n_remote) + r * n_remote);
        expect("local", traffic[rank].local_bytes, received(stage, 2) - from_others);
    }
}
END_TEST

/* The table of docs/design.md, Groups: N = 4, K = 2, so G = 2. */
START_TEST(groups_of_a_host_exchange_parts_and_gradients)
{
    const int hosts[N_RANKS] = {0, 0, 1, 1};
    const double m = 3, n_gathers = (2 * N_UNITS - 2) + (m - 1) * (2 * N_UNITS - 4);
    zero_traffic_t traffic[N_RANKS];
    zero_config_t config = config_of(3, (int)m);
    config.shard_group = 2;
    plan(&config, ZERO_DEVICE_CPU, hosts, traffic);
    for (int rank = 0; rank < N_RANKS; rank++) {
        expect("from others", traffic[rank].received_bytes, 2 * P / N_RANKS + 2 * m * P * 2 / N_RANKS);
        expect("local", traffic[rank].local_bytes, 2 * (double)UNIT_ELEMS * n_gathers / 2 + 2 * m * P / N_RANKS);
    }
}
END_TEST

/* Between GPUs, over rails: the two slices of the other host come to each host once. */
START_TEST(gpus_exchange_what_their_hosts_have_not)
{
    const int hosts[N_RANKS] = {4, 4, 1, 1};
    zero_traffic_t traffic[N_RANKS];
    for (int stage = 0; stage < 4; stage++)
        for (int m = 1; m <= 3; m++) {
            const double from_others = gathers(stage, m) / N_RANKS + 2 * m * P * 2 / N_RANKS;
            zero_config_t config = config_of(stage, m);
            plan(&config, ZERO_DEVICE_CUDA, hosts, traffic);
            for (int rank = 0; rank < N_RANKS; rank++) {
                expect("from others", traffic[rank].received_bytes, from_others);
                expect("sent", traffic[rank].sent_bytes, from_others);
                expect("local", traffic[rank].local_bytes, received(stage, m) - from_others);
            }
        }
}
END_TEST

/* A group for each host keeps gathers inside; one of ranks that are not neighbours does not. */
START_TEST(gpus_in_groups_gather_inside_their_hosts)
{
    const int pairs[N_RANKS] = {0, 0, 1, 1}, turns[N_RANKS] = {0, 1, 0, 1};
    const double m = 3, n_gathers = (2 * N_UNITS - 2) + (m - 1) * (2 * N_UNITS - 4);
    const double in_group = 2 * (double)UNIT_ELEMS * n_gathers / 2, in_part = 2 * P / N_RANKS,
                 reduced = 2 * m * P / N_RANKS;
    zero_traffic_t traffic[N_RANKS];
    zero_config_t config = config_of(3, (int)m);
    config.shard_group = 2;
    for (int rank = 0; rank < N_RANKS; rank++) {
        plan(&config, ZERO_DEVICE_CUDA, pairs, traffic);
        expect("from others", traffic[rank].received_bytes, in_part + 2 * reduced);
        expect("local", traffic[rank].local_bytes, in_group + reduced);
        plan(&config, ZERO_DEVICE_CUDA, turns, traffic);
        expect("from others", traffic[rank].received_bytes, in_group + 2 * reduced);
        expect("local", traffic[rank].local_bytes, in_part + reduced);
    }
}
END_TEST

/* What zero_route_find says of ranks whose hosts are the digits. */
START_TEST(routes_follow_whole_hosts)
{
    static const struct {
        const char *hosts;
        int n, stride;
        zero_route_kind_t kind;
        int n_local;
    } rows[] = {{"0000", 4, 1, ZERO_ROUTE_LOCAL, 4},        {"0011", 4, 1, ZERO_ROUTE_RAILS, 2},
                {"0011", 2, 1, ZERO_ROUTE_LOCAL, 2},        {"0011", 2, 2, ZERO_ROUTE_MESSAGES, 0},
                {"0101", 4, 1, ZERO_ROUTE_MESSAGES, 0},     {"0101", 2, 1, ZERO_ROUTE_MESSAGES, 0},
                {"0101", 2, 2, ZERO_ROUTE_LOCAL, 2},        {"0111", 4, 1, ZERO_ROUTE_MESSAGES, 0},
                {"0111", 2, 1, ZERO_ROUTE_MESSAGES, 0},     {"0123", 4, 1, ZERO_ROUTE_MESSAGES, 0},
                {"0123", 1, 1, ZERO_ROUTE_LOCAL, 1},        {"001122", 6, 1, ZERO_ROUTE_RAILS, 2},
                {"001122", 3, 1, ZERO_ROUTE_MESSAGES, 0},   {"000111", 6, 1, ZERO_ROUTE_RAILS, 3},
                {"000111", 3, 2, ZERO_ROUTE_MESSAGES, 0},   {"00001111", 8, 1, ZERO_ROUTE_RAILS, 4},
                {"00001111", 4, 2, ZERO_ROUTE_RAILS, 2},    {"00001111", 4, 1, ZERO_ROUTE_LOCAL, 4},
                {"00001111", 2, 4, ZERO_ROUTE_MESSAGES, 0}, {"00112233", 4, 1, ZERO_ROUTE_RAILS, 2},
                {"001100", 6, 1, ZERO_ROUTE_MESSAGES, 0},   {"00110022", 4, 1, ZERO_ROUTE_RAILS, 2}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int hosts[8];
        const int size = (int)strlen(rows[i].hosts);
        for (int rank = 0; rank < size; rank++)
            hosts[rank] = rows[i].hosts[rank] - '0';
        for (int rank = 0; rank < size; rank++) { /* all ranks find the same */
            const zero_ranks_t ranks = {.first = rows[i].stride == 1 ? rank - rank % rows[i].n : rank % rows[i].stride,
                                        .stride = rows[i].stride,
                                        .n = rows[i].n};
            const zero_route_t route = zero_route_find(hosts, size, ranks);
            ck_assert_msg(route.kind == rows[i].kind && route.n_local == rows[i].n_local,
                          "%s, %d ranks by %d: route %d, %d on a host", rows[i].hosts, rows[i].n, rows[i].stride,
                          (int)route.kind, route.n_local);
        }
    }
}
END_TEST

/* NCCL's rings of all ranks, where NCCL is alone or hosts are uneven: all but one slice enters and leaves each host. */
START_TEST(rings_of_gpus_pass_all_slices_through_every_host)
{
    const int hosts[N_RANKS] = {0, 0, 1, 1}, uneven[N_RANKS] = {0, 1, 1, 1};
    zero_traffic_t traffic[N_RANKS];
    zero_config_t config = config_of(1, 1);
    ck_assert_int_eq(zero_plan_traffic(model, &config, ZERO_DEVICE_CUDA, ZERO_COMM_NCCL, N_RANKS, hosts, traffic),
                     ZERO_OK);
    for (int rank = 0; rank < N_RANKS; rank++)
        expect("from others", traffic[rank].received_bytes, 2 * P * 3 / 4 / 2 + 2 * P * 2 / N_RANKS);
    plan(&config, ZERO_DEVICE_CUDA, uneven, traffic);
    expect("from others", traffic[0].received_bytes, 2 * P * 3 / 4 + 2 * P * 3 / N_RANKS);
    config.nccl_reduction = true;
    plan(&config, ZERO_DEVICE_CUDA, hosts, traffic);
    for (int rank = 0; rank < N_RANKS; rank++)
        expect("from others", traffic[rank].received_bytes, 2 * (2 * P * 3 / 4 / 2));
}
END_TEST

static Suite *suite(void)
{
    Suite *suite = suite_create("traffic");
    TCase *formulas = tcase_create("formulas");
    tcase_add_checked_fixture(formulas, declare, destroy);
    tcase_add_test(formulas, one_host_exchanges_what_the_formula_says);
    tcase_add_test(formulas, any_number_of_micro_steps_is_planned_at_once);
    tcase_add_test(formulas, micro_steps_behind_the_second_are_alike);
    tcase_add_test(formulas, patterns_of_several_micro_steps_are_counted_as_often_as_they_come);
    tcase_add_test(formulas, gradients_that_are_added_up_first_are_exchanged_once_in_fp32);
    tcase_add_test(formulas, hosts_exchange_what_their_ranks_have_not);
    tcase_add_test(formulas, groups_of_a_host_exchange_parts_and_gradients);
    tcase_add_test(formulas, gpus_exchange_what_their_hosts_have_not);
    tcase_add_test(formulas, gpus_in_groups_gather_inside_their_hosts);
    tcase_add_test(formulas, routes_follow_whole_hosts);
    tcase_add_test(formulas, rings_of_gpus_pass_all_slices_through_every_host);
    suite_add_tcase(suite, formulas);
    return suite;
}

int main(void)
{
    return support_main(suite());
}
