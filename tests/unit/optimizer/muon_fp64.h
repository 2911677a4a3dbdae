/* muon_fp64.h - Muon's update of a matrix in double precision, by its definition (Jordan et al. 2024): loops over
 * elements, and nothing of the library's. */
#ifndef ZERO_TESTS_MUON_FP64_H
#define ZERO_TESTS_MUON_FP64_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Makes x[rows][cols] all but orthogonal, in place. */
static inline void muon_fp64_orthogonalize(double *x, size_t rows, size_t cols, int n_steps)
{
    const double a = 3.4445, b = -4.7750, c = 2.0315;
    const size_t n = rows < cols ? rows : cols, long_side = rows < cols ? cols : rows;
    double *wide = malloc(rows * cols * sizeof *wide), *gram = malloc(n * n * sizeof *gram);
    double *poly = malloc(n * n * sizeof *poly), norm = 0.0;
    for (size_t i = 0; i < rows * cols; i++)
        norm += x[i] * x[i];
    norm = fmax(sqrt(norm), 1e-7);
    for (size_t i = 0; i < rows; i++) /* not higher than wide */
        for (size_t j = 0; j < cols; j++)
            wide[rows > cols ? j * rows + i : i * cols + j] = x[i * cols + j] / norm;
    for (int step = 0; step < n_steps; step++) {
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < n; j++) {
                gram[i * n + j] = 0.0;
                for (size_t k = 0; k < long_side; k++)
                    gram[i * n + j] += wide[i * long_side + k] * wide[j * long_side + k];
            }
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < n; j++) {
                double square = 0.0;
                for (size_t k = 0; k < n; k++)
                    square += gram[i * n + k] * gram[j * n + k];
                poly[i * n + j] = b * gram[i * n + j] + c * square + (i == j ? a : 0.0);
            }
        memset(x, 0, rows * cols * sizeof *x);
        for (size_t i = 0; i < n; i++)
            for (size_t k = 0; k < n; k++)
                for (size_t j = 0; j < long_side; j++)
                    x[i * long_side + j] += poly[i * n + k] * wide[k * long_side + j];
        memcpy(wide, x, rows * cols * sizeof *x);
    }
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++)
            x[i * cols + j] = wide[rows > cols ? j * rows + i : i * cols + j];
    free(wide);
    free(gram);
    free(poly);
}

/* Updates weights w[rows][cols] with momentum m by the gradient g. */
static inline void muon_fp64_update(double *w, double *m, const double *g, size_t rows, size_t cols, double lr,
                                    double decay, double momentum, int n_steps)
{
    double *u = malloc(rows * cols * sizeof *u);
    const double scale = 0.2 * sqrt((double)(rows > cols ? rows : cols));
    for (size_t i = 0; i < rows * cols; i++) {
        m[i] += (1 - momentum) * (g[i] - m[i]);
        u[i] = g[i] + momentum * (m[i] - g[i]);
    }
    muon_fp64_orthogonalize(u, rows, cols, n_steps);
    for (size_t i = 0; i < rows * cols; i++)
        w[i] = w[i] * (1 - lr * decay) - lr * scale * u[i];
    free(u);
}

#endif
