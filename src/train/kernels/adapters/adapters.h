/* adapters.h - what adapters need of CUDA: the launchers of this folder's kernels, and the table entries that call
 * them. All are of bf16 alone. Contracts of table entries are in kernels.h.
 */
#ifndef ZERO_ADAPTERS_H
#define ZERO_ADAPTERS_H

#include "train/kernels/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- narrow.cu ---- */

#define ZERO_NARROW_COLUMNS 1024 /* of x, that a block takes */
#define ZERO_NARROW_ROWS 16384   /* of one launch: bounds the scratch for sums */
#define ZERO_NARROW_RANK 48      /* the largest that the kernel takes, of all parts together */
/* Returns the most ranges of rows; each has its own sums of x^T u. */
static inline size_t zero_narrow_slices(size_t n_columns, size_t rank)
{
    size_t most = ((size_t)32 << 20) / (n_columns * rank * sizeof(float));
    return most > 40 ? 40 : most < 1 ? 1 : most;
}
/* Returns how many floats of scratch a product needs, of n_parts parts. */
static inline size_t zero_narrow_scratch(size_t n_rows, size_t n_columns, size_t rank, size_t n_parts, bool has_u)
{
    size_t rows = n_rows < ZERO_NARROW_ROWS ? n_rows : ZERO_NARROW_ROWS;
    size_t groups = n_columns / ZERO_NARROW_COLUMNS + n_parts;
    return (1 + (has_u ? zero_narrow_slices(n_columns, rank) : 0)) * n_columns * rank + groups * rows * rank;
}
/* Returns whether zero_launch_narrow computes this product, of bf16: not one without u and x8, for which cuBLASLt is as
 * fast. */
bool zero_narrow_takes(const zero_narrow_product_t *product);
/* Only if zero_narrow_takes. With an x8 it also casts x; scales->absmax must be set. scratch: zero_narrow_scratch,
 * aligned to 16 bytes. */
cudaError_t zero_launch_narrow(cudaStream_t stream, const zero_narrow_product_t *product, float *scratch);

/* ---- low_rank.cu ---- */

/* Returns whether zero_launch_low_rank computes this product: of few k, whose cost is to write c. */
bool zero_low_rank_takes(const zero_product_t *product);
cudaError_t zero_launch_low_rank(cudaStream_t stream, const zero_product_t *product);

/* ---- gated.cu ---- */

/* Returns whether the next two take adapters of this rank on the current GPU. */
bool zero_gated_takes(size_t rank, size_t width);
cudaError_t zero_launch_gated(cudaStream_t stream, bool is_gelu, const zero_gated_adapters_t *adapters, void *y,
                              const void *gate_up, size_t n_rows, size_t width, uint32_t *absmax);
cudaError_t zero_launch_gated_backward(cudaStream_t stream, bool is_gelu, const zero_gated_adapters_t *adapters,
                                       void *dgate_up, void *y, const void *dy, const void *gate_up, size_t n_rows,
                                       size_t width, uint32_t *absmax);

#ifdef __cplusplus
}
#endif

#endif
