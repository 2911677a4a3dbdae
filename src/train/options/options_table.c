/* options_table.c - every setting of zerotrain, one row each. Parsers, defaults, --help and documents follow it. */
#include "train/options/options_table.h"

#include <string.h>

static const option_choice_t ARCHS[] = {{"gpt2", ARCH_GPT2},
                                        {"llama", ARCH_LLAMA},
                                        {"mistral", ARCH_MISTRAL},
                                        {"qwen2", ARCH_QWEN2},
                                        {"qwen3", ARCH_QWEN3},
                                        {"ministral", ARCH_MINISTRAL},
                                        {"smollm3", ARCH_SMOLLM3},
                                        {"phi3", ARCH_PHI3},
                                        {"granite", ARCH_GRANITE},
                                        {"granitemoehybrid", ARCH_GRANITE4},
                                        {"olmo2", ARCH_OLMO2},
                                        {"olmo3", ARCH_OLMO3},
                                        {"gemma3_text", ARCH_GEMMA3},
                                        {"seed_oss", ARCH_SEED_OSS},
                                        {0}};
static const option_choice_t ROPES[] = {{"default", ROPE_DEFAULT}, {"llama3", ROPE_LLAMA3},     {"linear", ROPE_LINEAR},
                                        {"yarn", ROPE_YARN},       {"longrope", ROPE_LONGROPE}, {0}};
static const option_choice_t RECOMPUTES[] = {
    {"none", RECOMPUTE_NONE}, {"light", RECOMPUTE_LIGHT}, {"full", RECOMPUTE_FULL}, {"auto", RECOMPUTE_AUTO}, {0}};
static const option_choice_t FORMATS[] = {{"auto", FORMAT_AUTO},           {"text", FORMAT_TEXT},
                                          {"llmc", FORMAT_LLMC},           {"nanogpt", FORMAT_NANOGPT},
                                          {"uint32", FORMAT_UINT32},       {"megatron", FORMAT_MEGATRON},
                                          {"zerotrain", FORMAT_ZEROTRAIN}, {0}};
static const option_choice_t PACKINGS[] = {
    {"auto", PACKING_AUTO}, {"cut", PACKING_CUT}, {"fit", PACKING_FIT}, {"pad", PACKING_PAD}, {0}};
static const option_choice_t LONG_DOCUMENTS[] = {{"truncate", LONG_TRUNCATE}, {"drop", LONG_DROP}, {0}};
static const option_choice_t DOCUMENTS[] = {
    {"auto", DOCUMENTS_AUTO}, {"join", DOCUMENTS_JOIN}, {"separate", DOCUMENTS_SEPARATE}, {0}};
static const option_choice_t SCHEDULES[] = {{"cosine", SCHEDULE_COSINE},
                                            {"linear", SCHEDULE_LINEAR},
                                            {"constant", SCHEDULE_CONSTANT},
                                            {"wsd", SCHEDULE_WSD},
                                            {0}};
static const option_choice_t PRECISIONS[] = {{"bf16", ZERO_BF16}, {"fp32", ZERO_FP32}, {"fp16", ZERO_FP16}, {0}};
static const option_choice_t OPTIMIZERS[] = {{"adamw", ZERO_OPTIMIZER_ADAMW},
                                             {"sgd", ZERO_OPTIMIZER_SGD},
                                             {"nesterov", ZERO_OPTIMIZER_NESTEROV},
                                             {"lion", ZERO_OPTIMIZER_LION},
                                             {"muon", ZERO_OPTIMIZER_MUON},
                                             {"adamw8bit", ZERO_OPTIMIZER_ADAMW8BIT},
                                             {0}};
static const option_choice_t OBJECTIVES[] = {{"next", OBJECTIVE_NEXT}, {"dpo", OBJECTIVE_DPO}, {0}};
static const option_choice_t FP8S[] = {{"none", FP8_NONE}, {"linear", FP8_LINEAR}, {0}};
static const option_choice_t BASES[] = {{"bf16", BASE_BF16}, {"fp8", BASE_FP8}, {0}};
static const option_choice_t OFFLOADS[] = {
    {"none", OFFLOAD_NONE}, {"optimizer", OFFLOAD_OPTIMIZER}, {"all", OFFLOAD_ALL}, {0}};
