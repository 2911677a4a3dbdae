/* gpt2_fp64.c - see gpt2_fp64.h. One sequence at a time, one loop per formula, shapes beside the arrays. */
#include "tests/gpt2_fp64.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A layer's tensors in HF's order, and their shapes in multiples of dim (0: no second dimension). */
enum { LN_1_W, LN_1_B, ATTN_W, ATTN_B, ATTN_PROJ_W, ATTN_PROJ_B, LN_2_W, LN_2_B, FC_W, FC_B, MLP_PROJ_W, MLP_PROJ_B };
static const struct {
    const char *name;
    size_t rows, columns;
} layer_tensors[] = {
    [LN_1_W] = {"ln_1.weight", 1, 0},
    [LN_1_B] = {"ln_1.bias", 1, 0},
    [ATTN_W] = {"attn.c_attn.weight", 1, 3},
    [ATTN_B] = {"attn.c_attn.bias", 3, 0},
    [ATTN_PROJ_W] = {"attn.c_proj.weight", 1, 1},
    [ATTN_PROJ_B] = {"attn.c_proj.bias", 1, 0},
    [LN_2_W] = {"ln_2.weight", 1, 0},
    [LN_2_B] = {"ln_2.bias", 1, 0},
    [FC_W] = {"mlp.c_fc.weight", 1, 4},
    [FC_B] = {"mlp.c_fc.bias", 4, 0},
    [MLP_PROJ_W] = {"mlp.c_proj.weight", 4, 1},
    [MLP_PROJ_B] = {"mlp.c_proj.bias", 1, 0},
};
#define PER_LAYER (sizeof layer_tensors / sizeof layer_tensors[0])

struct gpt2_fp64 {
    gpt2_fp64_sizes_t sizes;
    size_t n_tensors;
    gpt2_fp64_tensor_t *tensors;
    /* Activations of one sequence; rows are positions. */
    double *x;        /* [max_seq_len, dim], the residual stream */
    double *normed;   /* [max_seq_len, dim] */
    double *qkv;      /* [max_seq_len, 3 dim] */
    double *attended; /* [max_seq_len, dim] */
    double *hidden;   /* [max_seq_len, 4 dim] */
    double *update;   /* [max_seq_len, dim], what a sub-layer adds to x */
    double *scores;   /* [max_seq_len], one query's */
    double *logits;   /* [vocab_size], one position's */
};

static void *allocate(size_t n, size_t size)
{
    void *memory = calloc(n, size);
    if (memory == NULL) {
        fprintf(stderr, "gpt2_fp64: out of memory for %zu elements\n", n);
        abort();
    }
    return memory;
}

static void set_shape(gpt2_fp64_tensor_t *tensor, size_t rows, size_t columns)
{
    tensor->n_dims = columns > 0 ? 2 : 1;
    tensor->shape[0] = rows;
    tensor->shape[1] = columns > 0 ? columns : 1;
    tensor->n_elems = rows * tensor->shape[1];
    tensor->values = allocate(tensor->n_elems, sizeof(double));
}

static void declare_tensors(gpt2_fp64_t *model)
{
    const gpt2_fp64_sizes_t *s = &model->sizes;
    gpt2_fp64_tensor_t *next = model->tensors;
    snprintf(next->name, sizeof next->name, "transformer.wte.weight");
    set_shape(next++, s->vocab_size, s->dim);
    snprintf(next->name, sizeof next->name, "transformer.wpe.weight");
    set_shape(next++, s->max_seq_len, s->dim);
    for (size_t layer = 0; layer < s->layers; layer++) {
        for (size_t k = 0; k < PER_LAYER; k++) {
            snprintf(next->name, sizeof next->name, "transformer.h.%zu.%s", layer, layer_tensors[k].name);
            set_shape(next++, layer_tensors[k].rows * s->dim, layer_tensors[k].columns * s->dim);
        }
    }
    snprintf(next->name, sizeof next->name, "transformer.ln_f.weight");
    set_shape(next++, s->dim, 0);
    snprintf(next->name, sizeof next->name, "transformer.ln_f.bias");
    set_shape(next++, s->dim, 0);
}

gpt2_fp64_t *gpt2_fp64_create(const gpt2_fp64_sizes_t *sizes)
{
    gpt2_fp64_t *model = allocate(1, sizeof *model);
    model->sizes = *sizes;
    model->n_tensors = 4 + sizes->layers * PER_LAYER;
    model->tensors = allocate(model->n_tensors, sizeof *model->tensors);
    declare_tensors(model);
    size_t n = sizes->max_seq_len * sizes->dim;
    model->x = allocate(n, sizeof(double));
    model->normed = allocate(n, sizeof(double));
    model->qkv = allocate(3 * n, sizeof(double));
    model->attended = allocate(n, sizeof(double));
    model->hidden = allocate(4 * n, sizeof(double));
    model->update = allocate(n, sizeof(double));
    model->scores = allocate(sizes->max_seq_len, sizeof(double));
    model->logits = allocate(sizes->vocab_size, sizeof(double));
    return model;
}

