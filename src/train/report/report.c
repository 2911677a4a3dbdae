/* report.c - what zerotrain says on stderr: whole lines, one at a time, each beginning "zerotrain: ".
 *
 * A line is composed in memory and written at once, so that lines of several ranks do not mix. Control characters,
 * which come from file names and values that we quote, become '?': a message is one line whatever is in it.
 */
#include "train/report/report.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Two paths of the longest kind and the words around them. */
#define LINE_BYTES 10240

static int my_rank;
static int n_ranks = 1;
/* What report_error did not say because this is not rank 0; report_agree may have to say it after all. */
static char kept_back[LINE_BYTES];

static void make_printable(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = '?';
}

/* with_rank: the line is this rank's own, so it names the rank. A message that fills its LINE_BYTES was cut. */
static void write_line(bool with_rank, const char *message)
{
    char who[32] = "", line[LINE_BYTES + 64];
    if (with_rank)
        snprintf(who, sizeof who, "rank %d: ", my_rank);
    snprintf(line, sizeof line, "zerotrain: %s%s%s", who, message, strlen(message) == LINE_BYTES - 1 ? "..." : "");
    make_printable(line);
    fprintf(stderr, "%s\n", line);
    fflush(stderr);
}

static void on_library_line(void *user, zero_log_level_t level, int rank, const char *line)
{
    (void)user, (void)level, (void)rank;
    write_line(true, line);
}

void report_init(int rank, int world_size)
{
    my_rank = rank;
    n_ranks = world_size;
    zero_log_set(ZERO_LOG_INFO, on_library_line, NULL);
}

bool report_is_speaker(void)
{
    return my_rank == 0;
}

void report(const char *format, ...)
{
    if (!report_is_speaker())
        return;
    char message[LINE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    write_line(false, message);
}

zero_status_t report_error(zero_status_t status, const char *format, ...)
{
    char message[LINE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    if (report_is_speaker())
        write_line(false, message);
    else
        memcpy(kept_back, message, strlen(message) + 1);
    return status;
}

zero_status_t report_rank_error(zero_status_t status, const char *format, ...)
{
    char message[LINE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    write_line(n_ranks > 1, message);
    return status;
}

zero_status_t report_agree(zero_comm_t *comm, zero_status_t mine)
{
    double *failed = calloc((size_t)n_ranks, sizeof *failed);
    if (!failed)
        return zero_comm_agree(comm, report_rank_error(ZERO_ERROR_MEMORY, "out of memory"));
    failed[my_rank] = mine != ZERO_OK;
    zero_status_t status = zero_comm_sum(comm, failed, (size_t)n_ranks);
    int first = 0;
    while (first < n_ranks && failed[first] == 0)
        first++;
    free(failed);
    if (status != ZERO_OK)
        return status;
    if (first == my_rank && kept_back[0])
        write_line(true, kept_back);
    kept_back[0] = 0;
    return zero_comm_agree(comm, mine);
}

int report_exit_code(zero_status_t status)
{
    switch (status) {
    case ZERO_OK:
        return 0;
    case ZERO_ERROR_USAGE:
        return 2;
    default:
        return 1;
    }
}
