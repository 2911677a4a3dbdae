/* master.cuh - what the optimizers' kernels share: master weights in their three forms, and the segment of an element.
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

#endif
