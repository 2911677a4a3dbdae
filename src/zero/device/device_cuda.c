/* device_cuda.c - one GPU per rank: memory, streams and copies by the CUDA runtime, and the kernels of
 * kernels/cuda/.
 *
 * The runtime is linked statically and looks for the driver when it is first called, so a program built with this also
 * runs on machines without a driver, and finds no GPU there.
 */
#include <ctype.h>
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cuda_status.h"
#include "base/log.h"
#include "comm/comm.h"
#include "comm/routes.h"
#include "zero/device/device.h"

static cudaStream_t as_cuda(zero_stream_t stream)
{
    return (cudaStream_t)stream;
}

static zero_status_t cuda_alloc(zero_device_t *device, size_t n_bytes, void **data)
{
    void *allocated = NULL;
    (void)device;
    *data = NULL;
    if (n_bytes == 0)
        return ZERO_OK;
    cudaError_t error = cudaMalloc(&allocated, n_bytes);
    if (!zero_cuda_succeeds(error))
        return zero_fail(ZERO_ERROR_MEMORY, "cannot allocate %zu bytes of GPU memory: %s", n_bytes,
                         cudaGetErrorString(error));
    ZERO_TRY_CUDA(cudaMemset(allocated, 0, n_bytes));
    ZERO_TRY_CUDA(cudaDeviceSynchronize());
    *data = allocated;
    return ZERO_OK;
}

static void cuda_free(zero_device_t *device, void *data, size_t n_bytes)
{
    (void)device;
    (void)n_bytes;
    cudaFree(data);
}

static zero_status_t cuda_host_alloc(zero_device_t *device, size_t n_bytes, void **data)
{
    void *allocated;
    (void)device;
    ZERO_TRY_CUDA(cudaMallocHost(&allocated, n_bytes));
    memset(allocated, 0, n_bytes);
    *data = allocated;
    return ZERO_OK;
}

static void cuda_host_free(zero_device_t *device, void *data)
{
    (void)device;
    cudaFreeHost(data);
}

static zero_status_t cuda_host_pin(zero_device_t *device, void *data, size_t n_bytes)
{
    (void)device;
    zero_status_t status =
        ZERO_CUDA_STATUS_AT(ZERO_LOG_WARNING, cudaHostRegister(data, n_bytes, cudaHostRegisterPortable));
    return status == ZERO_OK ? ZERO_OK : ZERO_ERROR_UNSUPPORTED;
}

static void cuda_host_unpin(zero_device_t *device, void *data)
{
    (void)device;
    cudaHostUnregister(data);
}