static const option_choice_t SHARD_GROUPS[] = {{"world", ZERO_SHARD_GROUP_WORLD}, {"host", ZERO_SHARD_GROUP_HOST}, {0}};
static const option_choice_t GRADIENTS[] = {{"fp32", ZERO_FP32}, {"bf16", ZERO_BF16}, {0}};
static const option_choice_t UPDATES[] = {{"step", ZERO_UPDATE_IN_STEP}, {"backward", ZERO_UPDATE_IN_BACKWARD}, {0}};
static const option_choice_t OFFLOAD_UPDATES[] = {{"auto", ZERO_OFFLOAD_UPDATE_AUTO},
                                                  {"device", ZERO_OFFLOAD_UPDATE_DEVICE},
                                                  {"host", ZERO_OFFLOAD_UPDATE_HOST},
                                                  {0}};
static const option_choice_t COMMS[] = {
    {"auto", ZERO_COMM_AUTO}, {"nccl", ZERO_COMM_NCCL}, {"mpi", ZERO_COMM_MPI}, {0}};
static const option_choice_t REDUCTIONS[] = {{"ordered", REDUCTION_ORDERED}, {"nccl", REDUCTION_NCCL}, {0}};
static const option_choice_t MICRO_BATCHES[] = {{"auto", MICRO_BATCH_AUTO}, {0}};
static const option_choice_t SEQUENCE_RANKS[] = {{"auto", SEQUENCE_RANKS_AUTO}, {0}};
static const option_choice_t MLP_TILES[] = {{"auto", MLP_TILE_AUTO}, {0}};
static const option_choice_t STAGES[] = {{"auto", STAGE_AUTO}, {0}};
static const option_choice_t KEEPS[] = {{"auto", ZERO_KEEP_AUTO}, {0}};
static const option_choice_t GATHERS[] = {{"bf16", GATHER_BF16}, {"fp8", GATHER_FP8}, {0}};
static const option_choice_t DEVICES[] = {{"auto", ZERO_DEVICE_AUTO},
                                          {"cuda", ZERO_DEVICE_CUDA},
                                          {"cpu", ZERO_DEVICE_CPU},
                                          {"cuda-shared", ZERO_DEVICE_CUDA_SHARED},
                                          {0}};

/* A row's name is written once and gives section, key and field. */
#define NAMED(section_, key_) .section = #section_, .key = #key_, .offset = offsetof(options_t, section_.key_)
#define INTEGER(section_, key_, initial_, low_, high_, derived_, help_)                                                \
    {                                                                                                                  \
        NAMED(section_, key_), .type = OPTION_INTEGER, .initial = initial_, .low = low_, .high = high_,                \
                               .derived = derived_, .help = help_                                                      \
    }
#define INTEGER_OR_CHOICE(section_, key_, initial_, low_, high_, derived_, choices_, help_)                            \
    {                                                                                                                  \
        NAMED(section_, key_), .type = OPTION_INTEGER, .initial = initial_, .low = low_, .high = high_,                \
                               .derived = derived_, .choices = choices_, .help = help_                                 \
    }
#define REAL(section_, key_, initial_, low_, high_, derived_, help_)                                                   \
    {                                                                                                                  \
        NAMED(section_, key_), .type = OPTION_REAL, .initial = initial_, .real_low = low_, .real_high = high_,         \
                               .derived = derived_, .help = help_                                                      \
    }
#define REAL_OR_WORD(section_, key_, initial_, low_, high_, word_, word_value_, help_)                                 \
    {                                                                                                                  \
        NAMED(section_, key_), .type = OPTION_REAL, .initial = initial_, .real_low = low_, .real_high = high_,         \
                               .word = word_, .word_value = word_value_, .help = help_                                 \
    }
#define BOOL(section_, key_, initial_, help_)                                                                          \
    {                                                                                                                  \
        NAMED(section_, key_), .type = OPTION_BOOL, .initial = initial_, .help = help_                                 \
    }
#define CHOICE(section_, key_, initial_, choices_, help_)                                                              \
    {                                                                                                                  \
        NAMED(section_, key_), .type = OPTION_CHOICE, .initial = initial_, .choices = choices_, .help = help_          \
    }
#define TEXT(section_, key_, initial_, may_be_empty_, help_)                                                           \
    {                                                                                                                  \
        NAMED(section_, key_), .type = OPTION_TEXT, .initial = initial_, .may_be_empty = may_be_empty_, .help = help_  \
    }

#define BILLION INT64_C(1000000000)

