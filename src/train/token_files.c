/* token_files.c - token files of every format behind one reader.
 *
 * FORMATS has a row per format: how a file is recognised and how its header, or the index beside it, checked against
 * the file's true size, gives the first token, the width and the count. Nothing in a file is trusted before it is
 * checked. A file is mapped, so ranks of one host share its pages and opening costs nothing; whoever truncates it
 * during a run ends the run.
 */
#include "train/token_files.h"
#include "train/megatron_index.h"
#include "train/report.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LLMC_HEADER_INTS 256
#define LLMC_HEADER_BYTES (LLMC_HEADER_INTS * 4)

typedef struct format_row {
    options_format_t format;
    /* Whether a file, mapped already, is of this format: asked row by row for format auto. */
    bool (*recognise)(const token_file_t *file);
    /* Fills tokens, token_bytes, is_signed and n_tokens. */
    zero_status_t (*read_header)(token_file_t *file);
} format_row_t;

/* llm.c's two headers: https://github.com/karpathy/llm.c, dev/data/data_common.py. */
typedef struct llmc_kind {
    uint32_t magic, version;
    int token_bytes;
} llmc_kind_t;

static const llmc_kind_t LLMC_KINDS[] = {{20240520, 1, 2}, {20240801, 7, 4}};

/* The i-th number of an array of little-endian integers, `width` bytes each, at any alignment. */
static uint32_t load(const unsigned char *array, int width, int64_t i)
{
    const unsigned char *bytes = array + (size_t)i * (size_t)width;
    switch (width) {
    case 1:
        return bytes[0];
    case 2:
        return (uint32_t)(bytes[0] | bytes[1] << 8);
    default:
        return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
    }
}

static uint64_t load_64(const unsigned char *array, int64_t i)
{
    return load(array, 4, 2 * i) | (uint64_t)load(array, 4, 2 * i + 1) << 32;
}

static const llmc_kind_t *llmc_kind(const token_file_t *file)
{
    for (size_t i = 0; i < sizeof LLMC_KINDS / sizeof LLMC_KINDS[0]; i++)
        if (file->map_bytes >= 4 && load(file->map, 4, 0) == LLMC_KINDS[i].magic)
            return &LLMC_KINDS[i];
    return NULL;
}

static bool is_llmc(const token_file_t *file)
{
    return llmc_kind(file) != NULL;
}

static zero_status_t read_llmc(token_file_t *file)
{
    const llmc_kind_t *kind = llmc_kind(file);
    if (!kind)
        return report_error(ZERO_ERROR_FORMAT,
                            "'%s' is not an llm.c token file: it does not begin with 20240520 or 20240801; set [data] "
                            "format",
                            file->path);
    if (file->map_bytes < LLMC_HEADER_BYTES)
        return report_error(ZERO_ERROR_FORMAT,
                            "'%s': the llm.c header is truncated: %zu bytes instead of %d; write the file anew",
                            file->path, file->map_bytes, LLMC_HEADER_BYTES);
    uint32_t version = load(file->map, 4, 1), count = load(file->map, 4, 2);
    if (version != kind->version)
        return report_error(ZERO_ERROR_FORMAT, "'%s': llm.c version %u with magic %u is unknown, only %u is read",
                            file->path, version, kind->magic, kind->version);
    if (count > INT32_MAX)
        return report_error(ZERO_ERROR_FORMAT, "'%s': the llm.c header names a negative number of tokens, %" PRId32,
                            file->path, (int32_t)count);
    /* At most 2^31 * 4 + 1024: no overflow. */
    uint64_t n_bytes = LLMC_HEADER_BYTES + (uint64_t)count * (uint64_t)kind->token_bytes;
    if (n_bytes != file->map_bytes)
        return report_error(ZERO_ERROR_FORMAT,
                            "'%s': the llm.c header names %u tokens, which make %" PRIu64 " bytes, but the file has "
                            "%zu; write the file anew",
                            file->path, count, n_bytes, file->map_bytes);
    file->tokens = file->map + LLMC_HEADER_BYTES;
    file->token_bytes = kind->token_bytes;
    file->n_tokens = (int64_t)count;
    return ZERO_OK;
}

