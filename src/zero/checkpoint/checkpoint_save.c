/* checkpoint_save.c - saves a step: every rank writes the elements that it owns, and rank 0 everything else.
 *
 * A save has phases. In each, every rank works on its own, in a thread that uses neither the engine nor other ranks.
 * Then all ranks agree that they have succeeded, and go on to the next phase:
 *
 *     begin     rank 0: the temporary directory, with headers, state.json, config.json, and all files in full size
 *     write     each rank: the elements that it owns, synced. Then all ranks share hashes of what they wrote
 *               (checkpoint_extents.h)
 *     hash      each rank: XXH3 of every size-th file as it is on the disk, compared with the shared hashes
 *     commit    rank 0: manifest.json, rename to the step's name, `latest`
 *     tidy      rank 0: removal of the oldest checkpoints
 *
 * So there is no manifest and no name unless every rank's numbers are on the disk. If a rank fails, it logs why; all
 * ranks stop, and rank 0 removes the temporary directory.
 *
 * If each host has a directory of its own (options->per_host), the first rank of each host does what rank 0 does, and
 * before they write, the ranks of each host receive what those of other hosts own (host_copies.h). The files are the
 * same on all hosts, so one rank's hash of a file is for all.
 */
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "zero/disk/checkpoint_directory.h"
#include "zero/checkpoint/checkpoint_layout.h"
#include "zero/checkpoint/checkpoint_state.h"
#include "zero/engine/engine_state.h"
#include "zero/runtime/addresses.h"
#include "base/files.h"
#include "base/grow.h"
#include "base/log.h"
#include "base/reserved.h"
#include "zero/disk/manifest.h"
#include "zero/checkpoint/checkpoint_extents.h"
#include "zero/checkpoint/host_copies.h"
#include "zero/disk/safetensors.h"

/* So few that the kernels use one thread: a save has a thread of its own and leaves the others to training. */
#define RUN_ELEMS ((size_t)1 << 15)
#define POLL_NS 2000000

/* The file that is being written. Arrays are written in order, so one file of each kind is open at a time. */
typedef struct writer {
    int file; /* in the layout; -1: none */
    int fd;
    char *path;
} writer_t;

/* Lists of what this rank writes: one for each kind of array, and one for rank 0's headers and texts. */
enum { WRITTEN_BY_RANK_0 = ZERO_N_KEPT, N_WRITTEN };

struct zero_save {
    zero_comm_t *comm;
    zero_engine_t *engine; /* not touched by the thread */
    char *parent, *temporary;
    bool per_host;
    int lock; /* where this rank leads: on `temporary`, once it exists; else -1 */
    char *config_json;
    json_t *state;
    uint64_t step;
    int keep;
    zero_dtype_t dtype;
    zero_checkpoint_layout_t layout;
    zero_manifest_t manifest;

    writer_t writers[ZERO_N_KEPT];
    bool writes_others; /* elements that another host's rank owns and vouches for */
    zero_extents_t written[N_WRITTEN];
    zero_extents_t to_hash;    /* what all ranks wrote into the files that this rank hashes */
    void *weights, *master_lo; /* RUN_ELEMS of weights in the dtype, and split_master's other output */

    zero_chunk_t *chunks; /* background: a copy of what this rank owns */
    size_t n_chunks, chunk_capacity;
    float *copy, *copy_end;

    int phase;
    zero_status_t status; /* of the save so far */
    bool has_thread;
    pthread_t thread;
    atomic_bool thread_done;
    zero_status_t thread_status;
};

/* Returns whether this rank makes and commits its directory. */
static bool leads(const zero_save_t *save)
{
    return save->per_host ? save->comm->local_rank == 0 : save->comm->rank == 0;
}

/* ---- write ---- */

static zero_status_t close_writer(writer_t *writer)
{
    zero_status_t status = ZERO_OK;
    if (writer->file >= 0)
        status = zero_file_close_synced(writer->fd, writer->path);
    free(writer->path);
    *writer = (writer_t){.file = -1};
    return status;
}

static zero_status_t open_writer(zero_save_t *save, writer_t *writer, int file)
{
    if (writer->file == file)
        return ZERO_OK;
    ZERO_TRY(close_writer(writer));
    ZERO_TRY(zero_path_join(save->temporary, save->layout.files[file].name, &writer->path));
    ZERO_TRY(zero_file_open_for_writing(writer->path, &writer->fd));
    writer->file = file;
    return ZERO_OK;
}

