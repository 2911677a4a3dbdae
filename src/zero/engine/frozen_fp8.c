/* frozen_fp8.c - see frozen_fp8.h. */
#include "zero/engine/frozen_fp8.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kernels/shard_math.h"
#include "zero/engine/state_runs.h"
#include "zero/runtime/addresses.h"

struct zero_frozen_fp8 {
    zero_context_t *context;
    zero_fp8_scales_t *scales; /* by matrix; a copy is in private memory, at plan.frozen_scales */
    uint16_t *values;          /* what is taken of the current matrix, in bf16 */
    size_t n_values, capacity;
    uint16_t low_halves[ZERO_RUN_ELEMS]; /* that rounding leaves over */
    void *place;                         /* of its first byte; the others follow */
};

zero_status_t zero_frozen_fp8_create(zero_context_t *context, zero_frozen_fp8_t **frozen)
{
    const int n = context->layout.n_frozen_matrices;
    *frozen = NULL;
    if (n == 0)
        return ZERO_OK;
    zero_frozen_fp8_t *made = calloc(1, sizeof *made);
    if (made)
        made->scales = calloc((size_t)n, sizeof *made->scales);
    if (!made || !made->scales) {
        free(made);
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for %d matrices in fp8", n);
    }
    for (int m = 0; m < n; m++)
        made->scales[m] = zero_fp8_scales_of(ZERO_E4M3, 0);
    made->context = context;
    *frozen = made;
    return ZERO_OK;
}

void zero_frozen_fp8_destroy(zero_frozen_fp8_t *frozen)
{
    if (!frozen)
        return;
    free(frozen->scales);
    free(frozen->values);
    free(frozen);
}

/* ---- writing ---- */

zero_status_t zero_frozen_fp8_take(zero_frozen_fp8_t *frozen, const float *values, size_t n_elems, void *place)
{
    const size_t wanted = frozen->n_values + n_elems;
    ZERO_ASSERT(n_elems <= ZERO_RUN_ELEMS);
    if (wanted > frozen->capacity) {
        const size_t capacity = wanted > 2 * frozen->capacity ? wanted : 2 * frozen->capacity;
        uint16_t *grown = realloc(frozen->values, capacity * sizeof *grown);
        if (!grown)
            return zero_fail(ZERO_ERROR_MEMORY, "no host memory for %zu numbers that are cast to fp8", capacity);
        frozen->values = grown;
        frozen->capacity = capacity;
    }
    if (frozen->n_values == 0)
        frozen->place = place;
    uint16_t *to = frozen->values + frozen->n_values;
    frozen->n_values = wanted;
    return zero_shard_kernels_cpu()->split_master(to, frozen->low_halves, ZERO_BF16, values, n_elems, NULL);
}

bool zero_frozen_fp8_ends(const zero_frozen_fp8_t *frozen, zero_tensor_t tensor)
{
    const zero_layout_t *layout = frozen ? &frozen->context->layout : NULL;
    return frozen && layout->frozen_matrix_of[tensor] >= 0 &&
           (tensor + 1 == layout->n_tensors ||
            layout->frozen_matrix_of[tensor + 1] != layout->frozen_matrix_of[tensor]);
}

