/* sample.c - see sample.h. Every token runs the whole context again: samples are short and rare, and this needs no code
 * beside the forward pass. */
#include "train/sample.h"

#include <math.h>
#include <stdlib.h>

#include "train/report/report.h"

/* Moves the k largest logits' indices to the front of order, largest first; ties go to the smaller index. */
static void select_top(const float *logits, int n, int k, int32_t *order)
{
    for (int i = 0; i < n; i++)
        order[i] = i;
    for (int i = 0; i < k; i++) {
        int best = i;
        for (int j = i + 1; j < n; j++) {
            float a = logits[order[j]], b = logits[order[best]];
            if (a > b || (a == b && order[j] < order[best]))
                best = j;
        }
        int32_t swap = order[i];
        order[i] = order[best];
        order[best] = swap;
    }
}

int32_t sample_draw(const float *logits, int n, float temperature, int top_k, double random, int32_t *order)
{
    int k = temperature <= 0.0f ? 1 : (top_k > 0 && top_k < n ? top_k : n);
    bool all = k == n;
    if (all)
        for (int i = 0; i < n; i++)
            order[i] = i;
    else
        select_top(logits, n, k, order);
    if (k == 1)
        return order[0];
    double largest = logits[order[0]], total = 0.0, reached = 0.0;
    for (int i = 0; i < k; i++)
        largest = fmax(largest, (double)logits[order[i]]);
    for (int i = 0; i < k; i++)
        total += exp(((double)logits[order[i]] - largest) / (double)temperature);
    for (int i = 0; i < k; i++) {
        reached += exp(((double)logits[order[i]] - largest) / (double)temperature);
        if (random * total < reached)
            return order[i];
    }
    return order[k - 1];
}

/* Returns the next of a sequence of uniform numbers in [0, 1): splitmix64 (Steele et al. 2014). */
static double next_uniform(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (double)((z ^ (z >> 31)) >> 11) * 0x1.0p-53;
}

zero_status_t sample_generate(model_t *model, const sample_spec_t *spec, int32_t *tokens, int n_prompt)
{
    int vocab_size = (int)model->options->model.vocab_size, seq_len = (int)model->options->model.seq_len;
    uint64_t state = spec->seed;
    zero_status_t status = ZERO_OK;
    float *logits = malloc((size_t)vocab_size * sizeof *logits);
    int32_t *order = malloc((size_t)vocab_size * sizeof *order);
    if (!logits || !order)
        status = report_rank_error(ZERO_ERROR_MEMORY, "no memory to sample from %d logits", vocab_size);
    for (int n = n_prompt; n < n_prompt + spec->n_tokens && status == ZERO_OK; n++) {
        int context = n < seq_len ? n : seq_len;
        status = model_logits(model, tokens + n - context, (size_t)context, logits);
        if (status == ZERO_OK)
            tokens[n] = sample_draw(logits, vocab_size, spec->temperature, spec->top_k, next_uniform(&state), order);
    }
    free(logits);
    free(order);
    return status;
}
