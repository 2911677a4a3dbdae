/* disagree_cases.c - ranks that do not do the same, one case per mistake, as a program to run under mpirun.
 *
 *     disagree_cases COMM DEVICE CASE LOG
 *
 * COMM: auto or mpi. DEVICE: cpu or async (async_device.h). CASE: a name below, or "absent" or "other_kind", which are
 * about zero_comm_create itself, in a program that already runs MPI. LOG: a file that receives what all ranks write to
 * stderr, which mpirun drops when it ends a job.
 *
 * Every rank trains a toy of three units, and one of them does something different. Each prints the first status that
 * it got, "rank 1 got ZERO_ERROR_MISMATCH", and its last error, "rank 1 heard: ...", and ends with code 3. test_agree.c
 * knows what must be logged before. In the first cases all ranks do the same, and end with code 0.
 */
#include <mpi.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/mpi/expect.h"
#include "tests/support/async/async_device.h"
#include "tests/support/support.h"
#include "zero.h"

enum { N_UNITS = 3, N_ELEMS = 1000, ODD = 1 };

static zero_comm_t *comm;
static zero_device_t *device;
static zero_stream_t stream;
static zero_engine_t *engines[2]; /* of equal shapes */
static zero_tensor_t tensors[N_UNITS];
static int rank;

#define ZERO_TRY(call)                                                                                                 \
    do {                                                                                                               \
        zero_status_t try_status = (call);                                                                             \
        if (try_status != ZERO_OK)                                                                                     \
            return try_status;                                                                                         \
    } while (0)

/* ---- a program that trains ---- */

static zero_engine_t *make_engine(int micro_steps, zero_update_time_t update)
{
    static const char *const names[N_UNITS] = {"embed", "layer.0", "head"};
    zero_model_t *model;
    zero_engine_t *engine;
    zero_config_t config = zero_config_default();
    config.dtype = ZERO_FP32;
    config.micro_steps = micro_steps;
    config.update = update;
    config.grad_clip = update == ZERO_UPDATE_IN_BACKWARD ? 0.0f : config.grad_clip;
    OK(zero_model_create(&model));
    for (int u = 0; u < N_UNITS; u++) {
        zero_unit_t unit;
        zero_tensor_desc_t desc = {
            .name = names[u], .n_dims = 1, .shape = {N_ELEMS}, .init = ZERO_INIT_NORMAL, .init_std = 0.1f};
        OK(zero_model_add_unit(model, names[u], &unit));
        OK(zero_model_add_tensor(model, unit, &desc, &tensors[u]));
    }
    OK(zero_engine_create(comm, device, model, &config, &engine));
    OK(zero_init_parameters(engine));
    zero_model_destroy(model);
    return engine;
}

static zero_status_t forward(zero_engine_t *engine, zero_pass_t pass)
{
    ZERO_TRY(zero_begin(engine, pass, stream));
    for (zero_unit_t u = 0; u < N_UNITS; u++) {
        ZERO_TRY(zero_acquire(engine, u, stream));
        ZERO_TRY(zero_release(engine, u, stream));
    }
    return ZERO_OK;
}

static zero_status_t backward(zero_engine_t *engine)
{
    static float grads[N_ELEMS];
    uint64_t random = 7 + (uint64_t)rank;
    for (zero_unit_t u = N_UNITS - 1; u >= 0; u--) {
        ZERO_TRY(zero_acquire(engine, u, stream));
        for (int i = 0; i < N_ELEMS; i++)
            grads[i] = (float)support_normal(&random);
        ZERO_TRY(zero_device_copy(device, zero_grad(engine, tensors[u]).data, grads, sizeof grads, stream));
        ZERO_TRY(zero_device_synchronize(device));
        ZERO_TRY(zero_grad_ready(engine, u, stream));
    }
    return ZERO_OK;
}

static zero_status_t train(zero_engine_t *engine, float lr)
{
    zero_step_result_t result;
    ZERO_TRY(forward(engine, ZERO_PASS_TRAIN));
    ZERO_TRY(backward(engine));
    ZERO_TRY(zero_step(engine, lr, NULL, stream));
    return zero_step_wait(engine, &result);
}

/* ---- mistakes ---- */

/* All seems well for a step. */
static zero_status_t other_lr(void)
{
    ZERO_TRY(train(engines[0], 0.25f));
    return train(engines[0], rank == ODD ? 0.5f : 0.25f);
}

static zero_status_t other_engine(void)
{
    ZERO_TRY(train(engines[rank == ODD], 0.25f));
    return train(engines[rank != ODD], 0.25f);
}

