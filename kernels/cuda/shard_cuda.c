/* shard_cuda.c - the table of the shard kernels on CUDA. Its functions turn launch errors into statuses, skip launches
 * that have nothing to do (CUDA refuses empty grids), and use plain copies for casts that change no bit. The kernels
 * are in the .cu files of this folder; the .c files of the same names do the same on the CPU.
 */
#include "kernels/cuda/shard_cuda.h"

#include "base/cuda_status.h"

static cudaStream_t stream_of(zero_stream_t stream)
{
    return (cudaStream_t)stream;
}

typedef cudaError_t (*update_fn)(const zero_adam_t *args, cudaStream_t stream);

static zero_status_t update(update_fn launch, const zero_adam_t *args, zero_stream_t stream)
{
    if (args->n_segments == 0 || args->state_begin >= args->state_end)
        return ZERO_OK;
    ZERO_TRY_CUDA(launch(args, stream_of(stream)));
    return ZERO_OK;
}

static zero_status_t adam(const zero_adam_t *args, zero_stream_t stream)
{
    return update(zero_cuda_adam, args, stream);
}

static zero_status_t sgd(const zero_adam_t *args, zero_stream_t stream)
{
    return update(zero_cuda_sgd, args, stream);
}

static zero_status_t nesterov(const zero_adam_t *args, zero_stream_t stream)
{
    return update(zero_cuda_nesterov, args, stream);
}

static zero_status_t lion(const zero_adam_t *args, zero_stream_t stream)
{
    return update(zero_cuda_lion, args, stream);
}

static zero_status_t adam8(const zero_adam_t *args, zero_stream_t stream)
{
    return update(zero_cuda_adam8, args, stream);
}

static zero_status_t muon_momentum(const zero_muon_t *args, zero_stream_t stream)
{
    if (args->n_segments == 0 || args->longest == 0)
        return ZERO_OK;
    ZERO_TRY_CUDA(zero_cuda_muon_momentum(args, stream_of(stream)));
    return ZERO_OK;
}

static zero_status_t muon_apply(const zero_muon_t *args, zero_stream_t stream)
{
    if (args->n_segments == 0 || args->longest == 0)
        return ZERO_OK;
    ZERO_TRY_CUDA(zero_cuda_muon_apply(args, stream_of(stream)));
    return ZERO_OK;
}

static zero_status_t orthogonalize(const zero_orthogonalize_t *matrices, int n_matrices, zero_stream_t stream)
{
    return zero_cuda_orthogonalize(matrices, n_matrices, stream_of(stream));
}

static zero_status_t sum_slices(const zero_sum_t *sum, zero_stream_t stream)
{
    if (sum->n_elems == 0)
        return ZERO_OK;
    if (sum->n_slices < 1 || sum->n_slices > ZERO_CUDA_MAX_SLICES)
        return zero_fail(ZERO_ERROR_UNSUPPORTED, "cannot sum %d gradient slices, only 1 to %d: use reduction = nccl",
                         sum->n_slices, ZERO_CUDA_MAX_SLICES);
    zero_cuda_slices_t by_value = {{NULL}};
    for (int r = 0; r < sum->n_slices; ++r)
        by_value.at[r] = sum->slices[r];
    ZERO_TRY_CUDA(zero_cuda_sum_slices(sum, &by_value, stream_of(stream)));
    return ZERO_OK;
}

static zero_status_t contribute(zero_norm_t *norm, const zero_agreed_t *agreed, zero_contribution_t *mine,
                                zero_stream_t stream)
{
    ZERO_TRY_CUDA(zero_cuda_contribute(norm, agreed, mine, stream_of(stream)));
    return ZERO_OK;
}

static zero_status_t decide_step(const zero_step_rules_t *rules, float lr, const zero_contribution_t *contributions,
                                 int n_ranks, zero_step_state_t *state, zero_adam_scalars_t *scalars,
                                 zero_step_outcome_t *outcome, zero_stream_t stream)
{
    ZERO_TRY_CUDA(zero_cuda_decide_step(rules, lr, contributions, n_ranks, state, scalars, outcome, stream_of(stream)));
    return ZERO_OK;
}

static zero_status_t decide_unit(const zero_step_rules_t *rules, float lr, const uint64_t *nonfinite, size_t stride,
                                 int n_ranks, uint32_t unit, zero_step_state_t *state, zero_adam_scalars_t *scalars,
                                 zero_stream_t stream)
{
    ZERO_TRY_CUDA(
        zero_cuda_decide_unit(rules, lr, nonfinite, stride, n_ranks, unit, state, scalars, stream_of(stream)));
    return ZERO_OK;
}

static zero_status_t tensor_scalars(const zero_tensor_rules_t *rules, size_t n_tensors,
                                    const zero_adam_scalars_t *scalars, zero_tensor_scalars_t *by_tensor,
                                    zero_stream_t stream)
{
    if (n_tensors == 0)
        return ZERO_OK;
    ZERO_TRY_CUDA(zero_cuda_tensor_scalars(rules, n_tensors, scalars, by_tensor, stream_of(stream)));
    return ZERO_OK;
}

