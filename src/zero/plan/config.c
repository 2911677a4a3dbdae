/* config.c - the default configuration, and the range of every setting. */
#include "zero/plan/config.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/json_build.h"
#include "base/log.h"

zero_config_t zero_config_defaults(void)
{
    return (zero_config_t){
        .struct_size = sizeof(zero_config_t),
        .stage = 3,
        .dtype = ZERO_BF16,
        .micro_steps = 1,
        .prefetch = 1,
        .keep = 0,
        .overlap = true,
        .reduce_every_micro_step = true,
        .nccl_reduction = false,
        .shard_group = ZERO_SHARD_GROUP_WORLD,
        .gather_fp8 = false,
        .seed = 1,
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .eps = 1e-8f,
        .weight_decay = 0.1f,
        .momentum = 0.9f,
        .muon_momentum = 0.95f,
        .muon_steps = 5,
        .grad_clip = 1.0f,
        .max_skipped_steps = 20,
        .initial_loss_scale = 65536.0f,
        .loss_scale_window = 1000,
        .loss_scale_hysteresis = 1,
        .offload = false,
        .offload_ratio = 1.0f,
        .offload_update = ZERO_OFFLOAD_UPDATE_AUTO,
        .offload_buffer_bytes = (size_t)256 << 20,
        .offload_threads = 0,
        .offload_ram = 0.5f,
        .staging_bytes = (size_t)512 << 20,
        .user_bytes = 0,
        .offload_params = 0.0f,
        .user_pinned_bytes = 0,
        .update = ZERO_UPDATE_IN_STEP,
        .gradients = ZERO_FP32,
        .offload_grads = ZERO_OFFLOAD_GRADS_AUTO,
    };
}

static bool is_fraction(float x)
{
    return x >= 0.0f && x < 1.0f;
}

static bool is_amount(float x)
{
    return isfinite(x) && x >= 0.0f;
}

static zero_status_t check_hooks(const zero_config_t *c)
{
    ZERO_TRY(zero_check_reserved("zero_config_t", "hooks", c->hooks->reserved, sizeof c->hooks->reserved));
    if (!c->hooks->reduced && !c->hooks->updated)
        return zero_fail_collective(ZERO_ERROR_USAGE, "hooks: at least one of reduced and updated must be a function");
    if (c->hooks->updated && c->offload)
        return zero_fail_collective(
            ZERO_ERROR_USAGE, "hooks with offload: updated does not see offloaded state; leave out one of the two");
    return ZERO_OK;
}

static zero_status_t check_own_optimizer(const zero_config_t *c)
{
    const zero_own_optimizer_t *own = c->own_optimizer;
    if (!own || !own->name || !own->update)
        return zero_fail_collective(ZERO_ERROR_USAGE, "optimizer own: own_optimizer must have a name and an update");
    if (!own->name[0] || !zero_json_takes(own->name))
        return zero_fail_collective(ZERO_ERROR_USAGE,
                                    "optimizer own: its name must be UTF-8, and not empty: checkpoints store it");
    ZERO_TRY(zero_check_reserved("zero_config_t", "own_optimizer", own->reserved, sizeof own->reserved));
    if (!own->prepare != !own->whole)
        return zero_fail_collective(ZERO_ERROR_USAGE,
                                    "optimizer %s: it has %s alone; whole matrices need prepare and whole, or neither",
                                    own->name, own->whole ? "whole" : "prepare");
    if (own->n_arrays < 1 || own->n_arrays > 2)
        return zero_fail_collective(ZERO_ERROR_USAGE, "optimizer %s: n_arrays %d: it must be 1 or 2", own->name,
                                    own->n_arrays);
    if (c->offload)
        return zero_fail_collective(ZERO_ERROR_USAGE, "optimizer %s with offload: only libzero's own optimizers can be",
                                    own->name);
    return ZERO_OK;
}

