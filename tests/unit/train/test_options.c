/* test_options.c - command line and configuration file: the contract of names, defaults, ranges, messages. */
#include "tests/support/options_dump.h"
#include "tests/support/stderr_capture.h"
#include "tests/support/support.h"
#include "train/options/options_table.h"
#include "train/report/report.h"

#include <stdlib.h>

#define MINIMAL "[model]\nlayers = 2\ndim = 36\nheads = 3\n[data]\ntrain = a.txt\n"

static char scratch[1000], config[1100];

static void set_up(void)
{
    char *directory = support_scratch();
    snprintf(scratch, sizeof scratch, "%s", directory);
    free(directory);
    snprintf(config, sizeof config, "%s/cfg.ini", scratch);
}

/* Parses `text` as the file, with these arguments (ending at NULL) before it. */
static zero_status_t parse_bytes(const char *text, size_t n_bytes, const char *const *arguments, options_t *options)
{
    support_write_file(config, text, n_bytes);
    char *argv[16] = {(char *)"zerotrain"};
    int argc = 1;
    for (; arguments && *arguments; arguments++)
        argv[argc++] = (char *)*arguments;
    argv[argc++] = config;
    options_action_t action;
    zero_status_t status = options_parse(argc, argv, options, &action);
    ck_assert(status != ZERO_OK || action == OPTIONS_RUN);
    return status;
}

static zero_status_t parse(const char *text, const char *const *arguments, options_t *options)
{
    return parse_bytes(text, strlen(text), arguments, options);
}

#define ARGUMENTS(...) ((const char *[]){__VA_ARGS__, NULL})

static options_t must_parse(const char *text, const char *const *arguments)
{
    static options_t options;
    ck_assert_int_eq(parse(text, arguments, &options), ZERO_OK);
    return options;
}

static void expect_refusal(const char *text, const char *const *arguments, const char *const *fragments)
{
    static options_t options;
    options.stop_after = -7;
    capture_begin();
    zero_status_t status = parse(text, arguments, &options);
    expect_line(capture_end(), fragments);
    ck_assert_msg(status == ZERO_ERROR_USAGE, "%s", text);
    ck_assert_int_eq(report_exit_code(status), 2);
    ck_assert_int_eq(options.stop_after, -7); /* outputs are set only on success */
}

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
    {"model", "arch", "gpt2", {"gpt2", "llama", "mistral", "qwen2", "qwen3"}, {"GPT2", "bert", "1", ""}},
    {"model", "layers", NULL, {"1", "96"}, {"0", "-1", "2.5", "x", "99999999999999999999", ""}},
    {"model", "dim", NULL, {"1", "12288"}, {"0", "-4", "4k", "1e3"}},
    {"model", "heads", NULL, {"1", "96"}, {"0", "-1", "none"}},
    {"model", "kv_heads", "0", {"0", "1", "8"}, {"-1", "0.5"}},
    {"model", "head_dim", "0", {"0", "1", "128"}, {"-1", "0.5"}},
    {"model", "ffn_dim", "0", {"0", "1", "49152"}, {"-1", "auto"}},
    {"model", "tied", "false", {"true", "false"}, {"maybe", ""}},
    {"model", "vocab_size", "0", {"0", "1", "50257", "2147483647"}, {"2147483648", "-5"}},
    {"model", "seq_len", "0", {"0", "1", "17", "131072"}, {"-1", "9223372036854775808"}},
    {"model", "positions", "0", {"1", "1024"}, {"-1", "16777217"}},
    {"model", "window", "0", {"1", "4096"}, {"0x", "-1", "16777217"}},
    {"model", "norm_eps", "1e-05", {"1e-6", "0.001"}, {"0", "-1e-5", "nan", "2"}},
    {"model", "rope_theta", "10000", {"500000", "1e6", "1"}, {"0", "-1", "inf"}},
    {"model", "rope", "default", {"default", "llama3"}, {"yarn", "linear", "8", ""}},
    {"model", "init", "random", {"random", "/models/gpt2"}, {""}},
    {"model", "tokenizer", "", {"", "/models/gpt2"}, {NULL}},
    {"model", "recompute", "none", {"none", "light", "full", "auto"}, {"some", "true"}},
    {"model", "offload_activations", "0", {"0", "0.5", "1", "auto"}, {"-0.1", "1.5", "all"}},
    {"data", "train", NULL, {"a.txt", "a.bin,b.bin"}, {""}},
    {"data", "val", "", {"", "v.txt"}, {NULL}},
    {"data", "format", "auto", {"auto", "text", "llmc", "uint32"}, {"bin", "json"}},
    {"data", "documents", "join", {"join", "separate"}, {"apart", "1"}},
    {"train", "steps", "1000", {"1", "600000"}, {"0", "-1", "1e6"}},
    {"train", "micro_batch", "0", {"0", "1", "64", "auto"}, {"-1", "1.5"}},
    {"train", "global_batch", "0", {"0", "1", "4096"}, {"-1", "2147483648"}},
    {"train", "lr", "0.0003", {"0", "3e-4", ".5", "+1"}, {"-1e-3", "nan", "inf", "fast", "0x1p3", "1e400"}},
    {"train", "min_lr", "-1", {"-1", "0", "-1.0", "1e-5"}, {"-0.5", "-2", "nan", "1e9"}},
    {"train", "warmup_steps", "0", {"0", "2000"}, {"-1", "1.5"}},
    {"train", "schedule", "cosine", {"cosine", "linear", "constant", "wsd"}, {"cos", "step"}},
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
    {"zero", "stage", "3", {"0", "1", "2", "3", "auto"}, {"4", "-1", "three"}},
    {"zero", "offload", "none", {"none", "optimizer", "all"}, {"cpu"}},
    {"zero", "offload_ratio", "1", {"0", "0.5", "1", "auto"}, {"1.01", "-0.1", "-1", "Auto", "automatic"}},
    {"zero", "offload_params_ratio", "1", {"0", "0.5", "1", "auto"}, {"1.01", "-1", "all"}},
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

