/* evaluate.c - see evaluate.h. */
#include "train/text/evaluate.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_build.h"
#include "train/data/data_identity.h"
#include "train/hub/adapter_config.h"
#include "train/hub/model_files.h"
#include "train/model/model.h"
#include "train/model/preference.h"
#include "train/report/report.h"
#include "train/report/utf8.h"
#include "train/text/generate.h"

/* ---- held out ---- */
/* Passes of micro_batch sequences go round the N ranks, or groups of ranks that share sequences: pass v is v mod N's,
 * and the last may be shorter. The passes' losses are added in the order of v, so the sum does not depend on N. A rank
 * that has no pass left in the last round computes one that does not count, since passes are collective. */

_Static_assert(OPTIONS_MAX_VAL_SETS <= METRICS_MOST_VAL_SETS, "metrics have the losses of all sets");

#define MOST_SUMS (1 + ZERO_N_PAIR_SUMS) /* of held_out_t */
#define SAMPLE_SEED 1                    /* [train] seed does not choose what is held out */

/* paths, packing: of the set */
static zero_status_t open_set(const options_t *options, zero_comm_t *comm, const char *paths, int packing,
                              int64_t n_most, held_out_t *held_out)
{
    data_spec_t spec = data_spec_of(&options->data, &options->model, &options->train, comm, paths, packing);
    *held_out = (held_out_t){0};
    spec.global_batch = spec.micro_batch * (spec.world_size / spec.sequence_ranks); /* a round */
    spec.seed = SAMPLE_SEED;
    ZERO_TRY(report_agree(comm, data_open(&spec, &held_out->data)));
    held_out->n_sequences = data_n_sequences(held_out->data);
    if (n_most < held_out->n_sequences) {
        held_out->n_sequences = n_most;
        data_shuffle(held_out->data);
    }
    ZERO_TRY(report_agree(comm, data_check_targets(held_out->data, held_out->n_sequences)));
    held_out->n_sums = spec.pairs ? MOST_SUMS : 1;
    held_out->sums = calloc((size_t)spec.world_size * held_out->n_sums, sizeof *held_out->sums);
    return zero_comm_agree(
        comm, held_out->sums ? ZERO_OK : report_rank_error(ZERO_ERROR_MEMORY, "held-out data: no memory for losses"));
}

/* Returns whether a pass needs its whole batch: products in fp8 have extents that a shorter one may not have. */
static bool passes_are_whole(const model_options_t *model, const train_options_t *train)
{
    return train->fp8 != FP8_NONE && model->seq_len / options_sequence_ranks(train) % OPTIONS_FP8_MULTIPLE != 0;
}

/* Computes this rank's pass of a round. Its sums are 0 if it has none. */
static zero_status_t own_pass(held_out_t *held_out, session_t *session, int64_t round, model_batch_t *batch,
                              int64_t *n_sequences, double *sums)
{
    const int64_t micro = session->options->train.micro_batch;
    const int n_sharing = (int)options_sequence_ranks(&session->options->train);
    const int n_readers = zero_comm_size(session->comm) / n_sharing;
    const int64_t first = (round * n_readers + zero_comm_rank(session->comm) / n_sharing) * micro;
    const int64_t left = held_out->n_sequences - first, n = left < 0 ? 0 : left < micro ? left : micro;
    const bool is_whole = passes_are_whole(&session->options->model, &session->options->train);
    ZERO_TRY(data_batch(held_out->data, round, 0, &batch->inputs, &batch->targets));
    batch->starts = data_starts(held_out->data);
    batch->documents = data_documents(held_out->data);
    if (is_whole && n < micro)
        data_leave_out(held_out->data, n);
    ZERO_TRY(model_loss(&session->model, (size_t)(is_whole ? micro : n > 0 ? n : 1), *batch, 1.0));
    ZERO_TRY(model_take_loss(&session->model, sums));
    *n_sequences = n;
    for (size_t i = 0; i < held_out->n_sums && n == 0; i++)
        sums[i] = 0.0;
    return ZERO_OK;
}

/* Counts the targets of a batch's first n_rows that count, or the pairs. */
static int64_t count(const model_batch_t *batch, int64_t n_rows)
{
    int64_t n_counted = 0, n_documents = 0;
    for (int64_t i = 0; i < n_rows; i++)
        n_counted += batch->targets[i] != DATA_NO_TARGET;
    while (batch->documents && batch->documents[n_documents] < n_rows)
        n_documents++;
    return batch->documents ? n_documents / 2 : n_counted;
}

