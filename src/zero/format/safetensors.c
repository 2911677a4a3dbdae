/* safetensors.c - see safetensors.h. Each check relies only on earlier ones: the file's size, the header's length, its
 * JSON, each tensor alone, then all tensors together. */
#include "zero/format/safetensors.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files.h"
#include "base/log.h"
#include "base/numbers.h"
#include "kernels/shard.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "safetensors data is little-endian, and is read as it is");

#define LENGTH_BYTES 8
/* The limit of Hugging Face's own reader. */
#define MAX_HEADER_BYTES UINT64_C(100000000)
/* 16-bit numbers are read into a buffer of this many on the stack. */
#define HALF_RUN 4096

/* The format's dtypes of whole bytes. Weights must have a loadable one. */
static const zero_safetensors_dtype_t DTYPES[] = {
    {"F32", 4, true, ZERO_FP32},       {"BF16", 2, true, ZERO_BF16},      {"F16", 2, true, ZERO_FP16},
    {.name = "F64", .n_bytes = 8},     {.name = "BOOL", .n_bytes = 1},    {.name = "U8", .n_bytes = 1},
    {.name = "I8", .n_bytes = 1},      {.name = "U16", .n_bytes = 2},     {.name = "I16", .n_bytes = 2},
    {.name = "U32", .n_bytes = 4},     {.name = "I32", .n_bytes = 4},     {.name = "U64", .n_bytes = 8},
    {.name = "I64", .n_bytes = 8},     {.name = "F8_E4M3", .n_bytes = 1}, {.name = "F8_E5M2", .n_bytes = 1},
    {.name = "F8_E8M0", .n_bytes = 1}, {.name = "C64", .n_bytes = 8},
};

bool zero_safetensors_name_is_safe(const char *name)
{
    if (!name[0] || strchr(name, '/') || strstr(name, ".."))
        return false;
    for (; *name; name++)
        if ((unsigned char)*name < 0x20 || *name == 0x7f)
            return false;
    return true;
}

/* ---- the header ---- */

static zero_status_t parse_header(zero_safetensors_t *file, const char *text, size_t n_bytes)
{
    json_error_t error;
    if (text[0] != '{')
        return zero_fail(ZERO_ERROR_FORMAT, "'%s' is not a safetensors file: its header does not begin with '{'",
                         file->path);
    /* jansson also rejects text that is not UTF-8, numbers beyond 64 bits, and nesting that would overflow the stack.
     */
    file->header = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &error);
    if (!file->header)
        return zero_fail(ZERO_ERROR_FORMAT, "'%s': its header is not valid JSON: %s, at byte %d", file->path,
                         error.text, LENGTH_BYTES + error.position);
    return ZERO_OK;
}

static zero_status_t read_header(zero_safetensors_t *file, uint64_t file_bytes)
{
    unsigned char length[LENGTH_BYTES];
    uint64_t n_bytes = 0;
    if (file_bytes < LENGTH_BYTES)
        return zero_fail(ZERO_ERROR_FORMAT, "'%s' is truncated: it has %" PRIu64 " bytes, not even a header's length",
                         file->path, file_bytes);
    ZERO_TRY(zero_file_read(file->fd, file->path, 0, length, sizeof length));
    for (int i = LENGTH_BYTES - 1; i >= 0; i--)
        n_bytes = n_bytes << 8 | length[i];
    if (n_bytes > MAX_HEADER_BYTES)
        return zero_fail(ZERO_ERROR_FORMAT,
                         "'%s' is not a safetensors file: its header would have %" PRIu64 " bytes, but at most %" PRIu64
                         " are allowed",
                         file->path, n_bytes, MAX_HEADER_BYTES);
    if (n_bytes > file_bytes - LENGTH_BYTES)
        return zero_fail(ZERO_ERROR_FORMAT,
                         "'%s' is truncated: its header has %" PRIu64 " bytes, the whole file %" PRIu64, file->path,
                         n_bytes, file_bytes);
    file->data_offset = LENGTH_BYTES + n_bytes;
    file->data_bytes = file_bytes - file->data_offset;

    char *text = malloc(n_bytes + 1);
    if (!text)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for the header of '%s', %" PRIu64 " bytes", file->path, n_bytes);
    text[n_bytes] = 0;
    zero_status_t status = zero_file_read(file->fd, file->path, LENGTH_BYTES, text, n_bytes);
    if (status == ZERO_OK)
        status = parse_header(file, text, n_bytes);
    free(text);
    return status;
}

/* ---- one tensor ---- */

static const zero_safetensors_dtype_t *find_dtype(const char *name)
{
    for (size_t i = 0; name && i < sizeof DTYPES / sizeof DTYPES[0]; i++)
        if (strcmp(DTYPES[i].name, name) == 0)
            return &DTYPES[i];
    return NULL;
}

