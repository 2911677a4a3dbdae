/* count_calls.c - zerotrain_paced that counts and times its calls of CUDA and of the engine. It is linked into
 * zerotrain_paced (mk/gpu.mk), with ld's --wrap of every function below, so that each call comes here first. The pauses
 * before units and update are not in the times. At exit rank 0 prints a line per function, "calls NAME N US", per step:
 * the mean of COUNTED_STEPS. Calls that libraries make (cuBLAS, cuDNN) are not seen; in CUDA graphs they make none. For
 * tests/gpu/count-calls.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/system.h"
#include "tests/support/paced.h"
#include "train/data/data.h"
#include "train/model/cuda_graphs.h"
#include "train/model/model.h"

#define FIRST_STEP 20 /* after warm-up, with all graphs captured */
#define COUNTED_STEPS 20

#define CUDA_CALLS(X)                                                                                                  \
    X(cudaEventRecord, (cudaEvent_t event, cudaStream_t stream), (event, stream))                                      \
    X(cudaStreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned flags), (stream, event, flags))           \
    X(cudaMemcpyAsync, (void *dst, const void *src, size_t n, enum cudaMemcpyKind kind, cudaStream_t stream),          \
      (dst, src, n, kind, stream))                                                                                     \
    X(cudaMemcpyBatchAsync,                                                                                            \
      (void *const *dsts, const void *const *srcs, const size_t *sizes, size_t count,                                  \
       struct cudaMemcpyAttributes *attributes, size_t *indices, size_t n_attributes, cudaStream_t stream),            \
      (dsts, srcs, sizes, count, attributes, indices, n_attributes, stream))                                           \
    X(cudaMemsetAsync, (void *data, int value, size_t n, cudaStream_t stream), (data, value, n, stream))               \
    X(cudaGraphLaunch, (cudaGraphExec_t graph, cudaStream_t stream), (graph, stream))                                  \
    X(cudaLaunchKernelExC, (const cudaLaunchConfig_t *config, const void *kernel, void **args),                        \
      (config, kernel, args))                                                                                          \
    X(__cudaLaunchKernel,                                                                                              \
      (cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared_bytes, cudaStream_t stream),             \
      (kernel, grid, block, args, shared_bytes, stream))                                                               \
    X(cudaLaunchHostFunc, (cudaStream_t stream, cudaHostFn_t fn, void *user), (stream, fn, user))                      \
    X(cudaEventQuery, (cudaEvent_t event), (event))                                                                    \
    X(cudaEventElapsedTime, (float *ms, cudaEvent_t begin, cudaEvent_t end), (ms, begin, end))

/* Of zerotrain and libzero: with what they call themselves. */
#define ZERO_CALLS(X)                                                                                                  \
    X(zero_begin, (zero_engine_t * engine, zero_pass_t pass, zero_stream_t stream), (engine, pass, stream))            \
    X(zero_acquire, (zero_engine_t * engine, zero_unit_t unit, zero_stream_t stream), (engine, unit, stream))          \
    X(zero_release, (zero_engine_t * engine, zero_unit_t unit, zero_stream_t stream), (engine, unit, stream))          \
    X(zero_grad_ready, (zero_engine_t * engine, zero_unit_t unit, zero_stream_t stream), (engine, unit, stream))       \
    X(zero_step, (zero_engine_t * engine, float lr, const double *loss, zero_stream_t stream),                         \
      (engine, lr, loss, stream))                                                                                      \
    X(cuda_graphs_run,                                                                                                 \
      (cuda_graphs_t * recordings, model_t * model, zero_unit_t unit,                                                  \
       zero_status_t(*compute)(model_t * model, zero_unit_t unit)),                                                    \
      (recordings, model, unit, compute))                                                                              \
    X(data_batch, (data_t * data, int64_t step, int micro_step, const int32_t **inputs, const int32_t **targets),      \
      (data, step, micro_step, inputs, targets))

