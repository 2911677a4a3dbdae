/* options_resolve.c - checks settings against each other and the number of ranks, and derives those not set. */
#include <inttypes.h>
#include <math.h>

#include "train/options/families.h"
#include "train/options/lora_targets.h"
#include "train/options/options.h"
#include "train/options/options_table.h"
#include "train/report/report.h"

static zero_status_t require_size(const char *key, int64_t value)
{
    if (value > 0)
        return ZERO_OK;
    return report_error(ZERO_ERROR_USAGE, "[model] %s is missing: set it, or init to a directory with a model", key);
}

static zero_status_t check_heads(const model_options_t *model)
{
    int64_t dim = model->dim, heads = model->heads, head_dim = model->head_dim;
    if (head_dim == 0 && dim % heads)
        return report_error(ZERO_ERROR_USAGE, "[model] dim: %" PRId64 " is not divisible by heads = %" PRId64, dim,
                            heads);
    if (options_head_dim(model) > OPTIONS_MAX_HEAD_DIM)
        return report_error(ZERO_ERROR_USAGE,
                            "[model] heads: %" PRId64 " of dim = %" PRId64 " are of %" PRId64
                            " elements each, more than %d: take more heads",
                            heads, dim, options_head_dim(model), OPTIONS_MAX_HEAD_DIM);
    if (model->arch == ARCH_GPT2 && head_dim > 0 && (dim % heads || head_dim != dim / heads))
        return report_error(ZERO_ERROR_USAGE,
                            "[model] head_dim: gpt2's heads have dim / heads = %" PRId64 " / %" PRId64
                            " elements, not %" PRId64 ": leave it out",
                            dim, heads, head_dim);
    return ZERO_OK;
}

/* Only a GPT-2 has a table of positions. Sequences may be shorter. */
static zero_status_t resolve_positions(model_options_t *model)
{
    int64_t *positions = &model->positions;
    if (model->arch != ARCH_GPT2 && *positions > 0)
        return report_error(ZERO_ERROR_USAGE, "[model] positions: only gpt2 has a table of positions, leave it out");
    if (model->arch == ARCH_GPT2 && *positions == 0)
        *positions = model->seq_len;
    if (*positions > 0 && *positions < model->seq_len)
        return report_error(ZERO_ERROR_USAGE,
                            "[model] positions: %" PRId64 " are fewer than seq_len = %" PRId64
                            ": set positions to seq_len or more, or leave it out",
                            *positions, model->seq_len);
    return ZERO_OK;
}

static zero_status_t resolve_model(model_options_t *model)
{
    int64_t dim = model->dim, heads = model->heads;
    ZERO_TRY(require_size("layers", model->layers));
    ZERO_TRY(require_size("dim", dim));
    ZERO_TRY(require_size("heads", heads));
    ZERO_TRY(check_heads(model));
    if (model->kv_heads == 0)
        model->kv_heads = heads;
    if (heads % model->kv_heads)
        return report_error(ZERO_ERROR_USAGE, "[model] heads: %" PRId64 " is not divisible by kv_heads = %" PRId64,
                            heads, model->kv_heads);
    if (model->arch == ARCH_GPT2 && model->kv_heads != heads)
        return report_error(ZERO_ERROR_USAGE, "[model] kv_heads: gpt2 has as many as heads = %" PRId64 ", not %" PRId64,
                            heads, model->kv_heads);
    if (model->head_dim == 0)
        model->head_dim = dim / heads;
    ZERO_TRY(family_resolve(model));
    if (model->vocab_size == 0)
        model->vocab_size = 256; /* bytes */
    if (model->seq_len == 0)
        model->seq_len = OPTIONS_SEQ_LEN;
    ZERO_TRY(resolve_positions(model));
    return ZERO_OK;
}

/* ---- a sequence that ranks share ---- */

