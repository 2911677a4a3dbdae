/* placement.h - on which hosts the ranks are, as far as settings depend on it. All ranks find the same, even if hosts
 * have different numbers of them. */
#ifndef ZEROTRAIN_PLACEMENT_H
#define ZEROTRAIN_PLACEMENT_H

#include "train/options/options.h"

/* Finds the least and the most ranks of a host, and whether each host's have consecutive numbers. */
typedef struct placement {
    int fewest, most;
    bool is_consecutive;
} placement_t;

zero_status_t placement_find(const zero_comm_t *comm, placement_t *placement);

/* Refuses [zero] shard_group = host if the hosts' ranks are not groups of one size. */
zero_status_t placement_check_groups(const options_t *options, const zero_comm_t *comm);

#endif
