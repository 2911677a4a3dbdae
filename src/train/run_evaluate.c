/* run_evaluate.c - what a training run measures between steps: the loss on validation data, and a sample of text. */
#include <stdio.h>
#include <string.h>

#include "train/forward/print_text.h"
#include "train/forward/sample.h"
#include "train/report/report.h"
#include "train/run.h"

#define SAMPLE_PROMPT 64
#define SAMPLE_TOKENS 400
#define SAMPLE_TEMPERATURE 0.8f
#define SAMPLE_TOP_K 40

zero_status_t run_read_batch(data_t *data, int64_t step, int micro_step, model_batch_t *batch)
{
    TRY(data_batch(data, step, micro_step, &batch->inputs, &batch->targets));
    batch->starts = data_starts(data);
    return ZERO_OK;
}

zero_status_t run_evaluate(run_t *run, double *val_loss)
{
    const options_t *o = run->session.options;
    int64_t in_data = (data_n_sequences(run->val) + o->train.global_batch - 1) / o->train.global_batch;
    int64_t n_batches = o->train.eval_batches < in_data ? o->train.eval_batches : in_data;
    int64_t n_targets = n_batches * o->train.global_batch * o->model.seq_len, n_counted = 0;
    model_batch_t batch;
    TRY(model_clear_loss(&run->session.model));
    for (int64_t b = 0; b < n_batches; b++)
        for (int k = 0; k < run->micro_steps; k++) {
            TRY(run_read_batch(run->val, b, k, &batch));
            TRY(model_loss(&run->session.model, batch, 1.0 / (double)n_targets));
            n_counted += k == 0 ? data_n_counted(run->val) : 0;
        }
    TRY(model_take_loss(&run->session.model, val_loss));
    TRY(zero_comm_sum(run->session.comm, val_loss, 1));
    *val_loss *= n_counted > 0 ? (double)n_targets / (double)n_counted : 0.0; /* exactly 1 without a mask */
    return ZERO_OK;
}

zero_status_t run_show_sample(run_t *run)
{
    int32_t tokens[SAMPLE_PROMPT + SAMPLE_TOKENS];
    const int32_t *inputs, *targets;
    int64_t seq_len = run->session.options->model.seq_len;
    int n_all, n_prompt = seq_len < SAMPLE_PROMPT ? (int)seq_len : SAMPLE_PROMPT;
    sample_spec_t spec = {.n_tokens = SAMPLE_TOKENS,
                          .temperature = SAMPLE_TEMPERATURE,
                          .top_k = SAMPLE_TOP_K,
                          .seed = (uint64_t)run->session.options->train.seed};
    TRY(data_batch(run->val ? run->val : run->train, 0, 0, &inputs, &targets));
    memcpy(tokens, inputs, (size_t)n_prompt * sizeof *tokens);
    TRY(zero_comm_broadcast(run->session.comm, tokens, (size_t)n_prompt * sizeof *tokens,
                            0)); /* each rank has read another sequence */
    TRY(sample_generate(&run->session.model, run->session.comm, &spec, tokens, n_prompt, &n_all));
    if (zero_comm_rank(run->session.comm) != 0)
        return ZERO_OK;
    const bool bytes =
        run->session.options->model.vocab_size == 256; /* a sample may begin and end within a character */
    printf("--- sample: given this text\n");
    print_text(run->tokenizer, tokens, n_prompt, bytes);
    printf("\n--- the model goes on\n");
    print_text(run->tokenizer, tokens + n_prompt, n_all - n_prompt, bytes);
    printf("\n--- end of sample\n");
    fflush(stdout);
    return ZERO_OK;
}
