/* passes.c - the passes of stream_cases: every unit acquired, computed and released, or a pass that is cancelled on its
 * way. */
#include "tests/mpi/settings.h"
#include "tests/mpi/stream/cases.h"
#include "tests/support/async/async_device.h"
#include "tests/support/support.h"

static void use_unit(run_t *run, zero_unit_t unit, int64_t step, int micro_step, bool is_backward, uint64_t *hash)
{
    const toy_t *toy = &run->toy;
    compute_t c = {.n_uses = toy->n_of_unit[unit],
                   .rank = zero_comm_rank(run->comm),
                   .dtype = run->s->dtype,
                   .is_backward = is_backward,
                   .step = step,
                   .loss = run->loss,
                   .loss_scale = zero_loss_scale(run->engine),
                   .hash = hash,
                   .kept = run->kept[unit],
                   .n_kept = (size_t)run->s->activations,
                   .kept_key = (int)step * 64 + micro_step * 8 + unit};
    c.pause_us = run->s->is_async ? (unsigned)(support_uniform(&run->seed) * run->s->delay_us) : 0;
    c.makes_nan = is_backward && step == run->s->nan_at && micro_step == 0 && unit == 3 && c.rank == 0;
    bool is_lookup = is_backward && unit == 0;
    for (int i = 0; i < c.n_uses; i++) {
        zero_tensor_t tensor = toy->of_unit[unit][i];
        bool is_gathered = toy->in_fp8[tensor] && !toy->frozen[tensor] && run->s->fp8 == FP8;
        use_t use = {.fp8 = zero_param_fp8(run->engine, tensor),
                     .param = is_gathered ? NULL : zero_param(run->engine, tensor),
                     .n_elems = toy->n_elems[tensor]};
        CHECK(is_read(&use) == (run->s->unshard || !is_lookup), "tensor %d is at %p", tensor, use.param);
        if (is_lookup && run->s->lookup)
            use = (use_t){.n_elems = use.n_elems};
        use.scale = toy->in_fp8[tensor] && use.param ? 1.0 : 0.0;
        if (is_backward)
            use.grad = zero_grad(run->engine, tensor);
        CHECK(!is_backward || !use.grad.data == toy->frozen[tensor], "the gradient of tensor %d", tensor);
        c.uses[i] = use;
    }
    queue(run, compute, &c, sizeof c);
}

/* Of what stage 3 acquired each flat was gathered for it, or was there still. */
static void check_stats(run_t *run)
{
    zero_stats_t stats = zero_engine_stats(run->engine);
    /* What was gathered for a cancelled pass, or before other weights were set, is not acquired. */
    if (run->s->stage == 3 && zero_comm_size(run->comm) > 1 && !run->s->cancels && !run->s->asks)
        CHECK(stats.n_gathers + stats.n_gathers_avoided == run->n_acquired, "%llu gathers, %llu avoided, %llu acquired",
              (unsigned long long)stats.n_gathers, (unsigned long long)stats.n_gathers_avoided,
              (unsigned long long)run->n_acquired);
    if (run->n_passes++ == 0 && run->s->gathers > 0)
        CHECK(stats.n_gathers == (uint64_t)run->s->gathers, "%llu gathers", (unsigned long long)stats.n_gathers);
}

static void acquire(run_t *run, zero_unit_t unit, bool is_backward)
{
    OK(zero_acquire(run->engine, unit, run->stream));
    bool has_own = unit > 0 || !is_backward || run->s->unshard,
         shares = unit == run->toy.n_units - 1 && !run->s->untied;
    run->n_acquired += (uint64_t)has_own + shares;
}

/* Acquires a unit and computes it. In a pass without backward, what it keeps is not kept. */
static void compute_unit(run_t *run, zero_pass_t kind, zero_unit_t unit, int64_t step, int micro_step, bool is_backward,
                         uint64_t *hash)
{
    zero_stash_t *stash = kind == ZERO_PASS_TRAIN ? run->stash : NULL;
    if (stash)
        OK((is_backward ? zero_stash_begin_read : zero_stash_begin_write)(stash, unit, run->stream));
    acquire(run, unit, is_backward);
    use_unit(run, unit, step, micro_step, is_backward, hash);
    if (stash)
        OK((is_backward ? zero_stash_end_read : zero_stash_end_write)(stash, unit, run->stream));
}

void pass(run_t *run, zero_pass_t kind, int64_t step, int micro_step, uint64_t *hash)
{
    OK(zero_begin(run->engine, kind, run->stream));
    for (zero_unit_t u = 0; u < run->toy.n_units; u++) {
        compute_unit(run, kind, u, step, micro_step, false, hash);
        OK(zero_release(run->engine, u, run->stream));
    }
    for (zero_unit_t u = run->toy.n_units - 1; u >= 0 && kind == ZERO_PASS_TRAIN; u--) {
        compute_unit(run, kind, u, step, micro_step, true, NULL);
        OK(zero_grad_ready(run->engine, u, run->stream));
    }
    check_stats(run);
}

/* Makes the first n_calls of a pass, of two for each position. */
static void begin_pass(run_t *run, zero_pass_t kind, int64_t step, int micro_step, int n_calls)
{
    const int n_units = run->toy.n_units;
    OK(zero_begin(run->engine, kind, run->stream));
    for (int call = 0; call < n_calls; call++) {
        const int position = call / 2;
        const bool is_backward = position >= n_units;
        zero_unit_t unit = is_backward ? 2 * n_units - 1 - position : position;
        if (call % 2 == 0) {
            compute_unit(run, kind, unit, step, micro_step, is_backward, NULL);
        } else {
            OK(is_backward ? zero_grad_ready(run->engine, unit, run->stream)
                           : zero_release(run->engine, unit, run->stream));
        }
    }
}

/* Begins a step, or an evaluation, with gradients that are not the step's, and cancels it: at another place for every
 * step, over many steps in each part of the last micro-step. */
void cancel(run_t *run, int64_t step)
{
    const bool is_eval = step % 5 == 4;
    const int n_calls = (is_eval ? 2 : 4) * run->toy.n_units, n_before = is_eval ? 0 : (int)step % run->s->micro_steps;
    for (int k = 0; k < n_before; k++)
        pass(run, ZERO_PASS_TRAIN, step + 500, k, NULL);
    begin_pass(run, is_eval ? ZERO_PASS_EVAL : ZERO_PASS_TRAIN, step + 500, n_before, (int)(step * 11 % (n_calls + 1)));
    OK(zero_cancel(run->engine));
    CHECK(!zero_param(run->engine, 0) && !zero_grad(run->engine, 0).data, "a unit is still acquired");
}
