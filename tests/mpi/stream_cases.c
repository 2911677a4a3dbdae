/* stream_cases.c - the engine among several ranks whose streams run at random speeds (async_device.h).
 *
 *     stream_cases [key=value ...] [/ key=value ...] ...
 *
 * Makes the runs between the slashes one after the other. Keys and their defaults:
 *
 *     fp8=none (bf16: matrices are used in fp8, cast by tests/support/fp64/fp8_reference.h; fp8: they are gathered so)
 *     device=async (or cpu) stage=3 dtype=bf16 (fp32, fp16) prefetch=1 micro_steps=1 every=0 steps=12 overlap=1
 *     offload=0 (percent of the state; -1: auto) params=0 (percent of the parameters; -1: auto) update=auto (or device,
 * host) threads=0 (of the host's update) buffer=4096 (offload_buffer_bytes; 0: its default) pins=1 (memory can be
 * pinned) available=BYTES (that the device reports) nccl=0 (nccl_reduction) nan_at=0 (the step) activations=0 (bytes a
 * unit keeps from its forward to its backward) spans=0 (units by which their declared span is longer than needed, at
 * most, on either side) slots=0 (in which what units keep takes turns: zero_stash_create) asks=0 (1: the state is read
 * after every third step and set after every fifth, while steps are under way) rows=61 (of the embedding's table)
 * untied=0 (1: the head has a table of its own) staging=0 (staging_bytes; 0: its default) comm=auto (or mpi, for all
 * runs and before their other keys) hosts=HOW (likewise: makes several hosts of this one, tests/mpi/host_ids.h) seed=1
 * delay_us=300 slow_gathers=0 (times as late as other work) fault=0 (async_fault_t) trace=0 blocks=5 (units between the
 * embedding and the head) calls=0 (1: also prints the last step's driver calls) check=0 (config.check) late=1 (0: each
 * step is waited for before the next begins) idle_ms=0 (for which the host leaves the device idle after an evaluation,
 * which must not count as a wait) keep=0 (config.keep) lookup=0 (1: the first unit's backward reads no parameters)
 * frozen=0 (1: some matrices and a whole block are) whole=0 (a bit for each unit that is frozen as a whole) unshard=1
 * (0: and says so: zero_model_set_unshard_in_backward) gathers=0 (how many the first pass makes; 0: any) hooks=0 (1:
 * noise is added to reduced gradients, by work that takes its time in the stream; 2: weights are pushed behind their
 * update, too) schedule=0 (1: tensors have settings of their own, which change from step to step) cancels=0 (1: before
 * every step passes are begun that are cancelled, anywhere) created=0 (the micro-steps that the engine is created with,
 * before zero_set_micro_steps; 0: micro_steps) clip=1 (grad_clip) gradients=fp32 (or bf16) sums=auto (or
 * device, host: offload_grads) backward=0 (1: units are
 * updated in backward; needs clip=0) loses=0 (1: at the end a peer seems lost, with work under way) load= (a
 * directory of checkpoints, from whose latest the run continues) save= (one to write to after the steps)
 *
 * Trains a toy whose forward reads every parameter and whose backward reads them again and writes every gradient, all
 * queued in a compute stream, with two steps under way at a time by default. Each compute item takes a while between
 * its first and its last access, reads everything twice, and leaves NaN where it will write. What it keeps from a
 * unit's forward for its backward must be unchanged there. Rank 0 prints a line per step (loss and grad norm, %.9g),
 * and hashes of all full parameters and of the optimizer's state, at the end and again after other state was set. Equal
 * text on every device means that nothing was read before it was there or overwritten before its readers were done.
 *
 * Exit code 0 if every check held.
 */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "tests/mpi/host_ids.h"
#include "tests/mpi/notices.h"
#include "tests/mpi/schedule.h"
#include "tests/mpi/settings.h"
#include "tests/mpi/stream/cases.h"
#include "tests/support/async/async_device.h"
#include "tests/support/support.h"

