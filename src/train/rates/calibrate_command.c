/* calibrate_command.c - see calibrate_command.h. Rank 0 prints and writes. */
#include "train/rates/calibrate_command.h"

#include <dirent.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "train/rates/kernel_bench.h"
#include "train/rates/rates_cache.h"
#include "train/report/process.h"
#include "train/report/report.h"

/* ---- core waits ---- */
/* Linux counts it for each thread (/proc/self/task, schedstat). */

/* Returns a thread's nanoseconds: the second of three numbers. */
static double waits_of(const char *thread)
{
    char path[300];
    unsigned long long ran = 0, waited = 0;
    snprintf(path, sizeof path, "/proc/self/task/%s/schedstat", thread);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0.0;
    int n = fscanf(file, "%llu %llu", &ran, &waited);
    fclose(file);
    return n == 2 ? (double)waited : 0.0;
}

double core_waits_s(void)
{
    double ns = 0.0;
    DIR *threads = opendir("/proc/self/task");
    if (!threads)
        return 0.0;
    for (const struct dirent *entry = readdir(threads); entry; entry = readdir(threads))
        ns += entry->d_name[0] == '.' ? 0.0 : waits_of(entry->d_name);
    closedir(threads);
    return ns * 1e-9;
}

/* ---- calibrate command ---- */

/* The share of their time for which a CPU's threads may wait for a core. Alone on a machine they wait for less than 1%.
 */
#define MOST_WAITS 0.05

static void name_machine(const zero_comm_t *comm, const zero_device_t *device, fit_measured_t *measured)
{
    time_t now = time(NULL);
    struct tm utc;
    measured->is_gpu = zero_device_get_type(device) != ZERO_DEVICE_CPU;
    measured->ranks = zero_comm_local_size(comm);
    measured->threads = measured->is_gpu ? 0 : omp_get_max_threads();
    if (measured->is_gpu)
        snprintf(measured->device, sizeof measured->device, "%s", zero_device_name(device));
    else
        fit_cpu_name(measured->device, sizeof measured->device);
    if (measured->is_gpu)
        measured->rates.memory_bytes = (double)zero_device_available(device) + FIT_CUDA_BYTES;
    strftime(measured->date, sizeof measured->date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
}

static void print(fit_measured_t *m)
{
    printf("%s, %d rank%s on each host", m->device, m->ranks, m->ranks == 1 ? "" : "s");
    if (!m->is_gpu)
        printf(", %d thread%s each", m->threads, m->threads == 1 ? "" : "s");
    printf("\n\n");
    for (int i = 0; i < n_fit_rate_rows; i++) {
        const fit_rate_row_t *row = &fit_rate_rows[i];
        const double *numbers = (const double *)((const char *)&m->rates + row->offset);
        if (isnan(numbers[0]))
            continue;
        printf("%-32s", row->title);
        for (int k = 0; k < row->n; k++)
            printf(" %9.1f", numbers[k] / row->unit);
        printf(" %s\n", row->unit_name);
    }
}

/* Warns if a CPU's ranks were slowed down by other processes. With more threads than cores they slow each other. */
static void warn_of_others(const fit_measured_t *m, double waits_share)
{
    if (!m->is_gpu && m->ranks * m->threads <= sysconf(_SC_NPROCESSORS_ONLN) && waits_share > MOST_WAITS)
        printf("\nToo low: the threads waited for a core %.0f%% of the time, since other processes ran. Measure again "
               "when nothing else runs.\n",
               100.0 * waits_share);
}

static zero_status_t keep(fit_measured_t *measured, double waits_share)
{
    char path[OPTIONS_MAX_PATH];
    print(measured);
    warn_of_others(measured, waits_share);
    ZERO_TRY(fit_cache_save(measured));
    if (fit_cache_path(path))
        printf("\nkept in %s, for fit, auto settings and advice\n", path);
    return ZERO_OK;
}

/* Measures, and sets the share of their time for which all ranks' threads waited for a core. */
static zero_status_t measure(zero_comm_t *comm, zero_device_t *device, fit_measured_t *measured, double *waits_share)
{
    double begin = clock_now_s(), before = core_waits_s();
    ZERO_TRY(measure_kernels(comm, device, &measured->rates));
    ZERO_TRY(measure_engine(comm, device, &measured->rates));
    double seconds = clock_now_s() - begin, waited = core_waits_s() - before;
    ZERO_TRY(zero_comm_sum(comm, &waited, 1));
    *waits_share = waited / (seconds * fmax(measured->threads, 1.0) * (double)zero_comm_size(comm));
    return ZERO_OK;
}

zero_status_t calibrate_command(zero_device_type_t type, zero_comm_t *comm)
{
    zero_device_t *device;
    fit_measured_t measured = {0};
    double waits_share = 0.0;
    fit_measured_clear(&measured);
    ZERO_TRY(report_agree(comm, zero_device_create(type, comm, &device)));
    name_machine(comm, device, &measured);
    zero_status_t status = measure(comm, device, &measured, &waits_share);
    zero_device_destroy(device);
    ZERO_TRY(status);
    return report_agree(comm, zero_comm_rank(comm) == 0 ? keep(&measured, waits_share) : ZERO_OK);
}
