/* passes.c - calls of api_random in passes and steps. */
#include <math.h>
#include <string.h>

#include "tests/mpi/api/calls.h"
#include "tests/support/elements.h"

/* ---- passes ---- */

void begin(session_t *s, int pass)
{
    bool is_null = !s->engine || one_in(50), wrong_pass = pass > 1;
    bool wrong_order =
        s->engine && (s->in_pass || s->is_partial || (pass == 0 && s->micro_step == s->config.micro_steps) ||
                      (pass == 1 && s->micro_step != 0));
    bool quiet = s->is_partial && s->partial_was_told;
    note(CALL_begin, "%s pass %d", is_null ? "NULL" : "", pass);
    zero_status_t status = zero_begin(is_null ? NULL : s->engine, (zero_pass_t)pass, NULL);
    if (is_null)
        wrong_order = false;
    judge_as(CALL_begin, status, expected(is_null || wrong_pass, wrong_order), quiet || s->is_partial);
    if (status != ZERO_OK)
        return;
    s->in_pass = s->started = true;
    s->is_eval = pass == 1;
    s->position = 0;
    s->acquired = false;
}

/* Checks that exactly the tensors that the unit may use are there. */
void check_pointers(const session_t *s)
{
    const declared_t *d = &s->declared;
    for (int t = -1; t <= d->n_tensors; t++) {
        bool exists = t >= 0 && t < d->n_tensors, in_use = exists && s->acquired && d->uses[unit_now(s)][d->owner[t]];
        bool is_read =
            in_use && !(is_backward(s) && d->owner[t] == unit_now(s) && d->is_sharded_in_backward[unit_now(s)]);
        bool is_gathered_in_fp8 = exists && d->in_fp8[t] && s->config.gather_fp8;
        EXPECT((zero_param(s->engine, t) != NULL) == (is_read && !is_gathered_in_fp8), "parameter of tensor %d", t);
        EXPECT((zero_param_fp8(s->engine, t).data != NULL) == (is_read && is_gathered_in_fp8),
               "parameter of tensor %d in fp8", t);
        EXPECT((zero_grad(s->engine, t).data != NULL) == (in_use && is_backward(s) && unit_now(s) <= d->last_user[t]),
               "gradient of tensor %d", t);
    }
}

/* Small finite numbers, or one NaN, into every gradient of the unit. */
static void write_grads(session_t *s)
{
    const declared_t *d = &s->declared;
    bool has_nan = one_in(30);
    for (int t = 0; t < d->n_tensors; t++) {
        zero_grad_t grad = zero_grad(s->engine, t);
        for (uint64_t i = 0; grad.data && i < d->n_elems[t]; i++) {
            float x = (float)((i + (uint64_t)t) % 7) / 64.0f - 0.03125f;
            if (grad.accumulate)
                x += element_load(grad.data, grad.dtype, i);
            element_store(grad.data, grad.dtype, i, has_nan && i == 0 ? NAN : x);
            s->step_has_nan |= has_nan && i == 0;
        }
    }
}

void acquire(session_t *s, zero_unit_t unit)
{
    bool is_null = !s->engine || one_in(50), wrong_unit = unit < 0 || unit >= s->declared.n_units;
    bool wrong_order = !is_null && (!s->in_pass || s->acquired || unit != unit_now(s));
    note(CALL_acquire, "%s unit %d", is_null ? "NULL" : "", unit);
    zero_status_t status = zero_acquire(is_null ? NULL : s->engine, unit, NULL);
    if (judge(CALL_acquire, status, expected(is_null || wrong_unit, wrong_order)) != ZERO_OK)
        return;
    s->acquired = true;
    check_pointers(s);
    if (is_backward(s))
        write_grads(s);
}

void leave(session_t *s, zero_unit_t unit, bool grad_ready)
{
    call_t call = grad_ready ? CALL_grad_ready : CALL_release;
    bool is_null = !s->engine || one_in(50), wrong_unit = unit < 0 || unit >= s->declared.n_units;
    bool wrong_order = !is_null && (!s->in_pass || !s->acquired || unit != unit_now(s) || is_backward(s) != grad_ready);
    note(call, "%s unit %d", is_null ? "NULL" : "", unit);
    zero_engine_t *engine = is_null ? NULL : s->engine;
    zero_status_t status = grad_ready ? zero_grad_ready(engine, unit, NULL) : zero_release(engine, unit, NULL);
    if (judge(call, status, expected(is_null || wrong_unit, wrong_order)) != ZERO_OK)
        return;
    s->acquired = false;
    s->position++;
    s->in_pass = s->position < (s->is_eval ? 1 : 2) * s->declared.n_units;
    if (!s->in_pass && !s->is_eval)
        s->micro_step++;
    if (s->in_pass)
        check_pointers(s);
}

/* ---- steps ---- */

