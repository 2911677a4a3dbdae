/* largest.h - how much larger a size could be with the same settings. */
#ifndef ZEROTRAIN_LARGEST_H
#define ZEROTRAIN_LARGEST_H

#include "train/planning/choice.h"

/* The largest that fit, each with all else as chosen; 0: not even the least does. */
typedef struct fit_largest {
    int64_t micro_batch; /* in one pass, whatever the batch of a step is */
    int64_t seq_len;     /* a multiple of FIT_SEQ_LEN_MULTIPLE, or what is set */
    int64_t layers;
} fit_largest_t;

#define FIT_SEQ_LEN_MULTIPLE 128

zero_status_t fit_find_largest(const fit_t *fit, const fit_choice_t *choice, fit_largest_t *largest);

#endif
