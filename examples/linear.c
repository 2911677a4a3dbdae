/* linear.c - a complete program on libzero: linear regression, y = x w + b, sharded over any number of ranks.
 *
 *     build/examples/linear                     one rank
 *     mpirun -np 3 build/examples/linear 2      three ranks at stage 2; without the 2, at stage 3
 *
 * Any number of ranks at any stage learns the same. What differs is which rank holds what, and libzero takes care of
 * it.
 */
#include <stdio.h>
#include <stdlib.h>
#include "zero.h"

enum { N_FEATURES = 10, N_SAMPLES = 64, N_STEPS = 150 };

static zero_comm_t *comm;
static float x[N_SAMPLES][N_FEATURES], y[N_SAMPLES], prediction[N_SAMPLES], error[N_SAMPLES];

/* Ends the whole job after a failure, because other ranks may be waiting for this one. libzero has logged the reason.
 */
static void check(zero_status_t status)
{
    if (status == ZERO_OK)
        return;
    if (comm)
        zero_comm_abort(comm, 1);
    exit(1);
}

/* Makes samples of what is to be learnt: w = 0.0, 0.1, 0.2 ... and b = 1. */
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

int main(int argc, char **argv)
{
    zero_device_t *device;
    zero_model_t *model;
    zero_engine_t *engine;
    zero_unit_t product, shift; /* unit: tensors that are gathered and released together; usually a layer */
    zero_tensor_t w, b;

    check(zero_comm_create(ZERO_COMM_AUTO, &comm));
    check(zero_device_create(ZERO_DEVICE_CPU, comm, &device)); /* the loops below are plain C */
    make_data();

    /* The model: units and their tensors, in the order of the forward pass. */
    zero_tensor_desc_t w_desc = {.name = "w", .n_dims = 1, .shape = {N_FEATURES}, .init = ZERO_INIT_ZEROS};
    zero_tensor_desc_t b_desc = {.name = "b", .n_dims = 1, .shape = {1}, .init = ZERO_INIT_ZEROS};
    check(zero_model_create(&model));
    check(zero_model_add_unit(model, "product", &product));
    check(zero_model_add_tensor(model, product, &w_desc, &w));
    check(zero_model_add_unit(model, "shift", &shift));
    check(zero_model_add_tensor(model, shift, &b_desc, &b));

    zero_config_t config = zero_config_default();
    config.stage = argc > 1 ? atoi(argv[1]) : 3;
    config.dtype = ZERO_FP32;
    check(zero_engine_create(comm, device, model, &config, &engine)); /* allocates everything, once */
    check(zero_init_parameters(engine));

    for (int step = 1; step <= N_STEPS; step++) {
        const int first = zero_comm_rank(comm), stride = zero_comm_size(comm); /* this rank's samples: every size-th */

        /* Forward. acquire gathers a unit's full parameters on every rank; release gives them up again. */
        check(zero_begin(engine, ZERO_PASS_TRAIN, NULL));
        check(zero_acquire(engine, product, NULL));
        const float *weights = zero_param(engine, w);
        for (int s = first; s < N_SAMPLES; s += stride) {
            prediction[s] = 0.0f;
            for (int i = 0; i < N_FEATURES; i++)
                prediction[s] += x[s][i] * weights[i];
        }
        check(zero_release(engine, product, NULL));

        /* Losses and gradients are summed over ranks, so divide by the number of all samples, not of this rank's. */
        double loss = 0.0;
        check(zero_acquire(engine, shift, NULL));
        const float *offset = zero_param(engine, b);
        for (int s = first; s < N_SAMPLES; s += stride) {
            error[s] = prediction[s] + *offset - y[s];
            loss += (double)error[s] * error[s] / N_SAMPLES;
        }
        check(zero_release(engine, shift, NULL));

        /* Backward, last unit first. Write every element of a gradient; grad_ready then starts its reduction. */
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

        /* Clips by the norm over all ranks, updates this rank's shards by AdamW, and publishes the new weights. */
        zero_step_result_t result;
        check(zero_step(engine, 0.01f, &loss, NULL));
        check(zero_step_wait(engine, &result)); /* with GPUs call it a step later: then the host runs ahead */
        if (first == 0 && step % 15 == 0)
            printf("step %3d  loss %.6f\n", step, result.loss);
    }

    zero_engine_destroy(engine);
    zero_model_destroy(model);
    zero_device_destroy(device);
    zero_comm_destroy(comm);
    return 0;
}