static zero_status_t other_engine_backward(void)
{
    ZERO_TRY(forward(engines[0], ZERO_PASS_TRAIN));
    ZERO_TRY(forward(engines[1], ZERO_PASS_TRAIN));
    ZERO_TRY(backward(engines[rank == ODD]));
    return backward(engines[rank != ODD]);
}

/* `if (rank == 0)` around an evaluation, here of the odd one. */
static zero_status_t one_evaluates(void)
{
    ZERO_TRY(train(engines[0], 0.25f));
    if (rank == ODD)
        ZERO_TRY(forward(engines[0], ZERO_PASS_EVAL));
    for (int i = 0; i < 3; i++)
        ZERO_TRY(train(engines[0], 0.25f));
    return ZERO_OK;
}

static zero_status_t other_call(void)
{
    ZERO_TRY(forward(engines[0], ZERO_PASS_TRAIN));
    if (rank == ODD)
        return zero_comm_barrier(comm);
    return backward(engines[0]);
}

static void leave(void)
{
    zero_engine_destroy(engines[0]);
    zero_engine_destroy(engines[1]);
    zero_device_destroy(device);
    zero_comm_destroy(comm);
    engines[0] = engines[1] = NULL;
    device = NULL;
    comm = NULL;
}

static zero_status_t one_leaves(void)
{
    ZERO_TRY(train(engines[0], 0.25f));
    if (rank == ODD) {
        leave();
        return ZERO_OK;
    }
    return train(engines[0], 0.25f);
}

/* As many bytes as a later broadcast, which could take them for its own. */
static zero_status_t one_broadcasts_twice(void)
{
    double data = rank;
    for (int i = 0; i < (rank == ODD ? 2 : 1); i++)
        ZERO_TRY(zero_comm_broadcast(comm, &data, sizeof data, ODD));
    ZERO_TRY(zero_comm_barrier(comm));
    return zero_comm_barrier(comm);
}

/* It does not ask the others first. */
static zero_status_t one_cancels(void)
{
    ZERO_TRY(forward(engines[0], ZERO_PASS_TRAIN));
    return rank == ODD ? zero_cancel(engines[0]) : backward(engines[0]);
}

static zero_status_t one_cancels_elsewhere(void)
{
    ZERO_TRY(zero_begin(engines[0], ZERO_PASS_TRAIN, stream));
    for (zero_unit_t u = 0; u < (rank == ODD ? 1 : 2); u++) {
        ZERO_TRY(zero_acquire(engines[0], u, stream));
        ZERO_TRY(zero_release(engines[0], u, stream));
    }
    return zero_cancel(engines[0]);
}

/* On devices for which the host does not wait, the others' streams wait for it. */
static zero_status_t one_cancels_before_an_exchange(void)
{
    zero_engine_t *exchanging = make_engine(1, ZERO_UPDATE_IN_STEP);
    zero_all_to_all_t *exchange;
    const void *received[3];
    ZERO_TRY(zero_all_to_all_create(exchanging, zero_comm_size(comm), 256, &exchange));
    ZERO_TRY(zero_begin(exchanging, ZERO_PASS_TRAIN, stream));
    ZERO_TRY(zero_acquire(exchanging, 0, stream));
    if (rank != ODD)
        ZERO_TRY(zero_all_to_all(exchange, 256, received, stream));
    return zero_cancel(exchanging);
}

/* Longer than any deadline of test_agree.c; mpirun ends it before. */
static void stay_away(void)
{
    for (int s = 0; s < 60; s++)
        sleep(1);
}

static zero_status_t one_stays_away(void)
{
    ZERO_TRY(train(engines[0], 0.25f));
    if (rank == ODD)
        stay_away();
    return train(engines[0], 0.25f);
}

/* The others are in the middle of a step. */
static zero_status_t one_aborts(void)
{
    ZERO_TRY(train(engines[0], 0.25f));
    if (rank != ODD)
        return train(engines[0], 0.25f);
    nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
    zero_comm_abort(comm, 3);
    return ZERO_OK;
}

static zero_status_t other_micro_steps(void)
{
    zero_engine_t *several = make_engine(2, ZERO_UPDATE_IN_STEP);
    return zero_set_micro_steps(several, rank == ODD ? 3 : 4);
}

/* Units have been updated, with two rates, before the ranks find out. */
static zero_status_t other_lr_backward(void)
{
    zero_engine_t *updating = make_engine(1, ZERO_UPDATE_IN_BACKWARD);
    const float lr = rank == ODD ? 0.5f : 0.25f;
    ZERO_TRY(zero_set_lr(updating, lr));
    const zero_status_t status = train(updating, lr);
    fprintf(stderr, "rank %d heard first: %s\n", rank, zero_last_error());
    ZERO_TRY(zero_begin(updating, ZERO_PASS_EVAL, stream));
    return status;
}

