/* schedule.h - settings of single tensors (zero_set_group) that change from step to step: what programs set before a
 * step, and what their references compute with. */
#ifndef TEST_SCHEDULE_H
#define TEST_SCHEDULE_H

#include <string.h>

#include "tests/mpi/expect.h"
#include "zero.h"

/* Whether a tensor has settings of its own in a step: none in the first and in every sixth, then all, then some. */
static inline bool is_scheduled(zero_tensor_t tensor, int64_t step)
{
    return step % 6 >= 2 && (step % 6 < 4 || tensor % 2 == 0);
}

/* A learning rate of 0 among them, decay where none is declared, and betas far from the configuration's. */
static inline zero_group_t scheduled_group(const zero_config_t *config, bool decay, zero_tensor_t tensor, int64_t step)
{
    zero_group_t group = {.lr_scale = 1.0f,
                          .weight_decay = decay ? config->weight_decay : 0.0f,
                          .beta1 = config->beta1,
                          .beta2 = config->beta2,
                          .eps = config->eps,
                          .momentum = config->momentum};
    if (!is_scheduled(tensor, step))
        return group;
    group.lr_scale = 0.3f * (float)(tensor % 4) * (float)(1 + step % 3);
    group.weight_decay = 0.3f * (float)(tensor % 3);
    group.beta1 = 0.5f + 0.1f * (float)(tensor % 4);
    group.beta2 = 0.8f + 0.03f * (float)(tensor % 5);
    group.eps = 1e-3f * (float)(1 + tensor % 2);
    if (config->optimizer != ZERO_OPTIMIZER_OWN)
        group.momentum = 0.3f + 0.2f * (float)(tensor % 3);
    return group;
}

/* Makes the calls that are due before a step. */
static inline void set_scheduled_groups(zero_engine_t *engine, const zero_config_t *config, zero_tensor_t tensor,
                                        bool decay, int64_t step)
{
    zero_group_t want = scheduled_group(config, decay, tensor, step), got;
    if (is_scheduled(tensor, step))
        OK(zero_set_group(engine, tensor, &want));
    else if (is_scheduled(tensor, step - 1))
        OK(zero_set_group(engine, tensor, NULL));
    OK(zero_get_group(engine, tensor, &got));
    CHECK(memcmp(&got, &want, sizeof got) == 0, "step %lld: settings of tensor %d", (long long)step, tensor);
}

#endif
