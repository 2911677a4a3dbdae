/* named_files.c - see options.h.
 *
 * Existing files are compared by device and inode, so that links do not hide them; files that do not exist yet by their
 * path without links. Devices like /dev/null lose nothing and may be named twice.
 */
#include "train/options/options.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "train/options/input_file.h"
#include "train/options/val_sets.h"
#include "train/report/metrics.h"
#include "train/report/report.h"
#include "train/report/trace.h"

#define MAX_LINKS 40
#define MAX_FULL (2 * OPTIONS_MAX_PATH)

typedef struct named_file {
    const char *setting, *path;
    bool exists, is_device;
    dev_t device;
    ino_t inode;
    char full[MAX_FULL]; /* without links, or "" if that cannot be found out */
} named_file_t;

/* ---- one file ---- */

/* Follows links, even to a file that does not exist. */
static void follow_links(char path[MAX_FULL])
{
    char target[OPTIONS_MAX_PATH], joined[MAX_FULL];
    for (int i = 0; i < MAX_LINKS; i++) {
        ssize_t n_bytes = readlink(path, target, sizeof target - 1);
        if (n_bytes <= 0)
            return;
        target[n_bytes] = 0;
        const char *slash = target[0] == '/' ? NULL : strrchr(path, '/');
        int length = snprintf(joined, sizeof joined, "%.*s%s", slash ? (int)(slash - path) + 1 : 0, path, target);
        if (length < 0 || length >= (int)sizeof joined)
            return;
        memcpy(path, joined, (size_t)length + 1);
    }
}

/* Computes the path without links: resolved as far as it exists, and the rest unchanged. */
static void find_full(const char *path, char full[MAX_FULL])
{
    char copy[MAX_FULL], rest[MAX_FULL] = "";
    full[0] = 0;
    if (snprintf(copy, sizeof copy, "%s", path) >= (int)sizeof copy)
        return;
    follow_links(copy);
    for (;;) {
        char *found = realpath(copy[0] ? copy : ".", NULL);
        if (found) {
            int length =
                snprintf(full, MAX_FULL, "%s%s%s", strcmp(found, "/") == 0 ? "" : found, rest[0] ? "/" : "", rest);
            if (length < 0 || length >= MAX_FULL)
                full[0] = 0;
            free(found);
            return;
        }
        if (!copy[0])
            return; /* the working directory has been removed */
        char *slash = strrchr(copy, '/'), *name = slash ? slash + 1 : copy, joined[MAX_FULL];
        int length = snprintf(joined, sizeof joined, "%s%s%s", name, rest[0] && name[0] ? "/" : "", rest);
        if (length < 0 || length >= (int)sizeof joined)
            return;
        memcpy(rest, joined, (size_t)length + 1);
        copy[slash == copy ? 1 : name - copy - (slash != NULL)] =
            0; /* what is before the slash, which may be the root */
    }
}

static void find_file(const char *setting, const char *path, named_file_t *file)
{
    struct stat info;
    *file = (named_file_t){.setting = setting, .path = path, .exists = stat(path, &info) == 0};
    if (file->exists) {
        file->device = info.st_dev;
        file->inode = info.st_ino;
        file->is_device = S_ISCHR(info.st_mode);
    }
    find_full(path, file->full);
}

static bool is_same(const named_file_t *a, const named_file_t *b)
{
    if (a->exists != b->exists)
        return false;
    if (a->exists)
        return !a->is_device && a->device == b->device && a->inode == b->inode;
    return a->full[0] && strcmp(a->full, b->full) == 0;
}

/* ---- the other files ---- */

static zero_status_t check_path(const named_file_t *written, const char *setting, const char *path)
{
    named_file_t other;
    find_file(setting, path, &other);
    if (!is_same(written, &other))
        return ZERO_OK;
    return report_error(ZERO_ERROR_USAGE,
                        "%s = '%s' and %s = '%s' are the same file, which the run would overwrite: name another",
                        written->setting, written->path, setting, path);
}