void gpt2_fp64_destroy(gpt2_fp64_t *model)
{
    if (model == NULL)
        return;
    for (size_t i = 0; i < model->n_tensors; i++)
        free(model->tensors[i].values);
    double *buffers[] = {model->x,      model->normed, model->qkv,    model->attended,
                         model->hidden, model->update, model->scores, model->logits};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        free(buffers[i]);
    free(model->tensors);
    free(model);
}

size_t gpt2_fp64_n_tensors(const gpt2_fp64_t *model)
{
    return model->n_tensors;
}

gpt2_fp64_tensor_t *gpt2_fp64_tensor_at(gpt2_fp64_t *model, size_t index)
{
    return &model->tensors[index];
}

gpt2_fp64_tensor_t *gpt2_fp64_tensor(gpt2_fp64_t *model, const char *name)
{
    static const char prefix[] = "transformer.";
    size_t skip = strncmp(name, prefix, sizeof prefix - 1) == 0 ? 0 : sizeof prefix - 1;
    for (size_t i = 0; i < model->n_tensors; i++) {
        if (strcmp(model->tensors[i].name + skip, name) == 0)
            return &model->tensors[i];
    }
    return NULL;
}

/* ---- Formulas ---------------------------------------------------------------------------------------------------- */

/* out = (x - mean) / sqrt(variance + 1e-5) * weight + bias, for each of n_rows rows of dim */
static void layer_norm(const double *x, const double *weight, const double *bias, size_t n_rows, size_t dim,
                       double *out)
{
    for (size_t r = 0; r < n_rows; r++) {
        const double *row = x + r * dim;
        double mean = 0, variance = 0;
        for (size_t i = 0; i < dim; i++)
            mean += row[i] / (double)dim;
        for (size_t i = 0; i < dim; i++)
            variance += (row[i] - mean) * (row[i] - mean) / (double)dim;
        for (size_t i = 0; i < dim; i++)
            out[r * dim + i] = (row[i] - mean) / sqrt(variance + 1e-5) * weight[i] + bias[i];
    }
}

/* out [n_rows, n_out] = x [n_rows, n_in] weight [n_in, n_out] + bias [n_out] */
static void conv1d(const double *x, const double *weight, const double *bias, size_t n_rows, size_t n_in, size_t n_out,
                   double *out)
{
    for (size_t r = 0; r < n_rows; r++) {
        double *out_row = out + r * n_out;
        memcpy(out_row, bias, n_out * sizeof(double));
        for (size_t i = 0; i < n_in; i++) {
            for (size_t j = 0; j < n_out; j++)
                out_row[j] += x[r * n_in + i] * weight[i * n_out + j];
        }
    }
}

/* values[i] = exp(values[i]) / sum exp, n >= 1; returns log(sum exp), with the largest taken out so that nothing
 * overflows */
static double softmax(double *values, size_t n)
{
    double largest = values[0];
    for (size_t i = 1; i < n; i++)
        largest = fmax(largest, values[i]);
    double sum = exp(values[0] - largest);
    for (size_t i = 1; i < n; i++)
        sum += exp(values[i] - largest);
    for (size_t i = 0; i < n; i++)
        values[i] = exp(values[i] - largest) / sum;
    return largest + log(sum);
}

/* Every head of every position t looks back at positions 0..t:
 * attended_t = sum_u softmax_u(q_t . k_u / sqrt(head_dim)) v_u */
static void causal_attention(gpt2_fp64_t *model, size_t seq_len)
{
    size_t dim = model->sizes.dim, head_dim = dim / model->sizes.heads;
    double *scores = model->scores;
    for (size_t head = 0; head < model->sizes.heads; head++) {
        const double *q = model->qkv + head * head_dim, *k = q + dim, *v = k + dim; /* rows are 3 dim apart */
        for (size_t t = 0; t < seq_len; t++) {
            for (size_t u = 0; u <= t; u++) {
                scores[u] = 0;
                for (size_t i = 0; i < head_dim; i++)
                    scores[u] += q[t * 3 * dim + i] * k[u * 3 * dim + i] / sqrt((double)head_dim);
            }
            softmax(scores, t + 1);
            double *out = model->attended + t * dim + head * head_dim;
            memset(out, 0, head_dim * sizeof(double));
            for (size_t u = 0; u <= t; u++) {
                for (size_t i = 0; i < head_dim; i++)
                    out[i] += scores[u] * v[u * 3 * dim + i];
            }
        }
    }
}

