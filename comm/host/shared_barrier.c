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

#include "base/log.h"
#include "base/system.h"
#include "comm/host/shared_barrier.h"

#define SPIN_NS 50000               /* about what it costs to sleep and be woken */
#define EXPLAIN_NS 100000000        /* to write a log line, if a core is to be had */
#define CHECK_INTERVAL_NS 100000000 /* a waiting rank checks its peers this often */
/* A rank is given up when it was stopped at so many checks in a row: 5 s. Checks are counted, not time: a job that is
 * suspended as a whole does not check itself meanwhile, so it is not at fault when it continues. */
#define N_STOPPED_CHECKS 50

_Static_assert(ATOMIC_INT_LOCK_FREE == 2, "atomics between processes must not hide a lock");

/* ---- Processes ---- */

/* Reads a process's state letter and start time; false if there is no such process. Uses system calls, because stdio
 * would allocate, and a rank that waits long must not allocate more than one that waits briefly. */
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
    const char *after_name = strrchr(text, ')'); /* the name itself may contain blanks and parentheses */
    return after_name && sscanf(after_name + 1,
                                " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %" SCNu64,
                                state, start_time) == 2;
}

/* Returns the state letter; 'X' if the process has ended, even if its parent has not reaped it yet. */
static char process_state(const zero_barrier_entry_t *entry)
{
    char state = 'X';
    uint64_t start_time = 0;
    if (!read_process(entry->pid, &state, &start_time) || start_time != entry->start_time || state == 'Z')
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
    syscall(SYS_futex, word, FUTEX_WAIT, value, &limit, NULL, 0); /* may wake early: callers check again */
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

/* Returns true on the one rank that may log the job's first failure. It must log and explain it before it wakes the
 * others, which may end the job. */
static bool claim_failure(zero_barrier_t *barrier, zero_status_t status)
{
    uint32_t none = 0;
    return atomic_compare_exchange_strong(&barrier->entries[0]->failure, &none, (uint32_t)status);
}

static zero_status_t failure_status(const zero_barrier_t *barrier)
{
    return (zero_status_t)atomic_load(&barrier->entries[0]->failure);
}

/* Gives the others the text of the failure. */
static void explain(zero_barrier_t *barrier, const char *text)
{
    zero_barrier_entry_t *common = barrier->entries[0];
    snprintf(common->failure_text, sizeof common->failure_text, "%s", text);
    atomic_store(&common->is_explained, 1);
}

/* Returns the job's failure, whose text becomes this rank's last error; ZERO_OK if there is none. The rank that claimed
 * it may be gone before it has explained it. */
static zero_status_t take_failure(const zero_barrier_t *barrier)
{
    const zero_barrier_entry_t *common = barrier->entries[0];
    const zero_status_t status = failure_status(barrier);
    if (status == ZERO_OK)
        return ZERO_OK;
    for (int64_t end = zero_now_ns() + EXPLAIN_NS; !atomic_load(&common->is_explained) && zero_now_ns() < end;)
        sched_yield();
    if (atomic_load(&common->is_explained))
        zero_note_error("%s", common->failure_text);
    else
        zero_note_error("another rank failed: %s", zero_status_text(status));
    return status;
}

static zero_status_t end_all_waits(const zero_barrier_t *barrier)
{
    wake_all(&barrier->entries[0]->epoch);
    return take_failure(barrier);
}

static bool is_late(const zero_barrier_t *barrier, int rank, uint32_t epoch)
{
    return atomic_load(&barrier->entries[rank]->arrived) != epoch + 1;
}

static zero_status_t fail_ended(zero_barrier_t *barrier, int rank, const char *waiting_in)
{
    if (claim_failure(barrier, ZERO_ERROR_PEER)) {
        zero_log(ZERO_LOG_ERROR,
                 "rank %d (process %" PRId64 ") has exited or was killed while other ranks wait for it in %s",
                 barrier->first_rank + rank, barrier->entries[rank]->pid, waiting_in);
        explain(barrier, zero_last_error());
    }
    return end_all_waits(barrier);
}

static zero_status_t fail_stopped(zero_barrier_t *barrier, int rank, const char *waiting_in)
{
    if (claim_failure(barrier, ZERO_ERROR_TIMEOUT)) {
        zero_log(ZERO_LOG_ERROR,
                 "rank %d (process %" PRId64 ") has been stopped (SIGSTOP, say) for %g s while other ranks wait for it "
                 "in %s",
                 barrier->first_rank + rank, barrier->entries[rank]->pid, N_STOPPED_CHECKS * (CHECK_INTERVAL_NS * 1e-9),
                 waiting_in);
        explain(barrier, zero_last_error());
    }
    return end_all_waits(barrier);
}

static zero_status_t fail_late(zero_barrier_t *barrier, uint32_t epoch, const char *waiting_in)
{
    char late[512] = "";
    size_t length = 0;
    for (int rank = 0; rank < barrier->size; rank++) {
        const zero_barrier_entry_t *entry = barrier->entries[rank];
        if (is_late(barrier, rank, epoch) && length < sizeof(late) - 80)
            length += (size_t)snprintf(late + length, sizeof(late) - length, "%srank %d (process %" PRId64 ", %s)",
                                       length ? ", " : "", barrier->first_rank + rank, entry->pid,
                                       state_text(process_state(entry)));
    }
    if (claim_failure(barrier, ZERO_ERROR_TIMEOUT)) {
        zero_log(ZERO_LOG_ERROR, "%s did not come to %s within %g s (ZERO_TIMEOUT_S)", late, waiting_in,
                 (double)barrier->timeout_ns * 1e-9);
        explain(barrier, zero_last_error());
    }
    return end_all_waits(barrier);
}

static void begin_checking(zero_barrier_t *barrier)
{
    barrier->last_check_ns = zero_now_ns();
    barrier->n_checks_stopped = 0;
    barrier->stopped_rank = -1;
}

/* Checks the ranks that have not come, if the interval is over. Whether a rank has ended is read before whether it
 * came, since it may come and then end. A rank under a debugger is in another state ('t') than a stopped one, and is
 * waited for. */
static zero_status_t check_late_ranks(zero_barrier_t *barrier, uint32_t epoch, const char *waiting_in)
{
    int64_t now = zero_now_ns();
    int stopped = -1;
    if (now - barrier->last_check_ns < CHECK_INTERVAL_NS)
        return ZERO_OK;
    barrier->last_check_ns = now;
    for (int rank = 0; rank < barrier->size; rank++) {
        if (!is_late(barrier, rank, epoch))
            continue;
        char state = process_state(barrier->entries[rank]);
        if (state == 'X' && is_late(barrier, rank, epoch))
            return fail_ended(barrier, rank, waiting_in);
        if (state == 'T' && stopped < 0)
            stopped = rank;
    }
    if (stopped != barrier->stopped_rank)
        barrier->n_checks_stopped = 0;
    barrier->n_checks_stopped += stopped >= 0;
    barrier->stopped_rank = stopped;
    return barrier->n_checks_stopped < N_STOPPED_CHECKS ? ZERO_OK : fail_stopped(barrier, stopped, waiting_in);
}

/* ---- Waiting ---- */

static bool passed(const zero_barrier_t *barrier, uint32_t epoch)
{
    return atomic_load_explicit(&barrier->entries[0]->epoch, memory_order_acquire) != epoch;
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
    zero_barrier_entry_t *common = barrier->entries[0];
    const int64_t start = zero_now_ns();
    zero_status_t status = ZERO_OK;
    begin_checking(barrier);
    atomic_fetch_add(&common->n_asleep, 1);
    while (status == ZERO_OK && !passed(barrier, epoch)) {
        sleep_while(&common->epoch, epoch, CHECK_INTERVAL_NS);
        status = take_failure(barrier);
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
    zero_barrier_entry_t *common = barrier->entries[0];
    atomic_store_explicit(&common->n_arrived, 0, memory_order_relaxed); /* published by the epoch */
    atomic_store(&common->epoch, epoch + 1);
    if (atomic_load(&common->n_asleep) != 0) /* a rank that adds itself later finds the new epoch in its futex call */
        wake_all(&common->epoch);
}

/* Fails if a rank is in another call. Reads only the hashes, which share a cache line with `arrived`; the calls
 * themselves are read only if a hash differs. */
static zero_status_t compare_calls(zero_barrier_t *barrier, uint32_t epoch)
{
    const zero_barrier_entry_t *own = barrier->entries[barrier->rank];
    for (int rank = 0; rank < barrier->size; rank++) {
        const zero_barrier_entry_t *other = barrier->entries[rank];
        if (own->call_hashes[epoch & 1] == other->call_hashes[epoch & 1])
            continue;
        if (claim_failure(barrier, ZERO_ERROR_MISMATCH)) {
            zero_call_mismatch(barrier->first_rank + barrier->rank, &own->calls[epoch & 1], barrier->first_rank + rank,
                               &other->calls[epoch & 1]);
            explain(barrier, zero_last_error());
        }
        return end_all_waits(barrier);
    }
    return ZERO_OK;
}

zero_status_t zero_barrier_wait(zero_barrier_t *barrier, const zero_call_t *call)
{
    zero_barrier_entry_t *common = barrier->entries[0], *own = barrier->entries[barrier->rank];
    ZERO_TRY(take_failure(barrier));
    const uint32_t epoch = atomic_load(&common->epoch); /* cannot change before this rank has come */
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
    if (zero_now_ns() - barrier->last_check_ns > N_STOPPED_CHECKS * (int64_t)CHECK_INTERVAL_NS)
        begin_checking(barrier); /* checks from that long ago do not count */
    ZERO_TRY(take_failure(barrier));
    return check_late_ranks(barrier, atomic_load(&barrier->entries[0]->epoch), waiting_in);
}

void zero_barrier_abort(zero_barrier_t *barrier)
{
    char text[64];
    snprintf(text, sizeof text, "rank %d has ended the job (zero_comm_abort)", barrier->first_rank + barrier->rank);
    if (claim_failure(barrier, ZERO_ERROR_PEER))
        explain(barrier, text);
    wake_all(&barrier->entries[0]->epoch);
}

/* ---- Setting up ---- */

zero_status_t zero_barrier_join(zero_barrier_t *barrier)
{
    zero_barrier_entry_t *entry = barrier->entries[barrier->rank];
    char state;
    entry->pid = getpid();
    if (!read_process(entry->pid, &state, &entry->start_time)) {
        zero_log(ZERO_LOG_DEBUG, "cannot read /proc/%" PRId64 "/stat: peers could not see this rank end", entry->pid);
        return ZERO_ERROR_UNSUPPORTED;
    }
    CPU_ZERO(&entry->cores);
    sched_getaffinity(0, sizeof(entry->cores), &entry->cores); /* fails beyond 1024 cores: then no rank spins */
    return ZERO_OK;
}

void zero_barrier_open(zero_barrier_t *barrier)
{
    cpu_set_t cores;
    CPU_ZERO(&cores);
    for (int rank = 0; rank < barrier->size; rank++)
        CPU_OR(&cores, &cores, &barrier->entries[rank]->cores);
    barrier->may_spin = CPU_COUNT(&cores) >= barrier->size;
}
