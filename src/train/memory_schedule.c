/* memory_schedule.c - see memory_schedule.h. */
#include "train/memory_schedule.h"

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
