/* state.c - calls of api_random on an engine between passes: its life, its state and tensors, memory, traces. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/mpi/api/calls.h"
#include "tests/mpi/settings.h"

/* ---- the engine's life ---- */

void create_engine(session_t *s)
{
    zero_config_t config = any_config();
    zero_engine_t *engine = NULL;
    bool is_bad = one_in(6);
    int how = s->device ? any(12) : 1;
    if (is_bad)
        spoil(&config);
    note(CALL_engine_create, "stage %d, dtype %d, micro_steps %d, way %d, bad %d", config.stage, (int)config.dtype,
         config.micro_steps, how, is_bad);
    zero_status_t status =
        zero_engine_create(how == 0 ? NULL : s->comm, how == 1 ? NULL : s->device, how == 2 ? NULL : s->declared.model,
                           how == 3 ? NULL : &config, how == 4 ? NULL : &engine);
    judge(CALL_engine_create, status,
          (how <= 4 ? MAY(ERROR_ARGUMENT) : 0) | (is_bad ? MAY(ERROR_USAGE) : 0) | (how > 4 && !is_bad ? MAY(OK) : 0));
    EXPECT((status == ZERO_OK) == (engine != NULL), "an output is set only on ZERO_OK");
    if (status != ZERO_OK)
        return;
    if (s->engine) { /* a second one, for a moment */
        zero_engine_destroy(engine);
        return;
    }
    s->engine = engine;
    s->config = config;
    s->created_with = config.micro_steps;
    s->in_pass = s->acquired = s->started = s->is_partial = s->traces = s->step_has_nan = false;
    s->micro_step = s->n_skipped_in_row = 0;
    s->n_steps = s->n_waited = s->adam_step = 0;
    s->notice = 0;
    zero_memory_t held = zero_engine_memory(engine);
    s->held_bytes = zero_memory_total(&held);
}

/* Allowed in any state. While a save is under way it logs a line, and takes effect when the save ends. */
void destroy_engine(session_t *s)
{
    record.n_error_lines = 0;
    zero_engine_destroy(s->engine);
    bool is_kept = s->engine && s->save && !s->saves_another;
    EXPECT(record.n_error_lines == (is_kept ? 1 : 0), "%d lines", record.n_error_lines);
    s->engine = NULL;
    s->saves_another |= is_kept;
}

/* ---- state ---- */

typedef struct visitor {
    const session_t *s;
    zero_status_t returns;
    bool with_moments;
    uint64_t n_calls, n_elems;
} visitor_t;

static zero_status_t visit(void *user, const zero_chunk_t *chunk)
{
    visitor_t *v = user;
    EXPECT(chunk->tensor >= 0 && chunk->tensor < v->s->declared.n_tensors, "tensor %d", chunk->tensor);
    EXPECT(chunk->n_elems > 0 && chunk->first + chunk->n_elems <= v->s->declared.n_elems[chunk->tensor], "elements");
    EXPECT((chunk->m != NULL) == v->with_moments && (chunk->v != NULL) == v->with_moments, "moments");
    v->n_calls++;
    v->n_elems += chunk->n_elems;
    return v->returns;
}

static zero_status_t fill(void *user, const zero_chunk_t *chunk)
{
    for (size_t i = 0; i < chunk->n_elems; i++) {
        chunk->master[i] = 0.25f + (float)(chunk->first + i) / 64.0f;
        if (chunk->m) {
            chunk->m[i] = 0.5f;
            chunk->v[i] = 0.125f;
        }
    }
    return visit(user, chunk);
}

/* All ranks together own every element once. */
static void expect_all_elements(const session_t *s, const visitor_t *v)
{
    double n = (double)v->n_elems;
    OK(zero_comm_sum(s->comm, &n, 1));
    EXPECT((uint64_t)n == zero_model_n_params(s->declared.model), "%.0f elements", n);
}

