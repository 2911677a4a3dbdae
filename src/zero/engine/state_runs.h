/* state_runs.h - weights and moments run by run, as state.c reads and writes them: at most ZERO_MAX_RUN_ELEMS elements
 * of one tensor, which pass through fp32 buffers, because bf16 weights are kept as two halves (kernels/shard.h). */
#ifndef ZERO_STATE_RUNS_H
#define ZERO_STATE_RUNS_H

#include "zero/engine/engine.h"
#include "zero/engine/run_buffers.h"

/* at: where the run is in the parameters, the state and the reduced gradients. */
typedef zero_status_t (*zero_run_fn)(zero_engine_t *engine, zero_tensor_t tensor, const zero_span_t *run,
                                     const zero_adam_segment_t *at, zero_run_buffers_t *buffers, void *user);

/* Calls fn on the runs of all tensors that this rank holds; with `owned_only` on those that it owns, which are fewer at
 * stage 0. */
zero_status_t zero_runs_for_each(zero_engine_t *engine, bool owned_only, zero_run_fn fn, void *user);
/* Calls fn, which writes weights, on the runs of all tensors, and stores those that are held in fp8. Ranks fail
 * together in the latter. [collective] */
zero_status_t zero_runs_write_each(zero_engine_t *engine, bool owned_only, zero_run_fn fn, void *user);
/* The same of one tensor, which is not held in fp8 if it is written. */
zero_status_t zero_runs_for_each_of(zero_engine_t *engine, zero_tensor_t tensor, bool owned_only, zero_run_fn fn,
                                    void *user);

/* ---- within fn ---- */

static inline bool zero_run_is_frozen(const zero_engine_t *engine, zero_tensor_t tensor)
{
    return engine->context.model->tensors[tensor].frozen;
}

static inline bool zero_run_is_fp8(const zero_engine_t *engine, zero_tensor_t tensor)
{
    return engine->context.model->tensors[tensor].frozen_fp8;
}

/* Writes the master weights in buffers->weights. Of what is held in fp8 they are taken, and stored behind the matrix's
 * last tensor. */
zero_status_t zero_run_write_master(zero_engine_t *engine, zero_tensor_t tensor, const zero_adam_segment_t *at,
                                    zero_run_buffers_t *buffers, size_t n_elems);
/* Reads master weights into buffers->host, which has them once the device is synchronized. */
zero_status_t zero_run_read_master(zero_engine_t *engine, zero_tensor_t tensor, const zero_adam_segment_t *at,
                                   zero_run_buffers_t *buffers, size_t n_elems);
/* Writes n_elems of m or v. `values` and the buffers stay in use until the device is synchronized. */
zero_status_t zero_run_write_array(zero_engine_t *engine, zero_array_t array, const zero_adam_segment_t *at,
                                   const float *values, size_t n_elems, const zero_run_buffers_t *buffers);
/* Reads n_elems of m or v. `values` has them once the device is synchronized; of blocks, on return. */
zero_status_t zero_run_read_array(zero_engine_t *engine, zero_array_t array, const zero_adam_segment_t *at,
                                  float *values, size_t n_elems, const zero_run_buffers_t *buffers);
/* Sets m and v to 0, as far as the tensor and the optimizer have them. */
zero_status_t zero_run_clear_moments(zero_engine_t *engine, zero_tensor_t tensor, const zero_adam_segment_t *at,
                                     size_t n_elems);
/* Writes m and v, as far as the tensor and the optimizer have them. */
zero_status_t zero_run_write_moments(zero_engine_t *engine, zero_tensor_t tensor, const zero_adam_segment_t *at,
                                     const float *m, const float *v, size_t n_elems, const zero_run_buffers_t *buffers);

#endif
