/* plan.h - a cuDNN plan for a graph: deterministic, within a limit of workspace; and its execution.
 *
 * A plan that cuDNN calls nondeterministic, or that needs more workspace than there is, is not used.
 */
#ifndef ZERO_CUDNN_PLAN_H
#define ZERO_CUDNN_PLAN_H

#include <stdbool.h>

#include "kernels/model/cuda/cudnn/graph.h"
#include "kernels/model/model.h"

typedef struct zero_cudnn_plan {
    zero_cudnn_graph_t graph; /* owns what execution_plan refers to */
    zero_descriptor_t execution_plan;
    size_t workspace_bytes;
    /* Of configs that are not used: */
    size_t least_wanted;         /* the least workspace that was too much; 0: none wanted too much */
    cudnnStatus_t config_status; /* of the last one that cuDNN could not make a plan for */
} zero_cudnn_plan_t;

/* Makes the plan of plan->graph, whose operations have been added. If there is none, returns false, with the reason in
 * `why`, and releases the graph. pass: a word for the reason, such as "forward". */
bool zero_cudnn_plan_create(zero_cudnn_plan_t *plan, const char *pass, size_t most_bytes, char why[ZERO_MODEL_WHY]);

/* Addresses of a run's tensors, by their ids in the graph. Scalars are in host memory. */
typedef struct zero_bindings {
    int64_t ids[16];
    void *data[16];
    int64_t n;
} zero_bindings_t;

static inline void zero_bind(zero_bindings_t *b, int64_t id, const void *data)
{
    b->ids[b->n] = id;
    b->data[b->n++] = (void *)data;
}

/* Queues the plan in the handle's stream. */
zero_status_t zero_cudnn_plan_execute(const zero_cudnn_plan_t *plan, const zero_bindings_t *b, void *workspace);

/* Turns a status of cuDNN's into one of ours, with an error line that begins with `what`. */
zero_status_t zero_cudnn_check(cudnnStatus_t status, const char *what);

#endif
