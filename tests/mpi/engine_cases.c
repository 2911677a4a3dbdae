/* engine_cases.c - the engine among several ranks, on a toy model whose gradients are a formula.
 *
 *     engine_cases train [key=value ...]
 *         Keys: stage=3 dtype=bf16|fp32|fp16 prefetch=1 micro_steps=1 every=0|1 steps=6 nan_at=0 poison=0|1
 *               comm=auto|mpi nccl=0|1 (nccl_reduction) device=cpu|cuda|cuda-shared rows=101 (of the largest tensor)
 *               staging=0 (staging_bytes; 0: its default) offload=0 (percent of the state) update=auto|device|host
 *               fill=0|1 (weights and moments come from zero_set_state, and differ between ranks)
 *               optimizer=adamw|sgd|nesterov|lion|own|muon|adamw8bit (own: Nesterov's, as a function of the caller's)
 *               hooks=none|idle|noise|clamp|both (zero_hooks_t: functions that change nothing; noise on reduced
 *               gradients; weights that are clamped behind each update; both)
 *               schedule=0|1 (tensors have settings of their own, which change from step to step)
 *               fp8=none|bf16|fp8 (tables and weights are declared with fp8, and gathered so) traffic=0|1
 *         Trains and prints, from rank 0, a line per step: loss, grad norm (%.9g) and a hash of every full parameter as
 *         an eval pass sees it. Checks on every rank: parameters are equal on all ranks; weights agree with an
 *         fp64 optimizer on the exact global gradient; held memory equals the plan; no allocation after step 2; notices
 * are the largest of all ranks'. With fp8 the hash is that of the bytes and scales: those that were gathered, or those
 * that tests/support/fp64/fp8_reference.h makes of the bf16 parameters. traffic: also prints the bytes gathered.
 *     engine_cases mismatch
 *         Rank 1 declares another shape: MISMATCH on all ranks.
 *     engine_cases odd_setting
 *         Rank 1 has a setting that is out of range: MISMATCH on all ranks.
 *     engine_cases odd_threads
 *         The same with a setting that may differ between ranks: USAGE there, PEER on the others.
 *     engine_cases too_large
 *         Rank 1 asks for more memory than any machine has: MEMORY there, PEER on the others.
 *     engine_cases failed_fill [key=value ...]
 *         Rank 1 fails in the middle of zero_set_state: IO there, PEER on the others, and no rank can compute with what
 *         was written until all of it is written again.
 *     engine_cases failed_update [key=value ...]
 *         A function of rank 1's fails in zero_step, as `updated` (hooks=clamp) or as an own optimizer's update,
 * prepare or whole (poison=0, 1, 2): IO there, PEER on the others, at once, and weights must be set before they go on.
 *     engine_cases null_on_one_rank
 *         Rank 1 passes NULL to every collective call: ARGUMENT there, PEER on the others.
 *     engine_cases destroy_order
 *         Communicator, device and engine are destroyed while a save and a checkpoint use them.
 *     engine_cases lost_rank
 *         Rank 1 exits in the middle of a pass: the others get a status.
 *
 * Exit code 0 if every check held.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/mpi/device_elements.h"
#include "tests/mpi/engine/cases.h"
#include "tests/mpi/notices.h"
#include "tests/mpi/schedule.h"
#include "tests/mpi/settings.h"
#include "tests/support/allocations.h"

/* ---- cases ---- */

static zero_config_t make_config(const settings_t *s)
{
    zero_config_t config = zero_config_default();
    config.stage = s->stage;
    config.dtype = s->dtype;
    config.optimizer = s->optimizer;
    config.own_optimizer = s->optimizer == ZERO_OPTIMIZER_OWN ? &own_optimizer : NULL;
    config.hooks = s->hooks == NO_HOOKS ? NULL : s->hooks == NOISE ? &see_gradients : &see_both;
    config.prefetch = s->prefetch;
    config.micro_steps = s->micro_steps;
    config.reduce_every_micro_step = s->every;
    config.nccl_reduction = s->nccl;
    config.shard_group = s->group;
    config.gather_fp8 = s->fp8 == FP8;
    config.offload = s->offload > 0;
    config.offload_ratio = (float)s->offload / 100.0f;
    config.offload_update = s->update;
    if (s->staging > 0)
        config.staging_bytes = (size_t)s->staging;
    config.initial_loss_scale = 1024.0f;
    return config;
}

