/* placement.c - on which hosts the ranks are, and whether settings suit that. See options.h. */
#include <stdlib.h>

#include "train/options/options.h"
#include "train/report/report.h"

/* hosts: of each rank. n_on: room for as many numbers. */
static placement_t count(const int *hosts, int n_ranks, int n_hosts, int *n_on)
{
    placement_t found = {.fewest = n_ranks, .is_consecutive = true};
    for (int rank = 0; rank < n_ranks; rank++) {
        bool is_first = n_on[hosts[rank]]++ == 0;
        found.is_consecutive &= is_first || hosts[rank - 1] == hosts[rank];
    }
    for (int host = 0; host < n_hosts; host++) {
        found.fewest = n_on[host] < found.fewest ? n_on[host] : found.fewest;
        found.most = n_on[host] > found.most ? n_on[host] : found.most;
    }
    return found;
}

zero_status_t placement_find(const zero_comm_t *comm, placement_t *placement)
{
    const int n_ranks = zero_comm_size(comm);
    int *hosts = calloc((size_t)n_ranks, sizeof *hosts), *n_on = calloc((size_t)n_ranks, sizeof *n_on);
    zero_status_t status = ZERO_OK;
    if (hosts && n_on)
        *placement = count(hosts, n_ranks, zero_comm_hosts(comm, hosts), n_on);
    else
        status = report_error(ZERO_ERROR_MEMORY, "no memory for the hosts of %d ranks", n_ranks);
    free(hosts);
    free(n_on);
    return status;
}

/* Ranks that share a sequence exchange heads twice in every block, which a network would slow down. */
static zero_status_t check_sequence_placement(const options_t *options, const zero_comm_t *comm)
{
    const int n_ranks = zero_comm_size(comm), n = (int)options_sequence_ranks(&options->train);
    int *hosts = calloc((size_t)n_ranks, sizeof *hosts), rank = 0;
    if (!hosts)
        return report_error(ZERO_ERROR_MEMORY, "no memory for the hosts of %d ranks", n_ranks);
    zero_comm_hosts(comm, hosts);
    while (rank < n_ranks && hosts[rank] == hosts[rank / n * n])
        rank++;
    free(hosts);
    if (rank == n_ranks)
        return ZERO_OK;
    return report_error(ZERO_ERROR_USAGE,
                        "[train] sequence_ranks: ranks %d to %d share sequences, and are on different hosts: take a "
                        "number that divides the ranks of every host, and start ranks host by host",
                        rank / n * n, rank / n * n + n - 1);
}

zero_status_t placement_check_groups(const options_t *options, const zero_comm_t *comm)
{
    placement_t found;
    if (options->hosts == 0)
        ZERO_TRY(check_sequence_placement(options, comm));
    if (options->zero.shard_group != ZERO_SHARD_GROUP_HOST || options->hosts > 0)
        return ZERO_OK;
    ZERO_TRY(placement_find(comm, &found));
    if (found.fewest < found.most)
        return report_error(ZERO_ERROR_USAGE,
                            "[zero] shard_group = host: hosts have %d to %d ranks, and groups are of one size: take a "
                            "number that divides the %d ranks, or world",
                            found.fewest, found.most, zero_comm_size(comm));
    if (!found.is_consecutive)
        return report_error(ZERO_ERROR_USAGE, "[zero] shard_group = host: the ranks of a host are not consecutive: "
                                              "start them host by host, or take a number, or world");
    return ZERO_OK;
}
