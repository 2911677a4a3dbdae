/* step.cu - the decision at the end of a step (step_math.h), by one GPU thread, and what it means for tensors with
 * rules of their own, by one thread each. The CPU's twin is step.c. */
#include "kernels/shard/cuda/group.cuh"
#include "kernels/shard/cuda/shard_cuda.h"
#include "kernels/shard/step_math.h"

static __global__ void decide_step_kernel(zero_step_rules_t rules, float lr, const zero_contribution_t *contributions,
                                          int n_ranks, zero_step_state_t *state, zero_adam_scalars_t *scalars,
                                          zero_step_outcome_t *outcome)
{
    zero_step_decide(&rules, lr, contributions, n_ranks, state, scalars, outcome);
}

cudaError_t zero_cuda_decide_step(const zero_step_rules_t *rules, float lr, const zero_contribution_t *contributions,
                                  int n_ranks, zero_step_state_t *state, zero_adam_scalars_t *scalars,
                                  zero_step_outcome_t *outcome, cudaStream_t stream)
{
    decide_step_kernel<<<1, 1, 0, stream>>>(*rules, lr, contributions, n_ranks, state, scalars, outcome);
    return cudaGetLastError();
}

constexpr unsigned THREADS = 128;

static __global__ void __launch_bounds__(THREADS)
    tensor_scalars_kernel(const zero_tensor_rules_t *rules, size_t n_tensors, const zero_step_state_t *state,
                          const zero_adam_scalars_t *scalars, zero_tensor_scalars_t *by_tensor)
{
    const size_t t = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (t < n_tensors)
        zero_tensor_scalars_decide(&rules[t], state, scalars, &by_tensor[t]);
}

cudaError_t zero_cuda_tensor_scalars(const zero_tensor_rules_t *rules, size_t n_tensors, const zero_step_state_t *state,
                                     const zero_adam_scalars_t *scalars, zero_tensor_scalars_t *by_tensor,
                                     cudaStream_t stream)
{
    tensor_scalars_kernel<<<blocks_for(n_tensors, THREADS), THREADS, 0, stream>>>(rules, n_tensors, state, scalars,
                                                                                  by_tensor);
    return cudaGetLastError();
}
