/* linear.cu - examples/linear.c on GPUs, as CUDA code would use libzero: bf16, kernels, a stream, and a host that runs
 * a step ahead.
 *
 *     build/examples/linear_cuda                     one GPU
 *     mpirun -np 2 build/examples/linear_cuda 2      two GPUs at stage 2; without the 2, at stage 3
 *     nvcc examples/linear.cu $(pkg-config --cflags --libs zero)     after `make install`
 *
 * Data, steps and output are those of linear.c. Parameters and gradients are bf16 (the master weights, which AdamW
 * updates, are fp32), so the losses differ from linear.c's in about the third digit, until they are small. For one
 * number of ranks, every stage prints the same text. With another number of ranks the samples are split differently, so
 * the rounding differs.
 */
#include "zero.h"
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

enum { N_FEATURES = 10, N_SAMPLES = 64, N_STEPS = 150 };

/* One rank's samples, and what is computed from them. */
typedef struct batch {
    int n;
    float x[N_SAMPLES][N_FEATURES + 1]; /* the last is 1, the factor of b */
    float y[N_SAMPLES], prediction[N_SAMPLES], error[N_SAMPLES];
    double loss;
} batch_t;

static zero_comm_t *comm;
static batch_t on_host;
static zero_unit_t product, shift;
static zero_tensor_t w, b;

/* Ends the whole job after a failure, since other ranks may be waiting for this one. The failure has been logged. */
static void check(zero_status_t status)
{
    if (status == ZERO_OK)
        return;
    if (comm)
        zero_comm_abort(comm, 1);
    exit(1);
}

static void check_launches(void)
{
    cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "linear_cuda: %s\n", cudaGetErrorString(error));
    check(ZERO_ERROR_DEVICE);
}

/* Makes this rank's samples (every size-th), from which w = 0.0, 0.1, 0.2 ... and b = 1 can be learned. */
static void make_data(batch_t *batch)
{
    for (int s = zero_comm_rank(comm); s < N_SAMPLES; s += zero_comm_size(comm)) {
        float *x = batch->x[batch->n], *y = &batch->y[batch->n++];
        *y = x[N_FEATURES] = 1.0f;
        for (int i = 0; i < N_FEATURES; i++) {
            x[i] = (float)((s * 37 + i * 101 + s * s * i) % 127) / 63.0f - 1.0f;
            *y += x[i] * 0.1f * (float)i;
        }
    }
}

/* ---- kernels: no atomics, so that the same data give the same bits ---- */

/* One thread per sample. */
static __global__ void multiply(batch_t *batch, const __nv_bfloat16 *w)
{
    int s = (int)threadIdx.x;
    if (s >= batch->n)
        return;
    float sum = 0.0f;
    for (int i = 0; i < N_FEATURES; i++)
        sum += batch->x[s][i] * __bfloat162float(w[i]);
    batch->prediction[s] = sum;
}

/* One thread per sample; then thread 0 adds up the losses. Losses and gradients are summed over ranks: for the mean,
 * divide by the number of all samples. */
static __global__ void add_and_compare(batch_t *batch, const __nv_bfloat16 *b)
{
    int s = (int)threadIdx.x;
    if (s < batch->n)
        batch->error[s] = batch->prediction[s] + __bfloat162float(*b) - batch->y[s];
    __syncthreads();
    if (s > 0)
        return;
    double sum = 0.0;
    for (int i = 0; i < batch->n; i++)
        sum += (double)batch->error[i] * batch->error[i];
    batch->loss = sum / N_SAMPLES;
}

/* One thread per element: the gradients of the factors of x[][first], x[][first + 1] ... With one micro-step, and no
 * tensor that units share, zero_grad's dtype is config.dtype and every element must be overwritten. */
static __global__ void gradient(const batch_t *batch, int first, __nv_bfloat16 *grad)
{
    int i = (int)threadIdx.x;
    float sum = 0.0f;
    for (int s = 0; s < batch->n; s++)
        sum += 2.0f * batch->error[s] * batch->x[s][first + i] / N_SAMPLES;
    grad[i] = __float2bfloat16(sum);
}

/* ---- the program ---- */

