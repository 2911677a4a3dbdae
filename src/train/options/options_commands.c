/* options_commands.c - the commands of zerotrain other than training: their names, which options they have, and what
 * they decide about the settings.
 */
#include "train/options/input_file.h"
#include "train/options/options_table.h"
#include "train/options/val_sets.h"
#include "train/report/report.h"

#include <stdlib.h>
#include <string.h>

const command_row_t command_rows[N_COMMANDS] = {
    [COMMAND_TRAIN] = {NULL, "CFG.ini", ""},
    [COMMAND_FIT] = {"fit", "CFG.ini",
                     "trains nothing: it predicts memory and time of a step for every stage, recomputation and\n"
                     "micro-batch, and says which is the fastest that fits."},
    [COMMAND_EVALUATE] = {"evaluate", "CFG.ini",
                          "trains nothing: it prints loss and perplexity over all of data.val. The weights are those\n"
                          "of --resume DIR, else of the latest checkpoint in checkpoint.dir, else of model.init."},
    [COMMAND_GENERATE] =
        {"generate", "CHECKPOINT",
         "continues a prompt and prints the text, or takes turns (--chat). CHECKPOINT is a step's\n"
         "directory, a directory of checkpoints (the newest), or a Hugging Face model with tokenizer.json."},
    [COMMAND_REPORT] = {"report", "RUN...",
                        "writes one HTML file, --output FILE, that compares runs. A RUN is a file of metrics, or a\n"
                        "directory of checkpoints, which adds the configuration."},
    [COMMAND_CALIBRATE] = {"calibrate", "",
                           "measures how fast this machine computes and moves data, with all ranks, in seconds. fit\n"
                           "and settings that are auto take these rates instead of built-in ones."},
    [COMMAND_MERGE] = {"merge", "BASE ADAPTER OUT",
                       "writes OUT, one model of the model BASE and its ADAPTER, which PEFT or zerotrain has saved;\n"
                       "of a directory of checkpoints it takes the newest."},
    [COMMAND_EXPORT] = {"export", "CHECKPOINT OUT",
                        "writes OUT, a checkpoint's model alone: weights, config.json and the tokenizer's files,\n"
                        "without the state of training. Adapters are merged into their model."},
};

options_command_t command_find(const char *word)
{
    for (int c = 0; c < N_COMMANDS; c++)
        if (command_rows[c].name && strcmp(command_rows[c].name, word) == 0)
            return (options_command_t)c;
    return COMMAND_TRAIN;
}

const char *command_suggest(const char *word)
{
    static const struct {
        const char *word, *meant;
    } others[] = {{"eval", "evaluate"},  {"test", "evaluate"},      {"chat", "generate --chat"}, {"sample", "generate"},
                  {"infer", "generate"}, {"inference", "generate"}, {"convert", "export"},       {"plan", "--plan"},
                  {"help", "--help"},    {"version", "--version"}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strcmp(others[i].word, word) == 0)
            return others[i].meant;
    near_miss_t near = near_miss_begin(word);
    for (int c = 0; c < N_COMMANDS; c++)
        if (command_rows[c].name)
            near_miss_offer(&near, command_rows[c].name, command_rows[c].name);
    return near.best;
}

/* Writes "training, zerotrain fit, zerotrain evaluate, --plan". */
static void list_commands(unsigned commands, char *text, size_t n_bytes)
{
    text[0] = 0;
    for (int c = 0; c < N_COMMANDS; c++)
        if (commands & FOR(c)) {
            size_t length = strlen(text);
            snprintf(text + length, n_bytes - length, "%s%s%s", length > 0 ? ", " : "",
                     command_rows[c].name ? "zerotrain " : "training",
                     command_rows[c].name ? command_rows[c].name : "");
        }
    if (commands & FOR_PLAN)
        snprintf(text + strlen(text), n_bytes - strlen(text), ", --plan");
}

zero_status_t command_check(const options_t *options, const bool *given)
{
    char commands[256];
    const unsigned asked = FOR(options->command) | (options->plan ? FOR_PLAN : 0u);
    for (int i = 0; i < n_command_line_rows; i++) {
        const command_line_row_t *row = &command_line_rows[i];
        if (!given[i] || row->commands == 0 || (row->commands & asked))
            continue;
        list_commands(row->commands, commands, sizeof commands);
        return report_error(ZERO_ERROR_USAGE, "--%s: this is an option of %s", row->name, commands);
    }
    if (options->command == COMMAND_REPORT && !options->report.output[0])
        return report_error(ZERO_ERROR_USAGE,
                            "report: the output file is missing: give --output FILE, such as report.html");
    if (options->command == COMMAND_FIT && options->plan)
        return report_error(ZERO_ERROR_USAGE, "fit and --plan: give one of them");
    if (options->command == COMMAND_EVALUATE && options->auto_resume)
        return report_error(ZERO_ERROR_USAGE, "--auto-resume: evaluate takes the latest checkpoint by itself");
    return ZERO_OK;
}

bool options_are_forward_only(const options_t *options)
{
    return options->command == COMMAND_EVALUATE || options->command == COMMAND_GENERATE || options_write_model(options);
}

bool options_init_is_random(const char *init)
{
    return strcmp(init, "random") == 0;
}

bool options_write_model(const options_t *options)
{
    return options->command == COMMAND_MERGE || options->command == COMMAND_EXPORT;
}

bool options_generate(const options_t *options)
{
    return options->command == COMMAND_GENERATE;
}

