/* zerotrain_faults.c - zerotrain whose streams stop at random, or do not wait for each other: for tests/gpu/run and
 * hosts/run. Linked into zerotrain (Makefile) with ld's --wrap of zero_device_cuda_create, so that every device
 * comes here and gets another table of functions.
 *
 * ZERO_STREAM_DELAY_US=N in the environment makes every stream stop for a random time of up to N microseconds wherever
 * an event is recorded or waited for: what is ordered by luck then comes out wrong. To see that such a test can fail,
 * ZERO_STREAM_FAULT leaves out the waits of the streams that compute ("compute") or of those beside them ("beside"),
 * which are urgent. Without them in the environment this is zerotrain.
 */
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "zero/device/device.h"

zero_status_t __real_zero_device_cuda_create(const zero_comm_t *comm, bool may_share, zero_device_t **device);
zero_status_t __wrap_zero_device_cuda_create(const zero_comm_t *comm, bool may_share, zero_device_t **device);

static struct {
    const zero_device_ops_t *ops; /* the device's own */
    unsigned max_delay_us;        /* 0: none */
    enum { NO_FAULT, COMPUTE_WAITS_FOR_NOTHING, BESIDE_WAITS_FOR_NOTHING } fault;
} the;

static void sleep_us(void *user)
{
    usleep((unsigned)(uintptr_t)user);
}

static zero_status_t delay(zero_device_t *device, zero_stream_t stream)
{
    static unsigned seed = 1;
    if (the.max_delay_us == 0)
        return ZERO_OK;
    seed = seed * 1103515245u + 12345u + (unsigned)getpid();
    return the.ops->host_call(device, stream, sleep_us, (void *)(uintptr_t)(seed / 7 % the.max_delay_us));
}

static bool wait_is_left_out(zero_stream_t stream)
{
    int priority = 0;
    if (the.fault == NO_FAULT || cudaStreamGetPriority((cudaStream_t)stream, &priority) != cudaSuccess)
        return false;
    return (priority < 0) == (the.fault == BESIDE_WAITS_FOR_NOTHING);
}

static zero_status_t record_late(zero_device_t *device, zero_event_t event, zero_stream_t stream)
{
    ZERO_TRY(delay(device, stream));
    return the.ops->event_record(device, event, stream);
}

static zero_status_t wait_late(zero_device_t *device, zero_stream_t stream, zero_event_t event)
{
    ZERO_TRY(delay(device, stream));
    return wait_is_left_out(stream) ? ZERO_OK : the.ops->stream_wait(device, stream, event);
}

static void read_environment(void)
{
    const char *delay_us = getenv("ZERO_STREAM_DELAY_US"), *fault = getenv("ZERO_STREAM_FAULT");
    the.max_delay_us = delay_us ? (unsigned)strtoul(delay_us, NULL, 10) : 0;
    the.fault = !fault || the.max_delay_us == 0 ? NO_FAULT
                : strcmp(fault, "compute") == 0 ? COMPUTE_WAITS_FOR_NOTHING
                : strcmp(fault, "beside") == 0  ? BESIDE_WAITS_FOR_NOTHING
                                                : NO_FAULT;
    fprintf(stderr, "zerotrain_faults: delays of up to %u us, fault %s\n", the.max_delay_us,
            the.fault == NO_FAULT ? "none" : fault);
}

zero_status_t __wrap_zero_device_cuda_create(const zero_comm_t *comm, bool may_share, zero_device_t **device)
{
    static zero_device_ops_t ops;
    ZERO_TRY(__real_zero_device_cuda_create(comm, may_share, device));
    read_environment();
    the.ops = (*device)->ops;
    ops = *the.ops;
    ops.event_record = record_late;
    ops.stream_wait = wait_late;
    (*device)->ops = &ops;
    return ZERO_OK;
}
