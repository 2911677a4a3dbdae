/* metrics.c - see metrics.h.
 *
 * Lines are printed here and not by jansson, because the text of loss and grad_norm is a promise: %.9g, which is
 * different for every fp32 value. Each line is written at once, so that progress can be followed and survives a crash.
 */
#include "train/report/metrics.h"
#include "train/report/output_file.h"
#include "train/report/report.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct metrics {
    log_file_t *log;
    char *run; /* for the next row; NULL: none */
};

/* ---- The existing file ---- */

#define ROW_BEGINS "{\"step\": "
#define RUN_BEGINS ", \"run\": {"

/* Recognizes a row as an object with a step and a loss, and one that a full disk cut short by its beginning. What a run
 * says of itself, at the end of its first row, may be longer than what is looked at here. */
static bool begins_as_metrics(const char *text, size_t n_bytes)
{
    const size_t n_begins = strlen(ROW_BEGINS);
    if (memcmp(text, ROW_BEGINS, n_bytes < n_begins ? n_bytes : n_begins) != 0)
        return false;
    if (n_bytes > n_begins && !isdigit((unsigned char)text[n_begins]))
        return false;
    const char *end = memchr(text, '\n', n_bytes);
    if (!end && n_bytes < OUTPUT_FILE_HEAD)
        return true;
    if (!end)
        end = memmem(text, n_bytes, RUN_BEGINS, strlen(RUN_BEGINS));
    if (!end)
        return false;
    char begun[OUTPUT_FILE_HEAD + 1];
    size_t n_row = (size_t)(end - text);
    memcpy(begun, text, n_row);
    if (*end != '\n')
        begun[n_row++] = '}';
    json_t *row = json_loadb(begun, n_row, JSON_REJECT_DUPLICATES, NULL);
    bool is_ours = json_is_integer(json_object_get(row, "step")) && json_object_get(row, "loss");
    json_decref(row);
    return is_ours;
}

static const output_kind_t METRICS = {"[log] metrics", "a file of metrics", begins_as_metrics};

zero_status_t metrics_check(const char *path)
{
    return path[0] ? output_file_check(&METRICS, path) : ZERO_OK;
}

/* Returns the bytes before the first row that is unfinished or of a later step; and the last step before that in *last,
 * 0 if there is none. Rows begin as write_row writes them. */
static off_t bytes_until(FILE *file, int64_t step, int64_t *last)
{
    char *line = NULL;
    size_t capacity = 0;
    off_t n_bytes = 0;
    ssize_t length;
    *last = 0;
    while ((length = getline(&line, &capacity, file)) > 0 && line[length - 1] == '\n') {
        int64_t row_step;
        if (sscanf(line, ROW_BEGINS "%" SCNd64, &row_step) != 1 || row_step > step)
            break;
        *last = row_step;
        n_bytes += length;
    }
    free(line);
    return n_bytes;
}

zero_status_t metrics_rewind(const char *path, int64_t step)
{
    ZERO_TRY(metrics_check(path));
    if (!path[0] || !output_file_can_be_truncated(path))
        return ZERO_OK;
    FILE *file = fopen(path, "re");
    int64_t last = 0;
    bool good = file && truncate(path, bytes_until(file, step, &last)) == 0;
    int error = errno;
    if (file)
        fclose(file);
    if (!good)
        return report_error(ZERO_ERROR_IO, "[log] metrics: cannot remove later rows from '%s': %s", path,
                            strerror(error));
    if (last > 0 && last < step)
        report("'%s' has no row after step %" PRId64 ": those up to step %" PRId64 " could not be written", path, last,
               step);
    return ZERO_OK;
}

/* ---- Writing ---- */