/* Computes the sum of the losses of targets, in nats, or of pairs, and how many count; of pairs also their sums, by
 * zero_pair_sum_t, behind it. Their bits depend on micro_batch and not on the number of ranks. visit: called for every
 * batch of this rank, with the targets that its sequences have; NULL: nothing is called. [collective] */
static zero_status_t held_out_sum(held_out_t *held_out, session_t *session,
                                  void (*visit)(void *user, const model_batch_t *batch, int64_t n_targets), void *user,
                                  double *sums, int64_t *n_counted)
{
    const size_t n_sums = held_out->n_sums;
    const int n_ranks = zero_comm_size(session->comm), rank = zero_comm_rank(session->comm);
    const int64_t n_readers = n_ranks / options_sequence_ranks(&session->options->train);
    const int64_t each = session->options->train.micro_batch * n_readers;
    const int64_t part_len = data_part_len(held_out->data);
    double counted = 0.0;
    memset(sums, 0, n_sums * sizeof *sums);
    ZERO_TRY(model_clear_loss(&session->model));
    for (int64_t round = 0; round * each < held_out->n_sequences; round++) {
        model_batch_t batch;
        int64_t n = 0;
        memset(held_out->sums, 0, (size_t)n_ranks * n_sums * sizeof *sums);
        ZERO_TRY(own_pass(held_out, session, round, &batch, &n, held_out->sums + (size_t)rank * n_sums));
        counted += (double)count(&batch, n * part_len);
        if (visit)
            visit(user, &batch, n * part_len);
        ZERO_TRY(zero_comm_sum(session->comm, held_out->sums, (size_t)n_ranks * n_sums));
        for (size_t i = 0; i < (size_t)n_ranks * n_sums; i++)
            sums[i % n_sums] += held_out->sums[i];
    }
    ZERO_TRY(zero_comm_sum(session->comm, &counted, 1));
    *n_counted = (int64_t)counted;
    return ZERO_OK;
}

/* ---- validation ---- */

zero_status_t validation_open(const options_t *options, zero_comm_t *comm, int64_t n_most, validation_t *validation)
{
    const int n = val_sets_count(options->data.val);
    *validation = (validation_t){0};
    for (int i = 0; i < n; i++) {
        val_set_t *set = &validation->sets[i];
        val_sets_read(options->data.val, i, set);
        validation->losses[i].name = set->name;
        validation->n = i + 1;
        ZERO_TRY(open_set(options, comm, set->paths, options->data.val_packing[i], n_most, &validation->held_out[i]));
    }
    return ZERO_OK;
}

void validation_close(validation_t *validation)
{
    for (int i = 0; i < validation->n; i++) {
        data_close(validation->held_out[i].data);
        free(validation->held_out[i].sums);
    }
    *validation = (validation_t){0};
}

void validation_report(const validation_t *validation)
{
    for (int i = 0; i < validation->n; i++) {
        const held_out_t *held_out = &validation->held_out[i];
        const char *name = validation->sets[i].name;
        const int64_t n_sequences = data_n_sequences(held_out->data);
        char key[VAL_SET_MOST_NAME + 8];
        snprintf(key, sizeof key, "val%s%s", name[0] ? ", " : "", name);
        data_report_left_out(held_out->data, key);
        if (held_out->n_sequences < n_sequences)
            report("[data] %s: an evaluation takes %" PRId64 " of %" PRId64 " sequences, always the same", key,
                   held_out->n_sequences, n_sequences);
    }
}

bool validation_may_skip(const validation_t *validation, const model_options_t *model, const train_options_t *train)
{
    bool may_skip = validation->n > 0 && passes_are_whole(model, train);
    for (int i = 0; i < validation->n; i++)
        may_skip = may_skip || data_has_mask(validation->held_out[i].data);
    return may_skip;
}

bool validation_is_text(const validation_t *validation)
{
    bool is_text = true;
    for (int i = 0; i < validation->n; i++)
        is_text = is_text && data_is_text(validation->held_out[i].data);
    return is_text;
}

zero_status_t validation_check_tokenizer(const validation_t *validation, zero_comm_t *comm,
                                         const model_tokenizer_t *tokenizer)
{
    for (int i = 0; i < validation->n; i++)
        ZERO_TRY(report_agree(comm, data_check_tokenizer(validation->held_out[i].data, tokenizer)));
    return ZERO_OK;
}