void queue(const run_t *run, void (*work)(void *), const void *args, size_t n_bytes)
{
    if (run->s->is_async) {
        async_queue(run->stream, work, args, n_bytes);
        return;
    }
    unsigned char copy[ASYNC_ARGS_BYTES] __attribute__((aligned(16)));
    memcpy(copy, args, n_bytes);
    work(copy);
}

zero_config_t make_config(const settings_t *s)
{
    zero_config_t config = zero_config_default();
    config.hooks = s->hooks == 0 ? NULL : s->hooks == 1 ? &gradient_hooks : &all_hooks;
    config.stage = s->stage;
    config.dtype = s->dtype;
    config.optimizer = s->optimizer;
    config.prefetch = s->prefetch;
    config.micro_steps = s->created > 0 ? s->created : s->micro_steps;
    config.reduce_every_micro_step = s->every;
    config.keep = s->keep;
    config.overlap = s->overlap;
    config.nccl_reduction = s->nccl;
    config.shard_group = s->group;
    config.gather_fp8 = s->fp8 == FP8;
    if (s->staging > 0)
        config.staging_bytes = (size_t)s->staging;
    config.initial_loss_scale = 1024.0f;
    config.grad_clip = (float)s->clip;
    config.gradients = s->gradients ? ZERO_BF16 : ZERO_FP32;
    config.offload_grads = (zero_offload_grads_t)s->sums;
    config.update = s->backward ? ZERO_UPDATE_IN_BACKWARD : ZERO_UPDATE_IN_STEP;
    config.check = s->check;
    config.offload = s->offload != 0;
    config.offload_ratio = s->offload < 0 ? ZERO_OFFLOAD_AUTO : (float)s->offload / 100.0f;
    config.offload_params = s->params < 0 ? ZERO_OFFLOAD_AUTO : (float)s->params / 100.0f;
    config.offload_threads = s->threads;
    config.offload_update = (zero_offload_update_t)s->update;
    if (s->buffer > 0)
        config.offload_buffer_bytes = (size_t)s->buffer;
    return config;
}

static void tell(run_t *run)
{
    zero_step_result_t result;
    OK(zero_step_wait(run->engine, &result));
    if (!run->s->load) /* whose step numbers continue */
        check_notice(&result, zero_comm_size(run->comm));
    CHECK(result.step_ms > 0.0 && result.step_ms < 1e5, "a step took %g ms", result.step_ms);
    const double exposed_ms[] = {result.exposed_comm_ms, result.exposed_host_ms};
    for (int host = 0; host < 2; host++) {
        CHECK(!run->s->trace || fabs(run->waited_ms[host] - exposed_ms[host]) < 1e-6 * (1.0 + exposed_ms[host]),
              "step %d: the trace has waits of %g ms, exposed_%s_ms is %g", (int)result.step, run->waited_ms[host],
              host ? "host" : "comm", exposed_ms[host]);
        run->waited_ms[host] = 0.0;
    }
    check_pcie_bytes(run, &result);
    if (result.step % 4 == 3) /* an evaluation and a pause are behind it */
        run->least_exposed_ms = fmin(run->least_exposed_ms, result.exposed_comm_ms);
    if (zero_comm_rank(run->comm) == 0)
        printf("%llu %.9g %.9g %d\n", (unsigned long long)result.step, (double)result.loss, (double)result.grad_norm,
               result.skipped);
}

/* Now, or since *before. */
static void count_calls(const uint64_t *before, uint64_t *n_calls)
{
    for (int call = 0; call < ASYNC_N_CALLS; call++)
        n_calls[call] = async_n_calls((async_call_t)call) - (before ? before[call] : 0);
}

static void tell_calls(const run_t *run, const uint64_t *n_calls)
{
    uint64_t sum = 0;
    for (int call = 0; call < ASYNC_N_CALLS; call++)
        sum += n_calls[call];
    if (zero_comm_rank(run->comm) > 0)
        return;
    printf("calls of a step, %d units, %d ranks: %llu", run->toy.n_units, zero_comm_size(run->comm),
           (unsigned long long)sum);
    for (int call = 0; call < ASYNC_N_CALLS; call++)
        printf(", %s %llu", async_call_name((async_call_t)call), (unsigned long long)n_calls[call]);
    printf("\n");
}

