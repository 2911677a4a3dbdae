/* notices.h - what ranks pass to zero_set_notice before each step of a case, and what every rank must receive: numbers
 * that rise and fall, set at different steps on different ranks. */
#ifndef TEST_NOTICES_H
#define TEST_NOTICES_H

#include "tests/mpi/expect.h"
#include "zero.h"

static uint32_t notice_of(int rank, uint64_t step)
{
    uint64_t age = (step + (uint64_t)rank) % 3; /* it stays for three steps */
    return age >= step ? 0 : (uint32_t)((step - age) * 5 + (uint64_t)rank * 7) % 11;
}

/* step: the one that zero_step is called for next. */
static inline void set_notice(zero_engine_t *engine, int rank, uint64_t step)
{
    if (notice_of(rank, step) != notice_of(rank, step - 1)) /* before step 1: 0 */
        zero_set_notice(engine, notice_of(rank, step));
}

static inline void check_notice(const zero_step_result_t *result, int n_ranks)
{
    uint32_t want = 0;
    for (int rank = 0; rank < n_ranks; rank++)
        want = notice_of(rank, result->step) > want ? notice_of(rank, result->step) : want;
    CHECK(result->notice == want, "step %d: notice %u, not %u", (int)result->step, result->notice, want);
}

#endif