static uint32_t largest_magnitude(const zero_frozen_fp8_t *frozen)
{
    uint32_t largest = 0;
#pragma omp parallel for reduction(max : largest)
    for (size_t i = 0; i < frozen->n_values; i++) {
        const uint32_t magnitude = zero_fp8_magnitude(zero_float_of_bf16(frozen->values[i]));
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

/* Sums and maxima over ranks. */
typedef struct share {
    uint64_t n_values;
    uint32_t largest, unused;
} share_t;

static zero_status_t join_shares(zero_comm_t *comm, share_t *share)
{
    const share_t mine = *share;
    share_t *all = calloc((size_t)comm->size, sizeof *all);
    zero_status_t status = all ? ZERO_OK : zero_fail(ZERO_ERROR_MEMORY, "no memory for %d ranks", comm->size);
    status = zero_comm_agree(comm, status);
    if (status == ZERO_OK)
        status = comm->ops->host_all_gather(comm, &mine, sizeof mine, all);
    *share = (share_t){0};
    for (int r = 0; r < comm->size && status == ZERO_OK; r++) {
        share->n_values += all[r].n_values;
        share->largest = all[r].largest > share->largest ? all[r].largest : share->largest;
    }
    free(all);
    return status;
}

/* Returns the elements of the matrix that ends with a tensor. */
static uint64_t matrix_elems(const zero_context_t *context, zero_tensor_t tensor)
{
    uint64_t n = 0;
    for (zero_tensor_t t = tensor; t >= 0; t--) {
        if (context->layout.frozen_matrix_of[t] != context->layout.frozen_matrix_of[tensor])
            break;
        n += context->model->tensors[t].n_elems;
    }
    return n;
}

/* Casts what was taken, in place, and copies it to where it belongs. */
static zero_status_t put(zero_frozen_fp8_t *frozen, int matrix)
{
    const zero_context_t *context = frozen->context;
    zero_fp8_scales_t *on_device = zero_context_private(context, context->plan.frozen_scales);
    const float scale = frozen->scales[matrix].scale;
    const size_t n = frozen->n_values;
    uint8_t *bytes = malloc(n > 0 ? n : 1);
    if (!bytes)
        return zero_fail(ZERO_ERROR_MEMORY, "no host memory to cast %zu numbers to fp8", n);
#pragma omp parallel for
    for (size_t i = 0; i < n; i++)
        bytes[i] = zero_fp8_of_float(ZERO_E4M3, zero_float_of_bf16(frozen->values[i]) * scale);
    zero_status_t status = n == 0 ? ZERO_OK : zero_device_copy(context->device, frozen->place, bytes, n, NULL);
    if (status == ZERO_OK)
        status =
            zero_device_copy(context->device, &on_device[matrix], &frozen->scales[matrix], sizeof *on_device, NULL);
    if (status == ZERO_OK)
        status = zero_device_synchronize(context->device);
    free(bytes);
    return status;
}

zero_status_t zero_frozen_fp8_store(zero_frozen_fp8_t *frozen, zero_tensor_t tensor, zero_status_t status)
{
    const zero_context_t *context = frozen->context;
    const int matrix = context->layout.frozen_matrix_of[tensor];
    share_t share = {.n_values = frozen->n_values, .largest = status == ZERO_OK ? largest_magnitude(frozen) : 0};
    status = zero_comm_agree(context->host_comm, status);
    if (status == ZERO_OK)
        status = join_shares(context->host_comm, &share);
    if (status == ZERO_OK && share.n_values != 0 && share.n_values != matrix_elems(context, tensor))
        status =
            zero_fail_collective(ZERO_ERROR_UNSUPPORTED,
                                 "%s is held in fp8, with one scale for all that it is packed with: %" PRIu64
                                 " of %" PRIu64 " elements are not enough to set them",
                                 context->model->tensors[tensor].name, share.n_values, matrix_elems(context, tensor));
    if (status == ZERO_OK && share.n_values > 0) {
        frozen->scales[matrix] = zero_fp8_scales_of(ZERO_E4M3, share.largest);
        status = zero_comm_agree(context->host_comm, put(frozen, matrix));
    }
    frozen->n_values = 0;
    return status;
}

/* ---- reading ---- */

zero_status_t zero_frozen_fp8_read(const zero_frozen_fp8_t *frozen, zero_tensor_t tensor, const void *place,
                                   float *values, size_t n_elems)
{
    const zero_context_t *context = frozen->context;
    const float inverse = frozen->scales[context->layout.frozen_matrix_of[tensor]].inverse;
    unsigned char *bytes = (unsigned char *)values + n_elems * (sizeof *values - 1); /* widened from the front */
    ZERO_TRY(zero_device_copy(context->device, bytes, place, n_elems, NULL));
    ZERO_TRY(zero_device_synchronize(context->device));
    for (size_t i = 0; i < n_elems; i++) {
        const float value = zero_float_of_fp8(ZERO_E4M3, bytes[i]) * inverse;
        memcpy((unsigned char *)values + i * sizeof value, &value, sizeof value);
    }
    return ZERO_OK;
}