static bool ends_in(const char *path, const char *ending)
{
    size_t length = strlen(path), of_ending = strlen(ending);
    return length > of_ending && strcmp(path + length - of_ending, ending) == 0;
}

static bool is_named_bin(const token_file_t *file)
{
    return ends_in(file->path, ".bin");
}

static zero_status_t read_nanogpt(token_file_t *file)
{
    if (file->map_bytes % 2)
        return report_error(ZERO_ERROR_FORMAT,
                            "'%s': %zu bytes are not a whole number of uint16 tokens (nanoGPT); set [data] format if "
                            "it is something else",
                            file->path, file->map_bytes);
    file->tokens = file->map;
    file->token_bytes = 2;
    file->n_tokens = (int64_t)(file->map_bytes / 2);
    return ZERO_OK;
}

/* For the path of a file that is not there, the likeliest reason. */
static const char *missing_hint(const char *path)
{
    return path[0] == '~'         ? "; ~ is the shell's: write the path in full"
           : strpbrk(path, "*?[") ? "; patterns are the shell's: name the files, with commas between them"
           : path[0] != '/'       ? ", seen from where zerotrain was started"
                                  : "";
}

/* Maps the whole of a non-empty regular file. O_NONBLOCK: opening a pipe must not wait for its writer. */
static zero_status_t map_file(const char *path, const unsigned char **map, size_t *n_bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return report_error(ZERO_ERROR_USAGE, "cannot read data file '%s': %s%s", path, strerror(errno),
                            errno == ENOENT ? missing_hint(path) : "");
    zero_status_t status = ZERO_OK;
    struct stat info;
    if (fstat(fd, &info) != 0)
        status = report_error(ZERO_ERROR_IO, "cannot read data file '%s': %s", path, strerror(errno));
    else if (S_ISDIR(info.st_mode))
        status = report_error(ZERO_ERROR_USAGE, "data file '%s' is a directory: name the files in it", path);
    else if (!S_ISREG(info.st_mode))
        status =
            report_error(ZERO_ERROR_USAGE, "data file '%s' is not a regular file: it must be one to be mapped", path);
    else if (info.st_size == 0)
        status = report_error(ZERO_ERROR_FORMAT, "data file '%s' is empty", path);
    else if ((uint64_t)info.st_size > SIZE_MAX)
        status = report_error(ZERO_ERROR_OVERFLOW, "data file '%s' is larger than the address space", path);
    if (status == ZERO_OK) {
        void *mapped = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (mapped == MAP_FAILED) {
            status = report_error(ZERO_ERROR_IO, "cannot map data file '%s': %s", path, strerror(errno));
        } else {
            *map = mapped;
            *n_bytes = (size_t)info.st_size;
        }
    }
    close(fd);
    return status;
}

/* ---- Megatron-LM's pairs of files ---- */

/* The file of a pair that ends so, from the other's path or from what both have before the ending. NULL: no memory. */
static char *pair_path(const char *path, const char *ending)
{
    size_t length = strlen(path) - (ends_in(path, ".bin") || ends_in(path, ".idx") ? 4 : 0);
    char *file = NULL;
    return asprintf(&file, "%.*s%s", (int)length, path, ending) < 0 ? NULL : file;
}

