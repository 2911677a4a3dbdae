/* tensorboard.c - see tensorboard.h.
 *
 * The file consists of TFRecords (https://www.tensorflow.org/tutorials/load_data/tfrecord): uint64 length, masked
 * CRC-32C of it, that many bytes, masked CRC-32C of them. Each record is an Event in the encoding of protocol buffers:
 * first one with the file's version, for a resumed run one with a SessionLog (from its step on, TensorBoard drops what
 * earlier files have), then one per step with a Summary of its scalars. The few fields that this needs are encoded
 * here, into buffers of fixed size, so that a step allocates nothing.
 */
#include "train/report/tensorboard.h"
#include "train/report/output_file.h"
#include "train/report/report.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct tensorboard {
    log_file_t *log;
    uint32_t crc_table[256];
};

/* ---- Protocol buffers ---- */

/* Field numbers, from tensorflow/core/util/event.proto and framework/summary.proto. */
enum { EVENT_WALL_TIME = 1, EVENT_STEP = 2, EVENT_FILE_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION_LOG = 7 };
enum { SESSION_LOG_STATUS = 1, STATUS_START = 1 };
enum { SUMMARY_VALUE = 1 };
enum { VALUE_TAG = 1, VALUE_SIMPLE = 2 };

typedef enum wire_type { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 } wire_type_t;

#define MAX_TAG_BYTES 48
/* Key and length of the value; key and length of its tag; the tag; key and float. */
#define MAX_VALUE_BYTES (2 + 2 + MAX_TAG_BYTES + 5)
#define MAX_VALUES (32 + METRICS_MOST_VAL_SETS)
#define MAX_SUMMARY_BYTES (MAX_VALUES * MAX_VALUE_BYTES)
/* Wall time; step; key and length of the summary. */
#define MAX_EVENT_BYTES (9 + 11 + 3 + MAX_SUMMARY_BYTES)
#define RECORD_HEADER_BYTES 12
#define RECORD_FOOTER_BYTES 4

typedef struct message {
    size_t n_bytes;
    unsigned char bytes[RECORD_HEADER_BYTES + MAX_EVENT_BYTES + RECORD_FOOTER_BYTES];
} message_t;

/* Appends the low n_bytes of value, least significant first. */
static void put_number(message_t *message, uint64_t value, int n_bytes)
{
    for (int i = 0; i < n_bytes; i++)
        message->bytes[message->n_bytes++] = (unsigned char)(value >> (8 * i));
}

static void put_varint(message_t *message, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        message->bytes[message->n_bytes++] = (unsigned char)(value | 0x80);
    message->bytes[message->n_bytes++] = (unsigned char)value;
}

static void put_key(message_t *message, int field, wire_type_t type)
{
    put_varint(message, (uint64_t)field << 3 | type);
}

static void put_bytes(message_t *message, int field, const void *bytes, size_t n_bytes)
{
    put_key(message, field, WIRE_BYTES);
    put_varint(message, n_bytes);
    memcpy(message->bytes + message->n_bytes, bytes, n_bytes);
    message->n_bytes += n_bytes;
}

static void put_double(message_t *message, int field, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(message, field, WIRE_64);
    put_number(message, bits, 8);
}

static void put_float(message_t *message, int field, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(message, field, WIRE_32);
    put_number(message, bits, 4);
}

/* ---- Records ---- */

/* CRC-32C (Castagnoli), least significant bit first. */
static void fill_crc_table(uint32_t table[256])
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
        table[byte] = crc;
    }
}

/* Returns the CRC masked as in TFRecords, so that bytes that contain CRCs have a useful CRC. */
static uint32_t masked_crc(const uint32_t table[256], const unsigned char *bytes, size_t n_bytes)
{
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < n_bytes; i++)
        crc = crc >> 8 ^ table[(crc ^ bytes[i]) & 0xff];
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* Begins an event, leaving room for the record's header before it. */
static void begin_event(message_t *record)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    record->n_bytes = RECORD_HEADER_BYTES;
    put_double(record, EVENT_WALL_TIME, (double)now.tv_sec + (double)now.tv_nsec * 1e-9);
}

