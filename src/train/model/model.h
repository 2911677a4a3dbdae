/* model.h - a transformer: what the training loop calls, and the table that an architecture fills in.
 *
 * An architecture (gpt2.c, llama.c) declares units and tensors, allocates its activations, and computes the embedding,
 * one block or the head, forward or backward. model.c walks the units through libzero: acquire, compute, release.
 */
#ifndef ZEROTRAIN_MODEL_H
#define ZEROTRAIN_MODEL_H

#include "kernels/model/model.h"
#include "train/model/activations.h"
#include "train/options/options.h"
#include "train/model/cuda_graphs.h"
#include "train/report/trace.h"

typedef enum model_pass { MODEL_TRAIN, MODEL_LOSS, MODEL_LOGITS } model_pass_t;
typedef struct layer_activations layer_activations_t;
typedef struct fp8 fp8_t;

/* Units: 0 is the embedding, then come the blocks, then the head. */
typedef struct model_ops {
    const char *name;            /* as its users write it */
    size_t bytes, block_bytes;   /* of model->arch: bytes, and block_bytes for each layer */
    int mlp_inputs;              /* matrices [dim, ffn_dim] that the MLP's input is multiplied by, side by side */
    zero_linear_layout_t layout; /* of every linear layer's weight */
    bool norms_keep_means;       /* forward keeps each row's mean, and not only its rstd, for backward */
    bool shares_normed;          /* recompute = light: both norms of a block write to one buffer */

    /* Declares units and tensors into model->declaration, in forward order, under Hugging Face's names. */
    zero_status_t (*declare)(model_t *model);
    /* Returns the number of parameters that are looked up by token or position and never multiplied by. */
    int64_t (*n_lookup_params)(const model_t *model);
    /* Allocates all activations for the largest pass. Called once to count them and once to get them. */
    void (*allocate)(const model_t *model, activations_t *activations);
    /* Each computes one unit, which is acquired. head_forward computes the loss or the logits, but nothing in a
     * training pass: there head_backward computes loss and gradient together. */
    zero_status_t (*embed_forward)(model_t *model);
    zero_status_t (*block_forward)(model_t *model, int layer);
    zero_status_t (*head_forward)(model_t *model);
    zero_status_t (*embed_backward)(model_t *model);
    zero_status_t (*block_backward)(model_t *model, int layer);
    zero_status_t (*head_backward)(model_t *model);
} model_ops_t;

struct model {
    const model_ops_t *ops;
    const options_t *options;
    zero_model_t *declaration;
    zero_device_t *device; /* NULL until model_attach, as is engine */
    zero_engine_t *engine;
    trace_t *trace; /* may ask for a pause before each unit; NULL: there is none */
    const zero_model_kernels_t *kernels;
    zero_model_context_t ctx;
    zero_stream_t stream;        /* for all of the model's work */
    bool attached;               /* ctx has been created */
    void *arch;                  /* the architecture's own: tensor ids, buffers that blocks share */
    layer_activations_t *layers; /* [layers] */
    fp8_t *fp8;                  /* NULL: no linear layer is computed in fp8 */
    cuda_graphs_t *graphs;       /* NULL: every kernel is launched on its own */
    int n_trained;               /* micro-steps so far, up to CUDA_GRAPHS_WARM_UP */

    /* A target may be ZERO_NO_TARGET, and loss_weight differs from step to step. Set before model_attach. */
    bool may_skip_targets;

    /* The current pass. */
    model_pass_t pass;
    size_t n_batch, seq_len; /* sequences, positions: rows are their product */
    int32_t *tokens;         /* device, int32 [n_batch, seq_len] */
    int32_t *targets;        /* device, int32 [n_batch, seq_len] */
    int32_t *starts;  /* device, int32 [n_batch, seq_len]: zero_mask_t; NULL: a sequence is one document; see continues
                       */
    int32_t *uploads; /* host, pinned: a ring of n_uploads batches, all of their arrays, on their way to the device */
    int64_t n_uploads, next_upload;
    double loss_weight; /* of each token's loss */
    double *loss;       /* device: += this pass's weighted losses */
    float *logits;      /* device, fp32 [vocab_size]: of position logits_at, MODEL_LOGITS */
    size_t logits_at;

