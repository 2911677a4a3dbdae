/* probe.c - see probe.h. */
#include "train/rates/probe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/report/process.h"
#include "train/report/report.h"

#define ROUND_S 0.03 /* a round takes this long, or one call */
#define ROUNDS 5
#define LONG_S 0.3 /* of rounds that take longer there are two */
#define MOST_CALLS 4096
#define PATTERN ((size_t)1 << 20) /* random numbers that a buffer repeats */

/* ---- device and memory ---- */

static zero_status_t declare(probe_t *probe, const probe_sizes_t *sizes)
{
    ZERO_TRY(zero_model_create(&probe->declaration));
    for (int u = 0; u < sizes->n_units; u++) {
        char name[32];
        zero_unit_t unit;
        zero_tensor_t tensor;
        snprintf(name, sizeof name, "unit.%d", u);
        zero_tensor_desc_t desc = {
            .name = name, .n_dims = 1, .shape = {sizes->unit_elems}, .init = ZERO_INIT_NORMAL, .init_std = 0.02f};
        ZERO_TRY(zero_model_add_unit(probe->declaration, name, &unit));
        ZERO_TRY(zero_model_add_tensor(probe->declaration, unit, &desc, &tensor));
    }
    return ZERO_OK;
}

static zero_status_t create(probe_t *probe, const probe_sizes_t *sizes)
{
    zero_config_t config = zero_config_default();
    config.dtype = probe->dtype;
    config.user_bytes = sizes->user_bytes;
    config.offload = sizes->host_update;
    config.offload_update = ZERO_OFFLOAD_UPDATE_HOST;
    ZERO_TRY(declare(probe, sizes));
    ZERO_TRY(zero_engine_create(probe->comm, probe->device, probe->declaration, &config, &probe->engine));
    ZERO_TRY(zero_init_parameters(probe->engine));
    return zero_stream_create(probe->device, &probe->stream);
}

zero_status_t probe_open(zero_comm_t *comm, zero_device_t *device, zero_dtype_t dtype, const probe_sizes_t *sizes,
                         probe_t *probe)
{
    zero_device_type_t type = zero_device_get_type(device);
    *probe = (probe_t){.comm = comm, .device = device, .dtype = dtype, .on_gpu = type != ZERO_DEVICE_CPU};
    return report_agree(comm, create(probe, sizes));
}

void probe_close(probe_t *probe)
{
    if (probe->stream)
        zero_stream_destroy(probe->device, probe->stream);
    zero_engine_destroy(probe->engine);
    zero_model_destroy(probe->declaration);
    *probe = (probe_t){0};
}

zero_status_t probe_alloc(probe_t *probe, size_t n_bytes, void **data)
{
    return zero_alloc(probe->engine, ZERO_MEMORY_WORKSPACE, n_bytes, data);
}

/* Writes a number from -1 to 1 as the dtype's bits; bf16 drops the low half of fp32. */
static void put_random(void *pattern, size_t i, zero_dtype_t dtype, uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    float x = (float)(*state >> 40) * 0x1p-23f - 1.0f;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (dtype == ZERO_FP32)
        ((uint32_t *)pattern)[i] = bits;
    else
        ((uint16_t *)pattern)[i] = (uint16_t)(bits >> 16);
}

zero_status_t probe_fill(probe_t *probe, void *data, zero_dtype_t dtype, size_t n_elems)
{
    size_t bytes = zero_dtype_size(dtype), n_pattern = n_elems < PATTERN ? n_elems : PATTERN;
    uint64_t state = 1;
    void *pattern = malloc(n_pattern * bytes);
    if (!pattern)
        return report_rank_error(ZERO_ERROR_MEMORY, "calibrate: no memory for random numbers");
    for (size_t i = 0; i < n_pattern; i++)
        put_random(pattern, i, dtype, &state);
    zero_status_t status = ZERO_OK;
    for (size_t first = 0; first < n_elems && status == ZERO_OK; first += n_pattern) {
        size_t n = n_elems - first < n_pattern ? n_elems - first : n_pattern;
        status = zero_device_copy(probe->device, (char *)data + first * bytes, pattern, n * bytes, probe->stream);
    }
    if (status == ZERO_OK)
        status = zero_device_synchronize(probe->device);
    free(pattern);
    return status;
}

zero_status_t probe_wait(probe_t *probe)
{
    return zero_device_synchronize(probe->device);
}

zero_status_t probe_slowest(probe_t *probe, double *seconds)
{
    size_t n_ranks = (size_t)zero_comm_size(probe->comm), rank = (size_t)zero_comm_rank(probe->comm);
    double *all = calloc(n_ranks, sizeof *all);
    if (all)
        all[rank] = *seconds;
    zero_status_t status = zero_comm_agree(
        probe->comm, all ? ZERO_OK : report_rank_error(ZERO_ERROR_MEMORY, "no memory to compare %zu ranks", n_ranks));
    if (status == ZERO_OK)
        status = zero_comm_sum(probe->comm, all, n_ranks);
    for (size_t r = 0; r < n_ranks && status == ZERO_OK; r++)
        *seconds = fmax(*seconds, all[r]);
    free(all);
    return status;
}

static zero_status_t time_calls(probe_t *probe, probe_fn fn, void *args, int n_calls, double *seconds)
{
    ZERO_TRY(zero_comm_barrier(probe->comm));
    double begin = clock_now_s();
    for (int i = 0; i < n_calls; i++)
        ZERO_TRY(fn(args));
    ZERO_TRY(probe_wait(probe));
    *seconds = clock_now_s() - begin;
    return probe_slowest(probe, seconds); /* so all ranks make the same number of calls */
}

zero_status_t probe_time(probe_t *probe, probe_fn fn, void *args, double *seconds)
{
    double taken, least;
    int n_calls = 1;
    ZERO_TRY(time_calls(probe, fn, args, 1, &taken)); /* the first call sets libraries up */
    ZERO_TRY(time_calls(probe, fn, args, 1, &taken));
    while (taken < 0.5 * ROUND_S && n_calls < MOST_CALLS) {
        double wanted = fmin(ROUND_S / fmax(taken, 1e-9), 16.0);
        n_calls = (int)fmin(ceil(n_calls * fmax(wanted, 2.0)), MOST_CALLS);
        ZERO_TRY(time_calls(probe, fn, args, n_calls, &taken));
    }
    least = taken;
    for (int round = 1; round < (least > LONG_S ? 2 : ROUNDS); round++) {
        ZERO_TRY(time_calls(probe, fn, args, n_calls, &taken));
        least = fmin(least, taken);
    }
    *seconds = least / n_calls;
    return ZERO_OK;
}
