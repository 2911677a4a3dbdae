/* test_options.c - settings and the command line: the contract of names, defaults, ranges, messages. */
#include "tests/support/options_dump.h"
#include "tests/unit/train/parse_options.h"

/* What one of the printing functions writes. Free it. */
static char *printed(void (*print)(const options_t *, FILE *), const options_t *options)
{
    char *text = NULL;
    size_t n_bytes;
    FILE *file = open_memstream(&text, &n_bytes);
    print(options, file);
    fclose(file);
    return text;
}

static void print_help(const options_t *options, FILE *file)
{
    (void)options;
    options_print_help(file);
}

/* ---- The contract ---- */

/* Every setting: its default as the dump shows it, values that are accepted and values that are refused (closed by
 * NULL). Written from the design page, not from the table. */
static const struct setting {
    const char *section, *key, *initial;
    const char *good[6], *bad[6];
} settings[] = {
    {"model", "arch", "gpt2", {"gpt2", "llama", "mistral", "qwen2", "qwen3", "smollm3"}, {"GPT2", "bert", "1", ""}},
    {"model", "layers", NULL, {"1", "96"}, {"0", "-1", "2.5", "x", "99999999999999999999", ""}},
    {"model", "dim", NULL, {"1", "12288"}, {"0", "-4", "4k", "1e3"}},
    {"model", "heads", NULL, {"1", "96"}, {"0", "-1", "none"}},
    {"model", "kv_heads", "0", {"0", "1", "8"}, {"-1", "0.5"}},
    {"model", "head_dim", "0", {"0", "1", "128"}, {"-1", "0.5"}},
    {"model", "ffn_dim", "0", {"0", "1", "49152"}, {"-1", "auto"}},
    {"model", "tied", "false", {"true", "false"}, {"maybe", ""}},
    {"model", "vocab_size", "0", {"0", "1", "50257", "2147483647"}, {"2147483648", "-5"}},
    {"model", "seq_len", "0", {"0", "1", "17", "131072"}, {"-1", "9223372036854775808"}},
    {"model", "positions", "0", {"1", "1024"}, {"-1", "1073741825"}},
    {"model", "window", "0", {"1", "4096"}, {"0x", "-1", "1073741825"}},
    {"model", "norm_eps", "1e-05", {"1e-6", "0.001"}, {"0", "-1e-5", "nan", "2"}},
    {"model", "rope_theta", "10000", {"500000", "1e6", "1"}, {"0", "-1", "inf"}},
    {"model", "rope", "default", {"default", "llama3", "yarn"}, {"dynamic", "8", ""}},
    {"model", "init", "random", {"random", "/models/gpt2"}, {""}},
    {"model", "tokenizer", "", {"", "/models/gpt2"}, {NULL}},
    {"model", "recompute", "none", {"none", "light", "full", "auto"}, {"some", "true"}},
    {"model", "keep_attention", "false", {"true", "false"}, {"auto", ""}},
    {"model", "offload_activations", "0", {"0", "0.5", "1", "auto"}, {"-0.1", "1.5", "all"}},
    {"data", "train", NULL, {"a.txt", "a.bin,b.bin"}, {""}},
    {"data", "val", "", {"", "v.txt"}, {NULL}},
    {"data", "format", "auto", {"auto", "text", "llmc", "uint32"}, {"bin", "json"}},
    {"data", "packing", "auto", {"auto", "cut", "fit", "pad"}, {"pack", "1"}},
    {"data", "long_documents", "truncate", {"truncate", "drop"}, {"cut", "1"}},
    {"data", "documents", "auto", {"auto", "join", "separate"}, {"apart", "1"}},
    {"train", "steps", "1000", {"1", "600000"}, {"0", "-1", "1e6"}},
    {"train", "epochs", "0", {"0", "0.5", "3"}, {"-1", "all", "0.0001"}},
    {"train", "micro_batch", "0", {"0", "1", "64", "auto"}, {"-1", "1.5"}},
    {"train", "sequence_ranks", "1", {"1", "2", "64", "auto"}, {"0", "-1", "65", "1.5"}},
    {"train", "mlp_tile", "auto", {"1", "16384", "auto"}, {"0", "-1", "1.5"}},
    {"train", "global_batch", "0", {"0", "1", "4096"}, {"-1", "2147483648"}},
    {"train", "lr", "0.0003", {"0", "3e-4", ".5", "+1"}, {"-1e-3", "nan", "inf", "fast", "0x1p3", "1e400"}},
    {"train", "min_lr", "-1", {"-1", "0", "-1.0", "1e-5"}, {"-0.5", "-2", "nan", "1e9"}},
    {"train", "warmup_steps", "0", {"0", "2000"}, {"-1", "1.5"}},
    {"train", "schedule", "cosine", {"cosine", "linear", "constant", "wsd"}, {"cos", "step"}},
    {"train", "objective", "next", {"next", "dpo"}, {"lm", ""}},
    {"train", "dpo_beta", "0.1", {"0.1", "1e-9", "5"}, {"0", "-1", "nan"}},
    {"train", "optimizer", "adamw", {"adamw", "sgd", "nesterov", "lion", "muon", "adamw8bit"}, {"adam", "adam8bit"}},
    {"train", "weight_decay", "0.1", {"0", "0.1"}, {"-0.1", "inf"}},
    {"train", "beta1", "0.9", {"0", "0.999"}, {"1", "-0.1"}},
    {"train", "beta2", "0.95", {"0", "0.999"}, {"1", "1.5", "nan"}},
    {"train", "momentum", "0.9", {"0", "0.99"}, {"1", "-0.1", "nan"}},
    {"train", "muon_momentum", "0.95", {"0", "0.99"}, {"1", "-0.1", "nan"}},
    {"train", "muon_steps", "5", {"1", "99"}, {"0", "100", "-1"}},
    {"train", "eps", "1e-08", {"1e-8", "1e-15"}, {"0", "-1e-8", "1e-400"}},
    {"train", "grad_clip", "1", {"0", "1.0"}, {"-1", "infinity"}},
    {"train", "precision", "bf16", {"bf16", "fp32", "fp16"}, {"fp8", "float"}},
    {"train", "fp8", "none", {"none", "linear"}, {"e4m3", "true"}},
    {"train", "seed", "1", {"0", "9223372036854775807"}, {"-1", "9223372036854775808"}},
    {"train", "eval_every", "0", {"0", "250"}, {"-1"}},
    {"train", "eval_batches", "20", {"1", "100"}, {"0", "-1"}},
    {"train", "sample_every", "0", {"0", "500"}, {"-1"}},
    {"lora", "rank", "0", {"0", "1", "16", "65536"}, {"-1", "r", "65537"}},
    {"lora", "alpha", "0", {"0", "16", "0.5"}, {"-1", "nan", "1e7"}},
    {"lora", "targets", "all-linear", {"all-linear", "q,v"}, {""}},
    {"lora", "base", "bf16", {"bf16", "fp8"}, {"nf4", "int8", ""}},
    {"lora", "init", "random", {"random", "/adapters/a"}, {""}},
    {"lora", "seed", "-1", {"-1", "0", "7"}, {"-2", "x"}},
    {"lora", "rslora", "false", {"true", "false"}, {"maybe", ""}},
    {"zero", "stage", "3", {"0", "1", "2", "3", "auto"}, {"4", "-1", "three"}},
    {"zero", "offload", "none", {"none", "optimizer", "all"}, {"cpu"}},
    {"zero", "offload_ratio", "1", {"0", "0.5", "1", "auto"}, {"1.01", "-0.1", "-1", "Auto", "automatic"}},
    {"zero", "offload_params_ratio", "1", {"0", "0.5", "1", "auto"}, {"1.01", "-1", "all"}},
    {"zero", "gradients", "fp32", {"fp32", "bf16"}, {"fp16", "16"}},
    {"zero", "update", "step", {"step", "backward"}, {"forward", ""}},
    {"zero", "offload_update", "auto", {"auto", "device", "host"}, {"cpu", "gpu", "Host", ""}},
    {"zero", "offload_threads", "0", {"0", "1", "96"}, {"-1", "1025", "all"}},
    {"zero", "offload_ram", "0.5", {"0.1", "1"}, {"0", "1.5", "-1", "auto"}},
    {"zero", "prefetch", "1", {"0", "1", "4"}, {"-1", "true"}},
    {"zero", "shard_group", "world", {"world", "host", "1", "8"}, {"0", "-1", "node", "1.5", ""}},
    {"zero", "keep", "0", {"0", "1", "32", "auto"}, {"-1", "1.5", "all", "Auto", "10001"}},
    {"zero", "overlap", "true", {"true", "false", "no", "ON"}, {"2", "maybe", ""}},
    {"zero", "reduce_every_micro_step", "true", {"1", "0", "yes", "off"}, {"-1", "t"}},
    {"zero", "comm", "auto", {"auto", "mpi"}, {"gloo"}},
    {"zero", "reduction", "ordered", {"ordered", "nccl"}, {"ring"}},
    {"zero", "gather", "bf16", {"bf16"}, {"e4m3", "true"}},
    {"zero", "check", "false", {"true", "false", "1", "0"}, {"2", "all"}},
    {"device", "type", "auto", {"auto", "cpu"}, {"gpu", "CPU"}},
    {"device", "graphs", "true", {"true", "false", "no", "ON"}, {"2", "maybe", ""}},
    {"device", "memory", "0", {"0", "40", "0.5"}, {"-1", "auto", "inf", "1e9"}},
    {"checkpoint", "dir", "", {""}, {NULL}},
    {"checkpoint", "every", "0", {"0"}, {"-1"}},
    {"checkpoint", "keep", "2", {"1", "10"}, {"0", "-1"}},
    {"checkpoint", "best", "false", {"true", "false"}, {"2", ""}},
    {"checkpoint", "async", "true", {"true", "false"}, {"maybe"}},
    {"checkpoint", "memory_dir", "", {""}, {NULL}},
    {"checkpoint", "memory_every", "0", {"0", "20"}, {"-1", "often"}},
    {"log", "every", "10", {"0", "1"}, {"-1"}},
    {"log", "metrics", "", {"", "m.jsonl"}, {NULL}},
    {"log", "tensorboard", "", {""}, {NULL}},
    {"log", "trace", "", {""}, {NULL}},
};
enum { N_SETTINGS = sizeof settings / sizeof settings[0] };

