/* gpu_processes.c - see device.h.
 *
 * NVML (libnvidia-ml.so.1) comes with the driver and is loaded only here, so that neither building nor running needs
 * it. What it declares is repeated below, as in its header nvml.h; functions are found by their versioned names.
 */
#include "zero/device/device.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libnvidia-ml.so.1"
#define MOST 256 /* processes of a GPU */

enum { NVML_SUCCESS = 0 };
#define NVML_NOT_AVAILABLE UINT64_MAX /* in place of a process's bytes */

typedef struct nvml_device *nvml_device_t;

typedef struct nvml_process { /* of the functions of version 2 and 3 */
    unsigned pid;
    unsigned long long n_bytes;
    unsigned gpu_instance, compute_instance;
} nvml_process_t;

typedef struct nvml_process_v1 {
    unsigned pid;
    unsigned long long n_bytes;
} nvml_process_v1_t;

typedef struct nvml {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    int (*find)(const char *pci_address, nvml_device_t *device);
    int (*processes)(nvml_device_t device, unsigned *n, nvml_process_t *processes); /* NULL: an old driver */
    int (*processes_v1)(nvml_device_t device, unsigned *n, nvml_process_v1_t *processes);
    const char *(*text_of)(int error);
} nvml_t;

static void *symbol(const nvml_t *nvml, const char *name)
{
    return dlsym(nvml->library, name);
}

/* POSIX promises that a function's address can be had so; C does not. */
#define FIND(field, name)                                                                                              \
    do {                                                                                                               \
        void *address = symbol(nvml, name);                                                                            \
        memcpy(&nvml->field, &address, sizeof address);                                                                \
    } while (0)

static bool load(nvml_t *nvml)
{
    *nvml = (nvml_t){.library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL)};
    if (!nvml->library)
        return false;
    FIND(init, "nvmlInit_v2");
    FIND(shutdown, "nvmlShutdown");
    FIND(find, "nvmlDeviceGetHandleByPciBusId_v2");
    FIND(text_of, "nvmlErrorString");
    FIND(processes, "nvmlDeviceGetComputeRunningProcesses_v3");
    if (!nvml->processes)
        FIND(processes, "nvmlDeviceGetComputeRunningProcesses_v2");
    FIND(processes_v1, "nvmlDeviceGetComputeRunningProcesses");
    return nvml->init && nvml->shutdown && nvml->find && nvml->text_of && (nvml->processes || nvml->processes_v1);
}

static int list(const nvml_t *nvml, nvml_device_t device, unsigned *n, nvml_process_t *processes)
{
    nvml_process_v1_t old[MOST];
    if (nvml->processes)
        return nvml->processes(device, n, processes);
    int error = nvml->processes_v1(device, n, old);
    for (unsigned i = 0; error == NVML_SUCCESS && i < *n && i < MOST; i++)
        processes[i] = (nvml_process_t){.pid = old[i].pid, .n_bytes = old[i].n_bytes};
    return error;
}

static int by_bytes(const void *a, const void *b)
{
    const nvml_process_t *p = a, *q = b;
    return p->n_bytes != q->n_bytes ? (p->n_bytes > q->n_bytes ? -1 : 1) : (p->pid > q->pid) - (p->pid < q->pid);
}

static void read_name(int64_t pid, char *name, int n_bytes)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%" PRId64 "/comm", pid);
    FILE *file = fopen(path, "re");
    name[0] = 0;
    if (!file)
        return;
    if (!fgets(name, n_bytes, file))
        name[0] = 0;
    name[strcspn(name, "\n")] = 0;
    fclose(file);
}

static void store_processes(nvml_process_t *processes, unsigned n, zero_device_usage_t *usage)
{
    for (unsigned i = 0; i < n; i++) /* or it would be the largest */
        processes[i].n_bytes = processes[i].n_bytes == NVML_NOT_AVAILABLE ? 0 : processes[i].n_bytes;
    qsort(processes, n, sizeof *processes, by_bytes);
    usage->n_processes = n < ZERO_MAX_PROCESSES ? (int)n : ZERO_MAX_PROCESSES;
    for (int i = 0; i < usage->n_processes; i++) {
        usage->processes[i].pid = processes[i].pid;
        usage->processes[i].n_bytes = processes[i].n_bytes;
        read_name(usage->processes[i].pid, usage->processes[i].name, sizeof usage->processes[i].name);
    }
    if (n == 0)
        snprintf(usage->why_unknown, sizeof usage->why_unknown,
                 "the driver names no process; those of other containers are not shown");
}

static int list_users(const nvml_t *nvml, const char *pci_address, zero_device_usage_t *usage)
{
    nvml_device_t device;
    nvml_process_t processes[MOST];
    unsigned n = MOST;
    int error = nvml->find(pci_address, &device);
    if (error == NVML_SUCCESS)
        error = list(nvml, device, &n, processes);
    if (error == NVML_SUCCESS)
        store_processes(processes, n < MOST ? n : MOST, usage);
    return error;
}

void zero_gpu_find_processes(const char *pci_address, zero_device_usage_t *usage)
{
    nvml_t nvml;
    int error = NVML_SUCCESS;
    usage->n_processes = 0;
    usage->why_unknown[0] = 0;
    if (!load(&nvml)) {
        snprintf(usage->why_unknown, sizeof usage->why_unknown, nvml.library ? "%s lacks a function" : "there is no %s",
                 LIBRARY);
    } else {
        error = nvml.init();
        if (error == NVML_SUCCESS) {
            error = list_users(&nvml, pci_address, usage);
            nvml.shutdown();
        }
        if (error != NVML_SUCCESS)
            snprintf(usage->why_unknown, sizeof usage->why_unknown, "NVML: %s", nvml.text_of(error));
    }
    if (nvml.library)
        dlclose(nvml.library);
}