options_heads_t options_heads_of(const model_options_t *model, int64_t n_ranks, int64_t i)
{
    const int64_t kv_heads = model->kv_heads, group = model->heads / kv_heads;
    if (n_ranks <= kv_heads) {
        const int64_t first = kv_heads * i / n_ranks, n = kv_heads * (i + 1) / n_ranks - first;
        return (options_heads_t){.first_head = first * group, .n_heads = n * group, .first_kv = first, .n_kv = n};
    }
    /* kv head h is of ranks begin(h) .. begin(h + 1), begin(h) = ceil(n_ranks h / kv_heads). */
    const int64_t kv = kv_heads * i / n_ranks, begin = (n_ranks * kv + kv_heads - 1) / kv_heads;
    const int64_t end = (n_ranks * (kv + 1) + kv_heads - 1) / kv_heads, among = i - begin, n_sharing = end - begin;
    const int64_t first = group * among / n_sharing;
    return (options_heads_t){.first_head = kv * group + first,
                             .n_heads = group * (among + 1) / n_sharing - first,
                             .first_kv = kv,
                             .n_kv = 1};
}

options_heads_t options_most_heads(const options_t *o)
{
    const int64_t n_ranks = options_sequence_ranks(&o->train);
    options_heads_t most = {0};
    for (int64_t i = 0; i < n_ranks; i++) {
        const options_heads_t heads = options_heads_of(&o->model, n_ranks, i);
        most.n_heads = heads.n_heads > most.n_heads ? heads.n_heads : most.n_heads;
        most.n_kv = heads.n_kv > most.n_kv ? heads.n_kv : most.n_kv;
    }
    return most;
}

/* Rows of a tile: large enough for products to be fast. */
#define TILE_ROWS 16384

/* What only computes in one piece: fp8 has one scale for all rows, adapters keep what they make of them. */
static const char *why_not_tiled(const options_t *o)
{
    if (o->model.arch == ARCH_GPT2)
        return "arch = gpt2";
    return o->train.fp8 != FP8_NONE ? "fp8" : o->lora.rank > 0 ? "[lora]" : NULL;
}

int64_t options_tile_rows(const options_t *o)
{
    const int64_t rows = o->train.micro_batch * options_longest_part(o);
    const int64_t tile = o->train.mlp_tile != MLP_TILE_AUTO ? o->train.mlp_tile
                         : rows > OPTIONS_TILED_ROWS        ? TILE_ROWS
                                                            : 0;
    return why_not_tiled(o) || tile >= rows ? 0 : tile;
}

static zero_status_t check_tile(const options_t *o)
{
    const char *why = why_not_tiled(o);
    if (o->train.mlp_tile == MLP_TILE_AUTO || !why)
        return ZERO_OK;
    return report_error(ZERO_ERROR_USAGE,
                        "[train] mlp_tile: %" PRId64 ": with %s the MLP is computed at once: use auto",
                        o->train.mlp_tile, why);
}

static zero_status_t check_sequence_ranks(const options_t *o, int64_t world_size)
{
    const int64_t n_ranks = o->train.sequence_ranks;
    if (world_size % n_ranks != 0)
        return report_error(ZERO_ERROR_USAGE,
                            "[train] sequence_ranks: %" PRId64 " ranks to a sequence do not divide the %" PRId64
                            " rank%s%s",
                            n_ranks, world_size, world_size == 1 ? "" : "s",
                            options_are_forward_only(o) ? ": --set train.sequence_ranks=1 evaluates on any number"
                                                        : ": start a multiple of that many, or lower sequence_ranks");
    if (n_ranks > OPTIONS_MAX_SEQUENCE_RANKS)
        return report_error(ZERO_ERROR_USAGE,
                            "[train] sequence_ranks: auto needs %" PRId64 " ranks to a sequence, and at most %d can "
                            "share one: set a larger global_batch, or start fewer ranks",
                            n_ranks, OPTIONS_MAX_SEQUENCE_RANKS);
    if (n_ranks > o->model.heads)
        return report_error(ZERO_ERROR_USAGE,
                            "[train] sequence_ranks: %" PRId64 " ranks share a sequence, and attention has %" PRId64
                            " heads ([model] heads): each rank needs one, take fewer ranks",
                            n_ranks, o->model.heads);
    if (n_ranks > o->model.seq_len)
        return report_error(ZERO_ERROR_USAGE,
                            "[train] sequence_ranks: %" PRId64 " ranks share a sequence of %" PRId64
                            " tokens ([model] seq_len): each rank needs one, take fewer ranks",
                            n_ranks, o->model.seq_len);
    return ZERO_OK;
}

