/* run.c - see run.h. */
#include "train/run.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "train/model/fp8.h"
#include "train/options/options.h"
#include "train/planning/auto_settings.h"
#include "train/report/process.h"
#include "train/report/report.h"
#include "train/text/draw.h"
#include "train/text/generate.h"

/* ---- run evaluate ---- */
/* What a training run measures between steps: the loss on validation data, and a sample of text. */

#define SAMPLE_PROMPT 64
#define SAMPLE_TOKENS 400
#define SAMPLE_TEMPERATURE 0.8f
#define SAMPLE_TOP_K 40

zero_status_t run_read_batch(data_t *data, int64_t step, int micro_step, model_batch_t *batch)
{
    ZERO_TRY(data_batch(data, step, micro_step, &batch->inputs, &batch->targets));
    batch->starts = data_starts(data);
    batch->documents = data_documents(data);
    return ZERO_OK;
}

zero_status_t run_open_val(run_t *run)
{
    const options_t *o = run->session.options;
    int64_t n_most;
    if (__builtin_mul_overflow(o->train.eval_batches, o->train.global_batch, &n_most))
        n_most = INT64_MAX;
    return validation_open(o, run->session.comm, n_most, &run->val);
}

zero_status_t run_evaluate(run_t *run, metrics_row_t *row)
{
    double loss;
    ZERO_TRY(validation_compute(&run->val, &run->session, &loss));
    row->has_val_loss = true;
    row->val_loss = (float)loss;
    row->n_val_sets = run->val.sets[0].name[0] ? run->val.n : 0;
    row->val_sets = run->val.losses;
    row->val_rewards = run->val.rewards;
    checkpoints_note_loss(&run->checkpoints, row->step, loss);
    return ZERO_OK;
}

/* Returns how many of the first n tokens are of a sequence's first document. */
static int first_document(const int32_t *starts, int n)
{
    int end = 0;
    while (end < n && (!starts || starts[end] == 0))
        end++;
    return end;
}

zero_status_t run_show_sample(run_t *run)
{
    int32_t tokens[SAMPLE_PROMPT + SAMPLE_TOKENS];
    const int32_t *inputs, *targets;
    data_t *data = run->val.n > 0 ? run->val.held_out[0].data : run->train;
    const int64_t most = options_part_begin(run->session.options->model.seq_len,
                                            options_sequence_ranks(&run->session.options->train), 1); /* of rank 0 */
    int n_all, n_prompt = most < SAMPLE_PROMPT ? (int)most : SAMPLE_PROMPT;
    sample_spec_t spec = {.n_tokens = SAMPLE_TOKENS,
                          .temperature = SAMPLE_TEMPERATURE,
                          .top_k = SAMPLE_TOP_K,
                          .seed = (uint64_t)run->session.options->train.seed};
    ZERO_TRY(data_batch(data, 0, 0, &inputs, &targets));
    n_prompt = first_document(data_starts(data), n_prompt);
    ZERO_TRY(zero_comm_broadcast(run->session.comm, &n_prompt, sizeof n_prompt, 0));
    memcpy(tokens, inputs, (size_t)n_prompt * sizeof *tokens);
    ZERO_TRY(zero_comm_broadcast(run->session.comm, tokens, (size_t)n_prompt * sizeof *tokens,
                                 0)); /* each rank has read another sequence */
    ZERO_TRY(sample_generate(&run->session.model, run->session.comm, &spec, tokens, n_prompt, &n_all));
    if (zero_comm_rank(run->session.comm) != 0)
        return ZERO_OK;
    const bool bytes =
        run->session.options->model.vocab_size == 256; /* a sample may begin and end within a character */
    printf("--- sample: given this text\n");
    print_text(run->tokenizer, tokens, n_prompt, bytes);
    printf("\n--- the model goes on\n");
    print_text(run->tokenizer, tokens + n_prompt, n_all - n_prompt, bytes);
    printf("\n--- end of sample\n");
    fflush(stdout);
    return ZERO_OK;
}

