/* sequences.c - see sequences.h. */
#include "train/data/sequences.h"

#include <stdlib.h>
#include <string.h>

#include "train/data/token_format.h"
#include "train/report/report.h"

bool sequences_have_starts(const data_spec_t *spec)
{
    return spec->separate || spec->with_starts || spec->packing != PACKING_CUT;
}

bool sequences_have_mask(const sequences_t *sequences)
{
    return sequences->files.has_mask || sequences->packing.pieces != NULL;
}

/* Finds how many sequences the opened files have, and which documents they have if they are packed. */
static zero_status_t divide(sequences_t *sequences)
{
    const data_spec_t *spec = &sequences->spec;
    sequences->n = sequences->files.n_sequences;
    if (spec->packing == PACKING_CUT)
        return ZERO_OK;
    ZERO_TRY(packing_make(spec, &sequences->files, &sequences->packing));
    sequences->n = sequences->packing.n_sequences;
    if (sequences->n > 0)
        return ZERO_OK;
    char too_long[160] = "";
    if (sequences->packing.n_cut_off > 0)
        snprintf(too_long, sizeof too_long, ", or are so long that an answer is cut off whole: raise [model] seq_len");
    else if (sequences->packing.n_long > 0 && spec->drop_long)
        snprintf(too_long, sizeof too_long,
                 ", or are longer than [model] seq_len + %d and dropped: raise seq_len, or set [data] long_documents = "
                 "truncate",
                 spec->pairs ? 2 : 1);
    return report_error(ZERO_ERROR_FORMAT, "data: no %s of '%s'%s can be packed: they %s of one token%s",
                        spec->pairs ? "pair" : "document", sequences->files.at[0].path,
                        sequences->files.n > 1 ? " and the rest of its list" : "",
                        spec->pairs ? "have an answer and prompt" : "are", too_long);
}

/* Sets which positions of a sequence are this rank's. */
static void set_part(sequences_t *sequences)
{
    const data_spec_t *spec = &sequences->spec;
    const int64_t n_parts = spec->sequence_ranks > 1 ? spec->sequence_ranks : 1, part = spec->rank % n_parts;
    sequences->part_begin = options_part_begin(spec->seq_len, n_parts, part);
    sequences->part_len = options_part_begin(spec->seq_len, n_parts, part + 1) - sequences->part_begin;
}

zero_status_t sequences_open(const data_spec_t *spec, const char *paths, sequences_t *sequences)
{
    sequences->spec = *spec;
    sequences->spec.paths = NULL;
    set_part(sequences);
    ZERO_TRY(data_files_open(spec, paths, &sequences->files));
    ZERO_TRY(data_files_check_tokens(spec, &sequences->files));
    ZERO_TRY(divide(sequences));
    sequences->begins = malloc((size_t)(spec->seq_len + 1) * sizeof *sequences->begins);
    return sequences->begins ? ZERO_OK : report_rank_error(ZERO_ERROR_MEMORY, "data: out of memory");
}

void sequences_close(sequences_t *sequences)
{
    data_files_close(&sequences->files);
    packing_free(&sequences->packing);
    free(sequences->begins);
    *sequences = (sequences_t){0};
}

/* ---- pieces ---- */

/* Returns the *n pieces of a sequence. one: room for the only piece of a sequence that is cut. */
static const packing_piece_t *pieces_of(const sequences_t *sequences, int64_t number, packing_piece_t *one, int64_t *n)
{
    const packing_t *packing = &sequences->packing;
    if (packing->pieces) {
        *n = packing->starts[number + 1] - packing->starts[number];
        return packing->pieces + packing->starts[number];
    }
    const token_file_t *file = data_files_find(&sequences->files, number, sequences->spec.seq_len, &one->first);
    one->file = (int32_t)(file - sequences->files.at);
    one->n = (int32_t)sequences->spec.seq_len;
    *n = 1;
    return one;
}

/* Finds the documents that begin within a piece: in sequences that are cut, if documents are separate. */
static zero_status_t find_documents(const sequences_t *sequences, const packing_piece_t *piece, int64_t *n_begins,
                                    sequence_fault_t *fault)
{
    *n_begins = 0;
    if (!sequences->spec.separate || sequences->packing.pieces)
        return ZERO_OK;
    return token_documents_find(fault->at, piece->first, piece->n + 1, sequences->begins, n_begins, &fault->why);
}

/* Sets where the documents of a piece begin, which is at position `start` of its sequence, and removes the targets that
 * are the first token of a document: nothing before it says what it is. */
static void separate_documents(const sequences_t *sequences, const packing_piece_t *piece, int64_t n_begins,
                               int64_t start, int32_t *starts, int32_t *targets)
{
    int64_t t = start, own = start;
    for (int64_t i = 0; i <= n_begins; i++) {
        int64_t begin = start + (i < n_begins ? sequences->begins[i] : piece->n);
        for (; starts && t < begin; t++)
            starts[t] = (int32_t)own;
        own = begin;
        const int64_t target = begin - 1 - sequences->part_begin;
        if (i < n_begins && begin > start && target >= 0 && target < sequences->part_len)
            targets[target] = DATA_NO_TARGET;
    }
}

