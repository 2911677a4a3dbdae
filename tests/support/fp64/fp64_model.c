/* fp64_model.c - see fp64_model.h: what the architectures have in common. One loop per formula. */
#include "tests/support/fp64/fp64_model.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *allocate(size_t n, size_t size)
{
    void *memory = calloc(n, size);
    if (memory == NULL) {
        fprintf(stderr, "fp64_model: out of memory for %zu elements\n", n);
        abort();
    }
    return memory;
}

size_t fp64_head_dim(const fp64_sizes_t *sizes)
{
    return sizes->head_dim > 0 ? sizes->head_dim : sizes->dim / sizes->heads;
}

fp64_model_t *fp64_model_create(const fp64_sizes_t *sizes, size_t n_tensors, size_t qkv_width, size_t hidden_width)
{
    fp64_model_t *model = allocate(1, sizeof *model);
    size_t T = sizes->max_seq_len;
    model->sizes = *sizes;
    model->tensors = allocate(n_tensors, sizeof *model->tensors);
    model->x = allocate(T * sizes->dim, sizeof(double));
    model->normed = allocate(T * sizes->dim, sizeof(double));
    model->qkv = allocate(T * qkv_width, sizeof(double));
    model->attended = allocate(T * sizes->heads * fp64_head_dim(sizes), sizeof(double));
    model->hidden = allocate(T * hidden_width, sizeof(double));
    model->update = allocate(T * sizes->dim, sizeof(double));
    model->scores = allocate(T, sizeof(double));
    model->logits = allocate(sizes->vocab_size, sizeof(double));
    return model;
}

void fp64_model_add(fp64_model_t *model, size_t rows, size_t columns, const char *format, ...)
{
    fp64_tensor_t *tensor = &model->tensors[model->n_tensors++];
    va_list args;
    va_start(args, format);
    vsnprintf(tensor->name, sizeof tensor->name, format, args);
    va_end(args);
    tensor->n_dims = columns > 0 ? 2 : 1;
    tensor->shape[0] = rows;
    tensor->shape[1] = columns > 0 ? columns : 1;
    tensor->n_elems = rows * tensor->shape[1];
    tensor->values = allocate(tensor->n_elems, sizeof(double));
}

void fp64_model_destroy(fp64_model_t *model)
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

fp64_tensor_t *fp64_model_tensor(fp64_model_t *model, const char *name)
{
    static const char prefix[] = "transformer.";
    for (size_t i = 0; i < model->n_tensors; i++) {
        const char *full = model->tensors[i].name;
        size_t skip = strncmp(full, prefix, sizeof prefix - 1) == 0 ? sizeof prefix - 1 : 0;
        if (strcmp(full, name) == 0 || strcmp(full + skip, name) == 0)
            return &model->tensors[i];
    }
    return NULL;
}

/* The largest is taken out so that nothing overflows. */
double fp64_softmax(double *values, size_t n)
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

void fp64_causal_attention(fp64_model_t *model, size_t kv_heads, size_t seq_len)
{
    size_t heads = model->sizes.heads, head_dim = fp64_head_dim(&model->sizes);
    size_t width = (heads + 2 * kv_heads) * head_dim; /* rows are this far apart */
    double *scores = model->scores;
    for (size_t head = 0; head < heads; head++) {
        const double *q = model->qkv + head * head_dim;
        const double *k = model->qkv + (heads + head / (heads / kv_heads)) * head_dim, *v = k + kv_heads * head_dim;
        for (size_t t = 0; t < seq_len; t++) {
            size_t window = model->sizes.window, first = window > 0 && t >= window ? t - window + 1 : 0;
            for (size_t u = first; u <= t; u++) {
                scores[u] = 0;
                for (size_t i = 0; i < head_dim; i++)
                    scores[u] += q[t * width + i] * k[u * width + i] / sqrt((double)head_dim);
            }
            fp64_softmax(scores + first, t + 1 - first);
            double *out = model->attended + (t * heads + head) * head_dim;
            memset(out, 0, head_dim * sizeof(double));
            for (size_t u = first; u <= t; u++) {
                for (size_t i = 0; i < head_dim; i++)
                    out[i] += scores[u] * v[u * width + i];
            }
        }
    }
}

void fp64_add_update(fp64_model_t *model, size_t seq_len)
{
    for (size_t i = 0; i < seq_len * model->sizes.dim; i++)
        model->x[i] += model->update[i];
}

/* -log softmax(head . x)[target] of one position; x [dim] is normed already, logits [vocab_size] is written if given */
static double cross_entropy(fp64_model_t *model, const double *x, int32_t target, double *logits)
{
    size_t dim = model->sizes.dim, vocab_size = model->sizes.vocab_size;
    const double *head = model->tensors[model->head].values;
    for (size_t token = 0; token < vocab_size; token++) {
        model->logits[token] = 0;
        for (size_t i = 0; i < dim; i++)
            model->logits[token] += x[i] * head[token * dim + i];
    }
    if (logits != NULL)
        memcpy(logits, model->logits, vocab_size * sizeof(double));
    double target_logit = model->logits[target];
    return fp64_softmax(model->logits, vocab_size) - target_logit;
}

/* Returns the position behind the document that begins at position t of sequence b. */
static size_t document_end(const fp64_batch_t *batch, size_t b, size_t t)
{
    const int32_t *starts = batch->starts ? batch->starts + b * batch->seq_len : NULL;
    size_t end = t + 1;
    while (end < batch->seq_len && (!starts || starts[end] == starts[t]))
        end++;
    return end;
}

double fp64_model_loss(fp64_model_t *model, const fp64_batch_t *batch, double *logits)
{
    size_t seq_len = batch->seq_len;
    double sum = 0;
    for (size_t b = 0; b < batch->n_sequences; b++) {
        const double *normed = NULL;
        for (size_t t = 0, first = 0, end = 0; t < seq_len; t++) {
            size_t row = b * seq_len + t;
            if (t == end) {
                first = t;
                end = document_end(batch, b, t);
                normed = model->run(model, batch->tokens + row, end - first);
            }
            double *logits_row = logits != NULL ? logits + row * model->sizes.vocab_size : NULL;
            sum += cross_entropy(model, normed + (t - first) * model->sizes.dim, batch->targets[row], logits_row);
        }
    }
    return sum / (double)(batch->n_sequences * seq_len);
}

double fp64_model_numeric_grad(fp64_model_t *model, const fp64_batch_t *batch, fp64_tensor_t *tensor, size_t index,
                               double h)
{
    double value = tensor->values[index];
    tensor->values[index] = value + h;
    double above = fp64_model_loss(model, batch, NULL);
    tensor->values[index] = value - h;
    double below = fp64_model_loss(model, batch, NULL);
    tensor->values[index] = value;
    return (above - below) / (2 * h);
}