/* auto: the fewest ranks with which every group has sequences of the step; with pairs one, which holds whole ones. */
static zero_status_t resolve_sequence_ranks(options_t *o, int64_t world_size)
{
    int64_t *n_ranks = &o->train.sequence_ranks;
    const int64_t global = o->train.global_batch;
    if (*n_ranks == SEQUENCE_RANKS_AUTO) {
        *n_ranks = 1;
        while (o->train.objective != OBJECTIVE_DPO && global > 0 && *n_ranks < world_size &&
               (world_size % *n_ranks != 0 || global % (world_size / *n_ranks) != 0))
            ++*n_ranks;
    }
    return check_sequence_ranks(o, world_size);
}

/* n_groups: ranks, or groups of them that share a sequence. */
static zero_status_t resolve_batch(train_options_t *train, int64_t n_groups)
{
    const char *of = train->sequence_ranks > 1 ? "groups of ranks that share a sequence" : "ranks";
    int64_t micro = train->micro_batch, global = train->global_batch;
    if (micro == MICRO_BATCH_AUTO && global == 0)
        return report_error(ZERO_ERROR_USAGE, "[train] micro_batch = auto: set global_batch, the sequences of a step, "
                                              "which it divides");
    if (micro == 0 && global == 0)
        micro = 8;
    if (global == 0)
        global = micro * n_groups; /* at most 2^20 * 2^31: no overflow */
    if (global < n_groups)
        return report_error(ZERO_ERROR_USAGE,
                            "[train] global_batch: %" PRId64 " sequences are fewer than the %" PRId64 " %s%s", global,
                            n_groups, of,
                            train->sequence_ranks > 1 || train->objective == OBJECTIVE_DPO
                                ? ": set a larger one, or start fewer ranks"
                                : ": [train] sequence_ranks lets ranks share one");
    if (global % n_groups)
        return report_error(ZERO_ERROR_USAGE,
                            "[train] global_batch: %" PRId64 " is not divisible by the number of %s, %" PRId64, global,
                            of, n_groups);
    if (micro == 0)
        micro = global / n_groups;
    if (micro != MICRO_BATCH_AUTO && global / n_groups % micro)
        return report_error(ZERO_ERROR_USAGE,
                            "[train] global_batch: %" PRId64 " is not divisible by micro_batch * %s = %" PRId64
                            " * %" PRId64,
                            global, of, micro, n_groups);
    train->micro_batch = micro;
    train->global_batch = global;
    return ZERO_OK;
}

/* Upper bounds, in fp32: no architecture keeps this much per layer (arch.c), and no kernel's workspace is as large. */
static double most_bytes(const model_options_t *model, int64_t micro_batch)
{
    const double micro = micro_batch == MICRO_BATCH_AUTO ? 1.0 : (double)micro_batch;
    const double rows = micro * (double)model->seq_len, vocab = (double)model->vocab_size;
    const double heads = (double)model->heads, ffn = (double)model->ffn_dim;
    const double dim = fmax((double)model->dim, heads * (double)options_head_dim(model));
    const double bytes[] = {4.0 * rows * (double)(model->layers + 4) * (16.0 * dim + 8.0 * ffn + 4.0 * heads + 16.0),
                            16.0 * rows * vocab, 16.0 * dim * (vocab + 4.0 * ffn + 4.0 * dim),
                            /* scores: of the CPU's blocks of rows, in each of at most 4096 threads (device.c) */
                            4096.0 * 2.0 * 64.0 * 4.0 * ((double)model->seq_len + 32.0)};
    double most = bytes[0];
    for (size_t i = 1; i < sizeof bytes / sizeof bytes[0]; i++)
        most = bytes[i] > most ? bytes[i] : most;
    return most;
}

/* The positions of a pass are fewer than 2^31, and all activations and workspaces together smaller than 2^62 bytes. */
#define MOST_ROWS 0x1p31
#define MOST_BYTES 0x1p60

bool options_are_countable(const options_t *o)
{
    return (double)o->train.micro_batch * (double)o->model.seq_len < MOST_ROWS &&
           most_bytes(&o->model, o->train.micro_batch) < MOST_BYTES;
}

/* The tokens of a whole run are counted: they are fewer than 2^61. */
zero_status_t options_check_steps(const options_t *o)
{
    const double tokens = (double)o->train.steps * (double)o->train.global_batch * (double)o->model.seq_len;
    if (tokens >= 0x1p61)
        return report_error(ZERO_ERROR_USAGE,
                            "[train] steps: %" PRId64 " of %" PRId64 " sequences (global_batch) of %" PRId64
                            " tokens (seq_len) are %.2g tokens, more than can be counted",
                            o->train.steps, o->train.global_batch, o->model.seq_len, tokens);
    if (o->train.warmup_steps > o->train.steps)
        return report_error(ZERO_ERROR_USAGE, "[train] warmup_steps: %" PRId64 " are more than steps = %" PRId64,
                            o->train.warmup_steps, o->train.steps);
    return ZERO_OK;
}

