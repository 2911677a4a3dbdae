/* clock.h - the monotonic clock by which the trainer times itself. */
#ifndef ZEROTRAIN_CLOCK_H
#define ZEROTRAIN_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Returns nanoseconds from some moment on. Signal handlers may call it. */
static inline int64_t clock_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline double clock_now_ms(void)
{
    return (double)clock_now_ns() * 1e-6;
}

static inline double clock_now_s(void)
{
    return (double)clock_now_ns() * 1e-9;
}

#endif
