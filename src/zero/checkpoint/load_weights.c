/* load_weights.c - loads weights from a directory in Hugging Face's layout: model.safetensors, or
 * model.safetensors.index.json and the files that it names.
 *
 * What must hold: nothing is written before every declared tensor has been found, with its shape, in files with good
 * headers; and all ranks fail together. Rank 0 goes first: what it finds wrong is wrong for all ranks, is logged once,
 * and is the status of every rank. What another rank finds wrong afterwards (for example, its host lacks the directory)
 * is its own failure.
 *
 * Names are compared without a leading "transformer." or "model.": Hugging Face saves base models without it, and the
 * same models with a head with it.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "zero/engine/engine_state.h"
#include "base/files.h"
#include "base/log.h"
#include "zero/disk/safetensors.h"

#define SINGLE_NAME "model.safetensors"
#define INDEX_NAME "model.safetensors.index.json"
#define HEAD_NAME "lm_head.weight"
#define UNKNOWN_BYTES 320
#define COMPARED_ELEMS ((size_t)1 << 16)

/* The file that holds a declared tensor; NULL until it is found. */
typedef struct source {
    const zero_safetensors_t *file;
    const zero_safetensors_tensor_t *tensor;
} source_t;

/* A linked list, because sources keep the files' addresses. */
typedef struct open_file {
    zero_safetensors_t file;
    struct open_file *next;
} open_file_t;

typedef struct checkpoint {
    const char *directory;
    const zero_model_t *model;
    zero_names_t declared; /* bare_name of every declared tensor */
    source_t *sources;     /* by declared tensor */
    source_t head;         /* "lm_head.weight", if the files have it and the model does not declare it */
    bool is_partial;       /* tensors may be missing */
    bool *found;           /* by declared tensor */
    open_file_t *files;
    size_t n_unknown;            /* tensors of the files that the model does not declare */
    size_t n_listed;             /* how many of them fit into `unknown` */
    char unknown[UNKNOWN_BYTES]; /* "a, b, c" */
} checkpoint_t;

/* ---- names ---- */

static const char *bare_name(const char *name)
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
    return bare_name(model->tensors[i].name);
}

/* Finds the declared tensor for a name in a file; -1 if there is none. If declared tensors differ only in the prefix,
 * takes the one with exactly this name, else the first. */
static zero_tensor_t find_declared(const checkpoint_t *checkpoint, const char *name)
{
    const zero_names_t *declared = &checkpoint->declared;
    const char *bare = bare_name(name);
    size_t first = zero_names_find(declared, bare, strlen(bare));
    for (size_t i = first; i < declared->n_names && strcmp(declared->names[i].name, bare) == 0; i++)
        if (strcmp(checkpoint->model->tensors[declared->names[i].index].name, name) == 0)
            return (zero_tensor_t)declared->names[i].index;
    return first < declared->n_names ? (zero_tensor_t)declared->names[first].index : -1;
}

/* Returns whether a tensor is one that Hugging Face saves beside the parameters: constant masks and frequencies, and an
 * output head that repeats the embedding. No warning is due for these. A model that declares such a name gets it. */
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

static void note_unknown(checkpoint_t *checkpoint, const char *name)
{
    size_t n = strlen(checkpoint->unknown), room = sizeof checkpoint->unknown - n;
    if (strlen(name) + sizeof ", " <= room && checkpoint->n_listed == checkpoint->n_unknown) {
        snprintf(checkpoint->unknown + n, room, "%s%s", n ? ", " : "", name);
        checkpoint->n_listed++;
    }
    checkpoint->n_unknown++;
}

static zero_status_t take_tensor(checkpoint_t *checkpoint, const zero_safetensors_t *file,
                                 const zero_safetensors_tensor_t *tensor)
{
    zero_tensor_t t = find_declared(checkpoint, tensor->name);
    if (t < 0) {
        if (strcmp(bare_name(tensor->name), HEAD_NAME) == 0)
            checkpoint->head = (source_t){.file = file, .tensor = tensor};
        if (!is_known_extra(tensor->name))
            note_unknown(checkpoint, tensor->name);
        return ZERO_OK;
    }
    source_t *source = &checkpoint->sources[t];
    if (source->file)
        return zero_fail(ZERO_ERROR_FORMAT, "'%s': tensor %s is there twice, here and as %s in '%s'", file->path,
                         tensor->name, source->tensor->name, source->file->path);
    ZERO_TRY(check_match(file, tensor, &checkpoint->model->tensors[t]));
    *source = (source_t){.file = file, .tensor = tensor};
    return ZERO_OK;
}

