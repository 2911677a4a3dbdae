/* load_weights.c - loads weights from a directory in Hugging Face's layout (weights_directory.h).
 *
 * What must hold: nothing is written before every declared tensor has been found; and all ranks fail together. Rank 0
 * goes first: what it finds wrong is wrong for all ranks, is logged once, and is the status of every rank. What another
 * rank finds wrong afterwards (for example, its host lacks the directory) is its own failure.
 */
#include <stdlib.h>
#include <string.h>

#include "zero/checkpoint/weights_directory.h"
#include "zero/engine/engine_state.h"
#include "base/log.h"

#define COMPARED_ELEMS ((size_t)1 << 16)

/* ---- a head that is not declared ---- */

/* Returns where the token embedding is; NULL: the model declares none by Hugging Face's names. */
static const zero_safetensors_source_t *find_embedding(const zero_weights_t *weights)
{
    static const char *const NAMES[] = {"wte.weight", "embed_tokens.weight"};
    for (size_t i = 0; i < sizeof NAMES / sizeof NAMES[0]; i++) {
        zero_tensor_t t = zero_weights_find(weights, NAMES[i]);
        if (t >= 0 && weights->sources[t].file)
            return &weights->sources[t];
    }
    return NULL;
}

static zero_status_t compare(const zero_safetensors_source_t *a, const zero_safetensors_source_t *b, float *room,
                             bool *same)
{
    float *other = room + COMPARED_ELEMS;
    *same = a->tensor->n_elems == b->tensor->n_elems && a->tensor->dtype->loadable;
    for (uint64_t first = 0; first < b->tensor->n_elems && *same; first += COMPARED_ELEMS) {
        uint64_t left = b->tensor->n_elems - first;
        size_t n = left < COMPARED_ELEMS ? (size_t)left : COMPARED_ELEMS;
        ZERO_TRY(zero_safetensors_read(a->file, a->tensor, first, n, room));
        ZERO_TRY(zero_safetensors_read(b->file, b->tensor, first, n, other));
        *same = memcmp(room, other, n * sizeof *room) == 0;
    }
    return ZERO_OK;
}

/* Refuses a head that is not the embedding, in whose place the model would use the embedding. */
static zero_status_t check_head(const zero_weights_t *weights)
{
    const zero_safetensors_source_t *head = &weights->head, *embedding = find_embedding(weights);
    bool same = true;
    if (!head->file || !embedding || weights->is_partial)
        return ZERO_OK;
    float *room = malloc(2 * COMPARED_ELEMS * sizeof *room);
    zero_status_t status =
        room ? ZERO_OK : zero_fail(ZERO_ERROR_MEMORY, "no memory to compare tensors of '%s'", weights->directory);
    if (status == ZERO_OK)
        status = compare(head, embedding, room, &same);
    free(room);
    if (status == ZERO_OK && !same)
        status = zero_fail(ZERO_ERROR_FORMAT,
                           "'%s': tensor %s differs from %s, but the model uses the one for both: declare the head, or "
                           "take another model",
                           head->file->path, head->tensor->name, embedding->tensor->name);
    return status;
}

/* ---- loading ---- */

static zero_status_t fill(void *user, const zero_chunk_t *chunk)
{
    const zero_weights_t *weights = user;
    const zero_safetensors_source_t *source = &weights->sources[chunk->tensor];
    ZERO_TRY(zero_safetensors_read(source->file, source->tensor, chunk->first, chunk->n_elems, chunk->master));
    return zero_safetensors_check_finite(source->file, source->tensor, chunk->first, chunk->n_elems, chunk->master,
                                         "fetch the model again, or start from another");
}

static void warn_unknown(const zero_weights_t *weights)
{
    if (weights->n_unknown > 0 && !weights->is_partial)
        zero_log(ZERO_LOG_WARNING, "'%s' holds %zu tensors that the model does not declare; they are ignored: %s%s",
                 weights->directory, weights->n_unknown, weights->unknown,
                 weights->n_listed < weights->n_unknown ? ", ..." : "");
}

/* Opens the directory on rank 0, then on the others: see the top of this file. */
static zero_status_t open_on_all_ranks(zero_comm_t *comm, const zero_model_t *model, const char *directory,
                                       zero_weights_t *weights)
{
    zero_status_t status = ZERO_OK;
    if (comm->rank == 0)
        status = zero_weights_open(weights, model, directory);
    if (comm->rank == 0 && status == ZERO_OK)
        status = check_head(weights);
    ZERO_TRY(zero_comm_tell_status(comm, status));
    if (comm->rank == 0)
        warn_unknown(weights);
    else
        status = zero_weights_open(weights, model, directory);
    return zero_comm_agree(comm, status);
}

static void count(const zero_weights_t *weights, zero_partial_t *partial)
{
    *partial = (zero_partial_t){.n_ignored = (int)weights->n_unknown};
    for (zero_tensor_t t = 0; t < weights->model->n_tensors; t++)
        *(weights->found[t] ? &partial->n_loaded : &partial->n_kept) += 1;
}

/* missing: the argument that was NULL, if one was. partial: NULL if no tensor may be missing. */
static zero_status_t load(zero_engine_t *engine, const char *call, const char *directory, const char *missing,
                          zero_partial_t *partial)
{
    zero_weights_t weights = {.is_partial = partial != NULL};
    zero_context_t *context = zero_engine_context(engine);
    ZERO_TRY(zero_comm_agree(context->comm, missing ? zero_refuse_null(call, missing) : ZERO_OK));
    zero_context_enter(context, call);
    zero_status_t status = open_on_all_ranks(context->comm, context->model, directory, &weights);
    if (status == ZERO_OK)
        status = zero_engine_set_some(engine, false, partial ? weights.found : NULL, fill, &weights);
    if (status == ZERO_OK && partial)
        count(&weights, partial);
    zero_weights_close(&weights);
    return zero_comm_leave(context->host_comm, status);
}

zero_status_t zero_load_weights(zero_engine_t *engine, const char *directory)
{
    ZERO_REQUIRE(engine);
    return load(engine, "zero_load_weights", directory, directory ? NULL : "directory", NULL);
}

zero_status_t zero_load_weights_partial(zero_engine_t *engine, const char *directory, zero_partial_t *partial)
{
    const char *missing = !directory ? "directory" : !partial ? "partial" : NULL;
    ZERO_REQUIRE(engine);
    return load(engine, "zero_load_weights_partial", directory, missing, partial);
}
