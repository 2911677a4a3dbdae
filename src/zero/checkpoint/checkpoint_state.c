/* checkpoint_state.c - see checkpoint_state.h.
 *
 *     {"adam_step": 10, "dtype": "bf16", "good_steps": 10, "library": "0.1.0", "loss_scale": 1.0, "overflows": 0,
 *      "skipped_in_row": 0, "step": 10, ... the caller's keys}
 *
 * and "optimizer": "lion" of another optimizer than AdamW.
 */
#include "zero/checkpoint/checkpoint_state.h"

#include <float.h>
#include <string.h>

#include "base/log.h"
#include "zero/optimizer/optimizer.h"

zero_status_t zero_checkpoint_parse_callers(const char *what, const char *text, json_t **object)
{
    json_error_t error;
    json_t *parsed = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(parsed)) {
        json_decref(parsed);
        return zero_fail_alike(ZERO_ERROR_ARGUMENT, "zero_save_begin: %s is not a JSON object: %s", what,
                               parsed ? "it is another value" : error.text);
    }
    *object = parsed;
    return ZERO_OK;
}

/* AdamW is what a checkpoint without the key has: so were all before there were other optimizers. */
static bool add_optimizer(json_t *object, const zero_config_t *config)
{
    return config->optimizer == ZERO_OPTIMIZER_ADAMW ||
           json_object_set_new(object, "optimizer", json_string(zero_optimizer_name_of(config))) == 0;
}

zero_status_t zero_checkpoint_state_check_optimizer(const json_t *object, const char *path, const zero_config_t *config)
{
    const json_t *value = json_object_get(object, "optimizer");
    const char *saved = value ? json_string_value(value) : zero_optimizer_name(ZERO_OPTIMIZER_ADAMW);
    const char *mine = zero_optimizer_name_of(config);
    if (saved && strcmp(saved, mine) == 0)
        return ZERO_OK;
    return zero_fail_alike(ZERO_ERROR_FORMAT,
                           "'%s': the checkpoint has the state of optimizer %s, and this run's is %s: resume with the "
                           "same optimizer, or start anew from its weights alone",
                           path, saved ? saved : "(no name)", mine);
}

zero_status_t zero_checkpoint_state_make(uint64_t step, const zero_config_t *config, const zero_step_state_t *state,
                                         const char *caller_json, json_t **object)
{
    json_t *caller = NULL;
    ZERO_TRY(zero_checkpoint_parse_callers("state_json", caller_json ? caller_json : "{}", &caller));
    json_t *made = json_pack("{s:I, s:I, s:s, s:f, s:I, s:I, s:I, s:s}", "step", (json_int_t)step, "adam_step",
                             (json_int_t)state->adam_step, "dtype", zero_dtype_name(config->dtype), "loss_scale",
                             (double)state->loss_scale, "good_steps", (json_int_t)state->good_steps, "overflows",
                             (json_int_t)state->overflows, "skipped_in_row", (json_int_t)state->skipped_in_row,
                             "library", zero_version());
    bool named = made && add_optimizer(made, config);
    size_t n_keys = json_object_size(made) + json_object_size(caller);
    bool merged = named && json_object_update(made, caller) == 0 && json_object_size(made) == n_keys;
    json_decref(caller);
    if (!merged) {
        json_decref(made);
        return zero_fail_alike(ZERO_ERROR_ARGUMENT,
                               "zero_save_begin: state_json has one of libzero's own keys, or there is no memory");
    }
    *object = made;
    return ZERO_OK;
}

/* Reads a whole number from 0 to `most`. */
static bool get_count(const json_t *object, const char *key, uint64_t most, uint64_t *count)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0 || (uint64_t)json_integer_value(value) > most)
        return false;
    *count = (uint64_t)json_integer_value(value);
    return true;
}

static zero_status_t fail(const char *path, const char *key)
{
    return zero_fail(ZERO_ERROR_FORMAT, "'%s': %s is missing or invalid: take another checkpoint", path, key);
}

zero_status_t zero_checkpoint_state_parse(const json_t *object, const char *path, zero_dtype_t dtype, uint64_t *step,
                                          zero_step_state_t *state)
{
    zero_step_state_t parsed = *state;
    uint64_t at_step, good_steps, overflows, skipped_in_row;
    const char *saved_dtype = json_string_value(json_object_get(object, "dtype"));
    double loss_scale = json_number_value(json_object_get(object, "loss_scale"));
    if (!get_count(object, "step", INT64_MAX / 2, &at_step))
        return fail(path, "step");
    if (!get_count(object, "adam_step", INT64_MAX / 2, &parsed.adam_step))
        return fail(path, "adam_step");
    if (!saved_dtype)
        return fail(path, "dtype");
    /* It becomes a float, and must be neither infinite nor 0 then. */
    if (!(loss_scale >= (double)FLT_MIN && loss_scale <= (double)FLT_MAX))
        return fail(path, "loss_scale");
    if (!get_count(object, "good_steps", UINT32_MAX, &good_steps))
        return fail(path, "good_steps");
    if (!get_count(object, "overflows", UINT32_MAX, &overflows))
        return fail(path, "overflows");
    if (!get_count(object, "skipped_in_row", UINT32_MAX, &skipped_in_row))
        return fail(path, "skipped_in_row");
    if (dtype == ZERO_FP16 && strcmp(saved_dtype, zero_dtype_name(ZERO_FP16)) == 0) {
        parsed.loss_scale = (float)loss_scale;
        parsed.good_steps = (uint32_t)good_steps;
        parsed.overflows = (uint32_t)overflows;
    }
    parsed.skipped_in_row = (uint32_t)skipped_in_row;
    *step = at_step;
    *state = parsed;
    return ZERO_OK;
}
