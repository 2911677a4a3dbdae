/* device_elements.h - elements of buffers that lie on a CPU or a GPU, read and written from the host. */
#ifndef TEST_DEVICE_ELEMENTS_H
#define TEST_DEVICE_ELEMENTS_H

#include <stdlib.h>

#include "tests/mpi/expect.h"
#include "tests/support/elements.h"
#include "zero.h"

#define SETTING_DEVICES "auto cpu cuda cuda-shared" /* values of zero_device_type_t */

static inline void device_download(zero_device_t *device, void *bytes, const void *data, size_t n_bytes)
{
    OK(zero_device_synchronize(device)); /* whatever stream wrote it */
    OK(zero_device_copy(device, bytes, data, n_bytes, NULL));
    OK(zero_device_synchronize(device));
}

/* The copy is in the order of the default stream, as the calls of these programs are. */
static inline void device_upload(zero_device_t *device, void *data, const void *bytes, size_t n_bytes)
{
    OK(zero_device_copy(device, data, bytes, n_bytes, NULL));
    OK(zero_device_synchronize(device));
}

static inline void *device_fetch(zero_device_t *device, const void *data, size_t n_bytes)
{
    void *bytes = malloc(n_bytes);
    CHECK(bytes, "no memory");
    device_download(device, bytes, data, n_bytes);
    return bytes;
}

static inline size_t size_of_elements(zero_dtype_t dtype, size_t n)
{
    return n * (dtype == ZERO_FP32 ? sizeof(float) : sizeof(uint16_t));
}

/* Reads n elements as floats. */
static inline void device_read(zero_device_t *device, float *values, const void *data, zero_dtype_t dtype, size_t n)
{
    void *bytes = device_fetch(device, data, size_of_elements(dtype, n));
    for (size_t i = 0; i < n; i++)
        values[i] = element_load(bytes, dtype, i);
    free(bytes);
}

/* Writes n gradients as the engine asks for it: over what is there, or added to it. */
static inline void device_write_grad(zero_device_t *device, zero_grad_t grad, const float *values, size_t n)
{
    const size_t n_bytes = size_of_elements(grad.dtype, n);
    void *bytes = device_fetch(device, grad.data, n_bytes);
    for (size_t i = 0; i < n; i++)
        element_store(bytes, grad.dtype, i, values[i] + (grad.accumulate ? element_load(bytes, grad.dtype, i) : 0.0f));
    device_upload(device, grad.data, bytes, n_bytes);
    free(bytes);
}

#endif
