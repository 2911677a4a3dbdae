/* options.h - every setting of zerotrain, from one table.
 *
 * options_table.c has one row per setting: section, key, type, default, range or choices, help. The parsers (iniparser
 * for the file, getopt_long for the command line), the defaults, --help, the man page and docs/configuration.md all
 * come from it. The command line overrides the file, and the file the defaults.
 */
#ifndef ZEROTRAIN_OPTIONS_H
#define ZEROTRAIN_OPTIONS_H

#include <stdio.h>

#include "zero.h"

#define OPTIONS_MAX_PATH 4096
#define OPTIONS_MAX_HEAD_DIM (1 << 16)
#define OPTIONS_MAX_KEYS 192
#define OPTIONS_MAX_RUNS 64 /* in a report */
#define OPTIONS_MAX_VAL_SETS 16
#define OPTIONS_SEQ_LEN 1024 /* unless it is set, or a table of positions in init says otherwise */
#define OPTIONS_MAX_SEQUENCE_RANKS 64
#define OPTIONS_FP8_MULTIPLE 16 /* of every extent of a product in fp8 */

/* Settings that are left to the solver (planning/solve.h), as RECOMPUTE_AUTO is. */
#define MICRO_BATCH_AUTO (-1)
#define STAGE_AUTO (-1)
#define SEQUENCE_RANKS_AUTO (-1)
#define MLP_TILE_AUTO (-1)
#define PRECISION_OF_DEVICE (-1) /* of generate: fp32 on the CPU, bf16 on GPUs; resolved with the device */

/* What zerotrain is asked to do: without a word before the file, to train. */
typedef enum options_command {
    COMMAND_TRAIN,
    COMMAND_FIT,
    COMMAND_EVALUATE,
    COMMAND_GENERATE,
    COMMAND_REPORT,
    COMMAND_CALIBRATE,
    COMMAND_MERGE,
    COMMAND_EXPORT,
    N_COMMANDS
} options_command_t;
typedef enum options_arch {
    ARCH_GPT2,
    ARCH_LLAMA,
    ARCH_MISTRAL,
    ARCH_QWEN2,
    ARCH_QWEN3,
    ARCH_MINISTRAL,
    ARCH_SMOLLM3,
    ARCH_PHI3,
    ARCH_GRANITE,
    ARCH_GRANITE4,
    ARCH_OLMO2,
    ARCH_OLMO3,
    ARCH_GEMMA3,
    ARCH_SEED_OSS
} options_arch_t;
typedef enum options_rope { ROPE_DEFAULT, ROPE_LLAMA3, ROPE_LINEAR, ROPE_YARN, ROPE_LONGROPE } options_rope_t;
/* What a layer's attention sees, and whether its heads are rotated: letters of model_options_t.layer_kinds. */
typedef enum options_layer_kind {
    LAYER_ALL = 'f',
    LAYER_WINDOW = 's',
    LAYER_ALL_UNROTATED = 'n',
    LAYER_WINDOW_UNROTATED = 'w'
} options_layer_kind_t;
typedef enum options_recompute { RECOMPUTE_NONE, RECOMPUTE_LIGHT, RECOMPUTE_FULL, RECOMPUTE_AUTO } options_recompute_t;
typedef enum options_format {
    FORMAT_AUTO,
    FORMAT_TEXT,
    FORMAT_LLMC,
    FORMAT_NANOGPT,
    FORMAT_MEGATRON,
    FORMAT_UINT32,
    FORMAT_ZEROTRAIN
} options_format_t;
typedef enum options_packing { PACKING_CUT, PACKING_FIT, PACKING_PAD, PACKING_AUTO } options_packing_t;
typedef enum options_long_documents { LONG_TRUNCATE, LONG_DROP } options_long_documents_t;
typedef enum options_documents { DOCUMENTS_JOIN, DOCUMENTS_SEPARATE, DOCUMENTS_AUTO } options_documents_t;
typedef enum options_gather { GATHER_BF16, GATHER_FP8 } options_gather_t;
typedef enum options_base { BASE_BF16, BASE_FP8 } options_base_t;
typedef enum options_fp8 { FP8_NONE, FP8_LINEAR } options_fp8_t;
typedef enum options_objective { OBJECTIVE_NEXT, OBJECTIVE_DPO } options_objective_t;
typedef enum options_schedule { SCHEDULE_COSINE, SCHEDULE_LINEAR, SCHEDULE_CONSTANT, SCHEDULE_WSD } options_schedule_t;
typedef enum options_offload { OFFLOAD_NONE, OFFLOAD_OPTIMIZER, OFFLOAD_ALL } options_offload_t;
typedef enum options_reduction { REDUCTION_ORDERED, REDUCTION_NCCL } options_reduction_t;

