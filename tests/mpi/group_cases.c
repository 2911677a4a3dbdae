/* group_cases.c - communicators of the program's own (zero_comm_create_from): groups of ranks that train models of
 * their own at once. Usage: group_cases CASE KIND [MODEL].
 *
 *     alone      one model on all ranks, over zero_comm_create: what the other cases must equal
 *     split      ranks 0 .. N/2 - 1 train model A, the others model B
 *     uneven     rank 0 trains model A, the others model B
 *     overlap    all but the last rank train A, all but the first B, and each rank a model S of its own
 *     two        two communicators of all ranks, in other orders of rank: A and, twice as often, B
 *     aborts     as split; rank 0 aborts its group
 *     misuse     what must be refused, and communicators that are destroyed too early and too late
 *
 * Each model's first rank prints "MODEL STAGE STEP NORM" for each step and "MODEL STAGE weights HASH": equal text is
 * equal bits. Every stage is trained in turn. Model S is the same on every rank, and only one prints it. */
#include <math.h>
#include <mpi.h>
#include <stdint.h>
#include <string.h>

#include "tests/mpi/expect.h"
#include "zero.h"

#define N_UNITS 3
#define N_STEPS 3
#define N_STAGES 4

typedef struct training {
    char name;
    int stage;
    bool prints;
    zero_comm_t *comm;
    zero_device_t *device;
    zero_model_t *model;
    zero_engine_t *engine;
    zero_tensor_t weights[N_UNITS];
    size_t n_elems;
    int step;
} training_t;

/* ---- a model ---- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* A rank's gradient of one element: all bits of fp32 in use, so that sums depend on their order. */
static float noise(const training_t *training, zero_unit_t unit, size_t i)
{
    uint64_t key = (uint64_t)training->name + 256 * (uint64_t)training->step + 65536 * (uint64_t)unit;
    key = mix(key * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)zero_comm_rank(training->comm)) + i;
    return (float)(mix(key * UINT64_C(0x9e3779b97f4a7c15)) >> 40) / 16777216.0f - 0.5f;
}

static void declare(training_t *training)
{
    zero_unit_t unit;
    char name[16];
    training->n_elems = training->name == 'B' ? 777 : 1001;
    OK(zero_model_create(&training->model));
    for (int i = 0; i < N_UNITS; i++) {
        zero_tensor_desc_t desc = {.name = name,
                                   .n_dims = 1,
                                   .shape = {(int64_t)training->n_elems},
                                   .init = ZERO_INIT_NORMAL,
                                   .init_std = 1.0f,
                                   .decay = true};
        snprintf(name, sizeof name, "%c%d", training->name, i);
        OK(zero_model_add_unit(training->model, name, &unit));
        OK(zero_model_add_tensor(training->model, unit, &desc, &training->weights[i]));
    }
}

/* Takes over `comm`. */
static training_t begin(char name, zero_comm_t *comm, int stage)
{
    training_t training = {.name = name, .stage = stage, .comm = comm, .prints = zero_comm_rank(comm) == 0};
    zero_config_t config = zero_config_default();
    config.stage = stage;
    config.dtype = ZERO_FP32;
    config.seed = (uint64_t)name;
    declare(&training);
    OK(zero_device_create(ZERO_DEVICE_CPU, comm, &training.device));
    OK(zero_engine_create(comm, training.device, training.model, &config, &training.engine));
    OK(zero_init_parameters(training.engine));
    return training;
}

static void write_grads(training_t *training, zero_unit_t unit)
{
    const float *weight = zero_param(training->engine, training->weights[unit]);
    float *grad = zero_grad(training->engine, training->weights[unit]).data;
    for (size_t i = 0; i < training->n_elems; i++)
        grad[i] = 0.01f * weight[i] + noise(training, unit, i);
}

static void step(training_t *training)
{
    zero_step_result_t result;
    OK(zero_begin(training->engine, ZERO_PASS_TRAIN, NULL));
    for (zero_unit_t unit = 0; unit < N_UNITS; unit++) {
        OK(zero_acquire(training->engine, unit, NULL));
        OK(zero_release(training->engine, unit, NULL));
    }
    for (zero_unit_t unit = N_UNITS - 1; unit >= 0; unit--) {
        OK(zero_acquire(training->engine, unit, NULL));
        write_grads(training, unit);
        OK(zero_grad_ready(training->engine, unit, NULL));
    }
    OK(zero_step(training->engine, 0.01f, NULL, NULL));
    OK(zero_step_wait(training->engine, &result));
    training->step++;
    if (training->prints)
        printf("%c %d %d %a\n", training->name, training->stage, training->step, (double)result.grad_norm);
}

