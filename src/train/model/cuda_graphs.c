/* cuda_graphs.c - see cuda_graphs.h. */
#include "train/model/cuda_graphs.h"

#include <stdlib.h>

#include "train/model/model_state.h"
#include "train/report/report.h"

/* Of one graph: more tensors than any unit uses. */
#define MAX_NOTES 64
/* Of a unit, forward and backward. A unit gets few different pairs of unsharded buffers, the same ones every step. */
#define MAX_GRAPHS 64

typedef struct note {
    zero_tensor_t tensor;
    enum { WEIGHT, FP8_WEIGHT, GRAD } kind;
    zero_grad_t answer; /* for a weight: only data is set */
} note_t;

typedef struct graph {
    struct graph *next;
    zero_status_t (*compute)(model_t *model, zero_unit_t unit);
    double loss_weight;          /* 0: it varies, and the unit does not use it */
    zero_cuda_graph_t *captured; /* NULL: it could not be captured, or uses too many tensors */
    int n_notes;
    note_t notes[MAX_NOTES];
} graph_t;

typedef struct unit_graphs {
    graph_t *first;
    int n;
} unit_graphs_t;

struct cuda_graphs {
    const zero_model_kernels_t *kernels;
    graph_t *capturing; /* NULL: none is being captured */
    bool is_told;       /* that a unit uses too many tensors */
    int n_units;
    unit_graphs_t units[];
};

zero_status_t cuda_graphs_create(const zero_model_kernels_t *kernels, int n_units, cuda_graphs_t **graphs)
{
    if (!kernels->record_begin)
        return ZERO_OK;
    cuda_graphs_t *made = calloc(1, sizeof *made + (size_t)n_units * sizeof made->units[0]);
    if (!made)
        return report_rank_error(ZERO_ERROR_MEMORY, "no memory for the CUDA graphs of %d units", n_units);
    made->kernels = kernels;
    made->n_units = n_units;
    *graphs = made;
    return ZERO_OK;
}

static void graph_destroy(const cuda_graphs_t *graphs, graph_t *graph)
{
    graphs->kernels->cuda_graph_destroy(graph->captured);
    free(graph);
}

void cuda_graphs_destroy(cuda_graphs_t *graphs)
{
    if (!graphs)
        return;
    for (int unit = 0; unit < graphs->n_units; unit++)
        for (graph_t *graph = graphs->units[unit].first, *next; graph; graph = next) {
            next = graph->next;
            graph_destroy(graphs, graph);
        }
    free(graphs);
}

/* ---- what a graph depends on ---- */

static void note(cuda_graphs_t *graphs, note_t noted)
{
    graph_t *graph = graphs ? graphs->capturing : NULL;
    for (int i = 0; graph && i < graph->n_notes && i < MAX_NOTES; i++)
        if (graph->notes[i].tensor == noted.tensor && graph->notes[i].kind == noted.kind)
            return; /* a tile before asked, and the answer was the same */
    if (graph && graph->n_notes++ < MAX_NOTES)
        graph->notes[graph->n_notes - 1] = noted;
}

void cuda_graphs_note_weight(cuda_graphs_t *graphs, zero_tensor_t tensor, zero_weight_t weight)
{
    note(graphs, (note_t){.tensor = tensor, .kind = WEIGHT, .answer = {.data = (void *)weight.data}});
}

void cuda_graphs_note_fp8_weight(cuda_graphs_t *graphs, zero_tensor_t tensor, zero_fp8_param_t weight)
{
    note(graphs, (note_t){.tensor = tensor, .kind = FP8_WEIGHT, .answer = {.data = (void *)weight.data}});
}

void cuda_graphs_note_grad(cuda_graphs_t *graphs, zero_tensor_t tensor, zero_grad_t grad)
{
    note(graphs, (note_t){.tensor = tensor, .kind = GRAD, .answer = grad});
}