/* The model, and how its activations are kept. */
typedef struct model_options {
    int arch;                                                           /* options_arch_t */
    int64_t layers, dim, heads, kv_heads, ffn_dim, vocab_size, seq_len; /* kv_heads, ffn_dim: 0 = by arch */
    int64_t head_dim;                                                   /* 0 = dim / heads */
    int64_t positions;                                                  /* of gpt2; 0 = seq_len */
    int64_t window;                     /* of all layers, or of those that layer_kinds says; 0 = none */
    char layer_kinds[OPTIONS_MAX_PATH]; /* options_layer_kind_t of each layer; "": all alike, LAYER_WINDOW or LAYER_ALL
                                         */
    int64_t longest;                    /* sequence that init computes as its family does; 0: any. Set by hf_config.c */
    bool tied;                          /* of the Llama family; gpt2's always is */
    double norm_eps, rope_theta;
    int rope;                                          /* options_rope_t */
    double rope_factor, rope_low_freq, rope_high_freq; /* of Llama 3.1's scaling, or the model's in init; */
    int64_t rope_original;                             /* not settings. factor 1: no scaling */
    double rope_beta_fast, rope_beta_slow,
        rope_scale;                       /* of yarn; rope_scale multiplies what is rotated, also longrope's */
    bool rope_truncate;                   /* of yarn: its range begins and ends at whole pairs */
    char rope_divisors[OPTIONS_MAX_PATH]; /* of longrope: a number for each pair, separated by commas */
    double rope_share;                    /* of a head's elements, the first ones, which are rotated */
    double rope_local_theta;              /* of layers with a window; 0: as the others, scaling too */
    bool qkv_bias, out_bias, mlp_bias;    /* not settings: biases of linear layers */
    double attention_multiplier;          /* of scores; 0: 1 / sqrt(query_scalar) */
    int64_t query_scalar;                 /* 0: head_dim */
    double embedding_multiplier, residual_multiplier, logits_scaling; /* of Granite; logits are divided */
    char init[OPTIONS_MAX_PATH];                                      /* "random" or a model directory */
    char tokenizer[OPTIONS_MAX_PATH];        /* "": as init, or the checkpoint that is resumed */
    int recompute;                           /* options_recompute_t */
    int64_t recompute_none, recompute_light; /* of the last blocks, and of those before them; chosen */
    bool keep_attention;                     /* of blocks that recompute everything else */
    double offload_activations;              /* share of the blocks, the first ones; or ZERO_OFFLOAD_AUTO */
} model_options_t;

/* Where tokens come from. */
typedef struct data_options {
    char train[OPTIONS_MAX_PATH];          /* comma-separated paths */
    char val[OPTIONS_MAX_PATH];            /* the same, which may have names (val_sets.h); "" = none */
    int format;                            /* options_format_t */
    int packing;                           /* options_packing_t */
    int val_packing[OPTIONS_MAX_VAL_SETS]; /* of each set of val; no setting: data_choose_packing sets it */
    int long_documents;                    /* options_long_documents_t */
    int documents, asked_documents; /* options_documents_t; as is asked_documents: documents before it was chosen */
} data_options_t;

/* Steps, batches, optimizer, precision. */
typedef struct train_options {
    int64_t steps, micro_batch, global_batch; /* sequences; 0 = derived, micro_batch may be auto */
    int64_t asked_micro, asked_global;        /* the same before options_resolve; not in the table */
    int64_t sequence_ranks, asked_sequence;   /* K that share a sequence; asked_sequence: as the two above */
    int64_t mlp_tile;                         /* or MLP_TILE_AUTO */
    double epochs;                            /* 0: steps says how long; else it is derived from the data */
    double lr, min_lr;                        /* min_lr -1 = lr / 10 */
    int64_t warmup_steps;
    int schedule;  /* options_schedule_t */
    int optimizer; /* zero_optimizer_t */
    double weight_decay, beta1, beta2, momentum, muon_momentum, eps, grad_clip;
    int64_t muon_steps;
    int precision; /* zero_dtype_t */
    int fp8;       /* options_fp8_t */
    int objective; /* options_objective_t */
    double dpo_beta;
    int64_t seed, eval_every, eval_batches, sample_every;
} train_options_t;

