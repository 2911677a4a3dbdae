/* model.h - a transformer as the training loop sees it, and as an architecture fills it in.
 *
 * An architecture (gpt2.c, llama.c) is a row in a table: it declares units and tensors, sizes its activations, and
 * computes one unit forward or backward. model.c walks the units through libzero: acquire, compute, release.
 */
#ifndef ZEROTRAIN_MODEL_H
#define ZEROTRAIN_MODEL_H

#include "kernels/model/model.h"
#include "train/model/activations.h"
#include "train/options/options.h"
#include "train/model/cuda_graphs.h"
#include "train/report/trace.h"

typedef enum model_pass { MODEL_TRAIN, MODEL_LOSS, MODEL_LOGITS } model_pass_t;

typedef struct model_ops {
    const char *name; /* as its users write it */
    int mlp_inputs;   /* matrices [dim, ffn_dim] that the MLP's input meets, side by side */
    /* Declares units and tensors into model->declaration, in forward order, under Hugging Face's names. */
    zero_status_t (*declare)(model_t *model);
    /* Takes the memory of all activations, of the largest pass; called once to count it and once to have it. */
    void (*place)(const model_t *model, activations_t *activations);
    /* One unit, which is acquired. The last unit's forward computes the loss or the logits unless the pass trains; its
     * backward computes loss and gradient together. */
    zero_status_t (*forward)(model_t *model, zero_unit_t unit);
    zero_status_t (*backward)(model_t *model, zero_unit_t unit);
    void (*destroy)(model_t *model);
    /* Floating-point operations of forward and backward for one token, by the usual count: 6 per parameter that
     * multiplies, and causal attention at half. */
    double (*flops_per_token)(const model_t *model);
} model_ops_t;

struct model {
    const model_ops_t *ops;
    const options_t *options;
    zero_model_t *declaration;
    zero_device_t *device; /* NULL until model_attach, as is engine */
    zero_engine_t *engine;
    trace_t *trace; /* may ask for a pause before each unit; NULL: none is written */
    const zero_model_kernels_t *kernels;
    zero_model_context_t ctx;
    zero_stream_t stream;      /* all of the model's work is queued in */
    bool attached;             /* ctx is there */
    void *arch;                /* the architecture's own: tensor ids, activations */
    cuda_graphs_t *recordings; /* NULL: every pass is queued anew */
    int n_trained;             /* micro-steps so far, up to RECORDINGS_WARM_UP */

    /* The pass at hand. */
    model_pass_t pass;
    size_t n_batch, seq_len; /* sequences, positions: rows are their product */
    int32_t *tokens;         /* device, int32 [n_batch, seq_len] */
    int32_t *targets;        /* device, int32 [n_batch, seq_len] */
    int32_t *uploads; /* host, pinned: batches on their way to the device, a ring of n_uploads inputs and targets */
    int64_t n_uploads, next_upload;
    double loss_weight; /* of each token's loss */
    double *loss;       /* device: += this pass's weighted losses */
    float *logits;      /* device, fp32 [vocab_size]: of position logits_at, MODEL_LOGITS */
    size_t logits_at;
};

/* Declares the options' model. Pure: no device, no ranks. */
zero_status_t model_create(const options_t *options, model_t *model);
/* Bytes the model will take beside what libzero plans: activations, workspace, data. Before model_attach. */
void model_plan(const model_t *model, zero_memory_t *memory);
/* Allocates them. n_in_flight: batches of training that may be queued before the oldest of them is computed. */
zero_status_t model_attach(model_t *model, zero_device_t *device, zero_engine_t *engine, int64_t n_in_flight);
void model_destroy(model_t *model);

/* One micro-step: copies the batch (host, int32 [micro_batch, seq_len]; free again on return), forward, backward,
 * gradients on their way.
 * *model->loss grows by loss_weight * the batch's token losses. */
zero_status_t model_train(model_t *model, const int32_t *inputs, const int32_t *targets, double loss_weight);
/* Forward alone; the same loss. */
zero_status_t model_loss(model_t *model, const int32_t *inputs, const int32_t *targets, double loss_weight);
/* Logits (host, fp32 [vocab_size]) of what follows `tokens` (host, 1..seq_len of them). */
zero_status_t model_logits(model_t *model, const int32_t *tokens, size_t n_tokens, float *logits);
/* *model->loss to the host, then zero. */
zero_status_t model_take_loss(model_t *model, double *loss);
zero_status_t model_clear_loss(model_t *model);

/* Share of the devices' peak that so many tokens a second are; negative where the peak is not known. */
double model_flops_utilization(const model_t *model, double tokens_per_s, int n_devices);

/* Of the unit that is acquired, for an architecture's compute functions: these are the engine's, and noted where a
 * recording is being made. */
zero_weight_t model_weight(const model_t *model, zero_tensor_t tensor);
zero_grad_t model_grad(const model_t *model, zero_tensor_t tensor);

extern const model_ops_t gpt2_ops, llama_ops;

#endif