zero_status_t validation_compute(validation_t *validation, session_t *session, double *loss)
{
    double sums[MOST_SUMS] = {0};
    int64_t n_counted = 0;
    for (int i = 0; i < validation->n; i++) {
        double of_set[MOST_SUMS] = {0};
        int64_t n;
        ZERO_TRY(held_out_sum(&validation->held_out[i], session, NULL, NULL, of_set, &n));
        if (n == 0) /* it was not so when the data were opened */
            return report_error(ZERO_ERROR_FORMAT, "[data] val: no token of '%s' counts any more: the file has changed",
                                validation->sets[i].paths);
        validation->losses[i].loss = (float)(of_set[0] / (double)n);
        for (int s = 0; s < MOST_SUMS; s++)
            sums[s] += of_set[s];
        n_counted += n;
    }
    for (int s = 0; s < MOST_SUMS; s++)
        sums[s] /= (double)n_counted;
    *loss = sums[0];
    validation->rewards = session->model.preference ? preference_rewards(sums + 1) : (rewards_t){0};
    return ZERO_OK;
}

/* ---- evaluate ---- */

/* How many bytes of text a token stands for, within a text and as its first. */
typedef struct token_bytes {
    int32_t within, first;
} token_bytes_t;

/* What is found of a set, or of all. */
typedef struct result {
    const char *name, *paths;        /* of [data] val */
    int64_t n_sequences, n_left_out; /* tokens at the files' ends, in no sequence */
    int64_t n_tokens;                /* that are predicted, and count */
    int64_t n_bytes;                 /* of text that these stand for, of this rank, then of all; 0 or less: not known */
    bool is_text;                    /* these are bytes */
    double loss;                     /* nats, summed over them */
} result_t;

typedef struct evaluation {
    const options_t *options;
    zero_comm_t *comm;
    session_t session;
    validation_t validation;
    result_t of_set[OPTIONS_MAX_VAL_SETS];
    result_t *counts;        /* the set that is computed */
    bool has_tokenizer;      /* the model's directory: its tokenizer.json */
    token_bytes_t *bytes_of; /* [vocab_size] by token; NULL: not known */
} evaluation_t;

static zero_status_t open_data(evaluation_t *e)
{
    const options_t *o = e->options;
    ZERO_TRY(validation_open(o, e->comm, INT64_MAX, &e->validation));
    model_files_t files;
    ZERO_TRY(report_agree(e->comm, model_files_read(adapter_texts_directory(o), &files)));
    const model_tokenizer_t tokenizer = {files.tokenizer, files.tokenizer_text, files.tokenizer_bytes,
                                         files.vocabulary};
    zero_status_t status = validation_check_tokenizer(&e->validation, e->comm, &tokenizer);
    e->has_tokenizer = files.tokenizer != 0;
    model_files_free(&files);
    return status;
}

/* Finds how many bytes of text each token stands for, on rank 0, for all. A tokenizer that cannot be read costs no
 * evaluation: a line says why, and bytes stay unknown. */
static zero_status_t read_bytes(evaluation_t *e)
{
    const int64_t n_tokens = e->options->model.vocab_size;
    tokenizer_t *tokenizer =
        report_is_speaker() && e->has_tokenizer ? print_text_open(adapter_texts_directory(e->options), n_tokens) : NULL;
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
            e->counts->n_bytes +=
                e->bytes_of[batch->inputs[i]].within > 0 ? e->bytes_of[token].within : e->bytes_of[token].first;
    }
}

static zero_status_t compute(evaluation_t *e)
{
    for (int i = 0; i < e->validation.n; i++) {
        held_out_t *held_out = &e->validation.held_out[i];
        result_t *r = e->counts = &e->of_set[i];
        *r = (result_t){.name = e->validation.sets[i].name,
                        .paths = e->validation.sets[i].paths,
                        .is_text = data_is_text(held_out->data)};
        ZERO_TRY(held_out_sum(held_out, &e->session, e->bytes_of && !r->is_text ? count_bytes : NULL, e, &r->loss,
                              &r->n_tokens));
        double n_bytes = (double)r->n_bytes;
        ZERO_TRY(zero_comm_sum(e->comm, &n_bytes, 1));
        r->n_bytes = r->is_text ? r->n_tokens : (int64_t)n_bytes;
        r->n_sequences = held_out->n_sequences;
        r->n_left_out = data_n_left_out(held_out->data);
    }
    return ZERO_OK;
}

