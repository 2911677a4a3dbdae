/* process.c - see process.h. */
#include "train/report/process.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "train/report/report.h"

#define MAX_PHASES 16

static struct {
    double begin_s, last_s;
    int n;
    struct {
        const char *name;
        double s;
    } phases[MAX_PHASES];
} start;

void phases_begin(void)
{
    start.n = 0;
    start.begin_s = start.last_s = clock_now_s();
}

void phases_end(const char *name)
{
    const double now_s = clock_now_s();
    if (start.n < MAX_PHASES) {
        start.phases[start.n].name = name;
        start.phases[start.n++].s = now_s - start.last_s;
    }
    start.last_s = now_s;
}

void phases_text(char *text, size_t n_bytes)
{
    snprintf(text, n_bytes, "%.1f s:", start.last_s - start.begin_s);
    for (int i = 0; i < start.n; i++) {
        const size_t length = strlen(text);
        snprintf(text + length, n_bytes - length, "%s %s %.1f", i > 0 ? "," : "", start.phases[i].name,
                 start.phases[i].s);
    }
}

/* ---- stop ---- */

#define SAME_SIGNAL_NS INT64_C(1000000000) /* two within this time count as one */

static const struct {
    int number;
    const char *name;
    int insists; /* a second such signal ends the process */
} signals[] = {{SIGTERM, "SIGTERM", 1}, {SIGINT, "SIGINT", 1}, {SIGHUP, "SIGHUP", 0}, {SIGUSR1, "SIGUSR1", 0}};
#define N_SIGNALS (sizeof signals / sizeof signals[0])

/* Handlers run in any thread, in the middle of anything: they use nothing but these. */
static atomic_int requested;
static _Atomic int64_t insisted_ns; /* when the first SIGTERM or SIGINT came; 0: none */

void stop_request(int number)
{
    int none = 0;
    atomic_compare_exchange_strong(&requested, &none, number);
}

static void insist(int number)
{
    int64_t first_ns = 0, ns = zero_now_ns();
    stop_request(number);
    if (atomic_compare_exchange_strong(&insisted_ns, &first_ns, ns) || ns - first_ns < SAME_SIGNAL_NS)
        return;
    signal(number, SIG_DFL);
    raise(number); /* takes effect when this handler returns */
}

/* Installs a signal's handler unless the signal is ignored. */
static void handle(int number, const struct sigaction *action)
{
    struct sigaction before;
    if (sigaction(number, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
        sigaction(number, action, NULL);
}

void stop_listen(void)
{
    for (size_t i = 0; i < N_SIGNALS; i++) {
        struct sigaction action = {.sa_handler = signals[i].insists ? insist : stop_request, .sa_flags = SA_RESTART};
        sigemptyset(&action.sa_mask);
        handle(signals[i].number, &action);
    }
}

/* Whether a launcher has started this process. */
static bool is_launched(void)
{
    return getenv("PMIX_RANK") || getenv("PMI_RANK");
}

static pid_t launcher; /* its daemon on this host; 0: none has started this process */

/* Ends the process. A SIGTERM from the launcher means that the job has failed: that is no stop. Other signals the
 * launcher forwards to every rank, and rank 0 alone writes the line. */
static void end_at_start(int number, siginfo_t *info, void *unused)
{
    char line[160];
    const bool is_handed_on = launcher != 0 && info->si_pid == launcher;
    (void)unused;
    held_write();
    if (held_is_any() || (is_handed_on && number == SIGTERM)) {
        signal(number, SIG_DFL);
        raise(number); /* takes effect when this handler returns */
        return;
    }
    char *end = stpcpy(stpcpy(line, "zerotrain: "), stop_signal_name(number));
    end = stpcpy(end, ": stopped before the first step of this run: there is nothing to save\n");
    if (!is_handed_on || report_me.rank == 0)
        (void)!write(STDERR_FILENO, line, (size_t)(end - line));
    _exit(STOP_EXIT_CODE);
}

void stop_at_start(void)
{
    launcher = is_launched() ? getppid() : 0;
    for (size_t i = 0; i < N_SIGNALS; i++) {
        struct sigaction action = {.sa_sigaction = end_at_start, .sa_flags = SA_SIGINFO};
        sigfillset(&action.sa_mask);
        handle(signals[i].number, &action);
    }
}

void stop_with_launcher(void)
{
    if (is_launched())
        prctl(PR_SET_PDEATHSIG, SIGTERM);
}

int stop_requested(void)
{
    return atomic_load(&requested);
}

const char *stop_signal_name(int signal_number)
{
    for (size_t i = 0; i < N_SIGNALS; i++)
        if (signals[i].number == signal_number)
            return signals[i].name;
    return signal_number == STOP_FOR_LOG ? "a log cannot be written" : "a signal";
}
