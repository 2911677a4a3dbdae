/* lr.c - see lr.h. */
#include "train/lr.h"

#include <math.h>

static const double PI = 3.14159265358979323846;

/* Returns how far `step` is from first (0) to last (1). */
static double progress(int64_t step, int64_t first, int64_t last)
{
    if (step >= last)
        return 1.0;
    return step <= first ? 0.0 : (double)(step - first) / (double)(last - first);
}

/* Returns the rate at a part (0..1) of the straight line from lr to min_lr. */
static double decayed(const options_t *options, double part)
{
    return options->train.lr + (options->train.min_lr - options->train.lr) * part;
}

double lr_at(const options_t *options, int64_t step)
{
    int64_t steps = options->train.steps, warmup = options->train.warmup_steps;
    if (step <= warmup && step <= steps)
        return options->train.lr * ((double)step / (double)warmup);
    /* The step with the full rate: the last of the warm-up, or the first if there is none. */
    int64_t peak = warmup > 1 ? warmup : 1;
    if (step <= peak)
        return options->train.lr;
    int64_t n_last_fifth = steps / 5 + (steps % 5 != 0);
    int64_t wsd_first = steps - n_last_fifth > peak ? steps - n_last_fifth : peak;
    switch ((options_schedule_t)options->train.schedule) {
    case SCHEDULE_CONSTANT:
        return options->train.lr;
    case SCHEDULE_LINEAR:
        return decayed(options, progress(step, peak, steps));
    case SCHEDULE_COSINE:
        return decayed(options, 0.5 * (1.0 - cos(PI * progress(step, peak, steps))));
    case SCHEDULE_WSD:
        return decayed(options, progress(step, wsd_first, steps));
    }
    return options->train.lr;
}
