/* gpu_like_cpu.h - the CPU as a device that is planned as a GPU: memory of its own beside the host's, which can be
 * pinned. For one rank. */
#ifndef ZERO_TEST_GPU_LIKE_CPU_H
#define ZERO_TEST_GPU_LIKE_CPU_H

#include <check.h>

#include "zero/device/device.h"

static zero_device_ops_t gpu_like_ops;

static zero_status_t pin(zero_device_t *device, void *data, size_t n_bytes)
{
    (void)device, (void)data, (void)n_bytes;
    return ZERO_OK;
}

static void unpin(zero_device_t *device, void *data)
{
    (void)device, (void)data;
}

static zero_status_t join_nobody(zero_device_t *device, zero_comm_t *host, bool adds, zero_comm_t **bulk)
{
    (void)device, (void)adds;
    *bulk = host;
    return ZERO_OK;
}

static zero_device_t *open_gpu_like_cpu(zero_comm_t *comm)
{
    zero_device_t *device;
    ck_assert_int_eq(zero_device_create(ZERO_DEVICE_CPU, comm, &device), ZERO_OK);
    gpu_like_ops = *device->ops;
    gpu_like_ops.join = join_nobody;
    gpu_like_ops.host_pin = pin;
    gpu_like_ops.host_unpin = unpin;
    device->ops = &gpu_like_ops;
    return device;
}

#endif
