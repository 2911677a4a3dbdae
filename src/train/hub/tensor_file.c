/* tensor_file.c - see tensor_file.h. A file is 8 bytes of length, a JSON object of that length, and the tensors' bytes:
 *
 *     {"NAME": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, ..., "__metadata__": {...}}
 */
#include "train/hub/tensor_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/system.h"
#include "kernels/shard_math.h"
#include "train/report/report.h"

#define LENGTH_BYTES 8
#define MAX_HEADER_BYTES (UINT64_C(100) << 20)

static zero_status_t fail(const tensor_file_t *file, const char *why)
{
    return report_error(ZERO_ERROR_FORMAT, "'%s' is no safetensors file, or is damaged: %s", file->path, why);
}

/* Takes one tensor of the header. data: where the tensors' bytes begin. Returns what is wrong; NULL: nothing. */
static const char *take(const char *name, const json_t *entry, uint64_t data, uint64_t n_bytes, file_tensor_t *tensor)
{
    static const struct {
        const char *name;
        zero_dtype_t dtype;
    } floats[] = {{"F32", ZERO_FP32}, {"BF16", ZERO_BF16}, {"F16", ZERO_FP16}};
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const json_t *shape = json_object_get(entry, "shape"), *offsets = json_object_get(entry, "data_offsets");
    json_int_t begin = json_integer_value(json_array_get(offsets, 0));
    json_int_t end = json_integer_value(json_array_get(offsets, 1));
    *tensor = (file_tensor_t){.name = name, .n_elems = 1, .n_dims = (int)json_array_size(shape)};
    if (!dtype || !json_is_array(shape) || json_array_size(offsets) != 2 || begin < 0 || end < begin ||
        (uint64_t)end > n_bytes - data)
        return "a tensor's entry is not as it should be";
    if (json_array_size(shape) > ZERO_MAX_DIMS)
        return "a tensor has too many dimensions";
    for (int d = 0; d < tensor->n_dims; d++) {
        tensor->shape[d] = json_integer_value(json_array_get(shape, (size_t)d));
        if (tensor->shape[d] < 0 ||
            __builtin_mul_overflow(tensor->n_elems, (uint64_t)tensor->shape[d], &tensor->n_elems))
            return "a tensor's shape is not as it should be";
    }
    tensor->first = data + (uint64_t)begin;
    tensor->n_bytes = (uint64_t)(end - begin);
    for (size_t i = 0; i < sizeof floats / sizeof floats[0]; i++)
        if (strcmp(dtype, floats[i].name) == 0) {
            tensor->is_float = true;
            tensor->dtype = floats[i].dtype;
        }
    const size_t size = tensor->is_float ? zero_dtype_size(tensor->dtype) : 1;
    const bool fits = tensor->n_bytes % size == 0 && tensor->n_bytes / size == tensor->n_elems;
    return tensor->is_float && !fits ? "a tensor's bytes do not fit its shape" : NULL;
}

static zero_status_t take_header(tensor_file_t *file, uint64_t data)
{
    const char *name;
    json_t *entry;
    file->tensors = calloc(json_object_size(file->header) + 1, sizeof *file->tensors);
    if (!file->tensors)
        return report_error(ZERO_ERROR_MEMORY, "no memory to read '%s'", file->path);
    json_object_foreach(file->header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        const char *fault = take(name, entry, data, file->n_bytes, &file->tensors[file->n_tensors++]);
        if (fault)
            return fail(file, fault);
    }
    return ZERO_OK;
}

