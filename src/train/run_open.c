/* run_open.c - opens and closes a training run: device, data, checkpoints, engine, and the files it writes.
 *
 * What must hold: ranks agree after each step that one of them could fail alone, and nothing of an earlier run is
 * touched until all else has succeeded on all ranks.
 */
#include <inttypes.h>
#include <string.h>

#include "train/fit/settle.h"
#include "train/forward/print_text.h"
#include "train/named_files.h"
#include "train/report/phases.h"
#include "train/report/report.h"
#include "train/run.h"
#include "train/run_info.h"

/* ---- data and checkpoints ---- */

/* Opens the data to train on, shuffled, and those to evaluate on. */
static zero_status_t open_data(run_t *run)
{
    const options_t *o = run->session.options;
    zero_comm_t *comm = run->session.comm;
    data_spec_t spec = data_spec_of(o, comm, o->data.train);
    spec.shuffle = true;
    spec.seed = (uint64_t)o->train.seed;
    TRY(report_agree(comm, data_open(&spec, &run->train)));
    TRY(report_agree(comm, data_check_targets(run->train, data_n_sequences(run->train))));
    if (o->data.val[0])
        TRY(run_open_val(run));
    run->session.model.may_skip_targets = data_has_mask(run->train) || held_out_may_skip(&run->val, o);
    return ZERO_OK;
}

/* Refuses data that differ from rank 0's: hosts that have copies of their own may have different ones. */
static zero_status_t compare_data(run_t *run, const char *key, const char *paths, const data_t *data,
                                  data_identity_t *identity)
{
    data_identity_t first;
    TRY(report_agree(run->session.comm, data_identity_read(paths, data_n_tokens(data), identity)));
    first = *identity;
    TRY(zero_comm_broadcast(run->session.comm, &first, sizeof first, 0));
    zero_status_t status = ZERO_OK;
    if (first.n_tokens != identity->n_tokens || first.sample != identity->sample)
        status = report_error(ZERO_ERROR_USAGE,
                              "[data] %s: %s has %" PRId64 " tokens here and %" PRId64
                              " on rank 0, or other ones: every host needs the same files",
                              key, paths, identity->n_tokens, first.n_tokens);
    return report_agree(run->session.comm, status);
}

/* Opens the checkpoint to resume from, and moves the data to where the previous run ended. */
static zero_status_t open_checkpoints(run_t *run)
{
    const options_t *o = run->session.options;
    data_identity_t data, val;
    TRY(compare_data(run, "train", o->data.train, run->train, &data));
    if (run->val.data)
        TRY(compare_data(run, "val", o->data.val, run->val.data, &val));
    TRY(checkpoints_open(run->session.options, run->session.comm, &data, &run->checkpoints));
    TRY(report_agree(run->session.comm, data_check_tokenizer(run->train, run->checkpoints.model_files.tokenizer)));
    if (run->val.data)
        TRY(report_agree(run->session.comm,
                         data_check_tokenizer(run->val.data, run->checkpoints.model_files.tokenizer)));
    data_start_at(run->train, run->checkpoints.first_step - 1, run->checkpoints.sequences_before);
    return ZERO_OK;
}

/* ---- memory ---- */

/* Takes the memory that is planned, and fills it. */
static zero_status_t take_memory(run_t *run)
{
    session_t *s = &run->session;
    s->model.trace = run->trace;
    TRY(session_create_engine(s, (int64_t)run->micro_steps * (run->n_late + 1)));
    TRY(zero_comm_agree(s->comm, trace_attach(run->trace, s->device, s->engine)));
    phases_end("memory");
    if (s->options->resume)
        return checkpoints_load(&run->checkpoints, s->engine);
    if (strcmp(s->options->model.init, "random") == 0)
        return zero_init_parameters(s->engine);
    return zero_load_weights(s->engine, s->options->model.init);
}

static zero_status_t create_engine(run_t *run)
{
    TRY(fit_check(run->session.options, run->session.comm, run->session.device, &run->planned));
    return fit_explain(take_memory(run), &run->planned, run->session.device);
}

