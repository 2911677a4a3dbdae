/* files.c - see files.h. */
#include "base/files.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/log.h"
#include "base/status.h"
#include "base/system.h"

#define READ_BLOCK ((size_t)1 << 20)
/* The limit that safetensors sets for its headers. No index or state comes near it. */
#define MAX_JSON_BYTES UINT64_C(100000000)

static zero_status_t fail(const char *what, const char *path)
{
    return zero_fail(ZERO_ERROR_IO, "cannot %s '%s': %s", what, path, strerror(errno));
}

zero_status_t zero_path_join(const char *directory, const char *name, char **path)
{
    if (asprintf(path, "%s/%s", directory, name) < 0)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for the path of %s", name);
    return ZERO_OK;
}

/* Standard descriptors that are closed are occupied by unwritable ones while the file is opened. */
int zero_open(int directory, const char *path, int flags, mode_t mode)
{
    int held[STDERR_FILENO + 1], n_held = 0, fd = -1;
    while (n_held <= STDERR_FILENO && (fd = ZERO_RETRY(open("/", O_PATH | O_DIRECTORY | O_CLOEXEC))) >= 0) {
        held[n_held++] = fd;
        if (fd > STDERR_FILENO)
            break;
    }
    if (fd >= 0)
        fd = ZERO_RETRY(openat(directory, path, flags | O_CLOEXEC, mode));
    int error = errno;
    while (n_held > 0)
        close(held[--n_held]);
    errno = error;
    return fd;
}

/* ---- Writing ---- */

