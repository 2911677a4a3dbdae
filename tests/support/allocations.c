/* allocations.c - see allocations.h. glibc exports its functions under __libc_ names for exactly this use. */
#include "tests/support/allocations.h"

#include <dirent.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

static atomic_bool counting;
static atomic_ulong n_allocations;

#define MAX_LEFT_OUT 64
static pid_t left_out[MAX_LEFT_OUT];
static int n_left_out;

void allocations_leave_out_other_threads(void)
{
    DIR *tasks = opendir("/proc/self/task");
    for (const struct dirent *task; tasks && (task = readdir(tasks));)
        if (task->d_name[0] != '.' && atoi(task->d_name) != gettid() && n_left_out < MAX_LEFT_OUT)
            left_out[n_left_out++] = (pid_t)atoi(task->d_name);
    if (tasks)
        closedir(tasks);
}

void allocations_start(void)
{
    atomic_store(&n_allocations, 0);
    atomic_store(&counting, true);
}

unsigned long allocations_stop(void)
{
    atomic_store(&counting, false);
    return atomic_load(&n_allocations);
}

#ifndef __SANITIZE_ADDRESS__
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

/* Visible, though the build hides what is not marked: shared libraries (libc's fopen, OpenBLAS, OpenMP, MPI) must find
 * these before libc's own, or they would allocate uncounted. */
#pragma GCC visibility push(default)

static bool is_left_out(void)
{
    static _Thread_local int known; /* 0: not looked up yet, 1: counted, 2: left out */
    if (known == 0) {
        pid_t self = gettid();
        known = 1;
        for (int i = 0; i < n_left_out; i++)
            known = left_out[i] == self ? 2 : known;
    }
    return known == 2;
}

static void count(void)
{
    if (atomic_load_explicit(&counting, memory_order_relaxed) && !is_left_out())
        atomic_fetch_add_explicit(&n_allocations, 1, memory_order_relaxed);
}

void *malloc(size_t n)
{
    count();
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    count();
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    count();
    return __libc_realloc(p, n);
}

void *aligned_alloc(size_t alignment, size_t n)
{
    count();
    return __libc_memalign(alignment, n);
}

int posix_memalign(void **p, size_t alignment, size_t n)
{
    count();
    *p = __libc_memalign(alignment, n);
    return *p ? 0 : ENOMEM;
}

#pragma GCC visibility pop
#endif