zero_status_t metrics_open(const char *path, bool append, metrics_t **metrics)
{
    if (!path[0]) {
        *metrics = NULL;
        return ZERO_OK;
    }
    metrics_t *opened = calloc(1, sizeof *opened);
    FILE *file = NULL;
    zero_status_t status = opened ? ZERO_OK : report_error(ZERO_ERROR_MEMORY, "[log] metrics: out of memory");
    if (status == ZERO_OK)
        status = output_file_open(&METRICS, path, &file);
    if (status == ZERO_OK && !append)
        status = output_file_empty(&METRICS, path, file);
    if (status == ZERO_OK)
        status = log_file_open(METRICS.setting, path, file, output_file_can_be_truncated(path), &opened->log);
    else if (file)
        fclose(file);
    if (status == ZERO_OK)
        *metrics = opened;
    else
        free(opened);
    return status;
}

void metrics_describe(metrics_t *metrics, char *run)
{
    if (!metrics) {
        free(run);
        return;
    }
    free(metrics->run);
    metrics->run = run;
}

/* JSON has no NaN and no infinity. */
static void write_number(FILE *file, const char *name, double value)
{
    if (isfinite(value))
        fprintf(file, ", \"%s\": %.9g", name, value);
    else
        fprintf(file, ", \"%s\": null", name);
}

static void write_rewards(FILE *file, const char *of, const rewards_t *rewards)
{
    const struct {
        const char *name;
        double value;
    } keys[] = {{"reward_chosen", rewards->chosen},
                {"reward_rejected", rewards->rejected},
                {"reward_margin", rewards->margin},
                {"reward_accuracy", rewards->accuracy}};
    char name[32];
    for (size_t i = 0; i < sizeof keys / sizeof keys[0] && rewards->are_known; i++) {
        snprintf(name, sizeof name, "%s%s", of, keys[i].name);
        write_number(file, name, keys[i].value);
    }
}

/* run: "": none */
static void write_row(FILE *file, const metrics_row_t *row, const char *run)
{
    fprintf(file, ROW_BEGINS "%" PRId64, row->step);
    write_number(file, "loss", row->loss);
    write_number(file, "grad_norm", row->grad_norm);
    write_number(file, "lr", row->lr);
    fprintf(file, ", \"skipped\": %s, \"tokens\": %" PRId64, row->skipped ? "true" : "false", row->tokens);
    if (row->has_mask)
        fprintf(file, ", \"%s\": %" PRId64, row->rewards.are_known ? "pairs" : "targets", row->targets);
    write_rewards(file, "", &row->rewards);
    write_number(file, "step_ms", row->step_ms);
    write_number(file, "tokens_per_s", row->tokens_per_s);
    write_number(file, "mfu", row->mfu < 0 ? (double)NAN : row->mfu);
    fprintf(file, ", \"device_bytes\": %" PRIu64 ", \"host_bytes\": %" PRIu64, row->device_bytes, row->host_bytes);
    write_number(file, "exposed_comm_ms", row->exposed_comm_ms);
    if (row->has_offload) {
        write_number(file, "exposed_host_ms", row->exposed_host_ms);
        fprintf(file, ", \"pcie_bytes\": %" PRIu64, row->pcie_bytes);
    }
    fprintf(file, ", \"time\": %.3f", row->time_s);
    if (row->has_val_loss)
        write_number(file, "val_loss", row->val_loss);
    for (int i = 0; i < row->n_val_sets; i++) {
        char key[100];
        snprintf(key, sizeof key, "val_loss.%s", row->val_sets[i].name);
        write_number(file, key, row->val_sets[i].loss);
    }
    write_rewards(file, "val_", &row->val_rewards);
    if (row->has_fp8_scales) {
        write_number(file, "fp8_min_scale", row->fp8_min_scale);
        write_number(file, "fp8_max_scale", row->fp8_max_scale);
    }
    if (run[0])
        fprintf(file, ", \"run\": %s", run);
    fputs("}\n", file);
}

zero_status_t metrics_write(metrics_t *metrics, const metrics_row_t *row)
{
    if (!metrics)
        return ZERO_OK;
    write_row(log_file_row(metrics->log), row, metrics->run ? metrics->run : "");
    free(metrics->run);
    metrics->run = NULL;
    return log_file_write(metrics->log);
}

void metrics_close(metrics_t *metrics)
{
    if (!metrics)
        return;
    log_file_close(metrics->log);
    free(metrics->run);
    free(metrics);
}
