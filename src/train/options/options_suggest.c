/* options_suggest.c - guesses which name was meant: by what other trainers call it, else by edit distance. Says what
 * replaces settings that were removed. */
#include "train/options/options_table.h"

#include <ctype.h>
#include <limits.h>
#include <string.h>
#include <strings.h>

#define MAX_WORD 63

const other_name_t other_names[] = {
    {"n_layer", "model", "layers"},
    {"num_layers", "model", "layers"},
    {"num_hidden_layers", "model", "layers"},
    {"n_embd", "model", "dim"},
    {"d_model", "model", "dim"},
    {"hidden_size", "model", "dim"},
    {"embed_dim", "model", "dim"},
    {"n_head", "model", "heads"},
    {"num_heads", "model", "heads"},
    {"num_attention_heads", "model", "heads"},
    {"n_kv_head", "model", "kv_heads"},
    {"num_key_value_heads", "model", "kv_heads"},
    {"num_query_groups", "model", "kv_heads"},
    {"intermediate_size", "model", "ffn_dim"},
    {"ffn_hidden_size", "model", "ffn_dim"},
    {"block_size", "model", "seq_len"},
    {"context_length", "model", "seq_len"},
    {"max_seq_len", "model", "seq_len"},
    {"sequence_length", "model", "seq_len"},
    {"activation_checkpointing", "model", "recompute"},
    {"gradient_checkpointing", "model", "recompute"},
    {"valid", "data", "val"},
    {"validation", "data", "val"},
    {"learning_rate", "train", "lr"},
    {"max_lr", "train", "lr"},
    {"warmup", "train", "warmup_steps"},
    {"warmup_iters", "train", "warmup_steps"},
    {"batch_size", "train", "micro_batch"},
    {"gradient_accumulation_steps", "train", "global_batch"},
    {"max_iters", "train", "steps"},
    {"max_steps", "train", "steps"},
    {"num_steps", "train", "steps"},
    {"train_iters", "train", "steps"},
    {"clip_grad", "train", "grad_clip"},
    {"max_grad_norm", "train", "grad_clip"},
    {"dtype", "train", "precision"},
    {"eval_interval", "train", "eval_every"},
    {"eval_iters", "train", "eval_batches"},
    {"r", "lora", "rank"},
    {"lora_r", "lora", "rank"},
    {"lora_rank", "lora", "rank"},
    {"lora_alpha", "lora", "alpha"},
    {"target_modules", "lora", "targets"},
    {"use_rslora", "lora", "rslora"},
    {"zero_stage", "zero", "stage"},
    {"save_every", "checkpoint", "every"},
    {"save_interval", "checkpoint", "every"},
    {"save_dir", "checkpoint", "dir"},
    {"out_dir", "checkpoint", "dir"},
    {"output_dir", "checkpoint", "dir"},
    {"log_interval", "log", "every"},
    {"optimizer", "train", NULL}, /* sections */
    {"optim", "train", NULL},
    {"training", "train", NULL},
    {"dataset", "data", NULL},
    {"gpu", NULL, "cuda"}, /* values */
    {"float32", NULL, "fp32"},
    {"bfloat16", NULL, "bf16"},
    {"float16", NULL, "fp16"},
    {"half", NULL, "fp16"},
    {"txt", NULL, "text"},
};
const int n_other_names = (int)(sizeof other_names / sizeof other_names[0]);

#define LLAMA3 "rope = llama3, Llama 3.1's scaling; a model in init brings its own numbers"
#define MIXED "recompute = auto, which chooses for every block"

const removed_setting_t removed_settings[] = {
    {"train", "fp8", "linear-exact-dw", "fp8 = linear, or none where gradients of weights must be products in bf16"},
    {"model", "rope_factor", NULL, LLAMA3},
    {"model", "rope_low_freq", NULL, LLAMA3},
    {"model", "rope_high_freq", NULL, LLAMA3},
    {"model", "rope_original", NULL, LLAMA3},
    {"model", "recompute_none", NULL, MIXED},
    {"model", "recompute_light", NULL, MIXED},
};
const int n_removed_settings = (int)(sizeof removed_settings / sizeof removed_settings[0]);

/* Returns the fewest insertions, deletions, substitutions and swaps of neighbours that turn a into b (optimal string
 * alignment; Damerau 1964), ignoring case. A word longer than MAX_WORD resembles no other. */
