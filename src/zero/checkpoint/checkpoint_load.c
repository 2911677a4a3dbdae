/* checkpoint_load.c - loads an open checkpoint into an engine.
 *
 * What must hold: nothing of the engine changes before every array of every declared tensor has been found, with its
 * shape. Rank 0 looks first: what it finds wrong is wrong for all ranks, and logged once.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/files.h"
#include "base/log.h"
#include "base/numbers.h"
#include "zero/checkpoint/checkpoint_layout.h"
#include "zero/checkpoint/checkpoint_open.h"
#include "zero/checkpoint/weights_directory.h"
#include "zero/engine/compare.h"
#include "zero/engine/engine_state.h"
#include "zero/format/safetensors.h"
#include "zero/plan/optimizer.h"

/* ---- finding the arrays ---- */

typedef struct loader {
    const zero_checkpoint_t *checkpoint;
    const zero_model_t *model;
    zero_names_t declared;
    zero_names_t bare; /* the same without prefix, of a partial load, which compares names as zero_load_weights does */
    zero_safetensors_source_t (
        *sources)[ZERO_N_KEPT]; /* by tensor; weights only of those without master weights, which contain them */
    bool takes_weights;         /* from the files that are opened now */
    int n_kept;                 /* ZERO_KEPT_M, and the optimizer's arrays */
    bool v_is_not_negative;
    zero_partial_t *partial; /* NULL: every tensor must be there, and no other */
    bool *found;             /* by tensor: to be loaded; NULL: all */
    size_t n_files;
    zero_safetensors_t *files;
} loader_t;

static const char *declared_name(const void *user, size_t i)
{
    const zero_model_t *model = user;
    return model->tensors[i].name;
}

static const char *bare_name(const void *user, size_t i)
{
    return zero_weights_bare_name(declared_name(user, i));
}

/* Returns the number of the declared tensor of that name; that of declared.n_names: none. */
static size_t find_declared(const loader_t *loader, const char *name, size_t n_bytes)
{
    const zero_names_t *declared = &loader->declared, *bare = &loader->bare;
    size_t at = zero_names_find(declared, name, n_bytes);
    if (at < declared->n_names || !loader->partial)
        return at < declared->n_names ? declared->names[at].index : at;
    const size_t n_prefix = (size_t)(zero_weights_bare_name(name) - name);
    at = n_prefix <= n_bytes ? zero_names_find(bare, name + n_prefix, n_bytes - n_prefix) : bare->n_names;
    return at < bare->n_names ? bare->names[at].index : declared->n_names;
}

/* Finds the declared tensor's array with that name; NULL if there is none. At most one fits, because no suffix is the
 * end of another. */
static zero_safetensors_source_t *find_source(const loader_t *loader, const char *name, zero_tensor_t *tensor)
{
    size_t n_bytes = strlen(name);
    const int end = loader->takes_weights ? ZERO_KEPT_WEIGHTS + 1 : loader->n_kept;
    for (int kept = loader->takes_weights ? ZERO_KEPT_WEIGHTS : ZERO_KEPT_MASTER; kept < end; kept++) {
        size_t n_suffix = strlen(zero_kept_suffixes[kept]);
        if (n_bytes < n_suffix || strcmp(name + n_bytes - n_suffix, zero_kept_suffixes[kept]) != 0)
            continue;
        size_t found = find_declared(loader, name, n_bytes - n_suffix);
        if (found == loader->declared.n_names || loader->model->tensors[found].not_saved)
            return NULL;
        *tensor = (zero_tensor_t)found;
        return &loader->sources[*tensor][kept];
    }
    return NULL;
}

