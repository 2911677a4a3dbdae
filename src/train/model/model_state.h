/* model_state.h - what a model consists of, and the table that an architecture fills in.
 *
 * An architecture (gpt2.c, llama.c) declares units and tensors, allocates its activations, and computes one block or
 * the last norm, forward or backward; arch.c does what they share. model_passes.c walks the units through libzero:
 * acquire, compute, release. Other folders call what model.h declares.
 */
#ifndef ZEROTRAIN_MODEL_STATE_H
#define ZEROTRAIN_MODEL_STATE_H

#include "train/kernels/kernels.h"
#include "train/options/options.h"
#include "zero.h"

/* ---- activations ---- */
/* Allocates a model's activations, or only counts their bytes.
 *
 * An architecture allocates all its activations in one function. Run without an engine, the function gives the plan;
 * run with one, it gives the memory. So the two cannot differ. */

typedef struct activations {
    zero_engine_t *engine;   /* NULL: only count */
    uint64_t n_bytes;        /* so far */
    uint64_t pinned_bytes;   /* of host memory, for a GPU, so far */
    zero_stash_t *stash;     /* NULL: there is none, or only counted */
    zero_status_t status;    /* of the first allocation that failed */
    bool has_lifetime;       /* the next allocations are in use only from first to last, */
    zero_unit_t first, last; /* as zero_alloc_activations defines it */
} activations_t;

/* Declares that what is allocated from here on is written no earlier than the forward of `first` and read no later than
 * the backward of `last`. Between the passes of two steps it is idle. */
void activations_set_lifetime(activations_t *activations, zero_unit_t first, zero_unit_t last);
/* Declares that what is allocated from here on may be in use at any time, as it is at first. */
void activations_clear_lifetime(activations_t *activations);

/* Returns device memory that the engine owns, aligned to 256 bytes; NULL when counting and after a failure. */
void *activations_alloc(activations_t *activations, uint64_t n_elems, size_t element_bytes);

/* Creates a stash of n_buffers activations of n_elems each. */
void activations_stash(activations_t *activations, zero_device_type_t device, int n_buffers, uint64_t n_elems,
                       size_t element_bytes);

/* ---- model state ---- */

typedef enum model_pass { MODEL_TRAIN, MODEL_LOSS, MODEL_LOGITS } model_pass_t;
typedef struct model model_t;
typedef struct layer_activations layer_activations_t; /* arch.h */
typedef struct fp8 fp8_t;
typedef struct lora lora_t;
typedef struct preference preference_t;
typedef struct cuda_graphs cuda_graphs_t;
typedef struct sequence sequence_t;

/* Units: 0 is the embedding, then come the blocks, then the head. */
typedef struct model_ops {
    const char *name;            /* as its users write it */
    size_t bytes, block_bytes;   /* of model->arch: bytes, and block_bytes for each layer */
    int mlp_inputs;              /* matrices [dim, ffn_dim] that the MLP's input is multiplied by, side by side */
    zero_linear_layout_t layout; /* of every linear layer's weight */
    bool norms_keep_means;       /* forward keeps each row's mean, and not only its rstd, for backward */
    bool learns_positions;       /* a table of positions is added to the tokens' rows */
    bool shares_normed;          /* recompute = light: both norms of a block write to one buffer */

    /* Declares units and tensors into model->declaration, in forward order, under Hugging Face's names. */
    zero_status_t (*declare)(model_t *model);
    /* Returns the number of parameters that are looked up by token or position and never multiplied by. */
    int64_t (*n_lookup_params)(const model_t *model);
    /* Allocates all activations for the largest pass. Called once to count them and once to get them. */
    void (*allocate)(const model_t *model, activations_t *activations);
    /* Compute one unit, which is acquired: arch_forward and arch_backward, by the functions below. A forward of the
     * head computes the loss or the logits, but nothing in a training pass: there its backward computes loss and
     * gradient together. */
    zero_status_t (*forward)(model_t *model, zero_unit_t unit);
    zero_status_t (*backward)(model_t *model, zero_unit_t unit);

    /* x = residual + addend (NULL: residual), the input of the layer, which leaves its second addition in `addend`. */
    zero_status_t (*block_forward)(model_t *model, int layer, const void *residual, const void *addend);
    zero_status_t (*block_backward)(model_t *model, int layer);
    /* x_final = residual + the pending addition; normed = its norm */
    zero_status_t (*final_norm)(model_t *model, const void *residual);
    /* d_x += the gradient of d_c through that norm */
    zero_status_t (*final_norm_backward)(model_t *model);
} model_ops_t;

struct model {
    const model_ops_t *ops;
    const options_t *options;
    zero_model_t *declaration;
    zero_device_t *device; /* NULL until model_attach, as is engine */
    zero_engine_t *engine;
    const zero_model_kernels_t *kernels;
    zero_model_context_t ctx;
    zero_stream_t stream;        /* for all of the model's work */
    bool attached;               /* ctx has been created */
    void *arch;                  /* the architecture's own: tensor ids, buffers that blocks share */
    layer_activations_t *layers; /* [layers] */
    zero_stash_t *stash;         /* which has the first layers' x; NULL: each layer has its own */
    uint64_t pinned_bytes;       /* of its host memory */
    fp8_t *fp8;                  /* NULL: no linear layer is computed in fp8 */
    lora_t *lora;                /* NULL: there are no adapters, and the model is trained */
    preference_t *preference;    /* NULL: the objective is the next token */
    cuda_graphs_t *graphs;       /* NULL: every kernel is launched on its own */
    sequence_t *sequence;        /* NULL: no other rank has a part of this one's sequences */
    int n_trained;               /* micro-steps so far, up to CUDA_GRAPHS_WARM_UP */

    /* A target may be ZERO_NO_TARGET, and loss_weight differs from step to step. Set before model_attach. */
    bool may_skip_targets;

    /* The current pass. */
    model_pass_t pass;
    size_t n_batch, seq_len; /* sequences, this rank's positions of each: rows are their product */
    int32_t *tokens;         /* device, int32 [n_batch, seq_len] */
    int32_t *targets;        /* device, int32 [n_batch, seq_len] */
    /* Device, int32 [n_batch, seq_len of the whole]: as in zero_mask_t; NULL: a sequence is one document */
    int32_t *starts;
    int32_t *part_starts; /* device, int32 [n_batch, seq_len]: of this rank's part (sequence.h); NULL: as starts */
    int32_t *documents;   /* device, int32 [n_rows + 1]: of pairs, as in zero_pair_loss_t; NULL: there are none */
    int32_t *uploads; /* host, pinned: a ring of n_uploads batches, all of their arrays, on their way to the device */
    int64_t n_uploads, next_upload;
    size_t tile, n_tile_rows; /* the tile of rows that is computed, and its rows; 0: all rows (arch.h) */
    double loss_weight;       /* of each token's loss, or pair's */
    double *loss;             /* device: += this pass's weighted losses; of pairs, their sums are behind it */
    float *logits;            /* device, fp32 [vocab_size]: of position logits_at, MODEL_LOGITS */
    size_t logits_at;

    /* Text that grows: keys and values of its positions so far, of every layer. */
    void *cache;     /* device, activations [layers][seq_len][2 * kv_heads * head_dim]; NULL: there is none */
    size_t n_cached; /* positions */
    bool continues;  /* this pass has the positions from n_cached on */
    int n_continued; /* passes with one such position after others, up to CUDA_GRAPHS_WARM_UP */
};

#endif
