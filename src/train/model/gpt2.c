/* gpt2.c - GPT-2 as in Hugging Face: pre-LayerNorm, learned positions, gelu_new, head tied to the token embedding
 * (Radford et al. 2019).
 *
 * Shapes: B sequences of T positions, R = B * T rows, C = dim, F = ffn_dim, V = vocab_size, L layers. Matrices are kept
 * as HF keeps them: Conv1D weights [in, out], the token table [V, C].
 *
 *     x_0      = wte[token] + wpe[position]                                 [R, C]
 *     mid_l    = x_l + attention(LN1(x_l))                                  [R, C]
 *     x_l+1    = mid_l + gelu(LN2(mid_l) W_fc) W_proj                       [R, C]
 *     logits   = LNf(x_L) wte^T                                             [R, V], never held in full
 *
 * The second addition of a block is left pending in `addend` and done by the norm that comes next, fused.
 *
 * What is kept from forward to backward: recompute=none keeps every input that backward needs (16 C a row and layer
 * where F = 4 C); light drops what a norm or a gelu can make again (10 C), and backward's own pass through that norm or
 * gelu does, before the product that needs it; full keeps x_l alone (C) and runs the block's forward again. Dropped
 * tensors live in one set of buffers that all layers share; the results have the same bits.
 *
 * Biases' gradients are column sums of tensors that a norm's or gelu's backward writes, and summed there: d_x_sums
 * takes them from one block to the one before it, whose proj_bias they are.
 */
#include <stdio.h>
#include <stdlib.h>

#include "train/model/arch.h"
#include "train/report/report.h"

typedef struct block_tensors {
    zero_tensor_t ln1_weight, ln1_bias;
    zero_tensor_t qkv_weight, qkv_bias;             /* [C, 3C] */
    zero_tensor_t attention_weight, attention_bias; /* [C, C] */
    zero_tensor_t ln2_weight, ln2_bias;
    zero_tensor_t fc_weight, fc_bias;     /* [C, F] */
    zero_tensor_t proj_weight, proj_bias; /* [F, C] */
} block_tensors_t;

/* One layer's activations, of the device's activation dtype but for the fp32 statistics. */
typedef struct block_activations {
    void *x;                                          /* [R, C] the block's input */
    void *ln1;                                        /* [R, C] */
    void *qkv;                                        /* [R, 3C] */
    void *attention;                                  /* [R, C] heads side by side */
    void *mid;                                        /* [R, C] */
    void *ln2;                                        /* [R, C] */
    void *fc;                                         /* [R, F] before gelu */
    void *gelu;                                       /* [R, F] */
    float *ln1_mean, *ln1_rstd, *ln2_mean, *ln2_rstd; /* [R] */
    float *logsumexp;                                 /* [B, heads, T] */
} block_activations_t;

typedef struct gpt2 {
    zero_tensor_t wte, wpe; /* [V, C], [T, C] */
    block_tensors_t *blocks;
    zero_tensor_t lnf_weight, lnf_bias;

    block_activations_t *layers;
    /* Names at one place where one is done with before the next begins: see place. */
    void *x_final;              /* [R, C] x_L */
    void *lnf;                  /* [R, C] */
    float *lnf_mean, *lnf_rstd; /* [R] */
    void *addend;               /* [R, C] the pending addition */
    void *d_x;                  /* [R, C] gradient of the residual stream */
    float *d_x_sums;            /* [C] its column sums */
    void *d_c, *d_qkv, *d_f;    /* [R, C], [R, 3C], [R, F] gradients within a block */
} gpt2_t;

/* ---- declaration ---- */

static zero_status_t add_pair(model_t *model, zero_unit_t unit, const char *prefix, int64_t rows, int64_t columns,
                              zero_init_t weight_init, float std, zero_tensor_t *weight, zero_tensor_t *bias)
{
    char name[ZERO_MAX_NAME];
    snprintf(name, sizeof name, "%s.weight", prefix);
    TRY(arch_declare(model, unit, &(arch_tensor_t){name, rows, columns, weight_init, std, false}, weight));
    snprintf(name, sizeof name, "%s.bias", prefix);
    return arch_declare(model, unit, &(arch_tensor_t){name, 0, columns, ZERO_INIT_ZEROS, 0, false}, bias);
}

