/* checkpoints.c - see checkpoints.h. libzero writes the files; zerotrain adds to state.json:
 *
 *     "config": {"model": {"arch": "gpt2", ...}, ...}    the effective configuration, with values as in an ini file
 *     "data": {"sequences": 240, "tokens": 9000, ...}    the position in the order of the data, and their identity
 *     "seed": 1                                          of the initial weights and of that order
 *     "base": {"init": "DIR", "sample": "..."}           of adapters: the model that they belong to,
 *                                                        or "random" and its seed
 *
 * and which checkpoint is the best (best_checkpoint.c).
 */
#include "train/checkpoints.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "train/data/resume_check.h"
#include "train/hub/adapter_base.h"
#include "train/hub/adapter_config.h"
#include "train/hub/ends_of_text.h"
#include "train/hub/hf_config.h"
#include "train/options/input_file.h"
#include "train/options/options_table.h"
#include "train/report/report.h"
#include "train/run_directory.h"

/* In memory hashing and removing take longest, and each file has a thread. On a disk files are of the usual size. */
#define MEMORY_FILE_BYTES ((uint64_t)1 << 30)

/* ---- writing state.json ---- */

/* Adds which model the adapters belong to. */
static bool add_base(const checkpoints_t *checkpoints, json_t *state)
{
    const options_t *o = checkpoints->options;
    return o->lora.rank == 0 || json_object_set_new(state, "base", adapter_base_json(o, checkpoints->base_sample)) == 0;
}

/* Returns what is added to state.json after `step`, for free(). NULL: no memory. */
static char *state_text(const checkpoints_t *checkpoints, int64_t step)
{
    json_t *state = json_pack("{s:o, s:{s:I}, s:I}", "config", options_json(checkpoints->options), "data", "sequences",
                              (json_int_t)checkpoints_sequences(checkpoints, step), "seed",
                              (json_int_t)checkpoints->options->train.seed);
    char *text = state && resume_check_add(&checkpoints->data, json_object_get(state, "data")) &&
                         add_base(checkpoints, state) && best_checkpoint_add(&checkpoints->best, state)
                     ? json_dumps(state, 0)
                     : NULL;
    json_decref(state);
    return text;
}

/* ---- resuming ---- */

static zero_status_t take_state(checkpoints_t *checkpoints)
{
    const char *path = zero_checkpoint_path(checkpoints->resumed);
    json_t *state = json_loads(zero_checkpoint_state(checkpoints->resumed), JSON_REJECT_DUPLICATES, NULL);
    const json_t *sequences = json_object_get(json_object_get(state, "data"), "sequences");
    /* This run adds fewer than 2^61 tokens (options_resolve.c), so that the sum does not overflow. */
    const int64_t most = (INT64_C(1) << 61) / checkpoints->options->model.seq_len;
    zero_status_t status = ZERO_OK;
    if (!json_is_integer(sequences) || json_integer_value(sequences) < 0 || json_integer_value(sequences) > most)
        status = report_error(ZERO_ERROR_FORMAT,
                              "'%s/state.json': data.sequences is missing or invalid: zerotrain did not "
                              "make this checkpoint",
                              path);
    else
        checkpoints->sequences_before = json_integer_value(sequences);
    if (status == ZERO_OK && checkpoints->options->lora.rank > 0)
        status = adapter_check_base(path, checkpoints->options);
    if (status == ZERO_OK)
        status = resume_check(checkpoints->options, path, state, &checkpoints->data);
    json_decref(state);
    return status;
}

zero_status_t checkpoints_find(const checkpoint_options_t *options, zero_comm_t *comm, checkpoints_found_t *found)
{
    uint64_t in_memory = 0;
    *found = (checkpoints_found_t){0};
    found->on_disk = newest_step_of_run(options->dir, &found->is_best);
    ZERO_TRY(zero_comm_broadcast(comm, found, sizeof *found, 0));
    if (options->memory_every > 0 && options->memory_dir[0])
        ZERO_TRY(zero_host_copies_find(comm, options->memory_dir, &in_memory));
    found->in_memory = (int64_t)in_memory;
    return ZERO_OK;
}

