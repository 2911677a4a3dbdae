/* weights_directory.c - see weights_directory.h. */
#include "zero/checkpoint/weights_directory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/files.h"
#include "base/log.h"
#include "zero/checkpoint/checkpoint_layout.h"
#include "zero/engine/compare.h"
#include "zero/engine/engine_state.h"

#define HEAD_NAME "lm_head.weight"

/* ---- names ---- */

const char *zero_weights_bare_name(const char *name)
{
    static const char *const PREFIXES[] = {"transformer.", "model."};
    for (size_t i = 0; i < sizeof PREFIXES / sizeof PREFIXES[0]; i++)
        if (strncmp(name, PREFIXES[i], strlen(PREFIXES[i])) == 0)
            return name + strlen(PREFIXES[i]);
    return name;
}

static const char *declared_name(const void *user, size_t i)
{
    const zero_model_t *model = user;
    return zero_weights_bare_name(model->tensors[i].name);
}

zero_tensor_t zero_weights_find(const zero_weights_t *weights, const char *name)
{
    const zero_names_t *declared = &weights->declared;
    const char *bare = zero_weights_bare_name(name);
    size_t first = zero_names_find(declared, bare, strlen(bare));
    for (size_t i = first; i < declared->n_names && strcmp(declared->names[i].name, bare) == 0; i++)
        if (strcmp(weights->model->tensors[declared->names[i].index].name, name) == 0)
            return (zero_tensor_t)declared->names[i].index;
    return first < declared->n_names ? (zero_tensor_t)declared->names[first].index : -1;
}

/* Returns whether a tensor is one that Hugging Face saves along with the parameters: constant masks and frequencies,
 * and an output head that repeats the embedding. No warning is due for these. A model that declares such a name gets
 * it. */
