/* host_memory.c - see host_memory.h. */
#include "zero/device/host_memory.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"

#define HUGE_PAGE_BYTES ((size_t)2 << 20)

/* Maps a huge page more, since huge pages begin at multiples of their size, and unmaps what is before and after. */
zero_status_t zero_host_map(size_t n_bytes, void **data)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t whole = (n_bytes + page - 1) / page * page;
    unsigned char *mapped =
        mmap(NULL, whole + HUGE_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED)
        return zero_fail(ZERO_ERROR_MEMORY, "cannot map %zu bytes of host memory: %s", n_bytes, strerror(errno));
    size_t before = (HUGE_PAGE_BYTES - (uintptr_t)mapped % HUGE_PAGE_BYTES) % HUGE_PAGE_BYTES;
    if (before > 0)
        munmap(mapped, before);
    munmap(mapped + before + whole, HUGE_PAGE_BYTES - before);
    (void)madvise(mapped + before, whole, MADV_HUGEPAGE); /* if the system has them */
    *data = mapped + before;
    return ZERO_OK;
}

void zero_host_unmap(void *data, size_t n_bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (data)
        munmap(data, (n_bytes + page - 1) / page * page);
}
