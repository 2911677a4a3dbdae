/* test_offload_activations.c - [model] offload_activations changes no bit of training: neither zerotrain's run on the
 * CPU, where nothing is copied, nor training on a device where the inputs of layers take turns in slots. Its copies
 * are done at once, and so is all other work: that they wait for each other is test_stash.c's. What cannot be is
 * refused by name.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/gpu_like_cpu.h"
#include "tests/support/support.h"
#include "tests/support/trainer.h"
#include "train/planning/plan_report.h"
#include "zero/device/device.h"

#define RUN_LIMIT_S 120.0

/* ---- runs of zerotrain ---- */

static const char CONFIG[] = "[model]\nlayers = 5\ndim = 36\nheads = 3\nvocab_size = 259\nseq_len = 17\n"
                             "recompute = full\n[data]\ntrain = text.txt\nval = text.txt\n"
                             "[train]\nsteps = 6\nlr = 3e-3\nmicro_batch = 1\neval_every = 2\neval_batches = 2\n"
                             "[checkpoint]\nevery = 6\n[log]\nevery = 0\n";

static char root[400];

static void set_up(void)
{
    char *directory = support_scratch(), path[512], text[9000];
    uint64_t seed = 1;
    snprintf(root, sizeof root, "%s", directory);
    free(directory);
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + support_random(&seed) % 26);
    snprintf(path, sizeof path, "%s/text.txt", root);
    support_write_file(path, text, sizeof text);
    snprintf(path, sizeof path, "%s/cfg.ini", root);
    support_write_file(path, CONFIG, sizeof CONFIG - 1);
}

static int run(support_output_t *output, int n_ranks, const char *arguments)
{
    return support_mpirun(output, RUN_LIMIT_S, n_ranks, "--wdir %s %s/zerotrain %s cfg.ini", root, support_build(),
                          arguments);
}

/* The checkpoint's arrays, and loss, grad_norm and validation loss of each row. */
static int compare(int with)
{
    return support_run(
        NULL, RUN_LIMIT_S,
        "cd %s && for k in 0 %d; do sed 's/, \"lr\".*\\(\"val_loss\": [^,}]*\\).*/ \\1/; s/, \"lr\".*//' "
        "m$k.jsonl >rows$k; cp ck$k/latest/*-of-*.safetensors . && sha256sum *-of-*.safetensors >sums$k; "
        "done; test $(grep -c loss rows0) = 6 && cmp rows0 rows%d && cmp sums0 sums%d",
        root, with, with, with);
}

static const struct {
    const char *arch;
    int n_ranks, micro_steps;
} RUNS[] = {{"gpt2", 1, 1}, {"gpt2", 2, 3}, {"llama", 1, 3}, {"llama --set model.recompute=light", 2, 1}};
#define N_RUNS ((int)(sizeof RUNS / sizeof RUNS[0]))

START_TEST(no_bit_of_a_run_changes)
{
    static const char *const shares[] = {"0", "0.5", "1"};
    char arguments[300];
    support_output_t output;
    if (support_leaves_out(RUNS[_i].n_ranks) || (_i > 1 && support_is_left_to_plain_build()))
        return;
    for (int k = 0; k < 3; k++) {
        snprintf(arguments, sizeof arguments,
                 "--overwrite --set model.arch=%s --set train.global_batch=%d --set checkpoint.dir=ck%d --set "
                 "log.metrics=m%d.jsonl --set model.offload_activations=%s",
                 RUNS[_i].arch, RUNS[_i].n_ranks * RUNS[_i].micro_steps, k, k, shares[k]);
        int code = run(&output, RUNS[_i].n_ranks, arguments);
        ck_assert_msg(code == 0, "%s: exit code %d\n%s", arguments, code, output.err);
        ck_assert(k == 0 || strstr(output.err, "offload_activations changes nothing here: on the CPU"));
        support_output_free(&output);
        ck_assert_msg(k == 0 || compare(k) == 0, "%s: other numbers", arguments);
    }
}
END_TEST