static bool cuda_pci_address(zero_device_t *device, char *address, int n_bytes)
{
    int gpu;
    (void)device;
    if (!zero_cuda_succeeds(cudaGetDevice(&gpu)) || !zero_cuda_succeeds(cudaDeviceGetPCIBusId(address, n_bytes, gpu)))
        return false;
    for (char *c = address; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    return true;
}

static zero_status_t cuda_copy(zero_device_t *device, void *dst, const void *src, size_t n_bytes, zero_stream_t stream)
{
    (void)device;
    ZERO_TRY_CUDA(cudaMemcpyAsync(dst, src, n_bytes, cudaMemcpyDefault, as_cuda(stream)));
    return ZERO_OK;
}

static zero_status_t cuda_clear(zero_device_t *device, void *data, size_t n_bytes, zero_stream_t stream)
{
    (void)device;
    ZERO_TRY_CUDA(cudaMemsetAsync(data, 0, n_bytes, as_cuda(stream)));
    return ZERO_OK;
}

static zero_status_t cuda_synchronize(zero_device_t *device)
{
    (void)device;
    ZERO_TRY_CUDA(cudaDeviceSynchronize());
    return ZERO_OK;
}

static zero_status_t cuda_synchronize_stream(zero_device_t *device, zero_stream_t stream)
{
    (void)device;
    ZERO_TRY_CUDA(cudaStreamSynchronize(as_cuda(stream)));
    return ZERO_OK;
}

static zero_status_t cuda_stream_create(zero_device_t *device, bool urgent, zero_stream_t *stream)
{
    cudaStream_t created;
    int least, greatest;
    (void)device;
    ZERO_TRY_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    /* Non-blocking, or the legacy null stream would serialize it. Copy-engine collectives do not work in that one. */
    ZERO_TRY_CUDA(cudaStreamCreateWithPriority(&created, cudaStreamNonBlocking, urgent ? greatest : least));
    *stream = (zero_stream_t)created;
    return ZERO_OK;
}

static void cuda_stream_destroy(zero_device_t *device, zero_stream_t stream)
{
    (void)device;
    if (stream)
        cudaStreamDestroy(as_cuda(stream));
}

static cudaEvent_t as_cuda_event(zero_event_t event)
{
    return (cudaEvent_t)event;
}

static zero_status_t cuda_event_create(zero_device_t *device, bool timed, zero_event_t *event)
{
    cudaEvent_t created;
    (void)device;
    ZERO_TRY_CUDA(cudaEventCreateWithFlags(&created, timed ? cudaEventDefault : cudaEventDisableTiming));
    *event = (zero_event_t)created;
    return ZERO_OK;
}

static void cuda_event_destroy(zero_device_t *device, zero_event_t event)
{
    (void)device;
    if (event)
        cudaEventDestroy(as_cuda_event(event));
}

static zero_status_t cuda_event_record(zero_device_t *device, zero_event_t event, zero_stream_t stream)
{
    (void)device;
    ZERO_TRY_CUDA(cudaEventRecord(as_cuda_event(event), as_cuda(stream)));
    return ZERO_OK;
}

static zero_status_t cuda_stream_wait(zero_device_t *device, zero_stream_t stream, zero_event_t event)
{
    (void)device;
    ZERO_TRY_CUDA(cudaStreamWaitEvent(as_cuda(stream), as_cuda_event(event), 0));
    return ZERO_OK;
}

static zero_status_t cuda_host_call(zero_device_t *device, zero_stream_t stream, void (*fn)(void *args), void *args)
{
    (void)device;
    ZERO_TRY_CUDA(cudaLaunchHostFunc(as_cuda(stream), fn, args));
    return ZERO_OK;
}

static zero_status_t cuda_event_query(zero_device_t *device, zero_event_t event, bool *reached)
{
    (void)device;
    cudaError_t error = cudaEventQuery(as_cuda_event(event));
    *reached = error == cudaSuccess;
    if (error != cudaErrorNotReady)
        ZERO_TRY_CUDA(error);
    return ZERO_OK;
}

static zero_status_t cuda_event_elapsed_ms(zero_device_t *device, zero_event_t begin, zero_event_t end, double *ms)
{
    float elapsed;
    (void)device;
    ZERO_TRY_CUDA(cudaEventElapsedTime(&elapsed, as_cuda_event(begin), as_cuda_event(end)));
    *ms = (double)elapsed;
    return ZERO_OK;
}

static uint64_t cuda_available_bytes(const zero_device_t *device)
{
    size_t n_free = 0, n_total = 0;
    if (!zero_cuda_succeeds(cudaMemGetInfo(&n_free, &n_total)))
        return 0;
    return n_free / (uint64_t)device->n_sharers;
}

static void cuda_memory_bytes(const zero_device_t *device, uint64_t *free_bytes, uint64_t *total_bytes)
{
    size_t n_free = 0, n_total = 0;
    (void)device;
    zero_cuda_succeeds(cudaMemGetInfo(&n_free, &n_total));
    *free_bytes = n_free;
    *total_bytes = n_total;
}

/* Finds whether ranks share a GPU. Hosts may differ in how many they have, so all ranks learn of it. */
static zero_status_t find_sharing(zero_comm_t *host, bool *here, bool *anywhere)
{
    double n_sharing = *here = host->local_size > zero_device_cuda_count();
    ZERO_TRY(zero_comm_sum(host, &n_sharing, 1));
    *anywhere = n_sharing > 0.0;
    return ZERO_OK;
}

/* Refuses ranks that share a GPU, which NCCL does not serve. If one rank fails, all do. */
static zero_status_t refuse_shared_gpus(zero_comm_t *host)
{
    int n_gpus = zero_device_cuda_count();
    bool here, anywhere;
    ZERO_TRY(find_sharing(host, &here, &anywhere));
    if (!anywhere)
        return ZERO_OK;
    if (!here || host->local_rank > 0)
        return ZERO_ERROR_USAGE;
    return zero_fail(
        ZERO_ERROR_USAGE,
        "NCCL joins ranks that have a GPU each, and this host has %d GPU%s for %d ranks: take comm mpi, or "
        "comm auto where copy engines serve (reduction ordered)",
        n_gpus, n_gpus == 1 ? "" : "s", host->local_size);
}

/* Joins hosts inside each of which copy engines serve: by NCCL, or, if it does not serve since ranks share a GPU,
 * through host memory, which is for trying things out. */
static zero_status_t join_hosts(zero_device_t *device, zero_comm_t *host, zero_comm_t *local, zero_comm_t **bulk)
{
    zero_comm_t *between = NULL;
    bool here, anywhere;
    zero_status_t status = find_sharing(host, &here, &anywhere);
    if (status == ZERO_OK)
        status =
            anywhere ? zero_device_join_through_host(device, host, &between) : zero_comm_nccl_create(host, &between);
    if (status != ZERO_OK) {
        local->ops->destroy(local);
        return status;
    }
    return zero_device_join_rails(device, host, local, between, ZERO_RAILS_STAGING_BYTES, bulk);
}

/* Chooses copy engines if they serve, unless NCCL was asked for or the transport is to reduce, which they cannot; with
 * several hosts, inside those that have several ranks. */
static zero_status_t cuda_join(zero_device_t *device, zero_comm_t *host, bool reduces, zero_comm_t **bulk)
{
    zero_status_t status = ZERO_ERROR_UNSUPPORTED;
    const bool are_several = zero_hosts_are_several(host);
    zero_comm_t *copying;
    if (host->kind == ZERO_COMM_AUTO && !reduces && (!are_several || zero_hosts_are_shared(host)))
        status = zero_comm_copy_engine_create(host, &copying);
    if (status == ZERO_OK && are_several)
        return join_hosts(device, host, copying, bulk);
    if (status == ZERO_OK)
        *bulk = copying;
    if (status != ZERO_ERROR_UNSUPPORTED)
        return status;
    ZERO_TRY(refuse_shared_gpus(host));
    return zero_comm_nccl_create(host, bulk);
}

static void cuda_destroy(zero_device_t *device)
{
    free(device);
}

static const zero_device_ops_t cuda_ops = {
    .name = "cuda",
    .alloc = cuda_alloc,
    .free = cuda_free,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .host_pin = cuda_host_pin,
    .host_unpin = cuda_host_unpin,
    .pci_address = cuda_pci_address,
    .copy = cuda_copy,
    .clear = cuda_clear,
    .synchronize = cuda_synchronize,
    .synchronize_stream = cuda_synchronize_stream,
    .stream_create = cuda_stream_create,
    .stream_destroy = cuda_stream_destroy,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .stream_wait = cuda_stream_wait,
    .host_call = cuda_host_call,
    .event_query = cuda_event_query,
    .event_elapsed_ms = cuda_event_elapsed_ms,
    .join = cuda_join,
    .available_bytes = cuda_available_bytes,
    .memory_bytes = cuda_memory_bytes,
    .destroy = cuda_destroy,
};

int zero_device_cuda_count(void)
{
    int n_gpus = 0;
    return zero_cuda_succeeds(cudaGetDeviceCount(&n_gpus)) ? n_gpus : 0;
}

static zero_status_t too_few_gpus(int n_gpus, int n_ranks)
{
    if (n_gpus == 0)
        return zero_fail(ZERO_ERROR_USAGE, "CUDA finds no GPU on this host: let the ranks see one, or use the CPU");
    return zero_fail(ZERO_ERROR_USAGE,
                     "CUDA finds %d GPU%s on this host for %d ranks: start fewer ranks, let every rank see all GPUs "
                     "(Slurm: --gpus-per-node, not --gpus-per-task), or use the CPU; to try things out, device type "
                     "cuda-shared lets ranks share a GPU",
                     n_gpus, n_gpus == 1 ? "" : "s", n_ranks);
}

/* All processes of the job on this host count, so that separate groups of ranks take different GPUs. If there are too
 * few for all, but enough for this group, others need none. */
zero_status_t zero_device_cuda_create(const zero_comm_t *comm, bool may_share, zero_device_t **device)
{
    int n_gpus = zero_device_cuda_count(), rank = comm->job_local_rank, n_ranks = comm->job_local_size;
    if (n_gpus < n_ranks && n_gpus >= comm->local_size) {
        rank = comm->local_rank;
        n_ranks = comm->local_size;
    }
    if (n_gpus < (may_share ? 1 : n_ranks))
        return comm->local_rank > 0 ? ZERO_ERROR_USAGE : too_few_gpus(n_gpus, n_ranks);
    int gpu = rank % n_gpus;
    struct cudaDeviceProp properties;
    ZERO_TRY_CUDA(cudaSetDevice(gpu));
    ZERO_TRY_CUDA(cudaGetDeviceProperties(&properties, gpu));
    zero_device_t *made = calloc(1, sizeof *made);
    if (!made)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for a device");
    made->ops = &cuda_ops;
    made->type = ZERO_DEVICE_CUDA;
    snprintf(made->name, sizeof made->name, "%.*s", (int)sizeof made->name - 1, properties.name);
    made->kernels = zero_shard_kernels_cuda();
    made->n_sharers = ((may_share ? comm->job_local_size : n_ranks) - gpu + n_gpus - 1) / n_gpus;
    *device = made;
    return ZERO_OK;
}
