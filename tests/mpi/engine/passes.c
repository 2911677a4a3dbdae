/* passes.c - what engine_cases does with a toy's engine: weights and moments that a rank makes up, gradients that it
 * writes, and hashes of the parameters that a pass sees. */
#include <math.h>
#include <string.h>

#include "tests/mpi/device_elements.h"
#include "tests/mpi/engine/cases.h"
#include "tests/support/fp64/fp8_reference.h"

/* ---- weights and moments that a rank makes up: different on every rank, with every bit of fp32 in use ---- */

static float made_up(int rank, zero_tensor_t tensor, uint64_t element, int array)
{
    uint64_t x = (element + 1) * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)(1000 * rank + 10 * tensor + array);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (float)((x ^ (x >> 31)) >> 40) / 16777216.0f; /* in [0, 1) */
}

zero_status_t fill_chunk(void *user, const zero_chunk_t *chunk)
{
    filler_t *filler = user;
    if (++filler->n_chunks == filler->fails_at)
        return ZERO_ERROR_IO;
    CHECK((chunk->m != NULL) == filler->with_moments && (!chunk->v || filler->with_moments), "moments");
    for (size_t i = 0; i < chunk->n_elems; i++) {
        chunk->master[i] = made_up(filler->rank, chunk->tensor, chunk->first + i, 0) - 0.5f;
        if (filler->with_moments) {
            chunk->m[i] = made_up(filler->rank, chunk->tensor, chunk->first + i, 1) - 0.5f;
            if (chunk->v)
                chunk->v[i] = made_up(filler->rank, chunk->tensor, chunk->first + i, 2);
        }
    }
    return ZERO_OK;
}

/* What a rank reads back is what it wrote itself. */
static zero_status_t expect_made_up(void *user, const zero_chunk_t *chunk)
{
    const filler_t *filler = user;
    for (size_t i = 0; i < chunk->n_elems; i++) {
        uint64_t e = chunk->first + i;
        CHECK(chunk->master[i] == made_up(filler->rank, chunk->tensor, e, 0) - 0.5f, "w of %d, %llu: %a", chunk->tensor,
              (unsigned long long)e, (double)chunk->master[i]);
        float m = filler->with_moments ? made_up(filler->rank, chunk->tensor, e, 1) - 0.5f : 0.0f;
        bool has_v = filler->with_moments && !(filler->without_v && filler->without_v[chunk->tensor]);
        float v = has_v ? made_up(filler->rank, chunk->tensor, e, 2) : 0.0f;
        CHECK(fabsf(chunk->m[i] - m) <= (filler->in_8_bits ? 0.0036f : 0.0f), "m: %g", (double)chunk->m[i]);
        CHECK(!chunk->v || fabsf(chunk->v[i] - v) <= (filler->in_8_bits ? 0.0036f : 0.0f), "v: %g",
              (double)chunk->v[i]);
    }
    return ZERO_OK;
}

void make_up_state(zero_engine_t *engine, const toy_t *toy, int rank, bool with_moments, zero_optimizer_t optimizer)
{
    filler_t filler = {.rank = rank,
                       .with_moments = with_moments,
                       .in_8_bits = optimizer == ZERO_OPTIMIZER_ADAMW8BIT,
                       .without_v = optimizer == ZERO_OPTIMIZER_MUON ? toy->rows : NULL};
    OK(zero_set_state(engine, with_moments, fill_chunk, &filler));
    OK(zero_get_state(engine, expect_made_up, &filler));
}

/* ---- passes ---- */

static void put_float(void *data, zero_dtype_t dtype, uint64_t i, float value, bool accumulate)
{
    if (accumulate)
        value += element_load(data, dtype, i);
    element_store(data, dtype, i, value);
}

/* A tensor's bytes between the device and a host buffer that is large enough for any tensor of the toy. */
static unsigned char host_buffer[MAX_ROWS * 64 * 4];

