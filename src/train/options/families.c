/* families.c - see families.h. */
#include "train/options/families.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "train/report/report.h"

#define DEFAULT_WINDOW 4096 /* where layers have one by default */

const family_t families[] = {
    [ARCH_GPT2] = {"gpt2", .title = "GPT-2"},
    [ARCH_LLAMA] = {"llama", "Llama", .heads_divide_dim = true},
    [ARCH_MISTRAL] = {"mistral", "Mistral", .may_window = true},
    [ARCH_QWEN2] = {"qwen2", "Qwen2", .has_qkv_bias = true, .may_window = true},
    [ARCH_QWEN3] = {"qwen3", "Qwen3", .qk_norm = QK_NORM_HEADS, .may_window = true},
    [ARCH_MINISTRAL] = {"ministral", "Ministral", .may_window = true},
    [ARCH_SMOLLM3] = {"smollm3", "SmolLM3", .may_window = true, .kinds = "fffn"},
    [ARCH_PHI3] = {"phi3", "Phi-3", .fuses_qkv = true, .gate_up = "mlp.gate_up_proj", .may_window = true},
    [ARCH_GRANITE] = {"granite", .title = "Granite"},
    [ARCH_GRANITE4] = {"granitemoehybrid", "Granite 4", .gate_up = "shared_mlp.input_linear",
                       .down = "shared_mlp.output_linear"},
    [ARCH_OLMO2] = {"olmo2", "OLMo 2", .qk_norm = QK_NORM_PROJECTIONS, .norms = NORMS_BEHIND},
    [ARCH_OLMO3] = {"olmo3", "OLMo 3", .qk_norm = QK_NORM_PROJECTIONS, .norms = NORMS_BEHIND, .may_window = true,
                    .kinds = "sssf", .local_theta = 5e5, .local_is_general = true},
    [ARCH_GEMMA3] = {"gemma3_text", "Gemma 3", .qk_norm = QK_NORM_HEADS, .norms = NORMS_AROUND, .adds_one = true,
                     .has_gelu = true, .scales_embedding = true, .may_window = true, .kinds = "sssssf",
                     .heads_divide_dim = true, .local_theta = 1e4},
    [ARCH_SEED_OSS] = {"seed_oss", .title = "Seed-OSS"},
};
const int n_families = (int)(sizeof families / sizeof families[0]);

/* ---- kinds of layers ---- */

static char kind_of(const model_options_t *model, int64_t layer)
{
    if (model->layer_kinds[0])
        return model->layer_kinds[layer];
    return model->window > 0 ? LAYER_WINDOW : LAYER_ALL;
}

int64_t options_window(const model_options_t *model, int64_t layer)
{
    const char kind = kind_of(model, layer);
    return kind == LAYER_WINDOW || kind == LAYER_WINDOW_UNROTATED ? model->window : 0;
}

bool options_is_rotated(const model_options_t *model, int64_t layer)
{
    const char kind = kind_of(model, layer);
    return kind == LAYER_ALL || kind == LAYER_WINDOW;
}

int64_t options_n_rotated(const model_options_t *model)
{
    return (int64_t)((double)options_head_dim(model) * model->rope_share);
}

double options_embedding_scale(const model_options_t *model)
{
    return families[model->arch].scales_embedding ? sqrt((double)model->dim) : model->embedding_multiplier;
}

double options_score_scale(const model_options_t *model)
{
    const int64_t scalar = model->query_scalar > 0 ? model->query_scalar : options_head_dim(model);
    return model->attention_multiplier > 0.0 ? model->attention_multiplier : 1.0 / sqrt((double)scalar);
}

double options_mean_keys(const model_options_t *model)
{
    const double T = (double)model->seq_len;
    double sum = 0.0;
    for (int64_t layer = 0; layer < model->layers; layer++) {
        const double window = (double)options_window(model, layer), seen = window > 0.0 ? fmin(window, T) : T;
        sum += seen - 0.5 * seen * seen / T; /* without a window half of all */
    }
    return sum / (double)model->layers;
}

/* ---- other sizes of a model ---- */

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

/* Repeats a family's kinds over a model's layers. A window is one of the layers that are not rotated where the kinds
 * have no other, as in transformers' SmolLM3 with use_sliding_window. */
static zero_status_t repeat_kinds(model_options_t *model, const char *kinds)
{
    if (model->layers >= (int64_t)sizeof model->layer_kinds)
        return report_error(ZERO_ERROR_USAGE,
                            "[model] layers: a %s, whose layers are of several kinds, can have %zu here, not %" PRId64,
                            family_of(model)->title, sizeof model->layer_kinds - 1, model->layers);
    for (int64_t layer = 0; layer < model->layers; layer++) {
        const char kind = kinds[(size_t)layer % strlen(kinds)];
        model->layer_kinds[layer] = kind == LAYER_ALL_UNROTATED && model->window > 0 ? LAYER_WINDOW_UNROTATED : kind;
    }
    if (strspn(model->layer_kinds, "f") < (size_t)model->layers)
        return ZERO_OK;
    memset(model->layer_kinds, 0, sizeof model->layer_kinds); /* as if there were one kind */
    if (model->window == 0)
        return ZERO_OK;
    return report_error(ZERO_ERROR_USAGE,
                        "[model] window: of a %s's layers every %zuth has one, and there are %" PRId64
                        ": leave it out, or set more layers",
                        family_of(model)->title, strlen(kinds), model->layers);
}

