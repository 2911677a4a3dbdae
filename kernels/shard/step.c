/* step.c - the decision at the end of a step (step_math.h), on the CPU, and what it means for tensors with rules of
 * their own. The CUDA twin is step.cu. */
#include "kernels/shard/shard_isa.h"
#include "kernels/shard/step_math.h"

zero_status_t ZERO_ISA(zero_shard_decide_step)(const zero_step_rules_t *rules, float lr,
                                               const zero_contribution_t *contributions, int n_ranks,
                                               zero_step_state_t *state, zero_adam_scalars_t *scalars,
                                               zero_step_outcome_t *outcome, zero_stream_t stream)
{
    (void)stream;
    zero_step_decide(rules, lr, contributions, n_ranks, state, scalars, outcome);
    return ZERO_OK;
}

zero_status_t ZERO_ISA(zero_shard_tensor_scalars)(const zero_tensor_rules_t *rules, size_t n_tensors,
                                                  const zero_step_state_t *state, const zero_adam_scalars_t *scalars,
                                                  zero_tensor_scalars_t *by_tensor, zero_stream_t stream)
{
    (void)stream;
    for (size_t t = 0; t < n_tensors; ++t)
        zero_tensor_scalars_decide(&rules[t], state, scalars, &by_tensor[t]);
    return ZERO_OK;
}
