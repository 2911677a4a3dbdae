/* gated.cu - SwiGLU and GeGLU with adapters, and their gradients: kernels.h's gated_adapters.
 *
 * u B^T is added where gate_up = x W is read, so that it takes no pass over memory; so is u B to dy in backward. Bound
 * by memory, as mlp.cu. A warp takes 32 columns of gate and the same of up, and goes down the rows. Asynchronous copies
 * bring what a thread reads to its own places in shared memory, two turns ahead: no thread waits for another's copies.
 */
#include "train/kernels/adapters/adapters.h"
#include "train/kernels/adapters/low_rank.cuh"
#include "train/kernels/cuda/activation.cuh"
#include "train/kernels/cuda/maximum.cuh"

#define STAGES 3

typedef struct call {
    zero_low_rank_operands gate, up, dy;
    __nv_bfloat16 *y, *d_gate_up;
    const __nv_bfloat16 *gate_up, *d_y;
    size_t n_rows, width;
} call_t;

/* What a thread reads for two rows that are 8 apart: eight columns of gate, of up, and of dy in backward. */
template <bool BACKWARD> struct elements {
    static constexpr int OCTETS = BACKWARD ? 6 : 4, STAGE_BYTES = OCTETS * ZERO_LOW_RANK_THREADS * 16;
    zero_octet gate[2], up[2], dy[2];

    /* Starts copying to the thread's own places in a stage. n_rows: that exist, from the first of the two on. */
    static __device__ __forceinline__ void start(uint32_t stage, const __nv_bfloat16 *gate_up, const __nv_bfloat16 *d_y,
                                                 size_t width, int n_rows)
    {
#pragma unroll
        for (int below = 0; below < 2; ++below)
            if (8 * below < n_rows) {
                zero_copy_16(stage + below * ZERO_LOW_RANK_THREADS * 16, gate_up + below * 16 * width, true);
                zero_copy_16(stage + (2 + below) * ZERO_LOW_RANK_THREADS * 16, gate_up + below * 16 * width + width,
                             true);
                if (BACKWARD)
                    zero_copy_16(stage + (4 + below) * ZERO_LOW_RANK_THREADS * 16, d_y + below * 8 * width, true);
            }
        zero_end_copies();
    }
    /* Reads what has been copied, once this thread has waited for it. */
    __device__ __forceinline__ void load(const unsigned char *stage)
    {
#pragma unroll
        for (int below = 0; below < 2; ++below) {
            gate[below] = *reinterpret_cast<const zero_octet *>(stage + below * ZERO_LOW_RANK_THREADS * 16);
            up[below] = *reinterpret_cast<const zero_octet *>(stage + (2 + below) * ZERO_LOW_RANK_THREADS * 16);
            if (BACKWARD)
                dy[below] = *reinterpret_cast<const zero_octet *>(stage + (4 + below) * ZERO_LOW_RANK_THREADS * 16);
        }
    }
};

/* Of product j: c[2 below + i] = element i of word j in row `below`, as low_rank.cuh has them. */
static __device__ __forceinline__ void spread(float (&c)[4], const zero_octet (&packs)[2], int j)
{
    c[0] = packs[0][2 * j], c[1] = packs[0][2 * j + 1], c[2] = packs[1][2 * j], c[3] = packs[1][2 * j + 1];
}

static __device__ __forceinline__ void gather(zero_octet (&packs)[2], const float (&c)[4], int j)
{
    packs[0].word[j] = zero_pair<__nv_bfloat16>::of(c[0], c[1]);
    packs[1].word[j] = zero_pair<__nv_bfloat16>::of(c[2], c[3]);
}

/* A block's shared memory: the stages, each thread's own places in them, then the rows of u. */
template <int STEPS, bool BACKWARD> static constexpr size_t shared_bytes(void)
{
    return STAGES * elements<BACKWARD>::STAGE_BYTES +
           (BACKWARD ? 3 : 2) * sizeof(zero_low_rank_tile<STEPS, ZERO_LOW_RANK_BLOCK_ROWS>);
}

