/* declaration.c - declares units and tensors, and checks all that later steps rely on: no size overflows, names are
 * unique, and tensors are shared with later units only. */
#include "zero/plan/declaration.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/bytes.h"
#include "base/log.h"

/* ---- name table ---- */

#define LEAST_ENTRIES 64

static const char *name_of(zero_named_t records, int number)
{
    return (const char *)records.records + (size_t)number * records.record_bytes + records.name_offset;
}

/* Returns the entry with this name, or the free one that it would take. At least half of the entries are free. */
static uint32_t entry_of(const zero_name_table_t *names, zero_named_t records, const char *name)
{
    uint32_t mask = names->n_entries - 1, at = (uint32_t)XXH3_64bits(name, strlen(name)) & mask;
    while (names->entries[at] != 0 && strcmp(name_of(records, names->entries[at] - 1), name) != 0)
        at = (at + 1) & mask;
    return at;
}

int zero_name_table_find(const zero_name_table_t *names, zero_named_t records, const char *name)
{
    return names->n_entries > 0 ? names->entries[entry_of(names, records, name)] - 1 : -1;
}

/* Doubles the entries, and moves all names. */
static zero_status_t grow(zero_name_table_t *names, zero_named_t records)
{
    zero_name_table_t grown = {.n_entries = names->n_entries > 0 ? 2 * names->n_entries : LEAST_ENTRIES,
                               .n_names = names->n_names};
    grown.entries = calloc(grown.n_entries, sizeof *grown.entries);
    if (!grown.entries)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for a table of %u names", grown.n_entries);
    for (uint32_t i = 0; i < names->n_entries; i++)
        if (names->entries[i] != 0)
            grown.entries[entry_of(&grown, records, name_of(records, names->entries[i] - 1))] = names->entries[i];
    zero_name_table_destroy(names);
    *names = grown;
    return ZERO_OK;
}

zero_status_t zero_name_table_add(zero_name_table_t *names, zero_named_t records, int number)
{
    if (2 * (names->n_names + 1) > names->n_entries)
        ZERO_TRY(grow(names, records));
    names->entries[entry_of(names, records, name_of(records, number))] = number + 1;
    names->n_names++;
    return ZERO_OK;
}

void zero_name_table_destroy(zero_name_table_t *names)
{
    free(names->entries);
    *names = (zero_name_table_t){0};
}

/* ---- declaration ---- */

/* A flat buffer, in bytes of fp32 and padded for any number of ranks, must stay well inside 64 bits. */
#define MAX_ELEMS (UINT64_C(1) << 56)

zero_status_t zero_model_create(zero_model_t **model)
{
    ZERO_REQUIRE(model);
    zero_model_t *created = calloc(1, sizeof *created);
    if (!created)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for a model declaration");
    *model = created;
    return ZERO_OK;
}

void zero_model_destroy(zero_model_t *model)
{
    if (!model)
        return;
    for (int i = 0; i < model->n_units; i++)
        free(model->units[i].shared);
    zero_name_table_destroy(&model->unit_names);
    zero_name_table_destroy(&model->tensor_names);
    free(model->units);
    free(model->tensors);
    free(model);
}

static zero_status_t check_name(const char *what, const char *name)
{
    if (!name[0])
        return zero_fail(ZERO_ERROR_ARGUMENT, "a %s needs a name", what);
    if (strlen(name) >= ZERO_MAX_NAME)
        return zero_fail(ZERO_ERROR_ARGUMENT, "the name of %s %.40s... has %zu bytes; at most %d fit", what, name,
                         strlen(name), ZERO_MAX_NAME - 1);
    return ZERO_OK;
}

static zero_named_t named_units(const zero_model_t *model)
{
    return (zero_named_t){model->units, sizeof *model->units, offsetof(zero_unit_decl_t, name)};
}

static zero_named_t named_tensors(const zero_model_t *model)
{
    return (zero_named_t){model->tensors, sizeof *model->tensors, offsetof(zero_tensor_decl_t, name)};
}

