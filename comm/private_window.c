/* private_window.c - see private_window.h. Windows are fresh pages from the kernel: zeroed, and aligned to a page. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "comm/private_window.h"
#include "base/log.h"

static size_t mapped_bytes(size_t n_bytes)
{
    return n_bytes > 0 ? n_bytes : 1; /* an empty window still has an address */
}

zero_status_t zero_private_window_create(zero_comm_t *comm, size_t n_bytes, zero_window_t *window)
{
    void *memory = mmap(NULL, mapped_bytes(n_bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    zero_status_t status = ZERO_OK;
    if (memory == MAP_FAILED)
        status = zero_fail(ZERO_ERROR_MEMORY, "no memory for a window of %zu bytes: %s", n_bytes, strerror(errno));
    zero_status_t agreed = zero_comm_agree(comm, status);
    if (agreed != ZERO_OK) {
        if (status == ZERO_OK)
            munmap(memory, mapped_bytes(n_bytes));
        return agreed;
    }
    madvise(memory, n_bytes, MADV_HUGEPAGE); /* a hint: flat buffers are large and read from end to end */
    *window = (zero_window_t){.local = memory, .n_bytes = n_bytes};
    return ZERO_OK;
}

void zero_private_window_destroy(zero_comm_t *comm, zero_window_t *window)
{
    (void)comm;
    munmap(window->local, mapped_bytes(window->n_bytes));
    *window = (zero_window_t){0};
}

zero_status_t zero_private_window_fence(zero_comm_t *comm, zero_lane_t lane, zero_stream_t stream)
{
    (void)comm, (void)lane, (void)stream;
    return ZERO_OK;
}
