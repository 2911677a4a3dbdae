/* context.h - what every part of an engine needs: communicators, device, model, plan, memory, streams, and where the
 * caller is in the step.
 *
 * The parts (offload, parameters, gradients, results, update) keep a pointer to the context and never see the engine.
 * The engine owns it.
 */
#ifndef ZERO_CONTEXT_H
#define ZERO_CONTEXT_H

#include "comm/comm.h"
#include "zero.h"
#include "zero/device/device.h"
#include "zero/plan/plan.h"
#include "zero/runtime/streams.h"

/* ---- user block ---- */
/* Memory that the caller allocated from the engine (zero_alloc, zero_alloc_activations). Offload borrows activations
 * while they are idle. */

typedef struct zero_user_block {
    void *data;
    size_t n_bytes;
    bool always_in_use;
    zero_unit_t first, last; /* else: in use from first's acquire in forward to last's grad_ready in backward */
    struct zero_user_block *next;
} zero_user_block_t;

/* ---- context ---- */

/* Where the caller is in the declared order. pass.c and results.c advance it. */
typedef struct zero_progress {
    bool in_pass;
    zero_pass_t pass;
    int position;        /* of the unit that is acquired or comes next (order.h) */
    int micro_step;      /* of the current step, from 0; config.micro_steps: only zero_step may follow */
    uint64_t step;       /* zero_step calls so far */
    int64_t n_exchanges; /* zero_all_to_all calls so far */
    /* What the caller's function over reduced gradients returned first in this step: the step fails. */
    zero_status_t hook_failure;
} zero_progress_t;

struct zero_context {
    zero_comm_t *host_comm; /* the caller's */
    zero_comm_t *comm;      /* carries bulk data between devices: host_comm itself, or what joins GPUs */
    zero_device_t *device;  /* the caller's */
    uint32_t engine_number; /* among the engines over host_comm, in order of creation, from 0 */
    zero_model_t *model;    /* own copy */
    zero_config_t config;
    zero_layout_t layout;
    zero_arena_plan_t plan;

    zero_window_t window;        /* plan.window_bytes; peers read it */
    unsigned char *private_data; /* plan.private_bytes */
    zero_streams_t streams;
    zero_progress_t progress;
    /* Of the newest step, in device memory: NULL while no tensor has rules of its own (tensor_groups.h). */
    const zero_tensor_scalars_t *by_tensor;
    zero_memory_t memory; /* held now */
    zero_stats_t stats;
};

/* Joins the devices, copies the model and lays it out; host_comm, device and engine_number are set, the plan comes
 * next. After a failure zero_context_destroy frees what there is. [collective] */
zero_status_t zero_context_create(const zero_model_t *model, const zero_config_t *config, zero_context_t *context);
/* Allocates the window and the private memory as planned. [collective] */
zero_status_t zero_context_allocate(zero_context_t *context);
/* Frees all but host_comm and device. No stream may still use the memory. */
void zero_context_destroy(zero_context_t *context);

/* Returns ZERO_ERROR_ORDER inside a pass, or between the micro-steps of a step. call: named in the error line. */
zero_status_t zero_context_check_between_steps(const zero_context_t *context, const char *call);
/* Refuses a call that needs gradients or the optimizer's state if the engine has none. */
zero_status_t zero_context_check_trains(const zero_context_t *context, const char *call);

/* Tell the communicator which call this rank is in, so that ranks in different calls find out: a call about a unit,
 * zero_step, or a call that covers small collectives (comm.h) and ends in zero_comm_leave. */
void zero_context_enter_unit(zero_context_t *context, const char *call, zero_unit_t unit);
/* As the next one, for a call among the ranks of another communicator, which does not compare small collectives. */
void zero_context_enter_group(const zero_context_t *context, zero_comm_t *group, const char *call);
void zero_context_enter_step(zero_context_t *context, float lr);
void zero_context_enter(zero_context_t *context, const char *call);

#endif
