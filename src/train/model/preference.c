/* preference.c - see preference.h. */
#include "train/model/preference.h"

#include <stdlib.h>
#include <string.h>

#include "train/model/fp8.h"
#include "train/report/report.h"

struct preference {
    bool is_reference; /* is being computed */
    /* Device memory, the engine's. */
    void *mid, *addend;         /* [R, C] the reference's residual stream: their sum is the next layer's input */
    double *losses, *reference; /* [R] of the rows: the model's, the reference's */
    double *pairs;              /* [R / 2, ZERO_N_PAIR_SUMS + 1] scratch */
    float *factors;             /* [R] scratch */
    /* Host memory, pinned: a ring of n_stored copies of the sums. */
    double (*stored)[ZERO_N_PAIR_SUMS];
    int64_t n_room, n_stored, n_read; /* copies so far */
};

zero_status_t preference_create(model_t *model)
{
    if (model->options->train.objective != OBJECTIVE_DPO)
        return ZERO_OK;
    model->preference = calloc(1, sizeof *model->preference);
    return model->preference ? ZERO_OK : report_rank_error(ZERO_ERROR_MEMORY, "no memory for the pairs' table");
}

void preference_destroy(model_t *model)
{
    if (model->preference && model->device)
        zero_host_free(model->device, model->preference->stored);
    free(model->preference);
}

void preference_allocate(const model_t *model, activations_t *a)
{
    preference_t *p = model->preference;
    const arch_sizes_t s = arch_largest_sizes(model);
    if (!p)
        return;
    p->mid = activations_alloc(a, s.R * s.C, s.element_bytes);
    p->addend = activations_alloc(a, s.R * s.C, s.element_bytes);
    p->losses = activations_alloc(a, s.R, sizeof *p->losses);
    p->reference = activations_alloc(a, s.R, sizeof *p->reference);
    p->pairs = activations_alloc(a, s.R / 2 * (ZERO_N_PAIR_SUMS + 1), sizeof *p->pairs);
    p->factors = activations_alloc(a, s.R, sizeof *p->factors);
}

zero_status_t preference_attach(model_t *model, int64_t n_steps)
{
    preference_t *p = model->preference;
    void *stored;
    if (!p)
        return ZERO_OK;
    ZERO_TRY(zero_host_alloc(model->device, (size_t)n_steps * sizeof *p->stored, &stored));
    p->stored = stored;
    p->n_room = n_steps;
    return ZERO_OK;
}

/* ---- the reference ---- */

bool preference_is_reference(const model_t *model)
{
    return model->preference && model->preference->is_reference;
}

/* The first layer's input is the model's, since no embedding has an adapter. */
static zero_status_t reference_block(model_t *model, int l)
{
    const preference_t *p = model->preference;
    layer_activations_t *a = &model->layers[l];
    void *own_mid = a->mid;
    a->mid = p->mid;
    zero_status_t status = model->ops->block_forward(model, l, l == 0 ? a->x : p->mid, l == 0 ? NULL : p->addend);
    a->mid = own_mid;
    return status == ZERO_OK ? fp8_forget(model, l) : status;
}

static zero_status_t reference_head(model_t *model)
{
    const arch_common_t *c = arch_common(model);
    const arch_sizes_t s = arch_sizes(model);
    ZERO_TRY(arch_final_norm(model, model->preference->mid));
    return model->kernels->head_losses(&model->ctx, model->preference->reference, NULL, c->normed,
                                       model_weight(model, c->head), model->targets, 0.0, NULL, s.R, s.C, s.V);
}

zero_status_t preference_forward(model_t *model, zero_unit_t unit)
{
    preference_t *p = model->preference;
    arch_common_t *c = arch_common(model);
    const int layer = unit - 1;
    if (!p || unit == 0 || model->pass == MODEL_LOGITS)
        return ZERO_OK;
    void *own_addend = c->addend;
    c->addend = p->addend;
    p->is_reference = true;
    zero_status_t status = layer < model->options->model.layers ? reference_block(model, layer) : reference_head(model);
    p->is_reference = false;
    c->addend = own_addend;
    return status;
}

/* ---- the loss ---- */

zero_status_t preference_loss(model_t *model, void *dx)
{
    const preference_t *p = model->preference;
    const arch_common_t *c = arch_common(model);
    const arch_sizes_t s = arch_sizes(model);
    const zero_model_kernels_t *k = model->kernels;
    const double beta = model->options->train.dpo_beta;
    const zero_pair_loss_t pairs = {.loss_sum = model->loss,
                                    .sums = model->loss + 1,
                                    .dx = dx,
                                    .losses = p->losses,
                                    .reference = p->reference,
                                    .documents = model->documents,
                                    .pairs = p->pairs,
                                    .factors = p->factors,
                                    .beta = beta,
                                    .loss_weight = model->loss_weight,
                                    .n_rows = s.R,
                                    .dim = s.C};
    ZERO_TRY(k->head_losses(&model->ctx, p->losses, dx, c->normed, model_weight(model, c->head), model->targets,
                            beta * model->loss_weight, zero_loss_scale(model->engine), s.R, s.C, s.V));
    return k->pair_loss(&model->ctx, &pairs);
}

/* ---- rewards ---- */

rewards_t preference_rewards(const double sums[ZERO_N_PAIR_SUMS])
{
    return (rewards_t){.are_known = true,
                       .chosen = sums[ZERO_PAIR_CHOSEN],
                       .rejected = sums[ZERO_PAIR_REJECTED],
                       .margin = sums[ZERO_PAIR_CHOSEN] - sums[ZERO_PAIR_REJECTED],
                       .accuracy = sums[ZERO_PAIR_ACCURACY]};
}

zero_status_t preference_store(model_t *model)
{
    preference_t *p = model->preference;
    if (!p)
        return ZERO_OK;
    return zero_device_copy(model->device, p->stored[p->n_stored++ % p->n_room], model->loss + 1, sizeof *p->stored,
                            model->ctx.stream);
}

zero_status_t preference_read(model_t *model, zero_comm_t *comm, rewards_t *rewards)
{
    preference_t *p = model->preference;
    double sums[ZERO_N_PAIR_SUMS];
    *rewards = (rewards_t){0};
    if (!p)
        return ZERO_OK;
    memcpy(sums, p->stored[p->n_read++ % p->n_room], sizeof sums);
    ZERO_TRY(zero_comm_sum(comm, sums, ZERO_N_PAIR_SUMS));
    *rewards = preference_rewards(sums);
    return ZERO_OK;
}
