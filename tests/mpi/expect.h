/* expect.h - checks in programs that run under mpirun, without Check: the first that fails prints its place and ends
 * the rank with exit code 1, whereupon mpirun ends the others. */
#ifndef ZERO_TEST_EXPECT_H
#define ZERO_TEST_EXPECT_H

#include "zero.h"

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: not so: %s: ", __FILE__, __LINE__, #condition);                                    \
            fprintf(stderr, __VA_ARGS__);                                                                              \
            fputc('\n', stderr);                                                                                       \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
/* With the reason: an error that all ranks come to is printed by rank 0 alone, which mpirun may end before that. */
#define OK(call) CHECK((call) == ZERO_OK, "%s", zero_last_error())

#endif
