/* wgmma.cuh - the products of Hopper's tensor cores: C[64, N] += A[64, 16] B[16, N] by four warps, asynchronously, in
 * 16 bits with fp32 sums.
 *
 * Warp w holds rows 16 w .. 16 w + 15 of C, and of A if that is in registers, as mma.cuh describes them. What is in
 * shared memory lies in tiles of rows of 128 bytes, aligned to 1024 bytes, whose chunks of 16 bytes are exchanged by
 * the low bits of the row (128-byte swizzle). Eight rows are 1024 bytes.
 *
 * Between zero_wide_begin and zero_wide_wait nothing may touch the registers of a product.
 */
#ifndef ZERO_WGMMA_CUH
#define ZERO_WGMMA_CUH

#include "train/kernels/cuda/mma.cuh"

/* Only machine code for Hopper itself has these instructions, no PTX that later GPUs run. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define ZERO_HAS_WGMMA 1
#else
#define ZERO_HAS_WGMMA 0
#endif

/* Describes a tile, at most 256 KiB into shared memory, to the tensor cores. If rows run along the product's inner
 * dimension, `across` is not read. Else a row has N elements, 64 to a tile, and `across` is the bytes from one tile to
 * the next. */
__device__ __forceinline__ uint64_t zero_wide_tile(uint32_t address, uint32_t across)
{
    return (uint64_t)(address >> 4) | (uint64_t)(across >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* Makes this thread's stores to shared memory visible to the tensor cores. Call it before the barrier after which they
 * read. */
__device__ __forceinline__ void zero_wide_show_stores(void)
{
#if ZERO_HAS_WGMMA
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* Keeps the compiler from computing registers later, or reading them before. */
template <int N> __device__ __forceinline__ void zero_wide_hold(float (&c)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; ++n)
        asm volatile("" : "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])::"memory");
}
template <int N> __device__ __forceinline__ void zero_wide_hold(uint32_t (&a)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; ++n)
        asm volatile("" : "+r"(a[n][0]), "+r"(a[n][1]), "+r"(a[n][2]), "+r"(a[n][3])::"memory");
}

/* Begins a group of products. Their registers have been held. */
__device__ __forceinline__ void zero_wide_begin(void)
{
#if ZERO_HAS_WGMMA
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
/* Ends a group of products. */
__device__ __forceinline__ void zero_wide_commit(void)
{
#if ZERO_HAS_WGMMA
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
/* Waits until at most PENDING groups are under way; c: the sums of one that has ended. */
template <int PENDING, int N> __device__ __forceinline__ void zero_wide_wait(float (&c)[N][4])
{
#if ZERO_HAS_WGMMA
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
    zero_wide_hold(c);
#endif
}

#define ZERO_C4(c, n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define ZERO_C16(c, n) ZERO_C4(c, n), ZERO_C4(c, n + 1), ZERO_C4(c, n + 2), ZERO_C4(c, n + 3)
#define ZERO_C32(c, n) ZERO_C16(c, n), ZERO_C16(c, n + 4)
#define ZERO_R32                                                                                                       \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"   \
    "%30,%31"
#define ZERO_R64                                                                                                       \
    ZERO_R32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,"   \
             "%57,%58,%59,%60,%61,%62,%63"

/* c (+)= a b^T, both in shared memory, rows along the inner dimension; `add` is 0 or 1. */
#define ZERO_WIDE_DOT_64(TYPE)                                                                                         \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0;\n"                                                             \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " {" ZERO_R32                             \
                 "}, %32, %33, p, 1, 1, 0, 0;}"                                                                        \
                 : ZERO_C32(c, 0)                                                                                      \
                 : "l"(a), "l"(b), "r"(add))
#define ZERO_WIDE_DOT_128(TYPE)                                                                                        \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %66, 0;\n"                                                             \
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " {" ZERO_R64                            \
                 "}, %64, %65, p, 1, 1, 0, 0;}"                                                                        \
                 : ZERO_C32(c, 0), ZERO_C32(c, 8)                                                                      \
                 : "l"(a), "l"(b), "r"(add))
/* c += a b, a in registers, b's rows along N. */
#define ZERO_WIDE_ADD_64(TYPE)                                                                                         \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " {" ZERO_R32                             \
                 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"                                                              \
                 : ZERO_C32(c, 0)                                                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define ZERO_WIDE_ADD_128(TYPE)                                                                                        \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " {" ZERO_R64                            \
                 "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"                                                              \
                 : ZERO_C32(c, 0), ZERO_C32(c, 8)                                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

/* c (+)= a b, both in shared memory, a's rows along M, b's along N. */
#define ZERO_WIDE_CROSS(TYPE)                                                                                          \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0;\n"                                                             \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " {" ZERO_R32                             \
                 "}, %32, %33, p, 1, 1, 1, 1;}"                                                                        \
                 : ZERO_C32(c, 0)                                                                                      \
                 : "l"(a), "l"(b), "r"(add))

template <typename T> __device__ __forceinline__ void zero_wide_cross(float (&c)[8][4], uint64_t a, uint64_t b, int add)
{
#if ZERO_HAS_WGMMA
    if constexpr (zero_is_bf16<T>)
        ZERO_WIDE_CROSS("bf16");
    else
        ZERO_WIDE_CROSS("f16");
#endif
}

template <typename T, int N>
__device__ __forceinline__ void zero_wide_dot(float (&c)[N][4], uint64_t a, uint64_t b, int add)
{
#if ZERO_HAS_WGMMA
    if constexpr (N == 8 && zero_is_bf16<T>)
        ZERO_WIDE_DOT_64("bf16");
    else if constexpr (N == 8)
        ZERO_WIDE_DOT_64("f16");
    else if constexpr (zero_is_bf16<T>)
        ZERO_WIDE_DOT_128("bf16");
    else
        ZERO_WIDE_DOT_128("f16");
#endif
}

template <typename T, int N>
__device__ __forceinline__ void zero_wide_add(float (&c)[N][4], const uint32_t (&a)[4], uint64_t b)
{
#if ZERO_HAS_WGMMA
    if constexpr (N == 8 && zero_is_bf16<T>)
        ZERO_WIDE_ADD_64("bf16");
    else if constexpr (N == 8)
        ZERO_WIDE_ADD_64("f16");
    else if constexpr (zero_is_bf16<T>)
        ZERO_WIDE_ADD_128("bf16");
    else
        ZERO_WIDE_ADD_128("f16");
#endif
}

#endif