typedef struct training {
    const settings_t *s;
    zero_config_t config;
    zero_comm_t *comm;
    zero_device_t *device;
    zero_engine_t *engine;
    toy_t toy;
    reference_t ref;
    double *device_loss;
    int rank, n_ranks;
    uint64_t hash; /* of the parameters after the last step */
} training_t;

/* Checks that the engine holds what zero_plan said. */
static void check_held(const training_t *t)
{
    zero_memory_t plan, held = zero_engine_memory(t->engine);
    OK(zero_plan(t->toy.model, &t->config, zero_device_get_type(t->device), zero_comm_get_kind(t->comm), t->n_ranks,
                 &plan));
    CHECK(memcmp(&plan, &held, sizeof plan) == 0, "plan %llu bytes, held %llu",
          (unsigned long long)zero_memory_total(&plan), (unsigned long long)zero_memory_total(&held));
}

static void open_training(training_t *t, const settings_t *s)
{
    void *block;
    *t = (training_t){.s = s, .config = make_config(s), .toy = toy_create_of(37, s->rows, s->fp8 != NO_FP8)};
    OK(zero_comm_create(s->kind, &t->comm));
    allocations_leave_out_other_threads();
    t->rank = zero_comm_rank(t->comm);
    t->n_ranks = zero_comm_size(t->comm);
    OK(zero_device_create(s->device, t->comm, &t->device));
    hooked.device = t->device;
    hooked.adds = s->hooks == NOISE || s->hooks == BOTH;
    hooked.clamps = s->hooks >= CLAMP;
    OK(zero_engine_create(t->comm, t->device, t->toy.model, &t->config, &t->engine));
    check_held(t);
    for (int i = 0; i < t->toy.n_tensors; i++) {
        t->ref.w[i] = calloc(t->toy.n_elems[i], sizeof(double));
        t->ref.m[i] = calloc(t->toy.n_elems[i], sizeof(double));
        t->ref.v[i] = calloc(t->toy.n_elems[i], sizeof(double));
        t->ref.unsure[i] = calloc(t->toy.n_elems[i], sizeof(bool));
    }
    OK(zero_alloc(t->engine, ZERO_MEMORY_DATA, sizeof *t->device_loss, &block));
    t->device_loss = block;
    OK(zero_init_parameters(t->engine));
    if (s->fill) {
        make_up_state(t->engine, &t->toy, t->rank, false, s->optimizer);
        make_up_state(t->engine, &t->toy, t->rank, true, s->optimizer);
    }
    visit_all(t->engine, t->comm, &t->toy, &t->ref, true, false);
    complete_reference(t->comm, &t->toy, &t->ref);
    t->hash = hash_params_of(t->engine, t->device, &t->toy, s->dtype, s->fp8 == FP8);
    check_same_on_all_ranks(t->comm, t->hash);
}

static void close_training(training_t *t)
{
    for (int i = 0; i < t->toy.n_tensors; i++) {
        free(t->ref.w[i]);
        free(t->ref.m[i]);
        free(t->ref.v[i]);
        free(t->ref.unsure[i]);
    }
    zero_engine_destroy(t->engine);
    zero_device_destroy(t->device);
    zero_model_destroy(t->toy.model);
    zero_comm_destroy(t->comm);
}