/* ---- outputs ---- */

bool run_has_steps(const run_t *run)
{
    return run->checkpoints.first_step <= run->last_step;
}

static zero_status_t open_metrics(run_t *run)
{
    zero_status_t status = ZERO_OK;
    const options_t *o = run->session.options;
    char *info = NULL;
    TRY(run_info_text(o, run->session.comm, run->session.device, run->session.engine,
                      zero_model_n_params(run->session.model.declaration), &info));
    if (zero_comm_rank(run->session.comm) == 0) /* first, since it removes nothing of an earlier run */
        status = tensorboard_open(o->log.tensorboard, o->resume ? run->checkpoints.first_step : 0, &run->tensorboard);
    if (zero_comm_rank(run->session.comm) == 0 && status == ZERO_OK && o->resume)
        status = metrics_rewind(o->log.metrics, run->checkpoints.first_step - 1);
    if (zero_comm_rank(run->session.comm) == 0 && status == ZERO_OK)
        status = metrics_open(o->log.metrics, o->resume, &run->metrics);
    metrics_describe(run->metrics, info);
    return report_agree(run->session.comm, status);
}

/* Opens what the run will write. Called last, when everything else that could fail has succeeded on all ranks: until
 * here nothing of an earlier run has been touched. */
static zero_status_t open_outputs(run_t *run)
{
    if (!run_has_steps(run))
        return ZERO_OK;
    TRY(checkpoints_prepare(&run->checkpoints, run->session.model.declaration));
    TRY(trace_claim_file(run->trace));
    return open_metrics(run);
}

/* ---- opening ---- */

/* Opens what turns samples into text, if there is such. A tokenizer that cannot be read costs no run. */
static void open_tokenizer(run_t *run)
{
    const options_t *o = run->session.options;
    if (o->train.sample_every > 0 && zero_comm_rank(run->session.comm) == 0)
        run->tokenizer = print_text_open(o->model.init, o->model.vocab_size);
}

static zero_status_t set_up(run_t *run, const options_t *o, zero_comm_t *comm)
{
    TRY(report_agree(comm, zero_comm_rank(comm) == 0 ? named_files_check(o) : ZERO_OK));
    TRY(session_open(o, comm, &run->session));
    phases_end("device");
    run->n_late = zero_device_get_type(run->session.device) == ZERO_DEVICE_CUDA ? 1 : 0;
    TRY(open_data(run));
    phases_end("data");
    TRY(open_checkpoints(run));
    phases_end("checking the checkpoint");
    open_tokenizer(run);
    TRY(trace_open(o->log.trace, comm, run->session.model.declaration, &run->trace));
    TRY(create_engine(run));
    phases_end("loading");
    TRY(model_compare_cpus(run->session.device, comm));
    TRY(open_outputs(run));
    phases_end("outputs");
    return ZERO_OK;
}

zero_status_t run_open(const options_t *options, zero_comm_t *comm, run_t *run)
{
    *run = (run_t){.session = {.options = options, .comm = comm}};
    run->micro_steps = options_micro_steps(options, zero_comm_size(comm));
    run->last_step = options->train.steps;
    if (options->stop_after > 0 && options->stop_after < run->last_step)
        run->last_step = options->stop_after;
    run->end_step = run->last_step;
    return report_agree(comm, set_up(run, options, comm));
}

/* ---- closing ---- */

zero_status_t run_close(run_t *run, zero_status_t status)
{
    checkpoints_close(&run->checkpoints);
    metrics_close(run->metrics);
    tensorboard_close(run->tensorboard);
    /* ZERO_ERROR_NONFINITE ends the run on all ranks together. After any other failure peers may be lost. */
    zero_status_t traced = trace_close(run->trace, status == ZERO_OK || status == ZERO_ERROR_NONFINITE);
    if (status == ZERO_OK)
        status = traced;
    session_close(&run->session, status != ZERO_OK && status != ZERO_ERROR_USAGE); /* that all ranks return together */
    tokenizer_close(run->tokenizer);
    held_out_close(&run->val);
    data_close(run->train);
    return status;
}
