/* adapter_base.c - see adapter_base.h. */
#include "train/hub/adapter_base.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "train/hub/adapter_config.h"
#include "train/hub/tensor_file.h"
#include "train/report/report.h"
#include "train/report/utf8.h"

/* ---- telling models apart ---- */

#define SAMPLE_BYTES 256

/* Adds a tensor's number: sums do not depend on which file has it. */
static zero_status_t add_tensor(const tensor_file_t *file, const file_tensor_t *tensor, uint64_t *sample)
{
    unsigned char bytes[SAMPLE_BYTES];
    const size_t n = tensor->n_bytes < SAMPLE_BYTES ? (size_t)tensor->n_bytes : SAMPLE_BYTES;
    uint64_t hash = XXH3_64bits(tensor->name, strlen(tensor->name));
    hash = XXH3_64bits_withSeed(tensor->shape, sizeof tensor->shape, hash);
    ZERO_TRY(tensor_file_read(file, tensor->first + (tensor->n_bytes - n) / 2, bytes, n));
    *sample += XXH3_64bits_withSeed(bytes, n, hash);
    return ZERO_OK;
}

static zero_status_t add_file(const char *directory, const char *name, uint64_t *sample)
{
    char path[OPTIONS_MAX_PATH + 512];
    tensor_file_t file = {0};
    snprintf(path, sizeof path, "%s/%s", directory, name);
    ZERO_TRY(tensor_file_open(path, &file));
    zero_status_t status = ZERO_OK;
    for (size_t i = 0; i < file.n_tensors && status == ZERO_OK; i++)
        status = add_tensor(&file, &file.tensors[i], sample);
    tensor_file_close(&file);
    return status;
}

zero_status_t adapter_base_sample(const char *directory, uint64_t *sample)
{
    model_weight_files_t files;
    uint64_t sum = 0;
    ZERO_TRY(model_weight_files(directory, &files));
    zero_status_t status = ZERO_OK;
    for (size_t i = 0; i < files.n_files && status == ZERO_OK; i++)
        status = add_file(directory, files.names[i], &sum);
    model_weight_files_free(&files);
    if (status == ZERO_OK)
        *sample = sum;
    return status;
}

/* ---- checking ---- */

/* Finds the path of the model that an adapter was trained on. saved: its state.json's "base", whose path may be one
 * that another checkpoint has by now. */
static void find_base(const char *adapter, const json_t *saved, char name[PATH_MAX])
{
    char path[OPTIONS_MAX_PATH + 64];
    snprintf(path, sizeof path, "%s/" ADAPTER_CONFIG_FILE, adapter);
    json_t *config = json_load_file(path, 0, NULL);
    const char *resolved = json_string_value(json_object_get(config, "base_model_name_or_path"));
    const char *given = json_string_value(json_object_get(saved, "init"));
    snprintf(name, PATH_MAX, "%s", resolved ? resolved : given ? given : "?");
    json_decref(config);
}

/* Returns what to do about it. */
static const char *way_out(const options_t *o, const char *name)
{
    char mine[PATH_MAX];
    if (realpath(o->model.init, mine) && strcmp(mine, name) == 0)
        return ", which had them then";
    if (access(name, F_OK) != 0)
        return ", which is not here";
    return options_are_forward_only(o) ? ": name that model" : ": give that as [model] init";
}

/* Compares the weights of the model in model.init with those that the adapter was trained on. */
static zero_status_t check_weights(const char *adapter, const json_t *saved, const options_t *o)
{
    char mine[20], name[PATH_MAX];
    uint64_t sample;
    const char *theirs = json_string_value(json_object_get(saved, "sample"));
    if (!theirs)
        return ZERO_OK;
    find_base(adapter, saved, name);
    if (options_init_is_random(o->model.init))
        return report_error(ZERO_ERROR_USAGE,
                            "[model] init = random, but the adapter '%s' was trained on the weights of '%s'%s", adapter,
                            name, way_out(o, name));
    ZERO_TRY(adapter_base_sample(o->model.init, &sample));
    snprintf(mine, sizeof mine, "%016" PRIx64, sample);
    if (strcmp(mine, theirs) == 0)
        return ZERO_OK;
    return report_error(ZERO_ERROR_USAGE,
                        "the model '%s' and the adapter '%s' do not belong together: it was trained on other weights, "
                        "those of '%s'%s",
                        o->model.init, adapter, name, way_out(o, name));
}

/* Refuses another random model: it is that of a seed. */
static zero_status_t check_random(const char *adapter, int64_t seed, const options_t *o)
{
    if (!options_init_is_random(o->model.init))
        return report_error(ZERO_ERROR_USAGE,
                            "the model '%s' and the adapter '%s' do not belong together: it was trained on the random "
                            "model of [train] seed = %" PRId64 "%s",
                            o->model.init, adapter, seed,
                            options_are_forward_only(o) ? ", which only training makes" : ": leave [model] init out");
    if (o->train.seed == seed)
        return ZERO_OK;
    return report_error(ZERO_ERROR_USAGE,
                        "[train] seed = %" PRId64 ", but the adapter '%s' was trained on the random model of seed = "
                        "%" PRId64 ", and another seed is another model: set that one",
                        o->train.seed, adapter, seed);
}

json_t *adapter_base_json(const options_t *options, uint64_t sample)
{
    char text[20];
    if (options_init_is_random(options->model.init))
        return json_pack("{s:s, s:I}", "init", options->model.init, "seed", (json_int_t)options->train.seed);
    snprintf(text, sizeof text, "%016" PRIx64, sample);
    return json_pack("{s:o, s:s}", "init", utf8_json(options->model.init), "sample", text);
}

zero_status_t adapter_check_base(const char *adapter, const options_t *options)
{
    char path[OPTIONS_MAX_PATH + 64];
    json_error_t error;
    snprintf(path, sizeof path, "%s/state.json", adapter);
    if (access(path, F_OK) != 0)
        return ZERO_OK;
    json_t *state = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!state)
        return report_error(ZERO_ERROR_FORMAT, "'%s' cannot be read as JSON: %s", path, error.text);
    const json_t *saved = json_object_get(state, "base"), *seed = json_object_get(saved, "seed");
    zero_status_t status = json_is_integer(seed) ? check_random(adapter, json_integer_value(seed), options)
                                                 : check_weights(adapter, saved, options);
    json_decref(state);
    return status;
}
