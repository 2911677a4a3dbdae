/* token_suspects.c - see token_suspects.h. */
#include "train/tokens/token_suspects.h"

#include <string.h>
#include <strings.h>

#include "train/tokens/file_bytes.h"
#include "train/tokens/little_endian.h"
#include "train/report/report.h"

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
