/* cudnn_graph.h - describes a computation to cuDNN's backend API as a graph of operations on tensors.
 *
 * After the first failure every call does nothing and `status` keeps it, so that the code of a graph reads like its
 * formulas.
 */
#ifndef ZERO_CUDNN_GRAPH_H
#define ZERO_CUDNN_GRAPH_H

#include <cudnn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "train/kernels/kernels.h"

#define ZERO_CUDNN_MAX_DESCRIPTORS 96
#define ZERO_CUDNN_MAX_OPERATIONS 32
#define ZERO_CUDNN_FIRST_VIRTUAL 100 /* ids of tensors in memory are below, those between operations from here on */

typedef cudnnBackendDescriptor_t zero_descriptor_t;

typedef struct zero_cudnn_graph {
    cudnnHandle_t handle;
    cudnnStatus_t status;
    cudnnDataType_t dtype; /* of tensors in memory, unless given */
    int64_t next_virtual;
    size_t n_owned, n_operations;
    zero_descriptor_t owned[ZERO_CUDNN_MAX_DESCRIPTORS];
    zero_descriptor_t operations[ZERO_CUDNN_MAX_OPERATIONS];
} zero_cudnn_graph_t;

zero_cudnn_graph_t zero_graph_begin(cudnnHandle_t handle, cudnnDataType_t dtype);
void zero_graph_release(zero_cudnn_graph_t *g); /* destroys what the graph owns */

/* Creates a descriptor, which the graph owns. */
zero_descriptor_t zero_graph_create(zero_cudnn_graph_t *g, cudnnBackendDescriptorType_t type);
void zero_graph_set(zero_cudnn_graph_t *g, zero_descriptor_t descriptor, cudnnBackendAttributeName_t name,
                    cudnnBackendAttributeType_t type, int64_t count, const void *values);
void zero_graph_set_descriptor(zero_cudnn_graph_t *g, zero_descriptor_t descriptor, cudnnBackendAttributeName_t name,
                               zero_descriptor_t value);
void zero_graph_finalize(zero_cudnn_graph_t *g, zero_descriptor_t descriptor);

/* ---- Tensors: [batch, heads, rows, columns] ---- */

typedef struct zero_graph_extents {
    int64_t dims[4], strides[4];
} zero_graph_extents_t;

static inline zero_graph_extents_t zero_extents_dense(int64_t b, int64_t h, int64_t rows, int64_t columns)
{
    return (zero_graph_extents_t){{b, h, rows, columns}, {h * rows * columns, rows * columns, columns, 1}};
}

static inline zero_graph_extents_t zero_extents_transposed(zero_graph_extents_t e)
{
    return (zero_graph_extents_t){{e.dims[0], e.dims[1], e.dims[3], e.dims[2]},
                                  {e.strides[0], e.strides[1], e.strides[3], e.strides[2]}};
}

/* A tensor in memory: of the graph's dtype, or in fp32. */
zero_descriptor_t zero_graph_stored(zero_cudnn_graph_t *g, int64_t id, zero_graph_extents_t e);
zero_descriptor_t zero_graph_stored_fp32(zero_cudnn_graph_t *g, int64_t id, zero_graph_extents_t e);
/* A tensor between operations. */
zero_descriptor_t zero_graph_between(zero_cudnn_graph_t *g, cudnnDataType_t dtype, zero_graph_extents_t e);
/* An fp32 number in host memory. */
zero_descriptor_t zero_graph_scalar(zero_cudnn_graph_t *g, int64_t id);

/* ---- Operations, in fp32 ---- */

/* Adds c = a b. */
void zero_graph_matmul(zero_cudnn_graph_t *g, zero_descriptor_t a, zero_descriptor_t b, zero_descriptor_t c);
/* Adds y = mode(x, b, t); b and t are NULL if the mode has fewer operands. axis: of an index, else below 0. */
void zero_graph_pointwise(zero_cudnn_graph_t *g, cudnnPointwiseMode_t mode, cudnnDataType_t compute, int64_t axis,
                          zero_descriptor_t y, zero_descriptor_t x, zero_descriptor_t b, zero_descriptor_t t);
/* Adds mode(x, b) in fp32 and returns it, a tensor between operations. */
zero_descriptor_t zero_graph_computed(zero_cudnn_graph_t *g, cudnnPointwiseMode_t mode, zero_graph_extents_t e,
                                      zero_descriptor_t x, zero_descriptor_t b);
/* Adds y = the sum or maximum of x over the dimensions in which y has size 1. */
void zero_graph_reduce(zero_cudnn_graph_t *g, cudnnReduceTensorOp_t mode, zero_descriptor_t y, zero_descriptor_t x);
/* Returns x with other extents. */
zero_descriptor_t zero_graph_reshaped(zero_cudnn_graph_t *g, zero_descriptor_t x, zero_graph_extents_t e);

/* ---- plan ---- */
/* A cuDNN plan for a graph: deterministic, within a limit of workspace; and its execution.
 *
 * A plan that cuDNN calls nondeterministic, or that needs more workspace than there is, is not used. */

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