/* Returns the value that the dump has for a setting; "?" if it has none. Valid until the next call. */
static const char *dumped(const options_t *options, const char *section, const char *key)
{
    static char value[OPTIONS_MAX_PATH + 2];
    char *text = printed(options_dump, options), header[64], name[64], *rest = text, *line;
    bool inside = false;
    snprintf(header, sizeof header, "[%s]", section);
    snprintf(name, sizeof name, "%s =", key);
    snprintf(value, sizeof value, "?");
    while ((line = strsep(&rest, "\n"))) {
        if (line[0] == '[')
            inside = strcmp(line, header) == 0;
        else if (inside && strncmp(line, name, strlen(name)) == 0)
            snprintf(value, sizeof value, "%s", line + strlen(name) + strspn(line + strlen(name), " "));
    }
    free(text);
    return value;
}

START_TEST(the_table_has_exactly_the_settings_of_the_contract)
{
    ck_assert_int_eq(n_option_rows, N_SETTINGS);
    for (int i = 0; i < N_SETTINGS; i++)
        ck_assert_msg(option_row_find(settings[i].section, settings[i].key) != NULL, "%s.%s", settings[i].section,
                      settings[i].key);
}
END_TEST

START_TEST(defaults_are_those_of_the_contract)
{
    options_t options = must_parse(MINIMAL, NULL);
    for (int i = 0; i < N_SETTINGS; i++)
        if (settings[i].initial)
            ck_assert_str_eq(dumped(&options, settings[i].section, settings[i].key), settings[i].initial);
    ck_assert_int_eq(options.model.layers, 2);
    ck_assert_int_eq(options.train.precision, ZERO_BF16);
    ck_assert_int_eq(options.zero.stage, 3);
    ck_assert(options.zero.overlap && !options.plan && !options.resume && options.stop_after == 0);
    ck_assert_str_eq(options.config_path, config);
}
END_TEST

