/* options_command_line.c - parses argv: options, by getopt_long from a table that --help and the man page
 * print, and the one CFG.ini.
 *
 * Settings (--set, --stage, --trace) are only collected at first. They are applied after the file, which they override.
 */
#include <ctype.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "train/options/options_rows.h"
#include "train/report/report.h"

/* ---- The table ---- */

#define FOR_TRAIN FOR(COMMAND_TRAIN)
#define FOR_WEIGHTS (FOR_TRAIN | FOR(COMMAND_EVALUATE)) /* those that read a checkpoint of checkpoint.dir */
#define FOR_MODEL (FOR_WEIGHTS | FOR(COMMAND_FIT) | FOR(COMMAND_GENERATE))

const command_line_row_t command_line_rows[] = {
    [ROW_STAGE] = {"stage", required_argument, "N", "ZeRO stage, 0 to 3; short for --set zero.stage=N", FOR_MODEL},
    [ROW_STEPS] = {"steps", required_argument, "N",
                   "stop after step N, with an evaluation; the schedule follows train.steps", FOR_TRAIN},
    [ROW_SET] = {"set", required_argument, "SECTION.KEY=VALUE", "override a setting; may be given several times",
                 FOR_MODEL | FOR(COMMAND_CALIBRATE)},
    [ROW_TRACE] = {"trace", required_argument, "FILE", "write a timeline of all ranks; short for --set log.trace=FILE",
                   FOR_TRAIN},
    [ROW_RESUME] = {"resume", optional_argument, "[DIR]",
                    "continue from checkpoint DIR, or from the latest in checkpoint.dir", FOR_WEIGHTS},
    [ROW_AUTO_RESUME] = {"auto-resume", no_argument, "",
                         "--resume if checkpoint.dir has a checkpoint, else begin at step 1", FOR_WEIGHTS},
    [ROW_FORCE] = {"force", no_argument, "", "with --resume: continue even if training data or seed have changed",
                   FOR_TRAIN},
    [ROW_OVERWRITE] = {"overwrite", no_argument, "", "begin at step 1 and replace the checkpoints in checkpoint.dir",
                       FOR_TRAIN},
    [ROW_PLAN] = {"plan", no_argument, "", "print the memory and traffic of each rank, and exit", FOR_MODEL},
    [ROW_HOSTS] = {"hosts", required_argument, "H", "with --plan: as if the ranks were spread evenly over H hosts",
                   FOR_MODEL},
    [ROW_GPUS] = {"gpus", required_argument, "N", "fit: plan for N GPUs, which need not be there", FOR(COMMAND_FIT)},
    [ROW_GPU_MEMORY] = {"gpu-memory", required_argument, "SIZE", "fit, --plan: memory of a GPU, such as 80GiB",
                        FOR(COMMAND_FIT) | FOR_PLAN},
    [ROW_HOST_MEMORY] = {"host-memory", required_argument, "SIZE", "fit, --plan: memory of a host, such as 512GiB",
                         FOR(COMMAND_FIT) | FOR_PLAN},
    [ROW_GPU] = {"gpu", required_argument, "NAME", "fit, --plan: kind of the GPUs: H200, H100, A100 or A100-40GB",
                 FOR(COMMAND_FIT) | FOR_PLAN},
    [ROW_SVG] = {"svg", required_argument, "FILE", "fit: draw time over memory into an SVG file", FOR(COMMAND_FIT)},
    [ROW_JSON] = {"json", no_argument, "", "fit, evaluate, --plan: print exact numbers as JSON",
                  FOR(COMMAND_FIT) | FOR(COMMAND_EVALUATE) | FOR_PLAN},
    [ROW_OUTPUT] = {"output", required_argument, "FILE", "report: the HTML file to write", FOR(COMMAND_REPORT)},
    [ROW_PROMPT] = {"prompt", required_argument, "TEXT", "generate: the text to continue", FOR(COMMAND_GENERATE)},
    [ROW_PROMPT_FILE] = {"prompt-file", required_argument, "FILE", "generate: continue the text in this file",
                         FOR(COMMAND_GENERATE)},
    [ROW_PROMPTS] = {"prompts", required_argument, "FILE",
                     "generate: continue the prompts of a .jsonl file, and print JSON lines", FOR(COMMAND_GENERATE)},
    [ROW_CHAT] = {"chat", no_argument, "", "generate: answer lines of stdin, by the model's chat template",
                  FOR(COMMAND_GENERATE)},
    [ROW_SYSTEM] = {"system", required_argument, "TEXT", "generate: with --chat, the system's message",
                    FOR(COMMAND_GENERATE)},
    [ROW_ADAPTER] = {"adapter", required_argument, "DIR",
                     "evaluate, generate: with this adapter, as PEFT or zerotrain has saved it",
                     FOR(COMMAND_EVALUATE) | FOR(COMMAND_GENERATE)},
    [ROW_MAX_TOKENS] = {"max-tokens", required_argument, "N", "generate: at most N tokens (default 256)",
                        FOR(COMMAND_GENERATE)},
    [ROW_TEMPERATURE] = {"temperature", required_argument, "T", "generate: of sampling (default 0.8); 0: greedy",
                         FOR(COMMAND_GENERATE)},
    [ROW_TOP_K] = {"top-k", required_argument, "K", "generate: sample from the K likeliest tokens; 0: from all",
                   FOR(COMMAND_GENERATE)},
    [ROW_TOP_P] = {"top-p", required_argument, "P",
                   "generate: sample from the likeliest tokens that add up to probability P", FOR(COMMAND_GENERATE)},
    [ROW_SEED] = {"seed", required_argument, "S", "generate: seed of sampling (default 1)", FOR(COMMAND_GENERATE)},
    [ROW_VOCAB_SIZE] = {"vocab-size", required_argument, "N",
                        "export: with rows for N tokens; new ones are the mean of the others", FOR(COMMAND_EXPORT)},
    [ROW_HELP] = {"help", no_argument, "", "print this help and exit", FOR_CFG},
    [ROW_VERSION] = {"version", no_argument, "", "print the version and exit", FOR_CFG},
};
const int n_command_line_rows = N_ROWS;