zero_status_t zero_model_add_unit(zero_model_t *model, const char *name, zero_unit_t *unit)
{
    ZERO_REQUIRE(model);
    ZERO_REQUIRE(name);
    ZERO_REQUIRE(unit);
    ZERO_TRY(check_name("unit", name));
    if (zero_name_table_find(&model->unit_names, named_units(model), name) >= 0)
        return zero_fail(ZERO_ERROR_ARGUMENT, "unit %s is declared twice", name);
    zero_unit_decl_t *units = zero_grow(model->units, (size_t)model->n_units, &model->unit_capacity, sizeof *units);
    if (!units)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for unit %s", name);
    model->units = units;
    zero_unit_decl_t *added = &units[model->n_units];
    memset(added, 0, sizeof *added);
    strcpy(added->name, name);
    added->last_user = model->n_units;
    ZERO_TRY(zero_name_table_add(&model->unit_names, named_units(model), model->n_units));
    *unit = model->n_units++;
    return ZERO_OK;
}

static zero_status_t count_elems(const zero_tensor_desc_t *desc, uint64_t *n_elems)
{
    if (desc->n_dims < 1 || desc->n_dims > ZERO_MAX_DIMS)
        return zero_fail(ZERO_ERROR_ARGUMENT, "tensor %s has %d dimensions; 1 to %d are possible", desc->name,
                         desc->n_dims, ZERO_MAX_DIMS);
    uint64_t n = 1;
    for (int d = 0; d < desc->n_dims; d++) {
        if (desc->shape[d] < 1)
            return zero_fail(ZERO_ERROR_ARGUMENT, "tensor %s has size %lld in dimension %d; it must be at least 1",
                             desc->name, (long long)desc->shape[d], d);
        if (__builtin_mul_overflow(n, (uint64_t)desc->shape[d], &n) || n > MAX_ELEMS)
            return zero_fail(ZERO_ERROR_OVERFLOW, "tensor %s has more than 2^56 elements", desc->name);
    }
    *n_elems = n;
    return ZERO_OK;
}

