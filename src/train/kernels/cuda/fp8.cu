/* fp8.cu - casts to fp8 on CUDA: absolute maximum, cast and transpose.
 *
 * Bound by memory: x is read once, in packs of 16 bytes, and each orientation is written once, in whole lines. A block
 * takes a tile of 128 x 128, a thread 8 x 8 of it. The thread transposes these in registers and writes the 8 bytes of
 * each column to shared memory, from where the columns leave 16 bytes at a time. So that neither side meets a bank
 * conflict, column c has its octets of rows in the order of octet ^ (c / 8).
 */
#include <cuda_fp8.h>

#include "train/kernels/cuda/cast.cuh"
#include "train/kernels/cuda/launch.h"
#include "train/kernels/cuda/maximum.cuh"

#define THREADS 256
#define TILE 128
#define OCTET 8               /* rows and columns of a thread */
#define OCTETS (TILE / OCTET) /* in a tile's row or column */

/* ---- Absolute maximum ---- */

#define ABSMAX_PACKS 4 /* loads that a thread has under way */

/* From the end to the beginning: what a kernel before wrote last, and what the cast behind reads first, is then in the
 * L2 cache. */
static __global__ void __launch_bounds__(THREADS) find_absmax(uint32_t *absmax, const __nv_bfloat16 *x, size_t n_packs)
{
    zero_maximum maximum{absmax, 0};
    size_t stride = (size_t)gridDim.x * THREADS;
    for (size_t first = (size_t)blockIdx.x * THREADS + threadIdx.x; first < n_packs; first += ABSMAX_PACKS * stride) {
        zero_pack<__nv_bfloat16, OCTET> packs[ABSMAX_PACKS] = {};
#pragma unroll
        for (int i = 0; i < ABSMAX_PACKS; ++i)
            if (first + i * stride < n_packs)
                packs[i] = zero_load<OCTET>(x, (n_packs - 1 - (first + i * stride)) * OCTET);
#pragma unroll
        for (int i = 0; i < ABSMAX_PACKS; ++i)
            maximum.see(packs[i]);
    }
    maximum.finish(true);
}

extern "C" cudaError_t zero_launch_fp8_absmax(cudaStream_t stream, uint32_t *absmax, const void *x, size_t n_elems)
{
    size_t n_packs = n_elems / OCTET, blocks = zero_divide_up(n_packs, THREADS * ABSMAX_PACKS);
    unsigned most = ZERO_SMS * 8; /* all that run at once */
    cudaError_t error = cudaMemsetAsync(absmax, 0, sizeof *absmax, stream);
    if (error != cudaSuccess)
        return error;
    unsigned n_blocks = blocks < most ? (unsigned)blocks : most;
    find_absmax<<<n_blocks, THREADS, 0, stream>>>(absmax, (const __nv_bfloat16 *)x, n_packs);
    return cudaGetLastError();
}

/* ---- What a tile is made of: `load` gets 8 elements of a row, `bytes` turns them into 8 bytes ---- */

template <zero_fp8_format_t FORMAT> struct cast_source {
    typedef uint4 loaded;
    const __nv_bfloat16 *x;
    zero_fp8_scales_t *scales;
    float scale;

    /* Every block works the scales out; one writes them. */
    __device__ __forceinline__ void begin(void)
    {
        scale = zero_cast_scale<FORMAT>(scales, blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0);
    }
    __device__ __forceinline__ uint4 load(size_t at) const
    {
        return *reinterpret_cast<const uint4 *>(x + at);
    }
    __device__ __forceinline__ uint2 bytes(uint4 pack) const
    {
        return zero_cast_octet<FORMAT>(pack, scale);
    }
};

struct byte_source {
    typedef uint2 loaded;
    const uint8_t *x;

    __device__ __forceinline__ void begin(void)
    {
    }
    __device__ __forceinline__ uint2 load(size_t at) const
    {
        return *reinterpret_cast<const uint2 *>(x + at);
    }
    __device__ __forceinline__ uint2 bytes(uint2 octet) const
    {
        return octet;
    }
};