static zero_status_t check_muon(const zero_config_t *c)
{
    if (!is_fraction(c->muon_momentum))
        return zero_fail_collective(ZERO_ERROR_USAGE, "muon_momentum %g: it must be in [0, 1)",
                                    (double)c->muon_momentum);
    if (c->muon_steps < 1 || c->muon_steps > ZERO_MAX_MUON_STEPS)
        return zero_fail_collective(ZERO_ERROR_USAGE, "muon_steps %d: it must be in 1..%d", c->muon_steps,
                                    ZERO_MAX_MUON_STEPS);
    if (c->optimizer == ZERO_OPTIMIZER_MUON && c->offload)
        return zero_fail_collective(
            ZERO_ERROR_USAGE,
            "optimizer muon with offload: its matrices are updated whole, on the device; turn offload "
            "off, or take adamw");
    return ZERO_OK;
}

static zero_status_t check_offload_params(const zero_config_t *c)
{
    const double share = (double)c->offload_params, ratio = (double)c->offload_ratio;
    if (!(share >= 0.0 && share <= 1.0) && c->offload_params != ZERO_OFFLOAD_AUTO)
        return zero_fail_collective(ZERO_ERROR_USAGE, "offload_params %g: it must be in [0, 1], or ZERO_OFFLOAD_AUTO",
                                    share);
    if (share == 0.0)
        return ZERO_OK;
    if (c->stage != 3)
        return zero_fail_collective(ZERO_ERROR_USAGE, "offload_params at stage %d: parameters are offloaded at stage 3",
                                    c->stage);
    if (c->gather_fp8)
        return zero_fail_collective(ZERO_ERROR_USAGE,
                                    "offload_params with gather_fp8: offloaded parameters are gathered in their dtype; "
                                    "leave out one of the two");
    if (c->forward_only)
        return ZERO_OK;
    if (!c->offload)
        return zero_fail_collective(ZERO_ERROR_USAGE,
                                    "offload_params without offload: a unit's optimizer state is offloaded before its "
                                    "parameters; turn offload on, too");
    if (ratio >= 0.0 && share > ratio)
        return zero_fail_collective(ZERO_ERROR_USAGE,
                                    "offload_params %g with offload_ratio %g: a unit's optimizer state is offloaded "
                                    "before its parameters; take a larger offload_ratio",
                                    share, ratio);
    return ZERO_OK;
}

static zero_status_t check_gradients(const zero_config_t *c)
{
    if (c->gradients != ZERO_FP32 && c->gradients != ZERO_BF16)
        return zero_fail_collective(ZERO_ERROR_USAGE, "gradients %d: it must be ZERO_FP32 or ZERO_BF16",
                                    (int)c->gradients);
    if (c->gradients == ZERO_FP32 || c->forward_only)
        return ZERO_OK;
    if (c->dtype != ZERO_BF16)
        return zero_fail_collective(ZERO_ERROR_USAGE, "gradients bf16 with dtype %s: it needs bf16",
                                    zero_dtype_name(c->dtype));
    if (c->stage == 0)
        return zero_fail_collective(ZERO_ERROR_USAGE, "gradients bf16 at stage 0: it gathers reduced gradients in "
                                                      "fp32; take stage 1, 2 or 3");
    if (c->hooks || c->optimizer == ZERO_OPTIMIZER_MUON || c->optimizer == ZERO_OPTIMIZER_OWN)
        return zero_fail_collective(ZERO_ERROR_USAGE,
                                    "gradients bf16 with %s: they read gradients in fp32; take "
                                    "gradients fp32",
                                    c->hooks ? "hooks" : zero_optimizer_name(c->optimizer));
    return ZERO_OK;
}