static void download(zero_device_t *device, const void *data, size_t n_bytes)
{
    CHECK(n_bytes <= sizeof host_buffer, "%zu bytes", n_bytes);
    device_download(device, host_buffer, data, n_bytes);
}

static void upload(zero_device_t *device, void *data, size_t n_bytes)
{
    device_upload(device, data, host_buffer, n_bytes);
}

static uint64_t fold(uint64_t hash, const void *data, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++)
        hash = (hash ^ ((const unsigned char *)data)[i]) * UINT64_C(1099511628211);
    return hash;
}

/* Casts the n_elems bf16 numbers in host_buffer to bytes, in place. */
static zero_fp8_scales_t cast_in_buffer(uint64_t n_elems)
{
    double absmax = 0.0;
    for (uint64_t e = 0; e < n_elems; e++)
        absmax = fmax(absmax, fabs((double)element_load(host_buffer, ZERO_BF16, e)));
    double scale = fp8_scale(absmax);
    for (uint64_t e = 0; e < n_elems; e++)
        host_buffer[e] = fp8_byte((double)element_load(host_buffer, ZERO_BF16, e) * scale);
    return (zero_fp8_scales_t){
        .scale = (float)scale, .inverse = (float)(1.0 / scale), .absmax = zero_bits_of_float((float)absmax)};
}

/* Folds bytes and scales of the matrix in fp8 that begins with tensor t: as gathered, or made of what was. */
static uint64_t fold_fp8(uint64_t hash, zero_engine_t *engine, zero_device_t *device, const toy_t *toy, int t,
                         bool is_gathered)
{
    uint64_t n = toy->n_fp8_elems[t];
    zero_fp8_param_t param = zero_param_fp8(engine, toy->tensors[t]);
    zero_fp8_scales_t scales;
    CHECK((param.data != NULL) == is_gathered && (param.scales != NULL) == is_gathered, "fp8 of tensor %d", t);
    if (is_gathered) {
        zero_fp8_param_t packed = zero_param_fp8(engine, toy->tensors[n > toy->n_elems[t] ? t + 1 : t]);
        CHECK(packed.scales == param.scales && (uintptr_t)param.data % 128 == 0, "a matrix has one scale");
        CHECK(n == toy->n_elems[t] || packed.data == param.data + toy->n_elems[t], "what is packed is one matrix");
        download(device, param.scales, sizeof scales);
        memcpy(&scales, host_buffer, sizeof scales);
        download(device, param.data, n);
    } else {
        download(device, zero_param(engine, toy->tensors[t]), n * sizeof(uint16_t));
        scales = cast_in_buffer(n);
    }
    return fold(fold(hash, &scales, sizeof scales), host_buffer, n);
}

/* Runs an eval pass that hashes every full parameter (FNV-1a). The hash must be equal on all ranks. */
uint64_t hash_params_of(zero_engine_t *engine, zero_device_t *device, const toy_t *toy, zero_dtype_t dtype,
                        bool gathers_fp8)
{
    uint64_t hash = UINT64_C(1469598103934665603);
    OK(zero_begin(engine, ZERO_PASS_EVAL, NULL));
    for (zero_unit_t u = 0; u < N_UNITS; u++) {
        OK(zero_acquire(engine, u, NULL));
        for (int t = 0; t < toy->n_tensors; t++) {
            if (toy->owner[t] != u || (t > 0 && toy->n_fp8_elems[t - 1] > toy->n_elems[t - 1]))
                continue;
            if (toy->n_fp8_elems[t] > 0) {
                hash = fold_fp8(hash, engine, device, toy, t, gathers_fp8);
                continue;
            }
            size_t n_bytes = toy->n_elems[t] * zero_dtype_size(dtype);
            const void *param = zero_param(engine, toy->tensors[t]);
            CHECK(param && (uintptr_t)param % 128 == 0, "tensor %d is not resident", t);
            CHECK(!zero_param_fp8(engine, toy->tensors[t]).data, "tensor %d in fp8", t);
            download(device, param, n_bytes);
            hash = fold(hash, host_buffer, n_bytes);
        }
        CHECK(u != N_UNITS - 1 || zero_param_fp8(engine, toy->shared).data || zero_param(engine, toy->shared),
              "the shared table is not resident in the head");
        OK(zero_release(engine, u, NULL));
    }
    return hash;
}

