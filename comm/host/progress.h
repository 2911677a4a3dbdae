/* progress.h - which collective each rank has come to, so that one that waits can say for whom.
 *
 * MPI cannot tell which rank is missing. So a rank that waits announces to each peer, every second, which collective it
 * has come to, and in which call. A rank that learns of another call than its own reports both. At the deadline the
 * ranks that announced nothing are reported: one that waits for others itself is not to blame. While all goes well,
 * nothing is announced. Used by messages.c.
 */
#ifndef ZERO_PROGRESS_H
#define ZERO_PROGRESS_H

#include <mpi.h>

#include "comm/comm.h"

#define ZERO_PROGRESS_TAG 0 /* of announcements; collectives have the tags above */
#define ZERO_N_RECENT 4     /* the root may be further on when its broadcast is compared */

/* ---- calls of MPI: how an error becomes a status, and how its own collectives are waited for ---- */

/* Logs the MPI call that failed with the text that MPI has for `error`. Returns ZERO_ERROR_COMM. */
zero_status_t zero_mpi_fail(int error, const char *call);

/* Waits for a nonblocking call of MPI to complete. Returns ZERO_ERROR_TIMEOUT, without a line, if it has not after
 * timeout_ns: MPI may then still use what was given to it. */
zero_status_t zero_mpi_await(MPI_Request *request, int64_t timeout_ns);

#define ZERO_TRY_MPI(call)                                                                                             \
    do {                                                                                                               \
        int zero_try_error = (call);                                                                                   \
        if (zero_try_error != MPI_SUCCESS)                                                                             \
            return zero_mpi_fail(zero_try_error, #call);                                                               \
    } while (0)

/* ---- progress ---- */

/* Which collective a rank has come to, and its calls in the last ones. */
typedef struct zero_announcement {
    uint64_t n_collectives;            /* started so far: the number of the current one */
    zero_call_t recent[ZERO_N_RECENT]; /* collective n at n % ZERO_N_RECENT */
} zero_announcement_t;

typedef struct zero_progress_peer {
    zero_announcement_t sent; /* our last announcement to this peer; MPI may read it while `request` is active */
    MPI_Request request;
    zero_announcement_t received; /* this peer's last announcement to us */
    bool is_heard;                /* it has announced something since this rank began to wait for its device */
    int64_t heard_ns;             /* when it last announced something */
} zero_progress_peer_t;

typedef struct zero_collective_progress {
    MPI_Comm mpi; /* the user's; set by it before anything is announced */
    zero_announcement_t own;
    zero_progress_peer_t *peers;         /* [size]; for free */
    int64_t wait_began_ns, announced_ns; /* the current wait for the device, and the last announcement in it */
} zero_collective_progress_t;

zero_status_t zero_progress_create(const zero_comm_t *comm, zero_collective_progress_t *progress);
/* Waits until all announcements have been sent. */
void zero_progress_drain(const zero_comm_t *comm, zero_collective_progress_t *progress);

/* Notes that this rank has come to the next collective, in that call. */
void zero_progress_begin(zero_collective_progress_t *progress, zero_call_t call);
/* Returns the call of the current collective. */
const zero_call_t *zero_progress_call(const zero_collective_progress_t *progress);

/* Returns how long a rank waits before it announces what it waits in, and then again and again. */
int64_t zero_progress_announce_after(const zero_comm_t *comm);
zero_status_t zero_progress_announce(const zero_comm_t *comm, zero_collective_progress_t *progress);
zero_status_t zero_progress_receive(zero_collective_progress_t *progress);
/* Compares with each peer the calls in the latest collective to which both are known to have come. */
zero_status_t zero_progress_compare(const zero_comm_t *comm, const zero_collective_progress_t *progress);
/* Returns ZERO_ERROR_TIMEOUT, with a line that names the ranks that have not come to the current collective. */
zero_status_t zero_progress_timed_out(const zero_comm_t *comm, const zero_collective_progress_t *progress);
/* Hears of the peers while this rank waits for its device, as zero_comm_check_peers. Ranks that wait for their devices
 * tell each other so once in a second. One that has said nothing by the deadline has ended, or stands still, or the
 * network between has gone. */
zero_status_t zero_progress_check(const zero_comm_t *comm, zero_collective_progress_t *progress, const char *waiting_in,
                                  int64_t waited_ns);

#endif
