/* sample.c - see sample.h. Where the model has no cache, every token runs the whole context again. Logits come in
 * pinned memory: a vocabulary's take longer on their way into any other. */
#include "train/forward/sample.h"

#include <stdlib.h>

#include "train/forward/draw.h"
#include "train/report/report.h"

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
    draw_scratch_t draw;
} scratch_t;

/* Computes and draws the token behind the first n. Rank 0 draws for all. */
static zero_status_t next_token(model_t *model, zero_comm_t *comm, const sample_spec_t *spec, int32_t *tokens, int n,
                                double random, scratch_t *scratch)
{
    const int seq_len = (int)model->options->model.seq_len, context = n < seq_len ? n : seq_len;
    const int vocab_size = (int)model->options->model.vocab_size;
    TRY(n > seq_len ? model_logits(model, tokens + n - context, (size_t)context, scratch->logits)
                    : model_next_logits(model, tokens, (size_t)n, scratch->logits));
    tokens[n] = draw_token(scratch->logits, vocab_size, spec, random, &scratch->draw);
    return zero_comm_broadcast(comm, &tokens[n], sizeof tokens[n], 0);
}

zero_status_t sample_generate(model_t *model, zero_comm_t *comm, const sample_spec_t *spec, int32_t *tokens,
                              int n_prompt, int *n_all)
{
    const size_t vocab_size = (size_t)model->options->model.vocab_size;
    uint64_t state = spec->seed;
    zero_status_t status = ZERO_OK;
    bool goes_on = true;
    scratch_t scratch = {0};
    *n_all = n_prompt;
    if (zero_host_alloc(model->device, vocab_size * sizeof(float), &scratch.logits) != ZERO_OK ||
        !draw_scratch_create(vocab_size, &scratch.draw))
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
    draw_scratch_free(&scratch.draw);
    return status;
}
