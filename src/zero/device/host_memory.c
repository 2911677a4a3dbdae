/* host_memory.c - see host_memory.h. */
#include "zero/device/host_memory.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"

#define HUGE_PAGE_BYTES ((size_t)2 << 20)

uint64_t zero_host_read_number(const char *path)
{
    unsigned long long value;
    FILE *file = fopen(path, "r");
    if (!file)
        return UINT64_MAX;
    int n = fscanf(file, "%llu", &value);
    fclose(file);
    return n == 1 ? value : UINT64_MAX;
}

uint64_t zero_host_ram_bytes(void)
{
    static const char *const limits[] = {"/sys/fs/cgroup/memory.max", /* version 2, and 1 */
                                         "/sys/fs/cgroup/memory/memory.limit_in_bytes"};
    uint64_t ram = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        uint64_t limit = zero_host_read_number(limits[i]);
        ram = limit < ram ? limit : ram;
    }
    return ram;
}

zero_status_t zero_host_check_share(uint64_t n_bytes, int n_ranks, double share, uint64_t ram_bytes)
{
    const double gib = 1024.0 * 1024.0 * 1024.0;
    double wanted = (double)n_bytes * n_ranks, allowed = share * (double)ram_bytes;
    if (wanted <= allowed)
        return ZERO_OK;
    return zero_fail(ZERO_ERROR_MEMORY,
                     "offload needs %.2f GiB of host memory for the %d rank%s of this host, and may take %.2f: %g "
                     "(offload_ram) of the %.2f GiB that this host or container has. Take a smaller offload_ratio, "
                     "more hosts or, if nothing else needs it, a larger offload_ram",
                     wanted / gib, n_ranks, n_ranks == 1 ? "" : "s", allowed / gib, share, (double)ram_bytes / gib);
}

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
