/* fp8.h - matrices in fp8: the two formats (Micikevicius et al. 2022, arXiv:2209.05433) and the scale of a matrix.
 *
 * A matrix has one scale, the largest power of two that takes its absolute maximum into the format's range. So scaling
 * is exact, and since a maximum does not depend on the order in which it is taken, every rank, shard and stage comes to
 * the same scale and the same bytes.
 */
#ifndef ZERO_FP8_H
#define ZERO_FP8_H

#include "zero.h" /* zero_fp8_scales_t */

/* E4M3: 4 exponent and 3 mantissa bits, up to 448, no infinity, for activations and weights. E5M2: up to 57344, for the
 * gradients of outputs. */
typedef enum zero_fp8_format { ZERO_E4M3, ZERO_E5M2 } zero_fp8_format_t;

#endif
