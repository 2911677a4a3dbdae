/* largest.c - see largest.h. More of each takes more memory, so bisection finds the most, but for one step down: where
 * mlp_tile = auto begins to tile. From there on is searched on its own. */
#include "train/planning/largest.h"

#include "base/status.h"

typedef enum size { SIZE_MICRO_BATCH, SIZE_SEQ_LEN, SIZE_LAYERS } size_kind_t;

static void set_size(size_kind_t kind, int64_t value, int n_ranks, options_t *o)
{
    int64_t micro_steps = options_micro_steps(&o->train, n_ranks);
    if (kind == SIZE_MICRO_BATCH)
        o->train.micro_batch = value;
    else if (kind == SIZE_SEQ_LEN)
        o->model.seq_len = value;
    else
        o->model.layers = value;
    o->train.global_batch = o->train.micro_batch * options_n_groups(&o->train, n_ranks) * micro_steps;
}

static zero_status_t find_whether_fits(const fit_t *fit, const fit_choice_t *choice, size_kind_t kind, int64_t value,
                                       bool *fits)
{
    fit_t *other;
    fit_point_t point;
    options_t o = fit->asked;
    fit_apply(choice, &o);
    o.zero.offload_grads = fit->asked.zero.offload_grads; /* a larger run may have to send its sums away */
    set_size(kind, value, fit->machine.n_ranks, &o);
    *fits = false;
    if (!options_are_countable(&o))
        return ZERO_OK;
    fit_choice_t changed = fit_choice_of(&o);
    ZERO_TRY(fit_create(&o, &fit->machine, fit->budget, &other));
    zero_status_t status = fit_evaluate(other, &changed, &point);
    fit_destroy(other);
    *fits = status == ZERO_OK && point.fits;
    return status;
}

/* Finds the largest multiple of `unit` that fits, from `first` units on: by doubling, then by bisection. 0: not even
 * those fit. */
static zero_status_t find_from(int64_t first, const fit_t *fit, const fit_choice_t *choice, size_kind_t kind,
                               int64_t unit, int64_t most, int64_t *largest)
{
    int64_t below = 0, above = first; /* in units: fits, does not */
    bool fits = true;
    for (; fits && above * unit <= most; above = fits ? 2 * above : above) {
        ZERO_TRY(find_whether_fits(fit, choice, kind, above * unit, &fits));
        below = fits ? above : below;
    }
    above = above * unit > most ? most / unit + 1 : above;
    while (below > 0 && above - below > 1) {
        int64_t middle = below + (above - below) / 2;
        ZERO_TRY(find_whether_fits(fit, choice, kind, middle * unit, &fits));
        if (fits)
            below = middle;
        else
            above = middle;
    }
    *largest = below * unit;
    return ZERO_OK;
}

/* Finds the largest multiple of `unit` that fits, in tiles or not. rows: of a unit, if ranks share no sequence. */
static zero_status_t find(const fit_t *fit, const fit_choice_t *choice, size_kind_t kind, int64_t unit, int64_t rows,
                          int64_t most, int64_t *largest)
{
    const int64_t first_tiled = OPTIONS_TILED_ROWS * options_sequence_ranks(&fit->asked.train) / rows + 1;
    int64_t tiled = 0;
    ZERO_TRY(find_from(1, fit, choice, kind, unit, most, largest));
    if (*largest < first_tiled * unit)
        ZERO_TRY(find_from(first_tiled, fit, choice, kind, unit, most, &tiled));
    *largest = tiled > *largest ? tiled : *largest;
    return ZERO_OK;
}

zero_status_t fit_find_largest(const fit_t *fit, const fit_choice_t *choice, fit_largest_t *largest)
{
    int64_t seq_len = fit->asked.model.seq_len;
    fit_largest_t found = {0};
    ZERO_TRY(find(fit, choice, SIZE_MICRO_BATCH, 1, seq_len, 1 << 20, &found.micro_batch));
    ZERO_TRY(find(fit, choice, SIZE_SEQ_LEN, FIT_SEQ_LEN_MULTIPLE, choice->micro_batch * FIT_SEQ_LEN_MULTIPLE, 1 << 30,
                  &found.seq_len));
    ZERO_TRY(find_from(1, fit, choice, SIZE_LAYERS, 1, 10000, &found.layers));
    found.seq_len = found.seq_len < seq_len ? seq_len : found.seq_len; /* what is set fits, multiple or not */
    *largest = found;
    return ZERO_OK;
}
