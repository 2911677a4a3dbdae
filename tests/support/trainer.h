/* trainer.h - zerotrain's own model and engine without its loop: what tests of whole steps share.
 *
 * A test fills options by hand (trainer_options) or reads them from a file, opens the trainer as the loop does, loads
 * weights in its own way and makes steps from batches that it chooses. Collective if there are several ranks. Statuses
 * are returned; the caller checks them.
 */
#ifndef ZERO_TEST_TRAINER_H
#define ZERO_TEST_TRAINER_H

#include "train/model/model.h"
#include "train/model/sequence.h"
#include "train/options/options_table.h"
#include "train/report/report.h"

typedef struct trainer {
    const options_t *options; /* resolved; the caller's, outlives the trainer */
    zero_comm_t *comm;        /* also the caller's, and outlives the trainer */
    zero_device_t *device;
    model_t model;
    zero_engine_t *engine;
    const int32_t *starts; /* the caller's, of all batches: only with documents = separate */
} trainer_t;

/* Defaults, fp32, a GPT-2 of these sizes. What else a test wants it sets, and then calls options_resolve. */
static inline options_t trainer_options(int64_t layers, int64_t dim, int64_t heads, int64_t vocab_size, int64_t seq_len)
{
    options_t options;
    options_set_defaults(&options);
    options.model.layers = layers;
    options.model.dim = dim;
    options.model.heads = heads;
    options.model.vocab_size = vocab_size;
    options.model.seq_len = seq_len;
    options.train.precision = ZERO_FP32;
    return options;
}

/* Declares and creates: model_attach is next. The caller closes it whatever is returned. */
static inline zero_status_t trainer_prepare(trainer_t *t, const options_t *options, zero_comm_t *comm)
{
    *t = (trainer_t){.options = options, .comm = comm};
    zero_config_t config = options_config(options, zero_comm_size(comm));
    ZERO_TRY(model_create(options, &t->model));
    ZERO_TRY(zero_device_create(ZERO_DEVICE_CPU, comm, &t->device));
    return zero_engine_create(comm, t->device, t->model.declaration, &config, &t->engine);
}

/* The same, and attaches; weights are zero. */
static inline zero_status_t trainer_open(trainer_t *t, const options_t *options, zero_comm_t *comm)
{
    ZERO_TRY(trainer_prepare(t, options, comm));
    ZERO_TRY(sequence_create(&t->model, zero_comm_rank(comm)));
    ZERO_TRY(model_attach(&t->model, t->device, t->engine, 1));
    return sequence_attach(&t->model);
}

static inline void trainer_close(trainer_t *t)
{
    model_destroy(&t->model);
    zero_engine_destroy(t->engine);
    zero_device_destroy(t->device);
    *t = (trainer_t){0};
}

/* One step on this rank's share of a global batch: int32 [n_micro_steps * micro_batch, seq_len], micro-steps one after
 * another. The loss is the mean over the global batch. */
static inline zero_status_t trainer_step(trainer_t *t, const int32_t *inputs, const int32_t *targets, double lr,
                                         zero_step_result_t *result)
{
    const options_t *o = t->options;
    int64_t tokens_each = o->train.micro_batch * o->model.seq_len;
    double loss_weight = 1.0 / (double)(o->train.global_batch * o->model.seq_len);
    ZERO_TRY(model_clear_loss(&t->model));
    for (int k = 0; k < options_micro_steps(&o->train, zero_comm_size(t->comm)); k++)
        ZERO_TRY(model_train(&t->model,
                             (model_batch_t){.inputs = inputs + k * tokens_each,
                                             .targets = targets + k * tokens_each,
                                             .starts = t->starts ? t->starts + k * tokens_each : NULL},
                             loss_weight));
    ZERO_TRY(zero_step(t->engine, (float)lr, t->model.loss, t->model.ctx.stream));
    return zero_step_wait(t->engine, result);
}

#endif
