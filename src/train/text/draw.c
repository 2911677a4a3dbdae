/* draw.c - see draw.h. What is computed for the whole vocabulary takes a thread for each chunk of it: a softmax of
 * 128,000 logits takes as long as a GPU takes for a token of a small model. Sums have a fixed order.
 */
#include "train/text/draw.h"

#include <math.h>
#include <stdlib.h>

#define MAX_THREADS 8 /* more take longer to start than they save */

static size_t n_chunks(size_t vocab_size)
{
    return (vocab_size + DRAW_CHUNK - 1) / DRAW_CHUNK;
}

bool draw_scratch_create(size_t vocab_size, draw_scratch_t *scratch)
{
    *scratch = (draw_scratch_t){.order = malloc(vocab_size * sizeof *scratch->order),
                                .weights = malloc((vocab_size + n_chunks(vocab_size)) * sizeof *scratch->weights)};
    if (scratch->order && scratch->weights)
        return true;
    draw_scratch_free(scratch);
    return false;
}

void draw_scratch_free(draw_scratch_t *scratch)
{
    free(scratch->order);
    free(scratch->weights);
    *scratch = (draw_scratch_t){0};
}

/* ---- a few of the vocabulary ---- */

/* Writes the indices of the k largest logits to order, largest first; ties go to the smaller index. Nearly all logits
 * take one comparison, with the smallest of the k so far. */
static void select_top(const float *logits, int n, int k, int32_t *order)
{
    float least = INFINITY;
    for (int i = 0, n_kept = 0; i < n; i++) {
        if (n_kept == k && !(logits[i] > least))
            continue;
        int at = n_kept < k ? n_kept++ : k - 1;
        for (; at > 0 && logits[i] > logits[order[at - 1]]; at--)
            order[at] = order[at - 1];
        order[at] = i;
        least = logits[order[n_kept - 1]];
    }
}

static int by_logit(const void *a, const void *b, void *logits)
{
    const int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    const float x = ((const float *)logits)[i], y = ((const float *)logits)[j];
    return x != y ? (x < y) - (x > y) : (i > j) - (i < j);
}

static double weight_of(float logit, double largest, const sample_spec_t *spec)
{
    return exp(((double)logit - largest) / (double)spec->temperature);
}

/* Writes the indices that top_p may keep to order, sorted, and returns how many. It keeps none whose weight is (1 -
 * top_p) total / n or less: all such together are no more than it leaves out. So few are sorted. */
static int select_likely(const float *logits, int n, const sample_spec_t *spec, double largest, double total,
                         int32_t *order)
{
    const double rounding = 1e-6; /* more than that of the logarithm */
    double least = largest + (double)spec->temperature * log((1.0 - spec->top_p) * total / n) - rounding;
    int k = 0;
    for (int i = 0; i < n; i++)
        if (!((double)logits[i] < least)) /* NaN stays */
            order[k++] = i;
    qsort_r(order, (size_t)k, sizeof *order, by_logit, (void *)(uintptr_t)logits);
    return k;
}

/* Sets weights[i] to that of order[i], the largest first, and returns their sum. */
static double weigh_few(const float *logits, const int32_t *order, int k, const sample_spec_t *spec, double *weights)
{
    double total = 0.0;
    for (int i = 0; i < k; i++)
        total += weights[i] = weight_of(logits[order[i]], (double)logits[order[0]], spec);
    return total;
}

/* Cuts off all but the first that add up to top_p of the total; the one with which they reach it is still one of them.
 * Returns their sum. */
static double keep_likely(const double *weights, double total, const sample_spec_t *spec, int *k)
{
    double kept = 0.0;
    int n_kept = 0;
    while (n_kept < *k && (n_kept == 0 || kept < spec->top_p * total))
        kept += weights[n_kept++];
    *k = n_kept;
    return kept;
}

/* Returns the first index at which the sum of weights exceeds `wanted`. */
static int find(const double *weights, int k, double wanted)
{
    double reached = 0.0;
    for (int i = 0; i < k; i++)
        if (wanted < (reached += weights[i]))
            return i;
    return k - 1;
}

/* ---- all of the vocabulary ---- */

static float largest_of(const float *logits, int n)
{
    float largest = -INFINITY;
#pragma omp parallel for schedule(static) reduction(max : largest) num_threads(MAX_THREADS) if (n > DRAW_CHUNK)
    for (int i = 0; i < n; i++)
        largest = logits[i] > largest ? logits[i] : largest;
    return largest;
}

/* Sets weights[i] to token i's, and behind them the chunks' sums. Returns the sum of these. */
static double weigh_all(const float *logits, int n, double largest, const sample_spec_t *spec, double *weights)
{
    const int chunks = (int)n_chunks((size_t)n);
    double *sums = weights + n, total = 0.0;
#pragma omp parallel for schedule(static) num_threads(MAX_THREADS) if (n > DRAW_CHUNK)
    for (int c = 0; c < chunks; c++) {
        const int end = n - c * DRAW_CHUNK < DRAW_CHUNK ? n : (c + 1) * DRAW_CHUNK;
        double sum = 0.0;
        for (int i = c * DRAW_CHUNK; i < end; i++)
            sum += weights[i] = weight_of(logits[i], largest, spec);
        sums[c] = sum;
    }
    for (int c = 0; c < chunks; c++)
        total += sums[c];
    return total;
}

/* Returns the first index at which the sum of all weights exceeds `wanted`, chunk by chunk. */
static int find_in_all(const double *weights, int n, double wanted)
{
    const int chunks = (int)n_chunks((size_t)n);
    const double *sums = weights + n;
    double before = 0.0;
    int c = 0;
    while (c < chunks - 1 && !(wanted < before + sums[c]))
        before += sums[c++];
    const int first = c * DRAW_CHUNK, left = n - first;
    return first + find(weights + first, left < DRAW_CHUNK ? left : DRAW_CHUNK, wanted - before);
}

int32_t draw_token(const float *logits, int n, const sample_spec_t *spec, double random, draw_scratch_t *scratch)
{
    const bool takes_one = spec->temperature <= 0.0f, takes_top = takes_one || (spec->top_k > 0 && spec->top_k < n);
    const bool cuts = spec->top_p > 0.0 && spec->top_p < 1.0;
    int k = takes_one ? 1 : spec->top_k;
    double total = 0.0;
    if (takes_top) {
        select_top(logits, n, k, scratch->order);
        total = weigh_few(logits, scratch->order, k, spec, scratch->weights);
    } else {
        const double largest = (double)largest_of(logits, n);
        total = weigh_all(logits, n, largest, spec, scratch->weights);
        if (!cuts)
            return find_in_all(scratch->weights, n, random * total);
        k = select_likely(logits, n, spec, largest, total, scratch->order);
        weigh_few(logits, scratch->order, k, spec, scratch->weights);
    }
    if (cuts)
        total = keep_likely(scratch->weights, total, spec, &k);
    return scratch->order[find(scratch->weights, k, random * total)];
}
