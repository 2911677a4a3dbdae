/* group.cuh - groups of four elements, in which the shard kernels read and write memory. A group of floats is one
 * 16-byte access, a group of bf16 or fp16 one 8-byte access. Neighbouring threads take neighbouring groups.
 */
#ifndef ZERO_GROUP_CUH
#define ZERO_GROUP_CUH

#include <stddef.h>
#include <stdint.h>

constexpr unsigned GROUP_ELEMS = 4;

template <typename T> struct alignas(GROUP_ELEMS * sizeof(T)) group {
    T at[GROUP_ELEMS];
};

template <typename T> __host__ __device__ inline bool is_group_aligned(const T *p)
{
    return (uintptr_t)p % sizeof(group<T>) == 0;
}

template <typename T> __device__ inline group<T> load_group(const T *p)
{
    return *(const group<T> *)p;
}

template <typename T> __device__ inline void store_group(T *p, const group<T> &values)
{
    *(group<T> *)p = values;
}

/* Returns how many blocks of n_per_block items hold n_items. */
inline unsigned blocks_for(uint64_t n_items, uint64_t n_per_block)
{
    return (unsigned)((n_items + n_per_block - 1) / n_per_block);
}

#endif
