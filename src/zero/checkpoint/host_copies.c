/* host_copies.c - see host_copies.h.
 *
 * What must hold: whenever the job is killed, every host has a whole checkpoint. A save removes the one before when all
 * hosts have the new one. The newest step that any host has counts, since each is complete; hosts that lack it get it
 * from another (host_copies_scatter.c).
 */
#include "zero/checkpoint/host_copies.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/files.h"
#include "base/log.h"
#include "base/system.h"
#include "comm/comm.h"
#include "zero/checkpoint/checkpoint_directory.h"
#include "zero/checkpoint/checkpoint_layout.h"
#include "zero/format/manifest.h"
#include "zero/plan/config.h"
#include "zero/plan/optimizer.h"

/* ---- directories are separate ---- */
/* Refuses a directory for checkpoints in memory that two hosts share: they would write over each other's copies. The
 * first rank of each host writes a mark into its directory, and looks for those of the others.
 *
 * What must hold: a mark that a killed job left means nothing, so marks have a number of the job's own. */

static zero_status_t mark_path(const char *directory, uint64_t job, int rank, char **path)
{
    char name[64];
    snprintf(name, sizeof name, "tmp.host-%016" PRIx64 "-%d", job, rank);
    return zero_path_join(directory, name, path);
}

static zero_status_t make_mark(const char *directory, const char *path)
{
    ZERO_TRY(zero_directory_make(directory));
    int fd = zero_open(AT_FDCWD, path, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (fd < 0)
        return zero_fail(ZERO_ERROR_IO, "cannot write checkpoints in '%s': %s", directory, strerror(errno));
    close(fd);
    return ZERO_OK;
}

static zero_status_t look_for_others(const zero_comm_t *comm, const char *directory, uint64_t job)
{
    for (int rank = 0; rank < comm->size; rank++) {
        char *path = NULL, who[ZERO_HOST_NAME_BYTES + 32] = "";
        if (zero_hosts_are_one(comm, rank, comm->rank))
            continue;
        ZERO_TRY(mark_path(directory, job, rank, &path));
        bool is_there = access(path, F_OK) == 0;
        free(path);
        if (!is_there)
            continue;
        zero_hosts_list_rank(comm, rank, who, sizeof who);
        return zero_fail(ZERO_ERROR_USAGE,
                         "'%s' is also the directory of rank %s: checkpoints in memory need one that each host has for "
                         "itself, below /dev/shm say",
                         directory, who);
    }
    return ZERO_OK;
}

zero_status_t zero_host_copies_check_separate(zero_comm_t *comm, const char *directory)
{
    const bool marks = comm->local_rank == 0;
    uint64_t job = (uint64_t)zero_now_ns() ^ (uint64_t)getpid() << 40;
    char *path = NULL;
    if (!zero_hosts_are_several(comm))
        return ZERO_OK;
    ZERO_TRY(zero_comm_broadcast(comm, &job, sizeof job, 0));
    zero_status_t status = marks ? mark_path(directory, job, comm->rank, &path) : ZERO_OK;
    if (status == ZERO_OK && marks)
        status = make_mark(directory, path);
    status = zero_comm_agree(comm, status);
    if (status == ZERO_OK)
        status = zero_comm_agree(comm, marks ? look_for_others(comm, directory, job) : ZERO_OK);
    if (path)
        unlink(path);
    free(path);
    return status;
}

/* ---- host copies ---- */

#define PIECE_ELEMS 32768               /* sent at once by every rank */
#define N_STEPS 4                       /* looked at on a host */
#define OTHER_BYTES ((uint64_t)1 << 20) /* enough for a checkpoint's other files */
#define TMPFS 0x01021994

/* ---- exchange ---- */

/* A part of one chunk; n_elems 0: the rank has sent everything. Arrays that the optimizer lacks are 0. */
typedef struct piece {
    uint64_t first;
    uint32_t tensor, n_elems;
    uint64_t has_moments; /* 0: the tensor is frozen */
    float values[3][PIECE_ELEMS];
} piece_t;

/* Where a rank is in its chunks. */
typedef struct cursor {
    const zero_chunk_t *chunks;
    size_t n_chunks, chunk, elem;
} cursor_t;

static void fill_piece(cursor_t *at, piece_t *piece)
{
    piece->n_elems = 0;
    if (at->chunk == at->n_chunks)
        return;
    const zero_chunk_t *chunk = &at->chunks[at->chunk];
    const float *const values[3] = {chunk->master, chunk->m, chunk->v};
    size_t n = chunk->n_elems - at->elem < PIECE_ELEMS ? chunk->n_elems - at->elem : PIECE_ELEMS;
    piece->first = chunk->first + at->elem;
    piece->tensor = (uint32_t)chunk->tensor;
    piece->n_elems = (uint32_t)n;
    piece->has_moments = chunk->m != NULL;
    for (int i = 0; i < (piece->has_moments ? 3 : 1) && values[i]; i++)
        memcpy(piece->values[i], values[i] + at->elem, n * sizeof(float));
    at->elem += n;
    if (at->elem == chunk->n_elems) {
        at->chunk++;
        at->elem = 0;
    }
}

/* Returns whether this rank takes what `rank` sends: ranks of a host take turns. */
static bool takes_from(const zero_comm_t *comm, int rank)
{
    return comm->hosts[rank].id != comm->hosts[comm->rank].id && rank % comm->local_size == comm->local_rank;
}

/* Passes this rank's share of one round to `take`. *n_sent: elements of all ranks. */
static zero_status_t take_pieces(const zero_comm_t *comm, piece_t *all, zero_chunk_fn take, void *user, size_t *n_sent)
{
    zero_status_t status = ZERO_OK;
    *n_sent = 0;
    for (int rank = 0; rank < comm->size; rank++) {
        piece_t *piece = &all[rank];
        *n_sent += piece->n_elems;
        zero_chunk_t chunk = {.tensor = (zero_tensor_t)piece->tensor,
                              .first = piece->first,
                              .n_elems = piece->n_elems,
                              .master = piece->values[0],
                              .m = piece->has_moments ? piece->values[1] : NULL,
                              .v = piece->has_moments ? piece->values[2] : NULL};
        if (status == ZERO_OK && piece->n_elems > 0 && takes_from(comm, rank))
            status = take(user, &chunk);
    }
    return status;
}

zero_status_t zero_host_copies_exchange(zero_comm_t *comm, const zero_chunk_t *chunks, size_t n_chunks,
                                        zero_chunk_fn take, void *user)
{
    cursor_t at = {.chunks = chunks, .n_chunks = n_chunks};
    piece_t *mine = calloc(1, sizeof *mine), *all = calloc((size_t)comm->size, sizeof *all);
    zero_status_t mine_status = ZERO_OK, status = ZERO_OK;
    size_t n_sent = 1;
    if (!mine || !all)
        status = zero_fail(ZERO_ERROR_MEMORY, "no memory to send a checkpoint to other hosts");
    status = zero_comm_agree(comm, status);
    /* A rank that fails goes on receiving, or the others would wait for it. */
    while (status == ZERO_OK && n_sent > 0) {
        fill_piece(&at, mine);
        status = comm->ops->host_all_gather(comm, mine, sizeof *mine, all);
        if (status == ZERO_OK) {
            zero_status_t taken = take_pieces(comm, all, take, user, &n_sent);
            mine_status = mine_status == ZERO_OK ? taken : mine_status;
        }
    }
    free(all);
    free(mine);
    return status == ZERO_OK ? zero_comm_agree(comm, mine_status) : status;
}

/* ---- which step is the newest ---- */

typedef struct copy {
    uint64_t step, manifest_xxh3; /* 0: none */
} copy_t;

static zero_status_t list_copies(const char *directory, copy_t copies[N_STEPS])
{
    uint64_t steps[N_STEPS], n_bytes;
    ZERO_TRY(zero_checkpoints_list(directory, N_STEPS, steps));
    for (int i = 0; i < N_STEPS && steps[i] > 0; i++) {
        char *path = NULL, *manifest = NULL;
        zero_status_t status;
        copies[i].step = steps[i];
        ZERO_TRY_GOTO(zero_checkpoints_path(directory, steps[i], &path), done);
        ZERO_TRY_GOTO(zero_path_join(path, ZERO_MANIFEST_NAME, &manifest), done);
        status = zero_file_hash(manifest, &n_bytes, &copies[i].manifest_xxh3);
    done:
        free(manifest);
        free(path);
        ZERO_TRY(status);
    }
    return ZERO_OK;
}

/* Returns whether another host has another checkpoint of the same step. */
static bool is_disputed(const copy_t *copies, size_t n_copies, copy_t copy)
{
    for (size_t i = 0; i < n_copies; i++)
        if (copies[i].step == copy.step && copies[i].manifest_xxh3 != copy.manifest_xxh3)
            return true;
    return false;
}

static uint64_t newest_step(const copy_t *copies, size_t n_copies)
{
    uint64_t step = 0;
    for (size_t i = 0; i < n_copies; i++)
        if (copies[i].step > step && !is_disputed(copies, n_copies, copies[i]))
            step = copies[i].step;
    return step;
}

zero_status_t zero_host_copies_find(zero_comm_t *comm, const char *directory, uint64_t *step)
{
    copy_t mine[N_STEPS] = {{0}}, *all;
    ZERO_REQUIRE(comm);
    const char *missing = !directory ? "directory" : !step ? "step" : NULL;
    ZERO_TRY(zero_comm_agree(comm, missing ? zero_refuse_null("zero_host_copies_find", missing) : ZERO_OK));
    ZERO_TRY(zero_comm_agree(comm, list_copies(directory, mine)));
    all = calloc((size_t)comm->size, sizeof mine);
    zero_status_t status = all ? ZERO_OK : zero_fail(ZERO_ERROR_MEMORY, "no memory to look for checkpoints");
    status = zero_comm_agree(comm, status);
    if (status == ZERO_OK)
        status = comm->ops->host_all_gather(comm, mine, sizeof mine, all);
    if (status == ZERO_OK)
        *step = newest_step(all, (size_t)comm->size * N_STEPS);
    free(all);
    return status;
}

/* ---- room ---- */

zero_status_t zero_checkpoint_bytes(const zero_model_t *model, const zero_config_t *config, uint64_t *n_bytes)
{
    zero_checkpoint_layout_t layout;
    zero_config_t known;
    ZERO_REQUIRE(model);
    ZERO_REQUIRE(config);
    ZERO_REQUIRE(n_bytes);
    ZERO_TRY(zero_config_read("zero_checkpoint_bytes", config, &known));
    ZERO_TRY(zero_config_check(&known));
    ZERO_TRY(zero_checkpoint_layout_create(model, known.dtype, zero_optimizer_n_arrays(&known), 0, &layout));
    *n_bytes = 0;
    for (int f = 0; f < layout.n_files; f++)
        *n_bytes += layout.files[f].n_bytes;
    zero_checkpoint_layout_destroy(&layout);
    return ZERO_OK;
}

static bool is_memory(const char *directory)
{
    struct statfs kind;
    return statfs(directory, &kind) == 0 && kind.f_type == TMPFS;
}

/* Checks that n_new further copies of n_bytes fit. */
static zero_status_t check_room(const char *directory, uint64_t n_bytes, unsigned n_new)
{
    struct statvfs space;
    if (statvfs(directory, &space) != 0)
        return zero_fail(ZERO_ERROR_IO, "cannot find out how much room '%s' has: %s", directory, strerror(errno));
    uint64_t room = (uint64_t)space.f_bavail * (uint64_t)space.f_frsize, needed = n_new * (n_bytes + OTHER_BYTES);
    uint64_t memory = UINT64_MAX;
    if (is_memory(directory))
        zero_host_memory(NULL, &memory);
    uint64_t free_bytes = room < memory ? room : memory;
    if (needed <= free_bytes)
        return ZERO_OK;
    return zero_fail(ZERO_ERROR_MEMORY,
                     "checkpoints in '%s' need %" PRIu64 " bytes more (a copy has %" PRIu64
                     ", and there are two while one is written), and %" PRIu64 " are free: save to a disk only, or %s",
                     directory, needed, n_bytes, free_bytes,
                     room < memory ? "make that file system larger" : "use a host with more memory");
}

/* ---- directories ---- */

static zero_status_t prepare(const char *directory, uint64_t n_bytes, uint64_t but)
{
    int lock = -1;
    uint64_t left;
    zero_status_t status = zero_checkpoints_probe_begin(directory, &lock);
    zero_status_t ended = zero_checkpoints_probe_end(directory, lock);
    ZERO_TRY(status);
    ZERO_TRY(ended);
    ZERO_TRY(zero_checkpoints_clear(directory, but));
    ZERO_TRY(zero_directory_make(directory)); /* again, if it is empty now */
    ZERO_TRY(zero_checkpoints_list(directory, 1, &left));
    return check_room(directory, n_bytes, left > 0 ? 1 : 2);
}

zero_status_t zero_host_copies_prepare(zero_comm_t *comm, const char *directory, uint64_t n_bytes, uint64_t but)
{
    ZERO_REQUIRE(comm);
    ZERO_TRY(zero_comm_agree(comm, directory ? ZERO_OK : zero_refuse_null("zero_host_copies_prepare", "directory")));
    ZERO_TRY(zero_host_copies_check_separate(comm, directory));
    ZERO_TRY(zero_comm_agree(comm, comm->local_rank == 0 ? prepare(directory, n_bytes, but) : ZERO_OK));
    if (comm->rank == 0 && !is_memory(directory))
        zero_log(ZERO_LOG_WARNING, "'%s' is on no tmpfs: checkpoints there are not in memory, but on a disk",
                 directory);
    return ZERO_OK;
}

zero_status_t zero_host_copies_remove(zero_comm_t *comm, const char *directory)
{
    ZERO_REQUIRE(comm);
    ZERO_TRY(zero_comm_agree(comm, directory ? ZERO_OK : zero_refuse_null("zero_host_copies_remove", "directory")));
    return zero_comm_agree(comm, comm->local_rank == 0 ? zero_checkpoints_clear(directory, 0) : ZERO_OK);
}
