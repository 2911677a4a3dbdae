/* engine.c - see engine.h. */
#include "engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "input.h"

const fuzz_tensor_t fuzz_tensors[FUZZ_N_TENSORS] = {
    {"transformer.a", 1, {2}, 2},
    {"b", 2, {2, 2}, 4},
    {"lm_head.weight", 1, {1}, 1},
};

static zero_comm_t *comm;
static zero_engine_t *engine;

static void require(zero_status_t status, const char *what)
{
    FUZZ_REQUIRE(status == ZERO_OK, "%s: %s", what, zero_status_name(status));
}

static void make_engine(void)
{
    zero_device_t *device;
    zero_model_t *model;
    zero_unit_t unit;
    zero_tensor_t tensor;
    zero_config_t config = zero_config_default();
    config.dtype = ZERO_FP16;
    require(zero_comm_create(ZERO_COMM_AUTO, &comm), "zero_comm_create");
    require(zero_device_create(ZERO_DEVICE_CPU, comm, &device), "zero_device_create");
    require(zero_model_create(&model), "zero_model_create");
    require(zero_model_add_unit(model, "all", &unit), "zero_model_add_unit");
    for (int t = 0; t < FUZZ_N_TENSORS; t++) {
        const fuzz_tensor_t *own = &fuzz_tensors[t];
        zero_tensor_desc_t desc = {.name = own->name, .n_dims = own->n_dims, .init = ZERO_INIT_ZEROS};
        memcpy(desc.shape, own->shape, sizeof own->shape);
        require(zero_model_add_tensor(model, unit, &desc, &tensor), "zero_model_add_tensor");
    }
    require(zero_engine_create(comm, device, model, &config, &engine), "zero_engine_create");
    zero_model_destroy(model);
}

zero_comm_t *fuzz_comm(void)
{
    if (!engine)
        make_engine();
    return comm;
}

zero_engine_t *fuzz_engine(void)
{
    if (!engine)
        make_engine();
    return engine;
}

static zero_status_t visit(void *user, const zero_chunk_t *chunk)
{
    fuzz_state_t *state = user;
    FUZZ_REQUIRE(chunk->first + chunk->n_elems <= fuzz_tensors[chunk->tensor].n_elems, "a chunk beyond its tensor");
    memcpy(state->master[chunk->tensor] + chunk->first, chunk->master, chunk->n_elems * sizeof(float));
    memcpy(state->m[chunk->tensor] + chunk->first, chunk->m, chunk->n_elems * sizeof(float));
    memcpy(state->v[chunk->tensor] + chunk->first, chunk->v, chunk->n_elems * sizeof(float));
    return ZERO_OK;
}

void fuzz_get_state(fuzz_state_t *state)
{
    memset(state, 0, sizeof *state);
    require(zero_get_state(fuzz_engine(), visit, state), "zero_get_state");
}

/* ---- the checkpoint ---- */

/* The value in the file at element `place`: all different, exact in decimal, not negative. */
static float value_at(size_t place)
{
    return 0.5f + 0.0625f * (float)place;
}

/* NAME.master, NAME.m and NAME.v of every tensor, in fp32, one after another. */
static void write_optimizer(const char *path)
{
    char header[2048] = "", *at = header;
    unsigned char file[4096];
    size_t n_elems = 0;
    for (int t = 0; t < FUZZ_N_TENSORS; t++)
        for (int kept = 0; kept < 3; kept++) {
            const fuzz_tensor_t *own = &fuzz_tensors[t];
            char shape[32];
            snprintf(shape, sizeof shape, own->n_dims == 2 ? "%" PRId64 ", %" PRId64 : "%" PRId64, own->shape[0],
                     own->shape[1]);
            at += sprintf(at, "%s\"%s%s\": {\"dtype\": \"F32\", \"shape\": [%s], \"data_offsets\": [%zu, %zu]}",
                          at == header ? "{" : ", ", own->name, (const char *[]){".master", ".m", ".v"}[kept], shape,
                          4 * n_elems, 4 * (n_elems + own->n_elems));
            n_elems += own->n_elems;
        }
    *at++ = '}';
    uint64_t length = (uint64_t)(at - header);
    memcpy(file, &length, sizeof length);
    memcpy(file + sizeof length, header, length);
    for (size_t i = 0; i < n_elems; i++) {
        float value = value_at(i);
        memcpy(file + sizeof length + length + 4 * i, &value, sizeof value);
    }
    fuzz_write(path, file, sizeof length + length + 4 * n_elems);
}

void fuzz_make_checkpoint(void)
{
    static bool made;
    if (made)
        return;
    made = true;
    FUZZ_REQUIRE(mkdir(fuzz_path(FUZZ_CHECKPOINT), 0700) == 0, "cannot make a folder");
    fuzz_write_text(FUZZ_CHECKPOINT "/state.json", FUZZ_STATE_JSON);
    fuzz_write_text(FUZZ_CHECKPOINT "/model.safetensors.index.json", FUZZ_INDEX_JSON);
    write_optimizer(FUZZ_CHECKPOINT "/optimizer-00001-of-00001.safetensors");
}

void fuzz_check_loaded(void)
{
    fuzz_state_t state;
    size_t place = 0;
    fuzz_get_state(&state);
    for (int t = 0; t < FUZZ_N_TENSORS; t++) {
        const float *const arrays[] = {state.master[t], state.m[t], state.v[t]};
        for (int kept = 0; kept < 3; kept++)
            for (size_t i = 0; i < fuzz_tensors[t].n_elems; i++, place++)
                FUZZ_REQUIRE(arrays[kept][i] == value_at(place), "element %zu of %s is %g and not %g", i,
                             fuzz_tensors[t].name, (double)arrays[kept][i], (double)value_at(place));
    }
}