static zero_status_t cast(void *dst, zero_dtype_t dst_dtype, const void *src, zero_dtype_t src_dtype, size_t n_elems,
                          zero_stream_t stream)
{
    if (n_elems == 0)
        return ZERO_OK;
    if (dst_dtype == src_dtype)
        ZERO_TRY_CUDA(cudaMemcpyAsync(dst, src, n_elems * zero_dtype_size(src_dtype), cudaMemcpyDeviceToDevice,
                                      stream_of(stream)));
    else
        ZERO_TRY_CUDA(zero_cuda_cast(dst, dst_dtype, src, src_dtype, n_elems, stream_of(stream)));
    return ZERO_OK;
}

static zero_status_t split_master(void *param, void *master_lo, zero_dtype_t param_dtype, const float *master,
                                  size_t n_elems, zero_stream_t stream)
{
    if (n_elems == 0)
        return ZERO_OK;
    if (param_dtype == ZERO_BF16) {
        ZERO_TRY_CUDA(zero_cuda_split_bf16(param, master_lo, master, n_elems, stream_of(stream)));
        return ZERO_OK;
    }
    if (param_dtype == ZERO_FP16)
        ZERO_TRY(cast(master_lo, ZERO_FP32, master, ZERO_FP32, n_elems, stream));
    return cast(param, param_dtype, master, ZERO_FP32, n_elems, stream);
}

static zero_status_t join_master(float *master, const void *param, const void *master_lo, zero_dtype_t param_dtype,
                                 size_t n_elems, zero_stream_t stream)
{
    if (n_elems == 0)
        return ZERO_OK;
    if (param_dtype != ZERO_BF16)
        return cast(master, ZERO_FP32, param_dtype == ZERO_FP16 ? master_lo : param, ZERO_FP32, n_elems, stream);
    ZERO_TRY_CUDA(zero_cuda_join_bf16(master, param, master_lo, n_elems, stream_of(stream)));
    return ZERO_OK;
}

static zero_status_t fp8_absmax(const zero_fp8_parts_t *parts, uint32_t *absmaxes, zero_stream_t stream)
{
    if (parts->n_matrices == 0)
        return ZERO_OK;
    ZERO_TRY_CUDA(zero_cuda_shard_fp8_absmax(parts, absmaxes, stream_of(stream)));
    return ZERO_OK;
}

static zero_status_t fp8_scale(zero_fp8_scales_t *scales, const uint32_t *absmaxes, int n_ranks, uint32_t n_matrices,
                               zero_stream_t stream)
{
    if (n_matrices == 0)
        return ZERO_OK;
    ZERO_TRY_CUDA(zero_cuda_shard_fp8_scale(scales, absmaxes, n_ranks, n_matrices, stream_of(stream)));
    return ZERO_OK;
}

static zero_status_t fp8_cast(const zero_fp8_parts_t *parts, const zero_fp8_scales_t *scales, zero_stream_t stream)
{
    if (parts->n_segments == 0)
        return ZERO_OK;
    ZERO_TRY_CUDA(zero_cuda_shard_fp8_cast(parts, scales, stream_of(stream)));
    return ZERO_OK;
}

static zero_status_t poison(void *data, zero_dtype_t dtype, size_t n_elems, zero_stream_t stream)
{
    if (n_elems == 0)
        return ZERO_OK;
    ZERO_TRY_CUDA(zero_cuda_poison(data, dtype, n_elems, stream_of(stream)));
    return ZERO_OK;
}

static zero_status_t count_poison(const void *data, zero_dtype_t dtype, size_t n_elems, uint64_t *n_found,
                                  zero_stream_t stream)
{
    if (n_elems == 0)
        ZERO_TRY_CUDA(cudaMemsetAsync(n_found, 0, sizeof *n_found, stream_of(stream)));
    else
        ZERO_TRY_CUDA(zero_cuda_count_poison(data, dtype, n_elems, n_found, stream_of(stream)));
    return ZERO_OK;
}

static zero_status_t fill_normal(float *dst, size_t n_elems, uint64_t seed, uint64_t key, uint64_t first, float std,
                                 zero_stream_t stream)
{
    if (n_elems == 0)
        return ZERO_OK;
    ZERO_TRY_CUDA(zero_cuda_fill_normal(dst, n_elems, seed, key, first, std, stream_of(stream)));
    return ZERO_OK;
}

const zero_shard_kernels_t *zero_shard_kernels_cuda(void)
{
    static const zero_shard_kernels_t kernels = {
        .name = "cuda",
        .adam = adam,
        .sgd = sgd,
        .nesterov = nesterov,
        .lion = lion,
        .adam8 = adam8,
        .muon_momentum = muon_momentum,
        .muon_apply = muon_apply,
        .orthogonalize = orthogonalize,
        .orthogonalizer_create = zero_cuda_orthogonalizer_create,
        .orthogonalizer_prepare = zero_cuda_orthogonalizer_prepare,
        .orthogonalizer_destroy = zero_cuda_orthogonalizer_destroy,
        .sum_slices = sum_slices,
        .contribute = contribute,
        .decide_step = decide_step,
        .decide_unit = decide_unit,
        .tensor_scalars = tensor_scalars,
        .cast = cast,
        .split_master = split_master,
        .join_master = join_master,
        .fp8_absmax = fp8_absmax,
        .fp8_scale = fp8_scale,
        .fp8_cast = fp8_cast,
        .poison = poison,
        .count_poison = count_poison,
        .fill_normal = fill_normal,
    };
    return &kernels;
}