static zero_status_t declare_block(model_t *model, int layer, block_tensors_t *t)
{
    int64_t C = model->options->model.dim, F = model->options->model.ffn_dim;
    float std = ARCH_STD, residual_std = arch_residual_std(model);
    char unit_name[ZERO_MAX_NAME], prefix[ZERO_MAX_NAME - sizeof ".weight"];
    zero_unit_t unit;
    snprintf(unit_name, sizeof unit_name, "transformer.h.%d", layer);
    TRY(zero_model_add_unit(model->declaration, unit_name, &unit));
#define PAIR(suffix, rows, columns, init, s, field)                                                                    \
    snprintf(prefix, sizeof prefix, "transformer.h.%d." suffix, layer);                                                \
    TRY(add_pair(model, unit, prefix, rows, columns, init, s, &t->field##_weight, &t->field##_bias))
    PAIR("ln_1", 0, C, ZERO_INIT_ONES, 0, ln1);
    PAIR("attn.c_attn", C, 3 * C, ZERO_INIT_NORMAL, std, qkv);
    PAIR("attn.c_proj", C, C, ZERO_INIT_NORMAL, residual_std, attention);
    PAIR("ln_2", 0, C, ZERO_INIT_ONES, 0, ln2);
    PAIR("mlp.c_fc", C, F, ZERO_INIT_NORMAL, std, fc);
    PAIR("mlp.c_proj", F, C, ZERO_INIT_NORMAL, residual_std, proj);
#undef PAIR
    return ZERO_OK;
}

static zero_status_t declare(model_t *model)
{
    int64_t L = model->options->model.layers, C = model->options->model.dim;
    int64_t V = model->options->model.vocab_size, T = model->options->model.seq_len;
    zero_unit_t embed, head;
    gpt2_t *g = calloc(1, sizeof *g);
    if (!g)
        return report_rank_error(ZERO_ERROR_MEMORY, "no memory for the model's tables");
    model->arch = g;
    g->blocks = calloc((size_t)L, sizeof *g->blocks);
    g->layers = calloc((size_t)L, sizeof *g->layers);
    if (!g->blocks || !g->layers)
        return report_rank_error(ZERO_ERROR_MEMORY, "no memory for %lld layers' tables", (long long)L);

    const arch_tensor_t wte = {"transformer.wte.weight", V, C, ZERO_INIT_NORMAL, ARCH_STD, false};
    const arch_tensor_t wpe = {"transformer.wpe.weight", T, C, ZERO_INIT_NORMAL, ARCH_STD, false};
    TRY(zero_model_add_unit(model->declaration, "transformer.embeddings", &embed));
    TRY(arch_declare(model, embed, &wte, &g->wte));
    TRY(arch_declare(model, embed, &wpe, &g->wpe));
    for (int l = 0; l < L; l++)
        TRY(declare_block(model, l, &g->blocks[l]));
    TRY(zero_model_add_unit(model->declaration, "transformer.head", &head));
    TRY(add_pair(model, head, "transformer.ln_f", 0, C, ZERO_INIT_ONES, 0, &g->lnf_weight, &g->lnf_bias));
    return zero_model_share_tensor(model->declaration, head, g->wte);
}

static void destroy(model_t *model)
{
    gpt2_t *g = model->arch;
    free(g->blocks);
    free(g->layers);
    free(g);
}

static double flops_per_token(const model_t *model)
{
    const options_t *o = model->options;
    double params = (double)zero_model_n_params(model->declaration) - (double)(o->model.seq_len * o->model.dim);
    return 6.0 * params + 6.0 * (double)(o->model.layers * o->model.dim * o->model.seq_len);
}

/* ---- activations ---- */

/* What backward needs and cannot make cheaply: each layer's own unless recompute is full. */
static void place_inputs(activations_t *a, const arch_sizes_t *s, block_activations_t *layer)
{
    layer->qkv = activations_take(a, s->R * 3 * s->C, s->element_bytes);
    layer->attention = activations_take(a, s->R * s->C, s->element_bytes);
    layer->mid = activations_take(a, s->R * s->C, s->element_bytes);
    layer->fc = activations_take(a, s->R * s->F, s->element_bytes);
    layer->ln1_mean = activations_take(a, s->R, sizeof(float));
    layer->ln1_rstd = activations_take(a, s->R, sizeof(float));
    layer->ln2_mean = activations_take(a, s->R, sizeof(float));
    layer->ln2_rstd = activations_take(a, s->R, sizeof(float));
    layer->logsumexp = activations_take(a, s->R * s->heads, sizeof(float));
}

/* What a norm or gelu makes: each layer's own where recompute is none. Made again on the way (light), one place does
 * for both norms. */
static void place_outputs(activations_t *a, const arch_sizes_t *s, bool one_norm, block_activations_t *layer)
{
    layer->ln1 = activations_take(a, s->R * s->C, s->element_bytes);
    layer->ln2 = one_norm ? layer->ln1 : activations_take(a, s->R * s->C, s->element_bytes);
    layer->gelu = activations_take(a, s->R * s->F, s->element_bytes);
}

/* addend is forward's (and of a block that runs again, before its backward), d_c backward's. lnf is done with when d_x
 * begins, x_final when d_f does, and d_f when d_qkv comes. */
static void place(const model_t *model, activations_t *a)
{
    gpt2_t *g = model->arch;
    arch_sizes_t s = arch_largest_sizes(model);
    options_recompute_t recompute = (options_recompute_t)model->options->model.recompute;
    block_activations_t shared = {0}; /* what no layer has for itself */
    if (recompute == RECOMPUTE_FULL)
        place_inputs(a, &s, &shared);
    if (recompute != RECOMPUTE_NONE)
        place_outputs(a, &s, recompute == RECOMPUTE_LIGHT, &shared);
    for (int l = 0; l < model->options->model.layers; l++) {
        block_activations_t *layer = &g->layers[l];
        *layer = shared;
        /* The embedding makes the first x. */
        activations_begin_span(a, l == 0 ? 0 : arch_layer_unit(l), arch_layer_unit(l));
        layer->x = activations_take(a, s.R * s.C, s.element_bytes);
        activations_begin_span(a, arch_layer_unit(l), arch_layer_unit(l));
        if (recompute != RECOMPUTE_FULL)
            place_inputs(a, &s, layer);
        if (recompute == RECOMPUTE_NONE)
            place_outputs(a, &s, false, layer);
    }
    activations_end_span(a);
    g->lnf_mean = activations_take(a, s.R, sizeof(float));
    g->lnf_rstd = activations_take(a, s.R, sizeof(float));
    g->d_x = g->lnf = activations_take(a, s.R * s.C, s.element_bytes);
    g->d_x_sums = activations_take(a, s.C, sizeof(float));
    g->addend = g->d_c = activations_take(a, s.R * s.C, s.element_bytes);
    g->d_f = g->d_qkv = g->x_final = activations_take(a, s.R * (s.F > 3 * s.C ? s.F : 3 * s.C), s.element_bytes);
}

static int n_layers(const model_t *model)
{
    return (int)model->options->model.layers;
}

static float norm_eps(const model_t *model)
{
    return (float)model->options->model.norm_eps;
}

/* ---- forward ---- */

static zero_status_t embed_forward(model_t *model)
{
    gpt2_t *g = model->arch;
    return model->kernels->embed(&model->ctx, g->layers[0].x, model->tokens, model_weight(model, g->wte),
                                 model_weight(model, g->wpe), model->n_batch, model->seq_len,
                                 (size_t)model->options->model.dim, (size_t)model->options->model.vocab_size);
}

/* x W + b, in HF's Conv1D layout */
static zero_status_t conv1d(model_t *model, void *y, const void *x, zero_tensor_t weight, zero_tensor_t bias,
                            size_t n_in, size_t n_out)
{
    return model->kernels->linear(&model->ctx, y, x, model_weight(model, weight), ZERO_LINEAR_IN_OUT,
                                  model_weight(model, bias), model->n_batch * model->seq_len, n_in, n_out);
}

/* From layer->x on to the input of the last matrix. `residual` and `addend` sum to x; x itself and NULL when it is
 * there already. */
static zero_status_t block_inner(model_t *model, int l, const void *residual, const void *addend)
{
    gpt2_t *g = model->arch;
    const zero_model_kernels_t *k = model->kernels;
    const block_tensors_t *t = &g->blocks[l];
    block_activations_t *a = &g->layers[l];
    arch_sizes_t s = arch_sizes(model);
    TRY(k->layernorm(&model->ctx, a->ln1, a->ln1_mean, a->ln1_rstd, a->x, residual, addend,
                     model_weight(model, t->ln1_weight), model_weight(model, t->ln1_bias), norm_eps(model), s.R, s.C));
    TRY(conv1d(model, a->qkv, a->ln1, t->qkv_weight, t->qkv_bias, s.C, 3 * s.C));
    TRY(k->attention(&model->ctx, a->attention, a->logsumexp, a->qkv, s.B, s.T, s.heads, s.heads, s.head_dim));
    TRY(conv1d(model, g->addend, a->attention, t->attention_weight, t->attention_bias, s.C, s.C));
    TRY(k->layernorm(&model->ctx, a->ln2, a->ln2_mean, a->ln2_rstd, a->mid, a->x, g->addend,
                     model_weight(model, t->ln2_weight), model_weight(model, t->ln2_bias), norm_eps(model), s.R, s.C));
    TRY(conv1d(model, a->fc, a->ln2, t->fc_weight, t->fc_bias, s.C, s.F));
    return k->gelu(&model->ctx, a->gelu, a->fc, s.R * s.F);
}

static zero_status_t block_forward(model_t *model, int l)
{
    gpt2_t *g = model->arch;
    arch_sizes_t s = arch_sizes(model);
    const void *residual = l == 0 ? g->layers[0].x : g->layers[l - 1].mid;
    TRY(block_inner(model, l, residual, l == 0 ? NULL : g->addend));
    return conv1d(model, g->addend, g->layers[l].gelu, g->blocks[l].proj_weight, g->blocks[l].proj_bias, s.F, s.C);
}

static zero_status_t head_forward(model_t *model)
{
    gpt2_t *g = model->arch;
    const zero_model_kernels_t *k = model->kernels;
    arch_sizes_t s = arch_sizes(model);
    TRY(k->layernorm(&model->ctx, g->lnf, g->lnf_mean, g->lnf_rstd, g->x_final, g->layers[n_layers(model) - 1].mid,
                     g->addend, model_weight(model, g->lnf_weight), model_weight(model, g->lnf_bias), norm_eps(model),
                     s.R, s.C));
    return arch_head_forward(model, g->lnf, g->wte);
}

static zero_status_t forward(model_t *model, zero_unit_t unit)
{
    if (unit == 0)
        return embed_forward(model);
    if (unit <= n_layers(model))
        return block_forward(model, unit - 1);
    return head_forward(model);
}

/* ---- backward ---- */

/* Gradient of a Conv1D's input: dx = dy W^T */
static zero_status_t conv1d_input_grad(model_t *model, void *dx, const void *dy, zero_tensor_t weight, size_t n_in,
                                       size_t n_out)
{
    return model->kernels->linear_backward_input(&model->ctx, dx, false, dy, model_weight(model, weight),
                                                 ZERO_LINEAR_IN_OUT, model->n_batch * model->seq_len, n_in, n_out);
}

static const zero_grad_t summed_elsewhere = {0};

/* Gradients of a Conv1D's weight and bias from x and dy */
static zero_status_t conv1d_weight_grad(model_t *model, const void *x, const void *dy, zero_tensor_t weight,
                                        zero_grad_t dbias, size_t n_in, size_t n_out)
{
    return model->kernels->linear_backward_weight(&model->ctx, model_grad(model, weight), ZERO_LINEAR_IN_OUT, dbias, x,
                                                  dy, model->n_batch * model->seq_len, n_in, n_out);
}

/* d_x += gradient through a LayerNorm of dy; dcolumns: its column sums. again: NULL, or where the norm's output is
 * made again. */
static zero_status_t layernorm_backward(model_t *model, zero_grad_t dcolumns, void *again, const void *dy,
                                        const void *x, const float *mean, const float *rstd, zero_tensor_t weight,
                                        zero_tensor_t bias)
{
    gpt2_t *g = model->arch;
    arch_sizes_t s = arch_sizes(model);
    return model->kernels->layernorm_backward(&model->ctx, g->d_x, model_grad(model, weight), model_grad(model, bias),
                                              dcolumns, again, dy, x, mean, rstd, model_weight(model, weight),
                                              model_weight(model, bias), s.R, s.C);
}

/* Where the column sums of d_x wait for the block before. */
static zero_grad_t d_x_sums(const gpt2_t *g)
{
    return (zero_grad_t){.data = g->d_x_sums, .dtype = ZERO_FP32};
}

static zero_status_t head_backward(model_t *model)
{
    gpt2_t *g = model->arch;
    arch_sizes_t s = arch_sizes(model);
    TRY(arch_head_backward(model, g->d_c, g->lnf, g->wte));
    TRY(model->kernels->zero_fill(&model->ctx, g->d_x, s.R * s.C * s.element_bytes));
    return layernorm_backward(model, d_x_sums(g), NULL, g->d_c, g->x_final, g->lnf_mean, g->lnf_rstd, g->lnf_weight,
                              g->lnf_bias);
}

static zero_status_t block_backward(model_t *model, int l)
{
    gpt2_t *g = model->arch;
    const zero_model_kernels_t *k = model->kernels;
    const block_tensors_t *t = &g->blocks[l];
    const block_activations_t *a = &g->layers[l];
    arch_sizes_t s = arch_sizes(model);
    bool again = model->options->model.recompute == RECOMPUTE_LIGHT; /* norms and gelu on the way */
    if (model->options->model.recompute == RECOMPUTE_FULL)
        TRY(block_inner(model, l, a->x, NULL));

    /* d_x: of x_l+1, and so of mid and of the branch's end alike */
    TRY(conv1d_input_grad(model, g->d_f, g->d_x, t->proj_weight, s.F, s.C));
    TRY(k->gelu_backward(&model->ctx, g->d_f, model_grad(model, t->fc_bias), again ? a->gelu : NULL, g->d_f, a->fc, s.R,
                         s.F));
    TRY(conv1d_weight_grad(model, a->gelu, g->d_x, t->proj_weight, summed_elsewhere, s.F, s.C));
    TRY(k->put_grad(&model->ctx, model_grad(model, t->proj_bias), g->d_x_sums, s.C));
    TRY(conv1d_input_grad(model, g->d_c, g->d_f, t->fc_weight, s.C, s.F));
    TRY(layernorm_backward(model, model_grad(model, t->attention_bias), again ? a->ln2 : NULL, g->d_c, a->mid,
                           a->ln2_mean, a->ln2_rstd, t->ln2_weight, t->ln2_bias));
    TRY(conv1d_weight_grad(model, a->ln2, g->d_f, t->fc_weight, summed_elsewhere, s.C, s.F));

    /* d_x: now of mid */
    TRY(conv1d_input_grad(model, g->d_c, g->d_x, t->attention_weight, s.C, s.C));
    TRY(conv1d_weight_grad(model, a->attention, g->d_x, t->attention_weight, summed_elsewhere, s.C, s.C));
    TRY(k->attention_backward(&model->ctx, g->d_qkv, g->d_c, a->qkv, a->attention, a->logsumexp, s.B, s.T, s.heads,
                              s.heads, s.head_dim));
    TRY(conv1d_input_grad(model, g->d_c, g->d_qkv, t->qkv_weight, s.C, 3 * s.C));
    TRY(layernorm_backward(model, d_x_sums(g), again ? a->ln1 : NULL, g->d_c, a->x, a->ln1_mean, a->ln1_rstd,
                           t->ln1_weight, t->ln1_bias));
    return conv1d_weight_grad(model, a->ln1, g->d_qkv, t->qkv_weight, model_grad(model, t->qkv_bias), s.C, 3 * s.C);
}

static zero_status_t embed_backward(model_t *model)
{
    gpt2_t *g = model->arch;
    return model->kernels->embed_backward(&model->ctx, model_grad(model, g->wte), model_grad(model, g->wpe), g->d_x,
                                          model->tokens, model->n_batch, model->seq_len,
                                          (size_t)model->options->model.dim, (size_t)model->options->model.vocab_size);
}

static zero_status_t backward(model_t *model, zero_unit_t unit)
{
    if (unit == 0)
        return embed_backward(model);
    if (unit <= n_layers(model))
        return block_backward(model, unit - 1);
    return head_backward(model);
}

const model_ops_t gpt2_ops = {
    .name = "GPT-2",
    .mlp_inputs = 1,
    .declare = declare,
    .place = place,
    .forward = forward,
    .backward = backward,
    .destroy = destroy,
    .flops_per_token = flops_per_token,
};
