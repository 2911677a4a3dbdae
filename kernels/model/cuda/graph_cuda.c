/* graph_cuda.c - captures the work of the context's stream as a CUDA graph, and launches it again. */
#include "kernels/model/cuda/context.h"
#include "kernels/model/cuda/table_entries.h"

zero_status_t zero_cuda_record_begin(zero_model_context_t *ctx)
{
    /* Thread-local: other threads, which know nothing of this capture, may go on calling CUDA. */
    ZERO_TRY_CUDA(cudaStreamBeginCapture(zero_model_stream(ctx), cudaStreamCaptureModeThreadLocal));
    return ZERO_OK;
}

zero_status_t zero_cuda_record_end(zero_model_context_t *ctx, zero_cuda_graph_t **graph)
{
    cudaGraph_t captured = NULL;
    cudaGraphExec_t executable = NULL;
    cudaError_t error = cudaStreamEndCapture(zero_model_stream(ctx), &captured);
    if (error == cudaSuccess)
        error = cudaGraphInstantiate(&executable, captured, 0);
    if (captured != NULL)
        cudaGraphDestroy(captured);
    ZERO_TRY(zero_cuda_status(ZERO_LOG_ERROR, error, "capturing a CUDA graph"));
    *graph = (zero_cuda_graph_t *)executable;
    return ZERO_OK;
}

zero_status_t zero_cuda_replay(zero_model_context_t *ctx, zero_cuda_graph_t *graph)
{
    ZERO_TRY_CUDA(cudaGraphLaunch((cudaGraphExec_t)graph, zero_model_stream(ctx)));
    return ZERO_OK;
}

void zero_cuda_graph_destroy(zero_cuda_graph_t *graph)
{
    if (graph != NULL)
        cudaGraphExecDestroy((cudaGraphExec_t)graph);
}
