/* packing.c - see packing.h. */
#include "train/data/packing.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "train/data/shuffle.h"
#include "train/data/token_format.h"
#include "train/report/report.h"

#define PACKING_EPOCH UINT64_MAX /* of shuffle_index: no epoch of sequences has it */

/* ---- best fit ---- */

#define WORD 64
#define N_LEVELS 6 /* of 64 each: more numbers than PACKING_MAX_ROOM */

/* A set of numbers in which the next one is found in N_LEVELS steps. A bit of a level above the first says whether a
 * word of the level below has any. */
typedef struct number_set {
    uint64_t *words[N_LEVELS]; /* words[0] is owned; the others are behind it */
} number_set_t;

static bool number_set_create(int64_t n_numbers, number_set_t *set)
{
    int64_t n_words[N_LEVELS], n_all = 0;
    for (int level = 0; level < N_LEVELS; level++) {
        n_words[level] = n_numbers = (n_numbers + WORD - 1) / WORD;
        n_all += n_words[level];
    }
    uint64_t *next = calloc((size_t)n_all, sizeof *next);
    for (int level = 0; level < N_LEVELS; level++) {
        set->words[level] = next;
        next = next ? next + n_words[level] : NULL;
    }
    return next != NULL;
}

static void number_set_add(number_set_t *set, int64_t number)
{
    for (int level = 0; level < N_LEVELS; level++, number /= WORD)
        set->words[level][number / WORD] |= UINT64_C(1) << (number % WORD);
}

static void number_set_remove(number_set_t *set, int64_t number)
{
    for (int level = 0; level < N_LEVELS; level++, number /= WORD) {
        set->words[level][number / WORD] &= ~(UINT64_C(1) << (number % WORD));
        if (set->words[level][number / WORD] != 0)
            return;
    }
}

/* Returns the least number that is not below `number`, which is not above the largest that fits; -1: there is none. */
static int64_t number_set_next(const number_set_t *set, int64_t number)
{
    int level = 0;
    uint64_t rest = set->words[0][number / WORD] & ~UINT64_C(0) << (number % WORD);
    while (rest == 0) { /* up, to the first word behind this one that has any */
        number /= WORD;
        if (++level == N_LEVELS)
            return -1;
        rest = set->words[level][number / WORD] & ~UINT64_C(1) << (number % WORD);
    }
    number = number / WORD * WORD + __builtin_ctzll(rest);
    while (level-- > 0) /* and down */
        number = number * WORD + __builtin_ctzll(set->words[level][number]);
    return number;
}

/* Lists things from the largest to the smallest, equal ones in an order of the seed. before: [room + 1], zeros. */
static void sort_by_size(int64_t n, const int32_t *sizes, int32_t room, uint64_t seed, int64_t *before, int64_t *sorted)
{
    for (int64_t i = 0; i < n; i++)
        before[sizes[i] - 1]++;
    for (int32_t size = room; size-- > 0;) /* now how many are larger than size */
        before[size] += before[size + 1];
    for (int64_t i = 0; i < n; i++) {
        int64_t thing = (int64_t)shuffle_index(seed, PACKING_EPOCH, (uint64_t)n, (uint64_t)i);
        sorted[before[sizes[thing]]++] = thing;
    }
}

/* Bins with equal room are a stack: newest[room] is its top, older[bin] what is below a bin; -1: nothing. */
typedef struct fitting {
    int64_t *newest, *older, *sorted;
    number_set_t rooms; /* those that some bin has */
} fitting_t;

static int64_t take_bin(fitting_t *f, int64_t room)
{
    int64_t bin = f->newest[room];
    f->newest[room] = f->older[bin];
    if (f->newest[room] < 0)
        number_set_remove(&f->rooms, room);
    return bin;
}

static void return_bin(fitting_t *f, int64_t room, int64_t bin)
{
    f->older[bin] = f->newest[room];
    f->newest[room] = bin;
    number_set_add(&f->rooms, room);
}

static int64_t fit_all(fitting_t *f, int64_t n, const int32_t *sizes, int32_t room, int64_t *bins)
{
    int64_t n_bins = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t thing = f->sorted[i], found = number_set_next(&f->rooms, sizes[thing]);
        bins[thing] = found >= 0 ? take_bin(f, found) : n_bins++;
        return_bin(f, (found >= 0 ? found : room) - sizes[thing], bins[thing]);
    }
    return n_bins;
}