static int edit_distance(const char *a, const char *b)
{
    size_t n_a = strlen(a), n_b = strlen(b);
    if (n_a > MAX_WORD || n_b > MAX_WORD)
        return INT_MAX;
    int cost[MAX_WORD + 1][MAX_WORD + 1]; /* [i][j]: of the first i letters of a and j of b */
    for (size_t i = 0; i <= n_a; i++)
        for (size_t j = 0; j <= n_b; j++) {
            if (i == 0 || j == 0) {
                cost[i][j] = (int)(i + j);
                continue;
            }
            int x = tolower((unsigned char)a[i - 1]), y = tolower((unsigned char)b[j - 1]);
            int least = cost[i - 1][j - 1] + (x != y);
            if (cost[i - 1][j] + 1 < least)
                least = cost[i - 1][j] + 1;
            if (cost[i][j - 1] + 1 < least)
                least = cost[i][j - 1] + 1;
            bool swapped =
                i > 1 && j > 1 && x == tolower((unsigned char)b[j - 2]) && y == tolower((unsigned char)a[i - 2]);
            if (swapped && cost[i - 2][j - 2] + 1 < least)
                least = cost[i - 2][j - 2] + 1;
            cost[i][j] = least;
        }
    return cost[n_a][n_b];
}

/* Allows a third of the letters to be wrong, and one in a short word. */
near_miss_t near_miss_begin(const char *typed)
{
    size_t length = strlen(typed);
    int most = length > MAX_WORD ? 0 : length < 6 ? 1 : (int)(length / 3);
    return (near_miss_t){.typed = typed, .distance = most + 1};
}

void near_miss_offer(near_miss_t *near, const char *name, const void *candidate)
{
    int distance = edit_distance(near->typed, name);
    if (distance >= near->distance || distance >= (int)strlen(name))
        return;
    near->distance = distance;
    near->best = candidate;
}

const char *suggest_for_removed(const char *section, const char *key, const char *value)
{
    for (int i = 0; i < n_removed_settings; i++) {
        const removed_setting_t *removed = &removed_settings[i];
        bool is_section = !section[0] || strcmp(removed->section, section) == 0;
        bool is_value = value && removed->value ? strcmp(removed->value, value) == 0 : value == removed->value;
        if (is_section && is_value && strcmp(removed->key, key) == 0)
            return removed->instead;
    }
    return NULL;
}

const char *suggest_value(const char *typed)
{
    for (int i = 0; i < n_other_names; i++)
        if (!other_names[i].section && strcasecmp(other_names[i].theirs, typed) == 0)
            return other_names[i].ours;
    return NULL;
}

void suggest_key(const char *section, const char *key, char *text, size_t n_bytes)
{
    const char *instead = suggest_for_removed(section, key, NULL);
    if (instead) {
        snprintf(text, n_bytes, "; it was removed: use %s", instead);
        return;
    }
    for (int i = 0; i < n_other_names; i++)
        if (other_names[i].section && other_names[i].ours && strcmp(other_names[i].theirs, key) == 0) {
            snprintf(text, n_bytes, "; here it is [%s] %s", other_names[i].section, other_names[i].ours);
            return;
        }
    near_miss_t near = near_miss_begin(key);
    for (int own = 1; own >= 0; own--) /* among equally near keys, the same section wins */
        for (int i = 0; i < n_option_rows; i++)
            if ((strcmp(option_rows[i].section, section) == 0) == own)
                near_miss_offer(&near, option_rows[i].key, &option_rows[i]);
    const option_row_t *best = near.best;
    if (best)
        snprintf(text, n_bytes, "; did you mean [%s] %s?", best->section, best->key);
    else
        snprintf(text, n_bytes, "; zerotrain --help lists all");
}

void suggest_section(const char *section, char *text, size_t n_bytes)
{
    near_miss_t near = near_miss_begin(section);
    for (int i = 0; i < n_other_names; i++)
        if (!other_names[i].ours && strcmp(other_names[i].theirs, section) == 0)
            near_miss_offer(&near, section, other_names[i].section); /* distance 0 */
    for (int i = 0; i < n_option_rows; i++)
        near_miss_offer(&near, option_rows[i].section, option_rows[i].section);
    if (near.best)
        snprintf(text, n_bytes, "; did you mean [%s]?", (const char *)near.best);
    else
        snprintf(text, n_bytes, "; zerotrain --help lists all");
}
