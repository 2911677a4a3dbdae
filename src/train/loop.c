/* loop.c - the training run: sets everything up, makes the steps, logs, evaluates, saves, and takes it all down. */
#include "train/loop.h"

#include <fcntl.h>
#include <inttypes.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "train/checkpoints.h"
#include "train/data/data.h"
#include "train/fit/settle.h"
#include "train/forward/print_text.h"
#include "train/forward/sample.h"
#include "train/lr.h"
#include "train/report/clock.h"
#include "train/report/metrics.h"
#include "train/model/model.h"
#include "train/report/report.h"
#include "train/run_info.h"
#include "train/named_files.h"
#include "train/stop.h"
#include "train/report/tensorboard.h"
#include "train/report/trace.h"

_Static_assert(DATA_NO_TARGET == ZERO_NO_TARGET, "what data leave out, the loss leaves out");

#define EVALUATION_SEED 1 /* [train] seed does not choose what is evaluated */
#define SAMPLE_PROMPT 64
#define SAMPLE_TOKENS 400
#define SAMPLE_TEMPERATURE 0.8f
#define SAMPLE_TOP_K 40

/* Everything a run holds, in the order of creation. */
typedef struct run {
    const options_t *options;
    zero_comm_t *comm;
    int micro_steps;
    int64_t last_step; /* that the run should make */
    int64_t end_step;  /* that it ends with: last_step unless a signal came */
    zero_device_t *device;
    model_t model;
    zero_memory_t planned; /* of each rank */
    zero_engine_t *engine;
    data_t *train, *val;    /* val NULL: none */
    tokenizer_t *tokenizer; /* of what sample_every prints; NULL: tokens are printed as numbers */
    trace_t *trace;
    metrics_t *metrics;
    tensorboard_t *tensorboard;
    checkpoints_t checkpoints;
    int n_late; /* steps that stay queued while the next is queued, so that the host need not wait for a GPU */
    int n_queued;
    int64_t n_done, n_skipped; /* steps of this run */
    double started_ms;
} run_t;

/* ---- one step ---- */

/* Returns the weight of each target's loss. The loss is the mean over all targets of the step that count, whichever
 * rank and micro-step has them. If none does, it and its gradient are zero. */
static double loss_weight(const data_t *data)
{
    int64_t n_counted = data_n_counted(data);
    return n_counted > 0 ? 1.0 / (double)n_counted : 0.0;
}

/* Reads this rank's batch of a micro-step of step `step`, counted from 0. */
static zero_status_t read_batch(data_t *data, int64_t step, int micro_step, model_batch_t *batch)
{
    TRY(data_batch(data, step, micro_step, &batch->inputs, &batch->targets));
    batch->starts = data_starts(data);
    return ZERO_OK;
}

/* Queues a step. Its result comes from zero_step_wait. */
static zero_status_t train_step(run_t *run, int64_t step)
{
    const options_t *o = run->options;
    model_batch_t batch;
    trace_begin_step(run->trace, step);
    TRY(model_clear_loss(&run->model));
    for (int k = 0; k < run->micro_steps; k++) {
        double batch_ms = clock_now_ms();
        TRY(read_batch(run->train, step - 1, k, &batch));
        trace_host(run->trace, TRACE_DATA, step, batch_ms, clock_now_ms());
        TRY(model_train(&run->model, batch, loss_weight(run->train)));
    }
    TRY(trace_pause(run->trace, run->device));
    TRY(model_put_fp8_range(&run->model));
    zero_set_notice(run->engine, (uint32_t)stop_requested());
    TRY(zero_step(run->engine, (float)lr_at(o, step), run->model.loss, run->model.ctx.stream));
    trace_end_step(run->trace);
    return ZERO_OK;
}

/* Computes the mean loss, in nats per token that counts, over eval_batches global batches of the validation data, or
 * over all of it if it has fewer. The sequences are a random sample, the same at every evaluation of every run. */
