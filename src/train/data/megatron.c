/* megatron.c - see megatron.h.
 *
 * Pure arithmetic over the index's bytes: first the header, then the size of the file, then every entry. Tokens are
 * read as one stream, so sequences must follow each other without gaps, as Megatron's own writer leaves them. Document
 * bounds are only checked: they change nothing, since the end of a document is a token of its own.
 */
#include "train/data/megatron.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/data/file_bytes.h"
#include "train/report/report.h"

static const char MAGIC[9] = "MMIDIDX\0"; /* and the zero that ends the string */

enum {
    VERSION_AT = sizeof MAGIC,
    TYPE_AT = VERSION_AT + 8,
    N_SEQUENCES_AT = TYPE_AT + 1,
    N_BOUNDS_AT = N_SEQUENCES_AT + 8,
    HEADER_BYTES = N_BOUNDS_AT + 8
};

/* Indexed by type code - 1. token_bytes 0: these are no tokens. */
static const struct {
    const char *name;
    int token_bytes;
    bool is_signed;
} TYPES[] = {{"uint8", 1, false}, {"int8", 1, true},     {"int16", 2, true},    {"int32", 4, true},
             {"int64", 8, true},  {"float64", 0, false}, {"float32", 0, false}, {"uint16", 2, false}};

/* An index whose header is valid and whose size agrees with it. */
typedef struct index {
    const char *path, *bin_path;
    const unsigned char *sizes, *pointers, *bounds; /* int32, int64, int64 at any alignment */
    int64_t n_sequences, n_bounds;
    int token_bytes;
} index_t;

static zero_status_t check_header(const char *path, const unsigned char *index, size_t index_bytes)
{
    size_t n_magic = index_bytes < sizeof MAGIC ? index_bytes : sizeof MAGIC;
    if (memcmp(index, MAGIC, n_magic) != 0)
        return report_error(ZERO_ERROR_FORMAT,
                            "'%s' is not a Megatron index: it does not begin with MMIDIDX; set [data] format if the "
                            "file beside it is something else",
                            path);
    if (index_bytes < HEADER_BYTES)
        return report_error(ZERO_ERROR_FORMAT,
                            "'%s': the Megatron header is truncated: %zu bytes instead of %d; copy the file anew", path,
                            index_bytes, HEADER_BYTES);
    uint64_t version = load_uint64(index + VERSION_AT, 0);
    if (version != 1)
        return report_error(ZERO_ERROR_FORMAT, "'%s': Megatron index version %" PRIu64 " is unknown, only 1 is read",
                            path, version);
    int type = index[TYPE_AT];
    if (type < 1 || type > (int)(sizeof TYPES / sizeof TYPES[0]))
        return report_error(ZERO_ERROR_FORMAT, "'%s': type %d of tokens is unknown: 1 to 5 and 8 are read", path, type);
    if (TYPES[type - 1].token_bytes == 0)
        return report_error(ZERO_ERROR_FORMAT,
                            "'%s': the data are %s (type %d), which are no tokens: write the files anew with integers",
                            path, TYPES[type - 1].name, type);
    return ZERO_OK;
}

/* Computes the bytes of an index with these counts; sequences that have modes take one more each. Returns false if the
 * result is 2^64 or more. */
static bool size_of_index(uint64_t n_sequences, uint64_t n_bounds, bool has_modes, uint64_t *n_bytes)
{
    uint64_t of_sequences, of_bounds;
    return !__builtin_mul_overflow(n_sequences, has_modes ? 13U : 12U, &of_sequences) &&
           !__builtin_mul_overflow(n_bounds, 8U, &of_bounds) &&
           !__builtin_add_overflow(of_sequences, of_bounds, n_bytes) &&
           !__builtin_add_overflow(*n_bytes, (uint64_t)HEADER_BYTES, n_bytes);
}