/* Refuses what must see all gradients before the first unit is updated, or skips steps. */
static zero_status_t check_update(const zero_config_t *c)
{
    static const char update[] = "update backward";
    if ((unsigned)c->update > ZERO_UPDATE_IN_BACKWARD)
        return zero_fail_collective(ZERO_ERROR_USAGE, "update %d: it must be one of zero_update_time_t",
                                    (int)c->update);
    if (c->update == ZERO_UPDATE_IN_STEP || c->forward_only)
        return ZERO_OK;
    if (c->grad_clip != 0.0f)
        return zero_fail_collective(ZERO_ERROR_USAGE,
                                    "%s with grad_clip %g: units are updated before the norm of all gradients is "
                                    "known; set grad_clip to 0, or take update step",
                                    update, (double)c->grad_clip);
    if (c->stage == 0)
        return zero_fail_collective(ZERO_ERROR_USAGE,
                                    "%s at stage 0: there every rank updates everything, and needs all gradients for "
                                    "it; take stage 1, 2 or 3",
                                    update);
    if (c->dtype == ZERO_FP16)
        return zero_fail_collective(ZERO_ERROR_USAGE,
                                    "%s with fp16: its loss scale skips steps; take bf16, or update step", update);
    if (c->optimizer == ZERO_OPTIMIZER_MUON || c->optimizer == ZERO_OPTIMIZER_OWN)
        return zero_fail_collective(ZERO_ERROR_USAGE,
                                    "%s with optimizer %s: it updates in rounds of all units; take adamw, adamw8bit, "
                                    "sgd, nesterov or lion, or update step",
                                    update, zero_optimizer_name(c->optimizer));
    if (c->hooks)
        return zero_fail_collective(ZERO_ERROR_USAGE, "%s with hooks: they see a whole step; take update step", update);
    if (c->offload && c->offload_update == ZERO_OFFLOAD_UPDATE_HOST)
        return zero_fail_collective(ZERO_ERROR_USAGE,
                                    "%s with offload_update host: the host updates whole steps; take offload_update "
                                    "device, or update step",
                                    update);
    return ZERO_OK;
}

