/* megatron_pair.h - Megatron-LM's pairs of files: PREFIX.bin has the tokens, PREFIX.idx describes them. */
#ifndef ZEROTRAIN_MEGATRON_PAIR_H
#define ZEROTRAIN_MEGATRON_PAIR_H

#include "train/tokens/token_files.h"

/* Returns the path of the file that has the tokens, for free(): of a pair the .bin, whichever path the user gave. NULL:
 * no memory. */
char *megatron_pair_tokens_path(const char *path, options_format_t format);
/* Returns whether there is an index beside an open file. */
bool megatron_pair_has_index(const token_file_t *file);
/* Takes width, sign and number of the tokens from the index, which is checked. */
zero_status_t megatron_pair_read(token_file_t *file);

#endif