/* Checks the counts against the size of the file. Counts that pass are smaller than it, so nothing overflows later. */
static zero_status_t check_size(const char *path, uint64_t n_sequences, uint64_t n_bounds, size_t index_bytes)
{
    uint64_t want, with_modes;
    if (!size_of_index(n_sequences, n_bounds, false, &want))
        return report_error(ZERO_ERROR_FORMAT,
                            "'%s': the header names %" PRIu64 " sequences and %" PRIu64
                            " document bounds, which fit into no file; copy the file anew",
                            path, n_sequences, n_bounds);
    if (n_sequences > 0 && size_of_index(n_sequences, n_bounds, true, &with_modes) && with_modes == index_bytes)
        return report_error(ZERO_ERROR_FORMAT,
                            "'%s' is of a multimodal dataset, whose sequences have modes: these are not read", path);
    if (want != index_bytes)
        return report_error(ZERO_ERROR_FORMAT,
                            "'%s': the header names %" PRIu64 " sequences and %" PRIu64
                            " document bounds, which make %" PRIu64 " bytes, but the file %s %zu; copy the file anew",
                            path, n_sequences, n_bounds, want, want > index_bytes ? "is truncated to" : "has",
                            index_bytes);
    if (n_sequences == 0)
        return report_error(ZERO_ERROR_FORMAT, "'%s' is empty: it names no sequences", path);
    return ZERO_OK;
}

/* Checks that each sequence begins where the previous one ends, the first at 0, and that the last ends with the file.
 */
static zero_status_t check_sequences(const index_t *index, size_t bin_bytes)
{
    uint64_t at = 0; /* at most bin_bytes + 2^34: no overflow */
    for (int64_t i = 0; i < index->n_sequences; i++) {
        int32_t size = (int32_t)load_uint(index->sizes, 4, i);
        int64_t pointer = (int64_t)load_uint64(index->pointers, i);
        if (size < 0)
            return report_error(ZERO_ERROR_FORMAT,
                                "'%s': sequence %" PRId64 " has a negative number of tokens, %" PRId32
                                "; copy the file anew",
                                index->path, i, size);
        if (pointer < 0 || (uint64_t)pointer > bin_bytes)
            return report_error(ZERO_ERROR_FORMAT,
                                "'%s': sequence %" PRId64 " begins at byte %" PRId64 ", but '%s' has %zu bytes: "
                                "it is truncated, or not the file of this index",
                                index->path, i, pointer, index->bin_path, bin_bytes);
        if ((uint64_t)pointer != at)
            return report_error(ZERO_ERROR_FORMAT,
                                "'%s': sequence %" PRId64 " begins at byte %" PRId64 " and not at %" PRIu64
                                ", where the one before it ends: only sequences in order and without gaps are read; "
                                "write the files anew",
                                index->path, i, pointer, at);
        at += (uint64_t)size * (uint64_t)index->token_bytes;
        if (at > bin_bytes)
            return report_error(ZERO_ERROR_FORMAT,
                                "'%s': sequence %" PRId64 " of %" PRId32 " tokens ends at byte %" PRIu64
                                ", but '%s' has %zu bytes: it is truncated, or not the file of this index",
                                index->path, i, size, at, index->bin_path, bin_bytes);
    }
    if (at != bin_bytes)
        return report_error(ZERO_ERROR_FORMAT,
                            "'%s': its sequences are %" PRIu64 " bytes, but '%s' has %zu: it is not the file of this "
                            "index; write both anew",
                            index->path, at, index->bin_path, bin_bytes);
    return ZERO_OK;
}

static zero_status_t check_bounds(const index_t *index)
{
    int64_t before = 0;
    for (int64_t i = 0; i < index->n_bounds; i++) {
        int64_t bound = (int64_t)load_uint64(index->bounds, i);
        if (bound < before || bound > index->n_sequences)
            return report_error(ZERO_ERROR_FORMAT,
                                "'%s': document bound %" PRId64 " is sequence %" PRId64 ", not one of %" PRId64
                                " to %" PRId64 "; copy the file anew",
                                index->path, i, bound, before, index->n_sequences);
        before = bound;
    }
    return ZERO_OK;
}

