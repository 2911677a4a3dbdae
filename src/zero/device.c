/* device.c - opening a device: the one place that knows which were built in. */
#include "zero/device.h"

#include "zero/log.h"

zero_status_t zero_device_create(zero_device_type_t type, const zero_comm_t *comm, zero_device_t **device)
{
    if (type == ZERO_DEVICE_CUDA)
        return zero_fail_alike(ZERO_ERROR_UNSUPPORTED, "CUDA is not in this build; use the CPU");
    return zero_device_cpu_create(comm, device);
}

void zero_device_destroy(zero_device_t *device)
{
    if (device)
        device->ops->destroy(device);
}

zero_device_type_t zero_device_get_type(const zero_device_t *device)
{
    return device->type;
}

zero_status_t zero_device_synchronize(zero_device_t *device)
{
    return device->ops->synchronize(device);
}

zero_status_t zero_stream_create(zero_device_t *device, zero_stream_t *stream)
{
    return device->ops->stream_create(device, stream);
}

void zero_stream_destroy(zero_device_t *device, zero_stream_t stream)
{
    device->ops->stream_destroy(device, stream);
}

zero_status_t zero_device_copy(zero_device_t *device, void *dst, const void *src, size_t n_bytes, zero_stream_t stream)
{
    return device->ops->copy(device, dst, src, n_bytes, stream);
}
