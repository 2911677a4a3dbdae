/* options.c - prints the option table as documents: the reference in docs/configuration.md, the man page zerotrain(1)
 * and the completion for bash. They have the same rows as zerotrain itself.
 *
 *     options markdown | man | bash
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/options/options_table.h"

/* ---- docs/configuration.md ---- */

static void print_markdown(void)
{
    for (const option_row_t *row = option_rows; row < option_rows + n_option_rows; row++) {
        char values[256];
        option_describe_values(row, "`, `", values, sizeof values);
        if (option_begins_section(row))
            printf("%s### [%s]\n\n| key | default | values | meaning |\n|---|---|---|---|\n",
                   row == option_rows ? "" : "\n", row->section);
        const char *initial = row->initial ? row->initial : "required", *tick = row->initial && *initial ? "`" : "";
        printf("| `%s` | %s%s%s | `%s` | %s |\n", row->key, tick, initial, tick, values, row->help);
    }
}

/* ---- zerotrain(1) ---- */

/* Prints text for troff: hyphens stay hyphens, and no line begins a request. */
static void print_troff(const char *text)
{
    for (const char *c = text; *c; c++) {
        if (*c == '-')
            fputs("\\-", stdout);
        else if (*c == '\\')
            fputs("\\e", stdout);
        else if ((*c == '.' || *c == '\'') && (c == text || c[-1] == '\n'))
            printf("\\&%c", *c);
        else
            putchar(*c);
    }
}

static void print_term(const char *name, const char *argument, const char *help)
{
    fputs(".TP\n.B ", stdout);
    print_troff(name);
    if (argument[0]) {
        fputs(" \\fI", stdout);
        print_troff(argument);
        fputs("\\fR", stdout);
    }
    putchar('\n');
    print_troff(help);
    putchar('\n');
}

static void print_man_options(void)
{
    for (int i = 0; i < n_command_line_rows; i++) {
        const command_line_row_t *row = &command_line_rows[i];
        char name[64];
        snprintf(name, sizeof name, "--%s", row->name);
        print_term(name, row->argument, row->help);
    }
}

static void print_man_settings(void)
{
    for (const option_row_t *row = option_rows; row < option_rows + n_option_rows; row++) {
        char values[256], name[160], help[512];
        option_describe_values(row, "|", values, sizeof values);
        if (option_begins_section(row))
            printf(".SS [%s]\n", row->section);
        snprintf(name, sizeof name, "%s =", row->key);
        snprintf(help, sizeof help, "%s (%s%s)", row->help, row->initial ? "default: " : "required",
                 !row->initial     ? ""
                 : row->initial[0] ? row->initial
                                   : "empty");
        print_term(name, values, help);
    }
}

static void print_man_commands(void)
{
    for (int c = COMMAND_TRAIN + 1; c < N_COMMANDS; c++)
        printf(".br\n.B zerotrain %s\n[\\fIoptions\\fR] \\fI%s\\fR\n", command_rows[c].name, command_rows[c].argument);
}

static void print_man(void)
{
    printf(".TH ZEROTRAIN 1 \"\" \"zerotrain %s\" \"User Commands\"\n", zero_version());
    fputs(".SH NAME\nzerotrain \\- train a transformer, sharded over the ranks of an MPI job (ZeRO, FSDP)\n"
          ".SH SYNOPSIS\n.B zerotrain\n[\\fIoptions\\fR] \\fICFG.ini\\fR\n.br\n"
          ".B mpirun \\-np\n\\fIN\\fR \\fBzerotrain\\fR [\\fIoptions\\fR] \\fICFG.ini\\fR\n",
          stdout);
    print_man_commands();
    fputs(".SH DESCRIPTION\n"
          "Trains a decoder\\-only transformer (GPT\\-2 or Llama) on one GPU or CPU, or sharded over many with ZeRO "
          "stages 0\\-3.\nThe model's size and the data are all that \\fICFG.ini\\fR must say.\n",
          stdout);
    for (int c = COMMAND_TRAIN + 1; c < N_COMMANDS; c++)
        print_term(command_rows[c].name, command_rows[c].argument, command_rows[c].help);
    fputs(".SH OPTIONS\nOptions override the file.\n", stdout);
    print_man_options();
    fputs(".SH SETTINGS\nIn \\fICFG.ini\\fR as [section] and key = value; on the command line as "
          "\\fB\\-\\-set SECTION.KEY=VALUE\\fR.\n",
          stdout);
    print_man_settings();
    fputs(".SH EXIT STATUS\n", stdout);
    print_term("0", "", "success");
    print_term("2", "", "a mistake in the command line or the configuration file");
    print_term("3", "", "stopped by a signal and saved: --resume continues from there");
    print_term("4", "",
               "with --auto-resume: too many steps in a row were skipped, so another start would end likewise");
    print_term("1", "", "any other failure");
    fputs(".SH SEE ALSO\n.BR libzero (3),\n.BR mpirun (1)\n", stdout);
}

