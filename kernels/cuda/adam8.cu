/* adam8.cu - AdamW with 8-bit moments over a flat shard on CUDA: adam8.c's twin.
 *
 * 16 neighbouring threads update one block, four elements each: half a warp, which takes the same branches, since no
 * block is in two segments. They find the block's scale together, as the largest of integer keys, whose order does not
 * matter. Codes are looked up in tables in shared memory. The grid has as many thread blocks as the GPU holds at once;
 * each fills its tables and takes turns with the shard.
 */
#include "kernels/adam8_tables.h"
#include "kernels/cuda/master.cuh"
#include "kernels/cuda/shard_cuda.h"

constexpr unsigned THREADS = 256, BLOCKS_PER_SM = 4, LANES = ZERO_BLOCK8_ELEMS / GROUP_ELEMS;

/* Four elements, of which the first n are the segment's; 0 for the others. */
template <typename T> __device__ static group<T> load_some(const T *p, unsigned n)
{
    group<T> values = {};
    if (n == GROUP_ELEMS && is_group_aligned(p))
        return load_group(p);
    for (unsigned i = 0; i < GROUP_ELEMS; ++i)
        if (i < n)
            values.at[i] = p[i];
    return values;
}

template <typename T> __device__ static void store_some(T *p, const group<T> &values, unsigned n)
{
    if (n == GROUP_ELEMS && is_group_aligned(p)) {
        store_group(p, values);
        return;
    }
    for (unsigned i = 0; i < GROUP_ELEMS; ++i)
        if (i < n)
            p[i] = values.at[i];
}

/* Returns the scale of the block of which each of 16 threads has four numbers. */
__device__ static float block_scale(const group<float> &values)
{
    const unsigned lanes = ((1u << LANES) - 1) << (threadIdx.x % 32 / LANES * LANES);
    uint32_t key = 0;
    for (unsigned i = 0; i < GROUP_ELEMS; ++i) {
        uint32_t other = zero_quick_key8(values.at[i]);
        key = other > key ? other : key;
    }
    for (unsigned step = LANES / 2; step > 0; step /= 2) {
        uint32_t other = __shfl_xor_sync(lanes, key, step);
        key = other > key ? other : key;
    }
    return zero_scale8_of_key(key);
}

