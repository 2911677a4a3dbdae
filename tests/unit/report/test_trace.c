/* test_trace.c - the trace of a run: a file that any JSON reader accepts, with every rank's spans of every kind of work
 * on one clock, whose waits add up to the metrics' exposed_comm_ms.
 *
 * On the CPU gathers and reductions block compute, so they are waits; only GPUs have rows of their own for them. Those
 * rows are tested with made-up spans.
 */
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/allocations.h"
#include "tests/support/stderr_capture.h"
#include "tests/support/support.h"
#include "train/report/trace.h"

#define RUN_LIMIT_S 60.0
#define N_STEPS 6
#define N_BLOCKS 3
/* Two micro-steps, and an evaluation in between. */
#define CONFIG                                                                                                         \
    "[model]\nlayers = 3\ndim = 36\nheads = 3\nseq_len = 16\n"                                                         \
    "[data]\ntrain = text.txt\nval = text.txt\n"                                                                       \
    "[train]\nsteps = 6\nmicro_batch = 2\nglobal_batch = 8\neval_every = 3\neval_batches = 1\n"                        \
    "[log]\nmetrics = metrics.jsonl\n"

static char scratch[400];
static const char *program; /* that runs are of */

static void set_up(void)
{
    char path[512], text[4000];
    char *directory = support_scratch();
    program = "zerotrain";
    snprintf(scratch, sizeof scratch, "%s", directory);
    free(directory);
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + i * i % 23);
    snprintf(path, sizeof path, "%s/text.txt", scratch);
    support_write_file(path, text, sizeof text);
    snprintf(path, sizeof path, "%s/cfg.ini", scratch);
    support_write_file(path, CONFIG, sizeof CONFIG - 1);
}

static char *read_scratch(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    return support_read_file(path, NULL);
}

__attribute__((format(printf, 3, 4))) static void expect_run(int exit_code, int n_ranks, const char *format, ...)
{
    char arguments[512];
    support_output_t output;
    va_list args;
    va_start(args, format);
    vsnprintf(arguments, sizeof arguments, format, args);
    va_end(args);
    int got = support_mpirun(&output, RUN_LIMIT_S, n_ranks, "--wdir %s %s/%s %s cfg.ini", scratch, support_build(),
                             program, arguments);
    ck_assert_msg(got == exit_code, "exit code %d\n%s", got, output.err);
    support_output_free(&output);
}

/* ---- Reading a trace ---- */

typedef struct span {
    int rank, row, step;
    const char *kind, *name, *phase, *waits_for, *ranks; /* the last three: NULL if there is none */
    double begin_us, end_us;
} span_t;

typedef struct read_trace {
    json_t *json; /* the spans' strings are its own */
    span_t *spans;
    size_t n_spans;
} read_trace_t;

static const json_t *field(const json_t *object, const char *name, json_type type)
{
    const json_t *value = json_object_get(object, name);
    ck_assert_msg(value && (json_typeof(value) == type || (type == JSON_REAL && json_is_number(value))), "no %s in %s",
                  name, json_dumps(object, JSON_ENCODE_ANY));
    return value;
}

static span_t read_span(const json_t *event)
{
    double begin_us = json_number_value(field(event, "ts", JSON_REAL));
    return (span_t){
        .rank = (int)json_integer_value(field(event, "pid", JSON_INTEGER)),
        .row = (int)json_integer_value(field(event, "tid", JSON_INTEGER)),
        .step = (int)json_integer_value(field(field(event, "args", JSON_OBJECT), "step", JSON_INTEGER)),
        .kind = json_string_value(field(event, "cat", JSON_STRING)),
        .name = json_string_value(field(event, "name", JSON_STRING)),
        .phase = json_string_value(json_object_get(json_object_get(event, "args"), "phase")),
        .waits_for = json_string_value(json_object_get(json_object_get(event, "args"), "waits_for")),
        .ranks = json_string_value(json_object_get(json_object_get(event, "args"), "ranks")),
        .begin_us = begin_us,
        .end_us = begin_us + json_number_value(field(event, "dur", JSON_REAL)),
    };
}

