/* failing.c - a library for LD_PRELOAD in which one call of the program's fails, for tests/random/faults.
 *
 *     FAIL_CALL=NAME   malloc (any allocation), open, write, rename, fsync, mmap, fallocate, mkdir ...: the rows of
 * CALLS FAIL_NTH=N       the N-th call of that name, from 1; 0: none FAIL_ERRNO=E     what it fails with FAIL_RANK=R
 * only in this rank FAIL_COUNT=FILE  appends "NAME N" for each name at the end: how many calls there were
 *
 * Calls count if the program zerotrain makes them, or a small library on its behalf (jansson, iniparser, PCRE2,
 * xxHash), not MPI's or the loader's.
 */
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *data, size_t n);
extern void *__libc_memalign(size_t align, size_t n);

#define CALLS(X)                                                                                                       \
    X(malloc) X(open) X(read) X(write) X(rename) X(fsync) X(mmap) X(fallocate) X(ftruncate) X(mkdir) X(unlink)
#define NAME(call) CALL_##call,
enum { CALLS(NAME) N_CALLS };
#define TEXT(call) #call,
static const char *const names[] = {CALLS(TEXT)};

static struct {
    uintptr_t begin, end;
} code[64];
static int n_code;
static _Atomic long counts[N_CALLS];
static long nth;
static int failing = -1, failing_errno;
static bool is_on;
static _Thread_local bool is_inside;

static int note_code(struct dl_phdr_info *info, size_t size, void *user)
{
    static const char *const wanted[] = {"jansson", "iniparser", "pcre2", "xxhash", "utf8proc"};
    bool is_wanted = !info->dlpi_name[0];
    (void)size, (void)user;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        is_wanted |= strstr(info->dlpi_name, wanted[i]) != NULL;
    for (int i = 0; is_wanted && i < info->dlpi_phnum && n_code < 64; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD && (info->dlpi_phdr[i].p_flags & PF_X)) {
            code[n_code].begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            code[n_code].end = code[n_code].begin + info->dlpi_phdr[i].p_memsz;
            n_code++;
        }
    return 0;
}

__attribute__((constructor)) static void start(void)
{
    char program[4096] = "";
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *wanted = getenv("FAIL_RANK"), *name = getenv("FAIL_CALL");
    is_inside = true;
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    is_on = n > 10 && strcmp(program + n - 10, "/zerotrain") == 0 && (!wanted || !rank || strcmp(rank, wanted) == 0);
    for (int i = 0; name && i < N_CALLS; i++)
        if (strcmp(names[i], name) == 0)
            failing = i;
    nth = getenv("FAIL_NTH") ? atol(getenv("FAIL_NTH")) : 0;
    failing_errno = getenv("FAIL_ERRNO") ? atoi(getenv("FAIL_ERRNO")) : EIO;
    dl_iterate_phdr(note_code, NULL);
    is_inside = false;
}

__attribute__((destructor)) static void end(void)
{
    const char *path = getenv("FAIL_COUNT");
    char line[64];
    if (!is_on || !path)
        return;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND, 0644);
    for (int i = 0; fd >= 0 && i < N_CALLS; i++) {
        int n = snprintf(line, sizeof line, "%s %ld\n", names[i], (long)counts[i]);
        syscall(SYS_write, fd, line, n);
    }
    syscall(SYS_close, fd);
}

/* Counts a call made from `caller`. Returns whether it fails, with errno set. */
static bool fails(int call, const void *caller)
{
    const uintptr_t at = (uintptr_t)caller;
    bool is_own = false;
    if (!is_on || is_inside)
        return false;
    for (int i = 0; i < n_code && !is_own; i++)
        is_own = at >= code[i].begin && at < code[i].end;
    if (!is_own || atomic_fetch_add(&counts[call], 1) + 1 != nth || call != failing)
        return false;
    errno = failing_errno;
    return true;
}

#define FAILS(call) fails(CALL_##call, __builtin_return_address(0))

void *malloc(size_t n)
{
    return FAILS(malloc) ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    return FAILS(malloc) ? NULL : __libc_calloc(n, size);
}

