/* llama_fp64.c - Llama for fp64_model.h: pre-RMSNorm, rotary positions (rotate_half), SwiGLU, shared key/value heads,
 * nn.Linear weights [out, in]; with biases of q, k and v, norms of q and k heads, a head of its own and scaled
 * positions as the sizes say. One sequence at a time, one loop per formula.
 */
#include "tests/support/fp64/fp64_model.h"

#include <math.h>

/* A layer's tensors, in the order in which forward uses them. */
enum { NORM_1, Q, K, V, Q_BIAS, K_BIAS, V_BIAS, Q_NORM, K_NORM, O, NORM_2, GATE, UP, DOWN, PER_LAYER };

static bool is_present(const fp64_sizes_t *sizes, int which)
{
    if (which == Q_NORM || which == K_NORM)
        return sizes->head_norms;
    return sizes->qkv_bias || (which != Q_BIAS && which != K_BIAS && which != V_BIAS);
}

static size_t n_before(const fp64_sizes_t *sizes, int which)
{
    size_t n = 0;
    for (int k = 0; k < which; k++)
        n += is_present(sizes, k);
    return n;
}

static const fp64_tensor_t *find(const fp64_model_t *model, size_t layer, int which)
{
    const fp64_sizes_t *s = &model->sizes;
    return &model->tensors[1 + layer * n_before(s, PER_LAYER) + n_before(s, which)];
}

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

/* out [n_rows, n_out] += bias [n_out] */
static void add_bias(const fp64_tensor_t *bias, size_t n_rows, double *out, size_t stride)
{
    for (size_t r = 0; r < n_rows; r++)
        for (size_t j = 0; j < bias->n_elems; j++)
            out[r * stride + j] += bias->values[j];
}

/* HF's "llama3": low frequencies are divided by the factor, high ones stay, and in between both are mixed by how often
 * a wave fits into the original positions. */
static double scaled_frequency(const fp64_sizes_t *s, double frequency)
{
    double wavelength = 2 * acos(-1.0) / frequency;
    if (s->rope_factor <= 1 || wavelength < s->rope_original / s->rope_high_freq)
        return frequency;
    if (wavelength > s->rope_original / s->rope_low_freq)
        return frequency / s->rope_factor;
    double smooth = (s->rope_original / wavelength - s->rope_low_freq) / (s->rope_high_freq - s->rope_low_freq);
    return (1 - smooth) * frequency / s->rope_factor + smooth * frequency;
}

/* HF: x cos + rotate_half(x) sin, where rotate_half(x) = (-second half, first half) and angles repeat in both halves.
 */
static void rotate(const fp64_sizes_t *s, double *head, size_t head_dim, size_t position)
{
    size_t half = head_dim / 2;
    for (size_t i = 0; i < half; i++) {
        double frequency = 1 / pow(s->rope_theta, (double)(2 * i) / (double)head_dim);
        double angle = (double)position * scaled_frequency(s, frequency);
        double first = head[i], second = head[i + half];
        head[i] = first * cos(angle) - second * sin(angle);
        head[i + half] = second * cos(angle) + first * sin(angle);
    }
}

/* HF's Qwen3RMSNorm over the elements of one head. */
static void normalize_head(const fp64_sizes_t *s, double *head, const double *weight, size_t head_dim)
{
    double square = 0;
    for (size_t i = 0; i < head_dim; i++)
        square += head[i] * head[i] / (double)head_dim;
    for (size_t i = 0; i < head_dim; i++)
        head[i] = head[i] / sqrt(square + s->norm_eps) * weight[i];
}

static void attention(fp64_model_t *model, size_t layer, size_t seq_len)
{
    const fp64_sizes_t *s = &model->sizes;
    size_t head_dim = fp64_head_dim(s), q = s->heads * head_dim, kv = s->kv_heads * head_dim, width = q + 2 * kv;
    double *parts[] = {model->qkv, model->qkv + q, model->qkv + q + kv};
    for (int i = 0; i < 3; i++) {
        linear(model->normed, find(model, layer, Q + i), seq_len, parts[i], width);
        if (s->qkv_bias)
            add_bias(find(model, layer, Q_BIAS + i), seq_len, parts[i], width);
    }
    for (size_t t = 0; t < seq_len; t++)
        for (size_t head = 0; head < s->heads + s->kv_heads; head++) {
            double *values = model->qkv + t * width + head * head_dim;
            if (s->head_norms)
                normalize_head(s, values, find(model, layer, head < s->heads ? Q_NORM : K_NORM)->values, head_dim);
            rotate(s, values, head_dim, t);
        }
    fp64_causal_attention(model, s->kv_heads, seq_len);
    linear(model->attended, find(model, layer, O), seq_len, model->update, s->dim);
}

