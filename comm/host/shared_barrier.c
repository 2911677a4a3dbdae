/* shared_barrier.c - see shared_barrier.h. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/deadline.h"
#include "comm/host/shared_barrier.h"
#include "base/log.h"

#define SPIN_NS 50000           /* about what going to sleep and being woken costs */
#define LOOK_AFTER_NS 100000000 /* who waits looks after its peers this often */
/* Looks in a row at which a rank was stopped, until it is given up: 5 s. Looks, not time: a job that is suspended as a
 * whole does not look at itself, and is not found at fault when it goes on. */
#define STOPPED_LOOKS 50

_Static_assert(ATOMIC_INT_LOCK_FREE == 2, "atomics between processes must not hide a lock");

/* ---- Processes ---- */

/* State letter and start time of a process, false where there is none. By system calls: stdio would allocate, and who
 * waits long for a peer allocates no more than who waits briefly. */
static bool read_process(int64_t pid, char *state, uint64_t *start_time)
{
    char path[64], text[1024];
    snprintf(path, sizeof(path), "/proc/%" PRId64 "/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n_bytes = read(fd, text, sizeof(text) - 1);
    close(fd);
    text[n_bytes > 0 ? n_bytes : 0] = '\0';
    const char *after_name = strrchr(text, ')'); /* the name may hold blanks and parentheses itself */
    return after_name && sscanf(after_name + 1,
                                " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %" SCNu64,
                                state, start_time) == 2;
}

/* The state letter; 'X' when the process has ended, be it collected by its parent or not. */
static char process_state(const zero_barrier_entry_t *seat)
{
    char state = 'X';
    uint64_t start_time = 0;
    if (!read_process(seat->pid, &state, &start_time) || start_time != seat->start_time || state == 'Z')
        return 'X';
    return state;
}

static const char *state_text(char state)
{
    switch (state) {
    case 'T':
    case 't':
        return "stopped";
    case 'D':
        return "waiting for a disk or a device";
    case 'R':
        return "running";
    case 'X':
        return "ended";
    default:
        return "waiting";
    }
}

/* ---- Futex ---- */

static void sleep_while(_Atomic uint32_t *word, uint32_t value, int64_t at_most_ns)
{
    struct timespec limit = {.tv_sec = at_most_ns / 1000000000, .tv_nsec = at_most_ns % 1000000000};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &limit, NULL, 0); /* wakes early at will: callers look again */
}

static void wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __asm__ volatile("pause");
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* ---- Failure ---- */

/* True for the one rank that gets to name the job's first failure. It does so before it calls the others awake: they
 * may end the job. */
static bool claim_failure(zero_barrier_t *barrier, zero_status_t status)
{
    uint32_t none = 0;
    return atomic_compare_exchange_strong(&barrier->seats[0]->failure, &none, (uint32_t)status);
}

static zero_status_t failure_status(const zero_barrier_t *barrier)
{
    return (zero_status_t)atomic_load(&barrier->seats[0]->failure);
}

static zero_status_t end_all_waits(zero_barrier_t *barrier)
{
    wake_all(&barrier->seats[0]->epoch);
    return failure_status(barrier);
}

static bool is_late(const zero_barrier_t *barrier, int rank, uint32_t epoch)
{
    return atomic_load(&barrier->seats[rank]->arrived) != epoch + 1;
}

static zero_status_t fail_ended(zero_barrier_t *barrier, int rank, const char *waiting_in)
{
    if (claim_failure(barrier, ZERO_ERROR_PEER))
        zero_log(ZERO_LOG_ERROR,
                 "rank %d (process %" PRId64 ") has exited or was killed while other ranks wait for it in %s", rank,
                 barrier->seats[rank]->pid, waiting_in);
    return end_all_waits(barrier);
}