static zero_status_t write_event(tensorboard_t *tensorboard, message_t *record)
{
    const uint32_t *table = tensorboard->crc_table;
    size_t end = record->n_bytes, n_bytes = end - RECORD_HEADER_BYTES;
    record->n_bytes = 0;
    put_number(record, n_bytes, 8);
    put_number(record, masked_crc(table, record->bytes, 8), 4);
    record->n_bytes = end;
    put_number(record, masked_crc(table, record->bytes + RECORD_HEADER_BYTES, n_bytes), 4);
    fwrite(record->bytes, record->n_bytes, 1, log_file_row(tensorboard->log));
    return log_file_write(tensorboard->log);
}

/* ---- The public calls ---- */

/* Creates a directory unless it exists. On failure errno says why. */
static bool make_directory(const char *path)
{
    struct stat info;
    if (mkdir(path, 0777) == 0)
        return true;
    int error = errno;
    bool is_there = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    errno = error;
    return is_there;
}

/* Creates the directory and its parents. */
static zero_status_t make_directories(const char *directory)
{
    char *path = strdup(directory);
    if (!path)
        return report_error(ZERO_ERROR_MEMORY, "[log] tensorboard: out of memory");
    zero_status_t status = ZERO_OK;
    for (char *end = path; *end && status == ZERO_OK;) {
        end += strspn(end, "/");
        end += strcspn(end, "/");
        char separator = *end;
        *end = 0;
        if (!make_directory(path))
            status = report_error(ZERO_ERROR_IO, "[log] tensorboard: cannot make directory '%s' of '%s': %s", path,
                                  directory, strerror(errno));
        *end = separator;
    }
    free(path);
    return status;
}

/* Returns a path with a name that TensorBoard looks for. NULL: no memory. */
static char *event_path(const char *directory)
{
    char host[256] = "localhost", *path = NULL;
    if (gethostname(host, sizeof host - 1) != 0)
        snprintf(host, sizeof host, "localhost");
    int n =
        asprintf(&path, "%s/events.out.tfevents.%010lld.%s.%d", directory, (long long)time(NULL), host, (int)getpid());
    return n < 0 ? NULL : path;
}

static zero_status_t open_file(const char *directory, tensorboard_t *tensorboard)
{
    ZERO_TRY(make_directories(directory));
    char *path = event_path(directory);
    FILE *file = path ? fopen(path, "ae") : NULL; /* append: never overwrite another run's file */
    zero_status_t status =
        !path   ? report_error(ZERO_ERROR_MEMORY, "[log] tensorboard: out of memory")
        : !file ? report_error(ZERO_ERROR_IO, "[log] tensorboard: cannot write '%s': %s", path, strerror(errno))
                : log_file_open("[log] tensorboard", path, file, true, &tensorboard->log);
    free(path);
    return status;
}

static zero_status_t write_begin(tensorboard_t *tensorboard, int64_t resumed_at)
{
    static const char version[] = "brain.Event:2";
    static const unsigned char start[] = {SESSION_LOG_STATUS << 3 | WIRE_VARINT, STATUS_START};
    message_t record;
    begin_event(&record);
    put_bytes(&record, EVENT_FILE_VERSION, version, sizeof version - 1);
    ZERO_TRY(write_event(tensorboard, &record));
    if (resumed_at == 0)
        return ZERO_OK;
    begin_event(&record);
    put_key(&record, EVENT_STEP, WIRE_VARINT);
    put_varint(&record, (uint64_t)resumed_at);
    put_bytes(&record, EVENT_SESSION_LOG, start, sizeof start);
    return write_event(tensorboard, &record);
}

