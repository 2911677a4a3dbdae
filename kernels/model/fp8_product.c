/* fp8_product.c - the three products of a linear layer in fp8 as c = a b^T, and what is refused. */
#include "kernels/model/fp8_product.h"

#include "base/log.h"

#define EXTENT_UNIT 16 /* cuBLASLt's, for extents and row lengths of fp8 */

zero_status_t zero_fp8_check_matrix(size_t n_rows, size_t n_columns)
{
    if (n_rows % EXTENT_UNIT == 0 && n_columns % EXTENT_UNIT == 0)
        return ZERO_OK;
    return zero_fail(ZERO_ERROR_UNSUPPORTED, "a %zu x %zu matrix in fp8: both extents must be multiples of %d", n_rows,
                     n_columns, EXTENT_UNIT);
}

static zero_fp8_operand_t rows_of(const zero_fp8_t *x8)
{
    return (zero_fp8_operand_t){x8->format, x8->rows, x8->scales};
}

static zero_fp8_operand_t columns_of(const zero_fp8_t *x8)
{
    return (zero_fp8_operand_t){x8->format, x8->columns, x8->scales};
}

static zero_status_t check(const zero_fp8_product_t *product, const char *name)
{
    ZERO_TRY(zero_fp8_check_matrix(product->m, product->k));
    ZERO_TRY(zero_fp8_check_matrix(product->n, product->k));
    if (product->a.bytes == NULL || product->b.bytes == NULL)
        return zero_fail(ZERO_ERROR_ARGUMENT, "%s: the %s operand was not cast as this product reads it", name,
                         product->a.bytes == NULL ? "first" : "second");
    return ZERO_OK;
}

zero_status_t zero_fp8_forward(zero_fp8_product_t *product, const zero_fp8_t *x8, const zero_fp8_t *w8,
                               zero_linear_layout_t layout, size_t n_rows, size_t n_in, size_t n_out)
{
    zero_fp8_operand_t weight = layout == ZERO_LINEAR_OUT_IN ? rows_of(w8) : columns_of(w8);
    *product = (zero_fp8_product_t){n_rows, n_out, n_in, rows_of(x8), weight};
    return check(product, "linear_fp8");
}

zero_status_t zero_fp8_backward_input(zero_fp8_product_t *product, const zero_fp8_t *dy8, const zero_fp8_t *w8,
                                      zero_linear_layout_t layout, size_t n_rows, size_t n_in, size_t n_out)
{
    zero_fp8_operand_t weight = layout == ZERO_LINEAR_OUT_IN ? columns_of(w8) : rows_of(w8);
    *product = (zero_fp8_product_t){n_rows, n_in, n_out, rows_of(dy8), weight};
    return check(product, "linear_fp8_backward_input");
}

zero_status_t zero_fp8_backward_weight(zero_fp8_product_t *product, zero_linear_layout_t layout, const zero_fp8_t *x8,
                                       const zero_fp8_t *dy8, size_t n_rows, size_t n_in, size_t n_out)
{
    if (layout == ZERO_LINEAR_IN_OUT)
        *product = (zero_fp8_product_t){n_in, n_out, n_rows, columns_of(x8), columns_of(dy8)};
    else
        *product = (zero_fp8_product_t){n_out, n_in, n_rows, columns_of(dy8), columns_of(x8)};
    return check(product, "linear_fp8_backward_weight");
}
