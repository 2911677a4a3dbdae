/* sample.c - see sample.h. Where the model has no cache, every token runs the whole context again. Logits come in
 * pinned memory: a vocabulary's take longer on their way into any other. */
#include "train/forward/sample.h"

#include <math.h>
#include <stdlib.h>

#include "train/report/report.h"

/* Puts the k largest logits' indices at the front of order, largest first; ties go to the smaller index. Nearly all
 * logits take one comparison, with the smallest of the k so far. */
static void select_top(const float *logits, int n, int k, int32_t *order)
{
    float least = INFINITY;
    for (int i = 0, n_kept = 0; i < n; i++) {
        if (n_kept == k && !(logits[i] > least))
            continue;
        int at = n_kept < k ? n_kept++ : k - 1;
        for (; at > 0 && logits[i] > logits[order[at - 1]]; at--)
            order[at] = order[at - 1];
        order[at] = i;
        least = logits[order[n_kept - 1]];
    }
}

static int by_logit(const void *a, const void *b, void *logits)
{
    const int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    const float x = ((const float *)logits)[i], y = ((const float *)logits)[j];
    return x != y ? (x < y) - (x > y) : (i > j) - (i < j);
}

static double weight_of(const float *logits, int32_t i, double largest, const sample_spec_t *spec)
{
    return exp(((double)logits[i] - largest) / (double)spec->temperature);
}

static double total_weight(const float *logits, const int32_t *order, int k, double largest, const sample_spec_t *spec)
{
    double total = 0.0;
    for (int i = 0; i < k; i++)
        total += weight_of(logits, order[i], largest, spec);
    return total;
}

/* Puts the indices that top_p may keep at the front of order, sorted, and returns how many. It keeps none whose weight
 * is (1 - top_p) total / n or less: all such together are no more than it leaves out. So few are sorted. */
static int select_likely(const float *logits, int n, const sample_spec_t *spec, double largest, double total,
                         int32_t *order)
{
    const double rounding = 1e-6; /* more than that of the logarithm */
    double least = largest + (double)spec->temperature * log((1.0 - spec->top_p) * total / n) - rounding;
    int k = 0;
    for (int i = 0; i < n; i++)
        if (!((double)logits[i] < least)) /* NaN stays */
            order[k++] = i;
    qsort_r(order, (size_t)k, sizeof *order, by_logit, (void *)(uintptr_t)logits);
    return k;
}

int32_t sample_draw(const float *logits, int n, const sample_spec_t *spec, double random, int32_t *order)
{
    const bool takes_one = spec->temperature <= 0.0f, takes_top = takes_one || (spec->top_k > 0 && spec->top_k < n);
    const bool cuts = spec->top_p > 0.0 && spec->top_p < 1.0;
    int k = takes_one ? 1 : takes_top ? spec->top_k : n;
    double largest = (double)logits[0], reached = 0.0, kept = 0.0;
    if (takes_top)
        select_top(logits, n, k, order);
    for (int i = 0; i < n && !takes_top; i++)
        order[i] = i;
    if (k == 1)
        return order[0];
    for (int i = 0; i < k; i++)
        largest = fmax(largest, (double)logits[order[i]]);
    double total = total_weight(logits, order, k, largest, spec);
    if (cuts && !takes_top)
        k = select_likely(logits, n, spec, largest, total, order);
    if (cuts) { /* the token with which the sum reaches top_p is still one of them */
        int n_kept = 0;
        while (n_kept < k && (n_kept == 0 || kept < spec->top_p * total))
            kept += weight_of(logits, order[n_kept++], largest, spec);
        k = n_kept;
        total = kept;
    }
    for (int i = 0; i < k; i++) {
        reached += weight_of(logits, order[i], largest, spec);
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

typedef struct scratch {
    void *logits; /* pinned, fp32 [vocab_size] */
    int32_t *order;
} scratch_t;

/* Computes and draws the token behind the first n. Rank 0 draws for all. */
static zero_status_t next_token(model_t *model, zero_comm_t *comm, const sample_spec_t *spec, int32_t *tokens, int n,
                                double random, scratch_t *scratch)
{
    const int seq_len = (int)model->options->model.seq_len, context = n < seq_len ? n : seq_len;
    const int vocab_size = (int)model->options->model.vocab_size;
    TRY(n > seq_len ? model_logits(model, tokens + n - context, (size_t)context, scratch->logits)
                    : model_next_logits(model, tokens, (size_t)n, scratch->logits));
    tokens[n] = sample_draw(scratch->logits, vocab_size, spec, random, scratch->order);
    return zero_comm_broadcast(comm, &tokens[n], sizeof tokens[n], 0);
}

zero_status_t sample_generate(model_t *model, zero_comm_t *comm, const sample_spec_t *spec, int32_t *tokens,
                              int n_prompt, int *n_all)
{
    const size_t vocab_size = (size_t)model->options->model.vocab_size;
    uint64_t state = spec->seed;
    zero_status_t status = ZERO_OK;
    bool goes_on = true;
    scratch_t scratch = {.order = malloc(vocab_size * sizeof *scratch.order)};
    *n_all = n_prompt;
    if (zero_host_alloc(model->device, vocab_size * sizeof(float), &scratch.logits) != ZERO_OK || !scratch.order)
        status = report_rank_error(ZERO_ERROR_MEMORY, "no memory to sample from %zu logits", vocab_size);
    status = zero_comm_agree(comm, status);
    model_forget(model);
    while (status == ZERO_OK && goes_on && *n_all < n_prompt + spec->n_tokens) {
        status = next_token(model, comm, spec, tokens, *n_all, next_uniform(&state), &scratch);
        if (status == ZERO_OK)
            goes_on = !spec->take || spec->take(spec->user, tokens[*n_all]);
        *n_all += status == ZERO_OK;
    }
    zero_host_free(model->device, scratch.logits);
    free(scratch.order);
    return status;
}