/* hidden: [2, seq_len, ffn_dim], the gates and the ups */
static void mlp(fp64_model_t *model, size_t layer, size_t seq_len)
{
    size_t n = seq_len * model->sizes.ffn_dim;
    double *gate = model->hidden, *up = model->hidden + n;
    linear(model->normed, find(model, layer, GATE), seq_len, gate, model->sizes.ffn_dim);
    linear(model->normed, find(model, layer, UP), seq_len, up, model->sizes.ffn_dim);
    for (size_t i = 0; i < n; i++)
        gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
    linear(gate, find(model, layer, DOWN), seq_len, model->update, model->sizes.dim);
}

static const double *run(fp64_model_t *model, const int32_t *tokens, size_t seq_len)
{
    size_t dim = model->sizes.dim;
    for (size_t t = 0; t < seq_len; t++)
        for (size_t i = 0; i < dim; i++)
            model->x[t * dim + i] = model->tensors[0].values[(size_t)tokens[t] * dim + i];
    for (size_t layer = 0; layer < model->sizes.layers; layer++) {
        rms_norm(model, find(model, layer, NORM_1)->values, seq_len);
        attention(model, layer, seq_len);
        fp64_add_update(model, seq_len);
        rms_norm(model, find(model, layer, NORM_2)->values, seq_len);
        mlp(model, layer, seq_len);
        fp64_add_update(model, seq_len);
    }
    rms_norm(model, find(model, model->sizes.layers, NORM_1)->values, seq_len);
    return model->normed;
}

fp64_model_t *llama_fp64_create(const fp64_sizes_t *sizes)
{
    size_t dim = sizes->dim, ffn_dim = sizes->ffn_dim, head_dim = fp64_head_dim(sizes);
    size_t q = sizes->heads * head_dim, kv = sizes->kv_heads * head_dim;
    const struct {
        const char *name;
        size_t rows, columns;
    } tensors[PER_LAYER] = {
        [NORM_1] = {"input_layernorm.weight", dim, 0},
        [Q] = {"self_attn.q_proj.weight", q, dim},
        [K] = {"self_attn.k_proj.weight", kv, dim},
        [V] = {"self_attn.v_proj.weight", kv, dim},
        [Q_BIAS] = {"self_attn.q_proj.bias", q, 0},
        [K_BIAS] = {"self_attn.k_proj.bias", kv, 0},
        [V_BIAS] = {"self_attn.v_proj.bias", kv, 0},
        [Q_NORM] = {"self_attn.q_norm.weight", head_dim, 0},
        [K_NORM] = {"self_attn.k_norm.weight", head_dim, 0},
        [O] = {"self_attn.o_proj.weight", dim, q},
        [NORM_2] = {"post_attention_layernorm.weight", dim, 0},
        [GATE] = {"mlp.gate_proj.weight", ffn_dim, dim},
        [UP] = {"mlp.up_proj.weight", ffn_dim, dim},
        [DOWN] = {"mlp.down_proj.weight", dim, ffn_dim},
    };
    fp64_model_t *model = fp64_model_create(sizes, 3 + sizes->layers * PER_LAYER, q + 2 * kv, 2 * ffn_dim);
    model->run = run;
    fp64_model_add(model, sizes->vocab_size, dim, "model.embed_tokens.weight");
    for (size_t layer = 0; layer < sizes->layers; layer++)
        for (int k = 0; k < PER_LAYER; k++)
            if (is_present(sizes, k))
                fp64_model_add(model, tensors[k].rows, tensors[k].columns, "model.layers.%zu.%s", layer,
                               tensors[k].name);
    fp64_model_add(model, dim, 0, "model.norm.weight");
    model->head = sizes->tied ? 0 : model->n_tensors;
    if (!sizes->tied)
        fp64_model_add(model, sizes->vocab_size, dim, "lm_head.weight");
    return model;
}
