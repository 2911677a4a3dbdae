/* momentum.cu - optimizers with one state array on CUDA: momentum.c's twin. As adam.cu, each thread updates four
 * consecutive elements, here one by one: both give the bits of the element's expression in shard_math.h.
 */
#include "kernels/cuda/master.cuh"
#include "kernels/cuda/shard_cuda.h"

constexpr unsigned THREADS = 128;

struct sgd_rule {
    static __device__ void update(const zero_adam_scalars_t *s, float decay, float grad, float *w, float *m)
    {
        zero_sgd_element(s, decay, grad, w, m);
    }
};

struct nesterov_rule {
    static __device__ void update(const zero_adam_scalars_t *s, float decay, float grad, float *w, float *m)
    {
        zero_nesterov_element(s, decay, grad, w, m);
    }
};

struct lion_rule {
    static __device__ void update(const zero_adam_scalars_t *s, float decay, float grad, float *w, float *m)
    {
        zero_lion_element(s, decay, grad, w, m);
    }
};

/* Updates element `state` of the state arrays, which is in the segment. */
template <typename RULE, typename FORM>
__device__ static void update_element(const zero_adam_t &args, const zero_adam_segment_t &segment,
                                      const zero_adam_scalars_t &scalars, uint64_t state)
{
    typename FORM::param_t *at_param = (typename FORM::param_t *)args.param + segment.param + (state - segment.state);
    typename FORM::param_t param = FORM::reads_param ? *at_param : 0;
    typename FORM::master_lo_t master_lo = 0;
    if constexpr (FORM::has_master_lo)
        master_lo = ((typename FORM::master_lo_t *)args.master_lo)[state];
    float w = FORM::join(param, master_lo), m = args.m[state];
    RULE::update(&scalars, segment.decay, args.grad[segment.grad + (state - segment.state)], &w, &m);
    FORM::split(w, &param, &master_lo);
    *at_param = param;
    if constexpr (FORM::has_master_lo)
        ((typename FORM::master_lo_t *)args.master_lo)[state] = master_lo;
    args.m[state] = m;
}

/* BY_TENSOR: with the scalars of single tensors, as in adam.cu. */
template <typename RULE, typename FORM, bool BY_TENSOR>
static __global__ void __launch_bounds__(THREADS)
    momentum_kernel(const __grid_constant__ zero_adam_t args, uint64_t first)
{
    zero_adam_scalars_t scalars = *args.scalars;
    const uint64_t state = first + ((uint64_t)blockIdx.x * THREADS + threadIdx.x) * GROUP_ELEMS;
    if (scalars.skip || state >= args.state_end)
        return;
    size_t s = find_segment(args, state);
    zero_adam_segment_t segment = args.segments[s];
    if constexpr (BY_TENSOR)
        zero_take_tensor_scalars(&args, &segment, &scalars, &segment.decay);
    for (uint64_t e = state; e < state + GROUP_ELEMS; ++e) {
        while (s + 1 < args.n_segments && args.segments[s + 1].state <= e) {
            segment = args.segments[++s];
            if constexpr (BY_TENSOR)
                zero_take_tensor_scalars(&args, &segment, &scalars, &segment.decay);
        }
        if (holds(segment, e, 1))
            update_element<RULE, FORM>(args, segment, scalars, e);
    }
}

template <typename RULE, typename FORM> static void launch_form(const zero_adam_t *args, cudaStream_t stream)
{
    const uint64_t first = args->state_begin / GROUP_ELEMS * GROUP_ELEMS;
    const unsigned n_blocks = blocks_for(args->state_end - first, THREADS * GROUP_ELEMS);
    if (args->by_tensor)
        momentum_kernel<RULE, FORM, true><<<n_blocks, THREADS, 0, stream>>>(*args, first);
    else
        momentum_kernel<RULE, FORM, false><<<n_blocks, THREADS, 0, stream>>>(*args, first);
}

template <typename RULE> static cudaError_t launch(const zero_adam_t *args, cudaStream_t stream)
{
    if (args->param_dtype == ZERO_BF16)
        launch_form<RULE, bf16_master>(args, stream);
    else if (args->param_dtype == ZERO_FP16)
        launch_form<RULE, fp16_master>(args, stream);
    else
        launch_form<RULE, fp32_master>(args, stream);
    return cudaGetLastError();
}

cudaError_t zero_cuda_sgd(const zero_adam_t *args, cudaStream_t stream)
{
    return launch<sgd_rule>(args, stream);
}

cudaError_t zero_cuda_nesterov(const zero_adam_t *args, cudaStream_t stream)
{
    return launch<nesterov_rule>(args, stream);
}

cudaError_t zero_cuda_lion(const zero_adam_t *args, cudaStream_t stream)
{
    return launch<lion_rule>(args, stream);
}
