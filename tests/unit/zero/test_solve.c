/* test_solve.c - zero_solve against brute force with zero_plan and zero_plan_traffic alone: every stage, group, number
 * of kept units and share of offload. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/support/support.h"
#include "zero.h"

#define N_UNITS 5
#define MAX_RANKS 8
#define N_SHARES 32 /* a unit has more than 1/32 of the model, so that every number of units is met */
#define RATE_LOCAL 400e9
#define RATE_NETWORK 45e9
#define RATE_PCIE 50e9

static zero_model_t *model;

static void declare(int n_units, int64_t elems, int64_t growth)
{
    ck_assert_int_eq(zero_model_create(&model), ZERO_OK);
    for (int u = 0; u < n_units; u++) {
        zero_unit_t unit;
        zero_tensor_t tensor;
        char name[32];
        snprintf(name, sizeof name, "u%d", u);
        zero_tensor_desc_t desc = {.name = name, .n_dims = 1, .shape = {elems + u * growth}};
        ck_assert_int_eq(zero_model_add_unit(model, name, &unit), ZERO_OK);
        ck_assert_int_eq(zero_model_add_tensor(model, unit, &desc, &tensor), ZERO_OK);
    }
}

static void set_up(void)
{
    declare(N_UNITS, 100000, 7000);
}

static void tear_down(void)
{
    zero_model_destroy(model);
}

typedef struct solve_case {
    int n_ranks, n_hosts, micro_steps;
    zero_device_type_t device;
    double part;     /* of the way from the least memory to the most */
    uint64_t pinned; /* bytes */
    bool offload;    /* is free */
    bool shard_group_is_free;
} solve_case_t;

static const struct {
    int n_ranks, n_hosts;
} machines[] = {{1, 1}, {2, 1}, {4, 1}, {4, 2}, {8, 2}, {6, 3}};
static const double parts[] = {0.0, 0.15, 0.4, 0.7, 1.0};
#define N_MACHINES 6
#define N_PARTS 5
#define N_CASES (N_MACHINES * N_PARTS * 3)

static solve_case_t case_of(int i)
{
    int kind = i / N_MACHINES / N_PARTS;
    return (solve_case_t){.n_ranks = machines[i % N_MACHINES].n_ranks,
                          .n_hosts = machines[i % N_MACHINES].n_hosts,
                          .part = parts[i / N_MACHINES % N_PARTS],
                          .micro_steps = 1 + i % 2,
                          .device = kind == 2 ? ZERO_DEVICE_CPU : ZERO_DEVICE_CUDA,
                          .offload = kind != 1,
                          .pinned = i % 3 == 0 ? 1000000 : UINT64_MAX,
                          .shard_group_is_free = i % 4 != 3};
}

static zero_config_t config_of(const solve_case_t *c)
{
    zero_config_t config = zero_config_default();
    config.micro_steps = c->micro_steps;
    config.user_bytes = 12345;
    return config;
}

/* What one configuration takes, or NAN seconds if it is not allowed. */
typedef struct taken {
    uint64_t bytes, pinned;
    double seconds;
} taken_t;

static taken_t take(const solve_case_t *c, const zero_config_t *config, const int *hosts)
{
    zero_memory_t memory;
    zero_traffic_t traffic[MAX_RANKS];
    taken_t taken = {0};
    ck_assert_int_eq(zero_plan(model, config, c->device, ZERO_COMM_AUTO, c->n_ranks, &memory), ZERO_OK);
    ck_assert_int_eq(zero_plan_traffic(model, config, c->device, ZERO_COMM_AUTO, c->n_ranks, hosts, traffic), ZERO_OK);
    for (int rank = 0; rank < c->n_ranks; rank++)
        taken.seconds = fmax(taken.seconds, (double)traffic[rank].local_bytes / RATE_LOCAL +
                                                (double)traffic[rank].received_bytes / RATE_NETWORK);
    taken.bytes = zero_memory_total(&memory) + config->user_bytes;
    taken.pinned = memory.pinned_bytes;
    taken.seconds += (double)memory.pinned_bytes / RATE_PCIE;
    return taken;
}

