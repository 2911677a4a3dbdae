/* own_matrices.cu - examples/own_matrices.c on GPUs: an optimizer of your own whose three parts are kernels in the
 * stream that libzero gives them. Momentum, of which every row of a matrix is normalized.
 *
 *     build/examples/own_matrices_cuda                  one GPU
 *     mpirun -np 2 build/examples/own_matrices_cuda 2   two GPUs at stage 2; without the 2, at stage 3
 *     mpirun -np 2 build/examples/own_matrices_cuda 3 shared     two ranks that share a GPU
 *
 * All numbers that an update needs are in device memory, so the host waits for nothing: not for the gradients' norm,
 * nor to learn that a step is skipped. Losses are those of own_matrices.c but for rounding, and the text is the same at
 * every stage and on any number of ranks that is a power of two.
 */
#include "zero.h"
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 25, COLS = 43, N_BIAS = 25, N_STEPS = 40, THREADS = 256 };

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

/* What a function of an optimizer's returns after its launches. */
static zero_status_t launched(void)
{
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess)
        fprintf(stderr, "own_matrices_cuda: %s\n", cudaGetErrorString(error));
    return error == cudaSuccess ? ZERO_OK : ZERO_ERROR_DEVICE;
}

static unsigned blocks_for(size_t n)
{
    return (unsigned)((n + THREADS - 1) / THREADS);
}

/* ---- the optimizer: one thread per element of a run, one block per row of a matrix ---- */

static __global__ void advance_and_point(zero_own_update_t run, float momentum)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < run.n_elems && !*run.skip)
        run.direction[i] = run.m[i] = momentum * run.m[i] + run.grad[i] * *run.grad_scale;
}

static __global__ void normalize_row(zero_own_whole_t whole)
{
    __shared__ double sums[THREADS];
    float *row = whole.direction + blockIdx.x * whole.cols;
    double squares = 0.0;
    if (*whole.skip)
        return;
    for (uint64_t i = threadIdx.x; i < whole.cols; i += THREADS)
        squares += (double)row[i] * (double)row[i];
    sums[threadIdx.x] = squares;
    __syncthreads();
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half)
            sums[threadIdx.x] += sums[threadIdx.x + half];
        __syncthreads();
    }
    for (uint64_t i = threadIdx.x; i < whole.cols; i += THREADS)
        row[i] = (float)((double)row[i] / (sqrt(sums[0]) + 1e-12));
}

/* Without a direction (a vector) the state advances here. */
static __global__ void step_weights(zero_own_update_t run, float momentum)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= run.n_elems || *run.skip)
        return;
    if (run.direction == NULL)
        run.m[i] = momentum * run.m[i] + run.grad[i] * *run.grad_scale;
    run.weight[i] -= run.lr * (run.direction != NULL ? run.direction[i] : run.m[i]);
}

static zero_status_t prepare(void *user, const zero_own_update_t *run, zero_stream_t stream)
{
    (void)user;
    advance_and_point<<<blocks_for(run->n_elems), THREADS, 0, (cudaStream_t)stream>>>(*run, MOMENTUM);
    return launched();
}

static zero_status_t normalize_rows(void *user, const zero_own_whole_t *whole, zero_stream_t stream)
{
    (void)user;
    normalize_row<<<(unsigned)whole->rows, THREADS, 0, (cudaStream_t)stream>>>(*whole);
    return launched();
}

static zero_status_t update(void *user, const zero_own_update_t *run, zero_stream_t stream)
{
    (void)user;
    step_weights<<<blocks_for(run->n_elems), THREADS, 0, (cudaStream_t)stream>>>(*run, MOMENTUM);
    return launched();
}

/* ---- training ---- */