static zero_status_t write_array(zero_save_t *save, zero_tensor_t tensor, zero_kept_t kept, uint64_t first,
                                 const void *data, size_t n_elems)
{
    const zero_checkpoint_array_t *array = &save->layout.arrays[tensor][kept];
    writer_t *writer = &save->writers[kept];
    size_t element_bytes = save->layout.element_bytes[kept], n_bytes = n_elems * element_bytes;
    uint64_t offset = array->offset + first * element_bytes;
    if (!save->writes_others)
        ZERO_TRY(zero_extents_add(&save->written[kept], (size_t)array->file, offset, data, n_bytes));
    ZERO_TRY(open_writer(save, writer, array->file));
    return zero_file_write(writer->fd, writer->path, offset, data, n_bytes);
}

/* Writes weights as the model computes with them: rounded from the master weights as AdamW does. */
static zero_status_t write_weights(zero_save_t *save, const zero_chunk_t *chunk)
{
    for (size_t done = 0; done < chunk->n_elems; done += RUN_ELEMS) {
        size_t n = chunk->n_elems - done < RUN_ELEMS ? chunk->n_elems - done : RUN_ELEMS;
        ZERO_TRY(zero_shard_kernels_cpu()->split_master(save->weights,
                                                        save->dtype == ZERO_FP32 ? NULL : save->master_lo, save->dtype,
                                                        chunk->master + done, n, NULL));
        ZERO_TRY(write_array(save, chunk->tensor, ZERO_KEPT_WEIGHTS, chunk->first + done, save->weights, n));
    }
    return ZERO_OK;
}

static zero_status_t write_chunk(void *user, const zero_chunk_t *chunk)
{
    zero_save_t *save = user;
    ZERO_TRY(write_weights(save, chunk));
    if (!chunk->m) /* frozen */
        return ZERO_OK;
    ZERO_TRY(write_array(save, chunk->tensor, ZERO_KEPT_MASTER, chunk->first, chunk->master, chunk->n_elems));
    ZERO_TRY(write_array(save, chunk->tensor, ZERO_KEPT_M, chunk->first, chunk->m, chunk->n_elems));
    if (save->layout.n_kept <= ZERO_KEPT_V)
        return ZERO_OK;
    return write_array(save, chunk->tensor, ZERO_KEPT_V, chunk->first, chunk->v, chunk->n_elems);
}

static zero_status_t close_writers(zero_save_t *save)
{
    zero_status_t status = ZERO_OK;
    for (int kept = 0; kept < ZERO_N_KEPT; kept++) {
        zero_status_t closed = close_writer(&save->writers[kept]);
        if (status == ZERO_OK)
            status = closed;
    }
    return status;
}

/* Writes this rank's elements: from the copy or, in the caller's own thread, from the engine. */
static zero_status_t write_phase(zero_save_t *save)
{
    zero_status_t status = ZERO_OK;
    if (!save->copy)
        status = zero_get_state(save->engine, write_chunk, save);
    for (size_t i = 0; i < save->n_chunks && status == ZERO_OK; i++)
        status = write_chunk(save, &save->chunks[i]);
    free(save->copy); /* not needed any more, and large */
    save->copy = NULL;
    zero_status_t closed = close_writers(save);
    return status == ZERO_OK ? closed : status;
}

static zero_status_t share_written(zero_save_t *save)
{
    return zero_extents_share(save->comm, save->written, N_WRITTEN, &save->to_hash);
}

/* ---- hash ---- */

static zero_status_t hash_phase(zero_save_t *save)
{
    for (size_t i = (size_t)save->comm->rank; i < save->manifest.n_files; i += (size_t)save->comm->size) {
        zero_manifest_file_t *file = &save->manifest.files[i];
        char *path = NULL;
        ZERO_TRY(zero_path_join(save->temporary, file->name, &path));
        zero_status_t status = zero_extents_verify(&save->to_hash, i, path, &file->n_bytes, &file->xxh3);
        free(path);
        ZERO_TRY(status);
    }
    return ZERO_OK;
}

