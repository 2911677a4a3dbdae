/* host_copies_scatter.c - gives hosts that lack a checkpoint a copy of another host's: a host that was started again,
 * or that has joined the run.
 *
 * The first rank whose host has it reads the files and sends them to all ranks, block by block, the manifest last. On
 * each host that lacks it one rank writes them, to a temporary name first: a copy is complete or absent. What was
 * received is compared with the manifest when the checkpoint is opened, as any other.
 */
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files.h"
#include "base/log.h"
#include "base/status.h"
#include "base/system.h"
#include "comm/comm.h"
#include "zero/checkpoint/checkpoint_directory.h"
#include "zero/checkpoint/host_copies.h"
#include "zero/format/manifest.h"

#define BLOCK_BYTES ((size_t)4 << 20)
#define NAME_BYTES (2 * NAME_MAX + 2) /* of FOLDER/FILE, with its end */

/* What the source says before a file's blocks; n_bytes in all. An empty name: that was the last file. */
typedef struct file_head {
    zero_status_t status; /* of the source; if it is not ZERO_OK, nothing follows */
    char name[NAME_BYTES];
    uint64_t n_bytes;
} file_head_t;

typedef struct block {
    zero_status_t status; /* of the source */
    uint32_t n_bytes;
    unsigned char bytes[BLOCK_BYTES];
} block_t;

typedef struct spread {
    zero_comm_t *comm;
    int source;                   /* the rank that sends */
    bool is_writer;               /* this rank writes for its host */
    const char *path, *temporary; /* of the checkpoint: where the source reads, and where a writer writes */
    block_t *block;
    zero_status_t writer_status; /* a writer that fails goes on receiving, or the others would wait for it */
} scatter_t;

/* ---- one file ---- */

/* Sends `fd`, or receives into it; fd is -1 on ranks that only take part. */
static zero_status_t move_blocks(scatter_t *s, const char *path, int fd, uint64_t n_bytes)
{
    for (uint64_t at = 0; at < n_bytes; at += s->block->n_bytes) {
        block_t *block = s->block;
        if (s->comm->rank == s->source) {
            block->n_bytes = (uint32_t)(n_bytes - at < BLOCK_BYTES ? n_bytes - at : BLOCK_BYTES);
            block->status = zero_file_read(fd, path, at, block->bytes, block->n_bytes);
        }
        ZERO_TRY(zero_comm_broadcast(s->comm, block, sizeof *block, s->source));
        if (block->status != ZERO_OK)
            return s->comm->rank == s->source ? block->status : ZERO_ERROR_PEER;
        if (s->is_writer && s->writer_status == ZERO_OK)
            s->writer_status = zero_file_write(fd, path, at, block->bytes, block->n_bytes);
    }
    return ZERO_OK;
}

static zero_status_t send_file(scatter_t *s, const char *name)
{
    file_head_t head = {.status = ZERO_OK};
    char *path = NULL;
    int fd = -1;
    if (strlen(name) < sizeof head.name)
        memcpy(head.name, name, strlen(name) + 1);
    else
        head.status =
            zero_fail(ZERO_ERROR_FORMAT, "'%s': a file's name is longer than %d bytes", s->path, NAME_BYTES - 1);
    if (head.status == ZERO_OK)
        head.status = zero_path_join(s->path, name, &path);
    if (head.status == ZERO_OK)
        head.status = zero_file_open(path, &fd, &head.n_bytes);
    zero_status_t status = zero_comm_broadcast(s->comm, &head, sizeof head, s->source);
    if (status == ZERO_OK)
        status = head.status == ZERO_OK ? move_blocks(s, path, fd, head.n_bytes) : head.status;
    if (fd >= 0)
        close(fd);
    free(path);
    return status;
}

static zero_status_t begin_file(const scatter_t *s, const file_head_t *head, char **path, int *fd)
{
    ZERO_TRY(zero_folder_of_name(s->temporary, head->name, zero_directory_make));
    ZERO_TRY(zero_path_join(s->temporary, head->name, path));
    ZERO_TRY(zero_file_create(*path, head->n_bytes));
    return zero_file_open_for_writing(*path, fd);
}

static zero_status_t receive_file(scatter_t *s, bool *was_last)
{
    file_head_t head = {.status = ZERO_OK};
    char *path = NULL;
    int fd = -1;
    ZERO_TRY(zero_comm_broadcast(s->comm, &head, sizeof head, s->source));
    *was_last = head.name[0] == 0;
    if (head.status != ZERO_OK)
        return ZERO_ERROR_PEER;
    if (*was_last)
        return ZERO_OK;
    if (s->is_writer && s->writer_status == ZERO_OK)
        s->writer_status = begin_file(s, &head, &path, &fd);
    zero_status_t status = move_blocks(s, path, fd, head.n_bytes);
    if (fd >= 0) {
        zero_status_t closed = zero_file_close_synced(fd, path);
        s->writer_status = s->writer_status == ZERO_OK ? closed : s->writer_status;
    }
    free(path);
    return status;
}