/* Through --set; the file has the same parser behind it. */
START_TEST(values_in_range_are_taken_and_others_named)
{
    static options_t options;
    for (int i = 0; i < N_SETTINGS; i++) {
        const struct setting *s = &settings[i];
        char argument[200], name[100];
        snprintf(name, sizeof name, "[%s] %s: ", s->section, s->key);
        for (int g = 0; g < 6 && s->good[g]; g++) {
            snprintf(argument, sizeof argument, "%s.%s=%s", s->section, s->key, s->good[g]);
            ck_assert_msg(parse(MINIMAL, ARGUMENTS("--set", argument), &options) == ZERO_OK, "%s", argument);
        }
        for (int b = 0; b < 6 && s->bad[b]; b++) {
            snprintf(argument, sizeof argument, "%s.%s=%s", s->section, s->key, s->bad[b]);
            expect_refusal(MINIMAL, ARGUMENTS("--set", argument), (const char *[]){"--set ", argument, name, NULL});
        }
    }
}
END_TEST

START_TEST(values_arrive_in_their_fields)
{
    options_t o =
        must_parse("[model]\nlayers=3\ndim=40\nheads=5\nvocab_size=300\nseq_len=18\nrecompute=light\n"
                   "[data]\ntrain=x,y\nval=z\nformat=nanogpt\n"
                   "[train]\nsteps=77\nmicro_batch=2\nglobal_batch=8\nlr=0.25\nmin_lr=0.125\nwarmup_steps=5\n"
                   "schedule=wsd\noptimizer=lion\nmomentum=0.5\nmuon_momentum=0.25\nmuon_steps=6\nweight_decay=0."
                   "5\nbeta1=0.75\nbeta2=0.875\neps=0."
                   "0625\ngrad_clip=2\n"
                   "precision=fp32\nfp8=linear\nseed=9\neval_every=4\neval_batches=6\nsample_every=7\n"
                   "[zero]\nstage=1\noffload_ratio=0.5\noffload_update=host\noffload_threads=6\noffload_ram=0.25\n"
                   "prefetch=3\nkeep=12\noverlap=false\n"
                   "reduce_every_micro_step=false\ncomm=mpi\n[device]\ntype=cpu\n"
                   "[checkpoint]\nkeep=4\nasync=no\n[log]\nevery=2\nmetrics=m.jsonl\n",
                   NULL);
    ck_assert(o.model.layers == 3 && o.model.dim == 40 && o.model.heads == 5 && o.model.vocab_size == 300);
    ck_assert(o.model.seq_len == 18 && o.model.recompute == RECOMPUTE_LIGHT && o.model.arch == ARCH_GPT2);
    ck_assert_str_eq(o.data.train, "x,y");
    ck_assert_str_eq(o.data.val, "z");
    ck_assert(o.data.format == FORMAT_NANOGPT && o.train.steps == 77 && o.train.micro_batch == 2);
    ck_assert_int_eq(o.train.fp8, FP8_LINEAR);
    ck_assert(o.train.global_batch == 8 && o.train.lr == 0.25 && o.train.min_lr == 0.125 && o.train.warmup_steps == 5);
    ck_assert(o.train.schedule == SCHEDULE_WSD && o.train.weight_decay == 0.5 && o.train.beta1 == 0.75);
    ck_assert(o.train.optimizer == ZERO_OPTIMIZER_LION && o.train.momentum == 0.5);
    ck_assert(o.train.muon_momentum == 0.25 && o.train.muon_steps == 6);
    ck_assert(o.train.beta2 == 0.875 && o.train.eps == 0.0625 && o.train.grad_clip == 2);
    ck_assert(o.train.precision == ZERO_FP32 && o.train.seed == 9 && o.train.eval_every == 4);
    ck_assert(o.train.eval_batches == 6 && o.train.sample_every == 7 && o.zero.stage == 1);
    ck_assert(o.zero.offload_update == ZERO_OFFLOAD_UPDATE_HOST && o.zero.offload_threads == 6);
    ck_assert(o.zero.offload_ram == 0.25);
    ck_assert(o.zero.offload_ratio == 0.5 && o.zero.prefetch == 3 && o.zero.keep == 12 && !o.zero.overlap);
    ck_assert(!o.zero.reduce_every_micro_step && o.zero.comm == ZERO_COMM_MPI && o.device.type == ZERO_DEVICE_CPU);
    ck_assert(o.checkpoint.keep == 4 && !o.checkpoint.async && o.log.every == 2);
    ck_assert_str_eq(o.log.metrics, "m.jsonl");
}
END_TEST

