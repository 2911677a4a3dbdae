/* frozen_fp8.c - see frozen_fp8.h. */
#include "zero/engine/frozen_fp8.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kernels/shard_math.h"
#include "zero/runtime/addresses.h"

#define PARALLEL_ELEMS ((size_t)1 << 16) /* fewer are widened by one thread */

struct zero_frozen_fp8 {
    zero_context_t *context;
    zero_fp8_scales_t *scales; /* by matrix; a copy is in private memory, at plan.frozen_scales */
    uint16_t *values;          /* what is taken of the current matrix, in bf16, in memory that the device reads */
    size_t n_values;
    uint32_t largest;           /* magnitude of these, as bits */
    void *place;                /* of the first byte; the others follow */
    bool is_on_host;            /* where the bytes go */
    zero_fp8_segment_t segment; /* of which the device has a copy */
};

/* The device's copies of what its kernels are called with, in zero_run_buffers_t's parts: one segment, all of a run. */
typedef struct parts_on_device {
    zero_fp8_segment_t segment;
    uint32_t largest, unused;
} parts_on_device_t;
_Static_assert(sizeof(parts_on_device_t) <= ZERO_RUN_PARTS_BYTES, "buffers have room for a segment and a maximum");

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
    zero_frozen_fp8_end(frozen);
    free(frozen->scales);
    free(frozen);
}

/* ---- writing ---- */

/* Returns how many elements this rank owns of the matrix of which it owns most. */
static uint64_t most_owned(const zero_context_t *context)
{
    uint64_t most = 0, n = 0;
    int matrix = -1;
    for (zero_tensor_t t = 0; t < context->layout.n_tensors; t++) {
        if (context->layout.frozen_matrix_of[t] < 0)
            continue;
        if (context->layout.frozen_matrix_of[t] != matrix)
            n = 0;
        matrix = context->layout.frozen_matrix_of[t];
        n += zero_context_owned_span(context, t, context->comm->rank).n_elems;
        most = n > most ? n : most;
    }
    return most;
}

/* Describes n_elems in buffers->param as the parts of a matrix of their own. The segment is copied to the device if it
 * is another than the last, which then no copy reads any more. */
static zero_status_t describe(zero_frozen_fp8_t *frozen, const zero_run_buffers_t *buffers, size_t n_elems, void *bytes,
                              zero_fp8_parts_t *parts)
{
    zero_device_t *device = frozen->context->device;
    parts_on_device_t *on_device = buffers->parts;
    *parts = (zero_fp8_parts_t){.segments = &on_device->segment,
                                .n_segments = 1,
                                .largest = n_elems,
                                .n_matrices = 1,
                                .param = buffers->param,
                                .bytes = bytes};
    if (frozen->segment.n_elems == n_elems)
        return ZERO_OK;
    ZERO_TRY(zero_device_synchronize(device));
    frozen->segment = (zero_fp8_segment_t){.n_elems = n_elems};
    return zero_device_copy(device, &on_device->segment, &frozen->segment, sizeof frozen->segment, NULL);
}

/* Allocates, for a rank's share of any matrix, memory that the device reads without help. */
static zero_status_t allocate_values(zero_frozen_fp8_t *frozen)
{
    zero_device_t *device = frozen->context->device;
    const uint64_t n = most_owned(frozen->context);
    void *values;
    if (frozen->values)
        return ZERO_OK;
    if (device->ops->host_alloc(device, n * sizeof *frozen->values, &values) != ZERO_OK)
        return zero_fail(ZERO_ERROR_MEMORY, "no %.2f GiB of pinned host memory, to cast %" PRIu64 " numbers to fp8",
                         (double)(n * sizeof *frozen->values) / 0x1p30, n);
    frozen->values = values;
    return ZERO_OK;
}

zero_status_t zero_frozen_fp8_take(zero_frozen_fp8_t *frozen, const zero_run_buffers_t *buffers, size_t n_elems,
                                   void *place, bool is_on_host)
{
    zero_device_t *device = frozen->context->device;
    parts_on_device_t *on_device = buffers->parts;
    zero_fp8_parts_t parts;
    uint32_t largest;
    ZERO_ASSERT(n_elems <= buffers->capacity);
    ZERO_TRY(allocate_values(frozen));
    if (frozen->n_values == 0) {
        frozen->place = place;
        frozen->is_on_host = is_on_host;
    }
    ZERO_TRY(
        device->kernels->split_master(buffers->param, buffers->master_lo, ZERO_BF16, buffers->weights, n_elems, NULL));
    ZERO_TRY(describe(frozen, buffers, n_elems, NULL, &parts));
    ZERO_TRY(device->kernels->fp8_absmax(&parts, &on_device->largest, NULL));
    ZERO_TRY(zero_device_copy(device, &largest, &on_device->largest, sizeof largest, NULL));
    ZERO_TRY(zero_device_copy(device, frozen->values + frozen->n_values, buffers->param,
                              n_elems * sizeof *frozen->values, NULL));
    ZERO_TRY(zero_device_synchronize(device));
    frozen->n_values += n_elems;
    frozen->largest = largest > frozen->largest ? largest : frozen->largest;
    return ZERO_OK;
}