/* ---- all files ---- */

static zero_status_t send_all(scatter_t *s)
{
    zero_manifest_t manifest = {0};
    file_head_t last = {.status = zero_manifest_read(s->path, &manifest)};
    zero_status_t status = ZERO_OK;
    if (last.status == ZERO_OK) {
        for (size_t i = 0; status == ZERO_OK && i < manifest.n_files; i++)
            status = send_file(s, manifest.files[i].name);
        if (status == ZERO_OK)
            status = send_file(s, ZERO_MANIFEST_NAME);
    }
    zero_manifest_destroy(&manifest);
    if (status == ZERO_OK)
        status = zero_comm_broadcast(s->comm, &last, sizeof last, s->source);
    return status == ZERO_OK ? last.status : status;
}

static zero_status_t receive_all(scatter_t *s)
{
    bool was_last = false;
    while (!was_last)
        ZERO_TRY(receive_file(s, &was_last));
    return ZERO_OK;
}

/* A writer's directory: made before, and renamed or removed after. */
static zero_status_t begin_writing(const scatter_t *s, const char *directory, int *lock)
{
    ZERO_TRY(zero_directory_make(directory));
    return zero_checkpoints_begin(directory, s->temporary, lock);
}

static zero_status_t end_writing(const scatter_t *s, const char *directory, uint64_t step, zero_status_t status)
{
    if (status == ZERO_OK)
        return zero_checkpoints_commit(directory, step, s->temporary);
    zero_checkpoints_abandon(directory, step);
    return ZERO_OK; /* the ranks know of the failure already */
}

static zero_status_t move_all(scatter_t *s, const char *directory, uint64_t step)
{
    int lock = -1;
    s->writer_status = s->is_writer ? begin_writing(s, directory, &lock) : ZERO_OK;
    zero_status_t status = s->comm->rank == s->source ? send_all(s) : receive_all(s);
    status = zero_comm_agree(s->comm, status == ZERO_OK ? s->writer_status : status);
    if (s->is_writer) {
        zero_status_t ended = end_writing(s, directory, step, status);
        status = status == ZERO_OK ? ended : status;
    }
    if (lock >= 0)
        close(lock);
    return zero_comm_agree(s->comm, status);
}

/* ---- who has it ---- */

/* Sets s->source to the first rank whose host has the checkpoint, -1 if none has. Returns whether all have. */
static zero_status_t find_source(scatter_t *s, bool *all_have)
{
    zero_comm_t *comm = s->comm;
    int here = ZERO_RETRY(open(s->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    unsigned char has = here >= 0 && zero_manifest_is_there(here), *all = calloc((size_t)comm->size, 1);
    if (here >= 0)
        close(here);
    zero_status_t status = all ? ZERO_OK : zero_fail(ZERO_ERROR_MEMORY, "no memory to look for a checkpoint");
    status = zero_comm_agree(comm, status);
    if (status == ZERO_OK)
        status = comm->ops->host_all_gather(comm, &has, 1, all);
    s->source = -1;
    *all_have = true;
    for (int rank = comm->size - 1; status == ZERO_OK && rank >= 0; rank--) {
        s->source = all[rank] ? rank : s->source;
        *all_have = *all_have && all[rank];
    }
    s->is_writer = !has && comm->local_rank == 0;
    free(all);
    return status;
}

zero_status_t zero_host_copies_scatter(zero_comm_t *comm, const char *directory, uint64_t step)
{
    scatter_t s = {.comm = comm};
    char *path = NULL, *temporary = NULL;
    bool all_have;
    zero_status_t status;
    ZERO_TRY_GOTO(zero_comm_agree(comm, zero_checkpoints_path(directory, step, &path)), done);
    ZERO_TRY_GOTO(zero_comm_agree(comm, zero_checkpoints_temporary(directory, step, &temporary)), done);
    s.path = path;
    s.temporary = temporary;
    ZERO_TRY_GOTO(find_source(&s, &all_have), done);
    if (all_have || s.source < 0)
        goto done;
    s.block = malloc(sizeof *s.block);
    ZERO_TRY_GOTO(
        zero_comm_agree(comm, s.block ? ZERO_OK : zero_fail(ZERO_ERROR_MEMORY, "no memory to copy '%s'", path)), done);
    status = move_all(&s, directory, step);
done:
    free(s.block);
    free(temporary);
    free(path);
    return status;
}