/* ---- run open ---- */
/* Opens and closes a training run: device, data, checkpoints, engine, and the files it writes.
 *
 * What must hold: ranks agree after each step that one of them could fail alone, and nothing of an earlier run is
 * touched until all else has succeeded on all ranks. */

/* ---- data and checkpoints ---- */

/* Opens the data to train on, shuffled, and those to evaluate on. */
static zero_status_t open_data(run_t *run)
{
    const options_t *o = run->session.options;
    zero_comm_t *comm = run->session.comm;
    data_spec_t spec = data_spec_of(&o->data, &o->model, &o->train, comm, o->data.train, o->data.packing);
    spec.shuffle = true;
    spec.seed = (uint64_t)o->train.seed;
    ZERO_TRY(report_agree(comm, data_open(&spec, &run->train)));
    ZERO_TRY(report_agree(comm, data_check_targets(run->train, data_n_sequences(run->train))));
    if (o->data.val[0])
        ZERO_TRY(run_open_val(run));
    run->session.model.may_skip_targets =
        data_has_mask(run->train) || validation_may_skip(&run->val, &o->model, &o->train);
    return ZERO_OK;
}

/* Refuses data that differ from rank 0's: hosts that have copies of their own may have different ones. */
static zero_status_t compare_data(run_t *run, const char *key, const char *paths, const data_t *data,
                                  data_identity_t *identity)
{
    data_identity_t first;
    ZERO_TRY(report_agree(run->session.comm, data_identity_read(paths, data_n_tokens(data), identity)));
    first = *identity;
    ZERO_TRY(zero_comm_broadcast(run->session.comm, &first, sizeof first, 0));
    zero_status_t status = ZERO_OK;
    if (!data_identity_is_same(&first, identity))
        status = report_error(ZERO_ERROR_USAGE,
                              "[data] %s: %s has %" PRId64 " tokens here and %" PRId64
                              " on rank 0, or other ones: every host needs the same files",
                              key, paths, identity->n_tokens, first.n_tokens);
    return report_agree(run->session.comm, status);
}

/* Derives the steps from epochs: now that the batch is chosen and what a resumed run has taken is known. */
static zero_status_t choose_steps(run_t *run, options_t *o)
{
    const int64_t n_done = run->checkpoints.first_step - 1;
    if (o->train.epochs > 0.0) {
        ZERO_TRY(data_choose_steps(data_n_sequences(run->train), n_done, run->checkpoints.sequences_before, &o->train));
        ZERO_TRY(options_check_steps(o));
    }
    run->last_step = o->stop_after > 0 && o->stop_after < o->train.steps ? o->stop_after : o->train.steps;
    run->end_step = run->last_step;
    return ZERO_OK;
}

/* Compares the validation data, and finds the identity of all that a validation loss is measured on. A loss of pairs
 * depends on dpo_beta, too. */
static zero_status_t compare_val(run_t *run, data_identity_t *all)
{
    const data_options_t *o = &run->session.options->data;
    const train_options_t *train = &run->session.options->train;
    int64_t beta;
    memcpy(&beta, &train->dpo_beta, sizeof beta);
    *all = (data_identity_t){0};
    for (int i = 0; i < run->val.n; i++) {
        const int64_t read_as[] = {run->val.held_out[i].n_sequences, o->val_packing[i], o->long_documents, o->documents,
                                   beta};
        const size_t n_numbers = sizeof read_as / sizeof read_as[0] - (train->objective == OBJECTIVE_DPO ? 0 : 1);
        data_identity_t set;
        ZERO_TRY(compare_data(run, "val", run->val.sets[i].paths, run->val.held_out[i].data, &set));
        data_identity_add(all, &set, read_as, n_numbers);
    }
    return ZERO_OK;
}

