/* shared_barrier.h - a barrier in shared memory that cannot hang.
 *
 * The last rank to come bumps an epoch on which the others wait: by looking for a moment where every rank has a core of
 * its own, then asleep on a futex. A sleeper wakes at intervals and looks at the ranks that have not come: one that has
 * ended, that stays stopped for some seconds or does not come until the deadline is a failure. The first to see one
 * says so, once for the job, and all ranks, the late ones too, get the same status.
 *
 * Each rank also states what it is in (call.h). Ranks that meet in a barrier from different calls learn that there,
 * rather than read each other's bytes as something else.
 */
#ifndef ZERO_SHARED_BARRIER_H
#define ZERO_SHARED_BARRIER_H

#include <sched.h>
#include <stdatomic.h>

#include "comm/call.h"

#define ZERO_CACHE_LINES 128 /* bytes: neighbouring lines are fetched in pairs */

/* One rank's place, in memory that it shares. The first rank's also holds what all ranks have in common. */
typedef struct zero_barrier_entry {
    _Alignas(ZERO_CACHE_LINES) _Atomic uint32_t epoch;     /* common: barriers completed; the futex */
    _Atomic uint32_t n_asleep;                             /* common: who might wait for a wake-up */
    _Atomic uint32_t failure;                              /* common: a zero_status_t, set once */
    _Alignas(ZERO_CACHE_LINES) _Atomic uint32_t n_arrived; /* common */

    _Alignas(ZERO_CACHE_LINES) _Atomic uint32_t arrived; /* barriers this rank has come to */
    /* What it is in, as all ranks must be, by the epoch's lowest bit: a rank may be one barrier ahead of those who read
     * it. The others look at the hash. */
    uint64_t call_hashes[2];
    zero_call_t calls[2];
    int64_t pid;
    uint64_t start_time; /* tells a process from a later one with the same number */
    cpu_set_t cores;     /* it may run on */
} zero_barrier_entry_t;

typedef struct zero_barrier {
    int rank, size;
    int64_t timeout_ns;
    bool may_spin;
    int64_t last_check_ns;              /* at the ranks that have not come */
    int stopped_rank, n_checks_stopped; /* of which this one was stopped at so many looks in a row; -1: none was */
    zero_barrier_entry_t *seats[];      /* [size] */
} zero_barrier_t;

/* Takes this rank's seat in seats[rank] (zeroed). When all ranks have, the barrier must be opened and may be used. */
zero_status_t zero_barrier_join(zero_barrier_t *barrier);
void zero_barrier_open(zero_barrier_t *barrier);

/* Returns when all ranks have come. ZERO_ERROR_PEER, _TIMEOUT or _MISMATCH, which all later waits return too. */
zero_status_t zero_barrier_wait(zero_barrier_t *barrier, const zero_call_t *call);

/* Looks after the ranks that have not come to the barrier, for one that waits for them elsewhere, in `waiting_in`. */
zero_status_t zero_barrier_check_peers(zero_barrier_t *barrier, const char *waiting_in);
/* Makes all ranks' present and future waits return ZERO_ERROR_PEER. */
void zero_barrier_abort(zero_barrier_t *barrier);

#endif
