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
#include "train/data/data_files.h"
#include "train/data/shuffle.h"
#include "train/data/token_files.h"
#include "train/data/token_format.h"
#include "train/report/report.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct batch {
    int64_t step, position; /* of the step's first sequence, in the endless order */
    int micro_step;
    int32_t *inputs, *targets; /* [micro_batch, seq_len] each */
    int32_t *starts;           /* likewise; NULL: documents are not separate */
    int64_t n_counted;         /* targets of the whole step */
    token_fault_t fault;       /* status ZERO_OK: all tokens were read and are in the vocabulary */
    const token_file_t *at;    /* the file that has the fault */
} batch_t;

typedef enum reader_state { READER_IDLE, READER_BUSY, READER_DONE, READER_QUIT } reader_state_t;

struct data {
    data_spec_t spec; /* without paths */
    data_files_t files;
    int64_t counted_at, n_counted; /* a step's position, and the targets that count in it; as the back batch */
    int micro_steps;
    int64_t start_step, start_position; /* set by data_start_at */

    batch_t front, back;
    int32_t *tokens; /* what the batches point into, and begins */
    int32_t *begins; /* [seq_len + 1]: as the back batch; scratch */

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
    int64_t epoch = position / data->files.n_sequences, index = position % data->files.n_sequences;
    if (!data->spec.shuffle)
        return index;
    return (int64_t)shuffle_index(data->spec.seed, (uint64_t)epoch, (uint64_t)data->files.n_sequences, (uint64_t)index);
}

/* Finds the documents that begin in the inputs and targets of the sequence at token `first` of batch->at. */
static zero_status_t find_documents(const data_t *data, int64_t first, int64_t *n_begins, batch_t *batch)
{
    *n_begins = 0;
    return data->spec.separate
               ? token_documents_find(batch->at, first, data->spec.seq_len + 1, data->begins, n_begins, &batch->fault)
               : ZERO_OK;
}

/* Sets where the documents of a sequence begin, and removes the targets that are the first token of one: nothing before
 * it says what it is. */
static void separate_documents(const data_t *data, int64_t n_begins, int32_t *starts, int32_t *targets)
{
    const int64_t seq_len = data->spec.seq_len;
    int32_t start = 0;
    int64_t t = 0;
    for (int64_t i = 0; i <= n_begins; i++) {
        int64_t begin = i < n_begins ? data->begins[i] : seq_len;
        for (; t < begin; t++)
            starts[t] = start;
        start = (int32_t)begin;
        if (i < n_begins && begin > 0)
            targets[begin - 1] = DATA_NO_TARGET;
    }
}

/* Reads a sequence into row `row` of the batch. */
static zero_status_t read_sequence(const data_t *data, int64_t sequence, int64_t row, batch_t *batch)
{
    const int64_t seq_len = data->spec.seq_len, vocab_size = data->spec.vocab_size;
    int32_t *inputs = batch->inputs + row * seq_len, *targets = batch->targets + row * seq_len;
    int64_t first;
    batch->at = data_files_find(&data->files, sequence, seq_len, &first);
    ZERO_TRY(token_file_read(batch->at, first, seq_len, vocab_size, inputs, &batch->fault));
    memcpy(targets, inputs + 1, (size_t)(seq_len - 1) * sizeof *targets);
    ZERO_TRY(token_file_read(batch->at, first + seq_len, 1, vocab_size, targets + seq_len - 1, &batch->fault));
    ZERO_TRY(token_mask_apply(batch->at, first + 1, seq_len, DATA_NO_TARGET, targets, &batch->fault));
    if (!data->spec.separate)
        return ZERO_OK;
    int64_t n_begins;
    ZERO_TRY(find_documents(data, first, &n_begins, batch));
    separate_documents(data, n_begins, batch->starts + row * seq_len, targets);
    return ZERO_OK;
}

/* Counts the targets that count in the sequence at token `first` of batch->at: by the mask, without the first tokens of
 * documents. */