static zero_status_t read_header(tensor_file_t *file)
{
    unsigned char length[LENGTH_BYTES];
    uint64_t n = 0;
    json_error_t error;
    if (file->n_bytes < LENGTH_BYTES)
        return fail(file, "it is too short");
    ZERO_TRY(tensor_file_read(file, 0, length, sizeof length));
    for (int i = LENGTH_BYTES; i-- > 0;)
        n = n << 8 | length[i];
    if (n > MAX_HEADER_BYTES || n > file->n_bytes - LENGTH_BYTES)
        return fail(file, "its header is longer than the file");
    char *text = malloc((size_t)n + 1);
    if (!text)
        return report_error(ZERO_ERROR_MEMORY, "no memory to read '%s'", file->path);
    zero_status_t status = tensor_file_read(file, LENGTH_BYTES, text, (size_t)n);
    if (status == ZERO_OK)
        file->header = json_loadb(text, (size_t)n, JSON_REJECT_DUPLICATES, &error);
    free(text);
    ZERO_TRY(status);
    return json_is_object(file->header) ? take_header(file, LENGTH_BYTES + n)
                                        : fail(file, "its header is no JSON object");
}

/* What follows where a file of torch's is there instead of one that can be read. */
#define ONLY_SAFETENSORS                                                                                               \
    "only safetensors are read: load it in Python and save it by save_pretrained (in older versions with "             \
    "safe_serialization=True)"

/* Reports that a file is not there. */
static zero_status_t fail_missing(const char *path)
{
    static const char ending[] = ".safetensors";
    char other[OPTIONS_MAX_PATH + 256];
    snprintf(other, sizeof other, "%s", path);
    const size_t length = strlen(other), n = sizeof ending - 1;
    char *at = length > n && strcmp(other + length - n, ending) == 0 ? other + length - n : NULL;
    if (at)
        snprintf(at, sizeof ending, ".bin");
    if (at && access(other, F_OK) == 0)
        return report_error(ZERO_ERROR_USAGE, "cannot read '%s': " ONLY_SAFETENSORS, other);
    return report_error(ZERO_ERROR_USAGE, "cannot read '%s': %s", path, strerror(ENOENT));
}

zero_status_t tensor_file_open(const char *path, tensor_file_t *file)
{
    struct stat info;
    tensor_file_t opened = {0};
    opened.fd = ZERO_RETRY(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    snprintf(opened.path, sizeof opened.path, "%s", path);
    if (opened.fd < 0 && errno == ENOENT)
        return fail_missing(path);
    if (opened.fd < 0 || fstat(opened.fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        const char *why = opened.fd < 0 ? strerror(errno) : "it is not a regular file";
        if (opened.fd >= 0)
            close(opened.fd);
        return report_error(ZERO_ERROR_USAGE, "cannot read '%s': %s", path, why);
    }
    opened.n_bytes = (uint64_t)info.st_size;
    zero_status_t status = read_header(&opened);
    if (status == ZERO_OK)
        *file = opened;
    else
        tensor_file_close(&opened);
    return status;
}

void tensor_file_close(tensor_file_t *file)
{
    if (!file->path[0])
        return;
    close(file->fd);
    json_decref(file->header);
    free(file->tensors);
    *file = (tensor_file_t){0};
}

const file_tensor_t *tensor_file_find(const tensor_file_t *file, const char *name)
{
    for (size_t i = 0; i < file->n_tensors; i++)
        if (strcmp(file->tensors[i].name, name) == 0)
            return &file->tensors[i];
    return NULL;
}

zero_status_t tensor_file_read(const tensor_file_t *file, uint64_t first, void *data, size_t n_bytes)
{
    for (size_t n = 0; n < n_bytes;) {
        const ssize_t got = pread(file->fd, (char *)data + n, n_bytes - n, (off_t)(first + n));
        if (got > 0)
            n += (size_t)got;
        else if (got == 0 || errno != EINTR)
            return report_error(ZERO_ERROR_IO, "cannot read '%s': %s", file->path,
                                got == 0 ? "it has become shorter" : strerror(errno));
    }
    return ZERO_OK;
}

zero_status_t tensor_file_read_fp32(const tensor_file_t *file, const file_tensor_t *tensor, float *values)
{
    if (!tensor->is_float)
        return report_error(ZERO_ERROR_UNSUPPORTED, "'%s': tensor %s is not of dtype F32, BF16 or F16", file->path,
                            tensor->name);
    /* Narrow numbers are read into the second half, and widened from the front. */
    const size_t n = (size_t)tensor->n_elems;
    char *narrow = (char *)values + (tensor->dtype == ZERO_FP32 ? 0 : n * sizeof(uint16_t));
    ZERO_TRY(tensor_file_read(file, tensor->first, narrow, (size_t)tensor->n_bytes));
    if (tensor->dtype == ZERO_FP32)
        return ZERO_OK;
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, narrow + i * sizeof half, sizeof half);
        values[i] = tensor->dtype == ZERO_BF16 ? zero_float_of_bf16(half) : zero_float_of_fp16(half);
    }
    return ZERO_OK;
}