static int by_place(const void *a, const void *b)
{
    const span_t *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank - y->rank;
    return (x->begin_us > y->begin_us) - (x->begin_us < y->begin_us);
}

/* Spans in order of rank and beginning. */
static read_trace_t read_trace(const char *text)
{
    json_error_t error;
    read_trace_t trace = {.json = json_loads(text, JSON_REJECT_DUPLICATES, &error)};
    ck_assert_msg(trace.json != NULL, "line %d: %s", error.line, error.text);
    const json_t *events = field(trace.json, "traceEvents", JSON_ARRAY);
    trace.spans = calloc(json_array_size(events) + 1, sizeof *trace.spans);
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *event = json_array_get(events, i);
        const char *phase = json_string_value(field(event, "ph", JSON_STRING));
        if (strcmp(phase, "X") == 0)
            trace.spans[trace.n_spans++] = read_span(event);
        else
            ck_assert_str_eq(phase, "M");
    }
    qsort(trace.spans, trace.n_spans, sizeof *trace.spans, by_place);
    return trace;
}

static void forget(read_trace_t *trace)
{
    json_decref(trace->json);
    free(trace->spans);
}

static size_t count(const read_trace_t *trace, int rank, const char *kind, int step)
{
    size_t n = 0;
    for (size_t i = 0; i < trace->n_spans; i++)
        n += trace->spans[i].rank == rank && strcmp(trace->spans[i].kind, kind) == 0 && trace->spans[i].step == step;
    return n;
}

/* Returns the file's name for the row, or for the rank if row is 0. */
static const char *name_of(const read_trace_t *trace, int rank, int row)
{
    const json_t *events = field(trace->json, "traceEvents", JSON_ARRAY);
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *event = json_array_get(events, i);
        const char *name = json_string_value(json_object_get(event, "name"));
        if (strcmp(name, row == 0 ? "process_name" : "thread_name") == 0 &&
            json_integer_value(json_object_get(event, "pid")) == rank &&
            (row == 0 || json_integer_value(json_object_get(event, "tid")) == row))
            return json_string_value(json_object_get(json_object_get(event, "args"), "name"));
    }
    return "";
}

static bool is_device_work(const span_t *span)
{
    return strcmp(span->kind, "host") != 0 && strcmp(span->kind, "data") != 0;
}

/* ---- Runs ---- */

/* A thousandth of a microsecond is the last digit in the file. */
#define ROUNDING_US 0.002

/* Every step of every rank has each kind of work, and as much as the model says; work between steps belongs to none. */
static void expect_all_work(const read_trace_t *trace, int n_ranks)
{
    const size_t n_units = N_BLOCKS + 2; /* embeddings and head */
    for (int rank = 0; rank < n_ranks; rank++) {
        for (int step = 1; step <= N_STEPS; step++) {
            ck_assert_uint_eq(count(trace, rank, "compute", step), 2 * 2 * n_units);
            ck_assert_uint_eq(count(trace, rank, "update", step), 1);
            ck_assert_uint_eq(count(trace, rank, "host", step), 1);
            ck_assert_uint_eq(count(trace, rank, "data", step), 2);
            ck_assert_uint_gt(count(trace, rank, "wait", step), 0);
        }
        /* Evaluation follows step 3: two passes of one micro-batch. Work after the last step is not reported. */
        ck_assert_uint_eq(count(trace, rank, "compute", 0), 2 * n_units);
        ck_assert_uint_gt(count(trace, rank, "wait", 0), 0);
    }
    ck_assert_uint_eq(count(trace, n_ranks, "compute", 1), 0);
}