static zero_status_t fail_stopped(zero_barrier_t *barrier, int rank, const char *waiting_in)
{
    if (claim_failure(barrier, ZERO_ERROR_TIMEOUT))
        zero_log(ZERO_LOG_ERROR,
                 "rank %d (process %" PRId64 ") has been stopped (SIGSTOP, say) for %g s while other ranks wait for it "
                 "in %s",
                 rank, barrier->seats[rank]->pid, STOPPED_LOOKS * (LOOK_AFTER_NS * 1e-9), waiting_in);
    return end_all_waits(barrier);
}

static zero_status_t fail_late(zero_barrier_t *barrier, uint32_t epoch, const char *waiting_in)
{
    char late[512] = "";
    size_t length = 0;
    for (int rank = 0; rank < barrier->size; rank++) {
        const zero_barrier_entry_t *seat = barrier->seats[rank];
        if (is_late(barrier, rank, epoch) && length < sizeof(late) - 80)
            length += (size_t)snprintf(late + length, sizeof(late) - length, "%srank %d (process %" PRId64 ", %s)",
                                       length ? ", " : "", rank, seat->pid, state_text(process_state(seat)));
    }
    if (claim_failure(barrier, ZERO_ERROR_TIMEOUT))
        zero_log(ZERO_LOG_ERROR, "%s did not come to %s within %g s (ZERO_TIMEOUT_S)", late, waiting_in,
                 (double)barrier->timeout_ns * 1e-9);
    return end_all_waits(barrier);
}

static void begin_checking(zero_barrier_t *barrier)
{
    barrier->last_check_ns = zero_now_ns();
    barrier->n_checks_stopped = 0;
    barrier->stopped_rank = -1;
}

/* Looks after the ranks that have not come, if it is time to. Whether one ended is read before whether it came: it may
 * come and then end. A rank in a debugger's hands is in another state than a stopped one, and is waited for. */
static zero_status_t check_late_ranks(zero_barrier_t *barrier, uint32_t epoch, const char *waiting_in)
{
    int64_t now = zero_now_ns();
    int stopped = -1;
    if (now - barrier->last_check_ns < LOOK_AFTER_NS)
        return ZERO_OK;
    barrier->last_check_ns = now;
    for (int rank = 0; rank < barrier->size; rank++) {
        if (!is_late(barrier, rank, epoch))
            continue;
        char state = process_state(barrier->seats[rank]);
        if (state == 'X' && is_late(barrier, rank, epoch))
            return fail_ended(barrier, rank, waiting_in);
        if (state == 'T' && stopped < 0)
            stopped = rank;
    }
    if (stopped != barrier->stopped_rank)
        barrier->n_checks_stopped = 0;
    barrier->n_checks_stopped += stopped >= 0;
    barrier->stopped_rank = stopped;
    return barrier->n_checks_stopped < STOPPED_LOOKS ? ZERO_OK : fail_stopped(barrier, stopped, waiting_in);
}

/* ---- Waiting ---- */

static bool passed(const zero_barrier_t *barrier, uint32_t epoch)
{
    return atomic_load_explicit(&barrier->seats[0]->epoch, memory_order_acquire) != epoch;
}

static bool spin(const zero_barrier_t *barrier, uint32_t epoch)
{
    const int64_t end = zero_now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < 32; i++) {
            if (passed(barrier, epoch))
                return true;
            relax();
        }
    } while (zero_now_ns() < end);
    return false;
}

static zero_status_t sleep_until_passed(zero_barrier_t *barrier, uint32_t epoch, const char *waiting_in)
{
    zero_barrier_entry_t *common = barrier->seats[0];
    const int64_t start = zero_now_ns();
    zero_status_t status = ZERO_OK;
    begin_checking(barrier);
    atomic_fetch_add(&common->n_asleep, 1);
    while (status == ZERO_OK && !passed(barrier, epoch)) {
        sleep_while(&common->epoch, epoch, LOOK_AFTER_NS);
        status = failure_status(barrier);
        if (status != ZERO_OK || passed(barrier, epoch))
            continue;
        status = check_late_ranks(barrier, epoch, waiting_in);
        if (status == ZERO_OK && zero_now_ns() - start > barrier->timeout_ns)
            status = fail_late(barrier, epoch, waiting_in);
    }
    atomic_fetch_sub(&common->n_asleep, 1);
    return passed(barrier, epoch) ? ZERO_OK : status;
}

