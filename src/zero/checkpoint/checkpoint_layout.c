/* checkpoint_layout.c - see checkpoint_layout.h. */
#include "zero/checkpoint/checkpoint_layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_build.h"
#include "base/log.h"
#include "zero/format/safetensors.h"

#define LENGTH_BYTES 8
/* Data begins at a multiple of this, as in files of Hugging Face's own writer. */
#define HEADER_ALIGN 8

const char *const zero_kept_suffixes[ZERO_N_KEPT] = {"", ".master", ".m", ".v"};

/* The kinds of files, and which arrays are in them, of those that the layout has. */
static const struct {
    const char *prefix;
    zero_kept_t first, last;
} KINDS[] = {
    {ZERO_MODEL_PREFIX, ZERO_KEPT_WEIGHTS, ZERO_KEPT_WEIGHTS},
    {ZERO_OPTIMIZER_PREFIX, ZERO_KEPT_MASTER, ZERO_KEPT_V},
};
enum { N_KINDS = sizeof KINDS / sizeof KINDS[0] };

static const char *const DTYPE_NAMES[] = {[ZERO_FP32] = "F32", [ZERO_BF16] = "BF16", [ZERO_FP16] = "F16"};

typedef struct builder {
    const zero_model_t *model;
    zero_checkpoint_layout_t *layout;
    const char *dtype_name; /* of weights */
    uint64_t max_bytes;
    json_t **headers; /* by file */
    uint64_t *data_bytes;
} builder_t;

/* Appends an array to a file. Returns false without memory. */
static bool append(builder_t *b, int file, zero_tensor_t t, zero_kept_t kept)
{
    const zero_tensor_decl_t *tensor = &b->model->tensors[t];
    char name[ZERO_MAX_NAME + 16];
    uint64_t begin = b->data_bytes[file], end = begin + tensor->n_elems * b->layout->element_bytes[kept];
    json_t *shape = json_array();
    for (int d = 0; d < tensor->n_dims; d++)
        zero_json_append(&shape, json_integer(tensor->shape[d]));
    snprintf(name, sizeof name, "%s%s", tensor->name, zero_kept_suffixes[kept]);
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", kept == ZERO_KEPT_WEIGHTS ? b->dtype_name : "F32",
                              "shape", shape, "data_offsets", (json_int_t)begin, (json_int_t)end);
    b->layout->arrays[t][kept] = (zero_checkpoint_array_t){.file = file, .offset = begin};
    b->data_bytes[file] = end;
    return json_object_set_new(b->headers[file], name, entry) == 0;
}

/* Returns whether the files of a kind are one, an adapter's weights. */
static bool is_adapters(const zero_checkpoint_layout_t *layout, int kind)
{
    return layout->is_adapter && KINDS[kind].first == ZERO_KEPT_WEIGHTS;
}

/* Lays out the files of one kind, from number *n_files on. Returns false as append does. */
static bool add_files(builder_t *b, int kind, int *n_files)
{
    int first = *n_files, file = first - 1;
    for (zero_tensor_t t = 0; t < b->model->n_tensors; t++)
        for (int kept = (int)KINDS[kind].first; kept <= (int)KINDS[kind].last && kept < b->layout->n_kept; kept++) {
            uint64_t n_bytes = b->model->tensors[t].n_elems * b->layout->element_bytes[kept];
            if (!zero_checkpoint_keeps(&b->model->tensors[t], kept))
                continue;
            const bool is_full = file >= first && b->data_bytes[file] > 0 &&
                                 b->data_bytes[file] + n_bytes > b->max_bytes && !is_adapters(b->layout, kind);
            if (file < first || is_full) {
                b->headers[++file] = json_pack("{s:{s:s}}", ZERO_SAFETENSORS_METADATA, "format", "pt");
                b->data_bytes[file] = 0;
            }
            if (!append(b, file, t, (zero_kept_t)kept))
                return false;
        }
    *n_files = file + 1;
    for (int f = first; f < *n_files; f++)
        if (is_adapters(b->layout, kind))
            snprintf(b->layout->files[f].name, sizeof b->layout->files[f].name, ZERO_ADAPTER_FILE);
        else
            snprintf(b->layout->files[f].name, sizeof b->layout->files[f].name, "%s%05d-of-%05d.safetensors",
                     KINDS[kind].prefix, f - first + 1, *n_files - first);
    return true;
}

static bool write_header(const builder_t *b, zero_checkpoint_file_t *file, int index)
{
    char *text = json_dumps(b->headers[index], JSON_COMPACT | JSON_PRESERVE_ORDER);
    if (!text)
        return false;
    size_t length = strlen(text), padded = (length + HEADER_ALIGN - 1) / HEADER_ALIGN * HEADER_ALIGN;
    file->header_bytes = LENGTH_BYTES + padded;
    file->n_bytes = file->header_bytes + b->data_bytes[index];
    file->header = malloc(file->header_bytes);
    if (file->header) {
        for (int i = 0; i < LENGTH_BYTES; i++)
            file->header[i] = (char)(padded >> 8 * i & 255);
        memset(file->header + LENGTH_BYTES, ' ', padded);
        memcpy(file->header + LENGTH_BYTES, text, length);
    }
    free(text);
    return file->header != NULL;
}

