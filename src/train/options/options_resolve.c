/* options_resolve.c - checks settings against each other and the number of ranks, and derives those not set. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/options/options.h"
#include "train/options/options_table.h"
#include "train/report/report.h"

/* ---- placement ---- */

/* hosts: of each rank. n_on: room for as many numbers. */
static placement_t count(const int *hosts, int n_ranks, int n_hosts, int *n_on)
{
    placement_t found = {.fewest = n_ranks, .is_consecutive = true};
    for (int rank = 0; rank < n_ranks; rank++) {
        bool is_first = n_on[hosts[rank]]++ == 0;
        found.is_consecutive &= is_first || hosts[rank - 1] == hosts[rank];
    }
    for (int host = 0; host < n_hosts; host++) {
        found.fewest = n_on[host] < found.fewest ? n_on[host] : found.fewest;
        found.most = n_on[host] > found.most ? n_on[host] : found.most;
    }
    return found;
}

zero_status_t placement_find(const zero_comm_t *comm, placement_t *placement)
{
    const int n_ranks = zero_comm_size(comm);
    int *hosts = calloc((size_t)n_ranks, sizeof *hosts), *n_on = calloc((size_t)n_ranks, sizeof *n_on);
    zero_status_t status = ZERO_OK;
    if (hosts && n_on)
        *placement = count(hosts, n_ranks, zero_comm_hosts(comm, hosts), n_on);
    else
        status = report_error(ZERO_ERROR_MEMORY, "no memory for the hosts of %d ranks", n_ranks);
    free(hosts);
    free(n_on);
    return status;
}

zero_status_t placement_check_groups(const options_t *options, const zero_comm_t *comm)
{
    placement_t found;
    if (options->zero.shard_group != ZERO_SHARD_GROUP_HOST || options->hosts > 0)
        return ZERO_OK;
    ZERO_TRY(placement_find(comm, &found));
    if (found.fewest < found.most)
        return report_error(ZERO_ERROR_USAGE,
                            "[zero] shard_group = host: hosts have %d to %d ranks, and groups are of one size: take a "
                            "number that divides the %d ranks, or world",
                            found.fewest, found.most, zero_comm_size(comm));
    if (!found.is_consecutive)
        return report_error(ZERO_ERROR_USAGE, "[zero] shard_group = host: the ranks of a host are not consecutive: "
                                              "start them host by host, or take a number, or world");
    return ZERO_OK;
}

/* ---- options resolve ---- */

#define LLAMA3_FACTOR 8.0 /* of RoPE's scaling in Llama 3.1 (Meta 2024) */

/* Returns llama's default ffn_dim: 8/3 dim, with which its three matrices are as large as two of 4 dim (Shazeer 2020,
 * arXiv:2002.05202), rounded up to a multiple that GEMMs run well with. */
static int64_t llama_ffn_dim(int64_t dim)
{
    int64_t exact = (8 * dim + 2) / 3;
    return (exact + 255) / 256 * 256;
}

static zero_status_t require_size(const char *key, int64_t value)
{
    if (value > 0)
        return ZERO_OK;
    return report_error(ZERO_ERROR_USAGE, "[model] %s is missing: set it, or init to a directory with a model", key);
}

options_recompute_t options_block_recompute(const model_options_t *model, int64_t block)
{
    int64_t from_last = model->layers - 1 - block;
    int recompute = model->recompute;
    if (from_last < model->recompute_none)
        return RECOMPUTE_NONE;
    if (from_last < model->recompute_none + model->recompute_light && recompute == RECOMPUTE_FULL)
        return RECOMPUTE_LIGHT;
    return (options_recompute_t)recompute;
}

int64_t options_offloaded_blocks(const model_options_t *model)
{
    const double rounding = 1e-9; /* of the product */
    return (int64_t)ceil(fmax(model->offload_activations, 0.0) * (double)model->layers - rounding);
}

int64_t options_positions(const model_options_t *model)
{
    return model->positions > model->seq_len ? model->positions : model->seq_len;
}

