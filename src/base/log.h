/* log.h - how libzero logs a line and how it reports a failure. */
#ifndef ZERO_LOG_H
#define ZERO_LOG_H

#include "base/status.h"
#include "zero.h"

#if defined(__GNUC__)
#define ZERO_PRINTF(format_at, args_at) __attribute__((format(printf, format_at, args_at)))
#else
#define ZERO_PRINTF(format_at, args_at)
#endif

/* Sets the rank that lines are logged with: this process's in the communicator of the call that it is in. -1 until it
 * is known. */
void zero_log_set_rank(int rank);
/* Sets the host that error lines on stderr name; "", as at first, where there is but one. */
void zero_log_set_host(const char *host);
void zero_log(zero_log_level_t level, const char *format, ...) ZERO_PRINTF(2, 3);

/* Logs one error line and returns `status`. Only the function that detects a failure calls it; its callers pass the
 * status up. */
zero_status_t zero_fail(zero_status_t status, const char *format, ...) ZERO_PRINTF(2, 3);
/* The same for a failure that every rank detects: only rank 0 logs it. */
zero_status_t zero_fail_collective(zero_status_t status, const char *format, ...) ZERO_PRINTF(2, 3);

/* Sets the thread's last error (zero_last_error) without a line in the log: another rank's line says why. */
void zero_note_error(const char *format, ...) ZERO_PRINTF(1, 2);

/* While muted, this thread leaves neither lines nor a last error. For what is tried by several threads at once: what
 * fails is tried again by the caller's thread, which says why. */
void zero_log_mute(bool muted);

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

/* Returns ZERO_ERROR_ARGUMENT if the argument is NULL. Public functions that return a status begin with it. */
#define ZERO_REQUIRE(argument)                                                                                         \
    do {                                                                                                               \
        if (!(argument))                                                                                               \
            return zero_refuse_null(__func__, #argument);                                                              \
    } while (0)

/* ---- reserved ---- */
/* Room for later fields in the structs of zero.h. A program that sets such a field must not run with a
 * library that does not know it, so room that is not 0 is refused. */

/* Returns whether all of the bytes are 0. */
bool zero_are_zeros(const void *bytes, size_t n_bytes);

/* Returns ZERO_ERROR_UNSUPPORTED, with a line, unless the `reserved` of `argument` of `call` is 0. */
zero_status_t zero_check_reserved(const char *call, const char *argument, const void *reserved, size_t n_bytes);

/* The same for a pointer to a struct that has `reserved`, in the function that got it. */
#define ZERO_REQUIRE_RESERVED(argument)                                                                                \
    ZERO_TRY(zero_check_reserved(__func__, #argument, (argument)->reserved, sizeof(argument)->reserved))

#endif