/* Calls `see` for every configuration that is free to be chosen. */
static void for_all(const solve_case_t *c, void (*see)(const solve_case_t *c, const zero_config_t *config, void *user),
                    void *user)
{
    bool offloads = c->offload && c->device != ZERO_DEVICE_CPU;
    zero_config_t config = config_of(c);
    for (config.stage = 0; config.stage <= 3; config.stage++)
        for (int group = 1; group <= c->n_ranks; group++)
            for (config.keep = 0; config.keep <= N_UNITS; config.keep++)
                for (int share = 0; share <= (offloads && config.stage > 0 ? N_SHARES : 0); share++) {
                    if (c->n_ranks % group != 0 || (!c->shard_group_is_free && group < c->n_ranks) ||
                        (config.stage < 3 && (group < c->n_ranks || config.keep > 0)))
                        continue;
                    config.shard_group = group == c->n_ranks ? ZERO_SHARD_GROUP_WORLD : group;
                    config.offload = share > 0;
                    config.offload_ratio = (float)share / N_SHARES;
                    see(c, &config, user);
                }
}

typedef struct brute {
    const int *hosts;
    uint64_t least, most, budget;
    double fastest; /* of what fits; INFINITY: nothing does */
} brute_t;

static void see_bytes(const solve_case_t *c, const zero_config_t *config, void *user)
{
    brute_t *brute = user;
    uint64_t bytes = take(c, config, brute->hosts).bytes;
    brute->least = bytes < brute->least ? bytes : brute->least;
    brute->most = bytes > brute->most ? bytes : brute->most;
}

static void see_time(const solve_case_t *c, const zero_config_t *config, void *user)
{
    brute_t *brute = user;
    taken_t taken = take(c, config, brute->hosts);
    if (taken.bytes <= brute->budget && taken.pinned <= c->pinned && taken.seconds < brute->fastest)
        brute->fastest = taken.seconds;
}

START_TEST(the_choice_is_that_of_brute_force)
{
    solve_case_t c = case_of(_i);
    int hosts[MAX_RANKS];
    for (int rank = 0; rank < c.n_ranks; rank++)
        hosts[rank] = rank * c.n_hosts / c.n_ranks;
    brute_t brute = {.hosts = hosts, .least = UINT64_MAX, .fastest = INFINITY};
    for_all(&c, see_bytes, &brute);
    brute.budget = brute.least + (uint64_t)(c.part * (double)(brute.most - brute.least));
    for_all(&c, see_time, &brute);
    zero_config_t config = config_of(&c);
    zero_solve_t limits = {.stage = true,
                           .keep = true,
                           .offload_ratio = c.offload,
                           .shard_group = c.shard_group_is_free,
                           .device_bytes = brute.budget,
                           .pinned_bytes = c.pinned,
                           .local_rate = RATE_LOCAL,
                           .network_rate = RATE_NETWORK,
                           .pcie_rate = RATE_PCIE,
                           .hosts = hosts};
    zero_solution_t found;
    ck_assert_int_eq(zero_solve(model, &config, c.device, ZERO_COMM_AUTO, c.n_ranks, &limits, &found), ZERO_OK);
    ck_assert_int_eq(found.fits, isfinite(brute.fastest));
    taken_t taken = take(&c, &found.config, hosts);
    ck_assert_uint_eq(taken.bytes, zero_memory_total(&found.memory) + config.user_bytes);
    ck_assert(fabs(taken.seconds - found.transfer_s) <= 1e-9 * taken.seconds);
    ck_assert(!found.fits || (taken.bytes <= brute.budget && taken.pinned <= c.pinned));
    if (found.fits)
        ck_assert_msg(fabs(found.transfer_s - brute.fastest) <= 1e-8 * brute.fastest, "%.9g s instead of %.9g s",
                      found.transfer_s, brute.fastest);
    else
        ck_assert_uint_le(taken.bytes, brute.least);
}
END_TEST

