/* llama.c - Llama as in Hugging Face: pre-RMSNorm, rotary positions, SwiGLU, key/value heads shared by query heads, no
 * biases, a head of its own (Touvron et al. 2023, arXiv:2302.13971).
 *
 * Shapes: B sequences of T positions, R = B * T rows, C = dim, F = ffn_dim, V = vocab_size, L layers; Q = the q, k and
 * v heads side by side, (heads + 2 kv_heads) * head_dim. Matrices are kept as HF keeps them: nn.Linear weights [out,
 * in].
 *
 *     x_0      = embed_tokens[token]                                        [R, C]
 *     mid_l    = x_l + attention(rope(RMS1(x_l) W_qkv^T)) W_o^T             [R, C]
 *     x_l+1    = mid_l + (silu(n W_gate^T) * (n W_up^T)) W_down^T,  n = RMS2(mid_l)
 *     logits   = RMSf(x_L) lm_head^T                                        [R, V], never held in full
 *
 * HF names q, k and v apart, and gate and up; packed one after another they are one matrix each, W_qkv [Q, C] and
 * W_gate_up [2F, C], and one product, from the first one's pointer. So are their gradients.
 *
 * The second addition of a block is left pending in `addend` and done by the norm that comes next, fused.
 *
 * What is kept from forward to backward: recompute=none keeps every input that backward needs; light drops what a norm
 * or SwiGLU makes, which their own backward makes again beside its work; full keeps x_l alone (C a row and layer) and
 * runs the block's forward again. Dropped tensors live in one set of buffers that all layers share; the results have
 * the same bits.
 */
#include <stdio.h>
#include <stdlib.h>

#include "train/model/arch.h"
#include "train/report/report.h"

typedef struct block_tensors {
    zero_tensor_t norm1;     /* [C] */
    zero_tensor_t q, k, v;   /* packed: [Q, C] from q on */
    zero_tensor_t attention; /* [C, C] */
    zero_tensor_t norm2;     /* [C] */
    zero_tensor_t gate, up;  /* packed: [2F, C] from gate on */
    zero_tensor_t down;      /* [C, F] */
} block_tensors_t;

/* One layer's activations, of the device's activation dtype but for the fp32 statistics. */
typedef struct block_activations {
    void *x;              /* [R, C] the block's input */
    void *normed1;        /* [R, C] */
    void *qkv;            /* [R, Q] q and k turned by their positions */
    void *attention;      /* [R, C] heads side by side */
    void *mid;            /* [R, C] */
    void *normed2;        /* [R, C] */
    void *gate_up;        /* [R, 2F]; backward leaves its gradient here */
    void *hidden;         /* [R, F] */
    float *rstd1, *rstd2; /* [R] */
    float *logsumexp;     /* [B, heads, T] */
} block_activations_t;

typedef struct llama {
    zero_tensor_t embed; /* [V, C] */
    block_tensors_t *blocks;
    zero_tensor_t norm; /* [C] */
    zero_tensor_t head; /* [V, C] */

    block_activations_t *layers;
    void *x_final;           /* [R, C] x_L */
    void *normed;            /* [R, C] */
    float *rstd;             /* [R] */
    void *addend;            /* [R, C] the pending addition */
    void *d_x;               /* [R, C] gradient of the residual stream */
    void *d_c, *d_qkv, *d_f; /* [R, C], [R, Q], [R, F] gradients within a block */
} llama_t;

/* ---- declaration ---- */

static zero_status_t declare_block(model_t *model, int layer, block_tensors_t *t)
{
    const options_t *o = model->options;
    int64_t C = o->model.dim, F = o->model.ffn_dim, kv = C / o->model.heads * o->model.kv_heads;
    float residual_std = arch_residual_std(model);
    const struct {
        const char *suffix;
        int64_t rows, columns;
        zero_init_t init;
        float std;
        bool packed;
        zero_tensor_t *tensor;
    } tensors[] = {
        {"input_layernorm", 0, C, ZERO_INIT_ONES, 0, false, &t->norm1},
        {"self_attn.q_proj", C, C, ZERO_INIT_NORMAL, ARCH_STD, false, &t->q},
        {"self_attn.k_proj", kv, C, ZERO_INIT_NORMAL, ARCH_STD, true, &t->k},
        {"self_attn.v_proj", kv, C, ZERO_INIT_NORMAL, ARCH_STD, true, &t->v},
        {"self_attn.o_proj", C, C, ZERO_INIT_NORMAL, residual_std, false, &t->attention},
        {"post_attention_layernorm", 0, C, ZERO_INIT_ONES, 0, false, &t->norm2},
        {"mlp.gate_proj", F, C, ZERO_INIT_NORMAL, ARCH_STD, false, &t->gate},
        {"mlp.up_proj", F, C, ZERO_INIT_NORMAL, ARCH_STD, true, &t->up},
        {"mlp.down_proj", C, F, ZERO_INIT_NORMAL, residual_std, false, &t->down},
    };
    char name[ZERO_MAX_NAME];
    zero_unit_t unit;
    snprintf(name, sizeof name, "model.layers.%d", layer);
    TRY(zero_model_add_unit(model->declaration, name, &unit));
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        snprintf(name, sizeof name, "model.layers.%d.%s.weight", layer, tensors[i].suffix);
        arch_tensor_t spec = {name,           tensors[i].rows,  tensors[i].columns, tensors[i].init,
                              tensors[i].std, tensors[i].packed};
        TRY(arch_declare(model, unit, &spec, tensors[i].tensor));
    }
    return ZERO_OK;
}