uint64_t hash_params(zero_engine_t *engine, zero_device_t *device, const toy_t *toy, zero_dtype_t dtype)
{
    return hash_params_of(engine, device, toy, dtype, false);
}

/* Writes a unit's gradients. With `poison` it first writes NaN wherever it may overwrite, which shows a wrong address
 * or a reader that comes too early. */
void write_grads(zero_engine_t *engine, zero_device_t *device, const toy_t *toy, zero_unit_t unit, int rank,
                 int64_t step, int micro_step, const settings_t *s)
{
    float loss_scale;
    OK(zero_device_copy(device, &loss_scale, zero_loss_scale(engine), sizeof loss_scale, NULL));
    OK(zero_device_synchronize(device));
    for (int t = 0; t < toy->n_tensors; t++) {
        bool head_use = unit == N_UNITS - 1 && toy->tensors[t] == toy->shared;
        if (toy->owner[t] != unit && !head_use)
            continue;
        zero_grad_t grad = zero_grad(engine, toy->tensors[t]);
        size_t n_bytes = toy->n_elems[t] * zero_dtype_size(grad.dtype);
        CHECK(grad.data, "tensor %d has no gradient in unit %d", t, unit);
        if (grad.accumulate) {
            download(device, grad.data, n_bytes);
        } else if (s->poison) {
            for (uint64_t e = 0; e < toy->n_elems[t]; e++)
                put_float(host_buffer, grad.dtype, e, NAN, false);
            upload(device, grad.data, n_bytes);
        }
        for (uint64_t e = 0; e < toy->n_elems[t]; e++)
            put_float(host_buffer, grad.dtype, e, gradient(rank, step, micro_step, t, e, head_use) * loss_scale,
                      grad.accumulate);
        if (s->nan_at == step && rank == 0 && unit == 2 && micro_step == 0)
            put_float(host_buffer, grad.dtype, 0, NAN, false);
        upload(device, grad.data, n_bytes);
    }
}

void micro_step_pass(zero_engine_t *engine, zero_device_t *device, const toy_t *toy, int rank, int64_t step, int k,
                     const settings_t *s)
{
    OK(zero_begin(engine, ZERO_PASS_TRAIN, NULL));
    for (zero_unit_t u = 0; u < N_UNITS; u++) {
        OK(zero_acquire(engine, u, NULL));
        OK(zero_release(engine, u, NULL));
    }
    for (zero_unit_t u = N_UNITS - 1; u >= 0; u--) {
        OK(zero_acquire(engine, u, NULL));
        write_grads(engine, device, toy, u, rank, step, k, s);
        OK(zero_grad_ready(engine, u, NULL));
    }
}

void check_same_on_all_ranks(zero_comm_t *comm, uint64_t hash)
{
    /* Halves are exact in double: the sum over ranks is N times mine exactly when all are mine (up to a conspiracy). */
    double halves[4] = {(double)(hash >> 32), (double)(hash & 0xffffffffu), 0, 0};
    halves[2] = halves[0] * halves[0] / 4294967296.0;
    halves[3] = halves[1] * halves[1] / 4294967296.0;
    double sums[4];
    memcpy(sums, halves, sizeof sums);
    OK(zero_comm_sum(comm, sums, 4));
    for (int i = 0; i < 4; i++)
        CHECK(fabs(sums[i] - halves[i] * zero_comm_size(comm)) <= 1e-9 * fabs(sums[i]), "parameters differ by rank");
}
