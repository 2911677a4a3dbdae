/* hosts.h - on which host each rank is. Ranks of one host can see each other's processes and memory. */
#ifndef ZERO_HOSTS_H
#define ZERO_HOSTS_H

#include <stddef.h>
#include <stdint.h>

#include "zero.h"

#define ZERO_HOST_NAME_BYTES 56

typedef struct zero_host {
    uint64_t id;                     /* equal on the ranks of one host, and on no others */
    char name[ZERO_HOST_NAME_BYTES]; /* truncated to fit */
} zero_host_t;

/* Finds the host of this process: by its boot, its name and the PID namespace, since containers of one machine are
 * separate hosts. ZERO_HOST_ID in the environment replaces all three; tests make several hosts of one with it. */
void zero_host_find(zero_host_t *host);

/* Folds in what tells one boot of a machine from all others, in containers or not. */
uint64_t zero_host_fold_boot(uint64_t hash);

/* Returns whether the ranks are on more than one host. */
bool zero_hosts_are_several(const zero_comm_t *comm);

/* Returns whether some host has several ranks. */
bool zero_hosts_are_shared(const zero_comm_t *comm);

/* Returns whether two ranks are on the same host. */
bool zero_hosts_are_one(const zero_comm_t *comm, int rank, int other);

/* Appends a rank to a list in `text`, as far as it fits: "2", or "2 on node2" if there are several hosts. */
void zero_hosts_list_rank(const zero_comm_t *comm, int rank, char *text, size_t n_bytes);

#endif