static zero_step_result_t make_step(training_t *t, int64_t step)
{
    zero_step_result_t result;
    hooked.step = step;
    hooked.n_reduced = hooked.n_updated = 0;
    allocations_start();
    double loss = (t->rank + 1) * 0.125 * (double)step;
    OK(zero_device_copy(t->device, t->device_loss, &loss, sizeof loss, NULL));
    for (int i = 0; t->s->schedule && i < t->toy.n_tensors; i++)
        set_scheduled_groups(t->engine, &t->config, t->toy.tensors[i], t->toy.decay[i], step);
    for (int k = 0; k < t->s->micro_steps; k++)
        micro_step_pass(t->engine, t->device, &t->toy, t->rank, step, k, t->s);
    set_notice(t->engine, t->rank, (uint64_t)step);
    OK(zero_step(t->engine, 0.01f, t->device_loss, NULL));
    OK(zero_step_wait(t->engine, &result));
    unsigned long allocations = allocations_stop();
    /* MPI may allocate for its messages, CUDA and NCCL in their calls. */
    CHECK(step < 3 || allocations == 0 || zero_comm_get_kind(t->comm) == ZERO_COMM_MPI ||
              t->s->device >= ZERO_DEVICE_CUDA,
          "%lu allocations in step %lld", allocations, (long long)step);
    return result;
}

/* Compares the step's result and the new weights with the reference, which it moves on by a step. */
static void check_step(training_t *t, int64_t step, const zero_step_result_t *result)
{
    const int n = t->n_ranks;
    uint64_t hash = hash_params_of(t->engine, t->device, &t->toy, t->s->dtype, t->s->fp8 == FP8);
    check_same_on_all_ranks(t->comm, hash);
    CHECK(result->step == (uint64_t)step, "step %llu", (unsigned long long)result->step);
    CHECK((double)result->loss == 0.125 * (double)step * n * (n + 1) / 2, "loss %g", (double)result->loss);
    check_notice(result, n);
    check_hooks(t->comm, &t->toy, t->s);
    if (t->s->nan_at == step) {
        CHECK(result->skipped && hash == t->hash, "a step with NaN was not skipped");
    } else {
        double norm = reference_step(&t->ref, &t->toy, n, t->s, &t->config, step, (double)0.01f);
        /* Sums of exact gradients are exact; squares and their cells are rounded: 8 * 2^-24 at most. */
        CHECK(!result->skipped && fabs((double)result->grad_norm - norm) <= 1e-6 * norm, "norm %.9g, not %.9g",
              (double)result->grad_norm, norm);
        CHECK(hash != t->hash, "the weights did not change");
        /* The optimizer in fp32 against fp64: a few roundings of |w| ~ 1 per step. */
        double worst = visit_all(t->engine, t->comm, &t->toy, &t->ref, false, t->s->optimizer == ZERO_OPTIMIZER_LION);
        /* On GPUs Muon orthogonalizes in 16 bits: elements of about 0.15 are off by 0.02 at most, times lr 0.01 and
         * scale 1.64. */
        const bool in_bf16 = t->s->optimizer == ZERO_OPTIMIZER_MUON && t->s->device >= ZERO_DEVICE_CUDA;
        CHECK(worst < (in_bf16 ? 4e-4 : 1e-6) * (double)step, "weights are off by %g", worst);
    }
    t->hash = hash;
}

/* Once after each time that weights have changed, every unit's parts cross between groups; gathers do not: a group of
 * one rank gathers nothing from another. */
static void check_traffic(const training_t *t)
{
    const zero_stats_t stats = zero_engine_stats(t->engine);
    const bool has_groups = t->s->stage == 3 && t->s->group > 0 && t->s->group < t->n_ranks;
    const uint64_t n_changes = (uint64_t)t->s->steps + 1;
    CHECK(t->s->fill || stats.n_part_gathers == (has_groups ? N_UNITS * n_changes : 0), "%llu gathers of parts",
          (unsigned long long)stats.n_part_gathers);
    CHECK((stats.gathered_bytes == 0) == (t->n_ranks == 1 || (has_groups && t->s->group == 1)), "%llu bytes gathered",
          (unsigned long long)stats.gathered_bytes);
}

