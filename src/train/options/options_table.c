/* options_table.c - every setting of zerotrain: one row each. Parser, --help, defaults, dump and reference follow. */
#include "train/options/options_table.h"

#include <string.h>

static const option_choice_t ARCHS[] = {{"gpt2", ARCH_GPT2}, {"llama", ARCH_LLAMA}, {0}};
static const option_choice_t RECOMPUTES[] = {
    {"none", RECOMPUTE_NONE}, {"light", RECOMPUTE_LIGHT}, {"full", RECOMPUTE_FULL}, {0}};
static const option_choice_t FORMATS[] = {{"auto", FORMAT_AUTO},         {"text", FORMAT_TEXT},
                                          {"llmc", FORMAT_LLMC},         {"nanogpt", FORMAT_NANOGPT},
                                          {"megatron", FORMAT_MEGATRON}, {0}};
static const option_choice_t SCHEDULES[] = {{"cosine", SCHEDULE_COSINE},
                                            {"linear", SCHEDULE_LINEAR},
                                            {"constant", SCHEDULE_CONSTANT},
                                            {"wsd", SCHEDULE_WSD},
                                            {0}};
static const option_choice_t PRECISIONS[] = {{"bf16", ZERO_BF16}, {"fp32", ZERO_FP32}, {"fp16", ZERO_FP16}, {0}};
static const option_choice_t OFFLOADS[] = {{"none", OFFLOAD_NONE}, {"optimizer", OFFLOAD_OPTIMIZER}, {0}};
static const option_choice_t OFFLOAD_UPDATES[] = {{"auto", ZERO_OFFLOAD_UPDATE_AUTO},
                                                  {"device", ZERO_OFFLOAD_UPDATE_DEVICE},
                                                  {"host", ZERO_OFFLOAD_UPDATE_HOST},
                                                  {0}};
static const option_choice_t COMMS[] = {
    {"auto", ZERO_COMM_AUTO}, {"nccl", ZERO_COMM_NCCL}, {"mpi", ZERO_COMM_MPI}, {0}};
static const option_choice_t REDUCTIONS[] = {{"ordered", REDUCTION_ORDERED}, {"nccl", REDUCTION_NCCL}, {0}};
static const option_choice_t DEVICES[] = {{"auto", ZERO_DEVICE_AUTO},
                                          {"cuda", ZERO_DEVICE_CUDA},
                                          {"cpu", ZERO_DEVICE_CPU},
                                          {"cuda-shared", ZERO_DEVICE_CUDA_SHARED},
                                          {0}};

