/* evaluate.c - see evaluate.h.
 *
 * Sequences are taken in the files' order, each once. Passes of micro_batch sequences go round the ranks: pass v is
 * rank v mod N's, and the last may be shorter. The passes' losses are added in the order of v, so the sum does not
 * depend on N. A rank that has no pass left in the last round computes one that does not count, since passes are
 * collective.
 */
#include "train/forward/evaluate.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>

#include "train/data/data_identity.h"
#include "train/forward/print_text.h"
#include "train/hugging_face/model_files.h"
#include "train/model/session.h"
#include "train/report/report.h"

/* How many bytes of text a token stands for, within a text and as its first. */
typedef struct token_bytes {
    int32_t within, first;
} token_bytes_t;

typedef struct evaluation {
    const options_t *options;
    zero_comm_t *comm;
    session_t session;
    data_t *data;
    int64_t n_sequences, n_tokens; /* that are predicted, and count: of this rank, then of all */
    int64_t n_bytes;               /* of text that these stand for; 0 or less: not known */
    double loss;                   /* nats, summed over them */
    token_bytes_t *bytes_of;       /* [vocab_size] by token; NULL: not known */
} evaluation_t;

static zero_status_t open_data(evaluation_t *e)
{
    const options_t *o = e->options;
    const data_spec_t spec = data_spec_of(o, e->comm, o->data.val);
    TRY(report_agree(e->comm, data_open(&spec, &e->data)));
    e->n_sequences = data_n_sequences(e->data);
    model_files_t files;
    TRY(report_agree(e->comm, model_files_read(o->model.init, &files)));
    const uint64_t tokenizer = files.tokenizer;
    model_files_free(&files);
    return report_agree(e->comm, data_check_tokenizer(e->data, tokenizer));
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

/* Counts the tokens that are predicted, and their text. A text begins behind a token that stands for none. */
static void count_targets(evaluation_t *e, const model_batch_t *batch, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const int32_t token = batch->targets[i];
        if (token == DATA_NO_TARGET)
            continue;
        e->n_tokens++;
        if (e->bytes_of)
            e->n_bytes +=
                e->bytes_of[batch->inputs[i]].within > 0 ? e->bytes_of[token].within : e->bytes_of[token].first;
    }
}

/* Computes this rank's pass of a round. *loss is 0 if it has none. */
static zero_status_t own_pass(evaluation_t *e, int64_t round, double *loss)
{
    const int64_t micro = e->options->train.micro_batch;
    const int64_t first = (round * zero_comm_size(e->comm) + zero_comm_rank(e->comm)) * micro;
    const int64_t left = e->n_sequences - first, n = left < micro ? left : micro;
    model_batch_t batch;
    TRY(data_batch(e->data, round, 0, &batch.inputs, &batch.targets));
    batch.starts = data_starts(e->data);
    TRY(model_loss_of(&e->session.model, n > 0 ? (size_t)n : 1, batch, 1.0));
    TRY(model_take_loss(&e->session.model, loss));
    if (n > 0)
        count_targets(e, &batch, n * e->options->model.seq_len);
    else
        *loss = 0.0;
    return ZERO_OK;
}

static zero_status_t sum_passes(evaluation_t *e, double *losses)
{
    const int n_ranks = zero_comm_size(e->comm);
    const int64_t n_rounds = (e->n_sequences + e->options->train.global_batch - 1) / e->options->train.global_batch;
    TRY(model_clear_loss(&e->session.model));
    for (int64_t round = 0; round < n_rounds; round++) {
        for (int rank = 0; rank < n_ranks; rank++)
            losses[rank] = 0.0;
        TRY(own_pass(e, round, &losses[zero_comm_rank(e->comm)]));
        TRY(zero_comm_sum(e->comm, losses, (size_t)n_ranks));
        for (int rank = 0; rank < n_ranks; rank++)
            e->loss += losses[rank];
    }
    return ZERO_OK;
}

/* Adds up the tokens that count, and their bytes, on all ranks. */
static zero_status_t sum_tokens(evaluation_t *e)
{
    double counts[2] = {(double)e->n_tokens, (double)e->n_bytes};
    TRY(zero_comm_sum(e->comm, counts, 2));
    e->n_tokens = (int64_t)counts[0];
    e->n_bytes = (int64_t)counts[1];
    if (e->n_tokens > 0)
        return ZERO_OK;
    return report_error(ZERO_ERROR_USAGE, "evaluate: no token of '%s' counts as a target", e->options->data.val);
}

static zero_status_t compute(evaluation_t *e)
{
    double *losses = calloc((size_t)zero_comm_size(e->comm), sizeof *losses);
    zero_status_t status = losses ? ZERO_OK : report_rank_error(ZERO_ERROR_MEMORY, "evaluate: no memory for losses");
    status = zero_comm_agree(e->comm, status);
    if (status == ZERO_OK)
        status = sum_passes(e, losses);
    free(losses);
    return status == ZERO_OK ? sum_tokens(e) : status;
}

/* ---- printing ---- */

static zero_status_t print_json(const evaluation_t *e, double mean)
{
    json_t *object =
        json_pack("{s:s, s:s, s:I, s:I, s:f, s:f, s:f}", "model", e->options->model.init, "data", e->options->data.val,
                  "sequences", (json_int_t)e->n_sequences, "tokens", (json_int_t)e->n_tokens, "loss", mean,
                  "perplexity", exp(mean), "bits_per_token", mean / M_LN2);
    if (object && e->n_bytes > 0) {
        json_object_set_new(object, "bytes", json_integer((json_int_t)e->n_bytes));
        json_object_set_new(object, "bits_per_byte", json_real(e->loss / (double)e->n_bytes / M_LN2));
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
    printf("data         %s: %lld sequences of %lld %ss\n", e->options->data.val, (long long)e->n_sequences,
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
    data_close(e.data);
    session_close(&e.session, status != ZERO_OK);
    return status;
}