zero_status_t zero_model_add_tensor(zero_model_t *model, zero_unit_t unit, const zero_tensor_desc_t *desc,
                                    zero_tensor_t *tensor)
{
    ZERO_REQUIRE(model);
    ZERO_REQUIRE(desc);
    ZERO_REQUIRE(desc->name);
    ZERO_REQUIRE(tensor);
    ZERO_REQUIRE_RESERVED(desc);
    ZERO_TRY(check_name("tensor", desc->name));
    if (unit < 0 || unit >= model->n_units)
        return zero_fail(ZERO_ERROR_ARGUMENT, "tensor %s: there is no unit %d", desc->name, unit);
    if (zero_name_table_find(&model->tensor_names, named_tensors(model), desc->name) >= 0)
        return zero_fail(ZERO_ERROR_ARGUMENT, "tensor %s is declared twice", desc->name);
    if (desc->packed && (model->n_tensors == 0 || model->tensors[model->n_tensors - 1].owner != unit))
        return zero_fail(ZERO_ERROR_ARGUMENT, "tensor %s is packed, but unit %s owns no tensor declared just before it",
                         desc->name, model->units[unit].name);
    if (desc->packed && model->tensors[model->n_tensors - 1].fp8 != desc->fp8)
        return zero_fail(ZERO_ERROR_ARGUMENT, "tensor %s is packed with %s, but only one of them is declared with fp8",
                         desc->name, model->tensors[model->n_tensors - 1].name);
    if (desc->packed && model->tensors[model->n_tensors - 1].frozen != desc->frozen)
        return zero_fail(ZERO_ERROR_ARGUMENT, "tensor %s is packed with %s, but only one of them is frozen", desc->name,
                         model->tensors[model->n_tensors - 1].name);
    if (desc->not_saved && !desc->frozen)
        return zero_fail(ZERO_ERROR_ARGUMENT,
                         "tensor %s is declared with not_saved and is trained: only a frozen tensor can be without a "
                         "place in checkpoints",
                         desc->name);
    if (desc->frozen_fp8 && !desc->frozen)
        return zero_fail(ZERO_ERROR_ARGUMENT, "tensor %s is declared with frozen_fp8 and is trained", desc->name);
    if (desc->packed && model->tensors[model->n_tensors - 1].frozen_fp8 != desc->frozen_fp8)
        return zero_fail(ZERO_ERROR_ARGUMENT, "tensor %s is packed with %s, but only one of them has frozen_fp8",
                         desc->name, model->tensors[model->n_tensors - 1].name);
    if (desc->hidden_matrix && desc->n_dims != 2)
        return zero_fail(ZERO_ERROR_ARGUMENT,
                         "tensor %s is declared as hidden_matrix with %d dimensions: it must have 2", desc->name,
                         desc->n_dims);
    if ((unsigned)desc->init > ZERO_INIT_NORMAL)
        return zero_fail(ZERO_ERROR_ARGUMENT, "tensor %s has init %d: it must be one of zero_init_t", desc->name,
                         (int)desc->init);
    if (desc->init == ZERO_INIT_NORMAL && !isfinite(desc->init_std))
        return zero_fail(ZERO_ERROR_ARGUMENT, "tensor %s has init_std %g: it must be finite", desc->name,
                         (double)desc->init_std);
    uint64_t n_elems = 0;
    ZERO_TRY(count_elems(desc, &n_elems));
    if (desc->frozen_fp8 && n_elems % 2 != 0)
        return zero_fail(ZERO_ERROR_ARGUMENT,
                         "tensor %s is declared with frozen_fp8 and has %llu elements: it must have an even number",
                         desc->name, (unsigned long long)n_elems);
    if (model->n_params + n_elems > MAX_ELEMS)
        return zero_fail(ZERO_ERROR_OVERFLOW, "with tensor %s the model has more than 2^56 elements", desc->name);
    zero_tensor_decl_t *tensors =
        zero_grow(model->tensors, (size_t)model->n_tensors, &model->tensor_capacity, sizeof *tensors);
    if (!tensors)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for tensor %s", desc->name);
    model->tensors = tensors;
    zero_tensor_decl_t *added = &tensors[model->n_tensors];
    memset(added, 0, sizeof *added);
    strcpy(added->name, desc->name);
    added->owner = unit;
    added->last_user = unit;
    added->n_dims = desc->n_dims;
    memcpy(added->shape, desc->shape, (size_t)desc->n_dims * sizeof desc->shape[0]);
    added->n_elems = n_elems;
    added->init = desc->init;
    added->init_std = desc->init_std;
    added->decay = desc->decay;
    added->packed = desc->packed;
    added->fp8 = desc->fp8;
    added->frozen = desc->frozen;
    added->hidden_matrix = desc->hidden_matrix;
    added->not_saved = desc->not_saved;
    added->frozen_fp8 = desc->frozen_fp8;
    ZERO_TRY(zero_name_table_add(&model->tensor_names, named_tensors(model), model->n_tensors));
    model->n_params += n_elems;
    *tensor = model->n_tensors++;
    return ZERO_OK;
}

zero_status_t zero_model_share_tensor(zero_model_t *model, zero_unit_t unit, zero_tensor_t tensor)
{
    ZERO_REQUIRE(model);
    if (unit < 0 || unit >= model->n_units || tensor < 0 || tensor >= model->n_tensors)
        return zero_fail(ZERO_ERROR_ARGUMENT, "there is no unit %d or no tensor %d to share", unit, tensor);
    zero_tensor_decl_t *shared = &model->tensors[tensor];
    zero_unit_decl_t *user = &model->units[unit];
    if (shared->owner >= unit)
        return zero_fail(ZERO_ERROR_ARGUMENT, "unit %s cannot share tensor %s: its owner, unit %s, must come earlier",
                         user->name, shared->name, model->units[shared->owner].name);
    zero_unit_decl_t *owner = &model->units[shared->owner];
    if (shared->last_user < unit)
        shared->last_user = unit;
    if (owner->last_user < unit)
        owner->last_user = unit;
    for (int i = 0; i < user->n_shared; i++)
        if (user->shared[i] == shared->owner)
            return ZERO_OK;
    zero_unit_t *grown = zero_grow(user->shared, (size_t)user->n_shared, &user->shared_capacity, sizeof *grown);
    if (!grown)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory to share tensor %s", shared->name);
    user->shared = grown;
    user->shared[user->n_shared++] = shared->owner;
    return ZERO_OK;
}

