/* data.c - batches of tokens: which sequence is at which position (pure arithmetic), and a thread that reads ahead.
 *
 * Two batches take turns: the caller uses one while the reader fills the other with the next in order. The reader owns
 * the back batch while its state is READER_BUSY; otherwise the calling thread owns both. A batch that was not foreseen
 * (a run resumes, an evaluation starts over) is read by the caller itself.
 *
 * A file may change after its check. So every token is checked again when it is copied into a batch. A fault stays with
 * the batch until the batch is asked for: one that is read ahead may never be used.
 *
 * Whoever reads a batch also finds how many targets of its step count, from the masks and documents of the step's
 * global batch.
 */
#include "train/data/data.h"
#include "base/system.h"
#include "train/data/sequences.h"
#include "train/data/shuffle.h"
#include "train/report/report.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct batch {
    int64_t step, position; /* of the step's first sequence, in the endless order */
    int micro_step;
    int32_t *inputs, *targets; /* [micro_batch, part_len] each */
    int32_t *starts;           /* [micro_batch, seq_len]; NULL: not asked for */
    int32_t *documents;        /* [micro_batch * seq_len + 1]; NULL: there are no pairs */
    int64_t n_counted;         /* targets of the whole step, or pairs */
    sequence_fault_t fault;
} batch_t;

typedef enum reader_state { READER_IDLE, READER_BUSY, READER_DONE, READER_QUIT } reader_state_t;

struct data {
    data_spec_t spec; /* without paths */
    sequences_t sequences;
    int64_t counted_at, n_counted; /* a step's position, and the targets that count in it; as the back batch */
    int micro_steps;
    int64_t start_step, start_position; /* set by data_start_at */

    batch_t front, back;
    int32_t *tokens; /* what the batches point into */

    pthread_t reader;
    bool has_reader;
    pthread_mutex_t mutex; /* guards state */
    pthread_cond_t changed;
    reader_state_t state;
};

/* ---- Which sequence is at which position ---- */

/* Returns the sequence at `position` of the endless order. */
static int64_t sequence_at(const data_t *data, int64_t position)
{
    int64_t epoch = position / data->sequences.n, index = position % data->sequences.n;
    if (!data->spec.shuffle)
        return index;
    return (int64_t)shuffle_index(data->spec.seed, (uint64_t)epoch, (uint64_t)data->sequences.n, (uint64_t)index);
}

/* Returns how many ranks, or groups of them that share sequences, read micro-batches of their own. */
static int64_t n_readers(const data_spec_t *spec)
{
    return spec->sequence_ranks > 1 ? spec->world_size / spec->sequence_ranks : spec->world_size;
}

/* Adds up the targets that count, or the pairs, in the sequences of a whole step. */
static zero_status_t count_step(const data_t *data, batch_t *batch, int64_t *n_counted)
{
    *n_counted = 0;
    for (int64_t position = 0; position < data->spec.global_batch; position++) {
        int64_t n = 0, sequence = sequence_at(data, batch->position + position);
        if (data->spec.pairs)
            n = sequence_n_pairs(&data->sequences, sequence);
        else
            ZERO_TRY(sequence_count(&data->sequences, sequence, &n, &batch->fault));
        *n_counted += n;
    }
    return ZERO_OK;
}

/* Sets batch->n_counted. Counts once for all micro-steps of a step. */
static void count_targets(data_t *data, batch_t *batch)
{
    batch->n_counted = data->spec.global_batch * data->spec.seq_len;
    if (!sequences_have_mask(&data->sequences))
        return;
    if (data->counted_at != batch->position) {
        data->counted_at = -1;
        if (count_step(data, batch, &data->n_counted) == ZERO_OK)
            data->counted_at = batch->position;
    }
    batch->n_counted = data->n_counted;
}

/* Computes where a step begins in the endless order. Returns false if that, or the step's end, is beyond 2^63. */
static bool find_position(const data_t *data, int64_t step, int64_t *position)
{
    const int64_t global_batch = data->spec.global_batch;
    bool is_before = step < data->start_step;
    return !__builtin_mul_overflow(is_before ? step : step - data->start_step, global_batch, position) &&
           !__builtin_add_overflow(*position, is_before ? 0 : data->start_position, position) &&
           *position <= INT64_MAX - global_batch;
}

