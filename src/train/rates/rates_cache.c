/* rates_cache.c - see rates_cache.h. */
#include "train/rates/rates_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json_build.h"
#include "base/status.h"
#include "base/system.h"
#include "train/report/report.h"

#define MOST_BYTES (1 << 20)
#define LEAST_RATE 1e-6 /* and its inverse: anything else was not measured */

static double *rate_of(fit_rates_t *rates, const fit_rate_row_t *row)
{
    return (double *)((char *)rates + row->offset);
}

void fit_measured_clear(fit_measured_t *measured)
{
    for (int i = 0; i < n_fit_rate_rows; i++)
        for (int k = 0; k < fit_rate_rows[i].n; k++)
            rate_of(&measured->rates, &fit_rate_rows[i])[k] = (double)NAN;
}

bool fit_cache_path(char path[OPTIONS_MAX_PATH])
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = -1;
    if (cache && cache[0] == '/')
        n = snprintf(path, OPTIONS_MAX_PATH, "%s/zerotrain/rates.json", cache);
    else if (home && home[0] == '/')
        n = snprintf(path, OPTIONS_MAX_PATH, "%s/.cache/zerotrain/rates.json", home);
    return n > 0 && n < OPTIONS_MAX_PATH;
}

void fit_cpu_name(char *name, size_t n_bytes)
{
    char line[256], model[48] = "CPU";
    FILE *file = fopen("/proc/cpuinfo", "re");
    while (file && fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon)
            continue;
        snprintf(model, sizeof model, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
        break;
    }
    if (file)
        fclose(file);
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    snprintf(name, n_bytes, "%s, %ld core%s", model, cores, cores == 1 ? "" : "s");
}

/* ---- the file ---- */

static json_t *ignore(const char *path, const char *why)
{
    report("'%s': %s: built-in rates are used; zerotrain calibrate writes the file anew", path, why);
    return NULL;
}

/* Takes numbers of a rate; all or none. */
static void take_rate(const json_t *value, const fit_rate_row_t *row, double *out)
{
    double numbers[FIT_SIZES] = {0};
    for (int k = 0; k < row->n; k++) {
        const json_t *number = row->n == 1 ? value : json_array_get(value, (size_t)k);
        numbers[k] = json_is_number(number) ? json_number_value(number) : (double)NAN;
        bool may_be_none = (strcmp(row->key, "tile") == 0 || strcmp(row->key, "element") == 0) && numbers[k] == 0.0;
        if (!may_be_none && !(numbers[k] >= LEAST_RATE && numbers[k] <= 1e30))
            return;
    }
    memcpy(out, numbers, (size_t)row->n * sizeof *out);
}

static bool take_text(const json_t *entry, const char *key, char *text, size_t n_bytes)
{
    const char *value = json_string_value(json_object_get(entry, key));
    int n = value ? snprintf(text, n_bytes, "%s", value) : -1;
    return n > 0 && (size_t)n < n_bytes;
}

static bool take_count(const json_t *entry, const char *key, int *count)
{
    json_int_t value = json_integer_value(json_object_get(entry, key));
    *count = value >= 0 && value <= 1 << 20 ? (int)value : 0;
    return json_is_integer(json_object_get(entry, key)) && *count == value;
}

static bool take_entry(const json_t *entry, fit_measured_t *measured)
{
    memset(measured, 0, sizeof *measured);
    fit_measured_clear(measured);
    const json_t *rates = json_object_get(entry, "rates"), *memory = json_object_get(entry, "memory_bytes");
    measured->is_gpu = json_is_true(json_object_get(entry, "gpu"));
    measured->rates.memory_bytes = json_is_number(memory) ? json_number_value(memory) : 0.0;
    for (int i = 0; i < n_fit_rate_rows; i++)
        take_rate(json_object_get(rates, fit_rate_rows[i].key), &fit_rate_rows[i],
                  rate_of(&measured->rates, &fit_rate_rows[i]));
    return take_text(entry, "device", measured->device, sizeof measured->device) &&
           take_text(entry, "date", measured->date, sizeof measured->date) &&
           take_count(entry, "threads", &measured->threads) && take_count(entry, "ranks", &measured->ranks) &&
           measured->ranks > 0 && !isnan(measured->rates.half);
}