/* Reads a whole number that is not negative. */
static bool get_size(const json_t *value, uint64_t *size)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *size = (uint64_t)json_integer_value(value);
    return true;
}

static zero_status_t parse_shape(const zero_safetensors_t *file, const json_t *shape, zero_safetensors_tensor_t *tensor)
{
    if (!json_is_array(shape) || json_array_size(shape) > ZERO_SAFETENSORS_MAX_DIMS)
        return zero_fail(ZERO_ERROR_FORMAT, "'%s': tensor %s has no shape of at most %d dimensions", file->path,
                         tensor->name, ZERO_SAFETENSORS_MAX_DIMS);
    tensor->n_dims = (int)json_array_size(shape);
    tensor->n_elems = 1;
    for (int d = 0; d < tensor->n_dims; d++) {
        uint64_t size;
        if (!get_size(json_array_get(shape, (size_t)d), &size))
            return zero_fail(ZERO_ERROR_FORMAT, "'%s': the shape of tensor %s has an entry that is not a size",
                             file->path, tensor->name);
        tensor->shape[d] = (int64_t)size;
        if (__builtin_mul_overflow(tensor->n_elems, size, &tensor->n_elems))
            return zero_fail(ZERO_ERROR_FORMAT, "'%s': the shape of tensor %s has more than 2^64 elements", file->path,
                             tensor->name);
    }
    return ZERO_OK;
}

static zero_status_t parse_offsets(const zero_safetensors_t *file, const json_t *offsets,
                                   zero_safetensors_tensor_t *tensor)
{
    uint64_t n_bytes;
    if (json_array_size(offsets) != 2 || !get_size(json_array_get(offsets, 0), &tensor->begin) ||
        !get_size(json_array_get(offsets, 1), &tensor->end) || tensor->begin > tensor->end)
        return zero_fail(ZERO_ERROR_FORMAT, "'%s': the data_offsets of tensor %s are not a begin and an end",
                         file->path, tensor->name);
    if (__builtin_mul_overflow(tensor->n_elems, (uint64_t)tensor->dtype->n_bytes, &n_bytes) ||
        n_bytes != tensor->end - tensor->begin)
        return zero_fail(ZERO_ERROR_FORMAT,
                         "'%s': tensor %s has %" PRIu64 " bytes, but %" PRIu64 " elements of %s differ in size",
                         file->path, tensor->name, tensor->end - tensor->begin, tensor->n_elems, tensor->dtype->name);
    return ZERO_OK;
}

static zero_status_t parse_tensor(const zero_safetensors_t *file, const char *name, const json_t *value,
                                  zero_safetensors_tensor_t *tensor)
{
    const json_t *dtype = json_object_get(value, "dtype");
    if (!zero_safetensors_name_is_safe(name))
        return zero_fail(ZERO_ERROR_FORMAT,
                         "'%s': a tensor's name is empty or has a '/', a '..' or a control character", file->path);
    tensor->name = name;
    if (!json_is_string(dtype))
        return zero_fail(ZERO_ERROR_FORMAT, "'%s': tensor %s has no dtype", file->path, name);
    tensor->dtype = find_dtype(json_string_value(dtype));
    if (!tensor->dtype)
        return zero_fail(ZERO_ERROR_FORMAT, "'%s': tensor %s is of dtype %.20s, which is unknown", file->path, name,
                         json_string_value(dtype));
    ZERO_TRY(parse_shape(file, json_object_get(value, "shape"), tensor));
    return parse_offsets(file, json_object_get(value, "data_offsets"), tensor);
}

/* ---- all tensors ---- */

static zero_status_t check_metadata(const zero_safetensors_t *file, json_t *metadata)
{
    const char *key;
    json_t *value;
    bool good = json_is_object(metadata);
    json_object_foreach(metadata, key, value) good = good && json_is_string(value);
    if (!good)
        return zero_fail(ZERO_ERROR_FORMAT, "'%s': " ZERO_SAFETENSORS_METADATA " has a value that is not a string",
                         file->path);
    return ZERO_OK;
}

static zero_status_t parse_tensors(zero_safetensors_t *file)
{
    const char *name;
    json_t *value;
    file->tensors = calloc(json_object_size(file->header) + 1, sizeof *file->tensors);
    if (!file->tensors)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for the %zu tensors of '%s'", json_object_size(file->header),
                         file->path);
    json_object_foreach(file->header, name, value) if (strcmp(name, ZERO_SAFETENSORS_METADATA) == 0)
        ZERO_TRY(check_metadata(file, value));
    else ZERO_TRY(parse_tensor(file, name, value, &file->tensors[file->n_tensors++]));
    return ZERO_OK;
}

static int by_data(const void *a, const void *b)
{
    const zero_safetensors_tensor_t *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end == y->end ? 0 : x->end < y->end ? -1 : 1; /* tensors without elements come first */
}

