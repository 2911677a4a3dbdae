/* idle_settings.c - settings that the user has given and that change nothing beside the others: each is named, so that
 * nobody takes them for being in effect. Those that contradict the others are refused (options_resolve.c). Called by a
 * run when it starts, with everything derived and chosen.
 */
#include <string.h>

#include "train/options/families.h"
#include "train/options/options_table.h"
#include "train/report/report.h"

/* ---- when ---- */

static bool is_gpt2(const options_t *o)
{
    return o->model.arch == ARCH_GPT2;
}

static bool is_untied_gpt2(const options_t *o)
{
    return is_gpt2(o) && !o->model.tied;
}

/* Layers with a window may have a base of their own, and are then not scaled. */
static bool scales_no_layer(const options_t *o)
{
    bool scales = o->model.rope_local_theta == 0.0;
    for (int64_t layer = 0; layer < o->model.layers; layer++)
        scales = scales || options_window(&o->model, layer) == 0;
    return !scales;
}

static bool has_local_base_only(const options_t *o)
{
    const bool is_general = options_init_is_random(o->model.init) && family_of(&o->model)->local_is_general;
    return scales_no_layer(o) && !is_general;
}

static bool cuts_all(const options_t *o)
{
    bool cuts = o->data.packing == PACKING_CUT;
    for (int i = 0; i < OPTIONS_MAX_VAL_SETS; i++)
        cuts = cuts && o->data.val_packing[i] == PACKING_CUT;
    return cuts;
}

static bool stays_at_lr(const options_t *o)
{
    return o->train.schedule == SCHEDULE_CONSTANT;
}

static bool warms_up_to_the_end(const options_t *o)
{
    return !stays_at_lr(o) && o->train.warmup_steps >= o->train.steps;
}

static bool has_no_val(const options_t *o)
{
    return !o->data.val[0];
}

static bool is_sgd(const options_t *o)
{
    return o->train.optimizer == ZERO_OPTIMIZER_SGD || o->train.optimizer == ZERO_OPTIMIZER_NESTEROV;
}

static bool is_not_sgd(const options_t *o)
{
    return !is_sgd(o);
}

static bool has_no_eps(const options_t *o)
{
    return is_sgd(o) || o->train.optimizer == ZERO_OPTIMIZER_LION;
}

static bool is_not_muon(const options_t *o)
{
    return o->train.optimizer != ZERO_OPTIMIZER_MUON;
}

/* Adapters are matrices of blocks, all of them (lora.c). */
static bool has_muon_alone(const options_t *o)
{
    return !is_not_muon(o) && o->lora.rank > 0;
}

static bool has_first_adapters(const options_t *o)
{
    return !options_init_is_random(o->lora.init);
}

static bool offloads_no_state(const options_t *o)
{
    return o->zero.offload == OFFLOAD_NONE;
}

static bool offloads_nothing(const options_t *o)
{
    return offloads_no_state(o) && o->model.offload_activations == 0.0;
}

static bool reduces_every_time(const options_t *o)
{
    return o->zero.stage >= 2 && !o->zero.reduce_every_micro_step;
}

static bool is_on_cpu(const options_t *o)
{
    return o->device.type == ZERO_DEVICE_CPU;
}

static bool shares_sequences(const options_t *o)
{
    return !is_on_cpu(o) && options_sequence_ranks(&o->train) > 1;
}

static bool saves_not_on_disk(const options_t *o)
{
    return !o->checkpoint.dir[0];
}

static bool saves_nothing(const options_t *o)
{
    return saves_not_on_disk(o) && o->checkpoint.memory_every == 0;
}

/* ---- which ---- */

static const struct {
    const char *section, *key;
    bool (*is_idle)(const options_t *options);
    const char *why;
} rows[] = {
    {"model", "tied", is_untied_gpt2, "a gpt2's output head is always the token embedding"},
    {"model", "rope_theta", is_gpt2, "a gpt2 has a table of positions instead of RoPE"},
    {"model", "rope", is_gpt2, "a gpt2 has a table of positions instead of RoPE"},
    {"model", "rope_theta", has_local_base_only, "every layer has a window, and these have a base of their own"},
    {"model", "rope", scales_no_layer, "every layer has a window, and the RoPE of these is not scaled"},
    {"data", "long_documents", cuts_all, "packing = cut cuts documents where a sequence ends"},
    {"train", "min_lr", stays_at_lr, "schedule = constant stays at lr"},
    {"train", "min_lr", warms_up_to_the_end, "lr rises until the last step"},
    {"train", "beta1", is_sgd, "optimizer = sgd and nesterov have momentum instead"},
    {"train", "beta2", is_sgd, "optimizer = sgd and nesterov have momentum instead"},
    {"train", "beta1", has_muon_alone, "optimizer = muon updates all of the adapters, and AdamW nothing"},
    {"train", "beta2", has_muon_alone, "optimizer = muon updates all of the adapters, and AdamW nothing"},
    {"train", "eps", has_muon_alone, "optimizer = muon updates all of the adapters, and AdamW nothing"},
    {"train", "momentum", is_not_sgd, "it is for optimizer = sgd and nesterov"},
    {"train", "muon_momentum", is_not_muon, "it is for optimizer = muon"},
    {"train", "muon_steps", is_not_muon, "it is for optimizer = muon"},
    {"train", "eps", has_no_eps, "it is for AdamW, as optimizer = adamw, adamw8bit and muon have it"},
    {"train", "eval_batches", has_no_val, "[data] val names no file"},
    {"lora", "seed", has_first_adapters, "the first adapters come from [lora] init"},
    {"zero", "offload_ratio", offloads_no_state, "offload = none"},
    {"zero", "offload_update", offloads_no_state, "offload = none"},
    {"zero", "offload_threads", offloads_no_state, "offload = none"},
    {"zero", "offload_ram", offloads_nothing, "nothing is offloaded"},
    {"zero", "overlap", is_on_cpu, "the CPU computes and communicates in turn"},
    {"zero", "reduce_every_micro_step", reduces_every_time, "stages 2 and 3 reduce every micro-step"},
    {"device", "graphs", is_on_cpu, "CUDA graphs are for GPUs"},
    {"device", "graphs", shares_sequences, "with sequence_ranks nothing is launched as a CUDA graph"},
    {"checkpoint", "keep", saves_not_on_disk, "dir is empty"},
    {"checkpoint", "async", saves_nothing, "dir is empty"},
};

void options_report_idle(const options_t *options)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (option_is_given(options, option_row_find(rows[i].section, rows[i].key)) && rows[i].is_idle(options))
            report("[%s] %s changes nothing here: %s", rows[i].section, rows[i].key, rows[i].why);
    if (options->stop_after > options->train.steps)
        report("--steps %lld changes nothing here: [train] steps = %lld", (long long)options->stop_after,
               (long long)options->train.steps);
}