/* Opens the checkpoint that --resume names, or the newer one of memory and disk. */
static zero_status_t open_newest(checkpoints_t *checkpoints)
{
    const options_t *o = checkpoints->options;
    checkpoints_found_t found = {0};
    if (o->resume_dir[0])
        return zero_checkpoint_open(checkpoints->comm, o->resume_dir, &checkpoints->resumed);
    ZERO_TRY(checkpoints_find(&o->checkpoint, checkpoints->comm, &found));
    if (found.in_memory > found.on_disk) {
        checkpoints->memory_step = found.in_memory;
        return zero_host_copies_open(checkpoints->comm, o->checkpoint.memory_dir, (uint64_t)found.in_memory,
                                     &checkpoints->resumed);
    }
    char best[BEST_MAX_PATH];
    best_directory(o->checkpoint.dir, best);
    const char *directory = found.is_best ? best : o->checkpoint.dir[0] ? o->checkpoint.dir : o->checkpoint.memory_dir;
    return zero_checkpoint_open(checkpoints->comm, directory, &checkpoints->resumed);
}

/* Finds which checkpoint is the best so far, and what dir/best has. */
static zero_status_t find_best(checkpoints_t *checkpoints, const data_identity_t *val)
{
    json_t *state = checkpoints->resumed
                        ? json_loads(zero_checkpoint_state(checkpoints->resumed), JSON_REJECT_DUPLICATES, NULL)
                        : NULL;
    zero_status_t status =
        best_checkpoint_find(checkpoints->options, checkpoints->comm, state, val, &checkpoints->best);
    json_decref(state);
    return status;
}

static zero_status_t resume(checkpoints_t *checkpoints)
{
    ZERO_TRY(open_newest(checkpoints));
    ZERO_TRY(report_agree(checkpoints->comm, take_state(checkpoints)));
    int64_t step = (int64_t)zero_checkpoint_step(checkpoints->resumed);
    checkpoints->first_step = step + 1;
    checkpoints->last_saved = step;
    report("resuming after step %" PRId64 ", from %s", step, zero_checkpoint_path(checkpoints->resumed));
    return ZERO_OK;
}

/* Reads the files that every checkpoint gets. source: the model that is trained on; NULL: none. */
static zero_status_t read_model_files(const options_t *options, const char *source, model_files_t *files)
{
    struct stat info;
    const char *tokenizer = options->model.tokenizer;
    if (!tokenizer[0])
        return source ? model_files_read(source, files) : ZERO_OK;
    if (stat(tokenizer, &info) != 0 || !S_ISDIR(info.st_mode))
        return report_error(ZERO_ERROR_USAGE, "[model] tokenizer: '%s': %s: name a directory with a tokenizer's files",
                            tokenizer, strerror(access(tokenizer, F_OK) == 0 ? ENOTDIR : errno));
    ZERO_TRY(model_files_read(tokenizer, files));
    if (files->n_files > 0)
        return ZERO_OK;
    return report_error(ZERO_ERROR_USAGE,
                        "[model] tokenizer: '%s' has none of a tokenizer's files, such as tokenizer.json: name a "
                        "directory that has them, or leave it out",
                        tokenizer);
}

zero_status_t checkpoints_open(const options_t *options, zero_comm_t *comm, int *lock, const data_identity_t *data,
                               const data_identity_t *val, checkpoints_t *checkpoints)
{
    *checkpoints = (checkpoints_t){.options = options, .comm = comm, .lock = lock, .data = *data, .first_step = 1};
    ZERO_TRY(run_directory_check(options, comm));
    if (options->resume)
        ZERO_TRY(resume(checkpoints));
    ZERO_TRY(find_best(checkpoints, val));
    checkpoints->schedule =
        memory_schedule_make(options->checkpoint.memory_every, checkpoints->first_step - 1, options->checkpoint.async);
    ZERO_TRY(run_directory_check_earlier(options, comm));
    const char *source = options->resume                                ? zero_checkpoint_path(checkpoints->resumed)
                         : !options_init_is_random(options->model.init) ? options->model.init
                                                                        : NULL;
    if (source)
        ZERO_TRY(report_agree(comm, hf_config_read(source, &checkpoints->model_config)));
    if (options->lora.rank > 0 && (options->checkpoint.dir[0] || options->checkpoint.memory_every > 0))
        ZERO_TRY(report_agree(comm, adapter_config_check_path(options)));
    if (options->lora.rank > 0 && !options_init_is_random(options->model.init))
        ZERO_TRY(report_agree(comm, adapter_base_sample(options->model.init, &checkpoints->base_sample)));
    return report_agree(comm, read_model_files(options, source, &checkpoints->model_files));
}

