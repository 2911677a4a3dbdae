/* collectives.c - the small collectives of zero.h: sum, broadcast, barrier, agree.
 *
 * They are written on the transport's host_all_gather and host_broadcast, so their results do not depend on it. Each is
 * known to peers by its own name, unless it is part of a larger call (comm->call_covers).
 */
#include "comm/collectives.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/log.h"
#include "comm/comm.h"

static zero_call_t begin_small(zero_comm_t *comm, const char *name)
{
    const zero_comm_t *host = comm->host ? comm->host : comm;
    const zero_call_t before = host->call;
    zero_call_t call = {.name = ""};
    zero_call_set_text(call.name, sizeof call.name, name);
    if (!host->call_covers)
        zero_comm_enter(comm, &call, false);
    return before;
}

static zero_status_t end_small(zero_comm_t *comm, const zero_call_t *before, zero_status_t status)
{
    const zero_comm_t *host = comm->host ? comm->host : comm;
    zero_comm_enter(comm, before, host->call_covers);
    return status;
}

static zero_status_t gather_small(zero_comm_t *comm, const char *name, const void *mine, size_t n_bytes, void *all)
{
    const zero_call_t before = begin_small(comm, name);
    return end_small(comm, &before, comm->ops->host_all_gather(comm, mine, n_bytes, all));
}

zero_status_t zero_comm_sum(zero_comm_t *comm, double *values, size_t n_values)
{
    ZERO_REQUIRE(comm);
    if (n_values > 0)
        ZERO_REQUIRE(values);
    const size_t max_values = ZERO_COMM_SCRATCH_BYTES / sizeof(double);
    double *all = comm->scratch;
    for (size_t first = 0; first < n_values; first += max_values) {
        size_t n = n_values - first < max_values ? n_values - first : max_values;
        ZERO_TRY(gather_small(comm, "zero_comm_sum", values + first, n * sizeof(double), all));
        for (size_t i = 0; i < n; i++) {
            double sum = all[i];
            for (int rank = 1; rank < comm->size; rank++)
                sum += all[(size_t)rank * n + i];
            values[first + i] = sum;
        }
    }
    return ZERO_OK;
}

zero_status_t zero_comm_broadcast(zero_comm_t *comm, void *data, size_t n_bytes, int root)
{
    ZERO_REQUIRE(comm);
    if (n_bytes > 0)
        ZERO_REQUIRE(data);
    if (root < 0 || root >= comm->size)
        return zero_fail(ZERO_ERROR_ARGUMENT, "zero_comm_broadcast: there is no rank %d among %d", root, comm->size);
    if (n_bytes == 0)
        return ZERO_OK;
    const zero_call_t before = begin_small(comm, "zero_comm_broadcast");
    return end_small(comm, &before, comm->ops->host_broadcast(comm, data, n_bytes, root));
}

zero_status_t zero_comm_barrier(zero_comm_t *comm)
{
    ZERO_REQUIRE(comm);
    const char here = 1; /* a rank that has every byte knows that every rank came */
    return gather_small(comm, "zero_comm_barrier", &here, 1, comm->scratch);
}

zero_status_t zero_comm_agree(zero_comm_t *comm, zero_status_t mine)
{
    ZERO_REQUIRE(comm);
    const int32_t word = (int32_t)mine;
    int32_t *all = comm->scratch;
    zero_status_t status = gather_small(comm, "zero_comm_agree", &word, sizeof(word), all);
    if (mine != ZERO_OK || status != ZERO_OK)
        return mine != ZERO_OK ? mine : status;
    for (int rank = 0; rank < comm->size; rank++) {
        if (all[rank] != ZERO_OK) {
            zero_log(ZERO_LOG_DEBUG, "rank %d failed: %s", rank, zero_status_text((zero_status_t)all[rank]));
            zero_note_error("rank %d failed: %s", rank, zero_status_text((zero_status_t)all[rank]));
            return ZERO_ERROR_PEER;
        }
    }
    return ZERO_OK;
}

zero_status_t zero_comm_tell_status(zero_comm_t *comm, zero_status_t of_rank_0)
{
    struct {
        zero_status_t status;
        char error[512];
    } told = {.status = of_rank_0};
    if (comm->rank == 0 && of_rank_0 != ZERO_OK)
        snprintf(told.error, sizeof told.error, "%s", zero_last_error());
    ZERO_TRY(zero_comm_broadcast(comm, &told, sizeof told, 0));
    if (comm->rank != 0 && told.status != ZERO_OK)
        zero_note_error("%s", told.error);
    return told.status;
}

/* ---- private window ---- */
/* Windows are fresh pages from the kernel: zeroed, and aligned to a page. */

static size_t mapped_bytes(size_t n_bytes)
{
    return n_bytes > 0 ? n_bytes : 1; /* an empty window still has an address */
}

zero_status_t zero_private_window_create(zero_comm_t *comm, size_t n_bytes, zero_window_t *window)
{
    void *memory = mmap(NULL, mapped_bytes(n_bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    zero_status_t status = ZERO_OK;
    if (memory == MAP_FAILED)
        status = zero_fail(ZERO_ERROR_MEMORY, "no memory for a window of %zu bytes: %s", n_bytes, strerror(errno));
    zero_status_t agreed = zero_comm_agree(comm, status);
    if (agreed != ZERO_OK) {
        if (status == ZERO_OK)
            munmap(memory, mapped_bytes(n_bytes));
        return agreed;
    }
    madvise(memory, n_bytes, MADV_HUGEPAGE); /* a hint: flat buffers are large and read from end to end */
    *window = (zero_window_t){.local = memory, .n_bytes = n_bytes};
    return ZERO_OK;
}

void zero_private_window_destroy(zero_comm_t *comm, zero_window_t *window)
{
    (void)comm;
    munmap(window->local, mapped_bytes(window->n_bytes));
    *window = (zero_window_t){0};
}

zero_status_t zero_private_window_fence(zero_comm_t *comm, zero_lane_t lane, zero_stream_t stream)
{
    (void)comm, (void)lane, (void)stream;
    return ZERO_OK;
}
