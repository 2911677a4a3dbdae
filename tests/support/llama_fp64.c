/* llama_fp64.c - Llama for fp64_model.h: pre-RMSNorm, rotary positions (rotate_half), SwiGLU, shared key/value heads,
 * no biases, a head of its own, nn.Linear weights [out, in]. One sequence at a time, one loop per formula.
 */
#include "tests/support/fp64_model.h"

#include <math.h>

/* A layer's tensors, in the order in which forward uses them. */
enum { NORM_1, Q, K, V, O, NORM_2, GATE, UP, DOWN, PER_LAYER };

/* normed = x / sqrt(mean(x^2) + eps) * weight, for each of n_rows rows of dim */
static void rms_norm(fp64_model_t *model, const double *weight, size_t n_rows)
{
    size_t dim = model->sizes.dim;
    for (size_t r = 0; r < n_rows; r++) {
        const double *row = model->x + r * dim;
        double square = 0;
        for (size_t i = 0; i < dim; i++)
            square += row[i] * row[i] / (double)dim;
        for (size_t i = 0; i < dim; i++)
            model->normed[r * dim + i] = row[i] / sqrt(square + model->sizes.norm_eps) * weight[i];
    }
}

/* out [n_rows, n_out] = x [n_rows, n_in] weight [n_out, n_in]^T; out's rows are `stride` apart */
static void linear(const double *x, const fp64_tensor_t *weight, size_t n_rows, double *out, size_t stride)
{
    size_t n_out = weight->shape[0], n_in = weight->shape[1];
    for (size_t r = 0; r < n_rows; r++) {
        for (size_t j = 0; j < n_out; j++) {
            double sum = 0;
            for (size_t i = 0; i < n_in; i++)
                sum += x[r * n_in + i] * weight->values[j * n_in + i];
            out[r * stride + j] = sum;
        }
    }
}

/* HF: x cos + rotate_half(x) sin, where rotate_half(x) = (-second half, first half) and angles repeat in both halves.
 */
static void rotate(double *head, size_t head_dim, size_t position, double theta)
{
    size_t half = head_dim / 2;
    for (size_t i = 0; i < half; i++) {
        double angle = (double)position / pow(theta, (double)(2 * i) / (double)head_dim);
        double first = head[i], second = head[i + half];
        head[i] = first * cos(angle) - second * sin(angle);
        head[i + half] = second * cos(angle) + first * sin(angle);
    }
}

static void attention(fp64_model_t *model, const fp64_tensor_t *w, size_t seq_len)
{
    const fp64_sizes_t *s = &model->sizes;
    size_t head_dim = s->dim / s->heads, kv = s->kv_heads * head_dim, width = s->dim + 2 * kv;
    linear(model->normed, &w[Q], seq_len, model->qkv, width);
    linear(model->normed, &w[K], seq_len, model->qkv + s->dim, width);
    linear(model->normed, &w[V], seq_len, model->qkv + s->dim + kv, width);
    for (size_t t = 0; t < seq_len; t++)
        for (size_t head = 0; head < s->heads + s->kv_heads; head++)
            rotate(model->qkv + t * width + head * head_dim, head_dim, t, s->rope_theta);
    fp64_causal_attention(model, s->kv_heads, seq_len);
    linear(model->attended, &w[O], seq_len, model->update, s->dim);
}

/* hidden: [2, seq_len, ffn_dim], the gates and the ups */
static void mlp(fp64_model_t *model, const fp64_tensor_t *w, size_t seq_len)
{
    size_t n = seq_len * model->sizes.ffn_dim;
    double *gate = model->hidden, *up = model->hidden + n;
    linear(model->normed, &w[GATE], seq_len, gate, model->sizes.ffn_dim);
    linear(model->normed, &w[UP], seq_len, up, model->sizes.ffn_dim);
    for (size_t i = 0; i < n; i++)
        gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
    linear(gate, &w[DOWN], seq_len, model->update, model->sizes.dim);
}

static const double *run(fp64_model_t *model, const int32_t *tokens, size_t seq_len)
{
    size_t dim = model->sizes.dim;
    for (size_t t = 0; t < seq_len; t++)
        for (size_t i = 0; i < dim; i++)
            model->x[t * dim + i] = model->tensors[0].values[(size_t)tokens[t] * dim + i];
    for (size_t layer = 0; layer < model->sizes.layers; layer++) {
        const fp64_tensor_t *w = &model->tensors[1 + layer * PER_LAYER];
        rms_norm(model, w[NORM_1].values, seq_len);
        attention(model, w, seq_len);
        fp64_add_update(model, seq_len);
        rms_norm(model, w[NORM_2].values, seq_len);
        mlp(model, w, seq_len);
        fp64_add_update(model, seq_len);
    }
    rms_norm(model, model->tensors[model->n_tensors - 2].values, seq_len);
    return model->normed;
}

fp64_model_t *llama_fp64_create(const fp64_sizes_t *sizes)
{
    size_t dim = sizes->dim, ffn_dim = sizes->ffn_dim, kv = sizes->kv_heads * (dim / sizes->heads);
    const struct {
        const char *name;
        size_t rows, columns;
    } tensors[PER_LAYER] = {
        [NORM_1] = {"input_layernorm", dim, 0},   [Q] = {"self_attn.q_proj", dim, dim},
        [K] = {"self_attn.k_proj", kv, dim},      [V] = {"self_attn.v_proj", kv, dim},
        [O] = {"self_attn.o_proj", dim, dim},     [NORM_2] = {"post_attention_layernorm", dim, 0},
        [GATE] = {"mlp.gate_proj", ffn_dim, dim}, [UP] = {"mlp.up_proj", ffn_dim, dim},
        [DOWN] = {"mlp.down_proj", dim, ffn_dim},
    };
    fp64_model_t *model = fp64_model_create(sizes, 3 + sizes->layers * PER_LAYER, dim + 2 * kv, 2 * ffn_dim);
    model->run = run;
    fp64_model_add(model, sizes->vocab_size, dim, "model.embed_tokens.weight");
    for (size_t layer = 0; layer < sizes->layers; layer++)
        for (size_t k = 0; k < PER_LAYER; k++)
            fp64_model_add(model, tensors[k].rows, tensors[k].columns, "model.layers.%zu.%s.weight", layer,
                           tensors[k].name);
    fp64_model_add(model, dim, 0, "model.norm.weight");
    model->head = model->n_tensors;
    fp64_model_add(model, sizes->vocab_size, dim, "lm_head.weight");
    return model;
}
