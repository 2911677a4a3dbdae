/* mma.cuh - the instructions of tensor cores, for 16-bit elements: A[16, 16] B[16, 8] added to C[16, 8] in fp32 by a
 * warp, matrices from shared memory to registers, and asynchronous copies from global to shared memory.
 *
 * Of lane 4 g + t: C's registers hold (row g, columns 2t and 2t + 1) and the same of row g + 8. A's four hold (row g,
 * columns 2t and 2t + 1), row g + 8, and both again 8 columns on. B's two hold (rows 2t and 2t + 1, column g), and 8
 * rows on. So two neighbours of C, rounded to 16 bits, are the A of a next product.
 */
#ifndef ZERO_MMA_CUH
#define ZERO_MMA_CUH

#include "train/kernels/cuda/pack.cuh"

template <typename T> static constexpr bool zero_is_bf16 = false;
template <> constexpr bool zero_is_bf16<__nv_bfloat16> = true;

/* ---- Products ---- */

template <typename T>
__device__ __forceinline__ void zero_mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b_low, uint32_t b_high);
template <>
__device__ __forceinline__ void zero_mma<__nv_bfloat16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b_low,
                                                        uint32_t b_high)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_low), "r"(b_high));
}
template <>
__device__ __forceinline__ void zero_mma<__half>(float (&c)[4], const uint32_t (&a)[4], uint32_t b_low, uint32_t b_high)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_low), "r"(b_high));
}

/* ---- Shared memory ---- */

__device__ __forceinline__ uint32_t zero_shared_address(const void *shared)
{
    return (uint32_t)__cvta_generic_to_shared(shared);
}

/* Load four 8 x 8 matrices of 16-bit elements, whose rows of 16 bytes start at the addresses of lanes 8 i .. 8 i + 7.
 * Lane 4 g + t gets elements 2t and 2t + 1 of row g; of the transposed matrices with _transposed. */
__device__ __forceinline__ void zero_load_matrices(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}
__device__ __forceinline__ void zero_load_matrices_transposed(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

/* Start copying 16 bytes (both addresses aligned to that) or 4 to shared memory; if not `valid`, zeros, and `from` is
 * not read. */
__device__ __forceinline__ void zero_copy_16(uint32_t to, const void *from, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
__device__ __forceinline__ void zero_copy_4(uint32_t to, const void *from, bool valid)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(valid ? 4 : 0) : "memory");
}
/* Ends a group of copies, which may be empty. */
__device__ __forceinline__ void zero_end_copies(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Waits for this thread's copies: for all, or for all groups but the newest N. A barrier then shows them to the other
 * threads. */
__device__ __forceinline__ void zero_wait_for_copies(void)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}
template <int N> __device__ __forceinline__ void zero_wait_for_copies(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#endif
