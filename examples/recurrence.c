/* recurrence.c - uses the same parameters several times in a pass: a recurrent network, h = tanh(W h + U x + b) at each
 * of 6 times.
 *
 *     mpirun -np 2 build/examples/recurrence 2          a unit for each time, at stage 2; without the 2, at stage 3
 *     mpirun -np 2 build/examples/recurrence 2 loop     one unit, used in a loop
 *
 * Either way is right, and both learn the same. In the loop the parameters are resident throughout. With a unit for
 * each time, the first owns the tensors and the others share them: other units can come between two uses.
 */
#include "zero.h"
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 8, N_TIMES = 6, N_SAMPLES = 40, N_STEPS = 150 };

static zero_comm_t *comm;
static zero_engine_t *engine;
static bool is_loop;
static int n_cells;                         /* units: 1 or N_TIMES */
static zero_unit_t cells[N_TIMES], readout; /* in forward order */
static zero_tensor_t w, u, b, out;          /* [DIM][DIM], [DIM], [DIM], [DIM] */
static float x[N_SAMPLES][N_TIMES], y[N_SAMPLES];
static float h[N_TIMES + 1][N_SAMPLES][DIM], dh[N_SAMPLES][DIM]; /* h[0] is 0 */

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

/* What came later counts more. */
static void make_data(void)
{
    for (int s = 0; s < N_SAMPLES; s++) {
        y[s] = 0.0f;
        for (int t = 0; t < N_TIMES; t++) {
            x[s][t] = number(1, s * N_TIMES + t);
            y[s] = 0.7f * y[s] + 0.3f * x[s][t];
        }
    }
}

static void add_tensor(zero_model_t *model, zero_unit_t unit, const char *name, int n_dims, zero_tensor_t *tensor)
{
    const zero_tensor_desc_t desc = {
        .name = name, .n_dims = n_dims, .shape = {DIM, DIM}, .init = ZERO_INIT_NORMAL, .init_std = 0.3f};
    check(zero_model_add_tensor(model, unit, &desc, tensor));
}

static void declare(zero_model_t *model)
{
    n_cells = is_loop ? 1 : N_TIMES;
    for (int c = 0; c < n_cells; c++) {
        char name[32];
        snprintf(name, sizeof name, "cell.%d", c);
        check(zero_model_add_unit(model, name, &cells[c]));
        if (c == 0) {
            add_tensor(model, cells[c], "w", 2, &w);
            add_tensor(model, cells[c], "u", 1, &u);
            add_tensor(model, cells[c], "b", 1, &b);
        } else {
            check(zero_model_share_tensor(model, cells[c], w));
            check(zero_model_share_tensor(model, cells[c], u));
            check(zero_model_share_tensor(model, cells[c], b));
        }
    }
    check(zero_model_add_unit(model, "readout", &readout));
    add_tensor(model, readout, "out", 1, &out);
}

/* ---- one time, in the unit that is acquired; samples are first, first + stride ... ---- */

static void forward_time(int t, int first, int stride)
{
    const float *wp = zero_param(engine, w), *up = zero_param(engine, u), *bp = zero_param(engine, b);
    for (int s = first; s < N_SAMPLES; s += stride)
        for (int i = 0; i < DIM; i++) {
            float sum = up[i] * x[s][t] + bp[i];
            for (int k = 0; k < DIM; k++)
                sum += wp[i * DIM + k] * h[t][s][k];
            h[t + 1][s][i] = tanhf(sum);
        }
}

/* Clears the gradients, unless they are to be added to: then a later time, which backward came to before, has written
 * them. */
static void begin_grads(void)
{
    const zero_grad_t grads[3] = {zero_grad(engine, w), zero_grad(engine, u), zero_grad(engine, b)};
    const size_t n_elems[3] = {DIM * DIM, DIM, DIM};
    for (int g = 0; g < 3; g++)
        if (!grads[g].accumulate)
            memset(grads[g].data, 0, n_elems[g] * sizeof(float));
}

