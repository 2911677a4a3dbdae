/* run_report.c - what a training run says: when it starts, and of each step. */
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/json_build.h"
#include "train/model/fp8.h"
#include "train/model/lora.h"
#include "train/options/families.h"
#include "train/options/lora_targets.h"
#include "train/options/options_table.h"
#include "train/report/process.h"
#include "train/report/report.h"
#include "train/report/utf8.h"
#include "train/run.h"

/* ---- run info ---- */
/* Docs/training.md lists the keys. */

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
    zero_json_set(&object, "name", utf8_json(machine->host));
    zero_json_set(&object, "ranks", json_integer(machine->n_ranks));
    zero_json_set(&object, "cpu", utf8_json(machine->cpu));
    zero_json_set(&object, "cores", json_integer(machine->n_cores));
    zero_json_set(&object, "memory", json_integer(machine->memory_bytes));
    if (machine->gpu[0])
        zero_json_set(&object, "gpu", utf8_json(machine->gpu));
    zero_json_set(&object, "kernel", utf8_json(machine->kernel));
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
        zero_json_set(run, "directory", utf8_json(directory));
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

/* ---- run report ---- */

/* ---- the start ---- */

/* Says so if the number of ranks decides what a step or a pass computes. */
static void report_batches(const options_t *o)
{
    if (o->train.asked_global == 0)
        report("[train] global_batch is not set: results depend on the number of ranks");
    else if (o->train.asked_micro == 0 || o->train.asked_micro == MICRO_BATCH_AUTO)
        report("[train] micro_batch is %s: the last bits of results depend on the number of ranks",
               o->train.asked_micro == 0 ? "not set" : "auto");
}

/* Says so if a setting is for stage 3 alone, and this run is at another, or has no parameters to gather. */
static void report_stage_3(const options_t *o, int n_ranks)
{
    const bool gathers = o->zero.stage == 3 && (n_ranks > 1 || o->zero.offload == OFFLOAD_ALL);
    const struct {
        const char *key;
        bool is_set;
    } settings[] = {{"shard_group", o->zero.shard_group != ZERO_SHARD_GROUP_WORLD},
                    {"keep", o->zero.keep > 0},
                    {"prefetch", option_is_given(o, option_row_find("zero", "prefetch"))}};
    for (size_t i = 0; !gathers && i < sizeof settings / sizeof settings[0]; i++)
        if (settings[i].is_set && o->zero.stage < 3)
            report("[zero] %s changes nothing at stage %lld: every rank has all parameters", settings[i].key,
                   (long long)o->zero.stage);
        else if (settings[i].is_set)
            report("[zero] %s changes nothing on one rank: it has all parameters", settings[i].key);
}

/* Says what makes results depend on how many ranks or threads compute them, in their last bits. */
static void report_bits(const run_t *run)
{
    const options_t *o = run->session.options;
    bool is_on_cpu = zero_device_get_type(run->session.device) == ZERO_DEVICE_CPU;
    report_batches(o);
    if (o->zero.stage < 2 && run->micro_steps > 1 && !o->zero.reduce_every_micro_step)
        report("[zero] reduce_every_micro_step = false: the last bits of results depend on the number of ranks");
    if (o->zero.stage < 2 && run->micro_steps == 1 && !o->zero.reduce_every_micro_step)
        report("[zero] reduce_every_micro_step changes nothing here: a step is one micro-step");
    if (o->zero.reduction == REDUCTION_NCCL && is_on_cpu)
        report("[zero] reduction = nccl changes nothing here: on the CPU gradients are summed in the order of "
               "micro-batches");
    else if (o->zero.reduction == REDUCTION_NCCL)
        report("[zero] reduction = nccl: the last bits of results depend on the number of ranks");
    if (is_on_cpu)
        report("%d thread%s per rank (OMP_NUM_THREADS)%s", omp_get_max_threads(), omp_get_max_threads() == 1 ? "" : "s",
               model_bits_depend_on_threads() ? ": on this CPU the last bits of results depend on it" : "");
}

/* Says what of a rank is in pinned host memory. */
static void report_offload(const run_t *run, const zero_memory_t *held)
{
    const options_t *o = run->session.options;
    const bool on_cpu = zero_device_get_type(run->session.device) == ZERO_DEVICE_CPU;
    const bool offloads = o->zero.offload != OFFLOAD_NONE;
    const char *params = o->zero.offload == OFFLOAD_ALL ? " and of parameters" : "";
    const uint64_t inputs = run->session.model.pinned_bytes, state = held->pinned_bytes - inputs;
    if (offloads && state > 0)
        report("%.1f MiB of AdamW's state and gradients%s are in pinned host memory", (double)state / 1048576.0,
               params);
    else if (offloads && on_cpu)
        report("[zero] offload changes nothing here: on the CPU all is in host memory");
    else if (offloads)
        report("[zero] offload: nothing is offloaded, all of AdamW's state is on the GPUs");
    if (inputs > 0)
        report("%.1f MiB of the first %lld layers' inputs are in pinned host memory", (double)inputs / 1048576.0,
               (long long)options_offloaded_blocks(&o->model));
    else if (o->model.offload_activations > 0.0 && on_cpu)
        report("[model] offload_activations changes nothing here: on the CPU activations are in host memory");
}

