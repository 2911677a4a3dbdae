/* config_set.c - zero_config_set: one row for each setting of zero_config_t that can be written as text. Here a text
 * must be a value of the setting's type; ranges are checked where a configuration is used (config.c). */
#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/system.h"
#include "zero/plan/config.h"

/* Reads a text into the field at `field`; false if it is no value of the type. */
typedef bool (*read_fn)(const char *text, void *field);

typedef struct setting {
    const char *name;
    size_t offset, end; /* in zero_config_t */
    read_fn read;
    const char *wants;
    /* A word that is possible too, and the number that it stands for. */
    const char *word;
    float number;
} setting_t;

/* ---- types ---- */

static bool is_whole(const char *text, bool may_be_negative)
{
    if (may_be_negative && *text == '-')
        text++;
    return *text != '\0' && text[strspn(text, "0123456789")] == '\0';
}

static bool read_int(const char *text, void *field)
{
    errno = 0;
    long number = strtol(text, NULL, 10);
    if (!is_whole(text, true) || errno != 0 || number < INT_MIN || number > INT_MAX)
        return false;
    *(int *)field = (int)number;
    return true;
}

static bool read_uint64(const char *text, void *field)
{
    errno = 0;
    unsigned long long number = strtoull(text, NULL, 10);
    if (!is_whole(text, false) || errno != 0)
        return false;
    *(uint64_t *)field = number;
    return true;
}

static bool read_size(const char *text, void *field)
{
    uint64_t number;
    if (!read_uint64(text, &number) || number > SIZE_MAX)
        return false;
    *(size_t *)field = (size_t)number;
    return true;
}

static bool read_float(const char *text, void *field)
{
    char *end;
    float number = zero_strtof(text, &end);
    if (end == text || *end != '\0' || strspn(text, "+-.0123456789eE") != strlen(text) || !isfinite(number))
        return false;
    *(float *)field = number;
    return true;
}

static bool read_bool(const char *text, void *field)
{
    const bool is_true = strcmp(text, "true") == 0;
    if (!is_true && strcmp(text, "false") != 0)
        return false;
    *(bool *)field = is_true;
    return true;
}

static bool read_dtype(const char *text, void *field)
{
    for (int dtype = ZERO_FP32; dtype <= ZERO_FP16; dtype++)
        if (strcmp(text, zero_dtype_name((zero_dtype_t)dtype)) == 0) {
            *(zero_dtype_t *)field = (zero_dtype_t)dtype;
            return true;
        }
    return false;
}

static bool read_optimizer(const char *text, void *field)
{
    for (int optimizer = 0; optimizer < ZERO_N_OPTIMIZERS; optimizer++)
        if (optimizer != ZERO_OPTIMIZER_OWN && strcmp(text, zero_optimizer_name((zero_optimizer_t)optimizer)) == 0) {
            *(zero_optimizer_t *)field = (zero_optimizer_t)optimizer;
            return true;
        }
    return false;
}

static_assert((int)ZERO_OFFLOAD_GRADS_DEVICE == (int)ZERO_OFFLOAD_UPDATE_DEVICE &&
                  (int)ZERO_OFFLOAD_GRADS_HOST == (int)ZERO_OFFLOAD_UPDATE_HOST,
              "places have the same numbers in both enums");

static bool read_place(const char *text, void *field)
{
    static const char *const names[] = {"auto", "device", "host"};
    for (unsigned i = 0; i < 3; i++)
        if (strcmp(text, names[i]) == 0) {
            const unsigned place = i; /* enums are as large */
            memcpy(field, &place, sizeof place);
            return true;
        }
    return false;
}

static bool read_update(const char *text, void *field)
{
    if (strcmp(text, "step") != 0 && strcmp(text, "backward") != 0)
        return false;
    *(zero_update_time_t *)field = text[0] == 's' ? ZERO_UPDATE_IN_STEP : ZERO_UPDATE_IN_BACKWARD;
    return true;
}

/* ---- the table ---- */

