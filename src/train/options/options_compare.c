/* options_compare.c - whether all ranks have the same settings: a host may have another configuration or model under
 * the same path. See options.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/options/options.h"
#include "train/options/options_table.h"
#include "train/report/report.h"

#define ON_COMMAND_LINE(key_, type_, field_)                                                                           \
    {                                                                                                                  \
        .section = "", .key = key_, .type = type_, .offset = offsetof(options_t, field_)                               \
    }

static const option_choice_t COMMANDS[] = {
    {"train", COMMAND_TRAIN},       {"fit", COMMAND_FIT},       {"evaluate", COMMAND_EVALUATE},
    {"generate", COMMAND_GENERATE}, {"report", COMMAND_REPORT}, {"calibrate", COMMAND_CALIBRATE},
    {"merge", COMMAND_MERGE},       {"export", COMMAND_EXPORT}, {NULL, 0}};

/* What is no setting, and decides what the ranks do together. */
static const option_row_t WORDS[] = {
    {.section = "",
     .key = "the command",
     .type = OPTION_CHOICE,
     .offset = offsetof(options_t, command),
     .choices = COMMANDS},
    ON_COMMAND_LINE("--plan", OPTION_BOOL, plan),
    ON_COMMAND_LINE("--hosts", OPTION_INTEGER, hosts),
    ON_COMMAND_LINE("--json", OPTION_BOOL, json),
    ON_COMMAND_LINE("--steps", OPTION_INTEGER, stop_after),
    ON_COMMAND_LINE("--resume", OPTION_BOOL, resume),
    ON_COMMAND_LINE("--resume DIR", OPTION_TEXT, resume_dir),
    ON_COMMAND_LINE("--auto-resume", OPTION_BOOL, auto_resume),
    ON_COMMAND_LINE("--force", OPTION_BOOL, force),
    ON_COMMAND_LINE("--overwrite", OPTION_BOOL, overwrite),
    ON_COMMAND_LINE("--adapter", OPTION_TEXT, adapter_dir),
    ON_COMMAND_LINE("--max-tokens", OPTION_INTEGER, generate.max_tokens),
    ON_COMMAND_LINE("--temperature", OPTION_REAL, generate.temperature),
    ON_COMMAND_LINE("--top-k", OPTION_INTEGER, generate.top_k),
    ON_COMMAND_LINE("--top-p", OPTION_REAL, generate.top_p),
    ON_COMMAND_LINE("--seed", OPTION_INTEGER, generate.seed),
    ON_COMMAND_LINE("--chat", OPTION_BOOL, generate.chat),
    ON_COMMAND_LINE("--prompt-file", OPTION_TEXT, generate.prompt_file),
    ON_COMMAND_LINE("--prompts", OPTION_TEXT, generate.prompts),
};
#define N_WORDS ((int)(sizeof WORDS / sizeof WORDS[0]))

/* Texts of argv, to which options_t points. */
static const option_row_t POINTED[] = {ON_COMMAND_LINE("--prompt", OPTION_TEXT, generate.prompt),
                                       ON_COMMAND_LINE("--system", OPTION_TEXT, generate.system)};
#define N_POINTED ((int)(sizeof POINTED / sizeof POINTED[0]))

static int n_values(void)
{
    return N_WORDS + N_POINTED + n_recorded_rows;
}

static const option_row_t *row_at(int i)
{
    return i < N_WORDS               ? &WORDS[i]
           : i < N_WORDS + N_POINTED ? &POINTED[i - N_WORDS]
                                     : &option_rows[i - N_WORDS - N_POINTED];
}

static bool is_pointed(const option_row_t *row)
{
    return row >= POINTED && row < POINTED + N_POINTED;
}

/* Returns whether each rank has its own, as in zero_config_t. */
static bool is_of_rank(const option_row_t *row)
{
    static const char *const keys[] = {"offload_threads", "offload_ram", "check"};
    bool found = false;
    for (int i = 0; i < 3; i++)
        found |= strcmp(row->section, "zero") == 0 && strcmp(row->key, keys[i]) == 0;
    return found;
}

/* Writes a value to the stream, with its NUL. */
static void write_value(const option_row_t *row, const options_t *options, FILE *stream)
{
    static char value[OPTIONS_MAX_PATH + 2];
    const char *text = value;
    value[0] = 0;
    if (is_pointed(row))
        text = *(const char *const *)(const void *)((const char *)options + row->offset);
    else if (!is_of_rank(row))
        option_format(row, options, value);
    text = text ? text : "";
    fwrite(text, 1, strlen(text) + 1, stream);
}

/* Returns all values, each with its NUL; NULL: no memory. */
static char *write_values(const options_t *options, size_t *n_bytes)
{
    char *text = NULL;
    FILE *stream = open_memstream(&text, n_bytes);
    if (!stream)
        return NULL;
    for (int i = 0; i < n_values(); i++)
        write_value(row_at(i), options, stream);
    if (fclose(stream) == 0)
        return text;
    free(text);
    return NULL;
}

static zero_status_t refuse(const option_row_t *row, const char *mine, const char *first)
{
    if (!row->section[0])
        return report_error(ZERO_ERROR_USAGE, "%s: '%s', but '%s' on rank 0: give every rank the same arguments",
                            row->key, mine, first);
    return report_error(ZERO_ERROR_USAGE,
                        "[%s] %s: '%s', but '%s' on rank 0: give every rank the same arguments, and every host "
                        "the same configuration and model",
                        row->section, row->key, mine, first);
}

/* Both have as many values. */
static zero_status_t compare(const char *mine, const char *first)
{
    for (int i = 0; i < n_values(); i++) {
        if (strcmp(mine, first) != 0)
            return refuse(row_at(i), mine, first);
        mine += strlen(mine) + 1;
        first += strlen(first) + 1;
    }
    return ZERO_OK;
}

zero_status_t options_compare(const options_t *options, zero_comm_t *comm)
{
    size_t n_mine = 0;
    char *mine = write_values(options, &n_mine);
    uint64_t n_first = n_mine;
    zero_status_t status = ZERO_OK;
    if (!mine)
        status = report_rank_error(ZERO_ERROR_MEMORY, "no memory to compare the settings of all ranks");
    status = report_agree(comm, status);
    if (status == ZERO_OK)
        status = zero_comm_broadcast(comm, &n_first, sizeof n_first, 0);
    char *first = status == ZERO_OK ? malloc(n_first) : NULL;
    if (status == ZERO_OK && !first)
        status = report_rank_error(ZERO_ERROR_MEMORY, "no memory to compare the settings of all ranks");
    status = report_agree(comm, status);
    if (status == ZERO_OK && zero_comm_rank(comm) == 0)
        memcpy(first, mine, n_mine);
    if (status == ZERO_OK)
        status = zero_comm_broadcast(comm, first, n_first, 0);
    if (status == ZERO_OK)
        status = report_agree(comm, compare(mine, first));
    free(mine);
    free(first);
    return status;
}
