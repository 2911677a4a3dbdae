/* state_copy.c - see state_copy.h. */
#include "zero/checkpoint/state_copy.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "zero/engine/engine_state.h"
#include "zero/runtime/addresses.h"

/* Returns how many numbers this rank owns: weights and moments. */
static size_t count_owned(const zero_context_t *context)
{
    size_t n = 0;
    for (zero_tensor_t t = 0; t < context->model->n_tensors; t++)
        if (!context->model->tensors[t].not_saved)
            n += zero_context_owned_span(context, t, context->comm->rank).n_elems *
                 (context->model->tensors[t].frozen ? 1 : 1 + (size_t)context->plan.n_arrays);
    return n;
}

static float *keep(zero_state_copy_t *copy, const float *values, size_t n)
{
    float *kept = copy->end;
    if (!values)
        return NULL;
    memcpy(kept, values, n * sizeof *values);
    copy->end += n;
    return kept;
}

static zero_status_t copy_chunk(void *user, const zero_chunk_t *chunk)
{
    zero_state_copy_t *copy = user;
    zero_chunk_t *chunks = zero_grow(copy->chunks, copy->n_chunks, &copy->capacity, sizeof *chunks);
    if (!chunks)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory to list more than %zu runs of weights", copy->n_chunks);
    copy->chunks = chunks;
    zero_chunk_t *kept = &copy->chunks[copy->n_chunks++];
    *kept = *chunk;
    kept->master = keep(copy, chunk->master, chunk->n_elems);
    kept->m = keep(copy, chunk->m, chunk->n_elems);
    kept->v = keep(copy, chunk->v, chunk->n_elems);
    return ZERO_OK;
}

bool zero_state_copy_has_room(zero_engine_t *engine)
{
    const zero_context_t *context = zero_engine_context(engine);
    uint64_t available;
    zero_host_memory(NULL, &available);
    return (count_owned(context) + 1) * sizeof(float) <=
           zero_bytes_to_plan(available) / (uint64_t)context->host_comm->local_size;
}

zero_status_t zero_state_copy_create(zero_engine_t *engine, zero_state_copy_t *copy)
{
    size_t n = count_owned(zero_engine_context(engine)), n_bytes = (n + 1) * sizeof(float);
    copy->end = copy->values = malloc(n_bytes);
    if (!copy->values)
        return zero_fail(
            ZERO_ERROR_MEMORY,
            "no host memory to save in the background: a copy of %zu numbers takes %zu bytes; save without", n,
            n_bytes);
    return zero_engine_get_saved(engine, copy_chunk, copy);
}

/* Writes all arrays of one kind. *n_done: the chunks that are written. */
static zero_status_t write_kind(const zero_state_copy_t *copy, zero_array_writer_t *writer, zero_kept_t kept,
                                size_t *n_done)
{
    for (*n_done = 0; *n_done < copy->n_chunks; ++*n_done)
        ZERO_TRY(zero_array_writer_write_kept(writer, &copy->chunks[*n_done], kept));
    return ZERO_OK;
}

zero_status_t zero_state_copy_write(const zero_state_copy_t *copy, bool in_parallel, zero_array_writer_t *writer)
{
    size_t n_done[ZERO_N_KEPT] = {0};
#pragma omp parallel for num_threads(ZERO_N_KEPT) if (in_parallel)
    for (int kept = 0; kept < ZERO_N_KEPT; kept++) {
        zero_log_mute(true);
        (void)write_kind(copy, writer, (zero_kept_t)kept, &n_done[kept]);
        zero_log_mute(false);
    }
    for (int kept = 0; kept < ZERO_N_KEPT; kept++) {
        if (n_done[kept] == copy->n_chunks)
            continue;
        /* Says why, since it mostly fails again. If it does not, the chunk's hash is wrong, because it has it twice. */
        ZERO_TRY(zero_array_writer_write_kept(writer, &copy->chunks[n_done[kept]], (zero_kept_t)kept));
        return zero_fail(ZERO_ERROR_IO, "'%s': writing failed once: this checkpoint is given up", writer->directory);
    }
    return ZERO_OK;
}

void zero_state_copy_destroy(zero_state_copy_t *copy)
{
    free(copy->values);
    free(copy->chunks);
    *copy = (zero_state_copy_t){0};
}
