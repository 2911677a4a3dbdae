/* narrow.cu - a wide activation multiplied by narrow matrices, in one pass over it: kernels.h's narrow_product.
 *
 * Bound by memory: x is read once, for up to three results. A block takes 1024 columns of a part and a range of rows,
 * 16 rows at a time, which asynchronous copies bring to shared memory ahead. From there each of its warps
 * multiplies 64 columns by B, which it keeps in registers, and adds x^T u to sums that stay in registers, too. (Ranks
 * of 32 and 48 spill some 100 bytes of a thread.) A second kernel, narrow_finish, adds up the blocks' sums: products
 * with B over the column ranges, x^T u over the row ranges. Both ranges and their order depend on sizes alone. Turn i
 * of a block, with four stages:
 *
 *     copies | stage i + 3 ...                             | stage i + 4 ...
 *     warps  | add up sums of i - 1 | multiply and cast i  | add up sums of i | multiply and cast i + 1
 *            ^ barrier: stage i is here, stage i - 1 and sums of i - 1 are done
 */
#include <cuda_fp8.h>

#include "train/kernels/adapters/adapters.h"
#include "train/kernels/common.h"
#include "train/kernels/cuda/cast.cuh"
#include "train/kernels/cuda/mma.cuh"

#define WARPS 16
#define THREADS (WARPS * ZERO_WARP)
#define STEPS 4                     /* of 16 columns, a warp's */
#define COLUMNS ZERO_NARROW_COLUMNS /* a block's */
#define ROWS 16                     /* of a stage */
#define CHUNKS (COLUMNS / 8)        /* of 16 bytes, in a row */
#define APART (THREADS / CHUNKS)    /* rows between a thread's chunks */
#define STAGE_BYTES (ROWS * COLUMNS * 2)
#define FINISH_THREADS 256
static_assert(WARPS * STEPS * 16 == COLUMNS, "the warps share out the columns");

#define NO_FORMAT (-1) /* no cast */

typedef struct part {
    size_t first, width;
    const __nv_bfloat16 *b;
    zero_grad_t db;
    int first_group; /* index of its first range of columns */
} part_t;

typedef struct call {
    size_t n_rows, n_columns, rank;
    const __nv_bfloat16 *x, *u;
    __nv_bfloat16 *out;
    float scale;
    int n_parts, n_groups;
    part_t parts[ZERO_MAX_NARROW];
    bool transposed;
    uint8_t *rows8; /* NULL: no cast */
    zero_fp8_scales_t *scales;
    float *sums;    /* [n_groups, n_rows, rank] */
    float *slices;  /* [n_slices, n_columns, rank] */
    float *running; /* [n_columns, rank], of the rows of earlier launches */
    int n_slices;
    bool is_first, is_last;
} call_t;

/* Returns how many floats a row of RANK sums takes in shared memory, so that rows lie in different banks. */
template <int RANK> static constexpr int padded = RANK % 16 == 0 ? RANK + 8 : RANK;
/* The warps' products of a stage with B: float [2][WARPS][ROWS][padded]. While they are added up, the next are written.
 */
template <int RANK> static constexpr int sums_elems = WARPS *ROWS *padded<RANK>;
/* As many stages as fit into Hopper's 227 KiB beside the sums. */
template <int RANK> static constexpr int stages = RANK <= 24 ? 5 : RANK <= 32 ? 4 : 3;
template <int RANK> static constexpr int stage_bytes = STAGE_BYTES + ROWS *RANK * 2; /* of x, then u */

template <int RANK> static constexpr size_t shared_bytes(void)
{
    return (size_t)stages<RANK> * stage_bytes<RANK> + 2 * sums_elems<RANK> * sizeof(float);
}

static __device__ __forceinline__ const part_t &part_of_group(const call_t &call, int group)
{
    int i = 0;
    while (i + 1 < call.n_parts && group >= call.parts[i + 1].first_group)
        ++i;
    return call.parts[i];
}

/* Returns where a chunk of a stage's row is. */
static __device__ __forceinline__ uint32_t at(int row, int chunk)
{
    return (uint32_t)(row * COLUMNS * 2 + ((chunk ^ (row & 7)) << 4));
}

/* What a thread copies: a chunk of every APART-th row. */
typedef struct thread_part {
    int row, chunk;
    bool has_columns; /* the part has the chunk's columns */
    size_t at;        /* of the chunk of the stage's first such row, in x and in its bytes; moves with the stage */
} thread_part_t;

