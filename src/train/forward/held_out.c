/* held_out.c - see held_out.h.
 *
 * Passes of micro_batch sequences go round the ranks: pass v is rank v mod N's, and the last may be shorter. The
 * passes' losses are added in the order of v, so the sum does not depend on N. A rank that has no pass left in the last
 * round computes one that does not count, since passes are collective.
 */
#include "train/forward/held_out.h"

#include <stdlib.h>

#include "train/report/report.h"

#define SAMPLE_SEED 1 /* [train] seed does not choose what is held out */

zero_status_t held_out_open(const options_t *options, zero_comm_t *comm, const char *paths, int64_t n_most,
                            held_out_t *held_out)
{
    data_spec_t spec = data_spec_of(options, comm, paths);
    *held_out = (held_out_t){0};
    spec.global_batch = spec.micro_batch * spec.world_size; /* a round */
    spec.seed = SAMPLE_SEED;
    TRY(report_agree(comm, data_open(&spec, &held_out->data)));
    held_out->n_sequences = data_n_sequences(held_out->data);
    if (n_most < held_out->n_sequences) {
        held_out->n_sequences = n_most;
        data_shuffle(held_out->data);
    }
    TRY(report_agree(comm, data_check_targets(held_out->data, held_out->n_sequences)));
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
static bool passes_are_whole(const options_t *options)
{
    return options->train.fp8 != FP8_NONE && options->model.seq_len % OPTIONS_FP8_MULTIPLE != 0;
}

bool held_out_may_skip(const held_out_t *held_out, const options_t *options)
{
    return held_out->data && (data_has_mask(held_out->data) || passes_are_whole(options));
}

/* Computes this rank's pass of a round. *loss is 0 if it has none. */
static zero_status_t own_pass(held_out_t *held_out, session_t *session, int64_t round, model_batch_t *batch,
                              int64_t *n_sequences, double *loss)
{
    const int64_t micro = session->options->train.micro_batch;
    const int64_t first = (round * zero_comm_size(session->comm) + zero_comm_rank(session->comm)) * micro;
    const int64_t left = held_out->n_sequences - first, n = left < 0 ? 0 : left < micro ? left : micro;
    const bool is_whole = passes_are_whole(session->options);
    TRY(data_batch(held_out->data, round, 0, &batch->inputs, &batch->targets));
    batch->starts = data_starts(held_out->data);
    if (is_whole && n < micro)
        data_leave_out(held_out->data, n);
    TRY(model_loss_of(&session->model, (size_t)(is_whole ? micro : n > 0 ? n : 1), *batch, 1.0));
    TRY(model_take_loss(&session->model, loss));
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
    TRY(model_clear_loss(&session->model));
    for (int64_t round = 0; round * each < held_out->n_sequences; round++) {
        model_batch_t batch;
        int64_t n = 0;
        for (int r = 0; r < n_ranks; r++)
            held_out->losses[r] = 0.0;
        TRY(own_pass(held_out, session, round, &batch, &n, &held_out->losses[rank]));
        counted += (double)count(batch.targets, n * session->options->model.seq_len);
        if (visit)
            visit(user, &batch, n * session->options->model.seq_len);
        TRY(zero_comm_sum(session->comm, held_out->losses, (size_t)n_ranks));
        for (int r = 0; r < n_ranks; r++)
            *loss += held_out->losses[r];
    }
    TRY(zero_comm_sum(session->comm, &counted, 1));
    *n_counted = (int64_t)counted;
    return ZERO_OK;
}
