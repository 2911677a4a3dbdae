/* new_files.c - see new_files.h. */
#include "zero/checkpoint/new_files.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "base/json_build.h"
#include "base/log.h"
#include "base/numbers.h"
#include "kernels/shard.h"
#include "zero/checkpoint/checkpoint_open.h"

/* ---- array writer ---- */

/* So few that the kernels use one thread: a save has a thread of its own and leaves the others to training. */
#define RUN_ELEMS ((size_t)1 << 15)

zero_status_t zero_array_writer_create(const zero_checkpoint_layout_t *layout, const zero_model_t *model,
                                       const char *directory, zero_dtype_t dtype, zero_array_writer_t *writer)
{
    zero_array_writer_t made = {.layout = layout,
                                .model = model,
                                .directory = directory,
                                .dtype = dtype,
                                .weights = malloc(RUN_ELEMS * sizeof(float)),
                                .master_lo = malloc(RUN_ELEMS * sizeof(float))};
    for (int kept = 0; kept < ZERO_N_KEPT; kept++)
        made.files[kept].file = -1;
    *writer = made;
    if (!made.weights || !made.master_lo)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory to write into '%s'", directory);
    return ZERO_OK;
}

static zero_status_t close_file(zero_array_file_t *file)
{
    zero_status_t status = ZERO_OK;
    if (file->file >= 0)
        status = zero_file_close_synced(file->fd, file->path);
    free(file->path);
    *file = (zero_array_file_t){.file = -1};
    return status;
}

static zero_status_t open_file(const zero_array_writer_t *writer, zero_array_file_t *open, int file)
{
    if (open->file == file)
        return ZERO_OK;
    ZERO_TRY(close_file(open));
    ZERO_TRY(zero_path_join(writer->directory, writer->layout->files[file].name, &open->path));
    ZERO_TRY(zero_file_open_for_writing(open->path, &open->fd));
    open->file = file;
    return ZERO_OK;
}

static zero_status_t write_array(zero_array_writer_t *writer, zero_tensor_t tensor, zero_kept_t kept, uint64_t first,
                                 const void *data, size_t n_elems)
{
    const zero_checkpoint_array_t *array = &writer->layout->arrays[tensor][kept];
    zero_array_file_t *open = &writer->files[kept];
    size_t element_bytes = writer->layout->element_bytes[kept], n_bytes = n_elems * element_bytes;
    uint64_t offset = array->offset + first * element_bytes;
    if (writer->written)
        ZERO_TRY(zero_extents_add(&writer->written[kept], (size_t)array->file, offset, data, n_bytes));
    ZERO_TRY(open_file(writer, open, array->file));
    return zero_file_write(open->fd, open->path, offset, data, n_bytes);
}

/* Refuses an element that cannot be loaded: the checkpoints that are there are better. */
static zero_status_t refuse(const zero_array_writer_t *writer, const zero_chunk_t *chunk, zero_kept_t kept, size_t at,
                            float number)
{
    const zero_dtype_t dtype = kept == ZERO_KEPT_WEIGHTS ? writer->dtype : ZERO_FP32;
    return zero_fail(ZERO_ERROR_NONFINITE,
                     "this step is not saved: %s%s is %g at element %" PRIu64
                     ", which is not finite in %s: resume from an "
                     "earlier checkpoint",
                     writer->model->tensors[chunk->tensor].name, zero_kept_suffixes[kept], zero_number_shown(number),
                     chunk->first + at, zero_dtype_name(dtype));
}

/* Returns the index of the first weight that is not finite in the dtype; n: all are. As zero_find_unsound does. */
static size_t find_infinite(const void *weights, zero_dtype_t dtype, size_t n)
{
    const uint16_t *halves = weights, exponent = dtype == ZERO_FP16 ? 0x7c00 : 0x7f80;
    unsigned bad = 0;
    if (dtype == ZERO_FP32)
        return zero_find_unsound(weights, n, false);
    for (size_t i = 0; i < n; i++)
        bad |= (halves[i] & exponent) == exponent;
    for (size_t i = 0; i < n && bad; i++)
        if ((halves[i] & exponent) == exponent)
            return i;
    return n;
}