/* Sorts the tensors by their data and checks that every byte of the data section belongs to exactly one of them. */
static zero_status_t check_data(zero_safetensors_t *file)
{
    uint64_t end = 0;
    qsort(file->tensors, file->n_tensors, sizeof *file->tensors, by_data);
    for (size_t i = 0; i < file->n_tensors; i++) {
        const zero_safetensors_tensor_t *tensor = &file->tensors[i];
        if (tensor->begin != end)
            return zero_fail(ZERO_ERROR_FORMAT,
                             "'%s': tensor %s begins at byte %" PRIu64 " of the data and the one before it ends at "
                             "%" PRIu64 ": there must be neither gap nor overlap",
                             file->path, tensor->name, tensor->begin, end);
        end = tensor->end;
    }
    if (end != file->data_bytes)
        return zero_fail(ZERO_ERROR_FORMAT,
                         "'%s' is truncated or too long: its tensors take %" PRIu64 " bytes and %" PRIu64 " are there",
                         file->path, end, file->data_bytes);
    return ZERO_OK;
}

static const char *name_of(const void *user, size_t i)
{
    const zero_safetensors_t *file = user;
    return file->tensors[i].name;
}

/* ---- what callers use ---- */

zero_status_t zero_safetensors_open(const char *path, zero_safetensors_t *file)
{
    zero_status_t status = ZERO_ERROR_MEMORY;
    uint64_t file_bytes = 0;
    zero_safetensors_t opened = {.path = strdup(path), .fd = -1};
    if (!opened.path)
        return zero_fail(status, "no memory to open '%s'", path);
    ZERO_TRY_GOTO(zero_file_open(opened.path, &opened.fd, &file_bytes), fail);
    ZERO_TRY_GOTO(read_header(&opened, file_bytes), fail);
    ZERO_TRY_GOTO(parse_tensors(&opened), fail);
    ZERO_TRY_GOTO(check_data(&opened), fail);
    ZERO_TRY_GOTO(zero_names_create(opened.n_tensors, name_of, &opened, &opened.names), fail);
    *file = opened;
    return ZERO_OK;
fail:
    zero_safetensors_close(&opened);
    return status;
}

void zero_safetensors_close(zero_safetensors_t *file)
{
    if (!file->path)
        return;
    if (file->fd >= 0)
        close(file->fd);
    zero_names_destroy(&file->names);
    json_decref(file->header);
    free(file->tensors);
    free(file->path);
    *file = (zero_safetensors_t){0};
}

const zero_safetensors_tensor_t *zero_safetensors_find(const zero_safetensors_t *file, const char *name)
{
    size_t at = zero_names_find(&file->names, name, strlen(name));
    return at < file->names.n_names ? &file->tensors[file->names.names[at].index] : NULL;
}

zero_status_t zero_safetensors_read(const zero_safetensors_t *file, const zero_safetensors_tensor_t *tensor,
                                    uint64_t first, size_t n_elems, float *elems)
{
    const zero_safetensors_dtype_t *dtype = tensor->dtype;
    if (!dtype->loadable || first > tensor->n_elems || n_elems > tensor->n_elems - first)
        return zero_fail(ZERO_ERROR_ARGUMENT, "'%s': elements %" PRIu64 " + %zu of tensor %s (%s) cannot be read",
                         file->path, first, n_elems, tensor->name, dtype->name);
    uint64_t offset = file->data_offset + tensor->begin + first * dtype->n_bytes;
    if (dtype->dtype == ZERO_FP32)
        return zero_file_read(file->fd, file->path, offset, elems, n_elems * sizeof *elems);

    uint16_t halves[HALF_RUN];
    for (size_t done = 0; done < n_elems; done += HALF_RUN) {
        size_t n = n_elems - done < HALF_RUN ? n_elems - done : HALF_RUN;
        ZERO_TRY(zero_file_read(file->fd, file->path, offset + done * sizeof halves[0], halves, n * sizeof halves[0]));
        ZERO_TRY(zero_shard_kernels_cpu()->cast(elems + done, ZERO_FP32, halves, dtype->dtype, n, NULL));
    }
    return ZERO_OK;
}

zero_status_t zero_safetensors_check_finite(const zero_safetensors_t *file, const zero_safetensors_tensor_t *tensor,
                                            uint64_t first, size_t n_elems, const float *elems, const char *remedy)
{
    const size_t at = zero_find_unsound(elems, n_elems, false);
    if (at == n_elems)
        return ZERO_OK;
    return zero_fail(ZERO_ERROR_FORMAT, "'%s': %s holds %g at element %" PRIu64 ", where a finite number should be: %s",
                     file->path, tensor->name, zero_number_shown(elems[at]), first + at, remedy);
}
