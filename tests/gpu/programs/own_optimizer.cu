/* own_optimizer.cu - the kernels of own_optimizer.h: one thread for each element of a run, or row of a matrix. */
#include <cuda_runtime.h>
#include <stdio.h>

#include "tests/gpu/programs/own_optimizer.h"

enum { THREADS = 256 };

static unsigned blocks_for(size_t n_threads)
{
    return (unsigned)((n_threads + THREADS - 1) / THREADS);
}

static zero_status_t launched(const char *what)
{
    const cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess)
        return ZERO_OK;
    fprintf(stderr, "own_optimizer: %s: %s\n", what, cudaGetErrorString(error));
    return ZERO_ERROR_DEVICE;
}

static __global__ void update_run(own_rates_t rates, zero_own_update_t update, bool prepares)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= update.n_elems || *update.skip)
        return;
    const own_run_t run = own_run_of(&rates, &update);
    if (prepares)
        own_prepare_element(&rates, &run, &update, i);
    else
        own_update_element(&rates, &run, &update, i);
}

static __global__ void normalize_rows(zero_own_whole_t whole)
{
    const uint64_t row = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    if (row < whole.rows && !*whole.skip)
        own_normalize_row(whole.direction + row * whole.cols, whole.cols);
}

zero_status_t own_cuda_update(const own_rates_t *rates, const zero_own_update_t *update, bool prepares,
                              zero_stream_t stream)
{
    update_run<<<blocks_for(update->n_elems), THREADS, 0, (cudaStream_t)stream>>>(*rates, *update, prepares);
    return launched("update");
}

zero_status_t own_cuda_whole(const zero_own_whole_t *whole, zero_stream_t stream)
{
    normalize_rows<<<blocks_for(whole->rows), THREADS, 0, (cudaStream_t)stream>>>(*whole);
    return launched("rows");
}

bool own_cuda_is_on_device(const void *address)
{
    cudaPointerAttributes attributes;
    return cudaPointerGetAttributes(&attributes, address) == cudaSuccess && attributes.type == cudaMemoryTypeDevice;
}