/* Sends every rank's hashes to every rank. */
static zero_status_t share_hashes(zero_save_t *save)
{
    zero_comm_t *comm = save->comm;
    size_t n_files = save->manifest.n_files, n_ranks = (size_t)comm->size;
    uint64_t(*all)[2] = malloc(n_ranks * sizeof *all);
    zero_status_t status =
        all ? ZERO_OK : zero_fail(ZERO_ERROR_MEMORY, "no memory for the hashes of %zu ranks", n_ranks);
    status = zero_comm_agree(comm, status);
    for (size_t first = 0; first < n_files && status == ZERO_OK; first += n_ranks) {
        uint64_t mine[2] = {0};
        if (first + (size_t)comm->rank < n_files) {
            const zero_manifest_file_t *file = &save->manifest.files[first + (size_t)comm->rank];
            mine[0] = file->n_bytes;
            mine[1] = file->xxh3;
        }
        status = comm->ops->host_all_gather(comm, mine, sizeof mine, all);
        for (size_t i = first; i < n_files && i < first + n_ranks && status == ZERO_OK; i++) {
            save->manifest.files[i].n_bytes = all[i - first][0];
            save->manifest.files[i].xxh3 = all[i - first][1];
        }
    }
    free(all);
    return status;
}

/* ---- commit ---- */

static zero_status_t commit_phase(zero_save_t *save)
{
    if (!leads(save))
        return ZERO_OK;
    ZERO_TRY(zero_manifest_write(&save->manifest, save->temporary));
    return zero_checkpoints_commit(save->parent, save->step, save->temporary);
}

/* Runs when every host has the new checkpoint, so that at any time there is one that all have. */
static zero_status_t tidy_phase(zero_save_t *save)
{
    if (leads(save) && save->keep > 0)
        zero_checkpoints_keep(save->parent, save->step, save->keep);
    return ZERO_OK;
}

/* ---- phases ---- */

static const struct {
    zero_status_t (*work)(zero_save_t *save);  /* this rank's own */
    zero_status_t (*share)(zero_save_t *save); /* collective, after all ranks' work has succeeded; or NULL */
} PHASES[] = {{write_phase, share_written}, {hash_phase, share_hashes}, {commit_phase, NULL}, {tidy_phase, NULL}};
enum { N_PHASES = sizeof PHASES / sizeof PHASES[0] };

static void *run_thread(void *argument)
{
    zero_save_t *save = argument;
    save->thread_status = PHASES[save->phase].work(save);
    atomic_store(&save->thread_done, true);
    return NULL;
}

/* Starts a phase in a thread, which blocks all signals: they are for the main thread. Without a thread, does the work
 * here. */
static void start_phase(zero_save_t *save)
{
    sigset_t all, before;
    atomic_store(&save->thread_done, false);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    save->has_thread = pthread_create(&save->thread, NULL, run_thread, save) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!save->has_thread)
        run_thread(save);
}

/* Ends a phase whose work is done on all ranks, and starts the next. */
static zero_status_t finish_phase(zero_save_t *save)
{
    if (save->has_thread)
        pthread_join(save->thread, NULL);
    save->has_thread = false;
    ZERO_TRY(zero_comm_agree(save->comm, save->thread_status));
    if (PHASES[save->phase].share)
        ZERO_TRY(PHASES[save->phase].share(save));
    save->phase++;
    if (save->phase < N_PHASES)
        start_phase(save);
    return ZERO_OK;
}

/* Removes everything of a failed save, after its thread, which may still be writing, has ended. */
static void abandon(zero_save_t *save)
{
    if (save->has_thread)
        pthread_join(save->thread, NULL);
    save->has_thread = false;
    if (save->lock >= 0)
        zero_checkpoints_abandon(save->parent, save->step);
}

zero_status_t zero_save_poll(zero_save_t *save, bool *done)
{
    ZERO_REQUIRE(save);
    ZERO_REQUIRE(done);
    double n_done = atomic_load(&save->thread_done) ? 1.0 : 0.0;
    if (save->status == ZERO_OK && save->phase < N_PHASES) {
        save->status = zero_comm_sum(save->comm, &n_done, 1);
        if (save->status == ZERO_OK && (int)n_done == save->comm->size)
            save->status = finish_phase(save);
        if (save->status != ZERO_OK)
            abandon(save);
    }
    ZERO_TRY(save->status);
    *done = save->phase == N_PHASES;
    return ZERO_OK;
}

