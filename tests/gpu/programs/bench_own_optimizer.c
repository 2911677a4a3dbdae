/* bench_own_optimizer.c - what a caller's own AdamW and momentum cost on a GPU beside libzero's, which read and write
 * the same arrays: weights in bf16 and fp16 are joined and split again around the caller's function, a run at a time.
 *
 * Prints the median time of zero_step, with all of its gradients reduced, for each.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tests/gpu/programs/own_optimizer.h"
#include "tests/mpi/expect.h"
#include "zero.h"

/* 134 million parameters: four units of eight 2048 x 2048 matrices. */
enum { STEPS = 21, N_UNITS = 4, N_MATRICES = 32, SIDE = 2048 };

static double now_ms(void)
{
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static int by_size(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static zero_model_t *declare(void)
{
    zero_model_t *model;
    zero_unit_t unit;
    zero_tensor_t tensor;
    OK(zero_model_create(&model));
    for (int i = 0; i < N_MATRICES; i++) {
        char name[32];
        snprintf(name, sizeof name, "matrix %d", i);
        const zero_tensor_desc_t desc = {
            .name = name, .n_dims = 2, .shape = {SIDE, SIDE}, .init = ZERO_INIT_NORMAL, .init_std = 0.02f};
        if (i % (N_MATRICES / N_UNITS) == 0)
            OK(zero_model_add_unit(model, name, &unit));
        OK(zero_model_add_tensor(model, unit, &desc, &tensor));
    }
    return model;
}

/* Makes a pass whose gradients are what the memory holds: the time of the update does not depend on them. */
static void pass(zero_engine_t *engine)
{
    OK(zero_begin(engine, ZERO_PASS_TRAIN, NULL));
    for (zero_unit_t unit = 0; unit < N_UNITS; unit++) {
        OK(zero_acquire(engine, unit, NULL));
        OK(zero_release(engine, unit, NULL));
    }
    for (zero_unit_t unit = N_UNITS - 1; unit >= 0; unit--) {
        OK(zero_acquire(engine, unit, NULL));
        OK(zero_grad_ready(engine, unit, NULL));
    }
}

static zero_status_t update(void *user, const zero_own_update_t *update, zero_stream_t stream)
{
    return own_cuda_update(user, update, false, stream);
}

static void measure(zero_comm_t *comm, zero_device_t *device, zero_dtype_t dtype, own_kind_t kind, bool is_own)
{
    zero_config_t config = zero_config_default();
    own_rates_t rates = {kind, config.beta1, config.beta2, config.eps, config.momentum};
    const zero_own_optimizer_t own = {
        .name = "own", .n_arrays = kind == OWN_ADAMW ? 2 : 1, .update = update, .user = &rates};
    zero_model_t *model = declare();
    zero_engine_t *engine;
    zero_step_result_t result;
    double ms[STEPS];
    config.dtype = dtype;
    config.optimizer = is_own ? ZERO_OPTIMIZER_OWN : kind == OWN_ADAMW ? ZERO_OPTIMIZER_ADAMW : ZERO_OPTIMIZER_SGD;
    config.own_optimizer = is_own ? &own : NULL;
    OK(zero_engine_create(comm, device, model, &config, &engine));
    OK(zero_init_parameters(engine));
    for (int step = 0; step < STEPS; step++) {
        pass(engine);
        OK(zero_device_synchronize(device));
        const double begin = now_ms();
        OK(zero_step(engine, 1e-4f, NULL, NULL));
        OK(zero_step_wait(engine, &result));
        ms[step] = now_ms() - begin;
    }
    qsort(ms, STEPS, sizeof ms[0], by_size);
    printf("%-4s %-8s %-9s zero_step of %d parameters: median %.3f ms (%.3f to %.3f of %d)\n", zero_dtype_name(dtype),
           kind == OWN_ADAMW ? "AdamW" : "momentum", is_own ? "own" : "libzero's", N_MATRICES * SIDE * SIDE,
           ms[STEPS / 2], ms[0], ms[STEPS - 1], STEPS);
    zero_engine_destroy(engine);
    zero_model_destroy(model);
}

int main(void)
{
    zero_comm_t *comm;
    zero_device_t *device;
    OK(zero_comm_create(ZERO_COMM_AUTO, &comm));
    OK(zero_device_create(ZERO_DEVICE_CUDA, comm, &device));
    for (int dtype = ZERO_FP32; dtype <= ZERO_FP16; dtype++)
        for (int kind = OWN_ADAMW; kind <= OWN_MOMENTUM; kind++)
            for (int is_own = 0; is_own < 2; is_own++)
                measure(comm, device, (zero_dtype_t)dtype, (own_kind_t)kind, is_own);
    zero_device_destroy(device);
    zero_comm_destroy(comm);
    return 0;
}
