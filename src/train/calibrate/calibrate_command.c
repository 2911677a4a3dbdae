/* calibrate_command.c - see calibrate_command.h. Rank 0 prints and writes. */
#include "train/calibrate/calibrate_command.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "train/calibrate/probe.h"
#include "train/report/report.h"

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

static zero_status_t keep(fit_measured_t *measured)
{
    char path[OPTIONS_MAX_PATH];
    print(measured);
    TRY(fit_cache_save(measured));
    if (fit_cache_path(path))
        printf("\nkept in %s, for fit, auto settings and advice\n", path);
    return ZERO_OK;
}

zero_status_t calibrate_command(const options_t *o, zero_comm_t *comm)
{
    zero_device_t *device;
    fit_measured_t measured = {0};
    fit_measured_clear(&measured);
    TRY(report_agree(comm, zero_device_create((zero_device_type_t)o->device.type, comm, &device)));
    name_machine(comm, device, &measured);
    zero_status_t status = measure_kernels(comm, device, &measured.rates);
    if (status == ZERO_OK)
        status = measure_engine(comm, device, &measured.rates);
    zero_device_destroy(device);
    TRY(status);
    return report_agree(comm, zero_comm_rank(comm) == 0 ? keep(&measured) : ZERO_OK);
}
