/* device.h - what CUDA offers to kernels, for g++: the names that this project's kernels use, on one CPU thread.
 *
 * Included before each source that convert.py has made. A CUDA thread is a fiber of scheduler.cpp. Barriers and what
 * the lanes of a warp exchange switch between fibers; all else is plain C++. A name that is missing here does not
 * compile, so nothing is emulated by accident.
 */
#ifndef ZERO_EMULATED_DEVICE_H
#define ZERO_EMULATED_DEVICE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <tuple>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime_api.h>
#include <vector_functions.h>
#include <vector_types.h>

#undef __launch_bounds__
#undef __global__
#undef __device__
#undef __host__
#undef __forceinline__
#define __launch_bounds__(...)
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline

extern uint3 threadIdx, blockIdx; /* of the fiber that runs */
extern dim3 blockDim, gridDim;

/* ---- scheduler.cpp ---- */
namespace emulated
{
struct launch_config {
    dim3 grid, block;
    size_t shared_bytes = 0;
    cudaStream_t stream = nullptr; /* all work is done when a launch returns, so any order of streams is kept */
};
extern unsigned char *dynamic_shared; /* of the block that runs, aligned as on a GPU */

/* Runs body(user) once for each thread of the grid. */
void run_grid(const launch_config &config, const char *kernel, void (*body)(void *), void *user);
/* Fills a variable in shared memory with NaN, if no thread of the block has come by it yet. */
void poison_once(void *variable, size_t n_bytes);
/* Waits for all threads of the block, and returns the sum of their votes. */
int wait_for_block(int vote);
/* Waits for the lanes of the mask, and sets words to what each has given. */
void exchange(unsigned mask, uint64_t own, uint64_t words[32]);
unsigned lane();

template <typename F> void launch(const launch_config &config, const char *kernel, F body)
{
    run_grid(
        config, kernel, [](void *user) { (*(F *)user)(); }, &body);
}

/* What the lane `from` gives. */
template <typename T> T shuffled(unsigned mask, T value, unsigned from)
{
    static_assert(sizeof(T) <= sizeof(uint64_t), "as on a GPU");
    uint64_t own = 0, words[32];
    memcpy(&own, &value, sizeof value);
    exchange(mask, own, words);
    memcpy(&value, &words[from % 32], sizeof value);
    return value;
}

/* Combines what the lanes give. */
template <typename F> unsigned reduced(unsigned mask, unsigned value, F combine)
{
    uint64_t words[32];
    exchange(mask, value, words);
    unsigned result = value;
    for (unsigned i = 0; i < 32; ++i)
        if (mask >> i & 1 && i != lane())
            result = combine(result, (unsigned)words[i]);
    return result;
}

template <typename TO, typename FROM> TO bits_as(FROM from)
{
    TO to;
    static_assert(sizeof to == sizeof from, "");
    memcpy(&to, &from, sizeof to);
    return to;
}
} // namespace emulated

/* ---- Barriers, and exchanges within a warp ---- */
static inline void __syncthreads()
{
    emulated::wait_for_block(0);
}
static inline int __syncthreads_count(int predicate)
{
    return emulated::wait_for_block(predicate != 0);
}
static inline void __syncwarp(unsigned mask = ~0u)
{
    emulated::shuffled(mask, 0, 0);
}
template <typename T> T __shfl_xor_sync(unsigned mask, T value, int lanes)
{
    return emulated::shuffled(mask, value, emulated::lane() ^ (unsigned)lanes);
}
template <typename T> T __shfl_sync(unsigned mask, T value, int from, unsigned width = 32)
{
    return emulated::shuffled(mask, value, (emulated::lane() & ~(width - 1)) | ((unsigned)from & (width - 1)));
}
template <typename T> T __shfl_up_sync(unsigned mask, T value, unsigned delta, unsigned width = 32)
{
    unsigned lane = emulated::lane();
    return emulated::shuffled(mask, value, lane % width >= delta ? lane - delta : lane);
}
static inline unsigned __reduce_max_sync(unsigned mask, unsigned value)
{
    return emulated::reduced(mask, value, [](unsigned a, unsigned b) { return std::max(a, b); });
}
static inline unsigned __reduce_add_sync(unsigned mask, unsigned value)
{
    return emulated::reduced(mask, value, [](unsigned a, unsigned b) { return a + b; });
}
static inline unsigned __ballot_sync(unsigned mask, int predicate)
{
    return __reduce_add_sync(mask, predicate ? 1u << emulated::lane() : 0u);
}

/* ---- Atomic operations: a fiber is never interrupted ---- */
template <typename T, typename U> T atomicAdd(T *sum, U value)
{
    T before = *sum;
    *sum = before + (T)value;
    return before;
}
template <typename T, typename U> T atomicMax(T *maximum, U value)
{
    T before = *maximum;
    *maximum = std::max(before, (T)value);
    return before;
}

/* ---- Arithmetic ---- */
using std::max;
using std::min;
static inline unsigned max(unsigned a, int b)
{
    return std::max(a, (unsigned)b);
}
#define __expf expf /* glibc has a function of the same name */
static inline float __fdividef(float a, float b)
{
    return a / b;
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline float __uint_as_float(unsigned x)
{
    return emulated::bits_as<float>(x);
}
static inline float __int_as_float(int x)
{
    return emulated::bits_as<float>(x);
}
static inline unsigned __float_as_uint(float x)
{
    return emulated::bits_as<unsigned>(x);
}
static inline int __float_as_int(float x)
{
    return emulated::bits_as<int>(x);
}
/* The greater of each half. */
static inline unsigned __vmaxu2(unsigned a, unsigned b)
{
    return std::max(a >> 16, b >> 16) << 16 | std::max(a & 0xffff, b & 0xffff);
}
/* Byte i of the result is the byte of y:x that digit i of the selector names. */
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector)
{
    uint64_t bytes = (uint64_t)y << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i)
        result |= (unsigned)(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return result;
}

/* ---- Copies to shared memory: done at once, which is the earliest that a GPU may ---- */
static inline void __pipeline_memcpy_async(void *to, const void *from, size_t n_bytes)
{
    memcpy(to, from, n_bytes);
}
static inline void __pipeline_commit()
{
}
static inline void __pipeline_wait_prior(size_t)
{
}

/* Clusters are not emulated: stand_ins.cpp's GPU is older than they are. */
namespace cooperative_groups
{
struct cluster_group {
    void sync();
    template <typename T> T *map_shared_rank(T *own, unsigned rank);
    unsigned block_rank();
};
cluster_group this_cluster();
} // namespace cooperative_groups

template <typename... P, typename... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(P...), A... arguments)
{
    std::tuple<std::decay_t<P>...> converted{arguments...};
    emulated::launch({config->gridDim, config->blockDim, config->dynamicSmemBytes}, __PRETTY_FUNCTION__,
                     [&] { std::apply(kernel, converted); });
    return cudaSuccess;
}

#endif