/* Of epochs the steps are not known yet. */
static zero_status_t check_length(const options_t *o)
{
    if (o->train.epochs == 0.0)
        return options_check_steps(o);
    if (option_is_given(o, option_row_find("train", "steps")))
        return report_error(ZERO_ERROR_USAGE, "[train] steps and epochs: give one of them");
    return ZERO_OK;
}

/* Checks bounds that later arithmetic relies on. */
static zero_status_t check_sizes(const options_t *o)
{
    const double rows = (double)o->train.micro_batch * (double)o->model.seq_len,
                 bytes = most_bytes(&o->model, o->train.micro_batch);
    if (rows >= MOST_ROWS)
        return report_error(ZERO_ERROR_USAGE,
                            "[train] micro_batch: %" PRId64 " sequences of %" PRId64
                            " tokens (seq_len) in one pass are more than 2^31 - 1 tokens",
                            o->train.micro_batch, o->model.seq_len);
    if (bytes >= MOST_BYTES)
        return report_error(ZERO_ERROR_USAGE,
                            "[model], [train] micro_batch: to train a model of these sizes takes up to %.2g bytes "
                            "beside its weights, more than any memory has",
                            bytes);
    return ZERO_OK;
}

/* Other blocks keep what attention gives in any case. */
static zero_status_t check_keep_attention(const model_options_t *model)
{
    const int recompute = model->recompute;
    if (!model->keep_attention || (recompute != RECOMPUTE_NONE && recompute != RECOMPUTE_LIGHT))
        return ZERO_OK;
    return report_error(ZERO_ERROR_USAGE,
                        "[model] keep_attention: with recompute = %s blocks keep what attention gives in any case: set "
                        "recompute = full, or leave it out",
                        recompute == RECOMPUTE_NONE ? "none" : "light");
}

/* Checks that the blocks' products have extents that GPUs can multiply in fp8. */
static zero_status_t check_fp8(const options_t *o)
{
    const int64_t head_dim = options_head_dim(&o->model), n_parts = options_sequence_ranks(&o->train);
    const struct {
        const char *keys, *matrix;
        int64_t extent;
    } extents[] = {
        {"[model] dim", "the residual stream", o->model.dim},
        {"[model] ffn_dim", "the MLP", o->model.ffn_dim},
        {"[model] kv_heads", "q, k and v together", (o->model.heads + 2 * o->model.kv_heads) * head_dim},
        {"[model] head_dim", "the heads together", o->model.heads * head_dim},
        {"[train] micro_batch", n_parts > 1 ? "micro_batch * seq_len / sequence_ranks" : "micro_batch * seq_len",
         o->train.micro_batch == MICRO_BATCH_AUTO ? 0 : o->train.micro_batch * options_longest_part(o)},
    };
    if (o->train.fp8 == FP8_NONE && o->zero.gather == GATHER_FP8)
        return report_error(ZERO_ERROR_USAGE, "[zero] gather = fp8 is for matrices that are multiplied in fp8: set "
                                              "[train] fp8 = linear, or use gather = bf16");
    if (o->train.fp8 == FP8_NONE)
        return ZERO_OK;
    if (o->train.precision != ZERO_BF16)
        return report_error(ZERO_ERROR_USAGE, "[train] fp8: precision = %s: fp8 is for bf16, use that or fp8 = none",
                            zero_dtype_name((zero_dtype_t)o->train.precision));
    for (size_t i = 0; i < sizeof extents / sizeof extents[0]; i++)
        if (extents[i].extent % OPTIONS_FP8_MULTIPLE != 0)
            return report_error(ZERO_ERROR_USAGE,
                                "%s: %s: %" PRId64 " is no multiple of %d, as [train] fp8 needs: change it, or use "
                                "fp8 = none",
                                extents[i].keys, extents[i].matrix, extents[i].extent, OPTIONS_FP8_MULTIPLE);
    if (o->model.seq_len % n_parts != 0)
        return report_error(ZERO_ERROR_USAGE,
                            "[train] sequence_ranks: %" PRId64 " ranks have unequal parts of seq_len = %" PRId64
                            " tokens, which [train] fp8 cannot multiply: change it, or use fp8 = none",
                            n_parts, o->model.seq_len);
    return ZERO_OK;
}

