/* lora_targets.h - which matrices of a block can have adapters, by family: the words of [lora] targets, and the names
 * of modules in Hugging Face's models and PEFT's files.
 */
#ifndef ZEROTRAIN_LORA_TARGETS_H
#define ZEROTRAIN_LORA_TARGETS_H

#include "train/options/options.h"

#define LORA_ALL_LINEAR "all-linear"
#define LORA_MAX_TARGETS 7

/* A target: bit i of a set is row i of its family's table. */
typedef struct lora_target {
    const char *word;   /* NULL: the module's own name is short */
    const char *module; /* within a block; what follows the last dot is PEFT's usual name */
} lora_target_t;

/* Returns a family's rows, in the order in which a block uses them. */
const lora_target_t *lora_targets(int arch, int *n_targets);
/* What precedes a module's name in block `layer`: "model.layers.0.". */
void lora_block_prefix(int arch, int64_t layer, char *text, size_t n_bytes);

/* Adds the targets that a word means: its own, a module's name, or the part of that behind a dot, such as "q_proj".
 * Returns whether there are any. */
bool lora_targets_add(int arch, const char *word, size_t n_bytes, uint32_t *targets);
/* Reads [lora] targets. ZERO_ERROR_USAGE names a word that means none. */
zero_status_t lora_targets_parse(int arch, const char *text, uint32_t *targets);
/* The same without a message. Returns whether each word means some. */
bool lora_targets_find(int arch, const char *text, uint32_t *targets);

/* Checks [lora] and derives what is not set. */
zero_status_t options_resolve_lora(options_t *options);
/* Returns what the adapters' product is multiplied by: alpha / rank, or with rslora alpha / sqrt(rank). */
double options_lora_scale(const lora_options_t *lora);

#endif