static void destroy(zero_save_t *save)
{
    close_writers(save);
    for (int list = 0; list < N_WRITTEN; list++)
        zero_extents_destroy(&save->written[list]);
    zero_extents_destroy(&save->to_hash);
    zero_checkpoint_layout_destroy(&save->layout);
    zero_manifest_destroy(&save->manifest);
    json_decref(save->state);
    free(save->copy);
    free(save->chunks);
    free(save->master_lo);
    free(save->weights);
    free(save->config_json);
    if (save->lock >= 0)
        close(save->lock);
    free(save->temporary);
    free(save->parent);
    zero_comm_t *comm = save->comm;
    zero_engine_leave(save->engine, ZERO_USER_SAVE);
    zero_comm_drop(comm, ZERO_USER_SAVE);
    free(save);
}

zero_status_t zero_save_end(zero_save_t *save)
{
    bool done = false;
    if (!save)
        return ZERO_OK;
    /* Polls, because a wait in a collective has a time limit, and another rank's disk may take longer. */
    zero_status_t status = zero_save_poll(save, &done);
    while (status == ZERO_OK && !done) {
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
        status = zero_save_poll(save, &done);
    }
    destroy(save);
    return status;
}

/* ---- begin ---- */

static zero_status_t write_header(zero_save_t *save, int number)
{
    int fd = -1;
    char *path = NULL;
    zero_status_t status;
    const zero_checkpoint_file_t *file = &save->layout.files[number];
    if (save->comm->rank == 0)
        ZERO_TRY(
            zero_extents_add(&save->written[WRITTEN_BY_RANK_0], (size_t)number, 0, file->header, file->header_bytes));
    ZERO_TRY(zero_path_join(save->temporary, file->name, &path));
    ZERO_TRY_GOTO(zero_file_create(path, file->n_bytes), done);
    ZERO_TRY_GOTO(zero_file_open_for_writing(path, &fd), done);
    status = zero_file_write(fd, path, 0, file->header, file->header_bytes);
    zero_status_t closed = zero_file_close_synced(fd, path);
    if (status == ZERO_OK)
        status = closed;
done:
    free(path);
    return status;
}

static zero_status_t write_whole(zero_save_t *save, const char *name, const void *data, size_t n_bytes)
{
    size_t number = zero_manifest_find(&save->manifest, name);
    if (save->comm->rank == 0)
        ZERO_TRY(zero_extents_add(&save->written[WRITTEN_BY_RANK_0], number, 0, data, n_bytes));
    return zero_file_write_whole(save->temporary, name, data, n_bytes);
}

static zero_status_t write_text(zero_save_t *save, const char *name, const char *text)
{
    return write_whole(save, name, text, strlen(text));
}

static zero_status_t write_json(zero_save_t *save, const char *name, const json_t *value)
{
    char *text = NULL;
    ZERO_TRY(zero_json_text(name, value, &text));
    zero_status_t status = write_text(save, name, text);
    free(text);
    return status;
}

static zero_status_t write_index(zero_save_t *save)
{
    json_t *index = zero_checkpoint_index(&save->layout, zero_engine_context(save->engine)->model);
    if (!index)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for the index of '%s'", save->temporary);
    zero_status_t status = write_json(save, ZERO_INDEX_FILE, index);
    json_decref(index);
    return status;
}

/* Makes all files; the arrays' elements are still missing. */
static zero_status_t make_files(zero_save_t *save, const zero_save_options_t *options)
{
    ZERO_TRY(zero_checkpoints_begin(save->parent, save->temporary, &save->lock));
    for (int f = 0; f < save->layout.n_files; f++)
        ZERO_TRY(write_header(save, f));
    ZERO_TRY(write_index(save));
    if (save->config_json)
        ZERO_TRY(write_text(save, ZERO_CONFIG_FILE, save->config_json));
    ZERO_TRY(write_json(save, ZERO_STATE_FILE, save->state));
    for (int i = 0; i < options->n_files; i++)
        ZERO_TRY(write_whole(save, options->files[i].name, options->files[i].data, options->files[i].n_bytes));
    return zero_directory_sync(save->temporary);
}