/* Adapters on a frozen model. */
typedef struct lora_options {
    int64_t rank;                   /* 0: none, the model is trained */
    double alpha;                   /* 0 = rank */
    char targets[OPTIONS_MAX_PATH]; /* "all-linear", or words of lora_targets.h */
    int base;                       /* options_base_t: how the frozen matrices are held */
    char init[OPTIONS_MAX_PATH];    /* "random", or a directory in PEFT's layout */
    int64_t seed;                   /* of random ones; -1 = train.seed */
    bool rslora;
    uint32_t target_set; /* what targets says, a bit for each of the family's; not in the table */
} lora_options_t;

/* How libzero shards, and moves what is sharded. */
typedef struct zero_options {
    int64_t stage;               /* or STAGE_AUTO */
    int offload;                 /* options_offload_t */
    double offload_ratio;        /* or ZERO_OFFLOAD_AUTO */
    double offload_params_ratio; /* of OFFLOAD_ALL; or ZERO_OFFLOAD_AUTO */
    int gradients;               /* zero_dtype_t */
    int update;                  /* zero_update_time_t */
    int offload_update;          /* zero_offload_update_t */
    int64_t offload_threads;
    double offload_ram;
    int64_t prefetch;
    int64_t shard_group; /* or ZERO_SHARD_GROUP_WORLD or _HOST */
    int64_t keep;        /* blocks, or ZERO_KEEP_AUTO */
    bool overlap, reduce_every_micro_step, check;
    int offload_grads; /* zero_offload_grads_t, as it is found to fit; not in the table */
    int comm;          /* zero_comm_kind_t */
    int reduction;     /* options_reduction_t */
    int gather;        /* options_gather_t */
} zero_options_t;

/* Where to compute. */
typedef struct device_options {
    int type; /* zero_device_type_t */
    bool graphs;
    double memory; /* GiB; 0: what is free */
} device_options_t;

/* Where and when to save. */
typedef struct checkpoint_options {
    char dir[OPTIONS_MAX_PATH];
    int64_t every, keep;
    bool best, async;
    char memory_dir[OPTIONS_MAX_PATH];
    int64_t memory_every; /* 0: no checkpoints in memory */
} checkpoint_options_t;

/* What a run writes in addition to checkpoints. */
typedef struct log_options {
    int64_t every;
    char metrics[OPTIONS_MAX_PATH], tensorboard[OPTIONS_MAX_PATH], trace[OPTIONS_MAX_PATH];
} log_options_t;

/* fit's own, and what describes a machine for --plan. */
typedef struct fit_options {
    int64_t gpus;               /* --gpus; 0: as many as there are ranks */
    double gpu_bytes;           /* --gpu-memory; 0: the GPU's */
    double host_bytes;          /* --host-memory; 0: not given */
    char gpu[32];               /* --gpu; "": not given */
    char svg[OPTIONS_MAX_PATH]; /* --svg; "": not given */
    int64_t file_micro_batch;
} fit_options_t;

/* generate's own. */
typedef struct generate_options {
    const char *prompt;                 /* --prompt, of argv; NULL: not given */
    char prompt_file[OPTIONS_MAX_PATH]; /* --prompt-file; "": not given */
    char prompts[OPTIONS_MAX_PATH];     /* --prompts; "": not given */
    bool chat;                          /* --chat */
    const char *system;                 /* --system, of argv; NULL: not given */
    int64_t max_tokens, top_k, seed;    /* top_k 0: all tokens */
    double temperature, top_p;          /* temperature 0: always the likeliest token; top_p 1: all tokens */
} generate_options_t;

/* report's own. */
typedef struct report_options {
    const char *runs[OPTIONS_MAX_RUNS]; /* of argv: metrics or checkpoints */
    int n_runs;
    char output[OPTIONS_MAX_PATH]; /* --output */
} report_options_t;

