/* retry.h - makes a system call again that a signal has interrupted. */
#ifndef ZERO_RETRY_H
#define ZERO_RETRY_H

#include <errno.h>

/* call: returns -1 and sets errno if it fails. */
#define ZERO_RETRY(call)                                                                                               \
    __extension__({                                                                                                    \
        __typeof__(call) zero_result;                                                                                  \
        do                                                                                                             \
            zero_result = (call);                                                                                      \
        while (zero_result == -1 && errno == EINTR);                                                                   \
        zero_result;                                                                                                   \
    })

#endif