/* Checks the two files of a Megatron pair, if the path names one of them or what their names have in common. */
static zero_status_t check_pair(const named_file_t *written, const char *setting, const char *path)
{
    static const char *const endings[] = {".bin", ".idx"};
    size_t length = strlen(path);
    for (size_t i = 0; i < 2; i++)
        if (length > 4 && strcmp(path + length - 4, endings[i]) == 0) {
            length -= 4;
            break;
        }
    for (size_t i = 0; i < 2; i++) {
        char file[OPTIONS_MAX_PATH + 8];
        snprintf(file, sizeof file, "%.*s%s", (int)length, path, endings[i]);
        if (access(file, F_OK) == 0 && (length < strlen(path) || access(path, F_OK) != 0))
            ZERO_TRY(check_path(written, setting, file));
    }
    return ZERO_OK;
}

static zero_status_t check_list(const named_file_t *written, const char *setting, const char *paths)
{
    char list[OPTIONS_MAX_PATH];
    snprintf(list, sizeof list, "%s", paths);
    for (char *rest = list, *item; (item = strsep(&rest, ","));) {
        item += strspn(item, " \t");
        size_t length = strlen(item);
        while (length > 0 && strchr(" \t", item[length - 1]))
            item[--length] = 0;
        if (length == 0)
            continue;
        ZERO_TRY(check_path(written, setting, item));
        ZERO_TRY(check_pair(written, setting, item));
    }
    return ZERO_OK;
}

/* Checks every file in a directory that is read. A directory that does not exist has none. */
static zero_status_t check_directory(const named_file_t *written, const char *setting, const char *directory)
{
    zero_status_t status = ZERO_OK;
    DIR *listing = opendir(directory);
    for (const struct dirent *entry; listing && status == ZERO_OK && (entry = readdir(listing));) {
        char path[OPTIONS_MAX_PATH + 300];
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        status = check_path(written, setting, path);
    }
    if (listing)
        closedir(listing);
    return status;
}

static zero_status_t check_resumed(const named_file_t *written, const options_t *o)
{
    const char *setting = o->resume_dir[0] ? "--resume" : "[checkpoint] dir";
    const char *directory = o->resume_dir[0] ? o->resume_dir : o->checkpoint.dir;
    char latest[OPTIONS_MAX_PATH + 16];
    snprintf(latest, sizeof latest, "%s/latest", directory);
    ZERO_TRY(check_directory(written, setting, directory));
    return check_directory(written, setting, latest);
}

/* Returns what a full path has behind that of a directory; NULL: it is not in there. */
static const char *name_in(const char *full, const char *directory)
{
    const size_t length = strlen(directory);
    const bool is_in = length > 0 && strncmp(full, directory, length) == 0 && full[length] == '/';
    return is_in ? full + length + 1 : NULL;
}

/* Refuses names that are reserved in a directory of checkpoints (zero.h): a file there would be replaced or removed. */
static zero_status_t check_reserved(const named_file_t *written, const options_t *o)
{
    static const char *const names[] = {"latest", "step-", "tmp."};
    named_file_t directory;
    find_file("[checkpoint] dir", o->checkpoint.dir, &directory);
    const char *name = name_in(written->full, directory.full);
    for (size_t i = 0; name && i < sizeof names / sizeof names[0]; i++)
        if (strncmp(name, names[i], strlen(names[i])) == 0)
            return report_error(ZERO_ERROR_USAGE,
                                "%s = '%s' is where [checkpoint] dir = '%s' has its checkpoints: name another file",
                                written->setting, written->path, o->checkpoint.dir);
    return ZERO_OK;
}