/* Adds up master weights and moments wherever they are: a sum over elements, so that the order of ranks and chunks does
 * not matter. */
static zero_status_t add_state(void *user, const zero_chunk_t *chunk)
{
    uint64_t *sum = user;
    const float *const parts[] = {chunk->master, chunk->m, chunk->v};
    for (uint64_t i = 0; i < chunk->n_elems; i++)
        for (uint64_t k = 0; k < 3 && parts[k]; k++) {
            uint64_t x = zero_bits_of_float(parts[k][i]) + ((((uint64_t)chunk->tensor << 2) + k) << 40) +
                         ((chunk->first + i) << 20);
            x = (x ^ (x >> 31)) * UINT64_C(0x9e3779b97f4a7c15);
            *sum += (x ^ (x >> 29)) * UINT64_C(0xbf58476d1ce4e5b9);
        }
    return ZERO_OK;
}

static uint64_t hash_state(run_t *run)
{
    uint64_t mine = 0;
    OK(zero_get_state(run->engine, add_state, &mine));
    double halves[2] = {(double)(mine & 0xffffffffu), (double)(mine >> 32)};
    OK(zero_comm_sum(run->comm, halves, 2));
    return (uint64_t)halves[0] + ((uint64_t)halves[1] << 32);
}

/* Other state than there was, as a checkpoint would bring it. */
static zero_status_t fill_state(void *user, const zero_chunk_t *chunk)
{
    (void)user;
    for (uint64_t i = 0; i < chunk->n_elems; i++) {
        float x = (float)((chunk->first + i) % 1013 + 1) * (float)(chunk->tensor + 1);
        chunk->master[i] = 1e-3f * x;
        if (chunk->m)
            chunk->m[i] = -1e-5f * x;
        if (chunk->v)
            chunk->v[i] = 1e-7f * x;
    }
    return ZERO_OK;
}

/* Between two steps, with one or two under way, the state may be read and set. */
static void ask(run_t *run, int64_t step)
{
    uint64_t state = step % 3 == 0 ? hash_state(run) : 0;
    if (step % 3 == 0 && zero_comm_rank(run->comm) == 0)
        printf("state %016llx\n", (unsigned long long)state);
    if (step % 5 == 0)
        OK(zero_set_state(run->engine, true, fill_state, NULL));
}

/* All ranks pause at once: none waits for another. */
static void idle(run_t *run)
{
    OK(zero_device_synchronize(run->device));
    OK(zero_comm_barrier(run->comm));
    usleep((unsigned)run->s->idle_ms * 1000);
}

static void set_groups(run_t *run, int64_t step)
{
    zero_config_t config = zero_config_default();
    for (zero_tensor_t t = 0; t < zero_model_n_tensors(run->toy.model); t++)
        if (!run->toy.frozen[t])
            set_scheduled_groups(run->engine, &config, t, true, step);
}

static void train(run_t *run)
{
    const settings_t *s = run->s;
    uint64_t n_calls[ASYNC_N_CALLS];
    run->least_exposed_ms = INFINITY;
    for (int64_t step = 1; step <= s->steps; step++) {
        if (s->cancels)
            cancel(run, step);
        if (s->schedule)
            set_groups(run, step);
        count_calls(NULL, n_calls);
        queue(run, clear, &run->loss, sizeof run->loss);
        if (s->backward)
            OK(zero_set_lr(run->engine, 0.01f));
        for (int k = 0; k < s->micro_steps; k++)
            pass(run, ZERO_PASS_TRAIN, step, k, NULL);
        set_notice(run->engine, zero_comm_rank(run->comm), (uint64_t)step);
        OK(zero_step(run->engine, 0.01f, run->loss, run->stream));
        count_calls(n_calls, n_calls);
        if (step % 4 == 2) /* an evaluation while the step is under way */
            pass(run, ZERO_PASS_EVAL, step, 0, &run->hash);
        if (step % 4 == 2 && s->idle_ms > 0)
            idle(run);
        if (s->cancels && s->asks)
            cancel(run, step + 8);
        if (s->asks)
            ask(run, step);
        if (step > s->late)
            tell(run);
    }
    for (int i = 0; i < s->late && i < s->steps; i++)
        tell(run);
    /* The least of several: a busy machine may hold a rank up, and others do wait for it then. */
    CHECK(s->idle_ms == 0 || run->least_exposed_ms < s->idle_ms / 2.0,
          "exposed_comm_ms is %g or more, and the host did nothing for %d ms", run->least_exposed_ms, s->idle_ms);
    if (s->calls)
        tell_calls(run, n_calls);
}

