/* safetensors.h - reads a safetensors file, and trusts nothing in it before it is checked.
 *
 *     8 bytes   n, little-endian
 *     n bytes   JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, "__metadata__": {...}}
 *     the rest  data: the tensors without gap or overlap, row-major, little-endian
 *
 * (https://github.com/huggingface/safetensors, "Format".) Opening reads the header and checks it against the file's
 * size. Numbers are read on request, so a rank reads only what it holds. They are read rather than mapped, so that a
 * failing disk or a shrinking file gives a status and not a signal.
 */
#ifndef ZERO_SAFETENSORS_H
#define ZERO_SAFETENSORS_H

#include <jansson.h>

#include "base/names.h"

#define ZERO_SAFETENSORS_MAX_DIMS 8
#define ZERO_SAFETENSORS_METADATA "__metadata__" /* no tensor: texts about the file */

typedef struct zero_safetensors_dtype {
    const char *name; /* "BF16" */
    size_t n_bytes;   /* of an element */
    bool loadable;    /* zero_safetensors_read can read it, as `dtype` */
    zero_dtype_t dtype;
} zero_safetensors_dtype_t;

typedef struct zero_safetensors_tensor {
    const char *name; /* owned by the file */
    const zero_safetensors_dtype_t *dtype;
    int n_dims; /* 0 for a scalar */
    int64_t shape[ZERO_SAFETENSORS_MAX_DIMS];
    uint64_t n_elems;
    uint64_t begin, end; /* bytes in the data section */
} zero_safetensors_tensor_t;

typedef struct zero_safetensors {
    char *path;
    int fd;
    json_t *header;
    uint64_t data_offset, data_bytes; /* of the data section in the file */
    size_t n_tensors;
    zero_safetensors_tensor_t *tensors; /* in the order of their data */
    zero_names_t names;                 /* of the tensors */
} zero_safetensors_t;

/* Where a tensor's numbers are; NULL: not found yet. */
typedef struct zero_safetensors_source {
    const zero_safetensors_t *file;
    const zero_safetensors_tensor_t *tensor;
} zero_safetensors_source_t;

/* Opens a file and checks its whole header. Returns ZERO_ERROR_IO if it cannot be read and ZERO_ERROR_FORMAT if its
 * content is wrong, with a line that names the file, the tensor and what is wrong. */
zero_status_t zero_safetensors_open(const char *path, zero_safetensors_t *file);
void zero_safetensors_close(zero_safetensors_t *file); /* all zeros is allowed */

/* Returns the tensor with that name; NULL if there is none. */
const zero_safetensors_tensor_t *zero_safetensors_find(const zero_safetensors_t *file, const char *name);

/* Reads elements [first, first + n_elems) of a tensor of loadable dtype as fp32, which holds every BF16 and F16
 * exactly. */
zero_status_t zero_safetensors_read(const zero_safetensors_t *file, const zero_safetensors_tensor_t *tensor,
                                    uint64_t first, size_t n_elems, float *elems);

/* Checks that elems[n_elems], elements [first, first + n_elems) of a tensor, are finite. Otherwise returns
 * ZERO_ERROR_FORMAT, with a line that names the first that is not and ends with `remedy`. */
zero_status_t zero_safetensors_check_finite(const zero_safetensors_t *file, const zero_safetensors_tensor_t *tensor,
                                            uint64_t first, size_t n_elems, const float *elems, const char *remedy);

/* Returns whether a name from a file may be used as a file name and printed: it is not empty and has no '/', no ".."
 * and no control character. */
bool zero_safetensors_name_is_safe(const char *name);

#endif
