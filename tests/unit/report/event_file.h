/* event_file.h - reads TensorBoard's event files from their description alone: TFRecords, whose checksums are compared,
 * that hold Events encoded as protocol buffers. Anything that does not fit the description fails the test. */
#ifndef ZERO_TEST_EVENT_FILE_H
#define ZERO_TEST_EVENT_FILE_H

#include "tests/support/support.h"

#include <stdlib.h>
#include <string.h>

#define EVENT_MAX_SCALARS 64

typedef struct event {
    double wall_time;
    int64_t step;
    char file_version[32]; /* "": none */
    bool is_session_start;
    int n_scalars;
    struct {
        char tag[64];
        float value;
    } scalars[EVENT_MAX_SCALARS];
} event_t;

/* Bit by bit from the definition: polynomial 0x1EDC6F41, all reflected, ones at the start and the end inverted. */
static inline uint32_t event_crc32c(const unsigned char *bytes, size_t n_bytes)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < 8 * n_bytes; i++) {
        uint32_t bit = (crc ^ (uint32_t)(bytes[i / 8] >> (i % 8))) & 1;
        crc = (crc >> 1) ^ (bit * 0x82f63b78u); /* 0x1EDC6F41 from its other end */
    }
    return ~crc;
}

static inline uint64_t event_number(const unsigned char *bytes, int n_bytes)
{
    uint64_t value = 0;
    memcpy(&value, bytes, (size_t)n_bytes); /* the tests run on little-endian machines */
    return value;
}

static inline void event_expect_crc(const unsigned char *bytes, size_t n_bytes, uint32_t masked)
{
    uint32_t rotated = masked - 0xa282ead8u;
    ck_assert_uint_eq(event_crc32c(bytes, n_bytes), rotated >> 17 | rotated << 15);
}

/* One field of a message: its number and where its contents are, a varint's in `value`. */
typedef struct event_field {
    int number, wire_type;
    uint64_t value;
    const unsigned char *bytes;
    size_t n_bytes;
} event_field_t;

static inline uint64_t event_varint(const unsigned char **at, const unsigned char *end)
{
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        ck_assert(*at < end && shift < 64);
        value |= (uint64_t)(**at & 0x7f) << shift;
        if (!(*(*at)++ & 0x80))
            return value;
    }
}

/* false: the message has ended. */
static inline bool event_next_field(const unsigned char **at, const unsigned char *end, event_field_t *field)
{
    if (*at == end)
        return false;
    uint64_t key = event_varint(at, end);
    *field = (event_field_t){.number = (int)(key >> 3), .wire_type = (int)(key & 7)};
    if (field->wire_type == 0) {
        field->value = event_varint(at, end);
        return true;
    }
    ck_assert(field->wire_type == 1 || field->wire_type == 2 || field->wire_type == 5);
    field->n_bytes = field->wire_type == 1 ? 8 : field->wire_type == 5 ? 4 : (size_t)event_varint(at, end);
    ck_assert_uint_le(field->n_bytes, (size_t)(end - *at));
    field->bytes = *at;
    *at += field->n_bytes;
    return true;
}

static inline void event_take_text(const event_field_t *field, char *text, size_t room)
{
    ck_assert(field->wire_type == 2 && field->n_bytes < room);
    memcpy(text, field->bytes, field->n_bytes);
    text[field->n_bytes] = 0;
}

/* Summary: repeated Value value = 1. Value: string tag = 1, float simple_value = 2. */
static inline void event_take_summary(const event_field_t *summary, event_t *event)
{
    event_field_t value, field;
    ck_assert_int_eq(summary->wire_type, 2);
    for (const unsigned char *at = summary->bytes, *end = at + summary->n_bytes; event_next_field(&at, end, &value);) {
        ck_assert(value.number == 1 && value.wire_type == 2 && event->n_scalars < EVENT_MAX_SCALARS);
        int n_fields = 0;
        for (const unsigned char *inner = value.bytes, *last = inner + value.n_bytes;
             event_next_field(&inner, last, &field); n_fields++) {
            if (field.number == 1) {
                event_take_text(&field, event->scalars[event->n_scalars].tag, sizeof event->scalars[0].tag);
            } else {
                ck_assert(field.number == 2 && field.wire_type == 5);
                memcpy(&event->scalars[event->n_scalars].value, field.bytes, 4);
            }
        }
        ck_assert_int_eq(n_fields, 2);
        event->n_scalars++;
    }
}

/* Event: double wall_time = 1, int64 step = 2, string file_version = 3, Summary summary = 5, SessionLog
 * session_log = 7, of which the status START is {8, 1}. */
static inline event_t event_parse(const unsigned char *bytes, size_t n_bytes)
{
    event_t event = {0};
    event_field_t field;
    for (const unsigned char *at = bytes, *end = bytes + n_bytes; event_next_field(&at, end, &field);) {
        switch (field.number) {
        case 1:
            ck_assert_int_eq(field.wire_type, 1);
            memcpy(&event.wall_time, field.bytes, 8);
            break;
        case 2:
            ck_assert_int_eq(field.wire_type, 0);
            event.step = (int64_t)field.value;
            break;
        case 3:
            event_take_text(&field, event.file_version, sizeof event.file_version);
            break;
        case 7:
            ck_assert(field.wire_type == 2 && field.n_bytes == 2 && memcmp(field.bytes, "\x08\x01", 2) == 0);
            event.is_session_start = true;
            break;
        default:
            ck_assert_int_eq(field.number, 5);
            event_take_summary(&field, &event);
        }
    }
    return event;
}

/* All events of the file, at most `room`; returns how many. */
static inline int event_file_read(const char *path, event_t *events, int room)
{
    size_t n_bytes;
    char *contents = support_read_file(path, &n_bytes);
    const unsigned char *at = (const unsigned char *)contents, *end = at + n_bytes;
    int n_events = 0;
    while (at < end) {
        ck_assert_int_ge(end - at, 16);
        uint64_t length = event_number(at, 8);
        ck_assert_uint_le(length, (uint64_t)(end - at) - 16);
        event_expect_crc(at, 8, (uint32_t)event_number(at + 8, 4));
        event_expect_crc(at + 12, length, (uint32_t)event_number(at + 12 + length, 4));
        ck_assert_int_lt(n_events, room);
        events[n_events++] = event_parse(at + 12, length);
        at += 16 + length;
    }
    free(contents);
    return n_events;
}

/* Returns the scalar with that tag; NULL if the event has none. */
static inline const float *event_scalar(const event_t *event, const char *tag)
{
    for (int i = 0; i < event->n_scalars; i++)
        if (strcmp(event->scalars[i].tag, tag) == 0)
            return &event->scalars[i].value;
    return NULL;
}

#endif