static void tell_state(run_t *run)
{
    uint64_t state = hash_state(run);
    if (zero_comm_rank(run->comm) == 0)
        printf("parameters %016llx\nstate %016llx\n", (unsigned long long)run->hash, (unsigned long long)state);
}

void load(run_t *run)
{
    zero_checkpoint_t *checkpoint;
    OK(zero_checkpoint_open(run->comm, run->s->load, &checkpoint));
    OK(zero_load(run->engine, checkpoint));
    zero_checkpoint_close(checkpoint);
}

void save(run_t *run)
{
    zero_save_t *writing;
    OK(zero_save_prepare(run->comm, run->s->save));
    OK(zero_save_begin(run->engine, run->s->save, &(zero_save_options_t){0}, &writing));
    OK(zero_save_end(writing));
}

static zero_unit_t earlier(zero_unit_t unit, int n)
{
    return unit > n ? unit - n : 0;
}

static void linger(void *args)
{
    usleep(200000);
    **(bool **)args = true;
}

/* The streams must finish before the memory that they use is freed. */
static void lose_a_peer(run_t *run)
{
    bool is_over = false, *at = &is_over;
    queue(run, linger, &at, sizeof at);
    run->comm->failed = true;
    zero_engine_destroy(run->engine);
    CHECK(is_over, "the engine is gone while its streams are at work");
    run->comm->failed = false;
}

static void create_device(run_t *run)
{
    const settings_t *s = run->s;
    const async_options_t options = {.seed = run->seed,
                                     .max_delay_us = (unsigned)s->delay_us,
                                     .slow_gathers = (unsigned)s->slow_gathers,
                                     .available = (uint64_t)s->available,
                                     .pins = s->pins != 0,
                                     .fault = (async_fault_t)s->fault};
    if (s->is_async)
        OK(async_device_create(run->comm, &options, &run->device));
    else
        OK(zero_device_create(ZERO_DEVICE_CPU, run->comm, &run->device));
}

/* Adds what waits in host memory, as planned for the device that the asynchronous one is like. */
static void plan_stash(const settings_t *s, int n_units, zero_memory_t *memory)
{
    if (s->slots > 0)
        OK(zero_stash_plan(s->is_async ? ZERO_DEVICE_CUDA : ZERO_DEVICE_CPU, n_units, (size_t)s->activations, s->slots,
                           memory));
}

/* With slots, in memory in which units take turns; else in memory of each unit's own. */
static void take_activations(run_t *run)
{
    const settings_t *s = run->s;
    zero_memory_t stash = zero_engine_memory(run->engine), held;
    if (s->is_async && s->slots > 0)
        async_expect_stash();
    if (s->slots > 0) {
        OK(zero_stash_create(run->engine, run->toy.n_units, (size_t)s->activations, s->slots, &run->stash));
        plan_stash(s, run->toy.n_units, &stash);
        held = zero_engine_memory(run->engine);
        CHECK(memcmp(&stash, &held, sizeof held) == 0, "%llu bytes held, %llu on the host",
              (unsigned long long)zero_memory_total(&held), (unsigned long long)held.pinned_bytes);
    }
    for (zero_unit_t u = 0; u < run->toy.n_units && s->activations > 0; u++) {
        void *kept = zero_stash_buffer(run->stash, u);
        if (!run->stash)
            OK(zero_alloc_activations(run->engine, earlier(u, 7 * u % (s->spans + 1)),
                                      earlier(u, 5 * u % (s->spans + 1)), (size_t)s->activations, &kept));
        run->kept[u] = kept;
    }
}