START_TEST(the_command_line_wins_over_the_file_and_the_last_word_wins)
{
    const char *text = MINIMAL "[zero]\nstage = 1\n[train]\nlr = 0.5\nsteps = 10\n";
    ck_assert_int_eq(must_parse(text, NULL).zero.stage, 1);
    ck_assert_int_eq(must_parse(text, ARGUMENTS("--stage", "2")).zero.stage, 2);
    ck_assert_int_eq(must_parse(text, ARGUMENTS("--stage=2", "--set", "zero.stage=0")).zero.stage, 0);
    ck_assert_int_eq(must_parse(text, ARGUMENTS("--set", "zero.stage=0", "--stage", "2")).zero.stage, 2);
    ck_assert(must_parse(text, ARGUMENTS("--set", "TRAIN.LR= 0.25 ")).train.lr == 0.25);
    options_t options = must_parse(text, ARGUMENTS("--steps", "4", "--plan"));
    ck_assert(options.train.steps == 10 && options.stop_after == 4 && options.plan);
    ck_assert(must_parse(text, ARGUMENTS("--force")).force);
    ck_assert_int_eq(must_parse(text, ARGUMENTS("--plan", "--hosts=2")).hosts, 2);
    ck_assert_str_eq(must_parse(text, ARGUMENTS("--trace", "a.json")).log.trace, "a.json");
    ck_assert_str_eq(must_parse(text, ARGUMENTS("--trace=a.json", "--set", "log.trace=b")).log.trace, "b");
    options = must_parse(text, ARGUMENTS("--set", "log.metrics=a=b.c"));
    ck_assert_str_eq(options.log.metrics, "a=b.c");
}
END_TEST

