/* data_files.h - the token files of a data set, as one list of sequences that are cut out of them: each file has whole
 * ones. */
#ifndef ZEROTRAIN_DATA_FILES_H
#define ZEROTRAIN_DATA_FILES_H

#include "train/data/data.h"
#include "train/data/token_files.h"

typedef struct data_files {
    int n;
    token_file_t *at;
    int64_t *first_sequence;       /* [n + 1]: file i has sequences first_sequence[i] .. first_sequence[i + 1] - 1 */
    int64_t n_tokens, n_sequences; /* n_sequences: if they are cut */
    bool has_mask;                 /* some targets may not count: by a mask, or because documents are separate */
} data_files_t;

/* Opens the files of a comma-separated list and checks their headers against each other and the model. spec->paths is
 * not read. *files is zero before; the caller closes it, whatever is returned. */
zero_status_t data_files_open(const data_spec_t *spec, const char *paths, data_files_t *files);
void data_files_close(data_files_t *files);
/* Checks every token against the vocabulary: this rank's share of each file. */
zero_status_t data_files_check_tokens(const data_spec_t *spec, const data_files_t *files);
/* Returns the file that has a sequence, and in *token its first token there. */
const token_file_t *data_files_find(const data_files_t *files, int64_t sequence, int64_t seq_len, int64_t *token);
/* Returns the first file that names the tokenizer.json that made its tokens; NULL: none does. */
const token_file_t *data_files_tokenizer(const data_files_t *files);

#endif
