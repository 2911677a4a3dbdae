/* array_writer.c - see array_writer.h. */
#include "zero/checkpoint/array_writer.h"

#include <stdlib.h>

#include "base/files.h"
#include "base/log.h"
#include "kernels/shard/shard.h"

/* So few that the kernels use one thread: a save has a thread of its own and leaves the others to training. */
#define RUN_ELEMS ((size_t)1 << 15)

zero_status_t zero_array_writer_create(const zero_checkpoint_layout_t *layout, const char *directory,
                                       zero_dtype_t dtype, zero_array_writer_t *writer)
{
    zero_array_writer_t made = {.layout = layout,
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

/* Writes weights as the model computes with them: rounded from the master weights as AdamW does. */
static zero_status_t write_weights(zero_array_writer_t *writer, const zero_chunk_t *chunk)
{
    void *master_lo = writer->dtype == ZERO_FP32 ? NULL : writer->master_lo;
    for (size_t done = 0; done < chunk->n_elems; done += RUN_ELEMS) {
        size_t n = chunk->n_elems - done < RUN_ELEMS ? chunk->n_elems - done : RUN_ELEMS;
        ZERO_TRY(zero_shard_kernels_cpu()->split_master(writer->weights, master_lo, writer->dtype, chunk->master + done,
                                                        n, NULL));
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