static bool build(builder_t *b)
{
    zero_checkpoint_layout_t *layout = b->layout;
    for (int kind = 0; kind < N_KINDS; kind++)
        if (!add_files(b, kind, &layout->n_files))
            return false;
    for (int f = 0; f < layout->n_files; f++)
        if (!write_header(b, &layout->files[f], f))
            return false;
    for (zero_tensor_t t = 0; t < b->model->n_tensors; t++) {
        if (zero_checkpoint_keeps(&b->model->tensors[t], ZERO_KEPT_WEIGHTS))
            layout->weight_bytes += b->model->tensors[t].n_elems * layout->element_bytes[ZERO_KEPT_WEIGHTS];
        for (int kept = 0; kept < layout->n_kept && zero_checkpoint_keeps(&b->model->tensors[t], kept); kept++)
            layout->arrays[t][kept].offset += layout->files[layout->arrays[t][kept].file].header_bytes;
    }
    return true;
}

/* Returns whether the tensor's arrays that are saved can be read back under their names. */
static bool can_be_read_back(const zero_tensor_decl_t *tensor)
{
    char name[ZERO_MAX_NAME + 16];
    for (int kept = 0; kept < ZERO_N_KEPT && zero_checkpoint_keeps(tensor, kept); kept++) {
        snprintf(name, sizeof name, "%s%s", tensor->name, zero_kept_suffixes[kept]);
        if (!zero_safetensors_name_is_safe(name))
            return false;
    }
    return zero_json_takes(tensor->name) && strcmp(tensor->name, ZERO_SAFETENSORS_METADATA) != 0;
}

static zero_status_t check_names(const zero_model_t *model)
{
    for (zero_tensor_t t = 0; t < model->n_tensors; t++)
        if (!can_be_read_back(&model->tensors[t]))
            return zero_fail_collective(
                ZERO_ERROR_ARGUMENT,
                "tensor %d, '%s', cannot be saved: a name with '/', '..', a '.' at its end, a control character or "
                "what is not UTF-8 cannot be read back, nor can " ZERO_SAFETENSORS_METADATA ": rename it",
                t, model->tensors[t].name);
    return ZERO_OK;
}

zero_status_t zero_checkpoint_layout_create(const zero_model_t *model, zero_dtype_t dtype, int n_arrays,
                                            uint64_t max_file_bytes, zero_checkpoint_layout_t *layout)
{
    ZERO_TRY(check_names(model));
    int n_saved = 0;
    for (zero_tensor_t t = 0; t < model->n_tensors; t++)
        n_saved += !model->tensors[t].not_saved;
    if (n_saved == 0)
        return zero_fail(ZERO_ERROR_ARGUMENT,
                         "the model cannot be saved: all of its %d tensors are declared with not_saved",
                         model->n_tensors);
    size_t most_files = (size_t)model->n_tensors * ZERO_N_KEPT;
    zero_checkpoint_layout_t made = {.element_bytes = {zero_dtype_size(dtype), 4, 4, 4},
                                     .n_kept = ZERO_KEPT_M + n_arrays,
                                     .is_adapter = n_saved < model->n_tensors};
    builder_t b = {.model = model,
                   .layout = &made,
                   .dtype_name = DTYPE_NAMES[dtype],
                   .max_bytes = max_file_bytes ? max_file_bytes : ZERO_CHECKPOINT_FILE_BYTES};
    made.files = calloc(most_files, sizeof *made.files);
    made.arrays = calloc((size_t)model->n_tensors, sizeof *made.arrays);
    b.headers = calloc(most_files, sizeof(json_t *));
    b.data_bytes = calloc(most_files, sizeof *b.data_bytes);
    bool built = made.files && made.arrays && b.headers && b.data_bytes && build(&b);
    for (size_t f = 0; b.headers && f < most_files; f++)
        json_decref(b.headers[f]);
    free((void *)b.headers);
    free(b.data_bytes);
    if (!built) {
        zero_checkpoint_layout_destroy(&made);
        return zero_fail(ZERO_ERROR_MEMORY, "no memory to lay out a checkpoint of %d tensors", model->n_tensors);
    }
    *layout = made;
    return ZERO_OK;
}

void zero_checkpoint_layout_destroy(zero_checkpoint_layout_t *layout)
{
    for (int f = 0; layout->files && f < layout->n_files; f++)
        free(layout->files[f].header);
    free(layout->files);
    free(layout->arrays);
    *layout = (zero_checkpoint_layout_t){0};
}

json_t *zero_checkpoint_index(const zero_checkpoint_layout_t *layout, const zero_model_t *model)
{
    json_t *map = json_object();
    for (zero_tensor_t t = 0; t < model->n_tensors; t++)
        zero_json_set(&map, model->tensors[t].name,
                      json_string(layout->files[layout->arrays[t][ZERO_KEPT_WEIGHTS].file].name));
    return json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)layout->weight_bytes, "weight_map", map);
}
