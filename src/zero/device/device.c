/* device.c - opens a device and joins it with those of other ranks. Only this file knows which devices were built
 * in. */
#include "zero/device/device.h"

#include <omp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/system.h"
#include "comm/comm.h"
#include "comm/gpu/transports.h"

#ifndef ZERO_HAVE_CUDA
/* Instead of device_cuda.c: a build without CUDA finds no GPU. */
int zero_device_cuda_count(void)
{
    return 0;
}

zero_status_t zero_device_cuda_create(const zero_comm_t *comm, bool may_share, zero_device_t **device)
{
    (void)comm, (void)may_share, (void)device;
    return zero_fail_collective(ZERO_ERROR_USAGE,
                                "this build has no CUDA: use the CPU, or build it on a machine with nvcc");
}
#endif

zero_device_type_t zero_device_resolve(zero_device_type_t type, const zero_comm_t *comm)
{
    (void)comm; /* each rank looks on its own host */
    if (type != ZERO_DEVICE_AUTO)
        return type;
    return zero_device_cuda_count() > 0 ? ZERO_DEVICE_CUDA : ZERO_DEVICE_CPU;
}

/* More than any machine has cores. libgomp keeps an entry per thread on the stack, which some ten thousand overflow. */
#define MAX_THREADS 4096

/* Checks OMP_NUM_THREADS. It is mostly the same for all ranks of a host, so one of them logs. */
static zero_status_t check_threads(const zero_comm_t *comm)
{
    const char *text = getenv("OMP_NUM_THREADS");
    int n_threads = omp_get_max_threads();
    const bool is_unset = !text || !text[0];
    const bool is_number = !is_unset && atoi(text) > 0 && !text[strspn(text, "0123456789, \t")]; /* or one a level */
    if (is_unset || (is_number && n_threads <= MAX_THREADS))
        return ZERO_OK;
    if (zero_comm_local_rank(comm) > 0)
        return ZERO_ERROR_USAGE;
    if (!is_number)
        return zero_fail(ZERO_ERROR_USAGE,
                         "OMP_NUM_THREADS=%.40s in the environment is not a number of threads: set it to a rank's "
                         "share of the cores, or unset it",
                         text);
    return zero_fail(
        ZERO_ERROR_USAGE,
        "OMP_NUM_THREADS in the environment gives a rank %d threads, more than the maximum of %d: set it to "
        "a rank's share of the cores, or unset it",
        n_threads, MAX_THREADS);
}

/* Returns how many threads a rank gets: its share of the machine's processors, or all that it is bound to if those are
 * fewer. */
static int threads_of_rank(int n_sharers)
{
    cpu_set_t allowed;
    int n_allowed = (int)sysconf(_SC_NPROCESSORS_ONLN);
    int share = n_allowed / n_sharers;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
        n_allowed = CPU_COUNT(&allowed);
    share = share < n_allowed ? share : n_allowed;
    return share > 0 ? share : 1;
}

/* Leaves the calling thread's parallel regions no more threads than its share, unless OMP_NUM_THREADS says how many. If
 * the threads of all ranks are more than the cores, they wait for each other at the end of each region. */
static void share_threads(const zero_comm_t *comm)
{
    const char *threads = getenv("OMP_NUM_THREADS");
    const int share = threads_of_rank(comm->job_local_size);
    if ((!threads || !threads[0]) && omp_get_max_threads() > share)
        omp_set_num_threads(share);
}

zero_status_t zero_device_create(zero_device_type_t type, const zero_comm_t *comm, zero_device_t **device)
{
    ZERO_REQUIRE(comm);
    ZERO_REQUIRE(device);
    if ((unsigned)type > ZERO_DEVICE_CUDA_SHARED)
        return zero_fail(ZERO_ERROR_ARGUMENT, "zero_device_create: there is no type %d", (int)type);
    zero_log_set_rank(comm->rank);
    ZERO_TRY(check_threads(comm));
    share_threads(comm);
    type = zero_device_resolve(type, comm);
    if (type == ZERO_DEVICE_CPU)
        return zero_device_cpu_create(comm, device);
    return zero_device_cuda_create(comm, type == ZERO_DEVICE_CUDA_SHARED, device);
}

zero_status_t zero_device_join_through_host(zero_device_t *device, zero_comm_t *host, zero_comm_t **bulk)
{
    return zero_comm_through_host_create(host, device, device->ops, ZERO_HOST_STAGING_BYTES, bulk);
}

zero_status_t zero_device_join_rails(zero_device_t *device, zero_comm_t *host, zero_comm_t *local, zero_comm_t *between,
                                     size_t staging_bytes, zero_comm_t **bulk)
{
    zero_status_t status = zero_comm_rails_create(host, local, between, device, device->ops, staging_bytes, bulk);
    if (status != ZERO_OK) {
        between->ops->destroy(between);
        local->ops->destroy(local);
    }
    return status;
}