/* Opens the checkpoint to resume from, and moves the data to where the previous run ended. */
static zero_status_t open_checkpoints(run_t *run)
{
    const options_t *o = run->session.options;
    data_identity_t data, val;
    ZERO_TRY(compare_data(run, "train", o->data.train, run->train, &data));
    ZERO_TRY(compare_val(run, &val));
    ZERO_TRY(checkpoints_open(o, run->session.comm, run->lock, &data, &val, &run->checkpoints));
    const model_files_t *files = &run->checkpoints.model_files;
    const model_tokenizer_t tokenizer = {files->tokenizer, files->tokenizer_text, files->tokenizer_bytes,
                                         files->vocabulary};
    ZERO_TRY(report_agree(run->session.comm, data_check_tokenizer(run->train, &tokenizer)));
    ZERO_TRY(validation_check_tokenizer(&run->val, run->session.comm, &tokenizer));
    data_start_at(run->train, run->checkpoints.first_step - 1, run->checkpoints.sequences_before);
    return ZERO_OK;
}

/* ---- memory ---- */

/* Allocates the memory that is planned, and fills it. */
static zero_status_t allocate_memory(run_t *run)
{
    session_t *s = &run->session;
    ZERO_TRY(session_create_engine(s, (int64_t)run->micro_steps * (run->n_late + 1)));
    ZERO_TRY(zero_comm_agree(s->comm, trace_attach(run->trace, s->engine)));
    phases_end("memory");
    if (s->model.lora)
        ZERO_TRY(session_load_base(s));
    if (s->options->resume)
        return checkpoints_load(&run->checkpoints, s->engine);
    if (s->model.lora)
        return session_load_adapters(s);
    if (options_init_is_random(s->options->model.init))
        return zero_init_parameters(s->engine);
    return zero_load_weights(s->engine, s->options->model.init);
}