zero_status_t zero_model_set_unshard_in_backward(zero_model_t *model, zero_unit_t unit, bool unshard)
{
    ZERO_REQUIRE(model);
    if (unit < 0 || unit >= model->n_units)
        return zero_fail(ZERO_ERROR_ARGUMENT, "zero_model_set_unshard_in_backward: there is no unit %d", unit);
    model->units[unit].sharded_in_backward = !unshard;
    return ZERO_OK;
}

int zero_model_n_units(const zero_model_t *model)
{
    return model ? model->n_units : 0;
}

const char *zero_model_unit_name(const zero_model_t *model, zero_unit_t unit)
{
    return model && unit >= 0 && unit < model->n_units ? model->units[unit].name : NULL;
}

int zero_model_n_tensors(const zero_model_t *model)
{
    return model ? model->n_tensors : 0;
}

uint64_t zero_model_n_params(const zero_model_t *model)
{
    return model ? model->n_params : 0;
}

zero_status_t zero_model_copy(const zero_model_t *model, zero_model_t **copy)
{
    zero_model_t *made;
    ZERO_TRY(zero_model_create(&made));
    made->units = calloc((size_t)model->n_units + 1, sizeof *made->units);
    made->tensors = calloc((size_t)model->n_tensors + 1, sizeof *made->tensors);
    if (!made->units || !made->tensors)
        goto no_memory;
    made->n_tensors = model->n_tensors;
    made->tensor_capacity = (size_t)model->n_tensors;
    made->n_params = model->n_params;
    for (int t = 0; t < model->n_tensors; t++)
        made->tensors[t] = model->tensors[t];
    made->unit_capacity = (size_t)model->n_units;
    for (int i = 0; i < model->n_units; i++) {
        zero_unit_decl_t *unit = &made->units[made->n_units++];
        *unit = model->units[i];
        unit->shared_capacity = (size_t)unit->n_shared;
        unit->shared = NULL;
        if (unit->n_shared == 0)
            continue;
        unit->shared = malloc((size_t)unit->n_shared * sizeof *unit->shared);
        if (!unit->shared)
            goto no_memory;
        memcpy(unit->shared, model->units[i].shared, (size_t)unit->n_shared * sizeof *unit->shared);
    }
    *copy = made;
    return ZERO_OK;
no_memory:
    zero_model_destroy(made);
    return zero_fail(ZERO_ERROR_MEMORY, "no memory to copy a model declaration");
}

uint64_t zero_model_hash(const zero_model_t *model)
{
    uint64_t hash = zero_hash_fold(0, &model->n_units, sizeof model->n_units);
    for (int i = 0; i < model->n_units; i++) {
        const zero_unit_decl_t *unit = &model->units[i];
        hash = zero_hash_fold(hash, unit->name, strlen(unit->name));
        hash = zero_hash_fold(hash, unit->shared, (size_t)unit->n_shared * sizeof *unit->shared);
        hash = zero_hash_fold(hash, &unit->sharded_in_backward, sizeof unit->sharded_in_backward);
    }
    for (int i = 0; i < model->n_tensors; i++) {
        const zero_tensor_decl_t *tensor = &model->tensors[i];
        hash = zero_hash_fold(hash, tensor->name, strlen(tensor->name));
        hash = zero_hash_fold(hash, &tensor->owner, sizeof tensor->owner);
        hash = zero_hash_fold(hash, &tensor->last_user, sizeof tensor->last_user);
        hash = zero_hash_fold(hash, tensor->shape, (size_t)tensor->n_dims * sizeof tensor->shape[0]);
        hash = zero_hash_fold(hash, &tensor->init, sizeof tensor->init);
        hash = zero_hash_fold(hash, &tensor->init_std, sizeof tensor->init_std);
        hash = zero_hash_fold(hash, &tensor->decay, sizeof tensor->decay);
        hash = zero_hash_fold(hash, &tensor->packed, sizeof tensor->packed);
        hash = zero_hash_fold(hash, &tensor->fp8, sizeof tensor->fp8);
        hash = zero_hash_fold(hash, &tensor->frozen, sizeof tensor->frozen);
        hash = zero_hash_fold(hash, &tensor->hidden_matrix, sizeof tensor->hidden_matrix);
        hash = zero_hash_fold(hash, &tensor->not_saved, sizeof tensor->not_saved);
        hash = zero_hash_fold(hash, &tensor->frozen_fp8, sizeof tensor->frozen_fp8);
    }
    return hash;
}
