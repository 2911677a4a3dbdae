/* checkpoint_open.c - opens a checkpoint.
 *
 * What must hold: no file is trusted before it has been compared with the manifest. Rank 0 goes first: what it finds
 * wrong with manifest and state is wrong for all ranks, and logged once. Then every rank checks its share of the files,
 * and names the one that is damaged.
 */
#include "zero/checkpoint/checkpoint_open.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "base/log.h"
#include "comm/comm.h"
#include "zero/checkpoint/checkpoint_layout.h"
#include "zero/checkpoint/host_copies.h"
#include "zero/plan/optimizer.h"

/* ---- checkpoint state ---- */
/* The object in state.json:
 *
 *     {"adam_step": 10, "dtype": "bf16", "good_steps": 10, "library": "0.1.0", "loss_scale": 1.0, "overflows": 0,
 *      "skipped_in_row": 0, "step": 10, ... the caller's keys}
 *
 * and "optimizer": "lion" of another optimizer than AdamW. */

zero_status_t zero_checkpoint_parse_callers(const char *what, const char *text, json_t **object)
{
    json_error_t error;
    json_t *parsed = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(parsed)) {
        json_decref(parsed);
        return zero_fail_collective(ZERO_ERROR_ARGUMENT, "zero_save_begin: %s is not a JSON object: %s", what,
                                    parsed ? "it is another value" : error.text);
    }
    *object = parsed;
    return ZERO_OK;
}

/* AdamW is what a checkpoint without the key has: so were all before there were other optimizers. */
static bool add_optimizer(json_t *object, const zero_config_t *config)
{
    return config->optimizer == ZERO_OPTIMIZER_ADAMW ||
           json_object_set_new(object, "optimizer", json_string(zero_optimizer_name_of(config))) == 0;
}

zero_status_t zero_checkpoint_state_check_optimizer(const json_t *object, const char *path, const zero_config_t *config)
{
    const json_t *value = json_object_get(object, "optimizer");
    const char *saved = value ? json_string_value(value) : zero_optimizer_name(ZERO_OPTIMIZER_ADAMW);
    const char *mine = zero_optimizer_name_of(config);
    if (saved && strcmp(saved, mine) == 0)
        return ZERO_OK;
    return zero_fail_collective(
        ZERO_ERROR_FORMAT,
        "'%s': the checkpoint has the state of optimizer %s, and this run's is %s: resume with the "
        "same optimizer, or start anew from its weights alone",
        path, saved ? saved : "(no name)", mine);
}

/* Returns a key of the caller's that is libzero's own; NULL: there is none. "optimizer" always is, though a checkpoint
 * of AdamW's lacks it. */
static const char *own_key_in(json_t *caller, const json_t *made)
{
    const char *key;
    json_t *value;
    json_object_foreach(caller, key, value) if (json_object_get(made, key) || strcmp(key, "optimizer") == 0) return key;
    return NULL;
}

zero_status_t zero_checkpoint_state_make(uint64_t step, const zero_config_t *config, const zero_step_state_t *state,
                                         const char *caller_json, json_t **object)
{
    json_t *caller = NULL;
    ZERO_TRY(zero_checkpoint_parse_callers("state_json", caller_json ? caller_json : "{}", &caller));
    json_t *made = json_pack("{s:I, s:I, s:s, s:f, s:I, s:I, s:I, s:s}", "step", (json_int_t)step, "adam_step",
                             (json_int_t)state->adam_step, "dtype", zero_dtype_name(config->dtype), "loss_scale",
                             (double)state->loss_scale, "good_steps", (json_int_t)state->good_steps, "overflows",
                             (json_int_t)state->overflows, "skipped_in_row", (json_int_t)state->skipped_in_row,
                             "library", zero_version());
    bool named = made && add_optimizer(made, config);
    const char *taken = own_key_in(caller, made);
    zero_status_t status = ZERO_OK;
    if (taken)
        status = zero_fail_collective(ZERO_ERROR_ARGUMENT,
                                      "zero_save_begin: state_json has the key '%s', one of libzero's own", taken);
    else if (!named || json_object_update(made, caller) != 0)
        status = zero_fail_collective(ZERO_ERROR_MEMORY, "zero_save_begin: no memory for state.json");
    json_decref(caller);
    if (status != ZERO_OK) {
        json_decref(made);
        return status;
    }
    *object = made;
    return ZERO_OK;
}

