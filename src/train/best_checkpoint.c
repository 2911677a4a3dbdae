/* best_checkpoint.c - see best_checkpoint.h. The state.json of every checkpoint has the best so far, or null:
 *
 *     "best": {"step": 30, "val_loss": 2.5, "val": {"tokens": 900, "sample": "..."}}
 *
 * That of the best one itself has "val_loss" and "val", too. */
#include "train/best_checkpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "train/data/resume_check.h"
#include "train/options/input_file.h"
#include "train/report/report.h"

/* What libzero calls a checkpoint that it is about to remove: zero_save_prepare removes what has such a name. */
#define REMOVED_PREFIX "tmp."

/* ---- finding ---- */

/* A checkpoint and its loss. */
typedef struct measured {
    int64_t step; /* 0: there is none */
    double loss;
    data_identity_t on; /* this run's data if it does not say */
} measured_t;

/* Reads "val_loss" and "val" of an object. */
static measured_t read_measured(const json_t *object, int64_t step, const data_identity_t *val)
{
    const json_t *loss = json_object_get(object, "val_loss");
    measured_t measured = {.step = json_is_number(loss) && step > 0 ? step : 0, .loss = json_number_value(loss)};
    if (!resume_check_read(json_object_get(object, "val"), &measured.on))
        measured.on = *val;
    return measured;
}

/* Reads what dir/best has. */
static measured_t read_directory(const options_t *options, const data_identity_t *val)
{
    char directory[BEST_MAX_PATH], name[NEWEST_STEP_BYTES], path[BEST_MAX_PATH + 64];
    if (!options->checkpoint.dir[0])
        return (measured_t){0};
    best_directory(options->checkpoint.dir, directory);
    const int64_t step = newest_step(directory);
    newest_step_name(step, name);
    snprintf(path, sizeof path, "%s/%s/state.json", directory, name);
    json_t *state = step > 0 && step < INT64_MAX && input_file_is_there(path) ? json_load_file(path, 0, NULL) : NULL;
    const measured_t measured = read_measured(state, step, val);
    json_decref(state);
    return measured;
}

/* Compares what the resumed checkpoint says with what dir/best has. */
static void find(const options_t *options, const json_t *state, best_checkpoint_t *best)
{
    const measured_t there = read_directory(options, &best->val);
    const json_t *said = json_object_get(state, "best");
    measured_t mine = {0};
    if (state)
        mine = said ? read_measured(said, json_integer_value(json_object_get(said, "step")), &best->val) : there;
    best->step = mine.step;
    best->loss = mine.loss;
    best->measured_on = mine.on;
    best->is_saved = mine.step > 0 && mine.step == there.step && mine.loss == there.loss;
    best->other_step = best->is_saved ? 0 : there.step;
    if (mine.step == 0 || !options->checkpoint.best)
        return;
    if (data_identity_is_same(&mine.on, &best->val))
        best->to_beat = mine.loss;
    else
        report("resume: the lowest val_loss so far, %.4f of step %" PRId64
               ", is of other validation data, or of another share of them%s: the first of this run replaces it",
               mine.loss, mine.step, options->train.objective == OBJECTIVE_DPO ? ", or of another dpo_beta" : "");
}

zero_status_t best_checkpoint_find(const options_t *options, zero_comm_t *comm, const json_t *state,
                                   const data_identity_t *val, best_checkpoint_t *best)
{
    *best = (best_checkpoint_t){.val = *val, .to_beat = INFINITY};
    if (zero_comm_rank(comm) == 0)
        find(options, state, best);
    return zero_comm_broadcast(comm, best, sizeof *best, 0);
}

void best_checkpoint_report(const best_checkpoint_t *best, const options_t *options)
{
    char directory[BEST_MAX_PATH];
    best_directory(options->checkpoint.dir, directory);
    if (best->other_step > 0)
        report("%s has step %" PRId64 " of another run, or one that this run makes again: this run's first save "
               "removes it; to keep it, move it away",
               directory, best->other_step);
    if (isfinite(best->to_beat) && !best->is_saved)
        report("resume: the lowest val_loss so far, %.4f of step %" PRId64
               ", is not that of a checkpoint in %s: only a lower one is saved there",
               best->loss, best->step, directory);
}

/* ---- saving ---- */

static json_t *measured_json(const best_checkpoint_t *best)
{
    json_t *object = json_pack("{s:I, s:f, s:{}}", "step", (json_int_t)best->step, "val_loss", best->loss, "val");
    if (object && resume_check_add(&best->measured_on, json_object_get(object, "val")))
        return object;
    json_decref(object);
    return NULL;
}

bool best_checkpoint_add(const best_checkpoint_t *best, json_t *state)
{
    json_t *object = best->step > 0 ? measured_json(best) : json_null();
    if (best->is_due && (json_object_set(state, "val", json_object_get(object, "val")) != 0 ||
                         json_object_set(state, "val_loss", json_object_get(object, "val_loss")) != 0)) {
        json_decref(object);
        return false;
    }
    return json_object_set_new(state, "best", object) == 0;
}

void best_checkpoint_note(best_checkpoint_t *best, int64_t step, double loss)
{
    if (!(loss < best->to_beat))
        return;
    best->step = step;
    best->loss = best->to_beat = loss;
    best->measured_on = best->val;
    best->is_saved = false;
    best->is_due = true;
}

void best_checkpoint_saved(best_checkpoint_t *best)
{
    best->is_due = false;
    best->is_saved = true;
    best->other_step = 0;
}

/* ---- another run's ---- */

/* Gives the checkpoints in dir/best the names of what is to be removed. */
static void mark_as_removed(const char *directory)
{
    char name[NEWEST_STEP_BYTES], from[BEST_MAX_PATH + 64], to[BEST_MAX_PATH + 64];
    snprintf(from, sizeof from, "%s/latest", directory);
    unlink(from);
    for (int64_t step; (step = newest_step(directory)) > 0 && step < INT64_MAX;) {
        newest_step_name(step, name);
        snprintf(from, sizeof from, "%s/%s", directory, name);
        snprintf(to, sizeof to, "%s/" REMOVED_PREFIX "%s", directory, name);
        if (rename(from, to) != 0) {
            report("cannot remove '%s': %s", from, strerror(errno));
            return;
        }
    }
}

zero_status_t best_checkpoint_remove_other(best_checkpoint_t *best, const options_t *options, zero_comm_t *comm)
{
    char directory[BEST_MAX_PATH];
    if (best->other_step == 0)
        return ZERO_OK;
    best->other_step = 0;
    best_directory(options->checkpoint.dir, directory);
    if (zero_comm_rank(comm) == 0)
        mark_as_removed(directory);
    const zero_status_t status = zero_save_prepare(comm, directory); /* has said what failed */
    if (status == ZERO_ERROR_IO) /* no reason to end the run: nothing of its own is lost */
        report("'%s' keeps what is of another run, or of a step that this run makes again: remove it", directory);
    if (status != ZERO_OK)
        return status == ZERO_ERROR_IO ? ZERO_OK : status;
    report("removed what '%s' had of another run, or of a step that this run makes again", directory);
    if (zero_comm_rank(comm) == 0)
        rmdir(directory); /* if nothing else is in it */
    return ZERO_OK;
}
