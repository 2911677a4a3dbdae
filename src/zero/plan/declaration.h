/* declaration.h - a model as declared: its units, their tensors, and which units use these. The zero_model_add_* calls
 * fill it; engines keep a copy. */
#ifndef ZERO_DECLARATION_H
#define ZERO_DECLARATION_H

#include <stddef.h>
#include <stdint.h>

#include "zero.h"

/* ---- name table ---- */
/* Finds a record by its name: a hash table of the records' numbers, so that a model is declared in time
 * proportional to its size. Unlike base/names.h, which sorts a finished list, it grows with every record. The records
 * and their names are the caller's: an array that may move between calls. */

/* All zero: empty. */
typedef struct zero_name_table {
    uint32_t n_entries; /* a power of two, or 0 */
    uint32_t n_names;
    int32_t *entries; /* open addressing: a record's number + 1; 0: free */
} zero_name_table_t;

/* Records of record_bytes each, with a null-terminated name at name_offset. */
typedef struct zero_named {
    const void *records;
    size_t record_bytes, name_offset;
} zero_named_t;

/* Returns the number of the record with this name; -1 if there is none. */
int zero_name_table_find(const zero_name_table_t *names, zero_named_t records, const char *name);
/* Adds record `number`, whose name no other has. ZERO_ERROR_MEMORY leaves the table as it was. */
zero_status_t zero_name_table_add(zero_name_table_t *names, zero_named_t records, int number);
void zero_name_table_destroy(zero_name_table_t *names);

/* ---- declaration ---- */

typedef struct zero_tensor_decl {
    char name[ZERO_MAX_NAME];
    zero_unit_t owner;
    zero_unit_t last_user; /* the last unit in forward order that uses it */
    int n_dims;
    int64_t shape[ZERO_MAX_DIMS];
    uint64_t n_elems;
    zero_init_t init;
    float init_std;
    bool decay;
    bool packed; /* directly after the tensor before it, which has the same owner */
    bool fp8;
    bool frozen;
    bool hidden_matrix;
    bool not_saved;  /* and frozen */
    bool frozen_fp8; /* and frozen: held in fp8 alone */
} zero_tensor_decl_t;

typedef struct zero_unit_decl {
    char name[ZERO_MAX_NAME];
    /* Units whose tensors this one shares, each once; the unit itself is not among them. */
    int n_shared;
    size_t shared_capacity;
    zero_unit_t *shared;
    zero_unit_t last_user;    /* the last unit in forward order that uses a tensor of this one */
    bool sharded_in_backward; /* its own backward reads none of its parameters */
} zero_unit_decl_t;

struct zero_model {
    int n_units;
    size_t unit_capacity;
    zero_unit_decl_t *units;
    int n_tensors;
    size_t tensor_capacity;
    zero_tensor_decl_t *tensors;
    uint64_t n_params; /* of all tensors */
    zero_name_table_t unit_names,
        tensor_names; /* of the declaration itself; copies, to which nothing is added, have none */
};

/* The flat buffers that a unit's use needs: its own first, then those of the units whose tensors it shares. */
static inline int zero_model_n_flats(const zero_model_t *model, zero_unit_t unit)
{
    return 1 + model->units[unit].n_shared;
}

static inline zero_unit_t zero_model_flat(const zero_model_t *model, zero_unit_t unit, int i)
{
    return i == 0 ? unit : model->units[unit].shared[i - 1];
}

zero_status_t zero_model_copy(const zero_model_t *model, zero_model_t **copy);

/* Returns a hash of every field, which is the same on every rank that declared the same. */
uint64_t zero_model_hash(const zero_model_t *model);

#endif
