/* muon.c - the two ends of Muon's update on the CPU, element by element: momentum, and the step of the weights. What is
 * between them is in orthogonalize.c. Called through the table.
 */
#include "kernels/shard/shard_isa.h"
#include "kernels/shard/shard_math.h"

static void momentum_of_segment(const zero_muon_t *args, const zero_muon_segment_t *segment)
{
    const float *grad = args->grad + segment->grad, scale = args->scalars->grad_scale;
    const float momentum = args->momentum, rest = args->one_minus_momentum;
    float *m = args->m + segment->state;
    float *as_fp32 = args->update_dtype == ZERO_FP32 && args->update ? (float *)args->update + segment->at : NULL;
    uint16_t *as_bf16 = args->update_dtype == ZERO_BF16 && args->update ? (uint16_t *)args->update + segment->at : NULL;
#pragma omp parallel for simd if (segment->n_elems >= ZERO_SHARD_PARALLEL_MIN)
    for (uint64_t i = 0; i < segment->n_elems; ++i) {
        float update = zero_muon_momentum_element(momentum, rest, scale, grad[i], &m[i]);
        if (as_fp32)
            as_fp32[i] = update;
        if (as_bf16)
            as_bf16[i] = zero_bf16_of_float(update);
    }
}

zero_status_t ZERO_ISA(zero_shard_muon_momentum)(const zero_muon_t *args, zero_stream_t stream)
{
    (void)stream;
    for (size_t s = 0; s < args->n_segments && !args->scalars->skip; ++s)
        momentum_of_segment(args, &args->segments[s]);
    return ZERO_OK;
}

static inline float update_of(const zero_muon_t *args, const zero_muon_segment_t *segment, uint64_t i)
{
    return args->update_dtype == ZERO_FP32 ? ((const float *)args->update)[segment->at + i]
                                           : zero_float_of_bf16(((const uint16_t *)args->update)[segment->at + i]);
}

/* The same loop for each dtype of parameters, which are joined with what master weights need beside them, stepped, and
 * split again. */
static void apply_to_segment(const zero_muon_t *args, const zero_muon_segment_t *segment)
{
    const zero_tensor_scalars_t *own = args->by_tensor ? &args->by_tensor[segment->tensor] : NULL;
    const float lr = own ? own->scalars.lr : args->scalars->lr, decay = own ? own->decay : segment->decay;
    const float shrink = -(lr * decay), step = -(lr * segment->scale);
    const uint64_t n = segment->n_elems;
    if (args->param_dtype == ZERO_FP32) {
        float *param = (float *)args->param + segment->param;
#pragma omp parallel for simd if (n >= ZERO_SHARD_PARALLEL_MIN)
        for (uint64_t i = 0; i < n; ++i)
            param[i] = zero_muon_apply_element(shrink, step, update_of(args, segment, i), param[i]);
    } else if (args->param_dtype == ZERO_BF16) {
        uint16_t *param = (uint16_t *)args->param + segment->param;
        int16_t *low = (int16_t *)args->master_lo + segment->state;
#pragma omp parallel for simd if (n >= ZERO_SHARD_PARALLEL_MIN)
        for (uint64_t i = 0; i < n; ++i) {
            float w = zero_join_master(param[i], low[i]);
            w = zero_muon_apply_element(shrink, step, update_of(args, segment, i), w);
            param[i] = zero_split_param(w);
            low[i] = zero_split_master_lo(w);
        }
    } else {
        uint16_t *param = (uint16_t *)args->param + segment->param;
        float *master = (float *)args->master_lo + segment->state;
#pragma omp parallel for simd if (n >= ZERO_SHARD_PARALLEL_MIN)
        for (uint64_t i = 0; i < n; ++i) {
            master[i] = zero_muon_apply_element(shrink, step, update_of(args, segment, i), master[i]);
            param[i] = zero_fp16_of_float(master[i]);
        }
    }
}

zero_status_t ZERO_ISA(zero_shard_muon_apply)(const zero_muon_t *args, zero_stream_t stream)
{
    (void)stream;
    for (size_t s = 0; s < args->n_segments && !args->scalars->skip; ++s)
        apply_to_segment(args, &args->segments[s]);
    return ZERO_OK;
}
