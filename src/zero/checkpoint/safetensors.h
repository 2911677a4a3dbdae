/* safetensors.h - reading one safetensors file, of which nothing is trusted before it is checked.
 *
 *     8 bytes   n, little-endian
 *     n bytes   JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, "__metadata__": {...}}
 *     the rest  data; tensors stand in it without gap or overlap, row-major, little-endian
 *
 * (https://github.com/huggingface/safetensors, "Format".) Opening reads and checks the header against the file's size;
 * numbers are read when they are asked for, so a rank reads only what it holds. They are read, not mapped: a disk that
 * fails or a file that shrinks is then a status and not a signal.
 */
#ifndef ZERO_SAFETENSORS_H
#define ZERO_SAFETENSORS_H

#include <jansson.h>

#include "base/names.h"

#define ZERO_SAFETENSORS_MAX_DIMS 8

typedef struct zero_safetensors_dtype {
    const char *name; /* "BF16" */
    size_t n_bytes;   /* of an element */
    bool loadable;    /* zero_safetensors_read can read it: `dtype` is what it is here */
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
    zero_names_t names;                 /* of these */
} zero_safetensors_t;

/* Opens a file and checks all of its header. One line names the file, the tensor and what is wrong: ZERO_ERROR_IO
 * where it cannot be read, ZERO_ERROR_FORMAT where its content is wrong. */
zero_status_t zero_safetensors_open(const char *path, zero_safetensors_t *file);
void zero_safetensors_close(zero_safetensors_t *file); /* a file that is all zeros is allowed */

/* NULL where there is none of that name. */
const zero_safetensors_tensor_t *zero_safetensors_find(const zero_safetensors_t *file, const char *name);

/* Elements [first, first + n_elems) of a tensor of loadable dtype, as fp32 (exact: fp32 holds every BF16 and F16). */
zero_status_t zero_safetensors_read(const zero_safetensors_t *file, const zero_safetensors_tensor_t *tensor,
                                    uint64_t first, size_t n_elems, float *elems);

/* Returns ZERO_OK where all of elems[n_elems], which are elements [first, first + n_elems) of a tensor, are finite;
 * else ZERO_ERROR_FORMAT, with a line that names the first that is not and ends with `remedy`. */
zero_status_t zero_safetensors_check_finite(const zero_safetensors_t *file, const zero_safetensors_tensor_t *tensor,
                                            uint64_t first, size_t n_elems, const float *elems, const char *remedy);

/* Whether a name from a file may be used as a file's name or be printed: not empty, no '/', no "..", no control
 * characters. */
bool zero_safetensors_name_is_safe(const char *name);

#endif