/* A row shows one thing at a time. On the CPU device work is one row after another, too. */
static void expect_no_overlap(const read_trace_t *trace)
{
    for (size_t i = 0; i < trace->n_spans; i++) {
        const span_t *a = &trace->spans[i];
        ck_assert_double_le(a->begin_us, a->end_us);
        ck_assert_double_ge(a->begin_us, 0.0);
        for (size_t k = i + 1; k < trace->n_spans && trace->spans[k].rank == a->rank; k++) {
            const span_t *b = &trace->spans[k];
            if (b->begin_us >= a->end_us - ROUNDING_US)
                break;
            ck_assert_msg(a->row != b->row && !(is_device_work(a) && is_device_work(b)),
                          "rank %d: %s %s of step %d and %s %s of step %d overlap", a->rank, a->kind, a->name, a->step,
                          b->kind, b->name, b->step);
        }
    }
}

/* Both are clocks of this host, so a rank's update lies within the time it took to queue the step. Ranks meet before
 * it, so no rank's update of a step begins before all ranks have begun that step. */
static void expect_one_clock(const read_trace_t *trace)
{
    double latest_begin[N_STEPS + 1] = {0};
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < trace->n_spans; i++) {
            const span_t *span = &trace->spans[i];
            if (pass == 0 && strcmp(span->kind, "host") == 0)
                latest_begin[span->step] = fmax(latest_begin[span->step], span->begin_us);
            if (pass == 1 && strcmp(span->kind, "update") == 0)
                ck_assert_double_gt(span->begin_us, latest_begin[span->step]);
        }
}

/* Counts a rank's spans of a step whose field is `value`; step 0 stands for all steps. */
static size_t count_where(const read_trace_t *trace, int rank, int step, const char *kind, const char *phase,
                          const char *waits_for)
{
    size_t n = 0;
    for (size_t i = 0; i < trace->n_spans; i++) {
        const span_t *s = &trace->spans[i];
        n += s->rank == rank && s->step > 0 && (step == 0 || s->step == step) && strcmp(s->kind, kind) == 0 &&
             (!phase || strcmp(s->phase, phase) == 0) && (!waits_for || strcmp(s->waits_for, waits_for) == 0);
    }
    return n;
}

static bool begins_with(const char *text, const char *beginning)
{
    return strncmp(text, beginning, strlen(beginning)) == 0;
}

static bool ends_with(const char *text, const char *end)
{
    return strlen(text) >= strlen(end) && strcmp(text + strlen(text) - strlen(end), end) == 0;
}

/* In each of the two micro-steps every unit's forward comes before every unit's backward. */
static void expect_passes(const read_trace_t *trace, int rank, int step)
{
    const int n_units = N_BLOCKS + 2;
    int n = 0;
    for (size_t i = 0; i < trace->n_spans; i++) {
        const span_t *span = &trace->spans[i];
        if (span->rank != rank || span->step != step || strcmp(span->kind, "compute") != 0)
            continue;
        const char *phase = n++ % (2 * n_units) < n_units ? "forward" : "backward";
        ck_assert_msg(strcmp(span->phase, phase) == 0 && ends_with(span->name, phase), "%s is of phase %s", span->name,
                      span->phase);
    }
    ck_assert_int_eq(n, 4 * n_units);
}

/* The device's spans say in which phase they are, and waits what for; the host's say neither. Parameters are gathered
 * forward and backward at stage 3, once at the end of the step at 1 and 2; gradients travel in backward. */