void set_state(session_t *s)
{
    bool is_null = one_in(10), has_no_fill = one_in(10), moments = one_in(2);
    visitor_t v = {.s = s, .returns = one_in(5) ? ZERO_ERROR_IO : ZERO_OK, .with_moments = moments};
    bool wrong_order = s->engine && (!between_steps(s) || (!moments && n_unwaited(s) > 0));
    statuses_t allowed = expected(is_null || !s->engine || has_no_fill, wrong_order);
    if (allowed == MAY(OK) && v.returns != ZERO_OK)
        allowed = MAY(ERROR_IO) | (record.n_ranks > 1 ? MAY(ERROR_PEER) : 0); /* a rank may own nothing */
    note(CALL_set_state, "moments %d, fill %d returns %d", moments, !has_no_fill, (int)v.returns);
    zero_status_t status = zero_set_state(is_null ? NULL : s->engine, moments, has_no_fill ? NULL : fill, &v);
    judge_as(CALL_set_state, status, allowed, v.returns != ZERO_OK);
    if (status == ZERO_ERROR_ARGUMENT || status == ZERO_ERROR_ORDER) {
        EXPECT(v.n_calls == 0, "fill was called");
        return;
    }
    s->is_partial = status != ZERO_OK;
    s->partial_was_told = false;
    if (status != ZERO_OK) {
        EXPECT((status == ZERO_ERROR_IO) == (v.n_calls > 0), "%llu calls", (unsigned long long)v.n_calls);
        return;
    }
    expect_all_elements(s, &v);
    if (!moments)
        s->adam_step = 0;
}

void get_state(session_t *s)
{
    bool is_null = one_in(10), has_no_visit = one_in(10);
    visitor_t v = {.s = s, .returns = one_in(5) ? ZERO_ERROR_USAGE : ZERO_OK, .with_moments = true};
    bool wrong_order = s->engine && (!between_steps(s) || s->is_partial);
    statuses_t allowed = expected(is_null || !s->engine || has_no_visit, wrong_order);
    if (allowed == MAY(OK) && v.returns != ZERO_OK)
        allowed = MAY(OK) | MAY(ERROR_USAGE);
    note(CALL_get_state, "visit %d returns %d", !has_no_visit, (int)v.returns);
    zero_status_t status = zero_get_state(is_null ? NULL : s->engine, has_no_visit ? NULL : visit, &v);
    judge_as(CALL_get_state, status, allowed, v.returns != ZERO_OK || s->is_partial);
    EXPECT((status != ZERO_ERROR_USAGE && v.returns != ZERO_OK) ? v.n_calls == 0 : true, "a failure went unnoticed");
    if (status == ZERO_OK && v.returns == ZERO_OK)
        expect_all_elements(s, &v);
}

#define MAX_ELEMS 1024 /* of a tensor: 5 to the power of ZERO_MAX_DIMS */

/* Whether a gradient may be read. */
static bool has_gradients(const session_t *s)
{
    return !s->in_pass && s->micro_step == s->config.micro_steps;
}

void get_tensor(session_t *s)
{
    static float data[MAX_ELEMS];
    int tensor = any(s->declared.n_tensors + 2) - 1, array = any(6) - 1, root = any(record.n_ranks + 3) - 2;
    bool is_null = !s->engine || one_in(20), has_no_data = one_in(10);
    bool is_mine = root == ZERO_ALL_RANKS || root == record.rank;
    bool wrong = is_null || tensor < 0 || tensor >= s->declared.n_tensors || array < 0 || array > ZERO_ARRAY_GRAD ||
                 root < ZERO_ALL_RANKS || root >= record.n_ranks;
    bool wrong_order =
        !is_null && (s->is_partial || (array == ZERO_ARRAY_GRAD ? !has_gradients(s) : !between_steps(s)));
    statuses_t allowed = expected(wrong || (has_no_data && is_mine), wrong_order);
    if (!wrong && !wrong_order && has_no_data && !is_mine)
        allowed = MAY(ERROR_PEER);
    note(CALL_get_tensor, "%s tensor %d, array %d, root %d, data %d", is_null ? "NULL" : "", tensor, array, root,
         !has_no_data);
    zero_status_t status =
        zero_get_tensor(is_null ? NULL : s->engine, tensor, (zero_array_t)array, root, has_no_data ? NULL : data);
    judge_as(CALL_get_tensor, status, allowed, s->is_partial);
    for (uint64_t i = 0; status == ZERO_OK && is_mine && array == ZERO_ARRAY_V && i < s->declared.n_elems[tensor]; i++)
        EXPECT(data[i] >= 0.0f, "a second moment of %g", (double)data[i]);
}

