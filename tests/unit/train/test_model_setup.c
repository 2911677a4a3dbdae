/* test_model_setup.c - a model before its first step: parameters, operations and bytes of the ready configurations,
 * sizes that are refused, a warning of slow attention. */
#include <math.h>
#include <stdlib.h>

#include "tests/support/stderr_capture.h"
#include "tests/support/support.h"
#include "tests/support/trainer.h"

/* Parameters as published, GPT-2's vocabulary padded by 47 and Llama 3.2 given a head of its own. */
static const struct {
    const char *name;
    uint64_t n_params;
} READY[] = {
    {"gpt2-124m", 124439808 + 47 * 768},
    {"gpt2-350m", 354823168 + 47 * 1024},
    {"gpt2-774m", 774030080 + 47 * 1280},
    {"gpt2-1558m", 1557611200 + 47 * 1600},
    {"llama-1b", UINT64_C(1235814400) + 128256 * 2048},
    {"llama-3b", UINT64_C(3212749824) + 128256 * 3072},
    {"llama-8b", UINT64_C(8030261248)},
    {"llama-3.2-1b", UINT64_C(1235814400)},
    {"qwen3-1.7b", UINT64_C(1720574976)},
    {"mistral-7b", UINT64_C(7248023552)},
};
#define N_READY ((int)(sizeof READY / sizeof READY[0]))

/* Operations of one token by the products it meets: 2 for each element of a matrix forward and 4 backward, and in
 * attention the same for T / 2 keys and as many values, on average. */
static double count_flops(const options_t *o)
{
    double C = (double)o->model.dim, F = (double)o->model.ffn_dim, T = (double)o->model.seq_len;
    double kv = C / (double)o->model.heads * (double)o->model.kv_heads;
    double mlp = (o->model.arch == ARCH_GPT2 ? 2.0 : 3.0) * C * F;
    double layer = C * (C + 2.0 * kv) + C * C + mlp + 2.0 * C * T / 2.0;
    return 6.0 * ((double)o->model.layers * layer + C * (double)o->model.vocab_size);
}

START_TEST(ready_configurations_have_the_published_sizes)
{
    static options_t options;
    char path[256], *argv[] = {(char *)"zerotrain", path};
    options_action_t action;
    model_t model;
    zero_memory_t memory = {0};
    snprintf(path, sizeof path, "configs/%s.ini", READY[_i].name);
    ck_assert_int_eq(options_parse(2, argv, &options, &action), ZERO_OK);
    ck_assert_int_eq(options_resolve(&options, 8), ZERO_OK);
    ck_assert_int_eq(model_create(&options, &model), ZERO_OK);
    ck_assert_uint_eq(zero_model_n_params(model.declaration), READY[_i].n_params);
    /* Biases and norms, which are no products, are 3 in 10,000 at most. */
    ck_assert_double_eq_tol(model_flops_per_token(&model) / count_flops(&options), 1.0, 1e-3);
    model_plan(&model, &memory);
    ck_assert_uint_gt(memory.bytes[ZERO_MEMORY_ACTIVATIONS], 0);
    model_destroy(&model);
}
END_TEST

/* A size from `low` to `high`, each power of two as likely as any other. */
static int64_t random_size(uint64_t *seed, int64_t low, int64_t high)
{
    double size = (double)low * pow((double)high / (double)low, support_uniform(seed));
    return size < (double)high ? (int64_t)size : high;
}

static void randomize(uint64_t *seed, options_t *o)
{
    o->model.heads = random_size(seed, 1, 1 << 16);
    o->model.dim = o->model.heads * random_size(seed, 1, (1 << 20) / o->model.heads);
    o->model.ffn_dim = random_size(seed, 1, 1 << 24);
    o->model.layers = random_size(seed, 1, 8);
    o->model.vocab_size = random_size(seed, 1, INT32_MAX);
    o->model.seq_len = random_size(seed, 1, 1 << 24);
    o->model.kv_heads = 0;
    o->train.micro_batch = random_size(seed, 1, 1 << 20);
    o->train.global_batch = 0;
    o->train.steps = random_size(seed, 1, INT64_C(1000000000000));
}

/* Activations of GPT-2 on the CPU, by the list at the top of gpt2.c. */
static double gpt2_activations(const options_t *o)
{
    double C = (double)o->model.dim, F = (double)o->model.ffn_dim, heads = (double)o->model.heads;
    double R = (double)o->train.micro_batch * (double)o->model.seq_len, L = (double)o->model.layers;
    double layer = 8 * C + 2 * F + 4 + heads, shared = 2 + 2 * C + (F > 3 * C ? F : 3 * C);
    return 4 * (R * (L * layer + shared) + C);
}

