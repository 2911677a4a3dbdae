/* model_passes.c - walks a model through libzero, unit by unit: the same for every architecture. A training pass goes
 * forward and backward; passes that only compute a loss, or the logits of a text, go forward. */
#include "train/model/model.h"

#include <string.h>

#include "train/model/arch.h"
#include "train/model/cuda_graphs.h"
#include "train/model/sequence.h"
#include "train/report/report.h"

/* Returns whether a unit's kernels get other numbers in every step. */
static bool varies(const model_t *model, zero_unit_t unit)
{
    return model->may_skip_targets && unit > model->options->model.layers;
}

/* Computes a unit of a pass that continues a text by one position: a graph of its own. */
static zero_status_t continue_unit(model_t *model, zero_unit_t unit)
{
    return model->ops->forward(model, unit);
}

/* Returns whether the pass has one position, which others precede: what differs from pass to pass is on the device. */
static bool continues_by_one(const model_t *model)
{
    return model->pass == MODEL_LOGITS && model->continues && model->n_cached > 0 && model->seq_len == 1;
}

/* Computes one unit. Every training pass is the same, and so is every pass that continues a text by one position; so
 * after a warm-up each unit's kernels run as a CUDA graph, but for a head whose loss_weight varies. */
static zero_status_t compute(model_t *model, zero_unit_t unit, zero_status_t (*fn)(model_t *model, zero_unit_t unit))
{
    if (model->graphs && continues_by_one(model) && model->n_continued == CUDA_GRAPHS_WARM_UP)
        return cuda_graphs_run(model->graphs, model, unit, continue_unit);
    if (model->graphs && model->pass == MODEL_TRAIN && model->n_trained == CUDA_GRAPHS_WARM_UP && !varies(model, unit))
        return cuda_graphs_run(model->graphs, model, unit, fn);
    return fn(model, unit);
}

/* ---- stash ---- */
/* A training pass stashes the inputs of the first layers. The first one is written by the embedding's forward, each
 * other one by its own layer's. */

static bool is_stashed(const model_t *model, int layer)
{
    return model->pass == MODEL_TRAIN && zero_stash_buffer(model->stash, layer) != NULL;
}

static zero_status_t begin_write(model_t *model, zero_unit_t unit)
{
    const int layer = unit == 0 ? 0 : unit - 1;
    return unit != 1 && is_stashed(model, layer) ? zero_stash_begin_write(model->stash, layer, model->ctx.stream)
                                                 : ZERO_OK;
}

static zero_status_t end_write(model_t *model, zero_unit_t unit)
{
    const int layer = unit - 1;
    return is_stashed(model, layer) ? zero_stash_end_write(model->stash, layer, model->ctx.stream) : ZERO_OK;
}

static zero_status_t begin_read(model_t *model, zero_unit_t unit)
{
    const int layer = unit - 1;
    return is_stashed(model, layer) ? zero_stash_begin_read(model->stash, layer, model->ctx.stream) : ZERO_OK;
}

static zero_status_t end_read(model_t *model, zero_unit_t unit)
{
    const int layer = unit - 1;
    return is_stashed(model, layer) ? zero_stash_end_read(model->stash, layer, model->ctx.stream) : ZERO_OK;
}

/* ---- passes ---- */

static zero_status_t forward(model_t *model, zero_pass_t pass)
{
    zero_stream_t stream = model->ctx.stream;
    ZERO_TRY(zero_begin(model->engine, pass, stream));
    for (zero_unit_t unit = 0; unit < zero_model_n_units(model->declaration); unit++) {
        ZERO_TRY(begin_write(model, unit));
        ZERO_TRY(zero_acquire(model->engine, unit, stream));
        ZERO_TRY(compute(model, unit, model->ops->forward));
        ZERO_TRY(end_write(model, unit));
        ZERO_TRY(zero_release(model->engine, unit, stream));
    }
    return ZERO_OK;
}

static zero_status_t backward(model_t *model)
{
    zero_stream_t stream = model->ctx.stream;
    for (zero_unit_t unit = zero_model_n_units(model->declaration) - 1; unit >= 0; unit--) {
        ZERO_TRY(begin_read(model, unit));
        ZERO_TRY(zero_acquire(model->engine, unit, stream));
        ZERO_TRY(compute(model, unit, model->ops->backward));
        ZERO_TRY(end_read(model, unit));
        ZERO_TRY(zero_grad_ready(model->engine, unit, stream));
    }
    return ZERO_OK;
}