static zero_status_t create_engine(run_t *run, options_t *o)
{
    ZERO_TRY(fit_check(o, run->session.comm, run->session.device, &run->planned));
    return fit_explain(allocate_memory(run), &run->planned, run->session.device);
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
    ZERO_TRY(run_info_text(o, run->session.comm, run->session.device, run->session.engine,
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
    ZERO_TRY(checkpoints_prepare(&run->checkpoints, run->session.model.declaration));
    ZERO_TRY(trace_claim_file(run->trace));
    return open_metrics(run);
}

/* ---- opening ---- */

/* Opens what turns samples into text, if there is such. A tokenizer that cannot be read costs no run. */
static void open_tokenizer(run_t *run)
{
    const options_t *o = run->session.options;
    if (o->train.sample_every > 0 && zero_comm_rank(run->session.comm) == 0)
        run->tokenizer = print_text_open(o->model.tokenizer[0] ? o->model.tokenizer
                                         : o->resume           ? zero_checkpoint_path(run->checkpoints.resumed)
                                                               : o->model.init,
                                         o->model.vocab_size);
}

static zero_status_t set_up(run_t *run, options_t *o, zero_comm_t *comm)
{
    ZERO_TRY(report_agree(comm, zero_comm_rank(comm) == 0 ? named_files_check(o) : ZERO_OK));
    ZERO_TRY(session_open(o, comm, &run->session));
    phases_end("device");
    run->n_late = zero_device_get_type(run->session.device) == ZERO_DEVICE_CUDA ? 1 : 0;
    ZERO_TRY(open_data(run));
    phases_end("data");
    ZERO_TRY(open_checkpoints(run));
    ZERO_TRY(report_agree(comm, choose_steps(run, o)));
    phases_end("checking the checkpoint");
    open_tokenizer(run);
    ZERO_TRY(trace_open(o->log.trace, comm, run->session.model.declaration, &run->trace));
    ZERO_TRY(create_engine(run, o));
    phases_end("loading");
    ZERO_TRY(model_compare_cpus(run->session.device, comm));
    ZERO_TRY(open_outputs(run));
    phases_end("outputs");
    return ZERO_OK;
}

zero_status_t run_open(options_t *options, zero_comm_t *comm, int *lock, run_t *run)
{
    *run = (run_t){.session = {.options = options, .comm = comm}, .lock = lock};
    run->micro_steps = options_micro_steps(&options->train, zero_comm_size(comm));
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
    validation_close(&run->val);
    data_close(run->train);
    return status;
}

/* ---- loop ---- */
/* The training loop: queues steps, waits for their results, evaluates, saves, and stops on a signal. */

_Static_assert(DATA_NO_TARGET == ZERO_NO_TARGET, "what data leave out, the loss leaves out");

/* ---- queueing a step ---- */

/* Returns the weight of each target's loss, or pair's. The loss is the mean over all of the step that count, whichever
 * rank and micro-step has them. If none does, it and its gradient are zero. */
static double loss_weight(const data_t *data)
{
    int64_t n_counted = data_n_counted(data);
    return n_counted > 0 ? 1.0 / (double)n_counted : 0.0;
}

/* Queues a step. Its result comes from zero_step_wait. */
static zero_status_t train_step(run_t *run, int64_t step)
{
    const options_t *o = run->session.options;
    model_batch_t batch;
    trace_begin_step(run->trace, step);
    const float lr = (float)lr_at(&o->train, step);
    ZERO_TRY(model_clear_loss(&run->session.model));
    if (o->zero.update == ZERO_UPDATE_IN_BACKWARD)
        ZERO_TRY(zero_set_lr(run->session.engine, lr));
    for (int k = 0; k < run->micro_steps; k++) {
        double batch_ms = clock_now_ms();
        ZERO_TRY(run_read_batch(run->train, step - 1, k, &batch));
        trace_host(run->trace, TRACE_DATA, step, batch_ms, clock_now_ms());
        ZERO_TRY(model_train(&run->session.model, batch, loss_weight(run->train)));
    }
    run->n_counted[step % 2] = data_n_counted(run->train);
    ZERO_TRY(fp8_store_range(&run->session.model));
    ZERO_TRY(preference_store(&run->session.model));
    zero_set_notice(run->session.engine, (uint32_t)stop_requested());
    ZERO_TRY(zero_step(run->session.engine, lr, run->session.model.loss, run->session.model.ctx.stream));
    trace_end_step(run->trace);
    return ZERO_OK;
}

/* ---- its result ---- */

static bool is_due(int64_t step, int64_t every, int64_t last_step)
{
    return step == last_step || (every > 0 && step % every == 0);
}

/* Ends the run with the steps that are queued, if any rank has announced a signal, or rank 0 a full log. All ranks
 * learn of it from the result of the same step. */
static void stop_on_signal(run_t *run, const zero_step_result_t *result)
{
    const char *dir = run->session.options->checkpoint.dir;
    int64_t end_step = (int64_t)result->step + run->n_queued;
    if (result->notice == 0 || end_step >= run->end_step)
        return;
    run->end_step = end_step;
    report("%s: stopping after step %lld of %lld%s%s", stop_signal_name((int)result->notice), (long long)end_step,
           (long long)run->last_step,
           dir[0] ? ", which is saved in " : "; nothing is saved: [checkpoint] dir is not set", dir);
}

/* Writes the step's row. A log that cannot be written stops the run as a signal does: after a step, which is saved. */
static void write_logs(run_t *run, const metrics_row_t *row)
{
    zero_status_t metrics = metrics_write(run->metrics, row), events = tensorboard_write(run->tensorboard, row);
    if (metrics == ZERO_OK && events == ZERO_OK)
        return;
    run->logged = metrics != ZERO_OK ? metrics : events;
    stop_request(STOP_FOR_LOG);
}

/* Waits for the oldest queued step, reports it, and evaluates, samples and saves if that is due. */
static zero_status_t finish_step(run_t *run)
{
    const options_t *o = run->session.options;
    zero_step_result_t result;
    zero_status_t status = zero_step_wait(run->session.engine, &result);
    if (status != ZERO_OK && status != ZERO_ERROR_NONFINITE) /* the latter has a result, which is reported first */
        return status;
    int64_t step = (int64_t)result.step;
    metrics_row_t row;
    ZERO_TRY(run_make_row(run, &result, &row));
    run->n_queued--;
    run->n_done++;
    run->n_skipped += result.skipped;
    run->n_without += row.has_no_targets;
    if (status == ZERO_OK)
        stop_on_signal(run, &result);

    if (run->val.n > 0 && status == ZERO_OK && is_due(step, o->train.eval_every, run->last_step))
        ZERO_TRY(run_evaluate(run, &row));
    write_logs(run, &row);
    if (result.skipped || row.has_no_targets || row.has_val_loss || step == run->checkpoints.first_step ||
        is_due(step, o->log.every, run->end_step))
        run_report_step(run, &row);
    ZERO_TRY(status);
    if (o->train.sample_every > 0 && is_due(step, o->train.sample_every, run->last_step))
        ZERO_TRY(run_show_sample(run));
    return checkpoints_after_step(&run->checkpoints, run->session.engine, step, run->end_step);
}

/* ---- the loop ---- */

/* Returns whether the step must be waited for at once, because what follows it needs it done. */
static bool must_wait_now(const run_t *run, int64_t step)
{
    const options_t *o = run->session.options;
    return step == run->end_step || (run->val.n > 0 && is_due(step, o->train.eval_every, run->last_step)) ||
           (o->train.sample_every > 0 && is_due(step, o->train.sample_every, run->last_step)) ||
           checkpoints_are_due(&run->checkpoints, step, run->end_step);
}

/* Makes the steps. On GPUs each is queued while the one before is computed. */
static zero_status_t loop(run_t *run)
{
    run->started_ms = clock_now_ms();
    stop_listen();
    for (int64_t step = run->checkpoints.first_step; step <= run->end_step; step++) {
        ZERO_TRY(train_step(run, step));
        run->n_queued++;
        while (run->n_queued > (must_wait_now(run, step) ? 0 : run->n_late))
            ZERO_TRY(finish_step(run));
    }
    return checkpoints_finish(&run->checkpoints); /* one in memory: the last on the disk is waited for */
}

/* Returns how a run ended that has not failed. One in which no step learned anything counts as a failure. */
static loop_end_t end_of(const run_t *run)
{
    if (run->end_step != run->last_step)
        return run->session.options->checkpoint.dir[0] ? LOOP_STOPPED_SAVED : LOOP_STOPPED_UNSAVED;
    if (run->n_done == 0 || run->n_skipped + run->n_without < run->n_done)
        return LOOP_COMPLETE;
    if (run->n_without > 0) {
        report("%lld steps of this run (%lld) had no token that counts as a target, and %lld were skipped, so nothing "
               "was learned: look at the masks of [data] train, or make more steps",
               (long long)run->n_without, (long long)run->n_done, (long long)run->n_skipped);
        return LOOP_ALL_SKIPPED;
    }
    report("all steps of this run (%lld) were skipped, so the weights have not changed: gradients were not finite; %s",
           (long long)run->n_done,
           run->session.options->train.precision == ZERO_FP16
               ? "fp16's loss scale may need more steps to settle, else look at the data and the initial weights"
               : "lower the learning rate, or look at the data and the initial weights");
    return LOOP_ALL_SKIPPED;
}

zero_status_t loop_run(options_t *options, zero_comm_t *comm, int *lock, loop_end_t *end)
{
    run_t run;
    zero_status_t status = run_open(options, comm, lock, &run);
    report_hold_errors(false); /* from here on, ranks fail alone and at any point */
    if (status == ZERO_OK) {
        run_report_start(&run);
        /* CUDA allocates graphs in the first steps. */
        status = fit_explain(loop(&run), &run.planned, run.session.device);
    }
    loop_end_t reached = LOOP_COMPLETE;
    if (status == ZERO_OK)
        reached = end_of(&run);
    if (status == ZERO_OK && (reached == LOOP_COMPLETE || reached == LOOP_STOPPED_SAVED))
        status = checkpoints_remove_memory(&run.checkpoints, run_has_steps(&run));
    if (status == ZERO_OK)
        status = zero_comm_broadcast(comm, &run.logged, sizeof run.logged, 0);
    if (status == ZERO_OK && run.logged != ZERO_OK)
        reached = LOOP_NOT_LOGGED;
    if (status == ZERO_ERROR_NONFINITE) /* on all ranks: complete a save of good weights */
        checkpoints_finish(&run.checkpoints);
    status = run_close(&run, status);
    if (status == ZERO_OK)
        *end = reached;
    return status;
}