static const struct {
    const char *arguments, *says;
} REFUSED[] = {
    {"--set model.offload_activations=1.5", "offload_activations"},
    {"--set model.offload_activations=half", "offload_activations"},
};
#define N_REFUSED ((int)(sizeof REFUSED / sizeof REFUSED[0]))

START_TEST(what_cannot_be_is_refused_by_name)
{
    support_output_t output;
    int code = run(&output, 1, REFUSED[_i].arguments);
    ck_assert_msg(code == 2 && strstr(output.err, REFUSED[_i].says), "%s: exit code %d\n%s", REFUSED[_i].arguments,
                  code, output.err);
    support_output_free(&output);
}
END_TEST

/* ---- training where inputs take turns ---- */

#define N_STEPS 4
#define N_LAYERS 7
#define SEQ_LEN 12
#define GLOBAL_BATCH 6

/* What the 7 layers recompute: all the same, or the last ones less than the first. */
typedef struct recompute {
    options_recompute_t first;
    int64_t n_light, n_none;
} recompute_t;
static const recompute_t RECOMPUTES[] = {
    {RECOMPUTE_FULL, 0, 0}, {RECOMPUTE_FULL, 2, 2}, {RECOMPUTE_LIGHT, 0, 3}, {RECOMPUTE_NONE, 0, 0}};
#define N_RECOMPUTES ((int)(sizeof RECOMPUTES / sizeof RECOMPUTES[0]))

static options_t options_with(int arch, recompute_t recompute, double share)
{
    options_t o = trainer_options(N_LAYERS, 24, 3, 61, SEQ_LEN);
    o.model.arch = arch;
    o.model.recompute = recompute.first;
    o.model.recompute_light = recompute.n_light;
    o.model.recompute_none = recompute.n_none;
    o.model.offload_activations = share;
    o.train.micro_batch = 2;
    o.train.global_batch = GLOBAL_BATCH;
    o.zero.stage = 2;
    o.device.type = ZERO_DEVICE_CPU;
    ck_assert_int_eq(options_resolve(&o, 1), ZERO_OK);
    return o;
}

/* The engine holds what libzero planned, `plan`, and what the model did. */
static void expect_held(const trainer_t *t, zero_memory_t plan)
{
    const zero_memory_t held = zero_engine_memory(t->engine);
    for (int c = 0; c < ZERO_MEMORY_N_CATEGORIES; c++)
        ck_assert_uint_eq(held.bytes[c], plan.bytes[c]);
    ck_assert_uint_eq(held.pinned_bytes, plan.pinned_bytes);
}