static zero_status_t take_array(const loader_t *loader, const zero_safetensors_t *file,
                                const zero_safetensors_tensor_t *array)
{
    zero_tensor_t t;
    zero_safetensors_source_t *source = find_source(loader, array->name, &t);
    if (!source && loader->partial) {
        loader->partial->n_ignored += loader->takes_weights;
        return ZERO_OK;
    }
    if (!source)
        return zero_fail(ZERO_ERROR_FORMAT,
                         "'%s' holds %s, which this model does not have: the checkpoint is of another model; resume "
                         "with that model's settings",
                         file->path, array->name);
    const zero_tensor_decl_t *tensor = &loader->model->tensors[t];
    if (source->file)
        return zero_fail(ZERO_ERROR_FORMAT, "'%s': %s is also in '%s': take another checkpoint", file->path,
                         array->name, source->file->path);
    if (array->n_dims != tensor->n_dims ||
        memcmp(array->shape, tensor->shape, (size_t)tensor->n_dims * sizeof tensor->shape[0]) != 0)
        return zero_fail(ZERO_ERROR_FORMAT,
                         "'%s': %s has another shape than this model's tensor: the checkpoint is of another model; "
                         "resume with that model's settings",
                         file->path, array->name);
    if (!array->dtype->loadable || (!loader->takes_weights && array->dtype->dtype != ZERO_FP32))
        return zero_fail(ZERO_ERROR_FORMAT, "'%s': %s is of dtype %s and not F32: take another checkpoint", file->path,
                         array->name, array->dtype->name);
    *source = (zero_safetensors_source_t){.file = file, .tensor = array};
    return ZERO_OK;
}

static zero_status_t take_file(loader_t *loader, const char *name)
{
    char *path = NULL;
    ZERO_TRY(zero_path_join(loader->checkpoint->path, name, &path));
    zero_safetensors_t *file = &loader->files[loader->n_files];
    zero_status_t status = zero_safetensors_open(path, file);
    free(path);
    ZERO_TRY(status);
    loader->n_files++;
    for (size_t i = 0; i < file->n_tensors; i++)
        ZERO_TRY(take_array(loader, file, &file->tensors[i]));
    return ZERO_OK;
}

static zero_status_t take_files(loader_t *loader, const char *prefix)
{
    const zero_manifest_t *manifest = &loader->checkpoint->manifest;
    for (size_t i = 0; i < manifest->n_files; i++)
        if (strncmp(manifest->files[i].name, prefix, strlen(prefix)) == 0 &&
            strcmp(manifest->files[i].name, ZERO_INDEX_FILE) != 0)
            ZERO_TRY(take_file(loader, manifest->files[i].name));
    return ZERO_OK;
}

/* Returns whether the checkpoint has only a tensor's weights, if it has it at all: the tensor was frozen then. */
static bool was_frozen(const loader_t *loader, zero_tensor_t t)
{
    const zero_safetensors_source_t *sources = loader->sources[t];
    return !sources[ZERO_KEPT_MASTER].file && !sources[ZERO_KEPT_M].file && !sources[ZERO_KEPT_V].file;
}

/* Takes the weights if a tensor was frozen, or may be missing. */
static zero_status_t take_weights(loader_t *loader)
{
    zero_tensor_t t = 0;
    while (t < loader->model->n_tensors && !loader->partial &&
           (loader->model->tensors[t].not_saved || !was_frozen(loader, t)))
        t++;
    if (t == loader->model->n_tensors)
        return ZERO_OK;
    loader->takes_weights = true;
    ZERO_TRY(take_files(loader, ZERO_ADAPTER_FILE));
    return take_files(loader, ZERO_MODEL_PREFIX);
}

/* Returns whether a tensor is missing and may be, or is in no checkpoint. */
static bool is_kept(const loader_t *loader, zero_tensor_t t)
{
    if (loader->model->tensors[t].not_saved)
        return true;
    return loader->partial && was_frozen(loader, t) && !loader->sources[t][ZERO_KEPT_WEIGHTS].file;
}

/* Returns whether loading needs that array: of a tensor that was frozen the weights, of one that is frozen now the
 * master weights, of all others these and the moments. */
static bool needs(const loader_t *loader, zero_tensor_t t, int kept)
{
    if (is_kept(loader, t) || (was_frozen(loader, t) && loader->sources[t][ZERO_KEPT_WEIGHTS].file))
        return false;
    return kept == ZERO_KEPT_MASTER || (kept > ZERO_KEPT_MASTER && !loader->model->tensors[t].frozen);
}

