/* memory.c - see memory.h. */
#include "base/memory.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "zero.h"

#define UNKNOWN UINT64_MAX

static char root[PATH_MAX]; /* in front of every path */

void zero_memory_set_root(const char *directory)
{
    snprintf(root, sizeof root, "%s", directory);
}

static uint64_t lesser(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ---- reading ---- */

static FILE *open_file(const char *directory, const char *name)
{
    char path[3 * PATH_MAX];
    snprintf(path, sizeof path, "%s%s/%s", root, directory, name);
    return fopen(path, "re");
}

/* Reads a file that is one number; UNKNOWN if there is no such file, or "max" in it. */
static uint64_t read_number(const char *directory, const char *name)
{
    unsigned long long value;
    FILE *file = open_file(directory, name);
    if (!file)
        return UNKNOWN;
    int n = fscanf(file, "%llu", &value);
    fclose(file);
    return n == 1 ? value : UNKNOWN;
}

/* Returns the sum of the rows "key number" of a file whose keys are listed (up to NULL); UNKNOWN if it has none. */
static uint64_t sum_rows(const char *directory, const char *name, const char *const keys[])
{
    char line[256], key[64];
    unsigned long long value;
    uint64_t sum = 0;
    bool has_any = false;
    FILE *file = open_file(directory, name);
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%63s %llu", key, &value) != 2)
            continue;
        for (const char *const *wanted = keys; *wanted; wanted++)
            if (strcmp(key, *wanted) == 0) {
                sum += value;
                has_any = true;
            }
    }
    if (file)
        fclose(file);
    return has_any ? sum : UNKNOWN;
}

static uint64_t read_meminfo(const char *key)
{
    const char *const keys[] = {key, NULL};
    uint64_t kib = sum_rows("/proc", "meminfo", keys);
    return kib == UNKNOWN ? UNKNOWN : kib * 1024;
}

/* ---- control groups ---- */

/* How a version names things. */
typedef struct hierarchy {
    const char *filesystem, *controller; /* of version 2: "" */
    const char *limits[2];               /* over `high` the kernel stops a process as long as it cannot reclaim */
    const char *used;
    const char *const *reclaimable; /* of memory.stat, with those of the groups below */
} hierarchy_t;

static const hierarchy_t hierarchies[] = {
    {"cgroup2",
     "",
     {"memory.max", "memory.high"},
     "memory.current",
     (const char *const[]){"active_file", "inactive_file", "slab_reclaimable", NULL}},
    {"cgroup",
     "memory",
     {"memory.limit_in_bytes", "memory.limit_in_bytes"},
     "memory.usage_in_bytes",
     (const char *const[]){"total_active_file", "total_inactive_file", NULL}},
};

/* Returns whether a word is in a list with commas. "" is in an empty one. */
static bool is_listed(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = list;; at = strchr(at, ',') + 1) {
        if (strncmp(at, word, n) == 0 && (at[n] == ',' || at[n] == '\0'))
            return n > 0 || list[0] == '\0';
        if (!strchr(at, ','))
            return false;
    }
}

/* Finds the path of this process's group: "/" or "/a/b", from lines like "4:memory:/a/b" and "0::/a/b". */
static bool find_group(const hierarchy_t *of, char path[PATH_MAX])
{
    char line[PATH_MAX + 256];
    bool is_found = false;
    FILE *file = open_file("/proc/self", "cgroup");
    while (file && !is_found && fgets(line, sizeof line, file)) {
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        group[strcspn(group, "\n")] = '\0';
        is_found = is_listed(controllers + 1, of->controller);
        snprintf(path, PATH_MAX, "%s", group);
    }
    if (file)
        fclose(file);
    return is_found;
}

/* Replaces "\040" and the like, as mountinfo writes blanks and backslashes. */
static void unescape(char *text)
{
    char *to = text;
    for (const char *from = text; *from; to++) {
        unsigned code;
        bool is_escaped = from[0] == '\\' && sscanf(from + 1, "%3o", &code) == 1;
        *to = is_escaped ? (char)code : *from;
        from += is_escaped ? 4 : 1;
    }
    *to = '\0';
}

typedef struct mount {
    char group[PATH_MAX], point[PATH_MAX]; /* the group that it shows at its top, and where */
} mount_t;

