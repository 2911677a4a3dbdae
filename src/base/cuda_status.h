/* cuda_status.h - turns what the CUDA runtime returns into a zero_status_t, and says once what failed. For C files: a
 * .cu file returns its cudaError_t to the C file that called it.
 */
#ifndef ZERO_CUDA_STATUS_H
#define ZERO_CUDA_STATUS_H

#include <cuda_runtime_api.h>

#include "base/log.h"

static inline zero_status_t zero_cuda_status(zero_log_level_t level, cudaError_t error, const char *call)
{
    if (error == cudaSuccess)
        return ZERO_OK;
    cudaGetLastError(); /* what is told here is not found again by whoever asks next */
    zero_log(level, "CUDA: %s (%s) from %s", cudaGetErrorString(error), cudaGetErrorName(error), call);
    return error == cudaErrorMemoryAllocation ? ZERO_ERROR_MEMORY : ZERO_ERROR_DEVICE;
}

/* The status of a call that returns cudaError_t, at the level that its failure has here; as an error; and the same,
 * passed up where it is a failure. */
#define ZERO_CUDA_STATUS_AT(level, call) zero_cuda_status((level), (call), #call)
#define ZERO_CUDA_STATUS(call) ZERO_CUDA_STATUS_AT(ZERO_LOG_ERROR, call)
#define ZERO_TRY_CUDA(call) ZERO_TRY(ZERO_CUDA_STATUS(call))

#endif
