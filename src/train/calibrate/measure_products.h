/* measure_products.h - the rates of products, by size. */
#ifndef ZEROTRAIN_CALIBRATE_MEASURE_PRODUCTS_H
#define ZEROTRAIN_CALIBRATE_MEASURE_PRODUCTS_H

#include "train/calibrate/kernel_bench.h"
#include "train/predict/rates.h"

/* Set the rates of products in a half format, in fp32 (after those) and in fp8, whose operands stay in the bench. The
 * bench is open for that dtype, and has a context. [collective] */
zero_status_t measure_half_products(bench_t *b, fit_rates_t *rates);
zero_status_t measure_single_products(bench_t *b, fit_rates_t *rates);
zero_status_t measure_fp8_products(bench_t *b, fit_rates_t *rates);

#endif
