/* scratch.h - a scratch directory of the running test, paths in it, and shell commands that run there. */
#ifndef ZERO_TEST_SCRATCH_H
#define ZERO_TEST_SCRATCH_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/support/support.h"

#define SCRATCH_LIMIT_S 60.0

static char *root; /* the directory */

static inline void scratch_open(void)
{
    root = support_scratch();
}

static inline void scratch_close(void)
{
    free(root);
}

/* Returns the path of a file in the directory. Up to eight are valid at a time. */
static inline const char *path_of(const char *name)
{
    static char paths[8][1024];
    static int turn;
    char *path = paths[turn++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", root, name);
    return path;
}

/* Runs a command in the directory and returns its exit code. $Z is zerotrain. */
__attribute__((format(printf, 1, 2))) static inline int shell(const char *format, ...)
{
    char command[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    return support_run(NULL, SCRATCH_LIMIT_S, "cd %s && export Z=%s/zerotrain OMP_NUM_THREADS=1 && %s", root,
                       support_build(), command);
}

#endif
