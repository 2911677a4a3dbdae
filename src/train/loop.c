/* loop.c - the training loop: queues steps, waits for their results, evaluates, saves, and stops on a signal. */
#include "train/loop.h"

#include "train/fit/settle.h"
#include "train/lr.h"
#include "train/model/fp8.h"
#include "train/report/clock.h"
#include "train/report/report.h"
#include "train/run.h"
#include "train/stop.h"

_Static_assert(DATA_NO_TARGET == ZERO_NO_TARGET, "what data leave out, the loss leaves out");

/* ---- queueing a step ---- */

/* Returns the weight of each target's loss. The loss is the mean over all targets of the step that count, whichever
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
    TRY(model_clear_loss(&run->session.model));
    for (int k = 0; k < run->micro_steps; k++) {
        double batch_ms = clock_now_ms();
        TRY(run_read_batch(run->train, step - 1, k, &batch));
        trace_host(run->trace, TRACE_DATA, step, batch_ms, clock_now_ms());
        TRY(model_train(&run->session.model, batch, loss_weight(run->train)));
    }
    run->n_counted[step % 2] = data_n_counted(run->train);
    TRY(trace_pause(run->trace, run->session.device));
    TRY(fp8_put_range(&run->session.model));
    zero_set_notice(run->session.engine, (uint32_t)stop_requested());
    TRY(zero_step(run->session.engine, (float)lr_at(o, step), run->session.model.loss, run->session.model.ctx.stream));
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
    double val_loss = 0.0;
    zero_status_t status = zero_step_wait(run->session.engine, &result);
    if (status != ZERO_OK && status != ZERO_ERROR_NONFINITE) /* the latter has a result, which is reported first */
        return status;
    int64_t step = (int64_t)result.step;
    metrics_row_t row = run_make_row(run, &result);
    run->n_queued--;
    run->n_done++;
    run->n_skipped += result.skipped;
    run->n_without += row.has_no_targets;
    if (status == ZERO_OK)
        stop_on_signal(run, &result);

    if (run->val.data && status == ZERO_OK && is_due(step, o->train.eval_every, run->last_step)) {
        TRY(run_evaluate(run, &val_loss));
        row.has_val_loss = true;
        row.val_loss = (float)val_loss;
    }
    write_logs(run, &row);
    if (result.skipped || row.has_no_targets || row.has_val_loss || step == run->checkpoints.first_step ||
        is_due(step, o->log.every, run->end_step))
        run_report_step(run, &row);
    TRY(status);
    if (o->train.sample_every > 0 && is_due(step, o->train.sample_every, run->last_step))
        TRY(run_show_sample(run));
    return checkpoints_after_step(&run->checkpoints, run->session.engine, step, run->end_step);
}

/* ---- the loop ---- */

/* Returns whether the step must be waited for at once, because what follows it needs it done. */
static bool must_wait_now(const run_t *run, int64_t step)
{
    const options_t *o = run->session.options;
    return step == run->end_step || (run->val.data && is_due(step, o->train.eval_every, run->last_step)) ||
           (o->train.sample_every > 0 && is_due(step, o->train.sample_every, run->last_step)) ||
           checkpoints_are_due(&run->checkpoints, step, run->end_step);
}

/* Makes the steps. On GPUs each is queued while the one before is computed. */
static zero_status_t loop(run_t *run)
{
    run->started_ms = clock_now_ms();
    stop_listen();
    for (int64_t step = run->checkpoints.first_step; step <= run->end_step; step++) {
        TRY(train_step(run, step));
        run->n_queued++;
        while (run->n_queued > (must_wait_now(run, step) ? 0 : run->n_late))
            TRY(finish_step(run));
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

zero_status_t loop_run(const options_t *options, zero_comm_t *comm, loop_end_t *end)
{
    run_t run;
    zero_status_t status = run_open(options, comm, &run);
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
        status = checkpoints_remove_memory(&run.checkpoints);
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