static int train(const settings_t *s)
{
    training_t t;
    CHECK(s->rows <= MAX_ROWS, "%d rows", s->rows);
    open_training(&t, s);
    for (int64_t step = 1; step <= s->steps; step++) {
        zero_step_result_t result = make_step(&t, step);
        check_step(&t, step, &result);
        if (t.rank == 0)
            printf("%lld %.9g %.9g %d %016llx\n", (long long)step, (double)result.loss, (double)result.grad_norm,
                   result.skipped, (unsigned long long)t.hash);
    }
    check_traffic(&t);
    if (s->traffic && t.rank == 0)
        printf("gathered %llu\n", (unsigned long long)zero_engine_stats(t.engine).gathered_bytes);
    close_training(&t);
    return 0;
}

/* Rank 1 has another width, or another configuration: a mismatch is one on all ranks, the rest is its own. */
static int expect_create(int64_t width_of_rank_1, const zero_config_t *config_of_rank_1, zero_status_t expected)
{
    zero_comm_t *comm;
    zero_device_t *device;
    zero_engine_t *engine;
    OK(zero_comm_create(ZERO_COMM_AUTO, &comm));
    toy_t toy = toy_create(zero_comm_rank(comm) == 1 ? width_of_rank_1 : 37, ROWS);
    zero_config_t config = zero_comm_rank(comm) == 1 ? *config_of_rank_1 : zero_config_default();
    OK(zero_device_create(ZERO_DEVICE_CPU, comm, &device));
    zero_status_t status = zero_engine_create(comm, device, toy.model, &config, &engine);
    bool peer = expected != ZERO_ERROR_MISMATCH && zero_comm_rank(comm) != 1;
    CHECK(status == (peer ? ZERO_ERROR_PEER : expected), "%s", zero_status_name(status));
    zero_model_destroy(toy.model);
    zero_device_destroy(device);
    zero_comm_destroy(comm);
    return 0;
}

static zero_status_t count_calls(void *user, const zero_chunk_t *chunk)
{
    (void)chunk;
    ++*(int *)user;
    return ZERO_OK;
}

/* Rank 1's weights are half written: no rank can train, evaluate, read or save until they are complete again. */
static int failed_fill(const settings_t *s)
{
    zero_comm_t *comm;
    zero_device_t *device;
    zero_engine_t *engine;
    zero_save_t *save;
    int n_calls = 0;
    zero_config_t config = make_config(s);
    toy_t toy = toy_create(37, s->rows);
    OK(zero_comm_create(s->kind, &comm));
    OK(zero_device_create(s->device, comm, &device));
    OK(zero_engine_create(comm, device, toy.model, &config, &engine));
    OK(zero_init_parameters(engine));
    int rank = zero_comm_rank(comm);
    uint64_t initial = hash_params(engine, device, &toy, s->dtype);

    filler_t filler = {.rank = rank, .fails_at = rank == 1 ? 3 : 0};
    zero_status_t status = zero_set_state(engine, false, fill_chunk, &filler);
    CHECK(status == (rank == 1 ? ZERO_ERROR_IO : ZERO_ERROR_PEER), "%s", zero_status_name(status));
    for (int again = 0; again < 2; again++) {
        CHECK(zero_begin(engine, ZERO_PASS_TRAIN, NULL) == ZERO_ERROR_ORDER, "trains with half-written weights");
        CHECK(zero_begin(engine, ZERO_PASS_EVAL, NULL) == ZERO_ERROR_ORDER, "evaluates half-written weights");
        CHECK(zero_get_state(engine, count_calls, &n_calls) == ZERO_ERROR_ORDER, "reads half-written weights");
        CHECK(zero_save_begin(engine, "nowhere", &(zero_save_options_t){0}, &save) == ZERO_ERROR_ORDER,
              "saves half-written weights");
    }
    CHECK(n_calls == 0 && access("nowhere", F_OK) != 0, "something was read or made");
    OK(zero_init_parameters(engine));
    CHECK(hash_params(engine, device, &toy, s->dtype) == initial, "initial weights are others than before");
    make_up_state(engine, &toy, rank, false, s->optimizer);
    check_same_on_all_ranks(comm, hash_params(engine, device, &toy, s->dtype));
    zero_engine_destroy(engine);
    zero_device_destroy(device);
    zero_model_destroy(toy.model);
    zero_comm_destroy(comm);
    return 0;
}

