/* step.c - the decision at the end of a step (step_math.h), on the CPU. The CUDA twin is step.cu. */
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
