/* token_documents.c - see token_documents.h. Like tokens, the table is read by pread whenever it is needed: it may be
 * larger than memory, and the file may change. */
#include "train/tokens/token_documents.h"
#include "train/tokens/file_bytes.h"
#include "train/tokens/little_endian.h"
#include "train/report/report.h"

#include <inttypes.h>

#define CHUNK 1024

/* A part of the table. */
typedef struct table {
    unsigned char bytes[8 * CHUNK];
} table_t;

bool token_documents_are_there(const token_file_t *file)
{
    return file->format == FORMAT_ZEROTRAIN;
}

static uint64_t start_at(const table_t *table, uint64_t i)
{
    return load_uint64(table->bytes, (int64_t)i);
}

/* Reads the starts of documents i .. i + n - 1, at most CHUNK. Returns 0 or an error, as file_bytes_read. */
static int read_table(const token_file_t *file, uint64_t i, uint64_t n, table_t *table)
{
    return file_bytes_read(file->fd, file->documents_at + 8 * i, table->bytes, 8 * (size_t)n);
}

/* Finds the first document that does not begin before token `first`; n_documents if there is none. */
static int find_first(const token_file_t *file, int64_t first, table_t *table, uint64_t *found)
{
    uint64_t low = 0, high = file->n_documents;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        int error = read_table(file, middle, 1, table);
        if (error)
            return error;
        if (start_at(table, 0) < (uint64_t)first)
            low = middle + 1;
        else
            high = middle;
    }
    *found = low;
    return 0;
}

/* Documents that are not in order, in a file that has changed since it was checked, are left out. */
zero_status_t token_documents_find(const token_file_t *file, int64_t first, int64_t n_tokens, int32_t *begins,
                                   int64_t *n_begins, token_fault_t *fault)
{
    table_t table;
    uint64_t next = 0, least = (uint64_t)first, end = (uint64_t)first + (uint64_t)n_tokens;
    int64_t n_found = 0;
    int error = find_first(file, first, &table, &next);
    for (uint64_t n; !error && next < file->n_documents && least < end; next += n) {
        n = file->n_documents - next < CHUNK ? file->n_documents - next : CHUNK;
        n = n < end - least ? n : end - least; /* no more can begin here */
        error = read_table(file, next, n, &table);
        for (uint64_t i = 0; !error && i < n && least < end; i++) {
            uint64_t start = start_at(&table, i);
            if (start >= least && start < end)
                begins[n_found++] = (int32_t)(start - (uint64_t)first);
            if (start >= least)
                least = start < end ? start + 1 : end;
        }
    }
    *fault = (token_fault_t){.status = error ? ZERO_ERROR_IO : ZERO_OK, .position = first, .error = error};
    *n_begins = error ? 0 : n_found;
    return fault->status;
}

zero_status_t token_documents_check(const token_file_t *file)
{
    table_t table;
    uint64_t least = 0;
    for (uint64_t done = 0, n; done < file->n_documents; done += n) {
        n = file->n_documents - done < CHUNK ? file->n_documents - done : CHUNK;
        int error = read_table(file, done, n, &table);
        if (error)
            return file_bytes_fail(file->path, error);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t start = start_at(&table, i);
            if (start < least || start >= (uint64_t)file->n_tokens || (done + i == 0 && start != 0))
                return report_error(ZERO_ERROR_FORMAT,
                                    "'%s': document %" PRIu64 " begins at token %" PRIu64
                                    ", which cannot be: there are %" PRId64 " tokens; write the file anew",
                                    file->path, done + i, start, file->n_tokens);
            least = start + 1;
        }
    }
    return ZERO_OK;
}
