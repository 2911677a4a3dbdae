/* own_optimizer.c - an optimizer of your own on libzero: AdaGrad (Duchi et al. 2011), sharded over any number of ranks.
 *
 *     build/examples/own_optimizer                   one rank
 *     mpirun -np 3 build/examples/own_optimizer 2    three ranks at stage 2; without the 2, at stage 3
 *
 * It minimizes the mean over ranks of sum_i a_i (w_i - c_i)^2 / 2, whose gradient is a_i (w_i - c_i). libzero keeps the
 * optimizer's array, shards it, and saves it in checkpoints.
 */
#include "zero.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 1000, N_STEPS = 40 };

static zero_comm_t *comm;
static zero_engine_t *engine;
static zero_unit_t unit;
static zero_tensor_t w;

/* Ends the whole job after a failure, which has been logged. */
static void check(zero_status_t status)
{
    if (status == ZERO_OK)
        return;
    if (comm)
        zero_comm_abort(comm, 1);
    exit(1);
}

/* Updates a run of elements of a tensor: the part of it that this rank holds. m sums the squares of gradients. On a GPU
 * this would launch a kernel in the stream; all pointers would be device memory. */
static zero_status_t adagrad(void *user, const zero_own_update_t *update, zero_stream_t stream)
{
    const float eps = *(const float *)user;
    (void)stream;
    if (*update->skip)
        return ZERO_OK;
    for (size_t i = 0; i < update->n_elems; i++) {
        float g = update->grad[i] * *update->grad_scale;
        update->m[i] += g * g;
        update->weight[i] -= update->lr * g / (sqrtf(update->m[i]) + eps);
    }
    return ZERO_OK;
}

/* Returns this rank's share of the loss, and writes its share of the gradient. */
static double forward_and_backward(void)
{
    const float n_ranks = (float)zero_comm_size(comm);
    double loss = 0.0;
    check(zero_begin(engine, ZERO_PASS_TRAIN, NULL));
    check(zero_acquire(engine, unit, NULL));
    check(zero_release(engine, unit, NULL));
    check(zero_acquire(engine, unit, NULL));
    const float *weight = zero_param(engine, w);
    float *grad = zero_grad(engine, w).data;
    for (int i = 0; i < N; i++) {
        float a = (float)(1 + i % 7), distance = weight[i] - (float)(i % 11) / 10.0f;
        loss += 0.5 * (double)a * (double)distance * (double)distance / (double)n_ranks;
        grad[i] = a * distance / n_ranks;
    }
    check(zero_grad_ready(engine, unit, NULL));
    return loss;
}

int main(int argc, char **argv)
{
    zero_device_t *device;
    zero_model_t *model;
    zero_step_result_t result;
    zero_tensor_desc_t desc = {.name = "w", .n_dims = 1, .shape = {N}, .init = ZERO_INIT_ZEROS};
    float eps = 1e-8f;
    const zero_own_optimizer_t own = {.name = "adagrad", .n_arrays = 1, .update = adagrad, .user = &eps};

    check(zero_comm_create(ZERO_COMM_AUTO, &comm));
    check(zero_device_create(ZERO_DEVICE_CPU, comm, &device));
    check(zero_model_create(&model));
    check(zero_model_add_unit(model, "unit", &unit));
    check(zero_model_add_tensor(model, unit, &desc, &w));

    zero_config_t config = zero_config_default();
    config.stage = argc > 1 ? atoi(argv[1]) : 3;
    config.dtype = ZERO_FP32;
    config.grad_clip = 0.0f;
    config.optimizer = ZERO_OPTIMIZER_OWN;
    config.own_optimizer = &own;
    check(zero_engine_create(comm, device, model, &config, &engine));
    check(zero_init_parameters(engine));

    for (int step = 1; step <= N_STEPS; step++) {
        double loss = forward_and_backward();
        check(zero_step(engine, 0.1f, &loss, NULL));
        check(zero_step_wait(engine, &result));
        if (zero_comm_rank(comm) == 0)
            printf("step %d loss %.6g\n", step, (double)result.loss);
    }

    zero_engine_destroy(engine);
    zero_model_destroy(model);
    zero_device_destroy(device);
    zero_comm_destroy(comm);
    return 0;
}