static void expect_phases_and_waits(const read_trace_t *trace, int n_ranks, int stage)
{
    for (size_t i = 0; i < trace->n_spans; i++) {
        const span_t *span = &trace->spans[i];
        ck_assert_int_eq(span->phase != NULL, is_device_work(span));
        ck_assert_int_eq(span->waits_for != NULL, strcmp(span->kind, "wait") == 0);
        ck_assert(!span->waits_for || begins_with(span->name, span->waits_for));
    }
    for (int rank = 0; rank < n_ranks; rank++) {
        for (int step = 1; step <= N_STEPS; step++) {
            expect_passes(trace, rank, step);
            ck_assert_uint_eq(count_where(trace, rank, step, "update", "update", NULL), 1);
        }
        ck_assert_uint_gt(count_where(trace, rank, 0, "wait", "backward", "reduce"), 0);
        ck_assert_uint_gt(count_where(trace, rank, 0, "wait", "update", "ranks"), 0);
        ck_assert_uint_eq(count_where(trace, rank, 0, "wait", "forward", "reduce"), 0);
        ck_assert_int_eq(count_where(trace, rank, 0, "wait", "forward", "gather") > 0, stage == 3);
        ck_assert_int_eq(count_where(trace, rank, 0, "wait", "update", "gather") > 0, stage == 1 || stage == 2);
        size_t n_known = 0;
        for (size_t w = 0; w < 5; w++)
            n_known += count_where(trace, rank, 0, "wait", NULL,
                                   (const char *[]){"gather", "reduce", "readers", "ranks", "offload"}[w]);
        ck_assert_uint_eq(n_known, count_where(trace, rank, 0, "wait", NULL, NULL));
    }
}

/* exposed_comm_ms is printed with 9 digits, and each wait of the trace is rounded to a nanosecond. It is a part of the
 * step, whatever was waited for before and behind it. */
static void expect_waits_are_exposed_comm(const read_trace_t *trace)
{
    char *text = read_scratch("metrics.jsonl"), *rest = text;
    for (int step = 1; step <= N_STEPS; step++) {
        json_t *row = json_loads(strsep(&rest, "\n"), 0, NULL);
        double exposed_us = 1e3 * json_number_value(json_object_get(row, "exposed_comm_ms")), sum_us = 0.0;
        for (size_t i = 0; i < trace->n_spans; i++)
            if (trace->spans[i].rank == 0 && trace->spans[i].step == step && strcmp(trace->spans[i].kind, "wait") == 0)
                sum_us += trace->spans[i].end_us - trace->spans[i].begin_us;
        double n_waits = (double)count(trace, 0, "wait", step);
        ck_assert_double_le(exposed_us, (1e3 + 1e-5) * json_number_value(json_object_get(row, "step_ms")));
        ck_assert_double_eq_tol(sum_us, exposed_us, n_waits * ROUNDING_US + 1e-8 * exposed_us);
        json_decref(row);
    }
    free(text);
}

START_TEST(two_ranks_trace_all_they_did_on_one_clock)
{
    expect_run(0, 2, "--stage %d --trace trace.json", _i);
    char *text = read_scratch("trace.json");
    read_trace_t trace = read_trace(text);
    expect_all_work(&trace, 2);
    expect_no_overlap(&trace);
    expect_one_clock(&trace);
    expect_waits_are_exposed_comm(&trace);
    expect_phases_and_waits(&trace, 2, _i);
    forget(&trace);
    free(text);
}
END_TEST

/* Four ranks in groups of two: a unit's first gather after an update brings each rank its part from the other group,
 * and all others are inside the group. Gradients come from everywhere. */
START_TEST(groups_gather_inside_and_renew_their_parts_once_a_step)
{
    static const char *const groups[] = {"0-1", "0-1", "2-3", "2-3"};
    static const char *const parts[] = {"0-2 by 2", "1-3 by 2", "0-2 by 2", "1-3 by 2"};
    size_t n_inside[4] = {0}, n_parts[4] = {0};
    expect_run(0, 4, "--stage 3 --set zero.shard_group=2 --trace trace.json");
    char *text = read_scratch("trace.json");
    read_trace_t trace = read_trace(text);
    for (size_t i = 0; i < trace.n_spans; i++) {
        const span_t *s = &trace.spans[i];
        const bool gathers = s->waits_for && strcmp(s->waits_for, "gather") == 0;
        const bool reduces = s->waits_for && strcmp(s->waits_for, "reduce") == 0;
        ck_assert_int_eq(s->ranks != NULL, gathers || reduces);
        if (reduces)
            ck_assert_str_eq(s->ranks, "0-3");
        if (!gathers)
            continue;
        const bool inside = strcmp(s->ranks, groups[s->rank]) == 0;
        ck_assert_msg(inside || strcmp(s->ranks, parts[s->rank]) == 0, "rank %d gathers among %s", s->rank, s->ranks);
        n_inside[s->rank] += inside;
        n_parts[s->rank] += !inside;
    }
    for (int rank = 0; rank < 4; rank++) {
        ck_assert_uint_eq(n_parts[rank], (size_t)N_STEPS * (N_BLOCKS + 2));
        ck_assert_uint_gt(n_inside[rank], n_parts[rank]);
    }
    forget(&trace);
    free(text);
}
END_TEST

