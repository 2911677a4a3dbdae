/* core_waits.c - see core_waits.h. Linux counts it for each thread (/proc/self/task, schedstat). */
#include "train/calibrate/core_waits.h"

#include <dirent.h>
#include <stdio.h>

/* Returns a thread's nanoseconds: the second of three numbers. */
static double waits_of(const char *thread)
{
    char path[300];
    unsigned long long ran = 0, waited = 0;
    snprintf(path, sizeof path, "/proc/self/task/%s/schedstat", thread);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0.0;
    int n = fscanf(file, "%llu %llu", &ran, &waited);
    fclose(file);
    return n == 2 ? (double)waited : 0.0;
}

double core_waits_s(void)
{
    double ns = 0.0;
    DIR *threads = opendir("/proc/self/task");
    if (!threads)
        return 0.0;
    for (const struct dirent *entry = readdir(threads); entry; entry = readdir(threads))
        ns += entry->d_name[0] == '.' ? 0.0 : waits_of(entry->d_name);
    closedir(threads);
    return ns * 1e-9;
}
