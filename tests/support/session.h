/* session.h - communicator, device and engine on the CPU, for tests of checkpoints: a model declared from a table of
 * tensors, weights and moments by a formula, saving and loading.
 *
 * The formula depends on tensor and element alone, so any rank can check what it holds.
 */
#ifndef ZERO_TEST_SESSION_H
#define ZERO_TEST_SESSION_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/support.h"
#include "zero.h"

#define SESSION_ADAM_STEP 7

typedef struct session_tensor {
    const char *name;
    int unit, n_dims;
    int64_t shape[3];
    bool packed; /* behind the one before it */
} session_tensor_t;

typedef struct session_model {
    const session_tensor_t *tensors;
    int n_tensors, n_units;
    zero_init_t init;
    float init_std;
    bool frozen, not_saved; /* all tensors are */
} session_model_t;

typedef struct session {
    zero_comm_t *comm;
    zero_device_t *device;
    zero_engine_t *engine;
    bool owns_comm;
} session_t;

/* Ends the process on failure. Not an assertion of Check's, because ranks run outside its tests. */
static inline void must(zero_status_t status)
{
    if (status != ZERO_OK) {
        fprintf(stderr, "status %s\n", zero_status_name(status));
        exit(3);
    }
}

static inline size_t session_n_elems(const session_tensor_t *tensor)
{
    size_t n = 1;
    for (int d = 0; d < tensor->n_dims; d++)
        n *= (size_t)tensor->shape[d];
    return n;
}

static inline zero_model_t *session_declare(const session_model_t *model)
{
    zero_model_t *declaration;
    zero_tensor_t tensor;
    must(zero_model_create(&declaration));
    for (int u = 0; u < model->n_units; u++) {
        char name[ZERO_MAX_NAME];
        zero_unit_t unit;
        snprintf(name, sizeof name, "unit.%d", u);
        must(zero_model_add_unit(declaration, name, &unit));
    }
    for (int t = 0; t < model->n_tensors; t++) {
        const session_tensor_t *from = &model->tensors[t];
        zero_tensor_desc_t desc = {.name = from->name,
                                   .n_dims = from->n_dims,
                                   .init = model->init,
                                   .init_std = model->init_std,
                                   .packed = from->packed,
                                   .frozen = model->frozen,
                                   .not_saved = model->not_saved};
        memcpy(desc.shape, from->shape, sizeof from->shape);
        must(zero_model_add_tensor(declaration, from->unit, &desc, &tensor));
    }
    return declaration;
}

/* Creates an engine with initial weights. comm: the caller's, or NULL for one of the session's own. */
static inline session_t session_create(zero_comm_t *comm, int stage, zero_dtype_t dtype, const session_model_t *model)
{
    session_t session = {.comm = comm, .owns_comm = !comm};
    zero_config_t config = zero_config_default();
    config.stage = stage;
    config.dtype = dtype;
    if (!comm)
        must(zero_comm_create(ZERO_COMM_AUTO, &session.comm));
    must(zero_device_create(ZERO_DEVICE_CPU, session.comm, &session.device));
    zero_model_t *declaration = session_declare(model);
    must(zero_engine_create(session.comm, session.device, declaration, &config, &session.engine));
    must(zero_init_parameters(session.engine));
    zero_model_destroy(declaration);
    return session;
}

static inline void session_close(session_t *session)
{
    zero_engine_destroy(session->engine);
    zero_device_destroy(session->device);
    if (session->owns_comm)
        zero_comm_destroy(session->comm);
}

/* ---- the formula ---- */

/* Returns a weight (which = 0), m (1) or v (2): a normal number of fp16 with all bits of an fp32's mantissa, of both
 * signs but for v. */
static inline float session_value(int which, int tensor, size_t i)
{
    uint64_t state = ((uint64_t)which * 100 + (uint64_t)tensor) << 40 | i;
    uint32_t bits = (uint32_t)support_random(&state);
    float magnitude = 0.25f + (float)((bits & 0x7fffff) | 1) / 8388608.0f;
    return which < 2 && bits >> 31 ? -magnitude : magnitude;
}

static inline zero_status_t session_fill_chunk(void *user, const zero_chunk_t *chunk)
{
    (void)user;
    for (size_t i = 0; i < chunk->n_elems; i++) {
        chunk->master[i] = session_value(0, chunk->tensor, chunk->first + i);
        chunk->m[i] = session_value(1, chunk->tensor, chunk->first + i);
        chunk->v[i] = session_value(2, chunk->tensor, chunk->first + i);
    }
    return ZERO_OK;
}

/* Sets all state to the formula. */
static inline void session_fill(const session_t *session)
{
    must(zero_set_state(session->engine, true, session_fill_chunk, NULL));
    must(zero_set_adam_step(session->engine, SESSION_ADAM_STEP));
}

typedef struct session_tally {
    size_t n_elems, n_wrong;
} session_tally_t;

static inline zero_status_t session_count_chunk(void *user, const zero_chunk_t *chunk)
{
    session_tally_t *tally = user;
    tally->n_elems += chunk->n_elems;
    for (size_t i = 0; i < chunk->n_elems; i++)
        tally->n_wrong += chunk->master[i] != session_value(0, chunk->tensor, chunk->first + i) ||
                          chunk->m[i] != session_value(1, chunk->tensor, chunk->first + i) ||
                          chunk->v[i] != session_value(2, chunk->tensor, chunk->first + i);
    return ZERO_OK;
}

/* Returns whether the ranks hold the formula, each element once. */
static inline bool session_holds_the_formula(const session_t *session, const session_model_t *model)
{
    session_tally_t tally = {0};
    double n_all = 0;
    for (int t = 0; t < model->n_tensors; t++)
        n_all += (double)session_n_elems(&model->tensors[t]);
    must(zero_get_state(session->engine, session_count_chunk, &tally));
    double n = (double)tally.n_elems;
    must(zero_comm_sum(session->comm, &n, 1));
    return tally.n_wrong == 0 && n - n_all == 0.0 && zero_get_adam_step(session->engine) == SESSION_ADAM_STEP;
}

/* ---- saving and loading ---- */

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

#endif
