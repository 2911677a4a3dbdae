/* options.c - sets all settings, in order of precedence: defaults, then the file, then the command line. */
#include "train/options/options.h"

#include <jansson.h>
#include <string.h>
#include <strings.h>

#include "base/json_build.h"
#include "train/options/options_table.h"
#include "train/options/val_sets.h"
#include "train/report/report.h"
#include "train/report/utf8.h"

/* Checks that what has no default is set. A directory in init gives the sizes of [model]. */
static zero_status_t check_required(const options_t *options)
{
    bool has_model = !options_init_is_random(options->model.init);
    const struct {
        bool given;
        const char *name, *example;
    } required[] = {
        {options->model.layers > 0 || has_model, "[model] layers", "layers = 12"},
        {options->model.dim > 0 || has_model, "[model] dim", "dim = 768"},
        {options->model.heads > 0 || has_model, "[model] heads", "heads = 12"},
        {options->data.train[0] != 0, "[data] train", "train = my.txt"},
    };
    for (size_t i = 0; i < sizeof required / sizeof required[0]; i++)
        if (!required[i].given)
            return report_error(ZERO_ERROR_USAGE, "'%s': %s is missing: set it, like %s", options->config_path,
                                required[i].name, required[i].example);
    return ZERO_OK;
}

/* start: "train.steps=" */
static bool command_line_has(const command_line_t *line, const char *start)
{
    for (int i = 0; i < line->n_settings; i++)
        if (strncasecmp(line->settings[i].text, start, strlen(start)) == 0)
            return true;
    return false;
}

/* Of [train] steps and epochs, of which a run has one, drops the file's if the command line has the other. */
static void drop_length_of_file(const command_line_t *line, options_t *options)
{
    const bool has_steps = command_line_has(line, "train.steps="), has_epochs = command_line_has(line, "train.epochs=");
    if (has_steps && !has_epochs)
        option_reset(options, option_row_find("train", "epochs"));
    if (has_epochs && !has_steps && options->train.epochs > 0.0)
        option_reset(options, option_row_find("train", "steps"));
}

static zero_status_t read_settings(const command_line_t *line, options_t *options)
{
    if (options->command == COMMAND_REPORT || options_write_model(options))
        return ZERO_OK;
    if (options->command == COMMAND_CALIBRATE)
        return command_line_apply(line, options);
    if (!options_generate(options))
        ZERO_TRY(options_read_file(options->config_path, options));
    command_prepare(options);
    ZERO_TRY(command_line_apply(line, options));
    drop_length_of_file(line, options);
    ZERO_TRY(val_sets_check(options->data.val));
    ZERO_TRY(command_choose(options));
    options->train.asked_micro = options->train.micro_batch;
    options->train.asked_global = options->train.global_batch;
    options->train.asked_sequence = options->train.sequence_ranks;
    return check_required(options);
}

zero_status_t options_parse(int argc, char **argv, options_t *options, options_action_t *action)
{
    options_t parsed;
    command_line_t line;
    options_set_defaults(&parsed);
    ZERO_TRY(command_line_read(argc, argv, &line, &parsed));
    bool speaks = report_is_speaker(), exits = line.help || line.version;
    if (line.help && speaks)
        options_print_help(stdout);
    else if (line.version && speaks)
        printf("zerotrain %s\n", zero_version());
    zero_status_t status = exits ? ZERO_OK : read_settings(&line, &parsed);
    command_line_free(&line);
    if (status != ZERO_OK)
        return status;
    *options = parsed;
    *action = exits ? OPTIONS_EXIT_OK : OPTIONS_RUN;
    return ZERO_OK;
}

/* ---- options config ---- */
/* Makes libzero's configuration from zerotrain's options. */

/* Returns how much of the GPU stages offloaded state with updates in backward. A chunk's AdamW must wait until a matrix
 * product ends, since products fill the GPU. At each end as many chunks are updated as there are in the buffers: with
 * 256 MiB, updates of half of 70B on two GPUs fell behind backward, which cost 2.4%, with 512 MiB less. */
static size_t backward_buffer_bytes(const options_t *o)
{
    const double most = 0x1p30, least = 0x1p28, share = o->device.memory * 0x1p30 / 48.0;
    return (size_t)(share == 0.0 || share > most ? most : share < least ? least : share);
}

zero_config_t options_config(const options_t *o, int world_size)
{
    zero_config_t config = zero_config_default();
    config.stage = (int)o->zero.stage;
    config.dtype = (zero_dtype_t)o->train.precision;
    config.micro_steps = options_micro_steps(&o->train, world_size);
    config.prefetch = (int)o->zero.prefetch;
    config.keep = (int)(o->zero.keep > 0 ? o->zero.keep + 1 : o->zero.keep); /* the head is behind the blocks */
    config.overlap = o->zero.overlap;
    config.reduce_every_micro_step = o->zero.reduce_every_micro_step;
    config.nccl_reduction = o->zero.reduction == REDUCTION_NCCL;
    config.shard_group = (int)o->zero.shard_group;
    config.gather_fp8 = o->zero.gather == GATHER_FP8;
    config.seed = (uint64_t)o->train.seed;
    config.optimizer = (zero_optimizer_t)o->train.optimizer;
    config.momentum = (float)o->train.momentum;
    config.muon_momentum = (float)o->train.muon_momentum;
    config.muon_steps = (int)o->train.muon_steps;
    config.beta1 = (float)o->train.beta1;
    config.beta2 = (float)o->train.beta2;
    config.eps = (float)o->train.eps;
    config.weight_decay = (float)o->train.weight_decay;
    config.grad_clip = (float)o->train.grad_clip;
    config.offload = o->zero.offload != OFFLOAD_NONE;
    config.offload_ratio = (float)o->zero.offload_ratio;
    config.offload_params = o->zero.offload == OFFLOAD_ALL ? (float)o->zero.offload_params_ratio : 0.0f;
    config.gradients = (zero_dtype_t)o->zero.gradients;
    config.update = (zero_update_time_t)o->zero.update;
    if (config.update == ZERO_UPDATE_IN_BACKWARD)
        config.offload_buffer_bytes = backward_buffer_bytes(o);
    config.offload_update = (zero_offload_update_t)o->zero.offload_update;
    config.offload_grads = (zero_offload_grads_t)o->zero.offload_grads;
    config.offload_threads = (int)o->zero.offload_threads;
    config.offload_ram = (float)o->zero.offload_ram;
    config.check = o->zero.check;
    config.forward_only = options_are_forward_only(o);
    return config;
}