/* Each row's name is written once and gives section, key and field. */
#define NAMED(section_, key_) .section = #section_, .key = #key_, .offset = offsetof(options_t, section_.key_)
#define INTEGER(section_, key_, initial_, low_, high_, derived_, help_)                                                \
    {                                                                                                                  \
        NAMED(section_, key_), .type = OPTION_INTEGER, .initial = initial_, .low = low_, .high = high_,                \
                               .derived = derived_, .help = help_                                                      \
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
    CHOICE(model, arch, "gpt2", ARCHS, "Architecture."),
    INTEGER(model, layers, NULL, 1, 10000, NULL, "Transformer blocks. Required, unless init names a model."),
    INTEGER(model, dim, NULL, 1, 1 << 20, NULL, "Width of the residual stream. Required, unless init names a model."),
    INTEGER(model, heads, NULL, 1, 1 << 16, NULL,
        "Attention heads; dim is a multiple. Required, unless init names a model."),
    INTEGER(model, kv_heads, "0", 1, 1 << 16, "0", "Heads of keys and values; heads is a multiple. 0: as many."),
    INTEGER(model, ffn_dim, "0", 1, 1 << 24, "0",
        "Width of the MLP. 0: 4 dim; llama: 8/3 dim, up to a multiple of 256."),
    INTEGER(model, vocab_size, "0", 1, INT32_MAX, "0",
        "Tokens of the vocabulary. 0: of the model in init, else 256, which takes any bytes."),
    INTEGER(model, seq_len, "0", 1, 1 << 24, "0", "Tokens of a sequence. 0: those of a gpt2 in init, else 1024."),
    REAL(model, norm_eps, "1e-5", 1e-30, 1.0, NULL, "Epsilon of LayerNorm and RMSNorm."),
    REAL(model, rope_theta, "10000", 1.0, 1e12, NULL, "llama: base of the rotary frequencies; Llama 3 has 500000."),
    TEXT(model, init, "random", false, "Where weights come from: random, or a directory with a model."),
    CHOICE(model, recompute, "none", RECOMPUTES,
        "What backward computes again to save memory: nothing, cheap parts, blocks."),

    TEXT(data, train, NULL, false, "Files to train on, separated by commas. Required."),
    TEXT(data, val, "", true, "Files to evaluate on, separated by commas. Empty: no evaluation."),
    CHOICE(data, format, "auto", FORMATS, "auto: Megatron by its .idx, llm.c by its first number, nanoGPT by .bin, else text."),

    INTEGER(train, steps, "1000", 1, 1000 * BILLION, NULL, "Optimizer steps of the whole run, which schedules follow."),
    INTEGER(train, micro_batch, "0", 1, 1 << 20, "0", "Sequences per rank and pass. 0: global_batch by ranks, or 8."),
    INTEGER(train, global_batch, "0", 1, INT32_MAX, "0", "Sequences of a step, all ranks. 0: micro_batch times ranks."),
    REAL(train, lr, "3e-4", 0.0, 1e3, NULL, "Highest learning rate."),
    REAL(train, min_lr, "-1", 0.0, 1e3, "-1", "Learning rate at the last step. -1: lr / 10."),
    INTEGER(train, warmup_steps, "0", 0, 1000 * BILLION, NULL, "Steps over which the learning rate rises to lr."),
    CHOICE(train, schedule, "cosine", SCHEDULES,
        "How lr falls after the warm-up. wsd: in the last fifth of the steps."),
    REAL(train, weight_decay, "0.1", 0.0, 1e3, NULL, "Decoupled weight decay of AdamW, on matrices only."),
    REAL(train, beta1, "0.9", 0.0, 0.999999, NULL, "AdamW's decay of the first moment."),
    REAL(train, beta2, "0.95", 0.0, 0.999999, NULL, "AdamW's decay of the second moment."),
    REAL(train, eps, "1e-8", 1e-30, 1.0, NULL, "AdamW's epsilon."),
    REAL(train, grad_clip, "1", 0.0, 1e9, NULL, "Largest global gradient norm. 0: no clipping."),
    CHOICE(train, precision, "bf16", PRECISIONS, "Type of parameters and gradients; master weights are fp32."),
    INTEGER(train, seed, "1", 0, INT64_MAX, NULL, "Of initial weights and of the order of the data."),
    INTEGER(train, eval_every, "0", 0, 1000 * BILLION, NULL,
        "Steps between evaluations on data.val. 0: at the end only."),
    INTEGER(train, eval_batches, "20", 1, BILLION, NULL, "Global batches of one evaluation."),
    INTEGER(train, sample_every, "0", 0, 1000 * BILLION, NULL, "Steps between samples of generated text. 0: none."),

    INTEGER(zero, stage, "3", 0, 3, NULL,
        "What is sharded: 0 nothing, 1 optimizer state, 2 and gradients, 3 and parameters."),
    CHOICE(zero, offload, "none", OFFLOADS, "What is kept in host memory."),
    REAL_OR_WORD(zero, offload_ratio, "1", 0.0, 1.0, "auto", (double)ZERO_OFFLOAD_AUTO,
        "Part of the state that is offloaded. auto: the least that fits the GPUs."),
    CHOICE(zero, offload_update, "auto", OFFLOAD_UPDATES,
        "Who updates offloaded state. auto: the GPU, where its memory can be pinned, else the CPU."),
    INTEGER(zero, offload_threads, "0", 0, ZERO_MAX_OFFLOAD_THREADS, NULL,
        "Threads a rank for the host's update. 0: its share of the cores near its GPU, but one."),
    REAL(zero, offload_ram, "0.5", 0.01, 1.0, NULL, "Part of the host's memory that offload may take, for all its ranks."),
    INTEGER(zero, prefetch, "1", 0, 1000, NULL, "Stage 3: units gathered ahead of their use."),
    BOOL(zero, overlap, "true", "Communication beside computation."),
    BOOL(zero, reduce_every_micro_step, "false", "Stages 0-1: reduce gradients as stages 2-3 do, for equal bits."),
    CHOICE(zero, comm, "auto", COMMS, "auto: between the GPUs of one host copy engines, else NCCL; mpi: host memory, slow."),
    CHOICE(zero, reduction, "ordered", REDUCTIONS, "Sum of gradients: in rank order, for equal bits, or as NCCL does."),
    BOOL(zero, check, "false", "Find gradients that nobody writes, by name. For tests: it takes time."),

    CHOICE(device, type, "auto", DEVICES, "Where to compute. auto: on GPUs where there are any; shared: ranks may share."),
    BOOL(device, graphs, "true", "GPUs: a unit's kernels start together, as a CUDA graph."),

    TEXT(checkpoint, dir, "", true, "Directory of the checkpoints. Empty: none."),
    INTEGER(checkpoint, every, "0", 0, 1000 * BILLION, NULL, "Steps between checkpoints. 0: at the end only."),
    INTEGER(checkpoint, keep, "2", 1, BILLION, NULL, "How many checkpoints are kept."),
    BOOL(checkpoint, async, "true", "Write while training goes on, from a copy in host memory."),

    INTEGER(log, every, "10", 0, 1000 * BILLION, NULL, "Steps between lines of progress. 0: none."),
    TEXT(log, metrics, "", true, "File for metrics, one JSON object per step. Empty: none."),
    TEXT(log, tensorboard, "", true, "Directory for TensorBoard's event files. Empty: none."),
    TEXT(log, trace, "", true, "File for a trace of what every rank did when, for Perfetto. Empty: none."),
};
/* clang-format on */

const int n_option_rows = (int)(sizeof option_rows / sizeof option_rows[0]);

const option_row_t *option_row_find(const char *section, const char *key)
{
    for (int i = 0; i < n_option_rows; i++)
        if (strcmp(option_rows[i].section, section) == 0 && strcmp(option_rows[i].key, key) == 0)
            return &option_rows[i];
    return NULL;
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