static zero_status_t evaluate(run_t *run, double *val_loss)
{
    const options_t *o = run->options;
    int64_t in_data = (data_n_sequences(run->val) + o->train.global_batch - 1) / o->train.global_batch;
    int64_t n_batches = o->train.eval_batches < in_data ? o->train.eval_batches : in_data;
    int64_t n_targets = n_batches * o->train.global_batch * o->model.seq_len, n_counted = 0;
    model_batch_t batch;
    TRY(model_clear_loss(&run->model));
    for (int64_t b = 0; b < n_batches; b++)
        for (int k = 0; k < run->micro_steps; k++) {
            TRY(read_batch(run->val, b, k, &batch));
            TRY(model_loss(&run->model, batch, 1.0 / (double)n_targets));
            n_counted += k == 0 ? data_n_counted(run->val) : 0;
        }
    TRY(model_take_loss(&run->model, val_loss));
    TRY(zero_comm_sum(run->comm, val_loss, 1));
    *val_loss *= n_counted > 0 ? (double)n_targets / (double)n_counted : 0.0; /* exactly 1 without a mask */
    return ZERO_OK;
}

/* Prints to stdout how the model continues a sequence of the validation data, or of the training data if there are
 * none. */
static zero_status_t show_sample(run_t *run)
{
    int32_t tokens[SAMPLE_PROMPT + SAMPLE_TOKENS];
    const int32_t *inputs, *targets;
    int64_t seq_len = run->options->model.seq_len;
    int n_all, n_prompt = seq_len < SAMPLE_PROMPT ? (int)seq_len : SAMPLE_PROMPT;
    sample_spec_t spec = {.n_tokens = SAMPLE_TOKENS,
                          .temperature = SAMPLE_TEMPERATURE,
                          .top_k = SAMPLE_TOP_K,
                          .seed = (uint64_t)run->options->train.seed};
    TRY(data_batch(run->val ? run->val : run->train, 0, 0, &inputs, &targets));
    memcpy(tokens, inputs, (size_t)n_prompt * sizeof *tokens);
    TRY(zero_comm_broadcast(run->comm, tokens, (size_t)n_prompt * sizeof *tokens,
                            0)); /* each rank has read another sequence */
    TRY(sample_generate(&run->model, run->comm, &spec, tokens, n_prompt, &n_all));
    if (zero_comm_rank(run->comm) != 0)
        return ZERO_OK;
    const bool bytes = run->options->model.vocab_size == 256; /* a sample may begin and end within a character */
    printf("--- sample: given this text\n");
    print_text(run->tokenizer, tokens, n_prompt, bytes);
    printf("\n--- the model goes on\n");
    print_text(run->tokenizer, tokens + n_prompt, n_all - n_prompt, bytes);
    printf("\n--- end of sample\n");
    fflush(stdout);
    return ZERO_OK;
}

/* ---- reporting a step ---- */

static void report_progress(const run_t *run, const metrics_row_t *row)
{
    const options_t *o = run->options;
    double n_done = (double)(row->step - run->checkpoints.first_step + 1);
    double left_s = (clock_now_ms() - run->started_ms) / n_done * (double)(run->last_step - row->step) * 1e-3;
    long long left_min = (long long)(left_s / 60.0);
    char left[32];
    if (left_min < 60)
        snprintf(left, sizeof left, "%lld:%02d", left_min, (int)(left_s - 60.0 * (double)left_min));
    else
        snprintf(left, sizeof left, "%lld h %02d min", left_min / 60, (int)(left_min % 60));
    report("step %lld/%lld  loss %.4f  grad_norm %.3f  lr %.2e  %.0f tokens/s  %s left%s", (long long)row->step,
           (long long)run->last_step, (double)row->loss, (double)row->grad_norm, row->lr, row->tokens_per_s, left,
           row->skipped ? "  SKIPPED: gradients were not finite" : "");
    if (row->has_val_loss)
        report("step %lld/%lld  validation loss %.4f nats per %s", (long long)row->step, (long long)run->last_step,
               (double)row->val_loss, o->model.vocab_size == 256 ? "byte" : "token");
}

static bool is_due(int64_t step, int64_t every, int64_t last_step)
{
    return step == last_step || (every > 0 && step % every == 0);
}

/* Returns the resident memory of this process. Uses system calls: stdio would allocate, and a step allocates nothing.
 */