static zero_status_t check_complete(const checkpoint_t *checkpoint)
{
    const zero_model_t *model = checkpoint->model;
    int n_missing = 0, first = 0;
    for (zero_tensor_t t = model->n_tensors - 1; t >= 0; t--)
        if (!checkpoint->sources[t].file) {
            n_missing++;
            first = t;
        }
    if (n_missing == 0 || (checkpoint->is_partial && n_missing < model->n_tensors))
        return ZERO_OK;
    if (checkpoint->is_partial)
        return zero_fail(ZERO_ERROR_FORMAT, "'%s' has none of the model's %d tensors, such as %s",
                         checkpoint->directory, model->n_tensors, model->tensors[0].name);
    return zero_fail(ZERO_ERROR_FORMAT, "'%s' lacks %d of the model's %d tensors; the first is %s",
                     checkpoint->directory, n_missing, model->n_tensors, model->tensors[first].name);
}

/* ---- opening files ---- */

/* Opens the file at `path` unless it is open. */
static zero_status_t open_once(checkpoint_t *checkpoint, const char *path, const zero_safetensors_t **file)
{
    for (open_file_t *known = checkpoint->files; known; known = known->next)
        if (strcmp(known->file.path, path) == 0) {
            *file = &known->file;
            return ZERO_OK;
        }
    open_file_t *opened = calloc(1, sizeof *opened);
    if (!opened)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory to open '%s'", path);
    zero_status_t status = zero_safetensors_open(path, &opened->file);
    if (status != ZERO_OK) {
        free(opened);
        return status;
    }
    opened->next = checkpoint->files;
    checkpoint->files = opened;
    *file = &opened->file;
    return ZERO_OK;
}

static zero_status_t take_single(checkpoint_t *checkpoint, const char *path)
{
    const zero_safetensors_t *file = NULL;
    ZERO_TRY(open_once(checkpoint, path, &file));
    for (size_t i = 0; i < file->n_tensors; i++)
        ZERO_TRY(take_tensor(checkpoint, file, &file->tensors[i]));
    return ZERO_OK;
}

/* Takes one entry of the index: a tensor's name and its file. */
static zero_status_t take_indexed(checkpoint_t *checkpoint, const char *name, const json_t *file_name)
{
    const zero_safetensors_t *file = NULL;
    char *path = NULL;
    if (!zero_safetensors_name_is_safe(name))
        return zero_fail(ZERO_ERROR_FORMAT,
                         "'%s/%s': a tensor's name, '%.100s', is empty or has a '/', a '..' or a control character",
                         checkpoint->directory, INDEX_NAME, name);
    if (!json_is_string(file_name) || !zero_safetensors_name_is_safe(json_string_value(file_name)))
        return zero_fail(ZERO_ERROR_FORMAT,
                         "'%s/%s': the file of tensor %.100s is not the name of a file in that directory",
                         checkpoint->directory, INDEX_NAME, name);
    ZERO_TRY(zero_path_join(checkpoint->directory, json_string_value(file_name), &path));
    zero_status_t status = open_once(checkpoint, path, &file);
    free(path);
    ZERO_TRY(status);
    const zero_safetensors_tensor_t *tensor = zero_safetensors_find(file, name);
    if (!tensor)
        return zero_fail(ZERO_ERROR_FORMAT, "'%s': tensor %.100s is not there, though %s says so", file->path, name,
                         INDEX_NAME);
    return take_tensor(checkpoint, file, tensor);
}

static zero_status_t take_index(checkpoint_t *checkpoint, const char *path)
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
        status = take_indexed(checkpoint, name, file_name);
        if (status != ZERO_OK)
            break;
    }
    json_decref(index);
    return status;
}

static zero_status_t take_directory(checkpoint_t *checkpoint)
{
    char *single = NULL, *index = NULL;
    zero_status_t status;
    ZERO_TRY_GOTO(zero_path_join(checkpoint->directory, SINGLE_NAME, &single), done);
    ZERO_TRY_GOTO(zero_path_join(checkpoint->directory, INDEX_NAME, &index), done);
    /* If anything else is wrong with the file, opening it reports that. */
    if (access(single, F_OK) == 0)
        status = take_single(checkpoint, single);
    else if (access(index, F_OK) == 0)
        status = take_index(checkpoint, index);
    else
        status = zero_fail(ZERO_ERROR_IO, "cannot find weights in '%s': it has neither %s nor %s (%s)",
                           checkpoint->directory, SINGLE_NAME, INDEX_NAME, strerror(errno));
done:
    free(index);
    free(single);
    return status;
}

static void checkpoint_close(checkpoint_t *checkpoint)
{
    for (open_file_t *file = checkpoint->files, *next; file; file = next) {
        next = file->next;
        zero_safetensors_close(&file->file);
        free(file);
    }
    zero_names_destroy(&checkpoint->declared);
    free(checkpoint->sources);
    free(checkpoint->found);
    *checkpoint = (checkpoint_t){0};
}

