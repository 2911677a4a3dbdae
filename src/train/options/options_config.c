/* options_config.c - makes libzero's configuration from zerotrain's options. */
#include "train/options/options.h"

zero_config_t options_config(const options_t *o, int world_size)
{
    zero_config_t config = zero_config_default();
    config.stage = (int)o->zero.stage;
    config.dtype = (zero_dtype_t)o->train.precision;
    config.micro_steps = options_micro_steps(o, world_size);
    config.prefetch = (int)o->zero.prefetch;
    config.keep = (int)(o->zero.keep > 0 ? o->zero.keep + 1 : o->zero.keep); /* the head is behind the blocks */
    config.overlap = o->zero.overlap;
    config.reduce_every_micro_step = o->zero.reduce_every_micro_step;
    config.nccl_reduction = o->zero.reduction == REDUCTION_NCCL;
    config.shard_group = (int)o->zero.shard_group;
    config.gather_fp8 = o->zero.gather == GATHER_FP8;
    config.seed = (uint64_t)o->train.seed;
    config.optimizer = (zero_optimizer_t)o->train.optimizer;
    config.momentum = (float)o->train.momentum;
    config.muon_momentum = (float)o->train.muon_momentum;
    config.muon_steps = (int)o->train.muon_steps;
    config.beta1 = (float)o->train.beta1;
    config.beta2 = (float)o->train.beta2;
    config.eps = (float)o->train.eps;
    config.weight_decay = (float)o->train.weight_decay;
    config.grad_clip = (float)o->train.grad_clip;
    config.offload = o->zero.offload == OFFLOAD_OPTIMIZER;
    config.offload_ratio = (float)o->zero.offload_ratio;
    config.offload_update = (zero_offload_update_t)o->zero.offload_update;
    config.offload_threads = (int)o->zero.offload_threads;
    config.offload_ram = (float)o->zero.offload_ram;
    config.check = o->zero.check;
    config.forward_only = options_are_forward_only(o);
    return config;
}
