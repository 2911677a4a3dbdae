/* merge.c - see merge.h. Also zerotrain export, which is the same without an adapter. The model's files are copied as
 * they are, header included, and then the matrices with adapters are overwritten in place: dtypes, shapes and offsets
 * stay.
 */
#include "train/hub/merge.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/system.h"
#include "kernels/shard_math.h"
#include "train/hub/adapter_config.h"
#include "train/hub/grow.h"
#include "train/hub/model_files.h"
#include "train/hub/tensor_file.h"
#include "train/options/lora_targets.h"
#include "train/report/report.h"

#define COPY_BYTES ((size_t)8 << 20)
#define PATH_BYTES (OPTIONS_MAX_PATH + 512)

typedef struct merger {
    const options_t *options;
    tensor_file_t adapter;
    float scale;
    char partial[OPTIONS_MAX_PATH + 16]; /* the new directory's name until it is complete */
    int64_t n_merged;
    grown_t grown;
    char *block; /* of COPY_BYTES */
} merger_t;

/* Returns whether the model has an adapter to merge; export's may have none. */
static bool has_adapter(const options_t *options)
{
    return !options_init_is_random(options->lora.init);
}

/* Returns how many rows export adds to embedding and head. */
static int64_t n_more_rows(const options_t *options)
{
    return options->grown_vocab > 0 ? options->grown_vocab - options->model.vocab_size : 0;
}

/* ---- files ---- */

static zero_status_t fail_write(const char *path)
{
    return report_error(ZERO_ERROR_IO, "cannot write '%s': %s", path, strerror(errno));
}

static zero_status_t write_at(int fd, const char *path, uint64_t at, const void *data, size_t n_bytes)
{
    for (size_t n = 0; n < n_bytes;) {
        const ssize_t put = pwrite(fd, (const char *)data + n, n_bytes - n, (off_t)(at + n));
        if (put < 0 && errno != EINTR)
            return fail_write(path);
        n += put > 0 ? (size_t)put : 0;
    }
    return ZERO_OK;
}

