/* attention_cudnn.c - causal self-attention by cuDNN's fused kernels, through its backend API in C.
 *
 * We describe attention to cuDNN as a graph of operations on tensors; cuDNN recognizes it and returns a plan.
 * Forward:   S = scale Q K^T, masked;  P = softmax S, with logsumexp;  O = P V
 * Backward:  P = e^(scale Q K^T - logsumexp), masked;  dV = P^T dO;  dS = scale P (dO V^T - rowsum(dO O));
 *            dK = dS^T Q;  dQ = dS K                            (as in FlashAttention-2, Dao 2023, arXiv:2307.08691)
 * Shared key/value heads: K and V have fewer heads, dK and dV are reduced over the query heads of each.
 *
 * cuDNN's deterministic backward writes dS to memory, 16 bits for each pair of query and key. To bound that, backward
 * runs on a slice of the sequences and heads at a time, each with its own dQ, dK and dV.
 *
 * Plans are kept per shape. A plan that cuDNN calls nondeterministic, or that needs more workspace than there is, is
 * not used. If a shape has no plan for one of the passes, attention.cu computes both, and the reason is kept.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <cudnn.h>

#include "kernels/model/cuda/attention_cudnn.h"

/* ---- Building graphs ---- */

#define MAX_DESCRIPTORS 96
#define MAX_OPERATIONS 32

typedef cudnnBackendDescriptor_t descriptor_t;

/* Ids of the tensors in memory. Those between operations are numbered from FIRST_VIRTUAL on. */
enum { ID_Q = 1, ID_K, ID_V, ID_OUT, ID_LSE, ID_DOUT, ID_DQ, ID_DK, ID_DV, ID_DELTA, ID_SCALE, ID_MINUS_INF, ID_ONE };
#define FIRST_VIRTUAL 100

/* After the first failure every call does nothing, so that the code of a graph reads like its formulas. */
typedef struct graph {
    cudnnHandle_t handle;
    cudnnStatus_t status;
    cudnnDataType_t dtype; /* of q, k, v and the like */
    int64_t next_virtual;
    size_t n_owned, n_operations;
    descriptor_t owned[MAX_DESCRIPTORS];
    descriptor_t operations[MAX_OPERATIONS];
} graph_t;

static descriptor_t create(graph_t *g, cudnnBackendDescriptorType_t type)
{
    descriptor_t descriptor = NULL;
    if (g->status != CUDNN_STATUS_SUCCESS)
        return NULL;
    if (g->n_owned == MAX_DESCRIPTORS) {
        g->status = CUDNN_STATUS_INTERNAL_ERROR;
        return NULL;
    }
    g->status = cudnnBackendCreateDescriptor(type, &descriptor);
    if (g->status == CUDNN_STATUS_SUCCESS)
        g->owned[g->n_owned++] = descriptor;
    return descriptor;
}

static void set(graph_t *g, descriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                int64_t count, const void *values)
{
    if (g->status == CUDNN_STATUS_SUCCESS)
        g->status = cudnnBackendSetAttribute(descriptor, name, type, count, values);
}