zero_status_t tensorboard_open(const char *directory, int64_t resumed_at, tensorboard_t **tensorboard)
{
    if (!directory[0]) {
        *tensorboard = NULL;
        return ZERO_OK;
    }
    tensorboard_t *opened = calloc(1, sizeof *opened);
    if (!opened)
        return report_error(ZERO_ERROR_MEMORY, "[log] tensorboard: out of memory");
    fill_crc_table(opened->crc_table);
    zero_status_t status = open_file(directory, opened);
    if (status == ZERO_OK)
        status = write_begin(opened, resumed_at);
    if (status != ZERO_OK) {
        tensorboard_close(opened);
        return status;
    }
    *tensorboard = opened;
    return ZERO_OK;
}

static void put_value(message_t *summary, const char *tag, float value)
{
    message_t encoded = {.n_bytes = 0};
    put_bytes(&encoded, VALUE_TAG, tag, strlen(tag));
    put_float(&encoded, VALUE_SIMPLE, value);
    put_bytes(summary, SUMMARY_VALUE, encoded.bytes, encoded.n_bytes);
}

static void put_summary(message_t *event, const metrics_row_t *row)
{
    const struct {
        const char *tag; /* at most MAX_TAG_BYTES */
        bool is_known;
        double value;
    } values[] = {
        {"loss", !row->has_no_targets, row->loss},
        {"grad_norm", true, row->grad_norm},
        {"lr", true, row->lr},
        {"tokens_per_s", true, row->tokens_per_s},
        {"step_ms", true, row->step_ms},
        {"mfu", row->mfu >= 0, row->mfu},
        {"exposed_comm_ms", true, row->exposed_comm_ms},
        {"exposed_host_ms", row->has_offload, row->exposed_host_ms},
        {"pcie_bytes", row->has_offload, (double)row->pcie_bytes},
        {"tokens", true, (double)row->tokens},
        {row->rewards.are_known ? "pairs" : "targets", row->has_mask, (double)row->targets},
        {"reward_chosen", row->rewards.are_known, row->rewards.chosen},
        {"reward_rejected", row->rewards.are_known, row->rewards.rejected},
        {"reward_margin", row->rewards.are_known, row->rewards.margin},
        {"reward_accuracy", row->rewards.are_known, row->rewards.accuracy},
        {"skipped", true, row->skipped},
        {"device_bytes", true, (double)row->device_bytes},
        {"host_bytes", true, (double)row->host_bytes},
        {"val_loss", row->has_val_loss, row->val_loss},
        {"val_reward_chosen", row->val_rewards.are_known, row->val_rewards.chosen},
        {"val_reward_rejected", row->val_rewards.are_known, row->val_rewards.rejected},
        {"val_reward_margin", row->val_rewards.are_known, row->val_rewards.margin},
        {"val_reward_accuracy", row->val_rewards.are_known, row->val_rewards.accuracy},
        {"fp8_min_scale", row->has_fp8_scales, row->fp8_min_scale},
        {"fp8_max_scale", row->has_fp8_scales, row->fp8_max_scale},
    };
    _Static_assert(sizeof values / sizeof values[0] + METRICS_MOST_VAL_SETS <= MAX_VALUES,
                   "more values than a summary's buffer holds");
    message_t summary = {.n_bytes = 0};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        if (values[i].is_known)
            put_value(&summary, values[i].tag, (float)values[i].value);
    for (int i = 0; i < row->n_val_sets; i++) {
        char tag[MAX_TAG_BYTES + 1];
        snprintf(tag, sizeof tag, "val_loss.%s", row->val_sets[i].name);
        put_value(&summary, tag, row->val_sets[i].loss);
    }
    put_bytes(event, EVENT_SUMMARY, summary.bytes, summary.n_bytes);
}

zero_status_t tensorboard_write(tensorboard_t *tensorboard, const metrics_row_t *row)
{
    if (!tensorboard)
        return ZERO_OK;
    message_t record;
    begin_event(&record);
    put_key(&record, EVENT_STEP, WIRE_VARINT);
    put_varint(&record, (uint64_t)row->step);
    put_summary(&record, row);
    return write_event(tensorboard, &record);
}

void tensorboard_close(tensorboard_t *tensorboard)
{
    if (!tensorboard)
        return;
    log_file_close(tensorboard->log);
    free(tensorboard);
}