#define END_OF(field) (offsetof(zero_config_t, field) + sizeof((zero_config_t){0}.field))
#define ROW(field, type)                                                                                               \
    {                                                                                                                  \
#field, offsetof(zero_config_t, field), END_OF(field), read_##type, WANTS_##type, NULL, 0.0f                   \
    }
#define ROW_OR(field, type, word, number)                                                                              \
    {                                                                                                                  \
#field, offsetof(zero_config_t, field), END_OF(field), read_##type, WANTS_##type " or " word, word, number     \
    }
#define WANTS_int "a whole number"
#define WANTS_uint64 "a whole number"
#define WANTS_size "a whole number of bytes"
#define WANTS_float "a number"
#define WANTS_bool "true or false"
#define WANTS_dtype "fp32, bf16 or fp16"
#define WANTS_optimizer "a name of zero_optimizer_name but own"
#define WANTS_place "auto, device or host"
#define WANTS_update "step or backward"

/* Pointers to functions of the caller's have no text. */
static const setting_t SETTINGS[] = {
    ROW(stage, int),
    ROW(dtype, dtype),
    ROW(micro_steps, int),
    ROW(prefetch, int),
    ROW_OR(keep, int, "auto", (float)ZERO_KEEP_AUTO),
    ROW(overlap, bool),
    ROW(reduce_every_micro_step, bool),
    ROW(nccl_reduction, bool),
    ROW_OR(shard_group, int, "host", (float)ZERO_SHARD_GROUP_HOST),
    ROW(gather_fp8, bool),
    ROW(seed, uint64),
    ROW(optimizer, optimizer),
    ROW(beta1, float),
    ROW(beta2, float),
    ROW(eps, float),
    ROW(weight_decay, float),
    ROW(momentum, float),
    ROW(muon_momentum, float),
    ROW(muon_steps, int),
    ROW(grad_clip, float),
    ROW(max_skipped_steps, int),
    ROW(initial_loss_scale, float),
    ROW(loss_scale_window, int),
    ROW(loss_scale_hysteresis, int),
    ROW(offload, bool),
    ROW_OR(offload_ratio, float, "auto", ZERO_OFFLOAD_AUTO),
    ROW(offload_update, place),
    ROW(offload_buffer_bytes, size),
    ROW(offload_threads, int),
    ROW(offload_ram, float),
    ROW(staging_bytes, size),
    ROW(user_bytes, size),
    ROW(check, bool),
    ROW(forward_only, bool),
    ROW_OR(offload_params, float, "auto", ZERO_OFFLOAD_AUTO),
    ROW(user_pinned_bytes, size),
    ROW(update, update),
    ROW(gradients, dtype),
    ROW(offload_grads, place),
};

static bool set_field(const setting_t *setting, const char *text, void *field)
{
    if (!setting->word || strcmp(text, setting->word) != 0)
        return setting->read(text, field);
    if (setting->read == read_int)
        *(int *)field = (int)setting->number;
    else
        *(float *)field = setting->number;
    return true;
}

zero_status_t zero_config_set(zero_config_t *config, const char *name, const char *value)
{
    ZERO_REQUIRE(config);
    ZERO_REQUIRE(name);
    ZERO_REQUIRE(value);
    ZERO_TRY(zero_config_check_size("zero_config_set", config));
    static const char section[] = "zero.";
    const char *field = strncmp(name, section, strlen(section)) == 0 ? name + strlen(section) : name;
    for (size_t i = 0; i < sizeof SETTINGS / sizeof SETTINGS[0]; i++) {
        const setting_t *setting = &SETTINGS[i];
        if (strcmp(setting->name, field) != 0)
            continue;
        if (setting->end > config->struct_size)
            return zero_fail(ZERO_ERROR_ARGUMENT,
                             "zero_config_set: the program was compiled with a zero.h that has no %s: compile it again",
                             setting->name);
        if (!set_field(setting, value, (char *)config + setting->offset))
            return zero_fail(ZERO_ERROR_ARGUMENT, "zero_config_set: %s is to be %.40s: it must be %s", name, value,
                             setting->wants);
        return ZERO_OK;
    }
    return zero_fail(ZERO_ERROR_ARGUMENT, "zero_config_set: there is no setting %.60s", name);
}