template <typename ACT, int STEPS, bool BACKWARD, typename MAXIMUM>
static __global__ void __launch_bounds__(ZERO_LOW_RANK_THREADS, 2)
    gated_low_rank(const __grid_constant__ call_t call, MAXIMUM maximum)
{
    extern __shared__ __align__(16) unsigned char shared[];
    typedef elements<BACKWARD> elements_t;
    zero_low_rank_tile<STEPS, ZERO_LOW_RANK_BLOCK_ROWS> *tiles =
        reinterpret_cast<zero_low_rank_tile<STEPS, ZERO_LOW_RANK_BLOCK_ROWS> *>(shared +
                                                                                STAGES * elements_t::STAGE_BYTES);
    const uint32_t warp = threadIdx.x / ZERO_WARP, lane = threadIdx.x % ZERO_WARP, g = lane / 4, t = lane % 4;
    const size_t first_column = (size_t)blockIdx.x * ZERO_LOW_RANK_BLOCK_COLUMNS + warp * ZERO_LOW_RANK_COLUMNS,
                 width = call.width;
    const size_t first_row = (size_t)blockIdx.y * ZERO_LOW_RANK_BLOCK_ROWS, column = first_column + 8 * t;
    const int n_rows = (int)min(call.n_rows - first_row, (size_t)ZERO_LOW_RANK_BLOCK_ROWS);
    const int n_own = column < width ? n_rows - (int)g : 0; /* of the lane's rows and those between them */
    const size_t step = ZERO_LOW_RANK_ROWS * width;
    /* The lane's first element is at `at` of y, and gate_at behind that in gate_up, whose rows are twice as long: there
     * 8 rows are `step` elements. */
    size_t at = (first_row + g) * width + column, loads_at = at;
    const size_t gate_at = (first_row + g) * width;
    const unsigned char *const own = shared + threadIdx.x * 16;
    zero_low_rank_columns<STEPS> of_gate, of_up, of_dy;
    tiles[0].load(call.gate, first_row, call.n_rows);
    tiles[1].load(call.up, first_row, call.n_rows);
    if (BACKWARD)
        tiles[2].load(call.dy, first_row, call.n_rows);
    const auto start = [&](int row) {
        const int i = row / ZERO_LOW_RANK_ROWS;
        elements_t::start(zero_shared_address(own) + i % STAGES * elements_t::STAGE_BYTES,
                          call.gate_up + gate_at + (size_t)i * step + loads_at, call.d_y + loads_at, width,
                          n_own - row);
        loads_at += step;
    };
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i)
        start(i * ZERO_LOW_RANK_ROWS);
    of_gate.template load<false>(call.gate, first_column, width);
    of_up.template load<false>(call.up, first_column, width);
    if (BACKWARD)
        of_dy.template load<true>(call.dy, first_column, width);
#pragma unroll
    for (int row = 0; row < ZERO_LOW_RANK_BLOCK_ROWS; row += ZERO_LOW_RANK_ROWS) {
        const int i = row / ZERO_LOW_RANK_ROWS;
        elements_t e;
        zero_low_rank_rows<STEPS> u_gate, u_up, u_dy;
        zero_octet y[2];
        zero_wait_for_copies<STAGES - 2>();
        if (i == 0)
            __syncthreads(); /* the tiles are here */
        start(row + (STAGES - 1) * ZERO_LOW_RANK_ROWS);
        e.load(own + i % STAGES * elements_t::STAGE_BYTES);
        u_gate.load(tiles[0], row);
        u_up.load(tiles[1], row);
        if (BACKWARD)
            u_dy.load(tiles[2], row);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            float gate[4], up[4], dy[4], out[4];
            spread(gate, e.gate, j);
            spread(up, e.up, j);
            zero_add_low_rank(gate, u_gate, of_gate, j);
            zero_add_low_rank(up, u_up, of_up, j);
            if (BACKWARD) {
                spread(dy, e.dy, j);
                zero_add_low_rank(dy, u_dy, of_dy, j);
            }
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                const zero_activation act = ACT::template of<true>(gate[k]);
                out[k] = act.value * up[k];
                if (BACKWARD) {
                    gate[k] = dy[k] * up[k] * act.slope;
                    up[k] = dy[k] * act.value;
                }
            }
            gather(y, out, j);
            if (BACKWARD) {
                gather(e.gate, gate, j);
                gather(e.up, up, j);
            }
        }
#pragma unroll
        for (int below = 0; below < 2; ++below) {
            __nv_bfloat16 *const to = call.d_gate_up + gate_at + (size_t)i * step + at + below * step;
            if (row + 8 * below >= n_own)
                continue;
            if (BACKWARD) {
                zero_store_octet(to, e.gate[below]);
                zero_store_octet(to + width, e.up[below]);
                maximum.see(e.gate[below]);
                maximum.see(e.up[below]);
            } else {
                maximum.see(y[below]);
            }
            if (!BACKWARD || call.y != nullptr)
                zero_store_octet(call.y + at + below * step / 2, y[below]);
        }
        at += step;
    }
    maximum.finish(true);
}

