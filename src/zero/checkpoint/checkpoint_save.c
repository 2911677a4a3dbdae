/* checkpoint_save.c - saving a step: every rank writes what it owns, side by side, and rank 0 the rest.
 *
 * A save goes through phases. In each, every rank does work of its own, in a thread that knows nothing of the engine or
 * of other ranks; then all ranks agree that it went well, and go on to the next:
 *
 *     begin     rank 0 makes the temporary directory with all files in full size, headers, state.json, config.json
 *     write     each rank: the arrays' elements that it owns, into their places; synced. Then all ranks share hashes of
 *               what they meant to write (checkpoint_extents.h)
 *     hash      each rank: XXH3 of every size-th file, as it stands on the disk now, where that is what was meant
 *     commit    rank 0: manifest.json, rename to the step's name, `latest`, away with the oldest
 *
 * So no manifest is written, and no name given, unless every rank's numbers are on the disk. Whoever fails says so;
 * then all ranks stop, and rank 0 removes the temporary directory.
 */
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "zero/checkpoint/checkpoint_directory.h"
#include "zero/checkpoint/checkpoint_layout.h"
#include "zero/checkpoint/checkpoint_state.h"
#include "zero/engine/engine_state.h"
#include "base/files.h"
#include "base/log.h"
#include "zero/checkpoint/manifest.h"
#include "zero/checkpoint/checkpoint_extents.h"

/* Fewer than the kernels share out among threads: a save has one of its own and leaves the others to training. */
#define RUN_ELEMS ((size_t)1 << 15)
#define POLL_NS 2000000

/* Arrays are written in order, so of each kind one file is open at a time. */
typedef struct writer {
    int file; /* in the layout; -1: none */
    int fd;
    char *path;
} writer_t;

/* What this rank means to write: of each kind what its writer writes, and rank 0's headers and texts. */
enum { MEANT_BESIDE = ZERO_N_KEPT, N_MEANT };

struct zero_save {
    zero_comm_t *comm;
    zero_engine_t *engine; /* not touched by the thread */
    char *parent, *temporary;
    int lock; /* rank 0: on `temporary`, which it has made; -1 before that, and elsewhere */
    char *config_json;
    json_t *state;
    uint64_t step;
    int keep;
    zero_dtype_t dtype;
    zero_checkpoint_layout_t layout;
    zero_manifest_t manifest;

    writer_t writers[ZERO_N_KEPT];
    zero_extents_t meant[N_MEANT];
    zero_extents_t to_hash; /* what all ranks meant to write into the files that this rank hashes */
    void *weights, *low;    /* RUN_ELEMS of weights in the dtype, and what split_master makes beside them */

    zero_chunk_t *chunks; /* a copy of what this rank owns, in the background */
    size_t n_chunks, chunk_capacity;
    float *copy, *copy_end;

    int phase;
    zero_status_t status; /* of the save so far */
    bool has_thread;
    pthread_t thread;
    atomic_bool thread_done;
    zero_status_t thread_status;
};

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
    ZERO_TRY(zero_extents_add(&save->meant[kept], (size_t)array->file, offset, data, n_bytes));
    ZERO_TRY(open_writer(save, writer, array->file));
    return zero_file_write(writer->fd, writer->path, offset, data, n_bytes);
}

/* Weights as the model computes with them: rounded from the master as AdamW does it. */
static zero_status_t write_weights(zero_save_t *save, const zero_chunk_t *chunk)
{
    for (size_t done = 0; done < chunk->n_elems; done += RUN_ELEMS) {
        size_t n = chunk->n_elems - done < RUN_ELEMS ? chunk->n_elems - done : RUN_ELEMS;
        ZERO_TRY(zero_shard_kernels_cpu()->split_master(save->weights, save->dtype == ZERO_FP32 ? NULL : save->low,
                                                        save->dtype, chunk->master + done, n, NULL));
        ZERO_TRY(write_array(save, chunk->tensor, ZERO_KEPT_WEIGHTS, chunk->first + done, save->weights, n));
    }
    return ZERO_OK;
}

