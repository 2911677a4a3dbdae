/* data_identity.h - by what a resumed run knows its training data again, wherever they lie now. */
#ifndef ZEROTRAIN_DATA_IDENTITY_H
#define ZEROTRAIN_DATA_IDENTITY_H

#include "zero.h"

typedef struct data_identity {
    int64_t n_tokens;
    uint64_t sample; /* of the files' sizes, in their order, and of bytes from all over each: all bytes of small ones */
} data_identity_t;

/* paths: separated by commas, as in [data] train, of files that data_open has taken; n_tokens: that they have. Reads
 * little, however large the files are. ZERO_ERROR_IO, with a line, where one cannot be read. */
zero_status_t data_identity_read(const char *paths, int64_t n_tokens, data_identity_t *identity);

#endif