/* Sets where the documents of a batch begin, whose sequences are at `first` of the endless order and behind it. */
static void find_documents(const data_t *data, int64_t first, int32_t *documents)
{
    const int64_t n_rows = data->spec.micro_batch * data->spec.seq_len;
    int64_t n = 0;
    for (int64_t i = 0; i < data->spec.micro_batch; i++)
        n += sequence_documents(&data->sequences, sequence_at(data, first + i), i * data->spec.seq_len, documents + n);
    while (n <= n_rows)
        documents[n++] = (int32_t)n_rows;
}

static void read_batch(data_t *data, batch_t *batch)
{
    const data_spec_t *spec = &data->spec;
    const int64_t reader = spec->rank / (spec->world_size / n_readers(spec));
    int64_t v = batch->micro_step * n_readers(spec) + reader; /* of the step's micro-batches */
    int64_t first = batch->position + v * spec->micro_batch;
    batch->fault.why.status = ZERO_OK;
    count_targets(data, batch);
    if (batch->documents)
        find_documents(data, first, batch->documents);
    for (int64_t i = 0; i < spec->micro_batch && batch->fault.why.status == ZERO_OK; i++) {
        const int64_t at = i * data->sequences.part_len;
        (void)sequence_read(&data->sequences, sequence_at(data, first + i), batch->inputs + at, batch->targets + at,
                            batch->starts ? batch->starts + i * spec->seq_len : NULL, &batch->fault);
    }
}

/* ---- The reader ---- */

static void *run_reader(void *argument)
{
    data_t *data = argument;
    pthread_mutex_lock(&data->mutex);
    while (data->state != READER_QUIT) {
        if (data->state != READER_BUSY) {
            pthread_cond_wait(&data->changed, &data->mutex);
            continue;
        }
        pthread_mutex_unlock(&data->mutex);
        read_batch(data, &data->back);
        pthread_mutex_lock(&data->mutex);
        if (data->state == READER_BUSY)
            data->state = READER_DONE;
        pthread_cond_broadcast(&data->changed);
    }
    pthread_mutex_unlock(&data->mutex);
    return NULL;
}

static void set_state(data_t *data, reader_state_t state)
{
    pthread_mutex_lock(&data->mutex);
    data->state = state;
    pthread_cond_broadcast(&data->changed);
    pthread_mutex_unlock(&data->mutex);
}

/* Waits until the back batch is the caller's again. Returns whether the reader has filled it. */
static bool wait_for_reader(data_t *data)
{
    pthread_mutex_lock(&data->mutex);
    while (data->state == READER_BUSY)
        pthread_cond_wait(&data->changed, &data->mutex);
    bool filled = data->state == READER_DONE;
    data->state = READER_IDLE;
    pthread_mutex_unlock(&data->mutex);
    return filled;
}

/* Starts the reader. */
static zero_status_t start_reader(data_t *data)
{
    int error = zero_thread_create(&data->reader, run_reader, data);
    if (error)
        return report_rank_error(ZERO_ERROR_MEMORY, "data: cannot start the reader thread: %s", strerror(error));
    data->has_reader = true;
    return ZERO_OK;
}

/* ---- The public calls ---- */

zero_status_t data_choose_steps(int64_t n_sequences, int64_t n_done, int64_t n_taken, train_options_t *train)
{
    const double rounding = 1e-9, n_left = train->epochs * (double)n_sequences - (double)n_taken;
    const double n_steps = fmax(ceil(n_left / (double)train->global_batch - rounding), n_done > 0 ? 0.0 : 1.0);
    char taken[64] = "";
    if (train->epochs <= 0.0)
        return ZERO_OK;
    if (n_steps > 1e12)
        return report_error(ZERO_ERROR_USAGE, "[train] epochs: %g passes over %" PRId64 " sequences are %g steps",
                            train->epochs, n_sequences, n_steps);
    if (n_done > 0)
        snprintf(taken, sizeof taken, "; %" PRId64 " were taken up to step %" PRId64, n_taken, n_done);
    train->steps = n_done + (int64_t)n_steps;
    report("[train] epochs = %g: %" PRId64 "%s step%s of %" PRId64 " sequences, of which there are %" PRId64 "%s",
           train->epochs, (int64_t)n_steps, n_done > 0 ? " more" : "", n_steps == 1.0 ? "" : "s", train->global_batch,
           n_sequences, taken);
    return ZERO_OK;
}

