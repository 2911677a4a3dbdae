/* options_table.h - the table of settings, and the parts that are built on it. Private to options*.c and their tests.
 *
 *   options_table.c         the rows
 *   options_value.c         one value: text to field and back, with type, range and choices checked
 *   options_suggest.c       near misses
 *   options_file.c          CFG.ini
 *   options_command_line.c  argv
 *   options_print.c         --help, the dump, the README's reference
 *   options_device.c        what hangs on the device
 *   options_resolve.c       what must hold between settings, and what is derived from them
 *   options.c               all of them in order
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
    const char *initial;        /* the default as an ini file would have it; NULL: must be given */
    int64_t low, high;          /* OPTION_INTEGER, both included */
    double real_low, real_high; /* OPTION_REAL, both included */
    const char *derived;        /* a number outside that range that is allowed, too: "derive it"; or NULL */
    const char *word;           /* OPTION_REAL: a word that is allowed, too, or NULL; the field is word_value */
    double word_value;
    const option_choice_t *choices; /* OPTION_CHOICE, closed by a NULL name */
    bool may_be_empty;              /* OPTION_TEXT */
    const char *help;               /* a sentence */
} option_row_t;

/* Rows stand in the order in which they are printed; those of a section stand together. */
extern const option_row_t option_rows[];
extern const int n_option_rows;

const option_row_t *option_row_find(const char *section, const char *key); /* NULL: there is none */
bool option_begins_section(const option_row_t *row);
bool option_section_exists(const char *section);

/* ---- One value ---- */

#define OPTION_MAX_PROBLEM 512

/* Sets the row's field from text, the spaces around it aside. false, with the problem in words, when it is not one of
 * the row's values: the field is as before. */
bool option_set(const option_row_t *row, const char *text, options_t *options, char problem[OPTION_MAX_PROBLEM]);
void options_set_defaults(options_t *options);
/* The field as an ini file would have it; reals with the digits that give the same bits back. */
void option_format(const option_row_t *row, const options_t *options, char text[OPTIONS_MAX_PATH + 2]);
bool option_parse_integer(const char *text, int64_t low, int64_t high, int64_t *value,
                          char problem[OPTION_MAX_PROBLEM]);
/* "1..1024 or 0", "gpt2|llama", "true|false", "text": `separator` between choices. */
void option_describe_values(const option_row_t *row, const char *separator, char *text, size_t n_bytes);

/* Sets [section] key. where: "cfg.ini:12", "--set train.lr=1". One error line begins with it. */
zero_status_t options_set(options_t *options, const char *where, const char *section, const char *key,
                          const char *text);

/* ---- Near misses ---- */

/* Keeps the nearest of the candidates offered to it; one that is too far away counts for nothing. */
typedef struct near_miss {
    const char *typed;
    int distance; /* of the best so far */
    const void *best;
} near_miss_t;

near_miss_t near_miss_begin(const char *typed);
/* Offers `candidate`, spelt `name`; earlier ones win ties. */
void near_miss_offer(near_miss_t *near, const char *name, const void *candidate);
/* What nanoGPT, llm.c, Hugging Face, Megatron-LM and PyTorch call our settings, sections (ours is NULL) and values
 * (section is NULL). */
typedef struct other_name {
    const char *theirs, *section, *ours;
} other_name_t;

extern const other_name_t other_names[];
extern const int n_other_names;

/* Our name of another program's value; NULL: not known. */
const char *suggest_value(const char *typed);
/* "; did you mean [train] lr?", or where to look. */
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
} command_line_row_t;

extern const command_line_row_t command_line_rows[];
extern const int n_command_line_rows;

typedef struct command_line_setting {
    int row; /* of command_line_rows */
    const char *text;
} command_line_setting_t;

typedef struct command_line {
    bool help, version;
    command_line_setting_t *settings; /* in the order given; command_line_free */
    int n_settings;
} command_line_t;

/* Reads argv into *line, and what only the command line says into *options. */
zero_status_t command_line_read(int argc, char **argv, command_line_t *line, options_t *options);
/* Applies --set and the options that are a setting's short name. */
zero_status_t command_line_apply(const command_line_t *line, options_t *options);
void command_line_free(command_line_t *line);

/* ---- Printing ---- */

void options_print_help(FILE *file);

#endif
