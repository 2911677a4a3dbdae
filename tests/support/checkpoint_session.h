/* checkpoint_session.h - a small engine that saves and loads, for tests of everything around the numbers: other writers
 * to the files, other files in the directory, manifests that must not be believed.
 *
 * Weights and moments are a formula of tensor and element, so any rank can check what it holds.
 */
#ifndef ZERO_TEST_CHECKPOINT_SESSION_H
#define ZERO_TEST_CHECKPOINT_SESSION_H

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "tests/support/support.h"
#include "zero.h"

#define SESSION_ADAM_STEP 7
#define SESSION_LIMIT_S 60.0

static const struct {
    const char *name;
    int unit, n_dims;
    int64_t shape[2];
} session_tensors[] = {
    {"wte.weight", 0, 2, {257, 300}}, /* larger than the runs in which weights pass */
    {"h.0.w", 1, 2, {3, 41}},
    {"ln_f.weight", 1, 1, {100}},
};
#define SESSION_N_TENSORS ((int)(sizeof session_tensors / sizeof session_tensors[0]))
#define SESSION_N_UNITS 2

typedef struct session {
    zero_comm_t *comm;
    zero_device_t *device;
    zero_engine_t *engine;
} session_t;

/* Not an assertion of Check's, because ranks run outside its tests. */
static inline void must(zero_status_t status)
{
    if (status != ZERO_OK) {
        fprintf(stderr, "status %s\n", zero_status_name(status));
        exit(3);
    }
}

/* Weights (which = 0), m (1) and v (2): normal numbers, of both signs but for v. */
static inline float session_value(int which, int tensor, size_t i)
{
    uint64_t state = ((uint64_t)which * 100 + (uint64_t)tensor) << 40 | i;
    uint32_t bits = (uint32_t)support_random(&state);
    float magnitude = 0.25f + (float)((bits & 0x7fffff) | 1) / 8388608.0f;
    return which < 2 && bits >> 31 ? -magnitude : magnitude;
}

static inline zero_status_t session_fill(void *user, const zero_chunk_t *chunk)
{
    (void)user;
    for (size_t i = 0; i < chunk->n_elems; i++) {
        chunk->master[i] = session_value(0, chunk->tensor, chunk->first + i);
        chunk->m[i] = session_value(1, chunk->tensor, chunk->first + i);
        chunk->v[i] = session_value(2, chunk->tensor, chunk->first + i);
    }
    return ZERO_OK;
}

/* With weights of its own, unlike the formula. */
static inline session_t session_open(int stage, zero_dtype_t dtype)
{
    session_t session;
    zero_model_t *model;
    zero_unit_t units[SESSION_N_UNITS];
    zero_tensor_t tensor;
    zero_config_t config = zero_config_default();
    config.stage = stage;
    config.dtype = dtype;
    must(zero_comm_create(ZERO_COMM_AUTO, &session.comm));
    must(zero_device_create(ZERO_DEVICE_CPU, session.comm, &session.device));
    must(zero_model_create(&model));
    for (int u = 0; u < SESSION_N_UNITS; u++) {
        char name[ZERO_MAX_NAME];
        snprintf(name, sizeof name, "unit.%d", u);
        must(zero_model_add_unit(model, name, &units[u]));
    }
    for (int t = 0; t < SESSION_N_TENSORS; t++) {
        zero_tensor_desc_t desc = {.name = session_tensors[t].name,
                                   .n_dims = session_tensors[t].n_dims,
                                   .init = ZERO_INIT_NORMAL,
                                   .init_std = 0.02f};
        memcpy(desc.shape, session_tensors[t].shape, sizeof session_tensors[t].shape);
        must(zero_model_add_tensor(model, units[session_tensors[t].unit], &desc, &tensor));
    }
    must(zero_engine_create(session.comm, session.device, model, &config, &session.engine));
    must(zero_init_parameters(session.engine));
    zero_model_destroy(model);
    return session;
}

/* With the formula, ready to be saved. */
static inline session_t session_open_filled(int stage, zero_dtype_t dtype)
{
    session_t session = session_open(stage, dtype);
    must(zero_set_state(session.engine, true, session_fill, NULL));
    must(zero_set_adam_step(session.engine, SESSION_ADAM_STEP));
    return session;
}

static inline void session_close(session_t *session)
{
    zero_engine_destroy(session->engine);
    zero_device_destroy(session->device);
    zero_comm_destroy(session->comm);
}

static inline zero_status_t session_count_wrong(void *user, const zero_chunk_t *chunk)
{
    size_t *n_wrong = user;
    for (size_t i = 0; i < chunk->n_elems; i++)
        *n_wrong += chunk->master[i] != session_value(0, chunk->tensor, chunk->first + i) ||
                    chunk->m[i] != session_value(1, chunk->tensor, chunk->first + i) ||
                    chunk->v[i] != session_value(2, chunk->tensor, chunk->first + i);
    return ZERO_OK;
}

static inline bool session_holds_the_formula(const session_t *session)
{
    size_t n_wrong = 0;
    must(zero_get_state(session->engine, session_count_wrong, &n_wrong));
    return n_wrong == 0 && zero_get_adam_step(session->engine) == SESSION_ADAM_STEP;
}

static const zero_save_options_t session_plain = {.config_json = "{\"n_layer\": 2}\n"};

static inline zero_status_t session_save(const session_t *session, const char *directory,
                                         const zero_save_options_t *options)
{
    zero_save_t *save = NULL;
    zero_status_t status = zero_save_begin(session->engine, directory, options, &save);
    return status == ZERO_OK ? zero_save_end(save) : status;
}

static inline zero_status_t session_load(const session_t *session, const char *directory)
{
    zero_checkpoint_t *checkpoint = NULL;
    zero_status_t status = zero_checkpoint_open(session->comm, directory, &checkpoint);
    if (status == ZERO_OK)
        status = zero_load(session->engine, checkpoint);
    zero_checkpoint_close(checkpoint);
    return status;
}

/* ---- what was logged ---- */

static char session_last_line[1 << 14];
static int session_n_lines;

static inline void session_on_line(void *user, zero_log_level_t level, int rank, const char *line)
{
    (void)user, (void)level, (void)rank;
    snprintf(session_last_line, sizeof session_last_line, "%s", line);
    session_n_lines++;
}

static inline void session_listen(void)
{
    session_n_lines = 0;
    session_last_line[0] = 0;
    zero_log_set(ZERO_LOG_WARNING, session_on_line, NULL);
}

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