int64_t options_head_dim(const model_options_t *model)
{
    return model->head_dim > 0 ? model->head_dim : model->dim / model->heads;
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

/* Checks what rotary positions need. A model in init has set the numbers of its scaling (hf_config.c); else they are
 * Llama 3.1's, whose others are the defaults. */
static zero_status_t resolve_rotation(model_options_t *model)
{
    const int64_t head_dim = options_head_dim(model);
    if (model->arch == ARCH_GPT2)
        return ZERO_OK;
    if (head_dim % 2)
        return report_error(ZERO_ERROR_USAGE,
                            "[model] head_dim: %" PRId64
                            " is odd (if it is not set, it is dim / heads), but llama rotates pairs",
                            head_dim);
    if (model->rope == ROPE_LLAMA3 && model->rope_factor == 1.0)
        model->rope_factor = LLAMA3_FACTOR;
    if (model->rope_factor > 1.0 && !(model->rope_low_freq < model->rope_high_freq))
        return report_error(ZERO_ERROR_USAGE,
                            "[model] init: low_freq_factor = %g is not smaller than high_freq_factor = %g",
                            model->rope_low_freq, model->rope_high_freq);
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
    ZERO_TRY(resolve_rotation(model));
    if (model->window > 0 && model->arch != ARCH_MISTRAL)
        return report_error(ZERO_ERROR_USAGE,
                            "[model] window: only mistral has one, set arch = mistral or leave it out");
    if (model->vocab_size == 0)
        model->vocab_size = 256; /* bytes */
    if (model->seq_len == 0)
        model->seq_len = OPTIONS_SEQ_LEN;
    ZERO_TRY(resolve_positions(model));
    if (model->ffn_dim == 0)
        model->ffn_dim = model->arch == ARCH_GPT2 ? 4 * dim : llama_ffn_dim(dim);
    return ZERO_OK;
}

static zero_status_t resolve_batch(train_options_t *train, int64_t world_size)
{
    int64_t micro = train->micro_batch, global = train->global_batch;
    if (micro == MICRO_BATCH_AUTO && global == 0)
        return report_error(ZERO_ERROR_USAGE, "[train] micro_batch = auto: set global_batch, the sequences of a step, "
                                              "which it divides");
    if (micro == 0 && global == 0)
        micro = 8;
    if (global == 0)
        global = micro * world_size; /* at most 2^20 * 2^31: no overflow */
    if (global < world_size)
        return report_error(ZERO_ERROR_USAGE,
                            "[train] global_batch: %" PRId64 " sequences are fewer than the %" PRId64 " ranks", global,
                            world_size);
    if (global % world_size)
        return report_error(ZERO_ERROR_USAGE,
                            "[train] global_batch: %" PRId64 " is not divisible by the number of ranks, %" PRId64,
                            global, world_size);
    if (micro == 0)
        micro = global / world_size;
    if (micro != MICRO_BATCH_AUTO && global / world_size % micro)
        return report_error(ZERO_ERROR_USAGE,
                            "[train] global_batch: %" PRId64 " is not divisible by micro_batch * ranks = %" PRId64
                            " * %" PRId64,
                            global, micro, world_size);
    train->micro_batch = micro;
    train->global_batch = global;
    return ZERO_OK;
}

/* Upper bounds, in fp32: no architecture keeps this much per layer (arch.c), and no kernel's workspace is as large. */
double options_most_bytes(const model_options_t *model, int64_t micro_batch)
{
    const double micro = micro_batch == MICRO_BATCH_AUTO ? 1.0 : (double)micro_batch;
    const double rows = micro * (double)model->seq_len, vocab = (double)model->vocab_size;
    const double heads = (double)model->heads, ffn = (double)model->ffn_dim;
    const double dim = fmax((double)model->dim, heads * (double)options_head_dim(model));
    const double bytes[] = {4.0 * rows * (double)(model->layers + 4) * (16.0 * dim + 8.0 * ffn + 4.0 * heads + 16.0),
                            16.0 * rows * vocab, 16.0 * dim * (vocab + 4.0 * ffn + 4.0 * dim),
                            4.0 * rows * heads * (double)model->seq_len};
    double most = bytes[0];
    for (size_t i = 1; i < sizeof bytes / sizeof bytes[0]; i++)
        most = bytes[i] > most ? bytes[i] : most;
    return most;
}

/* Checks bounds that later arithmetic relies on: the tokens of a whole run are fewer than 2^61, the positions of a pass
 * fewer than 2^31, and all activations and workspaces together smaller than 2^62 bytes. */
static zero_status_t check_sizes(const options_t *o)
{
    const double rows = (double)o->train.micro_batch * (double)o->model.seq_len,
                 bytes = options_most_bytes(&o->model, o->train.micro_batch);
    const double tokens = (double)o->train.steps * (double)o->train.global_batch * (double)o->model.seq_len;
    if (tokens >= 0x1p61)
        return report_error(ZERO_ERROR_USAGE,
                            "[train] steps: %" PRId64 " of %" PRId64 " sequences (global_batch) of %" PRId64
                            " tokens (seq_len) are %.2g tokens, more than can be counted",
                            o->train.steps, o->train.global_batch, o->model.seq_len, tokens);
    if (rows >= 0x1p31)
        return report_error(ZERO_ERROR_USAGE,
                            "[train] micro_batch: %" PRId64 " sequences of %" PRId64
                            " tokens (seq_len) in one pass are more than 2^31 - 1 tokens",
                            o->train.micro_batch, o->model.seq_len);
    if (bytes >= 0x1p60)
        return report_error(ZERO_ERROR_USAGE,
                            "[model], [train] micro_batch: to train a model of these sizes takes up to %.2g bytes "
                            "beside its weights, more than any memory has",
                            bytes);
    return ZERO_OK;
}

/* Blocks with less recomputation keep more than their input, and need it sooner than it could come back. */
static zero_status_t check_offload_activations(const model_options_t *model)
{
    const int64_t n = options_offloaded_blocks(model);
    if (model->offload_activations < 0.0 && model->recompute != RECOMPUTE_FULL)
        return report_error(ZERO_ERROR_USAGE,
                            "[model] offload_activations = auto: blocks whose input is in host memory "
                            "recompute everything: set recompute = full, or offload_activations = 0");
    for (int64_t block = 0; block < n; block++)
        if (options_block_recompute(model, block) != RECOMPUTE_FULL)
            return report_error(ZERO_ERROR_USAGE,
                                "[model] offload_activations: %g are the first %" PRId64
                                " blocks, which all need recompute = full, and block %" PRId64
                                " has another: set recompute = full, or a smaller share",
                                model->offload_activations, n, block);
    return ZERO_OK;
}

/* Checks that the blocks' products have extents that GPUs can multiply in fp8. */
static zero_status_t check_fp8(const options_t *o)
{
    const int64_t head_dim = options_head_dim(&o->model);
    const struct {
        const char *keys, *matrix;
        int64_t extent;
    } extents[] = {
        {"[model] dim", "the residual stream", o->model.dim},
        {"[model] ffn_dim", "the MLP", o->model.ffn_dim},
        {"[model] kv_heads", "q, k and v together", (o->model.heads + 2 * o->model.kv_heads) * head_dim},
        {"[model] head_dim", "the heads together", o->model.heads * head_dim},
        {"[train] micro_batch", "micro_batch * seq_len",
         o->train.micro_batch == MICRO_BATCH_AUTO ? 0 : o->train.micro_batch * o->model.seq_len},
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

static zero_status_t resolve_schedule(options_t *options)
{
    double lr = options->train.lr;
    if (options->train.min_lr < 0)
        options->train.min_lr = lr / 10;
    if (options->train.min_lr > lr)
        return report_error(ZERO_ERROR_USAGE, "[train] min_lr: %g is larger than lr = %g", options->train.min_lr, lr);
    if (options->train.warmup_steps > options->train.steps)
        return report_error(ZERO_ERROR_USAGE, "[train] warmup_steps: %" PRId64 " are more than steps = %" PRId64,
                            options->train.warmup_steps, options->train.steps);
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
                            "[zero] shard_group: %" PRId64 " ranks to a group do not divide the %d ranks", group,
                            world_size);
    if (options->zero.reduction == REDUCTION_NCCL && group != ZERO_SHARD_GROUP_WORLD)
        return report_error(ZERO_ERROR_USAGE, "[zero] shard_group: groups need reduction = ordered");
    return ZERO_OK;
}

static zero_status_t check_hosts(const options_t *options, int world_size)
{
    if (options->hosts > 0 && !options->plan)
        return report_error(ZERO_ERROR_USAGE, "--hosts: this is for --plan; a run finds the hosts of its ranks itself");
    if (options->hosts > 0 && world_size % options->hosts != 0)
        return report_error(ZERO_ERROR_USAGE, "--hosts %" PRId64 ": the %d rank%s cannot be equally many on each host",
                            options->hosts, world_size, world_size == 1 ? "" : "s");
    return ZERO_OK;
}

static zero_status_t resolve_checkpoints(const options_t *options)
{
    if (options->checkpoint.memory_every > 0 && !options->checkpoint.memory_dir[0])
        return report_error(ZERO_ERROR_USAGE,
                            "[checkpoint] memory_every: %" PRId64
                            ", but memory_dir is empty: name a directory of this run's own below /dev/shm",
                            options->checkpoint.memory_every);
    if (options->checkpoint.memory_every > 0 && strcmp(options->checkpoint.memory_dir, options->checkpoint.dir) == 0)
        return report_error(ZERO_ERROR_USAGE, "[checkpoint] memory_dir: '%s' is also [checkpoint] dir: name another",
                            options->checkpoint.memory_dir);
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
    ZERO_TRY(resolve_batch(&resolved.train, world_size));
    ZERO_TRY(check_sizes(&resolved));
    ZERO_TRY(check_offload_activations(&resolved.model));
    ZERO_TRY(check_fp8(&resolved));
    ZERO_TRY(resolve_offload(&resolved));
    ZERO_TRY(resolve_schedule(&resolved));
    ZERO_TRY(check_groups(&resolved, world_size));
    ZERO_TRY(check_hosts(&resolved, world_size));
    ZERO_TRY(resolve_checkpoints(&resolved));
    *options = resolved;
    return ZERO_OK;
}

int options_micro_steps(const train_options_t *train, int world_size)
{
    return (int)(train->global_batch / (train->micro_batch * world_size));
}