/* The same settings in the first step; in the second a rank forgets to take them back. */
static zero_status_t other_group(void)
{
    zero_group_t group;
    ZERO_TRY(zero_get_group(engines[0], tensors[1], &group));
    group.lr_scale = 0.5f;
    ZERO_TRY(zero_set_group(engines[0], tensors[1], &group));
    ZERO_TRY(train(engines[0], 0.25f));
    if (rank != ODD)
        ZERO_TRY(zero_set_group(engines[0], tensors[1], NULL));
    return train(engines[0], 0.25f);
}

/* Its bias correction would be another. */
static zero_status_t other_adam_step(void)
{
    ZERO_TRY(train(engines[0], 0.25f));
    ZERO_TRY(zero_set_adam_step(engines[0], rank == ODD ? 7 : 9));
    return train(engines[0], 0.25f);
}

static zero_status_t fill(void *user, const zero_chunk_t *chunk)
{
    (void)user;
    for (size_t i = 0; i < chunk->n_elems; i++) {
        chunk->master[i] = 1.0f;
        if (chunk->m)
            chunk->m[i] = chunk->v[i] = 0.0f;
    }
    return ZERO_OK;
}

static zero_status_t other_moments(void)
{
    return zero_set_state(engines[0], rank == ODD, fill, NULL);
}

static zero_status_t nothing(void)
{
    return train(engines[0], 0.25f);
}

static const struct {
    const char *name;
    zero_status_t (*run)(void);
} cases[] = {
    {"nothing", nothing},
    {"late", nothing},
    {"other_lr", other_lr},
    {"other_engine", other_engine},
    {"other_engine_backward", other_engine_backward},
    {"one_evaluates", one_evaluates},
    {"other_call", other_call},
    {"one_leaves", one_leaves},
    {"one_broadcasts_twice", one_broadcasts_twice},
    {"one_cancels", one_cancels},
    {"one_cancels_elsewhere", one_cancels_elsewhere},
    {"one_cancels_before_an_exchange", one_cancels_before_an_exchange},
    {"one_stays_away", one_stays_away},
    {"one_aborts", one_aborts},
    {"other_micro_steps", other_micro_steps},
    {"other_group", other_group},
    {"other_adam_step", other_adam_step},
    {"other_moments", other_moments},
    {"other_lr_backward", other_lr_backward},
};

/* ---- before there is a communicator ---- */

static zero_status_t create(const char *name, zero_comm_kind_t kind)
{
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == ODD && strcmp(name, "absent") == 0)
        stay_away();
    return zero_comm_create(rank == ODD ? ZERO_COMM_NCCL : kind, &comm);
}

/* Prints the outcome. Returns the program's exit code. */
static int finish(zero_status_t status)
{
    if (status != ZERO_OK)
        fprintf(stderr, "rank %d heard: %s\n", rank, zero_last_error());
    fprintf(stderr, "rank %d got %s\n", rank, zero_status_name(status));
    nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL); /* mpirun ends the others soon: they report, too */
    return 3;
}

int main(int argc, char **argv)
{
    CHECK(argc == 5 && freopen(argv[4], "a", stderr), "usage: disagree_cases COMM DEVICE CASE LOG");
    setvbuf(stderr, NULL, _IOLBF, BUFSIZ); /* whole lines at once */
    const zero_comm_kind_t kind = strcmp(argv[1], "mpi") == 0 ? ZERO_COMM_MPI : ZERO_COMM_AUTO;
    if (strcmp(argv[3], "late") == 0 && zero_comm_launch_rank() == ODD)
        sleep(4);
    if (strcmp(argv[3], "absent") == 0 || strcmp(argv[3], "other_kind") == 0)
        return finish(create(argv[3], kind));
    OK(zero_comm_create(kind, &comm));
    rank = zero_comm_rank(comm);
    if (strcmp(argv[2], "async") == 0)
        OK(async_device_create(comm, &(async_options_t){.seed = 1 + (uint64_t)rank, .max_delay_us = 50}, &device));
    else
        OK(zero_device_create(strcmp(argv[2], "cuda") == 0 ? ZERO_DEVICE_CUDA : ZERO_DEVICE_CPU, comm, &device));
    for (int i = 0; i < 2; i++)
        engines[i] = make_engine(1, ZERO_UPDATE_IN_STEP);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (strcmp(cases[i].name, argv[3]) != 0)
            continue;
        zero_status_t status = cases[i].run();
        if (cases[i].run != nothing)
            return finish(status);
        leave();
        return status == ZERO_OK ? 0 : 1;
    }
    CHECK(false, "no case %s", argv[3]);
}
