/* clock.h - seconds on a clock that never jumps and that all processes of a host share. */
#ifndef ZERO_TEST_CLOCK_H
#define ZERO_TEST_CLOCK_H

#include <time.h>

static inline double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#endif
