/* schedules.c - see schedules.h. */
#include "train/schedules.h"

#include <math.h>

/* ---- learning rate ---- */

static const double PI = 3.14159265358979323846;

/* Returns how far `step` is from first (0) to last (1). */
static double progress(int64_t step, int64_t first, int64_t last)
{
    if (step >= last)
        return 1.0;
    return step <= first ? 0.0 : (double)(step - first) / (double)(last - first);
}

/* Returns the rate at a part (0..1) of the straight line from lr to min_lr. */
static double decayed(const train_options_t *train, double part)
{
    return train->lr + (train->min_lr - train->lr) * part;
}

double lr_at(const train_options_t *train, int64_t step)
{
    int64_t steps = train->steps, warmup = train->warmup_steps;
    if (step <= warmup && step <= steps)
        return train->lr * ((double)step / (double)warmup);
    /* The step with the full rate: the last of the warm-up, or the first if there is none. */
    int64_t peak = warmup > 1 ? warmup : 1;
    if (step <= peak)
        return train->lr;
    int64_t n_last_fifth = steps / 5 + (steps % 5 != 0);
    int64_t wsd_first = steps - n_last_fifth > peak ? steps - n_last_fifth : peak;
    switch ((options_schedule_t)train->schedule) {
    case SCHEDULE_CONSTANT:
        return train->lr;
    case SCHEDULE_LINEAR:
        return decayed(train, progress(step, peak, steps));
    case SCHEDULE_COSINE:
        return decayed(train, 0.5 * (1.0 - cos(PI * progress(step, peak, steps))));
    case SCHEDULE_WSD:
        return decayed(train, progress(step, wsd_first, steps));
    }
    return train->lr;
}

/* ---- checkpoints in memory ---- */

memory_schedule_t memory_schedule_make(int64_t every, int64_t whole, bool async)
{
    return (memory_schedule_t){.every = every, .whole = whole, .lead = async ? every / 2 : 0};
}

bool memory_schedule_is_due(const memory_schedule_t *schedule, int64_t step)
{
    return schedule->every > 0 && schedule->begun == 0 && step >= schedule->first &&
           step - schedule->whole >= schedule->every - schedule->lead;
}

bool memory_schedule_must_end(const memory_schedule_t *schedule, int64_t step)
{
    return schedule->every > 0 && schedule->begun > 0 && step - schedule->whole >= schedule->every;
}

void memory_schedule_begin(memory_schedule_t *schedule, int64_t step)
{
    schedule->begun = step;
}

void memory_schedule_end(memory_schedule_t *schedule, int64_t step, bool in_memory)
{
    const int64_t took = step - schedule->begun;
    if (in_memory && took > 0) /* one more, so that the next need not be waited for if it takes a little longer */
        schedule->lead = took + 1 < schedule->every ? took + 1 : schedule->every - 1;
    schedule->whole = schedule->begun;
    schedule->begun = 0;
    schedule->first = step + 1;
}
