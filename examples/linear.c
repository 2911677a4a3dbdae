/* linear.c - a complete program on libzero: linear regression, y = x w + b, sharded over any number of ranks.
 *
 *     build/examples/linear                     one rank
 *     mpirun -np 3 build/examples/linear 2      three ranks at stage 2; without the 2, at stage 3
 *
 * Any number of ranks learns the same at any stage. Only where the numbers are kept differs, and libzero handles that.
 */
#include "zero.h"
#include <stdio.h>
#include <stdlib.h>

enum { N_FEATURES = 10, N_SAMPLES = 64, N_STEPS = 150 };

static zero_comm_t *comm;
static zero_engine_t *engine;
static zero_unit_t product, shift; /* a unit is gathered, used and released together: usually a layer */
static zero_tensor_t w, b;
static float x[N_SAMPLES][N_FEATURES], y[N_SAMPLES], prediction[N_SAMPLES], error[N_SAMPLES];

/* Ends the whole job after a failure, since other ranks may be waiting for this one. The failure has been logged. */
static void check(zero_status_t status)
{
    if (status == ZERO_OK)
        return;
    if (comm)
        zero_comm_abort(comm, 1);
    exit(1);
}

/* Makes the samples, from which w = 0.0, 0.1, 0.2 ... and b = 1 can be learned. */
static void make_data(void)
{
    for (int s = 0; s < N_SAMPLES; s++) {
        y[s] = 1.0f;
        for (int i = 0; i < N_FEATURES; i++) {
            x[s][i] = (float)((s * 37 + i * 101 + s * s * i) % 127) / 63.0f - 1.0f;
            y[s] += x[s][i] * 0.1f * (float)i;
        }
    }
}

/* Declares units, and the tensors in them, in the order in which the forward pass uses them. */
static void declare(zero_model_t *model)
{
    zero_tensor_desc_t w_desc = {.name = "w", .n_dims = 1, .shape = {N_FEATURES}, .init = ZERO_INIT_ZEROS};
    zero_tensor_desc_t b_desc = {.name = "b", .n_dims = 1, .shape = {1}, .init = ZERO_INIT_ZEROS};
    check(zero_model_add_unit(model, "product", &product));
    check(zero_model_add_tensor(model, product, &w_desc, &w));
    check(zero_model_add_unit(model, "shift", &shift));
    check(zero_model_add_tensor(model, shift, &b_desc, &b));
}

/* Computes predictions and errors of this rank's samples, every stride-th; returns its share of the loss. zero_acquire
 * makes a unit's full parameters resident on every rank; zero_release gives them up again. */
static double forward(int first, int stride)
{
    double loss = 0.0;
    check(zero_begin(engine, ZERO_PASS_TRAIN, NULL));
    check(zero_acquire(engine, product, NULL));
    const float *weights = zero_param(engine, w);
    for (int s = first; s < N_SAMPLES; s += stride) {
        prediction[s] = 0.0f;
        for (int i = 0; i < N_FEATURES; i++)
            prediction[s] += x[s][i] * weights[i];
    }
    check(zero_release(engine, product, NULL));

    /* Losses and gradients are summed over ranks. For the mean, divide by the number of all samples. */
    check(zero_acquire(engine, shift, NULL));
    const float *offset = zero_param(engine, b);
    for (int s = first; s < N_SAMPLES; s += stride) {
        error[s] = prediction[s] + *offset - y[s];
        loss += (double)error[s] * error[s] / N_SAMPLES;
    }
    check(zero_release(engine, shift, NULL));
    return loss;
}

/* Computes gradients, last unit first. Every element of a gradient is written; zero_grad_ready then sends the gradients
 * to the ranks that own them. */
static void backward(int first, int stride)
{
    check(zero_acquire(engine, shift, NULL));
    float *grad = zero_grad(engine, b).data;
    *grad = 0.0f;
    for (int s = first; s < N_SAMPLES; s += stride)
        *grad += 2.0f * error[s] / N_SAMPLES;
    check(zero_grad_ready(engine, shift, NULL));

    check(zero_acquire(engine, product, NULL));
    grad = zero_grad(engine, w).data;
    for (int i = 0; i < N_FEATURES; i++) {
        grad[i] = 0.0f;
        for (int s = first; s < N_SAMPLES; s += stride)
            grad[i] += 2.0f * error[s] * x[s][i] / N_SAMPLES;
    }
    check(zero_grad_ready(engine, product, NULL));
}

int main(int argc, char **argv)
{
    zero_device_t *device;
    zero_model_t *model;
    zero_step_result_t result;

    check(zero_comm_create(ZERO_COMM_AUTO, &comm));
    check(zero_device_create(ZERO_DEVICE_CPU, comm, &device)); /* the loops above are plain C */
    check(zero_model_create(&model));
    declare(model);
    make_data();

    zero_config_t config = zero_config_default();
    config.stage = argc > 1 ? atoi(argv[1]) : 3;
    config.dtype = ZERO_FP32;
    check(zero_engine_create(comm, device, model, &config, &engine)); /* allocates all memory that it will ever need */
    check(zero_init_parameters(engine));

    for (int step = 1; step <= N_STEPS; step++) {
        double loss = forward(zero_comm_rank(comm), zero_comm_size(comm));
        backward(zero_comm_rank(comm), zero_comm_size(comm));
        /* Clips by the norm over all ranks, updates this rank's shard with AdamW, publishes the new weights. */
        check(zero_step(engine, 0.01f, &loss, NULL));
        check(zero_step_wait(engine, &result)); /* on a GPU, wait one step later, so that the host runs ahead */
        if (zero_comm_rank(comm) == 0 && step % 15 == 0)
            printf("step %3d  loss %.6f\n", step, result.loss);
    }

    zero_engine_destroy(engine);
    zero_model_destroy(model);
    zero_device_destroy(device);
    zero_comm_destroy(comm);
    return 0;
}
