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

zero_status_t run_open_val(run_t *run)
{
    const options_t *o = run->session.options;
    int64_t n_most;
    if (__builtin_mul_overflow(o->train.eval_batches, o->train.global_batch, &n_most))
        n_most = INT64_MAX;
    return held_out_open(o, run->session.comm, o->data.val, n_most, &run->val);
}

zero_status_t run_evaluate(run_t *run, double *val_loss)
{
    int64_t n_counted;
    TRY(held_out_sum(&run->val, &run->session, NULL, NULL, val_loss, &n_counted));
    if (n_counted == 0) /* it was not so when the data were opened */
        return report_error(ZERO_ERROR_FORMAT, "[data] val: no token of '%s' counts any more: the file has changed",
                            run->session.options->data.val);
    *val_loss /= (double)n_counted;
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
    TRY(data_batch(run->val.data ? run->val.data : run->train, 0, 0, &inputs, &targets));
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