void run_report_start(const run_t *run)
{
    const options_t *o = run->session.options;
    zero_memory_t held = zero_engine_memory(run->session.engine);
    report("%s of %.2fM parameters (%lld layers, dim %lld), %s, stage %lld on %d rank%s (%s), %.1f MiB each, on %s",
           families[run->session.model.options->model.arch].title,
           (double)zero_model_n_params(run->session.model.declaration) * 1e-6, (long long)o->model.layers,
           (long long)o->model.dim, zero_dtype_name((zero_dtype_t)o->train.precision), (long long)o->zero.stage,
           zero_comm_size(run->session.comm), zero_comm_size(run->session.comm) == 1 ? "" : "s",
           zero_engine_transport(run->session.engine), (double)zero_memory_total(&held) / 1048576.0,
           zero_device_get_type(run->session.device) == ZERO_DEVICE_CUDA ? "GPUs" : "the CPU");
    char each[64] = "rank";
    if (options_sequence_ranks(&o->train) > 1)
        snprintf(each, sizeof each, "%lld ranks, which share each", (long long)o->train.sequence_ranks);
    report("%lld training tokens; a step takes %lld sequence%s of %lld (%lld per %s, %d micro-step%s)",
           (long long)data_n_tokens(run->train), (long long)o->train.global_batch,
           o->train.global_batch == 1 ? "" : "s", (long long)o->model.seq_len, (long long)o->train.micro_batch, each,
           run->micro_steps, run->micro_steps == 1 ? "" : "s");
    data_report_left_out(run->train, "train");
    validation_report(&run->val);
    if (o->train.fp8 != FP8_NONE)
        report("fp8: the 4 matrices of each layer, %s; all else is computed in bf16",
               o->lora.rank == 0 ? "forward and both gradients" : "forward and the gradient of their input");
    if (o->lora.rank > 0)
        report("adapters of rank %lld (%s) of %.2fM parameters are trained, scale %g; the model is frozen",
               (long long)o->lora.rank, o->lora.targets, (double)lora_n_params(&run->session.model) * 1e-6,
               options_lora_scale(&o->lora));
    if (o->train.objective == OBJECTIVE_DPO)
        report("the objective is dpo with beta %g: pairs are measured by the model without adapters, which each pass "
               "computes, too",
               o->train.dpo_beta);
    report_offload(run, &held);
    report_stage_3(o, zero_comm_size(run->session.comm));
    options_report_idle(o);
    report_bits(run);
    if (!run_has_steps(run)) {
        report("step %lld was the last one: there is nothing to do", (long long)run->last_step);
        return;
    }
    checkpoints_report(&run->checkpoints);
    if (o->resume) {
        char phases[300];
        phases_text(phases, sizeof phases);
        report("ready to go on after %s", phases);
    }
    if (o->log.metrics[0])
        report("metrics of every step go to %s", o->log.metrics);
    if (o->log.tensorboard[0])
        report("the TensorBoard event file is in %s", o->log.tensorboard);
    if (o->log.trace[0])
        report("a timeline of all ranks is written to %s when the run ends", o->log.trace);
}

/* ---- a step ---- */

/* Returns the resident memory of this process. Uses system calls: stdio would allocate, and a step allocates nothing.
 */
