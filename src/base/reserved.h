/* reserved.h - room for later fields in the structs of zero.h. A program that sets such a field must not run with a
 * library that does not know it, so room that is not 0 is refused. */
#ifndef ZERO_RESERVED_H
#define ZERO_RESERVED_H

#include "zero.h"

/* Returns whether all of the bytes are 0. */
bool zero_are_zeros(const void *bytes, size_t n_bytes);

/* Returns ZERO_ERROR_UNSUPPORTED, with a line, unless the `reserved` of `argument` of `call` is 0. */
zero_status_t zero_check_reserved(const char *call, const char *argument, const void *reserved, size_t n_bytes);

/* The same for a pointer to a struct that has `reserved`, in the function that got it. */
#define ZERO_REQUIRE_RESERVED(argument)                                                                                \
    ZERO_TRY(zero_check_reserved(__func__, #argument, (argument)->reserved, sizeof(argument)->reserved))

#endif
