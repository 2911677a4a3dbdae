/* log.h - the one way libzero says something and the one way it fails. Used by comm/ and kernels/ too. */
#ifndef ZERO_LOG_H
#define ZERO_LOG_H

#include "zero.h"

#if defined(__GNUC__)
#define ZERO_PRINTF(format_at, args_at) __attribute__((format(printf, format_at, args_at)))
#else
#define ZERO_PRINTF(format_at, args_at)
#endif

/* Who speaks: set once the rank is known; -1 before that. */
void zero_log_set_rank(int rank);
void zero_log(zero_log_level_t level, const char *format, ...) ZERO_PRINTF(2, 3);

/* Logs one error line and returns `status`: for the place that detects a failure. Callers pass the status up. */
zero_status_t zero_fail(zero_status_t status, const char *format, ...) ZERO_PRINTF(2, 3);
/* The same for a failure that every rank detects alike: rank 0 alone logs it. */
zero_status_t zero_fail_alike(zero_status_t status, const char *format, ...) ZERO_PRINTF(2, 3);

/* Logs that an argument of `call` is NULL and returns ZERO_ERROR_ARGUMENT. */
zero_status_t zero_refuse_null(const char *call, const char *argument);

/* Logs that what must hold does not. */
void zero_log_assert(const char *file, int line, const char *condition);

/* Returns ZERO_ERROR_INTERNAL, with a line, unless `condition` holds: for what cannot fail unless libzero is wrong. It
 * is always compiled in, so a mistake of ours is an error and not a crash or wrong numbers. */
#define ZERO_ASSERT(condition)                                                                                         \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            zero_log_assert(__FILE__, __LINE__, #condition);                                                           \
            return ZERO_ERROR_INTERNAL;                                                                                \
        }                                                                                                              \
    } while (0)

/* Refuses an argument that is NULL: the first thing that a public function which returns a status does. */
#define ZERO_REQUIRE(argument)                                                                                         \
    do {                                                                                                               \
        if (!(argument))                                                                                               \
            return zero_refuse_null(__func__, #argument);                                                              \
    } while (0)

/* Passes a failure up. */
#define ZERO_TRY(call)                                                                                                 \
    do {                                                                                                               \
        zero_status_t zero_try_status = (call);                                                                        \
        if (zero_try_status != ZERO_OK)                                                                                \
            return zero_try_status;                                                                                    \
    } while (0)

/* The same, to the clean-up at `label`, for functions that keep their status in `status`. */
#define ZERO_TRY_GOTO(call, label)                                                                                     \
    do {                                                                                                               \
        status = (call);                                                                                               \
        if (status != ZERO_OK)                                                                                         \
            goto label;                                                                                                \
    } while (0)

#endif