static zero_status_t fail_on_rank_1(void *user, const zero_own_update_t *update, zero_stream_t stream)
{
    (void)update, (void)stream;
    return *(const int *)user == 1 ? ZERO_ERROR_IO : ZERO_OK;
}

static zero_status_t go_on(void *user, const zero_own_update_t *update, zero_stream_t stream)
{
    (void)user, (void)update, (void)stream;
    return ZERO_OK;
}

static zero_status_t fail_whole_on_rank_1(void *user, const zero_own_whole_t *whole, zero_stream_t stream)
{
    (void)whole, (void)stream;
    return *(const int *)user == 1 ? ZERO_ERROR_IO : ZERO_OK;
}

static zero_status_t go_on_whole(void *user, const zero_own_whole_t *whole, zero_stream_t stream)
{
    (void)user, (void)whole, (void)stream;
    return ZERO_OK;
}

static int failed_update(const settings_t *s)
{
    zero_comm_t *comm;
    zero_device_t *device;
    zero_engine_t *engine;
    int rank;
    const zero_own_optimizer_t optimizer = {.name = "failing",
                                            .n_arrays = 1,
                                            .update = s->poison == 0 ? fail_on_rank_1 : go_on,
                                            .prepare = s->poison == 0   ? NULL
                                                       : s->poison == 1 ? fail_on_rank_1
                                                                        : go_on,
                                            .whole = s->poison == 0   ? NULL
                                                     : s->poison == 1 ? go_on_whole
                                                                      : fail_whole_on_rank_1,
                                            .user = &rank};
    const zero_hooks_t hooks = {.updated = fail_on_rank_1, .user = &rank};
    zero_config_t config = make_config(s);
    toy_t toy = toy_create(37, s->rows);
    config.hooks = s->hooks == NO_HOOKS ? NULL : &hooks;
    if (!config.hooks) {
        config.optimizer = ZERO_OPTIMIZER_OWN;
        config.own_optimizer = &optimizer;
    }
    OK(zero_comm_create(s->kind, &comm));
    rank = zero_comm_rank(comm);
    OK(zero_device_create(s->device, comm, &device));
    OK(zero_engine_create(comm, device, toy.model, &config, &engine));
    OK(zero_init_parameters(engine));
    uint64_t initial = hash_params(engine, device, &toy, s->dtype);
    micro_step_pass(engine, device, &toy, rank, 1, 0, s);
    zero_status_t status = zero_step(engine, 0.01f, NULL, NULL);
    CHECK(status == (rank == 1 ? ZERO_ERROR_IO : ZERO_ERROR_PEER), "%s", zero_status_name(status));
    status = zero_cancel(engine);
    CHECK(status == ZERO_ERROR_ORDER, "weights are incomplete, and zero_cancel returns %s", zero_status_name(status));
    OK(zero_init_parameters(engine));
    CHECK(hash_params(engine, device, &toy, s->dtype) == initial, "initial weights are others than before");
    zero_engine_destroy(engine);
    zero_device_destroy(device);
    zero_model_destroy(toy.model);
    zero_comm_destroy(comm);
    return 0;
}