static void end(training_t *training)
{
    uint64_t hash = 0;
    OK(zero_begin(training->engine, ZERO_PASS_EVAL, NULL));
    for (zero_unit_t unit = 0; unit < N_UNITS; unit++) {
        OK(zero_acquire(training->engine, unit, NULL));
        const uint32_t *weight = zero_param(training->engine, training->weights[unit]);
        for (size_t i = 0; i < training->n_elems; i++)
            hash = mix(hash ^ weight[i]) + i;
        OK(zero_release(training->engine, unit, NULL));
    }
    if (training->prints)
        printf("%c %d weights %016llx\n", training->name, training->stage, (unsigned long long)hash);
    zero_engine_destroy(training->engine);
    zero_model_destroy(training->model);
    zero_device_destroy(training->device);
    zero_comm_destroy(training->comm);
}

/* ---- communicators ---- */

static zero_comm_kind_t kind;
static int world_rank, world_size;

/* Returns a communicator of the ranks that are in; NULL on the others. key: orders them. The MPI communicator that it
 * was made from is freed at once. */
static zero_comm_t *group_of(bool is_in, int key)
{
    MPI_Comm mpi;
    zero_comm_t *comm = NULL;
    MPI_Comm_split(MPI_COMM_WORLD, is_in ? 0 : MPI_UNDEFINED, key, &mpi);
    if (!is_in)
        return NULL;
    OK(zero_comm_create_from(kind, &mpi, &comm));
    MPI_Comm_free(&mpi);
    return comm;
}

static void train(char name, zero_comm_t *comm, int stage)
{
    training_t training = begin(name, comm, stage);
    for (int i = 0; i < N_STEPS; i++)
        step(&training);
    end(&training);
}

static void split(int n_first, int stage)
{
    const bool is_first = world_rank < n_first;
    MPI_Comm mpi;
    zero_comm_t *comm;
    MPI_Comm_split(MPI_COMM_WORLD, is_first, world_rank, &mpi);
    OK(zero_comm_create_from_f(kind, (int)MPI_Comm_c2f(mpi), &comm));
    CHECK(zero_comm_size(comm) == (is_first ? n_first : world_size - n_first), "%d ranks", zero_comm_size(comm));
    CHECK(zero_comm_rank(comm) == world_rank - (is_first ? 0 : n_first), "rank %d", zero_comm_rank(comm));
    MPI_Comm_free(&mpi);
    train(is_first ? 'A' : 'B', comm, stage);
}

/* The steps of the three engines of a process alternate. */
static void overlap(int stage)
{
    zero_comm_t *comm, *comms[2] = {group_of(world_rank < world_size - 1, world_rank), NULL};
    comms[1] = group_of(world_rank > 0, world_rank);
    OK(zero_comm_create_from(kind, NULL, &comm));
    training_t own = begin('S', comm, stage), shared[2];
    own.prints = world_rank == 1;
    for (int k = 0; k < 2; k++)
        if (comms[k])
            shared[k] = begin(k == 0 ? 'A' : 'B', comms[k], stage);
    for (int i = 0; i < N_STEPS; i++) {
        for (int k = 0; k < 2; k++)
            if (comms[k])
                step(&shared[k]);
        step(&own);
    }
    for (int k = 0; k < 2; k++)
        if (comms[k])
            end(&shared[k]);
    end(&own);
}

/* As a GAN: two models on all ranks, one of which takes two steps while the other takes one. */
static void two(int stage)
{
    training_t a = begin('A', group_of(true, world_rank), stage);
    training_t b = begin('B', group_of(true, -world_rank), stage);
    CHECK(zero_comm_rank(b.comm) == world_size - 1 - world_rank, "the ranks of B are in reverse order");
    for (int i = 0; i < N_STEPS; i++) {
        step(&b);
        if (i % 2 == 0)
            step(&a);
    }
    step(&a);
    end(&a);
    end(&b);
}

/* Rank 0 gives up while rank 1 waits for it in a barrier; the other group waits for nobody. */
static void abort_one_group(void)
{
    zero_comm_t *comms[2] = {group_of(world_rank < 2, world_rank), group_of(world_rank >= 2, world_rank)};
    if (world_rank == 0)
        zero_comm_abort(comms[0], 7);
    if (world_rank == 1)
        exit(zero_comm_barrier(comms[0]) == ZERO_ERROR_PEER ? 7 : 8);
    for (;;)
        OK(zero_comm_barrier(comms[1]));
}

/* ---- misuse ---- */

static char said[1024];