/* For fit: leaves open what it solves, unless the command line sets it. The batch of a step stays the file's. */
static void leave_open(options_t *options)
{
    options->fit.file_micro_batch = options->train.micro_batch;
    options->train.micro_batch = MICRO_BATCH_AUTO;
    options->zero.stage = STAGE_AUTO;
    options->model.recompute = RECOMPUTE_AUTO;
}

void command_prepare(options_t *options)
{
    if (options->command == COMMAND_FIT)
        leave_open(options);
    if (options->command == COMMAND_GENERATE)
        options->train.precision = PRECISION_OF_DEVICE;
}

static void set_text(char *field, const char *text)
{
    snprintf(field, OPTIONS_MAX_PATH, "%s", text);
}

/* Drops what belongs to training alone. A pass keeps no more than full recomputation does. */
static void choose_forward(options_t *options)
{
    options->model.recompute = RECOMPUTE_FULL;
    options->model.keep_attention = false;
    options->model.offload_activations = 0.0;
    options->train.fp8 = FP8_NONE;
    options->train.objective = OBJECTIVE_NEXT;
    options->train.mlp_tile = MLP_TILE_AUTO;
    options->train.eval_every = 0;
    options->zero.gather = GATHER_BF16;
    if (options->zero.offload == OFFLOAD_ALL) /* there is more room than in training */
        options->zero.offload_params_ratio = (double)ZERO_OFFLOAD_AUTO;
    else
        options->zero.offload = OFFLOAD_NONE;
    options->zero.keep = 0;
    if (options->zero.stage == STAGE_AUTO)
        options->zero.stage = 3;
    options->checkpoint.every = options->checkpoint.memory_every = 0;
    options->resume = false;
    options->lora.base = BASE_BF16;
    options->lora.rank = 0; /* an adapter's own files say what it is; random ones change nothing */
}

/* Sets model.init to where the weights are. The files there say what the model is. */
static zero_status_t choose_weights(options_t *options)
{
    bool is_best = false;
    char best[BEST_MAX_PATH];
    const bool is_named = options->resume_dir[0] || options->adapter_dir[0];
    const bool is_trained = !is_named && newest_step_of_run(options->checkpoint.dir, &is_best) > 0;
    if (options->resume_dir[0])
        set_text(options->model.init, options->resume_dir);
    else if (is_trained && !is_best)
        set_text(options->model.init, options->checkpoint.dir);
    best_directory(options->checkpoint.dir, best);
    if (is_best && strlen(best) >= sizeof options->model.init)
        return report_error(ZERO_ERROR_USAGE, "evaluate: [checkpoint] dir: its path is too long: use a shorter one");
    if (is_best)
        set_text(options->model.init, best);
    if (options->adapter_dir[0])
        set_text(options->lora.init, options->adapter_dir);
    else if (options->resume_dir[0] || is_trained)
        set_text(options->lora.init, "random");
    if (!options_init_is_random(options->model.init))
        return ZERO_OK;
    if (options->checkpoint.dir[0])
        return report_error(ZERO_ERROR_USAGE,
                            "evaluate: there is no checkpoint in [checkpoint] dir = %s, and [model] init is random: "
                            "train first, or name a model with --resume DIR",
                            options->checkpoint.dir);
    return report_error(ZERO_ERROR_USAGE, "evaluate: [checkpoint] dir is empty and [model] init is random: name a "
                                          "model with --resume DIR");
}

/* Each pass has micro_batch sequences, whatever the number of ranks, so that all numbers have the same bits. */
static zero_status_t choose_evaluate(options_t *options)
{
    choose_forward(options);
    ZERO_TRY(choose_weights(options));
    if (!options->data.val[0])
        return report_error(ZERO_ERROR_USAGE,
                            "evaluate: [data] val names no file: set it, or give --set data.val=FILE");
    val_sets_paths(options->data.val, options->data.train);
    if (options->train.micro_batch <= 0)
        options->train.micro_batch = 8;
    options->train.global_batch = 0;
    return ZERO_OK;
}

/* The checkpoint says what the model is. */
static zero_status_t choose_generate(options_t *options)
{
    const generate_options_t *o = &options->generate;
    const int n_given = (o->prompt != NULL) + (o->prompt_file[0] != 0) + (o->prompts[0] != 0) + o->chat;
    if (n_given > 1)
        return report_error(ZERO_ERROR_USAGE, "--prompt, --prompt-file, --prompts and --chat: give one of them");
    if (n_given == 0)
        return report_error(ZERO_ERROR_USAGE, "generate: the prompt is missing: give --prompt TEXT, --prompt-file "
                                              "FILE, --prompts FILE or --chat");
    if (o->system && !o->chat)
        return report_error(ZERO_ERROR_USAGE, "--system: this is an option of --chat");
    choose_forward(options);
    set_text(options->model.init, options->config_path);
    if (options->adapter_dir[0])
        set_text(options->lora.init, options->adapter_dir);
    options->train.micro_batch = 1;
    options->train.global_batch = 0;
    options->train.sequence_ranks = 1; /* a text grows on every rank alike */
    set_text(options->data.train, "-");
    return ZERO_OK;
}

zero_status_t command_choose(options_t *options)
{
    if (options->command == COMMAND_GENERATE)
        return choose_generate(options);
    return options->command == COMMAND_EVALUATE ? choose_evaluate(options) : ZERO_OK;
}
