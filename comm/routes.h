/* routes.h - how gathers between GPUs of several hosts travel. Pure arithmetic, the same on every rank: the transport
 * follows it (comm/gpu/rails.c), and plans count by it (zero_plan_traffic).
 */
#ifndef ZERO_ROUTES_H
#define ZERO_ROUTES_H

#include "comm/comm.h"

typedef enum zero_route_kind {
    ZERO_ROUTE_LOCAL,   /* no gather leaves its host */
    ZERO_ROUTE_RAILS,   /* each slice crosses to another host once, and is spread inside it */
    ZERO_ROUTE_MESSAGES /* from each rank to each: none shares a host with another, or hosts have unequal parts */
} zero_route_kind_t;

typedef struct zero_route {
    zero_route_kind_t kind;
    int n_local; /* of ranks that gather together, how many each host has: neighbours among them. Not for messages */
} zero_route_t;

/* GPU memory of each rank in which rails stage what they receive. A round of a large gather brings a rank 7 MiB from
 * other hosts: 0.14 ms at 50 GB/s, compared to which a fence of 10 us is little. */
#define ZERO_RAILS_STAGING_BYTES ((size_t)16 << 20)

/* Returns the route of the call in which this rank gathers among `ranks`, and all others of `size` ranks each among
 * as many: runs of neighbours, or one of every run (comm.h). hosts[r]: a number of rank r's host. */
zero_route_t zero_route_find(const int *hosts, int size, zero_ranks_t ranks);

#endif
