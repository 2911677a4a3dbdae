/* step.cu - the decision at the end of a step (step_math.h), by one GPU thread. The CPU's twin is step.c. */
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