static bool is_known_extra(const char *name)
{
    static const char *const SUFFIXES[] = {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq", HEAD_NAME};
    for (size_t i = 0; i < sizeof SUFFIXES / sizeof SUFFIXES[0]; i++) {
        size_t n = strlen(name), n_suffix = strlen(SUFFIXES[i]);
        if (n >= n_suffix && strcmp(name + n - n_suffix, SUFFIXES[i]) == 0)
            return true;
    }
    return false;
}

/* ---- matching tensors ---- */

/* "[2, 3]" */
static const char *shape_text(int n_dims, const int64_t *shape, char *text, size_t n_bytes)
{
    size_t n = 0;
    for (int d = 0; d < n_dims && n < n_bytes; d++)
        n += (size_t)snprintf(text + n, n_bytes - n, "%s%" PRId64, d ? ", " : "[", shape[d]);
    if (n < n_bytes)
        snprintf(text + n, n_bytes - n, n_dims ? "]" : "[]");
    return text;
}

static bool same_shape(const zero_safetensors_tensor_t *tensor, const zero_tensor_decl_t *decl)
{
    return tensor->n_dims == decl->n_dims &&
           memcmp(tensor->shape, decl->shape, (size_t)decl->n_dims * sizeof decl->shape[0]) == 0;
}

static zero_status_t check_match(const zero_safetensors_t *file, const zero_safetensors_tensor_t *tensor,
                                 const zero_tensor_decl_t *decl)
{
    if (!same_shape(tensor, decl)) {
        char found[200], declared[200];
        return zero_fail(ZERO_ERROR_FORMAT, "'%s': tensor %s has the shape %s and the model wants %s", file->path,
                         tensor->name, shape_text(tensor->n_dims, tensor->shape, found, sizeof found),
                         shape_text(decl->n_dims, decl->shape, declared, sizeof declared));
    }
    if (!tensor->dtype->loadable)
        return zero_fail(ZERO_ERROR_UNSUPPORTED,
                         "'%s': tensor %s is of dtype %s; weights are loaded from F32, BF16 or F16", file->path,
                         tensor->name, tensor->dtype->name);
    return ZERO_OK;
}

static void note_unknown(zero_weights_t *weights, const char *name)
{
    size_t n = strlen(weights->unknown), room = sizeof weights->unknown - n;
    if (strlen(name) + sizeof ", " <= room && weights->n_listed == weights->n_unknown) {
        snprintf(weights->unknown + n, room, "%s%s", n ? ", " : "", name);
        weights->n_listed++;
    }
    weights->n_unknown++;
}

static zero_status_t add_tensor(zero_weights_t *weights, const zero_safetensors_t *file,
                                const zero_safetensors_tensor_t *tensor)
{
    zero_tensor_t t = zero_weights_find(weights, tensor->name);
    if (t < 0) {
        if (strcmp(zero_weights_bare_name(tensor->name), HEAD_NAME) == 0)
            weights->head = (zero_safetensors_source_t){.file = file, .tensor = tensor};
        if (!is_known_extra(tensor->name))
            note_unknown(weights, tensor->name);
        return ZERO_OK;
    }
    zero_safetensors_source_t *source = &weights->sources[t];
    if (source->file)
        return zero_fail(ZERO_ERROR_FORMAT, "'%s': tensor %s is there twice, here and as %s in '%s'", file->path,
                         tensor->name, source->tensor->name, source->file->path);
    ZERO_TRY(check_match(file, tensor, &weights->model->tensors[t]));
    *source = (zero_safetensors_source_t){.file = file, .tensor = tensor};
    return ZERO_OK;
}

/* Returns whether the model is an adapter and what it belongs to: then it is the latter that is loaded whole. */
static bool has_not_saved(const zero_model_t *model)
{
    for (zero_tensor_t t = 0; t < model->n_tensors; t++)
        if (model->tensors[t].not_saved)
            return true;
    return false;
}

static zero_status_t check_complete(const zero_weights_t *weights)
{
    const zero_model_t *model = weights->model;
    const bool is_base = has_not_saved(model) && !weights->is_partial;
    int n_missing = 0, first = 0;
    for (zero_tensor_t t = model->n_tensors - 1; t >= 0; t--)
        if (!weights->sources[t].file && (!is_base || model->tensors[t].not_saved)) {
            n_missing++;
            first = t;
        }
    if (n_missing == 0 || (weights->is_partial && n_missing < model->n_tensors))
        return ZERO_OK;
    if (weights->is_partial)
        return zero_fail(ZERO_ERROR_FORMAT, "'%s' has none of the model's %d tensors, such as %s", weights->directory,
                         model->n_tensors, model->tensors[0].name);
    return zero_fail(ZERO_ERROR_FORMAT, "'%s' lacks %d of the model's %d tensors; the first is %s", weights->directory,
                     n_missing, model->n_tensors, model->tensors[first].name);
}

/* ---- opening files ---- */

/* Opens the file at `path` unless it is open. */
static zero_status_t open_once(zero_weights_t *weights, const char *path, const zero_safetensors_t **file)
{
    for (zero_weights_file_t *known = weights->files; known; known = known->next)
        if (strcmp(known->file.path, path) == 0) {
            *file = &known->file;
            return ZERO_OK;
        }
    zero_weights_file_t *opened = calloc(1, sizeof *opened);
    if (!opened)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory to open '%s'", path);
    zero_status_t status = zero_safetensors_open(path, &opened->file);
    if (status != ZERO_OK) {
        free(opened);
        return status;
    }
    opened->next = weights->files;
    weights->files = opened;
    *file = &opened->file;
    return ZERO_OK;
}

static zero_status_t add_single(zero_weights_t *weights, const char *path)
{
    const zero_safetensors_t *file = NULL;
    ZERO_TRY(open_once(weights, path, &file));
    for (size_t i = 0; i < file->n_tensors; i++)
        ZERO_TRY(add_tensor(weights, file, &file->tensors[i]));
    return ZERO_OK;
}

/* Adds one entry of the index: a tensor's name and its file. */
static zero_status_t add_indexed(zero_weights_t *weights, const char *name, const json_t *file_name)
{
    const zero_safetensors_t *file = NULL;
    char *path = NULL;
    if (!zero_safetensors_name_is_safe(name))
        return zero_fail(ZERO_ERROR_FORMAT,
                         "'%s/%s': a tensor's name, '%.100s', is empty or has a '/', a '..' or a control character",
                         weights->directory, ZERO_INDEX_FILE, name);
    if (!json_is_string(file_name) || !zero_safetensors_name_is_safe(json_string_value(file_name)))
        return zero_fail(ZERO_ERROR_FORMAT,
                         "'%s/%s': the file of tensor %.100s is not the name of a file in that directory",
                         weights->directory, ZERO_INDEX_FILE, name);
    ZERO_TRY(zero_path_join(weights->directory, json_string_value(file_name), &path));
    zero_status_t status = open_once(weights, path, &file);
    free(path);
    ZERO_TRY(status);
    const zero_safetensors_tensor_t *tensor = zero_safetensors_find(file, name);
    if (!tensor)
        return zero_fail(ZERO_ERROR_FORMAT, "'%s': tensor %.100s is not there, though %s says so", file->path, name,
                         ZERO_INDEX_FILE);
    return add_tensor(weights, file, tensor);
}

static zero_status_t add_index(zero_weights_t *weights, const char *path)
{
    const char *name;
    json_t *index, *file_name;
    zero_status_t status = ZERO_OK;
    ZERO_TRY(zero_file_read_json(path, "fetch the model again", &index));
    json_t *weight_map = json_object_get(index, "weight_map");
    if (!json_is_object(weight_map))
        status = zero_fail(ZERO_ERROR_FORMAT, "'%s' has no weight_map that says which file holds which tensor", path);
    json_object_foreach(weight_map, name, file_name)
    {
        status = add_indexed(weights, name, file_name);
        if (status != ZERO_OK)
            break;
    }
    json_decref(index);
    return status;
}

/* Reports that a directory has no safetensors, and what to do with torch's files that older programs wrote. */
static zero_status_t fail_without_weights(const char *directory)
{
    static const char *const OTHERS[] = {"pytorch_model.bin", "pytorch_model.bin.index.json", "adapter_model.bin"};
    const int error = errno; /* of looking for safetensors */
    for (size_t i = 0; i < sizeof OTHERS / sizeof OTHERS[0]; i++) {
        char *path = NULL;
        ZERO_TRY(zero_path_join(directory, OTHERS[i], &path));
        const bool is_there = access(path, F_OK) == 0;
        free(path);
        if (is_there)
            return zero_fail(ZERO_ERROR_IO,
                             "cannot find weights in '%s': it has %s, and only safetensors are read: load it in Python "
                             "and save it by save_pretrained (in older versions with safe_serialization=True)",
                             directory, OTHERS[i]);
    }
    return zero_fail(ZERO_ERROR_IO, "cannot find weights in '%s': it has neither %s nor %s (%s)", directory,
                     ZERO_WEIGHTS_FILE, ZERO_INDEX_FILE, strerror(error));
}

static zero_status_t add_directory(zero_weights_t *weights)
{
    char *single = NULL, *index = NULL, *adapter = NULL;
    zero_status_t status;
    ZERO_TRY_GOTO(zero_path_join(weights->directory, ZERO_WEIGHTS_FILE, &single), done);
    ZERO_TRY_GOTO(zero_path_join(weights->directory, ZERO_INDEX_FILE, &index), done);
    ZERO_TRY_GOTO(zero_path_join(weights->directory, ZERO_ADAPTER_FILE, &adapter), done);
    /* If anything else is wrong with the file, opening it reports that. */
    if (access(single, F_OK) == 0)
        status = add_single(weights, single);
    else if (access(index, F_OK) == 0)
        status = add_index(weights, index);
    else if (access(adapter, F_OK) == 0)
        status = add_single(weights, adapter);
    else
        status = fail_without_weights(weights->directory);
done:
    free(adapter);
    free(index);
    free(single);
    return status;
}

void zero_weights_close(zero_weights_t *weights)
{
    for (zero_weights_file_t *file = weights->files, *next; file; file = next) {
        next = file->next;
        zero_safetensors_close(&file->file);
        free(file);
    }
    zero_names_destroy(&weights->declared);
    free(weights->sources);
    free(weights->found);
    *weights = (zero_weights_t){0};
}

zero_status_t zero_weights_open(zero_weights_t *weights, const zero_model_t *model, const char *directory)
{
    zero_status_t status;
    zero_weights_t opened = {.directory = directory, .model = model, .is_partial = weights->is_partial};
    opened.sources = calloc((size_t)model->n_tensors, sizeof *opened.sources);
    opened.found = calloc((size_t)model->n_tensors, sizeof *opened.found);
    if (!opened.sources || !opened.found) {
        status = zero_fail(ZERO_ERROR_MEMORY, "no memory to find %d tensors in '%s'", model->n_tensors, directory);
        goto fail;
    }
    ZERO_TRY_GOTO(zero_names_create((size_t)model->n_tensors, declared_name, model, &opened.declared), fail);
    ZERO_TRY_GOTO(add_directory(&opened), fail);
    ZERO_TRY_GOTO(check_complete(&opened), fail);
    for (zero_tensor_t t = 0; t < model->n_tensors; t++)
        opened.found[t] = opened.sources[t].file != NULL;
    *weights = opened;
    return ZERO_OK;
fail:
    zero_weights_close(&opened);
    return status;
}

/* ---- load weights ---- */
/* Loads weights from a directory in Hugging Face's layout (weights_directory.h).
 *
 * What must hold: nothing is written before every declared tensor has been found; and all ranks fail together. Rank 0
 * goes first: what it finds wrong is wrong for all ranks, is logged once, and is the status of every rank. What another
 * rank finds wrong afterwards (for example, its host lacks the directory) is its own failure. */

#define COMPARED_ELEMS ((size_t)1 << 16)
#define SAMPLED_ELEMS 1024 /* of each tensor, when ranks compare what they have opened */

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
                           "'%s': tensor %s differs from %s, but the model uses the one for both: declare the head "
                           "(zerotrain: \"tie_word_embeddings\": false in config.json), or take another model",
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

/* Hashes which tensors were found, and elements from the middle of each: of two models of one shape, such as one and
 * what it was fine-tuned to, nothing else need differ. */
static zero_status_t hash_samples(const zero_weights_t *weights, uint64_t *hash)
{
    float sample[SAMPLED_ELEMS];
    *hash = 0;
    for (zero_tensor_t t = 0; t < weights->model->n_tensors; t++) {
        const zero_safetensors_source_t *source = &weights->sources[t];
        if (!source->file)
            continue;
        const uint64_t n_elems = source->tensor->n_elems;
        const size_t n = n_elems < SAMPLED_ELEMS ? (size_t)n_elems : SAMPLED_ELEMS;
        ZERO_TRY(zero_safetensors_read(source->file, source->tensor, (n_elems - n) / 2, n, sample));
        *hash = zero_hash_fold(*hash, &t, sizeof t);
        *hash = zero_hash_fold(*hash, sample, n * sizeof *sample);
    }
    return ZERO_OK;
}

/* Refuses ranks that have opened different models: each would load its part of the weights from another. */
static zero_status_t compare_models(zero_comm_t *comm, const zero_weights_t *weights)
{
    uint64_t hash;
    ZERO_TRY(zero_comm_agree(comm, hash_samples(weights, &hash)));
    return zero_compare_number(
        comm, "the hash of samples of the weights that it has opened (do hosts have other files under one path?)",
        (int64_t)hash);
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
        status = compare_models(context->comm, &weights);
    if (status == ZERO_OK)
        status = zero_engine_set_some(engine, false, partial || has_not_saved(context->model) ? weights.found : NULL,
                                      fill, &weights);
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