START_TEST(ranks_rows_and_units_have_their_names)
{
    static const char *const rows[] = {"compute", "wait", "gather", "reduce", "update", "host", "data"};
    static const char *const units[] = {"transformer.h.0", "transformer.h.2"};
    expect_run(0, 2, "--set log.trace=trace.json");
    char *text = read_scratch("trace.json");
    read_trace_t trace = read_trace(text);
    for (int rank = 0; rank < 2; rank++) {
        char expected[16];
        snprintf(expected, sizeof expected, "rank %d", rank);
        ck_assert_str_eq(name_of(&trace, rank, 0), expected);
        for (int row = 0; row < 7; row++)
            ck_assert_str_eq(name_of(&trace, rank, row + 1), rows[row]);
    }
    for (size_t i = 0; i < trace.n_spans; i++)
        ck_assert_str_eq(trace.spans[i].kind, rows[trace.spans[i].row - 1]);
    for (size_t u = 0; u < 2; u++) {
        size_t n = 0;
        for (size_t i = 0; i < trace.n_spans; i++)
            n += strstr(trace.spans[i].name, units[u]) != NULL;
        ck_assert_msg(n > 0, "no span is of %s", units[u]);
    }
    forget(&trace);
    free(text);
}
END_TEST

static double number(const char *line, const char *name)
{
    json_t *row = json_loads(line, JSON_DISABLE_EOF_CHECK, NULL);
    double value = json_number_value(field(row, name, JSON_REAL));
    json_decref(row);
    return value;
}

static void expect_same_numbers(const char *a, const char *b)
{
    static const char *const names[] = {"loss", "grad_norm"};
    char *text_a = read_scratch(a), *text_b = read_scratch(b), *at_a = text_a, *at_b = text_b;
    for (int step = 1; step <= N_STEPS; step++) {
        for (size_t i = 0; i < 2; i++)
            ck_assert(number(at_a, names[i]) == number(at_b, names[i]));
        at_a = strchr(at_a, '\n') + 1;
        at_b = strchr(at_b, '\n') + 1;
    }
    free(text_a);
    free(text_b);
}

START_TEST(a_trace_changes_no_bit)
{
    expect_run(0, 2, "--set log.metrics=plain.jsonl");
    expect_run(0, 2, "--set log.metrics=traced.jsonl --trace trace.json");
    expect_same_numbers("plain.jsonl", "traced.jsonl");
}
END_TEST

/* Before each unit, forward and backward, and before the update the host waits for the device, which no span has. */
START_TEST(a_paced_run_has_a_host_span_for_each_part_of_a_step)
{
    const size_t n_pauses = 2 * 2 * (N_BLOCKS + 2) + 1; /* two micro-steps */
    expect_run(0, 2, "--set log.metrics=plain.jsonl");
    program = "tests/support/zerotrain_paced";
    expect_run(0, 2, "--trace trace.json");
    char *text = read_scratch("trace.json");
    read_trace_t trace = read_trace(text);
    expect_no_overlap(&trace);
    for (int rank = 0; rank < 2; rank++)
        for (int step = 1; step <= N_STEPS; step++)
            ck_assert_uint_eq(count(&trace, rank, "host", step), n_pauses + 1);
    expect_same_numbers("plain.jsonl", "metrics.jsonl");
    forget(&trace);
    free(text);
}
END_TEST

