/* causal.cu - see causal.cuh; and which GPUs its kernels serve.
 */
#include "train/kernels/attention/hopper/causal.cuh"

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                              const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                              CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

extern "C" cudaError_t zero_describe_rows(CUtensorMap *map, zero_dtype_t dtype, const void *data, size_t n_matrices,
                                          size_t n_rows, size_t n_columns)
{
    void *found;
    cudaDriverEntryPointQueryResult query;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &query);
    if (error != cudaSuccess || query != cudaDriverEntryPointSuccess)
        return error != cudaSuccess ? error : cudaErrorNotSupported;
    const cuuint64_t sizes[3] = {n_columns, n_rows, n_matrices}, strides[2] = {n_columns * 2, n_rows * n_columns * 2};
    const cuuint32_t box[3] = {64, 64, 1}, steps[3] = {1, 1, 1};
    const CUtensorMapDataType type =
        dtype == ZERO_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    const CUresult result = ((encode_fn)found)(map, type, 3, (void *)data, sizes, strides, box, steps,
                                               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

extern "C" bool zero_attention_is_hopper(void)
{
    int capability;
    return zero_find_capability(&capability) != cudaSuccess || capability == 90;
}
