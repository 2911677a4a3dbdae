/* memory.c - memory for the caller, which the plan counts: zero_alloc, zero_alloc_activations. */
#include <stdlib.h>

#include "base/log.h"
#include "zero/engine/engine.h"

static zero_status_t alloc(zero_engine_t *engine, zero_memory_category_t category, size_t n_bytes,
                           zero_user_block_t use, void **data)
{
    zero_device_t *device = engine->context.device;
    if (engine->started)
        return zero_fail(ZERO_ERROR_ORDER, "zero_alloc after the first zero_begin: memory is planned before step 0");
    zero_user_block_t *block = calloc(1, sizeof *block);
    if (!block)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory to note a block of %zu bytes", n_bytes);
    *block = use;
    zero_status_t status = device->ops->alloc(device, n_bytes, &block->data);
    if (status != ZERO_OK) {
        free(block);
        return status;
    }
    block->n_bytes = n_bytes;
    block->next = engine->user_blocks;
    engine->user_blocks = block;
    engine->context.memory.bytes[category] += n_bytes;
    *data = block->data;
    return ZERO_OK;
}

zero_status_t zero_alloc(zero_engine_t *engine, zero_memory_category_t category, size_t n_bytes, void **data)
{
    ZERO_REQUIRE(engine);
    ZERO_REQUIRE(data);
    if ((unsigned)category >= ZERO_MEMORY_N_CATEGORIES)
        return zero_fail(ZERO_ERROR_ARGUMENT, "zero_alloc: there is no memory category %d", (int)category);
    return alloc(engine, category, n_bytes, (zero_user_block_t){.always_in_use = true}, data);
}

zero_status_t zero_alloc_activations(zero_engine_t *engine, zero_unit_t first, zero_unit_t last, size_t n_bytes,
                                     void **data)
{
    ZERO_REQUIRE(engine);
    ZERO_REQUIRE(data);
    zero_unit_t n_units = engine->context.model->n_units;
    if (first < 0 || first >= n_units || last < 0 || last >= n_units)
        return zero_fail(ZERO_ERROR_ARGUMENT, "zero_alloc_activations: units %d and %d, of %d", first, last, n_units);
    zero_user_block_t use = {.first = first, .last = last};
    return alloc(engine, ZERO_MEMORY_ACTIVATIONS, n_bytes, use, data);
}

void zero_engine_free_blocks(zero_engine_t *engine)
{
    zero_device_t *device = engine->context.device;
    for (zero_user_block_t *block = engine->user_blocks, *next; block; block = next) {
        next = block->next;
        device->ops->free(device, block->data, block->n_bytes);
        free(block);
    }
    engine->user_blocks = NULL;
}

zero_memory_t zero_engine_memory(const zero_engine_t *engine)
{
    return engine ? engine->context.memory : (zero_memory_t){0};
}
