/* status.h - what every caller of something that can fail writes. Inline: zerotrain includes it, too. */
#ifndef ZERO_STATUS_H
#define ZERO_STATUS_H

#include <errno.h>

#include "zero.h"

/* Returns the status from the calling function if it is a failure. */
#define ZERO_TRY(call)                                                                                                 \
    do {                                                                                                               \
        zero_status_t zero_try_status = (call);                                                                        \
        if (zero_try_status != ZERO_OK)                                                                                \
            return zero_try_status;                                                                                    \
    } while (0)

/* Jumps to the clean-up at `label` if the status, which is kept in `status`, is a failure. */
#define ZERO_TRY_GOTO(call, label)                                                                                     \
    do {                                                                                                               \
        status = (call);                                                                                               \
        if (status != ZERO_OK)                                                                                         \
            goto label;                                                                                                \
    } while (0)

/* Makes a system call again that a signal has interrupted. call: returns -1 and sets errno if it fails. */
#define ZERO_RETRY(call)                                                                                               \
    __extension__({                                                                                                    \
        __typeof__(call) zero_result;                                                                                  \
        do                                                                                                             \
            zero_result = (call);                                                                                      \
        while (zero_result == -1 && errno == EINTR);                                                                   \
        zero_result;                                                                                                   \
    })

#endif