zero_status_t zero_file_create(const char *path, uint64_t n_bytes)
{
    int fd = zero_open(AT_FDCWD, path, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (fd < 0)
        return fail("create", path);
    /* Not posix_fallocate, which writes zeros if the file system cannot reserve. */
    bool reserved = n_bytes == 0 || ZERO_RETRY(fallocate(fd, 0, 0, (off_t)n_bytes)) == 0;
    if (!reserved && (errno == EOPNOTSUPP || errno == ENOSYS))
        reserved = ZERO_RETRY(ftruncate(fd, (off_t)n_bytes)) == 0;
    zero_status_t status = ZERO_OK;
    if (!reserved)
        status =
            zero_fail(ZERO_ERROR_IO, "cannot reserve %" PRIu64 " bytes for '%s': %s", n_bytes, path, strerror(errno));
    close(fd);
    return status;
}

zero_status_t zero_file_open_for_writing(const char *path, int *fd)
{
    *fd = zero_open(AT_FDCWD, path, O_WRONLY | O_NOFOLLOW, 0);
    return *fd < 0 ? fail("open", path) : ZERO_OK;
}

zero_status_t zero_file_write(int fd, const char *path, uint64_t offset, const void *data, size_t n_bytes)
{
    const unsigned char *at = data;
    while (n_bytes > 0) {
        ssize_t n_written = pwrite(fd, at, n_bytes, (off_t)offset);
        if (n_written < 0 && errno == EINTR)
            continue;
        if (n_written < 0)
            return zero_fail(ZERO_ERROR_IO, "cannot write '%s' at byte %" PRIu64 ": %s", path, offset, strerror(errno));
        at += n_written;
        offset += (uint64_t)n_written;
        n_bytes -= (size_t)n_written;
    }
    return ZERO_OK;
}

zero_status_t zero_file_close_synced(int fd, const char *path)
{
    zero_status_t status = ZERO_RETRY(fsync(fd)) == 0 ? ZERO_OK : fail("sync", path);
    if (close(fd) != 0 && status == ZERO_OK)
        status = fail("close", path);
    return status;
}

zero_status_t zero_file_write_new(const char *directory, const char *name, uint64_t file_bytes, const void *data,
                                  size_t n_bytes)
{
    int fd = -1;
    char *path = NULL;
    zero_status_t status;
    ZERO_TRY(zero_path_join(directory, name, &path));
    ZERO_TRY_GOTO(zero_file_create(path, file_bytes), done);
    ZERO_TRY_GOTO(zero_file_open_for_writing(path, &fd), done);
    status = zero_file_write(fd, path, 0, data, n_bytes);
    zero_status_t closed = zero_file_close_synced(fd, path);
    if (status == ZERO_OK)
        status = closed;
done:
    free(path);
    return status;
}

zero_status_t zero_file_write_whole(const char *directory, const char *name, const void *data, size_t n_bytes)
{
    return zero_file_write_new(directory, name, 0, data, n_bytes);
}

zero_status_t zero_json_text(const char *name, const json_t *value, char **text)
{
    char *body = json_dumps(value, JSON_SORT_KEYS | JSON_INDENT(2)), *made = NULL;
    int n_bytes = body ? asprintf(&made, "%s\n", body) : -1;
    free(body);
    if (n_bytes < 0)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for the text of %s", name);
    *text = made;
    return ZERO_OK;
}

zero_status_t zero_file_write_json(const char *directory, const char *name, const json_t *object)
{
    char *text = NULL;
    ZERO_TRY(zero_json_text(name, object, &text));
    zero_status_t status = zero_file_write_whole(directory, name, text, strlen(text));
    free(text);
    return status;
}

/* ---- Reading ---- */

static const char *kind_of(mode_t mode)
{
    return S_ISDIR(mode) ? "directory" : S_ISFIFO(mode) ? "named pipe" : S_ISSOCK(mode) ? "socket" : "device";
}

/* O_NONBLOCK and O_NOCTTY: a named pipe must not block, and a terminal must not become the controlling one. */
zero_status_t zero_file_open(const char *path, int *fd, uint64_t *n_bytes)
{
    struct stat info;
    int opened = zero_open(AT_FDCWD, path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0);
    if (opened < 0)
        return fail("open", path);
    zero_status_t status = ZERO_OK;
    if (fstat(opened, &info) != 0)
        status = fail("stat", path);
    else if (!S_ISREG(info.st_mode))
        status = zero_fail(ZERO_ERROR_IO, "'%s' is not a regular file: it is a %s", path, kind_of(info.st_mode));
    if (status != ZERO_OK) {
        close(opened);
        return status;
    }
    *fd = opened;
    *n_bytes = (uint64_t)info.st_size;
    return ZERO_OK;
}

zero_status_t zero_file_read(int fd, const char *path, uint64_t offset, void *data, size_t n_bytes)
{
    unsigned char *at = data;
    while (n_bytes > 0) {
        ssize_t n_read = pread(fd, at, n_bytes, (off_t)offset);
        if (n_read < 0 && errno == EINTR)
            continue;
        if (n_read < 0)
            return zero_fail(ZERO_ERROR_IO, "cannot read '%s' at byte %" PRIu64 ": %s", path, offset, strerror(errno));
        if (n_read == 0)
            return zero_fail(ZERO_ERROR_IO, "'%s' became shorter while it was read: it ends at byte %" PRIu64, path,
                             offset);
        at += n_read;
        offset += (uint64_t)n_read;
        n_bytes -= (size_t)n_read;
    }
    return ZERO_OK;
}

static zero_status_t read_blocks(int fd, const char *path, zero_block_fn take, void *user, void *block)
{
    for (;;) {
        ssize_t n_read = read(fd, block, READ_BLOCK);
        if (n_read < 0 && errno == EINTR)
            continue;
        if (n_read < 0)
            return fail("read", path);
        if (n_read == 0)
            return ZERO_OK;
        ZERO_TRY(take(user, block, (size_t)n_read));
    }
}

zero_status_t zero_file_read_blocks(const char *path, zero_block_fn take, void *user)
{
    int fd = -1;
    uint64_t n_bytes = 0;
    ZERO_TRY(zero_file_open(path, &fd, &n_bytes));
    void *block = malloc(READ_BLOCK);
    zero_status_t status =
        block ? read_blocks(fd, path, take, user, block) : zero_fail(ZERO_ERROR_MEMORY, "no memory to read '%s'", path);
    free(block);
    close(fd);
    return status;
}

typedef struct hashed {
    XXH3_state_t *state;
    uint64_t n_bytes;
} hashed_t;

static zero_status_t hash_block(void *user, const void *block, size_t n_bytes)
{
    hashed_t *hashed = user;
    XXH3_64bits_update(hashed->state, block, n_bytes);
    hashed->n_bytes += n_bytes;
    return ZERO_OK;
}

zero_status_t zero_file_hash(const char *path, uint64_t *n_bytes, uint64_t *xxh3)
{
    hashed_t hashed = {.state = XXH3_createState()};
    zero_status_t status = ZERO_ERROR_MEMORY;
    if (hashed.state && XXH3_64bits_reset(hashed.state) == XXH_OK)
        status = zero_file_read_blocks(path, hash_block, &hashed);
    else
        zero_fail(status, "no memory to hash '%s'", path);
    if (status == ZERO_OK) {
        *n_bytes = hashed.n_bytes;
        *xxh3 = XXH3_64bits_digest(hashed.state);
    }
    XXH3_freeState(hashed.state);
    return status;
}

static zero_status_t parse(int fd, const char *path, uint64_t n_bytes, const char *remedy, json_t **value)
{
    json_error_t error;
    if (n_bytes == 0)
        return zero_fail(ZERO_ERROR_FORMAT, "'%s' is empty: %s", path, remedy);
    if (n_bytes > MAX_JSON_BYTES)
        return zero_fail(ZERO_ERROR_FORMAT, "'%s' has %" PRIu64 " bytes, at most %" PRIu64 " are allowed: %s", path,
                         n_bytes, MAX_JSON_BYTES, remedy);
    char *text = malloc(n_bytes);
    if (!text)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for '%s', %" PRIu64 " bytes", path, n_bytes);
    zero_status_t status = zero_file_read(fd, path, 0, text, n_bytes);
    json_t *parsed = status == ZERO_OK ? json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &error) : NULL;
    if (status == ZERO_OK && !parsed)
        status = zero_fail(ZERO_ERROR_FORMAT, "'%s' is not valid JSON: %s, in line %d: %s", path, error.text,
                           error.line, remedy);
    free(text);
    if (status == ZERO_OK)
        *value = parsed;
    return status;
}

