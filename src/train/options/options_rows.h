/* options_rows.h - the numbers of the command line's options, for options_command_line.c. */
#ifndef ZEROTRAIN_OPTIONS_ROWS_H
#define ZEROTRAIN_OPTIONS_ROWS_H

#include "train/options/options_table.h"

typedef enum command_line_number {
    ROW_STAGE,
    ROW_STEPS,
    ROW_SET,
    ROW_TRACE,
    ROW_RESUME,
    ROW_AUTO_RESUME,
    ROW_FORCE,
    ROW_OVERWRITE,
    ROW_PLAN,
    ROW_HOSTS,
    ROW_GPUS,
    ROW_GPU_MEMORY,
    ROW_HOST_MEMORY,
    ROW_GPU,
    ROW_SVG,
    ROW_JSON,
    ROW_OUTPUT,
    ROW_PROMPT,
    ROW_PROMPT_FILE,
    ROW_PROMPTS,
    ROW_CHAT,
    ROW_SYSTEM,
    ROW_ADAPTER,
    ROW_MAX_TOKENS,
    ROW_TEMPERATURE,
    ROW_TOP_K,
    ROW_TOP_P,
    ROW_SEED,
    ROW_VOCAB_SIZE,
    ROW_HELP,
    ROW_VERSION,
    N_ROWS
} command_line_number_t;

#endif