static void set_descriptor(graph_t *g, descriptor_t descriptor, cudnnBackendAttributeName_t name, descriptor_t value)
{
    set(g, descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void finalize(graph_t *g, descriptor_t descriptor)
{
    if (g->status == CUDNN_STATUS_SUCCESS)
        g->status = cudnnBackendFinalize(descriptor);
}

static void graph_release(graph_t *g)
{
    while (g->n_owned > 0)
        cudnnBackendDestroyDescriptor(g->owned[--g->n_owned]);
}

/* ---- Tensors: [batch, heads, rows, columns] ---- */

typedef struct extents {
    int64_t dims[4], strides[4];
} extents_t;

static extents_t dense(int64_t b, int64_t h, int64_t rows, int64_t columns)
{
    return (extents_t){{b, h, rows, columns}, {h * rows * columns, rows * columns, columns, 1}};
}

static extents_t transposed(extents_t e)
{
    return (extents_t){{e.dims[0], e.dims[1], e.dims[3], e.dims[2]},
                       {e.strides[0], e.strides[1], e.strides[3], e.strides[2]}};
}

typedef enum placement { IN_MEMORY, BETWEEN_OPERATIONS, BY_VALUE } placement_t;

static descriptor_t tensor(graph_t *g, int64_t id, cudnnDataType_t dtype, extents_t e, placement_t placement)
{
    static const bool yes = true;
    int64_t alignment = 16;
    descriptor_t t = create(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set(g, t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &dtype);
    set(g, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, e.dims);
    set(g, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, e.strides);
    set(g, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set(g, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    if (placement == BETWEEN_OPERATIONS)
        set(g, t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes);
    if (placement == BY_VALUE)
        set(g, t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes);
    finalize(g, t);
    return t;
}

static descriptor_t stored(graph_t *g, int64_t id, extents_t e)
{
    return tensor(g, id, g->dtype, e, IN_MEMORY);
}
static descriptor_t between_of(graph_t *g, cudnnDataType_t dtype, extents_t e)
{
    return tensor(g, g->next_virtual++, dtype, e, BETWEEN_OPERATIONS);
}
static descriptor_t between(graph_t *g, extents_t e)
{
    return between_of(g, CUDNN_DATA_FLOAT, e);
}
static descriptor_t scalar(graph_t *g, int64_t id)
{
    return tensor(g, id, CUDNN_DATA_FLOAT, dense(1, 1, 1, 1), BY_VALUE);
}

/* ---- Operations ---- */

static void add_operation(graph_t *g, descriptor_t operation)
{
    finalize(g, operation);
    if (g->status == CUDNN_STATUS_SUCCESS && g->n_operations == MAX_OPERATIONS)
        g->status = CUDNN_STATUS_INTERNAL_ERROR;
    if (g->status == CUDNN_STATUS_SUCCESS)
        g->operations[g->n_operations++] = operation;
}

/* Adds c = a b. */
static void matmul(graph_t *g, descriptor_t a, descriptor_t b, descriptor_t c)
{
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    descriptor_t kind = create(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set(g, kind, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    finalize(g, kind);
    descriptor_t operation = create(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, kind);
    add_operation(g, operation);
}

/* Adds y = mode(x, b, t); b and t are NULL if the mode has fewer operands. axis: of an index, else below 0. */
static void pointwise(graph_t *g, cudnnPointwiseMode_t mode, cudnnDataType_t compute, int64_t axis, descriptor_t y,
                      descriptor_t x, descriptor_t b, descriptor_t t)
{
    descriptor_t kind = create(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(g, kind, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set(g, kind, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    if (axis >= 0)
        set(g, kind, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    finalize(g, kind);
    descriptor_t operation = create(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kind);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    if (b != NULL)
        set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    if (t != NULL)
        set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    add_operation(g, operation);
}

/* Adds mode(x, b) in fp32 and returns it, a tensor between operations. */
static descriptor_t computed(graph_t *g, cudnnPointwiseMode_t mode, extents_t e, descriptor_t x, descriptor_t b)
{
    descriptor_t y = between(g, e);
    pointwise(g, mode, CUDNN_DATA_FLOAT, -1, y, x, b, NULL);
    return y;
}

static void reduce(graph_t *g, cudnnReduceTensorOp_t mode, descriptor_t y, descriptor_t x)
{
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    descriptor_t kind = create(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set(g, kind, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode);
    set(g, kind, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    finalize(g, kind);
    descriptor_t operation = create(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, kind);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    add_operation(g, operation);
}

/* Returns x with other extents. */
static descriptor_t reshaped(graph_t *g, descriptor_t x, extents_t e)
{
    descriptor_t y = between_of(g, g->dtype, e);
    descriptor_t operation = create(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_descriptor(g, operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    add_operation(g, operation);
    return y;
}

/* ---- Attention ---- */

/* The sequences and heads that run at a time, out of a shape's; strides are those of the whole shape. */
typedef struct slice {
    size_t n_batch, n_heads, n_kv_heads;
} slice_t;

/* Extents and strides of a slice's tensors, which are laid out as in model.h. */
typedef struct layouts {
    extents_t q, k, v, out, scores, row; /* row: one number per query */
} layouts_t;

static layouts_t layouts_of(const zero_attention_shape_t *s, slice_t slice)
{
    int64_t b = (int64_t)slice.n_batch, h = (int64_t)slice.n_heads, kv = (int64_t)slice.n_kv_heads;
    int64_t t = (int64_t)s->seq_len, d = (int64_t)s->head_dim, every_head = (int64_t)s->n_heads;
    int64_t width = (every_head + 2 * (int64_t)s->n_kv_heads) * d;
    extents_t q = {{b, h, t, d}, {t * width, d, width, 1}}, k = {{b, kv, t, d}, {t * width, d, width, 1}};
    return (layouts_t){.q = q,
                       .k = k,
                       .v = k,
                       .out = {{b, h, t, d}, {t * every_head * d, d, every_head * d, 1}},
                       .scores = dense(b, h, t, t),
                       .row = {{b, h, t, 1}, {every_head * t, t, 1, 1}}};
}

/* Returns scale q k^T, minus `row` if it is not NULL, with -infinity for keys that come after the query. */
static descriptor_t masked_scores(graph_t *g, const layouts_t *l, descriptor_t q, descriptor_t k, descriptor_t row)
{
    descriptor_t products = between(g, l->scores);
    matmul(g, q, k, products);
    descriptor_t scores = computed(g, CUDNN_POINTWISE_MUL, l->scores, products, scalar(g, ID_SCALE));
    if (row != NULL)
        scores = computed(g, CUDNN_POINTWISE_SUB, l->scores, scores, row);
    descriptor_t query = between_of(g, CUDNN_DATA_INT32, l->scores), key = between_of(g, CUDNN_DATA_INT32, l->scores);
    descriptor_t seen = between_of(g, CUDNN_DATA_BOOLEAN, l->scores), masked = between(g, l->scores);
    pointwise(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, 2, query, scores, NULL, NULL);
    pointwise(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, 3, key, scores, NULL, NULL);
    pointwise(g, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, -1, seen, query, key, NULL);
    pointwise(g, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, -1, masked, scores, scalar(g, ID_MINUS_INF), seen);
    return masked;
}

static void forward_graph(graph_t *g, const zero_attention_shape_t *s, slice_t slice)
{
    layouts_t l = layouts_of(s, slice);
    descriptor_t q = stored(g, ID_Q, l.q), k = stored(g, ID_K, transposed(l.k)), v = stored(g, ID_V, l.v);
    descriptor_t scores = masked_scores(g, &l, q, k, NULL);
    descriptor_t max = between(g, l.row), sum = between(g, l.row), probs = between_of(g, g->dtype, l.scores);
    descriptor_t lse = tensor(g, ID_LSE, CUDNN_DATA_FLOAT, l.row, IN_MEMORY);
    reduce(g, CUDNN_REDUCE_TENSOR_MAX, max, scores);
    descriptor_t shifted = computed(g, CUDNN_POINTWISE_SUB, l.scores, scores, max);
    descriptor_t exponentials = computed(g, CUDNN_POINTWISE_EXP, l.scores, shifted, NULL);
    reduce(g, CUDNN_REDUCE_TENSOR_ADD, sum, exponentials);
    descriptor_t log_sum = computed(g, CUDNN_POINTWISE_LOG, l.row, sum, NULL);
    pointwise(g, CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, -1, lse, max, log_sum, NULL);
    pointwise(g, CUDNN_POINTWISE_DIV, CUDNN_DATA_FLOAT, -1, probs, exponentials, sum, NULL);
    matmul(g, probs, v, stored(g, ID_OUT, l.out));
}

/* Adds gradient = weights^T x, summed over the query heads that share a key/value head. */
static void key_gradient(graph_t *g, const layouts_t *l, slice_t slice, descriptor_t weights, descriptor_t x,
                         descriptor_t gradient)
{
    descriptor_t flipped = reshaped(g, weights, transposed(l->scores));
    if (slice.n_heads == slice.n_kv_heads) {
        matmul(g, flipped, x, gradient);
        return;
    }
    const int64_t *dims = l->q.dims;
    descriptor_t every_head = between_of(g, g->dtype, dense(dims[0], dims[1], dims[2], dims[3]));
    matmul(g, flipped, x, every_head);
    reduce(g, CUDNN_REDUCE_TENSOR_ADD, gradient, every_head);
}

static void backward_graph(graph_t *g, const zero_attention_shape_t *s, slice_t slice)
{
    layouts_t l = layouts_of(s, slice);
    descriptor_t q = stored(g, ID_Q, l.q), k = stored(g, ID_K, transposed(l.k));
    descriptor_t v = stored(g, ID_V, transposed(l.v)), out = stored(g, ID_OUT, l.out);
    descriptor_t dout = stored(g, ID_DOUT, l.out), lse = tensor(g, ID_LSE, CUDNN_DATA_FLOAT, l.row, IN_MEMORY);

    /* delta = rowsum(dO O). cuDNN wants it in memory, and multiplied by something. */
    descriptor_t products = between(g, dense(l.out.dims[0], l.out.dims[1], l.out.dims[2], l.out.dims[3]));
    descriptor_t sums = between(g, l.row), delta = tensor(g, ID_DELTA, CUDNN_DATA_FLOAT, l.row, IN_MEMORY);
    pointwise(g, CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, -1, products, dout, out, NULL);
    reduce(g, CUDNN_REDUCE_TENSOR_ADD, sums, products);
    pointwise(g, CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, -1, delta, sums, scalar(g, ID_ONE), NULL);

    descriptor_t probs = computed(g, CUDNN_POINTWISE_EXP, l.scores, masked_scores(g, &l, q, k, lse), NULL);
    key_gradient(g, &l, slice, probs, dout, stored(g, ID_DV, l.v));

    descriptor_t dprobs = between(g, l.scores);
    matmul(g, dout, v, dprobs);
    descriptor_t centered = computed(g, CUDNN_POINTWISE_SUB, l.scores, dprobs, delta);
    descriptor_t unscaled = computed(g, CUDNN_POINTWISE_MUL, l.scores, centered, probs);
    descriptor_t dscores = computed(g, CUDNN_POINTWISE_MUL, l.scores, unscaled, scalar(g, ID_SCALE));
    key_gradient(g, &l, slice, dscores, q, stored(g, ID_DK, l.k));
    matmul(g, dscores, reshaped(g, k, l.k), stored(g, ID_DQ, l.q));
}

/* ---- Plans ---- */

typedef struct plan {
    graph_t graph; /* owns what execution_plan refers to */
    descriptor_t execution_plan;
    size_t workspace_bytes;
    /* Of configs that are not used: */
    size_t least_wanted;         /* the least workspace that was too much; 0: none wanted too much */
    cudnnStatus_t config_status; /* of the last one that cuDNN could not make a plan for */
} plan_t;

#define MAX_NOTES 16

static bool is_deterministic(descriptor_t config, descriptor_t engine)
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
static bool try_config(plan_t *plan, descriptor_t config, size_t most_bytes)
{
    graph_t *g = &plan->graph;
    int64_t n = 0, bytes = 0;
    descriptor_t execution_plan = create(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set_descriptor(g, execution_plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    set(g, execution_plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->handle);
    finalize(g, execution_plan);
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

static bool choose_config(plan_t *plan, cudnnBackendHeurMode_t mode, descriptor_t operation_graph, size_t most_bytes)
{
    graph_t *g = &plan->graph;
    descriptor_t configs[MAX_CONFIGS], heuristics = create(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    int64_t n_configs = 0;
    set_descriptor(g, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operation_graph);
    set(g, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finalize(g, heuristics);
    for (size_t i = 0; i < MAX_CONFIGS; ++i)
        configs[i] = create(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    descriptor_t engine = create(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
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
static void explain(const plan_t *plan, const char *pass, size_t most_bytes, char why[ZERO_MODEL_WHY])
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

typedef void (*graph_fn)(graph_t *g, const zero_attention_shape_t *s, slice_t slice);

/* One of the two passes, for which plans are made. */
typedef struct pass {
    const char *name;
    graph_fn build;
} pass_t;
static const pass_t FORWARD = {"forward", forward_graph}, BACKWARD = {"backward", backward_graph};

static bool plan_create(plan_t *plan, cudnnHandle_t handle, zero_dtype_t dtype, pass_t pass,
                        const zero_attention_shape_t *shape, slice_t slice, size_t most_bytes, char why[ZERO_MODEL_WHY])
{
    graph_t *g = &plan->graph;
    *g = (graph_t){.handle = handle,
                   .dtype = dtype == ZERO_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF,
                   .next_virtual = FIRST_VIRTUAL};
    pass.build(g, shape, slice);
    descriptor_t operation_graph = create(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(g, operation_graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, (int64_t)g->n_operations,
        g->operations);
    set(g, operation_graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    finalize(g, operation_graph);
    if (g->status == CUDNN_STATUS_SUCCESS && choose_config(plan, CUDNN_HEUR_MODE_A, operation_graph, most_bytes))
        return true;
    explain(plan, pass.name, most_bytes, why);
    zero_log(ZERO_LOG_DEBUG, "no plan for attention of %zu heads of %zu at %zu positions: %s", shape->n_heads,
             shape->head_dim, shape->seq_len, why);
    graph_release(g);
    return false;
}

/* ---- What the table uses ---- */

#define MAX_SHAPES 16

typedef struct shape_plans {
    zero_attention_shape_t shape;
    bool served;
    char why[ZERO_MODEL_WHY]; /* if it is not served */
    slice_t slice;            /* of backward; forward runs on the whole shape */
    plan_t forward, backward;
} shape_plans_t;

struct zero_cudnn {
    cudnnHandle_t handle;
    size_t n_shapes;
    shape_plans_t shapes[MAX_SHAPES];
};

static zero_status_t check(cudnnStatus_t status, const char *what)
{
    if (status == CUDNN_STATUS_SUCCESS)
        return ZERO_OK;
    char message[256] = "";
    cudnnGetLastErrorString(message, sizeof message);
    return zero_fail(ZERO_ERROR_DEVICE, "%s: %s: %s", what, cudnnGetErrorString(status), message);
}

zero_status_t zero_cudnn_create(zero_model_context_t *ctx, zero_cudnn_t **cudnn)
{
    zero_cudnn_t *created = calloc(1, sizeof *created);
    if (created == NULL)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for cuDNN's plans");
    zero_status_t status = check(cudnnCreate(&created->handle), "cudnnCreate");
    if (status == ZERO_OK)
        status = check(cudnnSetStream(created->handle, zero_model_stream(ctx)), "cudnnSetStream");
    if (status != ZERO_OK) {
        zero_cudnn_destroy(created);
        return status;
    }
    *cudnn = created;
    return ZERO_OK;
}

void zero_cudnn_destroy(zero_cudnn_t *cudnn)
{
    if (cudnn == NULL)
        return;
    for (size_t i = 0; i < cudnn->n_shapes; ++i) {
        graph_release(&cudnn->shapes[i].forward.graph);
        graph_release(&cudnn->shapes[i].backward.graph);
    }
    if (cudnn->handle != NULL)
        cudnnDestroy(cudnn->handle);
    free(cudnn);
}

/* The most that dS of a slice takes, and what cuDNN needs beside dS and delta. Fewer slices are faster: 16 x 1024 of
 * GPT-2 1558M take 0.61 ms at once, 0.65 ms in two slices, 0.74 ms in four. */
#define SLICE_MAX_BYTES ((size_t)800 << 20)
#define OWN_BYTES ((size_t)16 << 20)

static size_t delta_bytes(const zero_attention_shape_t *s)
{
    return zero_scratch_bytes(s->n_batch * s->n_heads * s->seq_len * sizeof(float));
}

static size_t slice_bytes(const zero_attention_shape_t *s, slice_t slice)
{
    return slice.n_batch * slice.n_heads * s->seq_len * s->seq_len * sizeof(uint16_t);
}

/* Returns the largest divisor of n that is at most `most`, and at least 1. */
static size_t divisor_up_to(size_t n, size_t most)
{
    size_t divisor = most < n ? most : n;
    while (divisor > 1 && n % divisor != 0)
        --divisor;
    return divisor > 0 ? divisor : 1;
}

/* Returns the largest slice that fits: whole sequences, or else some key/value heads of one, each with its query heads.
 * All slices are equal, so that one plan serves them all. */
static slice_t slice_of(const zero_attention_shape_t *s)
{
    slice_t one = {1, s->n_heads, s->n_kv_heads};
    size_t sequence = slice_bytes(s, one);
    if (sequence <= SLICE_MAX_BYTES) {
        one.n_batch = divisor_up_to(s->n_batch, SLICE_MAX_BYTES / sequence);
        return one;
    }
    one.n_kv_heads = divisor_up_to(s->n_kv_heads, SLICE_MAX_BYTES / (sequence / s->n_kv_heads));
    one.n_heads = s->n_heads / s->n_kv_heads * one.n_kv_heads;
    return one;
}

/* The limits do not say whether key/value heads are shared. Sharing makes no slice larger, unless one group of heads
 * alone exceeds the bound; then attention.cu computes that shape. */
size_t zero_cudnn_workspace(const zero_model_limits_t *limits)
{
    zero_attention_shape_t s = {.n_batch = limits->n_rows / limits->seq_len,
                                .seq_len = limits->seq_len,
                                .n_heads = limits->n_heads,
                                .n_kv_heads = limits->n_heads,
                                .head_dim = limits->head_dim};
    if (!zero_cudnn_may_serve(limits->dtype, &s, NULL))
        return 0;
    slice_t whole = {s.n_batch, s.n_heads, s.n_kv_heads};
    size_t scores = slice_bytes(&s, slice_of(&s)), most = slice_bytes(&s, whole);
    most = most < SLICE_MAX_BYTES ? most : SLICE_MAX_BYTES;
    return delta_bytes(&s) + OWN_BYTES + (scores > most ? scores : most);
}

static void build_plans(zero_model_context_t *ctx, shape_plans_t *plans)
{
    const zero_model_cuda_t *cuda = zero_model_cuda(ctx);
    const zero_attention_shape_t *s = &plans->shape;
    slice_t whole = {s->n_batch, s->n_heads, s->n_kv_heads};
    size_t bytes = zero_cuda_scratch(ctx).bytes_left, delta = delta_bytes(s);
    plans->slice = slice_of(s);
    if (delta > bytes) {
        snprintf(plans->why, sizeof plans->why, "the workspace of %zu bytes is for smaller sizes", bytes);
        return;
    }
    if (!plan_create(&plans->forward, cuda->cudnn->handle, cuda->dtype, FORWARD, s, whole, bytes, plans->why))
        return;
    plans->served = plan_create(&plans->backward, cuda->cudnn->handle, cuda->dtype, BACKWARD, s, plans->slice,
                                bytes - delta, plans->why);
    if (!plans->served)
        graph_release(&plans->forward.graph);
    zero_log(ZERO_LOG_DEBUG, "cuDNN attention: %s, workspace %zu and %zu bytes for slices of %zu x %zu",
             plans->served ? "served" : "not served", plans->forward.workspace_bytes, plans->backward.workspace_bytes,
             plans->slice.n_batch, plans->slice.n_heads);
}

/* Returns the plans of a shape, built on its first use. NULL if the table is full or cuDNN does not take the shape. */
static shape_plans_t *find_plans(zero_model_context_t *ctx, const zero_attention_shape_t *shape)
{
    zero_cudnn_t *cudnn = zero_model_cuda(ctx)->cudnn;
    for (size_t i = 0; i < cudnn->n_shapes; ++i) {
        const zero_attention_shape_t *s = &cudnn->shapes[i].shape;
        if (s->n_batch == shape->n_batch && s->seq_len == shape->seq_len && s->n_heads == shape->n_heads &&
            s->n_kv_heads == shape->n_kv_heads && s->head_dim == shape->head_dim)
            return &cudnn->shapes[i];
    }
    if (cudnn->n_shapes == MAX_SHAPES || !zero_cudnn_may_serve(zero_model_cuda(ctx)->dtype, shape, NULL))
        return NULL;
    shape_plans_t *plans = &cudnn->shapes[cudnn->n_shapes++];
    plans->shape = *shape;
    build_plans(ctx, plans);
    return plans;
}

bool zero_cudnn_serves(zero_model_context_t *ctx, const zero_attention_shape_t *shape, char why[ZERO_MODEL_WHY])
{
    const shape_plans_t *plans = find_plans(ctx, shape);
    if (plans != NULL && plans->served)
        return true;
    if (why != NULL && plans != NULL)
        snprintf(why, ZERO_MODEL_WHY, "%s", plans->why);
    else if (why != NULL && zero_cudnn_may_serve(zero_model_cuda(ctx)->dtype, shape, why))
        snprintf(why, ZERO_MODEL_WHY, "cuDNN's plans are kept for %d shapes, and this run has had as many", MAX_SHAPES);
    return false;
}

/* The addresses of a run's tensors, by their ids in the graph. Scalars are in host memory. */
typedef struct bindings {
    int64_t ids[16];
    void *data[16];
    int64_t n;
} bindings_t;

static void bind(bindings_t *b, int64_t id, const void *data)
{
    b->ids[b->n] = id;
    b->data[b->n++] = (void *)data;
}

static zero_status_t execute(const plan_t *plan, bindings_t *b, void *workspace)
{
    graph_t pack = {.handle = plan->graph.handle};
    descriptor_t variant = create(&pack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    set(&pack, variant, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, b->n, b->data);
    set(&pack, variant, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, b->n, b->ids);
    set(&pack, variant, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    finalize(&pack, variant);
    if (pack.status == CUDNN_STATUS_SUCCESS)
        pack.status = cudnnBackendExecute(pack.handle, plan->execution_plan, variant);
    zero_status_t status = check(pack.status, "attention by cuDNN");
    graph_release(&pack);
    return status;
}

/* Returns the address of element `index` of a tensor of the context's dtype. */
static void *element(const zero_model_context_t *ctx, const void *data, size_t index)
{
    return (char *)data + index * zero_dtype_size(zero_model_cuda(ctx)->dtype);
}

/* Binds q, k and v in qkv, or their gradients in dqkv, from query head `head` of sequence `batch` on. */
static void bind_qkv(const zero_model_context_t *ctx, bindings_t *b, const zero_attention_shape_t *s, int64_t first_id,
                     const void *qkv, size_t batch, size_t head)
{
    size_t start = batch * s->seq_len * (s->n_heads + 2 * s->n_kv_heads), kv = head / (s->n_heads / s->n_kv_heads);
    bind(b, first_id, element(ctx, qkv, (start + head) * s->head_dim));
    bind(b, first_id + 1, element(ctx, qkv, (start + s->n_heads + kv) * s->head_dim));
    bind(b, first_id + 2, element(ctx, qkv, (start + s->n_heads + s->n_kv_heads + kv) * s->head_dim));
}

zero_status_t zero_cudnn_attention(zero_model_context_t *ctx, const zero_attention_shape_t *s, void *out,
                                   float *logsumexp, const void *qkv)
{
    float scale = 1.0f / sqrtf((float)s->head_dim), minus_inf = -INFINITY;
    bindings_t b = {.n = 0};
    bind_qkv(ctx, &b, s, ID_Q, qkv, 0, 0);
    bind(&b, ID_OUT, out);
    bind(&b, ID_LSE, logsumexp);
    bind(&b, ID_SCALE, &scale);
    bind(&b, ID_MINUS_INF, &minus_inf);
    return execute(&find_plans(ctx, s)->forward, &b, zero_cuda_scratch(ctx).next);
}

/* The tensors of backward. */
typedef struct backward {
    void *dqkv;
    const void *dout, *qkv, *out;
    const float *logsumexp;
    float *delta;
    void *workspace;
} backward_t;

static zero_status_t backward_slice(zero_model_context_t *ctx, const plan_t *plan, const zero_attention_shape_t *s,
                                    const backward_t *t, size_t batch, size_t head)
{
    float scale = 1.0f / sqrtf((float)s->head_dim), minus_inf = -INFINITY, one = 1.0f;
    size_t out_at = (batch * s->seq_len * s->n_heads + head) * s->head_dim;
    size_t row_at = (batch * s->n_heads + head) * s->seq_len;
    bindings_t b = {.n = 0};
    bind_qkv(ctx, &b, s, ID_Q, t->qkv, batch, head);
    bind_qkv(ctx, &b, s, ID_DQ, t->dqkv, batch, head);
    bind(&b, ID_OUT, element(ctx, t->out, out_at));
    bind(&b, ID_DOUT, element(ctx, t->dout, out_at));
    bind(&b, ID_LSE, t->logsumexp + row_at);
    bind(&b, ID_DELTA, t->delta + row_at);
    bind(&b, ID_SCALE, &scale);
    bind(&b, ID_MINUS_INF, &minus_inf);
    bind(&b, ID_ONE, &one);
    return execute(plan, &b, t->workspace);
}

zero_status_t zero_cudnn_attention_backward(zero_model_context_t *ctx, const zero_attention_shape_t *s, void *dqkv,
                                            const void *dout, const void *qkv, const void *out, const float *logsumexp)
{
    const shape_plans_t *plans = find_plans(ctx, s);
    zero_scratch_t scratch = zero_cuda_scratch(ctx);
    backward_t tensors = {.dqkv = dqkv, .dout = dout, .qkv = qkv, .out = out, .logsumexp = logsumexp};
    ZERO_TRY(zero_scratch_take(&scratch, delta_bytes(s), &tensors.delta));
    tensors.workspace = scratch.next;
    for (size_t batch = 0; batch < s->n_batch; batch += plans->slice.n_batch)
        for (size_t head = 0; head < s->n_heads; head += plans->slice.n_heads)
            ZERO_TRY(backward_slice(ctx, &plans->backward, s, &tensors, batch, head));
    return ZERO_OK;
}
