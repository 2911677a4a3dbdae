/* data_files.c - see data_files.h. */
#include "train/data/data_files.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/data/data.h"
#include "train/data/token_format.h"
#include "train/options/val_sets.h"
#include "train/report/report.h"

/* ---- data spec ---- */
/* What the settings say of the data, as a specification of data.h. */

data_spec_t data_spec_of(const data_options_t *data, const model_options_t *model, const train_options_t *train,
                         zero_comm_t *comm, const char *paths, int packing)
{
    return (data_spec_t){.paths = paths,
                         .format = (options_format_t)data->format,
                         .vocab_size = model->vocab_size,
                         .seq_len = model->seq_len,
                         .global_batch = train->global_batch,
                         .micro_batch = train->micro_batch,
                         .rank = zero_comm_rank(comm),
                         .world_size = zero_comm_size(comm),
                         .sequence_ranks = (int)options_sequence_ranks(train),
                         .packing = packing,
                         .pairs = train->objective == OBJECTIVE_DPO,
                         .drop_long = data->long_documents == LONG_DROP,
                         .separate = data->asked_documents == DOCUMENTS_SEPARATE && packing == PACKING_CUT,
                         .with_starts = data->documents == DOCUMENTS_SEPARATE};
}

/* Cuts off the spaces at both ends. */
static char *stripped(char *text)
{
    text += strspn(text, " \t");
    size_t length = strlen(text);
    while (length > 0 && strchr(" \t", text[length - 1]))
        text[--length] = 0;
    return text;
}

/* Returns whether a file of a list has a loss mask. Says nothing of files that cannot be read. */
static bool any_has_mask(const char *paths)
{
    char list[OPTIONS_MAX_PATH];
    bool found = false;
    snprintf(list, sizeof list, "%s", paths);
    for (char *rest = list, *item; !found && (item = strsep(&rest, ","));)
        found = token_file_has_mask(stripped(item));
    return found;
}

static int chosen_packing(int asked, const char *paths)
{
    return asked != PACKING_AUTO ? asked : any_has_mask(paths) ? PACKING_FIT : PACKING_CUT;
}

/* Sets the packing of data.train and of each set of data.val. Returns whether any is packed. */
static bool choose_packing(int asked, data_options_t *data)
{
    const int n_sets = val_sets_count(data->val);
    data->packing = chosen_packing(asked, data->train);
    bool is_packed = data->packing != PACKING_CUT;
    for (int i = 0; i < OPTIONS_MAX_VAL_SETS; i++) {
        val_set_t set = {0};
        if (i < n_sets)
            val_sets_read(data->val, i, &set);
        data->val_packing[i] = chosen_packing(asked, set.paths);
        is_packed = is_packed || data->val_packing[i] != PACKING_CUT;
    }
    return is_packed;
}

zero_status_t data_choose_packing(data_options_t *data)
{
    const int asked = data->packing;
    data->asked_documents = data->documents;
    const bool is_packed = choose_packing(asked, data);
    if (data->documents == DOCUMENTS_JOIN && is_packed && asked == PACKING_AUTO) /* the older way, asked for */
        choose_packing(PACKING_CUT, data);
    else if (data->documents == DOCUMENTS_JOIN && is_packed)
        return report_error(ZERO_ERROR_USAGE,
                            "[data] documents = join: packing = %s keeps documents apart: leave documents out, or set "
                            "packing = cut",
                            asked == PACKING_FIT ? "fit" : "pad");
    if (data->documents == DOCUMENTS_AUTO)
        data->documents = is_packed ? DOCUMENTS_SEPARATE : DOCUMENTS_JOIN;
    return ZERO_OK;
}

/* ---- data files ---- */

const token_file_t *data_files_tokenizer(const data_files_t *files)
{
    for (int i = 0; i < files->n; i++)
        if (files->at[i].tokenizer)
            return &files->at[i];
    return NULL;
}

#define MAX_TOKENS (INT64_C(1) << 62) /* and so of sequences: shuffle.h */

/* Checks what the file's header says of the tokenizer against the model's vocabulary and the files before it. */
static zero_status_t check_tokenizer(const data_spec_t *spec, const data_files_t *files, const token_file_t *file)
{
    const token_file_t *first = data_files_tokenizer(files);
    if (file->vocab_size > spec->vocab_size)
        return report_error(ZERO_ERROR_USAGE,
                            "'%s' has tokens of a vocabulary of %" PRId64 ", but [model] vocab_size is %" PRId64
                            ": it was made for another model",
                            file->path, file->vocab_size, spec->vocab_size);
    const bool has_rules = first && first->tokenizer_rules && first->tokenizer_rules == file->tokenizer_rules;
    if (file->tokenizer && first && file->tokenizer != first->tokenizer && !has_rules)
        return report_error(ZERO_ERROR_USAGE,
                            "'%s' and '%s' were made by different tokenizers: tokenize all files with the model's",
                            file->path, first->path);
    return ZERO_OK;
}

/* Pairs are not what a next token is learned from, nor the other way round. */
static zero_status_t check_pairs(const data_spec_t *spec, const token_file_t *file)
{
    if (!spec->pairs && file->has_pairs)
        return report_error(ZERO_ERROR_USAGE,
                            "'%s' has pairs of answers, one preferred to the other, which only training with [train] "
                            "objective = dpo takes, and evaluate does not: set that to train, or tokenize the "
                            "preferred answers alone",
                            file->path);
    if (spec->pairs && !file->has_pairs)
        return report_error(ZERO_ERROR_USAGE,
                            "'%s' has no pairs of answers, from which [train] objective = dpo learns: make tokens with "
                            "launch/tokenize --format preference",
                            file->path);
    if (spec->pairs && spec->packing == PACKING_CUT)
        return report_error(ZERO_ERROR_USAGE,
                            "'%s': [data] packing = cut, or documents = join, would take pairs of answers apart: leave "
                            "them out, or set packing = fit or pad",
                            file->path);
    return ZERO_OK;
}