    /* Text that grows: keys and values of its positions so far, of every layer. */
    void *cache;     /* device, activations [layers][seq_len][2 * kv_heads * head_dim]; NULL: there is none */
    size_t n_cached; /* positions */
    bool continues;  /* this pass has the positions from n_cached on */
    int n_continued; /* passes with one such position after others, up to CUDA_GRAPHS_WARM_UP */
};

/* Declares the model that the options ask for. Needs no device and no other rank. */
zero_status_t model_create(const options_t *options, model_t *model);
/* Says so if the ranks' CPUs compute with different kernels: a rank's bits then depend on its host. [collective] */
zero_status_t model_compare_cpus(zero_device_t *device, zero_comm_t *comm);
/* Returns whether the last bits of what this CPU computes depend on the number of threads. */
bool model_bits_depend_on_threads(void);
/* Adds the bytes that the model needs beside what libzero plans: activations, workspace, data. Before model_attach. */
void model_plan(const model_t *model, zero_memory_t *memory);
/* Allocates them. n_in_flight: training batches that may be queued before the oldest is computed. Refuses fp8 where the
 * device has none. */
zero_status_t model_attach(model_t *model, zero_device_t *device, zero_engine_t *engine, int64_t n_in_flight);
void model_destroy(model_t *model);

/* A batch, in host memory, each int32 [micro_batch, seq_len]. */
typedef struct model_batch {
    const int32_t *inputs, *targets;
    const int32_t *starts; /* as in zero_mask_t; only with [data] documents = separate */
} model_batch_t;

/* Queues one micro-step: copies the batch (the caller may reuse it on return), runs forward and backward, and starts to
 * reduce the gradients. *model->loss grows by loss_weight * the sum of the batch's token losses. */
zero_status_t model_train(model_t *model, model_batch_t batch, double loss_weight);
/* Queues a forward pass, with the same effect on *model->loss. */
zero_status_t model_loss(model_t *model, model_batch_t batch, double loss_weight);
/* The same for the first n_sequences of the batch alone: 1..micro_batch. */
zero_status_t model_loss_of(model_t *model, size_t n_sequences, model_batch_t batch, double loss_weight);
/* Computes the logits (host, fp32 [vocab_size]) of the token after `tokens` (host, 1..seq_len of them). */
zero_status_t model_logits(model_t *model, const int32_t *tokens, size_t n_tokens, float *logits);
/* The same, of a text that grows from call to call: where there is a cache, only what is new is computed. Another text
 * begins with model_forget. */
zero_status_t model_next_logits(model_t *model, const int32_t *tokens, size_t n_tokens, float *logits);
void model_forget(model_t *model);
/* Copies *model->loss to the host, then clears it. */
zero_status_t model_take_loss(model_t *model, double *loss);
zero_status_t model_clear_loss(model_t *model);

/* The smallest and the largest scale with which a step's last micro-step cast to fp8, on this rank. */
typedef struct model_fp8_range {
    bool is_known; /* there is fp8 */
    float min_scale, max_scale;
} model_fp8_range_t;

/* Queues a copy of the scales to the host, before zero_step. */
zero_status_t model_put_fp8_range(model_t *model);
/* Returns what the oldest copy holds. The step has been waited for. */
model_fp8_range_t model_take_fp8_range(model_t *model);

/* Returns the floating-point operations of forward and backward for one token, counted as usual: 6 per parameter that
 * multiplies, and causal attention at half, or what its window leaves. */
double model_flops_per_token(const model_t *model);
/* Returns the share of the devices' peak that this many tokens a second use; negative if the peak is not known. */
double model_flops_utilization(const model_t *model, double tokens_per_s, int n_devices);

/* Return what the engine holds of the acquired unit's tensor, for an architecture's compute functions. While a CUDA
 * graph is captured, they also note the answer. */
zero_weight_t model_weight(const model_t *model, zero_tensor_t tensor);
zero_fp8_param_t model_fp8_weight(const model_t *model, zero_tensor_t tensor); /* data is NULL: it is in bf16 */
zero_grad_t model_grad(const model_t *model, zero_tensor_t tensor);

extern const model_ops_t gpt2_ops, llama_ops;

#endif
