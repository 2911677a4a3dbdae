/* token_files.c - see token_files.h.
 *
 * FORMATS has a row per format: how a file is recognized, and how its header or the index beside it, checked against
 * the file's true size, gives the first token, the width and the count. Nothing in a file is trusted before it is
 * checked, and a file may change at any moment. So its bytes are copied by pread, and the copy is checked and used. A
 * mapping would be shorter, but truncating the file would kill the run by a signal.
 */
#include "train/data/token_files.h"
#include "train/data/megatron_index.h"
#include "train/data/token_header.h"
#include "train/data/token_documents.h"
#include "train/data/token_mask.h"
#include "train/report/report.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#define LLMC_HEADER_INTS 256
#define LLMC_HEADER_BYTES (LLMC_HEADER_INTS * 4)

typedef struct format_row {
    options_format_t format;
    /* Returns whether an open file has this format. Format auto asks row by row. */
    bool (*recognize)(const token_file_t *file);
    /* Fills tokens_at, token_bytes, is_signed and n_tokens. */
    zero_status_t (*read_header)(token_file_t *file);
} format_row_t;

/* llm.c's two kinds of header: https://github.com/karpathy/llm.c, dev/data/data_common.py. */
typedef struct llmc_kind {
    uint32_t magic, version;
    int token_bytes;
} llmc_kind_t;

static const llmc_kind_t LLMC_KINDS[] = {{20240520, 1, 2}, {20240801, 7, 4}};

/* Returns the i-th number of an array of little-endian integers of `width` bytes, at any alignment. */
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
        if (file->n_bytes >= 4 && load(file->head, 4, 0) == LLMC_KINDS[i].magic)
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
    if (file->n_bytes < LLMC_HEADER_BYTES)
        return report_error(ZERO_ERROR_FORMAT,
                            "'%s': the llm.c header is truncated: %" PRIu64 " bytes instead of %d; write the file anew",
                            file->path, file->n_bytes, LLMC_HEADER_BYTES);
    uint32_t version = load(file->head, 4, 1), count = load(file->head, 4, 2);
    if (version != kind->version)
        return report_error(ZERO_ERROR_FORMAT, "'%s': llm.c version %u with magic %u is unknown, only %u is read",
                            file->path, version, kind->magic, kind->version);
    if (count > INT32_MAX)
        return report_error(ZERO_ERROR_FORMAT, "'%s': the llm.c header names a negative number of tokens, %" PRId32,
                            file->path, (int32_t)count);
    /* At most 2^31 * 4 + 1024: no overflow. */
    uint64_t n_bytes = LLMC_HEADER_BYTES + (uint64_t)count * (uint64_t)kind->token_bytes;
    if (n_bytes != file->n_bytes)
        return report_error(ZERO_ERROR_FORMAT,
                            "'%s': the llm.c header names %u tokens, which make %" PRIu64 " bytes, but the file has "
                            "%" PRIu64 "; write the file anew",
                            file->path, count, n_bytes, file->n_bytes);
    file->tokens_at = LLMC_HEADER_BYTES;
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
    if (file->n_bytes % 2)
        return report_error(ZERO_ERROR_FORMAT,
                            "'%s': %" PRIu64
                            " bytes are not a whole number of uint16 tokens (nanoGPT); set [data] format if it is "
                            "something else",
                            file->path, file->n_bytes);
    file->token_bytes = 2;
    file->n_tokens = (int64_t)(file->n_bytes / 2);
    return ZERO_OK;
}

static zero_status_t read_uint32(token_file_t *file)
{
    if (file->n_bytes % 4)
        return report_error(ZERO_ERROR_FORMAT,
                            "'%s': %" PRIu64
                            " bytes are not a whole number of uint32 tokens; set [data] format if it is something else",
                            file->path, file->n_bytes);
    file->token_bytes = 4;
    file->n_tokens = (int64_t)(file->n_bytes / 4);
    return ZERO_OK;
}

/* Returns the likeliest reason why there is no file at `path`. */
static const char *missing_hint(const char *path)
{
    return path[0] == '~'         ? "; ~ is the shell's: write the path in full"
           : strpbrk(path, "*?[") ? "; patterns are the shell's: name the files, with commas between them"
           : path[0] != '/'       ? ", seen from where zerotrain was started"
                                  : "";
}

/* Opens a non-empty regular file for reading; *fd is -1 after a failure. O_NONBLOCK: opening a pipe must not wait for a
 * writer. */
