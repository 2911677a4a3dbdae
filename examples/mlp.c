/* mlp.c - a training loop of one's own: a classifier of two layers, whose last batch of an epoch is smaller.
 *
 *     mpirun -np 3 build/examples/mlp 2        three ranks at stage 2; without the 2, at stage 3
 *
 * An epoch has 101 samples in batches of 16, and so a last batch of 5. Each rank takes every N-th sample of a batch, so
 * ranks may have more or fewer of them, or none. A batch of more than 8 is computed in two micro-steps, the last one in
 * one: zero_set_micro_steps. Losses and gradients are divided by the size of the batch, wherever its samples are.
 */
#include "zero.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_SAMPLES = 101, BATCH = 16, N_EPOCHS = 12, N_IN = 5, HIDDEN = 9, N_CLASSES = 3 };

static zero_comm_t *comm;
static zero_engine_t *engine;
static zero_unit_t hidden, output;
static zero_tensor_t w1, b1, w2, b2; /* [HIDDEN][N_IN], [HIDDEN], [N_CLASSES][HIDDEN], [N_CLASSES] */
static float x[N_SAMPLES][N_IN], h[N_SAMPLES][HIDDEN], dz[N_SAMPLES][N_CLASSES], dh[N_SAMPLES][HIDDEN];
static int label[N_SAMPLES];

static void check(zero_status_t status)
{
    if (status == ZERO_OK)
        return;
    if (comm)
        zero_comm_abort(comm, 1);
    exit(1);
}

/* A number from -1 to 1. */
static float number(int which, int i)
{
    return (float)((which * 7919 + i * 104729 + i * i % 8191 * 31) % 2003) / 1001.0f - 1.0f;
}

static void make_data(void)
{
    for (int s = 0; s < N_SAMPLES; s++) {
        for (int i = 0; i < N_IN; i++)
            x[s][i] = number(1, s * N_IN + i);
        label[s] = x[s][0] * x[s][1] > 0.1f ? 0 : x[s][2] > 0.0f ? 1 : 2;
    }
}

static void add_tensor(zero_model_t *model, zero_unit_t unit, const char *name, int rows, int columns,
                       zero_tensor_t *tensor)
{
    const zero_tensor_desc_t desc = {
        .name = name, .n_dims = columns ? 2 : 1, .shape = {rows, columns}, .decay = columns > 0};
    check(zero_model_add_tensor(model, unit, &desc, tensor));
}

static void declare(zero_model_t *model)
{
    check(zero_model_add_unit(model, "hidden", &hidden));
    add_tensor(model, hidden, "hidden.weight", HIDDEN, N_IN, &w1);
    add_tensor(model, hidden, "hidden.bias", HIDDEN, 0, &b1);
    check(zero_model_add_unit(model, "output", &output));
    add_tensor(model, output, "output.weight", N_CLASSES, HIDDEN, &w2);
    add_tensor(model, output, "output.bias", N_CLASSES, 0, &b2);
}

static zero_status_t fill(void *user, const zero_chunk_t *chunk)
{
    (void)user;
    for (size_t e = 0; e < chunk->n_elems; e++)
        chunk->master[e] = 0.5f * number(10 + chunk->tensor, (int)(chunk->first + e));
    return ZERO_OK;
}

