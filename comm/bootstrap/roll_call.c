/* roll_call.c - see roll_call.h.
 *
 * Every rank sends a few words to every other in a collective that is polled. Those of a rank that has not come stay 0.
 * The collective is on the caller's communicator: collectives never match the program's own messages, not even wildcard
 * receives.
 */
#include "comm/bootstrap/roll_call.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/system.h"
#include "comm/host/mpi.h"
#include "comm/host/progress.h"

typedef struct entry {
    uint64_t kind; /* of the rank's communicator, + 1; 0 if the rank has not come */
    zero_host_t host;
} entry_t;

typedef struct roll_call {
    entry_t mine;
    entry_t of[]; /* [size] */
} roll_call_t;

/* Names the ranks that are missing. A rank of another host may be running and only be out of reach. */
static zero_status_t name_missing(const zero_comm_t *comm, const roll_call_t *calls)
{
    char missing[256] = "";
    const char *all = getenv("OMPI_COMM_WORLD_SIZE"), *local = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    const bool one_host = all && local && atoi(all) == atoi(local);
    for (int rank = 0; rank < comm->size; rank++)
        if (rank != comm->rank && calls->of[rank].kind == 0)
            zero_hosts_list_rank(comm, rank, missing, sizeof missing);
    return zero_fail(ZERO_ERROR_TIMEOUT, "rank %s did not come to %s within %g s (ZERO_TIMEOUT_S)%s", missing,
                     comm->call.name, (double)comm->timeout_ns * 1e-9,
                     one_host ? ""
                              : "; if they run, MPI cannot reach them: name the network between the hosts with mpirun "
                                "--mca btl_tcp_if_include eth0, say");
}

static zero_status_t compare_kinds(const zero_comm_t *comm, const roll_call_t *calls)
{
    static const char *const names[] = {[ZERO_COMM_AUTO] = "AUTO", [ZERO_COMM_MPI] = "MPI", [ZERO_COMM_NCCL] = "NCCL"};
    for (int rank = 1; rank < comm->size; rank++)
        if (calls->of[rank].kind != calls->of[0].kind)
            return zero_fail_collective(ZERO_ERROR_MISMATCH,
                                        "ranks call different things: rank %d is in %s(ZERO_COMM_%s), rank 0 is in "
                                        "%s(ZERO_COMM_%s)",
                                        rank, comm->call.name, names[calls->of[rank].kind - 1], comm->call.name,
                                        names[calls->of[0].kind - 1]);
    return ZERO_OK;
}

static zero_status_t take_hosts(zero_comm_t *comm, const roll_call_t *calls)
{
    comm->hosts = calloc((size_t)comm->size, sizeof *comm->hosts);
    if (!comm->hosts)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for a communicator of %d ranks", comm->size);
    comm->local_rank = comm->local_size = 0;
    for (int rank = 0; rank < comm->size; rank++) {
        bool is_local = calls->of[rank].host.id == calls->mine.host.id;
        comm->hosts[rank] = calls->of[rank].host;
        comm->local_rank += is_local && rank < comm->rank;
        comm->local_size += is_local;
    }
    return ZERO_OK;
}

/* On failure `calls` is not freed, because MPI may still write to it. */
zero_status_t zero_roll_call(zero_comm_t *comm, MPI_Comm mpi)
{
    MPI_Request request;
    roll_call_t *calls = calloc(1, sizeof *calls + (size_t)comm->size * sizeof calls->of[0]);
    if (!calls)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for a communicator of %d ranks", comm->size);
    calls->mine.kind = (uint64_t)comm->kind + 1;
    zero_host_find(&calls->mine.host);
    calls->of[comm->rank] = calls->mine;
    ZERO_TRY_MPI(MPI_Iallgather(&calls->mine, (int)sizeof calls->mine, MPI_BYTE, calls->of, (int)sizeof calls->mine,
                                MPI_BYTE, mpi, &request));
    zero_status_t status = zero_mpi_await(&request, comm->timeout_ns);
    if (status == ZERO_ERROR_TIMEOUT)
        return name_missing(comm, calls);
    ZERO_TRY(status);
    ZERO_TRY(compare_kinds(comm, calls));
    status = take_hosts(comm, calls);
    free(calls);
    return status;
}

/* ---- start watch ---- */
/* Every rank that has come runs this thread. The other ranks of its host find it in /proc by the thread's name,
 * whatever MPI is doing. Processes of this job are found by the job's name, which the launcher sets in their
 * environment. The launcher's wrapper processes have it too, so a rank has come if any of its processes has the thread.
 */

#define THREAD_NAME "zero-start"
#define JOB "PMIX_NAMESPACE=" /* set by Open MPI's launchers, as is PMIX_RANK */
#define RANK "PMIX_RANK="
#define MAX_LISTED 64

/* Set by zero_comm_on_late_start. */
static struct {
    zero_late_start_fn fn;
    void *user;
} on_late_start;

void zero_comm_on_late_start(zero_late_start_fn fn, void *user)
{
    on_late_start.fn = fn;
    on_late_start.user = user;
}

typedef enum presence { UNSEEN, MISSING, HERE } presence_t;

/* ---- Which ranks are here ---- */

/* Reads the first bytes of a file and ends them with two zeros. Returns their number; 0 if there is no such file. */
static size_t read_some(const char *path, char *text, size_t n_bytes)
{
    FILE *file = fopen(path, "re");
    size_t n = file ? fread(text, 1, n_bytes - 2, file) : 0;
    text[n] = text[n + 1] = '\0';
    if (file)
        fclose(file);
    return n;
}