static void let_pass(zero_barrier_t *barrier, uint32_t epoch)
{
    zero_barrier_entry_t *common = barrier->seats[0];
    atomic_store_explicit(&common->n_arrived, 0, memory_order_relaxed); /* published by the epoch */
    atomic_store(&common->epoch, epoch + 1);
    if (atomic_load(&common->n_asleep) != 0) /* who counts itself after this finds the new epoch in its futex call */
        wake_all(&common->epoch);
}

/* The others' hashes stand in the lines that tell whether they have come; their calls are read where one differs. */
static zero_status_t compare_calls(zero_barrier_t *barrier, uint32_t epoch)
{
    const zero_barrier_entry_t *own = barrier->seats[barrier->rank];
    for (int rank = 0; rank < barrier->size; rank++) {
        const zero_barrier_entry_t *other = barrier->seats[rank];
        if (own->call_hashes[epoch & 1] == other->call_hashes[epoch & 1])
            continue;
        if (claim_failure(barrier, ZERO_ERROR_MISMATCH))
            zero_call_mismatch(barrier->rank, &own->calls[epoch & 1], rank, &other->calls[epoch & 1]);
        return end_all_waits(barrier);
    }
    return ZERO_OK;
}

zero_status_t zero_barrier_wait(zero_barrier_t *barrier, const zero_call_t *call)
{
    zero_barrier_entry_t *common = barrier->seats[0], *own = barrier->seats[barrier->rank];
    ZERO_TRY(failure_status(barrier));
    const uint32_t epoch = atomic_load(&common->epoch); /* cannot move before this rank has come */
    own->calls[epoch & 1] = *call;
    own->call_hashes[epoch & 1] = zero_call_hash(call);
    atomic_store(&own->arrived, epoch + 1);
    if (atomic_fetch_add(&common->n_arrived, 1) + 1 == (uint32_t)barrier->size)
        let_pass(barrier, epoch);
    else if (!(barrier->may_spin && spin(barrier, epoch))) {
        char waiting_in[ZERO_CALL_TEXT_BYTES];
        ZERO_TRY(sleep_until_passed(barrier, epoch, zero_call_text(call, waiting_in)));
    }
    return compare_calls(barrier, epoch);
}

zero_status_t zero_barrier_check_peers(zero_barrier_t *barrier, const char *waiting_in)
{
    if (zero_now_ns() - barrier->last_check_ns > STOPPED_LOOKS * (int64_t)LOOK_AFTER_NS)
        begin_checking(barrier); /* what was seen that long ago does not count */
    ZERO_TRY(failure_status(barrier));
    return check_late_ranks(barrier, atomic_load(&barrier->seats[0]->epoch), waiting_in);
}

void zero_barrier_abort(zero_barrier_t *barrier)
{
    claim_failure(barrier, ZERO_ERROR_PEER);
    end_all_waits(barrier);
}

/* ---- Setting up ---- */

zero_status_t zero_barrier_join(zero_barrier_t *barrier)
{
    zero_barrier_entry_t *seat = barrier->seats[barrier->rank];
    char state;
    seat->pid = getpid();
    if (!read_process(seat->pid, &state, &seat->start_time)) {
        zero_log(ZERO_LOG_DEBUG, "cannot read /proc/%" PRId64 "/stat: peers could not see this rank end", seat->pid);
        return ZERO_ERROR_UNSUPPORTED;
    }
    CPU_ZERO(&seat->cores);
    sched_getaffinity(0, sizeof(seat->cores), &seat->cores); /* fails beyond 1024 cores: then nobody spins */
    return ZERO_OK;
}

void zero_barrier_open(zero_barrier_t *barrier)
{
    cpu_set_t cores;
    CPU_ZERO(&cores);
    for (int rank = 0; rank < barrier->size; rank++)
        CPU_OR(&cores, &cores, &barrier->seats[rank]->cores);
    barrier->may_spin = CPU_COUNT(&cores) >= barrier->size;
}