zero_status_t zero_config_check(const zero_config_t *c)
{
    ZERO_TRY(zero_check_reserved("zero_config_t", "unused", c->unused, sizeof c->unused));
    if (c->stage < 0 || c->stage > 3)
        return zero_fail_collective(ZERO_ERROR_USAGE, "stage %d: it must be 0, 1, 2 or 3", c->stage);
    if (c->dtype != ZERO_FP32 && c->dtype != ZERO_BF16 && c->dtype != ZERO_FP16)
        return zero_fail_collective(ZERO_ERROR_USAGE, "dtype %d: it must be ZERO_FP32, ZERO_BF16 or ZERO_FP16",
                                    (int)c->dtype);
    if (c->gather_fp8 && c->dtype != ZERO_BF16)
        return zero_fail_collective(ZERO_ERROR_USAGE, "gather_fp8 with dtype %s: it needs bf16",
                                    zero_dtype_name(c->dtype));
    if (c->micro_steps < 1)
        return zero_fail_collective(ZERO_ERROR_USAGE, "micro_steps %d: it must be at least 1", c->micro_steps);
    if (c->prefetch < 0)
        return zero_fail_collective(ZERO_ERROR_USAGE, "prefetch %d: it must be at least 0", c->prefetch);
    if (c->shard_group < ZERO_SHARD_GROUP_HOST)
        return zero_fail_collective(ZERO_ERROR_USAGE, "shard_group %d: it must be ZERO_SHARD_GROUP_HOST or at least 0",
                                    c->shard_group);
    if (c->keep < 0 && c->keep != ZERO_KEEP_AUTO)
        return zero_fail_collective(ZERO_ERROR_USAGE, "keep %d: it must be at least 0, or ZERO_KEEP_AUTO", c->keep);
    if ((unsigned)c->optimizer >= ZERO_N_OPTIMIZERS)
        return zero_fail_collective(ZERO_ERROR_USAGE, "optimizer %d: it must be one of zero_optimizer_t",
                                    (int)c->optimizer);
    if (c->optimizer == ZERO_OPTIMIZER_OWN)
        ZERO_TRY(check_own_optimizer(c));
    else if (c->own_optimizer)
        return zero_fail_collective(ZERO_ERROR_USAGE,
                                    "optimizer %s with an own_optimizer, which would not be called: set optimizer to "
                                    "ZERO_OPTIMIZER_OWN, or leave own_optimizer out",
                                    zero_optimizer_name(c->optimizer));
    if (c->hooks)
        ZERO_TRY(check_hooks(c));
    ZERO_TRY(check_muon(c));
    if (!is_fraction(c->momentum))
        return zero_fail_collective(ZERO_ERROR_USAGE, "momentum %g: it must be in [0, 1)", (double)c->momentum);
    if (!is_fraction(c->beta1) || !is_fraction(c->beta2))
        return zero_fail_collective(ZERO_ERROR_USAGE, "beta1 %g, beta2 %g: both must be in [0, 1)", (double)c->beta1,
                                    (double)c->beta2);
    if (!is_amount(c->eps) || c->eps == 0.0f) /* AdamW divides by it if all gradients so far were 0 */
        return zero_fail_collective(ZERO_ERROR_USAGE, "eps %g: it must be above 0 and finite", (double)c->eps);
    if (!is_amount(c->weight_decay) || !is_amount(c->grad_clip))
        return zero_fail_collective(ZERO_ERROR_USAGE, "weight_decay %g, grad_clip %g: neither may be negative",
                                    (double)c->weight_decay, (double)c->grad_clip);
    if (c->max_skipped_steps < 1)
        return zero_fail_collective(ZERO_ERROR_USAGE, "max_skipped_steps %d: it must be at least 1",
                                    c->max_skipped_steps);
    if (!(c->initial_loss_scale >= 1.0f) || isinf(c->initial_loss_scale))
        return zero_fail_collective(ZERO_ERROR_USAGE, "initial_loss_scale %g: it must be at least 1",
                                    (double)c->initial_loss_scale);
    if (!(c->offload_ratio >= 0.0f && c->offload_ratio <= 1.0f) && c->offload_ratio != ZERO_OFFLOAD_AUTO)
        return zero_fail_collective(ZERO_ERROR_USAGE, "offload_ratio %g: it must be in [0, 1], or ZERO_OFFLOAD_AUTO",
                                    (double)c->offload_ratio);
    ZERO_TRY(check_offload_params(c));
    ZERO_TRY(check_update(c));
    ZERO_TRY(check_gradients(c));
    if ((unsigned)c->offload_update > ZERO_OFFLOAD_UPDATE_HOST)
        return zero_fail_collective(ZERO_ERROR_USAGE, "offload_update %d: it must be one of zero_offload_update_t",
                                    (int)c->offload_update);
    if (c->loss_scale_window < 1 || c->loss_scale_hysteresis < 1)
        return zero_fail_collective(ZERO_ERROR_USAGE,
                                    "loss_scale_window %d, loss_scale_hysteresis %d: both must be at least 1",
                                    c->loss_scale_window, c->loss_scale_hysteresis);
    /* The rest may differ between ranks. */
    if (c->user_bytes > (size_t)1 << 62) /* the plan stays below that, and their sum below 2^64 */
        return zero_fail(ZERO_ERROR_USAGE, "user_bytes %zu: more than any memory has", c->user_bytes);
    if (c->user_pinned_bytes > (size_t)1 << 62)
        return zero_fail(ZERO_ERROR_USAGE, "user_pinned_bytes %zu: more than any memory has", c->user_pinned_bytes);
    if ((unsigned)c->offload_grads > ZERO_OFFLOAD_GRADS_HOST)
        return zero_fail_collective(ZERO_ERROR_USAGE, "offload_grads %d: it must be one of zero_offload_grads_t",
                                    (int)c->offload_grads);
    if (c->offload_threads < 0 || c->offload_threads > ZERO_MAX_OFFLOAD_THREADS)
        return zero_fail(ZERO_ERROR_USAGE, "offload_threads %d: it must be in 0..%d", c->offload_threads,
                         ZERO_MAX_OFFLOAD_THREADS);
    if (!(c->offload_ram > 0.0f && c->offload_ram <= 1.0f))
        return zero_fail(ZERO_ERROR_USAGE, "offload_ram %g: it must be in (0, 1]", (double)c->offload_ram);
    return ZERO_OK;
}