static uint64_t host_bytes(void)
{
    unsigned long long total = 0, resident = 0;
    char text[128];
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n_bytes = read(fd, text, sizeof text - 1);
    close(fd);
    text[n_bytes > 0 ? n_bytes : 0] = 0;
    if (sscanf(text, "%llu %llu", &total, &resident) != 2)
        return 0;
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Returns the seconds since 1970. */
static double clock_time_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static metrics_row_t make_row(run_t *run, const zero_step_result_t *result)
{
    const options_t *o = run->options;
    int64_t tokens = o->train.global_batch * o->model.seq_len, step = (int64_t)result->step;
    zero_memory_t held = zero_engine_memory(run->engine);
    double tokens_per_s = (double)tokens / result->step_ms * 1e3;
    model_fp8_range_t fp8 = model_take_fp8_range(&run->model);
    return (metrics_row_t){.step = step,
                           .time_s = clock_time_s(),
                           .loss = result->loss,
                           .grad_norm = result->grad_norm,
                           .lr = lr_at(o, step),
                           .skipped = result->skipped,
                           .tokens = checkpoints_sequences(&run->checkpoints, step) * o->model.seq_len,
                           .step_ms = result->step_ms,
                           .tokens_per_s = tokens_per_s,
                           .mfu = model_flops_utilization(&run->model, tokens_per_s, zero_comm_size(run->comm)),
                           .device_bytes = zero_memory_total(&held),
                           .host_bytes = host_bytes(),
                           .exposed_comm_ms = result->exposed_comm_ms,
                           .has_fp8_scales = fp8.is_known,
                           .fp8_min_scale = fp8.min_scale,
                           .fp8_max_scale = fp8.max_scale};
}

/* Ends the run with the steps that are queued, if any rank has announced a signal. All ranks learn of it from the
 * result of the same step. */
static void stop_on_signal(run_t *run, const zero_step_result_t *result)
{
    const char *dir = run->options->checkpoint.dir;
    int64_t end_step = (int64_t)result->step + run->n_queued;
    if (result->notice == 0 || end_step >= run->end_step)
        return;
    run->end_step = end_step;
    report("%s: stopping after step %lld of %lld%s%s", stop_signal_name((int)result->notice), (long long)end_step,
           (long long)run->last_step,
           dir[0] ? ", which is saved in " : "; nothing is saved: [checkpoint] dir is not set", dir);
}

/* Waits for the oldest queued step, reports it, and evaluates, samples and saves if that is due. */
static zero_status_t finish_step(run_t *run)
{
    const options_t *o = run->options;
    zero_step_result_t result;
    double val_loss = 0.0;
    zero_status_t status = zero_step_wait(run->engine, &result);
    if (status != ZERO_OK && status != ZERO_ERROR_NONFINITE) /* the latter has a result, which is reported first */
        return status;
    int64_t step = (int64_t)result.step;
    metrics_row_t row = make_row(run, &result);
    run->n_queued--;
    run->n_done++;
    run->n_skipped += result.skipped;
    if (status == ZERO_OK)
        stop_on_signal(run, &result);

    if (run->val && status == ZERO_OK && is_due(step, o->train.eval_every, run->last_step)) {
        TRY(evaluate(run, &val_loss));
        row.has_val_loss = true;
        row.val_loss = (float)val_loss;
    }
    /* Only rank 0 writes. If its disk is full it ends the run, and its peers notice at the next collective call. */
    TRY(metrics_write(run->metrics, &row));
    TRY(tensorboard_write(run->tensorboard, &row));
    if (result.skipped || row.has_val_loss || step == run->checkpoints.first_step ||
        is_due(step, o->log.every, run->end_step))
        report_progress(run, &row);
    TRY(status);
    if (o->train.sample_every > 0 && is_due(step, o->train.sample_every, run->last_step))
        TRY(show_sample(run));
    return checkpoints_after_step(&run->checkpoints, run->engine, step, run->end_step);
}

/* Returns whether the step must be waited for at once, because what follows it needs it done. */
static bool must_wait_now(const run_t *run, int64_t step)
{
    const options_t *o = run->options;
    return step == run->end_step || (run->val && is_due(step, o->train.eval_every, run->last_step)) ||
           (o->train.sample_every > 0 && is_due(step, o->train.sample_every, run->last_step)) ||
           checkpoints_are_due(&run->checkpoints, step, run->end_step);
}

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

/* ---- before and after ---- */

static zero_status_t open_data(run_t *run, const char *paths, uint64_t seed, data_t **data)
{
    const options_t *o = run->options;
    data_spec_t spec = {.paths = paths,
                        .format = (options_format_t)o->data.format,
                        .vocab_size = o->model.vocab_size,
                        .seq_len = o->model.seq_len,
                        .global_batch = o->train.global_batch,
                        .micro_batch = o->train.micro_batch,
                        .rank = zero_comm_rank(run->comm),
                        .world_size = zero_comm_size(run->comm),
                        .seed = seed,
                        .shuffle = true,
                        .separate = o->data.documents == DOCUMENTS_SEPARATE};
    return report_agree(run->comm, data_open(&spec, data));
}

/* Refuses data that differ from rank 0's: hosts that have copies of their own may have different ones. */
static zero_status_t compare_data(run_t *run, const char *key, const char *paths, const data_t *data,
                                  data_identity_t *identity)
{
    data_identity_t first;
    TRY(report_agree(run->comm, data_identity_read(paths, data_n_tokens(data), identity)));
    first = *identity;
    TRY(zero_comm_broadcast(run->comm, &first, sizeof first, 0));
    zero_status_t status = ZERO_OK;
    if (first.n_tokens != identity->n_tokens || first.sample != identity->sample)
        status = report_error(ZERO_ERROR_USAGE,
                              "[data] %s: %s has %" PRId64 " tokens here and %" PRId64
                              " on rank 0, or other ones: every host needs the same files",
                              key, paths, identity->n_tokens, first.n_tokens);
    return report_agree(run->comm, status);
}

/* Opens the checkpoint to resume from, and moves the data to where the previous run ended. */
static zero_status_t open_checkpoints(run_t *run)
{
    const options_t *o = run->options;
    data_identity_t data, val;
    TRY(compare_data(run, "train", o->data.train, run->train, &data));
    if (run->val)
        TRY(compare_data(run, "val", o->data.val, run->val, &val));
    TRY(checkpoints_open(run->options, run->comm, &data, &run->checkpoints));
    TRY(report_agree(run->comm, data_check_tokenizer(run->train, run->checkpoints.model_files.tokenizer)));
    if (run->val)
        TRY(report_agree(run->comm, data_check_tokenizer(run->val, run->checkpoints.model_files.tokenizer)));
    data_start_at(run->train, run->checkpoints.first_step - 1, run->checkpoints.sequences_before);
    return ZERO_OK;
}

/* Returns whether there are steps to make. A checkpoint may be of the last step or of a later one. */
static bool has_steps(const run_t *run)
{
    return run->checkpoints.first_step <= run->last_step;
}

static zero_status_t open_metrics(run_t *run)
{
    zero_status_t status = ZERO_OK;
    const options_t *o = run->options;
    char *info = NULL;
    TRY(run_info_text(o, run->comm, run->device, run->engine, zero_model_n_params(run->model.declaration), &info));
    if (zero_comm_rank(run->comm) == 0) /* first, since it removes nothing of an earlier run */
        status = tensorboard_open(o->log.tensorboard, &run->tensorboard);
    if (zero_comm_rank(run->comm) == 0 && status == ZERO_OK && o->resume)
        status = metrics_rewind(o->log.metrics, run->checkpoints.first_step - 1);
    if (zero_comm_rank(run->comm) == 0 && status == ZERO_OK)
        status = metrics_open(o->log.metrics, o->resume, &run->metrics);
    metrics_describe(run->metrics, info);
    return report_agree(run->comm, status);
}

/* Opens what the run will write. Called last, when everything else that could fail has succeeded on all ranks: until
 * here nothing of an earlier run has been touched. */
static zero_status_t open_outputs(run_t *run)
{
    if (!has_steps(run))
        return ZERO_OK;
    TRY(checkpoints_prepare(&run->checkpoints, run->model.declaration));
    TRY(trace_claim_file(run->trace));
    return open_metrics(run);
}

/* Opens the device. Called before anything is read or written: a missing device is a mistake in the configuration. */
static zero_status_t open_device(run_t *run)
{
    zero_device_type_t type = (zero_device_type_t)run->options->device.type;
    TRY(report_agree(run->comm, model_create(run->options, &run->model)));
    TRY(report_agree(run->comm, zero_device_create(type, run->comm, &run->device)));
    run->n_late = zero_device_get_type(run->device) == ZERO_DEVICE_CUDA ? 1 : 0;
    return ZERO_OK;
}

/* Takes the memory that is planned, and fills it. */
static zero_status_t take_memory(run_t *run)
{
    zero_memory_t user = {0};
    zero_config_t config = options_config(run->options, zero_comm_size(run->comm));
    model_plan(&run->model, &user);
    run->model.trace = run->trace;
    config.user_bytes = zero_memory_total(&user);
    TRY(zero_engine_create(run->comm, run->device, run->model.declaration, &config, &run->engine));
    TRY(zero_comm_agree(
        run->comm, model_attach(&run->model, run->device, run->engine, (int64_t)run->micro_steps * (run->n_late + 1))));
    TRY(zero_comm_agree(run->comm, trace_attach(run->trace, run->device, run->engine)));
    if (run->options->resume)
        return checkpoints_load(&run->checkpoints, run->engine);
    if (strcmp(run->options->model.init, "random") == 0)
        return zero_init_parameters(run->engine);
    return zero_load_weights(run->engine, run->options->model.init);
}

static zero_status_t create_engine(run_t *run)
{
    TRY(fit_check(run->options, run->comm, run->device, &run->planned));
    return fit_explain(take_memory(run), &run->planned, run->device);
}

/* Says what makes results depend on how many ranks or threads compute them, in their last bits. */
static void report_bits(const run_t *run)
{
    const options_t *o = run->options;
    bool is_on_cpu = zero_device_get_type(run->device) == ZERO_DEVICE_CPU;
    if (o->zero.stage < 2 && run->micro_steps > 1 && !o->zero.reduce_every_micro_step)
        report("[zero] reduce_every_micro_step = false: the last bits of results depend on the number of ranks");
    if (o->zero.reduction == REDUCTION_NCCL && is_on_cpu)
        report("[zero] reduction = nccl changes nothing here: on the CPU gradients are summed in the order of "
               "micro-batches");
    else if (o->zero.reduction == REDUCTION_NCCL)
        report("[zero] reduction = nccl: the last bits of results depend on the number of ranks");
    if (is_on_cpu)
        report("%d thread%s per rank (OMP_NUM_THREADS)%s", omp_get_max_threads(), omp_get_max_threads() == 1 ? "" : "s",
               model_bits_depend_on_threads() ? ": on this CPU the last bits of results depend on it" : "");
}

static void report_start(const run_t *run)
{
    const options_t *o = run->options;
    zero_memory_t held = zero_engine_memory(run->engine);
    report("%s of %.2fM parameters (%lld layers, dim %lld), %s, stage %lld on %d rank%s (%s), %.1f MiB each, on %s",
           run->model.ops->name, (double)zero_model_n_params(run->model.declaration) * 1e-6, (long long)o->model.layers,
           (long long)o->model.dim, zero_dtype_name((zero_dtype_t)o->train.precision), (long long)o->zero.stage,
           zero_comm_size(run->comm), zero_comm_size(run->comm) == 1 ? "" : "s", zero_engine_transport(run->engine),
           (double)zero_memory_total(&held) / 1048576.0,
           zero_device_get_type(run->device) == ZERO_DEVICE_CUDA ? "GPUs" : "the CPU");
    report("%lld training tokens; a step takes %lld sequences of %lld (%lld per rank, %d micro-step%s)",
           (long long)data_n_tokens(run->train), (long long)o->train.global_batch, (long long)o->model.seq_len,
           (long long)o->train.micro_batch, run->micro_steps, run->micro_steps == 1 ? "" : "s");
    if (o->train.fp8 != FP8_NONE)
        report("fp8: the 4 matrices of each layer, %s; all else is computed in bf16",
               o->train.fp8 == FP8_LINEAR ? "forward and both gradients" : "forward and the gradient of their input");
    if (o->zero.offload == OFFLOAD_OPTIMIZER && held.pinned_bytes > 0)
        report("%.1f MiB of AdamW's state and gradients are in pinned host memory",
               (double)held.pinned_bytes / 1048576.0);
    else if (o->zero.offload == OFFLOAD_OPTIMIZER && zero_device_get_type(run->device) == ZERO_DEVICE_CPU)
        report("[zero] offload = optimizer changes nothing here: on the CPU all state is in host memory");
    else if (o->zero.offload == OFFLOAD_OPTIMIZER)
        report("[zero] offload = optimizer: nothing is offloaded, all of AdamW's state is on the GPUs");
    report_bits(run);
    if (!has_steps(run)) {
        report("step %lld was the last one: there is nothing to do", (long long)run->last_step);
        return;
    }
    checkpoints_report(&run->checkpoints);
    if (o->log.metrics[0])
        report("metrics of every step go to %s", o->log.metrics);
    if (o->log.tensorboard[0])
        report("the TensorBoard event file is in %s", o->log.tensorboard);
    if (o->log.trace[0])
        report("a timeline of all ranks is written to %s when the run ends", o->log.trace);
}

/* Opens what turns samples into text, if there is such. A tokenizer that cannot be read costs no run. */
static void open_tokenizer(run_t *run)
{
    const options_t *o = run->options;
    if (o->train.sample_every > 0 && zero_comm_rank(run->comm) == 0)
        run->tokenizer = print_text_open(o->model.init, o->model.vocab_size);
}

static zero_status_t set_up(run_t *run)
{
    const options_t *o = run->options;
    TRY(report_agree(run->comm, zero_comm_rank(run->comm) == 0 ? named_files_check(o) : ZERO_OK));
    TRY(open_device(run));
    TRY(open_data(run, o->data.train, (uint64_t)o->train.seed, &run->train));
    if (o->data.val[0])
        TRY(open_data(run, o->data.val, EVALUATION_SEED, &run->val));
    run->model.may_skip_targets = data_has_mask(run->train) || (run->val && data_has_mask(run->val));
    TRY(open_checkpoints(run));
    open_tokenizer(run);
    TRY(trace_open(o->log.trace, run->comm, run->model.declaration, &run->trace));
    TRY(create_engine(run));
    TRY(model_compare_cpus(run->device, run->comm));
    return open_outputs(run);
}

/* Returns how a run ended that has not failed. One in which no step changed the weights counts as a failure. */
static loop_end_t end_of(const run_t *run)
{
    if (run->end_step != run->last_step)
        return run->options->checkpoint.dir[0] ? LOOP_STOPPED_SAVED : LOOP_STOPPED_UNSAVED;
    if (run->n_done == 0 || run->n_skipped < run->n_done)
        return LOOP_COMPLETE;
    report("all steps of this run (%lld) were skipped, so the weights have not changed: gradients were not finite; %s",
           (long long)run->n_done,
           run->options->train.precision == ZERO_FP16
               ? "fp16's loss scale may need more steps to settle, else look at the data and the initial weights"
               : "lower the learning rate, or look at the data and the initial weights");
    return LOOP_ALL_SKIPPED;
}

static void close_files(run_t *run)
{
    checkpoints_close(&run->checkpoints);
    metrics_close(run->metrics);
    tensorboard_close(run->tensorboard);
}

zero_status_t loop_run(const options_t *options, zero_comm_t *comm, loop_end_t *end)
{
    run_t run = {.options = options, .comm = comm};
    run.micro_steps = options_micro_steps(options, zero_comm_size(comm));
    run.last_step = options->train.steps;
    if (options->stop_after > 0 && options->stop_after < run.last_step)
        run.last_step = options->stop_after;
    run.end_step = run.last_step;

    zero_status_t status = report_agree(comm, set_up(&run));
    report_hold_errors(false); /* from here on, ranks fail alone and at any point */
    if (status == ZERO_OK) {
        report_start(&run);
        status = fit_explain(loop(&run), &run.planned, run.device); /* CUDA allocates graphs in the first steps */
    }
    loop_end_t reached = LOOP_COMPLETE;
    if (status == ZERO_OK)
        reached = end_of(&run);
    if (status == ZERO_OK && (reached == LOOP_COMPLETE || reached == LOOP_STOPPED_SAVED))
        status = checkpoints_remove_memory(&run.checkpoints);
    if (status == ZERO_ERROR_NONFINITE) /* on all ranks: complete a save of good weights */
        checkpoints_finish(&run.checkpoints);
    close_files(&run);
    /* ZERO_ERROR_NONFINITE ends the run on all ranks together. After any other failure peers may be lost. */
    zero_status_t traced = trace_close(run.trace, status == ZERO_OK || status == ZERO_ERROR_NONFINITE);
    if (status == ZERO_OK)
        status = traced;
    /* One of several ranks that failed must not wait for the others here, nor its device for theirs: it keeps its
     * engine and what that uses, and main aborts the job. */
    if (status == ZERO_OK || !run.engine || zero_comm_size(comm) == 1) {
        model_destroy(&run.model);
        zero_engine_destroy(run.engine);
        zero_device_destroy(run.device);
    }
    tokenizer_close(run.tokenizer);
    data_close(run.val);
    data_close(run.train);
    if (status == ZERO_OK)
        *end = reached;
    return status;
}
