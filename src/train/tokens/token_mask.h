/* token_mask.h - which tokens of a file count as targets, as zerotrain's own token files can say (token_header.h). In
 * files without a mask every token counts. */
#ifndef ZEROTRAIN_TOKEN_MASK_H
#define ZEROTRAIN_TOKEN_MASK_H

#include "train/tokens/token_files.h"

bool token_mask_is_there(const token_file_t *file);
/* Counts those of n_tokens from `first` on that count as targets. Logs nothing: sets *fault on failure. */
zero_status_t token_mask_count(const token_file_t *file, int64_t first, int64_t n_tokens, int64_t *n_counted,
                               token_fault_t *fault);
/* Sets targets[i] to `none` where token first + i does not count. */
zero_status_t token_mask_apply(const token_file_t *file, int64_t first, int64_t n_tokens, int32_t none,
                               int32_t *targets, token_fault_t *fault);

/* Checks that the mask ends with the tokens: the bits of its last byte that stand for no token. Returns
 * ZERO_ERROR_FORMAT or ZERO_ERROR_IO, with a log line. */
zero_status_t token_mask_check(const token_file_t *file);

#endif
