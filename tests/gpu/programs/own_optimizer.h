/* own_optimizer.h - optimizers as a caller of libzero would write them, for test_own_optimizer.c: one element as a
 * function that CPUs and GPUs share, and what launches it over a run of elements on a GPU.
 *
 * Written from the formulas of zero_step's comment, with fmaf where libzero has it, so that AdamW and momentum can be
 * compared with libzero's own to the bit. fmaf, +, *, / and sqrt have the same bits on a CPU and a GPU.
 */
#ifndef OWN_OPTIMIZER_H
#define OWN_OPTIMIZER_H

#include <math.h>

#include "zero.h"

#ifdef __CUDACC__
#define OWN_FN static inline __host__ __device__
#else
#define OWN_FN static inline
#endif

/* rows: momentum, of which each row of a hidden matrix is normalized. */
typedef enum own_kind { OWN_ADAMW, OWN_MOMENTUM, OWN_ROWS } own_kind_t;
#define OWN_KINDS "adamw momentum rows"

typedef struct own_rates {
    own_kind_t kind;
    float beta1, beta2, eps, momentum;
} own_rates_t;

/* What the elements of a run have in common. */
typedef struct own_run {
    float lr, decay, grad_scale, inv_bias1, inv_sqrt_bias2;
} own_run_t;

OWN_FN double own_power(double base, uint64_t n)
{
    double power = 1.0;
    for (uint64_t i = 0; i < n; i++)
        power *= base;
    return power;
}

OWN_FN own_run_t own_run_of(const own_rates_t *rates, const zero_own_update_t *update)
{
    own_run_t run = {update->lr, update->decay, *update->grad_scale, 0.0f, 0.0f};
    run.inv_bias1 = (float)(1.0 / (1.0 - own_power((double)rates->beta1, *update->step)));
    run.inv_sqrt_bias2 = (float)(1.0 / sqrt(1.0 - own_power((double)rates->beta2, *update->step)));
    return run;
}

OWN_FN void own_update_adamw(const own_rates_t *rates, const own_run_t *run, const zero_own_update_t *update, size_t i)
{
    const float g = update->grad[i] * run->grad_scale, w = update->weight[i];
    const float m = fmaf(rates->beta1, update->m[i], (1.0f - rates->beta1) * g);
    const float v = fmaf(rates->beta2, update->v[i], (1.0f - rates->beta2) * (g * g));
    const float divisor = fmaf(sqrtf(v), run->inv_sqrt_bias2, rates->eps);
    update->m[i] = m;
    update->v[i] = v;
    update->weight[i] = fmaf(-run->lr, (m * run->inv_bias1) / divisor, fmaf(-(run->lr * run->decay), w, w));
}

OWN_FN void own_update_momentum(const own_rates_t *rates, const own_run_t *run, const zero_own_update_t *update,
                                size_t i)
{
    const float g = fmaf(run->decay, update->weight[i], update->grad[i] * run->grad_scale);
    update->m[i] = fmaf(rates->momentum, update->m[i], g);
    update->weight[i] = fmaf(-run->lr, update->m[i], update->weight[i]);
}

/* What `prepare` does of a hidden matrix. */
OWN_FN void own_prepare_element(const own_rates_t *rates, const own_run_t *run, const zero_own_update_t *update,
                                size_t i)
{
    update->m[i] = fmaf(rates->momentum, update->m[i], update->grad[i] * run->grad_scale);
    update->direction[i] = update->m[i];
}

/* What `update` does. */
OWN_FN void own_update_element(const own_rates_t *rates, const own_run_t *run, const zero_own_update_t *update,
                               size_t i)
{
    if (update->direction)
        update->weight[i] =
            fmaf(-run->lr, update->direction[i], fmaf(-(run->lr * run->decay), update->weight[i], update->weight[i]));
    else if (rates->kind == OWN_ADAMW)
        own_update_adamw(rates, run, update, i);
    else
        own_update_momentum(rates, run, update, i);
}

/* What `whole` does: one row's length becomes 1, unless it is 0. */
OWN_FN void own_normalize_row(float *row, uint64_t cols)
{
    double squares = 0.0;
    for (uint64_t i = 0; i < cols; i++)
        squares += (double)row[i] * (double)row[i];
    for (uint64_t i = 0; i < cols && squares > 0.0; i++)
        row[i] = (float)((double)row[i] / sqrt(squares));
}

#ifdef __cplusplus
extern "C" {
#endif

/* Each queues its work in the stream: over a run's elements, update or prepare; and over a whole matrix. */
zero_status_t own_cuda_update(const own_rates_t *rates, const zero_own_update_t *update, bool prepares,
                              zero_stream_t stream);
zero_status_t own_cuda_whole(const zero_own_whole_t *whole, zero_stream_t stream);
/* Says whether the address is one of device memory. */
bool own_cuda_is_on_device(const void *address);

#ifdef __cplusplus
}
#endif
#endif