zero_status_t checkpoints_prepare(checkpoints_t *checkpoints, const zero_model_t *model)
{
    const options_t *o = checkpoints->options;
    uint64_t n_bytes = 0;
    signal(SIGPIPE, SIG_IGN); /* who reads the log may go: that costs no training */
    ZERO_TRY(run_directory_make(o, checkpoints->comm, checkpoints->lock));
    if (o->checkpoint.dir[0])
        ZERO_TRY(zero_save_prepare(checkpoints->comm, o->checkpoint.dir));
    if (o->checkpoint.best) {
        char directory[BEST_MAX_PATH];
        best_directory(o->checkpoint.dir, directory);
        ZERO_TRY(zero_save_prepare(checkpoints->comm, directory));
    }
    if (o->checkpoint.memory_every == 0)
        return ZERO_OK;
    const zero_config_t config = options_config(o, zero_comm_size(checkpoints->comm));
    ZERO_TRY(zero_comm_agree(checkpoints->comm, zero_checkpoint_bytes(model, &config, &n_bytes)));
    return zero_host_copies_prepare(checkpoints->comm, o->checkpoint.memory_dir,
                                    n_bytes + checkpoints->model_files.n_bytes, (uint64_t)checkpoints->memory_step);
}

/* Says so if the model's config.json asks for dropout, which transformers would apply in training. */
static void report_dropout(const char *model_config)
{
    static const char *const KEYS[] = {"attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop",
                                       "residual_dropout"};
    json_t *json = model_config ? json_loads(model_config, 0, NULL) : NULL;
    char found[300] = "";
    for (size_t i = 0, n = 0; i < sizeof KEYS / sizeof KEYS[0] && n < sizeof found; i++) {
        const double rate = json_number_value(json_object_get(json, KEYS[i]));
        if (rate != 0.0)
            n += (size_t)snprintf(found + n, sizeof found - n, "%s%s = %g", n > 0 ? ", " : "", KEYS[i], rate);
    }
    if (found[0])
        report("the model's config.json has %s: no dropout is applied here", found);
    json_decref(json);
}

/* Warns of an earlier run's later checkpoints: [checkpoint] keep counts them too and removes them first. */
void checkpoints_report(const checkpoints_t *checkpoints)
{
    const options_t *options = checkpoints->options;
    char name[NEWEST_STEP_BYTES];
    report_dropout(checkpoints->model_config);
    if (options->checkpoint.memory_every == 0 && options->checkpoint.memory_dir[0])
        report("[checkpoint] memory_dir changes nothing here: memory_every is not set");
    if (options->checkpoint.memory_every > 0)
        report("each host gets checkpoints in its memory, in %s, so that a lost process costs %" PRId64
               " steps at most, until the run ends well",
               options->checkpoint.memory_dir, options->checkpoint.memory_every);
    if (!options->checkpoint.dir[0]) {
        report("nothing will be saved: [checkpoint] dir is not set");
        return;
    }
    best_checkpoint_report(&checkpoints->best, options);
    int64_t step = newest_step(options->checkpoint.dir), begun_at = checkpoints->first_step - 1;
    newest_step_name(step, name);
    if (step <= begun_at || step == INT64_MAX)
        return;
    if (options->resume)
        report("%s has checkpoints of an earlier run after step %" PRId64
               ", up to %s; this run makes those steps again and will replace them: to keep them, move them away",
               options->checkpoint.dir, begun_at, name);
    else
        report("%s has checkpoints of an earlier run, up to %s; this run starts from scratch and will replace them",
               options->checkpoint.dir, name);
}

zero_status_t checkpoints_load(checkpoints_t *checkpoints, zero_engine_t *engine)
{
    ZERO_TRY(zero_load(engine, checkpoints->resumed));
    zero_checkpoint_close(checkpoints->resumed);
    checkpoints->resumed = NULL;
    return ZERO_OK;
}

int64_t checkpoints_sequences(const checkpoints_t *checkpoints, int64_t step)
{
    int64_t n_steps = step - checkpoints->first_step + 1;
    return checkpoints->sequences_before + n_steps * checkpoints->options->train.global_batch;
}