/* Whatever the sizes, they are refused in a line, or the plan is what it is in fp64: no product wraps. */
START_TEST(sizes_are_planned_without_overflow_or_refused)
{
    static options_t base, options;
    char path[256], *argv[] = {(char *)"zerotrain", path};
    options_action_t action;
    uint64_t seed = 5;
    int n_planned = 0, n_large = 0;
    snprintf(path, sizeof path, "configs/%s.ini", READY[0].name);
    ck_assert_int_eq(options_parse(2, argv, &base, &action), ZERO_OK);
    base.model.arch = ARCH_GPT2;
    base.model.recompute = RECOMPUTE_NONE;
    for (int round = 0; round < 3000; round++) {
        model_t model;
        zero_memory_t memory = {0};
        options = base;
        randomize(&seed, &options);
        capture_begin();
        bool is_planned = options_resolve(&options, 1) == ZERO_OK && model_create(&options, &model) == ZERO_OK;
        bool is_silent = capture_end()[0] == 0;
        ck_assert(is_silent == is_planned);
        if (!is_planned)
            continue;
        model_plan(&model, &memory);
        double want = gpt2_activations(&options), got = (double)memory.bytes[ZERO_MEMORY_ACTIVATIONS];
        double table = 4.0 * (double)options.model.dim * (double)options.model.vocab_size; /* cast to fp32 */
        ck_assert_msg(fabs(got - want) <= 1e-9 * want + 256.0 * (double)(13 * options.model.layers + 7),
                      "%.0f bytes planned, %.0f needed", got, want);
        ck_assert_double_ge((double)memory.bytes[ZERO_MEMORY_WORKSPACE], table * (1 - 1e-9));
        ck_assert_double_lt((double)zero_memory_total(&memory), 0x1p62);
        n_planned++;
        n_large += got > 0x1p50;
        model_destroy(&model);
    }
    ck_assert_msg(n_planned > 500 && n_planned < 2500 && n_large > 50, "%d, %d", n_planned, n_large);
}
END_TEST

/* ---- Attention that is slow ---- */

static zero_attention_shape_t asked_for;
static zero_mask_t asked_mask;

static bool says_slow(zero_model_context_t *ctx, const zero_mask_t *mask, const zero_attention_shape_t *shape,
                      char why[ZERO_MODEL_WHY])
{
    asked_mask = *mask;
    ck_assert_ptr_nonnull(ctx->workspace); /* which plans are made for */
    asked_for = *shape;
    snprintf(why, ZERO_MODEL_WHY, "the reason");
    return true;
}

static bool says_fast(zero_model_context_t *ctx, const zero_mask_t *mask, const zero_attention_shape_t *shape,
                      char why[ZERO_MODEL_WHY])
{
    (void)says_slow(ctx, mask, shape, why);
    return false;
}

/* Returns what is logged when the trainer is opened with this table. */
static const char *attach_with(bool (*attention_is_slow)(zero_model_context_t *, const zero_mask_t *,
                                                         const zero_attention_shape_t *, char *))
{
    zero_comm_t *comm;
    trainer_t t = {0};
    options_t options = trainer_options(2, 48, 6, 259, 17);
    zero_model_kernels_t kernels;
    options.model.arch = ARCH_LLAMA;
    options.model.kv_heads = 2;
    options.train.micro_batch = 5;
    ck_assert_int_eq(options_resolve(&options, 1), ZERO_OK);
    ck_assert_int_eq(zero_comm_create(ZERO_COMM_AUTO, &comm), ZERO_OK);
    ck_assert_int_eq(trainer_prepare(&t, &options, comm), ZERO_OK);
    kernels = *t.model.kernels;
    kernels.attention_is_slow = attention_is_slow;
    t.model.kernels = &kernels;
    capture_begin();
    zero_status_t status = model_attach(&t.model, t.device, t.engine, 1);
    const char *said = capture_end();
    ck_assert_int_eq(status, ZERO_OK);
    trainer_close(&t);
    zero_comm_destroy(comm);
    return said;
}

START_TEST(attention_that_is_slow_is_one_warning_before_the_first_step)
{
    const zero_attention_shape_t want = {5, 17, 6, 2, 8};
    expect_line(attach_with(says_slow),
                (const char *[]){"warning: attention", "without tensor cores", ": the reason\n", NULL});
    ck_assert_mem_eq(&asked_for, &want, sizeof want);
    ck_assert(asked_mask.starts == NULL && asked_mask.window == 0);
    ck_assert_str_eq(attach_with(says_fast), "");
    ck_assert_str_eq(attach_with(NULL), ""); /* as the CPU's table */
    report_init(1, 2);                       /* one rank logs for all */
    ck_assert_str_eq(attach_with(says_slow), "");
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("model_setup");
    TCase *configurations = tcase_create("setup");
    tcase_add_loop_test(configurations, ready_configurations_have_the_published_sizes, 0, N_READY);
    tcase_add_test(configurations, sizes_are_planned_without_overflow_or_refused);
    tcase_add_test(configurations, attention_that_is_slow_is_one_warning_before_the_first_step);
    suite_add_tcase(s, configurations);
    return s;
}

int main(void)
{
    return support_main(suite());
}