/* Starts copying 16 rows of x, of which n_rows exist, and of u. */
template <int RANK, bool HAS_U>
static __device__ __forceinline__ void load_stage(const call_t &call, int part, uint32_t stage, size_t first_row,
                                                  const thread_part_t &mine, size_t x_at)
{
    const int n_rows = (int)min(call.n_rows - first_row, (size_t)ROWS);
    const __nv_bfloat16 *from = call.x + x_at;
    const size_t step = APART * call.n_columns;
#pragma unroll
    for (int i = 0; i < ROWS / APART; ++i) {
        const int row = mine.row + i * APART;
        const bool valid = mine.has_columns && row < n_rows;
        zero_copy_16(stage + at(row, mine.chunk), valid ? from : call.x, valid);
        from += step;
    }
    if (HAS_U && threadIdx.x < ROWS * RANK / 8) {
        const int chunk = (int)threadIdx.x % (RANK / 8), row = (int)threadIdx.x / (RANK / 8);
        const bool valid = row < n_rows;
        const size_t elem =
            ((first_row + (size_t)row) * (size_t)call.n_parts + (size_t)part) * RANK + (size_t)chunk * 8;
        zero_copy_16(stage + STAGE_BYTES + (uint32_t)(row * RANK * 2 + chunk * 16), call.u + (valid ? elem : 0), valid);
    }
}

/* Returns two neighbours of B, of a column and the next, which exist both or neither. */
static __device__ __forceinline__ uint32_t pair_of(const call_t &call, const part_t &part, size_t column, size_t rank)
{
    if (column >= part.width)
        return 0;
    if (call.transposed)
        return *reinterpret_cast<const uint32_t *>(part.b + rank * part.width + column);
    const uint16_t *b = reinterpret_cast<const uint16_t *>(part.b) + column * call.rank + rank;
    return b[0] | (uint32_t)b[call.rank] << 16;
}

/* Casts the stage's rows, 8 elements of each thread at a time. */
template <int FORMAT>
static __device__ __forceinline__ void cast_stage(const call_t &call, const unsigned char *stage, int n_rows,
                                                  const thread_part_t &mine, float scale)
{
    uint8_t *to = call.rows8 + mine.at;
    const size_t step = APART * call.n_columns;
#pragma unroll
    for (int i = 0; i < ROWS / APART; ++i) {
        const int row = mine.row + i * APART;
        if (mine.has_columns && row < n_rows)
            *reinterpret_cast<uint2 *>(to) = zero_cast_octet<(zero_fp8_format_t)FORMAT>(
                *reinterpret_cast<const uint4 *>(stage + at(row, mine.chunk)), scale);
        to += step;
    }
}

/* Adds up what the warps have of a stage. */
template <int RANK> static __device__ __forceinline__ void add_warps(float *out, const float *sums, int n_rows)
{
    for (int i = (int)threadIdx.x; i < n_rows * RANK; i += THREADS) {
        const float *from = sums + i / RANK * padded<RANK> + i % RANK;
        float all = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w)
            all += from[w * ROWS * padded<RANK>];
        out[i] = all;
    }
}

/* Writes the block's x^T u. */
template <int RANK>
static __device__ __forceinline__ void store_slices(const call_t &call, const part_t &part, size_t first_column,
                                                    int warp, int g, int t, const float (&db)[STEPS][RANK / 8][4])
{
#pragma unroll
    for (int k = 0; k < STEPS; ++k)
#pragma unroll
        for (int below = 0; below < 2; ++below) {
            const size_t column = first_column + (size_t)((warp * STEPS + k) * 16 + g + below * 8);
            float *to = call.slices + ((size_t)blockIdx.y * call.n_columns + part.first + column) * RANK + 2 * t;
            if (column >= part.width)
                continue;
#pragma unroll
            for (int n = 0; n < RANK / 8; ++n)
                *reinterpret_cast<float2 *>(to + n * 8) = make_float2(db[k][n][2 * below], db[k][n][2 * below + 1]);
        }
}

