/* routes.c - see routes.h. */
#include "comm/routes.h"

/* Returns how many of the first of `ranks` are on one host. */
static int first_run(const int *hosts, zero_ranks_t ranks)
{
    int n = 1;
    while (n < ranks.n && hosts[zero_ranks_at(ranks, n)] == hosts[ranks.first])
        n++;
    return n;
}

/* Returns whether each n_local of `ranks`, one after another, are on a host that the others are not on. */
static bool are_whole_runs(const int *hosts, zero_ranks_t ranks, int n_local)
{
    for (int i = 0; i < ranks.n; i++) {
        const int host = hosts[zero_ranks_at(ranks, i)], begin = i - i % n_local;
        if (host != hosts[zero_ranks_at(ranks, begin)])
            return false;
        for (int before = 0; before < begin && i == begin; before += n_local)
            if (host == hosts[zero_ranks_at(ranks, before)])
                return false;
    }
    return true;
}

zero_route_t zero_route_find(const int *hosts, int size, zero_ranks_t ranks)
{
    const zero_route_t messages = {.kind = ZERO_ROUTE_MESSAGES};
    if (ranks.n == 1)
        return (zero_route_t){.kind = ZERO_ROUTE_LOCAL, .n_local = 1};
    const int stride = ranks.stride, n_groups = size / ranks.n;
    if (size % ranks.n != 0 || (stride > 1 && stride != n_groups))
        return messages;
    ranks.first = 0;
    const int n_local = first_run(hosts, ranks);
    if (ranks.n % n_local != 0)
        return messages;
    for (int group = 0; group < n_groups; group++) {
        ranks.first = stride == 1 ? group * ranks.n : group;
        if (!are_whole_runs(hosts, ranks, n_local))
            return messages;
    }
    if (n_local == 1)
        return messages;
    return (zero_route_t){.kind = n_local == ranks.n ? ZERO_ROUTE_LOCAL : ZERO_ROUTE_RAILS, .n_local = n_local};
}
