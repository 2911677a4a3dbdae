/* grow.c - see grow.h. */
#include "train/hub/grow.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/shard_math.h"
#include "train/report/report.h"

#define COPY_BYTES ((size_t)1 << 20)
#define HEADER_MULTIPLE 8 /* of the bytes before the tensors */

bool grow_is_vocabulary(const file_tensor_t *tensor, int64_t n_rows)
{
    static const char *const names[] = {"wte.weight", "embed_tokens.weight", "lm_head.weight"};
    const size_t length = strlen(tensor->name);
    if (tensor->n_dims != 2 || tensor->shape[0] != n_rows || !tensor->is_float)
        return false;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const size_t n = strlen(names[i]);
        if (length >= n && strcmp(tensor->name + length - n, names[i]) == 0 &&
            (length == n || tensor->name[length - n - 1] == '.'))
            return true;
    }
    return false;
}

/* ---- the header ---- */

static int by_place(const void *a, const void *b)
{
    const file_tensor_t *left = *(file_tensor_t *const *)a, *right = *(file_tensor_t *const *)b;
    return left->first < right->first ? -1 : left->first > right->first;
}

/* Returns the file's tensors in the order of their bytes, for free(); NULL: no memory. */
static const file_tensor_t **in_order(const tensor_file_t *file)
{
    const file_tensor_t **order = malloc((file->n_tensors + 1) * sizeof *order);
    for (size_t i = 0; order && i < file->n_tensors; i++)
        order[i] = &file->tensors[i];
    if (order)
        qsort(order, file->n_tensors, sizeof *order, by_place);
    return order;
}

static uint64_t added_bytes(const file_tensor_t *tensor, int64_t n_rows, int64_t n_more)
{
    return grow_is_vocabulary(tensor, n_rows) ? tensor->n_bytes / (uint64_t)n_rows * (uint64_t)n_more : 0;
}

/* Returns the header's text with new shapes and places, for free(); NULL: no memory. */
static char *new_header(const tensor_file_t *file, const file_tensor_t **order, int64_t n_rows, int64_t n_more)
{
    json_t *header = json_deep_copy(file->header);
    uint64_t end = 0;
    bool holds = header != NULL;
    for (size_t i = 0; i < file->n_tensors && holds; i++) {
        json_t *entry = json_object_get(header, order[i]->name);
        const uint64_t begin = end, more = added_bytes(order[i], n_rows, n_more);
        end += order[i]->n_bytes + more;
        holds = json_object_set_new(entry, "data_offsets", json_pack("[I,I]", (json_int_t)begin, (json_int_t)end)) == 0;
        if (more > 0 && holds)
            holds = json_array_set_new(json_object_get(entry, "shape"), 0, json_integer(n_rows + n_more)) == 0;
    }
    char *text = holds ? json_dumps(header, JSON_COMPACT) : NULL;
    json_decref(header);
    return text;
}

/* Writes the header's length and the header, with spaces behind it. */
static void write_header(const char *text, FILE *out)
{
    const size_t n = strlen(text), n_padded = (n + HEADER_MULTIPLE - 1) / HEADER_MULTIPLE * HEADER_MULTIPLE;
    for (int i = 0; i < 8; i++)
        fputc((int)((uint64_t)n_padded >> 8 * i & 0xff), out);
    fputs(text, out);
    for (size_t i = n; i < n_padded; i++)
        fputc(' ', out);
}

/* ---- tensors ---- */

static zero_status_t copy_tensor(const tensor_file_t *file, const file_tensor_t *tensor, char *block, FILE *out)
{
    for (uint64_t at = 0; at < tensor->n_bytes; at += COPY_BYTES) {
        const uint64_t left = tensor->n_bytes - at;
        const size_t n = left < COPY_BYTES ? (size_t)left : COPY_BYTES;
        ZERO_TRY(tensor_file_read(file, tensor->first + at, block, n));
        fwrite(block, 1, n, out);
    }
    return ZERO_OK;
}

static void write_number(double value, zero_dtype_t dtype, FILE *out)
{
    const float number = (float)value;
    const uint16_t rounded = dtype == ZERO_BF16 ? zero_bf16_of_float(number) : zero_fp16_of_float(number);
    if (dtype == ZERO_FP32)
        fwrite(&number, sizeof number, 1, out);
    else
        fwrite(&rounded, sizeof rounded, 1, out);
}