static uint64_t host_bytes(void)
{
    unsigned long long total = 0, resident = 0;
    char text[128];
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n_bytes = read(fd, text, sizeof text - 1);
    close(fd);
    text[n_bytes > 0 ? n_bytes : 0] = 0;
    if (sscanf(text, "%llu %llu", &total, &resident) != 2)
        return 0;
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Returns the seconds since 1970. */
static double clock_time_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

zero_status_t run_make_row(run_t *run, const zero_step_result_t *result, metrics_row_t *row)
{
    const options_t *o = run->session.options;
    int64_t tokens = o->train.global_batch * o->model.seq_len, step = (int64_t)result->step;
    zero_memory_t held = zero_engine_memory(run->session.engine);
    double tokens_per_s = (double)tokens / result->step_ms * 1e3;
    fp8_range_t fp8 = fp8_read_range(&run->session.model);
    bool has_no_targets = run->n_counted[step % 2] == 0;
    rewards_t rewards;
    ZERO_TRY(preference_read(&run->session.model, run->session.comm, &rewards));
    *row = (metrics_row_t){
        .step = step,
        .time_s = clock_time_s(),
        .loss = has_no_targets ? NAN : result->loss,
        .grad_norm = result->grad_norm,
        .lr = lr_at(&o->train, step),
        .skipped = result->skipped,
        .has_no_targets = has_no_targets,
        .tokens = checkpoints_sequences(&run->checkpoints, step) * o->model.seq_len,
        .has_mask = data_has_mask(run->train),
        .targets = run->n_counted[step % 2],
        .step_ms = result->step_ms,
        .tokens_per_s = tokens_per_s,
        .mfu = model_flops_utilization(&run->session.model, tokens_per_s, zero_comm_size(run->session.comm)),
        .device_bytes = zero_memory_total(&held),
        .host_bytes = host_bytes(),
        .exposed_comm_ms = result->exposed_comm_ms,
        .has_offload = held.pinned_bytes > 0,
        .exposed_host_ms = result->exposed_host_ms,
        .pcie_bytes = result->pcie_bytes,
        .has_fp8_scales = fp8.is_known,
        .fp8_min_scale = fp8.min_scale,
        .fp8_max_scale = fp8.max_scale,
        .rewards = rewards};
    return ZERO_OK;
}

/* Writes how long the run still takes at the pace so far. */
static void write_time_left(const run_t *run, int64_t step, char text[32])
{
    double n_done = (double)(step - run->checkpoints.first_step + 1);
    double left_s = (clock_now_ms() - run->started_ms) / n_done * (double)(run->last_step - step) * 1e-3;
    long long left_min = (long long)(left_s / 60.0);
    if (left_min < 60)
        snprintf(text, 32, "%lld:%02d", left_min, (int)(left_s - 60.0 * (double)left_min));
    else
        snprintf(text, 32, "%lld h %02d min", left_min / 60, (int)(left_min % 60));
}

/* Returns what is printed: not "-nan", which says no more than "nan". */
static double shown(float value)
{
    return isnan(value) ? (double)NAN : (double)value;
}

/* Writes ": code 2.1234, prose 3.4567". */
static void write_val_sets(const metrics_row_t *row, char *text, size_t n_bytes)
{
    size_t n = 0;
    text[0] = 0;
    for (int i = 0; i < row->n_val_sets && n < n_bytes; i++)
        n += (size_t)snprintf(text + n, n_bytes - n, "%s %s %.4f", i == 0 ? ":" : ",", row->val_sets[i].name,
                              shown(row->val_sets[i].loss));
}

/* Writes "  margin 0.0174  accuracy 73.9%", or nothing. */
static void write_rewards(const rewards_t *rewards, char text[64])
{
    text[0] = 0;
    if (rewards->are_known)
        snprintf(text, 64, "  margin %.4f  accuracy %.1f%%", rewards->margin, rewards->accuracy * 100.0);
}

void run_report_step(const run_t *run, const metrics_row_t *row)
{
    const bool is_large = row->device_bytes >= 1 << 30;
    char left[32], mfu[32] = "", loss[32] = "none", sets[METRICS_MOST_VAL_SETS * 64], rewards[64];
    write_rewards(&row->rewards, rewards);
    write_time_left(run, row->step, left);
    write_val_sets(row, sets, sizeof sets);
    if (row->mfu >= 0)
        snprintf(mfu, sizeof mfu, "  MFU %.1f%%", row->mfu * 100.0);
    if (!row->has_no_targets)
        snprintf(loss, sizeof loss, "%.4f", shown(row->loss));
    report("step %lld/%lld  loss %s%s  grad_norm %.3f  lr %.2e  %.1f ms  %.0f tokens/s%s  %.1f %s  %s left%s%s",
           (long long)row->step, (long long)run->last_step, loss, rewards, shown(row->grad_norm), row->lr, row->step_ms,
           row->tokens_per_s, mfu, (double)row->device_bytes / (is_large ? 0x1p30 : 0x1p20), is_large ? "GiB" : "MiB",
           left, row->skipped ? "  SKIPPED: gradients were not finite" : "",
           row->has_no_targets ? "  NOTHING LEARNED: no token of this step counts as a target" : "");
    write_rewards(&row->val_rewards, rewards);
    if (row->has_val_loss && row->val_rewards.are_known)
        report("step %lld/%lld  validation loss %.4f%s%s", (long long)row->step, (long long)run->last_step,
               shown(row->val_loss), rewards, sets);
    else if (row->has_val_loss)
        report("step %lld/%lld  validation loss %.4f nats per %s%s", (long long)row->step, (long long)run->last_step,
               shown(row->val_loss), validation_is_text(&run->val) ? "byte" : "token", sets);
}
