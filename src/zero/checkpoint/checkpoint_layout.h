/* checkpoint_layout.h - which tensor's numbers stand in which file of a checkpoint, and where. Pure arithmetic.
 *
 * A checkpoint holds of every tensor its weights in the training dtype (files "model-...", under the declared name,
 * which is Hugging Face's) and three fp32 arrays (files "optimizer-...": NAME.master, NAME.m, NAME.v). Arrays follow
 * each other in declared order and a new file begins where the next would pass the limit. Where an element stands
 * depends on neither stage nor world size, so ranks write side by side what they own, and any number of ranks reads it.
 */
#ifndef ZERO_CHECKPOINT_LAYOUT_H
#define ZERO_CHECKPOINT_LAYOUT_H

#include <jansson.h>

#include "zero/plan/declaration.h"

/* What is kept of a tensor. */
typedef enum zero_kept { ZERO_KEPT_WEIGHTS, ZERO_KEPT_MASTER, ZERO_KEPT_M, ZERO_KEPT_V, ZERO_N_KEPT } zero_kept_t;
extern const char *const zero_kept_suffixes[ZERO_N_KEPT]; /* "", ".master", ".m", ".v" */

#define ZERO_CHECKPOINT_FILE_BYTES (UINT64_C(4) << 30)
#define ZERO_MODEL_PREFIX "model-"
#define ZERO_OPTIMIZER_PREFIX "optimizer-"

typedef struct zero_checkpoint_file {
    char name[64];
    char *header; /* the safetensors header, its 8 bytes of length first */
    uint64_t header_bytes, n_bytes;
} zero_checkpoint_file_t;

typedef struct zero_checkpoint_array {
    int file;
    uint64_t offset; /* bytes from the file's beginning */
} zero_checkpoint_array_t;

typedef struct zero_checkpoint_layout {
    int n_files;
    zero_checkpoint_file_t *files;
    zero_checkpoint_array_t (*arrays)[ZERO_N_KEPT]; /* by tensor */
    size_t element_bytes[ZERO_N_KEPT];
    uint64_t weight_bytes; /* of all tensors */
} zero_checkpoint_layout_t;

/* max_file_bytes: of a file's data, unless one array alone is larger. 0: ZERO_CHECKPOINT_FILE_BYTES. */
zero_status_t zero_checkpoint_layout_create(const zero_model_t *model, zero_dtype_t dtype, uint64_t max_file_bytes,
                                            zero_checkpoint_layout_t *layout);
void zero_checkpoint_layout_destroy(zero_checkpoint_layout_t *layout);

/* What model.safetensors.index.json says; NULL without memory. */
json_t *zero_checkpoint_index(const zero_checkpoint_layout_t *layout, const zero_model_t *model);

#endif