/* Reads a whole number from 0 to `most`. */
static bool get_count(const json_t *object, const char *key, uint64_t most, uint64_t *count)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0 || (uint64_t)json_integer_value(value) > most)
        return false;
    *count = (uint64_t)json_integer_value(value);
    return true;
}

static zero_status_t fail(const char *path, const char *key)
{
    return zero_fail(ZERO_ERROR_FORMAT, "'%s': %s is missing or invalid: take another checkpoint", path, key);
}

zero_status_t zero_checkpoint_state_parse(const json_t *object, const char *path, zero_dtype_t dtype, uint64_t *step,
                                          zero_step_state_t *state)
{
    zero_step_state_t parsed = *state;
    uint64_t at_step, good_steps, overflows, skipped_in_row;
    const char *saved_dtype = json_string_value(json_object_get(object, "dtype"));
    double loss_scale = json_number_value(json_object_get(object, "loss_scale"));
    if (!get_count(object, "step", INT64_MAX / 2, &at_step))
        return fail(path, "step");
    if (!get_count(object, "adam_step", INT64_MAX / 2, &parsed.adam_step))
        return fail(path, "adam_step");
    if (!saved_dtype)
        return fail(path, "dtype");
    /* It becomes a float, and must be neither infinite nor 0 then. */
    if (!(loss_scale >= (double)FLT_MIN && loss_scale <= (double)FLT_MAX))
        return fail(path, "loss_scale");
    if (!get_count(object, "good_steps", UINT32_MAX, &good_steps))
        return fail(path, "good_steps");
    if (!get_count(object, "overflows", UINT32_MAX, &overflows))
        return fail(path, "overflows");
    if (!get_count(object, "skipped_in_row", UINT32_MAX, &skipped_in_row))
        return fail(path, "skipped_in_row");
    if (dtype == ZERO_FP16 && strcmp(saved_dtype, zero_dtype_name(ZERO_FP16)) == 0) {
        parsed.loss_scale = (float)loss_scale;
        parsed.good_steps = (uint32_t)good_steps;
        parsed.overflows = (uint32_t)overflows;
    }
    parsed.skipped_in_row = (uint32_t)skipped_in_row;
    *step = at_step;
    *state = parsed;
    return ZERO_OK;
}

/* ---- checkpoint open ---- */

static zero_status_t read_state(zero_checkpoint_t *checkpoint)
{
    zero_step_state_t unused = {0};
    ZERO_TRY(zero_path_join(checkpoint->path, ZERO_STATE_FILE, &checkpoint->state_path));
    ZERO_TRY(zero_file_read_json(checkpoint->state_path, "take another checkpoint", &checkpoint->state));
    checkpoint->state_text = json_dumps(checkpoint->state, JSON_SORT_KEYS | JSON_INDENT(2));
    if (!checkpoint->state_text)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for '%s'", checkpoint->state_path);
    return zero_checkpoint_state_parse(checkpoint->state, checkpoint->state_path, ZERO_FP32, &checkpoint->step,
                                       &unused);
}

static bool has_file(const zero_checkpoint_t *checkpoint, const char *name)
{
    return zero_manifest_find(&checkpoint->manifest, name) < checkpoint->manifest.n_files;
}

static zero_status_t read_small_files(zero_checkpoint_t *checkpoint)
{
    ZERO_TRY(zero_manifest_read(checkpoint->path, &checkpoint->manifest));
    const char *const wanted[] = {ZERO_STATE_FILE,
                                  has_file(checkpoint, ZERO_ADAPTER_FILE) ? ZERO_ADAPTER_FILE : ZERO_INDEX_FILE};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        if (!has_file(checkpoint, wanted[i]))
            return zero_fail(ZERO_ERROR_FORMAT, "'%s/" ZERO_MANIFEST_NAME "' does not list %s: take another checkpoint",
                             checkpoint->path, wanted[i]);
    ZERO_TRY(zero_manifest_check(&checkpoint->manifest, checkpoint->path,
                                 zero_manifest_find(&checkpoint->manifest, ZERO_STATE_FILE)));
    return read_state(checkpoint);
}

/* Compares this rank's share of the files with the manifest: among those that see the same directory. Several threads
 * read a file each, since one hashes no more than some GB/s. */
