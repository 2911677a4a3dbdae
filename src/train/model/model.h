/* model.h - a transformer: what the training loop and the forward commands call. */
#ifndef ZEROTRAIN_MODEL_H
#define ZEROTRAIN_MODEL_H

#include "train/model/model_state.h"

/* Declares the model that the options ask for. Needs no device and no other rank. */
zero_status_t model_create(const options_t *options, model_t *model);
/* Says so if the ranks' CPUs compute with different kernels: a rank's bits then depend on its host. [collective] */
zero_status_t model_compare_cpus(zero_device_t *device, zero_comm_t *comm);
/* Returns whether the last bits of what this CPU computes depend on the number of threads. */
bool model_bits_depend_on_threads(void);
/* Adds the bytes that the model needs in addition to libzero's plan: activations, workspace, data. Before model_attach.
 */
void model_plan(const model_t *model, zero_memory_t *memory);
/* Allocates them. n_in_flight: training batches that may be queued before the oldest is computed. Refuses fp8 where the
 * device has none. */
zero_status_t model_attach(model_t *model, zero_device_t *device, zero_engine_t *engine, int64_t n_in_flight);
void model_destroy(model_t *model);
/* Returns the bytes of heads and positions that a rank receives in a micro-step, if ranks share sequences. */
uint64_t sequence_exchanged_bytes(const model_t *model);
/* Returns how many sums a pass adds to: the loss, and behind it those of pairs. */
size_t model_n_sums(const model_t *model);
/* Returns the numbers of a batch on its way to the device. */
size_t model_batch_elems(const model_t *model);
/* Returns the longest text that model_logits takes: seq_len, or, if ranks share sequences, a rank's part of it. */
size_t model_longest_text(const model_t *model);

/* A batch, in host memory: int32 [micro_batch, this rank's part of seq_len]. */
typedef struct model_batch {
    const int32_t *inputs, *targets;
    const int32_t *starts;    /* [micro_batch, seq_len], as in zero_mask_t; only with [data] documents = separate */
    const int32_t *documents; /* [micro_batch * seq_len + 1], as in zero_pair_loss_t; only of pairs */
} model_batch_t;

/* Queues one micro-step: copies the batch (the caller may reuse it on return), runs forward and backward, and starts to
 * reduce the gradients. *model->loss grows by loss_weight * the sum of the losses of the batch's tokens, or pairs. */
zero_status_t model_train(model_t *model, model_batch_t batch, double loss_weight);
/* Queues a forward pass over the first n_sequences of the batch, 1..micro_batch, with the same effect on *model->loss.
 */
zero_status_t model_loss(model_t *model, size_t n_sequences, model_batch_t batch, double loss_weight);
/* Computes the logits (host, fp32 [vocab_size]) of the token after `tokens` (host, 1..seq_len of them). */
zero_status_t model_logits(model_t *model, const int32_t *tokens, size_t n_tokens, float *logits);
/* The same, of a text that grows from call to call: where there is a cache, only what is new is computed. Another text
 * begins with model_forget, or with model_keep if its first n_tokens are those of the last one. At least one token is
 * new in a call. */
zero_status_t model_next_logits(model_t *model, const int32_t *tokens, size_t n_tokens, float *logits);
void model_forget(model_t *model);
void model_keep(model_t *model, size_t n_tokens);
/* Copies *model->loss and the sums behind it, model_n_sums, to the host, then clears them. */
zero_status_t model_take_loss(model_t *model, double *loss);
zero_status_t model_clear_loss(model_t *model);

/* Returns the floating-point operations of forward and backward for one token, counted as usual: 6 per parameter that
 * multiplies, 4 if it is frozen, and causal attention at half, or what its window leaves. A reference is a forward
 * more. */
double model_flops_per_token(const model_t *model);
/* Returns the share of the devices' peak that this many tokens a second use; negative if the peak is not known. */
double model_flops_utilization(const model_t *model, double tokens_per_s, int n_devices);

/* ---- session ---- */
/* A model on its device: what training, evaluating and generating have in common. */

typedef struct session {
    const options_t *options; /* the caller's, which outlive it */
    zero_comm_t *comm;        /* also */
    zero_device_t *device;
    model_t model;
    zero_engine_t *engine;
} session_t;

/* Declares the model and opens the device, before anything is read or written: a missing device is a mistake in the
 * configuration. The caller closes the session, whatever is returned. [collective] */
zero_status_t session_open(const options_t *options, zero_comm_t *comm, session_t *session);
/* Allocates the memory that is planned. The weights are to be filled next. n_in_flight: as in model_attach.
 * [collective] */
zero_status_t session_create_engine(session_t *session, int64_t n_in_flight);

/* Load what a model with adapters consists of: the frozen model, from model.init or random; adapters from lora.init or
 * random, after it. [collective] */
zero_status_t session_load_base(session_t *session);
zero_status_t session_load_adapters(session_t *session);

/* Opens a session that only computes forward, without gradients and optimizer state, and loads the weights of
 * model.init, and adapters of lora.init. The caller closes it, whatever is returned. [collective] */
zero_status_t session_open_forward(const options_t *options, zero_comm_t *comm, session_t *session);

/* failed: peers may be gone. Then one of several ranks must not wait for them here, nor its device for theirs: it keeps
 * its engine and what that uses until main aborts the job. */
void session_close(session_t *session, bool failed);

#endif
