/* zerotrain_paced.c - zerotrain whose host waits for the device before every unit and before the update. It is linked
 * into zerotrain (Makefile) with ld's --wrap of the functions below, so that their calls come here first.
 *
 * A GPU's queue holds about a thousand launches. When it is full, a launch waits, and the host's span of a step shows
 * the GPU's time. Here no launch waits: each pause ends the span and begins the next one after the device is idle, so
 * the host's spans of a step add up to the host's own work. Of a GPU's work only the update is traced, since each span
 * costs the host two events. The step takes longer, since nothing is queued ahead. A run without a trace is
 * zerotrain's.
 */
#include "tests/support/paced.h"

#include "train/report/trace.h"

static struct {
    trace_t *trace;
    zero_device_t *device;
    int64_t step; /* 0: none has begun */
} paced;

#define WRAP(type, name, parameters)                                                                                   \
    type __real_##name parameters;                                                                                     \
    type __wrap_##name parameters;                                                                                     \
    type __wrap_##name parameters

WRAP(zero_status_t, zero_engine_create,
     (zero_comm_t * comm, zero_device_t *device, const zero_model_t *model, const zero_config_t *config,
      zero_engine_t **engine))
{
    paced.device = device;
    return __real_zero_engine_create(comm, device, model, config, engine);
}

WRAP(zero_status_t, zero_engine_trace, (zero_engine_t * engine, unsigned works, zero_trace_fn fn, void *user))
{
    bool is_gpu = zero_device_get_type(paced.device) == ZERO_DEVICE_CUDA;
    return __real_zero_engine_trace(engine, is_gpu ? 1u << ZERO_WORK_UPDATE : works, fn, user);
}

WRAP(void, trace_begin_step, (trace_t * trace, int64_t step))
{
    paced.trace = trace;
    paced.step = step;
    __real_trace_begin_step(trace, step);
}

WRAP(void, trace_end_step, (trace_t * trace))
{
    paced.step = 0;
    __real_trace_end_step(trace);
}

zero_status_t paced_pause(void)
{
    if (!paced.trace || paced.step == 0)
        return ZERO_OK;
    __real_trace_end_step(paced.trace);
    zero_status_t status = zero_device_synchronize(paced.device);
    __real_trace_begin_step(paced.trace, paced.step);
    return status;
}

/* tests/gpu/programs/count_calls.c has its own. */
#pragma weak __wrap_zero_acquire
#pragma weak __wrap_zero_step

WRAP(zero_status_t, zero_acquire, (zero_engine_t * engine, zero_unit_t unit, zero_stream_t stream))
{
    zero_status_t status = paced_pause();
    return status != ZERO_OK ? status : __real_zero_acquire(engine, unit, stream);
}

WRAP(zero_status_t, zero_step, (zero_engine_t * engine, float lr, const double *loss, zero_stream_t stream))
{
    zero_status_t status = paced_pause();
    return status != ZERO_OK ? status : __real_zero_step(engine, lr, loss, stream);
}