static zero_status_t declare(model_t *model)
{
    int64_t L = model->options->model.layers, C = model->options->model.dim, V = model->options->model.vocab_size;
    zero_unit_t embed, head;
    llama_t *g = calloc(1, sizeof *g);
    if (!g)
        return report_rank_error(ZERO_ERROR_MEMORY, "no memory for the model's tables");
    model->arch = g;
    g->blocks = calloc((size_t)L, sizeof *g->blocks);
    g->layers = calloc((size_t)L, sizeof *g->layers);
    if (!g->blocks || !g->layers)
        return report_rank_error(ZERO_ERROR_MEMORY, "no memory for %lld layers' tables", (long long)L);

    const arch_tensor_t embed_spec = {"model.embed_tokens.weight", V, C, ZERO_INIT_NORMAL, ARCH_STD, false};
    const arch_tensor_t norm_spec = {"model.norm.weight", 0, C, ZERO_INIT_ONES, 0, false};
    const arch_tensor_t head_spec = {"lm_head.weight", V, C, ZERO_INIT_NORMAL, ARCH_STD, false};
    TRY(zero_model_add_unit(model->declaration, "model.embeddings", &embed));
    TRY(arch_declare(model, embed, &embed_spec, &g->embed));
    for (int l = 0; l < L; l++)
        TRY(declare_block(model, l, &g->blocks[l]));
    TRY(zero_model_add_unit(model->declaration, "model.head", &head));
    TRY(arch_declare(model, head, &norm_spec, &g->norm));
    return arch_declare(model, head, &head_spec, &g->head);
}

static void destroy(model_t *model)
{
    llama_t *g = model->arch;
    free(g->blocks);
    free(g->layers);
    free(g);
}

/* The token table is looked up, not multiplied by. */
static double flops_per_token(const model_t *model)
{
    const options_t *o = model->options;
    double params = (double)zero_model_n_params(model->declaration) - (double)(o->model.vocab_size * o->model.dim);
    return 6.0 * params + 6.0 * (double)(o->model.layers * o->model.dim * o->model.seq_len);
}

/* ---- activations ---- */

/* What backward needs and cannot make cheaply: each layer's own unless recompute is full. */
static void place_inputs(activations_t *a, const arch_sizes_t *s, block_activations_t *layer)
{
    layer->qkv = activations_take(a, s->R * s->qkv, s->element_bytes);
    layer->attention = activations_take(a, s->R * s->C, s->element_bytes);
    layer->mid = activations_take(a, s->R * s->C, s->element_bytes);
    layer->gate_up = activations_take(a, s->R * 2 * s->F, s->element_bytes);
    layer->rstd1 = activations_take(a, s->R, sizeof(float));
    layer->rstd2 = activations_take(a, s->R, sizeof(float));
    layer->logsumexp = activations_take(a, s->R * s->heads, sizeof(float));
}

/* What a norm or SwiGLU makes: each layer's own where recompute is none. */
static void place_outputs(activations_t *a, const arch_sizes_t *s, block_activations_t *layer)
{
    layer->normed1 = activations_take(a, s->R * s->C, s->element_bytes);
    layer->normed2 = activations_take(a, s->R * s->C, s->element_bytes);
    layer->hidden = activations_take(a, s->R * s->F, s->element_bytes);
}

