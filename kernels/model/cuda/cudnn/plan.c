/* plan.c - see plan.h. */
#include "kernels/model/cuda/cudnn/plan.h"

#include <stdio.h>

#include "base/log.h"

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
