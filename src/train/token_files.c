/* token_files.c - token files of every format behind one reader.
 *
 * FORMATS has a row per format: how a file is recognised and how its header, checked against the file's true size,
 * gives the first token, the width and the count. Nothing in a file is trusted before it is checked. A file is mapped,
 * so ranks of one host share its pages and opening costs nothing; whoever truncates it during a run ends the run.
 */
#include "train/token_files.h"
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
    /* Fills tokens, token_bytes and n_tokens. */
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
        return report_error(ZERO_ERROR_USAGE,
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

static bool is_named_bin(const token_file_t *file)
{
    size_t length = strlen(file->path);
    return length > 4 && strcmp(file->path + length - 4, ".bin") == 0;
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
    {FORMAT_LLMC, is_llmc, read_llmc},
    {FORMAT_NANOGPT, is_named_bin, read_nanogpt},
    {FORMAT_TEXT, is_anything, read_text},
};

static const format_row_t *find_format(options_format_t format, const token_file_t *file)
{
    for (size_t i = 0; i < sizeof FORMATS / sizeof FORMATS[0]; i++)
        if (format == FORMAT_AUTO ? FORMATS[i].recognise(file) : FORMATS[i].format == format)
            return &FORMATS[i];
    return NULL;
}

/* Maps the whole of a non-empty regular file. O_NONBLOCK: opening a pipe must not wait for its writer. */
static zero_status_t map_file(const char *path, token_file_t *file)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return report_error(ZERO_ERROR_USAGE, "cannot read data file '%s': %s", path, strerror(errno));
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
        void *map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED)
            status = report_error(ZERO_ERROR_IO, "cannot map data file '%s': %s", path, strerror(errno));
        else
            *file = (token_file_t){.map = map, .map_bytes = (size_t)info.st_size};
    }
    close(fd);
    return status;
}

zero_status_t token_file_open(const char *path, options_format_t format, token_file_t *file)
{
    token_file_t opened;
    TRY(map_file(path, &opened));
    opened.path = strdup(path);
    zero_status_t status = ZERO_OK;
    const format_row_t *row = NULL;
    if (!opened.path)
        status = report_error(ZERO_ERROR_MEMORY, "data file '%s': out of memory", path);
    else if (!(row = find_format(format, &opened)))
        status = report_error(ZERO_ERROR_USAGE, "data file '%s': this [data] format is not in this version", path);
    else
        status = row->read_header(&opened);
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

/* One loop per width, so that the compiler sees a constant and vectorises. */
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
    default:
        for (int64_t i = 0; i < n_tokens; i++)
            out[i] = (int32_t)load(tokens, 4, i);
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

/* The same, with a constant width in each loop. */
static uint32_t largest_token(const token_file_t *file, int64_t first, int64_t n_tokens)
{
    const unsigned char *tokens = file->tokens + (size_t)first * (size_t)file->token_bytes;
    switch (file->token_bytes) {
    case 1:
        return largest(tokens, 1, n_tokens);
    case 2:
        return largest(tokens, 2, n_tokens);
    default:
        return largest(tokens, 4, n_tokens);
    }
}

zero_status_t token_file_check(const token_file_t *file, int64_t first, int64_t n_tokens, int64_t vocab_size)
{
    const int64_t block = 1 << 16;
    if (vocab_size >= INT64_C(1) << (8 * file->token_bytes))
        return ZERO_OK; /* every token of this width is in the vocabulary */
    for (int64_t start = first, end = first + n_tokens; start < end; start += block) {
        int64_t n = end - start < block ? end - start : block;
        if ((int64_t)largest_token(file, start, n) < vocab_size)
            continue;
        int64_t at = start;
        while ((int64_t)load(file->tokens, file->token_bytes, at) < vocab_size)
            at++;
        return report_error(ZERO_ERROR_FORMAT,
                            "'%s': token %u at position %" PRId64 " is beyond the vocabulary: [model] vocab_size "
                            "is %" PRId64 "%s",
                            file->path, load(file->tokens, file->token_bytes, at), at, vocab_size,
                            file->token_bytes == 1 ? ", and text needs up to 256" : "");
    }
    return ZERO_OK;
}