static zero_status_t upload(model_t *model, void *dst, const void *src, size_t n_bytes)
{
    return zero_device_copy(model->device, dst, src, n_bytes, model->ctx.stream);
}

/* Sets where the documents of this rank's rows begin, counted from its first position. starts: of all positions; NULL:
 * a sequence is one document. */
static void set_part_starts(const model_t *model, const int32_t *starts, int32_t *part_starts)
{
    const size_t T = (size_t)model->options->model.seq_len, first = sequence_begin(model);
    for (size_t b = 0; b < model->n_batch; b++)
        for (size_t t = 0; t < model->seq_len; t++)
            part_starts[b * model->seq_len + t] = (starts ? starts[b * T + first + t] : 0) - (int32_t)first;
}

/* Stages an array in pinned memory at *staged, moves that on, and copies it to the device. */
static zero_status_t upload_array(model_t *model, void *dst, const int32_t *src, size_t n, int32_t **staged)
{
    int32_t *array = *staged;
    if (src != array)
        memcpy(array, src, n * sizeof *src);
    *staged += n;
    return upload(model, dst, array, n * sizeof *src);
}

/* Copies a batch to the device. It is staged in pinned memory, so that neither the caller nor the host has to wait for
 * the copy. Training never has more batches in flight than the ring has entries. Evaluation might, since its passes are
 * not waited for one by one; so it waits for the device once per turn of the ring. */
static zero_status_t upload_batch(model_t *model, model_pass_t pass, model_batch_t batch)
{
    const size_t n_rows = model->n_batch * model->seq_len;
    const size_t n_all = model->n_batch * (size_t)model->options->model.seq_len;
    if (pass == MODEL_LOSS && model->next_upload == 0)
        ZERO_TRY(zero_device_synchronize(model->device));
    int32_t *staged = model->uploads + (size_t)model->next_upload * model_batch_elems(model);
    model->next_upload = (model->next_upload + 1) % model->n_uploads;
    ZERO_TRY(upload_array(model, model->tokens, batch.inputs, n_rows, &staged));
    ZERO_TRY(upload_array(model, model->targets, batch.targets, n_rows, &staged));
    if (model->starts)
        ZERO_TRY(upload_array(model, model->starts, batch.starts, n_all, &staged));
    if (model->documents)
        ZERO_TRY(upload_array(model, model->documents, batch.documents, n_rows + 1, &staged));
    if (!model->part_starts)
        return ZERO_OK;
    set_part_starts(model, model->starts ? batch.starts : NULL, staged);
    return upload_array(model, model->part_starts, staged, n_rows, &staged);
}

static zero_status_t set_batch(model_t *model, model_pass_t pass, model_batch_t batch, double loss_weight)
{
    model->pass = pass;
    model->n_batch = (size_t)model->options->train.micro_batch;
    model->seq_len = sequence_len(model);
    model->loss_weight = loss_weight;
    return upload_batch(model, pass, batch);
}

zero_status_t model_train(model_t *model, model_batch_t batch, double loss_weight)
{
    ZERO_TRY(set_batch(model, MODEL_TRAIN, batch, loss_weight));
    ZERO_TRY(forward(model, ZERO_PASS_TRAIN));
    ZERO_TRY(backward(model));
    model->n_trained += model->n_trained < CUDA_GRAPHS_WARM_UP;
    return ZERO_OK;
}

zero_status_t model_loss(model_t *model, size_t n_sequences, model_batch_t batch, double loss_weight)
{
    ZERO_TRY(set_batch(model, MODEL_LOSS, batch, loss_weight));
    model->n_batch = n_sequences;
    return forward(model, ZERO_PASS_EVAL);
}

/* Lengths are rounded up to a multiple of this, so that a growing text has few different shapes: a GPU's libraries plan
 * each one anew. The positions after the text change nothing before them, since attention is causal. */
#define LOGITS_ROUND 64

size_t model_longest_text(const model_t *model)
{
    return arch_largest_sizes(model).T;
}