/* Adds up the sets, in their order. */
static result_t total_of(const evaluation_t *e)
{
    result_t total = {.name = "", .paths = e->options->data.val, .is_text = validation_is_text(&e->validation)};
    bool are_bytes_known = true;
    for (const result_t *r = e->of_set; r < e->of_set + e->validation.n; r++) {
        total.n_sequences += r->n_sequences;
        total.n_left_out += r->n_left_out;
        total.n_tokens += r->n_tokens;
        total.n_bytes += r->n_bytes;
        total.loss += r->loss;
        are_bytes_known = are_bytes_known && r->n_bytes > 0;
    }
    if (!are_bytes_known)
        total.n_bytes = 0;
    return total;
}

/* ---- printing ---- */

/* Returns null for what JSON cannot say: the perplexity of a loss above 709 is infinite. */
static json_t *json_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *json_of(const result_t *r)
{
    const double mean = r->loss / (double)r->n_tokens;
    json_t *object = json_pack("{s:o, s:I, s:I, s:I, s:o, s:o, s:o}", "data", utf8_json(r->paths), "sequences",
                               (json_int_t)r->n_sequences, "tokens", (json_int_t)r->n_tokens, "left_out",
                               (json_int_t)r->n_left_out, "loss", json_number(mean), "perplexity",
                               json_number(exp(mean)), "bits_per_token", json_number(mean / M_LN2));
    if (r->n_bytes > 0) {
        zero_json_set(&object, "bytes", json_integer((json_int_t)r->n_bytes));
        zero_json_set(&object, "bits_per_byte", json_number(r->loss / (double)r->n_bytes / M_LN2));
    }
    return object;
}

static zero_status_t print_json(const evaluation_t *e)
{
    const result_t total = total_of(e);
    json_t *all = json_of(&total), *object = json_pack("{s:o}", "model", utf8_json(e->options->model.init)),
           *sets = json_object();
    if (object && json_object_update(object, all) != 0) {
        json_decref(object);
        object = NULL;
    }
    json_decref(all);
    const bool has_names = e->of_set[0].name[0];
    for (int i = 0; has_names && i < e->validation.n; i++)
        zero_json_set(&sets, e->of_set[i].name, json_of(&e->of_set[i]));
    if (has_names)
        zero_json_set(&object, "sets", sets);
    else
        json_decref(sets);
    int failed = object ? json_dumpf(object, stdout, JSON_INDENT(1)) : -1;
    json_decref(object);
    if (failed)
        return report_rank_error(ZERO_ERROR_IO,
                                 "evaluate: cannot write JSON to stdout: the disk is full, or there is no memory");
    putchar('\n');
    return ZERO_OK;
}

static void print_result(const evaluation_t *e, const result_t *r)
{
    const double mean = r->loss / (double)r->n_tokens;
    const char *unit = r->is_text ? "byte" : "token";
    printf("data         %s%s%s: %lld sequences of %lld %ss\n", r->name, r->name[0] ? ", " : "", r->paths,
           (long long)r->n_sequences, (long long)e->options->model.seq_len, unit);
    printf("loss         %.6f nats per %s\n", mean, unit);
    printf("perplexity   %.4f\n", exp(mean));
    printf("bits         %.6f per %s\n", mean / M_LN2, unit);
    if (r->n_bytes > 0 && !r->is_text)
        printf("             %.6f per byte: these tokens are %lld bytes of text\n",
               r->loss / (double)r->n_bytes / M_LN2, (long long)r->n_bytes);
}

static zero_status_t print(const evaluation_t *e)
{
    const result_t total = total_of(e);
    validation_report(&e->validation);
    if (!report_is_speaker())
        return ZERO_OK;
    if (e->options->json)
        return print_json(e);
    printf("model        %s\n", e->options->model.init);
    if (e->options->lora.rank > 0)
        printf("adapter      %s\n", e->options->lora.init);
    for (int i = 0; i < e->validation.n; i++)
        print_result(e, &e->of_set[i]);
    if (e->validation.n > 1)
        print_result(e, &total);
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
    validation_close(&e.validation);
    session_close(&e.session, status != ZERO_OK);
    return status;
}
