/* status.c - names and texts of statuses, dtypes and memory categories, from the tables in zero.h. */
#include "base/log.h"
#include "zero.h"

const char *zero_version(void)
{
    return ZERO_VERSION_STRING;
}

const char *zero_status_name(zero_status_t status)
{
    switch (status) {
#define STATUS_NAME(name, number, text)                                                                                \
    case ZERO_##name:                                                                                                  \
        return "ZERO_" #name;
        ZERO_STATUS_MAP(STATUS_NAME)
#undef STATUS_NAME
    }
    return "ZERO_UNKNOWN";
}

const char *zero_status_text(zero_status_t status)
{
    switch (status) {
#define STATUS_TEXT(name, number, text)                                                                                \
    case ZERO_##name:                                                                                                  \
        return text;
        ZERO_STATUS_MAP(STATUS_TEXT)
#undef STATUS_TEXT
    }
    return "unknown status";
}

size_t zero_dtype_size(zero_dtype_t dtype)
{
    switch (dtype) {
    case ZERO_FP32:
        return 4;
    case ZERO_BF16:
    case ZERO_FP16:
        return 2;
    }
    return 0;
}

const char *zero_dtype_name(zero_dtype_t dtype)
{
    switch (dtype) {
    case ZERO_FP32:
        return "fp32";
    case ZERO_BF16:
        return "bf16";
    case ZERO_FP16:
        return "fp16";
    }
    return "unknown dtype";
}

const char *zero_memory_name(zero_memory_category_t category)
{
    static const char *const names[] = {
#define MEMORY_NAME(name, text, what) text,
        ZERO_MEMORY_MAP(MEMORY_NAME)
#undef MEMORY_NAME
    };
    return (unsigned)category < ZERO_MEMORY_N_CATEGORIES ? names[category] : "unknown category";
}

uint64_t zero_memory_total(const zero_memory_t *memory)
{
    uint64_t total = 0;
    for (int i = 0; memory && i < ZERO_MEMORY_N_CATEGORIES; i++)
        total += memory->bytes[i];
    return total;
}

/* ---- reserved ---- */

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
