/* pair_loss.c - the loss of pairs of documents on the CPU (zero_pair_loss_t). Losses of rows are summed in double in
 * row order, and pairs in their order.
 */
#include "train/kernels/common.h"
#include "train/kernels/kernels_cpu.h"

/* Returns how much likelier the model makes a document than the reference does: log p - log p_reference. */
static double gain(const zero_pair_loss_t *pairs, int32_t begin, int32_t end)
{
    double gained = 0.0;
    for (int32_t row = begin; row < end; ++row)
        gained += pairs->reference[row] - pairs->losses[row];
    return gained;
}

/* Adds a pair to the sums, of which the last is the loss, and sets its rows' factors. */
static void add_pair(const zero_pair_loss_t *pairs, const int32_t *begins, double sums[ZERO_N_PAIR_SUMS + 1])
{
    const double chosen = pairs->beta * gain(pairs, begins[0], begins[1]);
    const double rejected = pairs->beta * gain(pairs, begins[1], begins[2]);
    const double margin = chosen - rejected;
    sums[ZERO_PAIR_CHOSEN] += chosen;
    sums[ZERO_PAIR_REJECTED] += rejected;
    sums[ZERO_PAIR_ACCURACY] += chosen > rejected ? 1.0 : 0.0;
    sums[ZERO_N_PAIR_SUMS] += zero_pair_loss_of(margin);
    const float factor = (float)zero_pair_slope_of(margin);
    for (int32_t row = begins[0]; row < begins[2]; ++row)
        pairs->factors[row] = row < begins[1] ? factor : -factor;
}

zero_status_t ZERO_MODEL_FN(pair_loss)(zero_model_context_t *ctx, const zero_pair_loss_t *pairs)
{
    (void)ctx;
    const size_t n_rows = pairs->n_rows, dim = pairs->dim;
    double sums[ZERO_N_PAIR_SUMS + 1] = {0};
    for (size_t i = 0; i + 1 < n_rows && (size_t)pairs->documents[i + 1] < n_rows; i += 2)
        add_pair(pairs, pairs->documents + i, sums);
    for (int i = 0; i < ZERO_N_PAIR_SUMS; ++i)
        pairs->sums[i] += zero_loss_rounded(pairs->loss_weight * sums[i]);
    *pairs->loss_sum += zero_loss_rounded(pairs->loss_weight * sums[ZERO_N_PAIR_SUMS]);
    if (pairs->dx == NULL)
        return ZERO_OK;
#pragma omp parallel for schedule(static) if (n_rows * dim >= ZERO_MODEL_PARALLEL_MIN)
    for (size_t row = 0; row < n_rows; ++row) {
        float *dx = (float *)pairs->dx + row * dim;
        for (size_t i = 0; i < dim; ++i)
            dx[i] *= pairs->factors[row];
    }
    return ZERO_OK;
}