/* ---- launching ---- */

static zero_low_rank_operands operands(const zero_low_rank_t &of, size_t rank, size_t ldb)
{
    return {(const __nv_bfloat16 *)of.u, (const __nv_bfloat16 *)of.b.data, of.ld, ldb, (uint32_t)rank};
}

template <typename ACT, int STEPS, bool BACKWARD>
static cudaError_t launch(cudaStream_t stream, const call_t &call, uint32_t *absmax)
{
    const dim3 grid((unsigned)zero_divide_up(call.width, ZERO_LOW_RANK_BLOCK_COLUMNS),
                    (unsigned)zero_divide_up(call.n_rows, ZERO_LOW_RANK_BLOCK_ROWS));
    return zero_with_maximum<__nv_bfloat16>(absmax, [&](auto maximum) {
        constexpr size_t n_bytes = shared_bytes<STEPS, BACKWARD>();
        const auto kernel = gated_low_rank<ACT, STEPS, BACKWARD, decltype(maximum)>;
        const cudaError_t error =
            cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)n_bytes);
        if (error != cudaSuccess)
            return error;
        kernel<<<grid, ZERO_LOW_RANK_THREADS, n_bytes, stream>>>(call, maximum);
        return cudaGetLastError();
    });
}

template <bool BACKWARD>
static cudaError_t launch_call(cudaStream_t stream, const call_t &call, bool is_gelu, size_t rank, uint32_t *absmax)
{
    if (is_gelu)
        return rank <= 16 ? launch<zero_gelu, 1, BACKWARD>(stream, call, absmax)
                          : launch<zero_gelu, 2, BACKWARD>(stream, call, absmax);
    return rank <= 16 ? launch<zero_silu, 1, BACKWARD>(stream, call, absmax)
                      : launch<zero_silu, 2, BACKWARD>(stream, call, absmax);
}

extern "C" bool zero_gated_takes(size_t rank, size_t width)
{
    int gpu = 0, most = 0;
    const size_t of_maximum = 32 * sizeof(uint32_t); /* zero_maximum's own */
    const size_t n_bytes = (rank <= 16 ? shared_bytes<1, true>() : shared_bytes<2, true>()) + of_maximum;
    return rank % 8 == 0 && rank > 0 && rank <= ZERO_LOW_RANK_MAX && width % 8 == 0 &&
           cudaGetDevice(&gpu) == cudaSuccess &&
           cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, gpu) == cudaSuccess &&
           (size_t)most >= n_bytes;
}

extern "C" cudaError_t zero_launch_gated(cudaStream_t stream, bool is_gelu, const zero_gated_adapters_t *adapters,
                                         void *y, const void *gate_up, size_t n_rows, size_t width, uint32_t *absmax)
{
    call_t call = {};
    call.gate = operands(adapters->gate, adapters->rank, adapters->rank);
    call.up = operands(adapters->up, adapters->rank, adapters->rank);
    call.y = (__nv_bfloat16 *)y, call.gate_up = (const __nv_bfloat16 *)gate_up;
    call.n_rows = n_rows, call.width = width;
    return launch_call<false>(stream, call, is_gelu, adapters->rank, absmax);
}

extern "C" cudaError_t zero_launch_gated_backward(cudaStream_t stream, bool is_gelu,
                                                  const zero_gated_adapters_t *adapters, void *dgate_up, void *y,
                                                  const void *dy, const void *gate_up, size_t n_rows, size_t width,
                                                  uint32_t *absmax)
{
    call_t call = {};
    call.gate = operands(adapters->gate, adapters->rank, adapters->rank);
    call.up = operands(adapters->up, adapters->rank, adapters->rank);
    call.dy = operands(adapters->dy, adapters->rank, width);
    call.y = (__nv_bfloat16 *)y, call.d_gate_up = (__nv_bfloat16 *)dgate_up;
    call.gate_up = (const __nv_bfloat16 *)gate_up, call.d_y = (const __nv_bfloat16 *)dy;
    call.n_rows = n_rows, call.width = width;
    return launch_call<true>(stream, call, is_gelu, adapters->rank, absmax);
}
