/* lora.c - fine-tunes a frozen network through small adapters (LoRA, Hu et al. 2021, arXiv:2106.09685).
 *
 *     mpirun -np 3 build/examples/lora 2      three ranks at stage 2; without the 2, at stage 3
 *
 * Each layer computes tanh(W x + B A x). W is the base's, frozen: 4 bytes an element over the ranks, and nothing else.
 * A and B, of rank 2, are trained. Backward goes through every layer, since the gradient of x passes through W. The
 * adapters learn a base that was moved a little.
 */
#include "zero.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { DIM = 16, RANK = 2, N_LAYERS = 3, N_SAMPLES = 48, N_STEPS = 100 };

static zero_comm_t *comm;
static zero_engine_t *engine;
static zero_unit_t layers[N_LAYERS];
static zero_tensor_t w[N_LAYERS], a[N_LAYERS], b[N_LAYERS]; /* [DIM][DIM], [RANK][DIM], [DIM][RANK] */
static float x[N_LAYERS + 1][N_SAMPLES][DIM];               /* of each layer, and what the last one makes */
static float inner[N_LAYERS][N_SAMPLES][RANK];              /* A x */
static float target[N_SAMPLES][DIM], dx[N_SAMPLES][DIM];

static void check(zero_status_t status)
{
    if (status == ZERO_OK)
        return;
    if (comm)
        zero_comm_abort(comm, 1);
    exit(1);
}

/* ---- data ---- */

/* A number from -1 to 1. */
static float number(int which, int i)
{
    return (float)((which * 7919 + i * 104729 + i * i % 8191 * 31) % 2003) / 1001.0f - 1.0f;
}

/* Element i of the base's layer. The target's is moved by a matrix of rank 1. */
static float base(int layer, int i)
{
    return 0.3f * number(layer, i);
}

static float moved(int layer, int i)
{
    return base(layer, i) + 0.2f * number(10 + layer, i / DIM) * number(20 + layer, i % DIM);
}

static void make_data(void)
{
    float next[DIM];
    for (int s = 0; s < N_SAMPLES; s++) {
        for (int i = 0; i < DIM; i++)
            target[s][i] = x[0][s][i] = number(30, s * DIM + i);
        for (int l = 0; l < N_LAYERS; l++) {
            for (int i = 0; i < DIM; i++) {
                next[i] = 0.0f;
                for (int k = 0; k < DIM; k++)
                    next[i] += moved(l, i * DIM + k) * target[s][k];
            }
            for (int i = 0; i < DIM; i++)
                target[s][i] = tanhf(next[i]);
        }
    }
}

/* ---- model ---- */

/* Packed tensors must agree in `frozen`; here W has a flat buffer of its own in each unit anyway. */
static void declare(zero_model_t *model)
{
    for (int l = 0; l < N_LAYERS; l++) {
        char name[3][32];
        snprintf(name[0], sizeof name[0], "layer.%d.w", l);
        snprintf(name[1], sizeof name[1], "layer.%d.a", l);
        snprintf(name[2], sizeof name[2], "layer.%d.b", l);
        const zero_tensor_desc_t descs[3] = {{.name = name[0], .n_dims = 2, .shape = {DIM, DIM}, .frozen = true},
                                             {.name = name[1], .n_dims = 2, .shape = {RANK, DIM}},
                                             {.name = name[2], .n_dims = 2, .shape = {DIM, RANK}}};
        check(zero_model_add_unit(model, name[0], &layers[l]));
        check(zero_model_add_tensor(model, layers[l], &descs[0], &w[l]));
        check(zero_model_add_tensor(model, layers[l], &descs[1], &a[l]));
        check(zero_model_add_tensor(model, layers[l], &descs[2], &b[l]));
    }
}

/* Sets what this rank owns: the base, small numbers in A, and zeros in B, so that training begins at the base. A
 * program with a base in files calls zero_init_parameters and zero_load_weights_partial. */
static zero_status_t fill(void *user, const zero_chunk_t *chunk)
{
    (void)user;
    for (size_t e = 0; e < chunk->n_elems; e++) {
        const int i = (int)(chunk->first + e);
        chunk->master[e] = 0.0f;
        for (int l = 0; l < N_LAYERS; l++)
            if (chunk->tensor == w[l])
                chunk->master[e] = base(l, i);
            else if (chunk->tensor == a[l])
                chunk->master[e] = 0.3f * number(40 + l, i);
    }
    return ZERO_OK;
}

