/* phases.c - see phases.h. */
#include "train/report/phases.h"

#include <stdio.h>
#include <string.h>

#include "train/report/clock.h"

#define MAX_PHASES 16

static struct {
    double begin_s, last_s;
    int n;
    struct {
        const char *name;
        double s;
    } phases[MAX_PHASES];
} start;

void phases_begin(void)
{
    start.n = 0;
    start.begin_s = start.last_s = clock_now_s();
}

void phases_end(const char *name)
{
    const double now_s = clock_now_s();
    if (start.n < MAX_PHASES) {
        start.phases[start.n].name = name;
        start.phases[start.n++].s = now_s - start.last_s;
    }
    start.last_s = now_s;
}

void phases_text(char *text, size_t n_bytes)
{
    snprintf(text, n_bytes, "%.1f s:", start.last_s - start.begin_s);
    for (int i = 0; i < start.n; i++) {
        const size_t length = strlen(text);
        snprintf(text + length, n_bytes - length, "%s %s %.1f", i > 0 ? "," : "", start.phases[i].name,
                 start.phases[i].s);
    }
}