/* Writes weights as the model computes with them: rounded from the master weights as AdamW does. */
static zero_status_t write_weights(zero_array_writer_t *writer, const zero_chunk_t *chunk)
{
    void *master_lo = writer->dtype == ZERO_FP32 ? NULL : writer->master_lo;
    for (size_t done = 0; done < chunk->n_elems; done += RUN_ELEMS) {
        size_t n = chunk->n_elems - done < RUN_ELEMS ? chunk->n_elems - done : RUN_ELEMS;
        ZERO_TRY(zero_shard_kernels_cpu()->split_master(writer->weights, master_lo, writer->dtype, chunk->master + done,
                                                        n, NULL));
        const size_t at = find_infinite(writer->weights, writer->dtype, n);
        if (at < n)
            return refuse(writer, chunk, ZERO_KEPT_WEIGHTS, done + at, chunk->master[done + at]);
        ZERO_TRY(write_array(writer, chunk->tensor, ZERO_KEPT_WEIGHTS, chunk->first + done, writer->weights, n));
    }
    return ZERO_OK;
}

zero_status_t zero_array_writer_write_kept(zero_array_writer_t *writer, const zero_chunk_t *chunk, zero_kept_t kept)
{
    const float *const values[ZERO_N_KEPT] = {
        [ZERO_KEPT_MASTER] = chunk->master, [ZERO_KEPT_M] = chunk->m, [ZERO_KEPT_V] = chunk->v};
    if (kept == ZERO_KEPT_WEIGHTS)
        return write_weights(writer, chunk);
    if (!chunk->m || (int)kept >= (int)writer->layout->n_kept) /* frozen, or the optimizer lacks it */
        return ZERO_OK;
    const size_t at = zero_find_unsound(values[kept], chunk->n_elems, false);
    if (at < chunk->n_elems)
        return refuse(writer, chunk, kept, at, values[kept][at]);
    return write_array(writer, chunk->tensor, kept, chunk->first, values[kept], chunk->n_elems);
}

zero_status_t zero_array_writer_write(void *user, const zero_chunk_t *chunk)
{
    for (int kept = 0; kept < ZERO_N_KEPT; kept++)
        ZERO_TRY(zero_array_writer_write_kept(user, chunk, (zero_kept_t)kept));
    return ZERO_OK;
}

zero_status_t zero_array_writer_close(zero_array_writer_t *writer)
{
    zero_status_t status = ZERO_OK;
    for (int kept = 0; kept < ZERO_N_KEPT; kept++) {
        zero_status_t closed = close_file(&writer->files[kept]);
        if (status == ZERO_OK)
            status = closed;
    }
    return status;
}

void zero_array_writer_destroy(zero_array_writer_t *writer)
{
    if (writer->layout)
        (void)zero_array_writer_close(writer);
    free(writer->master_lo);
    free(writer->weights);
    *writer = (zero_array_writer_t){0};
}

/* ---- new files ---- */

/* ---- listing ---- */

/* Checks that the caller's config.json can be parsed: it is written as it is, and should not turn out bad on loading.
 */
static zero_status_t check_config(const char *config_json)
{
    json_t *config = NULL;
    if (config_json)
        ZERO_TRY(zero_checkpoint_parse_callers("config_json", config_json, &config));
    json_decref(config);
    return ZERO_OK;
}

/* Returns whether two names cannot be in one directory: they are equal, or one is the folder that the other is in. */
static bool collide(const char *a, const char *b)
{
    const size_t n = strlen(a) < strlen(b) ? strlen(a) : strlen(b);
    return strncmp(a, b, n) == 0 && (a[n] == '\0' || a[n] == '/') && (b[n] == '\0' || b[n] == '/');
}

static bool is_taken(const zero_manifest_t *manifest, const char *name)
{
    bool taken = collide(name, ZERO_MANIFEST_NAME) || collide(name, ZERO_CONFIG_FILE);
    for (size_t i = 0; i < manifest->n_files && !taken; i++)
        taken = collide(name, manifest->files[i].name);
    return taken;
}

/* Returns whether zero_load_weights would read weights from it. */
static bool has_weights(const char *name)
{
    return collide(name, ZERO_WEIGHTS_FILE) || collide(name, ZERO_INDEX_FILE) || collide(name, ZERO_ADAPTER_FILE);
}

/* Lists one of the caller's files. */
static zero_status_t list_callers(zero_manifest_t *manifest, const zero_save_file_t *file)
{
    const char *name = file->name ? file->name : "";
    const char *fault = !file->data || file->n_bytes == 0 ? "it has no content"
                        : !zero_manifest_name_is_safe(name) || name[0] == '.' || strstr(name, "/.")
                            ? "it is hidden, or its name leads out of the directory"
                        : !zero_json_takes(name)   ? "its name is not UTF-8"
                        : has_weights(name)        ? "zero_load_weights would take it for the model's weights"
                        : is_taken(manifest, name) ? "there is another one by that name, or by that of its folder"
                                                   : NULL;
    if (fault)
        return zero_fail(ZERO_ERROR_ARGUMENT, "zero_save_begin: the file '%s' cannot be saved: %s", name, fault);
    return zero_manifest_add(manifest, name);
}