#define LLAMA3_FACTOR 8.0 /* of RoPE's scaling in Llama 3.1 (Meta 2024) */

/* Checks what rotary positions need. A model in init has set the numbers of its scaling (hf_layers.c); else they are
 * Llama 3.1's, whose others are the defaults. */
static zero_status_t resolve_rotation(model_options_t *model)
{
    const int64_t n_rotated = options_n_rotated(model);
    if (model->arch == ARCH_GPT2)
        return ZERO_OK;
    if (n_rotated % 2 || n_rotated == 0)
        return report_error(ZERO_ERROR_USAGE,
                            "[model] head_dim: %" PRId64
                            " is odd (if it is not set, it is dim / heads), but llama rotates pairs",
                            n_rotated);
    if (model->rope > ROPE_LLAMA3 && options_init_is_random(model->init))
        return report_error(ZERO_ERROR_USAGE,
                            "[model] rope: only a model in init can have this scaling, since it brings "
                            "the numbers: set rope to default or llama3");
    if (model->rope == ROPE_LLAMA3 && model->arch == ARCH_PHI3) /* as in hf_rope.c */
        return report_error(ZERO_ERROR_USAGE, "[model] rope: llama3: in transformers a Phi-3 cannot have this scaling, "
                                              "so no program could load the model: set rope to default");
    if (model->rope == ROPE_LLAMA3 && model->rope_factor == 1.0)
        model->rope_factor = LLAMA3_FACTOR;
    if (model->rope == ROPE_LLAMA3 && !(model->rope_low_freq < model->rope_high_freq))
        return report_error(ZERO_ERROR_USAGE,
                            "[model] init: low_freq_factor = %g is not smaller than high_freq_factor = %g",
                            model->rope_low_freq, model->rope_high_freq);
    if (model->rope == ROPE_YARN && !(model->rope_theta > 1.0))
        return report_error(ZERO_ERROR_USAGE, "[model] init: rope_theta = %g has no yarn: it must be more than 1",
                            model->rope_theta);
    int64_t n_divisors = model->rope_divisors[0] != 0;
    for (const char *c = model->rope_divisors; *c; c++)
        n_divisors += *c == ',';
    if (model->rope == ROPE_LONGROPE && n_divisors != n_rotated / 2)
        return report_error(ZERO_ERROR_USAGE,
                            "[model] init: short_factor has %" PRId64 " entries for the %" PRId64
                            " pairs of a head that are rotated",
                            n_divisors, n_rotated / 2);
    return ZERO_OK;
}

/* Returns llama's default ffn_dim: 8/3 dim, with which its three matrices are as large as two of 4 dim (Shazeer 2020,
 * arXiv:2002.05202), rounded up to a multiple that GEMMs run well with. */
static int64_t llama_ffn_dim(int64_t dim)
{
    int64_t exact = (8 * dim + 2) / 3;
    return (exact + 255) / 256 * 256;
}

zero_status_t family_resolve(model_options_t *model)
{
    const family_t *family = family_of(model);
    const bool is_random = options_init_is_random(model->init);
    if (model->window > 0 && !family->may_window)
        return report_error(
            ZERO_ERROR_USAGE,
            "[model] window: a %s has none: leave it out, or set arch to a family that may have one, as "
            "mistral does",
            family->title);
    if (is_random && family->heads_divide_dim && model->dim % model->heads)
        return report_error(ZERO_ERROR_USAGE,
                            "[model] dim: %" PRId64 " is not divisible by heads = %" PRId64
                            ", and transformers loads no %s of these sizes: change one of them, or set arch to a "
                            "family that may have them, as mistral may",
                            model->dim, model->heads, family->title);
    if (is_random && family->kinds && !model->layer_kinds[0])
        ZERO_TRY(repeat_kinds(model, family->kinds));
    if (is_random && strchr(model->layer_kinds, LAYER_WINDOW) && model->window == 0)
        model->window = DEFAULT_WINDOW;
    if (family->local_theta > 0.0 && model->rope_local_theta == 0.0)
        model->rope_local_theta = is_random && family->local_is_general ? model->rope_theta : family->local_theta;
    if (model->ffn_dim == 0)
        model->ffn_dim = model->arch == ARCH_GPT2 ? 4 * model->dim : llama_ffn_dim(model->dim);
    model->qkv_bias |= family->has_qkv_bias;
    return resolve_rotation(model);
}