/* ---- options command line ---- */

/* Options that are short for a setting. */
static const struct {
    int row;
    const char *section, *key;
} short_names[] = {{ROW_STAGE, "zero", "stage"}, {ROW_TRACE, "log", "trace"}};

typedef struct reader {
    command_line_t *line;
    options_t *options;
    int n_files;
    bool given[N_ROWS];
    const char *after_resume; /* what followed a --resume and was no directory; NULL: nothing did */
} reader_t;

static zero_status_t copy_path(const char *what, const char *path, char out[OPTIONS_MAX_PATH])
{
    if (!path[0])
        return report_error(ZERO_ERROR_USAGE, "%s: the path is empty", what);
    if (strlen(path) >= OPTIONS_MAX_PATH)
        return report_error(ZERO_ERROR_USAGE, "%s: the path is longer than %d bytes", what, OPTIONS_MAX_PATH - 1);
    memcpy(out, path, strlen(path) + 1);
    return ZERO_OK;
}

static bool is_directory(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* Adds a run to a report. */
static zero_status_t add_run(reader_t *reader, const char *path)
{
    options_t *o = reader->options;
    if (o->report.n_runs == OPTIONS_MAX_RUNS)
        return report_error(ZERO_ERROR_USAGE, "report: there are more than %d runs", OPTIONS_MAX_RUNS);
    o->report.runs[o->report.n_runs++] = path;
    reader->n_files++;
    return ZERO_OK;
}

/* Refuses what stands in a configuration's place, but is no file and was meant as a command. */
static zero_status_t check_command(const options_t *options)
{
    const char *first = options->config_path, *command = command_suggest(first);
    const bool is_path = strpbrk(first, "./") || (access(first, F_OK) == 0 && !is_directory(first));
    if (options->command != COMMAND_TRAIN || is_path)
        return ZERO_OK;
    if (command)
        return report_error(ZERO_ERROR_USAGE, "unknown command '%s'; did you mean zerotrain %s?", first, command);
    return strcmp(first, "train") != 0
               ? ZERO_OK
               : report_error(ZERO_ERROR_USAGE, "unknown command 'train': training needs no word: zerotrain CFG.ini");
}

/* Reports that there are two files where one can be: unless the first was meant as a command. */
static zero_status_t fail_second_file(const reader_t *reader, const char *path)
{
    const char *first = reader->options->config_path;
    ZERO_TRY(check_command(reader->options));
    return report_error(ZERO_ERROR_USAGE, "there can be only one %s, not two: '%s' and '%s'",
                        options_generate(reader->options) ? "checkpoint" : "configuration file", first, path);
}

/* Returns how many files or directories a command takes at least. */
static int n_wanted(int command)
{
    static const int numbers[N_COMMANDS] = {[COMMAND_CALIBRATE] = -1, [COMMAND_MERGE] = 3, [COMMAND_EXPORT] = 2};
    return numbers[command] == 0 ? 1 : numbers[command] < 0 ? 0 : numbers[command];
}

/* Removes slashes behind a directory's name, since the name of the unfinished directory is made from it. */
static void strip_slashes(char *path)
{
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--)
        path[n - 1] = 0;
}

