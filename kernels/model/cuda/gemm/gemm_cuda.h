/* gemm_cuda.h - matrix products of a CUDA context. */
#ifndef ZERO_GEMM_CUDA_H
#define ZERO_GEMM_CUDA_H

#include "kernels/model/cuda/context.h"
#include "kernels/model/fp8_product.h"

zero_status_t zero_gemm_plans_create(zero_gemm_plans_t **plans);
void zero_gemm_plans_destroy(zero_gemm_plans_t *plans); /* NULL is allowed */

/* c[m, n] = op(a)[m, k] op(b)[k, n] (+ c) (+ bias[n]), row-major, with rows that start ld elements apart; op may
 * transpose. a, b and bias have the context's dtype; sums are fp32, rounded once to c's dtype. With fp8, a and b are
 * bytes in its formats, and sums are multiplied by both inverse scales; cuBLASLt then
 * rounds them to c's dtype before it adds c, too. */
typedef struct zero_cuda_gemm {
    bool transpose_a, transpose_b;
    size_t m, n, k;
    const void *a;
    size_t lda;
    const void *b;
    size_t ldb;
    void *c;
    size_t ldc;
    zero_dtype_t c_dtype;
    bool accumulate;
    const void *bias;              /* NULL: none */
    const zero_fp8_product_t *fp8; /* NULL: not in fp8 */
    bool fast_sums;                /* fp8: sums may have fewer bits than fp32 */
} zero_cuda_gemm_t;
/* Queues the product. The first calls of a shape also choose its algorithm, and wait for the device. */
zero_status_t zero_cuda_gemm(zero_model_context_t *ctx, const zero_cuda_gemm_t *gemm);

#endif