static void place(const model_t *model, activations_t *a)
{
    llama_t *g = model->arch;
    arch_sizes_t s = arch_largest_sizes(model);
    options_recompute_t recompute = (options_recompute_t)model->options->model.recompute;
    block_activations_t shared = {0}; /* what no layer has for itself */
    if (recompute == RECOMPUTE_FULL)
        place_inputs(a, &s, &shared);
    if (recompute != RECOMPUTE_NONE)
        place_outputs(a, &s, &shared);
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
            place_outputs(a, &s, layer);
    }
    activations_end_span(a);
    g->x_final = activations_take(a, s.R * s.C, s.element_bytes);
    g->normed = activations_take(a, s.R * s.C, s.element_bytes);
    g->rstd = activations_take(a, s.R, sizeof(float));
    g->addend = activations_take(a, s.R * s.C, s.element_bytes);
    g->d_x = activations_take(a, s.R * s.C, s.element_bytes);
    g->d_c = activations_take(a, s.R * s.C, s.element_bytes);
    g->d_qkv = activations_take(a, s.R * s.qkv, s.element_bytes);
    g->d_f = activations_take(a, s.R * s.F, s.element_bytes);
}

/* ---- the products and norms of one block, by tensor ---- */

static int n_layers(const model_t *model)
{
    return (int)model->options->model.layers;
}

/* y[R, n_out] = x[R, n_in] W^T */
static zero_status_t linear(model_t *model, void *y, const void *x, zero_tensor_t weight, size_t n_in, size_t n_out)
{
    return model->kernels->linear(&model->ctx, y, x, model_weight(model, weight), ZERO_LINEAR_OUT_IN,
                                  (zero_weight_t){0}, model->n_batch * model->seq_len, n_in, n_out);
}

/* dx = dy W */
static zero_status_t input_gradient(model_t *model, void *dx, const void *dy, zero_tensor_t weight, size_t n_in,
                                    size_t n_out)
{
    return model->kernels->linear_backward_input(&model->ctx, dx, false, dy, model_weight(model, weight),
                                                 ZERO_LINEAR_OUT_IN, model->n_batch * model->seq_len, n_in, n_out);
}

/* dW = dy^T x */
static zero_status_t weight_gradient(model_t *model, zero_tensor_t weight, const void *x, const void *dy, size_t n_in,
                                     size_t n_out)
{
    return model->kernels->linear_backward_weight(&model->ctx, model_grad(model, weight), ZERO_LINEAR_OUT_IN,
                                                  (zero_grad_t){0}, x, dy, model->n_batch * model->seq_len, n_in,
                                                  n_out);
}

/* residual_out = residual + addend (NULL: none); y = RMSNorm(residual_out) */
static zero_status_t norm(model_t *model, void *y, float *rstd, void *residual_out, const void *residual,
                          const void *addend, zero_tensor_t weight)
{
    return model->kernels->rmsnorm(&model->ctx, y, rstd, residual_out, residual, addend, model_weight(model, weight),
                                   (float)model->options->model.norm_eps, model->n_batch * model->seq_len,
                                   (size_t)model->options->model.dim);
}

/* d_x += gradient through the norm of dy; with y, the norm's output is made again. */
static zero_status_t norm_backward(model_t *model, void *y, const void *dy, const void *residual, const float *rstd,
                                   zero_tensor_t weight)
{
    llama_t *g = model->arch;
    return model->kernels->rmsnorm_backward(&model->ctx, g->d_x, model_grad(model, weight), y, dy, residual, rstd,
                                            model_weight(model, weight), model->n_batch * model->seq_len,
                                            (size_t)model->options->model.dim);
}

static zero_status_t rope(model_t *model, void *qkv, bool inverse)
{
    arch_sizes_t s = arch_sizes(model);
    return model->kernels->rope(&model->ctx, qkv, inverse, (float)model->options->model.rope_theta, s.B, s.T, s.heads,
                                s.kv_heads, s.head_dim);
}

/* ---- forward ---- */

static zero_status_t embed_forward(model_t *model)
{
    llama_t *g = model->arch;
    return model->kernels->embed(&model->ctx, g->layers[0].x, model->tokens, model_weight(model, g->embed),
                                 (zero_weight_t){0}, model->n_batch, model->seq_len, (size_t)model->options->model.dim,
                                 (size_t)model->options->model.vocab_size);
}

/* From layer->x on to the input of the last matrix. `residual` and `addend` sum to x; x itself and NULL when it is
 * there already. */
static zero_status_t block_inner(model_t *model, int l, const void *residual, const void *addend)
{
    llama_t *g = model->arch;
    const zero_model_kernels_t *k = model->kernels;
    const block_tensors_t *t = &g->blocks[l];
    block_activations_t *a = &g->layers[l];
    arch_sizes_t s = arch_sizes(model);
    TRY(norm(model, a->normed1, a->rstd1, a->x, residual, addend, t->norm1));
    TRY(linear(model, a->qkv, a->normed1, t->q, s.C, s.qkv));
    TRY(rope(model, a->qkv, false));
    TRY(k->attention(&model->ctx, a->attention, a->logsumexp, a->qkv, s.B, s.T, s.heads, s.kv_heads, s.head_dim));
    TRY(linear(model, g->addend, a->attention, t->attention, s.C, s.C));
    TRY(norm(model, a->normed2, a->rstd2, a->mid, a->x, g->addend, t->norm2));
    TRY(linear(model, a->gate_up, a->normed2, t->gate, s.C, 2 * s.F));
    return k->swiglu(&model->ctx, a->hidden, a->gate_up, s.R, s.F);
}

