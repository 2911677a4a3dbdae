/* graph_cuda.c - work recorded once and replayed: CUDA graphs, captured from the context's stream. */
#include "kernels/model/cuda/context.h"
#include "kernels/model/cuda/table_entries.h"

zero_status_t zero_cuda_record_begin(zero_model_context_t *ctx)
{
    /* Calls of other threads, which know nothing of this, stay allowed. */
    ZERO_TRY_CUDA(cudaStreamBeginCapture(zero_model_stream(ctx), cudaStreamCaptureModeThreadLocal));
    return ZERO_OK;
}

zero_status_t zero_cuda_record_end(zero_model_context_t *ctx, zero_cuda_graph_t **recording)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t made = NULL;
    cudaError_t error = cudaStreamEndCapture(zero_model_stream(ctx), &graph);
    if (error == cudaSuccess)
        error = cudaGraphInstantiate(&made, graph, 0);
    if (graph != NULL)
        cudaGraphDestroy(graph);
    ZERO_TRY(zero_cuda_status(ZERO_LOG_ERROR, error, "capturing a CUDA graph"));
    *recording = (zero_cuda_graph_t *)made;
    return ZERO_OK;
}

zero_status_t zero_cuda_replay(zero_model_context_t *ctx, zero_cuda_graph_t *recording)
{
    ZERO_TRY_CUDA(cudaGraphLaunch((cudaGraphExec_t)recording, zero_model_stream(ctx)));
    return ZERO_OK;
}

void zero_cuda_graph_destroy(zero_cuda_graph_t *recording)
{
    if (recording != NULL)
        cudaGraphExecDestroy((cudaGraphExec_t)recording);
}
