/* shard_isa.h - what the shard kernel files of one instruction set share: the functions that shard_table.c collects,
 * named for the build (isa.h), and the size from which work is split among threads.
 */
#ifndef ZERO_SHARD_ISA_H
#define ZERO_SHARD_ISA_H

#include "kernels/isa.h"
#include "kernels/shard.h"

/* With fewer elements, waking the other threads costs more than they save. */
#define ZERO_SHARD_PARALLEL_MIN ((size_t)1 << 16)

zero_status_t ZERO_ISA(zero_shard_adam)(const zero_adam_t *args, zero_stream_t stream);
zero_status_t ZERO_ISA(zero_shard_sgd)(const zero_adam_t *args, zero_stream_t stream);
zero_status_t ZERO_ISA(zero_shard_nesterov)(const zero_adam_t *args, zero_stream_t stream);
zero_status_t ZERO_ISA(zero_shard_lion)(const zero_adam_t *args, zero_stream_t stream);
zero_status_t ZERO_ISA(zero_shard_adam8)(const zero_adam_t *args, zero_stream_t stream);
void ZERO_ISA(zero_shard_encode8)(zero_block8_t *blocks, const float *values, size_t n_elems, bool is_signed);
void ZERO_ISA(zero_shard_decode8)(float *values, const zero_block8_t *blocks, size_t n_elems, bool is_signed);
zero_status_t ZERO_ISA(zero_shard_muon_momentum)(const zero_muon_t *args, zero_stream_t stream);
zero_status_t ZERO_ISA(zero_shard_muon_apply)(const zero_muon_t *args, zero_stream_t stream);
zero_status_t ZERO_ISA(zero_shard_orthogonalize)(const zero_orthogonalize_t *matrices, int n_matrices,
                                                 zero_stream_t stream);
zero_status_t ZERO_ISA(zero_shard_sum_slices)(const zero_sum_t *sum, zero_stream_t stream);
zero_status_t ZERO_ISA(zero_shard_contribute)(zero_norm_t *norm, const zero_agreed_t *agreed, zero_contribution_t *mine,
                                              zero_stream_t stream);
zero_status_t ZERO_ISA(zero_shard_decide_step)(const zero_step_rules_t *rules, float lr,
                                               const zero_contribution_t *contributions, int n_ranks,
                                               zero_step_state_t *state, zero_adam_scalars_t *scalars,
                                               zero_step_outcome_t *outcome, zero_stream_t stream);
zero_status_t ZERO_ISA(zero_shard_decide_unit)(const zero_step_rules_t *rules, float lr, const uint64_t *nonfinite,
                                               size_t stride, int n_ranks, uint32_t unit, zero_step_state_t *state,
                                               zero_adam_scalars_t *scalars, zero_stream_t stream);
zero_status_t ZERO_ISA(zero_shard_tensor_scalars)(const zero_tensor_rules_t *rules, size_t n_tensors,
                                                  const zero_adam_scalars_t *scalars, zero_tensor_scalars_t *by_tensor,
                                                  zero_stream_t stream);
zero_status_t ZERO_ISA(zero_shard_cast)(void *dst, zero_dtype_t dst_dtype, const void *src, zero_dtype_t src_dtype,
                                        size_t n_elems, zero_stream_t stream);
zero_status_t ZERO_ISA(zero_shard_split_master)(void *param, void *master_lo, zero_dtype_t param_dtype,
                                                const float *master, size_t n_elems, zero_stream_t stream);
zero_status_t ZERO_ISA(zero_shard_join_master)(float *master, const void *param, const void *master_lo,
                                               zero_dtype_t param_dtype, size_t n_elems, zero_stream_t stream);
zero_status_t ZERO_ISA(zero_shard_fill_normal)(float *dst, size_t n_elems, uint64_t seed, uint64_t key, uint64_t first,
                                               float std, zero_stream_t stream);
zero_status_t ZERO_ISA(zero_shard_fp8_absmax)(const zero_fp8_parts_t *parts, uint32_t *absmaxes, zero_stream_t stream);
zero_status_t ZERO_ISA(zero_shard_fp8_scale)(zero_fp8_scales_t *scales, const uint32_t *absmaxes, int n_ranks,
                                             uint32_t n_matrices, zero_stream_t stream);
zero_status_t ZERO_ISA(zero_shard_fp8_cast)(const zero_fp8_parts_t *parts, const zero_fp8_scales_t *scales,
                                            zero_stream_t stream);
zero_status_t ZERO_ISA(zero_shard_poison)(void *data, zero_dtype_t dtype, size_t n_elems, zero_stream_t stream);
zero_status_t ZERO_ISA(zero_shard_count_poison)(const void *data, zero_dtype_t dtype, size_t n_elems, uint64_t *n_found,
                                                zero_stream_t stream);

/* The table of this build; shard_cpu.c lists all of them. */
extern const zero_shard_kernels_t ZERO_ISA(zero_shard_kernels);

#endif
