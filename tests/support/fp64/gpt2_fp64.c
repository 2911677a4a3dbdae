/* gpt2_fp64.c - GPT-2 for fp64_model.h: pre-LayerNorm, learned positions, gelu_new, tied head, Conv1D weights [in,
 * out]. One sequence at a time, one loop per formula, shapes beside the arrays.
 */
#include "tests/support/fp64/fp64_model.h"

#include <math.h>
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

/* ---- Formulas ---------------------------------------------------------------------------------------------------- */

/* normed = (x - mean) / sqrt(variance + eps) * weight + bias, for each of n_rows rows of dim */
static void layer_norm(fp64_model_t *model, const double *weight, const double *bias, size_t n_rows)
{
    size_t dim = model->sizes.dim;
    for (size_t r = 0; r < n_rows; r++) {
        const double *row = model->x + r * dim;
        double mean = 0, variance = 0;
        for (size_t i = 0; i < dim; i++)
            mean += row[i] / (double)dim;
        for (size_t i = 0; i < dim; i++)
            variance += (row[i] - mean) * (row[i] - mean) / (double)dim;
        for (size_t i = 0; i < dim; i++)
            model->normed[r * dim + i] = (row[i] - mean) / sqrt(variance + model->sizes.norm_eps) * weight[i] + bias[i];
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

static double gelu_new(double x)
{
    const double sqrt_2_over_pi = 0.79788456080286535588;
    return 0.5 * x * (1 + tanh(sqrt_2_over_pi * (x + 0.044715 * x * x * x)));
}

/* ---- The model --------------------------------------------------------------------------------------------------- */

static void embed(fp64_model_t *model, const int32_t *tokens, size_t seq_len)
{
    size_t dim = model->sizes.dim;
    const double *wte = model->tensors[0].values, *wpe = model->tensors[1].values;
    for (size_t t = 0; t < seq_len; t++) {
        for (size_t i = 0; i < dim; i++)
            model->x[t * dim + i] = wte[(size_t)tokens[t] * dim + i] + wpe[t * dim + i];
    }
}

/* x += attention(ln_1(x)); x += mlp(ln_2(x)) */
static void block(fp64_model_t *model, size_t layer, size_t seq_len)
{
    size_t dim = model->sizes.dim;
    const fp64_tensor_t *w = &model->tensors[2 + layer * PER_LAYER];
    layer_norm(model, w[LN_1_W].values, w[LN_1_B].values, seq_len);
    conv1d(model->normed, w[ATTN_W].values, w[ATTN_B].values, seq_len, dim, 3 * dim, model->qkv);
    fp64_causal_attention(model, model->sizes.heads, seq_len);
    conv1d(model->attended, w[ATTN_PROJ_W].values, w[ATTN_PROJ_B].values, seq_len, dim, dim, model->update);
    fp64_add_update(model, seq_len);

    layer_norm(model, w[LN_2_W].values, w[LN_2_B].values, seq_len);
    conv1d(model->normed, w[FC_W].values, w[FC_B].values, seq_len, dim, 4 * dim, model->hidden);
    for (size_t i = 0; i < seq_len * 4 * dim; i++)
        model->hidden[i] = gelu_new(model->hidden[i]);
    conv1d(model->hidden, w[MLP_PROJ_W].values, w[MLP_PROJ_B].values, seq_len, 4 * dim, dim, model->update);
    fp64_add_update(model, seq_len);
}

static const double *run(fp64_model_t *model, const int32_t *tokens, size_t seq_len)
{
    const fp64_tensor_t *ln_f = &model->tensors[model->n_tensors - 2];
    embed(model, tokens, seq_len);
    for (size_t layer = 0; layer < model->sizes.layers; layer++)
        block(model, layer, seq_len);
    layer_norm(model, ln_f[0].values, ln_f[1].values, seq_len);
    return model->normed;
}

fp64_model_t *gpt2_fp64_create(const fp64_sizes_t *sizes)
{
    size_t dim = sizes->dim;
    fp64_model_t *model = fp64_model_create(sizes, 4 + sizes->layers * PER_LAYER, 3 * dim, 4 * dim);
    model->run = run;
    model->head = 0; /* tied */
    fp64_model_add(model, sizes->vocab_size, dim, "transformer.wte.weight");
    fp64_model_add(model, sizes->max_seq_len, dim, "transformer.wpe.weight");
    for (size_t layer = 0; layer < sizes->layers; layer++)
        for (size_t k = 0; k < PER_LAYER; k++)
            fp64_model_add(model, layer_tensors[k].rows * dim, layer_tensors[k].columns * dim, "transformer.h.%zu.%s",
                           layer, layer_tensors[k].name);
    fp64_model_add(model, dim, 0, "transformer.ln_f.weight");
    fp64_model_add(model, dim, 0, "transformer.ln_f.bias");
    return model;
}