/* Reads a line of mountinfo: "36 35 98:0 GROUP POINT options - filesystem source superoptions". */
static bool read_mount(const char *line, const hierarchy_t *of, mount_t *mount)
{
    char filesystem[64], options[1024];
    const char *end = strstr(line, " - ");
    if (!end || sscanf(end, " - %63s %*s %1023s", filesystem, options) != 2 ||
        strcmp(filesystem, of->filesystem) != 0 || (of->controller[0] && !is_listed(options, of->controller)) ||
        sscanf(line, "%*s %*s %*s %4095s %4095s", mount->group, mount->point) != 2)
        return false;
    unescape(mount->group);
    unescape(mount->point);
    return true;
}

/* Returns what follows the mount's top in the path of a group; NULL if the group is not below it. */
static const char *below(const mount_t *mount, const char *group)
{
    size_t n = strcmp(mount->group, "/") == 0 ? 0 : strlen(mount->group);
    bool is_below = strncmp(group, mount->group, n) == 0 && (group[n] == '/' || group[n] == '\0');
    return is_below && strncmp(group, "/..", 3) != 0 ? group + n : NULL;
}

/* Finds where a hierarchy is mounted: where this process's group can be seen if it can be, else in the last place. In a
 * container that is its own group's. */
static bool find_mount(const hierarchy_t *of, const char *group, mount_t *mount)
{
    char *line = NULL;
    size_t capacity = 0;
    bool is_found = false;
    FILE *file = open_file("/proc/self", "mountinfo");
    while (file && !(is_found && below(mount, group)) && getline(&line, &capacity, file) > 0)
        is_found |= read_mount(line, of, mount);
    free(line);
    if (file)
        fclose(file);
    return is_found;
}

/* Lowers total and available to what one group leaves. */
static void apply_limit(const hierarchy_t *of, const char *directory, uint64_t *total, uint64_t *available)
{
    uint64_t limit = lesser(read_number(directory, of->limits[0]), read_number(directory, of->limits[1]));
    uint64_t used = read_number(directory, of->used);
    if (limit >= *total && limit >= *available)
        return;
    uint64_t reclaimable = sum_rows(directory, "memory.stat", of->reclaimable);
    used = used == UNKNOWN ? 0 : used - (reclaimable == UNKNOWN ? 0 : lesser(reclaimable, used));
    *total = lesser(*total, limit);
    *available = lesser(*available, limit - lesser(used, limit));
}

/* Applies the limits of this process's group and of all that it is in. */
static void apply_hierarchy(const hierarchy_t *of, uint64_t *total, uint64_t *available)
{
    char group[PATH_MAX], directory[2 * PATH_MAX];
    mount_t mount;
    if (!find_group(of, group) || !find_mount(of, group, &mount))
        return;
    const char *rest = below(&mount, group);
    const size_t top = strlen(mount.point);
    snprintf(directory, sizeof directory, "%s%s", mount.point, rest && strcmp(rest, "/") != 0 ? rest : "");
    apply_limit(of, directory, total, available);
    while (strlen(directory) > top) {
        *strrchr(directory, '/') = '\0';
        apply_limit(of, directory, total, available);
    }
}

void zero_host_memory(uint64_t *total_bytes, uint64_t *available_bytes)
{
    uint64_t total = read_meminfo("MemTotal:"), available = read_meminfo("MemAvailable:");
    if (total == UNKNOWN)
        total = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < sizeof hierarchies / sizeof hierarchies[0]; i++)
        apply_hierarchy(&hierarchies[i], &total, &available);
    if (total_bytes)
        *total_bytes = total;
    if (available_bytes)
        *available_bytes = available;
}

/* ---- what a plan may take ---- */

uint64_t zero_bytes_to_plan(uint64_t available_bytes)
{
    const uint64_t least = (uint64_t)1 << 30, most = available_bytes / 8, part = available_bytes / 64;
    uint64_t reserve = part > least ? part : least;
    return available_bytes - lesser(reserve, most);
}

uint64_t zero_pinned_to_plan(double share, int n_ranks, uint64_t total_bytes, uint64_t available_bytes)
{
    uint64_t allowed = total_bytes;
    if (share < 1.0)
        allowed = share > 0.0 ? (uint64_t)(share * (double)total_bytes) : 0;
    if (n_ranks < 1)
        n_ranks = 1;
    return lesser(allowed, zero_bytes_to_plan(available_bytes)) / (uint64_t)n_ranks;
}
