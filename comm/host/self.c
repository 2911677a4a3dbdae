/* self.c - the transport of one rank: there are no peers, so the collectives are local copies. */
#include <string.h>

#include "comm/collectives.h"
#include "comm/comm.h"

static zero_status_t self_all_gather(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window,
                                     zero_ranks_t ranks, size_t src_offset, size_t src_stride, void *dst,
                                     size_t n_bytes, zero_stream_t stream)
{
    (void)lane, (void)comm, (void)ranks, (void)src_stride, (void)stream;
    const char *src = (const char *)window->local + src_offset;
    if (dst != src && n_bytes > 0)
        memcpy(dst, src, n_bytes);
    return ZERO_OK;
}

static zero_status_t self_all_to_all(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window, int group,
                                     size_t src_offset, size_t src_stride, size_t n_bytes, void *staging,
                                     const void **slices, zero_stream_t stream)
{
    (void)lane, (void)comm, (void)group, (void)src_stride, (void)n_bytes, (void)staging, (void)stream;
    slices[0] = (const char *)window->local + src_offset;
    return ZERO_OK;
}

static size_t self_staging_bytes(int size, size_t n_bytes)
{
    (void)size, (void)n_bytes;
    return 0;
}

static zero_status_t self_host_all_gather(zero_comm_t *comm, const void *mine, size_t n_bytes, void *all)
{
    (void)comm;
    if (n_bytes > 0)
        memmove(all, mine, n_bytes);
    return ZERO_OK;
}

static zero_status_t self_host_broadcast(zero_comm_t *comm, void *data, size_t n_bytes, int root)
{
    (void)comm, (void)data, (void)n_bytes, (void)root;
    return ZERO_OK;
}

static void self_abort(zero_comm_t *comm, int exit_code)
{
    (void)comm, (void)exit_code;
}

static void self_destroy(zero_comm_t *comm)
{
    (void)comm;
}

static const zero_comm_ops_t self_ops = {
    .name = "self",
    .blocks = true,
    .window_create = zero_private_window_create,
    .window_destroy = zero_private_window_destroy,
    .fence = zero_private_window_fence,
    .all_gather = self_all_gather,
    .all_to_all = self_all_to_all,
    .staging_bytes = self_staging_bytes,
    .host_all_gather = self_host_all_gather,
    .host_broadcast = self_host_broadcast,
    .abort = self_abort,
    .destroy = self_destroy,
};

zero_status_t zero_comm_self_create(zero_comm_t *comm)
{
    comm->ops = &self_ops;
    comm->transport = NULL;
    return ZERO_OK;
}