static bool is_file(const char *path)
{
    struct stat info;
    return path && stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

static bool has_index(const token_file_t *file)
{
    char *index_path = is_named_bin(file) ? pair_path(file->path, ".idx") : NULL;
    bool found = is_file(index_path);
    free(index_path);
    return found;
}

/* What to map for a path that the user gave: of a pair the .bin. NULL: no memory. */
static char *tokens_path(const char *path, options_format_t format)
{
    char *index_path = pair_path(path, ".idx");
    bool is_pair = format == FORMAT_MEGATRON;
    if (format == FORMAT_AUTO)
        is_pair = ends_in(path, ".idx") || (!is_file(path) && is_file(index_path));
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
    const unsigned char *index;
    size_t index_bytes;
    TRY(map_file(index_path, &index, &index_bytes));
    megatron_tokens_t tokens = {0};
    zero_status_t status = megatron_index_read(index_path, index, index_bytes, file->path, file->map_bytes, &tokens);
    munmap((void *)index, index_bytes);
    TRY(status);
    file->tokens = file->map;
    file->token_bytes = tokens.token_bytes;
    file->is_signed = tokens.is_signed;
    file->n_tokens = tokens.n_tokens;
    return ZERO_OK;
}

static zero_status_t read_megatron(token_file_t *file)
{
    char *index_path = pair_path(file->path, ".idx");
    zero_status_t status = read_pair(file, index_path);
    free(index_path);
    return status;
}

/* ---- All formats ---- */

static bool is_anything(const token_file_t *file)
{
    (void)file;
    return true;
}

static zero_status_t read_text(token_file_t *file)
{
    file->tokens = file->map;
    file->token_bytes = 1;
    file->n_tokens = (int64_t)file->map_bytes;
    return ZERO_OK;
}

/* In the order in which auto asks them. */
static const format_row_t FORMATS[] = {
    {FORMAT_MEGATRON, has_index, read_megatron},
    {FORMAT_LLMC, is_llmc, read_llmc},
    {FORMAT_NANOGPT, is_named_bin, read_nanogpt},
    {FORMAT_TEXT, is_anything, read_text},
};

static const format_row_t *find_format(options_format_t format, const token_file_t *file)
{
    const format_row_t *row = FORMATS; /* the last takes anything: auto finds one, and all others have theirs */
    while (format == FORMAT_AUTO ? !row->recognise(file) : row->format != format)
        row++;
    return row;
}

/* Any bytes are text; of those that are no text to a user, which auto would train on, what they are. NULL: none. */
static const char *packed_as(const token_file_t *file)
{
    static const struct {
        const char *name, *begins;
        size_t n_bytes;
    } kinds[] = {
        {"gzip", "\x1f\x8b\x08", 3},
        {"zip", "PK\x03\x04", 4},
        {"zstd", "\x28\xb5\x2f\xfd", 4},
        {"xz",
         "\xfd"
         "7zXZ\0",
         6},
        {"bzip2", "BZh9", 4},
        {"Parquet", "PAR1", 4},
        {"NumPy", "\x93NUMPY", 6},
        {"HDF5", "\x89HDF\r\n", 6},
        {"PDF", "%PDF-", 5},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (file->map_bytes >= kinds[i].n_bytes && memcmp(file->map, kinds[i].begins, kinds[i].n_bytes) == 0)
            return kinds[i].name;
    return NULL;
}

/* Fills what is not yet known of file->path. */
static zero_status_t read_file(options_format_t format, token_file_t *file)
{
    TRY(map_file(file->path, &file->map, &file->map_bytes));
    const format_row_t *row = find_format(format, file);
    file->format = row->format;
    const char *kind = format == FORMAT_AUTO && row->format == FORMAT_TEXT ? packed_as(file) : NULL;
    if (kind)
        return report_error(ZERO_ERROR_FORMAT,
                            "data file '%s' begins as %s files do: unpack it, make text or tokens of it; [data] format "
                            "= text would train on its bytes as they are",
                            file->path, kind);
    return row->read_header(file);
}

zero_status_t token_file_open(const char *path, options_format_t format, token_file_t *file)
{
    token_file_t opened = {.path = tokens_path(path, format)};
    if (!opened.path)
        return report_error(ZERO_ERROR_MEMORY, "data file '%s': out of memory", path);
    zero_status_t status = read_file(format, &opened);
    if (status != ZERO_OK) {
        token_file_close(&opened);
        return status;
    }
    *file = opened;
    return ZERO_OK;
}

void token_file_close(token_file_t *file)
{
    if (file->map)
        munmap((void *)file->map, file->map_bytes);
    free((char *)file->path);
    *file = (token_file_t){0};
}

/* One loop per width, so that the compiler sees a constant and vectorises. Signs need no thought: there are none in a
 * vocabulary. */
void token_file_read(const token_file_t *file, int64_t first, int64_t n_tokens, int32_t *out)
{
    const unsigned char *tokens = file->tokens + (size_t)first * (size_t)file->token_bytes;
    switch (file->token_bytes) {
    case 1:
        for (int64_t i = 0; i < n_tokens; i++)
            out[i] = (int32_t)load(tokens, 1, i);
        break;
    case 2:
        for (int64_t i = 0; i < n_tokens; i++)
            out[i] = (int32_t)load(tokens, 2, i);
        break;
    case 4:
        for (int64_t i = 0; i < n_tokens; i++)
            out[i] = (int32_t)load(tokens, 4, i);
        break;
    default:
        for (int64_t i = 0; i < n_tokens; i++)
            out[i] = (int32_t)load_64(tokens, i);
        break;
    }
}

static uint32_t largest(const unsigned char *tokens, int token_bytes, int64_t n_tokens)
{
    uint32_t most = 0;
    for (int64_t i = 0; i < n_tokens; i++) {
        uint32_t token = load(tokens, token_bytes, i);
        most = token > most ? token : most;
    }
    return most;
}

static uint64_t largest_64(const unsigned char *tokens, int64_t n_tokens)
{
    uint64_t most = 0;
    for (int64_t i = 0; i < n_tokens; i++) {
        uint64_t token = load_64(tokens, i);
        most = token > most ? token : most;
    }
    return most;
}

/* As unsigned numbers, where negative ones come last. A constant width in each loop. */
static uint64_t largest_token(const token_file_t *file, int64_t first, int64_t n_tokens)
{
    const unsigned char *tokens = file->tokens + (size_t)first * (size_t)file->token_bytes;
    switch (file->token_bytes) {
    case 1:
        return largest(tokens, 1, n_tokens);
    case 2:
        return largest(tokens, 2, n_tokens);
    case 4:
        return largest(tokens, 4, n_tokens);
    default:
        return largest_64(tokens, n_tokens);
    }
}

static uint64_t token_at(const token_file_t *file, int64_t i)
{
    return file->token_bytes == 8 ? load_64(file->tokens, i) : load(file->tokens, file->token_bytes, i);
}

/* What an unsigned number of the file's width means there. Types of 8 bytes are signed. */
static int64_t token_value(const token_file_t *file, uint64_t token)
{
    uint64_t sign = UINT64_C(1) << (8 * file->token_bytes - 1);
    return file->is_signed ? (int64_t)((token ^ sign) - sign) : (int64_t)token;
}

zero_status_t token_file_check(const token_file_t *file, int64_t first, int64_t n_tokens, int64_t vocab_size)
{
    const int64_t block = 1 << 16;
    uint64_t n_allowed = (uint64_t)vocab_size, n_positive = UINT64_C(1) << (8 * file->token_bytes - 1);
    if (file->is_signed)
        n_allowed = n_allowed < n_positive ? n_allowed : n_positive;
    else if (n_allowed >= 2 * n_positive)
        return ZERO_OK; /* every token of this width is in the vocabulary */
    for (int64_t start = first, end = first + n_tokens; start < end; start += block) {
        int64_t n = end - start < block ? end - start : block;
        if (largest_token(file, start, n) < n_allowed)
            continue;
        int64_t at = start;
        while (token_at(file, at) < n_allowed)
            at++;
        return report_error(ZERO_ERROR_FORMAT,
                            "'%s': token %" PRId64 " at position %" PRId64
                            " is beyond the vocabulary: [model] vocab_size is %" PRId64 "%s",
                            file->path, token_value(file, token_at(file, at)), at, vocab_size,
                            file->format == FORMAT_TEXT ? ", and text needs up to 256"
                                                        : "; it must be that of the tokenizer which made the file");
    }
    return ZERO_OK;
}
