/* options.c - sets all settings, in order of precedence: defaults, then the file, then the command line. */
#include "train/options/options_table.h"
#include "train/report/report.h"

#include <string.h>

/* Checks that what has no default is set. A directory in init gives the sizes of [model]. */
static zero_status_t check_required(const options_t *options)
{
    bool has_model = strcmp(options->model.init, "random") != 0;
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

static zero_status_t read_settings(const command_line_t *line, options_t *options)
{
    if (options->command == COMMAND_REPORT)
        return ZERO_OK;
    if (options->command == COMMAND_CALIBRATE)
        return command_line_apply(line, options);
    if (!options_generate(options))
        TRY(options_read_file(options->config_path, options));
    command_prepare(options);
    TRY(command_line_apply(line, options));
    TRY(command_settle(options));
    options->train.asked_micro = options->train.micro_batch;
    options->train.asked_global = options->train.global_batch;
    return check_required(options);
}

zero_status_t options_parse(int argc, char **argv, options_t *options, options_action_t *action)
{
    options_t parsed;
    command_line_t line;
    options_set_defaults(&parsed);
    TRY(command_line_read(argc, argv, &line, &parsed));
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