void *realloc(void *data, size_t n)
{
    return FAILS(malloc) ? NULL : __libc_realloc(data, n);
}

void *aligned_alloc(size_t align, size_t n)
{
    return FAILS(malloc) ? NULL : __libc_memalign(align, n);
}

int posix_memalign(void **data, size_t align, size_t n)
{
    void *made = FAILS(malloc) ? NULL : __libc_memalign(align, n);
    if (made)
        *data = made;
    return made ? 0 : ENOMEM;
}

void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
    return FAILS(mmap) ? MAP_FAILED : (void *)syscall(SYS_mmap, at, n, protection, flags, fd, offset);
}

void *mmap64(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
    return FAILS(mmap) ? MAP_FAILED : (void *)syscall(SYS_mmap, at, n, protection, flags, fd, offset);
}

#define OPENS(name, directory)                                                                                         \
    {                                                                                                                  \
        mode_t mode = 0;                                                                                               \
        if (flags & (O_CREAT | O_TMPFILE)) {                                                                           \
            va_list list;                                                                                              \
            va_start(list, flags);                                                                                     \
            mode = va_arg(list, mode_t);                                                                               \
            va_end(list);                                                                                              \
        }                                                                                                              \
        return FAILS(open) ? -1 : (int)syscall(SYS_openat, directory, path, flags, mode);                              \
    }
int open(const char *path, int flags, ...) OPENS(open, AT_FDCWD) int open64(const char *path, int flags, ...)
    OPENS(open64, AT_FDCWD) int openat(int directory, const char *path, int flags, ...)
        OPENS(openat, directory) int openat64(int directory, const char *path, int flags, ...)
            OPENS(openat64, directory)

                ssize_t read(int fd, void *data, size_t n)
{
    return FAILS(read) ? -1 : syscall(SYS_read, fd, data, n);
}

ssize_t pread(int fd, void *data, size_t n, off_t at)
{
    return FAILS(read) ? -1 : syscall(SYS_pread64, fd, data, n, at);
}

ssize_t pread64(int fd, void *data, size_t n, off_t at)
{
    return FAILS(read) ? -1 : syscall(SYS_pread64, fd, data, n, at);
}

ssize_t write(int fd, const void *data, size_t n)
{
    return FAILS(write) ? -1 : syscall(SYS_write, fd, data, n);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t at)
{
    return FAILS(write) ? -1 : syscall(SYS_pwrite64, fd, data, n, at);
}

ssize_t pwrite64(int fd, const void *data, size_t n, off_t at)
{
    return FAILS(write) ? -1 : syscall(SYS_pwrite64, fd, data, n, at);
}

int rename(const char *from, const char *to)
{
    return FAILS(rename) ? -1 : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    return FAILS(rename) ? -1 : (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, 0);
}

int fsync(int fd)
{
    return FAILS(fsync) ? -1 : (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd)
{
    return FAILS(fsync) ? -1 : (int)syscall(SYS_fdatasync, fd);
}

int fallocate(int fd, int mode, off_t at, off_t n)
{
    return FAILS(fallocate) ? -1 : (int)syscall(SYS_fallocate, fd, mode, at, n);
}

int posix_fallocate(int fd, off_t at, off_t n)
{
    if (FAILS(fallocate))
        return failing_errno;
    return syscall(SYS_fallocate, fd, 0, at, n) == 0 ? 0 : errno;
}

int ftruncate(int fd, off_t n)
{
    return FAILS(ftruncate) ? -1 : (int)syscall(SYS_ftruncate, fd, n);
}

int mkdir(const char *path, mode_t mode)
{
    return FAILS(mkdir) ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int mkdirat(int directory, const char *path, mode_t mode)
{
    return FAILS(mkdir) ? -1 : (int)syscall(SYS_mkdirat, directory, path, mode);
}

int unlink(const char *path)
{
    return FAILS(unlink) ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

int unlinkat(int directory, const char *path, int flags)
{
    return FAILS(unlink) ? -1 : (int)syscall(SYS_unlinkat, directory, path, flags);
}