/* Every call with one NULL argument on rank 1, and correct arguments on the others. */
static int null_on_one_rank(void)
{
    zero_comm_t *comm;
    zero_device_t *device;
    zero_engine_t *engine, *other;
    zero_save_t *save;
    zero_checkpoint_t *checkpoint;
    zero_config_t config = zero_config_default();
    toy_t toy = toy_create(37, ROWS);
    OK(zero_comm_create(ZERO_COMM_AUTO, &comm));
    OK(zero_device_create(ZERO_DEVICE_CPU, comm, &device));
    OK(zero_engine_create(comm, device, toy.model, &config, &engine));
    OK(zero_init_parameters(engine));
    bool odd = zero_comm_rank(comm) == 1;
    uint64_t hash = hash_params(engine, device, &toy, ZERO_BF16);
    zero_save_options_t options = {0};
    filler_t filler = {.rank = zero_comm_rank(comm)};
#define TOLD(call) CHECK((call) == (odd ? ZERO_ERROR_ARGUMENT : ZERO_ERROR_PEER), "not told to all ranks")
    TOLD(zero_engine_create(comm, odd ? NULL : device, toy.model, &config, &other));
    TOLD(zero_engine_create(comm, device, toy.model, odd ? NULL : &config, &other));
    TOLD(zero_set_state(engine, false, odd ? NULL : fill_chunk, &filler));
    TOLD(zero_load_weights(engine, odd ? NULL : "nowhere"));
    TOLD(zero_save_prepare(comm, odd ? NULL : "nowhere"));
    TOLD(zero_save_begin(engine, odd ? NULL : "nowhere", &options, &save));
    TOLD(zero_save_begin(engine, "nowhere", odd ? NULL : &options, &save));
    TOLD(zero_checkpoint_open(comm, odd ? NULL : "nowhere", &checkpoint));
    TOLD(zero_checkpoint_open(comm, "nowhere", odd ? NULL : &checkpoint));
#undef TOLD
    CHECK(filler.n_chunks == 0 && hash_params(engine, device, &toy, ZERO_BF16) == hash, "something was written");
    zero_engine_destroy(engine);
    zero_device_destroy(device);
    zero_model_destroy(toy.model);
    zero_comm_destroy(comm);
    rmdir("nowhere"); /* rank 0 created it */
    return 0;
}

static int destroy_order(void)
{
    zero_comm_t *comm;
    zero_device_t *device;
    zero_engine_t *engine;
    zero_save_t *save;
    zero_step_result_t result;
    settings_t s = {.stage = 3, .micro_steps = 1};
    zero_config_t config = zero_config_default();
    toy_t toy = toy_create(37, ROWS);
    char directory[] = "/tmp/engine_cases.XXXXXX";
    OK(zero_comm_create(ZERO_COMM_AUTO, &comm));
    int rank = zero_comm_rank(comm);
    OK(zero_comm_agree(comm, rank > 0 || mkdtemp(directory) ? ZERO_OK : ZERO_ERROR_IO));
    OK(zero_comm_broadcast(comm, directory, sizeof directory, 0));
    OK(zero_device_create(ZERO_DEVICE_CPU, comm, &device));
    OK(zero_engine_create(comm, device, toy.model, &config, &engine));
    OK(zero_init_parameters(engine));
    micro_step_pass(engine, device, &toy, rank, 1, 0, &s);
    OK(zero_step(engine, 0.01f, NULL, NULL));
    OK(zero_step_wait(engine, &result));
    OK(zero_save_begin(engine, directory, &(zero_save_options_t){.background = true}, &save));
    zero_comm_destroy(comm);
    zero_device_destroy(device);
    micro_step_pass(engine, device, &toy, rank, 2, 0, &s);
    zero_engine_destroy(engine);
    zero_model_destroy(toy.model);
    OK(zero_save_end(save));
    if (rank == 0) {
        char command[128];
        snprintf(command, sizeof command, "rm -r %s", directory);
        CHECK(system(command) == 0, "%s", command);
    }
    return 0;
}

/* Rank 1 leaves in backward; what the others return is the program's exit code: 3, "a status and no hang". */
static int lost_rank(void)
{
    zero_comm_t *comm;
    zero_device_t *device;
    zero_engine_t *engine;
    settings_t s = {.stage = 3, .micro_steps = 1};
    zero_config_t config = zero_config_default();
    toy_t toy = toy_create(37, ROWS);
    OK(zero_comm_create(ZERO_COMM_AUTO, &comm));
    OK(zero_device_create(ZERO_DEVICE_CPU, comm, &device));
    OK(zero_engine_create(comm, device, toy.model, &config, &engine));
    OK(zero_init_parameters(engine));
    int rank = zero_comm_rank(comm);
    OK(zero_begin(engine, ZERO_PASS_TRAIN, NULL));
    for (zero_unit_t u = 0; u < N_UNITS; u++) {
        OK(zero_acquire(engine, u, NULL));
        OK(zero_release(engine, u, NULL));
    }
    for (zero_unit_t u = N_UNITS - 1; u >= 0; u--) {
        zero_status_t status = zero_acquire(engine, u, NULL);
        if (status == ZERO_OK)
            write_grads(engine, device, &toy, u, rank, 1, 0, &s);
        if (rank == 1 && u == 2)
            _exit(7);
        if (status == ZERO_OK)
            status = zero_grad_ready(engine, u, NULL);
        if (status != ZERO_OK) {
            zero_comm_abort(comm, 3);
            return 3;
        }
    }
    return 0;
}

