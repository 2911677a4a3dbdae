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
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/files.h"
#include "base/log.h"
#include "base/system.h"
#include "zero/checkpoint/checkpoint_directory.h"
#include "zero/checkpoint/checkpoint_extents.h"
#include "zero/checkpoint/host_copies.h"
#include "zero/checkpoint/new_files.h"
#include "zero/checkpoint/state_copy.h"
#include "zero/engine/compare.h"
#include "zero/engine/engine_state.h"

#define POLL_NS 2000000

/* Lists of what this rank writes: one for each kind of array, and one for rank 0's headers and texts. */
enum { WRITTEN_BY_RANK_0 = ZERO_N_KEPT, N_WRITTEN };

struct zero_save {
    zero_comm_t *comm;
    zero_engine_t *engine; /* not touched by the thread */
    char *parent, *temporary;
    bool per_host;
    bool in_parallel; /* by several threads: GPUs compute meanwhile, and leave most cores idle */
    int lock;         /* of a root: on `temporary`, once it exists; else -1 */
    uint64_t step;
    int keep;
    zero_new_files_t files;

    zero_array_writer_t writer;
    zero_state_copy_t copy; /* in the background, or for other hosts */
    zero_extents_t written[N_WRITTEN];
    zero_extents_t to_hash; /* what all ranks wrote into the files that this rank hashes */

    int phase;
    zero_status_t status; /* of the save so far */
    bool has_thread;
    pthread_t thread;
    atomic_bool thread_done;
    zero_status_t thread_status;
};

/* Returns whether this rank makes and commits a directory: rank 0, or the first rank of each host. */
static bool is_root(const zero_save_t *save)
{
    return save->per_host ? save->comm->local_rank == 0 : save->comm->rank == 0;
}

/* ---- write ---- */

/* Writes this rank's elements: from the copy or, in the caller's own thread, from the engine. */
static zero_status_t write_phase(zero_save_t *save)
{
    zero_status_t status = save->copy.values
                               ? zero_state_copy_write(&save->copy, save->in_parallel, &save->writer)
                               : zero_engine_get_saved(save->engine, zero_array_writer_write, &save->writer);
    zero_state_copy_destroy(&save->copy); /* not needed any more, and large */
    zero_status_t closed = zero_array_writer_close(&save->writer);
    return status == ZERO_OK ? closed : status;
}

static zero_status_t share_written(zero_save_t *save)
{
    return zero_extents_share(save->comm, save->written, N_WRITTEN, &save->to_hash);
}

/* ---- hash ---- */

static zero_status_t hash_file(zero_save_t *save, size_t i)
{
    zero_manifest_file_t *file = &save->files.manifest.files[i];
    char *path = NULL;
    ZERO_TRY(zero_path_join(save->temporary, file->name, &path));
    zero_status_t status = zero_extents_verify(&save->to_hash, i, path, &file->n_bytes, &file->xxh3);
    free(path);
    return status;
}

/* A file that is not as it should be is hashed again by this thread, which says why. */
static zero_status_t hash_phase(zero_save_t *save)
{
    const size_t first = (size_t)save->comm->rank, n_ranks = (size_t)save->comm->size;
    const size_t n_files = save->files.manifest.n_files;
    bool all_good = true;
#pragma omp parallel for schedule(dynamic) num_threads(4) reduction(&& : all_good) if (save->in_parallel)
    for (size_t i = first; i < n_files; i += n_ranks) {
        zero_log_mute(true);
        all_good = hash_file(save, i) == ZERO_OK && all_good;
        zero_log_mute(false);
    }
    for (size_t i = first; i < n_files && !all_good; i += n_ranks)
        ZERO_TRY(hash_file(save, i));
    return ZERO_OK;
}

/* Sends every rank's hashes to every rank. */
static zero_status_t share_hashes(zero_save_t *save)
{
    zero_comm_t *comm = save->comm;
    size_t n_files = save->files.manifest.n_files, n_ranks = (size_t)comm->size;
    uint64_t(*all)[2] = malloc(n_ranks * sizeof *all);
    zero_status_t status =
        all ? ZERO_OK : zero_fail(ZERO_ERROR_MEMORY, "no memory for the hashes of %zu ranks", n_ranks);
    status = zero_comm_agree(comm, status);
    for (size_t first = 0; first < n_files && status == ZERO_OK; first += n_ranks) {
        uint64_t mine[2] = {0};
        if (first + (size_t)comm->rank < n_files) {
            const zero_manifest_file_t *file = &save->files.manifest.files[first + (size_t)comm->rank];
            mine[0] = file->n_bytes;
            mine[1] = file->xxh3;
        }
        status = comm->ops->host_all_gather(comm, mine, sizeof mine, all);
        for (size_t i = first; i < n_files && i < first + n_ranks && status == ZERO_OK; i++) {
            save->files.manifest.files[i].n_bytes = all[i - first][0];
            save->files.manifest.files[i].xxh3 = all[i - first][1];
        }
    }
    free(all);
    return status;
}

/* ---- commit ---- */

static zero_status_t commit_phase(zero_save_t *save)
{
    if (!is_root(save))
        return ZERO_OK;
    ZERO_TRY(zero_manifest_write(&save->files.manifest, save->temporary));
    return zero_checkpoints_commit(save->parent, save->step, save->temporary);
}