/* ---- Runs that fail ---- */

START_TEST(a_run_that_diverges_leaves_the_trace_of_all_ranks)
{
    expect_run(1, 2,
               "--trace trace.json --set train.lr=1000 --set train.grad_clip=0 --set train.steps=100 "
               "--set train.schedule=constant --set log.every=0 --set train.eval_every=0");
    char *text = read_scratch("trace.json");
    read_trace_t trace = read_trace(text);
    for (int rank = 0; rank < 2; rank++)
        ck_assert_uint_eq(count(&trace, rank, "update", 2), 1);
    forget(&trace);
    free(text);
}
END_TEST

/* Rank 0 finds the disk full when step 1 is written; all ranks stop after the same step. */
START_TEST(a_run_that_a_full_disk_stops_leaves_its_trace)
{
    expect_run(1, 2, "--trace trace.json --set log.metrics=/dev/full");
    char *text = read_scratch("trace.json");
    read_trace_t trace = read_trace(text);
    for (int rank = 0; rank < 2; rank++) {
        ck_assert_uint_eq(count(&trace, rank, "update", 1), 1);
        ck_assert_uint_eq(count(&trace, rank, "update", 3), 0);
    }
    forget(&trace);
    free(text);
}
END_TEST

START_TEST(a_full_disk_is_named)
{
    support_output_t output;
    int code = support_mpirun(&output, RUN_LIMIT_S, 2, "--wdir %s %s/zerotrain --trace /dev/full cfg.ini", scratch,
                              support_build());
    ck_assert_int_eq(code, 1);
    ck_assert_msg(support_count(output.err, "[log] trace: writing '/dev/full' failed: No space left") == 1, "%s",
                  output.err);
    support_output_free(&output);
}
END_TEST

/* ---- Spans of our own ---- */

static zero_comm_t *comm;
static zero_model_t *model;

static trace_t *open_here(const char *path)
{
    trace_t *trace;
    zero_unit_t unit;
    ck_assert_int_eq(zero_comm_create(ZERO_COMM_AUTO, &comm), ZERO_OK);
    ck_assert_int_eq(zero_model_create(&model), ZERO_OK);
    ck_assert_int_eq(zero_model_add_unit(model, "unit", &unit), ZERO_OK);
    ck_assert_int_eq(trace_open(path, comm, model, &trace), ZERO_OK);
    ck_assert_int_eq(trace_claim_file(trace), ZERO_OK);
    return trace;
}

static void close_here(trace_t *trace)
{
    ck_assert_int_eq(trace_close(trace, true), ZERO_OK);
    zero_model_destroy(model);
    zero_comm_destroy(comm);
}

START_TEST(too_many_spans_keep_the_last_steps_and_a_line_says_so)
{
    const int n_steps = 3000, spans_a_step = 50, n_fit = 65536;
    char path[512];
    snprintf(path, sizeof path, "%s/trace.json", scratch);
    trace_t *trace = open_here(path);
    allocations_start();
    for (int i = 0; i < n_steps * spans_a_step; i++)
        trace_host(trace, (trace_row_t)(i % TRACE_N_ROWS), 1 + i / spans_a_step, 1e6 + i, 1e6 + i + 0.5);
    ck_assert_uint_eq(allocations_stop(), 0);
    capture_begin();
    close_here(trace);
    const char *said = capture_end();
    int first = n_steps - n_fit / spans_a_step + 1; /* the first complete step */
    char expected[64];
    snprintf(expected, sizeof expected, "the trace begins with step %d\n", first);
    expect_line(said, (const char *[]){"[log] trace", expected, NULL});

    char *text = read_scratch("trace.json");
    read_trace_t read = read_trace(text);
    ck_assert_uint_eq(read.n_spans, (size_t)(n_steps - first + 1) * spans_a_step);
    ck_assert_int_eq(read.spans[0].step, first);
    ck_assert_int_eq(read.spans[read.n_spans - 1].step, n_steps);
    ck_assert_int_eq(json_integer_value(field(field(read.json, "otherData", JSON_OBJECT), "first_step", JSON_INTEGER)),
                     first);
    /* i counts milliseconds: lengths and distances are as given. */
    ck_assert_double_eq_tol(read.spans[7].end_us - read.spans[7].begin_us, 500.0, ROUNDING_US);
    ck_assert_double_eq_tol(read.spans[8].begin_us - read.spans[7].begin_us, 1000.0, ROUNDING_US);
    ck_assert_uint_gt(count(&read, 0, "gather", n_steps), 0);
    ck_assert_uint_gt(count(&read, 0, "reduce", n_steps), 0);
    forget(&read);
    free(text);
}
END_TEST