/* ---- a model's files ---- */

#define SINGLE_FILE "model.safetensors"
#define INDEX_FILE "model.safetensors.index.json"

/* Collects the index's values as keys of an object, in order. Returns NULL if there is no memory, or a name leads out
 * of the directory. */
static json_t *names_in(const json_t *map)
{
    const char *tensor;
    json_t *value, *names = json_object();
    json_object_foreach((json_t *)map, tensor, value)
    {
        const char *name = json_string_value(value);
        if (!name || !name[0] || strchr(name, '/') || strstr(name, "..") ||
            json_object_set_new(names, name, json_null()) != 0) {
            json_decref(names);
            return NULL;
        }
    }
    return names;
}

static zero_status_t read_index(const char *path, json_t **names)
{
    json_t *index = json_load_file(path, JSON_REJECT_DUPLICATES, NULL);
    *names = json_object_size(json_object_get(index, "weight_map")) > 0 ? names_in(json_object_get(index, "weight_map"))
                                                                        : NULL;
    json_decref(index);
    return *names ? ZERO_OK
                  : report_error(ZERO_ERROR_FORMAT, "'%s' does not say which files have the model's tensors", path);
}

/* Reports that a directory has no weights that can be read. */
static zero_status_t fail_without_weights(const char *directory)
{
    static const char *const OTHERS[] = {"pytorch_model.bin", "pytorch_model.bin.index.json"};
    char path[OPTIONS_MAX_PATH + 64];
    for (size_t i = 0; i < sizeof OTHERS / sizeof OTHERS[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", directory, OTHERS[i]);
        if (access(path, F_OK) == 0)
            return report_error(ZERO_ERROR_USAGE, "cannot read '%s': " ONLY_SAFETENSORS, path);
    }
    return report_error(ZERO_ERROR_USAGE, "cannot find weights in '%s': it has neither " SINGLE_FILE " nor " INDEX_FILE,
                        directory);
}

zero_status_t model_weight_files(const char *directory, model_weight_files_t *files)
{
    char path[OPTIONS_MAX_PATH + 64];
    const char *name;
    json_t *value;
    model_weight_files_t made = {0};
    snprintf(path, sizeof path, "%s/" SINGLE_FILE, directory);
    const bool is_single = access(path, F_OK) == 0;
    snprintf(path, sizeof path, "%s/" INDEX_FILE, directory);
    if (!is_single && access(path, F_OK) != 0)
        return fail_without_weights(directory);
    if (is_single)
        made.names_json = json_pack("{s:n}", SINGLE_FILE);
    else
        ZERO_TRY(read_index(path, &made.names_json));
    made.names = calloc(json_object_size(made.names_json) + 1, sizeof *made.names);
    if (!made.names_json || !made.names) {
        model_weight_files_free(&made);
        return report_error(ZERO_ERROR_MEMORY, "no memory to list the files of '%s'", directory);
    }
    json_object_foreach(made.names_json, name, value)
    {
        made.names[made.n_files++] = name;
    }
    *files = made;
    return ZERO_OK;
}

void model_weight_files_free(model_weight_files_t *files)
{
    json_decref(files->names_json);
    free((void *)files->names);
    *files = (model_weight_files_t){0};
}