/* Goes through host memory if MPI messages were asked for, else as the device chooses. */
static zero_status_t join(zero_device_t *device, zero_comm_t *comm, bool reduces, zero_comm_t **bulk)
{
    if (comm->kind == ZERO_COMM_MPI && reduces)
        return zero_fail_collective(ZERO_ERROR_USAGE,
                                    "nccl_reduction: MPI messages do not add gradients while they are "
                                    "transferred; take comm auto or nccl");
    ZERO_TRY(comm->kind == ZERO_COMM_MPI ? zero_device_join_through_host(device, comm, bulk)
                                         : device->ops->join(device, comm, reduces, bulk));
    if (comm->rank == 0)
        zero_log(ZERO_LOG_INFO, "between GPUs: %s", (*bulk)->ops->name);
    return ZERO_OK;
}

zero_status_t zero_device_comm_create(zero_device_t *device, zero_comm_t *comm, bool reduces, zero_comm_t **bulk)
{
    if (device->ops->join)
        return join(device, comm, reduces, bulk);
    if (comm->kind == ZERO_COMM_NCCL)
        return zero_fail_collective(ZERO_ERROR_USAGE,
                                    "NCCL is for GPUs, and the device is the CPU: use comm auto or mpi");
    *bulk = comm;
    return ZERO_OK;
}

void zero_device_comm_destroy(zero_comm_t *comm, zero_comm_t *bulk)
{
    if (bulk && bulk != comm)
        bulk->ops->destroy(bulk);
}

void zero_device_destroy(zero_device_t *device)
{
    if (device && zero_users_release(&device->users, "zero_device_destroy"))
        device->ops->destroy(device);
}

void zero_device_leave(zero_device_t *device)
{
    if (zero_users_leave(&device->users, ZERO_USER_ENGINE))
        device->ops->destroy(device);
}

zero_device_type_t zero_device_get_type(const zero_device_t *device)
{
    return device ? device->type : ZERO_DEVICE_AUTO;
}

uint64_t zero_device_available(const zero_device_t *device)
{
    return device ? device->ops->available_bytes(device) : 0;
}

const char *zero_device_name(const zero_device_t *device)
{
    return device ? device->name : "";
}

zero_status_t zero_device_find_usage(const zero_device_t *device, zero_device_usage_t *usage)
{
    char address[32];
    ZERO_REQUIRE(device);
    ZERO_REQUIRE(usage);
    zero_device_usage_t found = {0};
    device->ops->memory_bytes(device, &found.free_bytes, &found.total_bytes);
    if (device->ops->pci_address && device->ops->pci_address((zero_device_t *)device, address, sizeof address))
        zero_gpu_find_processes(address, &found);
    else
        snprintf(found.why_unknown, sizeof found.why_unknown, "this is not a GPU");
    *usage = found;
    return ZERO_OK;
}

zero_status_t zero_device_synchronize(zero_device_t *device)
{
    ZERO_REQUIRE(device);
    return device->ops->synchronize(device);
}

#define PEERS_AFTER_NS 1000000000 /* what takes longer leaves time to check that all peers are there */

zero_status_t zero_device_await(zero_device_t *device, zero_comm_t *comm, zero_event_t event, const char *what)
{
    const int64_t begin = zero_now_ns();
    bool reached = false;
    ZERO_TRY(device->ops->event_query(device, event, &reached));
    while (!reached) {
        const int64_t waited = zero_now_ns() - begin;
        if (waited > PEERS_AFTER_NS && comm->ops->check_peers)
            ZERO_TRY(comm->ops->check_peers(comm, what, waited));
        if (waited > comm->timeout_ns)
            return zero_fail(ZERO_ERROR_TIMEOUT,
                             "%s did not end on this rank's device within %g s (ZERO_TIMEOUT_S): a rank or its device "
                             "stands still",
                             what, (double)comm->timeout_ns * 1e-9);
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
        ZERO_TRY(device->ops->event_query(device, event, &reached));
    }
    return ZERO_OK;
}

zero_status_t zero_stream_create(zero_device_t *device, zero_stream_t *stream)
{
    ZERO_REQUIRE(device);
    ZERO_REQUIRE(stream);
    return device->ops->stream_create(device, false, stream);
}

void zero_stream_destroy(zero_device_t *device, zero_stream_t stream)
{
    if (device)
        device->ops->stream_destroy(device, stream);
}

zero_status_t zero_host_alloc(zero_device_t *device, size_t n_bytes, void **data)
{
    ZERO_REQUIRE(device);
    ZERO_REQUIRE(data);
    return device->ops->host_alloc(device, n_bytes, data);
}

void zero_host_free(zero_device_t *device, void *data)
{
    if (device && data)
        device->ops->host_free(device, data);
}

zero_status_t zero_device_copy(zero_device_t *device, void *dst, const void *src, size_t n_bytes, zero_stream_t stream)
{
    ZERO_REQUIRE(device);
    if (n_bytes == 0)
        return ZERO_OK;
    ZERO_REQUIRE(dst);
    ZERO_REQUIRE(src);
    return device->ops->copy(device, dst, src, n_bytes, stream);
}