#define ODD_NAME "a \"unit\" of \\ and \t"

START_TEST(a_unit_has_the_name_it_was_declared_with)
{
    zero_unit_t unit;
    ck_assert_int_eq(zero_model_create(&model), ZERO_OK);
    ck_assert_int_eq(zero_model_add_unit(model, ODD_NAME, &unit), ZERO_OK);
    ck_assert_str_eq(zero_model_unit_name(model, unit), ODD_NAME);
    ck_assert_ptr_null(zero_model_unit_name(model, -1));
    ck_assert_ptr_null(zero_model_unit_name(model, 1));
    zero_model_destroy(model);
}
END_TEST

START_TEST(any_name_makes_valid_json)
{
    char *text;
    size_t n_bytes;
    FILE *file = open_memstream(&text, &n_bytes);
    trace_file_begin(file);
    trace_file_name_rank(file, 0);
    trace_file_add(file, 0, ODD_NAME, &(trace_span_t){.row = ZERO_WORK_GATHER, .step = 1, .end_ms = 1.0});
    trace_file_end(file, 1, 1);
    fclose(file);
    read_trace_t read = read_trace(text);
    ck_assert_uint_eq(read.n_spans, 1);
    ck_assert_str_eq(read.spans[0].name, ODD_NAME);
    forget(&read);
    free(text);
}
END_TEST

START_TEST(no_path_means_no_trace)
{
    trace_t *none = open_here("");
    ck_assert_ptr_null(none);
    trace_host(none, TRACE_HOST, 1, 0.0, 1.0);
    close_here(none);
}
END_TEST

static Suite *suite(void)
{
    Suite *suite = suite_create("trace");
    TCase *runs = tcase_create("runs"), *failures = tcase_create("failures"), *own = tcase_create("spans of our own");
    TCase *all[] = {runs, failures, own};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        tcase_add_checked_fixture(all[i], set_up, NULL);
        tcase_set_timeout(all[i], 4 * RUN_LIMIT_S);
        suite_add_tcase(suite, all[i]);
    }
    tcase_add_loop_test(runs, two_ranks_trace_all_they_did_on_one_clock, 0, 4);
    tcase_add_test(runs, groups_gather_inside_and_renew_their_parts_once_a_step);
    tcase_add_test(runs, ranks_rows_and_units_have_their_names);
    tcase_add_test(runs, a_trace_changes_no_bit);
    tcase_add_test(runs, a_paced_run_has_a_host_span_for_each_part_of_a_step);
    tcase_add_test(failures, a_run_that_diverges_leaves_the_trace_of_all_ranks);
    tcase_add_test(failures, a_run_that_a_full_disk_stops_leaves_its_trace);
    tcase_add_test(failures, a_full_disk_is_named);
    tcase_add_test(own, too_many_spans_keep_the_last_steps_and_a_line_says_so);
    tcase_add_test(own, a_unit_has_the_name_it_was_declared_with);
    tcase_add_test(own, any_name_makes_valid_json);
    tcase_add_test(own, no_path_means_no_trace);
    return suite;
}

int main(void)
{
    return support_main(suite());
}
