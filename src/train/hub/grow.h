/* grow.h - gives a model's files more rows of vocabulary: for zerotrain export --vocab-size, in merge.c. */
#ifndef ZEROTRAIN_GROW_H
#define ZEROTRAIN_GROW_H

#include <stdio.h>

#include "train/hub/tensor_file.h"

/* What has grown, in all files. */
typedef struct grown {
    int64_t n_tensors, n_bytes; /* n_bytes: of the new rows */
} grown_t;

/* Returns whether a tensor has a row for each of n_rows tokens: the embedding, and the head if it is one of its own. */
bool grow_is_vocabulary(const file_tensor_t *tensor, int64_t n_rows);

/* Writes a file as it is, but with n_more rows behind the n_rows of each such tensor: the mean of those, in fp64,
 * rounded once to the dtype. Adds to *grown. One such tensor at a time is in memory. The caller checks `out` for
 * errors. */
zero_status_t grow_write(const tensor_file_t *file, int64_t n_rows, int64_t n_more, FILE *out, grown_t *grown);

/* Return a config.json with the vocabulary's new size, and an index of files with n_bytes more of weights, for free().
 * NULL, after a line: it cannot be read, or there is no memory. */
char *grow_config(const char *path, int64_t vocab_size);
char *grow_index(const char *path, int64_t n_bytes);

#endif