static zero_status_t write_chunk(void *user, const zero_chunk_t *chunk)
{
    zero_save_t *save = user;
    ZERO_TRY(write_weights(save, chunk));
    ZERO_TRY(write_array(save, chunk->tensor, ZERO_KEPT_MASTER, chunk->first, chunk->master, chunk->n_elems));
    ZERO_TRY(write_array(save, chunk->tensor, ZERO_KEPT_M, chunk->first, chunk->m, chunk->n_elems));
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

/* From the copy, or from the engine; the latter in the caller's own thread. */
static zero_status_t write_phase(zero_save_t *save)
{
    zero_status_t status = ZERO_OK;
    if (!save->copy)
        status = zero_get_state(save->engine, write_chunk, save);
    for (size_t i = 0; i < save->n_chunks && status == ZERO_OK; i++)
        status = write_chunk(save, &save->chunks[i]);
    free(save->copy); /* the memory that a background save takes is needed no longer than this */
    save->copy = NULL;
    zero_status_t closed = close_writers(save);
    return status == ZERO_OK ? closed : status;
}

static zero_status_t share_meant(zero_save_t *save)
{
    return zero_extents_share(save->comm, save->meant, N_MEANT, &save->to_hash);
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

/* Every rank's hashes to every rank. */
static zero_status_t share_hashes(zero_save_t *save)
{
    zero_comm_t *comm = save->comm;
    size_t n_files = save->manifest.n_files, n_ranks = (size_t)comm->size;
    uint64_t(*all)[2] = malloc(n_ranks * sizeof *all);
    zero_status_t status = all ? ZERO_OK : zero_fail(ZERO_ERROR_MEMORY, "no memory to hear of %zu ranks", n_ranks);
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
    if (save->comm->rank != 0)
        return ZERO_OK;
    ZERO_TRY(zero_manifest_write(&save->manifest, save->temporary));
    return zero_checkpoints_commit(save->parent, save->step, save->temporary, save->keep);
}

/* ---- phases ---- */

static const struct {
    zero_status_t (*work)(zero_save_t *save);  /* this rank's own */
    zero_status_t (*share)(zero_save_t *save); /* collective, when all ranks' work went well; or NULL */
} PHASES[] = {{write_phase, share_meant}, {hash_phase, share_hashes}, {commit_phase, NULL}};
enum { N_PHASES = sizeof PHASES / sizeof PHASES[0] };

static void *run_thread(void *argument)
{
    zero_save_t *save = argument;
    save->thread_status = PHASES[save->phase].work(save);
    atomic_store(&save->thread_done, true);
    return NULL;
}

/* Signals are the main thread's business. Where no thread is to be had, the work is done here. */
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

/* The phase's work is done on all ranks. */
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

/* What a save that failed leaves behind is nothing; its thread may still be writing. */
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
    for (int list = 0; list < N_MEANT; list++)
        zero_extents_destroy(&save->meant[list]);
    zero_extents_destroy(&save->to_hash);
    zero_checkpoint_layout_destroy(&save->layout);
    zero_manifest_destroy(&save->manifest);
    json_decref(save->state);
    free(save->copy);
    free(save->chunks);
    free(save->low);
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
    /* Polling, so that no rank waits in a collective for another's disk: that wait has a limit. */
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
    ZERO_TRY(zero_extents_add(&save->meant[MEANT_BESIDE], (size_t)number, 0, file->header, file->header_bytes));
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

static zero_status_t write_text(zero_save_t *save, const char *name, const char *text)
{
    size_t number = zero_manifest_find(&save->manifest, name);
    ZERO_TRY(zero_extents_add(&save->meant[MEANT_BESIDE], number, 0, text, strlen(text)));
    return zero_file_write_text(save->temporary, name, text);
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

/* Rank 0: all but the arrays' numbers. */
static zero_status_t make_files(zero_save_t *save)
{
    ZERO_TRY(zero_checkpoints_begin(save->parent, save->temporary, &save->lock));
    for (int f = 0; f < save->layout.n_files; f++)
        ZERO_TRY(write_header(save, f));
    ZERO_TRY(write_index(save));
    if (save->config_json)
        ZERO_TRY(write_text(save, ZERO_CONFIG_FILE, save->config_json));
    ZERO_TRY(write_json(save, ZERO_STATE_FILE, save->state));
    return zero_directory_sync(save->temporary);
}

/* The layout's files come first, so that a file has one number in both. */
static zero_status_t list_files(zero_save_t *save)
{
    for (int f = 0; f < save->layout.n_files; f++)
        ZERO_TRY(zero_manifest_add(&save->manifest, save->layout.files[f].name));
    ZERO_TRY(zero_manifest_add(&save->manifest, ZERO_INDEX_FILE));
    if (save->config_json)
        ZERO_TRY(zero_manifest_add(&save->manifest, ZERO_CONFIG_FILE));
    return zero_manifest_add(&save->manifest, ZERO_STATE_FILE);
}

/* It is written as it is; but a file that nothing can read is found out now. */
static zero_status_t check_config(const char *config_json)
{
    json_t *config = NULL;
    if (config_json)
        ZERO_TRY(zero_checkpoint_parse_callers("config_json", config_json, &config));
    json_decref(config);
    return ZERO_OK;
}

/* What needs no other rank and no disk. */
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
    save->parent = strdup(directory);
    save->config_json = options->config_json ? strdup(options->config_json) : NULL;
    save->weights = malloc(RUN_ELEMS * sizeof(float));
    save->low = malloc(RUN_ELEMS * sizeof(float));
    if (!save->parent || (options->config_json && !save->config_json) || !save->weights || !save->low)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory to save into '%s'", directory);
    ZERO_TRY(zero_checkpoints_temporary(directory, save->step, &save->temporary));
    ZERO_TRY(zero_checkpoint_state_make(save->step, save->dtype, &state, options->state_json, &save->state));
    ZERO_TRY(zero_checkpoint_layout_create(context->model, save->dtype, options->max_file_bytes, &save->layout));
    return list_files(save);
}

static size_t n_owned(const zero_context_t *context)
{
    size_t n = 0;
    for (zero_tensor_t t = 0; t < context->model->n_tensors; t++) {
        uint64_t shard = context->layout.units[context->model->tensors[t].owner].shard_elems;
        uint64_t begin = (uint64_t)context->comm->rank * shard;
        n += zero_layout_span(&context->layout, context->model, t, begin, begin + shard).n_elems;
    }
    return n;
}

static float *keep_copy(zero_save_t *save, const float *values, size_t n)
{
    float *kept = save->copy_end;
    memcpy(kept, values, n * sizeof *values);
    save->copy_end += n;
    return kept;
}

static zero_status_t copy_chunk(void *user, const zero_chunk_t *chunk)
{
    zero_save_t *save = user;
    if (save->n_chunks == save->chunk_capacity) {
        size_t capacity = 2 * save->chunk_capacity + 64;
        zero_chunk_t *chunks = realloc(save->chunks, capacity * sizeof *chunks);
        if (!chunks)
            return zero_fail(ZERO_ERROR_MEMORY, "no memory to list %zu runs of weights", capacity);
        save->chunks = chunks;
        save->chunk_capacity = capacity;
    }
    zero_chunk_t *kept = &save->chunks[save->n_chunks++];
    *kept = *chunk;
    kept->master = keep_copy(save, chunk->master, chunk->n_elems);
    kept->m = keep_copy(save, chunk->m, chunk->n_elems);
    kept->v = keep_copy(save, chunk->v, chunk->n_elems);
    return ZERO_OK;
}

static zero_status_t copy_state(zero_save_t *save)
{
    size_t n = n_owned(zero_engine_context(save->engine)), n_bytes = (3 * n + 1) * sizeof(float);
    save->copy_end = save->copy = malloc(n_bytes);
    if (!save->copy)
        return zero_fail(ZERO_ERROR_MEMORY,
                         "no host memory for a copy of %zu elements to save in the background, %zu bytes: save without",
                         n, n_bytes);
    return zero_get_state(save->engine, copy_chunk, save);
}

static zero_status_t begin(zero_save_t *save, const char *directory, const zero_save_options_t *options)
{
    zero_comm_t *comm = save->comm;
    ZERO_TRY(zero_comm_agree(comm, fill(save, directory, options)));
    ZERO_TRY(zero_comm_agree(comm, comm->rank == 0 ? make_files(save) : ZERO_OK));
    if (!options->background) {
        save->thread_status = write_phase(save);
        atomic_store(&save->thread_done, true);
        return ZERO_OK;
    }
    ZERO_TRY(zero_comm_agree(comm, copy_state(save)));
    start_phase(save);
    return ZERO_OK;
}

/* Checks this rank's arguments and makes an empty save. */
static zero_status_t create(zero_engine_t *engine, const char *directory, const zero_save_options_t *options,
                            zero_save_t **save)
{
    const char *missing = !directory ? "directory" : !options ? "options" : !save ? "save" : NULL;
    if (missing)
        return zero_refuse_null("zero_save_begin", missing);
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
    if (status != ZERO_OK) /* told to the other ranks, where they agree that the step can be saved */
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
    if (!directory)
        return zero_comm_agree(comm, zero_refuse_null("zero_save_prepare", "directory"));
    return zero_comm_agree(comm, comm->rank == 0 ? zero_checkpoints_prepare(directory) : ZERO_OK);
}