void set_tensor(session_t *s)
{
    static float data[MAX_ELEMS];
    int tensor = any(s->declared.n_tensors + 2) - 1, array = any(5) - 1, root = any(record.n_ranks + 3) - 2;
    bool is_null = !s->engine || one_in(20), has_no_data = one_in(10), is_nan = one_in(10);
    bool is_mine = root == ZERO_ALL_RANKS || root == record.rank;
    bool wrong = is_null || tensor < 0 || tensor >= s->declared.n_tensors || array < 0 || array > ZERO_ARRAY_V ||
                 root < ZERO_ALL_RANKS || root >= record.n_ranks;
    bool wrong_order = !is_null && (s->is_partial || !between_steps(s)), wrong_data = has_no_data || is_nan;
    statuses_t allowed = expected(wrong || (wrong_data && is_mine), wrong_order);
    if (!wrong && !wrong_order && wrong_data && !is_mine)
        allowed = MAY(ERROR_PEER);
    for (int i = 0; i < MAX_ELEMS; i++)
        data[i] = is_nan ? NAN : 0.25f + (float)i / 64.0f;
    note(CALL_set_tensor, "%s tensor %d, array %d, root %d, data %d, nan %d", is_null ? "NULL" : "", tensor, array,
         root, !has_no_data, is_nan);
    zero_status_t status =
        zero_set_tensor(is_null ? NULL : s->engine, tensor, (zero_array_t)array, root, has_no_data ? NULL : data);
    judge_as(CALL_set_tensor, status, allowed, s->is_partial);
}

void init_parameters(session_t *s)
{
    bool is_null = one_in(10), wrong_order = s->engine && (!between_steps(s) || n_unwaited(s) > 0);
    note(CALL_init_parameters, "%s", is_null ? "NULL" : "");
    if (judge(CALL_init_parameters, zero_init_parameters(is_null ? NULL : s->engine),
              expected(is_null || !s->engine, wrong_order)) != ZERO_OK)
        return;
    s->is_partial = false;
    s->adam_step = 0;
}

void set_adam_step(session_t *s)
{
    bool is_null = one_in(10), wrong_order = s->engine && (!between_steps(s) || n_unwaited(s) > 0);
    uint64_t t = (uint64_t)any(1000);
    note(CALL_set_adam_step, "%llu", (unsigned long long)t);
    if (judge(CALL_set_adam_step, zero_set_adam_step(is_null ? NULL : s->engine, t),
              expected(is_null || !s->engine, wrong_order)) == ZERO_OK)
        s->adam_step = t;
}

/* Loads weights from the session's latest checkpoint, whose files are in Hugging Face's layout. */
void load_weights(session_t *s)
{
    char path[128];
    int how = any(4);
    bool is_null = one_in(10), wrong_order = s->engine && (!between_steps(s) || n_unwaited(s) > 0);
    bool is_there = s->has_saved && how >= 2;
    snprintf(path, sizeof path, "%s/latest", is_there ? s->directory : "/nowhere");
    statuses_t allowed = expected(is_null || !s->engine || how == 0, wrong_order);
    if (!is_null && s->engine && how > 0 && !is_there)
        allowed = MAY(ERROR_IO) | (wrong_order ? MAY(ERROR_ORDER) : 0);
    note(CALL_load_weights, "%s, way %d", path, how);
    zero_status_t status = zero_load_weights(is_null ? NULL : s->engine, how == 0 ? NULL : path);
    if (judge(CALL_load_weights, status, allowed) != ZERO_OK)
        return;
    s->is_partial = false;
    s->adam_step = 0;
}

