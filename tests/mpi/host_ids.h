/* host_ids.h - several hosts made of this one, by ZERO_HOST_ID (comm/hosts.h). */
#ifndef ZERO_TEST_HOST_IDS_H
#define ZERO_TEST_HOST_IDS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"

/* Before there is a communicator: each host has two neighbours (pairs), or three (threes), or ranks take turns on two
 * (turns), or rank 0 is alone and the others share one (one). */
static inline zero_status_t host_ids_set(const char *how)
{
    const int rank = zero_comm_launch_rank();
    const struct {
        const char *how;
        int host;
    } rows[] = {{"pairs", rank / 2}, {"threes", rank / 3}, {"turns", rank % 2}, {"one", rank > 0}};
    char id[16];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(how, rows[i].how) != 0)
            continue;
        snprintf(id, sizeof id, "%d", rows[i].host);
        return setenv("ZERO_HOST_ID", id, 1) == 0 ? ZERO_OK : ZERO_ERROR_MEMORY;
    }
    return ZERO_ERROR_ARGUMENT;
}

#endif