static run_t open_run(const settings_t *s, zero_comm_t *comm)
{
    run_t run = {.s = s, .comm = comm, .toy = toy_create(s), .hash = UINT64_C(1469598103934665603)};
    zero_config_t config = make_config(s);
    void *loss;
    zero_memory_t stash = {0};
    plan_stash(s, run.toy.n_units, &stash);
    config.user_pinned_bytes = stash.pinned_bytes;
    run.seed = (uint64_t)(s->seed * 100 + zero_comm_rank(comm));
    create_device(&run);
    OK(zero_engine_create(comm, run.device, run.toy.model, &config, &run.engine));
    if (s->created > 0)
        OK(zero_set_micro_steps(run.engine, s->micro_steps));
    check_transport(&run);
    check_memory(&run, &config);
    OK(zero_stream_create(run.device, &run.stream));
    if (s->is_async)
        async_compute_in(run.stream);
    OK(zero_alloc(run.engine, ZERO_MEMORY_DATA, sizeof *run.loss, &loss));
    run.loss = loss;
    take_activations(&run);
    OK(zero_init_parameters(run.engine));
    return run;
}

static void close_run(run_t *run)
{
    if (run->s->loses)
        lose_a_peer(run);
    else
        zero_engine_destroy(run->engine);
    zero_device_destroy(run->device);
    zero_model_destroy(run->toy.model);
}

/* An eval pass that hashes the parameters, and has ended. */
static void evaluate(run_t *run)
{
    pass(run, ZERO_PASS_EVAL, 0, 0, &run->hash);
    OK(zero_device_synchronize(run->device));
}

static void run_all(const settings_t *s, zero_comm_t *comm)
{
    run_t run = open_run(s, comm);
    hooked_run = &run;
    if (s->load)
        load(&run);
    if (s->trace)
        OK(zero_engine_trace(run.engine, ZERO_ALL_WORKS, on_span, &run));
    train(&run);
    uint64_t state = hash_state(&run); /* complete before a pass has asked for the new parameters */
    evaluate(&run);
    CHECK(hash_state(&run) == state, "the state changed without a step");
    if (s->save)
        save(&run);
    for (int work = 0; work < ZERO_N_WORKS && s->trace && s->is_async && zero_comm_size(comm) > 1; work++)
        check_spans(&run, (zero_work_t)work);
    check_same_hash_on_all_ranks(&run);
    tell_state(&run);
    OK(zero_set_state(run.engine, true, fill_state, NULL));
    evaluate(&run);
    tell_state(&run);
    close_run(&run);
}

static const settings_t defaults = {.clip = 1,
                                    .stage = 3,
                                    .prefetch = 1,
                                    .micro_steps = 1,
                                    .steps = 12,
                                    .rows = 61,
                                    .blocks = 5,
                                    .overlap = 1,
                                    .late = 1,
                                    .unshard = 1,
                                    .seed = 1,
                                    .delay_us = 300,
                                    .pins = 1,
                                    .buffer = 4096,
                                    .dtype = ZERO_BF16,
                                    .is_async = 1};

