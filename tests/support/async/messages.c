/* messages.c - see messages.h.
 *
 * Between each two ranks there is a box for each lane and direction, in memory that all share. A task puts what it
 * sends into boxes and takes what it receives out of them, box by box, until it has sent and received all. So a send
 * may end before its receiver comes, or wait for it, and only bytes that are sent can be read by others.
 */
#include "tests/support/async/messages.h"

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/system.h"
#include "comm/collectives.h"
#include "comm/gpu/transports.h"
#include "comm/host/shared_block.h"
#include "tests/mpi/expect.h"
#include "tests/support/async/async_device.h"

#define MAX_PEERS 16
#define BOX_BYTES 8192
#define PATIENCE_S 30

typedef struct box {
    _Atomic uint32_t is_full;
    char data[BOX_BYTES];
} box_t;

typedef struct messages {
    zero_shared_block_t *boxes; /* box_t [ZERO_N_LANES][size] of every rank: by receiver */
} messages_t;

typedef struct exchange_task {
    const zero_comm_t *comm;
    zero_lane_t lane;
    int n;
    size_t n_bytes;
    zero_exchange_t exchanges[MAX_PEERS];
} exchange_task_t;

static box_t *box_of(const exchange_task_t *t, int from, int to)
{
    const messages_t *messages = t->comm->transport;
    return (box_t *)messages->boxes->parts[from] + (int)t->lane * t->comm->size + to;
}

static size_t part(const exchange_task_t *t, size_t at)
{
    return t->n_bytes - at < BOX_BYTES ? t->n_bytes - at : BOX_BYTES;
}

static bool send_some(const exchange_task_t *t, const zero_exchange_t *e, size_t *sent)
{
    box_t *box = box_of(t, t->comm->rank, e->rank);
    if (*sent == t->n_bytes || atomic_load(&box->is_full))
        return false;
    memcpy(box->data, (const char *)e->src + *sent, part(t, *sent));
    *sent += part(t, *sent);
    atomic_store(&box->is_full, 1);
    return true;
}

static bool receive_some(const exchange_task_t *t, const zero_exchange_t *e, size_t *received)
{
    box_t *box = box_of(t, e->rank, t->comm->rank);
    if (*received == t->n_bytes || !atomic_load(&box->is_full))
        return false;
    memcpy((char *)e->dst + *received, box->data, part(t, *received));
    *received += part(t, *received);
    atomic_store(&box->is_full, 0);
    return true;
}

static void do_exchange(void *args)
{
    const exchange_task_t *t = args;
    size_t sent[MAX_PEERS] = {0}, received[MAX_PEERS] = {0}, left = 2 * (size_t)t->n * t->n_bytes;
    const int64_t deadline = zero_now_ns() + PATIENCE_S * INT64_C(1000000000);
    while (left > 0) {
        bool moved = false;
        left = 2 * (size_t)t->n * t->n_bytes;
        for (int i = 0; i < t->n; i++) {
            moved |= send_some(t, &t->exchanges[i], &sent[i]);
            moved |= receive_some(t, &t->exchanges[i], &received[i]);
            left -= sent[i] + received[i];
        }
        CHECK(zero_now_ns() < deadline, "a message of lane %d did not come: deadlock", (int)t->lane);
        if (!moved)
            usleep(20);
    }
}

static zero_status_t exchange(zero_comm_t *comm, zero_lane_t lane, const zero_exchange_t *exchanges, int n,
                              size_t n_bytes, zero_stream_t stream)
{
    exchange_task_t t = {.comm = comm, .lane = lane, .n = n, .n_bytes = n_bytes};
    CHECK(n <= MAX_PEERS, "%d peers", n);
    memcpy(t.exchanges, exchanges, (size_t)n * sizeof *exchanges);
    async_queue(stream, do_exchange, &t, sizeof t);
    return ZERO_OK;
}

static zero_status_t all_gather(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window, zero_ranks_t ranks,
                                size_t src_offset, size_t src_stride, void *dst, size_t n_bytes, zero_stream_t stream)
{
    zero_exchange_t exchanges[MAX_PEERS];
    const size_t me = (size_t)zero_ranks_index(ranks, comm->rank);
    const char *src = (const char *)window->local + src_offset + me * src_stride;
    char *own = (char *)dst + me * n_bytes;
    int n = 0;
    CHECK(ranks.n <= MAX_PEERS, "%d ranks", ranks.n);
    for (int i = 0; i < ranks.n; i++)
        if (zero_ranks_at(ranks, i) != comm->rank)
            exchanges[n++] = (zero_exchange_t){zero_ranks_at(ranks, i), src, (char *)dst + (size_t)i * n_bytes};
    if (own != src)
        async_queue_copy(own, src, n_bytes, stream);
    return exchange(comm, lane, exchanges, n, n_bytes, stream);
}

static void destroy(zero_comm_t *comm)
{
    messages_t *messages = comm->transport;
    if (!zero_comm_gpu_failed(comm))
        OK(zero_comm_barrier(comm->host));
    zero_shared_block_destroy(messages->boxes);
    zero_comm_gpu_destroy(comm);
}

static const zero_comm_ops_t messages_ops = {
    .name = "async-messages",
    .fence = zero_private_window_fence,
    .all_gather = all_gather,
    .exchange = exchange,
    .host_all_gather = zero_comm_gpu_all_gather,
    .host_broadcast = zero_comm_gpu_broadcast,
    .check_peers = zero_comm_gpu_check_peers,
    .abort = zero_comm_gpu_abort,
    .destroy = destroy,
};

zero_comm_t *async_messages_create(zero_comm_t *host)
{
    zero_comm_t *made, all = *host;
    all.hosts = NULL; /* all can map all boxes */
    OK(zero_comm_gpu_create(host, &messages_ops, sizeof(messages_t), &made));
    OK(zero_shared_block_create(&all, sizeof(box_t) * ZERO_N_LANES * (size_t)host->size, true, ZERO_LOG_ERROR,
                                &((messages_t *)made->transport)->boxes));
    return made;
}
