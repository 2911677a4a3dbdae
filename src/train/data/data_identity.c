/* data_identity.c - see data_identity.h. A checksum of all bytes would read a terabyte before step 0. Sizes and samples
 * are enough to notice that somebody named the wrong files, which is what this is for. */
#include "train/data/data_identity.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/status.h"
#include "base/system.h"
#include "train/data/tokenizer_rules.h"
#include "train/options/options.h"
#include "train/report/report.h"

#define N_SAMPLES 64
#define SAMPLE_BYTES 4096

/* Opens the file that has the tokens, as token_files.c finds it: of a Megatron pair the .bin, even if `path` is the
 * .idx or has no extension. */
static int open_tokens(const char *path)
{
    char file[OPTIONS_MAX_PATH + 8];
    struct stat info;
    size_t length = strlen(path);
    bool is_index = length > 4 && strcmp(path + length - 4, ".idx") == 0;
    bool is_prefix = stat(path, &info) != 0 || !S_ISREG(info.st_mode);
    snprintf(file, sizeof file, "%.*s%s", (int)(is_index ? length - 4 : length), path,
             is_index || is_prefix ? ".bin" : "");
    int fd = ZERO_RETRY(open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    return fd < 0 && is_index ? ZERO_RETRY(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)) : fd;
}

/* Reads SAMPLE_BYTES from `offset`, or as many as there are. Returns how many; -1 after a failure. */
static ssize_t read_sample(int fd, uint64_t offset, unsigned char bytes[SAMPLE_BYTES])
{
    size_t n_bytes = 0;
    while (n_bytes < SAMPLE_BYTES) {
        ssize_t n = pread(fd, bytes + n_bytes, SAMPLE_BYTES - n_bytes, (off_t)(offset + n_bytes));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        n_bytes += (size_t)n;
    }
    return (ssize_t)n_bytes;
}

/* Adds the file's size and samples to the hash. Samples are evenly spaced, from the header to the end. */
static bool fold_file(int fd, uint64_t *hash)
{
    struct stat info;
    unsigned char bytes[SAMPLE_BYTES];
    if (fstat(fd, &info) != 0)
        return false;
    const uint64_t size = (uint64_t)info.st_size;
    *hash = XXH3_64bits_withSeed(&size, sizeof size, *hash);
    for (uint64_t i = 0; i < N_SAMPLES; i++) {
        uint64_t span = size > SAMPLE_BYTES ? size - SAMPLE_BYTES : 0, last = N_SAMPLES - 1;
        uint64_t offset =
            size <= N_SAMPLES * SAMPLE_BYTES ? i * SAMPLE_BYTES : span / last * i + span % last * i / last;
        ssize_t n_bytes = read_sample(fd, offset, bytes);
        if (n_bytes < 0)
            return false;
        *hash = XXH3_64bits_withSeed(bytes, (size_t)n_bytes, *hash);
    }
    return true;
}

zero_status_t data_identity_read(const char *paths, int64_t n_tokens, data_identity_t *identity)
{
    char list[OPTIONS_MAX_PATH];
    uint64_t hash = 0;
    snprintf(list, sizeof list, "%s", paths);
    for (char *rest = list, *path; (path = strsep(&rest, ","));) {
        path += strspn(path, " \t");
        for (size_t length = strlen(path); length > 0 && strchr(" \t", path[length - 1]);)
            path[--length] = 0;
        int fd = open_tokens(path);
        bool good = fd >= 0 && fold_file(fd, &hash);
        int error = errno;
        if (fd >= 0)
            close(fd);
        if (!good)
            return report_error(ZERO_ERROR_IO, "cannot read data file '%s': %s", path, strerror(error));
    }
    *identity = (data_identity_t){.n_tokens = n_tokens, .sample = hash};
    return ZERO_OK;
}

void data_identity_add(data_identity_t *all, const data_identity_t *files, const int64_t *numbers, size_t n_numbers)
{
    all->n_tokens += files->n_tokens;
    all->sample = XXH3_64bits_withSeed(&files->sample, sizeof files->sample, all->sample);
    all->sample = XXH3_64bits_withSeed(numbers, n_numbers * sizeof *numbers, all->sample);
}

zero_status_t data_check_tokenizer(const data_t *data, const model_tokenizer_t *tokenizer)
{
    const char *path = data_assumed_text(data);
    uint64_t made, rules;
    if (tokenizer->vocabulary && path)
        return report_error(
            ZERO_ERROR_USAGE,
            "'%s' is text, of which each byte would be a token, but the model has a %s: "
            "make tokens of the text with launch/tokenize; [data] format = text takes bytes all the same",
            path, tokenizer->vocabulary);
    if (!tokenizer->hash || !data_tokenizer(data, &made, &rules, &path) || made == tokenizer->hash)
        return ZERO_OK;
    if (rules && rules == tokenizer_rules_hash(tokenizer->text, (size_t)tokenizer->n_bytes)) {
        report("'%s' was made with another file of the model's tokenizer.json: it differs, but makes the same tokens",
               path);
        return ZERO_OK;
    }
    return report_error(ZERO_ERROR_USAGE,
                        "'%s' was made with another tokenizer.json than the model's (XXH3 %016" PRIx64
                        ", not %016" PRIx64 "%s): tokenize the text with the model's",
                        path, made, tokenizer->hash, rules ? "; vocabulary, merges or how text is split differ" : "");
}