/* Returns whether the engine would give the same answer now. */
static bool still_holds(const zero_engine_t *engine, const note_t *noted)
{
    if (noted->kind == WEIGHT)
        return zero_param(engine, noted->tensor) == noted->answer.data;
    if (noted->kind == FP8_WEIGHT) /* whose scales never move */
        return zero_param_fp8(engine, noted->tensor).data == noted->answer.data;
    zero_grad_t now = zero_grad(engine, noted->tensor);
    return now.data == noted->answer.data && now.dtype == noted->answer.dtype &&
           now.accumulate == noted->answer.accumulate;
}

/* Returns the loss_weight that a graph depends on. */
static double lasting_weight(const model_t *model)
{
    return model->may_skip_targets ? 0.0 : model->loss_weight;
}

/* Returns whether the graph would do what compute would do now. */
static bool serves(const graph_t *graph, const model_t *model,
                   zero_status_t (*compute)(model_t *model, zero_unit_t unit))
{
    if (graph->compute != compute || graph->loss_weight != lasting_weight(model))
        return false;
    for (int i = 0; i < graph->n_notes && i < MAX_NOTES; i++)
        if (!still_holds(model->engine, &graph->notes[i]))
            return false;
    return true;
}

/* ---- capturing and launching ---- */

/* Captures compute's work in *graph. If only the capture fails, it logs that and leaves graph->captured NULL. */
static zero_status_t capture_unit(cuda_graphs_t *graphs, model_t *model, zero_unit_t unit, graph_t *graph)
{
    const zero_model_kernels_t *kernels = graphs->kernels;
    ZERO_TRY(kernels->record_begin(&model->ctx));
    graphs->capturing = graph;
    zero_status_t status = graph->compute(model, unit);
    graphs->capturing = NULL;
    zero_status_t ended = kernels->record_end(&model->ctx, &graph->captured);
    if (status == ZERO_OK && ended != ZERO_OK)
        report_rank_error(ended, "unit %d cannot be captured as a CUDA graph, so its kernels are launched one by one",
                          unit);
    return status;
}

static zero_status_t add_graph(cuda_graphs_t *graphs, model_t *model, zero_unit_t unit,
                               zero_status_t (*compute)(model_t *model, zero_unit_t unit), graph_t **made)
{
    unit_graphs_t *of_unit = &graphs->units[unit];
    graph_t *graph = calloc(1, sizeof *graph);
    if (!graph)
        return report_rank_error(ZERO_ERROR_MEMORY, "no memory for a CUDA graph of unit %d", unit);
    graph->compute = compute;
    graph->loss_weight = lasting_weight(model);
    zero_status_t status = capture_unit(graphs, model, unit, graph);
    if (status != ZERO_OK) {
        graph_destroy(graphs, graph);
        return status;
    }
    if (graph->n_notes > MAX_NOTES) {
        if (!graphs->is_told)
            report("unit %d uses more than %d tensors, so its kernels are launched one by one, not as a CUDA graph",
                   unit, MAX_NOTES);
        graphs->is_told = true;
        graphs->kernels->cuda_graph_destroy(graph->captured);
        graph->captured = NULL;
    }
    graph->next = of_unit->first;
    of_unit->first = graph;
    of_unit->n++;
    *made = graph;
    return ZERO_OK;
}

zero_status_t cuda_graphs_run(cuda_graphs_t *graphs, model_t *model, zero_unit_t unit,
                              zero_status_t (*compute)(model_t *model, zero_unit_t unit))
{
    unit_graphs_t *of_unit = &graphs->units[unit];
    graph_t *graph = of_unit->first;
    while (graph && !serves(graph, model, compute))
        graph = graph->next;
    if (!graph && of_unit->n < MAX_GRAPHS)
        ZERO_TRY(add_graph(graphs, model, unit, compute, &graph));
    if (!graph || !graph->captured)
        return compute(model, unit);
    return graphs->kernels->replay(&model->ctx, graph->captured);
}
