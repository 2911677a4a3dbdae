/* kernels.c - the CPU's kernels, queued in the streams of the asynchronous device. Those that only set-up and saves
 * call wait for the device instead, as on GPUs. */
#include <string.h>
#include <unistd.h>

#include "tests/mpi/expect.h"
#include "tests/support/async/async.h"

#define MAX_RANKS 16

static void queue_kernel(zero_stream_t stream, void (*run)(void *args), const void *args, size_t n_bytes)
{
    async_count(ASYNC_KERNEL, 1);
    async_queue(stream, run, args, n_bytes);
}

/* The kernels of the optimizers, which take the same. */
#define OPTIMIZER(name)                                                                                                \
    static void do_##name(void *args)                                                                                  \
    {                                                                                                                  \
        OK(async_cpu_kernels()->name(args, NULL));                                                                     \
    }                                                                                                                  \
    static zero_status_t name(const zero_adam_t *args, zero_stream_t stream)                                           \
    {                                                                                                                  \
        queue_kernel(stream, do_##name, args, sizeof *args);                                                           \
        return ZERO_OK;                                                                                                \
    }
OPTIMIZER(adam)
OPTIMIZER(sgd)
OPTIMIZER(nesterov)
OPTIMIZER(lion)
OPTIMIZER(adam8)

typedef struct sum_task {
    zero_sum_t sum;
    const void *slices[MAX_RANKS];
} sum_task_t;

static void do_sum_slices(void *args)
{
    sum_task_t *t = args;
    if (async_options()->fault == ASYNC_STAGING_BEFORE_SUM)
        usleep(3000); /* work that does not wait for it comes first */
    t->sum.slices = t->slices;
    OK(async_cpu_kernels()->sum_slices(&t->sum, NULL));
}

static zero_status_t sum_slices(const zero_sum_t *sum, zero_stream_t stream)
{
    sum_task_t t = {.sum = *sum};
    CHECK(sum->n_slices <= MAX_RANKS, "%d ranks", sum->n_slices);
    memcpy(t.slices, sum->slices, (size_t)sum->n_slices * sizeof *sum->slices);
    queue_kernel(stream, do_sum_slices, &t, sizeof t);
    async_mark_end(stream, ASYNC_ENDS_IN_SUM);
    return ZERO_OK;
}

typedef struct contribute_task {
    zero_norm_t *norm;
    zero_agreed_t agreed;
    zero_contribution_t *mine;
} contribute_task_t;

static void do_contribute(void *args)
{
    contribute_task_t *t = args;
    OK(async_cpu_kernels()->contribute(t->norm, &t->agreed, t->mine, NULL));
}

static zero_status_t contribute(zero_norm_t *norm, const zero_agreed_t *agreed, zero_contribution_t *mine,
                                zero_stream_t stream)
{
    contribute_task_t t = {norm, *agreed, mine};
    queue_kernel(stream, do_contribute, &t, sizeof t);
    return ZERO_OK;
}

typedef struct poison_task {
    void *data;
    zero_dtype_t dtype;
    size_t n_elems;
    uint64_t *n_found; /* NULL: it is to be written */
} poison_task_t;

static void do_poison(void *args)
{
    poison_task_t *t = args;
    if (t->n_found)
        OK(async_cpu_kernels()->count_poison(t->data, t->dtype, t->n_elems, t->n_found, NULL));
    else
        OK(async_cpu_kernels()->poison(t->data, t->dtype, t->n_elems, NULL));
}

static zero_status_t poison(void *data, zero_dtype_t dtype, size_t n_elems, zero_stream_t stream)
{
    queue_kernel(stream, do_poison, &(poison_task_t){data, dtype, n_elems, NULL}, sizeof(poison_task_t));
    return ZERO_OK;
}

static zero_status_t count_poison(const void *data, zero_dtype_t dtype, size_t n_elems, uint64_t *n_found,
                                  zero_stream_t stream)
{
    queue_kernel(stream, do_poison, &(poison_task_t){(void *)data, dtype, n_elems, n_found}, sizeof(poison_task_t));
    return ZERO_OK;
}

typedef struct fp8_task {
    zero_fp8_parts_t parts;
    uint32_t *maxima;
    const uint32_t *absmaxes;
    zero_fp8_scales_t *scales;
    int n_ranks;
    uint32_t n_matrices;
} fp8_task_t;

static void do_fp8_absmax(void *args)
{
    fp8_task_t *t = args;
    OK(async_cpu_kernels()->fp8_absmax(&t->parts, t->maxima, NULL));
}

static zero_status_t fp8_absmax(const zero_fp8_parts_t *parts, uint32_t *absmaxes, zero_stream_t stream)
{
    queue_kernel(stream, do_fp8_absmax, &(fp8_task_t){.parts = *parts, .maxima = absmaxes}, sizeof(fp8_task_t));
    return ZERO_OK;
}

static void do_fp8_scale(void *args)
{
    fp8_task_t *t = args;
    OK(async_cpu_kernels()->fp8_scale(t->scales, t->absmaxes, t->n_ranks, t->n_matrices, NULL));
}

static zero_status_t fp8_scale(zero_fp8_scales_t *scales, const uint32_t *absmaxes, int n_ranks, uint32_t n_matrices,
                               zero_stream_t stream)
{
    fp8_task_t t = {.scales = scales, .absmaxes = absmaxes, .n_ranks = n_ranks, .n_matrices = n_matrices};
    queue_kernel(stream, do_fp8_scale, &t, sizeof t);
    return ZERO_OK;
}

static void do_fp8_cast(void *args)
{
    fp8_task_t *t = args;
    OK(async_cpu_kernels()->fp8_cast(&t->parts, t->scales, NULL));
}

static zero_status_t fp8_cast(const zero_fp8_parts_t *parts, const zero_fp8_scales_t *scales, zero_stream_t stream)
{
    fp8_task_t t = {.parts = *parts, .scales = (zero_fp8_scales_t *)scales};
    queue_kernel(stream, do_fp8_cast, &t, sizeof t);
    return ZERO_OK;
}

typedef struct decide_task {
    zero_step_rules_t rules;
    float lr;
    const zero_contribution_t *contributions;
    int n_ranks;
    zero_step_state_t *state;
    zero_adam_scalars_t *scalars;
    zero_step_outcome_t *outcome;
} decide_task_t;

static void do_decide_step(void *args)
{
    decide_task_t *t = args;
    OK(async_cpu_kernels()->decide_step(&t->rules, t->lr, t->contributions, t->n_ranks, t->state, t->scalars,
                                        t->outcome, NULL));
}

static zero_status_t decide_step(const zero_step_rules_t *rules, float lr, const zero_contribution_t *contributions,
                                 int n_ranks, zero_step_state_t *state, zero_adam_scalars_t *scalars,
                                 zero_step_outcome_t *outcome, zero_stream_t stream)
{
    decide_task_t t = {*rules, lr, contributions, n_ranks, state, scalars, outcome};
    queue_kernel(stream, do_decide_step, &t, sizeof t);
    return ZERO_OK;
}

typedef struct decide_unit_task {
    zero_step_rules_t rules;
    float lr;
    const uint64_t *nonfinite;
    size_t stride;
    int n_ranks;
    uint32_t unit;
    zero_step_state_t *state;
    zero_adam_scalars_t *scalars;
} decide_unit_task_t;

/* A kernel that still reads what is about to be written would use NaN. */
static void spoil(void *written, size_t n_bytes)
{
    memset(written, 0xff, n_bytes);
    usleep(async_options()->max_delay_us);
}

static void do_decide_unit(void *args)
{
    decide_unit_task_t *t = args;
    spoil(t->scalars, sizeof *t->scalars);
    OK(async_cpu_kernels()->decide_unit(&t->rules, t->lr, t->nonfinite, t->stride, t->n_ranks, t->unit, t->state,
                                        t->scalars, NULL));
}

static zero_status_t decide_unit(const zero_step_rules_t *rules, float lr, const uint64_t *nonfinite, size_t stride,
                                 int n_ranks, uint32_t unit, zero_step_state_t *state, zero_adam_scalars_t *scalars,
                                 zero_stream_t stream)
{
    decide_unit_task_t t = {*rules, lr, nonfinite, stride, n_ranks, unit, state, scalars};
    queue_kernel(stream, do_decide_unit, &t, sizeof t);
    return ZERO_OK;
}

typedef struct tensor_scalars_task {
    const zero_tensor_rules_t *rules;
    size_t n_tensors;
    const zero_adam_scalars_t *scalars;
    zero_tensor_scalars_t *by_tensor;
} tensor_scalars_task_t;

static void do_tensor_scalars(void *args)
{
    tensor_scalars_task_t *t = args;
    spoil(t->by_tensor, t->n_tensors * sizeof *t->by_tensor);
    OK(async_cpu_kernels()->tensor_scalars(t->rules, t->n_tensors, t->scalars, t->by_tensor, NULL));
}

static zero_status_t tensor_scalars(const zero_tensor_rules_t *rules, size_t n_tensors,
                                    const zero_adam_scalars_t *scalars, zero_tensor_scalars_t *by_tensor,
                                    zero_stream_t stream)
{
    tensor_scalars_task_t t = {rules, n_tensors, scalars, by_tensor};
    queue_kernel(stream, do_tensor_scalars, &t, sizeof t);
    return ZERO_OK;
}

/* What libzero calls outside steps alone, between synchronizations, is done at once: cast, split_master, join_master,
 * fill_normal. It may read what was queued before. */
static zero_status_t split_master(void *param, void *low, zero_dtype_t param_dtype, const float *master, size_t n_elems,
                                  zero_stream_t stream)
{
    (void)stream;
    async_finish();
    return async_cpu_kernels()->split_master(param, low, param_dtype, master, n_elems, NULL);
}

static zero_status_t cast(void *dst, zero_dtype_t dst_dtype, const void *src, zero_dtype_t src_dtype, size_t n_elems,
                          zero_stream_t stream)
{
    (void)stream;
    async_finish();
    return async_cpu_kernels()->cast(dst, dst_dtype, src, src_dtype, n_elems, NULL);
}

static zero_status_t join_master(float *master, const void *param, const void *low, zero_dtype_t param_dtype,
                                 size_t n_elems, zero_stream_t stream)
{
    (void)stream;
    async_finish();
    return async_cpu_kernels()->join_master(master, param, low, param_dtype, n_elems, NULL);
}

static zero_status_t fill_normal(float *dst, size_t n_elems, uint64_t seed, uint64_t key, uint64_t first, float std,
                                 zero_stream_t stream)
{
    (void)stream;
    async_finish();
    return async_cpu_kernels()->fill_normal(dst, n_elems, seed, key, first, std, NULL);
}

void async_kernels_fill(zero_shard_kernels_t *kernels)
{
    kernels->adam = adam;
    kernels->sgd = sgd;
    kernels->nesterov = nesterov;
    kernels->lion = lion;
    kernels->adam8 = adam8;
    kernels->sum_slices = sum_slices;
    kernels->contribute = contribute;
    kernels->decide_step = decide_step;
    kernels->decide_unit = decide_unit;
    kernels->tensor_scalars = tensor_scalars;
    kernels->fp8_absmax = fp8_absmax;
    kernels->fp8_scale = fp8_scale;
    kernels->fp8_cast = fp8_cast;
    kernels->poison = poison;
    kernels->count_poison = count_poison;
    kernels->split_master = split_master;
    kernels->join_master = join_master;
    kernels->cast = cast;
    kernels->fill_normal = fill_normal;
}
