/* megatron_pair.c - see megatron_pair.h. */
#include "train/tokens/megatron_pair.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/tokens/file_bytes.h"
#include "train/tokens/megatron_index.h"
#include "train/report/report.h"

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
    TRY(file_bytes_read_whole(index_path, &index, &index_bytes));
    megatron_tokens_t tokens = {0};
    zero_status_t status = megatron_index_read(index_path, index, index_bytes, file->path, file->n_bytes, &tokens);
    free(index);
    TRY(status);
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