static zero_status_t count_sequence(const data_t *data, int64_t first, batch_t *batch, int64_t *n_counted)
{
    int64_t n_begins;
    ZERO_TRY(token_mask_count(batch->at, first + 1, data->spec.seq_len, n_counted, &batch->fault));
    ZERO_TRY(find_documents(data, first, &n_begins, batch));
    for (int64_t i = 0; i < n_begins; i++) {
        int64_t n = 0;
        if (data->begins[i] > 0)
            ZERO_TRY(token_mask_count(batch->at, first + data->begins[i], 1, &n, &batch->fault));
        *n_counted -= n;
    }
    return ZERO_OK;
}

/* Adds up the targets that count in the sequences of a whole step. */
static zero_status_t count_step(const data_t *data, batch_t *batch, int64_t *n_counted)
{
    const int64_t seq_len = data->spec.seq_len;
    *n_counted = 0;
    for (int64_t position = 0; position < data->spec.global_batch; position++) {
        int64_t n = 0, sequence = sequence_at(data, batch->position + position);
        int64_t first;
        batch->at = data_files_find(&data->files, sequence, seq_len, &first);
        ZERO_TRY(count_sequence(data, first, batch, &n));
        *n_counted += n;
    }
    return ZERO_OK;
}

/* Sets batch->n_counted. Counts once for all micro-steps of a step. */
static void count_targets(data_t *data, batch_t *batch)
{
    batch->n_counted = data->spec.global_batch * data->spec.seq_len;
    if (!data->files.has_mask)
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

static void read_batch(data_t *data, batch_t *batch)
{
    const data_spec_t *spec = &data->spec;
    int64_t v = (int64_t)batch->micro_step * spec->world_size + spec->rank; /* of the step's micro-batches */
    int64_t first = batch->position + v * spec->micro_batch;
    batch->fault.status = ZERO_OK;
    count_targets(data, batch);
    for (int64_t i = 0; i < spec->micro_batch && batch->fault.status == ZERO_OK; i++)
        (void)read_sequence(data, sequence_at(data, first + i), i, batch);
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

static bool spec_is_sound(const data_spec_t *spec)
{
    return spec->paths && spec->vocab_size >= 1 && spec->vocab_size <= INT32_MAX && spec->seq_len >= 1 &&
           spec->seq_len < INT64_MAX && spec->world_size >= 1 && spec->rank >= 0 && spec->rank < spec->world_size &&
           spec->micro_batch >= 1 && spec->global_batch >= 1 && spec->global_batch % spec->world_size == 0 &&
           spec->global_batch / spec->world_size % spec->micro_batch == 0 &&
           spec->global_batch / spec->world_size / spec->micro_batch <= INT32_MAX;
}

/* Allocates two batches of inputs and targets and, if documents are separate, of where they begin. */
static zero_status_t allocate_batches(data_t *data)
{
    const size_t n_arrays = data->spec.separate ? 3 : 2;
    size_t n_tokens, n_bytes, n_begins = data->spec.separate ? (size_t)data->spec.seq_len + 1 : 0;
    if (__builtin_mul_overflow((size_t)data->spec.micro_batch, (size_t)data->spec.seq_len, &n_tokens) ||
        __builtin_mul_overflow(n_tokens, 2 * n_arrays * sizeof(int32_t), &n_bytes) ||
        __builtin_add_overflow(n_bytes, n_begins * sizeof(int32_t), &n_bytes))
        return report_error(ZERO_ERROR_OVERFLOW, "data: micro_batch %" PRId64 " x seq_len %" PRId64 " is too large",
                            data->spec.micro_batch, data->spec.seq_len);
    data->tokens = malloc(n_bytes);
    if (!data->tokens)
        return report_rank_error(ZERO_ERROR_MEMORY, "data: out of memory: a batch takes %zu bytes", n_bytes);
    int32_t *next = data->tokens;
    for (batch_t *batch = &data->front; batch; batch = batch == &data->front ? &data->back : NULL) {
        batch->inputs = next;
        batch->targets = next + n_tokens;
        batch->starts = data->spec.separate ? next + 2 * n_tokens : NULL;
        next += n_arrays * n_tokens;
    }
    data->begins = next;
    return ZERO_OK;
}

static zero_status_t open_all(data_t *data, const char *paths)
{
    ZERO_TRY(data_files_open(&data->spec, paths, &data->files));
    ZERO_TRY(data_files_check_tokens(&data->spec, &data->files));
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
    opened->micro_steps = (int)(spec->global_batch / spec->world_size / spec->micro_batch);
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
    data_files_close(&data->files);
    free(data->tokens);
    free(data);
}

int64_t data_n_tokens(const data_t *data)
{
    return data->files.n_tokens;
}

bool data_has_mask(const data_t *data)
{
    return data->files.has_mask;
}

const int32_t *data_starts(const data_t *data)
{
    return data->front.starts;
}

int64_t data_n_counted(const data_t *data)
{
    return data->front.n_counted;
}

uint64_t data_tokenizer(const data_t *data, const char **path)
{
    return data_files_tokenizer(&data->files, path);
}

int64_t data_n_sequences(const data_t *data)
{
    return data->files.n_sequences;
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

/* Logs a fault that may be this rank's alone. The others notice when this rank is gone. */
static zero_status_t report_fault(const data_t *data, const batch_t *batch)
{
    char text[TOKEN_FAULT_TEXT];
    token_fault_describe(&batch->fault, batch->at, data->spec.vocab_size, true, text);
    return report_rank_error(batch->fault.status, "%s", text);
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
    if (data->back.fault.status != ZERO_OK)
        return report_fault(data, &data->back);
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
    int32_t *targets = data->front.targets;
    for (int64_t i = n_sequences * data->spec.seq_len; i < data->spec.micro_batch * data->spec.seq_len; i++)
        targets[i] = DATA_NO_TARGET;
}

/* ---- Does anything count? ---- */

/* Finds out whether a target counts in sequences `first` to end - 1 of the files' order, or of the endless one. */
static zero_status_t find_target(const data_t *data, int64_t first, int64_t end, bool in_files_order, bool *found)
{
    batch_t probe = {0};
    *found = false;
    for (int64_t i = first; i < end && !*found; i++) {
        int64_t token, n = 0;
        probe.at = data_files_find(&data->files, in_files_order ? i : sequence_at(data, i), data->spec.seq_len, &token);
        if (count_sequence(data, token, &probe, &n) != ZERO_OK)
            return report_fault(data, &probe);
        *found = n > 0;
    }
    return ZERO_OK;
}

/* Says so of each file in which no target counts. */
static zero_status_t report_files_without(const data_t *data)
{
    const data_files_t *files = &data->files;
    for (int i = 0; i < files->n; i++) {
        bool found;
        ZERO_TRY(find_target(data, files->first_sequence[i], files->first_sequence[i + 1], true, &found));
        if (!found && files->first_sequence[i] < files->first_sequence[i + 1])
            report("data file '%s': no token counts as a target, so nothing is learned from it, nor measured on it: "
                   "its mask is empty",
                   files->at[i].path);
    }
    return ZERO_OK;
}

zero_status_t data_check_targets(data_t *data, int64_t n_sequences)
{
    const token_file_t *first = &data->files.at[0];
    const bool is_part = n_sequences < data->files.n_sequences;
    bool found = false;
    if (!data->files.has_mask)
        return ZERO_OK;
    wait_for_reader(data);
    ZERO_TRY(find_target(data, 0, n_sequences, false, &found));
    if (!found && is_part)
        return report_error(ZERO_ERROR_USAGE,
                            "data: '%s'%s: no token counts as a target in the %" PRId64 " of %" PRId64
                            " sequences that [train] eval_batches * global_batch takes: raise eval_batches",
                            first->path, data->files.n > 1 ? " with the rest of its list" : "", n_sequences,
                            data->files.n_sequences);
    if (found && data->files.n > 1)
        return report_files_without(data);
    if (found)
        return ZERO_OK;
    return report_error(ZERO_ERROR_USAGE,
                        "data: '%s'%s: no token counts as a target, so there is nothing to learn or to measure: the "
                        "mask is empty. Of dialogues launch/tokenize counts what the role 'assistant' says: look at "
                        "the roles that it names, and tokenize again",
                        first->path, data->files.n > 1 ? " with the rest of its list" : "");
}