static double gelu_new(double x)
{
    const double sqrt_2_over_pi = 0.79788456080286535588;
    return 0.5 * x * (1 + tanh(sqrt_2_over_pi * (x + 0.044715 * x * x * x)));
}

/* ---- The model --------------------------------------------------------------------------------------------------- */

static void add_update(gpt2_fp64_t *model, size_t seq_len)
{
    for (size_t i = 0; i < seq_len * model->sizes.dim; i++)
        model->x[i] += model->update[i];
}

static void embed(gpt2_fp64_t *model, const int32_t *tokens, size_t seq_len)
{
    size_t dim = model->sizes.dim;
    const double *wte = model->tensors[0].values, *wpe = model->tensors[1].values;
    for (size_t t = 0; t < seq_len; t++) {
        for (size_t i = 0; i < dim; i++)
            model->x[t * dim + i] = wte[(size_t)tokens[t] * dim + i] + wpe[t * dim + i];
    }
}

/* x += attention(ln_1(x)); x += mlp(ln_2(x)) */
static void block(gpt2_fp64_t *model, size_t layer, size_t seq_len)
{
    size_t dim = model->sizes.dim;
    const gpt2_fp64_tensor_t *w = &model->tensors[2 + layer * PER_LAYER];
    layer_norm(model->x, w[LN_1_W].values, w[LN_1_B].values, seq_len, dim, model->normed);
    conv1d(model->normed, w[ATTN_W].values, w[ATTN_B].values, seq_len, dim, 3 * dim, model->qkv);
    causal_attention(model, seq_len);
    conv1d(model->attended, w[ATTN_PROJ_W].values, w[ATTN_PROJ_B].values, seq_len, dim, dim, model->update);
    add_update(model, seq_len);

    layer_norm(model->x, w[LN_2_W].values, w[LN_2_B].values, seq_len, dim, model->normed);
    conv1d(model->normed, w[FC_W].values, w[FC_B].values, seq_len, dim, 4 * dim, model->hidden);
    for (size_t i = 0; i < seq_len * 4 * dim; i++)
        model->hidden[i] = gelu_new(model->hidden[i]);
    conv1d(model->hidden, w[MLP_PROJ_W].values, w[MLP_PROJ_B].values, seq_len, 4 * dim, dim, model->update);
    add_update(model, seq_len);
}

/* -log softmax(wte . x)[target] of one position; x [dim] is normed already, logits [vocab_size] is written if given */
static double cross_entropy(gpt2_fp64_t *model, const double *x, int32_t target, double *logits)
{
    size_t dim = model->sizes.dim, vocab_size = model->sizes.vocab_size;
    const double *wte = model->tensors[0].values;
    for (size_t token = 0; token < vocab_size; token++) {
        model->logits[token] = 0;
        for (size_t i = 0; i < dim; i++)
            model->logits[token] += x[i] * wte[token * dim + i];
    }
    if (logits != NULL)
        memcpy(logits, model->logits, vocab_size * sizeof(double));
    double target_logit = model->logits[target];
    return softmax(model->logits, vocab_size) - target_logit;
}

double gpt2_fp64_loss(gpt2_fp64_t *model, const gpt2_fp64_batch_t *batch, double *logits)
{
    const gpt2_fp64_sizes_t *s = &model->sizes;
    const gpt2_fp64_tensor_t *ln_f = &model->tensors[model->n_tensors - 2];
    size_t seq_len = batch->seq_len;
    double sum = 0;
    for (size_t b = 0; b < batch->n_sequences; b++) {
        embed(model, batch->tokens + b * seq_len, seq_len);
        for (size_t layer = 0; layer < s->layers; layer++)
            block(model, layer, seq_len);
        layer_norm(model->x, ln_f[0].values, ln_f[1].values, seq_len, s->dim, model->normed);
        for (size_t t = 0; t < seq_len; t++) {
            size_t row = b * seq_len + t;
            double *logits_row = logits != NULL ? logits + row * s->vocab_size : NULL;
            sum += cross_entropy(model, model->normed + t * s->dim, batch->targets[row], logits_row);
        }
    }
    return sum / (double)(batch->n_sequences * seq_len);
}

double gpt2_fp64_numeric_grad(gpt2_fp64_t *model, const gpt2_fp64_batch_t *batch, gpt2_fp64_tensor_t *tensor,
                              size_t index, double h)
{
    double value = tensor->values[index];
    tensor->values[index] = value + h;
    double above = gpt2_fp64_loss(model, batch, NULL);
    tensor->values[index] = value - h;
    double below = gpt2_fp64_loss(model, batch, NULL);
    tensor->values[index] = value;
    return (above - below) / (2 * h);
}
