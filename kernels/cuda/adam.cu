/* adam.cu - AdamW over a flat shard on CUDA, in one launch at the speed of memory: adam.c's twin.
 *
 * Each thread updates one group of four consecutive elements of the state arrays, and finds their segment by bisection.
 * There is no loop over groups: on an H200 a grid that covers everything moved 4.2 TB/s, and one whose threads loop
 * over groups 4.0. Blocks of 512 threads cost 3%, streaming hints on loads or stores 1 to 3%, and loading m and v
 * before the bisection gained nothing. Groups that cross a segment's end, or whose arrays are not all aligned, are
 * updated element by element. Both paths use zero_adam_element, so they give the same bits.
 */
#include "kernels/cuda/master.cuh"
#include "kernels/cuda/shard_cuda.h"
#include "kernels/shard_math.h"

constexpr unsigned THREADS = 128;

/* ---- One thread's work ---------------------------------------------------------------------------------------------
 */

/* The address of an element, or of a group of them, in each array. master_lo is not valid if the form has none. */
template <typename FORM> struct element_t {
    typename FORM::param_t *param;
    typename FORM::master_lo_t *master_lo;
    float *m, *v;
    gradients grad;

    __device__ element_t(const zero_adam_t &args, const zero_adam_segment_t &segment, uint64_t state)
        : param((typename FORM::param_t *)args.param + segment.param + (state - segment.state)),
          master_lo((typename FORM::master_lo_t *)args.master_lo + state), m(args.m + state),
          v(args.v + (state - segment.v_gap)),
          grad(args.grad, args.grad_dtype == ZERO_BF16, segment.grad + (state - segment.state))
    {
    }

    __device__ bool is_aligned() const
    {
        return is_group_aligned(param) && (!FORM::has_master_lo || is_group_aligned(master_lo)) &&
               is_group_aligned(m) && is_group_aligned(v) && grad.is_aligned();
    }
};

template <typename FORM>
__device__ static void update_group(const element_t<FORM> &at, const zero_adam_scalars_t &scalars, float decay)
{
    const float shrink = -(scalars.lr * decay);
    group<typename FORM::param_t> param = {};
    group<typename FORM::master_lo_t> master_lo = {};
    if constexpr (FORM::reads_param)
        param = load_group(at.param);
    if constexpr (FORM::has_master_lo)
        master_lo = load_group(at.master_lo);
    group<float> m = load_group(at.m), v = load_group(at.v);
    const group<float> grad = at.grad.load_group();
#pragma unroll
    for (unsigned i = 0; i < GROUP_ELEMS; ++i) {
        float w = FORM::join(param.at[i], master_lo.at[i]);
        zero_adam_element(&scalars, shrink, grad.at[i], &w, &m.at[i], &v.at[i]);
        FORM::split(w, &param.at[i], &master_lo.at[i]);
    }
    store_group(at.param, param);
    if constexpr (FORM::has_master_lo)
        store_group(at.master_lo, master_lo);
    store_group(at.m, m);
    store_group(at.v, v);
}

template <typename FORM>
__device__ static void update_element(const element_t<FORM> &at, const zero_adam_scalars_t &scalars, float decay)
{
    typename FORM::param_t param = FORM::reads_param ? *at.param : 0;
    typename FORM::master_lo_t master_lo = 0;
    if constexpr (FORM::has_master_lo)
        master_lo = *at.master_lo;
    float w = FORM::join(param, master_lo);
    zero_adam_element(&scalars, -(scalars.lr * decay), at.grad.load(0), &w, at.m, at.v);
    FORM::split(w, &param, &master_lo);
    *at.param = param;
    if constexpr (FORM::has_master_lo)
        *at.master_lo = master_lo;
}

template <typename FORM> struct adam_update {
    static constexpr unsigned N_THREADS = THREADS;
    static constexpr bool HAS_GROUPS = true;
    static __device__ bool group(const zero_adam_t &args, const zero_adam_segment_t &segment,
                                 const zero_adam_scalars_t &scalars, uint64_t state)
    {
        const element_t<FORM> at(args, segment, state);
        if (!holds(segment, state, GROUP_ELEMS) || !at.is_aligned())
            return false;
        update_group(at, scalars, segment.decay);
        return true;
    }
    static __device__ void element(const zero_adam_t &args, const zero_adam_segment_t &segment,
                                   const zero_adam_scalars_t &scalars, uint64_t state)
    {
        update_element(element_t<FORM>(args, segment, state), scalars, segment.decay);
    }
};

template <typename FORM, bool BY_TENSOR>
static __global__ void __launch_bounds__(THREADS) adam_kernel(const __grid_constant__ zero_adam_t args, uint64_t first)
{
    update_elements<adam_update<FORM>, BY_TENSOR>(args, first);
}

/* ---- Launch --------------------------------------------------------------------------------------------------------
 */

struct adam : elementwise {
    static constexpr unsigned N_THREADS = THREADS;
    template <typename FORM, bool BY_TENSOR> static optimizer_kernel_t kernel()
    {
        return adam_kernel<FORM, BY_TENSOR>;
    }
};

cudaError_t zero_cuda_adam(const zero_adam_t *args, cudaStream_t stream)
{
    return launch_optimizer<adam>(args, stream);
}