/* ---- completion ---- */

static void print_choices(const option_row_t *row)
{
    if (row->type == OPTION_BOOL)
        fputs(" true false", stdout);
    for (const option_choice_t *choice = row->choices; choice && choice->name; choice++)
        printf(" %s", choice->name);
}

static void print_bash(void)
{
    puts("# Bash completion for zerotrain, generated from its option table.\n"
         "_zerotrain()\n"
         "{\n"
         "    local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} key=\n"
         "    COMPREPLY=()\n"
         "    # Bash splits words at '=': --set zero.stage=3 arrives as zero.stage, =, 3.\n"
         "    [[ $word != = ]] || word=\n"
         "    if [[ $previous == = ]]; then\n"
         "        key=${COMP_WORDS[COMP_CWORD - 2]}\n"
         "    elif [[ ${COMP_WORDS[COMP_CWORD]} == = ]]; then\n"
         "        key=$previous\n"
         "    fi\n"
         "    case $key in");
    for (const option_row_t *row = option_rows; row < option_rows + n_option_rows; row++)
        if (row->choices || row->type == OPTION_BOOL) {
            printf("    %s.%s) mapfile -t COMPREPLY < <(compgen -W '", row->section, row->key);
            print_choices(row);
            puts("' -- \"$word\") && return ;;");
        }
    puts("    ?*) mapfile -t COMPREPLY < <(compgen -f -- \"$word\") && return ;;\n"
         "    esac\n"
         "    case $previous in\n"
         "    --set)\n"
         "        compopt -o nospace");
    fputs("        mapfile -t COMPREPLY < <(compgen -S = -W '", stdout);
    for (const option_row_t *row = option_rows; row < option_rows + n_option_rows; row++)
        printf(" %s.%s", row->section, row->key);
    puts("' -- \"$word\")\n"
         "        ;;\n"
         "    --stage) mapfile -t COMPREPLY < <(compgen -W '0 1 2 3 auto' -- \"$word\") ;;\n"
         "    --steps) ;;\n"
         "    *)");
    fputs("        if [[ $word == -* ]]; then\n            mapfile -t COMPREPLY < <(compgen -W '", stdout);
    for (int i = 0; i < n_command_line_rows; i++)
        printf(" --%s", command_line_rows[i].name);
    fputs("' -- \"$word\")\n"
          "        else\n"
          "            compopt -o filenames\n"
          "            mapfile -t COMPREPLY < <(compgen -f -- \"$word\"; compgen -W '",
          stdout);
    for (int c = COMMAND_TRAIN + 1; c < N_COMMANDS; c++)
        printf(" %s", command_rows[c].name);
    puts("' -- \"$word\")\n"
         "        fi\n"
         "        ;;\n"
         "    esac\n"
         "}\n"
         "complete -F _zerotrain zerotrain");
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "markdown") == 0)
        print_markdown();
    else if (argc == 2 && strcmp(argv[1], "man") == 0)
        print_man();
    else if (argc == 2 && strcmp(argv[1], "bash") == 0)
        print_bash();
    else {
        fputs("usage: options markdown|man|bash\n", stderr);
        return 2;
    }
    return fflush(stdout) == 0 ? 0 : 1;
}