/* Takes what merge and export name: model, adapter, and where the new model goes. */
static zero_status_t add_to_merge(reader_t *reader, const char *path)
{
    options_t *o = reader->options;
    const command_row_t *row = &command_rows[o->command];
    char *const fields[] = {o->model.init, o->command == COMMAND_EXPORT ? o->merge_out : o->lora.init, o->merge_out};
    if (reader->n_files == n_wanted(o->command))
        return report_error(ZERO_ERROR_USAGE, "%s: it takes %s, and '%s' is one too many", row->name, row->argument,
                            path);
    ZERO_TRY(copy_path(row->name, path, fields[reader->n_files++]));
    strip_slashes(o->merge_out);
    return ZERO_OK;
}

static zero_status_t take_file(reader_t *reader, const char *path)
{
    options_command_t command = command_find(path);
    if (reader->n_files == 0 && reader->options->command == COMMAND_TRAIN && command != COMMAND_TRAIN) {
        reader->options->command = (int)command;
        return ZERO_OK;
    }
    if (reader->options->command == COMMAND_REPORT)
        return add_run(reader, path);
    if (reader->options->command == COMMAND_CALIBRATE)
        return report_error(ZERO_ERROR_USAGE, "calibrate: it reads no file, such as '%s'", path);
    if (options_write_model(reader->options))
        return add_to_merge(reader, path);
    if (++reader->n_files == 1)
        return copy_path("configuration file", path, reader->options->config_path);
    if (reader->after_resume)
        return report_error(ZERO_ERROR_USAGE, "--resume: '%s' is not a directory", reader->after_resume);
    return fail_second_file(reader, path);
}

/* Takes --resume, --resume=DIR or --resume DIR. A directory cannot be the configuration file, so it belongs to
 * --resume. */
static zero_status_t take_resume(reader_t *reader, const char *value, int argc, char **argv)
{
    reader->options->resume = true;
    if (!value && optind < argc && argv[optind][0] != '-') {
        if (is_directory(argv[optind]))
            value = argv[optind++];
        else
            reader->after_resume = argv[optind];
    }
    return value ? copy_path("--resume", value, reader->options->resume_dir) : ZERO_OK;
}

static zero_status_t take_steps(reader_t *reader, const char *value)
{
    char problem[OPTION_MAX_PROBLEM];
    const option_row_t *steps = option_row_find("train", "steps");
    if (option_parse_integer(value, 1, steps->high, &reader->options->stop_after, problem))
        return ZERO_OK;
    return report_error(ZERO_ERROR_USAGE, "--steps: %s", problem);
}

static zero_status_t take_hosts(reader_t *reader, const char *value)
{
    char problem[OPTION_MAX_PROBLEM];
    if (option_parse_integer(value, 1, INT32_MAX, &reader->options->hosts, problem))
        return ZERO_OK;
    return report_error(ZERO_ERROR_USAGE, "--hosts: %s", problem);
}