/* Returns why a file cannot be used; NULL: it can. */
static const char *problem_of(const json_t *file)
{
    const json_t *version = json_object_get(file, "version"), *devices = json_object_get(file, "devices");
    if (!json_is_object(file) || !json_is_integer(version))
        return "it is no file of rates";
    if (json_integer_value(version) != FIT_CACHE_VERSION)
        return "it is of another version";
    for (size_t i = 0; i < json_array_size(devices); i++) {
        fit_measured_t measured;
        if (!take_entry(json_array_get(devices, i), &measured))
            return "an entry is damaged";
    }
    return json_is_array(devices) ? NULL : "it has no list of devices";
}

static json_t *parse(int fd, const char *path)
{
    struct stat info;
    json_error_t error;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size > MOST_BYTES)
        return ignore(path, "it is no regular file, or too large");
    json_t *file = json_loadfd(fd, JSON_REJECT_DUPLICATES, &error);
    if (!file)
        return ignore(path, "it is no JSON");
    const char *problem = problem_of(file);
    if (!problem)
        return file;
    json_decref(file);
    return ignore(path, problem);
}

/* Returns the file's contents; NULL: there is none that can be used. */
static json_t *read_file(void)
{
    char path[OPTIONS_MAX_PATH];
    if (!fit_cache_path(path))
        return NULL;
    int fd = ZERO_RETRY(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    if (fd < 0)
        return errno == ENOENT || errno == ENOTDIR ? NULL : ignore(path, strerror(errno));
    json_t *file = parse(fd, path);
    close(fd);
    return file;
}

static json_t *make_entry(const fit_measured_t *measured)
{
    json_t *rates = json_object();
    fit_rates_t values = measured->rates;
    for (int i = 0; i < n_fit_rate_rows; i++) {
        const double *numbers = rate_of(&values, &fit_rate_rows[i]);
        json_t *array = json_array();
        for (int k = 0; k < fit_rate_rows[i].n; k++)
            zero_json_append(&array, json_real(numbers[k]));
        if (!isnan(numbers[0]))
            zero_json_set(&rates, fit_rate_rows[i].key,
                          json_incref(fit_rate_rows[i].n == 1 ? json_array_get(array, 0) : array));
        json_decref(array);
    }
    return json_pack("{s:s, s:b, s:i, s:i, s:s, s:f, s:s, s:o}", "device", measured->device, "gpu",
                     (int)measured->is_gpu, "threads", measured->threads, "ranks", measured->ranks, "date",
                     measured->date, "memory_bytes", measured->rates.memory_bytes, "zerotrain", zero_version(), "rates",
                     rates);
}

static bool is_same_place(const fit_measured_t *a, const fit_measured_t *b)
{
    return strcmp(a->device, b->device) == 0 && a->threads == b->threads && a->ranks == b->ranks;
}

/* Returns the file with the entry in it, its older entry gone. */
static json_t *with_entry(const fit_measured_t *measured)
{
    json_t *old = read_file(), *devices = json_array(), *entry;
    size_t i;
    json_array_foreach(json_object_get(old, "devices"), i, entry)
    {
        fit_measured_t other;
        take_entry(entry, &other);
        if (!is_same_place(&other, measured))
            zero_json_append(&devices, json_incref(entry));
    }
    zero_json_append(&devices, make_entry(measured));
    json_decref(old);
    return json_pack("{s:i, s:o}", "version", FIT_CACHE_VERSION, "devices", devices);
}

static zero_status_t fail(const char *path, const char *what)
{
    return report_rank_error(ZERO_ERROR_IO, "calibrate: cannot %s '%s': %s", what, path, strerror(errno));
}

/* Makes the folders of a path; the last component is a file. */
static zero_status_t make_folders(const char *path)
{
    char folder[OPTIONS_MAX_PATH];
    snprintf(folder, sizeof folder, "%s", path);
    for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(folder, 0777) != 0 && errno != EEXIST)
            return fail(folder, "make the folder");
        *slash = '/';
    }
    return ZERO_OK;
}