/* ---- Tiles ---- */

/* Turns 4 rows of 4 bytes into 4 columns. */
static __device__ __forceinline__ void transpose_words(const uint32_t (&row)[4], uint32_t (&column)[4])
{
    uint32_t even01 = __byte_perm(row[0], row[1], 0x5140), even23 = __byte_perm(row[2], row[3], 0x5140);
    uint32_t odd01 = __byte_perm(row[0], row[1], 0x7362), odd23 = __byte_perm(row[2], row[3], 0x7362);
    column[0] = __byte_perm(even01, even23, 0x5410);
    column[1] = __byte_perm(even01, even23, 0x7632);
    column[2] = __byte_perm(odd01, odd23, 0x5410);
    column[3] = __byte_perm(odd01, odd23, 0x7632);
}

/* Writes the 8 x 8 bytes of a thread to the tile's columns. */
static __device__ __forceinline__ void put_octets(uint2 (*tile)[OCTETS], const uint2 (&bytes)[OCTET], int row_octet,
                                                  int column_octet)
{
    int slot = row_octet ^ column_octet;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        uint32_t above[4], below[4], first[4], second[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            above[i] = half == 0 ? bytes[i].x : bytes[i].y;
            below[i] = half == 0 ? bytes[i + 4].x : bytes[i + 4].y;
        }
        transpose_words(above, first);
        transpose_words(below, second);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            tile[column_octet * OCTET + half * 4 + i][slot] = make_uint2(first[i], second[i]);
    }
}

/* Stores the tile's columns, 16 rows per thread at a time. */
static __device__ __forceinline__ void store_columns(uint8_t *columns, uint2 (*tile)[OCTETS], size_t first_row,
                                                     size_t first_column, size_t n_rows, size_t n_columns)
{
    int pair = threadIdx.x % (OCTETS / 2);
    size_t row = first_row + (size_t)pair * 2 * OCTET;
#pragma unroll
    for (int i = 0; i < TILE * OCTETS / 2 / THREADS; ++i) {
        int in_tile = i * (THREADS * 2 / OCTETS) + (int)threadIdx.x / (OCTETS / 2);
        int order = in_tile / OCTET;
        uint4 two = *reinterpret_cast<const uint4 *>(&tile[in_tile][(pair ^ (order >> 1)) * 2]);
        size_t column = first_column + (size_t)in_tile;
        if (row < n_rows && column < n_columns)
            *reinterpret_cast<uint4 *>(columns + column * n_rows + row) =
                order % 2 == 0 ? two : make_uint4(two.z, two.w, two.x, two.y);
    }
}

template <typename SOURCE>
static __global__ void __launch_bounds__(THREADS)
    write_tile(SOURCE source, uint8_t *rows, uint8_t *columns, size_t n_rows, size_t n_columns)
{
    __shared__ alignas(16) uint2 tile[TILE][OCTETS];
    size_t first_row = (size_t)blockIdx.y * TILE, first_column = (size_t)blockIdx.x * TILE;
    int row_octet = (int)threadIdx.x / OCTETS, column_octet = (int)threadIdx.x % OCTETS;
    size_t row = first_row + (size_t)row_octet * OCTET, column = first_column + (size_t)column_octet * OCTET;
    size_t at = row * n_columns + column;
    source.begin();
    if (row < n_rows && column < n_columns) {
        typename SOURCE::loaded packs[OCTET];
        uint2 bytes[OCTET];
#pragma unroll
        for (int i = 0; i < OCTET; ++i)
            packs[i] = source.load(at + i * n_columns);
#pragma unroll
        for (int i = 0; i < OCTET; ++i)
            bytes[i] = source.bytes(packs[i]);
        if (rows != nullptr)
#pragma unroll
            for (int i = 0; i < OCTET; ++i)
                *reinterpret_cast<uint2 *>(rows + at + i * n_columns) = bytes[i];
        if (columns != nullptr)
            put_octets(tile, bytes, row_octet, column_octet);
    }
    if (columns == nullptr)
        return;
    __syncthreads();
    store_columns(columns, tile, first_row, first_column, n_rows, n_columns);
}

