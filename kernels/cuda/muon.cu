/* muon.cu - the element-wise parts of Muon on CUDA: momentum and the step of the weights (muon.c's twins, with equal
 * bits), and what a matrix' products have between them (orthogonalize_cuda.c): its norm, a diagonal.
 *
 * A row of blocks goes over each segment, as many as the longest one has; those behind a segment's end do nothing.
 * Neighbouring threads take neighbouring elements. The norm is summed in one order: each thread's elements, the threads
 * of a block in halves, the blocks one after another.
 */
#include "kernels/cuda/master.cuh"
#include "kernels/cuda/shard_cuda.h"

constexpr unsigned THREADS = 256;
constexpr unsigned THREAD_ELEMS = 8; /* of a segment, with stride THREADS */
constexpr unsigned BLOCK_ELEMS = THREADS * THREAD_ELEMS;

/* ---- Momentum and step ---------------------------------------------------------------------------------------------
 */

struct fp32_update {
    typedef float type;
    static __device__ float load(float x)
    {
        return x;
    }
    static __device__ float store(float x)
    {
        return x;
    }
};

struct bf16_update {
    typedef uint16_t type;
    static __device__ float load(uint16_t x)
    {
        return zero_float_of_bf16(x);
    }
    static __device__ uint16_t store(float x)
    {
        return zero_bf16_of_float(x);
    }
};

template <typename UPDATE>
static __global__ void __launch_bounds__(THREADS) momentum_kernel(const __grid_constant__ zero_muon_t args)
{
    const zero_muon_segment_t segment = args.segments[blockIdx.y];
    const float grad_scale = args.scalars->grad_scale;
    if (args.scalars->skip)
        return;
    for (unsigned k = 0; k < THREAD_ELEMS; ++k) {
        const uint64_t i = (uint64_t)blockIdx.x * BLOCK_ELEMS + k * THREADS + threadIdx.x;
        if (i >= segment.n_elems)
            return;
        float m = args.m[segment.state + i];
        const float update = zero_muon_momentum_element(args.momentum, args.one_minus_momentum, grad_scale,
                                                        args.grad[segment.grad + i], &m);
        args.m[segment.state + i] = m;
        if (args.update != NULL)
            ((typename UPDATE::type *)args.update)[segment.at + i] = UPDATE::store(update);
    }
}

template <typename UPDATE, typename FORM>
static __global__ void __launch_bounds__(THREADS) apply_kernel(const __grid_constant__ zero_muon_t args)
{
    const zero_muon_segment_t segment = args.segments[blockIdx.y];
    const zero_tensor_scalars_t *own = args.by_tensor ? &args.by_tensor[segment.tensor] : NULL;
    const float lr = own ? own->scalars.lr : args.scalars->lr, decay = own ? own->decay : segment.decay;
    const float shrink = -(lr * decay), step = -(lr * segment.scale);
    if (args.scalars->skip)
        return;
    for (unsigned k = 0; k < THREAD_ELEMS; ++k) {
        const uint64_t i = (uint64_t)blockIdx.x * BLOCK_ELEMS + k * THREADS + threadIdx.x;
        if (i >= segment.n_elems)
            return;
        typename FORM::param_t *at_param = (typename FORM::param_t *)args.param + segment.param + i;
        typename FORM::param_t param = FORM::reads_param ? *at_param : 0;
        typename FORM::master_lo_t master_lo = 0;
        if constexpr (FORM::has_master_lo)
            master_lo = ((typename FORM::master_lo_t *)args.master_lo)[segment.state + i];
        const float update = UPDATE::load(((const typename UPDATE::type *)args.update)[segment.at + i]);
        FORM::split(zero_muon_apply_element(shrink, step, update, FORM::join(param, master_lo)), &param, &master_lo);
        *at_param = param;
        if constexpr (FORM::has_master_lo)
            ((typename FORM::master_lo_t *)args.master_lo)[segment.state + i] = master_lo;
    }
}

static dim3 grid_of(const zero_muon_t *args)
{
    return dim3(blocks_for(args->longest, BLOCK_ELEMS), (unsigned)args->n_segments);
}