static zero_status_t take_vocab_size(reader_t *reader, const char *value)
{
    char problem[OPTION_MAX_PROBLEM];
    if (option_parse_integer(value, 1, INT32_MAX, &reader->options->grown_vocab, problem))
        return ZERO_OK;
    return report_error(ZERO_ERROR_USAGE, "--vocab-size: %s", problem);
}

static zero_status_t take_gpus(reader_t *reader, const char *value)
{
    char problem[OPTION_MAX_PROBLEM];
    if (option_parse_integer(value, 1, 1 << 20, &reader->options->fit.gpus, problem))
        return ZERO_OK;
    return report_error(ZERO_ERROR_USAGE, "--gpus: %s", problem);
}

/* Takes a size: a number and GiB or GB. */
static zero_status_t take_size(const char *option, const char *value, double *bytes)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"GiB", 0x1p30}, {"GB", 1e9}, {"MiB", 0x1p20}, {"MB", 1e6}};
    char *end;
    double number = strtod(value, &end);
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (end != value && strcasecmp(end, units[i].name) == 0 && number > 0.0 && number < 0x1p50 / units[i].bytes) {
            *bytes = number * units[i].bytes;
            return ZERO_OK;
        }
    return report_error(ZERO_ERROR_USAGE, "--%s: '%.100s' is no size: take a number and GiB or GB, like 80GiB", option,
                        value);
}

static zero_status_t take_gpu(reader_t *reader, const char *value)
{
    if (!value[0] || strlen(value) >= sizeof reader->options->fit.gpu)
        return report_error(ZERO_ERROR_USAGE, "--gpu: '%.100s' is no name of a GPU", value);
    memcpy(reader->options->fit.gpu, value, strlen(value) + 1);
    return ZERO_OK;
}

/* Takes a number of generate's. */
static zero_status_t take_generate(reader_t *reader, int row, const char *value)
{
    options_t *o = reader->options;
    const struct {
        int row;
        int64_t low, high, *integer;
        double least, most, *real;
    } numbers[] = {{ROW_MAX_TOKENS, 1, 1 << 24, &o->generate.max_tokens, 0, 0, NULL},
                   {ROW_TOP_K, 0, INT32_MAX, &o->generate.top_k, 0, 0, NULL},
                   {ROW_SEED, 0, INT64_MAX, &o->generate.seed, 0, 0, NULL},
                   {ROW_TEMPERATURE, 0, 0, NULL, 0.0, 100.0, &o->generate.temperature},
                   {ROW_TOP_P, 0, 0, NULL, 1e-6, 1.0, &o->generate.top_p}};
    char problem[OPTION_MAX_PROBLEM], *end;
    size_t i = 0;
    while (numbers[i].row != row)
        i++;
    double real = numbers[i].real ? strtod(value, &end) : 0.0;
    if (numbers[i].integer &&
        !option_parse_integer(value, numbers[i].low, numbers[i].high, numbers[i].integer, problem))
        return report_error(ZERO_ERROR_USAGE, "--%s: %s", command_line_rows[row].name, problem);
    if (numbers[i].integer)
        return ZERO_OK;
    if (end == value || *end || !(real >= numbers[i].least && real <= numbers[i].most))
        return report_error(ZERO_ERROR_USAGE, "--%s: '%.40s' is no number from %g to %g", command_line_rows[row].name,
                            value, numbers[i].least, numbers[i].most);
    *numbers[i].real = real;
    return ZERO_OK;
}

