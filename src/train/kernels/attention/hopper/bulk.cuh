/* bulk.cuh - Hopper's copy engine, the barriers in shared memory that it and warps arrive at, and warps' registers.
 *
 * A barrier's phases end one after another, each when all arrivals and bytes that it expects are there. Who waits names
 * the phase by its parity, so it may be at most one phase behind.
 */
#ifndef ZERO_BULK_CUH
#define ZERO_BULK_CUH

#include <cuda.h>

#include "train/kernels/attention/wgmma.cuh"

/* ---- Barriers ---- */

__device__ __forceinline__ void zero_barrier_init(uint32_t barrier, int n_arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(n_arrivals) : "memory");
}
/* Shows new barriers to the copy engine. */
__device__ __forceinline__ void zero_barrier_show(void)
{
#if ZERO_HAS_WGMMA
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
__device__ __forceinline__ void zero_barrier_arrive(uint32_t barrier)
{
    asm volatile("{.reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0];}" ::"r"(barrier) : "memory");
}
/* Arrives, and lets the phase wait for so many bytes, too. */
__device__ __forceinline__ void zero_barrier_expect(uint32_t barrier, int n_bytes)
{
#if ZERO_HAS_WGMMA
    asm volatile("{.reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1;}" ::"r"(barrier),
                 "r"(n_bytes)
                 : "memory");
#endif
}
/* Waits for the end of a barrier's n-th phase. */
__device__ __forceinline__ void zero_barrier_wait(uint32_t barrier, int n)
{
#if ZERO_HAS_WGMMA
    asm volatile("{.reg .pred done;\n"
                 "WAIT: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra.uni DONE; bra.uni WAIT; DONE: }" ::"r"(barrier),
                 "r"(n & 1)
                 : "memory");
#endif
}

/* ---- Copies ---- */

/* Start a copy to shared memory; the barrier counts its bytes. _box: the box that begins at (column, row, matrix) of
 * the map's tensor; beyond the tensor it is zeros. _bytes: n_bytes; it and both addresses are multiples of 16. */
__device__ __forceinline__ void zero_copy_box(uint32_t to, const CUtensorMap *map, int column, int row, int matrix,
                                              uint32_t barrier)
{
#if ZERO_HAS_WGMMA
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
                 "%4}], [%5];" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(matrix), "r"(barrier)
                 : "memory");
#endif
}
__device__ __forceinline__ void zero_copy_bytes(uint32_t to, const void *from, int n_bytes, uint32_t barrier)
{
#if ZERO_HAS_WGMMA
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(n_bytes), "r"(barrier)
                 : "memory");
#endif
}

/* Stores four 8 x 8 matrices, as zero_load_matrices loads them. */
__device__ __forceinline__ void zero_store_matrices(uint32_t address, const uint32_t (&r)[4])
{
#if ZERO_HAS_WGMMA
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(r[0]), "r"(r[1]),
                 "r"(r[2]), "r"(r[3])
                 : "memory");
#endif
}

/* ---- Registers per thread of a warpgroup: some warpgroups give up registers, then others may take them ---- */

template <int N> __device__ __forceinline__ void zero_give_registers(void)
{
#if ZERO_HAS_WGMMA
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
#endif
}
template <int N> __device__ __forceinline__ void zero_take_registers(void)
{
#if ZERO_HAS_WGMMA
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
#endif
}

/* ---- Words of global memory that blocks hand on work by ---- */

__device__ __forceinline__ int zero_load_acquire(const int *word)
{
    int value;
    asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}
__device__ __forceinline__ void zero_store_release(int *word, int value)
{
    asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}
/* Loads what other blocks have written. */
__device__ __forceinline__ float4 zero_load_relaxed(const float4 *from)
{
    float4 v;
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}
__device__ __forceinline__ void zero_add_relaxed(float4 *to, const float (&v)[4])
{
#if ZERO_HAS_WGMMA
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(to), "f"(v[0]), "f"(v[1]), "f"(v[2]),
                 "f"(v[3])
                 : "memory");
#endif
}

#endif