/* ---- memory, traces, values ---- */

void alloc(session_t *s)
{
    void *data = &data;
    int category = any(ZERO_MEMORY_N_CATEGORIES + 2) - 1, how = any(12), n_units = s->declared.n_units;
    bool activations = one_in(2), is_null = !s->engine || how == 0, too_much = how == 2;
    zero_unit_t first = any(n_units + 1) - one_in(8), last = any(n_units + 1);
    size_t n_bytes = too_much ? (size_t)1 << 60 : (size_t)any(5000);
    bool wrong = is_null || how == 1 ||
                 (activations ? first < 0 || first >= n_units || last >= n_units
                              : category < 0 || category >= ZERO_MEMORY_N_CATEGORIES);
    bool wrong_order = !is_null && s->started;
    statuses_t allowed = expected(wrong, wrong_order);
    if (too_much && allowed == MAY(OK))
        allowed = MAY(ERROR_MEMORY);
    call_t call = activations ? CALL_alloc_activations : CALL_alloc;
    zero_engine_t *engine = is_null ? NULL : s->engine;
    void **out = how == 1 ? NULL : &data;
    note(call, "%d, %d to %d, %zu bytes, way %d", category, first, last, n_bytes, how);
    zero_status_t status = activations ? zero_alloc_activations(engine, first, last, n_bytes, out)
                                       : zero_alloc(engine, (zero_memory_category_t)category, n_bytes, out);
    if (judge(call, status, allowed) != ZERO_OK) {
        EXPECT(data == (void *)&data, "an output was set");
        return;
    }
    s->held_bytes += n_bytes;
    for (size_t i = 0; i < n_bytes; i++)
        EXPECT(((unsigned char *)data)[i] == 0, "byte %zu", i);
    if (n_bytes > 0)
        memset(data, 0xff, n_bytes);
}

static void take_span(void *user, const zero_trace_span_t *span)
{
    const session_t *s = user;
    EXPECT((unsigned)span->work < ZERO_N_WORKS && span->unit >= -1 && span->unit < s->declared.n_units, "a span");
    EXPECT(span->end_ms >= span->begin_ms && span->step <= s->n_steps + 1, "a span's time");
}

void trace(session_t *s)
{
    bool is_null = !s->engine || one_in(10), has_fn = !one_in(3), odd_works = one_in(10);
    unsigned works = (unsigned)any(ZERO_ALL_WORKS + 1) | (odd_works ? 1u << ZERO_N_WORKS : 0);
    bool wrong_order = !is_null && s->started;
    note(CALL_engine_trace, "works 0x%x, fn %d", works, has_fn);
    zero_status_t status = zero_engine_trace(is_null ? NULL : s->engine, works, has_fn ? take_span : NULL, s);
    judge(CALL_engine_trace, status, expected(is_null || odd_works || (works != 0 && !has_fn), wrong_order));
}

void check_values(session_t *s)
{
    EXPECT(zero_comm_rank(s->comm) == record.rank && zero_comm_size(s->comm) == record.n_ranks, "rank or size");
    if (!s->engine)
        return;
    if (one_in(3)) {
        s->notice = (uint32_t)any(100);
        zero_set_notice(s->engine, s->notice);
    }
    zero_memory_t held = zero_engine_memory(s->engine);
    EXPECT(zero_memory_total(&held) == s->held_bytes, "%llu bytes are held",
           (unsigned long long)zero_memory_total(&held));
    EXPECT(zero_get_adam_step(s->engine) == s->adam_step, "AdamW's t is %llu",
           (unsigned long long)zero_get_adam_step(s->engine));
    EXPECT(zero_engine_transport(s->engine)[0], "no transport");
    EXPECT(zero_loss_scale(s->engine), "no loss scale");
    EXPECT(s->config.dtype == ZERO_FP16 || *zero_loss_scale(s->engine) == 1.0f, "a loss scale");
    check_pointers(s);
}
