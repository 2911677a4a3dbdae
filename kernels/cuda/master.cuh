/* master.cuh - what the optimizers' kernels share: master weights in their three forms, the segment of an element, the
 * walk of a thread over its elements, and the launch.
 */
#ifndef ZERO_MASTER_CUH
#define ZERO_MASTER_CUH

#include <stddef.h>
#include <stdint.h>

#include "kernels/shard.h"
#include "kernels/shard_math.h"

/* ---- group ---- */
/* Groups of four elements, in which the shard kernels read and write memory. A group of floats is one
 * 16-byte access, a group of bf16 or fp16 one 8-byte access. Neighbouring threads take neighbouring groups. */

constexpr unsigned GROUP_ELEMS = 4;

template <typename T> struct alignas(GROUP_ELEMS * sizeof(T)) group {
    T at[GROUP_ELEMS];
};

template <typename T> __host__ __device__ inline bool is_group_aligned(const T *p)
{
    return (uintptr_t)p % sizeof(group<T>) == 0;
}

template <typename T> __device__ inline group<T> load_group(const T *p)
{
    return *(const group<T> *)p;
}

template <typename T> __device__ inline void store_group(T *p, const group<T> &values)
{
    *(group<T> *)p = values;
}

/* Gradients from one element on, in fp32 or bf16, as floats. The branch is the same in all threads. */
struct gradients {
    const void *at;
    bool is_bf16;

    __device__ gradients(const void *grad, bool is_bf16_, uint64_t first)
        : at(is_bf16_ ? (const void *)((const uint16_t *)grad + first) : (const void *)((const float *)grad + first)),
          is_bf16(is_bf16_)
    {
    }
    __device__ bool is_aligned() const
    {
        return is_bf16 ? is_group_aligned((const uint16_t *)at) : is_group_aligned((const float *)at);
    }
    __device__ float load(unsigned i) const
    {
        return is_bf16 ? zero_float_of_bf16(((const uint16_t *)at)[i]) : ((const float *)at)[i];
    }
    __device__ group<float> load_group() const
    {
        if (!is_bf16)
            return ::load_group((const float *)at);
        const group<uint16_t> halves = ::load_group((const uint16_t *)at);
        group<float> values;
#pragma unroll
        for (unsigned i = 0; i < GROUP_ELEMS; ++i)
            values.at[i] = zero_float_of_bf16(halves.at[i]);
        return values;
    }
};

/* Returns how many blocks of n_per_block items hold n_items. */
inline unsigned blocks_for(uint64_t n_items, uint64_t n_per_block)
{
    return (unsigned)((n_items + n_per_block - 1) / n_per_block);
}

/* ---- master ---- */

/* ---- Master weights in the three forms of zero_adam_t --------------------------------------------------------------
 */

struct fp32_master {
    typedef float param_t;
    typedef float master_lo_t;
    static constexpr bool reads_param = true, has_master_lo = false;
    static __device__ float join(float param, float)
    {
        return param;
    }
    static __device__ void split(float master, float *param, float *)
    {
        *param = master;
    }
};

struct bf16_master {
    typedef uint16_t param_t;
    typedef int16_t master_lo_t;
    static constexpr bool reads_param = true, has_master_lo = true;
    static __device__ float join(uint16_t param, int16_t master_lo)
    {
        return zero_join_master(param, master_lo);
    }
    static __device__ void split(float master, uint16_t *param, int16_t *master_lo)
    {
        *param = zero_split_param(master);
        *master_lo = zero_split_master_lo(master);
    }
};

struct fp16_master {
    typedef uint16_t param_t;
    typedef float master_lo_t;
    static constexpr bool reads_param = false, has_master_lo = true;
    static __device__ float join(uint16_t, float master_lo)
    {
        return master_lo;
    }
    static __device__ void split(float master, uint16_t *param, float *master_lo)
    {
        *param = zero_fp16_of_float(master);
        *master_lo = master;
    }
};

/* ---- Segments ------------------------------------------------------------------------------------------------------
 */