static zero_status_t list_all(const zero_save_options_t *options, zero_new_files_t *files)
{
    zero_manifest_t *manifest = &files->manifest;
    for (int f = 0; f < files->layout.n_files; f++)
        ZERO_TRY(zero_manifest_add(manifest, files->layout.files[f].name));
    if (!files->layout.is_adapter)
        ZERO_TRY(zero_manifest_add(manifest, ZERO_INDEX_FILE));
    if (options->config_json)
        ZERO_TRY(zero_manifest_add(manifest, ZERO_CONFIG_FILE));
    ZERO_TRY(zero_manifest_add(manifest, ZERO_STATE_FILE));
    for (int i = 0; i < options->n_files; i++)
        ZERO_TRY(list_callers(manifest, &options->files[i]));
    return ZERO_OK;
}

zero_status_t zero_new_files_list(const zero_context_t *context, uint64_t step, const zero_step_state_t *state,
                                  const zero_save_options_t *options, zero_new_files_t *files)
{
    const zero_config_t *config = &context->config;
    ZERO_TRY(check_config(options->config_json));
    ZERO_TRY(zero_checkpoint_state_make(step, config, state, options->state_json, &files->state));
    ZERO_TRY(zero_checkpoint_layout_create(context->model, config->dtype, context->plan.n_arrays,
                                           options->max_file_bytes, &files->layout));
    return list_all(options, files);
}

void zero_new_files_destroy(zero_new_files_t *files)
{
    zero_checkpoint_layout_destroy(&files->layout);
    zero_manifest_destroy(&files->manifest);
    json_decref(files->state);
    *files = (zero_new_files_t){0};
}

/* ---- making ---- */

/* Where files are made. */
typedef struct maker {
    const zero_new_files_t *files;
    const char *directory;
    zero_extents_t *written; /* or NULL */
} maker_t;

static zero_status_t record(const maker_t *maker, size_t number, const void *data, size_t n_bytes)
{
    return maker->written ? zero_extents_add(maker->written, number, 0, data, n_bytes) : ZERO_OK;
}

static zero_status_t write_header(const maker_t *maker, int number)
{
    const zero_checkpoint_file_t *file = &maker->files->layout.files[number];
    ZERO_TRY(record(maker, (size_t)number, file->header, file->header_bytes));
    return zero_file_write_new(maker->directory, file->name, file->n_bytes, file->header, file->header_bytes);
}

static zero_status_t write_whole(const maker_t *maker, const char *name, const void *data, size_t n_bytes)
{
    ZERO_TRY(record(maker, zero_manifest_find(&maker->files->manifest, name), data, n_bytes));
    return zero_file_write_whole(maker->directory, name, data, n_bytes);
}

static zero_status_t write_json(const maker_t *maker, const char *name, const json_t *value)
{
    char *text = NULL;
    ZERO_TRY(zero_json_text(name, value, &text));
    zero_status_t status = write_whole(maker, name, text, strlen(text));
    free(text);
    return status;
}

static zero_status_t write_index(const maker_t *maker, const zero_model_t *model)
{
    json_t *index = zero_checkpoint_index(&maker->files->layout, model);
    if (!index)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for the index of '%s'", maker->directory);
    zero_status_t status = write_json(maker, ZERO_INDEX_FILE, index);
    json_decref(index);
    return status;
}

static zero_status_t write_callers(const maker_t *maker, const zero_save_file_t *file)
{
    ZERO_TRY(zero_folder_of_name(maker->directory, file->name, zero_directory_make));
    ZERO_TRY(write_whole(maker, file->name, file->data, file->n_bytes));
    return zero_folder_of_name(maker->directory, file->name, zero_directory_sync);
}

zero_status_t zero_new_files_make(const zero_new_files_t *files, const zero_model_t *model, const char *directory,
                                  const zero_save_options_t *options, zero_extents_t *written)
{
    const maker_t maker = {.files = files, .directory = directory, .written = written};
    for (int f = 0; f < files->layout.n_files; f++)
        ZERO_TRY(write_header(&maker, f));
    if (!files->layout.is_adapter)
        ZERO_TRY(write_index(&maker, model));
    if (options->config_json)
        ZERO_TRY(write_whole(&maker, ZERO_CONFIG_FILE, options->config_json, strlen(options->config_json)));
    ZERO_TRY(write_json(&maker, ZERO_STATE_FILE, files->state));
    for (int i = 0; i < options->n_files; i++)
        ZERO_TRY(write_callers(&maker, &options->files[i]));
    return zero_directory_sync(directory);
}
