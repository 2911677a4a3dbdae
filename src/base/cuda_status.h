/* cuda_status.h - turns an error of the CUDA runtime into a zero_status_t and logs it once. For C files: a .cu file
 * returns its cudaError_t to the C file that called it.
 */
#ifndef ZERO_CUDA_STATUS_H
#define ZERO_CUDA_STATUS_H

#include <cuda_runtime_api.h>

#include "base/log.h"

static inline zero_status_t zero_cuda_status(zero_log_level_t level, cudaError_t error, const char *call)
{
    if (error == cudaSuccess)
        return ZERO_OK;
    cudaGetLastError(); /* clears the error, so that later calls do not report it again */
    zero_log(level, "CUDA: %s (%s) from %s", cudaGetErrorString(error), cudaGetErrorName(error), call);
    return error == cudaErrorMemoryAllocation ? ZERO_ERROR_MEMORY : ZERO_ERROR_DEVICE;
}

/* Returns whether a call has succeeded that may fail. Its error is cleared, so that later calls do not report it. */
static inline bool zero_cuda_succeeds(cudaError_t error)
{
    if (error != cudaSuccess)
        cudaGetLastError();
    return error == cudaSuccess;
}

/* The status of a call that returns cudaError_t. A failure is logged at `level`. */
#define ZERO_CUDA_STATUS_AT(level, call) zero_cuda_status((level), (call), #call)
/* The same at the level of errors. */
#define ZERO_CUDA_STATUS(call) ZERO_CUDA_STATUS_AT(ZERO_LOG_ERROR, call)
/* Returns the status from the calling function if it is a failure. A launch may also return the error of earlier work:
 * the line names the call that met it. */
#define ZERO_TRY_CUDA(call) ZERO_TRY(ZERO_CUDA_STATUS(call))

#endif