START_TEST(what_is_not_free_stays)
{
    zero_config_t config = zero_config_default();
    zero_solution_t found;
    config.stage = 2;
    config.keep = 1;
    config.offload = true;
    config.offload_ratio = 0.5f;
    zero_solve_t limits = {
        .device_bytes = UINT64_MAX / 2, .pinned_bytes = UINT64_MAX, .local_rate = 1, .network_rate = 1, .pcie_rate = 1};
    ck_assert_int_eq(zero_solve(model, &config, ZERO_DEVICE_CUDA, ZERO_COMM_AUTO, 4, &limits, &found), ZERO_OK);
    ck_assert(found.fits && found.config.stage == 2 && found.config.keep == 1 && found.config.offload);
    ck_assert_double_eq((double)found.config.offload_ratio, 0.5);
    limits.offload_ratio = true; /* nothing need be offloaded */
    ck_assert_int_eq(zero_solve(model, &config, ZERO_DEVICE_CUDA, ZERO_COMM_AUTO, 4, &limits, &found), ZERO_OK);
    ck_assert(found.fits && !found.config.offload);
}
END_TEST

static zero_status_t updated(void *user, const zero_own_update_t *update, zero_stream_t stream)
{
    (void)user, (void)update, (void)stream;
    return ZERO_OK;
}

/* Each excludes a stage, groups or offload. */
START_TEST(what_the_settings_exclude_is_not_tried)
{
    enum { N_SETTINGS = 5, N_BYTES = 2 };
    const uint64_t device_bytes[N_BYTES] = {UINT64_MAX / 2, 1};
    const zero_hooks_t hooks = {.updated = updated};
    zero_config_t configs[N_SETTINGS];
    for (int i = 0; i < N_SETTINGS; i++)
        configs[i] = zero_config_default();
    configs[0].gradients = ZERO_BF16;
    configs[1].update = ZERO_UPDATE_IN_BACKWARD;
    configs[1].grad_clip = 0.0f;
    configs[2].optimizer = ZERO_OPTIMIZER_MUON;
    configs[3].hooks = &hooks;
    configs[4].offload = true;
    configs[4].offload_params = 0.5f;
    for (int i = 0; i < N_SETTINGS * N_BYTES; i++) {
        const zero_config_t *config = &configs[i % N_SETTINGS];
        zero_solution_t found;
        zero_memory_t plan;
        const zero_solve_t limits = {.stage = true,
                                     .keep = true,
                                     .offload_ratio = true,
                                     .shard_group = true,
                                     .device_bytes = device_bytes[i / N_SETTINGS],
                                     .pinned_bytes = UINT64_MAX,
                                     .local_rate = 1,
                                     .network_rate = 1,
                                     .pcie_rate = 1};
        ck_assert_msg(zero_solve(model, config, ZERO_DEVICE_CUDA, ZERO_COMM_AUTO, 4, &limits, &found) == ZERO_OK,
                      "settings %d: %s", i, zero_last_error());
        ck_assert_msg(found.fits == (i < N_SETTINGS), "settings %d", i);
        ck_assert_int_eq(zero_plan(model, &found.config, ZERO_DEVICE_CUDA, ZERO_COMM_AUTO, 4, &plan), ZERO_OK);
        ck_assert_uint_eq(zero_memory_total(&plan), zero_memory_total(&found.memory));
        ck_assert(found.config.gradients == config->gradients && found.config.update == config->update);
    }
    ck_assert_str_eq(zero_last_error(), ""); /* refused candidates left no line */
}
END_TEST

