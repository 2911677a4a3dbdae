/* count_calls.c - zerotrain that counts and times its calls of CUDA: linked into it (Makefile), with ld's --wrap of
 * every function below, so that each call comes here first. At exit rank 0 prints a line a function: "calls NAME N NS".
 * What libraries call (cuBLAS, cuDNN) is not seen; in recorded graphs they call nothing. For tests/gpu/count-calls.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/deadline.h"

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

enum {
#define NUMBER(name, parameters, arguments) NUMBER_##name,
    CUDA_CALLS(NUMBER)
#undef NUMBER
        NUMBER_cuStreamBatchMemOp,
    N_CALLS
};

static const char *const names[N_CALLS] = {
#define NAME(name, parameters, arguments) #name,
    CUDA_CALLS(NAME)
#undef NAME
        "cuStreamBatchMemOp"};

static struct {
    long long n, ns;
} calls[N_CALLS];

static void print_calls(void)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    for (int i = 0; i < N_CALLS && (!rank || strcmp(rank, "0") == 0); i++)
        printf("calls %s %lld %lld\n", names[i], calls[i].n, calls[i].ns);
}

static void note(int call, int64_t begin_ns)
{
    static int is_awaited;
    if (!is_awaited++)
        atexit(print_calls);
    calls[call].ns += zero_now_ns() - begin_ns;
    calls[call].n++;
}

#define WRAP(name, parameters, arguments)                                                                              \
    cudaError_t __real_##name parameters;                                                                              \
    cudaError_t __wrap_##name parameters;                                                                              \
    cudaError_t __wrap_##name parameters                                                                               \
    {                                                                                                                  \
        int64_t begin_ns = zero_now_ns();                                                                              \
        cudaError_t error = __real_##name arguments;                                                                   \
        note(NUMBER_##name, begin_ns);                                                                                 \
        return error;                                                                                                  \
    }
CUDA_CALLS(WRAP)
#undef WRAP

/* The driver's, which comm/copy_engine.c asks the runtime for. */
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