/* Writes a temporary file next to `path`, and renames it: a reader finds the old file or the new one. */
static zero_status_t replace(const char *path, const json_t *file)
{
    char temporary[OPTIONS_MAX_PATH + 16];
    snprintf(temporary, sizeof temporary, "%s.XXXXXX", path);
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0)
        return fail(temporary, "create");
    mode_t mask = umask(0);
    umask(mask);
    bool written = fchmod(fd, 0666 & ~mask) == 0 && json_dumpfd(file, fd, JSON_INDENT(1)) == 0 &&
                   write(fd, "\n", 1) == 1 && ZERO_RETRY(fsync(fd)) == 0;
    int problem = errno;
    close(fd);
    errno = problem;
    if (written && rename(temporary, path) == 0)
        return ZERO_OK;
    zero_status_t status = fail(path, "write");
    unlink(temporary);
    return status;
}

zero_status_t fit_cache_save(const fit_measured_t *measured)
{
    char path[OPTIONS_MAX_PATH];
    if (!fit_cache_path(path))
        return report_rank_error(ZERO_ERROR_IO, "calibrate: nowhere to keep the rates: neither XDG_CACHE_HOME nor HOME "
                                                "is an absolute path");
    ZERO_TRY(make_folders(path));
    json_t *file = with_entry(measured);
    zero_status_t status = file ? replace(path, file) : report_rank_error(ZERO_ERROR_MEMORY, "calibrate: no memory");
    json_decref(file);
    return status;
}

/* ---- looking up ---- */

/* Returns whether an entry is of the device that is wanted. */
static bool is_wanted(const fit_measured_t *m, const fit_wanted_t *wanted)
{
    if (m->is_gpu != wanted->is_gpu)
        return false;
    if (wanted->vendor_name)
        return strcmp(m->device, wanted->vendor_name) == 0;
    if (!wanted->gpu || !wanted->gpu[0])
        return true;
    const fit_rates_t *named = fit_rates_find(wanted->gpu);
    return named ? fit_rates_known_gpu(m->device) == named : strcasestr(m->device, wanted->gpu) != NULL;
}

static double distance(const fit_measured_t *m, const fit_wanted_t *wanted)
{
    double ranks = fabs(log((double)m->ranks / (double)wanted->ranks));
    return ranks + (wanted->is_gpu ? 0.0 : fabs(log(fmax(m->threads, 1.0) / fmax(wanted->threads, 1.0))));
}

/* Finds the nearest entry, of equal ones the newest. */
static bool find(const json_t *file, const fit_wanted_t *wanted, fit_measured_t *best)
{
    bool found = false;
    size_t i;
    json_t *entry;
    json_array_foreach(json_object_get(file, "devices"), i, entry)
    {
        fit_measured_t m;
        take_entry(entry, &m);
        if (!is_wanted(&m, wanted))
            continue;
        double nearer = found ? distance(best, wanted) - distance(&m, wanted) : 1.0;
        if (nearer > 0.0 || (nearer == 0.0 && strcmp(m.date, best->date) >= 0))
            *best = m;
        found = true;
    }
    return found;
}

/* Writes "NVIDIA H100, measured 2026-01-31 with 8 ranks". */
static void set_title(const fit_measured_t *m, const fit_wanted_t *wanted, fit_rates_t *rates)
{
    int n = snprintf(rates->title, sizeof rates->title, "%s, measured %.10s with %d rank%s", m->device, m->date,
                     m->ranks, m->ranks == 1 ? "" : "s");
    if (!wanted->is_gpu && n > 0 && (size_t)n < sizeof rates->title)
        snprintf(rates->title + n, sizeof rates->title - (size_t)n, " of %d thread%s", m->threads,
                 m->threads == 1 ? "" : "s");
}