template <int RANK, bool HAS_U, int FORMAT>
static __global__ void __launch_bounds__(THREADS, 1) narrow_multiply(const __grid_constant__ call_t call)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    constexpr int N = RANK / 8, STAGES = stages<RANK>;
    const int warp = (int)threadIdx.x / ZERO_WARP, lane = (int)threadIdx.x % ZERO_WARP, g = lane / 4, t = lane % 4;
    const int group = (int)blockIdx.x;
    const part_t &part = part_of_group(call, group);
    const int index = (int)(&part - call.parts);
    const size_t first_column = (size_t)(group - part.first_group) * COLUMNS;
    const size_t n_tiles = (call.n_rows + ROWS - 1) / ROWS, share = (n_tiles + gridDim.y - 1) / gridDim.y;
    const size_t begin = min((size_t)blockIdx.y * share, n_tiles), end = min(begin + share, n_tiles);
    float *const sums = reinterpret_cast<float *>(shared + STAGES * stage_bytes<RANK>);
    float *const out = call.sums + (size_t)group * call.n_rows * RANK;
    const uint32_t memory = zero_shared_address(shared);
    const size_t step = ROWS * call.n_columns;
    thread_part_t mine = {.row = (int)threadIdx.x / CHUNKS, .chunk = (int)threadIdx.x % CHUNKS};
    mine.has_columns = first_column + (size_t)mine.chunk * 8 < part.width;
    mine.at = (begin * ROWS + (size_t)mine.row) * call.n_columns + part.first + first_column + (size_t)mine.chunk * 8;
    float scale = 0.0f;
    if (FORMAT != NO_FORMAT)
        scale = zero_cast_scale<(zero_fp8_format_t)FORMAT>(call.scales,
                                                           blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0);
    size_t loads_at = mine.at; /* of the stage that is loaded next */
    for (size_t i = 0; i < STAGES - 1; ++i, loads_at += step) {
        if (begin + i < end)
            load_stage<RANK, HAS_U>(call, index, memory + (uint32_t)i * stage_bytes<RANK>, (begin + i) * ROWS, mine,
                                    loads_at);
        zero_end_copies();
    }
    zero_may_launch_next();
    uint32_t b[STEPS][N][2];
    float db[STEPS][N][4];
#pragma unroll
    for (int k = 0; k < STEPS; ++k)
#pragma unroll
        for (int n = 0; n < N; ++n) {
            const size_t column = first_column + (size_t)((warp * STEPS + k) * 16 + 2 * t);
            b[k][n][0] = pair_of(call, part, column, (size_t)(n * 8 + g));
            b[k][n][1] = pair_of(call, part, column + 8, (size_t)(n * 8 + g));
#pragma unroll
            for (int e = 0; e < 4; ++e)
                db[k][n][e] = 0.0f;
        }
    int slot = 0, half = 0;
    for (size_t tile = begin; tile < end; ++tile, slot = slot + 1 == STAGES ? 0 : slot + 1, half ^= 1) {
        zero_wait_for_copies<STAGES - 2>();
        __syncthreads();
        const int next = slot == 0 ? STAGES - 1 : slot - 1; /* the one that was read last */
        if (tile + STAGES - 1 < end)
            load_stage<RANK, HAS_U>(call, index, memory + (uint32_t)next * stage_bytes<RANK>,
                                    (tile + STAGES - 1) * ROWS, mine, loads_at);
        loads_at += step;
        zero_end_copies();
        if (tile > begin)
            add_warps<RANK>(out + (tile - 1) * ROWS * RANK, sums + (half ^ 1) * sums_elems<RANK>, ROWS);
        const uint32_t stage = memory + (uint32_t)slot * stage_bytes<RANK>;
        uint32_t u[N][2];
        if (HAS_U)
#pragma unroll
            for (int n = 0; n < N; n += 2) {
                uint32_t two[4];
                const int row = (lane & 7) + (lane >> 3 & 1) * 8, chunk = min(n + (lane >> 4), N - 1);
                zero_load_matrices_transposed(two, stage + STAGE_BYTES + (uint32_t)(row * RANK * 2 + chunk * 16));
                u[n][0] = two[0], u[n][1] = two[1];
                if (n + 1 < N)
                    u[n + 1][0] = two[2], u[n + 1][1] = two[3];
            }
        float sum[N][4] = {};
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            const int first = (warp * STEPS + k) * 2; /* chunk */
            uint32_t a[4];
            zero_load_matrices(a, stage + at(lane & 15, first + (lane >> 4)));
#pragma unroll
            for (int n = 0; n < N; ++n)
                zero_mma<__nv_bfloat16>(sum[n], a, b[k][n][0], b[k][n][1]);
            if (HAS_U) {
                zero_load_matrices_transposed(a, stage + at((lane & 7) + (lane >> 4) * 8, first + (lane >> 3 & 1)));
#pragma unroll
                for (int n = 0; n < N; ++n)
                    zero_mma<__nv_bfloat16>(db[k][n], a, u[n][0], u[n][1]);
            }
        }
        float *const own = sums + half * sums_elems<RANK> + (warp * ROWS + g) * padded<RANK> + 2 * t;
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
            for (int below = 0; below < 2; ++below)
                *reinterpret_cast<float2 *>(own + below * 8 * padded<RANK> + n * 8) =
                    make_float2(sum[n][2 * below], sum[n][2 * below + 1]);
        if (FORMAT != NO_FORMAT)
            cast_stage<FORMAT>(call, shared + slot * stage_bytes<RANK>,
                               (int)min(call.n_rows - tile * ROWS, (size_t)ROWS), mine, scale);
        mine.at += step;
    }
    __syncthreads();
    if (end > begin)
        add_warps<RANK>(out + (end - 1) * ROWS * RANK, sums + (half ^ 1) * sums_elems<RANK>,
                        (int)min(call.n_rows - (end - 1) * ROWS, (size_t)ROWS));
    if constexpr (HAS_U)
        store_slices<RANK>(call, part, first_column, warp, g, t, db);
}

