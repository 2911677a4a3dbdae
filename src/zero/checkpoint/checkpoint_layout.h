/* checkpoint_layout.h - in which file of a checkpoint, and at which offset, each tensor's numbers are. Pure arithmetic.
 *
 * A checkpoint has two kinds of files. "model-..." files hold every tensor's weights in the training dtype, under the
 * declared name, which is Hugging Face's. "optimizer-..." files hold fp32 arrays per tensor: NAME.master, and the
 * optimizer's NAME.m, or NAME.m and NAME.v; of frozen tensors none. Of an adapter, a model with tensors that are not
 * saved, the weights of the others are in one file by PEFT's name. Arrays follow each other in declared order; a new
 * file begins when the next array would exceed the limit. The position of an element depends neither on the stage nor
 * on the world size. So ranks write what they own side by side, and any number of ranks can read it.
 */
#ifndef ZERO_CHECKPOINT_LAYOUT_H
#define ZERO_CHECKPOINT_LAYOUT_H

#include <jansson.h>

#include "zero/plan/declaration.h"

/* The arrays of a tensor. */
typedef enum zero_kept { ZERO_KEPT_WEIGHTS, ZERO_KEPT_MASTER, ZERO_KEPT_M, ZERO_KEPT_V, ZERO_N_KEPT } zero_kept_t;
extern const char *const zero_kept_suffixes[ZERO_N_KEPT]; /* "", ".master", ".m", ".v" */

#define ZERO_CHECKPOINT_FILE_BYTES (UINT64_C(4) << 30)
#define ZERO_MODEL_PREFIX "model-"
#define ZERO_OPTIMIZER_PREFIX "optimizer-"
/* Hugging Face's names of all weights in one file, and of the list of the files that have them. */
#define ZERO_WEIGHTS_FILE "model.safetensors"
#define ZERO_INDEX_FILE "model.safetensors.index.json"
#define ZERO_ADAPTER_FILE "adapter_model.safetensors"

typedef struct zero_checkpoint_file {
    char name[64];
    char *header; /* the safetensors header, beginning with its 8 bytes of length */
    uint64_t header_bytes, n_bytes;
} zero_checkpoint_file_t;

typedef struct zero_checkpoint_array {
    int file;
    uint64_t offset; /* bytes from the beginning of the file */
} zero_checkpoint_array_t;

typedef struct zero_checkpoint_layout {
    int n_files;
    zero_checkpoint_file_t *files;
    zero_checkpoint_array_t (*arrays)[ZERO_N_KEPT]; /* by tensor */
    size_t element_bytes[ZERO_N_KEPT];
    uint64_t weight_bytes; /* of all tensors */
    int n_kept;            /* arrays of a tensor: the first of zero_kept_t */
    bool is_adapter;       /* some tensors are not saved */
} zero_checkpoint_layout_t;

/* Returns whether a checkpoint has that array of a tensor. */
static inline bool zero_checkpoint_keeps(const zero_tensor_decl_t *tensor, int kept)
{
    return kept == ZERO_KEPT_WEIGHTS ? !tensor->not_saved : !tensor->frozen;
}

/* Computes the layout. n_arrays: of the optimizer (optimizer.h). max_file_bytes: most data in a file, unless a single
 * array is larger; 0: ZERO_CHECKPOINT_FILE_BYTES. */
zero_status_t zero_checkpoint_layout_create(const zero_model_t *model, zero_dtype_t dtype, int n_arrays,
                                            uint64_t max_file_bytes, zero_checkpoint_layout_t *layout);
void zero_checkpoint_layout_destroy(zero_checkpoint_layout_t *layout);

/* Returns the content of model.safetensors.index.json, for json_decref; NULL without memory. */
json_t *zero_checkpoint_index(const zero_checkpoint_layout_t *layout, const zero_model_t *model);

#endif
