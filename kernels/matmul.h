/* matmul.h - the product of two fp32 matrices on the CPU (muon.c). */
#ifndef ZERO_MATMUL_H
#define ZERO_MATMUL_H

#include <stddef.h>

#include "kernels/isa.h"

/* out[m][n] = beta in + alpha p q, with p[m][k] and q[k][n] at any strides, in elements; in and out are row-major. Per
 * element, in this order, all fp32:
 *     sum = fma(p[i][k], q[k][j], sum) for k = 0, 1, 2 ..., from 0
 *     out = fma(beta, in, alpha * sum), or alpha * sum without in */
typedef struct zero_matmul {
    float *out;
    const float *in; /* NULL: none. out must not overlap p and q; it may be in */
    const float *p, *q;
    size_t m, n, k;
    size_t p_row, p_k, q_k, q_column; /* strides */
    float alpha, beta;
} zero_matmul_t;

void ZERO_ISA(zero_shard_matmul)(const zero_matmul_t *args);

#endif
