/* shared_barrier.h - a barrier in shared memory that cannot hang.
 *
 * The last rank to come increments an epoch for which the others wait. They spin briefly if every rank has a core of
 * its own, then sleep on a futex. A sleeping rank wakes at intervals and checks the ranks that have not come. A rank
 * that has ended, that stays stopped for some seconds, or that does not come before the deadline, is a failure. The
 * first rank to find one logs it, once for the job, and all ranks, the late ones too, get the same status and the same
 * text as their last error.
 *
 * Each rank also publishes the call that it is in (call.h). Ranks that meet in a barrier from different calls find out
 * there, and do not read each other's bytes as something else.
 */
#ifndef ZERO_SHARED_BARRIER_H
#define ZERO_SHARED_BARRIER_H

#include <sched.h>
#include <stdatomic.h>

#include "comm/call.h"

#define ZERO_CACHE_LINES 128 /* bytes: neighbouring lines are fetched in pairs */
#define ZERO_BARRIER_TEXT_BYTES 768

/* One rank's entry, in memory that it shares. The first rank's entry also holds what all ranks have in common. */
typedef struct zero_barrier_entry {
    _Alignas(ZERO_CACHE_LINES) _Atomic uint32_t epoch;     /* common: barriers completed; the futex */
    _Atomic uint32_t n_asleep;                             /* common: ranks that may need a wake-up */
    _Atomic uint32_t failure;                              /* common: a zero_status_t, set once */
    _Atomic uint32_t is_explained;                         /* common: failure_text is complete */
    _Alignas(ZERO_CACHE_LINES) _Atomic uint32_t n_arrived; /* common */

    _Alignas(ZERO_CACHE_LINES) _Atomic uint32_t arrived; /* barriers this rank has come to */
    /* The call that this rank is in, and its hash, which the others compare with theirs. Indexed by the epoch's lowest
     * bit, since a rank may be one barrier ahead of those that read its call. */
    uint64_t call_hashes[2];
    zero_call_t calls[2];
    int64_t pid;
    uint64_t start_time;                        /* distinguishes the process from a later one with the same pid */
    cpu_set_t cores;                            /* it may run on */
    char failure_text[ZERO_BARRIER_TEXT_BYTES]; /* common */
} zero_barrier_entry_t;

typedef struct zero_barrier {
    int rank, size, first_rank; /* first_rank: the communicator's */
    int64_t timeout_ns;
    bool may_spin;
    int64_t last_check_ns;              /* when the late ranks were last checked */
    int stopped_rank, n_checks_stopped; /* the late rank that was stopped at so many checks in a row; -1: none was */
    zero_barrier_entry_t *entries[];    /* [size] */
} zero_barrier_t;

/* Fills in this rank's entry, entries[rank], which was zeroed. When all ranks have done so, each opens the barrier. */
zero_status_t zero_barrier_join(zero_barrier_t *barrier);
/* Decides, from all ranks' entries, whether waits may spin. Call it before the first wait. */
void zero_barrier_open(zero_barrier_t *barrier);

/* Returns when all ranks have come. Fails with ZERO_ERROR_PEER, _TIMEOUT or _MISMATCH, and so do all later waits. */
zero_status_t zero_barrier_wait(zero_barrier_t *barrier, const zero_call_t *call);

/* Checks the ranks that have not come to the barrier, for a rank that waits for them elsewhere. waiting_in: in which
 * call, for the log. Call it again and again; it checks at intervals. */
zero_status_t zero_barrier_check_peers(zero_barrier_t *barrier, const char *waiting_in);
/* Makes all ranks' present and future waits return ZERO_ERROR_PEER. */
void zero_barrier_abort(zero_barrier_t *barrier);

#endif