/* Lists one of the caller's files. */
static zero_status_t list_callers(zero_save_t *save, const zero_save_file_t *file)
{
    const char *name = file->name ? file->name : "";
    const char *fault = !file->data || file->n_bytes == 0 ? "it has no content"
                        : !zero_safetensors_name_is_safe(name) || name[0] == '.'
                            ? "it is hidden, or its name leads out of the directory"
                        : strcmp(name, ZERO_MANIFEST_NAME) == 0 || strcmp(name, ZERO_CONFIG_FILE) == 0 ||
                                zero_manifest_find(&save->manifest, name) < save->manifest.n_files
                            ? "there is another one by that name"
                            : NULL;
    if (fault)
        return zero_fail(ZERO_ERROR_ARGUMENT, "zero_save_begin: the file '%s' cannot be saved: %s", name, fault);
    return zero_manifest_add(&save->manifest, name);
}

/* Lists all files in the manifest. The layout's files come first, so that a file has the same number in both. */
static zero_status_t list_files(zero_save_t *save, const zero_save_options_t *options)
{
    for (int f = 0; f < save->layout.n_files; f++)
        ZERO_TRY(zero_manifest_add(&save->manifest, save->layout.files[f].name));
    ZERO_TRY(zero_manifest_add(&save->manifest, ZERO_INDEX_FILE));
    if (save->config_json)
        ZERO_TRY(zero_manifest_add(&save->manifest, ZERO_CONFIG_FILE));
    ZERO_TRY(zero_manifest_add(&save->manifest, ZERO_STATE_FILE));
    for (int i = 0; i < options->n_files; i++)
        ZERO_TRY(list_callers(save, &options->files[i]));
    return ZERO_OK;
}

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

/* Fills the save with all that needs neither other ranks nor the disk. */
static zero_status_t fill(zero_save_t *save, const char *directory, const zero_save_options_t *options)
{
    zero_step_state_t state;
    zero_engine_t *engine = save->engine;
    const zero_context_t *context = zero_engine_context(engine);
    for (int kept = 0; kept < ZERO_N_KEPT; kept++)
        save->writers[kept].file = -1;
    ZERO_TRY(zero_engine_get_step_state(engine, "zero_save_begin", &state));
    ZERO_TRY(check_config(options->config_json));
    ZERO_TRY(zero_engine_check_weights(engine, "zero_save_begin"));
    save->step = zero_engine_n_steps(engine);
    save->dtype = context->config.dtype;
    save->keep = options->keep;
    save->per_host = options->per_host;
    save->parent = strdup(directory);
    save->config_json = options->config_json ? strdup(options->config_json) : NULL;
    save->weights = malloc(RUN_ELEMS * sizeof(float));
    save->master_lo = malloc(RUN_ELEMS * sizeof(float));
    if (!save->parent || (options->config_json && !save->config_json) || !save->weights || !save->master_lo)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory to save into '%s'", directory);
    ZERO_TRY(zero_checkpoints_temporary(directory, save->step, &save->temporary));
    ZERO_TRY(zero_checkpoint_state_make(save->step, &context->config, &state, options->state_json, &save->state));
    ZERO_TRY(zero_checkpoint_layout_create(context->model, save->dtype, context->plan.n_arrays, options->max_file_bytes,
                                           &save->layout));
    return list_files(save, options);
}

/* Returns how many numbers this rank owns: weights and moments. */
static size_t count_owned(const zero_context_t *context)
{
    size_t n = 0;
    for (zero_tensor_t t = 0; t < context->model->n_tensors; t++)
        n += zero_context_owned_span(context, t, context->comm->rank).n_elems *
             (context->model->tensors[t].frozen ? 1 : 1 + (size_t)context->plan.n_arrays);
    return n;
}

static float *keep_copy(zero_save_t *save, const float *values, size_t n)
{
    float *kept = save->copy_end;
    if (!values)
        return NULL;
    memcpy(kept, values, n * sizeof *values);
    save->copy_end += n;
    return kept;
}

static zero_status_t copy_chunk(void *user, const zero_chunk_t *chunk)
{
    zero_save_t *save = user;
    zero_chunk_t *chunks = zero_grow(save->chunks, save->n_chunks, &save->chunk_capacity, sizeof *chunks);
    if (!chunks)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory to list more than %zu runs of weights", save->n_chunks);
    save->chunks = chunks;
    zero_chunk_t *kept = &save->chunks[save->n_chunks++];
    *kept = *chunk;
    kept->master = keep_copy(save, chunk->master, chunk->n_elems);
    kept->m = keep_copy(save, chunk->m, chunk->n_elems);
    kept->v = chunk->v ? keep_copy(save, chunk->v, chunk->n_elems) : NULL;
    return ZERO_OK;
}