/* Parameters are offloaded at stage 3, after all else of their units, and gathered in their own precision. */
static zero_status_t resolve_offload(options_t *o)
{
    const double params = o->zero.offload_params_ratio, state = o->zero.offload_ratio;
    const bool is_given = option_is_given(o, option_row_find("zero", "offload_params_ratio"));
    if (o->zero.offload != OFFLOAD_ALL) {
        if (is_given)
            return report_error(ZERO_ERROR_USAGE,
                                "[zero] offload_params_ratio: offload = %s keeps no parameters in host "
                                "memory: set offload = all, or leave it out",
                                o->zero.offload == OFFLOAD_NONE ? "none" : "optimizer");
        return ZERO_OK;
    }
    if (o->zero.stage == STAGE_AUTO)
        o->zero.stage = 3;
    if (o->zero.stage != 3 && !o->plan)
        return report_error(ZERO_ERROR_USAGE,
                            "[zero] offload = all: stage %" PRId64 ": parameters are offloaded at stage "
                            "3: use that, or offload = optimizer",
                            o->zero.stage);
    if (o->zero.gather == GATHER_FP8)
        return report_error(ZERO_ERROR_USAGE,
                            "[zero] offload = all: gather = fp8: offloaded parameters are gathered in "
                            "bf16: use gather = bf16, or offload = optimizer");
    if (!options_are_forward_only(o) && state >= 0.0 && params > state) {
        if (is_given)
            return report_error(ZERO_ERROR_USAGE,
                                "[zero] offload_params_ratio: %g: a unit's optimizer state is offloaded "
                                "before its parameters: set no more than offload_ratio = %g",
                                params, state);
        o->zero.offload_params_ratio = state;
    }
    return ZERO_OK;
}

/* The reference is the model without its adapters, and a pair is within a sequence. */
static zero_status_t check_objective(const options_t *o)
{
    const bool is_dpo = o->train.objective == OBJECTIVE_DPO;
    if (!is_dpo && !options_are_forward_only(o) && option_is_given(o, option_row_find("train", "dpo_beta")))
        return report_error(ZERO_ERROR_USAGE, "[train] dpo_beta: it is for objective = dpo: set that, or leave it out");
    if (!is_dpo)
        return ZERO_OK;
    if (o->lora.rank == 0)
        return report_error(ZERO_ERROR_USAGE,
                            "[train] objective = dpo: it trains adapters, and the model without them is the reference: "
                            "set [lora] rank");
    if (options_sequence_ranks(&o->train) > 1)
        return report_error(ZERO_ERROR_USAGE,
                            "[train] objective = dpo: sequence_ranks = %" PRId64
                            ": a rank computes whole pairs: use sequence_ranks = 1",
                            o->train.sequence_ranks);
    if (o->model.seq_len < 2)
        return report_error(ZERO_ERROR_USAGE, "[model] seq_len: 1: the two answers of a pair ([train] objective = dpo) "
                                              "share a sequence: set 2 or more");
    return ZERO_OK;
}

static zero_status_t resolve_schedule(options_t *options)
{
    double lr = options->train.lr;
    if (options->train.min_lr < 0)
        options->train.min_lr = lr / 10;
    if (options->train.min_lr > lr && options->train.schedule != SCHEDULE_CONSTANT) /* which stays at lr */
        return report_error(ZERO_ERROR_USAGE, "[train] min_lr: %g is larger than lr = %g", options->train.min_lr, lr);
    if (options->train.eval_every > 0 && !options->data.val[0])
        return report_error(ZERO_ERROR_USAGE, "[train] eval_every: %" PRId64 ", but [data] val names no file",
                            options->train.eval_every);
    return ZERO_OK;
}

