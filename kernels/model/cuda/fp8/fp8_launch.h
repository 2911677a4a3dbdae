/* fp8_launch.h - the launchers of fp8.cu, by the rules of model_launch.h. x is bf16 [n_rows, n_columns]; extents are
 * multiples of 16 and addresses aligned to 16 bytes. Valid as C17 and CUDA C++.
 */
#ifndef ZERO_FP8_LAUNCH_H
#define ZERO_FP8_LAUNCH_H

#include "kernels/model/cuda/model_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sets *absmax, in device memory, to the bits of the largest |x| as fp32. */
cudaError_t zero_launch_fp8_absmax(cudaStream_t stream, uint32_t *absmax, const void *x, size_t n_elems);
/* Sets the scales from x8->scales->absmax and casts. */
cudaError_t zero_launch_fp8_cast(cudaStream_t stream, const zero_fp8_t *x8, const void *x, size_t n_rows,
                                 size_t n_columns);
cudaError_t zero_launch_fp8_transpose(cudaStream_t stream, uint8_t *columns, const uint8_t *rows, size_t n_rows,
                                      size_t n_columns);

#ifdef __cplusplus
}
#endif
#endif