/* ---- config size ---- */
/* Configurations of other sizes than this library's: of programs that were compiled with an older or a
 * newer zero.h. Fields are only ever added behind the last one, so the shorter struct is the beginning of the longer.
 *
 * The library works on structs of its own size alone. A caller's comes in by zero_config_read and goes out by
 * zero_config_write; nothing else touches a caller's memory, and nothing beyond its struct_size. */

/* What the smallest struct ends before. The first header was a little larger, so that there are shorter structs to test
 * with: fields from here on may be missing in a caller's. */
#define FIRST_SIZE offsetof(zero_config_t, staging_bytes)
/* No header is near it: a number that is larger is none that a program meant. */
#define MOST_SIZE 4096
/* What is behind is unknown here. A newer header may have fields in the room. */
#define KNOWN_SIZE offsetof(zero_config_t, reserved)

/* A field that is added begins at a multiple of 8, and the struct has no unnamed bytes at its end, which a copy might
 * not keep. */
static_assert(sizeof(zero_config_t) % 8 == 0 && FIRST_SIZE % 8 == 0, "sizes of zero_config_t are multiples of 8");
static_assert(KNOWN_SIZE + sizeof((zero_config_t){0}.reserved) == sizeof(zero_config_t), "reserved is at the end");

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static zero_status_t check_size(const char *call, size_t struct_size)
{
    if (struct_size >= FIRST_SIZE && struct_size <= MOST_SIZE && struct_size % 8 == 0)
        return ZERO_OK;
    return zero_fail(ZERO_ERROR_ARGUMENT,
                     "%s: struct_size is %zu, and no zero.h has such a zero_config_t (libzero " ZERO_VERSION_STRING
                     "'s has %zu bytes): begin with zero_config_default(), or with zero_config_init(&config, "
                     "sizeof config)",
                     call, struct_size, sizeof(zero_config_t));
}

void zero_config_write(const zero_config_t *config, size_t struct_size, zero_config_t *callers)
{
    size_t n_bytes = smaller(struct_size, sizeof *config);
    memcpy((void *)callers, config, n_bytes);
    memset((unsigned char *)callers + n_bytes, 0, struct_size - n_bytes);
    callers->struct_size = struct_size;
}

zero_status_t zero_config_init(zero_config_t *config, size_t struct_size)
{
    ZERO_REQUIRE(config);
    ZERO_TRY(check_size("zero_config_init", struct_size));
    const zero_config_t defaults = zero_config_defaults();
    zero_config_write(&defaults, struct_size, config);
    return ZERO_OK;
}

zero_status_t zero_config_check_size(const char *call, const zero_config_t *callers)
{
    const size_t struct_size = callers->struct_size;
    ZERO_TRY(check_size(call, struct_size));
    if (struct_size <= KNOWN_SIZE ||
        zero_are_zeros((const unsigned char *)callers + KNOWN_SIZE, struct_size - KNOWN_SIZE))
        return ZERO_OK;
    return zero_fail(ZERO_ERROR_UNSUPPORTED,
                     "%s: the program's zero_config_t has %zu bytes, that of libzero " ZERO_VERSION_STRING
                     " has %zu, and what this library does not know in it is not 0: leave those fields alone, or run "
                     "the program with the library of its zero.h",
                     call, struct_size, sizeof(zero_config_t));
}

zero_status_t zero_config_read(const char *call, const zero_config_t *callers, zero_config_t *config)
{
    ZERO_TRY(zero_config_check_size(call, callers));
    zero_config_t read = zero_config_defaults();
    memcpy((void *)&read, callers, smaller(callers->struct_size, KNOWN_SIZE));
    read.struct_size = sizeof read;
    *config = read;
    return ZERO_OK;
}