static zero_status_t block_forward(model_t *model, int l)
{
    llama_t *g = model->arch;
    arch_sizes_t s = arch_sizes(model);
    const void *residual = l == 0 ? g->layers[0].x : g->layers[l - 1].mid;
    TRY(block_inner(model, l, residual, l == 0 ? NULL : g->addend));
    return linear(model, g->addend, g->layers[l].hidden, g->blocks[l].down, s.F, s.C);
}

static zero_status_t head_forward(model_t *model)
{
    llama_t *g = model->arch;
    TRY(norm(model, g->normed, g->rstd, g->x_final, g->layers[n_layers(model) - 1].mid, g->addend, g->norm));
    return arch_head_forward(model, g->normed, g->head);
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

static zero_status_t head_backward(model_t *model)
{
    llama_t *g = model->arch;
    arch_sizes_t s = arch_sizes(model);
    TRY(arch_head_backward(model, g->d_c, g->normed, g->head));
    TRY(model->kernels->zero_fill(&model->ctx, g->d_x, s.R * s.C * s.element_bytes));
    return norm_backward(model, NULL, g->d_c, g->x_final, g->rstd, g->norm);
}

/* A matrix's input, where it was dropped, is made again by the backward of what made it. So each matrix hands its
 * gradient on first, and takes its own once its input is there. */
static zero_status_t block_backward(model_t *model, int l)
{
    llama_t *g = model->arch;
    const zero_model_kernels_t *k = model->kernels;
    const block_tensors_t *t = &g->blocks[l];
    const block_activations_t *a = &g->layers[l];
    arch_sizes_t s = arch_sizes(model);
    bool remakes = model->options->model.recompute == RECOMPUTE_LIGHT;
    if (model->options->model.recompute == RECOMPUTE_FULL)
        TRY(block_inner(model, l, a->x, NULL));

    /* d_x: of x_l+1, and so of mid and of the branch's end alike */
    TRY(input_gradient(model, g->d_f, g->d_x, t->down, s.F, s.C));
    TRY(k->swiglu_backward(&model->ctx, a->gate_up, remakes ? a->hidden : NULL, g->d_f, a->gate_up, s.R, s.F));
    TRY(weight_gradient(model, t->down, a->hidden, g->d_x, s.F, s.C));
    TRY(input_gradient(model, g->d_c, a->gate_up, t->gate, s.C, 2 * s.F));
    TRY(norm_backward(model, remakes ? a->normed2 : NULL, g->d_c, a->mid, a->rstd2, t->norm2));
    TRY(weight_gradient(model, t->gate, a->normed2, a->gate_up, s.C, 2 * s.F));

    /* d_x: now of mid */
    TRY(weight_gradient(model, t->attention, a->attention, g->d_x, s.C, s.C));
    TRY(input_gradient(model, g->d_c, g->d_x, t->attention, s.C, s.C));
    TRY(k->attention_backward(&model->ctx, g->d_qkv, g->d_c, a->qkv, a->attention, a->logsumexp, s.B, s.T, s.heads,
                              s.kv_heads, s.head_dim));
    TRY(rope(model, g->d_qkv, true));
    TRY(input_gradient(model, g->d_c, g->d_qkv, t->q, s.C, s.qkv));
    TRY(norm_backward(model, remakes ? a->normed1 : NULL, g->d_c, a->x, a->rstd1, t->norm1));
    return weight_gradient(model, t->q, a->normed1, g->d_qkv, s.C, s.qkv);
}

static zero_status_t embed_backward(model_t *model)
{
    llama_t *g = model->arch;
    arch_sizes_t s = arch_sizes(model);
    return model->kernels->embed_backward(&model->ctx, model_grad(model, g->embed), (zero_grad_t){0}, g->d_x,
                                          model->tokens, s.B, s.T, s.C, s.V);
}

static zero_status_t backward(model_t *model, zero_unit_t unit)
{
    if (unit == 0)
        return embed_backward(model);
    if (unit <= n_layers(model))
        return block_backward(model, unit - 1);
    return head_backward(model);
}

const model_ops_t llama_ops = {
    .name = "Llama",
    .mlp_inputs = 2,
    .declare = declare,
    .place = place,
    .forward = forward,
    .backward = backward,
    .destroy = destroy,
    .flops_per_token = flops_per_token,
};