template <typename SOURCE>
static cudaError_t launch_tiles(cudaStream_t stream, SOURCE source, uint8_t *rows, uint8_t *columns, size_t n_rows,
                                size_t n_columns)
{
    dim3 grid((unsigned)zero_divide_up(n_columns, TILE), (unsigned)zero_divide_up(n_rows, TILE));
    if (n_rows == 0 || n_columns == 0)
        return cudaSuccess;
    write_tile<<<grid, THREADS, 0, stream>>>(source, rows, columns, n_rows, n_columns);
    return cudaGetLastError();
}

extern "C" cudaError_t zero_launch_fp8_cast(cudaStream_t stream, const zero_fp8_t *x8, const void *x, size_t n_rows,
                                            size_t n_columns)
{
    const __nv_bfloat16 *from = (const __nv_bfloat16 *)x;
    if (x8->format == ZERO_E4M3)
        return launch_tiles(stream, cast_source<ZERO_E4M3>{from, x8->scales, 1.0f}, x8->rows, x8->columns, n_rows,
                            n_columns);
    return launch_tiles(stream, cast_source<ZERO_E5M2>{from, x8->scales, 1.0f}, x8->rows, x8->columns, n_rows,
                        n_columns);
}

extern "C" cudaError_t zero_launch_fp8_transpose(cudaStream_t stream, uint8_t *columns, const uint8_t *rows,
                                                 size_t n_rows, size_t n_columns)
{
    return launch_tiles(stream, byte_source{rows}, (uint8_t *)nullptr, columns, n_rows, n_columns);
}

/* ---- Widening ---- */

#define WIDE_BYTES 16 /* that a thread reads */

/* Half precision holds every number of E4M3, and bf16 every multiple of it by a power of two. */
static __global__ void __launch_bounds__(THREADS)
    widen(__nv_bfloat16 *weight, const uint8_t *bytes, const zero_fp8_scales_t *scales, size_t n_elems)
{
    const float inverse = scales->inverse;
    size_t first = ((size_t)blockIdx.x * THREADS + threadIdx.x) * WIDE_BYTES;
    if (first + WIDE_BYTES <= n_elems) {
        alignas(16) uint16_t pairs[WIDE_BYTES / 2];
        alignas(16) __nv_bfloat162 out[WIDE_BYTES / 2];
        *reinterpret_cast<uint4 *>(pairs) = *reinterpret_cast<const uint4 *>(bytes + first);
#pragma unroll
        for (int i = 0; i < WIDE_BYTES / 2; ++i) {
            const float2 pair = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pairs[i], __NV_E4M3)));
            out[i] = __floats2bfloat162_rn(pair.x * inverse, pair.y * inverse);
        }
        uint4 *to = reinterpret_cast<uint4 *>(weight + first);
        to[0] = reinterpret_cast<uint4 *>(out)[0];
        to[1] = reinterpret_cast<uint4 *>(out)[1];
        return;
    }
    for (size_t i = first; i < n_elems; ++i)
        weight[i] = __float2bfloat16_rn(zero_float_of_fp8(ZERO_E4M3, bytes[i]) * inverse);
}

extern "C" cudaError_t zero_launch_fp8_widen(cudaStream_t stream, void *weight, zero_fp8_param_t bytes, size_t n_elems)
{
    widen<<<(unsigned)zero_divide_up(n_elems, (size_t)THREADS * WIDE_BYTES), THREADS, 0, stream>>>(
        (__nv_bfloat16 *)weight, bytes.data, bytes.scales, n_elems);
    return cudaGetLastError();
}