/* clang-format off */
const option_row_t option_rows[] = {
    CHOICE(model, arch, "gpt2", ARCHS,
        "Architecture: gpt2, or a member of the Llama family (docs/training.md)."),
    INTEGER(model, layers, NULL, 1, 10000, NULL, "Transformer blocks. Required unless init names a model."),
    INTEGER(model, dim, NULL, 1, 1 << 20, NULL, "Width of the residual stream. Required unless init names a model."),
    INTEGER(model, heads, NULL, 1, 1 << 16, NULL,
        "Attention heads; divide dim unless head_dim is set and arch allows it. Required without init."),
    INTEGER(model, kv_heads, "0", 1, 1 << 16, "0", "Key and value heads; must divide heads. 0: as many as heads."),
    INTEGER(model, head_dim, "0", 1, OPTIONS_MAX_HEAD_DIM, "0", "Width of a head; for gpt2 always dim / heads. 0: dim / heads."),
    INTEGER(model, ffn_dim, "0", 1, 1 << 24, "0",
        "Width of the MLP. 0: 4 dim for gpt2; else 8/3 dim, rounded up to a multiple of 256."),
    BOOL(model, tied, "false", "The output head is the token embedding, as in Llama 3.2. gpt2's always is."),
    INTEGER(model, vocab_size, "0", 1, INT32_MAX, "0",
        "Size of the vocabulary. 0: that of the model in init, or 256, enough for raw bytes."),
    INTEGER(model, seq_len, "0", 1, 1 << 30, "0",
        "Tokens per sequence. 0: the number of positions of a gpt2 in init, or 1024."),
    INTEGER(model, positions, "0", 1, 1 << 30, "0",
        "gpt2: rows of its position embedding. 0: as in the model in init, or seq_len."),
    INTEGER(model, window, "0", 1, 1 << 30, "0",
        "How many tokens a token sees, itself included (Mistral). 0: as in the model in init, or none."),
    REAL(model, norm_eps, "1e-5", 1e-30, 1.0, NULL, "Epsilon of LayerNorm and RMSNorm."),
    REAL(model, rope_theta, "10000", 1.0, 1e12, NULL,
        "All but gpt2: base of RoPE; Llama 3's is 500000. gemma3_text: of layers without a window."),
    CHOICE(model, rope, "default", ROPES,
        "All but gpt2: how RoPE is scaled. llama3: as in Llama 3.1; others: as the model in init says."),
    TEXT(model, init, "random", false,
        "Initial weights: random, or the directory of a Hugging Face model or of checkpoints."),
    TEXT(model, tokenizer, "", true,
        "Directory whose tokenizer files go into every checkpoint. Empty: that of init."),
    CHOICE(model, recompute, "none", RECOMPUTES,
        "What backward recomputes: nothing, cheap operations, whole blocks; auto: fastest for each."),
    BOOL(model, keep_attention, "false",
        "Blocks with recompute = full keep what attention gives: less to compute again, more memory."),
    REAL_OR_WORD(model, offload_activations, "0", 0.0, 1.0, "auto", (double)ZERO_OFFLOAD_AUTO,
        "GPUs: share of the blocks, the first ones, whose input is in host memory."),

    TEXT(data, train, NULL, false, "Files to train on, separated by commas. Required."),
    TEXT(data, val, "", true, "Files to evaluate on, separated by commas; NAME:FILE makes named sets. Empty: none."),
    CHOICE(data, format, "auto", FORMATS,
        "auto: by the first bytes; megatron if there is an .idx, nanogpt if .bin, else text."),
    CHOICE(data, packing, "auto", PACKINGS,
        "fit: whole documents in a sequence; pad: one; cut: parts. auto: fit for files with a mask."),
    CHOICE(data, long_documents, "truncate", LONG_DOCUMENTS,
        "fit, pad: what becomes of documents longer than a sequence."),
    CHOICE(data, documents, "auto", DOCUMENTS,
        "separate: attention stays within a document, whose positions begin at 0. auto: if packed."),

    CHOICE(train, objective, "next", OBJECTIVES,
        "What is learned: the next token, or by pairs which answer is preferred (dpo; needs [lora])."),
    REAL(train, dpo_beta, "0.1", 1e-9, 1e9, NULL,
        "dpo: how strongly answers are held to those of the model without adapters."),
    INTEGER(train, steps, "1000", 1, 1000 * BILLION, NULL,
        "Optimizer steps of the whole run, on which the schedule is based."),
    REAL(train, epochs, "0", 0.001, 1e6, "0", "Passes over data.train, which set steps. 0: steps is as given."),
    INTEGER_OR_CHOICE(train, micro_batch, "0", 1, 1 << 20, "0", MICRO_BATCHES,
        "Sequences per rank and pass. 0: global_batch / ranks, else 8; auto: the fastest."),
    INTEGER(train, global_batch, "0", 1, INT32_MAX, "0", "Sequences per step, over all ranks. 0: micro_batch x ranks / sequence_ranks."),
    INTEGER_OR_CHOICE(train, sequence_ranks, "1", 1, OPTIONS_MAX_SEQUENCE_RANKS, NULL, SEQUENCE_RANKS,
        "Ranks of a host that share each sequence. auto: as few as batch and memory allow."),
    INTEGER_OR_CHOICE(train, mlp_tile, "auto", 1, 1 << 30, NULL, MLP_TILES,
        "Tokens of which a rank computes the MLP at once. auto: all, of long sequences 16384."),
    REAL(train, lr, "3e-4", 0.0, 1e3, NULL, "Peak learning rate."),
    REAL(train, min_lr, "-1", 0.0, 1e3, "-1", "Learning rate at the last step. -1: lr / 10."),
    INTEGER(train, warmup_steps, "0", 0, 1000 * BILLION, NULL,
        "Steps over which the learning rate rises linearly to lr."),
    CHOICE(train, schedule, "cosine", SCHEDULES,
        "How the learning rate falls after the warm-up. wsd: only over the last fifth of the steps."),
    CHOICE(train, optimizer, "adamw", OPTIMIZERS,
        "muon: for the blocks' matrices, AdamW for the rest; adamw8bit: AdamW, moments in 8 bits."),
    REAL(train, weight_decay, "0.1", 0.0, 1e3, NULL,
        "Weight decay of matrices; decoupled, but sgd and nesterov add it to the gradient."),
    REAL(train, beta1, "0.9", 0.0, 0.999999, NULL,
        "AdamW's decay rate of the first moment; lion's of the average whose sign it takes."),
    REAL(train, beta2, "0.95", 0.0, 0.999999, NULL,
        "AdamW's decay rate of the second moment; lion's of the average that it keeps."),
    REAL(train, momentum, "0.9", 0.0, 0.999999, NULL, "Momentum of sgd and nesterov."),
    REAL(train, muon_momentum, "0.95", 0.0, 0.999999, NULL, "Muon's momentum."),
    INTEGER(train, muon_steps, "5", 1, ZERO_MAX_MUON_STEPS, NULL, "Steps of Muon's Newton-Schulz iteration."),
    REAL(train, eps, "1e-8", 1e-30, 1.0, NULL, "AdamW's epsilon, added to the denominator."),
    REAL(train, grad_clip, "1", 0.0, 1e9, NULL,
        "Largest global gradient norm; larger gradients are scaled down to it. 0: no clipping."),
    CHOICE(train, precision, "bf16", PRECISIONS,
        "Data type of parameters and gradients. Master weights are always fp32."),
    CHOICE(train, fp8, "none", FP8S, "With bf16: the products of the blocks' linear layers in fp8."),
    INTEGER(train, seed, "1", 0, INT64_MAX, NULL, "Seed of the initial weights and of the order of the data."),
    INTEGER(train, eval_every, "0", 0, 1000 * BILLION, NULL,
        "Steps between evaluations on data.val. 0: only after the last step."),
    INTEGER(train, eval_batches, "20", 1, BILLION, NULL, "Global batches per evaluation, of each set; fewer if data.val has fewer."),
    INTEGER(train, sample_every, "0", 0, 1000 * BILLION, NULL, "Steps between samples of generated text. 0: none."),

    INTEGER(lora, rank, "0", 1, 1 << 16, "0",
        "Trains adapters of this rank (LoRA), and the model stays as it is. 0: the model is trained."),
    REAL(lora, alpha, "0", 1e-6, 1e6, "0", "What adapters add is multiplied by alpha / rank. 0: alpha is the rank."),
    TEXT(lora, targets, "all-linear", false,
        "Matrices with adapters: all-linear, or some of q,k,v,o,gate,up,down (gpt2: c_attn,...)."),
    CHOICE(lora, base, "bf16", BASES,
        "How the frozen matrices are held and gathered: in [train] precision, or fp8, a byte each."),
    TEXT(lora, init, "random", false, "First adapters: random, which change nothing yet, or a directory as of PEFT."),
    INTEGER(lora, seed, "-1", 0, INT64_MAX, "-1", "Seed of random adapters. -1: that of [train]."),
    BOOL(lora, rslora, "false", "Multiply by alpha / sqrt(rank) instead: rank-stabilized LoRA."),

    INTEGER_OR_CHOICE(zero, stage, "3", 0, 3, NULL, STAGES,
        "What is sharded: 0 nothing, 1 optimizer state, 2 also gradients, 3 also parameters."),
    CHOICE(zero, offload, "none", OFFLOADS, "What is kept in host memory. all: parameters, too, at stage 3."),
    REAL_OR_WORD(zero, offload_ratio, "1", 0.0, 1.0, "auto", (double)ZERO_OFFLOAD_AUTO,
        "Fraction of the optimizer state to offload. auto: the fastest."),
    REAL_OR_WORD(zero, offload_params_ratio, "1", 0.0, 1.0, "auto", (double)ZERO_OFFLOAD_AUTO,
        "Fraction of the parameters that offload = all keeps in host memory. auto: least or fastest."),
    CHOICE(zero, gradients, "fp32", GRADIENTS,
        "What summed gradients are rounded to. bf16: 2 bytes instead of 4 where a step reduces once."),
    CHOICE(zero, update, "step", UPDATES,
        "When weights are updated. backward: unit by unit, keeping no gradients; needs grad_clip = 0."),
    CHOICE(zero, offload_update, "auto", OFFLOAD_UPDATES,
        "What updates offloaded state. auto: the GPU if host memory can be pinned, else the CPU."),
    INTEGER(zero, offload_threads, "0", 0, ZERO_MAX_OFFLOAD_THREADS, NULL,
        "CPU threads per rank for the update. 0: its share of the cores near its GPU, minus one."),
    REAL(zero, offload_ram, "0.5", 0.01, 1.0, NULL,
        "Fraction of the host's memory that all its ranks together may use for offload."),
    INTEGER(zero, prefetch, "1", 0, 1000, NULL, "Stage 3: units that are gathered ahead of their use."),
    INTEGER_OR_CHOICE(zero, keep, "0", 0, 10000, NULL, KEEPS,
        "Stage 3: last blocks that stay gathered until backward. auto: the fastest."),
    BOOL(zero, overlap, "true", "Communicate while computing."),
    BOOL(zero, reduce_every_micro_step, "true",
        "Stages 0-1: reduce every micro-step. false: once per step; bits depend on how many ranks."),
    INTEGER_OR_CHOICE(zero, shard_group, "world", 1, 1 << 20, NULL, SHARD_GROUPS,
        "Stage 3: ranks that share a copy of the parameters and gather within their group."),
    CHOICE(zero, comm, "auto", COMMS,
        "auto: copy engines inside a host, NCCL between hosts. mpi: by host memory, slow."),
    CHOICE(zero, reduction, "ordered", REDUCTIONS,
        "How gradients are summed: by micro-batch, for equal bits everywhere, or by NCCL."),
    CHOICE(zero, gather, "bf16", GATHERS,
        "Gather the matrices of [train] fp8 in bf16 or fp8: same bits, half the bytes."),
    BOOL(zero, check, "false", "For debugging: stop at a gradient that is not fully written, and name it. Slow."),

    CHOICE(device, type, "auto", DEVICES,
        "Where to compute. auto: on GPUs if there are any. cuda-shared: ranks may share a GPU."),
    BOOL(device, graphs, "true", "GPUs: launch each unit's kernels as one CUDA graph."),
    REAL(device, memory, "0", 0.001, 1e6, "0",
        "GiB of device memory that a rank may use. 0: what is free when the run starts."),

    TEXT(checkpoint, dir, "", true, "Directory of the checkpoints. Empty: none are saved."),
    INTEGER(checkpoint, every, "0", 0, 1000 * BILLION, NULL, "Steps between checkpoints. 0: only when the run ends."),
    INTEGER(checkpoint, keep, "2", 1, BILLION, NULL, "How many checkpoints to keep."),
    BOOL(checkpoint, best, "false", "Keep the one with the lowest val_loss as well, in dir/best."),
    BOOL(checkpoint, async, "true", "Write checkpoints while training continues, from a copy in host memory."),
    TEXT(checkpoint, memory_dir, "", true, "Directory in each host's memory, below /dev/shm, for memory_every."),
    INTEGER(checkpoint, memory_every, "0", 0, 1000 * BILLION, NULL,
        "Steps that a lost process may cost: checkpoints in memory_dir. 0: none."),

    INTEGER(log, every, "10", 0, 1000 * BILLION, NULL,
        "Steps between lines of progress. 0: only the first and last step."),
    TEXT(log, metrics, "", true, "File for metrics, one JSON object per step. Empty: none."),
    TEXT(log, tensorboard, "", true, "Directory for TensorBoard event files. Empty: none."),
    TEXT(log, trace, "", true, "File for a timeline of every rank, for ui.perfetto.dev. Empty: none."),

    /* Recorded only. */
    REAL(model, rope_factor, "1", 1.0, 1e6, NULL, "Wavelengths over original / low_freq are scaled by this."),
    REAL(model, rope_low_freq, "1", 1e-3, 1e6, NULL, "Where scaling in full begins."),
    REAL(model, rope_high_freq, "4", 1e-3, 1e6, NULL, "Wavelengths below original / this are not scaled."),
    INTEGER(model, rope_original, "8192", 1, 1 << 24, NULL, "Positions that the model was made for before scaling."),
    REAL(model, rope_beta_fast, "32", 1e-3, 1e6, NULL, "yarn: pairs that turn more often than this are not scaled."),
    REAL(model, rope_beta_slow, "1", 1e-3, 1e6, NULL, "yarn: pairs that turn less often are scaled in full."),
    BOOL(model, rope_truncate, "true", "yarn: the range between both begins and ends at whole pairs."),
    REAL(model, rope_scale, "1", 1e-3, 1e3, NULL, "yarn, longrope: factor of what is rotated."),
    TEXT(model, rope_divisors, "", true, "longrope: divisors of the frequencies, one a pair."),
    REAL(model, rope_share, "1", 1e-3, 1.0, NULL, "Share of a head's elements that is rotated."),
    REAL(model, rope_local_theta, "0", 1.0, 1e12, "0", "theta of layers with a window. 0: as of all."),
    TEXT(model, layer_kinds, "", true, "A letter a layer: f sees all, s its window; n and w: likewise, unrotated."),
    BOOL(model, qkv_bias, "false", "Biases of q, k and v."),
    BOOL(model, out_bias, "false", "Bias of attention's output."),
    BOOL(model, mlp_bias, "false", "Biases of the MLP."),
    REAL(model, attention_multiplier, "0", 1e-9, 1e9, "0", "Factor of attention's scores. 0: 1 / sqrt(query_scalar)."),
    INTEGER(model, query_scalar, "0", 1, 1 << 24, "0", "Scores are divided by its square root. 0: head_dim."),
    REAL(model, embedding_multiplier, "1", 1e-9, 1e9, NULL, "Factor of the embedded tokens."),
    REAL(model, residual_multiplier, "1", 1e-9, 1e9, NULL, "Factor of what a layer adds to the residual stream."),
    REAL(model, logits_scaling, "1", 1e-9, 1e9, NULL, "Divisor of the logits."),
    INTEGER(model, recompute_none, "0", 0, 10000, NULL, "Blocks, the last ones, that recompute nothing."),
    INTEGER(model, recompute_light, "0", 0, 10000, NULL,
        "Blocks, before those, that recompute cheap operations at most."),
};
/* clang-format on */

enum { N_RECORDED_ONLY = 22 };
const int n_recorded_rows = (int)(sizeof option_rows / sizeof option_rows[0]);
const int n_option_rows = (int)(sizeof option_rows / sizeof option_rows[0]) - N_RECORDED_ONLY;
_Static_assert(sizeof option_rows / sizeof option_rows[0] <= OPTIONS_MAX_KEYS, "options_t.given has too few bits");

static const option_row_t *find_row(const char *section, const char *key, int n_rows)
{
    for (int i = 0; i < n_rows; i++)
        if (strcmp(option_rows[i].section, section) == 0 && strcmp(option_rows[i].key, key) == 0)
            return &option_rows[i];
    return NULL;
}

const option_row_t *option_row_find(const char *section, const char *key)
{
    return find_row(section, key, n_option_rows);
}

const option_row_t *option_row_find_recorded(const char *section, const char *key)
{
    return find_row(section, key, n_recorded_rows);
}

bool option_begins_section(const option_row_t *row)
{
    return row == option_rows || strcmp(row->section, row[-1].section) != 0;
}

bool option_section_exists(const char *section)
{
    for (int i = 0; i < n_option_rows; i++)
        if (strcmp(option_rows[i].section, section) == 0)
            return true;
    return false;
}