static size_t rounded_length(const model_t *model, size_t n_tokens)
{
    size_t longest = model_longest_text(model);
    size_t rounded = (n_tokens + LOGITS_ROUND - 1) / LOGITS_ROUND * LOGITS_ROUND;
    return rounded < longest ? rounded : longest;
}

/* Sets the tokens of a pass: zeros behind the n_tokens given. */
static zero_status_t set_tokens(model_t *model, const int32_t *tokens, size_t n_tokens)
{
    size_t n_rows = model->n_batch * model->seq_len;
    if (n_tokens < n_rows)
        ZERO_TRY(model->kernels->zero_fill(&model->ctx, model->tokens, n_rows * sizeof *tokens));
    return upload(model, model->tokens, tokens, n_tokens * sizeof *tokens);
}

/* Computes the pass and waits for the logits of row n_tokens - 1. */
static zero_status_t take_logits(model_t *model, size_t n_tokens, float *logits)
{
    model->logits_at = n_tokens - 1;
    ZERO_TRY(forward(model, ZERO_PASS_EVAL));
    ZERO_TRY(zero_device_copy(model->device, logits, model->logits,
                              (size_t)model->options->model.vocab_size * sizeof(float), model->ctx.stream));
    return zero_device_synchronize(model->device);
}

zero_status_t model_logits(model_t *model, const int32_t *tokens, size_t n_tokens, float *logits)
{
    model->pass = MODEL_LOGITS;
    model->n_batch = 1;
    model->seq_len = rounded_length(model, n_tokens);
    if (model->fp8 && model->seq_len % OPTIONS_FP8_MULTIPLE != 0) { /* a whole batch has rows enough */
        model->n_batch = (size_t)model->options->train.micro_batch;
        model->seq_len = model_longest_text(model);
    }
    ZERO_TRY(set_tokens(model, tokens, n_tokens));
    return take_logits(model, n_tokens, logits);
}

void model_forget(model_t *model)
{
    model_keep(model, 0);
}

void model_keep(model_t *model, size_t n_tokens)
{
    if (n_tokens < model->n_cached)
        model->n_cached = n_tokens;
}

/* Sets the new tokens and, for each, how many positions precede them. They are staged in pinned memory, which is free:
 * the last pass has been waited for. */
static zero_status_t set_new_tokens(model_t *model, const int32_t *tokens, size_t n_tokens)
{
    int32_t *staged = model->uploads, *starts = staged + n_tokens;
    memcpy(staged, tokens, n_tokens * sizeof *tokens);
    ZERO_TRY(set_tokens(model, staged, n_tokens));
    if (model->n_cached == 0)
        return ZERO_OK;
    for (size_t i = 0; i < n_tokens; i++)
        starts[i] = -(int32_t)model->n_cached;
    return upload(model, model->starts, starts, n_tokens * sizeof *starts);
}

zero_status_t model_next_logits(model_t *model, const int32_t *tokens, size_t n_tokens, float *logits)
{
    size_t n_new = n_tokens - model->n_cached;
    bool rounds = model->n_cached == 0 && zero_device_get_type(model->device) != ZERO_DEVICE_CPU;
    if (!model->cache)
        return model_logits(model, tokens, n_tokens, logits);
    model->pass = MODEL_LOGITS;
    model->n_batch = 1;
    model->seq_len = rounds ? rounded_length(model, n_new) : n_new;
    ZERO_TRY(set_new_tokens(model, tokens + model->n_cached, n_new));
    model->continues = true;
    zero_status_t status = take_logits(model, n_new, logits);
    model->n_continued += continues_by_one(model) && model->n_continued < CUDA_GRAPHS_WARM_UP;
    model->continues = false;
    ZERO_TRY(status);
    model->n_cached = n_tokens;
    return ZERO_OK;
}

zero_status_t model_clear_loss(model_t *model)
{
    return model->kernels->zero_fill(&model->ctx, model->loss, model_n_sums(model) * sizeof *model->loss);
}

zero_status_t model_take_loss(model_t *model, double *loss)
{
    ZERO_TRY(zero_device_copy(model->device, loss, model->loss, model_n_sums(model) * sizeof *loss, model->ctx.stream));
    ZERO_TRY(zero_device_synchronize(model->device));
    return model_clear_loss(model);
}