static zero_status_t check_separate(const options_t *o, const named_file_t *written)
{
    char val[OPTIONS_MAX_PATH];
    ZERO_TRY(check_path(written, "the configuration file", o->config_path));
    ZERO_TRY(check_list(written, "[data] train", o->data.train));
    val_sets_paths(o->data.val, val);
    ZERO_TRY(check_list(written, "[data] val", val));
    if (!options_init_is_random(o->model.init))
        ZERO_TRY(check_directory(written, "[model] init", o->model.init));
    if (o->resume)
        ZERO_TRY(check_resumed(written, o));
    if (o->checkpoint.dir[0]) {
        ZERO_TRY(check_path(written, "[checkpoint] dir", o->checkpoint.dir));
        ZERO_TRY(check_reserved(written, o));
    }
    return o->log.tensorboard[0] ? check_path(written, "[log] tensorboard", o->log.tensorboard) : ZERO_OK;
}

/* Refuses checkpoints in memory, all but one of which are removed, and all when the run ends well, where those on the
 * disk are. */
static zero_status_t check_memory_dir(const checkpoint_options_t *o)
{
    char best[BEST_MAX_PATH];
    named_file_t memory, other;
    if (o->memory_every == 0 || !o->dir[0])
        return ZERO_OK;
    best_directory(o->dir, best);
    find_file("[checkpoint] memory_dir", o->memory_dir, &memory);
    const char *const others[] = {o->dir, o->best ? best : o->dir};
    for (int i = 0; i < 2; i++) {
        find_file("[checkpoint] dir", others[i], &other);
        if (is_same(&memory, &other))
            return report_error(ZERO_ERROR_USAGE,
                                "[checkpoint] memory_dir: '%s' is also %s'%s', whose checkpoints stay: name another",
                                o->memory_dir, i == 0 ? "[checkpoint] dir = " : "", others[i]);
    }
    return ZERO_OK;
}

/* Returns whether a model's directory without links is one that saves into `directory` may remove. */
static bool may_be_replaced(const char *model, const char *directory)
{
    named_file_t parent;
    char name[NEWEST_STEP_BYTES];
    find_file("", directory, &parent);
    const char *behind = name_in(model, parent.full);
    if (!behind)
        return false;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(behind, "/"), behind);
    return newest_step_named(name) > 0;
}

/* Refuses to save adapters where their model is a checkpoint: they are nothing without it, and the run's own
 * checkpoints would replace it. */
static zero_status_t check_base(const options_t *o)
{
    const checkpoint_options_t *c = &o->checkpoint;
    char best[BEST_MAX_PATH];
    named_file_t model;
    if (o->lora.rank == 0 || options_init_is_random(o->model.init))
        return ZERO_OK;
    find_file("[model] init", o->model.init, &model);
    best_directory(c->dir, best);
    const struct {
        const char *key, *path;
        bool is_used;
    } places[] = {{"dir", c->dir, c->dir[0] != 0},
                  {"dir", best, c->dir[0] != 0},
                  {"memory_dir", c->memory_dir, c->memory_every > 0}};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        if (places[i].is_used && may_be_replaced(model.full, places[i].path))
            return report_error(ZERO_ERROR_USAGE,
                                "[checkpoint] %s: '%s' has the model that adapters are trained on, [model] init = "
                                "'%s', which this run's checkpoints would replace: name another directory",
                                places[i].key, places[i].path, o->model.init);
    return ZERO_OK;
}

zero_status_t named_files_check(const options_t *o)
{
    named_file_t metrics, trace;
    find_file("[log] metrics", o->log.metrics, &metrics);
    find_file("[log] trace", o->log.trace, &trace);
    ZERO_TRY(check_memory_dir(&o->checkpoint));
    ZERO_TRY(check_base(o));
    if (metrics.path[0] && trace.path[0])
        ZERO_TRY(check_path(&metrics, trace.setting, trace.path));
    if (metrics.path[0])
        ZERO_TRY(check_separate(o, &metrics));
    if (trace.path[0])
        ZERO_TRY(check_separate(o, &trace));
    ZERO_TRY(metrics_check(o->log.metrics));
    return trace_check(o->log.trace);
}