/* Writes the mean of the rows n_more times. values: [n_rows, n_columns]; sums: [n_columns]. */
static void write_mean(const file_tensor_t *tensor, const float *values, double *sums, int64_t n_more, FILE *out)
{
    const size_t n_rows = (size_t)tensor->shape[0], n_columns = (size_t)tensor->shape[1];
    memset(sums, 0, n_columns * sizeof *sums);
    for (size_t row = 0; row < n_rows; row++)
        for (size_t i = 0; i < n_columns; i++)
            sums[i] += values[row * n_columns + i];
    for (int64_t row = 0; row < n_more; row++)
        for (size_t i = 0; i < n_columns; i++)
            write_number(sums[i] / (double)n_rows, tensor->dtype, out);
}

static zero_status_t write_more_rows(const tensor_file_t *file, const file_tensor_t *tensor, int64_t n_more, FILE *out)
{
    float *values = malloc((size_t)tensor->n_elems * sizeof *values);
    double *sums = malloc((size_t)tensor->shape[1] * sizeof *sums);
    zero_status_t status = values && sums ? tensor_file_read_fp32(file, tensor, values)
                                          : report_error(ZERO_ERROR_MEMORY, "no memory to read %s", tensor->name);
    if (status == ZERO_OK)
        write_mean(tensor, values, sums, n_more, out);
    free(sums);
    free(values);
    return status;
}

static zero_status_t write_tensors(const tensor_file_t *file, const file_tensor_t **order, int64_t n_rows,
                                   int64_t n_more, FILE *out, grown_t *grown)
{
    char *block = malloc(COPY_BYTES);
    zero_status_t status = block ? ZERO_OK : report_error(ZERO_ERROR_MEMORY, "no memory to copy '%s'", file->path);
    for (size_t i = 0; i < file->n_tensors && status == ZERO_OK; i++) {
        status = copy_tensor(file, order[i], block, out);
        if (status != ZERO_OK || !grow_is_vocabulary(order[i], n_rows))
            continue;
        status = write_more_rows(file, order[i], n_more, out);
        grown->n_tensors++;
        grown->n_bytes += (int64_t)added_bytes(order[i], n_rows, n_more);
    }
    free(block);
    return status;
}

zero_status_t grow_write(const tensor_file_t *file, int64_t n_rows, int64_t n_more, FILE *out, grown_t *grown)
{
    const file_tensor_t **order = in_order(file);
    char *header = order ? new_header(file, order, n_rows, n_more) : NULL;
    zero_status_t status =
        header ? ZERO_OK : report_error(ZERO_ERROR_MEMORY, "no memory for the header of '%s'", file->path);
    if (status == ZERO_OK) {
        write_header(header, out);
        status = write_tensors(file, order, n_rows, n_more, out, grown);
    }
    free(header);
    free(order);
    return status;
}

/* ---- json ---- */

static json_t *read_object(const char *path)
{
    json_error_t error;
    json_t *object = json_load_file(path, 0, &error);
    if (json_is_object(object))
        return object;
    report_error(ZERO_ERROR_FORMAT, "'%s' cannot be read: %s", path, object ? "it is no object" : error.text);
    json_decref(object);
    return NULL;
}

char *grow_config(const char *path, int64_t vocab_size)
{
    json_t *config = read_object(path);
    json_object_set_new(config, "vocab_size", json_integer(vocab_size));
    char *text = config ? json_dumps(config, JSON_INDENT(2)) : NULL;
    json_decref(config);
    return text;
}

char *grow_index(const char *path, int64_t n_bytes)
{
    json_t *index = read_object(path), *metadata = json_object_get(index, "metadata");
    const json_t *total = json_object_get(metadata, "total_size");
    if (json_is_integer(total))
        json_object_set_new(metadata, "total_size", json_integer(json_integer_value(total) + n_bytes));
    json_object_del(metadata, "total_parameters");
    char *text = index ? json_dumps(index, JSON_INDENT(2)) : NULL;
    json_decref(index);
    return text;
}
