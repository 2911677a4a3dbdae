/* cudnn_graph.c - see cudnn_graph.h. */
#include "train/kernels/attention/cudnn/cudnn_graph.h"

#include <stdbool.h>
#include <stdio.h>

#include "base/log.h"

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

/* ---- plan ---- */

#define MAX_NOTES 16

static bool is_deterministic(zero_descriptor_t config, zero_descriptor_t engine)
{
    cudnnBackendNumericalNote_t notes[MAX_NOTES];
    int64_t n_notes = 0, n = 0;
    if (cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine) !=
            CUDNN_STATUS_SUCCESS ||
        cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, MAX_NOTES,
                                 &n_notes, notes) != CUDNN_STATUS_SUCCESS)
        return false;
    for (int64_t i = 0; i < n_notes; ++i)
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)
            return false;
    return true;
}

/* Makes config's plan. Returns false if cuDNN cannot, or if the plan needs more than `most_bytes`. */
static bool try_config(zero_cudnn_plan_t *plan, zero_descriptor_t config, size_t most_bytes)
{
    zero_cudnn_graph_t *g = &plan->graph;
    int64_t n = 0, bytes = 0;
    zero_descriptor_t execution_plan = zero_graph_create(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    zero_graph_set_descriptor(g, execution_plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    zero_graph_set(g, execution_plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->handle);
    zero_graph_finalize(g, execution_plan);
    if (g->status == CUDNN_STATUS_SUCCESS)
        g->status = cudnnBackendGetAttribute(execution_plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
                                             1, &n, &bytes);
    bool made = g->status == CUDNN_STATUS_SUCCESS, usable = made && (size_t)bytes <= most_bytes;
    if (!made)
        plan->config_status = g->status;
    else if (!usable && (plan->least_wanted == 0 || (size_t)bytes < plan->least_wanted))
        plan->least_wanted = (size_t)bytes;
    g->status = CUDNN_STATUS_SUCCESS; /* the next config may work */
    if (usable) {
        plan->execution_plan = execution_plan;
        plan->workspace_bytes = (size_t)bytes;
    }
    return usable;
}

#define MAX_CONFIGS 8

static bool choose_config(zero_cudnn_plan_t *plan, cudnnBackendHeurMode_t mode, zero_descriptor_t operation_graph,
                          size_t most_bytes)
{
    zero_cudnn_graph_t *g = &plan->graph;
    zero_descriptor_t configs[MAX_CONFIGS], heuristics = zero_graph_create(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    int64_t n_configs = 0;
    zero_graph_set_descriptor(g, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operation_graph);
    zero_graph_set(g, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    zero_graph_finalize(g, heuristics);
    for (size_t i = 0; i < MAX_CONFIGS; ++i)
        configs[i] = zero_graph_create(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    zero_descriptor_t engine = zero_graph_create(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    if (g->status == CUDNN_STATUS_SUCCESS)
        g->status = cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                             MAX_CONFIGS, &n_configs, configs);
    if (g->status != CUDNN_STATUS_SUCCESS)
        return false;
    for (int64_t i = 0; i < n_configs && i < MAX_CONFIGS; ++i)
        if (is_deterministic(configs[i], engine) && try_config(plan, configs[i], most_bytes))
            return true;
    return false;
}

/* Says why there is no plan. */
static void explain(const zero_cudnn_plan_t *plan, const char *pass, size_t most_bytes, char why[ZERO_MODEL_WHY])
{
    cudnnStatus_t status = plan->graph.status != CUDNN_STATUS_SUCCESS ? plan->graph.status : plan->config_status;
    char message[256] = "";
    if (plan->least_wanted > 0)
        snprintf(why, ZERO_MODEL_WHY,
                 "cuDNN %zu needs a workspace of %zu bytes for the %s pass, and %zu are planned: a smaller micro-batch "
                 "may help",
                 cudnnGetVersion(), plan->least_wanted, pass, most_bytes);
    else if (status == CUDNN_STATUS_SUCCESS)
        snprintf(why, ZERO_MODEL_WHY, "cuDNN %zu has no deterministic %s pass: another version may have one",
                 cudnnGetVersion(), pass);
    else {
        cudnnGetLastErrorString(message, sizeof message);
        for (char *c = message; *c != 0; ++c)
            *c = *c == '\n' ? ' ' : *c;
        snprintf(why, ZERO_MODEL_WHY, "cuDNN %zu cannot build the %s pass (%s: %s): another version may",
                 cudnnGetVersion(), pass, cudnnGetErrorString(status), message);
    }
}

bool zero_cudnn_plan_create(zero_cudnn_plan_t *plan, const char *pass, size_t most_bytes, char why[ZERO_MODEL_WHY])
{
    zero_cudnn_graph_t *g = &plan->graph;
    zero_descriptor_t operation_graph = zero_graph_create(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    zero_graph_set(g, operation_graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                   (int64_t)g->n_operations, g->operations);
    zero_graph_set(g, operation_graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->handle);
    zero_graph_finalize(g, operation_graph);
    if (g->status == CUDNN_STATUS_SUCCESS && choose_config(plan, CUDNN_HEUR_MODE_A, operation_graph, most_bytes))
        return true;
    explain(plan, pass, most_bytes, why);
    zero_graph_release(g);
    return false;
}

/* ---- Execution ---- */

zero_status_t zero_cudnn_check(cudnnStatus_t status, const char *what)
{
    if (status == CUDNN_STATUS_SUCCESS)
        return ZERO_OK;
    char message[256] = "";
    cudnnGetLastErrorString(message, sizeof message);
    return zero_fail(ZERO_ERROR_DEVICE, "%s: %s: %s", what, cudnnGetErrorString(status), message);
}

zero_status_t zero_cudnn_plan_execute(const zero_cudnn_plan_t *plan, const zero_bindings_t *b, void *workspace)
{
    zero_cudnn_graph_t pack = zero_graph_begin(plan->graph.handle, plan->graph.dtype);
    zero_descriptor_t variant = zero_graph_create(&pack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    zero_graph_set(&pack, variant, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, b->n, b->data);
    zero_graph_set(&pack, variant, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, b->n, b->ids);
    zero_graph_set(&pack, variant, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    zero_graph_finalize(&pack, variant);
    if (pack.status == CUDNN_STATUS_SUCCESS)
        pack.status = cudnnBackendExecute(pack.handle, plan->execution_plan, variant);
    zero_status_t status = zero_cudnn_check(pack.status, "attention by cuDNN");
    zero_graph_release(&pack);
    return status;
}
