/* shard_cuda.h - the launchers of the shard kernels, which shard_cuda.c calls: one for each function of the table in
 * shard.h that needs a kernel. All arrays are device memory. The launchers queue their work in `stream`, do not wait
 * for it, and return the launch's error. n_elems is at least 1.
 */
#ifndef ZERO_SHARD_CUDA_H
#define ZERO_SHARD_CUDA_H

#include <cuda_runtime_api.h>

#include "kernels/shard.h"

#ifdef __cplusplus
extern "C" {
#endif

/* adam.cu. `args` itself is host memory, read before the call returns. */
cudaError_t zero_cuda_adam(const zero_adam_t *args, cudaStream_t stream);
/* momentum.cu. Likewise. */
cudaError_t zero_cuda_sgd(const zero_adam_t *args, cudaStream_t stream);
cudaError_t zero_cuda_nesterov(const zero_adam_t *args, cudaStream_t stream);
cudaError_t zero_cuda_lion(const zero_adam_t *args, cudaStream_t stream);
cudaError_t zero_cuda_adam8(const zero_adam_t *args, cudaStream_t stream);

/* muon.cu. Likewise. */
cudaError_t zero_cuda_muon_momentum(const zero_muon_t *args, cudaStream_t stream);
cudaError_t zero_cuda_muon_apply(const zero_muon_t *args, cudaStream_t stream);
/* Writes x, in bf16, to out in fp16: divided by its Frobenius norm (or by ZERO_MUON_EPS, if that is larger) and times
 * scale. out may be x. partial: 512 doubles. */
cudaError_t zero_cuda_muon_normalize(const uint16_t *x, uint64_t n_elems, float scale, double *partial, uint16_t *out,
                                     cudaStream_t stream);
/* Adds a number to the diagonal of x[n_rows][n_rows], in fp16. */
cudaError_t zero_cuda_muon_add_diagonal(uint16_t *x, uint64_t n_rows, float number, cudaStream_t stream);
/* orthogonalize_cuda.c: as the functions of the table. */
zero_status_t zero_cuda_orthogonalize(const zero_orthogonalize_t *matrices, int n_matrices, cudaStream_t stream);
zero_status_t zero_cuda_orthogonalizer_create(zero_orthogonalizer_t **orthogonalizer);
zero_status_t zero_cuda_orthogonalizer_prepare(zero_orthogonalizer_t *orthogonalizer, uint64_t rows, uint64_t cols);
void zero_cuda_orthogonalizer_destroy(zero_orthogonalizer_t *orthogonalizer);

/* reduce.cu. The pointers are passed by value as launch arguments, which must fit in 4 KiB. */
#define ZERO_CUDA_MAX_SLICES 256
typedef struct zero_cuda_slices {
    const void *at[ZERO_CUDA_MAX_SLICES];
} zero_cuda_slices_t;
/* sum->slices is not used. */
cudaError_t zero_cuda_sum_slices(const zero_sum_t *sum, const zero_cuda_slices_t *slices, cudaStream_t stream);
/* `agreed` is host memory, read before the call returns. */
cudaError_t zero_cuda_contribute(zero_norm_t *norm, const zero_agreed_t *agreed, zero_contribution_t *mine,
                                 cudaStream_t stream);

/* reduce.cu. `rules` is host memory, read before the call returns. */
cudaError_t zero_cuda_decide_step(const zero_step_rules_t *rules, float lr, const zero_contribution_t *contributions,
                                  int n_ranks, zero_step_state_t *state, zero_adam_scalars_t *scalars,
                                  zero_step_outcome_t *outcome, cudaStream_t stream);
cudaError_t zero_cuda_decide_unit(const zero_step_rules_t *rules, float lr, const uint64_t *nonfinite, size_t stride,
                                  int n_ranks, uint32_t unit, zero_step_state_t *state, zero_adam_scalars_t *scalars,
                                  cudaStream_t stream);
cudaError_t zero_cuda_tensor_scalars(const zero_tensor_rules_t *rules, size_t n_tensors,
                                     const zero_adam_scalars_t *scalars, zero_tensor_scalars_t *by_tensor,
                                     cudaStream_t stream);

/* cast.cu. dst_dtype and src_dtype differ. */
cudaError_t zero_cuda_cast(void *dst, zero_dtype_t dst_dtype, const void *src, zero_dtype_t src_dtype, size_t n_elems,
                           cudaStream_t stream);
cudaError_t zero_cuda_split_bf16(uint16_t *param, int16_t *master_lo, const float *master, size_t n_elems,
                                 cudaStream_t stream);
cudaError_t zero_cuda_join_bf16(float *master, const uint16_t *param, const int16_t *master_lo, size_t n_elems,
                                cudaStream_t stream);

/* fp8.cu. `parts` itself is host memory, read before the call returns. */
cudaError_t zero_cuda_shard_fp8_absmax(const zero_fp8_parts_t *parts, uint32_t *absmaxes, cudaStream_t stream);
cudaError_t zero_cuda_shard_fp8_scale(zero_fp8_scales_t *scales, const uint32_t *absmaxes, int n_ranks,
                                      uint32_t n_matrices, cudaStream_t stream);
cudaError_t zero_cuda_shard_fp8_cast(const zero_fp8_parts_t *parts, const zero_fp8_scales_t *scales,
                                     cudaStream_t stream);

/* reduce.cu. */
cudaError_t zero_cuda_poison(void *data, zero_dtype_t dtype, size_t n_elems, cudaStream_t stream);
cudaError_t zero_cuda_count_poison(const void *data, zero_dtype_t dtype, size_t n_elems, uint64_t *n_found,
                                   cudaStream_t stream);

/* philox.cu. */
cudaError_t zero_cuda_fill_normal(float *dst, size_t n_elems, uint64_t seed, uint64_t key, uint64_t first, float std,
                                  cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