static bool spec_is_sound(const data_spec_t *spec)
{
    return spec->paths && spec->vocab_size >= 1 && spec->vocab_size <= INT32_MAX && spec->seq_len >= 1 &&
           spec->seq_len < INT64_MAX && spec->world_size >= 1 && spec->rank >= 0 && spec->rank < spec->world_size &&
           spec->sequence_ranks <= spec->seq_len &&
           (spec->sequence_ranks <= 1 || spec->world_size % spec->sequence_ranks == 0) && spec->micro_batch >= 1 &&
           spec->global_batch >= 1 && spec->global_batch % n_readers(spec) == 0 &&
           spec->global_batch / n_readers(spec) % spec->micro_batch == 0 &&
           spec->global_batch / n_readers(spec) / spec->micro_batch <= INT32_MAX &&
           (spec->packing == PACKING_CUT || spec->seq_len <= PACKING_MAX_ROOM) &&
           (!spec->pairs || spec->sequence_ranks <= 1);
}

/* Allocates two batches of inputs and targets and, if asked for, of where documents and those of pairs begin. */
static zero_status_t allocate_batches(data_t *data)
{
    const bool has_starts = sequences_have_starts(&data->spec);
    const size_t micro = (size_t)data->spec.micro_batch, n_starts = has_starts ? micro * (size_t)data->spec.seq_len : 0;
    size_t n_tokens, n_bytes, n_documents = 0;
    if (__builtin_mul_overflow(micro, (size_t)data->spec.seq_len, &n_tokens) ||
        __builtin_mul_overflow(n_tokens, 9 * sizeof(int32_t), &n_bytes))
        return report_error(ZERO_ERROR_OVERFLOW, "data: micro_batch %" PRId64 " x seq_len %" PRId64 " is too large",
                            data->spec.micro_batch, data->spec.seq_len);
    n_tokens = micro * (size_t)data->sequences.part_len;
    n_documents = data->spec.pairs ? n_tokens + 1 : 0;
    n_bytes = 2 * (2 * n_tokens + n_starts + n_documents) * sizeof(int32_t);
    data->tokens = malloc(n_bytes);
    if (!data->tokens)
        return report_rank_error(ZERO_ERROR_MEMORY, "data: out of memory: a batch takes %zu bytes", n_bytes);
    int32_t *next = data->tokens;
    for (batch_t *batch = &data->front; batch; batch = batch == &data->front ? &data->back : NULL) {
        batch->inputs = next;
        batch->targets = next + n_tokens;
        batch->starts = has_starts ? next + 2 * n_tokens : NULL;
        batch->documents = n_documents > 0 ? next + 2 * n_tokens + n_starts : NULL;
        next += 2 * n_tokens + n_starts + n_documents;
    }
    return ZERO_OK;
}

static zero_status_t open_all(data_t *data, const char *paths)
{
    ZERO_TRY(sequences_open(&data->spec, paths, &data->sequences));
    ZERO_TRY(allocate_batches(data));
    return start_reader(data);
}

zero_status_t data_open(const data_spec_t *spec, data_t **data)
{
    if (!spec_is_sound(spec))
        return report_error(ZERO_ERROR_ARGUMENT, "data: sizes of the batch do not fit each other");
    data_t *opened = calloc(1, sizeof *opened);
    if (!opened)
        return report_error(ZERO_ERROR_MEMORY, "data: out of memory");
    opened->spec = *spec;
    opened->spec.paths = NULL;
    opened->counted_at = -1;
    opened->micro_steps = (int)(spec->global_batch / n_readers(spec) / spec->micro_batch);
    pthread_mutex_init(&opened->mutex, NULL);
    pthread_cond_init(&opened->changed, NULL);
    zero_status_t status = open_all(opened, spec->paths);
    if (status != ZERO_OK) {
        data_close(opened);
        return status;
    }
    *data = opened;
    return ZERO_OK;
}

void data_close(data_t *data)
{
    if (!data)
        return;
    if (data->has_reader) {
        set_state(data, READER_QUIT);
        pthread_join(data->reader, NULL);
    }
    pthread_cond_destroy(&data->changed);
    pthread_mutex_destroy(&data->mutex);
    sequences_close(&data->sequences);
    free(data->tokens);
    free(data);
}