/* Computes samples first, first + stride ... below `end`; returns their share of the loss of a batch of n. */
static double forward(int first, int end, int stride, int n)
{
    double loss = 0.0;
    check(zero_begin(engine, ZERO_PASS_TRAIN, NULL));
    check(zero_acquire(engine, hidden, NULL));
    const float *w = zero_param(engine, w1), *b = zero_param(engine, b1);
    for (int s = first; s < end; s += stride)
        for (int j = 0; j < HIDDEN; j++) {
            float sum = b[j];
            for (int i = 0; i < N_IN; i++)
                sum += w[j * N_IN + i] * x[s][i];
            h[s][j] = tanhf(sum);
        }
    check(zero_release(engine, hidden, NULL));

    check(zero_acquire(engine, output, NULL));
    w = zero_param(engine, w2), b = zero_param(engine, b2);
    for (int s = first; s < end; s += stride) {
        float z[N_CLASSES], sum = 0.0f;
        for (int c = 0; c < N_CLASSES; c++) {
            z[c] = b[c];
            for (int j = 0; j < HIDDEN; j++)
                z[c] += w[c * HIDDEN + j] * h[s][j];
            sum += expf(z[c]);
        }
        for (int c = 0; c < N_CLASSES; c++)
            dz[s][c] = (expf(z[c]) / sum - (c == label[s] ? 1.0f : 0.0f)) / (float)n;
        loss += ((double)logf(sum) - (double)z[label[s]]) / n;
    }
    check(zero_release(engine, output, NULL));
    return loss;
}

/* Returns where to add a gradient: cleared, unless an earlier micro-step has written it. */
static float *cleared(zero_tensor_t tensor, size_t n_elems)
{
    const zero_grad_t grad = zero_grad(engine, tensor);
    if (!grad.accumulate)
        memset(grad.data, 0, n_elems * sizeof(float));
    return grad.data;
}

static void backward(int first, int end, int stride)
{
    check(zero_acquire(engine, output, NULL));
    const float *w = zero_param(engine, w2);
    float *gw = cleared(w2, N_CLASSES * HIDDEN), *gb = cleared(b2, N_CLASSES);
    for (int s = first; s < end; s += stride) {
        memset(dh[s], 0, sizeof dh[s]);
        for (int c = 0; c < N_CLASSES; c++) {
            gb[c] += dz[s][c];
            for (int j = 0; j < HIDDEN; j++) {
                gw[c * HIDDEN + j] += dz[s][c] * h[s][j];
                dh[s][j] += dz[s][c] * w[c * HIDDEN + j] * (1.0f - h[s][j] * h[s][j]);
            }
        }
    }
    check(zero_grad_ready(engine, output, NULL));

    check(zero_acquire(engine, hidden, NULL));
    gw = cleared(w1, HIDDEN * N_IN), gb = cleared(b1, HIDDEN);
    for (int s = first; s < end; s += stride)
        for (int j = 0; j < HIDDEN; j++) {
            gb[j] += dh[s][j];
            for (int i = 0; i < N_IN; i++)
                gw[j * N_IN + i] += dh[s][j] * x[s][i];
        }
    check(zero_grad_ready(engine, hidden, NULL));
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
    config.micro_steps = 2; /* at most */
    check(zero_engine_create(comm, device, model, &config, &engine));
    check(zero_set_state(engine, false, fill, NULL));

    const int rank = zero_comm_rank(comm), ranks = zero_comm_size(comm);
    for (int epoch = 1; epoch <= N_EPOCHS; epoch++)
        for (int start = 0; start < N_SAMPLES; start += BATCH) {
            const int n = N_SAMPLES - start < BATCH ? N_SAMPLES - start : BATCH, micro_steps = n > BATCH / 2 ? 2 : 1;
            double loss = 0.0;
            check(zero_set_micro_steps(engine, micro_steps));
            for (int m = 0; m < micro_steps; m++) {
                const int begin = start + m * BATCH / 2, end = m == micro_steps - 1 ? start + n : begin + BATCH / 2;
                loss += forward(begin + rank, end, ranks, n);
                backward(begin + rank, end, ranks);
            }
            check(zero_step(engine, 0.02f, &loss, NULL));
            check(zero_step_wait(engine, &result));
            if (rank == 0)
                printf("epoch %d batch of %d loss %.9g\n", epoch, n, (double)result.loss);
        }

    zero_engine_destroy(engine);
    zero_model_destroy(model);
    zero_device_destroy(device);
    zero_comm_destroy(comm);
    return 0;
}
