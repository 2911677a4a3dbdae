/* fp8_product.h - which copies of its operands a linear layer's product in fp8 reads, for every device. */
#ifndef ZERO_FP8_PRODUCT_H
#define ZERO_FP8_PRODUCT_H

#include "kernels/model/model.h"

/* An operand, with the summed extent contiguous. */
typedef struct zero_fp8_operand {
    zero_fp8_format_t format;
    const uint8_t *bytes;
    const zero_fp8_scales_t *scales;
} zero_fp8_operand_t;

/* c[m, n] = a[m, k] b[n, k]^T */
typedef struct zero_fp8_product {
    size_t m, n, k;
    zero_fp8_operand_t a, b;
} zero_fp8_product_t;

/* Set *product to that of a function of the table; fail if an extent is no multiple of 16, or if the copy that the
 * product reads was not made. */
zero_status_t zero_fp8_forward(zero_fp8_product_t *product, const zero_fp8_t *x8, const zero_fp8_t *w8,
                               zero_linear_layout_t layout, size_t n_rows, size_t n_in, size_t n_out);
zero_status_t zero_fp8_backward_input(zero_fp8_product_t *product, const zero_fp8_t *dy8, const zero_fp8_t *w8,
                                      zero_linear_layout_t layout, size_t n_rows, size_t n_in, size_t n_out);
zero_status_t zero_fp8_backward_weight(zero_fp8_product_t *product, zero_linear_layout_t layout, const zero_fp8_t *x8,
                                       const zero_fp8_t *dy8, size_t n_rows, size_t n_in, size_t n_out);

/* Refuses a matrix that no product could read. */
zero_status_t zero_fp8_check_matrix(size_t n_rows, size_t n_columns);

#endif