zero_status_t zero_file_read_json(const char *path, const char *remedy, json_t **value)
{
    int fd = -1;
    uint64_t n_bytes = 0;
    ZERO_TRY(zero_file_open(path, &fd, &n_bytes));
    zero_status_t status = parse(fd, path, n_bytes, remedy, value);
    close(fd);
    return status;
}

/* ---- Directories ---- */

/* Makes a directory, and its name durable in the directory that it is in. `path` can be written for a moment. */
static zero_status_t make_one(char *path, bool *is_there)
{
    *is_there = false;
    if (mkdir(path, 0777) != 0) {
        *is_there = errno == EEXIST;
        return ZERO_OK;
    }
    *is_there = true;
    char *name = strrchr(path, '/'), kept = name ? *name : 0;
    if (!name)
        return zero_directory_sync(".");
    *name = 0;
    zero_status_t status = zero_directory_sync(name == path ? "/" : path);
    *name = kept;
    return status;
}

zero_status_t zero_directory_make(const char *path)
{
    struct stat info;
    bool is_there = false;
    char *copy = strdup(path);
    zero_status_t status = ZERO_OK;
    if (!copy)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory to make '%s'", path);
    /* The last one reports what these could not make. */
    for (char *slash = *copy ? strchr(copy + 1, '/') : NULL; slash && status == ZERO_OK;
         slash = strchr(slash + 1, '/')) {
        *slash = 0;
        status = make_one(copy, &is_there);
        *slash = '/';
    }
    if (status == ZERO_OK)
        status = make_one(copy, &is_there);
    int error = errno;
    free(copy);
    ZERO_TRY(status);
    errno = error;
    if (!is_there)
        return fail("make the directory", path);
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode))
        return zero_fail(ZERO_ERROR_IO, "cannot make the directory '%s': it is there, but not a directory", path);
    return ZERO_OK;
}

zero_status_t zero_directory_sync(const char *path)
{
    int fd = ZERO_RETRY(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd < 0)
        return fail("open the directory", path);
    /* Some file systems cannot sync a directory, and need not. */
    zero_status_t status = ZERO_RETRY(fsync(fd)) == 0 || errno == EINVAL ? ZERO_OK : fail("sync the directory", path);
    close(fd);
    return status;
}

zero_status_t zero_folder_of_name(const char *directory, const char *name, zero_status_t (*act)(const char *path))
{
    const char *slash = strchr(name, '/');
    char *path = NULL;
    if (!slash)
        return ZERO_OK;
    if (asprintf(&path, "%s/%.*s", directory, (int)(slash - name), name) < 0)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for the path of %s", name);
    zero_status_t status = act(path);
    free(path);
    return status;
}
