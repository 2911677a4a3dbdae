/* evaluate.c - see evaluate.h. */
#include "train/forward/evaluate.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>

#include "train/data/data_identity.h"
#include "train/forward/held_out.h"
#include "train/forward/print_text.h"
#include "train/hugging_face/model_files.h"
#include "train/model/session.h"
#include "train/report/report.h"
#include "base/json_build.h"

/* How many bytes of text a token stands for, within a text and as its first. */
typedef struct token_bytes {
    int32_t within, first;
} token_bytes_t;

typedef struct evaluation {
    const options_t *options;
    zero_comm_t *comm;
    session_t session;
    held_out_t held_out;
    int64_t n_tokens;        /* that are predicted, and count */
    int64_t n_bytes;         /* of text that these stand for, of this rank, then of all; 0 or less: not known */
    double loss;             /* nats, summed over them */
    token_bytes_t *bytes_of; /* [vocab_size] by token; NULL: not known */
} evaluation_t;

static zero_status_t open_data(evaluation_t *e)
{
    const options_t *o = e->options;
    TRY(held_out_open(o, e->comm, o->data.val, INT64_MAX, &e->held_out));
    model_files_t files;
    TRY(report_agree(e->comm, model_files_read(o->model.init, &files)));
    const uint64_t tokenizer = files.tokenizer;
    model_files_free(&files);
    return report_agree(e->comm, data_check_tokenizer(e->held_out.data, tokenizer));
}

/* Finds how many bytes of text each token stands for, on rank 0, for all. A tokenizer that cannot be read costs no
 * evaluation: a line says why, and bytes stay unknown. */
static zero_status_t read_bytes(evaluation_t *e)
{
    const int64_t n_tokens = e->options->model.vocab_size;
    tokenizer_t *tokenizer = report_is_speaker() ? print_text_open(e->options->model.init, n_tokens) : NULL;
    bool is_known = tokenizer != NULL;
    zero_status_t status = zero_comm_broadcast(e->comm, &is_known, sizeof is_known, 0);
    if (status == ZERO_OK && is_known) {
        e->bytes_of = calloc((size_t)n_tokens, sizeof *e->bytes_of);
        status = zero_comm_agree(
            e->comm, e->bytes_of ? ZERO_OK : report_rank_error(ZERO_ERROR_MEMORY, "evaluate: no memory for a table"));
    }
    for (int64_t token = 0; status == ZERO_OK && tokenizer && token < n_tokens; token++)
        e->bytes_of[token] = (token_bytes_t){.within = (int32_t)tokenizer_text_bytes(tokenizer, (int32_t)token, false),
                                             .first = (int32_t)tokenizer_text_bytes(tokenizer, (int32_t)token, true)};
    if (status == ZERO_OK && is_known)
        status = zero_comm_broadcast(e->comm, e->bytes_of, (size_t)n_tokens * sizeof *e->bytes_of, 0);
    tokenizer_close(tokenizer);
    return status;
}

/* Counts the bytes of text that targets stand for. A text begins behind a token that stands for none. */
static void count_bytes(void *user, const model_batch_t *batch, int64_t n_targets)
{
    evaluation_t *e = user;
    for (int64_t i = 0; i < n_targets; i++) {
        const int32_t token = batch->targets[i];
        if (token != DATA_NO_TARGET)
            e->n_bytes +=
                e->bytes_of[batch->inputs[i]].within > 0 ? e->bytes_of[token].within : e->bytes_of[token].first;
    }
}

static zero_status_t compute(evaluation_t *e)
{
    TRY(held_out_sum(&e->held_out, &e->session, e->bytes_of ? count_bytes : NULL, e, &e->loss, &e->n_tokens));
    double n_bytes = (double)e->n_bytes;
    TRY(zero_comm_sum(e->comm, &n_bytes, 1));
    e->n_bytes = (int64_t)n_bytes;
    return ZERO_OK;
}

/* ---- printing ---- */

static zero_status_t print_json(const evaluation_t *e, double mean)
{
    json_t *object =
        json_pack("{s:s, s:s, s:I, s:I, s:f, s:f, s:f}", "model", e->options->model.init, "data", e->options->data.val,
                  "sequences", (json_int_t)e->held_out.n_sequences, "tokens", (json_int_t)e->n_tokens, "loss", mean,
                  "perplexity", exp(mean), "bits_per_token", mean / M_LN2);
    if (e->n_bytes > 0) {
        zero_json_set(&object, "bytes", json_integer((json_int_t)e->n_bytes));
        zero_json_set(&object, "bits_per_byte", json_real(e->loss / (double)e->n_bytes / M_LN2));
    }
    int failed = object ? json_dumpf(object, stdout, JSON_INDENT(1)) : -1;
    json_decref(object);
    if (failed)
        return report_rank_error(ZERO_ERROR_IO, "evaluate: cannot write JSON to stdout: a number is not finite, or the "
                                                "disk is full");
    putchar('\n');
    return ZERO_OK;
}

static zero_status_t print(const evaluation_t *e)
{
    const double mean = e->loss / (double)e->n_tokens;
    const char *unit = e->options->model.vocab_size == 256 ? "byte" : "token";
    if (!report_is_speaker())
        return ZERO_OK;
    if (e->options->json)
        return print_json(e, mean);
    printf("model        %s\n", e->options->model.init);
    printf("data         %s: %lld sequences of %lld %ss\n", e->options->data.val, (long long)e->held_out.n_sequences,
           (long long)e->options->model.seq_len, unit);
    printf("loss         %.6f nats per %s\n", mean, unit);
    printf("perplexity   %.4f\n", exp(mean));
    printf("bits         %.6f per %s\n", mean / M_LN2, unit);
    if (e->n_bytes > 0 && e->options->model.vocab_size != 256)
        printf("             %.6f per byte: these tokens are %lld bytes of text\n",
               e->loss / (double)e->n_bytes / M_LN2, (long long)e->n_bytes);
    return ZERO_OK;
}

zero_status_t evaluate(const options_t *options, zero_comm_t *comm)
{
    evaluation_t e = {.options = options, .comm = comm};
    zero_status_t status = session_open_forward(options, comm, &e.session);
    if (status == ZERO_OK)
        status = open_data(&e);
    if (status == ZERO_OK)
        status = read_bytes(&e);
    report_hold_errors(false);
    if (status == ZERO_OK)
        status = compute(&e);
    if (status == ZERO_OK)
        status = print(&e);
    free(e.bytes_of);
    held_out_close(&e.held_out);
    session_close(&e.session, status != ZERO_OK);
    return status;
}