static zero_status_t take_option(reader_t *reader, int row, const char *value, int argc, char **argv)
{
    command_line_t *line = reader->line;
    reader->given[row] = true;
    switch (row) {
    case ROW_STAGE:
    case ROW_TRACE:
    case ROW_SET:
        line->settings[line->n_settings++] = (command_line_setting_t){.row = row, .text = value};
        return ZERO_OK;
    case ROW_STEPS:
        return take_steps(reader, value);
    case ROW_RESUME:
        return take_resume(reader, value, argc, argv);
    case ROW_AUTO_RESUME:
        reader->options->auto_resume = true;
        return ZERO_OK;
    case ROW_FORCE:
        reader->options->force = true;
        return ZERO_OK;
    case ROW_OVERWRITE:
        reader->options->overwrite = true;
        return ZERO_OK;
    case ROW_PLAN:
        reader->options->plan = true;
        return ZERO_OK;
    case ROW_HOSTS:
        return take_hosts(reader, value);
    case ROW_GPUS:
        return take_gpus(reader, value);
    case ROW_GPU_MEMORY:
        return take_size("gpu-memory", value, &reader->options->fit.gpu_bytes);
    case ROW_HOST_MEMORY:
        return take_size("host-memory", value, &reader->options->fit.host_bytes);
    case ROW_GPU:
        return take_gpu(reader, value);
    case ROW_OUTPUT:
        return copy_path("--output", value, reader->options->report.output);
    case ROW_PROMPT:
        reader->options->generate.prompt = value;
        return ZERO_OK;
    case ROW_PROMPT_FILE:
        return copy_path("--prompt-file", value, reader->options->generate.prompt_file);
    case ROW_PROMPTS:
        return copy_path("--prompts", value, reader->options->generate.prompts);
    case ROW_CHAT:
        reader->options->generate.chat = true;
        return ZERO_OK;
    case ROW_SYSTEM:
        reader->options->generate.system = value;
        return ZERO_OK;
    case ROW_ADAPTER:
        return copy_path("--adapter", value, reader->options->adapter_dir);
    case ROW_MAX_TOKENS:
    case ROW_TEMPERATURE:
    case ROW_TOP_K:
    case ROW_TOP_P:
    case ROW_SEED:
        return take_generate(reader, row, value);
    case ROW_VOCAB_SIZE:
        return take_vocab_size(reader, value);
    case ROW_SVG:
        return copy_path("--svg", value, reader->options->fit.svg);
    case ROW_JSON:
        reader->options->json = true;
        return ZERO_OK;
    case ROW_HELP:
        line->help = true;
        return ZERO_OK;
    default:
        line->version = true;
        return ZERO_OK;
    }
}

/* Reports what getopt_long refused. `typed` is the argument that contains it. */
static zero_status_t fail_option(int result, const char *typed)
{
    if (result == ':')
        return report_error(ZERO_ERROR_USAGE, "%s: a value is missing; see zerotrain --help", typed);
    if (optopt > 0 && optopt <= N_ROWS)
        return report_error(ZERO_ERROR_USAGE, "%s: this option takes no value", typed);
    if (strcmp(typed, "-n") == 0 || strcmp(typed, "-np") == 0)
        return report_error(
            ZERO_ERROR_USAGE,
            "unknown option '%s': the number of ranks is an option of the launcher: mpirun %s N zerotrain CFG.ini",
            typed, typed);
    if (strcmp(typed, "--restarts") == 0 || strcmp(typed, "--max-minutes") == 0)
        return report_error(ZERO_ERROR_USAGE,
                            "unknown option '%s': it is one of launch/zerotrain's, which come before zerotrain's: "
                            "launch/zerotrain %s N CFG.ini",
                            typed, typed);
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(typed + strspn(typed, "-"), "="), typed + strspn(typed, "-"));
    near_miss_t near = near_miss_begin(name);
    for (int i = 0; i < N_ROWS; i++)
        near_miss_offer(&near, command_line_rows[i].name, command_line_rows[i].name);
    if (near.best)
        return report_error(ZERO_ERROR_USAGE, "unknown option '%s'; did you mean --%s?", typed,
                            (const char *)near.best);
    return report_error(ZERO_ERROR_USAGE, "unknown option '%s'; see zerotrain --help", typed);
}