zero_status_t megatron_index_read(const char *path, const unsigned char *index, size_t index_bytes,
                                  const char *bin_path, size_t bin_bytes, megatron_tokens_t *tokens)
{
    ZERO_TRY(check_header(path, index, index_bytes));
    uint64_t n_sequences = load_uint64(index + N_SEQUENCES_AT, 0), n_bounds = load_uint64(index + N_BOUNDS_AT, 0);
    ZERO_TRY(check_size(path, n_sequences, n_bounds, index_bytes));
    int type = index[TYPE_AT] - 1;
    const unsigned char *sizes = index + HEADER_BYTES, *pointers = sizes + 4 * n_sequences;
    const index_t sound = {.path = path,
                           .bin_path = bin_path,
                           .sizes = sizes,
                           .pointers = pointers,
                           .bounds = pointers + 8 * n_sequences,
                           .n_sequences = (int64_t)n_sequences,
                           .n_bounds = (int64_t)n_bounds,
                           .token_bytes = TYPES[type].token_bytes};
    ZERO_TRY(check_sequences(&sound, bin_bytes));
    ZERO_TRY(check_bounds(&sound));
    *tokens = (megatron_tokens_t){.token_bytes = TYPES[type].token_bytes,
                                  .is_signed = TYPES[type].is_signed,
                                  .n_tokens = (int64_t)(bin_bytes / (size_t)TYPES[type].token_bytes)};
    return ZERO_OK;
}

/* ---- megatron pair ---- */

/* Returns the path of the file of a pair that has this extension. `path` is that of either file, or without an
 * extension. NULL: no memory. */
static char *pair_path(const char *path, const char *ending)
{
    size_t length = strlen(path) - (path_ends_in(path, ".bin") || path_ends_in(path, ".idx") ? 4 : 0);
    char *file = NULL;
    return asprintf(&file, "%.*s%s", (int)length, path, ending) < 0 ? NULL : file;
}

bool megatron_pair_has_index(const token_file_t *file)
{
    char *index_path = path_ends_in(file->path, ".bin") ? pair_path(file->path, ".idx") : NULL;
    bool found = path_is_file(index_path);
    free(index_path);
    return found;
}

char *megatron_pair_tokens_path(const char *path, options_format_t format)
{
    char *index_path = pair_path(path, ".idx");
    bool is_pair = format == FORMAT_MEGATRON;
    if (format == FORMAT_AUTO)
        is_pair = path_ends_in(path, ".idx") || (!path_is_file(path) && path_is_file(index_path));
    free(index_path);
    return is_pair ? pair_path(path, ".bin") : strdup(path);
}

static zero_status_t read_pair(token_file_t *file, const char *index_path)
{
    if (!index_path)
        return report_error(ZERO_ERROR_MEMORY, "data file '%s': out of memory", file->path);
    if (access(index_path, F_OK) != 0)
        return report_error(ZERO_ERROR_USAGE,
                            "'%s' has no Megatron index: cannot read '%s': %s; put it there, or set [data] format if "
                            "it is something else",
                            file->path, index_path, strerror(errno));
    unsigned char *index = NULL;
    size_t index_bytes = 0;
    ZERO_TRY(file_bytes_read_whole(index_path, &index, &index_bytes));
    megatron_tokens_t tokens = {0};
    zero_status_t status = megatron_index_read(index_path, index, index_bytes, file->path, file->n_bytes, &tokens);
    free(index);
    ZERO_TRY(status);
    file->token_bytes = tokens.token_bytes;
    file->is_signed = tokens.is_signed;
    file->n_tokens = tokens.n_tokens;
    return ZERO_OK;
}

zero_status_t megatron_pair_read(token_file_t *file)
{
    char *index_path = pair_path(file->path, ".idx");
    zero_status_t status = read_pair(file, index_path);
    free(index_path);
    return status;
}
