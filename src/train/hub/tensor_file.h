/* tensor_file.h - reads the tensors of a .safetensors file, one by one: for what is done to a model's or an adapter's
 * files without an engine. Everything in the header is checked before it is trusted.
 */
#ifndef ZEROTRAIN_TENSOR_FILE_H
#define ZEROTRAIN_TENSOR_FILE_H

#include <stdio.h>

#include "train/options/options.h"

typedef struct file_tensor {
    const char *name;
    zero_dtype_t dtype;
    bool is_float; /* else dtype says nothing, and its numbers cannot be read */
    int n_dims;
    int64_t shape[ZERO_MAX_DIMS];
    uint64_t n_elems, first, n_bytes; /* first: byte of the file */
} file_tensor_t;

typedef struct tensor_file {
    char path[OPTIONS_MAX_PATH + 256];
    int fd;
    uint64_t n_bytes;
    struct json_t *header; /* which has the names */
    size_t n_tensors;
    file_tensor_t *tensors;
} tensor_file_t;

/* Opens a file. ZERO_ERROR_USAGE if it is not there, ZERO_ERROR_FORMAT if it is no such file, with a line. */
zero_status_t tensor_file_open(const char *path, tensor_file_t *file);
void tensor_file_close(tensor_file_t *file); /* all zeros is allowed */
/* Returns the tensor of that name; NULL: there is none. */
const file_tensor_t *tensor_file_find(const tensor_file_t *file, const char *name);
/* Reads n_bytes at a byte of the file. */
zero_status_t tensor_file_read(const tensor_file_t *file, uint64_t first, void *data, size_t n_bytes);
/* Reads a whole tensor as fp32. */
zero_status_t tensor_file_read_fp32(const tensor_file_t *file, const file_tensor_t *tensor, float *values);

/* ---- a model's files ---- */

/* The files in a directory that have a model's weights. */
typedef struct model_weight_files {
    struct json_t *names_json; /* which has the names */
    size_t n_files;
    const char **names;
} model_weight_files_t;

/* Lists them: model.safetensors, or those that the index names, each once. For model_weight_files_free. */
zero_status_t model_weight_files(const char *directory, model_weight_files_t *files);
void model_weight_files_free(model_weight_files_t *files);

#endif