static zero_status_t read_arguments(reader_t *reader, int argc, char **argv)
{
    /* The values of long options begin at 1, since 0 in optopt means nothing. */
    struct option long_options[N_ROWS + 1] = {0};
    for (int i = 0; i < N_ROWS; i++)
        long_options[i] = (struct option){command_line_rows[i].name, command_line_rows[i].takes_value, NULL, i + 1};
    opterr = 0;
    optind = 0; /* glibc: start over */
    /* "-": arguments that are no options are returned in order, as 1, so that a directory after --resume is seen.
     * ":": a missing value is distinguished from an unknown option. */
    for (;;) {
        int before = optind, is_long = -1;
        int result = getopt_long(argc, argv, "-:h", long_options, &is_long);
        if (result == -1)
            break;
        if (result == '?' || result == ':')
            ZERO_TRY(fail_option(result, argv[before > 0 ? before : 1]));
        else if (result == 'h')
            ZERO_TRY(take_option(reader, ROW_HELP, NULL, argc, argv));
        else if (is_long < 0)
            ZERO_TRY(take_file(reader, optarg));
        else
            ZERO_TRY(take_option(reader, is_long, optarg, argc, argv));
    }
    for (; optind < argc; optind++) /* after "--" */
        ZERO_TRY(take_file(reader, argv[optind]));
    return ZERO_OK;
}

/* Reports that what follows the options is missing. */
static zero_status_t fail_no_file(int command)
{
    static const char *const what[N_COMMANDS] = {[COMMAND_GENERATE] = "the checkpoint is",
                                                 [COMMAND_REPORT] = "runs are",
                                                 [COMMAND_MERGE] = "a directory is",
                                                 [COMMAND_EXPORT] = "a directory is"};
    const command_row_t *row = &command_rows[command];
    return report_error(ZERO_ERROR_USAGE, "%s missing: zerotrain %s%s[options] %s; see zerotrain --help",
                        what[command] ? what[command] : "the configuration file is", row->name ? row->name : "",
                        row->name ? " " : "", row->argument);
}

zero_status_t command_line_read(int argc, char **argv, command_line_t *line, options_t *options)
{
    *line = (command_line_t){.settings = calloc((size_t)argc + 1, sizeof *line->settings)};
    if (!line->settings)
        return report_error(ZERO_ERROR_MEMORY, "command line: out of memory");
    reader_t reader = {.line = line, .options = options};
    zero_status_t status = read_arguments(&reader, argc, argv);
    if (status == ZERO_OK && !line->help && !line->version)
        status = command_check(options, reader.given);
    if (status == ZERO_OK && reader.n_files < n_wanted(options->command) && !line->help && !line->version)
        status = fail_no_file(options->command);
    if (status == ZERO_OK && !line->help && !line->version)
        status = check_command(options);
    if (status != ZERO_OK)
        command_line_free(line);
    return status;
}

void command_line_free(command_line_t *line)
{
    free(line->settings);
    *line = (command_line_t){0};
}

/* Applies SECTION.KEY=VALUE. As in the file, section and key may be in upper or lower case. */
static zero_status_t apply_set(const char *text, options_t *options)
{
    char name[128];
    const char *equals = strchr(text, '=');
    size_t length = equals ? (size_t)(equals - text) : 0;
    char *dot = NULL;
    if (length > 0 && length < sizeof name) {
        for (size_t i = 0; i < length; i++)
            name[i] = (char)tolower((unsigned char)text[i]);
        name[length] = 0;
        dot = strchr(name, '.');
    }
    char suggestion[OPTION_MAX_PROBLEM] = "";
    if (length > 0 && length < sizeof name && !dot)
        suggest_key("", name, suggestion, sizeof suggestion);
    if (!dot || dot == name || !dot[1])
        return report_error(ZERO_ERROR_USAGE, "--set %s: this is not of the form SECTION.KEY=VALUE%s", text,
                            suggestion);
    *dot = 0;
    char where[256];
    snprintf(where, sizeof where, "--set %s", text);
    return options_set(options, where, name, dot + 1, equals + 1);
}

static zero_status_t apply_short_name(const command_line_setting_t *setting, options_t *options)
{
    char where[64];
    int i = 0;
    while (short_names[i].row != setting->row)
        i++;
    snprintf(where, sizeof where, "--%s", command_line_rows[setting->row].name);
    return options_set(options, where, short_names[i].section, short_names[i].key, setting->text);
}

zero_status_t command_line_apply(const command_line_t *line, options_t *options)
{
    for (int i = 0; i < line->n_settings; i++) {
        const command_line_setting_t *setting = &line->settings[i];
        ZERO_TRY(setting->row == ROW_SET ? apply_set(setting->text, options) : apply_short_name(setting, options));
    }
    return ZERO_OK;
}