/* Returns how many cores a CPU's rank has for its threads. */
static double cores_of_rank(const fit_wanted_t *wanted, int threads, int ranks)
{
    double share = wanted->cores > 0 ? (double)wanted->cores / fmax(ranks, 1.0) : INFINITY;
    return fmin(fmax(threads, 1.0), share);
}

/* A CPU's rank computes in proportion to its cores. had: those that the rates are of. */
static void scale_to_cores(const fit_wanted_t *wanted, double had, fit_rates_t *rates)
{
    double cores = cores_of_rank(wanted, wanted->threads, wanted->ranks);
    for (int i = 0; i < n_fit_rate_rows; i++)
        for (int k = 0; k < fit_rate_rows[i].n && fit_rate_rows[i].is_of_thread; k++)
            rate_of(rates, &fit_rate_rows[i])[k] *= cores / had;
    rates->threads = fmax(wanted->threads, 1.0);
}

/* Replaces built-in rates by measured ones. */
static void take_measured(fit_measured_t *m, const fit_wanted_t *wanted, fit_rates_t *rates)
{
    if (!wanted->is_gpu)
        scale_to_cores(wanted, cores_of_rank(wanted, m->threads, m->ranks), &m->rates);
    for (int i = 0; i < n_fit_rate_rows; i++) {
        const fit_rate_row_t *row = &fit_rate_rows[i];
        const double *from = rate_of(&m->rates, row);
        for (int k = 0; k < row->n && !isnan(from[0]); k++)
            rate_of(rates, row)[k] = from[k];
    }
    if (wanted->is_gpu && !fit_rates_known_gpu(m->device))
        snprintf(rates->name, sizeof rates->name, "%s", m->device);
    if (m->rates.memory_bytes > 0.0 && !fit_rates_known_gpu(m->device))
        rates->memory_bytes = m->rates.memory_bytes;
    set_title(m, wanted, rates);
}

static const fit_rates_t *built_in(const fit_wanted_t *wanted, const char *device)
{
    if (!wanted->is_gpu)
        return fit_rates_of_cpu();
    if (device)
        return fit_rates_of_gpu(device);
    return fit_rates_find(wanted->gpu && wanted->gpu[0] ? wanted->gpu : fit_rates_table[0].name);
}

bool fit_rates_look_up(const fit_wanted_t *wanted, fit_rates_t *rates)
{
    fit_measured_t measured = {0};
    json_t *file = read_file();
    bool found = find(file, wanted, &measured);
    json_decref(file);
    const fit_rates_t *base = built_in(wanted, found ? measured.device : wanted->vendor_name);
    if (!base || base->is_gpu != wanted->is_gpu)
        return false;
    *rates = *base;
    if (!wanted->is_gpu)
        scale_to_cores(wanted, base->threads, rates);
    if (found)
        take_measured(&measured, wanted, rates);
    return true;
}

zero_status_t fit_rates_choose(zero_comm_t *comm, const fit_wanted_t *wanted, fit_rates_t *rates, bool *is_known)
{
    struct {
        fit_rates_t rates;
        bool is_known;
    } first = {.is_known = true};
    if (zero_comm_rank(comm) == 0)
        first.is_known = fit_rates_look_up(wanted, &first.rates);
    ZERO_TRY(zero_comm_broadcast(comm, &first, sizeof first, 0));
    *rates = first.rates;
    *is_known = first.is_known;
    return ZERO_OK;
}

zero_status_t fit_rates_of_this_cpu(zero_comm_t *comm, fit_rates_t *rates)
{
    char name[64];
    bool is_known;
    fit_cpu_name(name, sizeof name);
    fit_wanted_t wanted = {.vendor_name = name,
                           .threads = omp_get_max_threads(),
                           .ranks = zero_comm_local_size(comm),
                           .cores = (int)sysconf(_SC_NPROCESSORS_ONLN)};
    return fit_rates_choose(comm, &wanted, rates, &is_known);
}
