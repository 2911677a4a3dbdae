/* own_matrices.c - an optimizer of your own that needs matrices whole: momentum, of which every row is normalized, so
 * that each row of the weights moves by the learning rate. Sharded over any number of ranks, none of which holds whole
 * rows.
 *
 *     build/examples/own_matrices                   one rank
 *     mpirun -np 3 build/examples/own_matrices 2    three ranks at stage 2; without the 2, at stage 3
 *
 * It minimizes the mean over ranks of sum_i a_i (w_i - c_i)^2 / 2 over a matrix w and a vector, whose gradient is a_i
 * (w_i - c_i). The vector is updated by plain momentum.
 */
#include "zero.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 25, COLS = 43, N_BIAS = 25, N_STEPS = 40 };

static const float MOMENTUM = 0.75f;
static zero_comm_t *comm;
static zero_engine_t *engine;
static zero_unit_t unit;
static zero_tensor_t matrix, bias;

/* Ends the whole job after a failure, which has been logged. */
static void check(zero_status_t status)
{
    if (status == ZERO_OK)
        return;
    if (comm)
        zero_comm_abort(comm, 1);
    exit(1);
}

/* ---- the optimizer: on a GPU each of these would launch a kernel in the stream ---- */

static void advance(const zero_own_update_t *run)
{
    for (size_t i = 0; i < run->n_elems; i++)
        run->m[i] = MOMENTUM * run->m[i] + run->grad[i] * *run->grad_scale;
}

/* Of the matrix, first: this rank's part of the momentum, and of the direction. */
static zero_status_t prepare(void *user, const zero_own_update_t *run, zero_stream_t stream)
{
    (void)user, (void)stream;
    if (*run->skip)
        return ZERO_OK;
    advance(run);
    for (size_t i = 0; i < run->n_elems; i++)
        run->direction[i] = run->m[i];
    return ZERO_OK;
}

/* Then: the whole direction, on one of the ranks. */
static zero_status_t normalize_rows(void *user, const zero_own_whole_t *whole, zero_stream_t stream)
{
    (void)user, (void)stream;
    for (uint64_t row = 0; row < whole->rows && !*whole->skip; row++) {
        float *of_row = whole->direction + row * whole->cols;
        double squares = 0.0;
        for (uint64_t i = 0; i < whole->cols; i++)
            squares += (double)of_row[i] * (double)of_row[i];
        for (uint64_t i = 0; i < whole->cols; i++)
            of_row[i] = (float)((double)of_row[i] / (sqrt(squares) + 1e-12));
    }
    return ZERO_OK;
}

/* Last: this rank's part of the weights. The vector has this step alone, and no direction. */
static zero_status_t update(void *user, const zero_own_update_t *run, zero_stream_t stream)
{
    (void)user, (void)stream;
    if (*run->skip)
        return ZERO_OK;
    if (!run->direction)
        advance(run);
    for (size_t i = 0; i < run->n_elems; i++)
        run->weight[i] -= run->lr * (run->direction ? run->direction[i] : run->m[i]);
    return ZERO_OK;
}

/* ---- training ---- */

/* Adds a tensor's share of the loss, and writes its gradient. */
static double distance(zero_tensor_t tensor, int n)
{
    const float *w = zero_param(engine, tensor);
    float *grad = zero_grad(engine, tensor).data;
    double loss = 0.0;
    for (int i = 0; i < n; i++) {
        const float a = (float)(1 + i % 7), off = w[i] - (float)(i % 11) / 4.0f;
        loss += 0.5 * (double)a * (double)off * (double)off / zero_comm_size(comm);
        grad[i] = a * off / (float)zero_comm_size(comm);
    }
    return loss;
}

/* Returns this rank's share of the loss, and writes its share of the gradients. */
static double forward_and_backward(void)
{
    check(zero_begin(engine, ZERO_PASS_TRAIN, NULL));
    check(zero_acquire(engine, unit, NULL));
    check(zero_release(engine, unit, NULL));
    check(zero_acquire(engine, unit, NULL));
    const double loss = distance(matrix, ROWS * COLS) + distance(bias, N_BIAS);
    check(zero_grad_ready(engine, unit, NULL));
    return loss;
}

int main(int argc, char **argv)
{
    zero_device_t *device;
    zero_model_t *model;
    zero_step_result_t result;
    const zero_tensor_desc_t matrix_desc = {.name = "w", .n_dims = 2, .shape = {ROWS, COLS}, .hidden_matrix = true};
    const zero_tensor_desc_t bias_desc = {.name = "b", .n_dims = 1, .shape = {N_BIAS}};
    const zero_own_optimizer_t own = {
        .name = "row momentum", .n_arrays = 1, .prepare = prepare, .whole = normalize_rows, .update = update};

    check(zero_comm_create(ZERO_COMM_AUTO, &comm));
    check(zero_device_create(ZERO_DEVICE_CPU, comm, &device));
    check(zero_model_create(&model));
    check(zero_model_add_unit(model, "unit", &unit));
    check(zero_model_add_tensor(model, unit, &matrix_desc, &matrix));
    check(zero_model_add_tensor(model, unit, &bias_desc, &bias));

    zero_config_t config = zero_config_default();
    config.stage = argc > 1 ? atoi(argv[1]) : 3;
    config.dtype = ZERO_FP32;
    config.grad_clip = 0.0f;
    config.optimizer = ZERO_OPTIMIZER_OWN;
    config.own_optimizer = &own;
    check(zero_engine_create(comm, device, model, &config, &engine));
    check(zero_init_parameters(engine));

    for (int step = 1; step <= N_STEPS; step++) {
        const double loss = forward_and_backward();
        check(zero_step(engine, 0.03125f, &loss, NULL));
        check(zero_step_wait(engine, &result));
        if (zero_comm_rank(comm) == 0)
            printf("step %d loss %.9g\n", step, (double)result.loss);
    }

    zero_engine_destroy(engine);
    zero_model_destroy(model);
    zero_device_destroy(device);
    zero_comm_destroy(comm);
    return 0;
}