/* Adds this time's gradients, and replaces dh by that of the time before. */
static void backward_time(int t, int first, int stride)
{
    const float *wp = zero_param(engine, w);
    float *gw = zero_grad(engine, w).data, *gu = zero_grad(engine, u).data, *gb = zero_grad(engine, b).data;
    for (int s = first; s < N_SAMPLES; s += stride) {
        float dz[DIM], before[DIM] = {0.0f};
        for (int i = 0; i < DIM; i++) {
            dz[i] = dh[s][i] * (1.0f - h[t + 1][s][i] * h[t + 1][s][i]);
            gu[i] += dz[i] * x[s][t];
            gb[i] += dz[i];
            for (int k = 0; k < DIM; k++) {
                gw[i * DIM + k] += dz[i] * h[t][s][k];
                before[k] += wp[i * DIM + k] * dz[i];
            }
        }
        memcpy(dh[s], before, sizeof before);
    }
}

/* ---- a step ---- */

/* Returns this rank's share of the loss. */
static double forward(int first, int stride)
{
    double loss = 0.0;
    check(zero_begin(engine, ZERO_PASS_TRAIN, NULL));
    for (int c = 0; c < n_cells; c++) {
        check(zero_acquire(engine, cells[c], NULL));
        for (int t = c; t < (is_loop ? N_TIMES : c + 1); t++)
            forward_time(t, first, stride);
        check(zero_release(engine, cells[c], NULL));
    }
    check(zero_acquire(engine, readout, NULL));
    const float *weight = zero_param(engine, out);
    for (int s = first; s < N_SAMPLES; s += stride) {
        float error = -y[s];
        for (int i = 0; i < DIM; i++)
            error += weight[i] * h[N_TIMES][s][i];
        for (int i = 0; i < DIM; i++)
            dh[s][i] = 2.0f * error / N_SAMPLES; /* times the weight, in backward */
        loss += (double)error * error / N_SAMPLES;
    }
    check(zero_release(engine, readout, NULL));
    return loss;
}

static void backward(int first, int stride)
{
    check(zero_acquire(engine, readout, NULL));
    const float *weight = zero_param(engine, out);
    float *grad = zero_grad(engine, out).data;
    for (int i = 0; i < DIM; i++) {
        grad[i] = 0.0f;
        for (int s = first; s < N_SAMPLES; s += stride) {
            grad[i] += dh[s][i] * h[N_TIMES][s][i];
            dh[s][i] *= weight[i];
        }
    }
    check(zero_grad_ready(engine, readout, NULL));
    for (int c = n_cells - 1; c >= 0; c--) {
        check(zero_acquire(engine, cells[c], NULL));
        begin_grads();
        for (int t = is_loop ? N_TIMES - 1 : c; t >= c; t--)
            backward_time(t, first, stride);
        check(zero_grad_ready(engine, cells[c], NULL));
    }
}

int main(int argc, char **argv)
{
    zero_device_t *device;
    zero_model_t *model;
    zero_step_result_t result;

    is_loop = argc > 2 && strcmp(argv[2], "loop") == 0;
    check(zero_comm_create(ZERO_COMM_AUTO, &comm));
    check(zero_device_create(ZERO_DEVICE_CPU, comm, &device)); /* the loops above are plain C */
    check(zero_model_create(&model));
    declare(model);
    make_data();

    zero_config_t config = zero_config_default();
    config.stage = argc > 1 ? atoi(argv[1]) : 3;
    config.dtype = ZERO_FP32;
    check(zero_engine_create(comm, device, model, &config, &engine));
    check(zero_init_parameters(engine));

    for (int step = 1; step <= N_STEPS; step++) {
        double loss = forward(zero_comm_rank(comm), zero_comm_size(comm));
        backward(zero_comm_rank(comm), zero_comm_size(comm));
        check(zero_step(engine, 0.01f, &loss, NULL));
        check(zero_step_wait(engine, &result));
        if (zero_comm_rank(comm) == 0 && (step == 1 || step % 30 == 0))
            printf("step %3d  loss %.6f\n", step, (double)result.loss);
    }

    zero_engine_destroy(engine);
    zero_model_destroy(model);
    zero_device_destroy(device);
    zero_comm_destroy(comm);
    return 0;
}
