/* momentum.c - optimizers with one state array over a flat shard on the CPU: SGD with momentum, with and without
 * Nesterov's step, and Lion (Chen et al. 2023, arXiv:2302.06675).
 *
 * There is no square root and no division to wait for, hence no prefetches as in adam.c. Called through the table.
 */
#include "kernels/master.h"

/* Threads' shares are multiples of this: whole cache lines, if the arrays begin with one. */
enum { RUN = 32 };
/* Gradients that are widened at a time. */
enum { GRADS = 1024 };

typedef void (*element_fn)(const zero_adam_scalars_t *scalars, float decay, float grad, float *w, float *m);

ZERO_INLINED void update_part(zero_dtype_t form, const zero_adam_t *args, const zero_part_t *part, element_fn element)
{
    const zero_adam_scalars_t scalars = part->scalars;
    const float decay = part->decay;
    float room[GRADS];
    for (size_t begin = 0; begin < part->n_elems; begin += GRADS) {
        const size_t n = part->n_elems - begin < GRADS ? part->n_elems - begin : GRADS;
        const float *grad = zero_grads_of(part, begin, n, room);
        char *param = (char *)part->param + begin * zero_param_bytes(form);
        char *master_lo = (char *)part->master_lo + begin * zero_master_lo_bytes(form);
        float *m = args->m + part->state + begin;
#pragma omp simd
        for (size_t i = 0; i < n; ++i) {
            float w = zero_read_master(form, param, master_lo, i), new_m = m[i];
            element(&scalars, decay, grad[i], &w, &new_m);
            zero_write_master(form, param, master_lo, i, w);
            m[i] = new_m;
        }
    }
}

static void sgd_part(const zero_adam_t *args, const zero_part_t *part)
{
    ZERO_WITH_FORM(args->param_dtype, update_part, args, part, zero_sgd_element);
}

static void nesterov_part(const zero_adam_t *args, const zero_part_t *part)
{
    ZERO_WITH_FORM(args->param_dtype, update_part, args, part, zero_nesterov_element);
}

static void lion_part(const zero_adam_t *args, const zero_part_t *part)
{
    ZERO_WITH_FORM(args->param_dtype, update_part, args, part, zero_lion_element);
}

zero_status_t ZERO_ISA(zero_shard_sgd)(const zero_adam_t *args, zero_stream_t stream)
{
    (void)stream;
    return zero_update_shard(args, 1, RUN, sgd_part);
}

zero_status_t ZERO_ISA(zero_shard_nesterov)(const zero_adam_t *args, zero_stream_t stream)
{
    (void)stream;
    return zero_update_shard(args, 1, RUN, nesterov_part);
}

zero_status_t ZERO_ISA(zero_shard_lion)(const zero_adam_t *args, zero_stream_t stream)
{
    (void)stream;
    return zero_update_shard(args, 1, RUN, lion_part);
}
