/* little_endian.h - numbers in the bytes of a file, at any alignment. */
#ifndef ZEROTRAIN_LITTLE_ENDIAN_H
#define ZEROTRAIN_LITTLE_ENDIAN_H

#include <stddef.h>
#include <stdint.h>

/* Returns the i-th number of an array of integers of `width` bytes: 1, 2 or 4. */
static inline uint32_t load_uint(const unsigned char *array, int width, int64_t i)
{
    const unsigned char *bytes = array + (size_t)i * (size_t)width;
    switch (width) {
    case 1:
        return bytes[0];
    case 2:
        return (uint32_t)(bytes[0] | bytes[1] << 8);
    default:
        return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
    }
}

/* The same of 8 bytes. */
static inline uint64_t load_uint64(const unsigned char *array, int64_t i)
{
    return load_uint(array, 4, 2 * i) | (uint64_t)load_uint(array, 4, 2 * i + 1) << 32;
}

#endif