enum {
#define NUMBER(name, parameters, arguments) NUMBER_##name,
    ZERO_CALLS(NUMBER) CUDA_CALLS(NUMBER)
#undef NUMBER
        NUMBER_cuStreamBatchMemOp,
    N_CALLS
};

static const char *const names[N_CALLS] = {
#define NAME(name, parameters, arguments) #name,
    ZERO_CALLS(NAME) CUDA_CALLS(NAME)
#undef NAME
        "cuStreamBatchMemOp"};

static struct {
    long long n, ns;
} calls[N_CALLS];
static int n_steps;

static void print_calls(void)
{
    for (int i = 0; i < N_CALLS && zero_comm_launch_rank() == 0; i++)
        if (calls[i].n > 0)
            printf("calls %s %.1f %.1f\n", names[i], (double)calls[i].n / COUNTED_STEPS,
                   (double)calls[i].ns / COUNTED_STEPS * 1e-3);
}

static void note(int call, int64_t begin_ns)
{
    static int is_awaited;
    if (!is_awaited++)
        atexit(print_calls);
    n_steps += call == NUMBER_zero_step;
    if (n_steps < FIRST_STEP || n_steps >= FIRST_STEP + COUNTED_STEPS)
        return;
    calls[call].ns += zero_now_ns() - begin_ns;
    calls[call].n++;
}

/* In place of zerotrain_paced's own. */
static zero_status_t pause_before(int call)
{
    return call == NUMBER_zero_acquire || call == NUMBER_zero_step ? paced_pause() : ZERO_OK;
}

#define WRAP(type, name, parameters, arguments, before)                                                                \
    type __real_##name parameters;                                                                                     \
    type __wrap_##name parameters;                                                                                     \
    type __wrap_##name parameters                                                                                      \
    {                                                                                                                  \
        before;                                                                                                        \
        int64_t begin_ns = zero_now_ns();                                                                              \
        type status = __real_##name arguments;                                                                         \
        note(NUMBER_##name, begin_ns);                                                                                 \
        return status;                                                                                                 \
    }
#define WRAP_CUDA(name, parameters, arguments) WRAP(cudaError_t, name, parameters, arguments, (void)0)
#define WRAP_ZERO(name, parameters, arguments)                                                                         \
    WRAP(zero_status_t, name, parameters, arguments, ZERO_TRY(pause_before(NUMBER_##name)))
CUDA_CALLS(WRAP_CUDA)
ZERO_CALLS(WRAP_ZERO)

/* The driver's, which comm/gpu/copy_engine.c asks the runtime for. */
typedef CUresult (*mem_ops_fn_t)(CUstream stream, unsigned n_ops, CUstreamBatchMemOpParams *ops, unsigned flags);
static mem_ops_fn_t mem_ops;

static CUresult counted_mem_ops(CUstream stream, unsigned n_ops, CUstreamBatchMemOpParams *ops, unsigned flags)
{
    int64_t begin_ns = zero_now_ns();
    CUresult result = mem_ops(stream, n_ops, ops, flags);
    note(NUMBER_cuStreamBatchMemOp, begin_ns);
    return result;
}

cudaError_t __real_cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                                    unsigned long long flags,
                                                    enum cudaDriverEntryPointQueryResult *found);
cudaError_t __wrap_cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                                    unsigned long long flags,
                                                    enum cudaDriverEntryPointQueryResult *found);
cudaError_t __wrap_cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                                    unsigned long long flags,
                                                    enum cudaDriverEntryPointQueryResult *found)
{
    cudaError_t error = __real_cudaGetDriverEntryPointByVersion(symbol, function, version, flags, found);
    if (error == cudaSuccess && *function && strcmp(symbol, "cuStreamBatchMemOp") == 0) {
        mem_ops = (mem_ops_fn_t)*function;
        *function = (void *)counted_mem_ops;
    }
    return error;
}