/* Returns the last segment that begins at or before `state`, or the first. */
__device__ static size_t find_segment(const zero_adam_t &args, uint64_t state)
{
    size_t found = 0, n = args.n_segments;
    while (n > 1) {
        size_t half = n / 2;
        if (args.segments[found + half].state <= state)
            found += half;
        n -= half;
    }
    return found;
}

__device__ static bool holds(const zero_adam_segment_t &segment, uint64_t state, uint64_t n_elems)
{
    return state >= segment.state && state + n_elems <= segment.state + segment.n_elems;
}

/* Updates the thread's group of elements. UPDATE has
 *
 *     N_THREADS                                      of a block
 *     void element(args, segment, scalars, state)    updates an element
 *     HAS_GROUPS and, if that is true,
 *     bool group(args, segment, scalars, state)      updates the whole group, or returns false
 *
 * BY_TENSOR: with the scalars of single tensors. A separate kernel, since they take registers, of which AdamW's speed
 * has none to spare. */
template <typename UPDATE, bool BY_TENSOR>
__device__ static __forceinline__ void update_elements(const zero_adam_t &args, uint64_t first)
{
    zero_adam_scalars_t scalars = *args.scalars;
    const uint64_t state = first + ((uint64_t)blockIdx.x * UPDATE::N_THREADS + threadIdx.x) * GROUP_ELEMS;
    if (scalars.skip || state >= args.state_end)
        return;
    size_t s = find_segment(args, state);
    zero_adam_segment_t segment = args.segments[s];
    if constexpr (BY_TENSOR)
        zero_take_tensor_scalars(&args, &segment, &scalars, &segment.decay);
    if constexpr (UPDATE::HAS_GROUPS)
        if (UPDATE::group(args, segment, scalars, state))
            return;
    for (uint64_t e = state; e < state + GROUP_ELEMS; ++e) {
        while (s + 1 < args.n_segments && args.segments[s + 1].state <= e) {
            segment = args.segments[++s];
            if constexpr (BY_TENSOR)
                zero_take_tensor_scalars(&args, &segment, &scalars, &segment.decay);
        }
        if (holds(segment, e, 1))
            UPDATE::element(args, segment, scalars, e);
    }
}

/* ---- Launch --------------------------------------------------------------------------------------------------------
 */

typedef void (*optimizer_kernel_t)(zero_adam_t args, uint64_t first);

/* What launch_optimizer asks of optimizers whose elements are updated on their own. */
struct elementwise {
    static constexpr unsigned UNIT = GROUP_ELEMS;
    static unsigned n_blocks(unsigned for_all)
    {
        return for_all;
    }
};

template <typename OPTIMIZER, typename FORM> static void launch_form(const zero_adam_t *args, cudaStream_t stream)
{
    /* Groups and blocks begin at multiples of their size, so that they are aligned if the arrays are. */
    const uint64_t first = args->state_begin / OPTIMIZER::UNIT * OPTIMIZER::UNIT;
    const unsigned n_blocks =
        OPTIMIZER::n_blocks(blocks_for(args->state_end - first, OPTIMIZER::N_THREADS * GROUP_ELEMS));
    const optimizer_kernel_t kernel =
        args->by_tensor ? OPTIMIZER::template kernel<FORM, true>() : OPTIMIZER::template kernel<FORM, false>();
    kernel<<<n_blocks, OPTIMIZER::N_THREADS, 0, stream>>>(*args, first);
}

/* Launches an optimizer over the shard. OPTIMIZER has
 *
 *     UNIT                         elements that are updated together
 *     N_THREADS                    of a block, each with a group at a time
 *     n_blocks(for_all)            of the grid, if for_all blocks take all groups at once
 *     kernel<FORM, BY_TENSOR>()    the kernel for that form of master weights
 */
template <typename OPTIMIZER> static cudaError_t launch_optimizer(const zero_adam_t *args, cudaStream_t stream)
{
    if (args->param_dtype == ZERO_BF16)
        launch_form<OPTIMIZER, bf16_master>(args, stream);
    else if (args->param_dtype == ZERO_FP16)
        launch_form<OPTIMIZER, fp16_master>(args, stream);
    else
        launch_form<OPTIMIZER, fp32_master>(args, stream);
    return cudaGetLastError();
}

#endif
