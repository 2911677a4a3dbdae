/* reserved.c - see reserved.h. */
#include "base/reserved.h"

#include "base/log.h"

bool zero_are_zeros(const void *bytes, size_t n_bytes)
{
    const unsigned char *at = bytes;
    for (size_t i = 0; i < n_bytes; i++)
        if (at[i] != 0)
            return false;
    return true;
}

zero_status_t zero_check_reserved(const char *call, const char *argument, const void *reserved, size_t n_bytes)
{
    if (zero_are_zeros(reserved, n_bytes))
        return ZERO_OK;
    return zero_fail(ZERO_ERROR_UNSUPPORTED,
                     "%s: %s->reserved is not 0: begin with a struct of zeros. If the program's zero.h is newer than "
                     "libzero " ZERO_VERSION_STRING ", it sets a field that this library does not have",
                     call, argument);
}
