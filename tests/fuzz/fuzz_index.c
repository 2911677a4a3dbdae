/* fuzz_index.c - model.safetensors.index.json, beside two weight files that are good. What is taken loads every tensor
 * from the file that the index gives for it. */
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>

#include "engine.h"
#include "input.h"

#define FOLDER "weights"
#define INDEX FOLDER "/model.safetensors.index.json"

/* What the two files hold that can be loaded. Values count up from `first`. */
static const struct array {
    const char *file, *name;
    zero_tensor_t tensor; /* that it can be loaded as */
    float first;
} ARRAYS[] = {
    {"s1.safetensors", "a", 0, 1.0f},
    {"s1.safetensors", "lm_head.weight", 2, 16.0f},
    {"s2.safetensors", "b", 1, 32.0f},
    {"s2.safetensors", "model.a", 0, 64.0f},
    {"s2.safetensors", "model.lm_head.weight", 2, 128.0f},
};
enum { N_ARRAYS = sizeof ARRAYS / sizeof ARRAYS[0] };

static void write_weights(const char *path, const char *header, const void *data, size_t n_bytes)
{
    unsigned char file[1024];
    uint64_t length = strlen(header);
    memcpy(file, &length, sizeof length);
    memcpy(file + sizeof length, header, length);
    memcpy(file + sizeof length + length, data, n_bytes);
    fuzz_write(path, file, sizeof length + length + n_bytes);
}

/* s1 also holds a `b` of another shape and one of another dtype, which no index may load. */
static void make_folder(void)
{
    static bool made;
    static const float S1[] = {1, 2, 16, 48, 49, 50, 51, 52, 53, 54, 55};
    static const struct {
        uint16_t bf16[4];
        float fp32[2];
        uint16_t fp16;
    } S2 = {{0x4200, 0x4204, 0x4208, 0x420c}, {64, 65}, 0x5800};
    if (made)
        return;
    made = true;
    FUZZ_REQUIRE(mkdir(fuzz_path(FOLDER), 0700) == 0, "cannot make a folder");
    write_weights(FOLDER "/s1.safetensors",
                  "{\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8]}, "
                  "\"lm_head.weight\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [8, 12]}, "
                  "\"b\": {\"dtype\": \"F32\", \"shape\": [4], \"data_offsets\": [12, 28]}, "
                  "\"transformer.b\": {\"dtype\": \"I32\", \"shape\": [2, 2], \"data_offsets\": [28, 44]}}",
                  S1, sizeof S1);
    write_weights(FOLDER "/s2.safetensors",
                  "{\"b\": {\"dtype\": \"BF16\", \"shape\": [2, 2], \"data_offsets\": [0, 8]}, "
                  "\"model.a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [8, 16]}, "
                  "\"model.lm_head.weight\": {\"dtype\": \"F16\", \"shape\": [1], \"data_offsets\": [16, 18]}}",
                  &S2, 18);
}

/* The array that the index means for a tensor: there must be one and no more. */
static const struct array *meant(const json_t *weight_map, zero_tensor_t tensor)
{
    const struct array *found = NULL;
    for (const struct array *array = ARRAYS; array < ARRAYS + N_ARRAYS; array++) {
        const char *file = json_string_value(json_object_get(weight_map, array->name));
        if (array->tensor != tensor || !file || strcmp(file, array->file) != 0)
            continue;
        FUZZ_REQUIRE(!found, "%s is in the index twice, and is loaded", fuzz_tensors[tensor].name);
        found = array;
    }
    FUZZ_REQUIRE(found, "%s is not in the index, and is loaded", fuzz_tensors[tensor].name);
    return found;
}

static void check_weights(const char *text, size_t n_bytes)
{
    fuzz_state_t state;
    json_t *index = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, NULL);
    FUZZ_REQUIRE(index, "an index that is no JSON is taken");
    fuzz_get_state(&state);
    for (zero_tensor_t t = 0; t < FUZZ_N_TENSORS; t++) {
        const struct array *array = meant(json_object_get(index, "weight_map"), t);
        for (size_t i = 0; i < fuzz_tensors[t].n_elems; i++)
            FUZZ_REQUIRE(state.master[t][i] == array->first + (float)i, "element %zu of %s is %g, not that of %s in %s",
                         i, fuzz_tensors[t].name, (double)state.master[t][i], array->name, array->file);
    }
    json_decref(index);
}

int fuzz_index(const uint8_t *data, size_t n_bytes)
{
    fuzz_begin();
    zero_engine_t *engine = fuzz_engine();
    make_folder();
    fuzz_write(INDEX, data, n_bytes);
    zero_status_t status = zero_load_weights(engine, fuzz_path(FOLDER));
    if (status != ZERO_OK) {
        fuzz_refused(status);
        return 0;
    }
    fuzz_accepted = true;
    check_weights((const char *)data, n_bytes);
    return 0;
}