static zero_status_t check_share(const zero_checkpoint_t *checkpoint)
{
    const zero_comm_t *comm = checkpoint->comm;
    const zero_manifest_t *manifest = &checkpoint->manifest;
    const size_t n_ranks = (size_t)(checkpoint->per_host ? comm->local_size : comm->size);
    const size_t first = (size_t)(checkpoint->per_host ? comm->local_rank : comm->rank);
    bool *is_good = calloc(manifest->n_files, sizeof *is_good);
    if (!is_good)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory to check '%s'", checkpoint->path);
#pragma omp parallel for schedule(dynamic)
    for (size_t i = first; i < manifest->n_files; i += n_ranks) {
        zero_log_mute(true);
        is_good[i] = zero_manifest_check(manifest, checkpoint->path, i) == ZERO_OK;
        zero_log_mute(false);
    }
    zero_status_t status = ZERO_OK;
    for (size_t i = first; i < manifest->n_files && status == ZERO_OK; i += n_ranks)
        if (!is_good[i])
            status = zero_manifest_check(manifest, checkpoint->path, i);
    free(is_good);
    return status;
}

/* Opens the checkpoint on rank 0, then on the others: see the top of this file. */
static zero_status_t open_on_all_ranks(zero_checkpoint_t *checkpoint, const char *directory)
{
    zero_comm_t *comm = checkpoint->comm;
    zero_status_t status = ZERO_OK;
    if (comm->rank == 0) {
        status = zero_checkpoints_find(directory, checkpoint->path);
        if (status == ZERO_OK)
            status = read_small_files(checkpoint);
    }
    ZERO_TRY(zero_comm_tell_status(comm, status));
    ZERO_TRY(zero_comm_broadcast(comm, checkpoint->path, sizeof checkpoint->path, 0));
    if (comm->rank != 0)
        status = read_small_files(checkpoint);
    ZERO_TRY(zero_comm_agree(comm, status));
    return zero_comm_agree(comm, check_share(checkpoint));
}

static zero_status_t open_checkpoint(zero_comm_t *comm, const char *directory, bool per_host,
                                     zero_checkpoint_t **checkpoint)
{
    zero_checkpoint_t *opened = calloc(1, sizeof *opened);
    zero_status_t status = opened ? ZERO_OK : zero_fail(ZERO_ERROR_MEMORY, "no memory to open '%s'", directory);
    status = zero_comm_agree(comm, status);
    if (status == ZERO_OK) {
        opened->comm = comm;
        opened->per_host = per_host;
        zero_users_join(&comm->users, ZERO_USER_CHECKPOINT);
        status = open_on_all_ranks(opened, directory);
    }
    if (status != ZERO_OK) {
        zero_checkpoint_close(opened);
        return status;
    }
    *checkpoint = opened;
    return ZERO_OK;
}

zero_status_t zero_checkpoint_open(zero_comm_t *comm, const char *directory, zero_checkpoint_t **checkpoint)
{
    ZERO_REQUIRE(comm);
    if (!directory || !checkpoint) /* the other ranks learn of it when they agree that there is memory */
        return zero_comm_agree(comm, zero_refuse_null("zero_checkpoint_open", !directory ? "directory" : "checkpoint"));
    return open_checkpoint(comm, directory, false, checkpoint);
}

zero_status_t zero_host_copies_open(zero_comm_t *comm, const char *directory, uint64_t step,
                                    zero_checkpoint_t **checkpoint)
{
    ZERO_REQUIRE(comm);
    if (!directory || !checkpoint)
        return zero_comm_agree(comm,
                               zero_refuse_null("zero_host_copies_open", !directory ? "directory" : "checkpoint"));
    char *path = NULL;
    ZERO_TRY(zero_host_copies_scatter(comm, directory, step));
    ZERO_TRY(zero_comm_agree(comm, zero_checkpoints_path(directory, step, &path)));
    zero_status_t status = open_checkpoint(comm, path, true, checkpoint);
    free(path);
    return status;
}

void zero_checkpoint_close(zero_checkpoint_t *checkpoint)
{
    if (!checkpoint)
        return;
    if (checkpoint->comm)
        zero_comm_drop(checkpoint->comm, ZERO_USER_CHECKPOINT);
    zero_manifest_destroy(&checkpoint->manifest);
    json_decref(checkpoint->state);
    free(checkpoint->state_text);
    free(checkpoint->state_path);
    free(checkpoint);
}

const char *zero_checkpoint_path(const zero_checkpoint_t *checkpoint)
{
    return checkpoint ? checkpoint->path : "";
}

uint64_t zero_checkpoint_step(const zero_checkpoint_t *checkpoint)
{
    return checkpoint ? checkpoint->step : 0;
}

const char *zero_checkpoint_state(const zero_checkpoint_t *checkpoint)
{
    return checkpoint ? checkpoint->state_text : "";
}