/* Updates four elements. BY_TENSOR: as in update_elements. */
template <typename FORM, bool BY_TENSOR>
__device__ static __forceinline__ void update_group(const zero_adam_t &args, zero_adam_scalars_t scalars,
                                                    const zero_tables8_t &tables, uint64_t state)
{
    const unsigned in_block = threadIdx.x % LANES * GROUP_ELEMS;
    zero_adam_segment_t segment = args.segments[find_segment(args, state)];
    if (!holds(segment, state - in_block, 1))
        return;
    if constexpr (BY_TENSOR)
        zero_take_tensor_scalars(&args, &segment, &scalars, &segment.decay);

    const uint64_t at = state - segment.state, left = at < segment.n_elems ? segment.n_elems - at : 0;
    const unsigned n = left < GROUP_ELEMS ? (unsigned)left : GROUP_ELEMS;
    typename FORM::param_t *at_param = (typename FORM::param_t *)args.param + segment.param + at;
    typename FORM::master_lo_t *at_master_lo = (typename FORM::master_lo_t *)args.master_lo + state;
    zero_block8_t *m_block = (zero_block8_t *)args.m + state / ZERO_BLOCK8_ELEMS;
    zero_block8_t *v_block = (zero_block8_t *)args.v + state / ZERO_BLOCK8_ELEMS;
    group<typename FORM::param_t> param = {};
    group<typename FORM::master_lo_t> master_lo = {};
    if constexpr (FORM::reads_param)
        param = load_some(at_param, n);
    if constexpr (FORM::has_master_lo)
        master_lo = load_some(at_master_lo, n);
    const gradients grads(args.grad, args.grad_dtype == ZERO_BF16, segment.grad + at);
    group<float> grad = {};
    if (n == GROUP_ELEMS && grads.is_aligned())
        grad = grads.load_group();
    else
        for (unsigned i = 0; i < GROUP_ELEMS; ++i)
            if (i < n)
                grad.at[i] = grads.load(i);
    group<uint8_t> m_codes = load_group(m_block->codes + in_block), v_codes = load_group(v_block->codes + in_block);
    const float old_m_scale = m_block->scale, old_v_scale = v_block->scale;
    const float shrink = -(scalars.lr * segment.decay);
    group<float> m, v;
#pragma unroll
    for (unsigned i = 0; i < GROUP_ELEMS; ++i) {
        float w = FORM::join(param.at[i], master_lo.at[i]);
        m.at[i] = zero_look_up8_signed(&tables, m_codes.at[i], old_m_scale);
        v.at[i] = zero_look_up8_unsigned(&tables, v_codes.at[i], old_v_scale);
        zero_adam_element(&scalars, shrink, grad.at[i], &w, &m.at[i], &v.at[i]);
        FORM::split(w, &param.at[i], &master_lo.at[i]);
    }
    store_some(at_param, param, n);
    if constexpr (FORM::has_master_lo)
        store_some(at_master_lo, master_lo, n);

    /* No thread is here before all have read the old scales: these exchanges are their barrier. */
    const float m_scale = block_scale(m), v_scale = block_scale(v);
    const float m_inverse = zero_scale8_inverse(m_scale), v_inverse = zero_scale8_inverse(v_scale);
#pragma unroll
    for (unsigned i = 0; i < GROUP_ELEMS; ++i) {
        m_codes.at[i] = zero_look_up_code8_signed(&tables, m.at[i], m_inverse);
        v_codes.at[i] = zero_look_up_code8_unsigned(&tables, v.at[i], v_inverse);
    }
    store_group(m_block->codes + in_block, m_codes);
    store_group(v_block->codes + in_block, v_codes);
    if (in_block == 0) {
        m_block->scale = m_scale;
        v_block->scale = v_scale;
    }
}

template <typename FORM, bool BY_TENSOR>
static __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    adam8_kernel(const __grid_constant__ zero_adam_t args, uint64_t first)
{
    __shared__ zero_tables8_t tables;
    const zero_adam_scalars_t scalars = *args.scalars;
    if (scalars.skip)
        return;
    zero_tables8_fill(&tables, threadIdx.x, THREADS);
    __syncthreads();
    const uint64_t end = (args.state_end + ZERO_BLOCK8_ELEMS - 1) / ZERO_BLOCK8_ELEMS * ZERO_BLOCK8_ELEMS;
    for (uint64_t turn = blockIdx.x;; turn += gridDim.x) {
        const uint64_t state = first + (turn * THREADS + threadIdx.x) * GROUP_ELEMS;
        if (state >= end)
            return;
        update_group<FORM, BY_TENSOR>(args, scalars, tables, state);
    }
}

/* Returns how many blocks the GPU holds at once; 0, of which launching makes an error, if it does not answer. */
static unsigned resident_blocks()
{
    int gpu, n_sms;
    if (cudaGetDevice(&gpu) != cudaSuccess ||
        cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, gpu) != cudaSuccess)
        return 0;
    return (unsigned)n_sms * BLOCKS_PER_SM;
}

struct adam8 {
    static constexpr unsigned UNIT = ZERO_BLOCK8_ELEMS, N_THREADS = THREADS;
    static unsigned n_blocks(unsigned for_all)
    {
        const unsigned at_once = resident_blocks();
        return for_all < at_once ? for_all : at_once;
    }
    template <typename FORM, bool BY_TENSOR> static optimizer_kernel_t kernel()
    {
        return adam8_kernel<FORM, BY_TENSOR>;
    }
};

cudaError_t zero_cuda_adam8(const zero_adam_t *args, cudaStream_t stream)
{
    return launch_optimizer<adam8>(args, stream);
}
