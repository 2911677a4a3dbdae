/* allocations.c - see allocations.h. glibc keeps its functions under __libc_ names for just this use. */
#include "tests/support/allocations.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

static atomic_bool counting;
static atomic_ulong n_allocations;

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

static void count(void)
{
    if (atomic_load_explicit(&counting, memory_order_relaxed))
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