/* ---- saving ---- */

static bool is_due_on_disk(const checkpoint_options_t *o, int64_t step, int64_t last_step)
{
    int64_t every = o->every;
    return o->dir[0] && (step == last_step || (every > 0 && step % every == 0));
}

static bool is_due_in_memory(const checkpoints_t *checkpoints, int64_t step, int64_t last_step)
{
    return step != last_step && memory_schedule_is_due(&checkpoints->schedule, step);
}

bool checkpoints_are_due(const checkpoints_t *checkpoints, int64_t step, int64_t last_step)
{
    return is_due_on_disk(&checkpoints->options->checkpoint, step, last_step) ||
           is_due_in_memory(checkpoints, step, last_step) || memory_schedule_must_end(&checkpoints->schedule, step);
}

/* What a checkpoint has in addition to libzero's files: of a model config.json, of adapters adapter_config.json. */
typedef struct extra_files {
    char *model_config, *adapter_config;
    zero_save_file_t files[MODEL_FILES_MAX + 1];
    int n_files;
} extra_files_t;

static zero_status_t make_extra_files(const checkpoints_t *checkpoints, extra_files_t *extra)
{
    const options_t *o = checkpoints->options;
    const model_files_t *others = &checkpoints->model_files;
    *extra = (extra_files_t){.n_files = others->n_files};
    memcpy(extra->files, others->files, (size_t)others->n_files * sizeof others->files[0]);
    if (o->lora.rank == 0)
        extra->model_config = hf_config_text(&o->model, (zero_dtype_t)o->train.precision, checkpoints->model_config);
    else
        extra->adapter_config = adapter_config_text(o);
    if (!extra->model_config && !extra->adapter_config)
        return report_rank_error(ZERO_ERROR_MEMORY, "no memory to save");
    if (extra->model_config && !checkpoints->model_config)
        ends_of_text_name(others, &extra->model_config);
    if (extra->adapter_config)
        extra->files[extra->n_files++] = (zero_save_file_t){
            .name = ADAPTER_CONFIG_FILE, .data = extra->adapter_config, .n_bytes = strlen(extra->adapter_config)};
    return ZERO_OK;
}

/* Begins a save into a directory. */
static zero_status_t begin_in(checkpoints_t *checkpoints, zero_engine_t *engine, int64_t step, const char *directory,
                              int keep, bool in_memory)
{
    const options_t *o = checkpoints->options;
    extra_files_t extra;
    zero_status_t status = make_extra_files(checkpoints, &extra);
    char *state = state_text(checkpoints, step);
    zero_save_options_t options = {.config_json = extra.model_config,
                                   .state_json = state,
                                   .keep = keep,
                                   .background = o->checkpoint.async,
                                   .per_host = in_memory,
                                   .max_file_bytes = in_memory ? MEMORY_FILE_BYTES : 0,
                                   .files = extra.files,
                                   .n_files = extra.n_files};
    if (status == ZERO_OK && !state)
        status = report_rank_error(ZERO_ERROR_MEMORY, "no memory to save");
    status = zero_comm_agree(checkpoints->comm, status);
    if (status == ZERO_OK)
        status = zero_save_begin(engine, directory, &options, &checkpoints->save);
    free(state);
    free(extra.model_config);
    free(extra.adapter_config);
    return status;
}

static zero_status_t begin(checkpoints_t *checkpoints, zero_engine_t *engine, int64_t step, bool in_memory)
{
    const checkpoint_options_t *o = &checkpoints->options->checkpoint;
    const int keep = in_memory ? 1 : o->keep > INT32_MAX ? INT32_MAX : (int)o->keep;
    checkpoints->saves_in_memory = in_memory;
    ZERO_TRY(begin_in(checkpoints, engine, step, in_memory ? o->memory_dir : o->dir, keep, in_memory));
    checkpoints->last_saved = step;
    memory_schedule_begin(&checkpoints->schedule, step);
    return ZERO_OK;
}