static void take_line(void *user, zero_log_level_t level, int rank, const char *line)
{
    (void)user, (void)rank;
    if (level == ZERO_LOG_ERROR)
        snprintf(said + strlen(said), sizeof said - strlen(said), "%s\n", line);
}

static void expect_said(zero_status_t status, zero_status_t expected, const char *text)
{
    CHECK(status == expected, "%s, not %s", zero_status_name(status), zero_status_name(expected));
    CHECK(strstr(said, text), "'%s' is not in '%s'", text, said);
    said[0] = '\0';
}

static void misuse(void)
{
    MPI_Comm null = MPI_COMM_NULL, inter, half, world = MPI_COMM_WORLD;
    zero_comm_t *comm = NULL, *alone = NULL;
    zero_log_set(ZERO_LOG_WARNING, take_line, NULL);
    expect_said(zero_comm_create_from(kind, &world, NULL), ZERO_ERROR_ARGUMENT, "zero_comm_create_from: comm is NULL");
    expect_said(zero_comm_create_from_f(kind, 0, NULL), ZERO_ERROR_ARGUMENT, "zero_comm_create_from_f: comm is NULL");
    expect_said(zero_comm_create_from(kind, &null, &comm), ZERO_ERROR_ARGUMENT, "mpi_comm is MPI_COMM_NULL");
    expect_said(zero_comm_create_from_f(kind, (int)MPI_Comm_c2f(null), &comm), ZERO_ERROR_ARGUMENT,
                "mpi_comm is MPI_COMM_NULL");
    expect_said(zero_comm_create_from_f(kind, 123456, &comm), ZERO_ERROR_ARGUMENT, "mpi_comm is MPI_COMM_NULL");
    expect_said(zero_comm_create_from((zero_comm_kind_t)9, NULL, &comm), ZERO_ERROR_ARGUMENT, "there is no kind 9");
    MPI_Comm_split(world, world_rank % 2, world_rank, &half);
    MPI_Intercomm_create(half, 0, world, 1 - world_rank % 2, 5, &inter);
    expect_said(zero_comm_create_from(kind, &inter, &comm), ZERO_ERROR_ARGUMENT, "an intercommunicator");
    CHECK(comm == NULL, "an output of a call that failed");

    OK(zero_comm_create_from(kind, NULL, &alone));
    zero_comm_abort(alone, 3); /* nothing to end: it returns */
    OK(zero_comm_create_from(kind, &half, &comm));
    training_t training = begin('A', comm, 3);
    zero_comm_destroy(comm); /* too early: it lives on until its engine is gone */
    expect_said(ZERO_OK, ZERO_OK, "zero_comm_destroy while something still uses it (1 engine)");
    step(&training);
    zero_engine_destroy(training.engine);
    OK(zero_comm_create_from(kind, &half, &comm));
    MPI_Comm_free(&inter);
    MPI_Comm_free(&half);
    MPI_Finalize();
    zero_comm_destroy(comm); /* too late */
    expect_said(ZERO_OK, ZERO_OK, "zero_comm_destroy after MPI_Finalize");
    expect_said(zero_comm_create_from(kind, &world, &comm), ZERO_ERROR_ARGUMENT, "MPI is not running");
    OK(zero_comm_barrier(alone)); /* has nothing to do with MPI */
    zero_comm_destroy(alone);
    zero_model_destroy(training.model);
    zero_device_destroy(training.device);
    printf("all was refused\n");
}

static void run_stage(const char *name, char model, int stage)
{
    zero_comm_t *comm;
    if (strcmp(name, "alone") == 0) {
        OK(zero_comm_create(kind, &comm));
        train(model, comm, stage);
    } else if (strcmp(name, "split") == 0) {
        split(world_size / 2, stage);
    } else if (strcmp(name, "uneven") == 0) {
        split(1, stage);
    } else if (strcmp(name, "overlap") == 0) {
        overlap(stage);
    } else {
        CHECK(strcmp(name, "two") == 0, "there is no case %s", name);
        two(stage);
    }
}

int main(int argc, char **argv)
{
    CHECK(argc >= 3, "usage: group_cases CASE auto|mpi [MODEL]");
    kind = strcmp(argv[2], "mpi") == 0 ? ZERO_COMM_MPI : ZERO_COMM_AUTO;
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world_size);
    if (strcmp(argv[1], "misuse") == 0) {
        misuse();
        return 0;
    }
    if (strcmp(argv[1], "aborts") == 0)
        abort_one_group();
    for (int stage = 0; stage < N_STAGES; stage++)
        run_stage(argv[1], argc > 3 ? argv[3][0] : 'A', stage);
    MPI_Finalize();
    return 0;
}
