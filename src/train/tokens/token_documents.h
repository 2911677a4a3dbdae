/* token_documents.h - which documents begin within a part of a file. Only zerotrain's own token files say
 * (token_header.h). */
#ifndef ZEROTRAIN_TOKEN_DOCUMENTS_H
#define ZEROTRAIN_TOKEN_DOCUMENTS_H

#include "train/tokens/token_files.h"

bool token_documents_are_there(const token_file_t *file);
/* Sets begins[0 .. *n_begins - 1] to those of 0 .. n_tokens - 1, ascending, for which a document begins with token
 * first + begins[i]. begins has room for n_tokens. Logs nothing: sets *fault on failure. */
zero_status_t token_documents_find(const token_file_t *file, int64_t first, int64_t n_tokens, int32_t *begins,
                                   int64_t *n_begins, token_fault_t *fault);

/* Checks that documents begin one after another within the tokens. Returns ZERO_ERROR_FORMAT or ZERO_ERROR_IO, with a
 * log line. */
zero_status_t token_documents_check(const token_file_t *file);

#endif