static const setting_row_t setting_rows[] = {{"stage", offsetof(settings_t, stage), NULL},
                                             {"prefetch", offsetof(settings_t, prefetch), NULL},
                                             {"micro_steps", offsetof(settings_t, micro_steps), NULL},
                                             {"every", offsetof(settings_t, every), NULL},
                                             {"steps", offsetof(settings_t, steps), NULL},
                                             {"overlap", offsetof(settings_t, overlap), NULL},
                                             {"nan_at", offsetof(settings_t, nan_at), NULL},
                                             {"seed", offsetof(settings_t, seed), NULL},
                                             {"delay_us", offsetof(settings_t, delay_us), NULL},
                                             {"slow_gathers", offsetof(settings_t, slow_gathers), NULL},
                                             {"fault", offsetof(settings_t, fault), NULL},
                                             {"offload", offsetof(settings_t, offload), NULL},
                                             {"params", offsetof(settings_t, params), NULL},
                                             {"threads", offsetof(settings_t, threads), NULL},
                                             {"available", offsetof(settings_t, available), NULL},
                                             {"pins", offsetof(settings_t, pins), NULL},
                                             {"update", offsetof(settings_t, update), "auto device host"},
                                             {"buffer", offsetof(settings_t, buffer), NULL},
                                             {"activations", offsetof(settings_t, activations), NULL},
                                             {"spans", offsetof(settings_t, spans), NULL},
                                             {"slots", offsetof(settings_t, slots), NULL},
                                             {"asks", offsetof(settings_t, asks), NULL},
                                             {"nccl", offsetof(settings_t, nccl), NULL},
                                             {"group", offsetof(settings_t, group), NULL},
                                             {"rows", offsetof(settings_t, rows), NULL},
                                             {"untied", offsetof(settings_t, untied), NULL},
                                             {"staging", offsetof(settings_t, staging), NULL},
                                             {"blocks", offsetof(settings_t, blocks), NULL},
                                             {"calls", offsetof(settings_t, calls), NULL},
                                             {"late", offsetof(settings_t, late), NULL},
                                             {"check", offsetof(settings_t, check), NULL},
                                             {"keep", offsetof(settings_t, keep), NULL},
                                             {"lookup", offsetof(settings_t, lookup), NULL},
                                             {"frozen", offsetof(settings_t, frozen), NULL},
                                             {"whole", offsetof(settings_t, whole), NULL},
                                             {"unshard", offsetof(settings_t, unshard), NULL},
                                             {"gathers", offsetof(settings_t, gathers), NULL},
                                             {"idle_ms", offsetof(settings_t, idle_ms), NULL},
                                             {"cancels", offsetof(settings_t, cancels), NULL},
                                             {"created", offsetof(settings_t, created), NULL},
                                             {"loses", offsetof(settings_t, loses), NULL},
                                             {"trace", offsetof(settings_t, trace), NULL},
                                             {"load", offsetof(settings_t, load), SETTING_TEXT},
                                             {"save", offsetof(settings_t, save), SETTING_TEXT},
                                             {"schedule", offsetof(settings_t, schedule), NULL},
                                             {"clip", offsetof(settings_t, clip), NULL},
                                             {"gradients", offsetof(settings_t, gradients), "fp32 bf16"},
                                             {"sums", offsetof(settings_t, sums), "auto device host"},
                                             {"backward", offsetof(settings_t, backward), NULL},
                                             {"hooks", offsetof(settings_t, hooks), NULL},
                                             {"optimizer", offsetof(settings_t, optimizer), SETTING_OPTIMIZERS},
                                             {"dtype", offsetof(settings_t, dtype), SETTING_DTYPES},
                                             {"fp8", offsetof(settings_t, fp8), "none bf16 fp8"},
                                             {"device", offsetof(settings_t, is_async), "cpu async"}};

int main(int argc, char **argv)
{
    settings_t s = defaults;
    zero_comm_t *comm;
    bool messages = argc > 1 && strcmp(argv[1], "comm=mpi") == 0;
    bool several_hosts = argc > 1 && strncmp(argv[1], "hosts=", 6) == 0;
    if (several_hosts)
        OK(host_ids_set(argv[1] + 6));
    OK(zero_comm_create(messages ? ZERO_COMM_MPI : ZERO_COMM_AUTO, &comm));
    for (int i = messages || several_hosts ? 2 : 1; i < argc; i++) {
        if (strcmp(argv[i], "/") != 0) {
            setting_take(argv[i], setting_rows, sizeof setting_rows / sizeof setting_rows[0], &s);
            continue;
        }
        run_all(&s, comm);
        s = defaults;
    }
    run_all(&s, comm);
    zero_comm_destroy(comm);
    return 0;
}