static zero_status_t check_complete(const loader_t *loader)
{
    for (zero_tensor_t t = 0; t < loader->model->n_tensors; t++)
        for (int kept = ZERO_KEPT_MASTER; kept < loader->n_kept; kept++)
            if (needs(loader, t, kept) && !loader->sources[t][kept].file)
                return zero_fail(
                    ZERO_ERROR_FORMAT,
                    "'%s' lacks %s%s: the checkpoint is of another model; resume with that model's settings",
                    loader->checkpoint->path, loader->model->tensors[t].name, zero_kept_suffixes[kept]);
    return ZERO_OK;
}

/* Lists what is to be loaded. A checkpoint that has no tensor of the model is of another. */
static zero_status_t list_found(loader_t *loader)
{
    const zero_model_t *model = loader->model;
    zero_partial_t counts = {0};
    loader->found = calloc((size_t)model->n_tensors, sizeof *loader->found);
    if (!loader->found)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory to load '%s'", loader->checkpoint->path);
    for (zero_tensor_t t = 0; t < model->n_tensors; t++) {
        loader->found[t] = !is_kept(loader, t);
        if (!model->tensors[t].not_saved)
            *(loader->found[t] ? &counts.n_loaded : &counts.n_kept) += 1;
    }
    if (loader->partial) {
        loader->partial->n_loaded = counts.n_loaded;
        loader->partial->n_kept = counts.n_kept;
    }
    if (counts.n_loaded > 0)
        return ZERO_OK;
    return zero_fail(ZERO_ERROR_FORMAT, "'%s' has none of the model's %d tensors, such as %s", loader->checkpoint->path,
                     model->n_tensors, model->tensors[0].name);
}

static zero_status_t find_arrays(loader_t *loader)
{
    const zero_manifest_t *manifest = &loader->checkpoint->manifest;
    loader->sources = calloc((size_t)loader->model->n_tensors, sizeof *loader->sources);
    loader->files = calloc(manifest->n_files, sizeof *loader->files);
    if (!loader->sources || !loader->files)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory to load '%s'", loader->checkpoint->path);
    ZERO_TRY(zero_names_create((size_t)loader->model->n_tensors, declared_name, loader->model, &loader->declared));
    if (loader->partial)
        ZERO_TRY(zero_names_create((size_t)loader->model->n_tensors, bare_name, loader->model, &loader->bare));
    ZERO_TRY(take_files(loader, ZERO_OPTIMIZER_PREFIX));
    ZERO_TRY(take_weights(loader));
    ZERO_TRY(check_complete(loader));
    return list_found(loader);
}

/* Finds the arrays on rank 0, then on the others, so that what rank 0 finds wrong is logged once. */
static zero_status_t find_arrays_on_all_ranks(zero_comm_t *comm, loader_t *loader)
{
    zero_status_t status = ZERO_OK;
    if (comm->rank == 0)
        status = find_arrays(loader);
    ZERO_TRY(zero_comm_tell_status(comm, status));
    return zero_comm_agree(comm, comm->rank == 0 ? ZERO_OK : find_arrays(loader));
}

/* ---- loading ---- */

#define PIECE_ELEMS ((size_t)1 << 14) /* of an array, read by one thread */

/* What one thread reads: a piece of one of a run's arrays. */
typedef struct array_piece {
    const zero_safetensors_source_t *source;
    uint64_t first;
    size_t n_elems;
    float *values;
    bool is_not_negative; /* must be so: AdamW takes the square root of second moments */
} array_piece_t;

/* Checks second moments. The files are as they were written, so a negative number was saved. */
static zero_status_t check_not_negative(const array_piece_t *piece)
{
    const size_t at = zero_find_unsound(piece->values, piece->n_elems, true);
    if (at == piece->n_elems)
        return ZERO_OK;
    return zero_fail(ZERO_ERROR_FORMAT,
                     "'%s': %s holds %g at element %" PRIu64 ", where no negative number can be: take another "
                     "checkpoint",
                     piece->source->file->path, piece->source->tensor->name, (double)piece->values[at],
                     piece->first + at);
}