/* Adds n arrays of four, `stride` floats apart. */
static __device__ __forceinline__ float4 add_up(const float *from, int n, size_t stride)
{
    float4 all = *reinterpret_cast<const float4 *>(from);
    for (int i = 1; i < n; ++i) {
        const float4 next = *reinterpret_cast<const float4 *>(from + (size_t)i * stride);
        all.x += next.x, all.y += next.y, all.z += next.z, all.w += next.w;
    }
    return all;
}

static __device__ __forceinline__ void finish_out(const call_t &call, size_t i)
{
    const size_t fours = call.rank / 4, row = i / (fours * (size_t)call.n_parts),
                 rest = i % (fours * (size_t)call.n_parts);
    const int index = (int)(rest / fours), first = call.parts[index].first_group;
    const int end = index + 1 < call.n_parts ? call.parts[index + 1].first_group : call.n_groups;
    const float4 sum = add_up(call.sums + ((size_t)first * call.n_rows + row) * call.rank + rest % fours * 4,
                              end - first, call.n_rows * call.rank);
    const float values[4] = {sum.x * call.scale, sum.y * call.scale, sum.z * call.scale, sum.w * call.scale};
    zero_store(call.out, i * 4, values);
}

static __device__ __forceinline__ void finish_db(const call_t &call, size_t i)
{
    const size_t fours = call.rank / 4, column = i / fours;
    for (int p = 0; p < call.n_parts; ++p) {
        const part_t &part = call.parts[p];
        if (column < part.first || column >= part.first + part.width || part.db.data == nullptr)
            continue;
        float4 sum = add_up(call.slices + i * 4, call.n_slices, call.n_columns * call.rank);
        float4 *running = reinterpret_cast<float4 *>(call.running + i * 4);
        if (!call.is_first)
            sum.x += running->x, sum.y += running->y, sum.z += running->z, sum.w += running->w;
        const float values[4] = {sum.x, sum.y, sum.z, sum.w};
        if (call.is_last)
            zero_put_grad<4>(part.db, (column - part.first) * call.rank + i % fours * 4, values);
        else
            *running = sum;
    }
}

static __global__ void __launch_bounds__(FINISH_THREADS)
    narrow_finish(const __grid_constant__ call_t call, size_t n_out, size_t n_all)
{
    const size_t i = (size_t)blockIdx.x * FINISH_THREADS + threadIdx.x;
    zero_wait_for_last();
    if (i < n_out)
        finish_out(call, i);
    else if (i < n_all)
        finish_db(call, i - n_out);
}

/* ---- launching ---- */

/* Returns the ranges of rows with which the blocks fill the GPU best. Each costs sums of its own. */
static int slices_of(size_t n_rows, size_t n_columns, size_t rank, int n_groups)
{
    const size_t n_tiles = (n_rows + ROWS - 1) / ROWS, most = zero_narrow_slices(n_columns, rank);
    double least = 0.0;
    int best = 1;
    for (int n = 1; n <= (int)(most < n_tiles ? most : n_tiles); ++n) {
        const int blocks = n * n_groups, waves = (blocks + ZERO_SMS - 1) / ZERO_SMS;
        const double cost = (double)n_rows * 2.0 * waves * ZERO_SMS / blocks + 8.0 * n * (double)rank;
        if (n == 1 || cost < least) {
            least = cost;
            best = n;
        }
    }
    return best;
}

template <int RANK, bool HAS_U, int FORMAT> static cudaError_t launch(cudaStream_t stream, const call_t &call)
{
    constexpr size_t n_bytes = shared_bytes<RANK>();
    const auto kernel = narrow_multiply<RANK, HAS_U, FORMAT>;
    cudaError_t error =
        cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)n_bytes);
    if (error != cudaSuccess)
        return error;
    kernel<<<dim3((unsigned)call.n_groups, (unsigned)call.n_slices), THREADS, n_bytes, stream>>>(call);
    const size_t n_out = call.n_rows * call.rank * (size_t)call.n_parts / 4;
    const size_t n_all = n_out + (HAS_U ? call.n_columns * call.rank / 4 : 0);
    error = cudaGetLastError();
    if (error != cudaSuccess)
        return error;
    return zero_launch_next(stream, narrow_finish, (unsigned)zero_divide_up(n_all, FINISH_THREADS), FINISH_THREADS,
                            call, n_out, n_all);
}

