/* late_devices.c - the transports of comm_cases that move bytes when a device gets to it: through host memory, by the
 * slowest of devices, and rails on the device whose streams are threads, waited for after every call. */
#include <string.h>

#include "base/log.h"
#include "comm/gpu/transports.h"
#include "tests/mpi/comm/cases.h"
#include "tests/support/async/async_device.h"

/* ---- Through host memory ---- */

/* The slowest of devices: it copies nothing until the host waits for it. */
static struct {
    void *dst;
    const void *src;
    size_t n_bytes;
} queued[16];

static size_t n_queued;

zero_status_t wait_for_copies(zero_device_t *device, zero_stream_t stream)
{
    (void)device, (void)stream;
    for (size_t i = 0; i < n_queued; i++)
        memcpy(queued[i].dst, queued[i].src, queued[i].n_bytes);
    n_queued = 0;
    return ZERO_OK;
}

static zero_status_t copy_late(zero_device_t *device, void *dst, const void *src, size_t n_bytes, zero_stream_t stream)
{
    EXPECT(n_queued < sizeof queued / sizeof queued[0]);
    queued[n_queued].dst = dst;
    queued[n_queued].src = src;
    queued[n_queued++].n_bytes = n_bytes;
    return comm->size > 1 ? ZERO_OK : wait_for_copies(device, stream); /* one rank waits for no other */
}

static zero_device_ops_t late_ops; /* the CPU's, but for copies, which wait */

/* Buffer sizes that cut most transfers into several chunks. */
zero_comm_t *through_host(void)
{
    zero_comm_t *made;
    late_ops = *cpu->ops;
    late_ops.copy = copy_late;
    late_ops.synchronize_stream = wait_for_copies;
    EXPECT_OK(zero_comm_through_host_create(host, cpu, &late_ops, 3 * 4096, &made));
    return made;
}

/* ---- Rails ---- */

static zero_comm_ops_t rails_ops; /* those that do not wait */

static zero_status_t gather_and_wait(zero_comm_t *rails, zero_lane_t lane, const zero_window_t *window,
                                     zero_ranks_t ranks, size_t src_offset, size_t src_stride, void *dst,
                                     size_t n_bytes, zero_stream_t stream)
{
    ZERO_TRY(rails_ops.all_gather(rails, lane, window, ranks, src_offset, src_stride, dst, n_bytes, stream));
    return zero_device_synchronize(cpu);
}

static zero_status_t exchange_and_wait(zero_comm_t *rails, zero_lane_t lane, const zero_window_t *window, int group,
                                       size_t src_offset, size_t src_stride, size_t n_bytes, void *staging,
                                       const void **slices, zero_stream_t stream)
{
    ZERO_TRY(
        rails_ops.all_to_all(rails, lane, window, group, src_offset, src_stride, n_bytes, staging, slices, stream));
    return zero_device_synchronize(cpu);
}

static zero_status_t fence_and_wait(zero_comm_t *rails, zero_lane_t lane, zero_stream_t stream)
{
    ZERO_TRY(rails_ops.fence(rails, lane, stream));
    return zero_device_synchronize(cpu);
}

zero_comm_t *over_rails(void)
{
    static zero_comm_ops_t waiting_ops;
    const async_options_t options = {.seed = 1 + (uint64_t)host->rank, .max_delay_us = 100};
    zero_comm_t *made;
    EXPECT_OK(async_device_create(host, &options, &cpu));
    EXPECT_OK(zero_device_comm_create(cpu, host, false, &made));
    EXPECT(strcmp(made->ops->name, "rails") == 0);
    rails_ops = waiting_ops = *made->ops;
    waiting_ops.all_gather = gather_and_wait;
    waiting_ops.all_to_all = exchange_and_wait;
    waiting_ops.fence = fence_and_wait;
    made->ops = &waiting_ops;
    return made;
}
