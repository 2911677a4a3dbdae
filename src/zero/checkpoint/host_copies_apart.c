/* host_copies_apart.c - refuses a directory for checkpoints in memory that two hosts share: they would write over each
 * other's copies. The first rank of each host puts a mark into its directory, and looks for those of the others.
 *
 * What must hold: a mark that a killed job left means nothing, so marks have a number of the job's own.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/deadline.h"
#include "base/files.h"
#include "base/log.h"
#include "comm/comm.h"
#include "zero/checkpoint/host_copies.h"

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

zero_status_t zero_host_copies_check_apart(zero_comm_t *comm, const char *directory)
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