/* Sums of x^T u of larger ranks do not fit into registers. */
static constexpr bool has_gradients(size_t rank)
{
    return rank == 8 || rank == 16 || rank == 32;
}

template <int RANK> static cudaError_t launch_rank(cudaStream_t stream, const call_t &call, const zero_fp8_t *x8)
{
    if constexpr (has_gradients(RANK))
        if (call.u != nullptr)
            return x8 == nullptr ? launch<RANK, true, NO_FORMAT>(stream, call)
                                 : launch<RANK, true, ZERO_E5M2>(stream, call);
    return launch<RANK, false, ZERO_E4M3>(stream, call);
}

extern "C" bool zero_narrow_takes(const zero_narrow_product_t *p)
{
    int gpu = 0, most = 0;
    const size_t rank = p->rank;
    bool takes =
        p->n_columns % 8 == 0 && zero_aligned(p->x) && zero_aligned(p->out) && zero_aligned(p->u) && p->n_rows > 0;
    const zero_fp8_format_t format = p->u != nullptr ? ZERO_E5M2 : ZERO_E4M3;
    takes = takes && (has_gradients(rank) || (p->u == nullptr && (rank == 24 || rank == 48)));
    takes = takes && (p->x8 == nullptr ? p->u != nullptr : p->x8->columns == nullptr && p->x8->format == format);
    size_t n_covered = 0;
    for (int i = 0; i < p->n_parts; ++i) {
        takes = takes && p->parts[i].first % 8 == 0 && p->parts[i].width % 8 == 0;
        takes = takes && (uintptr_t)p->parts[i].b.data % sizeof(uint32_t) == 0;
        n_covered += p->parts[i].width;
    }
    takes = takes && (p->x8 == nullptr || n_covered == p->n_columns);
    return takes && cudaGetDevice(&gpu) == cudaSuccess &&
           cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, gpu) == cudaSuccess &&
           (size_t)most >= max(shared_bytes<16>(), max(shared_bytes<32>(), shared_bytes<48>()));
}

extern "C" cudaError_t zero_launch_narrow(cudaStream_t stream, const zero_narrow_product_t *p, float *scratch)
{
    call_t call = {};
    call.n_columns = p->n_columns, call.rank = p->rank, call.scale = p->scale, call.transposed = p->transposed;
    call.n_parts = p->n_parts;
    for (int i = 0; i < p->n_parts; ++i) {
        const zero_narrow_part_t *part = &p->parts[i];
        call.parts[i] = {part->first, part->width, (const __nv_bfloat16 *)part->b.data, part->db, call.n_groups};
        call.n_groups += (int)zero_divide_up(part->width, COLUMNS);
    }
    call.scales = p->x8 != nullptr ? p->x8->scales : nullptr;
    call.running = scratch;
    call.slices = call.running + p->n_columns * p->rank;
    for (size_t first = 0; first < p->n_rows; first += ZERO_NARROW_ROWS) {
        const size_t n_left = p->n_rows - first, width = p->rank * (size_t)p->n_parts;
        call.is_first = first == 0, call.is_last = n_left <= ZERO_NARROW_ROWS;
        call.n_rows = call.is_last ? n_left : ZERO_NARROW_ROWS;
        call.n_slices = slices_of(call.n_rows, call.n_columns, call.rank, call.n_groups);
        call.sums = call.slices + (p->u != nullptr ? (size_t)call.n_slices * p->n_columns * p->rank : 0);
        call.x = (const __nv_bfloat16 *)p->x + first * p->n_columns;
        call.u = p->u != nullptr ? (const __nv_bfloat16 *)p->u + first * width : nullptr;
        call.out = (__nv_bfloat16 *)p->out + first * width;
        call.rows8 = p->x8 != nullptr ? p->x8->rows + first * p->n_columns : nullptr;
        const cudaError_t error = p->rank == 8    ? launch_rank<8>(stream, call, p->x8)
                                  : p->rank == 16 ? launch_rank<16>(stream, call, p->x8)
                                  : p->rank == 24 ? launch_rank<24>(stream, call, p->x8)
                                  : p->rank == 32 ? launch_rank<32>(stream, call, p->x8)
                                                  : launch_rank<48>(stream, call, p->x8);
        if (error != cudaSuccess)
            return error;
    }
    return cudaSuccess;
}