/* Reads what this rank's part has of a piece at position `start` of its sequence. */
static zero_status_t read_piece(const sequences_t *sequences, const packing_piece_t *piece, int64_t start,
                                int32_t *inputs, int32_t *targets, int32_t *starts, sequence_fault_t *fault)
{
    const int64_t part = sequences->part_begin, part_end = part + sequences->part_len, end = start + piece->n;
    const int64_t from = start > part ? start : part, n = (end < part_end ? end : part_end) - from;
    const int64_t first = piece->first + from - start, vocab_size = sequences->spec.vocab_size;
    int64_t n_begins;
    fault->at = &sequences->files.at[piece->file];
    if (n > 0) {
        int32_t *in = inputs + from - part, *out = targets + from - part;
        ZERO_TRY(token_file_read(fault->at, first, n, vocab_size, in, &fault->why));
        memcpy(out, in + 1, (size_t)(n - 1) * sizeof *out);
        ZERO_TRY(token_file_read(fault->at, first + n, 1, vocab_size, out + n - 1, &fault->why));
        ZERO_TRY(token_mask_apply(fault->at, first + 1, n, DATA_NO_TARGET, out, &fault->why));
    }
    ZERO_TRY(find_documents(sequences, piece, &n_begins, fault));
    separate_documents(sequences, piece, n_begins, start, starts, targets);
    return ZERO_OK;
}

/* Fills the positions from `begin` on. */
static void pad(const sequences_t *sequences, int64_t begin, int32_t *inputs, int32_t *targets, int32_t *starts)
{
    for (int64_t t = begin; t < sequences->spec.seq_len; t++) {
        const int64_t own = t - sequences->part_begin;
        if (starts)
            starts[t] = (int32_t)t;
        if (own < 0 || own >= sequences->part_len)
            continue;
        inputs[own] = 0;
        targets[own] = DATA_NO_TARGET;
    }
}

zero_status_t sequence_read(const sequences_t *sequences, int64_t number, int32_t *inputs, int32_t *targets,
                            int32_t *starts, sequence_fault_t *fault)
{
    packing_piece_t one;
    int64_t n, t = 0;
    const packing_piece_t *pieces = pieces_of(sequences, number, &one, &n);
    fault->why.status = ZERO_OK;
    for (int64_t i = 0; i < n; t += pieces[i++].n)
        ZERO_TRY(read_piece(sequences, &pieces[i], t, inputs, targets, starts, fault));
    pad(sequences, t, inputs, targets, starts);
    return ZERO_OK;
}

/* ---- counting ---- */

/* Counts by the mask, without the first tokens of documents. */
static zero_status_t count_piece(const sequences_t *sequences, const packing_piece_t *piece, int64_t *n_counted,
                                 sequence_fault_t *fault)
{
    int64_t n_begins, n = 0;
    fault->at = &sequences->files.at[piece->file];
    ZERO_TRY(token_mask_count(fault->at, piece->first + 1, piece->n, n_counted, &fault->why));
    ZERO_TRY(find_documents(sequences, piece, &n_begins, fault));
    for (int64_t i = 0; i < n_begins; i++, *n_counted -= n) {
        n = 0;
        if (sequences->begins[i] > 0)
            ZERO_TRY(token_mask_count(fault->at, piece->first + sequences->begins[i], 1, &n, &fault->why));
    }
    return ZERO_OK;
}

zero_status_t sequence_count(const sequences_t *sequences, int64_t number, int64_t *n_counted, sequence_fault_t *fault)
{
    packing_piece_t one;
    int64_t n;
    const packing_piece_t *pieces = pieces_of(sequences, number, &one, &n);
    fault->why.status = ZERO_OK;
    *n_counted = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t of_piece = 0;
        ZERO_TRY(count_piece(sequences, &pieces[i], &of_piece, fault));
        *n_counted += of_piece;
    }
    return ZERO_OK;
}

int64_t sequence_n_pairs(const sequences_t *sequences, int64_t number)
{
    const packing_t *packing = &sequences->packing;
    return (packing->starts[number + 1] - packing->starts[number]) / 2;
}

int64_t sequence_documents(const sequences_t *sequences, int64_t number, int64_t first, int32_t *documents)
{
    const packing_t *packing = &sequences->packing;
    const int64_t begin = packing->starts[number], n = packing->starts[number + 1] - begin;
    for (int64_t i = 0; i < n; first += packing->pieces[begin + i++].n)
        documents[i] = (int32_t)first;
    return n;
}

/* Sets counts[i] if a target of file i counts. */
static zero_status_t find_files_with(const sequences_t *sequences, bool *counts)
{
    sequence_fault_t fault = {0};
    for (int64_t number = 0; number < sequences->n; number++) {
        packing_piece_t one;
        int64_t n;
        const packing_piece_t *pieces = pieces_of(sequences, number, &one, &n);
        for (int64_t i = 0; i < n; i++) {
            int64_t of_piece = 0;
            if (counts[pieces[i].file])
                continue;
            if (count_piece(sequences, &pieces[i], &of_piece, &fault) != ZERO_OK)
                return sequence_fault_report(sequences, &fault);
            counts[pieces[i].file] = of_piece > 0;
        }
    }
    return ZERO_OK;
}

zero_status_t sequences_report_files_without(const sequences_t *sequences)
{
    const data_files_t *files = &sequences->files;
    bool *counts = calloc((size_t)files->n, sizeof *counts);
    if (!counts)
        return report_rank_error(ZERO_ERROR_MEMORY, "data: out of memory");
    zero_status_t status = find_files_with(sequences, counts);
    for (int i = 0; i < files->n && status == ZERO_OK; i++)
        if (!counts[i] && (sequences->packing.pieces || files->first_sequence[i] < files->first_sequence[i + 1]))
            report("data file '%s': no token counts as a target, so nothing is learned from it, nor measured on it: "
                   "its mask is empty",
                   files->at[i].path);
    free(counts);
    return status;
}

/* A fault may be this rank's alone. The others notice when this rank is gone. */
zero_status_t sequence_fault_report(const sequences_t *sequences, const sequence_fault_t *fault)
{
    char text[TOKEN_FAULT_TEXT];
    token_fault_describe(&fault->why, fault->at, sequences->spec.vocab_size, true, text);
    return report_rank_error(fault->why.status, "%s", text);
}