bool packing_best_fit(int64_t n, const int32_t *sizes, int32_t room, uint64_t seed, int64_t *bins, int64_t *n_bins)
{
    const size_t n_rooms = (size_t)room + 1;
    int64_t *before = calloc(n_rooms, sizeof *before);
    fitting_t f = {.newest = malloc(n_rooms * sizeof *f.newest),
                   .older = malloc((size_t)n * sizeof *f.older),
                   .sorted = malloc((size_t)n * sizeof *f.sorted)};
    bool good = number_set_create(room + 1, &f.rooms) && before && f.newest && f.older && f.sorted;
    if (good) {
        memset(f.newest, 0xff, n_rooms * sizeof *f.newest);
        sort_by_size(n, sizes, room, seed, before, f.sorted);
        *n_bins = fit_all(&f, n, sizes, room, bins);
    }
    free(before);
    free(f.newest);
    free(f.older);
    free(f.sorted);
    free(f.rooms.words[0]);
    return good;
}

/* ---- documents ---- */

/* All that is packed, in the files' order: documents, or pairs of them. */
typedef struct documents {
    int64_t n;
    int pieces_each;     /* 1, or 2 of a pair */
    packing_piece_t *at; /* owned: [n * pieces_each] */
    int32_t *sizes;      /* owned: positions of each */
    int64_t *bins;       /* owned: its sequence */
} documents_t;

static bool documents_create(const data_spec_t *spec, const data_files_t *files, documents_t *documents)
{
    uint64_t n = 1; /* malloc(0) may be NULL */
    for (int i = 0; i < files->n; i++)
        n += files->at[i].n_documents;
    *documents = (documents_t){.pieces_each = spec->pairs ? 2 : 1,
                               .at = malloc(n * sizeof *documents->at),
                               .sizes = malloc(n * sizeof *documents->sizes),
                               .bins = malloc(n * sizeof *documents->bins)};
    return documents->at && documents->sizes && documents->bins;
}

