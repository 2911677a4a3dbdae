/* collectives.h - device work for the tests and measurements of transports between GPUs. All in stream order. */
#ifndef COLLECTIVES_H
#define COLLECTIVES_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the byte that `rank` publishes at `position` in `round`: every rank knows what it must read. */
static inline
#ifdef __CUDACC__
    __host__ __device__
#endif
    unsigned char
    content(int rank, int round, size_t position)
{
    uint32_t mixed = (uint32_t)position * 2654435761u + (uint32_t)rank * 40503u + (uint32_t)round * 69069u;
    return (unsigned char)((mixed ^ mixed >> 15) >> 3);
}

/* data[i] = content(rank, round, first + i) */
cudaError_t launch_fill(unsigned char *data, int rank, int round, size_t first, size_t n_bytes, cudaStream_t stream);
/* Adds to *n_wrong the bytes that differ from that. */
cudaError_t launch_check(const unsigned char *data, int rank, int round, size_t first, size_t n_bytes,
                         unsigned long long *n_wrong, cudaStream_t stream);
/* Keeps the stream, and next to nothing else, busy. */
cudaError_t launch_delay(uint64_t nanoseconds, cudaStream_t stream);
/* A fence by a kernel of one warp, to compare with: its epoch into peers' words and wait for theirs, in own words. */
cudaError_t launch_fence(uint32_t *const *peers_words, uint32_t *own_words, int rank, int size, uint32_t epoch,
                         cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
