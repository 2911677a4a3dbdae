/* frozen_fp8_cases.c - holds frozen matrices in fp8, of which each rank owns parts that end anywhere.
 *
 *     mpirun -np N frozen_fp8_cases [stage=3] [device=cpu] [offload=0] [comm=auto]
 *
 * Sets one matrix, packed of two tensors, of which each of two ranks owns more than one of the runs in which weights
 * are written, to numbers that fp8 has with its scale: they must come back to the bit. Sets it to random ones,
 * which are compared with those that the same model holds in bf16: half a step of fp8 away at most. offload=1 keeps the
 * matrices in host memory (GPUs, stage 3). Rank 0 prints hashes of what it reads: equal text is equal bits, on any
 * number of ranks at any stage. Exit code 0 if every check held.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "zero.h"

#include "tests/mpi/device_elements.h"
#include "tests/mpi/hash.h"
#include "tests/mpi/settings.h"

/* Tensors 0 and 1 are one matrix, tensor 2 is another; tensor 3 is trained. */
enum { N_TENSORS = 4, N_FROZEN = 3 };
static const int64_t ROWS[N_TENSORS] = {2203, 77, 6, 64}, COLUMNS[N_TENSORS] = {1100, 1100, 50, 64};
enum { MOST = 2203 * 1100 };

typedef struct settings {
    int stage, device, offload, comm;
} settings_t;

static uint64_t n_elems(int tensor)
{
    return (uint64_t)(ROWS[tensor] * COLUMNS[tensor]);
}

/* 1.0 to 1.875, with its sign, times 2^-12 to 1: e4m3 has all of them with the scale that maps 3.75 to 240. The first
 * rank alone has that. */
static float representable(int tensor, uint64_t element)
{
    if (tensor == 0 && element == 0)
        return 3.75f;
    const uint64_t bits = hash((uint64_t)tensor + (element << 8));
    const float value = ldexpf(1.0f + (float)(bits >> 61) / 8.0f, -(int)(bits >> 32 & 0xff) % 13);
    return bits & 1 ? -value : value;
}

static zero_model_t *declare(bool in_fp8)
{
    zero_model_t *model;
    zero_unit_t unit;
    zero_tensor_t tensor;
    OK(zero_model_create(&model));
    for (int t = 0; t < N_TENSORS; t++) {
        char name[16];
        snprintf(name, sizeof name, "tensor %d", t);
        if (t != 1)
            OK(zero_model_add_unit(model, name, &unit));
        const zero_tensor_desc_t desc = {.name = name,
                                         .n_dims = 2,
                                         .shape = {ROWS[t], COLUMNS[t]},
                                         .init = ZERO_INIT_NORMAL,
                                         .init_std = 0.02f,
                                         .packed = t == 1,
                                         .frozen = t < N_FROZEN,
                                         .frozen_fp8 = t < N_FROZEN && in_fp8};
        OK(zero_model_add_tensor(model, unit, &desc, &tensor));
    }
    return model;
}

static zero_status_t fill(void *user, const zero_chunk_t *chunk)
{
    (void)user;
    for (size_t i = 0; i < chunk->n_elems; i++)
        chunk->master[i] = representable(chunk->tensor, chunk->first + i);
    return ZERO_OK;
}

static float largest_of(const float *values, uint64_t n)
{
    float largest = 0.0f;
    for (uint64_t i = 0; i < n; i++)
        largest = fmaxf(largest, fabsf(values[i]));
    return largest;
}

int main(int argc, char **argv)
{
    static const setting_row_t rows[] = {{"stage", offsetof(settings_t, stage), NULL},
                                         {"device", offsetof(settings_t, device), SETTING_DEVICES},
                                         {"offload", offsetof(settings_t, offload), NULL},
                                         {"comm", offsetof(settings_t, comm), "auto mpi"}};
    settings_t s = {.stage = 3, .device = ZERO_DEVICE_CPU};
    zero_comm_t *comm;
    zero_device_t *device;
    zero_model_t *models[2] = {declare(false), declare(true)};
    zero_engine_t *engines[2];
    zero_config_t config = zero_config_default();
    float *got[2] = {malloc(MOST * sizeof(float)), malloc(MOST * sizeof(float))};
    for (int i = 1; i < argc; i++)
        setting_take(argv[i], rows, sizeof rows / sizeof rows[0], &s);
    OK(zero_comm_create((zero_comm_kind_t)s.comm, &comm));
    OK(zero_device_create((zero_device_type_t)s.device, comm, &device));
    config.stage = s.stage;
    config.dtype = ZERO_BF16;
    config.offload = s.offload != 0;
    config.offload_params = (float)s.offload;
    for (int e = 0; e < 2; e++)
        OK(zero_engine_create(comm, device, models[e], &config, &engines[e]));

    OK(zero_set_state(engines[1], false, fill, NULL));
    for (int t = 0; t < N_FROZEN; t++) {
        OK(zero_get_tensor(engines[1], t, ZERO_ARRAY_WEIGHT, ZERO_ALL_RANKS, got[1]));
        for (uint64_t i = 0; i < n_elems(t); i++)
            CHECK(got[1][i] == representable(t, i), "tensor %d, element %" PRIu64 ": %a", t, i, (double)got[1][i]);
    }
    for (int e = 0; e < 2; e++)
        OK(zero_init_parameters(engines[e]));
    float largest[N_FROZEN];
    for (int t = 0; t < N_FROZEN; t++) {
        OK(zero_get_tensor(engines[0], t, ZERO_ARRAY_WEIGHT, ZERO_ALL_RANKS, got[0]));
        largest[t] = largest_of(got[0], n_elems(t));
    }
    largest[0] = largest[1] = fmaxf(largest[0], largest[1]);
    for (int t = 0; t < N_FROZEN; t++) {
        for (int e = 0; e < 2; e++)
            OK(zero_get_tensor(engines[e], t, ZERO_ARRAY_WEIGHT, ZERO_ALL_RANKS, got[e]));
        for (uint64_t i = 0; i < n_elems(t); i++) /* three bits of mantissa; the smallest step is 2^-9 of a scale */
            CHECK(fabsf(got[1][i] - got[0][i]) <= fabsf(got[0][i]) * 0x1p-4f + largest[t] * 0x1p-17f,
                  "tensor %d, element %" PRIu64 ": %a instead of %a", t, i, (double)got[1][i], (double)got[0][i]);
        if (zero_comm_rank(comm) == 0)
            printf("fp8 tensor %d %016" PRIx64 "\n", t, hash_floats(got[1], n_elems(t)));
    }

    for (int e = 0; e < 2; e++) {
        zero_engine_destroy(engines[e]);
        zero_model_destroy(models[e]);
        free(got[e]);
    }
    zero_device_destroy(device);
    zero_comm_destroy(comm);
    return 0;
}