zero_status_t checkpoints_finish(checkpoints_t *checkpoints)
{
    if (!checkpoints->save)
        return ZERO_OK;
    zero_status_t status = zero_save_end(checkpoints->save);
    checkpoints->save = NULL;
    if (status != ZERO_OK || checkpoints->saves_in_memory)
        return status;
    report("saved step %" PRId64 " in %s", checkpoints->last_saved, checkpoints->options->checkpoint.dir);
    return best_checkpoint_remove_other(&checkpoints->best, checkpoints->options, checkpoints->comm);
}

/* Waits for the save in progress, after `step`. */
static zero_status_t finish_after(checkpoints_t *checkpoints, int64_t step)
{
    if (!checkpoints->save)
        return ZERO_OK;
    ZERO_TRY(checkpoints_finish(checkpoints));
    memory_schedule_end(&checkpoints->schedule, step, checkpoints->saves_in_memory);
    return ZERO_OK;
}

/* Continues a save that is in progress, and ends it if it is complete or has failed. */
static zero_status_t poll(checkpoints_t *checkpoints, int64_t step)
{
    bool done;
    if (!checkpoints->save)
        return ZERO_OK;
    zero_status_t status = zero_save_poll(checkpoints->save, &done);
    return status != ZERO_OK || done ? finish_after(checkpoints, step) : ZERO_OK;
}

/* Begins the save that is due after `step`, if any: one at a time. */
static zero_status_t begin_due(checkpoints_t *checkpoints, zero_engine_t *engine, int64_t step, int64_t last_step)
{
    const bool on_disk = is_due_on_disk(&checkpoints->options->checkpoint, step, last_step);
    if (!on_disk && !is_due_in_memory(checkpoints, step, last_step))
        return ZERO_OK;
    ZERO_TRY(finish_after(checkpoints, step));
    ZERO_TRY(begin(checkpoints, engine, step, !on_disk));
    return !checkpoints->options->checkpoint.async || step == last_step ? finish_after(checkpoints, step) : ZERO_OK;
}

void checkpoints_note_loss(checkpoints_t *checkpoints, int64_t step, double val_loss)
{
    if (checkpoints->options->checkpoint.best)
        best_checkpoint_note(&checkpoints->best, step, val_loss);
}

/* Saves the best checkpoint, and waits for it: another save may follow at once. */
static zero_status_t save_best(checkpoints_t *checkpoints, zero_engine_t *engine, int64_t step)
{
    char directory[BEST_MAX_PATH];
    if (!checkpoints->best.is_due)
        return ZERO_OK;
    best_directory(checkpoints->options->checkpoint.dir, directory);
    ZERO_TRY(finish_after(checkpoints, step));
    ZERO_TRY(begin_in(checkpoints, engine, step, directory, 1, false));
    zero_status_t status = zero_save_end(checkpoints->save);
    checkpoints->save = NULL;
    best_checkpoint_saved(&checkpoints->best);
    if (status == ZERO_OK)
        report("saved step %" PRId64 " in %s: its validation loss, %.4f, is the lowest so far", step, directory,
               checkpoints->best.loss);
    return status;
}

zero_status_t checkpoints_after_step(checkpoints_t *checkpoints, zero_engine_t *engine, int64_t step, int64_t last_step)
{
    ZERO_TRY(poll(checkpoints, step));
    ZERO_TRY(save_best(checkpoints, engine, step));
    if (memory_schedule_must_end(&checkpoints->schedule, step))
        ZERO_TRY(finish_after(checkpoints, step));
    ZERO_TRY(begin_due(checkpoints, engine, step, last_step));
    return memory_schedule_must_end(&checkpoints->schedule, step) ? finish_after(checkpoints, step) : ZERO_OK;
}

zero_status_t checkpoints_remove_memory(const checkpoints_t *checkpoints, bool has_steps)
{
    const options_t *o = checkpoints->options;
    const bool may_be_newest = checkpoints->memory_step > 0 || o->resume_dir[0];
    if (o->checkpoint.memory_every == 0 || (!has_steps && may_be_newest))
        return ZERO_OK;
    return zero_host_copies_remove(checkpoints->comm, o->checkpoint.memory_dir);
}

void checkpoints_close(checkpoints_t *checkpoints)
{
    zero_checkpoint_close(checkpoints->resumed);
    checkpoints->resumed = NULL;
    free(checkpoints->model_config);
    checkpoints->model_config = NULL;
    model_files_free(&checkpoints->model_files);
}