/* Trains, and returns losses and norms as text, and the bytes that were copied. has_slots: as on a GPU. */
static void train(options_t *o, bool has_slots, char *text, size_t n_bytes, uint64_t *copied)
{
    trainer_t t = {.options = o};
    zero_config_t config = options_config(o, 1);
    zero_memory_t plan, user = {0};
    int32_t tokens[GLOBAL_BATCH * SEQ_LEN];
    uint64_t seed = 3;
    ck_assert_int_eq(zero_comm_create_from(ZERO_COMM_AUTO, NULL, &t.comm), ZERO_OK);
    ck_assert_int_eq(model_create(o, &t.model), ZERO_OK);
    o->device.type = has_slots ? ZERO_DEVICE_CUDA : ZERO_DEVICE_CPU; /* with the CPU's kernels */
    model_plan(&t.model, &user);
    config.user_pinned_bytes = user.pinned_bytes;
    if (has_slots)
        t.device = open_gpu_like_cpu(t.comm);
    else
        ck_assert_int_eq(zero_device_create(ZERO_DEVICE_CPU, t.comm, &t.device), ZERO_OK);
    ck_assert_int_eq(zero_engine_create(t.comm, t.device, t.model.declaration, &config, &t.engine), ZERO_OK);
    plan = zero_engine_memory(t.engine);
    for (int c = 0; c < ZERO_MEMORY_N_CATEGORIES; c++)
        plan.bytes[c] += user.bytes[c];
    plan.pinned_bytes += user.pinned_bytes;
    ck_assert_int_eq(model_attach(&t.model, t.device, t.engine, 1), ZERO_OK);
    ck_assert_int_eq(zero_init_parameters(t.engine), ZERO_OK);
    expect_held(&t, plan);
    *text = 0;
    for (int step = 0; step < N_STEPS; step++) {
        zero_step_result_t result;
        for (int i = 0; i < GLOBAL_BATCH * SEQ_LEN; i++)
            tokens[i] = (int32_t)(support_random(&seed) % 61);
        ck_assert_int_eq(trainer_step(&t, tokens, tokens, 1e-2, &result), ZERO_OK);
        snprintf(text + strlen(text), n_bytes - strlen(text), "%.9g %.9g\n", (double)result.loss,
                 (double)result.grad_norm);
    }
    *copied = zero_engine_stats(t.engine).to_host_bytes;
    ck_assert_uint_eq(zero_engine_stats(t.engine).to_gpu_bytes, *copied);
    zero_comm_t *comm = t.comm;
    trainer_close(&t);
    zero_comm_destroy(comm);
}

/* Of 7 layers 4 or all; in each of 3 micro-steps those beyond 3 slots leave and come back. */
START_TEST(inputs_that_take_turns_change_no_bit)
{
    const int arch = _i % 2 == 0 ? ARCH_GPT2 : ARCH_LLAMA;
    const recompute_t recompute = RECOMPUTES[_i / 2];
    const double shares[] = {0.0, 0.5, 1.0};
    const uint64_t rounded = (2 * SEQ_LEN * 24 * sizeof(float) + 255) / 256 * 256, n_away[] = {0, 1, 4};
    char want[400], got[400];
    uint64_t copied;
    options_t o = options_with(arch, recompute, 0.0);
    train(&o, false, want, sizeof want, &copied);
    for (int k = 0; k < 3; k++) {
        o = options_with(arch, recompute, shares[k]);
        train(&o, true, got, sizeof got, &copied);
        ck_assert_msg(strcmp(got, want) == 0, "%g:\n%sinstead of\n%s", shares[k], got, want);
        ck_assert_uint_eq(copied, n_away[k] * rounded * 3 * N_STEPS);
    }
}
END_TEST

/* --plan: the stash's bytes leave and come back once in each of 3 micro-steps, beside what else is copied. */
START_TEST(a_plan_counts_what_passes_pcie)
{
    options_t o = options_with(ARCH_GPT2, RECOMPUTES[0], 1.0);
    plan_report_t report = {.options = &o, .ranks = {.n = 1}, .stash_bytes = 4096, .traffic.to_gpu = {[3] = 10000}};
    plan_add_stash(&report);
    ck_assert(report.traffic.to_gpu[3] == 3 * 4096 + 10000 && report.traffic.to_host[3] == 3 * 4096);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("offload_activations");
    TCase *tcase = tcase_create("offload_activations");
    tcase_set_timeout(tcase, 300);
    tcase_add_unchecked_fixture(tcase, set_up, NULL);
    tcase_add_loop_test(tcase, no_bit_of_a_run_changes, 0, N_RUNS);
    tcase_add_loop_test(tcase, what_cannot_be_is_refused_by_name, 0, N_REFUSED);
    tcase_add_loop_test(tcase, inputs_that_take_turns_change_no_bit, 0, 2 * N_RECOMPUTES);
    tcase_add_test(tcase, a_plan_counts_what_passes_pcie);
    suite_add_tcase(s, tcase);
    return s;
}

int main(void)
{
    return support_main(suite());
}