static zero_status_t read_piece(const array_piece_t *piece)
{
    const zero_safetensors_source_t *source = piece->source;
    ZERO_TRY(zero_safetensors_read(source->file, source->tensor, piece->first, piece->n_elems, piece->values));
    ZERO_TRY(zero_safetensors_check_finite(source->file, source->tensor, piece->first, piece->n_elems, piece->values,
                                           "take another checkpoint"));
    return piece->is_not_negative ? check_not_negative(piece) : ZERO_OK;
}

/* Returns the i-th piece of a run's arrays, each of which has n_pieces. */
static array_piece_t piece_of(const array_piece_t *arrays, size_t n_pieces, size_t i)
{
    array_piece_t piece = arrays[i / n_pieces];
    const size_t done = i % n_pieces * PIECE_ELEMS, left = piece.n_elems - done;
    piece.first += done;
    piece.values += done;
    piece.n_elems = left < PIECE_ELEMS ? left : PIECE_ELEMS;
    return piece;
}

/* Reads a run of up to three arrays, in several threads: reading and checking take longer than the way to a GPU. */
static zero_status_t read_arrays(const array_piece_t *arrays, size_t n_arrays, size_t n_elems)
{
    const size_t n_pieces = (n_elems + PIECE_ELEMS - 1) / PIECE_ELEMS;
    bool all_good = true;
#pragma omp parallel for reduction(&& : all_good) if (n_pieces > 1)
    for (size_t i = 0; i < n_arrays * n_pieces; i++) {
        const array_piece_t piece = piece_of(arrays, n_pieces, i);
        zero_log_mute(true);
        all_good = read_piece(&piece) == ZERO_OK && all_good;
        zero_log_mute(false);
    }
    for (size_t i = 0; i < n_arrays && !all_good; i++)
        ZERO_TRY(read_piece(&arrays[i]));
    return ZERO_OK;
}

/* The moments of a tensor that was frozen begin at zero. */
static zero_status_t fill(void *user, const zero_chunk_t *chunk)
{
    const loader_t *loader = user;
    const zero_safetensors_source_t *sources = loader->sources[chunk->tensor];
    const bool is_from_weights = was_frozen(loader, chunk->tensor);
    array_piece_t arrays[ZERO_N_KEPT] = {{&sources[is_from_weights ? ZERO_KEPT_WEIGHTS : ZERO_KEPT_MASTER],
                                          chunk->first, chunk->n_elems, chunk->master, false}};
    size_t n = 1;
    if (is_from_weights && chunk->m)
        memset(chunk->m, 0, chunk->n_elems * sizeof *chunk->m);
    if (is_from_weights && chunk->m && chunk->v)
        memset(chunk->v, 0, chunk->n_elems * sizeof *chunk->v);
    if (!is_from_weights && chunk->m)
        arrays[n++] = (array_piece_t){&sources[ZERO_KEPT_M], chunk->first, chunk->n_elems, chunk->m, false};
    if (!is_from_weights && chunk->m && chunk->v)
        arrays[n++] =
            (array_piece_t){&sources[ZERO_KEPT_V], chunk->first, chunk->n_elems, chunk->v, loader->v_is_not_negative};
    return read_arrays(arrays, n, chunk->n_elems);
}

static void destroy(loader_t *loader)
{
    for (size_t i = 0; i < loader->n_files; i++)
        zero_safetensors_close(&loader->files[i]);
    free(loader->files);
    zero_names_destroy(&loader->declared);
    zero_names_destroy(&loader->bare);
    free(loader->sources);
    free(loader->found);
}

static int n_unloaded(const loader_t *loader)
{
    int n = 0;
    for (zero_tensor_t t = 0; t < loader->model->n_tensors; t++)
        n += !loader->found[t];
    return n;
}

/* Refuses ranks that have opened different checkpoints, by what their manifests list: each would load its part of the
 * weights from another. */