START_TEST(mistakes_in_the_file_are_named_with_line_and_near_miss)
{
    static const struct {
        const char *text;
        const char *fragments[4];
    } cases[] = {
        {MINIMAL "[train]\nlearning = 1\n", {"cfg.ini:8: ", "unknown key 'learning' in [train]"}},
        {MINIMAL "[train]\nmicro_bach = 1\n", {"cfg.ini:8: ", "did you mean [train] micro_batch?"}},
        {MINIMAL "[train]\nwarmpu_steps = 1\n", {"did you mean [train] warmup_steps?"}},
        {MINIMAL "[model]\nlr = 1\n", {"cfg.ini:8: ", "'lr' in [model]", "did you mean [train] lr?"}},
        {MINIMAL "[log]\nevry = 1\n", {"did you mean [log] every?"}},
        {MINIMAL "[checkpoint]\nevry = 1\n", {"did you mean [checkpoint] every?"}},
        {"\n\n[modle]\nlayers = 1\n", {"cfg.ini:3: ", "unknown section [modle]", "did you mean [model]?"}},
        {"# x\nlr = 1\n" MINIMAL, {"cfg.ini:2: ", "'lr' comes before any section", "did you mean [train] lr?"}},
        {MINIMAL "[train]\nlr = 1\nlr = 1\n", {"cfg.ini:9: ", "[train] lr is already set in line 8"}},
        {MINIMAL "[train]\nlr = 1\n[zero]\n[train]\n\nLR = 2\n", {"cfg.ini:12: ", "already set in line 8"}},
        {MINIMAL "[train]\nlr = fast\n", {"cfg.ini:8: [train] lr: 'fast' is not a number"}},
        {MINIMAL "[train]\nlr = nan\n", {"cfg.ini:8: [train] lr: 'nan' is not a finite number"}},
        {MINIMAL "[train]\nsteps = many\n", {"[train] steps: 'many' is not a whole number"}},
        {MINIMAL "[zero]\nshard_group = hosts\n",
         {"[zero] shard_group: 'hosts' is not one of 1..1048576 or world or host; did you mean host?"}},
        {MINIMAL "[zero]\nshard_group = 1.5\n", {"[zero] shard_group: '1.5' is not a whole number"}},
        {MINIMAL "[zero]\noffload_ratio = aut\n", {"'aut' is not one of 0..1 or auto; did you mean auto?"}},
        {MINIMAL "[zero]\nstage = 4\n", {"cfg.ini:8: [zero] stage: 4 is out of range 0..3"}},
        {MINIMAL "[zero]\noverlap = perhaps\n", {"[zero] overlap: 'perhaps' is neither true nor false"}},
        {MINIMAL "[train]\nschedule = cosin\n",
         {"[train] schedule: 'cosin' is not one of cosine, linear", "did you mean cosine?"}},
        {MINIMAL "[train]\nbatch_size = 8\n",
         {"cfg.ini:8: unknown key 'batch_size' in [train]; here it is [train] micro_batch"}},
        {MINIMAL "[optimizer]\nlr = 1\n", {"cfg.ini:7: unknown section [optimizer]; did you mean [train]?"}},
        {MINIMAL "[device]\ntype = GPU\n", {"'GPU' is not one of auto, cuda, cpu, cuda-shared; did you mean cuda?"}},
        {"\xef\xbb\xbf" MINIMAL, {"cfg.ini:1: ", "byte order mark"}},
        {MINIMAL "[train]\nlr =\n", {"cfg.ini:8: [train] lr: the value is empty"}},
        {MINIMAL "[train]\nlr = # 3\n", {"cfg.ini:8: [train] lr: the value is empty"}},
        {MINIMAL "[train]\nlr = \"\"\n", {"cfg.ini:8: [train] lr: the value is empty"}},
        {MINIMAL "[train]\nlr 3\n", {"cfg.ini:8: ", "'lr 3' is neither [section] nor key = value"}},
        {MINIMAL "[train]\n= 3\n", {"cfg.ini:8: ", "without a key"}},
        {MINIMAL "[log]\nmetrics = \"m.jsonl\n", {"cfg.ini:8: ", "[log] metrics: a quote \" that is not closed"}},
        {MINIMAL "[data]\nval = \"a\", \"b\"\n", {"cfg.ini:8: ", "[data] val: ', \"b\"' follows the closing quote"}},
        {MINIMAL "[data]\nval = 'a' b ; c\n", {"cfg.ini:8: ", "[data] val: 'b ; c' follows the closing quote"}},
        {MINIMAL "[train\n", {"cfg.ini:7: ", "[train]"}},
        {MINIMAL "[train] # x\n", {"cfg.ini:7: ", "alone on its line"}},
        {MINIMAL "[train] lr = 1\n", {"cfg.ini:7: ", "alone on its line"}},
        {MINIMAL "[]\n", {"cfg.ini:7: ", "without a name"}},
        {MINIMAL "[train]\nlr = 1\\\n", {"cfg.ini:8: ", "backslash"}},
        {MINIMAL "[train]\nlr = 1 \\", {"cfg.ini:8: ", "backslash"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_refusal(cases[i].text, NULL, cases[i].fragments);
}
END_TEST

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
    static const char *const commands[][2] = {{"fitt", "did you mean zerotrain fit?"},
                                              {"evalute", "did you mean zerotrain evaluate?"},
                                              {"train", "training needs no word"}};
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        char *argv[] = {(char *)"zerotrain", (char *)commands[i][0], config, NULL};
        capture_begin();
        ck_assert_int_eq(options_parse(3, argv, &options, &action), ZERO_ERROR_USAGE);
        expect_line(capture_end(), (const char *[]){commands[i][0], commands[i][1], NULL});
    }
}
END_TEST

START_TEST(a_configuration_that_is_no_text_file_is_refused)
{
    static options_t options;
    options_action_t action;
    const char *const paths[][2] = {
        {"/nonexistent/cfg.ini", "No such file"}, {scratch, "is a directory"}, {"/dev/null", "not a regular file"}};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        char *argv[] = {(char *)"zerotrain", (char *)paths[i][0]};
        capture_begin();
        zero_status_t status = options_parse(2, argv, &options, &action);
        expect_line(capture_end(), (const char *[]){paths[i][0], paths[i][1], NULL});
        ck_assert_int_eq(status, ZERO_ERROR_USAGE);
    }
    capture_begin();
    ck_assert_int_eq(parse_bytes("[train]\n\0lr = 1\n", 16, NULL, &options), ZERO_ERROR_USAGE);
    expect_line(capture_end(), (const char *[]){"cfg.ini", "zero byte", NULL});
    char *big = calloc(1, (2 << 20) + 1);
    memset(big, '#', 2 << 20);
    capture_begin();
    ck_assert_int_eq(parse_bytes(big, 2 << 20, NULL, &options), ZERO_ERROR_USAGE);
    expect_line(capture_end(), (const char *[]){"cfg.ini", "1048576", NULL});
    free(big);
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

/* ---- The file's syntax ---- */

START_TEST(comments_quotes_case_and_continued_lines_are_iniparsers)
{
    options_t options = must_parse("; a comment\r\n"
                                   "[ MODEL ]\r\n"
                                   "  Layers=2   ; inline\r\n"
                                   "\tDIM\t=\t36 # inline\r\n"
                                   "heads = '3'\r\n"
                                   "[Data]\n"
                                   "train = \"a;b #c.txt\" ; inline\n"
                                   "val = Upper.TXT,\\\n"
                                   "   lower.txt\n"
                                   "[log]\n"
                                   "every = 3", /* no newline */
                                   NULL);
    ck_assert_int_eq(options.model.layers, 2);
    ck_assert_int_eq(options.model.dim, 36);
    ck_assert_int_eq(options.model.heads, 3);
    ck_assert_str_eq(options.data.train, "a;b #c.txt");
    ck_assert_str_eq(options.data.val, "Upper.TXT,   lower.txt");
    ck_assert_int_eq(options.log.every, 3);
}
END_TEST

START_TEST(lines_are_numbered_rightly_after_continued_ones)
{
    expect_refusal("[data]\ntrain = a,\\\n b,\\\n c\n[model]\nlayer = 3\n", NULL,
                   (const char *[]){"cfg.ini:6: ", "did you mean [model] layers?", NULL});
}
END_TEST

START_TEST(a_line_of_the_longest_length_is_read_and_a_longer_one_refused)
{
    static options_t options;
    for (int n_continued = 0; n_continued < 2; n_continued++)
        for (int length = 1018; length <= 1030; length++) {
            char text[4096] = MINIMAL "[log]\n";
            char *line = text + strlen(text);
            strcpy(line, "metrics = ");
            memset(line + strlen(line), 'm', (size_t)length - strlen(line));
            if (n_continued) { /* the backslash and the newline go; the rest is one line */
                memmove(line + 502, line + 500, strlen(line + 500) + 1);
                memcpy(line + 500, "\\\n", 2);
            }
            strcat(text, "\n");
            if (length <= 1022) {
                ck_assert_msg(parse(text, NULL, &options) == ZERO_OK, "length %d", length);
                ck_assert_uint_eq(strlen(options.log.metrics), (size_t)length - 10);
            } else {
                expect_refusal(text, NULL, (const char *[]){"cfg.ini:8: ", "longer than 1022", NULL});
            }
        }
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

/* ---- Between settings ---- */

static zero_status_t resolve(options_t *options, int world_size, const char *settings_of_train)
{
    char text[1000];
    snprintf(text, sizeof text, MINIMAL "[train]\n%s\n", settings_of_train);
    *options = must_parse(text, NULL);
    return options_resolve(options, world_size);
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
        static options_t options;
        ck_assert_int_eq(resolve(&options, cases[i].world_size, cases[i].given), ZERO_OK);
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
        {"steps = 1000000000000\nglobal_batch = 2147483647", 1, {"steps", "2147483647 sequences", "1024", "2.2e+24"}},
        {"micro_batch = 1048576\n[model]\nseq_len = 2048", 1, {"micro_batch", "1048576", "2048", "2^31 - 1"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        static options_t options;
        capture_begin();
        zero_status_t status = resolve(&options, cases[i].world_size, cases[i].given);
        expect_line(capture_end(), cases[i].fragments);
        ck_assert_int_eq(status, ZERO_ERROR_USAGE);
        ck_assert_int_eq(options.model.ffn_dim, 0); /* nothing is filled in on failure */
    }
    options_t options = must_parse(MINIMAL, ARGUMENTS("--set", "model.heads=5"));
    capture_begin();
    ck_assert_int_eq(options_resolve(&options, 1), ZERO_ERROR_USAGE);
    expect_line(capture_end(), (const char *[]){"[model] dim: 36 is not divisible by heads = 5", NULL});
    options = must_parse("[model]\ninit = x\n[data]\ntrain = a\n", NULL);
    capture_begin();
    ck_assert_int_eq(options_resolve(&options, 1), ZERO_ERROR_USAGE);
    expect_line(capture_end(), (const char *[]){"[model] layers is missing", NULL});
    options = must_parse(MINIMAL, ARGUMENTS("--resume"));
    capture_begin();
    ck_assert_int_eq(options_resolve(&options, 1), ZERO_ERROR_USAGE);
    expect_line(capture_end(), (const char *[]){"--resume", "[checkpoint] dir is empty", NULL});
    options = must_parse(MINIMAL, ARGUMENTS("--force"));
    ck_assert(options.force);
    capture_begin();
    ck_assert_int_eq(options_resolve(&options, 1), ZERO_ERROR_USAGE);
    expect_line(capture_end(), (const char *[]){"--force", "without --resume", NULL});
    options = must_parse(MINIMAL, ARGUMENTS("--hosts", "2"));
    capture_begin();
    ck_assert_int_eq(options_resolve(&options, 2), ZERO_ERROR_USAGE);
    expect_line(capture_end(), (const char *[]){"--hosts: this is for --plan", NULL});
    options = must_parse(MINIMAL, ARGUMENTS("--plan", "--hosts=2"));
    ck_assert_int_eq(options.hosts, 2);
    capture_begin();
    ck_assert_int_eq(options_resolve(&options, 3), ZERO_ERROR_USAGE);
    expect_line(capture_end(), (const char *[]){"--hosts 2: the 3 ranks cannot be equally many on each host", NULL});
}
END_TEST

/* Each within its range; multiplied, more than 64 bits hold: activations, logits, matrices, scores. */
START_TEST(sizes_beyond_any_memory_are_refused)
{
    static const struct {
        int64_t micro_batch, seq_len, layers, dim, heads, ffn_dim, vocab_size;
    } cases[] = {{127, 1 << 24, 10000, 1 << 20, 16, 1, 1},
                 {127, 1 << 24, 1, 1, 1, 1 << 24, 1},
                 {127, 1 << 24, 1, 1, 1, 1, INT32_MAX},
                 {127, 1 << 24, 1, 1 << 16, 1 << 16, 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        options_t options = must_parse(MINIMAL, NULL);
        options.train.micro_batch = cases[i].micro_batch;
        options.model.seq_len = cases[i].seq_len;
        options.model.layers = cases[i].layers;
        options.model.dim = cases[i].dim;
        options.model.heads = cases[i].heads;
        options.model.ffn_dim = cases[i].ffn_dim;
        options.model.vocab_size = cases[i].vocab_size;
        capture_begin();
        zero_status_t status = options_resolve(&options, 1);
        expect_line(capture_end(), (const char *[]){"[model]", "[train] micro_batch", "bytes", NULL});
        ck_assert_int_eq(status, ZERO_ERROR_USAGE);
    }
}
END_TEST

START_TEST(sizes_and_rates_are_derived_by_architecture)
{
    static options_t options;
    ck_assert_int_eq(resolve(&options, 1, "lr = 0.5"), ZERO_OK);
    ck_assert(options.model.kv_heads == 3 && options.model.ffn_dim == 144 && options.train.min_lr == 0.05);
    ck_assert(options.model.vocab_size == 256 && options.model.seq_len == 1024);
    ck_assert_int_eq(resolve(&options, 1, "min_lr = 0"), ZERO_OK);
    ck_assert(options.train.min_lr == 0);
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
    capture_begin();
    ck_assert_int_eq(options_resolve(&options, 1), ZERO_ERROR_USAGE);
    expect_line(capture_end(), (const char *[]){"37", "odd", "llama", NULL});
}
END_TEST

START_TEST(heads_and_scaled_positions_must_fit)
{
    static options_t options;
    options = must_parse(MINIMAL, NULL);
    options.model.head_dim = 10; /* of GPT-2, whose heads are dim / heads */
    capture_begin();
    ck_assert_int_eq(options_resolve(&options, 1), ZERO_ERROR_USAGE);
    expect_line(capture_end(), (const char *[]){"[model] head_dim", "10", "leave it out", NULL});
    options.model.head_dim = 0, options.model.dim = 3 * 65537;
    capture_begin();
    ck_assert_int_eq(options_resolve(&options, 1), ZERO_ERROR_USAGE);
    expect_line(capture_end(), (const char *[]){"[model] heads", "65537", "more than 65536", NULL});
    options.model.head_dim = 10;
    options.model.arch = ARCH_LLAMA;
    options.model.dim = 37; /* no multiple of heads */
    ck_assert_int_eq(options_resolve(&options, 1), ZERO_OK);
    ck_assert_int_eq(options_head_dim(&options.model), 10);
    ck_assert_double_eq(options.model.rope_factor, 1.0);
    options.model.rope = ROPE_LLAMA3; /* the numbers of Llama 3.1 */
    ck_assert_int_eq(options_resolve(&options, 1), ZERO_OK);
    ck_assert(options.model.rope_factor == 8.0 && options.model.rope_low_freq == 1.0 &&
              options.model.rope_high_freq == 4.0 && options.model.rope_original == 8192);
    options.model.rope_low_freq = 4;
    capture_begin();
    ck_assert_int_eq(options_resolve(&options, 1), ZERO_ERROR_USAGE);
    expect_line(capture_end(), (const char *[]){"[model] init: low_freq_factor = 4", "high_freq_factor = 4", NULL});
}
END_TEST

/* ---- Fuzz ---- */

/* Whatever the bytes, the answer is success without a word or a usage error in one line. */
static void expect_sound_answer(const char *bytes, size_t n_bytes)
{
    static options_t options;
    capture_begin();
    zero_status_t status = parse_bytes(bytes, n_bytes, NULL, &options);
    const char *said = capture_end();
    if (status == ZERO_OK) {
        ck_assert_str_eq(said, "");
    } else {
        ck_assert_int_eq(status, ZERO_ERROR_USAGE);
        expect_line(said, (const char *[]){NULL});
    }
}

START_TEST(random_bytes_never_crash)
{
    static const char alphabet[] = "[]=;#\"'\\ \n\r\ttrain.lr0123-+e\xff\x01";
    uint64_t state = 21;
    for (int round = 0; round < 3000; round++) {
        char bytes[3000] = {0};
        size_t n = support_random(&state) % (round % 10 ? 60 : sizeof bytes);
        for (size_t i = 0; i < n; i++)
            bytes[i] = alphabet[support_random(&state) % (sizeof alphabet - 1)];
        expect_sound_answer(bytes, n);
    }
}
END_TEST

START_TEST(mutations_of_a_good_file_never_crash)
{
    static const char good[] = MINIMAL "[train]\nlr = 3e-4 # c\nsteps = \"10\"\n[log]\nmetrics = a,\\\n b\n";
    uint64_t state = 22;
    for (int round = 0; round < 5000; round++) {
        char bytes[sizeof good + 16];
        size_t n = sizeof good - 1;
        memcpy(bytes, good, n);
        for (int edits = 1 + (int)(support_random(&state) % 4); edits > 0; edits--) {
            size_t at = support_random(&state) % n;
            switch (support_random(&state) % 3) {
            case 0:
                bytes[at] = (char)support_random(&state);
                break;
            case 1:
                memmove(bytes + at, bytes + at + 1, --n - at);
                break;
            default:
                memmove(bytes + at + 1, bytes + at, n++ - at);
            }
        }
        expect_sound_answer(bytes, n);
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
    tcase_add_test(c, mistakes_in_the_file_are_named_with_line_and_near_miss);
    tcase_add_test(c, names_of_other_trainers_suggest_ours);
    tcase_add_test(c, removed_settings_are_refused_with_what_replaces_them);
    tcase_add_test(c, mistakes_on_the_command_line_are_named);
    tcase_add_test(c, a_configuration_that_is_no_text_file_is_refused);
    tcase_add_test(c, settings_that_the_device_lacks_are_refused);
    tcase_add_test(c, comments_quotes_case_and_continued_lines_are_iniparsers);
    tcase_add_test(c, lines_are_numbered_rightly_after_continued_ones);
    tcase_add_test(c, a_line_of_the_longest_length_is_read_and_a_longer_one_refused);
    tcase_add_test(c, text_values_are_bounded_and_printable);
    tcase_add_test(c, resume_takes_a_directory_in_each_form);
    tcase_add_test(c, batches_are_derived);
    tcase_add_test(c, contradictory_settings_are_refused);
    tcase_add_test(c, sizes_beyond_any_memory_are_refused);
    tcase_add_test(c, sizes_and_rates_are_derived_by_architecture);
    tcase_add_test(c, heads_and_scaled_positions_must_fit);
    tcase_add_test(c, random_bytes_never_crash);
    tcase_add_test(c, mutations_of_a_good_file_never_crash);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
