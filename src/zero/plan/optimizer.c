/* optimizer.c - see optimizer.h. */
#include "zero/plan/optimizer.h"

static zero_status_t update_adamw(const zero_shard_kernels_t *kernels, const zero_adam_t *args, zero_stream_t stream)
{
    return kernels->adam(args, stream);
}

static zero_status_t update_sgd(const zero_shard_kernels_t *kernels, const zero_adam_t *args, zero_stream_t stream)
{
    return kernels->sgd(args, stream);
}

static zero_status_t update_nesterov(const zero_shard_kernels_t *kernels, const zero_adam_t *args, zero_stream_t stream)
{
    return kernels->nesterov(args, stream);
}

static zero_status_t update_lion(const zero_shard_kernels_t *kernels, const zero_adam_t *args, zero_stream_t stream)
{
    return kernels->lion(args, stream);
}

static zero_status_t update_adam8(const zero_shard_kernels_t *kernels, const zero_adam_t *args, zero_stream_t stream)
{
    return kernels->adam8(args, stream);
}

static float beta1(const zero_config_t *config)
{
    return config->beta1;
}

static float beta2(const zero_config_t *config)
{
    return config->beta2;
}

static float momentum(const zero_config_t *config)
{
    return config->momentum;
}

static const zero_optimizer_ops_t OPTIMIZERS[ZERO_N_OPTIMIZERS] = {
    [ZERO_OPTIMIZER_ADAMW] = {"adamw", 2, true, update_adamw, beta1, beta2, false},
    [ZERO_OPTIMIZER_SGD] = {"sgd", 1, false, update_sgd, momentum, beta2, false},
    [ZERO_OPTIMIZER_NESTEROV] = {"nesterov", 1, false, update_nesterov, momentum, beta2, false},
    [ZERO_OPTIMIZER_LION] = {"lion", 1, false, update_lion, beta1, beta2, false},
    [ZERO_OPTIMIZER_OWN] = {"own", 0, false, NULL, beta1, beta2, false},
    [ZERO_OPTIMIZER_ADAMW8BIT] = {"adamw8bit", 2, true, update_adam8, beta1, beta2, true},
    [ZERO_OPTIMIZER_MUON] = {"muon", 2, true, update_adamw, beta1, beta2, false}, /* of what is no hidden matrix */
};

const zero_optimizer_ops_t *zero_optimizer_of(const zero_config_t *config)
{
    return &OPTIMIZERS[config->optimizer];
}

int zero_optimizer_n_arrays(const zero_config_t *config)
{
    return config->optimizer == ZERO_OPTIMIZER_OWN ? config->own_optimizer->n_arrays
                                                   : zero_optimizer_of(config)->n_arrays;
}

zero_array_format_t zero_optimizer_array_format(const zero_config_t *config)
{
    return zero_optimizer_of(config)->in_blocks
               ? (zero_array_format_t){.block_elems = ZERO_BLOCK8_ELEMS, .block_bytes = sizeof(zero_block8_t)}
               : (zero_array_format_t){.block_elems = 1, .block_bytes = sizeof(float)};
}

const char *zero_optimizer_name_of(const zero_config_t *config)
{
    return config->optimizer == ZERO_OPTIMIZER_OWN ? config->own_optimizer->name : zero_optimizer_of(config)->name;
}

const char *zero_optimizer_name(zero_optimizer_t optimizer)
{
    return (unsigned)optimizer < ZERO_N_OPTIMIZERS ? OPTIMIZERS[optimizer].name : "unknown";
}