/* All of them. A function takes the sections that it reads, and this if those are many. */
typedef struct options {
    model_options_t model;
    data_options_t data;
    train_options_t train;
    lora_options_t lora;
    zero_options_t zero;
    device_options_t device;
    checkpoint_options_t checkpoint;
    log_options_t log;
    /* command line only */
    int command;        /* options_command_t */
    int64_t stop_after; /* --steps N: stop after step N, while the schedule follows train.steps; 0 = train.steps */
    bool resume;        /* --resume [DIR], or --auto-resume that found one (main.c) */
    bool auto_resume;   /* --auto-resume */
    char merge_out[OPTIONS_MAX_PATH];   /* merge, export: the new model's directory */
    int64_t grown_vocab;                /* --vocab-size, of export; 0: not given */
    char adapter_dir[OPTIONS_MAX_PATH]; /* --adapter, of evaluate and generate; "": not given */
    char resume_dir[OPTIONS_MAX_PATH];  /* "" = checkpoint.dir's latest */
    bool force;                         /* --force: resume even if data or seed have changed */
    bool overwrite;                     /* --overwrite: checkpoints of an earlier run may be replaced */
    bool plan;                          /* --plan */
    int64_t hosts;                      /* --hosts H, of the plan; 0 = those that the ranks are on */
    bool json;                          /* --json, of fit, evaluate and --plan */
    fit_options_t fit;
    generate_options_t generate;
    report_options_t report;
    char config_path[OPTIONS_MAX_PATH];    /* generate: of the checkpoint */
    uint64_t given[OPTIONS_MAX_KEYS / 64]; /* a bit for each row of option_rows: set by the user; option_is_given() */
} options_t;

typedef enum options_action { OPTIONS_RUN, OPTIONS_EXIT_OK } options_action_t;

/* Parses argv and the file that it names. --help and --version print to stdout (on rank 0) and set OPTIONS_EXIT_OK.
 * For every mistake a user can make, returns ZERO_ERROR_USAGE after one line that names file and line, section and key,
 * and what was probably meant. */
zero_status_t options_parse(int argc, char **argv, options_t *options, options_action_t *action);

/* Checks settings against each other and against the number of ranks (heads divide dim, ranks divide the batch, ...)
 * and fills in what is derived: vocab_size, seq_len, kv_heads, ffn_dim, min_lr, micro_batch, global_batch. */
zero_status_t options_resolve(options_t *options, int world_size);

/* Checks [train] steps against what depends on it. options_resolve does, unless epochs sets it later. */
zero_status_t options_check_steps(const options_t *options);

/* Checks what an update of parameters cannot do with other settings, as a part of options_resolve. */
zero_status_t options_check_update(const options_t *options);

/* Checks what depends on the device, once device.type is resolved. */
zero_status_t options_check_device(const options_t *options);

/* Refuses ranks whose settings differ from rank 0's, and names the setting: a host may have another configuration, or
 * another model, under the same path. [zero] offload_threads, offload_ram and check may differ. [collective] */
zero_status_t options_compare(const options_t *options, zero_comm_t *comm);

/* Names each setting that the user has given and that changes nothing beside the others. Once all are resolved. */
void options_report_idle(const options_t *options);

/* Returns whether the command only computes forward: no gradients, no optimizer state. */
bool options_are_forward_only(const options_t *options);
/* Returns whether [model] or [lora] init names no directory. */
bool options_init_is_random(const char *init);
/* Returns whether it writes a model out of files: merge, export. */
bool options_write_model(const options_t *options);
/* Returns whether it generates text. */
bool options_generate(const options_t *options);

/* Returns what backward recomputes of a block: less of the last ones, as recompute_none and recompute_light say. */
options_recompute_t options_block_recompute(const model_options_t *model, int64_t block);

/* Inputs on the GPU of those that wait in host memory: a block computes in one slot, while a second is on its way and a
 * third is ready or can still be read. */
#define OPTIONS_STASH_SLOTS 3
/* Returns how many blocks' inputs wait in host memory: the first ones', as offload_activations says; auto: none. */
int64_t options_offloaded_blocks(const model_options_t *model);

/* Returns the rows of a GPT-2's table of positions: seq_len, or more. */
int64_t options_positions(const model_options_t *model);
/* Returns the width of a head. */
int64_t options_head_dim(const model_options_t *model);
/* Returns the window of a layer's attention; 0: it sees all earlier positions. */
int64_t options_window(const model_options_t *model, int64_t layer);
/* Returns what embedded tokens are multiplied by. */
double options_embedding_scale(const model_options_t *model);
/* Returns what attention's scores are multiplied by. */
double options_score_scale(const model_options_t *model);
/* Returns how many elements of a head are rotated. */
int64_t options_n_rotated(const model_options_t *model);
/* Returns whether a layer's heads are rotated. */
bool options_is_rotated(const model_options_t *model, int64_t layer);
/* Returns the keys that a query sees, on average over a sequence's positions and the layers. */
double options_mean_keys(const model_options_t *model);

