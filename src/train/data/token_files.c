/* token_files.c - see token_files.h.
 *
 * FORMATS has a row per format: how a file is recognized, and how its header or the index next to it, checked against
 * the file's true size, gives the first token, the width and the count. Nothing in a file is trusted before it is
 * checked.
 */
#include "train/data/token_files.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/status.h"
#include "train/data/file_bytes.h"
#include "train/data/megatron.h"
#include "train/data/token_format.h"
#include "train/report/report.h"

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

static const llmc_kind_t *llmc_kind(const token_file_t *file)
{
    for (size_t i = 0; i < sizeof LLMC_KINDS / sizeof LLMC_KINDS[0]; i++)
        if (file->n_bytes >= 4 && load_uint(file->head, 4, 0) == LLMC_KINDS[i].magic)
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
    uint32_t version = load_uint(file->head, 4, 1), count = load_uint(file->head, 4, 2);
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

static bool is_named_bin(const token_file_t *file)
{
    return path_ends_in(file->path, ".bin");
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

/* ---- zerotrain's own files ---- */

static bool is_ours(const token_file_t *file)
{
    return token_header_is_ours(file->head, file->n_bytes);
}

static zero_status_t read_ours(token_file_t *file)
{
    token_header_t header;
    ZERO_TRY(token_header_read(file->path, file->head, file->n_bytes, &header));
    file->tokens_at = TOKEN_HEADER_BYTES;
    file->token_bytes = header.token_bytes;
    file->n_tokens = header.n_tokens;
    file->vocab_size = header.vocab_size;
    file->tokenizer = header.tokenizer;
    file->tokenizer_rules = header.tokenizer_rules;
    file->n_documents = header.n_documents;
    file->documents_at = header.documents_at;
    file->mask_at = header.mask_at;
    file->has_pairs = header.has_pairs;
    ZERO_TRY(token_documents_check(file));
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

/* Auto never asks for it: see token_suspects_check_width. */
static bool is_never(const token_file_t *file)
{
    (void)file;
    return false;
}

/* In the order in which auto asks. */
static const format_row_t FORMATS[] = {
    {FORMAT_MEGATRON, megatron_pair_has_index, megatron_pair_read},
    {FORMAT_LLMC, is_llmc, read_llmc},
    {FORMAT_ZEROTRAIN, is_ours, read_ours},
    {FORMAT_UINT32, is_never, read_uint32},
    {FORMAT_NANOGPT, is_named_bin, read_nanogpt},
    {FORMAT_TEXT, is_anything, read_text},
};

static const format_row_t *find_format(options_format_t format, const token_file_t *file)
{
    const format_row_t *row = FORMATS; /* every format has a row, and for auto the last one accepts anything */
    while (format == FORMAT_AUTO ? !row->recognize(file) : row->format != format)
        row++;
    return row;
}

/* Opens file->path, recognizes its format and reads its header. */
static zero_status_t read_file(options_format_t format, token_file_t *file)
{
    ZERO_TRY(file_bytes_open(file->path, &file->fd, &file->n_bytes));
    int error =
        file_bytes_read(file->fd, 0, file->head, file->n_bytes < sizeof file->head ? file->n_bytes : sizeof file->head);
    if (error != 0)
        return file_bytes_fail(file->path, error);
    const format_row_t *row = find_format(format, file);
    file->format = row->format;
    if (format == FORMAT_AUTO && row->format == FORMAT_TEXT)
        ZERO_TRY(token_suspects_check_text(file));
    if (format == FORMAT_AUTO && row->format == FORMAT_NANOGPT)
        ZERO_TRY(token_suspects_check_width(file));
    return row->read_header(file);
}

zero_status_t token_file_open(const char *path, options_format_t format, token_file_t *file)
{
    token_file_t opened = {.path = megatron_pair_tokens_path(path, format), .fd = -1};
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

bool token_file_has_mask(const char *path)
{
    unsigned char head[TOKEN_HEADER_BYTES];
    int fd = ZERO_RETRY(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    bool found = fd >= 0 && pread(fd, head, sizeof head, 0) == sizeof head && token_header_is_ours(head, sizeof head) &&
                 token_header_names_mask(head);
    if (fd >= 0)
        close(fd);
    return found;
}

/* ---- token suspects ---- */

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

zero_status_t token_suspects_check_text(const token_file_t *file)
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

/* The upper halves of uint32 tokens are below 16 if the vocabulary has fewer than 2^20 entries. In a uint16 text not
 * every second token is, unless its vocabulary is tiny and most tokens are. */
zero_status_t token_suspects_check_width(const token_file_t *file)
{
    unsigned char sample[WIDTH_SAMPLE];
    size_t n_pairs = (file->n_bytes < sizeof sample ? (size_t)file->n_bytes : sizeof sample) / 4, n_small = 0;
    int error = file_bytes_read(file->fd, 0, sample, 4 * n_pairs);
    if (error != 0)
        return file_bytes_fail(file->path, error);
    for (size_t i = 0; i < n_pairs; i++) {
        if (load_uint(sample, 2, 2 * (int64_t)i + 1) >= 16)
            return ZERO_OK;
        n_small += load_uint(sample, 2, 2 * (int64_t)i) < 16;
    }
    if (file->n_bytes % 4 != 0 || n_pairs < WIDTH_LEAST || n_small > n_pairs / 2)
        return ZERO_OK;
    return report_error(ZERO_ERROR_FORMAT,
                        "'%s' looks like uint32 tokens, which as uint16 would be other tokens: every second uint16 of "
                        "the first %zu is below 16; set [data] format = uint32, or nanogpt if they are uint16",
                        file->path, 2 * n_pairs);
}
