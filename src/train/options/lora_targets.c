/* lora_targets.c - see lora_targets.h. */
#include "train/options/lora_targets.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "train/options/families.h"
#include "train/options/options_table.h"
#include "train/report/report.h"

static const lora_target_t OF_GPT2[] = {
    {NULL, "attn.c_attn"}, {NULL, "attn.c_proj"}, {NULL, "mlp.c_fc"}, {NULL, "mlp.c_proj"}};
static const lora_target_t OF_LLAMA[] = {
    {"q", "self_attn.q_proj"}, {"k", "self_attn.k_proj"}, {"v", "self_attn.v_proj"}, {"o", "self_attn.o_proj"},
    {"gate", "mlp.gate_proj"}, {"up", "mlp.up_proj"},     {"down", "mlp.down_proj"}};
_Static_assert(sizeof OF_LLAMA / sizeof OF_LLAMA[0] == LORA_MAX_TARGETS, "no family has more");

static const lora_target_t OF_PHI3[] = {{"qkv", "self_attn.qkv_proj"},
                                        {"o", "self_attn.o_proj"},
                                        {"gate_up", "mlp.gate_up_proj"},
                                        {"down", "mlp.down_proj"}};
static const lora_target_t OF_GRANITE4[] = {{"q", "self_attn.q_proj"},
                                            {"k", "self_attn.k_proj"},
                                            {"v", "self_attn.v_proj"},
                                            {"o", "self_attn.o_proj"},
                                            {"gate_up", "shared_mlp.input_linear"},
                                            {"down", "shared_mlp.output_linear"}};

const lora_target_t *lora_targets(int arch, int *n_targets)
{
    *n_targets = arch == ARCH_GPT2 || arch == ARCH_PHI3 ? 4 : arch == ARCH_GRANITE4 ? 6 : LORA_MAX_TARGETS;
    return arch == ARCH_GPT2 ? OF_GPT2 : arch == ARCH_PHI3 ? OF_PHI3 : arch == ARCH_GRANITE4 ? OF_GRANITE4 : OF_LLAMA;
}

void lora_block_prefix(int arch, int64_t layer, char *text, size_t n_bytes)
{
    snprintf(text, n_bytes, arch == ARCH_GPT2 ? "transformer.h.%" PRId64 "." : "model.layers.%" PRId64 ".", layer);
}

static bool is_name(const char *name, const char *word, size_t n_bytes)
{
    return name && strlen(name) == n_bytes && memcmp(name, word, n_bytes) == 0;
}

bool lora_targets_add(int arch, const char *word, size_t n_bytes, uint32_t *targets)
{
    int n;
    const lora_target_t *rows = lora_targets(arch, &n);
    uint32_t found = 0;
    for (int i = 0; i < n; i++)
        if (is_name(rows[i].word, word, n_bytes) || is_name(rows[i].module, word, n_bytes) ||
            is_name(strrchr(rows[i].module, '.') + 1, word, n_bytes))
            found |= UINT32_C(1) << i;
    *targets |= found;
    return found != 0;
}

/* Writes "q, k, v": what a word could be. */
static void list_words(int arch, char *text, size_t n_bytes)
{
    int n;
    const lora_target_t *rows = lora_targets(arch, &n);
    text[0] = 0;
    for (int i = 0; i < n; i++)
        snprintf(text + strlen(text), n_bytes - strlen(text), "%s%s", i > 0 ? ", " : "",
                 rows[i].word ? rows[i].word : rows[i].module);
}

/* Reads targets until the end or a word that means none. Returns where it ended. */
static const char *read_targets(int arch, const char *text, uint32_t *targets)
{
    int n;
    *targets = 0;
    lora_targets(arch, &n);
    if (strcmp(text, LORA_ALL_LINEAR) == 0) {
        *targets = (UINT32_C(1) << n) - 1;
        return text + strlen(text);
    }
    const char *word = text + strspn(text, ", ");
    while (*word && lora_targets_add(arch, word, strcspn(word, ", "), targets)) {
        word += strcspn(word, ", ");
        word += strspn(word, ", ");
    }
    return word;
}

bool lora_targets_find(int arch, const char *text, uint32_t *targets)
{
    return !*read_targets(arch, text, targets) && *targets != 0;
}

zero_status_t lora_targets_parse(int arch, const char *text, uint32_t *targets)
{
    char words[128];
    const char *word = read_targets(arch, text, targets);
    const size_t n_bytes = strcspn(word, ", ");
    list_words(arch, words, sizeof words);
    if (*word)
        return report_error(ZERO_ERROR_USAGE,
                            "[lora] targets: a block of this model has no matrix '%.*s': it has %s; or take all-linear",
                            (int)(n_bytes < 60 ? n_bytes : 60), word, words);
    return *targets ? ZERO_OK
                    : report_error(ZERO_ERROR_USAGE,
                                   "[lora] targets: no matrix is named: name some of %s, or take "
                                   "all-linear",
                                   words);
}

/* ---- resolving ---- */

/* Settings of [lora] without a rank would do nothing. */
static zero_status_t check_unused(const options_t *options)
{
    for (const option_row_t *row = option_rows; row < option_rows + n_option_rows; row++)
        if (strcmp(row->section, "lora") == 0 && strcmp(row->key, "rank") != 0 && option_is_given(options, row))
            return report_error(ZERO_ERROR_USAGE,
                                "[lora] %s: there are no adapters: set [lora] rank, such as 16, or leave it out",
                                row->key);
    return ZERO_OK;
}

zero_status_t options_resolve_lora(options_t *options)
{
    lora_options_t *lora = &options->lora;
    if (lora->rank == 0)
        return options_are_forward_only(options) ? ZERO_OK : check_unused(options);
    ZERO_TRY(lora_targets_parse(options->model.arch, lora->targets, &lora->target_set));
    if (lora->alpha == 0.0)
        lora->alpha = (double)lora->rank;
    if (lora->seed < 0)
        lora->seed = options->train.seed;
    if (lora->base == BASE_FP8 && options->train.precision != ZERO_BF16 && !options_are_forward_only(options))
        return report_error(ZERO_ERROR_USAGE,
                            "[lora] base = fp8: [train] precision = %s: it is for bf16, use that or "
                            "base = bf16",
                            zero_dtype_name((zero_dtype_t)options->train.precision));
    if (options->zero.gather == GATHER_FP8)
        return report_error(ZERO_ERROR_USAGE, "[zero] gather = fp8 is for matrices that are trained, and those of a "
                                              "model with adapters are frozen: use [lora] base = fp8");
    return ZERO_OK;
}

double options_lora_scale(const lora_options_t *lora)
{
    return lora->alpha / (lora->rslora ? sqrt((double)lora->rank) : (double)lora->rank);
}