bool zero_frozen_fp8_ends(const zero_frozen_fp8_t *frozen, zero_tensor_t tensor)
{
    const zero_layout_t *layout = frozen ? &frozen->context->layout : NULL;
    return frozen && layout->frozen_matrix_of[tensor] >= 0 &&
           (tensor + 1 == layout->n_tensors ||
            layout->frozen_matrix_of[tensor + 1] != layout->frozen_matrix_of[tensor]);
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

/* Casts what was taken, run by run, to where it belongs. */
static zero_status_t put(zero_frozen_fp8_t *frozen, const zero_run_buffers_t *buffers, int matrix)
{
    const zero_context_t *context = frozen->context;
    zero_device_t *device = context->device;
    zero_fp8_scales_t *scales =
        (zero_fp8_scales_t *)zero_context_private(context, context->plan.frozen_scales) + matrix;
    ZERO_TRY(zero_device_copy(device, scales, &frozen->scales[matrix], sizeof *scales, NULL));
    for (size_t at = 0; at < frozen->n_values; at += buffers->capacity) {
        const size_t left = frozen->n_values - at, n = left < buffers->capacity ? left : buffers->capacity;
        unsigned char *place = (unsigned char *)frozen->place + at;
        zero_fp8_parts_t parts;
        ZERO_TRY(describe(frozen, buffers, n, frozen->is_on_host ? buffers->master_lo : place, &parts));
        ZERO_TRY(zero_device_copy(device, buffers->param, frozen->values + at, n * sizeof *frozen->values, NULL));
        ZERO_TRY(device->kernels->fp8_cast(&parts, scales, NULL));
        if (frozen->is_on_host)
            ZERO_TRY(zero_device_copy(device, place, parts.bytes, n, NULL));
    }
    return zero_device_synchronize(device);
}

zero_status_t zero_frozen_fp8_store(zero_frozen_fp8_t *frozen, zero_tensor_t tensor, const zero_run_buffers_t *buffers,
                                    zero_status_t status)
{
    const zero_context_t *context = frozen->context;
    const int matrix = context->layout.frozen_matrix_of[tensor];
    share_t share = {.n_values = frozen->n_values, .largest = frozen->largest};
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
        status = zero_comm_agree(context->host_comm, put(frozen, buffers, matrix));
    }
    frozen->n_values = 0;
    frozen->largest = 0;
    return status;
}

void zero_frozen_fp8_end(zero_frozen_fp8_t *frozen)
{
    if (!frozen)
        return;
    if (frozen->values)
        frozen->context->device->ops->host_free(frozen->context->device, frozen->values);
    frozen->values = NULL;
    frozen->n_values = 0;
    frozen->largest = 0;
    frozen->segment = (zero_fp8_segment_t){0}; /* the next writing has other buffers */
}

/* ---- reading ---- */

zero_status_t zero_frozen_fp8_read(const zero_frozen_fp8_t *frozen, zero_tensor_t tensor, const void *place,
                                   const zero_run_buffers_t *buffers, size_t n_elems)
{
    const zero_context_t *context = frozen->context;
    const float inverse = frozen->scales[context->layout.frozen_matrix_of[tensor]].inverse;
    const unsigned char *bytes =
        (unsigned char *)(buffers->host + buffers->capacity); /* m's room: frozen tensors have none */
    ZERO_TRY(zero_device_copy(context->device, buffers->host + buffers->capacity, place, n_elems, NULL));
    ZERO_TRY(zero_device_synchronize(context->device));
#pragma omp parallel for schedule(static) if (n_elems > PARALLEL_ELEMS)
    for (size_t i = 0; i < n_elems; i++)
        buffers->host[i] = zero_float_of_fp8(ZERO_E4M3, bytes[i]) * inverse;
    return ZERO_OK;
}
