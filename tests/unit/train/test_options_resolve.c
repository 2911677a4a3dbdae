/* test_options_resolve.c - what settings mean together: sizes and batches that are derived, contradictions, what a
 * device lacks. */
#include "tests/unit/train/parse_options.h"

/* Returns the minimal configuration with these settings of [train], or of sections that they begin. */
static options_t with_train(const char *settings)
{
    char text[1000];
    snprintf(text, sizeof text, MINIMAL "[train]\n%s\n", settings);
    return must_parse(text, NULL);
}

/* Expects a refusal in one line that contains every fragment. */
static void expect_contradiction(options_t *options, int world_size, const char *const *fragments)
{
    capture_begin();
    zero_status_t status = options_resolve(options, world_size);
    expect_line(capture_end(), fragments);
    ck_assert_int_eq(status, ZERO_ERROR_USAGE);
}

START_TEST(batches_are_derived)
{
    static const struct {
        const char *given;
        int world_size, micro, global, micro_steps;
    } cases[] = {
        {"", 1, 8, 8, 1},
        {"", 3, 8, 24, 1},
        {"micro_batch = 2", 4, 2, 8, 1},
        {"global_batch = 24", 1, 24, 24, 1},
        {"global_batch = 24", 8, 3, 24, 1},
        {"global_batch = 24\nmicro_batch = 2", 3, 2, 24, 4},
        {"global_batch = 24\nmicro_batch = 1", 24, 1, 24, 1},
        {"global_batch = 24\nmicro_batch = 12", 2, 12, 24, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        options_t options = with_train(cases[i].given);
        ck_assert_int_eq(options_resolve(&options, cases[i].world_size), ZERO_OK);
        ck_assert_int_eq(options.train.micro_batch, cases[i].micro);
        ck_assert_int_eq(options.train.global_batch, cases[i].global);
        ck_assert_int_eq(options_micro_steps(&options.train, cases[i].world_size), cases[i].micro_steps);
    }
}
END_TEST

START_TEST(contradictory_settings_are_refused)
{
    static const struct {
        const char *given;
        int world_size;
        const char *fragments[5];
    } cases[] = {
        {"global_batch = 24", 5, {"global_batch", "24", "5"}},
        {"global_batch = 24\nmicro_batch = 5", 2, {"global_batch", "24 is not divisible", "5 * 2"}},
        {"global_batch = 24\nmicro_batch = 48", 1, {"24 is not divisible"}},
        {"global_batch = 4", 8, {"4 sequences are fewer than the 8 ranks"}},
        {"steps = 5\nwarmup_steps = 6", 1, {"warmup_steps", "6", "5"}},
        {"lr = 0.1\nmin_lr = 0.2", 1, {"min_lr", "0.2", "0.1"}},
        {"eval_every = 5", 1, {"eval_every", "[data] val"}},
        {"[checkpoint]\nevery = 5", 1, {"[checkpoint] every: 5", "[checkpoint] dir"}},
        {"[model]\nkv_heads = 2", 1, {"heads: 3 is not divisible by kv_heads = 2"}},
        {"[model]\nkv_heads = 1", 1, {"kv_heads", "gpt2"}},
        {"[model]\nkeep_attention = true", 1, {"keep_attention", "recompute = none", "set recompute = full"}},
        {"steps = 1000000000000\nglobal_batch = 2147483647", 1, {"steps", "2147483647 sequences", "1024", "2.2e+24"}},
        {"precision = fp32\n[zero]\ngradients = bf16", 1, {"[zero] gradients = bf16", "[train] precision = fp32"}},
        {"precision = fp16\n[zero]\ngradients = bf16", 1, {"[zero] gradients = bf16", "[train] precision = fp16"}},
        {"[zero]\ngradients = bf16\nstage = 0", 1, {"[zero] gradients = bf16", "take stage 1, 2 or 3"}},
        {"optimizer = muon\n[zero]\ngradients = bf16", 1, {"[zero] gradients = bf16", "[train] optimizer = muon"}},
        {"[zero]\nupdate = backward", 1, {"[zero] update = backward: [train] grad_clip = 1", "set grad_clip = 0"}},
        {"grad_clip = 0\n[zero]\nupdate = backward\nstage = 0", 1, {"[zero] update = backward", "stage 1, 2 or 3"}},
        {"grad_clip = 0\nprecision = fp16\n[zero]\nupdate = backward",
         1,
         {"[zero] update = backward", "[train] precision = fp16"}},
        {"grad_clip = 0\noptimizer = muon\n[zero]\nupdate = backward",
         1,
         {"[zero] update = backward", "[train] optimizer = muon"}},
        {"grad_clip = 0\n[zero]\nupdate = backward\noffload = optimizer\noffload_update = host",
         1,
         {"[zero] update = backward", "offload_update = host"}},
        {"optimizer = muon\n[zero]\noffload = optimizer",
         1,
         {"[train] optimizer = muon", "updated whole, on the device", "[zero] offload = none"}},
        {"sequence_ranks = 2", 1, {"[train] sequence_ranks: 2", "1 rank: start a multiple"}},
        {"micro_batch = 1048576\n[model]\nseq_len = 2048", 1, {"micro_batch", "1048576", "2048", "2^31 - 1"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        options_t options = with_train(cases[i].given);
        expect_contradiction(&options, cases[i].world_size, cases[i].fragments);
        ck_assert_int_eq(options.model.ffn_dim, 0); /* nothing is filled in on failure */
    }
}
END_TEST

/* As in transformers with use_sliding_window. */
START_TEST(a_window_of_smollm3_is_that_of_the_layers_without_rope)
{
    options_t options = must_parse(MINIMAL, (const char *[]){"--set", "model.arch=smollm3", NULL});
    options.model.layers = 9, options.model.window = 7;
    options_t few = options;
    ck_assert_int_eq(options_resolve(&options, 1), ZERO_OK);
    for (int layer = 0; layer < 9; layer++) {
        ck_assert_int_eq(options_window(&options.model, layer), layer % 4 == 3 ? 7 : 0);
        ck_assert_int_eq(options_is_rotated(&options.model, layer), layer % 4 != 3);
    }
    few.model.layers = 3;
    expect_contradiction(&few, 1, (const char *[]){"[model] window", "every 4th has one, and there are 3", NULL});
}
END_TEST

START_TEST(options_that_contradict_the_file_or_the_ranks_are_refused)
{
    static const struct {
        const char *text, *arguments[3];
        int world_size;
        const char *fragments[3];
    } cases[] = {
        {MINIMAL, {"--set", "model.heads=5"}, 1, {"[model] dim: 36 is not divisible by heads = 5"}},
        {"[model]\ninit = x\n[data]\ntrain = a\n", {NULL}, 1, {"[model] layers is missing"}},
        {MINIMAL, {"--resume"}, 1, {"--resume", "[checkpoint] dir is empty"}},
        {MINIMAL, {"--force"}, 1, {"--force", "without --resume"}},
        {MINIMAL, {"--hosts", "2"}, 2, {"--hosts: this is for --plan"}},
        {MINIMAL, {"--plan", "--hosts=2"}, 3, {"--hosts 2: the 3 ranks cannot be equally many on each host"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        options_t options = must_parse(cases[i].text, cases[i].arguments);
        expect_contradiction(&options, cases[i].world_size, cases[i].fragments);
    }
}
END_TEST

/* A file's steps give way to epochs of the command line, and the other way round. 0 epochs are none. */
START_TEST(a_length_on_the_command_line_replaces_that_of_the_file)
{
    static const struct {
        const char *file, *setting;
        int64_t steps;
        double epochs;
    } cases[] = {
        {"steps = 7", "train.epochs=2", 1000, 2.0},
        {"epochs = 3", "TRAIN.STEPS=5", 5, 0.0},
        {"steps = 7", "train.epochs=0", 7, 0.0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[300];
        snprintf(text, sizeof text, MINIMAL "[train]\n%s\n", cases[i].file);
        options_t options = must_parse(text, ARGUMENTS("--set", cases[i].setting));
        ck_assert_int_eq(options_resolve(&options, 1), ZERO_OK);
        ck_assert_int_eq(options.train.steps, cases[i].steps);
        ck_assert_double_eq(options.train.epochs, cases[i].epochs);
    }
    options_t options = with_train("steps = 7\nepochs = 2");
    expect_contradiction(&options, 1, (const char *[]){"[train] steps and epochs: give one of them", NULL});
}
END_TEST

/* Each within its range; multiplied, more than 64 bits hold: activations, logits, matrices, scores. */
START_TEST(state_for_updates_in_backward_has_a_48th_of_the_limit)
{
    static const struct {
        const char *memory;
        size_t mib;
    } cases[] = {{"0", 1024}, {"6", 256}, {"12", 256}, {"24", 512}, {"48", 1024}, {"141", 1024}};
    char text[400];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(text, sizeof text,
                 MINIMAL "[train]\nmicro_batch = 1\nglobal_batch = 1\ngrad_clip = 0\n[zero]\nupdate = "
                         "backward\n[device]\nmemory = %s\n",
                 cases[i].memory);
        const options_t options = must_parse(text, NULL);
        ck_assert_uint_eq(options_config(&options, 1).offload_buffer_bytes, cases[i].mib << 20);
    }
    const options_t options = must_parse(MINIMAL "[train]\nmicro_batch = 1\nglobal_batch = 1\n", NULL);
    ck_assert_uint_eq(options_config(&options, 1).offload_buffer_bytes, zero_config_default().offload_buffer_bytes);
}
END_TEST

START_TEST(sizes_beyond_any_memory_are_refused)
{
    static const struct {
        int64_t micro_batch, seq_len, layers, dim, heads, ffn_dim, vocab_size;
    } cases[] = {{127, 1 << 24, 10000, 1 << 20, 16, 1, 1},
                 {127, 1 << 24, 1, 1, 1, 1 << 24, 1},
                 {127, 1 << 24, 1, 1, 1, 1, INT32_MAX},
                 {127, 1 << 24, 10000, 1 << 16, 1 << 16, 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        options_t options = must_parse(MINIMAL, NULL);
        options.train.micro_batch = cases[i].micro_batch;
        options.model.seq_len = cases[i].seq_len;
        options.model.layers = cases[i].layers;
        options.model.dim = cases[i].dim;
        options.model.heads = cases[i].heads;
        options.model.ffn_dim = cases[i].ffn_dim;
        options.model.vocab_size = cases[i].vocab_size;
        expect_contradiction(&options, 1, (const char *[]){"[model]", "[train] micro_batch", "bytes", NULL});
    }
}
END_TEST

START_TEST(sizes_and_rates_are_derived_by_architecture)
{
    options_t options = with_train("lr = 0.5");
    ck_assert_int_eq(options_resolve(&options, 1), ZERO_OK);
    ck_assert(options.model.kv_heads == 3 && options.model.ffn_dim == 144 && options.train.min_lr == 0.05);
    ck_assert(options.model.vocab_size == 256 && options.model.seq_len == 1024);
    options = with_train("min_lr = 0");
    ck_assert_int_eq(options_resolve(&options, 1), ZERO_OK);
    ck_assert(options.train.min_lr == 0);
    options = with_train("schedule = constant\nlr = 1e-4\nmin_lr = 3e-4"); /* which is idle */
    ck_assert_int_eq(options_resolve(&options, 1), ZERO_OK);
    options = must_parse(MINIMAL, NULL);
    options.model.arch = ARCH_LLAMA; /* Llama 2 7B and 13B have these */
    options.model.heads = 32, options.model.kv_heads = 8;
    options.model.dim = 4096, options.model.ffn_dim = 0;
    ck_assert_int_eq(options_resolve(&options, 1), ZERO_OK);
    ck_assert_int_eq(options.model.ffn_dim, 11008);
    options.model.dim = 5120, options.model.ffn_dim = 0;
    ck_assert_int_eq(options_resolve(&options, 1), ZERO_OK);
    ck_assert_int_eq(options.model.ffn_dim, 13824);
    options.model.heads = options.model.kv_heads = 1, options.model.dim = 37, options.model.head_dim = 0;
    expect_contradiction(&options, 1, (const char *[]){"37", "odd", "llama", NULL});
}
END_TEST

START_TEST(heads_and_scaled_positions_must_fit)
{
    options_t options = must_parse(MINIMAL, NULL);
    options.model.head_dim = 10; /* of GPT-2, whose heads are dim / heads */
    expect_contradiction(&options, 1, (const char *[]){"[model] head_dim", "10", "leave it out", NULL});
    options.model.head_dim = 0, options.model.dim = 3 * 65537;
    expect_contradiction(&options, 1, (const char *[]){"[model] heads", "65537", "more than 65536", NULL});
    options.model.head_dim = 10;
    options.model.dim = 37; /* no multiple of heads, which the classes of two families in transformers refuse */
    options.model.arch = ARCH_GEMMA3;
    expect_contradiction(&options, 1, (const char *[]){"[model] dim: 37", "heads = 3", "no Gemma 3", "mistral", NULL});
    options.model.arch = ARCH_LLAMA;
    expect_contradiction(&options, 1, (const char *[]){"[model] dim: 37", "heads = 3", "no Llama", "mistral", NULL});
    options.model.arch = ARCH_MISTRAL;
    ck_assert_int_eq(options_resolve(&options, 1), ZERO_OK);
    ck_assert_int_eq(options_head_dim(&options.model), 10);
    ck_assert_double_eq(options.model.rope_factor, 1.0);
    options.model.rope = ROPE_LLAMA3; /* the numbers of Llama 3.1 */
    ck_assert_int_eq(options_resolve(&options, 1), ZERO_OK);
    ck_assert(options.model.rope_factor == 8.0 && options.model.rope_low_freq == 1.0 &&
              options.model.rope_high_freq == 4.0 && options.model.rope_original == 8192);
    options.model.rope_low_freq = 4;
    expect_contradiction(&options, 1,
                         (const char *[]){"[model] init: low_freq_factor = 4", "high_freq_factor = 4", NULL});
    options.model.arch = ARCH_PHI3; /* whose class in transformers, and so hf_rope.c, takes no such checkpoint */
    expect_contradiction(&options, 1, (const char *[]){"[model] rope: llama3", "Phi-3", "default", NULL});
}
END_TEST

/* Of families whose layers with a window have a base of their own, which is not scaled: an OLMo 3 from scratch has one
 * base in all layers, a Gemma 3 has 10000 in those with a window. */
START_TEST(the_base_of_layers_with_a_window_is_known)
{
    static const struct {
        const char *arch;
        int64_t layers;
        double local;
        const char *idle[2];
    } cases[] = {
        {"olmo3", 3, 777.0, {"rope"}},
        {"olmo3", 4, 777.0, {NULL}},
        {"gemma3_text", 5, 1e4, {"rope_theta", "rope"}},
        {"gemma3_text", 6, 1e4, {NULL}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[400], line[100];
        snprintf(text, sizeof text, MINIMAL "[model]\narch = %s\nrope_theta = 777\nrope = llama3\n", cases[i].arch);
        options_t options = must_parse(text, NULL);
        options.model.layers = cases[i].layers;
        ck_assert_int_eq(options_resolve(&options, 1), ZERO_OK);
        ck_assert_double_eq(options.model.rope_local_theta, cases[i].local);
        capture_begin();
        options_report_idle(&options);
        const char *said = capture_end();
        ck_assert_int_eq(support_count(said, "\n"), (cases[i].idle[0] != NULL) + (cases[i].idle[1] != NULL));
        for (int k = 0; k < 2 && cases[i].idle[k]; k++) {
            snprintf(line, sizeof line, "[model] %s changes nothing here: every layer has a window", cases[i].idle[k]);
            ck_assert_msg(strstr(said, line) != NULL, "%s of %d layers: %s", cases[i].arch, (int)cases[i].layers, said);
        }
    }
}
END_TEST

START_TEST(settings_that_the_device_lacks_are_refused)
{
    static const struct {
        const char *setting;
        zero_device_type_t device;
        const char *says; /* NULL: accepted */
    } cases[] = {{"zero.comm=nccl", ZERO_DEVICE_CPU, "[zero] comm = nccl: NCCL is for GPUs"},
                 {"zero.comm=nccl", ZERO_DEVICE_CUDA, NULL},
                 {"zero.comm=nccl", ZERO_DEVICE_CUDA_SHARED, NULL}, /* if each rank has a GPU */
                 {"zero.comm=mpi", ZERO_DEVICE_CPU, NULL},
                 {"zero.offload=optimizer", ZERO_DEVICE_CUDA, NULL},
                 {"zero.offload=optimizer", ZERO_DEVICE_CPU, NULL},
                 {"zero.offload=all", ZERO_DEVICE_CUDA, NULL},
                 {"zero.offload=all", ZERO_DEVICE_CPU, NULL},
                 {"zero.reduction=nccl", ZERO_DEVICE_CUDA, NULL},
                 {"zero.reduction=nccl", ZERO_DEVICE_CPU, NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        options_t options = must_parse(MINIMAL, ARGUMENTS("--set", cases[i].setting));
        options.device.type = cases[i].device;
        capture_begin();
        zero_status_t status = options_check_device(&options);
        const char *said = capture_end();
        ck_assert_int_eq(status, cases[i].says ? ZERO_ERROR_USAGE : ZERO_OK);
        if (cases[i].says)
            expect_line(said, (const char *[]){cases[i].says, NULL});
        else
            ck_assert_str_eq(said, "");
    }
    options_t options = must_parse(MINIMAL, ARGUMENTS("--stage", "0", "--set", "zero.offload=optimizer"));
    options.device.type = ZERO_DEVICE_CUDA;
    capture_begin();
    ck_assert_int_eq(options_check_device(&options), ZERO_ERROR_USAGE);
    expect_line(capture_end(), (const char *[]){"[zero] offload = optimizer", "stage 0", NULL});
}
END_TEST

/* Nothing is silent: what is given without effect beside the other settings is named, and nothing else is. */
START_TEST(settings_that_change_nothing_are_named)
{
    static const struct {
        const char *given, *key, *besides; /* settings with which the key changes nothing, and with which it does */
    } cases[] = {
        {"model.tied=false", "[model] tied", "model.arch=llama"},
        {"model.rope_theta=5e5", "[model] rope_theta", "model.arch=llama"},
        {"model.rope=llama3", "[model] rope", "model.arch=llama"},
        {"data.long_documents=drop", "[data] long_documents", "data.packing=fit"},
        {"train.momentum=0.8", "[train] momentum", "train.optimizer=sgd"},
        {"train.muon_momentum=0.9", "[train] muon_momentum", "train.optimizer=muon"},
        {"train.muon_steps=6", "[train] muon_steps", "train.optimizer=muon"},
        {"train.eval_batches=3", "[train] eval_batches", "data.val=b.txt"},
        {"zero.offload_ratio=0.5", "[zero] offload_ratio", "zero.offload=optimizer"},
        {"zero.offload_update=host", "[zero] offload_update", "zero.offload=optimizer"},
        {"zero.offload_threads=2", "[zero] offload_threads", "zero.offload=optimizer"},
        {"zero.offload_ram=0.2", "[zero] offload_ram", "zero.offload=optimizer"},
        {"zero.overlap=false", "[zero] overlap", "device.type=cuda"},
        {"device.graphs=false", "[device] graphs", "device.type=cuda"},
        {"zero.reduce_every_micro_step=false", "[zero] reduce_every_micro_step", "zero.stage=1"},
        {"checkpoint.keep=3", "[checkpoint] keep", "checkpoint.dir=ck"},
        {"checkpoint.async=false", "[checkpoint] async", "checkpoint.dir=ck"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int has_effect = 0; has_effect < 2; has_effect++) {
            const char *settings[] = {"--set", cases[i].given, has_effect ? "--set" : NULL, cases[i].besides, NULL};
            options_t options = must_parse(MINIMAL, settings);
            if (options.device.type == ZERO_DEVICE_AUTO)
                options.device.type = ZERO_DEVICE_CPU;
            for (int v = 0; v < OPTIONS_MAX_VAL_SETS; v++)
                options.data.val_packing[v] = PACKING_CUT;
            if (options.data.packing == PACKING_AUTO)
                options.data.packing = PACKING_CUT;
            capture_begin();
            options_report_idle(&options);
            const char *said = capture_end();
            if (has_effect)
                ck_assert_msg(said[0] == 0, "%s with %s: %s", cases[i].given, cases[i].besides, said);
            else
                expect_line(said, (const char *[]){cases[i].key, "changes nothing here: ", NULL});
        }
}
END_TEST

/* auto counts up from 1, beyond what the table of settings allows to write. */
START_TEST(no_more_ranks_share_a_sequence_than_can)
{
    options_t options = must_parse(MINIMAL, ARGUMENTS("--set", "model.dim=96", "--set", "model.heads=96", "--set",
                                                      "train.sequence_ranks=auto", "--set", "train.global_batch=1"));
    expect_contradiction(&options, 96, (const char *[]){"[train] sequence_ranks: auto needs 96 ranks", "64", NULL});
}
END_TEST

START_TEST(graphs_change_nothing_where_ranks_share_sequences)
{
    options_t options =
        must_parse(MINIMAL, ARGUMENTS("--set", "device.graphs=true", "--set", "train.sequence_ranks=2"));
    options.device.type = ZERO_DEVICE_CUDA;
    capture_begin();
    options_report_idle(&options);
    expect_line(capture_end(), (const char *[]){"[device] graphs changes nothing here: ", "sequence_ranks", NULL});
}
END_TEST

START_TEST(a_last_step_beyond_the_run_is_named)
{
    static const char *const given[] = {"1000", "1001"};
    for (int i = 0; i < 2; i++) {
        options_t options = must_parse(MINIMAL, ARGUMENTS("--steps", given[i]));
        capture_begin();
        options_report_idle(&options);
        const char *said = capture_end();
        if (i == 0)
            ck_assert_str_eq(said, "");
        else
            expect_line(said, (const char *[]){"--steps 1001 changes nothing here", "[train] steps = 1000", NULL});
    }
}
END_TEST

/* What one optimizer has, another lacks. With adapters Muon has no AdamW beside it. */
START_TEST(settings_of_another_optimizer_are_named)
{
    static const char *const settings[] = {"beta1", "beta2", "eps", "momentum", "muon_momentum", "muon_steps"};
    static const struct {
        const char *name, *has[5];
    } optimizers[] = {{"adamw", {"beta1", "beta2", "eps"}},
                      {"adamw8bit", {"beta1", "beta2", "eps"}},
                      {"lion", {"beta1", "beta2"}},
                      {"sgd", {"momentum"}},
                      {"nesterov", {"momentum"}},
                      {"muon", {"beta1", "beta2", "eps", "muon_momentum", "muon_steps"}},
                      {"muon\n[lora]\nrank = 2\n[train]", {"muon_momentum", "muon_steps"}}};
    for (size_t i = 0; i < sizeof optimizers / sizeof optimizers[0]; i++) {
        char text[500], line[100];
        snprintf(text, sizeof text,
                 MINIMAL "[train]\noptimizer = %s\nschedule = constant\nmin_lr = 0\nbeta1 = 0.5\n"
                         "beta2 = 0.5\neps = 1e-9\nmomentum = 0.5\nmuon_momentum = 0.5\nmuon_steps = 3\n",
                 optimizers[i].name);
        options_t options = must_parse(text, NULL);
        capture_begin();
        options_report_idle(&options);
        const char *said = capture_end();
        ck_assert_msg(strstr(said, "[train] min_lr changes nothing here: schedule = constant") != NULL, "%s", said);
        for (size_t k = 0; k < sizeof settings / sizeof settings[0]; k++) {
            bool has = false;
            for (size_t h = 0; h < 5 && optimizers[i].has[h]; h++)
                has = has || strcmp(optimizers[i].has[h], settings[k]) == 0;
            snprintf(line, sizeof line, "[train] %s changes nothing here: ", settings[k]);
            ck_assert_msg((strstr(said, line) == NULL) == has, "%s, %s: %s", optimizers[i].name, settings[k], said);
        }
    }
}
END_TEST

/* Warm-up up to the last step leaves none at which the rate falls. */
START_TEST(min_lr_is_idle_if_the_rate_only_rises)
{
    for (int warmup = 3; warmup <= 4; warmup++) {
        char text[200];
        snprintf(text, sizeof text, MINIMAL "[train]\nsteps = 4\nwarmup_steps = %d\nmin_lr = 1e-5\n", warmup);
        options_t options = must_parse(text, NULL);
        capture_begin();
        options_report_idle(&options);
        const bool is_named = strstr(capture_end(), "[train] min_lr changes nothing here: lr rises") != NULL;
        ck_assert_int_eq(is_named, warmup == 4);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("options_resolve");
    TCase *c = tcase_create("resolve");
    tcase_add_checked_fixture(c, set_up, NULL);
    tcase_set_timeout(c, 120);
    tcase_add_test(c, settings_that_the_device_lacks_are_refused);
    tcase_add_test(c, batches_are_derived);
    tcase_add_test(c, contradictory_settings_are_refused);
    tcase_add_test(c, options_that_contradict_the_file_or_the_ranks_are_refused);
    tcase_add_test(c, a_window_of_smollm3_is_that_of_the_layers_without_rope);
    tcase_add_test(c, a_length_on_the_command_line_replaces_that_of_the_file);
    tcase_add_test(c, state_for_updates_in_backward_has_a_48th_of_the_limit);
    tcase_add_test(c, sizes_beyond_any_memory_are_refused);
    tcase_add_test(c, sizes_and_rates_are_derived_by_architecture);
    tcase_add_test(c, heads_and_scaled_positions_must_fit);
    tcase_add_test(c, the_base_of_layers_with_a_window_is_known);
    tcase_add_test(c, settings_that_change_nothing_are_named);
    tcase_add_test(c, settings_of_another_optimizer_are_named);
    tcase_add_test(c, no_more_ranks_share_a_sequence_than_can);
    tcase_add_test(c, graphs_change_nothing_where_ranks_share_sequences);
    tcase_add_test(c, a_last_step_beyond_the_run_is_named);
    tcase_add_test(c, min_lr_is_idle_if_the_rate_only_rises);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