START_TEST(help_names_every_setting_and_option)
{
    char *help = printed(print_help, NULL);
    for (int i = 0; i < N_SETTINGS; i++) {
        char in_help[100];
        snprintf(in_help, sizeof in_help, "\n  %s = ", settings[i].key);
        ck_assert_msg(strstr(help, in_help) != NULL, "%s", in_help);
    }
    const char *const words[] = {"--stage",   "--steps",  "--set", "--resume",      "--plan",       "--help", "--force",
                                 "--version", "\n[zero]", "[log]", "cosine|linear", "default 1000", "0..3"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        ck_assert_msg(strstr(help, words[i]) != NULL, "%s", words[i]);
    for (const char *line = help; *line; line += strcspn(line, "\n") + 1)
        ck_assert_msg(strcspn(line, "\n") <= 100, "wide: %.*s", (int)strcspn(line, "\n"), line);
    free(help);
}
END_TEST

START_TEST(help_and_version_need_no_file_and_exit_well)
{
    const char *const options_that_end[] = {"--help", "--version"};
    for (int i = 0; i < 2; i++) {
        char *argv[] = {(char *)"zerotrain", (char *)options_that_end[i]};
        static options_t options;
        options_action_t action = OPTIONS_RUN;
        fflush(stdout);
        int saved = dup(STDOUT_FILENO);
        FILE *file = tmpfile();
        dup2(fileno(file), STDOUT_FILENO);
        zero_status_t status = options_parse(2, argv, &options, &action);
        fflush(stdout);
        dup2(saved, STDOUT_FILENO);
        close(saved);
        rewind(file);
        char said[40] = "";
        ck_assert_ptr_nonnull(fgets(said, sizeof said, file));
        fclose(file);
        ck_assert_int_eq(status, ZERO_OK);
        ck_assert_int_eq(action, OPTIONS_EXIT_OK);
        ck_assert_ptr_nonnull(strstr(said, i == 0 ? "Usage: zerotrain" : "zerotrain "));
    }
}
END_TEST

START_TEST(the_dump_parses_back_to_the_same_options)
{
    uint64_t state = 4;
    for (int round = 0; round < 200; round++) {
        char arguments[N_SETTINGS][200];
        const char *list[13] = {0};
        for (int n = 0; n < 12; n += 2) {
            const struct setting *s = &settings[support_random(&state) % N_SETTINGS];
            int n_good = 0;
            while (n_good < 6 && s->good[n_good])
                n_good++;
            snprintf(arguments[n], sizeof arguments[n], "%s.%s=%s", s->section, s->key,
                     s->good[support_random(&state) % (uint64_t)n_good]);
            list[n] = "--set";
            list[n + 1] = arguments[n];
        }
        char lr[64];
        snprintf(lr, sizeof lr, "train.lr=%.17g", support_uniform(&state));
        list[1] = lr;
        list[3] = "log.metrics=dir/a#b;c 'd'.jsonl";
        options_t first = must_parse(MINIMAL, list);
        char *dump = printed(options_dump, &first);
        options_t second = must_parse(dump, NULL);
        memset(first.given, 0, sizeof first.given); /* the dump gives every key */
        memset(second.given, 0, sizeof second.given);
        ck_assert_mem_eq(&first, &second, sizeof first);
        free(dump);
    }
}
END_TEST

START_TEST(missing_required_settings_are_named)
{
    expect_refusal("[data]\ntrain=a\n[model]\ndim=4\nheads=1\n", NULL,
                   (const char *[]){"[model] layers is missing", config, NULL});
    expect_refusal("[data]\ntrain=a\n[model]\nlayers=4\nheads=1\n", NULL,
                   (const char *[]){"[model] dim is missing", NULL});
    expect_refusal("[data]\ntrain=a\n[model]\nlayers=4\ndim=4\n", NULL,
                   (const char *[]){"[model] heads is missing", NULL});
    expect_refusal("[model]\nlayers=4\ndim=4\nheads=1\n", NULL, (const char *[]){"[data] train is missing", NULL});
    expect_refusal("", NULL, (const char *[]){"is missing", NULL});
    options_t options = must_parse("[model]\ninit = /models/gpt2\n[data]\ntrain = a\n", NULL);
    ck_assert(options.model.layers == 0 && options.model.dim == 0 && options.model.heads == 0);
}
END_TEST

/* ---- Mistakes ---- */

START_TEST(names_of_other_trainers_suggest_ours)
{
    for (int i = 0; i < n_other_names; i++) {
        const other_name_t *name = &other_names[i];
        if (name->section && name->ours)
            ck_assert_msg(option_row_find(name->section, name->ours) && !option_row_find(name->section, name->theirs),
                          "%s", name->theirs);
        else if (name->section)
            ck_assert_msg(option_section_exists(name->section) && !option_section_exists(name->theirs), "%s",
                          name->theirs);
        int n_rows = 0; /* with that value */
        for (int row = 0; row < n_option_rows && !name->section; row++)
            for (const option_choice_t *choice = option_rows[row].choices; choice && choice->name; choice++)
                n_rows += strcmp(choice->name, name->ours) == 0;
        ck_assert_msg(name->section || n_rows > 0, "%s", name->theirs);
    }
}
END_TEST

/* Each row's replacement begins with a setting of the same section, which must be one. */
START_TEST(removed_settings_are_refused_with_what_replaces_them)
{
    static const char *const removed[] = {
        "train.fp8=linear-exact-dw", "model.rope_factor=8",    "model.rope_low_freq=1",  "model.rope_high_freq=4",
        "model.rope_original=8192",  "model.recompute_none=1", "model.recompute_light=1"};
    const int n_removed = sizeof removed / sizeof removed[0];
    ck_assert_int_eq(n_removed_settings, n_removed);
    for (int i = 0; i < n_removed; i++) {
        const removed_setting_t *row = &removed_settings[i];
        char setting[100], file[400], named[100];
        snprintf(setting, sizeof setting, "%s.%s=%s", row->section, row->key, row->value ? row->value : "");
        ck_assert_msg(strncmp(setting, removed[i], strlen(setting)) == 0, "%s", setting);
        snprintf(named, sizeof named, "'%s'", row->value ? row->value : row->key);
        expect_refusal(MINIMAL, ARGUMENTS("--set", removed[i]),
                       (const char *[]){"--set ", removed[i], named, "was removed: use ", row->instead, NULL});
        snprintf(file, sizeof file, MINIMAL "[%s]\n%s = %s\n", row->section, row->key, strchr(removed[i], '=') + 1);
        expect_refusal(file, NULL, (const char *[]){"cfg.ini:8: ", named, "was removed: use ", row->instead, NULL});
        snprintf(file, sizeof file, MINIMAL "[%s]\n%.*s\n", row->section, (int)strcspn(row->instead, ",;"),
                 row->instead);
        must_parse(file, NULL);
    }
}
END_TEST

START_TEST(mistakes_on_the_command_line_are_named)
{
    static const struct {
        const char *arguments[4];
        const char *fragments[3];
    } cases[] = {
        {{"--stge", "3"}, {"unknown option '--stge'", "did you mean --stage?"}},
        {{"--nothing"}, {"unknown option '--nothing'", "--help"}},
        {{"-v"}, {"unknown option '-v'"}},
        {{"--plan=3"}, {"--plan=3", "takes no value"}},
        {{"--hosts", "0"}, {"--hosts: "}},
        {{"--stage", "4"}, {"--stage", "[zero] stage: 4 is out of range 0..3"}},
        {{"--steps", "0"}, {"--steps: 0 is out of range"}},
        {{"--steps", "x"}, {"--steps: 'x' is not a whole number"}},
        {{"--set", "train.lr"}, {"--set train.lr", "SECTION.KEY=VALUE"}},
        {{"--set", "lr=3"}, {"--set lr=3", "SECTION.KEY=VALUE; did you mean [train] lr?"}},
        {{"--set", "n_layer=3"}, {"SECTION.KEY=VALUE; here it is [model] layers"}},
        {{"-np", "2"}, {"unknown option '-np'", "mpirun -np N"}},
        {{"--restarts", "2"}, {"unknown option '--restarts'", "launch/zerotrain --restarts N CFG.ini"}},
        {{"--set", ".lr=3"}, {"SECTION.KEY=VALUE"}},
        {{"--set", "train.=3"}, {"SECTION.KEY=VALUE"}},
        {{"--set", "=3"}, {"SECTION.KEY=VALUE"}},
        {{"--set", ""}, {"SECTION.KEY=VALUE"}},
        {{"--set", "tran.lr=3"}, {"unknown section [tran]", "did you mean [train]?"}},
        {{"--set", "model.lr=3"}, {"'lr' in [model]", "did you mean [train] lr?"}},
        {{"--set", "train.lrr=3"}, {"'lrr' in [train]", "did you mean [train] lr?"}},
        {{"--resume", "/nonexistent"}, {"--resume: '/nonexistent' is not a directory"}},
        {{"other.ini"}, {"only one configuration file", "other.ini"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_refusal(MINIMAL, cases[i].arguments, cases[i].fragments);
    char *value_missing[] = {(char *)"zerotrain", config, (char *)"--set", NULL},
         *nothing[] = {(char *)"zerotrain", NULL};
    static options_t options;
    options_action_t action;
    capture_begin();
    ck_assert_int_eq(options_parse(3, value_missing, &options, &action), ZERO_ERROR_USAGE);
    expect_line(capture_end(), (const char *[]){"--set", "missing", NULL});
    capture_begin();
    ck_assert_int_eq(options_parse(1, nothing, &options, &action), ZERO_ERROR_USAGE);
    expect_line(capture_end(), (const char *[]){"configuration file is missing", NULL});
    static const char *const commands[][2] = {
        {"fitt", "did you mean zerotrain fit?"},      {"evalute", "did you mean zerotrain evaluate?"},
        {"eval", "did you mean zerotrain evaluate?"}, {"chat", "did you mean zerotrain generate --chat?"},
        {"help", "did you mean zerotrain --help?"},   {"train", "training needs no word"}};
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        for (int n_words = 1; n_words <= 2; n_words++) {
            char *argv[] = {(char *)"zerotrain", (char *)commands[i][0], n_words == 2 ? config : NULL, NULL};
            capture_begin();
            ck_assert_int_eq(options_parse(1 + n_words, argv, &options, &action), ZERO_ERROR_USAGE);
            expect_line(capture_end(), (const char *[]){"unknown command", commands[i][0], commands[i][1], NULL});
        }
    /* A file that is not there, though its name is like a command's. */
    char *of_a_file[] = {(char *)"zerotrain", (char *)"evaluate.ini", NULL};
    capture_begin();
    ck_assert_int_eq(options_parse(2, of_a_file, &options, &action), ZERO_ERROR_USAGE);
    expect_line(capture_end(), (const char *[]){"cannot read 'evaluate.ini'", "No such file", NULL});
}
END_TEST

START_TEST(text_values_are_bounded_and_printable)
{
    static char long_path[6000] = "log.metrics=";
    memset(long_path + strlen(long_path), 'p', OPTIONS_MAX_PATH - 1);
    ck_assert_uint_eq(strlen(must_parse(MINIMAL, ARGUMENTS("--set", long_path)).log.metrics), OPTIONS_MAX_PATH - 1);
    strcat(long_path, "p");
    expect_refusal(MINIMAL, ARGUMENTS("--set", long_path), (const char *[]){"longer than 4095 bytes", NULL});
    expect_refusal(MINIMAL, ARGUMENTS("--set", "log.metrics=a\nb"), (const char *[]){"control character", NULL});
}
END_TEST

START_TEST(resume_takes_a_directory_in_each_form)
{
    char equals[1100];
    snprintf(equals, sizeof equals, "--resume=%s", scratch);
    char *forms[][4] = {{(char *)"zerotrain", (char *)"--resume", scratch, config},
                        {(char *)"zerotrain", config, (char *)"--resume", scratch},
                        {(char *)"zerotrain", config, equals, NULL},
                        {(char *)"zerotrain", (char *)"--resume", config, NULL},
                        {(char *)"zerotrain", config, (char *)"--resume", NULL},
                        {(char *)"zerotrain", config, (char *)"--resum", NULL}}; /* getopt_long allows it */
    support_write_file(config, MINIMAL, strlen(MINIMAL));
    for (int i = 0; i < 6; i++) {
        static options_t options;
        memset(&options, 0, sizeof options);
        command_line_t line;
        ck_assert_int_eq(command_line_read(i < 2 ? 4 : 3, forms[i], &line, &options), ZERO_OK);
        ck_assert(options.resume);
        ck_assert_str_eq(options.resume_dir, i < 3 ? scratch : "");
        ck_assert_str_eq(options.config_path, config);
        command_line_free(&line);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("options");
    TCase *c = tcase_create("options");
    tcase_add_checked_fixture(c, set_up, NULL);
    tcase_set_timeout(c, 120);
    tcase_add_test(c, the_table_has_exactly_the_settings_of_the_contract);
    tcase_add_test(c, defaults_are_those_of_the_contract);
    tcase_add_test(c, values_in_range_are_taken_and_others_named);
    tcase_add_test(c, values_arrive_in_their_fields);
    tcase_add_test(c, the_command_line_wins_over_the_file_and_the_last_word_wins);
    tcase_add_test(c, help_names_every_setting_and_option);
    tcase_add_test(c, help_and_version_need_no_file_and_exit_well);
    tcase_add_test(c, the_dump_parses_back_to_the_same_options);
    tcase_add_test(c, missing_required_settings_are_named);
    tcase_add_test(c, names_of_other_trainers_suggest_ours);
    tcase_add_test(c, removed_settings_are_refused_with_what_replaces_them);
    tcase_add_test(c, mistakes_on_the_command_line_are_named);
    tcase_add_test(c, text_values_are_bounded_and_printable);
    tcase_add_test(c, resume_takes_a_directory_in_each_form);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
