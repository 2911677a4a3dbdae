/* config_size.c - configurations of other sizes than this library's: of programs that were compiled with an older or a
 * newer zero.h. Fields are only ever added behind the last one, so the shorter struct is the beginning of the longer.
 *
 * The library works on structs of its own size alone. A caller's comes in by zero_config_read and goes out by
 * zero_config_write; nothing else touches a caller's memory, and nothing beyond its struct_size.
 */
#include <assert.h>
#include <string.h>

#include "base/log.h"
#include "base/reserved.h"
#include "zero/plan/config.h"

/* What the smallest struct ends before. The first header was a little larger, so that there are shorter structs to test
 * with: fields from here on may be missing in a caller's. */
#define FIRST_SIZE offsetof(zero_config_t, staging_bytes)
/* No header is near it: a number that is larger is none that a program meant. */
#define MOST_SIZE 4096
/* What is behind is unknown here. A newer header may have fields in the room. */
#define KNOWN_SIZE offsetof(zero_config_t, reserved)

/* A field that is added begins at a multiple of 8, and the struct has no unnamed bytes at its end, which a copy might
 * not keep. */
static_assert(sizeof(zero_config_t) % 8 == 0 && FIRST_SIZE % 8 == 0, "sizes of zero_config_t are multiples of 8");
static_assert(KNOWN_SIZE + sizeof((zero_config_t){0}.reserved) == sizeof(zero_config_t), "reserved is at the end");

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static zero_status_t check_size(const char *call, size_t struct_size)
{
    if (struct_size >= FIRST_SIZE && struct_size <= MOST_SIZE && struct_size % 8 == 0)
        return ZERO_OK;
    return zero_fail(ZERO_ERROR_ARGUMENT,
                     "%s: struct_size is %zu, and no zero.h has such a zero_config_t (libzero " ZERO_VERSION_STRING
                     "'s has %zu bytes): begin with zero_config_default(), or with zero_config_init(&config, "
                     "sizeof config)",
                     call, struct_size, sizeof(zero_config_t));
}

void zero_config_write(const zero_config_t *config, size_t struct_size, zero_config_t *callers)
{
    size_t n_bytes = smaller(struct_size, sizeof *config);
    memcpy((void *)callers, config, n_bytes);
    memset((unsigned char *)callers + n_bytes, 0, struct_size - n_bytes);
    callers->struct_size = struct_size;
}

zero_status_t zero_config_init(zero_config_t *config, size_t struct_size)
{
    ZERO_REQUIRE(config);
    ZERO_TRY(check_size("zero_config_init", struct_size));
    const zero_config_t defaults = zero_config_defaults();
    zero_config_write(&defaults, struct_size, config);
    return ZERO_OK;
}

zero_status_t zero_config_check_size(const char *call, const zero_config_t *callers)
{
    const size_t struct_size = callers->struct_size;
    ZERO_TRY(check_size(call, struct_size));
    if (struct_size <= KNOWN_SIZE ||
        zero_are_zeros((const unsigned char *)callers + KNOWN_SIZE, struct_size - KNOWN_SIZE))
        return ZERO_OK;
    return zero_fail(ZERO_ERROR_UNSUPPORTED,
                     "%s: the program's zero_config_t has %zu bytes, that of libzero " ZERO_VERSION_STRING
                     " has %zu, and what this library does not know in it is not 0: leave those fields alone, or run "
                     "the program with the library of its zero.h",
                     call, struct_size, sizeof(zero_config_t));
}

zero_status_t zero_config_read(const char *call, const zero_config_t *callers, zero_config_t *config)
{
    ZERO_TRY(zero_config_check_size(call, callers));
    zero_config_t read = zero_config_defaults();
    memcpy((void *)&read, callers, smaller(callers->struct_size, KNOWN_SIZE));
    read.struct_size = sizeof read;
    *config = read;
    return ZERO_OK;
}
