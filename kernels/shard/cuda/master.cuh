/* master.cuh - what the optimizers' kernels share: master weights in their three forms, and the segment of an element.
 */
#ifndef ZERO_MASTER_CUH
#define ZERO_MASTER_CUH

#include "kernels/shard/shard.h"
#include "kernels/shard/shard_math.h"

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