cudaError_t zero_cuda_muon_momentum(const zero_muon_t *args, cudaStream_t stream)
{
    if (args->update_dtype == ZERO_BF16)
        momentum_kernel<bf16_update><<<grid_of(args), THREADS, 0, stream>>>(*args);
    else
        momentum_kernel<fp32_update><<<grid_of(args), THREADS, 0, stream>>>(*args);
    return cudaGetLastError();
}

template <typename UPDATE> static void launch_apply(const zero_muon_t *args, cudaStream_t stream)
{
    if (args->param_dtype == ZERO_BF16)
        apply_kernel<UPDATE, bf16_master><<<grid_of(args), THREADS, 0, stream>>>(*args);
    else if (args->param_dtype == ZERO_FP16)
        apply_kernel<UPDATE, fp16_master><<<grid_of(args), THREADS, 0, stream>>>(*args);
    else
        apply_kernel<UPDATE, fp32_master><<<grid_of(args), THREADS, 0, stream>>>(*args);
}

cudaError_t zero_cuda_muon_apply(const zero_muon_t *args, cudaStream_t stream)
{
    if (args->update_dtype == ZERO_BF16)
        launch_apply<bf16_update>(args, stream);
    else
        launch_apply<fp32_update>(args, stream);
    return cudaGetLastError();
}

/* ---- The norm of a matrix in bf16 ----------------------------------------------------------------------------------
 */

constexpr unsigned NORM_BLOCKS = 512; /* whatever the matrix's size: the order of the sum is the same on every GPU */

/* Adds up the threads' numbers in halves; thread 0 has the sum. */
__device__ static double sum_of_block(double mine)
{
    __shared__ double sums[THREADS];
    sums[threadIdx.x] = mine;
    __syncthreads();
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half)
            sums[threadIdx.x] += sums[threadIdx.x + half];
        __syncthreads();
    }
    return sums[0];
}

static __global__ void __launch_bounds__(THREADS) squares_kernel(const uint16_t *x, uint64_t n_elems, double *partial)
{
    double mine = 0.0;
    for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < n_elems; i += NORM_BLOCKS * THREADS) {
        const double value = (double)zero_float_of_bf16(x[i]);
        mine += value * value;
    }
    mine = sum_of_block(mine);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = mine;
}

/* Every block adds all partial sums itself, in the same order. x and out may be the same. */
static __global__ void __launch_bounds__(THREADS)
    divide_kernel(const uint16_t *x, uint64_t n_elems, float scale, const double *partial, uint16_t *out)
{
    double mine = 0.0;
    for (unsigned i = threadIdx.x; i < NORM_BLOCKS; i += THREADS)
        mine += partial[i];
    const float norm = (float)sqrt(sum_of_block(mine)), divisor = norm > ZERO_MUON_EPS ? norm : ZERO_MUON_EPS;
    for (unsigned k = 0; k < THREAD_ELEMS; ++k) {
        const uint64_t i = (uint64_t)blockIdx.x * BLOCK_ELEMS + k * THREADS + threadIdx.x;
        if (i < n_elems)
            out[i] = zero_fp16_of_float(scale * (zero_float_of_bf16(x[i]) / divisor));
    }
}

cudaError_t zero_cuda_muon_normalize(const uint16_t *x, uint64_t n_elems, float scale, double *partial, uint16_t *out,
                                     cudaStream_t stream)
{
    squares_kernel<<<NORM_BLOCKS, THREADS, 0, stream>>>(x, n_elems, partial);
    divide_kernel<<<blocks_for(n_elems, BLOCK_ELEMS), THREADS, 0, stream>>>(x, n_elems, scale, partial, out);
    return cudaGetLastError();
}

static __global__ void __launch_bounds__(THREADS) add_diagonal_kernel(uint16_t *x, uint64_t n_rows, float number)
{
    const uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n_rows)
        x[i * (n_rows + 1)] = zero_fp16_of_float(zero_float_of_fp16(x[i * (n_rows + 1)]) + number);
}

cudaError_t zero_cuda_muon_add_diagonal(uint16_t *x, uint64_t n_rows, float number, cudaStream_t stream)
{
    add_diagonal_kernel<<<blocks_for(n_rows, THREADS), THREADS, 0, stream>>>(x, n_rows, number);
    return cudaGetLastError();
}
