/* options_table.h - the table of settings, and what is built on it. For src/train and the tests.
 *
 *   options_table.c         the rows
 *   options.c               all of these in order; what depends on the device; values for checkpoints, metrics; --help
 *   options_value.c         one value: text to field and back, with type, range and choices checked
 *   options_suggest.c       near misses, settings that were removed
 *   options_file.c          CFG.ini
 *   options_command_line.c  argv, with the table of its options (options_rows.h numbers them)
 *   options_commands.c      fit, evaluate: their words, and which options are theirs
 *   options_resolve.c       what must hold between settings, and what is derived from them
 *   idle_settings.c         settings that change nothing beside the others, which a run names
 *   named_files.c           that a run writes no file that it reads
 *   input_file.c            reading a whole file; the newest checkpoint of a directory
 */
#ifndef ZEROTRAIN_OPTIONS_TABLE_H
#define ZEROTRAIN_OPTIONS_TABLE_H

#include "train/options/options.h"

/* ---- The rows ---- */

typedef enum option_type { OPTION_INTEGER, OPTION_REAL, OPTION_BOOL, OPTION_CHOICE, OPTION_TEXT } option_type_t;

typedef struct option_choice {
    const char *name;
    int value;
} option_choice_t;

typedef struct option_row {
    const char *section, *key;
    option_type_t type;
    size_t offset;              /* of the field in options_t */
    const char *initial;        /* the default, as in an ini file; NULL: required */
    int64_t low, high;          /* OPTION_INTEGER, both included */
    double real_low, real_high; /* OPTION_REAL, both included */
    const char *derived;        /* a number outside the range that means "derive it"; or NULL */
    const char *word;           /* OPTION_REAL: a word that sets the field to word_value, or NULL */
    double word_value;
    const option_choice_t *choices; /* OPTION_CHOICE, and words that OPTION_INTEGER may be; the last has a NULL name */
    bool may_be_empty;              /* OPTION_TEXT */
    const char *help;               /* a sentence */
} option_row_t;

/* Rows are in the order in which they are printed; those of a section are together. Behind the n_option_rows settings
 * are fields that checkpoints and metrics record like settings, though nobody sets them: a model or the solver does. */
extern const option_row_t option_rows[];
extern const int n_option_rows, n_recorded_rows; /* settings; all */

const option_row_t *option_row_find(const char *section, const char *key);          /* NULL: there is no such setting */
const option_row_t *option_row_find_recorded(const char *section, const char *key); /* also of what is only recorded */
/* Whether the user has set the key, also to its default, and not to the value that derives it. */
bool option_is_given(const options_t *options, const option_row_t *row);
/* Sets a setting that has a default as if the user had not set it. */
void option_reset(options_t *options, const option_row_t *row);
bool option_begins_section(const option_row_t *row);
bool option_section_exists(const char *section);

/* ---- One value ---- */

#define OPTION_MAX_PROBLEM 512

void options_set_defaults(options_t *options);
/* Writes the field as in an ini file; reals with as many digits as give the same bits back. */
void option_format(const option_row_t *row, const options_t *options, char text[OPTIONS_MAX_PATH + 2]);
/* Returns all settings as a JSON object: {"model": {"arch": "gpt2", ...}, ...}, a text each. NULL: no memory. */
struct json_t *options_json(const options_t *options);
bool option_parse_integer(const char *text, int64_t low, int64_t high, int64_t *value,
                          char problem[OPTION_MAX_PROBLEM]);
/* Writes "1..1024 or 0", "gpt2|llama", "true|false" or "text", with `separator` between choices. */
void option_describe_values(const option_row_t *row, const char *separator, char *text, size_t n_bytes);

/* Sets [section] key. where: "cfg.ini:12" or "--set train.lr=1", with which the error line begins. */
zero_status_t options_set(options_t *options, const char *where, const char *section, const char *key,
                          const char *text);

/* ---- Near misses ---- */

/* The nearest of the candidates offered to it, ignoring those that are too far away. */
typedef struct near_miss {
    const char *typed;
    int distance; /* of the best so far */
    const void *best;
} near_miss_t;

near_miss_t near_miss_begin(const char *typed);
/* Offers `candidate`, spelled `name`. The earlier one wins a tie. */
void near_miss_offer(near_miss_t *near, const char *name, const void *candidate);
/* What nanoGPT, llm.c, Hugging Face, Megatron-LM and PyTorch call our settings, sections (`ours` is NULL) and values
 * (`section` is NULL). */
typedef struct other_name {
    const char *theirs, *section, *ours;
} other_name_t;

extern const other_name_t other_names[];
extern const int n_other_names;

/* Settings, or values of a setting, that earlier versions had. */
typedef struct removed_setting {
    const char *section, *key, *value; /* value NULL: the setting as a whole */
    const char *instead;               /* what to set in its place */
} removed_setting_t;

extern const removed_setting_t removed_settings[];
extern const int n_removed_settings;

/* Returns what replaces a removed value, or with value NULL a removed setting; NULL: it was not removed. An empty
 * section matches all. */
const char *suggest_for_removed(const char *section, const char *key, const char *value);
/* Returns our name for another program's value; NULL: unknown. */
const char *suggest_value(const char *typed);
/* Write "; did you mean [train] lr?", or where to look. */
void suggest_key(const char *section, const char *key, char *text, size_t n_bytes);
void suggest_section(const char *section, char *text, size_t n_bytes);

/* ---- The file ---- */

zero_status_t options_read_file(const char *path, options_t *options);

/* ---- The command line ---- */

typedef struct command_line_row {
    const char *name;     /* without dashes */
    int takes_value;      /* getopt.h: no_argument, required_argument, optional_argument */
    const char *argument; /* as --help shows it */
    const char *help;
    unsigned commands; /* which take it: FOR_CFG, or bits FOR(COMMAND_...) */
} command_line_row_t;

#define FOR(command) (1u << (command))
#define FOR_CFG 0u                  /* all of them */
#define FOR_PLAN (1u << N_COMMANDS) /* --plan takes it */

extern const command_line_row_t command_line_rows[];
extern const int n_command_line_rows;

typedef struct command_row {
    const char *name;     /* NULL: train, which has no word */
    const char *argument; /* what follows the options, as --help shows it */
    const char *help;     /* sentences, in lines */
} command_row_t;

extern const command_row_t command_rows[N_COMMANDS];

/* Returns the command that a word names, or COMMAND_TRAIN. */
options_command_t command_find(const char *word);
/* Returns the command, or the option, that a word is close to or another name of, for messages; NULL: none. */
const char *command_suggest(const char *word);
/* Refuses options of another command. given: by row of command_line_rows. */
zero_status_t command_check(const options_t *options, const bool *given);
/* Sets what a command decides: for fit, what it solves; for evaluate, where the weights are. Called when the file is
 * read and before the command line overrides it, and behind that. */
void command_prepare(options_t *options);
zero_status_t command_choose(options_t *options);

typedef struct command_line_setting {
    int row; /* of command_line_rows */
    const char *text;
} command_line_setting_t;

typedef struct command_line {
    bool help, version;
    command_line_setting_t *settings; /* in the order given; command_line_free */
    int n_settings;
} command_line_t;

/* Reads argv into *line, and what only the command line can set into *options. */
zero_status_t command_line_read(int argc, char **argv, command_line_t *line, options_t *options);
/* Applies --set and the options that are short for a setting. */
zero_status_t command_line_apply(const command_line_t *line, options_t *options);
void command_line_free(command_line_t *line);

/* ---- Printing ---- */

void options_print_help(FILE *file);

#endif