/* Adds a tensor's share of the loss, and writes its gradient. One block, so that the sum has one order. */
static __global__ void add_distance(double *loss, const float *w, float *grad, int n, int n_ranks)
{
    __shared__ double sums[THREADS];
    double mine = 0.0;
    for (int i = (int)threadIdx.x; i < n; i += THREADS) {
        const float a = (float)(1 + i % 7), off = w[i] - (float)(i % 11) / 4.0f;
        mine += 0.5 * (double)a * (double)off * (double)off / n_ranks;
        grad[i] = a * off / (float)n_ranks;
    }
    sums[threadIdx.x] = mine;
    __syncthreads();
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half)
            sums[threadIdx.x] += sums[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        *loss += sums[0];
}

static void queue_distance(zero_tensor_t tensor, int n, double *loss, zero_stream_t queue)
{
    add_distance<<<1, THREADS, 0, (cudaStream_t)queue>>>(loss, (const float *)zero_param(engine, tensor),
                                                         (float *)zero_grad(engine, tensor).data, n,
                                                         zero_comm_size(comm));
    check(launched());
}

static void queue_passes(double *loss, zero_stream_t queue)
{
    if (cudaMemsetAsync(loss, 0, sizeof *loss, (cudaStream_t)queue) != cudaSuccess)
        check(launched());
    check(zero_begin(engine, ZERO_PASS_TRAIN, queue));
    check(zero_acquire(engine, unit, queue));
    check(zero_release(engine, unit, queue));
    check(zero_acquire(engine, unit, queue));
    queue_distance(matrix, ROWS * COLS, loss, queue);
    queue_distance(bias, N_BIAS, loss, queue);
    check(zero_grad_ready(engine, unit, queue));
}

static void declare(zero_model_t *model, const char *name, int rows, int cols, zero_tensor_t *tensor)
{
    zero_tensor_desc_t desc = {};
    desc.name = name;
    desc.n_dims = cols > 0 ? 2 : 1;
    desc.shape[0] = rows;
    desc.shape[1] = cols;
    desc.hidden_matrix = cols > 0;
    check(zero_model_add_tensor(model, unit, &desc, tensor));
}

static zero_config_t make_config(int stage, const zero_own_optimizer_t *own)
{
    zero_config_t config = zero_config_default();
    config.stage = stage;
    config.dtype = ZERO_FP32;
    config.grad_clip = 0.0f;
    config.optimizer = ZERO_OPTIMIZER_OWN;
    config.own_optimizer = own;
    return config;
}

int main(int argc, char **argv)
{
    const bool shared = argc > 2 && strcmp(argv[2], "shared") == 0;
    zero_device_t *device;
    zero_stream_t queue;
    zero_model_t *model;
    zero_step_result_t result;
    zero_own_optimizer_t own = {};
    own.name = "row momentum";
    own.n_arrays = 1;
    own.prepare = prepare;
    own.whole = normalize_rows;
    own.update = update;

    check(zero_comm_create(ZERO_COMM_AUTO, &comm));
    check(zero_device_create(shared ? ZERO_DEVICE_CUDA_SHARED : ZERO_DEVICE_CUDA, comm, &device));
    check(zero_stream_create(device, &queue));
    check(zero_model_create(&model));
    check(zero_model_add_unit(model, "unit", &unit));
    declare(model, "w", ROWS, COLS, &matrix);
    declare(model, "b", N_BIAS, 0, &bias);
    const zero_config_t config = make_config(argc > 1 ? atoi(argv[1]) : 3, &own);
    check(zero_engine_create(comm, device, model, &config, &engine));
    check(zero_init_parameters(engine));

    void *loss;
    check(zero_alloc(engine, ZERO_MEMORY_DATA, sizeof(double), &loss));
    for (int step = 1; step <= N_STEPS; step++) {
        queue_passes((double *)loss, queue);
        check(zero_step(engine, 0.03125f, (const double *)loss, queue));
        check(zero_step_wait(engine, &result));
        if (zero_comm_rank(comm) == 0)
            printf("step %d loss %.9g\n", step, (double)result.loss);
    }

    zero_engine_destroy(engine);
    zero_model_destroy(model);
    zero_stream_destroy(device, queue);
    zero_device_destroy(device);
    zero_comm_destroy(comm);
    return 0;
}