/* Returns whether a setting is left to the solver. */
static inline bool options_have_auto(const options_t *o)
{
    return o->train.micro_batch == MICRO_BATCH_AUTO || o->zero.stage == STAGE_AUTO ||
           o->model.recompute == RECOMPUTE_AUTO;
}

/* Returns whether the tokens of a pass, and the bytes that it takes, can be counted: options that cannot are refused.
 */
bool options_are_countable(const options_t *options);

/* ---- a sequence that K ranks share ---- */
/* K = sequence_ranks consecutive ranks have the tokens of the same sequences between them. World size / K such groups
 * are what data parallel counts. Before attention they exchange heads, of which each then has some for all tokens. */

/* Returns K: 1 as long as it is auto. */
static inline int64_t options_sequence_ranks(const train_options_t *train)
{
    return train->sequence_ranks > 1 ? train->sequence_ranks : 1;
}
/* Returns how many groups of K ranks there are. */
static inline int64_t options_n_groups(const train_options_t *train, int64_t n_ranks)
{
    return n_ranks / options_sequence_ranks(train);
}
/* Returns the first token of the i-th rank's part; i = K: seq_len. Parts differ by one token at most. */
static inline int64_t options_part_begin(int64_t seq_len, int64_t n_ranks, int64_t i)
{
    return seq_len / n_ranks * i + seq_len % n_ranks * i / n_ranks;
}
/* Returns the tokens of the longest part. */
static inline int64_t options_longest_part(const options_t *o)
{
    const int64_t n_ranks = options_sequence_ranks(&o->train);
    return (o->model.seq_len + n_ranks - 1) / n_ranks;
}

#define OPTIONS_TILED_ROWS 32768 /* mlp_tile = auto computes more rows in tiles */
/* Returns the rows of a rank's micro-batch of which the MLP is computed at once; 0: all. */
int64_t options_tile_rows(const options_t *o);

/* Heads of which a rank computes attention: query heads first_head .. + n_heads, which share kv heads first_kv ..
 * + n_kv. */
typedef struct options_heads {
    int64_t first_head, n_heads, first_kv, n_kv;
} options_heads_t;

/* Returns the i-th rank's. With at most as many ranks as kv heads, these are cut into runs that differ by one at most.
 * With more, each has one, and the ranks that have the same one cut its query heads. */
options_heads_t options_heads_of(const model_options_t *model, int64_t n_ranks, int64_t i);
/* Returns the most that any rank has; the firsts are 0. */
options_heads_t options_most_heads(const options_t *o);

/* Returns the micro-steps per step: global_batch / (micro_batch * world_size / K). */
int options_micro_steps(const train_options_t *train, int world_size);

/* Returns libzero's configuration. */
zero_config_t options_config(const options_t *options, int world_size);

/* ---- placement ---- */
/* On which hosts the ranks are, as far as settings depend on it. All ranks find the same, even if hosts
 * have different numbers of them. */

/* Finds the least and the most ranks of a host, and whether each host's have consecutive numbers. */
typedef struct placement {
    int fewest, most;
    bool is_consecutive;
} placement_t;

zero_status_t placement_find(const zero_comm_t *comm, placement_t *placement);

/* Refuses [zero] shard_group = host if the hosts' ranks are not groups of one size, and ranks of different hosts that
 * share a sequence. */
zero_status_t placement_check_groups(const options_t *options, const zero_comm_t *comm);

/* ---- named files ---- */
/* Checks that the files a run writes are not files that it reads or writes otherwise. */

/* Checks whether metrics and trace can be written where the settings say. They must be two different files. Neither may
 * be, by any path or link, the configuration, data, part of a model or checkpoint that is read, or where checkpoints
 * will be. What is there already must be theirs (metrics_check, trace_check). Also refuses [checkpoint] directories in
 * which the run would replace the model that its adapters are trained on. Returns ZERO_ERROR_USAGE, with a log line
 * that names the settings. Changes nothing. For the rank that writes them. */
zero_status_t named_files_check(const options_t *options);

#endif