/* Runs when every host has the new checkpoint, so that at any time there is one that all have. */
static zero_status_t tidy_phase(zero_save_t *save)
{
    if (is_root(save) && save->keep > 0)
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
    atomic_store(&save->thread_done, false);
    save->has_thread = zero_thread_create(&save->thread, run_thread, save) == 0;
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
    zero_array_writer_destroy(&save->writer);
    zero_state_copy_destroy(&save->copy);
    for (int list = 0; list < N_WRITTEN; list++)
        zero_extents_destroy(&save->written[list]);
    zero_extents_destroy(&save->to_hash);
    zero_new_files_destroy(&save->files);
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

/* Fills the save with all that needs neither other ranks nor the disk. */
static zero_status_t fill(zero_save_t *save, const char *directory, const zero_save_options_t *options)
{
    zero_step_state_t state;
    zero_engine_t *engine = save->engine;
    const zero_context_t *context = zero_engine_context(engine);
    ZERO_TRY(zero_engine_get_step_state(engine, "zero_save_begin", &state));
    save->step = zero_engine_n_steps(engine);
    save->keep = options->keep;
    save->per_host = options->per_host;
    save->in_parallel = zero_device_get_type(context->device) != ZERO_DEVICE_CPU;
    save->parent = strdup(directory);
    if (!save->parent)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory to save into '%s'", directory);
    ZERO_TRY(zero_checkpoints_temporary(directory, save->step, &save->temporary));
    ZERO_TRY(zero_new_files_list(context, save->step, &state, options, &save->files));
    ZERO_TRY(zero_engine_check_weights(engine, "zero_save_begin"));
    return zero_array_writer_create(&save->files.layout, context->model, save->temporary, context->config.dtype,
                                    &save->writer);
}

/* Makes the temporary directory with all files; the arrays' elements are still missing. */
static zero_status_t make_files(zero_save_t *save, const zero_save_options_t *options)
{
    ZERO_TRY(zero_checkpoints_begin(save->parent, save->temporary, &save->lock));
    return zero_new_files_make(&save->files, zero_engine_context(save->engine)->model, save->temporary, options,
                               save->comm->rank == 0 ? &save->written[WRITTEN_BY_RANK_0] : NULL);
}

/* Receives what ranks of other hosts own and vouch for, and writes this rank's part of it. */
static zero_status_t write_others(zero_save_t *save)
{
    save->writer.written = NULL;
    return zero_host_copies_exchange(save->comm, save->copy.chunks, save->copy.n_chunks, zero_array_writer_write,
                                     &save->writer);
}

/* Finds whether every host has memory for a copy. Without, a save in the background is made at once instead. */
static zero_status_t find_room(const zero_save_t *save, bool *has_room)
{
    double n_short = !zero_state_copy_has_room(save->engine);
    ZERO_TRY(zero_comm_sum(save->comm, &n_short, 1));
    *has_room = n_short == 0.0;
    if (!*has_room && save->comm->rank == 0)
        zero_log(ZERO_LOG_WARNING,
                 "'%s' is not saved in the background: its copy would take more host memory than is "
                 "free. Training waits meanwhile",
                 save->parent);
    return ZERO_OK;
}

/* Refuses ranks whose options differ. Each derives the phases and the list of files from its own: otherwise no rank may
 * hash a file, or an array may lie elsewhere than its header says. */
static zero_status_t compare_options(const zero_save_t *save, const zero_save_options_t *options)
{
    zero_comm_t *comm = save->comm;
    const zero_manifest_t *manifest = &save->files.manifest;
    uint64_t names = 0;
    for (size_t i = 0; i < manifest->n_files; i++)
        names = zero_hash_fold(names, manifest->files[i].name, strlen(manifest->files[i].name) + 1);
    ZERO_TRY(zero_compare_number(comm, "options->keep", options->keep));
    ZERO_TRY(zero_compare_number(comm, "options->max_file_bytes", (int64_t)options->max_file_bytes));
    ZERO_TRY(zero_compare_number(comm, "options->background", options->background));
    ZERO_TRY(zero_compare_number(comm, "options->per_host", options->per_host));
    ZERO_TRY(zero_compare_number(comm, "the number of files, which config_json and files add to,",
                                 (int64_t)manifest->n_files));
    return zero_compare_number(comm, "the hash of the files' names", (int64_t)names);
}

static zero_status_t begin(zero_save_t *save, const char *directory, const zero_save_options_t *options)
{
    zero_comm_t *comm = save->comm;
    const bool has_others = options->per_host && zero_hosts_are_several(comm);
    bool in_background = options->background;
    ZERO_TRY(zero_comm_agree(comm, fill(save, directory, options)));
    ZERO_TRY(compare_options(save, options));
    ZERO_TRY(zero_comm_agree(comm, is_root(save) ? make_files(save, options) : ZERO_OK));
    if (in_background)
        ZERO_TRY(find_room(save, &in_background));
    if (in_background || has_others)
        ZERO_TRY(zero_comm_agree(comm, zero_state_copy_create(save->engine, &save->copy)));
    if (has_others)
        ZERO_TRY(write_others(save));
    save->writer.written = save->written;
    if (in_background) {
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
    if (options->n_files < 0)
        return zero_fail(ZERO_ERROR_ARGUMENT, "zero_save_begin: n_files %d: it must be at least 0", options->n_files);
    if (options->n_files > 0 && !options->files)
        return zero_refuse_null("zero_save_begin", "options->files");
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