/* Returns the value of "NAME=" in a list of zero-terminated strings; NULL if it is not in the list. */
static const char *value_of(const char *strings, const char *name)
{
    for (; *strings != '\0'; strings += strlen(strings) + 1)
        if (strncmp(strings, name, strlen(name)) == 0)
            return strings + strlen(name);
    return NULL;
}

static bool has_thread(const char *pid)
{
    char path[300], name[32];
    bool found = false;
    snprintf(path, sizeof path, "/proc/%.20s/task", pid);
    DIR *tasks = opendir(path);
    for (const struct dirent *task; !found && tasks && (task = readdir(tasks)) != NULL;) {
        snprintf(path, sizeof path, "/proc/%.20s/task/%.20s/comm", pid, task->d_name);
        size_t n = read_some(path, name, sizeof name);
        found = n == strlen(THREAD_NAME "\n") && memcmp(name, THREAD_NAME "\n", n) == 0;
    }
    if (tasks)
        closedir(tasks);
    return found;
}

/* Finds this job's ranks among the processes of this host. */
static void find_ranks(const char *job, presence_t *ranks, int n_ranks)
{
    static char environment[1 << 16];
    char path[64];
    DIR *processes = opendir("/proc");
    for (const struct dirent *process; processes && (process = readdir(processes)) != NULL;) {
        if (process->d_name[0] < '1' || process->d_name[0] > '9')
            continue;
        snprintf(path, sizeof path, "/proc/%.20s/environ", process->d_name);
        read_some(path, environment, sizeof environment);
        const char *its_job = value_of(environment, JOB), *its_rank = value_of(environment, RANK);
        int rank = its_rank ? atoi(its_rank) : -1;
        if (!its_job || strcmp(its_job, job) != 0 || rank < 0 || rank >= n_ranks || ranks[rank] == HERE)
            continue;
        ranks[rank] = has_thread(process->d_name) ? HERE : MISSING;
    }
    if (processes)
        closedir(processes);
}

/* Writes ": rank 1, 3" for the missing ranks of this host, or nothing if they are not known. */
static void name_late(char *text, size_t n_bytes)
{
    const char *job = getenv("PMIX_NAMESPACE"), *size = getenv("OMPI_COMM_WORLD_SIZE");
    int n_ranks = size ? atoi(size) : 0, n_listed = 0;
    size_t length = 0;
    text[0] = '\0';
    presence_t *ranks = job && n_ranks > 0 ? calloc((size_t)n_ranks, sizeof *ranks) : NULL;
    if (!ranks)
        return;
    find_ranks(job, ranks, n_ranks);
    for (int rank = 0; rank < n_ranks && n_listed < MAX_LISTED && length < n_bytes - 32; rank++)
        if (ranks[rank] == MISSING) {
            length += (size_t)snprintf(text + length, n_bytes - length, "%s%d", n_listed ? ", " : ": rank ", rank);
            n_listed++;
        }
    free(ranks);
}

static void log_missing_ranks(const zero_start_watch_t *watch)
{
    char missing[400];
    name_late(missing, sizeof missing);
    zero_log(ZERO_LOG_WARNING,
             "MPI_Init has waited for other ranks of this job for %g s (ZERO_TIMEOUT_S)%s: not every rank has come to "
             "zero_comm_create%s",
             (double)watch->timeout_ns * 1e-9, on_late_start.fn ? "" : ", and waits on", missing);
}

/* ---- The thread ---- */

static void *run(void *user)
{
    zero_start_watch_t *watch = user;
    int64_t end_ns = zero_now_ns() + watch->timeout_ns;
    struct timespec end = {.tv_sec = end_ns / 1000000000, .tv_nsec = end_ns % 1000000000};
    int error = 0;
    pthread_setname_np(pthread_self(), THREAD_NAME);
    pthread_mutex_lock(&watch->mutex);
    while (!watch->is_over && error != ETIMEDOUT)
        error = pthread_cond_timedwait(&watch->changed, &watch->mutex, &end);
    if (!watch->is_over)
        log_missing_ranks(watch);
    if (!watch->is_over && on_late_start.fn)
        on_late_start.fn(on_late_start.user);
    while (!watch->is_over) /* the other ranks look for this thread */
        pthread_cond_wait(&watch->changed, &watch->mutex);
    pthread_mutex_unlock(&watch->mutex);
    return NULL;
}

void zero_start_watch_begin(zero_start_watch_t *watch, int64_t timeout_ns)
{
    pthread_condattr_t by_clock;
    *watch = (zero_start_watch_t){.timeout_ns = timeout_ns};
    pthread_condattr_init(&by_clock);
    pthread_condattr_setclock(&by_clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&watch->mutex, NULL);
    pthread_cond_init(&watch->changed, &by_clock);
    pthread_condattr_destroy(&by_clock);
    watch->runs = zero_thread_create(&watch->thread, run, watch) == 0;
}

void zero_start_watch_end(zero_start_watch_t *watch)
{
    pthread_mutex_lock(&watch->mutex);
    watch->is_over = true;
    pthread_cond_signal(&watch->changed);
    pthread_mutex_unlock(&watch->mutex);
    if (watch->runs)
        pthread_join(watch->thread, NULL);
    pthread_cond_destroy(&watch->changed);
    pthread_mutex_destroy(&watch->mutex);
}