static zero_status_t copy_state(zero_save_t *save)
{
    size_t n = count_owned(zero_engine_context(save->engine)), n_bytes = (n + 1) * sizeof(float);
    save->copy_end = save->copy = malloc(n_bytes);
    if (!save->copy)
        return zero_fail(
            ZERO_ERROR_MEMORY,
            "no host memory to save in the background: a copy of %zu numbers takes %zu bytes; save without", n,
            n_bytes);
    return zero_get_state(save->engine, copy_chunk, save);
}

/* Receives what ranks of other hosts own, and writes this rank's part of it. */
static zero_status_t write_others(zero_save_t *save)
{
    save->writes_others = true;
    zero_status_t status = zero_host_copies_exchange(save->comm, save->chunks, save->n_chunks, write_chunk, save);
    save->writes_others = false;
    return status;
}

static zero_status_t begin(zero_save_t *save, const char *directory, const zero_save_options_t *options)
{
    zero_comm_t *comm = save->comm;
    const bool has_others = options->per_host && zero_hosts_are_several(comm);
    ZERO_TRY(zero_comm_agree(comm, fill(save, directory, options)));
    ZERO_TRY(zero_comm_agree(comm, leads(save) ? make_files(save, options) : ZERO_OK));
    if (options->background || has_others)
        ZERO_TRY(zero_comm_agree(comm, copy_state(save)));
    if (has_others)
        ZERO_TRY(write_others(save));
    if (options->background) {
        start_phase(save);
        return ZERO_OK;
    }
    save->thread_status = write_phase(save);
    atomic_store(&save->thread_done, true);
    return ZERO_OK;
}

/* Checks this rank's arguments and creates an empty save. */
static zero_status_t create(zero_engine_t *engine, const char *directory, const zero_save_options_t *options,
                            zero_save_t **save)
{
    const char *missing = !directory ? "directory" : !options ? "options" : !save ? "save" : NULL;
    if (missing)
        return zero_refuse_null("zero_save_begin", missing);
    ZERO_TRY(zero_check_reserved("zero_save_begin", "options", options->reserved, sizeof options->reserved));
    if (options->keep < 0)
        return zero_fail(ZERO_ERROR_ARGUMENT, "zero_save_begin: keep %d: it must be at least 0", options->keep);
    zero_save_t *made = calloc(1, sizeof *made);
    if (!made)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory to save a checkpoint");
    made->comm = zero_engine_context(engine)->host_comm;
    made->engine = engine;
    made->lock = -1;
    zero_users_join(&made->comm->users, ZERO_USER_SAVE);
    zero_engine_join(engine, ZERO_USER_SAVE);
    *save = made;
    return ZERO_OK;
}

zero_status_t zero_save_begin(zero_engine_t *engine, const char *directory, const zero_save_options_t *options,
                              zero_save_t **save)
{
    ZERO_REQUIRE(engine);
    zero_context_t *context = zero_engine_context(engine);
    zero_save_t *made = NULL;
    zero_context_enter(context, "zero_save_begin");
    zero_status_t status = create(engine, directory, options, save ? &made : NULL);
    if (status != ZERO_OK) /* the other ranks learn of it when they agree that the step can be saved */
        return zero_comm_leave(context->host_comm, zero_comm_agree(context->host_comm, status));
    status = zero_comm_leave(made->comm, begin(made, directory, options));
    if (status == ZERO_OK) {
        *save = made;
        return ZERO_OK;
    }
    abandon(made);
    destroy(made);
    return status;
}

zero_status_t zero_save_prepare(zero_comm_t *comm, const char *directory)
{
    ZERO_REQUIRE(comm);
    ZERO_TRY(zero_comm_agree(comm, directory ? ZERO_OK : zero_refuse_null("zero_save_prepare", "directory")));
    int lock = -1;
    zero_status_t status =
        zero_comm_agree(comm, comm->rank == 0 ? zero_checkpoints_probe_begin(directory, &lock) : ZERO_OK);
    if (status == ZERO_OK) /* of each host the first rank looks */
        status = zero_comm_agree(comm, comm->local_rank == 0 ? zero_checkpoints_probe_see(directory) : ZERO_OK);
    zero_status_t ended = zero_checkpoints_probe_end(directory, lock);
    return zero_comm_agree(comm, status == ZERO_OK ? ended : status);
}
