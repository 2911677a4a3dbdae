/* run_directory.c - see run_directory.h. */
#include "train/run_directory.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/status.h"
#include "train/best_checkpoint.h"
#include "train/hub/hf_config.h"
#include "train/options/input_file.h"
#include "train/report/report.h"

/* How long a run waits for the one before it, whose processes may be ending. */
#define LOCK_WAITS 50
#define LOCK_WAIT_NS 100000000L

static zero_status_t check_no_model(const options_t *options)
{
    const char *directory = options->checkpoint.dir;
    char path[OPTIONS_MAX_PATH + 32];
    if (!directory[0] || !hf_config_is_there(directory, path))
        return ZERO_OK;
    return report_error(ZERO_ERROR_USAGE,
                        "[checkpoint] dir: '%s' is the directory of a model ('%s'): name another, such as "
                        "'%s/checkpoints'%s",
                        directory, path, directory, options->resume ? ", and move step-* and latest there" : "");
}

zero_status_t run_directory_check(const options_t *options, zero_comm_t *comm)
{
    return report_agree(comm, zero_comm_rank(comm) == 0 ? check_no_model(options) : ZERO_OK);
}

static zero_status_t check_earlier_run(const options_t *options, zero_comm_t *comm)
{
    char name[NEWEST_STEP_BYTES], best[BEST_MAX_PATH];
    struct {
        int64_t step;
        bool is_best; /* a run may have been killed when it had only a best one */
    } found = {0};
    if (options->resume || options->overwrite || !options->checkpoint.dir[0])
        return ZERO_OK;
    if (zero_comm_rank(comm) == 0)
        found.step = newest_step_of_run(options->checkpoint.dir, &found.is_best);
    ZERO_TRY(zero_comm_broadcast(comm, &found, sizeof found, 0));
    if (found.step == 0)
        return ZERO_OK;
    best_directory(options->checkpoint.dir, best);
    const char *directory = found.is_best ? best : options->checkpoint.dir;
    if (found.step == INT64_MAX)
        return report_error(ZERO_ERROR_USAGE,
                            "[checkpoint] dir: '%s/latest' is there and links to no checkpoint of zerotrain's: name "
                            "another directory, or remove it",
                            directory);
    newest_step_name(found.step, name);
    if (options->auto_resume) /* which has found nothing there before */
        return report_error(ZERO_ERROR_IO,
                            "[checkpoint] dir: another run has made '%s' meanwhile and saved up to %s: start this one "
                            "again, and it resumes from there",
                            directory, name);
    return report_error(ZERO_ERROR_USAGE,
                        "[checkpoint] dir: '%s' has checkpoints of an earlier run, up to %s: --resume continues from "
                        "there, --overwrite begins anew and replaces them",
                        directory, name);
}

zero_status_t run_directory_check_earlier(const options_t *options, zero_comm_t *comm)
{
    return report_agree(comm, check_earlier_run(options, comm));
}

static zero_status_t lock_directory(const char *directory, int *lock)
{
    const struct timespec wait = {.tv_nsec = LOCK_WAIT_NS};
    const int fd = ZERO_RETRY(open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd < 0)
        return ZERO_OK;
    for (int i = 0; i < LOCK_WAITS; i++) {
        if (ZERO_RETRY(flock(fd, LOCK_EX | LOCK_NB)) == 0 || errno != EWOULDBLOCK) {
            *lock = fd;
            return ZERO_OK;
        }
        nanosleep(&wait, NULL);
    }
    close(fd);
    return report_error(ZERO_ERROR_IO,
                        "[checkpoint] dir: '%s': another run saves there: end that first, or name another directory",
                        directory);
}

zero_status_t run_directory_lock(const char *directory, zero_comm_t *comm, int *lock)
{
    const bool is_wanted = directory[0] && *lock == 0 && zero_comm_rank(comm) == 0;
    return report_agree(comm, is_wanted ? lock_directory(directory, lock) : ZERO_OK);
}

/* Makes a directory, and its name durable. If that fails, zero_save_prepare says why. */
static void make_one(const char *path)
{
    char copy[OPTIONS_MAX_PATH];
    if (mkdir(path, 0777) != 0)
        return;
    snprintf(copy, sizeof copy, "%s", path);
    const int parent = ZERO_RETRY(open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (parent < 0)
        return;
    (void)fsync(parent);
    close(parent);
}

/* Makes the directory and its parents. */
static void make(const char *directory)
{
    char path[OPTIONS_MAX_PATH];
    snprintf(path, sizeof path, "%s", directory);
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        make_one(path);
        *slash = '/';
    }
    make_one(path);
}

zero_status_t run_directory_make(const options_t *options, zero_comm_t *comm, int *lock)
{
    if (options->checkpoint.dir[0] && zero_comm_rank(comm) == 0)
        make(options->checkpoint.dir);
    ZERO_TRY(run_directory_lock(options->checkpoint.dir, comm, lock));
    return run_directory_check_earlier(options, comm);
}

void run_directory_unlock(int *lock)
{
    if (*lock > 0)
        close(*lock);
    *lock = 0;
}
