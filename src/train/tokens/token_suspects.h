/* token_suspects.h - files that format auto would take for what they hardly are. */
#ifndef ZEROTRAIN_TOKEN_SUSPECTS_H
#define ZEROTRAIN_TOKEN_SUSPECTS_H

#include "train/tokens/token_files.h"

/* Refuses what can be trained on as text but hardly should be: packed and binary files, markup. */
zero_status_t token_suspects_check_text(const token_file_t *file);
/* Refuses a file without a header whose uint16 numbers are the halves of uint32 tokens. */
zero_status_t token_suspects_check_width(const token_file_t *file);

#endif