static const setting_row_t setting_rows[] = {{"stage", offsetof(settings_t, stage), NULL},
                                             {"prefetch", offsetof(settings_t, prefetch), NULL},
                                             {"micro_steps", offsetof(settings_t, micro_steps), NULL},
                                             {"every", offsetof(settings_t, every), NULL},
                                             {"steps", offsetof(settings_t, steps), NULL},
                                             {"nan_at", offsetof(settings_t, nan_at), NULL},
                                             {"poison", offsetof(settings_t, poison), NULL},
                                             {"nccl", offsetof(settings_t, nccl), NULL},
                                             {"rows", offsetof(settings_t, rows), NULL},
                                             {"staging", offsetof(settings_t, staging), NULL},
                                             {"offload", offsetof(settings_t, offload), NULL},
                                             {"fill", offsetof(settings_t, fill), NULL},
                                             {"group", offsetof(settings_t, group), NULL},
                                             {"traffic", offsetof(settings_t, traffic), NULL},
                                             {"schedule", offsetof(settings_t, schedule), NULL},
                                             {"hooks", offsetof(settings_t, hooks), "none idle noise clamp both"},
                                             {"fp8", offsetof(settings_t, fp8), "none bf16 fp8"},
                                             {"update", offsetof(settings_t, update), "auto device host"},
                                             {"optimizer", offsetof(settings_t, optimizer), SETTING_OPTIMIZERS},
                                             {"dtype", offsetof(settings_t, dtype), SETTING_DTYPES},
                                             {"device", offsetof(settings_t, device), SETTING_DEVICES},
                                             {"comm", offsetof(settings_t, kind), "auto mpi nccl"}};

int main(int argc, char **argv)
{
    settings_t s = {.stage = 3,
                    .prefetch = 1,
                    .micro_steps = 1,
                    .steps = 6,
                    .rows = ROWS,
                    .dtype = ZERO_BF16,
                    .device = ZERO_DEVICE_CPU};
    CHECK(argc > 1, "which case?");
    for (int i = 2; i < argc; i++)
        setting_take(argv[i], setting_rows, sizeof setting_rows / sizeof setting_rows[0], &s);
    if (strcmp(argv[1], "train") == 0)
        return train(&s);
    if (strcmp(argv[1], "failed_fill") == 0)
        return failed_fill(&s);
    if (strcmp(argv[1], "failed_update") == 0)
        return failed_update(&s);
    zero_config_t odd = zero_config_default();
    if (strcmp(argv[1], "mismatch") == 0)
        return expect_create(38, &odd, ZERO_ERROR_MISMATCH);
    odd.eps = -1.0f;
    if (strcmp(argv[1], "odd_setting") == 0)
        return expect_create(37, &odd, ZERO_ERROR_MISMATCH);
    odd = zero_config_default();
    odd.offload_threads = -1;
    if (strcmp(argv[1], "odd_threads") == 0)
        return expect_create(37, &odd, ZERO_ERROR_USAGE);
    odd = zero_config_default();
    odd.user_bytes = (size_t)1 << 50;
    if (strcmp(argv[1], "too_large") == 0)
        return expect_create(37, &odd, ZERO_ERROR_MEMORY);
    if (strcmp(argv[1], "null_on_one_rank") == 0)
        return null_on_one_rank();
    if (strcmp(argv[1], "destroy_order") == 0)
        return destroy_order();
    if (strcmp(argv[1], "lost_rank") == 0)
        return lost_rank();
    CHECK(false, "no case %s", argv[1]);
}
