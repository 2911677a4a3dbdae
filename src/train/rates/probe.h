/* probe.h - a device with memory for measuring it, and the clock: what calls take while every rank makes them.
 *
 * Memory is an engine's, so that it is what a run's would be: planned, and on the GPU where there is one. Work is
 * queued in a stream; a clock is read when the device has come to the stream's end.
 */
#ifndef ZEROTRAIN_CALIBRATE_PROBE_H
#define ZEROTRAIN_CALIBRATE_PROBE_H

#include "train/kernels/kernels.h"

typedef struct probe_sizes {
    int n_units;
    int64_t unit_elems; /* parameters of each */
    size_t user_bytes;  /* for probe_alloc */
    bool host_update;   /* GPUs: the state is in host memory, and the host updates it */
} probe_sizes_t;

typedef struct probe {
    zero_comm_t *comm;
    zero_device_t *device;
    zero_model_t *declaration;
    zero_engine_t *engine;
    zero_stream_t stream;
    zero_dtype_t dtype;
    bool on_gpu;
} probe_t;

/* Creates an engine at stage 3 whose parameters are random. probe_close also frees what is half made. [collective] */
zero_status_t probe_open(zero_comm_t *comm, zero_device_t *device, zero_dtype_t dtype, const probe_sizes_t *sizes,
                         probe_t *probe);
void probe_close(probe_t *probe); /* [collective] */

/* Allocates device memory until the probe is closed. */
zero_status_t probe_alloc(probe_t *probe, size_t n_bytes, void **data);
/* Fills memory with random numbers of a dtype: a GPU multiplies zeros with less power, and so faster. */
zero_status_t probe_fill(probe_t *probe, void *data, zero_dtype_t dtype, size_t n_elems);

/* Sets *seconds to what one call of fn takes: the fastest of some rounds of calls, since other processes only slow them
 * down, on the slowest rank, since the others wait for it. [collective] */
typedef zero_status_t (*probe_fn)(void *args);
zero_status_t probe_time(probe_t *probe, probe_fn fn, void *args, double *seconds);
/* The parts of it: waits for this rank's device; finds the largest of all ranks. */
zero_status_t probe_wait(probe_t *probe);
zero_status_t probe_slowest(probe_t *probe, double *seconds);

#endif