static void documents_free(documents_t *documents)
{
    free(documents->at);
    free(documents->sizes);
    free(documents->bins);
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Divides a sequence between the documents of a pair: where both do not fit, neither gets less than half on account of
 * the other. */
static void share(int64_t room, const int64_t wanted[2], int64_t given[2])
{
    given[0] = smaller(wanted[0], larger(room - wanted[1], room - room / 2));
    given[1] = smaller(wanted[1], room - given[0]);
}

/* Finds out whether each of the documents that begin at begins[] still has a target that counts in given[] positions.
 */
static zero_status_t find_answers(const data_spec_t *spec, const token_file_t *file, const int64_t *begins,
                                  const int64_t *given, int n_documents, bool *all_have)
{
    *all_have = true;
    for (int i = 0; i < n_documents && *all_have; i++) {
        token_fault_t fault;
        char text[TOKEN_FAULT_TEXT];
        int64_t n = 0;
        if (token_mask_count(file, begins[i] + 1, given[i], &n, &fault) != ZERO_OK) {
            token_fault_describe(&fault, file, spec->vocab_size, true, text);
            return report_rank_error(fault.status, "%s", text);
        }
        *all_have = n > 0;
    }
    return ZERO_OK;
}

/* Adds a document, which is between begins[0] and [1], or a pair, whose second one is up to [2]. A pair compares two
 * answers: one that is truncated until an answer has no token left has nothing to compare, and is left out. */
static zero_status_t add_document(const data_spec_t *spec, const token_file_t *file, int number, const int64_t *begins,
                                  documents_t *documents, packing_t *packing)
{
    const int n_each = documents->pieces_each;
    const int64_t wanted[2] = {begins[1] - begins[0] - 1, n_each > 1 ? begins[2] - begins[1] - 1 : 0};
    const int64_t n = wanted[0] + wanted[1], most = spec->seq_len;
    const bool is_short = wanted[0] < 1 || (n_each > 1 && wanted[1] < 1), is_dropped = n > most && spec->drop_long;
    int64_t given[2] = {smaller(n, most)};
    bool has_answers = true;
    packing->n_long += n > most;
    packing->n_short += is_short;
    if (n_each > 1)
        share(most, wanted, given);
    if (n_each > 1 && n > most && !is_short && !is_dropped)
        ZERO_TRY(find_answers(spec, file, begins, given, n_each, &has_answers));
    packing->n_cut_off += !has_answers;
    packing->n_lost += is_dropped || !has_answers ? n + n_each : n > most ? n - most : 0;
    if (is_short || is_dropped || !has_answers)
        return ZERO_OK;
    for (int i = 0; i < n_each; i++)
        documents->at[documents->n * n_each + i] =
            (packing_piece_t){.first = begins[i], .file = number, .n = (int32_t)given[i]};
    documents->sizes[documents->n++] = (int32_t)(given[0] + given[1]);
    return ZERO_OK;
}

#define CHUNK 1024 /* documents whose beginnings are read at once: whole pairs */

static zero_status_t add_file(const data_spec_t *spec, const data_files_t *files, int number, documents_t *documents,
                              packing_t *packing)
{
    const token_file_t *file = &files->at[number];
    int64_t begins[CHUNK + 1];
    for (uint64_t done = 0; done < file->n_documents; done += CHUNK) {
        int64_t n = 0;
        ZERO_TRY(token_documents_list(file, done, CHUNK, begins, &n));
        for (int64_t i = 0; i < n; i += documents->pieces_each)
            ZERO_TRY(add_document(spec, file, number, begins + i, documents, packing));
    }
    return ZERO_OK;
}

/* ---- sequences ---- */

/* Lists the pieces by their sequence: a counting sort. */
static bool list_sequences(const documents_t *documents, packing_t *packing)
{
    const size_t n = (size_t)packing->n_sequences;
    const int n_each = documents->pieces_each;
    packing->starts = calloc(n + 1, sizeof *packing->starts);
    packing->pieces = malloc((size_t)(documents->n * n_each + 1) * sizeof *packing->pieces);
    if (!packing->starts || !packing->pieces)
        return false;
    int64_t *next = packing->starts + 1; /* while it is filled: next[s] is where sequence s's next piece goes */
    for (int64_t i = 0; i < documents->n; i++)
        if (documents->bins[i] + 1 < packing->n_sequences)
            next[documents->bins[i] + 1] += n_each;
    for (size_t s = 1; s < n; s++)
        next[s] += next[s - 1];
    for (int64_t i = 0; i < documents->n; i++) {
        for (int j = 0; j < n_each; j++)
            packing->pieces[next[documents->bins[i]]++] = documents->at[i * n_each + j];
        packing->n_positions += documents->sizes[i];
    }
    packing->n_pieces = documents->n * n_each;
    return true;
}

static bool fill_sequences(const data_spec_t *spec, documents_t *documents, packing_t *packing)
{
    packing->n_sequences = documents->n;
    for (int64_t i = 0; i < documents->n; i++)
        documents->bins[i] = i;
    if (spec->packing == PACKING_FIT && documents->n > 0 &&
        !packing_best_fit(documents->n, documents->sizes, (int32_t)spec->seq_len, spec->seed, documents->bins,
                          &packing->n_sequences))
        return false;
    return list_sequences(documents, packing);
}

zero_status_t packing_make(const data_spec_t *spec, const data_files_t *files, packing_t *packing)
{
    documents_t documents;
    *packing = (packing_t){0};
    bool has_memory = documents_create(spec, files, &documents);
    zero_status_t status = ZERO_OK;
    for (int i = 0; i < files->n && has_memory && status == ZERO_OK; i++)
        status = add_file(spec, files, i, &documents, packing);
    if (status == ZERO_OK)
        has_memory = has_memory && fill_sequences(spec, &documents, packing);
    documents_free(&documents);
    if (status == ZERO_OK && !has_memory)
        return report_rank_error(ZERO_ERROR_MEMORY, "data: out of memory: packing takes some 50 bytes per document");
    return status;
}

void packing_free(packing_t *packing)
{
    free(packing->starts);
    free(packing->pieces);
    *packing = (packing_t){0};
}
