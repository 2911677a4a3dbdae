/* checkpoint_session.h - a small model that is saved and loaded, for tests of everything around the numbers: other
 * writers to the files, other files in the directory, manifests that must not be believed.
 */
#ifndef ZERO_TEST_CHECKPOINT_SESSION_H
#define ZERO_TEST_CHECKPOINT_SESSION_H

#include <jansson.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "tests/support/log_lines.h"
#include "tests/support/scratch.h"
#include "tests/support/session.h"

static const session_tensor_t small_tensors[] = {
    {"wte.weight", 0, 2, {257, 300}, false}, /* larger than the runs in which weights pass */
    {"h.0.w", 1, 2, {3, 41}, false},
    {"ln_f.weight", 1, 1, {100}, false},
};
static const session_model_t small_model = {.tensors = small_tensors,
                                            .n_tensors = sizeof small_tensors / sizeof small_tensors[0],
                                            .n_units = 2,
                                            .init = ZERO_INIT_NORMAL,
                                            .init_std = 0.02f};

/* Opens a session with random weights, unlike the formula. */
static inline session_t session_open(int stage, zero_dtype_t dtype)
{
    return session_create(NULL, stage, dtype, &small_model);
}

/* Opens a session with the formula, ready to be saved. */
static inline session_t session_open_filled(int stage, zero_dtype_t dtype)
{
    session_t session = session_open(stage, dtype);
    session_fill(&session);
    return session;
}

static const zero_save_options_t session_plain = {.config_json = "{\"n_layer\": 2}\n"};

/* ---- files that lie, with a manifest that vouches for them ---- */

/* Writes sizes and hashes of the files of a step's directory into its manifest, as they are now. */
static inline void session_reseal(const char *directory)
{
    char path[1024];
    const char *name;
    json_t *entry;
    snprintf(path, sizeof path, "%s/manifest.json", directory);
    json_t *manifest = json_load_file(path, 0, NULL);
    json_object_foreach(json_object_get(manifest, "files"), name, entry)
    {
        char file[1024], hash[17];
        size_t n_bytes;
        snprintf(file, sizeof file, "%s/%s", directory, name);
        char *bytes = support_read_file(file, &n_bytes);
        snprintf(hash, sizeof hash, "%016llx", (unsigned long long)XXH3_64bits(bytes, n_bytes));
        json_object_set_new(entry, "bytes", json_integer((json_int_t)n_bytes));
        json_object_set_new(entry, "xxh3", json_string(hash));
        free(bytes);
    }
    if (json_dump_file(manifest, path, JSON_INDENT(2)) != 0)
        abort();
    json_decref(manifest);
}

#endif