void step(session_t *s)
{
    bool is_null = !s->engine || one_in(50), wrong_lr = one_in(10);
    bool wrong_order = !is_null && (s->in_pass || s->micro_step != s->config.micro_steps || n_unwaited(s) == 2);
    double loss = 0.5;
    float lr = !wrong_lr ? 0.001f : one_in(2) ? NAN : -INFINITY;
    note(CALL_step, "%s lr %g", is_null ? "NULL" : "", (double)lr);
    zero_status_t status = zero_step(is_null ? NULL : s->engine, lr, one_in(2) ? &loss : NULL, NULL);
    if (judge(CALL_step, status, expected(is_null || wrong_lr, wrong_order)) != ZERO_OK)
        return;
    s->n_steps++;
    s->steps[s->n_steps % 4].skipped = s->step_has_nan;
    s->steps[s->n_steps % 4].notice = s->notice;
    s->step_has_nan = false;
    s->micro_step = 0;
}

void step_wait(session_t *s)
{
    zero_step_result_t result = {.step = UINT64_MAX};
    bool is_null = !s->engine || one_in(50), has_no_result = one_in(20);
    bool wrong_order = !is_null && n_unwaited(s) == 0, skipped = false;
    statuses_t allowed = expected(is_null || has_no_result, wrong_order);
    if (allowed == MAY(OK)) {
        skipped = s->steps[(s->n_waited + 1) % 4].skipped;
        if (skipped && s->n_skipped_in_row + 1 >= s->config.max_skipped_steps)
            allowed = MAY(ERROR_NONFINITE);
    }
    note(CALL_step_wait, "%s result %d", is_null ? "NULL" : "", !has_no_result);
    zero_status_t status = zero_step_wait(is_null ? NULL : s->engine, has_no_result ? NULL : &result);
    judge(CALL_step_wait, status, allowed);
    if (status != ZERO_OK && status != ZERO_ERROR_NONFINITE) {
        EXPECT(result.step == UINT64_MAX, "an output was set");
        return;
    }
    s->n_waited++;
    s->n_skipped_in_row = skipped ? s->n_skipped_in_row + 1 : 0;
    s->adam_step += !skipped;
    EXPECT(result.step == s->n_waited && result.skipped == skipped, "step %llu, skipped %d",
           (unsigned long long)result.step, result.skipped);
    EXPECT(result.notice == s->steps[s->n_waited % 4].notice, "notice %u", result.notice);
    EXPECT(skipped ? !isfinite(result.grad_norm) : isfinite(result.grad_norm), "norm %g", (double)result.grad_norm);
}

void set_micro_steps(session_t *s)
{
    int n = any(6) - 1;
    bool is_null = !s->engine || one_in(20), wrong_order = !is_null && !between_steps(s);
    statuses_t allowed = expected(is_null || n < 1, wrong_order);
    if (allowed == MAY(OK) && n > 1 && s->created_with == 1)
        allowed = MAY(ERROR_USAGE);
    note(CALL_set_micro_steps, "%s %d", is_null ? "NULL" : "", n);
    zero_status_t status = zero_set_micro_steps(is_null ? NULL : s->engine, n);
    if (judge(CALL_set_micro_steps, status, allowed) == ZERO_OK)
        s->config.micro_steps = n;
}

/* Sets a tensor's learning rate, good or bad, or takes its settings back, and reads them. */
void set_group(session_t *s)
{
    zero_tensor_t tensor = any(s->declared.n_tensors + 2) - 1;
    zero_group_t group = {.beta1 = 0.5f, .beta2 = 0.75f, .eps = 1e-6f, .momentum = 0.5f}, got = {0};
    bool is_null = !s->engine || one_in(20), resets = one_in(3), wrong_order = !is_null && !between_steps(s);
    bool wrong = is_null || tensor < 0 || tensor >= s->declared.n_tensors;
    group.lr_scale = one_in(6) ? -0.5f : 0.25f * (float)any(5);
    bool is_bad = !resets && group.lr_scale < 0.0f;
    note(CALL_set_group, "%s %d %g", is_null ? "NULL" : "", tensor, (double)group.lr_scale);
    zero_status_t status = zero_set_group(is_null ? NULL : s->engine, tensor, resets ? NULL : &group);
    judge(CALL_set_group, status, expected(wrong || is_bad, wrong_order));
    note(CALL_get_group, "%s %d", is_null ? "NULL" : "", tensor);
    zero_status_t read = zero_get_group(is_null ? NULL : s->engine, tensor, &got);
    if (judge(CALL_get_group, read, expected(wrong, false)) == ZERO_OK && status == ZERO_OK)
        EXPECT(resets ? got.lr_scale == 1.0f : memcmp(&got, &group, sizeof got) == 0, "lr_scale %g",
               (double)got.lr_scale);
}

/* Allowed in any state. */
void cancel(session_t *s)
{
    bool is_null = !s->engine || one_in(10);
    note(CALL_cancel, "%s", is_null ? "NULL" : "");
    if (judge(CALL_cancel, zero_cancel(is_null ? NULL : s->engine), expected(is_null, false)) != ZERO_OK)
        return;
    s->in_pass = s->acquired = s->step_has_nan = false;
    s->micro_step = 0;
}