/* ---- a step; samples are first, first + stride ... ---- */

static void forward_layer(int l, int first, int stride)
{
    check(zero_acquire(engine, layers[l], NULL));
    const float *weight = zero_param(engine, w[l]), *down = zero_param(engine, a[l]), *up = zero_param(engine, b[l]);
    for (int s = first; s < N_SAMPLES; s += stride) {
        for (int r = 0; r < RANK; r++) {
            inner[l][s][r] = 0.0f;
            for (int k = 0; k < DIM; k++)
                inner[l][s][r] += down[r * DIM + k] * x[l][s][k];
        }
        for (int i = 0; i < DIM; i++) {
            float sum = 0.0f;
            for (int k = 0; k < DIM; k++)
                sum += weight[i * DIM + k] * x[l][s][k];
            for (int r = 0; r < RANK; r++)
                sum += up[i * RANK + r] * inner[l][s][r];
            x[l + 1][s][i] = tanhf(sum);
        }
    }
    check(zero_release(engine, layers[l], NULL));
}

/* Adds a sample's gradients, of what goes into tanh, and replaces dx of the layer's output by that of its input. */
static void backward_sample(int l, int s, const float *weight, const float *down, const float *up, float *grad_a,
                            float *grad_b)
{
    float dz[DIM], d_inner[RANK] = {0.0f};
    for (int i = 0; i < DIM; i++) {
        dz[i] = dx[s][i] * (1.0f - x[l + 1][s][i] * x[l + 1][s][i]);
        for (int r = 0; r < RANK; r++) {
            grad_b[i * RANK + r] += dz[i] * inner[l][s][r];
            d_inner[r] += up[i * RANK + r] * dz[i];
        }
    }
    for (int k = 0; k < DIM; k++) {
        dx[s][k] = 0.0f;
        for (int i = 0; i < DIM; i++)
            dx[s][k] += weight[i * DIM + k] * dz[i];
        for (int r = 0; r < RANK; r++) {
            dx[s][k] += down[r * DIM + k] * d_inner[r];
            grad_a[r * DIM + k] += d_inner[r] * x[l][s][k];
        }
    }
}

/* There is no gradient of W: zero_grad(engine, w[l]).data is NULL. */
static void backward_layer(int l, int first, int stride)
{
    check(zero_acquire(engine, layers[l], NULL));
    float *grad_a = zero_grad(engine, a[l]).data, *grad_b = zero_grad(engine, b[l]).data;
    for (int i = 0; i < DIM * RANK; i++)
        grad_a[i] = grad_b[i] = 0.0f;
    for (int s = first; s < N_SAMPLES; s += stride)
        backward_sample(l, s, zero_param(engine, w[l]), zero_param(engine, a[l]), zero_param(engine, b[l]), grad_a,
                        grad_b);
    check(zero_grad_ready(engine, layers[l], NULL));
}

/* Returns this rank's share of the loss. */
static double pass(int first, int stride)
{
    double loss = 0.0;
    check(zero_begin(engine, ZERO_PASS_TRAIN, NULL));
    for (int l = 0; l < N_LAYERS; l++)
        forward_layer(l, first, stride);
    for (int s = first; s < N_SAMPLES; s += stride)
        for (int i = 0; i < DIM; i++) {
            const float error = x[N_LAYERS][s][i] - target[s][i];
            loss += (double)error * error / N_SAMPLES;
            dx[s][i] = 2.0f * error / N_SAMPLES;
        }
    for (int l = N_LAYERS - 1; l >= 0; l--)
        backward_layer(l, first, stride);
    return loss;
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
    check(zero_engine_create(comm, device, model, &config, &engine));
    check(zero_set_state(engine, false, fill, NULL));

    for (int step = 1; step <= N_STEPS; step++) {
        double loss = pass(zero_comm_rank(comm), zero_comm_size(comm));
        check(zero_step(engine, 0.01f, &loss, NULL));
        check(zero_step_wait(engine, &result));
        if (zero_comm_rank(comm) == 0 && (step == 1 || step % 20 == 0))
            printf("step %3d  loss %.6f\n", step, (double)result.loss);
    }

    zero_engine_destroy(engine);
    zero_model_destroy(model);
    zero_device_destroy(device);
    zero_comm_destroy(comm);
    return 0;
}