int64_t data_n_tokens(const data_t *data)
{
    return data->sequences.files.n_tokens;
}

bool data_has_mask(const data_t *data)
{
    return sequences_have_mask(&data->sequences);
}

const int32_t *data_starts(const data_t *data)
{
    return data->front.starts;
}

const int32_t *data_documents(const data_t *data)
{
    return data->front.documents;
}

int64_t data_n_counted(const data_t *data)
{
    return data->front.n_counted;
}

int64_t data_part_len(const data_t *data)
{
    return data->sequences.part_len;
}

bool data_tokenizer(const data_t *data, uint64_t *hash, uint64_t *rules, const char **path)
{
    const token_file_t *file = data_files_tokenizer(&data->sequences.files);
    if (!file)
        return false;
    *hash = file->tokenizer;
    *rules = file->tokenizer_rules;
    *path = file->path;
    return true;
}

const char *data_assumed_text(const data_t *data)
{
    const data_files_t *files = &data->sequences.files;
    for (int i = 0; data->spec.format == FORMAT_AUTO && i < files->n; i++)
        if (files->at[i].format == FORMAT_TEXT)
            return files->at[i].path;
    return NULL;
}

bool data_is_text(const data_t *data)
{
    const data_files_t *files = &data->sequences.files;
    for (int i = 0; i < files->n; i++)
        if (files->at[i].format != FORMAT_TEXT)
            return false;
    return true;
}

int64_t data_n_sequences(const data_t *data)
{
    return data->sequences.n;
}

int64_t data_n_left_out(const data_t *data)
{
    const data_files_t *files = &data->sequences.files;
    int64_t n = 0;
    for (int i = 0; i < files->n && !data->sequences.packing.pieces; i++) {
        const int64_t n_sequences = files->first_sequence[i + 1] - files->first_sequence[i];
        n += files->at[i].n_tokens - (n_sequences > 0 ? n_sequences * data->spec.seq_len + 1 : 0);
    }
    return n;
}

/* Of sequences that are cut out of the files. */
static void report_tail(const data_t *data, const char *key)
{
    const int64_t n = data_n_left_out(data);
    if (n > 0)
        report("[data] %s: the last %" PRId64 " of %" PRId64 " %ss%s fill no sequence and are left out", key, n,
               data_n_tokens(data), data_is_text(data) ? "byte" : "token",
               data->sequences.files.n > 1 ? ", at the ends of files," : "");
}

void data_report_left_out(const data_t *data, const char *key)
{
    const packing_t *packing = &data->sequences.packing;
    char text[512];
    if (!packing->pieces) {
        report_tail(data, key);
        return;
    }
    const bool pairs = data->spec.pairs;
    const int64_t n = pairs ? packing->n_pieces / 2 : packing->n_pieces;
    size_t n_bytes = (size_t)snprintf(
        text, sizeof text,
        "[data] %s: packing = %s: %" PRId64 " %s%s in %" PRId64 " sequence%s of %" PRId64 ", %.1f%% padding", key,
        data->spec.packing == PACKING_FIT ? "fit" : "pad", n, pairs ? "pair" : "document", n == 1 ? "" : "s",
        packing->n_sequences, packing->n_sequences == 1 ? "" : "s", data->spec.seq_len,
        100.0 - 100.0 * (double)packing->n_positions / ((double)packing->n_sequences * (double)data->spec.seq_len));
    if (packing->n_long > 0)
        n_bytes += (size_t)snprintf(
            text + n_bytes, sizeof text - n_bytes,
            "; %" PRId64 " longer than %" PRId64 " tokens %s, which leaves out %" PRId64 " tokens", packing->n_long,
            data->spec.seq_len + (pairs ? 2 : 1), data->spec.drop_long ? "dropped" : "truncated", packing->n_lost);
    if (packing->n_cut_off > 0)
        n_bytes += (size_t)snprintf(text + n_bytes, sizeof text - n_bytes,
                                    "; %" PRId64 " of these pairs left out, since an answer was cut off whole",
                                    packing->n_cut_off);
    if (packing->n_short > 0)
        snprintf(text + n_bytes, sizeof text - n_bytes, "; %" PRId64 " %s left out", packing->n_short,
                 pairs ? "with an answer and prompt of one token" : "of one token");
    report("%s", text);
}