static zero_status_t compare_checkpoints(zero_comm_t *comm, const zero_checkpoint_t *checkpoint)
{
    const zero_manifest_t *manifest = &checkpoint->manifest;
    uint64_t hash = 0;
    for (size_t i = 0; i < manifest->n_files; i++) {
        const zero_manifest_file_t *file = &manifest->files[i];
        hash = zero_hash_fold(hash, file->name, strlen(file->name) + 1);
        hash = zero_hash_fold(hash, &file->xxh3, sizeof file->xxh3);
    }
    ZERO_TRY(zero_compare_number(comm, "the checkpoint's step", (int64_t)checkpoint->step));
    return zero_compare_number(
        comm, "the hash of the checkpoint that it has opened (do hosts have other files under its path?)",
        (int64_t)hash);
}

static zero_status_t load(zero_engine_t *engine, loader_t *loader)
{
    const zero_checkpoint_t *checkpoint = loader->checkpoint;
    zero_step_state_t state;
    uint64_t step;
    ZERO_TRY(zero_engine_get_step_state(engine, "zero_load", &state));
    ZERO_TRY(compare_checkpoints(zero_engine_context(engine)->host_comm, checkpoint));
    ZERO_TRY(zero_checkpoint_state_check_optimizer(checkpoint->state, checkpoint->state_path,
                                                   &zero_engine_context(engine)->config));
    ZERO_TRY(zero_checkpoint_state_parse(checkpoint->state, checkpoint->state_path,
                                         zero_engine_context(engine)->config.dtype, &step, &state));
    ZERO_TRY(find_arrays_on_all_ranks(zero_engine_context(engine)->host_comm, loader));
    ZERO_TRY(zero_engine_set_some(engine, true, n_unloaded(loader) > 0 ? loader->found : NULL, fill, loader));
    return zero_engine_set_step_state(engine, "zero_load", step, &state);
}

/* Adam's bias correction is that of the whole model's step count, and a new tensor's moments begin at zero. */
static void warn_new(const zero_context_t *context, const zero_partial_t *counts)
{
    const bool corrects =
        context->config.optimizer == ZERO_OPTIMIZER_ADAMW || context->config.optimizer == ZERO_OPTIMIZER_ADAMW8BIT;
    if (corrects && counts->n_kept > 0 && context->host_comm->rank == 0)
        zero_log(ZERO_LOG_WARNING,
                 "%d tensors are not in the checkpoint: AdamW goes on with its step count, so their first updates are "
                 "larger than in a new run (lr_scale of zero_set_group makes them smaller)",
                 counts->n_kept);
}

/* missing: the argument that was NULL, if one was. partial: NULL if every tensor must be there, and no other. */
static zero_status_t load_by(zero_engine_t *engine, const char *call, const zero_checkpoint_t *checkpoint,
                             const char *missing, zero_partial_t *partial)
{
    zero_context_t *context = zero_engine_context(engine);
    zero_partial_t counts = {0};
    if (zero_engine_has_started(engine))
        return zero_fail(ZERO_ERROR_ORDER, "%s after the first zero_begin", call);
    ZERO_TRY(zero_comm_agree(context->host_comm, missing ? zero_refuse_null(call, missing) : ZERO_OK));
    loader_t loader = {.checkpoint = checkpoint,
                       .model = context->model,
                       .n_kept = ZERO_KEPT_M + context->plan.n_arrays,
                       .v_is_not_negative = zero_optimizer_of(&context->config)->v_is_not_negative,
                       .partial = partial ? &counts : NULL};
    zero_context_enter(context, call);
    zero_status_t status = load(engine, &loader);
    destroy(&loader);
    if (status == ZERO_OK && partial) {
        *partial = counts;
        warn_new(context, &counts);
    }
    return zero_comm_leave(context->host_comm, status);
}

zero_status_t zero_load(zero_engine_t *engine, const zero_checkpoint_t *checkpoint)
{
    ZERO_REQUIRE(engine);
    return load_by(engine, "zero_load", checkpoint, checkpoint ? NULL : "checkpoint", NULL);
}

zero_status_t zero_load_partial(zero_engine_t *engine, const zero_checkpoint_t *checkpoint, zero_partial_t *partial)
{
    const char *missing = !checkpoint ? "checkpoint" : !partial ? "partial" : NULL;
    ZERO_REQUIRE(engine);
    return load_by(engine, "zero_load_partial", checkpoint, missing, partial);
}
