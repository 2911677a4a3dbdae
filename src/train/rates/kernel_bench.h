/* kernel_bench.h - operands for measuring a model's kernels, in a device's memory, for kernels of one dtype at a time.
 */
#ifndef ZEROTRAIN_KERNEL_BENCH_H
#define ZEROTRAIN_KERNEL_BENCH_H

#include "train/rates/probe.h"
#include "train/rates/rates.h"

/* Sizes that a step has: large enough to fill the device, small enough to take a moment. Products are of rows with a
 * square matrix, each 8 times as large as the one before. A GPU's are cubes. On the CPU more rows than the matrix is
 * wide, as in training: OpenBLAS packs operands anew for each thread's block, which costs a weight's gradient most. */
typedef struct bench_sizes {
    int n_products;
    size_t edge, aspect;       /* the smallest matrix is edge x edge, and its rows are aspect * edge */
    size_t rows, dim, ffn;     /* of passes */
    size_t width;              /* of attention: heads * head_dim */
    size_t seq_len, seq_least; /* two, to tell what attention computes on the diagonal */
} bench_sizes_t;

typedef struct bench {
    probe_t probe;
    const zero_model_kernels_t *kernels;
    bench_sizes_t sizes;
    zero_model_context_t ctx;
    bool has_ctx;
    void *workspace, *x, *y, *dx, *dy; /* activations, each of most elements */
    void *weight, *dweight, *vectors;  /* weights: a matrix, its gradient, and two vectors of ffn */
    float *rows;                       /* fp32: two numbers a row, or attention's logsumexp */
    zero_fp8_t x8, w8, dy8;
    size_t n, head_dim, at_len; /* of what is being measured */
    size_t turn;                /* calls of multiply */
} bench_t;

/* Allocates and fills the operands. bench_close also frees what is half made. [collective] */
zero_status_t bench_open(zero_comm_t *comm, zero_device_t *device, zero_dtype_t dtype, bool fp8, bench_t *b);
void bench_close(bench_t *b); /* [collective] */
/* Makes a context for heads of this many elements, in place of the one before. */
zero_status_t bench_use_heads(bench_t *b, size_t head_dim, bool fp8);

/* Return the edge of a product's matrix, the smallest first; of the largest. */
size_t bench_edge(const bench_t *b, int product);
size_t bench_last_edge(const bench_t *b);

/* Return the matrix and its gradient, as kernels take them. */
zero_weight_t bench_weight(const bench_t *b);
zero_grad_t bench_gradient(const bench_t *b);

/* ---- measure ---- */
/* What calibrate measures. */

/* Measure, and set those rates that this device and number of ranks have. [collective] */
zero_status_t measure_kernels(zero_comm_t *comm, zero_device_t *device, fit_rates_t *rates);
zero_status_t measure_engine(zero_comm_t *comm, zero_device_t *device, fit_rates_t *rates);

/* ---- measure products ---- */
/* The rates of products, by size. */

/* Set the rates of products in a half format, in fp32 (after those) and in fp8, whose operands stay in the bench. The
 * bench is open for that dtype, and has a context. [collective] */
zero_status_t measure_half_products(bench_t *b, fit_rates_t *rates);
zero_status_t measure_single_products(bench_t *b, fit_rates_t *rates);
zero_status_t measure_fp8_products(bench_t *b, fit_rates_t *rates);

#endif
