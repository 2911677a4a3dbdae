/* shared_block.c - see shared_block.h. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/system.h"
#include "comm/host/shared_block.h"

#define PARALLEL_COPY_BYTES (1 << 20) /* copies of at least so many bytes are split among threads, in chunks of: */
#define COPY_CHUNK_BYTES (256 << 10)

/* Where a rank's part is found. Device and inode verify that /proc/PID/fd/FD is the same file here as on that rank;
 * between containers it is not. */
typedef struct location {
    int64_t pid, fd;
    uint64_t device, inode;
} location_t;

/* Fails if the ranks of a host together ask for more memory than it has, or than their control groups leave, against
 * which shared pages count. Reserving too many would wake the kernel's out-of-memory killer instead of failing. All
 * ranks of a host would get the same answer, so only its first one checks. */
static zero_status_t check_available(const zero_comm_t *via, size_t n_bytes, zero_log_level_t level)
{
    if (via->local_rank != 0)
        return ZERO_OK;
    uint64_t available;
    zero_host_memory(NULL, &available);
    if (n_bytes <= available / (uint64_t)via->local_size)
        return ZERO_OK;
    zero_log(level, "no memory for shared blocks of %zu bytes on each of %d ranks: %" PRIu64 " bytes are available",
             n_bytes, via->local_size, available);
    return ZERO_ERROR_MEMORY;
}

static void *map_part(int fd, size_t n_bytes, bool writable)
{
    int access = PROT_READ | (writable ? PROT_WRITE : 0);
    void *part = mmap(NULL, n_bytes, access, MAP_SHARED, fd, 0);
    return part == MAP_FAILED ? NULL : part;
}

static zero_status_t make_own_part(size_t n_bytes, zero_log_level_t level, location_t *location, void **part)
{
    struct stat stat;
    int fd = memfd_create("zero", MFD_CLOEXEC);
    if (fd < 0 || ZERO_RETRY(ftruncate(fd, (off_t)n_bytes)) != 0)
        goto fail;
    do {
        errno = posix_fallocate(fd, 0, (off_t)n_bytes);
    } while (errno == EINTR);
    if (errno != 0 || fstat(fd, &stat) != 0 || !(*part = map_part(fd, n_bytes, true)))
        goto fail;
    *location = (location_t){.pid = getpid(), .fd = fd, .device = stat.st_dev, .inode = stat.st_ino};
    return ZERO_OK;

fail:
    zero_log(level, "no shared memory block of %zu bytes: %s", n_bytes, strerror(errno));
    if (fd >= 0)
        close(fd);
    return ZERO_ERROR_MEMORY;
}

static zero_status_t map_peer_part(int peer, const location_t *location, size_t n_bytes, bool writable,
                                   zero_log_level_t level, void **part)
{
    char path[64];
    struct stat stat;
    snprintf(path, sizeof(path), "/proc/%" PRId64 "/fd/%" PRId64, location->pid, location->fd);
    int fd = ZERO_RETRY(open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC));
    if (fd < 0 || fstat(fd, &stat) != 0) {
        zero_log(level, "cannot open the memory of rank %d, %s: %s", peer, path, strerror(errno));
    } else if (stat.st_dev != location->device || stat.st_ino != location->inode) {
        zero_log(level, "%s is not the memory of rank %d: it runs in another container", path, peer);
    } else if (!(*part = map_part(fd, n_bytes, writable))) {
        zero_log(level, "cannot map the memory of rank %d, %zu bytes: %s", peer, n_bytes, strerror(errno));
    }
    if (fd >= 0)
        close(fd);
    return *part ? ZERO_OK : ZERO_ERROR_COMM;
}

static zero_status_t map_peer_parts(const zero_comm_t *via, const location_t *locations, bool all_write,
                                    zero_log_level_t level, zero_shared_block_t *block)
{
    for (int rank = 0; rank < via->size; rank++)
        if (rank != via->rank && zero_hosts_are_one(via, rank, via->rank))
            ZERO_TRY(map_peer_part(rank, &locations[rank], block->mapped_bytes, all_write, level, &block->parts[rank]));
    return ZERO_OK;
}

zero_status_t zero_shared_block_create(zero_comm_t *via, size_t n_bytes, bool all_write, zero_log_level_t level,
                                       zero_shared_block_t **block)
{
    const size_t size = (size_t)via->size, page = (size_t)sysconf(_SC_PAGESIZE);
    location_t mine = {.fd = -1};
    zero_status_t status = check_available(via, n_bytes, level);
    location_t *locations = calloc(size, sizeof(*locations));
    zero_shared_block_t *made = calloc(1, sizeof(*made) + size * sizeof(made->parts[0]));
    if (status == ZERO_OK && (!locations || !made)) {
        zero_log(level, "no memory for the table of a shared block of %d ranks", via->size);
        status = ZERO_ERROR_MEMORY;
    }
    ZERO_TRY_GOTO(zero_comm_agree(via, status), fail); /* no rank may reserve pages before the first has checked */

    made->size = via->size;
    made->mapped_bytes = n_bytes == 0 ? page : (n_bytes + page - 1) / page * page;
    status = make_own_part(made->mapped_bytes, level, &mine, &made->parts[via->rank]);
    ZERO_TRY_GOTO(zero_comm_agree(via, status), fail);
    ZERO_TRY_GOTO(via->ops->host_all_gather(via, &mine, sizeof(mine), locations), fail);
    status = map_peer_parts(via, locations, all_write, level, made);
    ZERO_TRY_GOTO(zero_comm_agree(via, status), fail); /* after this no rank needs the descriptor */
    close((int)mine.fd);
    free(locations);
    *block = made;
    return ZERO_OK;

fail:
    if (mine.fd >= 0)
        close((int)mine.fd);
    zero_shared_block_destroy(made);
    free(locations);
    return status;
}

void zero_shared_block_destroy(zero_shared_block_t *block)
{
    if (!block)
        return;
    for (int rank = 0; rank < block->size; rank++)
        if (block->parts[rank])
            munmap(block->parts[rank], block->mapped_bytes);
    free(block);
}

void zero_shared_block_copy(void *dst, const void *src, size_t n_bytes)
{
    if (n_bytes < PARALLEL_COPY_BYTES) {
        memcpy(dst, src, n_bytes);
        return;
    }
    const size_t n_chunks = (n_bytes + COPY_CHUNK_BYTES - 1) / COPY_CHUNK_BYTES;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n_chunks; i++) {
        size_t first = i * COPY_CHUNK_BYTES;
        memcpy((char *)dst + first, (const char *)src + first,
               n_bytes - first < COPY_CHUNK_BYTES ? n_bytes - first : COPY_CHUNK_BYTES);
    }
}
