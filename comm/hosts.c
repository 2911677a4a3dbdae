/* hosts.c - see hosts.h. */
#include "comm/hosts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "comm/comm.h"

uint64_t zero_host_fold_boot(uint64_t hash)
{
    char boot[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    size_t n_bytes = file ? fread(boot, 1, sizeof boot, file) : 0;
    if (file)
        fclose(file);
    return zero_hash_fold(hash, boot, n_bytes);
}

/* Folds in the PID namespace: "pid:[4026531836]". */
static uint64_t fold_namespace(uint64_t hash)
{
    char target[64];
    ssize_t n_bytes = readlink("/proc/self/ns/pid", target, sizeof target);
    return zero_hash_fold(hash, target, n_bytes > 0 ? (size_t)n_bytes : 0);
}

void zero_host_find(zero_host_t *host)
{
    char name[256] = "?";
    const char *given = getenv("ZERO_HOST_ID");
    if (given && given[0] != '\0')
        snprintf(name, sizeof name, "%s", given);
    else
        gethostname(name, sizeof name - 1);
    *host = (zero_host_t){.id = zero_hash_fold(0, name, strlen(name))};
    if (!given || given[0] == '\0')
        host->id = fold_namespace(zero_host_fold_boot(host->id));
    snprintf(host->name, sizeof host->name, "%.*s", ZERO_HOST_NAME_BYTES - 1, name);
}

bool zero_hosts_are_several(const zero_comm_t *comm)
{
    return comm->local_size != comm->size;
}

bool zero_hosts_are_shared(const zero_comm_t *comm)
{
    for (int rank = 1; rank < comm->size; rank++)
        for (int other = 0; other < rank; other++)
            if (zero_hosts_are_one(comm, rank, other))
                return true;
    return false;
}

bool zero_hosts_are_one(const zero_comm_t *comm, int rank, int other)
{
    return !comm->hosts || comm->hosts[rank].id == comm->hosts[other].id;
}

void zero_hosts_list_rank(const zero_comm_t *comm, int rank, char *text, size_t n_bytes)
{
    const bool named = comm->hosts && zero_hosts_are_several(comm);
    size_t length = strlen(text);
    if (length + ZERO_HOST_NAME_BYTES + 24 > n_bytes)
        return;
    snprintf(text + length, n_bytes - length, "%s%d%s%s", length > 0 ? ", " : "", comm->first_rank + rank,
             named ? " on " : "", named ? comm->hosts[rank].name : "");
}
