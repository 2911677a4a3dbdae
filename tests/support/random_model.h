/* random_model.h - declarations drawn at random, for claims of layout, order and plan that hold for any model. */
#ifndef ZERO_TESTS_RANDOM_MODEL_H
#define ZERO_TESTS_RANDOM_MODEL_H

#include <stdio.h>

#include "tests/support/support.h"
#include "zero/plan/layout.h"

/* Returns a model of 1..9 units with 0..5 tensors of 1..3 dimensions each, some of them shared forward, some of them
 * not read by their owner's backward. `even`: tensors of 8 to 10 times 192 elements, so that three ranks need no
 * padding and many units have nearly the same size. */
static zero_model_t *random_model_of(uint64_t *seed, bool even)
{
    zero_model_t *model;
    ck_assert_int_eq(zero_model_create(&model), ZERO_OK);
    int n_units = 1 + (int)(support_random(seed) % 9), n_tensors = 0;
    for (int u = 0; u < n_units; u++) {
        char name[64];
        zero_unit_t unit;
        snprintf(name, sizeof name, "unit %d", u);
        ck_assert_int_eq(zero_model_add_unit(model, name, &unit), ZERO_OK);
        ck_assert_int_eq(unit, u);
        int here = (int)(support_random(seed) % 6) + (u == 0);
        for (int t = 0; t < here; t++) {
            zero_tensor_desc_t desc = {.name = name, .n_dims = 1 + (int)(support_random(seed) % 3), .decay = true};
            desc.packed = t > 0 && support_random(seed) % 3 == 0;
            zero_tensor_t tensor;
            snprintf(name, sizeof name, "tensor %d", n_tensors++);
            for (int d = 0; d < desc.n_dims; d++)
                desc.shape[d] = 1 + (int64_t)(support_random(seed) % 23);
            if (even) {
                desc.n_dims = 1;
                desc.shape[0] = 192 * (8 + (int64_t)(support_random(seed) % 3));
            }
            ck_assert_int_eq(zero_model_add_tensor(model, unit, &desc, &tensor), ZERO_OK);
        }
        if (u > 0 && support_random(seed) % 3 == 0) {
            zero_tensor_t shared = (zero_tensor_t)(support_random(seed) % (uint64_t)n_tensors);
            if (model->tensors[shared].owner < u)
                ck_assert_int_eq(zero_model_share_tensor(model, u, shared), ZERO_OK);
        }
        if (support_random(seed) % 4 == 0)
            ck_assert_int_eq(zero_model_set_unshard_in_backward(model, u, false), ZERO_OK);
    }
    return model;
}

static zero_model_t *random_model(uint64_t *seed)
{
    return random_model_of(seed, false);
}

#endif