static zero_status_t open_regular(const char *path, int *fd, uint64_t *n_bytes)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0)
        return report_error(ZERO_ERROR_USAGE, "cannot read data file '%s': %s%s", path, strerror(errno),
                            errno == ENOENT ? missing_hint(path) : "");
    zero_status_t status = ZERO_OK;
    struct stat info;
    if (fstat(*fd, &info) != 0)
        status = report_error(ZERO_ERROR_IO, "cannot read data file '%s': %s", path, strerror(errno));
    else if (S_ISDIR(info.st_mode))
        status = report_error(ZERO_ERROR_USAGE, "data file '%s' is a directory: name the files in it", path);
    else if (!S_ISREG(info.st_mode))
        status = report_error(ZERO_ERROR_USAGE, "data file '%s' is not a regular file: it must be one", path);
    else if (info.st_size == 0)
        status = report_error(ZERO_ERROR_FORMAT, "data file '%s' is empty", path);
    if (status == ZERO_OK) {
        *n_bytes = (uint64_t)info.st_size;
    } else {
        close(*fd);
        *fd = -1;
    }
    return status;
}

#define FILE_ENDS (-1) /* in place of an errno: the file has fewer bytes */

/* Reads exactly n_bytes from `offset`. Returns 0, an errno or FILE_ENDS. */
static int read_at(int fd, uint64_t offset, void *out, size_t n_bytes)
{
    for (size_t n_done = 0; n_done < n_bytes;) {
        ssize_t n = pread(fd, (char *)out + n_done, n_bytes - n_done, (off_t)(offset + n_done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n == 0 ? FILE_ENDS : errno;
        n_done += (size_t)n;
    }
    return 0;
}

/* Describes what read_at returned. */
static const char *read_error_text(int error)
{
    return error == FILE_ENDS ? "it was truncated while in use" : strerror(error);
}

int token_file_bytes(const token_file_t *file, uint64_t offset, void *out, size_t n_bytes)
{
    return read_at(file->fd, offset, out, n_bytes);
}

const char *token_file_error_text(int error)
{
    return read_error_text(error);
}

/* ---- Megatron-LM's pairs of files ---- */

/* Returns the path of the file of a pair that has this extension. `path` is that of either file, or without an
 * extension. NULL: no memory. */
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

/* Returns the path of the file that has the tokens: of a pair the .bin, whichever path the user gave. NULL: no memory.
 */
static char *tokens_path(const char *path, options_format_t format)
{
    char *index_path = pair_path(path, ".idx");
    bool is_pair = format == FORMAT_MEGATRON;
    if (format == FORMAT_AUTO)
        is_pair = ends_in(path, ".idx") || (!is_file(path) && is_file(index_path));
    free(index_path);
    return is_pair ? pair_path(path, ".bin") : strdup(path);
}

static zero_status_t read_into_memory(const char *path, int fd, uint64_t n_bytes, unsigned char **data)
{
    if (n_bytes > PTRDIFF_MAX)
        return report_error(ZERO_ERROR_OVERFLOW, "data file '%s' is larger than the address space", path);
    *data = malloc((size_t)n_bytes);
    if (!*data)
        return report_rank_error(ZERO_ERROR_MEMORY, "out of memory: '%s' takes %" PRIu64 " bytes", path, n_bytes);
    int error = read_at(fd, 0, *data, (size_t)n_bytes);
    if (error == 0)
        return ZERO_OK;
    free(*data);
    return report_error(ZERO_ERROR_IO, "cannot read data file '%s': %s", path, read_error_text(error));
}

/* Reads a whole file into *data, for free(). */
static zero_status_t read_whole(const char *path, unsigned char **data, size_t *n_bytes)
{
    int fd;
    uint64_t size;
    TRY(open_regular(path, &fd, &size));
    zero_status_t status = read_into_memory(path, fd, size, data);
    close(fd);
    *n_bytes = (size_t)size;
    return status;
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
    TRY(read_whole(index_path, &index, &index_bytes));
    megatron_tokens_t tokens = {0};
    zero_status_t status = megatron_index_read(index_path, index, index_bytes, file->path, file->n_bytes, &tokens);
    free(index);
    TRY(status);
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

/* ---- zerotrain's own files ---- */

static bool is_ours(const token_file_t *file)
{
    return token_header_is_ours(file->head, file->n_bytes);
}

static zero_status_t read_ours(token_file_t *file)
{
    token_header_t header;
    TRY(token_header_read(file->path, file->head, file->n_bytes, &header));
    file->tokens_at = TOKEN_HEADER_BYTES;
    file->token_bytes = header.token_bytes;
    file->n_tokens = header.n_tokens;
    file->vocab_size = header.vocab_size;
    file->tokenizer = header.tokenizer;
    file->n_documents = header.n_documents;
    file->documents_at = header.documents_at;
    file->mask_at = header.mask_at;
    TRY(token_documents_check(file));
    return token_mask_check(file);
}

/* ---- All formats ---- */

static bool is_anything(const token_file_t *file)
{
    (void)file;
    return true;
}

static zero_status_t read_text(token_file_t *file)
{
    file->token_bytes = 1;
    file->n_tokens = (int64_t)file->n_bytes;
    return ZERO_OK;
}

/* Auto never asks for it: see check_width. */
static bool is_never(const token_file_t *file)
{
    (void)file;
    return false;
}

/* In the order in which auto asks. */
static const format_row_t FORMATS[] = {
    {FORMAT_MEGATRON, has_index, read_megatron},  {FORMAT_LLMC, is_llmc, read_llmc},
    {FORMAT_ZEROTRAIN, is_ours, read_ours},       {FORMAT_UINT32, is_never, read_uint32},
    {FORMAT_NANOGPT, is_named_bin, read_nanogpt}, {FORMAT_TEXT, is_anything, read_text},
};

static const format_row_t *find_format(options_format_t format, const token_file_t *file)
{
    const format_row_t *row = FORMATS; /* every format has a row, and for auto the last one accepts anything */
    while (format == FORMAT_AUTO ? !row->recognize(file) : row->format != format)
        row++;
    return row;
}

/* Returns the name of a packed or binary format that the file begins like; NULL: none. Any bytes can be trained on as
 * text, but with format auto these are probably a mistake. */
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
        if (file->n_bytes >= kinds[i].n_bytes && memcmp(file->head, kinds[i].begins, kinds[i].n_bytes) == 0)
            return kinds[i].name;
    return NULL;
}

/* Returns the format that a file has by its name, though it could be trained on as text, too; NULL: none. */
static const char *markup_by_name(const char *path)
{
    static const struct {
        const char *ending, *name;
    } kinds[] = {{".jsonl", "JSON lines"}, {".ndjson", "JSON lines"}, {".json", "JSON"}, {".html", "HTML"},
                 {".htm", "HTML"},         {".xml", "XML"},           {".csv", "CSV"}};
    size_t length = strlen(path);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        size_t of_ending = strlen(kinds[i].ending);
        if (length > of_ending && strcasecmp(path + length - of_ending, kinds[i].ending) == 0)
            return kinds[i].name;
    }
    return NULL;
}

/* Refuses what can be trained on as text but hardly should be. */
static zero_status_t check_is_text(const token_file_t *file)
{
    const char *packed = packed_as(file), *markup = markup_by_name(file->path);
    if (packed)
        return report_error(ZERO_ERROR_FORMAT,
                            "data file '%s' begins as %s files do: unpack it, make text or tokens of it; [data] format "
                            "= text would train on its bytes as they are",
                            file->path, packed);
    if (markup)
        return report_error(ZERO_ERROR_FORMAT,
                            "data file '%s' is %s by its name, and would be trained on as it is, markup and all: is "
                            "that meant? [data] format = text says so; launch/tokenize reads a field of JSON lines",
                            file->path, markup);
    return ZERO_OK;
}

#define WIDTH_SAMPLE 4096 /* bytes */
#define WIDTH_LEAST 32    /* pairs of numbers from which the width is told */

/* Refuses a file without a header whose uint16 numbers are the halves of uint32 tokens. The upper halves are below 16
 * if the vocabulary has fewer than 2^20 entries. In a uint16 text not every second token is, unless its vocabulary is
 * tiny and most tokens are. */
static zero_status_t check_width(const token_file_t *file)
{
    unsigned char sample[WIDTH_SAMPLE];
    size_t n_pairs = (file->n_bytes < sizeof sample ? (size_t)file->n_bytes : sizeof sample) / 4, n_small = 0;
    int error = read_at(file->fd, 0, sample, 4 * n_pairs);
    if (error != 0)
        return report_error(ZERO_ERROR_IO, "cannot read data file '%s': %s", file->path, read_error_text(error));
    for (size_t i = 0; i < n_pairs; i++) {
        if (load(sample, 2, 2 * (int64_t)i + 1) >= 16)
            return ZERO_OK;
        n_small += load(sample, 2, 2 * (int64_t)i) < 16;
    }
    if (file->n_bytes % 4 != 0 || n_pairs < WIDTH_LEAST || n_small > n_pairs / 2)
        return ZERO_OK;
    return report_error(ZERO_ERROR_FORMAT,
                        "'%s' looks like uint32 tokens, which as uint16 would be other tokens: every second uint16 of "
                        "the first %zu is below 16; set [data] format = uint32, or nanogpt if they are uint16",
                        file->path, 2 * n_pairs);
}

/* Opens file->path, recognizes its format and reads its header. */
static zero_status_t read_file(options_format_t format, token_file_t *file)
{
    TRY(open_regular(file->path, &file->fd, &file->n_bytes));
    int error = read_at(file->fd, 0, file->head, file->n_bytes < sizeof file->head ? file->n_bytes : sizeof file->head);
    if (error != 0)
        return report_error(ZERO_ERROR_IO, "cannot read data file '%s': %s", file->path, read_error_text(error));
    const format_row_t *row = find_format(format, file);
    file->format = row->format;
    if (format == FORMAT_AUTO && row->format == FORMAT_TEXT)
        TRY(check_is_text(file));
    if (format == FORMAT_AUTO && row->format == FORMAT_NANOGPT)
        TRY(check_width(file));
    return row->read_header(file);
}

zero_status_t token_file_open(const char *path, options_format_t format, token_file_t *file)
{
    token_file_t opened = {.path = tokens_path(path, format), .fd = -1};
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
    if (file->fd >= 0)
        close(file->fd);
    free((char *)file->path);
    *file = (token_file_t){.fd = -1};
}

/* ---- Tokens ---- */

/* Widens checked tokens. One loop per width, so that the compiler sees a constant and vectorizes. Tokens in a
 * vocabulary are not negative, so the sign does not matter. */
static void widen(const unsigned char *tokens, int token_bytes, size_t n_tokens, int32_t *out)
{
    const int64_t n = (int64_t)n_tokens;
    switch (token_bytes) {
    case 1:
        for (int64_t i = 0; i < n; i++)
            out[i] = (int32_t)load(tokens, 1, i);
        break;
    case 2:
        for (int64_t i = 0; i < n; i++)
            out[i] = (int32_t)load(tokens, 2, i);
        break;
    case 4:
        for (int64_t i = 0; i < n; i++)
            out[i] = (int32_t)load(tokens, 4, i);
        break;
    default:
        for (int64_t i = 0; i < n; i++)
            out[i] = (int32_t)load_64(tokens, i);
        break;
    }
}

static uint32_t largest(const unsigned char *tokens, int token_bytes, size_t n_tokens)
{
    uint32_t most = 0;
    for (int64_t i = 0; i < (int64_t)n_tokens; i++) {
        uint32_t token = load(tokens, token_bytes, i);
        most = token > most ? token : most;
    }
    return most;
}

static uint64_t largest_64(const unsigned char *tokens, size_t n_tokens)
{
    uint64_t most = 0;
    for (int64_t i = 0; i < (int64_t)n_tokens; i++) {
        uint64_t token = load_64(tokens, i);
        most = token > most ? token : most;
    }
    return most;
}

/* Returns the largest token as an unsigned number, so that negative ones are largest. The width is a constant in each
 * loop. */
static uint64_t largest_token(const unsigned char *tokens, int token_bytes, size_t n_tokens)
{
    switch (token_bytes) {
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

static uint64_t token_at(const unsigned char *tokens, int token_bytes, int64_t i)
{
    return token_bytes == 8 ? load_64(tokens, i) : load(tokens, token_bytes, i);
}

/* Returns the size of the vocabulary, or that in the file's header if it is smaller. */
static int64_t smaller_vocabulary(const token_file_t *file, int64_t vocab_size)
{
    return file->vocab_size > 0 && file->vocab_size < vocab_size ? file->vocab_size : vocab_size;
}

/* Returns the bound below which unsigned numbers of the file's width are in the vocabulary; 0: all of them are. */
static uint64_t n_allowed(const token_file_t *file, int64_t vocab_size)
{
    uint64_t n = (uint64_t)smaller_vocabulary(file, vocab_size), n_positive = UINT64_C(1)
                                                                              << (8 * file->token_bytes - 1);
    if (file->is_signed)
        return n < n_positive ? n : n_positive;
    return n > 2 * n_positive - 1 ? 0 : n;
}

/* Returns the token that an unsigned number of the file's width stands for. Types of 8 bytes are signed. */
static int64_t token_value(const token_file_t *file, uint64_t token)
{
    uint64_t sign = UINT64_C(1) << (8 * file->token_bytes - 1);
    return file->is_signed ? (int64_t)((token ^ sign) - sign) : (int64_t)token;
}

/* Checks a chunk of tokens, the first of which is token `first` of the file. */
static zero_status_t check_chunk(const token_file_t *file, const unsigned char *chunk, int64_t first, size_t n_tokens,
                                 uint64_t allowed, token_fault_t *fault)
{
    if (allowed == 0 || largest_token(chunk, file->token_bytes, n_tokens) < allowed)
        return ZERO_OK;
    int64_t i = 0;
    while (token_at(chunk, file->token_bytes, i) < allowed)
        i++;
    *fault = (token_fault_t){.status = ZERO_ERROR_FORMAT,
                             .position = first + i,
                             .token = token_value(file, token_at(chunk, file->token_bytes, i))};
    return fault->status;
}

/* Read at a time, on the stack: usually a whole sequence. */
#define CHUNK_BYTES 65536

zero_status_t token_file_read(const token_file_t *file, int64_t first, int64_t n_tokens, int64_t vocab_size,
                              int32_t *out, token_fault_t *fault)
{
    unsigned char chunk[CHUNK_BYTES];
    const size_t width = (size_t)file->token_bytes;
    const uint64_t allowed = n_allowed(file, vocab_size);
    for (int64_t done = 0; done < n_tokens;) {
        size_t n = CHUNK_BYTES / width;
        n = n_tokens - done < (int64_t)n ? (size_t)(n_tokens - done) : n;
        int error = read_at(file->fd, file->tokens_at + (uint64_t)(first + done) * width, chunk, n * width);
        if (error != 0) {
            *fault = (token_fault_t){.status = ZERO_ERROR_IO, .position = first + done, .error = error};
            return fault->status;
        }
        TRY(check_chunk(file, chunk, first + done, n, allowed, fault));
        if (out)
            widen(chunk, file->token_bytes, n, out + done);
        done += (int64_t)n;
    }
    return ZERO_OK;
}

void token_fault_describe(const token_fault_t *fault, const token_file_t *file, int64_t vocab_size, bool in_use,
                          char text[TOKEN_FAULT_TEXT])
{
    const char *advice = in_use ? ", and it was not when the run began: the file was changed while in use"
                         : file->format == FORMAT_TEXT ? ", and text needs up to 256"
                                                       : "; it must be that of the tokenizer which made the file";
    if (fault->status == ZERO_ERROR_FORMAT && smaller_vocabulary(file, vocab_size) < vocab_size)
        snprintf(text, TOKEN_FAULT_TEXT,
                 "'%s': token %" PRId64 " at position %" PRId64 " is beyond the vocabulary of %" PRId64
                 " that its own header names: the file is damaged",
                 file->path, fault->token, fault->position, file->vocab_size);
    else if (fault->status == ZERO_ERROR_FORMAT)
        snprintf(text, TOKEN_FAULT_TEXT,
                 "'%s': token %" PRId64 " at position %" PRId64
                 " is beyond the vocabulary: [model] vocab_size is %" PRId64 "%s",
                 file->path, fault->token, fault->position, vocab_size, advice);
    else
        snprintf(text, TOKEN_FAULT_TEXT,
                 "cannot read data file '%s', of %" PRIu64 " bytes, from token %" PRId64 " on: %s", file->path,
                 file->n_bytes, fault->position, read_error_text(fault->error));
}

zero_status_t token_file_check(const token_file_t *file, int64_t first, int64_t n_tokens, int64_t vocab_size)
{
    token_fault_t fault;
    char text[TOKEN_FAULT_TEXT];
    if (n_allowed(file, vocab_size) == 0 || token_file_read(file, first, n_tokens, vocab_size, NULL, &fault) == ZERO_OK)
        return ZERO_OK;
    token_fault_describe(&fault, file, vocab_size, false, text);
    return report_error(fault.status, "%s", text);
}
