/* stage.c - the table of stages. */
#include "zero/plan/stage.h"

static const zero_stage_t stages[] = {
    {.shard_state = false, .shard_grads = false, .shard_params = false},
    {.shard_state = true, .shard_grads = false, .shard_params = false},
    {.shard_state = true, .shard_grads = true, .shard_params = false},
    {.shard_state = true, .shard_grads = true, .shard_params = true},
};

zero_stage_t zero_stage_get(const zero_config_t *config, int world_size)
{
    zero_stage_t stage = stages[config->stage];
    /* One rank's shard is the whole unit, and is used without a buffer. */
    if (world_size == 1)
        stage.shard_params = false;
    stage.accumulate_locally = !stage.shard_grads && config->micro_steps > 1 && !config->reduce_every_micro_step;
    stage.grad_dtype = stage.accumulate_locally ? ZERO_FP32 : config->dtype;
    /* In place only if a step reduces once: a later micro-step would overwrite what was reduced. */
    bool one_reduction = config->micro_steps == 1 || stage.accumulate_locally;
    stage.reduced_in_place = !stage.shard_grads && stage.grad_dtype == ZERO_FP32 && one_reduction;
    stage.reduced_grads_are_full = stage.reduced_in_place || !stage.shard_state;
    return stage;
}
