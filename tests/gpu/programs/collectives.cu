/* collectives.cu - see collectives.h. */
#include "tests/gpu/programs/collectives.h"

constexpr unsigned THREADS = 256;

static unsigned blocks_for(size_t n)
{
    size_t blocks = (n + THREADS - 1) / THREADS;
    return blocks < 512 ? (unsigned)blocks : 512u;
}

static __device__ size_t first_index()
{
    return (size_t)blockIdx.x * THREADS + threadIdx.x;
}

static __global__ void fill(unsigned char *data, int rank, int round, size_t first, size_t n_bytes)
{
    for (size_t i = first_index(); i < n_bytes; i += (size_t)gridDim.x * THREADS)
        data[i] = content(rank, round, first + i);
}

static __global__ void check(const unsigned char *data, int rank, int round, size_t first, size_t n_bytes,
                             unsigned long long *n_wrong)
{
    unsigned long long mine = 0;
    for (size_t i = first_index(); i < n_bytes; i += (size_t)gridDim.x * THREADS)
        mine += data[i] != content(rank, round, first + i);
    if (mine)
        atomicAdd(n_wrong, mine);
}

static __global__ void delay(uint64_t nanoseconds)
{
    uint64_t begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do {
        __nanosleep(200);
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - begin < nanoseconds);
}

constexpr int MAX_PEERS = 32;
struct words {
    uint32_t *of[MAX_PEERS];
};

static __global__ void fence(words peers, uint32_t *own, int rank, int size, uint32_t epoch)
{
    int peer = (int)threadIdx.x;
    if (peer >= size || peer == rank)
        return;
    uint32_t seen;
    asm volatile("fence.acq_rel.sys;" ::: "memory");
    asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(peers.of[peer] + rank), "r"(epoch) : "memory");
    do {
        asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(seen) : "l"(own + peer) : "memory");
    } while ((int32_t)(seen - epoch) < 0);
}

extern "C" cudaError_t launch_fill(unsigned char *data, int rank, int round, size_t first, size_t n_bytes,
                                   cudaStream_t stream)
{
    if (n_bytes > 0)
        fill<<<blocks_for(n_bytes), THREADS, 0, stream>>>(data, rank, round, first, n_bytes);
    return cudaGetLastError();
}

extern "C" cudaError_t launch_check(const unsigned char *data, int rank, int round, size_t first, size_t n_bytes,
                                    unsigned long long *n_wrong, cudaStream_t stream)
{
    if (n_bytes > 0)
        check<<<blocks_for(n_bytes), THREADS, 0, stream>>>(data, rank, round, first, n_bytes, n_wrong);
    return cudaGetLastError();
}

extern "C" cudaError_t launch_delay(uint64_t nanoseconds, cudaStream_t stream)
{
    delay<<<1, 1, 0, stream>>>(nanoseconds);
    return cudaGetLastError();
}

extern "C" cudaError_t launch_fence(uint32_t *const *peers_words, uint32_t *own_words, int rank, int size,
                                    uint32_t epoch, cudaStream_t stream)
{
    words peers = {};
    if (size > MAX_PEERS)
        return cudaErrorInvalidValue;
    for (int i = 0; i < size; i++)
        peers.of[i] = peers_words[i];
    fence<<<1, 32, 0, stream>>>(peers, own_words, rank, size, epoch);
    return cudaGetLastError();
}
