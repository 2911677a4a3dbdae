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

template <typename RULE, typename FORM> struct momentum_update {
    static constexpr unsigned N_THREADS = THREADS;
    static constexpr bool HAS_GROUPS = false;
    static __device__ void element(const zero_adam_t &args, const zero_adam_segment_t &segment,
                                   const zero_adam_scalars_t &scalars, uint64_t state)
    {
        typename FORM::param_t *at_param =
            (typename FORM::param_t *)args.param + segment.param + (state - segment.state);
        typename FORM::param_t param = FORM::reads_param ? *at_param : 0;
        typename FORM::master_lo_t master_lo = 0;
        if constexpr (FORM::has_master_lo)
            master_lo = ((typename FORM::master_lo_t *)args.master_lo)[state];
        float w = FORM::join(param, master_lo), m = args.m[state];
        const gradients grad(args.grad, args.grad_dtype == ZERO_BF16, segment.grad + (state - segment.state));
        RULE::update(&scalars, segment.decay, grad.load(0), &w, &m);
        FORM::split(w, &param, &master_lo);
        *at_param = param;
        if constexpr (FORM::has_master_lo)
            ((typename FORM::master_lo_t *)args.master_lo)[state] = master_lo;
        args.m[state] = m;
    }
};

template <typename RULE, typename FORM, bool BY_TENSOR>
static __global__ void __launch_bounds__(THREADS)
    momentum_kernel(const __grid_constant__ zero_adam_t args, uint64_t first)
{
    update_elements<momentum_update<RULE, FORM>, BY_TENSOR>(args, first);
}

template <typename RULE> struct momentum : elementwise {
    static constexpr unsigned N_THREADS = THREADS;
    template <typename FORM, bool BY_TENSOR> static optimizer_kernel_t kernel()
    {
        return momentum_kernel<RULE, FORM, BY_TENSOR>;
    }
};

cudaError_t zero_cuda_sgd(const zero_adam_t *args, cudaStream_t stream)
{
    return launch_optimizer<momentum<sgd_rule>>(args, stream);
}

cudaError_t zero_cuda_nesterov(const zero_adam_t *args, cudaStream_t stream)
{
    return launch_optimizer<momentum<nesterov_rule>>(args, stream);
}

cudaError_t zero_cuda_lion(const zero_adam_t *args, cudaStream_t stream)
{
    return launch_optimizer<momentum<lion_rule>>(args, stream);
}
