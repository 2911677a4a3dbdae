/* grow.h - room for one more element in an array that doubles. */
#ifndef ZERO_GROW_H
#define ZERO_GROW_H

#include <stdlib.h>

/* Returns `array`, which has n elements and room for *capacity, with room for at least one more; it may have moved.
 * Returns NULL without memory; `array` then stays as it was. */
static inline void *zero_grow(void *array, size_t n, size_t *capacity, size_t element_bytes)
{
    if (n < *capacity)
        return array;
    size_t grown = 2 * *capacity + 64;
    void *moved = realloc(array, grown * element_bytes);
    if (moved)
        *capacity = grown;
    return moved;
}

#endif
