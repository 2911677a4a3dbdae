/* evaluate.c - see evaluate.h. */
#include "train/text/evaluate.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>

#include "base/json_build.h"
#include "train/data/data_identity.h"
#include "train/hub/model_files.h"
#include "train/model/model.h"
#include "train/report/report.h"
#include "train/text/generate.h"

/* ---- held out ---- */
/* Passes of micro_batch sequences go round the ranks: pass v is rank v mod N's, and the last may be shorter. The
 * passes' losses are added in the order of v, so the sum does not depend on N. A rank that has no pass left in the last
 * round computes one that does not count, since passes are collective. */

#define SAMPLE_SEED 1 /* [train] seed does not choose what is held out */

zero_status_t held_out_open(const options_t *options, zero_comm_t *comm, const char *paths, int64_t n_most,
                            held_out_t *held_out)
{
    data_spec_t spec = data_spec_of(&options->data, &options->model, &options->train, comm, paths);
    *held_out = (held_out_t){0};
    spec.global_batch = spec.micro_batch * spec.world_size; /* a round */
    spec.seed = SAMPLE_SEED;
    ZERO_TRY(report_agree(comm, data_open(&spec, &held_out->data)));
    held_out->n_sequences = data_n_sequences(held_out->data);
    if (n_most < held_out->n_sequences) {
        held_out->n_sequences = n_most;
        data_shuffle(held_out->data);
    }
    ZERO_TRY(report_agree(comm, data_check_targets(held_out->data, held_out->n_sequences)));
    held_out->losses = calloc((size_t)spec.world_size, sizeof *held_out->losses);
    return zero_comm_agree(
        comm, held_out->losses ? ZERO_OK : report_rank_error(ZERO_ERROR_MEMORY, "held-out data: no memory for losses"));
}

void held_out_close(held_out_t *held_out)
{
    data_close(held_out->data);
    free(held_out->losses);
    *held_out = (held_out_t){0};
}

/* Returns whether a pass needs its whole batch: products in fp8 have extents that a shorter one may not have. */
static bool passes_are_whole(const model_options_t *model, const train_options_t *train)
{
    return train->fp8 != FP8_NONE && model->seq_len % OPTIONS_FP8_MULTIPLE != 0;
}

bool held_out_may_skip(const held_out_t *held_out, const model_options_t *model, const train_options_t *train)
{
    return held_out->data && (data_has_mask(held_out->data) || passes_are_whole(model, train));
}

/* Computes this rank's pass of a round. *loss is 0 if it has none. */
static zero_status_t own_pass(held_out_t *held_out, session_t *session, int64_t round, model_batch_t *batch,
                              int64_t *n_sequences, double *loss)
{
    const int64_t micro = session->options->train.micro_batch;
    const int64_t first = (round * zero_comm_size(session->comm) + zero_comm_rank(session->comm)) * micro;
    const int64_t left = held_out->n_sequences - first, n = left < 0 ? 0 : left < micro ? left : micro;
    const bool is_whole = passes_are_whole(&session->options->model, &session->options->train);
    ZERO_TRY(data_batch(held_out->data, round, 0, &batch->inputs, &batch->targets));
    batch->starts = data_starts(held_out->data);
    if (is_whole && n < micro)
        data_leave_out(held_out->data, n);
    ZERO_TRY(model_loss_of(&session->model, (size_t)(is_whole ? micro : n > 0 ? n : 1), *batch, 1.0));
    ZERO_TRY(model_take_loss(&session->model, loss));
    *n_sequences = n;
    if (n == 0)
        *loss = 0.0;
    return ZERO_OK;
}

static int64_t count(const int32_t *targets, int64_t n)
{
    int64_t n_counted = 0;
    for (int64_t i = 0; i < n; i++)
        n_counted += targets[i] != DATA_NO_TARGET;
    return n_counted;
}

zero_status_t held_out_sum(held_out_t *held_out, session_t *session,
                           void (*visit)(void *user, const model_batch_t *batch, int64_t n_targets), void *user,
                           double *loss, int64_t *n_counted)
{
    const int n_ranks = zero_comm_size(session->comm), rank = zero_comm_rank(session->comm);
    const int64_t each = session->options->train.micro_batch * n_ranks;
    double counted = 0.0;
    *loss = 0.0;
    ZERO_TRY(model_clear_loss(&session->model));
    for (int64_t round = 0; round * each < held_out->n_sequences; round++) {
        model_batch_t batch;
        int64_t n = 0;
        for (int r = 0; r < n_ranks; r++)
            held_out->losses[r] = 0.0;
        ZERO_TRY(own_pass(held_out, session, round, &batch, &n, &held_out->losses[rank]));
        counted += (double)count(batch.targets, n * session->options->model.seq_len);
        if (visit)
            visit(user, &batch, n * session->options->model.seq_len);
        ZERO_TRY(zero_comm_sum(session->comm, held_out->losses, (size_t)n_ranks));
        for (int r = 0; r < n_ranks; r++)
            *loss += held_out->losses[r];
    }
    ZERO_TRY(zero_comm_sum(session->comm, &counted, 1));
    *n_counted = (int64_t)counted;
    return ZERO_OK;
}

/* ---- evaluate ---- */

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
    ZERO_TRY(held_out_open(o, e->comm, o->data.val, INT64_MAX, &e->held_out));
    model_files_t files;
    ZERO_TRY(report_agree(e->comm, model_files_read(o->model.init, &files)));
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
    ZERO_TRY(held_out_sum(&e->held_out, &e->session, e->bytes_of ? count_bytes : NULL, e, &e->loss, &e->n_tokens));
    double n_bytes = (double)e->n_bytes;
    ZERO_TRY(zero_comm_sum(e->comm, &n_bytes, 1));
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
