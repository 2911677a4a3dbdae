/* graph.c - see graph.h. */
#include "kernels/model/cuda/cudnn/graph.h"

#include <stdbool.h>

zero_cudnn_graph_t zero_graph_begin(cudnnHandle_t handle, cudnnDataType_t dtype)
{
    return (zero_cudnn_graph_t){.handle = handle, .dtype = dtype, .next_virtual = ZERO_CUDNN_FIRST_VIRTUAL};
}

zero_descriptor_t zero_graph_create(zero_cudnn_graph_t *g, cudnnBackendDescriptorType_t type)
{
    zero_descriptor_t descriptor = NULL;
    if (g->status != CUDNN_STATUS_SUCCESS)
        return NULL;
    if (g->n_owned == ZERO_CUDNN_MAX_DESCRIPTORS) {
        g->status = CUDNN_STATUS_INTERNAL_ERROR;
        return NULL;
    }
    g->status = cudnnBackendCreateDescriptor(type, &descriptor);
    if (g->status == CUDNN_STATUS_SUCCESS)
        g->owned[g->n_owned++] = descriptor;
    return descriptor;
}

void zero_graph_set(zero_cudnn_graph_t *g, zero_descriptor_t descriptor, cudnnBackendAttributeName_t name,
                    cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    if (g->status == CUDNN_STATUS_SUCCESS)
        g->status = cudnnBackendSetAttribute(descriptor, name, type, count, values);
}

void zero_graph_set_descriptor(zero_cudnn_graph_t *g, zero_descriptor_t descriptor, cudnnBackendAttributeName_t name,
                               zero_descriptor_t value)
{
    zero_graph_set(g, descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

void zero_graph_finalize(zero_cudnn_graph_t *g, zero_descriptor_t descriptor)
{
    if (g->status == CUDNN_STATUS_SUCCESS)
        g->status = cudnnBackendFinalize(descriptor);
}

void zero_graph_release(zero_cudnn_graph_t *g)
{
    while (g->n_owned > 0)
        cudnnBackendDestroyDescriptor(g->owned[--g->n_owned]);
}

/* ---- Tensors ---- */

typedef enum placement { IN_MEMORY, BETWEEN_OPERATIONS, BY_VALUE } placement_t;

static zero_descriptor_t tensor(zero_cudnn_graph_t *g, int64_t id, cudnnDataType_t dtype, zero_graph_extents_t e,
                                placement_t placement)
{
    static const bool yes = true;
    int64_t alignment = 16;
    zero_descriptor_t t = zero_graph_create(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    zero_graph_set(g, t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &dtype);
    zero_graph_set(g, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, e.dims);
    zero_graph_set(g, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, e.strides);
    zero_graph_set(g, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    zero_graph_set(g, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    if (placement == BETWEEN_OPERATIONS)
        zero_graph_set(g, t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes);
    if (placement == BY_VALUE)
        zero_graph_set(g, t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes);
    zero_graph_finalize(g, t);
    return t;
}

zero_descriptor_t zero_graph_stored(zero_cudnn_graph_t *g, int64_t id, zero_graph_extents_t e)
{
    return tensor(g, id, g->dtype, e, IN_MEMORY);
}
zero_descriptor_t zero_graph_stored_fp32(zero_cudnn_graph_t *g, int64_t id, zero_graph_extents_t e)
{
    return tensor(g, id, CUDNN_DATA_FLOAT, e, IN_MEMORY);
}
zero_descriptor_t zero_graph_between(zero_cudnn_graph_t *g, cudnnDataType_t dtype, zero_graph_extents_t e)
{
    return tensor(g, g->next_virtual++, dtype, e, BETWEEN_OPERATIONS);
}
zero_descriptor_t zero_graph_scalar(zero_cudnn_graph_t *g, int64_t id)
{
    return tensor(g, id, CUDNN_DATA_FLOAT, zero_extents_dense(1, 1, 1, 1), BY_VALUE);
}

/* ---- Operations ---- */

static void add_operation(zero_cudnn_graph_t *g, zero_descriptor_t operation)
{
    zero_graph_finalize(g, operation);
    if (g->status == CUDNN_STATUS_SUCCESS && g->n_operations == ZERO_CUDNN_MAX_OPERATIONS)
        g->status = CUDNN_STATUS_INTERNAL_ERROR;
    if (g->status == CUDNN_STATUS_SUCCESS)
        g->operations[g->n_operations++] = operation;
}

void zero_graph_matmul(zero_cudnn_graph_t *g, zero_descriptor_t a, zero_descriptor_t b, zero_descriptor_t c)
{
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    zero_descriptor_t kind = zero_graph_create(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    zero_graph_set(g, kind, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    zero_graph_finalize(g, kind);
    zero_descriptor_t operation = zero_graph_create(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    zero_graph_set_descriptor(g, operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    zero_graph_set_descriptor(g, operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    zero_graph_set_descriptor(g, operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    zero_graph_set_descriptor(g, operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, kind);
    add_operation(g, operation);
}

void zero_graph_pointwise(zero_cudnn_graph_t *g, cudnnPointwiseMode_t mode, cudnnDataType_t compute, int64_t axis,
                          zero_descriptor_t y, zero_descriptor_t x, zero_descriptor_t b, zero_descriptor_t t)
{
    zero_descriptor_t kind = zero_graph_create(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    zero_graph_set(g, kind, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    zero_graph_set(g, kind, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    if (axis >= 0)
        zero_graph_set(g, kind, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    zero_graph_finalize(g, kind);
    zero_descriptor_t operation = zero_graph_create(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    zero_graph_set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kind);
    zero_graph_set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    zero_graph_set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    if (b != NULL)
        zero_graph_set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    if (t != NULL)
        zero_graph_set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    add_operation(g, operation);
}

zero_descriptor_t zero_graph_computed(zero_cudnn_graph_t *g, cudnnPointwiseMode_t mode, zero_graph_extents_t e,
                                      zero_descriptor_t x, zero_descriptor_t b)
{
    zero_descriptor_t y = zero_graph_between(g, CUDNN_DATA_FLOAT, e);
    zero_graph_pointwise(g, mode, CUDNN_DATA_FLOAT, -1, y, x, b, NULL);
    return y;
}

void zero_graph_reduce(zero_cudnn_graph_t *g, cudnnReduceTensorOp_t mode, zero_descriptor_t y, zero_descriptor_t x)
{
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    zero_descriptor_t kind = zero_graph_create(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    zero_graph_set(g, kind, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode);
    zero_graph_set(g, kind, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    zero_graph_finalize(g, kind);
    zero_descriptor_t operation = zero_graph_create(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    zero_graph_set_descriptor(g, operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, kind);
    zero_graph_set_descriptor(g, operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    zero_graph_set_descriptor(g, operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    add_operation(g, operation);
}

zero_descriptor_t zero_graph_reshaped(zero_cudnn_graph_t *g, zero_descriptor_t x, zero_graph_extents_t e)
{
    zero_descriptor_t y = zero_graph_between(g, g->dtype, e);
    zero_descriptor_t operation = zero_graph_create(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    zero_graph_set_descriptor(g, operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    zero_graph_set_descriptor(g, operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    add_operation(g, operation);
    return y;
}
