/* adam8_fp64.h - 8-bit moments as adamw8bit keeps them, written plainly in fp64: the values by the recipe of
 * bitsandbytes' create_dynamic_map, the nearest one by looking at all.
 *
 * fp32 may choose another value than fp64 where a number is all but halfway between two. Such elements are marked, and
 * tests leave them out.
 */
#ifndef ZERO_TEST_ADAM8_FP64_H
#define ZERO_TEST_ADAM8_FP64_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>

#define ADAM8_FP64_BLOCK 64

/* Fills the 256 values, ascending. */
static inline void adam8_fp64_values(bool is_signed, double values[256])
{
    int n = 0;
    for (int i = 0; i < 7; i++) {
        int n_means = is_signed ? 1 << i : 2 << i;
        for (int j = 0; j < n_means; j++) { /* the means of neighbours in linspace(0.1, 1, n_means + 1) */
            double low = 0.1 + 0.9 * j / n_means, high = 0.1 + 0.9 * (j + 1) / n_means;
            values[n++] = pow(10, i - 6) * (low + high) / 2;
            if (is_signed)
                values[n++] = -pow(10, i - 6) * (low + high) / 2;
        }
    }
    values[n++] = 0.0;
    values[n++] = 1.0;
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && values[j - 1] > values[j]; j--) {
            double other = values[j];
            values[j] = values[j - 1];
            values[j - 1] = other;
        }
}

/* Returns the value nearest to x; of numbers above 0 without a sign, the nearest above 0. *is_close: another one is all
 * but as near. */
static inline double adam8_fp64_nearest(const double values[256], double x, bool is_signed, bool *is_close)
{
    double best = INFINITY, second = INFINITY, nearest = 0.0;
    for (int i = 0; i < 256; i++) {
        double distance = fabs(x - values[i]);
        if (!is_signed && x > 0.0 && values[i] == 0.0)
            continue;
        if (distance < best) {
            second = best;
            best = distance;
            nearest = values[i];
        } else if (distance < second) {
            second = distance;
        }
    }
    *is_close = second - best <= 1e-5 * fabs(x);
    return nearest;
}

/* Returns the number of largest magnitude, the positive one of two. */
static inline double adam8_fp64_scale(const double *x, size_t n)
{
    double high = 0.0, low = 0.0;
    for (size_t i = 0; i < n; i++) {
        high = fmax(high, x[i]);
        low = fmin(low, x[i]);
    }
    double scale = high >= -low ? high : low;
    return fabs(scale) < 0x1p-104 ? 0.0 : scale;
}

/* Marks what fp32 may scale otherwise: all if a number that was marked is large enough to be the scale, else, if two
 * opposite numbers are all but as large, those that only one sign of the scale can have. */
static inline void adam8_fp64_mark_scale(const double *x, size_t n, double scale, bool *unsure)
{
    bool is_unsure = false, has_opposite = false;
    for (size_t i = 0; i < n; i++) {
        is_unsure = is_unsure || (unsure[i] && fabs(x[i]) > 0.9 * fabs(scale));
        has_opposite = has_opposite || x[i] * scale < -0.99999 * scale * scale;
    }
    for (size_t i = 0; i < n; i++)
        unsure[i] = unsure[i] || is_unsure || (has_opposite && fabs(x[i]) > 0.98 * fabs(scale));
}

/* Replaces m or v of a tensor by what 8 bits keep of it. */
static inline void adam8_fp64_round(double *x, size_t n_elems, bool is_signed, bool *unsure)
{
    static double values[2][256];
    if (values[1][255] == 0.0) {
        adam8_fp64_values(false, values[0]);
        adam8_fp64_values(true, values[1]);
    }
    for (size_t at = 0; at < n_elems; at += ADAM8_FP64_BLOCK) {
        size_t n = n_elems - at < ADAM8_FP64_BLOCK ? n_elems - at : ADAM8_FP64_BLOCK;
        double scale = adam8_fp64_scale(x + at, n);
        if (is_signed)
            adam8_fp64_mark_scale(x + at, n, scale, unsure + at);
        for (size_t i = at; i < at + n; i++) {
            bool is_close = false;
            x[i] =
                scale == 0.0 ? 0.0 : scale * adam8_fp64_nearest(values[is_signed], x[i] / scale, is_signed, &is_close);
            unsure[i] = unsure[i] || is_close;
        }
    }
}

#endif