void data_shuffle(data_t *data)
{
    wait_for_reader(data);
    data->spec.shuffle = true;
    data->back.step = -1; /* what was read ahead is no longer next */
}

void data_start_at(data_t *data, int64_t step, int64_t position)
{
    wait_for_reader(data);
    data->start_step = step;
    data->start_position = position;
    data->back.step = -1;
}

zero_status_t data_batch(data_t *data, int64_t step, int micro_step, const int32_t **inputs, const int32_t **targets)
{
    int64_t position, next_position;
    /* The step that is read ahead must have a position, too. */
    if (step < 0 || step == INT64_MAX || !find_position(data, step, &position) ||
        !find_position(data, step + 1, &next_position) || micro_step < 0 || micro_step >= data->micro_steps)
        return report_error(ZERO_ERROR_ARGUMENT, "data: no micro-step %d of step %" PRId64, micro_step, step);
    bool foreseen = wait_for_reader(data) && data->back.step == step && data->back.micro_step == micro_step;
    if (!foreseen) {
        data->back.step = step;
        data->back.position = position;
        data->back.micro_step = micro_step;
        read_batch(data, &data->back);
    }
    if (data->back.fault.why.status != ZERO_OK)
        return sequence_fault_report(&data->sequences, &data->back.fault);
    batch_t ready = data->back;
    data->back = data->front;
    data->front = ready;
    bool last = micro_step + 1 == data->micro_steps;
    data->back.step = last ? step + 1 : step;
    data->back.position = last ? next_position : position;
    data->back.micro_step = last ? 0 : micro_step + 1;
    set_state(data, READER_BUSY);
    *inputs = data->front.inputs;
    *targets = data->front.targets;
    return ZERO_OK;
}

void data_leave_out(data_t *data, int64_t n_sequences)
{
    const int64_t n = data->sequences.part_len, n_rows = data->spec.micro_batch * n, first = n_sequences * n;
    int32_t *targets = data->front.targets, *documents = data->front.documents;
    for (int64_t i = first; i < n_rows; i++)
        targets[i] = DATA_NO_TARGET;
    for (int64_t i = 0; documents && i < n_rows; i++)
        if (documents[i] >= first)
            documents[i] = (int32_t)n_rows;
}

/* ---- Does anything count? ---- */

/* Finds out whether a target counts in the first n_sequences of the endless order. */
static zero_status_t find_target(const data_t *data, int64_t n_sequences, bool *found)
{
    sequence_fault_t fault = {0};
    *found = false;
    for (int64_t i = 0; i < n_sequences && !*found; i++) {
        int64_t n = 0;
        if (sequence_count(&data->sequences, sequence_at(data, i), &n, &fault) != ZERO_OK)
            return sequence_fault_report(&data->sequences, &fault);
        *found = n > 0;
    }
    return ZERO_OK;
}

zero_status_t data_check_targets(data_t *data, int64_t n_sequences)
{
    const data_files_t *files = &data->sequences.files;
    const token_file_t *first = &files->at[0];
    const bool is_part = n_sequences < data->sequences.n;
    bool found = false;
    if (!sequences_have_mask(&data->sequences))
        return ZERO_OK;
    wait_for_reader(data);
    ZERO_TRY(find_target(data, n_sequences, &found));
    if (!found && is_part)
        return report_error(ZERO_ERROR_USAGE,
                            "data: '%s'%s: no token counts as a target in the %" PRId64 " of %" PRId64
                            " sequences that [train] eval_batches * global_batch takes: raise eval_batches",
                            first->path, files->n > 1 ? " with the rest of its list" : "", n_sequences,
                            data->sequences.n);
    if (found && files->n > 1)
        return sequences_report_files_without(&data->sequences);
    if (found)
        return ZERO_OK;
    return report_error(
        ZERO_ERROR_USAGE,
        "data: '%s'%s: no token counts as a target, so there is nothing to learn or to measure: the "
        "mask is empty%s. Of dialogues launch/tokenize counts what the role 'assistant' says: look at "
        "the roles that it names, and tokenize again",
        first->path, files->n > 1 ? " with the rest of its list" : "",
        data->sequences.packing.n_long > 0 ? " where documents are truncated to [model] seq_len tokens: raise it" : "");
}
