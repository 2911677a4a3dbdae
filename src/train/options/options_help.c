/* options_help.c - what --help prints, from the tables of options and settings. */
#include "train/options/options_table.h"

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
        char values[128], initial[64];
        option_describe_values(row, "|", values, sizeof values);
        describe_default(row, initial, sizeof initial);
        if (option_begins_section(row))
            fprintf(file, "\n[%s]\n", row->section);
        fprintf(file, "  %s = %s  (%s)\n      %s\n", row->key, values, initial, row->help);
    }
    fputs("\n"
          "A signal (SIGTERM, SIGINT, SIGUSR1) to any rank ends the run after the current step, which is\n"
          "saved if [checkpoint] dir is set. A second SIGTERM or SIGINT ends it at once.\n"
          "\n"
          "Exit code: 0 success; 2 a mistake in the command line, in the file or in a path that it names;\n"
          "3 stopped by a signal and saved (--resume continues from there); 4 with --auto-resume: too many\n"
          "steps in a row were skipped, so another start would end likewise; 1 any other failure, such as\n"
          "a malformed data file, or a run in which no step changed the weights.\n",
          file);
}