START_TEST(mistakes_are_refused)
{
    zero_config_t config = zero_config_default();
    zero_solution_t found;
    zero_solve_t limits = {.device_bytes = 1, .local_rate = 1, .network_rate = 1, .pcie_rate = 1};
    ck_assert_int_eq(zero_solve(NULL, &config, ZERO_DEVICE_CPU, ZERO_COMM_AUTO, 1, &limits, &found),
                     ZERO_ERROR_ARGUMENT);
    ck_assert_int_eq(zero_solve(model, &config, ZERO_DEVICE_AUTO, ZERO_COMM_AUTO, 1, &limits, &found),
                     ZERO_ERROR_ARGUMENT);
    limits.network_rate = NAN;
    ck_assert_int_eq(zero_solve(model, &config, ZERO_DEVICE_CPU, ZERO_COMM_AUTO, 1, &limits, &found),
                     ZERO_ERROR_ARGUMENT);
    limits.network_rate = 1.0;
    config.prefetch = -1;
    ck_assert_int_ne(zero_solve(model, &config, ZERO_DEVICE_CPU, ZERO_COMM_AUTO, 1, &limits, &found), ZERO_OK);
}
END_TEST

/* 126 units and 1,024 ranks on 128 hosts. */
START_TEST(the_largest_machine_takes_less_than_a_second)
{
    static int hosts[1024];
    struct timespec begin, end;
    zero_solution_t found;
    zero_config_t config = zero_config_default();
    zero_model_destroy(model);
    declare(128, (int64_t)3 << 30, 0);
    for (int rank = 0; rank < 1024; rank++)
        hosts[rank] = rank / 8;
    zero_solve_t limits = {.stage = true,
                           .keep = true,
                           .offload_ratio = true,
                           .shard_group = true,
                           .device_bytes = (uint64_t)40 << 30,
                           .pinned_bytes = (uint64_t)100 << 30,
                           .local_rate = RATE_LOCAL,
                           .network_rate = RATE_NETWORK,
                           .pcie_rate = RATE_PCIE,
                           .hosts = hosts};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
    ck_assert_int_eq(zero_solve(model, &config, ZERO_DEVICE_CUDA, ZERO_COMM_AUTO, 1024, &limits, &found), ZERO_OK);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    double seconds = (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) * 1e-9;
    printf("%.3f s: stage %d, group %d, keep %d\n", seconds, found.config.stage, found.config.shard_group,
           found.config.keep);
    ck_assert(found.fits);
#ifdef __SANITIZE_ADDRESS__
    const double limit = 8.0; /* sanitizers take five times as long */
#else
    const double limit = 1.0;
#endif
    ck_assert_double_lt(seconds, limit);
}
END_TEST

/* The example offloads where little memory is left, and not where there is more. */
START_TEST(the_example_plans)
{
    support_output_t output;
    ck_assert_int_eq(support_run(&output, 30.0, "%s/examples/fit 4 80 24", support_build()), 0);
    ck_assert_msg(strstr(output.out, "fits: stage 2, keep 0, offload_ratio 0.000\n"), "%s", output.out);
    support_output_free(&output);
    ck_assert_int_eq(support_run(&output, 30.0, "%s/examples/fit 4 48 24", support_build()), 0);
    ck_assert(strncmp(output.out, "fits: stage 3", 13) == 0 && !strstr(output.out, "offload_ratio 0.000"));
    support_output_free(&output);
    ck_assert_int_eq(support_run(&output, 30.0, "%s/examples/fit 1 40 24", support_build()), 0);
    ck_assert(strncmp(output.out, "does not fit: ", 14) == 0);
    support_output_free(&output);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("solve");
    TCase *c = tcase_create("solve");
    tcase_set_timeout(c, 60);
    tcase_add_checked_fixture(c, set_up, tear_down);
    tcase_add_loop_test(c, the_choice_is_that_of_brute_force, 0, N_CASES);
    tcase_add_test(c, what_is_not_free_stays);
    tcase_add_test(c, what_the_settings_exclude_is_not_tried);
    tcase_add_test(c, mistakes_are_refused);
    tcase_add_test(c, the_largest_machine_takes_less_than_a_second);
    tcase_add_test(c, the_example_plans);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
