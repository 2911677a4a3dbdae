/* guarded.h - what the GPU tests of fp8 share: claims, random bf16 numbers, device memory between guards.
 */
#ifndef GUARDED_H
#define GUARDED_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include <cuda_runtime_api.h>

#include "kernels/float_bits.h"
#include "tests/gpu/support/need.h"

static int n_failed;
static uint64_t seed = 1;

static inline uint64_t random_bits(void) /* SplitMix64 */
{
    uint64_t z = seed += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Returns a sum of twelve uniform numbers, which is normal enough. */
static inline float random_normal(void)
{
    double sum = -6.0;
    for (int i = 0; i < 12; ++i)
        sum += (double)(random_bits() >> 11) * 0x1p-53;
    return (float)sum;
}

static inline float float_of_bf16(uint16_t half)
{
    return zero_float_of_bits((uint32_t)half << 16);
}

static inline uint16_t truncated_bf16(float x)
{
    return (uint16_t)(zero_bits_of_float(x) >> 16);
}

/* ---- Device memory between guards ---- */

#define GUARD 256 /* bytes */

static inline unsigned char *device_new(size_t n_bytes)
{
    unsigned char *block;
    NEED(cudaMalloc((void **)&block, n_bytes + 2 * GUARD) == cudaSuccess);
    NEED(cudaMemset(block, 0xff, n_bytes + 2 * GUARD) == cudaSuccess);
    NEED(cudaDeviceSynchronize() == cudaSuccess);
    return block + GUARD;
}

static inline void *device_of(const void *host, size_t n_bytes)
{
    unsigned char *data = device_new(n_bytes);
    NEED(cudaMemcpy(data, host, n_bytes, cudaMemcpyHostToDevice) == cudaSuccess);
    NEED(cudaDeviceSynchronize() == cudaSuccess);
    return data;
}

/* Returns whether the guards are as they were. */
static inline bool device_get(void *host, const unsigned char *data, size_t n_bytes)
{
    unsigned char guards[2 * GUARD];
    NEED(cudaDeviceSynchronize() == cudaSuccess);
    NEED(cudaMemcpy(host, data, n_bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
    NEED(cudaMemcpy(guards, data - GUARD, GUARD, cudaMemcpyDeviceToHost) == cudaSuccess);
    NEED(cudaMemcpy(guards + GUARD, data + n_bytes, GUARD, cudaMemcpyDeviceToHost) == cudaSuccess);
    for (size_t i = 0; i < sizeof guards; ++i)
        if (guards[i] != 0xff)
            return false;
    return true;
}

static inline void device_free(unsigned char *data)
{
    if (data != NULL)
        NEED(cudaFree(data - GUARD) == cudaSuccess);
}

static inline void *host_new(size_t n_bytes)
{
    void *data = calloc(n_bytes, 1);
    NEED(data != NULL);
    return data;
}

/* Prints a claim and what was measured. */
static inline void report(bool passed, const char *claim, const char *measured)
{
    printf("%-8s%s%s\n", passed ? "ok" : "FAILED", claim, measured);
    n_failed += !passed;
}

#endif