/* ---- options device ---- */
/* Refuses settings that the device cannot fulfil; none is silently ignored.
 *
 * So that one file runs everywhere, the CPU accepts settings that it fulfils anyway: offload (the optimizer state is in
 * host memory already) and reduction (gradients are summed in the order of micro-batches). The run says so (run.c). */

zero_status_t options_check_device(const options_t *options)
{
    bool on_gpu = options->device.type != ZERO_DEVICE_CPU;
    if (on_gpu && options->zero.offload != OFFLOAD_NONE && options->zero.stage == 0 && !options->plan)
        return report_error(ZERO_ERROR_USAGE, "[zero] offload = optimizer: stage 0 cannot, since every rank holds "
                                              "all state: use stage 1, 2 or 3");
    if (!on_gpu && options->zero.comm == ZERO_COMM_NCCL)
        return report_error(ZERO_ERROR_USAGE,
                            "[zero] comm = nccl: NCCL is for GPUs, and this run is on the CPU: use auto "
                            "or mpi");
    return ZERO_OK;
}

/* ---- options json ---- */
/* The effective configuration as JSON, with values as in an ini file. */

json_t *options_json(const options_t *options)
{
    json_t *config = json_object();
    for (const option_row_t *row = option_rows; row < option_rows + n_recorded_rows; row++) {
        char text[OPTIONS_MAX_PATH + 2];
        option_format(row, options, text);
        if (!json_object_get(config, row->section))
            zero_json_set(&config, row->section, json_object());
        if (json_object_set_new(json_object_get(config, row->section), row->key, utf8_json(text)) != 0) {
            json_decref(config);
            return NULL;
        }
    }
    return config;
}

/* ---- options help ---- */
/* What --help prints, from the tables of options and settings. */

/* Writes "default 1024", "required" or "empty by default". */
static void describe_default(const option_row_t *row, char *text, size_t n_bytes)
{
    if (!row->initial)
        snprintf(text, n_bytes, "required");
    else if (!row->initial[0])
        snprintf(text, n_bytes, "empty by default");
    else
        snprintf(text, n_bytes, "default %s", row->initial);
}

/* Prints a setting's values, in lines of at most 80 characters. */
static void print_values(FILE *file, const char *values)
{
    int column = 0;
    for (const char *c = values; *c; c++) {
        fputc(*c, file);
        if (++column > 60 && *c == '|') {
            fputs("\n          ", file);
            column = 0;
        }
    }
}

void options_print_help(FILE *file)
{
    fputs("Usage: zerotrain [options] CFG.ini\n"
          "       mpirun -np N zerotrain [options] CFG.ini\n",
          file);
    for (int c = COMMAND_TRAIN + 1; c < N_COMMANDS; c++)
        fprintf(file, "       zerotrain %s [options]%s%s\n", command_rows[c].name,
                command_rows[c].argument[0] ? " " : "", command_rows[c].argument);
    fputs("\n"
          "Trains a decoder-only transformer, sharded over the ranks (ZeRO stages 0-3).\n",
          file);
    for (int c = COMMAND_TRAIN + 1; c < N_COMMANDS; c++)
        fprintf(file, "\n%s %s\n", command_rows[c].name, command_rows[c].help);
    fputs("\n"
          "Options, which override the file:\n",
          file);
    for (int i = 0; i < n_command_line_rows; i++) {
        const command_line_row_t *row = &command_line_rows[i];
        char name[64];
        snprintf(name, sizeof name, "--%s %s", row->name, row->argument);
        fprintf(file, "  %-25s %s\n", name, row->help);
    }
    fputs("\n"
          "Settings, in CFG.ini as [section] and key = value, or as --set SECTION.KEY=VALUE:\n",
          file);
    for (const option_row_t *row = option_rows; row < option_rows + n_option_rows; row++) {
        char values[256], initial[64];
        option_describe_values(row, "|", values, sizeof values);
        describe_default(row, initial, sizeof initial);
        if (option_begins_section(row))
            fprintf(file, "\n[%s]\n", row->section);
        fprintf(file, "  %s = ", row->key);
        print_values(file, values);
        fprintf(file, "  (%s)\n      %s\n", initial, row->help);
    }
    fputs("\n"
          "A signal (SIGTERM, SIGINT, SIGHUP, SIGUSR1) to any rank ends the run after the current step, which\n"
          "is saved if [checkpoint] dir is set. A second SIGTERM or SIGINT ends it at once.\n"
          "\n"
          "Exit code: 0 success; 2 a mistake in the command line, in the file, or in a file that it names;\n"
          "3 stopped by a signal and saved (--resume continues from there); 4 with --auto-resume: too many\n"
          "steps in a row were skipped, so another start would end likewise; 1 any other failure, such as\n"
          "a malformed data file, or a run in which no step changed the weights.\n",
          file);
}
