/* tokenizer_parts.h - reads what tokenizer.json does to text around the vocabulary. For tokenizer_file.c. */
#ifndef ZEROTRAIN_TOKENIZER_PARTS_H
#define ZEROTRAIN_TOKENIZER_PARTS_H

#include "train/tokenizer/tokenizer_json.h"

/* Read normalizer and decoder; and, when the vocabulary is there, what splits the text and what stands before it. */
zero_status_t tokenizer_read_forms(file_t *file);
zero_status_t tokenizer_read_splits(file_t *file);

#endif