/* Declares a unit (gathered, used and released together: usually a layer) with one vector that starts as zeros. */
static void declare(zero_model_t *model, const char *name, int n, zero_unit_t *unit, zero_tensor_t *tensor)
{
    zero_tensor_desc_t desc = {};
    desc.name = name;
    desc.n_dims = 1;
    desc.shape[0] = n;
    desc.init = ZERO_INIT_ZEROS;
    check(zero_model_add_unit(model, name, unit));
    check(zero_model_add_tensor(model, *unit, &desc, tensor));
}

/* Queues a forward and a backward pass. Ask for a parameter's address after every acquire: it may have changed. */
static void queue_passes(zero_engine_t *engine, batch_t *batch, zero_stream_t queue)
{
    cudaStream_t stream = (cudaStream_t)queue;
    check(zero_begin(engine, ZERO_PASS_TRAIN, queue));
    check(zero_acquire(engine, product, queue));
    multiply<<<1, N_SAMPLES, 0, stream>>>(batch, (const __nv_bfloat16 *)zero_param(engine, w));
    check(zero_release(engine, product, queue));
    check(zero_acquire(engine, shift, queue));
    add_and_compare<<<1, N_SAMPLES, 0, stream>>>(batch, (const __nv_bfloat16 *)zero_param(engine, b));
    check(zero_release(engine, shift, queue));

    /* Backward, last unit first. */
    check(zero_acquire(engine, shift, queue));
    gradient<<<1, 1, 0, stream>>>(batch, N_FEATURES, (__nv_bfloat16 *)zero_grad(engine, b).data);
    check(zero_grad_ready(engine, shift, queue));
    check(zero_acquire(engine, product, queue));
    gradient<<<1, N_FEATURES, 0, stream>>>(batch, 0, (__nv_bfloat16 *)zero_grad(engine, w).data);
    check(zero_grad_ready(engine, product, queue));
    check_launches();
}

static void report_oldest_step(zero_engine_t *engine)
{
    zero_step_result_t result;
    check(zero_step_wait(engine, &result));
    if (zero_comm_rank(comm) == 0 && result.step % 15 == 0)
        printf("step %3d  loss %.6f\n", (int)result.step, result.loss);
}

int main(int argc, char **argv)
{
    zero_device_t *device;
    zero_stream_t queue;
    zero_model_t *model;
    zero_engine_t *engine;

    check(zero_comm_create(ZERO_COMM_AUTO, &comm));
    check(zero_device_create(ZERO_DEVICE_CUDA, comm, &device)); /* this rank's GPU, current from here on */
    check(zero_stream_create(device, &queue));

    check(zero_model_create(&model)); /* units in the order in which the forward pass uses them */
    declare(model, "w", N_FEATURES, &product, &w);
    declare(model, "b", 1, &shift, &b);
    zero_config_t config = zero_config_default();
    config.stage = argc > 1 ? atoi(argv[1]) : 3;
    config.dtype = ZERO_BF16;
    check(zero_engine_create(comm, device, model, &config, &engine)); /* allocates all memory that it will ever need */
    check(zero_init_parameters(engine));

    void *memory; /* memory from cudaMalloc would do as well */
    check(zero_alloc(engine, ZERO_MEMORY_DATA, sizeof(batch_t), &memory));
    batch_t *batch = (batch_t *)memory;
    make_data(&on_host);
    check(zero_device_copy(device, batch, &on_host, sizeof on_host, queue));

    /* Only report_oldest_step waits for the GPU. All else is queued in the stream, where libzero orders its own work
     * before and after the kernels. */
    for (int step = 1; step <= N_STEPS; step++) {
        queue_passes(engine, batch, queue);
        /* Reads the loss in stream order, so the next step's kernels may overwrite it. The host must not touch it. */
        check(zero_step(engine, 0.01f, &batch->loss, queue));
        if (step > 1) /* one step late: while the host waits for the previous step, the GPU computes this one */
            report_oldest_step(engine);
    }
    report_oldest_step(engine);

    zero_engine_destroy(engine);
    zero_model_destroy(model);
    zero_stream_destroy(device, queue);
    zero_device_destroy(device);
    zero_comm_destroy(comm);
    return 0;
}