/* Creates a file of the new directory, and the folder that its name begins with, if there is one. */
static zero_status_t create_file(const merger_t *m, const char *name, char path[PATH_BYTES], int *fd)
{
    const char *slash = strchr(name, '/');
    if (slash) {
        snprintf(path, PATH_BYTES, "%s/%.*s", m->partial, (int)(slash - name), name);
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            return fail_write(path);
    }
    snprintf(path, PATH_BYTES, "%s/%s", m->partial, name);
    *fd = ZERO_RETRY(open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    return *fd >= 0 ? ZERO_OK : fail_write(path);
}

static zero_status_t close_file(int fd, const char *path, zero_status_t status)
{
    if (status == ZERO_OK && fsync(fd) != 0)
        status = fail_write(path);
    return close(fd) != 0 && status == ZERO_OK ? fail_write(path) : status;
}

static zero_status_t write_whole(const merger_t *m, const char *name, const void *data, size_t n_bytes)
{
    char path[PATH_BYTES];
    int fd;
    ZERO_TRY(create_file(m, name, path, &fd));
    return close_file(fd, path, write_at(fd, path, 0, data, n_bytes));
}

/* Copies a small file of the model, if it is there. */
static zero_status_t copy_small(const merger_t *m, const char *name)
{
    char path[PATH_BYTES];
    struct stat info;
    snprintf(path, sizeof path, "%s/%s", m->options->model.init, name);
    int fd = ZERO_RETRY(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (fd < 0)
        return errno == ENOENT ? ZERO_OK : report_error(ZERO_ERROR_IO, "cannot read '%s': %s", path, strerror(errno));
    const ssize_t n = fstat(fd, &info) == 0 && S_ISREG(info.st_mode) ? ZERO_RETRY(read(fd, m->block, COPY_BYTES)) : -1;
    close(fd);
    return n >= 0 && n == info.st_size ? write_whole(m, name, m->block, (size_t)n)
                                       : report_error(ZERO_ERROR_IO, "cannot read '%s' whole", path);
}

/* ---- matrices ---- */

/* Returns a tensor's name without the prefix that some models have and others lack. */
static const char *bare(const char *name)
{
    static const char *const PREFIXES[] = {"transformer.", "model."};
    for (size_t i = 0; i < sizeof PREFIXES / sizeof PREFIXES[0]; i++)
        if (strncmp(name, PREFIXES[i], strlen(PREFIXES[i])) == 0)
            return name + strlen(PREFIXES[i]);
    return name;
}

/* Finds A and B of a tensor of the model; NULL: it has no adapter. */
static void find_adapters(const merger_t *m, const char *name, const file_tensor_t **a, const file_tensor_t **b)
{
    const model_options_t *model = &m->options->model;
    char block[64], wanted[256], of_a[320], of_b[320];
    int n;
    const lora_target_t *rows = lora_targets(model->arch, &n);
    *a = *b = NULL;
    for (int64_t layer = 0; layer < model->layers && !*a; layer++) {
        lora_block_prefix(model->arch, layer, block, sizeof block);
        if (strncmp(bare(name), bare(block), strlen(bare(block))) != 0)
            continue;
        for (int i = 0; i < n && !*a; i++) {
            snprintf(wanted, sizeof wanted, "%s%s.weight", block, rows[i].module);
            if (!(m->options->lora.target_set >> i & 1) || strcmp(bare(name), bare(wanted)) != 0)
                continue;
            snprintf(of_a, sizeof of_a, "base_model.model.%s%s.lora_A.weight", block, rows[i].module);
            snprintf(of_b, sizeof of_b, "base_model.model.%s%s.lora_B.weight", block, rows[i].module);
            *a = tensor_file_find(&m->adapter, of_a);
            *b = tensor_file_find(&m->adapter, of_b);
        }
    }
}

/* Adds scale left right to w[n_rows, n_columns]. left [n_rows, rank], right [rank, n_columns]. */
static void add_product(float *w, const float *left, const float *right, float scale, size_t n_rows, size_t n_columns,
                        size_t rank, float *sums)
{
    for (size_t row = 0; row < n_rows; row++) {
        memset(sums, 0, n_columns * sizeof *sums);
        for (size_t r = 0; r < rank; r++)
            for (size_t i = 0; i < n_columns; i++)
                sums[i] += left[row * rank + r] * right[r * n_columns + i];
        for (size_t i = 0; i < n_columns; i++)
            w[row * n_columns + i] += scale * sums[i];
    }
}

static void transpose(float *out, const float *in, size_t n_rows, size_t n_columns)
{
    for (size_t row = 0; row < n_rows; row++)
        for (size_t i = 0; i < n_columns; i++)
            out[i * n_rows + row] = in[row * n_columns + i];
}

/* Rounds values in place to a narrower dtype. */
static void narrow(float *values, zero_dtype_t dtype, size_t n)
{
    for (size_t i = 0; dtype != ZERO_FP32 && i < n; i++) {
        const uint16_t rounded = dtype == ZERO_BF16 ? zero_bf16_of_float(values[i]) : zero_fp16_of_float(values[i]);
        memcpy((char *)values + i * sizeof rounded, &rounded, sizeof rounded);
    }
}

/* Refuses what would be NaN or infinite in the file. From 65520 on a number is infinite in fp16. */
static zero_status_t check_finite(const merger_t *m, const file_tensor_t *w, const float *values)
{
    for (size_t i = 0; i < (size_t)w->n_elems; i++)
        if (!isfinite(values[i]) || (w->dtype == ZERO_FP16 && fabsf(values[i]) >= 65520.0f))
            return report_error(
                ZERO_ERROR_FORMAT,
                "%s of '%s' with the adapter '%s' is %g at element %zu, which its dtype, %s, does not hold "
                "as a finite number",
                w->name, m->options->model.init, m->options->lora.init, (double)values[i], i,
                zero_dtype_name(w->dtype));
    return ZERO_OK;
}

static zero_status_t check_shapes(const merger_t *m, const file_tensor_t *w, const file_tensor_t *a,
                                  const file_tensor_t *b)
{
    const bool in_out = m->options->model.arch == ARCH_GPT2;
    const int64_t n_out = w->shape[in_out ? 1 : 0], n_in = w->shape[in_out ? 0 : 1], rank = m->options->lora.rank;
    if (w->n_dims == 2 && a && b && a->n_dims == 2 && b->n_dims == 2 && a->shape[0] == rank && a->shape[1] == n_in &&
        b->shape[0] == n_out && b->shape[1] == rank)
        return ZERO_OK;
    return report_error(
        ZERO_ERROR_FORMAT,
        "the model '%s' and the adapter '%s' do not belong together: the adapter of %s is missing or has "
        "another shape than that and rank %" PRId64 " need",
        m->options->model.init, m->options->lora.init, w->name, rank);
}

/* Reads W, A and B into rooms of the caller's and writes W + scale B A. room: for W, A, B, their transposes, sums. */
static zero_status_t merge_into(const merger_t *m, const tensor_file_t *file, const file_tensor_t *w,
                                const file_tensor_t *a, const file_tensor_t *b, float *room, int fd, const char *path)
{
    const bool in_out = m->options->model.arch == ARCH_GPT2;
    const size_t rank = (size_t)m->options->lora.rank, n_rows = (size_t)w->shape[0], n_columns = (size_t)w->shape[1];
    float *values = room, *left = values + w->n_elems, *right = left + n_rows * rank, *sums = right + rank * n_columns;
    float *other = sums + n_columns; /* A or B as it is in the file */
    ZERO_TRY(tensor_file_read_fp32(file, w, values));
    if (in_out) { /* W is transposed, and so is B A */
        ZERO_TRY(tensor_file_read_fp32(&m->adapter, a, other));
        transpose(left, other, rank, n_rows);
        ZERO_TRY(tensor_file_read_fp32(&m->adapter, b, other));
        transpose(right, other, n_columns, rank);
    } else {
        ZERO_TRY(tensor_file_read_fp32(&m->adapter, b, left));
        ZERO_TRY(tensor_file_read_fp32(&m->adapter, a, right));
    }
    add_product(values, left, right, m->scale, n_rows, n_columns, rank, sums);
    ZERO_TRY(check_finite(m, w, values));
    narrow(values, w->dtype, (size_t)w->n_elems);
    return write_at(fd, path, w->first, values, (size_t)w->n_bytes);
}

static zero_status_t merge_tensor(merger_t *m, const tensor_file_t *file, const file_tensor_t *w, int fd,
                                  const char *path)
{
    const file_tensor_t *a, *b;
    if (m->adapter.n_tensors == 0)
        return ZERO_OK;
    find_adapters(m, w->name, &a, &b);
    if (!a && !b)
        return ZERO_OK;
    ZERO_TRY(check_shapes(m, w, a, b));
    const size_t larger = a->n_elems > b->n_elems ? (size_t)a->n_elems : (size_t)b->n_elems;
    float *room =
        malloc(((size_t)(w->n_elems + a->n_elems + b->n_elems) + (size_t)w->shape[1] + larger) * sizeof *room);
    if (!room)
        return report_error(ZERO_ERROR_MEMORY, "no memory to merge %s", w->name);
    zero_status_t status = merge_into(m, file, w, a, b, room, fd, path);
    free(room);
    m->n_merged += status == ZERO_OK;
    return status;
}

/* ---- the directory ---- */

static zero_status_t copy_bytes(const merger_t *m, const tensor_file_t *file, int fd, const char *path)
{
    for (uint64_t at = 0; at < file->n_bytes; at += COPY_BYTES) {
        const uint64_t left = file->n_bytes - at;
        const size_t n = left < COPY_BYTES ? (size_t)left : COPY_BYTES;
        ZERO_TRY(tensor_file_read(file, at, m->block, n));
        ZERO_TRY(write_at(fd, path, at, m->block, n));
    }
    return ZERO_OK;
}

/* Writes a file with more rows. */
static zero_status_t grow_file(merger_t *m, const tensor_file_t *file, int fd, const char *path)
{
    FILE *out = fdopen(dup(fd), "w");
    if (!out)
        return fail_write(path);
    zero_status_t status = grow_write(file, m->options->model.vocab_size, n_more_rows(m->options), out, &m->grown);
    const bool is_written = !ferror(out);
    return (fclose(out) == 0 && is_written) || status != ZERO_OK ? status : fail_write(path);
}

static zero_status_t merge_open_file(merger_t *m, const tensor_file_t *file, const char *name)
{
    char path[PATH_BYTES];
    int fd;
    ZERO_TRY(create_file(m, name, path, &fd));
    if (n_more_rows(m->options) > 0)
        return close_file(fd, path, grow_file(m, file, fd, path));
    zero_status_t status = copy_bytes(m, file, fd, path);
    for (size_t i = 0; i < file->n_tensors && status == ZERO_OK; i++)
        status = merge_tensor(m, file, &file->tensors[i], fd, path);
    return close_file(fd, path, status);
}

static zero_status_t merge_file(merger_t *m, const char *name)
{
    char path[PATH_BYTES];
    tensor_file_t file = {0};
    snprintf(path, sizeof path, "%s/%s", m->options->model.init, name);
    ZERO_TRY(tensor_file_open(path, &file));
    zero_status_t status = merge_open_file(m, &file, name);
    tensor_file_close(&file);
    return status;
}

static zero_status_t write_weights(merger_t *m)
{
    model_weight_files_t files;
    ZERO_TRY(model_weight_files(m->options->model.init, &files));
    zero_status_t status = ZERO_OK;
    for (size_t i = 0; i < files.n_files && status == ZERO_OK; i++)
        status = merge_file(m, files.names[i]);
    model_weight_files_free(&files);
    if (status == ZERO_OK && 2 * m->n_merged != (int64_t)m->adapter.n_tensors)
        status = report_error(ZERO_ERROR_FORMAT,
                              "the model '%s' and the adapter '%s' do not belong together: the model has %" PRId64
                              " of the %zu matrices that the adapter is for",
                              m->options->model.init, m->options->lora.init, m->n_merged, m->adapter.n_tensors / 2);
    return status;
}

/* Writes config.json and the index, if there is one, of a model with more rows. */
static zero_status_t write_grown(const merger_t *m)
{
    static const char index[] = "model.safetensors.index.json";
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/config.json", m->options->model.init);
    char *text = grow_config(path, m->options->grown_vocab);
    zero_status_t status = text ? write_whole(m, "config.json", text, strlen(text)) : ZERO_ERROR_FORMAT;
    free(text);
    snprintf(path, sizeof path, "%s/%s", m->options->model.init, index);
    if (status != ZERO_OK || access(path, F_OK) != 0)
        return status;
    text = grow_index(path, m->grown.n_bytes);
    status = text ? write_whole(m, index, text, strlen(text)) : ZERO_ERROR_FORMAT;
    free(text);
    return status;
}

static zero_status_t write_settings(const merger_t *m)
{
    if (n_more_rows(m->options) > 0)
        return write_grown(m);
    ZERO_TRY(copy_small(m, "config.json"));
    return copy_small(m, "model.safetensors.index.json");
}

/* Writes a directory's tokenizer and what else goes with texts. only: that file; NULL: all. */
static zero_status_t write_texts(const merger_t *m, const char *directory, const char *only)
{
    model_files_t files;
    ZERO_TRY(model_files_read(directory, &files));
    zero_status_t status = ZERO_OK;
    for (int i = 0; i < files.n_files && status == ZERO_OK; i++)
        if (!only || strcmp(files.files[i].name, only) == 0)
            status = write_whole(m, files.files[i].name, files.files[i].data, files.files[i].n_bytes);
    model_files_free(&files);
    return status;
}

/* How to generate is the model's where the adapter's directory does not say it. */
static zero_status_t write_others(const merger_t *m)
{
    static const char generation[] = "generation_config.json";
    const char *base = m->options->model.init, *texts = adapter_texts_directory(m->options);
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", texts, generation);
    ZERO_TRY(write_settings(m));
    ZERO_TRY(write_texts(m, texts, NULL));
    return texts == base || access(path, F_OK) == 0 ? ZERO_OK : write_texts(m, base, generation);
}

/* Gives the complete directory its name, which nothing has. */
static zero_status_t commit(const merger_t *m)
{
    const int fd = ZERO_RETRY(open(m->partial, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
    return rename(m->partial, m->options->merge_out) == 0 ? ZERO_OK : fail_write(m->options->merge_out);
}

/* Refuses a vocabulary that is smaller than the model's, and one that grows while adapters are merged. */
static zero_status_t check_growth(const options_t *options)
{
    if (n_more_rows(options) < 0)
        return report_error(ZERO_ERROR_USAGE, "--vocab-size %" PRId64 ": the model '%s' has %" PRId64 " tokens already",
                            options->grown_vocab, options->model.init, options->model.vocab_size);
    if (n_more_rows(options) > 0 && has_adapter(options))
        return report_error(ZERO_ERROR_USAGE, "--vocab-size: '%s' is an adapter: export its model first",
                            options->lora.init);
    return ZERO_OK;
}

/* Checks that the embedding has grown, and the head. */
static zero_status_t check_grown(const merger_t *m)
{
    const int64_t n_wanted = m->options->model.tied || m->options->model.arch == ARCH_GPT2 ? 1 : 2;
    if (n_more_rows(m->options) == 0 || m->grown.n_tensors >= n_wanted)
        return ZERO_OK;
    return report_error(ZERO_ERROR_FORMAT,
                        "'%s' has %" PRId64 " tensors with a row for each of %" PRId64 " tokens, of %" PRId64,
                        m->options->model.init, m->grown.n_tensors, m->options->model.vocab_size, n_wanted);
}

/* Removes a folder and the files in it. */
static void remove_folder(const char *path)
{
    DIR *listing = opendir(path);
    for (const struct dirent *entry; listing && (entry = readdir(listing));)
        (void)unlinkat(dirfd(listing), entry->d_name, 0);
    if (listing)
        closedir(listing);
    (void)rmdir(path);
}

/* Removes what a command that has failed leaves. */
static void remove_partial(const merger_t *m)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/" MODEL_TEMPLATES, m->partial);
    remove_folder(path);
    remove_folder(m->partial);
}

static zero_status_t write_files(merger_t *m)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/" ADAPTER_WEIGHTS_FILE, m->options->lora.init);
    if (has_adapter(m->options))
        ZERO_TRY(tensor_file_open(path, &m->adapter));
    ZERO_TRY(write_weights(m));
    ZERO_TRY(check_grown(m));
    ZERO_TRY(write_others(m));
    return commit(m);
}

static zero_status_t write_all(merger_t *m)
{
    struct stat info;
    ZERO_TRY(check_growth(m->options));
    if (lstat(m->options->merge_out, &info) == 0)
        return report_error(ZERO_ERROR_USAGE, "'%s' is there already: name a new directory", m->options->merge_out);
    if (mkdir(m->partial, 0777) != 0)
        return report_error(ZERO_ERROR_USAGE, "cannot make the directory '%s': %s", m->partial,
                            errno == EEXIST ? "it is there, from a command that was interrupted: remove it"
                                            : strerror(errno));
    const zero_status_t status = write_files(m);
    if (status != ZERO_OK)
        remove_partial(m);
    return status;
}

zero_status_t merge_write(const options_t *options)
{
    merger_t merger = {
        .options = options, .scale = (float)options_lora_scale(&options->lora), .block = malloc(COPY_BYTES)};
    snprintf(merger.partial, sizeof merger.partial, "%s.partial", options->merge_out);
    zero_status_t status =
        merger.block ? write_all(&merger) : report_error(ZERO_ERROR_MEMORY, "no memory to copy files");
    if (status == ZERO_OK && n_more_rows(options) > 0)
        report("wrote the model of %s to %s, with %" PRId64 " tokens instead of %" PRId64 ": new rows are the mean of "
               "the others",
               options->model.init, options->merge_out, options->grown_vocab, options->model.vocab_size);
    else if (status == ZERO_OK && !has_adapter(options))
        report("wrote the model of %s to %s", options->model.init, options->merge_out);
    else if (status == ZERO_OK)
        report("merged %" PRId64 " adapters of rank %" PRId64 " into %s", merger.n_merged, options->lora.rank,
               options->merge_out);
    tensor_file_close(&merger.adapter);
    free(merger.block);
    return status;
}
