/* run_info.c - see run_info.h. docs/training.md lists the keys. Strings that are not UTF-8, such as paths, are left
 * out.
 */
#include "train/run_info.h"

#include <jansson.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "train/options/options_table.h"
#include "train/report/report.h"
#include "base/json_build.h"

#define MAX_NAME 128
#ifdef __clang__
#define COMPILER __VERSION__ /* "Clang 14.0.6" */
#else
#define COMPILER "gcc " __VERSION__
#endif

/* What one host tells of itself; sent as it is to rank 0. */
typedef struct machine {
    char host[MAX_NAME], cpu[MAX_NAME], gpu[MAX_NAME], kernel[MAX_NAME];
    int64_t n_cores, memory_bytes;
    int32_t n_ranks;
} machine_t;

/* Copies the value of a line "key : value" of /proc/cpuinfo. Leaves `value` as it is if there is no such line. */
static void read_cpu_name(char value[MAX_NAME])
{
    char line[512];
    FILE *file = fopen("/proc/cpuinfo", "re");
    while (file && fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon)
            continue;
        colon += 1 + strspn(colon + 1, " \t");
        snprintf(value, MAX_NAME, "%.*s", (int)strcspn(colon, "\n"), colon);
        break;
    }
    if (file)
        fclose(file);
}

static machine_t this_machine(const zero_comm_t *comm, const zero_device_t *device)
{
    machine_t machine = {.n_cores = sysconf(_SC_NPROCESSORS_ONLN), .n_ranks = zero_comm_local_size(comm)};
    struct utsname system;
    uint64_t memory;
    zero_host_memory(&memory, NULL);
    machine.memory_bytes = (int64_t)memory;
    gethostname(machine.host, sizeof machine.host - 1);
    if (uname(&system) == 0) {
        snprintf(machine.kernel, sizeof machine.kernel, "%.16s %.64s", system.sysname, system.release);
        snprintf(machine.cpu, sizeof machine.cpu, "%s", system.machine);
    }
    read_cpu_name(machine.cpu);
    snprintf(machine.gpu, sizeof machine.gpu, "%s", zero_device_name(device));
    return machine;
}

static void add_machine(json_t **list, const machine_t *machine)
{
    json_t *object = json_object();
    zero_json_set(&object, "name", json_string(machine->host));
    zero_json_set(&object, "ranks", json_integer(machine->n_ranks));
    zero_json_set(&object, "cpu", json_string(machine->cpu));
    zero_json_set(&object, "cores", json_integer(machine->n_cores));
    zero_json_set(&object, "memory", json_integer(machine->memory_bytes));
    if (machine->gpu[0])
        zero_json_set(&object, "gpu", json_string(machine->gpu));
    zero_json_set(&object, "kernel", json_string(machine->kernel));
    zero_json_append(list, object);
}

/* Appends every host's machine, in the order of their lowest ranks. [collective] */
static zero_status_t collect_machines(zero_comm_t *comm, const zero_device_t *device, json_t **list)
{
    const int n_ranks = zero_comm_size(comm);
    int *hosts = calloc((size_t)n_ranks, sizeof *hosts);
    zero_status_t status =
        zero_comm_agree(comm, hosts && *list ? ZERO_OK : report_rank_error(ZERO_ERROR_MEMORY, "out of memory"));
    const int n_hosts = status == ZERO_OK ? zero_comm_hosts(comm, hosts) : 0;
    for (int host = 0, first = 0; host < n_hosts && status == ZERO_OK; host++, first = 0) {
        while (hosts[first] != host)
            first++;
        machine_t machine = this_machine(comm, device);
        status = zero_comm_broadcast(comm, &machine, sizeof machine, first);
        add_machine(list, &machine);
    }
    free(hosts);
    return status;
}

static json_t *memory_object(const zero_engine_t *engine)
{
    const zero_memory_t held = zero_engine_memory(engine);
    json_t *object = json_object();
    for (int c = 0; c < ZERO_MEMORY_N_CATEGORIES; c++)
        zero_json_set(&object, zero_memory_name((zero_memory_category_t)c), json_integer((json_int_t)held.bytes[c]));
    zero_json_set(&object, "pinned host memory", json_integer((json_int_t)held.pinned_bytes));
    return object;
}

static void set_directory(json_t **run)
{
    char directory[OPTIONS_MAX_PATH];
    if (getcwd(directory, sizeof directory))
        zero_json_set(run, "directory", json_string(directory));
}

zero_status_t run_info_text(const options_t *options, zero_comm_t *comm, const zero_device_t *device,
                            const zero_engine_t *engine, uint64_t n_params, char **text)
{
    *text = NULL;
    if (!options->log.metrics[0])
        return ZERO_OK;
    json_t *machines = json_array(), *run = json_object();
    zero_status_t status = collect_machines(comm, device, &machines);
    zero_json_set(&run, "program", json_sprintf("zerotrain %s", zero_version()));
    zero_json_set(&run, "compiler", json_string(COMPILER));
    zero_json_set(&run, "started", json_integer((json_int_t)time(NULL)));
    zero_json_set(&run, "ranks", json_integer(zero_comm_size(comm)));
    zero_json_set(&run, "threads", json_integer(omp_get_max_threads()));
    zero_json_set(&run, "transport", json_string(zero_engine_transport(engine)));
    zero_json_set(&run, "hosts", machines);
    zero_json_set(&run, "parameters", json_integer((json_int_t)n_params));
    zero_json_set(&run, "memory", memory_object(engine));
    set_directory(&run);
    zero_json_set(&run, "config", options_json(options));
    if (status == ZERO_OK && zero_comm_rank(comm) == 0) {
        *text = run ? json_dumps(run, 0) : NULL;
        status = *text ? ZERO_OK : report_error(ZERO_ERROR_MEMORY, "[log] metrics: out of memory");
    }
    json_decref(run);
    status = report_agree(comm, status);
    if (status != ZERO_OK) {
        free(*text);
        *text = NULL;
    }
    return status;
}