/* Opens everything and finds every declared tensor. *checkpoint says whether some may be missing. */
static zero_status_t checkpoint_open(checkpoint_t *checkpoint, const zero_model_t *model, const char *directory)
{
    zero_status_t status;
    checkpoint_t opened = {.directory = directory, .model = model, .is_partial = checkpoint->is_partial};
    opened.sources = calloc((size_t)model->n_tensors, sizeof *opened.sources);
    opened.found = calloc((size_t)model->n_tensors, sizeof *opened.found);
    if (!opened.sources || !opened.found) {
        status = zero_fail(ZERO_ERROR_MEMORY, "no memory to find %d tensors in '%s'", model->n_tensors, directory);
        goto fail;
    }
    ZERO_TRY_GOTO(zero_names_create((size_t)model->n_tensors, declared_name, model, &opened.declared), fail);
    ZERO_TRY_GOTO(take_directory(&opened), fail);
    ZERO_TRY_GOTO(check_complete(&opened), fail);
    for (zero_tensor_t t = 0; t < model->n_tensors; t++)
        opened.found[t] = opened.sources[t].file != NULL;
    *checkpoint = opened;
    return ZERO_OK;
fail:
    checkpoint_close(&opened);
    return status;
}

/* ---- a head that is not declared ---- */

/* Returns where the token embedding is; NULL: the model declares none by Hugging Face's names. */
static const source_t *find_embedding(const checkpoint_t *checkpoint)
{
    static const char *const NAMES[] = {"wte.weight", "embed_tokens.weight"};
    for (size_t i = 0; i < sizeof NAMES / sizeof NAMES[0]; i++) {
        zero_tensor_t t = find_declared(checkpoint, NAMES[i]);
        if (t >= 0 && checkpoint->sources[t].file)
            return &checkpoint->sources[t];
    }
    return NULL;
}

static zero_status_t compare(const source_t *a, const source_t *b, float *room, bool *same)
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
static zero_status_t check_head(const checkpoint_t *checkpoint)
{
    const source_t *head = &checkpoint->head, *embedding = find_embedding(checkpoint);
    bool same = true;
    if (!head->file || !embedding || checkpoint->is_partial)
        return ZERO_OK;
    float *room = malloc(2 * COMPARED_ELEMS * sizeof *room);
    zero_status_t status =
        room ? ZERO_OK : zero_fail(ZERO_ERROR_MEMORY, "no memory to compare tensors of '%s'", checkpoint->directory);
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
    const checkpoint_t *checkpoint = user;
    const source_t *source = &checkpoint->sources[chunk->tensor];
    ZERO_TRY(zero_safetensors_read(source->file, source->tensor, chunk->first, chunk->n_elems, chunk->master));
    return zero_safetensors_check_finite(source->file, source->tensor, chunk->first, chunk->n_elems, chunk->master,
                                         "fetch the model again, or start from another");
}

static void warn_unknown(const checkpoint_t *checkpoint)
{
    if (checkpoint->n_unknown > 0 && !checkpoint->is_partial)
        zero_log(ZERO_LOG_WARNING, "'%s' holds %zu tensors that the model does not declare; they are ignored: %s%s",
                 checkpoint->directory, checkpoint->n_unknown, checkpoint->unknown,
                 checkpoint->n_listed < checkpoint->n_unknown ? ", ..." : "");
}

/* Opens the directory on rank 0, then on the others: see the top of this file. */
static zero_status_t open_on_all_ranks(zero_comm_t *comm, const zero_model_t *model, const char *directory,
                                       checkpoint_t *checkpoint)
{
    zero_status_t status = ZERO_OK;
    if (comm->rank == 0)
        status = checkpoint_open(checkpoint, model, directory);
    if (comm->rank == 0 && status == ZERO_OK)
        status = check_head(checkpoint);
    ZERO_TRY(zero_comm_broadcast(comm, &status, sizeof status, 0));
    ZERO_TRY(status);
    if (comm->rank == 0)
        warn_unknown(checkpoint);
    else
        status = checkpoint_open(checkpoint, model, directory);
    return zero_comm_agree(comm, status);
}

static void count(const checkpoint_t *checkpoint, zero_partial_t *partial)
{
    *partial = (zero_partial_t){.n_ignored = (int)checkpoint->n_unknown};
    for (zero_tensor_t t = 0; t < checkpoint->model->n_tensors; t++)
        *(checkpoint->found[t] ? &partial->n_loaded : &partial->n_kept) += 1;
}

/* missing: the argument that was NULL, if one was. partial: NULL if no tensor may be missing. */
static zero_status_t load(zero_engine_t *engine, const char *call, const char *directory, const char *missing,
                          zero_partial_t *partial)
{
    checkpoint_t checkpoint = {.is_partial = partial != NULL};
    zero_context_t *context = zero_engine_context(engine);
    ZERO_TRY(zero_comm_agree(context->comm, missing ? zero_refuse_null(call, missing) : ZERO_OK));
    zero_context_enter(context, call);
    zero_status_t status = open_on_all_ranks(context->comm, context->model, directory, &checkpoint);
    if (status == ZERO_OK)
        status = zero_engine_set_some(engine, false, partial ? checkpoint.found : NULL, fill, &checkpoint);
    if (status == ZERO_OK && partial)
        count(&checkpoint, partial);
    checkpoint_close(&checkpoint);
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