static zero_status_t check_groups(const options_t *options, int world_size)
{
    const int64_t group = options->zero.shard_group;
    if (group > 0 && world_size % group != 0)
        return report_error(ZERO_ERROR_USAGE,
                            "[zero] shard_group: %" PRId64 " ranks to a group do not divide the %d rank%s: %s", group,
                            world_size, world_size == 1 ? "" : "s",
                            options_are_forward_only(options) ? "--set zero.shard_group=world evaluates on any number"
                                                              : "take a number that does, host, or world");
    if (options->zero.reduction == REDUCTION_NCCL && group != ZERO_SHARD_GROUP_WORLD)
        return report_error(ZERO_ERROR_USAGE,
                            "[zero] shard_group: groups need reduction = ordered: use that, or shard_group = world");
    return ZERO_OK;
}

static zero_status_t check_hosts(const options_t *options, int world_size)
{
    if (options->hosts > 0 && !options->plan)
        return report_error(ZERO_ERROR_USAGE, "--hosts: this is for --plan; a run finds the hosts of its ranks itself");
    if (options->hosts > 0 && world_size % options->hosts != 0)
        return report_error(ZERO_ERROR_USAGE, "--hosts %" PRId64 ": the %d rank%s cannot be equally many on each host",
                            options->hosts, world_size, world_size == 1 ? "" : "s");
    if (options->hosts > 0 && world_size / options->hosts % options_sequence_ranks(&options->train) != 0)
        return report_error(ZERO_ERROR_USAGE,
                            "[train] sequence_ranks: the %" PRId64 " ranks that share a sequence are on one host, and "
                            "do not divide the %" PRId64 " ranks of each (--hosts)",
                            options_sequence_ranks(&options->train), world_size / options->hosts);
    return ZERO_OK;
}

static zero_status_t resolve_checkpoints(const options_t *options)
{
    if (options->checkpoint.memory_every > 0 && !options->checkpoint.memory_dir[0])
        return report_error(ZERO_ERROR_USAGE,
                            "[checkpoint] memory_every: %" PRId64
                            ", but memory_dir is empty: name a directory of this run's own below /dev/shm",
                            options->checkpoint.memory_every);
    if (options->checkpoint.best && !options_are_forward_only(options) &&
        (!options->checkpoint.dir[0] || !options->data.val[0]))
        return report_error(ZERO_ERROR_USAGE, "[checkpoint] best: it needs [data] val, by whose loss checkpoints are "
                                              "compared, and [checkpoint] dir");
    if (options->overwrite && options->resume)
        return report_error(ZERO_ERROR_USAGE,
                            "--overwrite: this begins at step 1; leave it out to continue with --resume");
    if (options->force && !options->resume)
        return report_error(ZERO_ERROR_USAGE, "--force: there is nothing to force without --resume");
    if (options->checkpoint.dir[0])
        return ZERO_OK;
    if (options->checkpoint.every > 0)
        return report_error(ZERO_ERROR_USAGE, "[checkpoint] every: %" PRId64 ", but [checkpoint] dir is empty",
                            options->checkpoint.every);
    if (options->resume && !options->resume_dir[0] && options->checkpoint.memory_every == 0)
        return report_error(
            ZERO_ERROR_USAGE,
            "--resume: [checkpoint] dir is empty, so there is nothing to resume from: name a directory");
    return ZERO_OK;
}

zero_status_t options_resolve(options_t *options, int world_size)
{
    options_t resolved = *options;
    ZERO_TRY(resolve_model(&resolved.model));
    ZERO_TRY(resolve_sequence_ranks(&resolved, world_size));
    ZERO_TRY(resolve_batch(&resolved.train, world_size / resolved.train.sequence_ranks));
    ZERO_TRY(check_length(&resolved));
    ZERO_TRY(check_sizes(&resolved));
    ZERO_TRY(check_tile(&resolved));
    ZERO_TRY(check_keep_attention(&resolved.model));
    ZERO_TRY(options_resolve_lora(&resolved));
    ZERO_TRY(check_objective(&resolved));
    ZERO_TRY(check_fp8(&resolved));
    ZERO_TRY(resolve_offload(&resolved));
    ZERO_TRY(options_check_update(&resolved));
    ZERO_TRY(resolve_schedule(&resolved));
    ZERO_TRY(check_groups(&resolved, world_size));
    ZERO_TRY(check_hosts(&resolved, world_size));
    ZERO_TRY(resolve_checkpoints(&resolved));
    *options = resolved;
    return ZERO_OK;
}

int options_micro_steps(const train_options_t *train, int world_size)
{
    return (int)(train->global_batch / (train->micro_batch * (world_size / options_sequence_ranks(train))));
}