static zero_status_t open_file(const data_spec_t *spec, const char *path, data_files_t *files)
{
    const int64_t seq_len = spec->seq_len;
    token_file_t *file = &files->at[files->n];
    ZERO_TRY(token_file_open(path, spec->format, file));
    files->n++;
    ZERO_TRY(check_tokenizer(spec, files, file));
    ZERO_TRY(check_pairs(spec, file));
    const bool is_packed = spec->packing != PACKING_CUT;
    if ((spec->separate || is_packed) && !token_documents_are_there(file))
        return report_error(ZERO_ERROR_USAGE,
                            "'%s' does not say where its documents begin, which [data] %s needs: make tokens of the "
                            "text with launch/tokenize, or set %s",
                            file->path, is_packed ? "packing = fit or pad" : "documents = separate",
                            is_packed ? "packing = cut" : "documents = join");
    files->has_mask = files->has_mask || spec->separate || token_mask_is_there(file);
    int64_t n_sequences = file->n_tokens > 0 ? (file->n_tokens - 1) / seq_len : 0;
    if (file->n_tokens > MAX_TOKENS - files->n_tokens)
        return report_error(ZERO_ERROR_OVERFLOW, "data: with '%s' there are more than 2^62 tokens", file->path);
    files->n_tokens += file->n_tokens;
    files->n_sequences += n_sequences;
    files->first_sequence[files->n] = files->n_sequences;
    return ZERO_OK;
}

/* Names the files that are too short for a sequence, though others of the list are not. */
static void report_left_out(const data_spec_t *spec, const data_files_t *files)
{
    for (int i = 0; i < files->n; i++)
        if (files->first_sequence[i] == files->first_sequence[i + 1])
            report("data file '%s' has %" PRId64 " tokens, fewer than the %" PRId64 " of one sequence: it is left out",
                   files->at[i].path, files->at[i].n_tokens, spec->seq_len + 1);
}

/* Opens the files of `list`, a copy of `paths` that is split in place. */
static zero_status_t open_list(const data_spec_t *spec, const char *paths, char *list, data_files_t *files)
{
    size_t n_paths = 1;
    for (const char *c = list; *c; c++)
        n_paths += *c == ',';
    files->at = calloc(n_paths, sizeof *files->at);
    files->first_sequence = calloc(n_paths + 1, sizeof *files->first_sequence);
    if (!files->at || !files->first_sequence)
        return report_error(ZERO_ERROR_MEMORY, "data: out of memory");
    if (n_paths > 1 && access(paths, F_OK) == 0)
        return report_error(ZERO_ERROR_USAGE,
                            "[data]: there is a file '%s', but commas separate files: rename it, or name a link to it",
                            paths);
    for (char *rest = list, *item; (item = strsep(&rest, ","));) {
        const char *path = stripped(item);
        if (!path[0])
            return report_error(ZERO_ERROR_USAGE, "[data]: an empty path in the list of files '%s': a comma too many",
                                paths);
        ZERO_TRY(open_file(spec, path, files));
    }
    if (spec->packing != PACKING_CUT)
        return ZERO_OK;
    if (files->n_sequences == 0)
        return report_error(ZERO_ERROR_FORMAT,
                            "data: '%s'%s has %" PRId64
                            " tokens, too few for one sequence of [model] seq_len = %" PRId64 ", which takes %" PRId64,
                            files->at[0].path, n_paths > 1 ? " with the rest of its list" : "", files->n_tokens,
                            spec->seq_len, spec->seq_len + 1);
    report_left_out(spec, files);
    return ZERO_OK;
}

zero_status_t data_files_open(const data_spec_t *spec, const char *paths, data_files_t *files)
{
    char *list = strdup(paths);
    if (!list)
        return report_error(ZERO_ERROR_MEMORY, "data: out of memory");
    zero_status_t status = open_list(spec, paths, list, files);
    free(list);
    return status;
}

zero_status_t data_files_check_tokens(const data_spec_t *spec, const data_files_t *files)
{
    const int64_t rank = spec->rank, n_ranks = spec->world_size;
    for (int i = 0; i < files->n; i++) {
        int64_t n_tokens = files->at[i].n_tokens, each = n_tokens / n_ranks, rest = n_tokens % n_ranks;
        int64_t first = each * rank + (rank < rest ? rank : rest);
        int64_t n_mine = each + (rank < rest);
        ZERO_TRY(token_file_check(&files->at[i], first, n_mine, spec->vocab_size));
    }
    return ZERO_OK;
}

/* The last file whose first sequence is not beyond it has the sequence. */
const token_file_t *data_files_find(const data_files_t *files, int64_t sequence, int64_t seq_len, int64_t *token)
{
    int low = 0, high = files->n;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (files->first_sequence[middle] <= sequence)
            low = middle;
        else
            high = middle;
    }
    *token = (sequence - files->first_sequence[low]) * seq_len;
    return &files->at[low];
}

void data_files_close(data_files_t *files)
{
    for (int i = 0; i < files->n; i++)
        token_file_close(&files->at[i]);
    free(files->at);
    free(files->first_sequence);
}
