/* cuda_graphs.c - see cuda_graphs.h. */
#include "train/model/cuda_graphs.h"

#include <stdlib.h>

#include "train/model/model.h"
#include "train/report/report.h"

/* More than any unit asks. */
#define MAX_NOTES 64
/* Of a unit, both directions. A unit meets few pairs of slots, the same ones every step. */
#define MAX_PER_UNIT 64

typedef struct note {
    zero_tensor_t tensor;
    bool is_grad;
    zero_grad_t answer; /* of a weight: its data alone */
} note_t;

typedef struct recording {
    struct recording *next;
    zero_status_t (*compute)(model_t *model, zero_unit_t unit);
    double loss_weight;
    zero_cuda_graph_t *work; /* NULL: it could not be recorded, or asked too much */
    int n_notes;
    note_t notes[MAX_NOTES];
} cuda_graph_t;

typedef struct cuda_graphs_of_unit {
    cuda_graph_t *first;
    int n;
} cuda_graphs_of_unit_t;

struct recordings {
    const zero_model_kernels_t *kernels;
    cuda_graph_t *at_hand; /* being made; else NULL */
    int n_units;
    cuda_graphs_of_unit_t units[];
};

zero_status_t cuda_graphs_create(const zero_model_kernels_t *kernels, int n_units, cuda_graphs_t **recordings)
{
    if (!kernels->record_begin)
        return ZERO_OK;
    cuda_graphs_t *made = calloc(1, sizeof *made + (size_t)n_units * sizeof made->units[0]);
    if (!made)
        return report_rank_error(ZERO_ERROR_MEMORY, "no memory for the recordings of %d units", n_units);
    made->kernels = kernels;
    made->n_units = n_units;
    *recordings = made;
    return ZERO_OK;
}

static void cuda_graph_destroy(const cuda_graphs_t *recordings, cuda_graph_t *recording)
{
    recordings->kernels->cuda_graph_destroy(recording->work);
    free(recording);
}

void cuda_graphs_destroy(cuda_graphs_t *recordings)
{
    if (!recordings)
        return;
    for (int unit = 0; unit < recordings->n_units; unit++)
        for (cuda_graph_t *r = recordings->units[unit].first, *next; r; r = next) {
            next = r->next;
            cuda_graph_destroy(recordings, r);
        }
    free(recordings);
}

/* ---- what a recording depends on ---- */

static void note(cuda_graphs_t *recordings, note_t noted)
{
    cuda_graph_t *recording = recordings ? recordings->at_hand : NULL;
    if (recording && recording->n_notes++ < MAX_NOTES)
        recording->notes[recording->n_notes - 1] = noted;
}

void cuda_graphs_note_weight(cuda_graphs_t *recordings, zero_tensor_t tensor, zero_weight_t weight)
{
    note(recordings, (note_t){.tensor = tensor, .answer = {.data = (void *)weight.data}});
}

void cuda_graphs_note_grad(cuda_graphs_t *recordings, zero_tensor_t tensor, zero_grad_t grad)
{
    note(recordings, (note_t){.tensor = tensor, .is_grad = true, .answer = grad});
}

static bool still_holds(const zero_engine_t *engine, const note_t *noted)
{
    if (!noted->is_grad)
        return zero_param(engine, noted->tensor) == noted->answer.data;
    zero_grad_t now = zero_grad(engine, noted->tensor);
    return now.data == noted->answer.data && now.dtype == noted->answer.dtype &&
           now.accumulate == noted->answer.accumulate;
}

static bool serves(const cuda_graph_t *recording, const model_t *model,
                   zero_status_t (*compute)(model_t *model, zero_unit_t unit))
{
    if (recording->compute != compute || recording->loss_weight != model->loss_weight)
        return false;
    for (int i = 0; i < recording->n_notes && i < MAX_NOTES; i++)
        if (!still_holds(model->engine, &recording->notes[i]))
            return false;
    return true;
}

/* ---- making and replaying ---- */

static zero_status_t record(cuda_graphs_t *recordings, model_t *model, zero_unit_t unit, cuda_graph_t *recording)
{
    const zero_model_kernels_t *kernels = recordings->kernels;
    TRY(kernels->record_begin(&model->ctx));
    recordings->at_hand = recording;
    zero_status_t status = recording->compute(model, unit);
    recordings->at_hand = NULL;
    zero_status_t ended = kernels->record_end(&model->ctx, &recording->work);
    if (status == ZERO_OK && ended != ZERO_OK)
        report_rank_error(ended, "unit %d cannot be recorded, so its work is queued piece by piece", unit);
    return status;
}

static zero_status_t make(cuda_graphs_t *recordings, model_t *model, zero_unit_t unit,
                          zero_status_t (*compute)(model_t *model, zero_unit_t unit), cuda_graph_t **made)
{
    cuda_graphs_of_unit_t *of_unit = &recordings->units[unit];
    cuda_graph_t *recording = calloc(1, sizeof *recording);
    if (!recording)
        return report_rank_error(ZERO_ERROR_MEMORY, "no memory for a recording of unit %d", unit);
    recording->compute = compute;
    recording->loss_weight = model->loss_weight;
    zero_status_t status = record(recordings, model, unit, recording);
    if (status != ZERO_OK) {
        cuda_graph_destroy(recordings, recording);
        return status;
    }
    if (recording->n_notes > MAX_NOTES) {
        recordings->kernels->cuda_graph_destroy(recording->work);
        recording->work = NULL;
    }
    recording->next = of_unit->first;
    of_unit->first = recording;
    of_unit->n++;
    *made = recording;
    return ZERO_OK;
}

zero_status_t cuda_graphs_run(cuda_graphs_t *recordings, model_t *model, zero_unit_t unit,
                              zero_status_t (*compute)(model_t *model, zero_unit_t unit))
{
    cuda_graphs_of_unit_t *of_unit = &recordings->units[unit];
    cuda_graph_t *recording = of_unit->first;
    while (recording && !serves(recording, model, compute))
        recording = recording->next;
    if (!recording && of_unit->n < MAX_PER_UNIT)
        TRY(make(recordings, model, unit, compute, &recording));
    if (!recording || !recording->work)
        return compute(model, unit);
    return recordings->kernels->replay(&model->ctx, recording->work);
}
